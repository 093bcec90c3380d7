//! The addresses of an interface: the one of the link, which comes by itself, those that programs
//! set or routers bring, and the question whether somebody else has them (RFC 4862, section 5.4).

use alloc::sync::Arc;
use core::net::{IpAddr, Ipv6Addr};

use abi::errno::Errno;
use fs::Result;
use ip::route::{self, Insert, Kind, Prefix};
use ip::v6::address::{Scope, link_local, scope};
use ip::v6::discovery::Nonce;
use ip::{Nanos, SECOND};

use super::Ipv6Setting;
use crate::inet::host::config::{BY_KERNEL, MOST_ADDRESSES};
use crate::inet::host::state::{Change, HostState, Work};
use crate::socket::address_flag::{
    DAD_FAILED, DEPRECATED, NO_DAD, NO_PREFIX_ROUTE, PERMANENT, TENTATIVE,
};
use crate::socket::{AddressLife, InterfaceAddress};

/// The metric of routes that addresses bring (Linux `IP6_RT_PRIO_ADDRCONF`).
pub(super) const ADDRESS_METRIC: u32 = 256;
/// Time between questions (`retrans_time_ms`), and in which somebody may answer the last one.
const RETRANSMIT: Nanos = SECOND;
/// The first question comes within this time (`rtr_solicit_delay`): of many hosts that a switch
/// wakes not all ask at once.
const MOST_DELAY: Nanos = SECOND;
/// Bits of the network of an address of the link.
const LINK_PREFIX: u8 = 64;
/// `RT_SCOPE_*` of an address.
const SCOPE_LINK: u8 = 253;
const SCOPE_SITE: u8 = 200;
const SCOPE_UNIVERSE: u8 = 0;

/// An address that others are asked for.
pub(super) struct Probe {
    pub(super) address: Ipv6Addr,
    /// When there is something to do.
    pub(super) due: Nanos,
    /// Questions that are left.
    left: u32,
    /// The number by which an own question is known that a wire brings back (RFC 7527).
    pub(super) nonce: Nonce,
}

/// A random number below `most`.
pub(in crate::inet::host) fn random_below(most: Nanos) -> Nanos {
    let mut bytes = [0; 8];
    fs::devfs::fill_random(&mut bytes);
    u64::from_ne_bytes(bytes) % most.max(1)
}

/// `RT_SCOPE_*` of an address of IPv6.
pub(super) fn route_scope(address: Ipv6Addr) -> u8 {
    match scope(address) {
        Scope::Interface | Scope::Link => SCOPE_LINK,
        Scope::Site => SCOPE_SITE,
        Scope::Global => SCOPE_UNIVERSE,
    }
}

impl HostState {
    /// Begins or ends IPv6 on an interface, as its state and settings say.
    pub(in crate::inet::host) fn run_v6(&mut self, now: Nanos, index: u32, work: &mut Work) {
        let Ok(interface) = self.interfaces.get_mut(index) else {
            return;
        };
        let is_on = interface.carries_ipv6();
        let runs = is_on && interface.has_carrier();
        let was_on = core::mem::replace(&mut interface.v6.is_on, is_on);
        let was_running = core::mem::replace(&mut interface.v6.is_running, runs);
        if was_on && !is_on {
            return self.end_v6(index, work);
        }
        if !runs || was_running {
            return;
        }
        let hardware = interface.shown.hardware_address;
        let has_link_address = interface
            .v6_addresses()
            .any(|(address, _)| scope(address) == Scope::Link);
        self.report_groups(now, index, work);
        if let Some(hardware) = hardware
            && !has_link_address
        {
            let own = InterfaceAddress::of_v6(link_local(hardware), LINK_PREFIX);
            // Without memory for it there is none; others can be set.
            let _ = self.set_v6_address(now, index, own, false, work);
        }
        for at in 0.. {
            let Some(known) = self.v6_address_at(index, at) else {
                break;
            };
            self.bring_v6_route(index, &known, work);
            // The one that has just come is asked for already.
            if known.life.flags & TENTATIVE != 0 && !self.is_probed(index, known.ip) {
                self.begin_probe(now, index, known.ip);
            }
        }
        if hardware.is_none() || self.has_usable_link_address(index) {
            self.begin_solicits(now, index);
        }
    }

