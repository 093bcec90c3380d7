//! Address spaces of programs (`docs/address-spaces.md`).
//!
//! | file | subject |
//! |---|---|
//! | `vma`, `vma_tree` | what is mapped where: pure interval arithmetic |
//! | `range_lock` | range locks: who may change or fault what at the same time |
//! | `space` | an address space: the areas, the page table, and the calls that change both |
//! | `fault` | what happens when a program touches a page: demand paging, copy on write, stack growth |
//! | `large` | pages of 2 MiB |
//! | `leaving` | pages that are moved out of memory that is to leave |
//! | `lend` | pages of programs that devices read and write |
//! | `madvise` | what a program says about its memory: `madvise`, `mlock`, `mincore` |
//! | `remap` | moving and growing what is mapped |
//! | `mseal` | what stays as it is |
//! | `residency` | what of a mapping is in memory |
//! | `object` | where the pages of a mapping come from |
//! | `small_vec` | lists of mostly one element |
//! | `zero_page` | the page of zeros |
//! | `reverse_map` | who has a file mapped |
//! | `host` | pages and page tables of unit tests |
//!
//! Nothing here knows of processes or signals. The page table is the guard's; its entries hold the
//! references to pages, this crate decides which page belongs where.
#![cfg_attr(target_os = "none", no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

use core::sync::atomic::{AtomicUsize, Ordering};

#[cfg(test)]
mod concurrency_tests;
mod core_dump;
mod fault;
mod futex_key;
#[cfg(not(target_os = "none"))]
mod host;
mod interface;
mod large;
mod leaving;
mod lend;
mod madvise;
mod mseal;
mod object;
mod range_lock;
mod remap;
mod residency;
mod reverse_map;
mod small_vec;
mod space;
mod vma;
mod vma_tree;
mod zero_page;

pub use abi::layout::{PAGE_SIZE, USER_END, USER_START};
pub use core_dump::{DumpArea, DumpFilter};
pub use fault::{AccessKind, FaultError};
pub use futex_key::{FutexKey, FutexWord};
#[cfg(target_os = "none")]
pub(crate) use guard::mem::LargePage;
#[cfg(target_os = "none")]
pub use guard::mem::{Frame, Page, has_kernel_room, has_room};
#[cfg(target_os = "none")]
pub(crate) use guard::paging::{Flags, Insert, MapError, PageTable, Perm, Span, Unmapped};
#[cfg(not(target_os = "none"))]
pub(crate) use host::{Flags, Insert, LargePage, MapError, PageTable, Perm, Span, Unmapped};
#[cfg(not(target_os = "none"))]
pub use host::{Frame, NoUserMemory, Page, has_kernel_room, has_room};
pub use large::{
    LargePageCounts, LargePages, counts as large_page_counts, set_setting as set_large_pages,
    setting as large_pages,
};
pub use leaving::{PageMover, moved_pages};
pub use lend::{LentPages, MAX_LENT, lent_pages};
pub use madvise::{Advice, DontNeedScope};
pub use object::{Backing, Object, SharedWrites, ShmemObject};
pub use remap::RemapOptions;
pub use residency::{Residency, ResidentByKind};
pub use reverse_map::{PrivateCopies, ReverseMap};
pub use space::{AddressSpace, MapRequest, Placement, ResidentBytes, SpaceStats, VmaInfo};
pub use vma::{Prot, VmaFlags};

/// The length in bytes rounded up to whole pages; `None` if that is beyond the address range.
#[must_use]
pub fn page_align_up(len: usize) -> Option<usize> {
    len.checked_next_multiple_of(PAGE_SIZE)
}

static MAX_MAP_COUNT: AtomicUsize = AtomicUsize::new(65_530);

/// Most areas of an address space (`/proc/sys/vm/max_map_count`).
#[inline]
#[must_use]
pub fn max_map_count() -> usize {
    MAX_MAP_COUNT.load(Ordering::Relaxed)
}

/// Changes how many areas an address space may have. What has more keeps them.
pub fn set_max_map_count(count: usize) {
    MAX_MAP_COUNT.store(count, Ordering::Relaxed);
}

/// The start of the page that `addr` is in.
#[must_use]
pub const fn page_align_down(addr: usize) -> usize {
    addr & !(PAGE_SIZE - 1)
}
