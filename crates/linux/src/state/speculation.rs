//! Choices of a thread about its own speculation: `PR_SET_SPECULATION_CTRL`.

use abi::errno::Errno;
use guard::speculation::{self, Bugs, Restrictions};
use linux_raw_sys::prctl as pr;

/// Choice of a thread about one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Choice {
    #[default]
    Enable,
    Disable,
    /// `PR_SPEC_DISABLE_NOEXEC`.
    DisableUntilExec,
    ForceDisable,
}

/// A kind of speculation that a thread can choose about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpeculationKind {
    /// `PR_SPEC_STORE_BYPASS`.
    StoreBypass,
    /// `PR_SPEC_INDIRECT_BRANCH`.
    IndirectBranch,
}

/// Kinds by which a processor is affected, and those that can be restricted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Means {
    affected: Restrictions,
    available: Restrictions,
}

impl Means {
    /// The means of this machine's processors.
    pub(crate) fn of_machine() -> Self {
        let bugs = speculation::report().bugs;
        let mut affected = Restrictions::empty();
        affected.set(Restrictions::STORE_BYPASS, bugs.contains(Bugs::SSB));
        affected.set(
            Restrictions::INDIRECT_BRANCH,
            bugs.contains(Bugs::SPECTRE_V2),
        );
        Self {
            affected,
            available: speculation::available(),
        }
    }
}

impl SpeculationKind {
    fn restriction(self) -> Restrictions {
        match self {
            Self::StoreBypass => Restrictions::STORE_BYPASS,
            Self::IndirectBranch => Restrictions::INDIRECT_BRANCH,
        }
    }
}

/// Choices of a thread.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Speculation {
    store_bypass: Choice,
    indirect_branch: Choice,
}

impl Speculation {
    fn choice(&mut self, kind: SpeculationKind) -> &mut Choice {
        match kind {
            SpeculationKind::StoreBypass => &mut self.store_bypass,
            SpeculationKind::IndirectBranch => &mut self.indirect_branch,
        }
    }

    /// The answer of `PR_GET_SPECULATION_CTRL`.
    pub(crate) fn answer(mut self, kind: SpeculationKind, means: Means) -> u32 {
        if !means.affected.contains(kind.restriction()) {
            return pr::PR_SPEC_NOT_AFFECTED;
        }
        if !means.available.contains(kind.restriction()) {
            return pr::PR_SPEC_ENABLE;
        }
        pr::PR_SPEC_PRCTL
            | match *self.choice(kind) {
                Choice::Enable => pr::PR_SPEC_ENABLE,
                Choice::Disable => pr::PR_SPEC_DISABLE,
                Choice::DisableUntilExec => pr::PR_SPEC_DISABLE_NOEXEC,
                Choice::ForceDisable => pr::PR_SPEC_FORCE_DISABLE,
            }
    }

    /// `PR_SET_SPECULATION_CTRL`; `how` is one of `PR_SPEC_*`.
    ///
    /// # Errors
    /// `EPERM`: it was disabled for good, or nothing can be done against indirect branches.
    /// `ENXIO`: nothing can be done against store bypass. `ERANGE`: no such choice.
    pub(crate) fn set(
        &mut self,
        kind: SpeculationKind,
        how: usize,
        means: Means,
    ) -> Result<(), Errno> {
        let can = means.available.contains(kind.restriction());
        if !can && kind == SpeculationKind::StoreBypass {
            return Err(Errno::ENXIO);
        }
        let new = match (kind, u32::try_from(how)) {
            (_, Ok(pr::PR_SPEC_ENABLE)) if !can => return Ok(()),
            (_, Ok(pr::PR_SPEC_DISABLE | pr::PR_SPEC_FORCE_DISABLE)) if !can => {
                return Err(Errno::EPERM);
            }
            (_, Ok(pr::PR_SPEC_ENABLE)) => Choice::Enable,
            (_, Ok(pr::PR_SPEC_DISABLE)) => Choice::Disable,
            (_, Ok(pr::PR_SPEC_FORCE_DISABLE)) => Choice::ForceDisable,
            (SpeculationKind::StoreBypass, Ok(pr::PR_SPEC_DISABLE_NOEXEC)) => {
                Choice::DisableUntilExec
            }
            _ => return Err(Errno::ERANGE),
        };
        let choice = self.choice(kind);
        match (*choice, new) {
            (Choice::ForceDisable, Choice::Enable | Choice::DisableUntilExec) => Err(Errno::EPERM),
            // It stays so for good.
            (Choice::ForceDisable, _) => Ok(()),
            _ => {
                *choice = new;
                Ok(())
            }
        }
    }

