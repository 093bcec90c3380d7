//! One area: a word that says how much of it is free, and a bit for each frame, set while it is
//! free.

use crate::sync::{AtomicU64, Ordering};
use crate::{AREA_FRAMES, AREA_ORDER, AREA_WORDS};

/// Bits of an entry that hold the number of free frames.
pub(crate) const FRAMES_BITS: u32 = 10;
const FREE: u64 = (1 << FRAMES_BITS) - 1;
/// Frames may be taken from here. Above the number of free frames, so that one comparison asks for
/// both.
const OPEN: u64 = 1 << FRAMES_BITS;
/// A CPU takes its frames from here.
const RESERVED: u64 = 1 << (FRAMES_BITS + 1);
/// Some of it was handed out since it last was marked as untouched.
const TOUCHED: u64 = 1 << (FRAMES_BITS + 2);

/// Effect of taking frames on whether the area counts as touched: its frames may hold somebody's
/// data then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Touch {
    /// The area counts as touched from now on.
    Mark,
    /// The area counts as before.
    Keep,
}

impl Touch {
    /// Bits to set in the area's entry.
    fn bits(self) -> u64 {
        match self {
            Self::Mark => TOUCHED,
            Self::Keep => 0,
        }
    }
}
const NODE_SHIFT: u32 = 16;
const NODE: u64 = 0xff << NODE_SHIFT;

/// An area's entry as it was read.
#[derive(Clone, Copy)]
pub(crate) struct Entry(u64);

/// Class of an area, by which searches choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// No free frame, reserved by a CPU, or not open.
    Avoid,
    /// Some frames are free.
    Partial,
    /// All frames are free.
    Whole,
}

impl Entry {
    pub(crate) fn free(self) -> u64 {
        self.0 & FREE
    }
    pub(crate) fn touched(self) -> bool {
        self.0 & TOUCHED != 0
    }
    pub(crate) fn node(self) -> u8 {
        (self.0 >> NODE_SHIFT) as u8
    }
    pub(crate) fn is_open(self) -> bool {
        self.0 & OPEN != 0
    }
    /// Whether all frames are free, and may be taken.
    pub(crate) fn is_whole(self) -> bool {
        self.offers(AREA_FRAMES)
    }
    /// Whether so many frames may be taken.
    #[inline]
    fn offers(self, count: u64) -> bool {
        self.0 & (OPEN | FREE) >= OPEN | count
    }
    pub(crate) fn class(self) -> Class {
        match self.free() {
            _ if self.0 & (OPEN | RESERVED) != OPEN => Class::Avoid,
            0 => Class::Avoid,
            AREA_FRAMES => Class::Whole,
            _ => Class::Partial,
        }
    }
}

/// Way of taking frames from an area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// Reserve it, unless it is reserved.
    Reserve,
    /// Whether reserved or not.
    Steal,
    /// Whether reserved or not, and open or not.
    Remove,
}

pub(crate) struct Area<'a> {
    pub(crate) entry: &'a AtomicU64,
    pub(crate) bits: &'a [AtomicU64; AREA_WORDS],
}

