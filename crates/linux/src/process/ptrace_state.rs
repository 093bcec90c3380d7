//! What is known of a thread that is traced (`ptrace(2)`), and what signals do to it.

use alloc::boxed::Box;
use alloc::sync::Weak;
use alloc::vec::Vec;

use guard::fpu::SegmentBases;
use guard::user::UserRegs;
use linux_raw_sys::ptrace as api;
use uapi::siginfo::SigInfo;

use crate::Task;
use crate::process::Process;
use crate::state::debug_registers::DebugRegisters;

/// Events that a tracer asks for by options (`PTRACE_O_*`) with the same numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    Fork = api::PTRACE_EVENT_FORK as isize,
    Vfork = api::PTRACE_EVENT_VFORK as isize,
    Clone = api::PTRACE_EVENT_CLONE as isize,
    Exec = api::PTRACE_EVENT_EXEC as isize,
    VforkDone = api::PTRACE_EVENT_VFORK_DONE as isize,
    Exit = api::PTRACE_EVENT_EXIT as isize,
    Seccomp = api::PTRACE_EVENT_SECCOMP as isize,
}

/// In which place of its life a thread has stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum StopKind {
    /// Before a signal, or anywhere else.
    Other,
    /// Before a system call.
    SyscallEntry,
    /// A stop after a system call (`PTRACE_SYSCALL`).
    SyscallExit,
    /// Before one, because of a filter.
    Seccomp,
    /// The end of the thread: not even `SIGKILL` lets it go on, unless it is a further one.
    ThreadExit,
}

/// A ptrace-stop of a thread, from its report to its end.
pub(crate) struct Stop {
    pub(crate) kind: StopKind,
    /// Stop code, which `wait4` tells in bits 8 and above.
    pub(crate) code: i32,
    /// `siginfo_t` of the signal, if it was caused by one.
    pub(crate) info: Option<SigInfo>,
    /// Whether the tracer has been told.
    pub(crate) reported: bool,
    /// `PTRACE_LISTEN`: it stays, but tells when its process goes on.
    pub(crate) listening: bool,
    /// Whether it is over: the thread goes on, and its tracer can do no more with it.
    pub(crate) resumed: bool,
    pub(crate) regs: UserRegs,
    /// Floating-point registers as in a signal frame.
    pub(crate) frame: Vec<u8>,
    pub(crate) bases: SegmentBases,
    /// Whether the tracer has changed the registers.
    pub(crate) changed: bool,
}

/// Way in which a thread goes on after a stop.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct ResumeMode {
    /// `PTRACE_SYSCALL`: it stops before and after system calls.
    pub(crate) syscall: bool,
    /// `PTRACE_SYSEMU`: it stops before system calls, which are not done.
    pub(crate) sysemu: bool,
    /// `PTRACE_SINGLESTEP`: it stops after an instruction.
    pub(crate) single_step: bool,
}

/// State of a thread that is, or was, traced.
#[derive(Default)]
pub(crate) struct PtraceState {
    /// `None` if nobody traces it any more.
    pub(crate) tracer: Option<Weak<Task>>,
    /// Whether it is traced by `PTRACE_SEIZE`, and not by `PTRACE_ATTACH` or `PTRACE_TRACEME`.
    pub(crate) seized: bool,
    /// Options that the tracer has set (`PTRACE_O_*`).
    pub(crate) options: u32,
    /// How the tracer let it go on.
    pub(crate) resume_mode: ResumeMode,
    /// Whether it is to stop as soon as it enters the kernel (Linux: `JOBCTL_TRAP_STOP`).
    pub(crate) trap_pending: bool,
    /// Whether `SIGCONT` was sent since it last told of a stop of its process: it is to stop and
    /// tell of that, also if its tracer listens only from now on (Linux: `JOBCTL_TRAP_NOTIFY`).
    pub(crate) notify_pending: bool,
    /// Number of its process's stop that the tracer has been told of.
    pub(crate) reported_stop: u32,
    /// The trap flag is the tracer's, not the program's.
    pub(crate) trap_flag: bool,
    /// Debug registers of the thread, also when nobody traces it any more, and whether the
    /// tracer has changed that in this stop.
    pub(crate) debug: DebugRegisters,
    pub(crate) debug_changed: bool,
    /// Value of the last event, which `PTRACE_GETEVENTMSG` returns.
    pub(crate) message: u64,
    /// The signal that its tracer lets it have after the stop.
    pub(crate) signal: i32,
    pub(crate) stop: Option<Box<Stop>>,
    /// Wait status, once the thread has ended and until its tracer has been told.
    pub(crate) exit_status: Option<i32>,
}

impl PtraceState {
    /// Stop that the thread is in, until its tracer resumes it.
    pub(crate) fn stopped(&mut self) -> Option<&mut Stop> {
        self.stop.as_deref_mut().filter(|stop| !stop.resumed)
    }

    pub(crate) fn has(&self, event: Event) -> bool {
        self.options & 1 << event as u32 != 0
    }

    /// Resumes the thread, with a signal or without (0).
    pub(crate) fn resume(&mut self, mode: ResumeMode, signal: i32) {
        (self.resume_mode, self.signal) = (mode, signal);
        if let Some(stop) = &mut self.stop {
            stop.resumed = true;
        }
    }
}

/// Tells tracers that wait for it that `SIGCONT` was sent to a process, or that it goes on.
pub(crate) fn on_sigcont(process: &Process) {
    for task in process.tasks().iter().filter(|task| task.is_ptraced()) {
        let mut trace = task.ptrace.lock();
        let Some(trace) = trace.as_mut().filter(|trace| trace.seized) else {
            continue;
        };
        trace.notify_pending = true;
        if let Some(stop) = trace.stopped().filter(|stop| stop.listening) {
            stop.resumed = true;
        }
        task.signal_wake_up();
    }
    process.resumed.wake_all();
}

/// Ends the stops of the threads of a process that `SIGKILL` was sent to.
pub(crate) fn on_sigkill(process: &Process) {
    for task in process.tasks().iter().filter(|task| task.is_ptraced()) {
        if let Some(trace) = task.ptrace.lock().as_mut() {
            trace.resume(ResumeMode::default(), 0);
        }
    }
}
