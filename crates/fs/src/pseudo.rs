//! Building blocks of file systems whose files are generated when they are read: procfs and sysfs.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use core::sync::atomic::{AtomicU64, Ordering};

use abi::errno::Errno;
use task::{Mutex, Once};

use crate::file::{FileOps, OpenFlags};
use crate::file_ops::seek_position;
use crate::mount::{FileSystem, new_anonymous_device};
use crate::poll::{Events, PollQueue, PollTable};
use crate::{
    Access, Cred, DirEntry, File, FileType, Inode, LinkTarget, Metadata, Result, StatFs, Whence,
};

/// Attributes of a generated file for `stat(2)`.
#[derive(Clone, Copy, Debug)]
pub struct PseudoAttr {
    /// The file system's device number.
    pub dev: u64,
    /// The file's number.
    pub ino: u64,
    /// Permissions.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

impl PseudoAttr {
    /// A file of root's with a number of its own.
    #[must_use]
    pub fn new(dev: u64, mode: u32) -> Self {
        // Numbers of generated files begin above those that are computed from process ids.
        static NEXT: AtomicU64 = AtomicU64::new(1 << 48);
        Self {
            dev,
            ino: NEXT.fetch_add(1, Ordering::Relaxed),
            mode,
            uid: 0,
            gid: 0,
        }
    }

    /// Metadata of a file of this kind, for `stat(2)`.
    #[must_use]
    pub fn metadata(&self, kind: FileType) -> Metadata {
        let mut meta = Metadata::generated(self.dev, self.ino, kind, self.mode);
        meta.uid = self.uid;
        meta.gid = self.gid;
        meta.blksize = 1024;
        meta
    }
}

/// A generated file system: a root directory with a name and a magic number.
pub struct PseudoFs {
    name: &'static str,
    magic: u64,
    root: Arc<LazyRoot>,
}

impl PseudoFs {
    /// A file system; `build` makes its top directory, given the device number, when something
    /// below it is first looked for. A kernel whose programs never read `/proc` or `/sys` does not
    /// pay for them when it starts.
    #[must_use]
    pub fn new(
        name: &'static str,
        magic: u64,
        build: impl Fn(u64) -> Arc<dyn Inode> + Send + Sync + 'static,
    ) -> Arc<Self> {
        let attr = PseudoAttr {
            ino: 1,
            ..PseudoAttr::new(new_anonymous_device(), 0o555)
        };
        Arc::new(Self {
            name,
            magic,
            root: Arc::new(LazyRoot {
                attr,
                build: Box::new(build),
                built: Once::new(),
            }),
        })
    }
}

/// The top directory, before and after it is built.
struct LazyRoot {
    attr: PseudoAttr,
    build: Box<dyn Fn(u64) -> Arc<dyn Inode> + Send + Sync>,
    built: Once<Arc<dyn Inode>>,
}

impl LazyRoot {
    fn built(&self) -> &Arc<dyn Inode> {
        self.built.call_once(|| (self.build)(self.attr.dev))
    }
}

impl Inode for LazyRoot {
    fn metadata(&self) -> Metadata {
        self.attr.metadata(FileType::Directory)
    }

    fn kind(&self) -> FileType {
        FileType::Directory
    }

    fn has_stable_names(&self) -> bool {
        self.built().has_stable_names()
    }

    fn lookup(&self, name: &[u8]) -> Result<Arc<dyn Inode>> {
        self.built().lookup(name)
    }

    fn readdir(&self, cursor: u64, emit: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        self.built().readdir(cursor, emit)
    }
}

impl FileSystem for PseudoFs {
    fn name(&self) -> &'static str {
        self.name
    }

    fn root(&self) -> Arc<dyn Inode> {
        self.root.clone()
    }

    fn statfs(&self) -> StatFs {
        StatFs {
            magic: self.magic,
            block_size: 4096,
            ..StatFs::default()
        }
    }
}

type Show = Box<dyn Fn() -> Result<Vec<u8>> + Send + Sync>;
type Store = Box<dyn Fn(&[u8]) -> Result<()> + Send + Sync>;
type Open = Box<dyn Fn() -> Result<OpenedText> + Send + Sync>;

/// Something that an opening shows and that changes, of which pollers are told.
pub trait Watched: Send + Sync + 'static {
    /// How often it has changed.
    fn change_count(&self) -> u64;

    /// Told of changes.
    fn poll_queue(&self) -> &PollQueue;
}

/// Text that an opening of a generated file shows.
pub struct OpenedText {
    show: Show,
    watched: Option<Arc<dyn Watched>>,
}

