//! Looking on at system calls: tracing in the manner of `strace(1)` to the kernel log, and
//! recording (`docs/observability.md`).

use alloc::string::String;
use core::fmt::Write;

use guard::trace::{Kind, NoRings, Note, event};
use guard::user::{self, UserRegs};
use uapi::siginfo;

use crate::entry::dispatch::{self, ArgKind as Argument, Syscall};
use crate::entry::syscall_table::SYSCALLS;
use crate::process::process_table;
use crate::{SysResult, Task};

/// Most bytes of a string argument that are shown.
const MAX_STRING_SHOWN: usize = 64;

/// Begins or ends the recording of the classes of events in a set (`guard::trace::Class`); none
/// ends it.
///
/// # Errors
/// There is no memory for the records.
pub fn set_recording(classes: u32) -> Result<(), NoRings> {
    match classes {
        0 => guard::trace::stop(),
        _ => ::task::start_recording(classes)?,
    }
    for process in process_table::processes_where(|_, _| true) {
        for task in process.tasks() {
            if let Some(thread) = task.started_thread() {
                thread.set_notify_resume();
            }
        }
    }
    Ok(())
}

/// Number and name of every system call there is.
pub fn names() -> impl Iterator<Item = (usize, &'static str)> {
    SYSCALLS
        .iter()
        .enumerate()
        .filter_map(|(number, call)| Some((number, call.as_ref()?.name)))
}

/// Runs a call that is logged or recorded.
#[cold]
pub(crate) fn trace_syscall(
    task: &Task,
    regs: &mut UserRegs,
    call: &Syscall,
    handler: impl Fn(&Task, &mut UserRegs) -> SysResult,
) -> SysResult {
    event(Kind::CallBegin, || {
        Note::two(u64::from(dispatch::syscall_number(regs)), 0)
    });
    let result = if task.process().logs_syscalls() {
        log_syscall(task, regs, call, handler)
    } else {
        handler(task, regs)
    };
    event(Kind::CallEnd, || {
        let result = result.map_or_else(
            |error| i64::from(-error.raw()).cast_unsigned(),
            |value| value as u64,
        );
        Note::two(result, 0)
    });
    result
}

/// Runs a call and writes its name, arguments and result to the kernel log.
fn log_syscall(
    task: &Task,
    regs: &mut UserRegs,
    call: &Syscall,
    handler: impl Fn(&Task, &mut UserRegs) -> SysResult,
) -> SysResult {
    let text = format_call(regs, call);
    let tid = task.tid();
    // These may not come back.
    if matches!(call.name, "exit" | "exit_group" | "execve" | "rt_sigreturn") {
        log::info!("{tid} {text} ...");
    }
    let result = handler(task, regs);
    match result {
        Ok(value) if matches!(call.name, "mmap" | "brk" | "mremap") => {
            log::info!("{tid} {text} = {value:#x}");
        }
        Ok(value) => log::info!("{tid} {text} = {}", value.cast_signed()),
        Err(e) => log::info!("{tid} {text} = -{} {} ({e})", e.raw(), e.name()),
    }
    result
}

/// Name and arguments of a call as `strace` shows them.
fn format_call(regs: &UserRegs, call: &Syscall) -> String {
    let values = [regs.rdi, regs.rsi, regs.rdx, regs.r10, regs.r8, regs.r9];
    let mut text = String::from(call.name);
    text.push('(');
    for (i, (&kind, value)) in call.args.iter().zip(values).enumerate() {
        if i > 0 {
            text.push_str(", ");
        }
        format_argument(&mut text, kind, value);
    }
    text.push(')');
    text
}

/// Appends an argument as `strace` shows it.
fn format_argument(text: &mut String, kind: Argument, value: u64) {
    // Writing to a string does not fail.
    let _ = match kind {
        Argument::Fd if value as i32 == linux_raw_sys::general::AT_FDCWD => {
            write!(text, "AT_FDCWD")
        }
        Argument::Fd => write!(text, "{}", value as i32),
        Argument::Int => write!(text, "{}", value.cast_signed()),
        Argument::Num => write!(text, "{value}"),
        Argument::Hex => write!(text, "{value:#x}"),
        Argument::Oct => write!(text, "{value:#o}"),
        Argument::Ptr | Argument::Str if value == 0 => write!(text, "NULL"),
        Argument::Ptr => write!(text, "{value:#x}"),
        Argument::Sig => write!(text, "{}", siginfo::name(value as i32)),
        Argument::Str => {
            let mut buf = [0; MAX_STRING_SHOWN];
            match user::read_cstr(value as usize, &mut buf) {
                Ok(len) => write!(
                    text,
                    "\"{}\"{}",
                    buf[..len].escape_ascii(),
                    if len == MAX_STRING_SHOWN { "..." } else { "" }
                ),
                Err(_) => write!(text, "{value:#x}"),
            }
        }
    };
}
