//! The guard: Skerry's trusted computing base (see `docs/guard.md`).
//!
//! It alone contains `unsafe`, assembly, privileged instructions, page-table writes, MMIO, port and
//! MSR access, interrupt entry and inter-processor interrupts. Everything it offers is checked
//! against the instance's partition descriptor; all of its public interface is safe.
#![cfg_attr(target_os = "none", no_std)]
// On the host only the unit tests run, and they do not reach what the hardware drives.
#![cfg_attr(not(target_os = "none"), allow(dead_code, unused_imports))]

extern crate alloc;

pub mod arch;
mod authority;
pub mod boot;
mod cpu_table;
pub mod device;
mod entry;
pub mod faults;
mod heartbeat;
pub mod instance;
pub mod ipi;
pub mod irq;
mod keep;
mod leave;
pub mod log;
pub mod machine_check;
pub mod mem;
pub mod paging;
mod panic;
mod park;
pub mod partition;
pub mod pause;
pub mod peers;
pub mod power;
pub mod random;
pub mod rcu;
mod restart;
pub mod role;
mod smp;
pub mod speculation;
pub mod stack;
mod symbols;
pub mod trace;
pub mod usage;

pub use arch::{context, cpu, fpu, port, timer, user};
pub use authority::{Authority, BootToken, FaultToken, PowerToken};
pub use entry::isolation;
