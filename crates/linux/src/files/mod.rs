//! System calls on files, directories, pipes and descriptors.

pub mod dirent;
pub mod fallocate;
pub mod fcntl;
pub mod fhandle;
mod file_ioctl;
pub(crate) mod filesystems;
pub mod inotify;
pub mod ioctl;
pub mod namei;
mod pages;
pub mod pipe;
pub mod poll;
pub mod read_write;
pub mod sigio;
pub mod splice;
pub mod stat;
pub mod xattr;
