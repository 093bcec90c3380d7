//! Sleeping on words of memory: `futex(2)`, and what happens to them when a thread ends. How
//! threads wait is the crate `futex`.

pub(crate) mod pi;
pub mod waitv;

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use ::task::Deadline;
use abi::errno::Errno;
use futex::{Target, nobody_at};
pub(crate) use futex::{Waiter, Word, park};
use guard::user;
use linux_raw_sys::general as sys;
use uapi::futex::{FutexAccess, FutexScope};
use uapi::pid::Tid;
use uapi::time::{ClockBase, TimeSpec};
use uapi::user_addr::UserAddr;
use vm::FutexKey;

use crate::futex::pi::LockMode;
use crate::process::task::RestartBlock;
use crate::process::{access, process_table};
use crate::state::credentials::TraceCreds;
use crate::time::deadline_after;
use crate::time::wall_clock::AbsoluteDeadline;
use crate::uaccess::UserPtr;
use crate::{SysResult, Task};

/// Converts any error to `EFAULT`.
pub(crate) fn efault<T>(_: T) -> Errno {
    Errno::EFAULT
}

fn check(addr: UserAddr) -> Result<(), Errno> {
    if !addr.is_aligned(4) {
        return Err(Errno::EINVAL);
    }
    if addr.raw() < user::USER_END {
        Ok(())
    } else {
        Err(Errno::EFAULT)
    }
}

/// Key of the word at an address, for threads of the same address space.
#[inline(always)]
fn private_word(task: &Task, addr: UserAddr) -> Result<Word, Errno> {
    check(addr)?;
    Ok(FutexKey::private(task.process().space_id(), addr.raw()).word())
}

/// Key of the word at an address, and, if other address spaces may know it, what keeps that key
/// from changing its meaning. Whether such a word can be written is looked at if the kernel has
/// write `access`.
#[inline(always)]
pub(crate) fn futex_key(
    task: &Task,
    addr: UserAddr,
    scope: FutexScope,
    access: FutexAccess,
) -> Result<(Word, Option<FutexKey>), Errno> {
    if scope == FutexScope::Private {
        return Ok((private_word(task, addr)?, None));
    }
    check(addr)?;
    // Only of memory that is there can be said what it is: not behind the end of a file, nor where
    // nothing may be read.
    user::load_u32(addr.raw()).map_err(efault)?;
    let key = task
        .process()
        .require_space()?
        .futex_key(addr.raw(), access == FutexAccess::Write)?;
    Ok((key.word(), Some(key)))
}

/// Enqueues a new waiter for one of several words; the key is to be kept as long.
pub(crate) fn enqueue_new_waiter(
    task: &Task,
    addr: UserAddr,
    scope: FutexScope,
    expected: u32,
) -> Result<(Arc<Waiter>, Option<FutexKey>), Errno> {
    let waiter = Waiter::new(task.thread().clone());
    waiter.set_rank(task.futex_rank());
    let (word, key) = futex_key(task, addr, scope, FutexAccess::Read)?;
    waiter.enter(word, addr.raw(), expected, u32::MAX, || {
        user::load_u32(addr.raw())
    })?;
    Ok((waiter, key))
}

#[inline(always)]
fn waiter_of(task: &Task) -> &Arc<Waiter> {
    if let Some(waiter) = task.futex.get() {
        return waiter;
    }
    let waiter = task.futex.call_once(|| Waiter::new(task.thread().clone()));
    waiter.set_rank(task.futex_rank());
    waiter
}

/// Waits like [`wait`] for a private word, without a deadline.
fn wait_private(task: &Task, addr: UserAddr, expected: u32) -> SysResult {
    let word = private_word(task, addr)?;
    let waiter = waiter_of(task);
    waiter.enter(word, addr.raw(), expected, u32::MAX, || {
        user::load_u32(addr.raw())
    })?;
    waiter.sleep(None).map(|()| 0)
}

