//! Where a socket receives: its queue, and what others need to know of it.

use super::rights::Rights;
use crate::{Kind, Options, Ucred, UnixName};
use abi::errno::Errno;
use alloc::collections::VecDeque;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicUsize, Ordering};
use fs::poll::{Events, Source};
use task::Mutex;

/// Nothing more will be received.
pub(super) const RECEIVING: u8 = 1;
/// Nothing more may be sent.
pub(super) const SENDING: u8 = 2;

/// What comes true for a sender when there is room again.
pub(super) const ROOM: Events = Events::WRITABLE.union(Events::WRBAND);

/// How many datagrams wait at most for a receiver that has not named their sender its peer (`net.unix.max_dgram_qlen`).
pub(super) const MAX_DATAGRAMS: usize = 10;
/// What a message costs its sender besides its bytes.
pub(super) const MESSAGE_COST: usize = 256;

/// A message of a datagram or seqpacket socket.
pub(super) struct Packet {
    pub(super) data: Vec<u8>,
    /// Who sent it, if it may be answered.
    pub(super) from: Option<Arc<Port>>,
    pub(super) credentials: Option<Ucred>,
    pub(super) rights: Option<Rights>,
}

impl Packet {
    pub(super) fn cost(&self) -> usize {
        self.data.len() + MESSAGE_COST
    }
}

/// A stretch of a stream that was sent with more than bytes.
pub(super) struct Mark {
    /// Where it begins and ends, in bytes since the connection was made.
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) credentials: Option<Ucred>,
    pub(super) rights: Option<Rights>,
}

/// What was sent to a port and not received yet.
#[derive(Default)]
pub(super) struct Queue {
    /// A stream's bytes, and how many have been received in all.
    pub(super) bytes: VecDeque<u8>,
    pub(super) taken: u64,
    pub(super) marks: VecDeque<Mark>,
    /// The other kinds' messages.
    pub(super) packets: VecDeque<Packet>,
    /// What counts against the sender's buffer, of connected sockets.
    pub(super) charge: usize,
    /// The socket is gone.
    pub(super) closed: bool,
    /// Senders of datagrams that found the queue full.
    pub(super) blocked: Vec<Weak<Port>>,
}

impl Queue {
    /// Notes what a stretch of a stream was sent with. Stretches of one sender that follow each other become one.
    pub(super) fn mark(&mut self, mark: Mark) {
        if mark.rights.is_none()
            && let Some(last) = self.marks.back_mut()
            && last.rights.is_none()
            && last.end == mark.start
            && last.credentials == mark.credentials
        {
            last.end = mark.end;
        } else {
            self.marks.push_back(mark);
        }
    }

    /// Copies the first of a stream's bytes.
    pub(super) fn copy_front(&self, buf: &mut [u8]) {
        let (front, back) = self.bytes.as_slices();
        let first = front.len().min(buf.len());
        let rest = buf.len() - first;
        buf[..first].copy_from_slice(&front[..first]);
        buf[first..].copy_from_slice(&back[..rest]);
    }

    /// Takes the first of a stream's bytes out.
    pub(super) fn take_front(&mut self, buf: &mut [u8]) {
        self.copy_front(buf);
        if buf.len() == self.bytes.len() {
            self.bytes.clear();
        } else {
            self.bytes.drain(..buf.len());
        }
        self.taken += buf.len() as u64;
        self.charge -= buf.len();
    }

    fn is_empty(&self) -> bool {
        self.bytes.is_empty() && self.packets.is_empty()
    }
}

/// One socket's receiving side.
pub(super) struct Port {
    kind: Kind,
    pub(super) options: Arc<Options>,
    pub(super) queue: Mutex<Queue>,
    /// There is more to receive or accept, or never will be.
    pub(super) readable: Source,
    /// There is more room to send into, or (a listener) for connections.
    pub(super) writable: Source,
    name: Mutex<UnixName>,
    credentials: Mutex<Ucred>,
    shut: AtomicU8,
    error: AtomicI32,
    /// Whether `error` is anything: spares the fast path an exchange.
    failed: AtomicBool,
    /// What this socket's datagrams take up in others' queues.
    sent: AtomicUsize,
    /// Whom datagrams go to that name nobody.
    target: Mutex<Option<Arc<Port>>>,
}

impl Port {
    pub(super) fn new(kind: Kind, options: Arc<Options>) -> Arc<Self> {
        Arc::new(Self {
            kind,
            options,
            queue: Mutex::default(),
            readable: Source::new(),
            writable: Source::new(),
            name: Mutex::new(UnixName::Unnamed),
            credentials: Mutex::new(Ucred::NOBODY),
            shut: AtomicU8::new(0),
            error: AtomicI32::new(0),
            failed: AtomicBool::new(false),
            sent: AtomicUsize::new(0),
            target: Mutex::new(None),
        })
    }

