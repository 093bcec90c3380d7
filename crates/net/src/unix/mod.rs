//! `AF_UNIX`: sockets within the instance (`unix(7)`).
//!
//! An *endpoint* is where a socket receives; a connected socket holds its peer's endpoint, never
//! its peer, so two sockets keep nothing of each other but queues. Open files under way in queues
//! (`garbage.rs`) may lead in a ring back to the queue they are in; that module finds such rings
//! and empties them.

mod endpoint;
mod garbage;
mod name_table;
mod procfs;
mod send_recv;
mod stack;

use alloc::collections::VecDeque;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use abi::errno::Errno;
use endpoint::UnixEndpoint;
use fs::poll::{Events, PollTable};
use fs::{File, FileOps, Result, ops};
use linux_raw_sys::net;
use name_table::Binding;
pub(crate) use procfs::UnixDiagEntry;
pub use stack::UnixStack;
use task::{Mutex, Once};

use crate::socket::endpoint::{RCV_SHUTDOWN, SEND_SHUTDOWN};
use crate::socket::{caller_groups, caller_ucred};
use crate::{
    Address, Caller, MsgFlags, OptionAccess, OutgoingMessage, ReceivedMessage, Socket, SocketOps,
    SocketOptions, SocketType, SupplementaryGroups, Ucred, UnixName, WaitPolicy,
};

/// Connections nobody has accepted yet.
struct Backlog {
    accept_queue: VecDeque<Arc<UnixSocket>>,
    limit: usize,
}

#[derive(Default)]
struct State {
    binding: Option<Binding>,
    backlog: Option<Backlog>,
}

/// An `AF_UNIX` socket.
pub struct UnixSocket {
    id: u64,
    socket_type: SocketType,
    endpoint: Arc<UnixEndpoint>,
    /// The peer of a stream or seqpacket socket.
    peer: Once<Arc<UnixEndpoint>>,
    state: Mutex<State>,
    ino: AtomicU64,
    this: Weak<UnixSocket>,
}

/// The credentials a peer is told.
fn caller_peer_credentials() -> (Ucred, Option<SupplementaryGroups>) {
    (caller_ucred(), Some(caller_groups()))
}

/// The number of a family's protocol: none, or the family again.
///
/// # Errors
/// `EPROTONOSUPPORT`.
pub fn check_protocol(protocol: i32) -> Result<()> {
    if protocol == 0 || protocol.cast_unsigned() == net::AF_UNIX {
        Ok(())
    } else {
        Err(Errno::EPROTONOSUPPORT)
    }
}

impl UnixSocket {
    fn new(stack: &Arc<UnixStack>, socket_type: SocketType) -> Arc<Self> {
        let options = SocketOptions::new(stack.core.clone());
        Self::with_options(stack, socket_type, options)
    }

    fn with_options(
        stack: &Arc<UnixStack>,
        socket_type: SocketType,
        options: SocketOptions,
    ) -> Arc<Self> {
        let id = stack.next_id();
        let options = Arc::new(options);
        let socket = Arc::new_cyclic(|this| Self {
            id,
            socket_type,
            endpoint: UnixEndpoint::new(stack.clone(), socket_type, options),
            peer: Once::new(),
            state: Mutex::default(),
            ino: AtomicU64::new(0),
            this: this.clone(),
        });
        stack.sockets.insert(id, &socket);
        socket
    }

    fn stack(&self) -> &Arc<UnixStack> {
        &self.endpoint.stack
    }

    fn into_socket(self: Arc<Self>) -> Socket {
        let options = self.endpoint.options.clone();
        Socket::new(self, options)
    }

    /// The table of the files under way has to know which of them are sockets, and what waits in
    /// those.
    fn of_file(file: &File) -> Option<&Self> {
        let protocol: &dyn core::any::Any = file.ops_as::<Socket>()?.ops();
        protocol.downcast_ref()
    }

    /// Runs `f` on the socket's endpoint and on those of the connections nobody has accepted yet.
    fn for_each_endpoint(&self, mut f: impl FnMut(&UnixEndpoint)) {
        f(&self.endpoint);
        if let Some(backlog) = &self.state.lock().backlog {
            backlog
                .accept_queue
                .iter()
                .for_each(|waiting| f(&waiting.endpoint));
        }
    }

