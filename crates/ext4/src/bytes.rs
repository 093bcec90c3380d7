//! Numbers in structures on disk. An offset outside of the structure is `EUCLEAN`: the place was
//! computed from what the disk says.

use abi::errno::Errno;

use crate::Result;

macro_rules! getters {
    ($($name:ident $number:ty, $from:ident, $order:literal;)*) => {$(
        #[doc = concat!("A ", $order, "-endian number at an offset.")]
        pub fn $name(bytes: &[u8], at: usize) -> Result<$number> {
            let rest = bytes.get(at..).and_then(|rest| rest.first_chunk());
            rest.map(|raw| <$number>::$from(*raw)).ok_or(Errno::EUCLEAN)
        }
    )*};
}

macro_rules! setters {
    ($($name:ident $number:ty, $to:ident, $order:literal;)*) => {$(
        #[doc = concat!("Stores a ", $order, "-endian number at an offset.")]
        pub fn $name(bytes: &mut [u8], at: usize, value: $number) -> Result<()> {
            let rest = bytes.get_mut(at..).and_then(|rest| rest.first_chunk_mut());
            *rest.ok_or(Errno::EUCLEAN)? = value.$to();
            Ok(())
        }
    )*};
}

getters! {
    u16_at u16, from_le_bytes, "little";
    u32_at u32, from_le_bytes, "little";
    be32_at u32, from_be_bytes, "big";
    be64_at u64, from_be_bytes, "big";
}

setters! {
    put_u16 u16, to_le_bytes, "little";
    put_u32 u32, to_le_bytes, "little";
    put_be16 u16, to_be_bytes, "big";
    put_be32 u32, to_be_bytes, "big";
    put_be64 u64, to_be_bytes, "big";
}

/// A byte at an offset.
pub fn u8_at(bytes: &[u8], at: usize) -> Result<u8> {
    bytes.get(at).copied().ok_or(Errno::EUCLEAN)
}

/// A part of a structure.
pub fn part(bytes: &[u8], at: usize, len: usize) -> Result<&[u8]> {
    let end = at.checked_add(len).ok_or(Errno::EUCLEAN)?;
    bytes.get(at..end).ok_or(Errno::EUCLEAN)
}

/// A part of a structure that is to be changed.
pub fn part_mut(bytes: &mut [u8], at: usize, len: usize) -> Result<&mut [u8]> {
    let end = at.checked_add(len).ok_or(Errno::EUCLEAN)?;
    bytes.get_mut(at..end).ok_or(Errno::EUCLEAN)
}

/// A number in two parts, the high one 16 or 32 bits from the low one's width on.
pub fn joined(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

/// The low half of a number.
pub fn low(value: u64) -> u32 {
    value as u32
}

/// The high half of a number.
pub fn high(value: u64) -> u32 {
    (value >> 32) as u32
}
