//! Structures and numbers that programs and the kernel pass to each other (`include/uapi` of
//! Linux). No state.

pub mod elf;
pub mod fd;
pub(crate) mod futex;
pub mod initial_stack;
pub mod pid;
pub mod prctl_mm_map;
pub mod rseq_cs;
pub mod sigframe;
pub mod siginfo;
pub mod time;
pub mod user_addr;
pub mod user_regs;
