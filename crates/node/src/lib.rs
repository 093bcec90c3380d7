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
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::layout::{GRANULE_SIZE, PAGE_SIZE};
use guard::BootToken;
use guard::machine_check::{self, BadPage};
use instance::Instance;
use task::{Deadline, Event, Mutex, Policy};

/// Rung by instances, and by calls that leave something to the node thread.
static WORK_EVENT: Event = Event::new();

struct Table {
    next_id: u32,
    instances: BTreeMap<u32, Arc<Instance>>,
    /// Numbers and names of instances whose memory is being prepared, which takes a while.
    reserved: BTreeMap<u32, String>,
}

static TABLE: Mutex<Table> = Mutex::new(Table {
    next_id: 1,
    instances: BTreeMap::new(),
    reserved: BTreeMap::new(),
});

/// Interval between looks at an instance that is being halted.
const HALT_POLL_NS: u64 = 200_000;
/// Interval between looks at an instance whose program has not begun: a kernel that panics before
/// it can ring says so in its window only.
const BOOT_POLL_NS: u64 = 100_000_000;
/// Interval between looks at an instance whose program runs: whatever became of its ring.
const RUN_POLL_NS: u64 = 1_000_000_000;
/// Interval between looks at what is in quarantine.
const QUARANTINE_POLL_NS: u64 = 100_000_000;

fn on_doorbell() {
    WORK_EVENT.set();
}

/// Makes `/dev/skerry` and starts the node thread. Once, in the supervisor.
///
/// # Errors
/// `EEXIST`, `ENOMEM`.
pub fn init(boot: &BootToken) -> fs::Result<()> {
    // One part in 64 of memory is the same for machines of all sizes: on the smallest it holds the
    // last words of a hundred instances, on the largest all that is kept of each.
    let memory = guard::mem::total_frames() * PAGE_SIZE as u64;
    stream_log::set_limit((memory / 64).clamp(1 << 20, 256 << 20));
    guard::irq::set_doorbell_handler(boot, on_doorbell);
    device::register()?;
    let spawn =
        |name, body: fn()| task::spawn(name, None, body).map_err(|_| abi::errno::Errno::ENOMEM);
    spawn("scrub", scrub_memory)?.set_policy(Policy::Idle);
    spawn("node", supervise).map(drop)
}

/// Zeroes all free memory once: what was there before the machine was started again is nobody's to
/// read, and what is zeroed now need not be when an instance is created.
fn scrub_memory() {
    let (mut next, mut granules) = (0, 0);
    while guard::mem::scrub_ahead(&mut next) {
        granules += 1;
    }
    log::info!(
        "{} MiB of free memory scrubbed",
        granules * (GRANULE_SIZE >> 20)
    );
}

/// All instances, in the order of their numbers. The table is not locked meanwhile, and no list is
/// made.
fn instances() -> impl Iterator<Item = Arc<Instance>> {
    let next = |id: u32| {
        let table = TABLE.lock();
        let mut further = table.instances.range(id + 1..);
        further.next().map(|(_, instance)| instance.clone())
    };
    core::iter::successors(next(0), move |instance| next(instance.id()))
}

/// Ends the instances whose memory has lost something, and takes such pages out of use; those that
/// are not free yet wait in `waiting`. Returns in how many nanoseconds they are to be looked at
/// again.
fn service_bad_pages(waiting: &mut Vec<BadPage>) -> Option<u64> {
    while let Some(page) = machine_check::next_bad_page() {
        if let Some(instance) = instances().find(|instance| instance.holds(&page)) {
            instance.end_for_bad_memory();
        } else {
            log::error!("a page of memory that no instance has has an uncorrected error");
        }
        // There is room for more than can be told of at a time; what is too much stays in use.
        if waiting.len() < waiting.capacity() {
            waiting.push(page);
        }
    }
    waiting.retain(|page| {
        let retired = page.retire();
        if retired {
            log::warn!("a page with an uncorrected error is not used any more");
        }
        !retired
    });
    (!waiting.is_empty()).then_some(RUN_POLL_NS)
}

fn supervise() {
    let mut again = Deadline::NEVER;
    let mut bad_pages = Vec::with_capacity(64);
    loop {
        WORK_EVENT.wait_until(again);
        // Those that ended first lose most of what they wrote first.
        for instance in instances() {
            if !stream_log::is_near_limit() {
                break;
            }
            instance.cut_logs();
        }
        let soonest = instances()
            .filter_map(|instance| instance.service())
            .chain(instance::service_quarantine())
            .chain(service_bad_pages(&mut bad_pages))
            .min();
        again = soonest.map_or(Deadline::NEVER, Deadline::after_ns);
    }
}
