//! `ptrace(2)`: every kind of stop, registers and memory of a thread that is traced, beginnings and
//! ends of tracing.

use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{fs, mem, ptr};

use anyhow::{Context, Result, bail, ensure};

use crate::{Check, checked};

pub const CHECKS: &[(&str, Check)] = &[
    ("ptrace-signals", signals),
    ("ptrace-calls", calls),
    ("ptrace-registers-and-memory", registers_and_memory),
    ("ptrace-steps", steps),
    ("ptrace-forks", forks),
    ("ptrace-a-program-begins", a_program_begins),
    ("ptrace-stops-of-a-process", stops_of_a_process),
    ("ptrace-ends", ends),
    ("ptrace-ends-of-both", ends_of_both),
    ("ptrace-threads", threads),
    ("ptrace-filters", filters),
    ("ptrace-who-may", who_may),
];

const EVENT_STOP: i32 = 128;
/// The calls of a child that has nothing else to do.
static WORD: AtomicU64 = AtomicU64::new(0x1122_3344_5566_7788);

pub(crate) fn ptrace(request: u32, pid: i32, addr: usize, data: usize) -> io::Result<i64> {
    // SAFETY: the kernel checks addresses; those that it writes to are valid for what the request
    // writes.
    let result = unsafe { libc::syscall(libc::SYS_ptrace, request, pid, addr, data) };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

pub(crate) fn traced_child(work: impl FnOnce() -> i32) -> Result<i32> {
    // SAFETY: the child only calls what is safe after a fork.
    let pid = checked(unsafe { libc::fork() })?;
    if pid == 0 {
        let traced = ptrace(libc::PTRACE_TRACEME, 0, 0, 0).is_ok();
        // SAFETY: signals itself, then ends.
        unsafe {
            libc::raise(libc::SIGSTOP);
            let status = if traced { work() } else { 99 };
            libc::_exit(status);
        }
    }
    stopped(pid, libc::SIGSTOP)?;
    Ok(pid)
}

pub(crate) fn wait(pid: i32, options: i32) -> Result<(i32, i32)> {
    let mut status = 0;
    // SAFETY: the word is valid.
    let pid = checked(unsafe { libc::waitpid(pid, &mut status, options) })?;
    Ok((pid, status))
}

/// Waits for a stop, with an event in the second byte of `code`.
pub(crate) fn stopped(pid: i32, code: i32) -> Result<()> {
    let (_, status) = wait(pid, libc::__WALL)?;
    ensure!(
        status == code << 8 | 0x7f,
        "status {status:#x} and not a stop by {code:#x}"
    );
    Ok(())
}

pub(crate) fn ended(pid: i32, status: i32) -> Result<()> {
    let (_, seen) = wait(pid, libc::__WALL)?;
    ensure!(
        seen == status,
        "status {seen:#x} and not the end {status:#x}"
    );
    Ok(())
}

pub(crate) fn go_on(pid: i32, signal: i32) -> Result<()> {
    ptrace(libc::PTRACE_CONT, pid, 0, signal as usize).context("PTRACE_CONT")?;
    Ok(())
}

pub(crate) fn registers(pid: i32) -> Result<libc::user_regs_struct> {
    // SAFETY: plain numbers, filled in by the kernel.
    let mut regs: libc::user_regs_struct = unsafe { mem::zeroed() };
    ptrace(libc::PTRACE_GETREGS, pid, 0, (&raw mut regs).addr()).context("PTRACE_GETREGS")?;
    Ok(regs)
}

fn set_registers(pid: i32, regs: &libc::user_regs_struct) -> Result<()> {
    ptrace(libc::PTRACE_SETREGS, pid, 0, ptr::from_ref(regs).addr()).context("PTRACE_SETREGS")?;
    Ok(())
}

pub(crate) fn info(pid: i32) -> io::Result<libc::siginfo_t> {
    // SAFETY: as above.
    let mut info: libc::siginfo_t = unsafe { mem::zeroed() };
    ptrace(libc::PTRACE_GETSIGINFO, pid, 0, (&raw mut info).addr())?;
    Ok(info)
}

fn message(pid: i32) -> Result<u64> {
    let mut word = 0u64;
    ptrace(libc::PTRACE_GETEVENTMSG, pid, 0, (&raw mut word).addr())
        .context("PTRACE_GETEVENTMSG")?;
    Ok(word)
}

pub(crate) fn options(pid: i32, options: i32) -> Result<()> {
    ptrace(
        libc::PTRACE_SETOPTIONS,
        pid,
        0,
        (options | libc::PTRACE_O_EXITKILL) as usize,
    )
    .context("PTRACE_SETOPTIONS")?;
    Ok(())
}

pub(crate) fn refused(result: io::Result<i64>, errno: i32, what: &str) -> Result<()> {
    match result {
        Err(e) if e.raw_os_error() == Some(errno) => Ok(()),
        other => bail!("{what}: {other:?}"),
    }
}

static HANDLED: AtomicU64 = AtomicU64::new(0);

extern "C" fn handler(signal: i32) {
    HANDLED.fetch_add(
        1 << (8 * (signal - libc::SIGUSR1).clamp(0, 2)),
        Ordering::SeqCst,
    );
}

fn handle(signal: i32) {
    // SAFETY: the handler only changes an atomic word.
    unsafe { libc::signal(signal, handler as extern "C" fn(i32) as usize) };
}

/// A signal is held back, exchanged, and told with what is known of it; one that is ignored is
/// told, too.
fn signals() -> Result<()> {
    let pid = traced_child(|| {
        handle(libc::SIGUSR1);
        handle(libc::SIGUSR2);
        // SAFETY: signals to itself.
        unsafe {
            libc::raise(libc::SIGUSR1);
            libc::raise(libc::SIGUSR1);
            libc::raise(libc::SIGCHLD);
        }
        i32::from(HANDLED.load(Ordering::SeqCst) != 1 << 16)
    })?;
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let me = std::process::id();
    ensure!(
        status.contains(&format!("TracerPid:\t{me}\n"))
            && status.contains("State:\tt (tracing stop)"),
        "{status}"
    );
    refused(
        ptrace(libc::PTRACE_CONT, pid, 0, 999),
        libc::EIO,
        "a wrong signal",
    )?;
    go_on(pid, 0)?;
    stopped(pid, libc::SIGUSR1)?;
    let known = info(pid)?;
    ensure!(
        // SAFETY: it is from a process.
        (known.si_signo, known.si_code, unsafe { known.si_pid() })
            == (libc::SIGUSR1, libc::SI_TKILL, pid),
        "siginfo"
    );
    go_on(pid, 0)?;
    stopped(pid, libc::SIGUSR1)?;
    go_on(pid, libc::SIGUSR2)?;
    stopped(pid, libc::SIGCHLD)?;
    refused(
        ptrace(libc::PTRACE_SYSCALL, me as i32, 0, 0),
        libc::ESRCH,
        "tracing oneself",
    )?;
    go_on(pid, libc::SIGCHLD)?;
    ended(pid, 0)?;
    refused(
        ptrace(libc::PTRACE_CONT, pid, 0, 0),
        libc::ESRCH,
        "a process that is gone",
    )
}

/// Stops before and behind calls, told as such; a call is exchanged, another suppressed, results
/// are changed.
fn calls() -> Result<()> {
    let pid = traced_child(|| {
        // SAFETY: calls without pointers.
        let results = unsafe {
            [
                libc::syscall(libc::SYS_getppid),
                libc::syscall(libc::SYS_close, -1),
                libc::syscall(libc::SYS_getuid),
            ]
        };
        i32::from(results[1..] != [77, 4321])
    })?;
    options(pid, libc::PTRACE_O_TRACESYSGOOD)?;
    let next = |place: u8| -> Result<[u64; 10]> {
        ptrace(libc::PTRACE_SYSCALL, pid, 0, 0).context("PTRACE_SYSCALL")?;
        stopped(pid, libc::SIGTRAP | 0x80)?;
        let mut words = [0u64; 11];
        let len = ptrace(
            0x420e,
            pid,
            mem::size_of_val(&words),
            words.as_mut_ptr().addr(),
        )
        .context("PTRACE_GET_SYSCALL_INFO")?;
        ensure!(
            words[0] as u8 == place && len == if place == 1 { 80 } else { 33 },
            "kind {} of {len} bytes",
            words[0] as u8
        );
        ensure!(words[0] >> 32 == 0xc000_003e, "another kind of processor");
        Ok(words[1..].try_into()?)
    };
    ensure!(next(1)?[2] == libc::SYS_getppid as u64, "not getppid");
    let mut regs = registers(pid)?;
    ensure!(
        regs.rax.cast_signed() == -i64::from(libc::ENOSYS),
        "rax {:#x} before a call",
        regs.rax
    );
    regs.orig_rax = libc::SYS_getpid as u64;
    set_registers(pid, &regs)?;
    ensure!(next(2)?[2] == pid as u64, "the exchanged call's result");
    let entry = next(1)?;
    ensure!(
        entry[2] == libc::SYS_close as u64 && entry[3] as i32 == -1,
        "close: {entry:x?}"
    );
    let mut regs = registers(pid)?;
    regs.orig_rax = u64::MAX;
    regs.rax = 77;
    set_registers(pid, &regs)?;
    ensure!(next(2)?[2] == 77, "a call was not suppressed");
    next(1)?;
    next(2)?;
    let mut regs = registers(pid)?;
    regs.rax = 4321;
    set_registers(pid, &regs)?;
    ensure!(next(1)?[2] == libc::SYS_exit_group as u64, "not exit_group");
    go_on(pid, 0)?;
    ended(pid, 0)
}

/// Registers of a core file, word by word and by set; code and data are written, also through
/// `/proc`.
fn registers_and_memory() -> Result<()> {
    let pid = traced_child(|| {
        let changed = WORD.load(Ordering::SeqCst) == 0xfeed_beef;
        i32::from(!changed) + constant() - 5
    })?;
    let regs = registers(pid)?;
    ensure!(
        regs.cs == 0x33 && regs.ss == 0x2b && regs.fs_base != 0,
        "segments {:#x} {:#x}",
        regs.cs,
        regs.ss
    );
    let peek_user = |offset: usize| -> Result<u64> {
        let mut word = 0u64;
        ptrace(libc::PTRACE_PEEKUSER, pid, offset, (&raw mut word).addr())
            .context("PTRACE_PEEKUSER")?;
        Ok(word)
    };
    ensure!(
        peek_user(16 * 8)? == regs.rip && peek_user(19 * 8)? == regs.rsp,
        "words of struct user"
    );
    refused(
        ptrace(libc::PTRACE_PEEKUSER, pid, 3, 0),
        libc::EIO,
        "an odd word",
    )?;
    refused(
        ptrace(libc::PTRACE_POKEUSER, pid, 17 * 8, 0x10),
        libc::EIO,
        "a kernel's segment",
    )?;
    let mut set = vec![0u64; 1024];
    let mut buffer = libc::iovec {
        iov_base: set.as_mut_ptr().cast(),
        iov_len: 8192,
    };
    ptrace(libc::PTRACE_GETREGSET, pid, 1, (&raw mut buffer).addr()).context("NT_PRSTATUS")?;
    ensure!(
        buffer.iov_len == 216 && set[16] == regs.rip,
        "NT_PRSTATUS has {} bytes",
        buffer.iov_len
    );
    refused(
        ptrace(libc::PTRACE_GETREGSET, pid, 0x999, (&raw mut buffer).addr()),
        libc::EINVAL,
        "an unknown set",
    )?;
    // A vector register goes round: xmm5 is 16 bytes at 160 + 5 * 16.
    let mut floating = [0u64; 64];
    ptrace(libc::PTRACE_GETFPREGS, pid, 0, floating.as_mut_ptr().addr())
        .context("PTRACE_GETFPREGS")?;
    (floating[30], floating[31]) = (0x0123_4567, 0x89ab_cdef);
    ptrace(libc::PTRACE_SETFPREGS, pid, 0, floating.as_ptr().addr()).context("PTRACE_SETFPREGS")?;
    buffer.iov_len = 8192;
    if ptrace(libc::PTRACE_GETREGSET, pid, 0x202, (&raw mut buffer).addr()).is_ok() {
        ensure!(
            set[30..32] == [0x0123_4567, 0x89ab_cdef] && set[58] & 3 == 3,
            "NT_X86_XSTATE {:x?}",
            &set[30..32]
        );
        ptrace(libc::PTRACE_SETREGSET, pid, 0x202, (&raw mut buffer).addr())
            .context("setting NT_X86_XSTATE")?;
    }
    let address = WORD.as_ptr().addr();
    let mut word = 0u64;
    ptrace(libc::PTRACE_PEEKDATA, pid, address, (&raw mut word).addr())
        .context("PTRACE_PEEKDATA")?;
    ensure!(word == 0x1122_3344_5566_7788, "{word:#x}");
    refused(
        ptrace(libc::PTRACE_PEEKDATA, pid, 8, (&raw mut word).addr()),
        libc::EIO,
        "no memory",
    )?;
    ptrace(libc::PTRACE_POKEDATA, pid, address, 0xdead_beef).context("PTRACE_POKEDATA")?;
    let memory = fs::File::options()
        .read(true)
        .write(true)
        .open(format!("/proc/{pid}/mem"))?;
    let mut bytes = [0; 8];
    memory.read_exact_at(&mut bytes, address as u64)?;
    ensure!(
        u64::from_ne_bytes(bytes) == 0xdead_beef,
        "/proc/PID/mem shows {bytes:x?}"
    );
    memory.write_all_at(&0xfeed_beefu64.to_ne_bytes(), address as u64)?;
    // Code that cannot be written: the constant of `mov eax, 7; ret`.
    let code = constant as fn() -> i32 as usize as u64;
    let mut bytes = [0; 64];
    memory.read_exact_at(&mut bytes, code)?;
    let at = bytes
        .windows(4)
        .position(|four| four == 7i32.to_ne_bytes())
        .context("the constant")?;
    memory.write_all_at(&5i32.to_ne_bytes(), code + at as u64)?;
    ensure!(constant() == 7, "the tracer's own code has changed");
    ensure!(
        memory.read_at(&mut bytes, 8).is_err(),
        "there is memory at 8"
    );
    go_on(pid, 0)?;
    ended(pid, 0)
}

#[inline(never)]
fn constant() -> i32 {
    let value: i32;
    // SAFETY: loads a number.
    unsafe { std::arch::asm!("mov {:e}, 7", out(reg) value, options(nomem, nostack)) };
    value
}

/// One instruction after the other, over a call, into a handler; a breakpoint.
fn steps() -> Result<()> {
    let pid = traced_child(|| {
        handle(libc::SIGUSR1);
        let mut count = 0u64;
        // SAFETY: traps and counts; `getpid` changes RAX, RCX and R11 only.
        unsafe {
            std::arch::asm!(
                "int3", "inc {0}", "inc {0}", "syscall", "inc {0}", "pushfq", "pop rcx",
                inout(reg) count, inout("rax") libc::SYS_getpid => _, out("rcx") _, out("r11") _,
            );
        }
        i32::from(count != 3 || HANDLED.load(Ordering::SeqCst) != 1)
    })?;
    go_on(pid, 0)?;
    stopped(pid, libc::SIGTRAP)?;
    ensure!(
        info(pid)?.si_code == 0x80,
        "a breakpoint has code {}",
        info(pid)?.si_code
    );
    let start = registers(pid)?.rip;
    let mut at = start;
    let lengths = [3, 3, 2, 3, 1];
    for (i, length) in lengths.into_iter().enumerate() {
        ptrace(libc::PTRACE_SINGLESTEP, pid, 0, 0).context("PTRACE_SINGLESTEP")?;
        stopped(pid, libc::SIGTRAP)?;
        at += length;
        let regs = registers(pid)?;
        ensure!(
            regs.rip == at,
            "step {i} ends at +{} instead of +{}",
            regs.rip.wrapping_sub(start),
            at - start
        );
        ensure!(regs.eflags & 0x100 == 0, "the trap flag is shown");
        let code = info(pid)?.si_code;
        ensure!(
            code == if i == 2 {
                libc::TRAP_BRKPT
            } else {
                libc::TRAP_TRACE
            },
            "step {i} has code {code}"
        );
    }
    ptrace(libc::PTRACE_SINGLESTEP, pid, 0, libc::SIGUSR1 as usize).context("PTRACE_SINGLESTEP")?;
    stopped(pid, libc::SIGTRAP)?;
    ensure!(
        registers(pid)?.rip == handler as extern "C" fn(i32) as usize as u64,
        "not at the handler's beginning"
    );
    go_on(pid, 0)?;
    ended(pid, 0)
}

/// Children are traced from their beginning, and told with their numbers.
fn forks() -> Result<()> {
    let pid = traced_child(|| {
        // SAFETY: the children end at once.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::_exit(3);
            }
            let mut status = 0;
            let first = libc::waitpid(child, &mut status, 0) == child && status == 3 << 8;
            let child = libc::syscall(
                libc::SYS_clone,
                libc::CLONE_VFORK | libc::SIGCHLD,
                0,
                0,
                0,
                0,
            ) as i32;
            if child == 0 {
                libc::_exit(4);
            }
            let second = libc::waitpid(child, &mut status, 0) == child && status == 4 << 8;
            i32::from(!first || !second)
        }
    })?;
    options(
        pid,
        libc::PTRACE_O_TRACEFORK
            | libc::PTRACE_O_TRACEVFORK
            | libc::PTRACE_O_TRACEVFORKDONE
            | libc::PTRACE_O_TRACEEXIT,
    )?;
    for (event, end) in [(libc::PTRACE_EVENT_FORK, 3), (libc::PTRACE_EVENT_VFORK, 4)] {
        go_on(pid, 0)?;
        stopped(pid, libc::SIGTRAP | event << 8)?;
        let child = message(pid)? as i32;
        stopped(child, libc::SIGSTOP)?;
        go_on(pid, 0)?;
        go_on(child, 0)?;
        stopped(child, libc::SIGTRAP | libc::PTRACE_EVENT_EXIT << 8)?;
        ensure!(
            message(child)? == end << 8,
            "status {:#x} before the end",
            message(child)?
        );
        go_on(child, 0)?;
        // The tracer is told before the parent.
        ended(child, (end as i32) << 8)?;
        if event == libc::PTRACE_EVENT_VFORK {
            stopped(pid, libc::SIGTRAP | libc::PTRACE_EVENT_VFORK_DONE << 8)?;
            go_on(pid, 0)?;
        }
        stopped(pid, libc::SIGCHLD)?;
    }
    go_on(pid, libc::SIGCHLD)?;
    stopped(pid, libc::SIGTRAP | libc::PTRACE_EVENT_EXIT << 8)?;
    go_on(pid, 0)?;
    ended(pid, 0)
}