/// Waits until the word is woken, unless it is not `expected`.
pub(crate) fn wait(
    task: &Task,
    addr: UserAddr,
    scope: FutexScope,
    expected: u32,
    deadline: Option<Deadline>,
    bits: u32,
) -> SysResult {
    if bits == 0 {
        return Err(Errno::EINVAL);
    }
    let (word, _key) = futex_key(task, addr, scope, FutexAccess::Read)?;
    let waiter = waiter_of(task);
    waiter.enter(word, addr.raw(), expected, bits, || {
        user::load_u32(addr.raw())
    })?;
    let result = waiter.sleep(deadline).map(|()| 0);
    if scope == FutexScope::Shared {
        waiter.forget_moves();
    }
    // A deadline is absolute inside; a relative one would begin anew.
    if let (Err(Errno::ERESTART_RESTARTBLOCK), Some(deadline)) = (result, deadline) {
        *task.restart_block.lock() = Some(RestartBlock::Futex {
            addr,
            scope,
            expected,
            deadline,
            bits,
        });
    }
    result
}

/// Waits like [`wait`] until an absolute time. Begun anew it ends at the same time, so that needs
/// no block to restart from.
pub(crate) fn wait_until(
    task: &Task,
    addr: UserAddr,
    scope: FutexScope,
    expected: u32,
    until: Option<AbsoluteDeadline<'_>>,
    bits: u32,
) -> SysResult {
    wait(
        task,
        addr,
        scope,
        expected,
        until.as_ref().map(AbsoluteDeadline::deadline),
        bits,
    )
    .map_err(|error| match error {
        Errno::ERESTART_RESTARTBLOCK => Errno::ERESTARTNOHAND,
        other => other,
    })
}

pub(crate) fn wake(
    task: &Task,
    addr: UserAddr,
    scope: FutexScope,
    most: usize,
    bits: u32,
) -> SysResult {
    if bits == 0 {
        return Err(Errno::EINVAL);
    }
    let (word, _key) = futex_key(task, addr, scope, FutexAccess::Read)?;
    Ok(futex::wake(word, most, bits))
}

/// Wakes like [`wake`] waiters of a private word.
fn wake_private(task: &Task, addr: UserAddr, most: usize) -> SysResult {
    Ok(futex::wake(private_word(task, addr)?, most, u32::MAX))
}

/// Wakes some and moves others to another word. `expected`: only if the word is this.
fn requeue(
    task: &Task,
    (from, to): (UserAddr, UserAddr),
    scope: FutexScope,
    counts: (usize, usize),
    expected: Option<u32>,
) -> SysResult {
    requeue_between(task, (from, scope), (to, scope), counts, expected)
}

/// Requeues like [`requeue`] between words of which each has a scope of its own.
pub(crate) fn requeue_between(
    task: &Task,
    (from, from_scope): (UserAddr, FutexScope),
    (to, to_scope): (UserAddr, FutexScope),
    counts: (usize, usize),
    expected: Option<u32>,
) -> SysResult {
    let ((from_word, _from_key), (to_word, to_key)) = (
        futex_key(task, from, from_scope, FutexAccess::Read)?,
        futex_key(task, to, to_scope, FutexAccess::Read)?,
    );
    let check = || match expected {
        Some(expected) if user::load_u32(from.raw()).map_err(efault)? != expected => {
            Err(Errno::EAGAIN)
        }
        _ => Ok(()),
    };
    futex::requeue(
        from_word,
        &Target {
            word: to_word,
            addr: to.raw(),
            key: to_key,
        },
        counts,
        check,
    )
}

/// Changes a word of user memory atomically by `change` and returns what it was.
pub(crate) fn modify_user_word(addr: UserAddr, change: impl Fn(u32) -> u32) -> Result<u32, Errno> {
    let mut old = user::load_u32(addr.raw()).map_err(efault)?;
    loop {
        let found = user::cmpxchg_u32(addr.raw(), old, change(old)).map_err(efault)?;
        if found == old {
            return Ok(old);
        }
        old = found;
    }
}

