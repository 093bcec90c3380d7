//! Routes: which interface and which next hop a destination is reached by.

use alloc::vec::Vec;
use core::net::Ipv4Addr;

use crate::Address;

/// Routes that there may be.
const MOST: usize = 4096;

/// Addresses that begin with the same bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Prefix<A = Ipv4Addr> {
    /// The first of them.
    pub address: A,
    /// Bits that are the same.
    pub length: u8,
}

impl<A: Address> Prefix<A> {
    /// The network of an address; `None` for more bits than an address has.
    #[must_use]
    pub fn of(address: A, length: u8) -> Option<Self> {
        (length <= A::BITS).then(|| Self {
            address: address.masked(length),
            length,
        })
    }

    /// Whether an address is one of them.
    #[must_use]
    pub fn contains(self, address: A) -> bool {
        Self::of(address, self.length) == Some(self)
    }

    /// Whether an address is one of both.
    #[must_use]
    pub fn overlaps(self, other: Self) -> bool {
        self.contains(other.address) || other.contains(self.address)
    }
}

impl Prefix {
    /// The address of everybody in the network; links of two hosts have none (RFC 3021).
    #[must_use]
    pub fn broadcast(self) -> Option<Ipv4Addr> {
        let mask = mask(self.length)?;
        (self.length < 31).then(|| (u32::from(self.address) | !mask).into())
    }
}

/// The mask of a prefix; `None` for more than 32 bits.
fn mask(length: u8) -> Option<u32> {
    (length <= 32).then(|| u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0))
}

/// Length of a netmask's prefix; `None` if ones follow a zero.
#[must_use]
pub fn netmask_len(mask: Ipv4Addr) -> Option<u8> {
    let ones = u32::from(mask).leading_ones();
    (u32::from(mask).count_ones() == ones).then_some(ones as u8)
}

/// The fate of packets by a route, with its number in Linux' `rtnetlink.h`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// Packets are sent.
    Unicast = 1,
    /// Packets are dropped.
    Blackhole = 6,
    /// The sender hears that nobody is there.
    Unreachable = 7,
    /// The sender hears that it may not be.
    Prohibit = 8,
}

/// A route.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Route<A = Ipv4Addr> {
    /// The addresses that it is for.
    pub destination: Prefix<A>,
    /// The fate of packets.
    pub kind: Kind,
    /// Number of the interface; 0 if it sends nothing.
    pub interface: u32,
    /// The next hop, if that is not the destination.
    pub gateway: Option<A>,
    /// The address packets come from, if the route says so.
    pub source: Option<A>,
    /// Of several for the same addresses the least counts.
    pub metric: u32,
    /// The maker of the route (`RTPROT_*`).
    pub protocol: u8,
    /// How far it leads (`RT_SCOPE_*`).
    pub scope: u8,
}

/// The rule for a route that is there already.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Insert {
    /// Adding it is an error.
    Exclusive,
    /// One for the same addresses with the same metric goes for it.
    Replace,
    /// The new one comes behind those for the same addresses, unless it is the very same.
    Append,
    /// The new one comes before those for the same addresses, unless it is the very same.
    Prepend,
}

/// A route cannot be added.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InsertError {
    /// The route is there.
    Exists,
    /// There are too many, or memory is short.
    NoRoom,
}

/// Conditions on a route that is to be removed; `None` is any.
#[derive(Clone, Copy, Debug)]
pub struct Filter<A = Ipv4Addr> {
    /// The fate of packets.
    pub kind: Option<Kind>,
    /// Number of the route's interface.
    pub interface: Option<u32>,
    /// Address of the route's gateway.
    pub gateway: Option<A>,
    /// Preferred source of the route.
    pub source: Option<A>,
    /// Metric of the route.
    pub metric: Option<u32>,
    /// The maker of the route.
    pub protocol: Option<u8>,
    /// How far it leads.
    pub scope: Option<u8>,
}

impl<A> Default for Filter<A> {
    fn default() -> Self {
        Self {
            kind: None,
            interface: None,
            gateway: None,
            source: None,
            metric: None,
            protocol: None,
            scope: None,
        }
    }
}

