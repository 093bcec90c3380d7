//! The execution domain of a process (`personality(2)`).

use core::sync::atomic::{AtomicU8, Ordering};

use crate::Task;

/// A bit of the personality: the next programs are where they always are.
pub(crate) const ADDR_NO_RANDOMIZE: u32 = 0x004_0000;
/// Bit of `personality(2)`: `uname(2)` shows a release of 2.6.
pub(crate) const UNAME26: u32 = 0x002_0000;
/// `select(2)` and its fellows leave the time that was given.
pub(crate) const STICKY_TIMEOUTS: u32 = 0x400_0000;
/// Bit of `personality(2)`: memory that can be read can be executed, too.
pub(crate) const READ_IMPLIES_EXEC: u32 = 0x040_0000;
pub(crate) const MMAP_PAGE_ZERO: u32 = 0x010_0000;
/// Memory is laid out from below.
pub(crate) const ADDR_COMPAT_LAYOUT: u32 = 0x020_0000;
/// Bits that are cleared when a program gets more privileges than its caller has.
pub(crate) const PER_CLEAR_ON_SETID: u32 =
    ADDR_NO_RANDOMIZE | ADDR_COMPAT_LAYOUT | MMAP_PAGE_ZERO | READ_IMPLIES_EXEC;

/// Whether a bit of the caller's personality is set.
pub(crate) fn has_personality_bit(task: &Task, bit: u32) -> bool {
    task.process().personality.load(Ordering::Relaxed) & bit != 0
}

/// `/proc/sys/kernel/randomize_va_space`: 0, programs are where they always are; 1, all is at
/// random addresses but the heap, which follows the program; 2, the heap too.
pub(crate) static RANDOMIZE_VA_SPACE: AtomicU8 = AtomicU8::new(2);
