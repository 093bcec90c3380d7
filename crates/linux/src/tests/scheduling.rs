//! Policies, priorities and nice levels: what is set, and by whom.

use super::{User, bad, child_of, outcome, pid_arg, task};
use crate::Task;
use crate::process::process_table;
use crate::process_control::pid;
use crate::sched::{
    sys_getpriority, sys_sched_get_priority_max, sys_sched_getaffinity, sys_sched_getparam,
    sys_sched_getscheduler, sys_sched_setaffinity, sys_sched_setscheduler, sys_setpriority,
};

const EPERM: i32 = 1;
const ESRCH: i32 = 3;
const EACCES: i32 = 13;
const EFAULT: i32 = 14;
const EINVAL: i32 = 22;
const OTHER: u32 = 0;
const FIFO: u32 = 1;
const RR: u32 = 2;
const IDLE: u32 = 5;
const RESET_ON_FORK: u32 = 0x4000_0000;

fn set(task: &Task, of: &Task, policy: u32, priority: i32) -> Result<usize, i32> {
    outcome(sys_sched_setscheduler(
        task,
        Some(of.tid()),
        policy,
        User::new(priority).ptr(),
    ))
}

fn become_user(task: &Task, id: u32) {
    let cred = task.cred();
    task.set_cred(cred.with_user(cred.user.setuid(true, id).unwrap()));
}

#[test]
fn policies_have_priorities_of_their_own() {
    let task = task();
    assert_eq!(set(&task, &task, FIFO, 99), Ok(0));
    assert_eq!(
        outcome(sys_sched_getscheduler(&task, None)),
        Ok(FIFO as usize)
    );
    assert_eq!(
        task.thread().policy(),
        ::task::Policy::Fifo(99),
        "the thread has it"
    );
    for (policy, priority) in [(FIFO, 0), (FIFO, 100), (OTHER, 1), (6, 1), (99, 0)] {
        assert_eq!(
            set(&task, &task, policy, priority),
            Err(EINVAL),
            "{policy} {priority}"
        );
    }
    assert_eq!(set(&task, &task, RR | RESET_ON_FORK, 7), Ok(0));
    assert_eq!(
        outcome(sys_sched_getscheduler(&task, None)),
        Ok((RR | RESET_ON_FORK) as usize)
    );
    let priority = User::new(0);
    assert_eq!(
        outcome(sys_sched_getparam(&task, None, priority.ptr())),
        Ok(0)
    );
    assert_eq!(priority.get(), 7);
    assert_eq!(outcome(sys_sched_getparam(&task, None, bad())), Err(EFAULT));
    assert_eq!(
        outcome(sys_sched_getparam(
            &task,
            pid_arg(0x7fff_fff0),
            priority.ptr()
        )),
        Err(ESRCH)
    );
    assert_eq!(outcome(sys_sched_get_priority_max(&task, FIFO)), Ok(99));
    assert_eq!(outcome(sys_sched_get_priority_max(&task, 99)), Err(EINVAL));
}

#[test]
fn users_lower_themselves_and_do_not_touch_others() {
    let task = task();
    let child = child_of(&task);
    become_user(&child, 1000);
    assert_eq!(
        set(&child, &child, FIFO, 1),
        Err(EPERM),
        "RLIMIT_RTPRIO is 0"
    );
    assert_eq!(set(&child, &task, OTHER, 0), Err(EPERM));
    assert_eq!(set(&child, &child, IDLE, 0), Ok(0));
    assert_eq!(
        set(&child, &child, OTHER, 0),
        Err(EPERM),
        "nor back, without RLIMIT_NICE"
    );
    assert_eq!(outcome(sys_setpriority(&child, 0, 0, 5)), Ok(0));
    assert_eq!(outcome(sys_setpriority(&child, 0, 0, 4)), Err(EACCES));
    assert_eq!(
        outcome(sys_setpriority(&child, 0, task.pid().raw(), 19)),
        Err(EPERM)
    );
    assert_eq!(outcome(sys_getpriority(&child, 0, 0)), Ok(20 - 5));
    assert_eq!(outcome(sys_getpriority(&task, 3, 0)), Err(EINVAL));
}

#[test]
fn nice_levels_are_cut_and_reach_groups() {
    let task = task();
    let group = pid::sys_setsid(&task).unwrap() as i32;
    let child = child_of(&task);
    assert_eq!(process_table::relations(child.pid()).group.raw(), group);
    assert_eq!(outcome(sys_setpriority(&task, 1, 0, 100)), Ok(0));
    assert_eq!(
        (task.sched_params().nice, child.sched_params().nice),
        (19, 19)
    );
    assert_eq!(outcome(sys_setpriority(&task, 1, group, -100)), Ok(0));
    assert_eq!(
        (task.sched_params().nice, child.sched_params().nice),
        (-20, -20)
    );
    assert_eq!(outcome(sys_getpriority(&task, 1, group)), Ok(40));
}

#[test]
fn affinity_needs_a_cpu_that_is_there() {
    let task = task();
    let mask = User::new(1u64);
    assert_eq!(
        outcome(sys_sched_setaffinity(&task, None, 8, mask.addr())),
        Ok(0)
    );
    assert_eq!(
        outcome(sys_sched_setaffinity(
            &task,
            None,
            8,
            User::new(2u64).addr()
        )),
        Err(EINVAL)
    );
    assert_eq!(
        outcome(sys_sched_getaffinity(&task, None, 8, mask.addr())),
        Ok(8)
    );
    assert_eq!(mask.get(), 1);
    assert_eq!(
        outcome(sys_sched_getaffinity(&task, None, 7, mask.addr())),
        Err(EINVAL)
    );
    assert_eq!(
        outcome(sys_sched_setaffinity(
            &task,
            pid_arg(0x7fff_fff0),
            8,
            mask.addr()
        )),
        Err(ESRCH)
    );
}
