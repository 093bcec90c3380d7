//! Questions of a tracer that change nothing: waiting signals, filters of system calls, the
//! registration of restartable sequences.

use std::{io, ptr};

use anyhow::{Result, ensure};

use crate::ptrace::{go_on, ptrace, refused, stopped, traced_child, wait};
use crate::seccomp::{for_call, no_new_privileges};
use crate::{Check, checked};

pub const CHECKS: &[(&str, Check)] = &[
    ("ptrace-queries-of-signals", signals),
    ("ptrace-queries-of-filters", filters),
    ("ptrace-queries-of-sequences", sequences),
];

const PAGE: usize = 4096;
const INFO: usize = size_of::<libc::siginfo_t>();

/// Lets a traced child do its work up to its next `SIGSTOP`, asks, and ends it.
fn ask(work: impl FnOnce() -> i32, questions: impl FnOnce(i32) -> Result<()>) -> Result<()> {
    let child = traced_child(work)?;
    let asked = go_on(child, 0)
        .and_then(|()| stopped(child, libc::SIGSTOP))
        .and_then(|()| questions(child));
    // SAFETY: the child is this check's.
    checked(unsafe { libc::kill(child, libc::SIGKILL) })?;
    wait(child, libc::__WALL)?;
    asked
}

/// Signals that wait are told as far as there is memory for them.
fn signals() -> Result<()> {
    #[repr(C)]
    struct Arguments {
        offset: u64,
        flags: u32,
        count: i32,
    }
    let work = || {
        // SAFETY: calls with valid places only.
        unsafe {
            let mut set = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, libc::SIGRTMIN());
            libc::sigprocmask(libc::SIG_BLOCK, &raw const set, ptr::null_mut());
            for _ in 0..3 {
                libc::syscall(libc::SYS_tkill, libc::gettid(), libc::SIGRTMIN());
            }
            libc::raise(libc::SIGSTOP);
        }
        0
    };
    // SAFETY: a place of the kernel's choice; its second page is taken away.
    let end = unsafe {
        let at = libc::mmap(
            ptr::null_mut(),
            2 * PAGE,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        ensure!(at != libc::MAP_FAILED, "no memory");
        let end = at.addr() + PAGE;
        checked(libc::munmap(ptr::without_provenance_mut(end), PAGE))?;
        end
    };
    ask(work, |child| {
        let peek = |offset, flags, to| {
            let arguments = Arguments {
                offset,
                flags,
                count: 5,
            };
            ptrace(
                libc::PTRACE_PEEKSIGINFO,
                child,
                (&raw const arguments).addr(),
                to,
            )
        };
        let cases = [
            (peek(0, 0, end - PAGE), 3, "all"),
            (peek(1, 0, end - PAGE), 2, "all but the first"),
            (peek(0, 0, end - 2 * INFO), 2, "those that fit"),
            (peek(0, 0, end - 2 * INFO - 8), 2, "one cut"),
            (peek(0, 1, end - PAGE), 0, "those of the process"),
        ];
        for (got, expected, what) in cases {
            ensure!(
                got.as_ref().is_ok_and(|got| *got == expected),
                "{what}: {got:?}, not {expected}"
            );
        }
        refused(peek(0, 0, end), libc::EFAULT, "to where nothing is")?;
        refused(peek(0, 2, end - PAGE), libc::EINVAL, "an unknown queue")
    })
}

