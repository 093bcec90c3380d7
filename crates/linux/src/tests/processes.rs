//! Groups and sessions, waiting for children, limits.

use alloc::sync::Arc;

use uapi::pid::Pgid;
use uapi::siginfo::SigInfo;

use super::{User, bad, child_of, null, outcome, pid_arg, task};
use crate::Task;
use crate::process::process_table;
use crate::process_control::pid::{sys_getpgid, sys_getppid, sys_getsid, sys_setpgid, sys_setsid};
use crate::process_control::prctl::sys_prctl;
use crate::process_control::rlimit::{sys_getrlimit, sys_prlimit64, sys_setrlimit};
use crate::process_control::wait::{sys_wait4, sys_waitid};
use crate::state::rlimit::Rlimit;
use crate::state::sighand::{self, SigAction};

const EPERM: i32 = 1;
const ESRCH: i32 = 3;
const ECHILD: i32 = 10;
const EACCES: i32 = 13;
const EFAULT: i32 = 14;
const EINVAL: i32 = 22;
const WNOHANG: u32 = 1;
const WUNTRACED: u32 = 2;
const WEXITED: u32 = 4;
const WCONTINUED: u32 = 8;
const WNOWAIT: u32 = 0x100_0000;
const P_PID: u32 = 1;
const NOFILE: u32 = 7;
const FSIZE: u32 = 1;

/// The task's process ends with a wait status, as if its last thread had left.
fn end(task: &Arc<Task>, status: i32) {
    task.process().group_exit(status);
    task.process().tasks.lock().clear();
    let _ = process_table::exit_notify(task.process(), status, false);
}

fn wait(task: &Task, pid: i32, options: u32) -> (Result<usize, i32>, i32) {
    let status = User::new(-1);
    (
        outcome(sys_wait4(task, pid, status.ptr(), options, null())),
        status.get(),
    )
}

#[test]
fn a_child_that_has_ended_is_waited_for_once() {
    let task = task();
    let (one, other) = (child_of(&task), child_of(&task));
    let pid = other.pid();
    assert_eq!(wait(&task, -1, WNOHANG), (Ok(0), -1), "nobody has ended");
    end(&other, 7 << 8);
    assert_eq!(wait(&task, one.pid().raw(), WNOHANG), (Ok(0), -1));
    assert_eq!(wait(&task, -1, 0), (Ok(pid.raw() as usize), 7 << 8));
    assert_eq!(wait(&task, pid.raw(), WNOHANG), (Err(ECHILD), -1));
    end(&one, 9);
    assert_eq!(
        wait(&task, -task_group(&one).raw(), 0),
        (Ok(one.pid().raw() as usize), 9)
    );
    assert_eq!(wait(&task, -1, 0), (Err(ECHILD), -1));
}

fn task_group(task: &Task) -> Pgid {
    process_table::relations(task.pid()).group
}

#[test]
fn stops_and_continuations_are_told_to_those_who_ask() {
    let task = task();
    let child = child_of(&task);
    let pid = child.pid().raw() as usize;
    child.process().stop(20);
    assert_eq!(wait(&task, -1, WNOHANG), (Ok(0), -1), "not asked for");
    assert_eq!(wait(&task, -1, WUNTRACED), (Ok(pid), 20 << 8 | 0x7f));
    assert_eq!(
        wait(&task, -1, WUNTRACED | WNOHANG),
        (Ok(0), -1),
        "told once"
    );
    child.process().resume();
    assert_eq!(wait(&task, -1, WUNTRACED | WNOHANG), (Ok(0), -1));
    assert_eq!(wait(&task, -1, WCONTINUED), (Ok(pid), 0xffff));
}

#[test]
fn waitid_leaves_a_child_that_is_only_looked_at() {
    let task = task();
    let child = child_of(&task);
    end(&child, 15);
    let info = User::new(SigInfo::kernel(0));
    let waitid = |options| {
        outcome(sys_waitid(
            &task,
            P_PID,
            child.pid().raw(),
            info.ptr(),
            options,
            null(),
        ))
    };
    assert_eq!(waitid(WEXITED | WNOWAIT), Ok(0));
    let seen = info.get();
    assert_eq!(
        (seen.signo, seen.code, seen.fields[0] as i32, seen.fields[2]),
        (17, 2, child.pid().raw(), 15),
        "CLD_KILLED"
    );
    assert_eq!(waitid(WNOHANG), Err(EINVAL), "nothing is asked for");
    assert_eq!(waitid(WEXITED), Ok(0));
    assert_eq!(waitid(WEXITED), Err(ECHILD));
    assert_eq!(
        outcome(sys_waitid(&task, 9, 0, info.ptr(), WEXITED, null())),
        Err(EINVAL)
    );
}

#[test]
fn who_ignores_the_end_of_children_need_not_wait() {
    let task = task();
    let ignore = SigAction {
        handler: sighand::SIG_IGN,
        ..Default::default()
    };
    task.process().sighand().set(17, ignore);
    let child = child_of(&task);
    end(&child, 0);
    assert_eq!(wait(&task, child.pid().raw(), 0), (Err(ECHILD), -1));
    assert!(
        process_table::find(child.pid()).is_none(),
        "its number is free"
    );
}

