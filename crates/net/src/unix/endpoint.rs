//! The endpoint of this family, which has beside its queue: a name, credentials, and whom its
//! datagrams go to.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::ops::{Deref, DerefMut};

use task::Mutex;
use task::sync::{AtomicUsize, Ordering};
use vm::PAGE_SIZE;

use super::stack::UnixStack;
use crate::socket::ScmRights;
use crate::socket::byte_stream::ByteStream;
use crate::socket::endpoint::{self, RCV_SHUTDOWN, SEND_SHUTDOWN};
use crate::socket::memory::BufferMemory;
use crate::{SocketOptions, SocketType, SupplementaryGroups, Ucred, UnixName};

/// Bytes that Linux allocates for a message's description (`struct sk_buff`), and behind its bytes.
const DESCRIPTION: usize = 256;
const SHARED_INFO: usize = 320;
/// The most bytes of a message in one piece, and in pages besides.
const MAX_LINEAR: usize = 4 * PAGE_SIZE - SHARED_INFO;
const MAX_PAGED: usize = 17 * PAGE_SIZE;

/// The bytes that a message of so many counts for, as Linux' allocations for it do
/// (`skb->truesize`): so as many fit into a buffer.
fn charged_size(len: usize) -> usize {
    let beyond = len.saturating_sub(MAX_LINEAR).min(MAX_PAGED);
    let paged = beyond.next_multiple_of(PAGE_SIZE).min(len);
    let linear = (len - paged).next_multiple_of(64) + SHARED_INFO;
    linear.next_power_of_two() + paged + DESCRIPTION
}

/// A message of a datagram or seqpacket socket.
pub(super) struct UnixMessage {
    pub(super) data: Vec<u8>,
    /// The sender, if it may be answered.
    pub(super) from: Option<Arc<UnixEndpoint>>,
    pub(super) credentials: Option<Ucred>,
    pub(super) rights: Option<ScmRights>,
    /// The time of sending, if the receiver wants to know.
    pub(super) timestamp_ns: u64,
}

impl UnixMessage {
    pub(super) fn charged_size(&self) -> usize {
        charged_size(self.data.len())
    }
}

/// The bytes and messages that were sent to an endpoint and not received yet.
#[derive(Default)]
pub(super) struct UnixQueue {
    /// Of streams; its charge, and whether it is closed, are those of the other kinds, too.
    pub(super) stream: ByteStream,
    /// The other kinds' messages.
    pub(super) packets: VecDeque<UnixMessage>,
    /// Senders of datagrams that found the queue full, by their addresses.
    pub(super) blocked_senders: BTreeMap<usize, Weak<UnixEndpoint>>,
}

impl UnixQueue {
    fn is_empty(&self) -> bool {
        self.stream.bytes.is_empty() && self.packets.is_empty()
    }
}

impl AsMut<ByteStream> for UnixQueue {
    fn as_mut(&mut self) -> &mut ByteStream {
        &mut self.stream
    }
}

impl Deref for UnixQueue {
    type Target = ByteStream;

    fn deref(&self) -> &ByteStream {
        &self.stream
    }
}

impl DerefMut for UnixQueue {
    fn deref_mut(&mut self) -> &mut ByteStream {
        &mut self.stream
    }
}

/// The receiving side of one socket.
pub(super) struct UnixEndpoint {
    _counted: census::UnixPort,
    pub(super) stack: Arc<UnixStack>,
    socket_type: SocketType,
    endpoint: endpoint::Endpoint<UnixQueue>,
    name: Mutex<UnixName>,
    credentials: Mutex<(Ucred, Option<SupplementaryGroups>)>,
    /// The bytes this socket's datagrams take up in others' queues.
    send_charged_bytes: AtomicUsize,
    /// The memory for them.
    send_memory: Mutex<BufferMemory>,
    /// The endpoint that datagrams without an address go to.
    datagram_peer: Mutex<Option<Arc<UnixEndpoint>>>,
}

impl Drop for UnixEndpoint {
    fn drop(&mut self) {
        // What is in a queue holds the sender's endpoint.
        let leaked = self.send_charged_bytes() as u64;
        self.stack
            .leaked_charge
            .fetch_add(leaked, Ordering::Relaxed);
    }
}

impl Deref for UnixEndpoint {
    type Target = endpoint::Endpoint<UnixQueue>;

    fn deref(&self) -> &Self::Target {
        &self.endpoint
    }
}

impl UnixEndpoint {
    pub(super) fn new(
        stack: Arc<UnixStack>,
        socket_type: SocketType,
        options: Arc<SocketOptions>,
    ) -> Arc<Self> {
        let send_memory = match socket_type {
            SocketType::Datagram => BufferMemory::of_owner(&options),
            _ => BufferMemory::default(),
        };
        Arc::new(Self {
            _counted: census::UnixPort::default(),
            stack,
            socket_type,
            send_memory: Mutex::new(send_memory),
            endpoint: endpoint::Endpoint::new(options),
            name: Mutex::new(UnixName::Unnamed),
            credentials: Mutex::new((Ucred::INVALID, None)),
            send_charged_bytes: AtomicUsize::new(0),
            datagram_peer: Mutex::new(None),
        })
    }

    pub(super) fn name(&self) -> UnixName {
        self.name.lock().clone()
    }

