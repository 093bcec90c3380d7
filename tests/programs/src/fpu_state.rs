//! Registers that the kernel does not use itself belong to the program across everything: system
//! calls, being preempted, and moving to another processor. Vector registers, the floating-point
//! stack and control words, and the base of GS.

use std::arch::{asm, is_x86_feature_detected};
use std::mem::size_of_val;
use std::thread;

use anyhow::{Result, bail, ensure};

use crate::Check;

pub const CHECKS: &[(&str, Check)] = &[
    ("fpu-state-survive-system-calls", || {
        everywhere(&[Step::Yield, Step::Sleep])
    }),
    ("fpu-state-survive-preemption", preempted),
    ("fpu-state-survive-migration", || {
        everywhere(&[Step::Move, Step::Spin, Step::Move, Step::Sleep])
    }),
];

const THREADS: u8 = 6;
const ROUNDS: usize = 60;
/// Long enough that some of the threads of one processor lose it in between.
const SPINS: u64 = 150_000;

/// Event while the registers hold the pattern.
#[derive(Clone, Copy)]
enum Step {
    Yield,
    Sleep,
    Spin,
    Move,
}

/// Sixteen vector registers of 32 bytes.
type Vectors = [[u8; 32]; 16];

/// Everything that is looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C, align(32))]
struct Held {
    vectors: Vectors,
    /// Floating-point number of 64 bits, for the x87 stack.
    number: u64,
    mxcsr: u32,
}

impl Held {
    /// A pattern that no other thread and no other round has.
    fn new(thread: u8, round: usize) -> Self {
        let mut vectors = Vectors::default();
        for (register, bytes) in vectors.iter_mut().enumerate() {
            for (at, byte) in bytes.iter_mut().enumerate() {
                *byte = (thread as usize * 31 + round * 7 + register * 17 + at + 1) as u8;
            }
        }
        let number = (f64::from(thread) + round as f64 / 1024.0).to_bits();
        // All exceptions masked; one of the four ways to round.
        let mxcsr = 0x1f80 | u32::from(thread & 3) << 13;
        Self {
            vectors,
            number,
            mxcsr,
        }
    }
}

macro_rules! hold {
    ($move:literal, $register:literal, $held:ident, $seen:ident, $call:ident, $spins:ident) => {
        asm!(
            "ldmxcsr [{held} + 520]",
            "fld qword ptr [{held} + 512]",
            concat!($move, " ", $register, "0, [{held}]"),
            concat!($move, " ", $register, "1, [{held} + 32]"),
            concat!($move, " ", $register, "2, [{held} + 64]"),
            concat!($move, " ", $register, "3, [{held} + 96]"),
            concat!($move, " ", $register, "4, [{held} + 128]"),
            concat!($move, " ", $register, "5, [{held} + 160]"),
            concat!($move, " ", $register, "6, [{held} + 192]"),
            concat!($move, " ", $register, "7, [{held} + 224]"),
            concat!($move, " ", $register, "8, [{held} + 256]"),
            concat!($move, " ", $register, "9, [{held} + 288]"),
            concat!($move, " ", $register, "10, [{held} + 320]"),
            concat!($move, " ", $register, "11, [{held} + 352]"),
            concat!($move, " ", $register, "12, [{held} + 384]"),
            concat!($move, " ", $register, "13, [{held} + 416]"),
            concat!($move, " ", $register, "14, [{held} + 448]"),
            concat!($move, " ", $register, "15, [{held} + 480]"),
            "syscall",
            "2:",
            "dec {spins}",
            "jns 2b",
            concat!($move, " [{seen}], ", $register, "0"),
            concat!($move, " [{seen} + 32], ", $register, "1"),
            concat!($move, " [{seen} + 64], ", $register, "2"),
            concat!($move, " [{seen} + 96], ", $register, "3"),
            concat!($move, " [{seen} + 128], ", $register, "4"),
            concat!($move, " [{seen} + 160], ", $register, "5"),
            concat!($move, " [{seen} + 192], ", $register, "6"),
            concat!($move, " [{seen} + 224], ", $register, "7"),
            concat!($move, " [{seen} + 256], ", $register, "8"),
            concat!($move, " [{seen} + 288], ", $register, "9"),
            concat!($move, " [{seen} + 320], ", $register, "10"),
            concat!($move, " [{seen} + 352], ", $register, "11"),
            concat!($move, " [{seen} + 384], ", $register, "12"),
            concat!($move, " [{seen} + 416], ", $register, "13"),
            concat!($move, " [{seen} + 448], ", $register, "14"),
            concat!($move, " [{seen} + 480], ", $register, "15"),
            "fstp qword ptr [{seen} + 512]",
            "stmxcsr [{seen} + 520]",
            held = in(reg) &raw const $held,
            seen = in(reg) &raw mut $seen,
            spins = inout(reg) $spins => _,
            inout("rax") $call[0] => _,
            in("rdi") $call[1],
            in("rsi") $call[2],
            in("rdx") $call[3],
            out("rcx") _,
            out("r11") _,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
            out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
            out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
            out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
            out("st(0)") _, out("st(1)") _, out("st(2)") _, out("st(3)") _,
            out("st(4)") _, out("st(5)") _, out("st(6)") _, out("st(7)") _,
            options(nostack),
        )
    };
}

