//! `AF_INET` and `AF_INET6`: TCP and UDP over a [`Network`] (`ip(7)`, `ipv6(7)`, `tcp(7)`,
//! `udp(7)`).
//!
//! Inside, an IPv4 address is always an IPv4 address; only at the edge of an `AF_INET6` socket is
//! it a mapped one.

mod bind_table;
mod datagram;
pub(crate) mod dev_ioctl;
pub(crate) mod frame;
pub(crate) mod ip;
mod multicast;
pub mod network;
mod option_table;
mod options;
pub mod procfs;
pub mod procfs_host;
mod raw;
mod tcp;
mod tcp_info;
mod udp;

pub use datagram::Datagram;
pub use ip::deliver_packet;
pub use network::{Interface, Network, Route};
pub(crate) use tcp::connecting_count;
pub use tcp::{ConnectRequest, Initiator, handle_connect_request};

use crate::socket::{caller_ucred, sysctl};
use crate::{Address, Caller, ReceivedMessage, Socket, SocketOptions, SocketType};
use abi::errno::Errno;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use fs::{File, Result};
use linux_raw_sys::general::CAP_NET_BIND_SERVICE;
use linux_raw_sys::net;
use options::InetOptions;

/// Which of the two families.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Family {
    V4,
    V6,
}

impl Family {
    const fn number(self) -> u32 {
        match self {
            Self::V4 => net::AF_INET,
            Self::V6 => net::AF_INET6,
        }
    }

    /// The unspecified address of this family, port 0.
    const fn unspecified_address(self) -> SocketAddr {
        match self {
            Self::V4 => SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0),
            Self::V6 => SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0),
        }
    }
}

/// A new socket. `family` is one of the two.
///
/// # Errors
/// `EPROTONOSUPPORT`, `ESOCKTNOSUPPORT`.
pub fn socket(family: u32, kind: SocketType, protocol: i32) -> Result<Socket> {
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
        (SocketType::Stream, 0 | TCP) => Ok(tcp::TcpSocket::new(family).into_socket()),
        (SocketType::Datagram, 0 | UDP) => Ok(udp::UdpSocket::new(family, UDP as u8).into_socket()),
        (SocketType::Datagram, UDP_LITE) => {
            Ok(udp::UdpSocket::new(family, UDP_LITE as u8).into_socket())
        }
        (SocketType::Datagram, ICMP | ICMP6) => {
            Ok(raw::RawSocket::new(family, protocol as u8, true)?.into_socket())
        }
        (SocketType::Raw, 0..=255) => {
            Ok(raw::RawSocket::new(family, protocol as u8, false)?.into_socket())
        }
        (SocketType::Raw, _) => Err(Errno::EINVAL),
        (SocketType::Seqpacket, _) => Err(Errno::ESOCKTNOSUPPORT),
        _ => Err(Errno::EPROTONOSUPPORT),
    }
}

/// The number of bound sockets.
pub(crate) fn bound_count() -> u64 {
    (tcp::bound_count() + udp::bound_count()) as u64
}

/// The state that sockets of all transports have.
struct InetSocket {
    family: Family,
    id: u64,
    /// The number of the file, and of the user who made it, for listings.
    ino: AtomicU64,
    uid: u32,
    options: InetOptions,
    v6_only: AtomicBool,
}

impl InetSocket {
    fn new(family: Family) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self {
            family,
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            ino: AtomicU64::new(0),
            uid: caller_ucred().uid,
            options: InetOptions::default(),
            v6_only: AtomicBool::new(sysctl::BINDV6ONLY.as_usize() != 0),
        }
    }

    fn attach_file(&self, file: &File) {
        self.ino
            .store(file.path().metadata().ino, Ordering::Relaxed);
    }

    /// Implements `SocketOps::receive_error_queue`.
    fn receive_error_queue(
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
            entry.into_received(self.family == Family::V6, limit, control, |address| {
                self.user_address(address)
            }),
        )
    }

    fn is_v6_only(&self) -> bool {
        self.v6_only.load(Ordering::Relaxed)
    }

    /// An address as programs see it through this socket.
    fn user_address(&self, address: SocketAddr) -> Address {
        Address::Inet(match (self.family, address.ip()) {
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
    fn check_address(&self, address: &Address) -> Result<SocketAddr> {
        match (self.family, address) {
            (Family::V4, Address::Inet(SocketAddr::V4(_)))
            | (Family::V6, Address::Inet(SocketAddr::V6(_))) => {
                let Address::Inet(address) = address else {
                    return Err(Errno::EAFNOSUPPORT);
                };
                Ok(SocketAddr::new(address.ip().to_canonical(), address.port()))
            }
            (_, Address::Invalid(error)) => Err(*error),
            _ => Err(Errno::EAFNOSUPPORT),
        }
    }

    /// Where a program wants to reach: no address means this host.
    ///
    /// # Errors
    /// `EINVAL`, `EAFNOSUPPORT`; `ENETUNREACH` for an IPv4 address if the socket is for IPv6 only.
    fn destination(&self, address: &Address) -> Result<SocketAddr> {
        let meant = self.check_address(address)?;
        let ip = match meant.ip() {
            IpAddr::V4(_) if self.family == Family::V6 && self.is_v6_only() => {
                return Err(Errno::ENETUNREACH);
            }
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        Ok(SocketAddr::new(ip, meant.port()))
    }

    /// Whether an address that is not this host's may be bound.
    fn can_nonlocal_bind(&self) -> bool {
        self.options.is_freebind() || sysctl::IP_NONLOCAL_BIND.as_usize() != 0
    }

    /// Checks an address to be bound.
    ///
    /// # Errors
    /// `EINVAL`, `EAFNOSUPPORT`, `EADDRNOTAVAIL`, `EACCES`.
    fn check_bind_address(&self, caller: &Caller<'_>, address: &Address) -> Result<SocketAddr> {
        let meant = self.check_address(address)?;
        let ip = meant.ip();
        let mapped = self.family == Family::V6 && ip.is_ipv4();
        let anywhere = ip.is_unspecified() || ip.is_multicast() || self.can_nonlocal_bind();
        if (mapped && self.is_v6_only()) || !(anywhere || network::is_local_address(ip)) {
            return Err(Errno::EADDRNOTAVAIL);
        }
        if (1..sysctl::IP_UNPRIVILEGED_PORT_START.as_usize()).contains(&meant.port().into())
            && !caller.walk.cred.has(CAP_NET_BIND_SERVICE)
        {
            return Err(Errno::EACCES);
        }
        Ok(meant)
    }
}
