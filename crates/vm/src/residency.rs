//! What of a mapping is in memory, for `/proc/<pid>/smaps`.

use alloc::vec::Vec;
use core::ops::Range;

#[cfg(not(target_os = "none"))]
use crate::space::VmaInfo;
use crate::space::{AddressSpace, ResidentBytes};
use crate::vma::{MappedObject, Vma, VmaFlags};
use crate::{PAGE_SIZE, Page, USER_END, zero_page};

/// Bytes of one mapping that are in memory, by what is known of the pages. The page of zeros is
/// nobody's.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Residency {
    /// All.
    pub resident: usize,
    /// The mapping's share: of a page that several mappings show, its part.
    pub pss: usize,
    /// The share of pages that were written to.
    pub pss_dirty: usize,
    /// The share by kind of pages.
    pub pss_by_kind: ResidentByKind,
    /// Shown by others too, or kept by a file.
    pub shared: usize,
    /// Of those, written to.
    pub shared_dirty: usize,
    /// Not shown by others, written to.
    pub private_dirty: usize,
    /// Used since it was mapped.
    pub referenced: usize,
    /// Not a file's.
    pub anonymous: usize,
    /// In large pages.
    pub large: usize,
    /// Of a mapping that is locked.
    pub locked: usize,
}

impl Residency {
    /// Adds another mapping's.
    pub fn add(&mut self, other: &Self) {
        self.resident += other.resident;
        self.pss += other.pss;
        self.pss_dirty += other.pss_dirty;
        self.pss_by_kind.anonymous += other.pss_by_kind.anonymous;
        self.pss_by_kind.file += other.pss_by_kind.file;
        self.pss_by_kind.shared += other.pss_by_kind.shared;
        self.shared += other.shared;
        self.shared_dirty += other.shared_dirty;
        self.private_dirty += other.private_dirty;
        self.referenced += other.referenced;
        self.anonymous += other.anonymous;
        self.large += other.large;
        self.locked += other.locked;
    }
}

/// Resident bytes by kind, each page counted once (`RssAnon`, `RssFile`, `RssShmem`).
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct ResidentByKind {
    /// The program's own: without a name, or what it has made of a file's for itself.
    pub anonymous: usize,
    /// Of files.
    pub file: usize,
    /// Of memory that is shared and no file's.
    pub shared: usize,
}

/// Kind of the pages that an area maps of its object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PageKind {
    /// Mapped privately: what is in memory may also be a copy.
    Private,
    File,
    Shmem,
}

impl PageKind {
    /// `None`: all pages are anonymous.
    fn of(area: &Vma) -> Option<Self> {
        let source = area.mapped.as_ref()?;
        Some(match (area.is_shared(), source.object.is_file()) {
            (false, _) => Self::Private,
            (true, true) => Self::File,
            (true, false) => Self::Shmem,
        })
    }
}

impl AddressSpace {
    /// Resident memory by kind. The number of all pages is known; looked at are only those of files
    /// that are mapped privately, and, if there are both kinds, of the smaller one of those that
    /// are shared.
    #[must_use]
    pub fn resident_by_kind(&self) -> ResidentByKind {
        let areas: Vec<(Range<usize>, PageKind)> = {
            let state = self.state.read();
            let touched = state.vmas.iter().filter(|(_, area)| area.has_pages.get());
            touched
                .filter_map(|(start, area)| Some((start..area.end, PageKind::of(area)?)))
                .collect()
        };
        let size = |kind: PageKind| {
            areas
                .iter()
                .filter(|(_, other)| *other == kind)
                .map(|(range, _)| range.len())
                .sum::<usize>()
        };
        let present = |kind: PageKind| {
            let ranges = areas
                .iter()
                .filter(|(_, other)| *other == kind)
                .map(|(range, _)| range);
            ranges
                .map(|range| self.resident_object_bytes(range))
                .sum::<usize>()
        };
        let ResidentBytes { private, shared } = self.resident_by_sharing();
        let files_privately = present(PageKind::Private).min(private);
        let files_shared = match (size(PageKind::File), size(PageKind::Shmem)) {
            (0, _) => 0,
            (_, 0) => shared,
            (files, memory) if files <= memory => present(PageKind::File).min(shared),
            _ => shared.saturating_sub(present(PageKind::Shmem)),
        };
        ResidentByKind {
            anonymous: private - files_privately,
            file: files_privately + files_shared,
            shared: shared - files_shared,
        }
    }

