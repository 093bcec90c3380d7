//! Segments over IPv6.

use alloc::sync::Weak;
use core::net::{Ipv6Addr, SocketAddr};

use abi::errno::Errno;
use ip::v6::Header;

use super::super::Host;
use super::super::state::Work;
use super::super::v6::OutgoingV6;
use super::{Path, Unsent};
use crate::inet::datagram::PathMtuDiscovery;
use crate::inet::ip::TCP;

impl Host {
    /// Sends a segment that has its checksum, in two parts. One that finds no way, or no room, is
    /// lost, as on a wire.
    ///
    /// # Errors
    /// [`Unsent`].
    pub(super) fn send_segment_v6(
        &self,
        (source, destination): (Ipv6Addr, Ipv6Addr),
        path: Path,
        payload: [&[u8]; 2],
        work: &mut Work,
    ) -> core::result::Result<(), Unsent> {
        let now = self.now();
        let mut packet = OutgoingV6 {
            interface: 0,
            header: Header {
                traffic_class: path.traffic_class,
                flow_label: 0,
                hop_limit: path.hop_limit,
                source,
                destination,
            },
            protocol: TCP,
            payload,
            discovery: PathMtuDiscovery::Always,
        };
        if let Some(stack) = self.stack.get().and_then(Weak::upgrade)
            && let Some(way) = self.way(now, destination.into(), path.via)
        {
            packet.interface = way.route.interface_index;
            if self
                .send_by_v6(&stack, &way, &packet, None, path.place)
                .is_some()
            {
                return Ok(());
            }
        }
        let mut state = self.lock_state();
        // Without a route, or the address that it comes from, it may be sent again before the end.
        let Ok(route) = state.route_v6(now, destination, path.via) else {
            return Ok(());
        };
        if route.local || !state.is_here_v6(source, route.interface_index) {
            return Ok(());
        }
        packet.interface = route.interface_index;
        let result = state.send_v6(now, &packet, work);
        state.settle_v6(work);
        let due = state.deadline();
        let way = match &result {
            Ok(()) => state.way_to_v6(now, destination, path.via),
            Err(_) => None,
        };
        drop(state);
        self.remember(now, way);
        self.wake_by(due);
        self.send_frames(work);
        match result {
            Err(Errno::EMSGSIZE) => {
                let mtu = u16::try_from(route.mtu).unwrap_or(u16::MAX);
                Err(Unsent::TooLong(mtu))
            }
            _ => Ok(()),
        }
    }

    /// The longest packet to an address by an interface, as far as the link tells.
    pub(super) fn link_mtu(&self, index: u32, to: SocketAddr) -> Option<u32> {
        Some(self.view()?.get(index)?.mtu(to))
    }
}
