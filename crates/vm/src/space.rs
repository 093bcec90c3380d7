//! An address space: which areas there are, and the page table that shows what of them is present.
//!
//! Who may do what at the same time is said in `range_lock`.

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use abi::errno::Errno;
use task::{Mutex, RwLock, WaitQueue, WriteGuard};

use crate::large;
use crate::object::{Backing, Object};
use crate::range_lock::RangeLocks;
use crate::small_vec::SmallVec;
use crate::vma::{MappedObject, Prot, Vma, VmaFlags, VmaMap};
use crate::{
    LargePage, MapError, PAGE_SIZE, Page, PageTable, Perm, USER_END, USER_START, Unmapped,
    max_map_count, page_align_up, zero_page,
};

/// Where a new mapping goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placement {
    /// Where there is room, at the hint if it is free there (0: no hint).
    Anywhere(usize),
    /// Here; what is there goes away.
    Fixed(usize),
    /// Here, or not at all.
    FixedIfFree(usize),
}

/// Arguments of [`AddressSpace::mmap`]: where, how much, and of what.
pub struct MapRequest {
    /// Where.
    pub placement: Placement,
    /// Bytes; rounded up to pages.
    pub len: usize,
    /// Accesses that the program may make.
    pub prot: Prot,
    /// How it behaves.
    pub flags: VmaFlags,
    /// The object and the number of the page in it that comes first; `None` for private memory
    /// without a name.
    pub object: Option<(Arc<Object>, u64)>,
}

/// An area as one line of `/proc/<pid>/maps` shows it.
pub struct VmaInfo {
    /// From where to where.
    pub range: Range<usize>,
    /// Protection.
    pub prot: Prot,
    /// Whether it is shared.
    pub shared: bool,
    /// Whether the program may make it writable, which it may not of a shared file that it has open
    /// for reading only.
    pub may_write: bool,
    /// Flags of the area besides its protection.
    pub flags: VmaFlags,
    /// Offset in the object, bytes.
    pub offset: u64,
    /// Device number of the file, encoded; 0 without one.
    pub dev: u64,
    /// The file's number.
    pub ino: u64,
    /// The file's name, `[heap]`, `[stack]`, `[anon:NAME]` or nothing.
    pub name: Vec<u8>,
    /// Whether faults bring in large pages there, as far as there are.
    pub large: bool,
    /// The policy that was set with [`AddressSpace::set_mempolicy`].
    pub policy: u64,
}

/// Sizes of an address space, as `/proc/<pid>/statm` shows them.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct SpaceStats {
    /// Bytes mapped.
    pub size: usize,
    /// The most there were.
    pub peak: usize,
    /// Bytes of pages present.
    pub resident: usize,
    /// Bytes of private writable memory.
    pub data: usize,
    /// Bytes of stacks.
    pub stack: usize,
    /// Bytes of code.
    pub text: usize,
    /// Bytes locked.
    pub locked: usize,
}

/// Resident bytes of an address space.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct ResidentBytes {
    /// Of private areas.
    pub private: usize,
    /// Of shared areas.
    pub shared: usize,
}

/// The part of an address space that is under its read-write lock: the areas, and the locked
/// ranges.
#[derive(Default)]
pub(crate) struct SpaceState {
    pub(crate) vmas: VmaMap,
    pub(crate) range_locks: RangeLocks,
    /// The heap: where it begins, and where it ends now.
    pub(crate) heap: Range<usize>,
    /// Bytes mapped.
    pub(crate) size: usize,
    /// The most there were before something was unmapped.
    peak: usize,
    /// Some area is or was sealed.
    pub(crate) has_seals: bool,
}

impl SpaceState {
    /// Takes out the areas in `range`, whose pages are gone. The caller drops them when the lock is
    /// open: the last reference to a file may be among them.
    pub(crate) fn remove_vmas(&mut self, range: Range<usize>) -> SmallVec<(usize, Vma)> {
        let gone = self.vmas.remove(range);
        self.peak = self.peak.max(self.size);
        self.size -= gone
            .iter()
            .map(|(start, area)| area.end - start)
            .sum::<usize>();
        gone
    }

