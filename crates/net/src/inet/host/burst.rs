//! Frames that have come together.

use alloc::sync::{Arc, Weak};
use core::cell::{Cell, RefCell};

use super::input::Arrived;
use super::link::View;
use super::tcp::Held;
use super::{Host, packet_type};
use crate::inet::frame::{self, ETH_P_IP, ETH_P_IPV6};
use crate::inet::host::state::ETH_P_ARP;
use crate::inet::stack::InetStack;
use crate::socket::tap::{PACKET_MULTICAST, PACKET_OTHERHOST};

/// Frames that an interface has received together, one after the other. What they bring happens as
/// each is taken, in this thread, which holds no lock that sending by the same device takes; but a
/// connection to which several segments in a row have brought the next bytes answers them, and
/// wakes who waits for them, once: at the latest when this is dropped (Linux: generic receive
/// offload).
pub struct Burst<'a> {
    host: &'a Host,
    stack: Option<Arc<InetStack>>,
    /// The interfaces as they were before anything was looked up for any of the frames.
    view: Option<Arc<View>>,
    index: u32,
    held: RefCell<Option<Held>>,
}

impl Host {
    /// Begins to take frames that an interface has received. Who takes them sees the interfaces as
    /// they are now.
    pub fn burst(&self, index: u32) -> Burst<'_> {
        Burst {
            host: self,
            stack: self.stack.get().and_then(Weak::upgrade),
            view: self.view(),
            index,
            held: RefCell::default(),
        }
    }

    /// Takes a frame that an interface has received by itself, as [`Burst::receive`].
    pub fn receive(&self, index: u32, frame: &[u8]) {
        self.burst(index).receive(frame);
    }
}

impl Burst<'_> {
    /// Takes a frame, with its link's header.
    pub fn receive(&mut self, frame: &[u8]) {
        let (Some(stack), Some(view)) = (&self.stack, &self.view) else {
            return;
        };
        let Some(seen) = view.get(self.index) else {
            return;
        };
        let interface = &seen.shown;
        let counts = &seen.card.received;
        if !seen.is_up {
            return counts.count_dropped();
        }
        if frame.len() < interface.link_header_len() || frame.is_empty() {
            return counts.count_error();
        }
        let packet_type = packet_type(frame, interface);
        counts.count(frame.len(), packet_type == PACKET_MULTICAST);
        if stack.core.taps.any() {
            let taps = &stack.core.taps;
            taps.deliver_one_way(frame, interface, packet_type, None);
        }
        if packet_type == PACKET_OTHERHOST {
            return;
        }
        let packet = &frame[interface.link_header_len()..];
        let arrived = Arrived {
            interface,
            packet_type,
            view,
            held: &self.held,
            place: Cell::new(None),
        };
        let host = self.host;
        match frame::protocol(frame, interface) {
            ETH_P_ARP => host.receive_arp(interface, packet, packet_type),
            ETH_P_IP => host.receive_ipv4(stack, &arrived, packet),
            ETH_P_IPV6 => host.receive_ipv6(stack, &arrived, packet),
            _ => {}
        }
    }
}
