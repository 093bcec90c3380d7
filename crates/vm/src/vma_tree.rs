//! Sorted intervals in chunks: a tree of two levels.
//!
//! A program has some tens of areas, seldom thousands: one or a few arrays that a search goes
//! through in halves. Putting something in moves at most a chunk; a full chunk becomes two. Each
//! chunk knows a bound of the gaps in it, so that looking for room skips what is densely packed.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};

use abi::errno::Errno;

use crate::USER_START;
use crate::vma::Vma;

/// Most areas of a chunk.
const CHUNK: usize = 64;
/// Most areas that a change of a range puts in: one, and what two ends split off.
const MAX_INSERTED: usize = 3;

struct Chunk {
    /// Where its first area begins.
    first: usize,
    /// No area of the chunk has more room above it than this.
    gap: usize,
    /// Start and area, ascending; never empty.
    areas: Vec<(usize, Vma)>,
}

/// A place in a [`VmaTree`]: chunk, index in it. A change of the tree makes those behind it void.
#[derive(Clone, Copy)]
pub(crate) struct TreeCursor {
    chunk: usize,
    slot: usize,
}

/// The areas of an address space, sorted by start, in chunks (Linux keeps them in a maple tree).
#[derive(Default)]
pub(crate) struct VmaTree {
    chunks: Vec<Chunk>,
    /// Number of areas.
    len: usize,
    /// Chunk and slot where something was found last. Any value is right.
    last: AtomicU32,
}

impl VmaTree {
    /// Number of areas.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Makes room for the chunks of `more` areas.
    ///
    /// # Errors
    /// `ENOMEM`.
    #[inline]
    pub(crate) fn try_reserve(&mut self, more: usize) -> Result<(), Errno> {
        // An area that is put in makes at most one chunk; of many in a row each is filled.
        let chunks = more.min(more / CHUNK + MAX_INSERTED);
        if self.chunks.capacity() - self.chunks.len() >= chunks {
            return Ok(());
        }
        self.grow(chunks)
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self, chunks: usize) -> Result<(), Errno> {
        self.chunks.try_reserve(chunks).map_err(|_| Errno::ENOMEM)
    }

    /// The first area that ends above `addr`, or behind the last.
    #[inline]
    pub(crate) fn lower_bound(&self, addr: usize) -> TreeCursor {
        let chunk = match self.chunks.len() {
            0 => return TreeCursor { chunk: 0, slot: 0 },
            1 => 0,
            _ => self
                .chunks
                .partition_point(|chunk| chunk.first <= addr)
                .saturating_sub(1),
        };
        let areas = &self.chunks[chunk].areas;
        let slot = areas.partition_point(|(_, area)| area.end <= addr);
        if slot == areas.len() {
            TreeCursor {
                chunk: chunk + 1,
                slot: 0,
            }
        } else {
            TreeCursor { chunk, slot }
        }
    }

    /// The area that `addr` is in.
    #[inline(always)]
    pub(crate) fn find(&self, addr: usize) -> Option<(usize, &Vma)> {
        let last = self.last.load(Ordering::Relaxed);
        let at = TreeCursor {
            chunk: (last >> 8) as usize,
            slot: (last & 0xff) as usize,
        };
        match self.get(at) {
            Some((start, area)) if start <= addr && addr < area.end => Some((start, area)),
            _ => self.find_slow(addr),
        }
    }

    fn find_slow(&self, addr: usize) -> Option<(usize, &Vma)> {
        let at = self.lower_bound(addr);
        let found = self.get(at).filter(|&(start, _)| start <= addr)?;
        self.last
            .store((at.chunk as u32) << 8 | at.slot as u32, Ordering::Relaxed);
        Some(found)
    }

    #[inline]
    pub(crate) fn get(&self, at: TreeCursor) -> Option<(usize, &Vma)> {
        self.chunks
            .get(at.chunk)?
            .areas
            .get(at.slot)
            .map(|(start, area)| (*start, area))
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, at: TreeCursor) -> Option<(usize, &mut Vma)> {
        self.chunks
            .get_mut(at.chunk)?
            .areas
            .get_mut(at.slot)
            .map(|(start, area)| (*start, area))
    }

    /// The place before, which has an area.
    #[inline]
    pub(crate) fn prev(&self, at: TreeCursor) -> Option<TreeCursor> {
        if at.slot > 0 {
            return Some(TreeCursor {
                slot: at.slot - 1,
                ..at
            });
        }
        let chunk = at.chunk.checked_sub(1)?;
        Some(TreeCursor {
            chunk,
            slot: self.chunks.get(chunk)?.areas.len() - 1,
        })
    }

    /// The place behind `at`, which has an area.
    #[inline]
    pub(crate) fn next(&self, at: TreeCursor) -> TreeCursor {
        self.normalize(TreeCursor {
            slot: at.slot + 1,
            ..at
        })
    }

    /// The areas from `at` on, ascending.
    pub(crate) fn iter_from(&self, at: TreeCursor) -> impl Iterator<Item = (usize, &Vma)> {
        let chunks = self.chunks.get(at.chunk..).unwrap_or_default();
        let (own, others) = chunks.split_at(chunks.len().min(1));
        let own = own.iter().flat_map(move |chunk| &chunk.areas[at.slot..]);
        own.chain(others.iter().flat_map(|chunk| &chunk.areas))
            .map(|(start, area)| (*start, area))
    }

