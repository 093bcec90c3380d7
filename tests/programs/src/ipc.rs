//! System V semaphores and message queues, POSIX message queues, and looking into other processes.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use std::{io, ptr, thread};

use anyhow::{Context, Result, ensure};

use crate::credentials::in_child;
use crate::{Check, checked};

pub const CHECKS: &[(&str, Check)] = &[
    ("ipc-semaphores", semaphores),
    ("ipc-semaphores-wait", semaphores_wait),
    ("ipc-semaphores-undo", semaphores_undo),
    ("ipc-message-queues", message_queues),
    ("ipc-message-queues-wait", message_queues_wait),
    ("ipc-posix-queues", posix_queues),
    ("ipc-posix-queues-notify", posix_queues_notify),
    ("ipc-permissions", permissions),
    ("ipc-another-process-memory", another_process_memory),
    ("ipc-what-processes-share", what_processes_share),
    ("ipc-memory-policy", memory_policy),
    ("ipc-priorities-of-input", priorities_of_input),
    ("ipc-clock-is-read", clock_is_read),
    ("ipc-unshare-and-numbers", unshare_and_numbers),
];

fn refused<T: std::fmt::Debug>(result: io::Result<T>, errno: i32, what: &str) -> Result<()> {
    ensure!(
        result
            .as_ref()
            .is_err_and(|e| e.raw_os_error() == Some(errno)),
        "{what}: {result:?}"
    );
    Ok(())
}

/// A set of semaphores, removed when dropped.
struct Semaphores(i32);

impl Semaphores {
    fn new(count: i32) -> Result<Self> {
        // SAFETY: the call takes numbers.
        Ok(Self(
            checked(unsafe { libc::semget(libc::IPC_PRIVATE, count, 0o600) }).context("semget")?,
        ))
    }

    fn operate(&self, operations: &[(u16, i16, i32)]) -> io::Result<i32> {
        let mut list: Vec<libc::sembuf> = operations
            .iter()
            .map(|&(sem_num, sem_op, flags)| libc::sembuf {
                sem_num,
                sem_op,
                sem_flg: flags as i16,
            })
            .collect();
        // SAFETY: as many operations as it says.
        checked(unsafe { libc::semop(self.0, list.as_mut_ptr(), list.len()) })
    }

    fn control(&self, number: i32, command: i32, value: i32) -> io::Result<i32> {
        // SAFETY: the commands used here take numbers.
        checked(unsafe { libc::semctl(self.0, number, command, value) })
    }

    fn value(&self, number: i32) -> io::Result<i32> {
        self.control(number, libc::GETVAL, 0)
    }
}

impl Drop for Semaphores {
    fn drop(&mut self) {
        let _ = self.control(0, libc::IPC_RMID, 0);
    }
}

fn semaphores() -> Result<()> {
    let set = Semaphores::new(3)?;
    set.operate(&[(0, 5, 0), (1, 2, 0)])?;
    ensure!(
        (set.value(0)?, set.value(1)?, set.value(2)?) == (5, 2, 0),
        "wrong values"
    );
    // All or nothing.
    refused(
        set.operate(&[(0, -5, 0), (1, -3, libc::IPC_NOWAIT)]),
        libc::EAGAIN,
        "taking too much",
    )?;
    ensure!(set.value(0)? == 5, "half of it was done");
    refused(
        set.operate(&[(3, 1, 0)]),
        libc::EFBIG,
        "a semaphore beyond the set",
    )?;
    refused(
        set.operate(&[(0, 32_767, 0)]),
        libc::ERANGE,
        "too high a value",
    )?;
    let mut values = [7u16, 8, 9];
    // SAFETY: as many values as semaphores.
    unsafe {
        checked(libc::semctl(set.0, 0, libc::SETALL, values.as_ptr()))?;
        values = [0; 3];
        checked(libc::semctl(set.0, 0, libc::GETALL, values.as_mut_ptr()))?;
    }
    ensure!(values == [7, 8, 9], "{values:?}");
    set.control(2, libc::SETVAL, 1)?;
    ensure!(
        set.control(2, libc::GETPID, 0)? == std::process::id() as i32,
        "not the last process"
    );
    // SAFETY: a valid structure.
    let info = unsafe {
        let mut info: libc::semid_ds = std::mem::zeroed();
        checked(libc::semctl(set.0, 0, libc::IPC_STAT, &raw mut info))?;
        info
    };
    ensure!(
        info.sem_nsems == 3 && info.sem_perm.mode & 0o777 == 0o600 && info.sem_ctime > 0,
        "wrong description"
    );
    let id = set.0;
    drop(set);
    refused(Semaphores(id).value(0), libc::EINVAL, "a set that is gone")
}

