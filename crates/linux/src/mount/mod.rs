//! `mount(2)`, `umount2(2)`, `sysfs(2)`.

pub mod fsopen;
pub mod root;

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::errno::Errno;
use fs::mount::{self, FileSystem, Namespace, Propagation, SuperBlock, UnmountFlags};
use fs::path::LookupFlags;
use fs::ramfs::{Options, RamFs};
use fs::{DeviceId, FileType, Path, devfs};
use guard::mem;
use linux_raw_sys::general as sys;
use task::Once;
use uapi::fd::Fd;
use uapi::user_addr::UserAddr;

use crate::files::filesystems::FILE_SYSTEM_TYPES;
use crate::files::namei::{UserPath, lookup_at};
use crate::ipc::mqueuefs;
use crate::kernfs::{cgroup, sysfs};
use crate::process::process_table;
use crate::process_control::namespaces::may_mount;
use crate::{SysResult, Task, procfs, uaccess};

/// A mark of old programs in the upper half of the flags.
const MS_MGC_VAL: usize = 0xc0ed_0000;
const MS_MGC_MSK: usize = 0xffff_0000;
/// `MS_NOUSER`: not for programs. It is bit 31 of a signed number, so that Linux takes each bit
/// above for it, too.
const MS_NOUSER: usize = !0 << 31;
const PROPAGATION: u32 = sys::MS_PRIVATE | sys::MS_SHARED | sys::MS_SLAVE | sys::MS_UNBINDABLE;

/// The disk whose node has a name.
fn disk_at(task: &Task, source: Option<&[u8]>) -> Result<DeviceId, Errno> {
    let name = source
        .filter(|name| !name.is_empty())
        .ok_or(Errno::EINVAL)?;
    let path = task
        .walk(&task.fs_cred())
        .lookup(name, LookupFlags::empty())?;
    let id = path.inode().device();
    let id = id.filter(|_| path.dentry().kind() == FileType::Block);
    let id = id.ok_or(Errno::ENOTBLK)?;
    if path.mount().flags() & mount::MS_NODEV != 0 {
        return Err(Errno::EACCES);
    }
    Ok(id)
}

/// Makes a file system of a type, with its own options, and the bits that are so for all its
/// mounts. `source` names the disk, where the type needs one.
pub(crate) fn create_file_system(
    task: &Task,
    kind: &[u8],
    source: Option<&[u8]>,
    options: &str,
    bits: u32,
) -> Result<Arc<SuperBlock>, Errno> {
    static CGROUP: Once<Arc<fs::pseudo::PseudoFs>> = Once::new();
    static SYS: Once<Arc<fs::pseudo::PseudoFs>> = Once::new();
    let (options, bits) = common_options(options, bits);
    let fs: Arc<dyn FileSystem> = match kind {
        b"tmpfs" => RamFs::with(
            "tmpfs",
            Options::of_tmpfs(mem::stats().total).with_text(&options)?,
        ),
        b"ramfs" => RamFs::with("ramfs", Options::unlimited(mode_of(&options)?)),
        b"proc" => procfs::ProcFs::with_text(&options)?,
        b"sysfs" => SYS.call_once(sysfs::new).clone(),
        b"cgroup2" => CGROUP.call_once(cgroup::new).clone(),
        b"devtmpfs" => devfs::filesystem(),
        b"devpts" => fs::tty::pty::filesystem(),
        b"mqueue" => mqueuefs::file_system(),
        b"ext4" => return fs::ext4::mount(disk_at(task, source)?, &options, bits),
        _ => return Err(Errno::ENODEV),
    };
    check_options(kind, &options)?;
    Ok(SuperBlock::for_fs(fs, bits))
}

/// `ramfs` knows one option and does not mind others.
fn mode_of(options: &str) -> Result<u32, Errno> {
    let mode = options
        .split(',')
        .filter_map(|option| option.strip_prefix("mode="))
        .next_back();
    mode.map_or(Ok(0o755), |mode| {
        u32::from_str_radix(mode, 8)
            .map(|mode| mode & 0o7777)
            .map_err(|_| Errno::EINVAL)
    })
}