#[test]
fn orphans_become_children_of_the_nearest_subreaper() {
    let task = task();
    let child = child_of(&task);
    let grandchild = child_of(&child);
    assert_eq!(
        outcome(sys_prctl(&task, 36, 1, 0, 0, 0)),
        Ok(0),
        "PR_SET_CHILD_SUBREAPER"
    );
    end(&child, 0);
    assert_eq!(
        outcome(sys_getppid(&grandchild)),
        Ok(task.pid().raw() as usize)
    );
    end(&grandchild, 3 << 8);
    assert_eq!(
        wait(&task, grandchild.pid().raw(), 0),
        (Ok(grandchild.pid().raw() as usize), 3 << 8)
    );
}

#[test]
fn groups_and_sessions_follow_posix() {
    let task = task();
    assert_eq!(outcome(sys_setsid(&task)), Ok(task.pid().raw() as usize));
    assert_eq!(
        outcome(sys_setsid(&task)),
        Err(EPERM),
        "it leads a group already"
    );
    let (one, other) = (child_of(&task), child_of(&task));
    let pid = task.pid();
    assert_eq!(outcome(sys_getpgid(&one, None)), Ok(pid.raw() as usize));
    assert_eq!(outcome(sys_setpgid(&task, Some(one.pid()), None)), Ok(0));
    assert_eq!(
        outcome(sys_setpgid(
            &task,
            Some(other.pid()),
            Some(one.pid().own_group())
        )),
        Ok(0)
    );
    assert_eq!(
        outcome(sys_getpgid(&task, Some(other.pid().leader()))),
        Ok(one.pid().raw() as usize)
    );
    assert_eq!(outcome(sys_getsid(&other, None)), Ok(pid.raw() as usize));
    assert_eq!(
        outcome(sys_setpgid(&task, Some(pid), Some(one.pid().own_group()))),
        Err(EPERM),
        "it leads a session"
    );
    assert_eq!(
        outcome(sys_setpgid(&task, Some(other.pid()), pid_arg(0x7fff_0000))),
        Err(EPERM),
        "there is no such group"
    );
    assert_eq!(
        outcome(sys_setpgid(&one, Some(pid), None)),
        Err(ESRCH),
        "a parent is no child"
    );
    assert_eq!(
        outcome(sys_setpgid(&task, pid_arg(-1), None)),
        Err(EINVAL),
        "the group would be -1"
    );
    assert_eq!(
        outcome(sys_setpgid(&task, pid_arg(-1), Some(pid.own_group()))),
        Err(ESRCH)
    );
    assert_eq!(outcome(sys_setpgid(&task, None, pid_arg(-1))), Err(EINVAL));
    process_table::set_did_exec(other.pid());
    assert_eq!(
        outcome(sys_setpgid(&task, Some(other.pid()), Some(pid.own_group()))),
        Err(EACCES),
        "it runs a program of its own"
    );
    assert_eq!(outcome(sys_setsid(&other)), Ok(other.pid().raw() as usize));
    assert_eq!(
        outcome(sys_setpgid(&task, Some(other.pid()), Some(pid.own_group()))),
        Err(EPERM),
        "that it is in another session comes first"
    );
}

/// A limit of these soft and hard values.
fn rlimit(soft: u64, hard: u64) -> Rlimit {
    Rlimit { soft, hard }
}

#[test]
fn limits_are_lowered_by_anybody_and_raised_by_few() {
    let task = task();
    let (new, old) = (User::new(rlimit(100, 200)), User::new(rlimit(0, 0)));
    assert_eq!(outcome(sys_setrlimit(&task, NOFILE, new.ptr())), Ok(0));
    assert_eq!(outcome(sys_getrlimit(&task, NOFILE, old.ptr())), Ok(0));
    assert_eq!(old.get(), rlimit(100, 200));
    let cred = task.cred();
    task.set_cred(cred.with_user(cred.user.setuid(true, 1000).unwrap()));
    assert_eq!(
        outcome(sys_setrlimit(
            &task,
            NOFILE,
            User::new(rlimit(100, 201)).ptr()
        )),
        Err(EPERM)
    );
    assert_eq!(
        outcome(sys_setrlimit(
            &task,
            NOFILE,
            User::new(rlimit(101, 200)).ptr()
        )),
        Ok(0)
    );
    assert_eq!(
        outcome(sys_prlimit64(
            &task,
            None,
            NOFILE,
            User::new(rlimit(5, 5)).ptr(),
            old.ptr()
        )),
        Ok(0)
    );
    assert_eq!(old.get(), rlimit(101, 200));
    assert_eq!(
        outcome(sys_setrlimit(&task, NOFILE, User::new(rlimit(6, 5)).ptr())),
        Err(EINVAL)
    );
    assert_eq!(outcome(sys_setrlimit(&task, 16, new.ptr())), Err(EINVAL));
    assert_eq!(outcome(sys_setrlimit(&task, NOFILE, bad())), Err(EFAULT));
    assert_eq!(
        outcome(sys_prlimit64(
            &task,
            pid_arg(0x7fff_fff0),
            NOFILE,
            null(),
            null()
        )),
        Err(ESRCH)
    );
    assert_eq!(
        outcome(sys_prlimit64(&task, pid_arg(1), NOFILE, null(), old.ptr())),
        Err(EPERM),
        "another's"
    );
    // What each write asks for is a copy.
    assert_eq!(
        outcome(sys_setrlimit(
            &task,
            FSIZE,
            User::new(rlimit(4096, 8192)).ptr()
        )),
        Ok(0)
    );
    assert_eq!(
        task.process()
            .file_size_limit
            .load(core::sync::atomic::Ordering::Relaxed),
        4096
    );
}