    fn is_probed(&self, index: u32, address: IpAddr) -> bool {
        let interface = self.interfaces.get(index);
        interface.is_some_and(|one| one.v6.probes.iter().any(|probe| probe.address == address))
    }

    fn v6_address_at(&self, index: u32, at: usize) -> Option<InterfaceAddress> {
        let mut all = self.interfaces.get(index)?.v6_addresses();
        all.nth(at).map(|(_, known)| *known)
    }

    fn has_usable_link_address(&self, index: u32) -> bool {
        let interface = self.interfaces.get(index);
        interface.is_some_and(|one| {
            one.usable_v6_addresses()
                .any(|(address, _)| scope(address) == Scope::Link)
        })
    }

    /// Takes everything of IPv6 from an interface: addresses, routes, neighbours. As on Linux, none
    /// of it comes back by itself, but the address of the link.
    pub(in crate::inet::host) fn end_v6(&mut self, index: u32, work: &mut Work) {
        let Ok(interface) = self.interfaces.get_mut(index) else {
            return;
        };
        let settings = interface.v6.settings;
        // Programs stay in the groups that they are in.
        let mut groups = core::mem::take(&mut interface.v6.groups);
        groups.let_go();
        interface.v6 = super::Ipv6Link {
            settings,
            groups,
            ..super::Ipv6Link::default()
        };
        let addresses = Arc::make_mut(&mut interface.shown.addresses);
        while let Some(at) = addresses.iter().position(|known| known.ip.is_ipv6()) {
            let address = addresses.remove(at);
            work.tell(Change::Address {
                index,
                address,
                removed: true,
            });
        }
        self.v6.neighbours.forget_interface(index, true);
        self.fragments.v6.lock().forget_interface(index);
        self.remove_v6_routes(|route| route.interface == index, work);
    }

    pub(super) fn remove_v6_routes(
        &mut self,
        is_gone: impl Fn(&route::Route<Ipv6Addr>) -> bool,
        work: &mut Work,
    ) {
        while let Some(route) = self.v6.routes.remove_where(&is_gone) {
            self.forget_learnt(&route);
            work.tell(Change::RouteV6 {
                route,
                removed: true,
            });
        }
    }

    /// The route that an address brings: to its network by its interface.
    fn v6_network_route(index: u32, known: &InterfaceAddress) -> Option<route::Route<Ipv6Addr>> {
        let IpAddr::V6(ip) = known.ip else {
            return None;
        };
        let brings = known.life.flags & NO_PREFIX_ROUTE == 0 && known.prefix_len < 128;
        Some(route::Route {
            destination: Prefix::of(ip, known.prefix_len).filter(|_| brings)?,
            kind: Kind::Unicast,
            interface: index,
            gateway: None,
            source: None,
            metric: ADDRESS_METRIC,
            protocol: BY_KERNEL,
            scope: SCOPE_UNIVERSE,
        })
    }

    fn bring_v6_route(&mut self, index: u32, known: &InterfaceAddress, work: &mut Work) {
        // One that is there already, or for which there is no room, does not come.
        if let Some(route) = Self::v6_network_route(index, known)
            && self.v6.routes.insert(route, Insert::Append).is_ok()
        {
            work.tell(Change::RouteV6 {
                route,
                removed: false,
            });
        }
    }

