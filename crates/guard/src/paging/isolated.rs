//! The upper half of the roots that programs run on where the kernel is kept out of them
//! (`isolation`): one set of tables, linked into each of them.
//!
//! It maps, for ring 0 only, what an entry needs until it has loaded the kernel's root, at the
//! addresses and with the rights that the kernel has there. Its top-level entries are complete
//! before the first root is made and never change; below them parts are added when CPUs are.
//! Nothing is ever taken away, so there is nothing to forget.

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use abi::layout::{DIRECT, IMAGE, PAGE_SIZE, STACKS};
use x86_spec::paging::{Entry, Flags};

use super::kernel::{self, NoMemory};
use super::table::{self, KERNEL_HALF, Table, index, span};
use crate::mem::alloc::Block;
use crate::mem::phys::{self, PhysAddr};

/// Physical address of a root that maps nothing else; 0 before there is one.
static ROOT: AtomicU64 = AtomicU64::new(0);

/// A root with the upper half and an empty lower one.
pub(crate) fn root() -> PhysAddr {
    PhysAddr(ROOT.load(Ordering::Relaxed))
}

/// Makes the root, with nothing below its top-level entries; once.
///
/// # Errors
/// [`NoMemory`] if there is no frame for a table.
pub(crate) fn init() -> Result<(), NoMemory> {
    let fresh = || Block::zeroed_at_hand().map(|block| phys::of(block.into_raw()));
    let root = fresh().ok_or(NoMemory)?;
    // The heap's objects are in the direct map, or, in pieces, above the stacks.
    for part in [DIRECT, STACKS, IMAGE] {
        let below = fresh().ok_or(NoMemory)?;
        kernel::table(root).set(index(part, 4), Entry::kernel_table(below));
    }
    ROOT.store(root.0, Ordering::Relaxed);
    Ok(())
}

/// Maps the kernel's pages at these addresses (page-aligned).
///
/// # Errors
/// [`NoMemory`] if there is no frame for a table.
///
/// # Panics
/// If the kernel has nothing there.
pub(crate) fn expose(pages: Range<usize>) -> Result<(), NoMemory> {
    let _edit = kernel::EDIT.lock();
    for va in pages.step_by(PAGE_SIZE) {
        let (at, flags) = kernel::leaf(va).expect("a page of the kernel's");
        let rights = flags & (Flags::WRITE | Flags::NO_EXECUTE);
        kernel::page_table(root(), va)?.set(index(va, 1), Entry::page(at, rights));
    }
    Ok(())
}

/// Links the upper half into the root of a program.
pub(super) fn link(user_root: &Table) {
    let root = kernel::table(root());
    for slot in KERNEL_HALF..table::ENTRIES {
        user_root.set(slot, root.get(slot));
    }
}

/// Calls `each` with every page of the upper half under a root, its address and its entry: read
/// from the tables, whoever made them.
pub(crate) fn for_each_page(root: PhysAddr, mut each: impl FnMut(usize, Entry)) {
    below(root, 4, UPPER_BITS, &mut each);
}

/// Bits of every address in the upper half above those that tables translate.
const UPPER_BITS: usize = !(span(5) - 1);

fn below(table: PhysAddr, level: usize, start: usize, each: &mut impl FnMut(usize, Entry)) {
    let first = if level == 4 { KERNEL_HALF } else { 0 };
    for (slot, entry) in kernel::table(table).entries(first..table::ENTRIES) {
        let va = start + slot * span(level);
        match entry.table() {
            Some(next) if level > 1 => below(next, level - 1, va, each),
            _ => {
                for page in 0..span(level) / PAGE_SIZE {
                    each(va + page * PAGE_SIZE, entry);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::host;
    use crate::paging::{PageTable, tlb};

    /// A program's root has of the kernel what was exposed, with the kernel's rights but for ring 0
    /// alone and never global, whatever the program maps.
    #[test]
    fn programs_have_nothing_of_the_kernel_but_what_is_exposed() {
        host::set_up();
        // A page of the image's text, one of its data, and some of the direct map in the midst of a
        // large page and from one to the next.
        let direct = DIRECT + (8 << 20) + 5 * PAGE_SIZE;
        let parts = [
            IMAGE..IMAGE + PAGE_SIZE,
            IMAGE + 2 * PAGE_SIZE..IMAGE + 3 * PAGE_SIZE,
            direct..direct + 600 * PAGE_SIZE,
        ];
        for part in &parts {
            expose(part.clone()).expect("memory");
        }
        let tables = tlb::isolating(true, || PageTable::new().expect("memory"));
        tables
            .insert_with(0x5555_0000_0000, || {
                Ok::<_, crate::paging::MapError>((
                    crate::mem::Page::zeroed().expect("memory"),
                    crate::paging::Perm::default(),
                ))
            })
            .expect("memory");
        let mut seen = Vec::new();
        for_each_page(tables.active.user_root.expect("isolated"), |va, entry| {
            let (at, flags) = kernel::leaf(va).expect("the kernel's");
            let rights = Flags::WRITE | Flags::NO_EXECUTE;
            assert_eq!(
                (entry.address(), entry.flags() & rights),
                (at, flags & rights)
            );
            assert!(
                !entry
                    .flags()
                    .intersects(Flags::USER | Flags::GLOBAL | Flags::LARGE)
            );
            seen.push(va);
        });
        let wanted = parts.into_iter().flat_map(|part| part.step_by(PAGE_SIZE));
        let mut wanted: Vec<_> = wanted.collect();
        wanted.sort_unstable();
        assert_eq!(seen, wanted);
    }
}