    /// Whether one more area may be made, and makes room for it.
    ///
    /// # Errors
    /// `ENOMEM`.
    #[inline]
    pub(crate) fn check_map_count(&mut self) -> Result<(), Errno> {
        if self.vmas.len() > max_map_count() {
            return Err(Errno::ENOMEM);
        }
        self.vmas.try_reserve(1)
    }

    /// The parts of areas in `range` where there may be pages, and whether each is shared.
    pub(crate) fn populated_parts(&self, range: &Range<usize>) -> SmallVec<(Range<usize>, bool)> {
        let touched = self
            .vmas
            .iter_range(range.clone())
            .filter(|(_, area)| area.has_pages.get());
        touched
            .map(|(part, area)| (part, area.is_shared()))
            .collect()
    }
}

/// Pages of private areas that the table does not show: those of inaccessible areas (the processor
/// has no unreadable user page), and those a move found no table for.
#[derive(Default)]
pub(crate) struct InaccessiblePages {
    /// How many, so that faults need not lock to see that there are none.
    count: AtomicUsize,
    pages: Mutex<BTreeMap<usize, Page>>,
}

impl InaccessiblePages {
    pub(crate) fn insert(&self, va: usize, page: Page) {
        let mut pages = self.pages.lock();
        pages.insert(va, page);
        self.count.store(pages.len(), Ordering::Relaxed);
    }

    #[inline]
    fn is_empty(&self) -> bool {
        // A page is kept here with its range locked, and range locks begin and end under the lock
        // of the areas.
        self.count.load(Ordering::Relaxed) == 0
    }

    /// Takes out the page at `va`.
    #[inline]
    pub(crate) fn remove(&self, va: usize) -> Option<Page> {
        if self.is_empty() {
            None
        } else {
            self.remove_locked(va)
        }
    }

    #[cold]
    fn remove_locked(&self, va: usize) -> Option<Page> {
        let mut pages = self.pages.lock();
        let page = pages.remove(&va);
        self.count.store(pages.len(), Ordering::Relaxed);
        page
    }

    /// Takes out all in `range`.
    pub(crate) fn remove_range(&self, range: &Range<usize>) -> BTreeMap<usize, Page> {
        if self.is_empty() {
            return BTreeMap::new();
        }
        let mut pages = self.pages.lock();
        let mut taken = pages.split_off(&range.start);
        pages.append(&mut taken.split_off(&range.end));
        self.count.store(pages.len(), Ordering::Relaxed);
        taken
    }

    /// Calls `each` with all of them, which it may replace by copies.
    pub(crate) fn for_each(&self, each: impl FnMut(&mut Page)) {
        if !self.is_empty() {
            self.pages.lock().values_mut().for_each(each);
        }
    }

    /// Whether there is any in `range`.
    pub(crate) fn has_any_in(&self, range: &Range<usize>) -> bool {
        !self.is_empty() && self.pages.lock().range(range.clone()).next().is_some()
    }

    pub(crate) fn contains(&self, va: usize) -> bool {
        !self.is_empty() && self.pages.lock().contains_key(&va)
    }

    /// Reads the page at `va`, if it is kept here.
    pub(crate) fn read(&self, va: usize, to: &mut [u8]) -> bool {
        !self.is_empty()
            && self
                .pages
                .lock()
                .get(&va)
                .map(|page| page.read(0, to))
                .is_some()
    }

    fn copy_to(&self, other: &Self, range: &Range<usize>) {
        if !self.is_empty() {
            self.pages
                .lock()
                .range(range.clone())
                .for_each(|(&va, page)| other.insert(va, page.clone()));
        }
    }
}

