//! A file in use: its attributes in memory, and bringing it to the disk.

use alloc::sync::{Arc, Weak};
use core::any::Any;
use core::ops::Deref;
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use ::block::PageCache;
use ::ext4::{Attributes, Ext4, Stat};
use abi::errno::Errno;
use linux_raw_sys::general::{S_ISGID, S_ISUID};
use task::{Mutex, MutexGuard};

use super::contents::Contents;
use super::{Ext4Fs, acl};
use crate::acl::{Acl, AclKind};
use crate::attributes::FileAttributes;
use crate::inode::keeps_setid_bits;
use crate::pipe::Pipe;
use crate::{
    DeviceId, FileType, Inode, Metadata, Permissions, Result, SetAttr, Timestamp, WriteCount, xattr,
};

/// Attributes of a file, in memory.
pub(super) struct Attr {
    mode: u32,
    nlink: u32,
    uid: u32,
    gid: u32,
    /// Bytes; of a regular file its contents know better.
    size: u64,
    sectors: u64,
    atime: Timestamp,
    mtime: Timestamp,
    ctime: Timestamp,
    btime: Timestamp,
    attributes: FileAttributes,
    device: Option<DeviceId>,
    /// Access control list, unless the permission bits say it all.
    pub(super) acl: Option<Acl>,
    /// Access control list that new files in the directory get.
    pub(super) default_acl: Option<Acl>,
}

impl Attr {
    fn new(stat: &Stat, acl: Option<Acl>, default_acl: Option<Acl>) -> Self {
        let has_device = matches!(stat.kind, ::ext4::FileType::Char | ::ext4::FileType::Block);
        Self {
            mode: stat.mode.into(),
            nlink: stat.links,
            uid: stat.uid,
            gid: stat.gid,
            size: stat.size,
            sectors: stat.sectors,
            atime: stat.accessed.into(),
            mtime: stat.modified.into(),
            ctime: stat.changed.into(),
            btime: stat.created.into(),
            attributes: FileAttributes::from_bits_truncate(stat.flags),
            device: has_device.then(|| DeviceId::new(stat.device.0, stat.device.1)),
            acl,
            default_acl,
        }
    }

    /// Takes over what the disk says, but for times, if those here are newer.
    fn update(&mut self, stat: &Stat, is_newer: bool) {
        let times = (self.atime, self.mtime, self.ctime);
        *self = Self::new(stat, self.acl.take(), self.default_acl.take());
        if is_newer {
            (self.atime, self.mtime) = (times.0, times.1);
            self.ctime = self.ctime.max(times.2);
        }
    }

    fn permissions(&self, kind: FileType) -> Permissions {
        Permissions {
            is_directory: kind == FileType::Directory,
            mode: self.mode,
            uid: self.uid,
            gid: self.gid,
            attributes: self.attributes,
        }
    }
}

pub(super) fn kind_of(kind: ::ext4::FileType) -> FileType {
    match kind {
        ::ext4::FileType::Regular => FileType::Regular,
        ::ext4::FileType::Directory => FileType::Directory,
        ::ext4::FileType::Symlink => FileType::Symlink,
        ::ext4::FileType::Char => FileType::Char,
        ::ext4::FileType::Block => FileType::Block,
        ::ext4::FileType::Fifo => FileType::Fifo,
        ::ext4::FileType::Socket => FileType::Socket,
    }
}

/// State of a file in memory, which is there while somebody uses the file, or something of it is
/// not on the disk yet.
pub(super) struct InodeState {
    _counted: census::Inode,
    this: Weak<Self>,
    fs: Arc<Ext4Fs>,
    ino: u32,
    kind: FileType,
    attr: Mutex<Attr>,
    /// Whether times are newer than those on the disk. Changed with `attr` locked.
    has_new_times: AtomicBool,
    /// Whether it has a name, which is asked where nobody may wait for `attr`.
    has_name: AtomicBool,
    /// Of a regular file.
    contents: Option<Contents>,
    /// Of a named pipe.
    pub(super) pipe: Option<Arc<Pipe>>,
    pub(super) writers: WriteCount,
    pub(super) write_hint: AtomicU8,
    /// Whether it is on the list of files of which something is not on the disk.
    pub(super) is_listed: AtomicBool,
    /// Whether it may have capabilities, which a write takes away.
    may_have_capabilities: AtomicBool,
    /// The inode that users have, if there are any. Changed with the table of inodes locked.
    user: Mutex<Weak<Ext4Inode>>,
    visits: Mutex<Visits>,
}