/// `execve`: told as an event, or as of old by a signal.
fn a_program_begins() -> Result<()> {
    let program = std::ffi::CString::new(
        std::env::current_exe()?
            .into_os_string()
            .into_encoded_bytes(),
    )?;
    for wanted in [true, false] {
        let program = program.clone();
        let pid = traced_child(move || {
            let words = [program.as_ptr(), c"layout-child".as_ptr(), ptr::null()];
            // SAFETY: strings that end, in a list that ends.
            unsafe { libc::execv(program.as_ptr(), words.as_ptr()) }
        })?;
        if wanted {
            options(pid, libc::PTRACE_O_TRACEEXEC)?;
        }
        go_on(pid, 0)?;
        stopped(
            pid,
            if wanted {
                libc::SIGTRAP | libc::PTRACE_EVENT_EXEC << 8
            } else {
                libc::SIGTRAP
            },
        )?;
        if wanted {
            ensure!(
                message(pid)? == pid as u64,
                "the former number {}",
                message(pid)?
            );
        }
        ensure!(
            registers(pid)?.rsp % 16 == 0,
            "a stack pointer of a new program"
        );
        ptrace(libc::PTRACE_KILL, pid, 0, 0).context("PTRACE_KILL")?;
        ended(pid, libc::SIGKILL)?;
    }
    Ok(())
}

