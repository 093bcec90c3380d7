//! Pressure stall information, as pure logic: how long threads wait for a resource, as Linux shows
//! it in `/proc/pressure` (its `Documentation/accounting/psi.rst`).
//!
//! *Some* is the time in which at least one thread waited, *full* that in which all that had
//! something to do did. The times are kept when waits begin and end; the averages over 10, 60 and
//! 300 seconds are brought up to date when somebody looks, so that nothing has to run for them
//! meanwhile.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

mod load;

use core::fmt;

pub use load::{Load, Work};

/// Nanoseconds of a period of the averages, as in Linux.
const PERIOD_NS: u64 = 2_000_000_000;
/// Weight of an old average after one period: `2^16 * exp(-2 / seconds)`, for 10, 60 and 300
/// seconds.
const DECAY: [u64; 3] = [53_656, 63_388, 65_101];
const ONE: u64 = 1 << 16;
/// Periods after which nothing is left of an old average.
const FORGOTTEN: u64 = 4096;

/// The two kinds of stall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// At least one thread waits.
    Some,
    /// All threads wait that do not sleep for another reason.
    Full,
}

/// The stall times of one kind.
#[derive(Clone, Copy, Debug, Default)]
struct Times {
    /// Nanoseconds of stall that are over.
    total: u64,
    /// When the present one began.
    since: Option<u64>,
    /// `total` at the last update of the averages.
    counted: u64,
    /// In 2^-16 of a per cent.
    averages: [u64; 3],
}

impl Times {
    const fn new() -> Self {
        Self {
            total: 0,
            since: None,
            counted: 0,
            averages: [0; 3],
        }
    }

    fn set(&mut self, stalled: bool, now: u64) {
        match (self.since, stalled) {
            (None, true) => self.since = Some(now),
            (Some(since), false) => {
                self.total += now.saturating_sub(since);
                self.since = None;
            }
            _ => {}
        }
    }

    fn total(&self, now: u64) -> u64 {
        self.total + self.since.map_or(0, |since| now.saturating_sub(since))
    }

    fn update(&mut self, periods: u64, total: u64) {
        // The stall since the last look is taken as spread evenly.
        let stall = total.saturating_sub(self.counted).min(periods * PERIOD_NS);
        let percent =
            (u128::from(stall) * 100 * u128::from(ONE) / u128::from(periods * PERIOD_NS)) as u64;
        self.counted = total;
        for (average, decay) in self.averages.iter_mut().zip(DECAY) {
            let kept = power(decay, periods.min(FORGOTTEN));
            *average = (*average * kept + percent * (ONE - kept)) >> 16;
        }
    }
}

/// `base^exponent` in 2^-16.
fn power(base: u64, exponent: u64) -> u64 {
    let (mut result, mut base, mut exponent) = (ONE, base, exponent);
    while exponent > 0 {
        if exponent & 1 == 1 {
            result = (result * base) >> 16;
        }
        base = (base * base) >> 16;
        exponent >>= 1;
    }
    result
}

/// Pressure on one resource. All times are nanoseconds of one clock that does not go back.
#[derive(Clone, Copy, Debug)]
pub struct Pressure {
    waiting: u32,
    some: Times,
    full: Times,
    updated: u64,
}

impl Default for Pressure {
    fn default() -> Self {
        Self::new()
    }
}

impl Pressure {
    /// No stall so far.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            waiting: 0,
            some: Times::new(),
            full: Times::new(),
            updated: 0,
        }
    }

    /// A thread begins to wait; `others` says whether any other thread runs on.
    pub fn begin(&mut self, now: u64, others: bool) {
        self.waiting += 1;
        self.note(now, others);
    }

    /// A thread has what it waited for.
    ///
    /// # Panics
    /// If none waited.
    pub fn end(&mut self, now: u64, others: bool) {
        self.waiting = self
            .waiting
            .checked_sub(1)
            .expect("a wait ends that has not begun");
        self.note(now, others);
    }

    fn note(&mut self, now: u64, others: bool) {
        self.some.set(self.waiting > 0, now);
        self.full.set(self.waiting > 0 && !others, now);
    }

    /// Replaces the totals by what was counted elsewhere.
    pub fn set_totals(&mut self, some: u64, full: u64) {
        (self.some.total, self.full.total) = (some, full);
    }

    /// Nanoseconds of stall up to now.
    #[must_use]
    pub fn total(&self, kind: Kind, now: u64) -> u64 {
        match kind {
            Kind::Some => self.some.total(now),
            Kind::Full => self.full.total(now),
        }
    }

    /// Brings the averages up to date, and shows all as Linux does.
    pub fn show(&mut self, now: u64) -> Shown {
        let periods = now.saturating_sub(self.updated) / PERIOD_NS;
        if periods > 0 {
            self.updated += periods * PERIOD_NS;
            let (some, full) = (self.some.total(now), self.full.total(now));
            self.some.update(periods, some);
            self.full.update(periods, full);
        }
        let line = |times: &Times| Line {
            averages: times.averages,
            total_us: times.total(now) / 1000,
        };
        Shown {
            some: line(&self.some),
            full: line(&self.full),
        }
    }
}

