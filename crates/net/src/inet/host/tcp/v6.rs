//! Segments over IPv6.

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
        let mut state = self.state.lock();
        // Without a route, or the address that it comes from, it may be sent again before the end.
        let Ok(route) = state.route_v6(now, destination, path.via) else {
            return Ok(());
        };
        if route.local || !state.is_here_v6(source, route.interface_index) {
            return Ok(());
        }
        let packet = OutgoingV6 {
            interface: route.interface_index,
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
        let result = state.send_v6(now, &packet, work);
        state.settle_v6(work);
        let due = state.deadline();
        drop(state);
        self.wake_by(due);
        self.send_frames(&mut work.frames);
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
        let state = self.state.lock();
        let interface = state.interfaces.get(index)?;
        Some(match to {
            SocketAddr::V4(_) => interface.shown.mtu,
            SocketAddr::V6(_) => interface.v6_mtu(),
        })
    }
}
