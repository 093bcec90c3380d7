//! Things to be done at a time: one kernel thread sleeps until the next of them.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};

use ::task::{Deadline, Mutex, Once, Thread};

/// A callback that runs at a time.
pub(crate) trait TimerCallback: Send + Sync {
    /// The time has come. Runs in the timers' thread, without locks; may schedule timers.
    fn fire(&self);
}

/// Timers that are scheduled.
static PENDING_TIMERS: Mutex<BTreeMap<TimerHandle, Arc<dyn TimerCallback>>> =
    Mutex::new(BTreeMap::new());
static THREAD: Once<Arc<Thread>> = Once::new();

/// Handle of a scheduled timer, to cancel it.
/// Ordered by time, then by number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct TimerHandle {
    deadline: Deadline,
    number: u64,
}

impl TimerHandle {
    /// The time when the timer expires.
    pub(crate) fn deadline(self) -> Deadline {
        self.deadline
    }
}

/// Number of timers that are scheduled.
pub(crate) fn count() -> u64 {
    PENDING_TIMERS.lock().len() as u64
}

/// Schedules a callback to run at a time, in the timers' thread.
pub(crate) fn schedule(deadline: Deadline, callback: Arc<dyn TimerCallback>) -> TimerHandle {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let handle = TimerHandle {
        deadline,
        number: NEXT.fetch_add(1, Ordering::Relaxed),
    };
    let first = {
        let mut timers = PENDING_TIMERS.lock();
        timers.insert(handle, callback);
        timers
            .first_key_value()
            .is_some_and(|(&first, _)| first == handle)
    };
    if first && let Some(thread) = THREAD.get() {
        thread.unpark();
    }
    handle
}

/// Callback of a timer of a socket.
struct SocketTimerCallback(Arc<dyn net::TimerCallback>);

impl TimerCallback for SocketTimerCallback {
    fn fire(&self) {
        self.0.on_expiry();
    }
}

/// Schedules a timer of a socket.
pub(crate) fn schedule_for_socket(deadline_ns: u64, callback: Arc<dyn net::TimerCallback>) {
    schedule(
        Deadline::at_ns(deadline_ns),
        Arc::new(SocketTimerCallback(callback)),
    );
}

/// Cancels a timer. Its callback may be running at this moment.
pub(crate) fn cancel(handle: TimerHandle) {
    let callback = PENDING_TIMERS.lock().remove(&handle);
    drop(callback);
}

/// Starts the thread that runs callbacks.
///
/// # Panics
/// If there is no memory for it: it is among the first.
pub(crate) fn start() {
    let thread = ::task::spawn("timers", None, run).expect("memory at boot");
    THREAD.call_once(|| thread);
}

fn run() {
    loop {
        let mut next = None;
        let due = {
            let mut timers = PENDING_TIMERS.lock();
            match timers.first_entry() {
                Some(entry) if entry.key().deadline.has_passed() => Some(entry.remove()),
                Some(entry) => {
                    next = Some(entry.key().deadline);
                    None
                }
                None => None,
            }
        };
        match (due, next) {
            (Some(callback), _) => callback.fire(),
            (None, Some(deadline)) => {
                ::task::park_until(deadline);
            }
            (None, None) => ::task::park(),
        }
    }
}