    /// Puts a new socket, connected to `client`, into the backlog, unless that one `listens`.
    /// `None`: there is no room.
    fn enqueue_connection(&self, client: &Self, listens: bool) -> Option<Result<()>> {
        let mut state = self.state.lock();
        let Some(backlog) = &mut state.backlog else {
            return Some(Err(Errno::ECONNREFUSED));
        };
        if self.endpoint.is_shut_down(RCV_SHUTDOWN) || self.endpoint.is_closed() {
            return Some(Err(Errno::ECONNREFUSED));
        }
        if backlog.accept_queue.len() > backlog.limit {
            return None;
        }
        if listens {
            return Some(Err(Errno::EINVAL));
        }
        if client.peer.get().is_some() {
            return Some(Err(Errno::EISCONN));
        }
        if let Err(error) = fs::charge::check_memory() {
            return Some(Err(error));
        }
        let mut connected = false;
        let owner = self.endpoint.options.owner();
        let options = SocketOptions::of_owner(self.stack().core.clone(), owner);
        let server = Self::with_options(self.stack(), self.socket_type, options);
        client.endpoint.pay_for_queue_of(&server.endpoint);
        server.endpoint.pay_for_queue_of(&client.endpoint);
        client.endpoint.set_credentials(caller_peer_credentials());
        client.peer.call_once(|| {
            connected = true;
            server.endpoint.clone()
        });
        if !connected {
            return Some(Err(Errno::EISCONN));
        }
        server.endpoint.set_name(self.endpoint.name());
        server.endpoint.set_credentials(self.endpoint.credentials());
        server.peer.call_once(|| client.endpoint.clone());
        backlog.accept_queue.push_back(server);
        Some(Ok(()))
    }

    /// Ends the socket: nobody will use it again.
    fn close(&self) {
        self.stack().sockets.remove(self.id);
        let (binding, backlog) = {
            let mut state = self.state.lock();
            (state.binding.take(), state.backlog.take())
        };
        drop(binding);
        let unread = self.endpoint.close();
        if let Some(peer) = self.peer.get() {
            if unread {
                peer.set_error(Errno::ECONNRESET);
            }
            peer.shutdown(RCV_SHUTDOWN | SEND_SHUTDOWN);
        }
        for waiting in backlog.into_iter().flat_map(|backlog| backlog.accept_queue) {
            if let Some(peer) = waiting.peer.get() {
                peer.set_error(Errno::ECONNRESET);
            }
            waiting.close();
        }
        self.stack().inflight.collect_after_close();
    }

    /// The peer's endpoint.
    fn peer_endpoint(&self) -> Option<Arc<UnixEndpoint>> {
        match self.socket_type {
            SocketType::Datagram => self.endpoint.datagram_peer(),
            _ => self.peer.get().cloned(),
        }
    }

    /// The socket at an address.
    fn find_destination(&self, caller: &Caller<'_>, address: &Address) -> Result<Arc<UnixSocket>> {
        let Address::Unix(name) = address else {
            return Err(Errno::EINVAL);
        };
        self.stack()
            .names
            .find_socket(caller, self.socket_type, name)
    }

    fn set_binding(&self, name: impl FnOnce() -> Result<(Binding, UnixName)>) -> Result<()> {
        let mut state = self.state.lock();
        if state.binding.is_some() {
            return Err(Errno::EINVAL);
        }
        let (binding, name) = name()?;
        state.binding = Some(binding);
        self.endpoint.set_name(name);
        Ok(())
    }

    /// Gives the socket an abstract name of the kernel's choice, unless it has one.
    fn autobind(&self) -> Result<()> {
        match self.set_binding(|| name_table::autobind(self.stack(), self.socket_type, &self.this))
        {
            Err(Errno::EINVAL) => Ok(()),
            result => result,
        }
    }
}

