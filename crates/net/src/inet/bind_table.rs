//! Sockets by the port they are bound to: one table per transport.

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use core::ops::RangeInclusive;
use core::sync::atomic::{AtomicU32, Ordering};

use abi::errno::Errno;
use fs::Result;
use task::Mutex;

use crate::socket::core_stack::CoreStack;

/// The ports that are given to who asks for none.
pub(super) fn ephemeral_ports(stack: &CoreStack) -> RangeInclusive<u16> {
    let [first, last] = stack.sysctls.ip_local_port_range.range();
    first as u16..=last as u16
}

/// The addresses a socket is bound to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct BindAddress {
    pub(super) ip: IpAddr,
    /// `::` without `IPV6_V6ONLY`: any address of both families.
    pub(super) dual_stack: bool,
}

impl BindAddress {
    /// The one address of a socket that is connected.
    pub(super) fn connected(ip: IpAddr) -> Self {
        Self {
            ip,
            dual_stack: false,
        }
    }

    pub(super) fn new(ip: IpAddr, only_v6: bool) -> Self {
        Self {
            ip,
            dual_stack: ip.is_ipv6() && ip.is_unspecified() && !only_v6,
        }
    }

    /// The score of the address as a match for another: 2 for the very one, less for one of many,
    /// none if it does not match.
    pub(super) fn match_score(self, ip: IpAddr) -> Option<u8> {
        if self.ip == ip {
            Some(2)
        } else if self.ip.is_unspecified() && self.ip.is_ipv4() == ip.is_ipv4() {
            Some(1)
        } else {
            self.dual_stack.then_some(0)
        }
    }

    fn overlaps(self, other: Self) -> bool {
        self.dual_stack
            || other.dual_stack
            || self.match_score(other.ip).is_some()
            || other.match_score(self.ip).is_some()
    }
}

/// The terms on which a socket shares its port with others (`SO_REUSEADDR`, `SO_REUSEPORT`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ReusePolicy {
    /// `SO_REUSEADDR`.
    pub(super) reuse_address: bool,
    /// Whether it waits for connections, beside which `SO_REUSEADDR` does not count.
    pub(super) is_listening: bool,
    /// `SO_REUSEPORT`, with the user who may share.
    pub(super) reuse_port: Option<u32>,
}

impl ReusePolicy {
    /// Whether a socket with this policy may come, or stay, beside one with the other.
    fn allows_sharing_with(self, other: Self) -> bool {
        (self.reuse_address && other.reuse_address && !other.is_listening)
            || (self.reuse_port.is_some() && self.reuse_port == other.reuse_port)
    }
}

/// A socket that can be bound.
pub(super) trait Bindable: Send + Sync {
    /// The socket's policy now.
    fn reuse_policy(&self) -> ReusePolicy;
}

struct BindEntry<S> {
    address: BindAddress,
    socket: Weak<S>,
}

/// The sockets that fit a destination equally well, in the order in which they were bound. One
/// takes no memory; one that there is none for is left out.
pub(super) struct Matches<S> {
    first: Option<Arc<S>>,
    others: Vec<Arc<S>>,
}

impl<S> Default for Matches<S> {
    fn default() -> Self {
        Self {
            first: None,
            others: Vec::new(),
        }
    }
}

impl<S> Matches<S> {
    fn push(&mut self, socket: Arc<S>) {
        if self.first.is_none() {
            self.first = Some(socket);
        } else {
            let _ = fallible::push(&mut self.others, socket);
        }
    }

    pub(super) fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.others.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<S>> {
        self.first.iter().chain(&self.others)
    }

    /// The one with a number below [`Self::len`].
    pub(super) fn into_nth(mut self, number: usize) -> Option<Arc<S>> {
        match number {
            0 => self.first,
            number if number <= self.others.len() => Some(self.others.swap_remove(number - 1)),
            _ => None,
        }
    }

    /// The one that was bound last.
    pub(super) fn last(mut self) -> Option<Arc<S>> {
        self.others.pop().or(self.first)
    }
}

/// The ports of one transport, and the sockets bound to them.
pub(super) struct BindTable<S> {
    stack: Arc<CoreStack>,
    ports: Mutex<BTreeMap<u16, Vec<BindEntry<S>>>>,
    next: AtomicU32,
}

