//! What lower layers cause in the layer `entry`, which sets these functions once, before the first
//! process.

use alloc::sync::Arc;

use ::task::Once;
use guard::user::UserRegs;

use crate::Task;

/// Functions of the layer `entry`.
pub(crate) struct Upcalls {
    /// Runs a task's program in the calling kernel thread, which is its own, until the task ends.
    pub(crate) run_user: fn(&Arc<Task>, UserRegs),
    /// Called when process 1 has ended, with its wait status.
    pub(crate) on_init_exit: fn(i32),
}

static UPCALLS: Once<Upcalls> = Once::new();

/// Sets the functions, once, when the system starts.
pub(crate) fn set(upcalls: Upcalls) {
    UPCALLS.call_once(|| upcalls);
}

/// Functions of the layer `entry` that were set.
///
/// # Panics
/// Before they are set.
pub(crate) fn get() -> &'static Upcalls {
    UPCALLS.get().expect("set before the first process")
}
