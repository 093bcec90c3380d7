//! What happens when a program touches memory that is not there, or not like that.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use abi::errno::Errno;

use crate::object::Object;
use crate::space::{AddressSpace, SpaceState};
use crate::vma::{MappedObject, Prot, Vma, VmaFlags};
use crate::{
    Insert, MapError, PAGE_SIZE, Page, Perm, USER_END, USER_START, large, page_align_down,
    zero_page,
};

/// Kind of a memory access: read, write, execution, or forced by a debugger.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AccessKind {
    /// Read.
    Read,
    /// Written.
    Write,
    /// Executed.
    Exec,
    /// Written by a debugger: private memory, whatever the program itself may do there, if it may
    /// do anything.
    Force,
}

impl AccessKind {
    pub(crate) fn allowed(self, prot: Prot) -> bool {
        match self {
            // The processor reads whatever it may write or execute.
            Self::Read | Self::Force => !prot.is_empty(),
            Self::Write => prot.contains(Prot::WRITE),
            Self::Exec => prot.contains(Prot::EXEC),
        }
    }
}

/// Why a fault cannot be mended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultError {
    /// Nothing is mapped there (`SIGSEGV`, `SEGV_MAPERR`).
    NotMapped,
    /// The address is mapped, but not for this access (`SIGSEGV`, `SEGV_ACCERR`).
    AccessDenied,
    /// Behind the end of a file (`SIGBUS`).
    BeyondEof,
    /// Memory is short.
    NoMemory,
}

/// Outcome of an attempt to handle a fault (Linux `vm_fault_t`).
enum FaultOutcome {
    /// The page is mapped.
    Done,
    /// The page is mapped, and from now on what it is of is written to.
    SharedWrite(Arc<Object>),
    /// Something has changed, look again.
    Retry,
    /// This page of this object is to be fetched first, and be written to if that is said.
    NeedsPage(Arc<Object>, u64, bool),
}

impl FaultOutcome {
    /// The outcome after a page of an area was mapped that is going to be written to.
    fn written(area: &Vma) -> Self {
        match &area.mapped {
            Some(source) if area.is_shared() && source.object.is_file() => {
                Self::SharedWrite(source.object.clone())
            }
            _ => Self::Done,
        }
    }
}

/// Reason why a page could not be put into the page table.
enum InsertFailure {
    Memory,
    /// The object does not have this page at hand.
    Page(u64),
}

impl From<MapError> for InsertFailure {
    /// Addresses are checked before.
    fn from(_: MapError) -> Self {
        Self::Memory
    }
}

/// Bytes of a file that are mapped in one fault, if they are at hand.
const FAULT_AROUND_BYTES: usize = 16 * PAGE_SIZE;

/// How far below a stack an area may end when the stack grows towards it (Linux'
/// `stack_guard_gap`).
const STACK_GUARD_GAP: usize = 256 * PAGE_SIZE;

impl AddressSpace {
    /// Makes the page at `addr` usable for `access`, so that trying again succeeds.
    ///
    /// # Errors
    /// See [`FaultError`].
    pub fn handle_fault(&self, addr: usize, access: AccessKind) -> Result<(), FaultError> {
        if !(USER_START..USER_END).contains(&addr) {
            return Err(FaultError::NotMapped);
        }
        self.with_page(page_align_down(addr), access, || ())
    }

    /// Makes the page at `va` usable for `access`, and calls `then` while nobody changes the areas.
    fn with_page<R>(
        &self,
        va: usize,
        access: AccessKind,
        then: impl FnOnce() -> R,
    ) -> Result<R, FaultError> {
        loop {
            let state = self.read_state(&(va..va + PAGE_SIZE));
            let missing = match state.vmas.find(va) {
                Some((start, area)) => {
                    match self.fault_in_page(&state, area, va - start, va, access)? {
                        FaultOutcome::Done => return Ok(then()),
                        FaultOutcome::SharedWrite(object) => {
                            let result = then();
                            drop(state);
                            object.backing.on_shared_write();
                            return Ok(result);
                        }
                        FaultOutcome::Retry => continue,
                        FaultOutcome::NeedsPage(object, index, write) => {
                            Some((object, index, write))
                        }
                    }
                }
                None => None,
            };
            drop(state);
            // Both may take their time, and what is mapped may be something else afterwards.
            match missing {
                Some((object, index, write)) => fetch(&object, index, write)?,
                None => self.expand_stack(va)?,
            }
        }
    }

