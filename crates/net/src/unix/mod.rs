//! `AF_UNIX`: sockets within the instance (`unix(7)`).
//!
//! A *port* is where a socket receives; a connected socket holds its peer's port, never its peer, so two sockets keep
//! nothing of each other but queues. Open files under way in queues (`rights.rs`) may lead in a ring back to the queue they are in;
//! that module finds such rings and empties them.

mod endpoint;
mod name_table;
mod procfs;
mod scm_rights;
mod send_recv;

pub(crate) use endpoint::unreturned;
pub(crate) use name_table::names_in_use;
pub use procfs::proc_net_unix;
pub(crate) use procfs::{UnixDiagEntry, diag_entries};
pub use scm_rights::ScmRights;
pub(crate) use scm_rights::under_way;

use crate::endpoint::{RCV_SHUTDOWN, SEND_SHUTDOWN};
use crate::socket::{caller_groups, caller_ucred};
use crate::{
    Address, Caller, MsgFlags, OutgoingMessage, ReceivedMessage, Socket, SocketOps, SocketOptions, SocketType,
    SupplementaryGroups, Ucred, UnixName, WaitPolicy,
};
use abi::errno::Errno;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};
use endpoint::UnixEndpoint;
use fs::poll::{Events, PollTable};
use fs::{File, FileOps, Result, ops};
use linux_raw_sys::net;
use name_table::Binding;
use task::{Mutex, Once};

/// Connections nobody has accepted yet.
struct Backlog {
    waiting: VecDeque<Arc<UnixSocket>>,
    most: usize,
}

#[derive(Default)]
struct State {
    binding: Option<Binding>,
    backlog: Option<Backlog>,
}

/// A socket.
pub struct UnixSocket {
    id: u64,
    kind: SocketType,
    port: Arc<UnixEndpoint>,
    /// The peer of a stream or seqpacket socket.
    peer: Once<Arc<UnixEndpoint>>,
    state: Mutex<State>,
    ino: AtomicU64,
    this: Weak<UnixSocket>,
}

/// Every socket, for `/proc/net/unix`.
static ALL: Mutex<BTreeMap<u64, Weak<UnixSocket>>> = Mutex::new(BTreeMap::new());

/// Who a peer is told is here.
fn caller() -> (Ucred, Option<SupplementaryGroups>) {
    (caller_ucred(), Some(caller_groups()))
}

/// The number of a family's protocol: none, or the family again.
///
/// # Errors
/// `EPROTONOSUPPORT`.
pub fn check_protocol(protocol: i32) -> Result<()> {
    if protocol == 0 || protocol.cast_unsigned() == net::AF_UNIX { Ok(()) } else { Err(Errno::EPROTONOSUPPORT) }
}

/// A new socket.
///
/// # Errors
/// `EPROTONOSUPPORT`.
pub fn socket(kind: SocketType, protocol: i32) -> Result<Socket> {
    check_protocol(protocol)?;
    Ok(UnixSocket::new(kind, Arc::default()).into_socket())
}

/// Two sockets connected with each other.
///
/// # Errors
/// `EPROTONOSUPPORT`.
pub fn pair(kind: SocketType, protocol: i32) -> Result<(Socket, Socket)> {
    check_protocol(protocol)?;
    let (a, b) = (UnixSocket::new(kind, Arc::default()), UnixSocket::new(kind, Arc::default()));
    let who = caller();
    for (one, other) in [(&a, &b), (&b, &a)] {
        one.port.set_credentials(who.clone());
        if kind.is_connection_oriented() {
            one.peer.call_once(|| other.port.clone());
        } else {
            one.port.set_target(Some(&other.port));
        }
    }
    Ok((a.into_socket(), b.into_socket()))
}

