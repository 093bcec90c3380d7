//! The supervisor's part: the table of instances, their logs, and `/dev/skerry`
//! (`docs/partitions.md`).
//!
//! One thread looks after all instances. The doorbell interrupt wakes it; it drains rings into
//! logs, admits an instance's further CPUs, and, when an instance has ended or shall end, gets
//! CPUs and memory back. Calls of programs change records and wake it. What an instance writes into
//! its window is data or a hint: its end is believed only when its CPUs are in the park page.
//!
//! | file | subject |
//! |---|---|
//! | `instance` | one instance's record and life |
//! | `stream_log` | a stream's last bytes, and its readers |
//! | `device` | `/dev/skerry` |
//! | `stream_files` | streams as files |
#![cfg_attr(target_os = "none", no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod device;
mod instance;
#[cfg(test)]
mod schedules;
mod stream_files;
mod stream_log;

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use guard::BootToken;
use instance::Instance;
use task::{Deadline, Event, Mutex};

/// Rung by instances, and by calls that leave something to the node thread.
static WORK_EVENT: Event = Event::new();

struct Table {
    next_id: u32,
    instances: BTreeMap<u32, Arc<Instance>>,
}

static TABLE: Mutex<Table> = Mutex::new(Table {
    next_id: 1,
    instances: BTreeMap::new(),
});

/// Interval between looks at an instance that is being halted.
const HALT_POLL_NS: u64 = 200_000;
/// Interval between looks at an instance whose program has not begun: a kernel that panics before
/// it can ring says so in its window only.
const BOOT_POLL_NS: u64 = 100_000_000;

fn on_doorbell() {
    WORK_EVENT.set();
}

/// Makes `/dev/skerry` and starts the node thread. Once, in the supervisor.
///
/// # Errors
/// `EEXIST`, `ENOMEM`.
pub fn init(boot: &BootToken) -> fs::Result<()> {
    guard::irq::set_doorbell_handler(boot, on_doorbell);
    device::register()?;
    task::spawn("node", None, supervise)
        .map(drop)
        .map_err(|_| abi::errno::Errno::ENOMEM)
}

fn instances() -> Vec<Arc<Instance>> {
    TABLE.lock().instances.values().cloned().collect()
}

fn supervise() {
    let mut again = Deadline::NEVER;
    loop {
        WORK_EVENT.wait_until(again);
        let soonest = instances().iter().filter_map(Instance::service).min();
        again = soonest.map_or(Deadline::NEVER, Deadline::after_ns);
    }
}
