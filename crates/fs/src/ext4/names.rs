//! A file of ext4 as the VFS sees it.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::AtomicU8;

use ::block::ErrorCursor;
use ::ext4::{Attributes, NewFile, NewKind};
use abi::errno::Errno;
use linux_raw_sys::general::{self as sys, S_ISGID};
use task::Mutex;
use vm::{Backing, Page, ReverseMap};

use super::acl::to_stored;
use super::contents::Contents;
use super::inode::{Ext4Inode, kind_of};
use super::open::{OpenDirectory, OpenFile};
use crate::acl::{Acl, AclKind};
use crate::attributes::FileAttributes;
use crate::pipe::Pipe;
use crate::xattr::SetMode;
use crate::{
    Access, Cred, DeviceId, DirEntry, FileOps, FileType, Inode, LinkTarget, Metadata, NewInode,
    NewInodeKind, OpenFlags, Permissions, RenameFlags, Result, SetAttr, Timestamp, WriteCount,
    xattr,
};

/// Entries of a directory that are read at a time.
const BATCH: usize = 64;
/// Seconds after which a read is noted in any case (`relatime`).
const DAY: i64 = 86_400;

/// A new file as the disk's side has it.
fn new_file<'a>(new: &NewInode<'a>, mode: u32) -> NewFile<'a> {
    let kind = match new.kind {
        NewInodeKind::Regular => NewKind::Regular,
        NewInodeKind::Directory => NewKind::Directory,
        NewInodeKind::Symlink(target) => NewKind::Symlink(target),
        NewInodeKind::Fifo => NewKind::Fifo,
        NewInodeKind::Socket => NewKind::Socket,
        NewInodeKind::Char(id) => NewKind::Char(id.major, id.minor),
        NewInodeKind::Block(id) => NewKind::Block(id.major, id.minor),
    };
    NewFile {
        kind,
        mode: mode as u16 & 0o7777,
        uid: new.uid,
        gid: new.gid,
    }
}

impl Ext4Inode {
    /// Makes a file by `make`, with the lists that this directory gives to new ones.
    fn make(
        &self,
        new: &NewInode<'_>,
        make: impl Fn(&mut ::ext4::Ext4, &NewFile<'_>) -> Result<u32>,
    ) -> Result<Arc<Self>> {
        let is_link = matches!(new.kind, NewInodeKind::Symlink(_));
        let default_acl = self.attr().default_acl.clone().filter(|_| !is_link);
        let (acl, mode) = match &default_acl {
            Some(default_acl) => default_acl.for_new_file(new.mode)?,
            None if is_link => (None, 0o777),
            None => (None, new.mode & !new.umask),
        };
        let ino = self.change_on_disk(|ext4| make(ext4, &new_file(new, mode)))?;
        let made = self.fs().inode(ino)?;
        if let Some(acl) = acl {
            made.store_acl(AclKind::Access, Some(acl))?;
        }
        if let Some(default_acl) = default_acl.filter(|_| made.file_type() == FileType::Directory) {
            made.store_acl(AclKind::Default, Some(default_acl))?;
        }
        Ok(made)
    }

    /// Stores a list, or takes it away.
    fn store_acl(&self, kind: AclKind, acl: Option<Acl>) -> Result<()> {
        let (ino, name) = (self.number(), kind.xattr());
        let value = acl.as_ref().map(to_stored).transpose()?;
        self.change_on_disk(|ext4| match &value {
            Some(value) => ext4.set_xattr(ino, name, value, ::ext4::SetMode::Any),
            None => match ext4.remove_xattr(ino, name) {
                Err(Errno::ENODATA) => Ok(()),
                done => done,
            },
        })?;
        let mut attr = self.attr();
        let place = match kind {
            AclKind::Access => &mut attr.acl,
            AclKind::Default => &mut attr.default_acl,
        };
        let old = core::mem::replace(place, acl);
        drop(attr);
        drop(old);
        Ok(())
    }

    fn check_has_acls(&self) -> Result<()> {
        if self.file_type() == FileType::Symlink {
            Err(Errno::EOPNOTSUPP)
        } else {
            Ok(())
        }
    }

    /// Takes over the size in blocks and the times after a change of the contents.
    fn contents_changed(&self) -> Result<()> {
        self.touch_modified();
        self.refresh()
    }
}

impl Inode for Ext4Inode {
    fn metadata(&self) -> Metadata {
        self.metadata_now()
    }