fn semaphores_wait() -> Result<()> {
    let (set, gone) = (Semaphores::new(2)?, Semaphores::new(1)?);
    thread::scope(|scope| {
        let taker = scope.spawn(|| set.operate(&[(0, -2, 0), (1, 1, 0)]));
        let zero = scope.spawn(|| {
            set.operate(&[(1, 0, 0), (1, 3, 0)])
                .and_then(|_| set.operate(&[(1, -3, 0)]))
        });
        zero.join().expect("the thread ended well")?;
        while set.control(0, libc::GETNCNT, 0)? == 0 {
            thread::yield_now();
        }
        set.operate(&[(0, 1, 0)])?;
        set.operate(&[(0, 1, 0)])?;
        taker.join().expect("the thread ended well")?;
        ensure!((set.value(0)?, set.value(1)?) == (0, 1), "wrong values");
        let lost = scope.spawn(|| gone.operate(&[(0, -1, 0)]));
        while gone.control(0, libc::GETNCNT, 0)? == 0 {
            thread::yield_now();
        }
        gone.control(0, libc::IPC_RMID, 0)?;
        refused(
            lost.join().expect("the thread ended well"),
            libc::EIDRM,
            "waiting for a set that is removed",
        )
    })?;
    let mut operation = libc::sembuf {
        sem_num: 0,
        sem_op: -1,
        sem_flg: 0,
    };
    let span = libc::timespec {
        tv_sec: 0,
        tv_nsec: 20_000_000,
    };
    // SAFETY: one operation and a time.
    let late = checked(unsafe {
        libc::syscall(
            libc::SYS_semtimedop,
            set.0,
            &raw mut operation,
            1,
            &raw const span,
        )
    } as i32);
    refused(late, libc::EAGAIN, "waiting too long")
}

fn semaphores_undo() -> Result<()> {
    let set = Semaphores::new(1)?;
    set.operate(&[(0, 5, 0)])?;
    in_child(|| {
        set.operate(&[(0, -2, libc::SEM_UNDO)])?;
        set.operate(&[(0, -2, libc::SEM_UNDO)])?;
        set.operate(&[(0, 1, 0)])?;
        ensure!(set.value(0)? == 2, "the child sees {}", set.value(0)?);
        Ok(())
    })?;
    ensure!(
        set.value(0)? == 6,
        "after the child's end it is {}",
        set.value(0)?
    );
    Ok(())
}

#[repr(C)]
struct Letter {
    kind: i64,
    text: [u8; 16],
}

/// A message queue, removed when dropped.
struct Letters(i32);

impl Letters {
    fn new() -> Result<Self> {
        // SAFETY: the call takes numbers.
        Ok(Self(
            checked(unsafe { libc::msgget(libc::IPC_PRIVATE, 0o600) }).context("msgget")?,
        ))
    }

    fn send(&self, kind: i64, text: &[u8], flags: i32) -> io::Result<i32> {
        let mut letter = Letter {
            kind,
            text: [0; 16],
        };
        letter.text[..text.len()].copy_from_slice(text);
        // SAFETY: as long as it says.
        checked(unsafe { libc::msgsnd(self.0, (&raw const letter).cast(), text.len(), flags) })
    }

    fn receive(&self, kind: i64, room: usize, flags: i32) -> io::Result<(i64, Vec<u8>)> {
        let mut letter = Letter {
            kind: 0,
            text: [0; 16],
        };
        // SAFETY: it has room for more.
        let len = unsafe { libc::msgrcv(self.0, (&raw mut letter).cast(), room, kind, flags) };
        let len = checked(len as i32)? as usize;
        Ok((letter.kind, letter.text[..len].to_vec()))
    }
}

impl Drop for Letters {
    fn drop(&mut self) {
        // SAFETY: nothing is written.
        unsafe { libc::msgctl(self.0, libc::IPC_RMID, ptr::null_mut()) };
    }
}

