//! `futex(2)` for one who does not sleep, and for two.

use uapi::time::TimeSpec;
use uapi::user_addr::UserAddr;

use super::{BAD, User, bad, outcome, pid_arg, task};
use crate::futex::{sys_futex, sys_get_robust_list, sys_set_robust_list};

const ESRCH: i32 = 3;
const EAGAIN: i32 = 11;
const EFAULT: i32 = 14;
const EINVAL: i32 = 22;
const ENOSYS: i32 = 38;
const ETIMEDOUT: i32 = 110;
const PRIVATE: u32 = 128;
const WAIT: u32 = PRIVATE;
const WAKE: u32 = 1 | PRIVATE;
const CMP_REQUEUE: u32 = 4 | PRIVATE;
const WAIT_BITSET: u32 = 9 | PRIVATE;

#[test]
fn who_finds_another_value_does_not_wait() {
    let task = task();
    let word = User::new([5u32, 0]);
    assert_eq!(
        outcome(sys_futex(&task, word.addr(), WAIT, 6, 0, UserAddr::NULL, 0)),
        Err(EAGAIN)
    );
    assert_eq!(
        outcome(sys_futex(&task, word.addr(), WAKE, 1, 0, UserAddr::NULL, 0)),
        Ok(0),
        "nobody waits"
    );
    assert_eq!(
        outcome(sys_futex(
            &task,
            word.addr().wrapping_add(1),
            WAIT,
            5,
            0,
            UserAddr::NULL,
            0
        )),
        Err(EINVAL)
    );
    assert_eq!(
        outcome(sys_futex(&task, BAD, WAIT, 5, 0, UserAddr::NULL, 0)),
        Err(EFAULT)
    );
    assert_eq!(
        outcome(sys_futex(
            &task,
            word.addr(),
            WAIT_BITSET,
            5,
            0,
            UserAddr::NULL,
            0
        )),
        Err(EINVAL),
        "a wait for nothing"
    );
    assert_eq!(
        outcome(sys_futex(&task, word.addr(), 100, 0, 0, UserAddr::NULL, 0)),
        Err(ENOSYS)
    );
    assert_eq!(
        outcome(sys_futex(
            &task,
            word.addr(),
            CMP_REQUEUE,
            1,
            1,
            word.addr().wrapping_add(4),
            6
        )),
        Err(EAGAIN)
    );
}

#[test]
fn a_wait_ends_at_its_time() {
    let task = task();
    let word = User::new(5u32);
    let wait = |operation, time: TimeSpec| {
        outcome(sys_futex(
            &task,
            word.addr(),
            operation,
            5,
            User::new(time).addr().raw(),
            UserAddr::NULL,
            u32::MAX,
        ))
    };
    assert_eq!(wait(WAIT, TimeSpec { sec: 0, nsec: 1000 }), Err(ETIMEDOUT));
    assert_eq!(
        wait(WAIT_BITSET, TimeSpec { sec: 0, nsec: 0 }),
        Err(ETIMEDOUT),
        "a time that is past"
    );
    assert_eq!(
        wait(
            WAIT,
            TimeSpec {
                sec: 0,
                nsec: 1_000_000_000
            }
        ),
        Err(EINVAL)
    );
    assert_eq!(wait(WAIT, TimeSpec { sec: -1, nsec: 0 }), Err(EINVAL));
    assert_eq!(
        outcome(sys_futex(
            &task,
            word.addr(),
            WAIT,
            5,
            BAD.raw(),
            UserAddr::NULL,
            0
        )),
        Err(EFAULT)
    );
}

#[test]
fn a_thread_that_waits_is_woken() {
    let word = User::new(1u32);
    let addr = word.addr();
    // Words of different address spaces are different ones: both are threads of one process.
    let (give, take) = std::sync::mpsc::channel();
    let waker = std::thread::spawn(move || {
        let task: alloc::sync::Arc<crate::Task> = take.recv().unwrap();
        while outcome(sys_futex(&task, addr, WAKE, 1, 0, UserAddr::NULL, 0)) == Ok(0) {
            std::thread::yield_now();
        }
    });
    let task = task();
    give.send(task.clone()).unwrap();
    assert_eq!(
        outcome(sys_futex(&task, addr, WAIT, 1, 0, UserAddr::NULL, 0)),
        Ok(0)
    );
    waker.join().unwrap();
}

#[test]
fn robust_lists_have_one_size() {
    let task = task();
    let (head, len) = (User::new(0u64), User::new(0u64));
    assert_eq!(
        outcome(sys_set_robust_list(&task, UserAddr::new(0x1000), 24)),
        Ok(0)
    );
    assert_eq!(
        outcome(sys_set_robust_list(&task, UserAddr::new(0x2000), 23)),
        Err(EINVAL)
    );
    assert_eq!(
        outcome(sys_get_robust_list(&task, None, head.ptr(), len.ptr())),
        Ok(0)
    );
    assert_eq!((head.get(), len.get()), (0x1000, 24));
    assert_eq!(
        outcome(sys_get_robust_list(&task, None, bad(), len.ptr())),
        Err(EFAULT)
    );
    assert_eq!(
        outcome(sys_get_robust_list(
            &task,
            pid_arg(0x7fff_fff0),
            head.ptr(),
            len.ptr()
        )),
        Err(ESRCH)
    );
}