impl Area<'_> {
    #[inline]
    pub(crate) fn load(&self) -> Entry {
        Entry(self.entry.load(Ordering::SeqCst))
    }

    /// Changes the entry as long as `change` has a proposal; the entry before.
    #[inline]
    fn update(&self, change: impl Fn(Entry) -> Option<u64>) -> Option<Entry> {
        let mut old = self.entry.load(Ordering::Relaxed);
        loop {
            match self.entry.compare_exchange_weak(
                old,
                change(Entry(old))?,
                Ordering::SeqCst,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Some(Entry(old)),
                Err(now) => old = now,
            }
        }
    }

    /// Takes a block smaller than the area out of it, if there is one; its first frame within the
    /// area. The entry's class is not looked at: that is for areas that the caller's CPU has
    /// reserved.
    pub(crate) fn take(&self, order: u8) -> Option<u64> {
        self.reserve_frames(1 << order, Touch::Mark, Claim::Steal)?;
        self.find(order)
    }

    /// Takes a single frame, as [`Self::take`] does.
    #[inline]
    pub(crate) fn take_one(&self) -> Option<u64> {
        let before = self.reserve_frames(1, Touch::Mark, Claim::Steal)?;
        // Where the first free frame is if they are taken in their order.
        let likely = (AREA_FRAMES - before.free()) / 64;
        self.find_one_in(likely as usize % AREA_WORDS)
            .or_else(|| self.find(0))
    }

    /// Claims the area, then takes frames as [`Self::take`] does. The second value is the entry
    /// before.
    pub(crate) fn claim(&self, order: u8, claim: Claim) -> (Option<u64>, Option<Entry>) {
        let Some(before) = self.reserve_frames(1 << order, Touch::Mark, claim) else {
            return (None, None);
        };
        (self.find(order), Some(before))
    }

    #[inline]
    fn reserve_frames(&self, count: u64, touch: Touch, claim: Claim) -> Option<Entry> {
        let reserved = match claim {
            Claim::Reserve => RESERVED,
            Claim::Steal | Claim::Remove => 0,
        };
        let set = touch.bits() | reserved;
        self.update(|e| {
            let offered = match claim {
                Claim::Reserve => e.offers(count) && e.class() != Class::Avoid,
                Claim::Steal => e.offers(count),
                Claim::Remove => e.free() >= count,
            };
            offered.then(|| (e.0 - count) | set)
        })
    }

    /// Finds the bits of a block whose frames the caller has reserved in the entry. `None` (and the
    /// reservation is given up) if what is free is too scattered; a single frame is always found.
    #[inline(never)]
    fn find(&self, order: u8) -> Option<u64> {
        loop {
            let found = match order {
                0 => self.find_one(),
                1..=6 => self.find_in_words(order),
                _ => self.find_words(order),
            };
            if found.is_some() {
                return found;
            }
            if order > 0 {
                self.entry.fetch_add(1 << order, Ordering::SeqCst);
                return None;
            }
            // A frame is there, as the entry said; others that hold theirs took the ones we saw.
            // Each round is somebody's success (or the end of somebody's failed attempt at a larger
            // block), so this ends.
            #[cfg(loom)]
            loom::thread::yield_now();
        }
    }

    fn find_one(&self) -> Option<u64> {
        (0..AREA_WORDS).find_map(|word| self.find_one_in(word))
    }

    #[inline]
    fn find_one_in(&self, index: usize) -> Option<u64> {
        let word = &self.bits[index];
        let mut seen = word.load(Ordering::Relaxed);
        while seen != 0 {
            let bit = seen.trailing_zeros();
            match word.compare_exchange_weak(
                seen,
                seen & (seen - 1),
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Some(index as u64 * 64 + u64::from(bit)),
                Err(now) => seen = now,
            }
        }
        None
    }

    fn find_in_words(&self, order: u8) -> Option<u64> {
        for (index, word) in self.bits.iter().enumerate() {
            let mut seen = word.load(Ordering::Relaxed);
            while let Some(bit) = aligned_run(seen, order) {
                match word.compare_exchange_weak(
                    seen,
                    seen & !mask(bit, 1 << order),
                    Ordering::Acquire,
                    Ordering::Relaxed,
                ) {
                    Ok(_) => return Some(index as u64 * 64 + bit),
                    Err(now) => seen = now,
                }
            }
        }
        None
    }

    /// Blocks of several whole words.
    fn find_words(&self, order: u8) -> Option<u64> {
        let words = 1 << (order - 6);
        (0..self.bits.len())
            .step_by(words)
            .map(|word| word as u64 * 64)
            .find(|first| self.take_bits(*first, 1 << order))
    }

    /// Clears the bits of a run, all or none.
    fn take_bits(&self, first: u64, count: u64) -> bool {
        for (word, bit, n) in words(first, count) {
            let wanted = mask(bit, n);
            let taken = self.bits[word]
                .fetch_update(Ordering::Acquire, Ordering::Relaxed, |seen| {
                    (seen & wanted == wanted).then_some(seen & !wanted)
                })
                .is_ok();
            if !taken {
                self.set_bits(first, word as u64 * 64 + bit - first);
                return false;
            }
        }
        true
    }

    fn set_bits(&self, first: u64, count: u64) {
        for (word, bit, n) in words(first, count) {
            let set = mask(bit, n);
            let before = self.bits[word].fetch_or(set, Ordering::Release);
            assert!(
                before & set == 0,
                "freed twice: {before:#x} has some of {set:#x}"
            );
        }
    }

    /// Takes exactly this run, be the area open or not; `false` and no change if some of it is not
    /// free.
    pub(crate) fn take_run(&self, first: u64, count: u64) -> bool {
        if count == AREA_FRAMES {
            return self.take_all(Touch::Mark, Claim::Remove);
        }
        if self
            .reserve_frames(count, Touch::Keep, Claim::Remove)
            .is_none()
        {
            return false;
        }
        let taken = self.take_bits(first, count);
        if !taken {
            self.entry.fetch_add(count, Ordering::SeqCst);
        }
        taken
    }

    /// Takes the whole area in one step, if all of it is free.
    pub(crate) fn take_all(&self, touch: Touch, claim: Claim) -> bool {
        let taken = self.reserve_frames(AREA_FRAMES, touch, claim).is_some();
        if taken {
            // Nobody else looks for bits here: there is no frame that they could have reserved.
            for word in self.bits {
                let before = word.swap(0, Ordering::Acquire);
                debug_assert!(before == u64::MAX, "an area counted as free is not");
            }
        }
        taken
    }

    /// Gives a run back. `true` if the area's class changed by that.
    #[inline]
    pub(crate) fn give_run(&self, first: u64, count: u64) -> bool {
        self.set_bits(first, count);
        let before = Entry(self.entry.fetch_add(count, Ordering::SeqCst));
        before.class() != Entry(before.0 + count).class()
    }

    /// Gives back a single frame, as [`Self::give_run`] does.
    #[inline]
    pub(crate) fn give_one(&self, frame: u64) -> bool {
        let set = 1 << (frame % 64);
        let before = self.bits[(frame / 64) as usize].fetch_or(set, Ordering::Release);
        assert!(before & set == 0, "freed twice: {before:#x} has {set:#x}");
        let before = Entry(self.entry.fetch_add(1, Ordering::SeqCst));
        before.class() != Entry(before.0 + 1).class()
    }

    /// Opens or closes the area. `true` if its class changed by that.
    pub(crate) fn set_open(&self, open: bool) -> bool {
        let before = Entry(if open {
            self.entry.fetch_or(OPEN, Ordering::SeqCst)
        } else {
            self.entry.fetch_and(!OPEN, Ordering::SeqCst)
        });
        before.is_open() != open
    }

    /// Whether a frame is free, at this moment.
    pub(crate) fn is_free(&self, frame: u64) -> bool {
        self.bits[(frame / 64) as usize].load(Ordering::Relaxed) & (1 << (frame % 64)) != 0
    }

    /// Ends a CPU's reservation.
    pub(crate) fn release(&self) {
        self.entry.fetch_and(!RESERVED, Ordering::SeqCst);
    }

    pub(crate) fn set_touched(&self, touched: bool) {
        if touched {
            self.entry.fetch_or(TOUCHED, Ordering::Relaxed);
        } else {
            self.entry.fetch_and(!TOUCHED, Ordering::Relaxed);
        }
    }

    pub(crate) fn set_node(&self, node: u8) {
        let set = u64::from(node) << NODE_SHIFT;
        self.update(|e| Some(e.0 & !NODE | set));
    }
}

