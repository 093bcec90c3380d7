//! Settings of a thread that only `prctl(2)` and `/proc` know.

use linux_raw_sys::prctl as pr;

use super::speculation::Speculation;

/// Settings that only `prctl(2)` and `/proc` know of a thread. Nothing but the answers depends on
/// them, except that of speculation, which the thread's registers have, too.
#[derive(Clone, Copy)]
pub(crate) struct PrctlState {
    /// By how much the end of a sleep may be late so that several end together, in nanoseconds.
    pub(crate) timer_slack: usize,
    /// The one it had at its beginning.
    pub(crate) default_slack: usize,
    /// `PR_MCE_KILL`: what happens when memory fails.
    pub(crate) mce_kill: u32,
    /// `PR_SET_IO_FLUSHER`: the thread writes back memory for others.
    pub(crate) io_flusher: bool,
    /// `PR_SET_SPECULATION_CTRL`.
    pub(crate) speculation: Speculation,
}

impl Default for PrctlState {
    fn default() -> Self {
        let slack = 50_000;
        Self {
            timer_slack: slack,
            default_slack: slack,
            mce_kill: pr::PR_MCE_KILL_DEFAULT,
            io_flusher: false,
            speculation: Speculation::default(),
        }
    }
}

impl PrctlState {
    /// Settings of a new thread.
    pub(crate) fn inherited(self) -> Self {
        Self {
            default_slack: self.timer_slack,
            ..self
        }
    }

    /// 0 is the one it had at its beginning.
    pub(crate) fn set_timer_slack(&mut self, slack: usize) {
        self.timer_slack = if slack == 0 {
            self.default_slack
        } else {
            slack
        };
    }
}
