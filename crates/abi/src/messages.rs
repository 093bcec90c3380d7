//! Memory for messages between two instances (`docs/messages.md`).
//!
//! Two instances that are peers share two pages, of which each writes one and reads the other: no
//! word has two writers, and page tables hold that. Neither side believes what it reads.

use core::mem::{offset_of, size_of};
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::layout::PAGE_SIZE;

/// Messages that one side can have sent and the other not taken yet.
pub const CELLS: usize = 32;
/// Words of a message that are its sender's; the first word of a cell is its stamp.
pub const WORDS: usize = 7;
/// Bytes of a message, its stamp included.
pub const MESSAGE_BYTES: usize = 8 * (WORDS + 1);
/// Most names of peers that an instance is created with.
pub const MAX_NAMES: usize = 8;
/// Most groups that an instance is created with. Their numbers follow those of the names.
pub const MAX_GROUPS: usize = 4;
/// Places for peers of an instance with names: two for each name, because a place that a peer has
/// left is only given to its successor when the instance has answered.
pub const PEER_PLACES: usize = 2 * MAX_NAMES;
/// Places for members of all groups of an instance, behind those for peers.
pub const MEMBER_PLACES: usize = 16;
/// All places of an instance with groups.
pub const MAX_PLACES: usize = PEER_PLACES + MEMBER_PLACES;
/// Bytes of a place: the page that this side writes, and behind it that of the peer.
pub const PLACE_BYTES: usize = 2 * PAGE_SIZE;
/// Bytes of all places.
pub const SIZE: usize = MAX_PLACES * PLACE_BYTES;
/// Name on an instance's command line behind which the names of its peers stand.
pub const COMMAND_LINE: &str = "peers";
/// Name on an instance's command line behind which the names of its groups stand.
pub const GROUPS_COMMAND_LINE: &str = "groups";

/// Progress of a side as the receiver of what the other one sends.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Receipt {
    /// Stamp of the last message that it has taken; any other generation's: none yet.
    pub taken: AtomicU64,
    /// Stamp of the message for which it wants a doorbell; 0: none.
    pub awaited: AtomicU64,
}

/// Wishes of a side as a sender.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Wish {
    /// Stamp of the message for which it wants a doorbell when it is taken; 0: none.
    pub room: AtomicU64,
}

/// Counts of a side's kernel, for the supervisor to show. Its word and nothing more.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Counters {
    /// Messages sent.
    pub sent: AtomicU64,
    /// Messages taken.
    pub received: AtomicU64,
    /// Messages that programs wanted to send when there was no room.
    pub refused: AtomicU64,
    /// Doorbells rung, by the guard.
    pub doorbells: AtomicU64,
    /// Times that doorbells were not listened to for a while, because the peer had rung for
    /// nothing.
    pub held_back: AtomicU64,
}

impl Counters {
    /// All of them.
    fn all(&self) -> [&AtomicU64; 5] {
        let Self {
            sent,
            received,
            refused,
            doorbells,
            held_back,
        } = self;
        [sent, received, refused, doorbells, held_back]
    }
}

/// A page of messages: one side's, which alone writes it.
#[derive(Debug)]
#[repr(C, align(4096))]
pub struct MessagePage {
    /// Words that the side writes as a receiver.
    pub receipt: Receipt,
    /// Words that the side writes as a sender.
    pub wish: Wish,
    /// Counts of the side's kernel.
    pub counters: Counters,
    _padding: [AtomicU64; 29 * 8],
    /// Messages that it sends.
    pub cells: [[AtomicU64; WORDS + 1]; CELLS],
}

const _: () = {
    assert!(size_of::<MessagePage>() == PAGE_SIZE);
    assert!(offset_of!(MessagePage, wish) == 64 && offset_of!(MessagePage, counters) == 128);
    assert!(offset_of!(MessagePage, cells) == 2048);
    assert!(MESSAGE_BYTES == size_of::<[AtomicU64; WORDS + 1]>() && CELLS.is_power_of_two());
};

impl MessagePage {
    /// Makes it one of which nothing is known: all zeroes. By the supervisor, when no instance uses
    /// it.
    pub fn reset(&self) {
        let Self {
            receipt,
            wish,
            counters,
            _padding: _,
            cells,
        } = self;
        let words = [&receipt.taken, &receipt.awaited, &wish.room];
        let cells = cells.as_flattened();
        for word in words.into_iter().chain(counters.all()).chain(cells) {
            word.store(0, Ordering::Relaxed);
        }
    }
}

/// Places that an instance has.
#[must_use]
pub const fn places(has_peers: bool, has_groups: bool) -> usize {
    match (has_peers, has_groups) {
        (_, true) => MAX_PLACES,
        (true, false) => PEER_PLACES,
        (false, false) => 0,
    }
}

/// Places that are for peers of a name, or for members of a group.
#[must_use]
pub const fn places_for(name: u8) -> Range<usize> {
    match is_group(name) {
        true => PEER_PLACES..MAX_PLACES,
        false => 0..PEER_PLACES,
    }
}

/// Whether the number of a name is that of a group.
#[must_use]
pub const fn is_group(name: u8) -> bool {
    name as usize >= MAX_NAMES
}

/// A peer of an instance, or another member of a group of its, as the dynamic part of its
/// descriptor says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    /// Place of the pages: below [`MAX_PLACES`].
    pub place: u8,
    /// Number of its name among those that the instance was created with: below [`MAX_NAMES`],
    /// of a member that of the group, from there on.
    pub name: u8,
    /// Number of the instance that it is.
    pub instance: u32,
    /// APIC id of the CPU that takes its doorbell.
    pub apic_id: u32,
    /// Generation of the two as peers: not 0, and never the same again.
    pub generation: u32,
}

/// Vectors that a peer's doorbell can have: that of the same kernel.
pub const VECTORS: Range<u64> = 0x20..0xff;

#[cfg(test)]
mod tests {
    use std::boxed::Box;

    use super::*;

    #[test]
    fn a_page_that_is_reset_is_all_zeroes() {
        let page = Box::new(MessagePage {
            receipt: Receipt::default(),
            wish: Wish::default(),
            counters: Counters::default(),
            _padding: [const { AtomicU64::new(0) }; 29 * 8],
            cells: [const { [const { AtomicU64::new(0) }; WORDS + 1] }; CELLS],
        });
        let words = || {
            let counters = page.counters.all();
            let others = [&page.receipt.taken, &page.receipt.awaited, &page.wish.room];
            let cells = page.cells.as_flattened();
            others.into_iter().chain(counters).chain(cells)
        };
        words().for_each(|word| word.store(u64::MAX, Ordering::Relaxed));
        page.reset();
        assert!(words().all(|word| word.load(Ordering::Relaxed) == 0));
        assert_eq!(words().count(), 8 + 8 * CELLS);
    }
}
