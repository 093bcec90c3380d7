//! Threads that another traces: where they stop, and how they go on (`docs/ptrace.md`). `request`
//! has the call, `attach` who traces whom, `process_vm` calls on other processes' memory.

pub mod process_vm;

mod attach;
mod request;

use alloc::boxed::Box;
use alloc::vec;

use abi::errno::Errno;
pub(crate) use attach::{
    TraceeStatus, defer_exit_report, exit_ptrace, link_child, on_tracee_exit, replace_leader,
    tracer_of, untrace,
};
use guard::fpu;
use guard::user::UserRegs;
use linux_raw_sys::{general as sys, ptrace as api};
pub use request::sys_ptrace;
use uapi::pid::Tid;
use uapi::sigframe::LastFault;
use uapi::siginfo::{SigInfo, sigmask};
use uapi::user_regs::TRAP_FLAG;

use crate::process::ptrace_state::{Event, ResumeMode, Stop, StopKind};
use crate::process::{Process, process_table, send_signal};
use crate::state::debug_registers::{Cause, DebugRegisters};
use crate::state::sighand::Room;
use crate::{SysResult, Task};

const SIGTRAP: i32 = sys::SIGTRAP as i32;
const SIGKILL: i32 = sys::SIGKILL as i32;

/// A thread's news for its tracer.
struct PtraceReport {
    kind: StopKind,
    code: i32,
    info: Option<SigInfo>,
    message: u64,
}

impl PtraceReport {
    /// Report of something that the kernel tells with a trap.
    fn trap(task: &Task, kind: StopKind, code: i32, message: u64) -> Self {
        let info = SigInfo::from_process(SIGTRAP, code, task.pid(), task.uid());
        Self {
            kind,
            code,
            info: Some(info),
            message,
        }
    }
}

/// The code of the restart that a system call asks for, if the registers show one. They are what
/// counts: a debugger that calls a function of the program forbids the restart by them, and orders
/// it when it puts them back.
fn restart_wanted(regs: &UserRegs) -> Option<Errno> {
    let result = regs.rax.cast_signed();
    let code = i32::try_from(-result).ok().map(Errno::from_raw)?;
    let codes = [
        Errno::ERESTARTSYS,
        Errno::ERESTARTNOINTR,
        Errno::ERESTARTNOHAND,
        Errno::ERESTART_RESTARTBLOCK,
    ];
    (regs.orig_rax.cast_signed() >= 0 && codes.contains(&code)).then_some(code)
}

/// Stops the calling thread until its tracer resumes it, or the tracer or the thread itself ends.
/// The registers are what the tracer leaves. Returns the signal it may have and what is known of
/// that. `None`: nobody traces it, or it has to end.
fn ptrace_stop(
    task: &Task,
    regs: &mut UserRegs,
    report: PtraceReport,
) -> Option<(i32, Option<SigInfo>)> {
    let thread = task.thread();
    let mut frame = vec![0; fpu::signal_frame_size()];
    let bases = thread.with_fpu(|state| {
        frame.copy_from_slice(state.signal_frame());
        state.bases()
    });
    let (at_end, code) = (report.kind == StopKind::ThreadExit, report.code);
    let released = || !at_end && task.must_exit();
    let tracer = {
        let mut trace = task.ptrace.lock();
        let trace = trace.as_mut().filter(|_| !released())?;
        let tracer = trace.tracer.as_ref()?.upgrade()?;
        if core::mem::take(&mut trace.trap_flag) {
            regs.rflags &= !TRAP_FLAG;
        }
        (trace.signal, trace.message, trace.resume_mode) =
            (0, report.message, ResumeMode::default());
        trace.stop = Some(Box::new(Stop {
            kind: report.kind,
            code,
            info: report.info,
            reported: false,
            listening: false,
            resumed: false,
            regs: *regs,
            frame,
            bases: bases.unwrap_or_default(),
            changed: false,
        }));
        tracer
    };
    attach::notify_tracer(&tracer, task, sys::CLD_TRAPPED as i32, code & 0x7f);
    drop(tracer);
    // A tracer that has just attached may wait for this.
    task.process().resumed.wake_all();
    let over = || {
        task.ptrace
            .lock()
            .as_ref()
            .and_then(|trace| trace.stop.as_ref())
            .is_none_or(|stop| stop.resumed)
    };
    task.process()
        .resumed
        .wait(|| (over() || released()).then_some(()));
    let (stop, signal, steps, debug) = {
        let mut trace = task.ptrace.lock();
        let trace = trace.as_mut()?;
        let debug = core::mem::take(&mut trace.debug_changed).then_some(trace.debug);
        (
            trace.stop.take()?,
            trace.signal,
            trace.resume_mode.single_step,
            debug,
        )
    };
    *regs = stop.regs;
    if let Some(debug) = debug {
        // It was checked when the tracer set it.
        thread.with_fpu(|state| {
            state
                .set_breakpoints(debug.addresses, debug.control)
                .is_ok()
        });
    }
    if stop.changed {
        thread.with_fpu(|state| {
            let read = |to: &mut [u8]| {
                to.copy_from_slice(&stop.frame);
                Ok::<(), core::convert::Infallible>(())
            };
            let Ok(()) = state.load_signal_frame(read);
            // They were checked when the tracer set them.
            let _ = state.set_bases(stop.bases);
        });
    }
    if steps {
        // The flag is set where the thread looks at signals, on its way out.
        task.signal_wake_up();
    }
    Some((signal, stop.info))
}

