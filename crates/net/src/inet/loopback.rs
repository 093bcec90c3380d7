//! The loop: the network that every instance has, and that reaches nobody else. It carries no
//! packets: a connection is a pair of queues, a datagram goes into its receiver's queue at once.

use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use abi::errno::Errno;
use fs::Result;
use linux_raw_sys::net;

use super::datagram::Datagram;
use super::frame;
use super::network::{Network, Route};
use super::stack::InetStack;
use super::tcp::ConnectRequest;
use crate::socket::{AddressLife, Interface, InterfaceAddress, InterfaceName, Interfaces, Traffic};

/// The scope of addresses that are known on this host only.
const RT_SCOPE_HOST: u8 = 254;

/// The loopback network: the instance itself, and nobody else.
pub struct Loopback;

impl Loopback {
    /// The number of its interface.
    pub const INDEX: u32 = 1;
    const MTU: u32 = 65_536;
    /// The longest packet of IP that goes over it.
    pub(super) const PATH_MTU: u32 = 65_535;
    const LOOPBACK: u16 = 772;

    /// The name of its interface.
    pub(crate) fn name() -> InterfaceName {
        InterfaceName::new("lo").unwrap_or_else(|| unreachable!("two letters are a name"))
    }
}

impl Interfaces for Loopback {
    fn interfaces(&self) -> Vec<Interface> {
        let own = |ip, prefix_len| InterfaceAddress {
            ip,
            prefix_len,
            peer: None,
            broadcast: None,
            scope: RT_SCOPE_HOST,
            life: AddressLife::default(),
            label: None,
        };
        vec![Interface {
            index: Self::INDEX,
            name: Self::name(),
            flags: net::net_device_flags::IFF_UP as u32
                | net::net_device_flags::IFF_LOOPBACK as u32
                | net::net_device_flags::IFF_RUNNING as u32
                | net::net_device_flags::IFF_LOWER_UP as u32,
            hardware_type: Self::LOOPBACK,
            mtu: Self::MTU,
            queue_len: 1000,
            hardware_address: Some([0; 6]),
            addresses: Arc::new(vec![
                own(Ipv4Addr::LOCALHOST.into(), 8),
                own(Ipv6Addr::LOCALHOST.into(), 128),
            ]),
            received: Traffic::default(),
            sent: Traffic::default(),
        }]
    }
}

impl Network for Loopback {
    fn route(&self, to: IpAddr, via: u32) -> Result<Route> {
        // All of 127.0.0.0/8 is this host; to its own addresses it speaks from the same one, as
        // Linux does.
        let source = match to {
            IpAddr::V4(ip) if ip.is_loopback() => to,
            IpAddr::V6(Ipv6Addr::LOCALHOST) => to,
            // A group that is looked for here.
            IpAddr::V6(ip) if ip.is_multicast() && via == Self::INDEX => Ipv6Addr::LOCALHOST.into(),
            _ => return Err(Errno::ENETUNREACH),
        };
        Ok(Route {
            interface_index: Self::INDEX,
            source,
            local: true,
            broadcast: false,
            mtu: Self::PATH_MTU,
        })
    }

    fn connect(&self, stack: &InetStack, request: ConnectRequest) {
        stack.handle_connect_request(request);
    }

    fn transmit(&self, stack: &InetStack, datagram: Datagram) -> Result<()> {
        if stack.core.taps.any() {
            stack
                .core
                .deliver_to_taps(&frame::frame(&datagram), Self::INDEX, None);
        }
        stack.deliver_packet(datagram)
    }

    fn transmit_frame(&self, stack: &InetStack, index: u32, frame: Vec<u8>) -> Result<()> {
        // As on Linux: of IPv4 the loop's addresses are not believed to come in from a program.
        if let Some(packet) = frame::parse_frame(&frame, index).filter(|packet| packet.to.is_ipv6())
        {
            // What is for nobody is lost.
            let _ = stack.deliver_packet(packet);
        }
        Ok(())
    }
}
