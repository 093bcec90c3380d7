//! Datagrams on their way between sockets and the network.

use alloc::vec::Vec;
use core::net::SocketAddr;

/// A datagram under way.
#[derive(Clone, Debug)]
pub struct Datagram {
    /// The sender.
    pub from: SocketAddr,
    /// The receiver.
    pub to: SocketAddr,
    /// The protocol of IP that it is of.
    pub protocol: u8,
    /// The interface it goes out, and comes in.
    pub interface_index: u32,
    /// The time to live, or hop limit.
    pub ttl: u8,
    /// The type of service, or traffic class.
    pub tos: u8,
    /// The time of arrival, nanoseconds since 1970, if the receiver wants to know.
    pub timestamp_ns: u64,
    /// The count of datagrams the receiver had lost when it arrived.
    pub drops: u32,
    /// The contents: of UDP and UDP-Lite those behind their header, of others all that is behind
    /// IP's.
    pub data: Vec<u8>,
}
