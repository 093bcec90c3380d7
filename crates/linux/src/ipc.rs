//! What System V semaphores and message queues have in common: keys, numbers, owners and permissions (`sysvipc(7)`).

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use ::task::Mutex;
use abi::errno::Errno;
use linux_raw_sys::general as sys;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::SysResult;
use crate::credentials::Credentials;
use crate::time::NS_PER_SEC;

/// The key of an object that nobody else finds.
const IPC_PRIVATE: i32 = 0;
const IPC_CREAT: u32 = 0o1000;
const IPC_EXCL: u32 = 0o2000;
pub(crate) const IPC_NOWAIT: u32 = 0o4000;
pub(crate) const IPC_RMID: u32 = 0;
pub(crate) const IPC_SET: u32 = 1;
pub(crate) const IPC_STAT: u32 = 2;
/// A flag of old C libraries' commands.
pub(crate) const IPC_64: u32 = 0x100;
/// What somebody wants to do with an object.
pub(crate) const READ: u32 = 0o4;
pub(crate) const WRITE: u32 = 0o2;

/// Linux' `struct ipc64_perm`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Owner {
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

impl Owner {
    fn new(key: i32, flags: u32, cred: &Credentials) -> Self {
        let (uid, gid) = (cred.user.effective, cred.group.effective);
        Self { key, uid, gid, creator_uid: uid, creator_gid: gid, mode: flags & 0o777, sequence: 0, pad: [0; 3], unused: [0; 2] }
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
        if allowed & wanted == wanted || cred.capable(sys::CAP_IPC_OWNER) { Ok(()) } else { Err(Errno::EACCES) }
    }

    /// Whether somebody may change or remove the object.
    ///
    /// # Errors
    /// `EPERM`.
    pub(crate) fn check_owner(&self, cred: &Credentials) -> Result<(), Errno> {
        let user = cred.user.effective;
        if user == self.uid || user == self.creator_uid || cred.privileged() { Ok(()) } else { Err(Errno::EPERM) }
    }

    /// Takes over what `IPC_SET` sets.
    pub(crate) fn set(&mut self, new: &Self) {
        (self.uid, self.gid) = (new.uid, new.gid);
        self.mode = self.mode & !0o777 | new.mode & 0o777;
    }
}

/// Seconds since 1970.
pub(crate) fn now() -> i64 {
    (guard::timer::wall_ns() / NS_PER_SEC).cast_signed()
}

/// An object that a number means.
pub(crate) trait Object {
    /// Its owner and permissions, as they are now.
    fn owner(&self) -> Owner;
}

/// All objects of one kind.
pub(crate) struct Registry<T> {
    objects: Mutex<(i32, BTreeMap<i32, Arc<T>>)>,
    /// The most there are.
    limit: usize,
}

impl<T: Object> Registry<T> {
    pub(crate) const fn new(limit: usize) -> Self {
        Self { objects: Mutex::new((0, BTreeMap::new())), limit }
    }

    /// The number of the object with a key (`semget(2)`, `msgget(2)`): one that is there if `fits` says so, or else a new one by `make`.
    pub(crate) fn get(
        &self,
        key: i32,
        flags: u32,
        cred: &Credentials,
        fits: impl FnOnce(&T) -> Result<(), Errno>,
        make: impl FnOnce(Owner) -> Result<T, Errno>,
    ) -> SysResult {
        let mut objects = self.objects.lock();
        let (next, objects) = &mut *objects;
        let there = objects.iter().find(|(_, object)| key != IPC_PRIVATE && object.owner().key == key);
        if let Some((&id, object)) = there {
            if flags & (IPC_CREAT | IPC_EXCL) == IPC_CREAT | IPC_EXCL {
                return Err(Errno::EEXIST);
            }
            // What the lower nine bits ask of anybody is asked of the caller.
            object.owner().check(cred, (flags | flags >> 3 | flags >> 6) & 7)?;
            fits(object)?;
            return Ok(id as usize);
        }
        if key != IPC_PRIVATE && flags & IPC_CREAT == 0 {
            return Err(Errno::ENOENT);
        }
        if objects.len() >= self.limit {
            return Err(Errno::ENOSPC);
        }
        let object = Arc::new(make(Owner::new(key, flags, cred))?);
        while objects.contains_key(next) {
            *next = (*next + 1) & i32::MAX;
        }
        let id = *next;
        *next = (*next + 1) & i32::MAX;
        objects.insert(id, object);
        Ok(id as usize)
    }

    /// The object of a number.
    ///
    /// # Errors
    /// `EINVAL`.
    pub(crate) fn find(&self, id: i32) -> Result<Arc<T>, Errno> {
        self.objects.lock().1.get(&id).cloned().ok_or(Errno::EINVAL)
    }

    /// Takes an object out.
    pub(crate) fn remove(&self, id: i32) {
        let object = self.objects.lock().1.remove(&id);
        drop(object);
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<Arc<T>> {
        self.objects.lock().1.values().cloned().collect()
    }
}
