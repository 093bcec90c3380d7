//! Scatter-gather lists (section 4.4): a command's data as runs of memory, each of which may be
//! long, instead of page by page.

use virtqueue::Address;

use crate::PAGE;

/// Descriptor of a list: where something is, how long it is, and what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Descriptor(pub(crate) [u8; Descriptor::BYTES]);

impl Descriptor {
    pub(crate) const BYTES: usize = 16;
    /// Types, in the upper half of the last byte.
    pub(crate) const DATA: u8 = 0;
    pub(crate) const LAST_SEGMENT: u8 = 3 << 4;

    fn new(at: Address, len: u32, kind: u8) -> Self {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&at.number().to_le_bytes());
        bytes[8..12].copy_from_slice(&len.to_le_bytes());
        bytes[15] = kind;
        Self(bytes)
    }

    /// A run of data.
    pub(crate) fn data((at, len): (Address, u32)) -> Self {
        Self::new(at, len, Self::DATA)
    }

    /// The descriptors of all data, which lie one behind the other.
    pub(crate) fn last_segment(at: Address, bytes: usize) -> Self {
        Self::new(at, bytes as u32, Self::LAST_SEGMENT)
    }
}

/// The runs of data of so many bytes in whole pages, of the last of which a part may be meant.
pub(crate) fn runs(pages: &[Address], bytes: usize) -> impl Iterator<Item = (Address, u32)> {
    let mut left = bytes;
    let follows = |one: &Address, next: &Address| one.plus(PAGE as u64) == *next;
    pages.chunk_by(follows).map(move |run| {
        let len = left.min(run.len() * PAGE);
        left -= len;
        (run[0], len as u32)
    })
}
