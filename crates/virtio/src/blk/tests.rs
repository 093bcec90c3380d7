//! The driver's end of a disk against the device's, and against ones that lie.

mod peer;
mod recovery;

use std::vec::Vec;

use peer::{BASE, Lie, Peer, RamDisk, SECTORS, Shared};
use proptest::prelude::*;
use virtqueue::{Address, BringUpError, Features, Memory, Piece, TransportError, Words};

use super::properties::field;
use super::*;

type Q = Queue<Shared, u32>;

const SHAPE: Shape = Shape {
    queues: 2,
    size: 16,
    pieces: 6,
};

/// Beginning of the memory for data; each request has a part of it.
const DATA: u64 = 0x1_0000;
const PART: u64 = 0x1000;

/// A disk over a peer, with its queues.
fn started(peer: &Peer) -> (Disk<&Peer>, Vec<Q>) {
    start(peer).expect("a disk")
}

fn start(peer: &Peer) -> Result<Started<&Peer, Shared, u32>, StartError> {
    let mut next = BASE;
    Disk::start(peer, SHAPE, |bytes| {
        let base = Address::new(next);
        next += bytes.next_multiple_of(4096);
        assert!(next <= DATA, "queues take less");
        Some((Shared(peer.memory.clone()), base))
    })
}

fn piece(at: u64, len: u64) -> Piece {
    Piece {
        at: Address::new(at),
        len: len as u32,
    }
}

/// Does one request and returns its outcome.
fn execute(
    disk: &Disk<&Peer>,
    queue: &mut Q,
    operation: Operation,
    data: &[Piece],
) -> Result<Option<[u8; ID]>, Failure> {
    queue.submit(operation, data, 7).expect("it is accepted");
    disk.notify(queue).expect("nobody broke a rule");
    let completion = queue
        .complete()
        .expect("nobody broke a rule")
        .expect("it is over");
    assert_eq!((completion.value, completion.operation), (7, operation));
    assert_eq!(queue.complete(), Ok(None));
    completion.outcome
}

#[test]
fn a_disk_tells_its_properties() {
    let peer = Peer::new();
    let (disk, queues) = started(&peer);
    let properties = disk.properties();
    assert_eq!(properties.capacity, SECTORS * SECTOR);
    assert_eq!((properties.block, properties.physical_block), (512, 512));
    assert!(properties.has_cache && !properties.read_only);
    assert_eq!(
        (properties.pieces, properties.queues, queues.len()),
        (6, 4, 2)
    );
    assert_eq!(queues[0].max_pieces(), 6);
    let ranges = Ranges {
        max: (1 << 22) * SECTOR,
        alignment: SECTOR,
    };
    assert_eq!(
        (properties.discard, properties.write_zeroes),
        (Some(ranges), Some(ranges))
    );
}

#[test]
fn each_operation_does_what_it_says() {
    let peer = Peer::new();
    let (disk, mut queues) = started(&peer);
    let queue = &mut queues[1];
    let memory = &peer.memory;
    let text: Vec<u8> = (0..2048_u32).map(|i| (i * 7 / 3) as u8).collect();
    memory.write(Address::new(DATA), &text).unwrap();
    // Three pieces there, two back, at odd addresses.
    let out = [
        piece(DATA, 1000),
        piece(DATA + 1000, 24),
        piece(DATA + 1024, 1024),
    ];
    assert_eq!(
        execute(&disk, queue, Operation::Write { offset: 1024 }, &out),
        Ok(None)
    );
    assert_eq!(peer.ram().bytes[1024..3072], text[..]);
    assert_eq!(execute(&disk, queue, Operation::Flush, &[]), Ok(None));
    assert_eq!(peer.ram().flushes, 1);
    let back = [piece(DATA + PART + 1, 511), piece(DATA + PART + 512, 1025)];
    assert_eq!(
        execute(&disk, queue, Operation::Read { offset: 1024 }, &back),
        Ok(None)
    );
    let mut bytes = std::vec![0; 1536];
    memory
        .read(Address::new(DATA + PART + 1), &mut bytes)
        .unwrap();
    assert_eq!(bytes[..], text[..1536]);
    let id = execute(&disk, queue, Operation::GetId, &[])
        .unwrap()
        .unwrap();
    assert_eq!(&id, b"a disk of a test\0\0\0\0");
    for unmap in [Unmap::Allowed, Unmap::Forbidden] {
        let operation = Operation::WriteZeroes {
            offset: 1536,
            len: 512,
            unmap,
        };
        assert_eq!(execute(&disk, queue, operation, &[]), Ok(None));
        assert_eq!(peer.ram().zeroed, Some((1536, 512, unmap)));
    }
    let operation = Operation::Discard {
        offset: 2048,
        len: 1024,
    };
    assert_eq!(execute(&disk, queue, operation, &[]), Ok(None));
    assert_eq!(peer.ram().discarded, Some((2048, 1024)));
}

