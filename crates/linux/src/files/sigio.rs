//! Who is signalled when a file is ready: `F_SETOWN`, `F_SETOWN_EX`, `F_SETSIG` of `fcntl(2)`, and
//! the sending.

use abi::errno::Errno;
use fs::File;
use fs::poll::Events;
use fs::sigio::{FileOwner, OwnerTarget, SendSigio, SetterUids};
use linux_raw_sys::general as sys;
use uapi::pid::{Pgid, Pid, Tid};
use uapi::siginfo::{NSIG, SigInfo};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::process::{Process, process_table, send_signal};
use crate::uaccess::UserPtr;
use crate::{SysResult, Task};

/// Kinds of owners (`F_OWNER_*`).
const OWNER_THREAD: i32 = 0;
const OWNER_PROCESS: i32 = 1;
const OWNER_GROUP: i32 = 2;

/// `struct f_owner_ex`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct FOwnerEx {
    kind: i32,
    pid: i32,
}

fn set(task: &Task, file: &File, target: OwnerTarget) -> SysResult {
    let there = match target {
        OwnerTarget::Nobody => true,
        OwnerTarget::Thread(id) => process_table::find_task(Tid::new(id)).is_some(),
        OwnerTarget::Process(id) => process_table::find(Pid::new(id)).is_some(),
        OwnerTarget::Group(id) => {
            !process_table::processes_where(|_, node| node.group == Pgid::new(id)).is_empty()
        }
    };
    if !there {
        return Err(Errno::ESRCH);
    }
    let setter = setter_uids(task);
    file.update_owner(|owner| {
        owner.target = target;
        owner.setter = setter;
    });
    Ok(0)
}

/// `F_SETOWN`: a process, or (negative) a group.
pub(crate) fn set_owner(task: &Task, file: &File, owner: i32) -> SysResult {
    set(
        task,
        file,
        match owner {
            0 => OwnerTarget::Nobody,
            1.. => OwnerTarget::Process(owner),
            _ => OwnerTarget::Group(owner.checked_neg().ok_or(Errno::EINVAL)?),
        },
    )
}

/// Number of the process, or the group's negated, that gets the file's signals (`F_GETOWN`).
pub(crate) fn owner(file: &File) -> SysResult {
    Ok(match file.owner().target {
        OwnerTarget::Nobody => 0,
        OwnerTarget::Thread(id) | OwnerTarget::Process(id) => id as usize,
        OwnerTarget::Group(id) => -id as usize,
    })
}

/// Makes a thread, process or group the receiver of the file's signals (`F_SETOWN_EX`).
pub(crate) fn set_owner_ex(task: &Task, file: &File, owner: UserPtr<FOwnerEx>) -> SysResult {
    let FOwnerEx { kind, pid: id } = owner.read()?;
    set(
        task,
        file,
        match kind {
            OWNER_THREAD | OWNER_PROCESS | OWNER_GROUP if id == 0 => OwnerTarget::Nobody,
            OWNER_THREAD => OwnerTarget::Thread(id),
            OWNER_PROCESS => OwnerTarget::Process(id),
            OWNER_GROUP => OwnerTarget::Group(id),
            _ => return Err(Errno::EINVAL),
        },
    )
}

/// Stores type and number of the receiver of the file's signals (`F_GETOWN_EX`).
pub(crate) fn owner_ex(file: &File, to: UserPtr<FOwnerEx>) -> SysResult {
    let (kind, pid) = match file.owner().target {
        OwnerTarget::Nobody => (OWNER_PROCESS, 0),
        OwnerTarget::Thread(id) => (OWNER_THREAD, id),
        OwnerTarget::Process(id) => (OWNER_PROCESS, id),
        OwnerTarget::Group(id) => (OWNER_GROUP, id),
    };
    to.write(&FOwnerEx { kind, pid }).map(|()| 0)
}

/// Sets the signal that the file sends, 0 for `SIGIO` (`F_SETSIG`).
pub(crate) fn set_signal(file: &File, signal: i32) -> SysResult {
    if !(0..=NSIG).contains(&signal) {
        return Err(Errno::EINVAL);
    }
    file.update_owner(|owner| owner.signal = signal);
    Ok(0)
}

/// The personality's side of [`fs::sigio`].
pub(crate) struct SigioSender;

/// Events that `poll(2)` would report of a message.
const MESSAGE: u32 = sys::POLLIN | sys::POLLRDNORM | sys::POLLMSG;

impl SendSigio for SigioSender {
    fn send_poll_msg(&self, owner: FileOwner, fd: i32) {
        let info = match owner.signal {
            0 => SigInfo::kernel(sys::SIGIO as i32),
            signal => SigInfo::poll(signal, sys::POLL_MSG as i32, MESSAGE, fd),
        };
        deliver(owner, info);
    }

    fn send_sigio(&self, owner: FileOwner, events: Events, fd: i32) {
        let code = [
            (Events::HUP, sys::POLL_HUP),
            (Events::ERR, sys::POLL_ERR),
            (Events::PRI, sys::POLL_PRI),
            (Events::IN, sys::POLL_IN),
        ]
        .into_iter()
        .find(|(event, _)| events.contains(*event))
        .map_or(sys::POLL_OUT, |(_, code)| code);
        let info = match owner.signal {
            0 => SigInfo::kernel(sys::SIGIO as i32),
            signal => SigInfo::poll(signal, code as i32, events.bits(), fd),
        };
        deliver(owner, info);
    }

    fn send_sigurg(&self, owner: FileOwner) {
        deliver(owner, SigInfo::kernel(sys::SIGURG as i32));
    }
}

/// User ids of the calling process, to be kept with a file that it becomes the owner of.
pub(crate) fn setter_uids(task: &Task) -> SetterUids {
    let user = task.cred().user;
    SetterUids {
        real: user.real,
        effective: user.effective,
    }
}

/// Sends a signal to the target of `owner`, as far as the process that set it may.
fn deliver(owner: FileOwner, info: SigInfo) {
    let SetterUids { real, effective } = owner.setter;
    let allowed = |process: &Process| {
        let owner = process.credentials().user;
        effective == 0
            || [real, effective]
                .iter()
                .any(|id| *id == owner.real || *id == owner.saved)
    };
    match owner.target {
        OwnerTarget::Nobody => {}
        OwnerTarget::Thread(id) => {
            if let Some(task) =
                process_table::find_task(Tid::new(id)).filter(|task| allowed(task.process()))
            {
                send_signal::send_task(&task, info);
            }
        }
        OwnerTarget::Process(id) => {
            if let Some(process) =
                process_table::find(Pid::new(id)).filter(|process| allowed(process))
            {
                send_signal::send(&process, info);
            }
        }
        OwnerTarget::Group(id) => {
            for process in process_table::processes_where(|_, node| {
                node.group == Pgid::new(id) && node.exit_status.is_none()
            }) {
                if allowed(&process) {
                    send_signal::send(&process, info);
                }
            }
        }
    }
}
