//! Transfers past the cache (`O_DIRECT`): it keeps nothing of them, and what it has stays true.
//!
//! They are not made past what is in memory. A page that somebody has mapped, or has written to and
//! not yet to the device, is the newest there is: a read takes it from there, and a write changes
//! it, too. So cached and direct transfers and mappings of one file see each other's bytes, which
//! Linux promises for some orders of them only.

use core::ops::Range;

use abi::errno::Errno;
use abi::layout::PAGE_SIZE;
use task::Mutex;
use vm::Page;

use super::{PAGE, PageCache, State, new_pages, page_spans, pages_of, transfer};
use crate::{ErrorCursor, Operation, account};

impl PageCache {
    /// Reads from `offset` on, and keeps nothing; 0 at or behind the end.
    ///
    /// # Errors
    /// The device's; `ENOMEM`. What was read before is told instead.
    pub fn read_direct(&self, offset: u64, buf: &mut [u8]) -> Result<usize, Errno> {
        let len = self.clamp(offset, buf.len());
        let mut done = 0;
        while done < len {
            match self.read_some(offset + done as u64, &mut buf[done..len]) {
                Ok(n) => done += n,
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// Reads the rest of a page that is in the cache, or pages in a row that are not, by one
    /// request.
    fn read_some(&self, offset: u64, buf: &mut [u8]) -> Result<usize, Errno> {
        let (first, end) = (offset / PAGE, offset + buf.len() as u64);
        let missing = match self.look(first..end.div_ceil(PAGE)) {
            Found::Cached(page) => {
                let within = (offset % PAGE) as usize;
                let n = buf.len().min(PAGE_SIZE - within);
                page.read(within, &mut buf[..n]);
                return Ok(n);
            }
            Found::Missing(count) => count,
        };
        let pages = new_pages(missing)?;
        let capacity = self.device.capacity();
        self.device
            .execute(Operation::Read(transfer(first, &pages, capacity)))?;
        let mut done = 0;
        for ((_, within, range), page) in page_spans(offset, buf.len()).zip(&pages) {
            page.read(within, &mut buf[range.clone()]);
            done = range.end;
        }
        Ok(done)
    }

    /// Reads from page `first` on into pages of the caller's, and keeps nothing; 0 at or behind the
    /// end, up to which bytes count. What is behind it in the last page may be anything.
    ///
    /// # Errors
    /// The device's. What was read before is told instead.
    pub fn read_pages(&self, first: u64, pages: &[Page]) -> Result<usize, Errno> {
        let len = self.clamp(first * PAGE, pages.len() * PAGE_SIZE);
        let wanted = &pages[..len.div_ceil(PAGE_SIZE)];
        let mut done = 0;
        while let Some(rest) = wanted.get(done..).filter(|rest| !rest.is_empty()) {
            let next = first + done as u64;
            done += match self.look(next..next + rest.len() as u64) {
                Found::Cached(page) => {
                    rest[0].copy_from(&page);
                    1
                }
                Found::Missing(count) => {
                    let transfer = transfer(next, &rest[..count], self.device.capacity());
                    match self.device.execute(Operation::Read(transfer)) {
                        Ok(()) => count,
                        Err(error) if done == 0 => return Err(error),
                        Err(_) => return Ok(done * PAGE_SIZE),
                    }
                }
            };
        }
        Ok(len)
    }

    /// The first of some pages, or how many from there on are not in the cache: as many as a
    /// request has, at most.
    fn look(&self, pages: Range<u64>) -> Found {
        let contents = self.settled(pages.start);
        if let Some(cached) = contents.pages.get(&pages.start) {
            return Found::Cached(cached.page.clone());
        }
        let missing = pages
            .take(super::MAX_PAGES)
            .take_while(|index| !contents.pages.contains_key(index));
        Found::Missing(missing.count())
    }

    /// Begins to write pages of the caller's in the place of those from `first` on, past the cache.
    /// Who wants these waits until that has ended. `None` if the cache has any of them, or they are
    /// not all on the device: then [`Self::write`] and [`Self::write_through`] do it.
    #[must_use]
    pub fn begin_write<'a>(&'a self, first: u64, pages: &'a [Page]) -> Option<DirectWrite<'a>> {
        let behind = first + pages.len() as u64;
        let mut contents = self.contents.lock();
        let is_on_device = behind * PAGE <= self.device.capacity();
        if !is_on_device || contents.pages.range(first..behind).next().is_some() {
            return None;
        }
        for (index, page) in (first..).zip(pages) {
            contents.insert(index, page.clone(), State::Filling);
        }
        Some(DirectWrite {
            cache: self,
            first,
            pages,
        })
    }

    /// Brings a range of bytes, which the caller has just written, to the device, and keeps none of
    /// its pages but those that somebody has mapped or writes to. `told` is the opener's.
    ///
    /// # Errors
    /// The device's, of which the opener counts as told. If others have written pages of the range
    /// back meanwhile, it may be an error of another page, of which the opener was not told yet.
    pub fn write_through(&self, bytes: Range<u64>, told: &Mutex<ErrorCursor>) -> Result<(), Errno> {
        let pages = pages_of(&bytes);
        let outcome = self.write_pages(pages.clone());
        let all = (pages.end - pages.start) as usize;
        self.contents.lock().remove_if(pages, usize::MAX, |cached| {
            cached.state == State::Clean && cached.page.refs() == 1
        });
        if outcome == Ok(all) {
            return Ok(());
        }
        let noted = self.check_errors(&mut told.lock());
        outcome.and(noted)
    }
}

/// Answer of the cache to a read past it, at a page.
enum Found {
    /// The page is in the cache.
    Cached(Page),
    /// Number of pages from there on that the cache does not have.
    Missing(usize),
}

/// Pages that a write past the cache is about to replace: until it is dropped they count as being
/// filled, by the caller's pages.
pub struct DirectWrite<'a> {
    cache: &'a PageCache,
    first: u64,
    pages: &'a [Page],
}

impl DirectWrite<'_> {
    /// Writes them: how many bytes that was. `told` is the opener's.
    ///
    /// # Errors
    /// The device's, of which the opener counts as told.
    pub fn finish(self, told: &Mutex<ErrorCursor>) -> Result<usize, Errno> {
        let len = self.pages.len() * PAGE_SIZE;
        account::note_dirty(len as u64);
        let cache = self.cache;
        let transfer = transfer(self.first, self.pages, cache.device.capacity());
        let mut outcome = cache.device.execute(Operation::Write(transfer));
        // It has become shorter just now.
        if transfer.len < len {
            outcome = outcome.and(cache.beyond_end);
        }
        if let Err(error) = outcome {
            cache.contents.lock().errors.record(error);
        }
        drop(self);
        if outcome.is_err() {
            let noted = cache.check_errors(&mut told.lock());
            outcome.and(noted)?;
        }
        Ok(len)
    }
}

impl Drop for DirectWrite<'_> {
    fn drop(&mut self) {
        let pages = self.first..self.first + self.pages.len() as u64;
        let mut contents = self.cache.contents.lock();
        contents.remove_if(pages, usize::MAX, |cached| cached.state == State::Filling);
        self.cache.changed.notify_all(&contents);
    }
}
