//! Whether a CPU of an instance hangs: logic only, told what was seen of its heartbeat
//! (`heartbeat` is the instance's part).
//!
//! The rules:
//!
//! * *A beat, or sleep, is life.* Nobody is disturbed who shows either.
//! * *Lateness is no proof.* A host may let a CPU stand still for however long. So a CPU counts as
//!   hung only for what it did: it answered many questions, each put after the answer to the one
//!   before, and took no interrupt in between, though one that it had sent to itself waited.
//! * *Silence is shown, and no more.* A CPU that answers nothing may be stopped by its host, or
//!   deaf to NMIs.
//! * *One step a look*, as in `recovery`: who is late himself has looked once.

/// How often a CPU is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pace {
    /// Least time between two looks at a CPU that gives no reason to hurry.
    calm_ns: u64,
    /// Least time between two looks while a question waits for its answer.
    asking_ns: u64,
    /// Time for which a CPU that answered a question, and is well, is not asked again.
    answered_ns: u64,
}

impl Pace {
    /// For a hang that somebody is told of: a CPU that computes for hours is disturbed no more
    /// often than Linux's watchdog would.
    pub(super) const REPORT: Self = Self {
        calm_ns: 1_000_000_000,
        asking_ns: 100_000_000,
        answered_ns: 10_000_000_000,
    };
    /// For a hang upon which the instance is stopped: it is found within a tenth of a second, for
    /// one NMI in each look at a CPU that computes.
    pub(super) const STOP: Self = Self {
        calm_ns: 25_000_000,
        asking_ns: 2_000_000,
        answered_ns: 25_000_000,
    };
}

/// Answers without a beat that make a CPU hung.
const ANSWERS: u32 = 20;
/// Answers that make a CPU hung that never had a beat: on its way up it sets up memory with
/// interrupts off.
const ANSWERS_COMING_UP: u32 = 100;
/// Looks without an answer that make it unresponsive.
const SILENT_LOOKS: u32 = 50;

/// Facts about a CPU's heartbeat at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    /// Beats since the start.
    pub beats: u64,
    /// The CPU sleeps.
    pub rests: bool,
    /// The last question that it answered.
    pub answered: u32,
}

/// Finding about a CPU; the worst is the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Finding {
    /// Nothing against it.
    Good,
    /// The CPU does not answer.
    Unresponsive,
    /// The CPU answers, and takes no interrupts.
    Hung,
}

/// Memory of a CPU between looks.
#[derive(Clone, Debug)]
pub(super) struct Watch {
    beats: u64,
    /// The last question.
    question: u32,
    /// Flag: the question was put, and nothing has changed since.
    is_asking: bool,
    /// Answers since the last beat.
    answers: u32,
    /// Looks since the last answer.
    silent_looks: u32,
    next_look: u64,
    finding: Finding,
}

impl Watch {
    /// For a CPU that was just sent away.
    pub(super) const fn new() -> Self {
        Self {
            beats: 0,
            question: 0,
            is_asking: false,
            answers: 0,
            silent_looks: 0,
            next_look: 0,
            finding: Finding::Good,
        }
    }

    /// For a CPU that may have answered a question of another one who watched it.
    pub(super) const fn after(answered: u32) -> Self {
        Self {
            question: answered,
            ..Self::new()
        }
    }

    /// Looks at the CPU. Returns the question to put to it, if one is due.
    pub(super) fn look(&mut self, now: u64, seen: Seen, pace: Pace) -> Option<u32> {
        // Who never had a beat sets up memory with interrupts off, which takes what it takes.
        let pace = if seen.beats == 0 { Pace::REPORT } else { pace };
        if now < self.next_look {
            return None;
        }
        let has_answered = self.is_asking && seen.answered == self.question;
        if seen.rests || seen.beats != self.beats {
            let rest = if has_answered {
                pace.answered_ns
            } else {
                pace.calm_ns
            };
            *self = Self {
                beats: seen.beats,
                question: self.question,
                next_look: now.saturating_add(rest),
                ..Self::new()
            };
            return None;
        }
        if self.finding == Finding::Hung {
            // The interrupt that it sent to itself still waits: there is nothing more to ask.
            self.next_look = now.saturating_add(pace.calm_ns);
            return None;
        }
        self.next_look = now.saturating_add(pace.asking_ns);
        if self.is_asking && !has_answered {
            self.silent_looks = self.silent_looks.saturating_add(1);
            if self.silent_looks >= SILENT_LOOKS {
                self.finding = Finding::Unresponsive;
            }
            return None;
        }
        if has_answered {
            self.finding = Finding::Good;
            self.silent_looks = 0;
            self.answers += 1;
            let limit = if seen.beats == 0 {
                ANSWERS_COMING_UP
            } else {
                ANSWERS
            };
            if self.answers >= limit {
                self.finding = Finding::Hung;
                return None;
            }
        }
        self.is_asking = true;
        self.question = self.question.wrapping_add(1);
        Some(self.question)
    }

