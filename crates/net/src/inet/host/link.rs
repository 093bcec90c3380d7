//! Interfaces as those see them who send and receive, without the lock of the host's tables.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::sync::atomic::{AtomicU64, Ordering};

use fs::Result;

use super::registry::Registry;
use super::send_queue::SendQueue;
use super::state::Class;
use super::v6::has_usable;
use crate::socket::{Interface, NetDevice, Traffic};

/// The counters of one direction of an interface.
#[derive(Default)]
pub(super) struct TrafficCounts {
    packets: AtomicU64,
    bytes: AtomicU64,
    errors: AtomicU64,
    dropped: AtomicU64,
    multicast: AtomicU64,
}

fn add(counter: &AtomicU64, number: u64) {
    counter.fetch_add(number, Ordering::Relaxed);
}

impl TrafficCounts {
    /// A frame of so many bytes has passed.
    pub(super) fn count(&self, bytes: usize, is_multicast: bool) {
        add(&self.packets, 1);
        add(&self.bytes, bytes as u64);
        if is_multicast {
            add(&self.multicast, 1);
        }
    }

    /// A frame was malformed.
    pub(super) fn count_error(&self) {
        add(&self.errors, 1);
    }

    /// A frame was lost for want of room, or because the interface is down.
    pub(super) fn count_dropped(&self) {
        add(&self.dropped, 1);
    }

    pub(super) fn read(&self) -> Traffic {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Traffic {
            packets: read(&self.packets),
            bytes: read(&self.bytes),
            errors: read(&self.errors),
            dropped: read(&self.dropped),
            multicast: read(&self.multicast),
        }
    }
}

/// The device of an interface, and what has passed it. It is the same for as long as the interface
/// is there.
pub(super) struct LinkDevice {
    pub(super) index: u32,
    pub(super) device: Arc<dyn NetDevice>,
    pub(super) received: TrafficCounts,
    pub(super) sent: TrafficCounts,
    pub(super) queue: SendQueue,
}

impl LinkDevice {
    pub(super) fn new(index: u32, device: Arc<dyn NetDevice>, queue: SendQueue) -> Arc<Self> {
        Arc::new(Self {
            index,
            device,
            received: TrafficCounts::default(),
            sent: TrafficCounts::default(),
            queue,
        })
    }
}

/// An interface as it was at some moment, with its card. Its traffic is the card's.
pub(super) struct KnownInterface {
    pub(super) shown: Interface,
    pub(super) card: Arc<LinkDevice>,
    pub(super) is_up: bool,
    /// Packets of IPv6 come in and go out.
    pub(super) carries_ipv6: bool,
    /// Packets of IPv6 for others are passed on.
    pub(super) forwards_ipv6: bool,
    /// The longest packet of IPv6.
    pub(super) v6_mtu: u32,
}

impl KnownInterface {
    /// The longest packet to an address.
    pub(super) fn mtu(&self, to: SocketAddr) -> u32 {
        if to.is_ipv4() {
            self.shown.mtu
        } else {
            self.v6_mtu
        }
    }
}

/// A version of tables and an interface in one number: by which packets were found to be for whom
/// they are. Interfaces that have the same 24 bits are 16 million apart, each of which has changed
/// the version.
pub(super) fn admission(version: u64, interface: u32) -> u64 {
    version << 24 | u64::from(interface & 0xff_ffff)
}

/// The interfaces as they were at some moment, in the order of their numbers.
pub(super) struct View {
    interfaces: Vec<KnownInterface>,
    /// The addresses of IPv4 that interfaces which are up have, in order, and the broadcasts of
    /// their networks.
    own: Vec<Ipv4Addr>,
    broadcasts: Vec<Ipv4Addr>,
    version: u64,
}

impl View {
    /// The interfaces as they are.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub(super) fn of(registry: &Registry) -> Result<Self> {
        let (mut all, mut own, mut broadcasts) = (Vec::new(), Vec::new(), Vec::new());
        for known in registry.iter() {
            let seen = KnownInterface {
                shown: known.shown.clone(),
                card: known.card.clone(),
                is_up: known.is_up(),
                carries_ipv6: known.carries_ipv6(),
                forwards_ipv6: known.forwards_ipv6(),
                v6_mtu: known.v6_mtu(),
            };
            fallible::push(&mut all, seen)?;
            let addresses = known.shown.v4_addresses();
            for address in addresses.filter(|_| known.is_up()) {
                if let IpAddr::V4(ip) = address.ip {
                    fallible::push(&mut own, ip)?;
                }
                for everybody in address.broadcasts() {
                    fallible::push(&mut broadcasts, everybody)?;
                }
            }
        }
        own.sort_unstable();
        Ok(Self {
            interfaces: all,
            own,
            broadcasts,
            version: registry.version(),
        })
    }

    /// For whom a packet of IPv4 with this destination is.
    pub(super) fn class(&self, to: Ipv4Addr) -> Class {
        let is_broadcast = || self.broadcasts.contains(&to);
        Class::of(to, is_broadcast, || self.is_own(to))
    }

    /// Whether an interface that is up has an address of IPv4.
    pub(super) fn is_own(&self, address: Ipv4Addr) -> bool {
        self.own.binary_search(&address).is_ok()
    }

    /// For whom a packet of IPv6 with this destination is that has come in by an interface.
    pub(super) fn class_v6(&self, to: Ipv6Addr, index: u32) -> Class {
        Class::of_v6(to, || self.has_v6(to, index))
    }

    /// Whether an address of IPv6 leads to this host, by the loop or an interface.
    pub(super) fn is_here_v6(&self, address: Ipv6Addr, via: u32) -> bool {
        address.is_loopback() || self.has_v6(address, via)
    }

    fn has_v6(&self, address: Ipv6Addr, via: u32) -> bool {
        self.interfaces
            .iter()
            .any(|seen| seen.carries_ipv6 && has_usable(&seen.shown, address, via))
    }

    pub(super) fn get(&self, index: u32) -> Option<&KnownInterface> {
        let all = &self.interfaces;
        let at = all.binary_search_by_key(&index, |seen| seen.shown.index);
        at.ok().map(|at| &all[at])
    }

    /// A number that is another whenever an interface or an address of one may have changed; never
    /// 0 where there is an interface.
    pub(super) fn version(&self) -> u64 {
        self.version
    }
}
