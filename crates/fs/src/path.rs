//! From names to files: the path walk of `path_resolution(7)`.

use crate::mount;
use crate::{Access, Cred, FileType, Link, NAME_MAX, PATH_MAX, Path, Result};
use abi::errno::Errno;
use alloc::borrow::Cow;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::Ordering;
use task::Mutex;

/// How many symbolic links one walk follows.
pub const MAX_LINKS: usize = 40;

bitflags::bitflags! {
    /// How the last component is treated.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct LookupFlags: u32 {
        /// A symbolic link as last component is the result, not what it leads to.
        const NOFOLLOW = 1;
        /// The result must be a directory.
        const DIRECTORY = 2;
    }
}

/// Where a walk starts, where it may not leave, and who walks.
#[derive(Clone)]
pub struct Walk<'a> {
    /// What `/` means.
    pub root: Path,
    /// Where a relative name starts.
    pub base: Path,
    /// Whose permissions count.
    pub cred: &'a Cred,
}

/// The directory of a name and the name in it, not looked up yet.
pub struct Parent {
    /// The directory. The walker may search it.
    pub dir: Path,
    /// The last component.
    pub name: Vec<u8>,
    /// Whether the name ended in a slash, so only a directory will do.
    pub trailing_slash: bool,
}

impl Walk<'_> {
    /// The file that `name` names.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, `EACCES`, `ELOOP`, `ENAMETOOLONG`.
    pub fn lookup(&self, name: &[u8], flags: LookupFlags) -> Result<Path> {
        let mut walker = Walker::new(self, name)?;
        let mut directory = flags.contains(LookupFlags::DIRECTORY);
        while let Some((last, trailing_slash)) = walker.walk_to_parent()? {
            directory |= trailing_slash;
            walker.step(last, trailing_slash || !flags.contains(LookupFlags::NOFOLLOW))?;
        }
        if directory && walker.at.dentry().kind() != FileType::Directory {
            return Err(Errno::ENOTDIR);
        }
        Ok(walker.at)
    }

    /// The directory in which `name`'s last component is to be made, removed or renamed. `None`: the name is the root directory.
    ///
    /// # Errors
    /// As [`Walk::lookup`], for the directory.
    pub fn parent(&self, name: &[u8]) -> Result<Option<Parent>> {
        let mut walker = Walker::new(self, name)?;
        let Some((name, trailing_slash)) = walker.walk_to_parent()? else { return Ok(None) };
        walker.require_search()?;
        if name.len() > NAME_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        let name = walker.component(&name).to_vec();
        Ok(Some(Parent { dir: walker.at, name, trailing_slash }))
    }
}

/// A walk under way.
pub(crate) struct Walker<'a> {
    walk: &'a Walk<'a>,
    pub(crate) at: Path,
    /// What is to be walked, and how far into it the walk is. The caller's name until a link is followed.
    rest: Cow<'a, [u8]>,
    position: usize,
    links: usize,
}

impl<'a> Walker<'a> {
    pub(crate) fn new(walk: &'a Walk<'a>, name: &'a [u8]) -> Result<Self> {
        if name.is_empty() {
            return Err(Errno::ENOENT);
        }
        if name.len() >= PATH_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        let at = if name[0] == b'/' { walk.root.clone() } else { walk.base.clone() };
        Ok(Self { walk, at, rest: Cow::Borrowed(name), position: 0, links: 0 })
    }

    /// A component that [`Walker::walk_to_parent`] found. Valid until a link is followed.
    pub(crate) fn component(&self, at: &Range<usize>) -> &[u8] {
        &self.rest[at.clone()]
    }

    /// Walks all components but the last and returns where that is, and whether a slash follows it. `None`: nothing is left.
    pub(crate) fn walk_to_parent(&mut self) -> Result<Option<(Range<usize>, bool)>> {
        loop {
            let rest = &*self.rest;
            let skip = |mut at: usize, slashes: bool| {
                while rest.get(at).is_some_and(|&byte| (byte == b'/') == slashes) {
                    at += 1;
                }
                at
            };
            let start = skip(self.position, true);
            if start == rest.len() {
                return Ok(None);
            }
            let end = skip(start, false);
            let last = skip(end, true) == rest.len();
            let trailing_slash = last && end < rest.len();
            self.position = end;
            if last {
                return Ok(Some((start..end, trailing_slash)));
            }
            self.step(start..end, true)?;
        }
    }