/// A program's memory.
///
/// ```
/// use vm::{AddressSpace, MapRequest, PAGE_SIZE, Placement, Prot, VmaFlags};
///
/// let space = AddressSpace::new(1 << 40).expect("memory for a page table");
/// let addr = space.mmap(MapRequest {
///     placement: Placement::Anywhere(0),
///     len: PAGE_SIZE,
///     prot: Prot::READ | Prot::WRITE,
///     flags: VmaFlags::empty(),
///     object: None,
/// })?;
/// space.write(addr, b"before")?;
/// let child = space.fork()?;
/// space.write(addr, b"behind")?;
/// let mut bytes = [0; 6];
/// child.read(addr, &mut bytes)?;
/// assert_eq!(&bytes, b"before");
/// space.munmap(addr, PAGE_SIZE)?;
/// # Ok::<(), abi::errno::Errno>(())
/// ```
pub struct AddressSpace {
    _counted: census::Space,
    id: u64,
    weak_self: Weak<Self>,
    pub(crate) state: RwLock<SpaceState>,
    /// Where threads wait for the end of a claim.
    pub(crate) range_unlocked: WaitQueue,
    pub(crate) inaccessible: InaccessiblePages,
    pub(crate) table: PageTable,
    /// Below this, mappings without an address of their own are placed.
    mmap_base: usize,
    /// Or above this, if it is not 0.
    mmap_legacy_base: AtomicUsize,
    /// Pages present in private and in shared areas, without the zero page.
    pub(crate) private_pages: AtomicUsize,
    pub(crate) shared_pages: AtomicUsize,
    /// The most bytes that may be mapped (`RLIMIT_AS`).
    size_limit: AtomicUsize,
    /// The most bytes a stack may grow to (`RLIMIT_STACK`).
    stack_limit: AtomicUsize,
    /// New mappings are locked (`mlockall(2)`).
    pub(crate) mlock_future: AtomicBool,
    /// There are to be no large pages (`PR_SET_THP_DISABLE`).
    pub(crate) no_large: AtomicBool,
    /// Commands that `membarrier(2)` has registered.
    membarrier_state: AtomicU32,
}

