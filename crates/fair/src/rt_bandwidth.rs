//! Real-time throttling of one CPU: real-time threads leave a part of each period to fair threads
//! that wait (`sched_rt_runtime_us` of `sched_rt_period_us`, as Linux's `struct rt_bandwidth` has
//! them).
//!
//! Without it a real-time thread that never sleeps keeps its CPU from every other thread for ever,
//! also from one that holds a lock which threads of other CPUs, or of higher priority, wait for.

/// Share of a period that real-time threads may keep from fair threads that wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RtLimits {
    /// CPU time of real-time threads in a period, in nanoseconds. They are not throttled if it is
    /// `period_ns` or more.
    pub runtime_ns: u64,
    /// Length of a period in nanoseconds, not 0.
    pub period_ns: u64,
}

impl RtLimits {
    /// Linux's defaults: 950 ms of each second.
    pub const DEFAULT: Self = Self {
        runtime_ns: 950_000_000,
        period_ns: 1_000_000_000,
    };

    /// CPU time in nanoseconds that is left to fair threads in a period; 0 if real-time threads are
    /// not throttled.
    #[must_use]
    pub const fn fair_ns(self) -> u64 {
        self.period_ns.saturating_sub(self.runtime_ns)
    }
}

/// Real-time bandwidth of one CPU: its limits, and what was used of them.
#[derive(Debug)]
pub(crate) struct RtBandwidth {
    limits: RtLimits,
    /// CPU time of real-time threads while fair ones waited, less what these had since, in
    /// nanoseconds.
    used_ns: u64,
    /// Time at which throttling ends.
    throttled_until_ns: u64,
}

impl RtBandwidth {
    /// A full budget of [`RtLimits::DEFAULT`].
    pub(crate) const fn new() -> Self {
        Self {
            limits: RtLimits::DEFAULT,
            used_ns: 0,
            throttled_until_ns: 0,
        }
    }

    /// Sets the limits. If they change, nothing of the new ones is used, and throttling ends.
    pub(crate) fn set_limits(&mut self, limits: RtLimits) {
        if self.limits != limits {
            *self = Self {
                limits,
                used_ns: 0,
                throttled_until_ns: 0,
            };
        }
    }

    /// Whether real-time threads can be throttled at all.
    pub(crate) const fn is_limited(&self) -> bool {
        self.limits.fair_ns() != 0
    }

    /// Whether real-time threads are throttled at `now_ns`: fair threads go first.
    #[inline]
    pub(crate) const fn is_throttled(&self, now_ns: u64) -> bool {
        now_ns < self.throttled_until_ns
    }

    /// Time at which throttling ends, if real-time threads are throttled at `now_ns`.
    pub(crate) fn throttling_ends(&self, now_ns: u64) -> Option<u64> {
        self.is_throttled(now_ns).then_some(self.throttled_until_ns)
    }

    /// Time at which throttling begins if a real-time thread runs, and a fair one waits, from
    /// `now_ns` until then.
    pub(crate) fn throttling_begins(&self, now_ns: u64) -> Option<u64> {
        self.is_limited()
            .then(|| now_ns + self.limits.runtime_ns.saturating_sub(self.used_ns))
    }

    /// Accounts `ran_ns` of a real-time thread, up to `now_ns`, while a fair thread waited.
    pub(crate) fn charge_realtime(&mut self, ran_ns: u64, now_ns: u64) {
        if !self.is_limited() || self.is_throttled(now_ns) {
            return;
        }
        self.used_ns = self.used_ns.saturating_add(ran_ns);
        if self.used_ns >= self.limits.runtime_ns {
            (self.used_ns, self.throttled_until_ns) =
                (0, now_ns.saturating_add(self.limits.fair_ns()));
        }
    }

    /// Accounts `ran_ns` of a fair thread: a part of what is left to fair threads in a period.
    #[inline]
    pub(crate) fn charge_fair(&mut self, ran_ns: u64) {
        if self.used_ns != 0 {
            self.replenish(ran_ns);
        }
    }

    #[cold]
    fn replenish(&mut self, ran_ns: u64) {
        let RtLimits { runtime_ns, .. } = self.limits;
        let part =
            u128::from(ran_ns) * u128::from(runtime_ns) / u128::from(self.limits.fair_ns().max(1));
        self.used_ns = self
            .used_ns
            .saturating_sub(u64::try_from(part).unwrap_or(u64::MAX));
    }
}
