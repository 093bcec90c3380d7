//! Making, linking, removing and renaming files.
//!
//! Whoever calls has checked permissions, and that a directory is not moved below itself.

use abi::errno::Errno;

use crate::directory::{Found, Place};
use crate::extent_tree::make_root;
use crate::inode::{EXTENTS, FileType, Inode, OLD_SIZE};
use crate::mount::Ext4;
use crate::superblock::{Incompat, RoCompat};
use crate::{NAME_MAX, Result};

/// Blocks that an operation on names may change: two directories of which each splits a leaf and
/// all nodes of its index, a new inode with a block, and the trees of extents of these.
pub const NAME_CREDITS: usize = 128;
/// Most names of a file.
const MAX_LINKS: u16 = 65_000;

/// A file that is to be made.
#[derive(Clone, Copy, Debug)]
pub struct NewFile<'a> {
    /// Kind, with what that kind needs.
    pub kind: NewKind<'a>,
    /// Permission bits.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group, unless the directory gives its own (set-group-id).
    pub gid: u32,
}

/// Kinds of files that can be made.
#[derive(Clone, Copy, Debug)]
pub enum NewKind<'a> {
    /// An empty file.
    Regular,
    /// An empty directory.
    Directory,
    /// A link to a name.
    Symlink(&'a [u8]),
    /// A named pipe.
    Fifo,
    /// A socket's name.
    Socket,
    /// A character device: major, minor.
    Char(u32, u32),
    /// A block device: major, minor.
    Block(u32, u32),
}

impl NewKind<'_> {
    const fn file_type(&self) -> FileType {
        match self {
            Self::Regular => FileType::Regular,
            Self::Directory => FileType::Directory,
            Self::Symlink(_) => FileType::Symlink,
            Self::Fifo => FileType::Fifo,
            Self::Socket => FileType::Socket,
            Self::Char(..) => FileType::Char,
            Self::Block(..) => FileType::Block,
        }
    }
}

/// Choice of what a rename does if the new name is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameMode {
    /// Replaces it.
    Replace,
    /// Fails.
    NoReplace,
    /// Swaps the two.
    Exchange,
}

/// A file that a name was taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unlinked {
    /// Number of the inode.
    pub ino: u32,
    /// Whether it has no name any more.
    pub is_gone: bool,
}

/// Outcome of a rename.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renamed {
    /// Number of the file that has the new name.
    pub moved: u32,
    /// The file that had the new name before, if there was one.
    pub other: Option<Unlinked>,
}

impl Renamed {
    /// Number of a file that has no name any more.
    #[must_use]
    pub fn gone(&self) -> Option<u32> {
        self.other.filter(|other| other.is_gone).map(|it| it.ino)
    }
}

fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > NAME_MAX {
        Err(Errno::ENAMETOOLONG)
    } else if name.is_empty() || name == b"." || name == b".." || name.contains(&b'/') {
        Err(Errno::EINVAL)
    } else {
        Ok(())
    }
}

impl Ext4 {
    /// Finds a name in a directory; also `.` and `..`.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, `ENAMETOOLONG`, `EUCLEAN`, `EIO`.
    pub fn lookup(&mut self, dir: u32, name: &[u8]) -> Result<u32> {
        if name.len() > NAME_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        let dir = self.inode(dir)?;
        let found = self.find_entry(&dir, name)?.ok_or(Errno::ENOENT)?;
        self.check_entry(found)?;
        Ok(found.ino)
    }

    /// Whether an entry leads to a file that there may be.
    fn check_entry(&mut self, found: Found) -> Result<Inode> {
        let inode = self.inode(found.ino)?;
        if inode.links == 0 {
            Err(Errno::EUCLEAN)
        } else {
            Ok(inode)
        }
    }

