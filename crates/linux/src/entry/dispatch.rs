//! From a number in a register to a function of typed arguments, and back with the result.
//!
//! The function's own signature says what types the arguments have; [`SyscallArg`] turns registers
//! into them. A call marked `regs` also gets the program's registers, because it changes more of
//! them than the result, or copies all of them; all others are called right from the entry from
//! ring 3 (`FAST_PATHS`).

use core::sync::atomic::{AtomicU64, Ordering};

use abi::errno::Errno;
use guard::speculation;
use guard::user::{FastCall, SyscallOutcome, UserRegs};

use crate::entry::syscall_table::{SYSCALLS, UNIMPLEMENTED};
use crate::entry::syscall_trace;
use crate::seccomp::{self, syscall_user_dispatch};
use crate::uaccess::SyscallArg;
use crate::{SysResult, Task, ptrace};

/// Kind of an argument, for tracing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ArgKind {
    /// A file descriptor, shown as a signed number.
    Fd,
    /// A signed number, shown in decimal.
    Int,
    /// An unsigned number, shown in decimal.
    Num,
    /// Flags, shown in hexadecimal.
    Hex,
    /// A file mode, shown in octal.
    Oct,
    /// An address of the program's, shown in hexadecimal.
    Ptr,
    /// The address of a string.
    Str,
    /// A signal, shown by its name.
    Sig,
}

/// A system call by what it needs.
#[derive(Clone, Copy)]
pub(crate) enum Handler {
    /// A function that gets the call's arguments only, and can run before all registers are saved.
    FastPath(FastCall<Task>),
    /// A function that gets all registers of the program.
    FullFrame(fn(&Task, &mut UserRegs) -> SysResult),
}

/// An entry of the table of system calls.
pub struct Syscall {
    /// Name of the call, without `sys_`.
    pub name: &'static str,
    /// Kinds of the arguments.
    pub args: &'static [ArgKind],
    pub(crate) handler: Handler,
}

/// Calls whose system time is sampled, as measuring each would cost more than it tells: one of many
/// is measured, and stands for the others (`entry::user_loop`). `read` and `write` measure
/// themselves when there is much to do.
const TIME_SAMPLED: &[&str] = &[
    "getpid",
    "gettid",
    "getppid",
    "getpgrp",
    "getpgid",
    "getsid",
    "getuid",
    "geteuid",
    "getgid",
    "getegid",
    "getcpu",
    "time",
    "gettimeofday",
    "clock_gettime",
    "umask",
    "sched_yield",
    "rt_sigprocmask",
    "set_tid_address",
    "futex",
    "read",
    "write",
];

/// Whether a call is one of [`TIME_SAMPLED`].
pub(crate) const fn is_time_sampled(name: &str) -> bool {
    let mut at = 0;
    while at < TIME_SAMPLED.len() {
        let (a, b) = (TIME_SAMPLED[at].as_bytes(), name.as_bytes());
        let mut i = 0;
        while i < a.len() && i < b.len() && a[i] == b[i] {
            i += 1;
        }
        if i == a.len() && i == b.len() {
            return true;
        }
        at += 1;
    }
    false
}

macro_rules! handler {
    ($name:ident ($($a:ident),*) regs $f:path) => {
        Handler::FullFrame(|task, regs| full!(task, regs, $f, $($a)*))
    };
    ($name:ident ($($a:ident),*) $f:path) => {{
        extern "sysv64" fn call(task: &Task, regs: &UserRegs) -> SyscallOutcome {
            const MEASURED: bool = !is_time_sampled(stringify!($name));
            if MEASURED {
                task.account_system_time(|| syscall_outcome(arguments!(task, regs, $f, $($a)*)))
            } else {
                syscall_outcome(arguments!(task, regs, $f, $($a)*))
            }
        }
        Handler::FastPath(call)
    }};
}

