//! Network interfaces, as whatever lists them sees them.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt::{self, Debug, Display, Formatter};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::ops::Deref;

use abi::errno::Errno;
use fs::Result;
use ip::route::Prefix;

use super::device::DeviceDetails;

/// Bytes of an interface's name with its end (`IFNAMSIZ`).
pub(crate) const IFNAMSIZ: usize = 16;

/// The name of an interface: 1 to 15 bytes of UTF-8.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct InterfaceName {
    bytes: [u8; IFNAMSIZ - 1],
    len: u8,
}

impl InterfaceName {
    /// A name; `None` if it is empty, too long, `.` or `..`, or has a slash, a colon or a space in
    /// it (Linux `dev_valid_name`).
    #[must_use]
    pub fn new(name: &str) -> Option<Self> {
        Self::new_label(name).filter(|name| !name.contains(':'))
    }

    /// A name, or one with a colon, which addresses have for their labels.
    #[must_use]
    pub fn new_label(name: &str) -> Option<Self> {
        let is_bad = |c: char| c == '/' || c.is_whitespace();
        if name.is_empty() || name == "." || name == ".." || name.contains(is_bad) {
            return None;
        }
        let mut bytes = [0; IFNAMSIZ - 1];
        bytes
            .get_mut(..name.len())?
            .copy_from_slice(name.as_bytes());
        Some(Self {
            bytes,
            len: name.len() as u8,
        })
    }

    /// The label that this one becomes when its interface gets a name; `None` if that and what
    /// stands behind the colon are too long for one.
    pub(crate) fn after(&self, name: &Self) -> Option<Self> {
        let (_, number) = self.split_once(':')?;
        let parts = [name.as_bytes(), b":", number.as_bytes()];
        let mut label = Self {
            bytes: [0; IFNAMSIZ - 1],
            len: 0,
        };
        for byte in parts.into_iter().flatten() {
            *label.bytes.get_mut(usize::from(label.len))? = *byte;
            label.len += 1;
        }
        Some(label)
    }
}

impl Deref for InterfaceName {
    type Target = str;

    fn deref(&self) -> &str {
        core::str::from_utf8(&self.bytes[..usize::from(self.len)]).unwrap_or_default()
    }
}

impl Display for InterfaceName {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.pad(self)
    }
}

impl Debug for InterfaceName {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        Debug::fmt(&**self, f)
    }
}

/// An address of an interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InterfaceAddress {
    /// The address.
    pub ip: IpAddr,
    /// Bits of the prefix of its network.
    pub prefix_len: u8,
    /// The address of the other end, which the network is of, if the link has only two.
    pub peer: Option<Ipv4Addr>,
    /// The address of everybody in the network, if it was set.
    pub broadcast: Option<Ipv4Addr>,
    /// Scope in which the address is known (`RT_SCOPE_*`).
    pub scope: u8,
    /// How long the address is there.
    pub life: AddressLife,
    /// The name that programs know the address by (`eth0:1`), if that is not the interface's.
    pub label: Option<InterfaceName>,
}

/// Flags of addresses (`IFA_F_*`).
pub mod address_flag {
    /// Another address of the interface has the same network, and came before. Its end is this
    /// one's, too.
    pub const SECONDARY: u32 = 0x01;
    /// Nobody is asked for the address before it is used.
    pub const NO_DAD: u32 = 0x02;
    /// Somebody else has the address.
    pub const DAD_FAILED: u32 = 0x08;
    /// Nothing new comes from the address.
    pub const DEPRECATED: u32 = 0x20;
    /// Others are still asked for the address.
    pub const TENTATIVE: u32 = 0x40;
    /// The address has no end.
    pub const PERMANENT: u32 = 0x80;
    /// The address brings no route to its network.
    pub const NO_PREFIX_ROUTE: u32 = 0x200;
}

/// The time for which an address is there; by default for ever.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AddressLife {
    /// Flags ([`address_flag`]).
    pub flags: u32,
    /// Until when, by the network's clock, what is new comes from it, in nanoseconds.
    pub preferred_until: Option<u64>,
    /// Until when it is valid.
    pub valid_until: Option<u64>,
}

