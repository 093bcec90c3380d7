//! POSIX message queues: `mq_open(2)` and its relatives (`mq_overview(7)`). Their names are a space
//! of their own, which can be mounted (`mqueuefs`).

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use ::task::{Mutex, WaitError, WaitQueue};
use abi::errno::Errno;
use fs::poll::{Events, PollQueue, PollTable};
use fs::{Access, File, FileOps, FileType, OpenFlags, Path, Timestamp, Whence};
use linux_raw_sys::general as sys;
use uapi::fd::Fd;
use uapi::pid::Pid;
use uapi::siginfo::{NSIG, SigInfo};
use uapi::time::{ClockBase, TimeSpec};
use uapi::user_addr::UserAddr;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::ipc::mqueuefs;
use crate::process::{process_table, send_signal};
use crate::socket::with_socket;
use crate::state::fdtable::CloseOnExec;
use crate::state::ipc::limits::Limit;
use crate::state::ipc::mqueue::{Notification, NotifyMethod, PosixQueue, charge};
use crate::state::rlimit::Resource;
use crate::time::posix_timers::SigEvent;
use crate::time::wall_clock::AbsoluteDeadline;
use crate::uaccess::{self, UserPtr};
use crate::{SysResult, Task};

/// The most messages of a queue, and bytes of a message, that anybody may ask for.
pub(crate) const HARD_MESSAGES: i64 = 65_536;
pub(crate) const HARD_SIZE: i64 = 16 << 20;
/// Bytes a message is charged beside its own, as Linux counts.
const MESSAGE_OVERHEAD: u64 = 56;
/// Priorities are below this.
const PRIORITIES: u32 = 32_768;

/// Flags, limits and number of messages of a queue: `struct mq_attr`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MqAttr {
    flags: i64,
    most: i64,
    size: i64,
    now: i64,
    reserved: [i64; 4],
}

/// A descriptor of a queue.
pub(crate) struct Descriptor(pub(crate) Arc<PosixQueue>);

/// Size of a queue as a file, in bytes.
pub(crate) const FILE_SIZE: u64 = 80;

impl PosixQueue {
    /// Takes back what a process asked for with `mq_notify(2)`.
    fn remove_notification(&self, pid: Pid) {
        let withdrawn = {
            let mut state = self.state.lock();
            state.notice.take_if(|notice| notice.pid == pid)
        };
        if let Some(notice) = withdrawn {
            notice.withdraw();
        }
    }

    /// Text of the queue read as a file: its bytes, and who is to be told of the next message.
    fn status(&self) -> String {
        let state = self.state.lock();
        let bytes: usize = state.messages.values().flatten().map(Vec::len).sum();
        let (kind, signal, pid) = match &state.notice {
            None => (0, 0, Pid::NONE),
            Some(Notification { pid, how }) => match how {
                NotifyMethod::Nothing => (sys::SIGEV_NONE, 0, *pid),
                NotifyMethod::Signal(signal, _) => (sys::SIGEV_SIGNAL, *signal, *pid),
                NotifyMethod::Thread(..) => (sys::SIGEV_THREAD, 0, *pid),
            },
        };
        format!("QSIZE:{bytes:<10} NOTIFY:{kind:<5} SIGNO:{signal:<5} NOTIFY_PID:{pid:<6}\n")
    }
}

impl FileOps for Descriptor {
    fn read(&self, file: &File, buf: &mut [u8]) -> Result<usize, Errno> {
        file.with_offset(|offset| {
            let n = self.read_at(file, *offset, buf)?;
            *offset += n as u64;
            Ok(n)
        })
    }

    fn supports_pread(&self) -> bool {
        true
    }

    fn read_at(&self, _: &File, offset: u64, buf: &mut [u8]) -> Result<usize, Errno> {
        let text = self.0.status();
        let rest = usize::try_from(offset)
            .ok()
            .and_then(|at| text.as_bytes().get(at..))
            .unwrap_or_default();
        let n = rest.len().min(buf.len());
        buf[..n].copy_from_slice(&rest[..n]);
        self.0.metadata.lock().atime = Timestamp::coarse_now();
        Ok(n)
    }

    fn seek(&self, file: &File, whence: Whence, offset: i64) -> Result<u64, Errno> {
        file.with_offset(|position| {
            *position = fs::seek_position(*position, Some(FILE_SIZE), whence, offset)?;
            Ok(*position)
        })
    }

    fn flush(&self, _: &File) {
        if let Some(task) = crate::current_task() {
            self.0.remove_notification(task.pid());
        }
    }

