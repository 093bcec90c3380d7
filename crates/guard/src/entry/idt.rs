//! The interrupt descriptor table: one for all CPUs, each vector with its own entry stub in `trap`.

use core::arch::asm;
use core::cell::UnsafeCell;
use core::mem::size_of;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering};

use x86_spec::interrupt::{
    BREAKPOINT, DEBUG, DOUBLE_FAULT, Gate, MACHINE_CHECK, NMI, OVERFLOW, VECTORS,
};
use x86_spec::segment::TablePointer;

use super::{gdt, isolation, trap};
use crate::speculation;

#[repr(C, align(4096))]
struct Table(UnsafeCell<[Gate; VECTORS]>);

// SAFETY: written once by the first CPU before any CPU loads it, read by the processor only.
unsafe impl Sync for Table {}

static TABLE: Table = Table(UnsafeCell::new([Gate::NONE; VECTORS]));
static FILLED: AtomicBool = AtomicBool::new(false);

/// Addresses of the table.
pub(crate) fn range() -> Range<usize> {
    let start = TABLE.0.get().addr();
    start..start + size_of::<Table>()
}

/// Loads the table, after filling it if this is the first CPU.
pub fn load() {
    if !FILLED.load(Ordering::Acquire) {
        let entry = speculation::entry();
        for vector in 0..=255u8 {
            let dpl = match vector {
                // INT3 and INTO are for programs; INT n with any other vector is a general
                // protection fault.
                BREAKPOINT | OVERFLOW => 3,
                _ => 0,
            };
            let ist = match vector {
                NMI => gdt::IST_NMI,
                // A debug exception that waits behind MOV SS comes before the kernel has a stack;
                // see `trap`.
                DEBUG | DOUBLE_FAULT => gdt::IST_DOUBLE_FAULT,
                MACHINE_CHECK => gdt::IST_MACHINE_CHECK,
                _ => 0,
            };
            let gate = Gate::interrupt(
                trap::stub(vector, entry, isolation::is_on()),
                gdt::KERNEL_CODE,
                dpl,
                ist,
            );
            // SAFETY: only the first CPU gets here, before any other runs.
            unsafe { (*TABLE.0.get())[usize::from(vector)] = gate };
        }
        FILLED.store(true, Ordering::Release);
    }
    let pointer = TablePointer::new(TABLE.0.get() as u64, size_of::<Table>());
    // SAFETY: the table is static and complete, and every handler in it saves and restores what it
    // must.
    unsafe {
        asm!("lidt [{}]", in(reg) &raw const pointer, options(readonly, nostack, preserves_flags));
    };
}
