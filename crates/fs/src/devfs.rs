//! `/dev`: device nodes by name, drivers by number.
//!
//! A driver calls [`register`] once; the node appears in `/dev` and opening it, or any other node
//! with the same number, reaches the driver. The memory devices (`null`, `zero`, `full`, `random`,
//! `urandom`) live here.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;

use abi::errno::Errno;
use task::{Mutex, Once};

use crate::file::{FileOps, OpenFlags};
use crate::ioctl::IoctlRequest;
use crate::mount::{self, FileSystem};
use crate::ramfs::RamFs;
use crate::{DeviceId, File, FileType, Inode, NewInode, NewInodeKind, Result, Whence};

/// A character device's driver.
pub trait CharDevice: Send + Sync {
    /// Opens the device.
    ///
    /// # Errors
    /// Whatever the device says.
    fn open(self: Arc<Self>, flags: OpenFlags) -> Result<Arc<dyn FileOps>>;

    /// The device's number, if it has a fixed one. Others get a number of major 10 (misc).
    fn id(&self) -> Option<DeviceId> {
        None
    }

    /// Permissions of the node.
    fn mode(&self) -> u32 {
        0o600
    }
}

struct Registry {
    fs: Arc<RamFs>,
    drivers: Mutex<BTreeMap<DeviceId, Arc<dyn CharDevice>>>,
}

/// Where numbers that are given out begin: above all that Linux assigns.
const FIRST_DYNAMIC_MINOR: u32 = 512;
const MISC_MAJOR: u32 = 10;

fn registry() -> &'static Registry {
    static REGISTRY: Once<Registry> = Once::new();
    REGISTRY.call_once(|| Registry {
        fs: RamFs::new("devtmpfs", None, 0o755),
        drivers: Mutex::new(BTreeMap::new()),
    })
}

/// The file system of `/dev`, the same wherever it is mounted.
#[must_use]
pub fn filesystem() -> Arc<RamFs> {
    registry().fs.clone()
}

/// Makes a device known, as `/dev/<name>`; `name` may have one directory in it (`pts/0`).
///
/// # Errors
/// `EEXIST` if the name or the number is taken.
pub fn register(name: &str, device: Arc<dyn CharDevice>) -> Result<DeviceId> {
    let registry = registry();
    let mode = device.mode();
    let id = {
        let mut drivers = registry.drivers.lock();
        let id = device.id().unwrap_or_else(|| {
            let used = |minor| drivers.contains_key(&DeviceId::new(MISC_MAJOR, minor));
            DeviceId::new(
                MISC_MAJOR,
                (FIRST_DYNAMIC_MINOR..)
                    .find(|&minor| !used(minor))
                    .unwrap_or(u32::MAX),
            )
        });
        if drivers.contains_key(&id) {
            return Err(Errno::EEXIST);
        }
        drivers.insert(id, device);
        id
    };
    let node = NewInode {
        kind: NewInodeKind::Char(id),
        mode,
        umask: 0,
        uid: 0,
        gid: 0,
    };
    let (dir, leaf) = parent_directory(name)?;
    dir.create(leaf.as_bytes(), &node).inspect_err(|_| {
        registry.drivers.lock().remove(&id);
    })?;
    Ok(id)
}

/// Makes a device unknown: its node is removed if somebody has not done so. Who has it open keeps
/// that.
pub fn unregister(name: &str, id: DeviceId) {
    registry().drivers.lock().remove(&id);
    remove_node(name);
}

/// Makes the node of a block device in `/dev`.
///
/// # Errors
/// `EEXIST`.
pub(crate) fn block_node(name: &str, id: DeviceId, mode: u32) -> Result<()> {
    let node = NewInode {
        kind: NewInodeKind::Block(id),
        mode,
        umask: 0,
        uid: 0,
        gid: 0,
    };
    registry()
        .fs
        .root()
        .create(name.as_bytes(), &node)
        .map(drop)
}

/// Removes the node of a device from `/dev`, if somebody has not done so.
pub(crate) fn remove_node(name: &str) {
    let fs: Arc<dyn FileSystem> = registry().fs.clone();
    let _ = mount::remove_name(&fs, name.as_bytes());
}

/// Makes a symbolic link in `/dev`.
///
/// # Errors
/// `EEXIST`.
pub fn symlink(name: &str, target: &str) -> Result<()> {
    let link = NewInode {
        kind: NewInodeKind::Symlink(target.as_bytes()),
        mode: 0o777,
        umask: 0,
        uid: 0,
        gid: 0,
    };
    let (dir, leaf) = parent_directory(name)?;
    dir.create(leaf.as_bytes(), &link).map(drop)
}

/// Makes a directory in `/dev`.
///
/// # Errors
/// `EEXIST`.
pub fn directory(name: &str, mode: u32) -> Result<()> {
    let new = NewInode {
        kind: NewInodeKind::Directory,
        mode,
        umask: 0,
        uid: 0,
        gid: 0,
    };
    registry().fs.root().create(name.as_bytes(), &new).map(drop)
}

/// The directory a name belongs in, made if need be, and the rest of the name.
fn parent_directory(name: &str) -> Result<(Arc<dyn Inode>, &str)> {
    let root = registry().fs.root();
    let Some((dir, leaf)) = name.split_once('/') else {
        return Ok((root, name));
    };
    let found = match root.lookup(dir.as_bytes()) {
        Err(Errno::ENOENT) => root.create(
            dir.as_bytes(),
            &NewInode {
                kind: NewInodeKind::Directory,
                mode: 0o755,
                umask: 0,
                uid: 0,
                gid: 0,
            },
        )?,
        found => found?,
    };
    if found.kind() == FileType::Directory {
        Ok((found, leaf))
    } else {
        Err(Errno::ENOTDIR)
    }
}

