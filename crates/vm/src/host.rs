//! Pages and page tables of unit tests: the guard's interface over ordinary memory, with no
//! processor behind it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Mutex};

use crate::PAGE_SIZE;

/// A number that stands for a page.
pub type Frame = usize;

/// A counted reference to 4 KiB.
#[derive(Clone, Debug)]
pub struct Page(Arc<Mutex<Box<[u8]>>>);

impl Page {
    /// A page of zeros.
    #[must_use]
    pub fn zeroed() -> Option<Self> {
        Some(Self(Arc::new(Mutex::new(
            vec![0; PAGE_SIZE].into_boxed_slice(),
        ))))
    }

    /// A page with the same content.
    #[must_use]
    pub fn duplicate(&self) -> Option<Self> {
        Some(Self(Arc::new(Mutex::new(self.0.lock().unwrap().clone()))))
    }

    /// Copies bytes from the page.
    pub fn read(&self, offset: usize, buf: &mut [u8]) {
        buf.copy_from_slice(&self.0.lock().unwrap()[offset..offset + buf.len()]);
    }

    /// Copies bytes to the page.
    pub fn write(&self, offset: usize, buf: &[u8]) {
        self.0.lock().unwrap()[offset..offset + buf.len()].copy_from_slice(buf);
    }

    /// Fails: unit tests have no memory of programs but that of address spaces.
    ///
    /// # Errors
    /// Always.
    pub fn read_to_user(&self, _: usize, _: usize, _: usize) -> Result<(), NoUserMemory> {
        Err(NoUserMemory)
    }

    /// Copies the whole content of another page.
    pub fn copy_from(&self, other: &Self) {
        let bytes = other.0.lock().unwrap().clone();
        self.write(0, &bytes);
    }

    /// The number of the page.
    pub(crate) fn frame(&self) -> Frame {
        Arc::as_ptr(&self.0).addr()
    }

    /// Keeps the number of the page from being another one's, also when the page is gone.
    #[cfg(test)]
    pub(crate) fn keep_number(&self) -> std::sync::Weak<Mutex<Box<[u8]>>> {
        Arc::downgrade(&self.0)
    }

    /// Number of references, this one included.
    #[must_use]
    pub fn refs(&self) -> u32 {
        Arc::strong_count(&self.0) as u32
    }
}

/// Double of `guard::user::UserFault`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoUserMemory;

/// Double of `guard::mem::has_room`.
#[must_use]
pub fn has_room(_bytes: usize) -> bool {
    true
}

/// Double of `guard::mem::has_kernel_room`: there is room, but where it is refused on purpose.
#[must_use]
pub fn has_kernel_room() -> bool {
    !fallible::inject::fails()
}

/// Double of `guard::paging::Perm`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Perm {
    pub(crate) write: bool,
    pub(crate) exec: bool,
}

/// Double of `guard::mem::LargePage`.
#[derive(Debug)]
pub(crate) struct LargePage(Vec<Page>);

impl LargePage {
    pub(crate) const PAGES: usize = SPAN / PAGE_SIZE;

    pub(crate) fn zeroed() -> Option<Self> {
        (0..Self::PAGES)
            .map(|_| Page::zeroed())
            .collect::<Option<_>>()
            .map(Self)
    }

    pub(crate) fn fill(&self, n: usize, page: &Page) {
        let bytes = page.0.lock().unwrap().clone();
        self.0[n].write(0, &bytes);
    }

    pub(crate) fn is_exclusive(&self) -> bool {
        self.0.iter().all(|page| page.refs() == 1)
    }

    pub(crate) fn into_pages(self, mut each: impl FnMut(usize, Page)) {
        self.0
            .into_iter()
            .enumerate()
            .for_each(|(n, page)| each(n, page));
    }
}

/// Double of `guard::paging::Unmapped`.
#[derive(Debug)]
pub(crate) enum Unmapped {
    Page(Page),
    Large(LargePage),
}