/// Does what a traced thread has to do before it goes on, other than to handle signals: reports the
/// stop of its process, or stops because its tracer wants it. True if it did.
pub(crate) fn handle_jobctl_trap(
    task: &Task,
    regs: &mut UserRegs,
    interrupted: &mut Option<Errno>,
) -> bool {
    let process = task.process();
    let (signal, seized) = {
        let mut trace = task.ptrace.lock();
        let Some(trace) = trace.as_mut() else {
            return false;
        };
        let stop = process.current_stop();
        let news = stop.is_some_and(|stop| stop != trace.reported_stop);
        if !news && !trace.trap_pending && !trace.notify_pending {
            return false;
        }
        (trace.trap_pending, trace.notify_pending) = (false, false);
        trace.reported_stop = stop.unwrap_or(trace.reported_stop);
        (stop.map_or(SIGTRAP, Process::signal_of_stop), trace.seized)
    };
    let report = match seized {
        true => {
            let code = signal | (api::PTRACE_EVENT_STOP as i32) << 8;
            let info = SigInfo::from_process(signal, code, task.pid(), task.uid());
            PtraceReport {
                kind: StopKind::Other,
                code,
                info: Some(info),
                message: 0,
            }
        }
        // Nothing is known of a signal: that is how tracers tell it from the stop before one.
        false => PtraceReport {
            kind: StopKind::Other,
            code: signal,
            info: None,
            message: 0,
        },
    };
    if ptrace_stop(task, regs, report).is_some() {
        *interrupted = restart_wanted(regs);
    }
    true
}

/// Stops before a signal is delivered. Returns what the thread is to handle instead: this one,
/// another, or none.
pub(crate) fn signal_delivery_stop(
    task: &Task,
    regs: &mut UserRegs,
    info: SigInfo,
    interrupted: &mut Option<Errno>,
) -> Option<SigInfo> {
    let report = PtraceReport {
        kind: StopKind::Other,
        code: info.signo,
        info: Some(info),
        message: 0,
    };
    let Some((signal, changed)) = ptrace_stop(task, regs, report) else {
        return Some(info);
    };
    *interrupted = restart_wanted(regs);
    let info = match (signal, changed) {
        (0, _) => return None,
        (SIGKILL, _) => {
            task.process().kill(SIGKILL);
            return None;
        }
        (_, Some(info)) if info.signo == signal => info,
        _ => {
            let parent = process_table::relations(task.pid()).parent;
            SigInfo::from_process(signal, sys::SI_USER as i32, parent, task.uid())
        }
    };
    let mut signals = task.signals.lock();
    if signals.blocked & sigmask(signal) != 0 {
        // It has come this far, so there is room for it.
        let _ = signals.pending.add(&info, Room::There);
        return None;
    }
    Some(info)
}

/// Stops a thread that is single-stepped before the first instruction of a handler.
pub(crate) fn stop_before_handler(task: &Task, regs: &mut UserRegs) {
    if task
        .ptrace
        .lock()
        .as_ref()
        .is_some_and(|trace| trace.resume_mode.single_step)
    {
        ptrace_stop(
            task,
            regs,
            PtraceReport::trap(task, StopKind::Other, SIGTRAP, 0),
        );
    }
}

/// Sets the trap flag of a thread that is single-stepped, the last thing before ring 3.
pub(crate) fn arm_single_step(task: &Task, regs: &mut UserRegs) {
    let mut trace = task.ptrace.lock();
    if let Some(trace) = trace.as_mut()
        && trace.resume_mode.single_step
        && regs.rflags & TRAP_FLAG == 0
    {
        regs.rflags |= TRAP_FLAG;
        trace.trap_flag = true;
    }
}

fn value(result: SysResult) -> u64 {
    result.map_or_else(
        |error| i64::from(-error.raw()).cast_unsigned(),
        |value| value as u64,
    )
}

