//! Machine checks: what hardware has found wrong, by the processor's banks.
//!
//! Corrected errors are counted. An uncorrected one in memory that nobody has used yet ends the
//! instance it belongs to: its own kernel where it is told, the supervisor where that one is. (An
//! Intel machine tells all processors, and each looks into its own banks only, so most of them find
//! nothing and go on.) One that a program has met is that program's: it is interrupted before its
//! next instruction, and `user::enter` tells of it. Free memory is retired. Whatever cannot be told
//! apart, and what the kernel itself has met, is the end of the kernel it hits.
//!
//! A handler runs on a stack of its own and may have interrupted anything: it takes no lock.

use core::sync::atomic::{AtomicU64, Ordering};

use abi::window::BadFrames;
use x86_spec::interrupt::MACHINE_CHECK;
use x86_spec::machine_check::{self as spec, Error, capabilities, global};

use crate::arch::features::{self, Features};
use crate::arch::{apic, cpu, msr};
use crate::entry::trap::KernelFrame;
use crate::log::early;
use crate::mem::Page;
use crate::mem::frame::Frame;
use crate::mem::phys::{self, PhysAddr};
use crate::{irq, mem, park, role};

/// Errors that were corrected, and those that were not.
static CORRECTED: AtomicU64 = AtomicU64::new(0);
static UNCORRECTED: AtomicU64 = AtomicU64::new(0);
/// Frames of the supervisor's numbering with an error, that nobody has taken yet.
static BAD: BadFrames = BadFrames::new();

/// Bits of a code segment's selector that are its ring.
const RING: u64 = 3;

/// Counts since this kernel's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Errors that hardware corrected.
    pub corrected: u64,
    /// Errors that it did not, those found at the start included.
    pub uncorrected: u64,
    /// Pages that are not used any more.
    pub retired: u64,
    /// Supervisor: exceptions that CPUs in the park page took.
    pub parked: u64,
}

/// The counts of this kernel. Those of a CPU that has taken no exception are as old as its last
/// [`poll`].
#[must_use]
pub fn counts() -> Counts {
    Counts {
        corrected: CORRECTED.load(Ordering::Relaxed),
        uncorrected: UNCORRECTED.load(Ordering::Relaxed),
        retired: mem::retired_frames(),
        parked: park::machine_checks(),
    }
}

/// A page of the machine's memory that has lost what was in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadPage(Frame);

impl BadPage {
    /// Takes the page out of use if it is free; `false` if it is not (any more, or yet).
    #[must_use]
    pub fn retire(&self) -> bool {
        mem::retire(self.0)
    }

    /// Whether this is `page`.
    #[must_use]
    pub fn is(&self, page: &Page) -> bool {
        page.frame() == self.0
    }

    pub(crate) fn frame(&self) -> Frame {
        self.0
    }
}

/// Supervisor: the next page with an uncorrected error that nobody has taken yet. The doorbell's
/// handler runs when there is one.
#[must_use]
pub fn next_bad_page() -> Option<BadPage> {
    BAD.take().map(|frame| BadPage(Frame(frame)))
}

/// Looks into the banks of the CPU this runs on, for errors that were not worth an exception.
pub fn poll() {
    cpu::without_irqs(|| {
        scan(Interrupted::Nobody);
    });
}

/// Meaning of all banks of a CPU together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// Nothing that keeps anybody from going on.
    Harmless,
    /// Bad memory of this instance's own, which the interrupted program has met.
    Consumed(Frame),
    /// Bad memory of this instance's own.
    OwnMemory,
    /// The end of this kernel.
    Fatal,
}

fn available() -> bool {
    features::has(Features::MCE)
}

fn read_capabilities() -> u64 {
    // SAFETY: the register exists where there are machine checks, and reading it has no effect.
    unsafe { msr::read(spec::CAPABILITIES) }
}

fn banks(capabilities: u64) -> core::ops::Range<u32> {
    0..(capabilities & capabilities::COUNT) as u32
}

/// Switches reporting on, and takes note of what the CPU has seen before: with another owner, or
/// before the reset that an error was the reason for.
///
/// # Panics
/// If it has seen an error in this instance's memory.
pub(super) fn init_cpu() {
    if !available() {
        return;
    }
    let capabilities = read_capabilities();
    // SAFETY: the registers exist: as many banks as the processor says, and the global control
    // where it says so. All ones reports everything; the exception's handler is in place.
    unsafe {
        if capabilities & capabilities::CONTROL != 0 {
            msr::write(spec::GLOBAL_CONTROL, u64::MAX);
        }
        for bank in banks(capabilities) {
            msr::write(spec::control(bank), u64::MAX);
        }
    }
    assert!(
        scan(Interrupted::Nobody) != Found::OwnMemory,
        "an uncorrected error in the memory of this instance"
    );
    // SAFETY: no machine check is under way; the next one must not be a shutdown.
    unsafe { msr::write(spec::GLOBAL_STATUS, 0) };
}

