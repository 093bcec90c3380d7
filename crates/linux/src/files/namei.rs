//! Calls that name files: `open(2)`, `mkdir(2)`, `rename(2)`, `chmod(2)`, `chdir(2)` and their
//! relatives.
//!
//! The old calls are the `*at` calls with the working directory; each is written once.

use alloc::boxed::Box;

use abi::errno::Errno;
use fs::ops::{self, CreationMode, TimeUpdate};
use fs::path::{LookupContext, LookupFlags, Resolve};
use fs::{
    Access, Cred, DeviceId, FileType, NewInodeKind, OpenFlags, PATH_MAX, Path, RenameFlags,
    Timestamp,
};
use guard::user::ShortString;
use linux_raw_sys::general as sys;
use uapi::fd::Fd;
use uapi::time::{TimeSpec, TimeVal};
use uapi::user_addr::UserAddr;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::process::rlimit;
use crate::state::fdtable::CloseOnExec;
use crate::uaccess::{self, UserPtr};
use crate::{SysResult, Task};

/// Names up to this length, NUL included, need no memory of their own.
const SHORT_NAME: usize = 96;

/// Room for a path name.
pub struct UserPath {
    short: ShortString<SHORT_NAME>,
    /// For a longer one.
    long: Option<Box<[u8]>>,
}

impl Default for UserPath {
    fn default() -> Self {
        Self::new()
    }
}

impl UserPath {
    /// A path buffer that nothing has been read into.
    #[inline(always)]
    #[must_use]
    pub const fn new() -> Self {
        Self {
            short: ShortString::new(),
            long: None,
        }
    }

    /// A path name from user memory, without its NUL.
    ///
    /// # Errors
    /// `EFAULT`, `ENAMETOOLONG`.
    #[inline(always)]
    pub fn read(&mut self, addr: UserAddr) -> Result<&[u8], Errno> {
        match self.short.read(addr.raw()) {
            Ok(Some(name)) => Ok(name),
            Ok(None) => Ok(self
                .long
                .insert(uaccess::read_cstr(addr, PATH_MAX)?.into_boxed_slice())),
            Err(_) => Err(Errno::EFAULT),
        }
    }
}

/// Begins a walk of `name`: at the directory behind `dirfd`, unless the name is absolute.
///
/// # Errors
/// `ENOENT` for no name at all, whatever the descriptor; `EBADF`, `ENOTDIR`.
#[inline(always)]
pub fn walk_at<'a>(
    task: &Task,
    cred: &'a Cred,
    dirfd: Fd,
    name: &[u8],
) -> Result<LookupContext<'a>, Errno> {
    let mut walk = task.walk(cred);
    start_at(task, &mut walk, dirfd, name)?;
    Ok(walk)
}

/// Checks `dirfd` like [`walk_at`], for a walk from the working directory that was just begun.
#[inline(always)]
fn start_at(
    task: &Task,
    walk: &mut LookupContext<'_>,
    dirfd: Fd,
    name: &[u8],
) -> Result<(), Errno> {
    if dirfd != Fd::CWD && name.first() != Some(&b'/') {
        start_at_directory(task, walk, dirfd, name)
    } else {
        Ok(())
    }
}

fn start_at_directory(
    task: &Task,
    walk: &mut LookupContext<'_>,
    dirfd: Fd,
    name: &[u8],
) -> Result<(), Errno> {
    if name.is_empty() {
        return Err(Errno::ENOENT);
    }
    let dir = task.file(dirfd)?;
    if dir.inode().kind() != FileType::Directory {
        return Err(Errno::ENOTDIR);
    }
    walk.start_at(dir.path().clone());
    Ok(())
}

/// The file that `dirfd` and the name at `addr` mean; `flags` may hold `AT_EMPTY_PATH`,
/// `AT_SYMLINK_NOFOLLOW`.
///
/// # Errors
/// Those of a walk.
pub fn lookup_at(task: &Task, dirfd: Fd, addr: UserAddr, flags: u32) -> Result<Path, Errno> {
    let mut buffer = UserPath::new();
    lookup_name(task, dirfd, buffer.read(addr)?, flags)
}

