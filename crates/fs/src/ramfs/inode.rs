//! What a file in memory does.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::{AtomicU8, Ordering};

use abi::errno::Errno;
use linux_raw_sys::general as sys;

use super::directory::ListingEntry;
use super::{
    Attr, ENTRY_BYTES, InodeData, MAX_LINKS, MAX_SIZE, PAGE_SIZE, RamInode, S_ISGID, SealedChange,
    XATTRS_MAX,
};
use crate::acl::{Acl, AclKind};
use crate::attributes::FileAttributes;
use crate::charge;
use crate::pipe::Pipe;
use crate::xattr::SetMode;
use crate::{
    Access, Cred, DeviceId, DirEntry, FileType, Inode, LinkTarget, Metadata, NewInode, Permissions,
    RenameFlags, Result, SetAttr, Timestamp, WriteCount,
};

impl Inode for RamInode {
    fn metadata(&self) -> Metadata {
        let (size, blocks, subdirs) = match &self.data {
            InodeData::Regular(contents) => {
                let (size, pages) = contents.size_and_pages();
                (size, pages * (PAGE_SIZE / 512), 0)
            }
            InodeData::Directory(dir) => {
                let dir = dir.lock();
                (
                    dir.entries.len() as u64 * 20 + 40,
                    0,
                    if dir.dead { 0 } else { dir.subdirs + 1 },
                )
            }
            InodeData::Symlink(target) => (target.len() as u64, 0, 0),
            _ => (0, 0, 0),
        };
        let rdev = self.device().map_or(0, DeviceId::encode);
        let attr = self.attr.lock();
        Metadata {
            dev: self.info.dev,
            ino: self.ino,
            kind: self.kind(),
            mode: attr.mode,
            nlink: attr.nlink + subdirs,
            uid: attr.uid,
            gid: attr.gid,
            rdev,
            size,
            blocks,
            blksize: PAGE_SIZE as u32,
            atime: attr.atime,
            mtime: attr.mtime,
            ctime: attr.ctime,
            btime: Some(attr.btime),
            attributes: attr.attributes,
        }
    }

    fn permissions(&self) -> Permissions {
        self.permissions_of(&self.attr.lock())
    }

    fn check_access(&self, cred: &Cred, want: Access) -> Result<()> {
        // A long list is not gone through under the lock.
        let (permissions, acl) = {
            let attr = self.attr.lock();
            (self.permissions_of(&attr), attr.acl.clone())
        };
        cred.check_with_acl(&permissions, acl.as_ref(), want)
    }

    fn is_granted_to_all(&self, want: Access) -> bool {
        // The same for owner, group and others.
        let bits = want.0 * 0o111;
        self.mode.load(Ordering::Relaxed) & bits == bits
    }

    fn kind(&self) -> FileType {
        match &self.data {
            InodeData::Regular(_) => FileType::Regular,
            InodeData::Directory(_) => FileType::Directory,
            InodeData::Symlink(_) => FileType::Symlink,
            InodeData::Fifo(_) => FileType::Fifo,
            InodeData::Socket => FileType::Socket,
            InodeData::Device(kind, _) => *kind,
        }
    }

    fn set_attr(&self, change: &SetAttr) -> Result<()> {
        let mut attr = self.attr.lock();
        let executable = |mode: u32| mode & 0o111;
        if self.seals() & sys::F_SEAL_EXEC != 0
            && change
                .mode
                .is_some_and(|mode| executable(mode) != executable(attr.mode))
        {
            return Err(Errno::EPERM);
        }
        if let (Some(acl), Some(mode)) = (&attr.acl, change.mode) {
            attr.acl = Some(acl.with_mode(mode)?);
        }
        let Attr {
            mode,
            uid,
            gid,
            atime,
            mtime,
            ctime,
            ..
        } = &mut *attr;
        change.apply([mode, uid, gid], [atime, mtime, ctime]);
        self.publish_mode(&attr);
        Ok(())
    }

    fn lookup(&self, name: &[u8]) -> Result<Arc<dyn Inode>> {
        let dir = self.directory()?.lock();
        Ok(dir.entries.get(name).ok_or(Errno::ENOENT)?.inode.clone())
    }

    fn create(&self, name: &[u8], new: &NewInode<'_>) -> Result<Arc<dyn Inode>> {
        let inode = self.new_child(new)?;
        let mut dir = self.directory()?.lock();
        if dir.dead {
            return Err(Errno::ENOENT);
        }
        if dir.entries.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        dir.reserve()?;
        dir.insert(name, inode.clone());
        drop(dir);
        self.changed_names();
        Ok(inode)
    }

    fn tmpfile(&self, new: &NewInode<'_>) -> Result<Arc<dyn Inode>> {
        let inode = self.new_child(new)?;
        inode.attr.lock().nlink = 0;
        Ok(inode)
    }

