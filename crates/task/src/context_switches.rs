//! The count of a thread's context switches.

/// Context switches away from a thread, by reason (`getrusage(2)`).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ContextSwitches {
    /// The thread had to wait.
    pub voluntary: u64,
    /// Another thread was to run.
    pub involuntary: u64,
}

impl ContextSwitches {
    /// The switches for either reason.
    #[must_use]
    pub const fn total(self) -> u64 {
        self.voluntary + self.involuntary
    }
}
