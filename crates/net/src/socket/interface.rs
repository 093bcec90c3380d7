//! Network interfaces, as whatever lists them sees them.

use alloc::vec::Vec;
use core::net::IpAddr;

/// A network interface.
#[derive(Clone, Debug)]
pub struct Interface {
    /// The interface's number, from 1 on.
    pub index: u32,
    /// The interface's name.
    pub name: &'static str,
    /// `IFF_*`.
    pub flags: u32,
    /// `ARPHRD_*`.
    pub hardware_type: u16,
    /// The largest packet, bytes.
    pub mtu: u32,
    /// The hardware's address.
    pub hardware_address: [u8; 6],
    /// The interface's addresses, each with the length of its network's prefix.
    pub addresses: Vec<(IpAddr, u8)>,
}

impl Interface {
    /// The hardware's address, with room behind it as `struct sockaddr_ll` has.
    pub(crate) fn padded_hardware_address(&self) -> [u8; 8] {
        let [a, b, c, d, e, f] = self.hardware_address;
        [a, b, c, d, e, f, 0, 0]
    }
}

/// The interfaces of a network.
pub trait Interfaces: Send + Sync {
    /// The interfaces, in the order of their numbers.
    fn interfaces(&self) -> Vec<Interface>;
}
