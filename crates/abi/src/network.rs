//! Network of an instance (`docs/instance-networks.md`): addresses, and the pages that the
//! instance shares with its supervisor.
//!
//! The pages are a page of registers, each written by one side, and an area that holds two
//! virtqueues with their buffers. All of it is atomics, and neither side believes what it reads.

use core::mem::{offset_of, size_of};
use core::net::Ipv4Addr;
use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};

/// Address of the supervisor in the network of instances.
pub const SUPERVISOR: Ipv4Addr = Ipv4Addr::new(10, 88, 0, 1);
/// Bits of the network's prefix.
pub const PREFIX_LEN: u8 = 16;
/// Bytes of a packet, at most.
pub const MTU: u16 = 1500;

/// Whether an address is one of the network's.
#[must_use]
pub const fn contains(address: Ipv4Addr) -> bool {
    (address.to_bits() ^ SUPERVISOR.to_bits()) >> (32 - PREFIX_LEN) == 0
}

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
