//! The x86-64 architecture as numbers: register bits, descriptors, page-table entries,
//! model-specific registers, CPUID, interrupt controllers, clocks.
//!
//! Nothing here executes a privileged instruction or touches memory: it is layouts and arithmetic,
//! and `guard` is what carries them to the processor. So it needs no `unsafe`, and is read beside
//! the manuals rather than with the guard: *SDM* is the Intel 64 and IA-32 Architectures Software
//! Developer's Manual, *APM* the AMD64 Architecture Programmer's Manual. Which values the kernel
//! chooses (its segments, its memory types, which exceptions get a stack) is the guard's.
#![no_std]
#![forbid(unsafe_code)]

pub mod apic;
pub mod control;
pub mod debug;
pub mod features;
pub mod identity;
pub mod interrupt;
pub mod ioapic;
pub mod machine_check;
pub mod msr;
pub mod paging;
pub mod pit;
pub mod rate;
pub mod rtc;
pub mod segment;
pub mod xsave;

/// EAX, EBX, ECX and EDX of a CPUID leaf.
pub type CpuidRegisters = [u32; 4];
