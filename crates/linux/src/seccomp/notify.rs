//! System calls that another process decides about (`SECCOMP_RET_USER_NOTIF`): the thread that
//! makes one waits until whoever holds the filter's listener, a descriptor, has answered by
//! `ioctl(2)`.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use abi::errno::Errno;
use abi::layout::PAGE_SIZE;
use fs::ioctl::IoctlRequest;
use fs::poll::{Events, PollTable};
use fs::{File, FileOps, OpenFlags};
use linux_raw_sys::general as sys;
use uapi::fd::Fd;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::process::process_table;
use crate::state::fdtable::CloseOnExec;
use crate::state::seccomp::{Listener, PendingNotification, Response, SeccompData, State};
use crate::{SysResult, Task, current_task};

const RECEIVE: u32 = 0xc050_2100;
const SEND: u32 = 0xc018_2101;
const IS_VALID: u32 = 0x4008_2102;
/// `SECCOMP_IOCTL_NOTIF_ID_VALID` with the wrong direction, as the first kernels had it.
const IS_VALID_OLD: u32 = 0x8008_2102;
/// Installs a descriptor in the thread that waits (`SECCOMP_IOCTL_NOTIF_ADDFD`), without the bits
/// of the direction and of the structure's size, which is the caller's to choose.
const ADDFD: u32 = 0x0000_2103;
/// Bits of a request that say how long its structure is, and in which direction it goes.
const SIZE_SHIFT: u32 = 16;
const SIZE_MASK: u32 = 0x3fff;
const DIRECTION: u32 = 0xc000_0000;
/// Flag of a reply: the call is done after all (`SECCOMP_USER_NOTIF_FLAG_CONTINUE`).
const CONTINUE: u32 = 1;
/// Flag: the new descriptor gets the number that is named.
const ADDFD_FLAG_SETFD: u32 = 1;
/// Flag: the new descriptor is the call's result, too.
const ADDFD_FLAG_SEND: u32 = 2;

/// A call that a listener is to decide about: `struct seccomp_notif`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Notification {
    id: u64,
    tid: i32,
    flags: u32,
    data: SeccompData,
}

/// A descriptor to be installed: `struct seccomp_notif_addfd`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct AddFd {
    id: u64,
    flags: u32,
    source: Fd,
    number: Fd,
    number_flags: u32,
}

const _: () = assert!(
    size_of::<Notification>() == 80 && size_of::<Response>() == 24 && size_of::<AddFd>() == 24
);

/// `struct seccomp_notif_sizes`: sizes in bytes of the structures that are shared with programs.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct NotifSizes {
    notification: u16,
    response: u16,
    data: u16,
}

/// The sizes as programs ask for them.
pub(crate) const SIZES: NotifSizes = NotifSizes {
    notification: size_of::<Notification>() as u16,
    response: size_of::<Response>() as u16,
    data: size_of::<SeccompData>() as u16,
};

impl Listener {
    /// Open file by which a program receives and answers notifications.
    pub(crate) fn file(self: &Arc<Self>) -> Arc<File> {
        File::anonymous(
            "anon_inode:seccomp notify",
            Arc::new(Descriptor(self.clone())),
            OpenFlags::RDWR,
        )
    }

    /// Notifies the listener of a call of the calling thread and waits for the reply. `None`: the
    /// call is to be done.
    pub(crate) fn notify_and_wait(&self, task: &Task, data: SeccompData) -> Option<SysResult> {
        let id = {
            let mut calls = self.calls.lock();
            calls.last += 1;
            let id = calls.last;
            let notification = PendingNotification {
                id,
                tid: task.tid(),
                data,
                state: State::Init,
            };
            if let Err(error) = fallible::push(&mut calls.waiting, notification) {
                return Some(Err(error));
            }
            id
        };
        self.changed.notify_events(Events::READABLE);
        let answer = self.wait_for(task, id);
        self.calls.lock().waiting.retain(|waiting| waiting.id != id);
        match answer {
            Err(error) => Some(Err(error)),
            Ok(response) if response.flags & CONTINUE != 0 => None,
            Ok(Response {
                error: 0, value, ..
            }) => Some(Ok(value as usize)),
            Ok(Response {
                error: error @ ..0, ..
            }) => Some(answer_error(task, error)),
            Ok(Response { error, .. }) => Some(Ok(error as usize)),
        }
    }

    fn wait_for(&self, task: &Task, id: u64) -> Result<Response, Errno> {
        let answer = || {
            let mut calls = self.calls.lock();
            match calls.find(id).map(|waiting| waiting.state) {
                Ok(State::Replied(response)) => Some(Ok(response)),
                _ if calls.closed => Some(Err(Errno::ENOSYS)),
                _ => None,
            }
        };
        let mut postponed = false;
        let answer = loop {
            if let Ok(answer) = self.answered.wait_interruptible(None, answer) {
                break answer;
            }
            let told = self.calls.lock().sent(id).is_ok();
            if !self.killable || !told || task.must_exit() {
                break Err(Errno::ERESTARTSYS);
            }
            // An ordinary signal: it is looked at when the call is over.
            task.thread().clear_signal_pending();
            task.waits_killable.store(true, Ordering::Relaxed);
            postponed = true;
        };
        task.waits_killable.store(false, Ordering::Relaxed);
        if postponed {
            task.signal_wake_up();
        }
        answer
    }

