//! Timers of sockets: the personality's clock runs them.

use alloc::sync::Arc;

use task::Once;

/// A callback that a timer runs.
pub trait TimerCallback: Send + Sync {
    /// Runs when the timer expires: without locks, in a thread of its own.
    fn on_expiry(&self);
}

/// A function that has a callback run at a time, nanoseconds since the start.
type TimerScheduler = fn(u64, Arc<dyn TimerCallback>);

static TIMER_SCHEDULER: Once<TimerScheduler> = Once::new();

/// Sets the function that schedules timers. The first call counts; without one none ever expires.
pub fn set_timer_scheduler(scheduler: TimerScheduler) {
    TIMER_SCHEDULER.call_once(|| scheduler);
}

/// Has a callback run after so many nanoseconds.
pub(crate) fn schedule_timer(nanoseconds: u64, callback: Arc<dyn TimerCallback>) {
    if let Some(set) = TIMER_SCHEDULER.get() {
        set(task::now_ns().saturating_add(nanoseconds), callback);
    }
}
