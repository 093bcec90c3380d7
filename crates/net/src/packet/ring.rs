//! Packets in memory that a program maps (`PACKET_RX_RING`): what is written, and who owns which
//! part of it.
//!
//! Facts: Linux, `Documentation/networking/packet_mmap.rst` and `include/uapi/linux/if_packet.h`.

use alloc::vec::Vec;
use core::sync::atomic::{Ordering, fence};

use abi::errno::Errno;
use fs::Result;
use vm::{PAGE_SIZE, Page};

/// Versions of the headers.
const TPACKET_V1: u32 = 0;
const TPACKET_V2: u32 = 1;
pub(super) const TPACKET_V3: u32 = 2;
/// The most a ring may have, bytes.
const MAX_RING_SIZE: usize = 1 << 28;
/// Bytes of `struct sockaddr_ll`, which follows a header.
const SOCKADDR_LL_LEN: usize = 20;
const ALIGNMENT: usize = 16;
/// Bytes of a block's header, and to what packets in it are aligned.
const BLOCK_HEADER: usize = 48;
const BLOCK_ALIGNMENT: usize = 8;
/// Status of a frame or a block: its owner, and what else is said of it.
const TP_STATUS_KERNEL: u32 = 0;
pub(super) const TP_STATUS_USER: u32 = 1;
const TP_STATUS_LOSING: u32 = 1 << 2;
const TP_STATUS_BLK_TMO: u32 = 1 << 5;

/// Bytes of a packet's header.
///
/// # Errors
/// `EINVAL` for a version that there is not.
pub(super) fn header_length(version: u32) -> Result<usize> {
    match version {
        TPACKET_V1 | TPACKET_V2 => Ok(32),
        TPACKET_V3 => Ok(48),
        _ => Err(Errno::EINVAL),
    }
}

/// The sizes a program asks for (`struct tpacket_req3`).
#[derive(Clone, Copy)]
pub(super) struct RingRequest {
    pub(super) block_size: usize,
    pub(super) block_count: usize,
    pub(super) frame_size: usize,
    pub(super) frame_count: usize,
    /// Milliseconds after which a block that holds anything is given to the program; of version 3.
    pub(super) retire_timeout_ms: u32,
    /// Bytes of each block that are the program's own.
    pub(super) private_size: usize,
}

/// A packet to be written.
pub(super) struct RingPacket<'a> {
    pub(super) data: &'a [u8],
    /// The number of bytes before the filter.
    pub(super) original_len: usize,
    /// Bytes of the link's header in it.
    pub(super) link_header_len: usize,
    /// Nanoseconds since 1970.
    pub(super) timestamp_ns: u64,
    /// `struct sockaddr_ll`.
    pub(super) address: &'a [u8],
}

/// The block that is being filled, of version 3.
#[derive(Clone, Copy, Default)]
struct CurrentBlock {
    packets: u32,
    /// The offsets of the next packet and of the last one.
    end: usize,
    last: usize,
}

/// A ring.
pub(super) struct Ring {
    pages: Vec<Page>,
    request: RingRequest,
    version: u32,
    /// Bytes left free before each packet.
    reserve: usize,
    /// The frame or block that is written next.
    head: usize,
    current_block: CurrentBlock,
    sequence: u64,
    /// Packets have been lost since the last one that was written.
    losing: bool,
    /// The number of times there was no block to go on with.
    pub(super) freezes: u32,
    frozen: bool,
}

impl Ring {
    /// A ring of a shape.
    ///
    /// # Errors
    /// `EINVAL` for one that makes no sense, `ENOMEM`.
    pub(super) fn new(request: RingRequest, version: u32, reserve: usize) -> Result<Self> {
        let header = header_length(version)? + SOCKADDR_LL_LEN;
        let whole = request.block_size.is_multiple_of(PAGE_SIZE)
            && request.block_size > 0
            && request.frame_size.is_multiple_of(ALIGNMENT);
        let per_block = request
            .block_size
            .checked_div(request.frame_size)
            .unwrap_or(0);
        let fits = request.frame_size >= header + reserve
            && per_block > 0
            && per_block.checked_mul(request.block_count) == Some(request.frame_count);
        // A block holds more than one empty packet.
        let least = BLOCK_HEADER
            .saturating_add(request.private_size)
            .saturating_add(2 * (header + reserve + 2 * ALIGNMENT));
        let holds = version != TPACKET_V3 || least < request.block_size;
        if !whole || !fits || !holds {
            return Err(Errno::EINVAL);
        }
        let size = request
            .block_size
            .checked_mul(request.block_count)
            .filter(|size| *size <= MAX_RING_SIZE)
            .ok_or(Errno::ENOMEM)?;
        let pages = (0..size / PAGE_SIZE)
            .map(|_| Page::zeroed())
            .collect::<Option<Vec<Page>>>()
            .ok_or(Errno::ENOMEM)?;
        let mut ring = Self {
            pages,
            request,
            version,
            reserve,
            head: 0,
            current_block: CurrentBlock::default(),
            sequence: 0,
            losing: false,
            freezes: 0,
            frozen: false,
        };
        if version == TPACKET_V3 {
            ring.open_block();
        }
        Ok(ring)
    }