    /// Brings in the page at `va`, `offset` bytes into its area, which stays as it is meanwhile.
    fn fault_in_page(
        &self,
        state: &SpaceState,
        area: &Vma,
        offset: usize,
        va: usize,
        access: AccessKind,
    ) -> Result<FaultOutcome, FaultError> {
        if !access.allowed(area.prot)
            || access == AccessKind::Force && area.is_shared() && !area.prot.contains(Prot::WRITE)
        {
            return Err(FaultError::AccessDenied);
        }
        // Rights to a page that is this mapping's alone, and to one that others see too.
        let own = || Perm {
            write: area.prot.contains(Prot::WRITE),
            exec: area.prot.contains(Prot::EXEC),
        };
        let borrowed = || Perm {
            write: false,
            exec: area.prot.contains(Prot::EXEC),
        };
        let write = matches!(access, AccessKind::Write | AccessKind::Force);
        if write
            && self.wants_large(area)
            && self.fault_in_large(state, area, va - offset, va, own())
        {
            return Ok(FaultOutcome::Done);
        }
        // Written to by a shared mapping of what has to know it.
        let noted = write && area.notes_writes();
        let lent = || {
            if area.is_shared() && (noted || !area.notes_writes()) {
                own()
            } else {
                borrowed()
            }
        };
        let (mut resident, mut written) = (true, write);
        let make = || {
            if let Some(page) = self.inaccessible.remove(va) {
                // Exclusive if this is the only reference; else the write sorts it out.
                let exclusive = page.refs() == 1;
                written &= exclusive;
                return Ok((page, if exclusive { own() } else { borrowed() }));
            }
            match &area.mapped {
                None if write => Ok((Page::zeroed().ok_or(InsertFailure::Memory)?, own())),
                None => {
                    resident = false;
                    Ok((zero_page::get().ok_or(InsertFailure::Memory)?, borrowed()))
                }
                Some(source) => {
                    let index = source.page_offset + (offset / PAGE_SIZE) as u64;
                    let backing = &source.object.backing;
                    let page = if noted {
                        backing.cached_for_write(index)
                    } else {
                        backing.cached(index)
                    };
                    let page = page.ok_or(InsertFailure::Page(index))?;
                    if area.is_shared() {
                        Ok((page, lent()))
                    } else if write {
                        Ok((page.duplicate().ok_or(InsertFailure::Memory)?, own()))
                    } else {
                        Ok((page, borrowed()))
                    }
                }
            }
        };
        match self.table.insert_with(va, make) {
            Ok(Insert::Done) => {
                area.has_pages.set();
                if write && !area.is_shared() {
                    area.has_private_pages.set();
                }
                if resident {
                    self.present_counter(area.is_shared())
                        .fetch_add(1, Ordering::Relaxed);
                }
                if let Some(source) = &area.mapped
                    && (!write || area.is_shared())
                {
                    let perm = if area.notes_writes() {
                        borrowed()
                    } else {
                        lent()
                    };
                    self.fault_around(area, source, va - offset, va, perm);
                }
                // A page kept as inaccessible may still be shared with a child.
                Ok(match (write, written) {
                    (false, _) => FaultOutcome::Done,
                    (true, true) => FaultOutcome::written(area),
                    (true, false) => FaultOutcome::Retry,
                })
            }
            // Another thread was faster, or a CPU remembered what was before.
            Ok(Insert::Occupied(now)) if !write || now.write => Ok(FaultOutcome::Done),
            Ok(Insert::Occupied(_)) => {
                area.has_private_pages.set();
                self.handle_write_fault(va - offset, area, va, own())
            }
            Err(InsertFailure::Memory) => Err(FaultError::NoMemory),
            Err(InsertFailure::Page(index)) => match &area.mapped {
                Some(source) => Ok(FaultOutcome::NeedsPage(source.object.clone(), index, noted)),
                None => Err(FaultError::NoMemory),
            },
        }
    }

