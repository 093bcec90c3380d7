//! Files by handles, which outlast names: `name_to_handle_at(2)`, `open_by_handle_at(2)`.

use abi::errno::Errno;
use fs::{OpenFlags, ops};
use linux_raw_sys::general as sys;
use uapi::fd::Fd;
use uapi::user_addr::UserAddr;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::files::namei::lookup_at;
use crate::state::fdtable::CloseOnExec;
use crate::uaccess::{self, UserPtr};
use crate::{SysResult, Task};

/// `struct file_handle` up to its bytes.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct FileHandle {
    bytes: u32,
    kind: i32,
}

/// The bytes: a generation, always 0, and the two halves of the file's number.
type Body = [u32; 3];

const BYTES: u32 = size_of::<Body>() as u32;
/// Type of a handle, as Linux' `tmpfs` has it.
const KIND: i32 = 1;
/// More bytes than any handle has.
const MAX_BYTES: u32 = 128;

fn body(handle: UserPtr<FileHandle>) -> UserPtr<Body> {
    UserPtr::new(handle.addr().wrapping_add(size_of::<FileHandle>()))
}

/// `name_to_handle_at(2)`: stores a handle of a file, which does not depend on its path.
pub fn sys_name_to_handle_at(
    task: &Task,
    dirfd: Fd,
    name: UserAddr,
    handle: UserPtr<FileHandle>,
    mount: UserPtr<i32>,
    flags: u32,
) -> SysResult {
    if flags & !(sys::AT_SYMLINK_FOLLOW | sys::AT_EMPTY_PATH) != 0 {
        return Err(Errno::EINVAL);
    }
    let follow = if flags & sys::AT_SYMLINK_FOLLOW != 0 {
        0
    } else {
        sys::AT_SYMLINK_NOFOLLOW
    };
    let path = lookup_at(task, dirfd, name, flags & sys::AT_EMPTY_PATH | follow)?;
    let number = path
        .inode()
        .clone()
        .file_handle()
        .ok_or(Errno::EOPNOTSUPP)?;
    let room = handle.read()?.bytes;
    if room > MAX_BYTES {
        return Err(Errno::EINVAL);
    }
    mount.write(&(path.mount().id() as i32))?;
    let fits = room >= BYTES;
    handle.write(&FileHandle {
        bytes: BYTES,
        kind: if fits { KIND } else { 0xff },
    })?;
    if !fits {
        return Err(Errno::EOVERFLOW);
    }
    body(handle).write(&[0, number as u32, (number >> 32) as u32])?;
    Ok(0)
}

/// `open_by_handle_at(2)`: of the file system that `dirfd` is in.
pub fn sys_open_by_handle_at(
    task: &Task,
    dirfd: Fd,
    handle: UserPtr<FileHandle>,
    flags: u32,
) -> SysResult {
    if !task.cred().capable(sys::CAP_DAC_READ_SEARCH) {
        return Err(Errno::EPERM);
    }
    let header = handle.read()?;
    if header.bytes == 0 || header.bytes > MAX_BYTES {
        return Err(Errno::EINVAL);
    }
    let mut bytes = [0; MAX_BYTES as usize];
    let bytes = &mut bytes[..header.bytes as usize];
    uaccess::read_bytes(body(handle).addr(), bytes)?;
    let mount = match dirfd {
        Fd::CWD => task.fs().cwd().mount().clone(),
        fd => task.file_io(fd)?.path().mount().clone(),
    };
    // As Linux' `tmpfs` has it: of a longer one the beginning counts, of any kind.
    let (body, _) = Body::read_from_prefix(bytes).map_err(|_| Errno::ESTALE)?;
    let [generation, low, high] = body;
    let number = u64::from(high) << 32 | u64::from(low);
    let path = mount
        .by_handle(number)
        .filter(|_| generation == 0)
        .ok_or(Errno::ESTALE)?;
    let flags = OpenFlags::from_bits_truncate(flags).checked()?;
    let file = ops::dentry_open(path, flags, &task.fs_cred())?;
    task.files().install(file, CloseOnExec::of_flags(flags))
}