/// Visits of a file by those who write it back, and what becomes of it then.
#[derive(Default)]
struct Visits {
    count: usize,
    /// Whether it has neither a name nor a user: it is removed at the end of the last visit.
    is_unused: bool,
}

/// A file of an ext4 file system that somebody uses: by name, as an open file, mapped.
///
/// Who writes it back does without: so the end of its last use is that of a user, and a file that
/// has no name is removed then, or as soon as nobody writes it back any more.
pub(super) struct Ext4Inode(Arc<InodeState>);

impl Deref for Ext4Inode {
    type Target = InodeState;

    fn deref(&self) -> &InodeState {
        &self.0
    }
}

impl InodeState {
    /// The file with a number, as the disk has it.
    pub(super) fn load(fs: Arc<Ext4Fs>, ino: u32) -> Result<Arc<Self>> {
        let (stat, acl, default_acl) = fs.with(|ext4| {
            let stat = ext4.stat(ino)?;
            if !stat.has_attributes {
                return Ok((stat, None, None));
            }
            let is_directory = stat.kind == ::ext4::FileType::Directory;
            let acl = stored_acl(ext4, ino, AclKind::Access)?;
            let default_acl = if is_directory {
                stored_acl(ext4, ino, AclKind::Default)?
            } else {
                None
            };
            Ok((stat, acl, default_acl))
        })?;
        let kind = kind_of(stat.kind);
        if stat.links == 0 {
            fs.orphans.fetch_add(1, Ordering::Relaxed);
        }
        let is_regular = kind == FileType::Regular;
        Ok(Arc::new_cyclic(|this| Self {
            _counted: census::Inode::default(),
            this: this.clone(),
            contents: is_regular.then(|| Contents::new(&fs, ino, stat.size)),
            pipe: (kind == FileType::Fifo).then(Pipe::new),
            fs,
            ino,
            kind,
            attr: Mutex::new(Attr::new(&stat, acl, default_acl)),
            has_new_times: AtomicBool::new(false),
            has_name: AtomicBool::new(stat.links > 0),
            writers: WriteCount::default(),
            write_hint: AtomicU8::new(0),
            is_listed: AtomicBool::new(false),
            may_have_capabilities: AtomicBool::new(stat.has_attributes),
            user: Mutex::new(Weak::new()),
            visits: Mutex::default(),
        }))
    }

    /// The inode for one more user. Called with the table of inodes locked.
    pub(super) fn user(self: Arc<Self>) -> Arc<Ext4Inode> {
        let state = self.clone();
        let mut user = state.user.lock();
        user.upgrade().unwrap_or_else(|| {
            let inode = Arc::new(Ext4Inode(self));
            *user = Arc::downgrade(&inode);
            inode
        })
    }

    /// Whether users have this inode now.
    pub(super) fn is_used_by(&self, user: &Ext4Inode) -> bool {
        core::ptr::eq(self.user.lock().as_ptr(), user)
    }

    /// Calls `write`, which writes something of the file to the disk. Until it returns the file is
    /// not removed; if it has been, nothing is done.
    pub(super) fn visit(&self, write: impl FnOnce(&Self)) {
        {
            let mut visits = self.visits.lock();
            if visits.is_unused {
                return;
            }
            visits.count += 1;
        }
        write(self);
        let is_unused = {
            let mut visits = self.visits.lock();
            visits.count -= 1;
            visits.count == 0 && visits.is_unused
        };
        if is_unused {
            self.remove();
        }
    }

    /// Removes the file, of which nobody uses or writes anything any more.
    fn remove(&self) {
        if let Some(cache) = self.cache() {
            cache.forget();
        }
        self.fs.unlist(self);
        let removed = self.fs.with(|ext4| ext4.release(self.ino));
        if let Err(error) = removed {
            log::warn!(
                "EXT4-fs ({}): file {} stays on the list of orphans: {}",
                self.fs.disk,
                self.ino,
                error.text()
            );
        }
        self.fs.orphans.fetch_sub(1, Ordering::Relaxed);
        self.fs.removals.end();
    }

    pub(super) fn fs(&self) -> &Arc<Ext4Fs> {
        &self.fs
    }

    pub(super) fn number(&self) -> u32 {
        self.ino
    }

    pub(super) fn file_type(&self) -> FileType {
        self.kind
    }

