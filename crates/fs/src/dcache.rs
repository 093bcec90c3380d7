//! Names that were used lately: a table whose size follows from the memory, so that a walk finds
//! most components without a directory's lock.
//!
//! A name's set in the table follows from its directory and its text. A set has two entries, the
//! later one first, so that two names in use that fall together do not displace each other over and
//! over. An entry is a reference to the dentry, and is believed only if the dentry says that
//! it is still there, so a rename or removal may clear it after it has let go of the directory.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering};

use shrink::{Shrinker, Ticket, Urgency};
use task::{Mutex, Once};

use crate::Dentry;

/// Bytes of memory for each name that is kept. An entry takes 12 bytes, the dentry it refers to
/// some 300.
const MEMORY_PER_NAME: u64 = 128 << 10;
/// The fewest and the most names that are kept.
const MIN_NAMES: u64 = 256;
const MAX_NAMES: u64 = 1 << 16;

/// Entries of a set.
const WAYS: usize = 2;

type Entries = [Option<Arc<Dentry>>; WAYS];
type Set = Mutex<Entries>;

static TABLE: Once<Box<[Set]>> = Once::new();

/// The table; a power of two of sets.
#[inline]
fn table() -> &'static [Set] {
    TABLE.call_once(|| new_table(MIN_NAMES))
}

fn new_table(names: u64) -> Box<[Set]> {
    (0..names / WAYS as u64).map(|_| Set::default()).collect()
}

/// Makes the table for a machine of this many bytes of memory; what it keeps can be taken back
/// through the result.
pub fn init(memory: u64) -> Arc<dyn Shrinker> {
    TABLE.call_once(|| {
        new_table(
            (memory / MEMORY_PER_NAME)
                .next_power_of_two()
                .clamp(MIN_NAMES, MAX_NAMES),
        )
    });
    Arc::new(DentryShrinker)
}

/// The names that nobody uses but the table.
struct DentryShrinker;

impl DentryShrinker {
    /// Shows each name that goes if the table forgets it, and forgets those of which `take` says
    /// so.
    fn reclaim_if(&self, mut take: impl FnMut() -> bool) {
        for set in table() {
            // Whoever asks for memory may hold the set's lock.
            let Some(mut entries) = set.try_lock() else {
                continue;
            };
            // The file stays with its directory: only the dentry goes, which waits for nobody.
            let idle = |it: &mut Arc<Dentry>| {
                Arc::strong_count(it) == 1 && Arc::strong_count(it.inode()) > 1
            };
            let old = entries
                .each_mut()
                .map(|entry| entry.take_if(|it| idle(it) && take()));
            drop(entries);
            drop(old);
        }
    }
}

impl Shrinker for DentryShrinker {
    fn name(&self) -> &'static str {
        "names"
    }

    fn reclaimable(&self, urgency: Urgency) -> u64 {
        let mut count = 0;
        if urgency >= Urgency::High {
            self.reclaim_if(|| {
                count += 1;
                false
            });
        }
        count * size_of::<Dentry>() as u64
    }

    fn shrink(&self, bytes: u64, _: Urgency, ticket: Ticket) {
        let mut freed = 0;
        self.reclaim_if(|| {
            let more = freed < bytes;
            freed += if more { size_of::<Dentry>() as u64 } else { 0 };
            more
        });
        ticket.freed(freed);
    }
}

/// Names up to this length are the same if their digests are.
const EXACT_LEN: usize = 16;

/// A name in three words.
#[derive(Clone, Copy, PartialEq, Eq)]
struct NameDigest {
    len: usize,
    head: u64,
    tail: u64,
}

impl NameDigest {
    /// The first and the last bytes, which overlap in names of odd lengths; of longer names, all
    /// but the last in one word.
    #[inline(always)]
    fn of(name: &[u8]) -> Self {
        let (head, tail) = match (name.first_chunk::<8>(), name.last_chunk::<8>()) {
            (Some(head), Some(tail)) if name.len() <= EXACT_LEN => {
                (u64::from_le_bytes(*head), u64::from_le_bytes(*tail))
            }
            (Some(_), Some(tail)) => {
                let words = name
                    .as_chunks::<8>()
                    .0
                    .iter()
                    .map(|word| u64::from_le_bytes(*word));
                (words.fold(0, mix), u64::from_le_bytes(*tail))
            }
            _ => match (name.first_chunk::<4>(), name.last_chunk::<4>()) {
                (Some(head), Some(tail)) => (
                    u32::from_le_bytes(*head).into(),
                    u32::from_le_bytes(*tail).into(),
                ),
                _ => match *name {
                    [a, b, c] => (u64::from(a) | u64::from(b) << 8, u64::from(c)),
                    [a, b] => (u64::from(a) | u64::from(b) << 8, 0),
                    [a] => (u64::from(a), 0),
                    _ => (0, 0),
                },
            },
        };
        Self {
            len: name.len(),
            head,
            tail,
        }
    }
}

