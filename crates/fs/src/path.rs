//! From names to files: the path walk of `path_resolution(7)`.

use alloc::borrow::Cow;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::{AtomicU32, Ordering};

use abi::errno::Errno;
use task::Mutex;

use crate::mount::{self, MS_NOSYMFOLLOW, Namespace};
use crate::{
    Access, Cred, Dentry, FileType, LinkTarget, NAME_MAX, PATH_MAX, Path, Result, protected,
};

/// How many symbolic links one walk follows.
pub const MAX_SYMLINKS: usize = 40;

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
    paths: Arc<FsPaths>,
    /// Where a relative name starts; `None` for the working directory.
    base: Option<Path>,
    /// Credentials that permissions are checked with.
    pub cred: &'a Cred,
    resolve: Resolve,
    /// Mounts on the way do not count as used.
    leaves_mounts_untouched: bool,
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
    pub fn leave_mounts_untouched(&mut self) {
        self.leaves_mounts_untouched = true;
    }

    /// Keeps the walk within limits.
    pub fn set_resolve(&mut self, resolve: Resolve) {
        self.resolve = resolve;
        if resolve.contains(Resolve::IN_ROOT) {
            let base = self.base().clone();
            self.paths = Arc::new(FsPaths {
                root: base.clone(),
                cwd: base,
                namespace: self.paths.namespace.clone(),
            });
            self.base = None;
        }
    }

    /// The namespace of who walks.
    #[must_use]
    pub fn namespace(&self) -> &Arc<Namespace> {
        &self.paths.namespace
    }

    /// Where relative names start.
    #[must_use]
    pub fn base(&self) -> &Path {
        self.base.as_ref().unwrap_or(&self.paths.cwd)
    }

    /// The file that `name` names.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, `EACCES`, `ELOOP`, `ENAMETOOLONG`.
    pub fn lookup(&self, name: &[u8], flags: LookupFlags) -> Result<Path> {
        let mut walker = PathWalker::new(self, name)?;
        let mut directory = flags.contains(LookupFlags::DIRECTORY);
        while let Some(component) = walker.component() {
            directory |= component.is_last && component.has_slash;
            let at_link = if !component.is_last {
                OnLink::Follow
            } else if component.has_slash || !flags.contains(LookupFlags::NOFOLLOW) {
                OnLink::FollowLast
            } else {
                OnLink::Stay
            };
            walker.step(component.range, at_link)?;
        }
        if directory && walker.path.dentry().kind() != FileType::Directory {
            return Err(Errno::ENOTDIR);
        }
        Ok(walker.path)
    }

    /// The directory in which `name`'s last component is to be made, removed or renamed. `None`:
    /// the name is the root directory.
    ///
    /// # Errors
    /// Errors of [`LookupContext::lookup`] for the directory: `ENOENT`, `ENOTDIR`, `EACCES`,
    /// `ELOOP`, `ENAMETOOLONG`.
    pub fn lookup_parent(&self, name: &[u8]) -> Result<Option<ParentLookup>> {
        let mut walker = PathWalker::new(self, name)?;
        let Some((name, trailing_slash)) = walker.walk_to_parent()? else {
            return Ok(None);
        };
        walker.require_search()?;
        let name = walker.text(&name).to_vec();
        Ok(Some(ParentLookup {
            dir: walker.path,
            name,
            trailing_slash,
        }))
    }
}

/// Behaviour of a step at a symbolic link.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnLink {
    /// The link itself is the result.
    Stay,
    /// Goes on from where the link leads.
    Follow,
    /// The same, at the end of a name, where not every link may be followed.
    FollowLast,
}

/// A component of a name.
struct Component {
    range: Range<usize>,
    /// Only slashes follow, or nothing.
    is_last: bool,
    /// A slash follows.
    has_slash: bool,
}

