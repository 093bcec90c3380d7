//! What is translated, as those see it who have no lock of the host's tables: flows by the ends of
//! their packets, and what begins others (`docs/nat.md`, "Without the tables' lock").

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::hash::BuildHasher;
use core::net::{Ipv4Addr, SocketAddrV4};
use core::sync::atomic::Ordering;

use fs::Result;
use ip::icmp;
use ip::ipv4::{self, Header, Packet};
use ip::nat::{Direction, LiveFlow, NoRoom, Protocol, Published, Readers, Tuple};
use ip::route::Prefix;
use task::RcuArc;

use super::Host;
use super::counts::Counter;
use super::forward::{FlowHash, HEAD};
use super::index::{Index, Writer};
use super::input::Arrived;
use super::link::admission;
use super::output::build;
use super::send_queue::QueuePlace;
use super::state::{Class, HostState};
use crate::inet::stack::InetStack;
use crate::socket::tap::PACKET_HOST;

/// Parts of the table of flows, each with a count of readers of its own.
const SHARDS: usize = 16;

/// Flows by the ends that their packets arrive with: both directions of each.
pub(super) struct KnownFlows {
    hash: FlowHash,
    shards: [Index<LiveFlow>; SHARDS],
}

/// The part of a hash. Within it other bits count.
fn shard_of(hash: u64) -> usize {
    (hash >> 32) as usize % SHARDS
}

impl KnownFlows {
    fn find(&self, arriving: &Tuple) -> Option<(Arc<LiveFlow>, Direction)> {
        let hash = self.hash.hash_one(arriving);
        let is_it = |flow: &LiveFlow| flow.direction_of(arriving).is_some();
        let flow = self.shards[shard_of(hash)].find(hash, is_it)?;
        let direction = flow.direction_of(arriving)?;
        Some((flow, direction))
    }
}

/// The one who changes [`KnownFlows`], with the lock of the host's tables.
pub(super) struct FlowWriter {
    known: Arc<KnownFlows>,
    writers: [Writer; SHARDS],
}

impl FlowWriter {
    pub(super) fn new(hash: FlowHash) -> Self {
        let known = KnownFlows {
            hash,
            shards: [const { Index::new() }; SHARDS],
        };
        Self {
            known: Arc::new(known),
            writers: Default::default(),
        }
    }

    /// The flows for those who look.
    pub(super) fn known(&self) -> Arc<KnownFlows> {
        self.known.clone()
    }

    fn hash(&self, arriving: &Tuple) -> (usize, u64) {
        let hash = self.known.hash.hash_one(arriving);
        (shard_of(hash), hash)
    }

    fn insert(&mut self, arriving: &Tuple, flow: &Arc<LiveFlow>) -> Result<()> {
        let (shard, hash) = self.hash(arriving);
        self.known.shards[shard].insert(&mut self.writers[shard], hash, flow.clone())
    }

    fn take_out(&mut self, arriving: &Tuple, flow: &LiveFlow) {
        let (shard, hash) = self.hash(arriving);
        self.known.shards[shard].remove(&mut self.writers[shard], hash, flow);
    }
}

impl Readers for FlowWriter {
    fn add(&mut self, flow: LiveFlow) -> core::result::Result<Arc<LiveFlow>, NoRoom> {
        if !vm::has_kernel_room() {
            return Err(NoRoom);
        }
        let flow = Arc::new(flow);
        let [original, reply] = flow.arriving();
        self.insert(original, &flow).map_err(|_| NoRoom)?;
        if self.insert(reply, &flow).is_err() {
            self.take_out(original, &flow);
            return Err(NoRoom);
        }
        Ok(flow)
    }

    fn remove(&mut self, flow: &LiveFlow) {
        for arriving in flow.arriving() {
            self.take_out(arriving, flow);
        }
    }
}

