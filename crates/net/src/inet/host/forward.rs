//! From one interface to another: packets for other hosts, and what is translated on the way
//! (`docs/nat.md`).

use core::hash::BuildHasher;
#[expect(
    deprecated,
    reason = "the library has SipHash with a key under no other name"
)]
use core::hash::SipHasher;
use core::net::Ipv4Addr;
use core::ops::RangeInclusive;

use abi::errno::Errno;
use ip::ipv4::{self, Header};
use ip::nat::{NewFlow, Published, Tuple};
use ip::route::Kind;
use ip::{Nanos, checksum, icmp};

use super::destinations::Destination;
use super::input::{Complaint, Whole};
use super::link::admission;
use super::output::OutgoingPacket;
use super::state::{Class, HostState, Work};
use crate::inet::datagram::PathMtuDiscovery;

/// Bytes behind the header that translation changes, of TCP and UDP.
pub(super) const HEAD: usize = 20;

/// The hash of flows: with a key that nobody outside knows.
#[derive(Clone)]
pub(super) struct FlowHash([u64; 2]);

impl FlowHash {
    pub(super) fn new(key: [u64; 2]) -> Self {
        Self(key)
    }
}

#[expect(deprecated, reason = "as above")]
impl BuildHasher for FlowHash {
    type Hasher = SipHasher;

    fn build_hasher(&self) -> SipHasher {
        SipHasher::new_with_keys(self.0[0], self.0[1])
    }
}

/// The terms on which packets are passed on.
#[derive(Clone)]
pub(super) struct ForwardTerms {
    /// Number of the interface that the packet came in by.
    pub(super) arrived_by: u32,
    /// Version of the tables by which its ends were looked at; 0: it was not by tables.
    pub(super) seen: u64,
    /// Ports that are given to programs of this host.
    pub(super) own_ports: RangeInclusive<u16>,
    /// The packet was put together from fragments.
    pub(super) was_fragments: bool,
    /// Packets pass that are not translated, too (`net.ipv4.ip_forward`).
    pub(super) forwards: bool,
}

/// The fate of a packet that was to be passed on.
pub(super) enum Passed {
    /// The packet is for this host itself.
    Local,
    /// The packet is of a flow that a program of this host has begun, and is for that, with other
    /// ends.
    Home(Translation),
    /// The packet was sent on, or waits for a neighbour; the way is what others to the same host
    /// can go by.
    Sent(Option<Destination>),
    /// The packet may not pass.
    Lost,
    /// The packet is not translated, and others are not passed on.
    NotForwarded,
    /// No room is left for the packet, or for its flow.
    NoRoom,
    /// The packet may not pass, and its sender is told.
    Refused(Complaint),
}

/// The way that a packet takes.
struct Way {
    interface: u32,
    mtu: usize,
    /// The address of this host that it comes from, if that hides its sender.
    source: Option<Ipv4Addr>,
}

/// A packet's new ends.
pub(super) enum Translation {
    /// The packet stays as it is.
    None,
    /// The ends that it leaves with, as one of a flow.
    Ends(Tuple),
    /// An error about a packet of a flow: from whom, to whom, and its message.
    Error(Ipv4Addr, Ipv4Addr, alloc::vec::Vec<u8>),
}

/// Whether an address can be that of somebody behind a router.
fn can_pass(address: Ipv4Addr) -> bool {
    ipv4::is_possible_source(address) && !address.is_link_local()
}

impl HostState {
    /// Whether a packet claims to come from a hidden network, and does not come from there.
    pub(super) fn is_disguised(&self, source: Ipv4Addr, arrived_by: u32) -> bool {
        self.nat.network_of(source).is_some()
            && self
                .routes
                .lookup(source)
                .is_none_or(|route| route.interface != arrived_by)
    }

    /// Sends a packet on that has come in, if it is not for this host.
    pub(super) fn pass_on(
        &mut self,
        now: Nanos,
        packet: &Whole<'_>,
        terms: &ForwardTerms,
        work: &mut Work,
    ) -> Passed {
        match self.try_pass_on(now, packet, terms, work) {
            Ok(way) => Passed::Sent(way),
            Err(passed) => passed,
        }
    }

