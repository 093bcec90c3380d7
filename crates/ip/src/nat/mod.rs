//! Translation of addresses (RFC 3022): private networks behind an address of this host, and ports
//! of this host that lead to hosts of theirs (`docs/nat.md`).
//!
//! A **flow** is what a NAT remembers of a conversation: the ends of its packets as they arrive, in
//! both directions. How a packet leaves follows from that: as the answer to what arrives the other
//! way.

mod flows;
mod journal;
mod live;
mod state;
mod tuple;

use alloc::vec::Vec;
use core::hash::BuildHasher;
use core::net::{Ipv4Addr, SocketAddrV4};
use core::ops::RangeInclusive;

use flows::{Begun, Flow, Flows};
use hashbrown::HashMap;
pub use journal::{Journal, NotedFlow};
pub use live::{LiveFlow, Readers};
use state::Progress;
pub use state::{Direction, State};
pub use tuple::{Protocol, Tuple};

use crate::icmp;
use crate::route::Prefix;
use crate::{Malformed, Nanos};

/// Flows that there may be. Linux allows one for 16 KiB of memory.
pub const MOST_FLOWS: usize = 16_384;
/// Private networks, and ports that are published.
const MOST_NETWORKS: usize = 64;
const MOST_PUBLISHED: usize = 1024;
/// One in so many of the flows that are left may be one host's.
const GREED: usize = 4;
/// Flows that are looked at for one that makes room.
const MOST_VICTIMS: usize = 64;
/// Flows that are given up at once because their time is over.
const MOST_EXPIRED: usize = 16;
/// Ports that are tried by chance before all are.
const GUESSES: u32 = 16;
/// Ports below are of privileged programs: none is taken for others.
const FIRST_PORT: u16 = 1024;

/// There is no room for one more, or no memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoRoom;

/// A reason why a packet begins no flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// The packet is malformed, or one from the middle or the end of a flow.
    Invalid,
    /// There is no room for a flow, or no memory.
    NoRoom,
}

impl From<NoRoom> for Refused {
    fn from(NoRoom: NoRoom) -> Self {
        Self::NoRoom
    }
}

/// A reason why a port cannot be published.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PublishError {
    /// The port is published already.
    Taken,
    /// No such port can be: one is 0, or the address is none of a host, or ICMP has no ports.
    Invalid,
    /// There are too many, or no memory.
    NoRoom,
}

/// A port of this host that leads to another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Published {
    /// Protocol.
    pub protocol: Protocol,
    /// The port, at one of this host's addresses, or at all if that is unspecified.
    pub at: SocketAddrV4,
    /// The port that it leads to.
    pub to: SocketAddrV4,
    /// Number of whom it is published for.
    pub owner: u64,
}

impl Published {
    /// The first that is not before a port, of some in order of protocols and ports.
    fn place_of(all: &[Self], protocol: Protocol, port: u16) -> usize {
        all.partition_point(|known| (known.protocol, known.at.port()) < (protocol, port))
    }

    /// The published port that a packet to this host is for, of all in the order of
    /// [`Nat::published`].
    #[must_use]
    pub fn find(all: &[Self], protocol: Protocol, at: SocketAddrV4) -> Option<&Self> {
        all[Self::place_of(all, protocol, at.port())..]
            .iter()
            .take_while(|known| (known.protocol, known.at.port()) == (protocol, at.port()))
            .find(|known| known.overlaps(protocol, at))
    }

    fn overlaps(&self, protocol: Protocol, at: SocketAddrV4) -> bool {
        let (own, other) = (self.at.ip(), at.ip());
        (self.protocol, self.at.port()) == (protocol, at.port())
            && (own == other || own.is_unspecified() || other.is_unspecified())
    }
}