    /// Makes a file with a name. Its number.
    ///
    /// # Errors
    /// `EEXIST`, `ENOENT` in a directory that was removed, `ENOSPC`, `EMLINK`, `ENAMETOOLONG`,
    /// `EOPNOTSUPP` in a directory without extents, `EROFS`.
    pub fn create(&mut self, dir: u32, name: &[u8], new: &NewFile<'_>) -> Result<u32> {
        check_name(name)?;
        self.transact(NAME_CREDITS, |fs| {
            let mut parent = fs.inode(dir)?;
            let place = fs.place_for_new(&parent, name)?;
            let kind = new.kind.file_type();
            let inode = fs.make_inode(&parent, new)?;
            fs.add_entry(&mut parent, (name, place), inode.ino, kind)?;
            if kind == FileType::Directory {
                fs.add_link(&mut parent)?;
            }
            fs.touch_directory(&mut parent)?;
            Ok(inode.ino)
        })
    }

    /// Finds the room for a new name in a directory, which must not have it.
    fn place_for_new(&mut self, parent: &Inode, name: &[u8]) -> Result<Place> {
        let place = self.find_place(parent, name)?;
        match place {
            Place::Taken(_) => Err(Errno::EEXIST),
            _ if parent.links == 0 => Err(Errno::ENOENT),
            _ => Ok(place),
        }
    }

    /// Makes a regular file without a name (`O_TMPFILE`), which goes when it is released.
    ///
    /// # Errors
    /// `ENOSPC`, `EROFS`; `EINVAL` for another kind of file.
    pub fn tmpfile(&mut self, dir: u32, new: &NewFile<'_>) -> Result<u32> {
        if new.kind.file_type() != FileType::Regular {
            return Err(Errno::EINVAL);
        }
        self.transact(NAME_CREDITS, |fs| {
            let parent = fs.inode(dir)?;
            let mut inode = fs.make_inode(&parent, new)?;
            inode.links = 0;
            fs.add_orphan(&mut inode)?;
            Ok(inode.ino)
        })
    }

    fn make_inode(&mut self, parent: &Inode, new: &NewFile<'_>) -> Result<Inode> {
        let kind = new.kind.file_type();
        let is_directory = kind == FileType::Directory;
        let ino = self.allocate_inode(parent.ino, is_directory)?;
        let room = self.sb.inode_size as usize - OLD_SIZE;
        let wanted = self.sb.want_extra_isize.next_multiple_of(4);
        let extra = if room == 0 {
            0
        } else {
            usize::from(wanted.max(32)).min(room) as u16
        };
        let mut mode = kind.mode() | new.mode & 0o7777;
        let inherits = parent.mode & 0o2000 != 0;
        if inherits && is_directory {
            mode |= 0o2000;
        }
        let mut inode = Inode::new(ino, mode, self.now(), extra, parent.flags);
        inode.uid = new.uid;
        inode.gid = if inherits { parent.gid } else { new.gid };
        inode.generation = (self.options.generation)();
        let has_contents = matches!(kind, FileType::Regular | FileType::Directory);
        if has_contents {
            self.use_extents(&mut inode)?;
        }
        match new.kind {
            NewKind::Directory => {
                inode.links = 2;
                self.make_directory(&mut inode, parent.ino)?;
            }
            NewKind::Symlink(target) => self.put_target(&mut inode, target)?,
            NewKind::Char(major, minor) | NewKind::Block(major, minor) => {
                inode.set_device(major, minor)?;
            }
            NewKind::Regular | NewKind::Fifo | NewKind::Socket => {}
        }
        self.put_new_inode(&inode)?;
        Ok(inode)
    }

    fn use_extents(&mut self, inode: &mut Inode) -> Result<()> {
        if !self.sb.incompat.contains(Incompat::EXTENTS) {
            return Err(Errno::EOPNOTSUPP);
        }
        inode.flags |= EXTENTS;
        make_root(inode, 0)
    }

