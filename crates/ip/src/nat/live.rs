//! Flows as those see them who have no lock of the table: they follow what changes no state.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use super::NoRoom;
use super::state::{Direction, Progress, State};
use super::tuple::Tuple;
use crate::Nanos;

/// Mark of a number that was acknowledged, beside its 32 bits; without it there is none.
const KNOWN: u64 = 1 << 32;
/// Bits of the state's number, and above them the side that has sent a FIN first.
const STATE: u8 = 0xf;
const CLOSING: [u8; 2] = [0x10, 0x20];

/// The words of a flow that packets of one direction write.
struct Side {
    /// When the last one came.
    heard: AtomicU64,
    /// The number that it has acknowledged last, with [`KNOWN`].
    acknowledged: AtomicU64,
    /// A word of the caller's.
    admitted: AtomicU64,
}

/// A flow: the ends of its packets, which stay, and its progress.
///
/// States, and whether it has ended, change with the lock of the table only ([`super::Nat`]).
/// Packets that change neither are followed without ([`Self::follow`]): each direction writes words
/// of its own, each of which is right by itself. What is read of the other direction's may be as it
/// was a packet ago, as if the two had met on the wire.
pub struct LiveFlow {
    arriving: [Tuple; 2],
    state: AtomicU8,
    has_ended: AtomicBool,
    sides: [Side; 2],
}

impl LiveFlow {
    pub(super) fn new(arriving: [Tuple; 2], progress: Progress, now: Nanos) -> Self {
        let side = |number| Side {
            heard: AtomicU64::new(now),
            acknowledged: AtomicU64::new(word_of(number)),
            admitted: AtomicU64::new(0),
        };
        Self {
            arriving,
            state: AtomicU8::new(word_of_state(progress)),
            has_ended: AtomicBool::new(false),
            sides: progress.acknowledged.map(side),
        }
    }

    /// The ends of its packets as they arrive, by direction.
    #[must_use]
    pub fn arriving(&self) -> &[Tuple; 2] {
        &self.arriving
    }

    /// The direction of packets that arrive with these ends; `None` if they are of another flow.
    #[must_use]
    pub fn direction_of(&self, arriving: &Tuple) -> Option<Direction> {
        let all = [Direction::Original, Direction::Reply];
        all.into_iter()
            .find(|direction| self.arriving[*direction as usize] == *arriving)
    }

    /// The ends of its packets in a direction as they leave.
    #[must_use]
    pub fn leaving(&self, direction: Direction) -> Tuple {
        self.arriving[direction.other() as usize].reversed()
    }

    /// The word that the caller has set for a direction with [`Self::admit`]; 0 at first.
    #[must_use]
    pub fn admitted(&self, direction: Direction) -> u64 {
        self.sides[direction as usize]
            .admitted
            .load(Ordering::Relaxed)
    }

    /// Remembers a word of the caller's for a direction: by what its packets may pass.
    pub fn admit(&self, direction: Direction, word: u64) {
        let admitted = &self.sides[direction as usize].admitted;
        if admitted.load(Ordering::Relaxed) != word {
            admitted.store(word, Ordering::Relaxed);
        }
    }

    /// A packet has come: follows it, if that changes nothing but when the flow was heard of and
    /// what was acknowledged. Returns whether it does not; else nothing has happened, and the table
    /// has to follow it ([`super::Nat::follow`]).
    #[must_use]
    pub fn follow(&self, now: Nanos, direction: Direction, payload: &[u8]) -> bool {
        let before = self.progress();
        let mut progress = before;
        let protocol = self.arriving[0].protocol;
        if self.has_ended.load(Ordering::Relaxed)
            || self.expires() <= now
            || !progress.packet(protocol, direction, payload)
            || (progress.state, progress.closing) != (before.state, before.closing)
        {
            return false;
        }
        self.hear(now, direction, progress);
        true
    }

    /// Notes that a packet has come, and what that side has acknowledged then.
    fn hear(&self, now: Nanos, direction: Direction, progress: Progress) {
        let side = &self.sides[direction as usize];
        side.heard.store(now, Ordering::Relaxed);
        let acknowledged = word_of(progress.acknowledged[direction as usize]);
        if side.acknowledged.load(Ordering::Relaxed) != acknowledged {
            side.acknowledged.store(acknowledged, Ordering::Relaxed);
        }
    }

    /// Notes what a packet has changed, with the lock of the table.
    pub(super) fn advance(
        &self,
        now: Nanos,
        direction: Direction,
        before: Progress,
        after: Progress,
    ) {
        self.state.store(word_of_state(after), Ordering::Relaxed);
        self.hear(now, direction, after);
        // The next connection between the same ends has acknowledged nothing. Else the word is for
        // the other direction's packets to write.
        let other = direction.other() as usize;
        if after.acknowledged[other] != before.acknowledged[other] {
            self.sides[other]
                .acknowledged
                .store(word_of(after.acknowledged[other]), Ordering::Relaxed);
        }
    }

    pub(super) fn progress(&self) -> Progress {
        let word = self.state.load(Ordering::Relaxed);
        let known = State::ALL.get(usize::from(word & STATE)).copied();
        let acknowledged = self.sides.each_ref().map(|side| {
            let word = side.acknowledged.load(Ordering::Relaxed);
            (word & KNOWN != 0).then_some(word as u32)
        });
        Progress {
            state: known.unwrap_or(State::Close),
            closing: match word & !STATE {
                0 => None,
                side if side == CLOSING[0] => Some(Direction::Original),
                _ => Some(Direction::Reply),
            },
            acknowledged,
        }
    }

    pub(super) fn state(&self) -> State {
        self.progress().state
    }

    /// When the last packet came.
    pub(super) fn heard(&self) -> Nanos {
        let [original, reply] = self
            .sides
            .each_ref()
            .map(|side| side.heard.load(Ordering::Relaxed));
        original.max(reply)
    }

    /// When its time is over, if nothing comes before.
    pub(super) fn expires(&self) -> Nanos {
        self.heard().saturating_add(self.state().patience())
    }

    /// Whether it has ended: what comes is of another flow, or none.
    pub(super) fn end(&self) {
        self.has_ended.store(true, Ordering::Relaxed);
    }
}

fn word_of_state(progress: Progress) -> u8 {
    let closing = progress.closing.map_or(0, |side| CLOSING[side as usize]);
    progress.state as u8 | closing
}

fn word_of(number: Option<u32>) -> u64 {
    number.map_or(0, |number| KNOWN | u64::from(number))
}

/// The list of flows for those who look for them without the lock of the table. It is changed with
/// that lock.
pub trait Readers {
    /// A flow begins: it is found by its arriving ends from now on.
    ///
    /// # Errors
    /// There is no memory, and nothing has changed: the flow does not begin.
    fn add(&mut self, flow: LiveFlow) -> Result<Arc<LiveFlow>, NoRoom>;

    /// A flow has ended: it is found no more.
    fn remove(&mut self, flow: &LiveFlow);
}

/// Nobody looks without the lock.
impl Readers for () {
    fn add(&mut self, flow: LiveFlow) -> Result<Arc<LiveFlow>, NoRoom> {
        Ok(Arc::new(flow))
    }

    fn remove(&mut self, _: &LiveFlow) {}
}
