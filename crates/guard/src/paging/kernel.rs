//! The kernel half of the address space: one set of tables, linked into every user page table of
//! the instance.
//!
//! Its top-level entries are complete before the first user page table exists and never change
//! (`build`). Below them, kernel stacks and device registers come and go here, and granules of the
//! direct map are withdrawn while they are granted to an instance. Tables of the kernel half are
//! never freed.

use core::sync::atomic::{AtomicU64, Ordering};

use abi::layout::{DIRECT, GRANULE_SIZE, LAPIC_MMIO, MMIO, PAGE_SIZE};
use arrayvec::ArrayVec;
use lfmutex::Mutex;
use x86_spec::paging::{Entry, Flags};

use super::table::{self, KERNEL_HALF, Table, TableView, index};
use super::tlb;
use crate::mem::alloc::Block;
use crate::mem::frame::Frame;
use crate::mem::phys::{self, PhysAddr};

/// Physical address of the root in use by the kernel alone.
static ROOT: AtomicU64 = AtomicU64::new(0);

/// Held while the tables are changed. The data are the free addresses for device registers.
pub(super) static EDIT: Mutex<FreeAddresses> = Mutex::new(FreeAddresses::new());

/// End of the addresses for device registers: 1 GiB, one table of level 2.
const IO_END: usize = MMIO + (1 << 30);

/// Addresses for device registers that nothing is mapped at.
pub(super) struct FreeAddresses {
    /// Everything from here to [`IO_END`].
    next: usize,
    /// Ranges below that were unmapped: first address and number of pages.
    returned: ArrayVec<(usize, usize), MAX_RETURNED>,
}

/// Ranges that are remembered after they were unmapped; of more, the addresses are lost.
const MAX_RETURNED: usize = 64;

impl FreeAddresses {
    const fn new() -> Self {
        Self {
            next: MMIO + GRANULE_SIZE,
            returned: ArrayVec::new_const(),
        }
    }

    /// A range of so many pages: a returned one of that length, the beginning of a longer one, or
    /// what was never used.
    fn find(&self, pages: usize) -> Option<usize> {
        let long = self.returned.iter().filter(|(_, count)| *count >= pages);
        match long.min_by_key(|(_, count)| *count) {
            Some((base, _)) => Some(*base),
            None => (pages <= (IO_END - self.next) / PAGE_SIZE).then_some(self.next),
        }
    }

    /// Takes a range that [`Self::find`] has found.
    fn take(&mut self, base: usize, pages: usize) {
        if base == self.next {
            self.next += pages * PAGE_SIZE;
        } else if let Some(index) = self.returned.iter().position(|range| range.0 == base) {
            let (_, count) = self.returned[index];
            if count == pages {
                self.returned.swap_remove(index);
            } else {
                self.returned[index] = (base + pages * PAGE_SIZE, count - pages);
            }
        }
    }

    /// Takes a range back that nothing is mapped at any more.
    fn give_back(&mut self, base: usize, pages: usize) {
        let before = |range: &&mut (usize, usize)| range.0 + range.1 * PAGE_SIZE == base;
        if let Some((_, count)) = self.returned.iter_mut().find(before) {
            *count += pages;
        } else if self.returned.try_push((base, pages)).is_err() {
            log::warn!("{pages} pages of addresses for device registers are lost");
        }
    }
}

/// No frame for a table, or no addresses left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoMemory;

/// Adopts the tables under `root`, which are loaded on this CPU.
pub(crate) fn init(root: Frame) {
    ROOT.store(phys::of(root).0, Ordering::Relaxed);
}

/// Leaves the boot code's tables.
///
/// # Safety
/// The tables under `root` map the running image, stack and data as they are.
pub(crate) unsafe fn load_first(root: Frame) {
    // SAFETY: by the caller's promise.
    unsafe {
        core::arch::asm!("mov cr3, {}", in(reg) phys::of(root).0, options(nostack, preserves_flags));
    }
}

/// The kernel's own root table: in CR3 while no user page table is active.
pub(crate) fn root() -> PhysAddr {
    PhysAddr(ROOT.load(Ordering::Relaxed))
}