    fn try_pass_on(
        &mut self,
        now: Nanos,
        packet: &Whole<'_>,
        terms: &ForwardTerms,
        work: &mut Work,
    ) -> Result<Option<Destination>, Passed> {
        let header = packet.header;
        let is_idle = self.nat.is_idle();
        let arriving = if is_idle {
            None
        } else {
            Tuple::of(&header, packet.payload).ok()
        };
        let known = if is_idle {
            Translation::None
        } else {
            self.known_translation(now, packet, arriving.as_ref())?
        };
        // A port that leads elsewhere, if the packet is of no flow yet.
        let published = match (&known, arriving) {
            (Translation::None, Some(arriving)) if packet.class == Class::Own => {
                self.nat.published_at(arriving.protocol, arriving.to)
            }
            _ => None,
        };
        let to = match (&known, published) {
            (Translation::Ends(leaving), _) => *leaving.to.ip(),
            (Translation::Error(_, to, _), _) => *to,
            (Translation::None, Some(published)) => *published.to.ip(),
            (Translation::None, None) if packet.class == Class::Own => return Err(Passed::Local),
            (Translation::None, None) => header.destination,
        };
        let is_new = matches!(known, Translation::None);
        if !is_new && self.is_here(to) {
            return Err(Passed::Home(known));
        }
        let hidden = self.nat.network_of(header.source);
        let entered = self.nat.network_of(to);
        let hides = is_new && (hidden.is_some() && (published.is_some() || entered != hidden));
        if is_new && published.is_none() && !hides && !terms.forwards {
            return Err(Passed::NotForwarded);
        }
        // Nobody enters a hidden network from elsewhere by itself.
        let enters = is_new && published.is_none() && entered.is_some() && entered != hidden;
        if enters || !can_pass(header.source) || !can_pass(to) || packet.has_options() {
            return Err(Passed::Lost);
        }
        if header.ttl <= 1 {
            return Err(Passed::Refused(Complaint::TIME_EXCEEDED));
        }
        let way = self.way(to)?;
        let length = ipv4::HEADER + packet.payload.len();
        let must_stay_whole = header.dont_fragment && !terms.was_fragments;
        if length > way.mtu && must_stay_whole {
            return Err(Passed::Refused(Complaint::too_long(way.mtu)));
        }
        let comes_back = published.is_some() && way.interface == terms.arrived_by;
        let known = if published.is_some() || hides {
            let arriving = arriving.ok_or(Passed::Lost)?;
            let outer = (hides || comes_back)
                .then(|| way.source.ok_or(Passed::Lost))
                .transpose()?;
            Translation::Ends(self.begin_flow(now, packet, arriving, published, outer, terms)?)
        } else {
            known
        };
        self.send_translated(now, packet, &way, known, terms, work)?;
        let onward = self.way_to(now, to, 0);
        if let Some(arriving) = arriving {
            // What was asked here need not be for the next one.
            let word = admission(terms.seen, terms.arrived_by);
            self.nat.admit(&arriving, word);
        }
        Ok(onward)
    }

    /// The translation of a packet by the flow that it is of, or that it is an error about.
    fn known_translation(
        &mut self,
        now: Nanos,
        packet: &Whole<'_>,
        arriving: Option<&Tuple>,
    ) -> Result<Translation, Passed> {
        let header = packet.header;
        if let Some(arriving) = arriving {
            let leaving = self.nat.follow(now, arriving, packet.payload);
            let leaving = leaving.map_err(|_| Passed::Lost)?;
            return Ok(leaving.map_or(Translation::None, Translation::Ends));
        }
        let kind = packet.payload.first().copied().unwrap_or(0);
        if header.protocol != icmp::PROTOCOL || !icmp::is_error(kind) {
            return Ok(Translation::None);
        }
        if checksum(packet.payload) != 0 {
            return Err(Passed::Lost);
        }
        let mut message = fallible::copy_of(packet.payload).map_err(|_| Passed::NoRoom)?;
        let ends = self.nat.translate_error(now, header.source, &mut message);
        Ok(match ends.map_err(|_| Passed::Lost)? {
            Some((from, to)) => Translation::Error(from, to, message),
            None => Translation::None,
        })
    }