/// Conditions under which the tables have to be asked about a packet that is of no flow.
pub(super) struct Terms {
    networks: Vec<Prefix>,
    /// Routes that lead into hidden networks, in the order in which they count, with their
    /// interfaces.
    routes: Vec<(Prefix, u32)>,
    /// In the order of [`Published::find`].
    published: Vec<Published>,
}

impl Terms {
    fn of(state: &HostState) -> Result<Self> {
        let mut terms = Self {
            networks: Vec::new(),
            routes: Vec::new(),
            published: Vec::new(),
        };
        for network in state.nat.networks() {
            fallible::push(&mut terms.networks, *network)?;
        }
        for route in state.routes.iter() {
            let leads = |network: &Prefix| network.overlaps(route.destination);
            if terms.networks.iter().any(leads) {
                fallible::push(&mut terms.routes, (route.destination, route.interface))?;
            }
        }
        for port in state.nat.published() {
            fallible::push(&mut terms.published, *port)?;
        }
        Ok(terms)
    }

    /// Whether who sends a packet from an interface says who he is, as far as hidden networks tell
    /// ([`HostState::is_disguised`]).
    fn may_come(&self, source: Ipv4Addr, by: u32) -> bool {
        let is_hidden = self.networks.iter().any(|known| known.contains(source));
        let mut routes = self.routes.iter();
        !is_hidden
            || routes
                .find(|(to, _)| to.contains(source))
                .is_some_and(|(_, interface)| *interface == by)
    }
}

/// The flows and conditions of translation, for those without the lock.
pub(super) struct Translation {
    flows: Arc<KnownFlows>,
    terms: RcuArc<Terms>,
}

impl Translation {
    pub(super) fn new(flows: Arc<KnownFlows>) -> Self {
        Self {
            flows,
            terms: RcuArc::empty(),
        }
    }

    /// Lets those without the lock see what is translated, if that has changed. Without memory they
    /// ask the tables.
    pub(super) fn show(&self, state: &mut HostState) {
        let is_idle = state.nat.is_idle();
        let version = (!is_idle).then(|| (state.nat.version(), state.routes.version()));
        if version == state.shown_terms {
            return;
        }
        let terms = version.and_then(|_| Terms::of(state).ok());
        state.shown_terms = version.filter(|_| terms.is_some());
        self.terms.swap(terms.map(Arc::new));
    }

    /// Whether a port of this host may be published; if not, it is not.
    pub(super) fn may_be_published(&self, protocol: Protocol, at: SocketAddrV4) -> bool {
        let terms = self.terms.load();
        terms.is_none_or(|terms| Published::find(&terms.published, protocol, at).is_some())
    }
}

/// The fate of a packet as it shows without the tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sight {
    /// Nothing about the packet is translated.
    Plain,
    /// The packet was passed on.
    Passed,
    /// The tables have to be asked.
    Unknown,
}

impl Host {
    /// Looks at a packet that has come in, and passes it on if it is of a flow whose packets have
    /// passed the same way since the tables have changed, and changes no state of that.
    pub(super) fn look_through(
        &self,
        stack: &InetStack,
        arrived: &Arrived<'_>,
        packet: &Packet<'_>,
    ) -> Sight {
        if !self.translates.load(Ordering::Relaxed) {
            return Sight::Plain;
        }
        let header = &packet.header;
        let Some(terms) = self.translation.terms.load() else {
            return Sight::Unknown;
        };
        let interface = arrived.interface.index;
        // Ports are in the first fragment only.
        if header.is_fragment() || !terms.may_come(header.source, interface) {
            return Sight::Unknown;
        }
        match Tuple::of(header, packet.payload) {
            Ok(arriving) => {
                if let Some((flow, direction)) = self.translation.flows.find(&arriving) {
                    let passed = self.pass_by_flow(stack, arrived, packet, &flow, direction);
                    return passed.map_or(Sight::Unknown, |()| Sight::Passed);
                }
                let Terms { published, .. } = &*terms;
                if Published::find(published, arriving.protocol, arriving.to).is_some() {
                    return Sight::Unknown;
                }
            }
            // It may be an error about a packet of a flow.
            Err(_) if header.protocol == icmp::PROTOCOL => return Sight::Unknown,
            Err(_) => {}
        }
        match arrived.view.class(header.destination) {
            // It may begin a flow.
            Class::Other => Sight::Unknown,
            Class::Own | Class::Broadcast | Class::Multicast => Sight::Plain,
        }
    }

