//! Means against the weaknesses of a processor.

use x86_spec::msr::{arch_capabilities as arch, spec_ctrl};

use crate::{Bugs, Capabilities, Isolation, Mode, Processor, Restrictions};

/// Means against steered indirect branches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Branches {
    /// Branches cannot be steered.
    NotAffected,
    /// Nothing, or nothing that helps.
    Vulnerable,
    /// Restricted once and for all: Intel's enhanced IBRS, AMD's automatic IBRS.
    Enhanced,
    /// Restricted once and for all, by a processor that asks for it to be done so.
    AlwaysOn,
    /// Restricted at each entry of the kernel, as long as it runs.
    AtEntry,
}

/// Means against internal buffers being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Buffers {
    /// Buffers cannot be read.
    NotAffected,
    /// Nothing.
    Vulnerable,
    /// Buffers are cleared before a program goes on; by this processor's microcode in vain.
    Attempted,
    /// Buffers are cleared before a program goes on.
    Cleared,
}

/// The routines by which a CPU enters the kernel and leaves it; each does what those before it do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Entry {
    /// Nothing but the work.
    #[default]
    Plain,
    /// Buffers are cleared before ring 3.
    ClearBuffers,
    /// Indirect branches are restricted in the kernel.
    RestrictBranches,
}

/// Means that the kernel applies against a processor's weaknesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Against steered indirect branches.
    pub branches: Branches,
    /// Against reads of buffers by sampling (MDS).
    pub mds: Buffers,
    /// Against the same in aborted transactions.
    pub taa: Buffers,
    /// Against reads of what device registers left.
    pub mmio: Buffers,
    /// Against reads of registers.
    pub rfds: Buffers,
    /// Against reads of what schedulers forward.
    pub tsa: Buffers,
    /// Routines of entry and exit.
    pub entry: Entry,
    /// Programs run on page tables without the kernel. Their routines of entry and exit clear
    /// buffers in any case.
    pub isolate: bool,
    /// The register [`x86_spec::msr::SPEC_CTRL`] is there.
    pub has_spec_ctrl: bool,
    /// Value of that register while the kernel runs.
    pub kernel_spec_ctrl: u64,
    /// Value while a program runs that asks for nothing more.
    pub user_spec_ctrl: u64,
    /// AMD's automatic IBRS is switched on.
    pub auto_ibrs: bool,
    /// Predictions of returns are overwritten when another program's thread comes to the CPU.
    pub fill_return_stack: bool,
    /// Transactions are switched off.
    pub tsx_off: bool,
    /// A thread can have its loads kept from overtaking stores.
    pub ssbd: bool,
    /// A thread can have its indirect branches kept from those of others.
    pub indirect_branch: bool,
    /// The other thread of the core is kept out then.
    pub stibp: bool,
    /// The other thread is kept out always, because it may be another kernel's.
    pub keep_apart: bool,
    /// Predictions can be dropped when a core changes hands.
    pub ibpb: bool,
    /// The first cache can be flushed when a core changes hands.
    pub flush_l1d: bool,
}

