//! Who has a file mapped: for truncation, which takes pages away from under programs.

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::ops::Range;

use task::Mutex;

use crate::PAGE_SIZE;
use crate::space::AddressSpace;
use crate::vma::{MappedObject, Vma};

/// Fate of the copies that programs have made of pages in private mappings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrivateCopies {
    /// Unmapped, too, as the file has become shorter (Linux `even_cows`).
    Unmap,
    /// Left with the programs that made them: the file has a hole now.
    Keep,
}

/// The reverse map of a file, kept by the file: the address spaces that map it, or did (Linux
/// `i_mmap`).
#[derive(Default)]
pub struct ReverseMap {
    spaces: Mutex<Spaces>,
}

#[derive(Default)]
struct Spaces {
    by_id: BTreeMap<u64, Weak<AddressSpace>>,
    /// With so many it is time to look for those that ended after they had unmapped the file.
    prune_threshold: usize,
}

impl ReverseMap {
    /// Notes a space before it maps the file.
    pub(crate) fn add(&self, id: u64, space: &Weak<AddressSpace>) {
        let mut spaces = self.spaces.lock();
        if spaces.by_id.len() >= spaces.prune_threshold {
            spaces.by_id.retain(|_, space| space.strong_count() > 0);
            spaces.prune_threshold = 2 * spaces.by_id.len() + 16;
        }
        spaces.by_id.entry(id).or_insert_with(|| space.clone());
    }

    pub(crate) fn remove(&self, id: u64) {
        self.spaces.lock().by_id.remove(&id);
    }

    fn for_each_space(&self, mut each: impl FnMut(&AddressSpace)) {
        let spaces: Vec<Arc<AddressSpace>> = self
            .spaces
            .lock()
            .by_id
            .values()
            .filter_map(Weak::upgrade)
            .collect();
        spaces.iter().for_each(|space| each(space));
    }

    /// Takes pages that the file does not have any more out of all mappings. Call it when the file
    /// has forgotten them, without a lock that [`Backing`](crate::Backing) takes.
    pub fn unmap_mapping_range(&self, pages: Range<u64>, copies: PrivateCopies) {
        self.for_each_space(|space| space.unmap_object(self, pages.clone(), copies));
    }

    /// How many areas satisfy a condition, of which it is told whether they are shared and writing
    /// is possible.
    pub fn count_vmas(&self, which: impl Fn(bool, bool) -> bool) -> usize {
        let mut count = 0;
        self.for_each_space(|space| {
            let state = space.state.read();
            let mine = state
                .vmas
                .iter()
                .filter(|(_, area)| self.mapped_part(area).is_some());
            count += mine
                .filter(|(_, area)| {
                    which(
                        area.is_shared(),
                        area.mapped.as_ref().is_some_and(|s| s.object.writable),
                    )
                })
                .count();
        });
        count
    }

    /// The part of this file that an area maps.
    fn mapped_part<'a>(&self, area: &'a Vma) -> Option<&'a MappedObject> {
        let own = |source: &&MappedObject| {
            source
                .object
                .backing
                .reverse_map()
                .is_some_and(|own| core::ptr::eq(own, self))
        };
        area.mapped.as_ref().filter(own)
    }
}

impl AddressSpace {
    /// Takes the file's `pages` out of the table.
    fn unmap_object(&self, object: &ReverseMap, pages: Range<u64>, copies: PrivateCopies) {
        let unmaps_copies = copies == PrivateCopies::Unmap;
        loop {
            let mut state = self.state.write();
            let mut parts: Vec<(Range<usize>, bool)> = Vec::new();
            for (start, area) in state.vmas.iter() {
                let Some(source) = object
                    .mapped_part(area)
                    .filter(|_| area.has_pages.get() && (unmaps_copies || area.is_shared()))
                else {
                    continue;
                };
                let len = (area.end - start) / PAGE_SIZE;
                let page = |index: u64| {
                    usize::try_from(index.saturating_sub(source.page_offset))
                        .unwrap_or(len)
                        .min(len)
                };
                let part =
                    start + page(pages.start) * PAGE_SIZE..start + page(pages.end) * PAGE_SIZE;
                if !part.is_empty() {
                    parts.push((part, area.is_shared()));
                }
            }
            if let Some((busy, _)) = parts
                .iter()
                .find(|(part, _)| state.range_locks.overlaps(part))
            {
                drop(state);
                self.wait_range_unlocked(busy);
                continue;
            }
            let claims: Vec<_> = parts
                .iter()
                .map(|(part, _)| self.lock_range(&mut state, part.clone()))
                .collect();
            drop(state);
            for (part, shared) in parts {
                self.zap_pages(part, shared);
            }
            drop(claims);
            return;
        }
    }
}
