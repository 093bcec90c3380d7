//! The interface of pages and page tables that this crate is built on: the guard's in the kernel,
//! their double (`host.rs`) in unit tests.
//!
//! Callers use the methods themselves. The traits state the signatures once, and are implemented
//! once, by the methods of whichever body is compiled: a body that lacks one of them, or has it
//! with other arguments, does not build.
#![expect(
    dead_code,
    reason = "the traits are there to be checked, not to be called"
)]
#![deny(unconditional_recursion)]

use core::ops::Range;

use crate::{Flags, Frame, Insert, LargePage, MapError, Page, PageTable, Perm, Span, Unmapped};

/// A counted reference to 4 KiB of memory.
trait CountedPage: Clone {
    fn zeroed() -> Option<Self>;
    fn duplicate(&self) -> Option<Self>;
    fn read(&self, offset: usize, buf: &mut [u8]);
    fn write(&self, offset: usize, buf: &[u8]);
    fn copy_from(&self, other: &Self);
    fn refs(&self) -> u32;
    fn frame(&self) -> Frame;
}

impl CountedPage for Page {
    fn zeroed() -> Option<Self> {
        Self::zeroed()
    }
    fn duplicate(&self) -> Option<Self> {
        Self::duplicate(self)
    }
    fn read(&self, offset: usize, buf: &mut [u8]) {
        Self::read(self, offset, buf);
    }
    fn write(&self, offset: usize, buf: &[u8]) {
        Self::write(self, offset, buf);
    }
    fn copy_from(&self, other: &Self) {
        Self::copy_from(self, other);
    }
    fn refs(&self) -> u32 {
        Self::refs(self)
    }
    fn frame(&self) -> Frame {
        Self::frame(self)
    }
}

/// A page of the size that one page table covers.
trait HugePage: Sized {
    const PAGES: usize;
    fn zeroed() -> Option<Self>;
    fn fill(&self, n: usize, page: &Page);
    fn is_exclusive(&self) -> bool;
    fn into_pages(self, each: impl FnMut(usize, Page));
}

impl HugePage for LargePage {
    const PAGES: usize = Self::PAGES;
    fn zeroed() -> Option<Self> {
        Self::zeroed()
    }
    fn fill(&self, n: usize, page: &Page) {
        Self::fill(self, n, page);
    }
    fn is_exclusive(&self) -> bool {
        Self::is_exclusive(self)
    }
    fn into_pages(self, each: impl FnMut(usize, Page)) {
        Self::into_pages(self, each);
    }
}

/// A program's page table.
trait UserPageTable: Sized {
    fn new() -> Option<Self>;
    fn get(&self, va: usize) -> Option<(Page, Perm, Flags)>;
    fn map(&self, va: usize, page: Page, perm: Perm) -> Result<Option<Page>, MapError>;
    fn insert_with<E: From<MapError>>(
        &self,
        va: usize,
        make: impl FnOnce() -> Result<(Page, Perm), E>,
    ) -> Result<Insert, E>;
    fn fill(&self, va: usize, each: impl FnOnce(&mut Span<'_>));
    fn replace(&self, va: usize, old: &Page, new: Page, perm: Perm) -> bool;
    fn allow(&self, va: usize, page: &Page, perm: Perm) -> bool;
    fn unmap_range(&self, range: Range<usize>, each: &mut dyn FnMut(usize, Unmapped));
    fn protect(&self, range: Range<usize>, perm: Perm);
    fn share_cow(
        &self,
        child: &Self,
        range: Range<usize>,
        each: impl FnMut(Frame),
    ) -> Result<(), MapError>;
    fn visit(&self, range: Range<usize>, each: impl FnMut(usize, &Page, Flags));
    fn is_vacant(&self, va: usize) -> bool;
    fn map_large(&self, va: usize, page: LargePage, perm: Perm) -> Result<(), LargePage>;
    fn allow_large(&self, va: usize, page: &Page, perm: Perm) -> bool;
    fn synchronize(&self);
    fn activate(&self);
}

impl UserPageTable for PageTable {
    fn new() -> Option<Self> {
        Self::new()
    }
    fn get(&self, va: usize) -> Option<(Page, Perm, Flags)> {
        Self::get(self, va)
    }
    fn map(&self, va: usize, page: Page, perm: Perm) -> Result<Option<Page>, MapError> {
        Self::map(self, va, page, perm)
    }
    fn insert_with<E: From<MapError>>(
        &self,
        va: usize,
        make: impl FnOnce() -> Result<(Page, Perm), E>,
    ) -> Result<Insert, E> {
        Self::insert_with(self, va, make)
    }
    fn fill(&self, va: usize, each: impl FnOnce(&mut Span<'_>)) {
        Self::fill(self, va, each);
    }
    fn replace(&self, va: usize, old: &Page, new: Page, perm: Perm) -> bool {
        Self::replace(self, va, old, new, perm)
    }
    fn allow(&self, va: usize, page: &Page, perm: Perm) -> bool {
        Self::allow(self, va, page, perm)
    }
    fn unmap_range(&self, range: Range<usize>, each: &mut dyn FnMut(usize, Unmapped)) {
        Self::unmap_range(self, range, each);
    }
    fn protect(&self, range: Range<usize>, perm: Perm) {
        Self::protect(self, range, perm);
    }
    fn share_cow(
        &self,
        child: &Self,
        range: Range<usize>,
        each: impl FnMut(Frame),
    ) -> Result<(), MapError> {
        Self::share_cow(self, child, range, each)
    }
    fn visit(&self, range: Range<usize>, each: impl FnMut(usize, &Page, Flags)) {
        Self::visit(self, range, each);
    }
    fn is_vacant(&self, va: usize) -> bool {
        Self::is_vacant(self, va)
    }
    fn map_large(&self, va: usize, page: LargePage, perm: Perm) -> Result<(), LargePage> {
        Self::map_large(self, va, page, perm)
    }
    fn allow_large(&self, va: usize, page: &Page, perm: Perm) -> bool {
        Self::allow_large(self, va, page, perm)
    }
    fn synchronize(&self) {
        Self::synchronize(self);
    }
    fn activate(&self) {
        Self::activate(self);
    }
}

/// The part of a page table that [`PageTable::fill`] has locked.
trait LockedSpan {
    fn put(&mut self, va: usize, perm: Perm, page: impl FnOnce() -> Page) -> bool;
}

impl LockedSpan for Span<'_> {
    fn put(&mut self, va: usize, perm: Perm, page: impl FnOnce() -> Page) -> bool {
        Self::put(self, va, perm, page)
    }
}
