//! Faults on purpose: what the tests of isolation between instances use. The supervisor refuses.

use core::hint::black_box;
use core::ptr;
use core::sync::atomic::{AtomicBool, Ordering};

use crate::arch::apic;
use crate::{cpu, role};

/// A way for a kernel to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// `panic!`.
    Panic,
    /// Reads a kernel address that is not mapped.
    Wild,
    /// Stops this CPU with interrupts off, for ever.
    Hang,
    /// The same, deaf to NMIs as well: only a reset gets the CPU back.
    Deaf,
    /// Runs out of kernel stack.
    Overflow,
}

impl Fault {
    /// By the name tests write to `/proc/skerry/fault`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "panic" => Self::Panic,
            "wild" => Self::Wild,
            "hang" => Self::Hang,
            "deaf" => Self::Deaf,
            "overflow" => Self::Overflow,
            _ => return None,
        })
    }
}

/// This instance's NMIs are not to be answered.
static DEAF: AtomicBool = AtomicBool::new(false);

/// Fails as told. Returns only in the supervisor, where it does nothing.
pub fn inject(fault: Fault) {
    if role::is_supervisor() {
        return;
    }
    match fault {
        Fault::Panic => panic!("on purpose"),
        Fault::Wild => {
            // The far end of the area for stacks: never handed out, so never mapped.
            let nowhere = abi::layout::MMIO - 2 * abi::layout::PAGE_SIZE;
            // SAFETY: not sound, and not meant to be: the read faults, which ends this instance before its result exists.
            black_box(unsafe { ptr::read_volatile(nowhere as *const u64) });
        }
        Fault::Hang => hang(),
        Fault::Deaf => {
            DEAF.store(true, Ordering::SeqCst);
            apic::send_nmi(apic::id());
            hang();
        }
        Fault::Overflow => {
            black_box(dig(1));
        }
    }
}

/// Called by the NMI handler first of all: stays there, where no other NMI is taken, if that is the fault.
pub(crate) fn on_nmi() {
    if DEAF.load(Ordering::Relaxed) {
        hang();
    }
}

fn hang() -> ! {
    cpu::irqs_off();
    loop {
        black_box(());
    }
}

#[expect(unconditional_recursion, reason = "that is the fault")]
fn dig(depth: u64) -> u64 {
    let filler = black_box([depth; 64]);
    black_box(dig(depth + 1)) + filler[63]
}
