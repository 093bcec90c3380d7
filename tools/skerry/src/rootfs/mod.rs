//! Root file systems: what `--rootfs` names, as a cpio archive that is streamed into the instance.
//!
//! An archive is planned first, so that its length is known before the first byte is sent, and
//! written piece by piece, so that it never is in memory as a whole.

mod cpio;
mod folder;
mod tarball;

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

pub use cpio::{Archive, Content, Entry, Kind};

use crate::failure::{Context, Failure, Result};

/// Directories of `/` that the default root file system leaves out: other file systems, and those
/// of the running system.
const NOT_COPIED: [&str; 5] = ["dev", "proc", "run", "sys", "tmp"];

/// A root file system to be sent.
#[derive(Debug)]
pub enum RootFs {
    /// A folder or a tar archive, to be written as cpio.
    Planned(Archive),
    /// A cpio archive as it is.
    Ready {
        /// The file.
        path: PathBuf,
        /// Length in bytes.
        len: u64,
        /// Files in a second archive behind it.
        more: Archive,
    },
}

impl RootFs {
    /// The root file system that `source` names: a folder, a tar archive, or a cpio archive;
    /// without one a copy of `/`.
    ///
    /// # Errors
    /// If it cannot be read, or is none of these.
    pub fn open(source: Option<&Path>) -> Result<Self> {
        let Some(source) = source else {
            return folder::plan(Path::new("/"), &NOT_COPIED).map(Self::Planned);
        };
        let what = || format!("root file system {}", source.display());
        let metadata = std::fs::metadata(source).context(what)?;
        if metadata.is_dir() {
            return folder::plan(source, &[]).map(Self::Planned);
        }
        let mut file = File::open(source).context(what)?;
        let mut start = Vec::with_capacity(512);
        file.by_ref()
            .take(512)
            .read_to_end(&mut start)
            .context(what)?;
        match detect_format(&start) {
            Some(Format::Cpio) => Ok(Self::Ready {
                path: source.to_owned(),
                len: metadata.len(),
                more: Archive::default(),
            }),
            Some(Format::Tar) => {
                file.seek(SeekFrom::Start(0)).context(what)?;
                tarball::plan(source, file).map(Self::Planned)
            }
            Some(Format::Compressed(tool)) => Err(Failure::new(format!(
                "{}: compressed: unpack it with {tool} first",
                what()
            ))),
            None => Err(Failure::new(format!(
                "{}: neither a folder, a tar archive nor a cpio archive (newc)",
                what()
            ))),
        }
    }

    /// One without files, of an instance whose root is elsewhere.
    #[must_use]
    pub fn empty() -> Self {
        Self::Planned(Archive::default())
    }

    /// Puts a file of root's, which all may read, in the place of what has its name, if something
    /// has. `name` is a path without a leading slash.
    ///
    /// # Errors
    /// If it is larger than an archive can say.
    pub fn put(&mut self, name: &str, contents: Vec<u8>) -> Result<()> {
        let archive = match self {
            Self::Planned(archive) => archive,
            Self::Ready { more, .. } => more,
        };
        archive.add(Entry {
            name: name.into(),
            kind: Kind::Regular,
            mode: 0o644,
            uid: 0,
            gid: 0,
            mtime: 0,
            device: (0, 0),
            inode: archive.next_inode(),
            links: 1,
            content: Content::Bytes(contents),
        })
    }

    /// Bytes of the archive.
    #[must_use]
    pub fn len(&self) -> u64 {
        match self {
            Self::Planned(archive) => archive.len(),
            Self::Ready { len, more, .. } if more.is_empty() => *len,
            Self::Ready { len, more, .. } => *len + more.len(),
        }
    }

    /// True of an archive without a byte, which there is none of.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sends the archive, exactly [`Self::len`] bytes, to `sink`.
    ///
    /// # Errors
    /// If a file cannot be read, or has become shorter; the sink's.
    pub fn send(&self, sink: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        match self {
            Self::Planned(archive) => archive.send(sink),
            Self::Ready { path, len, more } => {
                cpio::copy(path, 0, *len, sink)?;
                match more.is_empty() {
                    true => Ok(()),
                    false => more.send(sink),
                }
            }
        }
    }
}