fn message_queues() -> Result<()> {
    let queue = Letters::new()?;
    for (kind, text) in [(5, "five"), (3, "three"), (7, "seven"), (3, "again")] {
        queue.send(kind, text.as_bytes(), 0)?;
    }
    let letter = |kind: i64, text: &str| (kind, text.as_bytes().to_vec());
    refused(queue.send(0, b"", 0), libc::EINVAL, "a message of no type")?;
    refused(
        queue.receive(9, 16, libc::IPC_NOWAIT),
        libc::ENOMSG,
        "a type that is not there",
    )?;
    refused(queue.receive(3, 2, 0), libc::E2BIG, "too little room")?;
    ensure!(
        queue.receive(3, 2, libc::MSG_NOERROR)? == letter(3, "th"),
        "cut off"
    );
    ensure!(
        queue.receive(-4, 16, 0)? == letter(3, "again"),
        "the lowest type"
    );
    ensure!(
        queue.receive(5, 16, libc::MSG_EXCEPT)? == letter(7, "seven"),
        "another type"
    );
    ensure!(queue.receive(0, 16, 0)? == letter(5, "five"), "the first");
    // SAFETY: a valid structure.
    let info = unsafe {
        let mut info: libc::msqid_ds = std::mem::zeroed();
        checked(libc::msgctl(queue.0, libc::IPC_STAT, &mut info))?;
        info
    };
    ensure!(
        info.msg_qnum == 0 && info.msg_qbytes == 16_384,
        "{} messages, {} bytes",
        info.msg_qnum,
        info.msg_qbytes
    );
    ensure!(
        info.msg_lspid == std::process::id() as i32 && info.msg_rtime > 0,
        "wrong description"
    );
    Ok(())
}

fn message_queues_wait() -> Result<()> {
    let queue = Letters::new()?;
    thread::scope(|scope| {
        let receiver = scope.spawn(|| -> io::Result<usize> {
            let mut sum = 0;
            for _ in 0..4000 {
                let (kind, text) = queue.receive(0, 16, 0)?;
                sum += kind as usize * text.len();
            }
            Ok(sum)
        });
        // More than fit.
        for turn in 0..4000 {
            queue.send(turn % 3 + 1, &[0; 16][..(turn % 16) as usize], 0)?;
        }
        let sum = receiver.join().expect("the thread ended well")?;
        let wanted: usize = (0..4000usize)
            .map(|turn| (turn % 3 + 1) * (turn % 16))
            .sum();
        ensure!(sum == wanted, "{sum} arrived of {wanted}");
        Ok(())
    })?;
    while queue.send(1, &[0; 16], libc::IPC_NOWAIT).is_ok() {}
    refused(
        queue.send(1, &[0; 16], libc::IPC_NOWAIT),
        libc::EAGAIN,
        "a full queue",
    )
}

/// A POSIX queue, closed and unlinked when dropped.
struct PosixQueue(i32, std::ffi::CString);

impl PosixQueue {
    fn new(name: &str) -> Result<Self> {
        let name = std::ffi::CString::new(format!("/{name}.{}", std::process::id()))?;
        // SAFETY: a valid name and valid attributes.
        let fd = unsafe {
            let mut attributes: libc::mq_attr = std::mem::zeroed();
            (attributes.mq_maxmsg, attributes.mq_msgsize) = (4, 32);
            libc::mq_open(
                name.as_ptr(),
                libc::O_CREAT | libc::O_EXCL | libc::O_RDWR,
                0o600,
                &raw mut attributes,
            )
        };
        Ok(Self(checked(fd)?, name))
    }

    fn send(&self, text: &str, priority: u32) -> io::Result<i32> {
        // SAFETY: as long as it says.
        checked(unsafe { libc::mq_send(self.0, text.as_ptr().cast(), text.len(), priority) })
    }

    fn receive(&self) -> io::Result<(String, u32)> {
        let (mut text, mut priority) = ([0u8; 32], 0);
        // SAFETY: as long as it says.
        let len = checked(unsafe {
            libc::mq_receive(self.0, text.as_mut_ptr().cast(), text.len(), &mut priority)
        } as i32)?;
        Ok((
            String::from_utf8_lossy(&text[..len as usize]).into_owned(),
            priority,
        ))
    }
}

