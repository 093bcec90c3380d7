//! What System V semaphores, message queues and shared memory have in common: keys, numbers, owners
//! and permissions (`sysvipc(7)`).

pub(crate) mod limits;
pub(crate) mod mqueue;
pub(crate) mod msg;
pub(crate) mod sem;
pub(crate) mod shm;

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use ::task::Mutex;
use abi::errno::Errno;
use linux_raw_sys::general as sys;
use uapi::time::NS_PER_SEC;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::SysResult;
use crate::state::credentials::Credentials;

/// The key of an object that nobody else finds.
pub(crate) const IPC_PRIVATE: i32 = 0;
pub(crate) const IPC_CREAT: u32 = 0o1000;
pub(crate) const IPC_EXCL: u32 = 0o2000;
pub(crate) const IPC_NOWAIT: u32 = 0o4000;
pub(crate) const IPC_RMID: u32 = 0;
pub(crate) const IPC_SET: u32 = 1;
pub(crate) const IPC_STAT: u32 = 2;
pub(crate) const IPC_INFO: u32 = 3;
/// A flag of old C libraries' commands.
pub(crate) const IPC_64: u32 = 0x100;
/// Access that somebody wants to an object.
pub(crate) const READ: u32 = 0o4;
pub(crate) const WRITE: u32 = 0o2;

/// Owner, creator and mode of an object: Linux' `struct ipc64_perm`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct IpcPerm {
    pub(crate) key: i32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) creator_uid: u32,
    pub(crate) creator_gid: u32,
    pub(crate) mode: u32,
    sequence: u16,
    pad: [u16; 3],
    unused: [u64; 2],
}

impl IpcPerm {
    pub(crate) fn new(key: i32, flags: u32, cred: &Credentials) -> Self {
        let (uid, gid) = (cred.user.effective, cred.group.effective);
        Self {
            key,
            uid,
            gid,
            creator_uid: uid,
            creator_gid: gid,
            mode: flags & 0o777,
            sequence: 0,
            pad: [0; 3],
            unused: [0; 2],
        }
    }

    /// Whether somebody may do what `wanted` ([`READ`], [`WRITE`]) says.
    ///
    /// # Errors
    /// `EACCES`.
    pub(crate) fn check(&self, cred: &Credentials, wanted: u32) -> Result<(), Errno> {
        let (user, group) = (cred.user.effective, cred.group.effective);
        let member = |gid: u32| gid == group || cred.groups.contains(&gid);
        let allowed = if user == self.uid || user == self.creator_uid {
            self.mode >> 6
        } else if member(self.gid) || member(self.creator_gid) {
            self.mode >> 3
        } else {
            self.mode
        };
        if allowed & wanted == wanted || cred.capable(sys::CAP_IPC_OWNER) {
            Ok(())
        } else {
            Err(Errno::EACCES)
        }
    }

    /// Whether somebody may change or remove the object.
    ///
    /// # Errors
    /// `EPERM`.
    pub(crate) fn check_owner(&self, cred: &Credentials) -> Result<(), Errno> {
        if cred.has_sys_admin() {
            Ok(())
        } else {
            self.check_created(cred)
        }
    }

    /// Whether somebody owns the object or has made it.
    ///
    /// # Errors
    /// `EPERM`.
    pub(crate) fn check_created(&self, cred: &Credentials) -> Result<(), Errno> {
        let user = cred.user.effective;
        if user == self.uid || user == self.creator_uid {
            Ok(())
        } else {
            Err(Errno::EPERM)
        }
    }

    /// Owner and permissions as `IPC_STAT` shows them to somebody who may read the object `id`.
    ///
    /// # Errors
    /// `EACCES`.
    pub(crate) fn stat(self, id: i32, cred: &Credentials) -> Result<Self, Errno> {
        self.check(cred, READ)?;
        Ok(self.numbered(id))
    }

    /// Takes over what `IPC_SET` sets.
    ///
    /// # Errors
    /// `EINVAL` for ids that are nobody's.
    pub(crate) fn set(&mut self, new: &Self) -> Result<(), Errno> {
        if new.uid == u32::MAX || new.gid == u32::MAX {
            return Err(Errno::EINVAL);
        }
        (self.uid, self.gid) = (new.uid, new.gid);
        self.mode = self.mode & !0o777 | new.mode & 0o777;
        Ok(())
    }
}