impl Plan {
    /// The plan for `processor`, whose weaknesses are `bugs`.
    #[must_use]
    pub fn new(processor: &Processor, bugs: Bugs, mode: Mode) -> Self {
        let has = |capability| processor.has(capability);
        let wanted = !mode.off;
        let tsx_off = wanted && bugs.contains(Bugs::TAA) && processor.says(arch::TSX_CTRL);
        let clears = has(Capabilities::MD_CLEAR);
        // Microcode that clears for MDS but is older than FB_CLEAR does for MMIO what it can.
        let clears_mmio = processor.says(arch::FB_CLEAR)
            || clears && has(Capabilities::FLUSH_L1D) && !processor.says(arch::MDS_NO);
        let buffers = |bug: Bugs, works: bool| match () {
            () if !bugs.intersects(bug) => Buffers::NotAffected,
            () if !wanted => Buffers::Vulnerable,
            () if works => Buffers::Cleared,
            () => Buffers::Attempted,
        };
        let mds = buffers(Bugs::MDS, clears);
        let taa = buffers(Bugs::TAA, clears);
        let mmio = buffers(Bugs::MMIO_STALE_DATA, clears_mmio);
        let rfds = buffers(Bugs::RFDS, processor.says(arch::RFDS_CLEAR));
        let tsa = buffers(Bugs::TSA, has(Capabilities::VERW_CLEAR));
        let is_done = |one: Buffers| matches!(one, Buffers::Cleared | Buffers::Attempted);
        let clear = [mds, mmio, rfds, tsa].into_iter().any(is_done) || is_done(taa) && !tsx_off;
        let branches = branches(processor, bugs, wanted);
        let restricted = matches!(
            branches,
            Branches::Enhanced | Branches::AlwaysOn | Branches::AtEntry
        );
        let auto_ibrs = branches == Branches::Enhanced && has(Capabilities::AUTO_IBRS);
        let mut kernel_spec_ctrl = 0;
        if restricted && !auto_ibrs {
            kernel_spec_ctrl |= spec_ctrl::IBRS;
        }
        if restricted && bugs.contains(Bugs::BHI) && has(Capabilities::BHI_CONTROL) {
            kernel_spec_ctrl |= spec_ctrl::BHI_DIS_S;
        }
        // Intel's enhanced IBRS is STIBP too. Whatever the kernel was told of the processor's other
        // weaknesses, here it is somebody else who could steer branches.
        let is_kept_apart = branches == Branches::Enhanced && !auto_ibrs;
        let keep_apart = mode.shares_cores
            && bugs.contains(Bugs::SPECTRE_V2)
            && has(Capabilities::STIBP)
            && !is_kept_apart;
        if keep_apart {
            kernel_spec_ctrl |= spec_ctrl::STIBP;
        }
        Self {
            branches,
            mds,
            taa,
            mmio,
            rfds,
            tsa,
            entry: match branches {
                Branches::AtEntry => Entry::RestrictBranches,
                _ if clear => Entry::ClearBuffers,
                _ => Entry::Plain,
            },
            isolate: match mode.isolation {
                Isolation::Auto => wanted && bugs.contains(Bugs::MELTDOWN),
                Isolation::On => true,
                Isolation::Off => false,
            },
            has_spec_ctrl: processor
                .capabilities
                .intersects(Capabilities::IBRS | Capabilities::STIBP | Capabilities::SSBD),
            kernel_spec_ctrl,
            user_spec_ctrl: match branches {
                Branches::AtEntry => kernel_spec_ctrl & !spec_ctrl::IBRS,
                _ => kernel_spec_ctrl,
            },
            auto_ibrs,
            fill_return_stack: restricted,
            tsx_off,
            ssbd: wanted && bugs.contains(Bugs::SSB) && has(Capabilities::SSBD),
            indirect_branch: wanted && bugs.contains(Bugs::SPECTRE_V2) && has(Capabilities::IBPB),
            stibp: has(Capabilities::STIBP),
            keep_apart,
            ibpb: has(Capabilities::IBPB),
            flush_l1d: has(Capabilities::FLUSH_L1D),
        }
    }

    /// Restrictions that a thread can ask for.
    #[must_use]
    pub fn restrictions(&self) -> Restrictions {
        let mut available = Restrictions::empty();
        available.set(Restrictions::INDIRECT_BRANCH, self.indirect_branch);
        available.set(Restrictions::STORE_BYPASS, self.ssbd);
        available
    }

    /// Value of [`x86_spec::msr::SPEC_CTRL`] while a thread with these restrictions is in ring 3.
    #[must_use]
    pub fn spec_ctrl(&self, restrictions: Restrictions) -> u64 {
        let mut value = self.user_spec_ctrl;
        if restrictions.contains(Restrictions::INDIRECT_BRANCH) && self.stibp {
            value |= spec_ctrl::STIBP;
        }
        if restrictions.contains(Restrictions::STORE_BYPASS) && self.ssbd {
            value |= spec_ctrl::SSBD;
        }
        value
    }

    /// The plan of a processor that needs and has everything, for emulators: they ignore writes to
    /// registers that they do not know. Isolation can be left out.
    #[must_use]
    pub fn forced(mode: Mode) -> Self {
        Self {
            branches: Branches::AtEntry,
            mds: Buffers::Cleared,
            taa: Buffers::Cleared,
            mmio: Buffers::Cleared,
            rfds: Buffers::Cleared,
            tsa: Buffers::Cleared,
            entry: Entry::RestrictBranches,
            isolate: mode.isolation != Isolation::Off,
            has_spec_ctrl: true,
            kernel_spec_ctrl: spec_ctrl::IBRS,
            user_spec_ctrl: 0,
            auto_ibrs: false,
            fill_return_stack: true,
            tsx_off: false,
            ssbd: true,
            indirect_branch: true,
            stibp: true,
            keep_apart: false,
            ibpb: true,
            flush_l1d: true,
        }
    }
}

fn branches(processor: &Processor, bugs: Bugs, wanted: bool) -> Branches {
    let has = |capability| processor.has(capability);
    match () {
        () if !bugs.contains(Bugs::SPECTRE_V2) => Branches::NotAffected,
        () if !wanted => Branches::Vulnerable,
        () if has(Capabilities::AUTO_IBRS) => Branches::Enhanced,
        () if !has(Capabilities::IBRS) => Branches::Vulnerable,
        () if processor.says(arch::IBRS_ALL) => Branches::Enhanced,
        () if has(Capabilities::IBRS_ALWAYS_ON) => Branches::AlwaysOn,
        // Until the register is written, returns are the only indirect branches of an entry: with
        // SMEP a program cannot steer them to code of its own.
        () if has(Capabilities::SMEP) => Branches::AtEntry,
        () => Branches::Vulnerable,
    }
}
