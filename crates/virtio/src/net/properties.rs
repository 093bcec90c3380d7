//! The configuration of a network card (section 5.1.4), checked.

use core::fmt;

use virtqueue::{Transport, TransportError, config};

use super::{ETHERNET, MAC, TAG, feature};

/// Properties of a network card, as it has told them and as they were negotiated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Properties {
    /// The card's address: one station's, and not zero.
    pub mac: [u8; MAC],
    /// Bytes of a frame after its Ethernet header, at most; at least 68.
    pub mtu: u16,
    /// True if the card tells whether its link is up.
    pub has_link_status: bool,
    /// True if a received frame may be in several buffers.
    pub(super) merges: bool,
}

/// A configuration that cannot be: the name of its field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadConfig(pub &'static str);

impl fmt::Display for BadConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the card's {} cannot be", self.0)
    }
}

impl core::error::Error for BadConfig {}

/// Offsets of fields.
mod field {
    pub const MAC: usize = 0;
    pub const STATUS: usize = 6;
    pub const QUEUE_PAIRS: usize = 8;
    pub const MTU: usize = 10;
    /// All of them.
    pub const END: usize = 12;
}

/// Bit of the card's status: the link is up.
const LINK_UP: u8 = 1;
/// MTU of a card that tells none: that of Ethernet.
const USUAL_MTU: u16 = 1500;
/// Smallest MTU that IPv4 can do with (RFC 791, section 3.2).
const SMALLEST_MTU: u16 = 68;

/// Bytes of the configuration that there are with these features.
fn config_len(features: u64) -> usize {
    if features & feature::MTU != 0 {
        field::END
    } else if features & feature::STATUS != 0 {
        field::QUEUE_PAIRS
    } else {
        field::STATUS
    }
}

/// A configuration, as the device's end tells it.
pub(super) fn encode(mac: [u8; MAC], mtu: u16, is_link_up: bool) -> [u8; field::END] {
    let mut bytes = [0; field::END];
    bytes[field::MAC..field::STATUS].copy_from_slice(&mac);
    bytes[field::STATUS] = if is_link_up { LINK_UP } else { 0 };
    bytes[field::QUEUE_PAIRS] = 1;
    bytes[field::MTU..].copy_from_slice(&mtu.to_le_bytes());
    bytes
}

impl Properties {
    /// Reads what a card says of itself, with these features, as it was at one moment.
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
        let mut mac = [0; MAC];
        mac.copy_from_slice(&bytes[field::MAC..field::STATUS]);
        let is_group = mac[0] & 1 != 0;
        if is_group || mac == [0; MAC] {
            return Err(BadConfig("MAC address"));
        }
        let mtu = if has(feature::MTU) {
            u16::from_le_bytes([bytes[field::MTU], bytes[field::MTU + 1]])
        } else {
            USUAL_MTU
        };
        if mtu < SMALLEST_MTU {
            return Err(BadConfig("MTU"));
        }
        Ok(Self {
            mac,
            mtu,
            has_link_status: has(feature::STATUS),
            merges: has(feature::MERGE),
        })
    }

    /// Bytes of a frame, at most.
    pub(super) fn max_frame(&self) -> usize {
        usize::from(self.mtu) + ETHERNET + TAG
    }

    /// Whether the link is up; that of a card which does not tell is.
    pub(super) fn is_link_up(&self, transport: &impl Transport) -> Result<bool, TransportError> {
        if !self.has_link_status {
            return Ok(true);
        }
        let mut status = [0; 2];
        config(transport, field::STATUS, &mut status)?;
        Ok(status[0] & LINK_UP != 0)
    }
}