    /// A page of it.
    pub(super) fn page(&self, index: u64) -> Option<Page> {
        self.pages.get(usize::try_from(index).ok()?).cloned()
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        let (mut at, mut rest) = (at, bytes);
        while !rest.is_empty() {
            let offset = at % PAGE_SIZE;
            let (now, later) = rest.split_at(rest.len().min(PAGE_SIZE - offset));
            self.pages[at / PAGE_SIZE].write(offset, now);
            (at, rest) = (at + now.len(), later);
        }
    }

    fn word(&self, at: usize) -> u32 {
        let mut bytes = [0; 4];
        self.pages[at / PAGE_SIZE].read(at % PAGE_SIZE, &mut bytes);
        u32::from_ne_bytes(bytes)
    }

    /// Changes who owns what the word at `at` is about, after all that was written to it.
    fn set_status(&self, at: usize, status: u32) {
        fence(Ordering::SeqCst);
        self.write(at, &status.to_ne_bytes());
    }

    fn frame(&self, number: usize) -> usize {
        let per_block = self.request.block_size / self.request.frame_size;
        number / per_block * self.request.block_size + number % per_block * self.request.frame_size
    }

    /// The offsets in a frame of the packet, and of what is behind the link's header.
    fn offsets(&self, link: usize) -> (usize, usize) {
        let header = header_length(self.version).unwrap_or(0) + SOCKADDR_LL_LEN;
        if link == 0 {
            let at = header.next_multiple_of(ALIGNMENT) + ALIGNMENT + self.reserve;
            return (at, at);
        }
        let network = (header + link.max(ALIGNMENT)).next_multiple_of(ALIGNMENT) + self.reserve;
        (network - link, network)
    }

    /// Whether the program has a frame or block to look at.
    pub(super) fn is_readable(&self) -> bool {
        if self.version == TPACKET_V3 {
            let before = self
                .head
                .checked_sub(1)
                .unwrap_or(self.request.block_count - 1);
            return self.word(before * self.request.block_size + 8) != TP_STATUS_KERNEL;
        }
        let before = self
            .head
            .checked_sub(1)
            .unwrap_or(self.request.frame_count - 1);
        self.word(self.frame(before)) != TP_STATUS_KERNEL
    }

    /// Writes a packet; `false`: there is no room for it. What is said second is whether whoever
    /// waits has something to look at.
    pub(super) fn write_packet(&mut self, arrival: &RingPacket<'_>) -> (bool, bool) {
        let written = if self.version == TPACKET_V3 {
            self.write_to_block(arrival)
        } else {
            self.write_frame(arrival)
        };
        self.losing = written.is_none();
        (written.is_some(), written.unwrap_or(false))
    }

    fn write_frame(&mut self, arrival: &RingPacket<'_>) -> Option<bool> {
        let start = self.frame(self.head);
        // Versions 1 and 2 have the status in the first word; of version 1 it is a long one.
        if self.word(start) != TP_STATUS_KERNEL {
            return None;
        }
        let (mac, network) = self.offsets(arrival.link_header_len);
        let kept = arrival
            .data
            .len()
            .min(self.request.frame_size.saturating_sub(mac));
        self.write(start + mac, &arrival.data[..kept]);
        let header = header_length(self.version).unwrap_or(0);
        self.write(start + header, arrival.address);
        let places = [mac as u16, network as u16].map(u16::to_ne_bytes).concat();
        let lengths = [arrival.original_len as u32, kept as u32]
            .map(u32::to_ne_bytes)
            .concat();
        let (seconds, rest) = (
            (arrival.timestamp_ns / 1_000_000_000) as u32,
            (arrival.timestamp_ns % 1_000_000_000) as u32,
        );
        if self.version == TPACKET_V1 {
            let time = [seconds, rest / 1000].map(u32::to_ne_bytes).concat();
            self.write(start + 8, &[lengths, places, time].concat());
        } else {
            let time = [seconds, rest].map(u32::to_ne_bytes).concat();
            self.write(
                start + 4,
                &[lengths, places, time, [0; 8].to_vec()].concat(),
            );
        }
        self.set_status(
            start,
            TP_STATUS_USER | if self.losing { TP_STATUS_LOSING } else { 0 },
        );
        self.head = (self.head + 1) % self.request.frame_count;
        Some(true)
    }

