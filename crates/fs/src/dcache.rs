//! Names that were used lately: a table of fixed size, so that a walk finds most components without a directory's lock.
//!
//! A name's place in the table follows from its directory and its text; whoever comes later takes the place. An entry is a reference to
//! the dentry, and is believed only if the dentry says that it still hangs there, so a rename or removal may clear it after it has let go of the directory.

use crate::Dentry;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering};
use task::Mutex;

/// How many names are kept.
const SLOTS: usize = 1024;

static TABLE: [Mutex<Option<Arc<Dentry>>>; SLOTS] = [const { Mutex::new(None) }; SLOTS];

/// Names up to this length are the same if their digests are.
const WHOLE: usize = 16;

/// A name in three words.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Digest {
    len: usize,
    head: u64,
    tail: u64,
}

impl Digest {
    /// The first and the last bytes, which overlap in names of odd lengths; of longer names, all but the last in one word.
    #[inline(always)]
    fn of(name: &[u8]) -> Self {
        let (head, tail) = match (name.first_chunk::<8>(), name.last_chunk::<8>()) {
            (Some(head), Some(tail)) if name.len() <= WHOLE => (u64::from_le_bytes(*head), u64::from_le_bytes(*tail)),
            (Some(_), Some(tail)) => {
                let words = name.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
                (words.fold(0, mix), u64::from_le_bytes(*tail))
            }
            _ => match (name.first_chunk::<4>(), name.last_chunk::<4>()) {
                (Some(head), Some(tail)) => (u32::from_le_bytes(*head).into(), u32::from_le_bytes(*tail).into()),
                _ => match *name {
                    [a, b, c] => (u64::from(a) | u64::from(b) << 8, u64::from(c)),
                    [a, b] => (u64::from(a) | u64::from(b) << 8, 0),
                    [a] => (u64::from(a), 0),
                    _ => (0, 0),
                },
            },
        };
        Self { len: name.len(), head, tail }
    }
}

#[inline(always)]
fn mix(hash: u64, word: u64) -> u64 {
    /// 2^64 divided by the golden ratio.
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    (hash.rotate_left(5) ^ word).wrapping_mul(FACTOR)
}

/// What an entry is recognised by: the directory, as a number, and the name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key {
    parent: usize,
    digest: Digest,
}

impl Key {
    #[inline(always)]
    fn of(parent: &Arc<Dentry>, name: &[u8]) -> Self {
        Self { parent: Arc::as_ptr(parent).addr(), digest: Digest::of(name) }
    }

    #[inline(always)]
    fn slot(&self) -> &'static Mutex<Option<Arc<Dentry>>> {
        let Digest { len, head, tail } = self.digest;
        let hash = mix(mix(self.parent as u64, head), tail.wrapping_add(len as u64));
        &TABLE[(hash >> 32) as usize % SLOTS]
    }
}

/// Where a dentry was made. Its address names the directory for as long as the dentry has not moved: so long it holds it.
pub(crate) struct Origin {
    key: Key,
    moved: AtomicBool,
}

impl Origin {
    pub(crate) fn new(parent: Option<&Arc<Dentry>>, name: &[u8]) -> Self {
        let parent = parent.map_or(0, |parent| Arc::as_ptr(parent).addr());
        Self { key: Key { parent, digest: Digest::of(name) }, moved: AtomicBool::new(false) }
    }

    /// The dentry hangs elsewhere from now on, or nowhere.
    pub(crate) fn leave(&self) {
        self.moved.store(true, Ordering::Release);
    }

    /// Whether the dentry is still where it was made and this is its key; `None` if that cannot be told.
    #[inline(always)]
    fn matches(&self, key: &Key) -> Option<bool> {
        let certain = key.digest.len <= WHOLE && !self.moved.load(Ordering::Acquire);
        certain.then_some(self.key == *key)
    }
}

/// The dentry of `name` in `parent`, if it was used lately.
#[inline]
pub(crate) fn find(parent: &Arc<Dentry>, name: &[u8]) -> Option<Arc<Dentry>> {
    let key = Key::of(parent, name);
    let entry = key.slot().lock();
    let dentry = entry.as_ref()?;
    let here = dentry.origin().matches(&key).unwrap_or_else(|| dentry.hangs_at(parent, name));
    here.then(|| dentry.clone())
}

/// `child` was found in `parent`, whose lock is held. The caller drops the result, which gave way, without it.
#[must_use]
pub(crate) fn remember(parent: &Arc<Dentry>, name: &[u8], child: &Arc<Dentry>) -> Option<Arc<Dentry>> {
    Key::of(parent, name).slot().lock().replace(child.clone())
}

/// `name` is not in `parent` any more. The caller drops the result with no lock held.
#[must_use]
pub(crate) fn forget(parent: &Arc<Dentry>, name: &[u8]) -> Option<Arc<Dentry>> {
    Key::of(parent, name).slot().lock().take()
}

/// Forgets all names, so that a file system that is not mounted any more goes.
pub(crate) fn clear() {
    for slot in &TABLE {
        let old = slot.lock().take();
        drop(old);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn short_names_are_told_apart_by_their_digests(a in "[ab\0]{0,16}", b in "[ab\0]{0,16}") {
            prop_assert_eq!(Digest::of(a.as_bytes()) == Digest::of(b.as_bytes()), a == b);
        }
    }
}
