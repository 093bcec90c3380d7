//! Packets in memory that a program maps (`PACKET_RX_RING`): what is written, and who owns which part of it.
//!
//! Facts: Linux, `Documentation/networking/packet_mmap.rst` and `include/uapi/linux/if_packet.h`.

use abi::errno::Errno;
use alloc::vec::Vec;
use core::sync::atomic::{Ordering, fence};
use fs::Result;
use vm::{PAGE_SIZE, Page};

/// Versions of the headers.
const V1: u32 = 0;
const V2: u32 = 1;
pub(super) const V3: u32 = 2;
/// The most a ring may have, bytes.
const MOST: usize = 1 << 28;
/// Bytes of `struct sockaddr_ll`, which follows a header.
const ADDRESS: usize = 20;
const ALIGNMENT: usize = 16;
/// Bytes of a block's header, and to what packets in it are aligned.
const BLOCK_HEADER: usize = 48;
const BLOCK_ALIGNMENT: usize = 8;
/// Who owns a frame or a block, and what else is said of it.
const KERNEL: u32 = 0;
pub(super) const USER: u32 = 1;
const LOSING: u32 = 1 << 2;
const BLOCK_TIMED_OUT: u32 = 1 << 5;

/// Bytes of a packet's header.
///
/// # Errors
/// `EINVAL` for a version that there is not.
pub(super) fn header_length(version: u32) -> Result<usize> {
    match version {
        V1 | V2 => Ok(32),
        V3 => Ok(48),
        _ => Err(Errno::EINVAL),
    }
}

/// What a program asks for.
#[derive(Clone, Copy)]
pub(super) struct RingRequest {
    pub(super) block_size: usize,
    pub(super) blocks: usize,
    pub(super) frame_size: usize,
    pub(super) frames: usize,
    /// Milliseconds after which a block that holds anything is given to the program; of version 3.
    pub(super) patience: u32,
    /// Bytes of each block that are the program's own.
    pub(super) private: usize,
}

/// A packet to be written.
pub(super) struct RingPacket<'a> {
    pub(super) data: &'a [u8],
    /// How many bytes it had before the filter.
    pub(super) full: usize,
    /// Bytes of the link's header in it.
    pub(super) link: usize,
    /// Nanoseconds since 1970.
    pub(super) time: u64,
    /// `struct sockaddr_ll`.
    pub(super) address: &'a [u8],
}

/// The block that is being filled, of version 3.
#[derive(Clone, Copy, Default)]
struct CurrentBlock {
    packets: u32,
    /// Where the next packet goes, and where the last one is.
    end: usize,
    last: usize,
}

/// A ring.
pub(super) struct Ring {
    pages: Vec<Page>,
    shape: RingRequest,
    version: u32,
    /// Bytes left free before each packet.
    reserve: usize,
    /// The frame or block that is written next.
    at: usize,
    open: CurrentBlock,
    sequence: u64,
    /// Packets have been lost since the last one that was written.
    losing: bool,
    /// How often there was no block to go on with.
    pub(super) freezes: u32,
    frozen: bool,
}

