//! From names to files: the path walk of `path_resolution(7)`.

use alloc::borrow::Cow;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::{AtomicU32, Ordering};

use abi::errno::Errno;
use task::Mutex;

use crate::mount::{self, MS_NOSYMFOLLOW, Namespace};
use crate::{Access, Cred, Dentry, FileType, LinkTarget, NAME_MAX, PATH_MAX, Path, Result};

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

bitflags::bitflags! {
    /// Where a walk may not go (`RESOLVE_*` of `openat2(2)`).
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Resolve: u32 {
        /// Into another mount.
        const NO_XDEV = linux_raw_sys::general::RESOLVE_NO_XDEV;
        /// Through a link that leads to a file itself, as those below `/proc/<pid>/fd`.
        const NO_MAGICLINKS = linux_raw_sys::general::RESOLVE_NO_MAGICLINKS;
        /// Through any symbolic link.
        const NO_SYMLINKS = linux_raw_sys::general::RESOLVE_NO_SYMLINKS;
        /// Out of the directory where it starts.
        const BENEATH = linux_raw_sys::general::RESOLVE_BENEATH;
        /// Nor out of it, which counts as the root.
        const IN_ROOT = linux_raw_sys::general::RESOLVE_IN_ROOT;
        /// To a medium: nothing here is on one.
        const CACHED = linux_raw_sys::general::RESOLVE_CACHED;
    }
}

/// Where a walk starts, where it may not leave, and who walks.
#[derive(Clone)]
pub struct LookupContext<'a> {
    places: Arc<FsPaths>,
    /// Where a relative name starts; `None` for the working directory.
    base: Option<Path>,
    /// Credentials that permissions are checked with.
    pub cred: &'a Cred,
    resolve: Resolve,
    /// Mounts on the way do not count as used.
    unnoticed: bool,
}

/// The directory of a name and the name in it, not looked up yet.
pub struct ParentLookup {
    /// The directory. The walker may search it.
    pub dir: Path,
    /// The last component.
    pub name: Vec<u8>,
    /// Whether the name ended in a slash, so only a directory will do.
    pub trailing_slash: bool,
}

impl LookupContext<'_> {
    /// Relative names start at `base` from now on.
    pub fn start_at(&mut self, base: Path) {
        self.base = Some(base);
    }

    /// Mounts on the way do not count as used ([`mount::UnmountFlags::EXPIRE`]).
    pub fn pass_unnoticed(&mut self) {
        self.unnoticed = true;
    }

    /// Keeps the walk within limits.
    pub fn restrict(&mut self, resolve: Resolve) {
        self.resolve = resolve;
        if resolve.contains(Resolve::IN_ROOT) {
            let base = self.base().clone();
            self.places = Arc::new(FsPaths {
                root: base.clone(),
                cwd: base,
                space: self.places.space.clone(),
            });
            self.base = None;
        }
    }

    /// The namespace of who walks.
    #[must_use]
    pub fn namespace(&self) -> &Arc<Namespace> {
        &self.places.space
    }

    /// Where relative names start.
    #[must_use]
    pub fn base(&self) -> &Path {
        self.base.as_ref().unwrap_or(&self.places.cwd)
    }

    /// The file that `name` names.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, `EACCES`, `ELOOP`, `ENAMETOOLONG`.
    pub fn lookup(&self, name: &[u8], flags: LookupFlags) -> Result<Path> {
        let mut walker = PathWalker::new(self, name)?;
        let mut directory = flags.contains(LookupFlags::DIRECTORY);
        while let Some(component) = walker.component() {
            directory |= component.last && component.slash;
            walker.step(
                component.at,
                !component.last || component.slash || !flags.contains(LookupFlags::NOFOLLOW),
            )?;
        }
        if directory && walker.at.dentry().kind() != FileType::Directory {
            return Err(Errno::ENOTDIR);
        }
        Ok(walker.at)
    }

    /// The directory in which `name`'s last component is to be made, removed or renamed. `None`:
    /// the name is the root directory.
    ///
    /// # Errors
    /// Errors of [`LookupContext::lookup`] for the directory: `ENOENT`, `ENOTDIR`, `EACCES`,
    /// `ELOOP`, `ENAMETOOLONG`.
    pub fn parent(&self, name: &[u8]) -> Result<Option<ParentLookup>> {
        let mut walker = PathWalker::new(self, name)?;
        let Some((name, trailing_slash)) = walker.walk_to_parent()? else {
            return Ok(None);
        };
        walker.require_search()?;
        let name = walker.text(&name).to_vec();
        Ok(Some(ParentLookup {
            dir: walker.at,
            name,
            trailing_slash,
        }))
    }
}

/// A component of a name.
struct Component {
    at: Range<usize>,
    /// Only slashes follow, or nothing.
    last: bool,
    /// A slash follows.
    slash: bool,
}