    /// Bytes in a range that are pages of the objects mapped there.
    fn resident_object_bytes(&self, range: &Range<usize>) -> usize {
        let mut bytes = 0;
        let state = self.read_state(range);
        for (part, area) in state
            .vmas
            .iter_range(range.clone())
            .filter(|(_, area)| area.has_pages.get())
        {
            let (Some(source), Some((start, _))) = (&area.mapped, state.vmas.find(part.start))
            else {
                continue;
            };
            let copies = !area.is_shared() && area.has_private_pages.get();
            self.table.visit(part, |va, page, _| {
                let index = source.page_offset + ((va - start) / PAGE_SIZE) as u64;
                let own = || {
                    source
                        .object
                        .backing
                        .cached(index)
                        .is_some_and(|own| own.frame() == page.frame())
                };
                bytes += PAGE_SIZE * usize::from(!copies || own());
            });
        }
        bytes
    }

    /// Calls `each` with the address of every page in a range that is in memory, with whether it is
    /// the program's own memory (and not of a file, nor shared), and whether only this space shows
    /// it.
    pub fn for_each_present_page(
        &self,
        range: Range<usize>,
        mut each: impl FnMut(usize, bool, bool),
    ) {
        let state = self.read_state(&range);
        for (part, area) in state
            .vmas
            .iter_range(range)
            .filter(|(_, area)| area.has_pages.get())
        {
            let own = |page: &Page, dirty: bool| {
                !area.is_shared() && (area.mapped.is_none() || dirty || page.refs() == 2)
            };
            self.table.visit(part, |va, page, noted| {
                let kept = u32::from(area.mapped.is_some() && area.is_shared());
                each(va, own(page, noted.dirty), page.refs() <= 2 + kept);
            });
        }
    }

    /// An address at which a page is mapped that `wanted` recognises.
    pub fn address_of(&self, wanted: impl Fn(&Page) -> bool) -> Option<usize> {
        let everything = 0..USER_END;
        let state = self.read_state(&everything);
        let mut found = None;
        for (part, _) in state.vmas.iter_range(everything) {
            self.table.visit(part, |va, page, _| {
                if found.is_none() && wanted(page) {
                    found = Some(va);
                }
            });
        }
        found
    }

    /// All areas, ascending, with what of them is in memory, for tests.
    #[cfg(not(target_os = "none"))]
    #[must_use]
    pub fn residency(&self) -> Vec<(VmaInfo, Residency)> {
        let areas = self.vma_infos();
        areas
            .into_iter()
            .map(|info| (self.residency_of(&info.range), info))
            .map(|(sum, info)| (info, sum))
            .collect()
    }

    /// Residency of a range. It is looked at piece by piece, as on Linux.
    pub fn residency_of(&self, range: &Range<usize>) -> Residency {
        let mut sum = Residency::default();
        let state = self.read_state(range);
        for (part, area) in state
            .vmas
            .iter_range(range.clone())
            .filter(|(_, area)| area.has_pages.get())
        {
            self.count(part, area, &mut sum);
        }
        sum
    }