/// Calls the function with as many arguments as there are kinds.
macro_rules! arguments {
    ($task:ident, $r:ident, $f:path,) => {{
        let _ = $r;
        $f($task)
    }};
    ($task:ident, $r:ident, $f:path, $a:ident) => {
        $f($task, arg($r.rdi))
    };
    ($task:ident, $r:ident, $f:path, $a:ident $b:ident) => {
        $f($task, arg($r.rdi), arg($r.rsi))
    };
    ($task:ident, $r:ident, $f:path, $a:ident $b:ident $c:ident) => {
        $f($task, arg($r.rdi), arg($r.rsi), arg($r.rdx))
    };
    ($task:ident, $r:ident, $f:path, $a:ident $b:ident $c:ident $d:ident) => {
        $f($task, arg($r.rdi), arg($r.rsi), arg($r.rdx), arg($r.r10))
    };
    ($task:ident, $r:ident, $f:path, $a:ident $b:ident $c:ident $d:ident $e:ident) => {
        $f(
            $task,
            arg($r.rdi),
            arg($r.rsi),
            arg($r.rdx),
            arg($r.r10),
            arg($r.r8),
        )
    };
    ($task:ident, $r:ident, $f:path, $a:ident $b:ident $c:ident $d:ident $e:ident $g:ident) => {
        $f(
            $task,
            arg($r.rdi),
            arg($r.rsi),
            arg($r.rdx),
            arg($r.r10),
            arg($r.r8),
            arg($r.r9),
        )
    };
}

/// Calls the function with the registers and as many arguments as there are kinds.
macro_rules! full {
    ($task:ident, $r:ident, $f:path,) => {
        $f($task, $r)
    };
    ($task:ident, $r:ident, $f:path, $a:ident) => {{
        let a = arg($r.rdi);
        $f($task, $r, a)
    }};
    ($task:ident, $r:ident, $f:path, $a:ident $b:ident) => {{
        let (a, b) = (arg($r.rdi), arg($r.rsi));
        $f($task, $r, a, b)
    }};
    ($task:ident, $r:ident, $f:path, $a:ident $b:ident $c:ident) => {{
        let (a, b, c) = (arg($r.rdi), arg($r.rsi), arg($r.rdx));
        $f($task, $r, a, b, c)
    }};
    ($task:ident, $r:ident, $f:path, $a:ident $b:ident $c:ident $d:ident $e:ident) => {{
        let (a, b, c) = (arg($r.rdi), arg($r.rsi), arg($r.rdx));
        let (d, e) = (arg($r.r10), arg($r.r8));
        $f($task, $r, a, b, c, d, e)
    }};
}

/// Size of the table of system calls: one more than the highest number of a call.
pub(crate) const SYSCALL_COUNT: usize = 470;

/// An argument as the function wants it.
pub(crate) fn arg<T: SyscallArg>(register: u64) -> T {
    T::from_register(register)
}

/// Word of an outcome whose call has not been run.
const NOT_DISPATCHED: u64 = 0;

/// Result of a call as the program gets it. The codes that say how to go on after a signal are for
/// [`crate::entry::user_loop`].
#[inline(always)]
pub(crate) fn syscall_outcome(result: SysResult) -> SyscallOutcome {
    match result {
        Ok(value) => SyscallOutcome::done(value as u64),
        Err(e) => {
            let value = i64::from(-e.raw()).cast_unsigned();
            if e.is_restart() {
                SyscallOutcome::needs_slow_path(value)
            } else {
                SyscallOutcome::done(value)
            }
        }
    }
}

/// Fast path of a call that has none: the slow path runs it.
extern "sysv64" fn not_dispatched(_: &Task, _: &UserRegs) -> SyscallOutcome {
    SyscallOutcome::needs_slow_path(NOT_DISPATCHED)
}

