//! `AF_NETLINK`: of its protocols the one that tells of interfaces, addresses and routes
//! (`rtnetlink(7)`), which is what C libraries and language runtimes ask when they list interfaces,
//! and change them, and the one that lists sockets. Groups of the first hear of changes.
//! `NETLINK_KOBJECT_UEVENT` can be listened to, and is silent.

mod change;
mod diag;
mod generic;
mod link;
mod message;
mod monitor;
mod route;

use alloc::collections::VecDeque;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};

use abi::errno::Errno;
use fs::poll::{Events, PollTable};
use fs::{File, FileOps, Result};
pub use generic::set_taskstats_provider;
use linux_raw_sys::net;
use message::{NLM_F_ACK, NLM_F_REQUEST, NLMSG_HDRLEN, NlmsgHeader, Reply};
use task::Mutex;

use crate::inet::{ChangeListener, InetStack};
use crate::socket::caller_ucred;
use crate::socket::endpoint::{Endpoint, RCV_SHUTDOWN, SEND_SHUTDOWN};
use crate::unix::UnixStack;
use crate::{
    Address, Caller, KernelMailbox, MsgFlags, OutgoingMessage, ReceivedMessage, Socket, SocketOps,
    SocketOptions, SocketType, WaitPolicy,
};

/// The protocol of routes (`NETLINK_ROUTE`).
const NETLINK_ROUTE: i32 = 0;
/// The protocol of lists of sockets (`NETLINK_SOCK_DIAG`), and that of devices that come and go.
const NETLINK_SOCK_DIAG: i32 = 4;
const NETLINK_KOBJECT_UEVENT: i32 = 15;
/// The protocol of families found by name (`NETLINK_GENERIC`).
const NETLINK_GENERIC: i32 = 16;
/// Options: to be in a group, or no longer.
const NETLINK_ADD_MEMBERSHIP: u32 = 1;
const NETLINK_DROP_MEMBERSHIP: u32 = 2;
/// The level of the options of netlink sockets.
const SOL_NETLINK: u32 = 270;

/// Answers one request; what is returned are datagrams.
fn handle_request(
    stack: &NetlinkStack,
    protocol: i32,
    request: NlmsgHeader,
    header: &[u8],
    body: &[u8],
    port_id: u32,
) -> Vec<Vec<u8>> {
    let mut reply = Reply::new(request, port_id);
    let listed = match protocol {
        NETLINK_ROUTE => route::handle_message(&stack.inet, &mut reply, body),
        NETLINK_SOCK_DIAG => diag::handle_message(&stack.inet, &stack.unix, &mut reply, body),
        NETLINK_GENERIC => generic::handle_message(&mut reply, body),
        _ => Ok(false),
    };
    if listed == Ok(true) {
        reply.push_done();
    }
    let listed = if reply.lacks_memory {
        reply = Reply::new(request, port_id);
        Err(Errno::ENOMEM)
    } else {
        listed
    };
    match listed {
        Ok(true) => {}
        Ok(false) if request.flags & NLM_F_ACK == 0 => {}
        Ok(false) => reply.push_ack(0, header),
        Err(error) => reply.push_ack(error.raw(), header),
    }
    reply.datagrams
}

/// Bytes that a reply counts for in its receiver's buffer: also those of its description.
fn cost(reply: &[u8]) -> usize {
    const DESCRIPTION: usize = 576;
    reply.len() + DESCRIPTION
}

#[derive(Default)]
struct ReplyQueue {
    replies: VecDeque<Vec<u8>>,
    /// Sum of their [`cost`].
    bytes: usize,
}

impl ReplyQueue {
    /// Adds messages unless there are `limit` bytes already, or memory is short. Messages of one
    /// answer are added together, so that a list has its end.
    fn push(
        &mut self,
        messages: impl ExactSizeIterator<Item = Vec<u8>>,
        limit: usize,
    ) -> Result<()> {
        if self.bytes >= limit || self.replies.try_reserve(messages.len()).is_err() {
            return Err(Errno::ENOBUFS);
        }
        for message in messages {
            self.bytes += cost(&message);
            self.replies.push_back(message);
        }
        Ok(())
    }

    fn pop(&mut self) -> Option<Vec<u8>> {
        let message = self.replies.pop_front()?;
        self.bytes -= cost(&message);
        Some(message)
    }
}

/// An `AF_NETLINK` socket.
struct NetlinkSocket {
    _counted: census::Netlink,
    stack: Arc<NetlinkStack>,
    protocol: i32,
    endpoint: Endpoint<ReplyQueue>,
    /// The number it is addressed by; 0: none yet.
    port_id: AtomicU32,
    /// The groups that it is in: bit n is that of group n + 1.
    groups: AtomicU32,
    this: Weak<Self>,
}

/// The state of the `AF_NETLINK` sockets of a network stack, and the stacks that they tell of.
pub(crate) struct NetlinkStack {
    inet: Arc<InetStack>,
    unix: Arc<UnixStack>,
    /// The number that the next socket of no process is addressed by.
    next_port_id: AtomicU32,
    /// Sockets that are or were in a group.
    members: Mutex<Vec<Weak<NetlinkSocket>>>,
}

