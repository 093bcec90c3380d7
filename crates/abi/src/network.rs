//! Network of an instance (`docs/instance-networks.md`): addresses, and the pages that the
//! instance shares with its supervisor.
//!
//! The pages are a page of registers, each written by one side, and an area that holds two
//! virtqueues with their buffers. All of it is atomics, and neither side believes what it reads.

use core::mem::{offset_of, size_of};
use core::net::Ipv4Addr;
use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};

/// Name of the network that there always is.
pub const BRIDGE: &str = "bridge";

/// Addresses of a network of instances: those that begin with the same bits as the supervisor's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subnet {
    gateway: Ipv4Addr,
    prefix_len: u8,
}

impl Subnet {
    /// Addresses of the network that there always is.
    pub const BRIDGE: Self = Self {
        gateway: Ipv4Addr::new(10, 88, 0, 1),
        prefix_len: 16,
    };

    /// The network in which the supervisor has an address, with so many bits in common; `None` if
    /// instances cannot have such a network: it is larger than a /8 or smaller than a /30, the
    /// address is the first or the last one of it, or its addresses are not those of hosts, or of
    /// this link alone (169.254.0.0/16).
    #[must_use]
    pub const fn new(gateway: Ipv4Addr, prefix_len: u8) -> Option<Self> {
        if prefix_len < 8 || prefix_len > 30 {
            return None;
        }
        let subnet = Self {
            gateway,
            prefix_len,
        };
        let [first, second, ..] = gateway.octets();
        let is_hosts = first != 0 && first != 127 && first < 224;
        let is_links = first == 169 && (second == 254 || prefix_len < 16);
        let is_possible = is_hosts && !is_links && subnet.is_hosts(gateway);
        if is_possible { Some(subnet) } else { None }
    }

    /// The supervisor's address.
    #[must_use]
    pub const fn gateway(self) -> Ipv4Addr {
        self.gateway
    }

    /// Bits that all addresses have.
    #[must_use]
    pub const fn prefix_len(self) -> u8 {
        self.prefix_len
    }

    const fn host_mask(self) -> u32 {
        u32::MAX >> self.prefix_len
    }

    /// The mask of those bits.
    #[must_use]
    pub const fn mask(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(!self.host_mask())
    }

    /// The address of the network itself: the first one.
    #[must_use]
    pub const fn network(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.gateway.to_bits() & !self.host_mask())
    }

    /// The address with a number, from 0 for the first one on; of numbers beyond the last one it is
    /// any.
    #[must_use]
    pub const fn address(self, number: u32) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.network().to_bits() | number & self.host_mask())
    }

    /// Whether an address is one of the network's.
    #[must_use]
    pub const fn contains(self, address: Ipv4Addr) -> bool {
        (address.to_bits() ^ self.gateway.to_bits()) & !self.host_mask() == 0
    }

    const fn is_hosts(self, address: Ipv4Addr) -> bool {
        let host = address.to_bits() & self.host_mask();
        self.contains(address) && host != 0 && host != self.host_mask()
    }

    /// Whether an instance may have an address: one of the network that is neither the supervisor's
    /// nor that of the network or of everybody.
    #[must_use]
    pub const fn is_assignable(self, address: Ipv4Addr) -> bool {
        self.is_hosts(address) && address.to_bits() != self.gateway.to_bits()
    }

    /// Whether an address is in both networks.
    #[must_use]
    pub const fn overlaps(self, other: Self) -> bool {
        self.contains(other.network()) || other.contains(self.network())
    }
}

/// Bytes of a packet, at most.
pub const MTU: u16 = 1500;

/// Hardware address of who has an address in the network: locally administered, and as unique as
/// that one.
#[must_use]
pub const fn mac_of(address: Ipv4Addr) -> [u8; 6] {
    let [a, b, c, d] = address.octets();
    [0x02, 0x73, a, b, c, d]
}

/// Queues of a card: received frames, frames to send.
pub const QUEUES: usize = 2;
/// Descriptors of a queue, at most.
pub const QUEUE_SIZE: u16 = 128;

/// Reason of an interrupt: something was used in a queue that asked for being told.
pub const INTERRUPT_QUEUES: u32 = 1;
/// Reason of an interrupt: status or configuration have changed.
pub const INTERRUPT_CONFIG: u32 = 2;

/// Registers that the supervisor writes.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct DeviceRegisters {
    /// Features that the card offers, by bit.
    pub features: AtomicU64,
    /// Counts up with each change of the configuration.
    pub generation: AtomicU32,
    /// Status bits of virtio that are the device's to set.
    pub status: AtomicU32,
    /// The last request for a reset ([`DriverRegisters::resets`]) that was done.
    pub resets_done: AtomicU32,
    /// `INTERRUPT_*` that were not seen yet. The instance takes them.
    pub interrupts: AtomicU32,
    /// Configuration of the card, as virtio has it.
    pub config: [AtomicU8; 12],
}

