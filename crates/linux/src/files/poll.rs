//! Waiting for several files: `poll(2)`, `select(2)`, `epoll_wait(2)`.

use alloc::sync::Arc;
use alloc::vec::Vec;

use ::task::Deadline;
use abi::errno::Errno;
use fs::epoll::{self, EpollFile, Interest};
use fs::poll::{self, Events, PollPass};
use fs::{File, OpenFlags};
use linux_raw_sys::general as sys;
use uapi::fd::Fd;
use uapi::time::{NS_PER_SEC, TimeSpec, TimeVal};
use uapi::user_addr::UserAddr;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::process::personality::{STICKY_TIMEOUTS, has_personality_bit};
use crate::process::task::RestartBlock;
use crate::state::fdtable::{CloseOnExec, FdCursor};
use crate::uaccess::{self, UserPtr};
use crate::{SysResult, Task};

/// The deadline a time span from now. Too far away is never.
fn deadline(span: TimeSpec) -> Result<Option<Deadline>, Errno> {
    if span.sec < 0 || !(0..NS_PER_SEC as i64).contains(&span.nsec) {
        return Err(Errno::EINVAL);
    }
    let span_ns = (span.sec as u64)
        .checked_mul(NS_PER_SEC)
        .and_then(|ns| ns.checked_add(span.nsec as u64));
    Ok(span_ns
        .and_then(|span_ns| task::now_ns().checked_add(span_ns))
        .map(Deadline::at_ns))
}

/// Reads a time span and makes a [`deadline`] of it; a null pointer is none.
fn user_deadline(ptr: UserPtr<TimeSpec>) -> Result<Option<Deadline>, Errno> {
    if ptr.is_null() {
        Ok(None)
    } else {
        deadline(ptr.read()?)
    }
}

/// The deadline `ms` milliseconds from now; negative is never.
fn deadline_ms(ms: i32) -> Option<Deadline> {
    u64::try_from(ms).ok().map(|ms| match ms {
        0 => Deadline::PASSED,
        ms => Deadline::after_ns(ms * 1_000_000),
    })
}

/// Stores what is left until the deadline, where the caller gave one. Where that cannot be, the
/// call has succeeded all the same, but one that a signal ended cannot be taken up again: it would
/// wait for the whole time.
fn with_remaining<T: FromBytes + IntoBytes + Immutable>(
    result: SysResult,
    task: &Task,
    ptr: UserPtr<T>,
    deadline: Option<Deadline>,
    from_ns: impl FnOnce(u64) -> T,
) -> SysResult {
    let Some(deadline) = deadline.filter(|_| !ptr.is_null()) else {
        return result;
    };
    let rest = from_ns(deadline.remaining_ns());
    let stored = !has_personality_bit(task, STICKY_TIMEOUTS) && ptr.write(&rest).is_ok();
    result.map_err(|e| {
        if e == Errno::ERESTARTNOHAND && !stored {
            Errno::EINTR
        } else {
            e
        }
    })
}

/// A wait that a signal ended is taken up again unless a handler runs.
fn restartable(result: Result<usize, Errno>) -> SysResult {
    result.map_err(|e| {
        if e == Errno::EINTR {
            Errno::ERESTARTNOHAND
        } else {
            e
        }
    })
}

/// A descriptor with the events that are asked for and those that are there: `struct pollfd`.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct PollFd {
    fd: Fd,
    events: u16,
    revents: u16,
}

/// Number of descriptors up to which a call needs no memory.
const FEW: usize = 16;

fn do_poll(task: &Task, fds: UserAddr, count: usize, deadline: Option<Deadline>) -> SysResult {
    let files = task.files();
    if count > files.limit() {
        return Err(Errno::EINVAL);
    }
    let mut few = [PollFd::default(); FEW];
    let mut many;
    let list = if let Some(list) = few.get_mut(..count) {
        list
    } else {
        many = fallible::with_capacity(count)?;
        many.resize(count, PollFd::default());
        &mut many[..]
    };
    uaccess::read_bytes(fds, list.as_mut_bytes())?;
    // Those that the thread waits for, in the order of the list.
    let mut waited_for = Vec::new();
    if deadline != Some(Deadline::PASSED) {
        waited_for
            .try_reserve_exact(count)
            .map_err(|_| Errno::ENOMEM)?;
    }
    let ready = poll::poll(deadline, |pass| {
        if pass.is_first() {
            let mut cursor = files.cursor();
            for entry in &mut *list {
                let file = entry.poll_first(&mut cursor, pass);
                if deadline != Some(Deadline::PASSED) {
                    waited_for.push(file);
                }
            }
        } else {
            for (entry, file) in list.iter_mut().zip(&waited_for) {
                if let Some(file) = file {
                    entry.poll(file, pass);
                }
            }
        }
    });
    // As Linux: they are stored whether or not a signal ended the wait.
    store_events(fds, list)?;
    ready
}

