//! Contents of a regular file: its page cache, and the file as the device of that.

use alloc::sync::{Arc, Weak};
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use ::block::{
    BlockDevice, CachedRun, DirectWrite, ErrorCursor, Limits, Operation, PageCache, Request,
    SECTOR_SIZE, Transfer, writeback,
};
use ::ext4::Ext4;
use abi::errno::Errno;
use abi::layout::PAGE_SIZE;
use linux_raw_sys::general as sys;
use task::{Mutex, RwLock};
use vm::{Page, PrivateCopies, ReverseMap};

use super::Ext4Fs;
use crate::Result;

const PAGE: u64 = PAGE_SIZE as u64;

/// A file as the device of its cache: where its pages are on the disk.
pub(super) struct FileDevice {
    fs: Weak<Ext4Fs>,
    ino: u32,
    size: AtomicU64,
    /// Size that the file has when a write has ended that is under way; otherwise the size.
    end: AtomicU64,
    /// Size in the inode on the disk.
    disk_size: AtomicU64,
    /// Shared by who reads or writes blocks of the file, alone by who takes blocks away.
    layout: RwLock<()>,
    mappings: ReverseMap,
}

/// A part of a transfer that lies together on the disk.
struct Piece {
    /// Number of bytes of the file.
    count: u64,
    /// Page among those of the transfer, and offset in it.
    page: usize,
    within: u64,
}

impl FileDevice {
    fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    fn set_size(&self, size: u64) {
        self.end.store(size, Ordering::Release);
        self.size.store(size, Ordering::Release);
    }

    /// The part of a transfer that begins at `at`, of `len` bytes that lie together: whole pages,
    /// up to the end of the transfer, or within one page.
    fn piece(transfer: &Transfer<'_>, at: u64, len: u64) -> Piece {
        let (done, left) = (
            at - transfer.offset,
            transfer.offset + transfer.len as u64 - at,
        );
        let (within, len) = (done % PAGE, len.min(left));
        let count = if within == 0 && len == left {
            len
        } else if within == 0 && len >= PAGE {
            len - len % PAGE
        } else {
            len.min(PAGE - within)
        };
        Piece {
            count,
            page: (done / PAGE) as usize,
            within,
        }
    }

    fn read(&self, fs: &Ext4Fs, transfer: &Transfer<'_>) -> Result<()> {
        if transfer.pages.is_empty() {
            // The file does not reach there.
            return Err(Errno::EFAULT);
        }
        let _layout = self.layout.read();
        let end = transfer.offset + transfer.len as u64;
        let mut at = transfer.offset;
        while at < end {
            let place = fs.with(|ext4| ext4.mapping(self.ino, at))?;
            let piece = Self::piece(transfer, at, place.len);
            let len = piece.count.next_multiple_of(fs.block_size);
            let pages = &transfer.pages[piece.page..];
            match place.device.filter(|_| !place.is_unwritten) {
                Some(offset) if piece.within == 0 => fs.device.read_pages(offset, len, pages)?,
                Some(offset) => fs.device.read_part(offset, len, &pages[0], piece.within)?,
                None => zero_from(pages, piece.within, len),
            }
            at += piece.count;
        }
        let last = transfer.pages.len() as u64 * PAGE + transfer.offset - PAGE;
        let from = self.size().max(last) - last;
        if from < PAGE
            && let Some(page) = transfer.pages.last()
        {
            ::block::zero(page, from as usize..PAGE_SIZE);
        }
        Ok(())
    }

