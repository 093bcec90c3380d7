//! What threads and processes use, as `taskstats` tells it (`NETLINK_GENERIC`).

use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use uapi::pid::{Pid, Tid};

use crate::process::process_table;
use crate::state::usage::Usage;

/// Bytes of `struct taskstats`, and its version.
const SIZE: usize = 416;
const VERSION: u16 = 13;

/// Usage of a thread or, if `whole`, of a process, as `struct taskstats`; `None` if there is none
/// with that number.
pub(crate) fn taskstats(id: i32, whole: bool) -> Option<Vec<u8>> {
    let (pid, name, usage): (Pid, String, Usage) = if whole {
        let process = process_table::find(Pid::new(id))?;
        (process.pid(), process.name(), process.usage())
    } else {
        let task = process_table::find_task(Tid::new(id))?;
        (task.pid(), task.name(), task.usage())
    };
    let process = process_table::find(pid)?;
    let user = process.credentials();
    let mut bytes = vec![0; SIZE];
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    put(0, &VERSION.to_ne_bytes());
    // Processor time with and without what hypervisors take.
    put(64, &usage.total_ns().to_ne_bytes());
    put(72, &usage.total_ns().to_ne_bytes());
    put(80, &name.as_bytes()[..name.len().min(31)]);
    put(120, &user.user.real.to_ne_bytes());
    put(124, &user.group.real.to_ne_bytes());
    put(128, &id.to_ne_bytes());
    put(
        132,
        &process_table::relations(pid).parent.raw().to_ne_bytes(),
    );
    // Microseconds.
    put(152, &(usage.user_ns / 1000).to_ne_bytes());
    put(160, &(usage.system_ns / 1000).to_ne_bytes());
    put(168, &usage.faults.to_ne_bytes());
    // KiB.
    put(200, &(process.update_max_rss() / 1024).to_ne_bytes());
    put(272, &usage.switches.voluntary.to_ne_bytes());
    put(280, &usage.switches.involuntary.to_ne_bytes());
    put(368, &pid.raw().to_ne_bytes());
    Some(bytes)
}
