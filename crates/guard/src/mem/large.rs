//! Large pages: 2 MiB in a row, which a page table can map by one entry.

use abi::layout::{GRANULE_FRAMES, PAGE_SIZE};

use super::alloc::{Block, GRANULE_ORDER};
use super::frame::Frame;
use super::page::Page;
use super::{direct, refcount};

/// One counted reference to each of 512 pages in a row, aligned to 2 MiB. The pages can go separate
/// ways at any time.
#[derive(Debug)]
pub struct LargePage {
    first: Frame,
}

impl LargePage {
    /// Number of pages of a large page.
    pub const PAGES: usize = GRANULE_FRAMES as usize;

    /// Allocates zeroes; `None` if there is no such block at hand or memory is not plenty.
    #[must_use]
    pub fn zeroed() -> Option<Self> {
        let block = Block::of_large_page()?;
        // SAFETY: the block is ours, and free frames are in the direct map.
        unsafe { direct::zero(block.ptr(), Self::PAGES) };
        let first = block.into_raw();
        refcount::first_references(first);
        Some(Self { first })
    }

    /// Copies the content of a page to the `n`th of this one.
    ///
    /// # Panics
    /// If there is no such page.
    pub fn fill(&self, n: usize, page: &Page) {
        assert!(n < Self::PAGES, "page {n} of a large page");
        let to = self.first.add(n as u64);
        // One that was mapped and taken out again may be known to the caller page by page, too.
        if to != page.frame() {
            // SAFETY: two distinct frames in the direct map, of which we hold references.
            unsafe { direct::copy(direct::ptr(to), direct::ptr(page.frame()), PAGE_SIZE) };
        }
    }

    /// Whether nobody else has any of the pages.
    #[must_use]
    pub fn is_exclusive(&self) -> bool {
        references(self.first) == GRANULE_FRAMES
    }

    /// Takes it apart: calls `each` with the number of every page, and the page.
    pub fn into_pages(self, mut each: impl FnMut(usize, Page)) {
        let first = self.into_frame();
        for n in 0..Self::PAGES {
            // SAFETY: `into_frame` gave one reference to each of these frames.
            each(n, unsafe { Page::from_frame(first.add(n as u64)) });
        }
    }

    /// Turns the references into a bare frame number, for an entry to hold.
    pub(crate) fn into_frame(self) -> Frame {
        let first = self.first;
        core::mem::forget(self);
        first
    }

    /// Turns a frame number back into the references it stands for.
    ///
    /// # Safety
    /// `first` came from `into_frame`, or there is a reference to each of the 512 pages from it on
    /// that came from `Page::into_frame`; once for each.
    pub(crate) unsafe fn from_frame(first: Frame) -> Self {
        Self { first }
    }
}

/// All references to the pages of a large page together, at this moment.
pub(crate) fn references(first: Frame) -> u64 {
    refcount::sum_of_references(first)
}

impl Drop for LargePage {
    fn drop(&mut self) {
        if self.is_exclusive() {
            refcount::drop_granule(self.first);
            // SAFETY: nobody else has a reference to any of the pages, so the block that `zeroed`
            // took apart, in one piece or many, is ours again.
            drop(unsafe { Block::from_raw(self.first, GRANULE_ORDER) });
        } else {
            // SAFETY: the references are ours, and go here.
            unsafe { Self::from_frame(self.first) }.into_pages(|_, page| drop(page));
        }
    }
}
