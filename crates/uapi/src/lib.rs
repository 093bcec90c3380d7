//! Structures and numbers that programs and the kernel pass to each other (`include/uapi` of
//! Linux): pure functions of bytes, without state and without the kernel's objects.
#![cfg_attr(target_os = "none", no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod core_file;
pub mod elf;
pub mod fd;
pub mod futex;
pub mod initial_stack;
pub mod pid;
pub mod prctl_mm_map;
pub mod rseq_cs;
pub mod sigframe;
pub mod siginfo;
pub mod time;
pub mod user_addr;
pub mod user_regs;
