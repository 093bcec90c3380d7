//! POSIX message queues, and what users are charged for them.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;

use ::task::{Mutex, WaitQueue};
use abi::errno::Errno;
use fs::Metadata;
use fs::poll::PollQueue;
use net::KernelMailbox;
use uapi::pid::Pid;

/// Notification of a process when a message comes into the empty queue, once.
pub(crate) struct Notification {
    pub(crate) pid: Pid,
    pub(crate) how: NotifyMethod,
}

/// The way in which a process is told of a message.
pub(crate) enum NotifyMethod {
    /// Not at all (`SIGEV_NONE`).
    Nothing,
    /// By a signal with a value (`SIGEV_SIGNAL`).
    Signal(i32, u64),
    /// By these bytes at a socket, where the C library has a thread that waits (`SIGEV_THREAD`).
    Thread(Arc<dyn KernelMailbox>, [u8; COOKIE_LEN]),
}

/// Bytes that are sent for `SIGEV_THREAD`; the last one says what happened.
pub(crate) const COOKIE_LEN: usize = 32;
/// The event that a message has come.
const NOTIFY_WOKENUP: u8 = 1;
/// The event that there will be no notification.
const NOTIFY_REMOVED: u8 = 2;

impl Notification {
    /// Tells a thread of the C library that there will be no notification.
    pub(crate) fn withdraw(self) {
        self.how.post(NOTIFY_REMOVED);
    }
}

impl NotifyMethod {
    /// Tells a thread of the C library that a message has come.
    pub(crate) fn wake_thread(self) {
        self.post(NOTIFY_WOKENUP);
    }

    fn post(self, event: u8) {
        if let Self::Thread(mailbox, mut cookie) = self {
            cookie[COOKIE_LEN - 1] = event;
            mailbox.post(&cookie);
        }
    }
}

#[derive(Default)]
pub(crate) struct State {
    /// By priority, the lowest first; of one priority the oldest first.
    pub(crate) messages: BTreeMap<u32, VecDeque<Vec<u8>>>,
    pub(crate) count: usize,
    pub(crate) receivers: usize,
    pub(crate) notice: Option<Notification>,
}

/// A message queue of POSIX (`mq_overview(7)`).
pub(crate) struct PosixQueue {
    pub(crate) _counted: census::Mqueue,
    /// Most messages in the queue (`mq_maxmsg`).
    pub(crate) max_messages: usize,
    /// Largest message, in bytes (`mq_msgsize`).
    pub(crate) max_message_size: usize,
    /// Metadata that `fstat(2)` shows.
    pub(crate) metadata: Mutex<Metadata>,
    /// The user who made it, and the bytes he is charged for.
    pub(crate) charge: (u32, u64),
    pub(crate) state: Mutex<State>,
    /// Threads that wait for a message.
    pub(crate) receivers: WaitQueue,
    /// Threads that wait for room.
    pub(crate) senders: WaitQueue,
    pub(crate) source: PollQueue,
}

/// Bytes that each user's queues can hold (`RLIMIT_MSGQUEUE`).
pub(crate) static CHARGED: Mutex<BTreeMap<u32, u64>> = Mutex::new(BTreeMap::new());

/// Number of bytes that all users are charged for.
pub(crate) fn charged_bytes() -> u64 {
    CHARGED.lock().values().sum()
}

impl Drop for PosixQueue {
    fn drop(&mut self) {
        let (user, taken) = self.charge;
        let mut charged = CHARGED.lock();
        if let Some(bytes) = charged.get_mut(&user) {
            *bytes -= taken;
            if *bytes == 0 {
                charged.remove(&user);
            }
        }
    }
}

/// Charges a user for a queue of so many bytes, of which all together may have `limit`.
///
/// # Errors
/// `EMFILE`.
pub(crate) fn charge(uid: u32, bytes: u64, limit: u64) -> Result<(), Errno> {
    let mut charged = CHARGED.lock();
    let sum = charged.get(&uid).copied().unwrap_or(0) + bytes;
    if sum > limit {
        return Err(Errno::EMFILE);
    }
    charged.insert(uid, sum);
    Ok(())
}

/// All queues of a namespace, by name.
pub(crate) type Queues = Mutex<BTreeMap<Vec<u8>, Arc<PosixQueue>>>;
