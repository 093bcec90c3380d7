//! What administrators change: interfaces, addresses, routes, neighbours.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr};

use abi::errno::Errno;
use fs::Result;
use ip::Nanos;
use ip::neighbour::{self, Key, Neighbour};
use ip::route::{self, Filter, Insert, InsertError, Kind, Prefix};
use linux_raw_sys::net::net_device_flags::IFF_PROMISC;

use super::Host;
use super::registry::{LEAST_MTU, Registered};
use super::state::{Change, HostState, Work};
use crate::inet::loopback::Loopback;
use crate::socket::address_flag::SECONDARY;
use crate::socket::{Interface, InterfaceAddress, InterfaceName, NetDevice};

/// Addresses that an interface may have.
pub(super) const MOST_ADDRESSES: usize = 256;
/// The maker of routes that addresses bring (`RTPROT_KERNEL`), and how far they lead
/// (`RT_SCOPE_LINK`).
pub(super) const BY_KERNEL: u8 = 2;
pub(super) const SCOPE_LINK: u8 = 253;
pub(super) const SCOPE_UNIVERSE: u8 = 0;

impl HostState {
    /// The route that an address brings: to its network by its interface, unless another address
    /// has brought it.
    fn network_route(index: u32, address: &InterfaceAddress) -> Option<route::Route> {
        if address.life.flags & SECONDARY != 0 {
            return None;
        }
        let (IpAddr::V4(ip), IpAddr::V4(network)) = (address.ip, address.network_ip()) else {
            return None;
        };
        let is_single = address.prefix_len == 32 && address.peer.is_none();
        let destination = Prefix::of(network, address.prefix_len)?;
        (!is_single).then_some(route::Route {
            destination,
            kind: Kind::Unicast,
            interface: index,
            gateway: None,
            source: Some(ip),
            metric: 0,
            protocol: BY_KERNEL,
            scope: SCOPE_LINK,
        })
    }

    fn bring_network_route(&mut self, index: u32, address: &InterfaceAddress, work: &mut Work) {
        // One that is there already, or for which there is no room, does not come.
        if let Some(route) = Self::network_route(index, address)
            && self.routes.insert(route, Insert::Append).is_ok()
        {
            work.tell(Change::Route {
                route,
                removed: false,
            });
        }
    }

    /// Ends the flows that come from an address which this host has no more.
    fn forget_outer(&mut self, address: IpAddr) {
        if let IpAddr::V4(address) = address {
            self.nat.forget_outer(address);
        }
    }

    /// Takes an address of IPv4 from an interface, with what comes from it.
    ///
    /// # Errors
    /// `ENODEV`, `EADDRNOTAVAIL`.
    fn take_v4_address(
        &mut self,
        index: u32,
        is_meant: impl Fn(&InterfaceAddress) -> bool,
        work: &mut Work,
    ) -> Result<InterfaceAddress> {
        let interface = self.interfaces.get_mut(index)?;
        let addresses = Arc::make_mut(&mut interface.shown.addresses);
        let at = addresses.iter().position(is_meant);
        let address = addresses.remove(at.ok_or(Errno::EADDRNOTAVAIL)?);
        let was_last = !addresses.iter().any(|known| known.ip.is_ipv4());
        work.tell(Change::Address {
            index,
            address,
            removed: true,
        });
        let IpAddr::V4(ip) = address.ip else {
            return Err(Errno::EADDRNOTAVAIL);
        };
        let network = Self::network_route(index, &address);
        let is_still_own = self.is_own(ip);
        if !is_still_own {
            self.forget_outer(ip.into());
        }
        let is_gone = |route: &route::Route| {
            Some(*route) == network || !is_still_own && route.source == Some(ip)
        };
        self.remove_routes(is_gone, work);
        if was_last {
            self.forget_link(index, false, work);
        }
        Ok(address)
    }

    fn remove_routes(&mut self, is_gone: impl Fn(&route::Route) -> bool, work: &mut Work) {
        while let Some(route) = self.routes.remove_where(&is_gone) {
            work.tell(Change::Route {
                route,
                removed: true,
            });
        }
    }

