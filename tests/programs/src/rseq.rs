//! Restartable sequences (`rseq(2)`): a counter for each processor that threads add to without a
//! locked instruction.

use std::arch::asm;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::{io, mem};

use anyhow::{Result, ensure};
use libc::{c_int, c_long};

use crate::Check;
use crate::credentials::in_child;

pub const CHECKS: &[(&str, Check)] = &[
    ("rseq-registration", registration),
    ("rseq-of-children", of_children),
    ("rseq-restart", restart),
    ("rseq-barrier", barrier),
];

const SYS_RSEQ: c_long = 334;
const SIGNATURE: u32 = 0x5305_3053;
const UNREGISTER: c_int = 1;

/// `struct rseq`.
#[repr(C, align(32))]
#[derive(Default)]
struct Area {
    cpu_start: u32,
    cpu: u32,
    section: u64,
    flags: u32,
    node: u32,
    rest: [u32; 2],
}

fn rseq(area: *mut Area, len: usize, flags: c_int, signature: u32) -> io::Result<()> {
    // SAFETY: the caller keeps the area for as long as it is registered.
    let result = unsafe { libc::syscall(SYS_RSEQ, area, len, flags, signature) };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

unsafe extern "C" {
    /// Where the C library keeps a thread's area, from the thread pointer on.
    static __rseq_offset: isize;
    /// 0 if it has registered none.
    static __rseq_size: u32;
}

/// Takes back what the C library has registered for this thread: both cannot be.
fn take_back() -> io::Result<()> {
    // SAFETY: constants of the C library; the thread pointer is the thread's.
    let area = unsafe {
        if __rseq_size == 0 {
            return Ok(());
        }
        let thread: *mut u8;
        asm!("mov {}, fs:0", out(reg) thread, options(nostack, preserves_flags));
        thread.offset(__rseq_offset)
    };
    rseq(area.cast(), mem::size_of::<Area>(), UNREGISTER, SIGNATURE)
}

/// Runs `work` in a thread that has nothing registered.
fn alone<R: Send + 'static>(work: impl FnOnce() -> Result<R> + Send + 'static) -> Result<R> {
    let inside = move || {
        take_back()?;
        work()
    };
    thread::spawn(inside).join().expect("the thread ended well")
}

fn error(result: io::Result<()>) -> Option<i32> {
    result.err().and_then(|e| e.raw_os_error())
}

fn registration() -> Result<()> {
    alone(|| {
        const LEN: usize = mem::size_of::<Area>();
        let mut area = Box::new(Area {
            cpu: u32::MAX,
            ..Area::default()
        });
        let at = &raw mut *area;
        ensure!(
            error(rseq(at, LEN, 2, SIGNATURE)) == Some(libc::EINVAL),
            "unknown flags are not refused"
        );
        ensure!(
            error(rseq(at, LEN - 8, 0, SIGNATURE)) == Some(libc::EINVAL),
            "a short structure is not refused"
        );
        ensure!(
            error(rseq(at.wrapping_byte_add(8), LEN, 0, SIGNATURE)) == Some(libc::EINVAL),
            "a crooked one is not refused"
        );
        rseq(at, LEN, 0, SIGNATURE)?;
        // SAFETY: the kernel writes there; so does nobody else.
        let cpu = || unsafe {
            (
                (&raw const (*at).cpu).read_volatile(),
                (&raw const (*at).cpu_start).read_volatile(),
            )
        };
        ensure!(
            cpu().0 == cpu().1 && cpu().0 < 4096,
            "the processor is {:?}",
            cpu()
        );
        ensure!(
            error(rseq(at, LEN, 0, SIGNATURE)) == Some(libc::EBUSY),
            "it is registered twice"
        );
        ensure!(
            error(rseq(at, LEN, 0, 1)) == Some(libc::EPERM),
            "another signature is not refused"
        );
        ensure!(
            error(rseq(at, LEN, UNREGISTER, 1)) == Some(libc::EPERM),
            "anybody takes it back"
        );
        on_each_processor(|number| {
            ensure!(
                cpu().0 as usize == number,
                "on processor {number} it is said to be {:?}",
                cpu()
            );
            Ok(())
        })?;
        rseq(at, LEN, UNREGISTER, SIGNATURE)?;
        ensure!(
            cpu() == (u32::MAX, 0),
            "what was taken back shows {:?}",
            cpu()
        );
        Ok(())
    })
}

/// Calls `look` on each processor that the thread may run on, with its number; the thread stays on
/// the last one.
fn on_each_processor(look: impl Fn(usize) -> Result<()>) -> Result<()> {
    // SAFETY: sets are plain bits.
    let (mut all, mut one): (libc::cpu_set_t, libc::cpu_set_t) =
        unsafe { (mem::zeroed(), mem::zeroed()) };
    // SAFETY: the set is this thread's.
    crate::checked(unsafe { libc::sched_getaffinity(0, size_of_val(&all), &raw mut all) })?;
    // SAFETY: the numbers fit into the set.
    for number in (0..1024).filter(|&number| unsafe { libc::CPU_ISSET(number, &all) }) {
        // SAFETY: the same.
        unsafe {
            libc::CPU_ZERO(&mut one);
            libc::CPU_SET(number, &mut one);
            crate::checked(libc::sched_setaffinity(
                0,
                size_of_val(&one),
                &raw const one,
            ))?;
        }
        look(number)?;
    }
    Ok(())
}