/// An error is of the request that had it.
#[test]
fn each_request_has_an_error_of_its_own() {
    let peer = Peer::new();
    let (disk, mut queues) = started(&peer);
    peer.ram().bad = Some(5);
    let queue = &mut queues[0];
    for number in 0..5 {
        let offset = u64::from(number) * 1024;
        let data = [piece(DATA + PART * u64::from(number), 1024)];
        let operation = if number == 1 {
            Operation::Write { offset }
        } else {
            Operation::Read { offset }
        };
        queue.submit(operation, &data, number).unwrap();
    }
    disk.notify(queue).unwrap();
    for number in 0..5 {
        let completion = queue.complete().unwrap().expect("all are over");
        let outcome = if number == 2 {
            Err(Failure::Io)
        } else {
            Ok(None)
        };
        assert_eq!((completion.value, completion.outcome), (number, outcome));
    }
}

#[test]
fn requests_that_cannot_be_are_refused() {
    let peer = Peer::new();
    let (_, mut queues) = started(&peer);
    let queue = &mut queues[0];
    let end = SECTORS * SECTOR;
    let one = [piece(DATA, 512)];
    let read = |offset| Operation::Read { offset };
    let discard = |offset, len| Operation::Discard { offset, len };
    let cases: [(Operation, &[Piece], Refusal); 14] = [
        (read(1), &one, Refusal::Unaligned),
        (read(0), &[], Refusal::Unaligned),
        (read(0), &[piece(DATA, 511)], Refusal::Unaligned),
        (read(0), &[piece(DATA, 0)], Refusal::Unaligned),
        (Operation::Flush, &one, Refusal::Unaligned),
        (Operation::GetId, &one, Refusal::Unaligned),
        (discard(0, 512), &one, Refusal::Unaligned),
        (discard(0, 0), &[], Refusal::Unaligned),
        (read(end), &one, Refusal::BeyondEnd),
        (read(u64::MAX - 511), &one, Refusal::BeyondEnd),
        (read(end - 512), &[piece(DATA, 1024)], Refusal::BeyondEnd),
        (discard(end - 512, 1024), &[], Refusal::BeyondEnd),
        (read(0), &[piece(DATA, 512); 7], Refusal::TooLarge),
        (discard(0, (1 << 31) + 512), &[], Refusal::TooLarge),
    ];
    for (operation, data, why) in cases {
        let refused = queue.submit(operation, data, 9).expect_err("refused");
        assert_eq!(
            (refused.value, refused.why),
            (9, why),
            "{operation:?} {data:?}"
        );
    }
    assert_eq!((queue.in_flight(), peer.notifications()), (0, 0));
    // Sixteen descriptors hold sixteen requests, in tables.
    for value in 0..16 {
        queue
            .submit(read(0), &[piece(DATA, 512); 6], value)
            .unwrap();
    }
    let refused = queue.submit(read(0), &one, 16).expect_err("full");
    assert_eq!((refused.value, refused.why), (16, Refusal::Full));
}

