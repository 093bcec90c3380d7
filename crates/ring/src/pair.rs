//! Messages between two instances that trust each other with nothing (`docs/messages.md`,
//! [`abi::messages`]; RainForest's FICM, section 5.2).
//!
//! Each side writes words of its own only, which the other reads. A message is one cache line that
//! begins with its *stamp*: the generation of the two as peers, and the message's number. A
//! receiver takes the message whose stamp is the very one that it expects next, and looks at
//! nothing else of what the sender says: there is no index that could be wrong. What an earlier
//! incarnation of a side has left, or has not finished, bears other stamps, and so is nothing.
//!
//! A doorbell is wanted for one message, by its stamp; who does not say so polls, and is not rung.

#[cfg(not(loom))]
pub use abi::messages::{CELLS, WORDS};

use crate::sync::{AtomicU64, Ordering, fence, point};

/// Messages of a full ring under loom, which looks at all interleavings: few.
#[cfg(loom)]
pub const CELLS: usize = 2;
/// Words of a message beside its stamp, likewise.
#[cfg(loom)]
pub const WORDS: usize = 1;

/// Number of messages of a full ring.
const ALL: u32 = CELLS as u32;

/// Generation of two as peers and a message's number, as one word; never 0.
const fn stamp(generation: u32, number: u32) -> u64 {
    (generation as u64) << 32 | number as u64
}

/// Words that one side writes and the other reads.
#[derive(Clone, Copy, Debug)]
pub struct Side<'a> {
    /// `Receipt::taken`.
    pub taken: &'a AtomicU64,
    /// `Receipt::awaited`.
    pub awaited: &'a AtomicU64,
    /// `Wish::room`.
    pub room: &'a AtomicU64,
    /// Cells of what it sends.
    pub cells: &'a [[AtomicU64; WORDS + 1]; CELLS],
}

/// Memory of two peers, as one of them sees it. It stores into its own words only: the others may
/// be mapped read-only.
#[derive(Clone, Copy, Debug)]
pub struct Pair<'a> {
    own: Side<'a>,
    others: Side<'a>,
}

impl<'a> Pair<'a> {
    /// The words of this side, and those of the other one.
    #[must_use]
    pub const fn new(own: Side<'a>, others: Side<'a>) -> Self {
        Self { own, others }
    }
}

/// Whether the other side is to be rung for what was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Doorbell {
    /// Somebody waits for that there.
    Wanted,
    /// Nobody does.
    Needless,
}

/// There is no room for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// The sending end of one generation.
#[derive(Clone, Copy, Debug)]
pub struct Sender {
    generation: u32,
    /// Number of the last message that was sent.
    sent: u32,
    /// Number of the message for which a doorbell was asked, until there was room again.
    wish: Option<u32>,
}

impl Sender {
    /// The sending end of a new generation.
    #[must_use]
    pub const fn new(generation: u32) -> Self {
        Self {
            generation,
            sent: 0,
            wish: None,
        }
    }

    /// Messages that are not taken yet; all that there is room for, if the other side says what
    /// cannot be.
    fn outstanding(&self, pair: &Pair<'_>) -> u32 {
        point("pair: before the receipt is read");
        let taken = pair.others.taken.load(Ordering::Acquire);
        let taken = match (taken >> 32) as u32 == self.generation {
            true => taken as u32,
            false => 0,
        };
        self.sent.wrapping_sub(taken).min(ALL)
    }

    /// Whether a message would be taken in.
    #[must_use]
    pub fn has_room(&self, pair: &Pair<'_>) -> bool {
        self.outstanding(pair) < ALL
    }

