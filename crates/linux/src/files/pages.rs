//! Transfers without a buffer between: by pages of the program's (`O_DIRECT`), and from pages of
//! the file's (`docs/block.md`, "Pages of programs" and "Reading").

use abi::errno::Errno;
use abi::layout::PAGE_SIZE;
use block::CachedRun;
use fs::File;
use uapi::user_addr::UserAddr;
use vm::{AccessKind, AddressSpace, LentPages, MAX_LENT};

use super::read_write::move_back;
use crate::uio::{UserBuf, for_each_segment};
use crate::{SysResult, Task, uaccess};

/// A part of a transfer that was tried.
pub(super) struct Transfer {
    /// Bytes that it was to transfer.
    len: usize,
    /// How many it did.
    outcome: Result<usize, Errno>,
}

impl Transfer {
    /// How much of a call that wants `wanted` bytes is done after this part, which came behind
    /// `done`; or the result of the call, if it ends with it.
    pub(super) fn goes_on(self, done: usize, wanted: usize) -> Result<usize, SysResult> {
        match self.outcome {
            Ok(n) if n == self.len && done + n < wanted => Ok(done + n),
            Ok(n) => Err(Ok(done + n)),
            Err(error) if done == 0 => Err(Err(error)),
            Err(_) => Err(Ok(done)),
        }
    }
}

/// Adds the pages of `len` bytes of the caller's buffers from `done` on to those that are lent;
/// `None` if they are not whole pages, or may not be lent.
fn lend(
    space: &AddressSpace,
    buffers: &[UserBuf],
    (done, len): (usize, usize),
    access: AccessKind,
    lent: &mut LentPages,
) -> Option<()> {
    let lent_all = for_each_segment(buffers, done, len, |addr, range| {
        let len = range.len();
        let is_whole = addr.page_offset() == 0 && len.is_multiple_of(PAGE_SIZE);
        if is_whole && space.lend(addr.raw(), len, access, lent) {
            Ok(())
        } else {
            Err(Errno::EFAULT)
        }
    });
    lent_all.ok()
}

/// Bytes of the next part: whole pages, as many as a request has.
fn part_len(left: usize) -> Option<usize> {
    let len = (left - left % PAGE_SIZE).min(MAX_LENT * PAGE_SIZE);
    (len > 0).then_some(len)
}

/// Reads the next part into the caller's buffers, of `wanted` bytes, from `done` on, from as far
/// behind `offset` or (`None`) from the position; `None` if that takes a copy.
pub(super) fn read_direct(
    task: &Task,
    file: &File,
    buffers: &[UserBuf],
    offset: Option<u64>,
    done: usize,
    wanted: usize,
) -> Option<Transfer> {
    let len = part_len(wanted - done)?;
    let space = task.process().space()?;
    let mut lent = LentPages::default();
    lend(&space, buffers, (done, len), AccessKind::Write, &mut lent)?;
    let at = offset.map(|offset| offset + done as u64);
    let outcome = file.read_pages(at, &lent)?.and_then(|n| {
        let delivered = deliver(&space, buffers, done, &lent, n);
        settle(file, offset, n, delivered)
    });
    Some(Transfer { len, outcome })
}

/// Outcome of a part of which `read` bytes were read, and so many of them reached the caller: the
/// others are as unread as before.
fn settle(file: &File, offset: Option<u64>, read: usize, delivered: usize) -> Result<usize, Errno> {
    if delivered < read {
        move_back(file, offset, read - delivered);
        if delivered == 0 {
            return Err(Errno::EFAULT);
        }
    }
    Ok(delivered)
}

/// Copies the next part from pages of the file's to the caller's buffers, as [`read_direct`] reads
/// it; `None` if the file has none.
pub(super) fn read_cached(
    file: &File,
    buffers: &[UserBuf],
    offset: Option<u64>,
    done: usize,
    wanted: usize,
) -> Option<Transfer> {
    let len = (wanted - done).min(CachedRun::MAX_LEN);
    let mut run = CachedRun::default();
    let at = offset.map(|offset| offset + done as u64);
    let outcome = file.read_run(at, len, &mut run)?.and_then(|n| {
        // No lock is held: a fault may need this file, and this page.
        let delivered = copy_out_run(buffers, done, &run);
        settle(file, offset, n, delivered)
    });
    Some(Transfer { len, outcome })
}

/// Copies a run to the caller's buffers, from byte `done` of them on, until one cannot be written
/// to: how much that is.
fn copy_out_run(buffers: &[UserBuf], done: usize, run: &CachedRun) -> usize {
    let mut copied = 0;
    for (page, within, range) in run.parts() {
        let whole = for_each_segment(buffers, done + range.start, range.len(), |addr, part| {
            let n = uaccess::write_page_partial(addr, page, within + part.start, part.len());
            copied += n;
            if n == part.len() {
                Ok(())
            } else {
                Err(Errno::EFAULT)
            }
        });
        if whole.is_err() {
            break;
        }
    }
    copied
}

/// Sees that the first `len` bytes that were read are where the caller's buffers are now: how many
/// of them are. Another page may have come to be there while the device wrote to the one that was
/// lent; then it gets the bytes, as if all had been copied.
fn deliver(
    space: &AddressSpace,
    buffers: &[UserBuf],
    done: usize,
    lent: &LentPages,
    len: usize,
) -> usize {
    let mut pages = lent.iter();
    let mut delivered = 0;
    let mut page_at = |addr: UserAddr, len: usize| {
        let Some(page) = pages.next() else {
            return Err(Errno::EFAULT);
        };
        if !space.has_page(addr.raw(), page) && page.read_to_user(0, addr.raw(), len).is_err() {
            return Err(Errno::EFAULT);
        }
        delivered += len;
        Ok(())
    };
    // It ends early at a page that is not there; how far it came is what counts.
    let _ended = for_each_segment(buffers, done, len, |addr, range| {
        let mut parts = (0..range.len()).step_by(PAGE_SIZE);
        parts.try_for_each(|at| page_at(addr.wrapping_add(at), PAGE_SIZE.min(range.len() - at)))
    });
    delivered
}

/// Writes the next part of the caller's buffers, as [`read_direct`] reads it.
pub(super) fn write_direct(
    task: &Task,
    file: &File,
    buffers: &[UserBuf],
    offset: Option<u64>,
    done: usize,
    wanted: usize,
) -> Option<Transfer> {
    let len = part_len(wanted - done)?;
    let space = task.process().space()?;
    let mut lent = LentPages::default();
    lend(&space, buffers, (done, len), AccessKind::Read, &mut lent)?;
    let at = offset.map(|offset| offset + done as u64);
    let outcome = file.write_pages(at, &lent)?;
    Some(Transfer { len, outcome })
}
