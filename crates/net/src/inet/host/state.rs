//! The tables of a host, and the work that changes of them leave to be done without their lock.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ip::nat::{self, Nat};
use ip::neighbour::{self, Event, Key, Neighbour};
use ip::route;
use ip::{Nanos, PathMtus, RateLimit, arp};

use super::counts::PacketCounts;
use super::destinations::PacketIds;
use super::forward::FlowHash;
use super::fragments::Fragments;
use super::link::LinkDevice;
use super::registry::{Registered, Registry};
use super::translation::{FlowWriter, KnownFlows};
use super::v6::Ipv6State;
use crate::socket::interface::ETHERNET_HEADER_LEN;
use crate::socket::{InterfaceAddress, SendAccount};

/// The kind of an Ethernet frame that carries ARP.
pub(super) const ETH_P_ARP: u16 = 0x0806;

/// A change of a host's tables, which is told to whoever listens.
#[derive(Clone, Copy, Debug)]
pub enum Change {
    /// An interface has come, changed or gone.
    Link {
        /// Number of the interface.
        index: u32,
    },
    /// An address has come or gone.
    Address {
        /// Number of the interface.
        index: u32,
        /// The address.
        address: InterfaceAddress,
        /// Whether the address has gone.
        removed: bool,
    },
    /// A route has come or gone.
    Route {
        /// The route.
        route: route::Route,
        /// Whether the route has gone.
        removed: bool,
    },
    /// A route of IPv6 has come or gone.
    RouteV6 {
        /// The route.
        route: route::Route<Ipv6Addr>,
        /// Whether the route has gone.
        removed: bool,
    },
    /// A neighbour has come, changed or gone.
    Neighbour {
        /// The neighbour.
        neighbour: Neighbour,
        /// Whether the neighbour has gone.
        removed: bool,
    },
}

/// A frame that is to be sent.
pub(super) struct OutgoingFrame {
    pub(super) card: Arc<LinkDevice>,
    pub(super) frame: Vec<u8>,
}

/// Work that is done without the lock. What there is no memory for is lost, as on a wire.
#[derive(Default)]
pub(super) struct Work {
    pub(super) frames: Vec<OutgoingFrame>,
    /// The socket whose datagram has made the frames, if one has.
    pub(super) sender: Option<Arc<SendAccount>>,
    pub(super) changes: Vec<Change>,
    /// Packets whose neighbours do not answer.
    pub(super) unreachable: Vec<Vec<u8>>,
    /// Beginnings of datagrams that did not become whole in time.
    pub(super) expired: Vec<Vec<u8>>,
    /// The same of IPv6, with the number of the interface.
    pub(super) unreachable_v6: Vec<(u32, Vec<u8>)>,
    pub(super) expired_v6: Vec<(u32, Vec<u8>)>,
}

impl Work {
    /// Whether nothing is left to be done.
    pub(super) fn is_empty(&self) -> bool {
        let Self {
            frames,
            sender: _,
            changes,
            unreachable,
            expired,
            unreachable_v6,
            expired_v6,
        } = self;
        frames.is_empty()
            && changes.is_empty()
            && unreachable.is_empty()
            && expired.is_empty()
            && unreachable_v6.is_empty()
            && expired_v6.is_empty()
    }

    pub(super) fn tell(&mut self, change: Change) {
        // Who listens misses it, as one whose queue is full.
        let _ = fallible::push(&mut self.changes, change);
    }
}

/// The destination of a packet that has come in, or is to go out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Class {
    /// This host.
    Own,
    /// Everybody on a link.
    Broadcast,
    /// A group.
    Multicast,
    /// Another host.
    Other,
}

impl Class {
    /// For whom a packet with this destination is, where it is said whether that is everybody on
    /// the link of an interface that is up, and whether such an interface has it.
    pub(super) fn of(
        to: Ipv4Addr,
        is_broadcast: impl FnOnce() -> bool,
        is_own: impl FnOnce() -> bool,
    ) -> Self {
        if to.is_multicast() {
            Self::Multicast
        } else if to.is_broadcast() || is_broadcast() {
            Self::Broadcast
        } else if is_own() {
            Self::Own
        } else {
            Self::Other
        }
    }

    /// For whom a packet of IPv6 with this destination is, where `is_own` says whether an interface
    /// has that.
    pub(super) fn of_v6(to: Ipv6Addr, is_own: impl FnOnce() -> bool) -> Self {
        if to.is_multicast() {
            Self::Multicast
        } else if is_own() {
            Self::Own
        } else {
            Self::Other
        }
    }
}