impl UnixSocket {
    fn new(kind: SocketType, options: Arc<SocketOptions>) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let socket = Arc::new_cyclic(|this| Self {
            id,
            kind,
            port: UnixEndpoint::new(kind, options),
            peer: Once::new(),
            state: Mutex::default(),
            ino: AtomicU64::new(0),
            this: this.clone(),
        });
        ALL.lock().insert(id, Arc::downgrade(&socket));
        socket
    }

    fn into_socket(self: Arc<Self>) -> Socket {
        let options = self.port.options.clone();
        Socket::new(self, options)
    }

    /// The table of the files under way has to know which of them are sockets, and what waits in those.
    fn of_file(file: &File) -> Option<&Self> {
        let protocol: &dyn core::any::Any = file.ops_as::<Socket>()?.ops();
        protocol.downcast_ref()
    }

    /// Runs `f` on the socket's port and on those of the connections nobody has accepted yet.
    fn for_each_port(&self, mut f: impl FnMut(&UnixEndpoint)) {
        f(&self.port);
        if let Some(backlog) = &self.state.lock().backlog {
            backlog.waiting.iter().for_each(|waiting| f(&waiting.port));
        }
    }

    /// Puts a new socket, connected to `client`, into the backlog, unless that one `listens`. `None`: there is no room.
    fn admit(&self, client: &Self, listens: bool) -> Option<Result<()>> {
        let mut state = self.state.lock();
        let Some(backlog) = &mut state.backlog else { return Some(Err(Errno::ECONNREFUSED)) };
        if self.port.is_shut_down(RCV_SHUTDOWN) || self.port.is_closed() {
            return Some(Err(Errno::ECONNREFUSED));
        }
        if backlog.waiting.len() > backlog.most {
            return None;
        }
        if listens {
            return Some(Err(Errno::EINVAL));
        }
        if client.peer.get().is_some() {
            return Some(Err(Errno::EISCONN));
        }
        let mut connected = false;
        let server = Self::new(self.kind, Arc::default());
        client.port.set_credentials(caller());
        client.peer.call_once(|| {
            connected = true;
            server.port.clone()
        });
        if !connected {
            return Some(Err(Errno::EISCONN));
        }
        server.port.set_name(self.port.name());
        server.port.set_credentials(self.port.credentials());
        server.peer.call_once(|| client.port.clone());
        backlog.waiting.push_back(server);
        Some(Ok(()))
    }

    /// Ends the socket: nobody will use it again.
    fn release(&self) {
        ALL.lock().remove(&self.id);
        let (binding, backlog) = {
            let mut state = self.state.lock();
            (state.binding.take(), state.backlog.take())
        };
        drop(binding);
        let unread = self.port.close();
        if let Some(peer) = self.peer.get() {
            if unread {
                peer.set_error(Errno::ECONNRESET);
            }
            peer.shutdown(RCV_SHUTDOWN | SEND_SHUTDOWN);
        }
        for waiting in backlog.into_iter().flat_map(|backlog| backlog.waiting) {
            if let Some(peer) = waiting.peer.get() {
                peer.set_error(Errno::ECONNRESET);
            }
            waiting.release();
        }
        scm_rights::collect_after_close();
    }

    /// The peer's port.
    fn peer_port(&self) -> Option<Arc<UnixEndpoint>> {
        match self.kind {
            SocketType::Datagram => self.port.target(),
            _ => self.peer.get().cloned(),
        }
    }

    /// The socket at an address.
    fn find(&self, caller: &Caller<'_>, address: &Address) -> Result<Arc<UnixSocket>> {
        let Address::Unix(name) = address else { return Err(Errno::EINVAL) };
        name_table::find(caller, self.kind, name)
    }

    fn bind_to(&self, name: impl FnOnce() -> Result<(Binding, UnixName)>) -> Result<()> {
        let mut state = self.state.lock();
        if state.binding.is_some() {
            return Err(Errno::EINVAL);
        }
        let (binding, name) = name()?;
        state.binding = Some(binding);
        self.port.set_name(name);
        Ok(())
    }

    /// Gives the socket an abstract name of the kernel's choice, unless it has one.
    fn bind_anywhere(&self) -> Result<()> {
        match self.bind_to(|| name_table::bind_anywhere(self.kind, &self.this)) {
            Err(Errno::EINVAL) => Ok(()),
            result => result,
        }
    }
}

