//! The life of a thread in user mode: in, and out again for system calls, faults and signals.

use alloc::sync::Arc;
use core::cell::Cell;
use core::sync::atomic::Ordering;

use guard::machine_check::BadPage;
use guard::timer;
use guard::trace::{Kind, Note, event};
use guard::user::{self, FastPath, Trap, UserRegs};
use linux_raw_sys::general as sys;
use task::Deadline;
use uapi::sigframe::LastFault;
use uapi::siginfo::SigInfo;
use vm::{AccessKind, AddressSpace, FaultError};

use crate::entry::dispatch;
use crate::files::read_write;
use crate::mm::oom;
use crate::process::ptrace_state::Event;
use crate::process::{core_dump, send_signal};
use crate::process_control::exit;
use crate::sched::rseq;
use crate::state::debug_registers::Cause;
use crate::{Task, current_task, ptrace, signal};

/// Bits of a page fault's error code, as handlers see it.
const PRESENT: u64 = 1;
const WRITE: u64 = 2;
const USER: u64 = 4;
const EXEC: u64 = 16;
/// The vector of page faults.
const PAGE_FAULT: u64 = 14;
/// The vector of machine checks.
const MACHINE_CHECK: u64 = 18;
/// First and longest time between two attempts to retire a page that is in use.
const FIRST_PAUSE_NS: u64 = 1_000_000;
const LAST_PAUSE_NS: u64 = 10_000_000_000;
/// Lets one instruction pass that has a breakpoint.
const RESUME_FLAG: u64 = 0x1_0000;

/// Mean number of short calls of which one is measured, and stands for all.
const SAMPLE_PERIOD: u64 = 1024;

/// Number of short calls until the next sample: by chance, lest it is always the same one of a
/// loop.
fn random_sample_gap() -> u32 {
    (timer::tsc_unordered() >> 2) as u32 % (2 * SAMPLE_PERIOD as u32)
}

