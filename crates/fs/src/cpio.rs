//! Unpacks an initramfs: one or several archives of the crate `cpio`, with zero bytes between them.
//!
//! The archive comes from outside, so every length and offset is checked against what is there,
//! names cannot lead out of the root (`..` is refused, and directories are walked by lookup without
//! following links), and an error names the entry.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::sync::Arc;
use core::fmt;

use abi::errno::Errno;
use cpio::{HEADER_SIZE, Header, HeaderError, TRAILER, padded};
use vm::{PAGE_SIZE, Page};

use crate::{DeviceId, FileType, Inode, NewInode, NewInodeKind, SetAttr, Timestamp};

/// Why an archive could not be unpacked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Error {
    /// The kind of error.
    pub kind: ErrorKind,
    /// Where the entry's header begins, in bytes from the start.
    pub offset: usize,
    /// The entry's name, as far as it is known.
    pub name: String,
}

/// Kinds of errors in an archive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ErrorKind {
    /// No header where one must be.
    BadMagic,
    /// A header field is no hexadecimal number.
    BadNumber,
    /// The archive ends within an entry.
    Truncated,
    /// An empty name, or one with `..` or a NUL in it, or without a final NUL.
    BadName,
    /// An unknown kind of file.
    BadKind,
    /// The file system refused.
    Refused(Errno),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what: &dyn fmt::Display = match &self.kind {
            ErrorKind::BadMagic => &"no cpio newc header (compressed archives are not supported)",
            ErrorKind::BadNumber => &"bad number in a header",
            ErrorKind::Truncated => &"the archive ends early",
            ErrorKind::BadName => &"bad file name",
            ErrorKind::BadKind => &"unknown kind of file",
            ErrorKind::Refused(errno) => errno,
        };
        write!(
            f,
            "initramfs, byte {}, entry '{}': {what}",
            self.offset, self.name
        )
    }
}

/// Counts of an archive that was unpacked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Summary {
    /// Entries.
    pub entries: usize,
    /// Bytes of contents.
    pub bytes: u64,
}

impl From<HeaderError> for ErrorKind {
    fn from(error: HeaderError) -> Self {
        match error {
            HeaderError::Magic => Self::BadMagic,
            HeaderError::Number => Self::BadNumber,
            HeaderError::Truncated => Self::Truncated,
        }
    }
}

fn attributes(header: &Header) -> SetAttr {
    SetAttr {
        mode: Some(header.mode & 0o7777),
        uid: Some(header.uid),
        gid: Some(header.gid),
        mtime: Some(Timestamp {
            sec: i64::from(header.mtime),
            nsec: 0,
        }),
        atime: None,
    }
}

/// `len` bytes from `at`, and where the next field begins, four-byte aligned.
fn take(archive: &[u8], at: usize, len: usize) -> Result<(&[u8], usize), ErrorKind> {
    let end = at.checked_add(len).ok_or(ErrorKind::Truncated)?;
    let bytes = archive.get(at..end).ok_or(ErrorKind::Truncated)?;
    Ok((bytes, padded(end as u64) as usize))
}

/// An archive that is read from the front, and forgotten as it is read.
pub trait ArchiveReader {
    /// Bytes of the archive that are not consumed yet.
    fn rest(&self) -> &[u8];

    /// Forgets the next `count` bytes, or all that are left.
    fn consume(&mut self, count: usize);

    /// Takes the next page of bytes as a page, if they lie in one.
    fn take_page(&mut self) -> Option<Page> {
        None
    }
}

impl ArchiveReader for &[u8] {
    fn rest(&self) -> &[u8] {
        self
    }

    fn consume(&mut self, count: usize) {
        *self = &self[count.min(self.len())..];
    }
}

#[cfg(target_os = "none")]
impl ArchiveReader for guard::mem::Initramfs {
    fn rest(&self) -> &[u8] {
        self.bytes()
    }

    fn consume(&mut self, count: usize) {
        self.consume(count);
    }

    fn take_page(&mut self) -> Option<Page> {
        self.take_page()
    }
}

/// Unpacks `archive` below the directory `root`. Directories that exist are reused, other existing
/// names replaced. What has been unpacked is consumed, so that unpacking needs little more memory
/// than the archive; whole pages of a file that lie on page boundaries become the file's without
/// being copied.
///
/// # Errors
/// At the first entry that is wrong; what came before it stays unpacked.
pub fn unpack(archive: &mut impl ArchiveReader, root: &Arc<dyn Inode>) -> Result<Summary, Error> {
    let mut links = HardLinks::new();
    let mut summary = Summary::default();
    let all = archive.rest().len();
    loop {
        let padding = archive.rest().iter().take_while(|&&b| b == 0).count();
        archive.consume(padding);
        let rest = archive.rest();
        if rest.is_empty() {
            return Ok(summary);
        }
        let offset = all - rest.len();
        let mut shown = String::new();
        match unpack_entry(archive, root, &mut links, &mut shown) {
            Ok(Some(bytes)) => {
                summary.entries += 1;
                summary.bytes += bytes;
            }
            // The trailer: an archive ends here, another may follow. Numbers of links begin anew.
            Ok(None) => links.clear(),
            Err(what) => {
                return Err(Error {
                    kind: what,
                    offset,
                    name: shown,
                });
            }
        }
    }
}

/// Files with several names, by the device they were on and their number.
type HardLinks = BTreeMap<((u32, u32), u32), Arc<dyn Inode>>;

