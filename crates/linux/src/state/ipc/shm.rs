//! System V shared memory segments.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use ::task::{Mutex, MutexGuard};
use abi::errno::Errno;
use vm::{AddressSpace, Backing, PAGE_SIZE, Page, ReverseMap, ShmemObject};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::state::credentials::Credentials;
use crate::state::ipc::{IpcIds, IpcPerm};

/// State of a segment as `IPC_STAT` stores it: Linux' `struct shmid64_ds`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ShmidDs {
    pub(crate) owner: IpcPerm,
    pub(crate) size: u64,
    pub(crate) attached: i64,
    pub(crate) detached: i64,
    pub(crate) changed: i64,
    pub(crate) creator: i32,
    pub(crate) last: i32,
    pub(crate) attachments: u64,
    pub(crate) unused: [u64; 2],
}

/// Most bytes and pages of all segments unless somebody says otherwise, which nothing else limits,
/// either (Linux' `SHMMAX`, `SHMALL`).
pub(crate) const MAX_BYTES: u64 = u64::MAX - (1 << 24);

/// Bit of a segment's mode: removed, and gone when nobody maps it.
pub(crate) const SHM_DEST: u32 = 0o1000;

pub(crate) struct Segment {
    pub(crate) _counted: census::Segment,
    pub(crate) key: i32,
    pub(crate) size: usize,
    pub(crate) memory: ShmemObject,
    pub(crate) mappings: ReverseMap,
    pub(crate) info: Mutex<ShmidDs>,
    /// The thread that made it, by the address of its `Task`; 0 once that has ended, or has left
    /// the namespace.
    pub(crate) creator: AtomicUsize,
}

impl Backing for Segment {
    fn page(&self, index: u64) -> Result<Page, Errno> {
        if index < self.pages() {
            self.memory.page(index)
        } else {
            Err(Errno::EFAULT)
        }
    }

    fn cached(&self, index: u64) -> Option<Page> {
        self.memory.cached(index)
    }

    fn for_each_cached(&self, range: Range<u64>, each: &mut dyn FnMut(u64, &Page)) {
        self.memory.for_each_cached(range, each);
    }

    fn reverse_map(&self) -> Option<&ReverseMap> {
        Some(&self.mappings)
    }
}

impl Segment {
    pub(crate) fn check(&self, cred: &Credentials, wanted: u32) -> Result<(), Errno> {
        self.info.lock().owner.check(cred, wanted)
    }

    fn is_orphan(&self) -> bool {
        self.creator.load(Ordering::Relaxed) == 0
    }

    pub(crate) fn attachments(&self) -> usize {
        self.mappings.count_vmas(|_, _| true)
    }
}

pub(crate) enum Entry {
    There(Arc<Segment>),
    /// Attached while removal is forced; it is there as long as it is mapped.
    Attached(Weak<Segment>),
    /// Removed; it is there as long as it is mapped.
    Removed(Weak<Segment>),
}

impl Entry {
    pub(crate) fn segment(&self) -> Option<Arc<Segment>> {
        match self {
            Self::There(segment) => Some(segment.clone()),
            Self::Attached(segment) | Self::Removed(segment) => segment.upgrade(),
        }
    }
}

/// All segments of a namespace.
pub(crate) struct Segments {
    pub(crate) table: Mutex<IpcIds<Entry>>,
    /// Whether a segment goes as soon as nobody maps it (`/proc/sys/kernel/shm_rmid_forced`): after
    /// its last attachment, or with the thread that made it. Changed under the table's lock.
    removal_forced: AtomicBool,
}

impl Segments {
    pub(crate) const fn new() -> Self {
        Self {
            table: Mutex::new(IpcIds::new()),
            removal_forced: AtomicBool::new(false),
        }
    }

    pub(crate) fn is_removal_forced(&self) -> bool {
        self.removal_forced.load(Ordering::Relaxed)
    }

