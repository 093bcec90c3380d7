//! Debug registers of a thread that is traced: `PTRACE_POKEUSER` at
//! `offsetof(struct user, u_debugreg)`.

use std::arch::asm;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{io, mem};

use anyhow::{Context, Result, ensure};

use crate::ptrace::{
    ended, go_on, info, options, ptrace, refused, registers, stopped, traced_child, wait,
};
use crate::{Check, checked};

pub const CHECKS: &[(&str, Check)] = &[
    ("ptrace-watchpoints", watchpoints),
    ("ptrace-breakpoints-in-registers", breakpoints),
    ("ptrace-debug-registers-of-others", of_others),
    ("ptrace-debug-registers-refused", refusals),
    ("ptrace-watchpoint-at-the-kernels-door", at_the_door),
];

const TRAP_HWBKPT: i32 = 4;
/// Kinds of access and lengths in DR7, for the first address.
const EXECUTED: usize = 0;
const WRITTEN: usize = 1 << 16;
const TOUCHED: usize = 3 << 16;
const EIGHT: usize = 2 << 18;
const FOUR: usize = 3 << 18;
/// Switches the first address on.
const FIRST: usize = 1;

static WATCHED: AtomicU64 = AtomicU64::new(5);

fn place(register: usize) -> usize {
    mem::offset_of!(libc::user, u_debugreg) + register * size_of::<u64>()
}

fn set(pid: i32, register: usize, value: usize) -> io::Result<i64> {
    ptrace(libc::PTRACE_POKEUSER, pid, place(register), value)
}

fn get(pid: i32, register: usize) -> Result<u64> {
    let mut word = 0u64;
    ptrace(
        libc::PTRACE_PEEKUSER,
        pid,
        place(register),
        (&raw mut word).addr(),
    )
    .context("PTRACE_PEEKUSER")?;
    Ok(word)
}

fn watch(pid: i32, how: usize) -> Result<()> {
    set(pid, 0, WATCHED.as_ptr().addr()).context("DR0")?;
    set(pid, 7, how).context("DR7")?;
    ensure!(get(pid, 7)? == how as u64 && get(pid, 0)? == WATCHED.as_ptr().addr() as u64);
    Ok(())
}

/// Checks that the process has stopped because of the first address.
fn hit(pid: i32) -> Result<()> {
    stopped(pid, libc::SIGTRAP)?;
    let (info, status) = (info(pid)?, get(pid, 6)?);
    ensure!(
        info.si_code == TRAP_HWBKPT && status & 0xf == 1,
        "code {}, DR6 {status:#x}",
        info.si_code
    );
    // SAFETY: the kernel fills in the address of a trap.
    ensure!(unsafe { info.si_addr() }.addr() as u64 == registers(pid)?.rip);
    set(pid, 6, 0).context("DR6")?;
    Ok(())
}

fn peek(pid: i32) -> Result<u64> {
    let mut word = 0u64;
    ptrace(
        libc::PTRACE_PEEKDATA,
        pid,
        WATCHED.as_ptr().addr(),
        (&raw mut word).addr(),
    )?;
    Ok(word)
}

/// A write stops behind the instruction, a read only if that is wanted; what the kernel writes for
/// the program does not count. The watch stays through sleeps and on other CPUs, and ends with the
/// tracer's word.
fn watchpoints() -> Result<()> {
    let pid = traced_child(|| {
        let mut sum = WATCHED.load(Ordering::SeqCst);
        WATCHED.store(6, Ordering::SeqCst);
        let pause = libc::timespec {
            tv_sec: 0,
            tv_nsec: 1_000_000,
        };
        let mut ends = [0; 2];
        // SAFETY: sleeps, then goes to each CPU there is; the pipe's bytes go where the word is.
        unsafe {
            libc::nanosleep(&pause, std::ptr::null_mut());
            for cpu in 0..libc::sysconf(libc::_SC_NPROCESSORS_ONLN) as usize {
                let mut set: libc::cpu_set_t = mem::zeroed();
                libc::CPU_SET(cpu, &mut set);
                libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
            }
            WATCHED.store(7, Ordering::SeqCst);
            libc::pipe(ends.as_mut_ptr());
            libc::write(ends[1], [8u64].as_ptr().cast(), 8);
            libc::read(ends[0], WATCHED.as_ptr().cast(), 8);
        }
        sum += WATCHED.load(Ordering::SeqCst);
        WATCHED.store(sum, Ordering::SeqCst);
        0
    })?;
    watch(pid, FIRST | WRITTEN | EIGHT)?;
    for value in [6, 7] {
        go_on(pid, 0)?;
        hit(pid)?;
        ensure!(peek(pid)? == value, "{}", peek(pid)?);
    }
    set(pid, 7, FIRST | TOUCHED | FOUR)?;
    go_on(pid, 0)?;
    hit(pid)?;
    ensure!(
        peek(pid)? == 8,
        "stopped at the read, not at the kernel's write: {}",
        peek(pid)?
    );
    set(pid, 7, 0)?;
    go_on(pid, 0)?;
    ended(pid, 0)
}

#[inline(never)]
extern "C" fn function(x: u64) -> u64 {
    std::hint::black_box(x) + 1
}