impl FileOps for UnixSocket {
    fn read(&self, file: &File, buf: &mut [u8]) -> Result<usize> {
        let wait = WaitPolicy { nonblocking: file.nonblocking(), timeout_ns: self.port.options.receive_timeout() };
        match self.receive_plain(buf, wait)? {
            Some(n) => Ok(n),
            None => self.take_in(buf, MsgFlags::empty(), wait).map(|incoming| incoming.copied),
        }
    }

    fn write(&self, file: &File, buf: &[u8]) -> Result<usize> {
        match self.send_plain(buf) {
            Some(n) => Ok(n),
            None => {
                let wait = WaitPolicy { nonblocking: file.nonblocking(), timeout_ns: self.port.options.send_timeout() };
                self.transmit(OutgoingMessage::plain(buf), MsgFlags::empty(), wait)
            }
        }
    }

    fn poll(&self, _: &File, table: Option<&mut PollTable>) -> Events {
        if let Some(table) = table {
            table.watch(&self.port.readable);
            table.watch(&self.port.writable);
        }
        if let Some(backlog) = &self.state.lock().backlog {
            return if backlog.waiting.is_empty() { Events::empty() } else { Events::READABLE };
        }
        self.poll_transfers()
    }

    fn closed(&self, _: &File) {
        self.release();
    }
}

impl SocketOps for UnixSocket {
    fn family(&self) -> u32 {
        net::AF_UNIX
    }

    fn socket_type(&self) -> SocketType {
        self.kind
    }

    fn is_listening(&self) -> bool {
        self.state.lock().backlog.is_some()
    }

    fn bind(&self, caller: &Caller<'_>, address: &Address) -> Result<()> {
        let Address::Unix(name) = address else { return Err(Errno::EINVAL) };
        let bind = || name_table::bind(caller, self.kind, name, &self.this);
        match name {
            UnixName::Unnamed => self.bind_anywhere(),
            UnixName::Abstract(_) => self.bind_to(|| Ok((bind()?, name.clone()))),
            UnixName::Path(path) => {
                // As on Linux the file is made before it is asked whether the socket has a name, and then taken away again.
                let binding = bind()?;
                let result = self.bind_to(|| Ok((binding, name.clone())));
                result.or_else(|error| ops::remove(&caller.walk, path, false).and(Err(error)))
            }
        }
    }

    fn connect(&self, caller: &Caller<'_>, address: &Address, wait: WaitPolicy) -> Result<()> {
        if self.kind == SocketType::Datagram {
            if *address == Address::Unspec {
                self.port.set_target(None);
                return Ok(());
            }
            let target = self.find(caller, address)?;
            if !target.port.accepts_from(&self.port) {
                return Err(Errno::EPERM);
            }
            if self.port.options.pass_credentials() {
                self.bind_anywhere()?;
            }
            self.port.set_target(Some(&target.port));
            return Ok(());
        }
        if !matches!(address, Address::Unix(name) if *name != UnixName::Unnamed) {
            return Err(Errno::EINVAL);
        }
        if self.port.options.pass_credentials() {
            self.bind_anywhere()?;
        }
        let listener = self.find(caller, address)?;
        let listens = self.is_listening();
        wait.wait_on(&listener.port.writable, || listener.admit(self, listens))?;
        listener.port.readable.notify();
        self.port.writable.notify();
        Ok(())
    }

    fn listen(&self, backlog: usize) -> Result<()> {
        if self.kind == SocketType::Datagram {
            return Err(Errno::EOPNOTSUPP);
        }
        {
            let mut state = self.state.lock();
            if state.binding.is_none() || self.peer.get().is_some() {
                return Err(Errno::EINVAL);
            }
            let most = backlog.min(crate::sysctl::SOMAXCONN.as_usize());
            match &mut state.backlog {
                Some(backlog) => backlog.most = most,
                none => *none = Some(Backlog { waiting: VecDeque::new(), most }),
            }
            self.port.set_credentials(caller());
        }
        self.port.writable.notify();
        Ok(())
    }