impl Ring {
    /// A ring of a shape.
    ///
    /// # Errors
    /// `EINVAL` for one that makes no sense, `ENOMEM`.
    pub(super) fn new(shape: RingRequest, version: u32, reserve: usize) -> Result<Self> {
        let header = header_length(version)? + ADDRESS;
        let whole =
            shape.block_size.is_multiple_of(PAGE_SIZE) && shape.block_size > 0 && shape.frame_size.is_multiple_of(ALIGNMENT);
        let per_block = shape.block_size.checked_div(shape.frame_size).unwrap_or(0);
        let fits =
            shape.frame_size >= header + reserve && per_block > 0 && per_block.checked_mul(shape.blocks) == Some(shape.frames);
        // A block holds more than one empty packet.
        let least = BLOCK_HEADER.saturating_add(shape.private).saturating_add(2 * (header + reserve + 2 * ALIGNMENT));
        let holds = version != V3 || least < shape.block_size;
        if !whole || !fits || !holds {
            return Err(Errno::EINVAL);
        }
        let size = shape.block_size.checked_mul(shape.blocks).filter(|size| *size <= MOST).ok_or(Errno::ENOMEM)?;
        let pages = (0..size / PAGE_SIZE).map(|_| Page::zeroed()).collect::<Option<Vec<Page>>>().ok_or(Errno::ENOMEM)?;
        let mut ring = Self {
            pages,
            shape,
            version,
            reserve,
            at: 0,
            open: CurrentBlock::default(),
            sequence: 0,
            losing: false,
            freezes: 0,
            frozen: false,
        };
        if version == V3 {
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
    fn hand_over(&self, at: usize, status: u32) {
        fence(Ordering::SeqCst);
        self.write(at, &status.to_ne_bytes());
    }

    fn frame(&self, number: usize) -> usize {
        let per_block = self.shape.block_size / self.shape.frame_size;
        number / per_block * self.shape.block_size + number % per_block * self.shape.frame_size
    }

    /// Where in a frame the packet begins, and where what is behind the link's header.
    fn offsets(&self, link: usize) -> (usize, usize) {
        let header = header_length(self.version).unwrap_or(0) + ADDRESS;
        if link == 0 {
            let at = header.next_multiple_of(ALIGNMENT) + ALIGNMENT + self.reserve;
            return (at, at);
        }
        let network = (header + link.max(ALIGNMENT)).next_multiple_of(ALIGNMENT) + self.reserve;
        (network - link, network)
    }

    /// Whether the program has something to look at.
    pub(super) fn has_news(&self) -> bool {
        if self.version == V3 {
            let before = self.at.checked_sub(1).unwrap_or(self.shape.blocks - 1);
            return self.word(before * self.shape.block_size + 8) != KERNEL;
        }
        let before = self.at.checked_sub(1).unwrap_or(self.shape.frames - 1);
        self.word(self.frame(before)) != KERNEL
    }

    /// Writes a packet; `false`: there is no room for it. What is said second is whether whoever waits has something to look at.
    pub(super) fn put(&mut self, arrival: &RingPacket<'_>) -> (bool, bool) {
        let written = if self.version == V3 { self.put_in_block(arrival) } else { self.put_in_frame(arrival) };
        self.losing = written.is_none();
        (written.is_some(), written.unwrap_or(false))
    }

    fn put_in_frame(&mut self, arrival: &RingPacket<'_>) -> Option<bool> {
        let start = self.frame(self.at);
        // Versions 1 and 2 have the status in the first word; of version 1 it is a long one.
        if self.word(start) != KERNEL {
            return None;
        }
        let (mac, network) = self.offsets(arrival.link);
        let kept = arrival.data.len().min(self.shape.frame_size.saturating_sub(mac));
        self.write(start + mac, &arrival.data[..kept]);
        let header = header_length(self.version).unwrap_or(0);
        self.write(start + header, arrival.address);
        let places = [mac as u16, network as u16].map(u16::to_ne_bytes).concat();
        let lengths = [arrival.full as u32, kept as u32].map(u32::to_ne_bytes).concat();
        let (seconds, rest) = ((arrival.time / 1_000_000_000) as u32, (arrival.time % 1_000_000_000) as u32);
        if self.version == V1 {
            let time = [seconds, rest / 1000].map(u32::to_ne_bytes).concat();
            self.write(start + 8, &[lengths, places, time].concat());
        } else {
            let time = [seconds, rest].map(u32::to_ne_bytes).concat();
            self.write(start + 4, &[lengths, places, time, [0; 8].to_vec()].concat());
        }
        self.hand_over(start, USER | if self.losing { LOSING } else { 0 });
        self.at = (self.at + 1) % self.shape.frames;
        Some(true)
    }

    /// Begins the block that is next.
    fn open_block(&mut self) {
        let first = (BLOCK_HEADER + self.shape.private.next_multiple_of(BLOCK_ALIGNMENT)) as u32;
        let start = self.at * self.shape.block_size;
        self.sequence += 1;
        // Version, where the private part is, status, packets, the first one, length; the number.
        let words = [1u32, BLOCK_HEADER as u32, KERNEL, 0, first, first].map(u32::to_ne_bytes).concat();
        self.write(start, &[&words[..], &self.sequence.to_ne_bytes()].concat());
        self.open = CurrentBlock { packets: 0, end: first as usize, last: 0 };
        self.frozen = false;
    }

    /// Gives the block that is being filled to the program, and begins the next if it has been given back.
    fn retire(&mut self, status: u32) {
        let start = self.at * self.shape.block_size;
        self.write(start + 12, &self.open.packets.to_ne_bytes());
        self.write(start + 20, &(self.open.end as u32).to_ne_bytes());
        self.hand_over(start + 8, USER | status);
        self.at = (self.at + 1) % self.shape.blocks;
        self.open = CurrentBlock::default();
        self.thaw();
    }

    /// Goes on if the next block has been given back.
    fn thaw(&mut self) {
        if self.word(self.at * self.shape.block_size + 8) == KERNEL {
            self.open_block();
        } else if !self.frozen {
            self.frozen = true;
            self.freezes += 1;
        }
    }

    fn put_in_block(&mut self, arrival: &RingPacket<'_>) -> Option<bool> {
        if self.frozen {
            self.thaw();
        }
        if self.frozen {
            return None;
        }
        let (mac, network) = self.offsets(arrival.link);
        let first = BLOCK_HEADER + self.shape.private.next_multiple_of(BLOCK_ALIGNMENT);
        let kept = arrival.data.len().min(self.shape.block_size - first - mac);
        let length = (mac + kept).next_multiple_of(BLOCK_ALIGNMENT);
        let mut retired = false;
        if self.open.end + length > self.shape.block_size {
            self.retire(0);
            retired = true;
            if self.frozen {
                return None;
            }
        }
        let start = self.at * self.shape.block_size;
        let at = start + self.open.end;
        let time = [(arrival.time / 1_000_000_000) as u32, (arrival.time % 1_000_000_000) as u32].map(u32::to_ne_bytes).concat();
        self.write(at + mac, &arrival.data[..kept]);
        self.write(at + 48, arrival.address);
        let status = USER | if self.losing { LOSING } else { 0 };
        let words = [kept as u32, arrival.full as u32, status].map(u32::to_ne_bytes).concat();
        let places = [mac as u16, network as u16].map(u16::to_ne_bytes).concat();
        self.write(at, &[&[0; 4][..], &time, &words, &places, &[0; 20]].concat());
        if self.open.packets == 0 {
            self.write(start + 32, &time);
        } else {
            // Where the one before ends, this one is.
            self.write(start + self.open.last, &((self.open.end - self.open.last) as u32).to_ne_bytes());
        }
        self.write(start + 40, &time);
        self.open = CurrentBlock { packets: self.open.packets + 1, end: self.open.end + length, last: self.open.end };
        Some(retired)
    }

    /// The number of the block that is being filled if it holds anything, and after how many milliseconds it is given to the program.
    pub(super) fn waits(&self) -> Option<(u64, u32)> {
        const DEFAULT: u32 = 8;
        let patience = if self.shape.patience == 0 { DEFAULT } else { self.shape.patience };
        (self.version == V3 && self.open.packets > 0).then_some((self.sequence, patience))
    }

    /// The time of the block with a number has come. Whether it was given to the program.
    pub(super) fn time_out(&mut self, sequence: u64) -> bool {
        let meant = self.waits().is_some_and(|(open, _)| open == sequence);
        if meant {
            self.retire(BLOCK_TIMED_OUT);
        }
        meant
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(blocks: usize, frame_size: usize, patience: u32) -> RingRequest {
        let block_size = 2 * PAGE_SIZE;
        RingRequest { block_size, blocks, frame_size, frames: block_size / frame_size * blocks, patience, private: 0 }
    }

    fn arrival(data: &[u8]) -> RingPacket<'_> {
        RingPacket { data, full: data.len(), link: 14, time: 3_000_000_007, address: &[9; ADDRESS] }
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
        let mut ring = Ring::new(shape(1, 2048, 0), V2, 4).unwrap();
        for i in 0..4u8 {
            assert!(!ring.has_news() || i > 0);
            assert_eq!(ring.put(&arrival(&[i; 100])), (true, true));
        }
        assert_eq!(ring.put(&arrival(b"x")), (false, false));
        for i in 0..4u8 {
            let at = usize::from(i) * 2048;
            assert_eq!(ring.word(at), USER);
            assert_eq!((ring.word(at + 4), ring.word(at + 8)), (100, 100));
            let places = bytes(&ring, at + 12, 4);
            let (mac, network) = (u16::from_ne_bytes([places[0], places[1]]), u16::from_ne_bytes([places[2], places[3]]));
            assert_eq!((mac, network), (70, 84));
            assert_eq!(bytes(&ring, at + 70, 100), [i; 100]);
            assert_eq!(bytes(&ring, at + 32, ADDRESS), [9; ADDRESS]);
        }
        ring.write(0, &KERNEL.to_ne_bytes());
        assert_eq!(ring.put(&arrival(b"y")), (true, true));
        assert_eq!(ring.word(0), USER | LOSING);
    }

    #[test]
    fn blocks_are_chains_of_packets() {
        let mut ring = Ring::new(shape(2, 2048, 10), V3, 0).unwrap();
        assert_eq!(ring.waits(), None);
        assert_eq!(ring.put(&arrival(b"first")), (true, false));
        assert_eq!(ring.put(&arrival(b"second")), (true, false));
        let (sequence, patience) = ring.waits().unwrap();
        assert_eq!(patience, 10);
        assert!(!ring.time_out(sequence + 1) && !ring.has_news());
        assert!(ring.time_out(sequence) && ring.has_news());
        assert_eq!((ring.word(8), ring.word(12), ring.word(16)), (USER | BLOCK_TIMED_OUT, 2, 48));
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
                let owned: Vec<usize> = (0..3).filter(|block| version == V3 && ring.word(block * 2 * PAGE_SIZE + 8) != KERNEL).collect();
                let before: Vec<Vec<u8>> = owned.iter().map(|block| bytes(&ring, block * 2 * PAGE_SIZE, 2 * PAGE_SIZE)).collect();
                put += usize::from(ring.put(&arrival(&vec![1; length])).0);
                for (block, before) in owned.iter().zip(before) {
                    proptest::prop_assert_eq!(bytes(&ring, block * 2 * PAGE_SIZE, 2 * PAGE_SIZE), before);
                }
            }
            proptest::prop_assert!(put > 0);
        }
    }

