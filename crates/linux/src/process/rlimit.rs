//! Limits in force: on memory, on the size of files, on the number of threads.

use core::sync::atomic::Ordering;

use abi::errno::Errno;
use fs::{File, FileType, Inode, OpenFlags, Whence};
use linux_raw_sys::general as sys;
use uapi::siginfo::SigInfo;
use vm::AddressSpace;

use crate::Task;
use crate::process::{process_table, send_signal};
use crate::state::rlimit::{self, Resource, Rlimits};

/// Tells an address space its limits.
pub(crate) fn apply_memory_limits(limits: &Rlimits, space: &AddressSpace) {
    space.set_limits(
        limits[Resource::AddressSpace].soft_size(),
        limits[Resource::Stack].soft_size(),
    );
}

/// Number of bytes of a transfer to a file that `RLIMIT_FSIZE` allows, at `offset` or (`None`) at
/// the file position.
///
/// # Errors
/// `EFBIG` for nothing at all, which `SIGXFSZ` tells, too.
#[inline(always)]
pub(crate) fn write_limit(
    task: &Task,
    file: &File,
    offset: Option<u64>,
    len: usize,
) -> Result<usize, Errno> {
    let limit = task.process().file_size_limit.load(Ordering::Relaxed);
    if limit == u64::MAX {
        Ok(len)
    } else {
        limited_write(task, file, offset, len, limit)
    }
}

#[cold]
fn limited_write(
    task: &Task,
    file: &File,
    offset: Option<u64>,
    len: usize,
    limit: u64,
) -> Result<usize, Errno> {
    if file.inode().kind() != FileType::Regular || len == 0 {
        return Ok(len);
    }
    let at = match offset {
        Some(offset) => offset,
        None if file.flags().contains(OpenFlags::APPEND) => file.metadata().size,
        None => file.seek(Whence::Current, 0)?,
    };
    if at >= limit {
        return Err(efbig(task));
    }
    Ok(usize::try_from(limit - at).map_or(len, |room| room.min(len)))
}

/// Sends `SIGXFSZ` to the caller and returns `EFBIG`.
fn efbig(task: &Task) -> Errno {
    send_signal::send_task(task, SigInfo::kernel(sys::SIGXFSZ as i32));
    Errno::EFBIG
}

/// Whether `RLIMIT_FSIZE` lets a file get this size; what is not made longer by it may be longer
/// than the limit.
///
/// # Errors
/// `EFBIG`, which `SIGXFSZ` tells, too.
pub(crate) fn check_size(task: &Task, inode: &dyn Inode, size: u64) -> Result<(), Errno> {
    let limit = task.process().file_size_limit.load(Ordering::Relaxed);
    if size <= limit || size <= inode.metadata().size {
        Ok(())
    } else {
        Err(efbig(task))
    }
}

/// Whether there may be one more thread, with the kernel's memory for it, and the user may have it.
///
/// # Errors
/// `EAGAIN`.
pub(crate) fn check_threads(task: &Task) -> Result<(), Errno> {
    let all = process_table::thread_count();
    if all >= rlimit::max_threads() || !guard::mem::has_kernel_room() {
        return Err(Errno::EAGAIN);
    }
    let limit = task.process().limits.lock()[Resource::Processes].soft;
    let cred = task.cred();
    let free = cred.user.real == 0 || cred.has_sys_admin() || cred.capable(sys::CAP_SYS_RESOURCE);
    // No user has more than there are.
    if (all as u64) < limit || free {
        return Ok(());
    }
    let own = process_table::processes_where(|_, node| {
        node.process.credentials().user.real == cred.user.real
    });
    // Those that have ended count until they are waited for.
    let threads: usize = own.iter().map(|process| process.tasks().len().max(1)).sum();
    if (threads as u64) < limit {
        Ok(())
    } else {
        Err(Errno::EAGAIN)
    }
}
