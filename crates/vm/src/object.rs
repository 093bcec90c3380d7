//! Where the pages of a mapping come from.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use core::ops::Range;

use abi::errno::Errno;
use task::Mutex;

use crate::{Page, PageMover, PrivateCopies, ReverseMap};

/// Something whose pages can be mapped: a file's contents, shared memory.
pub trait Backing: Send + Sync {
    /// The page with this number, which all mappings of it share.
    ///
    /// # Errors
    /// `EFAULT` behind the end (`SIGBUS` for whoever touched it); `ENOMEM` or `ENOSPC` if memory is
    /// short.
    fn page(&self, index: u64) -> Result<Page, Errno>;

    /// The same page if it is at hand: without waiting for a device, without making it, and not
    /// behind the end.
    fn cached(&self, index: u64) -> Option<Page>;

    /// Calls `each` with the pages among `range` that are at hand.
    fn for_each_cached(&self, range: Range<u64>, each: &mut dyn FnMut(u64, &Page)) {
        for index in range {
            if let Some(page) = self.cached(index) {
                each(index, &page);
            }
        }
    }

    /// Forgets the pages among `pages`, so that they are zeros again, and takes them out of all
    /// mappings (`MADV_REMOVE`).
    ///
    /// # Errors
    /// `EOPNOTSUPP` if it cannot; the object's own.
    fn punch_hole(&self, pages: Range<u64>) -> Result<(), Errno> {
        let _ = pages;
        Err(Errno::EOPNOTSUPP)
    }

    /// Puts copies in the place of pages that are to be moved and that nobody has but itself.
    fn move_pages(&self, mover: &PageMover<'_>) {
        let _ = mover;
    }

    /// Whether it has to know which pages are written to by shared mappings: these get the right to
    /// write only by [`Self::cached_for_write`], until the page is taken out of all mappings.
    fn notes_writes(&self) -> bool {
        false
    }

    /// The same page as [`Self::cached`], which is noted to be written to from now on; `None` also
    /// if [`Self::page_for_write`] has to be called first.
    fn cached_for_write(&self, index: u64) -> Option<Page> {
        self.cached(index)
    }

    /// The same page as [`Self::page`], for a shared mapping that is going to write to it.
    ///
    /// # Errors
    /// As [`Self::page`].
    fn page_for_write(&self, index: u64) -> Result<Page, Errno> {
        self.page(index)
    }

    /// Brings what was written to the medium (`MS_SYNC`).
    ///
    /// # Errors
    /// The device's.
    fn sync(&self) -> Result<(), Errno> {
        Ok(())
    }

    /// Notes that a program writes to it by a shared mapping (Linux `file_update_time`).
    fn on_shared_write(&self) {}

    /// Where it is noted who maps it, if pages can be taken away again.
    fn reverse_map(&self) -> Option<&ReverseMap> {
        None
    }
}

/// A backing as mappings refer to it, with what `/proc/<pid>/maps` shows.
pub struct Object {
    _counted: census::Object,
    pub(crate) backing: Arc<dyn Backing>,
    /// Whether a shared mapping of it may be written to.
    pub(crate) writable: bool,
    pub(crate) name: Vec<u8>,
    pub(crate) dev: u64,
    pub(crate) ino: u64,
    /// Kept alive while it is mapped: the mount that the file was opened by.
    _keeps: Option<Arc<dyn Any + Send + Sync>>,
}

/// Right to write to a shared mapping of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SharedWrites {
    /// The file is open for writing, and not sealed against it.
    Allowed,
    /// The mapping is for reading only, and stays so.
    Denied,
}

impl SharedWrites {
    /// [`Self::Allowed`] if `writable`.
    #[must_use]
    pub fn when(writable: bool) -> Self {
        if writable {
            Self::Allowed
        } else {
            Self::Denied
        }
    }
}

impl Object {
    /// A file's contents. `name`, `dev` and `ino` are for listings.
    #[must_use]
    pub fn file(
        backing: Arc<dyn Backing>,
        writes: SharedWrites,
        name: Vec<u8>,
        dev: u64,
        ino: u64,
    ) -> Arc<Self> {
        Self::new(backing, writes, name, (dev, ino), None)
    }

