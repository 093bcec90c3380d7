//! `mount(2)`, `umount2(2)`, and the tree a system starts with.

use crate::path::{lookup_at, read_path};
use crate::{SysResult, Task, proc, sysfs};
use abi::errno::Errno;
use alloc::string::String;
use alloc::sync::Arc;
use fs::cpio::{self, Unpacker};
use fs::mount::{self, FileSystem, MS_NODEV, MS_NOEXEC, MS_NOSUID};
use fs::path::{LookupFlags, Walk};
use fs::ramfs::RamFs;
use fs::{Cred, NewKind, Path, devfs, ops, tty};
use guard::mem::{self, Initramfs};
use linux_raw_sys::general as sys;
use task::Once;

/// What `mount(2)` is told besides what the mount remembers.
const PROPAGATION: u32 = sys::MS_PRIVATE | sys::MS_SHARED | sys::MS_SLAVE | sys::MS_UNBINDABLE;

/// A file system of a type, with the options of `mount(2)`'s last argument.
fn file_system(kind: &[u8], options: &str) -> Result<Arc<dyn FileSystem>, Errno> {
    static PROC: Once<Arc<fs::pseudo::PseudoFs>> = Once::new();
    static SYS: Once<Arc<fs::pseudo::PseudoFs>> = Once::new();
    Ok(match kind {
        b"proc" => PROC.call_once(proc::new).clone(),
        b"sysfs" => SYS.call_once(sysfs::new).clone(),
        b"devtmpfs" => devfs::filesystem(),
        b"tmpfs" | b"ramfs" => ram_file_system(kind == b"tmpfs", options)?,
        _ => return Err(Errno::ENODEV),
    })
}

/// A `tmpfs`, by default of half the memory, or a `ramfs` without limit.
fn ram_file_system(limited: bool, options: &str) -> Result<Arc<RamFs>, Errno> {
    let mut pages = limited.then(|| mem::stats().total / 2);
    let mut mode = if limited { 0o1777 } else { 0o755 };
    for option in options.split(',') {
        match option.split_once('=') {
            Some(("size", size)) => pages = Some(parse_size(size).ok_or(Errno::EINVAL)?.div_ceil(4096)),
            Some(("mode", bits)) => mode = u32::from_str_radix(bits, 8).map_err(|_| Errno::EINVAL)? & 0o7777,
            _ => {}
        }
    }
    // Size 0 is no limit.
    Ok(RamFs::new(if limited { "tmpfs" } else { "ramfs" }, pages.filter(|&p| p != 0), mode))
}

/// A number of bytes with `k`, `m`, `g`, or a percentage of the memory.
fn parse_size(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let number: u64 = digits.parse().ok()?;
    match &text[digits.len()..] {
        "" => Some(number),
        "k" | "K" => number.checked_mul(1 << 10),
        "m" | "M" => number.checked_mul(1 << 20),
        "g" | "G" => number.checked_mul(1 << 30),
        "%" => (mem::stats().total * 4096 / 100).checked_mul(number),
        _ => None,
    }
}

fn optional_text(addr: usize) -> Result<String, Errno> {
    let bytes = if addr == 0 { alloc::vec::Vec::new() } else { read_path(addr)? };
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// `mount(2)`: new file systems, binds, and changes of the flags; propagation is accepted, there is one namespace.
pub fn sys_mount(task: &Task, source: usize, target: usize, kind: usize, flags: usize, data: usize) -> SysResult {
    if !task.fs_cred().privileged {
        return Err(Errno::EPERM);
    }
    let flags = flags as u32;
    let point = lookup_at(task, sys::AT_FDCWD, target, 0)?;
    if flags & sys::MS_REMOUNT != 0 {
        point.mount().set_flags(flags);
    } else if flags & sys::MS_BIND != 0 {
        mount::bind(&lookup_at(task, sys::AT_FDCWD, source, 0)?, &point)?;
    } else if flags & PROPAGATION != 0 {
        return Ok(0);
    } else if flags & sys::MS_MOVE != 0 {
        return Err(Errno::EINVAL);
    } else {
        let fs = file_system(&read_path(kind)?, &optional_text(data)?)?;
        mount::mount(fs, &point, &optional_text(source)?, flags)?;
    }
    Ok(0)
}

/// `umount2(2)`
pub fn sys_umount2(task: &Task, target: usize, flags: u32) -> SysResult {
    if flags & !(sys::MNT_FORCE | sys::MNT_DETACH | sys::MNT_EXPIRE | sys::UMOUNT_NOFOLLOW) != 0 {
        return Err(Errno::EINVAL);
    }
    if !task.fs_cred().privileged {
        return Err(Errno::EPERM);
    }
    let nofollow = if flags & sys::UMOUNT_NOFOLLOW != 0 { sys::AT_SYMLINK_NOFOLLOW } else { 0 };
    let top = lookup_at(task, sys::AT_FDCWD, target, nofollow)?;
    mount::unmount(&top, flags & sys::MNT_DETACH != 0).map(|()| 0)
}

/// What a system's tree could not be built for.
#[derive(Debug)]
pub enum StartError {
    /// The initramfs is damaged.
    Archive(cpio::Error),
    /// A directory could not be made or mounted on.
    Tree(&'static str, Errno),
}

impl core::fmt::Display for StartError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Archive(error) => error.fmt(f),
            Self::Tree(name, errno) => write!(f, "{name}: {errno}"),
        }
    }
}

/// Builds the tree a system starts with: the initramfs, unpacked, with `/dev`, `/proc`, `/sys`, `/dev/shm` mounted. The archive's
/// memory is given back as it is unpacked. Called once, before the first process.
///
/// # Errors
/// Says what is wrong with the archive or the tree.
pub fn start(archive: Option<Initramfs>) -> Result<Path, StartError> {
    let rootfs = RamFs::new("rootfs", None, 0o755);
    if let Some(mut archive) = archive {
        let mut unpacker = Unpacker::new(rootfs.root());
        while let Some(used) = unpacker.step(archive.bytes()).map_err(StartError::Archive)? {
            archive.consume(used);
        }
        let summary = unpacker.summary();
        log::debug!("initramfs: {} files, {} KiB", summary.entries, summary.bytes / 1024);
    }
    devfs::register_standard().and_then(|()| tty::register_standard()).map_err(|e| StartError::Tree("/dev", e))?;
    let root = mount::mount_root(rootfs, "rootfs");
    let cred = Cred::root();
    let walk = Walk { root: root.clone(), base: root.clone(), cred: &cred };
    for (name, mode) in [("/dev", 0o755), ("/proc", 0o555), ("/sys", 0o555), ("/tmp", 0o1777), ("/run", 0o755)] {
        match ops::make(&walk, name.as_bytes(), NewKind::Directory, mode) {
            Ok(_) | Err(Errno::EEXIST) => {}
            Err(e) => return Err(StartError::Tree(name, e)),
        }
    }
    let secure = MS_NOSUID | MS_NODEV | MS_NOEXEC;
    for (name, kind, flags) in [
        ("/dev", "devtmpfs", MS_NOSUID),
        ("/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV),
        ("/proc", "proc", secure),
        ("/sys", "sysfs", secure),
    ] {
        let mounted = file_system(kind.as_bytes(), "").and_then(|fs| {
            let point = walk.lookup(name.as_bytes(), LookupFlags::DIRECTORY)?;
            mount::mount(fs, &point, kind, flags)
        });
        mounted.map_err(|e| StartError::Tree(name, e))?;
    }
    Ok(root)
}
