//! Descriptors, and reading and writing by them.

use uapi::fd::Fd;
use uapi::user_addr::UserAddr;

use super::{BAD, User, bad, outcome, task};
use crate::Task;
use crate::files::fcntl::{sys_close, sys_close_range, sys_dup2, sys_dup3, sys_fcntl};
use crate::files::namei::sys_openat;
use crate::files::pipe::{sys_eventfd2, sys_pipe2};
use crate::files::read_write::{
    sys_lseek, sys_pread64, sys_preadv, sys_pwrite64, sys_read, sys_write, sys_writev,
};
use crate::uaccess::UserPtr;
use crate::uio::IoVec;

const EBADF: i32 = 9;
const EAGAIN: i32 = 11;
const EFAULT: i32 = 14;
const EEXIST: i32 = 17;
const EINVAL: i32 = 22;
const EMFILE: i32 = 24;
const ESPIPE: i32 = 29;
const O_CREAT: u32 = 0o100;
const O_EXCL: u32 = 0o200;
const O_NONBLOCK: u32 = 0o4000;
const O_CLOEXEC: u32 = 0o2_000_000;
const F_DUPFD: u32 = 0;
const F_GETFD: u32 = 1;
const F_GETFL: u32 = 3;
const F_DUPFD_CLOEXEC: u32 = 1030;

fn open(task: &Task, name: &[u8], flags: u32) -> Result<usize, i32> {
    outcome(sys_openat(
        task,
        Fd::CWD,
        User::new(<[u8; 16]>::try_from(name).unwrap()).addr(),
        flags,
        0o644,
    ))
}

const NAME: &[u8] = b"/a-file-to-open\0";

#[test]
fn files_are_read_where_they_were_written() {
    let task = task();
    let fd = Fd::from_index(open(&task, NAME, O_CREAT | 2).unwrap());
    assert_eq!(open(&task, NAME, O_CREAT | O_EXCL), Err(EEXIST));
    let text = User::new(*b"0123456789");
    assert_eq!(outcome(sys_write(&task, fd, text.addr(), 10)), Ok(10));
    let got = User::new([0u8; 10]);
    assert_eq!(
        outcome(sys_read(&task, fd, got.addr(), 10)),
        Ok(0),
        "at the end"
    );
    assert_eq!(outcome(sys_pread64(&task, fd, got.addr(), 3, 4)), Ok(3));
    assert_eq!(&got.get()[..3], b"456");
    assert_eq!(outcome(sys_pwrite64(&task, fd, text.addr(), 2, 12)), Ok(2));
    assert_eq!(outcome(sys_lseek(&task, fd, 0, 2)), Ok(14));
    assert_eq!(outcome(sys_lseek(&task, fd, -15, 1)), Err(EINVAL));
    assert_eq!(outcome(sys_lseek(&task, fd, 8, 0)), Ok(8));
    assert_eq!(outcome(sys_read(&task, fd, got.addr(), 10)), Ok(6));
    assert_eq!(&got.get()[..6], b"89\0\x0001", "a hole of zeros");
    assert_eq!(
        outcome(sys_pread64(&task, fd, got.addr(), 1, -1)),
        Err(EINVAL)
    );
    assert_eq!(outcome(sys_read(&task, fd, BAD, 1)), Err(EFAULT));
    assert_eq!(
        outcome(sys_read(&task, Fd::new(-1), got.addr(), 1)),
        Err(EBADF)
    );
    let other = Fd::from_index(open(&task, NAME, 0).unwrap());
    assert_eq!(
        outcome(sys_write(&task, other, text.addr(), 1)),
        Err(EBADF),
        "open for reading"
    );
}

#[test]
fn several_buffers_are_one_transfer() {
    let task = task();
    let fd = Fd::from_index(open(&task, NAME, O_CREAT | 2).unwrap());
    let (one, other) = (User::new(*b"abc"), User::new(*b"defg"));
    let iov = |parts: [(UserAddr, u64); 3]| {
        User::new(parts.map(|(base, len)| IoVec {
            base: base.raw() as u64,
            len,
        }))
    };
    let list = iov([(one.addr(), 3), (BAD, 0), (other.addr(), 4)]);
    assert_eq!(
        outcome(sys_writev(&task, fd, UserPtr::new(list.addr()), 3)),
        Ok(7)
    );
    let (first, second) = (User::new([0u8; 5]), User::new([0u8; 5]));
    let into = iov([(first.addr(), 5), (second.addr(), 5), (second.addr(), 0)]);
    assert_eq!(
        outcome(sys_preadv(&task, fd, UserPtr::new(into.addr()), 3, 1)),
        Ok(6)
    );
    assert_eq!((&first.get(), &second.get()[..1]), (b"bcdef", &b"g"[..]));
    assert_eq!(
        outcome(sys_writev(&task, fd, UserPtr::new(list.addr()), 1025)),
        Err(EINVAL)
    );
    assert_eq!(outcome(sys_writev(&task, fd, bad(), 1)), Err(EFAULT));
    let negative = iov([
        (one.addr(), u64::MAX),
        (UserAddr::NULL, 0),
        (UserAddr::NULL, 0),
    ]);
    assert_eq!(
        outcome(sys_writev(&task, fd, UserPtr::new(negative.addr()), 3)),
        Err(EINVAL)
    );
}

