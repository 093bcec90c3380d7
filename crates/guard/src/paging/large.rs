//! Large pages in a program's page table (`docs/memory.md`).
//!
//! An entry of level 2 that maps 2 MiB holds one reference to each of the 512 pages. A page table
//! is set aside for each such entry, so that splitting it needs no memory.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use abi::layout::{PAGE_SIZE, USER_END, USER_START};
use lfmutex::Mutex;
use x86_spec::paging::{Entry, Flags as Bits};

use super::table::{ENTRIES, Table, TableView, index, span};
use super::user::{HARDWARE_BITS, PRESERVED_BITS, PageTable, Perm, is_user, mapped};
use super::{MapError, tlb};
use crate::mem::alloc::Block;
use crate::mem::frame::Frame;
use crate::mem::page::Page;
use crate::mem::phys::{self, PhysAddr};
use crate::mem::{LargePage, high_mark, large};

static MAPPED: AtomicU64 = AtomicU64::new(0);
static SPLITS: AtomicU64 = AtomicU64::new(0);

/// Entries that map large pages, in all tables.
#[must_use]
pub fn large_pages() -> u64 {
    MAPPED.load(Ordering::Relaxed)
}

/// Number of large pages that were split so far.
#[must_use]
pub fn splits() -> u64 {
    SPLITS.load(Ordering::Relaxed)
}

/// Page tables set aside: a block of one frame for each large entry.
#[derive(Default)]
pub(super) struct SpareTables(Mutex<Vec<Block>>);

impl SpareTables {
    /// Sets one aside; false if memory is short.
    fn add(&self) -> bool {
        let Some(block) = Block::new(0) else {
            return false;
        };
        let mut blocks = self.0.lock();
        if blocks.try_reserve(1).is_err() {
            return false;
        }
        blocks.push(block);
        high_mark::count_table();
        MAPPED.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Frees what was set aside for an entry that is no more.
    pub(super) fn give_back(&self) {
        high_mark::uncount_tables(1);
        drop(self.take());
    }

    /// Takes what was set aside for an entry, which counts as a table already.
    fn take(&self) -> Block {
        MAPPED.fetch_sub(1, Ordering::Relaxed);
        self.0
            .lock()
            .pop()
            .expect("a large page without a table set aside")
    }
}

impl Drop for SpareTables {
    fn drop(&mut self) {
        let count = self.0.get_mut().len() as u64;
        high_mark::uncount_tables(count);
        MAPPED.fetch_sub(count, Ordering::Relaxed);
    }
}

impl PageTable {
    /// Whether nothing is mapped in the aligned 2 MiB that `va`, a user address, is in, nor was
    /// since a page table was made for it. Somebody may change that at once.
    #[must_use]
    pub fn is_vacant(&self, va: usize) -> bool {
        is_user(va)
            && self
                .directory(va)
                .map_or(true, |upper| upper.get(index(va, 2)) == Entry::NONE)
    }

    /// Maps a large page at `va` if [`Self::is_vacant`].
    ///
    /// # Errors
    /// The page, if something is there, memory for tables is short, or `va` is not the address of
    /// aligned 2 MiB of user memory.
    pub fn map_large(&self, va: usize, page: LargePage, perm: Perm) -> Result<(), LargePage> {
        if !va.is_multiple_of(span(2)) || !(USER_START..=USER_END - span(2)).contains(&va) {
            return Err(page);
        }
        let _edit = self.edit(va);
        match self.make_directory(va) {
            Ok(upper) if upper.get(index(va, 2)) == Entry::NONE && self.spares.add() => {
                upper.set(
                    index(va, 2),
                    Entry::large(phys::of(page.into_frame()), perm.bits()),
                );
                Ok(())
            }
            _ => Err(page),
        }
    }

    /// Gives the program more rights to the whole large page that `page`, at `va`, is part of, if
    /// nobody else has any of it but the caller this one page; true if it did.
    pub fn allow_large(&self, va: usize, page: &Page, perm: Perm) -> bool {
        // The kernel half hangs from the same root, and has large entries of its own.
        if !is_user(va) {
            return false;
        }
        let _edit = self.edit(va);
        let Some((upper, entry)) = self.large(va) else {
            return false;
        };
        let Some(first) = mapped(entry) else {
            return false;
        };
        let sole = first.add(index(va, 1) as u64) == page.frame()
            && large::references(first) == ENTRIES as u64 + 1;
        if sole {
            upper.update(index(va, 2), |entry| {
                entry.with(entry.flags() & PRESERVED_BITS | perm.bits())
            });
        }
        sole
    }

    /// The entry that maps the large page that `va` is in, and its table; with the span locked.
    pub(super) fn large(&self, va: usize) -> Option<(&'static Table, Entry)> {
        let upper = self.directory(va).ok()?;
        let entry = upper.get(index(va, 2));
        (entry.present() && entry.flags().contains(Bits::LARGE)).then_some((upper, entry))
    }

    /// Has single pages instead of the large page at `va`, if there is one; with the span locked.
    pub(super) fn split_at(&self, va: usize) {
        if let Some((upper, _)) = self.large(va) {
            self.split(upper, va & !(span(2) - 1));
        }
    }

    #[cold]
    fn split(&self, upper: &Table, start: usize) {
        let slot = index(start, 2);
        // No CPU may know the large and the small pages at once. What is not present but not empty
        // is seen by those who look without a lock which 2 MiB there are.
        let entry = upper.update(slot, |entry| entry.with(entry.flags() - Bits::PRESENT));
        tlb::flush(&self.active, start..start + span(2));
        let frame = self.spares.take().into_raw();
        // SAFETY: set aside as a table, and nobody else has it.
        let lower = unsafe { TableView::Direct.table(frame) };
        let flags = entry.flags() - Bits::LARGE;
        for n in 0..ENTRIES {
            lower.set(
                n,
                Entry::page(PhysAddr(entry.address().0 + (n * PAGE_SIZE) as u64), flags),
            );
        }
        upper.set(slot, Entry::user_table(phys::of(frame)));
        SPLITS.fetch_add(1, Ordering::Relaxed);
    }

    /// Maps the large page at `va` in a child too, read-only in both; with the span locked in both.
    pub(super) fn share_large(
        &self,
        child: &Self,
        va: usize,
        each: &mut dyn FnMut(Frame),
    ) -> Result<(), MapError> {
        let (slot, theirs) = (index(va, 2), child.make_directory(va)?);
        let Some((upper, entry)) = self.large(va) else {
            return Ok(());
        };
        let first = mapped(entry).ok_or(MapError::Address)?;
        if theirs.get(slot) != Entry::NONE {
            return Err(MapError::Occupied);
        }
        if !child.spares.add() {
            return Err(MapError::NoMemory);
        }
        let before = upper.update(slot, |entry| entry.with(entry.flags() - Bits::WRITE));
        for n in 0..ENTRIES as u64 {
            // SAFETY: the entry holds a reference, and stays while its span is locked.
            unsafe { Page::share_frame(first.add(n)) }.into_frame();
            each(first.add(n));
        }
        theirs.set(
            slot,
            before.with(before.flags() - (HARDWARE_BITS | Bits::WRITE)),
        );
        Ok(())
    }
}
