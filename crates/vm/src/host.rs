//! Pages and page tables of unit tests: the guard's interface over ordinary memory, with no processor behind it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use crate::PAGE_SIZE;

/// A number that stands for a page.
pub(crate) type Frame = usize;

/// A counted reference to 4 KiB.
#[derive(Clone, Debug)]
pub struct Page(Arc<Mutex<Box<[u8]>>>);

impl Page {
    /// A page of zeros.
    #[must_use]
    pub fn zeroed() -> Option<Self> {
        Some(Self(Arc::new(Mutex::new(vec![0; PAGE_SIZE].into_boxed_slice()))))
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

    /// Which page it is.
    pub(crate) fn frame(&self) -> Frame {
        Arc::as_ptr(&self.0).addr()
    }

    /// Number of references, this one included.
    #[must_use]
    pub fn refs(&self) -> u32 {
        Arc::strong_count(&self.0) as u32
    }
}

/// As `guard::paging::Perm`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Perm {
    pub(crate) write: bool,
    pub(crate) exec: bool,
}

/// As `guard::paging::Flags`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flags {
    pub(crate) accessed: bool,
    pub(crate) dirty: bool,
}

/// As `guard::paging::MapError`.
#[derive(Debug)]
pub(crate) struct MapError;

/// As `guard::paging::Insert`.
#[derive(Debug)]
pub(crate) enum Insert {
    Done,
    Occupied(Perm),
}

/// As `guard::paging::Span`.
pub(crate) struct Span<'a> {
    start: usize,
    map: &'a mut BTreeMap<usize, (Page, Perm)>,
}

/// What one page table covers.
const SPAN: usize = 2 << 20;

impl Span<'_> {
    pub(crate) fn put(&mut self, va: usize, perm: Perm, page: impl FnOnce() -> Page) -> bool {
        let free = va.wrapping_sub(self.start) < SPAN && !self.map.contains_key(&va);
        if free {
            self.map.insert(va, (page(), perm));
        }
        free
    }
}

/// As `guard::paging::PageTable`.
#[derive(Default)]
pub(crate) struct PageTable(Mutex<BTreeMap<usize, (Page, Perm)>>);

impl PageTable {
    pub(crate) fn new() -> Option<Self> {
        Some(Self::default())
    }

    pub(crate) fn map(&self, va: usize, page: Page, perm: Perm) -> Result<Option<Page>, MapError> {
        Ok(self.0.lock().unwrap().insert(va, (page, perm)).map(|(page, _)| page))
    }

    pub(crate) fn insert_with<E>(&self, va: usize, make: impl FnOnce() -> Result<(Page, Perm), E>) -> Result<Insert, E> {
        let mut map = self.0.lock().unwrap();
        if let Some((_, perm)) = map.get(&va) {
            return Ok(Insert::Occupied(*perm));
        }
        map.insert(va, make()?);
        Ok(Insert::Done)
    }

    pub(crate) fn fill(&self, va: usize, each: impl FnOnce(&mut Span<'_>)) {
        let start = va & !(SPAN - 1);
        each(&mut Span { start, map: &mut self.0.lock().unwrap() });
    }

    pub(crate) fn synchronize(&self) {}

    pub(crate) fn replace(&self, va: usize, old: &Page, new: Page, perm: Perm) -> bool {
        match self.0.lock().unwrap().get_mut(&va) {
            Some(entry) if entry.0.frame() == old.frame() && !entry.1.write => {
                *entry = (new, perm);
                true
            }
            _ => false,
        }
    }

    pub(crate) fn allow(&self, va: usize, page: &Page, perm: Perm) -> bool {
        match self.0.lock().unwrap().get_mut(&va) {
            Some(entry) if entry.0.frame() == page.frame() && !entry.1.write => {
                entry.1 = perm;
                true
            }
            _ => false,
        }
    }

    pub(crate) fn unmap_range(&self, range: Range<usize>, each: &mut dyn FnMut(usize, Page)) {
        let mut map = self.0.lock().unwrap();
        let doomed: Vec<usize> = map.range(range).map(|(&va, _)| va).collect();
        for va in doomed {
            let (page, _) = map.remove(&va).unwrap();
            each(va, page);
        }
    }

    pub(crate) fn protect(&self, range: Range<usize>, perm: Perm) {
        self.0.lock().unwrap().range_mut(range).for_each(|(_, entry)| entry.1 = perm);
    }

    pub(crate) fn get(&self, va: usize) -> Option<(Page, Perm, ())> {
        self.0.lock().unwrap().get(&va).map(|(page, perm)| (page.clone(), *perm, ()))
    }

    pub(crate) fn share_cow(&self, child: &Self, range: Range<usize>, mut each: impl FnMut(Frame)) -> Result<(), MapError> {
        for (&va, (page, perm)) in self.0.lock().unwrap().range_mut(range) {
            perm.write = false;
            each(page.frame());
            child.0.lock().unwrap().insert(va, (page.clone(), *perm));
        }
        Ok(())
    }

    pub(crate) fn visit(&self, range: Range<usize>, mut each: impl FnMut(usize, &Page, Flags)) {
        for (&va, (page, perm)) in self.0.lock().unwrap().range(range) {
            each(va, &page.clone(), Flags { accessed: true, dirty: perm.write });
        }
    }

    pub(crate) fn activate(&self) {}
}
