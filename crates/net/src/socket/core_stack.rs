//! The part of a network stack that the sockets of all families share.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::net::Ipv4Addr;

use fs::Result;

use super::device::DeviceDetails;
use super::interface::{ArpEntry, Interface, InterfaceChange, Interfaces, RouteRequest};
use super::memory::{ProtocolMemory, Transport};
use super::sysctl::Sysctls;
use super::tap::{PacketTap, PacketTaps};

/// The state that sockets of all families of a stack share: interfaces, sysctls, taps.
pub struct CoreStack {
    interfaces: Arc<dyn Interfaces>,
    /// The values below `/proc/sys/net`.
    pub sysctls: Sysctls,
    pub(crate) taps: PacketTaps,
    tcp_memory: ProtocolMemory,
    udp_memory: ProtocolMemory,
}

impl CoreStack {
    pub(crate) fn new(interfaces: Arc<dyn Interfaces>) -> Arc<Self> {
        Arc::new(Self {
            interfaces,
            sysctls: Sysctls::new(),
            taps: PacketTaps::default(),
            tcp_memory: ProtocolMemory::default(),
            udp_memory: ProtocolMemory::default(),
        })
    }

    /// The memory of all sockets of a protocol.
    pub(crate) fn memory(&self, protocol: Transport) -> &ProtocolMemory {
        match protocol {
            Transport::Tcp => &self.tcp_memory,
            Transport::Udp => &self.udp_memory,
        }
    }

    /// The interfaces, in the order of their numbers.
    pub(crate) fn interfaces(&self) -> Vec<Interface> {
        self.interfaces.interfaces()
    }

    /// Changes an interface.
    ///
    /// # Errors
    /// Those of [`Interfaces::change_interface`].
    pub(super) fn change_interface(&self, index: u32, change: &InterfaceChange<'_>) -> Result<()> {
        self.interfaces.change_interface(index, change)
    }

    /// The details that the driver of an interface tells of its device.
    pub(crate) fn device(&self, index: u32) -> DeviceDetails {
        self.interfaces.device(index)
    }

    /// Adds or removes a route, as [`Interfaces::change_route`].
    pub(super) fn change_route(&self, request: &RouteRequest, is_new: bool) -> Result<()> {
        self.interfaces.change_route(request, is_new)
    }

    /// A neighbour, as [`Interfaces::arp_entry`].
    pub(super) fn arp_entry(&self, ip: Ipv4Addr, interface: u32) -> Option<ArpEntry> {
        self.interfaces.arp_entry(ip, interface)
    }

    /// Sets or removes a neighbour, as [`Interfaces::change_arp`].
    pub(super) fn change_arp(&self, entry: &ArpEntry) -> Result<()> {
        self.interfaces.change_arp(entry)
    }

    /// The first interface that `is_it` says yes to.
    pub(crate) fn find_interface(&self, is_it: impl Fn(&Interface) -> bool) -> Option<Interface> {
        self.interfaces().into_iter().find(is_it)
    }

    /// Shows taps a packet that goes over the interface with a number, as
    /// [`PacketTaps::deliver`].
    pub(crate) fn deliver_to_taps(
        &self,
        frame: &[u8],
        interface_index: u32,
        sender: Option<&Weak<dyn PacketTap>>,
    ) {
        if let Some(interface) = self.find_interface(|known| known.index == interface_index) {
            self.taps.deliver(frame, &interface, sender);
        }
    }
}

#[cfg(test)]
impl CoreStack {
    /// A stack whose only interface is a loop without addresses.
    pub(crate) fn for_tests() -> Arc<Self> {
        use super::interface::{InterfaceName, Traffic};
        struct Lo;
        impl Interfaces for Lo {
            fn interfaces(&self) -> Vec<Interface> {
                alloc::vec![Interface {
                    index: 1,
                    name: InterfaceName::new("lo").expect("a name"),
                    flags: 0,
                    hardware_type: 0,
                    mtu: 65_536,
                    queue_len: 0,
                    hardware_address: Some([0; 6]),
                    addresses: Arc::default(),
                    received: Traffic::default(),
                    sent: Traffic::default(),
                }]
            }
        }
        Self::new(Arc::new(Lo))
    }
}
