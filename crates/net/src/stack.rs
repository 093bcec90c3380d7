//! Network stacks: which family makes which socket, and whatever belongs to all of them.

use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::errno::Errno;
use fs::charge::Charge;
use fs::{File, Result};
use linux_raw_sys::net;

use crate::inet::{InetStack, Network};
use crate::netlink::NetlinkStack;
use crate::packet::PacketStack;
use crate::socket::{CoreStack, ScmRights, Socket, SocketType, Sysctls};
use crate::unix::UnixStack;

/// A network stack with all its state (Linux `struct net`): ports, names, lists of sockets, taps,
/// sysctls. Sockets of one know nothing of those of another.
pub struct Stack {
    core: Arc<CoreStack>,
    unix: Arc<UnixStack>,
    inet: Arc<InetStack>,
    packet: Arc<PacketStack>,
    netlink: Arc<NetlinkStack>,
}

impl Stack {
    /// A stack over a network, in which there is no socket yet.
    #[must_use]
    pub fn new(network: Arc<dyn Network>) -> Arc<Self> {
        let core = CoreStack::new(network.clone());
        let unix = UnixStack::new(core.clone());
        let inet = InetStack::new(core.clone(), network);
        Arc::new(Self {
            packet: PacketStack::new(inet.clone()),
            netlink: NetlinkStack::new(inet.clone(), unix.clone()),
            core,
            unix,
            inet,
        })
    }

    /// A new socket of a family (`AF_*`). `protocol` is the family's own number.
    ///
    /// # Errors
    /// `EAFNOSUPPORT` for a family that is not there; `EPROTONOSUPPORT`, `ESOCKTNOSUPPORT`,
    /// `EINVAL` for what the family does not have; `EACCES` for a ping socket that the caller may
    /// not have.
    pub fn socket(&self, family: u32, kind: SocketType, protocol: i32) -> Result<Socket> {
        match family {
            net::AF_UNIX => self.unix.socket(kind, protocol),
            net::AF_INET | net::AF_INET6 => self.inet.socket(family, kind, protocol),
            net::AF_NETLINK => self.netlink.socket(kind, protocol),
            net::AF_PACKET => self.packet.socket(kind, protocol),
            _ => Err(Errno::EAFNOSUPPORT),
        }
    }

    /// Two `AF_UNIX` sockets connected with each other.
    ///
    /// # Errors
    /// `EPROTONOSUPPORT`.
    pub fn socket_pair(&self, kind: SocketType, protocol: i32) -> Result<(Socket, Socket)> {
        self.unix.pair(kind, protocol)
    }

    /// Open files on their way over a socket of the stack, with what their sender is charged for
    /// them.
    #[must_use]
    pub fn scm_rights(&self, files: Vec<Arc<File>>, charge: Option<Charge>) -> ScmRights {
        ScmRights::new(self.unix.inflight().clone(), files, charge)
    }

    /// The values below `/proc/sys/net`.
    #[must_use]
    pub fn sysctls(&self) -> &Sysctls {
        &self.core.sysctls
    }

    /// The part of the `AF_UNIX` sockets.
    #[must_use]
    pub fn unix(&self) -> &UnixStack {
        &self.unix
    }

    /// The part of the `AF_INET` and `AF_INET6` sockets.
    #[must_use]
    pub fn inet(&self) -> &Arc<InetStack> {
        &self.inet
    }

    /// The part of the `AF_PACKET` sockets.
    #[must_use]
    pub fn packet(&self) -> &PacketStack {
        &self.packet
    }

    /// Calls `each` with the name and the number of what each table holds.
    pub fn object_counts(&self, each: &mut dyn FnMut(&'static str, u64)) {
        self.unix.object_counts(each);
        self.inet.object_counts(each);
    }
}