/// A breakpoint stops before its instruction, which is done when the thread goes on.
fn breakpoints() -> Result<()> {
    let pid = traced_child(|| {
        let work: extern "C" fn(u64) -> u64 = std::hint::black_box(function);
        (work(1) + work(2)) as i32
    })?;
    let function = function as extern "C" fn(u64) -> u64 as usize;
    set(pid, 3, function)?;
    set(pid, 7, 1 << 6 | EXECUTED)?;
    for argument in [1, 2] {
        go_on(pid, 0)?;
        stopped(pid, libc::SIGTRAP)?;
        let regs = registers(pid)?;
        ensure!(
            regs.rip == function as u64 && regs.rdi == argument,
            "{:#x} {}",
            regs.rip,
            regs.rdi
        );
        ensure!(
            get(pid, 6)? & 0xf == 8 && info(pid)?.si_code == TRAP_HWBKPT,
            "DR6 {:#x}",
            get(pid, 6)?
        );
    }
    go_on(pid, 0)?;
    ended(pid, 5 << 8)
}

/// A child has no debug registers, nor has the program that the thread runs next; another process
/// with the same addresses sees nothing.
fn of_others() -> Result<()> {
    let pid = traced_child(|| {
        // SAFETY: the child writes and ends; then another program is run.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                WATCHED.store(1, Ordering::SeqCst);
                libc::_exit(0);
            }
            let mut status = 0;
            libc::waitpid(child, &mut status, 0);
            if status != 0 {
                return 1;
            }
            let me = c"/proc/self/exe".as_ptr();
            libc::execl(me, me, c"list".as_ptr(), std::ptr::null::<libc::c_char>());
        }
        2
    })?;
    options(pid, libc::PTRACE_O_TRACEFORK | libc::PTRACE_O_TRACEEXEC)?;
    watch(pid, FIRST | WRITTEN | EIGHT)?;
    go_on(pid, 0)?;
    stopped(pid, libc::SIGTRAP | libc::PTRACE_EVENT_FORK << 8)?;
    let (child, _) = wait(-1, libc::__WALL)?;
    // Of a copied control register nothing is watched: the addresses are not copied.
    ensure!(get(child, 7)? == get(pid, 7)? && get(child, 0)? == 0 && get(pid, 7)? != 0);
    go_on(child, 0)?;
    ended(child, 0)?;
    // Meanwhile, this process may write.
    WATCHED.store(9, Ordering::SeqCst);
    go_on(pid, 0)?;
    stopped(pid, libc::SIGCHLD)?;
    go_on(pid, 0)?;
    stopped(pid, libc::SIGTRAP | libc::PTRACE_EVENT_EXEC << 8)?;
    ensure!(get(pid, 7)? == 0 && get(pid, 0)? == 0);
    // SAFETY: kills a child.
    checked(unsafe { libc::kill(pid, libc::SIGKILL) })?;
    ended(pid, libc::SIGKILL)
}

fn refusals() -> Result<()> {
    let pid = traced_child(|| 0)?;
    ensure!(get(pid, 6)? == 0xffff_0ff0 && get(pid, 7)? == 0 && get(pid, 4)? == 0);
    refused(set(pid, 4, 1), libc::EIO, "a register there is not")?;
    set(pid, 0, WATCHED.as_ptr().addr() + 4)?;
    refused(
        set(pid, 7, FIRST | WRITTEN | EIGHT),
        libc::EINVAL,
        "an address that is not aligned",
    )?;
    refused(
        set(pid, 7, FIRST | EXECUTED | FOUR),
        libc::EINVAL,
        "a breakpoint of four bytes",
    )?;
    refused(set(pid, 7, FIRST | 2 << 16), libc::EINVAL, "a port")?;
    ensure!(get(pid, 7)? == 0);
    // What is off is not looked at.
    set(pid, 7, FIRST | WRITTEN | FOUR)?;
    set(pid, 7, 0)?;
    go_on(pid, 0)?;
    ended(pid, 0)
}

/// MOV SS holds the exception back until the kernel's first instruction. The program may be told or
/// not, and goes on.
fn at_the_door() -> Result<()> {
    let pid = traced_child(|| {
        let mut seen = 0u64;
        WATCHED.store(0x2b, Ordering::SeqCst);
        for _ in 0..3 {
            let number: i64;
            // SAFETY: loads SS with the selector it has, and calls `getppid`.
            unsafe {
                asm!(
                    "mov ss, word ptr [{word}]", "syscall",
                    word = in(reg) WATCHED.as_ptr(), inout("rax") libc::SYS_getppid => number, out("rcx") _, out("r11") _
                );
            }
            seen += u64::from(number > 0);
        }
        // SAFETY: as above, and a breakpoint.
        unsafe { asm!("mov ss, word ptr [{}]", "int3", in(reg) WATCHED.as_ptr()) };
        seen as i32
    })?;
    watch(pid, FIRST | TOUCHED | EIGHT)?;
    loop {
        go_on(pid, 0)?;
        let (_, status) = wait(pid, libc::__WALL)?;
        if libc::WIFEXITED(status) {
            ensure!(status == 3 << 8, "status {status:#x}");
            return Ok(());
        }
        ensure!(status == libc::SIGTRAP << 8 | 0x7f, "status {status:#x}");
    }
}