    fn put_target(&mut self, inode: &mut Inode, target: &[u8]) -> Result<()> {
        if target.is_empty() {
            return Err(Errno::ENOENT);
        }
        // A zero follows in any case.
        if target.len() >= self.store.block_size {
            return Err(Errno::ENAMETOOLONG);
        }
        inode.size = target.len() as u64;
        if let Some(room) = inode
            .root
            .get_mut(..target.len())
            .filter(|_| target.len() < 60)
        {
            room.copy_from_slice(target);
            return Ok(());
        }
        self.use_extents(inode)?;
        let goal = self.goal_of(inode)?;
        let block = self.allocate_one(goal)?;
        self.store.fresh(block)?;
        self.store.edit(block, None, |bytes| {
            crate::bytes::part_mut(bytes, 0, target.len())?.copy_from_slice(target);
            Ok(())
        })?;
        inode.sectors += u64::from(self.sb.block_size / 512);
        self.insert_extent(
            inode,
            crate::extent::Extent {
                logical: 0,
                len: 1,
                block,
                is_unwritten: false,
            },
        )
    }

    /// One more name of a file, or one more directory in a directory.
    fn add_link(&mut self, inode: &mut Inode) -> Result<()> {
        let is_directory = inode.kind()? == FileType::Directory;
        if is_directory && inode.links == 1 {
            // There are more than can be counted.
            return Ok(());
        }
        if inode.links >= MAX_LINKS {
            let may_stop = is_directory && self.sb.ro_compat.contains(RoCompat::DIR_NLINK);
            if !may_stop {
                return Err(Errno::EMLINK);
            }
            inode.links = 1;
            return Ok(());
        }
        inode.links += 1;
        Ok(())
    }

    /// One directory fewer in a directory.
    fn drop_directory_link(inode: &mut Inode) -> Result<()> {
        match inode.links {
            1 => Ok(()),
            links if links > 2 => {
                inode.links = links - 1;
                Ok(())
            }
            _ => Err(Errno::EUCLEAN),
        }
    }

    /// Stores a directory whose names have changed.
    fn touch_directory(&mut self, dir: &mut Inode) -> Result<()> {
        dir.modified = self.now();
        dir.changed = dir.modified;
        self.put_inode(dir)
    }

    /// Gives a file another name.
    ///
    /// # Errors
    /// `EEXIST`, `EPERM` for a directory, `EMLINK`, `ENOENT` for a file that has no name and was
    /// not made so, and as [`Ext4::create`].
    pub fn link(&mut self, dir: u32, name: &[u8], ino: u32) -> Result<()> {
        check_name(name)?;
        self.transact(NAME_CREDITS, |fs| {
            let mut inode = fs.inode(ino)?;
            let kind = inode.kind()?;
            if kind == FileType::Directory {
                return Err(Errno::EPERM);
            }
            let mut parent = fs.inode(dir)?;
            let place = fs.place_for_new(&parent, name)?;
            if inode.links == 0 {
                fs.remove_orphan(&mut inode)?;
            }
            fs.add_link(&mut inode)?;
            inode.changed = fs.now();
            fs.put_inode(&inode)?;
            fs.add_entry(&mut parent, (name, place), ino, kind)?;
            fs.touch_directory(&mut parent)
        })
    }

    /// Takes a name away from a file that is no directory. If it has none any more, it is there
    /// until [`Ext4::release`].
    ///
    /// # Errors
    /// `ENOENT`, `EISDIR`, `EROFS`, `EUCLEAN`.
    pub fn unlink(&mut self, dir: u32, name: &[u8]) -> Result<Unlinked> {
        check_name(name)?;
        self.transact(NAME_CREDITS, |fs| {
            let mut parent = fs.inode(dir)?;
            let found = fs.find_entry(&parent, name)?.ok_or(Errno::ENOENT)?;
            let mut inode = fs.check_entry(found)?;
            if inode.kind()? == FileType::Directory {
                return Err(Errno::EISDIR);
            }
            fs.remove_entry_at(&parent, found)?;
            fs.touch_directory(&mut parent)?;
            let is_gone = fs.drop_link(&mut inode)?;
            Ok(Unlinked {
                ino: found.ino,
                is_gone,
            })
        })
    }