/// Looks up a name that is in the kernel already.
fn lookup_name(task: &Task, dirfd: Fd, name: &[u8], flags: u32) -> Result<Path, Errno> {
    if name.is_empty() && flags & sys::AT_EMPTY_PATH != 0 {
        return if dirfd == Fd::CWD {
            Ok(task.fs().cwd())
        } else {
            Ok(task.file(dirfd)?.path().clone())
        };
    }
    let cred = task.fs_cred();
    let mut walk = task.walk(&cred);
    start_at(task, &mut walk, dirfd, name)?;
    let nofollow = flags & sys::AT_SYMLINK_NOFOLLOW != 0;
    walk.lookup(
        name,
        if nofollow {
            LookupFlags::NOFOLLOW
        } else {
            LookupFlags::empty()
        },
    )
}

/// Fails with `EINVAL` for flags that are not among `known`.
fn check_flags(flags: u32, known: u32) -> Result<(), Errno> {
    if flags & !known == 0 {
        Ok(())
    } else {
        Err(Errno::EINVAL)
    }
}

/// Permission bits that the caller wants of a new file.
fn creation_mode(task: &Task, mode: u32) -> CreationMode {
    CreationMode {
        bits: mode & 0o7777,
        umask: task.fs().umask(),
    }
}

/// Checks that the caller may open a file at all: that it has a descriptor left is asked before the
/// path is walked.
fn check_open(task: &Task, name: &[u8]) -> Result<(), Errno> {
    if name.is_empty() {
        Err(Errno::ENOENT)
    } else {
        task.check_fd_available()
    }
}

/// `openat(2)`: opens a path, from a directory on.
pub fn sys_openat(task: &Task, dirfd: Fd, name: UserAddr, flags: u32, mode: u32) -> SysResult {
    let flags = OpenFlags::from_bits_truncate(flags).checked()?;
    let mut buffer = UserPath::new();
    let name = buffer.read(name)?;
    check_open(task, name)?;
    let cred = task.fs_cred();
    let mut walk = task.walk(&cred);
    start_at(task, &mut walk, dirfd, name)?;
    let mode = if flags.intersects(OpenFlags::CREAT.union(OpenFlags::TMPFILE)) {
        creation_mode(task, mode)
    } else {
        CreationMode::from(0)
    };
    task.open_with_reserved_fd(CloseOnExec::of_flags(flags), || {
        ops::open(&walk, name, flags, mode)
    })
}

/// `open(2)`: opens a path.
pub fn sys_open(task: &Task, name: UserAddr, flags: u32, mode: u32) -> SysResult {
    sys_openat(task, Fd::CWD, name, flags, mode)
}

/// `creat(2)`: makes or truncates a file and opens it for writing.
pub fn sys_creat(task: &Task, name: UserAddr, mode: u32) -> SysResult {
    sys_openat(
        task,
        Fd::CWD,
        name,
        sys::O_CREAT | sys::O_WRONLY | sys::O_TRUNC,
        mode,
    )
}

/// Flags, mode and limits of the walk of `openat2(2)`: `struct open_how`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct OpenHow {
    flags: u64,
    mode: u64,
    resolve: u64,
}

