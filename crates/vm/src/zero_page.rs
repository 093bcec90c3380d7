//! The page of zeros that memory shows which was read before it was written to.

use task::Once;

use crate::{Frame, Page};

static ZERO: Once<Page> = Once::new();

/// The zero page; `None` if memory is short.
///
/// The reference kept here makes every mapping of it look shared, so it is never written to.
#[inline]
pub(crate) fn get() -> Option<Page> {
    match ZERO.get() {
        Some(page) => Some(page.clone()),
        None => allocate(),
    }
}

#[cold]
fn allocate() -> Option<Page> {
    let fresh = Page::zeroed()?;
    Some(ZERO.call_once(|| fresh).clone())
}

/// Whether a page is the zero page.
pub(crate) fn is_zero_page(page: &Page) -> bool {
    is_zero_frame(page.frame())
}

/// Whether the zero page is in this frame.
pub(crate) fn is_zero_frame(frame: Frame) -> bool {
    ZERO.get().is_some_and(|zero| zero.frame() == frame)
}