/// A number of 12 bits with sign.
const fn signed12(value: u32) -> i32 {
    (value << 20).cast_signed() >> 20
}

/// `FUTEX_WAKE_OP`: changes the second word, wakes waiters of the first, and of the second if what
/// it was says so.
fn wake_op(
    task: &Task,
    (first, second): (UserAddr, UserAddr),
    scope: FutexScope,
    (most, most2): (usize, usize),
    operation: u32,
) -> SysResult {
    let ((first_word, _first_key), (second_word, _second_key)) = (
        futex_key(task, first, scope, FutexAccess::Read)?,
        futex_key(task, second, scope, FutexAccess::Write)?,
    );
    let (mut argument, compared) = (
        signed12(operation >> 12 & 0xfff).cast_unsigned(),
        signed12(operation & 0xfff),
    );
    if operation >> 28 & sys::FUTEX_OP_OPARG_SHIFT != 0 {
        argument = 1 << (argument & 31);
    }
    let change: fn(u32, u32) -> u32 = match operation >> 28 & 7 {
        sys::FUTEX_OP_SET => |_, argument| argument,
        sys::FUTEX_OP_ADD => u32::wrapping_add,
        sys::FUTEX_OP_OR => |old, argument| old | argument,
        sys::FUTEX_OP_ANDN => |old, argument| old & !argument,
        sys::FUTEX_OP_XOR => |old, argument| old ^ argument,
        _ => return Err(Errno::ENOSYS),
    };
    let change = || {
        let old = modify_user_word(second, |old| change(old, argument))?.cast_signed();
        Ok(match operation >> 24 & 0xf {
            sys::FUTEX_OP_CMP_EQ => old == compared,
            sys::FUTEX_OP_CMP_NE => old != compared,
            sys::FUTEX_OP_CMP_LT => old < compared,
            sys::FUTEX_OP_CMP_LE => old <= compared,
            sys::FUTEX_OP_CMP_GT => old > compared,
            sys::FUTEX_OP_CMP_GE => old >= compared,
            _ => return Err(Errno::ENOSYS),
        })
    };
    futex::wake_two((first_word, most), (second_word, most2), change)
}

/// `futex(2)`; the operations with priority inheritance are in `pi`.
#[inline(always)]
pub fn sys_futex(
    task: &Task,
    addr: UserAddr,
    operation: u32,
    value: u32,
    timeout: usize,
    addr2: UserAddr,
    value3: u32,
) -> SysResult {
    // The two that programs use most.
    if operation == sys::FUTEX_WAKE | sys::FUTEX_PRIVATE_FLAG {
        if addr.is_aligned(4) && addr.raw() < user::USER_END && nobody_at(addr.raw()) {
            return Ok(0);
        }
        return wake_private(task, addr, count(value));
    }
    if operation == sys::FUTEX_WAIT | sys::FUTEX_PRIVATE_FLAG && timeout == 0 {
        return wait_private(task, addr, value);
    }
    do_futex(task, addr, operation, value, timeout, addr2, value3)
}

/// Number of waiters to wake: as on Linux, who asks for none or fewer gets one.
fn count(value: u32) -> usize {
    usize::try_from(value.cast_signed()).unwrap_or(0).max(1)
}

/// Numbers of waiters to wake and to move to another word; `EINVAL` for negative ones.
fn exact_counts(wakes: u32, moves: u32) -> Result<(usize, usize), Errno> {
    let exact = |value: u32| usize::try_from(value.cast_signed()).map_err(|_| Errno::EINVAL);
    Ok((exact(wakes)?, exact(moves)?))
}