    pub(super) fn attr(&self) -> MutexGuard<'_, Attr> {
        self.attr.lock()
    }

    /// Contents of a regular file.
    pub(super) fn contents(&self) -> Result<&Contents> {
        self.contents
            .as_ref()
            .ok_or(if self.kind == FileType::Directory {
                Errno::EISDIR
            } else {
                Errno::EINVAL
            })
    }

    pub(super) fn cache(&self) -> Option<&Arc<PageCache>> {
        self.contents.as_ref().map(Contents::cache)
    }

    pub(super) fn has_name(&self) -> bool {
        self.has_name.load(Ordering::Acquire)
    }

    /// The same type of an inode, if it is of the same file system.
    pub(super) fn downcast(&self, other: &Arc<dyn Inode>) -> Result<Arc<Ext4Inode>> {
        let any: Arc<dyn Any + Send + Sync> = other.clone();
        let other = any.downcast::<Ext4Inode>().map_err(|_| Errno::EXDEV)?;
        if Arc::ptr_eq(&other.fs, &self.fs) {
            Ok(other)
        } else {
            Err(Errno::EXDEV)
        }
    }

    pub(super) fn metadata_now(&self) -> Metadata {
        let attr = self.attr.lock();
        Metadata {
            dev: self.fs.id.encode(),
            ino: self.ino.into(),
            kind: self.kind,
            mode: attr.mode,
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            rdev: attr.device.map_or(0, DeviceId::encode),
            size: self.contents.as_ref().map_or(attr.size, Contents::size),
            blocks: attr.sectors,
            blksize: self.fs.block_size as u32,
            atime: attr.atime,
            mtime: attr.mtime,
            ctime: attr.ctime,
            btime: Some(attr.btime),
            attributes: attr.attributes,
        }
    }

    pub(super) fn permissions_now(&self) -> Permissions {
        self.attr.lock().permissions(self.kind)
    }

    /// Permissions with the access control list.
    pub(super) fn permissions_and_acl(&self) -> (Permissions, Option<Acl>) {
        let attr = self.attr.lock();
        (attr.permissions(self.kind), attr.acl.clone())
    }

    pub(super) fn device_number(&self) -> Option<DeviceId> {
        self.attr.lock().device
    }

    pub(super) fn file_attributes(&self) -> FileAttributes {
        self.attr.lock().attributes
    }

    /// Takes over what the disk says, after it was changed there.
    pub(super) fn refresh(&self) -> Result<()> {
        let stat = self.fs.with(|ext4| ext4.stat(self.ino))?;
        let has_name = stat.links > 0;
        let had_name = {
            let mut attr = self.attr.lock();
            attr.update(&stat, self.has_new_times.load(Ordering::Acquire));
            self.has_name.swap(has_name, Ordering::AcqRel)
        };
        if has_name && !had_name {
            self.fs.orphans.fetch_sub(1, Ordering::Relaxed);
        } else if had_name && !has_name {
            self.fs.orphans.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Something of it is not on the disk.
    pub(super) fn list(&self) {
        if !self.is_listed.swap(true, Ordering::AcqRel)
            && let Some(this) = self.this.upgrade()
        {
            self.fs.list(this);
        }
    }

    pub(super) fn is_dirty(&self) -> bool {
        self.cache().is_some_and(|cache| cache.is_dirty())
            || self.has_new_times.load(Ordering::Acquire)
    }

    /// Writes back what is dirty since `before` or longer.
    pub(super) fn write_back(&self, before: u64) {
        if let Some(cache) = self.cache() {
            cache.write_back(0..u64::MAX, before);
            if cache.is_dirty() {
                return;
            }
        }
        // A failure is in the log.
        let _ = self.write_times();
    }

    /// Writes everything back, and waits for what others are writing.
    pub(super) fn write_all(&self) {
        if let Some(cache) = self.cache() {
            cache.write_range(0..u64::MAX);
        }
        let _ = self.write_times();
    }

    fn write_times(&self) -> Result<()> {
        let new = {
            let attr = self.attr.lock();
            if !self.has_new_times.swap(false, Ordering::AcqRel) {
                return Ok(());
            }
            Attributes {
                accessed: Some(attr.atime.into()),
                modified: Some(attr.mtime.into()),
                changed: Some(attr.ctime.into()),
                ..Attributes::default()
            }
        };
        self.fs.with(|ext4| ext4.set_attributes(self.ino, &new))
    }

    /// Brings contents and attributes to the medium.
    pub(super) fn sync_all(&self) -> Result<()> {
        if let Some(cache) = self.cache() {
            cache.write_range(0..u64::MAX);
        }
        self.write_times()?;
        self.fs.commit()
    }

    /// Changes times in memory.
    pub(super) fn touch(&self, change: impl FnOnce(&mut [&mut Timestamp; 3]) -> bool) {
        {
            let mut attr = self.attr.lock();
            let Attr {
                atime,
                mtime,
                ctime,
                ..
            } = &mut *attr;
            if !change(&mut [atime, mtime, ctime]) {
                return;
            }
            self.has_new_times.store(true, Ordering::Release);
        }
        self.list();
    }

    /// After a change of the contents. Times that are the same in whole units are not new: who
    /// writes over a file and syncs it, many times in one unit, changes the inode once.
    pub(super) fn touch_modified(&self) {
        let now = Timestamp::coarse_now();
        self.touch(|[_, mtime, ctime]| {
            let are_new = (**mtime, **ctime) != (now, now);
            (**mtime, **ctime) = (now, now);
            are_new
        });
        // What was written is dirty, whether the times are new or not.
        self.list();
    }

    /// The file has so many blocks of 512 bytes now.
    pub(super) fn set_sectors(&self, sectors: u64) {
        self.attr.lock().sectors = sectors;
    }

    /// After a write, which takes set-id bits, unless the writer keeps them, and capabilities away.
    pub(super) fn drop_privileges(&self) -> Result<()> {
        let mode = self.attr.lock().mode;
        if self.may_have_capabilities.swap(false, Ordering::Relaxed) {
            let ino = self.ino;
            let removed = self
                .fs
                .with(|ext4| match ext4.xattr(ino, xattr::CAPABILITY) {
                    Err(Errno::ENODATA) => Ok(()),
                    _ => ext4.remove_xattr(ino, xattr::CAPABILITY),
                });
            removed.inspect_err(|_| self.note_capabilities())?;
        }
        if mode & (S_ISUID | S_ISGID) == 0 || keeps_setid_bits() {
            return Ok(());
        }
        let group = if mode & 0o010 != 0 { S_ISGID } else { 0 };
        self.change(&SetAttr {
            mode: Some(mode & !(S_ISUID | group)),
            ..SetAttr::default()
        })
    }

    /// Notes that it may have capabilities from now on.
    pub(super) fn note_capabilities(&self) {
        self.may_have_capabilities.store(true, Ordering::Relaxed);
    }

    /// Changes attributes on the disk, and then here.
    pub(super) fn change(&self, change: &SetAttr) -> Result<()> {
        let mut attr = self.attr.lock();
        let acl = match (&attr.acl, change.mode) {
            (Some(acl), Some(mode)) => Some(acl.with_mode(mode)?),
            _ => None,
        };
        let new = Attributes {
            mode: change.mode.map(|mode| mode as u16 & 0o7777),
            uid: change.uid,
            gid: change.gid,
            accessed: Some(change.atime.unwrap_or(attr.atime).into()),
            modified: Some(change.mtime.unwrap_or(attr.mtime).into()),
            ..Attributes::default()
        };
        let set = |ext4: &mut Ext4| {
            if let Some(acl) = &acl {
                let value = acl::to_stored(acl)?;
                let name = AclKind::Access.xattr();
                ext4.set_xattr(self.ino, name, &value, ::ext4::SetMode::Any)?;
            }
            ext4.set_attributes(self.ino, &new)?;
            ext4.stat(self.ino)
        };
        let stat = self.fs.with_room(set, |_| false)?;
        self.has_new_times.store(false, Ordering::Release);
        if acl.is_some() {
            attr.acl = acl;
        }
        attr.update(&stat, false);
        Ok(())
    }

    /// Changes the file on the disk, and takes over what is changed by that.
    pub(super) fn change_on_disk<R>(
        &self,
        change: impl FnMut(&mut Ext4) -> Result<R>,
    ) -> Result<R> {
        let done = self.fs.with_room(change, |_| false);
        // Also after an error: an operation of several steps may have done some.
        self.refresh().and(done)
    }
}

/// A list that the disk has of a file.
fn stored_acl(ext4: &mut Ext4, ino: u32, kind: AclKind) -> Result<Option<Acl>> {
    match ext4.xattr(ino, kind.xattr()) {
        Ok(value) => acl::from_stored(&value),
        Err(Errno::ENODATA) => Ok(None),
        Err(error) => Err(error),
    }
}

impl Drop for Ext4Inode {
    fn drop(&mut self) {
        let state = &self.0;
        if state.has_name() || !state.fs.forget_inode(state, self) {
            return;
        }
        state.fs.removals.begin();
        if let Some(cache) = state.cache() {
            cache.forget_dirty();
        }
        let is_visited = {
            let mut visits = state.visits.lock();
            visits.is_unused = true;
            visits.count > 0
        };
        // This may be a visitor, too: who maps a file that is written may end just now.
        if !is_visited {
            state.remove();
        }
    }
}