/// A socket's port in a table; dropping the binding frees it.
pub(super) struct PortBinding<S: Bindable> {
    table: Arc<BindTable<S>>,
    socket: Weak<S>,
    pub(super) address: SocketAddr,
}

impl<S: Bindable> Drop for PortBinding<S> {
    fn drop(&mut self) {
        let mut ports = self.table.ports.lock();
        if let Some(entries) = ports.get_mut(&self.address.port()) {
            entries.retain(|entry| !entry.socket.ptr_eq(&self.socket));
            if entries.is_empty() {
                ports.remove(&self.address.port());
            }
        }
    }
}

impl<S: Bindable> BindTable<S> {
    pub(super) fn new(stack: Arc<CoreStack>) -> Arc<Self> {
        Arc::new(Self {
            stack,
            ports: Mutex::new(BTreeMap::new()),
            next: AtomicU32::new(0),
        })
    }

    /// Binds a socket; port 0 is any that is free.
    ///
    /// # Errors
    /// `EADDRINUSE`, `ENOMEM`.
    pub(super) fn bind(
        self: &Arc<Self>,
        socket: &Arc<S>,
        address: BindAddress,
        port: u16,
    ) -> Result<PortBinding<S>> {
        let mut ports = self.ports.lock();
        let policy = socket.reuse_policy();
        let port = if port == 0 {
            self.choose_ephemeral_port(&ports)
                .ok_or(Errno::EADDRINUSE)?
        } else {
            port
        };
        let conflict = |entry: &BindEntry<S>| {
            entry.address.overlaps(address)
                && entry
                    .socket
                    .upgrade()
                    .is_some_and(|other| !policy.allows_sharing_with(other.reuse_policy()))
        };
        if ports
            .get(&port)
            .is_some_and(|entries| entries.iter().any(conflict))
        {
            return Err(Errno::EADDRINUSE);
        }
        let socket = Arc::downgrade(socket);
        let entry = BindEntry {
            address,
            socket: socket.clone(),
        };
        let entries = ports.entry(port).or_default();
        if let Err(error) = fallible::push(entries, entry) {
            // Else the port would be nobody's, and never free again.
            if entries.is_empty() {
                ports.remove(&port);
            }
            return Err(error);
        }
        Ok(PortBinding {
            table: self.clone(),
            socket,
            address: SocketAddr::new(address.ip, port),
        })
    }

    /// Whether a bound socket conflicts with none of the others at its port, now that its policy
    /// has changed.
    pub(super) fn can_listen(&self, binding: &PortBinding<S>, only_v6: bool) -> bool {
        let Some(socket) = binding.socket.upgrade() else {
            return false;
        };
        let (address, policy) = (
            BindAddress::new(binding.address.ip(), only_v6),
            socket.reuse_policy(),
        );
        let others = |entry: &BindEntry<S>| {
            !entry.socket.ptr_eq(&binding.socket) && entry.address.overlaps(address)
        };
        let conflict = |entry: &BindEntry<S>| {
            entry
                .socket
                .upgrade()
                .is_some_and(|other| !policy.allows_sharing_with(other.reuse_policy()))
        };
        !self
            .ports
            .lock()
            .get(&binding.address.port())
            .is_some_and(|e| e.iter().any(|e| others(e) && conflict(e)))
    }

    /// The number of bound sockets.
    pub(super) fn len(&self) -> usize {
        self.ports.lock().values().map(Vec::len).sum()
    }

    fn choose_ephemeral_port(&self, ports: &BTreeMap<u16, Vec<BindEntry<S>>>) -> Option<u16> {
        let range = ephemeral_ports(&self.stack);
        let (first, last) = (u32::from(*range.start()), u32::from(*range.end()));
        let count = last - first + 1;
        (0..count).find_map(|_| {
            let port = (first + self.next.fetch_add(1, Ordering::Relaxed) % count) as u16;
            (!ports.contains_key(&port)).then_some(port)
        })
    }

