//! The file system ext4, read and written, with its journal (`docs/ext4.md`).
//!
//! | file | subject |
//! |---|---|
//! | `device` | what it needs of a disk |
//! | `superblock`, `group`, `zone` | sizes and features; descriptors and bitmaps; blocks that are no file's |
//! | `store`, `buffers`, `handle`, `gather` | blocks of metadata in memory, handles, transactions |
//! | `journal`, `recovery` | the log; its replay |
//! | `mount` | beginning and end, commit |
//! | `inode`, `time` | inodes as they are on disk |
//! | `extent`, `extent_tree`, `indirect` | where the blocks of a file are |
//! | `allocate`, `ialloc` | finding free blocks and inodes |
//! | `hash`, `htree`, `directory`, `listing` | names |
//! | `namei` | making, linking, removing and renaming files |
//! | `file` | contents: read, write, truncate, preallocate, punch |
//! | `orphan` | files that have no name any more |
//! | `xattr` | extended attributes |
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use ext4::{Device, Ext4, Options, ROOT};
//!
//! fn first_line(disk: Arc<dyn Device>) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
//!     let mut fs = Ext4::mount(disk, Options::default()).map_err(|error| error.to_string())?;
//!     let file = fs.lookup(ROOT, b"motd").map_err(|error| error.text())?;
//!     let mut bytes = vec![0; 80];
//!     let len = fs.read(file, 0, &mut bytes).map_err(|error| error.text())?;
//!     bytes.truncate(len);
//!     Ok(bytes)
//! }
//! ```
#![cfg_attr(target_os = "none", no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod allocate;
mod buffers;
mod bytes;
mod crc;
mod device;
mod directory;
mod extent;
mod extent_tree;
mod file;
mod gather;
mod group;
mod handle;
mod hash;
mod htree;
mod ialloc;
mod indirect;
mod inode;
mod journal;
mod listing;
mod mount;
mod namei;
mod orphan;
mod recovery;
mod store;
mod superblock;
mod time;
mod xattr;
mod zone;

use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::errno::Errno;
pub use device::Device;
pub use file::{Attributes, Mapping};
pub use inode::{FileType, Stat};
pub use listing::Entry;
pub use mount::{Ext4, Options, StatFs};
pub use namei::{NewFile, NewKind, RenameMode, Renamed, Unlinked};
pub use recovery::Recovery;
pub use superblock::{Identity, MountError};
pub use time::Timestamp;
pub use xattr::SetMode;

/// Result of an operation.
pub type Result<T> = core::result::Result<T, Errno>;

/// Contents of a block, shared with who looks at it.
type Block = Arc<Vec<u8>>;

/// Number of the top directory.
pub const ROOT: u32 = 2;
/// Longest name of an entry, in bytes.
pub const NAME_MAX: usize = 255;
