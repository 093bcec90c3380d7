//! The kernel's symbol table for back traces: the format of the image's section `.ksyms`, and how a
//! name is found in it.
//!
//! The section is reserved in the image and filled in after linking (`cargo xtask` does it, from
//! the ELF symbol table). All numbers are little-endian:
//!
//! | offset | type | content |
//! |---|---|---|
//! | 0 | `u32` | magic: the bytes `KSYM` |
//! | 4 | `u32` | number of symbols, `n` |
//! | 8 | `n` × (`u32`, `u32`) | address minus `layout::IMAGE`, ascending; offset of the name from the start of the section |
//! | 8 + 8 `n` | bytes | names, demangled, without hash, UTF-8, each ended by a NUL |
//!
//! An image that was not filled in has the magic number and no symbols; back traces then show
//! addresses only. xtask cuts long names, and fails if the symbols do not fit.
#![no_std]
#![forbid(unsafe_code)]

/// First bytes of a table.
pub const MAGIC: [u8; 4] = *b"KSYM";
/// Bytes before the first symbol.
pub const HEADER: usize = 8;
/// Bytes of a symbol.
pub const ENTRY: usize = 8;
/// Longest name that is printed whole.
const MAX_NAME: usize = 256;

/// Bytes of a table, which may be anywhere.
pub trait Source {
    /// The byte at an offset; `None` beyond the end.
    fn at(&self, offset: usize) -> Option<u8>;
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
    if word(source, 0)? != u32::from_le_bytes(MAGIC) {
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

fn name<'a>(
    source: &impl Source,
    offset: usize,
    buffer: &'a mut [u8; MAX_NAME],
) -> Option<&'a str> {
    let mut length = 0;
    while length < MAX_NAME {
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

/// Calls `use_it` with the name of the function at `offset` from the image's start, and the
/// distance from the function's start.
pub fn lookup<R>(
    source: &impl Source,
    offset: u32,
    use_it: impl FnOnce(&str, u32) -> R,
) -> Option<R> {
    let (at, distance) = find(source, offset)?;
    let mut buffer = [0; MAX_NAME];
    let name = name(source, at, &mut buffer)?;
    Some(use_it(name, distance))
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::string::String;
    use std::vec::Vec;

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
        lookup(&sample(), address, |name, distance| (name.into(), distance))
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
        let mut buffer = [0; MAX_NAME];
        assert!(name(&sample(), 1000, &mut buffer).is_none());
    }
}