pub(super) fn table(at: PhysAddr) -> &'static Table {
    let frame = phys::frame_at(at).expect("kernel table outside the instance's memory");
    // SAFETY: the addresses come from `ROOT`, `isolated::ROOT` and the entries below them, which
    // hold tables of the kernel half; those are in the direct map (tables are never granted away)
    // and never freed.
    unsafe { TableView::Direct.table(frame) }
}

/// Links the kernel half into the root of a new user page table.
pub(super) fn link(user_root: &Table) {
    let kernel_root = table(root());
    for slot in KERNEL_HALF..table::ENTRIES {
        user_root.set(slot, kernel_root.get(slot));
    }
}

/// The page table that covers `va` below a root of the kernel half, made if need be; with `EDIT`
/// held.
pub(super) fn page_table(root: PhysAddr, va: usize) -> Result<&'static Table, NoMemory> {
    table_of_level(root, va, 1)
}

/// The table of a level, as [`page_table`].
fn table_of_level(root: PhysAddr, va: usize, last: usize) -> Result<&'static Table, NoMemory> {
    let mut table = table(root);
    for level in (last + 1..=4).rev() {
        let entry = table.get(index(va, level));
        let next = match entry.table() {
            Some(next) => next,
            None => {
                assert!(
                    level < 4 && !entry.present(),
                    "no page table can be at {va:#x}"
                );
                // Nobody is asked to give memory back, and so free objects, under the lock.
                let next = Block::zeroed_at_hand().ok_or(NoMemory)?;
                let next = phys::of(next.into_raw());
                table.set(index(va, level), Entry::kernel_table(next));
                next
            }
        };
        table = self::table(next);
    }
    Ok(table)
}

fn map(va: usize, pages: usize, at: PhysAddr, flags: Flags) -> Result<(), NoMemory> {
    for page in 0..pages {
        let va = va + page * PAGE_SIZE;
        let entry = Entry::page(at.add((page * PAGE_SIZE) as u64), flags);
        let before = page_table(root(), va)?.swap(index(va, 1), entry);
        debug_assert!(!before.present(), "{va:#x} is mapped already");
    }
    Ok(())
}

/// Maps frames at `va`, one behind the other, for reading and writing. On an error nothing is
/// mapped.
///
/// # Safety
/// The frames are the caller's, `va` is in the region for stacks, and nothing is mapped there.
pub(crate) unsafe fn map_frames(va: usize, frames: &[Frame]) -> Result<(), NoMemory> {
    let _edit = EDIT.lock();
    // The tables first: after that nothing can fail.
    for page in 0..frames.len() {
        page_table(root(), va + page * PAGE_SIZE)?;
    }
    let flags = Flags::WRITE | Flags::NO_EXECUTE | Flags::GLOBAL;
    for (page, frame) in frames.iter().enumerate() {
        map(va + page * PAGE_SIZE, 1, phys::of(*frame), flags)?;
    }
    Ok(())
}

/// The frame that [`map_frames`] has mapped at `va`.
pub(crate) fn frame_at(va: usize) -> Option<Frame> {
    phys::frame_at(leaf(va)?.0)
}

/// The page that the kernel has at `va`: where it is, and its rights.
pub(super) fn leaf(va: usize) -> Option<(PhysAddr, Flags)> {
    let mut table = table(root());
    for level in (1..=4).rev() {
        let entry = table.get(index(va, level));
        match entry.table() {
            Some(next) if level > 1 => table = self::table(next),
            _ => {
                let offset = va & (table::span(level) - 1) & !(PAGE_SIZE - 1);
                return entry
                    .present()
                    .then(|| (entry.address().add(offset as u64), entry.flags()));
            }
        }
    }
    None
}

/// Ends what [`map_frames`] began. When it returns, no CPU reaches the frames at `va` any more.
///
/// # Safety
/// Nobody uses the memory at `va` any more.
pub(crate) unsafe fn unmap_frames(va: usize, pages: usize) {
    {
        let _edit = EDIT.lock();
        for va in (va..va + pages * PAGE_SIZE).step_by(PAGE_SIZE) {
            if let Ok(table) = page_table(root(), va) {
                table.set(index(va, 1), Entry::NONE);
            }
        }
    }
    tlb::flush_kernel(va..va + pages * PAGE_SIZE);
}