impl<A: Address> Filter<A> {
    fn fits(&self, route: &Route<A>) -> bool {
        self.kind.is_none_or(|kind| kind == route.kind)
            && self.interface.is_none_or(|index| index == route.interface)
            && self
                .gateway
                .is_none_or(|gateway| Some(gateway) == route.gateway)
            && self
                .source
                .is_none_or(|source| Some(source) == route.source)
            && self.metric.is_none_or(|metric| metric == route.metric)
            && self
                .protocol
                .is_none_or(|protocol| protocol == route.protocol)
            && self.scope.is_none_or(|scope| scope == route.scope)
    }
}

/// The routes, the longest prefix first, then the least metric.
pub struct Table<A = Ipv4Addr>(Vec<Route<A>>, u64);

impl<A> Default for Table<A> {
    fn default() -> Self {
        Self(Vec::new(), 0)
    }
}

impl<A: Address> Table<A> {
    fn order(route: &Route<A>) -> (core::cmp::Reverse<u8>, A, u32) {
        let Prefix { address, length } = route.destination;
        (core::cmp::Reverse(length), address, route.metric)
    }

    /// A number that grows with each change.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.1
    }

    /// The route to an address.
    #[must_use]
    pub fn lookup(&self, to: A) -> Option<&Route<A>> {
        self.0.iter().find(|route| route.destination.contains(to))
    }

    /// The route to an address by an interface.
    #[must_use]
    pub fn lookup_by(&self, to: A, interface: u32) -> Option<&Route<A>> {
        let fits =
            |route: &&Route<A>| route.interface == interface && route.destination.contains(to);
        self.0.iter().find(fits)
    }

    /// All routes.
    pub fn iter(&self) -> impl Iterator<Item = &Route<A>> {
        self.0.iter()
    }

    /// Adds a route. Returns the one that has gone for it.
    ///
    /// # Errors
    /// It is there; there are too many.
    pub fn insert(
        &mut self,
        route: Route<A>,
        insert: Insert,
    ) -> Result<Option<Route<A>>, InsertError> {
        let start = self
            .0
            .partition_point(|one| Self::order(one) < Self::order(&route));
        let end = self
            .0
            .partition_point(|one| Self::order(one) <= Self::order(&route));
        let at = match insert {
            Insert::Exclusive if start < end => return Err(InsertError::Exists),
            Insert::Replace if start < end => {
                self.1 += 1;
                return Ok(Some(core::mem::replace(&mut self.0[start], route)));
            }
            Insert::Append | Insert::Prepend if self.0[start..end].contains(&route) => {
                return Err(InsertError::Exists);
            }
            Insert::Prepend => start,
            _ => end,
        };
        if self.0.len() >= MOST || self.0.try_reserve(1).is_err() {
            return Err(InsertError::NoRoom);
        }
        self.1 += 1;
        self.0.insert(at, route);
        Ok(None)
    }

    /// Removes the first route to a destination that a filter fits.
    pub fn remove(&mut self, destination: Prefix<A>, filter: &Filter<A>) -> Option<Route<A>> {
        let fits = |route: &Route<A>| route.destination == destination && filter.fits(route);
        let at = self.0.iter().position(fits)?;
        self.1 += 1;
        Some(self.0.remove(at))
    }

    /// Removes a route that `is_gone` says yes to; call it until there is none.
    pub fn remove_where(&mut self, is_gone: impl Fn(&Route<A>) -> bool) -> Option<Route<A>> {
        let at = self.0.iter().position(is_gone)?;
        self.1 += 1;
        Some(self.0.remove(at))
    }
}

/// The address of an interface that packets to a next hop come from: the first one with the next
/// hop in its network, else the first (Linux `inet_select_addr`).
#[must_use]
pub fn select_source(addresses: &[(Ipv4Addr, u8)], next_hop: Ipv4Addr) -> Option<Ipv4Addr> {
    let has_it = |(address, length): &&(Ipv4Addr, u8)| {
        Prefix::of(*address, *length).is_some_and(|network| network.contains(next_hop))
    };
    let found = addresses.iter().find(has_it).or(addresses.first());
    found.map(|(address, _)| *address)
}
