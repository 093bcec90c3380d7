//! Signals: delivery, handlers and masks. Sending is `process::send_signal`, waiting for one is in
//! `sigwait`.

pub mod kill;
pub mod restart_syscall;
pub mod signalfd;
pub mod sigwait;

use alloc::sync::Arc;
use core::sync::atomic::{AtomicI32, Ordering};

use abi::errno::Errno;
use guard::fpu;
use guard::user::UserRegs;
use linux_raw_sys::general as sys;
use uapi::sigframe::{self, AltStack, Frame, LastFault, UContext};
use uapi::siginfo::{
    self, DefaultAction, NSIG, SigInfo, SigSet, UNBLOCKABLE, default_action, sigmask,
};
use uapi::user_addr::UserAddr;

use crate::process::{self, Process, core_dump, process_table, send_signal};
use crate::sched::rseq;
use crate::state::ratelimit::LogLimit;
use crate::state::sighand::{SIG_DFL, SIG_IGN, SigAction};
use crate::uaccess::{self, UserPtr};
use crate::{SysResult, Task, ptrace};

const SIGSTOP: i32 = sys::SIGSTOP as i32;
const SIGSEGV: i32 = sys::SIGSEGV as i32;
/// Flags of an action that are kept; others are ignored (`SA_*`).
const KNOWN_FLAGS: u64 = (sys::SA_NOCLDSTOP
    | sys::SA_NOCLDWAIT
    | sys::SA_SIGINFO
    | sys::SA_EXPOSE_TAGBITS
    | sys::SA_RESTORER
    | sys::SA_ONSTACK
    | sys::SA_RESTART
    | sys::SA_NODEFER
    | sys::SA_RESETHAND) as u64;

/// Does the pending work of a thread before it goes on in user mode: it ends, stops, or handles
/// signals. `interrupted` is the result of a system call that a signal interrupted. True: the
/// thread ends.
pub(crate) fn handle_pending_work(
    task: &Arc<Task>,
    regs: &mut UserRegs,
    mut interrupted: Option<Errno>,
) -> bool {
    let process = task.process();
    task.thread().clear_signal_pending();
    loop {
        if task.must_exit() {
            return true;
        }
        if !task.is_ptraced() {
            process.wait_while_stopped(task);
        }
        if task.must_exit() {
            return true;
        }
        if task.is_ptraced() && ptrace::handle_jobctl_trap(task, regs, &mut interrupted) {
            continue;
        }
        // Looked at where it is: it is large.
        let mut info = dequeue_next(task);
        if task.is_ptraced()
            && let Some(arrived) = info
        {
            info = ptrace::signal_delivery_stop(task, regs, arrived, &mut interrupted);
            if info.is_none() {
                continue;
            }
        }
        let Some(info) = &info else { break };
        let signo = info.signo;
        let action = process.action(signo);
        match action.handler {
            SIG_IGN => {}
            SIG_DFL => match default_action(signo) {
                DefaultAction::Ignore => {}
                DefaultAction::Stop => {
                    let group = process_table::relations(process.pid()).group;
                    let jobs: &dyn fs::tty::JobControl = &process_table::TtyJobControl;
                    if signo == SIGSTOP || !jobs.is_orphaned(group.as_u32()) {
                        process.stop(signo);
                    }
                }
                DefaultAction::Terminate => {
                    if siginfo::dumps_core(signo) {
                        let fault = task.signals.lock().last_fault;
                        let origin = format_args!("at {:#x}, address {:#x}", regs.rip, fault.cr2);
                        process::log_fatal_signal(process, signo, origin);
                        if PRINT_FATAL_SIGNALS.load(Ordering::Relaxed) != 0 {
                            print_fatal_signal(process, signo);
                        }
                        core_dump::dump_and_kill(task, regs, info);
                    } else {
                        process.kill(signo);
                    }
                }
            },
            _ => {
                if let Some(code) = interrupted.take() {
                    let again = code == Errno::ERESTARTNOINTR
                        || code == Errno::ERESTARTSYS && action.has(sys::SA_RESTART);
                    if again {
                        rewind_to_syscall(regs, regs.orig_rax);
                    } else {
                        regs.rax = i64::from(-Errno::EINTR.raw()).cast_unsigned();
                    }
                }
                if action.has(sys::SA_RESETHAND) {
                    process.sighand().set(
                        signo,
                        SigAction {
                            handler: SIG_DFL,
                            ..action
                        },
                    );
                }
                rseq::handle_notify_resume(task, regs);
                if setup_handler_frame(task, regs, info, &action).is_err() {
                    force_sigsegv(task, regs, signo);
                } else if task.is_ptraced() {
                    ptrace::stop_before_handler(task, regs);
                }
            }
        }
    }
    if let Some(code) = interrupted {
        let number = if code == Errno::ERESTART_RESTARTBLOCK {
            u64::from(sys::__NR_restart_syscall)
        } else {
            regs.orig_rax
        };
        rewind_to_syscall(regs, number);
    }
    let mut signals = task.signals.lock();
    if let Some(mask) = signals.saved_sigmask.take() {
        task.block(signals, mask);
    } else {
        drop(signals);
    }
    if task.is_ptraced() {
        ptrace::arm_single_step(task, regs);
    }
    false
}

