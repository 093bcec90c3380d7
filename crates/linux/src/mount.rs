//! `mount(2)`, `umount2(2)`, `sysfs(2)`.

use crate::path::{Name, lookup_at};
use crate::{SysResult, Task, cgroup, mqueuefs, proc, sysfs, uaccess};
use abi::errno::Errno;
use alloc::string::String;
use alloc::sync::Arc;
use fs::devfs;
use fs::mount::{self, FileSystem};
use fs::ramfs::RamFs;
use guard::mem;
use linux_raw_sys::general as sys;
use task::Once;

/// What `mount(2)` is told besides what the mount remembers.
const PROPAGATION: u32 = sys::MS_PRIVATE | sys::MS_SHARED | sys::MS_SLAVE | sys::MS_UNBINDABLE;

/// The types of file systems there are; none needs a device.
pub(crate) const TYPES: [&str; 8] = ["sysfs", "tmpfs", "proc", "cgroup2", "devtmpfs", "devpts", "ramfs", "mqueue"];

/// A file system of a type, with the options of `mount(2)`'s last argument.
fn file_system(kind: &[u8], options: &str) -> Result<Arc<dyn FileSystem>, Errno> {
    static PROC: Once<Arc<fs::pseudo::PseudoFs>> = Once::new();
    static CGROUP: Once<Arc<fs::pseudo::PseudoFs>> = Once::new();
    static SYS: Once<Arc<fs::pseudo::PseudoFs>> = Once::new();
    Ok(match kind {
        b"proc" => PROC.call_once(proc::new).clone(),
        b"sysfs" => SYS.call_once(sysfs::new).clone(),
        b"cgroup2" => CGROUP.call_once(cgroup::new).clone(),
        b"devtmpfs" => devfs::filesystem(),
        b"devpts" => fs::tty::pty::filesystem(),
        b"mqueue" => mqueuefs::file_system(),
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
    let mut buffer = Name::new();
    let bytes = if addr == 0 { &[] } else { buffer.read(addr)? };
    Ok(String::from_utf8_lossy(bytes).into_owned())
}

/// `mount(2)`: new file systems, binds, and changes of the flags; propagation is accepted, there is one namespace.
pub fn sys_mount(task: &Task, source: usize, target: usize, kind: usize, flags: usize, data: usize) -> SysResult {
    if !task.cred().privileged() {
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
        let fs = file_system(Name::new().read(kind)?, &optional_text(data)?)?;
        mount::mount(fs, &point, &optional_text(source)?, flags)?;
    }
    Ok(0)
}

/// `umount2(2)`
pub fn sys_umount2(task: &Task, target: usize, flags: u32) -> SysResult {
    if flags & !(sys::MNT_FORCE | sys::MNT_DETACH | sys::MNT_EXPIRE | sys::UMOUNT_NOFOLLOW) != 0 {
        return Err(Errno::EINVAL);
    }
    if !task.cred().privileged() {
        return Err(Errno::EPERM);
    }
    let nofollow = if flags & sys::UMOUNT_NOFOLLOW != 0 { sys::AT_SYMLINK_NOFOLLOW } else { 0 };
    let top = lookup_at(task, sys::AT_FDCWD, target, nofollow)?;
    mount::unmount(&top, flags & sys::MNT_DETACH != 0).map(|()| 0)
}

/// `sysfs(2)`: the types of file systems by name and number.
pub fn sys_sysfs(_: &Task, option: u32, argument: usize, buf: usize) -> SysResult {
    match option {
        1 => {
            let mut buffer = Name::new();
            let name = buffer.read(argument)?;
            TYPES.iter().position(|t| t.as_bytes() == name).ok_or(Errno::EINVAL)
        }
        2 => {
            let name = TYPES.get(argument).ok_or(Errno::EINVAL)?;
            uaccess::write_bytes(buf, name.as_bytes())?;
            uaccess::write_bytes(buf.wrapping_add(name.len()), &[0]).map(|()| 0)
        }
        3 => Ok(TYPES.len()),
        _ => Err(Errno::EINVAL),
    }
}