    #[test]
    fn shapes_that_make_no_sense_are_refused() {
        let good = RingRequest { block_size: 8192, blocks: 2, frame_size: 2048, frames: 8, patience: 0, private: 0 };
        let made = |shape: RingRequest, version, reserve| Ring::new(shape, version, reserve).err();
        assert_eq!(
            (made(good, V1, 0), made(good, V2, 0), made(good, V3, 0), made(good, 3, 0)),
            (None, None, None, Some(Errno::EINVAL))
        );
        for bad in [
            RingRequest { block_size: 4096 + 2048, frames: 6, ..good },
            RingRequest { block_size: 0, ..good },
            RingRequest { frame_size: 0, ..good },
            RingRequest { frame_size: 2040, ..good },
            RingRequest { frame_size: 16_384, frames: 0, ..good },
            RingRequest { frames: 7, ..good },
            RingRequest { frames: 9, ..good },
            RingRequest { blocks: usize::MAX, ..good },
        ] {
            assert_eq!(made(bad, V2, 0), Some(Errno::EINVAL));
        }
        // A frame holds its header, the address, and what is kept free before the packet.
        let small = RingRequest { frame_size: 64, frames: 256, ..good };
        assert_eq!((made(small, V2, 12), made(small, V2, 13)), (None, Some(Errno::EINVAL)));
        assert_eq!(made(RingRequest { frame_size: 48, frames: 340, ..good }, V2, 0), Some(Errno::EINVAL));
        // A block of version 3 holds two empty packets beside what is the program's own: 48 + 2 * 100.
        let private = |private| made(RingRequest { private, ..good }, V3, 0);
        assert_eq!(
            (private(8192 - 248 - 1), private(8192 - 248), private(usize::MAX)),
            (None, Some(Errno::EINVAL), Some(Errno::EINVAL))
        );
        assert_eq!(made(RingRequest { private: 1 << 20, ..good }, V2, 0), None, "older ones have no such part");
        // The most there may be.
        let large = |blocks| RingRequest { block_size: 1 << 22, blocks, frame_size: 1 << 22, frames: blocks, ..good };
        assert_eq!(made(large(65), V2, 0), Some(Errno::ENOMEM));
    }