/// Fills the registers, makes a system call (`sched_yield` if the step has none of its own),
/// computes for a while, and returns what the registers hold then.
fn hold(held: &Held, step: Step, round: usize) -> Held {
    let held = *held;
    let mut seen = Held {
        vectors: Vectors::default(),
        number: 0,
        mxcsr: 0,
    };
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let (pause, mask) = ([0i64, 20_000], 1u64 << (round % processors));
    let call = match step {
        Step::Yield | Step::Spin => [libc::SYS_sched_yield as usize, 0, 0, 0],
        Step::Sleep => [
            libc::SYS_nanosleep as usize,
            (&raw const pause).addr(),
            0,
            0,
        ],
        Step::Move => [
            libc::SYS_sched_setaffinity as usize,
            0,
            size_of_val(&mask),
            (&raw const mask).addr(),
        ],
    };
    let spins = if matches!(step, Step::Spin) { SPINS } else { 0 };
    let default = 0x1f80u32;
    // SAFETY: the structures are as large as what is loaded and stored; the calls write no memory;
    // the control word is put back; the vector instructions exist where they are used.
    unsafe {
        if is_x86_feature_detected!("avx") {
            hold!("vmovdqu", "ymm", held, seen, call, spins);
            asm!("vzeroupper", options(nostack));
        } else {
            hold!("movdqu", "xmm", held, seen, call, spins);
            for (seen, held) in seen.vectors.iter_mut().zip(&held.vectors) {
                seen[16..].copy_from_slice(&held[16..]);
            }
        }
        asm!("ldmxcsr [{}]", in(reg) &raw const default, options(nostack));
    }
    seen
}

/// Points GS at `word` for this thread.
fn set_gs(word: &u64) -> Result<()> {
    const ARCH_SET_GS: usize = 0x1001;
    // SAFETY: nothing else in the program uses GS.
    let status = unsafe {
        libc::syscall(
            libc::SYS_arch_prctl,
            ARCH_SET_GS,
            std::ptr::from_ref(word).addr(),
        )
    };
    ensure!(
        status == 0,
        "arch_prctl: {}",
        std::io::Error::last_os_error()
    );
    Ok(())
}

/// The word GS points at.
fn through_gs() -> u64 {
    let word;
    // SAFETY: the thread has set GS to a word that lives.
    unsafe { asm!("mov {}, gs:[0]", out(reg) word, options(nostack, readonly)) };
    word
}

fn one_thread(thread: u8, steps: &[Step]) -> Result<()> {
    let word = 0x6767_0000 + u64::from(thread);
    set_gs(&word)?;
    for round in 0..ROUNDS {
        let held = Held::new(thread, round);
        let step = steps[round % steps.len()];
        let mut seen = hold(&held, step, round + usize::from(thread));
        // Whether a result was exact is not what is asked here.
        seen.mxcsr &= !0x3f;
        if seen != held {
            bail!("thread {thread}, round {round}: {held:x?} became {seen:x?}");
        }
        ensure!(
            through_gs() == word,
            "thread {thread}, round {round}: GS points at {:#x}",
            through_gs()
        );
    }
    Ok(())
}

fn everywhere(steps: &'static [Step]) -> Result<()> {
    let threads: Vec<_> = (0..THREADS)
        .map(|n| thread::spawn(move || one_thread(n, steps)))
        .collect();
    threads
        .into_iter()
        .try_for_each(|thread| thread.join().expect("the thread ended well"))
}

/// All on one processor, where each must wait for the others.
fn preempted() -> Result<()> {
    let one = 1u64;
    // SAFETY: the mask is eight bytes long.
    let status = unsafe {
        libc::syscall(
            libc::SYS_sched_setaffinity,
            0,
            size_of_val(&one),
            &raw const one,
        )
    };
    ensure!(
        status == 0,
        "sched_setaffinity: {}",
        std::io::Error::last_os_error()
    );
    everywhere(&[Step::Spin])
}
