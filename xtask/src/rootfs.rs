//! Root file systems of Debian's packages, for instances: the packages' own files, unmodified, with
//! everything they depend on.
//!
//! `apt-get` resolves the dependencies as if nothing were installed, and downloads; the packages
//! are unpacked, not installed, so no maintainer script runs. What those scripts would have done
//! and programs cannot do without is done here: the merged `/usr`, the accounts, the names that
//! Debian's alternatives give.

mod image;

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::hash::{Hash, Hasher};
use std::io::{BufWriter, Read, Write};
use std::path::{Component, Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail, ensure};
pub use image::{mke2fs, write as write_image};
use tar::{Archive, Builder, EntryType, Header};

use crate::cleanup::Directory;

/// Make a root file system of Debian packages: an archive, or the image of a disk
#[derive(clap::Args)]
pub struct Arguments {
    /// Packages; what they depend on comes with them
    #[arg(required = true, value_name = "PKG")]
    packages: Vec<String>,
    /// File to write: a tar archive, or with --ext4 the image of a disk
    #[arg(short = 'o', long, value_name = "FILE")]
    output: PathBuf,
    /// Make the image of a disk with an ext4 file system, for `root=` and `skerry run --root`
    #[arg(long)]
    ext4: bool,
    /// Size of the image: a number and k, m or g [default: what its files need and half of that,
    /// and 64 MiB]
    #[arg(long, requires = "ext4", value_name = "SIZE", value_parser = image::parse_size)]
    size: Option<u64>,
    /// With documentation, manual pages and translations, too
    #[arg(long)]
    all: bool,
}