    #[test]
    fn frames_lie_in_blocks_and_times_are_of_the_version() {
        // Three frames to a block of two pages, and a rest.
        let shape = RingRequest { block_size: 8192, blocks: 2, frame_size: 2720, frames: 6, patience: 0, private: 0 };
        for version in [V1, V2] {
            let mut ring = Ring::new(shape, version, 0).unwrap();
            assert!(!ring.has_news());
            for frame in [0, 2720, 5440, 8192, 10_912, 13_632] {
                let link = if frame == 0 { 0 } else { 14 };
                assert_eq!(ring.put(&RingPacket { full: 5000, link, time: 3_000_007_999, ..arrival(&[7; 4000]) }), (true, true));
                assert!(ring.has_news());
                // As much as there is room for is kept. Without a link's header both places are the same.
                let (mac, network) = if link == 0 { (80, 80) } else { (66, 80) };
                let lengths = if version == V1 { frame + 8 } else { frame + 4 };
                assert_eq!((ring.word(lengths), ring.word(lengths + 4)), (5000, 2720 - mac));
                assert_eq!(ring.word(lengths + 8), network << 16 | mac);
                let parts = if version == V1 { 7 } else { 7999 };
                assert_eq!((ring.word(lengths + 12), ring.word(lengths + 16)), (3, parts));
                assert_eq!(bytes(&ring, frame + mac as usize, 2720 - mac as usize), vec![7; 2720 - mac as usize]);
            }
            assert_eq!(ring.put(&arrival(b"x")), (false, false));
            assert_eq!((ring.waits(), ring.time_out(0), ring.freezes), (None, false, 0));
        }
    }