/// A stop of the whole process, with `PTRACE_SEIZE`: told with the signal, listened through, ended
/// by `SIGCONT`.
fn stops_of_a_process() -> Result<()> {
    let mut pipe = [0; 2];
    // SAFETY: room for two; the child reads from its end.
    let pid = unsafe {
        checked(libc::pipe(pipe.as_mut_ptr()))?;
        let pid = checked(libc::fork())?;
        if pid == 0 {
            libc::close(pipe[1]);
            libc::read(pipe[0], [0u8].as_mut_ptr().cast(), 1);
            libc::_exit(0);
        }
        libc::close(pipe[0]);
        pid
    };
    refused(
        ptrace(libc::PTRACE_SEIZE, pid, 1, 0),
        libc::EIO,
        "an address",
    )?;
    ptrace(
        libc::PTRACE_SEIZE,
        pid,
        0,
        libc::PTRACE_O_TRACESYSGOOD as usize,
    )
    .context("PTRACE_SEIZE")?;
    refused(
        ptrace(libc::PTRACE_SEIZE, pid, 0, 0),
        libc::EPERM,
        "tracing twice",
    )?;
    refused(
        ptrace(libc::PTRACE_CONT, pid, 0, 0),
        libc::ESRCH,
        "a thread that runs",
    )?;
    ptrace(libc::PTRACE_INTERRUPT, pid, 0, 0).context("PTRACE_INTERRUPT")?;
    stopped(pid, libc::SIGTRAP | EVENT_STOP << 8)?;
    refused(
        ptrace(libc::PTRACE_LISTEN, pid, 0, 999)
            .and(Ok(0))
            .and_then(|_| ptrace(libc::PTRACE_CONT, pid, 0, 0)),
        libc::ESRCH,
        "listening",
    )?;
    ptrace(libc::PTRACE_INTERRUPT, pid, 0, 0).context("PTRACE_INTERRUPT")?;
    stopped(pid, libc::SIGTRAP | EVENT_STOP << 8)?;
    // SAFETY: signals to the child.
    unsafe { libc::kill(pid, libc::SIGTSTP) };
    go_on(pid, 0)?;
    stopped(pid, libc::SIGTSTP)?;
    go_on(pid, libc::SIGTSTP)?;
    stopped(pid, libc::SIGTSTP | EVENT_STOP << 8)?;
    ptrace(libc::PTRACE_LISTEN, pid, 0, 0).context("PTRACE_LISTEN")?;
    // SAFETY: as above.
    unsafe { libc::kill(pid, libc::SIGCONT) };
    stopped(pid, libc::SIGTRAP | EVENT_STOP << 8)?;
    go_on(pid, 0)?;
    stopped(pid, libc::SIGCONT)?;
    // What comes between the stop and the listening is told, too.
    go_on(pid, libc::SIGTSTP)?;
    stopped(pid, libc::SIGTSTP | EVENT_STOP << 8)?;
    // SAFETY: as above.
    unsafe { libc::kill(pid, libc::SIGCONT) };
    ptrace(libc::PTRACE_LISTEN, pid, 0, 0).context("PTRACE_LISTEN")?;
    stopped(pid, libc::SIGTRAP | EVENT_STOP << 8)?;
    go_on(pid, 0)?;
    stopped(pid, libc::SIGCONT)?;
    ptrace(libc::PTRACE_DETACH, pid, 0, 0).context("PTRACE_DETACH")?;
    // SAFETY: its own descriptor.
    unsafe { libc::close(pipe[1]) };
    ended(pid, 0)
}

