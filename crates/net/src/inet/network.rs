//! What carries between hosts: the trait that a network is, and the one that every instance has,
//! the loop.

use super::{ConnectRequest, Datagram, frame, ip, tcp};
use crate::packet;
use abi::errno::Errno;
use alloc::vec;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use fs::Result;
use linux_raw_sys::net;
use task::Once;

/// A network interface.
#[derive(Clone, Debug)]
pub struct Interface {
    /// Its number, from 1 on.
    pub index: u32,
    /// Its name.
    pub name: &'static str,
    /// `IFF_*`.
    pub flags: u32,
    /// `ARPHRD_*`.
    pub hardware_type: u16,
    /// The largest packet, bytes.
    pub mtu: u32,
    /// The hardware's address.
    pub hardware_address: [u8; 6],
    /// Its addresses, each with the length of its network's prefix.
    pub addresses: Vec<(IpAddr, u8)>,
}

impl Interface {
    /// The hardware's address, with room behind it as `struct sockaddr_ll` has.
    pub(crate) fn padded_hardware_address(&self) -> [u8; 8] {
        let [a, b, c, d, e, f] = self.hardware_address;
        [a, b, c, d, e, f, 0, 0]
    }
}

/// How an address is reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Route {
    /// The interface.
    pub interface_index: u32,
    /// The address packets come from.
    pub source: IpAddr,
    /// Whether it is this host.
    pub local: bool,
}

/// What carries connections and datagrams between sockets, and to other hosts. The guarantees are
/// in `docs/sockets.md`.
pub trait Network: Send + Sync {
    /// The interfaces, in the order of their numbers.
    fn interfaces(&self) -> Vec<Interface>;

    /// The route to `to`.
    ///
    /// # Errors
    /// `ENETUNREACH`, `EHOSTUNREACH`.
    fn route(&self, to: IpAddr) -> Result<Route>;

    /// Begins a connection; the opening is told what becomes of it, before this returns or later.
    fn connect(&self, request: ConnectRequest);

    /// Carries a datagram. What is lost on its way is not told.
    ///
    /// # Errors
    /// `ECONNREFUSED` if it is known at once that nobody is there.
    fn transmit(&self, datagram: Datagram) -> Result<()>;
}

static NETWORK: Once<&'static dyn Network> = Once::new();

/// Sets what carries. The first call counts; without one it is the loop alone.
pub fn set(network: &'static dyn Network) {
    NETWORK.call_once(|| network);
}

/// What carries.
pub fn current() -> &'static dyn Network {
    NETWORK.get().copied().unwrap_or(&Loopback)
}

/// Whether an address is one of this host's.
pub(super) fn is_local_address(ip: IpAddr) -> bool {
    current().route(ip).is_ok_and(|route| route.local)
}

/// The instance itself, and nobody else.
pub struct Loopback;

impl Loopback {
    /// The number of its interface.
    pub const INDEX: u32 = 1;
    const MTU: u32 = 65_536;
    const LOOPBACK: u16 = 772;
}

impl Network for Loopback {
    fn interfaces(&self) -> Vec<Interface> {
        vec![Interface {
            index: Self::INDEX,
            name: "lo",
            flags: net::net_device_flags::IFF_UP as u32
                | net::net_device_flags::IFF_LOOPBACK as u32
                | net::net_device_flags::IFF_RUNNING as u32
                | net::net_device_flags::IFF_LOWER_UP as u32,
            hardware_type: Self::LOOPBACK,
            mtu: Self::MTU,
            hardware_address: [0; 6],
            addresses: vec![
                (Ipv4Addr::LOCALHOST.into(), 8),
                (Ipv6Addr::LOCALHOST.into(), 128),
            ],
        }]
    }

    fn route(&self, to: IpAddr) -> Result<Route> {
        match to {
            // All of 127.0.0.0/8 is this host; to its own addresses it speaks from the same one, as
            // Linux does.
            IpAddr::V4(ip) if ip.is_loopback() => Ok(Route {
                interface_index: Self::INDEX,
                source: to,
                local: true,
            }),
            IpAddr::V6(Ipv6Addr::LOCALHOST) => Ok(Route {
                interface_index: Self::INDEX,
                source: to,
                local: true,
            }),
            _ => Err(Errno::ENETUNREACH),
        }
    }

    fn connect(&self, request: ConnectRequest) {
        tcp::handle_connect_request(request);
    }

    fn transmit(&self, datagram: Datagram) -> Result<()> {
        if packet::has_taps() {
            packet::deliver_to_taps(&frame::frame(&datagram), Self::INDEX, None);
        }
        ip::deliver_packet(datagram)
    }
}