/// Checks the options of a file system's type. Beside those of `tmpfs`, `ramfs` and `proc` they
/// change nothing: there is one of each.
pub(crate) fn check_options(kind: &[u8], options: &str) -> Result<(), Errno> {
    match kind {
        b"tmpfs" => {
            return Options::of_tmpfs(mem::stats().total)
                .with_text(options)
                .map(drop);
        }
        b"ramfs" => return mode_of(options).map(drop),
        b"proc" => return procfs::check_options(options),
        b"ext4" => return fs::ext4::check_options(options),
        _ => {}
    }
    let known: &[&str] = match kind {
        b"devpts" => &["uid=", "gid=", "mode=", "ptmxmode=", "max=", "newinstance"],
        b"cgroup2" => &[
            "nsdelegate",
            "favordynmods",
            "memory_localevents",
            "memory_recursiveprot",
        ],
        b"devtmpfs" => &["size=", "nr_inodes=", "nr_blocks=", "mode=", "inode64"],
        _ => &[],
    };
    let knows = |option: &str| {
        known.iter().any(|name| {
            if name.ends_with('=') {
                option.starts_with(name)
            } else {
                option == *name
            }
        })
    };
    if options
        .split(',')
        .all(|option| option.is_empty() || knows(option))
    {
        Ok(())
    } else {
        Err(Errno::EINVAL)
    }
}

/// Takes the options that every file system knows, which stand for bits, out of a text.
pub(crate) fn common_options(options: &str, mut bits: u32) -> (String, u32) {
    let mut rest = String::new();
    for option in options.split(',').filter(|option| !option.is_empty()) {
        let (set, clear) = match option {
            "ro" => (sys::MS_RDONLY, 0),
            "rw" => (0, sys::MS_RDONLY),
            "sync" => (sys::MS_SYNCHRONOUS, 0),
            "async" => (0, sys::MS_SYNCHRONOUS),
            "dirsync" => (sys::MS_DIRSYNC, 0),
            "lazytime" => (sys::MS_LAZYTIME, 0),
            "nolazytime" => (0, sys::MS_LAZYTIME),
            "mand" => (sys::MS_MANDLOCK, 0),
            "nomand" => (0, sys::MS_MANDLOCK),
            _ => {
                if !rest.is_empty() {
                    rest.push(',');
                }
                rest.push_str(option);
                continue;
            }
        };
        bits = bits & !clear | set;
    }
    (rest, bits)
}

fn optional_text(addr: UserAddr) -> Result<String, Errno> {
    let mut buffer = UserPath::new();
    let bytes = if addr.is_null() {
        &[]
    } else {
        buffer.read(addr)?
    };
    Ok(String::from_utf8_lossy(bytes).into_owned())
}

/// Propagation type of `MS_SHARED` and its like, of which one is to be there, and nothing else but
/// `MS_REC`.
pub(crate) fn propagation_type(bits: u32) -> Result<Propagation, Errno> {
    Ok(match bits & !(sys::MS_REC | sys::MS_SILENT) {
        sys::MS_SHARED => Propagation::Shared,
        sys::MS_PRIVATE => Propagation::Private,
        sys::MS_SLAVE => Propagation::Slave,
        sys::MS_UNBINDABLE => Propagation::Unbindable,
        _ => return Err(Errno::EINVAL),
    })
}

/// Other bits or options for the file system of a mount, or, with `MS_BIND`, bits for the mount
/// alone.
fn remount(space: &Namespace, point: &Path, bits: u32, options: &str) -> Result<(), Errno> {
    let mount = point.mount();
    if !Arc::ptr_eq(point.dentry(), mount.root()) || !space.contains(mount) {
        return Err(Errno::EINVAL);
    }
    let own = mount::mount_flags(bits, Some(mount.flags()));
    if bits & sys::MS_BIND != 0 {
        return mount.set_flags(own);
    }
    let (options, common) = common_options(options, bits);
    mount.super_block().reconfigure(common, &options)?;
    mount.set_flags(own)
}