    /// Tells of a call, when there is one.
    fn receive(&self, request: &IoctlRequest<'_>) -> Result<usize, Errno> {
        if request
            .read::<Notification>()?
            .as_bytes()
            .iter()
            .any(|&byte| byte != 0)
        {
            return Err(Errno::EINVAL);
        }
        let next = || {
            let mut calls = self.calls.lock();
            match calls
                .waiting
                .iter_mut()
                .find(|waiting| matches!(waiting.state, State::Init))
            {
                Some(waiting) => {
                    waiting.state = State::Sent;
                    let PendingNotification { id, tid, data, .. } = *waiting;
                    Some(Ok(Notification {
                        id,
                        tid: tid.raw(),
                        flags: 0,
                        data,
                    }))
                }
                None => self
                    .orphaned
                    .load(Ordering::SeqCst)
                    .then_some(Err(Errno::ENOENT)),
            }
        };
        let notification = self.changed.wait(next).map_err(|_| Errno::EINTR)??;
        if let Err(error) = request.write(&notification) {
            if let Ok(waiting) = self.calls.lock().sent(notification.id) {
                waiting.state = State::Init;
            }
            self.changed.notify_events(Events::READABLE);
            return Err(error);
        }
        self.changed.notify_events(Events::WRITABLE);
        Ok(0)
    }

    /// Replies to a notification (`SECCOMP_IOCTL_NOTIF_SEND`).
    fn reply(&self, response: Response) -> Result<usize, Errno> {
        let continues = response.flags & CONTINUE != 0;
        if response.flags & !CONTINUE != 0
            || (continues && (response.error != 0 || response.value != 0))
        {
            return Err(Errno::EINVAL);
        }
        self.calls.lock().sent(response.id)?.state = State::Replied(response);
        self.answered.wake_all();
        Ok(0)
    }

    /// Installs a file of the listener's as a descriptor of the thread that waits
    /// (`SECCOMP_IOCTL_NOTIF_ADDFD`).
    fn add_fd(&self, addition: AddFd) -> Result<usize, Errno> {
        let AddFd {
            id,
            flags,
            source,
            number,
            number_flags,
        } = addition;
        let named = flags & ADDFD_FLAG_SETFD != 0;
        if flags & !(ADDFD_FLAG_SETFD | ADDFD_FLAG_SEND) != 0
            || number_flags & !sys::O_CLOEXEC != 0
            || (number.raw() != 0 && !named)
        {
            return Err(Errno::EINVAL);
        }
        let file = current_task().ok_or(Errno::ESRCH)?.file(source)?;
        let tid = self.calls.lock().sent(id)?.tid;
        let files = process_table::find_task(tid).ok_or(Errno::ENOENT)?.files();
        let cloexec = CloseOnExec::when(number_flags != 0);
        let installed = if named {
            files.install_at(number, file, cloexec)?
        } else {
            files.install_shared(file, cloexec)?
        };
        if flags & ADDFD_FLAG_SEND != 0 {
            self.reply(Response {
                id,
                value: installed as i64,
                error: 0,
                flags: 0,
            })?;
        }
        Ok(installed)
    }
}

/// Result of a call that is answered with a negative number. One that would have the call made anew
/// does so only if there is a signal to handle before; else the program sees it, as on Linux.
fn answer_error(task: &Task, error: i32) -> SysResult {
    let errno = Errno::from_raw(-error);
    if errno.is_restart() && !task.thread().is_signal_pending() {
        return Ok(error as isize as usize);
    }
    Err(errno)
}

/// Reads an addition of the caller's size: what is behind the known part must be zero.
fn read_addition(request: &IoctlRequest<'_>) -> Result<AddFd, Errno> {
    let size = (request.command >> SIZE_SHIFT & SIZE_MASK) as usize;
    if !(size_of::<AddFd>()..PAGE_SIZE).contains(&size) {
        return Err(Errno::EINVAL);
    }
    let mut bytes = fallible::zeroed(size)?;
    request.caller.read_bytes(request.arg, &mut bytes)?;
    let (addition, unknown) = AddFd::read_from_prefix(&bytes).map_err(|_| Errno::EINVAL)?;
    if unknown.iter().any(|&byte| byte != 0) {
        return Err(Errno::E2BIG);
    }
    Ok(addition)
}

/// File of a listener's descriptor. When it is closed, calls that wait fail.
struct Descriptor(Arc<Listener>);

impl Drop for Descriptor {
    fn drop(&mut self) {
        self.0.calls.lock().closed = true;
        self.0.answered.wake_all();
    }
}

impl FileOps for Descriptor {
    fn ioctl(&self, _: &File, request: &IoctlRequest<'_>) -> Result<usize, Errno> {
        match request.command {
            RECEIVE => self.0.receive(request),
            SEND => self.0.reply(request.read()?),
            IS_VALID | IS_VALID_OLD => {
                let id = request.read::<u64>()?;
                self.0
                    .calls
                    .lock()
                    .sent(id)
                    .map(|_| 0)
                    .map_err(|_| Errno::ENOENT)
            }
            command if command & !(DIRECTION | SIZE_MASK << SIZE_SHIFT) == ADDFD => {
                self.0.add_fd(read_addition(request)?)
            }
            _ => Err(Errno::EINVAL),
        }
    }

    fn poll(&self, _: &File, table: Option<&mut PollTable>) -> Events {
        if let Some(table) = table {
            table.poll_wait(&self.0.changed);
        }
        let calls = self.0.calls.lock();
        let any = |is: fn(&State) -> bool| calls.waiting.iter().any(|call| is(&call.state));
        let mut events = Events::empty();
        events.set(Events::READABLE, any(|state| matches!(state, State::Init)));
        events.set(Events::WRITABLE, any(|state| matches!(state, State::Sent)));
        events.set(Events::HUP, self.0.orphaned.load(Ordering::SeqCst));
        events
    }
}