    fn link(&self, name: &[u8], target: &Arc<dyn Inode>) -> Result<()> {
        let inode = self.downcast(target)?;
        let mut dir = self.directory()?.lock();
        if dir.dead {
            return Err(Errno::ENOENT);
        }
        if dir.entries.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        if inode.attr.lock().nlink >= MAX_LINKS {
            return Err(Errno::EMLINK);
        }
        if !charge::has_room(ENTRY_BYTES) {
            return Err(Errno::ENOSPC);
        }
        dir.reserve()?;
        inode.add_links(1);
        dir.insert(name, inode);
        drop(dir);
        self.changed_names();
        Ok(())
    }

    fn unlink(&self, name: &[u8]) -> Result<()> {
        let removed;
        let mut dir = self.directory()?.lock();
        if dir.entries.get(name).ok_or(Errno::ENOENT)?.inode.kind() == FileType::Directory {
            return Err(Errno::EISDIR);
        }
        removed = dir.remove(name);
        drop(dir);
        if let Some(inode) = &removed {
            inode.add_links(-1);
        }
        self.changed_names();
        Ok(())
    }

    fn rmdir(&self, name: &[u8]) -> Result<()> {
        let removed;
        let mut dir = self.directory()?.lock();
        {
            let victim = &dir.entries.get(name).ok_or(Errno::ENOENT)?.inode;
            victim.mark_dead()?;
        }
        removed = dir.remove(name);
        drop(dir);
        drop(removed);
        self.changed_names();
        Ok(())
    }

    fn rename(
        &self,
        name: &[u8],
        to: &Arc<dyn Inode>,
        to_name: &[u8],
        flags: RenameFlags,
        whiteout: Option<&NewInode<'_>>,
    ) -> Result<()> {
        let to = self.downcast(to)?;
        // Before anything is changed, because there may be no room for it.
        let whiteout = whiteout.map(|new| self.new_child(new)).transpose()?;
        // Names change only under the VFS's lock of their directory, and renames are serialised; so
        // what is looked at here in one step is still so in the next. The directories' own locks
        // are taken one at a time.
        let moved = self
            .directory()?
            .lock()
            .entries
            .get(name)
            .ok_or(Errno::ENOENT)?
            .inode
            .clone();
        let old = to
            .directory()?
            .lock()
            .entries
            .get(to_name)
            .map(|e| e.inode.clone());
        {
            let mut dir = to.directory()?.lock();
            if dir.dead {
                return Err(Errno::ENOENT);
            }
            dir.reserve()?;
        }
        self.directory()?.lock().reserve()?;
        match &old {
            Some(old) if !flags.contains(RenameFlags::EXCHANGE) => {
                if old.kind() == FileType::Directory {
                    old.mark_dead()?;
                } else {
                    old.add_links(-1);
                }
            }
            _ => {}
        }
        self.directory()?.lock().remove(name);
        to.directory()?.lock().insert(to_name, moved.clone());
        if flags.contains(RenameFlags::EXCHANGE)
            && let Some(old) = &old
        {
            self.directory()?.lock().insert(name, old.clone());
        }
        if let Some(whiteout) = whiteout {
            self.directory()?.lock().insert(name, whiteout);
        }
        moved.add_links(0);
        self.changed_names();
        to.changed_names();
        Ok(())
    }

    fn readdir(&self, cursor: u64, emit: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        let dir = self.directory()?.lock();
        for (
            &next,
            &ListingEntry {
                ref name,
                ino,
                kind,
            },
        ) in dir.order.range(cursor.saturating_add(1)..)
        {
            if !emit(DirEntry {
                name,
                ino,
                kind,
                next,
            }) {
                break;
            }
        }
        Ok(())
    }

    fn touch_atime(&self, always: bool) {
        let now = Timestamp::coarse_now();
        let mut attr = self.attr.lock();
        if attr.attributes.contains(FileAttributes::NOATIME) {
            return;
        }
        if always
            || attr.atime <= attr.mtime
            || attr.atime <= attr.ctime
            || now.sec - attr.atime.sec > 86_400
        {
            attr.atime = now;
        }
    }