impl OpenedText {
    /// An opening that shows the text that `show` makes.
    #[must_use]
    pub fn new(show: impl Fn() -> Result<Vec<u8>> + Send + Sync + 'static) -> Self {
        Self {
            show: Box::new(show),
            watched: None,
        }
    }

    /// The same, and pollers find it changed (`POLLERR | POLLPRI`) when `watched` has changed since
    /// they looked.
    #[must_use]
    pub fn watching(mut self, watched: Arc<dyn Watched>) -> Self {
        self.watched = Some(watched);
        self
    }
}

/// Origin of the text of a generated file.
enum TextOrigin {
    /// The same for all openings.
    Shared(Arc<Show>),
    /// Each opening has its own, or is refused.
    ByOpening(Open),
}

/// A file whose text is made when it is read from the start, and stays the same until it is read
/// from the start again.
struct GeneratedFile {
    attr: PseudoAttr,
    source: TextOrigin,
    store: Option<Arc<Store>>,
}

/// A generated file. `show` makes the text.
#[must_use]
pub fn file(
    attr: PseudoAttr,
    show: impl Fn() -> Result<Vec<u8>> + Send + Sync + 'static,
) -> Arc<dyn Inode> {
    Arc::new(GeneratedFile {
        attr,
        source: TextOrigin::Shared(Arc::new(Box::new(show))),
        store: None,
    })
}

/// A generated file of which `open`, called for each opening, says what that shows.
#[must_use]
pub fn file_by_opening(
    attr: PseudoAttr,
    open: impl Fn() -> Result<OpenedText> + Send + Sync + 'static,
) -> Arc<dyn Inode> {
    Arc::new(GeneratedFile {
        attr,
        source: TextOrigin::ByOpening(Box::new(open)),
        store: None,
    })
}

/// A generated file that can be written: `store` gets each write whole.
#[must_use]
pub fn writable_file(
    attr: PseudoAttr,
    show: impl Fn() -> Result<Vec<u8>> + Send + Sync + 'static,
    store: impl Fn(&[u8]) -> Result<()> + Send + Sync + 'static,
) -> Arc<dyn Inode> {
    Arc::new(GeneratedFile {
        attr,
        source: TextOrigin::Shared(Arc::new(Box::new(show))),
        store: Some(Arc::new(Box::new(store))),
    })
}

/// A writable file as of [`writable_file`], of a setting: a write of no bytes leaves it as it is.
#[must_use]
pub fn setting_file(
    attr: PseudoAttr,
    show: impl Fn() -> Result<Vec<u8>> + Send + Sync + 'static,
    store: impl Fn(&[u8]) -> Result<()> + Send + Sync + 'static,
) -> Arc<dyn Inode> {
    writable_file(attr, show, move |text| match text {
        [] => Ok(()),
        text => store(text),
    })
}

/// A file that always holds the same text.
#[must_use]
pub fn constant(dev: u64, text: impl Into<Vec<u8>>) -> Arc<dyn Inode> {
    let text = text.into();
    file(PseudoAttr::new(dev, 0o444), move || Ok(text.clone()))
}

impl Inode for GeneratedFile {
    fn metadata(&self) -> Metadata {
        self.attr.metadata(FileType::Regular)
    }

    fn kind(&self) -> FileType {
        FileType::Regular
    }

    fn truncate(&self, _: u64) -> Result<()> {
        // `echo x > file` truncates first.
        if self.store.is_some() {
            Ok(())
        } else {
            Err(Errno::EACCES)
        }
    }

    fn open(self: Arc<Self>, flags: OpenFlags) -> Result<Option<Arc<dyn FileOps>>> {
        if flags.is_writable() && self.store.is_none() {
            return Err(Errno::EACCES);
        }
        let (show, watched) = match &self.source {
            TextOrigin::Shared(show) => (show.clone(), None),
            TextOrigin::ByOpening(open) => {
                let OpenedText { show, watched } = open()?;
                (Arc::new(show), watched)
            }
        };
        let seen = watched.as_ref().map_or(0, |watched| watched.change_count());
        Ok(Some(Arc::new(GeneratedOps {
            file: self,
            show,
            text: Mutex::new(None),
            watched,
            seen: AtomicU64::new(seen),
        })))
    }
}

struct GeneratedOps {
    file: Arc<GeneratedFile>,
    show: Arc<Show>,
    text: Mutex<Option<Vec<u8>>>,
    watched: Option<Arc<dyn Watched>>,
    /// Changes of `watched` that pollers were told of.
    seen: AtomicU64,
}