/// Operations that are not negotiated are not asked for, and a disk without a cache has nothing to
/// flush.
#[test]
fn features_that_are_not_there_are_not_used() {
    let peer = Peer::new();
    peer.offer(Features::VERSION_1.bits() | feature::READ_ONLY);
    let (disk, mut queues) = started(&peer);
    let properties = *disk.properties();
    assert!(properties.read_only && !properties.has_cache);
    assert_eq!(
        (properties.pieces, properties.queues, queues.len()),
        (1, 1, 1)
    );
    let queue = &mut queues[0];
    let one = [piece(DATA, 512)];
    for (operation, data, why) in [
        (Operation::Flush, &[][..], Refusal::Unsupported),
        (Operation::Write { offset: 0 }, &one[..], Refusal::ReadOnly),
        (
            Operation::Discard {
                offset: 0,
                len: 512,
            },
            &[],
            Refusal::Unsupported,
        ),
        (
            Operation::Read { offset: 0 },
            &[one[0], one[0]],
            Refusal::TooLarge,
        ),
    ] {
        let refused = queue.submit(operation, data, 0).expect_err("refused");
        assert_eq!(refused.why, why);
    }
    assert_eq!(
        execute(&disk, queue, Operation::Read { offset: 0 }, &one),
        Ok(None)
    );
}

#[test]
fn a_configuration_that_cannot_be_is_refused() {
    let peer = Peer::new();
    let all = feature::ALL | Features::VERSION_1.bits();
    peer.offer(all & !feature::READ_ONLY);
    peer.configure(field::SIZE_MAX, &65536_u32.to_le_bytes());
    peer.configure(field::BLOCK_SIZE, &4096_u32.to_le_bytes());
    peer.configure(field::PHYSICAL_EXPONENT, &[2]);
    peer.configure(field::OPTIMAL_IO, &16_u32.to_le_bytes());
    let (disk, _) = started(&peer);
    let properties = disk.properties();
    assert_eq!((properties.block, properties.physical_block), (4096, 16384));
    assert_eq!((properties.optimal_io, properties.piece), (65536, 65536));
    let cases: [(usize, &[u8], &str); 9] = [
        (field::CAPACITY, &[0xff; 8], "capacity"),
        (field::BLOCK_SIZE, &[0; 4], "block size"),
        (field::BLOCK_SIZE, &256_u32.to_le_bytes(), "block size"),
        (field::BLOCK_SIZE, &8192_u32.to_le_bytes(), "block size"),
        (field::BLOCK_SIZE, &513_u32.to_le_bytes(), "block size"),
        (field::PHYSICAL_EXPONENT, &[40], "physical block size"),
        (field::SEG_MAX, &[0; 4], "number of segments or queues"),
        (field::QUEUES, &[0; 2], "number of segments or queues"),
        (field::SIZE_MAX, &[0xff, 1, 0, 0], "size of a segment"),
    ];
    for (at, bytes, what) in cases {
        let before = peer.configure(at, bytes);
        let error = start(&peer).err();
        assert_eq!(error, Some(StartError::Config(BadConfig(what))));
        peer.configure(at, &before[..bytes.len()]);
    }
    started(&peer);
}

#[test]
fn a_device_that_does_not_start_is_refused() {
    let error = |lie, features: Option<u64>| {
        let peer = Peer::new();
        if let Some(features) = features {
            peer.offer(features);
        }
        peer.lie(lie);
        start(&peer).err().expect("no disk")
    };
    let version = Features::VERSION_1.bits();
    let missing = StartError::BringUp(BringUpError::Missing(version));
    assert_eq!(error(None, Some(feature::FLUSH)), missing);
    assert_eq!(
        error(Some(Lie::NoFeatures), None),
        StartError::BringUp(BringUpError::Refused)
    );
    let stuck = StartError::from(TransportError::Stuck);
    assert_eq!(error(Some(Lie::NoReset), None), stuck);
    assert_eq!(error(Some(Lie::NewGenerations), None), stuck);
}