/// One line of a file in `/proc/pressure`.
#[derive(Clone, Copy, Debug)]
struct Line {
    averages: [u64; 3],
    total_us: u64,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, average) in ["avg10", "avg60", "avg300"].iter().zip(self.averages) {
            write!(
                f,
                "{name}={}.{:02} ",
                average >> 16,
                ((average & (ONE - 1)) * 100) >> 16
            )?;
        }
        write!(f, "total={}", self.total_us)
    }
}

/// The text of a file in `/proc/pressure`.
#[derive(Clone, Copy, Debug)]
pub struct Shown {
    some: Line,
    full: Line,
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "some {}\nfull {}", self.some, self.full)
    }
}

/// Condition of a notification: `threshold_ns` of stall within `window_ns`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trigger {
    /// Of which kind.
    pub kind: Kind,
    threshold_ns: u64,
    window_ns: u64,
    /// The window's start, the stall then, and whether the program was told of it.
    start: u64,
    stall: u64,
    told: bool,
}

impl Trigger {
    /// From what a program writes: `some 150000 1000000`, in microseconds. The window is half a
    /// second to ten. `None` if it is not well-formed.
    #[must_use]
    pub fn parse(text: &str, now: u64, pressure: &Pressure) -> Option<Self> {
        let mut words = text.trim_end_matches(['\0', '\n']).split_ascii_whitespace();
        let kind = match words.next()? {
            "some" => Kind::Some,
            "full" => Kind::Full,
            _ => return None,
        };
        let (threshold, window): (u64, u64) =
            (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let well_formed = words.next().is_none()
            && (500_000..=10_000_000).contains(&window)
            && (1..=window).contains(&threshold);
        well_formed.then(|| Self {
            kind,
            threshold_ns: threshold * 1000,
            window_ns: window * 1000,
            start: now,
            stall: pressure.total(kind, now),
            told: false,
        })
    }

    /// Nanoseconds of its window.
    #[must_use]
    pub fn window_ns(&self) -> u64 {
        self.window_ns
    }

    /// Looks at the pressure; `true` if the program is to be told, which is at most once a window.
    pub fn check(&mut self, now: u64, pressure: &Pressure) -> bool {
        let total = pressure.total(self.kind, now);
        let reached = total.saturating_sub(self.stall) >= self.threshold_ns;
        let tell = reached && !self.told;
        self.told |= reached;
        if now.saturating_sub(self.start) >= self.window_ns {
            (self.start, self.stall, self.told) = (now, total, false);
        }
        tell
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const S: u64 = 1_000_000_000;

    proptest! {
        #[test]
        fn times_are_what_a_clock_shows(steps in prop::collection::vec((any::<bool>(), any::<bool>(), 1u64..S), 1..100)) {
            let (mut pressure, mut waiting, mut now) = (Pressure::new(), 0u32, 0);
            let (mut some, mut full, mut others_run) = (0, 0, true);
            for (begin, others, length) in steps {
                if begin || waiting == 0 {
                    pressure.begin(now, others);
                    waiting += 1;
                } else {
                    pressure.end(now, others);
                    waiting -= 1;
                }
                others_run = others;
                now += length;
                if waiting > 0 {
                    some += length;
                    full += if others_run { 0 } else { length };
                }
                prop_assert_eq!(pressure.total(Kind::Some, now), some);
                prop_assert_eq!(pressure.total(Kind::Full, now), full);
            }
            let _ = others_run;
        }

        #[test]
        fn averages_stay_between_nothing_and_all(looks in prop::collection::vec((0u64..100 * S, 0u64..100), 1..50)) {
            let (mut pressure, mut now, mut total) = (Pressure::new(), 0, 0);
            for (length, percent) in looks {
                now += length;
                total += length * percent / 100;
                pressure.set_totals(total, 0);
                let shown = pressure.show(now);
                prop_assert!(shown.some.averages.iter().all(|average| *average <= 100 * ONE));
                prop_assert_eq!(shown.full.averages, [0; 3]);
            }
        }
    }

    #[test]
    fn an_average_approaches_the_share() {
        let mut pressure = Pressure::new();
        for second in (0..120).step_by(2) {
            pressure.set_totals(second * S / 4, 0);
            let _ = pressure.show(second * S);
        }
        let [ten, sixty, _] = pressure
            .show(118 * S)
            .some
            .averages
            .map(|average| average as f64 / ONE as f64);
        assert!(
            (24.0..=25.0).contains(&ten) && (20.0..=23.0).contains(&sixty),
            "{ten} {sixty}"
        );
        // Seen only after an hour, the same: nothing of the old is left.
        let [ten, ..] = pressure.show(3720 * S).some.averages;
        assert!(ten < ONE, "{ten}");
    }

    #[test]
    fn the_text_is_linux_s() {
        let mut pressure = Pressure::new();
        pressure.begin(0, false);
        pressure.end(3_000_000, false);
        assert_eq!(
            pressure.show(4_000_000).to_string(),
            "some avg10=0.00 avg60=0.00 avg300=0.00 total=3000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=3000\n"
        );
    }

    #[test]
    fn a_trigger_tells_once_a_window() {
        let mut pressure = Pressure::new();
        let mut trigger = Trigger::parse("some 150000 1000000\n", 0, &pressure).unwrap();
        assert_eq!(trigger.window_ns(), S);
        pressure.begin(0, true);
        assert!(!trigger.check(S / 10, &pressure));
        assert!(trigger.check(S / 5, &pressure));
        assert!(!trigger.check(S / 2, &pressure));
        assert!(!trigger.check(S, &pressure));
        assert!(trigger.check(S + S / 5, &pressure));
        pressure.end(S + S / 5, true);
        assert!(!trigger.check(3 * S, &pressure));
        assert!(!trigger.check(5 * S, &pressure));
    }

    /// The shares of one period, and of two, by the weights that Linux has.
    #[test]
    fn averages_are_those_of_linux() {
        let shown = |pressure: &mut Pressure, now| {
            let text = pressure.show(now).to_string();
            text.lines()
                .next()
                .unwrap()
                .rsplit_once(" total")
                .unwrap()
                .0
                .to_owned()
        };
        let mut pressure = Pressure::new();
        pressure.begin(0, true);
        assert_eq!(
            shown(&mut pressure, 2 * S - 1),
            "some avg10=0.00 avg60=0.00 avg300=0.00"
        );
        assert_eq!(
            shown(&mut pressure, 2 * S),
            "some avg10=18.12 avg60=3.27 avg300=0.66"
        );
        assert_eq!(
            shown(&mut pressure, 4 * S - 1),
            "some avg10=18.12 avg60=3.27 avg300=0.66"
        );
        assert_eq!(
            shown(&mut pressure, 4 * S),
            "some avg10=32.96 avg60=6.44 avg300=1.32"
        );
        // Two periods in one step are as two steps, but for what is rounded.
        let mut later = Pressure::new();
        later.begin(0, true);
        assert_eq!(
            shown(&mut later, 4 * S),
            "some avg10=32.96 avg60=6.44 avg300=1.32"
        );
        // Half of the time.
        let mut half = Pressure::new();
        half.begin(S, true);
        assert_eq!(
            shown(&mut half, 2 * S),
            "some avg10=9.06 avg60=1.63 avg300=0.33"
        );
    }

    #[test]
    fn a_period_of_nothing_but_stall_has_its_whole_weight() {
        let mut pressure = Pressure::new();
        pressure.begin(0, false);
        let shown = pressure.show(PERIOD_NS);
        assert_eq!(shown.some.averages, DECAY.map(|kept| 100 * (ONE - kept)));
        assert_eq!(shown.full.averages, shown.some.averages);
        // For ever after, it is all of the time.
        assert_eq!(
            pressure.show(100_000 * PERIOD_NS).some.averages,
            [100 * ONE; 3]
        );
    }

    #[test]
    fn a_trigger_is_told_at_its_threshold_and_from_its_beginning() {
        let mut pressure = Pressure::new();
        pressure.begin(0, false);
        // What was before the trigger does not count; the text may end with a zero, and the limits
        // are allowed.
        let mut trigger = Trigger::parse("full 500000 500000\0", S, &pressure).unwrap();
        assert!(!trigger.check(S + S / 2 - 1, &pressure));
        assert!(trigger.check(S + S / 2, &pressure));
        assert!(Trigger::parse("some 1 10000000", 0, &pressure).is_some());
        for text in ["some 1 10000001", "some 1 499999", "some 500001 500000"] {
            assert_eq!(Trigger::parse(text, 0, &pressure), None, "{text}");
        }
        // A new window begins when the old one is over, not before.
        let mut trigger = Trigger::parse("full 100000 1000000", S, &pressure).unwrap();
        assert!(trigger.check(S + S / 10, &pressure));
        assert!(!trigger.check(2 * S - 1, &pressure) && !trigger.check(2 * S, &pressure));
        assert!(!trigger.check(2 * S + S / 10 - 1, &pressure));
        assert!(trigger.check(2 * S + S / 10, &pressure));
    }

    #[test]
    fn nonsense_is_no_trigger() {
        for text in [
            "",
            "some",
            "some 1",
            "half 1 1000000",
            "some 1 1",
            "some 2000000 1000000",
            "full 0 1000000",
            "some 1 500000 x",
        ] {
            assert_eq!(Trigger::parse(text, 0, &Pressure::new()), None, "{text}");
        }
    }
}
