//! Directories whose entries are made when they are looked at, for what comes and goes.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::errno::Errno;
use fs::pseudo::{self, DynamicDir, DynamicEntry, PseudoAttr};
use fs::{FileType, Inode, LinkTarget, Result};

/// Entries of a directory that have numbers.
const ENTRIES: u64 = 1 << 12;

/// The number of a directory in a tree, and where the tree's numbers begin.
#[derive(Clone, Copy)]
pub(super) struct TreeNumbers {
    first: u64,
    ino: u64,
}

impl TreeNumbers {
    /// A tree whose numbers begin here, above those of all trees with a lower beginning.
    pub(super) const fn from(first: u64) -> Self {
        Self { first, ino: first }
    }

    /// Of the `n`th directory at the top, from 1 on.
    pub(super) const fn of(self, n: u64) -> Self {
        Self {
            ino: self.first + n,
            ..self
        }
    }

    /// Of the `n`th entry.
    fn entry(self, n: u64) -> Self {
        Self {
            ino: self.first + (self.ino - self.first) * ENTRIES + n + 1,
            ..self
        }
    }
}

/// A file's text, without its last line end, when it is read.
pub(super) type Show = Box<dyn Fn() -> Result<String> + Send + Sync>;
/// Takes what is written to a file.
pub(super) type Store = Box<dyn Fn(&[u8]) -> Result<()> + Send + Sync>;

/// An entry of a directory.
pub(super) enum Content {
    /// A file with a text that does not change while it is open.
    Text(String),
    /// A file whose text is made when it is read.
    File(Show),
    /// A file that can be written, too.
    Setting(Show, Store),
    /// A symbolic link.
    Link(String),
    /// A directory.
    Directory(Make),
}

/// Entries with their names.
pub(super) type Entries = Vec<(String, Content)>;
/// Makes the entries of a directory.
pub(super) type Make = Box<dyn Fn() -> Entries + Send + Sync>;

/// A file with a text.
pub(super) fn text(name: &str, text: impl Into<String>) -> (String, Content) {
    (name.into(), Content::Text(text.into()))
}

/// A symbolic link.
pub(super) fn link(name: &str, target: String) -> (String, Content) {
    (name.into(), Content::Link(target))
}

/// A directory.
pub(super) fn directory(dev: u64, numbers: TreeNumbers, make: Make) -> Arc<dyn Inode> {
    pseudo::dynamic_dir(Made { dev, numbers, make })
}

struct Made {
    dev: u64,
    numbers: TreeNumbers,
    make: Make,
}

/// Attributes of root's file of a mode.
pub(super) fn attr(dev: u64, ino: u64, mode: u32) -> PseudoAttr {
    PseudoAttr {
        dev,
        ino,
        mode,
        uid: 0,
        gid: 0,
    }
}

impl DynamicDir for Made {
    fn attr(&self) -> PseudoAttr {
        attr(self.dev, self.numbers.ino, 0o555)
    }

    fn lookup(&self, name: &[u8]) -> Result<Arc<dyn Inode>> {
        let mut entries = (0..).zip((self.make)());
        let (n, (_, content)) = entries
            .find(|(_, entry)| entry.0.as_bytes() == name)
            .ok_or(Errno::ENOENT)?;
        let numbers = self.numbers.entry(n);
        let attr = |mode| attr(self.dev, numbers.ino, mode);
        let line = |text: String| (text + "\n").into_bytes();
        Ok(match content {
            Content::Text(text) => pseudo::file(attr(0o444), move || Ok(line(text.clone()))),
            Content::File(show) => pseudo::file(attr(0o444), move || show().map(line)),
            Content::Setting(show, store) => {
                pseudo::setting_file(attr(0o644), move || show().map(line), store)
            }
            Content::Link(target) => pseudo::symlink(attr(0o777), move || {
                Ok(LinkTarget::Text(target.clone().into_bytes()))
            }),
            Content::Directory(make) => directory(self.dev, numbers, make),
        })
    }

    fn list(&self, after: u64) -> Result<Vec<DynamicEntry>> {
        let entries = (0..).zip((self.make)());
        let entries = entries.map(|(n, (name, content))| DynamicEntry {
            name: name.into_bytes(),
            ino: self.numbers.entry(n).ino,
            kind: match content {
                Content::Text(_) | Content::File(_) | Content::Setting(..) => FileType::Regular,
                Content::Link(_) => FileType::Symlink,
                Content::Directory(_) => FileType::Directory,
            },
            key: n + 1,
        });
        Ok(entries.filter(|entry| entry.key > after).collect())
    }
}