    fn write(&self, fs: &Ext4Fs, transfer: &Transfer<'_>) -> Result<()> {
        let end = transfer.offset + transfer.len as u64;
        // What programs write from here on is noticed again.
        let pages = transfer.offset / PAGE..end.div_ceil(PAGE);
        self.mappings
            .unmap_mapping_range(pages, PrivateCopies::Keep);
        let _layout = self.layout.read();
        let mut is_new = end > self.disk_size.load(Ordering::Relaxed);
        let mut at = transfer.offset;
        while at < end {
            let place = fs.with(|ext4| {
                let place = ext4.mapping(self.ino, at)?;
                if place.device.is_some() {
                    return Ok(place);
                }
                // The place was taken away behind a mapping's back.
                ext4.prepare_write(self.ino, at, place.len.min(end - at))?;
                ext4.mapping(self.ino, at)
            })?;
            let offset = place.device.ok_or(Errno::EIO)?;
            is_new |= place.is_unwritten;
            let mut piece = Self::piece(transfer, at, place.len);
            let is_last = at + piece.count == end;
            let pages = &transfer.pages[piece.page..];
            // A mapping may have left something behind the end in the last page.
            let rest = piece.count % PAGE;
            if is_last && piece.count > PAGE && rest != 0 {
                piece.count -= rest;
            }
            let len = piece.count.next_multiple_of(fs.block_size);
            if piece.within == 0 && piece.count.is_multiple_of(PAGE) {
                fs.device.write_pages(offset, len, pages)?;
            } else {
                let part = (&pages[0], piece.within);
                fs.device.write_part(offset, len, part, piece.count)?;
            }
            at += piece.count;
        }
        if is_new {
            let (offset, len) = (transfer.offset, transfer.len as u64);
            fs.with(|ext4| ext4.finish_write(self.ino, offset, len, end))?;
            self.disk_size.fetch_max(end, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Makes `len` bytes of pages zeros, from `within` the first one on.
fn zero_from(pages: &[Page], within: u64, len: u64) {
    let end = within + len;
    for (start, page) in (0..).step_by(PAGE_SIZE).zip(pages) {
        let from = within.max(start) - start;
        let until = end.min(start + PAGE).saturating_sub(start);
        if from < until {
            ::block::zero(page, from as usize..until as usize);
        }
    }
}

impl BlockDevice for FileDevice {
    fn capacity(&self) -> u64 {
        self.end.load(Ordering::Acquire)
    }

    fn limits(&self) -> Limits {
        Limits::of_blocks(SECTOR_SIZE as u32)
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn submit(&self, batch: &mut [Request<'_>]) {
        let Some(fs) = self.fs.upgrade() else {
            return;
        };
        for request in batch {
            request.outcome = match &request.operation {
                Operation::Read(transfer) => self.read(&fs, transfer),
                Operation::Write(transfer) => self
                    .write(&fs, transfer)
                    .inspect_err(|&error| fs.errors.lock().record(error)),
                _ => Err(Errno::EOPNOTSUPP),
            };
        }
    }
}

/// Contents of a regular file.
pub(super) struct Contents {
    file: Arc<FileDevice>,
    cache: Arc<PageCache>,
    /// Held by who writes, cuts or preallocates.
    writing: Mutex<()>,
    /// Errors of writing back that mappings were told of.
    told: Mutex<ErrorCursor>,
}

/// Outcome of a change: blocks of 512 bytes that the file has.
pub(super) type Sectors = u64;

impl Contents {
    pub(super) fn new(fs: &Arc<Ext4Fs>, ino: u32, size: u64) -> Self {
        let file = Arc::new(FileDevice {
            fs: Arc::downgrade(fs),
            ino,
            size: AtomicU64::new(size),
            end: AtomicU64::new(size),
            disk_size: AtomicU64::new(size),
            layout: RwLock::new(()),
            mappings: ReverseMap::default(),
        });
        let cache = PageCache::of_file(file.clone());
        let told = Mutex::new(cache.sample_errors());
        Self {
            file,
            cache,
            writing: Mutex::new(()),
            told,
        }
    }

    pub(super) fn cache(&self) -> &Arc<PageCache> {
        &self.cache
    }

    pub(super) fn mappings(&self) -> &ReverseMap {
        &self.file.mappings
    }

    pub(super) fn size(&self) -> u64 {
        self.file.size()
    }

    /// Errors of writing back that no mapping was told of.
    pub(super) fn check_errors(&self) -> Result<()> {
        self.cache.check_errors(&mut self.told.lock())
    }

    pub(super) fn read(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.read_with(offset, buf, PageCache::read)
    }

    fn read_with(
        &self,
        offset: u64,
        buf: &mut [u8],
        read: impl Fn(&PageCache, u64, &mut [u8]) -> Result<usize>,
    ) -> Result<usize> {
        let left = self.size().saturating_sub(offset);
        let len = buf.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        match read(&self.cache, offset, &mut buf[..len]) {
            // It has become shorter meanwhile.
            Err(_) if offset >= self.size() => Ok(0),
            read => read,
        }
    }

    /// Reads for the caller to copy from the cache's pages.
    pub(super) fn read_run(&self, offset: u64, len: usize, run: &mut CachedRun) -> Result<usize> {
        let left = self.size().saturating_sub(offset);
        let len = len.min(usize::try_from(left).unwrap_or(usize::MAX));
        match self.cache.read_run(offset, len, run) {
            // It has become shorter meanwhile.
            Err(_) if offset >= self.size() => Ok(0),
            read => read,
        }
    }

    /// Reads past the cache.
    pub(super) fn read_direct(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.read_with(offset, buf, PageCache::read_direct)
    }

    /// Reads past the cache, into pages of a program's from page `first` on.
    pub(super) fn read_pages(&self, first: u64, pages: &[Page]) -> Result<usize> {
        match self.cache.read_pages(first, pages) {
            // It has become shorter meanwhile.
            Err(_) if first * PAGE >= self.size() => Ok(0),
            // The cache's capacity is ahead of the size while somebody writes behind the end.
            read => read.map(|n| n.min((self.size().saturating_sub(first * PAGE)) as usize)),
        }
    }

    /// Begins to write pages of a program's past the cache, in the place of pages that the file
    /// has; `None` if it has them not, or the cache has one, or there is no room.
    pub(super) fn begin_write<'a>(
        &'a self,
        fs: &Ext4Fs,
        first: u64,
        pages: &'a [Page],
    ) -> Option<(DirectWrite<'a>, Sectors)> {
        let range = first * PAGE..(first + pages.len() as u64) * PAGE;
        // Who takes blocks away waits for the write from here on, not before.
        let _writing = self.writing.lock();
        if range.end > self.size() {
            return None;
        }
        let (until, sectors) = self.prepare(fs, range.clone()).ok()?;
        if until < range.end {
            return None;
        }
        Some((self.cache.begin_write(first, pages)?, sectors))
    }

    /// Has blocks for a range that is going to be written. The offset up to which there are some.
    fn prepare(&self, fs: &Ext4Fs, range: Range<u64>) -> Result<(u64, Sectors)> {
        let len = range.end - range.start;
        let prepare = |ext4: &mut Ext4| {
            let until = ext4.prepare_write(self.file.ino, range.start, len)?;
            Ok((until, ext4.stat(self.file.ino)?.sectors))
        };
        fs.with_room(prepare, |(until, _)| *until < range.end)
    }

    /// Writes at an offset, or behind the end. Where it began, how much was written, and what the
    /// file has where that may have changed.
    pub(super) fn write(
        &self,
        fs: &Ext4Fs,
        offset: Option<u64>,
        buf: &[u8],
    ) -> Result<(u64, usize, Option<Sectors>)> {
        let _writing = self.writing.lock();
        let size = self.size();
        let at = offset.unwrap_or(size);
        let room = usize::try_from(fs.max_size.saturating_sub(at)).unwrap_or(usize::MAX);
        if room == 0 {
            return Err(Errno::EFBIG);
        }
        let buf = &buf[..buf.len().min(room)];
        let end = at + buf.len() as u64;
        // All of the pages that are touched, as they are written back whole.
        let from = at - at % PAGE;
        let until = end.next_multiple_of(PAGE).min(size.max(end));
        // Nobody takes blocks away meanwhile.
        let has_blocks = end <= size && self.cache.is_prepared(from / PAGE..until.div_ceil(PAGE));
        let (until, sectors) = if has_blocks {
            (until, None)
        } else {
            let (until, sectors) = self.prepare(fs, from..until)?;
            (until, Some(sectors))
        };
        if until <= at {
            return Err(Errno::ENOSPC);
        }
        let end = end.min(until);
        if at > size {
            self.cache.zero_cached(size..size.next_multiple_of(PAGE));
        }
        self.file.end.store(size.max(end), Ordering::Release);
        let written = self.cache.write_file(at, &buf[..(end - at) as usize], size);
        let done = *written.as_ref().unwrap_or(&0);
        self.file.set_size(size.max(at + done as u64));
        written.map(|done| (at, done, sectors))
    }

    /// Writes dirty pages back if there are too many: the caller is as fast as the disk then.
    pub(super) fn throttle(&self) {
        if writeback::is_over_limit() {
            self.cache.write_back(0..u64::MAX, u64::MAX);
        }
    }

    pub(super) fn truncate(&self, fs: &Ext4Fs, size: u64) -> Result<()> {
        if size > fs.max_size {
            return Err(Errno::EFBIG);
        }
        let _writing = self.writing.lock();
        let old = self.size();
        if size > old {
            return self.extend(fs, old, size);
        }
        self.file.set_size(size);
        self.cache.cut_to(size);
        let cut = {
            let _layout = self.file.layout.write();
            fs.with(|ext4| ext4.cut_to(self.file.ino, size))
        };
        if cut.is_ok() {
            self.file.disk_size.store(size, Ordering::Relaxed);
        } else {
            self.file.set_size(old);
        }
        self.file
            .mappings
            .unmap_mapping_range(size.div_ceil(PAGE)..u64::MAX, PrivateCopies::Unmap);
        cut
    }

    /// Makes the file longer; what is added is zeros.
    fn extend(&self, fs: &Ext4Fs, old: u64, size: u64) -> Result<()> {
        self.cache.zero_cached(old..old.next_multiple_of(PAGE));
        fs.with(|ext4| ext4.truncate(self.file.ino, size))?;
        self.file.disk_size.store(size, Ordering::Relaxed);
        self.file.set_size(size);
        Ok(())
    }

    pub(super) fn fallocate(&self, fs: &Ext4Fs, mode: u32, offset: u64, len: u64) -> Result<()> {
        const KEEP: u32 = sys::FALLOC_FL_KEEP_SIZE;
        const PUNCH: u32 = sys::FALLOC_FL_PUNCH_HOLE | KEEP;
        const ZERO: u32 = sys::FALLOC_FL_ZERO_RANGE;
        let end = offset.checked_add(len).filter(|&end| end <= fs.max_size);
        let end = end.ok_or(Errno::EFBIG)?;
        let _writing = self.writing.lock();
        match mode {
            PUNCH => self.punch(fs, offset..end),
            0 | KEEP => self.preallocate(fs, offset..end, mode == KEEP),
            _ if mode & !KEEP == ZERO => {
                self.punch(fs, offset..end)?;
                self.preallocate(fs, offset..end, mode & KEEP != 0)
            }
            _ => Err(Errno::EOPNOTSUPP),
        }
    }

    fn preallocate(&self, fs: &Ext4Fs, range: Range<u64>, keeps_size: bool) -> Result<()> {
        let (until, _) = self.prepare(fs, range.clone())?;
        if until < range.end {
            return Err(Errno::ENOSPC);
        }
        let size = self.size();
        if keeps_size || range.end <= size {
            return Ok(());
        }
        self.extend(fs, size, range.end)
    }

    fn punch(&self, fs: &Ext4Fs, range: Range<u64>) -> Result<()> {
        let whole = range.start.div_ceil(PAGE)..range.end / PAGE;
        self.cache.write_range(range.clone());
        self.cache.forget_range(whole.clone());
        {
            let _layout = self.file.layout.write();
            let len = range.end - range.start;
            fs.with(|ext4| ext4.punch(self.file.ino, range.start, len))?;
        }
        // What was read meanwhile goes again.
        self.cache.forget_range(whole.clone());
        self.cache.zero_cached(range);
        if !whole.is_empty() {
            self.file
                .mappings
                .unmap_mapping_range(whole, PrivateCopies::Keep);
        }
        Ok(())
    }

    /// The next data or hole at or behind an offset. What is preallocated is a hole.
    pub(super) fn seek(&self, fs: &Ext4Fs, offset: u64, hole: bool) -> Result<u64> {
        self.cache.write_range(0..u64::MAX);
        let (size, mut at) = (self.size(), offset);
        if at >= size {
            return Err(Errno::ENXIO);
        }
        while at < size {
            let place = fs.with(|ext4| ext4.mapping(self.file.ino, at))?;
            if (place.device.is_none() || place.is_unwritten) == hole {
                return Ok(at);
            }
            at = at.saturating_add(place.len);
        }
        if hole { Ok(size) } else { Err(Errno::ENXIO) }
    }

    fn has_page(&self, index: u64) -> bool {
        index < self.size().div_ceil(PAGE)
    }

    /// Page `index` for a mapping.
    pub(super) fn page(&self, index: u64) -> Result<Page> {
        if self.has_page(index) {
            self.cache.page(index)
        } else {
            Err(Errno::EFAULT)
        }
    }

    pub(super) fn cached(&self, index: u64) -> Option<Page> {
        self.cache.cached(index).filter(|_| self.has_page(index))
    }

    pub(super) fn cached_for_write(&self, index: u64) -> Option<Page> {
        if self.has_page(index) {
            self.cache.cached_for_write(index)
        } else {
            None
        }
    }

    pub(super) fn for_each_cached(&self, range: Range<u64>, each: &mut dyn FnMut(u64, &Page)) {
        let end = range.end.min(self.size().div_ceil(PAGE));
        self.cache
            .for_each_cached(range.start..end.max(range.start), each);
    }

    /// Page `index` for a mapping that is going to write to it: with blocks.
    pub(super) fn page_for_write(&self, fs: &Ext4Fs, index: u64) -> Result<(Page, Sectors)> {
        let _writing = self.writing.lock();
        let (from, size) = (index.saturating_mul(PAGE), self.size());
        if from >= size {
            return Err(Errno::EFAULT);
        }
        let end = size.min(from + PAGE);
        let (until, sectors) = self.prepare(fs, from..end)?;
        if until < end {
            return Err(Errno::ENOSPC);
        }
        Ok((self.cache.set_prepared(index)?, sectors))
    }
}