    /// Forgets what was learnt by an interface that is down, and the routes by it.
    fn forget_link(&mut self, index: u32, is_gone: bool, work: &mut Work) {
        self.neighbours.forget_interface(index, is_gone);
        self.fragments.v4.lock().forget_interface(index);
        let addresses = self
            .interfaces
            .get(index)
            .map(|one| one.shown.addresses.clone());
        for address in addresses.iter().flat_map(|all| all.iter()) {
            self.forget_outer(address.ip);
        }
        self.remove_routes(|route| route.interface == index, work);
    }

    fn set_up(&mut self, now: Nanos, index: u32, is_up: bool, work: &mut Work) -> Result<()> {
        let interface = self.interfaces.get_mut(index)?;
        if interface.is_up() == is_up {
            return Ok(());
        }
        interface.set_up(is_up);
        if is_up {
            for at in 0.. {
                let addresses = &self.interfaces.get_mut(index)?.shown.addresses;
                let Some(address) = addresses.get(at).copied() else {
                    break;
                };
                self.bring_network_route(index, &address, work);
            }
        } else {
            self.forget_link(index, false, work);
        }
        self.run_groups(now, index, work);
        self.run_v6(now, index, work);
        self.settle_v6(work);
        Ok(())
    }
}

/// The loop cannot be changed.
pub(super) fn check_changeable(index: u32) -> Result<()> {
    if index == Loopback::INDEX {
        Err(Errno::EOPNOTSUPP)
    } else {
        Ok(())
    }
}

pub(super) fn insert_error(error: InsertError) -> Errno {
    match error {
        InsertError::Exists => Errno::EEXIST,
        InsertError::NoRoom => Errno::ENOSPC,
    }
}

impl Host {
    /// Takes an interface away, with its addresses, routes and neighbours. Its device is not called
    /// any more by who comes later; a thread that is sending at this moment may end that.
    ///
    /// # Errors
    /// `ENODEV`.
    pub fn remove_interface(&self, index: u32) -> Result<()> {
        let now = self.now();
        let removed = self.with_state(|state, work| {
            // It can still be shown when its end is told.
            state.set_up(now, index, false, work)?;
            state.forget_link(index, true, work);
            state.end_v6(index, work);
            state.settle_v6(work);
            state.interfaces.remove(index)
        })?;
        self.destinations.forget_all();
        removed.card.flush();
        removed.card.device.removed();
        if let Some(listener) = self.listener.get().and_then(alloc::sync::Weak::upgrade) {
            listener.link_removed(&removed.interface());
        }
        Ok(())
    }

    /// Brings an interface up, with the routes of its addresses, or takes it down; what waits to be
    /// sent is lost then.
    ///
    /// # Errors
    /// `ENODEV`, `EOPNOTSUPP` of the loop.
    pub fn set_up(&self, index: u32, is_up: bool) -> Result<()> {
        check_changeable(index)?;
        let now = self.now();
        let card = self.with_state(|state, work| {
            state.set_up(now, index, is_up, work)?;
            work.tell(Change::Link { index });
            Ok::<_, Errno>(state.interfaces.get_mut(index)?.card.clone())
        })?;
        if !is_up {
            card.flush();
        }
        Ok(())
    }

    /// Sets whether frames for others are wanted, which the device hands over or not as it is.
    ///
    /// # Errors
    /// `ENODEV`, `EOPNOTSUPP` of the loop.
    pub fn set_promiscuous(&self, index: u32, is_set: bool) -> Result<()> {
        check_changeable(index)?;
        let mut state = self.lock_state();
        let flags = &mut state.interfaces.get_mut(index)?.shown.flags;
        if is_set {
            *flags |= IFF_PROMISC as u32;
        } else {
            *flags &= !(IFF_PROMISC as u32);
        }
        Ok(())
    }

    /// Sets the largest packet of an interface.
    ///
    /// # Errors
    /// `ENODEV`, `EOPNOTSUPP` of the loop, `EINVAL` for one that is too small or too large.
    pub fn set_mtu(&self, index: u32, mtu: u32) -> Result<()> {
        check_changeable(index)?;
        self.with_state(|state, work| {
            let interface = state.interfaces.get_mut(index)?;
            if !(LEAST_MTU..=interface.max_mtu).contains(&mtu) {
                return Err(Errno::EINVAL);
            }
            interface.shown.mtu = mtu;
            work.tell(Change::Link { index });
            Ok(())
        })
    }

