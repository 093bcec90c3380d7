//! Power cuts of a machine (`docs/ext4.md`): programs in a machine write to a disk whose writes and
//! flushes QEMU logs, and say on the same disk what they were promised; from the log the host makes
//! the disk as it may be after a cut, and looks for all that was promised by then.
//!
//! | file | subject |
//! |---|---|
//! | `plan` | writers, and what they do step by step |
//! | `judge` | which trees a cut in the middle of a step may leave |
//! | `mark` | how a writer says that a step is done, and promised |
//! | `cut` | disks after cuts, and what is wrong with them |
//!
//! `src/bin/power-cut-writers.rs` is the program in the machine. It and the host know the plan from
//! a seed, so a mark is two numbers.

pub mod cut;
pub mod judge;
pub mod mark;
pub mod plan;
