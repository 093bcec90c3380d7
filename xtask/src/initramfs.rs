//! The initial RAM file system of a test machine: an archive of the crate `cpio`.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use cpio::{
    BLOCK_SIZE, Header, S_IFCHR, S_IFDIR, S_IFLNK, S_IFMT, S_IFREG, namesize, padded, trailer,
};
use tar::EntryType;

/// Script of busybox' DHCP client, where Debian's looks for it.
const UDHCPC_SCRIPT: &[u8] = include_bytes!("udhcpc.script");

/// An archive that grows. Parent directories are added as they are needed.
pub struct Archive {
    bytes: Vec<u8>,
    inode: u32,
    directories: BTreeSet<String>,
}

impl Archive {
    /// An empty archive.
    pub fn new() -> Self {
        Self {
            bytes: Vec::new(),
            inode: 1,
            directories: BTreeSet::new(),
        }
    }

    /// A directory with this mode. Paths are absolute in the machine.
    pub fn directory(&mut self, path: &str, mode: u32) {
        let name = self.name(path);
        if name.is_empty() || !self.directories.insert(name.clone()) {
            return;
        }
        self.entry(
            &name,
            &Header {
                mode: S_IFDIR | mode,
                ..Header::default()
            },
            &[],
        );
    }

    /// A regular file.
    pub fn file(&mut self, path: &str, mode: u32, contents: &[u8]) {
        let name = self.name(path);
        self.entry(
            &name,
            &Header {
                mode: S_IFREG | mode,
                ..Header::default()
            },
            contents,
        );
    }

    /// A symbolic link at `path` that points to `to`.
    pub fn symlink(&mut self, path: &str, to: &[u8]) {
        let name = self.name(path);
        self.entry(
            &name,
            &Header {
                mode: S_IFLNK | 0o777,
                ..Header::default()
            },
            to,
        );
    }

    /// A character device.
    pub fn device(&mut self, path: &str, mode: u32, major: u32, minor: u32) {
        let name = self.name(path);
        self.entry(
            &name,
            &Header {
                mode: S_IFCHR | mode,
                rdev: (major, minor),
                ..Header::default()
            },
            &[],
        );
    }

    /// A file or folder of the host, with everything in it.
    pub fn host(&mut self, host: &Path, path: &str) -> Result<()> {
        let failed = || format!("cannot add {}", host.display());
        let metadata = fs::symlink_metadata(host).with_context(failed)?;
        let mode = metadata.permissions().mode() & 0o7777;
        if metadata.is_dir() {
            self.directory(path, mode);
            let mut names = fs::read_dir(host)
                .with_context(failed)?
                .map(|entry| entry.map(|entry| entry.file_name()))
                .collect::<Result<Vec<_>, _>>()
                .with_context(failed)?;
            names.sort();
            for name in names {
                let utf8 = name.to_str().with_context(|| {
                    format!("{}: the name is not UTF-8", host.join(&name).display())
                })?;
                self.host(
                    &host.join(&name),
                    &format!("{}/{utf8}", path.trim_end_matches('/')),
                )?;
            }
        } else if metadata.is_symlink() {
            self.symlink(
                path,
                fs::read_link(host)
                    .with_context(failed)?
                    .as_os_str()
                    .as_bytes(),
            );
        } else if metadata.is_file() {
            let contents = fs::read(host).with_context(failed)?;
            ensure!(
                u32::try_from(contents.len()).is_ok(),
                "{} is larger than the archive format can say",
                host.display()
            );
            let name = self.name(path);
            let modified = u32::try_from(metadata.mtime()).unwrap_or(0);
            self.entry(
                &name,
                &Header {
                    mode: S_IFREG | mode,
                    mtime: modified,
                    ..Header::default()
                },
                &contents,
            );
        } else {
            bail!(
                "{} is neither a file, a folder nor a symbolic link",
                host.display()
            );
        }
        Ok(())
    }

    /// Adds the files of a tar archive, at the root.
    pub fn tar(&mut self, archive: &Path) -> Result<()> {
        let failed = || format!("cannot read {}", archive.display());
        let mut files: BTreeMap<PathBuf, Vec<u8>> = BTreeMap::new();
        for entry in tar::Archive::new(File::open(archive).with_context(failed)?)
            .entries()
            .with_context(failed)?
        {
            let mut entry = entry.with_context(failed)?;
            let path = entry.path()?.into_owned();
            let name = path
                .to_str()
                .with_context(|| format!("{}: the name is not UTF-8", path.display()))?;
            let mode = entry.header().mode()? & 0o7777;
            let target = entry.link_name()?.map(Cow::into_owned);
            match (entry.header().entry_type(), target) {
                (EntryType::Directory, _) => self.directory(name, mode),
                (EntryType::Symlink, Some(target)) => {
                    self.symlink(name, target.as_os_str().as_bytes());
                }
                (EntryType::Link, Some(target)) => {
                    let contents = files
                        .get(&target)
                        .with_context(|| format!("{name} is a link to nothing"))?;
                    self.file(name, mode, contents);
                }
                (EntryType::Regular, _) => {
                    let mut contents = Vec::new();
                    entry.read_to_end(&mut contents).with_context(failed)?;
                    self.file(name, mode, &contents);
                    files.insert(path, contents);
                }
                (kind, _) => bail!(
                    "{}: {name} is of a kind that is not known here: {kind:?}",
                    archive.display()
                ),
            }
        }
        Ok(())
    }

