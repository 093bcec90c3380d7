//! Address spaces of programs (`docs/address-spaces.md`).
//!
//! | file | subject |
//! |---|---|
//! | `area`, `intervals` | what is mapped where: pure interval arithmetic |
//! | `claim` | range locks: who may change or fault what at the same time |
//! | `space` | an address space: the areas, the page table, and the calls that change both |
//! | `fault` | what happens when a program touches a page: demand paging, copy on write, stack growth |
//! | `large` | pages of 2 MiB |
//! | `advice` | what a program says about its memory: `madvise`, `mlock`, `mincore` |
//! | `remap` | moving and growing what is mapped |
//! | `seal` | what stays as it is |
//! | `residency` | what of a mapping is in memory |
//! | `object` | where the pages of a mapping come from |
//! | `few` | lists of mostly one element |
//! | `zero` | the page of zeros |
//! | `mappings` | who has a file mapped |
//! | `host` | pages and page tables of unit tests |
//!
//! Nothing here knows of processes or signals. The page table is the guard's; its entries hold the references to pages, this crate
//! decides which page belongs where.
#![cfg_attr(target_os = "none", no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod advice;
mod area;
mod claim;
mod fault;
mod few;
#[cfg(not(target_os = "none"))]
mod host;
mod intervals;
mod large;
mod mappings;
mod object;
#[cfg(test)]
mod parallel;
mod remap;
mod residency;
mod seal;
mod space;
mod zero;

#[cfg(target_os = "none")]
pub use guard::mem::Page;
#[cfg(not(target_os = "none"))]
pub use host::Page;

#[cfg(target_os = "none")]
pub(crate) use guard::mem::{Frame, LargePage};
#[cfg(target_os = "none")]
pub(crate) use guard::paging::{Insert, MapError, PageTable, Perm, Unmapped};
#[cfg(not(target_os = "none"))]
pub(crate) use host::{Frame, Insert, LargePage, MapError, PageTable, Perm, Unmapped};

pub use advice::{Advice, Drops};
pub use area::{AreaFlags, Prot};
pub use fault::{Access, FaultError};
pub use large::{LargePages, counts as large_page_counts, set_setting as set_large_pages, setting as large_pages};
pub use mappings::Mappings;
pub use object::{Backing, Object, SharedMemory};
pub use remap::Remap;
pub use residency::{Kinds, Residency};
pub use space::{AddressSpace, AreaInfo, FutexKey, Mapping, Placement, Stats};

pub use abi::layout::{PAGE_SIZE, USER_END, USER_START};

/// The length in bytes rounded up to whole pages; `None` if that is beyond the address range.
#[must_use]
pub fn page_up(len: usize) -> Option<usize> {
    len.checked_next_multiple_of(PAGE_SIZE)
}

/// The start of the page that `addr` is in.
#[must_use]
pub const fn page_down(addr: usize) -> usize {
    addr & !(PAGE_SIZE - 1)
}