impl Default for AddressLife {
    fn default() -> Self {
        Self {
            flags: address_flag::PERMANENT,
            preferred_until: None,
            valid_until: None,
        }
    }
}

impl AddressLife {
    /// When it changes by itself next.
    pub(crate) fn next_change(&self) -> Option<u64> {
        let is_preferred = self.flags & address_flag::DEPRECATED == 0;
        let ends = [
            self.preferred_until.filter(|_| is_preferred),
            self.valid_until,
        ];
        ends.into_iter().flatten().min()
    }
}

impl InterfaceAddress {
    /// An address of IPv6 that is known everywhere and has no end.
    #[must_use]
    pub fn of_v6(ip: Ipv6Addr, prefix_len: u8) -> Self {
        Self {
            ip: ip.into(),
            prefix_len,
            peer: None,
            broadcast: None,
            scope: 0,
            life: AddressLife::default(),
            label: None,
        }
    }

    /// The address that the network is of.
    pub(crate) fn network_ip(&self) -> IpAddr {
        self.peer.map_or(self.ip, IpAddr::V4)
    }

    /// Whether an address is everybody in the network: the one that was set for that, and, as on
    /// Linux, the last one of the network in any case.
    pub(crate) fn has_broadcast(&self, to: Ipv4Addr) -> bool {
        self.broadcast == Some(to) || self.last_of_network() == Some(to)
    }

    /// The addresses that are everybody in the network, as [`Self::has_broadcast`].
    pub(crate) fn broadcasts(&self) -> impl Iterator<Item = Ipv4Addr> {
        let last = self.last_of_network();
        let set = self.broadcast.filter(|set| last != Some(*set));
        last.into_iter().chain(set)
    }

    fn last_of_network(&self) -> Option<Ipv4Addr> {
        match self.network_ip() {
            IpAddr::V4(ip) => Prefix::of(ip, self.prefix_len).and_then(Prefix::broadcast),
            IpAddr::V6(_) => None,
        }
    }

    /// Whether another address is of the same network of IPv4.
    pub(crate) fn has_same_network(&self, other: &Self) -> bool {
        let network = |one: &Self| match one.network_ip() {
            IpAddr::V4(ip) => Prefix::of(ip, one.prefix_len),
            IpAddr::V6(_) => None,
        };
        network(self).is_some_and(|own| network(other) == Some(own))
    }
}

/// The numbers of packets and bytes that have passed an interface.
#[derive(Clone, Copy, Default, Debug)]
pub struct Traffic {
    /// Packets.
    pub packets: u64,
    /// Bytes, with headers of the link.
    pub bytes: u64,
    /// Packets that were malformed.
    pub errors: u64,
    /// Packets that were lost for want of room, or because the interface is down.
    pub dropped: u64,
    /// Packets to groups, of those received.
    pub multicast: u64,
}

/// The state of a link, as RFC 2863 has them and Linux numbers them (`IF_OPER_*`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OperState {
    /// Nobody tells whether the link is up, which it may be.
    Unknown = 0,
    /// The link is down.
    Down = 2,
    /// The link is up.
    Up = 6,
}

/// A network interface.
#[derive(Clone, Debug)]
pub struct Interface {
    /// The interface's number, from 1 on.
    pub index: u32,
    /// The interface's name.
    pub name: InterfaceName,
    /// `IFF_*`.
    pub flags: u32,
    /// `ARPHRD_*`.
    pub hardware_type: u16,
    /// The largest packet, bytes.
    pub mtu: u32,
    /// Packets that may wait to be sent, where that is limited.
    pub queue_len: u32,
    /// The hardware's address; `None` if frames have no header of the link.
    pub hardware_address: Option<[u8; 6]>,
    /// The interface's addresses, shared by the copies of it that each received frame takes.
    pub addresses: Arc<Vec<InterfaceAddress>>,
    /// Traffic that was received.
    pub received: Traffic,
    /// Traffic that was sent.
    pub sent: Traffic,
}

