//! What holds a file's contents: `ftruncate(2)`, `fallocate(2)`, `fsync(2)`, `fadvise64(2)` and their relatives, `memfd_create(2)`.

use crate::{SysResult, Task, limits, uaccess};
use abi::errno::Errno;
use fs::{File, FileType, OpenFlags};
use linux_raw_sys::general as sys;

/// `sync(2)`: everything is in memory.
pub fn sys_sync(_: &Task) -> SysResult {
    Ok(0)
}

/// `fsync(2)`
pub fn sys_fsync(task: &Task, fd: i32) -> SysResult {
    task.file_io(fd)?.ops().sync().map(|()| 0)
}

/// `fdatasync(2)`
pub fn sys_fdatasync(task: &Task, fd: i32) -> SysResult {
    sys_fsync(task, fd)
}

/// `syncfs(2)`
pub fn sys_syncfs(task: &Task, fd: i32) -> SysResult {
    task.file_io(fd).map(|_| 0)
}

/// `sync_file_range(2)`
pub fn sys_sync_file_range(task: &Task, fd: i32, from: i64, len: i64, _flags: u32) -> SysResult {
    if from < 0 || len < 0 {
        return Err(Errno::EINVAL);
    }
    seekable(&*task.file_io(fd)?).map(|()| 0)
}

fn seekable(file: &File) -> Result<(), Errno> {
    match file.inode().kind() {
        FileType::Fifo | FileType::Socket | FileType::Char => Err(Errno::ESPIPE),
        _ => Ok(()),
    }
}

/// `fadvise64(2)`: of files in memory the advice is checked and ignored, as by Linux (`mm/fadvise.c`).
pub fn sys_fadvise64(task: &Task, fd: i32, _offset: i64, len: i64, advice: u32) -> SysResult {
    let file = task.file_io(fd)?;
    if len < 0 || advice > sys::POSIX_FADV_NOREUSE {
        return Err(Errno::EINVAL);
    }
    if file.inode().kind() == FileType::Fifo { Err(Errno::ESPIPE) } else { Ok(0) }
}

/// `readahead(2)`: everything is in memory.
pub fn sys_readahead(task: &Task, fd: i32, _offset: i64, _len: usize) -> SysResult {
    let file = task.file_io(fd)?;
    if !file.flags().readable() {
        return Err(Errno::EBADF);
    }
    if file.inode().kind() == FileType::Regular { Ok(0) } else { Err(Errno::EINVAL) }
}

/// `ftruncate(2)`
pub fn sys_ftruncate(task: &Task, fd: i32, size: i64) -> SysResult {
    let file = task.file_io(fd)?;
    let size = u64::try_from(size).map_err(|_| Errno::EINVAL)?;
    if !file.flags().writable() || file.inode().kind() != FileType::Regular {
        return Err(Errno::EINVAL);
    }
    limits::check_size(task, &**file.inode(), size)?;
    file.inode().truncate(size)?;
    fs::inotify::happened_at(file.path(), sys::IN_MODIFY);
    Ok(0)
}

/// `fallocate(2)`
pub fn sys_fallocate(task: &Task, fd: i32, mode: u32, offset: i64, len: i64) -> SysResult {
    let file = task.file_io(fd)?;
    let (Ok(offset), Ok(len @ 1..)) = (u64::try_from(offset), u64::try_from(len)) else { return Err(Errno::EINVAL) };
    if !file.flags().writable() {
        return Err(Errno::EBADF);
    }
    match file.inode().kind() {
        FileType::Regular => {
            if mode & !sys::FALLOC_FL_KEEP_SIZE == 0 {
                limits::check_size(task, &**file.inode(), offset.saturating_add(len))?;
            }
            file.inode().fallocate(mode, offset, len)?;
            fs::inotify::happened_at(file.path(), sys::IN_MODIFY);
            Ok(0)
        }
        FileType::Fifo => Err(Errno::ESPIPE),
        FileType::Directory => Err(Errno::EISDIR),
        _ => Err(Errno::ENODEV),
    }
}

/// `memfd_create(2)`
pub fn sys_memfd_create(task: &Task, name: usize, flags: u32) -> SysResult {
    if flags & sys::MFD_HUGETLB != 0 {
        return Err(crate::mm::no_reserved_pages(flags));
    }
    if flags & !(sys::MFD_CLOEXEC | sys::MFD_ALLOW_SEALING | sys::MFD_NOEXEC_SEAL | sys::MFD_EXEC) != 0 {
        return Err(Errno::EINVAL);
    }
    let name = uaccess::read_cstr(name, 250)?;
    if flags & sys::MFD_NOEXEC_SEAL != 0 && flags & sys::MFD_EXEC != 0 {
        return Err(Errno::EINVAL);
    }
    // Without leave to seal, the one seal is that there are no more.
    let (seals, mode) = if flags & sys::MFD_NOEXEC_SEAL != 0 {
        (sys::F_SEAL_EXEC, 0o666)
    } else {
        (if flags & sys::MFD_ALLOW_SEALING != 0 { 0 } else { sys::F_SEAL_SEAL }, 0o777)
    };
    // As on Linux the descriptor does not keep the file from being run.
    let path = fs::ramfs::RamFs::memfd(&alloc::string::String::from_utf8_lossy(&name), mode, seals);
    task.files().install(File::of_inode(path, OpenFlags::RDWR, None), flags & sys::MFD_CLOEXEC != 0)
}
