//! Memory of units that confine devices: tables that they read, and words that they write, which
//! have to be there when the supervisor's kernel ends and the next one comes
//! (`docs/supervisor-restart.md`).
//!
//! They are in granules of their own, which the notes name: so the next kernel leaves them alone
//! from its first allocation on. It takes over what units use ([`claim`]), and then gives back the
//! rest ([`settle`]).

use core::ops::DerefMut;

use ::alloc::vec::Vec;
use abi::layout::{GRANULE_FRAMES, PAGE_SIZE};
use lfmutex::Mutex;

use crate::keep;
use crate::mem::alloc::{self, Block, GRANULE_ORDER};
use crate::mem::direct;
use crate::mem::frame::Frame;
use crate::mem::phys::{self, PhysAddr};

const WORDS: usize = GRANULE_FRAMES as usize / 64;

/// A granule with a bit for each frame.
struct Granule {
    first: Frame,
    /// Frames that somebody has.
    used: [u64; WORDS],
    /// Frames that units may use of a kernel before this one: to be claimed only.
    old: [u64; WORDS],
}

/// The granules.
struct Pool {
    granules: Vec<Granule>,
    /// Flag: those of a kernel before this one are among them.
    is_adopted: bool,
}

static POOL: Mutex<Pool> = Mutex::new(Pool {
    granules: Vec::new(),
    is_adopted: false,
});

/// The pool, with what the notes say.
///
/// # Panics
/// Without memory for a list of what a kernel before this one had.
fn pool() -> impl DerefMut<Target = Pool> {
    let mut pool = POOL.lock();
    if !pool.is_adopted {
        pool.is_adopted = true;
        for first in keep::units_granules() {
            if phys::map().phys(first).is_some() {
                let room = pool.granules.try_reserve(1);
                room.expect("no memory to take over tables of units");
                pool.granules.push(Granule {
                    first,
                    used: [0; WORDS],
                    old: [u64::MAX; WORDS],
                });
            }
        }
    }
    pool
}

/// Bits of 2^`order` frames, 64 at most, from `frame` of a granule on: a word's number, and a mask.
const fn bits(frame: usize, order: u8) -> (usize, u64) {
    (frame / 64, u64::MAX >> (64 - (1 << order)) << (frame % 64))
}

/// Largest order of a block: frames of one word.
const MOST_ORDER: u8 = 6;

impl Granule {
    /// Takes frames that nobody has, at a multiple of their number.
    fn take(&mut self, order: u8) -> Option<Frame> {
        let mut frames = (0..GRANULE_FRAMES as usize).step_by(1 << order);
        let frame = frames.find(|frame| {
            let (word, mask) = bits(*frame, order);
            (self.used[word] | self.old[word]) & mask == 0
        })?;
        let (word, mask) = bits(frame, order);
        self.used[word] |= mask;
        Some(self.first.add(frame as u64))
    }

    /// Takes frames of the kernel before this one, all or none.
    fn claim(&mut self, first: Frame, order: u8) -> bool {
        let Some(frame) = first.0.checked_sub(self.first.0) else {
            return false;
        };
        if frame >= GRANULE_FRAMES || !frame.is_multiple_of(1 << order) {
            return false;
        }
        let (word, mask) = bits(frame as usize, order);
        let is_old = self.old[word] & mask == mask;
        if is_old {
            self.old[word] &= !mask;
            self.used[word] |= mask;
        }
        is_old
    }

    fn is_empty(&self) -> bool {
        (self.used.iter().chain(&self.old)).all(|word| *word == 0)
    }
}

impl Pool {
    fn take(&mut self, order: u8) -> Option<Frame> {
        let mut all = self.granules.iter_mut();
        all.find_map(|granule| granule.take(order))
    }

    /// Frees granules of which nobody has anything.
    fn shrink(&mut self) {
        self.granules.retain(|granule| {
            if granule.is_empty() {
                keep::set_granule(granule.first, 0);
                // SAFETY: taken of the allocator as such a block, or never given to this kernel's;
                // in the direct map, and nobody has a frame of it.
                drop(unsafe { alloc::adopt_granule(granule.first) });
            }
            !granule.is_empty()
        });
    }
}

