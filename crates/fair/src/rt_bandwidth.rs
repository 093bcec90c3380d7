//! What real-time threads leave to fair ones: Linux's real-time throttling, for those that wait.
//!
//! Without it a real-time thread that never sleeps keeps its CPU from every other thread for ever, also from one that holds a lock which
//! threads of other CPUs, or of higher priority, wait for.

/// How long real-time threads run before the rest of the period is left to fair ones, in nanoseconds: Linux's `sched_rt_runtime_us`.
pub const REALTIME_NS: u64 = 950_000_000;
/// Linux's `sched_rt_period_us`, in nanoseconds.
pub const PERIOD_NS: u64 = 1_000_000_000;

/// The account of one CPU.
#[derive(Debug)]
pub(crate) struct Reserve {
    /// How long real-time threads may run while fair ones wait, and then those while real-time ones wait. `None`: no limit.
    limits: Option<(u64, u64)>,
    /// How long real-time threads have run while fair ones waited, less what these had since.
    used_ns: u64,
    /// Until then fair threads go first.
    until_ns: u64,
}

impl Reserve {
    /// With Linux's limits.
    pub(crate) const fn new() -> Self {
        Self { limits: Some((REALTIME_NS, PERIOD_NS - REALTIME_NS)), used_ns: 0, until_ns: 0 }
    }

    /// From now on real-time threads may run for `realtime_ns` of each `period_ns`, without limit if that is all of it.
    pub(crate) fn set(&mut self, realtime_ns: u64, period_ns: u64) {
        let limits = (realtime_ns < period_ns).then(|| (realtime_ns, period_ns - realtime_ns));
        if self.limits != limits {
            *self = Self { limits, used_ns: 0, until_ns: 0 };
        }
    }

    /// Whether fair threads go first at this time.
    #[inline]
    pub(crate) fn fair_first(&self, now_ns: u64) -> bool {
        now_ns < self.until_ns
    }

    /// When fair threads no longer go first, if they do.
    pub(crate) fn ends(&self, now_ns: u64) -> Option<u64> {
        self.fair_first(now_ns).then_some(self.until_ns)
    }

    /// When fair threads that wait from now on would go first, if a real-time thread runs until then.
    pub(crate) fn begins(&self, now_ns: u64) -> Option<u64> {
        self.limits.map(|(realtime_ns, _)| now_ns + realtime_ns.saturating_sub(self.used_ns))
    }

    /// A real-time thread has run for `ran_ns` until now, and a fair one waited.
    pub(crate) fn realtime_ran(&mut self, ran_ns: u64, now_ns: u64) {
        let Some((realtime_ns, fair_ns)) = self.limits else { return };
        if self.fair_first(now_ns) {
            return;
        }
        self.used_ns = self.used_ns.saturating_add(ran_ns);
        if self.used_ns >= realtime_ns {
            (self.used_ns, self.until_ns) = (0, now_ns.saturating_add(fair_ns));
        }
    }

    /// A fair thread has run for `ran_ns`: that counts as part of what was left to it.
    #[inline]
    pub(crate) fn fair_ran(&mut self, ran_ns: u64) {
        if self.used_ns != 0 {
            self.pay_back(ran_ns);
        }
    }

    #[cold]
    fn pay_back(&mut self, ran_ns: u64) {
        let Some((realtime_ns, fair_ns)) = self.limits else { return };
        let paid = u128::from(ran_ns) * u128::from(realtime_ns) / u128::from(fair_ns);
        self.used_ns = self.used_ns.saturating_sub(u64::try_from(paid).unwrap_or(u64::MAX));
    }
}
