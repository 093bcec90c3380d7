//! System V message queues: `msgget(2)`, `msgsnd(2)`, `msgrcv(2)`, `msgctl(2)`.

use alloc::collections::VecDeque;
use alloc::string::String;
use core::fmt::Write;

use ::task::{Mutex, WaitQueue};
use abi::errno::Errno;
use fallible::Text;
use uapi::user_addr::UserAddr;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::process::namespaces;
use crate::state::ipc::msg::{MSG_COPY, MSG_EXCEPT, Message, MsgQueue, MsqidDs, State, choose};
use crate::state::ipc::{
    IPC_64, IPC_INFO, IPC_NOWAIT, IPC_RMID, IPC_SET, IPC_STAT, IpcPerm, READ, WRITE, now,
};
use crate::uaccess::{self, UserPtr};
use crate::{SysResult, Task};

/// Flag of `msgrcv(2)`: what does not fit is cut off.
const MSG_NOERROR: u32 = 0o10_000;

const MSG_STAT: u32 = 11;
const MSG_INFO: u32 = 12;
const MSG_STAT_ANY: u32 = 13;

/// Most bytes and messages in a queue, whatever limit a privileged caller has set: Linux has no
/// such bound.
const MAX_QUEUE_BYTES: u64 = 1 << 20;

/// `msgget(2)`: finds or makes a message queue; returns its identifier.
pub fn sys_msgget(task: &Task, key: i32, flags: u32) -> SysResult {
    let ipc = task.ipc();
    let make = |owner, _: &_| {
        if !fs::charge::has_room(size_of::<MsgQueue>()) {
            return Err(Errno::ENOSPC);
        }
        let info = MsqidDs {
            owner,
            sent: 0,
            received: 0,
            changed: now(),
            bytes: 0,
            count: 0,
            limit: ipc.limits.queue.get(),
            last_sender: 0,
            last_receiver: 0,
            unused: [0; 2],
        };
        let state = State {
            info,
            messages: VecDeque::new(),
            removed: false,
        };
        Ok(MsgQueue {
            _counted: census::Messages::default(),
            state: Mutex::new(state),
            receivers: WaitQueue::new(),
            senders: WaitQueue::new(),
        })
    };
    let most = ipc.limits.queues.size();
    ipc.messages
        .get(key, flags, &task.cred(), most, |_| Ok(()), make)
}

/// Waits at a queue until `attempt` gives a result; `ENOMSG` or `EAGAIN` if waiting is not wanted.
fn wait(
    queue: &WaitQueue,
    flags: u32,
    would_wait: Errno,
    mut attempt: impl FnMut() -> Option<SysResult>,
) -> SysResult {
    match attempt() {
        Some(result) => result,
        None if flags & IPC_NOWAIT != 0 => Err(would_wait),
        None => queue
            .wait_interruptible(None, attempt)
            .map_err(|_| Errno::ERESTARTNOHAND)?,
    }
}

/// `msgsnd(2)`: sends a message.
pub fn sys_msgsnd(task: &Task, id: i32, from: UserAddr, size: usize, flags: u32) -> SysResult {
    let kind = UserPtr::<i64>::new(from).read()?;
    if id < 0 || kind < 1 || size > task.ipc().limits.message.size() {
        return Err(Errno::EINVAL);
    }
    if !fs::charge::has_room(size + size_of::<Message>()) {
        return Err(Errno::ENOMEM);
    }
    let mut bytes = fallible::zeroed(size)?;
    uaccess::read_bytes(from.wrapping_add(size_of::<i64>()), &mut bytes)?;
    let queue = task.ipc().messages.find(id)?;
    let mut message = Some(Message { kind, bytes });
    let cred = task.cred();
    let attempt = || {
        let mut state = queue.state.lock();
        if state.removed {
            return Some(Err(Errno::EIDRM));
        }
        if let Err(error) = state.info.owner.check(&cred, WRITE) {
            return Some(Err(error));
        }
        let info = &state.info;
        let limit = info.limit.min(MAX_QUEUE_BYTES);
        if info.bytes + size as u64 > limit || info.count + 1 > limit {
            return None;
        }
        // Messages of nothing count, too, but there may be very many.
        if state.messages.try_reserve(1).is_err() {
            return Some(Err(Errno::ENOMEM));
        }
        let info = &mut state.info;
        info.bytes += size as u64;
        info.count += 1;
        (info.sent, info.last_sender) = (now(), task.pid().raw());
        state.messages.extend(message.take());
        Some(Ok(0))
    };
    wait(&queue.senders, flags, Errno::EAGAIN, attempt)?;
    queue.receivers.wake_all();
    Ok(0)
}