    /// The finished archive.
    pub fn finish(mut self) -> Vec<u8> {
        self.bytes.extend_from_slice(&trailer());
        let padded = self.bytes.len().next_multiple_of(BLOCK_SIZE as usize);
        self.bytes.resize(padded, 0);
        self.bytes
    }

    /// Adds the directories above `path` and returns its name in the archive: relative, without a
    /// leading slash.
    fn name(&mut self, path: &str) -> String {
        let name = path.trim_matches('/').to_owned();
        if let Some((parent, _)) = name.rsplit_once('/') {
            self.directory(parent, 0o755);
        }
        name
    }

    /// Adds an entry with the type, permissions, time and device of `header`.
    fn entry(&mut self, name: &str, header: &Header, contents: &[u8]) {
        let header = Header {
            ino: self.inode,
            nlink: 1 + u32::from(header.mode & S_IFMT == S_IFDIR),
            filesize: contents.len() as u32,
            namesize: namesize(self.bytes.len() as u64, name.len(), contents.len() as u64),
            ..*header
        };
        self.inode += 1;
        self.bytes.extend_from_slice(&header.write(name.as_bytes()));
        self.bytes.extend_from_slice(contents);
        let end = padded(self.bytes.len() as u64) as usize;
        self.bytes.resize(end, 0);
    }
}

/// Adds what every machine has: directories, the devices the kernel opens before any is mounted,
/// accounts, and Debian's static busybox under the name of each of its applets.
pub fn add_base(archive: &mut Archive) -> Result<()> {
    for directory in [
        "/bin",
        "/sbin",
        "/usr/bin",
        "/usr/sbin",
        "/etc",
        "/proc",
        "/sys",
        "/dev",
        "/root",
        "/run",
        "/home",
    ] {
        archive.directory(directory, 0o755);
    }
    archive.directory("/tmp", 0o1777);
    archive.directory("/var/log", 0o755);
    archive.device("/dev/console", 0o600, 5, 1);
    archive.device("/dev/null", 0o666, 1, 3);
    archive.file(
        "/etc/passwd",
        0o644,
        b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
    );
    archive.file("/etc/group", 0o644, b"root:x:0:\nnogroup:x:65534:\n");
    archive.file("/etc/hostname", 0o644, b"skerry\n");
    archive.file("/etc/hosts", 0o644, b"127.0.0.1 localhost\n::1 localhost\n");
    archive.directory("/etc/udhcpc", 0o755);
    archive.file("/etc/udhcpc/default.script", 0o755, UDHCPC_SCRIPT);

    let busybox = busybox()?;
    archive.host(&busybox, "/bin/busybox")?;
    let listed = Command::new(&busybox)
        .arg("--list-full")
        .output()
        .with_context(|| format!("cannot run {}", busybox.display()))?;
    let applets = String::from_utf8(listed.stdout)?;
    ensure!(
        applets.lines().any(|applet| applet == "bin/sh"),
        "{} lists no applet `bin/sh`",
        busybox.display()
    );
    for applet in applets.lines().filter(|&applet| applet != "bin/busybox") {
        archive.symlink(applet, b"/bin/busybox");
    }
    Ok(())
}

/// Debian's busybox, which must be the static one.
pub fn busybox() -> Result<std::path::PathBuf> {
    let path = Path::new("/bin/busybox");
    let image = fs::read(path).with_context(|| {
        format!(
            "no {} (package busybox-static; `make setup` installs it)",
            path.display()
        )
    })?;
    let elf = object::read::elf::ElfFile64::<object::Endianness>::parse(image.as_slice())?;
    let dynamic = elf
        .elf_program_headers()
        .iter()
        .any(|segment| segment.p_type.get(object::Endianness::Little) == object::elf::PT_INTERP);
    ensure!(
        !dynamic,
        "{} is not static (package busybox-static; `make setup` installs it)",
        path.display()
    );
    Ok(path.to_owned())
}
