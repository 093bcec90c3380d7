//! Ways into the kernel and out of it, but for the end of `arch::user`'s calls: descriptor tables,
//! the routines that the processor jumps to, and page tables without the kernel for programs.
//!
//! | file | subject |
//! |---|---|
//! | `gdt`, `idt` | descriptor tables |
//! | `trap` | exceptions and interrupts |
//! | `isolation` | the same, and system calls, of programs that run on tables of their own |

pub(crate) mod gdt;
pub(crate) mod idt;
pub mod isolation;
pub(crate) mod trap;
