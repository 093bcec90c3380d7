//! System V semaphores: `semget(2)`, `semop(2)`, `semctl(2)`.

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt::Write;
use core::sync::atomic::Ordering;

use ::task::{Mutex, WaitError};
use abi::errno::Errno;
use fallible::Text;
use uapi::time::TimeSpec;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::process::{Process, namespaces};
use crate::state::ipc::sem::{
    Awaited, MAX_VALUE, SEM_UNDO, SemArray, SemBuf, SemWaiter, Semaphore, SemidDs, State, alters,
};
use crate::state::ipc::{
    IPC_64, IPC_INFO, IPC_RMID, IPC_SET, IPC_STAT, IpcIds, IpcPerm, READ, WRITE, now,
};
use crate::state::namespaces::IpcNamespace;
use crate::time::deadline_after;
use crate::uaccess::UserPtr;
use crate::{SysResult, Task};

const GETPID: u32 = 11;
const GETVAL: u32 = 12;
const GETALL: u32 = 13;
const GETNCNT: u32 = 14;
const GETZCNT: u32 = 15;
const SETVAL: u32 = 16;
const SETALL: u32 = 17;
const SEM_STAT: u32 = 18;
const SEM_INFO: u32 = 19;
const SEM_STAT_ANY: u32 = 20;

/// `semget(2)`: finds or makes a set of semaphores; returns its identifier.
pub fn sys_semget(task: &Task, key: i32, count: i32, flags: u32) -> SysResult {
    let ipc = task.ipc();
    let [of_set, of_all, _, sets] = &ipc.limits.semaphores;
    let count = usize::try_from(count)
        .ok()
        .filter(|&count| count <= of_set.size())
        .ok_or(Errno::EINVAL)?;
    let fits = |set: &SemArray| {
        if count <= set.state.lock().semaphores.len() {
            Ok(())
        } else {
            Err(Errno::EINVAL)
        }
    };
    let make = |owner, others: &IpcIds<Arc<SemArray>>| {
        if count == 0 {
            return Err(Errno::EINVAL);
        }
        let present: usize = others
            .iter()
            .map(|(_, set)| set.state.lock().semaphores.len())
            .sum();
        if present + count > of_all.size() {
            return Err(Errno::ENOSPC);
        }
        let info = SemidDs {
            owner,
            otime: 0,
            unused: 0,
            changed: now(),
            unused_too: 0,
            count: count as u64,
            unused_last: [0; 2],
        };
        if !fs::charge::has_room(count * size_of::<Semaphore>()) {
            return Err(Errno::ENOSPC);
        }
        let mut semaphores = fallible::with_capacity(count)?;
        semaphores.resize(count, Semaphore::default());
        Ok(SemArray {
            _counted: census::Semaphores::default(),
            state: Mutex::new(State::new(info, semaphores)),
        })
    };
    ipc.semaphores
        .get(key, flags, &task.cred(), sets.size(), fits, make)
}

/// `semtimedop(2)`: performs operations on semaphores; waits at most for a timeout.
pub fn sys_semtimedop(
    task: &Task,
    id: i32,
    operations: UserPtr<SemBuf>,
    count: usize,
    timeout: UserPtr<TimeSpec>,
) -> SysResult {
    let timeout = timeout.read_optional()?;
    // As Linux, which takes the count for a number of 32 bits.
    let count = count as u32 as usize;
    let ipc = task.ipc();
    if count > ipc.limits.semaphores[2].size() {
        return Err(Errno::E2BIG);
    }
    if count == 0 {
        return Err(Errno::EINVAL);
    }
    let mut all = fallible::with_capacity(count)?;
    for i in 0..count {
        all.push(operations.add(i).read()?);
    }
    let operations: Vec<SemBuf> = all;
    if id < 0 {
        return Err(Errno::EINVAL);
    }
    let deadline = timeout.map(deadline_after).transpose()?;
    let set = ipc.semaphores.find(id)?;
    {
        let state = set.state.lock();
        if operations
            .iter()
            .any(|operation| usize::from(operation.number) >= state.semaphores.len())
        {
            return Err(Errno::EFBIG);
        }
        let mode = if alters(&operations) { WRITE } else { READ };
        state.info.owner.check(&task.cred(), mode)?;
    }
    let undoes = operations.iter().any(|operation| operation.has(SEM_UNDO));
    if undoes {
        task.process().has_sem_undo.store(true, Ordering::Relaxed);
    }
    let pid = task.pid();
    let waiter = {
        let mut state = set.state.lock();
        if undoes {
            state.prepare_undo(pid)?;
        }
        let waiter = Arc::<SemWaiter>::default();
        if let Some(done) = state.operate(operations, pid, &waiter) {
            return done.map(|()| 0);
        }
        waiter
    };
    let result = waiter.wait(deadline);
    // Whoever was served in the last moment was served.
    let result = result.or_else(|error| {
        let mut state = set.state.lock();
        state.withdraw(&waiter);
        waiter.outcome().ok_or(error)
    });
    match result {
        Ok(done) => done.map(|()| 0),
        Err(WaitError::Interrupted) => Err(Errno::EINTR),
        Err(_) => Err(Errno::EAGAIN),
    }
}

