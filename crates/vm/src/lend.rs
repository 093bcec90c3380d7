//! Pages of programs that are lent to devices (`docs/block.md`, "Pages of programs").
//!
//! A page that is lent has one more reference, and so is nobody else's before that is dropped,
//! whatever becomes of the mapping. The mapping is not kept: `munmap`, `fork`, a write after that,
//! or memory that leaves may put another page in its place at any time. Who has lent pages be
//! written to looks afterwards whether they are still there ([`AddressSpace::has_page`]).

use core::ops::Deref;
use core::sync::atomic::{AtomicU64, Ordering};

use arrayvec::ArrayVec;

use crate::space::AddressSpace;
use crate::{AccessKind, PAGE_SIZE, Page};

/// Pages that are lent at once, at most: those of one request of a disk.
pub const MAX_LENT: usize = 32;

/// Pages that were lent, and of these the ones that have come back.
static LENT: AtomicU64 = AtomicU64::new(0);
static RETURNED: AtomicU64 = AtomicU64::new(0);

/// Number of pages that were lent since the start, and that have come back (Linux
/// `nr_foll_pin_acquired`, `nr_foll_pin_released`).
#[must_use]
pub fn lent_pages() -> (u64, u64) {
    // In this order: what came back was lent before.
    let returned = RETURNED.load(Ordering::Acquire);
    (LENT.load(Ordering::Relaxed), returned)
}

/// Pages of a program, in the order of their addresses, that are lent until this is dropped.
#[derive(Default)]
pub struct LentPages(ArrayVec<Page, MAX_LENT>);

impl Deref for LentPages {
    type Target = [Page];

    fn deref(&self) -> &[Page] {
        &self.0
    }
}

impl Drop for LentPages {
    fn drop(&mut self) {
        RETURNED.fetch_add(self.0.len() as u64, Ordering::Release);
    }
}

impl AddressSpace {
    /// Adds the pages of a range, which is page-aligned, to those that are lent, each made usable
    /// for `access` by the program itself. `false` if that cannot be done for all of them: where
    /// nothing is mapped or allowed, in a shared mapping of a file, without memory, or if there is
    /// no room in `lent`.
    #[must_use]
    pub fn lend(&self, addr: usize, len: usize, access: AccessKind, lent: &mut LentPages) -> bool {
        let Ok(range) = Self::user_range(addr, len) else {
            return false;
        };
        let before = lent.0.len();
        let lends_all = range.step_by(PAGE_SIZE).all(|va| {
            self.usable_page(va, access)
                .is_some_and(|page| lent.0.try_push(page).is_ok())
        });
        LENT.fetch_add((lent.0.len() - before) as u64, Ordering::Relaxed);
        lends_all
    }

    /// The page at `va`, which the program may use for `access`; `None` if it may not be lent.
    fn usable_page(&self, va: usize, access: AccessKind) -> Option<Page> {
        // Once as it is, and once more after a fault. Who changes the mapping just then may have
        // the call go on by a copy.
        for is_last in [false, true] {
            let state = self.read_state(&(va..va + PAGE_SIZE));
            let (_, area) = state.vmas.find(va)?;
            // A file has to know what is written to it; and one that is sealed, or was cut, while a
            // device writes to a page of it would change all the same.
            let is_file = area
                .mapped
                .as_ref()
                .is_some_and(|source| area.is_shared() && source.object.is_file());
            if is_file || !access.allowed(area.prot) {
                return None;
            }
            // While nobody changes the areas no child can come to share the page.
            if let Some((page, perm, _)) = self.table.get(va)
                && (perm.write || access == AccessKind::Read)
            {
                return Some(page);
            }
            drop(state);
            if is_last || self.handle_fault(va, access).is_err() {
                break;
            }
        }
        None
    }

    /// Whether `page`, to which the caller has a reference, is at `addr` (page-aligned).
    #[must_use]
    pub fn has_page(&self, addr: usize, page: &Page) -> bool {
        let there = self.table.get(addr);
        there.is_some_and(|(there, ..)| there.frame() == page.frame())
    }
}

#[cfg(test)]
mod tests {
    use alloc::sync::Arc;

    use super::*;
    use crate::{MapRequest, Object, Placement, Prot, VmaFlags};

