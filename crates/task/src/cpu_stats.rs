//! Counters of the scheduler.

/// Statistics of one CPU since the instance started.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuStats {
    /// Number of context switches.
    pub switches: u64,
    /// Number of threads that the CPU woke.
    pub wakes: u64,
    /// Threads it put into another CPU's wake queue.
    pub remote_wakes: u64,
    /// Interrupts it sent for that.
    pub ipis: u64,
    /// Interrupts it did not have to send, because the other CPU polled, was told already, or looks
    /// in time by itself.
    pub ipis_saved: u64,
    /// Threads it gave to idle CPUs that asked.
    pub steals: u64,
    /// Times it polled for work.
    pub polls: u64,
    /// Times it went to sleep: an idle CPU that is left alone does so once.
    pub sleeps: u64,
    /// Nanoseconds that it was there since it started; 0 if it did not.
    pub up_ns: u64,
    /// Nanoseconds without a thread.
    pub idle_ns: u64,
    /// Nanoseconds in which it stood still, because the instance was paused.
    pub paused_ns: u64,
    /// Nanoseconds in which threads waited for it.
    pub stalled_ns: u64,
    /// Threads running or queued at this moment.
    pub runnable: u32,
}

impl CpuStats {
    /// Nanoseconds with a thread.
    #[must_use]
    pub fn busy_ns(&self) -> u64 {
        let none = self.idle_ns.saturating_add(self.paused_ns);
        self.up_ns.saturating_sub(none)
    }
}
