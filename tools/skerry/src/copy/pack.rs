//! Packing files of this machine for an instance.

use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use tar::{Builder, Header, HeaderMode};

use super::Copied;
use crate::failure::{Context, Failure, Result, plain};

/// Bits of a mode that are kept without `--archive`.
const PERMISSIONS: u32 = 0o777;

/// Reason for which an archive was not written to its end.
#[derive(Debug)]
pub(super) enum Error {
    /// Something here.
    Here(Failure),
    /// Nobody reads it any more.
    NotTaken,
}

/// All that is to be packed, looked at before anything is sent.
#[derive(Debug)]
pub(super) struct Plan {
    /// File or directory that is copied.
    root: PathBuf,
    /// Name that it keeps in a directory; `.`: only what is in it is copied.
    name: PathBuf,
    entries: Vec<Entry>,
    left_out: u32,
}

#[derive(Debug)]
struct Entry {
    /// Path below the root; empty: the root.
    path: PathBuf,
    metadata: Metadata,
}

impl Plan {
    /// Looks at the file or directory `root`, and at all that is in it.
    ///
    /// # Errors
    /// If something cannot be looked at.
    pub(super) fn new(root: &Path) -> Result<Self> {
        let text = root.as_os_str().as_encoded_bytes();
        let contents_only = text.ends_with(b"/.") || text == b".";
        let name = match root.file_name() {
            Some(name) if !contents_only => name.into(),
            _ => ".".into(),
        };
        let mut plan = Self {
            root: root.to_owned(),
            name,
            entries: Vec::new(),
            left_out: 0,
        };
        plan.add(PathBuf::new())?;
        if plan.entries.is_empty() {
            return Err(Failure::new(format!(
                "{} is neither a file, a directory nor a link",
                root.display()
            )));
        }
        Ok(plan)
    }

    /// Name that it has in a directory that it is copied into.
    pub(super) fn name(&self) -> &Path {
        &self.name
    }

    /// Whether it is a directory.
    pub(super) fn is_directory(&self) -> bool {
        self.entries
            .first()
            .is_some_and(|root| root.metadata.is_dir())
    }

    fn add(&mut self, path: PathBuf) -> Result<()> {
        let source = below(&self.root, &path);
        let what = || source.display().to_string();
        let metadata = fs::symlink_metadata(&source).context(what)?;
        let kind = metadata.file_type();
        if kind.is_socket() || kind.is_fifo() || kind.is_char_device() || kind.is_block_device() {
            self.left_out += 1;
            return Ok(());
        }
        self.entries.push(Entry {
            path: path.clone(),
            metadata,
        });
        if kind.is_dir() {
            let mut names = fs::read_dir(&source)
                .and_then(|entries| {
                    entries
                        .map(|entry| Ok(entry?.file_name()))
                        .collect::<io::Result<Vec<_>>>()
                })
                .context(what)?;
            names.sort();
            names
                .into_iter()
                .try_for_each(|name| self.add(path.join(name)))?;
        }
        Ok(())
    }

    /// Writes the archive, in which the root is called `name`.
    pub(super) fn pack(
        &self,
        to: impl Write,
        name: &Path,
        archive: bool,
    ) -> std::result::Result<Copied, Error> {
        let mut builder = Builder::new(to);
        builder.sparse(false);
        let mut bytes = 0;
        for entry in &self.entries {
            let source = below(&self.root, &entry.path);
            let path = below(name, &entry.path);
            let packed = append(&mut builder, entry, &source, &path, archive);
            bytes += packed.map_err(|error| Error::new(&source, &error))?;
        }
        let ended = builder.into_inner().and_then(|mut to| to.flush());
        ended.map_err(|error| Error::new(&self.root, &error))?;
        Ok(Copied {
            bytes,
            left_out: self.left_out,
        })
    }
}

/// `path` below `root`: joining an empty one would add a slash, which a file does not have.
fn below(root: &Path, path: &Path) -> PathBuf {
    match path.as_os_str().is_empty() {
        true => root.to_owned(),
        false => root.join(path),
    }
}

impl Error {
    fn new(source: &Path, error: &io::Error) -> Self {
        match error.kind() {
            ErrorKind::BrokenPipe => Self::NotTaken,
            _ => Self::Here(Failure::new(format!(
                "{}: {}",
                source.display(),
                plain(error)
            ))),
        }
    }
}

/// Appends an entry; returns the bytes of its file.
fn append(
    builder: &mut Builder<impl Write>,
    entry: &Entry,
    source: &Path,
    path: &Path,
    archive: bool,
) -> io::Result<u64> {
    let mut header = Header::new_gnu();
    header.set_metadata_in_mode(&entry.metadata, HeaderMode::Complete);
    if !archive {
        header.set_uid(0);
        header.set_gid(0);
        header.set_mode(header.mode()? & PERMISSIONS);
    }
    if entry.metadata.is_symlink() {
        header.set_size(0);
        builder.append_link(&mut header, path, fs::read_link(source)?)?;
        return Ok(0);
    }
    if entry.metadata.is_dir() {
        header.set_size(0);
        builder.append_data(&mut header, path, io::empty())?;
        return Ok(0);
    }
    let size = entry.metadata.len();
    let contents = Whole {
        file: File::open(source)?,
        left: size,
    };
    builder.append_data(&mut header, path, contents)?;
    Ok(size)
}

/// Reader of as many bytes of a file as its header in an archive says: a file that grows is cut,
/// one that has become shorter is an error.
struct Whole {
    file: File,
    left: u64,
}

impl Read for Whole {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = (&self.file).take(self.left).read(buffer)?;
        self.left -= count as u64;
        if count == 0 && self.left > 0 && !buffer.is_empty() {
            return Err(io::Error::other("it has become shorter"));
        }
        Ok(count)
    }
}
