//! The page cache of a file on a disk: it grows, becomes shorter, and programs map its pages.
//!
//! Its device is the file: the capacity is the size that the file has, or is about to have.

use alloc::sync::Arc;
use core::ops::Range;

use abi::errno::Errno;
use abi::layout::PAGE_SIZE;
use vm::Page;

use super::{Cached, PAGE, PageCache, ReadAhead, State, page_spans};
use crate::{BlockDevice, writeback};

const ZEROS: [u8; 256] = [0; 256];

/// Makes a part of a page zeros.
pub fn zero(page: &Page, part: Range<usize>) {
    for at in part.clone().step_by(ZEROS.len()) {
        page.write(at, &ZEROS[..ZEROS.len().min(part.end - at)]);
    }
}

impl PageCache {
    /// An empty cache of a file. Who makes it has it written back, and pages given back.
    ///
    /// A page that is behind the end when it is to be written is cut off just now: nobody wants
    /// its bytes any more, and that is no error (as on Linux, where truncation and writing back
    /// meet, too).
    #[must_use]
    pub fn of_file(file: Arc<dyn BlockDevice>) -> Arc<Self> {
        Self::with(file, &writeback::FILE_PAGES, Ok(()))
    }

    /// Writes at `offset` to a file of `size` bytes, which the caller makes longer afterwards.
    /// There are blocks for all pages that are touched, and nobody else writes.
    ///
    /// # Errors
    /// The device's, if it had to be read first; `ENOMEM`. What was written before is told instead.
    pub fn write_file(&self, offset: u64, buf: &[u8], size: u64) -> Result<usize, Errno> {
        let mut done = 0;
        for (index, within, range) in page_spans(offset, buf.len()) {
            let bytes = &buf[range.clone()];
            let change = |cached: &mut Cached| {
                cached.page.write(within, bytes);
                cached.is_prepared = true;
                self.mark_dirty(cached);
            };
            // Nothing that the file has of the page is left of it.
            let is_whole =
                within == 0 && (bytes.len() == PAGE_SIZE || offset + range.end as u64 >= size);
            let written = if is_whole || index * PAGE >= size {
                self.with_any_page(index, change)
            } else {
                self.with_page(index, ReadAhead::Off, change)
            };
            match written {
                Ok(()) => done = range.end,
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// Forgets whole pages, dirty ones too, when the device neither reads nor writes them.
    pub fn forget_range(&self, pages: Range<u64>) {
        if pages.is_empty() {
            return;
        }
        let mut contents = self.wait_while_busy(&pages);
        self.forget_in(&mut contents, pages);
    }

    /// Makes bytes zeros where they are in the cache, without making pages dirty.
    pub fn zero_cached(&self, bytes: Range<u64>) {
        let pages = super::pages_of(&bytes);
        let mut contents = self.wait_while_busy(&pages);
        for (index, cached) in contents.pages.range_mut(pages) {
            let start = index * PAGE;
            let from = bytes.start.max(start) - start;
            let end = bytes.end.min(start + PAGE) - start;
            if from < end {
                zero(&cached.page, from as usize..end as usize);
            }
            cached.is_prepared = false;
        }
    }

    /// The file has `size` bytes now: forgets the pages behind, and makes the rest of the last one
    /// zeros.
    pub fn cut_to(&self, size: u64) {
        self.forget_range(size.div_ceil(PAGE)..u64::MAX);
        self.zero_cached(size..size.next_multiple_of(PAGE));
    }

    /// Page `index`, brought in if need be.
    ///
    /// # Errors
    /// The device's; `ENOMEM`.
    pub fn page(&self, index: u64) -> Result<Page, Errno> {
        self.with_page(index, ReadAhead::Sequential(index + 1), |cached| {
            cached.page.clone()
        })
    }

    /// Page `index` if it is in the cache.
    #[must_use]
    pub fn cached(&self, index: u64) -> Option<Page> {
        let mut contents = self.contents.lock();
        let cached = contents.pages.get_mut(&index)?;
        cached.is_referenced = true;
        (cached.state != State::Filling).then(|| cached.page.clone())
    }

    /// Calls `each` with the pages among `range` that are in the cache.
    pub fn for_each_cached(&self, range: Range<u64>, each: &mut dyn FnMut(u64, &Page)) {
        if range.is_empty() {
            return;
        }
        for (&index, cached) in self.contents.lock().pages.range_mut(range) {
            if cached.state != State::Filling {
                cached.is_referenced = true;
                each(index, &cached.page);
            }
        }
    }

    /// Page `index` for a mapping that changes it, and dirty from now on; `None` if it is not in
    /// the cache or [`Self::set_prepared`] was not called.
    #[must_use]
    pub fn cached_for_write(&self, index: u64) -> Option<Page> {
        let mut contents = self.contents.lock();
        let cached = contents.pages.get_mut(&index)?;
        if cached.state == State::Filling || !cached.is_prepared {
            return None;
        }
        cached.is_referenced = true;
        self.mark_dirty(cached);
        Some(cached.page.clone())
    }

    /// Whether it is known that there are blocks for all of some pages: all were written to, or
    /// [`Self::set_prepared`] was called, and they are in the cache.
    #[must_use]
    pub fn is_prepared(&self, pages: Range<u64>) -> bool {
        let contents = self.contents.lock();
        let mut pages = pages;
        pages.all(|index| {
            let cached = contents.pages.get(&index);
            cached.is_some_and(|cached| cached.is_prepared)
        })
    }

    /// Notes that there are blocks for all of page `index`, which is brought in if need be, and
    /// makes it dirty, so that it stays.
    ///
    /// # Errors
    /// As [`Self::page`].
    pub fn set_prepared(&self, index: u64) -> Result<Page, Errno> {
        self.with_page(index, ReadAhead::Sequential(index + 1), |cached| {
            cached.is_prepared = true;
            self.mark_dirty(cached);
            cached.page.clone()
        })
    }
}
