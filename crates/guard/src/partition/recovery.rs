//! Which step is next to get one CPU of an ended instance back: logic only, told what was seen.
//!
//! The rules, in this order:
//!
//! * *Proof before everything.* A CPU is back when it has claimed an order that was published after
//!   the one that sent it away. Once it was reset, that is believed only when it also has come in
//!   through the reset: until then an INIT is under way that would hit the CPU's next owner.
//! * *Proof before force.* An NMI asks; INIT follows only when the CPU has let many looks pass.
//! * *One step a look.* Looks are at least [`LOOK_NS`] apart, and whoever is late himself, however
//!   late, has looked once: he who was stopped for seconds has given nobody a chance to come.
//! * *Nothing is given up.* A CPU that is overdue keeps being sent start-up messages, and is
//!   believed whenever it proves where it is.

/// Least time between two looks that count.
pub(super) const LOOK_NS: u64 = 10_000_000;
/// Looks that a CPU has from the NMI to the reset.
const NMI_LOOKS: u32 = 50;
/// Looks from INIT to the first start-up message (the manual asks for 10 ms), and from one message
/// to the next. The manual asks for two; one that runs ignores them.
const START_UP_LOOKS: u32 = 2;
/// Looks from the reset until the CPU counts as overdue.
const OVERDUE_LOOKS: u32 = 450;

/// Facts about a CPU at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    /// The last order was claimed.
    pub claimed: bool,
    /// Number of times that the CPU has come into the park page through a reset.
    pub resets: u32,
}

/// Action on a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing.
    Wait,
    /// Send INIT.
    Reset,
    /// Send a start-up message.
    StartUp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Has the order to stay, and was sent an NMI.
    Asked,
    /// Was sent INIT when it had come in through so many resets.
    Reset { resets: u32 },
    /// Is in the park page.
    Parked,
}

/// Progress of getting one CPU back.
#[derive(Clone, Debug)]
pub(super) struct Recovery {
    state: State,
    /// Looks in this state.
    looks: u32,
    /// Time of the next look that counts.
    next_look: u64,
    was_reset: bool,
}

impl Recovery {
    /// For a CPU in the park page.
    pub(super) const fn parked() -> Self {
        Self {
            state: State::Parked,
            looks: 0,
            next_look: 0,
            was_reset: false,
        }
    }

    /// For a CPU that was asked for its proof, at `now`.
    pub(super) const fn asked(now: u64) -> Self {
        Self {
            state: State::Asked,
            looks: 0,
            next_look: now.saturating_add(LOOK_NS),
            was_reset: false,
        }
    }

    /// Looks at the CPU. The proof counts at any time, everything else once a look.
    pub(super) fn look(&mut self, now: u64, seen: Seen) -> Step {
        let proved = match self.state {
            State::Parked => return Step::Wait,
            State::Asked => seen.claimed,
            State::Reset { resets } => seen.claimed && seen.resets != resets,
        };
        if proved {
            self.state = State::Parked;
            return Step::Wait;
        }
        if now < self.next_look {
            return Step::Wait;
        }
        self.next_look = now.saturating_add(LOOK_NS);
        self.looks = self.looks.saturating_add(1);
        match self.state {
            State::Asked if self.looks > NMI_LOOKS => {
                self.was_reset = true;
                self.looks = 0;
                self.state = State::Reset {
                    resets: seen.resets,
                };
                Step::Reset
            }
            State::Reset { .. } if self.looks.is_multiple_of(START_UP_LOOKS) => Step::StartUp,
            _ => Step::Wait,
        }
    }

    /// The CPU is in the park page, and nothing is under way that would take it out or reset it.
    pub(super) fn is_parked(&self) -> bool {
        self.state == State::Parked
    }

    /// The CPU did not come of itself.
    pub(super) fn was_reset(&self) -> bool {
        self.was_reset
    }

