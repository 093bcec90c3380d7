//! Filters of system calls that a thread has (`seccomp(2)`), and the calls that wait for the answer
//! of a filter's listener.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use ::task::{Mutex, WaitQueue};
use abi::errno::Errno;
use bpf::Program;
use fs::poll::PollQueue;
use uapi::pid::Tid;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `struct seccomp_data`: what a filter looks at.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct SeccompData {
    pub(crate) number: i32,
    /// The kind of processor (`AUDIT_ARCH_X86_64`).
    pub(crate) arch: u32,
    /// Address of the call's instruction.
    pub(crate) ip: u64,
    pub(crate) args: [u64; 6],
}

impl bpf::Data for SeccompData {
    fn length(&self) -> u32 {
        size_of::<Self>() as u32
    }

    fn load(&self, at: u32, _: u32) -> Option<u32> {
        self.as_bytes()
            .get(at as usize..)
            .and_then(|rest| rest.first_chunk())
            .map(|bytes| u32::from_ne_bytes(*bytes))
    }
}

/// A filter, and those that were there before: all of them decide.
pub(crate) struct SeccompFilter {
    pub(crate) _counted: census::Filter,
    pub(crate) program: Program,
    /// Whether what it does is logged (`SECCOMP_FILTER_FLAG_LOG`).
    pub(crate) logs: bool,
    /// Listener that decides for the filter (`SECCOMP_RET_USER_NOTIF`).
    pub(crate) listener: Option<Arc<Listener>>,
    /// Filter installed before this one.
    pub(crate) prev: Option<Arc<Self>>,
}

impl SeccompFilter {
    /// Flags that it was installed with, as far as they outlast that.
    pub(crate) fn flags(&self) -> u64 {
        const LOG: u64 = 2;
        if self.logs { LOG } else { 0 }
    }
}

impl Drop for SeccompFilter {
    fn drop(&mut self) {
        if let Some(listener) = &self.listener {
            listener.orphan();
        }
    }
}

/// System calls that a thread may make.
#[derive(Clone, Default)]
pub(crate) enum Seccomp {
    /// No filter: all calls are allowed.
    #[default]
    Off,
    /// `read`, `write`, `exit` and `rt_sigreturn`.
    Strict,
    /// Calls that the filters allow.
    Filtered(Arc<SeccompFilter>),
}

/// The restrictions of a thread's system calls in numbers.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct SeccompStatus {
    /// `SECCOMP_MODE_*`: 0, 1 or 2.
    pub(crate) mode: usize,
    /// The number of filters.
    pub(crate) filters: usize,
}

impl Seccomp {
    /// `SECCOMP_MODE_*` of the thread, as `PR_GET_SECCOMP` and `/proc` tell it.
    pub(crate) fn mode(&self) -> usize {
        match self {
            Self::Off => 0,
            Self::Strict => 1,
            Self::Filtered(_) => 2,
        }
    }

    /// Mode and number of filters, as `/proc/<pid>/status` shows them.
    pub(crate) fn status(&self) -> SeccompStatus {
        SeccompStatus {
            mode: self.mode(),
            filters: self.filters().count(),
        }
    }

    pub(crate) fn filters(&self) -> impl Iterator<Item = &SeccompFilter> {
        let first = if let Self::Filtered(filter) = self {
            Some(&**filter)
        } else {
            None
        };
        core::iter::successors(first, |filter| filter.prev.as_deref())
    }
}

/// A listener's decision about a call: `struct seccomp_notif_resp`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Response {
    pub(crate) id: u64,
    pub(crate) value: i64,
    pub(crate) error: i32,
    pub(crate) flags: u32,
}

#[derive(Clone, Copy)]
pub(crate) enum State {
    /// The listener has not received it.
    Init,
    /// The listener has received it.
    Sent,
    /// The listener has replied.
    Replied(Response),
}

/// A thread that waits.
pub(crate) struct PendingNotification {
    pub(crate) id: u64,
    pub(crate) tid: Tid,
    pub(crate) data: SeccompData,
    pub(crate) state: State,
}

#[derive(Default)]
pub(crate) struct NotificationQueue {
    pub(crate) last: u64,
    pub(crate) waiting: Vec<PendingNotification>,
    /// Nobody listens any more.
    pub(crate) closed: bool,
}

impl NotificationQueue {
    pub(crate) fn find(&mut self, id: u64) -> Result<&mut PendingNotification, Errno> {
        self.waiting
            .iter_mut()
            .find(|waiting| waiting.id == id)
            .ok_or(Errno::ENOENT)
    }

    /// Notification that the listener has received and not replied to.
    pub(crate) fn sent(&mut self, id: u64) -> Result<&mut PendingNotification, Errno> {
        let waiting = self.find(id)?;
        if matches!(waiting.state, State::Sent) {
            Ok(waiting)
        } else {
            Err(Errno::EINPROGRESS)
        }
    }
}

/// Queue of calls that a filter brings to a descriptor.
pub(crate) struct Listener {
    pub(crate) calls: Mutex<NotificationQueue>,
    /// Threads wait here for answers.
    pub(crate) answered: WaitQueue,
    /// Notified when a call comes in, for the listener.
    pub(crate) changed: PollQueue,
    /// Once told of, a call is given up only by its thread's end.
    pub(crate) killable: bool,
    /// No thread has the filter any more.
    pub(crate) orphaned: AtomicBool,
}

impl Listener {
    pub(crate) fn new(killable: bool) -> Arc<Self> {
        Arc::new(Self {
            calls: Mutex::default(),
            answered: WaitQueue::new(),
            changed: PollQueue::new(),
            killable,
            orphaned: AtomicBool::new(false),
        })
    }

    /// The filter is gone.
    pub(crate) fn orphan(&self) {
        self.orphaned.store(true, Ordering::SeqCst);
        self.changed.notify();
    }
}
