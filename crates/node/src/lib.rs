//! The supervisor's part: the table of instances, their logs, and `/dev/skerry`
//! (`docs/partitions.md`).
//!
//! One thread, the node thread, looks after all instances. The doorbell interrupt wakes it; it
//! admits an instance's further CPUs, and, when an instance has ended or shall end, gets CPUs and
//! memory back. Another one moves output from rings into logs. Calls of programs change records and
//! wake them. What an instance writes into its window is data or a hint: its end is believed only
//! when its CPUs are in the park page.
//!
//! | file | subject |
//! |---|---|
//! | `adopt` | instances of a supervisor that has ended |
//! | `brief` | locks that the node thread never waits long for |
//! | `instance` | one instance's record and life; below it pausing, and what was used |
//! | `label` | names of instances |
//! | `stream_log` | a stream's last bytes, and its readers |
//! | `device` | `/dev/skerry` |
//! | `dma_faults` | what devices of instances were refused |
//! | `stream_files` | streams as files |
//! | `exec_files` | programs beside the first one as files |
//! | `network` | the network of instances |
//! | `names` | names of instances in it |
//! | `peers` | who exchanges messages with whom |
//! | `events` | the list of what has happened to instances |
#![cfg_attr(target_os = "none", no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod adopt;
mod brief;
mod device;
mod dma_faults;
mod events;
mod exec_files;
mod instance;
mod label;
mod names;
mod network;
mod peers;
#[cfg(test)]
mod schedules;
mod stream_files;
mod stream_log;

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use abi::errno::Errno;
use abi::layout::{GRANULE_SIZE, PAGE_SIZE};
use brief::lock_briefly;
use devices::{ClaimError, PciDevice};
use guard::BootToken;
use guard::machine_check::{self, BadPage};
use instance::Instance;
use label::Label;
use net::inet::Host;
use task::{CpuId, Deadline, Event, Group, Mutex, Once, Policy};

/// Set by doorbells, and by calls that leave something to the node thread.
static WORK_EVENT: Event = Event::new();
/// Flag: a call set [`WORK_EVENT`], and is not to wait.
static REQUESTED: AtomicBool = AtomicBool::new(false);
/// Set when the rings of instances may hold something, or the logs have room again.
static OUTPUT_EVENT: Event = Event::new();

/// Priority of calls of `/dev/skerry`, and of what is done for who waits in one: above all that
/// programs can have (1 to 99).
const MANAGEMENT_PRIORITY: u8 = 100;
/// Priority of the node thread.
const NODE_PRIORITY: u8 = 101;

struct Table {
    next_id: u32,
    instances: BTreeMap<u32, Arc<Instance>>,
    /// Instances that have CPUs and memory.
    active: BTreeMap<u32, Arc<Instance>>,
    /// Numbers and names of instances whose memory is being prepared, which takes a while.
    reserved: BTreeMap<u32, Label>,
}

impl Table {
    /// Whether an instance has that name, or is being created with it.
    fn has_label(&self, label: Label) -> bool {
        let mut instances = self.instances.values();
        instances.any(|instance| instance.label() == label)
            || self.reserved.values().any(|reserved| *reserved == label)
    }
}

static TABLE: Mutex<Table> = Mutex::new(Table {
    next_id: 1,
    instances: BTreeMap::new(),
    active: BTreeMap::new(),
    reserved: BTreeMap::new(),
});

/// Interval between looks at an instance that is being halted.
const HALT_POLL_NS: u64 = 200_000;
/// Interval between looks at an instance whose program has not begun: a kernel that panics before
/// it can ring says so in its window only.
const BOOT_POLL_NS: u64 = 100_000_000;
/// Interval between looks at an instance whose program runs: whatever became of its ring.
const RUN_POLL_NS: u64 = 1_000_000_000;
/// Interval between looks at an instance whose CPUs have not yet done as they were told: to stand
/// still, or to go on.
const PAUSE_POLL_NS: u64 = 100_000_000;
/// Interval between looks at what is in quarantine.
const QUARANTINE_POLL_NS: u64 = 100_000_000;

/// Least time between two rounds of the node thread for doorbells.
const DOORBELL_INTERVAL_NS: u64 = 200_000;

/// One ring is as good as a hundred: further ones wait until the node thread has looked.
fn on_doorbell() {
    guard::irq::mask_doorbell();
    WORK_EVENT.set();
    network::look();
}

/// Has the node thread look at the instances, at once.
fn request() {
    REQUESTED.store(true, Ordering::Release);
    WORK_EVENT.set();
}

