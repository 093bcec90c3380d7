//! A value that is made once and read by everybody after.

use core::cell::UnsafeCell;
use core::fmt;
use core::mem::MaybeUninit;

use crate::mutex::Mutex;
use crate::sync::{AtomicBool, Ordering};

/// A cell that is written at most once. Reading it is one load.
pub struct Once<T> {
    set: AtomicBool,
    making: Mutex<()>,
    value: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY: the value is written under `making` before `set`, and only read after `set` was seen with
// acquire order.
unsafe impl<T: Send + Sync> Sync for Once<T> {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl<T: Send> Send for Once<T> {}

impl<T> Once<T> {
    /// An empty cell.
    #[cfg(not(loom))]
    #[must_use]
    #[track_caller]
    pub const fn new() -> Self {
        Self {
            set: AtomicBool::new(false),
            making: Mutex::new(()),
            value: UnsafeCell::new(MaybeUninit::uninit()),
        }
    }

    /// An empty cell.
    #[cfg(loom)]
    #[must_use]
    #[track_caller]
    pub fn new() -> Self {
        Self {
            set: AtomicBool::new(false),
            making: Mutex::new(()),
            value: UnsafeCell::new(MaybeUninit::uninit()),
        }
    }

    /// The value, if it has been made.
    #[inline]
    pub fn get(&self) -> Option<&T> {
        // SAFETY: `set` is stored after the value is complete, and the value never changes again.
        self.set
            .load(Ordering::Acquire)
            .then(|| unsafe { (*self.value.get()).assume_init_ref() })
    }

    /// The value; made by `make` if nobody has made it yet. Others who come meanwhile sleep until
    /// it is there.
    #[inline]
    pub fn call_once(&self, make: impl FnOnce() -> T) -> &T {
        match self.get() {
            Some(value) => value,
            None => self.make_once(make),
        }
    }

    #[cold]
    #[inline(never)]
    fn make_once(&self, make: impl FnOnce() -> T) -> &T {
        let _making = self.making.lock();
        if self.get().is_none() {
            let value = make();
            // SAFETY: `making` is held and `set` is not set: nobody reads, nobody else writes.
            unsafe { (*self.value.get()).write(value) };
            self.set.store(true, Ordering::Release);
        }
        self.get().expect("made above")
    }

    /// Stores `value`; gives it back if there is one already.
    ///
    /// # Errors
    /// The value, if the cell was full.
    pub fn set(&self, value: T) -> Result<(), T> {
        let mut value = Some(value);
        self.call_once(|| value.take().expect("called once"));
        value.map_or(Ok(()), Err)
    }
}

impl<T> Default for Once<T> {
    #[track_caller]
    fn default() -> Self {
        Self::new()
    }
}

impl<T: fmt::Debug> fmt::Debug for Once<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Once").field(&self.get()).finish()
    }
}

impl<T> Drop for Once<T> {
    fn drop(&mut self) {
        if self.set.load(Ordering::Relaxed) {
            // SAFETY: the value was made, and is dropped here only.
            unsafe { self.value.get_mut().assume_init_drop() };
        }
    }
}
