//! What tables ask of an address of either family.

use core::net::{Ipv4Addr, Ipv6Addr};

/// An address of IPv4 or IPv6.
pub trait Address: Copy + Ord + core::fmt::Debug {
    /// Bits of an address.
    const BITS: u8;
    /// Bytes of packets that each path is believed to carry.
    const LEAST_PATH: u16;

    /// The first bits, with zeros behind them; `length` is not above [`Self::BITS`].
    #[must_use]
    fn masked(self, length: u8) -> Self;

    /// The bits, folded.
    #[must_use]
    fn folded(self) -> u32;
}

impl Address for Ipv4Addr {
    const BITS: u8 = 32;
    /// Linux `min_pmtu`.
    const LEAST_PATH: u16 = 552;

    fn masked(self, length: u8) -> Self {
        let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
        (u32::from(self) & mask).into()
    }

    fn folded(self) -> u32 {
        self.into()
    }
}

impl Address for Ipv6Addr {
    const BITS: u8 = 128;
    /// RFC 8200, section 5.
    const LEAST_PATH: u16 = 1280;

    fn masked(self, length: u8) -> Self {
        let mask = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
        (u128::from(self) & mask).into()
    }

    fn folded(self) -> u32 {
        let bits = u128::from(self);
        [0, 32, 64, 96].iter().fold(0, |sum: u32, shift| {
            sum.rotate_left(7) ^ (bits >> shift) as u32
        })
    }
}