/// Makes the program execute its SYSCALL instruction, which is two bytes long, again.
fn rewind_to_syscall(regs: &mut UserRegs, number: u64) {
    regs.rax = number;
    regs.rip -= 2;
}

/// `/proc/sys/kernel/print-fatal-signals`: whether it is logged, unless 0, that a process ends by a
/// signal for which it could leave a core dump.
pub(crate) static PRINT_FATAL_SIGNALS: AtomicI32 = AtomicI32::new(0);

/// Logs that a process ends by a signal, in Linux's words.
#[cold]
fn print_fatal_signal(process: &Process, signo: i32) {
    static LIMIT: LogLimit = LogLimit::new();
    if LIMIT.allows("print_fatal_signal") {
        let (pid, name) = (process.pid(), process.name());
        log::info!("{name}/{pid}: potentially unexpected fatal signal {signo}.");
    }
}

/// Removes the next signal that the thread has to handle.
fn dequeue_next(task: &Task) -> Option<SigInfo> {
    let (own, wanted) = {
        let mut signals = task.signals.lock();
        let wanted = !signals.blocked;
        (signals.pending.dequeue(wanted), wanted)
    };
    own.or_else(|| task.process().pending.lock().dequeue(wanted))
        .map(|info| task.taken(info))
}

/// Sends `SIGSEGV` to a thread without room for a handler's frame; its handler may have a stack of
/// its own, and no second chance.
#[cold]
fn force_sigsegv(task: &Task, regs: &UserRegs, signo: i32) {
    if signo == SIGSEGV {
        process::log_fatal_signal(
            task.process(),
            SIGSEGV,
            format_args!("no room for the frame of {}", siginfo::name(signo)),
        );
        core_dump::dump_and_kill(task, regs, &SigInfo::kernel(SIGSEGV));
    } else {
        send_signal::force(task, SigInfo::kernel(SIGSEGV), LastFault::default());
    }
}

/// Makes the thread run a handler. After an error nothing has changed.
#[inline(never)]
fn setup_handler_frame(
    task: &Task,
    regs: &mut UserRegs,
    info: &SigInfo,
    action: &SigAction,
) -> Result<(), Errno> {
    if !action.has(sys::SA_RESTORER) {
        return Err(Errno::EFAULT);
    }
    let own = if action.has(sys::SA_NODEFER) {
        0
    } else {
        sigmask(info.signo)
    };
    let (stack, mask, fault) = {
        let signals = task.signals.lock();
        (
            signals.alt_stack,
            signals.saved_sigmask.unwrap_or(signals.blocked),
            signals.last_fault,
        )
    };
    let on_stack = stack.contains(regs.rsp);
    let alternate = (action.has(sys::SA_ONSTACK) && stack.enabled() && !on_stack).then_some(&stack);
    let mut shown = stack;
    shown.flags |= if on_stack { AltStack::ONSTACK } else { 0 };
    let size = fpu::signal_frame_size();
    let placement = sigframe::place_frame(regs.rsp, alternate, size).ok_or(Errno::EFAULT)?;
    let fpu = UserAddr::from(placement.fpu);
    while let Some(Err(_)) = task
        .thread()
        .with_loaded_fpu(|state, irqs| state.store_signal_frame(fpu.raw(), irqs))
    {
        uaccess::fault_in_writeable(fpu, size)?;
    }
    let frame = Frame::new(regs, placement, action.restorer, info, shown, mask, fault);
    UserPtr::new(placement.frame.into()).write(&frame)?;
    let mut signals = task.signals.lock();
    signals.saved_sigmask = None;
    signals.blocked |= (action.mask | own) & !UNBLOCKABLE;
    // Handlers that jump out never come back to the alternate stack.
    if stack.flags & sys::SS_AUTODISARM != 0 {
        signals.alt_stack = AltStack::none();
    }
    drop(signals);
    sigframe::enter_handler(regs, placement, action.handler, info.signo);
    Ok(())
}

