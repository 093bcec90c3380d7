//! Unpacks an initramfs: one or several `cpio` archives in the "newc" format (`070701`), with zero bytes between them.
//!
//! The archive comes from outside, so every length and offset is checked against what is there, names cannot lead out of the
//! root (`..` is refused, and directories are walked by lookup without following links), and an error names the entry.

use crate::{DeviceId, FileType, Inode, NewInode, NewKind, SetAttr, Timestamp};
use abi::errno::Errno;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::sync::Arc;
use core::fmt;

const HEADER: usize = 110;
const TRAILER: &[u8] = b"TRAILER!!!";

/// Why an archive could not be unpacked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Error {
    /// What is wrong.
    pub what: What,
    /// Where the entry's header begins, in bytes from the start.
    pub offset: usize,
    /// The entry's name, as far as it is known.
    pub name: String,
}

/// What can be wrong with an archive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
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
        let what: &dyn fmt::Display = match &self.what {
            What::BadMagic => &"no cpio newc header (compressed archives are not supported)",
            What::BadNumber => &"bad number in a header",
            What::Truncated => &"the archive ends early",
            What::BadName => &"bad file name",
            What::BadKind => &"unknown kind of file",
            What::Refused(errno) => errno,
        };
        write!(f, "initramfs, byte {}, entry '{}': {what}", self.offset, self.name)
    }
}

/// What was unpacked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Summary {
    /// Entries.
    pub entries: usize,
    /// Bytes of contents.
    pub bytes: u64,
}

struct Header {
    ino: u32,
    mode: u32,
    uid: u32,
    gid: u32,
    nlink: u32,
    mtime: u32,
    size: u32,
    dev: DeviceId,
    rdev: DeviceId,
    name_size: u32,
}

impl Header {
    fn parse(bytes: &[u8]) -> Result<Self, What> {
        if bytes.len() < 6 || !matches!(&bytes[..6], b"070701" | b"070702") {
            return Err(What::BadMagic);
        }
        let fields = bytes.get(6..HEADER).ok_or(What::Truncated)?;
        let field = |index: usize| {
            let digits = core::str::from_utf8(&fields[index * 8..][..8]).map_err(|_| What::BadNumber)?;
            if digits.starts_with('+') {
                return Err(What::BadNumber);
            }
            u32::from_str_radix(digits, 16).map_err(|_| What::BadNumber)
        };
        Ok(Self {
            ino: field(0)?,
            mode: field(1)?,
            uid: field(2)?,
            gid: field(3)?,
            nlink: field(4)?,
            mtime: field(5)?,
            size: field(6)?,
            dev: DeviceId::new(field(7)?, field(8)?),
            rdev: DeviceId::new(field(9)?, field(10)?),
            name_size: field(11)?,
        })
    }
}

/// `len` bytes from `at`, and where the next field begins, four-byte aligned.
fn take(archive: &[u8], at: usize, len: usize) -> Result<(&[u8], usize), What> {
    let end = at.checked_add(len).ok_or(What::Truncated)?;
    let bytes = archive.get(at..end).ok_or(What::Truncated)?;
    Ok((bytes, end.checked_next_multiple_of(4).ok_or(What::Truncated)?))
}

/// Unpacks `archive` below the directory `root`. Directories that exist are reused, other existing names replaced.
///
/// # Errors
/// At the first entry that is wrong; what came before it stays unpacked.
pub fn unpack(archive: &[u8], root: &Arc<dyn Inode>) -> Result<Summary, Error> {
    let mut unpacker = Unpacker::new(root.clone());
    let mut rest = archive;
    while let Some(used) = unpacker.step(rest)? {
        rest = &rest[used..];
    }
    Ok(unpacker.summary())
}

/// Unpacks entry by entry, so that the archive's memory can be given back as the files take shape.
pub struct Unpacker {
    root: Arc<dyn Inode>,
    /// The first names of files with several.
    links: Links,
    summary: Summary,
    /// How far into the archive the next step begins.
    offset: usize,
}

impl Unpacker {
    /// Unpacks below the directory `root`.
    #[must_use]
    pub fn new(root: Arc<dyn Inode>) -> Self {
        Self { root, links: Links::new(), summary: Summary::default(), offset: 0 }
    }

    /// What was unpacked so far.
    #[must_use]
    pub fn summary(&self) -> Summary {
        self.summary
    }

    /// Unpacks the entry that `rest`, what is left of the archive, begins with. Returns how many bytes it took, or `None` at the end.
    ///
    /// # Errors
    /// If the entry is wrong.
    pub fn step(&mut self, rest: &[u8]) -> Result<Option<usize>, Error> {
        if rest.is_empty() {
            return Ok(None);
        }
        let padding = rest.iter().take_while(|&&b| b == 0).count();
        let used = if padding > 0 { padding } else { self.entry(rest)? };
        self.offset += used;
        Ok(Some(used))
    }

