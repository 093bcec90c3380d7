//! What a controller says of itself and its namespaces (section 5.15.2).

use alloc::vec::Vec;
use core::fmt;

use crate::PAGE;

/// Bytes of each of the structures.
pub(crate) const BYTES: usize = PAGE;
/// Namespaces that are used, at most.
pub(crate) const MAX_NAMESPACES: usize = 32;

/// Description that cannot be, or that is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nonsense {
    /// Entries of queues do not have the sizes that the standard requires.
    EntrySizes,
    /// The list of namespaces is not in order, or names one that there is not.
    List,
    /// The format of blocks that is in use is not in the table.
    Format,
    /// Blocks have so many bytes, as a power of two: neither 512 nor 4096 nor between.
    BlockSize(u8),
    /// Blocks have metadata, so many bytes.
    Metadata(u16),
    /// The namespace has no block, or more than bytes can be counted.
    Capacity(u64),
}

impl fmt::Display for Nonsense {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EntrySizes => f.write_str("its queues have entries of other sizes"),
            Self::List => f.write_str("its list of namespaces is not in order"),
            Self::Format => f.write_str("its format of blocks is not in its table"),
            Self::BlockSize(bits) => write!(f, "its blocks have 2^{bits} bytes"),
            Self::Metadata(bytes) => write!(f, "its blocks have {bytes} bytes of metadata each"),
            Self::Capacity(blocks) => write!(f, "it has {blocks} blocks"),
        }
    }
}

impl core::error::Error for Nonsense {}

fn number<const N: usize>(bytes: &[u8; BYTES], at: usize) -> [u8; N] {
    let mut number = [0; N];
    number.copy_from_slice(&bytes[at..at + N]);
    number
}

/// Description of a controller (figure 247), as far as it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Serial number, in ASCII with blanks at its end.
    pub serial: [u8; 20],
    /// Model, in ASCII with blanks at its end.
    pub model: [u8; 40],
    /// Revision of its firmware, in ASCII with blanks at its end.
    pub firmware: [u8; 8],
    /// Vendor of the function, and of the board it is on.
    pub vendors: [u16; 2],
    /// Number of the controller in its subsystem.
    pub number: u16,
    /// Kind of controller: 1 for one that reads and writes, 0 if it does not say.
    pub kind: u8,
    /// Name of its subsystem, in UTF-8 with zeros at its end; all zeros if it has none.
    pub subsystem: [u8; Self::NAME],
    /// Bytes of a transfer, at most.
    pub transfer: usize,
    /// Number of the last namespace that there can be.
    pub last_namespace: u32,
    /// Whether blocks can be given up.
    pub has_discard: bool,
    /// Whether blocks can be made zeros.
    pub has_write_zeroes: bool,
    /// Whether what was written may be in a cache that is lost with the power.
    pub has_cache: bool,
    /// Whether data may be told of by runs of memory (scatter-gather lists), of whole words.
    pub takes_runs: bool,
}

impl Identity {
    /// Bytes of a name of a subsystem, at most, with a zero at its end.
    pub const NAME: usize = 256;
    /// Transfer of a controller that says that it has no limit, and of one that says that it has
    /// more.
    const MAX_TRANSFER_BITS: u8 = 18;

    pub(crate) fn parse(bytes: &[u8; BYTES]) -> Result<Self, Nonsense> {
        let takes = |at: usize, bits: u8| {
            let (least, most) = (bytes[at] & 0xf, bytes[at] >> 4);
            (least..=most).contains(&bits)
        };
        if !takes(512, 6) || !takes(513, 4) {
            return Err(Nonsense::EntrySizes);
        }
        let transfer_bits = match bytes[77] {
            0 => Self::MAX_TRANSFER_BITS,
            bits => bits.min(Self::MAX_TRANSFER_BITS),
        };
        let optional = u16::from_le_bytes(number(bytes, 520));
        Ok(Self {
            serial: number(bytes, 4),
            model: number(bytes, 24),
            firmware: number(bytes, 64),
            vendors: [0, 2].map(|at| u16::from_le_bytes(number(bytes, at))),
            number: u16::from_le_bytes(number(bytes, 78)),
            kind: bytes[111],
            subsystem: number(bytes, 768),
            transfer: PAGE << transfer_bits,
            last_namespace: u32::from_le_bytes(number(bytes, 516)),
            has_discard: optional & 1 << 2 != 0,
            has_write_zeroes: optional & 1 << 3 != 0,
            has_cache: bytes[525] & 1 != 0,
            takes_runs: matches!(bytes[536] & 0b11, 1 | 2),
        })
    }
}

/// Description of a namespace (figure 245), as far as it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// Number of the namespace.
    pub id: u32,
    /// Bytes of a block, as a power of two: 9 to 12.
    pub block_bits: u8,
    /// Number of blocks.
    pub blocks: u64,
    /// Whether the namespace refuses changes.
    pub is_read_only: bool,
}

impl Namespace {
    pub(crate) fn parse(id: u32, bytes: &[u8; BYTES]) -> Result<Self, Nonsense> {
        let blocks = u64::from_le_bytes(number(bytes, 0));
        let (last_format, in_use) = (bytes[25], bytes[26]);
        let index = in_use & 0xf;
        if index > last_format {
            return Err(Nonsense::Format);
        }
        let format = u32::from_le_bytes(number(bytes, 128 + 4 * usize::from(index)));
        let (metadata, block_bits) = (format as u16, (format >> 16) as u8);
        if metadata != 0 {
            return Err(Nonsense::Metadata(metadata));
        }
        if !(9..=12).contains(&block_bits) {
            return Err(Nonsense::BlockSize(block_bits));
        }
        // Bytes are counted by numbers with a sign.
        if blocks == 0 || blocks > i64::MAX as u64 >> block_bits {
            return Err(Nonsense::Capacity(blocks));
        }
        Ok(Self {
            id,
            block_bits,
            blocks,
            is_read_only: bytes[99] & 1 != 0,
        })
    }

    /// Bytes of a block.
    #[must_use]
    pub const fn block(&self) -> u32 {
        1 << self.block_bits
    }

    /// Bytes of the namespace.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        self.blocks << self.block_bits
    }
}

/// The numbers of a list of namespaces, and whether there are more than are used.
pub(crate) fn parse_list(
    bytes: &[u8; BYTES],
    last_namespace: u32,
) -> Result<(Vec<u32>, bool), Nonsense> {
    let mut list: Vec<u32> = Vec::new();
    let mut numbers = bytes.chunks_exact(4).map(|bytes| {
        let mut number = [0; 4];
        number.copy_from_slice(bytes);
        u32::from_le_bytes(number)
    });
    let mut last = 0;
    for id in numbers.by_ref().take_while(|id| *id != 0) {
        if id <= last || id > last_namespace {
            return Err(Nonsense::List);
        }
        last = id;
        if list.len() == MAX_NAMESPACES {
            return Ok((list, true));
        }
        list.push(id);
    }
    Ok((list, false))
}