    /// Maps what the object has at hand around `va`, in an area that begins at `start`: who uses
    /// one page soon uses the next.
    fn fault_around(&self, area: &Vma, source: &MappedObject, start: usize, va: usize, perm: Perm) {
        let window = va & !(FAULT_AROUND_BYTES - 1);
        let range = window.max(start)..(window + FAULT_AROUND_BYTES).min(area.end);
        if range.len() <= PAGE_SIZE {
            return;
        }
        let first = source.page_offset + ((range.start - start) / PAGE_SIZE) as u64;
        let mut pages = 0;
        self.table.fill(va, |span| {
            source.object.backing.for_each_cached(
                first..first + (range.len() / PAGE_SIZE) as u64,
                &mut |index, page| {
                    let at = range.start + (index - first) as usize * PAGE_SIZE;
                    // A page kept as inaccessible is what the program has made of the object's.
                    if !self.inaccessible.contains(at) {
                        pages += usize::from(span.put(at, perm, || page.clone()));
                    }
                },
            );
        });
        self.present_counter(area.is_shared())
            .fetch_add(pages, Ordering::Relaxed);
    }

    /// Lets the program write to the page at `va`, in an area that begins at `start`: to this one
    /// if nobody else has it, or to a copy.
    fn handle_write_fault(
        &self,
        start: usize,
        area: &Vma,
        va: usize,
        perm: Perm,
    ) -> Result<FaultOutcome, FaultError> {
        let shared = area.is_shared();
        let Some((page, now, note)) = self.table.get(va) else {
            return Ok(FaultOutcome::Retry);
        };
        if now.write {
            return Ok(FaultOutcome::Done);
        }
        if let Some(source) = area.mapped.as_ref().filter(|_| area.notes_writes()) {
            let index = source.page_offset + ((va - start) / PAGE_SIZE) as u64;
            return Ok(match source.object.backing.cached_for_write(index) {
                // Another page has come to be there: this one is about to be unmapped.
                Some(current) if !self.table.allow(va, &current, perm) => FaultOutcome::Retry,
                Some(_) => FaultOutcome::written(area),
                None => FaultOutcome::NeedsPage(source.object.clone(), index, true),
            });
        }
        if note.large && large::lies_in(start, area, va) && self.table.allow_large(va, &page, perm)
        {
            return Ok(FaultOutcome::Done);
        }
        // Two references: the table's and `page`. Others could come from this entry only, whose
        // every user holds another one or finds it changed by then; `fork` waits for faults.
        let done = if shared || page.refs() == 2 {
            self.table.allow(va, &page, perm)
        } else if zero_page::is_zero_page(&page) {
            let fresh = Page::zeroed().ok_or(FaultError::NoMemory)?;
            let replaced = self.table.replace(va, &page, fresh, perm);
            if replaced {
                self.present_counter(shared).fetch_add(1, Ordering::Relaxed);
            }
            replaced
        } else {
            let copy = page.duplicate().ok_or(FaultError::NoMemory)?;
            self.table.replace(va, &page, copy, perm)
        };
        Ok(if done {
            FaultOutcome::written(area)
        } else {
            FaultOutcome::Retry
        })
    }

    /// Extends the stack that begins above `va` down to it.
    fn expand_stack(&self, va: usize) -> Result<(), FaultError> {
        let mut state = self.write_state(&(va..va + PAGE_SIZE));
        if state.vmas.find(va).is_some() {
            return Ok(());
        }
        let (start, area) = state.vmas.next_above(va).ok_or(FaultError::NotMapped)?;
        let (end, more) = (area.end, start - va);
        let room = va.saturating_sub(state.vmas.prev_end(va)) >= STACK_GUARD_GAP;
        if !area.flags.contains(VmaFlags::GROWSDOWN)
            || end - va > self.stack_limit()
            || !room
            || !self.may_expand(&state, more)
        {
            return Err(FaultError::NotMapped);
        }
        // Its pages would keep their numbers in what they come from.
        if area.mapped.is_some() {
            return Err(FaultError::NotMapped);
        }
        state.vmas.grow_down(start, va);
        state.size += more;
        Ok(())
    }

