//! Page tables of programs.
//!
//! An entry holds one reference to the page it maps: `map` takes a [`Page`], `unmap` gives it back,
//! after every CPU has forgotten the translation. So nobody can map what he does not hold, and no
//! page is freed while a program can still reach it, whatever callers do; a caller's mistake costs
//! its program's memory, not the kernel's.

use alloc::boxed::Box;
use core::convert::Infallible;
use core::fmt;
use core::marker::PhantomData;
use core::ops::Range;

use abi::layout::{PAGE_SIZE, USER_END, USER_START};
use arrayvec::ArrayVec;
use lfmutex::{Mutex, MutexGuard};
use x86_spec::paging::{Entry, Flags as Bits};

use super::large::SpareTables;
use super::table::{ENTRIES, KERNEL_HALF, Table, TableView, index, span};
use super::tlb::{self, ActiveTable};
use super::{MapError, isolated, kernel};
use crate::mem::alloc::Block;
use crate::mem::frame::Frame;
use crate::mem::heap::try_box;
use crate::mem::page::Page;
use crate::mem::phys::{self, PhysAddr};
use crate::mem::{LargePage, high_mark, shortage};

/// Rights of a program to a page, besides reading it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Perm {
    /// Write to it.
    pub write: bool,
    /// Execute it.
    pub exec: bool,
}

impl Perm {
    pub(super) fn bits(self) -> Bits {
        let mut bits = Bits::PRESENT | Bits::USER;
        bits.set(Bits::WRITE, self.write);
        bits.set(Bits::NO_EXECUTE, !self.exec);
        bits
    }

    fn of(bits: Bits) -> Self {
        Self {
            write: bits.contains(Bits::WRITE),
            exec: !bits.contains(Bits::NO_EXECUTE),
        }
    }
}

/// State of a page table entry: the processor's accessed and dirty bits since it was mapped, and
/// its size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// The page was used; if it is part of a large page, some part of that was.
    pub accessed: bool,
    /// The page was written to, or some part of its large page.
    pub dirty: bool,
    /// The page is mapped as part of a large page.
    pub large: bool,
}

impl Flags {
    fn of(bits: Bits) -> Self {
        let has = |bit| bits.contains(bit);
        Self {
            accessed: has(Bits::ACCESSED),
            dirty: has(Bits::DIRTY),
            large: has(Bits::LARGE),
        }
    }
}

/// Pages taken out of a table, or tables that became empty, until all CPUs have forgotten them.
enum Removed {
    Page(usize, Frame),
    Large(usize, Frame),
    Table(Frame),
}

/// A page or large page that [`PageTable::unmap_range`] took out.
#[derive(Debug)]
pub enum Unmapped {
    /// A page.
    Page(Page),
    /// A large page.
    Large(LargePage),
}

/// Bits that the processor sets in an entry.
pub(super) const HARDWARE_BITS: Bits = Bits::ACCESSED.union(Bits::DIRTY);

/// Bits that stay in an entry when the rights change.
pub(super) const PRESERVED_BITS: Bits = HARDWARE_BITS.union(Bits::LARGE);

/// Number of removals that share one shootdown.
const BATCH: usize = 128;

/// Locks over the 2 MiB spans of a table; more threads than this seldom change one table at a time.
const SPAN_LOCKS: usize = 16;

/// The page table of a span of 2 MiB, locked by [`PageTable::fill`].
///
/// The lifetime is of one call of `fill` and no other's, so that nobody takes a span out, or
/// exchanges it for that of another call: what was put into it then could get into a table whose
/// lock is not held, or that has been freed.
///
/// ```
/// # use guard::paging::PageTable;
/// fn each_by_itself(one: &PageTable, other: &PageTable, va: usize) {
///     one.fill(va, |_| other.fill(va, |_| {}));
/// }
/// ```
///
/// ```compile_fail
/// # use guard::paging::PageTable;
/// fn exchanged(one: &PageTable, other: &PageTable, va: usize) {
///     one.fill(va, |mine| other.fill(va, |theirs| std::mem::swap(mine, theirs)));
/// }
/// ```
pub struct Span<'call> {
    start: usize,
    table: &'static Table,
    call: PhantomData<fn(&'call ()) -> &'call ()>,
}