    fn permissions(&self) -> Permissions {
        self.permissions_now()
    }

    fn check_access(&self, cred: &Cred, want: Access) -> Result<()> {
        let (permissions, acl) = self.permissions_and_acl();
        cred.check_with_acl(&permissions, acl.as_ref(), want)
    }

    fn kind(&self) -> FileType {
        self.file_type()
    }

    fn set_attr(&self, change: &SetAttr) -> Result<()> {
        self.change(change)
    }

    fn lookup(&self, name: &[u8]) -> Result<Arc<dyn Inode>> {
        if self.file_type() != FileType::Directory {
            return Err(Errno::ENOTDIR);
        }
        let ino = self.fs().with(|ext4| ext4.lookup(self.number(), name))?;
        Ok(self.fs().inode(ino)?)
    }

    fn create(&self, name: &[u8], new: &NewInode<'_>) -> Result<Arc<dyn Inode>> {
        let dir = self.number();
        let made = self.make(new, |ext4, new| ext4.create(dir, name, new))?;
        Ok(made)
    }

    fn tmpfile(&self, new: &NewInode<'_>) -> Result<Arc<dyn Inode>> {
        let dir = self.number();
        let made = self.make(new, |ext4, new| ext4.tmpfile(dir, new))?;
        Ok(made)
    }

    fn link(&self, name: &[u8], target: &Arc<dyn Inode>) -> Result<()> {
        let (dir, target) = (self.number(), self.downcast(target)?);
        self.change_on_disk(|ext4| ext4.link(dir, name, target.number()))?;
        target.refresh()
    }

    fn unlink(&self, name: &[u8]) -> Result<()> {
        let dir = self.number();
        let unlinked = self.change_on_disk(|ext4| ext4.unlink(dir, name))?;
        self.fs().update(unlinked.ino, unlinked.is_gone)
    }

    fn rmdir(&self, name: &[u8]) -> Result<()> {
        let dir = self.number();
        let ino = self.change_on_disk(|ext4| ext4.rmdir(dir, name))?;
        self.fs().update(ino, true)
    }

    fn rename(
        &self,
        name: &[u8],
        to: &Arc<dyn Inode>,
        to_name: &[u8],
        flags: RenameFlags,
        whiteout: Option<&NewInode<'_>>,
    ) -> Result<()> {
        let (dir, to) = (self.number(), self.downcast(to)?);
        let mode = if flags.contains(RenameFlags::EXCHANGE) {
            ::ext4::RenameMode::Exchange
        } else if flags.contains(RenameFlags::NOREPLACE) {
            ::ext4::RenameMode::NoReplace
        } else {
            ::ext4::RenameMode::Replace
        };
        let whiteout = whiteout.map(|new| new_file(new, new.mode));
        let target = (to.number(), to_name);
        let renamed =
            self.change_on_disk(|ext4| ext4.rename((dir, name), target, mode, whiteout.as_ref()))?;
        if to.number() != dir {
            to.refresh()?;
        }
        self.fs().update(renamed.moved, false)?;
        match renamed.other {
            Some(other) => self.fs().update(other.ino, other.is_gone),
            None => Ok(()),
        }
    }

    fn readdir(&self, cursor: u64, emit: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        struct FoundEntry {
            name: Vec<u8>,
            ino: u32,
            kind: FileType,
            next: u64,
        }
        let mut cursor = cursor;
        loop {
            // Told without the lock of all metadata.
            let mut found: Vec<(FoundEntry, bool)> = fallible::with_capacity(BATCH)?;
            self.fs().with(|ext4| {
                let mut failed = Ok(());
                ext4.read_dir(self.number(), cursor, &mut |entry| {
                    let name = fallible::copy_of(entry.name);
                    failed = name.as_ref().map(|_| ()).map_err(|error| *error);
                    let listed = FoundEntry {
                        name: name.unwrap_or_default(),
                        ino: entry.ino,
                        kind: entry.kind.map_or(FileType::Regular, kind_of),
                        next: entry.next,
                    };
                    found.push((listed, entry.kind.is_some()));
                    failed.is_ok() && found.len() < BATCH
                })?;
                failed?;
                for (listed, _) in found.iter_mut().filter(|(_, is_known)| !is_known) {
                    listed.kind = kind_of(ext4.stat(listed.ino)?.kind);
                }
                Ok(())
            })?;
            let is_last = found.len() < BATCH;
            for (listed, _) in found {
                let entry = DirEntry {
                    name: &listed.name,
                    ino: listed.ino.into(),
                    kind: listed.kind,
                    next: listed.next,
                };
                cursor = listed.next;
                if !emit(entry) {
                    return Ok(());
                }
            }
            if is_last {
                return Ok(());
            }
        }
    }

