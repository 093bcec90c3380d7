//! Names that were used lately: a table of fixed size, so that a walk finds most components without a directory's lock.
//!
//! A name's place in the table follows from its directory and its text; whoever comes later takes the place. An entry is a reference to
//! the dentry, and is believed only if the dentry says that it still hangs there, so a rename or removal may clear it after it has let go of the directory.

use crate::Dentry;
use alloc::sync::Arc;
use task::Mutex;

/// How many names are kept.
const SLOTS: usize = 1024;

static TABLE: [Mutex<Option<Arc<Dentry>>>; SLOTS] = [const { Mutex::new(None) }; SLOTS];

fn slot(parent: &Arc<Dentry>, name: &[u8]) -> &'static Mutex<Option<Arc<Dentry>>> {
    /// Multiplier of FNV-1a, 64 bits.
    const PRIME: u64 = 0x100_0000_01b3;
    let seed = Arc::as_ptr(parent).addr() as u64 >> 4;
    let hash = name.iter().fold(seed, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME));
    &TABLE[(hash ^ hash >> 32) as usize % SLOTS]
}

/// The dentry of `name` in `parent`, if it was used lately.
pub(crate) fn find(parent: &Arc<Dentry>, name: &[u8]) -> Option<Arc<Dentry>> {
    let entry = slot(parent, name).lock();
    let found = entry.as_ref().filter(|dentry| dentry.hangs_at(parent, name))?;
    Some(found.clone())
}

/// `child` was found in `parent`, whose lock is held. The caller drops the result, which gave way, without it.
#[must_use]
pub(crate) fn remember(parent: &Arc<Dentry>, name: &[u8], child: &Arc<Dentry>) -> Option<Arc<Dentry>> {
    slot(parent, name).lock().replace(child.clone())
}

/// `name` is not in `parent` any more. The caller drops the result with no lock held.
#[must_use]
pub(crate) fn forget(parent: &Arc<Dentry>, name: &[u8]) -> Option<Arc<Dentry>> {
    slot(parent, name).lock().take()
}

/// Forgets all names, so that a file system that is not mounted any more goes.
pub(crate) fn clear() {
    for slot in &TABLE {
        let old = slot.lock().take();
        drop(old);
    }
}
