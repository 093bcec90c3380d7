//! Counts the instructions of an uncontended lock and unlock by running them one at a time under
//! `ptrace(2)`.
#![cfg(all(target_os = "linux", target_arch = "x86_64", not(loom)))]

use std::hint::black_box;
use std::ptr::null_mut;

use lfmutex::{Mutex, RwLock, Semaphore};

static MUTEX: Mutex<u64> = Mutex::new(0);
static RW_LOCK: RwLock<u64> = RwLock::new(0);
static SEMAPHORE: Semaphore = Semaphore::new(1);

#[inline(never)]
fn nothing() {
    black_box(());
}

#[inline(never)]
fn mutex() {
    drop(black_box(&MUTEX).lock());
}

#[inline(never)]
fn read_lock() {
    drop(black_box(&RW_LOCK).read());
}

#[inline(never)]
fn semaphore() {
    let semaphore = black_box(&SEMAPHORE);
    semaphore.acquire();
    semaphore.release(1);
}

#[inline(never)]
extern "C" fn begin() {
    black_box(());
}

#[inline(never)]
extern "C" fn end() {
    black_box(1);
}

/// Instructions from `begin` to `end` with `what` in between.
fn count(what: fn()) -> u64 {
    // SAFETY: the child calls only functions that take no lock of the C library, and ends without
    // unwinding or flushing.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: plain system calls on itself.
        unsafe {
            libc::ptrace(
                libc::PTRACE_TRACEME,
                0,
                null_mut::<libc::c_void>(),
                null_mut::<libc::c_void>(),
            );
            libc::raise(libc::SIGSTOP);
        }
        begin();
        what();
        end();
        // SAFETY: ends the process.
        unsafe { libc::_exit(0) };
    }
    let (mut counted, mut counting) = (0, false);
    loop {
        let mut status = 0;
        // SAFETY: `status` and `registers` are valid for writing, and the child is stopped when its
        // registers are read.
        let registers = unsafe {
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
            assert!(
                libc::WIFSTOPPED(status),
                "the child ended early: {status:#x}"
            );
            let mut registers: libc::user_regs_struct = std::mem::zeroed();
            libc::ptrace(
                libc::PTRACE_GETREGS,
                child,
                null_mut::<libc::c_void>(),
                &raw mut registers,
            );
            registers
        };
        counting |= registers.rip == begin as *const () as u64;
        if registers.rip == end as *const () as u64 {
            // SAFETY: plain system calls on the child.
            unsafe {
                libc::kill(child, libc::SIGKILL);
                libc::waitpid(child, &mut status, 0);
            }
            return counted;
        }
        counted += u64::from(counting);
        // SAFETY: the child is stopped.
        unsafe {
            libc::ptrace(
                libc::PTRACE_SINGLESTEP,
                child,
                null_mut::<libc::c_void>(),
                null_mut::<libc::c_void>(),
            )
        };
    }
}

#[test]
fn an_uncontended_lock_is_at_most_thirty_instructions() {
    let call = count(nothing);
    for (name, what) in [
        ("mutex", mutex as fn()),
        ("read lock", read_lock),
        ("semaphore", semaphore),
    ] {
        let instructions = count(what) - call;
        println!("{name}: {instructions}");
        assert!(
            instructions <= 30,
            "{name}: {instructions} instructions for taking and giving up"
        );
    }
}