    /// One name fewer. Whether that was the last one.
    fn drop_link(&mut self, inode: &mut Inode) -> Result<bool> {
        inode.links = inode.links.checked_sub(1).ok_or(Errno::EUCLEAN)?;
        inode.changed = self.now();
        if inode.links > 0 {
            self.put_inode(inode)?;
            return Ok(false);
        }
        self.add_orphan(inode)?;
        Ok(true)
    }

    /// Removes an empty directory: it is there until [`Ext4::release`].
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, `ENOTEMPTY`, `EROFS`, `EUCLEAN`.
    pub fn rmdir(&mut self, dir: u32, name: &[u8]) -> Result<u32> {
        check_name(name)?;
        self.transact(NAME_CREDITS, |fs| {
            let mut parent = fs.inode(dir)?;
            let found = fs.find_entry(&parent, name)?.ok_or(Errno::ENOENT)?;
            let mut inode = fs.check_entry(found)?;
            fs.check_removable(&inode)?;
            fs.remove_entry_at(&parent, found)?;
            Self::drop_directory_link(&mut parent)?;
            fs.touch_directory(&mut parent)?;
            fs.end_directory(&mut inode)?;
            Ok(inode.ino)
        })
    }

    fn check_removable(&mut self, inode: &Inode) -> Result<()> {
        if inode.kind()? != FileType::Directory {
            return Err(Errno::ENOTDIR);
        }
        if inode.ino == crate::ROOT {
            return Err(Errno::EBUSY);
        }
        if self.is_empty_directory(inode.ino)? {
            Ok(())
        } else {
            Err(Errno::ENOTEMPTY)
        }
    }

    fn end_directory(&mut self, inode: &mut Inode) -> Result<()> {
        inode.links = 0;
        inode.changed = self.now();
        self.add_orphan(inode)
    }

    /// Renames a file, in one step. A file that has no name any more after it is there until
    /// [`Ext4::release`].
    ///
    /// A whiteout, the character device 0:0, stays under the old name if one is given.
    ///
    /// # Errors
    /// `ENOENT`, `EEXIST`, `EISDIR`, `ENOTDIR`, `ENOTEMPTY`, `EMLINK`, `ENOSPC`, `EROFS`.
    pub fn rename(
        &mut self,
        (dir, name): (u32, &[u8]),
        (to_dir, to_name): (u32, &[u8]),
        mode: RenameMode,
        whiteout: Option<&NewFile<'_>>,
    ) -> Result<Renamed> {
        check_name(name)?;
        check_name(to_name)?;
        if mode == RenameMode::Exchange && whiteout.is_some() {
            return Err(Errno::EINVAL);
        }
        self.transact(2 * NAME_CREDITS, |fs| {
            let parent = fs.inode(dir)?;
            let mut target = if to_dir == dir {
                parent.clone()
            } else {
                fs.inode(to_dir)?
            };
            let from = fs.find_entry(&parent, name)?.ok_or(Errno::ENOENT)?;
            let mut inode = fs.check_entry(from)?;
            if from.ino == dir || from.ino == to_dir {
                return Err(Errno::EUCLEAN);
            }
            let place = fs.find_place(&target, to_name)?;
            let old = match place {
                Place::Taken(old) => Some(old),
                Place::Room(..) | Place::Unknown => None,
            };
            if target.links == 0 {
                return Err(Errno::ENOENT);
            }
            let renamed = |is_gone| Renamed {
                moved: from.ino,
                other: old.map(|old| Unlinked {
                    ino: old.ino,
                    is_gone,
                }),
            };
            match (mode, old) {
                (RenameMode::NoReplace, Some(_)) => return Err(Errno::EEXIST),
                (RenameMode::Exchange, None) => return Err(Errno::ENOENT),
                (RenameMode::Exchange, Some(old)) => {
                    fs.exchange((&parent, from), (&target, old))?;
                    return Ok(renamed(false));
                }
                (_, Some(old)) if old.ino == from.ino => return Ok(renamed(false)),
                _ => {}
            }
            let (mut from_now, mut is_gone) = (Some(from), false);
            if let Some(old) = old {
                is_gone = fs.replace(&mut target, old, &inode)?;
            } else {
                let new = (to_name, place);
                if fs.add_entry(&mut target, new, inode.ino, inode.kind()?)? {
                    from_now = None;
                }
                fs.touch_directory(&mut target)?;
            }
            let parent = if to_dir == dir { target } else { parent };
            fs.leave(parent, (name, from_now), whiteout)?;
            if inode.kind()? == FileType::Directory && dir != to_dir {
                fs.move_parent(&inode, dir, to_dir)?;
            }
            inode.changed = fs.now();
            fs.put_inode(&inode)?;
            Ok(renamed(is_gone))
        })
    }

