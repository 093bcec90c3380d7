//! How much there is in the tables of this crate, and of those below, that stand beside processes
//! and files.

use crate::futex::pi;
use crate::process::{namespaces, process_table, timer};
use crate::state::ipc::mqueue;
use crate::state::timer_queue;

/// Calls `each` with the name and the number of what each table holds.
pub fn object_counts(each: &mut dyn FnMut(&'static str, u64)) {
    let processes = process_table::counts();
    each("process_numbers", processes.processes as u64);
    each("thread_numbers", processes.threads as u64);
    each("listed_children", processes.children as u64);
    let futexes = futex::counts();
    each("futex_waits", futexes.waits);
    each("futex_waiters", futexes.waiters);
    let inheriting = pi::counts();
    each("inheriting_locks", inheriting.locks as u64);
    each("inheriting_moves", inheriting.requeues as u64);
    each("alarms", timer_queue::count());
    each("wall_clock_timers", timer::realtime_timer_count());
    each("posix_queue_bytes", mqueue::charged_bytes());
    fs::census(each);
    namespaces::net().object_counts(each);
}