impl Drop for PosixQueue {
    fn drop(&mut self) {
        // SAFETY: its own descriptor and name.
        unsafe {
            libc::mq_close(self.0);
            libc::mq_unlink(self.1.as_ptr());
        }
    }
}

fn posix_queues() -> Result<()> {
    let queue = PosixQueue::new("machine-tests")?;
    for (text, priority) in [("low", 1), ("high", 9), ("low too", 1), ("middle", 5)] {
        queue.send(text, priority)?;
    }
    // SAFETY: valid structures; the descriptor is the queue's.
    let attributes = unsafe {
        let mut new: libc::mq_attr = std::mem::zeroed();
        let mut old: libc::mq_attr = std::mem::zeroed();
        new.mq_flags = libc::O_NONBLOCK.into();
        checked(libc::mq_setattr(queue.0, &new, &mut old))?;
        old
    };
    ensure!(
        (
            attributes.mq_maxmsg,
            attributes.mq_msgsize,
            attributes.mq_curmsgs
        ) == (4, 32, 4),
        "wrong attributes"
    );
    refused(queue.send("too many", 0), libc::EAGAIN, "a full queue")?;
    refused(
        queue.send(&"x".repeat(33), 0),
        libc::EMSGSIZE,
        "too long a message",
    )?;
    let mut poll = libc::pollfd {
        fd: queue.0,
        events: libc::POLLIN | libc::POLLOUT,
        revents: 0,
    };
    // SAFETY: one valid entry.
    checked(unsafe { libc::poll(&mut poll, 1, 0) })?;
    ensure!(
        poll.revents == libc::POLLIN,
        "a full queue is ready for {:#x}",
        poll.revents
    );
    for wanted in [("high", 9), ("middle", 5), ("low", 1), ("low too", 1)] {
        let (text, priority) = queue.receive()?;
        ensure!(
            (text.as_str(), priority) == wanted,
            "{text} of {priority} came instead of {wanted:?}"
        );
    }
    refused(queue.receive(), libc::EAGAIN, "an empty queue")?;
    // SAFETY: as above; blocking again.
    unsafe {
        let new: libc::mq_attr = std::mem::zeroed();
        checked(libc::mq_setattr(queue.0, &new, ptr::null_mut()))?;
        let (mut text, past) = (
            [0u8; 32],
            libc::timespec {
                tv_sec: 1,
                tv_nsec: 0,
            },
        );
        let late = libc::mq_timedreceive(
            queue.0,
            text.as_mut_ptr().cast(),
            32,
            ptr::null_mut(),
            &past,
        );
        refused(
            checked(late as i32),
            libc::ETIMEDOUT,
            "waiting until the past",
        )?;
    }
    thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            (0..50)
                .map(|_| queue.receive().map(|(text, _)| text))
                .collect::<io::Result<Vec<_>>>()
        });
        for turn in 0..50 {
            queue.send(&turn.to_string(), 0)?;
        }
        let got = receiver.join().expect("the thread ended well")?;
        ensure!(
            got.iter()
                .enumerate()
                .all(|(turn, text)| *text == turn.to_string()),
            "out of order: {got:?}"
        );
        Ok(())
    })?;
    // SAFETY: a valid name.
    let second = checked(unsafe { libc::mq_open(queue.1.as_ptr(), libc::O_RDONLY) })?;
    queue.send("for both", 0)?;
    refused(
        // SAFETY: its descriptor.
        checked(unsafe { libc::mq_send(second, c"x".as_ptr(), 1, 0) }),
        libc::EBADF,
        "sending to a reader",
    )?;
    // SAFETY: likewise.
    checked(unsafe { libc::mq_close(second) })?;
    refused(
        PosixQueue::new("a/b")
            .map_err(|e| e.downcast().unwrap_or(io::ErrorKind::Other.into()))
            .map(|q| q.0),
        libc::EACCES,
        "a slash",
    )
}

static NOTIFIED: AtomicU32 = AtomicU32::new(0);

extern "C" fn count_notice(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel gives a valid structure, with a value.
    let value = unsafe { (*info).si_value().sival_ptr as usize };
    NOTIFIED.fetch_add(value as u32, Ordering::SeqCst);
}