/// `rt_sigreturn(2)`: what the frame on the stack says becomes true again. The result is the
/// accumulator's old value.
pub fn sys_rt_sigreturn(task: &Task, regs: &mut UserRegs) -> SysResult {
    // The handler's return took the first word.
    let addr = UserAddr::from(regs.rsp.wrapping_sub(8));
    let restored = restore(task, regs, addr);
    if restored.is_err() {
        send_signal::force(task, SigInfo::kernel(SIGSEGV), LastFault::default());
        return Ok(regs.rax as usize);
    }
    Ok(regs.rax as usize)
}

fn restore(task: &Task, regs: &mut UserRegs, addr: UserAddr) -> Result<(), Errno> {
    UserPtr::<UContext>::new(addr.wrapping_add(Frame::UCONTEXT))
        .with(|frame| restore_frame(task, regs, frame))?
}

#[inline(always)]
fn restore_frame(task: &Task, regs: &mut UserRegs, frame: &UContext) -> Result<(), Errno> {
    if frame.fpu() != 0 {
        let from = UserAddr::from(frame.fpu());
        while let Some(Err(_)) = task
            .thread()
            .with_loaded_fpu(|state, irqs| state.take_signal_frame(from.raw(), irqs))
        {
            uaccess::fault_in_readable(from, fpu::signal_frame_size())?;
        }
    }
    frame.restore(regs);
    let stack = frame.stack();
    let mut signals = task.signals.lock();
    signals.alt_stack = stack.with_flags(stack.flags & !AltStack::ONSTACK);
    task.block(signals, frame.mask());
    Ok(())
}

/// `sigaltstack(2)`: sets and stores the alternate signal stack.
pub fn sys_sigaltstack(
    task: &Task,
    regs: &mut UserRegs,
    new: UserPtr<AltStack>,
    old: UserPtr<AltStack>,
) -> SysResult {
    let new = new.read_optional()?;
    let mut current = task.signals.lock().alt_stack;
    let on_stack = current.contains(regs.rsp);
    if let Some(stack) = new {
        if on_stack {
            return Err(Errno::EPERM);
        }
        let stack = match stack.flags & !sys::SS_AUTODISARM {
            0 | AltStack::ONSTACK if stack.size < sys::MINSIGSTKSZ.into() => {
                return Err(Errno::ENOMEM);
            }
            0 | AltStack::ONSTACK => stack.with_flags(stack.flags & sys::SS_AUTODISARM),
            AltStack::DISABLE => AltStack::none(),
            _ => return Err(Errno::EINVAL),
        };
        task.signals.lock().alt_stack = stack;
    }
    if on_stack {
        current.flags |= AltStack::ONSTACK;
    }
    old.write_optional(&current)?;
    Ok(0)
}

/// `rt_sigaction(2)`: sets and stores the action on a signal.
pub fn sys_rt_sigaction(
    task: &Task,
    signal: i32,
    new: UserPtr<SigAction>,
    old: UserPtr<SigAction>,
    size: usize,
) -> SysResult {
    if size != size_of::<SigSet>() {
        return Err(Errno::EINVAL);
    }
    let new = new.read_optional()?;
    if !(1..=NSIG).contains(&signal) || new.is_some() && sigmask(signal) & UNBLOCKABLE != 0 {
        return Err(Errno::EINVAL);
    }
    let process = task.process();
    let actions = process.sighand();
    let before = actions.get(signal);
    if let Some(action) = new {
        // Flags that nobody knows are taken out, so that a program that asks sees it.
        actions.set(
            signal,
            SigAction {
                mask: action.mask & !UNBLOCKABLE,
                flags: action.flags & KNOWN_FLAGS,
                ..action
            },
        );
        if actions.is_ignored(signal) {
            // What waits is forgotten, blocked or not (POSIX).
            process.pending.lock().discard(sigmask(signal));
            for task in process.tasks() {
                task.signals.lock().pending.discard(sigmask(signal));
            }
        }
    }
    old.write_optional(&before)?;
    Ok(0)
}