/// A process attached to goes on when it is let go, and when its tracer ends; with
/// `PTRACE_O_EXITKILL` it ends with that.
fn ends() -> Result<()> {
    for kill in [false, true] {
        let (mut reader, mut writer) = io::pipe()?;
        // SAFETY: the child only reads and ends.
        let pid = checked(unsafe { libc::fork() })?;
        if pid == 0 {
            drop(writer);
            let read = reader.read(&mut [0]).unwrap_or(9);
            // SAFETY: the child ends.
            unsafe { libc::_exit(read as i32) };
        }
        ptrace(libc::PTRACE_ATTACH, pid, 0, 0).context("PTRACE_ATTACH")?;
        stopped(pid, libc::SIGSTOP)?;
        ptrace(libc::PTRACE_DETACH, pid, 0, 0).context("PTRACE_DETACH")?;
        // SAFETY: the tracer only traces and ends.
        let tracer = checked(unsafe { libc::fork() })?;
        if tracer == 0 {
            let option = if kill {
                libc::PTRACE_O_EXITKILL as usize
            } else {
                0
            };
            let traced = ptrace(libc::PTRACE_SEIZE, pid, 0, option).is_ok();
            let caught = traced
                && ptrace(libc::PTRACE_INTERRUPT, pid, 0, 0).is_ok()
                && stopped(pid, libc::SIGTRAP | EVENT_STOP << 8).is_ok();
            // SAFETY: the tracer ends.
            unsafe { libc::_exit(i32::from(!caught)) };
        }
        ended(tracer, 0)?;
        if kill {
            ended(pid, libc::SIGKILL)?;
        } else {
            writer.write_all(&[1])?;
            ended(pid, 1 << 8)?;
        }
    }
    Ok(())
}