fn posix_queues_notify() -> Result<()> {
    let queue = PosixQueue::new("machine-tests-notify")?;
    // SAFETY: valid structures; the handler is a function.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        (action.sa_sigaction, action.sa_flags) = (
            count_notice as *const () as usize,
            libc::SA_SIGINFO | libc::SA_RESTART,
        );
        checked(libc::sigaction(libc::SIGUSR2, &action, ptr::null_mut()))?;
        let mut event: libc::sigevent = std::mem::zeroed();
        (event.sigev_notify, event.sigev_signo) = (libc::SIGEV_SIGNAL, libc::SIGUSR2);
        event.sigev_value.sival_ptr = 7 as *mut libc::c_void;
        checked(libc::syscall(libc::SYS_mq_notify, queue.0, &raw const event) as i32)?;
        let twice = checked(libc::syscall(libc::SYS_mq_notify, queue.0, &raw const event) as i32);
        refused(twice, libc::EBUSY, "asking twice")?;
    }
    queue.send("one", 0)?;
    while NOTIFIED.load(Ordering::SeqCst) == 0 {
        thread::yield_now();
    }
    queue.receive()?;
    queue.send("two", 0)?;
    queue.receive()?;
    ensure!(
        NOTIFIED.load(Ordering::SeqCst) == 7,
        "it was told more than once"
    );
    Ok(())
}

fn permissions() -> Result<()> {
    let (set, queue) = (Semaphores::new(1)?, Letters::new()?);
    in_child(|| {
        // SAFETY: the call takes numbers.
        checked(unsafe { libc::setresuid(1000, 1000, 1000) })?;
        refused(set.value(0), libc::EACCES, "reading root's semaphores")?;
        refused(
            set.operate(&[(0, 1, 0)]),
            libc::EACCES,
            "changing root's semaphores",
        )?;
        refused(
            set.control(0, libc::IPC_RMID, 0),
            libc::EPERM,
            "removing root's semaphores",
        )?;
        refused(
            queue.send(1, b"x", 0),
            libc::EACCES,
            "writing to root's queue",
        )
    })
}

fn another_process_memory() -> Result<()> {
    let text = vec![b'a'; 10_000];
    let (mut first, mut second) = ([0u8; 100], vec![0u8; 9_900]);
    let vector = |bytes: &mut [u8]| libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    let own = std::process::id() as i32;
    let sleeper = in_child(|| {
        let own = [vector(&mut first), vector(&mut second)];
        let theirs = libc::iovec {
            iov_base: text.as_ptr().cast_mut().cast(),
            iov_len: text.len(),
        };
        // SAFETY: the parent's memory is where this process's is, and no reference to `text` is
        // used here.
        let parent = unsafe { libc::getppid() };
        // SAFETY: valid vectors.
        let read = unsafe { libc::process_vm_readv(parent, own.as_ptr(), 2, &theirs, 1, 0) };
        checked(read as i32)?;
        ensure!(
            read == 10_000 && first.iter().chain(&second).all(|&byte| byte == b'a'),
            "{read} bytes were read"
        );
        let from = [b'b'; 5];
        let from = libc::iovec {
            iov_base: from.as_ptr().cast_mut().cast(),
            iov_len: 5,
        };
        let to = libc::iovec {
            iov_base: text.as_ptr().cast_mut().cast(),
            iov_len: 5,
        };
        // SAFETY: likewise; the parent looks at the bytes when this process has ended.
        let written = unsafe { libc::process_vm_writev(parent, &from, 1, &to, 1, 0) };
        ensure!(written == 5, "{written} bytes were written");
        let nowhere = libc::iovec {
            iov_base: 8 as *mut libc::c_void,
            iov_len: 5,
        };
        // SAFETY: the address is checked by the kernel.
        let read = unsafe { libc::process_vm_readv(parent, own.as_ptr(), 2, &nowhere, 1, 0) };
        refused(checked(read as i32), libc::EFAULT, "reading nowhere")
    });
    sleeper?;
    ensure!(
        std::hint::black_box(&text)[..6] == *b"bbbbba",
        "the parent sees {:?}",
        &text[..6]
    );
    in_child(|| {
        // SAFETY: the call takes numbers.
        checked(unsafe { libc::setresuid(1000, 1000, 1000) })?;
        let vector = libc::iovec {
            iov_base: text.as_ptr().cast_mut().cast(),
            iov_len: 5,
        };
        // SAFETY: valid vectors.
        let read = unsafe { libc::process_vm_readv(own, &vector, 1, &vector, 1, 0) };
        refused(checked(read as i32), libc::EPERM, "reading root's memory")
    })
}

