//! What holds a file's contents: `ftruncate(2)`, `fallocate(2)`, `fsync(2)`, `fadvise64(2)` and
//! their relatives, `memfd_create(2)`.

use abi::errno::Errno;
use fs::attributes::FileAttributes;
use fs::{File, FileType, OpenFlags, SetAttr};
use linux_raw_sys::general as sys;
use uapi::fd::Fd;
use uapi::user_addr::UserAddr;

use crate::mm::mmap;
use crate::process::rlimit::check_size;
use crate::state::fdtable::CloseOnExec;
use crate::{SysResult, Task, uaccess};

/// `sync(2)`: writes everything back.
pub fn sys_sync(_: &Task) -> SysResult {
    fs::block::writeback::sync_all();
    Ok(0)
}

/// `fsync(2)`: writes a file's contents and attributes back.
pub fn sys_fsync(task: &Task, fd: Fd) -> SysResult {
    task.file_io(fd)?.ops().sync().map(|()| 0)
}

/// `fdatasync(2)`: writes a file's contents back.
pub fn sys_fdatasync(task: &Task, fd: Fd) -> SysResult {
    sys_fsync(task, fd)
}

/// `syncfs(2)`: writes the file system of a file back. A block special file's is that of its node,
/// not what is on it.
pub fn sys_syncfs(task: &Task, fd: Fd) -> SysResult {
    let file = task.file_io(fd)?;
    let done = file.path().mount().fs().sync();
    let told = file.ops().check_file_system_errors();
    done.and(told).map(|()| 0)
}

/// `sync_file_range(2)`: writes a range of a file back.
pub fn sys_sync_file_range(task: &Task, fd: Fd, from: i64, len: i64, flags: u32) -> SysResult {
    const KNOWN: u32 = sys::SYNC_FILE_RANGE_WAIT_BEFORE
        | sys::SYNC_FILE_RANGE_WRITE
        | sys::SYNC_FILE_RANGE_WAIT_AFTER;
    let file = task.file_io(fd)?;
    let end = from.checked_add(len);
    if flags & !KNOWN != 0 || from < 0 || end.is_none_or(|end| end < from) {
        return Err(Errno::EINVAL);
    }
    match file.inode().kind() {
        FileType::Fifo | FileType::Socket | FileType::Char => Err(Errno::ESPIPE),
        _ => {
            // A length of 0 is everything from there on.
            let end = end.filter(|_| len > 0).unwrap_or(i64::MAX);
            file.ops().sync_range(from as u64..end as u64).map(|()| 0)
        }
    }
}

/// `fadvise64(2)`: of files in memory the advice is checked and ignored, as by Linux
/// (`mm/fadvise.c`).
pub fn sys_fadvise64(task: &Task, fd: Fd, _offset: i64, len: i64, advice: u32) -> SysResult {
    if task.file_io(fd)?.inode().kind() == FileType::Fifo {
        return Err(Errno::ESPIPE);
    }
    if len < 0 || advice > sys::POSIX_FADV_NOREUSE {
        Err(Errno::EINVAL)
    } else {
        Ok(0)
    }
}

/// `readahead(2)`: everything is in memory.
pub fn sys_readahead(task: &Task, fd: Fd, _offset: i64, len: i64) -> SysResult {
    let file = task.file_io(fd)?;
    if !file.flags().is_readable() {
        return Err(Errno::EBADF);
    }
    if file.inode().kind() == FileType::Regular && len >= 0 {
        Ok(0)
    } else {
        Err(Errno::EINVAL)
    }
}

/// `ftruncate(2)`: sets the length of an open file, in bytes.
pub fn sys_ftruncate(task: &Task, fd: Fd, size: i64) -> SysResult {
    let size = u64::try_from(size).map_err(|_| Errno::EINVAL)?;
    let file = task.file_io(fd)?;
    if !file.flags().is_writable() || file.inode().kind() != FileType::Regular {
        return Err(Errno::EINVAL);
    }
    let attributes = file.inode().permissions().attributes;
    attributes.refuse(FileAttributes::APPEND)?;
    check_size(task, &**file.inode(), size)?;
    file.inode().truncate(size)?;
    fs::inotify::notify_path(file.path(), sys::IN_MODIFY);
    Ok(0)
}

/// Refuses modes of `fallocate(2)` that there are not, or that do not go together.
fn check_fallocate_mode(mode: u32) -> Result<(), Errno> {
    const PUNCH: u32 = sys::FALLOC_FL_PUNCH_HOLE;
    const ALL: u32 = PUNCH
        | sys::FALLOC_FL_KEEP_SIZE
        | sys::FALLOC_FL_COLLAPSE_RANGE
        | sys::FALLOC_FL_ZERO_RANGE
        | sys::FALLOC_FL_INSERT_RANGE
        | sys::FALLOC_FL_UNSHARE_RANGE;
    let has = |flag: u32| mode & flag != 0;
    if mode & !ALL != 0
        || has(PUNCH) && (has(sys::FALLOC_FL_ZERO_RANGE) || !has(sys::FALLOC_FL_KEEP_SIZE))
    {
        return Err(Errno::EOPNOTSUPP);
    }
    let alone = |flag: u32, beside: u32| !has(flag) || mode & !(flag | beside) == 0;
    let fits = alone(sys::FALLOC_FL_COLLAPSE_RANGE, 0)
        && alone(sys::FALLOC_FL_INSERT_RANGE, 0)
        && alone(sys::FALLOC_FL_UNSHARE_RANGE, sys::FALLOC_FL_KEEP_SIZE);
    if fits { Ok(()) } else { Err(Errno::EINVAL) }
}