/// Double of `guard::paging::Flags`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flags {
    pub(crate) accessed: bool,
    pub(crate) dirty: bool,
    pub(crate) large: bool,
}

/// Double of `guard::paging::MapError`.
#[derive(Debug)]
pub(crate) struct MapError;

/// Double of `guard::paging::Insert`.
#[derive(Debug)]
pub(crate) enum Insert {
    Done,
    Occupied(Perm),
}

/// Double of `guard::paging::Span`.
pub(crate) struct Span<'a> {
    start: usize,
    map: &'a mut BTreeMap<usize, (Page, Perm)>,
}

/// Bytes that one page table covers, and a large page has: less than on hardware, so that tests
/// come across it.
const SPAN: usize = 8 * PAGE_SIZE;

impl Span<'_> {
    pub(crate) fn put(&mut self, va: usize, perm: Perm, page: impl FnOnce() -> Page) -> bool {
        let free = va.wrapping_sub(self.start) < SPAN && !self.map.contains_key(&va);
        if free {
            self.map.insert(va, (page(), perm));
        }
        free
    }
}

/// Mapped pages, and the spans that are mapped as large pages.
#[derive(Default)]
struct Tables {
    pages: BTreeMap<usize, (Page, Perm)>,
    large: BTreeSet<usize>,
}

impl Tables {
    /// Splits the large pages that lie partly in `range`.
    fn split(&mut self, range: &Range<usize>) {
        let whole = |at: usize| range.start <= at && at + SPAN <= range.end;
        self.large
            .retain(|&at| whole(at) || at + SPAN <= range.start || range.end <= at);
    }

    fn in_large(&self, va: usize) -> bool {
        self.large.contains(&(va & !(SPAN - 1)))
    }

    /// The entry at `va`, of a single page, if it maps `page` and cannot be written to.
    fn holds(&mut self, va: usize, page: &Page) -> Option<&mut (Page, Perm)> {
        self.large.remove(&(va & !(SPAN - 1)));
        self.pages
            .get_mut(&va)
            .filter(|entry| entry.0.frame() == page.frame() && !entry.1.write)
    }
}

/// Double of `guard::paging::PageTable`.
#[derive(Default)]
pub(crate) struct PageTable(Mutex<Tables>);

impl PageTable {
    pub(crate) fn new() -> Option<Self> {
        Some(Self::default())
    }

    pub(crate) fn map(&self, va: usize, page: Page, perm: Perm) -> Result<Option<Page>, MapError> {
        let mut tables = self.0.lock().unwrap();
        tables.split(&(va..va + PAGE_SIZE));
        Ok(tables.pages.insert(va, (page, perm)).map(|(page, _)| page))
    }

    pub(crate) fn is_vacant(&self, va: usize) -> bool {
        let start = va & !(SPAN - 1);
        self.0
            .lock()
            .unwrap()
            .pages
            .range(start..start + SPAN)
            .next()
            .is_none()
    }

    pub(crate) fn map_large(
        &self,
        va: usize,
        page: LargePage,
        perm: Perm,
    ) -> Result<(), LargePage> {
        let mut tables = self.0.lock().unwrap();
        if !va.is_multiple_of(SPAN) || tables.pages.range(va..va + SPAN).next().is_some() {
            return Err(page);
        }
        tables.large.insert(va);
        page.into_pages(|n, page| drop(tables.pages.insert(va + n * PAGE_SIZE, (page, perm))));
        Ok(())
    }

    pub(crate) fn allow_large(&self, va: usize, page: &Page, perm: Perm) -> bool {
        let mut tables = self.0.lock().unwrap();
        let start = va & !(SPAN - 1);
        if !tables.large.contains(&start) || tables.pages[&va].0.frame() != page.frame() {
            return false;
        }
        let entries = tables.pages.range_mut(start..start + SPAN);
        let mut sole = true;
        let entries: Vec<_> = entries
            .inspect(|(at, entry)| sole &= entry.0.refs() == 1 + u32::from(**at == va))
            .collect();
        if sole {
            entries.into_iter().for_each(|(_, entry)| entry.1 = perm);
        }
        sole
    }

