//! The part of a network stack that `AF_INET` and `AF_INET6` sockets have.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::{AtomicU64, Ordering};

use abi::errno::Errno;
use fs::Result;
use linux_raw_sys::net;

use super::host::Host;
use super::inet_socket::Family;
use super::link_of;
use super::loopback::Loopback;
use super::network::{Network, Route};
use super::raw::{RawSocket, RawTables};
use super::tcp::{TcpSocket, TcpTables};
use super::udp::{UdpSocket, UdpTables};
use crate::socket::core_stack::CoreStack;
use crate::{Socket, SocketOptions, SocketType};

/// The state of the internet sockets of a network stack (Linux `struct netns_ipv4`), and the
/// network that they are over.
pub struct InetStack {
    pub(crate) core: Arc<CoreStack>,
    pub(super) network: Arc<dyn Network>,
    next_id: AtomicU64,
    pub(super) tcp: TcpTables,
    pub(super) udp: UdpTables,
    pub(super) raw: RawTables,
}

impl InetStack {
    pub(crate) fn new(core: Arc<CoreStack>, network: Arc<dyn Network>) -> Arc<Self> {
        let stack = Arc::new(Self {
            tcp: TcpTables::new(&core),
            udp: UdpTables::new(&core),
            raw: RawTables::default(),
            next_id: AtomicU64::new(1),
            network,
            core,
        });
        stack.network.attach(&stack);
        stack
    }

    /// A new socket. `family` is one of the two.
    ///
    /// # Errors
    /// `EPROTONOSUPPORT`, `ESOCKTNOSUPPORT`.
    pub(crate) fn socket(
        self: &Arc<Self>,
        family: u32,
        kind: SocketType,
        protocol: i32,
    ) -> Result<Socket> {
        const TCP: i32 = net::IPPROTO_TCP as i32;
        const UDP: i32 = net::IPPROTO_UDP as i32;
        const UDP_LITE: i32 = net::IPPROTO_UDPLITE as i32;
        const ICMP: i32 = net::IPPROTO_ICMP as i32;
        const ICMP6: i32 = net::IPPROTO_ICMPV6 as i32;
        let family = if family == net::AF_INET {
            Family::V4
        } else {
            Family::V6
        };
        match (kind, protocol) {
            (SocketType::Stream, 0 | TCP) => Ok(TcpSocket::new(self, family).into_socket()),
            (SocketType::Datagram, 0 | UDP) => {
                Ok(UdpSocket::new(self, family, UDP as u8).into_socket())
            }
            (SocketType::Datagram, UDP_LITE) => {
                Ok(UdpSocket::new(self, family, UDP_LITE as u8).into_socket())
            }
            (SocketType::Datagram, ICMP | ICMP6) => {
                Ok(RawSocket::new(self, family, protocol as u8, true)?.into_socket())
            }
            (SocketType::Raw, 0..=255) => {
                Ok(RawSocket::new(self, family, protocol as u8, false)?.into_socket())
            }
            (SocketType::Raw, _) => Err(Errno::EINVAL),
            (SocketType::Seqpacket, _) => Err(Errno::ESOCKTNOSUPPORT),
            _ => Err(Errno::EPROTONOSUPPORT),
        }
    }

    /// A number that no other socket of the stack has had.
    pub(super) fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// The route to an address.
    ///
    /// # Errors
    /// `ENETUNREACH`, `EHOSTUNREACH` and the others of [`Network::route`].
    pub(crate) fn route(&self, to: IpAddr) -> Result<Route> {
        self.network.route(to, 0)
    }

    /// The route to an address by an interface, any if that is 0.
    ///
    /// # Errors
    /// As [`Self::route`].
    pub(crate) fn route_via(&self, to: IpAddr, via: u32) -> Result<Route> {
        self.network.route(to, via)
    }

    /// The route to a socket's end.
    ///
    /// # Errors
    /// As [`Self::route`].
    pub(super) fn route_to(&self, to: SocketAddr) -> Result<Route> {
        self.network.route(to.ip(), link_of(to, 0))
    }

    /// The route to an address for a socket with some options (`SO_BINDTODEVICE`).
    ///
    /// # Errors
    /// `ENETUNREACH`, `EHOSTUNREACH` and the others of [`Network::route`].
    pub(super) fn route_for(&self, options: &SocketOptions, to: SocketAddr) -> Result<Route> {
        let via = link_of(to, options.bound_interface());
        self.network.route(to.ip(), via)
    }

    /// The route to a group by an interface with the address `source`, which was chosen for it.
    ///
    /// # Errors
    /// `ENETUNREACH`, `EHOSTUNREACH` and the others of [`Network::route`].
    pub(super) fn route_by(&self, group: IpAddr, source: IpAddr, interface: u32) -> Result<Route> {
        if interface == Loopback::INDEX {
            return self.route(source);
        }
        let route = self.network.route(group, interface)?;
        Ok(Route { source, ..route })
    }

    /// The host whose interfaces programs may change, if there is one.
    pub fn host(&self) -> Option<&Host> {
        self.network.host()
    }

    /// Sends a frame that a program has made, as [`Network::transmit_frame`].
    ///
    /// # Errors
    /// `ENODEV`, `ENETDOWN`, `ENOBUFS`.
    pub(crate) fn transmit_frame(&self, interface_index: u32, frame: Vec<u8>) -> Result<()> {
        self.network.transmit_frame(self, interface_index, frame)
    }

    /// Whether an address is one of this host's.
    pub(super) fn is_local_address(&self, address: SocketAddr) -> bool {
        let route = self.route_to(address);
        route.is_ok_and(|route| route.local)
    }

    /// Calls `each` with the name and the number of what each table holds.
    pub(crate) fn object_counts(&self, each: &mut dyn FnMut(&'static str, u64)) {
        let bound = self.tcp.bound_count() + self.udp.bound_count();
        each("inet_ports", bound as u64);
        each("connections_begun", self.tcp.connecting_count());
    }
}