/// Stores the events that are there, and leaves the rest of each entry as it is, which another
/// thread may have changed meanwhile. Most entries have had the same before: what is there is read
/// again, and only what differs is written, with enough entries of each page that memory which
/// cannot be written to is noticed.
fn store_events(fds: UserAddr, list: &[PollFd]) -> Result<(), Errno> {
    let user = UserPtr::<PollFd>::new(fds);
    let mut there = [PollFd::default(); FEW];
    for (chunk, entries) in list.chunks(FEW).enumerate() {
        let first = chunk * FEW;
        let there = &mut there[..entries.len()];
        uaccess::read_bytes(user.add(first).addr(), there.as_mut_bytes())?;
        for (index, (entry, there)) in entries.iter().zip(&*there).enumerate() {
            if index == 0 || index + 1 == entries.len() || entry.revents != there.revents {
                let at = user.add(first + index).addr();
                let revents = at.wrapping_add(core::mem::offset_of!(PollFd, revents));
                UserPtr::new(revents).write(&entry.revents)?;
            }
        }
    }
    Ok(())
}

impl PollFd {
    /// Polls the file of the descriptor, and returns it.
    #[inline(always)]
    fn poll_first(
        &mut self,
        cursor: &mut FdCursor<'_>,
        pass: &mut PollPass<'_>,
    ) -> Option<Arc<File>> {
        self.revents = 0;
        if self.fd.is_negative() {
            return None;
        }
        let file = cursor.get_io(self.fd);
        if let Some(file) = &file {
            self.poll(file, pass);
        } else {
            self.revents = Events::NVAL.bits() as u16;
            pass.count_ready();
        }
        file
    }

    #[inline(always)]
    fn poll(&mut self, file: &File, pass: &mut PollPass<'_>) {
        let wanted = Events::from_bits_truncate(u32::from(self.events)) | Events::ALWAYS;
        self.revents = pass.poll(file, wanted).bits() as u16;
    }
}

/// `poll(2)`: waits for events on descriptors; the timeout is in milliseconds.
pub fn sys_poll(task: &Task, fds: UserAddr, count: usize, timeout_ms: i32) -> SysResult {
    poll_until(task, fds, count, deadline_ms(timeout_ms))
}

/// Polls until a deadline; taken up again after a signal, the call still ends then.
pub(crate) fn poll_until(
    task: &Task,
    fds: UserAddr,
    count: usize,
    deadline: Option<Deadline>,
) -> SysResult {
    do_poll(task, fds, count, deadline).map_err(|e| match e {
        Errno::EINTR => {
            *task.restart_block.lock() = Some(RestartBlock::Poll {
                fds,
                count,
                deadline,
            });
            Errno::ERESTART_RESTARTBLOCK
        }
        other => other,
    })
}

/// `ppoll(2)`: waits for events on descriptors, with a mask of signals.
pub fn sys_ppoll(
    task: &Task,
    fds: UserAddr,
    count: usize,
    timeout: UserPtr<TimeSpec>,
    mask: UserPtr<u64>,
    size: usize,
) -> SysResult {
    let deadline = user_deadline(timeout)?;
    task.with_signal_mask(mask, size, || {
        let result = restartable(do_poll(task, fds, count, deadline));
        with_remaining(result, task, timeout, deadline, TimeSpec::from_ns)
    })
}

/// The sets of `select(2)`, as words of user memory.
const IN_SET: Events = Events::READABLE.union(Events::RDBAND).union(Events::ALWAYS);
const OUT_SET: Events = Events::WRITABLE.union(Events::WRBAND).union(Events::ERR);
const EXCEPT_SET: Events = Events::PRI;

/// A set of descriptors, in words.
fn empty_set(words: usize) -> Result<Vec<u64>, Errno> {
    let mut set = fallible::with_capacity(words)?;
    set.resize(words, 0);
    Ok(set)
}

