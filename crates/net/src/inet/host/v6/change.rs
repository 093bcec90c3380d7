//! What administrators change: addresses, routes.

use alloc::vec::Vec;
use core::net::Ipv6Addr;

use abi::errno::Errno;
use fs::Result;
use ip::Nanos;
use ip::route::{Filter, Insert, Kind, Prefix, Route};

use crate::inet::host::Host;
use crate::inet::host::config::{check_changeable, insert_error};
use crate::inet::host::state::{Change, HostState};
use crate::socket::InterfaceAddress;

impl Host {
    /// Gives an interface an address of IPv6, as [`Self::add_address`].
    pub(in crate::inet::host) fn add_v6_address(
        &self,
        index: u32,
        address: InterfaceAddress,
        replace: bool,
    ) -> Result<()> {
        self.with_v6(|now, state, work| state.set_v6_address(now, index, address, replace, work))
    }

    /// Takes an address of IPv6 from an interface, with the route to its network.
    ///
    /// # Errors
    /// `ENODEV`, `EOPNOTSUPP` of the loop, `EADDRNOTAVAIL`.
    pub fn remove_ipv6_address(
        &self,
        index: u32,
        ip: Ipv6Addr,
        prefix_len: Option<u8>,
    ) -> Result<()> {
        check_changeable(index)?;
        self.with_v6(|now, state, work| state.remove_v6_address(now, index, ip, prefix_len, work))
    }

    /// The time after so many seconds, by the host's clock; none after `u32::MAX`, which is never.
    pub(crate) fn after(&self, seconds: u32) -> Option<Nanos> {
        (seconds != u32::MAX).then(|| self.now() + u64::from(seconds) * ip::SECOND)
    }

    /// Adds a route; one that is not by an interface by its number is by the one that reaches its
    /// gateway.
    ///
    /// # Errors
    /// `ENODEV`; `ENETDOWN` of an interface that is down; `EHOSTUNREACH` for a gateway that is not
    /// on a link; `EINVAL` for one that is this host, or a source that is not; `EEXIST`, `ENOSPC`.
    pub fn add_ipv6_route(&self, mut route: Route<Ipv6Addr>, insert: Insert) -> Result<()> {
        self.with_v6(|_, state, work| {
            if route.kind == Kind::Unicast {
                state.complete_v6_route(&mut route)?;
            } else {
                route.interface = 0;
            }
            if route
                .source
                .is_some_and(|source| !state.is_here_v6(source, 0))
            {
                return Err(Errno::EINVAL);
            }
            let replaced = state
                .v6
                .routes
                .insert(route, insert)
                .map_err(insert_error)?;
            if let Some(old) = replaced {
                state.forget_learnt(&old);
                work.tell(Change::RouteV6 {
                    route: old,
                    removed: true,
                });
            }
            work.tell(Change::RouteV6 {
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
    pub fn remove_ipv6_route(
        &self,
        destination: Prefix<Ipv6Addr>,
        filter: &Filter<Ipv6Addr>,
    ) -> Result<()> {
        self.with_v6(|_, state, work| {
            let removed = state.v6.routes.remove(destination, filter);
            let route = removed.ok_or(Errno::ESRCH)?;
            state.forget_learnt(&route);
            work.tell(Change::RouteV6 {
                route,
                removed: true,
            });
            Ok(())
        })
    }

    /// The routes of IPv6, without those to this host itself, each with the time that is left of
    /// it, if a router has told one.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn ipv6_routes(&self) -> Result<Vec<(Route<Ipv6Addr>, Option<Nanos>)>> {
        let now = self.now();
        let state = self.lock_state();
        let mut all = Vec::new();
        for route in state.v6.routes.iter() {
            let left = state.v6_route_end(route).map(|end| end.saturating_sub(now));
            fallible::push(&mut all, (*route, left))?;
        }
        Ok(all)
    }

    /// The route that a packet to an address takes by an interface, any if that is 0, if it leaves
    /// this host.
    pub fn lookup_ipv6_route(&self, to: Ipv6Addr, via: u32) -> Option<Route<Ipv6Addr>> {
        let state = self.lock_state();
        let found = match via {
            0 => state.v6.routes.lookup(to),
            via => state.v6.routes.lookup_by(to, via),
        };
        found.copied()
    }
}

impl HostState {
    /// Fills in the interface of a route, and checks its gateway.
    fn complete_v6_route(&self, route: &mut Route<Ipv6Addr>) -> Result<()> {
        if let Some(gateway) = route.gateway {
            if gateway.is_multicast() || self.is_here_v6(gateway, route.interface) {
                return Err(Errno::EINVAL);
            }
            let by = match route.interface {
                // A link has to be named for what is known on one only.
                0 if ip::v6::address::needs_link(gateway) => return Err(Errno::EINVAL),
                0 => self.v6.routes.lookup(gateway),
                index => self.v6.routes.lookup_by(gateway, index),
            };
            let by = by.filter(|by| by.kind == Kind::Unicast && by.gateway.is_none());
            route.interface = by.ok_or(Errno::EHOSTUNREACH)?.interface;
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

    /// Whether this host is in a group on an interface by itself.
    pub(super) fn is_in_group_v6(&self, index: u32, group: Ipv6Addr) -> bool {
        let interface = self.interfaces.get(index);
        interface.is_some_and(|one| one.is_in_group(group))
    }
}