/// Whether units' memory has to outlive this kernel.
pub(super) fn are_kept() -> bool {
    keep::notes().is_some()
}

/// Frames of zeroes in a row, 2^`order` of them, which outlive this kernel until they are
/// [given back](give_back); `None` without memory.
pub(super) fn take(order: u8) -> Option<Block> {
    if order > MOST_ORDER {
        return None;
    }
    let mut pool = pool();
    let first = match pool.take(order) {
        Some(first) => first,
        None => {
            pool.granules.try_reserve(1).ok()?;
            let block = Block::new(GRANULE_ORDER)?;
            // Before anything in it is told to a unit.
            keep::set_units_granule(block.first());
            pool.granules.push(Granule {
                first: block.into_raw(),
                used: [0; WORDS],
                old: [0; WORDS],
            });
            pool.take(order)?
        }
    };
    // SAFETY: frames of a granule of the pool, which nobody else has; in the direct map.
    unsafe { direct::zero(direct::ptr(first), 1 << order) };
    // SAFETY: as such a block it goes back to the pool, never to the allocator.
    Some(unsafe { Block::from_raw(first, order) })
}

/// Takes over frames in which a unit has something of a kernel before this one, as they are; `None`
/// if they are not such, or somebody has taken one of them over.
pub(super) fn claim(at: u64, order: u8) -> Option<Block> {
    let is_whole = at.is_multiple_of(PAGE_SIZE as u64) && order <= MOST_ORDER;
    let first = phys::map().frame(PhysAddr(at)).filter(|_| is_whole)?;
    let mut pool = pool();
    let mut all = pool.granules.iter_mut();
    all.any(|granule| granule.claim(first, order))
        // SAFETY: as in `take`; units' memory is in the direct map.
        .then(|| unsafe { Block::from_raw(first, order) })
}

/// Gives frames back that were taken or claimed.
pub(super) fn give_back(block: Block) {
    let order = (block.bytes() / PAGE_SIZE).ilog2() as u8;
    let first = block.into_raw();
    let mut pool = pool();
    let mut all = pool.granules.iter_mut();
    let of = all.find(|granule| {
        (granule.first.0..).contains(&first.0) && first.0 - granule.first.0 < GRANULE_FRAMES
    });
    if let Some(granule) = of {
        let (word, mask) = bits((first.0 - granule.first.0) as usize, order);
        granule.used[word] &= !mask;
    }
    pool.shrink();
}

/// Frees what was not claimed of a kernel before this one.
///
/// # Safety
/// No unit uses any of it.
pub(super) unsafe fn settle() {
    let mut pool = pool();
    (pool.granules.iter_mut()).for_each(|granule| granule.old = [0; WORDS]);
    pool.shrink();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn granule(old: u64) -> Granule {
        Granule {
            first: Frame(1024),
            used: [0; WORDS],
            old: [old; WORDS],
        }
    }

    #[test]
    fn frames_are_somebodys_once() {
        let mut fresh = granule(0);
        assert_eq!(fresh.take(0), Some(Frame(1024)));
        assert_eq!(fresh.take(4), Some(Frame(1040)));
        assert_eq!(fresh.take(0), Some(Frame(1025)));
        assert_eq!(fresh.take(MOST_ORDER), Some(Frame(1088)));
        assert!(!fresh.is_empty());
        let pages = core::iter::from_fn(|| fresh.take(0)).count();
        assert_eq!(pages, 512 - 64 - 16 - 2);
    }

    #[test]
    fn what_a_kernel_before_used_is_claimed_once_and_not_taken() {
        let mut old = granule(u64::MAX);
        assert_eq!(old.take(0), None);
        assert!(old.claim(Frame(1040), 4));
        assert!(!old.claim(Frame(1041), 0), "a part of what somebody has");
        assert!(!old.claim(Frame(1033), 4), "at no multiple");
        assert!(!old.claim(Frame(1023), 0) && !old.claim(Frame(1536), 0));
        assert!(old.claim(Frame(1535), 0) && !old.claim(Frame(1535), 0));
        assert_eq!(old.take(0), None, "what is not claimed is not free yet");
        old.old = [0; WORDS];
        assert_eq!(old.take(4), Some(Frame(1024)));
        assert_eq!(old.take(4), Some(Frame(1056)));
    }
}