    fn poll(&self, _: &File, table: Option<&mut PollTable>) -> Events {
        if let Some(table) = table {
            table.poll_wait(&self.0.source);
        }
        let count = self.0.state.lock().count;
        let mut events = Events::empty();
        events.set(Events::READABLE, count > 0);
        events.set(Events::WRITABLE, count < self.0.max_messages);
        events
    }
}

/// A name as the C library passes it, without the slash.
fn read_name(addr: UserAddr) -> Result<Vec<u8>, Errno> {
    let name = uaccess::read_cstr(addr, fs::PATH_MAX)?;
    if name.is_empty() {
        return Err(Errno::ENOENT);
    }
    if name.contains(&b'/') || matches!(&name[..], b"." | b"..") {
        return Err(Errno::EACCES);
    }
    if name.len() > fs::NAME_MAX {
        Err(Errno::ENAMETOOLONG)
    } else {
        Ok(name)
    }
}

/// Adds a queue with permissions `mode`, from which the mask is already taken away.
pub(crate) fn add(
    task: &Task,
    queues: &mut BTreeMap<Vec<u8>, Arc<PosixQueue>>,
    name: Vec<u8>,
    mode: u32,
    attributes: Option<MqAttr>,
) -> Result<Arc<PosixQueue>, Errno> {
    if queues.len() >= task.ipc().limits.posix_queues.size()
        && !task.cred().capable(sys::CAP_SYS_RESOURCE)
    {
        return Err(Errno::ENOSPC);
    }
    let queue = make(task, mode, attributes)?;
    queues.insert(name, queue.clone());
    Ok(queue)
}

fn make(task: &Task, mode: u32, attributes: Option<MqAttr>) -> Result<Arc<PosixQueue>, Errno> {
    let ipc = task.ipc();
    let limit = |limit: &Limit| limit.get().cast_signed();
    let (most_messages, most_size) = (
        limit(&ipc.limits.posix_messages),
        limit(&ipc.limits.posix_size),
    );
    let (most, size) = attributes.map_or_else(
        || {
            (
                most_messages.min(limit(&ipc.limits.posix_default_messages)),
                most_size.min(limit(&ipc.limits.posix_default_size)),
            )
        },
        |given| (given.most, given.size),
    );
    let cred = task.cred();
    let allowed = match cred.capable(sys::CAP_SYS_RESOURCE) {
        true => most <= HARD_MESSAGES && size <= HARD_SIZE,
        false => most <= most_messages && size <= most_size,
    };
    if most <= 0 || size <= 0 || !allowed {
        return Err(Errno::EINVAL);
    }
    let mut metadata = mqueuefs::metadata(FileType::Regular, mode & 0o777);
    (metadata.uid, metadata.gid, metadata.size) = (cred.user.fs, cred.group.fs, FILE_SIZE);
    let bytes = most as u64 * (size as u64 + MESSAGE_OVERHEAD);
    charge(
        cred.user.fs,
        bytes,
        task.process().limits.lock()[Resource::MessageQueues].soft,
    )?;
    Ok(Arc::new(PosixQueue {
        _counted: census::Mqueue::default(),
        max_messages: most as usize,
        max_message_size: size as usize,
        metadata: Mutex::new(metadata),
        charge: (cred.user.fs, bytes),
        state: Mutex::default(),
        receivers: WaitQueue::new(),
        senders: WaitQueue::new(),
        source: PollQueue::new(),
    }))
}

/// `mq_open(2)`: opens or makes a message queue.
pub fn sys_mq_open(
    task: &Task,
    name: UserAddr,
    flags: u32,
    mode: u32,
    attributes: UserPtr<MqAttr>,
) -> SysResult {
    let attributes = attributes.read_optional()?;
    let name = read_name(name)?;
    task.check_fd_available()?;
    let flags = OpenFlags::from_bits_retain(flags);
    let queue = {
        let ipc = task.ipc();
        let mut queues = ipc.queues.lock();
        match queues.get(&name) {
            Some(_) if flags.contains(OpenFlags::CREAT | OpenFlags::EXCL) => {
                return Err(Errno::EEXIST);
            }
            Some(_) if flags.bits() & sys::O_ACCMODE == sys::O_ACCMODE => {
                return Err(Errno::EINVAL);
            }
            Some(queue) => {
                let mut wanted = if flags.is_readable() {
                    Access::READ
                } else {
                    Access::NONE
                };
                if flags.is_writable() {
                    wanted = wanted.union(Access::WRITE);
                }
                task.fs_cred().check(&queue.metadata.lock(), wanted)?;
                queue.clone()
            }
            None if !flags.contains(OpenFlags::CREAT) => return Err(Errno::ENOENT),
            None => add(
                task,
                &mut queues,
                name.clone(),
                mode & !task.fs().umask(),
                attributes,
            )?,
        }
    };
    let keep = flags
        - OpenFlags::from_bits_retain(sys::O_CREAT | sys::O_EXCL | sys::O_NOCTTY | sys::O_TRUNC);
    let shown = format!("/{}", String::from_utf8_lossy(&name));
    let file = File::new(
        Path::pseudo(queue.clone(), &shown),
        Arc::new(Descriptor(queue)),
        keep,
    );
    file.add_status_flags(keep & OpenFlags::CLOEXEC);
    task.files().install(file, CloseOnExec::Yes)
}

