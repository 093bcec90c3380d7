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
use crate::{DirEntry, File, FileType, Inode, LinkTarget, Metadata, Result, StatFs, Whence};

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
    pub fn new(name: &'static str, magic: u64, build: fn(u64) -> Arc<dyn Inode>) -> Arc<Self> {
        let attr = PseudoAttr {
            ino: 1,
            ..PseudoAttr::new(new_anonymous_device(), 0o555)
        };
        Arc::new(Self {
            name,
            magic,
            root: Arc::new(LazyRoot {
                attr,
                build,
                built: Once::new(),
            }),
        })
    }
}

/// The top directory, before and after it is built.
struct LazyRoot {
    attr: PseudoAttr,
    build: fn(u64) -> Arc<dyn Inode>,
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

/// A file whose text is made when it is read from the start, and stays the same until it is read
/// from the start again.
struct GeneratedFile {
    attr: PseudoAttr,
    show: Arc<Show>,
    store: Option<Arc<Store>>,
    /// Whether it may be opened, beyond what its mode says.
    check: Option<fn(&PseudoAttr) -> Result<()>>,
}

/// A generated file. `show` makes the text.
#[must_use]
pub fn file(
    attr: PseudoAttr,
    show: impl Fn() -> Result<Vec<u8>> + Send + Sync + 'static,
) -> Arc<dyn Inode> {
    Arc::new(GeneratedFile {
        attr,
        show: Arc::new(Box::new(show)),
        store: None,
        check: None,
    })
}

/// A generated file that `check`, which is told its attributes, lets somebody open.
#[must_use]
pub fn guarded_file(
    attr: PseudoAttr,
    check: fn(&PseudoAttr) -> Result<()>,
    show: impl Fn() -> Result<Vec<u8>> + Send + Sync + 'static,
) -> Arc<dyn Inode> {
    Arc::new(GeneratedFile {
        attr,
        show: Arc::new(Box::new(show)),
        store: None,
        check: Some(check),
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
        show: Arc::new(Box::new(show)),
        store: Some(Arc::new(Box::new(store))),
        check: None,
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
        if let Some(check) = self.check {
            check(&self.attr)?;
        }
        Ok(Some(Arc::new(GeneratedOps {
            file: self,
            text: Mutex::new(None),
        })))
    }
}

struct GeneratedOps {
    file: Arc<GeneratedFile>,
    text: Mutex<Option<Vec<u8>>>,
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
            none => none.insert((self.file.show)()?),
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

    fn is_pollable(&self) -> bool {
        false
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

/// A directory with fixed entries, filled while the file system is built.
pub struct StaticDir {
    attr: PseudoAttr,
    entries: Mutex<BTreeMap<String, Arc<dyn Inode>>>,
}

impl StaticDir {
    /// An empty directory.
    #[must_use]
    pub fn new(dev: u64) -> Arc<Self> {
        Arc::new(Self {
            attr: PseudoAttr::new(dev, 0o555),
            entries: Mutex::new(BTreeMap::new()),
        })
    }

    /// Adds (or replaces) an entry.
    pub fn add(&self, name: &str, inode: Arc<dyn Inode>) {
        let old = self.entries.lock().insert(name.into(), inode);
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
