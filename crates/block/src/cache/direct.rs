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

use super::{PAGE, PageCache, State, new_pages, page_spans, pages_of, transfer};
use crate::{ErrorCursor, Operation};

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
        let missing = {
            let contents = self.settled(first);
            if let Some(cached) = contents.pages.get(&first) {
                let within = (offset % PAGE) as usize;
                let n = buf.len().min(PAGE_SIZE - within);
                cached.page.read(within, &mut buf[..n]);
                return Ok(n);
            }
            let wanted = (first..end.div_ceil(PAGE)).take(super::MAX_PAGES);
            wanted
                .take_while(|index| !contents.pages.contains_key(index))
                .count()
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
