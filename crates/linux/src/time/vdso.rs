//! The shared object that every program finds in its memory (`vdso(7)`), and the page of data below
//! it.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem::offset_of;
use core::sync::atomic::{Ordering, fence};

use ::task::Once;
use abi::errno::Errno;
use vdso::{Data, IMAGE, PAGES};
use vm::{
    AddressSpace, Backing, MapRequest, Object, PAGE_SIZE, Page, Placement, Prot, SharedWrites,
    VmaFlags,
};
use zerocopy::IntoBytes;

use crate::time::wall_clock;

/// Bytes of data and object.
pub(crate) const LEN: usize = (1 + PAGES) * PAGE_SIZE;

/// Pages that are always there.
struct PinnedPages(Vec<Page>);

impl PinnedPages {
    /// `None` if memory is short.
    fn new(bytes: &[u8]) -> Option<Self> {
        let page = |part: &[u8]| Page::zeroed().inspect(|page| page.write(0, part));
        bytes
            .chunks(PAGE_SIZE)
            .map(page)
            .collect::<Option<_>>()
            .map(Self)
    }
}

impl Backing for PinnedPages {
    fn page(&self, index: u64) -> Result<Page, Errno> {
        self.cached(index).ok_or(Errno::EFAULT)
    }

    fn cached(&self, index: u64) -> Option<Page> {
        usize::try_from(index)
            .ok()
            .and_then(|index| self.0.get(index))
            .cloned()
    }
}

/// The page of data.
static DATA: Once<Arc<PinnedPages>> = Once::new();

/// Updates the page from which programs read the wall clock. Called by the holder of the clock
/// only.
pub(crate) fn update_data_page() {
    let Some(page) = DATA.get().and_then(|data| data.0.first()) else {
        return;
    };
    let sequence = |number: u32| {
        page.write(offset_of!(Data, sequence), number.as_bytes());
        fence(Ordering::SeqCst);
    };
    let mut before = 0u32;
    page.read(offset_of!(Data, sequence), before.as_mut_bytes());
    sequence(before.wrapping_add(1));
    page.write(
        offset_of!(Data, wall),
        guard::timer::wall_base_ns().as_bytes(),
    );
    page.write(offset_of!(Data, tai), wall_clock::tai_ns().as_bytes());
    fence(Ordering::SeqCst);
    sequence(before.wrapping_add(2));
}

/// Objects that are mapped: the data, and the vDSO.
fn objects() -> Option<&'static [Arc<Object>; 2]> {
    static OBJECTS: Once<[Arc<Object>; 2]> = Once::new();
    if OBJECTS.get().is_none() {
        let data: Data = guard::timer::vdso_data();
        let (data, image) = (
            Arc::new(PinnedPages::new(data.as_bytes())?),
            Arc::new(PinnedPages::new(IMAGE)?),
        );
        let object = |pages: &Arc<PinnedPages>, name: &[u8]| {
            Object::file(pages.clone(), SharedWrites::Denied, name.to_vec(), 0, 0)
        };
        let both = [
            object(DATA.call_once(|| data), b"[vvar]"),
            object(&image, b"[vdso]"),
        ];
        OBJECTS.call_once(|| both);
    }
    OBJECTS.get()
}

/// Maps it at `at`, where nothing is. Returns where the object begins (`AT_SYSINFO_EHDR`).
///
/// # Errors
/// `ENOMEM`.
pub(crate) fn map(space: &AddressSpace, at: usize) -> Result<usize, Errno> {
    let [data, image] = objects().ok_or(Errno::ENOMEM)?;
    let parts = [
        (at, PAGE_SIZE, data, Prot::READ),
        (
            at + PAGE_SIZE,
            PAGES * PAGE_SIZE,
            image,
            Prot::READ | Prot::EXEC,
        ),
    ];
    for (at, len, object, prot) in parts {
        let place = Placement::FixedIfFree(at);
        space.mmap(MapRequest {
            placement: place,
            len,
            prot,
            flags: VmaFlags::empty(),
            object: Some((object.clone(), 0)),
        })?;
    }
    Ok(at + PAGE_SIZE)
}