    /// The way to another host.
    fn way(&self, to: Ipv4Addr) -> Result<Way, Passed> {
        if self.class(to) != Class::Other {
            return Err(Passed::Lost);
        }
        let unreachable = |code| Err(Passed::Refused(Complaint::unreachable(code)));
        let Some(route) = self.routes.lookup(to) else {
            return unreachable(icmp::unreachable::NET);
        };
        match route.kind {
            Kind::Unicast => {}
            Kind::Unreachable => return unreachable(icmp::unreachable::HOST),
            Kind::Prohibit => return unreachable(icmp::unreachable::PROHIBITED),
            Kind::Blackhole => return Err(Passed::Lost),
        }
        let interface = self.interfaces.get(route.interface);
        let Some(interface) = interface.filter(|one| one.is_up()) else {
            return unreachable(icmp::unreachable::NET);
        };
        let source = route.source;
        Ok(Way {
            interface: route.interface,
            mtu: interface.shown.mtu as usize,
            source: source.or_else(|| interface.source_for(route.gateway.unwrap_or(to))),
        })
    }

    fn begin_flow(
        &mut self,
        now: Nanos,
        packet: &Whole<'_>,
        arriving: Tuple,
        published: Option<Published>,
        outer: Option<Ipv4Addr>,
        terms: &ForwardTerms,
    ) -> Result<Tuple, Passed> {
        let new = NewFlow {
            arriving,
            payload: packet.payload,
            published,
            outer,
            own_ports: terms.own_ports.clone(),
            random: self.next_port_hint(),
        };
        self.nat.begin(now, &new).map_err(|_| Passed::NoRoom)
    }

    fn send_translated(
        &mut self,
        now: Nanos,
        packet: &Whole<'_>,
        way: &Way,
        translation: Translation,
        terms: &ForwardTerms,
        work: &mut Work,
    ) -> Result<(), Passed> {
        let mut header = Header {
            ttl: packet.header.ttl - 1,
            dont_fragment: packet.header.dont_fragment && !terms.was_fragments,
            ..packet.header
        };
        let (first, rest) = packet.payload.split_at(packet.payload.len().min(HEAD));
        let mut head = [0; HEAD];
        let head = &mut head[..first.len()];
        head.copy_from_slice(first);
        let is_translated = !matches!(translation, Translation::None);
        let mut message = alloc::vec::Vec::new();
        match translation {
            Translation::None => {}
            Translation::Ends(leaving) => leaving.write(&mut header, head),
            Translation::Error(from, to, translated) => {
                (header.source, header.destination) = (from, to);
                message = translated;
            }
        }
        // Several hosts' packets come from one address now: their numbers must not meet if they
        // may be cut.
        if is_translated && !header.dont_fragment {
            header.id = self.ids.next(header.destination);
        }
        let payload = if message.is_empty() {
            [&*head, rest]
        } else {
            [&message, &[][..]]
        };
        let outgoing = OutgoingPacket {
            interface: way.interface,
            header,
            payload,
            discovery: PathMtuDiscovery::Never,
        };
        match self.send_as_is(now, &outgoing, work) {
            Ok(()) => Ok(()),
            Err(Errno::EMSGSIZE) => Err(Passed::Refused(Complaint::too_long(way.mtu))),
            Err(_) => Err(Passed::NoRoom),
        }
    }

    /// A number for the choice of a port, which those before do not tell.
    pub(super) fn next_port_hint(&mut self) -> u32 {
        self.flows_begun += 1;
        self.flow_hash.hash_one(self.flows_begun) as u32
    }
}
