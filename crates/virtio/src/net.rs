//! Network cards: virtio 1.3, section 5.1, with one pair of queues and without offloads.

mod device;
mod nic;
mod properties;
mod receive;
mod server;
#[cfg(test)]
mod tests;
mod transmit;
mod window;

use core::fmt;

pub use device::{Collected, Port};
pub use nic::{Nic, Shape, StartError, Started};
pub use properties::{BadConfig, Properties};
pub use receive::{ReceiveQueue, Received};
pub use server::{Server, Stopped};
pub use transmit::{NotSent, TransmitQueue};
use virtqueue::{Rule, Unreachable};
pub use window::{Bell, WindowMemory, WindowTransport, window_memory};

/// Bytes of an Ethernet header: two addresses and a type.
pub const ETHERNET: usize = 14;
/// Bytes of the tag of a VLAN, by which a header may be longer.
const TAG: usize = 4;
/// Bytes of a MAC address.
pub const MAC: usize = 6;

/// Features of network cards, by bit (section 5.1.3).
mod feature {
    pub const MTU: u64 = 1 << 3;
    pub const MAC: u64 = 1 << 5;
    /// Received frames may be in several buffers (`VIRTIO_NET_F_MRG_RXBUF`).
    pub const MERGE: u64 = 1 << 15;
    pub const STATUS: u64 = 1 << 16;
    /// All of these.
    pub const ALL: u64 = MTU | MAC | MERGE | STATUS;
}

/// Numbers of the queues (section 5.1.2).
mod number {
    pub const RECEIVE: u16 = 0;
    pub const TRANSMIT: u16 = 1;
}

/// Bytes of a header (section 5.1.6).
const HEADER: usize = 12;
/// Flag of a header: the checksum is to be filled in.
const NEEDS_CHECKSUM: u8 = 1;

/// The header before each frame in a queue (section 5.1.6), as far as it means something without
/// offloads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Header {
    flags: u8,
    /// Kind of segments that the frame is to be cut into, or was put together from.
    segments: u8,
    /// Buffers of a received frame.
    buffers: u16,
}

impl Header {
    fn to_bytes(self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        (bytes[0], bytes[1]) = (self.flags, self.segments);
        bytes[10..].copy_from_slice(&self.buffers.to_le_bytes());
        bytes
    }

    fn from_bytes(bytes: [u8; HEADER]) -> Self {
        Self {
            flags: bytes[0],
            segments: bytes[1],
            buffers: u16::from_le_bytes([bytes[10], bytes[11]]),
        }
    }

    /// Refuses what was not negotiated. Flags that mean nothing here are not looked at (section
    /// 5.1.6.4.3).
    fn check(self) -> Result<(), Broken> {
        if self.segments != 0 || self.flags & NEEDS_CHECKSUM != 0 {
            return Err(Broken::Offload {
                flags: self.flags,
                segments: self.segments,
            });
        }
        Ok(())
    }
}

/// A rule that the other end has broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// A rule of the rings.
    Ring(Rule),
    /// A frame has so few bytes that it has no header.
    NoHeader(u64),
    /// A frame is said to be in so many buffers, which are none or more than there are.
    Buffers(u16),
    /// A frame has something to be done with it that was not negotiated.
    Offload {
        /// Flags of the header.
        flags: u8,
        /// Kind of segments.
        segments: u8,
    },
}

impl From<Rule> for Broken {
    fn from(rule: Rule) -> Self {
        Self::Ring(rule)
    }
}

impl From<Unreachable> for Broken {
    fn from(gone: Unreachable) -> Self {
        Self::Ring(gone.into())
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ring(rule) => rule.fmt(f),
            Self::NoHeader(bytes) => write!(f, "a frame has {bytes} bytes and so no header"),
            Self::Buffers(buffers) => write!(f, "a frame is said to be in {buffers} buffers"),
            Self::Offload { flags, segments } => write!(
                f,
                "a frame wants what was not negotiated: flags {flags:#x}, segments {segments}"
            ),
        }
    }
}

impl core::error::Error for Broken {}
