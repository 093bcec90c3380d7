//! Virtual time: how much service, per unit of weight, the fair threads of a CPU have had.
//!
//! A thread's virtual time `v` grows by `ran / w` while it runs. The CPU's, `V`, is the mean of its
//! threads' virtual times by weight, `Σ w·v / Σ w`. A thread's *lag*, `w·(V - v)`, is then the run
//! time it is owed (or, if negative, ahead by), and all lags add up to zero. `V` is kept exactly,
//! as a whole number and the remainder of that division, so it never leaves the mean.
//!
//! All are counted in 2^-20 ns per unit of weight, modulo 2^64. They are only compared with each
//! other, and lags are bounded, so the wrap-around is harmless.

/// Binary places of a nanosecond.
const PLACES: u32 = 20;
/// Longest time that is accounted at once (73 minutes): a thread that has run longer than that had
/// nobody to share with.
const LONGEST_NS: u64 = 1 << 42;

/// A thread's place in virtual time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Point {
    pub(crate) weight: u32,
    /// Remainder of the last division of run time by weight.
    rest: u32,
    pub(crate) at: u64,
}

impl Point {
    pub(crate) const fn new(weight: u32) -> Self {
        Self {
            weight,
            rest: 0,
            at: 0,
        }
    }

    /// Virtual time of the thread once it has run `ns` more.
    pub(crate) fn after(&self, ns: u64) -> u64 {
        self.at
            .wrapping_add((ns << PLACES) / u64::from(self.weight))
    }

    /// Nanoseconds it has to run to get to `at`, rounded up.
    pub(crate) fn until(&self, at: u64) -> u64 {
        let ahead = (at.wrapping_sub(self.at) as i64).max(0) as u64;
        (ahead.saturating_mul(u64::from(self.weight))).div_ceil(1 << PLACES)
    }
}

/// The virtual clock of a CPU.
#[derive(Debug)]
pub(crate) struct Clock {
    now: u64,
    /// `Σ w·(v - now)`: at least 0 and less than `weight`.
    carry: i64,
    /// `Σ w`.
    weight: u64,
}

impl Clock {
    pub(crate) const fn new(now: u64) -> Self {
        Self {
            now,
            carry: 0,
            weight: 0,
        }
    }

    /// The sum of the weights.
    pub(crate) fn weight(&self) -> u64 {
        self.weight
    }

    /// True if a thread at `at` is not ahead of its share.
    pub(crate) fn eligible(&self, at: u64) -> bool {
        at.wrapping_sub(self.now) as i64 <= 0
    }

    /// The run time that a thread is owed, in nanoseconds.
    pub(crate) fn lag_ns(&self, point: &Point) -> i64 {
        (self.now.wrapping_sub(point.at) as i64).saturating_mul(i64::from(point.weight)) >> PLACES
    }

    /// The counter, to be given to [`Self::worth_ns`] later.
    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    /// Run time that a thread of this weight was due since the counter was `then`, in nanoseconds.
    pub(crate) fn worth_ns(&self, weight: u32, then: u64) -> u64 {
        (self.now.wrapping_sub(then) as i64)
            .max(0)
            .unsigned_abs()
            .saturating_mul(u64::from(weight))
            >> PLACES
    }

    /// The part of `ns` (some seconds at most) that would be due to one more thread of this weight.
    pub(crate) fn share_ns(&self, ns: u64, weight: u32) -> u64 {
        let weight = u64::from(weight);
        ns * weight / (self.weight + weight)
    }

    /// Lets a thread in that is owed `lag_ns` (of at most a few slices).
    pub(crate) fn join(&mut self, point: &mut Point, lag_ns: i64) {
        let weight = u64::from(point.weight);
        // It moves the mean towards itself; so that it is owed `lag_ns` afterwards it starts that
        // much further away.
        let stretch = ((self.weight + weight) << 16)
            .checked_div(self.weight)
            .unwrap_or(0) as i64;
        let away = ((lag_ns << PLACES) / i64::from(point.weight)).saturating_mul(stretch) >> 16;
        point.at = self.now.wrapping_sub(away as u64);
        point.rest = 0;
        self.weight += weight;
        self.carry -= away.saturating_mul(i64::from(point.weight));
        self.normalise();
    }

    /// Lets a thread go. What it is owed, or ahead by, the others share.
    pub(crate) fn leave(&mut self, point: &Point) {
        self.weight -= u64::from(point.weight);
        self.carry -=
            (point.at.wrapping_sub(self.now) as i64).saturating_mul(i64::from(point.weight));
        self.normalise();
    }

    /// A thread of this clock ran for `ns`.
    pub(crate) fn charge(&mut self, point: &mut Point, ns: u64) {
        let weight = u64::from(point.weight);
        let service = (ns.min(LONGEST_NS - 1) << PLACES) + u64::from(point.rest);
        point.at = point.at.wrapping_add(service / weight);
        point.rest = (service % weight) as u32;
        self.carry = self
            .carry
            .saturating_add_unsigned(service - service % weight);
        self.normalise();
    }

    fn normalise(&mut self) {
        match self.weight as i64 {
            0 => self.carry = 0,
            weight => {
                self.now = self.now.wrapping_add(self.carry.div_euclid(weight) as u64);
                self.carry = self.carry.rem_euclid(weight);
            }
        }
    }
}