enum Format {
    Cpio,
    Tar,
    Compressed(&'static str),
}

/// Format of an archive, by its first bytes.
fn detect_format(start: &[u8]) -> Option<Format> {
    let begins = |magic: &[u8]| start.starts_with(magic);
    match () {
        () if begins(b"070701") || begins(b"070702") => Some(Format::Cpio),
        () if begins(&[0x1f, 0x8b]) => Some(Format::Compressed("gunzip")),
        () if begins(b"\xfd7zXZ") => Some(Format::Compressed("unxz")),
        () if begins(&[0x28, 0xb5, 0x2f, 0xfd]) => Some(Format::Compressed("unzstd")),
        () if start.get(257..262) == Some(b"ustar") => Some(Format::Tar),
        () => None,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    /// An archive's entries: name, mode, links, contents.
    pub(super) fn unpack(bytes: &[u8]) -> Vec<(String, u32, u32, Vec<u8>)> {
        let mut entries = Vec::new();
        let mut at = 0;
        loop {
            assert_eq!(&bytes[at..at + 6], b"070701");
            let field = |n: usize| {
                let text = std::str::from_utf8(&bytes[at + 6 + 8 * n..at + 14 + 8 * n]).unwrap();
                u32::from_str_radix(text, 16).unwrap()
            };
            let (mode, links, size, name_size) =
                (field(1), field(4), field(6) as usize, field(11) as usize);
            let name =
                String::from_utf8(bytes[at + 110..at + 110 + name_size - 1].to_vec()).unwrap();
            let data = (at + 110 + name_size).next_multiple_of(4);
            at = (data + size).next_multiple_of(4);
            if name == "TRAILER!!!" {
                assert!(bytes[at..].iter().all(|byte| *byte == 0));
                return entries;
            }
            entries.push((name, mode, links, bytes[data..data + size].to_vec()));
        }
    }

    fn sent(rootfs: &RootFs) -> Vec<u8> {
        let mut bytes = Vec::new();
        rootfs
            .send(&mut |part| {
                bytes.extend_from_slice(part);
                Ok(())
            })
            .unwrap();
        assert_eq!(bytes.len() as u64, rootfs.len());
        bytes
    }

    fn folder(name: &str) -> PathBuf {
        let folder =
            std::env::temp_dir().join(format!("skerry-rootfs-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(folder.join("bin")).unwrap();
        fs::write(folder.join("bin/tool"), "contents").unwrap();
        fs::set_permissions(folder.join("bin/tool"), fs::Permissions::from_mode(0o4755)).unwrap();
        fs::hard_link(folder.join("bin/tool"), folder.join("bin/zzz")).unwrap();
        symlink("tool", folder.join("bin/link")).unwrap();
        folder
    }

    #[test]
    fn a_folder_becomes_an_archive() {
        let folder = folder("folder");
        let bytes = sent(&RootFs::open(Some(&folder)).unwrap());
        let entries = unpack(&bytes);
        let names: Vec<_> = entries.iter().map(|entry| entry.0.as_str()).collect();
        assert_eq!(names, [".", "bin", "bin/link", "bin/tool", "bin/zzz"]);
        assert_eq!(
            (entries[2].1, entries[2].3.as_slice()),
            (0o120_777, &b"tool"[..])
        );
        assert_eq!(
            (entries[3].1, entries[3].2, entries[3].3.as_slice()),
            (0o104_755, 2, &b"contents"[..])
        );
        assert_eq!(
            (entries[4].2, entries[4].3.len()),
            (2, 0),
            "a hard link's contents come once"
        );
        let archive = folder.join("archive");
        fs::write(&archive, &bytes).unwrap();
        assert_eq!(
            sent(&RootFs::open(Some(&archive)).unwrap()),
            bytes,
            "a cpio archive goes through as it is"
        );
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_file_of_ours_takes_the_place_of_the_images() {
        let folder = folder("put");
        fs::create_dir(folder.join("etc")).unwrap();
        fs::write(folder.join("etc/resolv.conf"), "the image's").unwrap();
        let contents_of = |bytes: &[u8]| {
            let mut entries = unpack(bytes);
            let (name, mode, _, contents) = entries.pop().unwrap();
            (name, mode, String::from_utf8(contents).unwrap())
        };
        let expected = ("etc/resolv.conf".into(), 0o100_644, "ours".into());
        let mut rootfs = RootFs::open(Some(&folder)).unwrap();
        let before = sent(&rootfs);
        rootfs.put("etc/resolv.conf", b"ours".to_vec()).unwrap();
        // What comes last is what stays.
        assert_eq!(contents_of(&sent(&rootfs)), expected);
        // A cpio archive stays as it is, and is followed by another.
        let archive = folder.join("archive");
        fs::write(&archive, &before).unwrap();
        let mut rootfs = RootFs::open(Some(&archive)).unwrap();
        rootfs.put("etc/resolv.conf", b"ours".to_vec()).unwrap();
        let bytes = sent(&rootfs);
        assert_eq!(bytes[..before.len()], before);
        assert_eq!(contents_of(&bytes[before.len()..]), expected);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_tar_archive_becomes_a_cpio_archive() {
        let long = format!("bin/{}", "n".repeat(150));
        let mut tar = tar::Builder::new(Vec::new());
        let owned = |mut header: tar::Header, mode, size| {
            header.set_mode(mode);
            header.set_size(size);
            header.set_uid(0);
            header.set_gid(0);
            header.set_mtime(1);
            header
        };
        let mut header = owned(tar::Header::new_gnu(), 0o755, 8);
        tar.append_data(&mut header, "./bin/tool", &b"contents"[..])
            .unwrap();
        tar.append_data(&mut header, &long, &b"contents"[..])
            .unwrap();
        for (kind, name, to) in [
            (tar::EntryType::Link, "bin/hard", "./bin/tool"),
            (tar::EntryType::Symlink, "bin/soft", "tool"),
        ] {
            let mut header = owned(tar::Header::new_gnu(), 0o777, 0);
            header.set_entry_type(kind);
            tar.append_link(&mut header, name, to).unwrap();
        }
        let mut header = owned(tar::Header::new_ustar(), 0o666, 0);
        header.set_entry_type(tar::EntryType::Char);
        header.set_device_major(1).unwrap();
        header.set_device_minor(3).unwrap();
        tar.append_data(&mut header, "dev/null", &b""[..]).unwrap();
        let path = std::env::temp_dir().join(format!("skerry-rootfs-{}.tar", std::process::id()));
        fs::write(&path, tar.into_inner().unwrap()).unwrap();
        let entries = unpack(&sent(&RootFs::open(Some(&path)).unwrap()));
        let find = |name: &str| {
            entries
                .iter()
                .find(|entry| entry.0 == name)
                .unwrap_or_else(|| panic!("{name}"))
        };
        assert_eq!((find("bin/tool").1, find("bin/tool").2), (0o100_755, 2));
        assert_eq!(find("bin/tool").3, b"contents");
        assert_eq!((find("bin/hard").1, find("bin/hard").2), (0o100_755, 2));
        assert_eq!(find("bin/soft").3, b"tool");
        assert_eq!(find(&long).3, b"contents");
        assert_eq!(find("dev/null").1, 0o020_666);
        assert!(
            entries.iter().position(|e| e.0 == "bin").unwrap()
                < entries.iter().position(|e| e.0 == "bin/tool").unwrap()
        );
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn what_is_no_root_file_system_is_named() {
        let path = std::env::temp_dir().join(format!("skerry-rootfs-{}.bad", std::process::id()));
        for (contents, says) in [(&b"hello"[..], "neither"), (&[0x1f, 0x8b, 8], "gunzip")] {
            fs::write(&path, contents).unwrap();
            let failure = RootFs::open(Some(&path)).unwrap_err();
            assert!(
                failure.message.contains(says) && failure.message.contains(".bad"),
                "{failure}"
            );
        }
        fs::remove_file(&path).unwrap();
        assert!(
            RootFs::open(Some(&path))
                .unwrap_err()
                .message
                .contains("No such file")
        );
    }
}
