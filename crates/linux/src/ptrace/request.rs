//! `ptrace(2)`.

use alloc::sync::Arc;
use alloc::vec;
use core::sync::atomic::Ordering;

use abi::errno::Errno;
use linux_raw_sys::{general as sys, ptrace as api};
use uapi::pid::Tid;
use uapi::siginfo::{NSIG, SigInfo, UNBLOCKABLE};
use uapi::user_regs::{self, UserRegsStruct};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::attach;
use crate::process::ptrace_state::{PtraceState, ResumeMode, Stop, StopKind};
use crate::process::{access, process_table, send_signal};
use crate::ptrace::attach::AttachMode;
use crate::state::credentials::TraceCreds;
use crate::state::seccomp::SeccompFilter;
use crate::uaccess::{self, UserPtr};
use crate::uio::IoVec;
use crate::{SysResult, Task, current_task};

/// `PTRACE_O_*` there are; not `PTRACE_O_SUSPEND_SECCOMP`.
const OPTIONS: usize = (api::PTRACE_O_TRACESYSGOOD
    | api::PTRACE_O_TRACEFORK
    | api::PTRACE_O_TRACEVFORK
    | api::PTRACE_O_TRACECLONE
    | api::PTRACE_O_TRACEEXEC
    | api::PTRACE_O_TRACEVFORKDONE
    | api::PTRACE_O_TRACEEXIT
    | api::PTRACE_O_TRACESECCOMP
    | api::PTRACE_O_EXITKILL) as usize;
const NT_PRSTATUS: usize = 1;
const NT_PRFPREG: usize = 2;
const NT_X86_XSTATE: usize = 0x202;
/// Size of `struct user_fpregs_struct`, in bytes.
const FPREGS: usize = 512;
const ARCH_SET_GS: usize = 0x1001;
const ARCH_SET_FS: usize = 0x1002;
const ARCH_GET_FS: usize = 0x1003;
const ARCH_GET_GS: usize = 0x1004;
const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;
const WORD: usize = size_of::<u64>();

fn options(data: usize) -> Result<u32, Errno> {
    if data & !OPTIONS != 0 {
        Err(Errno::EINVAL)
    } else {
        Ok(data as u32)
    }
}

/// The caller's child that asks to be traced by its parent.
fn trace_me(task: &Task) -> SysResult {
    let me = current_task().ok_or(Errno::ESRCH)?;
    let tracer = attach::parent_thread(task).ok_or(Errno::EPERM)?;
    if !tracer.cred().may_trace_child(&task.cred()) {
        return Err(Errno::EPERM);
    }
    attach::link(&tracer, &me, AttachMode::Attach, 0).map(|()| 0)
}

fn attach(tid: Tid, mode: AttachMode, options: u32) -> SysResult {
    let me = current_task().ok_or(Errno::ESRCH)?;
    let target = process_table::find_task(tid).ok_or(Errno::ESRCH)?;
    let process = target.process();
    if Arc::ptr_eq(process, me.process()) || process.is_exiting() {
        return Err(Errno::EPERM);
    }
    let was_stopped = loop {
        access::check_trace_access(&me, process, TraceCreds::Real)?;
        let was_stopped = target.in_group_stop.load(Ordering::SeqCst);
        match attach::link(&me, &target, mode, options) {
            // It may be somebody else's when that is over.
            Err(Errno::EAGAIN) => {
                let over = || (!target.in_execve.load(Ordering::Relaxed)).then_some(());
                let waited = process.execve_over.wait_interruptible(None, over);
                waited.map_err(|_| Errno::ERESTARTNOINTR)?;
            }
            done => break done.map(|()| was_stopped)?,
        }
    };
    if mode == AttachMode::Attach {
        send_signal::send_task(&target, SigInfo::kernel(sys::SIGSTOP as i32));
    }
    if was_stopped {
        attach::wait_for_trap(&target);
    }
    Ok(0)
}

