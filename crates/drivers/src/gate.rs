//! What users of a device have of its driver, until the device leaves.

use alloc::sync::Arc;

use task::RcuArc;

/// A value that many use, until somebody closes the gate: who uses it then goes on, and the last
/// one drops it. To use it costs a reference.
pub struct Gate<T>(RcuArc<T>);

/// The way to a device that leaves.
pub trait Close: Send + Sync {
    /// Has nobody use the device any more; it is let go of when what is under way is over, which it
    /// is `at_once` if so wanted.
    fn close(&self, at_once: bool);
}

/// A device that need not be waited for.
pub trait Ends {
    /// Has all that is under way fail.
    fn end(&self);
}

impl<T: Send + Sync> Gate<T> {
    /// A gate that is open.
    #[must_use]
    pub fn new(value: T) -> Self {
        let place = RcuArc::empty();
        place.swap(Some(Arc::new(value)));
        Self(place)
    }

    /// The value; `None` once the gate is closed.
    #[must_use]
    pub fn get(&self) -> Option<Arc<T>> {
        self.0.load()
    }
}

impl<T: Ends + Send + Sync> Close for Gate<T> {
    fn close(&self, at_once: bool) {
        if let Some(value) = self.0.swap(None)
            && at_once
        {
            value.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[derive(Default)]
    struct Value(AtomicBool);

    impl Ends for Arc<Value> {
        fn end(&self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    #[test]
    fn who_uses_it_goes_on_and_nobody_begins() {
        let value = Arc::new(Value::default());
        let gate = Gate::new(value.clone());
        let used = gate.get().unwrap();
        gate.close(false);
        assert!(gate.get().is_none());
        assert_eq!(Arc::strong_count(&value), 2);
        drop(used);
        assert_eq!(Arc::strong_count(&value), 1);
        gate.close(true);
        assert!(!value.0.load(Ordering::Relaxed));
    }

    #[test]
    fn who_uses_it_is_told_if_nobody_waits() {
        let value = Arc::new(Value::default());
        let gate = Gate::new(value.clone());
        gate.close(true);
        assert!(gate.get().is_none() && value.0.load(Ordering::Relaxed));
    }
}