/// `msgrcv(2)`: receives a message of a type; returns its length.
pub fn sys_msgrcv(
    task: &Task,
    id: i32,
    to: UserAddr,
    size: usize,
    kind: i64,
    flags: u32,
) -> SysResult {
    if id < 0
        || isize::try_from(size).is_err()
        || flags & MSG_COPY != 0 && flags & (MSG_EXCEPT | IPC_NOWAIT) != IPC_NOWAIT
    {
        return Err(Errno::EINVAL);
    }
    if flags & MSG_COPY != 0 {
        // As Linux, which makes the copy's room from what is there.
        let most = task.ipc().limits.message.size();
        uaccess::read_bytes(to, &mut fallible::zeroed(size.min(most))?)?;
    }
    let queue = task.ipc().messages.find(id)?;
    let cred = task.cred();
    let mut received = None;
    let attempt = || {
        let mut state = queue.state.lock();
        if state.removed {
            return Some(Err(Errno::EIDRM));
        }
        if let Err(error) = state.info.owner.check(&cred, READ) {
            return Some(Err(error));
        }
        let at = choose(&state.messages, kind, flags)?;
        if state.messages[at].bytes.len() > size && flags & MSG_NOERROR == 0 {
            return Some(Err(Errno::E2BIG));
        }
        if flags & MSG_COPY != 0 {
            let message = &state.messages[at];
            received = Some(Message {
                kind: message.kind,
                bytes: message.bytes.clone(),
            });
            return Some(Ok(0));
        }
        received = state.messages.remove(at);
        let info = &mut state.info;
        info.bytes -= received.as_ref().map_or(0, |message| message.bytes.len()) as u64;
        info.count -= 1;
        (info.received, info.last_receiver) = (now(), task.pid().raw());
        Some(Ok(0))
    };
    wait(&queue.receivers, flags, Errno::ENOMSG, attempt)?;
    queue.senders.wake_all();
    let Some(message) = received else {
        return Err(Errno::ENOMSG);
    };
    let len = message.bytes.len().min(size);
    UserPtr::<i64>::new(to).write(&message.kind)?;
    uaccess::write_bytes(to.wrapping_add(size_of::<i64>()), &message.bytes[..len])?;
    Ok(len)
}

/// Limits and use of message queues as `MSG_INFO` stores them: `struct msginfo`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MsgInfo {
    /// Kilobytes of all queues; with `MSG_INFO` how many queues there are.
    pool: i32,
    /// Entries of the message map; with `MSG_INFO` the number of messages.
    map: i32,
    message: i32,
    bytes: i32,
    queues: i32,
    segment: i32,
    /// Message headers; with `MSG_INFO` the number of bytes in all queues.
    headers: i32,
    segments: u16,
    padding: u16,
}

/// Limits of message queues, or with `MSG_INFO` their usage.
fn limits(command: u32) -> MsgInfo {
    let ipc = namespaces::current().ipc;
    let (bytes, queues) = (
        ipc.limits.queue.get() as i32,
        ipc.limits.queues.get() as i32,
    );
    let mut limits = MsgInfo {
        pool: queues.wrapping_mul(bytes) / 1024,
        map: bytes,
        message: ipc.limits.message.get() as i32,
        bytes,
        queues,
        segment: 16,
        headers: bytes,
        segments: u16::MAX,
        padding: 0,
    };
    if command == MSG_INFO {
        let all = ipc.messages.all();
        (limits.pool, limits.map, limits.headers) = (all.len() as i32, 0, 0);
        for (_, queue) in all {
            let info = queue.state.lock().info;
            limits.map += info.count as i32;
            limits.headers += info.bytes as i32;
        }
    }
    limits
}