/// Opens a device by number.
///
/// # Errors
/// `ENXIO` if no driver has it, else what the driver says.
pub fn open(id: DeviceId, flags: OpenFlags) -> Result<Arc<dyn FileOps>> {
    let driver = registry().drivers.lock().get(&id).cloned();
    driver.ok_or(Errno::ENXIO)?.open(flags)
}

/// Registers the memory devices and the customary links and directories. Called once, at start-up.
///
/// # Errors
/// `EEXIST` when called twice.
pub fn register_standard() -> Result<()> {
    for (name, minor, kind) in [
        ("null", 3, MemoryDevice::Null),
        ("zero", 5, MemoryDevice::Zero),
        ("full", 7, MemoryDevice::Full),
        ("random", 8, MemoryDevice::Random),
        ("urandom", URANDOM, MemoryDevice::Random),
    ] {
        register(name, Arc::new(MemoryDriver { minor, kind }))?;
    }
    for (name, target) in [
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
    ] {
        symlink(name, target)?;
    }
    directory("shm", 0o1777)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum MemoryDevice {
    Null,
    Zero,
    Full,
    Random,
}

/// `ioctl(2)`: how many random bits the pool of random numbers has.
const RNDGETENTCNT: u32 = 0x8004_5200;
/// Bits of entropy that `RNDGETENTCNT` tells: the pool is full from the beginning.
const RANDOM_BITS: i32 = 256;

/// Minor number of `/dev/urandom`, which differs from `/dev/random` in that it cannot be polled, as
/// on Linux 6.1.
const URANDOM: u32 = 9;

struct MemoryDriver {
    minor: u32,
    kind: MemoryDevice,
}

impl CharDevice for MemoryDriver {
    fn open(self: Arc<Self>, _: OpenFlags) -> Result<Arc<dyn FileOps>> {
        Ok(self)
    }

    fn id(&self) -> Option<DeviceId> {
        Some(DeviceId::new(1, self.minor))
    }

    fn mode(&self) -> u32 {
        0o666
    }
}

impl MemoryDriver {
    #[inline(never)]
    fn fill(&self, buf: &mut [u8]) -> Result<usize> {
        match self.kind {
            MemoryDevice::Null => return Ok(0),
            MemoryDevice::Zero | MemoryDevice::Full => buf.fill(0),
            MemoryDevice::Random => fill_random(buf),
        }
        Ok(buf.len())
    }
}

impl FileOps for MemoryDriver {
    fn read(&self, _: &File, buf: &mut [u8]) -> Result<usize> {
        match (self.kind, &mut *buf) {
            // Less than a call of what fills many.
            (MemoryDevice::Zero | MemoryDevice::Full, [byte]) => {
                *byte = 0;
                Ok(1)
            }
            _ => self.fill(buf),
        }
    }

    fn write(&self, _: &File, buf: &[u8]) -> Result<usize> {
        if self.kind == MemoryDevice::Full {
            Err(Errno::ENOSPC)
        } else {
            Ok(buf.len())
        }
    }

    fn supports_pread(&self) -> bool {
        true
    }

    fn needs_data(&self) -> bool {
        self.kind == MemoryDevice::Random
    }

    fn read_at(&self, file: &File, _: u64, buf: &mut [u8]) -> Result<usize> {
        self.read(file, buf)
    }

    fn write_at(&self, file: &File, _: u64, buf: &[u8]) -> Result<usize> {
        self.write(file, buf)
    }

    fn seek(&self, _: &File, _: Whence, _: i64) -> Result<u64> {
        Ok(0)
    }

    fn is_pollable(&self) -> bool {
        self.kind == MemoryDevice::Random && self.minor != URANDOM
    }

    fn fills_buffers(&self) -> bool {
        true
    }

    /// Only `/dev/random` and `/dev/urandom` are sources of `splice(2)`, as on Linux 6.1.
    fn is_spliceable(&self) -> bool {
        self.kind == MemoryDevice::Random
    }

    fn backing(&self, _: &File) -> Result<Arc<dyn vm::Backing>> {
        match self.kind {
            MemoryDevice::Zero => Ok(Arc::new(vm::ShmemObject::default())),
            _ => Err(Errno::ENODEV),
        }
    }

    fn ioctl(&self, _: &File, request: &IoctlRequest<'_>) -> Result<usize> {
        match (self.kind, request.command) {
            (MemoryDevice::Random, RNDGETENTCNT) => request.write(&RANDOM_BITS).map(|()| 0),
            (MemoryDevice::Random, _) => Err(Errno::EINVAL),
            _ => Err(Errno::ENOTTY),
        }
    }
}

/// Fills a buffer with random bytes.
#[cfg(target_os = "none")]
pub fn fill_random(buf: &mut [u8]) {
    guard::random::fill(buf);
}

/// Fills a buffer with bytes that are random enough for tests.
#[cfg(not(target_os = "none"))]
pub fn fill_random(buf: &mut [u8]) {
    use std::hash::{BuildHasher, RandomState};
    for chunk in buf.chunks_mut(8) {
        let random = RandomState::new().hash_one(0).to_le_bytes();
        chunk.copy_from_slice(&random[..chunk.len()]);
    }
}