/// Bytes of an Ethernet header, which the loop's packets have, too.
pub(crate) const ETHERNET_HEADER_LEN: usize = 14;

impl Interface {
    /// The hardware's address, with room behind it as `struct sockaddr_ll` has.
    pub(crate) fn padded_hardware_address(&self) -> [u8; 8] {
        let [a, b, c, d, e, f] = self.hardware_address.unwrap_or_default();
        [a, b, c, d, e, f, 0, 0]
    }

    /// Bytes of the hardware's address.
    pub(crate) fn hardware_len(&self) -> u8 {
        self.hardware_address
            .map_or(0, |address| address.len() as u8)
    }

    /// The hardware's address of everybody; the loop's is none.
    #[must_use]
    pub fn hardware_broadcast(&self) -> [u8; 6] {
        if self.has_flag(linux_raw_sys::net::net_device_flags::IFF_BROADCAST) {
            [0xff; 6]
        } else {
            [0; 6]
        }
    }

    /// Bytes of the link's header in frames.
    pub(crate) fn link_header_len(&self) -> usize {
        self.hardware_address.map_or(0, |_| ETHERNET_HEADER_LEN)
    }

    /// Whether it is up: sends and receives, if its link does.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.has_flag(linux_raw_sys::net::net_device_flags::IFF_UP)
    }

    /// The state of the link (RFC 2863).
    #[must_use]
    pub fn operational_state(&self) -> OperState {
        use linux_raw_sys::net::net_device_flags::{IFF_LOOPBACK, IFF_LOWER_UP};
        let has_driver = !self.has_flag(IFF_LOOPBACK) && self.hardware_address.is_some();
        match (self.is_up(), self.has_flag(IFF_LOWER_UP)) {
            (true, true) if has_driver => OperState::Up,
            (true, true) => OperState::Unknown,
            _ => OperState::Down,
        }
    }

    /// Whether a flag is set.
    pub(crate) fn has_flag(&self, flag: linux_raw_sys::net::net_device_flags) -> bool {
        self.flags & flag as u32 != 0
    }

    /// The addresses of IPv4, which stand before those of IPv6.
    pub(crate) fn v4_addresses(&self) -> impl Iterator<Item = &InterfaceAddress> + Clone {
        let is_v4 = |known: &&InterfaceAddress| known.ip.is_ipv4();
        self.addresses.iter().take_while(is_v4)
    }

    /// The first address of IPv4 that has a label, which without one of its own is the name of the
    /// interface.
    pub(crate) fn labelled(&self, label: &str) -> Option<(Ipv4Addr, &InterfaceAddress)> {
        let mut all = self.v4_addresses();
        let found = all.find(|known| &**known.label.as_ref().unwrap_or(&self.name) == label)?;
        match found.ip {
            IpAddr::V4(ip) => Some((ip, found)),
            IpAddr::V6(_) => None,
        }
    }

    /// The first address of IPv4.
    pub(crate) fn first_ipv4(&self) -> Option<(Ipv4Addr, &InterfaceAddress)> {
        self.addresses.iter().find_map(|known| match known.ip {
            IpAddr::V4(ip) => Some((ip, known)),
            IpAddr::V6(_) => None,
        })
    }
}

/// A change of an interface that a program asks for by `ioctl(2)`.
#[derive(Clone, Copy, Debug)]
pub enum InterfaceChange<'a> {
    /// `IFF_UP` and `IFF_PROMISC` as in these flags; others cannot be changed.
    Flags(u32),
    /// The largest packet, bytes.
    Mtu(u32),
    /// The packets that may wait to be sent.
    QueueLen(u32),
    /// The hardware's address.
    HardwareAddress([u8; 6]),
    /// The name.
    Name(&'a str),
    /// The first address of IPv4 with a label.
    Address {
        /// The label: the interface's name, or one that begins so (`eth0:1`).
        label: &'a str,
        /// The change of that address.
        change: AddressChange,
    },
}