    fn entry(&mut self, rest: &[u8]) -> Result<usize, Error> {
        let mut shown = String::new();
        match unpack_entry(rest, &self.root, &mut self.links, &mut shown) {
            Ok(Some((used, bytes))) => {
                self.summary.entries += 1;
                self.summary.bytes += bytes;
                Ok(used.min(rest.len()))
            }
            Ok(None) => {
                // The trailer: an archive ends here, another may follow. Numbers of links begin anew.
                self.links.clear();
                Ok((HEADER + TRAILER.len() + 1).min(rest.len()))
            }
            Err(what) => Err(Error { what, offset: self.offset, name: shown }),
        }
    }
}

type Links = BTreeMap<(DeviceId, u32), Arc<dyn Inode>>;

/// Unpacks the entry at the beginning. Returns where the next begins and the bytes of contents, or `None` at the trailer.
fn unpack_entry(
    archive: &[u8],
    root: &Arc<dyn Inode>,
    links: &mut Links,
    shown: &mut String,
) -> Result<Option<(usize, u64)>, What> {
    let header = Header::parse(archive)?;
    let (name, next) = take(archive, HEADER, header.name_size as usize)?;
    let name = name.strip_suffix(&[0]).ok_or(What::BadName)?;
    *shown = String::from_utf8_lossy(name).into_owned();
    if name == TRAILER {
        return Ok(None);
    }
    let (data, next) = take(archive, next, header.size as usize)?;
    place(root, name, &header, data, links)?;
    Ok(Some((next, data.len() as u64)))
}

/// Makes the file of one entry.
fn place(root: &Arc<dyn Inode>, name: &[u8], header: &Header, data: &[u8], links: &mut Links) -> Result<(), What> {
    if name.contains(&0) {
        return Err(What::BadName);
    }
    let attr = SetAttr {
        mode: Some(header.mode & 0o7777),
        uid: Some(header.uid),
        gid: Some(header.gid),
        mtime: Some(Timestamp { sec: i64::from(header.mtime), nsec: 0 }),
        atime: None,
    };
    let mut dir = root.clone();
    let mut leaf: Option<&[u8]> = None;
    for part in name.split(|&b| b == b'/') {
        match part {
            b"" | b"." => continue,
            b".." => return Err(What::BadName),
            _ if part.len() > crate::NAME_MAX => return Err(What::BadName),
            _ => {}
        }
        if let Some(parent) = leaf.replace(part) {
            dir = subdirectory(&dir, parent)?;
        }
    }
    let kind = FileType::from_mode(header.mode).ok_or(What::BadKind)?;
    let Some(leaf) = leaf else {
        // The root's own entry: its metadata.
        return if kind == FileType::Directory { root.set_attr(&attr).map_err(What::Refused) } else { Err(What::BadName) };
    };
    let new_kind = match kind {
        FileType::Directory => {
            let dir = subdirectory(&dir, leaf)?;
            return dir.set_attr(&attr).map_err(What::Refused);
        }
        FileType::Regular => NewKind::Regular,
        FileType::Symlink if data.is_empty() || data.contains(&0) => return Err(What::BadName),
        FileType::Symlink => NewKind::Symlink(data),
        FileType::Fifo => NewKind::Fifo,
        FileType::Socket => NewKind::Socket,
        FileType::Char => NewKind::Char(header.rdev),
        FileType::Block => NewKind::Block(header.rdev),
    };
    match dir.unlink(leaf) {
        Ok(()) | Err(Errno::ENOENT) => {}
        Err(errno) => return Err(What::Refused(errno)),
    }
    // Of a file with several names, every name has an entry; the contents come with one of them, usually the last.
    let linked = header.nlink > 1 && kind == FileType::Regular;
    let key = (header.dev, header.ino);
    let inode = match links.get(&key) {
        Some(inode) if linked => {
            dir.link(leaf, inode).map_err(What::Refused)?;
            inode.clone()
        }
        _ => {
            let new = NewInode { kind: new_kind, mode: header.mode & 0o7777, uid: header.uid, gid: header.gid };
            dir.create(leaf, &new).map_err(What::Refused)?
        }
    };
    if kind == FileType::Regular && !data.is_empty() {
        inode.truncate(0).map_err(What::Refused)?;
        let written = inode.write_at(0, data).map_err(What::Refused)?;
        if written < data.len() {
            return Err(What::Refused(Errno::ENOSPC));
        }
    }
    inode.set_attr(&attr).map_err(What::Refused)?;
    if linked {
        links.insert(key, inode);
    }
    Ok(())
}

/// The directory `name` in `dir`, made if it is not there.
fn subdirectory(dir: &Arc<dyn Inode>, name: &[u8]) -> Result<Arc<dyn Inode>, What> {
    let found = match dir.lookup(name) {
        Err(Errno::ENOENT) => {
            let new = NewInode { kind: NewKind::Directory, mode: 0o755, uid: 0, gid: 0 };
            dir.create(name, &new).map_err(What::Refused)?
        }
        found => found.map_err(What::Refused)?,
    };
    if found.kind() == FileType::Directory { Ok(found) } else { Err(What::Refused(Errno::ENOTDIR)) }
}