fn what_processes_share() -> Result<()> {
    let own = std::process::id() as i32;
    // SAFETY: the call takes numbers.
    let compare = |pid: i32, kind: i32, a: i32, b: i32| unsafe {
        libc::syscall(libc::SYS_kcmp, own, pid, kind, a, b)
    };
    let (file, memory) = (0, 1);
    // SAFETY: its own descriptor.
    let copy = checked(unsafe { libc::dup(0) })?;
    ensure!(
        compare(own, file, 0, copy) == 0,
        "a copy of a descriptor is another file"
    );
    ensure!(
        compare(own, memory, 0, 0) == 0,
        "a process does not share with itself"
    );
    let parent = own;
    in_child(|| {
        let child = std::process::id() as i32;
        // SAFETY: the call takes numbers.
        let compare =
            |kind: i32| unsafe { libc::syscall(libc::SYS_kcmp, parent, child, kind, 0, 0) };
        ensure!(
            compare(file) == 0 && (1..=2).contains(&compare(memory)),
            "{} {}",
            compare(file),
            compare(memory)
        );
        ensure!(compare(99) == -1, "there is no such kind");
        Ok(())
    })
}

fn memory_policy() -> Result<()> {
    const PREFERRED: i32 = 1;
    const BIND: i32 = 2;
    let (node, two) = ([1u64], [2u64]);
    let set = |mode: i32, mask: &[u64; 1]| {
        // SAFETY: a mask of 64 bits, and numbers.
        checked(unsafe { libc::syscall(libc::SYS_set_mempolicy, mode, mask, 64) } as i32)
    };
    if set(BIND, &node).is_err_and(|e| e.raw_os_error() == Some(libc::EPERM)) {
        // Refused from outside, as containers do.
        return Ok(());
    }
    let (mut mode, mut mask) = (0i32, [0u64; 16]);
    // SAFETY: room for the mode and 1024 bits.
    checked(unsafe {
        libc::syscall(
            libc::SYS_get_mempolicy,
            &raw mut mode,
            &raw mut mask,
            1024,
            0,
            0,
        )
    } as i32)?;
    ensure!(
        mode == BIND && mask[0] == 1,
        "the policy is {mode} of {:#x}",
        mask[0]
    );
    refused(set(9, &node), libc::EINVAL, "no policy")?;
    refused(set(BIND, &[0]), libc::EINVAL, "no node")?;
    refused(
        set(PREFERRED, &[1 << 62]),
        libc::EINVAL,
        "a node that is not there",
    )?;
    // SAFETY: the default takes no mask.
    checked(unsafe { libc::syscall(libc::SYS_set_mempolicy, 0, 0, 0) } as i32)?;
    let memory = vec![0u8; 1 << 16];
    let page = memory.as_ptr().addr().next_multiple_of(4096);
    // SAFETY: mapped pages, and a mask.
    checked(unsafe { libc::syscall(libc::SYS_mbind, page, 4096, PREFERRED, &node, 64, 0) } as i32)?;
    let told = |at: usize| {
        let mut mode = -1;
        // SAFETY: room for the mode; an address to be asked about.
        checked(
            unsafe { libc::syscall(libc::SYS_get_mempolicy, &raw mut mode, 0, 0, at, 2) } as i32,
        )
        .map(|_| mode)
    };
    ensure!(
        told(page)? == PREFERRED && told(page + 4096)? == 0,
        "{} and {}",
        told(page)?,
        told(page + 4096)?
    );
    let home = |at: usize| {
        // SAFETY: numbers.
        checked(unsafe { libc::syscall(libc::SYS_set_mempolicy_home_node, at, 4096, 0, 0) } as i32)
    };
    refused(
        home(page),
        libc::EOPNOTSUPP,
        "a home of what is preferred elsewhere",
    )?;
    refused(home(page + 4096), libc::ENOENT, "a home without a policy")?;
    // SAFETY: as above.
    checked(unsafe { libc::syscall(libc::SYS_mbind, page, 4096, BIND, &node, 64, 0) } as i32)?;
    home(page)?;
    let maps = std::fs::read_to_string("/proc/self/numa_maps")?;
    let line = format!("{page:08x} bind:0 ");
    ensure!(
        maps.lines().any(|l| l.starts_with(&line)),
        "{line} is not in {maps}"
    );
    // SAFETY: likewise; the default takes no mask.
    checked(unsafe { libc::syscall(libc::SYS_mbind, page, 4096, 0, 0, 0, 0) } as i32)?;
    ensure!(told(page)? == 0, "the policy stays");
    // SAFETY: likewise.
    refused(
        checked(unsafe { libc::syscall(libc::SYS_mbind, page + 1, 4096, 1, &two, 64, 0) } as i32),
        libc::EINVAL,
        "half a page",
    )
}

