//! An address space: which areas there are, and the page table that shows what of them is present.
//!
//! Who may do what at the same time is said in `claim`.

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use abi::errno::Errno;
use task::{Mutex, RwLock, WaitQueue, WriteGuard};

use crate::area::{Area, AreaFlags, Areas, Prot, Source};
use crate::claim::Claims;
use crate::few::Few;
use crate::large;
use crate::object::{Backing, Object};
use crate::{LargePage, MapError, PAGE_SIZE, Page, PageTable, Perm, USER_END, USER_START, Unmapped, page_up, zero};

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

/// What `mmap` is asked for.
pub struct Mapping {
    /// Where.
    pub place: Placement,
    /// Bytes; rounded up to pages.
    pub len: usize,
    /// What the program may do.
    pub prot: Prot,
    /// How it behaves.
    pub flags: AreaFlags,
    /// The object and the number of the page in it that comes first; `None` for private memory without a name.
    pub object: Option<(Arc<Object>, u64)>,
}

/// One line of `/proc/<pid>/maps`.
pub struct AreaInfo {
    /// From where to where.
    pub range: Range<usize>,
    /// Protection.
    pub prot: Prot,
    /// Whether it is shared.
    pub shared: bool,
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
    /// What was remembered with [`AddressSpace::set_policy`].
    pub policy: u64,
}

/// The size of an address space.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Stats {
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

/// Which word of memory an address means: the same for all who see the same word.
#[derive(Clone)]
pub struct FutexKey {
    space: u64,
    index: u64,
    /// Keeps what `index` counts in from being replaced by something else at its address.
    object: Option<Arc<dyn Backing>>,
}

impl FutexKey {
    /// A word that only this address space sees ([`AddressSpace::id`]).
    #[inline]
    #[must_use]
    pub fn private(space: u64, addr: usize) -> Self {
        Self { space, index: addr as u64, object: None }
    }

    /// What tells the key from all others, as long as it exists.
    #[inline]
    #[must_use]
    pub fn numbers(&self) -> [u64; 3] {
        let object = self.object.as_ref().map_or(0, |object| Arc::as_ptr(object).cast::<u8>().addr());
        [self.space, self.index, object as u64]
    }
}

/// What there is, and who is changing it.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) areas: Areas,
    pub(crate) claims: Claims,
    /// The heap: where it begins, and where it ends now.
    pub(crate) heap: Range<usize>,
    /// Bytes mapped.
    pub(crate) size: usize,
    /// The most there were before something was unmapped.
    peak: usize,
    /// Some area is or was sealed.
    pub(crate) has_seals: bool,
}

impl State {
    /// Takes out the areas in `range`, whose pages are gone. The caller drops them when the lock is open: the last reference to a
    /// file may be among them.
    pub(crate) fn forget(&mut self, range: Range<usize>) -> Few<(usize, Area)> {
        let gone = self.areas.remove(range);
        self.peak = self.peak.max(self.size);
        self.size -= gone.iter().map(|(start, area)| area.end - start).sum::<usize>();
        gone
    }

    /// The parts of areas in `range` where there may be pages, and whether each is shared.
    pub(crate) fn parts(&self, range: &Range<usize>) -> Few<(Range<usize>, bool)> {
        let touched = self.areas.within(range.clone()).filter(|(_, area)| area.touched.get());
        touched.map(|(part, area)| (part, area.shared())).collect()
    }
}

/// Pages of private areas that the table does not show: those of inaccessible areas (the processor has no unreadable user page),
/// and those a move found no table for.
#[derive(Default)]
pub(crate) struct Parked {
    /// How many, so that faults need not lock to see that there are none.
    count: AtomicUsize,
    pages: Mutex<BTreeMap<usize, Page>>,
}

impl Parked {
    pub(crate) fn insert(&self, va: usize, page: Page) {
        let mut pages = self.pages.lock();
        pages.insert(va, page);
        self.count.store(pages.len(), Ordering::Relaxed);
    }

    #[inline]
    fn none(&self) -> bool {
        // A page is parked with its range claimed, and claims begin and end under the lock of the areas.
        self.count.load(Ordering::Relaxed) == 0
    }

    /// Takes out the page at `va`.
    #[inline]
    pub(crate) fn take(&self, va: usize) -> Option<Page> {
        if self.none() { None } else { self.take_one(va) }
    }

