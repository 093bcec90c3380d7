//! Memory as a core dump has it: which parts of it, and what is in them (Linux' `vma_dump_size`).

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;

use abi::errno::Errno;

use crate::object::Object;
use crate::space::AddressSpace;
use crate::vma::{Vma, VmaFlags};
use crate::{PAGE_SIZE, Prot, zero_page};

bitflags::bitflags! {
    /// Kinds of memory that are dumped (`/proc/<pid>/coredump_filter`).
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct DumpFilter: u32 {
        /// Private memory, also copies of a file's pages.
        const ANONYMOUS_PRIVATE = 1;
        /// Shared memory without a file that has a name.
        const ANONYMOUS_SHARED = 2;
        /// Private mappings of files.
        const MAPPED_PRIVATE = 4;
        /// Shared mappings of files.
        const MAPPED_SHARED = 8;
        /// The first page of a file that is a program or library.
        const ELF_HEADERS = 16;
        /// Reserved huge pages, of which there are none.
        const HUGETLB_PRIVATE = 32;
        /// Shared ones.
        const HUGETLB_SHARED = 64;
        /// Private mappings of memory that is a device.
        const DAX_PRIVATE = 128;
        /// Shared ones.
        const DAX_SHARED = 256;
    }
}

impl Default for DumpFilter {
    fn default() -> Self {
        Self::ANONYMOUS_PRIVATE | Self::ANONYMOUS_SHARED | Self::ELF_HEADERS | Self::HUGETLB_PRIVATE
    }
}

/// An area of an address space as a core dump has it.
pub struct DumpArea {
    /// From where to where.
    pub range: Range<usize>,
    /// Protection.
    pub prot: Prot,
    /// Bytes that are dumped, from the beginning on.
    pub dumped: usize,
    /// The object that is mapped, and from where on in it, bytes.
    mapped: Option<(Arc<Object>, u64)>,
}

impl DumpArea {
    /// Path of the file that is mapped, and from where on, in bytes.
    #[must_use]
    pub fn file(&self) -> Option<(&[u8], u64)> {
        self.mapped
            .as_ref()
            .filter(|(object, _)| object.name.starts_with(b"/"))
            .map(|(object, offset)| (&object.name[..], *offset))
    }
}

/// How much of an area is dumped.
#[derive(PartialEq, Eq, Debug)]
enum Extent {
    Whole,
    /// The first page, if that begins a program.
    ElfHeader,
    Nothing,
}

fn extent(area: &Vma, filter: DumpFilter) -> Extent {
    let wants = |kind: DumpFilter| {
        if filter.contains(kind) {
            Extent::Whole
        } else {
            Extent::Nothing
        }
    };
    // What the kernel itself maps has a name of its own, and helps debuggers to unwind.
    let is_special = |object: &Object| object.name.starts_with(b"[");
    let source = area.mapped.as_ref();
    if source.is_some_and(|source| is_special(&source.object)) {
        return Extent::Whole;
    }
    if area.flags.contains(VmaFlags::DONTDUMP) {
        return Extent::Nothing;
    }
    if area.is_shared() {
        let has_name = |object: &Object| !object.name.ends_with(b" (deleted)");
        return wants(if source.is_some_and(|source| has_name(&source.object)) {
            DumpFilter::MAPPED_SHARED
        } else {
            DumpFilter::ANONYMOUS_SHARED
        });
    }
    let has_own_pages = match source {
        None => area.has_pages.get(),
        Some(_) => area.has_private_pages.get(),
    };
    if has_own_pages && filter.contains(DumpFilter::ANONYMOUS_PRIVATE) {
        return Extent::Whole;
    }
    let Some(source) = source else {
        return Extent::Nothing;
    };
    if filter.contains(DumpFilter::MAPPED_PRIVATE) {
        return Extent::Whole;
    }
    let is_beginning = source.page_offset == 0 && area.prot.contains(Prot::READ);
    if is_beginning && filter.contains(DumpFilter::ELF_HEADERS) {
        Extent::ElfHeader
    } else {
        Extent::Nothing
    }
}