/// The beginning of a flow.
#[derive(Clone, Debug)]
pub struct NewFlow<'a> {
    /// The ends of the packet that has arrived.
    pub arriving: Tuple,
    /// The bytes behind its header.
    pub payload: &'a [u8],
    /// The published port that it is for.
    pub published: Option<Published>,
    /// The address of this host that it comes from when it leaves, if another one than now.
    pub outer: Option<Ipv4Addr>,
    /// Ports that this host gives to its own programs: none of them is taken.
    pub own_ports: RangeInclusive<u16>,
    /// A number that nobody else knows.
    pub random: u32,
}

/// Events that are counted.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    /// Flows that were begun.
    pub begun: u64,
    /// Flows that were refused: their host had as many as there was room for others, or there was
    /// no memory.
    pub refused: u64,
    /// Packets that are of no flow, and begin none.
    pub invalid: u64,
    /// Flows that were given up for others of the same host.
    pub evicted: u64,
}

/// An end that is hidden, and the address it is hidden behind.
type Hidden = (Protocol, SocketAddrV4, Ipv4Addr);

/// The port that stands for a hidden end, and how many flows need it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Mapping {
    port: u16,
    flows: usize,
}

/// The translation of addresses. `R` lists flows for those without its lock.
pub struct Nat<S, R = ()> {
    networks: Vec<Prefix>,
    /// In order of protocols and ports.
    published: Vec<Published>,
    flows: Flows<S, R>,
    /// One for each hidden end, whoever it talks to (RFC 4787, REQ-1).
    mappings: HashMap<Hidden, Mapping, S>,
    /// The other way: ends that mappings stand for others with.
    outer: HashMap<(Protocol, SocketAddrV4), SocketAddrV4, S>,
    most_flows: usize,
    counts: Counts,
    /// Writer of notes about flows, if somebody keeps them.
    journal: Option<Journal>,
    version: u64,
}

impl<S: BuildHasher + Clone> Nat<S> {
    /// A translation of nothing, as [`Self::with_readers`], of which nobody knows without its lock.
    #[must_use]
    pub fn new(hash: S, most_flows: usize) -> Self {
        Self::with_readers(hash, (), most_flows)
    }
}

impl<S: BuildHasher + Clone, R: Readers> Nat<S, R> {
    /// A translation of nothing. `hash` has a secret, so that nobody outside knows which flows meet
    /// in a place of the table.
    #[must_use]
    pub fn with_readers(hash: S, readers: R, most_flows: usize) -> Self {
        Self {
            networks: Vec::new(),
            published: Vec::new(),
            flows: Flows::new(hash.clone(), readers),
            mappings: HashMap::with_hasher(hash.clone()),
            outer: HashMap::with_hasher(hash),
            most_flows,
            counts: Counts::default(),
            journal: None,
            version: 0,
        }
    }