/// Functions that the entry from ring 3 calls itself, by number.
pub(crate) static FAST_PATHS: [FastCall<Task>; SYSCALL_COUNT] = {
    let mut table: [FastCall<Task>; SYSCALL_COUNT] = [not_dispatched; SYSCALL_COUNT];
    let mut number = 0;
    while number < SYSCALL_COUNT {
        if let Some(Syscall {
            handler: Handler::FastPath(call),
            ..
        }) = &SYSCALLS[number]
        {
            table[number] = *call;
        }
        number += 1;
    }
    table
};

/// Number of the call that a thread makes: the upper half of the register means nothing.
pub(crate) const fn syscall_number(regs: &UserRegs) -> u32 {
    regs.orig_rax as u32
}

/// The call of this number; for numbers that a program has chosen.
fn syscall_of(number: u32) -> Option<&'static Syscall> {
    let number = number as usize;
    if number >= SYSCALL_COUNT {
        return None;
    }
    SYSCALLS[speculation::clamp(number, SYSCALL_COUNT - 1)].as_ref()
}

/// Whether a call has a fast path, whose time may be sampled: then measuring those that are chosen
/// by chance tells the time of all.
pub(crate) fn has_fast_path(regs: &UserRegs) -> bool {
    matches!(
        syscall_of(syscall_number(regs)),
        Some(Syscall {
            handler: Handler::FastPath(_),
            ..
        })
    )
}

/// Runs the rest of a system call whose fast path left its word in `rax`. The result is not yet in
/// the registers.
pub(crate) fn slow_path(task: &Task, regs: &mut UserRegs) -> SysResult {
    if regs.rax != NOT_DISPATCHED {
        return Err(Errno::from_raw(-(regs.rax as i32)));
    }
    if task.has_syscall_work.load(Ordering::Relaxed)
        && let Some(result) = syscall_user_dispatch::check(task, regs)
    {
        return result;
    }
    if task.is_ptraced() {
        ptrace::run_traced_syscall(task, regs, filter_and_call)
    } else {
        filter_and_call(task, regs)
    }
}

/// Runs a call that seccomp filters, a tracer or a recording looks at.
fn filter_and_call(task: &Task, regs: &mut UserRegs) -> SysResult {
    if task.has_syscall_work.load(Ordering::Relaxed)
        && let Some(refusal) = seccomp::run_filters(task, regs)
    {
        return refusal;
    }
    match syscall_of(syscall_number(regs)) {
        Some(call) if task.process().has_syscall_trace() => {
            syscall_trace::trace_syscall(task, regs, call, |task, regs| call.run(task, regs))
        }
        Some(call) => call.run(task, regs),
        None => not_implemented(syscall_number(regs)),
    }
}

impl Syscall {
    fn run(&self, task: &Task, regs: &mut UserRegs) -> SysResult {
        match self.handler {
            Handler::FullFrame(call) => call(task, regs),
            Handler::FastPath(call) => match call(task, regs).parts() {
                (value, false) if value.cast_signed() >= -4095 && value.cast_signed() < 0 => {
                    Err(Errno::from_raw(-(value as i32)))
                }
                (value, false) => Ok(value as usize),
                (word, true) => Err(Errno::from_raw(-(word as i32))),
            },
        }
    }
}

/// Fails with `ENOSYS` for a call that is missing, and logs its name once for every number.
#[cold]
fn not_implemented(number: u32) -> SysResult {
    static SAID: [AtomicU64; SYSCALL_COUNT / 64 + 1] =
        [const { AtomicU64::new(0) }; SYSCALL_COUNT / 64 + 1];
    let bit = 1 << (number % 64);
    let word = SAID.get(number as usize / 64);
    if word.is_none_or(|word| word.fetch_or(bit, Ordering::Relaxed) & bit == 0) {
        let name = UNIMPLEMENTED
            .iter()
            .find(|m| u32::from(m.0) == number)
            .map_or("?", |m| m.1);
        log::warn!("system call {number} ({name}) is not implemented: ENOSYS");
    }
    Err(Errno::ENOSYS)
}
