//! The direct map: frame `f` is at `DIRECT + f * 4096`, as long as this instance owns it and has
//! not granted it away.
//!
//! Pages of programs change under the kernel's feet (a program may write to its page while the
//! kernel copies from it), so their bytes are moved by string instructions in assembly, of which
//! the compiler assumes nothing, and never through references. Miri, which interprets the tests and
//! knows no assembly, gets what does the same.

#[cfg(not(miri))]
use core::arch::asm;

use abi::layout::PAGE_SIZE;

use super::frame::Frame;

/// Start of the direct map.
#[cfg(target_os = "none")]
fn base() -> usize {
    abi::layout::DIRECT
}

/// Unit tests pretend.
#[cfg(not(target_os = "none"))]
use super::host::base;

/// Address of a frame in the direct map. The pointer may be used as long as the frame is owned and
/// mapped.
pub(crate) fn ptr(frame: Frame) -> *mut u8 {
    core::ptr::with_exposed_provenance_mut(base() + frame.0 as usize * PAGE_SIZE)
}

/// The frame that a pointer into the direct map points to.
pub(super) fn frame_at(ptr: *const u8) -> Frame {
    Frame(((ptr.expose_provenance() - base()) / PAGE_SIZE) as u64)
}

/// Zeroes `pages` pages.
///
/// # Safety
/// `at` is page-aligned, the pages are mapped for writing, and nobody holds references to their
/// content.
pub(crate) unsafe fn zero(at: *mut u8, pages: usize) {
    #[cfg(miri)]
    // SAFETY: as the caller says.
    return unsafe { at.write_bytes(0, pages * PAGE_SIZE) };
    #[cfg(not(miri))]
    // SAFETY: writes exactly `pages * 512` words from `at`, which the caller owns; the direction
    // flag is clear by the ABI.
    unsafe {
        asm!(
            "rep stosq",
            inout("rcx") pages * (PAGE_SIZE / 8) => _,
            inout("rdi") at => _,
            in("rax") 0u64,
            options(nostack, preserves_flags),
        );
    }
}

/// Copies `len` bytes.
///
/// # Safety
/// `from` is mapped for reading and `to` for writing, `len` bytes each; they do not overlap. Both
/// may be changed by others meanwhile, in which case the copy holds some mixture.
pub(crate) unsafe fn copy(to: *mut u8, from: *const u8, len: usize) {
    #[cfg(miri)]
    // SAFETY: as the caller says.
    return unsafe { to.copy_from_nonoverlapping(from, len) };
    #[cfg(not(miri))]
    // SAFETY: reads `len` bytes at `from` and writes `len` bytes at `to`, as the caller allows;
    // words first, then the odd bytes. The direction flag is clear by the ABI.
    unsafe {
        asm!(
            "rep movsq",
            "mov ecx, {odd:e}",
            "rep movsb",
            odd = in(reg) len % 8,
            inout("rcx") len / 8 => _,
            inout("rdi") to => _,
            inout("rsi") from => _,
            options(nostack, preserves_flags),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_any_length() {
        let from: Vec<u8> = (0..40).collect();
        for len in 0..from.len() {
            let mut to = [0xee_u8; 40];
            // SAFETY: two arrays of 40 bytes.
            unsafe { copy(to.as_mut_ptr(), from.as_ptr(), len) };
            assert_eq!(&to[..len], &from[..len]);
            assert!(to[len..].iter().all(|byte| *byte == 0xee));
        }
    }

    #[test]
    fn zeroes_whole_pages() {
        let mut memory = vec![1_u8; 3 * PAGE_SIZE];
        // SAFETY: the middle page of the vector; alignment does not matter to the instruction.
        unsafe { zero(memory.as_mut_ptr().add(PAGE_SIZE), 1) };
        assert_eq!(memory.iter().filter(|byte| **byte == 0).count(), PAGE_SIZE);
        assert_eq!((memory[PAGE_SIZE - 1], memory[2 * PAGE_SIZE]), (1, 1));
    }
}