/// `mq_unlink(2)`: who has it open keeps it.
pub fn sys_mq_unlink(task: &Task, name: UserAddr) -> SysResult {
    let name = read_name(name)?;
    let ipc = task.ipc();
    let mut queues = ipc.queues.lock();
    let queue = queues.get(&name).ok_or(Errno::ENOENT)?;
    let cred = task.fs_cred();
    if !cred.owns(&queue.metadata.lock()) {
        // The directory of all queues is sticky.
        return Err(Errno::EPERM);
    }
    let queue = queues.remove(&name);
    drop(queues);
    drop(queue);
    Ok(0)
}

/// The queue of a descriptor that `may` be used so.
fn open_queue(
    task: &Task,
    fd: Fd,
    may: impl Fn(OpenFlags) -> bool,
) -> Result<(Arc<PosixQueue>, bool), Errno> {
    let file = task.file_io(fd)?;
    let queue = file.ops_as::<Descriptor>().ok_or(Errno::EBADF)?.0.clone();
    if may(file.flags()) {
        Ok((queue, file.is_nonblocking()))
    } else {
        Err(Errno::EBADF)
    }
}

/// Deadline that a timeout, a time of the wall clock, means; `None` for a null pointer.
fn absolute_timeout(
    task: &Task,
    timeout: UserPtr<TimeSpec>,
) -> Result<Option<AbsoluteDeadline<'_>>, Errno> {
    timeout
        .read_optional()?
        .map(|time| AbsoluteDeadline::new(task, time, ClockBase::Realtime))
        .transpose()
}

/// Waits at `queue` until `attempt` gives a result.
fn wait<R>(
    queue: &WaitQueue,
    nonblocking: bool,
    until: Option<AbsoluteDeadline<'_>>,
    mut attempt: impl FnMut() -> Option<R>,
) -> Result<R, Errno> {
    match attempt() {
        Some(result) => Ok(result),
        None if nonblocking => Err(Errno::EAGAIN),
        None => queue
            .wait_interruptible(until.as_ref().map(AbsoluteDeadline::deadline), attempt)
            .map_err(|error| match error {
                WaitError::Interrupted => Errno::ERESTARTSYS,
                WaitError::TimedOut => Errno::ETIMEDOUT,
            }),
    }
}

/// `mq_timedsend(2)`: sends a message; waits for room until a time.
pub fn sys_mq_timedsend(
    task: &Task,
    fd: Fd,
    from: UserAddr,
    len: usize,
    priority: u32,
    timeout: UserPtr<TimeSpec>,
) -> SysResult {
    let until = absolute_timeout(task, timeout)?;
    if priority >= PRIORITIES {
        return Err(Errno::EINVAL);
    }
    let (queue, nonblocking) = open_queue(task, fd, OpenFlags::is_writable)?;
    if len > queue.max_message_size {
        return Err(Errno::EMSGSIZE);
    }
    let mut bytes = fallible::zeroed(len)?;
    uaccess::read_bytes(from, &mut bytes)?;
    let mut message = Some(bytes);
    let attempt = || {
        let mut state = queue.state.lock();
        if state.count >= queue.max_messages {
            return None;
        }
        // The superuser may allow very many.
        let of_priority = state.messages.entry(priority).or_default();
        if of_priority.try_reserve(1).is_err() {
            return Some(Err(Errno::ENOMEM));
        }
        of_priority.extend(message.take());
        state.count += 1;
        let tells = state.count == 1 && state.receivers == 0;
        Some(Ok(if tells { state.notice.take() } else { None }))
    };
    let notice = wait(&queue.senders, nonblocking, until, attempt)??;
    queue.receivers.wake_one();
    queue.source.notify();
    if let Some(Notification { pid, how }) = notice {
        match how {
            NotifyMethod::Signal(signo, value) => {
                if let Some(process) = process_table::find(pid) {
                    send_signal::send(
                        &process,
                        SigInfo::message_queue(signo, task.pid(), task.cred().user.real, value),
                    );
                }
            }
            how => how.wake_thread(),
        }
    }
    Ok(0)
}