/// The tables of a host.
pub(super) struct HostState {
    pub(super) interfaces: Registry,
    pub(super) routes: route::Table,
    pub(super) neighbours: neighbour::Table,
    pub(super) fragments: Arc<Fragments>,
    pub(super) path_mtus: PathMtus<Ipv4Addr>,
    pub(super) rate_limit: RateLimit,
    pub(super) counts: Arc<PacketCounts>,
    pub(super) nat: Nat<FlowHash, FlowWriter>,
    /// The flows of `nat`, for those without the lock.
    pub(super) known_flows: Arc<KnownFlows>,
    pub(super) flow_hash: FlowHash,
    pub(super) v6: Ipv6State,
    /// When there is something to tell of groups of IPv4.
    pub(super) groups_due: Option<Nanos>,
    /// Flows that were begun, or tried to be.
    pub(super) flows_begun: u64,
    pub(super) ids: Arc<PacketIds>,
    /// How often the tables were locked.
    pub(super) locked: u64,
    /// The versions of all tables and of the interfaces that others see.
    pub(super) published: (u64, u64),
    /// The versions of what is translated and of the routes, of which others see what follows for
    /// packets; none if nothing is translated.
    pub(super) shown_terms: Option<(u64, u64)>,
}

impl HostState {
    pub(super) fn new(counts: Arc<PacketCounts>, ids: Arc<PacketIds>) -> Self {
        let mut random = [0; 32];
        fs::devfs::fill_random(&mut random);
        let word = |at: usize| {
            u32::from_ne_bytes([random[at], random[at + 1], random[at + 2], random[at + 3]])
        };
        let key = [16, 24].map(|at| u64::from(word(at)) << 32 | u64::from(word(at + 4)));
        let flow_hash = FlowHash::new(key);
        let writer = FlowWriter::new(flow_hash.clone());
        Self {
            interfaces: Registry::default(),
            routes: route::Table::default(),
            neighbours: neighbour::Table::new(u64::from(word(0)) << 32 | u64::from(word(4))),
            fragments: Arc::default(),
            path_mtus: PathMtus::default(),
            rate_limit: RateLimit::new(word(8)),
            counts,
            known_flows: writer.known(),
            nat: Nat::with_readers(flow_hash.clone(), writer, nat::MOST_FLOWS),
            flow_hash,
            v6: Ipv6State::new(u64::from(word(4)) << 32 | u64::from(word(0)), word(8)),
            groups_due: None,
            flows_begun: 0,
            ids,
            locked: 0,
            published: (0, 0),
            shown_terms: None,
        }
    }

    /// A number that is another whenever a way to a destination, or for whom a packet is, may have
    /// changed.
    pub(super) fn version(&self) -> u64 {
        let v6 = self.v6.version();
        self.interfaces.version()
            + self.routes.version()
            + self.neighbours.version()
            + self.path_mtus.version()
            + self.nat.version()
            + v6
    }

    /// When there is something to do, if nothing happens before.
    pub(super) fn deadline(&self) -> Option<Nanos> {
        let due = [
            self.neighbours.deadline(),
            self.v6.deadline(),
            self.groups_due,
        ];
        due.into_iter().flatten().min()
    }

    /// Whether an address is one of an interface that is up.
    pub(super) fn is_own(&self, address: Ipv4Addr) -> bool {
        self.own_interface(address).is_some()
    }

    /// Whether an address leads to this host, by the loop or an interface that is up.
    pub(super) fn is_here(&self, address: Ipv4Addr) -> bool {
        address.is_loopback() || self.is_own(address)
    }

    fn own_interface(&self, address: Ipv4Addr) -> Option<&Registered> {
        let has_it = |known: &InterfaceAddress| known.ip == IpAddr::V4(address);
        self.interfaces
            .iter()
            .find(|one| one.is_up() && one.shown.v4_addresses().any(has_it))
    }

    /// The interface, and its address, of whose network an address is the broadcast.
    pub(super) fn broadcast_interface(&self, to: Ipv4Addr) -> Option<(&Registered, Ipv4Addr)> {
        self.interfaces
            .iter()
            .filter(|one| one.is_up())
            .find_map(|one| {
                let mut addresses = one.shown.v4_addresses();
                let known = addresses.find(|known| known.has_broadcast(to))?;
                match known.ip {
                    IpAddr::V4(ip) => Some((one, ip)),
                    IpAddr::V6(_) => None,
                }
            })
    }