/// `count` bits from `bit` on; not more than the word has.
fn mask(bit: u64, count: u64) -> u64 {
    (u64::MAX >> (64 - count)) << bit
}

/// Cuts a run within an area into what lies in one word each: the word, the first bit in it, and
/// how many.
fn words(first: u64, count: u64) -> impl Iterator<Item = (usize, u64, u64)> {
    let end = first + count;
    let mut next = first;
    core::iter::from_fn(move || {
        (next < end).then(|| {
            let from = next;
            next = end.min((from / 64 + 1) * 64);
            ((from / 64) as usize, from % 64, next - from)
        })
    })
}

/// The lowest bit at which `2^order` set bits begin, aligned to their number.
fn aligned_run(mut bits: u64, order: u8) -> Option<u64> {
    /// For each order, the bits at which a block can begin.
    const STARTS: [u64; 7] = [
        !0,
        0x5555_5555_5555_5555,
        0x1111_1111_1111_1111,
        0x0101_0101_0101_0101,
        0x0001_0001_0001_0001,
        0x1_0000_0001,
        1,
    ];
    for step in 0..order {
        bits &= bits >> (1 << step);
    }
    bits &= STARTS[usize::from(order)];
    (bits != 0).then(|| u64::from(bits.trailing_zeros()))
}

const _: () = assert!(AREA_ORDER == 9);