/// `mount(2)`: mounts, remounts, binds or moves a file system.
pub fn sys_mount(
    task: &Task,
    source: UserAddr,
    target: UserAddr,
    kind: UserAddr,
    flags: usize,
    data: UserAddr,
) -> SysResult {
    let (kind, source) = (optional_name(kind)?, optional_name(source)?);
    let options = optional_text(data)?;
    let flags = if flags & MS_MGC_MSK == MS_MGC_VAL {
        flags & 0xffff
    } else {
        flags
    };
    let point = lookup_at(task, Fd::CWD, target, 0)?;
    if flags & MS_NOUSER != 0 {
        return Err(Errno::EINVAL);
    }
    let bits = flags as u32;
    may_mount(task)?;
    let space = task.fs().namespace();
    // What is found by the source's name, for which it has to be one.
    let from = || {
        let name = source
            .as_deref()
            .filter(|name| !name.is_empty())
            .ok_or(Errno::EINVAL)?;
        task.walk(&task.fs_cred())
            .lookup(name, LookupFlags::empty())
    };
    if bits & sys::MS_REMOUNT != 0 {
        remount(&space, &point, bits, &options)?;
    } else if bits & sys::MS_BIND != 0 {
        mount::bind(&space, &from()?, &point, bits & sys::MS_REC != 0)?;
    } else if bits & PROPAGATION != 0 {
        mount::set_propagation(&point, propagation_type(bits)?, bits & sys::MS_REC != 0)?;
    } else if bits & sys::MS_MOVE != 0 {
        mount::move_mount(&space, &from()?, &point)?;
    } else {
        let kind = kind.ok_or(Errno::EINVAL)?;
        let shown = create_file_system(task, &kind, source.as_deref(), &options, bits)?;
        let source = source.map_or_else(
            || String::from("none"),
            |source| String::from_utf8_lossy(&source).into_owned(),
        );
        mount::mount(&space, shown, &point, &source, bits)?;
    }
    Ok(0)
}

/// A text that need not be a name: one that is too long is no error of a name.
///
/// # Errors
/// `EFAULT`, `EINVAL`.
pub(crate) fn read_text(addr: UserAddr) -> Result<Vec<u8>, Errno> {
    uaccess::read_cstr(addr, fs::PATH_MAX).map_err(|error| {
        if error == Errno::ENAMETOOLONG {
            Errno::EINVAL
        } else {
            error
        }
    })
}

fn optional_name(addr: UserAddr) -> Result<Option<Vec<u8>>, Errno> {
    if addr.is_null() {
        Ok(None)
    } else {
        read_text(addr).map(Some)
    }
}

/// `umount2(2)`: unmounts a file system, with flags.
pub fn sys_umount2(task: &Task, target: UserAddr, flags: u32) -> SysResult {
    let how = UnmountFlags::from_bits(flags & !sys::UMOUNT_NOFOLLOW).ok_or(Errno::EINVAL)?;
    let follows = if flags & sys::UMOUNT_NOFOLLOW != 0 {
        LookupFlags::NOFOLLOW
    } else {
        LookupFlags::empty()
    };
    let mut name = UserPath::new();
    let top = {
        let cred = task.fs_cred();
        let mut walk = task.walk(&cred);
        walk.leave_mounts_untouched();
        walk.lookup(name.read(target)?, follows)?
    };
    may_mount(task)?;
    let fs = task.fs();
    mount::unmount(&fs.namespace(), &top, &fs.root(), how).map(|()| 0)
}

/// `pivot_root(2)`: moves the root mount and puts another in its place.
pub fn sys_pivot_root(task: &Task, new: UserAddr, put: UserAddr) -> SysResult {
    may_mount(task)?;
    let directory = |name| {
        let path = lookup_at(task, Fd::CWD, name, 0)?;
        if path.dentry().kind() == FileType::Directory {
            Ok(path)
        } else {
            Err(Errno::ENOTDIR)
        }
    };
    let (new, put) = (directory(new)?, directory(put)?);
    let fs = task.fs();
    let root = fs.root();
    mount::pivot_root(&fs.namespace(), &root, &new, &put)?;
    // Who stood at the old root stands at the new one.
    for process in process_table::processes_where(|_, _| true) {
        for other in process.tasks() {
            other.fs().replace_paths(&root, &new);
        }
    }
    Ok(0)
}

/// `sysfs(2)`: the types of file systems by name and number.
pub fn sys_sysfs(_: &Task, option: u32, argument: usize, buf: UserAddr) -> SysResult {
    match option {
        1 => {
            let mut buffer = UserPath::new();
            let name = buffer.read(argument.into())?;
            if name.is_empty() {
                return Err(Errno::ENOENT);
            }
            FILE_SYSTEM_TYPES
                .iter()
                .position(|t| t.as_bytes() == name)
                .ok_or(Errno::EINVAL)
        }
        2 => {
            let name = FILE_SYSTEM_TYPES.get(argument).ok_or(Errno::EINVAL)?;
            uaccess::write_bytes(buf, name.as_bytes())?;
            uaccess::write_bytes(buf.wrapping_add(name.len()), &[0]).map(|()| 0)
        }
        3 => Ok(FILE_SYSTEM_TYPES.len()),
        _ => Err(Errno::EINVAL),
    }
}
