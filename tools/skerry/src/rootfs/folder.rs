//! A folder as a root file system.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use super::cpio::{Archive, Content, Entry, Kind};
use crate::failure::{Context, Result};

/// Plans an archive of what is in `root`; of the directories `empty` right below it, only the
/// directories themselves.
///
/// # Errors
/// If something cannot be read.
pub fn plan(root: &Path, empty: &[&str]) -> Result<Archive> {
    let mut plan = FolderWalk {
        archive: Archive::default(),
        linked: HashMap::new(),
    };
    let metadata = fs::metadata(root).context(|| root.display().to_string())?;
    plan.add(root, OsString::from("."), &metadata)?;
    plan.walk(root, &OsString::new(), empty)?;
    Ok(plan.archive)
}

struct FolderWalk {
    archive: Archive,
    /// The archive's numbers of files with several names, by device and number on the host.
    linked: HashMap<(u64, u64), u32>,
}

impl FolderWalk {
    fn walk(&mut self, folder: &Path, prefix: &OsString, empty: &[&str]) -> Result<()> {
        let what = || folder.display().to_string();
        let mut names: Vec<OsString> = fs::read_dir(folder)
            .and_then(|entries| entries.map(|entry| Ok(entry?.file_name())).collect())
            .context(what)?;
        names.sort();
        for name in names {
            let path = folder.join(&name);
            let metadata = match fs::symlink_metadata(&path) {
                Ok(metadata) => metadata,
                // Gone since the folder was read.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error).context(|| path.display().to_string()),
            };
            let mut full = prefix.clone();
            full.push(&name);
            self.add(&path, full.clone(), &metadata)?;
            if metadata.is_dir() && !empty.iter().any(|left_out| name == *left_out) {
                full.push("/");
                self.walk(&path, &full, &[])?;
            }
        }
        Ok(())
    }

    fn add(&mut self, path: &Path, name: OsString, metadata: &Metadata) -> Result<()> {
        let file_type = metadata.file_type();
        let mut inode = self.archive.next_inode();
        let mut first = true;
        if metadata.is_file() && metadata.nlink() > 1 {
            let known = self
                .linked
                .entry((metadata.dev(), metadata.ino()))
                .or_insert(inode);
            first = *known == inode;
            inode = *known;
        }
        let (kind, content) = match () {
            () if file_type.is_dir() => (Kind::Directory, Content::Empty),
            () if file_type.is_symlink() => {
                let to = fs::read_link(path).context(|| path.display().to_string())?;
                (
                    Kind::Symlink,
                    Content::Bytes(to.as_os_str().as_bytes().to_vec()),
                )
            }
            () if file_type.is_file() && (!first || metadata.len() == 0) => {
                (Kind::Regular, Content::Empty)
            }
            () if file_type.is_file() => (
                Kind::Regular,
                Content::Part {
                    path: path.to_owned(),
                    offset: 0,
                    len: metadata.len(),
                },
            ),
            () if file_type.is_char_device() => (Kind::Char, Content::Empty),
            () if file_type.is_block_device() => (Kind::Block, Content::Empty),
            () if file_type.is_fifo() => (Kind::Fifo, Content::Empty),
            // A socket is nothing without the process behind it.
            () => return Ok(()),
        };
        let device = match kind {
            Kind::Char | Kind::Block => (
                rustix::fs::major(metadata.rdev()),
                rustix::fs::minor(metadata.rdev()),
            ),
            _ => (0, 0),
        };
        self.archive.add(Entry {
            name: name.into_vec(),
            kind,
            mode: metadata.mode() & 0o7777,
            uid: metadata.uid(),
            gid: metadata.gid(),
            mtime: u32::try_from(metadata.mtime()).unwrap_or(0),
            device,
            inode,
            links: u32::try_from(metadata.nlink()).unwrap_or(u32::MAX),
            content,
        })
    }
}
