//! Block devices, their partitions, and the page cache in front of them (`docs/block.md`).
//!
//! | file | subject |
//! |---|---|
//! | `device` | requests, and what drivers implement |
//! | `partition` | partition tables: GPT and MBR |
//! | `cache` | the pages of a device, or of a file on one, that are in memory, and which of them are dirty |
//! | `account` | whose transfers they are |
//! | `error_sequence` | errors of writing back, told once to each opener |
//! | `writeback` | how much may be dirty, for how long; giving pages back when memory is short |
#![cfg_attr(target_os = "none", no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod account;
mod cache;
mod device;
mod error_sequence;
pub mod partition;
pub mod writeback;

pub use cache::{CachedRun, DirectWrite, PageCache, READ_AHEAD, zero};
pub use device::{BlockDevice, Limits, Operation, Request, SECTOR_SIZE, Transfer};
pub use error_sequence::{ErrorCursor, ErrorSequence};