    /// The choices of the thread's next program.
    pub(crate) fn after_exec(mut self) -> Self {
        if self.store_bypass == Choice::DisableUntilExec {
            self.store_bypass = Choice::Enable;
        }
        self
    }

    /// Restrictions that follow.
    pub(crate) fn restrictions(self) -> Restrictions {
        let mut restrictions = Restrictions::empty();
        for (choice, kind) in [
            (self.store_bypass, SpeculationKind::StoreBypass),
            (self.indirect_branch, SpeculationKind::IndirectBranch),
        ] {
            restrictions.set(kind.restriction(), choice != Choice::Enable);
        }
        restrictions
    }

    /// The words of `/proc/PID/status`.
    pub(crate) fn words(self, kind: SpeculationKind, means: Means) -> &'static str {
        const PER_THREAD: u32 = pr::PR_SPEC_PRCTL;
        const ENABLED: u32 = PER_THREAD | pr::PR_SPEC_ENABLE;
        const DISABLED: u32 = PER_THREAD | pr::PR_SPEC_DISABLE;
        const UNTIL_EXEC: u32 = PER_THREAD | pr::PR_SPEC_DISABLE_NOEXEC;
        const FOR_GOOD: u32 = PER_THREAD | pr::PR_SPEC_FORCE_DISABLE;
        match (kind, self.answer(kind, means)) {
            (SpeculationKind::StoreBypass, pr::PR_SPEC_NOT_AFFECTED) => "not vulnerable",
            (SpeculationKind::StoreBypass, ENABLED) => "thread vulnerable",
            (SpeculationKind::StoreBypass, DISABLED | UNTIL_EXEC) => "thread mitigated",
            (SpeculationKind::StoreBypass, FOR_GOOD) => "thread force mitigated",
            (SpeculationKind::StoreBypass, _) => "vulnerable",
            (SpeculationKind::IndirectBranch, pr::PR_SPEC_NOT_AFFECTED) => "not affected",
            (SpeculationKind::IndirectBranch, ENABLED) => "conditional enabled",
            (SpeculationKind::IndirectBranch, DISABLED) => "conditional disabled",
            (SpeculationKind::IndirectBranch, FOR_GOOD) => "conditional force disabled",
            (SpeculationKind::IndirectBranch, _) => "always enabled",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: Restrictions = Restrictions::all();
    const NONE: Restrictions = Restrictions::empty();

    fn means(affected: Restrictions, available: Restrictions) -> Means {
        Means {
            affected,
            available,
        }
    }

    /// Choices of Linux's `ssb_prctl_set` and `ib_prctl_set`, one after the other.
    #[test]
    fn a_choice_is_answered_until_it_is_for_good() {
        let can = means(BOTH, BOTH);
        let mut thread = Speculation::default();
        for kind in [
            SpeculationKind::StoreBypass,
            SpeculationKind::IndirectBranch,
        ] {
            let mut set = |how: u32| thread.set(kind, how as usize, can);
            assert_eq!(set(pr::PR_SPEC_DISABLE), Ok(()));
            assert_eq!(
                thread.answer(kind, can),
                pr::PR_SPEC_PRCTL | pr::PR_SPEC_DISABLE
            );
            assert!(thread.restrictions().contains(kind.restriction()));
            let mut set = |how: u32| thread.set(kind, how as usize, can);
            assert_eq!(set(pr::PR_SPEC_ENABLE), Ok(()));
            assert_eq!(set(0x100), Err(Errno::ERANGE));
            assert_eq!(
                set(pr::PR_SPEC_ENABLE | pr::PR_SPEC_DISABLE),
                Err(Errno::ERANGE)
            );
            assert_eq!(
                thread.answer(kind, can),
                pr::PR_SPEC_PRCTL | pr::PR_SPEC_ENABLE
            );
            assert!(!thread.restrictions().contains(kind.restriction()));
            let mut set = |how: u32| thread.set(kind, how as usize, can);
            assert_eq!(set(pr::PR_SPEC_FORCE_DISABLE), Ok(()));
            assert_eq!(set(pr::PR_SPEC_ENABLE), Err(Errno::EPERM));
            assert_eq!(set(pr::PR_SPEC_DISABLE), Ok(()));
            assert_eq!(
                thread.answer(kind, can),
                pr::PR_SPEC_PRCTL | pr::PR_SPEC_FORCE_DISABLE
            );
        }
        assert_eq!(thread.after_exec().restrictions(), BOTH);
        assert_eq!(
            thread.words(SpeculationKind::StoreBypass, can),
            "thread force mitigated"
        );
        assert_eq!(
            thread.words(SpeculationKind::IndirectBranch, can),
            "conditional force disabled"
        );
    }

    #[test]
    fn store_bypass_comes_back_with_the_next_program_if_so_chosen() {
        let can = means(BOTH, BOTH);
        let mut thread = Speculation::default();
        let until_exec = pr::PR_SPEC_DISABLE_NOEXEC as usize;
        assert_eq!(
            thread.set(SpeculationKind::IndirectBranch, until_exec, can),
            Err(Errno::ERANGE)
        );
        assert_eq!(
            thread.set(SpeculationKind::StoreBypass, until_exec, can),
            Ok(())
        );
        assert_eq!(
            thread.words(SpeculationKind::StoreBypass, can),
            "thread mitigated"
        );
        assert_eq!(thread.restrictions(), Restrictions::STORE_BYPASS);
        assert_eq!(thread.after_exec().restrictions(), NONE);
    }

    #[test]
    fn a_processor_without_weakness_or_means_says_so() {
        let mut thread = Speculation::default();
        for (means, answer, words) in [
            (
                means(NONE, NONE),
                pr::PR_SPEC_NOT_AFFECTED,
                ["not vulnerable", "not affected"],
            ),
            (
                means(BOTH, NONE),
                pr::PR_SPEC_ENABLE,
                ["vulnerable", "always enabled"],
            ),
        ] {
            for (kind, words) in [
                SpeculationKind::StoreBypass,
                SpeculationKind::IndirectBranch,
            ]
            .into_iter()
            .zip(words)
            {
                assert_eq!(thread.answer(kind, means), answer);
                assert_eq!(thread.words(kind, means), words);
            }
            let mut set = |kind, how: u32| thread.set(kind, how as usize, means);
            assert_eq!(
                set(SpeculationKind::StoreBypass, pr::PR_SPEC_DISABLE),
                Err(Errno::ENXIO)
            );
            assert_eq!(
                set(SpeculationKind::IndirectBranch, pr::PR_SPEC_DISABLE),
                Err(Errno::EPERM)
            );
            assert_eq!(
                set(SpeculationKind::IndirectBranch, pr::PR_SPEC_ENABLE),
                Ok(())
            );
            assert_eq!(
                set(SpeculationKind::IndirectBranch, 0x100),
                Err(Errno::ERANGE)
            );
            assert_eq!(thread.restrictions(), NONE);
        }
    }
}
