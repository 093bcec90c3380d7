//! Address spaces (`docs/memory.md`).
//!
//! | file | subject |
//! |---|---|
//! | `table` | one table of entries (`x86_spec::paging`) |
//! | `build` | the kernel half of an instance, built from outside |
//! | `kernel` | the kernel half in use: stacks, device registers, granules of the direct map |
//! | `isolated` | the kernel half of programs that run without the kernel's |
//! | `user` | page tables of programs |
//! | `large` | large pages in them |
//! | `tlb`, `asid` | shootdown; what stays cached over a switch |

mod asid;
pub(crate) mod build;
pub(crate) mod isolated;
pub(crate) mod kernel;
mod large;
mod table;
pub(crate) mod tlb;
mod user;

pub(crate) use asid::Translations;
pub use large::{large_pages, splits};
pub(crate) use table::TableView;
pub use tlb::shootdowns;
pub use user::{Flags, Insert, PageTable, Perm, Span, Unmapped};

/// Why a page could not be mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapError {
    /// Memory for a table is short.
    NoMemory,
    /// Not the address of a user page, or not aligned.
    Address,
    /// A large page is there, or something where one should go.
    Occupied,
}