    /// Calls `each` with every page of a range, made usable for `access`, and the part of it that
    /// is in the range.
    fn for_each_page(
        &self,
        addr: usize,
        len: usize,
        access: AccessKind,
        mut each: impl FnMut(&Page, usize, core::ops::Range<usize>),
    ) -> Result<(), Errno> {
        let range = Self::user_range(addr, len).map_err(|_| Errno::EFAULT)?;
        let mut at = range.start;
        while at < range.end {
            let va = page_align_down(at);
            let next = (va + PAGE_SIZE).min(range.end);
            let mut visit = || {
                let Some((page, ..)) = self.table.get(va) else {
                    return;
                };
                each(&page, at - va, at - range.start..next - range.start);
            };
            // While nobody changes the areas no child can come to share the page.
            self.with_page(va, access, &mut visit)
                .map_err(|e| match e {
                    FaultError::NoMemory => Errno::ENOMEM,
                    _ => Errno::EFAULT,
                })?;
            at = next;
        }
        Ok(())
    }

    /// Writes to this space, whichever is active.
    ///
    /// # Errors
    /// `EFAULT`, `ENOMEM`; a part may have been written.
    pub fn write(&self, addr: usize, bytes: &[u8]) -> Result<(), Errno> {
        self.for_each_page(
            addr,
            bytes.len(),
            AccessKind::Write,
            |page, offset, range| page.write(offset, &bytes[range]),
        )
    }

    /// Writes to this space as a debugger does: also where the program may not write. What is
    /// private stays so: files are unchanged.
    ///
    /// # Errors
    /// `EFAULT`: nothing is mapped there, nothing may be done there, or what is there is shared and
    /// not writable. `ENOMEM`.
    pub fn write_forced(&self, addr: usize, bytes: &[u8]) -> Result<(), Errno> {
        self.for_each_page(
            addr,
            bytes.len(),
            AccessKind::Force,
            |page, offset, range| page.write(offset, &bytes[range]),
        )
    }

    /// Reads from this space, whichever is active.
    ///
    /// # Errors
    /// `EFAULT`, `ENOMEM`.
    pub fn read(&self, addr: usize, bytes: &mut [u8]) -> Result<(), Errno> {
        let len = bytes.len();
        self.for_each_page(addr, len, AccessKind::Read, |page, offset, range| {
            page.read(offset, &mut bytes[range]);
        })
    }

    /// Makes all pages of a range present (`MAP_POPULATE`, `mlock(2)`).
    ///
    /// # Errors
    /// `EFAULT`, `ENOMEM`.
    pub fn populate(&self, addr: usize, len: usize, access: AccessKind) -> Result<(), Errno> {
        self.for_each_page(addr, len, access, |_, _, _| {})
    }
}

