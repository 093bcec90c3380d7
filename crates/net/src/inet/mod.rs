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
pub mod procfs_host;
mod raw;
mod stack;
mod tcp;
mod tcp_info;
mod udp;

pub use boot_config::BootConfig;
pub use datagram::Datagram;
pub use host::{Change, ChangeListener, Host};
pub use inet_socket::Family;
pub use loopback::Loopback;
pub use network::{Network, Route};
pub use stack::InetStack;
pub use tcp::{
    ConnectRequest, ConnectionEnd, Initiator, TcpBuffers, TcpEngine, TcpOptions, TcpState,
};