/// Carries out a command of `futex(2)`.
#[inline(never)]
fn do_futex(
    task: &Task,
    addr: UserAddr,
    operation: u32,
    value: u32,
    timeout: usize,
    addr2: UserAddr,
    value3: u32,
) -> SysResult {
    let scope = FutexScope::of_flags(operation);
    let base = if operation & sys::FUTEX_CLOCK_REALTIME != 0 {
        ClockBase::Realtime
    } else {
        ClockBase::Monotonic
    };
    let counts = || (count(value), count(timeout as u32));
    let exact = || exact_counts(value, timeout as u32);
    let time = || UserPtr::<TimeSpec>::new(timeout.into()).read_optional();
    let until = |base: ClockBase| {
        time()?
            .map(|time| AbsoluteDeadline::new(task, time, base))
            .transpose()
    };
    let deadline =
        |until: &Option<AbsoluteDeadline<'_>>| until.as_ref().map(AbsoluteDeadline::deadline);
    let relative = || time()?.map(deadline_after).transpose();
    let command = operation & sys::FUTEX_CMD_MASK.cast_unsigned();
    if base == ClockBase::Realtime
        && !matches!(
            command,
            sys::FUTEX_WAIT_BITSET | sys::FUTEX_WAIT_REQUEUE_PI | sys::FUTEX_LOCK_PI2
        )
    {
        return Err(Errno::ENOSYS);
    }
    match command {
        sys::FUTEX_WAIT => wait(task, addr, scope, value, relative()?, u32::MAX),
        sys::FUTEX_WAIT_BITSET => wait_until(task, addr, scope, value, until(base)?, value3),
        sys::FUTEX_WAKE => wake(task, addr, scope, count(value), u32::MAX),
        sys::FUTEX_WAKE_BITSET => wake(task, addr, scope, count(value), value3),
        sys::FUTEX_REQUEUE => requeue(task, (addr, addr2), scope, exact()?, None),
        sys::FUTEX_CMP_REQUEUE => requeue(task, (addr, addr2), scope, exact()?, Some(value3)),
        sys::FUTEX_LOCK_PI => pi::lock(
            task,
            addr,
            scope,
            deadline(&until(ClockBase::Realtime)?),
            LockMode::Wait,
        ),
        sys::FUTEX_LOCK_PI2 => pi::lock(task, addr, scope, deadline(&until(base)?), LockMode::Wait),
        sys::FUTEX_TRYLOCK_PI => pi::lock(task, addr, scope, None, LockMode::Try),
        sys::FUTEX_UNLOCK_PI => pi::unlock(task, addr, scope),
        sys::FUTEX_WAIT_REQUEUE_PI => {
            pi::wait_requeue(task, (addr, addr2), scope, value, deadline(&until(base)?))
        }
        sys::FUTEX_CMP_REQUEUE_PI if value == 1 => {
            pi::requeue(task, (addr, addr2), scope, exact()?.1, value3)
        }
        sys::FUTEX_CMP_REQUEUE_PI => Err(Errno::EINVAL),
        sys::FUTEX_WAKE_OP => wake_op(task, (addr, addr2), scope, counts(), value3),
        _ => Err(Errno::ENOSYS),
    }
}

/// `set_robust_list(2)`: sets the head of the caller's list of robust futexes.
pub fn sys_set_robust_list(task: &Task, head: UserAddr, len: usize) -> SysResult {
    if len != ROBUST_HEAD {
        return Err(Errno::EINVAL);
    }
    task.robust_list.store(head.raw(), Ordering::Relaxed);
    Ok(0)
}

/// `get_robust_list(2)`: stores the head of a thread's list of robust futexes.
pub fn sys_get_robust_list(
    task: &Task,
    tid: Option<Tid>,
    head: UserPtr<u64>,
    len: UserPtr<u64>,
) -> SysResult {
    let list = if let Some(tid) = tid {
        let other = process_table::find_task(tid).ok_or(Errno::ESRCH)?;
        access::check_trace_access(task, other.process(), TraceCreds::Real)?;
        other.robust_list.load(Ordering::Relaxed)
    } else {
        task.robust_list.load(Ordering::Relaxed)
    };
    len.write(&(ROBUST_HEAD as u64))?;
    head.write(&(list as u64))?;
    Ok(0)
}

