//! Pages of the cache for who copies from them when no lock is held any more.

use core::ops::Range;

use abi::errno::Errno;
use abi::layout::PAGE_SIZE;
use arrayvec::ArrayVec;
use vm::Page;

use super::{PAGE, PageCache, ReadAhead, State, page_spans};

/// Bytes in memory that somebody reads: parts of pages in a row.
///
/// The pages stay while this does, and say what a read at this moment says, or one that is later:
/// who writes to them or cuts the file meanwhile is not waited for.
#[derive(Default)]
pub struct CachedRun {
    /// One more than as many bytes need that begin with a page.
    pages: ArrayVec<Page, { CachedRun::MAX_LEN / PAGE_SIZE + 1 }>,
    /// Offset in the first page.
    within: usize,
    len: usize,
}

impl CachedRun {
    /// Bytes of a run, at most, wherever it begins.
    pub const MAX_LEN: usize = 16 * PAGE_SIZE;

    /// The pages in order, each with the offset of the bytes in it and their place in the run.
    pub fn parts(&self) -> impl Iterator<Item = (&Page, usize, Range<usize>)> {
        page_spans(self.within as u64, self.len)
            .zip(&self.pages)
            .map(|((_, within, range), page)| (page, within, range))
    }
}

impl PageCache {
    /// Reads as [`Self::read`], up to [`CachedRun::MAX_LEN`] bytes, for the caller to copy from the
    /// pages: how many bytes those are. `run` is an empty one.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn read_run(&self, offset: u64, len: usize, run: &mut CachedRun) -> Result<usize, Errno> {
        let len = self.clamp(offset, len.min(CachedRun::MAX_LEN));
        let end = (offset + len as u64).div_ceil(PAGE);
        run.within = (offset % PAGE) as usize;
        let mut next = offset / PAGE;
        let mut contents = self.contents.lock();
        while next < end {
            match contents.pages.get_mut(&next) {
                Some(cached) if cached.state == State::Filling => {
                    contents = self.changed.wait(contents);
                }
                Some(cached) => {
                    cached.is_referenced = true;
                    run.pages.push(cached.page.clone());
                    next += 1;
                }
                None => {
                    drop(contents);
                    match self.fill(next, ReadAhead::Sequential(end)) {
                        Err(error) if run.pages.is_empty() => return Err(error),
                        Err(_) => break,
                        Ok(()) => contents = self.contents.lock(),
                    }
                }
            }
        }
        run.len = len.min((run.pages.len() * PAGE_SIZE).saturating_sub(run.within));
        Ok(run.len)
    }
}