    pub(super) fn name(&self) -> UnixName {
        self.name.lock().clone()
    }

    pub(super) fn set_name(&self, name: UnixName) {
        *self.name.lock() = name;
    }

    /// Who the peer is told is here.
    pub(super) fn credentials(&self) -> Ucred {
        *self.credentials.lock()
    }

    pub(super) fn set_credentials(&self, who: Ucred) {
        *self.credentials.lock() = who;
    }

    pub(super) fn is_shut(&self, what: u8) -> bool {
        self.shut.load(Ordering::Acquire) & what == what
    }

    /// Ends receiving or sending, and tells whoever waits for either.
    pub(super) fn shut(&self, what: u8) {
        self.shut.fetch_or(what, Ordering::AcqRel);
        self.readable.notify();
        self.writable.notify();
    }

    pub(super) fn set_error(&self, error: Errno) {
        self.error.store(error.raw(), Ordering::Relaxed);
        self.failed.store(true, Ordering::Release);
    }

    pub(super) fn failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    pub(super) fn take_error(&self) -> Option<Errno> {
        if !self.failed() || !self.failed.swap(false, Ordering::AcqRel) {
            return None;
        }
        Some(Errno::from_raw(self.error.load(Ordering::Relaxed)))
    }

    pub(super) fn target(&self) -> Option<Arc<Self>> {
        self.target.lock().clone()
    }

    /// Sets whom datagrams go to.
    pub(super) fn set_target(&self, target: Option<&Arc<Self>>) {
        let old = core::mem::replace(&mut *self.target.lock(), target.cloned());
        drop(old);
        self.writable.notify();
    }

    /// Whether this socket talks to nobody in particular, or to `sender`.
    pub(super) fn accepts_from(&self, sender: &Self) -> bool {
        self.target.lock().as_ref().is_none_or(|target| core::ptr::eq(&**target, sender))
    }

    /// Whether this socket has named `sender` its peer.
    pub(super) fn talks_to(&self, sender: &Self) -> bool {
        self.target.lock().as_ref().is_some_and(|target| core::ptr::eq(&**target, sender))
    }

    /// What datagrams of this socket take up elsewhere.
    pub(super) fn sent(&self) -> usize {
        self.sent.load(Ordering::Relaxed)
    }

    /// A datagram of this socket is under way.
    pub(super) fn charge(&self, bytes: usize) {
        self.sent.fetch_add(bytes, Ordering::Relaxed);
    }

    /// One of this socket's datagrams was received, or thrown away.
    pub(super) fn credit(&self, bytes: usize) {
        self.sent.fetch_sub(bytes, Ordering::Relaxed);
        self.writable.notify_of(ROOM);
    }

    pub(super) fn charged(&self) -> usize {
        self.queue.lock().charge
    }

    /// What one call could receive: all of a stream, the first message of the others.
    pub(super) fn readable_bytes(&self) -> usize {
        let queue = self.queue.lock();
        if self.kind == Kind::Stream { queue.bytes.len() } else { queue.packets.front().map_or(0, |p| p.data.len()) }
    }

    /// Whether a call that receives would find something.
    pub(super) fn has_news(&self) -> bool {
        !self.queue.lock().is_empty()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.queue.lock().closed
    }

    /// Takes everything that came with open files out of the queue: bytes stay.
    pub(super) fn take_rights(&self) -> Vec<Rights> {
        let mut queue = self.queue.lock();
        let Queue { marks, packets, .. } = &mut *queue;
        let of_marks = marks.iter_mut().filter_map(|mark| mark.rights.take());
        of_marks.chain(packets.iter_mut().filter_map(|packet| packet.rights.take())).collect()
    }

    /// Runs `f` on all files under way in the queue.
    pub(super) fn for_each_right(&self, mut f: impl FnMut(&Rights)) {
        let queue = self.queue.lock();
        queue.marks.iter().filter_map(|mark| mark.rights.as_ref()).for_each(&mut f);
        queue.packets.iter().filter_map(|packet| packet.rights.as_ref()).for_each(&mut f);
    }

    /// Ends the port: what is in the queue is thrown away. Returns whether there was anything.
    pub(super) fn close(&self) -> bool {
        let (old, blocked) = {
            let mut queue = self.queue.lock();
            let blocked = core::mem::take(&mut queue.blocked);
            (core::mem::replace(&mut *queue, Queue { closed: true, ..Queue::default() }), blocked)
        };
        self.shut(RECEIVING | SENDING);
        self.set_target(None);
        for sender in blocked.iter().filter_map(Weak::upgrade) {
            sender.writable.notify();
        }
        let unread = !old.is_empty();
        for packet in &old.packets {
            if let Some(from) = &packet.from {
                from.credit(packet.cost());
            }
        }
        drop(old);
        unread
    }
}