/// Runs a function on the stop of a thread that the caller traces.
fn with_stop<R>(
    target: &Task,
    act: impl FnOnce(&mut PtraceState) -> Result<R, Errno>,
) -> Result<R, Errno> {
    let me = current_task().ok_or(Errno::ESRCH)?;
    let mut trace = target.ptrace.lock();
    let trace = trace
        .as_mut()
        .filter(|trace| attach::traces(trace, &me))
        .ok_or(Errno::ESRCH)?;
    if trace.stopped().is_none_or(|stop| stop.listening) {
        return Err(Errno::ESRCH);
    }
    act(trace)
}

fn stop(trace: &mut PtraceState) -> Result<&mut Stop, Errno> {
    trace.stopped().ok_or(Errno::ESRCH)
}

fn with_registers<R>(
    target: &Task,
    act: impl FnOnce(&mut UserRegsStruct) -> R,
) -> Result<R, Errno> {
    with_stop(target, |trace| {
        let stop = stop(trace)?;
        let mut seen = UserRegsStruct::of(&stop.regs, stop.bases);
        let result = act(&mut seen);
        let bases = seen.store(&mut stop.regs);
        stop.changed |= bases != stop.bases;
        stop.bases = bases;
        Ok(result)
    })
}

/// The bytes of a register set.
fn register_set(target: &Task, kind: usize) -> Result<vec::Vec<u8>, Errno> {
    match kind {
        NT_PRSTATUS => with_registers(target, |seen| seen.as_bytes().to_vec()),
        NT_PRFPREG => with_stop(target, |trace| {
            Ok(user_regs::xstate_regset(&stop(trace)?.frame)[..FPREGS].to_vec())
        }),
        NT_X86_XSTATE => with_stop(target, |trace| {
            Ok(user_regs::xstate_regset(&stop(trace)?.frame))
        }),
        _ => Err(Errno::EINVAL),
    }
}

fn set_register_set(target: &Task, kind: usize, bytes: &[u8]) -> Result<(), Errno> {
    match kind {
        NT_PRSTATUS if bytes.len().is_multiple_of(WORD) => with_registers(target, |seen| {
            let words = bytes
                .chunks_exact(WORD)
                .map(|word| u64::from_ne_bytes(word.try_into().unwrap_or_default()));
            if words.enumerate().all(|(i, word)| seen.set(i * WORD, word)) {
                Ok(())
            } else {
                Err(Errno::EIO)
            }
        })?,
        NT_PRFPREG | NT_X86_XSTATE => with_stop(target, |trace| {
            let stop = stop(trace)?;
            user_regs::put_extended(&mut stop.frame, bytes);
            stop.changed = true;
            Ok(())
        }),
        _ => Err(Errno::EINVAL),
    }
}

/// Registers as `PTRACE_GETREGSET` gets them: as much as both sides have.
fn get_register_set(target: &Task, kind: usize, iov: UserPtr<IoVec>) -> SysResult {
    let (mut buffer, bytes) = (iov.read()?, register_set(target, kind)?);
    let len = bytes.len().min(buffer.len as usize);
    uaccess::write_bytes(buffer.base.into(), &bytes[..len])?;
    buffer.len = len as u64;
    iov.write(&buffer).map(|()| 0)
}

/// Registers as `PTRACE_SETREGSET` sets them: as much as both sides have.
fn put_register_set(target: &Task, kind: usize, iov: UserPtr<IoVec>) -> SysResult {
    let (mut buffer, mut bytes) = (iov.read()?, register_set(target, kind)?);
    bytes.truncate(buffer.len as usize);
    uaccess::read_bytes(buffer.base.into(), &mut bytes)?;
    set_register_set(target, kind, &bytes)?;
    buffer.len = bytes.len() as u64;
    iov.write(&buffer).map(|()| 0)
}