    /// Begins the block that is next.
    fn open_block(&mut self) {
        let first =
            (BLOCK_HEADER + self.request.private_size.next_multiple_of(BLOCK_ALIGNMENT)) as u32;
        let start = self.head * self.request.block_size;
        self.sequence += 1;
        // Version, where the private part is, status, packets, the first one, length; the number.
        let words = [1u32, BLOCK_HEADER as u32, TP_STATUS_KERNEL, 0, first, first]
            .map(u32::to_ne_bytes)
            .concat();
        self.write(start, &[&words[..], &self.sequence.to_ne_bytes()].concat());
        self.current_block = CurrentBlock {
            packets: 0,
            end: first as usize,
            last: 0,
        };
        self.frozen = false;
    }

    /// Gives the block that is being filled to the program, and begins the next if it has been
    /// given back.
    fn retire_block(&mut self, status: u32) {
        let start = self.head * self.request.block_size;
        self.write(start + 12, &self.current_block.packets.to_ne_bytes());
        self.write(start + 20, &(self.current_block.end as u32).to_ne_bytes());
        self.set_status(start + 8, TP_STATUS_USER | status);
        self.head = (self.head + 1) % self.request.block_count;
        self.current_block = CurrentBlock::default();
        self.thaw();
    }

    /// Goes on if the next block has been given back.
    fn thaw(&mut self) {
        if self.word(self.head * self.request.block_size + 8) == TP_STATUS_KERNEL {
            self.open_block();
        } else if !self.frozen {
            self.frozen = true;
            self.freezes += 1;
        }
    }

    fn write_to_block(&mut self, arrival: &RingPacket<'_>) -> Option<bool> {
        if self.frozen {
            self.thaw();
        }
        if self.frozen {
            return None;
        }
        let (mac, network) = self.offsets(arrival.link_header_len);
        let first = BLOCK_HEADER + self.request.private_size.next_multiple_of(BLOCK_ALIGNMENT);
        let kept = arrival
            .data
            .len()
            .min(self.request.block_size - first - mac);
        let length = (mac + kept).next_multiple_of(BLOCK_ALIGNMENT);
        let mut retired = false;
        if self.current_block.end + length > self.request.block_size {
            self.retire_block(0);
            retired = true;
            if self.frozen {
                return None;
            }
        }
        let start = self.head * self.request.block_size;
        let at = start + self.current_block.end;
        let time = [
            (arrival.timestamp_ns / 1_000_000_000) as u32,
            (arrival.timestamp_ns % 1_000_000_000) as u32,
        ]
        .map(u32::to_ne_bytes)
        .concat();
        self.write(at + mac, &arrival.data[..kept]);
        self.write(at + 48, arrival.address);
        let status = TP_STATUS_USER | if self.losing { TP_STATUS_LOSING } else { 0 };
        let words = [kept as u32, arrival.original_len as u32, status]
            .map(u32::to_ne_bytes)
            .concat();
        let places = [mac as u16, network as u16].map(u16::to_ne_bytes).concat();
        self.write(
            at,
            &[&[0; 4][..], &time, &words, &places, &[0; 20]].concat(),
        );
        if self.current_block.packets == 0 {
            self.write(start + 32, &time);
        } else {
            // Where the one before ends, this one is.
            self.write(
                start + self.current_block.last,
                &((self.current_block.end - self.current_block.last) as u32).to_ne_bytes(),
            );
        }
        self.write(start + 40, &time);
        self.current_block = CurrentBlock {
            packets: self.current_block.packets + 1,
            end: self.current_block.end + length,
            last: self.current_block.end,
        };
        Some(retired)
    }

    /// The number of the block that is being filled if it holds anything, and after how many
    /// milliseconds it is given to the program.
    pub(super) fn pending_block(&self) -> Option<(u64, u32)> {
        const DEFAULT: u32 = 8;
        let patience = if self.request.retire_timeout_ms == 0 {
            DEFAULT
        } else {
            self.request.retire_timeout_ms
        };
        (self.version == TPACKET_V3 && self.current_block.packets > 0)
            .then_some((self.sequence, patience))
    }