    /// Sets how many packets may wait in an interface's device.
    ///
    /// # Errors
    /// `ENODEV`, `EOPNOTSUPP` of the loop.
    pub fn set_queue_len(&self, index: u32, queue_len: u32) -> Result<()> {
        check_changeable(index)?;
        self.with_state(|state, work| {
            let interface = state.interfaces.get_mut(index)?;
            interface.shown.queue_len = queue_len;
            interface.card.queue.set_limit(queue_len);
            work.tell(Change::Link { index });
            Ok(())
        })
    }

    /// Gives an interface another name.
    ///
    /// # Errors
    /// `ENODEV`, `EOPNOTSUPP` of the loop, `EBUSY` while it is up, `EEXIST`, `EINVAL`.
    pub fn rename(&self, index: u32, name: &str) -> Result<()> {
        check_changeable(index)?;
        self.with_state(|state, work| {
            let interface = state.interfaces.get_mut(index)?;
            if *interface.shown.name == *name {
                return Ok(());
            }
            if interface.is_up() {
                return Err(Errno::EBUSY);
            }
            let name: InterfaceName = state.interfaces.new_name(name)?;
            let shown = &mut state.interfaces.get_mut(index)?.shown;
            shown.name = name;
            // Labels of addresses begin with the name.
            if shown.addresses.iter().any(|known| known.label.is_some()) {
                for known in Arc::make_mut(&mut shown.addresses) {
                    known.label = known.label.and_then(|label| label.after(&name));
                }
            }
            work.tell(Change::Link { index });
            Ok(())
        })
    }

    /// Gives an interface another hardware address.
    ///
    /// # Errors
    /// `ENODEV`; `EOPNOTSUPP` if it has none, or it cannot be changed; `EADDRNOTAVAIL` for that of
    /// a group, or none.
    pub fn set_hardware_address(&self, index: u32, address: [u8; 6]) -> Result<()> {
        check_changeable(index)?;
        let device: Arc<dyn NetDevice> = {
            let mut state = self.lock_state();
            let interface = state.interfaces.get_mut(index)?;
            if interface.shown.hardware_address.is_none() {
                return Err(Errno::EOPNOTSUPP);
            }
            interface.card.device.clone()
        };
        if address[0] & 1 != 0 || address == [0; 6] {
            return Err(Errno::EADDRNOTAVAIL);
        }
        device.set_hardware_address(address)?;
        self.with_state(|state, work| {
            let interface = state.interfaces.get_mut(index)?;
            interface.shown.hardware_address = Some(address);
            work.tell(Change::Link { index });
            Ok(())
        })
    }

    /// Gives an interface an address, with the route to its network. One with the same network is
    /// replaced if `replace`.
    ///
    /// # Errors
    /// `ENODEV`, `EOPNOTSUPP` of the loop, `EINVAL` for what is no address of a host, `EEXIST`,
    /// `ENOSPC` if there are too many, `ENOMEM`.
    pub fn add_address(
        &self,
        index: u32,
        mut address: InterfaceAddress,
        replace: bool,
    ) -> Result<()> {
        check_changeable(index)?;
        let IpAddr::V4(ip) = address.ip else {
            return self.add_v6_address(index, address, replace);
        };
        if ip.is_multicast() || ip.is_broadcast() || ip.is_unspecified() || address.prefix_len > 32
        {
            return Err(Errno::EINVAL);
        }
        address.life.flags &= !SECONDARY;
        self.with_state(|state, work| {
            let interface = state.interfaces.get_mut(index)?;
            let is_up = interface.is_up();
            let addresses = Arc::make_mut(&mut interface.shown.addresses);
            let is_same = |known: &InterfaceAddress| {
                (known.ip, known.prefix_len, known.peer)
                    == (address.ip, address.prefix_len, address.peer)
            };
            match addresses.iter().position(is_same) {
                Some(_) if !replace => return Err(Errno::EEXIST),
                Some(at) => {
                    address.life.flags |= addresses[at].life.flags & SECONDARY;
                    addresses[at] = address;
                }
                None if addresses.len() >= MOST_ADDRESSES => return Err(Errno::ENOSPC),
                None => {
                    addresses.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
                    if addresses
                        .iter()
                        .any(|known| known.has_same_network(&address))
                    {
                        address.life.flags |= SECONDARY;
                    }
                    let end = addresses.partition_point(|known| known.ip.is_ipv4());
                    addresses.insert(end, address);
                }
            }
            work.tell(Change::Address {
                index,
                address,
                removed: false,
            });
            if is_up {
                state.bring_network_route(index, &address, work);
            }
            Ok(())
        })
    }