    /// Passes a packet of a flow on. `None` if the tables have to, and nothing has happened.
    fn pass_by_flow(
        &self,
        stack: &InetStack,
        arrived: &Arrived<'_>,
        packet: &Packet<'_>,
        flow: &LiveFlow,
        direction: Direction,
    ) -> Option<()> {
        let now = self.now();
        let version = self.version.load(Ordering::Acquire);
        // Who it may come from, and whether it may go where it goes, was looked at for another one.
        let is_admitted = flow.admitted(direction) == admission(version, arrived.interface.index);
        let has_options = packet.header_bytes.len() > ipv4::HEADER;
        if !is_admitted
            || arrived.packet_type != PACKET_HOST
            || has_options
            || packet.header.ttl <= 1
        {
            return None;
        }
        let leaving = flow.leaving(direction);
        let way = self.way(now, (*leaving.to.ip()).into(), 0)?;
        if ipv4::HEADER + packet.payload.len() > way.link_mtu as usize
            || !flow.follow(now, direction, packet.payload)
        {
            return None;
        }
        let (first, rest) = packet.payload.split_at(packet.payload.len().min(HEAD));
        let mut head = [0; HEAD];
        let head = &mut head[..first.len()];
        head.copy_from_slice(first);
        let mut header = Header {
            ttl: packet.header.ttl - 1,
            ..packet.header
        };
        leaving.write(&mut header, head);
        if !header.dont_fragment {
            header.id = self.ids.next(header.destination);
        }
        match build(way.link, &header, &[head, rest]) {
            Some(frame) => {
                self.send_frame(Some(stack), &way.card, None, frame, QueuePlace::Behind);
                self.counts.count(Counter::ForwDatagrams);
            }
            None => self.counts.count(Counter::InDiscards),
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use ip::nat::{Nat, NewFlow};

    use super::*;

    #[test]
    fn flows_are_found_by_both_their_ends_until_they_are_over() {
        let hash = FlowHash::new([1, 2]);
        let writer = FlowWriter::new(hash.clone());
        let known = writer.known();
        let mut nat = Nat::with_readers(hash, writer, 100);
        let end = |address: [u8; 4], port| SocketAddrV4::new(address.into(), port);
        let arriving = Tuple {
            protocol: Protocol::Udp,
            from: end([10, 88, 0, 2], 5000),
            to: end([198, 51, 100, 1], 53),
        };
        let new = NewFlow {
            arriving,
            payload: &[0; 8],
            published: None,
            outer: Some(Ipv4Addr::new(192, 0, 2, 1)),
            own_ports: 32_768..=60_999,
            random: 7,
        };
        let leaving = nat.begin(0, &new).unwrap();
        let (flow, there) = known.find(&arriving).unwrap();
        let (same, back) = known.find(&leaving.reversed()).unwrap();
        assert!(Arc::ptr_eq(&flow, &same));
        assert_eq!((there, back), (Direction::Original, Direction::Reply));
        assert!(known.find(&leaving).is_none());
        assert!(flow.follow(0, there, &[0; 8]));
        nat.forget(*arriving.from.ip());
        assert!(known.find(&arriving).is_none());
        assert!(known.find(&leaving.reversed()).is_none());
        // Who has found it just before that has not got it any more, and nobody else has.
        assert!(!flow.follow(0, there, &[0; 8]));
        drop(same);
        assert_eq!(Arc::strong_count(&flow), 1);
    }
}