impl Span<'_> {
    /// Maps a page at `va` if `va` is in the span and nothing is mapped there; true if it did.
    pub fn put(&mut self, va: usize, perm: Perm, page: impl FnOnce() -> Page) -> bool {
        let inside = check(va).is_ok() && va.wrapping_sub(self.start) < span(2);
        if !inside || self.table.get(index(va, 1)).present() {
            return false;
        }
        self.table.set(
            index(va, 1),
            Entry::page(phys::of(page().into_frame()), perm.bits()),
        );
        true
    }
}

/// Outcome of [`PageTable::insert_with`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Insert {
    /// The new page is mapped.
    Done,
    /// A page was there already, with these rights.
    Occupied(Perm),
}

/// The span whose page table was used last under a lock, by its first address, so that the next
/// fault there need not walk.
type LastSpan = Option<(usize, &'static Table)>;

/// The user half of an address space. The kernel half is the same in all.
///
/// All methods may sleep, but for [`PageTable::activate`] and [`PageTable::deactivate`], which the
/// scheduler calls. Dropping a table takes it off all CPUs and drops the pages it maps.
///
/// Changes of different 2 MiB spans do not wait for each other: a span's page table, and the entry
/// of level 2 that leads to it, belong to the holder of one of a few locks. The tables above are
/// made once, by compare and exchange, and stay.
pub struct PageTable {
    root: Frame,
    /// Root that the program runs on, if that is another one: its lower half has the same tables.
    user_root: Option<Frame>,
    /// Locks of the 2 MiB spans: [`PageTable::edit`] says which one is whose.
    edits: [Mutex<LastSpan>; SPAN_LOCKS],
    /// Boxed: CPUs hold its address while the table is active there.
    pub(super) active: Box<ActiveTable>,
    /// A page table for each large entry.
    pub(super) spares: SpareTables,
}

impl PageTable {
    /// An empty address space; `None` if memory is short.
    #[must_use]
    pub fn new() -> Option<Self> {
        let isolated = tlb::isolates();
        let root = || Block::zeroed(0);
        let roots = shortage::may_take(1 + u64::from(isolated));
        let user_root = match roots && isolated {
            true => Some(root()?),
            false => None,
        };
        let root = roots.then(root).flatten()?;
        let active = try_box(ActiveTable::new(
            phys::of(root.first()),
            user_root.as_ref().map(|root| phys::of(root.first())),
        ))?;
        let (root, user_root) = (root.into_raw(), user_root.map(Block::into_raw));
        [Some(root), user_root]
            .iter()
            .flatten()
            .for_each(|_| high_mark::count_table());
        // SAFETY: fresh frames that are tables from now on.
        unsafe {
            kernel::link(TableView::Direct.table(root));
            if let Some(user_root) = user_root {
                isolated::link(TableView::Direct.table(user_root));
            }
        }
        let edits = [const { Mutex::new(None) }; SPAN_LOCKS];
        Some(Self {
            root,
            user_root,
            edits,
            active,
            spares: SpareTables::default(),
        })
    }

    /// The right to change the page table that covers `va`, and the entry that leads to it.
    pub(super) fn edit(&self, va: usize) -> MutexGuard<'_, LastSpan> {
        self.edits[va / span(2) % SPAN_LOCKS].lock()
    }

    /// Maps a page at `va`. Returns the page that was mapped there before, which no CPU uses any
    /// more.
    ///
    /// # Errors
    /// [`MapError::NoMemory`] if there is no frame for a table, [`MapError::Address`] if `va` is
    /// not the address of a user page. Nothing is changed, and `page` is dropped.
    pub fn map(&self, va: usize, page: Page, perm: Perm) -> Result<Option<Page>, MapError> {
        check(va)?;
        let mut edit = self.edit(va);
        self.split_at(va);
        let table = self.page_table(&mut edit, va)?;
        Ok(self.exchange(table, va, page, perm))
    }

    /// Maps what `make` gives (a page, and what the program may do with it) at `va`, unless a page
    /// is there already.
    ///
    /// `make` runs with the span locked: it must not use this table. No CPU can remember that
    /// nothing was mapped, so there is no shootdown.
    ///
    /// # Errors
    /// `make`'s; a [`MapError`] as with [`PageTable::map`]. Nothing is changed then.
    pub fn insert_with<E: From<MapError>>(
        &self,
        va: usize,
        make: impl FnOnce() -> Result<(Page, Perm), E>,
    ) -> Result<Insert, E> {
        check(va)?;
        let mut edit = self.edit(va);
        let table = match self.page_table(&mut edit, va) {
            Ok(table) => table,
            Err(error) => {
                return self
                    .large(va)
                    .map(|(_, entry)| Insert::Occupied(Perm::of(entry.flags())))
                    .ok_or(error.into());
            }
        };
        let slot = index(va, 1);
        let entry = table.get(slot);
        if entry.present() {
            return Ok(Insert::Occupied(Perm::of(entry.flags())));
        }
        let (page, perm) = make()?;
        table.set(slot, Entry::page(phys::of(page.into_frame()), perm.bits()));
        Ok(Insert::Done)
    }

    /// Lets `each` fill empty entries of the 2 MiB that `va` is in, with the span locked: it must
    /// not use this table. Makes no table: if there is none, nothing is done.
    pub fn fill(&self, va: usize, each: impl FnOnce(&mut Span<'_>)) {
        if check(va).is_ok() {
            let _edit = self.edit(va);
            if let Some(table) = self.find(va) {
                each(&mut Span {
                    start: va & !(span(2) - 1),
                    table,
                    call: PhantomData,
                });
            }
        }
    }

    /// Replaces the page at `va` by `new`, if it is still `old` and not writable; true if it was.
    /// `old` is dropped by the table when no CPU uses it any more.
    pub fn replace(&self, va: usize, old: &Page, new: Page, perm: Perm) -> bool {
        let edit = self.edit(va);
        let Some((table, _)) = self.holds(va, old) else {
            return false;
        };
        let before = self.exchange(table, va, new, perm);
        drop(edit);
        drop(before);
        true
    }

    /// Maps a page at `va`, and returns the one that was mapped there before, which no CPU uses any
    /// more; with the span locked.
    ///
    /// Nothing is mapped until all CPUs have forgotten the old page (Linux: `ptep_clear_flush`). If
    /// the new one were there at once, a second thread that faults would find it, write to it, and
    /// tell a third, whose CPU still reads the old page: threads began with a null pointer that
    /// way. Whoever faults meanwhile waits for the span.
    fn exchange(&self, table: &Table, va: usize, page: Page, perm: Perm) -> Option<Page> {
        let slot = index(va, 1);
        let before = self.removed(va, table.swap(slot, Entry::NONE));
        table.set(slot, Entry::page(phys::of(page.into_frame()), perm.bits()));
        before
    }

    /// Gives the program more rights to the page at `va`, if it is still `page` and not writable;
    /// true if it was. A CPU may still fault once for what was added.
    pub fn allow(&self, va: usize, page: &Page, perm: Perm) -> bool {
        let _edit = self.edit(va);
        let Some((table, _)) = self.holds(va, page) else {
            return false;
        };
        table.update(index(va, 1), |entry| {
            entry.with(entry.flags() & HARDWARE_BITS | perm.bits())
        });
        true
    }

    /// The entry for `va` and its table, if it maps `page` and does not let the program write; with
    /// the span locked. A large page is split.
    fn holds(&self, va: usize, page: &Page) -> Option<(&'static Table, Entry)> {
        check(va).ok()?;
        let table = self.find_single(va)?;
        let entry = table.get(index(va, 1));
        let same = mapped(entry) == Some(page.frame()) && !entry.flags().contains(Bits::WRITE);
        same.then_some((table, entry))
    }

    /// Unmaps the page at `va` and returns it; no CPU uses it any more.
    pub fn unmap(&self, va: usize) -> Option<Page> {
        check(va).ok()?;
        let before = {
            let _edit = self.edit(va);
            self.find_single(va)?.swap(index(va, 1), Entry::NONE)
        };
        self.removed(va, before)
    }

    /// Unmaps all pages in `range` (page-aligned) and hands each to `each` with its address,
    /// ascending. When it gets a page, no CPU uses it any more. Addresses that are no user pages
    /// are passed over.
    pub fn unmap_range(&self, range: Range<usize>, each: &mut dyn FnMut(usize, Unmapped)) {
        let Range { start: first, end } = user_pages(&range);
        let mut next = first;
        let mut batch = ArrayVec::<Removed, BATCH>::new();
        while next < end {
            let start = next;
            next = self.collect(first, start..end, &mut batch);
            if batch.is_empty() {
                continue;
            }
            tlb::flush(&self.active, start..next);
            for removed in batch.drain(..) {
                match removed {
                    Removed::Page(va, frame) => {
                        // SAFETY: the entry held this reference and is gone.
                        each(va, Unmapped::Page(unsafe { Page::from_frame(frame) }));
                    }
                    Removed::Large(va, first) => {
                        // SAFETY: the entry held one reference to each frame and is gone.
                        each(va, Unmapped::Large(unsafe { LargePage::from_frame(first) }));
                    }
                    Removed::Table(frame) => {
                        high_mark::uncount_tables(1);
                        // SAFETY: `page_table` made it from a block of order 0; no entry leads to
                        // it any more, and no CPU remembers one.
                        drop(unsafe { Block::from_raw(frame, 0) });
                    }
                }
            }
        }
    }

    /// Moves entries of `range`, what is left of a request from `first` on, into `batch` until it
    /// is full. Returns where to go on.
    fn collect(
        &self,
        first: usize,
        range: Range<usize>,
        batch: &mut ArrayVec<Removed, BATCH>,
    ) -> usize {
        let mut next = self.next_table(range.clone());
        while let Some(va) = next {
            let mut edit = self.edit(va);
            let table_start = va & !(span(2) - 1);
            let table_end = table_start + span(2);
            if let Some((upper, entry)) = self.large(va) {
                if va == table_start && table_end <= range.end {
                    if batch.is_full() {
                        return va;
                    }
                    upper.set(index(va, 2), Entry::NONE);
                    batch.extend(mapped(entry).map(|first| Removed::Large(va, first)));
                    self.spares.give_back();
                    next = self.next_table(table_end..range.end);
                    continue;
                }
                self.split_at(va);
            }
            let Ok((upper, lower)) = self.walk(va) else {
                next = self.next_table(table_end..range.end);
                continue;
            };
            for (slot, _) in lower.entries(index(va, 1)..index(table_end.min(range.end) - 1, 1) + 1)
            {
                let page = table_start + slot * PAGE_SIZE;
                // Room for a page, and for the table after the last one.
                if batch.len() + 2 > BATCH {
                    return page;
                }
                if let Some(frame) = mapped(lower.swap(slot, Entry::NONE)) {
                    batch.push(Removed::Page(page, frame));
                }
            }
            // A table whose whole span was asked for is freed too.
            if table_start >= first
                && table_end <= range.end
                && lower.entries(0..ENTRIES).next().is_none()
            {
                let entry = upper.swap(index(table_start, 2), Entry::NONE);
                *edit = None;
                batch.extend(entry.table().and_then(phys::frame_at).map(Removed::Table));
            }
            next = self.next_table(table_end..range.end);
        }
        range.end
    }

    /// The first address in `range` that a page table covers. Looks only at tables above, without a
    /// lock: they stay.
    fn next_table(&self, range: Range<usize>) -> Option<usize> {
        let mut va = range.start;
        while va < range.end {
            let skip = match self.directory(va) {
                Ok(directory) => {
                    let last = (range.end - 1).min(va | (span(3) - 1));
                    match directory.entries(index(va, 2)..index(last, 2) + 1).next() {
                        Some((slot, _)) => {
                            return Some(va.max((va & !(span(3) - 1)) + slot * span(2)));
                        }
                        None => span(3),
                    }
                }
                Err(skip) => skip,
            };
            va = (va | (skip - 1)) + 1;
        }
        None
    }

    /// Changes what the program may do with the pages that are mapped in `range` (page-aligned). If
    /// something is taken away, no CPU allows it any more on return; if something is added, a CPU
    /// may still fault once for it.
    pub fn protect(&self, range: Range<usize>, perm: Perm) {
        let Range { start, end } = user_pages(&range);
        let mut reduced = false;
        let Ok(()) = self.for_each_table(start..end, |_, table, slots| {
            for (slot, _) in table.entries(slots).filter(|(_, entry)| entry.present()) {
                let before = table
                    .update(slot, |entry| {
                        entry.with(entry.flags() & PRESERVED_BITS | perm.bits())
                    })
                    .flags();
                reduced |= before.contains(Bits::WRITE) && !perm.write;
                reduced |= !before.contains(Bits::NO_EXECUTE) && !perm.exec;
            }
            Ok::<(), Infallible>(())
        });
        if reduced {
            tlb::flush(&self.active, start..end);
        }
    }

    /// The page at `va`, what the program may do with it, and what the processor noted. The result
    /// is one more reference to the page: a page mapped only here has `refs() == 2` then.
    #[must_use]
    pub fn get(&self, va: usize) -> Option<(Page, Perm, Flags)> {
        check(va).ok()?;
        let _edit = self.edit(va);
        let (entry, frame) = match self.find(va) {
            Some(table) => {
                Some(table.get(index(va, 1))).and_then(|entry| Some((entry, mapped(entry)?)))?
            }
            None => self
                .large(va)
                .and_then(|(_, entry)| Some((entry, mapped(entry)?.add(index(va, 1) as u64))))?,
        };
        // SAFETY: the entry holds a reference, and stays while the span is locked.
        let page = unsafe { Page::share_frame(frame) };
        let bits = entry.flags();
        Some((page, Perm::of(bits), Flags::of(bits)))
    }

    /// For fork: every page mapped in `range` (page-aligned) is mapped read-only in both tables,
    /// large ones as such, so that the next write in either faults. Where the child has a page
    /// already it keeps that one. The child is another table than this one. `each` is told the
    /// frames that the child got.
    ///
    /// # Errors
    /// [`MapError::NoMemory`] if there is no frame for a table of the child's,
    /// [`MapError::Occupied`] if it has something where a large page goes; some pages are shared by
    /// then, and that is harmless: drop the child.
    pub fn share_cow(
        &self,
        child: &Self,
        range: Range<usize>,
        mut each: impl FnMut(Frame),
    ) -> Result<(), MapError> {
        let Range { start, end } = user_pages(&range);
        let mut reduced = false;
        let result = self.for_each_table(start..end, |va, table, slots| {
            // The child's after the parent's: nobody takes two spans of one pair of tables the
            // other way round.
            let mut edit_child = child.edit(va);
            let mut lower = None;
            if let Some((_, entry)) = self.large(va) {
                reduced |= entry.flags().contains(Bits::WRITE);
                return self.share_large(child, va, &mut each);
            }
            for (slot, _) in table.entries(slots).filter(|(_, entry)| entry.present()) {
                let lower = match lower {
                    Some(lower) => lower,
                    None => *lower.insert(child.page_table(&mut edit_child, va)?),
                };
                if lower.get(slot).present() {
                    continue;
                }
                let mut before = table.get(slot);
                if before.flags().contains(Bits::WRITE) {
                    before = table.update(slot, |entry| entry.with(entry.flags() - Bits::WRITE));
                    reduced = true;
                }
                if let Some(frame) = mapped(before) {
                    // SAFETY: the parent's entry holds a reference, and stays while its span is
                    // locked.
                    unsafe { Page::share_frame(frame) }.into_frame();
                    each(frame);
                    lower.set(
                        slot,
                        before.with(before.flags() - (HARDWARE_BITS | Bits::WRITE)),
                    );
                }
            }
            Ok(())
        });
        if reduced {
            tlb::flush(&self.active, start..end);
        }
        result
    }

    /// Calls `each` with every page that is mapped in `range` (page-aligned), its address and what
    /// the processor noted, with the span locked: it must not use this table. The page is one more
    /// reference.
    pub fn visit(&self, range: Range<usize>, mut each: impl FnMut(usize, &Page, Flags)) {
        let Range { start, end } = user_pages(&range);
        let Ok(()) = self.for_each_table(start..end, |va, table, slots| {
            for (slot, entry) in table.entries(slots) {
                let large = entry.flags().contains(Bits::LARGE);
                let (at, pages) = if large {
                    (va, ENTRIES)
                } else {
                    ((va & !(span(2) - 1)) + slot * PAGE_SIZE, 1)
                };
                let Some(first) = mapped(entry) else { continue };
                for n in 0..pages {
                    // SAFETY: the entry holds a reference, and stays while the span is locked.
                    let page = unsafe { Page::share_frame(first.add(n as u64)) };
                    each(at + n * PAGE_SIZE, &page, Flags::of(entry.flags()));
                }
            }
            Ok::<(), Infallible>(())
        });
    }

    /// Every CPU on which the table is active passes a full memory barrier, and serialises its
    /// instructions, between the call and the return.
    pub fn synchronize(&self) {
        tlb::flush(&self.active, USER_START..USER_START + PAGE_SIZE);
    }

    /// Makes this the address space of the current CPU, until another one is activated there or
    /// this one is dropped. Interrupts may be off; does not sleep.
    #[inline]
    pub fn activate(&self) {
        tlb::activate(&self.active);
    }

    /// Deactivates the table if the current CPU runs on it: the CPU goes back to having none.
    pub fn deactivate(&self) {
        tlb::deactivate(Some(&*self.active));
    }

    /// The page that an entry held, after all CPUs have forgotten it.
    fn removed(&self, va: usize, before: Entry) -> Option<Page> {
        let frame = mapped(before)?;
        tlb::flush(&self.active, va..va + PAGE_SIZE);
        // SAFETY: the entry held this reference and was replaced.
        Some(unsafe { Page::from_frame(frame) })
    }

    fn root_table(&self) -> &'static Table {
        // SAFETY: the root is ours until `drop`.
        unsafe { TableView::Direct.table(self.root) }
    }

    /// The level-2 table that covers `va`, or how many bytes around `va` have none.
    pub(super) fn directory(&self, va: usize) -> Result<&'static Table, usize> {
        let upper = self
            .root_table()
            .get(index(va, 4))
            .table()
            .map(table)
            .ok_or(span(4))?;
        upper.get(index(va, 3)).table().map(table).ok_or(span(3))
    }

    /// The level-2 table and the page table that cover `va`, or how many bytes around `va` have
    /// none.
    fn walk(&self, va: usize) -> Result<(&'static Table, &'static Table), usize> {
        let upper = self.directory(va)?;
        let lower = upper.get(index(va, 2)).table().map(table).ok_or(span(2))?;
        Ok((upper, lower))
    }

    fn find(&self, va: usize) -> Option<&'static Table> {
        self.walk(va).ok().map(|(_, table)| table)
    }

    /// The same after a large page there was split; with the span locked.
    fn find_single(&self, va: usize) -> Option<&'static Table> {
        self.find(va).or_else(|| {
            self.split_at(va);
            self.find(va)
        })
    }

    /// The page table that covers `va`, made if need be; with the span locked.
    #[inline]
    fn page_table(&self, recent: &mut LastSpan, va: usize) -> Result<&'static Table, MapError> {
        let start = va & !(span(2) - 1);
        match *recent {
            Some((known, table)) if known == start => Ok(table),
            _ => self
                .make_page_table(va)
                .inspect(|table| *recent = Some((start, table))),
        }
    }

    /// The page table that covers `va`, found or made from the root, for [`Self::page_table`].
    fn make_page_table(&self, va: usize) -> Result<&'static Table, MapError> {
        below(self.make_directory(va)?, index(va, 2))
    }

    /// The level-2 table that covers `va`, made if need be.
    pub(super) fn make_directory(&self, va: usize) -> Result<&'static Table, MapError> {
        let slot = index(va, 4);
        let upper = match self.root_table().get(slot).table() {
            Some(next) => table(next),
            None => self.make_upper(slot)?,
        };
        below(upper, index(va, 3))
    }

    /// The level-3 table that `slot` of the root leads to, made in both roots, or found if another
    /// thread was faster. It is in the program's first: who finds it in the kernel's maps pages
    /// that the program must find too.
    #[cold]
    fn make_upper(&self, slot: usize) -> Result<&'static Table, MapError> {
        let Some(user_root) = self.user_root else {
            return below(self.root_table(), slot);
        };
        // SAFETY: the root is ours until `drop`.
        let user_root = unsafe { TableView::Direct.table(user_root) };
        let upper = below(user_root, slot)?;
        let entry = user_root.get(slot);
        // On the kernel's tables no program runs: one that is left on them by mistake ends at once.
        let rights = entry.flags() | tlb::no_execute();
        // Whoever was faster has put the same there.
        let _ = self.root_table().fill(slot, entry.with(rights));
        Ok(upper)
    }

    /// Calls `each` with every page table that covers some of `range`, the address of its first
    /// page within, and the slots of `range` in it, until it fails. Each is locked meanwhile. A
    /// large page in the range is one slot of the table above; one that is only partly in the range
    /// is split.
    fn for_each_table<E>(
        &self,
        range: Range<usize>,
        mut each: impl FnMut(usize, &Table, Range<usize>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut next = self.next_table(range.clone());
        while let Some(va) = next {
            let end = (va | (span(2) - 1)) + 1;
            {
                let _edit = self.edit(va);
                if let Some((upper, _)) = self.large(va) {
                    if va == end - span(2) && end <= range.end {
                        each(va, upper, index(va, 2)..index(va, 2) + 1)?;
                    } else {
                        self.split_at(va);
                    }
                }
                if let Some(table) = self.find(va) {
                    each(
                        va,
                        table,
                        index(va, 1)..index(end.min(range.end) - 1, 1) + 1,
                    )?;
                }
            }
            next = self.next_table(end..range.end);
        }
        Ok(())
    }
}