    /// Takes an address from an interface, with the routes that come from it, and with the
    /// secondary ones of its network, as Linux does (`promote_secondaries` 0); with the last one
    /// all routes and neighbours of the interface go (`fib_disable_ip`).
    ///
    /// # Errors
    /// `ENODEV`, `EOPNOTSUPP` of the loop, `EADDRNOTAVAIL`.
    pub fn remove_address(&self, index: u32, ip: Ipv4Addr, prefix_len: Option<u8>) -> Result<()> {
        check_changeable(index)?;
        self.with_state(|state, work| {
            let is_meant = |known: &InterfaceAddress| {
                known.ip == IpAddr::V4(ip) && prefix_len.is_none_or(|len| len == known.prefix_len)
            };
            let address = state.take_v4_address(index, is_meant, work)?;
            if address.life.flags & SECONDARY == 0 {
                let follows = |known: &InterfaceAddress| {
                    known.life.flags & SECONDARY != 0 && known.has_same_network(&address)
                };
                while state.take_v4_address(index, follows, work).is_ok() {}
            }
            Ok(())
        })
    }

    /// Adds a route; one that is not by an interface by its number is by the one that reaches its
    /// gateway.
    ///
    /// # Errors
    /// `ENODEV`; `ENETDOWN` of an interface that is down; `ENETUNREACH` for a gateway that is not
    /// on a link; `EINVAL` for one that is this host, or a source that is not; `EEXIST`, `ENOSPC`.
    pub fn add_route(&self, mut route: route::Route, insert: Insert) -> Result<()> {
        self.with_state(|state, work| {
            if route.kind == Kind::Unicast {
                state.complete_route(&mut route)?;
            } else {
                route.interface = 0;
            }
            if route.source.is_some_and(|source| !state.is_own(source)) {
                return Err(Errno::EINVAL);
            }
            let replaced = state.routes.insert(route, insert).map_err(insert_error)?;
            if let Some(old) = replaced {
                work.tell(Change::Route {
                    route: old,
                    removed: true,
                });
            }
            work.tell(Change::Route {
                route,
                removed: false,
            });
            Ok(())
        })
    }

    /// Removes the first route to a destination that a filter fits.
    ///
    /// # Errors
    /// `ESRCH`.
    pub fn remove_route(&self, destination: Prefix, filter: &Filter) -> Result<()> {
        self.with_state(|state, work| {
            let route = state
                .routes
                .remove(destination, filter)
                .ok_or(Errno::ESRCH)?;
            work.tell(Change::Route {
                route,
                removed: true,
            });
            Ok(())
        })
    }

    /// Sets a neighbour.
    ///
    /// # Errors
    /// `ENODEV`, `EOPNOTSUPP` of a link without hardware addresses, `EEXIST` and `ENOENT` if it
    /// must not be there or must, `ENOBUFS`.
    pub fn set_neighbour(
        &self,
        key: Key,
        hardware: [u8; 6],
        state: neighbour::State,
        (create, exclusive): (bool, bool),
    ) -> Result<()> {
        check_changeable(key.interface)?;
        let now = self.now();
        self.with_state(|tables, work| {
            let interface = tables.interfaces.get(key.interface);
            let interface = interface.ok_or(Errno::ENODEV)?;
            if interface.shown.hardware_address.is_none() {
                return Err(Errno::EOPNOTSUPP);
            }
            let table = tables.neighbours_of(key.address);
            let is_known = table.iter().any(|known| known.key == key);
            match (is_known, create, exclusive) {
                (true, _, true) => return Err(Errno::EEXIST),
                (false, false, _) => return Err(Errno::ENOENT),
                _ => {}
            }
            let result = table.set(now, key, hardware, state);
            tables.settle_v6(work);
            result.map_err(|_| Errno::ENOBUFS)
        })
    }

