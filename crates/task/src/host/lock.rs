//! The locks of `lfmutex`, which threads of a model that is explored take only when the explorer
//! says so.

use core::fmt;
use core::ops::{Deref, DerefMut};
use core::ptr::from_ref;

use explore::LockMode;

/// A lock of a model's thread is given up, after the real one.
struct Release(Option<usize>);

impl Drop for Release {
    fn drop(&mut self) {
        if let Some(lock) = self.0 {
            explore::release(lock);
        }
    }
}

/// Takes a lock in the model, if the caller is one of its threads.
#[track_caller]
fn acquire<T: ?Sized>(lock: &T, mode: LockMode) -> Release {
    let lock = explore::is_active().then(|| from_ref(lock).cast::<()>().addr());
    if let Some(lock) = lock {
        explore::acquire(lock, mode);
    }
    Release(lock)
}

/// Mutual exclusion for a `T`, in thread context.
pub struct Mutex<T: ?Sized>(lfmutex::Mutex<T>);

impl<T> Mutex<T> {
    /// An open mutex around `value`.
    #[must_use]
    pub const fn new(value: T) -> Self {
        Self(lfmutex::Mutex::new(value))
    }

    /// The value, without locking: the caller owns the mutex.
    pub fn into_inner(self) -> T {
        self.0.into_inner()
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits for the lock, and returns a guard that gives it up when dropped.
    #[track_caller]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let release = acquire(&self.0, LockMode::Exclusive);
        MutexGuard {
            guard: self.0.lock(),
            release,
            mutex: self,
        }
    }

    /// The lock, if nobody has it.
    #[track_caller]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let lock = explore::is_active().then(|| from_ref(&self.0).cast::<()>().addr());
        if lock.is_some_and(|lock| !explore::try_acquire(lock)) {
            return None;
        }
        let release = Release(lock);
        self.0.try_lock().map(|guard| MutexGuard {
            guard,
            release,
            mutex: self,
        })
    }

    /// The value, without locking: the caller has the only reference.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }
}

impl<T: Default> Default for Mutex<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The right to use what a [`Mutex`] holds.
#[must_use = "the lock is given up as soon as the guard is dropped"]
#[clippy::has_significant_drop]
pub struct MutexGuard<'a, T: ?Sized> {
    // Dropped in this order.
    guard: lfmutex::MutexGuard<'a, T>,
    release: Release,
    mutex: &'a Mutex<T>,
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// Many readers or one writer, in thread context.
pub struct RwLock<T: ?Sized>(lfmutex::RwLock<T>);

impl<T> RwLock<T> {
    /// An open lock around `value`.
    #[must_use]
    pub const fn new(value: T) -> Self {
        Self(lfmutex::RwLock::new(value))
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Waits until no writer is inside or waiting.
    #[track_caller]
    pub fn read(&self) -> ReadGuard<'_, T> {
        let release = acquire(&self.0, LockMode::Shared);
        ReadGuard {
            guard: self.0.read(),
            _release: release,
        }
    }

    /// Waits until nobody else is inside.
    #[track_caller]
    pub fn write(&self) -> WriteGuard<'_, T> {
        let release = acquire(&self.0, LockMode::Exclusive);
        WriteGuard {
            guard: self.0.write(),
            _release: release,
        }
    }

    /// The value, without locking: the caller has the only reference.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }
}

impl<T: Default> Default for RwLock<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T: ?Sized> fmt::Debug for RwLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RwLock(..)")
    }
}

/// The right to look at what a [`RwLock`] holds.
#[must_use = "the lock is given up as soon as the guard is dropped"]
#[clippy::has_significant_drop]
pub struct ReadGuard<'a, T: ?Sized> {
    guard: lfmutex::ReadGuard<'a, T>,
    _release: Release,
}

impl<T: ?Sized> Deref for ReadGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.guard
    }
}

/// The right to change what a [`RwLock`] holds.
#[must_use = "the lock is given up as soon as the guard is dropped"]
#[clippy::has_significant_drop]
pub struct WriteGuard<'a, T: ?Sized> {
    guard: lfmutex::WriteGuard<'a, T>,
    _release: Release,
}

impl<T: ?Sized> Deref for WriteGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T: ?Sized> DerefMut for WriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

/// Threads that wait for a condition on what one [`Mutex`] holds.
#[derive(Default)]
pub struct Condvar(lfmutex::Condvar);

impl Condvar {
    /// A condition variable that nobody waits for.
    #[must_use]
    pub const fn new() -> Self {
        Self(lfmutex::Condvar::new())
    }

    /// Gives the mutex up, sleeps until notified, and takes it again. The condition may be false
    /// again: look, and wait anew.
    #[track_caller]
    pub fn wait<'a, T: ?Sized>(&self, held: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        let MutexGuard {
            guard,
            release,
            mutex,
        } = held;
        let guard = match release.0 {
            None => self.0.wait(guard),
            Some(lock) => {
                drop(guard);
                // It gives the model's lock up and takes it again.
                explore::wait_at(from_ref(self).addr(), lock);
                mutex.0.lock()
            }
        };
        MutexGuard {
            guard,
            release,
            mutex,
        }
    }

    /// Lets the thread that has waited longest have the mutex.
    #[track_caller]
    pub fn notify_one<T: ?Sized>(&self, held: &MutexGuard<'_, T>) {
        self.notify(held, 1);
    }

    /// Lets all threads that wait have the mutex, one after the other.
    #[track_caller]
    pub fn notify_all<T: ?Sized>(&self, held: &MutexGuard<'_, T>) {
        self.notify(held, usize::MAX);
    }

    #[track_caller]
    fn notify<T: ?Sized>(&self, held: &MutexGuard<'_, T>, most: usize) {
        match (held.release.0, most) {
            (Some(_), most) => explore::notify_at(from_ref(self).addr(), most),
            (None, 1) => self.0.notify_one(&held.guard),
            (None, _) => self.0.notify_all(&held.guard),
        }
    }
}

impl fmt::Debug for Condvar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A cell that is written at most once.
#[derive(Debug)]
pub struct Once<T>(lfmutex::Once<T>);

impl<T> Once<T> {
    /// A cell without a value.
    #[must_use]
    pub const fn new() -> Self {
        Self(lfmutex::Once::new())
    }

    /// The value, if it has been made.
    pub fn get(&self) -> Option<&T> {
        self.0.get()
    }

    /// The value; made by `make` if nobody has made it yet. Others who come meanwhile sleep until
    /// it is there.
    #[track_caller]
    pub fn call_once(&self, make: impl FnOnce() -> T) -> &T {
        if let Some(value) = self.get() {
            return value;
        }
        let _making = acquire(&self.0, LockMode::Exclusive);
        self.0.call_once(make)
    }

    /// Stores `value`; gives it back if there is one already.
    ///
    /// # Errors
    /// The value, if the cell was full.
    pub fn set(&self, value: T) -> Result<(), T> {
        self.0.set(value)
    }
}

impl<T> Default for Once<T> {
    fn default() -> Self {
        Self::new()
    }
}
