//! The disk as the file system sees it: past the cache of the disk, which is kept from disagreeing.

use ::block::{Operation, Transfer};
use abi::errno::Errno;
use abi::layout::PAGE_SIZE;
use arrayvec::ArrayVec;
use task::Mutex;
use vm::Page;

use crate::Result;
use crate::block::DiskClaim;

/// Pages of the buffer through which metadata goes.
const BUFFER_PAGES: usize = 32;
/// Most bytes of metadata in a request: what is around a part of a disk's block fits in, too.
const MAX_BYTES: usize = (BUFFER_PAGES - 2) * PAGE_SIZE;
const PAGE: u64 = PAGE_SIZE as u64;

/// A disk that a file system has.
pub(super) struct DiskDevice {
    claim: DiskClaim,
    /// Made at the beginning, as who writes back may have no memory.
    buffer: Mutex<ArrayVec<Page, BUFFER_PAGES>>,
}

/// Bytes of a buffer in pages, a page's part each: the number of the page, the offset in it, the
/// range in the buffer.
fn parts(skip: usize, len: usize) -> impl Iterator<Item = (usize, usize, core::ops::Range<usize>)> {
    let mut done = 0;
    core::iter::from_fn(move || {
        let at = skip + done;
        let count = (len - done).min(PAGE_SIZE - at % PAGE_SIZE);
        let range = done..done + count;
        done += count;
        (count > 0).then_some((at / PAGE_SIZE, at % PAGE_SIZE, range))
    })
}

impl DiskDevice {
    /// The disk of a claim, with what programs wrote to it.
    pub(super) fn new(claim: DiskClaim) -> Result<Self> {
        claim.disk().cache().sync();
        let mut buffer = ArrayVec::new();
        for _ in 0..BUFFER_PAGES {
            buffer.push(Page::zeroed().ok_or(Errno::ENOMEM)?);
        }
        Ok(Self {
            claim,
            buffer: Mutex::new(buffer),
        })
    }

    /// Says that the file system is not mounted any more.
    pub(super) fn leave(&self) {
        self.claim.leave();
    }

    /// Bytes of a block of the disk.
    pub(super) fn logical_block(&self) -> u32 {
        self.claim.disk().device().limits().logical_block
    }

    /// Fills pages from the disk.
    pub(super) fn read_pages(&self, offset: u64, len: u64, pages: &[Page]) -> Result<()> {
        let disk = self.claim.disk();
        disk.cache().write_range(offset..offset + len);
        disk.device().execute(Operation::Read(Transfer {
            offset,
            len: len as usize,
            pages,
        }))
    }

    /// Writes pages to the disk.
    pub(super) fn write_pages(&self, offset: u64, len: u64, pages: &[Page]) -> Result<()> {
        self.put_pages(offset, len, pages, Way::Cache)
    }

    fn put_pages(&self, offset: u64, len: u64, pages: &[Page], way: Way) -> Result<()> {
        let disk = self.claim.disk();
        let transfer = Transfer {
            offset,
            len: len as usize,
            pages,
        };
        disk.cache().bypass(offset..offset + len, || match way {
            Way::Cache => disk.device().execute(Operation::Write(transfer)),
            Way::Medium => disk.device().write_through(transfer),
        })
    }

    /// Writes bytes that lie in memory in several places.
    fn write_bytes(&self, offset: u64, bytes: &[&[u8]], way: Way) -> Result<()> {
        let buffer = self.buffer.lock();
        let (mut rest, total) = (bytes.iter(), bytes.iter().map(|part| part.len()).sum());
        let mut part: &[u8] = &[];
        for done in (0..total).step_by(MAX_BYTES) {
            let (at, count) = (offset + done as u64, MAX_BYTES.min(total - done));
            let (start, len) = self.around(at, count);
            let pages = &buffer[..len.div_ceil(PAGE) as usize];
            if len != count as u64 {
                self.read_pages(start, len, pages)?;
            }
            for (page, mut within, range) in parts((at - start) as usize, count) {
                let mut left = range.len();
                while left > 0 {
                    if part.is_empty() {
                        part = rest.next().ok_or(Errno::EIO)?;
                    }
                    let (now, later) = part.split_at(left.min(part.len()));
                    pages[page].write(within, now);
                    (within, left, part) = (within + now.len(), left - now.len(), later);
                }
            }
            self.put_pages(start, len, pages, way)?;
        }
        Ok(())
    }

    /// Fills the part of a page from `within` on.
    pub(super) fn read_part(&self, offset: u64, len: u64, page: &Page, within: u64) -> Result<()> {
        let buffer = self.buffer.lock();
        self.read_pages(offset, len, &buffer[..1])?;
        copy((&buffer[0], 0), (page, within), len);
        Ok(())
    }

    /// Writes the part of a page from `within` on, of which only `kept` bytes count: what is behind
    /// becomes zeros.
    pub(super) fn write_part(
        &self,
        offset: u64,
        len: u64,
        (page, within): (&Page, u64),
        kept: u64,
    ) -> Result<()> {
        let buffer = self.buffer.lock();
        copy((page, within), (&buffer[0], 0), kept.min(len));
        ::block::zero(&buffer[0], kept.min(len) as usize..len as usize);
        self.write_pages(offset, len, &buffer[..1])
    }

    /// Bounds of the disk's blocks that hold a range.
    fn around(&self, offset: u64, len: usize) -> (u64, u64) {
        let block = u64::from(self.logical_block());
        let start = offset - offset % block;
        let end = (offset + len as u64).next_multiple_of(block);
        (start, end - start)
    }
}

/// How far bytes are written.
#[derive(Clone, Copy)]
enum Way {
    /// To the disk, which may keep them in its cache.
    Cache,
    /// To the medium.
    Medium,
}

/// Copies bytes from a place in a page to a place in another.
fn copy((from, from_at): (&Page, u64), (to, to_at): (&Page, u64), len: u64) {
    const PIECE: usize = 256;
    let mut bytes = [0; PIECE];
    for at in (0..len as usize).step_by(PIECE) {
        let piece = &mut bytes[..PIECE.min(len as usize - at)];
        from.read(from_at as usize + at, piece);
        to.write(to_at as usize + at, piece);
    }
}

impl ::ext4::Device for DiskDevice {
    fn size(&self) -> u64 {
        self.claim.disk().device().capacity()
    }

    fn is_read_only(&self) -> bool {
        self.claim.disk().device().is_read_only()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let buffer = self.buffer.lock();
        for (n, chunk) in buf.chunks_mut(MAX_BYTES).enumerate() {
            let at = offset + (n * MAX_BYTES) as u64;
            let (start, len) = self.around(at, chunk.len());
            let pages = &buffer[..len.div_ceil(PAGE) as usize];
            self.read_pages(start, len, pages)?;
            for (page, within, range) in parts((at - start) as usize, chunk.len()) {
                pages[page].read(within, &mut chunk[range]);
            }
        }
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.write_bytes(offset, &[bytes], Way::Cache)
    }

    fn write_parts(&self, offset: u64, parts: &[&[u8]]) -> Result<()> {
        self.write_bytes(offset, parts, Way::Cache)
    }

    fn write_through(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.write_bytes(offset, &[bytes], Way::Medium)
    }

    fn flush(&self) -> Result<()> {
        self.claim.disk().device().execute(Operation::Flush)
    }
}