impl FileOps for GeneratedOps {
    fn read(&self, file: &File, buf: &mut [u8]) -> Result<usize> {
        file.with_offset(|offset| {
            let n = self.read_at(file, *offset, buf)?;
            *offset += n as u64;
            Ok(n)
        })
    }

    fn write(&self, _: &File, buf: &[u8]) -> Result<usize> {
        let store = self.file.store.as_ref().ok_or(Errno::EACCES)?;
        store(buf)?;
        *self.text.lock() = None;
        Ok(buf.len())
    }

    fn supports_pread(&self) -> bool {
        true
    }

    fn read_at(&self, _: &File, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let mut text = self.text.lock();
        if offset == 0 {
            *text = None;
        }
        let text = match &mut *text {
            Some(text) => text,
            none => none.insert((self.show)()?),
        };
        let rest = usize::try_from(offset)
            .ok()
            .and_then(|o| text.get(o..))
            .unwrap_or_default();
        let n = rest.len().min(buf.len());
        buf[..n].copy_from_slice(&rest[..n]);
        Ok(n)
    }

    fn write_at(&self, file: &File, _: u64, buf: &[u8]) -> Result<usize> {
        self.write(file, buf)
    }

    fn seek(&self, file: &File, whence: Whence, offset: i64) -> Result<u64> {
        file.with_offset(|position| {
            *position = seek_position(*position, None, whence, offset)?;
            Ok(*position)
        })
    }

    fn poll(&self, _: &File, table: Option<&mut PollTable>) -> Events {
        let Some(watched) = &self.watched else {
            return Events::READABLE | Events::WRITABLE;
        };
        if let Some(table) = table {
            table.poll_wait(watched.poll_queue());
        }
        let now = watched.change_count();
        if self.seen.swap(now, Ordering::AcqRel) == now {
            Events::READABLE
        } else {
            Events::READABLE | Events::ERR | Events::PRI
        }
    }

    fn is_pollable(&self) -> bool {
        self.watched.is_some()
    }

    fn fills_buffers(&self) -> bool {
        true
    }
}

type GetLink = Box<dyn Fn() -> Result<LinkTarget> + Send + Sync>;
type Text = Box<dyn Fn() -> Result<Vec<u8>> + Send + Sync>;

/// A link whose target is found when it is followed.
struct GeneratedLink {
    attr: PseudoAttr,
    target: GetLink,
    text: Option<Text>,
}

/// A generated symbolic link.
#[must_use]
pub fn symlink(
    attr: PseudoAttr,
    follow: impl Fn() -> Result<LinkTarget> + Send + Sync + 'static,
) -> Arc<dyn Inode> {
    Arc::new(GeneratedLink {
        attr,
        target: Box::new(follow),
        text: None,
    })
}

/// A generated symbolic link whose text is not simply where it leads.
#[must_use]
pub fn symlink_with_text(
    attr: PseudoAttr,
    follow: impl Fn() -> Result<LinkTarget> + Send + Sync + 'static,
    text: impl Fn() -> Result<Vec<u8>> + Send + Sync + 'static,
) -> Arc<dyn Inode> {
    Arc::new(GeneratedLink {
        attr,
        target: Box::new(follow),
        text: Some(Box::new(text)),
    })
}

impl Inode for GeneratedLink {
    fn metadata(&self) -> Metadata {
        self.attr.metadata(FileType::Symlink)
    }

    fn kind(&self) -> FileType {
        FileType::Symlink
    }

    fn get_link(&self) -> Result<LinkTarget> {
        (self.target)()
    }

    fn readlink(&self) -> Result<Vec<u8>> {
        match (&self.text, self.get_link()) {
            (Some(text), _) => text(),
            (None, Ok(LinkTarget::Text(text))) => Ok(text),
            (None, Ok(LinkTarget::MagicLink(path))) => Ok(path.to_bytes(None)),
            (None, Err(e)) => Err(e),
        }
    }
}

/// A directory whose entries are made by whoever has it.
pub struct StaticDir {
    attr: PseudoAttr,
    entries: Mutex<BTreeMap<String, Arc<dyn Inode>>>,
}

impl StaticDir {
    /// An empty directory of root's that everybody may list.
    #[must_use]
    pub fn new(dev: u64) -> Arc<Self> {
        Self::with(PseudoAttr::new(dev, 0o555))
    }

    /// An empty directory.
    #[must_use]
    pub fn with(attr: PseudoAttr) -> Arc<Self> {
        Arc::new(Self {
            attr,
            entries: Mutex::new(BTreeMap::new()),
        })
    }

    /// Adds (or replaces) an entry.
    pub fn add(&self, name: &str, inode: Arc<dyn Inode>) {
        let old = self.entries.lock().insert(name.into(), inode);
        drop(old);
    }