/// `fallocate(2)`: allocates, frees or zeroes a range of a file.
pub fn sys_fallocate(task: &Task, fd: Fd, mode: u32, offset: i64, len: i64) -> SysResult {
    allocate(task, &*task.file_io(fd)?, mode, offset, len)
}

/// Allocates, frees or zeroes a range of an open file, as [`sys_fallocate`].
///
/// # Errors
/// Those of `fallocate(2)`.
pub(super) fn allocate(task: &Task, file: &File, mode: u32, offset: i64, len: i64) -> SysResult {
    let (Ok(offset), Ok(len @ 1..)) = (u64::try_from(offset), u64::try_from(len)) else {
        return Err(Errno::EINVAL);
    };
    check_fallocate_mode(mode)?;
    if !file.flags().is_writable() {
        return Err(Errno::EBADF);
    }
    let attributes = file.inode().permissions().attributes;
    attributes.refuse(FileAttributes::IMMUTABLE)?;
    if mode & !sys::FALLOC_FL_KEEP_SIZE != 0 {
        attributes.refuse(FileAttributes::APPEND)?;
    }
    match file.inode().kind() {
        FileType::Regular if i64::try_from(offset.saturating_add(len)).is_err() => {
            Err(Errno::EFBIG)
        }
        FileType::Regular => {
            if mode & !sys::FALLOC_FL_KEEP_SIZE == 0 {
                check_size(task, &**file.inode(), offset.saturating_add(len))?;
            }
            file.inode().fallocate(mode, offset, len)?;
            fs::inotify::notify_path(file.path(), sys::IN_MODIFY);
            Ok(0)
        }
        FileType::Fifo => Err(Errno::ESPIPE),
        FileType::Directory => Err(Errno::EISDIR),
        _ => Err(Errno::ENODEV),
    }
}

/// Makes the caller the owner of a new file without a name.
///
/// # Errors
/// None that there is.
pub(crate) fn chown_to_caller(task: &Task, inode: &dyn fs::Inode) -> Result<(), Errno> {
    let cred = task.fs_cred();
    inode.set_attr(&SetAttr {
        uid: Some(cred.uid),
        gid: Some(cred.gid),
        ..SetAttr::default()
    })
}

/// The longest name of a file that is in memory only; with what Linux puts before it, it is as long
/// as a name can be.
const MAX_NAME: usize = 249;

/// `memfd_create(2)`: makes a file in memory that has no path.
pub fn sys_memfd_create(task: &Task, name: UserAddr, flags: u32) -> SysResult {
    let known = sys::MFD_CLOEXEC | sys::MFD_ALLOW_SEALING | sys::MFD_NOEXEC_SEAL | sys::MFD_EXEC;
    let large = if flags & sys::MFD_HUGETLB == 0 {
        0
    } else {
        sys::MFD_HUGETLB | sys::MFD_HUGE_MASK << sys::MFD_HUGE_SHIFT
    };
    if flags & !(known | large) != 0 {
        return Err(Errno::EINVAL);
    }
    let name = uaccess::read_cstr(name, MAX_NAME + 1).map_err(|e| {
        if e == Errno::ENAMETOOLONG {
            Errno::EINVAL
        } else {
            e
        }
    })?;
    if large != 0 {
        let refused = mmap::no_reserved_pages(flags);
        return Err(if refused == Errno::EINVAL {
            Errno::ENODEV
        } else {
            refused
        });
    }
    if flags & sys::MFD_NOEXEC_SEAL != 0 && flags & sys::MFD_EXEC != 0 {
        return Err(Errno::EINVAL);
    }
    // Without leave to seal, the one seal is that there are no more.
    let (seals, mode) = if flags & sys::MFD_NOEXEC_SEAL != 0 {
        (sys::F_SEAL_EXEC, 0o666)
    } else {
        (
            if flags & sys::MFD_ALLOW_SEALING != 0 {
                0
            } else {
                sys::F_SEAL_SEAL
            },
            0o777,
        )
    };
    // As on Linux the descriptor does not keep the file from being run.
    let path = fs::ramfs::RamFs::memfd(&alloc::string::String::from_utf8_lossy(&name), mode, seals);
    chown_to_caller(task, &**path.inode())?;
    task.files().install(
        File::from_inode(path, OpenFlags::RDWR | OpenFlags::LARGEFILE, None),
        CloseOnExec::when(flags & sys::MFD_CLOEXEC != 0),
    )
}
