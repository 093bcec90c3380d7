//! Pages: frames whose content belongs to programs, shared by counting.

use abi::layout::PAGE_SIZE;

use super::alloc::{self, Block};
use super::frame::Frame;
use super::{direct, refcount};
use crate::arch::usercopy::{self, UserFault};

/// A counted reference to one page of memory. Cloning it adds a reference; the frame is freed with
/// the last one, be it here or in a page table.
///
/// The bytes may be changed at any time by whoever else holds a reference or has the page mapped;
/// reads and writes are not atomic beyond single bytes.
///
/// ```no_run
/// use guard::mem::Page;
///
/// # fn example() -> Option<()> {
/// let page = Page::zeroed()?;
/// page.write(8, b"contents");
/// let copy = page.duplicate()?;
/// let shared = page.clone();
/// assert_eq!((shared.refs(), copy.refs()), (2, 1));
/// let mut bytes = [0; 8];
/// copy.read(8, &mut bytes);
/// assert_eq!(&bytes, b"contents");
/// # Some(())
/// # }
/// ```
#[derive(Debug)]
pub struct Page {
    frame: Frame,
}

impl Page {
    /// Allocates a page of zeroes; `None` if memory is short: what is left then is the kernel's.
    /// (Zeroed here, not when it was freed: nothing of its former owner is ever seen.)
    #[must_use]
    pub fn zeroed() -> Option<Self> {
        Some(Self::adopt(
            alloc::may_make_page()
                .then(Block::movable_zeroed)
                .flatten()?,
        ))
    }

    /// Allocates a page with the same content as this one; `None` if memory is short.
    #[must_use]
    pub fn duplicate(&self) -> Option<Self> {
        let block = alloc::may_make_page().then(Block::movable).flatten()?;
        // SAFETY: both frames are in the direct map (they are owned and pages are never granted
        // away), and they differ because the new one is owned by `block`.
        unsafe { direct::copy(block.ptr(), direct::ptr(self.frame), PAGE_SIZE) };
        Some(Self::adopt(block))
    }

    /// Makes a page of a block of one frame, as it is.
    pub(super) fn adopt(block: Block) -> Self {
        let frame = block.into_raw();
        refcount::first_reference(frame);
        Self { frame }
    }

    /// Copies `buf.len()` bytes from `offset` on.
    ///
    /// # Panics
    /// If the bytes are not all within the page.
    pub fn read(&self, offset: usize, buf: &mut [u8]) {
        check(offset, buf.len());
        // SAFETY: within the page, which is in the direct map; `buf` is no part of it, as nobody
        // has references into pages.
        unsafe {
            direct::copy(
                buf.as_mut_ptr(),
                direct::ptr(self.frame).add(offset),
                buf.len(),
            );
        };
    }

    /// Copies `buf` to the page from `offset` on.
    ///
    /// # Panics
    /// If the bytes are not all within the page.
    pub fn write(&self, offset: usize, buf: &[u8]) {
        check(offset, buf.len());
        // SAFETY: as in `read`.
        unsafe { direct::copy(direct::ptr(self.frame).add(offset), buf.as_ptr(), buf.len()) };
    }

    /// Copies `len` bytes from `offset` on to a program's memory at `dst`, which may be a mapping
    /// of this page. Faults on the way are handled, so no lock is held that they need.
    ///
    /// # Errors
    /// [`UserFault`] if any of it cannot be written; a part may then have been.
    ///
    /// # Panics
    /// If the bytes are not all within the page.
    pub fn read_to_user(&self, offset: usize, dst: usize, len: usize) -> Result<(), UserFault> {
        check(offset, len);
        // SAFETY: within the page, which is in the direct map for as long as `self` has its
        // reference, and so for this call.
        unsafe { usercopy::write_from(dst, direct::ptr(self.frame).add(offset), len) }
    }

    /// Copies the whole content of another page.
    pub fn copy_from(&self, other: &Self) {
        if self.frame != other.frame {
            // SAFETY: two distinct frames in the direct map.
            unsafe { direct::copy(direct::ptr(self.frame), direct::ptr(other.frame), PAGE_SIZE) };
        }
    }

    /// Number of references to the page at this moment, this one included. If it is 1, nobody else
    /// can see the page.
    #[must_use]
    pub fn refs(&self) -> u32 {
        refcount::references(self.frame)
    }

    /// The frame it is in.
    #[must_use]
    pub fn frame(&self) -> Frame {
        self.frame
    }

    /// Turns the reference into a bare frame number, for a page-table entry to hold.
    pub(crate) fn into_frame(self) -> Frame {
        let frame = self.frame;
        core::mem::forget(self);
        frame
    }

    /// Turns a frame number back into the reference it stands for.
    ///
    /// # Safety
    /// `frame` came from `into_frame`, once for each `from_frame`.
    pub(crate) unsafe fn from_frame(frame: Frame) -> Self {
        Self { frame }
    }

    /// Takes one more reference to the page that an entry holds.
    ///
    /// # Safety
    /// `frame` came from `into_frame` and was not turned back yet, nor will be during this call.
    pub(crate) unsafe fn share_frame(frame: Frame) -> Self {
        refcount::add_reference(frame);
        Self { frame }
    }
}

fn check(offset: usize, len: usize) {
    assert!(
        offset <= PAGE_SIZE && len <= PAGE_SIZE - offset,
        "{len} bytes at {offset} leave the page"
    );
}

impl Clone for Page {
    #[inline]
    fn clone(&self) -> Self {
        refcount::add_reference(self.frame);
        Self { frame: self.frame }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        if refcount::drop_reference(self.frame) {
            // SAFETY: that was the last reference, so the block that `adopt` took apart is ours
            // again.
            drop(unsafe { Block::from_raw(self.frame, 0) });
        }
    }
}