    /// Sends a message. Never waits.
    ///
    /// # Errors
    /// [`Full`]: nothing was sent.
    pub fn send(&mut self, pair: &Pair<'_>, words: &[u64; WORDS]) -> Result<Doorbell, Full> {
        if !self.has_room(pair) {
            return Err(Full);
        }
        let number = self.sent.wrapping_add(1);
        let stamp = stamp(self.generation, number);
        let [first, rest @ ..] = &pair.own.cells[number as usize % CELLS];
        for (to, from) in rest.iter().zip(words) {
            point("pair: between two words");
            to.store(*from, Ordering::Relaxed);
        }
        point("pair: before the stamp");
        // Whoever sees the stamp sees the words.
        first.store(stamp, Ordering::Release);
        self.sent = number;
        // The stamp, then the look for a wish; the receiver does it the other way round.
        fence(Ordering::SeqCst);
        point("pair: before the look for a wish");
        Ok(wanted(pair.others.awaited, stamp))
    }

    /// Whether the doorbell that was asked for by [`Self::await_room`] is due, the first time that
    /// it is.
    pub fn has_room_again(&mut self, pair: &Pair<'_>) -> bool {
        let is_due = self.wish.is_some() && self.outstanding(pair) <= ALL / 2;
        if is_due {
            self.wish = None;
        }
        is_due
    }

    /// Asks for a doorbell when half of what is outstanding is taken, after there was no room.
    /// Returns whether there is room after all.
    pub fn await_room(&mut self, pair: &Pair<'_>) -> bool {
        let half = self.sent.wrapping_sub(ALL / 2);
        self.wish = Some(half);
        point("pair: before the wish for room");
        pair.own
            .room
            .store(stamp(self.generation, half), Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.has_room(pair)
    }
}

/// Whether a side wants to be rung for the message of a stamp.
fn wanted(wish: &AtomicU64, stamp: u64) -> Doorbell {
    match wish.load(Ordering::Relaxed) == stamp {
        true => Doorbell::Wanted,
        false => Doorbell::Needless,
    }
}

/// A message that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Number of the message in its generation; the first is 1.
    pub number: u32,
    /// Content: the sender's word.
    pub words: [u64; WORDS],
    /// Whether the sender waits for room.
    pub doorbell: Doorbell,
}

/// The receiving end of one generation.
#[derive(Clone, Copy, Debug)]
pub struct Receiver {
    generation: u32,
    /// Number of the last message that was taken.
    taken: u32,
}

impl Receiver {
    /// The receiving end of a new generation.
    #[must_use]
    pub const fn new(generation: u32) -> Self {
        let taken = 0;
        Self { generation, taken }
    }

    /// Stamp of the next message.
    const fn expected(&self) -> u64 {
        stamp(self.generation, self.taken.wrapping_add(1))
    }

    /// The cell of the next message, if it is there.
    fn arrived<'a>(&self, pair: &Pair<'a>) -> Option<&'a [AtomicU64]> {
        let number = self.taken.wrapping_add(1);
        let [stamp, words @ ..] = &pair.others.cells[number as usize % CELLS];
        point("pair: before the stamp is read");
        let there = stamp.load(Ordering::Acquire) == self.expected();
        there.then_some(words)
    }

    /// Whether a message is there.
    #[must_use]
    pub fn has_message(&self, pair: &Pair<'_>) -> bool {
        self.arrived(pair).is_some()
    }

    /// Takes the next message, if it is there. Never waits.
    pub fn receive(&mut self, pair: &Pair<'_>) -> Option<Received> {
        let cell = self.arrived(pair)?;
        let mut words = [0; WORDS];
        for (to, from) in words.iter_mut().zip(cell) {
            point("pair: between two reads");
            *to = from.load(Ordering::Relaxed);
        }
        let stamp = self.expected();
        self.taken = self.taken.wrapping_add(1);
        // No word is read after the sender may write it again.
        pair.own.taken.store(stamp, Ordering::Release);
        fence(Ordering::SeqCst);
        point("pair: before the look for a wish");
        Some(Received {
            number: self.taken,
            words,
            doorbell: wanted(pair.others.room, stamp),
        })
    }

    /// Asks for a doorbell for the next message, after none was there. Returns whether one is there
    /// after all.
    pub fn await_message(&self, pair: &Pair<'_>) -> bool {
        point("pair: before the wish for a message");
        pair.own.awaited.store(self.expected(), Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.has_message(pair)
    }
}

#[cfg(test)]
#[path = "pair/tests.rs"]
mod tests;