/// Flags and instructions of the filters of a thread, the oldest first, are told to root.
fn filters() -> Result<()> {
    const GET_FILTER: u32 = 0x420c;
    const GET_METADATA: u32 = 0x420d;
    const LOG: usize = 2;
    let codes = [libc::SYS_getppid, libc::SYS_getpgrp].map(|call| for_call(call, 0x7fff_0000));
    let install = |code: &[libc::sock_filter], flags: usize| -> io::Result<i32> {
        let program = libc::sock_fprog {
            len: code.len() as u16,
            filter: code.as_ptr().cast_mut(),
        };
        // SAFETY: a valid program; it is copied.
        checked(
            unsafe { libc::syscall(libc::SYS_seccomp, 1usize, flags, &raw const program) } as i32,
        )
    };
    let work = || {
        let installed = no_new_privileges().is_ok()
            && install(&codes[0], 0).is_ok()
            && install(&codes[1], LOG).is_ok();
        // SAFETY: the call takes numbers only.
        unsafe {
            libc::raise(if installed {
                libc::SIGSTOP
            } else {
                libc::SIGABRT
            })
        };
        0
    };
    ask(work, |child| {
        let metadata = |filter: u64, size: usize| {
            let mut words = [filter, 77];
            let told = ptrace(GET_METADATA, child, size, (&raw mut words).addr());
            (told, words)
        };
        for (filter, flags) in [(0, 0), (1, LOG as u64)] {
            let (told, words) = metadata(filter, 16);
            ensure!(
                told.as_ref().is_ok_and(|told| *told == 16) && words == [filter, flags],
                "filter {filter}: {told:?}, {words:?}"
            );
        }
        ensure!(metadata(0, 99).0.is_ok_and(|told| told == 16), "more room");
        ensure!(metadata(0, 8).0.is_ok_and(|told| told == 8), "less room");
        refused(metadata(2, 16).0, libc::ENOENT, "a third filter")?;
        refused(metadata(0, 7).0, libc::EINVAL, "no room for a number")?;
        for (number, code) in codes.iter().enumerate() {
            let len = ptrace(GET_FILTER, child, number, 0)?;
            ensure!(len == code.len() as i64, "{len} instructions");
            let mut told = vec![[0u8; 8]; code.len()];
            ptrace(GET_FILTER, child, number, told.as_mut_ptr().addr())?;
            let same = code.iter().zip(&told).all(|(one, told)| {
                let [a, b] = one.code.to_ne_bytes();
                let [e, f, g, h] = one.k.to_ne_bytes();
                [a, b, one.jt, one.jf, e, f, g, h] == *told
            });
            ensure!(same, "other instructions: {told:?}");
        }
        refused(
            ptrace(GET_FILTER, child, 2, 0),
            libc::ENOENT,
            "a third filter's instructions",
        )
    })?;
    ask(
        || {
            // SAFETY: the call takes numbers only.
            unsafe { libc::raise(libc::SIGSTOP) };
            0
        },
        |child| {
            refused(
                ptrace(GET_FILTER, child, 0, 0),
                libc::EINVAL,
                "a thread without filters",
            )
        },
    )
}

/// The registration of a thread by `rseq(2)` is told.
fn sequences() -> Result<()> {
    const GET_CONFIGURATION: u32 = 0x420f;
    const SIGNATURE: u32 = 0x5305_3053;
    #[repr(C, align(32))]
    struct Sequences([u32; 8]);
    let work = || {
        let own = Box::leak(Box::new(Sequences([0; 8])));
        let at: *mut Sequences = own;
        // The C library may have registered its own before.
        // SAFETY: the place stays for as long as the child lives.
        unsafe {
            libc::syscall(libc::SYS_rseq, at, 32, 0, SIGNATURE);
            libc::raise(libc::SIGSTOP);
        }
        0
    };
    ask(work, |child| {
        let mut told = [0u32; 6];
        let mut get = |size: usize| ptrace(GET_CONFIGURATION, child, size, (&raw mut told).addr());
        // The size is told whole, however much of it there is room for.
        for room in [0, 8, 24, 99] {
            let size = get(room)?;
            ensure!(size == 24, "{size} bytes of {room}");
        }
        ensure!(
            told[..2] != [0; 2] && told[2] == 32 && told[3..] == [SIGNATURE, 0, 0],
            "{told:x?}"
        );
        Ok(())
    })
}
