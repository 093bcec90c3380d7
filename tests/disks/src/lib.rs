//! Disks and their file systems in machines: what programs there and the host know in common.
//!
//! | module | subject |
//! |---|---|
//! | `calls` | system calls of the programs in machines |
//! | `contents` | numbers and bytes that depend on a seed only |
//! | `hostile` | damaged file systems |
//! | `log` | QEMU's log of writes and flushes |
//! | `memory` | a disk in memory |
//! | `power_cut` | what is left of a disk after power cuts |

pub mod calls;
pub mod contents;
pub mod hostile;
pub mod log;
pub mod memory;
pub mod power_cut;
