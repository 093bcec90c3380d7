//! What a process says about the layout of its memory (`PR_SET_MM`), for those who restore one:
//! `/proc` and `brk(2)` believe it.

use core::ops::Range;

use abi::errno::Errno;
use linux_raw_sys::{general as sys, prctl as pr};
use uapi::fd::Fd;
use uapi::prctl_mm_map::{NO_FILE, PrctlMmMap};

use crate::process::Process;
use crate::process::image::mm_map_of;
use crate::process_control::exec;
use crate::state::rlimit::Resource;
use crate::uaccess::{self, UserPtr};
use crate::{SysResult, Task};

/// Largest auxiliary vector, in bytes.
const AUX: usize = 48 * size_of::<u64>();

/// Puts a layout in force.
fn apply(layout: &PrctlMmMap, process: &Process) -> Result<(), Errno> {
    let range = |start: u64, end: u64| -> Range<usize> { start as usize..end as usize };
    process
        .require_space()?
        .set_brk_bounds(range(layout.start_brk, layout.brk));
    let mut image = process.image.lock();
    image.code = range(layout.start_code, layout.end_code);
    image.data = range(layout.start_data, layout.end_data);
    image.stack = layout.start_stack as usize;
    image.args = range(layout.arg_start, layout.arg_end);
    image.env = range(layout.env_start, layout.env_end);
    Ok(())
}

/// Sets one address of the memory layout, the auxiliary vector or the program file (`PR_SET_MM`).
pub(crate) fn set(task: &Task, what: u32, at: usize, len: usize, zero: usize) -> SysResult {
    let has_length = matches!(
        what,
        pr::PR_SET_MM_AUXV | pr::PR_SET_MM_MAP | pr::PR_SET_MM_MAP_SIZE
    );
    if zero != 0 || (len != 0 && !has_length) {
        return Err(Errno::EINVAL);
    }
    match what {
        pr::PR_SET_MM_MAP_SIZE => {
            UserPtr::<u32>::new(at.into()).write(&(size_of::<PrctlMmMap>() as u32))?;
            return Ok(0);
        }
        pr::PR_SET_MM_MAP => return set_all(task, at, len),
        _ if !task.cred().capable(sys::CAP_SYS_RESOURCE) => return Err(Errno::EPERM),
        pr::PR_SET_MM_EXE_FILE => return set_executable(task, Fd::new(at as i32)),
        pr::PR_SET_MM_AUXV => return set_auxiliary(task, at, len),
        _ => {}
    }
    let process = task.process();
    let mut layout = mm_map_of(process)?;
    let field = match what {
        pr::PR_SET_MM_START_CODE => &mut layout.start_code,
        pr::PR_SET_MM_END_CODE => &mut layout.end_code,
        pr::PR_SET_MM_START_DATA => &mut layout.start_data,
        pr::PR_SET_MM_END_DATA => &mut layout.end_data,
        pr::PR_SET_MM_START_STACK => &mut layout.start_stack,
        pr::PR_SET_MM_START_BRK => &mut layout.start_brk,
        pr::PR_SET_MM_BRK => &mut layout.brk,
        pr::PR_SET_MM_ARG_START => &mut layout.arg_start,
        pr::PR_SET_MM_ARG_END => &mut layout.arg_end,
        pr::PR_SET_MM_ENV_START => &mut layout.env_start,
        pr::PR_SET_MM_ENV_END => &mut layout.env_end,
        _ => return Err(Errno::EINVAL),
    };
    *field = at as u64;
    layout.check(data_limit(process))?;
    // What programs read there has to be somewhere.
    let strings = pr::PR_SET_MM_ARG_START..=pr::PR_SET_MM_ENV_END;
    if (what == pr::PR_SET_MM_START_STACK || strings.contains(&what))
        && process
            .require_space()?
            .find_vma_info(|area| area.range.end > at)
            .is_none()
    {
        return Err(Errno::EFAULT);
    }
    apply(&layout, process)?;
    Ok(0)
}

fn data_limit(process: &Process) -> u64 {
    process.limits.lock()[Resource::Data].soft
}

fn set_all(task: &Task, at: usize, len: usize) -> SysResult {
    if len != size_of::<PrctlMmMap>() {
        return Err(Errno::EINVAL);
    }
    let process = task.process();
    let layout = UserPtr::<PrctlMmMap>::new(at.into()).read()?;
    layout.check(data_limit(process))?;
    let auxiliary = match layout.auxv_size as usize {
        0 => None,
        len if layout.auxv == 0 || len > AUX => return Err(Errno::EINVAL),
        len => Some(read_auxiliary(layout.auxv as usize, len)?),
    };
    if layout.exe_fd != NO_FILE {
        let cred = task.cred();
        if !cred.has_sys_admin() && !cred.capable(sys::CAP_CHECKPOINT_RESTORE) {
            return Err(Errno::EPERM);
        }
        set_executable(task, Fd::new(layout.exe_fd.cast_signed()))?;
    }
    apply(&layout, process)?;
    if let Some(bytes) = auxiliary {
        process.image.lock().aux = bytes.into();
    }
    Ok(0)
}

/// An auxiliary vector, of which the last entry is the end.
fn read_auxiliary(at: usize, len: usize) -> Result<[u8; AUX], Errno> {
    let mut bytes = [0; AUX];
    uaccess::read_bytes(at.into(), bytes.get_mut(..len).ok_or(Errno::EINVAL)?)?;
    bytes[AUX - 2 * size_of::<u64>()..].fill(0);
    Ok(bytes)
}

fn set_auxiliary(task: &Task, at: usize, len: usize) -> SysResult {
    let bytes = read_auxiliary(at, len)?;
    task.process().image.lock().aux = bytes.into();
    Ok(0)
}

/// The process runs another file from now on, as far as others see; not while the old one is still
/// mapped.
fn set_executable(task: &Task, fd: Fd) -> SysResult {
    let process = task.process();
    let file = task.file(fd)?;
    let refused = |e: Errno| {
        if e == Errno::ETXTBSY {
            Errno::EACCES
        } else {
            e
        }
    };
    let running = exec::ExecFile::new(task, file)
        .map_err(refused)?
        .into_running();
    if let Some(old) = process.executable() {
        let old = old.inode().metadata();
        if process
            .require_space()?
            .find_vma_info(|area| (area.dev, area.ino) == (old.dev, old.ino))
            .is_some()
        {
            return Err(Errno::EBUSY);
        }
    }
    process.image.lock().executable = Some(running);
    Ok(0)
}
