//! Our halves against those of rust-vmm (`virtio-queue`).

use std::sync::atomic::Ordering;
use std::vec::Vec;

use virtio_queue::desc::{RawDescriptor, split};
use virtio_queue::mock::MockSplitQueue;
use virtio_queue::{Queue, QueueT};
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};

use super::*;
use crate::{Left, Memory, Unreachable};

/// Address of the mock driver's tables.
const MOCK_TABLES: u64 = 0x3000_0000;

/// Memory of a guest, as rust-vmm has it.
#[derive(Clone)]
struct Guest(GuestMemoryMmap<()>);

impl Guest {
    fn new() -> Self {
        let ranges = [
            (GuestAddress(0), MEMORY),
            (GuestAddress(MOCK_TABLES), MEMORY),
        ];
        Self(GuestMemoryMmap::from_ranges(&ranges).expect("memory"))
    }
}

fn there<T, E>(result: Result<T, E>, at: Address) -> Result<T, Unreachable> {
    result.map_err(|_| Unreachable(at))
}

impl Memory for Guest {
    fn reaches(&self, at: Address, len: u64) -> bool {
        self.0.check_range(GuestAddress(at.number()), len as usize)
    }

    fn load16(&self, at: Address) -> Result<u16, Unreachable> {
        there(
            self.0.load(GuestAddress(at.number()), Ordering::Acquire),
            at,
        )
    }

    fn store16(&self, at: Address, value: u16) -> Result<(), Unreachable> {
        let stored = self
            .0
            .store(value, GuestAddress(at.number()), Ordering::Release);
        there(stored, at)
    }

    fn read(&self, at: Address, into: &mut [u8]) -> Result<(), Unreachable> {
        there(self.0.read_slice(into, GuestAddress(at.number())), at)
    }

    fn write(&self, at: Address, from: &[u8]) -> Result<(), Unreachable> {
        there(self.0.write_slice(from, GuestAddress(at.number())), at)
    }
}

/// Their device end of a queue.
fn theirs(setup: &Setup) -> Queue {
    let mut queue = Queue::new(setup.size).expect("a queue");
    let low = |at: Address| Some(at.number() as u32);
    queue.set_size(setup.size);
    queue.set_desc_table_address(low(setup.areas.descriptors), Some(0));
    queue.set_avail_ring_address(low(setup.areas.driver), Some(0));
    queue.set_used_ring_address(low(setup.areas.device), Some(0));
    queue.set_event_idx(setup.features.contains(Features::EVENT_IDX));
    queue.set_ready(true);
    queue
}

/// A device that adds up what it reads, and writes the sum into all of what it may write.
fn serve(queue: &mut Queue, memory: &Guest) -> u32 {
    let mut served = 0;
    while let Some(chain) = queue.pop_descriptor_chain(&memory.0) {
        let head = chain.head_index();
        let mut sum = 0_u8;
        let mut written = 0;
        for descriptor in chain {
            let mut bytes = std::vec![0; descriptor.len() as usize];
            if descriptor.is_write_only() {
                bytes.fill(sum);
                memory.0.write_slice(&bytes, descriptor.addr()).unwrap();
                written += descriptor.len();
            } else {
                memory.0.read_slice(&mut bytes, descriptor.addr()).unwrap();
                sum = bytes.iter().fold(sum, |sum, byte| sum.wrapping_add(*byte));
            }
        }
        queue.add_used(&memory.0, head, written).unwrap();
        served += 1;
    }
    served
}

