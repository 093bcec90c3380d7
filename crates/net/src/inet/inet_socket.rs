//! The state that internet sockets of all transports have.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use abi::errno::Errno;
use fs::{File, Result};
use linux_raw_sys::general::CAP_NET_BIND_SERVICE;
use linux_raw_sys::net;

use super::options::InetOptions;
use super::stack::InetStack;
use super::{needs_link, with_link};
use crate::socket::caller_ucred;
use crate::{Address, Caller, ReceivedMessage, SocketOptions};

/// The family of an internet socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    /// `AF_INET`
    V4,
    /// `AF_INET6`
    V6,
}

impl Family {
    pub(super) const fn number(self) -> u32 {
        match self {
            Self::V4 => net::AF_INET,
            Self::V6 => net::AF_INET6,
        }
    }

    /// The unspecified address of this family, port 0.
    pub(super) const fn unspecified_address(self) -> SocketAddr {
        match self {
            Self::V4 => SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0),
            Self::V6 => SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0),
        }
    }
}

/// An address as it is inside: an IPv4 address is one, and the number of an interface is there only
/// where it means something.
fn canonical(address: SocketAddr) -> SocketAddr {
    match (address, address.ip().to_canonical()) {
        (SocketAddr::V6(v6), IpAddr::V6(_)) => with_link(address, v6.scope_id()),
        (_, ip) => SocketAddr::new(ip, address.port()),
    }
}

/// The state that sockets of all transports have.
pub(super) struct InetSocket {
    /// Whether it is an `AF_INET6` socket, as it was made and may not stay.
    is_v6: AtomicBool,
    pub(super) id: u64,
    /// The number of the file, and of the user who made it, for listings.
    pub(super) ino: AtomicU64,
    pub(super) uid: u32,
    pub(super) options: InetOptions,
    pub(super) v6_only: AtomicBool,
}

impl InetSocket {
    pub(super) fn new(stack: &Arc<InetStack>, family: Family) -> Self {
        Self::of_user(stack, family, caller_ucred().uid)
    }

    /// The state of a connection that this listener takes: as if who made the listener had made it.
    pub(super) fn child(&self) -> Self {
        let child = Self::of_user(self.stack(), self.family(), self.uid);
        child.options.inherit_from(&self.options);
        child
    }

    fn of_user(stack: &Arc<InetStack>, family: Family, uid: u32) -> Self {
        let v6_only = stack.core.sysctls.bindv6only.as_usize() != 0;
        Self {
            is_v6: AtomicBool::new(family == Family::V6),
            id: stack.next_id(),
            ino: AtomicU64::new(0),
            uid,
            options: InetOptions::new(stack.clone()),
            v6_only: AtomicBool::new(v6_only),
        }
    }

    pub(super) fn family(&self) -> Family {
        if self.is_v6.load(Ordering::Relaxed) {
            Family::V6
        } else {
            Family::V4
        }
    }

    /// Makes an `AF_INET6` socket that talks to an IPv4 address one of `AF_INET`
    /// (`IPV6_ADDRFORM`).
    ///
    /// # Errors
    /// `EINVAL` for another family, `ENOTCONN`, `EADDRNOTAVAIL` if it talks to an IPv6 address.
    pub(super) fn set_address_form(&self, value: &[u8], peer: Option<SocketAddr>) -> Result<()> {
        let family = value.first_chunk().map(|word| u32::from_ne_bytes(*word));
        if family != Some(net::AF_INET) {
            return Err(Errno::EINVAL);
        }
        let peer = peer.ok_or(Errno::ENOTCONN)?;
        if self.is_v6_only() || peer.is_ipv6() {
            return Err(Errno::EADDRNOTAVAIL);
        }
        self.is_v6.store(false, Ordering::Relaxed);
        Ok(())
    }

    pub(super) fn stack(&self) -> &Arc<InetStack> {
        self.options.stack()
    }

    pub(super) fn attach_file(&self, file: &File) {
        self.ino
            .store(file.path().metadata().ino, Ordering::Relaxed);
    }

    /// Implements `SocketOps::receive_error_queue`.
    pub(super) fn receive_error_queue(
        &self,
        options: &SocketOptions,
        limit: usize,
    ) -> Result<(Vec<u8>, ReceivedMessage)> {
        let entry = options.error_queue.pop().ok_or(Errno::EAGAIN)?;
        let control = entry
            .time
            .and_then(|time| options.timestamping_message(time))
            .into_iter()
            .collect();
        Ok(
            entry.into_received(self.family() == Family::V6, limit, control, |address| {
                self.user_address(address)
            }),
        )
    }

