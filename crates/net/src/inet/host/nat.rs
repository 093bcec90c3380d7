//! What a host translates: hidden networks and published ports (`docs/nat.md`).

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use core::sync::atomic::{AtomicUsize, Ordering};

use abi::errno::Errno;
use fs::{File, OpenFlags, Result};
use ip::nat::{Counts, Journal, NoRoom, NotedFlow, Protocol, PublishError, Published};
use ip::route::Prefix;
use task::Mutex;

use super::Host;
use crate::inet::inet_socket::Family;
use crate::inet::ip::UDP;
use crate::inet::stack::InetStack;
use crate::inet::tcp::TcpSocket;
use crate::inet::udp::UdpSocket;

/// Ports that are kept from programs while they are published: each by a socket that is bound and
/// otherwise not used, and its owner.
#[derive(Default)]
pub(super) struct KeptPorts {
    all: Mutex<Vec<(u64, Arc<File>)>>,
    /// How many there are.
    count: AtomicUsize,
}

impl KeptPorts {
    /// Whether there are none, as of some moment during the call.
    pub(super) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }
}

/// A socket that has a port, so that no program has it.
fn keep_port(stack: &Arc<InetStack>, protocol: Protocol, at: SocketAddrV4) -> Result<Arc<File>> {
    let at = SocketAddr::V4(at);
    match protocol {
        Protocol::Tcp => {
            let bound = TcpSocket::new(stack, Family::V4);
            let socket = bound.clone().into_socket().into_file(OpenFlags::empty());
            bound.keep_port(at)?;
            Ok(socket)
        }
        Protocol::Udp => {
            let bound = UdpSocket::new(stack, Family::V4, UDP);
            let socket = bound.clone().into_socket().into_file(OpenFlags::empty());
            bound.keep_port(at)?;
            Ok(socket)
        }
        Protocol::Icmp => Err(Errno::EINVAL),
    }
}

impl Host {
    /// Hides a network: what its hosts send to others comes from an address of this host's. Doing
    /// so again changes nothing. They pass whatever `net.ipv4.ip_forward` is.
    ///
    /// # Errors
    /// `ENOSPC` if there are too many, or no memory.
    pub fn masquerade(&self, network: Prefix) -> Result<()> {
        let result = self.lock_state().nat.masquerade(network);
        result.map_err(|NoRoom| Errno::ENOSPC)
    }

    /// Hides a network no more, and ends the flows of its hosts.
    pub fn stop_masquerade(&self, network: Prefix) {
        self.lock_state().nat.stop_masquerade(network);
    }

    /// Leads a port of this host's, at one of its addresses or, if that is 0.0.0.0, at all, to a
    /// port of another host. An address of the loop leads this host's own programs there only.
    /// `owner` is a number of the caller's choice, for [`Self::withdraw`].
    ///
    /// # Errors
    /// `EADDRINUSE` if it is published or a program has it; `EADDRNOTAVAIL` if the address is not
    /// this host's; `EINVAL` for ports that are 0, another protocol than TCP and UDP, or what is no
    /// address of a host; `ENOSPC` if there are too many; `ENOMEM`; `ENETDOWN` before there is a
    /// stack.
    pub fn publish(
        &self,
        protocol: Protocol,
        at: SocketAddrV4,
        to: SocketAddrV4,
        owner: u64,
    ) -> Result<()> {
        if !at.ip().is_unspecified() && !self.lock_state().is_here(*at.ip()) {
            return Err(Errno::EADDRNOTAVAIL);
        }
        self.publish_ahead(protocol, at, to, owner)
    }

    /// Publishes a port as [`Self::publish`], whether or not the address is this host's yet: what
    /// comes there is led on as soon as it is.
    ///
    /// # Errors
    /// `EADDRINUSE` if it is published or a program has it; `EINVAL` for ports that are 0, another
    /// protocol than TCP and UDP, or what is no address of a host; `ENOSPC` if there are too many;
    /// `ENOMEM`; `ENETDOWN` before there is a stack.
    pub fn publish_ahead(
        &self,
        protocol: Protocol,
        at: SocketAddrV4,
        to: SocketAddrV4,
        owner: u64,
    ) -> Result<()> {
        let stack = self.stack.get().and_then(Weak::upgrade);
        let stack = stack.ok_or(Errno::ENETDOWN)?;
        if at.port() == 0 {
            return Err(Errno::EINVAL);
        }
        let kept = keep_port(&stack, protocol, at)?;
        let mut all = self.kept_ports.all.lock();
        all.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        let new = Published {
            protocol,
            at,
            to,
            owner,
        };
        let published = self.lock_state().nat.publish(new);
        published.map_err(|error| match error {
            PublishError::Taken => Errno::EADDRINUSE,
            PublishError::Invalid => Errno::EINVAL,
            PublishError::NoRoom => Errno::ENOSPC,
        })?;
        all.push((owner, kept));
        self.kept_ports.count.store(all.len(), Ordering::Relaxed);
        Ok(())
    }

    /// Takes back the ports that were published for an owner, and ends the flows through them; this
    /// host's own connections among them are reset.
    pub fn withdraw(&self, owner: u64) {
        let mut all = self.kept_ports.all.lock();
        let mut ended = Vec::new();
        {
            let mut state = self.lock_state();
            let is_meant =
                |known: &&Published| known.owner == owner && known.protocol == Protocol::Tcp;
            for known in state.nat.published().filter(is_meant) {
                // Of those that there is no memory for it is found when they send.
                let _ = fallible::push(&mut ended, known.at);
            }
            state.nat.withdraw(owner);
        }
        let is_owners = |(of, _): &mut (u64, Arc<File>)| *of == owner;
        // They are closed when the lock has been given back.
        let kept: Vec<_> = all.extract_if(.., is_owners).collect();
        self.kept_ports.count.store(all.len(), Ordering::Relaxed);
        drop(all);
        drop(kept);
        self.lose_connections(&ended);
    }

    /// Ends the flows of a host, before another one has its address.
    pub fn forget(&self, address: Ipv4Addr) {
        self.lock_state().nat.forget(address);
    }

    /// Has a journal know of each flow, and its states. It is called with tables locked.
    pub fn keep_journal(&self, journal: Journal) {
        self.lock_state().nat.keep_journal(journal);
    }

    /// Goes on with a flow of a host before this one, if that is possible
    /// ([`ip::nat::Nat::resume`]): its place.
    pub fn resume_flow(
        &self,
        noted: &NotedFlow,
        is_there: impl Fn(Ipv4Addr) -> bool,
    ) -> Option<u32> {
        let now = self.now();
        self.lock_state().nat.resume(now, noted, is_there)
    }

    /// The number of flows, and what has happened with them.
    #[must_use]
    pub fn nat_counts(&self) -> (usize, Counts) {
        let state = self.lock_state();
        (state.nat.flows(), state.nat.counts())
    }
}