/// Place of a queue, as the instance says.
#[derive(Debug, Default)]
#[repr(C)]
pub struct QueueRegisters {
    /// Offset of the table of descriptors in the area.
    pub descriptors: AtomicU64,
    /// Offset of the driver's part.
    pub driver: AtomicU64,
    /// Offset of the device's part.
    pub device: AtomicU64,
    /// Descriptors; 0: there is no such queue.
    pub size: AtomicU32,
    _pad: AtomicU32,
}

/// Registers that the instance writes.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct DriverRegisters {
    /// Features that are used, by bit.
    pub features: AtomicU64,
    /// Status bits of virtio that are the driver's to set.
    pub status: AtomicU32,
    /// Counts up with each request for a reset.
    pub resets: AtomicU32,
    /// The queues.
    pub queues: [QueueRegisters; QUEUES],
}

/// Bytes of the registers.
const REGISTERS: usize = 4096;
/// Words of the area.
const AREA_WORDS: usize = (Network::SIZE - REGISTERS) / size_of::<u16>();
const PADDING: usize = REGISTERS - size_of::<DeviceRegisters>() - size_of::<DriverRegisters>();

/// Pages that an instance with a network shares with its supervisor.
#[derive(Debug)]
#[repr(C, align(4096))]
pub struct Network {
    /// Registers that the supervisor writes.
    pub device: DeviceRegisters,
    /// Registers that the instance writes.
    pub driver: DriverRegisters,
    _padding: [AtomicU8; PADDING],
    /// Queues and buffers; their addresses are offsets in here.
    pub area: [AtomicU16; AREA_WORDS],
}

const _: () = {
    assert!(offset_of!(Network, driver) == 64);
    assert!(offset_of!(Network, area) == REGISTERS);
    assert!(size_of::<Network>() == Network::SIZE);
};

impl Network {
    /// Bytes of the pages.
    pub const SIZE: usize = 512 << 10;
    /// Bytes of the area.
    pub const AREA_BYTES: usize = Self::SIZE - REGISTERS;
}

impl Default for Network {
    /// Pages of zeroes: no card yet.
    fn default() -> Self {
        Self {
            device: DeviceRegisters::default(),
            driver: DriverRegisters::default(),
            _padding: [const { AtomicU8::new(0) }; PADDING],
            area: [const { AtomicU16::new(0) }; AREA_WORDS],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subnet(gateway: [u8; 4], prefix_len: u8) -> Option<Subnet> {
        Subnet::new(Ipv4Addr::from_octets(gateway), prefix_len)
    }

    #[test]
    fn a_network_has_hosts_between_its_first_and_last_address() {
        let small = subnet([10, 90, 0, 5], 30).unwrap();
        assert_eq!(small.network(), Ipv4Addr::new(10, 90, 0, 4));
        assert_eq!(small.mask(), Ipv4Addr::new(255, 255, 255, 252));
        let assignable = (0..4).map(|number| small.is_assignable(small.address(number)));
        assert!(assignable.eq([false, false, true, false]));
        assert!(!small.is_assignable(Ipv4Addr::new(10, 90, 0, 2)));
        assert_eq!(subnet([10, 88, 0, 1], 16), Some(Subnet::BRIDGE));
    }

    #[test]
    fn networks_that_cannot_be_are_none() {
        for (gateway, prefix_len) in [
            ([10, 90, 0, 4], 30),
            ([10, 90, 0, 7], 30),
            ([10, 90, 0, 4], 31),
            ([10, 90, 0, 4], 32),
            ([10, 90, 0, 4], 33),
            ([10, 90, 0, 4], 7),
            ([10, 90, 0, 4], 0),
            ([0, 0, 0, 1], 8),
            ([127, 0, 0, 1], 8),
            ([224, 0, 0, 1], 8),
            ([255, 0, 0, 1], 8),
            ([169, 254, 0, 1], 16),
            ([169, 1, 0, 1], 8),
        ] {
            assert_eq!(
                subnet(gateway, prefix_len),
                None,
                "{gateway:?}/{prefix_len}"
            );
        }
    }

    #[test]
    fn of_two_networks_that_overlap_one_is_in_the_other() {
        let [wide, narrow, beside] = [
            subnet([10, 90, 0, 1], 16).unwrap(),
            subnet([10, 90, 7, 1], 24).unwrap(),
            subnet([10, 91, 0, 1], 16).unwrap(),
        ];
        assert!(wide.overlaps(narrow) && narrow.overlaps(wide) && wide.overlaps(wide));
        assert!(!wide.overlaps(beside) && !beside.overlaps(narrow));
    }
}