/// A word of `struct user`, of which there are the registers, those for debugging too.
fn user_word(target: &Task, at: usize, new: Option<u64>) -> Result<u64, Errno> {
    if !at.is_multiple_of(WORD) || at >= user_regs::USER {
        return Err(Errno::EIO);
    }
    if at < size_of::<UserRegsStruct>() {
        return with_registers(target, |seen| match new {
            Some(value) if !seen.set(at, value) => Err(Errno::EIO),
            Some(_) => Ok(0),
            None => seen.get(at).ok_or(Errno::EIO),
        })?;
    }
    let debug = (user_regs::DEBUG..user_regs::DEBUG + 8 * WORD)
        .contains(&at)
        .then(|| (at - user_regs::DEBUG) / WORD);
    with_stop(target, |trace| match (debug, new) {
        (Some(number), Some(value)) => {
            trace.debug.set(number, value)?;
            trace.debug_changed = true;
            Ok(0)
        }
        (Some(number), None) => Ok(trace.debug.get(number)),
        (None, Some(_)) => Err(Errno::EIO),
        (None, None) => Ok(0),
    })
}

/// The kind of a stop, and `struct ptrace_syscall_info` of it.
fn syscall_info(trace: &mut PtraceState) -> Result<vec::Vec<u8>, Errno> {
    let message = trace.message;
    let stop = stop(trace)?;
    let (op, regs) = match stop.kind {
        StopKind::Other | StopKind::ThreadExit => (api::PTRACE_SYSCALL_INFO_NONE, &stop.regs),
        StopKind::SyscallEntry => (api::PTRACE_SYSCALL_INFO_ENTRY, &stop.regs),
        StopKind::SyscallExit => (api::PTRACE_SYSCALL_INFO_EXIT, &stop.regs),
        StopKind::Seccomp => (api::PTRACE_SYSCALL_INFO_SECCOMP, &stop.regs),
    };
    let mut info = vec![op as u8, 0, 0, 0];
    info.extend(AUDIT_ARCH_X86_64.to_ne_bytes());
    info.extend([regs.rip, regs.rsp].as_bytes());
    match stop.kind {
        StopKind::SyscallEntry | StopKind::Seccomp => {
            info.extend(
                [
                    regs.orig_rax,
                    regs.rdi,
                    regs.rsi,
                    regs.rdx,
                    regs.r10,
                    regs.r8,
                    regs.r9,
                ]
                .as_bytes(),
            );
        }
        StopKind::SyscallExit => {
            let value = regs.rax.cast_signed();
            info.extend(value.to_ne_bytes());
            info.push(u8::from((-4095..0).contains(&value)));
        }
        StopKind::Other | StopKind::ThreadExit => {}
    }
    if stop.kind == StopKind::Seccomp {
        info.extend((message as u32).to_ne_bytes());
    }
    Ok(info)
}

/// Queue, first index and number of `PTRACE_PEEKSIGINFO`: `struct ptrace_peeksiginfo_args`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct PeekSignals {
    offset: u64,
    flags: u32,
    count: i32,
}

fn peek_signals(target: &Task, args: usize, to: usize) -> SysResult {
    let args = UserPtr::<PeekSignals>::new(args.into()).read()?;
    if args.flags & !api::PTRACE_PEEKSIGINFO_SHARED != 0 || args.count < 0 {
        return Err(Errno::EINVAL);
    }
    let to = UserPtr::<SigInfo>::new(to.into());
    for done in 0..args.count as usize {
        let Some(at) = usize::try_from(args.offset)
            .ok()
            .and_then(|offset| offset.checked_add(done))
        else {
            return Ok(done);
        };
        let info = match args.flags {
            0 => target.signals.lock().pending.peek(at),
            _ => target.process().pending.lock().peek(at),
        };
        let Some(info) = info else { return Ok(done) };
        match to.add(done).write(&info) {
            Err(_) if done > 0 => return Ok(done),
            written => written?,
        }
    }
    Ok(args.count as usize)
}