impl AddressSpace {
    /// All areas, ascending, with how much of each is dumped.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn dump_areas(&self, filter: DumpFilter) -> Result<Vec<DumpArea>, Errno> {
        let mut areas = Vec::new();
        let mut candidates = Vec::new();
        {
            let state = self.state.read();
            areas
                .try_reserve_exact(state.vmas.len())
                .map_err(|_| Errno::ENOMEM)?;
            for (start, area) in state.vmas.iter() {
                let dumped = match extent(area, filter) {
                    Extent::Whole => area.end - start,
                    Extent::Nothing => 0,
                    Extent::ElfHeader => {
                        candidates.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
                        candidates.push(areas.len());
                        0
                    }
                };
                let offset = |source: &crate::vma::MappedObject| {
                    (source.object.clone(), source.page_offset * PAGE_SIZE as u64)
                };
                areas.push(DumpArea {
                    range: start..area.end,
                    prot: area.prot,
                    dumped,
                    mapped: area.mapped.as_ref().map(offset),
                });
            }
        }
        // A file is looked at without the lock.
        for at in candidates {
            let area: &mut DumpArea = &mut areas[at];
            let mut magic = [0; 4];
            if self.read(area.range.start, &mut magic).is_ok() && magic == *b"\x7fELF" {
                area.dumped = PAGE_SIZE;
            }
        }
        Ok(areas)
    }

    /// Whether there may be a page in `range`, a part of one area, that [`Self::read_dumped_page`]
    /// reads.
    #[must_use]
    pub fn has_dumped_pages(&self, range: &Range<usize>) -> bool {
        let state = self.read_state(range);
        let mut found = state
            .vmas
            .find(range.start)
            .is_some_and(|(_, area)| area.mapped.is_some())
            || self.inaccessible.has_any_in(range);
        if !found {
            self.table.visit(range.clone(), |_, page, _| {
                found |= !zero_page::is_zero_page(page);
            });
        }
        found
    }

    /// Reads the page at `va`, whatever the program may do there. False: it is zeros that nobody
    /// has written, or cannot be had, and `page` is unchanged.
    pub fn read_dumped_page(&self, va: usize, page: &mut [u8]) -> bool {
        let state = self.read_state(&(va..va + PAGE_SIZE));
        let Some((_, area)) = state.vmas.find(va) else {
            return false;
        };
        if let Some((found, ..)) = self.table.get(va) {
            if zero_page::is_zero_page(&found) {
                return false;
            }
            found.read(0, page);
            return true;
        }
        if self.inaccessible.read(va, page) {
            return true;
        }
        let is_objects = area.mapped.is_some() && !area.prot.is_empty();
        drop(state);
        is_objects && self.read(va, page).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SharedWrites;
    use crate::object::ShmemObject;
    use crate::space::{MapRequest, Placement};

    const AT: usize = 0x10_0000;

    fn map(space: &AddressSpace, at: usize, flags: VmaFlags, object: Option<Arc<Object>>) {
        let request = MapRequest {
            placement: Placement::Fixed(at),
            len: 2 * PAGE_SIZE,
            prot: Prot::READ | Prot::WRITE,
            flags,
            object: object.map(|object| (object, 0)),
        };
        assert_eq!(space.mmap(request), Ok(at));
    }

    fn file(name: &str) -> Arc<Object> {
        let backing = Arc::new(ShmemObject::default());
        Object::file(
            backing,
            SharedWrites::Allowed,
            name.as_bytes().to_vec(),
            1,
            2,
        )
    }

    /// Bytes of each area that are dumped.
    fn dumped(space: &AddressSpace, filter: DumpFilter) -> Vec<usize> {
        let areas = space.dump_areas(filter).unwrap();
        areas.iter().map(|area| area.dumped / PAGE_SIZE).collect()
    }

    #[test]
    fn what_is_dumped_is_what_the_filter_says() {
        let space = AddressSpace::new(crate::USER_END).unwrap();
        let none = VmaFlags::empty();
        let areas = [
            ("touched", none, None),
            ("not touched", none, None),
            ("file", none, Some(file("/data"))),
            ("file with a page of its own", none, Some(file("/copied"))),
            ("shared", VmaFlags::SHARED, Some(Object::anonymous())),
            ("shared file", VmaFlags::SHARED, Some(file("/shared"))),
            (
                "shared file without a name",
                VmaFlags::SHARED,
                Some(file("/memfd:x (deleted)")),
            ),
            ("the kernel's", none, Some(file("[vdso]"))),
        ];
        let at = |n: usize| AT + n * 0x10_0000;
        for (n, (_, flags, object)) in areas.into_iter().enumerate() {
            map(&space, at(n), flags, object);
        }
        space.write(at(0), b"x").unwrap();
        space.write(at(3), b"x").unwrap();
        assert_eq!(
            dumped(&space, DumpFilter::default()),
            [2, 0, 0, 2, 2, 0, 2, 2]
        );
        assert_eq!(
            dumped(&space, DumpFilter::MAPPED_PRIVATE),
            [0, 0, 2, 2, 0, 0, 0, 2]
        );
        assert_eq!(
            dumped(&space, DumpFilter::MAPPED_SHARED),
            [0, 0, 0, 0, 0, 2, 0, 2]
        );
        space
            .madvise(
                at(0),
                PAGE_SIZE,
                crate::Advice::Flags(VmaFlags::DONTDUMP, none),
            )
            .unwrap();
        assert_eq!(dumped(&space, DumpFilter::ANONYMOUS_PRIVATE)[..2], [0, 1]);
    }

    #[test]
    fn a_programs_first_page_is_dumped() {
        let space = AddressSpace::new(crate::USER_END).unwrap();
        let program = file("/bin/x");
        map(&space, AT, VmaFlags::SHARED, Some(program.clone()));
        space.write(AT, b"\x7fELF").unwrap();
        space.munmap(AT, 2 * PAGE_SIZE).unwrap();
        map(&space, AT, VmaFlags::empty(), Some(program));
        assert_eq!(dumped(&space, DumpFilter::default()), [1]);
        assert_eq!(dumped(&space, DumpFilter::ANONYMOUS_PRIVATE), [0]);
        let areas = space.dump_areas(DumpFilter::default()).unwrap();
        assert_eq!(areas[0].file(), Some((&b"/bin/x"[..], 0)));
    }

    #[test]
    fn pages_are_read_whatever_may_be_done_there() {
        let space = AddressSpace::new(crate::USER_END).unwrap();
        map(&space, AT, VmaFlags::empty(), None);
        space.write(AT, b"secret").unwrap();
        space.mprotect(AT, PAGE_SIZE, Prot::empty()).unwrap();
        let mut page = [1; PAGE_SIZE];
        assert!(space.read_dumped_page(AT, &mut page));
        assert_eq!(&page[..7], b"secret\0");
        let pages = AT..AT + 2 * PAGE_SIZE;
        assert!(space.has_dumped_pages(&pages));
        assert!(!space.has_dumped_pages(&(AT + PAGE_SIZE..pages.end)));
        assert!(!space.read_dumped_page(AT + PAGE_SIZE, &mut page));
        assert!(!space.read_dumped_page(AT + 2 * PAGE_SIZE, &mut page));
    }
}