/// `mq_timedreceive(2)`: receives the first message of the highest priority; waits until a time.
pub fn sys_mq_timedreceive(
    task: &Task,
    fd: Fd,
    to: UserAddr,
    len: usize,
    priority: UserPtr<u32>,
    timeout: UserPtr<TimeSpec>,
) -> SysResult {
    let until = absolute_timeout(task, timeout)?;
    let (queue, nonblocking) = open_queue(task, fd, OpenFlags::is_readable)?;
    if len < queue.max_message_size {
        return Err(Errno::EMSGSIZE);
    }
    let attempt = || {
        let mut state = queue.state.lock();
        let mut entry = state.messages.last_entry()?;
        let found = (*entry.key(), entry.get_mut().pop_front()?);
        if entry.get().is_empty() {
            entry.remove();
        }
        state.count -= 1;
        Some(found)
    };
    queue.state.lock().receivers += 1;
    let received = wait(&queue.receivers, nonblocking, until, attempt);
    queue.state.lock().receivers -= 1;
    let (found, bytes) = received?;
    queue.senders.wake_one();
    queue.source.notify();
    uaccess::write_bytes(to, &bytes)?;
    priority.write_optional(&found)?;
    Ok(bytes.len())
}

/// The way in which a program wants to be told.
fn read_notice(task: &Task, event: &SigEvent) -> Result<NotifyMethod, Errno> {
    Ok(match event.kind() {
        sys::SIGEV_NONE => NotifyMethod::Nothing,
        // Signal 0 is one that nobody gets.
        sys::SIGEV_SIGNAL if event.signo() == 0 => NotifyMethod::Nothing,
        sys::SIGEV_SIGNAL if (1..=NSIG).contains(&event.signo()) => {
            NotifyMethod::Signal(event.signo(), event.value())
        }
        sys::SIGEV_THREAD => {
            let cookie = UserPtr::new(UserAddr::from(event.value())).read()?;
            let mailbox = with_socket(task, Fd::new(event.signo()), |socket, _| {
                socket.kernel_mailbox().ok_or(Errno::EINVAL)
            })?;
            mailbox.wait_for_room()?;
            NotifyMethod::Thread(mailbox, cookie)
        }
        _ => return Err(Errno::EINVAL),
    })
}

/// `mq_notify(2)`: has the caller told of the next message that comes into the empty queue. For
/// `SIGEV_THREAD` the C library passes a netlink socket in place of the signal, and the bytes that
/// it wants to receive.
pub fn sys_mq_notify(task: &Task, fd: Fd, event: UserPtr<SigEvent>) -> SysResult {
    let event = event.read_optional()?;
    let how = event.map(|event| read_notice(task, &event)).transpose()?;
    let (queue, _) = open_queue(task, fd, |_| true)?;
    let pid = task.pid();
    let Some(how) = how else {
        queue.remove_notification(pid);
        return Ok(0);
    };
    let mut state = queue.state.lock();
    if state
        .notice
        .as_ref()
        .is_some_and(|notice| process_table::find(notice.pid).is_some())
    {
        return Err(Errno::EBUSY);
    }
    let former = state.notice.replace(Notification { pid, how });
    drop(state);
    task.files().flush_on_close();
    drop(former);
    Ok(0)
}

/// `mq_getsetattr(2)`: of the attributes only `O_NONBLOCK` can be set.
pub fn sys_mq_getsetattr(
    task: &Task,
    fd: Fd,
    new: UserPtr<MqAttr>,
    old: UserPtr<MqAttr>,
) -> SysResult {
    let new = new.read_optional()?;
    let nonblock = i64::from(sys::O_NONBLOCK);
    if new.is_some_and(|new| new.flags & !nonblock != 0) {
        return Err(Errno::EINVAL);
    }
    let (queue, nonblocking) = open_queue(task, fd, |_| true)?;
    let before = MqAttr {
        flags: if nonblocking { nonblock } else { 0 },
        most: queue.max_messages as i64,
        size: queue.max_message_size as i64,
        now: queue.state.lock().count as i64,
        reserved: [0; 4],
    };
    if let Some(new) = new {
        let file = task.file_io(fd)?;
        let mut flags = file.flags();
        flags.set(OpenFlags::NONBLOCK, new.flags & nonblock != 0);
        file.set_flags(flags);
    }
    old.write_optional(&before)?;
    Ok(0)
}
