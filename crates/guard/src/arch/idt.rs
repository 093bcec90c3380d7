//! The interrupt descriptor table: one for all CPUs, each vector with its own entry stub in `trap`.

use core::arch::asm;
use core::cell::UnsafeCell;
use core::mem::size_of;
use core::sync::atomic::{AtomicBool, Ordering};

use super::gdt;
use super::trap;

#[derive(Clone, Copy)]
#[repr(C, align(16))]
struct Gate {
    low: u64,
    high: u64,
}

impl Gate {
    /// An interrupt gate (interrupts off inside) to kernel code.
    const fn new(handler: u64, dpl: u64, ist: u8) -> Self {
        let low = handler & 0xffff
            | (gdt::KERNEL_CODE as u64) << 16
            | (ist as u64) << 32
            | (0x8e | dpl << 5) << 40
            | (handler >> 16 & 0xffff) << 48;
        Self { low, high: handler >> 32 }
    }
}

#[repr(C, align(4096))]
struct Table(UnsafeCell<[Gate; 256]>);

// SAFETY: written once by the first CPU before any CPU loads it, read by the processor only.
unsafe impl Sync for Table {}

static TABLE: Table = Table(UnsafeCell::new([Gate { low: 0, high: 0 }; 256]));
static FILLED: AtomicBool = AtomicBool::new(false);

#[repr(C, packed)]
struct TablePointer {
    limit: u16,
    base: u64,
}

/// Loads the table, after filling it if this is the first CPU.
pub fn load() {
    if !FILLED.load(Ordering::Acquire) {
        for vector in 0..=255u8 {
            let dpl = match vector {
                // INT3 and INTO are for programs; INT n with any other vector is a general protection fault.
                3 | 4 => 3,
                _ => 0,
            };
            let ist = match vector {
                2 => gdt::IST_NMI,
                // A debug exception that waits behind MOV SS comes before the kernel has a stack; see `trap`.
                1 | 8 => gdt::IST_DOUBLE_FAULT,
                18 => gdt::IST_MACHINE_CHECK,
                _ => 0,
            };
            let gate = Gate::new(trap::stub(vector), dpl, ist);
            // SAFETY: only the first CPU gets here, before any other runs.
            unsafe { (*TABLE.0.get())[usize::from(vector)] = gate };
        }
        FILLED.store(true, Ordering::Release);
    }
    let pointer = TablePointer { limit: (256 * size_of::<Gate>() - 1) as u16, base: TABLE.0.get() as u64 };
    // SAFETY: the table is static and complete, and every handler in it saves and restores what it must.
    unsafe { asm!("lidt [{}]", in(reg) &raw const pointer, options(readonly, nostack, preserves_flags)) };
}