/// A process ends while its tracer, who is not its parent, does: its parent is told in the end,
/// whoever was faster.
fn ends_of_both() -> Result<()> {
    let wait_and_spin = |reader: &mut io::PipeReader, turns: u32| {
        let begun = reader.read(&mut [0]).is_ok();
        (0..turns).for_each(|turn| _ = std::hint::black_box(turn));
        begun
    };
    for round in 0..70 {
        let (mut reader, mut writer) = io::pipe()?;
        let (mut seized, tell) = io::pipe()?;
        // SAFETY: the child only reads, spins and ends.
        let pid = checked(unsafe { libc::fork() })?;
        if pid == 0 {
            wait_and_spin(&mut reader, round * 150);
            // SAFETY: the child ends.
            unsafe { libc::_exit(3) };
        }
        // SAFETY: the tracer only traces, writes, reads, spins and ends.
        let tracer = checked(unsafe { libc::fork() })?;
        if tracer == 0 {
            let traced = ptrace(libc::PTRACE_SEIZE, pid, 0, 0).is_ok();
            let told = (&tell).write_all(&[1]).is_ok();
            let begun = wait_and_spin(&mut reader, 3000);
            // SAFETY: the tracer ends.
            unsafe { libc::_exit(i32::from(!(traced && told && begun))) };
        }
        seized.read_exact(&mut [0])?;
        writer.write_all(&[1, 1])?;
        ended(tracer, 0)?;
        ended(pid, 3 << 8)?;
    }
    Ok(())
}

