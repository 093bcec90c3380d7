//! Things that sockets do at a time: the personality's clock runs them.

use alloc::sync::Arc;
use task::Once;

/// Something to be done at a time.
pub trait TimerCallback: Send + Sync {
    /// The time has come. Called without locks, in a thread of its own.
    fn on_expiry(&self);
}

/// Has an alarm fire at a time, nanoseconds since the start.
type TimerScheduler = fn(u64, Arc<dyn TimerCallback>);

static TIMER_SCHEDULER: Once<TimerScheduler> = Once::new();

/// Sets the function that has alarms fire. The first call counts; without one none ever fires.
pub fn set_timer_scheduler(setter: TimerScheduler) {
    TIMER_SCHEDULER.call_once(|| setter);
}

/// Has an alarm fire after so many nanoseconds.
pub(crate) fn schedule_timer(nanoseconds: u64, alarm: Arc<dyn TimerCallback>) {
    if let Some(set) = TIMER_SCHEDULER.get() {
        set(task::now_ns().saturating_add(nanoseconds), alarm);
    }
}