/// `semop(2)`: performs operations on semaphores.
pub fn sys_semop(task: &Task, id: i32, operations: UserPtr<SemBuf>, count: usize) -> SysResult {
    sys_semtimedop(task, id, operations, count, UserPtr::NULL)
}

/// Limits and use of semaphores as `SEM_INFO` stores them: `struct seminfo`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SemInfo {
    map: i32,
    sets: i32,
    semaphores: i32,
    undos: i32,
    of_set: i32,
    operations: i32,
    undos_of_process: i32,
    /// Size of an undo structure; with `SEM_INFO` the number of sets.
    size: i32,
    value: i32,
    /// Largest adjustment of an undo; with `SEM_INFO` the number of semaphores.
    adjustment: i32,
}

/// Limits of semaphores, or with `SEM_INFO` their usage.
fn limits(command: u32) -> SemInfo {
    let ipc = &namespaces::current().ipc;
    let [of_set, semaphores, operations, sets] = ipc
        .limits
        .semaphores
        .each_ref()
        .map(|limit| limit.get() as i32);
    let mut limits = SemInfo {
        map: semaphores,
        sets,
        semaphores,
        undos: semaphores,
        of_set,
        operations,
        undos_of_process: operations,
        size: 20,
        value: MAX_VALUE,
        adjustment: MAX_VALUE,
    };
    if command == SEM_INFO {
        let all = ipc.semaphores.all();
        limits.size = all.len() as i32;
        limits.adjustment = all
            .iter()
            .map(|(_, set)| set.state.lock().semaphores.len() as i32)
            .sum();
    }
    limits
}

/// Contents of `/proc/sysvipc/sem`, a line for each set.
///
/// # Errors
/// `ENOMEM`: a user may make thousands of lines.
pub(crate) fn proc_text() -> Result<String, Errno> {
    let header =
        "       key      semid perms      nsems   uid   gid  cuid  cgid      otime      ctime\n";
    let mut text = Text::default();
    text.write_str(header).map_err(|_| Errno::ENOMEM)?;
    for (id, set) in namespaces::current().ipc.semaphores.all() {
        let SemidDs {
            owner,
            otime: operated,
            changed,
            count,
            ..
        } = set.state.lock().info;
        let IpcPerm {
            key,
            uid,
            gid,
            creator_uid,
            creator_gid,
            mode,
            ..
        } = owner;
        writeln!(
            text,
            "{key:10} {id:10}  {mode:4o} {count:10} {uid:5} {gid:5} {creator_uid:5} {creator_gid:5} {operated:10} {changed:10}"
        )
        .map_err(|_| Errno::ENOMEM)?;
    }
    Ok(text.into_string())
}

/// Commands of `semctl(2)` that name no set by its identifier.
fn semctl_by_index(task: &Task, index: i32, command: u32, arg: usize) -> SysResult {
    if matches!(command, IPC_INFO | SEM_INFO) {
        UserPtr::new(arg.into()).write(&limits(command))?;
        return Ok(task.ipc().semaphores.max_index());
    }
    let (id, set) = task.ipc().semaphores.by_index(index)?;
    let mut info = set.state.lock().info;
    info.owner = if command == SEM_STAT {
        info.owner.stat(id, &task.cred())?
    } else {
        info.owner.numbered(id)
    };
    UserPtr::<SemidDs>::new(arg.into()).write(&info)?;
    Ok(id as usize)
}

