//! Who has a file mapped: for truncation, which takes pages away from under programs.

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::ops::Range;

use task::Mutex;

use crate::PAGE_SIZE;
use crate::area::{Area, Source};
use crate::space::AddressSpace;

/// The address spaces that map a file, or did; kept by the file.
#[derive(Default)]
pub struct Mappings {
    spaces: Mutex<Spaces>,
}

#[derive(Default)]
struct Spaces {
    known: BTreeMap<u64, Weak<AddressSpace>>,
    /// With so many it is time to look for those that ended after they had unmapped the file.
    crowded: usize,
}

impl Mappings {
    /// Notes a space before it maps the file.
    pub(crate) fn note(&self, id: u64, space: &Weak<AddressSpace>) {
        let mut spaces = self.spaces.lock();
        if spaces.known.len() >= spaces.crowded {
            spaces.known.retain(|_, space| space.strong_count() > 0);
            spaces.crowded = 2 * spaces.known.len() + 16;
        }
        spaces.known.entry(id).or_insert_with(|| space.clone());
    }

    pub(crate) fn forget(&self, id: u64) {
        self.spaces.lock().known.remove(&id);
    }

    fn each(&self, mut each: impl FnMut(&AddressSpace)) {
        let spaces: Vec<Arc<AddressSpace>> = self.spaces.lock().known.values().filter_map(Weak::upgrade).collect();
        spaces.iter().for_each(|space| each(space));
    }

    /// Takes pages that the file does not have any more out of all mappings; with `copies`, also what programs have made of them
    /// for themselves. Call it when the file has forgotten them, without a lock that [`Backing`](crate::Backing) takes.
    pub fn unmap(&self, pages: Range<u64>, copies: bool) {
        self.each(|space| space.unmap_object(self, pages.clone(), copies));
    }

    /// How many areas satisfy a condition, of which it is told whether they are shared and writing is possible.
    pub fn count(&self, which: impl Fn(bool, bool) -> bool) -> usize {
        let mut count = 0;
        self.each(|space| {
            let state = space.state.read();
            let mine = state.areas.iter().filter(|(_, area)| self.is_of(area).is_some());
            count +=
                mine.filter(|(_, area)| which(area.shared(), area.source.as_ref().is_some_and(|s| s.object.writable))).count();
        });
        count
    }

    /// What of this file an area maps.
    fn is_of<'a>(&self, area: &'a Area) -> Option<&'a Source> {
        let own = |source: &&Source| source.object.backing.mappings().is_some_and(|own| core::ptr::eq(own, self));
        area.source.as_ref().filter(own)
    }
}

impl AddressSpace {
    /// Takes the file's `pages` out of the table.
    fn unmap_object(&self, object: &Mappings, pages: Range<u64>, copies: bool) {
        loop {
            let mut state = self.state.write();
            let mut parts: Vec<(Range<usize>, bool)> = Vec::new();
            for (start, area) in state.areas.iter() {
                let Some(source) = object.is_of(area).filter(|_| area.touched.get() && (copies || area.shared())) else {
                    continue;
                };
                let len = (area.end - start) / PAGE_SIZE;
                let page = |index: u64| usize::try_from(index.saturating_sub(source.first)).unwrap_or(len).min(len);
                let part = start + page(pages.start) * PAGE_SIZE..start + page(pages.end) * PAGE_SIZE;
                if !part.is_empty() {
                    parts.push((part, area.shared()));
                }
            }
            if let Some((busy, _)) = parts.iter().find(|(part, _)| state.claims.overlap(part)) {
                drop(state);
                self.settle(busy);
                continue;
            }
            let claims: Vec<_> = parts.iter().map(|(part, _)| self.claim(&mut state, part.clone())).collect();
            drop(state);
            for (part, shared) in parts {
                self.drop_pages(part, shared);
            }
            drop(claims);
            return;
        }
    }
}
