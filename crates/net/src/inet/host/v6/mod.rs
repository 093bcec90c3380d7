//! IPv6 over interfaces (`docs/ipv6.md`): tables of their own beside those of IPv4, under the same
//! mutex.

mod addresses;
mod change;
mod discovery;
mod groups;
mod input;
mod output;
mod routers;
mod settings;

use alloc::vec::Vec;
use core::net::{IpAddr, Ipv6Addr};

use ip::groups::Groups;
use ip::neighbour::{self, Event};
use ip::route;
use ip::v6::address::{ALL_NODES, ALL_NODES_OF_INTERFACE, needs_link};
use ip::{Nanos, PathMtus, RateLimit};
use settings::Settings;
pub use settings::{Ipv6Scope, Ipv6Setting};

use self::addresses::Probe;
pub(super) use self::addresses::random_below;
pub(super) use self::output::OutgoingV6;
use self::routers::LearntRoute;
use super::Host;
use super::registry::Registered;
use super::state::{Change, Class, HostState, Work};
use crate::socket::address_flag::{DAD_FAILED, TENTATIVE};
use crate::socket::interface::ETHERNET_HEADER_LEN;
use crate::socket::{Interface, InterfaceAddress};

/// The tables of IPv6.
pub(super) struct Ipv6State {
    pub(super) routes: route::Table<Ipv6Addr>,
    pub(super) neighbours: neighbour::Table,
    path_mtus: PathMtus<Ipv6Addr>,
    rate_limit: RateLimit,
    /// The settings of interfaces that come (`conf/default`).
    defaults: Settings,
    /// The settings of all (`conf/all`).
    for_all: Settings,
    /// The earliest deadline of what is in here and in the interfaces' links.
    due: Option<Nanos>,
}

impl Ipv6State {
    pub(super) fn new(salt: u64, secret: u32) -> Self {
        Self {
            routes: route::Table::default(),
            neighbours: neighbour::Table::new(salt),
            path_mtus: PathMtus::default(),
            rate_limit: RateLimit::new(secret),
            defaults: Settings::default(),
            for_all: Settings::default(),
            due: None,
        }
    }

    /// A number that grows with each change of routes, neighbours and paths.
    pub(super) fn version(&self) -> u64 {
        self.routes.version() + self.neighbours.version() + self.path_mtus.version()
    }

    /// When there is something to do, as of the last [`HostState::settle_v6`].
    pub(super) fn deadline(&self) -> Option<Nanos> {
        self.due
    }
}

/// The part of an interface that is of IPv6 alone.
#[derive(Default)]
pub(super) struct Ipv6Link {
    settings: Settings,
    /// IPv6 is on: the interface is up, and it is not disabled.
    is_on: bool,
    /// The link is up, too: addresses are looked for, and routers.
    is_running: bool,
    /// The longest packet, as routers say.
    mtu: Option<u32>,
    /// Addresses that others are asked for.
    probes: Vec<Probe>,
    /// When routers are asked for next, and how often still.
    solicits: Option<(Nanos, u32)>,
    /// Groups of IPv6, but for those of all nodes.
    groups: Groups<Ipv6Addr>,
    /// Routes that routers have told of, with their ends.
    learnt: Vec<LearntRoute>,
}

impl Ipv6Link {
    /// The link of an interface that comes.
    pub(super) fn new(defaults: &Ipv6State, is_disabled: bool) -> Self {
        let mut settings = defaults.defaults;
        if is_disabled {
            settings.set(Ipv6Setting::DisableIpv6, 1);
        }
        Self {
            settings,
            ..Self::default()
        }
    }

    fn deadline(&self) -> Option<Nanos> {
        let probes = self.probes.iter().map(|probe| probe.due);
        let routes = self.learnt.iter().filter_map(|one| one.expires);
        let solicits = self.solicits.map(|(due, _)| due);
        let groups = self.groups.deadline().filter(|_| self.is_running);
        let others = [solicits, groups];
        probes
            .chain(routes)
            .chain(others.into_iter().flatten())
            .min()
    }
}

impl Registered {
    /// Whether packets of IPv6 come in and go out.
    pub(super) fn carries_ipv6(&self) -> bool {
        self.is_up() && self.v6.settings.get(Ipv6Setting::DisableIpv6) == 0
    }

    /// The addresses of IPv6.
    fn v6_addresses(&self) -> impl Iterator<Item = (Ipv6Addr, &InterfaceAddress)> {
        self.shown
            .addresses
            .iter()
            .filter_map(|known| match known.ip {
                IpAddr::V6(ip) => Some((ip, known)),
                IpAddr::V4(_) => None,
            })
    }