    /// Changes the address of a binding: a socket that was bound to any has been connected, or has
    /// no peer any more.
    pub(super) fn set_address(&self, binding: &mut PortBinding<S>, address: BindAddress) {
        let mut ports = self.ports.lock();
        let entries = ports.get_mut(&binding.address.port());
        if let Some(entry) = entries.and_then(|entries| {
            entries
                .iter_mut()
                .find(|e| e.socket.ptr_eq(&binding.socket))
        }) {
            entry.address = address;
        }
        binding.address.set_ip(address.ip);
    }

    /// The sockets at a port that `score` says something of, of those with the highest score, in
    /// the order they were bound. `score` is given the socket and how well its addresses fit.
    pub(super) fn lookup<K: Ord>(
        &self,
        to: SocketAddr,
        score: impl Fn(&S, u8) -> Option<K>,
    ) -> Matches<S> {
        let ports = self.ports.lock();
        let mut best = Matches::default();
        let mut highest = None;
        for entry in ports.get(&to.port()).into_iter().flatten() {
            let Some(fit) = entry.address.match_score(to.ip()) else {
                continue;
            };
            let Some(socket) = entry.socket.upgrade() else {
                continue;
            };
            let Some(key) = score(&socket, fit) else {
                continue;
            };
            match highest.as_ref().map(|highest| key.cmp(highest)) {
                Some(core::cmp::Ordering::Less) => {}
                Some(core::cmp::Ordering::Equal) => best.push(socket),
                None | Some(core::cmp::Ordering::Greater) => {
                    best = Matches::default();
                    best.push(socket);
                    highest = Some(key);
                }
            }
        }
        best
    }

    /// All sockets at a port, whatever their address.
    pub(super) fn sockets_at_port(&self, port: u16) -> Vec<Arc<S>> {
        self.ports
            .lock()
            .get(&port)
            .into_iter()
            .flatten()
            .filter_map(|entry| entry.socket.upgrade())
            .collect()
    }
}