    #[cold]
    fn take_one(&self, va: usize) -> Option<Page> {
        let mut pages = self.pages.lock();
        let page = pages.remove(&va);
        self.count.store(pages.len(), Ordering::Relaxed);
        page
    }

    /// Takes out all in `range`.
    pub(crate) fn take_range(&self, range: &Range<usize>) -> BTreeMap<usize, Page> {
        if self.none() {
            return BTreeMap::new();
        }
        let mut pages = self.pages.lock();
        let mut taken = pages.split_off(&range.start);
        pages.append(&mut taken.split_off(&range.end));
        self.count.store(pages.len(), Ordering::Relaxed);
        taken
    }

    /// Whether there is any in `range`.
    pub(crate) fn any_in(&self, range: &Range<usize>) -> bool {
        !self.none() && self.pages.lock().range(range.clone()).next().is_some()
    }

    pub(crate) fn contains(&self, va: usize) -> bool {
        !self.none() && self.pages.lock().contains_key(&va)
    }

    fn copy_to(&self, other: &Self, range: &Range<usize>) {
        if !self.none() {
            self.pages.lock().range(range.clone()).for_each(|(&va, page)| other.insert(va, page.clone()));
        }
    }
}

/// A program's memory.
pub struct AddressSpace {
    _counted: census::Space,
    id: u64,
    me: Weak<Self>,
    pub(crate) state: RwLock<State>,
    /// Where threads wait for the end of a claim.
    pub(crate) settled: WaitQueue,
    pub(crate) parked: Parked,
    pub(crate) table: PageTable,
    /// Below this, mappings without an address of their own are placed.
    top: usize,
    /// Or above this, if it is not 0.
    bottom: AtomicUsize,
    /// Pages present in private and in shared areas, without the zero page.
    pub(crate) private_pages: AtomicUsize,
    pub(crate) shared_pages: AtomicUsize,
    /// The most bytes that may be mapped (`RLIMIT_AS`).
    size_limit: AtomicUsize,
    /// The most bytes a stack may grow to (`RLIMIT_STACK`).
    stack_limit: AtomicUsize,
    /// New mappings are locked (`mlockall(2)`).
    pub(crate) lock_future: AtomicBool,
    /// There are to be no large pages (`PR_SET_THP_DISABLE`).
    pub(crate) no_large: AtomicBool,
    /// What `membarrier(2)` was told to expect.
    barriers: AtomicU32,
}