/// Runs a task in the calling kernel thread until it ends. Its address space and the registers are
/// set up.
pub(crate) fn run(task: &Arc<Task>, mut regs: UserRegs) {
    let thread = task.thread().clone();
    // Whatever was sent before the thread could be interrupted is looked at first.
    thread.set_signal_pending();
    rseq::start_program(task);
    thread.end_system_time();
    let mut interrupted = None;
    let mut fast_path = FastPath {
        calls: &[],
        context: &**task,
        stop: thread.pending_work(),
        left: Cell::new(random_sample_gap()),
    };
    loop {
        let has_pending_work = interrupted.is_some() || thread.is_signal_pending();
        if has_pending_work && signal::handle_pending_work(task, &mut regs, interrupted.take()) {
            break;
        }
        let is_notified = thread.take_notify_resume();
        if is_notified {
            oom::relieve(task);
        }
        if is_notified || has_pending_work {
            // Calls that somebody looks at take the slow path. Whoever begins or ends that makes
            // all threads come by here, so that nobody asks on the way of a call.
            task.process().update_recording();
            fast_path.calls = if task.process().has_syscall_trace()
                || task.has_syscall_work.load(Ordering::Relaxed)
                || task.is_ptraced()
            {
                &[]
            } else {
                &dispatch::FAST_PATHS
            };
        }
        if thread.take_rseq_event() {
            rseq::handle_notify_resume(task, &mut regs);
            continue;
        }
        match user::enter(&mut regs, &fast_path) {
            Trap::Syscall => {
                let result = if fast_path.left.get() == u32::MAX {
                    let calls = if dispatch::has_fast_path(&regs) {
                        SAMPLE_PERIOD
                    } else {
                        1
                    };
                    fast_path.left.set(random_sample_gap());
                    let result = task.account_sampled_system_time(calls, || {
                        dispatch::slow_path(task, &mut regs)
                    });
                    read_write::account_sampled_io(task, &regs, &result, calls);
                    result
                } else {
                    task.account_system_time(|| dispatch::slow_path(task, &mut regs))
                };
                regs.rax = match result {
                    Ok(value) => value as u64,
                    Err(e) => {
                        if e.is_restart() {
                            interrupted = Some(e);
                        }
                        i64::from(-e.raw()).cast_unsigned()
                    }
                };
            }
            Trap::PageFault {
                addr,
                write,
                exec,
                present,
            } => {
                task.faults
                    .store(task.faults.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                thread.take_descheduled();
                thread.begin_system_time();
                handle_page_fault(task, &regs, addr, write, exec, present);
                thread.end_system_time();
                // Others may have run here while the page was fetched.
                if thread.take_descheduled() {
                    thread.set_rseq_event();
                }
            }
            Trap::Exception { vector, code } => handle_exception(task, &mut regs, vector, code),
            Trap::MemoryError(page) => handle_memory_error(task, page),
            Trap::Interrupt => {}
        }
    }
    core_dump::wait_at_exit(task, &regs);
    ptrace::report_event(task, &mut regs, Event::Exit, exit::exit_status(task) as u64);
    exit::do_exit(task);
}

fn handle_fault(space: &AddressSpace, addr: usize, access: AccessKind) -> Result<(), FaultError> {
    let detail = match access {
        AccessKind::Read => 0,
        AccessKind::Write | AccessKind::Force => 1,
        AccessKind::Exec => 2,
    };
    event(Kind::FaultBegin, || Note {
        detail,
        a: addr as u64,
        b: 0,
    });
    let result = space.handle_fault(addr, access);
    event(Kind::FaultEnd, Note::default);
    result
}

/// Handles a page fault in user mode: fetches the page or sends a signal.
fn handle_page_fault(
    task: &Arc<Task>,
    regs: &UserRegs,
    addr: usize,
    write: bool,
    exec: bool,
    present: bool,
) {
    let access = if exec {
        AccessKind::Exec
    } else if write {
        AccessKind::Write
    } else {
        AccessKind::Read
    };
    let Some(space) = task.process().space() else {
        return;
    };
    let Err(error) = handle_fault(&space, addr, access) else {
        return;
    };
    let (signo, code) = match error {
        FaultError::NotMapped => (sys::SIGSEGV, sys::SEGV_MAPERR),
        FaultError::AccessDenied => (sys::SIGSEGV, sys::SEGV_ACCERR),
        FaultError::BeyondEof => (sys::SIGBUS, sys::BUS_ADRERR),
        FaultError::NoMemory => return oom::out_of_memory(task),
    };
    let bits = [(present, PRESENT), (write, WRITE), (exec, EXEC)];
    let err = bits.iter().filter(|b| b.0).fold(USER, |all, b| all | b.1);
    let fault = LastFault {
        trapno: PAGE_FAULT,
        err,
        cr2: addr as u64,
    };
    log::debug!(
        "{} faults at {:#x}: {error:?} {access:?} of {addr:#x}",
        task.tid(),
        regs.rip
    );
    send_signal::force(
        task,
        SigInfo::fault(signo as i32, code as i32, addr as u64),
        fault,
    );
}

/// The `si_code` of an exception of x87 (16) or SSE (19): by what has happened and is not masked,
/// in Linux' order. `None`: nothing.
fn arithmetic_code(task: &Task, vector: u8) -> Option<u32> {
    let happened = task.thread().with_fpu(|state| {
        let frame = state.signal_frame();
        let word = |at: usize| u16::from_le_bytes([frame[at], frame[at + 1]]);
        // Control and status word of x87, or MXCSR with both.
        if vector == 16 {
            word(2) & !word(0)
        } else {
            word(24) & !(word(24) >> 7)
        }
    })?;
    let codes = [
        (0x01, sys::FPE_FLTINV),
        (0x04, sys::FPE_FLTDIV),
        (0x08, sys::FPE_FLTOVF),
        (0x12, sys::FPE_FLTUND),
        (0x20, sys::FPE_FLTRES),
    ];
    codes
        .into_iter()
        .find(|(bits, _)| happened & bits != 0)
        .map(|(_, code)| code)
}

/// The `si_code` of a debug exception, which goes on behind a breakpoint's instruction. `None`:
/// nobody wants to know.
fn debug_exception(task: &Task, regs: &mut UserRegs, status: u64) -> Option<u32> {
    let cause = ptrace::debug_exception(task, status)?;
    if cause == (Cause::Hit { breakpoint: true }) {
        regs.rflags |= RESUME_FLAG;
    }
    Some(match cause {
        Cause::Step => sys::TRAP_TRACE,
        Cause::Hit { .. } => sys::TRAP_HWBKPT,
        Cause::Instruction => sys::TRAP_BRKPT,
    })
}

/// Handles an exception in user mode other than a page fault: sends the signal it stands for.
#[cold]
#[inline(never)]
fn handle_exception(task: &Arc<Task>, regs: &mut UserRegs, vector: u8, mut code: u64) {
    let (signo, si_code, addr) = match vector {
        0 => (sys::SIGFPE, sys::FPE_INTDIV, regs.rip),
        1 => {
            let Some(si_code) = debug_exception(task, regs, core::mem::take(&mut code)) else {
                return;
            };
            (sys::SIGTRAP, si_code, regs.rip)
        }
        3 => (sys::SIGTRAP, sys::SI_KERNEL, 0),
        4 => (sys::SIGSEGV, sys::SI_KERNEL, 0),
        6 => (sys::SIGILL, sys::ILL_ILLOPN, regs.rip),
        16 | 19 => {
            let Some(si_code) = arithmetic_code(task, vector) else {
                return;
            };
            (sys::SIGFPE, si_code, regs.rip)
        }
        17 => (sys::SIGBUS, sys::BUS_ADRALN, regs.rip),
        12 => (sys::SIGBUS, sys::SI_KERNEL, 0),
        _ => (sys::SIGSEGV, sys::SI_KERNEL, 0),
    };
    let fault = LastFault {
        trapno: u64::from(vector),
        err: code,
        cr2: 0,
    };
    send_signal::force(
        task,
        SigInfo::fault(signo as i32, si_code as i32, addr),
        fault,
    );
}

/// Whether a page of the machine's is this one.
#[cfg(target_os = "none")]
fn is_same(bad: BadPage, page: &vm::Page) -> bool {
    bad.is(page)
}

/// Never: on the host there are no pages of the machine's.
#[cfg(not(target_os = "none"))]
fn is_same(_: BadPage, _: &vm::Page) -> bool {
    false
}

/// Handles an uncorrected error in a page that the program has used: tells it, as Linux does, and
/// sees to it that the page is not used again once it is free. It stays mapped, for a fresh one in
/// its place would be wrong without anybody's knowing.
#[cold]
#[inline(never)]
fn handle_memory_error(task: &Arc<Task>, page: BadPage) {
    let space = task.process().space();
    let found = space.and_then(|space| space.address_of(|other| is_same(page, other)));
    let addr = found.unwrap_or_default() as u64;
    log::error!(
        "{} has met an uncorrected error in memory at {addr:#x}",
        task.tid()
    );
    let fault = LastFault {
        trapno: MACHINE_CHECK,
        err: 0,
        cr2: addr,
    };
    send_signal::force(
        task,
        SigInfo::memory_error(sys::BUS_MCEERR_AR as i32, addr),
        fault,
    );
    // Without memory for a thread the page stays in use.
    let _ = task::spawn("retire", None, move || {
        let mut pause = FIRST_PAUSE_NS;
        while !page.retire() {
            task::sleep_until(Deadline::after_ns(pause));
            pause = (2 * pause).min(LAST_PAUSE_NS);
        }
        log::warn!("a page with an uncorrected error is not used any more");
    });
}

/// Handles a page fault of the kernel itself at a user address. True: the page is there now.
pub(crate) fn handle_kernel_fault(addr: usize, write: bool) -> bool {
    let Some(task) = current_task() else {
        return false;
    };
    let Some(space) = task.process().space() else {
        return false;
    };
    match handle_fault(
        &space,
        addr,
        if write {
            AccessKind::Write
        } else {
            AccessKind::Read
        },
    ) {
        Ok(()) => true,
        Err(FaultError::NoMemory) => {
            oom::out_of_memory(&task);
            !task.must_exit()
        }
        Err(_) => false,
    }
}