    /// The time of the block with a number has come. Whether it was given to the program.
    pub(super) fn retire_expired_block(&mut self, sequence: u64) -> bool {
        let meant = self
            .pending_block()
            .is_some_and(|(open, _)| open == sequence);
        if meant {
            self.retire_block(TP_STATUS_BLK_TMO);
        }
        meant
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(blocks: usize, frame_size: usize, patience: u32) -> RingRequest {
        let block_size = 2 * PAGE_SIZE;
        RingRequest {
            block_size,
            block_count: blocks,
            frame_size,
            frame_count: block_size / frame_size * blocks,
            retire_timeout_ms: patience,
            private_size: 0,
        }
    }

    fn arrival(data: &[u8]) -> RingPacket<'_> {
        RingPacket {
            data,
            original_len: data.len(),
            link_header_len: 14,
            timestamp_ns: 3_000_000_007,
            address: &[9; SOCKADDR_LL_LEN],
        }
    }

    fn bytes(ring: &Ring, at: usize, length: usize) -> Vec<u8> {
        let (mut read, mut at) = (vec![0; length], at);
        let mut rest = &mut read[..];
        while !rest.is_empty() {
            let now = rest.len().min(PAGE_SIZE - at % PAGE_SIZE);
            let (first, later) = rest.split_at_mut(now);
            ring.pages[at / PAGE_SIZE].read(at % PAGE_SIZE, first);
            (at, rest) = (at + now, later);
        }
        read
    }

    #[test]
    fn frames_are_filled_in_turn_and_lost_when_all_are_the_programs() {
        let mut ring = Ring::new(shape(1, 2048, 0), TPACKET_V2, 4).unwrap();
        for i in 0..4u8 {
            assert!(!ring.is_readable() || i > 0);
            assert_eq!(ring.write_packet(&arrival(&[i; 100])), (true, true));
        }
        assert_eq!(ring.write_packet(&arrival(b"x")), (false, false));
        for i in 0..4u8 {
            let at = usize::from(i) * 2048;
            assert_eq!(ring.word(at), TP_STATUS_USER);
            assert_eq!((ring.word(at + 4), ring.word(at + 8)), (100, 100));
            let places = bytes(&ring, at + 12, 4);
            let (mac, network) = (
                u16::from_ne_bytes([places[0], places[1]]),
                u16::from_ne_bytes([places[2], places[3]]),
            );
            assert_eq!((mac, network), (70, 84));
            assert_eq!(bytes(&ring, at + 70, 100), [i; 100]);
            assert_eq!(bytes(&ring, at + 32, SOCKADDR_LL_LEN), [9; SOCKADDR_LL_LEN]);
        }
        ring.write(0, &TP_STATUS_KERNEL.to_ne_bytes());
        assert_eq!(ring.write_packet(&arrival(b"y")), (true, true));
        assert_eq!(ring.word(0), TP_STATUS_USER | TP_STATUS_LOSING);
    }

    #[test]
    fn blocks_are_chains_of_packets() {
        let mut ring = Ring::new(shape(2, 2048, 10), TPACKET_V3, 0).unwrap();
        assert_eq!(ring.pending_block(), None);
        assert_eq!(ring.write_packet(&arrival(b"first")), (true, false));
        assert_eq!(ring.write_packet(&arrival(b"second")), (true, false));
        let (sequence, patience) = ring.pending_block().unwrap();
        assert_eq!(patience, 10);
        assert!(!ring.retire_expired_block(sequence + 1) && !ring.is_readable());
        assert!(ring.retire_expired_block(sequence) && ring.is_readable());
        assert_eq!(
            (ring.word(8), ring.word(12), ring.word(16)),
            (TP_STATUS_USER | TP_STATUS_BLK_TMO, 2, 48)
        );
        let mut at = 48;
        for text in [&b"first"[..], b"second"] {
            assert_eq!(ring.word(at + 12) as usize, text.len());
            let mac = bytes(&ring, at + 24, 2);
            let mac = usize::from(u16::from_ne_bytes([mac[0], mac[1]]));
            assert_eq!(bytes(&ring, at + mac, text.len()), text);
            at += ring.word(at) as usize;
        }
        assert_eq!(ring.word(at), 0);
    }

