//! The loop: the network that every instance has, and that reaches nobody else. It carries no
//! packets: a connection is a pair of queues, a datagram goes into its receiver's queue at once.

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
use crate::socket::{Interface, Interfaces};

/// The loopback network: the instance itself, and nobody else.
pub struct Loopback;

impl Loopback {
    /// The number of its interface.
    pub const INDEX: u32 = 1;
    const MTU: u32 = 65_536;
    const LOOPBACK: u16 = 772;
}

impl Interfaces for Loopback {
    fn interfaces(&self) -> Vec<Interface> {
        vec![Interface {
            index: Self::INDEX,
            name: "lo",
            flags: net::net_device_flags::IFF_UP as u32
                | net::net_device_flags::IFF_LOOPBACK as u32
                | net::net_device_flags::IFF_RUNNING as u32
                | net::net_device_flags::IFF_LOWER_UP as u32,
            hardware_type: Self::LOOPBACK,
            mtu: Self::MTU,
            hardware_address: [0; 6],
            addresses: vec![
                (Ipv4Addr::LOCALHOST.into(), 8),
                (Ipv6Addr::LOCALHOST.into(), 128),
            ],
        }]
    }
}

impl Network for Loopback {
    fn route(&self, to: IpAddr) -> Result<Route> {
        match to {
            // All of 127.0.0.0/8 is this host; to its own addresses it speaks from the same one, as
            // Linux does.
            IpAddr::V4(ip) if ip.is_loopback() => Ok(Route {
                interface_index: Self::INDEX,
                source: to,
                local: true,
            }),
            IpAddr::V6(Ipv6Addr::LOCALHOST) => Ok(Route {
                interface_index: Self::INDEX,
                source: to,
                local: true,
            }),
            _ => Err(Errno::ENETUNREACH),
        }
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
}