/// Limits at their borders: the smallest pieces, ranges that are none, a queue that is too small
/// for what was wished.
#[test]
fn limits_are_taken_at_their_borders() {
    let peer = Peer::new();
    peer.offer(feature::ALL & !feature::READ_ONLY | Features::VERSION_1.bits());
    peer.configure(field::SIZE_MAX, &512_u32.to_le_bytes());
    peer.configure(field::BLOCK_SIZE, &512_u32.to_le_bytes());
    peer.configure(field::DISCARD_SECTORS, &[0; 4]);
    peer.configure(field::ZEROES_SEGMENTS, &[0; 4]);
    peer.configure(field::SEG_MAX, &100_u32.to_le_bytes());
    let mut next = BASE;
    let shape = Shape {
        queues: 1,
        size: 16,
        pieces: 50,
    };
    let (disk, mut queues): (_, Vec<Q>) = Disk::start(&peer, shape, |bytes| {
        next += bytes;
        Some((Shared(peer.memory.clone()), Address::new(BASE)))
    })
    .expect("a disk");
    assert!(
        next < BASE + 0x2000,
        "tables have no more entries than the queue"
    );
    let properties = disk.properties();
    assert_eq!((properties.discard, properties.write_zeroes), (None, None));
    assert_eq!((properties.piece, queues[0].max_pieces()), (512, 14));
    let read = Operation::Read { offset: 0 };
    let most = [piece(DATA, 512); 14];
    assert_eq!(execute(&disk, &mut queues[0], read, &most), Ok(None));
    for data in [&[piece(DATA, 512); 15][..], &[piece(DATA, 1024)]] {
        let refused = queues[0].submit(read, data, 0).expect_err("refused");
        assert_eq!(refused.why, Refusal::TooLarge);
    }
}

/// Nonsense that a driver may say: a device's end answers what it can.
#[test]
fn a_server_answers_nonsense_with_errors() {
    use virtqueue::{Areas, DeviceQueue, DriverQueue, Setup};
    let memory = Words::new(0x1_0000).unwrap();
    let setup = Setup {
        size: 8,
        areas: Areas::at(Address::new(0), 8),
        features: Features::empty(),
    };
    let mut driver = DriverQueue::new(&memory, setup, None).unwrap();
    let mut device = DeviceQueue::new(&memory, setup, 8).unwrap();
    let mut server = Server::new(RamDisk::new()).unwrap();
    let mut answer = |header: &[u8], writable: u64| {
        memory.write(Address::new(0x8000), header).unwrap();
        memory.write(Address::new(0x9000), &[0xee; 0x1000]).unwrap();
        let writable: Vec<_> = (writable > 0)
            .then(|| piece(0x9000, writable))
            .into_iter()
            .collect();
        driver
            .add(&[piece(0x8000, header.len() as u64)], &writable, ())
            .unwrap();
        assert_eq!(
            server.serve(&mut device, 8).map(|served| served.requests),
            Ok(1)
        );
        let written = driver.take().unwrap().unwrap().written;
        let mut bytes = std::vec![0; written as usize];
        memory.read(Address::new(0x9000), &mut bytes).unwrap();
        bytes
    };
    let header = |kind: u32, sector: u64, rest: &[u8]| {
        let mut bytes = std::vec![0; 16];
        bytes[..4].copy_from_slice(&kind.to_le_bytes());
        bytes[8..].copy_from_slice(&sector.to_le_bytes());
        bytes.extend_from_slice(rest);
        bytes
    };
    let range = |sector: u64, sectors: u32, flags: u32| {
        let mut bytes = sector.to_le_bytes().to_vec();
        bytes.extend_from_slice(&sectors.to_le_bytes());
        bytes.extend_from_slice(&flags.to_le_bytes());
        bytes
    };
    let failed = std::vec![status::IO_ERROR];
    assert_eq!(answer(&header(kind::READ, 0, &[]), 0), []);
    assert_eq!(answer(&header(kind::READ, 0, &[])[..15], 1), failed);
    assert_eq!(answer(&header(99, 0, &[]), 1), [status::UNSUPPORTED]);
    // Bytes that count as written are zeros, not what was there.
    let mut zeros = std::vec![0; 513];
    zeros[512] = status::IO_ERROR;
    assert_eq!(answer(&header(kind::READ, SECTORS, &[]), 513), zeros);
    assert_eq!(answer(&header(kind::READ, u64::MAX, &[]), 513), zeros);
    assert_eq!(answer(&header(kind::READ, u64::MAX / 512, &[]), 513), zeros);
    assert_eq!(
        answer(&header(kind::READ, 0, &[]), 512),
        [zeros[..511].to_vec(), failed.clone()].concat()
    );
    assert_eq!(answer(&header(kind::WRITE, 0, &[1; 511]), 1), failed);
    assert_eq!(answer(&header(kind::WRITE, SECTORS, &[1; 512]), 1), failed);
    assert_eq!(
        answer(&header(kind::WRITE, SECTORS - 1, &[1; 512]), 1),
        [status::OK]
    );
    assert_eq!(
        answer(&header(kind::GET_ID, 0, &[]), 20),
        [[0; 19].to_vec(), failed.clone()].concat()
    );
    for (range, result) in [
        (range(0, 1, 0), status::OK),
        (range(0, 1, 1), status::UNSUPPORTED),
        (range(SECTORS, 1, 0), status::IO_ERROR),
        (range(0, u32::MAX, 0), status::IO_ERROR),
        (range(0, 1, 0)[..15].to_vec(), status::IO_ERROR),
    ] {
        assert_eq!(answer(&header(kind::DISCARD, 0, &range), 1), [result]);
    }
    for (flags, result) in [(0, status::OK), (1, status::OK), (2, status::UNSUPPORTED)] {
        let range = range(0, 1, flags);
        assert_eq!(answer(&header(kind::WRITE_ZEROES, 0, &range), 1), [result]);
    }
    // No more at a time than the caller says.
    for _ in 0..3 {
        driver
            .add(&[piece(0x8000, 16)], &[piece(0x9000, 1)], ())
            .unwrap();
    }
    for expected in [2, 1, 0] {
        let served = server.serve(&mut device, 2).map(|served| served.requests);
        assert_eq!(served, Ok(expected));
    }
}

