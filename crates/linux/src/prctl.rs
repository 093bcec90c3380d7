//! Settings of a process or thread: `prctl(2)`.

use abi::errno::Errno;
use core::sync::atomic::Ordering;
use linux_raw_sys::prctl as pr;

use crate::credentials::{Credentials, KEEP_CAPS};
use crate::uaccess::{self, UserPtr};
use crate::{SysResult, Task, capability, process_table as processes};

/// The length of a thread's name with its NUL.
const COMM: usize = 16;

/// `prctl(2)`
pub fn sys_prctl(task: &Task, option: u32, arg: usize, arg3: usize, arg4: usize, arg5: usize) -> SysResult {
    let rest_is_zero = arg3 == 0 && arg4 == 0 && arg5 == 0;
    match option {
        pr::PR_SET_NAME | pr::PR_GET_NAME => name(task, option, arg),
        pr::PR_CAPBSET_READ => capability::is_in_bounding(task, arg),
        pr::PR_CAPBSET_DROP => capability::drop_from_bounding(task, arg),
        pr::PR_CAP_AMBIENT if arg4 == 0 && arg5 == 0 => capability::ambient(task, arg, arg3),
        pr::PR_GET_KEEPCAPS | pr::PR_SET_KEEPCAPS | pr::PR_GET_SECUREBITS | pr::PR_SET_SECUREBITS => secure(task, option, arg),
        pr::PR_SET_NO_NEW_PRIVS if arg == 1 && rest_is_zero => {
            task.set_cred(Credentials { no_new_privileges: true, ..(*task.cred()).clone() });
            Ok(0)
        }
        pr::PR_GET_NO_NEW_PRIVS if arg == 0 && rest_is_zero => Ok(usize::from(task.cred().no_new_privileges)),
        pr::PR_SET_PDEATHSIG
        | pr::PR_GET_PDEATHSIG
        | pr::PR_SET_DUMPABLE
        | pr::PR_GET_DUMPABLE
        | pr::PR_SET_CHILD_SUBREAPER
        | pr::PR_GET_CHILD_SUBREAPER => process(task, option, arg),
        pr::PR_GET_TIMERSLACK => Ok(task.timer_slack.load(Ordering::Relaxed)),
        pr::PR_SET_TIMERSLACK => {
            task.timer_slack.store(if arg == 0 { crate::task::TIMER_SLACK } else { arg }, Ordering::Relaxed);
            Ok(0)
        }
        pr::PR_GET_TID_ADDRESS => {
            UserPtr::<u64>::new(arg).write(&(task.clear_tid.load(Ordering::Relaxed) as u64))?;
            Ok(0)
        }
        pr::PR_GET_TSC => {
            UserPtr::<u32>::new(arg).write(&pr::PR_TSC_ENABLE)?;
            Ok(0)
        }
        pr::PR_SET_TSC if arg == pr::PR_TSC_ENABLE as usize => Ok(0),
        pr::PR_GET_SECCOMP => Ok(task.seccomp.lock().mode()),
        pr::PR_SET_SECCOMP => crate::seccomp::set_by_prctl(task, arg, arg3),
        pr::PR_SET_THP_DISABLE if rest_is_zero => {
            task.process().memory()?.forbid_large_pages(arg != 0);
            Ok(0)
        }
        pr::PR_GET_THP_DISABLE if arg == 0 && rest_is_zero => Ok(usize::from(!task.process().memory()?.may_have_large_pages())),
        // Among those that are not there: names of anonymous memory, which a kernel without that option refuses like this.
        _ => Err(Errno::EINVAL),
    }
}

fn name(task: &Task, option: u32, at: usize) -> SysResult {
    if option == pr::PR_SET_NAME {
        let mut name = [0; COMM - 1];
        let len = guard::user::read_cstr(at, &mut name).map_err(|_| Errno::EFAULT)?;
        task.set_name(&name[..len]);
    } else {
        let mut bytes = [0; COMM];
        let name = task.name();
        let len = name.len().min(COMM - 1);
        bytes[..len].copy_from_slice(&name.as_bytes()[..len]);
        uaccess::write_bytes(at, &bytes)?;
    }
    Ok(0)
}

/// Secure bits, one or all.
fn secure(task: &Task, option: u32, arg: usize) -> SysResult {
    let cred = task.cred();
    let new = match option {
        pr::PR_GET_KEEPCAPS => return Ok(usize::from(cred.secure_bits & KEEP_CAPS != 0)),
        pr::PR_GET_SECUREBITS => return Ok(cred.secure_bits as usize),
        pr::PR_SET_KEEPCAPS if arg <= 1 => cred.with_keep_caps(arg == 1)?,
        pr::PR_SET_SECUREBITS => cred.with_secure_bits(u32::try_from(arg).map_err(|_| Errno::EPERM)?)?,
        _ => return Err(Errno::EINVAL),
    };
    task.set_cred(new);
    Ok(0)
}

/// What belongs to the whole process.
fn process(task: &Task, option: u32, arg: usize) -> SysResult {
    let process = task.process();
    match option {
        pr::PR_SET_PDEATHSIG => {
            let signal = i32::try_from(arg).ok().filter(|s| (0..=crate::siginfo::COUNT).contains(s)).ok_or(Errno::EINVAL)?;
            process.parent_death_signal.store(signal, Ordering::Relaxed);
        }
        pr::PR_GET_PDEATHSIG => UserPtr::<i32>::new(arg).write(&process.parent_death_signal.load(Ordering::Relaxed))?,
        pr::PR_GET_DUMPABLE => return Ok(process.dumpable.load(Ordering::Relaxed) as usize),
        pr::PR_SET_DUMPABLE if arg <= 1 => process.dumpable.store(arg as i32, Ordering::Relaxed),
        pr::PR_SET_CHILD_SUBREAPER => processes::set_subreaper(process.pid(), arg != 0),
        pr::PR_GET_CHILD_SUBREAPER => {
            UserPtr::<i32>::new(arg).write(&i32::from(processes::is_subreaper(process.pid())))?;
        }
        _ => return Err(Errno::EINVAL),
    }
    Ok(0)
}