    /// Gives an interface an address; one that it has gets a new life if `replace`.
    ///
    /// # Errors
    /// `ENODEV`; `EACCES` if there is no IPv6 on it; `EINVAL` for what is no address of a host;
    /// `EEXIST`; `ENOSPC` if there are too many; `ENOMEM`.
    pub(super) fn set_v6_address(
        &mut self,
        now: Nanos,
        index: u32,
        mut new: InterfaceAddress,
        replace: bool,
        work: &mut Work,
    ) -> Result<()> {
        let IpAddr::V6(ip) = new.ip else {
            return Err(Errno::EINVAL);
        };
        if !ip::v6::is_possible_source(ip) || new.prefix_len > 128 {
            return Err(Errno::EINVAL);
        }
        let interface = self.interfaces.get_mut(index)?;
        if interface.v6.settings.get(Ipv6Setting::DisableIpv6) != 0 {
            return Err(Errno::EACCES);
        }
        new.scope = route_scope(ip);
        let (is_up, runs) = (interface.is_up(), interface.v6.is_running);
        let asks = interface.shown.hardware_address.is_some()
            && new.life.flags & NO_DAD == 0
            && interface.v6.settings.get(Ipv6Setting::DadTransmits) > 0;
        let addresses = Arc::make_mut(&mut interface.shown.addresses);
        let known = addresses.iter().position(|known| known.ip == new.ip);
        let mut probes = false;
        match known {
            Some(_) if !replace => return Err(Errno::EEXIST),
            Some(at) => {
                let kept = addresses[at].life.flags & (TENTATIVE | DAD_FAILED);
                new.life.flags |= kept;
                new.prefix_len = addresses[at].prefix_len;
                addresses[at] = new;
            }
            None if addresses.len() >= MOST_ADDRESSES => return Err(Errno::ENOSPC),
            None => {
                if asks {
                    new.life.flags |= TENTATIVE;
                    probes = runs;
                }
                fallible::push(addresses, new)?;
            }
        }
        work.tell(Change::Address {
            index,
            address: new,
            removed: false,
        });
        if is_up {
            self.bring_v6_route(index, &new, work);
        }
        if known.is_none() {
            self.join_group_of(now, index, ip, work);
        }
        if probes {
            self.begin_probe(now, index, new.ip);
        }
        Ok(())
    }

    /// Takes an address from an interface, with the route to its network unless another address is
    /// in that.
    ///
    /// # Errors
    /// `ENODEV`, `EADDRNOTAVAIL`.
    pub(super) fn remove_v6_address(
        &mut self,
        now: Nanos,
        index: u32,
        ip: Ipv6Addr,
        prefix_len: Option<u8>,
        work: &mut Work,
    ) -> Result<()> {
        let interface = self.interfaces.get_mut(index)?;
        let addresses = Arc::make_mut(&mut interface.shown.addresses);
        let is_meant = |known: &InterfaceAddress| {
            known.ip == IpAddr::V6(ip) && prefix_len.is_none_or(|len| len == known.prefix_len)
        };
        let at = addresses.iter().position(is_meant);
        let gone = addresses.remove(at.ok_or(Errno::EADDRNOTAVAIL)?);
        interface.v6.probes.retain(|probe| probe.address != ip);
        let network = Self::v6_network_route(index, &gone);
        let is_needed = interface
            .v6_addresses()
            .any(|(_, known)| Self::v6_network_route(index, known) == network);
        work.tell(Change::Address {
            index,
            address: gone,
            removed: true,
        });
        self.leave_group_of(now, index, ip, work);
        let is_gone = |route: &route::Route<Ipv6Addr>| {
            !is_needed && Some(*route) == network || route.source == Some(ip)
        };
        self.remove_v6_routes(is_gone, work);
        Ok(())
    }

    /// Begins to ask whether somebody has an address.
    fn begin_probe(&mut self, now: Nanos, index: u32, address: IpAddr) {
        let (Ok(interface), IpAddr::V6(address)) = (self.interfaces.get_mut(index), address) else {
            return;
        };
        let mut nonce = [0; 6];
        fs::devfs::fill_random(&mut nonce);
        let probe = Probe {
            address,
            due: now + random_below(MOST_DELAY),
            left: interface
                .v6
                .settings
                .get(Ipv6Setting::DadTransmits)
                .cast_unsigned(),
            nonce,
        };
        let probes = &mut interface.v6.probes;
        probes.retain(|known| known.address != address);
        // Without memory nobody is asked, and the address stays as it is.
        let _ = fallible::push(probes, probe);
    }