/// Takes whole granules out of the direct map. When it returns, no CPU of this instance reaches
/// them.
///
/// # Safety
/// The granules (given by their first frames) are the caller's, and nobody uses their memory.
pub(crate) unsafe fn unmap_granules(granules: impl Iterator<Item = Frame>) {
    let (mut low, mut high) = (usize::MAX, 0);
    {
        let _edit = EDIT.lock();
        for first in granules {
            let (table, slot) = direct_entry(first);
            table.set(slot, Entry::NONE);
            let va = DIRECT + first.0 as usize * PAGE_SIZE;
            (low, high) = (low.min(va), high.max(va + GRANULE_SIZE));
        }
    }
    if low < high {
        tlb::flush_kernel(low..high);
    }
}

/// Puts withdrawn granules back into the direct map.
///
/// # Safety
/// The granules are the caller's alone: nobody else has them mapped any more.
pub(crate) unsafe fn map_granules(granules: impl Iterator<Item = Frame>) {
    let _edit = EDIT.lock();
    for first in granules {
        let (table, slot) = direct_entry(first);
        let flags = Flags::WRITE | Flags::NO_EXECUTE | Flags::GLOBAL;
        table.set(slot, Entry::large(phys::of(first), flags));
    }
}

/// Makes the tables that [`map_granules`] needs for granules that were never mapped before.
///
/// # Errors
/// [`NoMemory`]; the tables that were made stay, and are found the next time.
pub(crate) fn prepare_granules(granules: impl Iterator<Item = Frame>) -> Result<(), NoMemory> {
    let _edit = EDIT.lock();
    for first in granules {
        let va = DIRECT + first.0 as usize * PAGE_SIZE;
        table_of_level(root(), va, 2)?;
    }
    Ok(())
}

/// The level-2 entry of a granule in the direct map.
fn direct_entry(first: Frame) -> (&'static Table, usize) {
    let va = DIRECT + first.0 as usize * PAGE_SIZE;
    assert!(
        va.is_multiple_of(GRANULE_SIZE),
        "{first:?} starts no granule"
    );
    let mut table = table(root());
    for level in [4, 3] {
        table = self::table(
            table
                .get(index(va, level))
                .table()
                .expect("granule outside the direct map"),
        );
    }
    let slot = index(va, 2);
    assert!(
        table.get(slot).table().is_none(),
        "granule of {first:?} is mapped by small pages"
    );
    (table, slot)
}

/// Maps the local APIC's registers at their fixed address, for instances whose CPUs are in xAPIC
/// mode.
///
/// # Errors
/// [`NoMemory`] if there is no frame for a table.
pub(crate) fn map_local_apic(at: PhysAddr) -> Result<(), NoMemory> {
    let _edit = EDIT.lock();
    MmioRegion::map_pages(LAPIC_MMIO, at, 1)
}

/// A number that a device register holds: 8 to 64 bits.
pub trait Register: Copy + private::Sealed {}

impl Register for u8 {}
impl Register for u16 {}
impl Register for u32 {}
impl Register for u64 {}

mod private {
    pub trait Sealed {}

    impl Sealed for u8 {}
    impl Sealed for u16 {}
    impl Sealed for u32 {}
    impl Sealed for u64 {}
}

/// A mapped run of device registers, uncached.
#[derive(Clone, Copy, Debug)]
pub struct MmioRegion {
    base: usize,
    len: usize,
}

impl MmioRegion {
    /// Maps `len` bytes of physical address space from `at` on (any alignment).
    ///
    /// # Errors
    /// [`NoMemory`] if there is no frame for a table or no address left.
    ///
    /// # Panics
    /// If the bytes are memory of this instance: memory has one memory type.
    pub(crate) fn map(at: PhysAddr, len: usize) -> Result<Self, NoMemory> {
        let mut free = EDIT.lock();
        let offset = at.0 as usize % PAGE_SIZE;
        let pages = (offset + len).div_ceil(PAGE_SIZE);
        let base = free.find(pages).ok_or(NoMemory)?;
        Self::map_pages(base, at, pages)?;
        free.take(base, pages);
        Ok(Self {
            base: base + offset,
            len,
        })
    }

