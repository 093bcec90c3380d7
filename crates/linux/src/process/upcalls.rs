//! What lower layers cause in later ones: functions that the layer `entry` sets once, before the
//! first process.

use alloc::sync::Arc;
use alloc::vec::Vec;

use ::task::Once;
use abi::errno::Errno;
use fs::File;
use guard::user::UserRegs;

use crate::Task;
use crate::process::Process;

/// Runs a program of root's, whose arguments begin with its path, with a standard input.
type RunHelper = fn(Vec<Vec<u8>>, Arc<File>) -> Result<Arc<Process>, Errno>;

/// Functions of later layers.
pub(crate) struct Upcalls {
    /// Runs a task's program in the calling kernel thread, which is its own, until the task ends.
    pub(crate) run_user: fn(&Arc<Task>, UserRegs),
    /// Runs a program that takes a core dump.
    pub(crate) run_helper: RunHelper,
    /// Called when process 1 has ended, with its wait status.
    pub(crate) on_init_exit: fn(i32),
}

static UPCALLS: Once<Upcalls> = Once::new();

/// Sets the functions, once, when the system starts.
pub(crate) fn set(upcalls: Upcalls) {
    UPCALLS.call_once(|| upcalls);
}

/// Functions of later layers that were set.
///
/// # Panics
/// Before they are set.
pub(crate) fn get() -> &'static Upcalls {
    UPCALLS.get().expect("set before the first process")
}