/// Unpacks the next entry. Returns the bytes of contents, or `None` at the trailer.
fn unpack_entry(
    archive: &mut impl ArchiveReader,
    root: &Arc<dyn Inode>,
    links: &mut HardLinks,
    shown: &mut String,
) -> Result<Option<u64>, ErrorKind> {
    let rest = archive.rest();
    let header = Header::parse(rest)?;
    let (name, next) = take(rest, HEADER_SIZE, header.namesize as usize)?;
    // More than one zero at the end aligns the contents, as `gen_init_cpio -a` of Linux does it.
    let len = name
        .iter()
        .position(|&b| b == 0)
        .ok_or(ErrorKind::BadName)?;
    if name[len..].iter().any(|&b| b != 0) {
        return Err(ErrorKind::BadName);
    }
    let name = name[..len].to_vec();
    *shown = String::from_utf8_lossy(&name).into_owned();
    if name == TRAILER {
        archive.consume(next);
        return Ok(None);
    }
    let (data, end) = take(rest, next, header.filesize as usize)?;
    let (size, padding) = (data.len(), end - next - data.len());
    let made = create_entry(root, &name, &header, data, links)?;
    archive.consume(next);
    match &made {
        Some(inode) if inode.kind() == FileType::Regular && size > 0 => {
            fill(inode, archive, size).map_err(ErrorKind::Refused)?;
        }
        _ => archive.consume(size),
    }
    if let Some(inode) = made {
        inode
            .set_attr(&attributes(&header))
            .map_err(ErrorKind::Refused)?;
    }
    archive.consume(padding);
    Ok(Some(size as u64))
}

/// Makes the next `size` bytes of the archive the contents of a file.
fn fill(
    inode: &Arc<dyn Inode>,
    archive: &mut impl ArchiveReader,
    size: usize,
) -> Result<(), Errno> {
    inode.truncate(0)?;
    let mut done = 0;
    while size - done >= PAGE_SIZE
        && let Some(page) = archive.take_page()
    {
        inode.insert_page(done as u64, page)?;
        done += PAGE_SIZE;
    }
    let rest = &archive.rest()[..size - done];
    if !rest.is_empty() && inode.write_at(done as u64, rest)? < rest.len() {
        return Err(Errno::ENOSPC);
    }
    archive.consume(size - done);
    Ok(())
}

/// Makes the file of one entry, without its contents. Returns it, unless it is a directory, whose
/// attributes are set.
fn create_entry(
    root: &Arc<dyn Inode>,
    name: &[u8],
    header: &Header,
    data: &[u8],
    links: &mut HardLinks,
) -> Result<Option<Arc<dyn Inode>>, ErrorKind> {
    let mut dir = root.clone();
    let mut leaf: Option<&[u8]> = None;
    for part in name.split(|&b| b == b'/') {
        match part {
            b"" | b"." => continue,
            b".." => return Err(ErrorKind::BadName),
            _ if part.len() > crate::NAME_MAX => return Err(ErrorKind::BadName),
            _ => {}
        }
        if let Some(parent) = leaf.replace(part) {
            dir = subdirectory(&dir, parent)?;
        }
    }
    let set_directory = |dir: Arc<dyn Inode>| {
        dir.set_attr(&attributes(header))
            .map_err(ErrorKind::Refused)
            .map(|()| None)
    };
    let kind = FileType::from_mode(header.mode).ok_or(ErrorKind::BadKind)?;
    let Some(leaf) = leaf else {
        // The root's own entry: its metadata.
        return if kind == FileType::Directory {
            set_directory(dir)
        } else {
            Err(ErrorKind::BadName)
        };
    };
    let device = DeviceId::new(header.rdev.0, header.rdev.1);
    let new_kind = match kind {
        FileType::Directory => return set_directory(subdirectory(&dir, leaf)?),
        FileType::Regular => NewInodeKind::Regular,
        FileType::Symlink if data.is_empty() || data.contains(&0) => {
            return Err(ErrorKind::BadName);
        }
        FileType::Symlink => NewInodeKind::Symlink(data),
        FileType::Fifo => NewInodeKind::Fifo,
        FileType::Socket => NewInodeKind::Socket,
        FileType::Char => NewInodeKind::Char(device),
        FileType::Block => NewInodeKind::Block(device),
        FileType::Anonymous => return Err(ErrorKind::BadKind),
    };
    match dir.unlink(leaf) {
        Ok(()) | Err(Errno::ENOENT) => {}
        Err(errno) => return Err(ErrorKind::Refused(errno)),
    }
    // Of a file with several names, every name has an entry; the contents come with one of them,
    // usually the last.
    let linked = header.nlink > 1 && kind == FileType::Regular;
    let key = (header.dev, header.ino);
    if linked && let Some(inode) = links.get(&key) {
        dir.link(leaf, inode).map_err(ErrorKind::Refused)?;
        return Ok(Some(inode.clone()));
    }
    let new = NewInode {
        kind: new_kind,
        mode: header.mode & 0o7777,
        umask: 0,
        uid: header.uid,
        gid: header.gid,
    };
    let inode = dir.create(leaf, &new).map_err(ErrorKind::Refused)?;
    if linked {
        links.insert(key, inode.clone());
    }
    Ok(Some(inode))
}

/// The directory `name` in `dir`, made if it is not there.
fn subdirectory(dir: &Arc<dyn Inode>, name: &[u8]) -> Result<Arc<dyn Inode>, ErrorKind> {
    let found = match dir.lookup(name) {
        Err(Errno::ENOENT) => {
            let new = NewInode {
                kind: NewInodeKind::Directory,
                mode: 0o755,
                umask: 0,
                uid: 0,
                gid: 0,
            };
            dir.create(name, &new).map_err(ErrorKind::Refused)?
        }
        found => found.map_err(ErrorKind::Refused)?,
    };
    if found.kind() == FileType::Directory {
        Ok(found)
    } else {
        Err(ErrorKind::Refused(Errno::ENOTDIR))
    }
}