/// A change of an address of IPv4.
#[derive(Clone, Copy, Debug)]
pub enum AddressChange {
    /// The address, with the network of its class; none takes it away. There need not have been
    /// one.
    Local(Ipv4Addr),
    /// The mask of the address' network.
    Netmask(Ipv4Addr),
    /// The address of everybody in the network.
    Broadcast(Ipv4Addr),
    /// The address of the other end.
    Peer(Ipv4Addr),
    /// Takes it away.
    Remove,
}

/// A route of IPv4 that a program asks for by `ioctl(2)`.
#[derive(Clone, Copy, Debug)]
pub struct RouteRequest {
    /// The destination.
    pub to: Ipv4Addr,
    /// Bits of the destination that count.
    pub prefix_len: u8,
    /// The next hop, if that is not the destination.
    pub gateway: Option<Ipv4Addr>,
    /// Number of the interface, if one is named.
    pub interface: Option<u32>,
    /// The metric, if one is given.
    pub metric: Option<u32>,
    /// Whether packets are refused.
    pub is_reject: bool,
}

/// A neighbour that a program sets or asks for by `ioctl(2)`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ArpEntry {
    /// Number of the interface.
    pub interface: u32,
    /// The address.
    pub ip: Ipv4Addr,
    /// The hardware's address, once it is known.
    pub hardware: Option<[u8; 6]>,
    /// Whether it stays until it is removed.
    pub is_permanent: bool,
}

/// The interfaces of a network.
pub trait Interfaces: Send + Sync {
    /// The interfaces, in the order of their numbers.
    fn interfaces(&self) -> Vec<Interface>;

    /// Changes an interface.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for what cannot be changed, and those of the change.
    fn change_interface(&self, index: u32, change: &InterfaceChange<'_>) -> Result<()> {
        let _ = (index, change);
        Err(Errno::EOPNOTSUPP)
    }

    /// The details that the driver of an interface tells of its device.
    fn device(&self, index: u32) -> DeviceDetails {
        let _ = index;
        DeviceDetails::default()
    }

    /// Adds a route, or removes the first one that is such.
    ///
    /// # Errors
    /// `EOPNOTSUPP` where routes cannot be changed, and those of the change.
    fn change_route(&self, request: &RouteRequest, is_new: bool) -> Result<()> {
        let _ = (request, is_new);
        Err(Errno::EOPNOTSUPP)
    }

    /// The neighbour with an address, by any interface if `interface` is 0.
    fn arp_entry(&self, ip: Ipv4Addr, interface: u32) -> Option<ArpEntry> {
        let _ = (ip, interface);
        None
    }

    /// Sets a neighbour by an interface, or by the one that leads to it if that is 0; without a
    /// hardware address it is removed.
    ///
    /// # Errors
    /// `EOPNOTSUPP` where there are none, `ENXIO` for one that is not known, and those of the
    /// change.
    fn change_arp(&self, entry: &ArpEntry) -> Result<()> {
        let _ = entry;
        Err(Errno::EOPNOTSUPP)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_linux_takes() {
        for good in ["lo", "eth0", "a", "fifteen-letters", "%d"] {
            assert_eq!(&*InterfaceName::new(good).unwrap(), good);
        }
        for bad in [
            "",
            ".",
            "..",
            "a/b",
            "a:b",
            "a b",
            "a\t",
            "sixteen-letters-",
        ] {
            assert_eq!(InterfaceName::new(bad), None, "{bad}");
        }
        assert!(InterfaceName::new_label("eth0:1").is_some());
        assert_eq!(
            std::format!("{:>4}", InterfaceName::new("lo").unwrap()),
            "  lo"
        );
    }

    #[test]
    fn a_label_follows_its_interface() {
        let name = |text| InterfaceName::new_label(text).unwrap();
        let after = |label, new| name(label).after(&name(new));
        assert_eq!(after("eth0:1", "wan"), Some(name("wan:1")));
        assert_eq!(after("eth0:backup", "a-long-name"), None);
        assert_eq!(after("other", "wan"), None);
    }
}