/// `openat2(2)`: opens a path as `struct open_how` says.
pub fn sys_openat2(
    task: &Task,
    dirfd: Fd,
    name: UserAddr,
    how: UserPtr<OpenHow>,
    size: usize,
) -> SysResult {
    if size < size_of::<OpenHow>() {
        return Err(Errno::EINVAL);
    }
    if size > vm::PAGE_SIZE {
        return Err(Errno::E2BIG);
    }
    // What a later kernel would know must be zero.
    uaccess::check_zeroed(how.addr(), size_of::<OpenHow>()..size)?;
    let how = how.read()?;
    let flags = u32::try_from(how.flags).map_err(|_| Errno::EINVAL)?;
    let makes = flags & (sys::O_CREAT | sys::O_TMPFILE & !sys::O_DIRECTORY) != 0;
    if OpenFlags::from_bits(flags).is_none() || how.mode & !0o7777 != 0 || (how.mode != 0 && !makes)
    {
        return Err(Errno::EINVAL);
    }
    let resolve = u32::try_from(how.resolve)
        .ok()
        .and_then(Resolve::from_bits)
        .ok_or(Errno::EINVAL)?;
    if resolve.contains(Resolve::BENEATH | Resolve::IN_ROOT) {
        return Err(Errno::EINVAL);
    }
    let given = OpenFlags::from_bits_truncate(flags);
    let flags = given.checked()?;
    if !flags.contains(given) {
        return Err(Errno::EINVAL);
    }
    // Whether it would sleep is not even tried.
    if resolve.contains(Resolve::CACHED) && (makes || flags.contains(OpenFlags::TRUNC)) {
        return Err(Errno::EAGAIN);
    }
    let mut buffer = UserPath::new();
    let name = buffer.read(name)?;
    check_open(task, name)?;
    let cred = task.fs_cred();
    let mut walk = if resolve.contains(Resolve::IN_ROOT) {
        // An absolute name begins at the directory, too.
        walk_at(task, &cred, dirfd, b".")?
    } else {
        walk_at(task, &cred, dirfd, name)?
    };
    walk.set_resolve(resolve);
    let mode = creation_mode(task, how.mode as u32);
    task.open_with_reserved_fd(CloseOnExec::of_flags(flags), || {
        ops::open(&walk, name, flags, mode)
    })
}

/// Makes a file, directory, device, fifo or symbolic link at a path.
fn mknod_at(
    task: &Task,
    dirfd: Fd,
    name: UserAddr,
    kind: NewInodeKind<'_>,
    mode: CreationMode,
) -> SysResult {
    let mut buffer = UserPath::new();
    let name = buffer.read(name)?;
    let cred = task.fs_cred();
    let walk = walk_at(task, &cred, dirfd, name)?;
    ops::create_node(&walk, name, kind, mode).map(|_| 0)
}

/// `mkdirat(2)`: makes a directory, from a directory on.
pub fn sys_mkdirat(task: &Task, dirfd: Fd, name: UserAddr, mode: u32) -> SysResult {
    let mode = creation_mode(task, mode & 0o1777);
    mknod_at(task, dirfd, name, NewInodeKind::Directory, mode)
}

/// `mkdir(2)`: makes a directory.
pub fn sys_mkdir(task: &Task, name: UserAddr, mode: u32) -> SysResult {
    sys_mkdirat(task, Fd::CWD, name, mode)
}

/// `mknodat(2)`: makes a file, device, fifo or socket, from a directory on.
pub fn sys_mknodat(task: &Task, dirfd: Fd, name: UserAddr, mode: u32, device: u32) -> SysResult {
    let device = DeviceId::decode(u64::from(device));
    let kind = match FileType::from_mode(mode) {
        None if mode & sys::S_IFMT == 0 => NewInodeKind::Regular,
        Some(FileType::Regular) => NewInodeKind::Regular,
        Some(FileType::Fifo) => NewInodeKind::Fifo,
        Some(FileType::Socket) => NewInodeKind::Socket,
        Some(FileType::Char) => NewInodeKind::Char(device),
        Some(FileType::Block) => NewInodeKind::Block(device),
        Some(FileType::Directory) => return Err(Errno::EPERM),
        _ => return Err(Errno::EINVAL),
    };
    mknod_at(task, dirfd, name, kind, creation_mode(task, mode))
}

/// `mknod(2)`: makes a file, device, fifo or socket.
pub fn sys_mknod(task: &Task, name: UserAddr, mode: u32, device: u32) -> SysResult {
    sys_mknodat(task, Fd::CWD, name, mode, device)
}

/// `symlinkat(2)`: makes a symbolic link, from a directory on.
pub fn sys_symlinkat(task: &Task, target: UserAddr, dirfd: Fd, name: UserAddr) -> SysResult {
    let mut buffer = UserPath::new();
    let target = buffer.read(target)?;
    if target.is_empty() {
        return Err(Errno::ENOENT);
    }
    mknod_at(
        task,
        dirfd,
        name,
        NewInodeKind::Symlink(target),
        0o777.into(),
    )
}