    fn count(&self, part: Range<usize>, area: &Vma, sum: &mut Residency) {
        self.table.visit(part, |_, page, noted| {
            if zero_page::is_zero_page(page) {
                return;
            }
            let object = area.mapped.is_some();
            let dirty = noted.dirty;
            let anonymous = !object || (!area.is_shared() && dirty);
            // The caller's reference; the file keeps one, and what is written to privately is no
            // file's any more.
            let mappings = page.refs().saturating_sub(1 + u32::from(!anonymous)).max(1) as usize;
            sum.resident += PAGE_SIZE;
            let share = PAGE_SIZE / mappings;
            let is_file = |source: &MappedObject| source.object.is_file();
            sum.pss += share;
            sum.pss_dirty += share * usize::from(dirty);
            let of_kind = if anonymous {
                &mut sum.pss_by_kind.anonymous
            } else if area.mapped.as_ref().is_some_and(is_file) {
                &mut sum.pss_by_kind.file
            } else {
                &mut sum.pss_by_kind.shared
            };
            *of_kind += share;
            sum.referenced += PAGE_SIZE * usize::from(noted.accessed);
            let shared = area.is_shared() || mappings > 1;
            sum.shared += PAGE_SIZE * usize::from(shared);
            sum.shared_dirty += PAGE_SIZE * usize::from(shared && dirty);
            sum.private_dirty += PAGE_SIZE * usize::from(!shared && dirty);
            sum.anonymous += PAGE_SIZE * usize::from(anonymous);
            sum.large += PAGE_SIZE * usize::from(noted.large);
            sum.locked += PAGE_SIZE * usize::from(area.flags.contains(VmaFlags::LOCKED));
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{Advice, MapRequest, Object, Placement, Prot, SharedWrites};

    const AT: usize = 0x1000_0000;

    fn map(space: &AddressSpace, at: usize, flags: VmaFlags, object: Option<&Arc<Object>>) {
        let request = MapRequest {
            placement: Placement::Fixed(at),
            len: 8 * PAGE_SIZE,
            prot: Prot::READ | Prot::WRITE,
            flags,
            object: object.map(|object| (object.clone(), 0)),
        };
        space.mmap(request).unwrap();
    }

    fn pages(space: &AddressSpace) -> [usize; 3] {
        let kinds = space.resident_by_kind();
        assert_eq!(
            kinds.anonymous + kinds.file + kinds.shared,
            space.resident()
        );
        [kinds.anonymous, kinds.file, kinds.shared].map(|bytes| bytes / PAGE_SIZE)
    }

    #[test]
    fn pages_are_of_one_kind() {
        let backing = Object::anonymous();
        (0..3).for_each(|index| drop(backing.backing.page(index).unwrap()));
        let file = Object::file(
            backing.backing.clone(),
            SharedWrites::Allowed,
            b"/file".to_vec(),
            5,
            7,
        );
        let space = AddressSpace::new(1 << 40).unwrap();
        map(&space, AT, VmaFlags::empty(), Some(&file));
        let mut byte = [0];
        space.read(AT, &mut byte).unwrap();
        // What the file has at hand comes along.
        assert_eq!(pages(&space), [0, 3, 0]);
        space.write(AT + PAGE_SIZE, b"x").unwrap();
        assert_eq!(pages(&space), [1, 2, 0]);
        map(&space, 2 * AT, VmaFlags::empty(), None);
        space.read(2 * AT, &mut byte).unwrap();
        space.write(2 * AT + PAGE_SIZE, b"x").unwrap();
        assert_eq!(pages(&space), [2, 2, 0]);
        map(&space, 3 * AT, VmaFlags::SHARED, Some(&Object::anonymous()));
        space.write(3 * AT, b"x").unwrap();
        assert_eq!(pages(&space), [2, 2, 1]);
        map(&space, 4 * AT, VmaFlags::SHARED, Some(&file));
        space.write(4 * AT, b"x").unwrap();
        assert_eq!(pages(&space), [2, 5, 1]);
        let child = space.fork().unwrap();
        child.read(AT, &mut byte).unwrap();
        assert_eq!(pages(&child)[0], 2);
        space
            .madvise(
                AT,
                8 * PAGE_SIZE,
                Advice::DontNeed(crate::DontNeedScope::Unlocked),
            )
            .unwrap();
        space.munmap(3 * AT, PAGE_SIZE).unwrap();
        assert_eq!(pages(&space), [1, 3, 0]);
    }
}
