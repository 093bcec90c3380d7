//! The root file system: a RAM file system filled from the archive given at boot, or that of a
//! disk, with the kernel's own mounted in it.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use core::fmt;

use abi::errno::Errno;
use abi::layout::PAGE_SIZE;
use fs::cpio::{self, ArchiveReader as _};
use fs::mount::{self, FileSystem, Namespace, SuperBlock};
use fs::path::LookupFlags;
use fs::ramfs::{Options, RamFs};
use fs::{Cred, FsStruct, Inode, NewInode, NewInodeKind, Path, Result, devfs};
use guard::role;
use linux::mount::root::RootDisk;

/// Directory of devices.
const DEVICES: &str = "/dev";

/// Why there is no root file system.
pub(crate) enum RootFsError {
    /// Something could not be done with a directory.
    Directory {
        directory: &'static str,
        error: Errno,
    },
    /// Memory ran out while the archive was unpacked.
    NoMemory {
        /// The entry for which there was none.
        entry: String,
        /// Bytes of the archive that were unpacked, and all.
        unpacked: usize,
        all: usize,
    },
}

impl RootFsError {
    /// Whether it is that of this directory.
    fn is_of(&self, name: &str) -> bool {
        matches!(self, Self::Directory { directory, .. } if *directory == name)
    }
}

impl fmt::Display for RootFsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const KIB: usize = 1 << 10;
        match self {
            Self::Directory {
                directory,
                error: Errno::ENOTDIR,
            } => write!(f, "its {directory} is no directory"),
            Self::Directory { directory, error } => write!(f, "{directory}: {error}"),
            Self::NoMemory {
                entry,
                unpacked,
                all,
            } => write!(
                f,
                "memory ran out at '{entry}', after {} of {} KiB; all of it needs more than {} MiB of memory",
                unpacked / KIB,
                all / KIB,
                (guard::mem::stats().total * PAGE_SIZE as u64) >> 20,
            ),
        }
    }
}

/// Makes an error one of this directory.
fn of(directory: &'static str) -> impl FnOnce(Errno) -> RootFsError {
    move |error| RootFsError::Directory { directory, error }
}

/// Makes the root file system. An archive that is broken gives what came before the broken entry,
/// and a message.
///
/// # Errors
/// If memory does not hold the archive's files, or it has something else where the kernel's own
/// file systems belong.
pub(crate) fn make_root_fs() -> core::result::Result<FsStruct, RootFsError> {
    let frames = guard::mem::stats().total;
    // The limit of pages cannot be reached; `df` shows what is used of it. A file takes about 1 KiB
    // of the kernel: all of them are at most a quarter of memory.
    let mut options = Options::of_tmpfs(frames);
    (options.pages, options.inodes, options.mode) = (frames, frames, 0o755);
    let ram = RamFs::with("tmpfs", options);
    let space = Namespace::new(ram.clone(), "tmpfs");
    fs::charge::scale_limits(frames as usize * PAGE_SIZE);
    guard::mem::shrinkers().register(fs::start_name_cache(frames * PAGE_SIZE as u64));

    guard::mem::shrinkers().register(fs::block::writeback::init(frames * PAGE_SIZE as u64));

    unpack_initramfs(&ram.root())?;

    for (name, mode) in [
        ("/proc", 0o555),
        ("/sys", 0o555),
        ("/dev", 0o755),
        ("/tmp", 0o1777),
        ("/run", 0o755),
    ] {
        make_directory(&ram.root(), name, mode).map_err(of(name))?;
    }
    devfs::register_standard()
        .and_then(|()| fs::tty::register_standard())
        .and_then(|()| fs::block::register_standard())
        .map_err(of("/dev"))?;
    let context = FsStruct::new(space);
    for mounted in mount_kernel_file_systems(&context) {
        mounted?;
    }
    Ok(context)
}

/// Makes the disk that the command line names the root, in place of the archive's files, whose
/// memory is free then. `None`: it names none. A directory for a file system of the kernel's that
/// the disk does not have costs a line in the log, but for that of devices, which has to be there.
///
/// # Errors
/// Why the disk cannot be the root, and what would help.
pub(crate) fn root_on_disk() -> core::result::Result<Option<FsStruct>, String> {
    let Some(disk) = RootDisk::parse(role::cmdline())? else {
        return Ok(None);
    };
    let context = FsStruct::new(disk.mount()?);
    for mounted in mount_kernel_file_systems(&context) {
        match mounted {
            Ok(()) => {}
            Err(error) if error.is_of(DEVICES) => return Err(format!("{error}")),
            Err(error) => log::warn!("on the root file system: {error}: not mounted"),
        }
    }
    Ok(Some(context))
}

/// Mounts the kernel's own file systems at their directories; tells of each how that went.
fn mount_kernel_file_systems(
    context: &FsStruct,
) -> impl Iterator<Item = core::result::Result<(), RootFsError>> {
    let mounts: [(Arc<dyn FileSystem>, _, _); 5] = [
        (linux::procfs::ProcFs::new(), "/proc", "proc"),
        (linux::kernfs::sysfs::new(), "/sys", "sysfs"),
        (linux::kernfs::cgroup::new(), "/sys/fs/cgroup", "cgroup2"),
        (devfs::filesystem(), DEVICES, "devtmpfs"),
        (fs::tty::pty::filesystem(), "/dev/pts", "devpts"),
    ];
    mounts
        .into_iter()
        .map(|(fs, at, source)| mount(context, fs, at.as_bytes(), source).map_err(of(at)))
}

fn make_directory(root: &Arc<dyn Inode>, name: &str, mode: u32) -> Result<()> {
    let new = NewInode {
        kind: NewInodeKind::Directory,
        mode,
        umask: 0,
        uid: 0,
        gid: 0,
    };
    match root.create(name.trim_start_matches('/').as_bytes(), &new) {
        Ok(_) | Err(Errno::EEXIST) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Mounts a file system at a directory.
fn mount(context: &FsStruct, fs: Arc<dyn FileSystem>, at: &[u8], source: &str) -> Result<()> {
    mount::mount(
        &context.namespace(),
        SuperBlock::for_fs(fs, 0),
        &find(context, at)?,
        source,
        0,
    )
}

fn find(context: &FsStruct, name: &[u8]) -> Result<Path> {
    context
        .lookup_context(&Cred::root())
        .lookup(name, LookupFlags::empty())
}

/// Unpacks the archive that the machine or instance was started with. Its memory is freed, or
/// becomes that of its files, as they are made.
fn unpack_initramfs(root: &Arc<dyn Inode>) -> core::result::Result<(), RootFsError> {
    let Some(mut archive) = guard::mem::take_initramfs() else {
        if role::cmdline_value("root").is_none() {
            log::warn!("no initial file system was given");
        }
        return Ok(());
    };
    let all = archive.rest().len();
    match cpio::unpack(&mut archive, root) {
        Ok(_) => {}
        Err(cpio::Error {
            kind: cpio::ErrorKind::Refused(Errno::ENOSPC | Errno::ENOMEM),
            offset,
            name,
        }) => {
            return Err(RootFsError::NoMemory {
                entry: name,
                unpacked: offset,
                all,
            });
        }
        Err(error) => {
            log::error!("the initial file system is broken: {error}; what came before is there");
        }
    }
    Ok(())
}
