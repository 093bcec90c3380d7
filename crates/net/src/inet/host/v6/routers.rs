//! Routers of a link: asking for them, and what they tell of routes and prefixes (RFC 4861, section
//! 6.3; RFC 4862, section 5.5).

use alloc::vec::Vec;
use core::net::Ipv6Addr;

use ip::neighbour::Key;
use ip::route::{Insert, Kind, Prefix, Route};
use ip::v6::address::{ALL_ROUTERS, Scope, group_hardware, scope, with_hardware};
use ip::v6::discovery::{self, PrefixInformation, RouterAdvertisement};
use ip::v6::{Header, next};
use ip::{Nanos, SECOND};

use super::Ipv6Setting;
use super::addresses::{ADDRESS_METRIC, route_scope};
use crate::inet::host::config::BY_KERNEL;
use crate::inet::host::state::{Change, HostState, Work};
use crate::socket::address_flag::{DEPRECATED, NO_PREFIX_ROUTE, PERMANENT};
use crate::socket::{AddressLife, InterfaceAddress};

/// Time between questions for routers, and how many there are by default (RFC 4861, section 10).
const SOLICIT_INTERVAL: Nanos = 4 * SECOND;
const SOLICITATIONS: u32 = 3;
/// The maker of routes that routers tell of (`RTPROT_RA`), and their metric (Linux
/// `IP6_RT_PRIO_USER`).
const BY_ROUTER: u8 = 9;
const ROUTER_METRIC: u32 = 1024;
/// Default routers and prefixes of a link that are remembered.
const MOST_ROUTERS: usize = 8;
const MOST_NETWORKS: usize = 32;
/// Addresses of a link that prefixes have brought (Linux `max_addresses`).
const MOST_DYNAMIC: usize = 16;
/// The least that a lifetime is shortened to by who may be a forger (RFC 4862, section 5.5.3 (e)).
const TWO_HOURS: Nanos = 2 * 3600 * SECOND;
/// Bits of a network in which addresses are made of hardware addresses.
const AUTONOMOUS_PREFIX: u8 = 64;

/// A route that a router has told of.
pub(super) struct LearntRoute {
    destination: Prefix<Ipv6Addr>,
    gateway: Option<Ipv6Addr>,
    /// The end of its time; none: never.
    pub(super) expires: Option<Nanos>,
}

impl LearntRoute {
    fn is(&self, route: &Route<Ipv6Addr>) -> bool {
        self.destination == route.destination && self.gateway == route.gateway
    }
}

/// The time after so many seconds; none after the number that means never.
fn after(now: Nanos, seconds: u32) -> Option<Nanos> {
    (seconds != u32::MAX).then(|| now + u64::from(seconds) * SECOND)
}

impl HostState {
    /// Begins to ask for routers, if they are believed.
    pub(super) fn begin_solicits(&mut self, now: Nanos, index: u32) {
        let Ok(interface) = self.interfaces.get_mut(index) else {
            return;
        };
        let settings = &interface.v6.settings;
        let count = settings.get(Ipv6Setting::RouterSolicitations);
        let count = u32::try_from(count).unwrap_or(SOLICITATIONS);
        if settings.believes_routers() && count > 0 && interface.shown.hardware_address.is_some() {
            interface.v6.solicits = Some((now, count));
        }
    }

    pub(super) fn step_solicits(&mut self, now: Nanos, index: u32, work: &mut Work) {
        let source = self.link_source(index);
        let Ok(interface) = self.interfaces.get_mut(index) else {
            return;
        };
        let Some((due, left)) = interface.v6.solicits else {
            return;
        };
        if due > now {
            return;
        }
        interface.v6.solicits = (left > 1).then(|| (now + SOLICIT_INTERVAL, left - 1));
        let hardware = interface.shown.hardware_address;
        let Some(message) = discovery::router_solicitation(source, ALL_ROUTERS, hardware) else {
            return;
        };
        let header = Header {
            traffic_class: 0,
            flow_label: 0,
            hop_limit: discovery::HOPS,
            source,
            destination: ALL_ROUTERS,
        };
        let (to, parts) = (group_hardware(ALL_ROUTERS), [&message[..], &[]]);
        self.push_v6(index, to, &header, next::ICMP, &parts, work);
    }