/// `symlink(2)`: makes a symbolic link.
pub fn sys_symlink(task: &Task, target: UserAddr, name: UserAddr) -> SysResult {
    sys_symlinkat(task, target, Fd::CWD, name)
}

/// `linkat(2)`: makes a hard link, from directories on.
pub fn sys_linkat(
    task: &Task,
    old_fd: Fd,
    old: UserAddr,
    new_fd: Fd,
    new: UserAddr,
    flags: u32,
) -> SysResult {
    check_flags(flags, sys::AT_SYMLINK_FOLLOW | sys::AT_EMPTY_PATH)?;
    // A descriptor that was handed over is not enough to name its file.
    if flags & sys::AT_EMPTY_PATH != 0 && !task.fs_cred().capable(sys::CAP_DAC_READ_SEARCH) {
        return Err(Errno::ENOENT);
    }
    let nofollow = if flags & sys::AT_SYMLINK_FOLLOW == 0 {
        sys::AT_SYMLINK_NOFOLLOW
    } else {
        0
    };
    let old = lookup_at(task, old_fd, old, flags & sys::AT_EMPTY_PATH | nofollow)?;
    let mut buffer = UserPath::new();
    let new = buffer.read(new)?;
    let cred = task.fs_cred();
    ops::link(&old, &walk_at(task, &cred, new_fd, new)?, new).map(|()| 0)
}

/// `link(2)`: makes a hard link.
pub fn sys_link(task: &Task, old: UserAddr, new: UserAddr) -> SysResult {
    sys_linkat(task, Fd::CWD, old, Fd::CWD, new, 0)
}

/// `unlinkat(2)`: removes a name or an empty directory, from a directory on.
pub fn sys_unlinkat(task: &Task, dirfd: Fd, name: UserAddr, flags: u32) -> SysResult {
    check_flags(flags, sys::AT_REMOVEDIR)?;
    let mut buffer = UserPath::new();
    let name = buffer.read(name)?;
    let cred = task.fs_cred();
    let removal = if flags & sys::AT_REMOVEDIR == 0 {
        ops::Removal::Unlink
    } else {
        ops::Removal::Rmdir
    };
    ops::remove(&walk_at(task, &cred, dirfd, name)?, name, removal).map(|()| 0)
}

/// `unlink(2)`: removes a name of a file.
pub fn sys_unlink(task: &Task, name: UserAddr) -> SysResult {
    sys_unlinkat(task, Fd::CWD, name, 0)
}

/// `rmdir(2)`: removes an empty directory.
pub fn sys_rmdir(task: &Task, name: UserAddr) -> SysResult {
    sys_unlinkat(task, Fd::CWD, name, sys::AT_REMOVEDIR)
}

/// `renameat2(2)`: renames or exchanges files, from directories on, with flags.
pub fn sys_renameat2(
    task: &Task,
    old_fd: Fd,
    old: UserAddr,
    new_fd: Fd,
    new: UserAddr,
    flags: u32,
) -> SysResult {
    let flags = RenameFlags::from_bits(flags)
        .filter(|flags| flags.is_valid())
        .ok_or(Errno::EINVAL)?;
    let mut buffer = UserPath::new();
    let cred = task.fs_cred();
    // The way to the old name comes first, whatever is wrong with the new one.
    let old = buffer.read(old)?;
    let source = walk_at(task, &cred, old_fd, old)?.lookup_parent(old)?;
    let new = buffer.read(new)?;
    let walk = walk_at(task, &cred, new_fd, new)?;
    let target = walk.lookup_parent(new)?;
    ops::rename(&walk, source, target, flags).map(|()| 0)
}

/// `renameat(2)`: renames a file, from directories on.
pub fn sys_renameat(
    task: &Task,
    old_fd: Fd,
    old: UserAddr,
    new_fd: Fd,
    new: UserAddr,
) -> SysResult {
    sys_renameat2(task, old_fd, old, new_fd, new, 0)
}