    /// Removes an entry, if it is there.
    pub fn remove(&self, name: &str) {
        let old = self.entries.lock().remove(name);
        drop(old);
    }

    /// The directory at `path` below this one, made where it is not there.
    #[must_use]
    pub fn subdir(self: &Arc<Self>, path: &str) -> Arc<Self> {
        path.split('/').fold(self.clone(), |dir, name| {
            let mut entries = dir.entries.lock();
            let found = entries.get(name).cloned();
            let existing = found.and_then(|inode| {
                let any: Arc<dyn core::any::Any + Send + Sync> = inode;
                any.downcast::<Self>().ok()
            });
            existing.unwrap_or_else(|| {
                let made = Self::new(self.attr.dev);
                entries.insert(name.into(), made.clone());
                made
            })
        })
    }
}

impl Inode for StaticDir {
    fn metadata(&self) -> Metadata {
        self.attr.metadata(FileType::Directory)
    }

    fn kind(&self) -> FileType {
        FileType::Directory
    }

    fn lookup(&self, name: &[u8]) -> Result<Arc<dyn Inode>> {
        let name = core::str::from_utf8(name).map_err(|_| Errno::ENOENT)?;
        self.entries.lock().get(name).cloned().ok_or(Errno::ENOENT)
    }

    fn readdir(&self, cursor: u64, emit: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        let entries: Vec<_> = self
            .entries
            .lock()
            .iter()
            .map(|(n, i)| (n.clone(), i.clone()))
            .collect();
        for (index, (name, inode)) in (1..)
            .zip(&entries)
            .skip_while(|(index, _)| *index <= cursor)
        {
            let entry = DirEntry {
                name: name.as_bytes(),
                ino: inode.metadata().ino,
                kind: inode.kind(),
                next: index,
            };
            if !emit(entry) {
                break;
            }
        }
        Ok(())
    }
}

/// One entry that a [`DynamicDir`] lists.
pub struct DynamicEntry {
    /// The name.
    pub name: Vec<u8>,
    /// The file's number.
    pub ino: u64,
    /// Its kind.
    pub kind: FileType,
    /// Orders the entries and stays with one as others come and go; above 0.
    pub key: u64,
}

/// The contents of a directory that is different at every look.
pub trait DynamicDir: Send + Sync + 'static {
    /// The directory's own metadata.
    fn attr(&self) -> PseudoAttr;

    /// Finds an entry.
    ///
    /// # Errors
    /// `ENOENT`.
    fn lookup(&self, name: &[u8]) -> Result<Arc<dyn Inode>>;

    /// All entries with a key above `after`, by ascending key.
    ///
    /// # Errors
    /// `ENOENT` if what the directory shows is gone.
    fn list(&self, after: u64) -> Result<Vec<DynamicEntry>>;

    /// Checks what somebody wants of the directory: as its mode says, unless it is special.
    ///
    /// # Errors
    /// `EACCES`.
    fn check_access(&self, cred: &Cred, want: Access) -> Result<()> {
        cred.check(&self.attr().metadata(FileType::Directory), want)
    }
}

struct DynamicInode<D>(D);

/// A directory that is different at every look.
#[must_use]
pub fn dynamic_dir(dir: impl DynamicDir) -> Arc<dyn Inode> {
    Arc::new(DynamicInode(dir))
}

/// The directory behind an inode, if it is one of this type.
#[must_use]
pub fn as_dynamic<D: DynamicDir>(inode: &Arc<dyn Inode>) -> Option<&D> {
    (&**inode as &dyn Any)
        .downcast_ref::<DynamicInode<D>>()
        .map(|dir| &dir.0)
}

impl<D: DynamicDir> Inode for DynamicInode<D> {
    fn metadata(&self) -> Metadata {
        self.0.attr().metadata(FileType::Directory)
    }

    fn kind(&self) -> FileType {
        FileType::Directory
    }

    fn has_stable_names(&self) -> bool {
        false
    }

    fn check_access(&self, cred: &Cred, want: Access) -> Result<()> {
        self.0.check_access(cred, want)
    }

    fn lookup(&self, name: &[u8]) -> Result<Arc<dyn Inode>> {
        self.0.lookup(name)
    }

    fn readdir(&self, cursor: u64, emit: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        for entry in self.0.list(cursor)? {
            if !emit(DirEntry {
                name: &entry.name,
                ino: entry.ino,
                kind: entry.kind,
                next: entry.key,
            }) {
                break;
            }
        }
        Ok(())
    }
}
