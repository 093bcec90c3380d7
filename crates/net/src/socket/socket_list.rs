//! Lists of open sockets.

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};

use fallible::Pieces;
use task::Mutex;

/// The open sockets of one kind by their number, for listings.
pub(crate) struct SocketList<S>(Mutex<BTreeMap<u64, Weak<S>>>);

impl<S> Default for SocketList<S> {
    fn default() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }
}

impl<S> SocketList<S> {
    /// Adds a socket under a number that no other has.
    pub(crate) fn insert(&self, id: u64, socket: &Arc<S>) {
        self.0.lock().insert(id, Arc::downgrade(socket));
    }

    /// Takes the socket with a number away.
    pub(crate) fn remove(&self, id: u64) {
        self.0.lock().remove(&id);
    }

    /// The number of sockets.
    pub(crate) fn len(&self) -> usize {
        self.0.lock().len()
    }

    /// All sockets, in the order of their numbers.
    pub(crate) fn all(&self) -> Pieces<Arc<S>> {
        self.0.lock().values().filter_map(Weak::upgrade).collect()
    }
}
