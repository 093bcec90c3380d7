//! The "newc" format of cpio archives (magic `070701`), which Linux and Skerry unpack as their
//! first file system: headers read and written, and how entries are padded. The format is that of
//! `Documentation/driver-api/early-userspace/buffer-format.rst` of Linux.
//!
//! An archive is a row of entries, the last of which is named [`TRAILER`]; each is a header, a name
//! with its final NUL, and contents. Name and contents end at a multiple of 4 bytes, filled up with
//! zeros.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

use alloc::vec::Vec;

/// Bytes of a header.
pub const HEADER_SIZE: usize = 110;
/// The name of the entry that ends an archive.
pub const TRAILER: &[u8] = b"TRAILER!!!";
/// Archives are filled up with zeros to a multiple of so many bytes.
pub const BLOCK_SIZE: u64 = 512;

/// The bits of [`Header::mode`] that are the file type.
pub const S_IFMT: u32 = 0o170_000;
/// The file type in [`Header::mode`]: a named pipe.
pub const S_IFIFO: u32 = 0o010_000;
/// The file type in [`Header::mode`]: a character device.
pub const S_IFCHR: u32 = 0o020_000;
/// The file type in [`Header::mode`]: a directory.
pub const S_IFDIR: u32 = 0o040_000;
/// The file type in [`Header::mode`]: a block device.
pub const S_IFBLK: u32 = 0o060_000;
/// The file type in [`Header::mode`]: a regular file.
pub const S_IFREG: u32 = 0o100_000;
/// The file type in [`Header::mode`]: a symbolic link, whose target is the contents.
pub const S_IFLNK: u32 = 0o120_000;

const MAGIC: &[u8; 6] = b"070701";
/// The magic of archives whose headers have checksums, which are not looked at.
const MAGIC_WITH_CHECKSUMS: &[u8; 6] = b"070702";
/// Hexadecimal digits of a field.
const DIGITS: usize = 8;
const ALIGNMENT: u64 = 4;
const PAGE_SIZE: u64 = 4096;
/// Bytes of the longest name with its NUL: Linux passes over entries with longer ones.
const PATH_MAX: u64 = 4096;

/// The header of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Header {
    /// Inode number: the names of one file share it.
    pub ino: u32,
    /// File type (`S_IF*`) and permissions.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Names of the file.
    pub nlink: u32,
    /// Time of the last change, in seconds since 1970.
    pub mtime: u32,
    /// Bytes of contents.
    pub filesize: u32,
    /// Major and minor number of the device that the file was on.
    pub dev: (u32, u32),
    /// Major and minor number of the device that the file is.
    pub rdev: (u32, u32),
    /// Bytes of the name, with its NUL and further ones.
    pub namesize: u32,
}

/// Why bytes are no header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HeaderError {
    /// The bytes do not begin with the format's magic.
    Magic,
    /// A field is no hexadecimal number.
    Number,
    /// There are fewer than [`HEADER_SIZE`].
    Truncated,
}

impl Header {
    /// The header at the beginning of `bytes`.
    ///
    /// # Errors
    /// If there is none.
    pub fn parse(bytes: &[u8]) -> Result<Self, HeaderError> {
        let magic = bytes.get(..MAGIC.len()).ok_or(HeaderError::Magic)?;
        if magic != MAGIC && magic != MAGIC_WITH_CHECKSUMS {
            return Err(HeaderError::Magic);
        }
        let fields = bytes
            .get(MAGIC.len()..HEADER_SIZE)
            .ok_or(HeaderError::Truncated)?;
        let field = |index: usize| number(&fields[index * DIGITS..][..DIGITS]);
        Ok(Self {
            ino: field(0)?,
            mode: field(1)?,
            uid: field(2)?,
            gid: field(3)?,
            nlink: field(4)?,
            mtime: field(5)?,
            filesize: field(6)?,
            dev: (field(7)?, field(8)?),
            rdev: (field(9)?, field(10)?),
            namesize: field(11)?,
        })
    }