    /// Whether there is nothing to translate, and was not.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.networks.is_empty() && self.published.is_empty() && self.flows.len() == 0
    }

    /// A number that is another whenever hidden networks or published ports have changed.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Hides a network: who is in it comes from an address of this host's. Doing so again changes
    /// nothing.
    ///
    /// # Errors
    /// There are too many, or no memory.
    pub fn masquerade(&mut self, network: Prefix) -> Result<(), NoRoom> {
        if self.networks.contains(&network) {
            return Ok(());
        }
        if self.networks.len() >= MOST_NETWORKS || self.networks.try_reserve(1).is_err() {
            return Err(NoRoom);
        }
        self.networks.push(network);
        self.version += 1;
        Ok(())
    }

    /// Hides a network no more. The flows of who is in it end.
    pub fn stop_masquerade(&mut self, network: Prefix) {
        self.networks.retain(|known| *known != network);
        self.version += 1;
        self.end_flows(|flow| network.contains(flow.inner));
    }

    /// The hidden network that an address is of.
    #[must_use]
    pub fn network_of(&self, address: Ipv4Addr) -> Option<Prefix> {
        let mut all = self.networks.iter().copied();
        all.find(|network| network.contains(address))
    }

    /// Publishes a port.
    ///
    /// # Errors
    /// [`PublishError`].
    pub fn publish(&mut self, new: Published) -> Result<(), PublishError> {
        let is_host = crate::ipv4::is_possible_source(*new.to.ip());
        if !is_host || new.at.port() == 0 || new.to.port() == 0 || new.protocol == Protocol::Icmp {
            return Err(PublishError::Invalid);
        }
        let is_taken = |known: &Published| known.overlaps(new.protocol, new.at);
        if self.published.iter().any(is_taken) {
            return Err(PublishError::Taken);
        }
        if self.published.len() >= MOST_PUBLISHED || self.published.try_reserve(1).is_err() {
            return Err(PublishError::NoRoom);
        }
        let at = self.place_of(new.protocol, new.at.port());
        self.published.insert(at, new);
        self.version += 1;
        Ok(())
    }

    /// The first published port that is not before one.
    fn place_of(&self, protocol: Protocol, port: u16) -> usize {
        Published::place_of(&self.published, protocol, port)
    }

    /// The published port that a packet to this host is for.
    #[must_use]
    pub fn published_at(&self, protocol: Protocol, at: SocketAddrV4) -> Option<Published> {
        Published::find(&self.published, protocol, at).copied()
    }

    /// The hidden networks.
    pub fn networks(&self) -> impl Iterator<Item = &Prefix> {
        self.networks.iter()
    }

    /// All published ports, in order of protocols and ports.
    pub fn published(&self) -> impl Iterator<Item = &Published> {
        self.published.iter()
    }

    /// Withdraws an owner's ports, and ends the flows through them.
    pub fn withdraw(&mut self, owner: u64) {
        self.published.retain(|known| known.owner != owner);
        self.version += 1;
        self.end_flows(|flow| flow.owner == Some(owner));
    }

    /// Ends the flows of a host: who has its address next has none of them.
    pub fn forget(&mut self, inner: Ipv4Addr) {
        if self.flows.held_by(inner) > 0 {
            self.end_flows(|flow| flow.inner == inner);
        }
    }

    /// Ends the flows that come from an address of this host's, or to it, which is so no more.
    pub fn forget_outer(&mut self, outer: Ipv4Addr) {
        self.end_flows(|flow| {
            let (arriving, leaving) = (flow.arriving()[0], flow.leaving(Direction::Original));
            [*arriving.to.ip(), *leaving.from.ip()].contains(&outer)
        });
    }

    fn end_flows(&mut self, is_meant: impl Fn(&Flow) -> bool) {
        for number in self.flows.numbers() {
            if self.flows.get(number).is_some_and(&is_meant) {
                self.end(number);
            }
        }
    }

    /// The number of flows.
    #[must_use]
    pub fn flows(&self) -> usize {
        self.flows.len()
    }

    /// Counts of what has happened.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The ends that a packet leaves with, if it is of a flow; it counts for that. `None` if it is
    /// of none.
    ///
    /// # Errors
    /// It is malformed.
    pub fn follow(
        &mut self,
        now: Nanos,
        arriving: &Tuple,
        payload: &[u8],
    ) -> Result<Option<Tuple>, Malformed> {
        let Some((number, direction)) = self.flows.find(arriving) else {
            return Ok(None);
        };
        let Some(flow) = self.flows.get(number) else {
            return Ok(None);
        };
        if flow.live.expires() <= now {
            self.end(number);
            return Ok(None);
        }
        let (leaving, before) = (flow.leaving(direction), flow.live.progress());
        let mut progress = before;
        if !progress.packet(arriving.protocol, direction, payload) {
            return Err(Malformed);
        }
        flow.live.advance(now, direction, before, progress);
        self.flows.requeue(number, now);
        if (progress.state, progress.closing) != (before.state, before.closing) {
            self.note(number);
        }
        Ok(Some(leaving))
    }

    /// Remembers a word of the caller's for the flow and direction of packets with these ends
    /// ([`LiveFlow::admitted`]), if there is one.
    pub fn admit(&self, arriving: &Tuple, word: u64) {
        if let Some((number, direction)) = self.flows.find(arriving)
            && let Some(flow) = self.flows.get(number)
        {
            flow.live.admit(direction, word);
        }
    }

    /// Begins a flow. Returns the ends that its first packet leaves with.
    ///
    /// # Errors
    /// There is no room for it, or the packet begins none.
    pub fn begin(&mut self, now: Nanos, new: &NewFlow<'_>) -> Result<Tuple, Refused> {
        let result = self.try_begin(now, new);
        *match result {
            Ok(_) => &mut self.counts.begun,
            Err(Refused::NoRoom) => &mut self.counts.refused,
            Err(Refused::Invalid) => &mut self.counts.invalid,
        } += 1;
        result
    }

    fn try_begin(&mut self, now: Nanos, new: &NewFlow<'_>) -> Result<Tuple, Refused> {
        let arriving = new.arriving;
        let progress = Progress::begin(arriving, new.payload).ok_or(Refused::Invalid)?;
        for _ in 0..MOST_EXPIRED {
            let Some(number) = self.flows.first_expired(now) else {
                break;
            };
            self.end(number);
        }
        // The host that gains by it: the one behind a published port, or the one that is hidden.
        let inner = match new.published {
            Some(published) => *published.to.ip(),
            None => *arriving.from.ip(),
        };
        self.make_room(now, inner)?;
        let to = new.published.map_or(arriving.to, |published| published.to);
        let from = match new.outer {
            Some(outer) => self.map(arriving, outer, new)?,
            None => arriving.from,
        };
        let leaving = Tuple {
            from,
            to,
            ..arriving
        };
        let flow = Begun {
            arriving: [arriving, leaving.reversed()],
            progress,
            owner: new.published.map(|published| published.owner),
            inner,
        };
        let inserted = self.flows.insert(flow, now);
        if inserted.is_err() && new.outer.is_some() {
            self.unmap((arriving.protocol, arriving.from, *from.ip()));
        }
        self.note(inserted?);
        Ok(leaving)
    }

    /// Sees to it that a host may have one flow more. It may have a fourth of what is left for
    /// others: when ten hosts have taken all that they can, a tenth is left.
    fn make_room(&mut self, now: Nanos, inner: Ipv4Addr) -> Result<(), NoRoom> {
        let has_room = |nat: &Self| {
            let free = nat.most_flows.saturating_sub(nat.flows.len());
            nat.flows.held_by(inner) * GREED < free
        };
        while !has_room(self) {
            let Some(number) = self.flows.first_expired(now) else {
                break;
            };
            self.end(number);
        }
        if has_room(self) {
            return Ok(());
        }
        // The same host's flow that is missed least makes room, if there is one.
        const EXPENDABLE: [State; 8] = [
            State::Close,
            State::TimeWait,
            State::LastAck,
            State::SynSent,
            State::SynReceived,
            State::Udp,
            State::Icmp,
            State::Unacknowledged,
        ];
        let victim = EXPENDABLE.iter().find_map(|state| {
            let all = self.flows.in_state(*state).take(MOST_VICTIMS);
            let own = all.filter(|(_, flow)| flow.inner == inner);
            own.min_by_key(|(_, flow)| flow.live.heard())
        });
        let (number, _) = victim.ok_or(NoRoom)?;
        self.end(number);
        self.counts.evicted += 1;
        Ok(())
    }

    /// The end that stands for the sender of a packet, behind an address.
    fn map(
        &mut self,
        arriving: Tuple,
        outer: Ipv4Addr,
        new: &NewFlow<'_>,
    ) -> Result<SocketAddrV4, NoRoom> {
        let hidden = (arriving.protocol, arriving.from, outer);
        if let Some(mapping) = self.mappings.get_mut(&hidden) {
            mapping.flows += 1;
            return Ok(SocketAddrV4::new(outer, mapping.port));
        }
        let port = self.choose_port(hidden, new).ok_or(NoRoom)?;
        self.mappings.try_reserve(1).map_err(|_| NoRoom)?;
        self.outer.try_reserve(1).map_err(|_| NoRoom)?;
        let end = SocketAddrV4::new(outer, port);
        self.mappings.insert(hidden, Mapping { port, flows: 1 });
        self.outer.insert((arriving.protocol, end), arriving.from);
        Ok(end)
    }

    /// A port that stands for no end and is nobody's: that of the end itself if it can be, else one
    /// that cannot be foreseen (RFC 6056).
    fn choose_port(&self, (protocol, end, outer): Hidden, new: &NewFlow<'_>) -> Option<u16> {
        let is_free = |port: u16| {
            let at = SocketAddrV4::new(outer, port);
            let is_echo = protocol == Protocol::Icmp;
            port >= FIRST_PORT
                && (is_echo || !new.own_ports.contains(&port))
                && !self.outer.contains_key(&(protocol, at))
                && self.published_at(protocol, at).is_none()
        };
        if is_free(end.port()) {
            return Some(end.port());
        }
        let count = u32::from(u16::MAX - FIRST_PORT) + 1;
        let nth = |at: u32| FIRST_PORT + (at % count) as u16;
        let mut state = new.random;
        for _ in 0..GUESSES {
            state = state.wrapping_mul(0x0019_660d).wrapping_add(0x3c6e_f35f);
            let port = nth(state >> 8);
            if is_free(port) {
                return Some(port);
            }
        }
        (0..count)
            .map(|step| nth(state.wrapping_add(step)))
            .find(|port| is_free(*port))
    }

    fn unmap(&mut self, hidden: Hidden) {
        if let Some(mapping) = self.mappings.get_mut(&hidden) {
            mapping.flows -= 1;
            if mapping.flows == 0 {
                let (protocol, _, outer) = hidden;
                let end = SocketAddrV4::new(outer, mapping.port);
                self.outer.remove(&(protocol, end));
                self.mappings.remove(&hidden);
            }
        }
    }

    fn end(&mut self, number: flows::Number) {
        let ended = self.flows.remove(number);
        self.note(number);
        if let Some(flow) = ended
            && flow.hides_source()
        {
            let outer = flow.leaving(Direction::Original).from;
            let original = flow.arriving()[0];
            self.unmap((original.protocol, original.from, *outer.ip()));
        }
    }

    /// The ends that a packet which this host has sent on had when it arrived, if it is of a flow.
    #[must_use]
    pub fn arrived_as(&self, left: &Tuple) -> Option<Tuple> {
        let (number, direction) = self.flows.find(&left.reversed())?;
        let flow = self.flows.get(number)?;
        Some(flow.arriving()[direction.other() as usize])
    }

    /// Translates an ICMP error that quotes a packet of a flow, whose checksum was verified.
    /// Returns the addresses that it leaves with: from whom, to whom; `None` if it is about none.
    ///
    /// # Errors
    /// It is malformed.
    pub fn translate_error(
        &self,
        now: Nanos,
        from: Ipv4Addr,
        message: &mut [u8],
    ) -> Result<Option<(Ipv4Addr, Ipv4Addr)>, Malformed> {
        let Some(error) = icmp::parse_error(message)? else {
            return Ok(None);
        };
        let Ok(left) = Tuple::of(&error.header, error.payload) else {
            return Ok(None);
        };
        // The error goes as an answer to the quoted packet does.
        let found = self.flows.find(&left.reversed());
        let Some((flow, direction)) = found.and_then(|(number, direction)| {
            let flow = self.flows.get(number)?;
            (flow.live.expires() > now).then_some((flow, direction))
        }) else {
            return Ok(None);
        };
        let arrived = flow.arriving()[direction.other() as usize];
        arrived.write_quoted(message)?;
        let (answer, leaving) = (flow.arriving()[direction as usize], flow.leaving(direction));
        // Who is hidden does not show itself by errors, nor who is on the way to it.
        let from = if answer.from == leaving.from {
            from
        } else {
            *leaving.from.ip()
        };
        Ok(Some((from, *leaving.to.ip())))
    }
}

#[cfg(test)]
mod tests;