    pub(super) fn set_name(&self, name: UnixName) {
        *self.name.lock() = name;
    }

    /// The identity that the peer is told.
    pub(super) fn credentials(&self) -> (Ucred, Option<SupplementaryGroups>) {
        self.credentials.lock().clone()
    }

    pub(super) fn set_credentials(&self, who: (Ucred, Option<SupplementaryGroups>)) {
        *self.credentials.lock() = who;
    }

    pub(super) fn datagram_peer(&self) -> Option<Arc<Self>> {
        self.datagram_peer.lock().clone()
    }

    /// Sets whom datagrams go to.
    pub(super) fn set_datagram_peer(&self, target: Option<&Arc<Self>>) {
        let old = core::mem::replace(&mut *self.datagram_peer.lock(), target.cloned());
        drop(old);
        self.writable.notify();
    }

    /// Whether this socket talks to nobody in particular, or to `sender`.
    pub(super) fn may_receive_from(&self, sender: &Self) -> bool {
        self.datagram_peer
            .lock()
            .as_ref()
            .is_none_or(|target| core::ptr::eq(&**target, sender))
    }

    /// Whether this socket has named `sender` its peer.
    pub(super) fn is_connected_to(&self, sender: &Self) -> bool {
        self.datagram_peer
            .lock()
            .as_ref()
            .is_some_and(|target| core::ptr::eq(&**target, sender))
    }

    /// The bytes this socket's datagrams take up elsewhere.
    pub(super) fn send_charged_bytes(&self) -> usize {
        self.send_charged_bytes.load(Ordering::Relaxed)
    }

    /// A datagram of this socket gets under way. `false`, and nothing is changed: the owner's
    /// sockets have too many pages for it.
    #[must_use]
    pub(super) fn charge_send(&self, bytes: usize) -> bool {
        let mut memory = self.send_memory.lock();
        let covered = memory.covers(self.send_charged_bytes() + bytes);
        if covered {
            self.send_charged_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        covered
    }

    /// Returns the charge of a datagram that was received, or thrown away.
    pub(super) fn uncharge_send(&self, bytes: usize) {
        {
            let mut memory = self.send_memory.lock();
            let before = self.send_charged_bytes.fetch_sub(bytes, Ordering::Relaxed);
            census::released(before, bytes);
            memory.trim(before - bytes);
        }
        self.notify_write_space();
    }

    /// Has this socket's owner pay for what it will send to `peer`, to which nothing was sent yet.
    pub(super) fn pay_for_queue_of(&self, peer: &Self) {
        peer.queue.lock().stream.memory = BufferMemory::of_owner(&self.options);
    }

    pub(super) fn charged_bytes(&self) -> usize {
        self.queue.lock().charged_bytes
    }

    /// The bytes that one call could receive: all of a stream, the first message of the others.
    pub(super) fn readable_bytes(&self) -> usize {
        let queue = self.queue.lock();
        if self.socket_type == SocketType::Stream {
            queue.bytes.len()
        } else {
            queue.packets.front().map_or(0, |p| p.data.len())
        }
    }

    /// Whether a call that receives would find something, and whether there is urgent data.
    pub(super) fn poll_state(&self) -> (bool, bool) {
        let queue = self.queue.lock();
        (!queue.is_empty(), queue.has_urgent())
    }

    pub(super) fn is_closed(&self) -> bool {
        self.queue.lock().closed
    }

    /// Takes everything that came with open files out of the queue: bytes stay.
    pub(super) fn take_rights(&self) -> Vec<ScmRights> {
        let mut queue = self.queue.lock();
        let UnixQueue {
            stream, packets, ..
        } = &mut *queue;
        let of_marks = stream
            .scm_segments
            .iter_mut()
            .filter_map(|mark| mark.rights.take());
        of_marks
            .chain(packets.iter_mut().filter_map(|packet| packet.rights.take()))
            .collect()
    }

    /// Runs `f` on all files under way in the queue.
    pub(super) fn for_each_right(&self, mut f: impl FnMut(&ScmRights)) {
        let queue = self.queue.lock();
        queue
            .scm_segments
            .iter()
            .filter_map(|mark| mark.rights.as_ref())
            .for_each(&mut f);
        queue
            .packets
            .iter()
            .filter_map(|packet| packet.rights.as_ref())
            .for_each(&mut f);
    }

    /// Ends the endpoint: what is in the queue is thrown away. Returns whether there was anything.
    pub(super) fn close(&self) -> bool {
        let (old, blocked) = {
            let mut queue = self.queue.lock();
            let blocked = core::mem::take(&mut queue.blocked_senders);
            let closed = UnixQueue {
                stream: ByteStream {
                    closed: true,
                    ..ByteStream::default()
                },
                ..UnixQueue::default()
            };
            (core::mem::replace(&mut *queue, closed), blocked)
        };
        self.shutdown(RCV_SHUTDOWN | SEND_SHUTDOWN);
        self.set_datagram_peer(None);
        for sender in blocked.values().filter_map(Weak::upgrade) {
            sender.writable.notify();
        }
        let unread = !old.is_empty();
        for packet in &old.packets {
            if let Some(from) = &packet.from {
                from.uncharge_send(packet.charged_size());
            }
        }
        drop(old);
        unread
    }
}