    /// Blocks go to the program full or when their time has come, come back, and until then packets are lost and that is counted once.
    #[test]
    fn blocks_go_and_come_back() {
        let mut ring = Ring::new(RingRequest { private: 20, ..shape(2, 2048, 0) }, V3, 0).unwrap();
        assert_eq!(ring.waits(), None);
        // With the 82 bytes before it each takes 4056; two, and the 72 of the block itself, leave 8.
        let long = vec![5; 3974];
        let placed = |ring: &mut Ring| ring.put(&arrival(&long));
        assert_eq!((placed(&mut ring), placed(&mut ring)), ((true, false), (true, false)));
        assert_eq!(ring.waits(), Some((1, 8)), "the usual patience");
        assert_eq!((ring.word(8), ring.word(12)), (KERNEL, 0));
        assert_eq!(ring.put(&arrival(b"next")), (true, true));
        assert!(ring.has_news());
        assert_eq!((ring.word(8), ring.word(12), ring.word(16)), (USER, 2, 72));
        assert_eq!(ring.word(72), ring.word(20) - 72 - ring.word(72), "both are as long");
        assert_eq!((ring.waits(), ring.freezes), (Some((2, 8)), 0));
        // The second goes by its time; the first is not back.
        assert!(ring.time_out(2) && !ring.time_out(2));
        assert_eq!((ring.word(8192 + 8), ring.freezes), (USER | BLOCK_TIMED_OUT, 1));
        assert_eq!((ring.put(&arrival(b"lost")), ring.put(&arrival(b"lost")), ring.freezes), ((false, false), (false, false), 1));
        ring.write(8, &KERNEL.to_ne_bytes());
        assert_eq!(ring.put(&arrival(b"back")), (true, false));
        assert_eq!((ring.word(72 + 20), ring.waits()), (USER | LOSING, Some((3, 8))));
        assert_eq!(ring.put(&arrival(b"then")), (true, false));
        let second = 72 + ring.word(72) as usize;
        assert_eq!(ring.word(second + 20), USER);
        // Packets are cut to what a block has room for.
        let mut ring = Ring::new(shape(2, 2048, 0), V3, 0).unwrap();
        assert_eq!(ring.put(&arrival(&vec![1; 20_000])), (true, false));
        assert_eq!((ring.word(48 + 12), ring.word(48 + 16)), (8192 - 48 - 82, 20_000));
        assert!(ring.page(3).is_some() && ring.page(4).is_none());
    }
}
