//! Instances with which an instance exchanges messages (`docs/messages.md`).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::LABEL_BYTES;
use crate::messages::MAX_NAMES;

/// `state` of [`PeerInfo`]: no instance of the name runs that has this one among its names, or
/// there was no place for it.
pub const PEER_ABSENT: u32 = 0;
/// `state` of [`PeerInfo`]: they exchange messages.
pub const PEER_CONNECTED: u32 = 1;

/// A name that an instance was created with, and who has it. The counts are those of the instance's
/// kernel, of this incarnation of the peer.
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
    /// Times that it did not listen to doorbells for a while, because the peer had rung for nothing.
    pub held_back: u64,
}

/// See [`PEERS`](super::PEERS).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Peers {
    /// The instance.
    pub id: u32,
    /// Out: number of names.
    pub count: u32,
    /// Out: those and their peers.
    pub peers: [PeerInfo; MAX_NAMES],
}
