//! Instances with which an instance exchanges messages (`docs/messages.md`).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::LABEL_BYTES;

/// `state` of [`PeerInfo`]: no instance of the name runs that has this one among its names, or
/// there was no place for it; of a group: there is no other member.
pub const PEER_ABSENT: u32 = 0;
/// `state` of [`PeerInfo`]: they exchange messages.
pub const PEER_CONNECTED: u32 = 1;

/// `flags` of [`PeerInfo`]: the name is a group's, and the peer a member of it.
pub const PEER_GROUP: u32 = 1;

/// Most that one call tells.
pub const PEERS_AT_ONCE: usize = 8;

/// A name that an instance was created with, and who has it: of a group one record for each other
/// member, or one for none. The counts are those of the instance's kernel, of this incarnation of
/// the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct PeerInfo {
    /// The name.
    pub label: [u8; LABEL_BYTES],
    /// `PEER_*`.
    pub state: u32,
    /// Number of the instance; 0 if there is none.
    pub instance: u32,
    /// Messages sent.
    pub sent: u64,
    /// Messages taken.
    pub received: u64,
    /// Messages for which there was no room.
    pub refused: u64,
    /// Doorbells rung, by its guard.
    pub doorbells: u64,
    /// Times that it did not listen to doorbells for a while, because the peer had rung for
    /// nothing.
    pub held_back: u64,
    /// `PEER_GROUP`, or 0.
    pub flags: u32,
    /// Zero.
    pub reserved: u32,
}

/// See [`PEERS`](super::PEERS).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Peers {
    /// The instance.
    pub id: u32,
    /// Number of records to leave out first.
    pub from: u32,
    /// Out: number of records that follow.
    pub count: u32,
    /// Out: number of all that there are at the moment.
    pub total: u32,
    /// Out: the records.
    pub peers: [PeerInfo; PEERS_AT_ONCE],
}