/// Bytes of `struct robust_list_head`.
const ROBUST_HEAD: usize = 24;
/// The most entries of a robust list that are followed.
const ROBUST_LIMIT: usize = 2048;

/// Where a robust futex is named (Linux: `HANDLE_DEATH_LIST`, `HANDLE_DEATH_PENDING`).
#[derive(Clone, Copy, PartialEq, Eq)]
enum RobustEntry {
    /// In the list.
    Listed,
    /// As the one that was being locked or unlocked.
    Pending,
}

/// Passes on a robust futex that the thread may hold.
fn handle_futex_death(task: &Task, addr: UserAddr, entry: RobustEntry) -> Result<(), Errno> {
    if !addr.is_aligned(4) {
        return Ok(());
    }
    let tid = task.tid().as_u32();
    let old = user::load_u32(addr.raw()).map_err(efault)?;
    if old & sys::FUTEX_TID_MASK == tid {
        let died = |old: u32| {
            let mine = old & sys::FUTEX_TID_MASK == tid;
            if mine {
                old & sys::FUTEX_WAITERS | sys::FUTEX_OWNER_DIED
            } else {
                old
            }
        };
        if modify_user_word(addr, died)? & sys::FUTEX_WAITERS != 0 {
            wake(task, addr, FutexScope::Shared, 1, u32::MAX)?;
            wake(task, addr, FutexScope::Private, 1, u32::MAX)?;
        }
    } else if entry == RobustEntry::Pending && old & sys::FUTEX_TID_MASK == 0 {
        // It was being unlocked: whoever should have been woken may not have been.
        wake(task, addr, FutexScope::Shared, 1, u32::MAX)?;
        wake(task, addr, FutexScope::Private, 1, u32::MAX)?;
    }
    Ok(())
}

/// Walks the list of robust futexes. Memory that is missing ends it: it is the program's own.
fn exit_robust_list(task: &Task, head: UserAddr) -> Result<(), Errno> {
    let word = |addr: usize| user::load_u64(addr).map(|w| w as usize).map_err(efault);
    let head = head.raw();
    let offset = word(head + 8)?;
    let pending = word(head + 16)?;
    // The lowest bit marks futexes with priority inheritance.
    let lock = |entry: usize| (entry & !1).wrapping_add(offset);
    let mut entry = word(head)?;
    for _ in 0..ROBUST_LIMIT {
        if entry & !1 == head {
            break;
        }
        // Looked up first: once released, the memory may be somebody else's.
        let next = word(entry & !1);
        if entry != pending {
            handle_futex_death(task, lock(entry).into(), RobustEntry::Listed)?;
        }
        entry = next?;
    }
    if pending != 0 {
        handle_futex_death(task, lock(pending).into(), RobustEntry::Pending)?;
    }
    Ok(())
}

/// Passes on the futexes of a thread that is about to leave its memory, by ending or by
/// `execve(2)`.
pub(crate) fn exec_release(task: &Task) {
    let head = task.robust_list.swap(0, Ordering::Relaxed);
    if head != 0 && head < user::USER_END {
        // A bad list is the program's loss, not ours.
        let _ = exit_robust_list(task, head.into());
    }
    pi::exit_pi_state_list(task);
}

/// Passes on the futexes of a thread that ends, and wakes what joins it (`CLONE_CHILD_CLEARTID`).
pub(crate) fn exit_release(task: &Task) {
    exec_release(task);
    let addr = UserAddr::new(task.clear_child_tid.swap(0, Ordering::Relaxed));
    if !addr.is_null() && user::store_u32(addr.raw(), 0).is_ok() {
        // The joining thread may be of this process, or (rarely) of another that shares the memory.
        let _ = wake(task, addr, FutexScope::Private, 1, u32::MAX);
        let _ = wake(task, addr, FutexScope::Shared, 1, u32::MAX);
    }
}