fn do_select(
    task: &Task,
    count: i32,
    sets: [UserAddr; 3],
    deadline: Option<Deadline>,
) -> SysResult {
    let files = task.files();
    let count = usize::try_from(count)
        .map_err(|_| Errno::EINVAL)?
        .min(files.size());
    let words = count.div_ceil(64);
    let mut asked = [empty_set(words)?, empty_set(words)?, empty_set(words)?];
    for (set, &addr) in asked.iter_mut().zip(&sets) {
        // Of no descriptors nothing is read or written, wherever that is.
        if !addr.is_null() && words > 0 {
            uaccess::read_bytes(addr, set.as_mut_slice().as_mut_bytes())?;
        }
    }
    let wanted_of = |fd: usize| {
        let mut wanted = Events::empty();
        for (set, kind) in asked.iter().zip([IN_SET, OUT_SET, EXCEPT_SET]) {
            wanted |= if set[fd / 64] >> (fd % 64) & 1 != 0 {
                kind
            } else {
                Events::empty()
            };
        }
        wanted
    };
    for fd in (0..count).filter(|&fd| !wanted_of(fd).is_empty()) {
        files.get_io(Fd::from_index(fd))?;
    }
    let mut found = [empty_set(words)?, empty_set(words)?, empty_set(words)?];
    poll::poll(deadline, |pass| {
        for fd in 0..count {
            let wanted = wanted_of(fd);
            if wanted.is_empty() {
                continue;
            }
            // One that was closed meanwhile has nothing to report.
            let Ok(file) = files.get_io(Fd::from_index(fd)) else {
                continue;
            };
            let events = pass.poll(&file, wanted);
            for (set, kind) in found.iter_mut().zip([IN_SET, OUT_SET, EXCEPT_SET]) {
                set[fd / 64] |= u64::from(events.intersects(kind)) << (fd % 64);
            }
        }
    })?;
    let mut ready = 0;
    for ((found, asked), &addr) in found.iter_mut().zip(&asked).zip(&sets) {
        for (found, asked) in found.iter_mut().zip(asked) {
            *found &= asked;
            ready += found.count_ones() as usize;
        }
        if !addr.is_null() && words > 0 {
            uaccess::write_bytes(addr, found.as_slice().as_bytes())?;
        }
    }
    Ok(ready)
}

/// `select(2)`: waits for descriptors in three sets.
pub fn sys_select(
    task: &Task,
    count: i32,
    read: UserAddr,
    write: UserAddr,
    except: UserAddr,
    timeout: UserPtr<TimeVal>,
) -> SysResult {
    let deadline = if timeout.is_null() {
        None
    } else {
        // As Linux does: microseconds beyond a second are carried over, negative ones make the
        // rest negative and thereby invalid, and so does a sum beyond the range.
        let TimeVal { sec, usec } = timeout.read()?;
        deadline(TimeSpec {
            sec: sec.wrapping_add(usec / 1_000_000),
            nsec: usec % 1_000_000 * 1000,
        })?
    };
    let result = restartable(do_select(task, count, [read, write, except], deadline));
    with_remaining(result, task, timeout, deadline, TimeVal::from_ns)
}

/// The last argument of `pselect6(2)`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SigSetArg {
    /// Address of the mask.
    address: u64,
    /// Bytes of the mask.
    size: u64,
}

/// `pselect6(2)`: waits like `select(2)` with another signal mask.
pub fn sys_pselect6(
    task: &Task,
    count: i32,
    read: UserAddr,
    write: UserAddr,
    except: UserAddr,
    timeout: UserPtr<TimeSpec>,
    mask: UserPtr<SigSetArg>,
) -> SysResult {
    let mask = mask.read_optional()?.unwrap_or(SigSetArg {
        address: 0,
        size: size_of::<u64>() as u64,
    });
    let deadline = user_deadline(timeout)?;
    let address = UserPtr::<u64>::new(mask.address.into());
    task.with_signal_mask(address, mask.size as usize, || {
        let result = restartable(do_select(task, count, [read, write, except], deadline));
        with_remaining(result, task, timeout, deadline, TimeSpec::from_ns)
    })
}

/// `epoll_create1(2)`: makes an epoll descriptor, with flags.
pub fn sys_epoll_create1(task: &Task, flags: u32) -> SysResult {
    if flags & !sys::EPOLL_CLOEXEC != 0 {
        return Err(Errno::EINVAL);
    }
    task.files().install(
        epoll::epoll_for(Some(task.cred().user.real), OpenFlags::empty()),
        CloseOnExec::when(flags & sys::EPOLL_CLOEXEC != 0),
    )
}