/// Number and flags of `PTRACE_SECCOMP_GET_METADATA`: `struct seccomp_metadata`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct SeccompMetadata {
    filter: u64,
    flags: u64,
}

/// Refuses to tell of others' filters to who has some itself, or is no administrator.
fn check_seccomp_query() -> Result<(), Errno> {
    let caller = current_task().ok_or(Errno::ESRCH)?;
    if caller.cred().has_sys_admin() && caller.seccomp.lock().mode() == 0 {
        Ok(())
    } else {
        Err(Errno::EACCES)
    }
}

/// Runs `f` with a filter of the target's, of which number 0 was installed first.
fn with_seccomp_filter<R>(
    target: &Task,
    number: u64,
    f: impl FnOnce(&SeccompFilter) -> Result<R, Errno>,
) -> Result<R, Errno> {
    let filters = target.seccomp.lock().clone();
    let last = filters.filters().count().checked_sub(1);
    let last = last.ok_or(Errno::EINVAL)?;
    let number = usize::try_from(number).map_err(|_| Errno::ENOENT)?;
    let place = last.checked_sub(number);
    let filter = place.and_then(|place| filters.filters().nth(place));
    f(filter.ok_or(Errno::ENOENT)?)
}

/// `PTRACE_SECCOMP_GET_METADATA`: tells the flags of one filter.
fn seccomp_metadata(target: &Task, size: usize, at: usize) -> SysResult {
    check_seccomp_query()?;
    let size = size.min(size_of::<SeccompMetadata>());
    if size < WORD {
        return Err(Errno::EINVAL);
    }
    let filter = UserPtr::<u64>::new(at.into()).read()?;
    let flags = with_seccomp_filter(target, filter, |filter| Ok(filter.flags()))?;
    let metadata = SeccompMetadata { filter, flags };
    uaccess::write_bytes(at.into(), &metadata.as_bytes()[..size])?;
    Ok(size)
}

/// `PTRACE_SECCOMP_GET_FILTER`: the number of instructions of one filter, and, with an address, the
/// instructions.
fn seccomp_program(target: &Task, number: usize, to: usize) -> SysResult {
    check_seccomp_query()?;
    with_seccomp_filter(target, number as u64, |filter| {
        let code = filter.program.code();
        if to != 0 {
            let to = UserPtr::new(to.into());
            for (place, instruction) in code.iter().enumerate() {
                to.add(place).write(instruction)?;
            }
        }
        Ok(code.len())
    })
}

/// Registration that `PTRACE_GET_RSEQ_CONFIGURATION` tells: `struct ptrace_rseq_configuration`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RseqConfiguration {
    addr: u64,
    len: u32,
    signature: u32,
    flags: u32,
    padding: u32,
}

/// `PTRACE_GET_RSEQ_CONFIGURATION`: tells what the target has registered by `rseq(2)`.
fn rseq_configuration(target: &Task, size: usize, to: usize) -> SysResult {
    let registered = *target.rseq.lock();
    let configuration = RseqConfiguration {
        addr: registered.addr.raw() as u64,
        len: registered.len,
        signature: registered.signature,
        flags: 0,
        padding: 0,
    };
    let told = configuration.as_bytes();
    uaccess::write_bytes(to.into(), &told[..told.len().min(size)])?;
    Ok(told.len())
}

/// Mode in which a request lets a thread go on; `None` if it is another request.
fn resume_mode_of(request: u32) -> Option<ResumeMode> {
    let mode = ResumeMode::default();
    Some(match request {
        api::PTRACE_CONT => mode,
        api::PTRACE_SYSCALL => ResumeMode {
            syscall: true,
            ..mode
        },
        api::PTRACE_SINGLESTEP => ResumeMode {
            single_step: true,
            ..mode
        },
        api::PTRACE_SYSEMU => ResumeMode {
            sysemu: true,
            ..mode
        },
        api::PTRACE_SYSEMU_SINGLESTEP => ResumeMode {
            sysemu: true,
            single_step: true,
            ..mode
        },
        _ => return None,
    })
}

