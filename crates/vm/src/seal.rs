//! Areas that stay as they are: `mseal(2)`.

use core::ops::Range;

use abi::errno::Errno;

use crate::area::{AreaFlags, Prot};
use crate::space::{AddressSpace, State};

impl State {
    /// Whether `range` may be unmapped, protected, moved or replaced.
    ///
    /// # Errors
    /// `EPERM` if something there is sealed.
    pub(crate) fn check_seals(&self, range: &Range<usize>) -> Result<(), Errno> {
        if self.has_seals && self.areas.within(range.clone()).any(|(_, area)| area.flags.contains(AreaFlags::SEALED)) {
            return Err(Errno::EPERM);
        }
        Ok(())
    }

    /// Whether pages in `range` may be given back: also of what is sealed, if the program could write zeros there itself.
    ///
    /// # Errors
    /// `EPERM`.
    pub(crate) fn check_seals_of_contents(&self, range: &Range<usize>) -> Result<(), Errno> {
        let fixed = |flags: AreaFlags, prot: Prot| flags.contains(AreaFlags::SEALED) && !prot.contains(Prot::WRITE);
        let lost = |area: &crate::area::Area| area.source.is_none() && fixed(area.flags, area.prot);
        if self.has_seals && self.areas.within(range.clone()).any(|(_, area)| lost(area)) {
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
    pub fn seal(&self, addr: usize, len: usize) -> Result<(), Errno> {
        let range = Self::range(addr, len)?;
        let mut state = self.change(&range);
        if !state.areas.covers(range.clone()) {
            return Err(Errno::ENOMEM);
        }
        if !range.is_empty() {
            state.has_seals = true;
            state.areas.update(range, |area| area.flags |= AreaFlags::SEALED);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Advice, Mapping, PAGE_SIZE, Placement, Remap};

    const RW: Prot = Prot::READ.union(Prot::WRITE);
    const AT: usize = 0x1000_0000;

    #[test]
    fn what_is_sealed_stays() {
        let space = AddressSpace::new(1 << 40).unwrap();
        let mapping = |at: usize, pages: usize| {
            let len = pages * PAGE_SIZE;
            Mapping { place: Placement::Fixed(at), len, prot: RW, flags: AreaFlags::empty(), object: None }
        };
        space.mmap(mapping(AT, 4)).unwrap();
        space.write(AT + PAGE_SIZE, b"s").unwrap();
        assert_eq!(space.seal(AT, 5 * PAGE_SIZE), Err(Errno::ENOMEM));
        space.seal(AT + PAGE_SIZE, PAGE_SIZE).unwrap();
        assert_eq!(space.munmap(AT, 4 * PAGE_SIZE), Err(Errno::EPERM));
        assert_eq!(space.mprotect(AT, 2 * PAGE_SIZE, Prot::READ), Err(Errno::EPERM));
        assert_eq!(space.mmap(mapping(AT, 2)), Err(Errno::EPERM));
        let away = Remap { may_move: true, to: Some(AT << 1), ..Remap::default() };
        assert_eq!(space.mremap(AT + PAGE_SIZE, PAGE_SIZE, PAGE_SIZE, away), Err(Errno::EPERM));
        // The child's is sealed too; the neighbours are not.
        let child = space.fork().unwrap();
        assert_eq!(child.munmap(AT + PAGE_SIZE, PAGE_SIZE), Err(Errno::EPERM));
        space.munmap(AT, PAGE_SIZE).unwrap();
        space.munmap(AT + 2 * PAGE_SIZE, 2 * PAGE_SIZE).unwrap();
        // Contents that the program could write, it may drop.
        space.madvise(AT + PAGE_SIZE, PAGE_SIZE, Advice::Drop(crate::Drops::Unlocked)).unwrap();
        let mut byte = [1];
        space.read(AT + PAGE_SIZE, &mut byte).unwrap();
        assert_eq!(byte, [0]);
    }

    #[test]
    fn what_is_there_is_counted_by_who_shows_it() {
        let space = AddressSpace::new(1 << 40).unwrap();
        let (place, flags) = (Placement::Fixed(AT), AreaFlags::empty());
        space.mmap(Mapping { place, len: 8 * PAGE_SIZE, prot: RW, flags, object: None }).unwrap();
        for page in 0..3 {
            space.write(AT + page * PAGE_SIZE, b"x").unwrap();
        }
        // The page of zeros is nobody's.
        space.read(AT + 5 * PAGE_SIZE, &mut [0]).unwrap();
        let sum = |space: &AddressSpace| space.residency()[0].1;
        assert_eq!((sum(&space).resident, sum(&space).proportional), (3 * PAGE_SIZE, 3 * PAGE_SIZE));
        let child = space.fork().unwrap();
        assert_eq!((sum(&space).shared, sum(&child).proportional), (3 * PAGE_SIZE, 3 * PAGE_SIZE / 2));
        child.write(AT, b"y").unwrap();
        assert_eq!((sum(&space).shared, sum(&child).shared), (2 * PAGE_SIZE, 2 * PAGE_SIZE));
    }
}