    /// Removes a neighbour.
    ///
    /// # Errors
    /// `ENOENT`.
    pub fn remove_neighbour(&self, key: Key) -> Result<()> {
        self.with_state(|state, work| {
            let was_known = state.neighbours_of(key.address).remove(key);
            state.settle_v6(work);
            if was_known {
                Ok(())
            } else {
                Err(Errno::ENOENT)
            }
        })
    }

    /// The routes, without those to this host itself, in Linux' order: by destinations, of one
    /// address the narrower ones first.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn routes(&self) -> Result<Vec<route::Route>> {
        let state = self.lock_state();
        let mut all = Vec::new();
        for route in state.routes.iter() {
            fallible::push(&mut all, *route)?;
        }
        all.sort_by_key(|route| {
            let to = route.destination;
            (to.address, core::cmp::Reverse(to.length))
        });
        Ok(all)
    }

    /// The route that a packet to an address takes, if it leaves this host.
    pub fn lookup_route(&self, to: Ipv4Addr) -> Option<route::Route> {
        self.lock_state().routes.lookup(to).copied()
    }

    /// The neighbours of both families.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn neighbours(&self) -> Result<Vec<Neighbour>> {
        let state = self.lock_state();
        let mut all = Vec::new();
        for neighbour in state.neighbours.iter().chain(state.v6.neighbours.iter()) {
            fallible::push(&mut all, neighbour)?;
        }
        Ok(all)
    }

    /// The first network at which this host has an address, or to which it has a route, that has
    /// addresses in common with another network, and its interface, if it has one. A default route
    /// is to no network.
    #[must_use]
    pub fn network_that_overlaps(
        &self,
        network: Prefix,
    ) -> Option<(Prefix, Option<InterfaceName>)> {
        let state = self.lock_state();
        let addresses = state.interfaces.iter().flat_map(|one| {
            let all = one.shown.addresses.iter();
            let own = all.filter_map(|address| match address.network_ip() {
                IpAddr::V4(ip) => Prefix::of(ip, address.prefix_len),
                IpAddr::V6(_) => None,
            });
            own.map(|prefix| (prefix, one.shown.index))
        });
        let routes = state.routes.iter();
        let routes = routes.filter(|route| route.destination.length > 0);
        let routes = routes.map(|route| (route.destination, route.interface));
        let mut all = addresses.chain(routes);
        let (found, index) = all.find(|(own, _)| own.overlaps(network))?;
        let interface = state.interfaces.get(index);
        Some((found, interface.map(|one| one.shown.name)))
    }

    /// An interface by its name.
    pub fn interface_named(&self, name: &str) -> Option<Interface> {
        let state = self.lock_state();
        let mut all = state.interfaces.iter();
        all.find(|one| *one.shown.name == *name)
            .map(Registered::interface)
    }
}

impl HostState {
    /// The table of neighbours of an address' family.
    fn neighbours_of(&mut self, address: IpAddr) -> &mut neighbour::Table {
        match address {
            IpAddr::V4(_) => &mut self.neighbours,
            IpAddr::V6(_) => &mut self.v6.neighbours,
        }
    }

    /// Fills in the interface and how far a route leads, and checks its gateway.
    fn complete_route(&self, route: &mut route::Route) -> Result<()> {
        if let Some(gateway) = route.gateway {
            if self.is_own(gateway) || gateway.is_multicast() || gateway.is_broadcast() {
                return Err(Errno::EINVAL);
            }
            let by = match route.interface {
                0 => self.routes.lookup(gateway),
                index => self.routes.lookup_by(gateway, index),
            };
            // The gateway has to be on the link (RFC 1812, 5.2.4; Linux `fib_check_nh`).
            let by = by.filter(|by| by.kind == Kind::Unicast && by.gateway.is_none());
            route.interface = by.ok_or(Errno::ENETUNREACH)?.interface;
            route.scope = SCOPE_UNIVERSE;
        } else if route.interface == 0 {
            return Err(Errno::ENODEV);
        }
        let interface = self.interfaces.get(route.interface).ok_or(Errno::ENODEV)?;
        if interface.is_up() {
            Ok(())
        } else {
            Err(Errno::ENETDOWN)
        }
    }
}