/// `semctl(2)`: reads, sets or removes a set of semaphores.
pub fn sys_semctl(task: &Task, id: i32, number: i32, command: u32, arg: usize) -> SysResult {
    let command = command & !IPC_64;
    if matches!(command, IPC_INFO | SEM_INFO | SEM_STAT | SEM_STAT_ANY) {
        return semctl_by_index(task, id, command, arg);
    }
    if id < 0 {
        return Err(Errno::EINVAL);
    }
    // As Linux: what is to be set is looked at before the set is looked for.
    let new = (command == IPC_SET)
        .then(|| UserPtr::<SemidDs>::new(arg.into()).read())
        .transpose()?;
    if command == SETVAL && !(0..=MAX_VALUE).contains(&(arg as i32)) {
        return Err(Errno::ERANGE);
    }
    let set = task.ipc().semaphores.find(id)?;
    let cred = task.cred();
    match command {
        IPC_STAT => {
            let mut info = set.state.lock().info;
            info.owner = info.owner.stat(id, &cred)?;
            UserPtr::<SemidDs>::new(arg.into()).write(&info)?;
            return Ok(0);
        }
        IPC_SET => {
            let mut state = set.state.lock();
            state.info.owner.check_owner(&cred)?;
            if let Some(new) = new {
                state.info.owner.set(&new.owner)?;
            }
            state.info.changed = now();
            return Ok(0);
        }
        IPC_RMID => {
            {
                let mut state = set.state.lock();
                state.info.owner.check_owner(&cred)?;
                state.remove();
            }
            task.ipc().semaphores.remove(id);
            return Ok(0);
        }
        GETALL | SETALL => return all_values(task, &set, command, UserPtr::new(arg.into())),
        GETPID | GETVAL | GETNCNT | GETZCNT | SETVAL => {}
        _ => return Err(Errno::EINVAL),
    }
    let mut state = set.state.lock();
    state
        .info
        .owner
        .check(&cred, if command == SETVAL { WRITE } else { READ })?;
    let number = usize::try_from(number)
        .ok()
        .filter(|&number| number < state.semaphores.len())
        .ok_or(Errno::EINVAL)?;
    let semaphore = state.semaphores[number];
    Ok(match command {
        GETPID => semaphore.pid.raw() as usize,
        GETVAL => semaphore.value as usize,
        GETNCNT => state.waiting(number, Awaited::Increase),
        GETZCNT => state.waiting(number, Awaited::Zero),
        _ => {
            state.set_values(number, &[arg as i32], task.pid());
            0
        }
    })
}

fn all_values(task: &Task, set: &SemArray, command: u32, values: UserPtr<u16>) -> SysResult {
    let cred = task.cred();
    let count = set.state.lock().semaphores.len();
    if command == GETALL {
        let now: Vec<u16> = {
            let state = set.state.lock();
            state.info.owner.check(&cred, READ)?;
            state
                .semaphores
                .iter()
                .map(|semaphore| semaphore.value as u16)
                .collect()
        };
        for (i, value) in now.iter().enumerate() {
            values.add(i).write(value)?;
        }
        return Ok(0);
    }
    let mut new: Vec<i32> = fallible::with_capacity(count)?;
    for i in 0..count {
        new.push(values.add(i).read()?.into());
    }
    let mut state = set.state.lock();
    state.info.owner.check(&cred, WRITE)?;
    if new.iter().any(|&value| value > MAX_VALUE) {
        return Err(Errno::ERANGE);
    }
    state.set_values(0, &new, task.pid());
    Ok(0)
}

/// Undoes the operations with `SEM_UNDO` of a process that has ended, or leaves the namespace `of`,
/// as far as they can be.
pub(crate) fn exit_sem(process: &Process, of: &IpcNamespace) {
    if !process.has_sem_undo.load(Ordering::Relaxed) {
        return;
    }
    for (_, set) in of.semaphores.all() {
        set.state.lock().undo(process.pid());
    }
}