/// Present time of the wall clock, in seconds since 1970.
pub(crate) fn now() -> i64 {
    (guard::timer::wall_ns() / NS_PER_SEC).cast_signed()
}

/// An object that a number means.
pub(crate) trait IpcObject {
    /// Owner and permissions of the object, as they are now.
    fn owner(&self) -> IpcPerm;
}

impl IpcPerm {
    /// The permissions with the part of a number that is not the index.
    pub(crate) fn numbered(self, id: i32) -> Self {
        Self {
            sequence: (id >> INDEX_BITS) as u16,
            ..self
        }
    }
}

/// Number of lower bits of an identifier that are its index, by which `*_STAT` commands find
/// objects.
const INDEX_BITS: u32 = 15;

/// Indexes that are gone round before one is given out again, if there are not more objects than
/// that already: Linux' `ipc_min_cycle`.
const LEAST_CYCLE: i32 = 64;

/// Sequence that is not reached: 0 comes after the one before it (Linux' `ipcid_seq_max`).
const SEQUENCES: i32 = i32::MAX >> INDEX_BITS;

/// Objects by number: the next free index of a cycle, and above it how often one of a lower index
/// was made after one of a higher, so that a number is not soon another object's.
pub(crate) struct IpcIds<T> {
    sequence: i32,
    last_index: i32,
    /// First index that the search for a free one looks at.
    next_index: i32,
    /// Number that the next object gets, or the next free one of the same sequence
    /// (`/proc/sys/kernel/*_next_id`); -1 if nobody has asked for one.
    next: i32,
    /// By index, with the whole number.
    objects: BTreeMap<i32, (i32, T)>,
}

impl<T> IpcIds<T> {
    pub(crate) const fn new() -> Self {
        Self {
            sequence: 0,
            last_index: -1,
            next_index: 0,
            next: -1,
            objects: BTreeMap::new(),
        }
    }

    /// Number that was asked for the next object; -1 if none was.
    pub(crate) fn next(&self) -> i32 {
        self.next
    }

    /// Asks for the number of the next object.
    pub(crate) fn set_next(&mut self, id: i32) {
        self.next = id;
    }

    /// Gives an object a number.
    pub(crate) fn insert(&mut self, object: T) -> i32 {
        let wanted = core::mem::replace(&mut self.next, -1);
        if wanted >= 0 {
            let free = |index: &i32| !self.objects.contains_key(index);
            let first = Self::index(wanted);
            if let Some(index) = (first..=Self::index(-1)).find(free) {
                let id = wanted & !Self::index(-1) | index;
                self.objects.insert(index, (id, object));
                return id;
            }
        }
        let index = self.free_index();
        self.next_index = index + 1;
        if index <= self.last_index {
            self.sequence = (self.sequence + 1) % SEQUENCES;
        }
        self.last_index = index;
        let id = self.sequence << INDEX_BITS | index;
        self.objects.insert(index, (id, object));
        id
    }

    /// The first free index from [`Self::next_index`] on; behind the cycle the lowest one.
    fn free_index(&self) -> i32 {
        let count = self.objects.len() as i32;
        let cycle = (count + count / 2).clamp(LEAST_CYCLE, 1 << INDEX_BITS);
        let free = |index: &i32| !self.objects.contains_key(index);
        let mut found = (self.next_index..cycle).find(free);
        if found.is_none() {
            found = (0..cycle).find(free);
        }
        found.unwrap_or(count)
    }

    /// Index of an identifier.
    const fn index(id: i32) -> i32 {
        id & ((1 << INDEX_BITS) - 1)
    }

    pub(crate) fn get(&self, id: i32) -> Option<&T> {
        self.objects
            .get(&Self::index(id))
            .filter(|(own, _)| *own == id)
            .map(|(_, object)| object)
    }

    pub(crate) fn get_mut(&mut self, id: i32) -> Option<&mut T> {
        self.objects
            .get_mut(&Self::index(id))
            .filter(|(own, _)| *own == id)
            .map(|(_, object)| object)
    }

    /// Object at an index, with its identifier. Of a whole identifier the index counts.
    pub(crate) fn by_index(&self, index: i32) -> Option<(i32, &T)> {
        let found = self.objects.get(&Self::index(index));
        found.map(|(id, object)| (*id, object))
    }

