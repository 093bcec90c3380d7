//! Signals that are read: `signalfd(2)`. Whoever reads gets its own signals and its process's, not
//! the maker's, as on Linux.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};

use abi::errno::Errno;
use fs::poll::{Events, PollTable};
use fs::{File, FileOps, OpenFlags, Whence};
use linux_raw_sys::general as sys;
use uapi::fd::Fd;
use uapi::siginfo::{SigInfo, SigSet, UNBLOCKABLE};

use crate::state::fdtable::CloseOnExec;
use crate::uaccess::UserPtr;
use crate::{SysResult, Task, current_task};

/// The size of `struct signalfd_siginfo`.
const RECORD: usize = 128;

struct SignalFd {
    _counted: census::SignalFd,
    wanted: AtomicU64,
}

/// A signal as `struct signalfd_siginfo`: the fields that its code gives a meaning to, the others
/// 0.
fn record(info: &SigInfo) -> [u8; RECORD] {
    let f = &info.fields;
    let long = |at: usize| u64::from(f[at]) | u64::from(f[at + 1]) << 32;
    let mut bytes = [0; RECORD];
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    put(0, &info.signo.to_ne_bytes());
    put(4, &info.errno.to_ne_bytes());
    put(8, &info.code.to_ne_bytes());
    let faults = [
        sys::SIGILL,
        sys::SIGFPE,
        sys::SIGSEGV,
        sys::SIGBUS,
        sys::SIGTRAP,
    ]
    .contains(&info.signo.cast_unsigned());
    if info.code == sys::SI_TIMER {
        // Timer, overrun, value.
        put(24, &f[0].to_ne_bytes());
        put(32, &f[1].to_ne_bytes());
        put(44, &f[2].to_ne_bytes());
        put(48, &long(2).to_ne_bytes());
    } else if faults && info.code > 0 {
        put(72, &long(0).to_ne_bytes());
    } else {
        put(12, &f[0].to_ne_bytes());
        put(16, &f[1].to_ne_bytes());
        if info.signo.cast_unsigned() == sys::SIGCHLD && info.code > 0 {
            put(40, &f[2].to_ne_bytes());
            put(56, &long(4).to_ne_bytes());
            put(64, &long(6).to_ne_bytes());
        } else if info.code < 0 {
            put(44, &f[2].to_ne_bytes());
            put(48, &long(2).to_ne_bytes());
        }
    }
    bytes
}

impl SignalFd {
    /// Signals that the descriptor reads.
    fn mask(&self) -> SigSet {
        self.wanted.load(Ordering::Relaxed)
    }
}

impl FileOps for SignalFd {
    fn read(&self, file: &File, buf: &mut [u8]) -> fs::Result<usize> {
        let task = current_task().ok_or(Errno::EAGAIN)?;
        let attempt = || task.dequeue_signal(self.mask());
        let mut done = 0;
        for room in buf.as_chunks_mut::<RECORD>().0 {
            let info = match attempt() {
                Some(info) => info,
                None if done > 0 => break,
                None if file.is_nonblocking() => return Err(Errno::EAGAIN),
                None => task.process().signal_sent.wait(attempt)?,
            };
            *room = record(&info);
            done += RECORD;
        }
        if done == 0 {
            Err(Errno::EINVAL)
        } else {
            Ok(done)
        }
    }

    fn min_transfer(&self) -> usize {
        RECORD
    }

    fn poll(&self, _: &File, table: Option<&mut PollTable>) -> Events {
        let Some(task) = current_task() else {
            return Events::empty();
        };
        if let Some(table) = table {
            table.poll_wait(&task.process().signal_sent);
        }
        if task.pending_signals() & self.mask() != 0 {
            Events::IN
        } else {
            Events::empty()
        }
    }

    /// Moves nothing: the descriptor has a position that stays 0.
    fn seek(&self, _: &File, _: Whence, _: i64) -> fs::Result<u64> {
        Ok(0)
    }
}

/// `signalfd4(2)`: makes or changes a descriptor of signals, with flags.
pub fn sys_signalfd4(
    task: &Task,
    fd: Fd,
    mask: UserPtr<SigSet>,
    size: usize,
    flags: u32,
) -> SysResult {
    if size != size_of::<SigSet>() {
        return Err(Errno::EINVAL);
    }
    let wanted = mask.read()? & !UNBLOCKABLE;
    if flags & !(sys::O_CLOEXEC | sys::O_NONBLOCK) != 0 {
        return Err(Errno::EINVAL);
    }
    if fd != Fd::new(-1) {
        let file = task.file_io(fd)?;
        file.ops_as::<SignalFd>()
            .ok_or(Errno::EINVAL)?
            .wanted
            .store(wanted, Ordering::Relaxed);
        task.process().signal_sent.notify();
        return Ok(fd.index());
    }
    let open = OpenFlags::RDWR | OpenFlags::from_bits_retain(flags & sys::O_NONBLOCK);
    let file = File::anonymous(
        "anon_inode:[signalfd]",
        Arc::new(SignalFd {
            _counted: census::SignalFd::default(),
            wanted: AtomicU64::new(wanted),
        }),
        open,
    );
    task.files()
        .install(file, CloseOnExec::when(flags & sys::O_CLOEXEC != 0))
}

/// `signalfd(2)`: makes or changes a descriptor of signals.
pub fn sys_signalfd(task: &Task, fd: Fd, mask: UserPtr<SigSet>, size: usize) -> SysResult {
    sys_signalfd4(task, fd, mask, size, 0)
}
