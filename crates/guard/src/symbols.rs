//! The kernel's own symbol table, for back traces: the section `.ksyms` of the running image, in
//! the format of `ksyms`.

use core::ptr;

use abi::layout::IMAGE;
use ksyms::{MAGIC, Source};

/// Bytes of the section.
const BYTES: usize = 320 << 10;

#[used]
#[cfg_attr(target_os = "none", unsafe(link_section = ".ksyms"))]
static TABLE: [u8; BYTES] = {
    let mut bytes = [0; BYTES];
    let mut i = 0;
    while i < MAGIC.len() {
        bytes[i] = MAGIC[i];
        i += 1;
    }
    bytes
};

/// The table as it is in the running image.
struct Table;

impl Source for Table {
    /// A byte, read so that the compiler does not assume what it compiled.
    fn at(&self, offset: usize) -> Option<u8> {
        let byte = TABLE.get(offset)?;
        // SAFETY: a reference to a byte of the static.
        Some(unsafe { ptr::read_volatile(byte) })
    }
}

/// Calls `use_it` with the name of the function at `address` and the distance from its start.
pub(crate) fn lookup<R>(address: u64, use_it: impl FnOnce(&str, u32) -> R) -> Option<R> {
    let offset = u32::try_from(address.checked_sub(IMAGE as u64)?).ok()?;
    ksyms::lookup(&Table, offset, use_it)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unfilled_image_has_no_symbols() {
        assert!(lookup(IMAGE as u64 + 0x1000, |_, _| ()).is_none());
    }
}