/// Has a page made or read that an object does not have at hand, or not to be written to.
#[cold]
fn fetch(object: &Object, index: u64, write: bool) -> Result<(), FaultError> {
    let page = if write {
        object.backing.page_for_write(index)
    } else {
        object.backing.page(index)
    };
    page.map(drop).map_err(|e| match e {
        Errno::ENOMEM | Errno::ENOSPC => FaultError::NoMemory,
        _ => FaultError::BeyondEof,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Advice, FutexKey, MapRequest, Object, Placement, RemapOptions};

    const RW: Prot = Prot::READ.union(Prot::WRITE);
    const AT: usize = 0x1000_0000;

    fn space() -> std::sync::Arc<AddressSpace> {
        AddressSpace::new(1 << 40).unwrap()
    }

    fn map(
        space: &AddressSpace,
        pages: usize,
        flags: VmaFlags,
        object: Option<std::sync::Arc<Object>>,
    ) -> usize {
        let object = object.map(|o| (o, 0));
        let place = Placement::Fixed(AT);
        space
            .mmap(MapRequest {
                placement: place,
                len: pages * PAGE_SIZE,
                prot: RW,
                flags,
                object,
            })
            .unwrap()
    }

    fn peek(space: &AddressSpace, addr: usize) -> u8 {
        let mut byte = [0];
        space.read(addr, &mut byte).unwrap();
        byte[0]
    }

    #[test]
    fn a_child_sees_what_was_and_not_what_comes() {
        let parent = space();
        map(&parent, 4, VmaFlags::empty(), None);
        parent.write(AT, b"a").unwrap();
        let child = parent.fork().unwrap();
        assert_eq!(peek(&child, AT), b'a');
        child.write(AT, b"b").unwrap();
        parent.write(AT + PAGE_SIZE, b"c").unwrap();
        assert_eq!((peek(&parent, AT), peek(&child, AT + PAGE_SIZE)), (b'a', 0));
        assert_eq!(parent.stats().resident, 2 * PAGE_SIZE);
        drop(child);
        // The last one left writes in place.
        parent.write(AT, b"z").unwrap();
        assert_eq!(peek(&parent, AT), b'z');
    }

    #[test]
    fn shared_memory_is_one() {
        let parent = space();
        map(&parent, 2, VmaFlags::SHARED, Some(Object::anonymous()));
        let child = parent.fork().unwrap();
        child.write(AT + 5, b"x").unwrap();
        assert_eq!(peek(&parent, AT + 5), b'x');
        assert_eq!(
            parent.futex_key(AT + 4, false).unwrap().word(),
            child.futex_key(AT + 4, false).unwrap().word()
        );
        assert!(
            FutexKey::private(parent.id(), AT + 4).word()
                != FutexKey::private(child.id(), AT + 4).word()
        );
    }

    #[test]
    fn inaccessible_pages_keep_their_content() {
        let space = space();
        map(&space, 2, VmaFlags::empty(), None);
        space.write(AT, b"k").unwrap();
        space.mprotect(AT, 2 * PAGE_SIZE, Prot::empty()).unwrap();
        assert_eq!(
            space.handle_fault(AT, AccessKind::Read),
            Err(FaultError::AccessDenied)
        );
        let child = space.fork().unwrap();
        space.mprotect(AT, 2 * PAGE_SIZE, RW).unwrap();
        space.write(AT + 1, b"l").unwrap();
        assert_eq!((peek(&space, AT), peek(&space, AT + 1)), (b'k', b'l'));
        child.mprotect(AT, PAGE_SIZE, Prot::READ).unwrap();
        assert_eq!((peek(&child, AT), peek(&child, AT + 1)), (b'k', 0));
        assert_eq!(
            child.handle_fault(AT, AccessKind::Write),
            Err(FaultError::AccessDenied)
        );
    }

    #[test]
    fn a_debugger_writes_to_code_and_the_program_still_does_not() {
        let object = Object::anonymous();
        object.backing.page(0).unwrap().write(0, b"code");
        let space = space();
        map(&space, 2, VmaFlags::empty(), Some(object.clone()));
        space
            .mprotect(AT, 2 * PAGE_SIZE, Prot::READ | Prot::EXEC)
            .unwrap();
        assert_eq!(peek(&space, AT), b'c');
        for byte in [b"x", b"y"] {
            space.write_forced(AT, byte).unwrap();
            space.write_forced(AT + PAGE_SIZE, byte).unwrap();
            assert_eq!(
                (peek(&space, AT), peek(&space, AT + PAGE_SIZE)),
                (byte[0], byte[0])
            );
        }
        let child = space.fork().unwrap();
        child.write_forced(AT, b"z").unwrap();
        assert_eq!((peek(&space, AT), peek(&child, AT)), (b'y', b'z'));
        assert_eq!(
            space.handle_fault(AT, AccessKind::Write),
            Err(FaultError::AccessDenied)
        );
        let mut byte = [0];
        object.backing.page(0).unwrap().read(0, &mut byte);
        assert_eq!(byte, *b"c");
        map(&space, 1, VmaFlags::SHARED, Some(object));
        space.mprotect(AT, PAGE_SIZE, Prot::READ).unwrap();
        assert_eq!(space.write_forced(AT, b"x"), Err(Errno::EFAULT));
    }

    #[test]
    fn a_split_is_refused_memory_unless_it_gives_some_back() {
        let space = space();
        map(&space, 5, VmaFlags::empty(), None);
        let refused = |act: &dyn Fn() -> Result<(), Errno>| {
            fallible::inject::set(1).unwrap();
            let result = act();
            fallible::inject::clear();
            result
        };
        let protect = |page: usize, pages: usize| {
            space.mprotect(AT + page * PAGE_SIZE, pages * PAGE_SIZE, Prot::READ)
        };
        assert_eq!(refused(&|| protect(1, 1)), Err(Errno::ENOMEM));
        space.write(AT + PAGE_SIZE, b"x").unwrap();
        let unmap = || space.munmap(AT + 3 * PAGE_SIZE, PAGE_SIZE);
        assert_eq!(refused(&unmap), Ok(()));
        assert_eq!(refused(&|| protect(4, 1)), Ok(()), "nothing is split");
    }

    #[test]
    fn protection_is_changed_up_to_a_hole() {
        let space = space();
        map(&space, 3, VmaFlags::empty(), None);
        space.write(AT, b"a").unwrap();
        space.munmap(AT + PAGE_SIZE, PAGE_SIZE).unwrap();
        assert_eq!(
            space.mprotect(AT, 3 * PAGE_SIZE, Prot::READ),
            Err(Errno::ENOMEM)
        );
        assert_eq!(
            space.handle_fault(AT, AccessKind::Write),
            Err(FaultError::AccessDenied)
        );
        space
            .handle_fault(AT + 2 * PAGE_SIZE, AccessKind::Write)
            .unwrap();
        assert_eq!(
            space.mprotect(AT + PAGE_SIZE, 2 * PAGE_SIZE, Prot::READ),
            Err(Errno::ENOMEM)
        );
        space
            .handle_fault(AT + 2 * PAGE_SIZE, AccessKind::Write)
            .unwrap();
    }

    #[test]
    fn private_writes_do_not_reach_the_object() {
        let object = Object::anonymous();
        object.backing.page(0).unwrap().write(0, b"file");
        let space = space();
        map(&space, 1, VmaFlags::empty(), Some(object.clone()));
        assert_eq!(peek(&space, AT), b'f');
        space.write(AT, b"X").unwrap();
        let mut byte = [0];
        object.backing.page(0).unwrap().read(0, &mut byte);
        assert_eq!(
            (byte[0], peek(&space, AT), peek(&space, AT + 1)),
            (b'f', b'X', b'i')
        );
        space
            .madvise(
                AT,
                PAGE_SIZE,
                Advice::DontNeed(crate::DontNeedScope::Unlocked),
            )
            .unwrap();
        assert_eq!(peek(&space, AT), b'f');
    }

    #[test]
    fn moving_takes_the_pages_along() {
        let space = space();
        map(&space, 2, VmaFlags::empty(), None);
        space.write(AT + PAGE_SIZE, b"m").unwrap();
        let blocker = MapRequest {
            placement: Placement::FixedIfFree(AT + 2 * PAGE_SIZE),
            len: 1,
            prot: RW,
            flags: VmaFlags::empty(),
            object: None,
        };
        space.mmap(blocker).unwrap();
        let stay = RemapOptions::default();
        assert_eq!(
            space.mremap(AT, 2 * PAGE_SIZE, 4 * PAGE_SIZE, stay),
            Err(Errno::ENOMEM)
        );
        let to = space
            .mremap(
                AT,
                2 * PAGE_SIZE,
                4 * PAGE_SIZE,
                RemapOptions {
                    may_move: true,
                    ..stay
                },
            )
            .unwrap();
        assert_eq!(peek(&space, to + PAGE_SIZE), b'm');
        assert_eq!(
            space.handle_fault(AT, AccessKind::Read),
            Err(FaultError::NotMapped)
        );
        assert_eq!(space.stats().size, 5 * PAGE_SIZE);
    }

    #[test]
    fn stacks_grow_to_their_limit() {
        let space = space();
        map(&space, 1, VmaFlags::GROWSDOWN, None);
        space.set_limits(usize::MAX, 3 * PAGE_SIZE);
        // The next thing below is too near only for other addresses.
        assert_eq!(
            space.handle_fault(AT - 2 * PAGE_SIZE, AccessKind::Write),
            Ok(())
        );
        assert_eq!(
            space.handle_fault(AT - 3 * PAGE_SIZE, AccessKind::Write),
            Err(FaultError::NotMapped)
        );
        assert_eq!(space.stats().size, 3 * PAGE_SIZE);
    }

    #[test]
    fn the_heap_moves_both_ways() {
        let space = space();
        space.set_brk_start(AT + 100);
        assert_eq!(space.brk(0), AT + 100);
        assert_eq!(space.brk(AT + 5000), AT + 5000);
        space.write(AT + 4999, b"h").unwrap();
        assert_eq!(space.brk(AT + 200), AT + 200);
        assert_eq!(space.brk(AT + 5000), AT + 5000);
        assert_eq!(peek(&space, AT + 4999), 0);
    }
}