/// Path walk in progress (Linux `nameidata`).
pub(crate) struct PathWalker<'a> {
    walk: &'a LookupContext<'a>,
    pub(crate) at: Path,
    /// The name that is walked: the caller's until a link is followed.
    rest: Cow<'a, [u8]>,
    position: usize,
    links: usize,
}

impl<'a> PathWalker<'a> {
    pub(crate) fn new(walk: &'a LookupContext<'a>, name: &'a [u8]) -> Result<Self> {
        if name.is_empty() {
            return Err(Errno::ENOENT);
        }
        if name.len() >= PATH_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        if name[0] == b'/' && walk.resolve.contains(Resolve::BENEATH) {
            return Err(Errno::EXDEV);
        }
        let at = if name[0] == b'/' {
            walk.places.root.clone()
        } else {
            walk.base().clone()
        };
        Ok(Self {
            walk,
            at,
            rest: Cow::Borrowed(name),
            position: 0,
            links: 0,
        })
    }

    /// The text of a component. Valid until a link is followed.
    #[inline(always)]
    pub(crate) fn text(&self, at: &Range<usize>) -> &[u8] {
        &self.rest[at.clone()]
    }

    /// Takes the next component off what is left.
    #[inline(always)]
    fn component(&mut self) -> Option<Component> {
        let rest = &*self.rest;
        let mut start = self.position;
        while start < rest.len() && rest[start] == b'/' {
            start += 1;
        }
        if start == rest.len() {
            return None;
        }
        let mut end = start;
        while end < rest.len() && rest[end] != b'/' {
            end += 1;
        }
        self.position = end;
        let mut next = end;
        while next < rest.len() && rest[next] == b'/' {
            next += 1;
        }
        Some(Component {
            at: start..end,
            last: next == rest.len(),
            slash: next > end,
        })
    }

    /// Walks all components but the last and returns where that is, and whether a slash follows it.
    /// `None`: nothing is left.
    pub(crate) fn walk_to_parent(&mut self) -> Result<Option<(Range<usize>, bool)>> {
        while let Some(component) = self.component() {
            if component.last {
                return Ok(Some((component.at, component.slash)));
            }
            self.step(component.at, true)?;
        }
        Ok(None)
    }

    /// Checks that this is a directory the walker may search.
    #[inline]
    pub(crate) fn require_search(&self) -> Result<()> {
        if self.at.dentry().kind() != FileType::Directory {
            return Err(Errno::ENOTDIR);
        }
        self.walk.cred.check_inode(&**self.at.inode(), Access::EXEC)
    }

    /// Goes to the entry whose name is at `component`. A symbolic link, if followed, puts its text
    /// before what is left.
    #[inline(always)]
    pub(crate) fn step(&mut self, component: Range<usize>, follow: bool) -> Result<()> {
        self.require_search()?;
        let name = self.text(&component);
        if name[0] == b'.' && matches!(name, b"." | b"..") {
            return self.stay_or_ascend(name.len() == 2);
        }
        if name.len() > NAME_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        let child = self.at.dentry().find(name)?;
        if follow && child.kind() == FileType::Symlink {
            return self.step_aside(child);
        }
        match mount::over(self.at.mount(), &child) {
            None => self.at.descend(child),
            Some(_) if self.walk.resolve.contains(Resolve::NO_XDEV) => return Err(Errno::EXDEV),
            Some(mount) => {
                self.at = mount.top();
                // Seldom is anything mounted on that.
                while let Some(mount) = mount::over(self.at.mount(), self.at.dentry()) {
                    self.at = mount.top();
                }
                if !self.walk.unnoticed {
                    self.at.mount().touch();
                }
            }
        }
        Ok(())
    }

    /// Goes to `.` or `..`.
    #[inline(never)]
    fn stay_or_ascend(&mut self, ascend: bool) -> Result<()> {
        if !ascend {
            return Ok(());
        }
        if self.walk.resolve.contains(Resolve::BENEATH) && self.at == *self.walk.base() {
            return Err(Errno::EXDEV);
        }
        if self.at != self.walk.places.root
            && let Some(parent) = self.at.parent()
        {
            let parent = mount::cross(parent);
            self.may_enter(&parent)?;
            self.at = parent;
        }
        Ok(())
    }

    /// Refuses another mount to a walk that is to stay in one.
    pub(crate) fn may_enter(&self, place: &Path) -> Result<()> {
        let leaves = self.walk.resolve.contains(Resolve::NO_XDEV)
            && !Arc::ptr_eq(place.mount(), self.at.mount());
        if leaves { Err(Errno::EXDEV) } else { Ok(()) }
    }

