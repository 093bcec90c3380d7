//! Bandwidth of what goes first on one CPU: real-time threads leave a part of each period to fair
//! threads that wait (`sched_rt_runtime_us` of `sched_rt_period_us`, Linux's throttling), and more
//! to management; management leaves a part to programs.
//!
//! Without it a thread that never sleeps keeps its CPU from every other thread for ever, also from
//! one that holds a lock which threads of other CPUs, or of higher priority, wait for.

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

    /// Limits of real-time threads of programs beside management that waits.
    pub(crate) const BESIDE_MANAGEMENT: Self = Self {
        runtime_ns: 30_000_000,
        period_ns: 40_000_000,
    };

    /// Limits of management beside programs that wait.
    pub(crate) const OF_MANAGEMENT: Self = Self {
        runtime_ns: 20_000_000,
        period_ns: 25_000_000,
    };

    /// CPU time in nanoseconds that is left to fair threads in a period; 0 if real-time threads are
    /// not throttled.
    #[must_use]
    pub const fn fair_ns(self) -> u64 {
        self.period_ns.saturating_sub(self.runtime_ns)
    }
}

/// Bandwidth of the threads that go first: the limits, and what was used of them.
#[derive(Debug)]
pub(crate) struct Bandwidth {
    limits: RtLimits,
    /// CPU time of threads that go first while others waited, less what these had since, in
    /// nanoseconds.
    used_ns: u64,
    /// Time at which throttling ends.
    throttled_until_ns: u64,
}

impl Bandwidth {
    /// A full budget.
    pub(crate) const fn new(limits: RtLimits) -> Self {
        Self {
            limits,
            used_ns: 0,
            throttled_until_ns: 0,
        }
    }

    /// Sets the limits. If they change, nothing of the new ones is used, and throttling ends.
    pub(crate) fn set_limits(&mut self, limits: RtLimits) {
        if self.limits != limits {
            *self = Self::new(limits);
        }
    }

    /// Whether there can be throttling at all.
    pub(crate) const fn is_limited(&self) -> bool {
        self.limits.fair_ns() != 0
    }

    /// Whether those who go first are throttled at `now_ns`: the others go before them.
    #[inline]
    pub(crate) const fn is_throttled(&self, now_ns: u64) -> bool {
        now_ns < self.throttled_until_ns
    }

    /// Time at which throttling ends, if there is throttling at `now_ns`.
    pub(crate) fn throttling_ends(&self, now_ns: u64) -> Option<u64> {
        self.is_throttled(now_ns).then_some(self.throttled_until_ns)
    }

    /// Time at which throttling begins if who goes first runs, and another one waits, from `now_ns`
    /// until then.
    pub(crate) fn throttling_begins(&self, now_ns: u64) -> Option<u64> {
        self.is_limited()
            .then(|| now_ns + self.limits.runtime_ns.saturating_sub(self.used_ns))
    }

    /// Accounts `ran_ns` of a thread that goes first, up to `now_ns`, while another one waited.
    pub(crate) fn charge_first(&mut self, ran_ns: u64, now_ns: u64) {
        if !self.is_limited() || self.is_throttled(now_ns) {
            return;
        }
        self.used_ns = self.used_ns.saturating_add(ran_ns);
        if self.used_ns >= self.limits.runtime_ns {
            (self.used_ns, self.throttled_until_ns) =
                (0, now_ns.saturating_add(self.limits.fair_ns()));
        }
    }

    /// Accounts `ran_ns` of one of the others: a part of what is left to them in a period.
    #[inline]
    pub(crate) fn charge_other(&mut self, ran_ns: u64) {
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

    /// Notes that nobody of the others waits any longer: they had what they wanted, and what was
    /// used is no debt to who comes next.
    #[inline]
    pub(crate) fn forgive(&mut self) {
        self.used_ns = 0;
    }
}

/// Bandwidth of management beside programs: the limits are [`RtLimits::OF_MANAGEMENT`].
///
/// What programs get at the end of it is counted by what they run, not by the clock: real-time
/// threads may keep the CPU from both meanwhile.
#[derive(Debug)]
pub(crate) struct ManagementBandwidth {
    /// CPU time of management while programs waited, less what these had since, in nanoseconds.
    used_ns: u64,
    /// CPU time that programs have before management now.
    owed_ns: u64,
}

impl ManagementBandwidth {
    const LIMITS: RtLimits = RtLimits::OF_MANAGEMENT;

    /// A full budget.
    pub(crate) const fn new() -> Self {
        Self {
            used_ns: 0,
            owed_ns: 0,
        }
    }

    /// Whether programs go before management.
    #[inline]
    pub(crate) const fn is_throttled(&self) -> bool {
        self.owed_ns != 0
    }

    /// Time at which throttling ends if a program runs from `now_ns` until then; `now_ns` if there
    /// is none.
    pub(crate) const fn throttling_ends(&self, now_ns: u64) -> u64 {
        now_ns + self.owed_ns
    }

    /// Time at which throttling begins if management runs, and a program waits, from `now_ns` until
    /// then.
    pub(crate) const fn throttling_begins(&self, now_ns: u64) -> u64 {
        now_ns + Self::LIMITS.runtime_ns.saturating_sub(self.used_ns)
    }

    /// Accounts `ran_ns` of management while a program waited.
    pub(crate) fn charge_management(&mut self, ran_ns: u64) {
        if self.is_throttled() {
            return;
        }
        self.used_ns = self.used_ns.saturating_add(ran_ns);
        if self.used_ns >= Self::LIMITS.runtime_ns {
            (self.used_ns, self.owed_ns) = (0, Self::LIMITS.fair_ns());
        }
    }

    /// Accounts `ran_ns` of a program.
    #[inline]
    pub(crate) fn charge_programs(&mut self, ran_ns: u64) {
        const TIMES: u64 = RtLimits::OF_MANAGEMENT.runtime_ns / RtLimits::OF_MANAGEMENT.fair_ns();
        self.owed_ns = self.owed_ns.saturating_sub(ran_ns);
        self.used_ns = self.used_ns.saturating_sub(ran_ns.saturating_mul(TIMES));
    }

    /// Notes that no program waits any longer: they had what they wanted.
    pub(crate) fn forgive(&mut self) {
        *self = Self::new();
    }
}
