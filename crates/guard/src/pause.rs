//! An instance that is paused: its CPUs stand still where they are, and go on when they are told
//! (`docs/partitions.md`; the supervisor's part is `partition::pause`).
//!
//! The supervisor changes [`Orders::pause`] and sends an NMI. Its handler sends an interrupt to its
//! own CPU, which is taken as soon as the CPU takes interrupts: nobody stands still in a section
//! that holds others up with interrupts off. The handler of that one halts, with interrupts off,
//! until the order is another one. All that comes meanwhile waits in the local APIC; only an NMI is
//! taken, and by that the CPU is parked if it must be.
//!
//! No wake-up is lost: an NMI that comes between the last look at the order and the halt has that
//! look repeated, by moving the interrupted instruction back (`before_return`).

use core::sync::atomic::{AtomicU32, Ordering};

use abi::window::{Heartbeat, Orders};

use crate::arch::{apic, cpu};
use crate::entry::trap::KernelFrame;
use crate::irq::{self, Hook};
use crate::{BootToken, ipi, role};

/// Told before and after this CPU stands still.
static HANDLER: Hook<fn(bool)> = Hook::new();

/// Sets what runs on a CPU right before it stands still (`true`) and when it goes on (`false`), in
/// an interrupt handler.
pub fn set_handler(_: &BootToken, handler: fn(bool)) {
    HANDLER.set(handler);
}

#[cfg(target_os = "none")]
core::arch::global_asm!(
    ".pushsection .text.pause, \"ax\", @progbits",
    ".globl skerry_pause_wait",
    ".globl skerry_pause_halt",
    // rdi: address of the order; esi: the order obeyed.
    "skerry_pause_wait:",
    "cmp [rdi], esi",
    "jne 2f",
    "skerry_pause_halt:",
    "hlt",
    "jmp skerry_pause_wait",
    "2: ret",
    ".popsection",
);

#[cfg(target_os = "none")]
unsafe extern "C" {
    fn skerry_pause_wait(order: *const AtomicU32, obeyed: u32);
    static skerry_pause_halt: u8;
}

/// Halts until the order is another one than that which is obeyed. Interrupts are off.
#[cfg(target_os = "none")]
fn wait(order: &AtomicU32, obeyed: u32) {
    // SAFETY: it reads that word and nothing else, follows the calling convention, and changes no
    // register that is the caller's.
    unsafe { skerry_pause_wait(order, obeyed) };
}

#[cfg(not(target_os = "none"))]
fn wait(_: &AtomicU32, _: u32) {}

/// The address at which code goes on that an NMI has interrupted there.
#[cfg(target_os = "none")]
fn resumption(interrupted: u64) -> u64 {
    let first = skerry_pause_wait as *const () as u64;
    let halt = (&raw const skerry_pause_halt).addr() as u64;
    if (first..=halt).contains(&interrupted) {
        first
    } else {
        interrupted
    }
}

#[cfg(not(target_os = "none"))]
fn resumption(interrupted: u64) -> u64 {
    interrupted
}

/// The part of the NMI handler's: has the CPU stand still, if that is ordered, as soon as it takes
/// interrupts; if it does already, it looks at the order anew.
pub(crate) fn before_return(frame: &mut KernelFrame, orders: &Orders) {
    frame.rip = resumption(frame.rip);
    let stands_still = own().is_some_and(|heart| heart.stands_still.load(Ordering::Relaxed) != 0);
    if !stands_still && Orders::asks_to_pause(orders.pause.load(Ordering::Acquire)) {
        apic::send_self(irq::PAUSE_VECTOR);
    }
}

fn own() -> Option<&'static Heartbeat> {
    role::window()?.heartbeats.get(cpu::current().0 as usize)
}

/// The handler of the interrupt: stands still for as long as that is ordered. Interrupts are off.
pub(crate) fn stand_still() {
    let (Some(window), Some(heart)) = (role::window(), own()) else {
        return;
    };
    let order = &window.orders.pause;
    let mut obeyed = order.load(Ordering::Acquire);
    if !Orders::asks_to_pause(obeyed) {
        return;
    }
    if let Some(handler) = HANDLER.get() {
        handler(true);
    }
    while Orders::asks_to_pause(obeyed) {
        heart.stands_still.store(obeyed, Ordering::Release);
        ipi::ring_peer();
        wait(order, obeyed);
        obeyed = order.load(Ordering::Acquire);
    }
    heart.stands_still.store(0, Ordering::Release);
    heart.beat();
    if let Some(handler) = HANDLER.get() {
        handler(false);
    }
}
