//! Sending signals, from wherever in the kernel.

use alloc::sync::Arc;

use abi::errno::Errno;
use linux_raw_sys::general as sys;
use uapi::pid::{Pgid, Pid};
use uapi::sigframe::LastFault;
use uapi::siginfo::{
    DefaultAction, SIGRTMIN, STOPPING, SigInfo, SigSet, default_action, dumps_core, sigmask,
};

use crate::Task;
use crate::process::{Process, process_table, ptrace_state};
use crate::state::rlimit::Resource;
use crate::state::sighand::{self, Room, SIG_DFL, SIG_IGN, SigAction, SigPending};

const SIGKILL: i32 = sys::SIGKILL as i32;

pub(crate) const SIGCONT: i32 = sys::SIGCONT as i32;

/// Receiver of a signal: a thread, or any thread of the process.
#[derive(Clone, Copy)]
pub(crate) enum SignalTarget<'a> {
    Thread(&'a Task),
    /// Any thread: this one, by whose number the process was named, if it does not block it.
    Process(Option<&'a Task>),
}

/// Fate of a signal that was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Delivery {
    /// The receiver finds it, or has ended by it.
    Queued,
    /// Nobody will hear of it.
    Ignored,
}

/// Queues a signal where its receiver finds it: with the thread, or with the process.
pub(crate) fn queue_signal(
    process: &Arc<Process>,
    to: SignalTarget<'_>,
    info: &SigInfo,
) -> Result<Delivery, Errno> {
    queue_with(process, to, info, |pending, room| pending.add(info, room))
}

/// Queues the signal of a timer like [`queue_signal`].
pub(crate) fn queue_timer_signal(
    process: &Arc<Process>,
    to: SignalTarget<'_>,
    info: &SigInfo,
) -> Result<Delivery, Errno> {
    queue_with(process, to, info, |pending, _| pending.add_timer(info))
}

/// Signals and POSIX timers that the processes of a real user id have: what `RLIMIT_SIGPENDING`
/// limits, and `SigQ` of `/proc/<pid>/status` shows. (Linux counts a signal for who the receiver
/// was when it was sent.)
pub(crate) fn queued_by_user(user: u32) -> usize {
    if queued_by_all() == 0 {
        return 0;
    }
    let next = |after| process_table::next_process(after);
    core::iter::successors(next(Pid::NONE), |process| next(process.pid()))
        .filter(|process| process.credentials().user.real == user)
        .map(|process| process.queued_signals())
        .sum()
}

/// At least as many as any user has.
fn queued_by_all() -> usize {
    sighand::queued() + census::Timer::count() as usize
}

/// Whether the user of a process may have one more queued signal, or POSIX timer. A few may come at
/// once, and be so many too many.
pub(crate) fn room_in_queues(process: &Process) -> Room {
    let limit = process.limits.lock()[Resource::PendingSignals].soft_size();
    let has_room =
        queued_by_all() < limit || queued_by_user(process.credentials().user.real) < limit;
    if has_room && guard::mem::has_kernel_room() {
        Room::There
    } else {
        Room::UsedUp
    }
}

