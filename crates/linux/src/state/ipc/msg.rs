//! System V message queues.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use ::task::{Mutex, WaitQueue};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::state::ipc::{IpcObject, IpcPerm, IpcTable};

/// The first message of another type.
pub(crate) const MSG_EXCEPT: u32 = 0o20_000;

/// A copy of a message by its index.
pub(crate) const MSG_COPY: u32 = 0o40_000;

/// State of a queue as `IPC_STAT` stores it: Linux' `struct msqid64_ds`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MsqidDs {
    pub(crate) owner: IpcPerm,
    pub(crate) sent: i64,
    pub(crate) received: i64,
    pub(crate) changed: i64,
    pub(crate) bytes: u64,
    pub(crate) count: u64,
    pub(crate) limit: u64,
    pub(crate) last_sender: i32,
    pub(crate) last_receiver: i32,
    pub(crate) unused: [u64; 2],
}

pub(crate) struct Message {
    pub(crate) kind: i64,
    pub(crate) bytes: Vec<u8>,
}

pub(crate) struct State {
    pub(crate) info: MsqidDs,
    pub(crate) messages: VecDeque<Message>,
    pub(crate) removed: bool,
}

/// A message queue of System V (`sysvipc(7)`).
pub(crate) struct MsgQueue {
    pub(crate) _counted: census::Messages,
    pub(crate) state: Mutex<State>,
    /// Threads that wait for a message, woken too when the queue is removed.
    pub(crate) receivers: WaitQueue,
    /// Threads that wait for room, woken too when the queue is removed.
    pub(crate) senders: WaitQueue,
}

impl IpcObject for MsgQueue {
    fn owner(&self) -> IpcPerm {
        self.state.lock().info.owner
    }
}

/// All queues of a namespace.
pub(crate) type Queues = IpcTable<MsgQueue>;

/// Index of the message that a kind and flags of `msgrcv(2)` select.
pub(crate) fn choose(messages: &VecDeque<Message>, kind: i64, flags: u32) -> Option<usize> {
    if flags & MSG_COPY != 0 {
        return usize::try_from(kind).ok().filter(|&at| at < messages.len());
    }
    match kind {
        0 => (!messages.is_empty()).then_some(0),
        1.. if flags & MSG_EXCEPT != 0 => messages.iter().position(|message| message.kind != kind),
        1.. => messages.iter().position(|message| message.kind == kind),
        _ => {
            let most = kind.checked_neg().unwrap_or(i64::MAX);
            let least = messages
                .iter()
                .map(|message| message.kind)
                .min()
                .filter(|&least| least <= most)?;
            messages.iter().position(|message| message.kind == least)
        }
    }
}
