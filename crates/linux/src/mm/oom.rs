//! What happens when there is no memory: the process that has most of it ends
//! (`/proc/<pid>/oom_score`).
//!
//! Caches were asked before that (`docs/memory.md`). A thread of the kernel chooses and kills: it
//! holds no lock, was made at the start, and may use the kernel's reserve, so that choosing never
//! waits for memory, and never begins within itself. Whoever needs memory asks it, waits for the
//! end of the one that was chosen, and tries again; so the small ones live on. Process 1 is never
//! chosen, and one with `oom_score_adj` -1000 neither; if nobody is left, the one that asks ends.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

use ::task::{Deadline, Mutex, Once, Policy, Thread, WaitQueue};
use abi::errno::Errno;
use guard::BootToken;
use guard::mem::Shortage;
use linux_raw_sys::general as sys;
use uapi::pid::{Pid, Tid};
use vm::PAGE_SIZE;

use crate::Task;
use crate::process::{Process, process_table};
use crate::state::kernel_log;
use crate::state::ratelimit::LogLimit;

/// Range of `oom_score_adj`: a process is never selected at -1000, first at 1000.
pub(crate) const OOM_SCORE_ADJ_RANGE: core::ops::RangeInclusive<i32> = -1000..=1000;
/// Time that a victim may take to end before another is selected, in nanoseconds: it may wait for
/// what another holds.
const VICTIM_TIMEOUT_NS: u64 = 2_000_000_000;

/// Time that a thread of a program waits before it takes from the reserve with locks held, which
/// the victim may need to end.
const RESERVE_TIMEOUT_NS: u64 = 500_000_000;
/// Time that a thread waits for a victim to be chosen while there is no memory at all.
const NOTHING_TIMEOUT_NS: u64 = 10_000_000_000;
/// Time between two looks of a thread that waits with locks held: its wait must take no memory, so
/// it is in no queue.
const LOOK_NS: u64 = 5_000_000;
/// Real-time priority of the thread that chooses, the highest there is.
const PRIORITY: u8 = 99;
/// Level `info` of the kernel log.
const LEVEL_INFO: u32 = 6;
/// Bytes of an open file, beside what is in it: the file, its operations and its name in use.
const FILE_BYTES: usize = 512;

/// Number of the victim that was selected last, until it has given its memory back; 0 for none.
static VICTIM: AtomicI32 = AtomicI32::new(0);
/// Until when the last victim is waited for; of the thread that chooses.
static DEADLINE: Mutex<Deadline> = Mutex::new(Deadline::PASSED);
/// Woken when a victim was chosen, and when a process has given its memory back.
static VICTIM_EXITED: WaitQueue = WaitQueue::new();

/// The thread that chooses.
static KILLER: Once<Arc<Thread>> = Once::new();
/// How often it was asked, and the request up to which it has looked.
static REQUESTS: AtomicU64 = AtomicU64::new(0);
static SERVED: AtomicU64 = AtomicU64::new(0);
/// Number of the thread that asked last; 0 for one of the kernel's.
static INVOKER: AtomicI32 = AtomicI32::new(0);
/// Whether nobody was left to be killed when it looked last.
static NOBODY: AtomicBool = AtomicBool::new(false);
/// `/proc/sys/vm/panic_on_oom`: whether the kernel ends instead of a process, unless 0.
pub(crate) static PANIC_ON_OOM: AtomicI32 = AtomicI32::new(0);
/// `/proc/sys/vm/oom_kill_allocating_task`: whether the process ends that asked for memory, and not
/// the one that has most of it, unless 0.
pub(crate) static KILL_ALLOCATING_TASK: AtomicI32 = AtomicI32::new(0);
/// `/proc/sys/vm/oom_dump_tasks`: whether the log lists the processes when one is killed, unless 0.
pub(crate) static DUMP_TASKS: AtomicI32 = AtomicI32::new(1);
/// Victims so far (`/proc/vmstat`, `memory.events`).
static KILLS: AtomicU64 = AtomicU64::new(0);