/// Sends a signal, which `add` puts into a queue, in which there is room or not.
fn queue_with(
    process: &Arc<Process>,
    to: SignalTarget<'_>,
    info: &SigInfo,
    add: impl FnOnce(&mut SigPending, Room) -> Result<(), Errno>,
) -> Result<Delivery, Errno> {
    let signo = info.signo;
    if signo == SIGKILL {
        ptrace_state::on_sigkill(process);
        process.kill(SIGKILL);
        return Ok(Delivery::Queued);
    }
    let discard = |unwanted: SigSet| {
        process.pending.lock().discard(unwanted);
        for task in process.tasks() {
            task.signals.lock().pending.discard(unwanted);
        }
    };
    if signo == SIGCONT {
        discard(STOPPING);
        process.resume();
        ptrace_state::on_sigcont(process);
    } else if sigmask(signo) & STOPPING != 0 {
        discard(sigmask(SIGCONT));
    }
    let blocked = |task: &Task| task.signals.lock().blocked & sigmask(signo) != 0;
    let action = process.action(signo);
    // A tracer hears of all.
    let ignored = action.ignores(signo) && process.find_task(Task::is_ptraced).is_none();
    // An ordinary signal is there once, whatever the limit.
    let room = if signo < SIGRTMIN {
        Room::There
    } else {
        room_in_queues(process)
    };
    match to {
        SignalTarget::Thread(task) => {
            let held = blocked(task);
            if ignored && !held {
                return Ok(Delivery::Ignored);
            }
            add(&mut task.signals.lock().pending, room)?;
            if !held {
                complete_fatal_signal(process, signo, &action);
                task.signal_wake_up();
            }
        }
        SignalTarget::Process(named) => {
            let takes = |task: &Task| !blocked(task);
            let first = process.find_task(|task| {
                named.is_some_and(|named| core::ptr::eq(named, task)) && takes(task)
            });
            let receiver = first.or_else(|| process.find_task(takes));
            if ignored && receiver.is_some() {
                return Ok(Delivery::Ignored);
            }
            add(&mut process.pending.lock(), room)?;
            if let Some(task) = receiver {
                complete_fatal_signal(process, signo, &action);
                task.signal_wake_up();
            }
        }
    }
    process.signal_sent.notify();
    Ok(Delivery::Queued)
}

/// Ends a process by a signal that does nothing else, before the sender goes on: a thread that ends
/// its own process so never returns. Not where a tracer hears of it first, the process is stopped,
/// or the address where it happened is told.
fn complete_fatal_signal(process: &Arc<Process>, signo: i32, action: &SigAction) {
    let ends = matches!(default_action(signo), DefaultAction::Terminate) && !dumps_core(signo);
    if ends
        && action.handler == SIG_DFL
        && !process.is_stopped()
        && process.find_task(Task::is_ptraced).is_none()
    {
        process.kill(signo);
    }
}

/// Sends a signal to a process, from the kernel.
pub(crate) fn send(process: &Arc<Process>, info: SigInfo) {
    // A full queue loses real-time signals only, and the kernel sends none.
    let _ = queue_signal(process, SignalTarget::Process(None), &info);
}

/// Sends a signal to a thread, from the kernel.
pub(crate) fn send_task(task: &Task, info: SigInfo) {
    let _ = queue_signal(task.process(), SignalTarget::Thread(task), &info);
}

/// Sends a signal to all processes of a group, from the kernel.
pub(crate) fn send_group(group: Pgid, info: SigInfo) {
    for process in
        process_table::processes_where(|_, node| node.group == group && node.exit_status.is_none())
    {
        send(&process, info);
    }
}

/// Sends `SIGHUP` and `SIGCONT` to a group whose stopped members nobody can continue any more.
pub(crate) fn signal_orphaned_group(group: Pgid) {
    for process in
        process_table::processes_where(|_, node| node.group == group && node.exit_status.is_none())
    {
        for signo in [sys::SIGHUP as i32, SIGCONT]
            .into_iter()
            .filter(|&signo| !is_unkillable(&process, signo))
        {
            send(&process, SigInfo::kernel(signo));
        }
    }
}

/// A signal that an instruction of the thread caused: it cannot be blocked or ignored.
pub(crate) fn force(task: &Task, info: SigInfo, fault: LastFault) {
    let actions = task.process().sighand();
    let mask = sigmask(info.signo);
    let ignored = actions.get(info.signo).handler == SIG_IGN;
    let blocked = {
        let mut signals = task.signals.lock();
        signals.last_fault = fault;
        let blocked = signals.blocked & mask != 0;
        signals.blocked &= !mask;
        blocked
    };
    if ignored || blocked {
        actions.set(info.signo, SigAction::default());
    }
    send_task(task, info);
}

/// Whether a signal does nothing to a process because that is process 1, which gets what it
/// handles, and what it has blocked to wait for it.
pub(crate) fn is_unkillable(process: &Process, signal: i32) -> bool {
    process.pid() == Pid::INIT
        && process.sighand().get(signal).handler == SIG_DFL
        && !process
            .tasks()
            .iter()
            .any(|task| task.signals.lock().blocked & sigmask(signal) != 0)
}
