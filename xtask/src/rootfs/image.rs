//! Images of disks: an ext4 file system with the files of an archive.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{BufReader, Write as _};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use tar::Archive;

use crate::cleanup::Directory;

/// Bytes of a block. What mke2fs takes for images of less than 512 MiB, 1 KiB, is for diskettes.
const BLOCK: u64 = 4096;
/// Room beside half as much again as the files need.
const ROOM: u64 = 64 << 20;
/// Inodes beside twice as many as there are files.
const MORE_INODES: usize = 4096;

/// A file of an archive, with its owner.
struct Owned {
    path: PathBuf,
    uid: u64,
    gid: u64,
}

/// Reads a size: a number of bytes, or of KiB, MiB or GiB with `k`, `m` or `g` behind it.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is not a size: give a number and k, m or g, as in 512M");
    let (digits, shift) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 10),
        Some((at, 'm' | 'M')) => (&text[..at], 20),
        Some((at, 'g' | 'G')) => (&text[..at], 30),
        _ => (text, 0),
    };
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    number
        .checked_mul(1 << shift)
        .filter(|bytes| *bytes > 0)
        .ok_or_else(wrong)
}

/// Makes a file system with the files of a directory, in place of what the image has.
pub fn mke2fs(image: &Path, options: &[&str], tree: &Path) -> Result<()> {
    let output = Command::new("/usr/sbin/mke2fs")
        .args(["-q", "-F", "-t", "ext4"])
        .args(["-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"])
        .args(options)
        .arg("-d")
        .args([tree, image])
        .output()
        .context("cannot run mke2fs")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "mke2fs: {said}");
    Ok(())
}

/// Makes an image with the files of a tar archive and what `add` puts beside them, as a whole or
/// not at all; without a size, of the size that its files need and room.
pub fn write(
    archive: &Path,
    output: &Path,
    size: Option<u64>,
    add: impl FnOnce(&Path) -> Result<()>,
) -> Result<()> {
    let directory = Directory::create().context("cannot make a temporary directory")?;
    let tree = directory.join("tree");
    fs::create_dir(&tree)?;
    let owned = unpack(archive, &tree)?;
    add(&tree)?;
    let needed = bytes_of(&tree)?;
    let size = size.unwrap_or(needed + needed / 2 + ROOM);
    let part = output.with_extension(format!("part.{}", std::process::id()));
    let made = File::create(&part)
        .and_then(|file| file.set_len(size.next_multiple_of(BLOCK)))
        .with_context(|| format!("cannot write {}", part.display()))
        .and_then(|()| {
            let inodes = (2 * owned.len() + MORE_INODES).to_string();
            let options = ["-b", &BLOCK.to_string(), "-N", &inodes];
            mke2fs(&part, &options, &tree).with_context(|| {
                format!(
                    "the files are {} MiB, and do not fit into {} MiB",
                    needed.div_ceil(1 << 20),
                    size >> 20
                )
            })
        })
        .and_then(|()| set_owners(&part, &tree, &owned))
        .and_then(|()| {
            fs::rename(&part, output).with_context(|| format!("cannot make {}", output.display()))
        });
    if made.is_err() {
        // Nothing to do if it is not there.
        let _ = fs::remove_file(&part);
    }
    made
}

/// Unpacks an archive into a directory; returns its files with their owners, which the host's need
/// not be.
fn unpack(archive: &Path, tree: &Path) -> Result<Vec<Owned>> {
    let failed = || format!("cannot unpack {}", archive.display());
    let open = || -> Result<Archive<BufReader<File>>> {
        let mut archive = Archive::new(BufReader::new(File::open(archive)?));
        archive.set_preserve_permissions(true);
        Ok(archive)
    };
    open()?.unpack(tree).with_context(failed)?;
    let mut owned = Vec::new();
    for entry in open()?.entries().with_context(failed)? {
        let entry = entry.with_context(failed)?;
        owned.push(Owned {
            path: entry.path()?.into_owned(),
            uid: entry.header().uid()?,
            gid: entry.header().gid()?,
        });
    }
    Ok(owned)
}

/// Bytes that the files of a directory take in whole blocks.
fn bytes_of(tree: &Path) -> Result<u64> {
    let mut bytes = BLOCK;
    for entry in fs::read_dir(tree).with_context(|| format!("cannot read {}", tree.display()))? {
        let entry = entry?;
        let metadata = entry.path().symlink_metadata()?;
        bytes += match metadata.is_dir() {
            true => bytes_of(&entry.path())?,
            false => metadata.len().next_multiple_of(BLOCK),
        };
    }
    Ok(bytes)
}

