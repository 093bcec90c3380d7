//! Who traces whom: from the beginning of that to its end, and what a tracer is told when it waits.
//!
//! A process has a list of the threads that its threads trace, and each of those knows its tracer.
//! A list is locked before the table of processes, a thread's record after everything else; neither
//! while a signal is sent.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use abi::errno::Errno;
use linux_raw_sys::{general as sys, ptrace as api};
use uapi::siginfo::SigInfo;

use super::SIGKILL;
use crate::Task;
use crate::process::ptrace_state::{PtraceState, ResumeMode};
use crate::process::{Process, notify_parent, process_table, send_signal, sigchld_code_and_status};
use crate::state::sighand::Room;

const SIGSTOP: i32 = sys::SIGSTOP as i32;

/// Sends `SIGCHLD` to a tracer because something happened to a thread, and wakes its `wait(2)`.
pub(super) fn notify_tracer(tracer: &Task, task: &Task, code: i32, status: i32) {
    let process = tracer.process();
    let actions = process.sighand();
    if actions.wants_child_stops() && !actions.is_set_to_ignore(sys::SIGCHLD as i32) {
        let ticks = task.process().cpu_ns() / 10_000_000;
        send_signal::send(
            process,
            SigInfo::child(code, task.tid(), task.uid(), status, ticks),
        );
    }
    process.wait_chldexit.wake_all();
}

/// The thread that traces `task`.
pub(crate) fn tracer_of(task: &Task) -> Option<Arc<Task>> {
    if !task.is_ptraced() {
        return None;
    }
    task.ptrace.lock().as_ref()?.tracer.as_ref()?.upgrade()
}

/// The request by which a tracer begins to trace a thread.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum AttachMode {
    /// `PTRACE_ATTACH` or `PTRACE_TRACEME`: stops are signals.
    Attach,
    /// `PTRACE_SEIZE`: the thread goes on, and stops are events.
    Seize,
}

/// Makes `tracer` trace `task`.
///
/// # Errors
/// `EPERM` if somebody else does, or it has ended; `EAGAIN` while it is in `execve(2)`.
pub(super) fn link(
    tracer: &Arc<Task>,
    task: &Arc<Task>,
    mode: AttachMode,
    options: u32,
) -> Result<(), Errno> {
    let process = task.process();
    {
        let mut tracees = tracer.process().tracees.lock();
        tracees.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        let mut trace = task.ptrace.lock();
        if task.in_execve.load(Ordering::Relaxed) {
            return Err(Errno::EAGAIN);
        }
        // What is left of a stop that has just ended stays, until the thread has seen that; so do
        // debug registers.
        let (stop, debug, debug_changed) = match trace.take() {
            Some(old) if old.tracer.is_some() => {
                *trace = Some(old);
                return Err(Errno::EPERM);
            }
            old => old
                .map(|old| (old.stop, old.debug, old.debug_changed))
                .unwrap_or_default(),
        };
        let tracer = Some(Arc::downgrade(tracer));
        *trace = Some(Box::new(PtraceState {
            tracer,
            seized: mode == AttachMode::Seize,
            options,
            stop,
            debug,
            debug_changed,
            ..PtraceState::default()
        }));
        task.set_ptraced(true);
        tracees.push(task.clone());
    }
    if task.tid() == process.pid().leader() {
        *process.traced_leader.lock() = Arc::downgrade(task);
    }
    // It may be in ring 3, on the short way of system calls, or in a stop with its process.
    process.resumed.wake_all();
    task.signal_wake_up();
    Ok(())
}

/// Waits until a thread that stood still with its process is in a stop for its new tracer: that may
/// ask for its registers at once, without a wait (Linux: `JOBCTL_TRAPPING`). It is on its way.
pub(super) fn wait_for_trap(task: &Task) {
    let process = task.process();
    let over = || {
        !process.is_stopped()
            || task.must_exit()
            || super::is_in_ptrace_stop(task)
            || !task.is_ptraced()
    };
    process.resumed.wait(|| over().then_some(()));
}

