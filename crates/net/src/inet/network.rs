//! The trait of a network, which carries between hosts.

use core::net::IpAddr;

use fs::Result;

use super::datagram::Datagram;
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
}

/// The network below the sockets of a stack: carries connections and datagrams between them, and to
/// other hosts. The guarantees are in `docs/sockets.md`.
pub trait Network: Interfaces {
    /// The route to `to`.
    ///
    /// # Errors
    /// `ENETUNREACH`, `EHOSTUNREACH`.
    fn route(&self, to: IpAddr) -> Result<Route>;

    /// Begins a connection of a socket of `stack`; the request is told what becomes of it, before
    /// this returns or later.
    fn connect(&self, stack: &InetStack, request: ConnectRequest);

    /// Carries a datagram of a socket of `stack`. What is lost on its way is not told.
    ///
    /// # Errors
    /// `ECONNREFUSED` if it is known at once that nobody is there.
    fn transmit(&self, stack: &InetStack, datagram: Datagram) -> Result<()>;
}