impl AddressSpace {
    /// An empty space; mappings without an address of their own go below `top`. `None` if memory is short.
    #[must_use]
    pub fn new(top: usize) -> Option<Arc<Self>> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let table = PageTable::new()?;
        Some(Arc::new_cyclic(|me| Self {
            _counted: census::Space::default(),
            me: me.clone(),
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            state: RwLock::default(),
            settled: WaitQueue::new(),
            parked: Parked::default(),
            table,
            top: top.min(USER_END),
            bottom: AtomicUsize::new(0),
            private_pages: AtomicUsize::new(0),
            shared_pages: AtomicUsize::new(0),
            size_limit: AtomicUsize::new(usize::MAX),
            stack_limit: AtomicUsize::new(8 << 20),
            lock_future: AtomicBool::new(false),
            no_large: AtomicBool::new(false),
            barriers: AtomicU32::new(0),
        }))
    }

    /// From now on, mappings without an address of their own are placed as low as possible above `bottom` (`ADDR_COMPAT_LAYOUT`). Each
    /// looks at all areas for that.
    pub fn place_above(&self, bottom: usize) {
        self.bottom.store(bottom, Ordering::Relaxed);
    }

    /// Sets `RLIMIT_AS` and `RLIMIT_STACK`.
    pub fn set_limits(&self, size: usize, stack: usize) {
        self.size_limit.store(size, Ordering::Relaxed);
        self.stack_limit.store(stack, Ordering::Relaxed);
    }

    pub(crate) fn stack_limit(&self) -> usize {
        self.stack_limit.load(Ordering::Relaxed)
    }

    pub(crate) fn has_room(&self, state: &State, more: usize) -> bool {
        state.size.saturating_add(more) <= self.size_limit.load(Ordering::Relaxed)
    }

    /// Whether a range of addresses is a program's at all.
    pub(crate) fn user_range(addr: usize, len: usize) -> Result<Range<usize>, Errno> {
        let end = addr.checked_add(len).filter(|&end| end <= USER_END).ok_or(Errno::ENOMEM)?;
        if addr < USER_START { Err(Errno::EPERM) } else { Ok(addr..end) }
    }

    /// A page-aligned range from a call's arguments: `EINVAL` if there is none, `ENOMEM` if nothing can be mapped there. Nothing is so anywhere.
    pub(crate) fn range(addr: usize, len: usize) -> Result<Range<usize>, Errno> {
        let range = Self::wide_range(addr, len)?;
        if range.is_empty() || range.end <= USER_END { Ok(range) } else { Err(Errno::ENOMEM) }
    }

    /// The same, but the range may go on where nothing can be mapped: for calls that go through what is there first.
    pub(crate) fn wide_range(addr: usize, len: usize) -> Result<Range<usize>, Errno> {
        let len = page_up(len).ok_or(Errno::EINVAL)?;
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
        let above = || state.areas.above(addr).filter(|(start, _)| *start < end);
        let (start, area) = state.areas.find(addr).or_else(above).ok_or(Errno::ENOMEM)?;
        if area.flags.contains(AreaFlags::GROWSDOWN) { Ok(start) } else { Err(Errno::EINVAL) }
    }

    /// Whether something of `len` bytes could be mapped there, as far as that depends on the place.
    ///
    /// # Errors
    /// `ENOMEM` if the place is too small or no program's, `EINVAL` if it does not begin with a page, `EEXIST` if it has to be free and is not.
    pub fn check_place(&self, place: Placement, len: usize) -> Result<(), Errno> {
        let len = page_up(len).filter(|&len| len < USER_END).ok_or(Errno::ENOMEM)?;
        let (Placement::Fixed(addr) | Placement::FixedIfFree(addr)) = place else { return Ok(()) };
        let end = addr.checked_add(len).filter(|&end| end <= USER_END).ok_or(Errno::ENOMEM)?;
        if !addr.is_multiple_of(PAGE_SIZE) {
            return Err(Errno::EINVAL);
        }
        let free = matches!(place, Placement::Fixed(_)) || self.state.read().areas.is_free(addr..end);
        if free { Ok(()) } else { Err(Errno::EEXIST) }
    }

    /// Maps something and returns where.
    ///
    /// # Errors
    /// `EINVAL`, `ENOMEM`, `EEXIST`, `EPERM` for the lowest addresses, `EACCES` for a shared mapping that may not be written to.
    pub fn mmap(&self, request: Mapping) -> Result<usize, Errno> {
        let len = page_up(request.len).filter(|&len| len < USER_END).ok_or(Errno::ENOMEM)?;
        if len == 0 {
            return Err(Errno::EINVAL);
        }
        let shared = request.flags.contains(AreaFlags::SHARED);
        if let Some((object, _)) = &request.object
            && shared
            && request.prot.contains(Prot::WRITE)
            && !object.writable
        {
            return Err(Errno::EACCES);
        }
        let source = request.object.map(|(object, first)| Source { object, first });
        self.announce(source.as_ref());
        let area = |end: usize| Area::new(end, request.prot, request.flags, source);
        let (start, replace) = match request.place {
            Placement::Anywhere(hint) => {
                let mut state = self.state.write();
                let start = self.place(&mut state, crate::page_down(hint), len)?;
                return self.add(&mut state, start, area(start + len));
            }
            Placement::Fixed(addr) => (addr, true),
            Placement::FixedIfFree(addr) => (addr, false),
        };
        self.check_place(Placement::Fixed(start), len)?;
        let range = Self::user_range(start, len)?;
        let mut state = self.change(&range);
        if state.areas.is_free(range.clone()) {
            return self.add(&mut state, start, area(range.end));
        }
        if !replace {
            return Err(Errno::EEXIST);
        }
        state.check_seals(&range)?;
        if !self.has_room(&state, len) {
            return Err(Errno::ENOMEM);
        }
        self.clear(state, range.clone(), |state| {
            state.areas.insert(start, area(range.end));
            state.size += len;
        });
        Ok(start)
    }

    /// Has an object know that it may be mapped here.
    fn announce(&self, source: Option<&Source>) {
        if let Some(mappings) = source.and_then(|source| source.object.backing.mappings()) {
            mappings.note(self.id, &self.me);
        }
    }

    /// Puts an area where nothing is, if there is room.
    fn add(&self, state: &mut State, start: usize, area: Area) -> Result<usize, Errno> {
        let len = area.end - start;
        if !self.has_room(state, len) {
            return Err(Errno::ENOMEM);
        }
        state.areas.insert(start, area);
        state.size += len;
        Ok(start)
    }

    /// A place for `len` bytes: at `hint`, or as high as possible.
    pub(crate) fn place(&self, state: &mut State, hint: usize, len: usize) -> Result<usize, Errno> {
        if hint != 0
            && let Ok(range) = Self::user_range(hint, len)
            && state.areas.is_free(range)
        {
            return Ok(hint);
        }
        let bottom = self.bottom.load(Ordering::Relaxed);
        if bottom != 0
            && let Some(start) = state.areas.gap_above(len, bottom)
        {
            return Ok(start);
        }
        state.areas.gap_below(len, self.top).or_else(|| state.areas.gap_below(len, USER_END)).ok_or(Errno::ENOMEM)
    }

    /// Takes everything out of `range`, which is nobody's claim; `then` is done in the same moment as the areas go.
    pub(crate) fn clear(&self, mut state: WriteGuard<'_, State>, range: Range<usize>, then: impl FnOnce(&mut State)) {
        let parts = state.parts(&range);
        if parts.is_empty() {
            let gone = state.forget(range);
            then(&mut state);
            drop(state);
            drop(gone);
            return;
        }
        let claim = self.claim(&mut state, range.clone());
        drop(state);
        for (part, shared) in parts {
            self.drop_pages(part, shared);
        }
        let gone = claim.finish(|state| {
            let gone = state.forget(range);
            then(state);
            gone
        });
        drop(gone);
    }

    /// Gives back the pages of `range`, a part of one area that the caller has claimed.
    pub(crate) fn drop_pages(&self, range: Range<usize>, shared: bool) {
        let mut pages = 0;
        self.table.unmap_range(range.clone(), &mut |_, gone| {
            pages += match gone {
                Unmapped::Page(page) => usize::from(!zero::is(&page)),
                Unmapped::Large(_) => LargePage::PAGES,
            }
        });
        self.present(shared).fetch_sub(pages, Ordering::Relaxed);
        drop(self.parked.take_range(&range));
    }

    pub(crate) fn present(&self, shared: bool) -> &AtomicUsize {
        if shared { &self.shared_pages } else { &self.private_pages }
    }

    /// Unmaps a range.
    ///
    /// # Errors
    /// `EINVAL`.
    pub fn munmap(&self, addr: usize, len: usize) -> Result<(), Errno> {
        let range = Self::range(addr, len).map_err(|_| Errno::EINVAL)?;
        if range.is_empty() {
            return Err(Errno::EINVAL);
        }
        let state = self.change(&range);
        state.check_seals(&range)?;
        self.clear(state, range, |_| ());
        Ok(())
    }

    /// Changes what the program may do in a range.
    ///
    /// # Errors
    /// `ENOMEM` if something there is not mapped, `EACCES` (in both cases what comes before is done), `EINVAL`.
    pub fn mprotect(&self, addr: usize, len: usize, prot: Prot) -> Result<(), Errno> {
        let range = Self::range(addr, len)?;
        let mut state = self.change(&range);
        state.check_seals(&range)?;
        // A private page may be shared with a child or a file: writing to it is granted page by page, by faults. So nothing
        // is to be done in the table for more than there was.
        let grows = |area: &Area| !area.shared() && prot.contains(area.prot) && (area.prot ^ prot) - Prot::WRITE == Prot::empty();
        let (mut covered, mut parts, mut refused) = (range.start, Few::default(), None);
        for (part, area) in state.areas.within(range.clone()) {
            if part.start != covered {
                break;
            }
            if area.shared() && prot.contains(Prot::WRITE) && area.source.as_ref().is_some_and(|s| !s.object.writable) {
                refused = Some(Errno::EACCES);
                break;
            }
            covered = part.end;
            if area.touched.get() && area.prot != prot && !grows(area) {
                if prot.is_empty() {
                    // A parked page is not looked for in the object.
                    area.copied.set();
                }
                parts.push((part, area.shared()));
            }
        }
        let result = if covered < range.end { Err(refused.unwrap_or(Errno::ENOMEM)) } else { Ok(()) };
        let range = range.start..covered;
        if parts.is_empty() {
            state.areas.update(range, |area| area.prot = prot);
            return result;
        }
        let claim = self.claim(&mut state, range.clone());
        drop(state);
        for (part, shared) in parts {
            if prot.is_empty() {
                self.park_pages(part, shared);
            } else {
                self.table.protect(part, Perm { write: shared && prot.contains(Prot::WRITE), exec: prot.contains(Prot::EXEC) });
            }
        }
        claim.finish(|state| state.areas.update(range, |area| area.prot = prot));
        result
    }

    /// Takes the pages of a part of an area out of the table, and keeps what is only there.
    fn park_pages(&self, part: Range<usize>, shared: bool) {
        let mut pages = 0;
        let mut park = |va, page: Page| {
            let zero = zero::is(&page);
            pages += usize::from(!zero);
            // The object still has a shared page, and zeros are found again.
            if !shared && !zero {
                self.parked.insert(va, page);
            }
        };
        self.table.unmap_range(part, &mut |va, gone| match gone {
            Unmapped::Page(page) => park(va, page),
            Unmapped::Large(large) => large.into_pages(|n, page| park(va + n * PAGE_SIZE, page)),
        });
        self.present(shared).fetch_sub(pages, Ordering::Relaxed);
    }

    /// Sets where the heap begins; it is empty then.
    pub fn set_heap(&self, start: usize) {
        self.set_heap_bounds(start..start);
    }

    /// Says from where to where the heap is (`PR_SET_MM`); nothing is mapped by that.
    pub fn set_heap_bounds(&self, heap: Range<usize>) {
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
            let (Some(new_top), Some(old_top)) = (page_up(end), page_up(old)) else { return old };
            if end < start || new_top > USER_END {
                return old;
            }
            let range = new_top.min(old_top)..new_top.max(old_top);
            // Who shrinks the heap claims its last page, and moves the end when that is gone: who grows it comes after that.
            let mut state = self.change(&(range.start.min(old_top - PAGE_SIZE.min(old_top))..range.end));
            if state.heap.end != old {
                continue;
            }
            if new_top < old_top && state.check_seals(&range).is_err() {
                return old;
            }
            if new_top < old_top {
                self.clear(state, range, |state| state.heap.end = end);
                return end;
            }
            if new_top > old_top {
                let prot = Prot::READ | Prot::WRITE;
                let mut flags = AreaFlags::empty();
                flags.set(AreaFlags::LOCKED, self.locks_future());
                let area = Area::new(new_top, prot, flags, None);
                if !state.areas.is_free(range) || self.add(&mut state, old_top, area).is_err() {
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
        let child = Self::new(self.top).ok_or(Errno::ENOMEM)?;
        child.place_above(self.bottom.load(Ordering::Relaxed));
        child.set_limits(self.size_limit.load(Ordering::Relaxed), self.stack_limit());
        child.forbid_large_pages(!self.may_have_large_pages());
        // Nobody faults, and nobody is in the middle of a change.
        let state = self.change(&(0..usize::MAX));
        let mut copy = State { heap: state.heap.clone(), has_seals: state.has_seals, ..State::default() };
        let mut pages = 0;
        for (start, area) in state.areas.iter() {
            if area.flags.contains(AreaFlags::DONTFORK) {
                continue;
            }
            let range = start..area.end;
            // What is the object's own, the child's faults find there.
            let own = area.source.is_none() || area.copied.get();
            if !area.shared() && area.touched.get() && own && !area.flags.contains(AreaFlags::WIPEONFORK) {
                let count = |frame| pages += usize::from(!zero::is_in(frame));
                self.table.share_cow(&child.table, range.clone(), count).map_err(no_memory)?;
                self.parked.copy_to(&child.parked, &range);
            }
            child.announce(area.source.as_ref());
            let mut area = area.clone();
            // Locks are not inherited.
            area.flags -= AreaFlags::LOCKED;
            copy.size += range.len();
            copy.areas.push(start, area);
        }
        drop(state);
        child.private_pages.store(pages, Ordering::Relaxed);
        *child.state.write() = copy;
        Ok(child)
    }

    /// Its size.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let state = self.state.read();
        let sum = |which: &dyn Fn(&Area) -> bool| state.areas.iter().filter(|(_, a)| which(a)).map(|(s, a)| a.end - s).sum();
        Stats {
            size: state.size,
            peak: state.peak.max(state.size),
            resident: self.resident(),
            data: sum(&|a| !a.shared() && a.prot.contains(Prot::WRITE) && !a.flags.contains(AreaFlags::GROWSDOWN)),
            stack: sum(&|a| a.flags.contains(AreaFlags::GROWSDOWN)),
            text: sum(&|a| a.prot.contains(Prot::EXEC) && !a.prot.contains(Prot::WRITE)),
            locked: sum(&|a| a.flags.contains(AreaFlags::LOCKED)),
        }
    }

    /// Bytes that are present.
    pub fn resident(&self) -> usize {
        let [private, shared] = self.resident_parts();
        private + shared
    }

    /// Those in private areas and those in shared ones.
    #[must_use]
    pub fn resident_parts(&self) -> [usize; 2] {
        [&self.private_pages, &self.shared_pages].map(|pages| pages.load(Ordering::Relaxed) * PAGE_SIZE)
    }

    /// All areas, ascending, for `/proc/<pid>/maps`.
    #[must_use]
    pub fn listing(&self) -> Vec<AreaInfo> {
        let state = self.state.read();
        let describe = |(start, area): (usize, &Area)| {
            let source = area.source.as_ref();
            let name = match source {
                Some(source) => source.object.name.clone(),
                None if area.flags.contains(AreaFlags::GROWSDOWN) => b"[stack]".to_vec(),
                None if start < state.heap.end && area.end > state.heap.start => b"[heap]".to_vec(),
                None => area.name.as_ref().map(|name| [b"[anon:", &**name, b"]"].concat()).unwrap_or_default(),
            };
            AreaInfo {
                range: start..area.end,
                prot: area.prot,
                shared: area.shared(),
                offset: source.map_or(0, |s| s.first * PAGE_SIZE as u64),
                dev: source.map_or(0, |s| s.object.dev),
                ino: source.map_or(0, |s| s.object.ino),
                name,
                large: self.wants_large(area) && large::has_room(start, area),
                policy: area.policy,
            }
        };
        state.areas.iter().map(describe).collect()
    }

    /// A number no other address space has or had.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The identity of the word at `addr`, which is to be written, too, if it `changes`, for who does not say that it is private to this
    /// address space. Of memory that is, it is another word than the one of [`FutexKey::private`] all the same, as on Linux: who waits and who
    /// wakes must say the same.
    ///
    /// # Errors
    /// `EFAULT` if nothing is mapped there, or it cannot be written: anonymous memory of which that is true never changes.
    pub fn futex_key(&self, addr: usize, changes: bool) -> Result<FutexKey, Errno> {
        // Words lie at multiples of four, so no address is this.
        let own = FutexKey::private(self.id, addr | 1);
        let state = self.state.read();
        let (start, area) = state.areas.find(addr).ok_or(Errno::EFAULT)?;
        if !area.prot.contains(Prot::WRITE) && (changes || area.source.is_none()) {
            return Err(Errno::EFAULT);
        }
        match &area.source {
            Some(source) if area.shared() => {
                let index = source.first * PAGE_SIZE as u64 + (addr - start) as u64;
                Ok(FutexKey { space: 0, index, object: Some(source.object.backing.clone()) })
            }
            _ => Ok(own),
        }
    }

    /// Notes that barriers of a kind (a bit) will be asked for.
    pub fn expect_barriers(&self, kind: u32) {
        self.barriers.fetch_or(kind, Ordering::Relaxed);
    }

    /// What kinds of barriers were announced.
    #[must_use]
    pub fn expected_barriers(&self) -> u32 {
        self.barriers.load(Ordering::Relaxed)
    }

    /// All threads of the space pass a full barrier, those in user mode an instruction barrier too, before this returns.
    pub fn barrier(&self) {
        self.table.synchronize();
    }

    /// What is mapped at `addr`, if it is the beginning of an area and of what it maps.
    #[must_use]
    pub fn backing_at(&self, addr: usize) -> Option<Arc<dyn Backing>> {
        let state = self.state.read();
        let (start, area) = state.areas.find(addr)?;
        let source = area.source.as_ref().filter(|source| start == addr && source.first == 0)?;
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
        for (_, area) in self.state.get_mut().areas.iter() {
            if let Some(mappings) = area.source.as_ref().and_then(|source| source.object.backing.mappings()) {
                mappings.forget(self.id);
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
pub(crate) fn no_memory(_: MapError) -> Errno {
    Errno::ENOMEM
}