/// Makes the tracer of a thread trace its new thread or process, not running yet, if it asked for
/// that. The child begins with a stop.
pub(crate) fn link_child(maker: &Task, child: &Arc<Task>) {
    let inherited = maker.ptrace.lock().as_ref().and_then(|trace| {
        let tracer = trace.tracer.as_ref()?.upgrade()?;
        let mode = if trace.seized {
            AttachMode::Seize
        } else {
            AttachMode::Attach
        };
        Some((tracer, mode, trace.options, trace.debug.of_child()))
    });
    let Some((tracer, mode, options, debug)) = inherited else {
        return;
    };
    if link(&tracer, child, mode, options).is_err() {
        return;
    }
    if let Some(trace) = child.ptrace.lock().as_mut() {
        trace.debug = debug;
    }
    match mode {
        AttachMode::Seize => request_trap(child),
        AttachMode::Attach => {
            // A thread that has not run has no signals yet.
            let _ = child
                .signals
                .lock()
                .pending
                .add(&SigInfo::kernel(SIGSTOP), Room::There);
        }
    }
}

/// Makes a traced thread stop as soon as it enters the kernel.
pub(super) fn request_trap(task: &Task) {
    if let Some(trace) = task.ptrace.lock().as_mut() {
        trace.trap_pending = true;
        if let Some(stop) = trace.stopped().filter(|stop| stop.listening) {
            stop.resumed = true;
        }
    }
    task.process().resumed.wake_all();
    task.signal_wake_up();
}

/// Ends the tracing of a thread, which goes on with a signal, or without (0).
pub(super) fn detach(task: &Arc<Task>, signal: i32) {
    let ended = {
        let mut trace = task.ptrace.lock();
        let Some(trace) = trace.as_mut() else { return };
        trace.tracer = None;
        trace.resume(ResumeMode::default(), signal);
        trace.exit_status.take()
    };
    task.set_ptraced(false);
    let process = task.process();
    process.resumed.wake_all();
    task.signal_wake_up();
    if let Some(status) = ended {
        notify_real_parent(task, status);
    }
}

/// Tells the parent of a process that has ended, which has heard nothing of it.
fn notify_real_parent(task: &Task, status: i32) {
    let process = task.process();
    if task.tid() == process.pid().leader()
        && let Some((parent, announcement)) = process_table::release_to_parent(process)
    {
        let (code, value) = sigchld_code_and_status(status);
        notify_parent(Some(parent), process, code, value);
        drop(announcement);
    }
}

/// Takes a thread out of its tracer's list.
pub(super) fn unlink(task: &Arc<Task>) {
    if let Some(tracer) = tracer_of(task) {
        tracer
            .process()
            .tracees
            .lock()
            .retain(|other| !Arc::ptr_eq(other, task));
    }
}

/// Ends the tracing of a thread that was to be traced and could not be started.
pub(crate) fn untrace(task: &Arc<Task>) {
    unlink(task);
    detach(task, 0);
}

/// Frees all that a thread traces, which ends.
pub(crate) fn exit_ptrace(tracer: &Arc<Task>) {
    let mut mine = Vec::new();
    tracer.process().tracees.lock().retain(|task| {
        let traced_by_me = task
            .ptrace
            .lock()
            .as_ref()
            .is_some_and(|trace| traces(trace, tracer));
        if traced_by_me {
            mine.push(task.clone());
        }
        !traced_by_me
    });
    for task in mine {
        if task
            .ptrace
            .lock()
            .as_ref()
            .is_some_and(|trace| trace.options & api::PTRACE_O_EXITKILL != 0)
        {
            task.process().kill(SIGKILL);
        }
        detach(&task, 0);
    }
}

pub(super) fn traces(trace: &PtraceState, tracer: &Task) -> bool {
    trace
        .tracer
        .as_ref()
        .is_some_and(|weak| core::ptr::eq(weak.as_ptr(), tracer))
}

/// Reports the end of a thread that is traced. If it is its process's first, its tracer is told
/// when the whole process has ended.
pub(crate) fn on_tracee_exit(task: &Arc<Task>, status: i32) {
    if task.tid() != task.pid().leader() {
        report_exit(task, status);
    }
}

