//! Settings of a process or thread: `prctl(2)`. Those of what there is not (other processors,
//! groups of hyperthreads, counters of events) are `EINVAL`, as in a kernel that was built without
//! them.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use abi::errno::Errno;
use linux_raw_sys::{general as sys, prctl as pr};
use uapi::siginfo;

use crate::cred::capability;
use crate::process::process_table;
use crate::process_control::prctl_mm;
use crate::seccomp::{self, syscall_user_dispatch};
use crate::state::credentials::{Credentials, KEEP_CAPS};
use crate::state::speculation::{Means, SpeculationKind};
use crate::uaccess::{self, UserPtr};
use crate::{SysResult, Task};

/// Length of a thread's name with its NUL.
const TASK_COMM_LEN: usize = 16;
/// The most bytes of a name of memory, with its NUL.
const MEMORY_NAME: usize = 80;

/// `prctl(2)`: changes or asks for properties of thread and process, by `PR_*`.
pub fn sys_prctl(
    task: &Task,
    option: u32,
    arg: usize,
    arg3: usize,
    arg4: usize,
    arg5: usize,
) -> SysResult {
    let rest_is_zero = arg3 == 0 && arg4 == 0 && arg5 == 0;
    match option {
        pr::PR_SET_NAME | pr::PR_GET_NAME => name(task, option, arg),
        pr::PR_CAPBSET_READ => capability::is_in_bounding(task, arg),
        pr::PR_CAPBSET_DROP => capability::drop_from_bounding(task, arg),
        pr::PR_CAP_AMBIENT if arg4 == 0 && arg5 == 0 => capability::ambient(task, arg, arg3),
        pr::PR_GET_KEEPCAPS
        | pr::PR_SET_KEEPCAPS
        | pr::PR_GET_SECUREBITS
        | pr::PR_SET_SECUREBITS => secure(task, option, arg),
        pr::PR_SET_NO_NEW_PRIVS if arg == 1 && rest_is_zero => {
            task.set_cred(Credentials {
                no_new_privs: true,
                ..(*task.cred()).clone()
            });
            Ok(0)
        }
        pr::PR_GET_NO_NEW_PRIVS if arg == 0 && rest_is_zero => {
            Ok(usize::from(task.cred().no_new_privs))
        }
        pr::PR_SET_PDEATHSIG
        | pr::PR_GET_PDEATHSIG
        | pr::PR_SET_DUMPABLE
        | pr::PR_GET_DUMPABLE
        | pr::PR_SET_CHILD_SUBREAPER
        | pr::PR_GET_CHILD_SUBREAPER => process(task, option, arg),
        pr::PR_GET_TIMERSLACK => Ok(task.prctl.lock().timer_slack),
        pr::PR_SET_TIMERSLACK => {
            task.prctl.lock().set_timer_slack(arg);
            Ok(0)
        }
        // There is nothing that counts events of a task.
        pr::PR_TASK_PERF_EVENTS_DISABLE | pr::PR_TASK_PERF_EVENTS_ENABLE => Ok(0),
        // Times are measured, which is at least as good as what this is about.
        pr::PR_GET_TIMING => Ok(pr::PR_TIMING_STATISTICAL as usize),
        pr::PR_SET_TIMING if arg == pr::PR_TIMING_STATISTICAL as usize => Ok(0),
        pr::PR_MCE_KILL if arg4 == 0 && arg5 == 0 => set_machine_checks(task, arg, arg3),
        pr::PR_MCE_KILL_GET if arg == 0 && rest_is_zero => Ok(task.prctl.lock().mce_kill as usize),
        pr::PR_SET_IO_FLUSHER | pr::PR_GET_IO_FLUSHER => {
            io_flusher(task, option, arg, rest_is_zero)
        }
        pr::PR_GET_SPECULATION_CTRL if rest_is_zero => speculation(task, arg),
        pr::PR_SET_SPECULATION_CTRL if arg4 == 0 && arg5 == 0 => set_speculation(task, arg, arg3),
        pr::PR_SET_MM => prctl_mm::set(task, arg as u32, arg3, arg4, arg5),
        pr::PR_SET_VMA if arg == pr::PR_SET_VMA_ANON_NAME as usize => {
            name_memory(task, arg3, arg4, arg5)
        }
        pr::PR_SET_SYSCALL_USER_DISPATCH => syscall_user_dispatch::set(task, arg, arg3, arg4, arg5),
        pr::PR_GET_TID_ADDRESS => {
            UserPtr::<u64>::new(arg.into())
                .write(&(task.clear_child_tid.load(Ordering::Relaxed) as u64))?;
            Ok(0)
        }
        pr::PR_GET_TSC => {
            let readable = task.thread().with_fpu(|state| state.has_tsc()) != Some(false);
            UserPtr::<u32>::new(arg.into()).write(if readable {
                &pr::PR_TSC_ENABLE
            } else {
                &pr::PR_TSC_SIGSEGV
            })?;
            Ok(0)
        }
        pr::PR_SET_TSC
            if [pr::PR_TSC_ENABLE, pr::PR_TSC_SIGSEGV]
                .map(|choice| choice as usize)
                .contains(&arg) =>
        {
            task.thread()
                .with_fpu(|state| state.set_tsc(arg == pr::PR_TSC_ENABLE as usize));
            Ok(0)
        }
        pr::PR_GET_SECCOMP => Ok(task.seccomp.lock().mode()),
        pr::PR_SET_SECCOMP => seccomp::set_by_prctl(task, arg, arg3.into()),
        pr::PR_SET_THP_DISABLE if rest_is_zero => {
            task.process().require_space()?.forbid_large_pages(arg != 0);
            Ok(0)
        }
        pr::PR_GET_THP_DISABLE if arg == 0 && rest_is_zero => Ok(usize::from(
            !task.process().require_space()?.may_have_large_pages(),
        )),
        _ => Err(Errno::EINVAL),
    }
}