/// Starts the thread that chooses. `may_pass_mark` tells whether the kernel may take memory for the
/// calling thread beyond its high mark.
///
/// # Panics
/// If there is no memory for it: it is among the first.
pub(crate) fn init(boot: &BootToken, may_pass_mark: fn() -> bool) {
    let killer = ::task::spawn("oom_killer", None, run).expect("memory at boot");
    killer.set_policy(Policy::Fifo(PRIORITY));
    KILLER.call_once(|| killer);
    guard::mem::set_shortage_handlers(boot, may_use_reserve, may_pass_mark, wait_with_locks);
}

/// Number of processes that were killed for want of memory.
pub(crate) fn kills() -> u64 {
    KILLS.load(Ordering::Relaxed)
}

fn run() {
    // What it allocates waits for nothing.
    ::task::current().set_in_reclaim(true);
    loop {
        let requests = REQUESTS.load(Ordering::SeqCst);
        if SERVED.load(Ordering::SeqCst) == requests {
            ::task::park();
            continue;
        }
        select_victim();
        SERVED.store(requests, Ordering::SeqCst);
        VICTIM_EXITED.wake_all();
    }
}

/// Asks for a victim; the number of the request.
fn ask(invoker: Tid) -> u64 {
    INVOKER.store(invoker.raw(), Ordering::Relaxed);
    let request = REQUESTS.fetch_add(1, Ordering::SeqCst) + 1;
    if let Some(killer) = KILLER.get() {
        killer.unpark();
    }
    request
}

/// Whether the calling thread may take from the kernel's reserve: it frees memory, or is not a
/// program's, or process 1's, which ends everything.
pub(crate) fn may_use_reserve() -> bool {
    crate::current_task().is_none_or(|task| task.must_exit() || task.process().pid() == Pid::INIT)
}

/// Waits for memory that the kernel needs for the calling thread, whatever locks that holds.
fn wait_with_locks(shortage: Shortage) -> bool {
    let Some(thread) = ::task::try_current() else {
        return false;
    };
    if thread.set_in_reclaim(true) {
        // What a wait, or the killer itself, needs is taken from the reserve.
        return false;
    }
    let request = ask(crate::current_task().map_or(Tid::new(0), |task| task.tid()));
    let timeout = match shortage {
        Shortage::Reserve => RESERVE_TIMEOUT_NS,
        Shortage::Nothing => NOTHING_TIMEOUT_NS,
    };
    let deadline = Deadline::after_ns(timeout);
    let may_go_on = loop {
        ::task::park_until(Deadline::after_ns(LOOK_NS));
        let done = match shortage {
            Shortage::Reserve => !guard::mem::is_reserve_touched() || may_use_reserve(),
            // Whoever finds nothing looks again whenever somebody was killed.
            Shortage::Nothing => SERVED.load(Ordering::SeqCst) >= request,
        };
        if done {
            break !NOBODY.load(Ordering::Relaxed);
        }
        if deadline.has_passed() {
            break false;
        }
    };
    thread.set_in_reclaim(false);
    may_go_on
}

/// Converts the older scale `oom_adj`, from -17 for never to 15, to `oom_score_adj`.
pub(crate) fn from_oom_adj(value: i32) -> Result<i32, Errno> {
    match value {
        15 => Ok(1000),
        -17..15 => Ok(value * 1000 / 17),
        _ => Err(Errno::EINVAL),
    }
}

/// Converts `oom_score_adj` to the older scale `oom_adj`.
pub(crate) fn to_oom_adj(adjustment: i32) -> i32 {
    if adjustment == 1000 {
        15
    } else {
        adjustment * 17 / 1000
    }
}