    fn map_pages(base: usize, at: PhysAddr, pages: usize) -> Result<(), NoMemory> {
        // PWT and PCD select entry 3 of the page attribute table: UC.
        let flags = Flags::WRITE | Flags::NO_CACHE | Flags::WRITE_THROUGH;
        let start = PhysAddr(at.0 & !(PAGE_SIZE as u64 - 1));
        for page in 0..pages {
            let at = start.add((page * PAGE_SIZE) as u64);
            assert!(
                phys::frame_at(at).is_none(),
                "uncached mapping of memory at {:#x}",
                at.0
            );
            page_table(root(), base + page * PAGE_SIZE)?;
        }
        map(
            base,
            pages,
            start,
            flags | Flags::NO_EXECUTE | Flags::GLOBAL,
        )
    }

    /// Ends the mapping that [`Self::map`] made. When it returns, no CPU reaches the registers, and
    /// the addresses may be used for others.
    ///
    /// # Safety
    /// It is what `map` returned, and neither it nor a copy or part of it is used any more.
    pub(crate) unsafe fn unmap(self) {
        let base = self.base & !(PAGE_SIZE - 1);
        let pages = (self.base - base + self.len).div_ceil(PAGE_SIZE);
        // SAFETY: nobody uses the registers, by the caller's promise.
        unsafe { unmap_frames(base, pages) };
        EDIT.lock().give_back(base, pages);
    }

    fn at<T>(self, offset: usize) -> *mut T {
        assert!(
            offset.is_multiple_of(align_of::<T>())
                && self.base.is_multiple_of(align_of::<T>())
                && self.len >= size_of::<T>()
                && offset <= self.len - size_of::<T>(),
            "register {offset:#x} is outside of {self:x?}"
        );
        core::ptr::with_exposed_provenance_mut(self.base + offset)
    }

    /// A part of the registers; `None` if it is not within them.
    #[must_use]
    pub fn part(self, offset: usize, len: usize) -> Option<Self> {
        let is_within = offset <= self.len && len <= self.len - offset;
        is_within.then_some(Self {
            base: self.base + offset,
            len,
        })
    }

    /// Number of bytes of registers.
    #[must_use]
    pub const fn bytes(self) -> usize {
        self.len
    }

    /// Reads a register.
    ///
    /// # Panics
    /// This and the following, if it is not one of these registers, or not aligned.
    #[must_use]
    pub fn read<T: Register>(self, offset: usize) -> T {
        // SAFETY: `at` checks bounds and alignment, and any bits are a number. Mapped as long as a
        // value of this type is used: who ends that has promised it.
        unsafe { self.at::<T>(offset).read_volatile() }
    }

    /// Writes a register.
    pub fn write<T: Register>(self, offset: usize, value: T) {
        // SAFETY: as in `read`; whoever mapped them knows what the device does.
        unsafe { self.at::<T>(offset).write_volatile(value) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_registers_are_used_again() {
        let mut free = FreeAddresses::new();
        let map = |free: &mut FreeAddresses, pages| {
            let base = free.find(pages).unwrap();
            free.take(base, pages);
            base
        };
        let first = map(&mut free, 3);
        let second = map(&mut free, 2);
        assert_eq!(second, first + 3 * PAGE_SIZE);
        free.give_back(first, 3);
        assert_eq!(map(&mut free, 4), second + 2 * PAGE_SIZE);
        assert_eq!(map(&mut free, 1), first);
        assert_eq!(map(&mut free, 2), first + PAGE_SIZE);
        free.give_back(first, 1);
        free.give_back(first + PAGE_SIZE, 2);
        free.give_back(second, 2);
        assert_eq!(map(&mut free, 5), first);
        assert_eq!(free.find(1 << 20), None);
    }
}
