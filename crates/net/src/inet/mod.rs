//! `AF_INET` and `AF_INET6`: TCP, UDP and ICMP over a [`Network`] (`ip(7)`, `ipv6(7)`, `tcp(7)`,
//! `udp(7)`).
//!
//! Inside, an IPv4 address is always an IPv4 address; only at the edge of an `AF_INET6` socket is
//! it a mapped one.

mod bind_table;
mod boot_config;
mod corked;
mod datagram;
mod datagram_socket;
pub(crate) mod frame;
mod host;
mod icmp_errors;
mod inet_socket;
mod ip;
mod ip_input;
mod loopback;
mod multicast;
mod network;
mod option_table;
mod options;
pub mod procfs;
pub mod procfs_groups;
pub mod procfs_host;
mod raw;
mod stack;
mod tcp;
mod tcp_info;
mod udp;
mod udp_counts;

use core::net::{IpAddr, SocketAddr};

pub use boot_config::BootConfig;
pub use datagram::Datagram;
pub use host::{Burst, Change, ChangeListener, Host, Ipv6Scope, Ipv6Setting, LockCounts};
pub use icmp_errors::QuotedError;
pub use inet_socket::Family;
pub use loopback::Loopback;
pub use network::{Network, Route};
pub use stack::InetStack;
pub use tcp::{
    ConnectRequest, ConnectionEnd, Initiator, TcpBuffers, TcpEngine, TcpOptions, TcpState,
};

/// An address with the number of the interface on whose link it is known, if it is known on one
/// only; of others there is none.
fn with_link(address: SocketAddr, interface: u32) -> SocketAddr {
    match address {
        SocketAddr::V6(mut v6) => {
            let needs_link = ::ip::v6::address::needs_link(*v6.ip());
            v6.set_scope_id(if needs_link { interface } else { 0 });
            v6.set_flowinfo(0);
            v6.into()
        }
        v4 @ SocketAddr::V4(_) => v4,
    }
}

/// The interface that packets to an address go out by, 0 if it is any: the one that is asked for,
/// else that of the address.
fn link_of(address: SocketAddr, asked: u32) -> u32 {
    match address {
        _ if address.ip().is_loopback() => 0,
        SocketAddr::V6(v6) if asked == 0 => v6.scope_id(),
        _ => asked,
    }
}

/// Whether an address is known on one link only.
fn needs_link(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ::ip::v6::address::needs_link(ip))
}