impl FileOps for UnixSocket {
    fn read(&self, file: &File, buf: &mut [u8]) -> Result<usize> {
        let wait = self.endpoint.options.receive_wait(file.is_nonblocking());
        match self.receive_fast(buf, wait)? {
            Some(n) => Ok(n),
            None => self
                .receive_message(buf, MsgFlags::empty(), wait)
                .map(|incoming| incoming.copied),
        }
    }

    fn write(&self, file: &File, buf: &[u8]) -> Result<usize> {
        match self.send_fast(buf) {
            Some(n) => Ok(n),
            None => {
                let wait = self.endpoint.options.send_wait(file.is_nonblocking());
                self.send_message(OutgoingMessage::plain(buf), MsgFlags::empty(), wait)
            }
        }
    }

    fn poll(&self, _: &File, table: Option<&mut PollTable>) -> Events {
        if let Some(table) = table {
            table.poll_wait(&self.endpoint.readable);
            table.poll_wait(&self.endpoint.writable);
        }
        if let Some(backlog) = &self.state.lock().backlog {
            return if backlog.accept_queue.is_empty() {
                Events::empty()
            } else {
                Events::READABLE
            };
        }
        self.poll_events()
    }

    fn release(&self, _: &File) {
        self.close();
    }
}

impl SocketOps for UnixSocket {
    fn family(&self) -> u32 {
        net::AF_UNIX
    }

    fn socket_type(&self) -> SocketType {
        self.socket_type
    }

    fn is_listening(&self) -> bool {
        self.state.lock().backlog.is_some()
    }

    fn bind(&self, caller: &Caller<'_>, address: &Address) -> Result<()> {
        let Address::Unix(name) = address else {
            return Err(Errno::EINVAL);
        };
        let bind = || name_table::bind(self.stack(), caller, self.socket_type, name, &self.this);
        match name {
            UnixName::Unnamed => self.autobind(),
            UnixName::Abstract(_) => self.set_binding(|| Ok((bind()?, name.clone()))),
            UnixName::Path(path) => {
                // As on Linux the file is made before it is asked whether the socket has a name,
                // and then taken away again.
                let binding = bind()?;
                let result = self.set_binding(|| Ok((binding, name.clone())));
                result.or_else(|error| {
                    ops::remove(&caller.walk, path, ops::Removal::Unlink).and(Err(error))
                })
            }
        }
    }

    fn connect(&self, caller: &Caller<'_>, address: &Address, wait: WaitPolicy) -> Result<()> {
        if self.socket_type == SocketType::Datagram {
            if *address == Address::Unspec {
                self.endpoint.set_datagram_peer(None);
                return Ok(());
            }
            let target = self.find_destination(caller, address)?;
            if !target.endpoint.may_receive_from(&self.endpoint) {
                return Err(Errno::EPERM);
            }
            if self.endpoint.options.pass_credentials() {
                self.autobind()?;
            }
            self.endpoint.set_datagram_peer(Some(&target.endpoint));
            return Ok(());
        }
        if !matches!(address, Address::Unix(name) if *name != UnixName::Unnamed) {
            return Err(Errno::EINVAL);
        }
        if self.endpoint.options.pass_credentials() {
            self.autobind()?;
        }
        let listener = self.find_destination(caller, address)?;
        let listens = self.is_listening();
        wait.wait_on(&listener.endpoint.writable, || {
            listener.enqueue_connection(self, listens)
        })?;
        listener.endpoint.readable.notify();
        self.endpoint.writable.notify();
        Ok(())
    }

    fn listen(&self, backlog: usize) -> Result<()> {
        if self.socket_type == SocketType::Datagram {
            return Err(Errno::EOPNOTSUPP);
        }
        {
            let mut state = self.state.lock();
            if state.binding.is_none() || self.peer.get().is_some() {
                return Err(Errno::EINVAL);
            }
            let limit = backlog.min(self.stack().core.sysctls.somaxconn.as_usize());
            match &mut state.backlog {
                Some(backlog) => backlog.limit = limit,
                none => {
                    *none = Some(Backlog {
                        accept_queue: VecDeque::new(),
                        limit,
                    });
                }
            }
            self.endpoint.set_credentials(caller_peer_credentials());
        }
        self.endpoint.writable.notify();
        Ok(())
    }