impl NetlinkStack {
    pub(crate) fn new(inet: Arc<InetStack>, unix: Arc<UnixStack>) -> Arc<Self> {
        let stack = Arc::new(Self {
            inet,
            unix,
            next_port_id: AtomicU32::new(u32::MAX),
            members: Mutex::default(),
        });
        if let Some(host) = stack.inet.host() {
            let listener: Weak<dyn ChangeListener> = Arc::<Self>::downgrade(&stack);
            host.set_listener(listener);
        }
        stack
    }

    /// A new socket.
    ///
    /// # Errors
    /// `EPROTONOSUPPORT`, `ESOCKTNOSUPPORT`.
    pub(crate) fn socket(self: &Arc<Self>, kind: SocketType, protocol: i32) -> Result<Socket> {
        if kind != SocketType::Datagram {
            return Err(Errno::ESOCKTNOSUPPORT);
        }
        if !matches!(
            protocol,
            NETLINK_ROUTE | NETLINK_SOCK_DIAG | NETLINK_KOBJECT_UEVENT | NETLINK_GENERIC
        ) {
            return Err(Errno::EPROTONOSUPPORT);
        }
        let options = Arc::new(SocketOptions::new(self.inet.core.clone()));
        let socket = Arc::new_cyclic(|this| NetlinkSocket {
            _counted: census::Netlink::default(),
            stack: self.clone(),
            protocol,
            endpoint: Endpoint::new(options.clone()),
            port_id: AtomicU32::new(0),
            groups: AtomicU32::new(0),
            this: this.clone(),
        });
        Ok(Socket::new(socket, options))
    }
}

impl NetlinkSocket {
    /// The socket's number, given now if it has none: the process' if `asked` is 0. As nothing is
    /// sent but answers, two may be the same.
    fn autobind(&self, asked: u32) -> u32 {
        let id = match (asked, caller_ucred().pid) {
            (0, pid) if pid > 0 => pid.cast_unsigned(),
            (0, _) => self.stack.next_port_id.fetch_sub(1, Ordering::Relaxed),
            (asked, _) => asked,
        };
        self.port_id
            .compare_exchange(0, id, Ordering::Relaxed, Ordering::Relaxed)
            .map_or_else(|known| known, |_| id)
    }

    fn dequeue_reply(&self, flags: MsgFlags, wait: WaitPolicy) -> Result<Vec<u8>> {
        let attempt = || {
            if let Some(error) = self.endpoint.take_error() {
                return Some(Err(error));
            }
            let mut queue = self.endpoint.queue.lock();
            let found = if flags.contains(MsgFlags::PEEK) {
                queue.replies.front().cloned()
            } else {
                queue.pop()
            };
            found.map(Ok)
        };
        let found = wait.wait_on(&self.endpoint.readable, attempt)?;
        self.endpoint.notify_write_space();
        Ok(found)
    }

    /// Adds messages of the kernel's. All of them are lost if the queue is full already, and the
    /// socket has an error then (Linux: `netlink_overrun`).
    fn enqueue(&self, messages: impl ExactSizeIterator<Item = Vec<u8>>) {
        let limit = self.endpoint.options.receive_buffer();
        let added = self.endpoint.queue.lock().push(messages, limit);
        if let Err(error) = added {
            self.endpoint.set_error(error);
        }
        self.endpoint.readable.notify_events(Events::READABLE);
    }
}

impl FileOps for NetlinkSocket {
    fn read(&self, file: &File, buf: &mut [u8]) -> Result<usize> {
        let wait = self.endpoint.options.receive_wait(file.is_nonblocking());
        self.receive(buf, MsgFlags::empty(), wait)
            .map(|got| got.copied)
    }

    fn write(&self, _: &File, buf: &[u8]) -> Result<usize> {
        self.send(
            OutgoingMessage::plain(buf),
            MsgFlags::empty(),
            WaitPolicy::NONBLOCKING,
        )
    }

    fn poll(&self, _: &File, table: Option<&mut PollTable>) -> Events {
        if let Some(table) = table {
            table.poll_wait(&self.endpoint.readable);
        }
        let mut events = Events::WRITABLE;
        events.set(
            Events::READABLE,
            !self.endpoint.queue.lock().replies.is_empty(),
        );
        events.set(Events::ERR, self.endpoint.has_error());
        events
    }

    fn release(&self, _: &File) {
        let mut members = self.stack.members.lock();
        members.retain(|known| !known.ptr_eq(&self.this));
        drop(members);
        self.endpoint.shutdown(RCV_SHUTDOWN | SEND_SHUTDOWN);
    }
}

impl KernelMailbox for NetlinkSocket {
    fn wait_for_room(&self) -> Result<()> {
        let limit = self.endpoint.options.receive_buffer();
        let has_room = || (self.endpoint.queue.lock().bytes < limit).then_some(());
        self.endpoint.writable.wait(has_room)
    }

    fn post(&self, message: &[u8]) {
        match fallible::copy_of(message) {
            Ok(message) => self.enqueue([message].into_iter()),
            Err(_) => self.endpoint.set_error(Errno::ENOBUFS),
        }
    }
}