/// Score of a process as a victim, in pages; `None` if it is never to be one.
fn badness(process: &Process, total: u64) -> Option<i64> {
    let adjustment = i64::from(process.oom_score_adj.load(Ordering::Relaxed));
    if process.pid() == Pid::INIT || adjustment == i64::from(*OOM_SCORE_ADJ_RANGE.start()) {
        return None;
    }
    let pages = process.space()?.resident() / PAGE_SIZE;
    let pages = pages + kernel_memory(process) / PAGE_SIZE;
    Some(pages as i64 + adjustment * total.cast_signed() / 1000)
}

/// Bytes of the kernel's that the end of a process gives back: page tables, stacks, open files and
/// what is in them.
fn kernel_memory(process: &Process) -> usize {
    let tables = process.space().map_or(0, |space| space.resident() / 512);
    let (threads, files) = {
        let tasks = process.tasks.lock();
        (tasks.len(), tasks.first().map(|task| task.files()))
    };
    let open = files.map_or(0, |files| files.memory(FILE_BYTES));
    tables + threads * guard::stack::STACK_SIZE + open
}

/// `/proc/<pid>/oom_score`: the weight in thousandths of the memory, as Linux counts it (0 to 2000,
/// 666 without memory).
pub(crate) fn score(process: &Process) -> i64 {
    let total = guard::mem::total_frames().max(1);
    let points =
        badness(process, total).map_or(-1000, |weight| weight * 1000 / total.cast_signed());
    ((1000 + points) * 2 / 3).max(0)
}

/// Gives memory back if it is low: caches first, then the process that has most of it. The caller
/// holds no lock.
#[cold]
pub(crate) fn relieve(task: &Task) {
    guard::mem::reclaim_low();
    if guard::mem::take_shortage() {
        wait_for_victim(ask(task.tid()));
    }
}

/// Frees memory when it is short for `task`: has a process killed and waits for its end, or ends
/// `task`'s process.
#[cold]
pub(crate) fn out_of_memory(task: &Task) {
    if guard::mem::has_pages() {
        // Somebody has given memory back meanwhile, or it was refused on purpose.
        return;
    }
    wait_for_victim(ask(task.tid()));
    if NOBODY.load(Ordering::Relaxed) {
        kill_victim(task.process(), task.tid());
    }
}

/// Waits until a victim was chosen for a request and has given its memory back, or has not in the
/// time it has for it.
fn wait_for_victim(request: u64) {
    // A signal ends this too: the one that waits may be the one that was chosen.
    let deadline = Deadline::after_ns(VICTIM_TIMEOUT_NS);
    let _ = VICTIM_EXITED.wait_interruptible(Some(deadline), || {
        let chosen = SERVED.load(Ordering::SeqCst) >= request;
        (chosen && VICTIM.load(Ordering::SeqCst) == 0).then_some(())
    });
}

/// Kills the process with the highest score, unless one is ending.
fn select_victim() {
    let mut deadline = DEADLINE.lock();
    let guard::mem::MemStats { total, free, .. } = guard::mem::stats();
    // The one that was chosen may have ended since somebody found nothing, or is still about to.
    if !deadline.has_passed() && (VICTIM.load(Ordering::SeqCst) != 0 || free > total / 32) {
        return;
    }
    if PANIC_ON_OOM.load(Ordering::Relaxed) != 0 {
        panic!("out of memory, and vm.panic_on_oom is set");
    }
    if KILL_ALLOCATING_TASK.load(Ordering::Relaxed) != 0
        && let Some(asking) = process_table::find_task(Tid::new(INVOKER.load(Ordering::Relaxed)))
        && !asking.process().is_exiting()
        && badness(asking.process(), total).is_some()
    {
        NOBODY.store(false, Ordering::Relaxed);
        *deadline = Deadline::after_ns(VICTIM_TIMEOUT_NS);
        VICTIM.store(asking.process().pid().raw(), Ordering::SeqCst);
        kill_victim(asking.process(), asking.tid());
        return;
    }
    // One after the other: a list of them would take memory.
    let all = core::iter::successors(process_table::next_process(Pid::NONE), |process| {
        process_table::next_process(process.pid())
    });
    let mut ending = false;
    let heaviest = all
        .filter(|process| {
            let exits = process.is_exiting();
            ending |= exits && process.space().is_some();
            !exits
        })
        .filter_map(|process| Some((badness(&process, total)?, process)))
        .max_by_key(|(weight, _)| *weight);
    NOBODY.store(heaviest.is_none() && !ending, Ordering::Relaxed);
    let Some((_, victim)) = heaviest else {
        return;
    };
    *deadline = Deadline::after_ns(VICTIM_TIMEOUT_NS);
    VICTIM.store(victim.pid().raw(), Ordering::SeqCst);
    kill_victim(&victim, Tid::new(INVOKER.load(Ordering::Relaxed)));
}