/// Resumes a stopped thread, with the signal that `data` is or without (0).
fn resume(target: &Arc<Task>, mode: ResumeMode, data: usize) -> SysResult {
    let signal = i32::try_from(data)
        .ok()
        .filter(|signal| (0..=NSIG).contains(signal))
        .ok_or(Errno::EIO)?;
    with_stop(target, |trace| {
        trace.resume(mode, signal);
        Ok(())
    })?;
    target.process().resumed.wake_all();
    Ok(0)
}

/// Handles a request to a thread that has stopped.
fn stopped_request(request: u32, target: &Arc<Task>, addr: usize, data: usize) -> SysResult {
    if let Some(mode) = resume_mode_of(request) {
        return resume(target, mode, data);
    }
    with_stop(target, |_| Ok(()))?;
    let word = UserPtr::<u64>::new(data.into());
    match request {
        api::PTRACE_PEEKTEXT | api::PTRACE_PEEKDATA => {
            let mut bytes = [0; WORD];
            target
                .process()
                .require_space()?
                .read(addr, &mut bytes)
                .map_err(|_| Errno::EIO)?;
            word.write(&u64::from_ne_bytes(bytes))?;
        }
        api::PTRACE_POKETEXT | api::PTRACE_POKEDATA => {
            target
                .process()
                .require_space()?
                .write_forced(addr, &(data as u64).to_ne_bytes())
                .map_err(|_| Errno::EIO)?;
        }
        api::PTRACE_PEEKUSR => word.write(&user_word(target, addr, None)?)?,
        api::PTRACE_POKEUSR => {
            user_word(target, addr, Some(data as u64))?;
        }
        api::PTRACE_GETREGS => {
            uaccess::write_bytes(data.into(), &register_set(target, NT_PRSTATUS)?)?;
        }
        api::PTRACE_GETFPREGS => {
            uaccess::write_bytes(data.into(), &register_set(target, NT_PRFPREG)?)?;
        }
        api::PTRACE_SETREGS | api::PTRACE_SETFPREGS => {
            let (kind, len) = match request {
                api::PTRACE_SETREGS => (NT_PRSTATUS, size_of::<UserRegsStruct>()),
                _ => (NT_PRFPREG, FPREGS),
            };
            let mut bytes = fallible::zeroed(len)?;
            uaccess::read_bytes(data.into(), &mut bytes)?;
            set_register_set(target, kind, &bytes)?;
        }
        api::PTRACE_GETREGSET => return get_register_set(target, addr, UserPtr::new(data.into())),
        api::PTRACE_SETREGSET => return put_register_set(target, addr, UserPtr::new(data.into())),
        api::PTRACE_GETSIGINFO => {
            let info = with_stop(target, |trace| stop(trace)?.info.ok_or(Errno::EINVAL))?;
            UserPtr::new(data.into()).write(&info)?;
        }
        api::PTRACE_SETSIGINFO => {
            let info = UserPtr::<SigInfo>::new(data.into()).read()?;
            with_stop(target, |trace| {
                stop(trace)?
                    .info
                    .replace(info)
                    .map(drop)
                    .ok_or(Errno::EINVAL)
            })?;
        }
        api::PTRACE_PEEKSIGINFO => return peek_signals(target, addr, data),
        api::PTRACE_GET_RSEQ_CONFIGURATION => return rseq_configuration(target, addr, data),
        api::PTRACE_SECCOMP_GET_METADATA => return seccomp_metadata(target, addr, data),
        api::PTRACE_SECCOMP_GET_FILTER => return seccomp_program(target, addr, data),
        api::PTRACE_GETSIGMASK | api::PTRACE_SETSIGMASK if addr != WORD => {
            return Err(Errno::EINVAL);
        }
        api::PTRACE_GETSIGMASK => {
            let signals = target.signals.lock();
            let mask = signals.saved_sigmask.unwrap_or(signals.blocked);
            drop(signals);
            word.write(&mask)?;
        }
        api::PTRACE_SETSIGMASK => {
            let mask = word.read()?;
            let mut signals = target.signals.lock();
            signals.saved_sigmask = None;
            signals.blocked = mask & !UNBLOCKABLE;
        }
        api::PTRACE_GETEVENTMSG => word.write(&with_stop(target, |trace| Ok(trace.message))?)?,
        api::PTRACE_GET_SYSCALL_INFO => {
            let info = with_stop(target, syscall_info)?;
            uaccess::write_bytes(data.into(), &info[..info.len().min(addr)])?;
            return Ok(info.len());
        }
        api::PTRACE_SETOPTIONS => {
            let options = options(data)?;
            with_stop(target, |trace| {
                trace.options = options;
                Ok(())
            })?;
        }
        api::PTRACE_ARCH_PRCTL => {
            let at = size_of::<UserRegsStruct>()
                - if matches!(data, ARCH_SET_FS | ARCH_GET_FS) {
                    6
                } else {
                    5
                } * WORD;
            match data {
                ARCH_SET_FS | ARCH_SET_GS => user_word(target, at, Some(addr as u64))
                    .map_err(|_| Errno::EPERM)
                    .map(drop)?,
                ARCH_GET_FS | ARCH_GET_GS => {
                    UserPtr::new(addr.into()).write(&user_word(target, at, None)?)?;
                }
                _ => return Err(Errno::EINVAL),
            }
        }
        api::PTRACE_LISTEN => {
            with_stop(target, |trace| {
                let (seized, resumed) = (trace.seized, trace.notify_pending);
                let stop = stop(trace)?;
                if !seized || stop.code >> 8 != api::PTRACE_EVENT_STOP as i32 {
                    return Err(Errno::EIO);
                }
                // SIGCONT may have come since the stop: strace hung that listened after it.
                (stop.listening, stop.resumed) = (true, resumed);
                Ok(())
            })?;
            target.process().resumed.wake_all();
        }
        api::PTRACE_DETACH => {
            let signal = i32::try_from(data)
                .ok()
                .filter(|signal| (0..=NSIG).contains(signal))
                .ok_or(Errno::EIO)?;
            attach::unlink(target);
            attach::detach(target, signal);
        }
        _ => return Err(Errno::EIO),
    }
    Ok(0)
}

