//! The configuration of a disk (section 5.2.4), checked.

use core::fmt;

use virtqueue::{Transport, TransportError, config};

use super::{SECTOR, feature};

/// Ranges that an operation without data takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranges {
    /// Bytes of one request, at most.
    pub max: u64,
    /// Bytes that ranges had better be multiples of; at least a sector.
    pub alignment: u64,
}

/// Properties of a disk, as it has told them and as they were negotiated. Sizes are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Properties {
    /// Size of the disk.
    pub capacity: u64,
    /// Smallest unit of a request: a power of two from 512 to 4,096.
    pub block: u32,
    /// Smallest unit that the device writes without reading.
    pub physical_block: u32,
    /// Best size of a request, or 0.
    pub optimal_io: u32,
    /// True if it refuses changes.
    pub read_only: bool,
    /// True if writes may be lost with the power until they are flushed.
    pub has_cache: bool,
    /// Pieces of data of one request, at most.
    pub pieces: u32,
    /// Bytes of one piece, at most.
    pub piece: u32,
    /// Queues for requests.
    pub queues: u16,
    /// Cylinders, heads and sectors, as partition tables of old count; zeroes if it has none.
    pub geometry: (u16, u8, u8),
    /// Ranges that can be discarded.
    pub discard: Option<Ranges>,
    /// Ranges that can be made zeros.
    pub write_zeroes: Option<Ranges>,
}

/// A configuration that cannot be: the name of its field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadConfig(pub &'static str);

impl fmt::Display for BadConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the device's {} cannot be", self.0)
    }
}

impl core::error::Error for BadConfig {}

/// Offsets of fields.
pub(super) mod field {
    pub const CAPACITY: usize = 0;
    pub const SIZE_MAX: usize = 8;
    pub const SEG_MAX: usize = 12;
    pub const GEOMETRY: usize = 16;
    pub const BLOCK_SIZE: usize = 20;
    pub const PHYSICAL_EXPONENT: usize = 24;
    pub const OPTIMAL_IO: usize = 28;
    pub const QUEUES: usize = 34;
    pub const DISCARD_SECTORS: usize = 36;
    pub const DISCARD_SEGMENTS: usize = 40;
    pub const DISCARD_ALIGNMENT: usize = 44;
    pub const ZEROES_SECTORS: usize = 48;
    pub const ZEROES_SEGMENTS: usize = 52;
    /// All of them.
    pub const END: usize = 60;
}

/// Bytes of the configuration that there are with these features.
fn config_len(features: u64) -> usize {
    [
        (feature::WRITE_ZEROES, field::END),
        (feature::DISCARD, field::ZEROES_SECTORS),
        (feature::QUEUES, field::DISCARD_SECTORS),
        (feature::TOPOLOGY, 32),
        (feature::BLOCK_SIZE, field::PHYSICAL_EXPONENT),
        (feature::GEOMETRY, field::BLOCK_SIZE),
        (feature::SEG_MAX, field::GEOMETRY),
        (feature::SIZE_MAX, field::SEG_MAX),
    ]
    .iter()
    .find(|(bit, _)| features & bit != 0)
    .map_or(field::SIZE_MAX, |(_, end)| *end)
}

impl Properties {
    /// Reads what a device says of itself, with these features, as it was at one moment.
    pub(super) fn read(
        transport: &impl Transport,
        features: u64,
    ) -> Result<Result<Self, BadConfig>, TransportError> {
        let mut bytes = [0; field::END];
        config(transport, 0, &mut bytes[..config_len(features)])?;
        Ok(Self::check(&bytes, features))
    }

    fn check(bytes: &[u8; field::END], features: u64) -> Result<Self, BadConfig> {
        let has = |bit| features & bit != 0;
        let long = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let with = |bit, at, otherwise| if has(bit) { long(at) } else { otherwise };
        let capacity =
            u64::from(long(field::CAPACITY)) | u64::from(long(field::CAPACITY + 4)) << 32;
        let capacity = capacity.checked_mul(SECTOR).ok_or(BadConfig("capacity"))?;
        let block = with(feature::BLOCK_SIZE, field::BLOCK_SIZE, SECTOR as u32);
        if !block.is_power_of_two() || !(512..=4096).contains(&block) {
            return Err(BadConfig("block size"));
        }
        let exponent = if has(feature::TOPOLOGY) {
            u32::from(bytes[field::PHYSICAL_EXPONENT])
        } else {
            0
        };
        let physical_block = 1_u32
            .checked_shl(exponent)
            .and_then(|blocks| blocks.checked_mul(block))
            .ok_or(BadConfig("physical block size"))?;
        let optimal_io = with(feature::TOPOLOGY, field::OPTIMAL_IO, 0).saturating_mul(block);
        let pieces = with(feature::SEG_MAX, field::SEG_MAX, 1);
        let piece = with(feature::SIZE_MAX, field::SIZE_MAX, u32::MAX);
        let queues = if has(feature::QUEUES) {
            u16::from_le_bytes([bytes[field::QUEUES], bytes[field::QUEUES + 1]])
        } else {
            1
        };
        if pieces == 0 || queues == 0 {
            return Err(BadConfig("number of segments or queues"));
        }
        if u64::from(piece) < SECTOR {
            return Err(BadConfig("size of a segment"));
        }
        // A request has one range, of so many sectors.
        let ranges = |sectors, segments, alignment: u32| {
            (long(sectors) > 0 && long(segments) > 0).then(|| Ranges {
                max: u64::from(long(sectors)) * SECTOR,
                alignment: u64::from(alignment.max(1)) * SECTOR,
            })
        };
        let discard = ranges(
            field::DISCARD_SECTORS,
            field::DISCARD_SEGMENTS,
            long(field::DISCARD_ALIGNMENT),
        );
        let write_zeroes = ranges(field::ZEROES_SECTORS, field::ZEROES_SEGMENTS, 1);
        Ok(Self {
            // Half a block at the end is nobody's.
            capacity: capacity - capacity % u64::from(block),
            block,
            physical_block,
            optimal_io,
            read_only: has(feature::READ_ONLY),
            has_cache: has(feature::FLUSH),
            pieces,
            piece,
            queues,
            geometry: if has(feature::GEOMETRY) {
                let [low, high, heads, sectors] = long(field::GEOMETRY).to_le_bytes();
                (u16::from_le_bytes([low, high]), heads, sectors)
            } else {
                (0, 0, 0)
            },
            discard: discard.filter(|_| has(feature::DISCARD)),
            write_zeroes: write_zeroes.filter(|_| has(feature::WRITE_ZEROES)),
        })
    }
}