    /// Says whether removal is forced from now on. If so, what nobody maps and whose maker has gone
    /// goes at once.
    pub(crate) fn force_removal(&self, forced: bool) {
        let mut table = self.table.lock();
        self.removal_forced.store(forced, Ordering::Relaxed);
        table.retain_mut(|entry| match entry {
            Entry::There(segment) if forced => {
                if segment.attachments() != 0 {
                    *entry = Entry::Attached(Arc::downgrade(segment));
                    true
                } else {
                    !segment.is_orphan()
                }
            }
            Entry::Attached(segment) if !forced => match segment.upgrade() {
                Some(segment) => {
                    *entry = Entry::There(segment);
                    true
                }
                None => false,
            },
            _ => true,
        });
    }

    /// Notes that a segment was attached, which is its end when it is mapped no more if removal is
    /// forced.
    pub(crate) fn note_attached(&self, id: i32) {
        let mut table = self.table.lock();
        if self.is_removal_forced()
            && let Some(entry) = table.get_mut(id)
            && let Entry::There(segment) = entry
        {
            *entry = Entry::Attached(Arc::downgrade(segment));
        }
    }

    /// Notes that a thread that has made segments has ended, or leaves the namespace. If removal is
    /// forced, those that nobody maps go with it.
    pub(crate) fn creator_exits(&self, creator: usize) {
        let mut table = self.table.lock();
        let forced = self.is_removal_forced();
        table.retain_mut(|entry| match entry.segment() {
            Some(segment) if segment.creator.load(Ordering::Relaxed) == creator => {
                segment.creator.store(0, Ordering::Relaxed);
                !(forced && matches!(entry, Entry::There(_)) && segment.attachments() == 0)
            }
            _ => true,
        });
    }

    /// The table, without what was removed and is mapped no more.
    pub(crate) fn live(&self) -> MutexGuard<'_, IpcIds<Entry>> {
        let mut table = self.table.lock();
        table.retain(|entry| entry.segment().is_some());
        table
    }

    /// All there are, also those that are removed and still mapped, with their numbers.
    pub(crate) fn all(&self) -> Vec<(i32, Arc<Segment>)> {
        self.table
            .lock()
            .iter()
            .filter_map(|(id, entry)| Some((id, entry.segment()?)))
            .collect()
    }

    /// The segment that a space maps from `addr` on, from its beginning.
    pub(crate) fn mapped_at(&self, space: &AddressSpace, addr: usize) -> Option<Arc<Segment>> {
        let backing = space.backing_at(addr)?;
        let known = |segment: &Arc<Segment>| {
            core::ptr::addr_eq(Arc::as_ptr(segment), Arc::as_ptr(&backing))
        };
        self.all()
            .into_iter()
            .map(|(_, segment)| segment)
            .find(known)
    }

    /// Whether what a space maps from `addr` on is a segment that was removed, and goes when these
    /// `len` bytes are mapped no more.
    pub(crate) fn is_last_of_removed(&self, space: &AddressSpace, addr: usize, len: usize) -> bool {
        self.mapped_at(space, addr).is_some_and(|segment| {
            let removed = segment.info.lock().owner.mode & SHM_DEST != 0;
            removed && segment.attachments() == 1 && len >= segment.size
        })
    }

    pub(crate) fn find(&self, id: i32) -> Result<Arc<Segment>, Errno> {
        self.table
            .lock()
            .get(id)
            .and_then(Entry::segment)
            .ok_or(Errno::EINVAL)
    }
}

pub(crate) fn with_key(table: &IpcIds<Entry>, key: i32) -> Option<(i32, Arc<Segment>)> {
    table.iter().find_map(|(id, entry)| match entry {
        Entry::Removed(_) => None,
        _ => Some((id, entry.segment().filter(|segment| segment.key == key)?)),
    })
}

impl Segment {
    /// Pages that it can have.
    pub(crate) fn pages(&self) -> u64 {
        self.size.div_ceil(PAGE_SIZE) as u64
    }

    pub(crate) fn resident(&self) -> u64 {
        let mut pages = 0;
        self.memory
            .for_each_cached(0..self.pages(), &mut |_, _| pages += 1);
        pages
    }

    /// State of the segment as `IPC_STAT` tells it, with its number.
    pub(crate) fn stat(&self, id: i32) -> ShmidDs {
        let mut info = *self.info.lock();
        info.owner = info.owner.numbered(id);
        info.attachments = self.attachments() as u64;
        info
    }
}