    /// The outcome of the last look.
    pub(super) fn finding(&self) -> Finding {
        self.finding
    }

    /// Time before which a look sees nothing.
    pub(super) fn next_look(&self) -> u64 {
        self.next_look
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CALM_NS: u64 = Pace::REPORT.calm_ns;
    const ASKING_NS: u64 = Pace::REPORT.asking_ns;

    fn pace() -> impl Strategy<Value = Pace> {
        prop_oneof![Just(Pace::REPORT), Just(Pace::STOP)]
    }

    /// A CPU of an instance, on a host that lets it stand still.
    #[derive(Debug)]
    struct Cpu {
        beats: u64,
        answered: u32,
        /// The question that its NMI brought.
        nmi: Option<u32>,
        /// The interrupt that it sent to itself.
        pending: bool,
        rests: bool,
    }

    impl Cpu {
        fn new(beats: u64) -> Self {
            Self {
                beats,
                answered: 0,
                nmi: None,
                pending: false,
                rests: false,
            }
        }

        /// Takes the NMI that waits, where interrupts are on or off.
        fn take_nmi(&mut self, irqs_on: bool) {
            if let Some(question) = self.nmi.take() {
                if irqs_on {
                    self.beats += 1;
                } else {
                    self.pending = true;
                }
                self.answered = question;
            }
        }

        /// Runs where interrupts are on.
        fn run(&mut self) {
            self.take_nmi(true);
            if core::mem::take(&mut self.pending) {
                self.beats += 1;
            }
        }

        fn seen(&self) -> Seen {
            Seen {
                beats: self.beats,
                rests: self.rests,
                answered: self.answered,
            }
        }
    }

    /// Events: time passes for the supervisor, the CPU runs, sleeps, or stands still in a section
    /// with interrupts off that is as long as a few looks.
    #[derive(Clone, Copy, Debug)]
    enum Event {
        Time(u64),
        Run,
        Sleep,
        IrqsOff,
    }

    fn events() -> impl Strategy<Value = Vec<Event>> {
        let time = (0u32..8, 1u64..9).prop_map(|(power, n)| Event::Time(n * 10u64.pow(power + 4)));
        prop::collection::vec(
            prop_oneof![
                6 => time,
                1 => Just(Event::Run),
                1 => Just(Event::Sleep),
                1 => Just(Event::IrqsOff)
            ],
            0..2000,
        )
    }

    proptest! {
        /// Whatever the host does, and however late the supervisor is: a CPU that takes its
        /// interrupts, after fewer answers than make it hung, is never found to be.
        #[test]
        fn who_takes_interrupts_is_not_hung(events in events(), early: bool, pace in pace()) {
            let mut cpu = Cpu::new(u64::from(!early));
            let mut watch = Watch::new();
            let (mut now, mut answers_off) = (0, 0);
            for event in events {
                match event {
                    Event::Time(ns) => now += ns,
                    Event::Run => {
                        cpu.rests = false;
                        cpu.run();
                        answers_off = 0;
                    }
                    Event::Sleep => {
                        cpu.run();
                        cpu.rests = true;
                        answers_off = 0;
                    }
                    Event::IrqsOff if !cpu.rests && answers_off + 1 < ANSWERS => {
                        answers_off += u32::from(cpu.nmi.is_some());
                        cpu.take_nmi(false);
                    }
                    Event::IrqsOff => {}
                }
                if let Some(question) = watch.look(now, cpu.seen(), pace) {
                    prop_assert!(!cpu.rests, "a CPU that sleeps is disturbed");
                    cpu.nmi = Some(question);
                }
                prop_assert!(watch.finding() != Finding::Hung);
            }
        }

        /// One that hangs is found, also if the host lets it stand still in between, and counts as
        /// well as soon as it goes on.
        #[test]
        fn who_hangs_is_found(
            stops in prop::collection::vec(0u64..80, ANSWERS as usize),
            pace in pace(),
        ) {
            let mut cpu = Cpu::new(5);
            let mut watch = Watch::new();
            let mut now = 0;
            let mut stops = stops.into_iter().cycle();
            let mut stands_until = 0;
            let mut looks = 0;
            while watch.finding() != Finding::Hung {
                looks += 1;
                prop_assert!(looks < 10_000);
                now += pace.asking_ns;
                if let Some(question) = watch.look(now, cpu.seen(), pace) {
                    cpu.nmi = Some(question);
                    stands_until = now + stops.next().unwrap() * pace.asking_ns;
                }
                if now >= stands_until {
                    cpu.take_nmi(false);
                }
            }
            cpu.run();
            watch.look(now + pace.calm_ns, cpu.seen(), pace);
            prop_assert_eq!(watch.finding(), Finding::Good);
        }
    }

    #[test]
    fn who_computes_is_asked_once_in_ten_seconds() {
        let mut cpu = Cpu::new(0);
        let mut watch = Watch::new();
        let mut questions = 0;
        for tenth in 0..1000u64 {
            if let Some(question) = watch.look(tenth * ASKING_NS, cpu.seen(), Pace::REPORT) {
                questions += 1;
                cpu.nmi = Some(question);
                cpu.take_nmi(true);
            }
        }
        assert!((9..=11).contains(&questions), "{questions} questions");
    }

    #[test]
    fn a_hang_that_stops_the_instance_is_found_within_a_tenth_of_a_second() {
        const MS: u64 = 1_000_000;
        // It hangs at any time, and has taken an interrupt just before.
        for tenth in 1..=500 {
            let hangs_at = tenth * MS / 10;
            let mut cpu = Cpu::new(1);
            let mut watch = Watch::new();
            let mut now = 0;
            while watch.finding() != Finding::Hung {
                if now >= hangs_at && cpu.beats == 1 {
                    cpu.beats = 2;
                }
                if let Some(question) = watch.look(now, cpu.seen(), Pace::STOP) {
                    cpu.nmi = Some(question);
                    cpu.take_nmi(false);
                }
                now = watch.next_look().max(now + 1);
            }
            assert!(now - hangs_at <= 100 * MS, "{now} after {hangs_at}");
        }
    }

    #[test]
    fn silence_is_shown_until_the_answer_and_is_never_a_hang() {
        let mut watch = Watch::new();
        let seen = Seen {
            beats: 1,
            rests: false,
            answered: 0,
        };
        watch.look(0, seen, Pace::REPORT);
        let mut questions = 0;
        for second in 1..1000 {
            questions += usize::from(watch.look(second * CALM_NS, seen, Pace::STOP).is_some());
        }
        assert_eq!(
            (questions, watch.finding()),
            (1, Finding::Unresponsive),
            "one NMI waits for it"
        );
        watch.look(
            2000 * CALM_NS,
            Seen {
                answered: 1,
                ..seen
            },
            Pace::STOP,
        );
        assert_eq!(watch.finding(), Finding::Good);
    }

    #[test]
    fn one_who_comes_up_has_more_time() {
        let mut cpu = Cpu::new(0);
        let mut watch = Watch::new();
        let mut now = 0;
        while watch.finding() != Finding::Hung {
            now += ASKING_NS;
            if let Some(question) = watch.look(now, cpu.seen(), Pace::STOP) {
                cpu.nmi = Some(question);
                cpu.take_nmi(false);
            }
        }
        assert!(now > u64::from(ANSWERS_COMING_UP) * ASKING_NS);
    }
}