    /// Asks for the addresses that it is time for, and takes those into use that nobody has.
    pub(super) fn step_probes(&mut self, now: Nanos, index: u32, work: &mut Work) {
        let mut at = 0;
        while let Some(probe) = self.probe_at(index, at) {
            at += 1;
            if probe.due <= now && probe.left > 0 {
                probe.left -= 1;
                probe.due = now + RETRANSMIT;
                let (address, nonce) = (probe.address, probe.nonce);
                self.ask_for_own(index, address, nonce, work);
            }
        }
        while let Ok(interface) = self.interfaces.get_mut(index) {
            let is_over = |probe: &Probe| probe.left == 0 && probe.due <= now;
            let Some(at) = interface.v6.probes.iter().position(is_over) else {
                return;
            };
            let probe = interface.v6.probes.swap_remove(at);
            self.take_into_use(now, index, probe.address, work);
        }
    }

    fn probe_at(&mut self, index: u32, at: usize) -> Option<&mut Probe> {
        self.interfaces.get_mut(index).ok()?.v6.probes.get_mut(at)
    }

    /// Nobody else has an address.
    fn take_into_use(&mut self, now: Nanos, index: u32, address: Ipv6Addr, work: &mut Work) {
        let clear = |known: &mut InterfaceAddress| known.life.flags &= !TENTATIVE;
        if self.change_v6_address(index, address, clear, work) && scope(address) == Scope::Link {
            // From now on there is an address that reports of groups can come from.
            self.report_groups(now, index, work);
            self.begin_solicits(now, index);
        }
    }

    /// Somebody else has an address, or wants it, too: it is not used. One that a router's prefix
    /// has brought goes.
    pub(super) fn fail_probe(&mut self, index: u32, address: Ipv6Addr, work: &mut Work) {
        if let Ok(interface) = self.interfaces.get_mut(index) {
            interface.v6.probes.retain(|probe| probe.address != address);
        }
        let fail = |known: &mut InterfaceAddress| known.life.flags |= DAD_FAILED;
        self.change_v6_address(index, address, fail, work);
    }

    /// Changes an address, and tells of it. Returns whether there is such an address.
    fn change_v6_address(
        &mut self,
        index: u32,
        address: Ipv6Addr,
        change: impl FnOnce(&mut InterfaceAddress),
        work: &mut Work,
    ) -> bool {
        let Ok(interface) = self.interfaces.get_mut(index) else {
            return false;
        };
        let addresses = Arc::make_mut(&mut interface.shown.addresses);
        let mut all = addresses.iter_mut();
        let Some(known) = all.find(|known| known.ip == IpAddr::V6(address)) else {
            return false;
        };
        change(known);
        let address = *known;
        work.tell(Change::Address {
            index,
            address,
            removed: false,
        });
        true
    }

    /// Takes addresses away whose time is over, and marks those that are not preferred any more.
    pub(super) fn expire_addresses(&mut self, now: Nanos, index: u32, work: &mut Work) {
        for at in (0..MOST_ADDRESSES).rev() {
            let Some(known) = self.v6_address_at(index, at) else {
                continue;
            };
            let (life, IpAddr::V6(ip)) = (known.life, known.ip) else {
                continue;
            };
            if life.valid_until.is_some_and(|end| end <= now) {
                // It is there: it has just been found.
                let _ = self.remove_v6_address(now, index, ip, None, work);
            } else if life.flags & DEPRECATED == 0
                && life.preferred_until.is_some_and(|end| end <= now)
            {
                let mark = |known: &mut InterfaceAddress| known.life.flags |= DEPRECATED;
                self.change_v6_address(index, ip, mark, work);
            }
        }
    }

    /// Gives an address the lifetimes that a router has told, in nanoseconds; one for ever is none.
    pub(super) fn renew_v6_address(
        &mut self,
        index: u32,
        address: Ipv6Addr,
        (preferred_until, valid_until): (Option<Nanos>, Option<Nanos>),
        is_deprecated: bool,
        work: &mut Work,
    ) {
        let renew = |known: &mut InterfaceAddress| {
            let flags = known.life.flags & !(DEPRECATED | PERMANENT);
            known.life = AddressLife {
                flags: flags | if is_deprecated { DEPRECATED } else { 0 },
                preferred_until,
                valid_until,
            };
        };
        self.change_v6_address(index, address, renew, work);
    }
}