    fn get_link(&self) -> Result<LinkTarget> {
        if self.file_type() != FileType::Symlink {
            return Err(Errno::EINVAL);
        }
        let target = self.fs().with(|ext4| ext4.read_link(self.number()))?;
        Ok(LinkTarget::Text(target))
    }

    fn touch_atime(&self, always: bool) {
        let now = Timestamp::coarse_now();
        if self.file_attributes().contains(FileAttributes::NOATIME) {
            return;
        }
        self.touch(|[atime, mtime, ctime]| {
            let is_old =
                always || **atime <= **mtime || **atime <= **ctime || now.sec - atime.sec > DAY;
            let is_told = is_old && **atime != now;
            if is_told {
                **atime = now;
            }
            is_told
        });
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.contents()?.read(offset, buf)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<usize> {
        self.write(Some(offset), buf).map(|(_, n)| n)
    }

    fn append(&self, buf: &[u8]) -> Result<(u64, usize)> {
        self.write(None, buf)
    }

    fn truncate(&self, size: u64) -> Result<()> {
        self.contents()?.truncate(self.fs(), size)?;
        self.contents_changed()?;
        self.drop_privileges()
    }

    fn fallocate(&self, mode: u32, offset: u64, len: u64) -> Result<()> {
        self.contents()?.fallocate(self.fs(), mode, offset, len)?;
        self.contents_changed()?;
        self.drop_privileges()
    }

    fn xattr(&self, name: &[u8]) -> Result<Vec<u8>> {
        self.fs().with(|ext4| ext4.xattr(self.number(), name))
    }

    fn set_xattr(&self, name: &[u8], value: &[u8], mode: SetMode) -> Result<()> {
        let how = match mode {
            SetMode::Any => ::ext4::SetMode::Any,
            SetMode::Create => ::ext4::SetMode::Create,
            SetMode::Replace => ::ext4::SetMode::Replace,
            SetMode::Never => {
                return Err(match self.xattr(name) {
                    Ok(_) => Errno::EEXIST,
                    Err(error) => error,
                });
            }
        };
        if name == xattr::CAPABILITY {
            self.note_capabilities();
        }
        self.change_on_disk(|ext4| ext4.set_xattr(self.number(), name, value, how))
    }

    fn remove_xattr(&self, name: &[u8]) -> Result<()> {
        self.change_on_disk(|ext4| ext4.remove_xattr(self.number(), name))
    }

    fn xattr_names(&self) -> Vec<Vec<u8>> {
        let names = self.fs().with(|ext4| ext4.xattr_names(self.number()));
        let mut names = names.unwrap_or_default();
        names.retain(|name| AclKind::from_xattr(name).is_none());
        names
    }

    fn acl(&self, kind: AclKind) -> Result<Option<Acl>> {
        self.check_has_acls()?;
        let attr = self.attr();
        Ok(match kind {
            AclKind::Access => attr.acl.clone(),
            AclKind::Default => attr.default_acl.clone(),
        })
    }

    fn set_acl(&self, kind: AclKind, acl: Option<Acl>, keeps_setgid: bool) -> Result<()> {
        self.check_has_acls()?;
        if kind == AclKind::Default {
            return match (self.file_type(), &acl) {
                (FileType::Directory, _) => self.store_acl(kind, acl),
                (_, Some(_)) => Err(Errno::EACCES),
                (_, None) => Ok(()),
            };
        }
        let old = self.permissions_now().mode;
        let mut mode = acl.as_ref().map_or(old, |acl| old & !0o777 | acl.mode());
        if !keeps_setgid {
            mode &= !S_ISGID;
        }
        self.store_acl(kind, acl.filter(|acl| !acl.is_mode()))?;
        self.change(&SetAttr {
            mode: Some(mode),
            ..SetAttr::default()
        })
    }

    fn write_count(&self) -> Option<&WriteCount> {
        Some(&self.writers)
    }

    fn attributes(&self) -> Result<FileAttributes> {
        match self.file_type() {
            FileType::Regular | FileType::Directory => Ok(self.file_attributes()),
            _ => Err(Errno::ENOTTY),
        }
    }

    fn direct_alignment(&self) -> Option<u32> {
        (self.file_type() == FileType::Regular).then(|| self.fs().logical_block())
    }

    fn has_known_attributes(&self) -> bool {
        true
    }

    fn set_attributes(&self, new: FileAttributes) -> Result<()> {
        let change = Attributes {
            flags: Some(new.bits()),
            ..Attributes::default()
        };
        self.change_on_disk(|ext4| ext4.set_attributes(self.number(), &change))
    }

    fn write_hint(&self) -> Option<&AtomicU8> {
        Some(&self.write_hint)
    }

    fn seek_hole_data(&self, offset: u64, hole: bool) -> Result<u64> {
        self.contents()?.seek(self.fs(), offset, hole)
    }

    fn backing(self: Arc<Self>) -> Result<Arc<dyn Backing>> {
        self.contents().map_err(|_| Errno::ENODEV)?;
        Ok(self)
    }

    fn open(self: Arc<Self>, _: OpenFlags) -> Result<Option<Arc<dyn FileOps>>> {
        Ok(match self.file_type() {
            FileType::Regular => Some(Arc::new(OpenFile::new(self)?)),
            FileType::Directory => Some(Arc::new(OpenDirectory::new(self))),
            _ => None,
        })
    }

    fn device(&self) -> Option<DeviceId> {
        self.device_number()
    }

    fn fifo(&self) -> Option<Arc<Pipe>> {
        self.pipe.clone()
    }
}

impl Ext4Inode {
    fn write(&self, offset: Option<u64>, buf: &[u8]) -> Result<(u64, usize)> {
        let contents = self.contents()?;
        let (at, n, sectors) = contents.write(self.fs(), offset, buf)?;
        if let Some(sectors) = sectors {
            self.set_sectors(sectors);
        }
        self.touch_modified();
        self.drop_privileges()?;
        contents.throttle();
        Ok((at, n))
    }

