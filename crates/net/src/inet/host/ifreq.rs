//! Changes of interfaces as `ioctl(2)` asks for them (`netdevice(7)`): of the first address.

use core::net::{IpAddr, Ipv4Addr};

use abi::errno::Errno;
use fs::Result;
use ip::route::{Prefix, netmask_len};
use linux_raw_sys::net::net_device_flags::{IFF_BROADCAST, IFF_PROMISC, IFF_UP};

use super::Host;
use crate::socket::{AddressLife, Interface, InterfaceAddress, InterfaceChange};

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
    }
}

impl Host {
    /// Changes an interface.
    ///
    /// # Errors
    /// `ENODEV`, `EOPNOTSUPP` of the loop, `EINVAL`, `EADDRNOTAVAIL` of one without an address, and
    /// those of the change.
    pub(super) fn change(&self, index: u32, change: &InterfaceChange<'_>) -> Result<()> {
        let interface = self.interface(index).ok_or(Errno::EOPNOTSUPP)?;
        let first = interface.first_ipv4();
        match *change {
            InterfaceChange::Flags(flags) => {
                self.set_promiscuous(index, flags & IFF_PROMISC as u32 != 0)?;
                self.set_up(index, flags & IFF_UP as u32 != 0)
            }
            InterfaceChange::Mtu(mtu) => self.set_mtu(index, mtu),
            InterfaceChange::QueueLen(queue_len) => self.set_queue_len(index, queue_len),
            InterfaceChange::HardwareAddress(address) => self.set_hardware_address(index, address),
            InterfaceChange::Name(name) => self.rename(index, name),
            InterfaceChange::Address(ip) => {
                if !ip.is_unspecified() && class_prefix_len(ip) == 32 {
                    return Err(Errno::EINVAL);
                }
                if let Some((old, known)) = first {
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
                self.add_address(index, address(&interface, ip, prefix_len), false)
            }
            InterfaceChange::Netmask(mask) => {
                let (ip, known) = first.ok_or(Errno::EADDRNOTAVAIL)?;
                let prefix_len = netmask_len(mask).ok_or(Errno::EINVAL)?;
                self.replace_address(index, known, address(&interface, ip, prefix_len))
            }
            InterfaceChange::Broadcast(broadcast) => {
                let (_, known) = first.ok_or(Errno::EADDRNOTAVAIL)?;
                let new = InterfaceAddress {
                    broadcast: Some(broadcast),
                    ..*known
                };
                self.replace_address(index, known, new)
            }
            InterfaceChange::Peer(peer) => {
                let (ip, known) = first.ok_or(Errno::EADDRNOTAVAIL)?;
                let new = InterfaceAddress {
                    peer: Some(peer).filter(|peer| *peer != ip),
                    prefix_len: 32,
                    ..*known
                };
                self.replace_address(index, known, new)
            }
        }
    }

    fn replace_address(
        &self,
        index: u32,
        old: &InterfaceAddress,
        new: InterfaceAddress,
    ) -> Result<()> {
        if let IpAddr::V4(ip) = old.ip {
            self.remove_address(index, ip, Some(old.prefix_len))?;
        }
        self.add_address(index, new, false)
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