impl AddressSpace {
    /// An empty space; mappings without an address of their own go below `top`. `None` if memory is
    /// short.
    #[must_use]
    pub fn new(top: usize) -> Option<Arc<Self>> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let table = PageTable::new()?;
        Some(Arc::new_cyclic(|me| Self {
            _counted: census::Space::default(),
            weak_self: me.clone(),
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            state: RwLock::default(),
            range_unlocked: WaitQueue::new(),
            inaccessible: InaccessiblePages::default(),
            table,
            mmap_base: top.min(USER_END),
            mmap_legacy_base: AtomicUsize::new(0),
            private_pages: AtomicUsize::new(0),
            shared_pages: AtomicUsize::new(0),
            size_limit: AtomicUsize::new(usize::MAX),
            stack_limit: AtomicUsize::new(8 << 20),
            mlock_future: AtomicBool::new(false),
            no_large: AtomicBool::new(false),
            membarrier_state: AtomicU32::new(0),
        }))
    }

    /// From now on, mappings without an address of their own are placed as low as possible above
    /// `bottom` (`ADDR_COMPAT_LAYOUT`). Each looks at all areas for that.
    pub fn set_legacy_base(&self, bottom: usize) {
        self.mmap_legacy_base.store(bottom, Ordering::Relaxed);
    }

    /// Sets `RLIMIT_AS` and `RLIMIT_STACK`.
    pub fn set_limits(&self, size: usize, stack: usize) {
        self.size_limit.store(size, Ordering::Relaxed);
        self.stack_limit.store(stack, Ordering::Relaxed);
    }

    pub(crate) fn stack_limit(&self) -> usize {
        self.stack_limit.load(Ordering::Relaxed)
    }

    pub(crate) fn may_expand(&self, state: &SpaceState, more: usize) -> bool {
        state.size.saturating_add(more) <= self.size_limit.load(Ordering::Relaxed)
    }

    /// Whether a range of addresses is a program's at all.
    pub(crate) fn user_range(addr: usize, len: usize) -> Result<Range<usize>, Errno> {
        let end = addr
            .checked_add(len)
            .filter(|&end| end <= USER_END)
            .ok_or(Errno::ENOMEM)?;
        if addr < USER_START {
            Err(Errno::EPERM)
        } else {
            Ok(addr..end)
        }
    }

    /// A page-aligned range from a call's arguments: `EINVAL` if there is none, `ENOMEM` if nothing
    /// can be mapped there. Nothing is so anywhere.
    pub(crate) fn page_range(addr: usize, len: usize) -> Result<Range<usize>, Errno> {
        let range = Self::page_range_unbounded(addr, len)?;
        if range.is_empty() || range.end <= USER_END {
            Ok(range)
        } else {
            Err(Errno::ENOMEM)
        }
    }

    /// The same, but the range may go on where nothing can be mapped: for calls that go through
    /// what is there first.
    pub(crate) fn page_range_unbounded(addr: usize, len: usize) -> Result<Range<usize>, Errno> {
        let len = page_align_up(len).ok_or(Errno::EINVAL)?;
        if !addr.is_multiple_of(PAGE_SIZE) {
            return Err(Errno::EINVAL);
        }
        Ok(addr..addr.checked_add(len).ok_or(Errno::EINVAL)?)
    }

    /// Where the stack begins that is at `addr`, or is the first thing above it and below `end`.
    ///
    /// # Errors
    /// `ENOMEM` if there is nothing, `EINVAL` if it is no stack.
    pub fn stack_start(&self, addr: usize, end: usize) -> Result<usize, Errno> {
        let state = self.state.read();
        let above = || {
            state
                .vmas
                .next_above(addr)
                .filter(|(start, _)| *start < end)
        };
        let (start, area) = state.vmas.find(addr).or_else(above).ok_or(Errno::ENOMEM)?;
        if area.flags.contains(VmaFlags::GROWSDOWN) {
            Ok(start)
        } else {
            Err(Errno::EINVAL)
        }
    }

    /// Whether something of `len` bytes could be mapped there, as far as that depends on the place.
    ///
    /// # Errors
    /// `ENOMEM` if the place is too small or no program's, `EINVAL` if it does not begin with a
    /// page, `EEXIST` if it has to be free and is not.
    pub fn check_placement(&self, place: Placement, len: usize) -> Result<(), Errno> {
        let len = page_align_up(len)
            .filter(|&len| len < USER_END)
            .ok_or(Errno::ENOMEM)?;
        let (Placement::Fixed(addr) | Placement::FixedIfFree(addr)) = place else {
            return Ok(());
        };
        let end = addr
            .checked_add(len)
            .filter(|&end| end <= USER_END)
            .ok_or(Errno::ENOMEM)?;
        if !addr.is_multiple_of(PAGE_SIZE) {
            return Err(Errno::EINVAL);
        }
        let free =
            matches!(place, Placement::Fixed(_)) || self.state.read().vmas.is_free(addr..end);
        if free { Ok(()) } else { Err(Errno::EEXIST) }
    }

    /// Maps something and returns where.
    ///
    /// # Errors
    /// `EINVAL`, `ENOMEM`, `EEXIST`, `EPERM` for the lowest addresses, `EACCES` for a shared
    /// mapping that may not be written to.
    pub fn mmap(&self, request: MapRequest) -> Result<usize, Errno> {
        let len = page_align_up(request.len)
            .filter(|&len| len < USER_END)
            .ok_or(Errno::ENOMEM)?;
        if len == 0 {
            return Err(Errno::EINVAL);
        }
        let shared = request.flags.contains(VmaFlags::SHARED);
        if let Some((object, _)) = &request.object
            && shared
            && request.prot.contains(Prot::WRITE)
            && !object.writable
        {
            return Err(Errno::EACCES);
        }
        let source = request.object.map(|(object, first)| MappedObject {
            object,
            page_offset: first,
        });
        self.register_mapping(source.as_ref());
        let area = |end: usize| Vma::new(end, request.prot, request.flags, source);
        let (start, replace) = match request.placement {
            Placement::Anywhere(hint) => {
                let mut state = self.state.write();
                state.check_map_count()?;
                let start =
                    self.find_unmapped_range(&mut state, crate::page_align_down(hint), len)?;
                return self.insert_vma(&mut state, start, area(start + len));
            }
            Placement::Fixed(addr) => (addr, true),
            Placement::FixedIfFree(addr) => (addr, false),
        };
        self.check_placement(Placement::Fixed(start), len)?;
        let range = Self::user_range(start, len)?;
        let mut state = self.write_state(&range);
        state.check_map_count()?;
        if state.vmas.is_free(range.clone()) {
            return self.insert_vma(&mut state, start, area(range.end));
        }
        if !replace {
            return Err(Errno::EEXIST);
        }
        state.check_seals(&range)?;
        state.vmas.check_split(&range)?;
        if !self.may_expand(&state, len) {
            return Err(Errno::ENOMEM);
        }
        self.unmap_range(state, range.clone(), |state| {
            state.vmas.insert(start, area(range.end));
            state.size += len;
        });
        Ok(start)
    }

    /// Has an object know that it may be mapped here.
    fn register_mapping(&self, source: Option<&MappedObject>) {
        if let Some(mappings) = source.and_then(|source| source.object.backing.reverse_map()) {
            mappings.add(self.id, &self.weak_self);
        }
    }

    /// Puts an area where nothing is, if there is room.
    fn insert_vma(&self, state: &mut SpaceState, start: usize, area: Vma) -> Result<usize, Errno> {
        let len = area.end - start;
        if !self.may_expand(state, len) {
            return Err(Errno::ENOMEM);
        }
        state.vmas.insert(start, area);
        state.size += len;
        Ok(start)
    }

    /// A place for `len` bytes: at `hint`, or as high as possible.
    pub(crate) fn find_unmapped_range(
        &self,
        state: &mut SpaceState,
        hint: usize,
        len: usize,
    ) -> Result<usize, Errno> {
        if hint != 0
            && let Ok(range) = Self::user_range(hint, len)
            && state.vmas.is_free(range)
        {
            return Ok(hint);
        }
        let bottom = self.mmap_legacy_base.load(Ordering::Relaxed);
        if bottom != 0
            && let Some(start) = state.vmas.gap_above(len, bottom)
        {
            return Ok(start);
        }
        state
            .vmas
            .gap_below(len, self.mmap_base)
            .or_else(|| state.vmas.gap_below(len, USER_END))
            .ok_or(Errno::ENOMEM)
    }

    /// Takes everything out of `range`, which is nobody's claim; `then` is done in the same moment
    /// as the areas go.
    pub(crate) fn unmap_range(
        &self,
        mut state: WriteGuard<'_, SpaceState>,
        range: Range<usize>,
        then: impl FnOnce(&mut SpaceState),
    ) {
        let parts = state.populated_parts(&range);
        if parts.is_empty() {
            let gone = state.remove_vmas(range);
            then(&mut state);
            drop(state);
            drop(gone);
            return;
        }
        let claim = self.lock_range(&mut state, range.clone());
        drop(state);
        for (part, shared) in parts {
            self.zap_pages(part, shared);
        }
        let gone = claim.release_with(|state| {
            let gone = state.remove_vmas(range);
            then(state);
            gone
        });
        drop(gone);
    }

    /// Gives back the pages of `range`, a part of one area that the caller has claimed.
    pub(crate) fn zap_pages(&self, range: Range<usize>, shared: bool) {
        let mut pages = 0;
        self.table.unmap_range(range.clone(), &mut |_, gone| {
            pages += match gone {
                Unmapped::Page(page) => usize::from(!zero_page::is_zero_page(&page)),
                Unmapped::Large(_) => LargePage::PAGES,
            }
        });
        self.present_counter(shared)
            .fetch_sub(pages, Ordering::Relaxed);
        drop(self.inaccessible.remove_range(&range));
    }

    pub(crate) fn present_counter(&self, shared: bool) -> &AtomicUsize {
        if shared {
            &self.shared_pages
        } else {
            &self.private_pages
        }
    }

    /// Unmaps a range.
    ///
    /// # Errors
    /// `EINVAL`.
    pub fn munmap(&self, addr: usize, len: usize) -> Result<(), Errno> {
        let range = Self::page_range(addr, len).map_err(|_| Errno::EINVAL)?;
        if range.is_empty() {
            return Err(Errno::EINVAL);
        }
        let mut state = self.write_state(&range);
        state.check_seals(&range)?;
        state.vmas.check_hole(&range)?;
        self.unmap_range(state, range, |_| ());
        Ok(())
    }

    /// Changes what the program may do in a range.
    ///
    /// # Errors
    /// `ENOMEM` if something there is not mapped, `EACCES` (in both cases what comes before is
    /// done), `EINVAL`.
    pub fn mprotect(&self, addr: usize, len: usize, prot: Prot) -> Result<(), Errno> {
        let range = Self::page_range(addr, len)?;
        let mut state = self.write_state(&range);
        state.check_seals(&range)?;
        state.vmas.check_split(&range)?;
        // A private page may be shared with a child or a file: writing to it is granted page by
        // page, by faults. So nothing is to be done in the table for more than there was.
        let grows = |area: &Vma| {
            !area.is_shared()
                && prot.contains(area.prot)
                && (area.prot ^ prot) - Prot::WRITE == Prot::empty()
        };
        let (mut covered, mut parts, mut refused) = (range.start, SmallVec::default(), None);
        for (part, area) in state.vmas.iter_range(range.clone()) {
            if part.start != covered {
                break;
            }
            if area.is_shared()
                && prot.contains(Prot::WRITE)
                && area.mapped.as_ref().is_some_and(|s| !s.object.writable)
            {
                refused = Some(Errno::EACCES);
                break;
            }
            covered = part.end;
            if area.has_pages.get() && area.prot != prot && !grows(area) {
                if prot.is_empty() {
                    // A page kept as inaccessible is not looked for in the object.
                    area.has_private_pages.set();
                }
                parts.push((part, area.is_shared(), area.notes_writes()));
            }
        }
        let result = if covered < range.end {
            Err(refused.unwrap_or(Errno::ENOMEM))
        } else {
            Ok(())
        };
        let range = range.start..covered;
        if parts.is_empty() {
            state.vmas.update(range, |area| area.prot = prot);
            return result;
        }
        let claim = self.lock_range(&mut state, range.clone());
        drop(state);
        for (part, shared, notes_writes) in parts {
            if prot.is_empty() {
                self.unmap_inaccessible(part, shared);
            } else {
                self.table.protect(
                    part,
                    Perm {
                        write: shared && !notes_writes && prot.contains(Prot::WRITE),
                        exec: prot.contains(Prot::EXEC),
                    },
                );
            }
        }
        claim.release_with(|state| state.vmas.update(range, |area| area.prot = prot));
        result
    }

    /// Takes the pages of a part of an area out of the table, and keeps what is only there.
    fn unmap_inaccessible(&self, part: Range<usize>, shared: bool) {
        let mut pages = 0;
        let mut park = |va, page: Page| {
            let zero = zero_page::is_zero_page(&page);
            pages += usize::from(!zero);
            // The object still has a shared page, and zeros are found again.
            if !shared && !zero {
                self.inaccessible.insert(va, page);
            }
        };
        self.table.unmap_range(part, &mut |va, gone| match gone {
            Unmapped::Page(page) => park(va, page),
            Unmapped::Large(large) => large.into_pages(|n, page| park(va + n * PAGE_SIZE, page)),
        });
        self.present_counter(shared)
            .fetch_sub(pages, Ordering::Relaxed);
    }

    /// Sets where the heap begins; it is empty then.
    pub fn set_brk_start(&self, start: usize) {
        self.set_brk_bounds(start..start);
    }

    /// Says from where to where the heap is (`PR_SET_MM`); nothing is mapped by that.
    pub fn set_brk_bounds(&self, heap: Range<usize>) {
        self.state.write().heap = heap;
    }

    /// From where to where the heap is.
    #[must_use]
    pub fn heap(&self) -> Range<usize> {
        self.state.read().heap.clone()
    }

    /// Moves the end of the heap to `end`, if that is possible; returns where it is (`brk(2)`).
    pub fn brk(&self, end: usize) -> usize {
        loop {
            let Range { start, end: old } = self.state.read().heap.clone();
            let (Some(new_top), Some(old_top)) = (page_align_up(end), page_align_up(old)) else {
                return old;
            };
            if end < start || new_top > USER_END {
                return old;
            }
            let range = new_top.min(old_top)..new_top.max(old_top);
            // Who shrinks the heap claims its last page, and moves the end when that is gone: who
            // grows it comes after that.
            let mut state =
                self.write_state(&(range.start.min(old_top - PAGE_SIZE.min(old_top))..range.end));
            if state.heap.end != old {
                continue;
            }
            if new_top < old_top && state.check_seals(&range).is_err() {
                return old;
            }
            if new_top < old_top {
                self.unmap_range(state, range, |state| state.heap.end = end);
                return end;
            }
            if new_top > old_top {
                let prot = Prot::READ | Prot::WRITE;
                let mut flags = VmaFlags::empty();
                flags.set(VmaFlags::LOCKED, self.is_mlock_future());
                let area = Vma::new(new_top, prot, flags, None);
                if !state.vmas.is_free(range)
                    || state.check_map_count().is_err()
                    || self.insert_vma(&mut state, old_top, area).is_err()
                {
                    return old;
                }
            }
            state.heap.end = end;
            return end;
        }
    }

    /// A copy as `fork(2)` makes it: private pages are shared until somebody writes to them.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn fork(&self) -> Result<Arc<Self>, Errno> {
        let child = Self::new(self.mmap_base).ok_or(Errno::ENOMEM)?;
        child.set_legacy_base(self.mmap_legacy_base.load(Ordering::Relaxed));
        child.set_limits(self.size_limit.load(Ordering::Relaxed), self.stack_limit());
        child.forbid_large_pages(!self.may_have_large_pages());
        // Nobody faults, and nobody is in the middle of a change.
        let state = self.write_state(&(0..usize::MAX));
        let mut copy = SpaceState {
            heap: state.heap.clone(),
            has_seals: state.has_seals,
            ..SpaceState::default()
        };
        copy.vmas.try_reserve(state.vmas.len())?;
        let mut pages = 0;
        for (start, area) in state.vmas.iter() {
            if area.flags.contains(VmaFlags::DONTFORK) {
                continue;
            }
            let range = start..area.end;
            // What is the object's own, the child's faults find there.
            let own = area.mapped.is_none() || area.has_private_pages.get();
            if !area.is_shared()
                && area.has_pages.get()
                && own
                && !area.flags.contains(VmaFlags::WIPEONFORK)
            {
                let count = |frame| pages += usize::from(!zero_page::is_zero_frame(frame));
                self.table
                    .share_cow(&child.table, range.clone(), count)
                    .map_err(map_error_to_errno)?;
                self.inaccessible.copy_to(&child.inaccessible, &range);
            }
            child.register_mapping(area.mapped.as_ref());
            let mut area = area.clone();
            // Locks are not inherited.
            area.flags -= VmaFlags::LOCKED;
            copy.size += range.len();
            copy.vmas.push(start, area);
        }
        drop(state);
        child.private_pages.store(pages, Ordering::Relaxed);
        *child.state.write() = copy;
        Ok(child)
    }

    /// Its size.
    #[must_use]
    pub fn stats(&self) -> SpaceStats {
        let state = self.state.read();
        let sum = |which: &dyn Fn(&Vma) -> bool| {
            state
                .vmas
                .iter()
                .filter(|(_, a)| which(a))
                .map(|(s, a)| a.end - s)
                .sum()
        };
        SpaceStats {
            size: state.size,
            peak: state.peak.max(state.size),
            resident: self.resident(),
            data: sum(&|a| {
                !a.is_shared()
                    && a.prot.contains(Prot::WRITE)
                    && !a.flags.contains(VmaFlags::GROWSDOWN)
            }),
            stack: sum(&|a| a.flags.contains(VmaFlags::GROWSDOWN)),
            text: sum(&|a| a.prot.contains(Prot::EXEC) && !a.prot.contains(Prot::WRITE)),
            locked: sum(&|a| a.flags.contains(VmaFlags::LOCKED)),
        }
    }

    /// Bytes that are present.
    pub fn resident(&self) -> usize {
        let ResidentBytes { private, shared } = self.resident_by_sharing();
        private + shared
    }

    /// Resident bytes of private areas and of shared ones.
    #[must_use]
    pub fn resident_by_sharing(&self) -> ResidentBytes {
        ResidentBytes {
            private: self.private_pages.load(Ordering::Relaxed) * PAGE_SIZE,
            shared: self.shared_pages.load(Ordering::Relaxed) * PAGE_SIZE,
        }
    }

    /// All areas, ascending, for tests: a program may have very many.
    #[cfg(not(target_os = "none"))]
    #[must_use]
    pub fn vma_infos(&self) -> Vec<VmaInfo> {
        self.vma_infos_from(0, usize::MAX)
    }

    /// The first area for which `which` holds. Looks at a few at a time: there may be very many.
    pub fn find_vma_info(&self, mut which: impl FnMut(&VmaInfo) -> bool) -> Option<VmaInfo> {
        const AT_ONCE: usize = 64;
        let mut from = 0;
        loop {
            let areas = self.vma_infos_from(from, AT_ONCE);
            from = areas.last()?.range.end;
            if let Some(found) = areas.into_iter().find(&mut which) {
                return Some(found);
            }
        }
    }

    /// The first areas that end above `addr`, ascending, at most `most`.
    #[must_use]
    pub fn vma_infos_from(&self, addr: usize, most: usize) -> Vec<VmaInfo> {
        let state = self.state.read();
        let describe = |(start, area): (usize, &Vma)| {
            let source = area.mapped.as_ref();
            let name = match source {
                Some(source) => source.object.name.clone(),
                None if area.flags.contains(VmaFlags::GROWSDOWN) => b"[stack]".to_vec(),
                None if start < state.heap.end && area.end > state.heap.start => b"[heap]".to_vec(),
                None => area
                    .name
                    .as_ref()
                    .map(|name| [b"[anon:", &**name, b"]"].concat())
                    .unwrap_or_default(),
            };
            VmaInfo {
                range: start..area.end,
                prot: area.prot,
                shared: area.is_shared(),
                may_write: !area.is_shared() || source.is_none_or(|s| s.object.writable),
                flags: area.flags,
                offset: source.map_or(0, |s| s.page_offset * PAGE_SIZE as u64),
                dev: source.map_or(0, |s| s.object.dev),
                ino: source.map_or(0, |s| s.object.ino),
                name,
                large: self.wants_large(area) && large::has_room(start, area),
                policy: area.policy,
            }
        };
        let behind = state.vmas.iter_from(addr);
        behind.take(most).map(describe).collect()
    }

    /// A number no other address space has or had.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Notes that barriers of a kind (a bit) will be asked for.
    pub fn register_membarrier(&self, kind: u32) {
        self.membarrier_state.fetch_or(kind, Ordering::Relaxed);
    }

    /// Commands that were registered for `membarrier(2)`.
    #[must_use]
    pub fn registered_membarriers(&self) -> u32 {
        self.membarrier_state.load(Ordering::Relaxed)
    }

    /// All threads of the space pass a full barrier, those in user mode an instruction barrier too,
    /// before this returns.
    pub fn membarrier(&self) {
        self.table.synchronize();
    }

    /// The backing at `addr`, if that is the beginning of an area and of what it maps.
    #[must_use]
    pub fn backing_at(&self, addr: usize) -> Option<Arc<dyn Backing>> {
        let state = self.state.read();
        let (start, area) = state.vmas.find(addr)?;
        let source = area
            .mapped
            .as_ref()
            .filter(|source| start == addr && source.page_offset == 0)?;
        Some(source.object.backing.clone())
    }

    /// Makes this the address space of the current CPU. Does not sleep.
    #[inline]
    pub fn activate(&self) {
        self.table.activate();
    }
}

impl Drop for AddressSpace {
    fn drop(&mut self) {
        for (_, area) in self.state.get_mut().vmas.iter() {
            if let Some(mappings) = area
                .mapped
                .as_ref()
                .and_then(|source| source.object.backing.reverse_map())
            {
                mappings.remove(self.id);
            }
        }
    }
}

impl task::UserSpace for AddressSpace {
    fn activate(&self) {
        self.table.activate();
    }
}

/// The only way mapping a page of a program can fail here: addresses are checked before.
pub(crate) fn map_error_to_errno(_: MapError) -> Errno {
    Errno::ENOMEM
}