/// Path walk in progress (Linux `nameidata`).
pub(crate) struct PathWalker<'a> {
    context: &'a LookupContext<'a>,
    pub(crate) path: Path,
    /// The name that is walked: the caller's until a link is followed.
    name: Cow<'a, [u8]>,
    position: usize,
    symlinks_followed: usize,
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
            walk.paths.root.clone()
        } else {
            walk.base().clone()
        };
        Ok(Self {
            context: walk,
            path: at,
            name: Cow::Borrowed(name),
            position: 0,
            symlinks_followed: 0,
        })
    }

    /// The text of a component. Valid until a link is followed.
    #[inline(always)]
    pub(crate) fn text(&self, at: &Range<usize>) -> &[u8] {
        &self.name[at.clone()]
    }

    /// Takes the next component off what is left.
    #[inline(always)]
    fn component(&mut self) -> Option<Component> {
        let rest = &*self.name;
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
            range: start..end,
            is_last: next == rest.len(),
            has_slash: next > end,
        })
    }

    /// Walks all components but the last and returns where that is, and whether a slash follows it.
    /// `None`: nothing is left.
    pub(crate) fn walk_to_parent(&mut self) -> Result<Option<(Range<usize>, bool)>> {
        while let Some(component) = self.component() {
            if component.is_last {
                return Ok(Some((component.range, component.has_slash)));
            }
            self.step(component.range, OnLink::Follow)?;
        }
        Ok(None)
    }

    /// Checks that this is a directory the walker may search.
    #[inline]
    pub(crate) fn require_search(&self) -> Result<()> {
        if self.path.dentry().kind() != FileType::Directory {
            return Err(Errno::ENOTDIR);
        }
        self.context
            .cred
            .check_inode(&**self.path.inode(), Access::EXEC)
    }

    /// Goes to the entry whose name is at `component`. A symbolic link, if followed, puts its text
    /// before what is left.
    #[inline(always)]
    pub(crate) fn step(&mut self, component: Range<usize>, at_link: OnLink) -> Result<()> {
        self.require_search()?;
        let name = self.text(&component);
        if name[0] == b'.' && matches!(name, b"." | b"..") {
            return self.handle_dots(name.len() == 2);
        }
        if name.len() > NAME_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        let child = self.path.dentry().lookup(name)?;
        if at_link != OnLink::Stay && child.kind() == FileType::Symlink {
            return self.step_aside(child, at_link);
        }
        match mount::lookup_mount(self.path.mount(), &child) {
            None => self.path.descend(child),
            Some(_) if self.context.resolve.contains(Resolve::NO_XDEV) => return Err(Errno::EXDEV),
            Some(mount) => {
                self.path = mount.root_path();
                // Seldom is anything mounted on that.
                while let Some(mount) = mount::lookup_mount(self.path.mount(), self.path.dentry()) {
                    self.path = mount.root_path();
                }
                if !self.context.leaves_mounts_untouched {
                    self.path.mount().touch();
                }
            }
        }
        Ok(())
    }

    /// Goes to `.` or `..`.
    #[inline(never)]
    fn handle_dots(&mut self, ascend: bool) -> Result<()> {
        if !ascend {
            return Ok(());
        }
        if self.context.resolve.contains(Resolve::BENEATH) && self.path == *self.context.base() {
            return Err(Errno::EXDEV);
        }
        if self.path != self.context.paths.root
            && let Some(parent) = self.path.parent()
        {
            let parent = mount::traverse_mounts(parent);
            self.check_mount_crossing(&parent)?;
            self.path = parent;
        }
        Ok(())
    }

    /// Refuses another mount to a walk that is to stay in one.
    pub(crate) fn check_mount_crossing(&self, path: &Path) -> Result<()> {
        let leaves = self.context.resolve.contains(Resolve::NO_XDEV)
            && !Arc::ptr_eq(path.mount(), self.path.mount());
        if leaves { Err(Errno::EXDEV) } else { Ok(()) }
    }

    /// Goes on from a link, unless something is mounted on it.
    #[inline(never)]
    fn step_aside(&mut self, child: Arc<Dentry>, at_link: OnLink) -> Result<()> {
        let child = mount::traverse_mounts(Path::new(self.path.mount().clone(), child));
        self.check_mount_crossing(&child)?;
        if child.dentry().kind() == FileType::Symlink {
            return self.follow(&child, at_link);
        }
        self.path = child;
        Ok(())
    }

    /// Follows a link that was found in the present directory.
    pub(crate) fn follow(&mut self, link: &Path, at_link: OnLink) -> Result<()> {
        self.symlinks_followed += 1;
        if self.symlinks_followed > MAX_SYMLINKS {
            return Err(Errno::ELOOP);
        }
        if at_link == OnLink::FollowLast {
            let (dir, owner) = (
                self.path.inode().permissions(),
                link.inode().permissions().uid,
            );
            protected::check_follow(&dir, owner, self.context.cred)?;
        }
        let resolve = self.context.resolve;
        if resolve.contains(Resolve::NO_SYMLINKS) || link.mount().flags() & MS_NOSYMFOLLOW != 0 {
            return Err(Errno::ELOOP);
        }
        match link.inode().get_link()? {
            LinkTarget::MagicLink(_) if resolve.contains(Resolve::NO_MAGICLINKS) => {
                return Err(Errno::ELOOP);
            }
            LinkTarget::MagicLink(_) if resolve.intersects(Resolve::BENEATH | Resolve::IN_ROOT) => {
                return Err(Errno::EXDEV);
            }
            LinkTarget::MagicLink(path) => {
                self.check_mount_crossing(&path)?;
                self.path = path;
            }
            LinkTarget::Text(mut text) => {
                let first = *text.first().ok_or(Errno::ENOENT)?;
                if first == b'/' {
                    if resolve.contains(Resolve::BENEATH) {
                        return Err(Errno::EXDEV);
                    }
                    self.check_mount_crossing(&self.context.paths.root)?;
                    self.path = self.context.paths.root.clone();
                }
                text.extend_from_slice(&self.name[self.position..]);
                self.name = Cow::Owned(text);
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
    namespace: Arc<Namespace>,
}

/// Root, working directory, mount namespace and file creation mask of a process, or of several with
/// `CLONE_FS` (Linux `fs_struct`).
pub struct FsStruct {
    /// Replaced as a whole: a walk takes one reference.
    paths: Mutex<Arc<FsPaths>>,
    umask: AtomicU32,
}

impl FsStruct {
    /// A context at the top of the tree with umask 022.
    #[must_use]
    pub fn new(namespace: Arc<Namespace>) -> Self {
        let root = mount::traverse_mounts(namespace.root_path());
        Self {
            paths: Mutex::new(Arc::new(FsPaths {
                cwd: root.clone(),
                root,
                namespace,
            })),
            umask: AtomicU32::new(0o022),
        }
    }

    fn paths(&self) -> Arc<FsPaths> {
        self.paths.lock().clone()
    }

    fn update(&self, change: impl FnOnce(&mut FsPaths)) {
        let old;
        let mut places = self.paths.lock();
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
            paths: Mutex::new(self.paths()),
            umask: AtomicU32::new(self.umask()),
        })
    }

    /// The root directory.
    #[must_use]
    pub fn root(&self) -> Path {
        self.paths().root.clone()
    }

    /// The namespace of mounts.
    #[must_use]
    pub fn namespace(&self) -> Arc<Namespace> {
        self.paths().namespace.clone()
    }

    /// The working directory.
    #[must_use]
    pub fn cwd(&self) -> Path {
        self.paths().cwd.clone()
    }

    /// Moves the working directory.
    pub fn set_cwd(&self, cwd: Path) {
        self.update(|places| places.cwd = cwd);
    }

    /// Moves the root directory.
    pub fn set_root(&self, root: Path) {
        self.update(|places| places.root = root);
    }

    /// Moves into a copy of the namespace, to the same places there (`CLONE_NEWNS`).
    pub fn copy_namespace(&self) {
        let places = self.paths();
        let (space, [root, cwd]) = places
            .namespace
            .copy([places.root.clone(), places.cwd.clone()]);
        self.update(|places| {
            *places = FsPaths {
                root,
                cwd,
                namespace: space,
            }
        });
    }

    /// Moves into another namespace, to its top.
    pub fn set_namespace(&self, namespace: Arc<Namespace>) {
        let root = mount::traverse_mounts(namespace.root_path());
        self.update(|places| {
            *places = FsPaths {
                root: root.clone(),
                cwd: root,
                namespace,
            }
        });
    }

    /// Moves whoever stands at `from` to `to` (`pivot_root(2)`).
    pub fn replace_paths(&self, from: &Path, to: &Path) {
        self.update(|places| {
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
    pub fn lookup_context<'a>(&self, cred: &'a Cred) -> LookupContext<'a> {
        LookupContext {
            paths: self.paths(),
            base: None,
            cred,
            resolve: Resolve::empty(),
            leaves_mounts_untouched: false,
        }
    }
}
