//! The file system layer: names, open files and everything that looks like one.
//!
//! A system call reaches a file in three steps, each a type of its own:
//!
//! 1. [`path::LookupContext`] turns a name into a [`Path`] (a mount and a [`Dentry`]); [`ops`]
//!    holds the calls that change names.
//! 2. [`Inode`] is what a file *is*: a RAM file system's ([`ramfs`]), a generated one ([`pseudo`]),
//!    a device node ([`devfs`]).
//! 3. [`File`] is an *open* one: flags and offset, over a [`FileOps`] that reads, writes,
//!    polls and controls.
//!
//! Pipes, terminals, event counters and epoll sets are `FileOps` too. Nothing here names the
//! guard's hardware side: the crate runs as an ordinary host program in its tests. Lock order and
//! guarantees are in `docs/files.md`.
#![cfg_attr(target_os = "none", no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod acl;
pub mod attributes;
pub mod block;
pub mod charge;
pub mod cpio;
mod dcache;
mod dentry;
pub mod devfs;
pub mod dnotify;
pub mod epoll;
pub mod eventfd;
pub mod ext4;
mod file;
mod file_ops;
mod flags;
mod inode;
pub mod inotify;
pub mod ioctl;
pub mod lease;
pub mod lock;
pub mod mount;
mod name_map;
pub mod nsfs;
pub mod ops;
pub mod path;
pub mod pipe;
pub mod poll;

pub mod protected;
pub mod pseudo;
pub mod ramfs;
pub mod sigio;
mod statistics;
pub mod tty;
mod types;
mod write_access;
pub mod xattr;

pub use dcache::init as start_name_cache;
pub use dentry::{Dentry, Path};
pub use file::{Blocking, File, FileOps, Whence};
pub use file_ops::seek_position;
pub use flags::OpenFlags;
pub use inode::{
    DirEntry, Inode, LinkTarget, NewInode, NewInodeKind, RenameFlags, set_keeps_setid_bits,
};
pub use path::FsStruct;
pub use statistics::census;
pub use types::{
    Access, Cred, DeviceId, FileType, Metadata, NAME_MAX, PATH_MAX, Permissions, Result, SetAttr,
    StatFs, TIME_UNIT_NS, Timestamp,
};
pub use write_access::{DenyWriteAccess, WriteAccess, WriteCount};
