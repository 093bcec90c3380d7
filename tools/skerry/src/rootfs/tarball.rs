//! A tar archive as a root file system: its entries become a cpio archive's, their contents are
//! read from where they are.

use std::collections::HashMap;
use std::fs::File;
use std::path::Path;

use tar::EntryType;

use super::cpio::{Archive, Content, Entry, Kind};
use crate::failure::{Context, Failure, Result};

/// Plans the cpio archive of the tar archive `file`, which is at `path`.
///
/// # Errors
/// If it cannot be read, or holds what a root file system cannot.
pub fn plan(path: &Path, file: File) -> Result<Archive> {
    let what = || path.display().to_string();
    let archive_len = file.metadata().context(what)?.len();
    let mut archive = Archive::default();
    // Position in the archive of each regular file, for hard links.
    let mut files: HashMap<Vec<u8>, usize> = HashMap::new();
    let mut tar = tar::Archive::new(file);
    for entry in tar.entries_with_seek().context(what)? {
        let entry = entry.context(what)?;
        let header = entry.header();
        let name = normalize(&entry.path_bytes()).ok_or_else(|| {
            Failure::new(format!(
                "{}: the name {:?} leads out of the archive",
                path.display(),
                printable(&entry.path_bytes())
            ))
        })?;
        let number = |field: std::io::Result<u64>| {
            field
                .context(what)
                .map(|value| u32::try_from(value).unwrap_or(0))
        };
        let kind = match header.entry_type() {
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse | EntryType::Link => {
                Kind::Regular
            }
            EntryType::Symlink => Kind::Symlink,
            EntryType::Directory => Kind::Directory,
            EntryType::Char => Kind::Char,
            EntryType::Block => Kind::Block,
            EntryType::Fifo => Kind::Fifo,
            // Remarks about the archive or other entries.
            _ => continue,
        };
        if header.entry_type() == EntryType::GNUSparse {
            return Err(Failure::new(format!(
                "{}: {} is sparse: pack it without --sparse",
                path.display(),
                printable(&name)
            )));
        }
        if name == b"." && archive.entries_mut().iter().any(|entry| entry.name == name) {
            continue;
        }
        let mut new = Entry {
            name: name.clone(),
            kind,
            mode: header.mode().context(what)?,
            uid: number(header.uid())?,
            gid: number(header.gid())?,
            mtime: number(header.mtime())?,
            device: (
                header.device_major().ok().flatten().unwrap_or(0),
                header.device_minor().ok().flatten().unwrap_or(0),
            ),
            inode: archive.next_inode(),
            links: 1,
            content: Content::Empty,
        };
        if !matches!(kind, Kind::Char | Kind::Block) {
            new.device = (0, 0);
        }
        let target = entry.link_name_bytes().map(std::borrow::Cow::into_owned);
        match header.entry_type() {
            EntryType::Link => {
                let to = target
                    .as_deref()
                    .and_then(normalize)
                    .and_then(|to| files.get(&to).copied());
                let Some(to) = to else {
                    return Err(Failure::new(format!(
                        "{}: {} is a link to a file that does not come before it",
                        path.display(),
                        printable(&name)
                    )));
                };
                let first = &mut archive.entries_mut()[to];
                first.links += 1;
                new = Entry {
                    name: name.clone(),
                    links: first.links,
                    content: Content::Empty,
                    ..first.clone()
                };
            }
            EntryType::Symlink => new.content = Content::Bytes(target.unwrap_or_default()),
            _ if kind == Kind::Regular && entry.size() > 0 => {
                let (offset, len) = (entry.raw_file_position(), entry.size());
                if offset.checked_add(len).is_none_or(|end| end > archive_len) {
                    return Err(Failure::new(format!(
                        "{}: cut short: it ends within {}",
                        path.display(),
                        printable(&name)
                    )));
                }
                new.content = Content::Part {
                    path: path.to_owned(),
                    offset,
                    len,
                };
            }
            _ => {}
        }
        archive.add(new)?;
        let last = archive.entries_mut().len() - 1;
        if kind == Kind::Regular && header.entry_type() != EntryType::Link {
            files.insert(name, last);
        }
    }
    if archive.is_empty() {
        return Err(Failure::new(format!(
            "{}: the archive is empty",
            path.display()
        )));
    }
    Ok(archive)
}

/// A name as text: bytes that are not UTF-8 are replaced.
fn printable(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

/// The name without `./`, slashes at the ends and doubled ones; `.` for the root. `None` if it has
/// a `..` or a NUL.
fn normalize(name: &[u8]) -> Option<Vec<u8>> {
    let parts: Vec<&[u8]> = name
        .split(|byte| *byte == b'/')
        .filter(|part| !part.is_empty() && *part != b".")
        .collect();
    if parts.contains(&&b".."[..]) || name.contains(&0) {
        return None;
    }
    Some(if parts.is_empty() {
        b".".to_vec()
    } else {
        parts.join(&b'/')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_name_can_be_read() {
        let mut header = tar::Header::new_ustar();
        header.as_old_mut().name[..8].copy_from_slice(b"../there");
        header.set_size(0);
        header.set_cksum();
        let path = std::env::temp_dir().join(format!("skerry-tarball-{}.tar", std::process::id()));
        std::fs::write(&path, [header.as_bytes().as_slice(), &[0; 1024]].concat()).unwrap();
        let failure = plan(&path, File::open(&path).unwrap()).unwrap_err();
        std::fs::remove_file(&path).unwrap();
        assert!(
            failure.message.contains("the name \"../there\" leads out"),
            "{failure}"
        );
    }

    #[test]
    fn an_archive_cut_short_is_refused_before_anything_is_taken() {
        let mut header = tar::Header::new_ustar();
        header.set_path("there").unwrap();
        header.set_size(1000);
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_cksum();
        let path =
            std::env::temp_dir().join(format!("skerry-tarball-{}-short.tar", std::process::id()));
        for (len, fits) in [(1000, true), (999, false)] {
            std::fs::write(
                &path,
                [header.as_bytes().as_slice(), &vec![1; len]].concat(),
            )
            .unwrap();
            let planned = plan(&path, File::open(&path).unwrap());
            assert_eq!(planned.is_ok(), fits, "{len} bytes");
            if let Err(failure) = planned {
                assert!(
                    failure.message.ends_with("cut short: it ends within there"),
                    "{failure}"
                );
            }
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn names_stay_inside() {
        assert_eq!(normalize(b"./a//b/").unwrap(), b"a/b");
        assert_eq!(normalize(b"/etc").unwrap(), b"etc");
        assert_eq!(normalize(b"./").unwrap(), b".");
        assert_eq!(normalize(b"a/../b"), None);
    }
}
