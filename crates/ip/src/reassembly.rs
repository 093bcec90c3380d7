//! Datagrams out of fragments (RFC 791, section 3.2; RFC 8200, section 4.5), within bounds.

use alloc::vec::Vec;
use core::net::IpAddr;

use crate::{Malformed, Nanos, SECOND, ipv4, v6};

/// The time in which all fragments have to come (Linux `ipfrag_time`).
const PATIENCE: Nanos = 30 * SECOND;
/// The bytes of all datagrams that are not whole (Linux `ipfrag_high_thresh`).
const MOST_BYTES: usize = 4 << 20;
/// The datagrams that are not whole.
const MOST_DATAGRAMS: usize = 256;
/// The fragments of one datagram: all that there are if each fills the least MTU.
const MOST_PIECES: usize = 2048;
/// The bytes that a fragment counts for besides its own.
const PIECE_OVERHEAD: usize = 64;

/// The facts that fragments of one datagram share (RFC 791), and where they came in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Key {
    source: IpAddr,
    destination: IpAddr,
    id: u32,
    /// 0 of IPv6, where fragments need not say the same (RFC 8200, section 4.5).
    protocol: u8,
    interface: u32,
}

struct Piece {
    offset: usize,
    data: Vec<u8>,
}

struct Datagram {
    key: Key,
    expires: Nanos,
    /// Sorted, without overlaps.
    pieces: Vec<Piece>,
    /// Bytes of all pieces.
    received: usize,
    /// Bytes of the whole, once the last fragment has come.
    length: Option<usize>,
    /// The header and first bytes of the first fragment, for an error about it.
    first: Vec<u8>,
    /// Protocol of the whole, once the first fragment has come.
    protocol: u8,
    /// The whole is spoilt by an overlap: what still comes of it is dropped until it expires.
    refused: bool,
}

/// A fragment that has arrived.
#[derive(Clone, Copy, Debug)]
pub struct Fragment<'a> {
    key: Key,
    offset: usize,
    more: bool,
    /// The headers in front of it.
    head: &'a [u8],
    data: &'a [u8],
    /// Protocol of the whole, if it is the first.
    protocol: u8,
}

impl<'a> Fragment<'a> {
    /// A fragment of IPv4 that has come in by an interface with a number.
    #[must_use]
    pub fn of_v4(packet: &ipv4::Packet<'a>, interface: u32) -> Self {
        let header = &packet.header;
        Self {
            key: Key {
                source: header.source.into(),
                destination: header.destination.into(),
                id: header.id.into(),
                protocol: header.protocol,
                interface,
            },
            offset: header.offset.into(),
            more: header.more_fragments,
            head: packet.header_bytes,
            data: packet.payload,
            protocol: header.protocol,
        }
    }

    /// A fragment of IPv6, as [`Self::of_v4`].
    ///
    /// # Errors
    /// It is no fragment.
    pub fn of_v6(packet: &v6::Packet<'a>, interface: u32) -> Result<Self, Malformed> {
        let field = packet.fragment.ok_or(Malformed)?;
        Ok(Self {
            key: Key {
                source: packet.header.source.into(),
                destination: packet.header.destination.into(),
                id: field.id,
                protocol: 0,
                interface,
            },
            offset: field.offset.into(),
            more: field.more,
            head: packet.head,
            data: packet.payload,
            protocol: packet.protocol,
        })
    }
}

/// The fate of a fragment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reassembled {
    /// The payload of the datagram, which is whole now, and its protocol.
    Whole(Vec<u8>, u8),
    /// More fragments are missing.
    Waits,
    /// The fragment overlaps another one: the datagram is dropped (RFC 5722).
    Overlap,
    /// There is no room or memory for it, or it contradicts another one.
    Dropped,
}

/// A datagram that did not become whole in time, and whose first fragment had come: what an ICMP
/// error quotes of it.
pub struct Expired {
    /// Number of the interface that it came in by.
    pub interface: u32,
    /// Header and first bytes of the datagram.
    pub quote: Vec<u8>,
}

/// Fragments that wait for others.
#[derive(Default)]
pub struct Reassembly {
    datagrams: Vec<Datagram>,
    bytes: usize,
}

impl Reassembly {
    /// Datagrams that wait, and the bytes that are counted for them.
    #[must_use]
    pub fn usage(&self) -> (usize, usize) {
        (self.datagrams.len(), self.bytes)
    }

    /// When the next datagram expires.
    #[must_use]
    pub fn deadline(&self) -> Option<Nanos> {
        self.datagrams.iter().map(|one| one.expires).min()
    }

    /// Takes out a datagram that has expired.
    pub fn expire(&mut self, now: Nanos) -> Option<Expired> {
        loop {
            let at = self.datagrams.iter().position(|one| one.expires <= now)?;
            let gone = self.remove(at);
            if !gone.first.is_empty() && !gone.refused {
                return Some(Expired {
                    interface: gone.key.interface,
                    quote: gone.first,
                });
            }
        }
    }