    /// For whom a packet with this destination is.
    pub(super) fn class(&self, to: Ipv4Addr) -> Class {
        let is_broadcast = || self.broadcast_interface(to).is_some();
        Class::of(to, is_broadcast, || self.is_own(to))
    }

    /// Adds a frame to what is to be sent by an interface.
    pub(super) fn push_frame(&mut self, index: u32, frame: Vec<u8>, work: &mut Work) {
        let Some(interface) = self.interfaces.get(index) else {
            return;
        };
        let card = &interface.card;
        if !interface.is_up() || work.frames.try_reserve(1).is_err() {
            return card.sent.count_dropped();
        }
        work.frames.push(OutgoingFrame {
            card: card.clone(),
            frame,
        });
    }

    /// Turns what the neighbours' table asks for into work.
    pub(super) fn collect_events(&mut self, work: &mut Work) {
        for event in self.neighbours.take_events() {
            match event {
                Event::Solicit(key, known) => self.solicit(key, known, work),
                Event::Transmit(key, hardware, mut frame) => {
                    if let Some(to) = frame.first_chunk_mut::<6>() {
                        *to = hardware;
                    }
                    self.push_frame(key.interface, frame, work);
                }
                Event::Unreachable(_, mut frame) => {
                    frame.drain(..ETHERNET_HEADER_LEN.min(frame.len()));
                    let _ = fallible::push(&mut work.unreachable, frame);
                }
                Event::Changed(neighbour) => work.tell(Change::Neighbour {
                    neighbour,
                    removed: false,
                }),
                Event::Removed(neighbour) => work.tell(Change::Neighbour {
                    neighbour,
                    removed: true,
                }),
            }
        }
    }

    /// Asks for a neighbour.
    fn solicit(&mut self, key: Key, known: Option<ip::HardwareAddress>, work: &mut Work) {
        let IpAddr::V4(target) = key.address else {
            return;
        };
        let Some(interface) = self.interfaces.get(key.interface) else {
            return;
        };
        let Some(own) = interface.shown.hardware_address else {
            return;
        };
        let message = arp::Message {
            operation: arp::Operation::Request,
            sender_hardware: own,
            sender: interface
                .source_for(target)
                .unwrap_or(Ipv4Addr::UNSPECIFIED),
            target_hardware: [0; 6],
            target,
        };
        let to = known.unwrap_or(ip::EVERYBODY);
        self.send_arp(key.interface, to, &message, work);
    }

    pub(super) fn send_arp(
        &mut self,
        index: u32,
        to: ip::HardwareAddress,
        message: &arp::Message,
        work: &mut Work,
    ) {
        let Ok(mut frame) = fallible::with_capacity(ETHERNET_HEADER_LEN + arp::LENGTH) else {
            return;
        };
        push_ethernet_header(&mut frame, to, message.sender_hardware, ETH_P_ARP);
        frame.extend_from_slice(&message.emit());
        self.push_frame(index, frame, work);
    }
}

impl Registered {
    /// The address that packets to a next hop come from.
    pub(super) fn source_for(&self, next_hop: Ipv4Addr) -> Option<Ipv4Addr> {
        let v4 = |known: &InterfaceAddress| match (known.ip, known.network_ip()) {
            (IpAddr::V4(ip), IpAddr::V4(network)) => Some((ip, network, known.prefix_len)),
            _ => None,
        };
        let mut addresses = self.shown.v4_addresses().filter_map(v4);
        let first = addresses.clone().next();
        let in_network = |(_, network, length): &(Ipv4Addr, Ipv4Addr, u8)| {
            route::Prefix::of(*network, *length).is_some_and(|of| of.contains(next_hop))
        };
        addresses.find(in_network).or(first).map(|(ip, ..)| ip)
    }
}

/// Adds an Ethernet header to a frame that has room for it.
pub(super) fn push_ethernet_header(
    frame: &mut Vec<u8>,
    to: ip::HardwareAddress,
    from: ip::HardwareAddress,
    kind: u16,
) {
    frame.extend_from_slice(&to);
    frame.extend_from_slice(&from);
    frame.extend_from_slice(&kind.to_be_bytes());
}