    proptest::proptest! {
        #[test]
        fn nothing_is_written_to_what_is_the_programs(lengths in proptest::collection::vec(0usize..9000, 1..40), version in 0u32..3) {
            let mut ring = Ring::new(shape(3, 4096, 1), version, 0).unwrap();
            let mut put = 0;
            for length in lengths {
                let owned: Vec<usize> = (0..3).filter(|block| version == TPACKET_V3 && ring.word(block * 2 * PAGE_SIZE + 8) != TP_STATUS_KERNEL).collect();
                let before: Vec<Vec<u8>> = owned.iter().map(|block| bytes(&ring, block * 2 * PAGE_SIZE, 2 * PAGE_SIZE)).collect();
                put += usize::from(ring.write_packet(&arrival(&vec![1; length])).0);
                for (block, before) in owned.iter().zip(before) {
                    proptest::prop_assert_eq!(bytes(&ring, block * 2 * PAGE_SIZE, 2 * PAGE_SIZE), before);
                }
            }
            proptest::prop_assert!(put > 0);
        }
    }

    #[test]
    fn shapes_that_make_no_sense_are_refused() {
        let good = RingRequest {
            block_size: 8192,
            block_count: 2,
            frame_size: 2048,
            frame_count: 8,
            retire_timeout_ms: 0,
            private_size: 0,
        };
        let made = |shape: RingRequest, version, reserve| Ring::new(shape, version, reserve).err();
        assert_eq!(
            (
                made(good, TPACKET_V1, 0),
                made(good, TPACKET_V2, 0),
                made(good, TPACKET_V3, 0),
                made(good, 3, 0)
            ),
            (None, None, None, Some(Errno::EINVAL))
        );
        for bad in [
            RingRequest {
                block_size: 4096 + 2048,
                frame_count: 6,
                ..good
            },
            RingRequest {
                block_size: 0,
                ..good
            },
            RingRequest {
                frame_size: 0,
                ..good
            },
            RingRequest {
                frame_size: 2040,
                ..good
            },
            RingRequest {
                frame_size: 16_384,
                frame_count: 0,
                ..good
            },
            RingRequest {
                frame_count: 7,
                ..good
            },
            RingRequest {
                frame_count: 9,
                ..good
            },
            RingRequest {
                block_count: usize::MAX,
                ..good
            },
        ] {
            assert_eq!(made(bad, TPACKET_V2, 0), Some(Errno::EINVAL));
        }
        // A frame holds its header, the address, and what is kept free before the packet.
        let small = RingRequest {
            frame_size: 64,
            frame_count: 256,
            ..good
        };
        assert_eq!(
            (made(small, TPACKET_V2, 12), made(small, TPACKET_V2, 13)),
            (None, Some(Errno::EINVAL))
        );
        assert_eq!(
            made(
                RingRequest {
                    frame_size: 48,
                    frame_count: 340,
                    ..good
                },
                TPACKET_V2,
                0
            ),
            Some(Errno::EINVAL)
        );
        // A block of version 3 holds two empty packets beside what is the program's own: 48 + 2 *
        // 100.
        let private = |private| {
            made(
                RingRequest {
                    private_size: private,
                    ..good
                },
                TPACKET_V3,
                0,
            )
        };
        assert_eq!(
            (
                private(8192 - 248 - 1),
                private(8192 - 248),
                private(usize::MAX)
            ),
            (None, Some(Errno::EINVAL), Some(Errno::EINVAL))
        );
        assert_eq!(
            made(
                RingRequest {
                    private_size: 1 << 20,
                    ..good
                },
                TPACKET_V2,
                0
            ),
            None,
            "older ones have no such part"
        );
        // The most there may be.
        let large = |blocks| RingRequest {
            block_size: 1 << 22,
            block_count: blocks,
            frame_size: 1 << 22,
            frame_count: blocks,
            ..good
        };
        assert_eq!(made(large(65), TPACKET_V2, 0), Some(Errno::ENOMEM));
    }

