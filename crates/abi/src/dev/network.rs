//! Networks of instances, and ports of the machine that lead to one.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::LABEL_BYTES;

/// Most networks, with the one that there always is.
pub const MAX_NETWORKS: usize = 32;
/// Bytes of an interface's name (`IFNAMSIZ`).
pub const INTERFACE_BYTES: usize = 16;

/// A network of instances. See [`ADD_NETWORK`](super::ADD_NETWORK).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct NetworkInfo {
    /// Name of the network; no other one has it.
    pub label: [u8; LABEL_BYTES],
    /// Address of the supervisor in it, as a number ([`core::net::Ipv4Addr::to_bits`]).
    pub gateway: u32,
    /// Bits that all its addresses have.
    pub prefix_len: u32,
    /// Out: number of the instances that have an address of it.
    pub members: u32,
    /// Out: `REASON_*`.
    pub reason: u32,
    /// Out: name of the supervisor's interface there; empty if it is not made yet.
    pub interface: [u8; INTERFACE_BYTES],
}

/// Most published ports of an instance.
pub const MAX_PORTS: usize = 16;
/// `protocol` of [`PublishedPort`]: TCP.
pub const PROTOCOL_TCP: u32 = 6;
/// `protocol` of [`PublishedPort`]: UDP.
pub const PROTOCOL_UDP: u32 = 17;

/// A port of the machine that leads to one of an instance.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct PublishedPort {
    /// Address of the supervisor's at which the port is, as a number
    /// ([`core::net::Ipv4Addr::to_bits`]); 0: all of them.
    pub address: u32,
    /// `PROTOCOL_*`.
    pub protocol: u32,
    /// The port.
    pub port: u16,
    /// Port of the instance that it leads to.
    pub inner: u16,
}

/// See [`PUBLISH`](super::PUBLISH).
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Publish {
    /// The instance.
    pub id: u32,
    /// The port.
    pub port: PublishedPort,
    /// Out: `REASON_*`.
    pub reason: u32,
    /// Out: of a port that is published already, the instance's number.
    pub owner: u32,
}

/// Frames of an instance's network, as the supervisor has counted them.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct NetworkCounters {
    /// Frames of the instance that went on.
    pub sent: u64,
    /// Bytes of these.
    pub sent_bytes: u64,
    /// Frames that were given to the instance.
    pub received: u64,
    /// Bytes of these.
    pub received_bytes: u64,
    /// Frames of the instance that were for nobody, or none.
    pub sent_lost: u64,
    /// Frames for which the instance had no buffer.
    pub received_lost: u64,
    /// Frames that the instance was not to send.
    pub refused: u64,
    /// Times that its port was stopped, because it broke a rule of the queues.
    pub stops: u32,
    /// 1 while its port is stopped; else 0.
    pub is_stopped: u32,
}