#[inline(always)]
fn mix(hash: u64, word: u64) -> u64 {
    /// 2^64 divided by the golden ratio.
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    (hash.rotate_left(5) ^ word).wrapping_mul(FACTOR)
}

/// Key of an entry of the cache: the directory, as a number, and the name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key {
    parent: usize,
    digest: NameDigest,
}

impl Key {
    #[inline(always)]
    fn of(parent: &Arc<Dentry>, name: &[u8]) -> Self {
        Self {
            parent: Arc::as_ptr(parent).addr(),
            digest: NameDigest::of(name),
        }
    }

    #[inline(always)]
    fn set(&self) -> &'static Set {
        let NameDigest { len, head, tail } = self.digest;
        let hash = mix(mix(self.parent as u64, head), tail.wrapping_add(len as u64));
        let table = table();
        &table[(hash >> 32) as usize & (table.len() - 1)]
    }
}

/// Where a dentry was made. Its address names the directory for as long as the dentry has not
/// moved: so long it holds it.
pub(crate) struct HashedKey {
    key: Key,
    moved: AtomicBool,
}

impl HashedKey {
    pub(crate) fn new(parent: Option<&Arc<Dentry>>, name: &[u8]) -> Self {
        let parent = parent.map_or(0, |parent| Arc::as_ptr(parent).addr());
        Self {
            key: Key {
                parent,
                digest: NameDigest::of(name),
            },
            moved: AtomicBool::new(false),
        }
    }

    /// Notes that the dentry was moved or removed.
    pub(crate) fn invalidate(&self) {
        self.moved.store(true, Ordering::Release);
    }

    /// Whether the dentry is still where it was made and this is its key; `None` if that cannot be
    /// told.
    #[inline(always)]
    fn matches(&self, key: &Key) -> Option<bool> {
        let certain = key.digest.len <= EXACT_LEN && !self.moved.load(Ordering::Acquire);
        certain.then_some(self.key == *key)
    }
}

/// The dentry of `name` in `parent`, if it was used lately.
#[inline(always)]
pub(crate) fn lookup(parent: &Arc<Dentry>, name: &[u8]) -> Option<Arc<Dentry>> {
    let key = Key::of(parent, name);
    let entries = key.set().lock();
    let here = |dentry: &&Arc<Dentry>| {
        dentry
            .hashed_key()
            .matches(&key)
            .unwrap_or_else(|| dentry.is_entry_of(parent, name))
    };
    entries.iter().flatten().find(here).cloned()
}

/// `child` was found in `parent`, whose lock is held. The caller drops the result, which gave way,
/// without it.
#[must_use]
pub(crate) fn insert(
    parent: &Arc<Dentry>,
    name: &[u8],
    child: &Arc<Dentry>,
) -> Option<Arc<Dentry>> {
    let mut entries = Key::of(parent, name).set().lock();
    entries.rotate_right(1);
    entries[0].replace(child.clone())
}

/// `name` is not in `parent` any more. The caller drops the result with no lock held.
#[must_use]
pub(crate) fn remove(parent: &Arc<Dentry>, name: &[u8]) -> impl Sized {
    core::mem::take(&mut *Key::of(parent, name).set().lock())
}

/// Forgets all names, so that a file system that is not mounted any more goes.
pub(crate) fn clear() {
    for set in table() {
        let old = core::mem::take(&mut *set.lock());
        drop(old);
    }
}

#[cfg(test)]
mod tests {
    use core::mem::ManuallyDrop;

    use proptest::prelude::*;
    use shrink::{Round, Shrinkers};

    use super::*;
    use crate::mount::{FileSystem, Namespace};
    use crate::ramfs::RamFs;
    use crate::{Cred, FsStruct, NewInode, NewInodeKind, OpenFlags, RenameFlags, ops};