    fn get_link(&self) -> Result<LinkTarget> {
        match &self.data {
            InodeData::Symlink(target) => Ok(LinkTarget::Text(target.to_vec())),
            _ => Err(Errno::EINVAL),
        }
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        Ok(self.contents()?.read(offset, buf))
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<usize> {
        self.check_seals(
            offset.saturating_add(buf.len() as u64),
            SealedChange::Contents,
        )?;
        let n = self.contents()?.write(Some(offset), buf)?.1;
        self.modified();
        Ok(n)
    }

    fn insert_page(&self, offset: u64, page: vm::Page) -> Result<()> {
        self.contents()?.insert_page(offset, page)?;
        self.modified();
        Ok(())
    }

    fn append(&self, buf: &[u8]) -> Result<(u64, usize)> {
        self.check_seals(u64::MAX, SealedChange::Contents)?;
        let written = self.contents()?.write(None, buf)?;
        self.modified();
        Ok(written)
    }

    fn truncate(&self, size: u64) -> Result<()> {
        if size > MAX_SIZE {
            return Err(Errno::EFBIG);
        }
        self.check_seals(size, SealedChange::Size)?;
        if self.contents()?.truncate(size) {
            self.mappings
                .unmap_mapping_range(size.div_ceil(PAGE_SIZE)..u64::MAX, vm::PrivateCopies::Unmap);
        }
        self.modified();
        Ok(())
    }

    fn fallocate(&self, mode: u32, offset: u64, len: u64) -> Result<()> {
        let punches = mode & sys::FALLOC_FL_PUNCH_HOLE != 0;
        if punches {
            self.check_seals(0, SealedChange::Contents)?;
        } else if mode & sys::FALLOC_FL_KEEP_SIZE == 0 {
            self.check_seals(
                self.contents()?
                    .size_and_pages()
                    .0
                    .max(offset.saturating_add(len)),
                SealedChange::Size,
            )?;
        }
        self.contents()?.fallocate(mode, offset, len)?;
        if mode & sys::FALLOC_FL_PUNCH_HOLE != 0 {
            self.mappings.unmap_mapping_range(
                offset.div_ceil(PAGE_SIZE)..(offset + len) / PAGE_SIZE,
                vm::PrivateCopies::Keep,
            );
        }
        self.modified();
        Ok(())
    }

    fn seals(&self) -> u32 {
        if matches!(self.data, InodeData::Regular(_)) {
            self.seals.load(Ordering::SeqCst)
        } else {
            0
        }
    }

    fn add_seals(&self, seals: u32) -> Result<()> {
        const KNOWN: u32 = sys::F_SEAL_SEAL
            | sys::F_SEAL_SHRINK
            | sys::F_SEAL_GROW
            | sys::F_SEAL_WRITE
            | sys::F_SEAL_FUTURE_WRITE
            | sys::F_SEAL_EXEC;
        self.contents().map_err(|_| Errno::EINVAL)?;
        if seals & !KNOWN != 0 {
            return Err(Errno::EINVAL);
        }
        let add = |old: u32| (old & sys::F_SEAL_SEAL == 0).then_some(old | seals);
        let before = self
            .seals
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, add)
            .map_err(|_| Errno::EPERM)?;
        // Who maps it from now on sees the seal; who has mapped it is counted here.
        if seals & !before & sys::F_SEAL_WRITE != 0
            && self
                .mappings
                .count_vmas(|shared, writable| shared && writable)
                > 0
        {
            self.seals.fetch_and(before | !seals, Ordering::SeqCst);
            return Err(Errno::EBUSY);
        }
        Ok(())
    }

    fn file_handle(self: Arc<Self>) -> Option<u64> {
        let mut handles = self.info.handles.lock();
        if handles.len().is_power_of_two() {
            handles.retain(|_, inode| inode.strong_count() > 0);
        }
        handles.insert(self.ino, Arc::downgrade(&self));
        Some(self.ino)
    }

    fn write_count(&self) -> Option<&WriteCount> {
        Some(&self.writers)
    }

    fn attributes(&self) -> Result<FileAttributes> {
        match self.data {
            InodeData::Regular(_) | InodeData::Directory(_) => Ok(self.attr.lock().attributes),
            _ => Err(Errno::ENOTTY),
        }
    }

    fn has_known_attributes(&self) -> bool {
        true
    }

    fn set_attributes(&self, new: FileAttributes) -> Result<()> {
        let mut attr = self.attr.lock();
        attr.attributes = new;
        attr.ctime = Timestamp::coarse_now();
        self.publish_mode(&attr);
        Ok(())
    }

    fn write_hint(&self) -> Option<&AtomicU8> {
        Some(&self.write_hint)
    }

    fn xattr(&self, name: &[u8]) -> Result<Vec<u8>> {
        Ok(self
            .attr
            .lock()
            .xattrs
            .get(name)
            .ok_or(Errno::ENODATA)?
            .to_vec())
    }

