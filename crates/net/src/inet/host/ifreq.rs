//! Changes of interfaces, routes and neighbours as `ioctl(2)` asks for them (`netdevice(7)`,
//! `route(8)`, `arp(7)`).

use core::net::{IpAddr, Ipv4Addr};

use abi::errno::Errno;
use fs::Result;
use ip::neighbour::{Key, State};
use ip::route::{Filter, Insert, Kind, Prefix, Route, netmask_len};
use linux_raw_sys::net::net_device_flags::{IFF_BROADCAST, IFF_PROMISC, IFF_UP};

use super::Host;
use super::config::{SCOPE_LINK, SCOPE_UNIVERSE};
use crate::socket::{
    AddressChange, AddressLife, ArpEntry, Interface, InterfaceAddress, InterfaceChange,
    InterfaceName, RouteRequest,
};

/// The maker of routes that programs make without saying who they are (`RTPROT_BOOT`).
const BY_BOOT: u8 = 3;

/// Bits of the network's prefix that an address has by its class (Linux `inet_abc_len`).
pub(in crate::inet) fn class_prefix_len(ip: Ipv4Addr) -> u8 {
    match ip.octets()[0] {
        0..128 => 8,
        128..192 => 16,
        192..224 => 24,
        _ => 32,
    }
}

/// The address of an interface of Ethernet with a prefix of so many bits, and its broadcast.
fn address(interface: &Interface, ip: Ipv4Addr, prefix_len: u8) -> InterfaceAddress {
    let network = Prefix::of(ip, prefix_len);
    InterfaceAddress {
        ip: ip.into(),
        prefix_len,
        peer: None,
        broadcast: network
            .filter(|_| interface.has_flag(IFF_BROADCAST))
            .and_then(Prefix::broadcast),
        scope: 0,
        life: AddressLife::default(),
        label: None,
    }
}

impl Host {
    /// Changes an interface.
    ///
    /// # Errors
    /// `ENODEV`, `EOPNOTSUPP` of the loop, `EINVAL`, `EADDRNOTAVAIL` for an address that is not
    /// there, and those of the change.
    pub(super) fn change(&self, index: u32, change: &InterfaceChange<'_>) -> Result<()> {
        let interface = self.interface(index).ok_or(Errno::EOPNOTSUPP)?;
        match *change {
            InterfaceChange::Flags(flags) => {
                self.set_promiscuous(index, flags & IFF_PROMISC as u32 != 0)?;
                self.set_up(index, flags & IFF_UP as u32 != 0)
            }
            InterfaceChange::Mtu(mtu) => self.set_mtu(index, mtu),
            InterfaceChange::QueueLen(queue_len) => self.set_queue_len(index, queue_len),
            InterfaceChange::HardwareAddress(address) => self.set_hardware_address(index, address),
            InterfaceChange::Name(name) => self.rename(index, name),
            InterfaceChange::Address { label, change } => {
                self.change_labelled(&interface, label, change)
            }
        }
    }

    /// Changes the first address of an interface that has a label.
    fn change_labelled(
        &self,
        interface: &Interface,
        label: &str,
        change: AddressChange,
    ) -> Result<()> {
        let index = interface.index;
        let found = interface.labelled(label);
        if let AddressChange::Local(ip) = change {
            if !ip.is_unspecified() && class_prefix_len(ip) == 32 {
                return Err(Errno::EINVAL);
            }
            if let Some((old, known)) = found {
                self.remove_address(index, old, Some(known.prefix_len))?;
            }
            if ip.is_unspecified() {
                return Ok(());
            }
            let prefix_len = if interface.hardware_address.is_some() {
                class_prefix_len(ip)
            } else {
                32
            };
            let own = InterfaceName::new_label(label).ok_or(Errno::EINVAL)?;
            let new = InterfaceAddress {
                label: Some(own).filter(|own| *own != interface.name),
                ..address(interface, ip, prefix_len)
            };
            return self.add_address(index, new, false);
        }
        let (ip, known) = found.ok_or(Errno::EADDRNOTAVAIL)?;
        let new = match change {
            AddressChange::Local(_) | AddressChange::Remove => {
                return self.remove_address(index, ip, Some(known.prefix_len));
            }
            AddressChange::Netmask(mask) => {
                let prefix_len = netmask_len(mask).ok_or(Errno::EINVAL)?;
                InterfaceAddress {
                    label: known.label,
                    ..address(interface, ip, prefix_len)
                }
            }
            AddressChange::Broadcast(broadcast) => InterfaceAddress {
                broadcast: Some(broadcast),
                ..*known
            },
            AddressChange::Peer(peer) => InterfaceAddress {
                peer: Some(peer).filter(|peer| *peer != ip),
                prefix_len: 32,
                ..*known
            },
        };
        self.remove_address(index, ip, Some(known.prefix_len))?;
        self.add_address(index, new, false)
    }

