//! Layout of queues in memory, and their parts.

use core::fmt;

use bitflags::bitflags;

use crate::memory::{Address, Memory};
use crate::rule::Rule;

bitflags! {
    /// Features of queues, as the two ends have negotiated them, by their bits among the device's
    /// features (section 6).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Features: u64 {
        /// Chains may be in tables of their own (`VIRTIO_F_INDIRECT_DESC`).
        const INDIRECT = 1 << 28;
        /// Notifications are wished for by index (`VIRTIO_F_EVENT_IDX`).
        const EVENT_IDX = 1 << 29;
        /// The device follows version 1 or later of the specification (`VIRTIO_F_VERSION_1`).
        const VERSION_1 = 1 << 32;
        /// Addresses are what the platform makes of them, not those of frames
        /// (`VIRTIO_F_ACCESS_PLATFORM`).
        const ACCESS_PLATFORM = 1 << 33;
        /// Queues are packed, not split (`VIRTIO_F_RING_PACKED`).
        const PACKED = 1 << 34;
        /// Single queues can be reset (`VIRTIO_F_RING_RESET`).
        const RING_RESET = 1 << 40;
    }
}

/// One piece of a buffer, contiguous for the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Address of the first byte.
    pub at: Address,
    /// Bytes.
    pub len: u32,
}

/// Whether anything was left when an end said that it wants to be told of more.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// Nothing: the next thing is notified.
    Nothing,
    /// Something came in between: take it, then ask again.
    Something,
}

/// Addresses of the three parts of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Areas {
    /// The table of descriptors, or the packed ring.
    pub descriptors: Address,
    /// The driver's area: the available ring, or its wish.
    pub driver: Address,
    /// The device's area: the used ring, or its wish.
    pub device: Address,
}

/// Bytes of a descriptor.
pub(crate) const DESCRIPTOR: u64 = 16;
/// Bytes of an element of the used ring.
const USED: u64 = 8;

impl Areas {
    /// The three parts one after the other from a multiple of 16 on, with room for either layout.
    #[must_use]
    pub fn at(base: Address, size: u16) -> Self {
        let size = u64::from(size);
        let driver = base.plus(DESCRIPTOR * size);
        Self {
            descriptors: base,
            driver,
            device: driver.plus((6 + 2 * size).next_multiple_of(4)),
        }
    }

    /// Bytes that [`Self::at`] takes, a multiple of 16.
    #[must_use]
    pub fn bytes(size: u16) -> u64 {
        let end = Self::at(Address::new(0), size).device;
        (end.number() + 6 + USED * u64::from(size)).next_multiple_of(16)
    }

    pub(crate) fn descriptor(&self, index: u16) -> Address {
        self.descriptors.plus(DESCRIPTOR * u64::from(index))
    }

    pub(crate) fn available_flags(&self) -> Address {
        self.driver
    }

    pub(crate) fn available_index(&self) -> Address {
        self.driver.plus(2)
    }

    pub(crate) fn available(&self, slot: u16) -> Address {
        self.driver.plus(4 + 2 * u64::from(slot))
    }

    /// The index at which the driver wants an interrupt.
    pub(crate) fn used_event(&self, size: u16) -> Address {
        self.available(size)
    }

    pub(crate) fn used_flags(&self) -> Address {
        self.device
    }

    pub(crate) fn used_index(&self) -> Address {
        self.device.plus(2)
    }

    pub(crate) fn used(&self, slot: u16) -> Address {
        self.device.plus(4 + USED * u64::from(slot))
    }

    /// The index at which the device wants a notification.
    pub(crate) fn available_event(&self, size: u16) -> Address {
        self.used(size)
    }
}

/// A queue as the two ends have agreed on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setup {
    /// Descriptors: up to 32,768; a power of two unless the queue is packed.
    pub size: u16,
    /// Addresses of the queue's parts.
    pub areas: Areas,
    /// Features that were negotiated.
    pub features: Features,
}