    /// Writes pages of a program's in the place of those from `first` on; `None` if that takes a
    /// copy. `told` is the opener's.
    pub(super) fn write_pages(
        &self,
        first: u64,
        pages: &[Page],
        told: &Mutex<ErrorCursor>,
    ) -> Option<Result<usize>> {
        let (write, sectors) = match self.contents() {
            Ok(contents) => contents.begin_write(self.fs(), first, pages)?,
            Err(error) => return Some(Err(error)),
        };
        self.set_sectors(sectors);
        self.touch_modified();
        Some(self.drop_privileges().and_then(|()| write.finish(told)))
    }
}

impl Backing for Ext4Inode {
    fn page(&self, index: u64) -> Result<Page> {
        self.contents()?.page(index)
    }

    fn cached(&self, index: u64) -> Option<Page> {
        self.contents().ok()?.cached(index)
    }

    fn for_each_cached(&self, range: Range<u64>, each: &mut dyn FnMut(u64, &Page)) {
        if let Ok(contents) = self.contents() {
            contents.for_each_cached(range, each);
        }
    }

    fn punch_hole(&self, pages: Range<u64>) -> Result<()> {
        let page = vm::PAGE_SIZE as u64;
        let mode = sys::FALLOC_FL_PUNCH_HOLE | sys::FALLOC_FL_KEEP_SIZE;
        let len = (pages.end - pages.start) * page;
        Inode::fallocate(self, mode, pages.start * page, len)
    }

    fn notes_writes(&self) -> bool {
        true
    }

    fn cached_for_write(&self, index: u64) -> Option<Page> {
        let page = self.contents().ok()?.cached_for_write(index)?;
        self.list();
        Some(page)
    }

    fn page_for_write(&self, index: u64) -> Result<Page> {
        let contents = self.contents()?;
        let found = contents.page_for_write(self.fs(), index);
        // A full disk is `SIGBUS`, as on Linux, and no lack of memory.
        let (page, sectors) = found.map_err(|error| match error {
            Errno::ENOSPC => Errno::EFAULT,
            error => error,
        })?;
        self.set_sectors(sectors);
        self.list();
        contents.throttle();
        Ok(page)
    }

    fn sync(&self) -> Result<()> {
        self.sync_all()?;
        self.contents()?.check_errors()
    }

    fn on_shared_write(&self) {
        self.touch_modified();
    }

    fn reverse_map(&self) -> Option<&ReverseMap> {
        self.contents().ok().map(Contents::mappings)
    }
}