    /// The bytes of the header, and of the name with the zeros behind it: the contents come next.
    ///
    /// # Panics
    /// If `namesize` has no room for the name and its NUL.
    #[must_use]
    pub fn write(&self, name: &[u8]) -> Vec<u8> {
        let namesize = self.namesize as usize;
        assert!(name.len() < namesize, "a name ends with a NUL");
        let fields = [
            self.ino,
            self.mode,
            self.uid,
            self.gid,
            self.nlink,
            self.mtime,
            self.filesize,
            self.dev.0,
            self.dev.1,
            self.rdev.0,
            self.rdev.1,
            self.namesize,
            0,
        ];
        let size = padded((HEADER_SIZE + namesize) as u64) as usize;
        let mut bytes = Vec::with_capacity(size);
        bytes.extend_from_slice(MAGIC);
        for field in fields {
            let digit = |at: usize| field >> (4 * (DIGITS - 1 - at)) & 0xf;
            bytes.extend((0..DIGITS).map(|at| b"0123456789abcdef"[digit(at) as usize]));
        }
        bytes.extend_from_slice(name);
        bytes.resize(size, 0);
        bytes
    }
}

/// The entry that ends an archive.
#[must_use]
pub fn trailer() -> Vec<u8> {
    let header = Header {
        nlink: 1,
        namesize: TRAILER.len() as u32 + 1,
        ..Header::default()
    };
    header.write(TRAILER)
}

/// Bytes of a name or of contents with the zeros behind them.
#[must_use]
pub const fn padded(size: u64) -> u64 {
    size.next_multiple_of(ALIGNMENT)
}

/// The [`Header::namesize`] of an entry at byte `at` of its archive, whose name has `name` bytes
/// and which has so many bytes of contents. Zeros behind the name move contents of a page and more
/// to a page boundary: there Skerry takes pages as they are instead of copying them.
/// (`gen_init_cpio -a` of Linux does the same for file systems that share blocks.)
#[must_use]
pub const fn namesize(at: u64, name: usize, contents: u64) -> u32 {
    let plain = name as u64 + 1;
    let end = at + HEADER_SIZE as u64 + plain;
    let aligned = plain + end.next_multiple_of(PAGE_SIZE) - end;
    let size = if contents >= PAGE_SIZE && aligned <= PATH_MAX {
        aligned
    } else {
        plain
    };
    size as u32
}

/// A header's hexadecimal number. (By hand: an archive of small files is mostly headers, and the
/// library's way takes most of the time of unpacking it.)
fn number(digits: &[u8]) -> Result<u32, HeaderError> {
    digits.iter().try_fold(0, |value, digit| {
        let digit = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            b'A'..=b'F' => digit - b'A' + 10,
            _ => return Err(HeaderError::Number),
        };
        Ok(value << 4 | u32::from(digit))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn headers() -> impl Strategy<Value = Header> {
        (any::<[u32; 11]>(), 9u32..100).prop_map(|(fields, namesize)| Header {
            ino: fields[0],
            mode: fields[1],
            uid: fields[2],
            gid: fields[3],
            nlink: fields[4],
            mtime: fields[5],
            filesize: fields[6],
            dev: (fields[7], fields[8]),
            rdev: (fields[9], fields[10]),
            namesize,
        })
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(header in headers()) {
            let bytes = header.write(b"etc/name");
            prop_assert_eq!(Header::parse(&bytes), Ok(header));
            prop_assert_eq!(bytes.len() as u64, padded(u64::from(header.namesize) + 110));
            prop_assert_eq!(&bytes[HEADER_SIZE..][..8], b"etc/name");
            prop_assert!(bytes[HEADER_SIZE + 8..].iter().all(|&byte| byte == 0));
        }

        #[test]
        fn pages_of_contents_begin_at_pages(at in 0..1_000_000u64, name in 1..300usize) {
            let at = padded(at);
            let size = namesize(at, name, PAGE_SIZE);
            let contents = at + padded((HEADER_SIZE as u32 + size).into());
            prop_assert!(size > name as u32);
            prop_assert!(contents.is_multiple_of(PAGE_SIZE) || size as usize == name + 1);
            prop_assert_eq!(namesize(at, name, PAGE_SIZE - 1) as usize, name + 1);
        }
    }

    #[test]
    fn what_is_no_header_is_refused() {
        let header = trailer();
        assert_eq!(Header::parse(&header[..5]), Err(HeaderError::Magic));
        assert_eq!(Header::parse(&header[..109]), Err(HeaderError::Truncated));
        let mut wrong = header.clone();
        wrong[20] = b'g';
        assert_eq!(Header::parse(&wrong), Err(HeaderError::Number));
        wrong[5] = b'7';
        assert_eq!(Header::parse(&wrong), Err(HeaderError::Magic));
        wrong[5] = b'2';
        wrong[20] = b'F';
        assert!(Header::parse(&wrong).is_ok());
    }
}