/// The socket, of `count` ones that share a port, that gets what comes from `from`: the same one
/// for the same sender.
pub(super) fn reuseport_hash(from: SocketAddr, to: SocketAddr, count: usize) -> usize {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    let mut mix = |bytes: &[u8]| {
        for &byte in bytes {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    for address in [from, to] {
        match address.ip() {
            IpAddr::V4(ip) => mix(&ip.octets()),
            IpAddr::V6(ip) => mix(&ip.octets()),
        }
        mix(&address.port().to_ne_bytes());
    }
    ((hash ^ hash >> 32) % count.max(1) as u64) as usize
}

#[cfg(test)]
mod tests {
    use core::net::{Ipv4Addr, Ipv6Addr};

    use proptest::prelude::*;

    use super::*;

    struct Fake(ReusePolicy);

    impl Bindable for Fake {
        fn reuse_policy(&self) -> ReusePolicy {
            self.0
        }
    }

    const ALONE: ReusePolicy = ReusePolicy {
        reuse_address: false,
        is_listening: false,
        reuse_port: None,
    };

    fn bind_address() -> impl Strategy<Value = BindAddress> {
        let addresses: Vec<IpAddr> = vec![
            Ipv4Addr::UNSPECIFIED.into(),
            Ipv4Addr::LOCALHOST.into(),
            Ipv4Addr::new(127, 0, 0, 2).into(),
            Ipv6Addr::UNSPECIFIED.into(),
            Ipv6Addr::LOCALHOST.into(),
        ];
        (proptest::sample::select(addresses), any::<bool>())
            .prop_map(|(ip, only_v6)| BindAddress::new(ip, only_v6))
    }

    fn policy() -> impl Strategy<Value = ReusePolicy> {
        let port = proptest::option::of(0..2u32);
        (any::<bool>(), any::<bool>(), port).prop_map(
            |(reuse_address, is_listening, reuse_port)| ReusePolicy {
                reuse_address,
                is_listening,
                reuse_port,
            },
        )
    }

    proptest! {
        #[test]
        fn bind_addresses_overlap_if_an_ip_fits_both(a in bind_address(), b in bind_address()) {
            let addresses: [IpAddr; 4] =
                [Ipv4Addr::LOCALHOST.into(), Ipv4Addr::new(127, 0, 0, 2).into(), Ipv6Addr::LOCALHOST.into(), Ipv4Addr::new(127, 0, 0, 9).into()];
            let common = addresses.iter().any(|ip| a.match_score(*ip).is_some() && b.match_score(*ip).is_some());
            prop_assert_eq!(a.overlaps(b), common);
        }

        #[test]
        fn binding_keeps_the_rules_and_dropping_frees(binds in proptest::collection::vec((bind_address(), policy(), 0..3u16), 1..20)) {
            let table = BindTable::<Fake>::new(CoreStack::for_tests());
            let mut bound: Vec<(Arc<Fake>, PortBinding<Fake>, BindAddress)> = Vec::new();
            for (address, policy, port) in binds {
                let socket = Arc::new(Fake(policy));
                let refused = port != 0 && bound.iter().any(|(other, binding, taken)| {
                    binding.address.port() == port && taken.overlaps(address) && !policy.allows_sharing_with(other.0)
                });
                match table.bind(&socket, address, port) {
                    Ok(binding) => {
                        prop_assert!(!refused);
                        prop_assert!(port != 0 || ephemeral_ports(&table.stack).contains(&binding.address.port()));
                        bound.push((socket, binding, address));
                    }
                    Err(error) => prop_assert!(refused && error == Errno::EADDRINUSE),
                }
            }
            bound.clear();
            prop_assert!(table.ports.lock().is_empty());
        }
    }

    #[test]
    fn a_bind_that_is_refused_memory_keeps_no_port() {
        let table = BindTable::<Fake>::new(CoreStack::for_tests());
        let socket = Arc::new(Fake(ALONE));
        let address = BindAddress::new(Ipv4Addr::LOCALHOST.into(), false);
        fallible::inject::set(1).unwrap();
        let refused = table.bind(&socket, address, 80);
        fallible::inject::clear();
        assert_eq!(refused.err(), Some(Errno::ENOMEM));
        assert!(table.ports.lock().is_empty());
    }

    #[test]
    fn the_best_fit_is_found_and_all_of_it() {
        let table = BindTable::<Fake>::new(CoreStack::for_tests());
        let shared = ReusePolicy {
            reuse_port: Some(0),
            ..ALONE
        };
        let sockets: Vec<Arc<Fake>> = (0..4).map(|_| Arc::new(Fake(shared))).collect();
        let bind_addresses = [
            BindAddress::new(Ipv6Addr::UNSPECIFIED.into(), false),
            BindAddress::new(Ipv4Addr::UNSPECIFIED.into(), false),
            BindAddress::new(Ipv4Addr::LOCALHOST.into(), false),
            BindAddress::new(Ipv4Addr::LOCALHOST.into(), false),
        ];
        let _places: Vec<_> = sockets
            .iter()
            .zip(bind_addresses)
            .map(|(s, address)| table.bind(s, address, 80).unwrap())
            .collect();
        let best = |ip: IpAddr| -> Vec<usize> {
            let found = table.lookup(SocketAddr::new(ip, 80), |_, fit| Some(fit));
            found
                .iter()
                .map(|socket| sockets.iter().position(|s| Arc::ptr_eq(s, socket)).unwrap())
                .collect()
        };
        assert_eq!(best(Ipv4Addr::LOCALHOST.into()), [2, 3]);
        assert_eq!(best(Ipv4Addr::new(127, 0, 0, 2).into()), [1]);
        assert_eq!(best(Ipv6Addr::LOCALHOST.into()), [0]);
        let other = SocketAddr::new(Ipv6Addr::LOCALHOST.into(), 81);
        assert_eq!(table.lookup(other, |_, fit| Some(fit)).len(), 0);
    }

    #[test]
    fn connections_are_spread_evenly() {
        let mut counts = [0; 4];
        let to = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 80);
        let ports = ephemeral_ports(&CoreStack::for_tests());
        for port in ports.clone() {
            counts[reuseport_hash(
                SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port),
                to,
                counts.len(),
            )] += 1;
        }
        let fair = ports.count() / counts.len();
        assert!(
            counts
                .iter()
                .all(|count| (fair / 2..fair * 2).contains(count)),
            "{counts:?}"
        );
    }
}
