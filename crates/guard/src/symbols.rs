//! The kernel's own symbol table, for back traces.
//!
//! The section `.ksyms` is reserved in the image and filled in after linking (`cargo xtask` does it, from the ELF symbol
//! table). All numbers are little-endian:
//!
//! | offset | type | content |
//! |---|---|---|
//! | 0 | `u32` | magic: the bytes `KSYM` |
//! | 4 | `u32` | number of symbols, `n` |
//! | 8 | `n` × (`u32`, `u32`) | address minus `layout::IMAGE`, ascending; offset of the name from the start of the section |
//! | 8 + 8 `n` | bytes | names, demangled, without hash, UTF-8, each ended by a NUL |
//!
//! An image that was not filled in has the magic number and no symbols; back traces then show addresses only. xtask cuts
//! long names, and fails if the symbols do not fit.

use core::ptr;

use abi::layout::IMAGE;

/// Bytes of the section.
const BYTES: usize = 256 << 10;
const MAGIC: u32 = u32::from_le_bytes(*b"KSYM");
const HEADER: usize = 8;
const ENTRY: usize = 8;
/// Longest name that is printed whole.
const LONGEST: usize = 256;

#[used]
#[cfg_attr(target_os = "none", unsafe(link_section = ".ksyms"))]
static TABLE: [u8; BYTES] = {
    let mut bytes = [0; BYTES];
    let magic = MAGIC.to_le_bytes();
    let mut i = 0;
    while i < magic.len() {
        bytes[i] = magic[i];
        i += 1;
    }
    bytes
};

/// The table as it is in the running image.
struct Table;

impl Table {
    /// A byte, read so that the compiler does not assume what it compiled.
    fn byte(&self, offset: usize) -> Option<u8> {
        let byte = TABLE.get(offset)?;
        // SAFETY: a reference to a byte of the static.
        Some(unsafe { ptr::read_volatile(byte) })
    }
}

trait Source {
    fn at(&self, offset: usize) -> Option<u8>;
}

impl Source for Table {
    fn at(&self, offset: usize) -> Option<u8> {
        self.byte(offset)
    }
}

fn word(source: &impl Source, offset: usize) -> Option<u32> {
    let mut bytes = [0; 4];
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = source.at(offset + i)?;
    }
    Some(u32::from_le_bytes(bytes))
}

fn entry(source: &impl Source, index: usize) -> Option<(u32, u32)> {
    let at = HEADER + index * ENTRY;
    Some((word(source, at)?, word(source, at + 4)?))
}

/// The last symbol that starts at or before `address`: offset of its name, and distance.
fn find(source: &impl Source, address: u32) -> Option<(usize, u32)> {
    if word(source, 0)? != MAGIC {
        return None;
    }
    let (mut low, mut high) = (0, word(source, 4)? as usize);
    while low < high {
        let middle = low + (high - low) / 2;
        if entry(source, middle)?.0 <= address {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    let (start, name) = entry(source, low.checked_sub(1)?)?;
    Some((name as usize, address - start))
}

fn name<'a>(source: &impl Source, offset: usize, buffer: &'a mut [u8; LONGEST]) -> Option<&'a str> {
    let mut length = 0;
    while length < LONGEST {
        match source.at(offset + length)? {
            0 => break,
            byte => buffer[length] = byte,
        }
        length += 1;
    }
    match core::str::from_utf8(&buffer[..length]) {
        Ok(text) => Some(text),
        Err(error) => core::str::from_utf8(&buffer[..error.valid_up_to()]).ok(),
    }
}

/// Calls `use_it` with the name of the function at `address` and the distance from its start.
pub(crate) fn lookup<R>(address: u64, use_it: impl FnOnce(&str, u32) -> R) -> Option<R> {
    let offset = u32::try_from(address.checked_sub(IMAGE as u64)?).ok()?;
    let (at, distance) = find(&Table, offset)?;
    let mut buffer = [0; LONGEST];
    let name = name(&Table, at, &mut buffer)?;
    Some(use_it(name, distance))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Bytes(Vec<u8>);

    impl Source for Bytes {
        fn at(&self, offset: usize) -> Option<u8> {
            self.0.get(offset).copied()
        }
    }

    fn sample() -> Bytes {
        let mut bytes = Vec::from(*b"KSYM");
        let names = b"start\0middle::of\0";
        for word in [2u32, 0x100, 24, 0x200, 30] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(names);
        Bytes(bytes)
    }

    fn at(address: u32) -> Option<(String, u32)> {
        let table = sample();
        let (offset, distance) = find(&table, address)?;
        let mut buffer = [0; LONGEST];
        name(&table, offset, &mut buffer).map(|n| (n.into(), distance))
    }

    #[test]
    fn the_symbol_before_an_address_is_found() {
        assert_eq!(at(0xff), None);
        assert_eq!(at(0x100), Some(("start".into(), 0)));
        assert_eq!(at(0x1ff), Some(("start".into(), 0xff)));
        assert_eq!(at(0x5000), Some(("middle::of".into(), 0x4e00)));
    }

    #[test]
    fn a_broken_table_is_no_symbol() {
        let mut table = sample();
        table.0[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(find(&table, 0x100).is_none());
        assert!(find(&Bytes(Vec::new()), 0).is_none());
        let mut buffer = [0; LONGEST];
        assert!(name(&sample(), 1000, &mut buffer).is_none());
    }

    #[test]
    fn the_unfilled_image_has_no_symbols() {
        assert!(lookup(IMAGE as u64 + 0x1000, |_, _| ()).is_none());
    }
}