/// Contents of `/proc/sysvipc/msg`, a line for each queue.
///
/// # Errors
/// `ENOMEM`: a user may make thousands of lines.
pub(crate) fn proc_text() -> Result<String, Errno> {
    let header = "       key      msqid perms      cbytes       qnum lspid lrpid   uid   gid  cuid  cgid      stime      rtime      ctime\n";
    let mut text = Text::default();
    text.write_str(header).map_err(|_| Errno::ENOMEM)?;
    for (id, queue) in namespaces::current().ipc.messages.all() {
        let MsqidDs {
            owner,
            sent,
            received,
            changed,
            bytes,
            count,
            last_sender,
            last_receiver,
            ..
        } = queue.state.lock().info;
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
            "{key:10} {id:10}  {mode:4o}  {bytes:10} {count:10} {last_sender:5} {last_receiver:5} {uid:5} {gid:5} {creator_uid:5} \
             {creator_gid:5} {sent:10} {received:10} {changed:10}"
        )
        .map_err(|_| Errno::ENOMEM)?;
    }
    Ok(text.into_string())
}

/// Commands of `msgctl(2)` that name no queue by its identifier.
fn msgctl_by_index(task: &Task, index: i32, command: u32, arg: UserPtr<MsqidDs>) -> SysResult {
    if matches!(command, IPC_INFO | MSG_INFO) {
        UserPtr::new(arg.addr()).write(&limits(command))?;
        return Ok(task.ipc().messages.max_index());
    }
    let (id, queue) = task.ipc().messages.by_index(index)?;
    let mut info = queue.state.lock().info;
    info.owner = if command == MSG_STAT {
        info.owner.stat(id, &task.cred())?
    } else {
        info.owner.numbered(id)
    };
    arg.write(&info)?;
    Ok(id as usize)
}

/// `msgctl(2)`; without the calls that list all queues.
pub fn sys_msgctl(task: &Task, id: i32, command: u32, arg: UserPtr<MsqidDs>) -> SysResult {
    let command = command & !IPC_64;
    if id < 0 {
        return Err(Errno::EINVAL);
    }
    if matches!(command, IPC_INFO | MSG_INFO | MSG_STAT | MSG_STAT_ANY) {
        return msgctl_by_index(task, id, command, arg);
    }
    // As Linux: what is to be set is read before the queue is looked for.
    let new = (command == IPC_SET).then(|| arg.read()).transpose()?;
    let queue = task.ipc().messages.find(id)?;
    let cred = task.cred();
    match command {
        IPC_STAT => {
            let mut info = queue.state.lock().info;
            info.owner = info.owner.stat(id, &cred)?;
            arg.write(&info)?;
        }
        IPC_SET => {
            if let Some(new) = new {
                let mut state = queue.state.lock();
                state.info.owner.check_owner(&cred)?;
                if new.limit > task.ipc().limits.queue.get()
                    && !cred.capable(linux_raw_sys::general::CAP_SYS_RESOURCE)
                {
                    return Err(Errno::EPERM);
                }
                state.info.owner.set(&new.owner)?;
                (state.info.limit, state.info.changed) = (new.limit, now());
            }
            queue.senders.wake_all();
        }
        IPC_RMID => {
            {
                let mut state = queue.state.lock();
                state.info.owner.check_owner(&cred)?;
                state.removed = true;
            }
            task.ipc().messages.remove(id);
            queue.receivers.wake_all();
            queue.senders.wake_all();
        }
        _ => return Err(Errno::EINVAL),
    }
    Ok(0)
}