/// `ptrace(2)`: traces a thread, by `PTRACE_*`.
pub fn sys_ptrace(task: &Task, request: u32, tid: Tid, addr: usize, data: usize) -> SysResult {
    match request {
        api::PTRACE_TRACEME => return trace_me(task),
        api::PTRACE_ATTACH => return attach(tid, AttachMode::Attach, 0),
        api::PTRACE_SEIZE if addr != 0 => return Err(Errno::EIO),
        api::PTRACE_SEIZE => {
            return attach(
                tid,
                AttachMode::Seize,
                options(data).map_err(|_| Errno::EIO)?,
            );
        }
        _ => {}
    }
    let target = process_table::find_task(tid).ok_or(Errno::ESRCH)?;
    let me = current_task().ok_or(Errno::ESRCH)?;
    let seized = target
        .ptrace
        .lock()
        .as_ref()
        .filter(|trace| attach::traces(trace, &me))
        .map(|trace| trace.seized);
    match (request, seized.ok_or(Errno::ESRCH)?) {
        (api::PTRACE_KILL, _) => {
            target.process().kill(sys::SIGKILL as i32);
            Ok(0)
        }
        (api::PTRACE_INTERRUPT, true) => {
            attach::request_trap(&target);
            Ok(0)
        }
        (api::PTRACE_INTERRUPT, false) => Err(Errno::EIO),
        _ => stopped_request(request, &target, addr, data),
    }
}