    fn touch_changed(&mut self, ino: u32) -> Result<()> {
        let mut inode = self.inode(ino)?;
        inode.changed = self.now();
        self.put_inode(&inode)
    }

    /// Makes the entry of a file that is replaced lead to another. Whether that one has no name any
    /// more.
    fn replace(&mut self, target: &mut Inode, old: Found, inode: &Inode) -> Result<bool> {
        let mut victim = self.check_entry(old)?;
        let (is_directory, kind) = (inode.kind()? == FileType::Directory, inode.kind()?);
        match (is_directory, victim.kind()? == FileType::Directory) {
            (true, false) => return Err(Errno::ENOTDIR),
            (false, true) => return Err(Errno::EISDIR),
            (true, true) => self.check_removable(&victim)?,
            (false, false) => {}
        }
        self.redirect(target, old, inode.ino, kind)?;
        if is_directory {
            Self::drop_directory_link(target)?;
        }
        self.touch_directory(target)?;
        if is_directory {
            self.end_directory(&mut victim)?;
            Ok(true)
        } else {
            self.drop_link(&mut victim)
        }
    }

    /// Takes the old name away, or leaves a whiteout there. Its entry is looked for again where it
    /// may have moved.
    fn leave(
        &mut self,
        mut parent: Inode,
        (name, found): (&[u8], Option<Found>),
        whiteout: Option<&NewFile<'_>>,
    ) -> Result<()> {
        let found = match found {
            Some(found) => found,
            None => self.find_entry(&parent, name)?.ok_or(Errno::EUCLEAN)?,
        };
        if let Some(new) = whiteout {
            let made = self.make_inode(&parent, new)?;
            self.redirect(&parent, found, made.ino, made.kind()?)?;
        } else {
            self.remove_entry_at(&parent, found)?;
        }
        self.touch_directory(&mut parent)
    }

    /// A directory has another parent.
    fn move_parent(&mut self, inode: &Inode, from: u32, to: u32) -> Result<()> {
        let dots = self.find_entry(inode, b"..")?.ok_or(Errno::EUCLEAN)?;
        self.redirect(inode, dots, to, FileType::Directory)?;
        let mut old = self.inode(from)?;
        Self::drop_directory_link(&mut old)?;
        self.put_inode(&old)?;
        let mut new = self.inode(to)?;
        self.add_link(&mut new)?;
        self.put_inode(&new)
    }

    fn exchange(&mut self, a: (&Inode, Found), b: (&Inode, Found)) -> Result<()> {
        let ((a_dir, a), (b_dir, b)) = (a, b);
        if a.ino == b.ino {
            return Ok(());
        }
        let (first, second) = (self.check_entry(a)?, self.check_entry(b)?);
        self.redirect(a_dir, a, b.ino, second.kind()?)?;
        self.redirect(b_dir, b, a.ino, first.kind()?)?;
        if a_dir.ino != b_dir.ino {
            if first.kind()? == FileType::Directory {
                self.move_parent(&first, a_dir.ino, b_dir.ino)?;
            }
            if second.kind()? == FileType::Directory {
                self.move_parent(&second, b_dir.ino, a_dir.ino)?;
            }
        }
        for dir in [a_dir.ino, b_dir.ino] {
            let mut dir = self.inode(dir)?;
            self.touch_directory(&mut dir)?;
        }
        self.touch_changed(a.ino)?;
        self.touch_changed(b.ino)
    }
}
