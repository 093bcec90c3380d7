//! The newer calls for futexes: `futex_waitv(2)`, `futex_wait(2)`, `futex_wake(2)`,
//! `futex_requeue(2)`.

use alloc::vec::Vec;

use ::task::Deadline;
use abi::errno::Errno;
use linux_raw_sys::general as sys;
use uapi::futex::FutexScope;
use uapi::time::{ClockBase, TimeSpec};
use uapi::user_addr::UserAddr;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::time::wall_clock::AbsoluteDeadline;
use crate::uaccess::UserPtr;
use crate::{SysResult, Task, futex};

/// The size of a futex in its flags: 32 bits, the only one.
const SIZE_MASK: u32 = 3;
const PRIVATE: u32 = sys::FUTEX_PRIVATE_FLAG;

/// A futex that `futex_waitv(2)` waits for: `struct futex_waitv`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct FutexWaitv {
    value: u64,
    addr: u64,
    flags: u32,
    reserved: u32,
}

/// The scope that the flags of a futex name.
///
/// # Errors
/// `EINVAL` for other flags, or another size than 32 bits.
fn scope_of(flags: u32) -> Result<FutexScope, Errno> {
    if flags & !(SIZE_MASK | PRIVATE) != 0 || flags & SIZE_MASK != sys::FUTEX_32 {
        Err(Errno::EINVAL)
    } else {
        Ok(FutexScope::of_flags(flags))
    }
}

/// A value that 32 bits hold.
fn word(value: u64) -> Result<u32, Errno> {
    u32::try_from(value).map_err(|_| Errno::EINVAL)
}

/// Deadline that an absolute time of one of two clocks means.
fn absolute_timeout(
    task: &Task,
    timeout: UserPtr<TimeSpec>,
    clock: i32,
) -> Result<Option<AbsoluteDeadline<'_>>, Errno> {
    if timeout.is_null() {
        return Ok(None);
    }
    let base = match clock.cast_unsigned() {
        sys::CLOCK_MONOTONIC => ClockBase::Monotonic,
        sys::CLOCK_REALTIME => ClockBase::Realtime,
        _ => return Err(Errno::EINVAL),
    };
    AbsoluteDeadline::new(task, timeout.read()?, base).map(Some)
}

/// Reads a futex of a vector: address, scope, and the value it is expected to have.
fn read_entry(entry: UserPtr<FutexWaitv>) -> Result<(UserAddr, FutexScope, u64), Errno> {
    let entry = entry.read()?;
    if entry.reserved != 0 {
        return Err(Errno::EINVAL);
    }
    Ok((entry.addr.into(), scope_of(entry.flags)?, entry.value))
}

/// `futex_waitv(2)`: waits for any of several words; the result is the index of one that was woken.
pub fn sys_futex_waitv(
    task: &Task,
    entries: UserPtr<FutexWaitv>,
    count: u32,
    flags: u32,
    timeout: UserPtr<TimeSpec>,
    clock: i32,
) -> SysResult {
    if flags != 0 || count == 0 || count > sys::FUTEX_WAITV_MAX || entries.is_null() {
        return Err(Errno::EINVAL);
    }
    let until = absolute_timeout(task, timeout, clock)?;
    let deadline = until.as_ref().map(AbsoluteDeadline::deadline);
    let words = (0..count as usize)
        .map(|i| read_entry(entries.add(i)))
        .collect::<Result<Vec<_>, _>>()?;
    let mut waiters = Vec::new();
    let result = words.into_iter().try_for_each(|(addr, scope, value)| {
        // As on Linux, no more of the value counts than a word holds.
        waiters.push(futex::enqueue_new_waiter(task, addr, scope, value as u32)?);
        Ok(())
    });
    if let Err(error) = result {
        // One that was woken in the meantime counts.
        let woken = waiters.iter().rposition(|(waiter, _)| !waiter.withdraw());
        return woken.ok_or(error);
    }
    let error = loop {
        if waiters.iter().any(|(waiter, _)| waiter.is_woken()) {
            break Errno::EAGAIN;
        }
        if task.thread().is_signal_pending() {
            break Errno::ERESTARTSYS;
        }
        if deadline.is_some_and(Deadline::has_passed) {
            break Errno::ETIMEDOUT;
        }
        futex::park(deadline);
    };
    let mut woken = None;
    for (i, (waiter, _)) in waiters.iter().enumerate() {
        if !waiter.withdraw() {
            woken.get_or_insert(i);
        }
    }
    woken.ok_or(error)
}

/// `futex_wait(2)`: waits while a word has a value.
pub fn sys_futex_wait(
    task: &Task,
    addr: UserAddr,
    value: u64,
    mask: u64,
    flags: u32,
    timeout: UserPtr<TimeSpec>,
    clock: i32,
) -> SysResult {
    let scope = scope_of(flags)?;
    futex::wait_until(
        task,
        addr,
        scope,
        word(value)?,
        absolute_timeout(task, timeout, clock)?,
        word(mask)?,
    )
}

/// `futex_wake(2)`: wakes waiters of a word; returns their number.
pub fn sys_futex_wake(task: &Task, addr: UserAddr, mask: u64, count: i32, flags: u32) -> SysResult {
    futex::wake(
        task,
        addr,
        scope_of(flags)?,
        usize::try_from(count).map_err(|_| Errno::EINVAL)?,
        word(mask)?,
    )
}

/// `futex_requeue(2)`: wakes waiters of a word and moves others to another word.
pub fn sys_futex_requeue(
    task: &Task,
    entries: UserPtr<FutexWaitv>,
    flags: u32,
    wakes: i32,
    moves: i32,
) -> SysResult {
    if flags != 0 || entries.is_null() {
        return Err(Errno::EINVAL);
    }
    let count = |count: i32| usize::try_from(count).map_err(|_| Errno::EINVAL);
    let ((from, scope, value), (to, other_scope, _)) =
        (read_entry(entries)?, read_entry(entries.add(1))?);
    let counts = (count(wakes)?, count(moves)?);
    futex::requeue_between(
        task,
        (from, scope),
        (to, other_scope),
        counts,
        Some(word(value)?),
    )
}