fn name(task: &Task, option: u32, at: usize) -> SysResult {
    if option == pr::PR_SET_NAME {
        let mut name = [0; TASK_COMM_LEN - 1];
        let len = guard::user::read_cstr(at, &mut name).map_err(|_| Errno::EFAULT)?;
        task.set_name(&name[..len]);
    } else {
        let mut bytes = [0; TASK_COMM_LEN];
        let name = task.name();
        let len = name.len().min(TASK_COMM_LEN - 1);
        bytes[..len].copy_from_slice(&name.as_bytes()[..len]);
        uaccess::write_bytes(at.into(), &bytes)?;
    }
    Ok(0)
}

fn set_machine_checks(task: &Task, operation: usize, kind: usize) -> SysResult {
    let (operation, kind) = (u32::try_from(operation), u32::try_from(kind));
    let new = match (operation, kind) {
        (Ok(pr::PR_MCE_KILL_CLEAR), Ok(0)) => pr::PR_MCE_KILL_DEFAULT,
        (
            Ok(pr::PR_MCE_KILL_SET),
            Ok(kind @ (pr::PR_MCE_KILL_EARLY | pr::PR_MCE_KILL_LATE | pr::PR_MCE_KILL_DEFAULT)),
        ) => kind,
        _ => return Err(Errno::EINVAL),
    };
    task.prctl.lock().mce_kill = new;
    Ok(0)
}

/// `PR_SET_IO_FLUSHER` and `PR_GET_IO_FLUSHER`: whether the thread writes memory back for others.
fn io_flusher(task: &Task, option: u32, arg: usize, rest_is_zero: bool) -> SysResult {
    if !task.cred().capable(sys::CAP_SYS_RESOURCE) {
        return Err(Errno::EPERM);
    }
    let mut settings = task.prctl.lock();
    match (option, arg) {
        _ if !rest_is_zero => return Err(Errno::EINVAL),
        (pr::PR_GET_IO_FLUSHER, 0) => return Ok(usize::from(settings.io_flusher)),
        (pr::PR_SET_IO_FLUSHER, 0 | 1) => settings.io_flusher = arg == 1,
        _ => return Err(Errno::EINVAL),
    }
    Ok(0)
}

/// The kind of speculation that `PR_SPEC_*` names, if a thread can choose about it.
fn speculation_kind(what: usize) -> Option<SpeculationKind> {
    match u32::try_from(what).ok()? {
        pr::PR_SPEC_STORE_BYPASS => Some(SpeculationKind::StoreBypass),
        pr::PR_SPEC_INDIRECT_BRANCH => Some(SpeculationKind::IndirectBranch),
        _ => None,
    }
}

