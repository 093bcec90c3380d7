//! Unpacking what an instance sends, which is not believed: nothing is made but what was asked for,
//! and nothing outside of where it shall be.

use std::fs::{self, DirBuilder};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tar::{Archive, EntryType};

use super::Copied;
use crate::failure::{Context, Failure, Result, plain};

/// Reason for which an archive was not unpacked to its end.
#[derive(Debug)]
pub(super) enum Error {
    /// Something here, or a name that was not asked for.
    Here(Failure),
    /// The archive ends too early.
    CutShort,
}

/// Place that a file or a directory is copied to.
#[derive(Debug)]
pub(super) struct Target {
    /// Path that was given.
    to: PathBuf,
    /// Name of what was asked for; `None`: the contents of a directory.
    name: Option<String>,
    /// Directory to unpack in: `to`, or one beside it, which takes its place in the end.
    directory: PathBuf,
    /// Whether it is the latter.
    is_temporary: bool,
}

/// An unpacked copy that is not yet in its place.
#[derive(Debug)]
pub(super) struct Unpacked {
    target: Target,
    copied: Copied,
}

impl Target {
    /// Looks at the place, and makes a directory for unpacking beside one that is not there yet.
    ///
    /// # Errors
    /// If there can be nothing.
    pub(super) fn new(to: &Path, name: Option<&str>) -> Result<Self> {
        let name = name.map(str::to_owned);
        let refused = |why| Failure::new(format!("cannot copy to {}: {why}", to.display()));
        match fs::metadata(to) {
            Ok(metadata) if metadata.is_dir() => {
                return Ok(Self {
                    to: to.to_owned(),
                    name,
                    directory: to.to_owned(),
                    is_temporary: false,
                });
            }
            Ok(_) if name.is_none() => {
                return Err(refused("a directory does not take the place of a file"));
            }
            _ => {}
        }
        let file = to.file_name().ok_or_else(|| refused("it has no name"))?;
        let parent = match to.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let mut temporary = std::ffi::OsString::from(".");
        temporary.push(file);
        temporary.push(format!(".skerry-cp-{}", std::process::id()));
        let directory = parent.join(temporary);
        let made = DirBuilder::new().mode(0o700).create(&directory);
        made.context(|| format!("cannot copy to {}", to.display()))?;
        Ok(Self {
            to: to.to_owned(),
            name,
            directory,
            is_temporary: true,
        })
    }

    /// Unpacks an archive to its end.
    pub(super) fn unpack(
        self,
        from: impl Read,
        archive: bool,
    ) -> std::result::Result<Unpacked, Error> {
        let ended = Arc::new(AtomicBool::new(false));
        let source = Source {
            from,
            ended: ended.clone(),
        };
        match self.unpack_all(source, archive) {
            Ok(copied) => Ok(Unpacked {
                target: self,
                copied,
            }),
            Err(_) if ended.load(Ordering::Relaxed) => Err(Error::CutShort),
            Err(failure) => Err(Error::Here(failure)),
        }
    }

    fn unpack_all(&self, mut source: Source<impl Read>, archive: bool) -> Result<Copied> {
        let what = || format!("cannot copy to {}", self.to.display());
        let mut copied = Copied::default();
        let mut count = 0;
        let mut tar = Archive::new(&mut source);
        tar.set_preserve_mtime(true);
        tar.set_preserve_permissions(archive);
        tar.set_preserve_ownerships(archive);
        for entry in tar.entries().context(what)? {
            let mut entry = entry.context(what)?;
            let path = entry.path().context(what)?.into_owned();
            if !self.wants(&path) {
                return Err(Failure::new(format!(
                    "{}: the instance sent {}, which was not asked for",
                    what(),
                    path.display()
                )));
            }
            count += 1;
            match entry.header().entry_type() {
                EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                    copied.bytes += entry.size();
                }
                EntryType::Directory if count == 1 && self.is_file() => {
                    return Err(Failure::new(format!(
                        "{}: a directory does not take the place of a file",
                        what()
                    )));
                }
                EntryType::Directory | EntryType::Symlink | EntryType::Link => {}
                _ => {
                    copied.left_out += 1;
                    continue;
                }
            }
            let unpacked = entry.unpack_in(&self.directory).map_err(|error| {
                // The crate's own text names the file only, and the reason behind it.
                let reason = std::error::Error::source(&error)
                    .map_or_else(|| plain(&error), ToString::to_string);
                Failure::new(format!("{}: {}: {reason}", what(), path.display()))
            })?;
            if !unpacked {
                return Err(Failure::new(format!(
                    "{}: {} leads out of it",
                    what(),
                    path.display()
                )));
            }
        }
        // An archive ends in zeroes, which nobody has to read; who sends it is not to fail by that.
        io::copy(&mut source, &mut io::sink()).context(what)?;
        match count {
            0 => Err(Failure::new(format!("{}: nothing came", what()))),
            _ => Ok(copied),
        }
    }

    /// Whether an entry is what was asked for, or lies within.
    fn wants(&self, path: &Path) -> bool {
        let mut names = path
            .components()
            .filter(|component| *component != Component::CurDir);
        let first = names.next();
        let is_inside = first
            .into_iter()
            .chain(names)
            .all(|component| matches!(component, Component::Normal(_)));
        is_inside
            && match (&self.name, first) {
                (None, _) => true,
                (Some(name), Some(Component::Normal(first))) => first == name.as_str(),
                _ => false,
            }
    }

    /// Whether a file is in the place.
    fn is_file(&self) -> bool {
        fs::metadata(&self.to).is_ok_and(|metadata| !metadata.is_dir())
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if self.is_temporary {
            // What is left of it has failed, and that is told.
            let _ = fs::remove_dir_all(&self.directory);
        }
    }
}