/// The table that `slot` of `upper` leads to, made if need be.
fn below(upper: &Table, slot: usize) -> Result<&'static Table, MapError> {
    let entry = upper.get(slot);
    match entry.table() {
        Some(next) => Ok(table(next)),
        None => new_table(upper, slot, entry),
    }
}

/// A table of the user half, by its address from the entry above it.
pub(super) fn table(at: PhysAddr) -> &'static Table {
    let frame = phys::frame_at(at).expect("user table outside the instance's memory");
    // SAFETY: `page_table` put only tables there, and they live until the entry is cleared with
    // their span locked.
    unsafe { TableView::Direct.table(frame) }
}

/// Makes the table that `slot` of `upper` leads to, or finds the one that another thread has made
/// for another span since the slot held `entry`.
///
/// `entry` is what the caller has read: a second look could meet the other thread's table, which
/// once passed for a large page, was taken for a lack of memory, and had the OOM killer end the
/// largest process.
#[cold]
fn new_table(upper: &Table, slot: usize, entry: Entry) -> Result<&'static Table, MapError> {
    if entry.present() {
        // A large page.
        return Err(MapError::Occupied);
    }
    let block = shortage::may_take(1).then(|| Block::zeroed(0)).flatten();
    let fresh = block.ok_or(MapError::NoMemory)?.into_raw();
    let at = phys::of(fresh);
    match upper.fill(slot, Entry::user_table(at)) {
        Ok(()) => {
            high_mark::count_table();
            Ok(table(at))
        }
        Err(other) => {
            // SAFETY: taken apart above, and no entry leads to it.
            drop(unsafe { Block::from_raw(fresh, 0) });
            other.table().map(table).ok_or(MapError::Occupied)
        }
    }
}