/// More chains than an index counts, of one to six pieces: each arrives and comes back, and who
/// sleeps is told.
#[test]
fn our_driver_half_drives_their_device() {
    for (size, features) in [
        (1, Features::empty()),
        (16, Features::INDIRECT),
        (16, Features::EVENT_IDX),
        (64, Features::INDIRECT | Features::EVENT_IDX),
    ] {
        let memory = Guest::new();
        let setup = setup(size, features);
        let mut driver =
            DriverQueue::new(memory.clone(), setup, Some(tables(size))).expect("a driver half");
        let mut queue = theirs(driver.setup());
        assert!(queue.is_valid(&memory.0));
        let (mut sent, mut received) = (0_u32, 0_u32);
        let (mut device_sleeps, mut interrupts) = (false, 0);
        while received < 70_000 {
            for _ in 0..=sent % 5 {
                let pieces = 1 + u64::from(sent) % u64::from(size.min(6));
                let at = BUFFERS + 64 * u64::from(sent % 64);
                let byte = sent as u8;
                memory.write(Address::new(at), &[byte; 8]).unwrap();
                let readable: Vec<_> = (1..pieces).map(|i| piece(at + i, 1)).collect();
                let reply = piece(at + 16, 8);
                let expected = byte.wrapping_mul(readable.len() as u8);
                if driver
                    .add(&readable, &[reply], (reply.at, expected))
                    .is_ok()
                {
                    sent += 1;
                }
            }
            let notified = driver.must_notify().unwrap();
            assert!(notified || !device_sleeps, "the device sleeps for ever");
            queue.disable_notification(&memory.0).unwrap();
            loop {
                serve(&mut queue, &memory);
                if !queue.enable_notification(&memory.0).unwrap() {
                    break;
                }
            }
            device_sleeps = true;
            interrupts += u32::from(queue.needs_notification(&memory.0).unwrap());
            loop {
                while let Some(done) = driver.take().unwrap() {
                    let mut reply = [0; 8];
                    memory.read(done.value.0, &mut reply).unwrap();
                    assert_eq!((reply, done.written), ([done.value.1; 8], 8));
                    received += 1;
                }
                if driver.want_interrupt().unwrap() == Left::Nothing {
                    break;
                }
            }
            assert_eq!((sent, driver.in_flight()), (received, 0));
        }
        assert!(interrupts > 10_000, "each round is told of: {interrupts}");
    }
}

/// Chains of the mock driver arrive as they were made, from the queue's table and from ones of
/// their own, and come back. (Few: the mock's rings overlap from the ninth on.)
#[test]
fn their_driver_drives_our_device_half() {
    let memory = Guest::new();
    let mut mock = MockSplitQueue::new(&memory.0, 16);
    let address = |at: GuestAddress| Address::new(at.0);
    let setup = Setup {
        size: 16,
        areas: Areas {
            descriptors: address(mock.desc_table_addr()),
            driver: address(mock.avail_addr()),
            device: address(mock.used_addr()),
        },
        features: Features::INDIRECT,
    };
    let mut device = DeviceQueue::new(memory.clone(), setup, 16).expect("a device half");
    let descriptor = |at, len, flags, next| {
        RawDescriptor::from(split::Descriptor::new(BUFFERS + at, len, flags, next))
    };
    let (next, write) = (1, 2);
    let chains = [
        descriptor(0, 16, next, 1),
        descriptor(16, 100, next | write, 2),
        descriptor(200, 1, write, 0),
        descriptor(300, 7, 0, 0),
    ];
    mock.add_desc_chains(&chains, 0).expect("a driver");
    memory
        .write(Address::new(BUFFERS), b"a header of six.")
        .unwrap();

    let first = device.take().unwrap().unwrap();
    assert_eq!(first.readable(), [piece(BUFFERS, 16)]);
    assert_eq!(
        first.writable(),
        [piece(BUFFERS + 16, 100), piece(BUFFERS + 200, 1)]
    );
    let mut header = [0; 16];
    first.read(&memory, 0, &mut header).unwrap();
    assert_eq!(&header, b"a header of six.");
    first.write(&memory, 98, b"end").unwrap();
    let second = device.take().unwrap().unwrap();
    assert_eq!(second.readable(), [piece(BUFFERS + 300, 7)]);
    assert!(second.writable().is_empty() && device.take().unwrap().is_none());
    device.finish(second, 0).unwrap();
    device.finish(first, 101).unwrap();
    assert!(device.must_interrupt().unwrap());
    assert_eq!(u16::from_le(mock.used().idx().load()), 2);
    let used = |slot: usize| {
        let element = mock.used().ring().ref_at(slot).unwrap().load();
        (element.id(), element.len())
    };
    assert_eq!((used(0), used(1)), ((3, 0), (0, 101)));
    let mut end = [0; 1];
    memory.read(Address::new(BUFFERS + 200), &mut end).unwrap();
    assert_eq!(&end, b"d");

    // A table of its own, of eleven descriptors of no bytes.
    mock.add_indirect_chain(11).expect("a driver");
    let chain = device.take().unwrap().unwrap();
    assert_eq!(chain.readable().len(), 11);
    device.finish(chain, 0).unwrap();
    assert_eq!(u16::from_le(mock.used().idx().load()), 3);
}
