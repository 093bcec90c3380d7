//! The contents of one file: pages where something was written, nothing where nothing was.

use alloc::collections::BTreeMap;
use alloc::collections::btree_map::Entry;
use alloc::sync::{Arc, Weak};
use core::ops::{Bound, Range};
use core::sync::atomic::{AtomicU64, Ordering};

use abi::errno::Errno;
use linux_raw_sys::general as sys;
use task::Mutex;
use vm::{Page, PageMover};

use super::{MAX_SIZE, PAGE_SIZE, RamFsInfo};
use crate::Result;

pub(super) struct Contents {
    info: Arc<RamFsInfo>,
    data: Arc<Mutex<Data>>,
}

/// Contents of all files that had a page once, by numbers that are not used again: for pages that
/// are to be moved.
static WITH_PAGES: Mutex<BTreeMap<u64, Weak<Mutex<Data>>>> = Mutex::new(BTreeMap::new());

/// Moves pages of files in memory that nobody has but the file.
pub fn move_pages_of_files(mover: &PageMover<'_>) {
    let mut last = 0;
    loop {
        let next = {
            let all = WITH_PAGES.lock();
            let mut higher = all.range((Bound::Excluded(last), Bound::Unbounded));
            higher
                .next()
                .map(|(number, data)| (*number, data.upgrade()))
        };
        let Some((number, data)) = next else { return };
        last = number;
        if let Some(data) = data {
            let mut data = data.lock();
            data.pages
                .values_mut()
                .for_each(|page| mover.move_sole(page));
        }
    }
}

#[derive(Default)]
struct Data {
    size: u64,
    /// Number in [`WITH_PAGES`]; 0 before there was a page.
    number: u64,
    /// By index. What is beyond the end within the last page is always zero, so growing a file
    /// needs no clearing.
    pages: BTreeMap<u64, Page>,
}

impl Data {
    #[inline(always)]
    fn page(&mut self, index: u64, shared: &RamFsInfo) -> Result<&Page> {
        match self.pages.entry(index) {
            Entry::Occupied(entry) => Ok(entry.into_mut()),
            Entry::Vacant(entry) => {
                shared.charge_pages(1)?;
                let page = vm::has_room(PAGE_SIZE as usize)
                    .then(Page::zeroed)
                    .flatten()
                    .ok_or(Errno::ENOSPC)
                    .inspect_err(|_| shared.uncharge_pages(1))?;
                Ok(entry.insert(page))
            }
        }
    }

    /// Zeroes a range that lies within existing pages or holes; whole pages are given back.
    fn punch_range(&mut self, start: u64, end: u64, shared: &RamFsInfo) {
        let (first_whole, end_whole) = (start.div_ceil(PAGE_SIZE), end / PAGE_SIZE);
        let clear = |from: u64, to: u64| {
            if let Some(page) = self.pages.get(&(from / PAGE_SIZE))
                && from < to
            {
                zero(page, (from % PAGE_SIZE) as usize, (to - from) as usize);
            }
        };
        if first_whole > end_whole {
            // Within one page.
            clear(start, end);
            return;
        }
        clear(start, first_whole * PAGE_SIZE);
        clear(end_whole * PAGE_SIZE, end);
        let mut doomed = self.pages.split_off(&first_whole);
        let mut behind = doomed.split_off(&end_whole);
        self.pages.append(&mut behind);
        shared.uncharge_pages(doomed.len() as u64);
    }
}

fn zero(page: &Page, offset: usize, len: usize) {
    const ZEROS: [u8; 256] = [0; 256];
    let mut done = 0;
    while done < len {
        let n = (len - done).min(ZEROS.len());
        page.write(offset + done, &ZEROS[..n]);
        done += n;
    }
}

/// The parts of `offset..offset + len` that lie in one page each: index, offset in the page, range
/// in the buffer.
fn page_spans(
    offset: u64,
    len: usize,
) -> impl Iterator<Item = (u64, usize, core::ops::Range<usize>)> {
    let mut done = 0;
    core::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let at = offset + done as u64;
        let within = (at % PAGE_SIZE) as usize;
        let n = (len - done).min(PAGE_SIZE as usize - within);
        let range = done..done + n;
        done += n;
        Some((at / PAGE_SIZE, within, range))
    })
}

impl Contents {
    pub(super) fn new(shared: Arc<RamFsInfo>) -> Self {
        Self {
            info: shared,
            data: Arc::default(),
        }
    }

    /// Size in bytes, pages allocated.
    pub(super) fn size_and_pages(&self) -> (u64, u64) {
        let data = self.data.lock();
        (data.size, data.pages.len() as u64)
    }

    pub(super) fn read(&self, offset: u64, buf: &mut [u8]) -> usize {
        let data = self.data.lock();
        let len = usize::try_from(data.size.saturating_sub(offset))
            .unwrap_or(usize::MAX)
            .min(buf.len());
        for (index, within, range) in page_spans(offset, len) {
            match data.pages.get(&index) {
                Some(page) => page.read(within, &mut buf[range]),
                None => buf[range].fill(0),
            }
        }
        len
    }