/// Reports an end to the tracer; to the parent, if the tracer has ended or detached meanwhile.
fn report_exit(task: &Arc<Task>, status: i32) {
    let tracer = {
        let mut trace = task.ptrace.lock();
        let trace = trace.as_mut().and_then(|trace| {
            trace
                .tracer
                .as_ref()?
                .upgrade()
                .map(|tracer| (trace, tracer))
        });
        // Whoever detaches from now on finds it here, and tells the parent.
        trace.map(|(trace, tracer)| {
            trace.exit_status = Some(status);
            tracer
        })
    };
    let Some(tracer) = tracer else {
        return notify_real_parent(task, status);
    };
    let (code, value) = sigchld_code_and_status(status);
    notify_tracer(&tracer, task, code, value);
}

/// Returns what reports the end of a process to its tracer, if that is not its parent and so is
/// told first.
pub(crate) fn defer_exit_report(process: &Arc<Process>) -> Option<impl FnOnce(i32) + use<>> {
    let leader = process.traced_leader.lock().upgrade()?;
    let tracer = tracer_of(&leader)?;
    if tracer.pid() == process.parent() {
        untrace(&leader);
        return None;
    }
    Some(move |status| report_exit(&leader, status))
}

/// Ends the tracing of the thread whose number the calling thread has taken over, because it runs
/// another program: no end is reported.
pub(crate) fn replace_leader(task: &Task) {
    let process = task.process();
    let leader = core::mem::take(&mut *process.traced_leader.lock());
    if let Some(leader) = leader
        .upgrade()
        .filter(|leader| !core::ptr::eq(&**leader, task))
    {
        untrace(&leader);
    }
    if let Some(tracer) = tracer_of(task)
        && let Some(me) = tracer
            .process()
            .tracees
            .lock()
            .iter()
            .find(|other| core::ptr::eq(&***other, task))
    {
        *process.traced_leader.lock() = Arc::downgrade(me);
    }
}

/// News of a thread for its tracer.
pub(crate) struct TraceeStatus {
    pub(crate) task: Arc<Task>,
    pub(crate) status: i32,
    pub(crate) code: i32,
    pub(crate) value: i32,
}

impl TraceeStatus {
    /// Looks for news of those threads for which `which` holds that a process traces, or only
    /// `thread` of it. With `keep` the next one who asks is told, too; with `ends` ends count.
    /// `Err`: there is no such thread.
    pub(crate) fn find(
        process: &Process,
        thread: Option<&Task>,
        which: impl Fn(&Task) -> bool,
        keep: bool,
        ends: bool,
    ) -> Result<Option<Self>, Errno> {
        let mut any = false;
        let mut found = None;
        {
            let mut tracees = process.tracees.lock();
            for at in 0..tracees.len() {
                let task = tracees[at].clone();
                if !which(&task) {
                    continue;
                }
                let mut trace = task.ptrace.lock();
                let Some(trace) = trace.as_mut() else {
                    continue;
                };
                if thread.is_some_and(|thread| !traces(trace, thread)) {
                    continue;
                }
                any = true;
                if let Some(status) = trace.exit_status.filter(|_| ends) {
                    let (code, value) = sigchld_code_and_status(status);
                    found = Some(Self {
                        task: task.clone(),
                        status,
                        code,
                        value,
                    });
                    if !keep {
                        (trace.exit_status, trace.tracer) = (None, None);
                        task.set_ptraced(false);
                        tracees.remove(at);
                    }
                    break;
                }
                if let Some(stop) = trace.stopped().filter(|stop| !stop.reported) {
                    stop.reported = !keep;
                    let (status, code) = (stop.code << 8 | 0x7f, sys::CLD_TRAPPED as i32);
                    found = Some(Self {
                        task: task.clone(),
                        status,
                        code,
                        value: stop.code,
                    });
                    break;
                }
            }
        }
        match found {
            Some(told) => {
                if told.code != sys::CLD_TRAPPED as i32 && !keep {
                    notify_real_parent(&told.task, told.status);
                }
                Ok(Some(told))
            }
            None if any => Ok(None),
            None => Err(Errno::ECHILD),
        }
    }
}

/// The thread that traces a child that asks for it itself: the one that made it, or the first of
/// its parent's.
pub(super) fn parent_thread(task: &Task) -> Option<Arc<Task>> {
    let process = task.process();
    let parent = process_table::find(process.parent())?;
    let maker = process
        .creator
        .upgrade()
        .filter(|maker| Arc::ptr_eq(maker.process(), &parent) && !maker.must_exit());
    maker.or_else(|| parent.find_task(|_| true))
}