/// How the tracer of a thread let it go on; freely, if it is not traced.
fn resume_mode(task: &Task) -> ResumeMode {
    task.ptrace
        .lock()
        .as_ref()
        .map_or(ResumeMode::default(), |trace| trace.resume_mode)
}

/// Stops a thread before or after a system call.
fn syscall_stop(task: &Task, regs: &mut UserRegs, kind: StopKind) {
    let marked = task
        .ptrace
        .lock()
        .as_ref()
        .is_some_and(|trace| trace.options & api::PTRACE_O_TRACESYSGOOD != 0);
    let code = if marked { SIGTRAP | 0x80 } else { SIGTRAP };
    let message = if kind == StopKind::SyscallEntry {
        api::PTRACE_EVENTMSG_SYSCALL_ENTRY
    } else {
        api::PTRACE_EVENTMSG_SYSCALL_EXIT
    };
    if let Some((signal @ 1.., _)) = ptrace_stop(
        task,
        regs,
        PtraceReport::trap(task, kind, code, message.into()),
    ) {
        send_signal::send_task(task, SigInfo::kernel(signal));
    }
}

/// Runs a system call of a thread that is traced, with its syscall-stops.
#[cold]
pub(crate) fn run_traced_syscall(
    task: &Task,
    regs: &mut UserRegs,
    run: impl FnOnce(&Task, &mut UserRegs) -> SysResult,
) -> SysResult {
    let before = resume_mode(task);
    regs.rax = value(Err(Errno::ENOSYS));
    if before.syscall || before.sysemu {
        syscall_stop(task, regs, StopKind::SyscallEntry);
        if task.must_exit() {
            return Ok(0);
        }
    }
    let number = regs.orig_rax;
    if !before.sysemu && number.cast_signed() >= 0 {
        regs.rax = value(run(task, regs));
        regs.orig_rax = match number as u32 {
            sys::__NR_rt_sigreturn => u64::MAX,
            // The new program's are told with the number, too.
            _ => number,
        };
    }
    if task.must_exit() {
        return Ok(0);
    }
    let after = resume_mode(task);
    if after.single_step && !before.sysemu {
        // The instruction does not trap by itself: the flag is not in force in the kernel.
        send_signal::force(
            task,
            SigInfo::fault(SIGTRAP, sys::TRAP_BRKPT as i32, regs.rip),
            LastFault::default(),
        );
    } else if after.syscall {
        syscall_stop(task, regs, StopKind::SyscallExit);
    }
    match restart_wanted(regs) {
        Some(code) => Err(code),
        None => Ok(regs.rax as usize),
    }
}

/// Whether the tracer of a thread asked for stops at an event (`PTRACE_O_*`).
pub(crate) fn event_enabled(task: &Task, event: Event) -> bool {
    task.is_ptraced()
        && task
            .ptrace
            .lock()
            .as_ref()
            .is_some_and(|trace| trace.has(event))
}

/// Reports an event to the thread's tracer, if that asked for it.
pub(crate) fn report_event(task: &Task, regs: &mut UserRegs, event: Event, message: u64) {
    if !event_enabled(task, event) {
        return;
    }
    let kind = match event {
        Event::Exit => StopKind::ThreadExit,
        Event::Seccomp => StopKind::Seccomp,
        _ => StopKind::Other,
    };
    ptrace_stop(
        task,
        regs,
        PtraceReport::trap(task, kind, SIGTRAP | (event as i32) << 8, message),
    );
}

/// There was a debug exception in the thread's program, about which the processor says `status`.
pub(crate) fn debug_exception(task: &Task, status: u64) -> Option<Cause> {
    let mut trace = task.ptrace.lock();
    trace
        .as_mut()
        .map_or(&mut DebugRegisters::default(), |trace| &mut trace.debug)
        .take_cause(status)
}

/// Reports that the thread runs another program, with new registers. `former` is the number it had.
pub(crate) fn on_exec(task: &Task, regs: &mut UserRegs, former: Tid) {
    if let Some(trace) = task.ptrace.lock().as_mut() {
        trace.debug = DebugRegisters::default();
    }
    if !task.is_ptraced() {
        return;
    }
    let seized = task.ptrace.lock().as_ref().is_none_or(|trace| trace.seized);
    if event_enabled(task, Event::Exec) {
        report_event(task, regs, Event::Exec, former.raw() as u64);
    } else if !seized {
        send_signal::send_task(
            task,
            SigInfo::from_process(SIGTRAP, sys::SI_USER as i32, task.pid(), task.uid()),
        );
    }
}

/// Whether a thread is in a stop for its tracer.
pub(crate) fn is_in_ptrace_stop(task: &Task) -> bool {
    task.is_ptraced()
        && task
            .ptrace
            .lock()
            .as_mut()
            .is_some_and(|trace| trace.stopped().is_some())
}