    fn set_xattr(&self, name: &[u8], value: &[u8], mode: SetMode) -> Result<()> {
        let mut attr = self.attr.lock();
        match (mode, attr.xattrs.contains_key(name)) {
            (SetMode::Create | SetMode::Never, true) => return Err(Errno::EEXIST),
            (SetMode::Replace | SetMode::Never, false) => return Err(Errno::ENODATA),
            _ => {}
        }
        let others = attr.xattrs.iter().filter(|(known, _)| ***known != *name);
        let taken: usize = others.map(|(name, value)| name.len() + value.len()).sum();
        if taken + name.len() + value.len() > XATTRS_MAX {
            return Err(Errno::ENOSPC);
        }
        if !charge::has_room(value.len()) {
            return Err(Errno::ENOSPC);
        }
        let value = fallible::copy_of(value).map_err(|_| Errno::ENOSPC)?;
        attr.xattrs.insert(name.into(), value.into());
        attr.ctime = Timestamp::coarse_now();
        Ok(())
    }

    fn remove_xattr(&self, name: &[u8]) -> Result<()> {
        let mut attr = self.attr.lock();
        attr.xattrs.remove(name).ok_or(Errno::ENODATA)?;
        attr.ctime = Timestamp::coarse_now();
        Ok(())
    }

    fn xattr_names(&self) -> Vec<Vec<u8>> {
        self.attr
            .lock()
            .xattrs
            .keys()
            .map(|name| name.to_vec())
            .collect()
    }

    fn acl(&self, kind: AclKind) -> Result<Option<Acl>> {
        self.check_has_acls()?;
        let attr = self.attr.lock();
        Ok(match kind {
            AclKind::Access => attr.acl.clone(),
            AclKind::Default => attr.default_acl.clone(),
        })
    }

    fn set_acl(&self, kind: AclKind, acl: Option<Acl>, keeps_setgid: bool) -> Result<()> {
        self.check_has_acls()?;
        // The old list goes after the lock.
        let old;
        let mut attr = self.attr.lock();
        match kind {
            AclKind::Access => {
                if let Some(acl) = &acl {
                    attr.mode = attr.mode & !0o777 | acl.mode();
                }
                if !keeps_setgid {
                    attr.mode &= !S_ISGID;
                }
                let kept = acl.filter(|acl| !acl.is_mode());
                old = core::mem::replace(&mut attr.acl, kept);
            }
            AclKind::Default => match (&self.data, acl) {
                (InodeData::Directory(_), acl) => {
                    old = core::mem::replace(&mut attr.default_acl, acl);
                }
                (_, Some(_)) => return Err(Errno::EACCES),
                (_, None) => return Ok(()),
            },
        }
        attr.ctime = Timestamp::coarse_now();
        self.publish_mode(&attr);
        drop(attr);
        drop(old);
        Ok(())
    }

    fn seek_hole_data(&self, offset: u64, hole: bool) -> Result<u64> {
        self.contents()?.seek_extent(offset, hole)
    }

    fn backing(self: Arc<Self>) -> Result<Arc<dyn vm::Backing>> {
        self.contents().map_err(|_| Errno::ENODEV)?;
        Ok(self)
    }

    fn device(&self) -> Option<DeviceId> {
        match self.data {
            InodeData::Device(_, id) => Some(id),
            _ => None,
        }
    }

    fn fifo(&self) -> Option<Arc<Pipe>> {
        match &self.data {
            InodeData::Fifo(pipe) => Some(pipe.clone()),
            _ => None,
        }
    }
}

impl RamInode {
    fn permissions_of(&self, attr: &Attr) -> Permissions {
        Permissions {
            is_directory: matches!(self.data, InodeData::Directory(_)),
            mode: attr.mode,
            uid: attr.uid,
            gid: attr.gid,
            attributes: attr.attributes,
        }
    }

    /// Checks that the file is of a kind that has access control lists: no symbolic link.
    fn check_has_acls(&self) -> Result<()> {
        if matches!(self.data, InodeData::Symlink(_)) {
            Err(Errno::EOPNOTSUPP)
        } else {
            Ok(())
        }
    }
}

impl vm::Backing for RamInode {
    fn page(&self, index: u64) -> core::result::Result<vm::Page, Errno> {
        self.contents()?.page(index)
    }

    fn cached(&self, index: u64) -> Option<vm::Page> {
        self.contents().ok()?.cached(index)
    }

    fn for_each_cached(&self, range: Range<u64>, each: &mut dyn FnMut(u64, &vm::Page)) {
        if let Ok(contents) = self.contents() {
            contents.for_each_cached(range, each);
        }
    }

    fn punch_hole(&self, pages: Range<u64>) -> core::result::Result<(), Errno> {
        let page = vm::PAGE_SIZE as u64;
        let mode = sys::FALLOC_FL_PUNCH_HOLE | sys::FALLOC_FL_KEEP_SIZE;
        Inode::fallocate(
            self,
            mode,
            pages.start * page,
            (pages.end - pages.start) * page,
        )
    }

    fn on_shared_write(&self) {
        self.touch_mtime();
    }

    fn reverse_map(&self) -> Option<&vm::ReverseMap> {
        Some(&self.mappings)
    }
}