    /// Forgets all that came in by an interface.
    pub fn forget_interface(&mut self, interface: u32) {
        while let Some(at) = self
            .datagrams
            .iter()
            .position(|one| one.key.interface == interface)
        {
            self.remove(at);
        }
    }

    fn remove(&mut self, at: usize) -> Datagram {
        let gone = self.datagrams.swap_remove(at);
        self.bytes -= gone.cost();
        gone
    }

    /// A fragment has come.
    pub fn arrive(&mut self, now: Nanos, fragment: &Fragment<'_>) -> Reassembled {
        let key = fragment.key;
        // One that expires now is not waited for any more.
        let known = |one: &Datagram| one.key == key && one.expires > now;
        let at = match self.datagrams.iter().position(known) {
            Some(at) => at,
            None => {
                if self.datagrams.len() >= MOST_DATAGRAMS || self.datagrams.try_reserve(1).is_err()
                {
                    return Reassembled::Dropped;
                }
                self.datagrams.push(Datagram {
                    key,
                    expires: now + PATIENCE,
                    pieces: Vec::new(),
                    received: 0,
                    length: None,
                    first: Vec::new(),
                    protocol: 0,
                    refused: false,
                });
                self.bytes += PIECE_OVERHEAD;
                self.datagrams.len() - 1
            }
        };
        let before = self.datagrams[at].cost();
        let room = (MOST_BYTES + before).saturating_sub(self.bytes);
        let result = self.datagrams[at].insert(fragment, room);
        self.bytes = self.bytes - before + self.datagrams[at].cost();
        match result {
            // A datagram of nothing is not kept.
            Reassembled::Dropped if self.datagrams[at].is_empty() => {
                self.remove(at);
            }
            Reassembled::Whole(..) => {
                self.remove(at);
            }
            _ => {}
        }
        result
    }
}

impl Datagram {
    fn is_empty(&self) -> bool {
        self.pieces.is_empty() && !self.refused
    }

    /// Bytes that are counted for it.
    fn cost(&self) -> usize {
        self.received + self.first.len() + (self.pieces.len() + 1) * PIECE_OVERHEAD
    }

    /// Adds a piece, if its cost keeps within `room`.
    fn insert(&mut self, fragment: &Fragment<'_>, room: usize) -> Reassembled {
        let (start, data, more) = (fragment.offset, fragment.data, fragment.more);
        let end = start + data.len();
        if self.refused || (data.is_empty() && more) {
            return Reassembled::Dropped;
        }
        // Where the datagram ends is said once, and nothing is behind it.
        let ends_elsewhere = match self.length {
            Some(length) if more => end >= length,
            Some(length) => end != length,
            None if more => false,
            None => self
                .pieces
                .last()
                .is_some_and(|last| last.offset + last.data.len() > end),
        };
        if ends_elsewhere {
            return Reassembled::Dropped;
        }
        let place = self.pieces.partition_point(|piece| piece.offset < start);
        if self
            .pieces
            .get(place)
            .is_some_and(|piece| piece.offset == start && piece.data == data)
        {
            return Reassembled::Waits;
        }
        let behind_next = self.pieces.get(place).is_some_and(|next| next.offset < end);
        let within_last = place > 0 && {
            let last = &self.pieces[place - 1];
            last.offset + last.data.len() > start
        };
        if behind_next || within_last {
            self.pieces = Vec::new();
            self.received = 0;
            self.first = Vec::new();
            self.refused = true;
            return Reassembled::Overlap;
        }
        let quoted = &data[..data.len().min(8)];
        let quote = if start == 0 {
            fragment.head.len() + quoted.len()
        } else {
            0
        };
        let cost = data.len() + PIECE_OVERHEAD + quote;
        if self.cost() + cost > room || self.pieces.len() >= MOST_PIECES {
            return Reassembled::Dropped;
        }
        let mut copy = Vec::new();
        if copy.try_reserve_exact(data.len()).is_err()
            || self.pieces.try_reserve(1).is_err()
            || self.first.try_reserve_exact(quote).is_err()
        {
            return Reassembled::Dropped;
        }
        copy.extend_from_slice(data);
        if start == 0 {
            self.first.extend_from_slice(fragment.head);
            self.protocol = fragment.protocol;
            self.first.extend_from_slice(quoted);
        }
        let piece = Piece {
            offset: start,
            data: copy,
        };
        self.pieces.insert(place, piece);
        self.received += data.len();
        if !more {
            self.length = Some(end);
        }
        // Without overlaps as many bytes as it has are all of it.
        if self.length != Some(self.received) {
            return Reassembled::Waits;
        }
        let mut whole = Vec::new();
        if whole.try_reserve_exact(self.received).is_err() {
            return Reassembled::Dropped;
        }
        for piece in &self.pieces {
            whole.extend_from_slice(&piece.data);
        }
        Reassembled::Whole(whole, self.protocol)
    }
}