/// `rename(2)`: renames a file.
pub fn sys_rename(task: &Task, old: UserAddr, new: UserAddr) -> SysResult {
    sys_renameat2(task, Fd::CWD, old, Fd::CWD, new, 0)
}

/// `readlinkat(2)`: reads the target of a symbolic link, from a directory on.
pub fn sys_readlinkat(
    task: &Task,
    dirfd: Fd,
    name: UserAddr,
    buf: UserAddr,
    size: i32,
) -> SysResult {
    let size = usize::try_from(size)
        .ok()
        .filter(|&size| size > 0)
        .ok_or(Errno::EINVAL)?;
    let mut buffer = UserPath::new();
    let name = buffer.read(name)?;
    let path = lookup_name(
        task,
        dirfd,
        name,
        sys::AT_SYMLINK_NOFOLLOW | sys::AT_EMPTY_PATH,
    )?;
    // Without a name it is the descriptor's file, which is a link or nothing that is meant.
    let text = path.inode().readlink().map_err(|e| {
        if e == Errno::EINVAL && name.is_empty() {
            Errno::ENOENT
        } else {
            e
        }
    })?;
    let n = text.len().min(size);
    uaccess::write_bytes(buf, &text[..n])?;
    Ok(n)
}

/// `readlink(2)`: reads the target of a symbolic link.
pub fn sys_readlink(task: &Task, name: UserAddr, buf: UserAddr, size: i32) -> SysResult {
    sys_readlinkat(task, Fd::CWD, name, buf, size)
}

/// `truncate(2)`: sets the length of a file, in bytes.
pub fn sys_truncate(task: &Task, name: UserAddr, size: i64) -> SysResult {
    let size = u64::try_from(size).map_err(|_| Errno::EINVAL)?;
    let path = lookup_at(task, Fd::CWD, name, 0)?;
    if path.inode().kind() == FileType::Regular {
        rlimit::check_size(task, &**path.inode(), size)?;
    }
    ops::truncate(&path, size, &task.fs_cred()).map(|()| 0)
}

/// `fchmodat2(2)`: changes permissions, from a directory on, with flags.
pub fn sys_fchmodat2(task: &Task, dirfd: Fd, name: UserAddr, mode: u32, flags: u32) -> SysResult {
    check_flags(flags, sys::AT_SYMLINK_NOFOLLOW | sys::AT_EMPTY_PATH)?;
    let path = lookup_at(task, dirfd, name, flags)?;
    if path.inode().kind() == FileType::Symlink {
        return Err(Errno::EOPNOTSUPP);
    }
    ops::chmod(&path, mode, &task.fs_cred()).map(|()| 0)
}

/// `fchmodat(2)`: changes permissions, from a directory on.
pub fn sys_fchmodat(task: &Task, dirfd: Fd, name: UserAddr, mode: u32) -> SysResult {
    sys_fchmodat2(task, dirfd, name, mode, 0)
}

/// `chmod(2)`: changes the permissions of a path.
pub fn sys_chmod(task: &Task, name: UserAddr, mode: u32) -> SysResult {
    sys_fchmodat2(task, Fd::CWD, name, mode, 0)
}

/// `fchmod(2)`: changes the permissions of an open file.
pub fn sys_fchmod(task: &Task, fd: Fd, mode: u32) -> SysResult {
    ops::chmod(task.files().get_io(fd)?.path(), mode, &task.fs_cred()).map(|()| 0)
}

fn chown(task: &Task, path: &Path, uid: u32, gid: u32) -> SysResult {
    let given = |id: u32| (id != u32::MAX).then_some(id);
    ops::chown(path, given(uid), given(gid), &task.fs_cred()).map(|()| 0)
}

/// `fchownat(2)`: changes owner and group, from a directory on, with flags.
pub fn sys_fchownat(
    task: &Task,
    dirfd: Fd,
    name: UserAddr,
    uid: u32,
    gid: u32,
    flags: u32,
) -> SysResult {
    check_flags(flags, sys::AT_SYMLINK_NOFOLLOW | sys::AT_EMPTY_PATH)?;
    chown(task, &lookup_at(task, dirfd, name, flags)?, uid, gid)
}

