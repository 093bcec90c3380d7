//! What happens when a program needs memory and there is none: the process that has most of it ends
//! (`/proc/<pid>/oom_score`).
//!
//! Caches were asked before that (`docs/memory.md`). Whoever needs memory waits for the end of the
//! one that was chosen, and tries again; so the small ones live on. Process 1 is never chosen, and
//! one with `oom_score_adj` -1000 neither; if nobody is left, the one that asks ends.

use core::sync::atomic::{AtomicI32, Ordering};

use ::task::{Deadline, Mutex, WaitQueue};
use abi::errno::Errno;
use linux_raw_sys::general as sys;
use uapi::pid::Pid;
use vm::PAGE_SIZE;

use crate::Task;
use crate::process::{Process, process_table};

/// Range of `oom_score_adj`: a process is never selected at -1000, first at 1000.
pub(crate) const OOM_SCORE_ADJ_RANGE: core::ops::RangeInclusive<i32> = -1000..=1000;
/// Time that a victim may take to end before another is selected, in nanoseconds: it may wait for
/// what another holds.
const VICTIM_TIMEOUT_NS: u64 = 2_000_000_000;

/// Number of the victim that was selected last, until it has given its memory back; 0 for none.
static VICTIM: AtomicI32 = AtomicI32::new(0);
/// Held to choose; until when the last one is waited for.
static DEADLINE: Mutex<Deadline> = Mutex::new(Deadline::PASSED);
/// Woken when a process has given its memory back.
static VICTIM_EXITED: WaitQueue = WaitQueue::new();

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
    let resident = process.space()?.stats().resident / PAGE_SIZE;
    Some(resident as i64 + adjustment * total.cast_signed() / 1000)
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
    if guard::mem::take_shortage()
        && let Some(deadline) = select_victim(task)
    {
        wait_for_victim(deadline);
    }
}

/// Frees memory when it is short for `task`: kills a process and waits for its end, or ends
/// `task`'s process.
#[cold]
pub(crate) fn out_of_memory(task: &Task) {
    match select_victim(task) {
        Some(deadline) => wait_for_victim(deadline),
        None => kill_victim(task.process(), task),
    }
}

/// Waits until the victim has given its memory back, or has not until `deadline`.
fn wait_for_victim(deadline: Deadline) {
    // A signal ends this too: the one that waits may be the one that was chosen.
    let _ = VICTIM_EXITED.wait_interruptible(Some(deadline), || {
        (VICTIM.load(Ordering::SeqCst) == 0).then_some(())
    });
}

/// Kills the process with the highest score, unless one is ending. Returns until when to wait for
/// that; `None` if there is none.
fn select_victim(task: &Task) -> Option<Deadline> {
    let mut deadline = DEADLINE.lock();
    let guard::mem::MemStats { total, free, .. } = guard::mem::stats();
    // The one that was chosen may have ended since `task` found nothing, or is still about to.
    if !deadline.has_passed() && (VICTIM.load(Ordering::SeqCst) != 0 || free > total / 32) {
        return Some(*deadline);
    }
    // One after the other: a list of them would take memory.
    let all = core::iter::successors(process_table::next_process(Pid::NONE), |process| {
        process_table::next_process(process.pid())
    });
    let heaviest = all
        .filter(|process| !process.is_exiting())
        .filter_map(|process| Some((badness(&process, total)?, process)))
        .max_by_key(|(weight, _)| *weight);
    let (_, victim) = heaviest?;
    *deadline = Deadline::after_ns(VICTIM_TIMEOUT_NS);
    VICTIM.store(victim.pid().raw(), Ordering::SeqCst);
    kill_victim(&victim, task);
    Some(*deadline)
}

/// Kills a process and logs it, in Linux's words.
fn kill_victim(victim: &Process, task: &Task) {
    let adjustment = |process: &Process| process.oom_score_adj.load(Ordering::Relaxed);
    log::warn!(
        "{} invoked oom-killer: gfp_mask=0x0(), order=0, oom_score_adj={}",
        task.name(),
        adjustment(task.process())
    );
    let (stats, resident) = victim
        .space()
        .map(|space| (space.stats(), space.resident_by_sharing()))
        .unwrap_or_default();
    let kib = |bytes: usize| bytes >> 10;
    log::error!(
        "Out of memory: Killed process {} ({}) total-vm:{}kB, anon-rss:{}kB, file-rss:0kB, shmem-rss:{}kB, UID:{} pgtables:{}kB \
         oom_score_adj:{}",
        victim.pid(),
        victim.name(),
        kib(stats.size),
        kib(resident.private),
        kib(resident.shared),
        victim.credentials().user.real,
        // A table for every 2 MiB in use, if they are in use as a whole.
        kib(stats.resident / 512),
        adjustment(victim),
    );
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