impl Unpacked {
    /// Puts all in its place.
    ///
    /// # Errors
    /// If that is not possible.
    pub(super) fn finish(self) -> Result<Copied> {
        let target = &self.target;
        if target.is_temporary {
            let what = || format!("cannot copy to {}", target.to.display());
            let from = match &target.name {
                Some(name) => target.directory.join(name),
                None => {
                    let mode = fs::Permissions::from_mode(0o755);
                    fs::set_permissions(&target.directory, mode).context(what)?;
                    target.directory.clone()
                }
            };
            let is_directory = fs::symlink_metadata(&from).context(what)?.is_dir();
            if !is_directory && target.to.as_os_str().as_encoded_bytes().ends_with(b"/") {
                return Err(Failure::new(format!(
                    "{}: there is no such directory",
                    what()
                )));
            }
            fs::rename(&from, &target.to).context(what)?;
        }
        Ok(self.copied)
    }
}

/// A reader that knows whether it has come to its end.
struct Source<R> {
    from: R,
    ended: Arc<AtomicBool>,
}

impl<R: Read> Read for Source<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.from.read(buffer)?;
        if count == 0 && !buffer.is_empty() {
            self.ended.store(true, Ordering::Relaxed);
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::super::pack::Plan;
    use super::*;

    /// A new directory, removed with the value.
    struct Directory(PathBuf);

    impl Directory {
        fn new(name: &str) -> Self {
            let name = format!("skerry-copy-{}-{name}", std::process::id());
            let path = std::env::temp_dir().join(name);
            fs::create_dir(&path).unwrap();
            Self(path)
        }

        fn write(&self, name: &str, text: &str) {
            fs::create_dir_all(self.0.join(name).parent().unwrap()).unwrap();
            fs::write(self.0.join(name), text).unwrap();
        }

        fn read(&self, name: &str) -> String {
            fs::read_to_string(self.0.join(name)).unwrap()
        }

        /// Names of all that is in it.
        fn names(&self) -> Vec<String> {
            let mut names: Vec<String> = fs::read_dir(&self.0)
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            names
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    /// The archive of what is at `from`.
    fn packed(from: &Path) -> Vec<u8> {
        let plan = Plan::new(from).unwrap();
        let mut bytes = Vec::new();
        plan.pack(&mut bytes, plan.name(), false).unwrap();
        bytes
    }

    /// Has an archive unpacked that was asked for by `name`.
    fn receive(bytes: &[u8], to: &Path, name: Option<&str>) -> std::result::Result<Copied, String> {
        let target = Target::new(to, name).map_err(|failure| failure.message)?;
        match target.unpack(bytes, false) {
            Ok(unpacked) => unpacked.finish().map_err(|failure| failure.message),
            Err(Error::Here(failure)) => Err(failure.message),
            Err(Error::CutShort) => Err("cut short".into()),
        }
    }

    /// An archive with one entry of this name, which no well-behaved tar makes.
    fn entry(name: &[u8], kind: EntryType, link: &str) -> Vec<u8> {
        let mut header = tar::Header::new_gnu();
        header.as_old_mut().name[..name.len()].copy_from_slice(name);
        header.set_entry_type(kind);
        header.set_mode(0o4755);
        for set in [
            tar::Header::set_uid,
            tar::Header::set_gid,
            tar::Header::set_mtime,
        ] {
            set(&mut header, 0);
        }
        header.set_size(u64::from(kind == EntryType::Regular));
        if !link.is_empty() {
            header.set_link_name(link).unwrap();
        }
        header.set_cksum();
        let mut bytes = header.as_bytes().to_vec();
        if kind == EntryType::Regular {
            bytes.extend([b'x'; 512]);
        }
        bytes
    }

    #[test]
    fn what_is_packed_comes_out_the_same() {
        let there = Directory::new("same");
        there.write("from/a", "one");
        there.write("from/b/c", "three");
        symlink("a", there.0.join("from/link")).unwrap();
        let copied = Copied {
            bytes: 8,
            left_out: 0,
        };
        let bytes = packed(&there.0.join("from"));
        // In place of nothing, under another name; into a directory; onto itself.
        assert_eq!(
            receive(&bytes, &there.0.join("new"), Some("from")),
            Ok(copied)
        );
        fs::create_dir(there.0.join("into")).unwrap();
        for _ in 0..2 {
            assert_eq!(
                receive(&bytes, &there.0.join("into"), Some("from")),
                Ok(copied)
            );
        }
        let contents = packed(&there.0.join("from/."));
        assert_eq!(
            receive(&contents, &there.0.join("contents"), None),
            Ok(copied)
        );
        for at in ["new", "into/from", "contents"] {
            assert_eq!(there.read(&format!("{at}/b/c")), "three");
            let link = fs::read_link(there.0.join(at).join("link")).unwrap();
            assert_eq!(link, Path::new("a"));
        }
        assert_eq!(there.names(), ["contents", "from", "into", "new"]);
    }

    #[test]
    fn a_file_takes_the_place_of_a_file_as_a_whole_or_not_at_all() {
        let there = Directory::new("file");
        there.write("a", "new");
        there.write("b", "old");
        let bytes = packed(&there.0.join("a"));
        let cut = receive(&bytes[..514], &there.0.join("b"), Some("a"));
        assert_eq!(cut, Err("cut short".into()));
        assert_eq!((there.read("b"), there.names().len()), ("old".into(), 2));
        receive(&bytes, &there.0.join("b"), Some("a")).unwrap();
        assert_eq!((there.read("b"), there.names().len()), ("new".into(), 2));
        there.write("d/e", "");
        let directory = packed(&there.0.join("d"));
        let refused = receive(&directory, &there.0.join("b"), Some("d")).unwrap_err();
        assert!(refused.contains("does not take the place"), "{refused}");
        let refused = receive(&bytes, &there.0.join("none/"), Some("a")).unwrap_err();
        assert!(refused.contains("no such directory"), "{refused}");
        assert_eq!((there.read("b"), there.names().len()), ("new".into(), 3));
    }

    #[test]
    fn nothing_is_made_that_was_not_asked_for() {
        let there = Directory::new("hostile");
        there.write("kept", "kept");
        fs::create_dir(there.0.join("to")).unwrap();
        let to = there.0.join("to");
        for name in ["other", "../kept", "a/../../kept", "/etc/kept", "a/../b"] {
            let bytes = entry(name.as_bytes(), EntryType::Regular, "");
            let refused = receive(&bytes, &to, Some("a")).unwrap_err();
            assert!(refused.contains("not asked for"), "{name}: {refused}");
        }
        for name in ["../kept", "/etc/kept"] {
            receive(&entry(name.as_bytes(), EntryType::Regular, ""), &to, None).unwrap_err();
        }
        // Out by a link that came before.
        let link = entry(b"a", EntryType::Symlink, "..");
        let through = [link, entry(b"a/kept", EntryType::Regular, "")].concat();
        receive(&through, &to, Some("a")).unwrap_err();
        let hard = entry(b"a", EntryType::Link, "../kept");
        receive(&hard, &to, Some("a")).unwrap_err();
        assert_eq!(there.read("kept"), "kept");
        // A link in the place is replaced, not followed; special bits do not come.
        let _ = fs::remove_file(to.join("a"));
        symlink("../kept", to.join("a")).unwrap();
        receive(&entry(b"a", EntryType::Regular, ""), &to, Some("a")).unwrap();
        assert_eq!(there.read("kept"), "kept");
        let mode = fs::symlink_metadata(to.join("a"))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o7000, 0);
        let device = entry(b"a", EntryType::Char, "");
        let left_out = receive(&device, &to, Some("a")).unwrap().left_out;
        assert_eq!(left_out, 1);
        assert!(receive(&[0; 1024], &to, Some("a")).is_err());
    }
}