    /// Checks that this is a directory the walker may search.
    pub(crate) fn require_search(&self) -> Result<()> {
        let permissions = self.at.inode().permissions();
        if !permissions.directory {
            return Err(Errno::ENOTDIR);
        }
        self.walk.cred.check_permissions(&permissions, Access::EXEC)
    }

    /// Goes to the entry whose name is at `component`. A symbolic link, if followed, puts its text before what is left.
    pub(crate) fn step(&mut self, component: Range<usize>, follow: bool) -> Result<()> {
        self.require_search()?;
        let name = self.component(&component);
        match name {
            b"." => return Ok(()),
            b".." => {
                if self.at != self.walk.root
                    && let Some(parent) = self.at.parent()
                {
                    self.at = mount::cross(parent);
                }
                return Ok(());
            }
            _ if name.len() > NAME_MAX => return Err(Errno::ENAMETOOLONG),
            _ => {}
        }
        let child = self.at.dentry().find(name)?;
        if child.mounts.load(Ordering::Acquire) == 0 && (!follow || child.kind() != FileType::Symlink) {
            self.at.descend(child);
            return Ok(());
        }
        let child = mount::cross(Path::new(self.at.mount().clone(), child));
        if follow && child.inode().kind() == FileType::Symlink {
            return self.follow(&child);
        }
        self.at = child;
        Ok(())
    }

    /// Follows a link that was found in the present directory.
    pub(crate) fn follow(&mut self, link: &Path) -> Result<()> {
        self.links += 1;
        if self.links > MAX_LINKS {
            return Err(Errno::ELOOP);
        }
        match link.inode().follow()? {
            Link::Jump(path) => self.at = path,
            Link::Text(mut text) => {
                let first = *text.first().ok_or(Errno::ENOENT)?;
                if first == b'/' {
                    self.at = self.walk.root.clone();
                }
                text.extend_from_slice(&self.rest[self.position..]);
                self.rest = Cow::Owned(text);
                self.position = 0;
            }
        }
        Ok(())
    }
}

struct State {
    root: Path,
    cwd: Path,
    umask: u32,
}

/// What a process (or several, with `CLONE_FS`) calls `/`, `.` and the file creation mask.
pub struct FsContext {
    state: Mutex<State>,
}

impl FsContext {
    /// A context at the top of the tree with umask 022.
    #[must_use]
    pub fn new(root: Path) -> Self {
        let root = mount::cross(root);
        Self { state: Mutex::new(State { cwd: root.clone(), root, umask: 0o022 }) }
    }

    /// A copy, as `fork(2)` needs it.
    #[must_use]
    pub fn fork(&self) -> Arc<Self> {
        let state = self.state.lock();
        let copy = State { root: state.root.clone(), cwd: state.cwd.clone(), umask: state.umask };
        Arc::new(Self { state: Mutex::new(copy) })
    }

    /// The root directory.
    #[must_use]
    pub fn root(&self) -> Path {
        self.state.lock().root.clone()
    }

    /// The working directory.
    #[must_use]
    pub fn cwd(&self) -> Path {
        self.state.lock().cwd.clone()
    }

    /// Moves the working directory.
    pub fn set_cwd(&self, cwd: Path) {
        // The old one is dropped after the lock.
        let _old = core::mem::replace(&mut self.state.lock().cwd, cwd);
    }

    /// Moves the root directory.
    pub fn set_root(&self, root: Path) {
        let _old = core::mem::replace(&mut self.state.lock().root, root);
    }

    /// The file creation mask.
    #[must_use]
    pub fn umask(&self) -> u32 {
        self.state.lock().umask
    }

    /// Sets the mask and returns the old one.
    pub fn set_umask(&self, umask: u32) -> u32 {
        core::mem::replace(&mut self.state.lock().umask, umask & 0o777)
    }

    /// A walk from the working directory.
    #[must_use]
    pub fn walk<'a>(&self, cred: &'a Cred) -> Walk<'a> {
        let state = self.state.lock();
        Walk { root: state.root.clone(), base: state.cwd.clone(), cred }
    }
}
