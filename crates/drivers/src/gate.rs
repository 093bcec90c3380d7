//! What users of a device have of its driver, until the device leaves.

use alloc::sync::Arc;

use task::RcuArc;

/// A value that many use, until somebody closes the gate: who uses it then goes on, and the last
/// one drops it. To use it costs a reference.
pub struct Gate<T>(RcuArc<T>);

/// The way to a device that leaves.
pub trait Close: Send + Sync {
    /// Has nobody use the device any more; it is let go of when what is under way is over.
    fn close(&self);
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

impl<T: Send + Sync> Close for Gate<T> {
    fn close(&self) {
        drop(self.0.swap(None));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_uses_it_goes_on_and_nobody_begins() {
        let value = Arc::new(());
        let gate = Gate::new(value.clone());
        let used = gate.get().unwrap();
        gate.close();
        assert!(gate.get().is_none());
        assert_eq!(Arc::strong_count(&value), 2);
        drop(used);
        assert_eq!(Arc::strong_count(&value), 1);
        gate.close();
    }
}