    /// A router tells of itself.
    pub(super) fn take_router(
        &mut self,
        now: Nanos,
        index: u32,
        router: Ipv6Addr,
        said: &RouterAdvertisement<'_>,
        work: &mut Work,
    ) {
        let Ok(interface) = self.interfaces.get_mut(index) else {
            return;
        };
        let settings = interface.v6.settings;
        if !settings.believes_routers() || !interface.v6.is_running {
            return;
        }
        interface.v6.solicits = None;
        if settings.get(Ipv6Setting::AcceptRaMtu) != 0
            && let Some(mtu) = said.mtu
        {
            // One that is longer than the interface's counts as that (RFC 4861, section 6.3.4).
            interface.v6.mtu = Some(mtu);
        }
        let key = Key {
            interface: index,
            address: router.into(),
        };
        if let Some(hardware) = said.hardware {
            self.v6.neighbours.heard(now, key, hardware, false, true);
        }
        self.v6.neighbours.mark_router(key);
        if settings.get(Ipv6Setting::AcceptRaDefrtr) != 0 {
            let route = default_route(index, router);
            if said.lifetime_s == 0 {
                self.unlearn(index, &route, work);
            } else {
                let expires = after(now, said.lifetime_s.into());
                self.learn(index, route, expires, work);
            }
        }
        if settings.get(Ipv6Setting::AcceptRaPinfo) != 0 {
            for prefix in said.prefixes() {
                self.take_prefix(now, index, &prefix, work);
            }
        }
    }

    fn take_prefix(&mut self, now: Nanos, index: u32, said: &PrefixInformation, work: &mut Work) {
        let is_possible = !said.prefix.is_multicast() && scope(said.prefix) != Scope::Link;
        if !is_possible || said.preferred_s > said.valid_s {
            return;
        }
        if said.is_on_link
            && let Some(destination) = Prefix::of(said.prefix, said.length)
        {
            let route = Route {
                destination,
                kind: Kind::Unicast,
                interface: index,
                gateway: None,
                source: None,
                metric: ADDRESS_METRIC,
                protocol: BY_KERNEL,
                scope: 0,
            };
            if said.valid_s == 0 {
                self.unlearn(index, &route, work);
            } else {
                self.learn(index, route, after(now, said.valid_s), work);
            }
        }
        if said.is_autonomous && said.length == AUTONOMOUS_PREFIX {
            self.take_autonomous_prefix(now, index, said, work);
        }
    }

    /// Makes the address of a prefix, or gives it a new life.
    fn take_autonomous_prefix(
        &mut self,
        now: Nanos,
        index: u32,
        said: &PrefixInformation,
        work: &mut Work,
    ) {
        let Some(interface) = self.interfaces.get(index) else {
            return;
        };
        let Some(hardware) = interface.shown.hardware_address else {
            return;
        };
        let address = with_hardware(said.prefix, hardware);
        let is_deprecated = said.preferred_s == 0;
        let known = interface
            .v6_addresses()
            .find(|(own, _)| *own == address)
            .map(|(_, known)| known.life);
        let preferred_until = after(now, said.preferred_s);
        if let Some(life) = known {
            // What a program has set is not a router's to change.
            if life.flags & PERMANENT != 0 {
                return;
            }
            let left = life.valid_until.map(|end| end.saturating_sub(now));
            let told = after(0, said.valid_s);
            let is_longer = match (told, left) {
                (None, _) => true,
                (Some(_), None) => false,
                (Some(told), Some(left)) => told > left,
            };
            let valid_until = if is_longer || told.is_some_and(|told| told > TWO_HOURS) {
                told.map(|told| now + told)
            } else if left.is_some_and(|left| left <= TWO_HOURS) {
                life.valid_until
            } else {
                Some(now + TWO_HOURS)
            };
            let lives = (preferred_until, valid_until);
            return self.renew_v6_address(index, address, lives, is_deprecated, work);
        }
        let dynamic = interface
            .v6_addresses()
            .filter(|(_, known)| known.life.flags & PERMANENT == 0);
        let allowed = interface.v6.settings.get(Ipv6Setting::Autoconf) != 0;
        if !allowed || said.valid_s == 0 || dynamic.count() >= MOST_DYNAMIC {
            return;
        }
        let new = InterfaceAddress {
            scope: route_scope(address),
            life: AddressLife {
                flags: NO_PREFIX_ROUTE | if is_deprecated { DEPRECATED } else { 0 },
                preferred_until,
                valid_until: after(now, said.valid_s),
            },
            ..InterfaceAddress::of_v6(address, said.length)
        };
        // Without room for it there is none.
        let _ = self.set_v6_address(now, index, new, false, work);
    }