/// Why there is no queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetupError {
    /// The size is none (see [`Setup::size`]), or the limit of a chain is none within the size.
    Size,
    /// A part is not aligned (section 2.7).
    Alignment,
    /// A part is not in the memory.
    Unreachable,
    /// There is no memory for the queue's own state.
    NoMemory,
}

impl fmt::Display for SetupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Size => "no queue has this number of descriptors, or no chain of it",
            Self::Alignment => "a part of the queue is not aligned",
            Self::Unreachable => "a part of the queue is not in the memory",
            Self::NoMemory => "no memory for a queue",
        })
    }
}

impl core::error::Error for SetupError {}

impl Setup {
    /// Checks everything that the calls on the queue rely on.
    pub(crate) fn check(&self, memory: &impl Memory) -> Result<(), SetupError> {
        let packed = self.has(Features::PACKED);
        let fits = if packed {
            (1..=1 << 15).contains(&self.size)
        } else {
            // A number of 16 bits that is a power of two is 32,768 at most.
            self.size.is_power_of_two()
        };
        if !fits {
            return Err(SetupError::Size);
        }
        let size = u64::from(self.size);
        let (driver, device) = if packed {
            ((4, 4), (4, 4))
        } else {
            ((6 + 2 * size, 2), (6 + USED * size, 4))
        };
        let parts = [
            (self.areas.descriptors, DESCRIPTOR * size, 16),
            (self.areas.driver, driver.0, driver.1),
            (self.areas.device, device.0, device.1),
        ];
        for (at, len, alignment) in parts {
            if !at.number().is_multiple_of(alignment) {
                return Err(SetupError::Alignment);
            }
            if !memory.reaches(at, len) {
                return Err(SetupError::Unreachable);
            }
        }
        Ok(())
    }

    pub(crate) fn has(&self, feature: Features) -> bool {
        self.features.contains(feature)
    }

    /// Descriptors of a chain's own table, by the descriptor that stands for it.
    pub(crate) fn table_len(&self, piece: Piece, flags: Flags) -> Result<u32, Rule> {
        let whole = u64::from(piece.len).is_multiple_of(DESCRIPTOR) && piece.len > 0;
        if !self.has(Features::INDIRECT) || flags.contains(Flags::NEXT) || !whole {
            return Err(Rule::Table);
        }
        Ok(piece.len / DESCRIPTOR as u32)
    }

    /// The place of an index in its ring.
    pub(crate) fn slot(&self, index: u16) -> u16 {
        index & (self.size - 1)
    }
}

bitflags! {
    /// Flags of a descriptor (sections 2.7.5 and 2.8); there are others for packed rings.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Flags: u16 {
        const NEXT = 1;
        const WRITE = 2;
        const INDIRECT = 4;
    }
}

/// A descriptor, copied out of or into a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Descriptor {
    pub piece: Piece,
    pub flags: Flags,
    pub next: u16,
}

impl Descriptor {
    pub fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.piece.at.number().to_le_bytes());
        bytes[8..12].copy_from_slice(&self.piece.len.to_le_bytes());
        bytes[12..14].copy_from_slice(&self.flags.bits().to_le_bytes());
        bytes[14..].copy_from_slice(&self.next.to_le_bytes());
        bytes
    }

    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        let number = u128::from_le_bytes(bytes);
        Self {
            piece: Piece {
                at: Address::new(number as u64),
                len: (number >> 64) as u32,
            },
            flags: Flags::from_bits_truncate((number >> 96) as u16),
            next: (number >> 112) as u16,
        }
    }
}

/// Progress of an end, and the place up to which it has asked whether to tell the other.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Progress {
    index: u16,
    told: u16,
}

impl Progress {
    pub fn index(self) -> u16 {
        self.index
    }

    /// One more. An end that does not ask for 65,535 of them forgets the first ones, and not all.
    pub fn advance(&mut self) {
        if self.index.wrapping_sub(self.told) == u16::MAX {
            self.told = self.told.wrapping_add(1);
        }
        self.index = self.index.wrapping_add(1);
    }

    /// The steps since the last such call, as where they began and where they end.
    pub fn tell(&mut self) -> (u16, u16) {
        (core::mem::replace(&mut self.told, self.index), self.index)
    }
}