/// The frame of the page that an entry maps, the first one of a large page.
pub(super) fn mapped(entry: Entry) -> Option<Frame> {
    if entry.present() {
        phys::frame_at(entry.address())
    } else {
        None
    }
}

/// Whether an address is a program's to have something at.
#[inline]
pub(super) fn is_user(va: usize) -> bool {
    matches!(va, USER_START..USER_END)
}

/// Refuses what is not the address of a user page.
#[inline]
fn check(va: usize) -> Result<(), MapError> {
    if va.is_multiple_of(PAGE_SIZE) && is_user(va) {
        Ok(())
    } else {
        Err(MapError::Address)
    }
}

/// The whole user pages that begin in a range.
fn user_pages(range: &Range<usize>) -> Range<usize> {
    range
        .start
        .clamp(USER_START, USER_END)
        .next_multiple_of(PAGE_SIZE)..range.end.min(USER_END)
}

impl Drop for PageTable {
    fn drop(&mut self) {
        tlb::detach(&self.active);
        // No CPU has the table loaded now, and loading another one dropped its translations: no
        // flush is needed.
        let root = self.root_table();
        root.entries(0..KERNEL_HALF)
            .for_each(|(_, entry)| free_below(entry, 3));
        for root in [Some(self.root), self.user_root].into_iter().flatten() {
            high_mark::uncount_tables(1);
            // SAFETY: `new` made it from a block of order 0; nobody uses it any more.
            drop(unsafe { Block::from_raw(root, 0) });
        }
    }
}

/// Frees what an entry of a dead table leads to: a table of `level`, 1 to 3, or a large page.
fn free_below(entry: Entry, level: usize) {
    let Some(frame) = mapped(entry) else { return };
    if entry.flags().contains(Bits::LARGE) {
        // SAFETY: the entry held one reference to each frame, and is never looked at again.
        return drop(unsafe { LargePage::from_frame(frame) });
    }
    let below = table(entry.address()).entries(0..ENTRIES);
    if level == 1 {
        below
            .filter_map(|(_, entry)| mapped(entry))
            // SAFETY: the entry held this reference, and is never looked at again.
            .for_each(|frame| drop(unsafe { Page::from_frame(frame) }));
    } else {
        below.for_each(|(_, entry)| free_below(entry, level - 1));
    }
    high_mark::uncount_tables(1);
    // SAFETY: `page_table` made it from a block of order 0, and only the dead entry led to it.
    drop(unsafe { Block::from_raw(frame, 0) });
}

impl fmt::Debug for PageTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageTable")
            .field("root", &self.root)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