    const AT: usize = 0x1000_0000;
    const RW: Prot = Prot::READ.union(Prot::WRITE);

    fn space(prot: Prot, flags: VmaFlags, object: Option<Arc<Object>>) -> Arc<AddressSpace> {
        let space = AddressSpace::new(1 << 40).unwrap();
        let request = MapRequest {
            placement: Placement::Fixed(AT),
            len: 2 * PAGE_SIZE,
            prot,
            flags,
            object: object.map(|object| (object, 0)),
        };
        space.mmap(request).unwrap();
        space
    }

    fn byte_at(space: &AddressSpace, addr: usize) -> u8 {
        let mut byte = [0];
        space.read(addr, &mut byte).unwrap();
        byte[0]
    }

    /// Both pages, lent to be written to.
    fn lent(space: &AddressSpace) -> LentPages {
        let mut lent = LentPages::default();
        assert!(space.lend(AT, 2 * PAGE_SIZE, AccessKind::Write, &mut lent));
        lent
    }

    #[test]
    fn what_is_written_to_lent_pages_is_the_programs() {
        let shared = Object::anonymous();
        for (flags, object) in [(VmaFlags::empty(), None), (VmaFlags::SHARED, Some(shared))] {
            let space = space(RW, flags, object);
            let lent = lent(&space);
            lent[1].write(5, &[9]);
            assert!(space.has_page(AT + PAGE_SIZE, &lent[1]));
            assert!(!space.has_page(AT, &lent[1]), "each page is at its place");
            assert_eq!(byte_at(&space, AT + PAGE_SIZE + 5), 9);
        }
    }

    #[test]
    fn pages_are_lent_and_come_back() {
        let space = space(RW, VmaFlags::empty(), None);
        let (lent_before, _) = lent_pages();
        let lent = lent(&space);
        assert_eq!(lent[0].refs(), 2, "the table's and the loan's");
        assert!(lent_pages().0 >= lent_before + 2);
        let (_, before) = lent_pages();
        let page = lent[0].clone();
        drop(lent);
        assert!(lent_pages().1 >= before + 2);
        assert_eq!(page.refs(), 2);
    }

    #[test]
    fn a_child_does_not_get_what_its_parent_has_a_device_write() {
        let space = space(RW, VmaFlags::empty(), None);
        space.write(AT, &[1]).unwrap();
        let child = space.fork().unwrap();
        let lent = lent(&space);
        lent[0].write(0, &[2]);
        assert_eq!((byte_at(&space, AT), byte_at(&child, AT)), (2, 1));
    }

    #[test]
    fn a_page_that_was_replaced_meanwhile_is_noticed() {
        let space = space(RW, VmaFlags::empty(), None);
        let lent = lent(&space);
        let child = space.fork().unwrap();
        assert!(space.has_page(AT, &lent[0]), "shared with the child");
        space.write(AT, &[1]).unwrap();
        assert!(!space.has_page(AT, &lent[0]), "a copy was written to");
        space.munmap(AT + PAGE_SIZE, PAGE_SIZE).unwrap();
        assert!(!space.has_page(AT + PAGE_SIZE, &lent[1]));
        drop((space, child));
        assert_eq!(lent[0].refs(), 1, "it is there as long as it is lent");
    }

    #[test]
    fn what_may_not_be_used_is_not_lent() {
        let read_only = space(Prot::READ, VmaFlags::empty(), None);
        let mut lent = LentPages::default();
        assert!(!read_only.lend(AT, PAGE_SIZE, AccessKind::Write, &mut lent));
        assert!(read_only.lend(AT, PAGE_SIZE, AccessKind::Read, &mut lent));
        let hidden = space(Prot::empty(), VmaFlags::empty(), None);
        assert!(!hidden.lend(AT, PAGE_SIZE, AccessKind::Read, &mut lent));
        let behind = AT + 2 * PAGE_SIZE;
        assert!(!read_only.lend(behind, PAGE_SIZE, AccessKind::Read, &mut lent));
        assert!(!read_only.lend(usize::MAX & !4095, PAGE_SIZE, AccessKind::Read, &mut lent));
        assert_eq!(lent.len(), 1);
    }
}
