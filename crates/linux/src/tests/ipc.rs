//! System V semaphores and message queues.

use super::{User, bad, child_of, outcome, task};
use crate::ipc::msg::{sys_msgctl, sys_msgget, sys_msgrcv, sys_msgsnd};
use crate::ipc::sem::{exit_sem, sys_semctl, sys_semget, sys_semop};
use crate::uaccess::UserPtr;

const EPERM: i32 = 1;
const ENOENT: i32 = 2;
const E2BIG: i32 = 7;
const EAGAIN: i32 = 11;
const EACCES: i32 = 13;
const EFAULT: i32 = 14;
const EEXIST: i32 = 17;
const EINVAL: i32 = 22;
const EFBIG: i32 = 27;
const ERANGE: i32 = 34;
const ENOMSG: i32 = 42;
const CREATE: u32 = 0o1000;
const EXCLUSIVE: u32 = 0o2000;
const NOWAIT: u32 = 0o4000;
const REMOVE: u32 = 0;
const GETVAL: u32 = 12;
const SETVAL: u32 = 16;

/// `struct sembuf`: number, change, flags.
type Operation = [i16; 3];

fn operate(task: &crate::Task, id: usize, operations: &[Operation]) -> Result<usize, i32> {
    let list = operations.to_vec();
    let addr = core::hint::black_box(list.as_ptr()).expose_provenance();
    outcome(sys_semop(
        task,
        id as i32,
        UserPtr::new(addr.into()),
        list.len(),
    ))
}

#[test]
fn operations_are_done_together_or_not_at_all() {
    let task = task();
    let id = outcome(sys_semget(&task, 0, 2, CREATE | 0o600)).unwrap();
    let value = |number| outcome(sys_semctl(&task, id as i32, number, GETVAL, 0)).unwrap();
    assert_eq!(operate(&task, id, &[[0, 3, 0], [1, 1, 0]]), Ok(0));
    assert_eq!(
        operate(&task, id, &[[0, -2, NOWAIT as i16], [1, -2, NOWAIT as i16]]),
        Err(EAGAIN)
    );
    assert_eq!((value(0), value(1)), (3, 1));
    assert_eq!(
        operate(&task, id, &[[1, 0, NOWAIT as i16]]),
        Err(EAGAIN),
        "it is not zero"
    );
    assert_eq!(operate(&task, id, &[[0, 32_765, 0]]), Err(ERANGE));
    assert_eq!(operate(&task, id, &[[2, 1, 0]]), Err(EFBIG));
    assert_eq!(operate(&task, id, &[]), Err(EINVAL));
    assert_eq!(operate(&task, id, &vec![[0, 0, 0]; 501]), Err(E2BIG));
    assert_eq!(
        outcome(sys_semctl(&task, id as i32, 0, SETVAL, 32_768)),
        Err(ERANGE)
    );
    assert_eq!(outcome(sys_semctl(&task, id as i32, 0, REMOVE, 0)), Ok(0));
    assert_eq!(operate(&task, id, &[[0, 1, 0]]), Err(EINVAL));
}

#[test]
fn what_a_process_wants_undone_is_undone_at_its_end() {
    let task = task();
    let id = outcome(sys_semget(&task, 0, 1, CREATE | 0o600)).unwrap();
    let child = child_of(&task);
    assert_eq!(operate(&child, id, &[[0, 5, 0], [0, 2, 0x1000]]), Ok(0));
    assert_eq!(outcome(sys_semctl(&task, id as i32, 0, GETVAL, 0)), Ok(7));
    exit_sem(child.process(), &child.ipc());
    assert_eq!(outcome(sys_semctl(&task, id as i32, 0, GETVAL, 0)), Ok(5));
}

#[test]
fn sets_are_found_by_key_and_guarded_by_mode() {
    let task = task();
    const KEY: i32 = 0x5ec2_0001;
    assert_eq!(outcome(sys_semget(&task, KEY, 1, 0)), Err(ENOENT));
    let id = outcome(sys_semget(&task, KEY, 3, CREATE | 0o600)).unwrap();
    assert_eq!(outcome(sys_semget(&task, KEY, 0, 0)), Ok(id));
    assert_eq!(
        outcome(sys_semget(&task, KEY, 4, 0)),
        Err(EINVAL),
        "it has three"
    );
    assert_eq!(
        outcome(sys_semget(&task, KEY, 1, CREATE | EXCLUSIVE)),
        Err(EEXIST)
    );
    let child = child_of(&task);
    child.set_cred(
        child
            .cred()
            .with_user(child.cred().user.setuid(true, 1000).unwrap()),
    );
    assert_eq!(outcome(sys_semget(&child, KEY, 0, 0o600)), Err(EACCES));
    assert_eq!(operate(&child, id, &[[0, 1, 0]]), Err(EACCES));
    assert_eq!(
        outcome(sys_semctl(&child, id as i32, 0, REMOVE, 0)),
        Err(EPERM)
    );
    assert_eq!(outcome(sys_semctl(&task, id as i32, 0, REMOVE, 0)), Ok(0));
}

/// A message of a kind, with a text of five bytes.
#[derive(Clone, Copy)]
#[repr(C)]
struct Message(i64, [u8; 5]);

#[test]
fn messages_are_taken_by_kind() {
    let task = task();
    let id = outcome(sys_msgget(&task, 0, CREATE | 0o600)).unwrap() as i32;
    let send = |kind, text: &[u8; 5]| {
        outcome(sys_msgsnd(
            &task,
            id,
            User::new(Message(kind, *text)).addr(),
            5,
            NOWAIT,
        ))
    };
    for (kind, text) in [(3, b"three"), (1, b"one  "), (2, b"two  "), (3, b"THREE")] {
        assert_eq!(send(kind, text), Ok(0));
    }
    let got = User::new(Message(0, [0; 5]));
    let receive = |kind, size, flags: u32| {
        let taken = outcome(sys_msgrcv(
            &task,
            id,
            got.addr(),
            size,
            kind,
            flags | NOWAIT,
        ))?;
        Ok::<_, i32>((taken, got.get().0, got.get().1))
    };
    assert_eq!(receive(2, 5, 0), Ok((5, 2, *b"two  ")));
    assert_eq!(
        receive(-2, 5, 0),
        Ok((5, 1, *b"one  ")),
        "the least up to 2"
    );
    assert_eq!(receive(-2, 5, 0), Err(ENOMSG));
    assert_eq!(
        receive(3, 4, 0),
        Err(E2BIG),
        "there is no room, and it stays"
    );
    assert_eq!(
        receive(1, 5, 0o20_000),
        Ok((5, 3, *b"three")),
        "any but 1: MSG_EXCEPT"
    );
    assert_eq!(
        receive(0, 3, 0o10_000).map(|(n, kind, _)| (n, kind)),
        Ok((3, 3)),
        "cut: MSG_NOERROR"
    );
    assert_eq!(receive(0, 5, 0), Err(ENOMSG));
    assert_eq!(send(0, b"zero "), Err(EINVAL));
    assert_eq!(
        outcome(sys_msgsnd(&task, id, got.addr(), 8193, 0)),
        Err(EINVAL)
    );
    assert_eq!(
        outcome(sys_msgsnd(&task, id, super::BAD, 5, 0)),
        Err(EFAULT)
    );
    assert_eq!(outcome(sys_msgctl(&task, id, 2, bad())), Err(EFAULT));
    assert_eq!(outcome(sys_msgctl(&task, id, REMOVE, bad())), Ok(0));
    assert_eq!(outcome(sys_msgctl(&task, id, REMOVE, bad())), Err(EINVAL));
}