fn of_children() -> Result<()> {
    alone(|| {
        let mut area = Box::new(Area {
            cpu: u32::MAX,
            ..Area::default()
        });
        let at = &raw mut *area;
        rseq(at, mem::size_of::<Area>(), 0, SIGNATURE)?;
        // A child's thread is registered where its parent's was, and is told where it is.
        let told = in_child(|| {
            on_each_processor(|number| {
                // SAFETY: the kernel writes there; so does nobody else.
                let cpu = unsafe { (&raw const (*at).cpu).read_volatile() };
                ensure!(
                    cpu as usize == number,
                    "on processor {number} the child is said to be on {cpu}"
                );
                Ok(())
            })
        });
        rseq(at, mem::size_of::<Area>(), UNREGISTER, SIGNATURE)?;
        told
    })
}

/// A place for each processor.
static COUNTS: [AtomicU64; 1024] = [const { AtomicU64::new(0) }; 1024];

/// Adds 1 to this processor's count without a locked instruction; false if it is to be tried again.
///
/// # Safety
/// `area` is what the thread has registered.
unsafe fn add(area: *mut Area, counts: *const AtomicU64) -> bool {
    let done: u64;
    // SAFETY: the only store to anything but `area` is to a count of the processor that the
    // sequence runs on. At its end or its abort address all registers but the named ones are as
    // they were.
    unsafe {
        asm!(
            ".pushsection .data.rseq_sections, \"aw\"",
            ".balign 32",
            "44: .long 0, 0",
            ".quad 22f, 33f - 22f, 55f",
            ".popsection",
            "lea {t}, [rip + 44b]",
            "mov [{area} + 8], {t}",
            "22:",
            "mov {t:e}, [{area} + 4]",
            "mov {v}, [{counts} + {t} * 8]",
            // Long enough to be interrupted.
            "mov {n:e}, 200",
            "66: dec {n:e}",
            "jnz 66b",
            "inc {v}",
            "mov [{counts} + {t} * 8], {v}",
            "33:",
            "mov {v:e}, 1",
            "jmp 77f",
            ".long 0x53053053",
            "55:",
            "xor {v:e}, {v:e}",
            "77:",
            area = in(reg) area,
            counts = in(reg) counts,
            t = out(reg) _,
            v = out(reg) done,
            n = out(reg) _,
        );
    }
    done != 0
}

fn restart() -> Result<()> {
    const THREADS: u64 = 8;
    const ROUNDS: u64 = 20_000;
    let work = || {
        alone(|| {
            let mut area = Box::<Area>::default();
            let at = &raw mut *area;
            rseq(at, mem::size_of::<Area>(), 0, SIGNATURE)?;
            let mut again = 0u64;
            for _ in 0..ROUNDS {
                // SAFETY: registered right above.
                while !unsafe { add(at, COUNTS.as_ptr()) } {
                    again += 1;
                }
            }
            rseq(at, mem::size_of::<Area>(), UNREGISTER, SIGNATURE)?;
            Ok(again)
        })
    };
    let threads: Vec<_> = (0..THREADS).map(|_| thread::spawn(work)).collect();
    for thread in threads {
        thread.join().expect("the thread ended well")?;
    }
    let sum: u64 = COUNTS
        .iter()
        .map(|count| count.load(Ordering::Relaxed))
        .sum();
    ensure!(
        sum == THREADS * ROUNDS,
        "{sum} of {} were counted",
        THREADS * ROUNDS
    );
    Ok(())
}

fn barrier() -> Result<()> {
    const GLOBAL: c_int = 1;
    const RSEQ: c_int = 128;
    const ANNOUNCE: c_int = 256;
    let membarrier = |command: c_int| {
        // SAFETY: the call takes nothing of this program's.
        let result = unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) };
        if result < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(result as c_int)
        }
    };
    let known = membarrier(0)?;
    ensure!(
        known & (RSEQ | ANNOUNCE | GLOBAL) == RSEQ | ANNOUNCE | GLOBAL,
        "barriers are {known:#x}"
    );
    ensure!(
        error(membarrier(RSEQ).map(drop)) == Some(libc::EPERM),
        "a barrier that was not announced"
    );
    membarrier(ANNOUNCE)?;
    membarrier(GLOBAL)?;
    // A thread that never calls the kernel is sent out of its sequence: it leaves by the abort
    // address only.
    static INSIDE: AtomicBool = AtomicBool::new(false);
    let enter = || {
        alone(|| {
            let mut area = Box::<Area>::default();
            let at = &raw mut *area;
            rseq(at, mem::size_of::<Area>(), 0, SIGNATURE)?;
            // SAFETY: stores a byte, and then does nothing until the kernel changes its address.
            unsafe {
                asm!(
                    ".pushsection .data.rseq_sections, \"aw\"",
                    ".balign 32",
                    "44: .long 0, 0",
                    ".quad 22f, 33f - 22f, 55f",
                    ".popsection",
                    "lea {t}, [rip + 44b]",
                    "mov [{area} + 8], {t}",
                    "22:",
                    "mov byte ptr [{inside}], 1",
                    "66: jmp 66b",
                    "33:",
                    "ud2",
                    ".long 0x53053053",
                    "55:",
                    area = in(reg) at,
                    inside = in(reg) INSIDE.as_ptr(),
                    t = out(reg) _,
                );
            }
            rseq(at, mem::size_of::<Area>(), UNREGISTER, SIGNATURE)?;
            Ok(())
        })
    };
    loop {
        let waits = thread::spawn(enter);
        while !INSIDE.load(Ordering::Acquire) && !waits.is_finished() {
            thread::yield_now();
        }
        membarrier(RSEQ)?;
        waits.join().expect("the thread ended well")?;
        // One that lost its processor at the first instruction of its sequence has left it before
        // it said that it was inside.
        if INSIDE.load(Ordering::Acquire) {
            return Ok(());
        }
    }
}
