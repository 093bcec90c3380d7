//! Page tables of 512 entries, and access to them.

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

pub(crate) use x86_spec::paging::{ENTRIES, index, span};
use x86_spec::paging::{Entry, UPPER_HALF};

use crate::mem::frame::Frame;
use crate::mem::{direct, phys};

/// Number of entries that are looked at together.
const GROUP: usize = 16;
/// First entry of the root that belongs to the kernel half.
pub(crate) const KERNEL_HALF: usize = UPPER_HALF;

/// A table. The processor reads it at any time and sets accessed and dirty bits in it, so every
/// access is atomic.
#[repr(C, align(4096))]
pub(crate) struct Table([AtomicU64; ENTRIES]);

impl Table {
    /// Reads an entry. Acquire: a table that another CPU has just made is read after its content
    /// was.
    pub(crate) fn get(&self, slot: usize) -> Entry {
        Entry(self.0[slot].load(Ordering::Acquire))
    }

    /// The entries in `slots` that are not empty, with their slots, ascending. Most tables are
    /// nearly empty: whole groups of entries are passed over at a time.
    pub(crate) fn entries(&self, slots: Range<usize>) -> impl Iterator<Item = (usize, Entry)> {
        let Range {
            start: mut next,
            end,
        } = slots;
        core::iter::from_fn(move || {
            while next < end {
                if next.is_multiple_of(GROUP) {
                    while next + GROUP <= end && self.is_empty(next) {
                        next += GROUP;
                    }
                    if next >= end {
                        break;
                    }
                }
                let slot = next;
                next += 1;
                let entry = self.get(slot);
                if entry != Entry::NONE {
                    return Some((slot, entry));
                }
            }
            None
        })
    }

    /// Whether the group of entries from `first` on is empty.
    #[inline(always)]
    fn is_empty(&self, first: usize) -> bool {
        let group: &[AtomicU64; GROUP] = self.0[first..]
            .first_chunk()
            .expect("a group within the table");
        let all: u64;
        // SAFETY: reads the group's words, each in one access. Atomic loads of the language would
        // take two instructions each.
        unsafe {
            core::arch::asm!(
                "mov {all}, [{group}]",
                "or {all}, [{group} + 8]",
                "or {all}, [{group} + 16]",
                "or {all}, [{group} + 24]",
                "or {all}, [{group} + 32]",
                "or {all}, [{group} + 40]",
                "or {all}, [{group} + 48]",
                "or {all}, [{group} + 56]",
                "or {all}, [{group} + 64]",
                "or {all}, [{group} + 72]",
                "or {all}, [{group} + 80]",
                "or {all}, [{group} + 88]",
                "or {all}, [{group} + 96]",
                "or {all}, [{group} + 104]",
                "or {all}, [{group} + 112]",
                "or {all}, [{group} + 120]",
                group = in(reg) group,
                all = out(reg) all,
                options(nostack, readonly)
            );
        }
        all == 0
    }

    /// Fills an empty entry, or returns what is there.
    pub(crate) fn fill(&self, slot: usize, entry: Entry) -> Result<(), Entry> {
        self.0[slot]
            .compare_exchange(0, entry.0, Ordering::AcqRel, Ordering::Acquire)
            .map(drop)
            .map_err(Entry)
    }

    /// Overwrites an entry. Release: the processor must find the content of a new table in memory
    /// before the pointer to it (on x86 no instruction is needed for that; the compiler has to keep
    /// the order).
    pub(crate) fn set(&self, slot: usize, entry: Entry) {
        self.0[slot].store(entry.0, Ordering::Release);
    }

    /// Overwrites an entry and returns what was there, with the accessed and dirty bits as of that
    /// moment.
    pub(crate) fn swap(&self, slot: usize, entry: Entry) -> Entry {
        Entry(self.0[slot].swap(entry.0, Ordering::AcqRel))
    }

    /// Changes an entry without losing bits that the processor sets meanwhile. Returns what was
    /// there before.
    pub(crate) fn update(&self, slot: usize, change: impl Fn(Entry) -> Entry) -> Entry {
        let cell = &self.0[slot];
        let mut old = cell.load(Ordering::Relaxed);
        loop {
            let new = change(Entry(old)).0;
            match cell.compare_exchange_weak(old, new, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Entry(old),
                Err(now) => old = now,
            }
        }
    }

    /// Makes all entries invalid.
    pub(crate) fn clear(&self) {
        for cell in &self.0 {
            cell.store(0, Ordering::Relaxed);
        }
    }
}

/// Access to frames of tables: through the direct map, or, before there is one, through the boot
/// code's map of low memory.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TableView {
    /// The direct map.
    Direct,
    /// Physical address 0 is at this address; only what the boot code mapped is reachable.
    Boot(usize),
}

impl TableView {
    /// Address at which the frame is seen.
    fn address(self, frame: Frame) -> *const Table {
        match self {
            Self::Direct => direct::ptr(frame).cast_const().cast(),
            Self::Boot(base) => {
                core::ptr::with_exposed_provenance(base.wrapping_add(phys::of(frame).0 as usize))
            }
        }
    }

    /// The frame as a table.
    ///
    /// # Safety
    /// The frame is reachable through this view and, as long as the reference is used, a page table
    /// and nothing else.
    pub(crate) unsafe fn table(self, frame: Frame) -> &'static Table {
        // SAFETY: reachable by the caller's promise, page-aligned by construction; any bit pattern
        // is a `Table`, which consists of atomics, so several references to it may exist.
        unsafe { &*self.address(frame) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_image_is_in_the_last_2_gib() {
        assert_eq!(index(abi::layout::IMAGE, 4), 511);
        assert_eq!(index(abi::layout::IMAGE, 3), 510);
        assert_eq!(span(1), abi::layout::PAGE_SIZE);
    }

    #[test]
    fn entries_are_found_wherever_they_are() {
        let table = Table([const { AtomicU64::new(0) }; ENTRIES]);
        let used = [0, 7, 8, 30, 31, 64, 500, 511];
        used.iter()
            .for_each(|&slot| table.set(slot, Entry(slot as u64 + 1)));
        for (start, end) in [
            (0, ENTRIES),
            (1, 511),
            (8, 9),
            (9, 30),
            (31, 32),
            (65, 505),
            (512, 512),
            (3, 3),
        ] {
            let found: Vec<_> = table.entries(start..end).collect();
            let wanted = used
                .iter()
                .filter(|slot| (start..end).contains(slot))
                .map(|&slot| (slot, Entry(slot as u64 + 1)));
            assert_eq!(found, wanted.collect::<Vec<_>>(), "{start}..{end}");
        }
    }

    #[test]
    fn update_reports_what_was_there() {
        let table = Table([const { AtomicU64::new(0) }; ENTRIES]);
        table.set(4, Entry(0x1001));
        assert_eq!(table.update(4, |old| Entry(old.0 | 2)), Entry(0x1001));
        assert_eq!(table.swap(4, Entry::NONE), Entry(0x1003));
        table.set(5, Entry(1));
        table.clear();
        assert_eq!(table.get(5), Entry::NONE);
    }
}