    pub(super) fn is_v6_only(&self) -> bool {
        self.v6_only.load(Ordering::Relaxed)
    }

    /// An address as programs see it through this socket.
    pub(super) fn user_address(&self, address: SocketAddr) -> Address {
        Address::Inet(match (self.family(), address.ip()) {
            (Family::V6, IpAddr::V4(ip)) => {
                SocketAddr::new(ip.to_ipv6_mapped().into(), address.port())
            }
            _ => address,
        })
    }

    /// The address that a program means, which has to be of the socket's family.
    ///
    /// # Errors
    /// `EINVAL`, `EAFNOSUPPORT`.
    pub(super) fn check_address(&self, address: &Address) -> Result<SocketAddr> {
        match (self.family(), address) {
            (Family::V4, Address::Inet(SocketAddr::V4(_)))
            | (Family::V6, Address::Inet(SocketAddr::V6(_))) => {
                let Address::Inet(address) = address else {
                    return Err(Errno::EAFNOSUPPORT);
                };
                Ok(canonical(*address))
            }
            (_, Address::Invalid(error)) => Err(*error),
            _ => Err(Errno::EAFNOSUPPORT),
        }
    }

    /// The destination that a program means: no address is this host.
    ///
    /// # Errors
    /// `EINVAL`, `EAFNOSUPPORT`; `ENETUNREACH` for an IPv4 address if the socket is for IPv6 only.
    pub(super) fn destination(&self, address: &Address) -> Result<SocketAddr> {
        let meant = self.check_address(address)?;
        let ip = match meant.ip() {
            IpAddr::V4(_) if self.family() == Family::V6 && self.is_v6_only() => {
                return Err(Errno::ENETUNREACH);
            }
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        let mut meant = meant;
        meant.set_ip(ip);
        Ok(meant)
    }

    /// Binds the socket to the link of an address that is known on one link only, as Linux does for
    /// `bind(2)` and `connect(2)`.
    ///
    /// # Errors
    /// `EINVAL` if the address does not say which, or another than the socket is bound to.
    pub(super) fn bind_to_link(&self, options: &SocketOptions, address: SocketAddr) -> Result<()> {
        let (SocketAddr::V6(v6), true) = (address, needs_link(address.ip())) else {
            return Ok(());
        };
        match (v6.scope_id(), options.bound_interface()) {
            (0, 0) => Err(Errno::EINVAL),
            (0, _) => Ok(()),
            (index, 0) => options.bind_to_interface(index),
            (index, bound) if index == bound => Ok(()),
            _ => Err(Errno::EINVAL),
        }
    }

    /// The peer that a program names, with the link that it is on; the socket is bound to that.
    ///
    /// # Errors
    /// As [`Self::bind_to_link`].
    pub(super) fn peer_on_link(
        &self,
        options: &SocketOptions,
        peer: SocketAddr,
    ) -> Result<SocketAddr> {
        self.bind_to_link(options, peer)?;
        Ok(with_link(peer, options.bound_interface()))
    }

    /// Whether an address that is not this host's may be bound.
    pub(super) fn can_nonlocal_bind(&self) -> bool {
        let sysctl = &self.stack().core.sysctls.ip_nonlocal_bind;
        self.options.is_freebind() || sysctl.as_usize() != 0
    }

    /// Checks an address to be bound.
    ///
    /// # Errors
    /// `EINVAL`, `EAFNOSUPPORT`, `EADDRNOTAVAIL`, `EACCES`.
    pub(super) fn check_bind_address(
        &self,
        caller: &Caller<'_>,
        address: &Address,
    ) -> Result<SocketAddr> {
        let meant = self.check_address(address)?;
        let ip = meant.ip();
        let mapped = self.family() == Family::V6 && ip.is_ipv4();
        let anywhere = ip.is_unspecified() || ip.is_multicast() || self.can_nonlocal_bind();
        if (mapped && self.is_v6_only()) || !(anywhere || self.stack().is_local_address(meant)) {
            return Err(Errno::EADDRNOTAVAIL);
        }
        let unprivileged = &self.stack().core.sysctls.ip_unprivileged_port_start;
        if (1..unprivileged.as_usize()).contains(&meant.port().into())
            && !caller.walk.cred.capable(CAP_NET_BIND_SERVICE)
        {
            return Err(Errno::EACCES);
        }
        Ok(meant)
    }
}