    /// Writes at `offset`, or behind the end. Returns where it began and how much was written.
    pub(super) fn write(&self, offset: Option<u64>, buf: &[u8]) -> Result<(u64, usize)> {
        let mut data = self.data.lock();
        let offset = offset.unwrap_or(data.size);
        let room = usize::try_from(MAX_SIZE.saturating_sub(offset)).unwrap_or(usize::MAX);
        if room == 0 {
            return Err(Errno::EFBIG);
        }
        let mut done = 0;
        self.note_pages(&mut data);
        for (index, within, range) in page_spans(offset, buf.len().min(room)) {
            match data.page(index, &self.info) {
                Ok(page) => page.write(within, &buf[range.clone()]),
                Err(e) if done == 0 => return Err(e),
                Err(_) => break,
            }
            done = range.end;
        }
        data.size = data.size.max(offset + done as u64);
        Ok((offset, done))
    }

    /// Notes that there are pages from now on.
    fn note_pages(&self, data: &mut Data) {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        if data.number == 0 {
            data.number = NEXT.fetch_add(1, Ordering::Relaxed);
            let contents = Arc::downgrade(&self.data);
            WITH_PAGES.lock().insert(data.number, contents);
        }
    }

    /// See [`crate::Inode::insert_page`].
    pub(super) fn insert_page(&self, offset: u64, page: Page) -> Result<()> {
        let end = offset
            .checked_add(PAGE_SIZE)
            .filter(|&end| end <= MAX_SIZE && offset.is_multiple_of(PAGE_SIZE))
            .ok_or(Errno::EFBIG)?;
        let mut data = self.data.lock();
        self.info.charge_pages(1)?;
        self.note_pages(&mut data);
        if data.pages.insert(offset / PAGE_SIZE, page).is_some() {
            self.info.uncharge_pages(1);
        }
        data.size = data.size.max(end);
        Ok(())
    }

    /// Changes the size; true if it is smaller now.
    pub(super) fn truncate(&self, size: u64) -> bool {
        let mut data = self.data.lock();
        let smaller = size < data.size;
        if smaller {
            let end = data.size.next_multiple_of(PAGE_SIZE);
            data.punch_range(size, end, &self.info);
        }
        data.size = size;
        smaller
    }

    pub(super) fn fallocate(&self, mode: u32, offset: u64, len: u64) -> Result<()> {
        const PUNCH: u32 = sys::FALLOC_FL_PUNCH_HOLE | sys::FALLOC_FL_KEEP_SIZE;
        let end = offset
            .checked_add(len)
            .filter(|&end| end <= MAX_SIZE)
            .ok_or(Errno::EFBIG)?;
        let mut data = self.data.lock();
        match mode {
            0 | sys::FALLOC_FL_KEEP_SIZE => {
                let wanted = end.div_ceil(PAGE_SIZE) - offset / PAGE_SIZE;
                let present = data
                    .pages
                    .range(offset / PAGE_SIZE..end.div_ceil(PAGE_SIZE))
                    .count() as u64;
                // A request that cannot be met in full is refused before memory is taken for a part
                // of it.
                self.info.charge_pages(wanted - present)?;
                self.info.uncharge_pages(wanted - present);
                self.note_pages(&mut data);
                for index in offset / PAGE_SIZE..end.div_ceil(PAGE_SIZE) {
                    data.page(index, &self.info)?;
                }
                if mode == 0 {
                    data.size = data.size.max(end);
                }
                Ok(())
            }
            PUNCH => {
                data.punch_range(offset, end, &self.info);
                Ok(())
            }
            _ => Err(Errno::EOPNOTSUPP),
        }
    }

    pub(super) fn seek_extent(&self, offset: u64, hole: bool) -> Result<u64> {
        let data = self.data.lock();
        if offset >= data.size {
            return Err(Errno::ENXIO);
        }
        let mut index = offset / PAGE_SIZE;
        if hole {
            for (&present, _) in data.pages.range(index..) {
                if present != index {
                    break;
                }
                index += 1;
            }
        } else {
            index = *data.pages.range(index..).next().ok_or(Errno::ENXIO)?.0;
        }
        let at = offset.max(index * PAGE_SIZE);
        if at < data.size || hole {
            Ok(at.min(data.size))
        } else {
            Err(Errno::ENXIO)
        }
    }

    /// The page that a mapping shows at `index`; it is made if the file has a hole there.
    pub(super) fn page(&self, index: u64) -> Result<Page> {
        let mut data = self.data.lock();
        if index >= data.size.div_ceil(PAGE_SIZE) {
            // Beyond the end: SIGBUS.
            return Err(Errno::EFAULT);
        }
        self.note_pages(&mut data);
        data.page(index, &self.info).cloned()
    }

    /// Calls `each` with the pages among `range` that there are.
    pub(super) fn for_each_cached(&self, range: Range<u64>, each: &mut dyn FnMut(u64, &Page)) {
        let data = self.data.lock();
        let end = range.end.min(data.size.div_ceil(PAGE_SIZE));
        if range.start < end {
            data.pages
                .range(range.start..end)
                .for_each(|(&index, page)| each(index, page));
        }
    }

    /// The same page if there is one.
    pub(super) fn cached(&self, index: u64) -> Option<Page> {
        let data = self.data.lock();
        if index < data.size.div_ceil(PAGE_SIZE) {
            data.pages.get(&index).cloned()
        } else {
            None
        }
    }
}

impl Drop for Contents {
    fn drop(&mut self) {
        let (number, pages) = {
            let data = self.data.lock();
            (data.number, data.pages.len() as u64)
        };
        if number != 0 {
            WITH_PAGES.lock().remove(&number);
        }
        self.info.uncharge_pages(pages);
    }
}