/// Paths that a small system leaves out.
const DOCUMENTATION: [&str; 6] = [
    "usr/share/doc",
    "usr/share/man",
    "usr/share/info",
    "usr/share/locale",
    "usr/share/lintian",
    "usr/share/bug",
];
/// Directories that are one with their namesakes in `/usr` (Debian's merged `/usr`).
const MERGED: [&str; 4] = ["bin", "sbin", "lib", "lib64"];
/// Directories that every system has, and their modes.
const DIRECTORIES: [(&str, u32); 16] = [
    ("dev", 0o755),
    ("etc", 0o755),
    ("home", 0o755),
    ("proc", 0o555),
    ("root", 0o700),
    ("run", 0o755),
    ("sys", 0o555),
    ("tmp", 0o1777),
    ("usr", 0o755),
    ("usr/bin", 0o755),
    ("usr/lib", 0o755),
    ("usr/lib64", 0o755),
    ("usr/sbin", 0o755),
    ("var", 0o755),
    ("var/log", 0o755),
    ("var/tmp", 0o1777),
];
/// Names that `update-alternatives` would make, and what they lead to: the first that is there.
const ALTERNATIVES: [(&str, &[&str]); 5] = [
    ("usr/bin/sh", &["dash", "bash"]),
    ("usr/bin/awk", &["gawk", "mawk", "original-awk"]),
    ("usr/bin/cc", &["gcc"]),
    ("usr/bin/nc", &["nc.openbsd", "nc.traditional"]),
    ("usr/bin/vi", &["vim.basic", "vim.tiny"]),
];
const FILES: [(&str, &str); 4] = [
    (
        "etc/passwd",
        "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    ),
    ("etc/group", "root:x:0:\nnogroup:x:65534:\n"),
    ("etc/hosts", "127.0.0.1 localhost\n::1 localhost\n"),
    (
        "etc/nsswitch.conf",
        "passwd: files\ngroup: files\nhosts: files dns\n",
    ),
];

/// Carries out `cargo xtask rootfs`.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let packages = resolve(&arguments.packages)?;
    eprintln!("{} packages", packages.len());
    let (files, contents) = (fetch(&packages)?, Contents::of(arguments.all));
    if arguments.ext4 {
        let directory = Directory::create().context("cannot make a temporary directory")?;
        let archive = directory.join("files.tar");
        write(&files, &archive, contents)?;
        write_image(&archive, &arguments.output, arguments.size, |_| Ok(()))?;
    } else {
        write(&files, &arguments.output, contents)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The archive of the packages in these lists, without documentation; made again only if a version
/// has changed.
pub fn cached(lists: &[&[&str]]) -> Result<PathBuf> {
    let packages = lists.concat();
    let resolved = resolve(&packages)?;
    let mut hash = DefaultHasher::new();
    resolved.keys().for_each(|file| file.hash(&mut hash));
    include_str!("rootfs.rs").hash(&mut hash);
    // The last list is what sets it apart; a file's name has 255 characters at most.
    let name = lists.last().map_or(String::new(), |list| list.join("-"));
    let name: String = name
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || "-.".contains(*c))
        .take(200)
        .collect();
    let output = cache()?.join(format!("{name}-{:016x}.tar", hash.finish()));
    // Scenarios that run side by side want the same packages: two that filled a new cache at once
    // moved each other's files away.
    static FILLING: Mutex<()> = Mutex::new(());
    let _filling = FILLING.lock().unwrap_or_else(PoisonError::into_inner);
    if !output.exists() {
        write(&fetch(&resolved)?, &output, Contents::Needed)?;
    }
    Ok(output)
}

/// Where downloaded packages are kept.
fn cache() -> Result<PathBuf> {
    let path = crate::paths::target().join("packages");
    fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
    Ok(path)
}

/// The packages and all they depend on: name with version by the package file's name.
fn resolve<S: AsRef<OsStr>>(packages: &[S]) -> Result<BTreeMap<String, String>> {
    let output = Command::new("apt-get")
        .args([
            "install",
            "--print-uris",
            "-qq",
            "--no-install-recommends",
            "-o",
            "Dir::State::status=/dev/null",
        ])
        .arg("--")
        .args(packages)
        .output()
        .context("cannot run apt-get, which resolves the packages")?;
    let (said, complaint) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    if !output.status.success() {
        let first = complaint
            .lines()
            .find(|line| line.starts_with("E:"))
            .unwrap_or("it failed")
            .trim_start_matches("E: ");
        bail!("apt-get: {first} (is the list of packages there? `apt-get update` gets it)");
    }
    said.lines().map(package).collect()
}

/// A line is `'URI' name_version_architecture.deb size hash`; in the name colons are encoded.
fn package(line: &str) -> Result<(String, String)> {
    let file = line
        .split_whitespace()
        .nth(1)
        .with_context(|| format!("apt-get said {line:?}"))?;
    let mut parts = file.splitn(3, '_');
    let (Some(name), Some(version)) = (parts.next(), parts.next()) else {
        bail!("apt-get names a package file {file:?}")
    };
    Ok((
        file.to_owned(),
        format!("{name}={}", version.replace("%3a", ":")),
    ))
}

/// Downloads what is not there yet; returns the package files.
fn fetch(packages: &BTreeMap<String, String>) -> Result<Vec<PathBuf>> {
    let cache = cache()?;
    let missing: Vec<_> = packages
        .iter()
        .filter(|(file, _)| !cache.join(file).exists())
        .map(|(_, name)| name)
        .collect();
    if !missing.is_empty() {
        eprintln!("downloading {} packages", missing.len());
        // What is only half there must not be found the next time.
        let part = cache.join(format!("part.{}", std::process::id()));
        fs::create_dir_all(&part)?;
        let output = Command::new("apt-get")
            .args(["download", "-qq"])
            .args(&missing)
            .current_dir(&part)
            .output()?;
        for file in fs::read_dir(&part)? {
            let file = file?;
            fs::rename(file.path(), cache.join(file.file_name()))?;
        }
        fs::remove_dir(&part)?;
        ensure!(
            output.status.success(),
            "apt-get download: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    let files: Vec<_> = packages.keys().map(|file| cache.join(file)).collect();
    for file in &files {
        ensure!(file.exists(), "apt-get downloaded no {}", file.display());
    }
    Ok(files)
}

/// Writes the archive, as a whole or not at all.
fn write(packages: &[PathBuf], output: &Path, contents: Contents) -> Result<()> {
    let part = output.with_extension(format!("part.{}", std::process::id()));
    let failed = || format!("cannot write {}", part.display());
    let mut tree = Tree::new(
        BufWriter::new(File::create(&part).with_context(failed)?),
        contents,
    );
    let written = tree.fill(packages).and_then(|()| {
        tree.builder.into_inner()?.into_inner()?.sync_all()?;
        fs::rename(&part, output).with_context(|| format!("cannot make {}", output.display()))
    });
    if written.is_err() {
        // Nothing to do if it is not there.
        let _ = fs::remove_file(&part);
    }
    written
}

/// Files of a package that go into an archive.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Contents {
    All,
    /// Documentation, manual pages and translations are left out.
    Needed,
}

impl Contents {
    /// The choice of `--all`, given or not.
    fn of(all: bool) -> Self {
        if all { Self::All } else { Self::Needed }
    }
}

/// The archive, and what is in it.
struct Tree<W: Write> {
    builder: Builder<W>,
    names: BTreeSet<PathBuf>,
    contents: Contents,
}

impl<W: Write> Tree<W> {
    fn new(output: W, contents: Contents) -> Self {
        Self {
            builder: Builder::new(output),
            names: BTreeSet::new(),
            contents,
        }
    }

    fn fill(&mut self, packages: &[PathBuf]) -> Result<()> {
        for (name, mode) in DIRECTORIES {
            self.add(Path::new(name), EntryType::Directory, mode, &[])?;
        }
        for name in MERGED {
            self.link(name, &format!("usr/{name}"))?;
        }
        for file in packages {
            self.unpack(file)
                .with_context(|| format!("cannot unpack {}", file.display()))?;
        }
        for (name, text) in FILES {
            self.add(Path::new(name), EntryType::Regular, 0o644, text.as_bytes())?;
        }
        for (name, targets) in ALTERNATIVES {
            let directory = Path::new(name).parent().unwrap_or(Path::new(""));
            if let Some(target) = targets
                .iter()
                .find(|target| self.names.contains(&directory.join(target)))
            {
                self.link(name, target)?;
            }
        }
        Ok(())
    }

    /// Adds a package's files.
    fn unpack(&mut self, file: &Path) -> Result<()> {
        let mut child = Command::new("dpkg-deb")
            .arg("--fsys-tarfile")
            .arg(file)
            .stdout(Stdio::piped())
            .spawn()?;
        let mut archive = Archive::new(child.stdout.take().context("no pipe")?);
        for entry in archive.entries()? {
            let mut entry = entry?;
            let name = place(&entry.path()?)?;
            if name.as_os_str().is_empty()
                || self.left_out(&name)
                || !self.names.insert(name.clone())
            {
                continue;
            }
            let mut header = entry.header().clone();
            match header.entry_type() {
                EntryType::Link => {
                    let target = place(&entry.link_name()?.context("a link to nothing")?)?;
                    self.builder.append_link(&mut header, &name, target)?;
                }
                EntryType::Symlink => {
                    let target = entry
                        .link_name()?
                        .context("a link to nothing")?
                        .into_owned();
                    self.builder.append_link(&mut header, &name, target)?;
                }
                _ => self.builder.append_data(&mut header, &name, &mut entry)?,
            }
        }
        // The end of the archive comes before the end of the stream.
        std::io::copy(&mut archive.into_inner().by_ref(), &mut std::io::sink())?;
        ensure!(child.wait()?.success(), "dpkg-deb failed");
        Ok(())
    }

    fn left_out(&self, name: &Path) -> bool {
        self.contents == Contents::Needed
            && DOCUMENTATION
                .iter()
                .any(|directory| name.starts_with(directory))
    }

    /// Adds a symbolic link, unless there is something of that name.
    fn link(&mut self, name: &str, target: &str) -> Result<()> {
        if self.names.insert(name.into()) {
            let mut header = plain(EntryType::Symlink, 0o777, 0);
            self.builder.append_link(&mut header, name, target)?;
        }
        Ok(())
    }

    /// Adds a file or directory of root's, unless there is something of that name.
    fn add(&mut self, name: &Path, kind: EntryType, mode: u32, contents: &[u8]) -> Result<()> {
        if self.names.insert(name.to_owned()) {
            self.builder.append_data(
                &mut plain(kind, mode, contents.len() as u64),
                name,
                contents,
            )?;
        }
        Ok(())
    }
}

fn plain(kind: EntryType, mode: u32, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}

/// Where a package's file goes: relative, and below `/usr` what is merged with it.
fn place(name: &Path) -> Result<PathBuf> {
    let mut parts = Vec::new();
    for part in name.components() {
        match part {
            Component::CurDir | Component::RootDir => {}
            Component::Normal(part) => parts.push(part),
            _ => bail!("a package has a file {}", name.display()),
        }
    }
    let merged = parts
        .first()
        .is_some_and(|first| MERGED.iter().any(|name| *first == *name));
    Ok(merged
        .then_some(OsStr::new("usr"))
        .into_iter()
        .chain(parts)
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_go_below_usr() {
        let placed = |name: &str| place(Path::new(name)).unwrap().display().to_string();
        assert_eq!(placed("./bin/bash"), "usr/bin/bash");
        assert_eq!(
            placed("./lib/x86_64-linux-gnu/libc.so.6"),
            "usr/lib/x86_64-linux-gnu/libc.so.6"
        );
        assert_eq!(placed("./usr/bin/env"), "usr/bin/env");
        assert_eq!(placed("./etc/bin/x"), "etc/bin/x");
        assert_eq!(placed("./"), "");
        assert!(place(Path::new("../etc")).is_err());
    }

    #[test]
    fn apts_lines() {
        let line =
            "'somewhere/libattr1_2.5.1-4_amd64.deb' libattr1_1%3a2.5.1-4_amd64.deb 22144 SHA256:00";
        assert_eq!(
            package(line).unwrap(),
            (
                "libattr1_1%3a2.5.1-4_amd64.deb".into(),
                "libattr1=1:2.5.1-4".into()
            )
        );
        assert!(package("E: something").is_err());
    }
}