    #[test]
    fn who_has_moved_is_not_told_by_the_old_name() {
        let root = Dentry::root(RamFs::new("tmpfs", None, 0o755).root());
        let origin = HashedKey::new(Some(&root), b"name");
        let key = |name| HashedKey::new(Some(&root), name).key;
        assert_eq!(
            (
                origin.matches(&key(b"name")),
                origin.matches(&key(b"other"))
            ),
            (Some(true), Some(false))
        );
        origin.invalidate();
        assert_eq!(origin.matches(&key(b"name")), None);
    }

    #[test]
    fn names_that_nobody_uses_are_given_back() {
        let root = Dentry::root(RamFs::new("tmpfs", None, 0o755).root());
        let file = NewInode {
            kind: NewInodeKind::Regular,
            mode: 0o644,
            umask: 0,
            uid: 0,
            gid: 0,
        };
        for name in [b"used", b"idle"] {
            root.inode().create(name, &file).unwrap();
        }
        let used = root.lookup(b"used").unwrap();
        let idle = Arc::downgrade(&root.lookup(b"idle").unwrap());
        assert!(idle.upgrade().is_some(), "it is remembered");
        let shrinkers = Shrinkers::new();
        shrinkers.register(Arc::new(DentryShrinker));
        let round = Arc::new(Round::default());
        shrinkers.reclaim(&round, 1 << 40, Urgency::Critical);
        assert!(round.wait() >= size_of::<Dentry>() as u64);
        assert!(idle.upgrade().is_none(), "nobody used it");
        assert!(
            Arc::ptr_eq(&used, &root.lookup(b"used").unwrap()),
            "what is in use stays the same"
        );
        assert!(root.lookup(b"idle").is_ok(), "the file is still there");
    }

    #[test]
    fn names_that_were_made_or_moved_are_remembered() {
        let namespace = Namespace::new(RamFs::new("tmpfs", None, 0o755), "none");
        // Its end would have other tests' names forgotten.
        let seen = ManuallyDrop::new(FsStruct::new(namespace));
        let cred = Cred::root();
        let (walk, root) = (seen.lookup_context(&cred), seen.root().dentry().clone());
        let make = OpenFlags::CREAT | OpenFlags::WRONLY;
        let made = ops::open(&walk, b"/made", make, 0o644).unwrap();
        let dentry = Arc::downgrade(made.path().dentry());
        drop(made);
        let found = root.lookup_fast(b"made").expect("it was made just now");
        assert!(Arc::ptr_eq(&found, &dentry.upgrade().unwrap()));
        drop(found);
        let names = [b"/made", b"/gone"].map(|name| walk.lookup_parent(name).unwrap());
        let [from, to] = names;
        ops::rename(&walk, from, to, RenameFlags::empty()).unwrap();
        assert!(root.lookup_fast(b"made").is_none());
        let found = root.lookup_fast(b"gone").expect("it was moved just now");
        assert!(Arc::ptr_eq(&found, &dentry.upgrade().unwrap()));
        drop(found);
        ops::remove(&walk, b"/gone", ops::Removal::Unlink).unwrap();
        assert!(root.lookup_fast(b"gone").is_none());
        assert!(dentry.upgrade().is_none(), "nobody has it any more");
    }

    #[test]
    fn two_names_of_one_set_are_both_kept() {
        let root = Dentry::root(RamFs::new("tmpfs", None, 0o755).root());
        let file = NewInode {
            kind: NewInodeKind::Regular,
            mode: 0o644,
            umask: 0,
            uid: 0,
            gid: 0,
        };
        let names: Vec<String> = (0..10_000).map(|n| format!("name{n}")).collect();
        let set = |name: &str| core::ptr::from_ref(Key::of(&root, name.as_bytes()).set());
        let other = names[1..].iter().find(|name| set(name) == set(&names[0]));
        let names = [&names[0], other.unwrap()].map(String::as_bytes);
        let kept = names.map(|name| {
            root.inode().create(name, &file).unwrap();
            Arc::downgrade(&root.lookup(name).unwrap())
        });
        assert!(kept.iter().all(|dentry| dentry.upgrade().is_some()));
        let again = names.map(|name| root.lookup_fast(name));
        assert!(again.iter().all(Option::is_some));
        drop(again);
        drop(remove(&root, names[0]));
        assert!(kept.iter().all(|dentry| dentry.upgrade().is_none()));
    }

    proptest! {
        #[test]
        fn short_names_are_told_apart_by_their_digests(a in "[ab\0]{0,16}", b in "[ab\0]{0,16}") {
            prop_assert_eq!(NameDigest::of(a.as_bytes()) == NameDigest::of(b.as_bytes()), a == b);
        }
    }
}
