//! Taps: who sees the packets of interfaces.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};

use task::Mutex;

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

/// The taps of a network stack.
#[derive(Default)]
pub(crate) struct PacketTaps {
    taps: Mutex<Vec<Weak<dyn PacketTap>>>,
    /// The number of taps: what is sent pays a load while there is none.
    count: AtomicUsize,
}

impl PacketTaps {
    /// Whether there is any tap.
    pub(crate) fn any(&self) -> bool {
        self.count.load(Ordering::Acquire) != 0
    }

    pub(crate) fn add(&self, tap: Weak<dyn PacketTap>) {
        self.taps.lock().push(tap);
        self.count.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn remove(&self, tap: &Weak<dyn PacketTap>) {
        self.taps.lock().retain(|known| !known.ptr_eq(tap));
        census::released(self.count.fetch_sub(1, Ordering::AcqRel), 1);
    }

    /// Shows taps a packet that goes over an interface, out and in again: each sees it twice,
    /// `sender` only coming in.
    pub(crate) fn deliver(
        &self,
        frame: &[u8],
        interface: &Interface,
        sender: Option<&Weak<dyn PacketTap>>,
    ) {
        let taps = self.open_taps();
        for packet_type in [PACKET_OUTGOING, PACKET_HOST] {
            for (tap, socket) in &taps {
                if packet_type == PACKET_HOST || !sender.is_some_and(|sender| sender.ptr_eq(tap)) {
                    socket.receive_frame(frame, interface, packet_type);
                }
            }
        }
    }

    /// Shows taps, but for the sender's, a packet that goes over an interface in one direction.
    pub(crate) fn deliver_one_way(
        &self,
        frame: &[u8],
        interface: &Interface,
        packet_type: u8,
        sender: Option<&Weak<dyn PacketTap>>,
    ) {
        for (tap, socket) in self.open_taps() {
            if !sender.is_some_and(|sender| sender.ptr_eq(&tap)) {
                socket.receive_frame(frame, interface, packet_type);
            }
        }
    }

    fn open_taps(&self) -> Vec<(Weak<dyn PacketTap>, Arc<dyn PacketTap>)> {
        let taps = self.taps.lock();
        let open = taps.iter();
        open.filter_map(|tap| Some((tap.clone(), tap.upgrade()?)))
            .collect()
    }
}