impl SocketOps for NetlinkSocket {
    fn kernel_mailbox(self: Arc<Self>) -> Option<Arc<dyn KernelMailbox>> {
        Some(self)
    }

    fn family(&self) -> u32 {
        net::AF_NETLINK
    }

    fn socket_type(&self) -> SocketType {
        SocketType::Datagram
    }

    fn protocol_number(&self) -> i32 {
        self.protocol
    }

    fn is_listening(&self) -> bool {
        false
    }

    fn bind(&self, _: &Caller<'_>, address: &Address) -> Result<()> {
        let Address::Netlink(port_id, groups) = address else {
            return Err(Errno::EINVAL);
        };
        let id = self.autobind(*port_id);
        if *port_id != 0 && *port_id != id {
            return Err(Errno::EINVAL);
        }
        self.set_groups(u32::MAX, *groups)
    }

    fn connect(&self, _: &Caller<'_>, address: &Address, _: WaitPolicy) -> Result<()> {
        match address {
            Address::Netlink(0, _) | Address::Unspec => Ok(()),
            Address::Netlink(..) => Err(Errno::ECONNREFUSED),
            _ => Err(Errno::EINVAL),
        }
    }

    fn listen(&self, _: usize) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }

    fn accept(&self, _: WaitPolicy) -> Result<Socket> {
        Err(Errno::EOPNOTSUPP)
    }

    fn local_address(&self) -> Address {
        let groups = self.groups.load(Ordering::Relaxed);
        Address::Netlink(self.port_id.load(Ordering::Relaxed), groups)
    }

    fn peer_address(&self) -> Result<Address> {
        Ok(Address::Netlink(0, 0))
    }

    fn shutdown(&self, _: bool, _: bool) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }

    fn send(&self, message: OutgoingMessage<'_>, flags: MsgFlags, _: WaitPolicy) -> Result<usize> {
        if flags.contains(MsgFlags::OOB) {
            return Err(Errno::EOPNOTSUPP);
        }
        match message.to {
            None | Some((_, Address::Netlink(0, 0))) => {}
            Some((_, Address::Netlink(..))) => return Err(Errno::ECONNREFUSED),
            Some(_) => return Err(Errno::EINVAL),
        }
        let port_id = self.autobind(0);
        let mut rest = message.data;
        while let Some((header, _)) = rest.split_first_chunk::<NLMSG_HDRLEN>() {
            let [l0, l1, l2, l3, k0, k1, f0, f1, s0, s1, s2, s3, ..] = *header;
            let len = u32::from_ne_bytes([l0, l1, l2, l3]) as usize;
            let Some(body) = rest.get(NLMSG_HDRLEN..len) else {
                break;
            };
            let request = NlmsgHeader {
                kind: u16::from_ne_bytes([k0, k1]),
                flags: u16::from_ne_bytes([f0, f1]),
                sequence: u32::from_ne_bytes([s0, s1, s2, s3]),
            };
            if request.flags & NLM_F_REQUEST != 0 {
                let answers =
                    handle_request(&self.stack, self.protocol, request, header, body, port_id);
                self.enqueue(answers.into_iter());
            }
            rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
        }
        Ok(message.data.len())
    }

    fn receive_to_vec(
        &self,
        limit: usize,
        flags: MsgFlags,
        wait: WaitPolicy,
    ) -> Result<(Vec<u8>, ReceivedMessage)> {
        let mut data = self.dequeue_reply(flags, wait)?;
        let message_len = data.len();
        data.truncate(limit);
        Ok((
            data,
            ReceivedMessage {
                copied: message_len.min(limit),
                message_len,
                from: Some(Address::Netlink(0, 0)),
                ..ReceivedMessage::default()
            },
        ))
    }

    fn take_error(&self) -> Option<Errno> {
        self.endpoint.take_error()
    }

    fn set_error(&self, error: Errno) {
        self.endpoint.set_error(error);
    }

    fn receive_queue_bytes(&self) -> usize {
        self.endpoint
            .queue
            .lock()
            .replies
            .front()
            .map_or(0, Vec::len)
    }

    fn send_queue_bytes(&self) -> usize {
        0
    }

    fn attach_file(&self, _: &Arc<File>) {}

    fn set_option(&self, level: u32, option: u32, value: &[u8]) -> Result<()> {
        if level != SOL_NETLINK {
            return Err(Errno::ENOPROTOOPT);
        }
        if !matches!(option, NETLINK_ADD_MEMBERSHIP | NETLINK_DROP_MEMBERSHIP) {
            // More checks, more words in errors.
            return Ok(());
        }
        let group = value.first_chunk().map(|word| u32::from_ne_bytes(*word));
        let group = group.and_then(|group| group.checked_sub(1));
        // In groups of higher numbers nothing is told.
        match group.ok_or(Errno::EINVAL)? {
            bit @ 0..32 if option == NETLINK_ADD_MEMBERSHIP => self.set_groups(1 << bit, 1 << bit),
            bit @ 0..32 => self.set_groups(1 << bit, 0),
            _ => Ok(()),
        }
    }
}