    /// Goes on from a link, unless something is mounted on it.
    #[inline(never)]
    fn step_aside(&mut self, child: Arc<Dentry>) -> Result<()> {
        let child = mount::cross(Path::new(self.at.mount().clone(), child));
        self.may_enter(&child)?;
        if child.dentry().kind() == FileType::Symlink {
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
        let resolve = self.walk.resolve;
        if resolve.contains(Resolve::NO_SYMLINKS) || link.mount().flags() & MS_NOSYMFOLLOW != 0 {
            return Err(Errno::ELOOP);
        }
        match link.inode().follow()? {
            LinkTarget::MagicLink(_) if resolve.contains(Resolve::NO_MAGICLINKS) => {
                return Err(Errno::ELOOP);
            }
            LinkTarget::MagicLink(_) if resolve.intersects(Resolve::BENEATH | Resolve::IN_ROOT) => {
                return Err(Errno::EXDEV);
            }
            LinkTarget::MagicLink(path) => {
                self.may_enter(&path)?;
                self.at = path;
            }
            LinkTarget::Text(mut text) => {
                let first = *text.first().ok_or(Errno::ENOENT)?;
                if first == b'/' {
                    if resolve.contains(Resolve::BENEATH) {
                        return Err(Errno::EXDEV);
                    }
                    self.may_enter(&self.walk.places.root)?;
                    self.at = self.walk.places.root.clone();
                }
                text.extend_from_slice(&self.rest[self.position..]);
                self.rest = Cow::Owned(text);
                self.position = 0;
            }
        }
        Ok(())
    }
}

/// Root and working directory of an [`FsStruct`], and the namespace where mounts are looked for.
#[derive(Clone)]
struct FsPaths {
    root: Path,
    cwd: Path,
    space: Arc<Namespace>,
}

/// Root, working directory, mount namespace and file creation mask of a process, or of several with
/// `CLONE_FS` (Linux `fs_struct`).
pub struct FsStruct {
    /// Replaced as a whole: a walk takes one reference.
    places: Mutex<Arc<FsPaths>>,
    umask: AtomicU32,
}

impl FsStruct {
    /// A context at the top of the tree with umask 022.
    #[must_use]
    pub fn new(space: Arc<Namespace>) -> Self {
        let root = mount::cross(space.top());
        Self {
            places: Mutex::new(Arc::new(FsPaths {
                cwd: root.clone(),
                root,
                space,
            })),
            umask: AtomicU32::new(0o022),
        }
    }

    fn places(&self) -> Arc<FsPaths> {
        self.places.lock().clone()
    }

    fn change(&self, change: impl FnOnce(&mut FsPaths)) {
        let old;
        let mut places = self.places.lock();
        let mut new = (**places).clone();
        change(&mut new);
        old = core::mem::replace(&mut *places, Arc::new(new));
        // The old ones are dropped after the lock.
        drop(places);
        drop(old);
    }

    /// A copy, as `fork(2)` needs it.
    #[must_use]
    pub fn fork(&self) -> Arc<Self> {
        Arc::new(Self {
            places: Mutex::new(self.places()),
            umask: AtomicU32::new(self.umask()),
        })
    }

    /// The root directory.
    #[must_use]
    pub fn root(&self) -> Path {
        self.places().root.clone()
    }

    /// The namespace of mounts.
    #[must_use]
    pub fn namespace(&self) -> Arc<Namespace> {
        self.places().space.clone()
    }

    /// The working directory.
    #[must_use]
    pub fn cwd(&self) -> Path {
        self.places().cwd.clone()
    }

    /// Moves the working directory.
    pub fn set_cwd(&self, cwd: Path) {
        self.change(|places| places.cwd = cwd);
    }

    /// Moves the root directory.
    pub fn set_root(&self, root: Path) {
        self.change(|places| places.root = root);
    }

    /// Moves into a copy of the namespace, to the same places there (`CLONE_NEWNS`).
    pub fn copy_namespace(&self) {
        let places = self.places();
        let (space, [root, cwd]) = places.space.copy([places.root.clone(), places.cwd.clone()]);
        self.change(|places| *places = FsPaths { root, cwd, space });
    }

    /// Moves into another namespace, to its top.
    pub fn enter(&self, space: Arc<Namespace>) {
        let root = mount::cross(space.top());
        self.change(|places| {
            *places = FsPaths {
                root: root.clone(),
                cwd: root,
                space,
            }
        });
    }

    /// Moves whoever stands at `from` to `to` (`pivot_root(2)`).
    pub fn exchange(&self, from: &Path, to: &Path) {
        self.change(|places| {
            for place in [&mut places.root, &mut places.cwd] {
                if place == from {
                    *place = to.clone();
                }
            }
        });
    }

    /// The file creation mask.
    #[must_use]
    pub fn umask(&self) -> u32 {
        self.umask.load(Ordering::Relaxed)
    }

    /// Sets the mask and returns the old one.
    pub fn set_umask(&self, umask: u32) -> u32 {
        self.umask.swap(umask & 0o777, Ordering::Relaxed)
    }

    /// A walk from the working directory.
    #[inline]
    #[must_use]
    pub fn walk<'a>(&self, cred: &'a Cred) -> LookupContext<'a> {
        LookupContext {
            places: self.places(),
            base: None,
            cred,
            resolve: Resolve::empty(),
            unnoticed: false,
        }
    }
}
