//! Taps: who sees the packets of interfaces.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use fs::Result;
use task::{Mutex, RcuArc};

use super::interface::Interface;

/// The direction of a packet: to this host.
pub(crate) const PACKET_HOST: u8 = 0;
/// Directions of packets on a link: to everybody, to a group, to another host.
pub(crate) const PACKET_BROADCAST: u8 = 1;
pub(crate) const PACKET_MULTICAST: u8 = 2;
pub(crate) const PACKET_OTHERHOST: u8 = 3;
/// The direction of a packet: away from this host.
pub(crate) const PACKET_OUTGOING: u8 = 4;

/// A socket that sees the packets of interfaces.
pub(crate) trait PacketTap: Send + Sync {
    /// Takes a packet with its link's header; `packet_type` is its direction (`PACKET_*`).
    fn receive_frame(&self, frame: &[u8], interface: &Interface, packet_type: u8);
}

/// The interface whose packets a tap sees; shared by the tap, which changes it, and the list of
/// taps, so that those of other interfaces cost a comparison.
#[derive(Clone)]
pub(crate) struct TapScope(Arc<AtomicU32>);

impl TapScope {
    /// The scope of a tap that sees all interfaces.
    pub(crate) fn all() -> Self {
        Self(Arc::new(AtomicU32::new(0)))
    }

    /// Has the tap see one interface by its number; 0: all. A packet that passes meanwhile is seen
    /// by the old or by the new one.
    pub(crate) fn set(&self, interface: u32) {
        self.0.store(interface, Ordering::Relaxed);
    }

    /// Whether an interface is one of those.
    pub(crate) fn covers(&self, interface: u32) -> bool {
        let scope = self.0.load(Ordering::Relaxed);
        scope == 0 || scope == interface
    }
}

/// A tap in the list.
#[derive(Clone)]
struct KnownTap {
    scope: TapScope,
    tap: Weak<dyn PacketTap>,
}

/// The taps of a network stack.
pub(crate) struct PacketTaps {
    /// The list as packets see it, which is made anew by who holds `changes`. One that has gone may
    /// stay in it.
    taps: RcuArc<Vec<KnownTap>>,
    changes: Mutex<()>,
    /// The number of taps: what is sent pays a load while there is none.
    count: AtomicUsize,
}

impl Default for PacketTaps {
    fn default() -> Self {
        Self {
            taps: RcuArc::empty(),
            changes: Mutex::default(),
            count: AtomicUsize::new(0),
        }
    }
}

impl PacketTaps {
    /// Whether there is any tap.
    pub(crate) fn any(&self) -> bool {
        self.count.load(Ordering::Acquire) != 0
    }

    /// Adds a tap.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub(crate) fn add(&self, tap: Weak<dyn PacketTap>, scope: TapScope) -> Result<()> {
        let changes = self.changes.lock();
        let mut all = self.others(None)?;
        fallible::push(&mut all, KnownTap { scope, tap })?;
        let old = self.taps.swap(Some(Arc::new(all)));
        drop(changes);
        drop(old);
        self.count.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    /// Takes a tap away that was added, and has gone or is about to go. Without memory it stays in
    /// the list until that changes.
    pub(crate) fn remove(&self, tap: &Weak<dyn PacketTap>) {
        let changes = self.changes.lock();
        let rest = self.others(Some(tap));
        let old = rest.ok().map(|rest| {
            let rest = Some(rest).filter(|rest| !rest.is_empty());
            self.taps.swap(rest.map(Arc::new))
        });
        drop(changes);
        drop(old);
        census::released(self.count.fetch_sub(1, Ordering::AcqRel), 1);
    }

    /// A list of all taps that are there, but for one.
    fn others(&self, one: Option<&Weak<dyn PacketTap>>) -> Result<Vec<KnownTap>> {
        let mut all = Vec::new();
        for known in self.taps.load().iter().flat_map(|taps| taps.iter()) {
            if known.tap.strong_count() > 0 && !one.is_some_and(|one| one.ptr_eq(&known.tap)) {
                fallible::push(&mut all, known.clone())?;
            }
        }
        Ok(all)
    }

    /// Shows taps a packet that goes over an interface, out and in again: each sees it twice,
    /// `sender` only coming in.
    pub(crate) fn deliver(
        &self,
        frame: &[u8],
        interface: &Interface,
        sender: Option<&Weak<dyn PacketTap>>,
    ) {
        self.deliver_one_way(frame, interface, PACKET_OUTGOING, sender);
        self.deliver_one_way(frame, interface, PACKET_HOST, None);
    }

    /// Shows taps, but for the sender's, a packet that goes over an interface in one direction.
    pub(crate) fn deliver_one_way(
        &self,
        frame: &[u8],
        interface: &Interface,
        packet_type: u8,
        sender: Option<&Weak<dyn PacketTap>>,
    ) {
        let Some(taps) = self.taps.load() else { return };
        for known in taps.iter().filter(|one| one.scope.covers(interface.index)) {
            if !sender.is_some_and(|sender| sender.ptr_eq(&known.tap))
                && let Some(socket) = known.tap.upgrade()
            {
                socket.receive_frame(frame, interface, packet_type);
            }
        }
    }
}