    /// The addresses of IPv6 that packets may come from and go to.
    fn usable_v6_addresses(&self) -> impl Iterator<Item = (Ipv6Addr, &InterfaceAddress)> {
        self.v6_addresses().filter(|(_, known)| is_usable(known))
    }

    /// Whether packets of IPv6 for others are passed on that come in.
    pub(super) fn forwards_ipv6(&self) -> bool {
        self.v6.settings.get(Ipv6Setting::Forwarding) != 0
    }

    /// The longest packet of IPv6.
    pub(super) fn v6_mtu(&self) -> u32 {
        let told = self.v6.mtu.unwrap_or(u32::MAX);
        self.shown.mtu.min(told)
    }

    /// Whether this host is in a group by itself, whatever programs want.
    fn is_in_group(&self, group: Ipv6Addr) -> bool {
        group == ALL_NODES || group == ALL_NODES_OF_INTERFACE || self.v6.groups.contains(group)
    }
}

/// Whether an interface that carries IPv6 has an address which may be used; of an address of a link
/// only the one with the number `via`, if that is not 0.
pub(super) fn has_usable(shown: &Interface, address: Ipv6Addr, via: u32) -> bool {
    let is_bound = via != 0 && needs_link(address);
    let is_it = |known: &InterfaceAddress| known.ip == IpAddr::V6(address) && is_usable(known);
    (!is_bound || shown.index == via) && shown.addresses.iter().any(is_it)
}

/// Whether nobody else is known, or still asked, to have an address.
pub(super) fn is_usable(known: &InterfaceAddress) -> bool {
    known.life.flags & (TENTATIVE | DAD_FAILED) == 0
}

impl HostState {
    /// The interface that has an address which may be used, as [`has_usable`].
    fn own_v6_interface(&self, address: Ipv6Addr, via: u32) -> Option<&Registered> {
        self.interfaces
            .iter()
            .find(|one| one.carries_ipv6() && has_usable(&one.shown, address, via))
    }

    /// Whether an address leads to this host, by the loop or an interface that is up.
    pub(super) fn is_here_v6(&self, address: Ipv6Addr, via: u32) -> bool {
        address.is_loopback() || self.own_v6_interface(address, via).is_some()
    }

    /// For whom a packet with this destination is that has come in by an interface, or is to go
    /// out by it.
    fn class_v6(&self, to: Ipv6Addr, index: u32) -> Class {
        Class::of_v6(to, || self.own_v6_interface(to, index).is_some())
    }

    /// Sees to what follows from a change of the tables: messages that are due, and the next
    /// deadline.
    pub(super) fn settle_v6(&mut self, work: &mut Work) {
        for event in self.v6.neighbours.take_events() {
            match event {
                Event::Solicit(key, known) => self.solicit_v6(key, known, work),
                Event::Transmit(key, hardware, mut frame) => {
                    if let Some(to) = frame.first_chunk_mut::<6>() {
                        *to = hardware;
                    }
                    self.push_frame(key.interface, frame, work);
                }
                Event::Unreachable(key, mut frame) => {
                    frame.drain(..ETHERNET_HEADER_LEN.min(frame.len()));
                    let _ = fallible::push(&mut work.unreachable_v6, (key.interface, frame));
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
        let links = self.interfaces.iter().flat_map(|one| {
            let lives = one
                .v6_addresses()
                .filter_map(|(_, known)| known.life.next_change());
            one.v6.deadline().into_iter().chain(lives)
        });
        self.v6.due = links.chain(self.v6.neighbours.deadline()).min();
    }

    /// Does what the time asks for.
    pub(super) fn tick_v6(&mut self, now: Nanos, work: &mut Work) {
        if self.v6.due.is_none_or(|due| due > now) {
            return;
        }
        self.v6.neighbours.tick(now);
        for index in self.interface_numbers() {
            self.step_probes(now, index, work);
            self.step_solicits(now, index, work);
            self.step_report(now, index, work);
            self.expire_addresses(now, index, work);
            self.expire_routes(now, index, work);
        }
        self.settle_v6(work);
    }

    /// The numbers of all interfaces; of those there is no memory for, none.
    fn interface_numbers(&self) -> Vec<u32> {
        let mut all = Vec::new();
        for one in self.interfaces.iter() {
            if fallible::push(&mut all, one.shown.index).is_err() {
                break;
            }
        }
        all
    }
}

impl Host {
    /// Works on the tables of IPv6, as [`Self::with_state`].
    pub(super) fn with_v6<R>(&self, f: impl FnOnce(Nanos, &mut HostState, &mut Work) -> R) -> R {
        let now = self.now();
        self.with_state(|state, work| {
            let result = f(now, state, work);
            state.settle_v6(work);
            result
        })
    }
}