    /// Adds a route, or removes the first one that is such (Linux `rtentry_to_fib_config`).
    ///
    /// # Errors
    /// `ESRCH`, and those of [`Self::add_route`].
    pub(super) fn change_ioctl_route(&self, request: &RouteRequest, is_new: bool) -> Result<()> {
        let destination = Prefix::of(request.to, request.prefix_len).ok_or(Errno::EINVAL)?;
        if destination.address != request.to {
            return Err(Errno::EINVAL);
        }
        let kind = if request.is_reject {
            Kind::Unreachable
        } else {
            Kind::Unicast
        };
        if !is_new {
            let filter = Filter {
                kind: Some(kind),
                interface: request.interface,
                gateway: request.gateway,
                metric: request.metric,
                ..Filter::default()
            };
            return self.remove_route(destination, &filter);
        }
        let route = Route {
            destination,
            kind,
            interface: request.interface.unwrap_or(0),
            gateway: request.gateway,
            source: None,
            metric: request.metric.unwrap_or(0),
            protocol: BY_BOOT,
            scope: match request.gateway {
                None if !request.is_reject => SCOPE_LINK,
                _ => SCOPE_UNIVERSE,
            },
        };
        self.add_route(route, Insert::Exclusive)
    }

    /// The neighbour with an address, by any interface if `interface` is 0.
    pub(super) fn find_arp(&self, ip: Ipv4Addr, interface: u32) -> Option<ArpEntry> {
        let all = self.neighbours().ok()?;
        let found = all.iter().find(|known| {
            known.key.address == IpAddr::V4(ip)
                && (interface == 0 || known.key.interface == interface)
        })?;
        Some(ArpEntry {
            interface: found.key.interface,
            ip,
            hardware: found.hardware,
            is_permanent: found.state == State::Permanent,
        })
    }

    /// Sets a neighbour, or removes it without a hardware address (Linux `arp_req_set`).
    ///
    /// # Errors
    /// `ENXIO` for one that is not known, `EINVAL` for one that is reached by a router, and those
    /// of [`Self::set_neighbour`].
    pub(super) fn change_ioctl_arp(&self, entry: &ArpEntry) -> Result<()> {
        let interface = if entry.interface == 0 {
            let route = self.lookup_route(entry.ip).ok_or(Errno::ENETUNREACH)?;
            if route.gateway.is_some() {
                return Err(Errno::EINVAL);
            }
            route.interface
        } else {
            entry.interface
        };
        let key = Key {
            interface,
            address: entry.ip.into(),
        };
        match entry.hardware {
            Some(hardware) => {
                let state = if entry.is_permanent {
                    State::Permanent
                } else {
                    State::Stale
                };
                self.set_neighbour(key, hardware, state, (true, false))
            }
            None => self.remove_neighbour(key).map_err(|error| match error {
                Errno::ENOENT => Errno::ENXIO,
                other => other,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_those_of_old() {
        let of = |first| class_prefix_len(Ipv4Addr::new(first, 0, 0, 1));
        assert_eq!(
            [10, 127, 128, 191, 192, 223, 224].map(of),
            [8, 8, 16, 16, 24, 24, 32]
        );
    }
}