    pub(crate) fn insert_with<E>(
        &self,
        va: usize,
        make: impl FnOnce() -> Result<(Page, Perm), E>,
    ) -> Result<Insert, E> {
        let mut tables = self.0.lock().unwrap();
        if let Some((_, perm)) = tables.pages.get(&va) {
            return Ok(Insert::Occupied(*perm));
        }
        tables.pages.insert(va, make()?);
        Ok(Insert::Done)
    }

    pub(crate) fn fill(&self, va: usize, each: impl FnOnce(&mut Span<'_>)) {
        let start = va & !(SPAN - 1);
        each(&mut Span {
            start,
            map: &mut self.0.lock().unwrap().pages,
        });
    }

    pub(crate) fn synchronize(&self) {}

    pub(crate) fn replace(&self, va: usize, old: &Page, new: Page, perm: Perm) -> bool {
        self.0
            .lock()
            .unwrap()
            .holds(va, old)
            .map(|entry| *entry = (new, perm))
            .is_some()
    }

    pub(crate) fn allow(&self, va: usize, page: &Page, perm: Perm) -> bool {
        self.0
            .lock()
            .unwrap()
            .holds(va, page)
            .map(|entry| entry.1 = perm)
            .is_some()
    }

    pub(crate) fn unmap_range(&self, range: Range<usize>, each: &mut dyn FnMut(usize, Unmapped)) {
        let mut tables = self.0.lock().unwrap();
        tables.split(&range);
        let mut doomed: Vec<usize> = tables.pages.range(range).map(|(&va, _)| va).collect();
        doomed.retain(|&va| !tables.in_large(va) || va.is_multiple_of(SPAN));
        for va in doomed {
            let tables = &mut *tables;
            let mut take = |va| tables.pages.remove(&va).unwrap().0;
            if tables.large.remove(&va) {
                each(
                    va,
                    Unmapped::Large(LargePage(
                        (va..va + SPAN).step_by(PAGE_SIZE).map(take).collect(),
                    )),
                );
            } else {
                each(va, Unmapped::Page(take(va)));
            }
        }
    }

    pub(crate) fn protect(&self, range: Range<usize>, perm: Perm) {
        let mut tables = self.0.lock().unwrap();
        tables.split(&range);
        tables
            .pages
            .range_mut(range)
            .for_each(|(_, entry)| entry.1 = perm);
    }

    pub(crate) fn get(&self, va: usize) -> Option<(Page, Perm, Flags)> {
        let tables = self.0.lock().unwrap();
        let flags = Flags {
            accessed: true,
            dirty: true,
            large: tables.in_large(va),
        };
        tables
            .pages
            .get(&va)
            .map(|(page, perm)| (page.clone(), *perm, flags))
    }

    pub(crate) fn share_cow(
        &self,
        child: &Self,
        range: Range<usize>,
        mut each: impl FnMut(Frame),
    ) -> Result<(), MapError> {
        let mut tables = self.0.lock().unwrap();
        let mut theirs = child.0.lock().unwrap();
        tables.split(&range);
        theirs.large.extend(tables.large.range(range.clone()));
        for (&va, (page, perm)) in tables.pages.range_mut(range) {
            perm.write = false;
            each(page.frame());
            theirs.pages.insert(va, (page.clone(), *perm));
        }
        Ok(())
    }

    pub(crate) fn visit(&self, range: Range<usize>, mut each: impl FnMut(usize, &Page, Flags)) {
        let mut tables = self.0.lock().unwrap();
        tables.split(&range);
        for (&va, (page, perm)) in tables.pages.range(range) {
            each(
                va,
                &page.clone(),
                Flags {
                    accessed: true,
                    dirty: perm.write,
                    large: tables.in_large(va),
                },
            );
        }
    }

    pub(crate) fn activate(&self) {}
}
