//! The ways to destinations that were sent to, which are found without the lock of the host's
//! tables: what a route, a path's MTU and a neighbour have said, until any of them changes.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr};
use core::sync::atomic::{AtomicU16, AtomicUsize, Ordering};

use ip::{HardwareAddress, Nanos};
use task::RcuArc;

use super::link::LinkDevice;
use super::v6::is_usable;
use crate::inet::network::Route;
use crate::socket::InterfaceAddress;

/// Places of ways; a destination has two of them that it may be in.
const PLACES: usize = 256;
/// A way that is good is given up for another's no more often than each so many times.
const PATIENCE: usize = 16;
/// Time for which a way is good if nothing ends it before.
pub(super) const LIFE: Nanos = 30 * ip::SECOND;
/// Places of numbers of packets, which destinations share.
const ID_PLACES: usize = 256;

/// A way to a host on a link, or behind it.
pub(super) struct Destination {
    /// The version of the tables that have said so.
    pub(super) version: u64,
    pub(super) valid_until: Nanos,
    pub(super) to: IpAddr,
    /// The interface that was asked for; 0: none.
    pub(super) via: u32,
    pub(super) route: Route,
    pub(super) link_mtu: u32,
    /// The hardware addresses of both ends, if the link has any: the other's first.
    pub(super) link: Option<(HardwareAddress, HardwareAddress)>,
    /// The addresses that the interface has.
    pub(super) addresses: Arc<Vec<InterfaceAddress>>,
    pub(super) card: Arc<LinkDevice>,
}

impl Destination {
    /// Whether packets with a source may go this way: not if that has to be looked for.
    pub(super) fn may_come_from(&self, source: IpAddr) -> bool {
        source == self.route.source
            || self
                .addresses
                .iter()
                .any(|known| known.ip == source && is_usable(known))
    }

    /// Whether it is the way that tables of a version lead.
    fn is_good(&self, now: Nanos, version: u64) -> bool {
        self.version == version && now < self.valid_until
    }
}

/// Ways by destination.
pub(super) struct Destinations {
    /// Number that places are made of.
    secret: u64,
    places: Vec<RcuArc<Destination>>,
    refused: AtomicUsize,
}

impl Destinations {
    pub(super) fn new() -> Self {
        let mut random = [0; 8];
        fs::devfs::fill_random(&mut random);
        Self {
            secret: u64::from_ne_bytes(random),
            places: core::iter::repeat_with(RcuArc::empty)
                .take(PLACES)
                .collect(),
            refused: AtomicUsize::new(0),
        }
    }

    /// The places of a destination.
    fn places(&self, to: IpAddr, via: u32) -> [&RcuArc<Destination>; 2] {
        let to = match to {
            IpAddr::V4(to) => u128::from(u32::from(to)),
            IpAddr::V6(to) => u128::from(to),
        };
        let mut mixed = self.secret ^ u64::from(via);
        for part in [to as u64, (to >> 64) as u64] {
            mixed = (mixed ^ part).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            mixed ^= mixed >> 29;
        }
        let at = (mixed >> 32) as usize % PLACES;
        [&self.places[at], &self.places[at ^ 1]]
    }

    /// The way to a destination by tables of a version, if it is known.
    pub(super) fn find(
        &self,
        now: Nanos,
        version: u64,
        to: IpAddr,
        via: u32,
    ) -> Option<Arc<Destination>> {
        self.places(to, via).into_iter().find_map(|place| {
            let known = place.load()?;
            let is_it = known.to == to && known.via == via && known.is_good(now, version);
            is_it.then_some(known)
        })
    }

    /// Remembers a way. It may be forgotten at any time.
    pub(super) fn remember(&self, now: Nanos, new: Destination) {
        if !vm::has_kernel_room() {
            return;
        }
        let places = self.places(new.to, new.via);
        let is_free = |place: &&&RcuArc<Destination>| {
            place.load().is_none_or(|known| {
                known.to == new.to && known.via == new.via || !known.is_good(now, new.version)
            })
        };
        let place = match places.iter().find(is_free) {
            Some(place) => place,
            None => {
                let refused = self.refused.fetch_add(1, Ordering::Relaxed);
                if !refused.is_multiple_of(PATIENCE) {
                    return;
                }
                places[refused / PATIENCE % 2]
            }
        };
        place.swap(Some(Arc::new(new)));
    }

    /// Forgets all ways, with what they hold.
    pub(super) fn forget_all(&self) {
        for place in &self.places {
            if place.load().is_some() {
                place.swap(None);
            }
        }
    }
}

/// The numbers of packets of IPv4.
pub(super) struct PacketIds {
    secret: u32,
    ids: [AtomicU16; ID_PLACES],
}

impl PacketIds {
    pub(super) fn new() -> Self {
        let mut random = [0; 4 + 2 * ID_PLACES];
        fs::devfs::fill_random(&mut random);
        let (secret, ids) = random.split_at(4);
        let id = |at: usize| AtomicU16::new(u16::from_ne_bytes([ids[2 * at], ids[2 * at + 1]]));
        Self {
            secret: secret.try_into().map_or(0, u32::from_ne_bytes),
            ids: core::array::from_fn(id),
        }
    }

    /// The number of the next packet to a destination: packets to it have different ones, and who
    /// sees them learns nothing of those to others.
    pub(super) fn next(&self, to: Ipv4Addr) -> u16 {
        let mixed = (u32::from(to) ^ self.secret).wrapping_mul(0x9e37_79b9);
        let id = &self.ids[(mixed >> 24) as usize % ID_PLACES];
        id.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }
}