#[test]
fn descriptors_are_the_lowest_free_and_flags_are_their_own() {
    let task = task();
    let fd = open(&task, NAME, O_CREAT | O_CLOEXEC).unwrap();
    assert_eq!(fd, 0);
    let fcntl =
        |fd: usize, command, arg| outcome(sys_fcntl(&task, Fd::from_index(fd), command, arg));
    assert_eq!(fcntl(0, F_GETFD, 0), Ok(1));
    assert_eq!(fcntl(0, F_DUPFD, 5), Ok(5));
    assert_eq!(fcntl(5, F_GETFD, 0), Ok(0), "a copy has none");
    assert_eq!(fcntl(0, F_DUPFD_CLOEXEC, 5), Ok(6));
    assert_eq!(fcntl(6, F_GETFD, 0), Ok(1));
    assert_eq!(fcntl(0, F_DUPFD, 1 << 30), Err(EINVAL));
    assert_eq!(outcome(sys_dup2(&task, Fd::new(0), Fd::new(0))), Ok(0));
    assert_eq!(
        outcome(sys_dup3(&task, Fd::new(0), Fd::new(0), 0)),
        Err(EINVAL)
    );
    assert_eq!(
        outcome(sys_dup3(&task, Fd::new(0), Fd::new(5), O_CLOEXEC)),
        Ok(5)
    );
    assert_eq!(fcntl(5, F_GETFD, 0), Ok(1));
    assert_eq!(outcome(sys_close(&task, Fd::new(0))), Ok(0));
    assert_eq!(outcome(sys_close(&task, Fd::new(0))), Err(EBADF));
    assert_eq!(open(&task, NAME, 0), Ok(0));
    assert_eq!(outcome(sys_close_range(&task, 5, u32::MAX, 0)), Ok(0));
    assert_eq!(fcntl(6, F_GETFD, 0), Err(EBADF));
    assert_eq!(outcome(sys_close_range(&task, 6, 5, 0)), Err(EINVAL));
    task.files().set_limit(2);
    assert_eq!(open(&task, NAME, 0), Ok(1));
    assert_eq!(open(&task, NAME, 0), Err(EMFILE));
}

#[test]
fn pipes_tell_that_nothing_is_there_and_that_nobody_writes() {
    let task = task();
    let fds = User::new([Fd::new(-1); 2]);
    assert_eq!(
        outcome(sys_pipe2(&task, fds.ptr(), O_NONBLOCK | O_CLOEXEC)),
        Ok(0)
    );
    let [from, to] = fds.get();
    let byte = User::new([7u8; 4]);
    assert_eq!(outcome(sys_read(&task, from, byte.addr(), 4)), Err(EAGAIN));
    assert_eq!(outcome(sys_write(&task, to, byte.addr(), 3)), Ok(3));
    assert_eq!(outcome(sys_lseek(&task, to, 0, 0)), Err(ESPIPE));
    assert_eq!(outcome(sys_read(&task, from, byte.addr(), 4)), Ok(3));
    assert_eq!(
        outcome(sys_fcntl(&task, from, F_GETFL, 0)),
        Ok(O_NONBLOCK as usize)
    );
    assert_eq!(outcome(sys_close(&task, to)), Ok(0));
    assert_eq!(outcome(sys_read(&task, from, byte.addr(), 4)), Ok(0));
    assert_eq!(outcome(sys_pipe2(&task, bad(), 0)), Err(EFAULT));
    assert!(
        task.files().find(to).is_none(),
        "no descriptor is left behind by a pipe that failed"
    );
    assert_eq!(outcome(sys_pipe2(&task, fds.ptr(), 1)), Err(EINVAL));
}

#[test]
fn an_eventfd_counts() {
    let task = task();
    let fd = Fd::from_index(outcome(sys_eventfd2(&task, 2, O_NONBLOCK)).unwrap());
    let count = User::new(40u64);
    assert_eq!(outcome(sys_write(&task, fd, count.addr(), 8)), Ok(8));
    assert_eq!(outcome(sys_read(&task, fd, count.addr(), 8)), Ok(8));
    assert_eq!(count.get(), 42);
    assert_eq!(outcome(sys_read(&task, fd, count.addr(), 8)), Err(EAGAIN));
    assert_eq!(outcome(sys_read(&task, fd, count.addr(), 7)), Err(EINVAL));
    assert_eq!(
        outcome(sys_write(&task, fd, User::new(u64::MAX).addr(), 8)),
        Err(EINVAL)
    );
}