    /// Where the area behind `at` begins.
    fn next_start(&self, at: TreeCursor) -> usize {
        self.get(self.next(at))
            .map_or(usize::MAX, |(start, _)| start)
    }

    /// Puts an area before the one at `at`, and returns its place.
    pub(crate) fn insert(&mut self, at: TreeCursor, start: usize, area: Vma) -> TreeCursor {
        self.len += 1;
        if self.chunks.is_empty() {
            self.chunks.push(Chunk {
                first: start,
                gap: usize::MAX,
                areas: Vec::with_capacity(CHUNK / 4),
            });
        }
        // What would begin a chunk goes to the end of the one before, where there is room, or moves
        // the chunk's beginning.
        let mut at = match self.prev(at) {
            Some(before) if at.slot == 0 && self.chunks[before.chunk].areas.len() < CHUNK => {
                TreeCursor {
                    slot: before.slot + 1,
                    ..before
                }
            }
            _ if at.chunk == self.chunks.len() => TreeCursor {
                chunk: at.chunk - 1,
                slot: CHUNK,
            },
            _ => at,
        };
        if self.chunks[at.chunk].areas.len() == CHUNK {
            let half = self.chunks[at.chunk].areas.split_off(CHUNK / 2);
            let (first, gap) = (half[0].0, self.chunks[at.chunk].gap);
            self.chunks.insert(
                at.chunk + 1,
                Chunk {
                    first,
                    gap,
                    areas: half,
                },
            );
            if at.slot > CHUNK / 2 {
                at = TreeCursor {
                    chunk: at.chunk + 1,
                    slot: at.slot - CHUNK / 2,
                };
            }
        }
        let end = area.end;
        let chunk = &mut self.chunks[at.chunk];
        chunk.areas.insert(at.slot, (start, area));
        if at.slot == 0 {
            chunk.first = start;
        }
        let room = self.next_start(at) - end;
        let chunk = &mut self.chunks[at.chunk];
        chunk.gap = chunk.gap.max(room);
        at
    }

    /// Puts an area behind all others.
    pub(crate) fn push(&mut self, start: usize, area: Vma) {
        self.len += 1;
        match self.chunks.last_mut() {
            Some(chunk) if chunk.areas.len() < CHUNK => chunk.areas.push((start, area)),
            _ => {
                let mut areas = Vec::with_capacity(CHUNK / 4);
                areas.push((start, area));
                self.chunks.push(Chunk {
                    first: start,
                    gap: usize::MAX,
                    areas,
                });
            }
        }
    }

    /// The place itself, or the beginning of the next chunk if it is behind the last area of one.
    #[inline]
    pub(crate) fn normalize(&self, at: TreeCursor) -> TreeCursor {
        match self.chunks.get(at.chunk) {
            Some(chunk) if at.slot == chunk.areas.len() => TreeCursor {
                chunk: at.chunk + 1,
                slot: 0,
            },
            _ => at,
        }
    }

    /// Takes out the area at `at`, which is one; the next is at the same place after
    /// [`VmaTree::normalize`].
    pub(crate) fn remove(&mut self, at: TreeCursor) -> (usize, Vma) {
        if let Some(before) = self.prev(at) {
            self.chunks[before.chunk].gap = usize::MAX;
        }
        self.len -= 1;
        let chunk = &mut self.chunks[at.chunk];
        let removed = chunk.areas.remove(at.slot);
        chunk.gap = usize::MAX;
        match chunk.areas.first() {
            Some((start, _)) => chunk.first = *start,
            None => {
                self.chunks.remove(at.chunk);
            }
        }
        removed
    }

    /// Moves the start of the area at `at` down.
    pub(crate) fn set_start(&mut self, at: TreeCursor, start: usize) {
        let Some(chunk) = self.chunks.get_mut(at.chunk) else {
            return;
        };
        let Some(entry) = chunk.areas.get_mut(at.slot) else {
            return;
        };
        entry.0 = start;
        chunk.first = chunk.areas[0].0;
    }

    /// The highest place below `top` for `len` bytes.
    pub(crate) fn gap_below(&mut self, len: usize, top: usize) -> Option<usize> {
        let mut ceiling = top;
        for chunk in self.chunks.iter_mut().rev() {
            if chunk.first >= top {
                continue;
            }
            let whole = chunk.areas.last().is_some_and(|(start, _)| *start < top);
            // The room above the chunk's last area may be cut off by `top`: then it says nothing
            // about other calls.
            let whole = whole && ceiling < top;
            if whole && chunk.gap < len {
                ceiling = chunk.first;
                continue;
            }
            let mut most = 0;
            for (start, area) in chunk
                .areas
                .iter()
                .rev()
                .skip_while(|(start, _)| *start >= top)
            {
                let room = ceiling.saturating_sub(area.end);
                if room >= len {
                    return Some(ceiling - len);
                }
                most = most.max(room);
                ceiling = *start;
            }
            if whole {
                chunk.gap = most;
            }
        }
        ceiling.checked_sub(len).filter(|&at| at >= USER_START)
    }
}