/// Whether a function that nobody has is a device of a host's that reaches memory without the
/// IOMMU, as its driver finds out; an error if somebody has it.
pub type BypassesIommu = fn(&'static PciDevice) -> core::result::Result<bool, ClaimError>;

static BYPASSES_IOMMU: Once<BypassesIommu> = Once::new();

/// Makes `/dev/skerry` and starts the node thread; `host` gets an interface to the instances when
/// there is one that has a network. Once, in the supervisor.
///
/// # Errors
/// `EEXIST`, `ENOMEM`.
pub fn init(boot: &BootToken, host: &Arc<Host>, bypasses_iommu: BypassesIommu) -> fs::Result<()> {
    // One part in 64 of memory is the same for machines of all sizes: on the smallest it holds the
    // last words of a hundred instances, on the largest all that is kept of each.
    let memory = guard::mem::total_frames() * PAGE_SIZE as u64;
    stream_log::set_limit((memory / 64).clamp(1 << 20, 256 << 20));
    guard::irq::set_doorbell_handler(boot, on_doorbell);
    network::init(host);
    events::init()?;
    adopt::adopt(boot);
    device::register()?;
    // What instances bring about is no more than a program's work, unless it is raised. Threads
    // that these start are in their group.
    let spawn = |name, cpu, body: fn()| {
        let thread = task::spawn(name, cpu, body).map_err(|_| Errno::ENOMEM)?;
        thread.set_group(Group::Programs);
        Ok::<_, Errno>(thread)
    };
    spawn("scrub", None, scrub_memory)?.set_policy(Policy::Idle);
    spawn("output", None, move_output)?;
    spawn("dma-faults", None, dma_faults::watch)?;
    BYPASSES_IOMMU.call_once(|| bypasses_iommu);
    // Doorbells ring on the first CPU, and are masked and unmasked there.
    spawn("node", Some(CpuId(0)), supervise)?.set_policy(Policy::Fifo(NODE_PRIORITY));
    // Instances of the supervisor before may have written, or ended, meanwhile.
    request();
    guard::partition::is_up(boot);
    Ok(())
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
    in_order(|table| &table.instances)
}

/// The instance of a number, if it has CPUs and memory.
fn active_instance(id: u32) -> Option<Arc<Instance>> {
    lock_briefly(&TABLE).active.get(&id).cloned()
}

/// The instances that have CPUs and memory, likewise.
fn active_instances() -> impl Iterator<Item = Arc<Instance>> {
    in_order(|table| &table.active)
}

fn in_order(
    of: impl Fn(&Table) -> &BTreeMap<u32, Arc<Instance>>,
) -> impl Iterator<Item = Arc<Instance>> {
    let next = move |id: u32| {
        let table = lock_briefly(&TABLE);
        let mut further = of(&table).range(id + 1..);
        further.next().map(|(_, instance)| instance.clone())
    };
    core::iter::successors(next(0), move |instance| next(instance.id()))
}

/// Ends the instances whose memory has lost something, and takes such pages out of use: those of an
/// instance go with its memory, those of the supervisor that are not free yet wait in `waiting`.
/// Returns in how many nanoseconds they are to be looked at again.
fn service_bad_pages(waiting: &mut Vec<BadPage>) -> Option<u64> {
    while let Some(page) = machine_check::next_bad_page() {
        if let Some(instance) = active_instances().find(|instance| instance.holds(&page)) {
            instance.end_for_bad_memory(&page);
            continue;
        }
        log::error!("a page of memory that no instance has has an uncorrected error");
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

/// Main function of the node thread. It outranks all programs, so what it does is little, and for
/// doorbells it does that at most once in [`DOORBELL_INTERVAL_NS`]: meanwhile they are masked.
fn supervise() {
    let (mut again, mut quiet_until) = (Deadline::NEVER, Deadline::PASSED);
    let mut bad_pages = Vec::with_capacity(64);
    loop {
        wait_for_work(again, quiet_until);
        OUTPUT_EVENT.set();
        network::look();
        let soonest = active_instances()
            .filter_map(|instance| instance.service())
            .chain(instance::service_quarantine())
            .chain(service_bad_pages(&mut bad_pages))
            .min();
        again = soonest.map_or(Deadline::NEVER, Deadline::after_ns);
        quiet_until = Deadline::after_ns(DOORBELL_INTERVAL_NS);
        guard::irq::unmask_doorbell();
    }
}

/// Sleeps until a call leaves something to do, or `again`, or, after `quiet_until`, a doorbell
/// rings.
fn wait_for_work(again: Deadline, quiet_until: Deadline) {
    let mut until = again;
    while WORK_EVENT.wait_until(until)
        && !REQUESTED.swap(false, Ordering::AcqRel)
        && !quiet_until.has_passed()
    {
        until = again.min(quiet_until);
    }
}

/// Main function of the thread that moves the instances' output into their logs. It has the
/// priority of an ordinary program: all floods of output together get no more of a busy CPU than
/// one of those does.
fn move_output() {
    loop {
        OUTPUT_EVENT.wait();
        // Those that ended first lose most of what they wrote first.
        for instance in instances() {
            if !stream_log::is_near_limit() {
                break;
            }
            instance.cut_logs();
        }
        let mut more = false;
        for instance in active_instances() {
            more |= instance.move_output();
        }
        if more {
            OUTPUT_EVENT.set();
        }
    }
}
