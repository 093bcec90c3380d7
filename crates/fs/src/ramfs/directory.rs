//! A directory in memory.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use abi::errno::Errno;

use super::{InodeData, RamInode};
use crate::name_map::NameMap;
use crate::{FileType, Inode, Result};

/// Contents of a directory.
#[derive(Default)]
pub(super) struct Directory {
    pub(super) entries: NameMap<Entry>,
    /// Entries in the order they were made, which listings follow: a listing that goes on while
    /// others make and remove entries then shows every entry that stays exactly once.
    pub(super) order: BTreeMap<u64, ListingEntry>,
    pub(super) next_cookie: u64,
    pub(super) subdirs: u32,
    /// Removed: nothing can be made here any more.
    pub(super) dead: bool,
}

/// A name's file, and its position in listings.
pub(super) struct Entry {
    pub(super) inode: Arc<RamInode>,
    pub(super) cookie: u64,
}

/// An entry as a listing tells it.
pub(super) struct ListingEntry {
    pub(super) name: Arc<[u8]>,
    pub(super) ino: u64,
    pub(super) kind: FileType,
}

impl Directory {
    /// Makes room for one more entry.
    ///
    /// # Errors
    /// `ENOSPC` if memory is short.
    pub(super) fn reserve(&mut self) -> Result<()> {
        let reserved = self.entries.try_reserve(1);
        reserved.map_err(|_| Errno::ENOSPC)
    }

    /// Makes an entry, in place of one of the same name, for which there is room
    /// ([`Self::reserve`]).
    pub(super) fn insert(&mut self, name: &[u8], inode: Arc<RamInode>) {
        self.subdirs += u32::from(inode.kind() == FileType::Directory);
        self.next_cookie += 1;
        let cookie = self.next_cookie;
        let name: Arc<[u8]> = name.into();
        self.order.insert(
            cookie,
            ListingEntry {
                name: name.clone(),
                ino: inode.ino,
                kind: inode.kind(),
            },
        );
        if let Some(old) = self.entries.insert(name, Entry { inode, cookie }) {
            self.remove_from_listing(&old);
        }
    }

    /// Takes an entry out.
    pub(super) fn remove(&mut self, name: &[u8]) -> Option<Arc<RamInode>> {
        let entry = self.entries.remove(name)?;
        self.remove_from_listing(&entry);
        Some(entry.inode)
    }

    fn remove_from_listing(&mut self, entry: &Entry) {
        self.order.remove(&entry.cookie);
        self.subdirs -= u32::from(entry.inode.kind() == FileType::Directory);
    }
}

impl RamInode {
    /// The directories in it, by name.
    pub(super) fn subdirectories(&self) -> Vec<(Arc<[u8]>, Arc<Self>)> {
        let InodeData::Directory(dir) = &self.data else {
            return Vec::new();
        };
        let dir = dir.lock();
        let of = |name: &Arc<[u8]>| Some((name.clone(), dir.entries.get(name)?.inode.clone()));
        dir.order
            .values()
            .filter(|entry| entry.kind == FileType::Directory)
            .filter_map(|entry| of(&entry.name))
            .collect()
    }

    /// Marks an empty directory as removed.
    pub(super) fn mark_dead(&self) -> Result<()> {
        let mut dir = self.directory()?.lock();
        if !dir.entries.is_empty() {
            return Err(Errno::ENOTEMPTY);
        }
        dir.dead = true;
        drop(dir);
        self.add_links(-1);
        Ok(())
    }
}

impl Drop for RamInode {
    fn drop(&mut self) {
        census::released(self.info.files.fetch_sub(1, Ordering::Relaxed), 1);
        // A tree that goes with its file system is taken down in a loop: recursion would need stack
        // for every level.
        let mut doomed: Vec<Arc<RamInode>> = Vec::new();
        let take = |body: &mut InodeData, doomed: &mut Vec<Arc<RamInode>>| {
            if let InodeData::Directory(dir) = body {
                let entries = core::mem::take(&mut dir.get_mut().entries);
                doomed.extend(entries.into_values().map(|e| e.inode));
            }
        };
        take(&mut self.data, &mut doomed);
        while let Some(inode) = doomed.pop() {
            if let Some(mut inode) = Arc::into_inner(inode) {
                take(&mut inode.data, &mut doomed);
            }
        }
    }
}
