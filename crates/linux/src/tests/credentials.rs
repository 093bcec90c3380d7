//! Users, groups and capabilities.

use core::sync::atomic::Ordering;

use super::{User, bad, null, outcome, task};
use crate::Task;
use crate::cred::setuid::{
    sys_getgroups, sys_getresuid, sys_setfsuid, sys_setgroups, sys_setregid, sys_setresuid,
    sys_setreuid, sys_setuid,
};
use crate::process_control::prctl::sys_prctl;
use crate::uaccess::UserPtr;

const EPERM: i32 = 1;
const EFAULT: i32 = 14;
const EINVAL: i32 = 22;
const SAME: u32 = u32::MAX;

/// Real, effective, saved and file system user.
fn users(task: &Task) -> [u32; 4] {
    let [real, effective, saved] = [(); 3].map(|()| User::new(SAME));
    assert_eq!(
        outcome(sys_getresuid(
            task,
            real.ptr(),
            effective.ptr(),
            saved.ptr()
        )),
        Ok(0)
    );
    [
        real.get(),
        effective.get(),
        saved.get(),
        task.cred().user.fs,
    ]
}

#[test]
fn the_superuser_gives_all_up_by_setuid_and_others_change_the_effective_one() {
    let task = task();
    assert_eq!(outcome(sys_setresuid(&task, 1, 2, 3)), Ok(0));
    assert_eq!(users(&task), [1, 2, 3, 2]);
    assert!(!task.cred().capable(7), "CAP_SETUID went with user 0");
    assert_eq!(outcome(sys_setuid(&task, 3)), Ok(0));
    assert_eq!(users(&task), [1, 3, 3, 3]);
    assert_eq!(
        outcome(sys_setuid(&task, 2)),
        Err(EPERM),
        "it is none of them any more"
    );
    assert_eq!(outcome(sys_setuid(&task, SAME)), Err(EINVAL));
    assert_eq!(users(&task), [1, 3, 3, 3]);
}

#[test]
fn setreuid_saves_the_new_effective_user_when_the_real_one_is_set() {
    let task = task();
    assert_eq!(outcome(sys_setreuid(&task, SAME, 5)), Ok(0));
    assert_eq!(users(&task), [0, 5, 5, 5], "it is not the real one");
    assert_eq!(outcome(sys_setreuid(&task, 5, SAME)), Ok(0));
    assert_eq!(users(&task), [5, 5, 5, 5]);
    assert_eq!(outcome(sys_setreuid(&task, 0, SAME)), Err(EPERM));
}

#[test]
fn setfsuid_returns_the_one_before_whatever_happens() {
    let task = task();
    assert_eq!(outcome(sys_setfsuid(&task, 9)), Ok(0));
    assert_eq!(outcome(sys_setfsuid(&task, SAME)), Ok(9));
    assert_eq!(outcome(sys_setuid(&task, 1000)), Ok(0));
    assert_eq!(outcome(sys_setfsuid(&task, 9)), Ok(1000));
    assert_eq!(task.cred().user.fs, 1000, "it may not");
}

#[test]
fn groups_are_set_by_the_superuser_and_sorted() {
    let task = task();
    let groups = User::new([30, 10, 20u32]);
    assert_eq!(
        outcome(sys_setgroups(&task, 3, UserPtr::new(groups.addr()))),
        Ok(0)
    );
    assert_eq!(outcome(sys_getgroups(&task, 0, null())), Ok(3));
    assert_eq!(
        outcome(sys_getgroups(&task, 2, bad())),
        Err(EINVAL),
        "there is no room"
    );
    assert_eq!(outcome(sys_getgroups(&task, 3, bad())), Err(EFAULT));
    assert_eq!(outcome(sys_getgroups(&task, -1, null())), Err(EINVAL));
    let list = User::new([0u32; 3]);
    assert_eq!(
        outcome(sys_getgroups(&task, 3, UserPtr::new(list.addr()))),
        Ok(3)
    );
    assert_eq!(list.get(), [10, 20, 30]);
    assert_eq!(outcome(sys_setgroups(&task, 65_537, null())), Err(EINVAL));
    assert_eq!(outcome(sys_setregid(&task, 7, 8)), Ok(0));
    assert_eq!(outcome(sys_setuid(&task, 1000)), Ok(0));
    assert_eq!(outcome(sys_setgroups(&task, 0, null())), Err(EPERM));
    assert_eq!(
        (task.cred().group.real, task.cred().group.effective),
        (7, 8)
    );
}

#[test]
fn who_becomes_somebody_else_is_not_dumpable_and_loses_the_signal_of_its_parents_death() {
    let task = task();
    assert_eq!(
        outcome(sys_prctl(&task, 1, 9, 0, 0, 0)),
        Ok(0),
        "PR_SET_PDEATHSIG"
    );
    assert_eq!(outcome(sys_setreuid(&task, 4, SAME)), Ok(0));
    assert!(
        task.process().is_dumpable(),
        "the real user is not what it acts as"
    );
    assert_eq!(outcome(sys_setuid(&task, 4)), Ok(0));
    assert!(!task.process().is_dumpable());
    assert_eq!(task.parent_death_signal.load(Ordering::Relaxed), 0);
    assert_eq!(
        outcome(sys_prctl(&task, 4, 2, 0, 0, 0)),
        Err(EINVAL),
        "PR_SET_DUMPABLE knows 0 and 1"
    );
    assert_eq!(outcome(sys_prctl(&task, 4, 1, 0, 0, 0)), Ok(0));
    assert!(task.process().is_dumpable());
}

#[test]
fn capabilities_stay_over_setuid_if_that_was_asked_for() {
    let task = task();
    assert_eq!(
        outcome(sys_prctl(&task, 8, 1, 0, 0, 0)),
        Ok(0),
        "PR_SET_KEEPCAPS"
    );
    assert_eq!(outcome(sys_setuid(&task, 1000)), Ok(0));
    let cred = task.cred();
    assert!(
        cred.caps.permitted != 0 && !cred.capable(7),
        "permitted, not effective"
    );
}