    fn accept(&self, wait: WaitPolicy) -> Result<Socket> {
        if self.kind == SocketType::Datagram {
            return Err(Errno::EOPNOTSUPP);
        }
        let attempt = || {
            let mut state = self.state.lock();
            let Some(backlog) = &mut state.backlog else { return Some(Err(Errno::EINVAL)) };
            match backlog.waiting.pop_front() {
                Some(waiting) => Some(Ok(waiting)),
                None => self.port.is_shut_down(RCV_SHUTDOWN).then_some(Err(Errno::EINVAL)),
            }
        };
        let accepted = wait.wait_on(&self.port.readable, attempt)?;
        self.port.writable.notify();
        Ok(accepted.into_socket())
    }

    fn local_address(&self) -> Address {
        Address::Unix(self.port.name())
    }

    fn peer_address(&self) -> Result<Address> {
        self.peer_port().map(|peer| Address::Unix(peer.name())).ok_or(Errno::ENOTCONN)
    }

    fn shutdown(&self, receiving: bool, sending: bool) -> Result<()> {
        let bits = |receiving: bool, sending: bool| (u8::from(receiving) * RCV_SHUTDOWN) | (u8::from(sending) * SEND_SHUTDOWN);
        self.port.shutdown(bits(receiving, sending));
        if let Some(peer) = self.peer.get() {
            peer.shutdown(bits(sending, receiving));
        }
        Ok(())
    }

    fn check_message(&self, to: Option<&Address>, length: usize, flags: MsgFlags) -> Result<()> {
        self.check_packet(to, length, flags)
    }

    fn wait_for_send_space(&self, wait: WaitPolicy) -> Result<()> {
        let Some(peer) = self.peer.get() else { return Ok(()) };
        self.check_open(peer)?;
        self.pair(peer).wait_for_send_space(wait)
    }

    fn send(&self, message: OutgoingMessage<'_>, flags: MsgFlags, wait: WaitPolicy) -> Result<usize> {
        self.transmit(message, flags, wait)
    }

    fn receive(&self, buf: &mut [u8], flags: MsgFlags, wait: WaitPolicy) -> Result<ReceivedMessage> {
        self.take_in(buf, flags, wait)
    }

    fn receive_to_vec(&self, limit: usize, flags: MsgFlags, wait: WaitPolicy) -> Result<(Vec<u8>, ReceivedMessage)> {
        self.take_message(limit, flags, wait)
    }

    fn peer_credentials(&self) -> Ucred {
        self.peer_port().map_or(Ucred::INVALID, |peer| peer.credentials().0)
    }

    fn peer_groups(&self) -> Option<SupplementaryGroups> {
        self.peer_port()?.credentials().1
    }

    fn take_error(&self) -> Option<Errno> {
        self.port.take_error()
    }

    fn set_error(&self, error: Errno) {
        self.port.set_error(error);
    }

    fn queued_bytes(&self, incoming: bool) -> usize {
        match (incoming, self.peer.get()) {
            (true, _) => self.port.readable_bytes(),
            (false, Some(peer)) => peer.charged(),
            (false, None) => self.port.sent(),
        }
    }

    fn supports_peek_offset(&self) -> bool {
        true
    }

    fn check_level(&self, _level: u32, _sets: bool) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }

    fn at_mark(&self) -> Result<bool> {
        if self.kind == SocketType::Stream { Ok(self.port.queue.lock().at_mark()) } else { Err(Errno::EOPNOTSUPP) }
    }

    fn attach_file(&self, file: &Arc<File>) {
        self.ino.store(file.path().metadata().ino, Ordering::Relaxed);
        self.port.attach_file(file);
    }
}