    fn learnt_mut(&mut self, index: u32) -> Option<&mut Vec<LearntRoute>> {
        let interface = self.interfaces.get_mut(index).ok()?;
        Some(&mut interface.v6.learnt)
    }

    /// Adds a route that a router has told of, or gives it a new end.
    fn learn(
        &mut self,
        index: u32,
        route: Route<Ipv6Addr>,
        expires: Option<Nanos>,
        work: &mut Work,
    ) {
        let Some(learnt) = self.learnt_mut(index) else {
            return;
        };
        if let Some(known) = learnt.iter_mut().find(|known| known.is(&route)) {
            known.expires = expires;
            return;
        }
        let is_alike = |known: &&LearntRoute| known.gateway.is_some() == route.gateway.is_some();
        let most = match route.gateway {
            Some(_) => MOST_ROUTERS,
            None => MOST_NETWORKS,
        };
        let is_full = learnt.iter().filter(is_alike).count() >= most;
        if is_full || learnt.try_reserve(1).is_err() {
            return;
        }
        // One that a program has made stays that one's.
        if self.v6.routes.insert(route, Insert::Append).is_err() {
            return;
        }
        if let Some(learnt) = self.learnt_mut(index) {
            learnt.push(LearntRoute {
                destination: route.destination,
                gateway: route.gateway,
                expires,
            });
        }
        work.tell(Change::RouteV6 {
            route,
            removed: false,
        });
    }

    fn unlearn(&mut self, index: u32, route: &Route<Ipv6Addr>, work: &mut Work) {
        let learnt = self.learnt_mut(index);
        if learnt.is_some_and(|learnt| learnt.iter().any(|known| known.is(route))) {
            self.remove_v6_routes(|known| known == route, work);
        }
    }

    /// A route is gone: its time is of no interest any more.
    pub(super) fn forget_learnt(&mut self, route: &Route<Ipv6Addr>) {
        if let Some(learnt) = self.learnt_mut(route.interface) {
            learnt.retain(|known| !known.is(route));
        }
    }

    /// The end of a route's time, if it has one.
    pub(super) fn v6_route_end(&self, route: &Route<Ipv6Addr>) -> Option<Nanos> {
        let interface = self.interfaces.get(route.interface)?;
        let mut learnt = interface.v6.learnt.iter();
        learnt.find(|known| known.is(route))?.expires
    }

    pub(super) fn expire_routes(&mut self, now: Nanos, index: u32, work: &mut Work) {
        while let Some(learnt) = self.learnt_mut(index) {
            let is_over = |one: &LearntRoute| one.expires.is_some_and(|end| end <= now);
            let Some(at) = learnt.iter().position(is_over) else {
                return;
            };
            let LearntRoute {
                destination,
                gateway,
                ..
            } = learnt.swap_remove(at);
            let is_it = |route: &Route<Ipv6Addr>| {
                (route.interface, route.destination, route.gateway) == (index, destination, gateway)
            };
            self.remove_v6_routes(is_it, work);
        }
    }

    /// A neighbour does not pass packets on any more (RFC 4861, section 7.2.5).
    pub(super) fn lose_router(&mut self, index: u32, router: Ipv6Addr, work: &mut Work) {
        self.unlearn(index, &default_route(index, router), work);
    }

    /// Forgets default routers that have told of themselves, unless routers are believed.
    pub(super) fn forget_unbelieved_routers(&mut self, index: u32, work: &mut Work) {
        let interface = self.interfaces.get(index);
        if interface.is_some_and(|one| !one.v6.settings.believes_routers()) {
            let is_gone =
                |route: &Route<Ipv6Addr>| route.interface == index && route.protocol == BY_ROUTER;
            self.remove_v6_routes(is_gone, work);
        }
    }
}

fn default_route(index: u32, router: Ipv6Addr) -> Route<Ipv6Addr> {
    Route {
        destination: Prefix {
            address: Ipv6Addr::UNSPECIFIED,
            length: 0,
        },
        kind: Kind::Unicast,
        interface: index,
        gateway: Some(router),
        source: None,
        metric: ROUTER_METRIC,
        protocol: BY_ROUTER,
        scope: 0,
    }
}