/// Lists the processes that have memory, with what makes them victims, in Linux's words. The list
/// is in the log only: a console would hold up whoever waits for memory.
fn dump_tasks() {
    static LIMIT: LogLimit = LogLimit::new();
    if DUMP_TASKS.load(Ordering::Relaxed) == 0 || !LIMIT.allows("dump_tasks") {
        return;
    }
    let line = |text: core::fmt::Arguments<'_>| kernel_log::add(LEVEL_INFO, text);
    line(format_args!("Tasks state (memory values in pages):"));
    line(format_args!(
        "[  pid  ]   uid  tgid total_vm      rss pgtables_bytes swapents oom_score_adj name"
    ));
    // One after the other: a list of them would take memory.
    let mut next = process_table::next_process(Pid::NONE);
    while let Some(process) = next {
        if let Some(space) = process.space() {
            let stats = space.stats();
            let pid = process.pid().raw();
            line(format_args!(
                "[{pid:7}] {:5} {pid:5} {:8} {:8} {:8} {:8}         {:5} {}",
                process.credentials().user.real,
                stats.size / PAGE_SIZE,
                stats.resident / PAGE_SIZE,
                // A table for every 2 MiB in use, if they are in use as a whole.
                stats.resident / 512,
                0,
                process.oom_score_adj.load(Ordering::Relaxed),
                process.name(),
            ));
        }
        next = process_table::next_process(process.pid());
    }
}

/// Kills a process and logs it, in Linux's words.
fn kill_victim(victim: &Process, invoker: Tid) {
    let adjustment = |process: &Process| process.oom_score_adj.load(Ordering::Relaxed);
    match process_table::find_task(invoker) {
        Some(task) => log::warn!(
            "{} invoked oom-killer: gfp_mask=0x0(), order=0, oom_score_adj={}",
            task.name(),
            adjustment(task.process())
        ),
        None => log::warn!("the kernel invoked oom-killer: gfp_mask=0x0(), order=0"),
    }
    dump_tasks();
    let (stats, resident) = victim
        .space()
        .map(|space| (space.stats(), space.resident_by_sharing()))
        .unwrap_or_default();
    let kib = |bytes: usize| bytes >> 10;
    log::error!(
        "Out of memory: Killed process {} ({}) total-vm:{}kB, anon-rss:{}kB, file-rss:0kB, shmem-rss:{}kB, UID:{} pgtables:{}kB \
         oom_score_adj:{}, kernel:{}kB",
        victim.pid(),
        victim.name(),
        kib(stats.size),
        kib(resident.private),
        kib(resident.shared),
        victim.credentials().user.real,
        // A table for every 2 MiB in use, if they are in use as a whole.
        kib(stats.resident / 512),
        adjustment(victim),
        kib(kernel_memory(victim)),
    );
    KILLS.fetch_add(1, Ordering::Relaxed);
    victim.kill(sys::SIGKILL as i32);
}

/// Notes that a process has given its memory back.
pub(crate) fn exit_victim(process: &Process) {
    if VICTIM
        .compare_exchange(process.pid().raw(), 0, Ordering::SeqCst, Ordering::Relaxed)
        .is_ok()
    {
        VICTIM_EXITED.wake_all();
    }
}
