//! The page of zeros that memory shows which was read before it was written to.

use task::Once;

use crate::{Frame, Page};

static ZERO: Once<Page> = Once::new();

/// The zero page; `None` if memory is short.
///
/// The reference kept here makes every mapping of it look shared, so it is never written to.
#[inline]
pub(crate) fn page() -> Option<Page> {
    match ZERO.get() {
        Some(page) => Some(page.clone()),
        None => make(),
    }
}

#[cold]
fn make() -> Option<Page> {
    let fresh = Page::zeroed()?;
    Some(ZERO.call_once(|| fresh).clone())
}

/// Whether a page is the zero page.
pub(crate) fn is(page: &Page) -> bool {
    is_in(page.frame())
}

/// Whether the zero page is in this frame.
pub(crate) fn is_in(frame: Frame) -> bool {
    ZERO.get().is_some_and(|zero| zero.frame() == frame)
}
