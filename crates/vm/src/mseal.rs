//! Areas that stay as they are: `mseal(2)`.

use core::ops::Range;

use abi::errno::Errno;

use crate::space::{AddressSpace, SpaceState};
use crate::vma::{Prot, VmaFlags};

impl SpaceState {
    /// Whether `range` may be unmapped, protected, moved or replaced.
    ///
    /// # Errors
    /// `EPERM` if something there is sealed.
    #[inline(always)]
    pub(crate) fn check_seals(&self, range: &Range<usize>) -> Result<(), Errno> {
        if self.has_seals
            && self
                .vmas
                .iter_range(range.clone())
                .any(|(_, area)| area.flags.contains(VmaFlags::SEALED))
        {
            return Err(Errno::EPERM);
        }
        Ok(())
    }

    /// Whether pages in `range` may be given back: also of what is sealed, if the program could
    /// write zeros there itself.
    ///
    /// # Errors
    /// `EPERM`.
    pub(crate) fn check_seals_for_discard(&self, range: &Range<usize>) -> Result<(), Errno> {
        let fixed = |flags: VmaFlags, prot: Prot| {
            flags.contains(VmaFlags::SEALED) && !prot.contains(Prot::WRITE)
        };
        let lost = |area: &crate::vma::Vma| area.mapped.is_none() && fixed(area.flags, area.prot);
        if self.has_seals
            && self
                .vmas
                .iter_range(range.clone())
                .any(|(_, area)| lost(area))
        {
            return Err(Errno::EPERM);
        }
        Ok(())
    }
}

impl AddressSpace {
    /// Seals a range: from now on it stays mapped, as it is, where it is.
    ///
    /// # Errors
    /// `ENOMEM` if something there is not mapped, with nothing changed; `EINVAL`.
    pub fn mseal(&self, addr: usize, len: usize) -> Result<(), Errno> {
        let range = Self::page_range(addr, len)?;
        let mut state = self.write_state(&range);
        if !state.vmas.covers(range.clone()) {
            return Err(Errno::ENOMEM);
        }
        if !range.is_empty() {
            state.vmas.check_split(&range)?;
            state.has_seals = true;
            state
                .vmas
                .update(range, |area| area.flags |= VmaFlags::SEALED);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Advice, MapRequest, PAGE_SIZE, Placement, RemapOptions};

    const RW: Prot = Prot::READ.union(Prot::WRITE);
    const AT: usize = 0x1000_0000;

    #[test]
    fn what_is_sealed_stays() {
        let space = AddressSpace::new(1 << 40).unwrap();
        let mapping = |at: usize, pages: usize| {
            let len = pages * PAGE_SIZE;
            MapRequest {
                placement: Placement::Fixed(at),
                len,
                prot: RW,
                flags: VmaFlags::empty(),
                object: None,
            }
        };
        space.mmap(mapping(AT, 4)).unwrap();
        space.write(AT + PAGE_SIZE, b"s").unwrap();
        assert_eq!(space.mseal(AT, 5 * PAGE_SIZE), Err(Errno::ENOMEM));
        space.mseal(AT + PAGE_SIZE, PAGE_SIZE).unwrap();
        assert_eq!(space.munmap(AT, 4 * PAGE_SIZE), Err(Errno::EPERM));
        assert_eq!(
            space.mprotect(AT, 2 * PAGE_SIZE, Prot::READ),
            Err(Errno::EPERM)
        );
        assert_eq!(space.mmap(mapping(AT, 2)), Err(Errno::EPERM));
        let away = RemapOptions {
            may_move: true,
            fixed_address: Some(AT << 1),
            ..RemapOptions::default()
        };
        assert_eq!(
            space.mremap(AT + PAGE_SIZE, PAGE_SIZE, PAGE_SIZE, away),
            Err(Errno::EPERM)
        );
        // The child's is sealed too; the neighbours are not.
        let child = space.fork().unwrap();
        assert_eq!(child.munmap(AT + PAGE_SIZE, PAGE_SIZE), Err(Errno::EPERM));
        space.munmap(AT, PAGE_SIZE).unwrap();
        space.munmap(AT + 2 * PAGE_SIZE, 2 * PAGE_SIZE).unwrap();
        // Contents that the program could write, it may drop.
        space
            .madvise(
                AT + PAGE_SIZE,
                PAGE_SIZE,
                Advice::DontNeed(crate::DontNeedScope::Unlocked),
            )
            .unwrap();
        let mut byte = [1];
        space.read(AT + PAGE_SIZE, &mut byte).unwrap();
        assert_eq!(byte, [0]);
    }

    #[test]
    fn what_is_there_is_counted_by_who_shows_it() {
        let space = AddressSpace::new(1 << 40).unwrap();
        let (place, flags) = (Placement::Fixed(AT), VmaFlags::empty());
        space
            .mmap(MapRequest {
                placement: place,
                len: 8 * PAGE_SIZE,
                prot: RW,
                flags,
                object: None,
            })
            .unwrap();
        for page in 0..3 {
            space.write(AT + page * PAGE_SIZE, b"x").unwrap();
        }
        // The page of zeros is nobody's.
        space.read(AT + 5 * PAGE_SIZE, &mut [0]).unwrap();
        let sum = |space: &AddressSpace| space.residency()[0].1;
        assert_eq!(
            (sum(&space).resident, sum(&space).pss),
            (3 * PAGE_SIZE, 3 * PAGE_SIZE)
        );
        let child = space.fork().unwrap();
        assert_eq!(
            (sum(&space).shared, sum(&child).pss),
            (3 * PAGE_SIZE, 3 * PAGE_SIZE / 2)
        );
        child.write(AT, b"y").unwrap();
        assert_eq!(
            (sum(&space).shared, sum(&child).shared),
            (2 * PAGE_SIZE, 2 * PAGE_SIZE)
        );
    }
}