    #[test]
    fn frames_lie_in_blocks_and_times_are_of_the_version() {
        // Three frames to a block of two pages, and a rest.
        let shape = RingRequest {
            block_size: 8192,
            block_count: 2,
            frame_size: 2720,
            frame_count: 6,
            retire_timeout_ms: 0,
            private_size: 0,
        };
        for version in [TPACKET_V1, TPACKET_V2] {
            let mut ring = Ring::new(shape, version, 0).unwrap();
            assert!(!ring.is_readable());
            for frame in [0, 2720, 5440, 8192, 10_912, 13_632] {
                let link = if frame == 0 { 0 } else { 14 };
                assert_eq!(
                    ring.write_packet(&RingPacket {
                        original_len: 5000,
                        link_header_len: link,
                        timestamp_ns: 3_000_007_999,
                        ..arrival(&[7; 4000])
                    }),
                    (true, true)
                );
                assert!(ring.is_readable());
                // As much as there is room for is kept. Without a link's header both places are the
                // same.
                let (mac, network) = if link == 0 { (80, 80) } else { (66, 80) };
                let lengths = if version == TPACKET_V1 {
                    frame + 8
                } else {
                    frame + 4
                };
                assert_eq!(
                    (ring.word(lengths), ring.word(lengths + 4)),
                    (5000, 2720 - mac)
                );
                assert_eq!(ring.word(lengths + 8), network << 16 | mac);
                let parts = if version == TPACKET_V1 { 7 } else { 7999 };
                assert_eq!(
                    (ring.word(lengths + 12), ring.word(lengths + 16)),
                    (3, parts)
                );
                assert_eq!(
                    bytes(&ring, frame + mac as usize, 2720 - mac as usize),
                    vec![7; 2720 - mac as usize]
                );
            }
            assert_eq!(ring.write_packet(&arrival(b"x")), (false, false));
            assert_eq!(
                (
                    ring.pending_block(),
                    ring.retire_expired_block(0),
                    ring.freezes
                ),
                (None, false, 0)
            );
        }
    }

    /// Blocks go to the program full or when their time has come, come back, and until then packets
    /// are lost and that is counted once.
    #[test]
    fn blocks_go_and_come_back() {
        let mut ring = Ring::new(
            RingRequest {
                private_size: 20,
                ..shape(2, 2048, 0)
            },
            TPACKET_V3,
            0,
        )
        .unwrap();
        assert_eq!(ring.pending_block(), None);
        // With the 82 bytes before it each takes 4056; two, and the 72 of the block itself, leave
        // 8.
        let long = vec![5; 3974];
        let placed = |ring: &mut Ring| ring.write_packet(&arrival(&long));
        assert_eq!(
            (placed(&mut ring), placed(&mut ring)),
            ((true, false), (true, false))
        );
        assert_eq!(ring.pending_block(), Some((1, 8)), "the usual patience");
        assert_eq!((ring.word(8), ring.word(12)), (TP_STATUS_KERNEL, 0));
        assert_eq!(ring.write_packet(&arrival(b"next")), (true, true));
        assert!(ring.is_readable());
        assert_eq!(
            (ring.word(8), ring.word(12), ring.word(16)),
            (TP_STATUS_USER, 2, 72)
        );
        assert_eq!(
            ring.word(72),
            ring.word(20) - 72 - ring.word(72),
            "both are as long"
        );
        assert_eq!((ring.pending_block(), ring.freezes), (Some((2, 8)), 0));
        // The second goes by its time; the first is not back.
        assert!(ring.retire_expired_block(2) && !ring.retire_expired_block(2));
        assert_eq!(
            (ring.word(8192 + 8), ring.freezes),
            (TP_STATUS_USER | TP_STATUS_BLK_TMO, 1)
        );
        assert_eq!(
            (
                ring.write_packet(&arrival(b"lost")),
                ring.write_packet(&arrival(b"lost")),
                ring.freezes
            ),
            ((false, false), (false, false), 1)
        );
        ring.write(8, &TP_STATUS_KERNEL.to_ne_bytes());
        assert_eq!(ring.write_packet(&arrival(b"back")), (true, false));
        assert_eq!(
            (ring.word(72 + 20), ring.pending_block()),
            (TP_STATUS_USER | TP_STATUS_LOSING, Some((3, 8)))
        );
        assert_eq!(ring.write_packet(&arrival(b"then")), (true, false));
        let second = 72 + ring.word(72) as usize;
        assert_eq!(ring.word(second + 20), TP_STATUS_USER);
        // Packets are cut to what a block has room for.
        let mut ring = Ring::new(shape(2, 2048, 0), TPACKET_V3, 0).unwrap();
        assert_eq!(ring.write_packet(&arrival(&vec![1; 20_000])), (true, false));
        assert_eq!(
            (ring.word(48 + 12), ring.word(48 + 16)),
            (8192 - 48 - 82, 20_000)
        );
        assert!(ring.page(3).is_some() && ring.page(4).is_none());
    }
}