proptest! {
    /// Requests in any order, on both queues, split or packed, beside a disk that is a list of
    /// bytes.
    #[test]
    fn a_disk_keeps_what_was_written(packed in any::<bool>(), steps in prop::collection::vec((0usize..2, 0u8..5, 0u64..SECTORS, 1u64..5, any::<u8>()), 1..60)) {
        let peer = Peer::new();
        if packed {
            peer.offer(feature::ALL & !feature::READ_ONLY | Features::VERSION_1.bits() | peer::PACKED);
            peer.configure(field::SIZE_MAX, &65536_u32.to_le_bytes());
            peer.configure(field::BLOCK_SIZE, &512_u32.to_le_bytes());
        }
        let (disk, mut queues) = started(&peer);
        let mut model = std::vec![0_u8; (SECTORS * SECTOR) as usize];
        for (queue, kind, sector, sectors, byte) in steps {
            let queue = &mut queues[queue];
            let (offset, len) = (sector * SECTOR, sectors.min(SECTORS - sector) * SECTOR);
            let range = offset as usize..(offset + len) as usize;
            let at = Address::new(DATA);
            let data = [piece(DATA, 512), piece(DATA + 512, len - 512)];
            let data = if len > 512 { &data[..] } else { &data[..1] };
            match kind {
                0 | 1 => {
                    peer.memory.write(at, &std::vec![byte; len as usize]).unwrap();
                    prop_assert_eq!(execute(&disk, queue, Operation::Write { offset }, data), Ok(None));
                    model[range].fill(byte);
                }
                2 => {
                    let operation = Operation::WriteZeroes { offset, len, unmap: Unmap::Allowed };
                    prop_assert_eq!(execute(&disk, queue, operation, &[]), Ok(None));
                    model[range].fill(0);
                }
                _ => {
                    prop_assert_eq!(execute(&disk, queue, Operation::Read { offset }, data), Ok(None));
                    let mut bytes = std::vec![0; len as usize];
                    peer.memory.read(at, &mut bytes).unwrap();
                    prop_assert_eq!(&bytes[..], &model[range]);
                }
            }
        }
        prop_assert_eq!(&peer.ram().bytes, &model);
    }
}