/// `epoll_create(2)`: makes an epoll descriptor.
pub fn sys_epoll_create(task: &Task, size: i32) -> SysResult {
    if size <= 0 {
        Err(Errno::EINVAL)
    } else {
        sys_epoll_create1(task, 0)
    }
}

/// `struct epoll_event`, which is packed on x86-64.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, packed)]
pub struct EpollEvent {
    events: u32,
    data: u64,
}

/// `epoll_ctl(2)`: adds, changes or removes a descriptor of an epoll set.
pub fn sys_epoll_ctl(
    task: &Task,
    set_fd: Fd,
    operation: u32,
    fd: Fd,
    event: UserPtr<EpollEvent>,
) -> SysResult {
    let files = task.files();
    let interest = if operation == sys::EPOLL_CTL_DEL {
        Interest { events: 0, data: 0 }
    } else {
        let event = event.read()?;
        Interest {
            events: event.events,
            data: event.data,
        }
    };
    let (set_file, file) = (files.get_io(set_fd)?, files.get_io(fd)?);
    if !file.ops().is_pollable() {
        return Err(Errno::EPERM);
    }
    if Arc::ptr_eq(&set_file, &file) {
        return Err(Errno::EINVAL);
    }
    let set = set_file
        .ops_as::<EpollFile>()
        .ok_or(Errno::EINVAL)?
        .instance();
    match operation {
        sys::EPOLL_CTL_ADD => set.add(fd.raw(), &file, interest)?,
        sys::EPOLL_CTL_MOD if interest.events & sys::EPOLLEXCLUSIVE != 0 => {
            return Err(Errno::EINVAL);
        }
        sys::EPOLL_CTL_MOD => set.modify(fd.raw(), &file, interest)?,
        sys::EPOLL_CTL_DEL => set.remove(fd.raw(), &file)?,
        _ => return Err(Errno::EINVAL),
    }
    Ok(0)
}

/// The most events that one call may ask for (Linux' `EP_MAX_EVENTS`).
const MAX_EVENTS: usize = i32::MAX as usize / size_of::<EpollEvent>();

fn do_epoll_wait(
    task: &Task,
    set_fd: Fd,
    events: UserAddr,
    max: i32,
    deadline: Option<Deadline>,
) -> SysResult {
    let max = usize::try_from(max)
        .ok()
        .filter(|&m| m > 0 && m <= MAX_EVENTS)
        .ok_or(Errno::EINVAL)?;
    if !events.access_ok(max * size_of::<EpollEvent>()) {
        return Err(Errno::EFAULT);
    }
    let file = task.file_io(set_fd)?;
    let set = file.ops_as::<EpollFile>().ok_or(Errno::EINVAL)?.instance();
    let events = UserPtr::<EpollEvent>::new(events);
    set.wait(max, deadline, |at, ready| {
        events.add(at).write(&EpollEvent {
            events: ready.events,
            data: ready.data,
        })
    })
}

/// `epoll_wait(2)`: waits for events; the timeout is in milliseconds.
pub fn sys_epoll_wait(
    task: &Task,
    set: Fd,
    events: UserAddr,
    max: i32,
    timeout_ms: i32,
) -> SysResult {
    do_epoll_wait(task, set, events, max, deadline_ms(timeout_ms))
}

/// `epoll_pwait(2)`: waits for events, with a mask of signals.
pub fn sys_epoll_pwait(
    task: &Task,
    set: Fd,
    events: UserAddr,
    max: i32,
    timeout_ms: i32,
    mask: UserPtr<u64>,
    size: usize,
) -> SysResult {
    task.with_signal_mask(mask, size, || {
        do_epoll_wait(task, set, events, max, deadline_ms(timeout_ms))
    })
}

/// `epoll_pwait2(2)`: waits for events, with a mask of signals and a timeout in nanoseconds.
pub fn sys_epoll_pwait2(
    task: &Task,
    set: Fd,
    events: UserAddr,
    max: i32,
    timeout: UserPtr<TimeSpec>,
    mask: UserPtr<u64>,
    size: usize,
) -> SysResult {
    let deadline = user_deadline(timeout)?;
    task.with_signal_mask(mask, size, || {
        do_epoll_wait(task, set, events, max, deadline)
    })
}