/// `chown(2)`: changes owner and group of a path.
pub fn sys_chown(task: &Task, name: UserAddr, uid: u32, gid: u32) -> SysResult {
    sys_fchownat(task, Fd::CWD, name, uid, gid, 0)
}

/// `lchown(2)`: changes owner and group of a path; a symbolic link's own.
pub fn sys_lchown(task: &Task, name: UserAddr, uid: u32, gid: u32) -> SysResult {
    sys_fchownat(task, Fd::CWD, name, uid, gid, sys::AT_SYMLINK_NOFOLLOW)
}

/// `fchown(2)`: changes owner and group of an open file.
pub fn sys_fchown(task: &Task, fd: Fd, uid: u32, gid: u32) -> SysResult {
    chown(task, task.files().get_io(fd)?.path(), uid, gid)
}

/// The times of a file as `utimensat(2)` and `utimes(2)` take them.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct FileTimes<T> {
    /// Last access.
    accessed: T,
    /// Last modification.
    modified: T,
}

/// `struct utimbuf`: seconds.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct UTimBuf {
    accessed_sec: i64,
    modified_sec: i64,
}

fn new_time(TimeSpec { sec, nsec }: TimeSpec) -> Result<TimeUpdate, Errno> {
    match nsec {
        _ if nsec == i64::from(sys::UTIME_NOW) => Ok(TimeUpdate::Now),
        _ if nsec == i64::from(sys::UTIME_OMIT) => Ok(TimeUpdate::Omit),
        0..1_000_000_000 => Ok(TimeUpdate::At(Timestamp {
            sec,
            nsec: nsec as u32,
        })),
        _ => Err(Errno::EINVAL),
    }
}

fn set_times(task: &Task, path: &Path, times: Option<FileTimes<TimeSpec>>) -> SysResult {
    let (atime, mtime) = match times {
        None => (TimeUpdate::Now, TimeUpdate::Now),
        Some(times) => (new_time(times.accessed)?, new_time(times.modified)?),
    };
    ops::set_times(path, atime, mtime, &task.fs_cred()).map(|()| 0)
}

fn set_times_at(
    task: &Task,
    dirfd: Fd,
    name: UserAddr,
    flags: u32,
    times: Option<FileTimes<TimeSpec>>,
) -> SysResult {
    // Without a name it is the descriptor's file, as futimens(3) has it.
    let path = if name.is_null() && dirfd != Fd::CWD {
        check_flags(flags, 0)?;
        task.files().get_io(dirfd)?.path().clone()
    } else {
        check_flags(flags, sys::AT_SYMLINK_NOFOLLOW | sys::AT_EMPTY_PATH)?;
        lookup_at(task, dirfd, name, flags)?
    };
    set_times(task, &path, times)
}

/// `utimensat(2)`: sets the times of a file in nanoseconds, from a directory on.
pub fn sys_utimensat(
    task: &Task,
    dirfd: Fd,
    name: UserAddr,
    times: UserPtr<FileTimes<TimeSpec>>,
    flags: u32,
) -> SysResult {
    let times = times.read_optional()?;
    // Then there is nothing to do, and nothing else is looked at.
    if times.is_some_and(|times| {
        [times.accessed.nsec, times.modified.nsec] == [i64::from(sys::UTIME_OMIT); 2]
    }) {
        return Ok(0);
    }
    set_times_at(task, dirfd, name, flags, times)
}

/// Microseconds to nanoseconds.
fn from_timevals(times: FileTimes<TimeVal>) -> Result<FileTimes<TimeSpec>, Errno> {
    let micros = 0..1_000_000;
    if !micros.contains(&times.accessed.usec) || !micros.contains(&times.modified.usec) {
        return Err(Errno::EINVAL);
    }
    let [accessed, modified] =
        [times.accessed, times.modified].map(|TimeVal { sec, usec }| TimeSpec {
            sec,
            nsec: usec * 1000,
        });
    Ok(FileTimes { accessed, modified })
}