/// A thread is told when it begins and when it ends, apart from its process.
fn threads() -> Result<()> {
    let pid = traced_child(|| {
        let thread = std::thread::spawn(|| {});
        let joined = thread.join().is_ok();
        // SAFETY: a signal to itself, which the tracer holds back.
        unsafe { libc::raise(libc::SIGUSR1) };
        i32::from(!joined) + 6
    })?;
    options(pid, libc::PTRACE_O_TRACECLONE)?;
    go_on(pid, 0)?;
    stopped(pid, libc::SIGTRAP | libc::PTRACE_EVENT_CLONE << 8)?;
    let thread = message(pid)? as i32;
    stopped(thread, libc::SIGSTOP)?;
    ensure!(
        fs::metadata(format!("/proc/{pid}/task/{thread}")).is_ok(),
        "{thread} is no thread"
    );
    go_on(pid, 0)?;
    go_on(thread, 0)?;
    ended(thread, 0)?;
    stopped(pid, libc::SIGUSR1)?;
    go_on(pid, 0)?;
    ended(pid, 6 << 8)
}

/// A filter's answer is the tracer's.
fn filters() -> Result<()> {
    let pid = traced_child(|| {
        let op = |code: u16, jt: u8, k: u32| libc::sock_filter { code, jt, jf: 0, k };
        // Whatever is `getppid` is asked for, with the number 42.
        let mut code = [
            op(0x20, 0, 0),
            libc::sock_filter {
                jf: 1,
                ..op(0x15, 0, libc::SYS_getppid as u32)
            },
            op(6, 0, 0x7ff0_002a),
            op(6, 0, 0x7fff_0000),
        ];
        let program = libc::sock_fprog {
            len: 4,
            filter: code.as_mut_ptr(),
        };
        // SAFETY: a valid program.
        unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
            let set = libc::prctl(libc::PR_SET_SECCOMP, 2, &program);
            let result = libc::syscall(libc::SYS_getppid);
            i32::from(set != 0 || result != 1234)
        }
    })?;
    options(pid, libc::PTRACE_O_TRACESECCOMP)?;
    go_on(pid, 0)?;
    stopped(pid, libc::SIGTRAP | libc::PTRACE_EVENT_SECCOMP << 8)?;
    ensure!(
        message(pid)? == 42,
        "the filter's number is {}",
        message(pid)?
    );
    let mut regs = registers(pid)?;
    ensure!(regs.orig_rax == libc::SYS_getppid as u64, "another call");
    (regs.orig_rax, regs.rax) = (u64::MAX, 1234);
    set_registers(pid, &regs)?;
    go_on(pid, 0)?;
    ended(pid, 0)
}

/// Neither oneself, nor what cannot be looked into by others of the same user.
fn who_may() -> Result<()> {
    let me = std::process::id() as i32;
    refused(
        ptrace(libc::PTRACE_ATTACH, me, 0, 0),
        libc::EPERM,
        "oneself",
    )?;
    refused(
        ptrace(libc::PTRACE_ATTACH, i32::MAX, 0, 0),
        libc::ESRCH,
        "nobody",
    )?;
    refused(
        ptrace(libc::PTRACE_DETACH, 1, 0, 0),
        libc::ESRCH,
        "somebody else's",
    )?;
    // SAFETY: asks for the user.
    if unsafe { libc::getuid() } != 0 {
        refused(
            ptrace(libc::PTRACE_ATTACH, 1, 0, 0),
            libc::EPERM,
            "process 1",
        )?;
    }
    Ok(())
}
