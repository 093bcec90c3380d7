//! Writing archives of the crate `cpio`, from files of the host.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use cpio::{
    BLOCK_SIZE, HEADER_SIZE, Header, S_IFBLK, S_IFCHR, S_IFDIR, S_IFIFO, S_IFLNK, S_IFREG,
    namesize, padded, trailer,
};

use crate::failure::{Context, Failure, Result};

/// Bytes sent at a time.
const BUFFER_LEN: usize = 128 << 10;

/// The kind of a file, as in `st_mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A named pipe.
    Fifo,
    /// A character device.
    Char,
    /// A directory.
    Directory,
    /// A block device.
    Block,
    /// A regular file.
    Regular,
    /// A symbolic link.
    Symlink,
}

impl Kind {
    const fn bits(self) -> u32 {
        match self {
            Self::Fifo => S_IFIFO,
            Self::Char => S_IFCHR,
            Self::Directory => S_IFDIR,
            Self::Block => S_IFBLK,
            Self::Regular => S_IFREG,
            Self::Symlink => S_IFLNK,
        }
    }
}

/// Contents of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// No contents.
    Empty,
    /// The bytes themselves: the target of a symbolic link.
    Bytes(Vec<u8>),
    /// A part of a file of the host.
    Part {
        /// The file.
        path: PathBuf,
        /// Where the part begins.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
}

/// A file of the archive.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Path in the archive, without a leading slash.
    pub name: Vec<u8>,
    /// Kind of the file.
    pub kind: Kind,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// When it was changed, in seconds since 1970.
    pub mtime: u32,
    /// A device's number.
    pub device: (u32, u32),
    /// The number that names of one file share.
    pub inode: u32,
    /// Number of hard links.
    pub links: u32,
    /// Contents of the file.
    pub content: Content,
}

impl Entry {
    fn len(&self) -> u64 {
        match &self.content {
            Content::Empty => 0,
            Content::Bytes(bytes) => bytes.len() as u64,
            Content::Part { len, .. } => *len,
        }
    }

    /// Header and name of the entry, as they are at byte `at` of the archive.
    fn head(&self, at: u64) -> Vec<u8> {
        let header = Header {
            ino: self.inode,
            mode: self.kind.bits() | (self.mode & 0o7777),
            uid: self.uid,
            gid: self.gid,
            nlink: self.links,
            mtime: self.mtime,
            filesize: self.len() as u32,
            dev: (0, 0),
            rdev: self.device,
            namesize: namesize(at, self.name.len(), self.len()),
        };
        header.write(&self.name)
    }
}

/// An archive to be written.
#[derive(Debug, Default)]
pub struct Archive {
    entries: Vec<Entry>,
    names: BTreeSet<Vec<u8>>,
    len: u64,
}

impl Archive {
    /// Adds a file; its parent directories first, where they are missing.
    ///
    /// # Errors
    /// If it is larger than the format can say.
    pub fn add(&mut self, entry: Entry) -> Result<()> {
        if u32::try_from(entry.len()).is_err() {
            let name = String::from_utf8_lossy(&entry.name);
            return Err(Failure::new(format!(
                "/{name}: larger than 4 GiB, which a cpio archive cannot hold"
            )));
        }
        if let Some(slash) = entry.name.iter().rposition(|byte| *byte == b'/') {
            let parent = &entry.name[..slash];
            if !self.names.contains(parent) {
                self.add(self.directory(parent.to_vec(), 0o755))?;
            }
        }
        let namesize = namesize(self.len, entry.name.len(), entry.len());
        self.len += padded(HEADER_SIZE as u64 + u64::from(namesize)) + padded(entry.len());
        self.names.insert(entry.name.clone());
        self.entries.push(entry);
        Ok(())
    }

    /// A directory of root's.
    #[must_use]
    pub fn directory(&self, name: Vec<u8>, mode: u32) -> Entry {
        Entry {
            name,
            kind: Kind::Directory,
            mode,
            uid: 0,
            gid: 0,
            mtime: 0,
            device: (0, 0),
            inode: self.next_inode(),
            links: 2,
            content: Content::Empty,
        }
    }

    /// A number that no entry has yet.
    #[must_use]
    pub fn next_inode(&self) -> u32 {
        self.entries.len() as u32 + 1
    }

    /// The entries so far.
    pub fn entries_mut(&mut self) -> &mut [Entry] {
        &mut self.entries
    }

    /// Bytes of the finished archive.
    #[must_use]
    pub fn len(&self) -> u64 {
        (self.len + trailer().len() as u64).next_multiple_of(BLOCK_SIZE)
    }

    /// True if nothing was added.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Writes the archive, exactly [`Self::len`] bytes.
    ///
    /// # Errors
    /// If a file cannot be read or has become shorter; the sink's.
    pub fn send(&self, sink: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let mut pieces = ChunkWriter {
            held: Vec::with_capacity(BUFFER_LEN),
            sink,
        };
        let mut at = 0;
        for entry in &self.entries {
            let len = entry.len();
            let head = entry.head(at);
            at += head.len() as u64 + padded(len);
            pieces.put(&head)?;
            match &entry.content {
                Content::Empty => {}
                Content::Bytes(bytes) => pieces.put(bytes)?,
                Content::Part { path, offset, len } => {
                    copy(path, *offset, *len, &mut |bytes| pieces.put(bytes))?;
                }
            }
            pieces.put(&[0; 3][..(padded(len) - len) as usize])?;
        }
        debug_assert_eq!(at, self.len, "what `add` reckoned");
        let end = trailer();
        let padding = self.len() - self.len - end.len() as u64;
        pieces.put(&end)?;
        pieces.put(&[0; BLOCK_SIZE as usize][..padding as usize])?;
        pieces.finish()
    }
}

/// Collects small writes into large ones.
struct ChunkWriter<'a> {
    held: Vec<u8>,
    sink: &'a mut dyn FnMut(&[u8]) -> Result<()>,
}

impl ChunkWriter<'_> {
    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        if self.held.len() + bytes.len() > BUFFER_LEN {
            (self.sink)(&self.held)?;
            self.held.clear();
        }
        if bytes.len() >= BUFFER_LEN {
            return (self.sink)(bytes);
        }
        self.held.extend_from_slice(bytes);
        Ok(())
    }

    fn finish(self) -> Result<()> {
        if self.held.is_empty() {
            Ok(())
        } else {
            (self.sink)(&self.held)
        }
    }
}

/// Copies exactly `len` bytes of a file.
///
/// # Errors
/// If it cannot be read, or is shorter; the sink's.
pub fn copy(
    path: &Path,
    offset: u64,
    len: u64,
    sink: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let what = || path.display().to_string();
    let mut file = File::open(path).context(what)?;
    if offset > 0 {
        file.seek(SeekFrom::Start(offset)).context(what)?;
    }
    let mut left = len;
    let mut buf = vec![
        0;
        BUFFER_LEN
            .min(usize::try_from(len).unwrap_or(BUFFER_LEN))
            .max(1)
    ];
    while left > 0 {
        let most = buf.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let count = file.read(&mut buf[..most]).context(what)?;
        if count == 0 {
            return Err(Failure::new(format!(
                "{}: became shorter while it was read",
                path.display()
            )));
        }
        sink(&buf[..count])?;
        left -= count as u64;
    }
    Ok(())
}