/// Gives the files of an image the owners that they have in the archive, where mke2fs has taken
/// over others from the host.
fn set_owners(image: &Path, tree: &Path, owned: &[Owned]) -> Result<()> {
    let mut script = String::new();
    for Owned { path, uid, gid } in owned {
        let metadata = tree.join(path).symlink_metadata()?;
        for (field, wanted, has) in [("uid", *uid, metadata.uid()), ("gid", *gid, metadata.gid())] {
            if wanted == u64::from(has) {
                continue;
            }
            let name = path.to_str().filter(|name| !name.contains(['"', '\n']));
            let name = name.with_context(|| format!("debugfs cannot take {path:?}"))?;
            writeln!(script, "set_inode_field \"/{name}\" {field} {wanted}")?;
        }
    }
    if script.is_empty() {
        return Ok(());
    }
    let mut child = Command::new("/usr/sbin/debugfs")
        .args(["-w", "-f", "-"])
        .arg(image)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot run debugfs")?;
    let mut input = child.stdin.take().context("no pipe")?;
    // It says nothing before it has read all of it, but for its version.
    input.write_all(script.as_bytes())?;
    drop(input);
    let output = child.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    if let (true, Some(complaint)) = (output.status.success(), said.lines().nth(1)) {
        bail!("debugfs: {complaint}");
    }
    ensure!(output.status.success(), "debugfs: {said}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use tar::{Builder, EntryType, Header};

    use super::*;

    /// Answer of debugfs about an image.
    fn ask(image: &Path, request: &str) -> String {
        let output = Command::new("/usr/sbin/debugfs")
            .args(["-R", request])
            .arg(image)
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    #[test]
    fn an_image_has_the_files_of_an_archive_with_their_owners() {
        let directory = Directory::create().unwrap();
        let (archive, image) = (directory.join("files.tar"), directory.join("files.img"));
        let mut builder = Builder::new(File::create(&archive).unwrap());
        let mut add = |name: &str, kind: EntryType, mode: u32, owner: u64, contents: &[u8]| {
            let mut header = Header::new_gnu();
            header.set_entry_type(kind);
            header.set_mode(mode);
            header.set_size(contents.len() as u64);
            header.set_uid(owner);
            header.set_gid(owner + 1);
            header.set_mtime(1_000_000_000);
            builder.append_data(&mut header, name, contents).unwrap();
        };
        add("home", EntryType::Directory, 0o755, 0, b"");
        add("home/a b", EntryType::Directory, 0o700, 1234, b"");
        add("home/a b/note", EntryType::Regular, 0o640, 1234, b"hello\n");
        add("su", EntryType::Regular, 0o4755, 0, &[7; 100_000]);
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::Symlink);
        header.set_size(0);
        header.set_mode(0o777);
        header.set_mtime(1_000_000_000);
        header.set_uid(0);
        header.set_gid(0);
        builder.append_link(&mut header, "link", "su").unwrap();
        header.set_entry_type(EntryType::Link);
        builder.append_link(&mut header, "hard", "su").unwrap();
        builder.finish().unwrap();
        drop(builder);

        let put = |tree: &Path| Ok(fs::write(tree.join("added"), "beside\n")?);
        write(&archive, &image, None, put).unwrap();
        let checked = Command::new("/usr/sbin/e2fsck")
            .arg("-fn")
            .arg(&image)
            .output()
            .unwrap();
        assert!(checked.status.success(), "{checked:?}");
        assert_eq!(ask(&image, "cat \"/home/a b/note\""), "hello\n");
        assert_eq!(ask(&image, "cat /added"), "beside\n");
        for (name, wanted) in [
            ("/home/a b", ["Mode:  0700", "User:  1234", "Group:  1235"]),
            (
                "/home/a b/note",
                ["Mode:  0640", "User:  1234", "Group:  1235"],
            ),
            ("/su", ["Mode:  04755", "Links: 2", "User:     0"]),
            (
                "/link",
                ["Type: symlink", "Fast link dest: \"su\"", "User:     0"],
            ),
        ] {
            let said = ask(&image, &format!("stat \"{name}\""));
            for wanted in wanted {
                assert!(said.contains(wanted), "{name}: no {wanted:?} in {said}");
            }
        }
        let length = fs::metadata(&image).unwrap().len();
        assert!(length >= ROOM, "{length}");
        let refused = write(&archive, &image, Some(1 << 20), |tree| {
            Ok(fs::write(tree.join("large"), vec![1; 4 << 20])?)
        });
        let refused = format!("{:#}", refused.unwrap_err());
        assert!(refused.contains("do not fit into 1 MiB"), "{refused}");
        assert_eq!(
            fs::metadata(&image).unwrap().len(),
            length,
            "it was changed"
        );
    }

    #[test]
    fn sizes_are_numbers_with_a_unit() {
        assert_eq!(parse_size("4096"), Ok(4096));
        assert_eq!(parse_size("512M"), Ok(512 << 20));
        assert_eq!(parse_size("2g"), Ok(2 << 30));
        for wrong in ["", "M", "-1", "1T", "0", "99999999999g", "1é"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }
}