/// `futimesat(2)`: sets the times of a file in microseconds, from a directory on.
pub fn sys_futimesat(
    task: &Task,
    dirfd: Fd,
    name: UserAddr,
    times: UserPtr<FileTimes<TimeVal>>,
) -> SysResult {
    let times = times.read_optional()?.map(from_timevals).transpose()?;
    set_times_at(task, dirfd, name, 0, times)
}

/// `utimes(2)`: sets the times of a path in microseconds.
pub fn sys_utimes(task: &Task, name: UserAddr, times: UserPtr<FileTimes<TimeVal>>) -> SysResult {
    sys_futimesat(task, Fd::CWD, name, times)
}

/// `utime(2)`: sets the times of a path in seconds.
pub fn sys_utime(task: &Task, name: UserAddr, times: UserPtr<UTimBuf>) -> SysResult {
    let times = times.read_optional()?.map(|times| {
        let [accessed, modified] =
            [times.accessed_sec, times.modified_sec].map(|sec| TimeSpec { sec, nsec: 0 });
        FileTimes { accessed, modified }
    });
    set_times(task, &lookup_at(task, Fd::CWD, name, 0)?, times)
}

/// `umask(2)`: sets the file creation mask; returns the one before.
pub fn sys_umask(task: &Task, mask: u32) -> SysResult {
    Ok(task.fs().set_umask(mask) as usize)
}

/// `getcwd(2)`: stores the path of the working directory; returns its length with NUL.
pub fn sys_getcwd(task: &Task, buf: UserAddr, size: usize) -> SysResult {
    let context = task.fs();
    let cwd = context.cwd();
    if cwd.dentry().is_removed() {
        return Err(Errno::ENOENT);
    }
    let mut text = match cwd.to_bytes_below(&context.root()) {
        Some(text) => text,
        None => [&b"(unreachable)"[..], &cwd.to_bytes(None)].concat(),
    };
    text.push(0);
    if text.len() > size {
        return Err(Errno::ERANGE);
    }
    uaccess::write_bytes(buf, &text)?;
    Ok(text.len())
}

/// Makes a directory the working directory, if the caller may search it.
fn set_cwd(task: &Task, path: Path) -> SysResult {
    if path.inode().kind() != FileType::Directory {
        return Err(Errno::ENOTDIR);
    }
    task.fs_cred().check_inode(&**path.inode(), Access::EXEC)?;
    task.fs().set_cwd(path);
    Ok(0)
}

/// `chdir(2)`: changes the working directory to a path.
pub fn sys_chdir(task: &Task, name: UserAddr) -> SysResult {
    set_cwd(task, lookup_at(task, Fd::CWD, name, 0)?)
}

/// `fchdir(2)`: changes the working directory to an open directory.
pub fn sys_fchdir(task: &Task, fd: Fd) -> SysResult {
    set_cwd(task, task.files().get(fd)?.path().clone())
}

/// `chroot(2)`: changes the root directory.
pub fn sys_chroot(task: &Task, name: UserAddr) -> SysResult {
    let path = lookup_at(task, Fd::CWD, name, 0)?;
    if path.inode().kind() != FileType::Directory {
        return Err(Errno::ENOTDIR);
    }
    let cred = task.fs_cred();
    cred.check_inode(&**path.inode(), Access::EXEC)?;
    if !cred.capable(sys::CAP_SYS_CHROOT) {
        return Err(Errno::EPERM);
    }
    task.fs().set_root(path);
    Ok(0)
}

/// Looks up a path that is in the kernel already, for `execve(2)`.
///
/// # Errors
/// Those of a walk.
pub(crate) fn lookup_exec(
    task: &Task,
    dirfd: Fd,
    name: &[u8],
    flags: LookupFlags,
) -> Result<Path, Errno> {
    let cred = task.fs_cred();
    walk_at(task, &cred, dirfd, name)?.lookup(name, flags)
}
