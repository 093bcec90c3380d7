//! The trait of a network, which carries between hosts.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use abi::errno::Errno;
use fs::Result;

use super::datagram::Datagram;
use super::host::Host;
use super::icmp_errors::QuotedError;
use super::stack::InetStack;
use super::tcp::ConnectRequest;
use crate::socket::Interfaces;

/// The way to an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Route {
    /// The interface.
    pub interface_index: u32,
    /// The address packets come from.
    pub source: IpAddr,
    /// Whether it is this host.
    pub local: bool,
    /// Whether it is everybody on a link.
    pub broadcast: bool,
    /// The longest packet that goes there whole, as far as that is known.
    pub mtu: u32,
}

/// The network below the sockets of a stack: carries connections and datagrams between them, and to
/// other hosts. The guarantees are in `docs/sockets.md`.
pub trait Network: Interfaces {
    /// The route to `to`, by the interface with the number `via` if that is not 0 and `to` is
    /// another host.
    ///
    /// # Errors
    /// `ENETUNREACH`, `EHOSTUNREACH`; `EACCES`, `EINVAL` if a route says so.
    fn route(&self, to: IpAddr, via: u32) -> Result<Route>;

    /// Whether a connection to an end leaves this host by such a route.
    fn leaves(&self, to: SocketAddr, route: &Route) -> bool {
        let _ = to;
        !route.local
    }

    /// Begins a connection of a socket of `stack`; the request is told what becomes of it, before
    /// this returns or later.
    fn connect(&self, stack: &InetStack, request: ConnectRequest);

    /// Whether a connection between two ends can be begun now: not while late segments of an
    /// earlier one may come.
    fn can_connect(&self, from: SocketAddr, to: SocketAddr) -> bool {
        let _ = (from, to);
        true
    }

    /// Takes an ICMP error about a segment of TCP, which means `errno` to programs. Returns whether
    /// such a segment is under way.
    fn handle_tcp_error(&self, error: &QuotedError<'_>, errno: Errno) -> bool {
        let _ = (error, errno);
        false
    }

    /// The socket with a number does not listen any more.
    fn stop_listening(&self, listener: u64) {
        let _ = listener;
    }

    /// Carries a datagram of a socket of `stack`. What is lost on its way is not told.
    ///
    /// # Errors
    /// `ECONNREFUSED`, `ENOPROTOOPT` if it is known at once that nobody is there; `EMSGSIZE` if it
    /// is too long and may not be cut; `ENETDOWN`, `ENODEV`, `ENOBUFS`, `ENOMEM`.
    fn transmit(&self, stack: &InetStack, datagram: Datagram) -> Result<()>;

    /// Sends a frame, whole with its link's header, that a program has made.
    ///
    /// # Errors
    /// `ENODEV`, `ENETDOWN`; `ENOBUFS` if the device has no room.
    fn transmit_frame(&self, stack: &InetStack, interface_index: u32, frame: Vec<u8>)
    -> Result<()>;

    /// Takes what ICMP says of the MTU of a path, if `error` is about that, of a packet that a
    /// socket has sent.
    fn learn_path_mtu(&self, error: &QuotedError<'_>) {
        let _ = error;
    }

    /// The host whose interfaces, addresses and routes programs may change; `None` of a network
    /// that has nothing to change.
    fn host(&self) -> Option<&Host> {
        None
    }

    /// Tells the network the stack that is above it, which is one. The first call counts.
    fn attach(&self, stack: &Arc<InetStack>) {
        let _ = stack;
    }
}