    /// Had its chance after the reset, too: nobody should wait for it any longer.
    pub(super) fn is_overdue(&self) -> bool {
        matches!(self.state, State::Reset { .. }) && self.looks >= OVERDUE_LOOKS
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A CPU as the protocol knows it, on a host that lets it stand still.
    #[derive(Debug)]
    struct Cpu {
        /// Runs its instance's kernel (or hangs in it), waits for a start-up message, or is parked.
        place: Place,
        /// Takes NMIs.
        hears: bool,
        nmi: bool,
        init: bool,
        start_up: bool,
        order: bool,
        resets: u32,
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Place {
        Instance,
        WaitsForStartUp,
        Parked,
    }

    impl Cpu {
        fn new(hears: bool) -> Self {
            Self {
                place: Place::Instance,
                hears,
                nmi: true,
                init: false,
                start_up: false,
                order: true,
                resets: 0,
            }
        }

        /// Gets so far in one go: INIT comes before NMI and discards it.
        fn run(&mut self) {
            if core::mem::take(&mut self.init) {
                self.place = Place::WaitsForStartUp;
                self.nmi = false;
            }
            if core::mem::take(&mut self.start_up) && self.place == Place::WaitsForStartUp {
                self.place = Place::Parked;
                self.resets += 1;
                self.order = false;
            }
            if self.nmi && self.hears && self.place != Place::WaitsForStartUp {
                self.nmi = false;
                self.place = Place::Parked;
                self.order = false;
            }
        }

        fn seen(&self) -> Seen {
            Seen {
                claimed: !self.order,
                resets: self.resets,
            }
        }

        fn take(&mut self, step: Step) {
            match step {
                Step::Wait => {}
                Step::Reset => self.init = true,
                Step::StartUp => self.start_up = true,
            }
        }
    }

    /// Events of a host: time passes for the supervisor, or the CPU runs a little.
    #[derive(Clone, Copy, Debug)]
    enum Host {
        Time(u64),
        Run,
    }

    fn host() -> impl Strategy<Value = Vec<Host>> {
        // From microseconds to a minute, and CPUs that stand still for long.
        let time = (0u32..8, 1u64..9).prop_map(|(power, n)| Host::Time(n * 10u64.pow(power + 4)));
        prop::collection::vec(
            prop_oneof![9 => time, 1 => Just(Host::Run)],
            0..4 * OVERDUE_LOOKS as usize,
        )
    }

    proptest! {
        /// Whatever the host does, a CPU that is believed to be parked is, with no reset under way;
        /// it is reset only after all the looks it has for the NMI, once; between two steps there
        /// is a look; and when the host at last lets it run it comes back.
        #[test]
        fn lateness_neither_skips_a_step_nor_loses_a_cpu(hears: bool, host in host()) {
            let mut cpu = Cpu::new(hears);
            let mut recovery = Recovery::asked(0);
            let (mut now, mut looks, mut resets, mut last_step) = (0, 0, 0, None::<u64>);
            let mut counted = 0;
            let end = (0..20).flat_map(|_| [Host::Run, Host::Time(LOOK_NS)]);
            let rest = (0..NMI_LOOKS).map(|_| Host::Time(LOOK_NS));
            for event in host.into_iter().chain(rest).chain(end) {
                match event {
                    Host::Time(ns) => now += ns,
                    Host::Run => cpu.run(),
                }
                if now >= counted + LOOK_NS {
                    counted = now;
                    looks += 1;
                }
                let step = recovery.look(now, cpu.seen());
                cpu.take(step);
                if step == Step::Reset {
                    resets += 1;
                    prop_assert!(looks > NMI_LOOKS, "reset after {looks} looks");
                }
                if step != Step::Wait {
                    prop_assert!(last_step.is_none_or(|last| now >= last + LOOK_NS));
                    last_step = Some(now);
                }
                prop_assert!(resets <= 1);
                if recovery.is_parked() {
                    prop_assert_eq!(cpu.place, Place::Parked);
                    prop_assert!(!cpu.init, "an INIT is under way");
                }
                if recovery.is_overdue() {
                    prop_assert!(resets == 1 && looks > NMI_LOOKS + OVERDUE_LOOKS);
                }
            }
            prop_assert!(recovery.is_parked(), "{recovery:?} {cpu:?}");
            prop_assert_eq!(recovery.was_reset(), resets == 1);
        }
    }

    const WAITS: Seen = Seen {
        claimed: false,
        resets: 3,
    };

    #[test]
    fn one_who_is_late_himself_has_looked_once() {
        let mut recovery = Recovery::asked(0);
        for minute in 1..=u64::from(NMI_LOOKS) {
            let now = minute * 60_000_000_000;
            assert_eq!(recovery.look(now, WAITS), Step::Wait);
            assert_eq!(recovery.look(now + 1, WAITS), Step::Wait);
        }
        assert_eq!(recovery.look(u64::MAX - 1, WAITS), Step::Reset);
        assert_eq!(recovery.look(u64::MAX - 1, WAITS), Step::Wait);
    }

    #[test]
    fn a_claim_from_before_the_reset_is_not_believed_after_it() {
        let mut recovery = Recovery::asked(0);
        let mut now = 0;
        while recovery.look(now, WAITS) != Step::Reset {
            now += LOOK_NS;
        }
        let claimed = Seen {
            claimed: true,
            ..WAITS
        };
        recovery.look(now, claimed);
        assert!(!recovery.is_parked(), "the INIT has not hit yet");
        now += START_UP_LOOKS as u64 * LOOK_NS;
        recovery.look(now - LOOK_NS, claimed);
        assert_eq!(recovery.look(now, claimed), Step::StartUp);
        recovery.look(
            now,
            Seen {
                resets: 4,
                ..claimed
            },
        );
        assert!(recovery.is_parked() && recovery.was_reset());
    }

    #[test]
    fn an_overdue_cpu_is_still_sent_messages_and_believed() {
        let mut recovery = Recovery::asked(0);
        let mut now = 0;
        while !recovery.is_overdue() {
            now += LOOK_NS;
            recovery.look(now, WAITS);
        }
        let steps = (1..=10).map(|n| recovery.look(now + n * LOOK_NS, WAITS));
        assert_eq!(
            steps.filter(|step| *step == Step::StartUp).count(),
            10 / START_UP_LOOKS as usize
        );
        recovery.look(
            now,
            Seen {
                claimed: true,
                resets: 4,
            },
        );
        assert!(recovery.is_parked() && !recovery.is_overdue());
    }
}