    /// A file's contents, as [`Self::file`]; `keeps` ends after the last mapping.
    #[must_use]
    pub fn file_with(
        backing: Arc<dyn Backing>,
        writes: SharedWrites,
        name: Vec<u8>,
        numbers: (u64, u64),
        keeps: Arc<dyn Any + Send + Sync>,
    ) -> Arc<Self> {
        Self::new(backing, writes, name, numbers, Some(keeps))
    }

    fn new(
        backing: Arc<dyn Backing>,
        writes: SharedWrites,
        name: Vec<u8>,
        (dev, ino): (u64, u64),
        keeps: Option<Arc<dyn Any + Send + Sync>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            _counted: census::Object::default(),
            backing,
            writable: writes == SharedWrites::Allowed,
            name,
            dev,
            ino,
            _keeps: keeps,
        })
    }

    /// Whether it is a file with a name, and not shared memory.
    pub(crate) fn is_file(&self) -> bool {
        self.dev != 0 && !self.name.starts_with(b"/memfd:")
    }

    /// Memory without a name that children share (`MAP_SHARED | MAP_ANONYMOUS`).
    #[must_use]
    pub fn anonymous() -> Arc<Self> {
        Self::file(
            Arc::new(ShmemObject::default()),
            SharedWrites::Allowed,
            b"/dev/zero (deleted)".to_vec(),
            0,
            0,
        )
    }
}

/// Shared memory (Linux shmem): pages that exist as soon as somebody looks at them, and until
/// nobody maps them.
#[derive(Default)]
pub struct ShmemObject {
    _counted: census::SharedMemory,
    pages: Mutex<BTreeMap<u64, Page>>,
    mappings: ReverseMap,
}

impl Backing for ShmemObject {
    fn page(&self, index: u64) -> Result<Page, Errno> {
        let mut pages = self.pages.lock();
        if let Some(page) = pages.get(&index) {
            return Ok(page.clone());
        }
        let page = Page::zeroed().ok_or(Errno::ENOMEM)?;
        pages.insert(index, page.clone());
        Ok(page)
    }

    fn cached(&self, index: u64) -> Option<Page> {
        self.pages.lock().get(&index).cloned()
    }

    // Page by page that are there: of a segment of a TiB that is hardly used, to ask for each index
    // took longer than anybody waits.
    fn for_each_cached(&self, range: Range<u64>, each: &mut dyn FnMut(u64, &Page)) {
        let mut from = range.start;
        loop {
            let next = self
                .pages
                .lock()
                .range(from..range.end.max(from))
                .next()
                .map(|(index, page)| (*index, page.clone()));
            let Some((index, page)) = next else { return };
            each(index, &page);
            from = index + 1;
        }
    }

    fn move_pages(&self, mover: &PageMover<'_>) {
        let mut pages = self.pages.lock();
        pages.values_mut().for_each(|page| mover.move_sole(page));
    }

    fn punch_hole(&self, range: Range<u64>) -> Result<(), Errno> {
        let gone = {
            let mut pages = self.pages.lock();
            let mut gone = pages.split_off(&range.start);
            pages.append(&mut gone.split_off(&range.end));
            gone
        };
        self.mappings
            .unmap_mapping_range(range, PrivateCopies::Keep);
        drop(gone);
        Ok(())
    }

    fn reverse_map(&self) -> Option<&ReverseMap> {
        Some(&self.mappings)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn what_is_there_of_a_huge_segment_is_found_at_once() {
        let memory = ShmemObject::default();
        for index in [7, 1 << 40] {
            memory.page(index).unwrap();
        }
        let mut found = Vec::new();
        memory.for_each_cached(0..u64::MAX, &mut |index, _| found.push(index));
        assert_eq!(found, [7, 1 << 40]);
        memory.for_each_cached(8..8, &mut |index, _| {
            panic!("page {index} is not in an empty range")
        });
    }
}
