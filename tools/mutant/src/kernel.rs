//! In a kernel: the choice is in the image, and what is come by goes to QEMU's debug port.

use core::arch::asm;
use core::sync::atomic::{AtomicBool, Ordering};

/// QEMU's debug port (`-debugcon`).
const PORT: u16 = 0xe9;
/// Turns to wait for another processor's frame: a kernel that panics in the middle of one must not
/// stop the others.
const PATIENCE: u32 = 1 << 20;

/// The choice: `xtask` finds the symbol in the linked image and writes the number there. Read-only
/// data, because instances get the image as it is in the file.
#[used]
#[unsafe(no_mangle)]
static SKERRY_MUTANT: u32 = 0;

#[inline]
pub(crate) fn chosen() -> u32 {
    // SAFETY: a static that nobody writes; volatile, because its value is not the one that the
    // compiler sees.
    unsafe { core::ptr::read_volatile(&raw const SKERRY_MUTANT) }
}

pub(crate) fn time() -> u32 {
    // SAFETY: reading the time-stamp counter has no effect on memory.
    (unsafe { core::arch::x86_64::_rdtsc() } >> 20) as u32
}

/// Writes a frame, whole unless another kernel writes at the same time.
pub(crate) fn tell(value: u32) {
    static BUSY: AtomicBool = AtomicBool::new(false);
    let flags: u64;
    // SAFETY: saves the flags and masks interrupts, so that no handler on this processor waits for
    // the frame it interrupted; the red zone is off in kernels, so the push harms nothing.
    unsafe { asm!("pushfq", "pop {}", "cli", out(reg) flags) };
    let mut patience = PATIENCE;
    while BUSY.swap(true, Ordering::Acquire) && patience > 0 {
        patience -= 1;
    }
    for byte in crate::frame(value) {
        // SAFETY: a port that QEMU's debug device alone answers; without it, nothing does.
        unsafe {
            asm!("out dx, al", in("dx") PORT, in("al") byte, options(nomem, nostack, preserves_flags))
        };
    }
    BUSY.store(false, Ordering::Release);
    if flags & 1 << 9 != 0 {
        // SAFETY: interrupts were on when this function was entered.
        unsafe { asm!("sti", options(nomem, nostack)) };
    }
}