fn priorities_of_input() -> Result<()> {
    // SAFETY: the calls take numbers.
    let get = || checked(unsafe { libc::syscall(libc::SYS_ioprio_get, 1, 0) } as i32);
    let set = |priority: i32| {
        // SAFETY: likewise.
        checked(unsafe { libc::syscall(libc::SYS_ioprio_set, 1, 0, priority) } as i32)
    };
    in_child(|| {
        set(2 << 13 | 6)?;
        ensure!(get()? == 2 << 13 | 6, "it is {:#x}", get()?);
        refused(set(5 << 13), libc::EINVAL, "no class")?;
        set(3 << 13)?;
        ensure!(get()? >> 13 == 3, "it is {:#x}", get()?);
        // SAFETY: likewise.
        checked(unsafe { libc::setresuid(1000, 1000, 1000) })?;
        refused(
            set(1 << 13),
            libc::EPERM,
            "an ordinary user before all others",
        )
    })
}

fn clock_is_read() -> Result<()> {
    // SAFETY: a valid structure.
    let (result, state) = unsafe {
        let mut state: libc::timex = std::mem::zeroed();
        (libc::adjtimex(&mut state), state)
    };
    checked(result)?;
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
    let told = Duration::from_secs(state.time.tv_sec as u64);
    ensure!(
        since.abs_diff(told) < Duration::from_secs(5) && state.tick == 10_000,
        "{told:?}, tick {}",
        state.tick
    );
    in_child(|| {
        // SAFETY: the call takes numbers.
        checked(unsafe { libc::setresuid(1000, 1000, 1000) })?;
        let mut change = state;
        change.modes = libc::ADJ_FREQUENCY;
        // SAFETY: a valid structure.
        refused(
            checked(unsafe { libc::adjtimex(&mut change) }),
            libc::EPERM,
            "an ordinary user's setting of the clock",
        )
    })
}

fn unshare_and_numbers() -> Result<()> {
    in_child(|| {
        // SAFETY: the calls take numbers.
        unsafe {
            checked(libc::unshare(libc::CLONE_FILES | libc::CLONE_FS))?;
            refused(
                checked(libc::unshare(1)),
                libc::EINVAL,
                "sharing nothing that there is",
            )?;
            checked(libc::setresuid(1000, 1000, 1000))?;
            refused(
                checked(libc::unshare(libc::CLONE_NEWNS)),
                libc::EPERM,
                "an ordinary user's new namespace",
            )
        }
    })?;
    const CLEAR_SIGHAND: u64 = 1 << 32;
    // SAFETY: `clone3` with a copy of everything; the child ends at once.
    unsafe {
        libc::signal(libc::SIGUSR1, count_notice as *const () as usize);
        let mut arguments = [0u64; 11];
        (arguments[0], arguments[4]) = (CLEAR_SIGHAND, libc::SIGCHLD as u64);
        let pid = checked(libc::syscall(
            libc::SYS_clone3,
            arguments.as_mut_ptr(),
            size_of_val(&arguments),
        ) as i32)?;
        if pid == 0 {
            let old = libc::signal(libc::SIGUSR1, libc::SIG_DFL);
            libc::_exit(i32::from(old != libc::SIG_DFL));
        }
        let mut status = 0;
        checked(libc::waitpid(pid, &mut status, 0))?;
        ensure!(status == 0, "the child kept its handlers: {status:#x}");
    }
    Ok(())
}
