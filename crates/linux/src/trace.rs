//! Tracing of system calls, in the manner of `strace(1)`, to the kernel log.

use alloc::string::String;
use core::fmt::Write;

use guard::user::{self, UserRegs};

use crate::table::{Call, Kind};
use crate::{SysResult, Task, siginfo};

/// How much of a string is shown.
const SHOWN: usize = 64;

/// Runs a call and writes what it was and what came of it.
#[cold]
pub(crate) fn traced(
    task: &Task,
    regs: &mut UserRegs,
    call: &Call,
    handler: impl Fn(&Task, &mut UserRegs) -> SysResult,
) -> SysResult {
    let text = describe(regs, call);
    let tid = task.tid();
    // These may not come back.
    if matches!(call.name, "exit" | "exit_group" | "execve" | "rt_sigreturn") {
        log::info!("{tid} {text} ...");
    }
    let result = handler(task, regs);
    match result {
        Ok(value) if matches!(call.name, "mmap" | "brk" | "mremap") => log::info!("{tid} {text} = {value:#x}"),
        Ok(value) => log::info!("{tid} {text} = {}", value.cast_signed()),
        Err(e) => log::info!("{tid} {text} = -{} {} ({e})", e.raw(), e.name()),
    }
    result
}

fn describe(regs: &UserRegs, call: &Call) -> String {
    let values = [regs.rdi, regs.rsi, regs.rdx, regs.r10, regs.r8, regs.r9];
    let mut text = String::from(call.name);
    text.push('(');
    for (i, (&kind, value)) in call.args.iter().zip(values).enumerate() {
        if i > 0 {
            text.push_str(", ");
        }
        show(&mut text, kind, value);
    }
    text.push(')');
    text
}

fn show(text: &mut String, kind: Kind, value: u64) {
    // Writing to a string does not fail.
    let _ = match kind {
        Kind::Fd if value as i32 == linux_raw_sys::general::AT_FDCWD => write!(text, "AT_FDCWD"),
        Kind::Fd => write!(text, "{}", value as i32),
        Kind::Int => write!(text, "{}", value.cast_signed()),
        Kind::Num => write!(text, "{value}"),
        Kind::Hex => write!(text, "{value:#x}"),
        Kind::Oct => write!(text, "{value:#o}"),
        Kind::Ptr | Kind::Str if value == 0 => write!(text, "NULL"),
        Kind::Ptr => write!(text, "{value:#x}"),
        Kind::Sig => write!(text, "{}", siginfo::name(value as i32)),
        Kind::Str => {
            let mut buf = [0; SHOWN];
            match user::read_cstr(value as usize, &mut buf) {
                Ok(len) => write!(text, "\"{}\"{}", buf[..len].escape_ascii(), if len == SHOWN { "..." } else { "" }),
                Err(_) => write!(text, "{value:#x}"),
            }
        }
    };
}