    fn accept(&self, wait: WaitPolicy) -> Result<Socket> {
        if self.socket_type == SocketType::Datagram {
            return Err(Errno::EOPNOTSUPP);
        }
        let attempt = || {
            let mut state = self.state.lock();
            let Some(backlog) = &mut state.backlog else {
                return Some(Err(Errno::EINVAL));
            };
            match backlog.accept_queue.pop_front() {
                Some(waiting) => Some(Ok(waiting)),
                None => self
                    .endpoint
                    .is_shut_down(RCV_SHUTDOWN)
                    .then_some(Err(Errno::EINVAL)),
            }
        };
        let accepted = wait.wait_on(&self.endpoint.readable, attempt)?;
        self.endpoint.writable.notify();
        Ok(accepted.into_socket())
    }

    fn local_address(&self) -> Address {
        Address::Unix(self.endpoint.name())
    }

    fn peer_address(&self) -> Result<Address> {
        self.peer_endpoint()
            .map(|peer| Address::Unix(peer.name()))
            .ok_or(Errno::ENOTCONN)
    }

    fn shutdown(&self, receiving: bool, sending: bool) -> Result<()> {
        let bits = |receiving: bool, sending: bool| {
            (u8::from(receiving) * RCV_SHUTDOWN) | (u8::from(sending) * SEND_SHUTDOWN)
        };
        self.endpoint.shutdown(bits(receiving, sending));
        if let Some(peer) = self.peer.get() {
            peer.shutdown(bits(sending, receiving));
        }
        Ok(())
    }

    fn check_message(&self, to: Option<&Address>, length: usize, flags: MsgFlags) -> Result<()> {
        self.check_datagram(to, length, flags)
    }

    fn wait_for_send_space(&self, wait: WaitPolicy) -> Result<()> {
        let Some(peer) = self.peer.get() else {
            return Ok(());
        };
        self.check_open(peer)?;
        self.stream(peer).wait_for_send_space(wait)
    }

    fn send(
        &self,
        message: OutgoingMessage<'_>,
        flags: MsgFlags,
        wait: WaitPolicy,
    ) -> Result<usize> {
        self.send_message(message, flags, wait)
    }

    fn receive(
        &self,
        buf: &mut [u8],
        flags: MsgFlags,
        wait: WaitPolicy,
    ) -> Result<ReceivedMessage> {
        self.receive_message(buf, flags, wait)
    }

    fn receive_to_vec(
        &self,
        limit: usize,
        flags: MsgFlags,
        wait: WaitPolicy,
    ) -> Result<(Vec<u8>, ReceivedMessage)> {
        self.receive_message_to_vec(limit, flags, wait)
    }

    fn peer_credentials(&self) -> Ucred {
        self.peer_endpoint()
            .map_or(Ucred::INVALID, |peer| peer.credentials().0)
    }

    fn peer_groups(&self) -> Option<SupplementaryGroups> {
        self.peer_endpoint()?.credentials().1
    }

    fn take_error(&self) -> Option<Errno> {
        self.endpoint.take_error()
    }

    fn set_error(&self, error: Errno) {
        self.endpoint.set_error(error);
    }

    fn receive_queue_bytes(&self) -> usize {
        self.endpoint.readable_bytes()
    }

    fn send_queue_bytes(&self) -> usize {
        match self.peer.get() {
            Some(peer) => peer.charged_bytes(),
            None => self.endpoint.send_charged_bytes(),
        }
    }

    fn supports_peek_offset(&self) -> bool {
        true
    }

    fn check_option(&self, _level: u32, _option: u32, _access: OptionAccess) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }

    fn at_mark(&self) -> Result<bool> {
        if self.socket_type == SocketType::Stream {
            Ok(self.endpoint.queue.lock().at_mark())
        } else {
            Err(Errno::EOPNOTSUPP)
        }
    }

    fn attach_file(&self, file: &Arc<File>) {
        self.ino
            .store(file.path().metadata().ino, Ordering::Relaxed);
        self.endpoint.attach_file(file);
    }
}
