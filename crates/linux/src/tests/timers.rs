//! Clocks, and timers that do not fire in these tests.

use uapi::time::TimeSpec;

use super::{BAD, User, bad, null, outcome, task};
use crate::time::posix_timers::{
    ITimerSpec, sys_alarm, sys_timer_create, sys_timer_delete, sys_timer_getoverrun,
    sys_timer_gettime, sys_timer_settime,
};
use crate::time::{sys_clock_getres, sys_clock_gettime, sys_clock_nanosleep, sys_nanosleep};
use crate::uaccess::UserPtr;

const EFAULT: i32 = 14;
const EINVAL: i32 = 22;
const EOPNOTSUPP: i32 = 95;
const MONOTONIC: i32 = 1;

#[test]
fn clocks_go_forward_and_have_names() {
    let task = task();
    let (one, other) = (
        User::new(TimeSpec::default()),
        User::new(TimeSpec::default()),
    );
    assert_eq!(
        outcome(sys_clock_gettime(&task, MONOTONIC, one.ptr())),
        Ok(0)
    );
    assert_eq!(
        outcome(sys_clock_gettime(&task, MONOTONIC, other.ptr())),
        Ok(0)
    );
    assert!(one.get().to_ns().unwrap() <= other.get().to_ns().unwrap());
    for clock in [12, 99, -1, i32::MIN] {
        assert_eq!(
            outcome(sys_clock_gettime(&task, clock, one.ptr())),
            Err(EINVAL),
            "{clock}"
        );
    }
    assert_eq!(
        outcome(sys_clock_gettime(&task, MONOTONIC, bad())),
        Err(EFAULT)
    );
    assert_eq!(outcome(sys_clock_getres(&task, MONOTONIC, null())), Ok(0));
    // That of the process's processor time, by its number.
    assert_eq!(
        outcome(sys_clock_gettime(
            &task,
            !task.pid().raw() << 3 | 2,
            one.ptr()
        )),
        Ok(0)
    );
    assert_eq!(
        outcome(sys_clock_gettime(&task, !0x7_ffff << 3 | 2, one.ptr())),
        Err(EINVAL)
    );
}

#[test]
fn sleeps_check_what_they_are_given() {
    let task = task();
    let time = |sec, nsec| User::new(TimeSpec { sec, nsec });
    assert_eq!(
        outcome(sys_nanosleep(&task, time(0, 1).ptr(), null())),
        Ok(0)
    );
    assert_eq!(
        outcome(sys_nanosleep(&task, time(0, 1_000_000_000).ptr(), null())),
        Err(EINVAL)
    );
    assert_eq!(
        outcome(sys_nanosleep(&task, time(-1, 0).ptr(), null())),
        Err(EINVAL)
    );
    assert_eq!(outcome(sys_nanosleep(&task, bad(), null())), Err(EFAULT));
    assert_eq!(
        outcome(sys_clock_nanosleep(
            &task,
            MONOTONIC,
            1,
            time(0, 0).ptr(),
            null()
        )),
        Ok(0),
        "a time that is past"
    );
    assert_eq!(
        outcome(sys_clock_nanosleep(&task, 3, 0, time(0, 0).ptr(), null())),
        Err(EOPNOTSUPP)
    );
}

#[test]
fn an_alarm_returns_what_was_left_of_the_one_before() {
    let task = task();
    assert_eq!(outcome(sys_alarm(&task, 1000)), Ok(0));
    assert_eq!(outcome(sys_alarm(&task, 0)), Ok(1000), "rounded");
    assert_eq!(outcome(sys_alarm(&task, 0)), Ok(0));
}

#[test]
fn timers_are_made_set_and_deleted_by_number() {
    let task = task();
    let id = User::new(-1);
    assert_eq!(
        outcome(sys_timer_create(&task, MONOTONIC, null(), id.ptr())),
        Ok(0)
    );
    let number = id.get();
    let spec = |sec, interval| ITimerSpec {
        interval: TimeSpec {
            sec: interval,
            nsec: 0,
        },
        value: TimeSpec { sec, nsec: 0 },
    };
    let (new, old) = (User::new(spec(1000, 7)), User::new(spec(9, 9)));
    assert_eq!(
        outcome(sys_timer_settime(&task, number, 0, new.ptr(), old.ptr())),
        Ok(0)
    );
    assert_eq!((old.get().value.sec, old.get().interval.sec), (0, 0));
    assert_eq!(outcome(sys_timer_gettime(&task, number, old.ptr())), Ok(0));
    assert!((990..=1000).contains(&old.get().value.sec));
    assert_eq!(old.get().interval.sec, 7);
    assert_eq!(
        outcome(sys_timer_settime(
            &task,
            number,
            0,
            User::new(spec(-1, 0)).ptr(),
            null()
        )),
        Err(EINVAL)
    );
    assert_eq!(outcome(sys_timer_getoverrun(&task, number)), Ok(0));
    assert_eq!(outcome(sys_timer_delete(&task, number)), Ok(0));
    assert_eq!(outcome(sys_timer_delete(&task, number)), Err(EINVAL));
    assert_eq!(
        outcome(sys_timer_create(&task, 99, null(), id.ptr())),
        Err(EINVAL)
    );
    assert_eq!(
        outcome(sys_timer_create(
            &task,
            MONOTONIC,
            null(),
            UserPtr::new(BAD)
        )),
        Err(EFAULT)
    );
}