    pub(crate) fn remove(&mut self, id: i32) -> Option<T> {
        self.get(id)?;
        self.objects
            .remove(&Self::index(id))
            .map(|(_, object)| object)
    }

    pub(crate) fn retain(&mut self, keep: impl Fn(&T) -> bool) {
        self.objects.retain(|_, (_, object)| keep(object));
    }

    /// Keeps the objects for which `keep` holds, which may change them.
    pub(crate) fn retain_mut(&mut self, mut keep: impl FnMut(&mut T) -> bool) {
        self.objects.retain(|_, (_, object)| keep(object));
    }

    pub(crate) fn len(&self) -> usize {
        self.objects.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (i32, &T)> {
        self.objects.values().map(|(id, object)| (*id, object))
    }

    /// Highest index in use; 0 if there is none, as `IPC_INFO` returns it.
    pub(crate) fn max_index(&self) -> usize {
        self.objects
            .last_key_value()
            .map_or(0, |(&index, _)| index as usize)
    }
}

/// All objects of one kind.
pub(crate) struct IpcTable<T> {
    objects: Mutex<IpcIds<Arc<T>>>,
}

impl<T: IpcObject> IpcTable<T> {
    pub(crate) const fn new() -> Self {
        Self {
            objects: Mutex::new(IpcIds::new()),
        }
    }

    /// Number that was asked for the next object; -1 if none was.
    pub(crate) fn next(&self) -> i32 {
        self.objects.lock().next()
    }

    /// Asks for the number of the next object.
    pub(crate) fn set_next(&self, id: i32) {
        self.objects.lock().set_next(id);
    }

    /// The number of the object with a key (`semget(2)`, `msgget(2)`): one that is there if `fits`
    /// says so, or else a new one by `make`, which sees the others, if there are fewer than
    /// `limit`.
    pub(crate) fn get(
        &self,
        key: i32,
        flags: u32,
        cred: &Credentials,
        limit: usize,
        fits: impl FnOnce(&T) -> Result<(), Errno>,
        make: impl FnOnce(IpcPerm, &IpcIds<Arc<T>>) -> Result<T, Errno>,
    ) -> SysResult {
        let mut objects = self.objects.lock();
        let there = objects
            .iter()
            .find(|(_, object)| key != IPC_PRIVATE && object.owner().key == key);
        if let Some((id, object)) = there {
            if flags & (IPC_CREAT | IPC_EXCL) == IPC_CREAT | IPC_EXCL {
                return Err(Errno::EEXIST);
            }
            // What the lower nine bits ask of anybody is asked of the caller.
            object
                .owner()
                .check(cred, (flags | flags >> 3 | flags >> 6) & 7)?;
            fits(object)?;
            return Ok(id as usize);
        }
        if key != IPC_PRIVATE && flags & IPC_CREAT == 0 {
            return Err(Errno::ENOENT);
        }
        if objects.len() >= limit {
            return Err(Errno::ENOSPC);
        }
        let object = Arc::new(make(IpcPerm::new(key, flags, cred), &objects)?);
        Ok(objects.insert(object) as usize)
    }

    /// The object of a number.
    ///
    /// # Errors
    /// `EINVAL`.
    pub(crate) fn find(&self, id: i32) -> Result<Arc<T>, Errno> {
        self.objects.lock().get(id).cloned().ok_or(Errno::EINVAL)
    }

    /// Object at an index (`SEM_STAT` and its like), with its identifier.
    ///
    /// # Errors
    /// `EINVAL`.
    pub(crate) fn by_index(&self, index: i32) -> Result<(i32, Arc<T>), Errno> {
        self.objects
            .lock()
            .by_index(index)
            .map(|(id, object)| (id, object.clone()))
            .ok_or(Errno::EINVAL)
    }

    /// Highest index in use; 0 if there is none.
    pub(crate) fn max_index(&self) -> usize {
        self.objects.lock().max_index()
    }

    /// Takes an object out.
    pub(crate) fn remove(&self, id: i32) {
        let object = self.objects.lock().remove(id);
        drop(object);
    }

    /// All of them, with their numbers.
    pub(crate) fn all(&self) -> Vec<(i32, Arc<T>)> {
        self.objects
            .lock()
            .iter()
            .map(|(id, object)| (id, object.clone()))
            .collect()
    }
}