/// Code that runs on the CPU when its banks are looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Interrupted {
    /// None that an error could be fatal to: whom it would have been is gone, so there is made
    /// room.
    Nobody,
    /// The kernel. A fatal error stays, for the panic to print and for the kernel after the reset.
    Kernel,
    /// A program: likewise, but what it has met itself is not fatal to the kernel.
    Program,
}

/// Takes what is in this CPU's banks, and makes room.
fn scan(interrupted: Interrupted) -> Found {
    let mut found = Found::Harmless;
    if !available() {
        return found;
    }
    let capabilities = read_capabilities();
    for bank in banks(capabilities) {
        // SAFETY: the registers of a bank that there is. The address is read where the status says
        // that it exists, and writing 0 to the status only makes room.
        unsafe {
            let status = msr::read(spec::bank_status(bank));
            match spec::meaning(capabilities, status) {
                Error::Nothing => {}
                Error::Corrected => {
                    CORRECTED.fetch_add(1, Ordering::Relaxed);
                }
                error => {
                    UNCORRECTED.fetch_add(1, Ordering::Relaxed);
                    let address = || PhysAddr(msr::read(spec::address(bank)));
                    let one = meaning_for(interrupted, error, address);
                    if one == Found::Fatal && interrupted != Interrupted::Nobody {
                        found = one;
                        continue;
                    }
                    if rank(one) > rank(found) {
                        found = one;
                    }
                }
            }
            msr::write(spec::bank_status(bank), 0);
        }
    }
    found
}

/// The meaning of an uncorrected error for whoever runs.
fn meaning_for(
    interrupted: Interrupted,
    error: Error,
    address: impl FnOnce() -> PhysAddr,
) -> Found {
    match (error, interrupted) {
        (Error::Consumed, Interrupted::Program) => {
            phys::frame_at(address()).map_or(Found::Fatal, |frame| {
                tell_supervisor(frame);
                Found::Consumed(frame)
            })
        }
        (Error::Memory, _) | (Error::Consumed, Interrupted::Nobody) => {
            if note(address()) {
                Found::OwnMemory
            } else {
                Found::Harmless
            }
        }
        _ => Found::Fatal,
    }
}

/// Order of findings: the worst of several banks' counts.
fn rank(found: Found) -> u8 {
    match found {
        Found::Harmless => 0,
        Found::Consumed(_) => 1,
        Found::OwnMemory => 2,
        Found::Fatal => 3,
    }
}

/// Takes note of bad memory; `true` if it is this instance's own, which then ends. The supervisor
/// leaves it to its node thread.
fn note(at: PhysAddr) -> bool {
    let Some(frame) = phys::frame_at(at) else {
        return false;
    };
    if tell_supervisor(frame) {
        return true;
    }
    if BAD.note(frame.0) && apic::is_ready() {
        apic::send_self(irq::DOORBELL_VECTOR);
    }
    false
}

/// In an instance: notes in the window that a frame must have no owner any more once this one has
/// ended. `false` in the supervisor.
fn tell_supervisor(frame: Frame) -> bool {
    // What does not fit is more than a machine survives.
    role::window().is_some_and(|window| {
        window.bad_frames.note(frame.0);
        true
    })
}

/// The exception: returns if the interrupted code can go on, or is a program that is interrupted
/// before it does.
pub(crate) fn on_exception(frame: &KernelFrame) -> bool {
    let count = &cpu::area().interrupts[usize::from(MACHINE_CHECK)];
    count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    // SAFETY: the register exists where the exception does.
    let restart = unsafe { msr::read(spec::GLOBAL_STATUS) } & global::RESTART_VALID != 0;
    let interrupted = if frame.cs & RING == 0 {
        Interrupted::Kernel
    } else {
        Interrupted::Program
    };
    let goes_on = restart
        && match scan(interrupted) {
            Found::Harmless => true,
            Found::Consumed(bad) => {
                cpu::area().consumed.store(bad.0 + 1, Ordering::Relaxed);
                apic::send_self(irq::MEMORY_ERROR_VECTOR);
                true
            }
            Found::OwnMemory | Found::Fatal => false,
        };
    // SAFETY: as above. The banks are read: the next one must not be a shutdown, also where this
    // is the end of the kernel.
    unsafe { msr::write(spec::GLOBAL_STATUS, 0) };
    goes_on
}

/// The page with an error that the program on this CPU has met, once. Interrupts are off.
pub(crate) fn take_consumed() -> Option<BadPage> {
    let frame = cpu::area().consumed.swap(0, Ordering::Relaxed);
    frame.checked_sub(1).map(|frame| BadPage(Frame(frame)))
}

/// For a panic: prints what the banks still hold.
pub(crate) fn print() {
    if !available() {
        return;
    }
    for bank in banks(read_capabilities()) {
        // SAFETY: the register of a bank that there is.
        let status = unsafe { msr::read(spec::bank_status(bank)) };
        if status & spec::status::VALID != 0 {
            early!("  bank {bank}: status {status:016x}");
        }
    }
}
