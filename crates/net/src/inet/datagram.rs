//! Datagrams on their way between sockets and the network.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::SocketAddr;

use crate::socket::SendAccount;

/// The use of path MTU discovery (`IP_MTU_DISCOVER`), with its number in Linux' `in.h`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[repr(u8)]
pub enum PathMtuDiscovery {
    /// Routers may cut packets.
    Never = 0,
    /// Routers may not cut packets that fit; longer ones are cut here.
    #[default]
    Wanted = 1,
    /// Packets that do not fit are refused.
    Always = 2,
    /// Packets that do not fit the interface are refused, whatever ICMP says.
    Probe = 3,
    /// Packets as long as the interface carries, as with [`Self::Probe`], but routers may cut them.
    Interface = 4,
    /// Packets that do not fit the interface are cut, whatever ICMP says.
    Omit = 5,
}

impl PathMtuDiscovery {
    /// The use with a number; that of Linux' default if there is none.
    pub(super) fn from_option(number: i32) -> Self {
        match number {
            0 => Self::Never,
            2 => Self::Always,
            3 => Self::Probe,
            4 => Self::Interface,
            5 => Self::Omit,
            _ => Self::Wanted,
        }
    }

    /// Whether what ICMP has told of the path counts.
    pub(super) fn believes_icmp(self) -> bool {
        matches!(self, Self::Never | Self::Wanted | Self::Always)
    }

    /// Whether routers may not cut a packet that fits.
    pub(super) fn forbids_fragments(self) -> bool {
        matches!(self, Self::Wanted | Self::Always | Self::Probe)
    }

    /// Whether a packet that does not fit is an error.
    pub(super) fn refuses_what_is_too_long(self) -> bool {
        matches!(self, Self::Always | Self::Probe | Self::Interface)
    }
}

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
    /// The socket that it is sent by, while it waits for room for its own before a card.
    pub sender: Option<Arc<SendAccount>>,
    /// Whether the network may cut it, if it is sent over IPv4.
    pub path_mtu_discovery: PathMtuDiscovery,
    /// The contents: of UDP and UDP-Lite those behind their header, of others all that is behind
    /// IP's.
    pub data: Vec<u8>,
}