/// Caches are not flushed when threads are switched, as with Linux's default.
const CACHE_FLUSH: usize = pr::PR_SPEC_L1D_FLUSH as usize;

fn speculation(task: &Task, what: usize) -> SysResult {
    match speculation_kind(what) {
        Some(kind) => {
            let chosen = task.prctl.lock().speculation;
            Ok(chosen.answer(kind, Means::of_machine()) as usize)
        }
        None if what == CACHE_FLUSH => Ok(pr::PR_SPEC_FORCE_DISABLE as usize),
        None => Err(Errno::ENODEV),
    }
}

fn set_speculation(task: &Task, what: usize, how: usize) -> SysResult {
    let Some(kind) = speculation_kind(what) else {
        return Err(if what == CACHE_FLUSH {
            Errno::EPERM
        } else {
            Errno::ENODEV
        });
    };
    let restrictions = {
        let mut settings = task.prctl.lock();
        settings.speculation.set(kind, how, Means::of_machine())?;
        settings.speculation.restrictions()
    };
    task.thread().with_fpu(|fpu| fpu.restrict(restrictions));
    Ok(0)
}

/// Gives anonymous memory a name for `/proc/<pid>/maps`.
fn name_memory(task: &Task, addr: usize, len: usize, name: usize) -> SysResult {
    let name: Option<Arc<[u8]>> = match name {
        0 => None,
        at => {
            let name = uaccess::read_cstr(at.into(), MEMORY_NAME);
            let name = name.map_err(|e| {
                if e == Errno::ENAMETOOLONG {
                    Errno::EINVAL
                } else {
                    e
                }
            })?;
            if !name
                .iter()
                .all(|b| (0x20..0x7f).contains(b) && !br"\`$[]".contains(b))
            {
                return Err(Errno::EINVAL);
            }
            Some(name.into())
        }
    };
    let space = task.process().require_space()?;
    if len == 0 && addr.is_multiple_of(vm::PAGE_SIZE) {
        return Ok(0);
    }
    space.set_anon_name(addr, len, name.as_ref()).map(|()| 0)
}

/// Secure bits, one or all.
fn secure(task: &Task, option: u32, arg: usize) -> SysResult {
    let cred = task.cred();
    let new = match option {
        pr::PR_GET_KEEPCAPS => return Ok(usize::from(cred.securebits & KEEP_CAPS != 0)),
        pr::PR_GET_SECUREBITS => return Ok(cred.securebits as usize),
        pr::PR_SET_KEEPCAPS if arg <= 1 => cred.with_keep_caps(arg == 1)?,
        pr::PR_SET_SECUREBITS => {
            cred.with_secure_bits(u32::try_from(arg).map_err(|_| Errno::EPERM)?)?
        }
        _ => return Err(Errno::EINVAL),
    };
    task.set_cred(new);
    Ok(0)
}

/// Operations of `prctl(2)` that concern the whole process, and the signal of the parent's death,
/// which each thread asks for by itself.
fn process(task: &Task, option: u32, arg: usize) -> SysResult {
    let process = task.process();
    match option {
        pr::PR_SET_PDEATHSIG => {
            let signal = i32::try_from(arg)
                .ok()
                .filter(|s| (0..=siginfo::NSIG).contains(s))
                .ok_or(Errno::EINVAL)?;
            task.parent_death_signal.store(signal, Ordering::Relaxed);
        }
        pr::PR_GET_PDEATHSIG => UserPtr::<i32>::new(arg.into())
            .write(&task.parent_death_signal.load(Ordering::Relaxed))?,
        pr::PR_GET_DUMPABLE => return Ok(process.dumpable.load(Ordering::Relaxed) as usize),
        pr::PR_SET_DUMPABLE if arg <= 1 => process.dumpable.store(arg as i32, Ordering::Relaxed),
        pr::PR_SET_CHILD_SUBREAPER => process_table::set_subreaper(process.pid(), arg != 0),
        pr::PR_GET_CHILD_SUBREAPER => {
            UserPtr::<i32>::new(arg.into())
                .write(&i32::from(process_table::is_subreaper(process.pid())))?;
        }
        _ => return Err(Errno::EINVAL),
    }
    Ok(0)
}
