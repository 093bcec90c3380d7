//! TCP sockets: connections are pairs of ports ([`crate::byte_stream`]).

mod connect;
mod defer_accept;
mod file;
mod listen;
mod tap;
mod user_timeout;

pub use connect::{ConnectRequest, Initiator};
pub use listen::arrive;

use super::bind_table::{BindAddress, BindTable, Bindable, PortBinding, ReusePolicy};
use super::option_table::TCP_INQ;
use super::options::TCP;
use super::{Family, InetSocket};
use crate::byte_stream::{ByteStream, ConnectedStream};
use crate::endpoint::{self, FIN_RECEIVED, RCV_SHUTDOWN, SEND_SHUTDOWN};
use crate::packet;
use crate::{MsgFlags, OutgoingMessage, ReceivedMessage, Socket, SocketOptions, WaitPolicy, sysctl};
use abi::errno::Errno;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::{Arc, Weak};
use core::net::SocketAddr;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use fs::poll::Events;
use fs::{File, Result};
use linux_raw_sys::net;
use listen::Backlog;
use task::{Mutex, Once};

/// How many bytes a connection may have under way: Linux lets them become more with the traffic, beginning with less.
const SENDS: usize = 87_040;

/// One side of a connection: where it receives.
pub(super) type TcpEndpoint = endpoint::Endpoint<ByteStream>;

pub(super) static PORTS: BindTable<TcpSocket> = BindTable::new();

/// Own and other address of every connection that was begun here: no two are the same.
static BEGUN: Mutex<BTreeSet<(SocketAddr, SocketAddr)>> = Mutex::new(BTreeSet::new());

/// Every socket, for listings.
pub(super) static ALL: Mutex<BTreeMap<u64, Weak<TcpSocket>>> = Mutex::new(BTreeMap::new());

pub(super) fn ports_in_use() -> usize {
    PORTS.len()
}

/// How many connections are being made.
pub(crate) fn connections_begun() -> u64 {
    BEGUN.lock().len() as u64
}

#[derive(Default)]
struct State {
    place: Option<PortBinding<TcpSocket>>,
    /// The port was asked for, not chosen when connecting.
    bound: bool,
    backlog: Option<Backlog>,
    /// Whom a connection is being made to.
    connecting: Option<SocketAddr>,
    /// A call that began a connection returned before there was one, and nobody has been told of it since.
    unreported: bool,
    begun: Option<(SocketAddr, SocketAddr)>,
}

/// What a socket has once it is connected.
struct Connection {
    peer: Arc<TcpEndpoint>,
    local: SocketAddr,
    remote: SocketAddr,
}

/// A socket.
pub struct TcpSocket {
    _counted: census::Tcp,
    pub(super) common: InetSocket,
    pub(super) port: Arc<TcpEndpoint>,
    connection: Once<Connection>,
    state: Mutex<State>,
    /// As `state.backlog.is_some()`, for those who must not lock.
    listens: AtomicBool,
    /// How long what is sent may wait for the peer (`TCP_USER_TIMEOUT`), milliseconds; 0: for ever.
    patience: AtomicU32,
    /// Somebody is watching how long it waits.
    watched: AtomicBool,
    /// A listener's connections are not accepted before data has come, or so many seconds have passed (`TCP_DEFER_ACCEPT`); 0: at once.
    defers: AtomicU32,
    this: Weak<TcpSocket>,
}

impl Bindable for TcpSocket {
    fn reuse_policy(&self) -> ReusePolicy {
        let options = &self.port.options;
        ReusePolicy {
            reuse_address: options.is_enabled(net::SO_REUSEADDR),
            is_listening: self.listens(),
            reuse_port: options.is_enabled(net::SO_REUSEPORT).then_some(self.common.uid),
        }
    }
}

impl TcpSocket {
    fn with(common: InetSocket, port: Arc<TcpEndpoint>) -> Arc<Self> {
        let id = common.id;
        let socket = Arc::new_cyclic(|this| Self {
            _counted: census::Tcp::default(),
            common,
            port,
            connection: Once::new(),
            state: Mutex::default(),
            listens: AtomicBool::new(false),
            patience: AtomicU32::new(0),
            watched: AtomicBool::new(false),
            defers: AtomicU32::new(0),
            this: this.clone(),
        });
        ALL.lock().insert(id, Arc::downgrade(&socket));
        socket
    }

    pub(super) fn new(family: Family) -> Arc<Self> {
        let options = Arc::new(SocketOptions::with_buffers(sysctl::TCP_WMEM.default_size(), sysctl::TCP_RMEM.default_size()));
        Self::with(InetSocket::new(family), Arc::new(TcpEndpoint::new(options)))
    }

    pub(super) fn into_socket(self: Arc<Self>) -> Socket {
        let options = self.port.options.clone();
        Socket::new(self, options)
    }

    pub(super) fn listens(&self) -> bool {
        self.listens.load(Ordering::Acquire)
    }

    /// The number of connections that wait to be accepted and how many may, of a listener.
    pub(super) fn backlog(&self) -> Option<(usize, usize)> {
        self.state.lock().backlog.as_ref().map(|backlog| (backlog.waiting.len(), backlog.most))
    }

    /// There is a connection from now on, unless there is one already.
    fn connect_with(&self, connection: impl FnOnce() -> Connection) {
        self.port.options.grow_send_buffer(SENDS);
        self.connection.call_once(connection);
    }

    /// Its own address and the peer's.
    pub(super) fn addresses(&self) -> (SocketAddr, Option<SocketAddr>) {
        if let Some(connection) = self.connection.get() {
            return (connection.local, Some(connection.remote));
        }
        let state = self.state.lock();
        (state.place.as_ref().map_or(self.common.family.nowhere(), |place| place.address), state.connecting)
    }

    /// The state of the connection, as a number of `tcp_states.h`.
    pub(super) fn tcp_state(&self) -> u8 {
        const ESTABLISHED: u8 = 1;
        const SYN_SENT: u8 = 2;
        const FIN_WAIT2: u8 = 5;
        const CLOSE: u8 = 7;
        const CLOSE_WAIT: u8 = 8;
        const LISTEN: u8 = 10;
        if self.listens() {
            return LISTEN;
        }
        if self.connection.get().is_none() {
            return if self.state.lock().connecting.is_some() { SYN_SENT } else { CLOSE };
        }
        match (self.port.is_shut_down(SEND_SHUTDOWN), self.port.is_shut_down(FIN_RECEIVED)) {
            (false, false) => ESTABLISHED,
            (true, false) => FIN_WAIT2,
            (false, true) => CLOSE_WAIT,
            (true, true) => CLOSE,
        }
    }

    fn place(&self, scope: BindAddress, port: u16) -> Result<PortBinding<Self>> {
        PORTS.bind(&self.this.upgrade().ok_or(Errno::EINVAL)?, scope, port)
    }

    /// The connection; if one is being made, it is waited for.
    ///
    /// # Errors
    /// As [`WaitPolicy::wait_on`]; `ENOTCONN`, or why there is none.
    fn connected(&self, wait: WaitPolicy) -> Result<&Connection> {
        if self.connection.get().is_none() {
            wait.wait_on(&self.port.writable, || self.state.lock().connecting.is_none().then_some(Ok(())))?;
        }
        self.connection.get().ok_or_else(|| self.port.take_error().unwrap_or(Errno::ENOTCONN))
    }

    /// Whether nothing will ever be received, since that was ended before there was a connection.
    fn is_deaf(&self, flags: MsgFlags) -> bool {
        self.connection.get().is_none()
            && self.port.is_shut_down(RCV_SHUTDOWN)
            && !self.listens()
            && !flags.contains(MsgFlags::OOB)
    }

    /// The connection of a call that receives. Where there is none there is no urgent byte, either.
    fn receiving(&self, flags: MsgFlags, wait: WaitPolicy) -> Result<&Connection> {
        let urgent = flags.contains(MsgFlags::OOB) && !self.listens();
        let wait = WaitPolicy { nonblocking: wait.nonblocking || urgent, ..wait };
        self.connected(wait).map_err(|error| if urgent { Errno::EINVAL } else { error })
    }

    fn pair<'a>(&'a self, connection: &'a Connection) -> ConnectedStream<'a, ByteStream> {
        // The bytes wait in two buffers, the sender's and the receiver's.
        let limit = self.port.options.send_buffer() + connection.peer.options.receive_buffer();
        ConnectedStream { own: &self.port, peer: &connection.peer, send_limit: limit }
    }

    fn pause(&self, file: &File, sends: bool) -> WaitPolicy {
        let options = &self.port.options;
        let timeout = if sends { options.send_timeout() } else { options.receive_timeout() };
        WaitPolicy { nonblocking: file.nonblocking(), timeout_ns: timeout }
    }

    /// How many bytes it has sent.
    fn sent(&self, connection: &Connection) -> u64 {
        let queue = connection.peer.queue.lock();
        queue.read_offset + queue.bytes.len() as u64
    }

    /// Sends, and does what is to be done of what was sent.
    fn put_out(&self, connection: &Connection, message: OutgoingMessage<'_>, flags: MsgFlags, wait: WaitPolicy) -> Result<usize> {
        let options = &self.port.options;
        let stages = options.tx_timestamp_flags(&message.control);
        let mut last = None;
        let mut told = |start: u64, data: &[u8]| {
            if packet::listens() {
                self.hear_bytes(connection, start, data);
            }
            if stages != 0 {
                last = Some((start, data.to_vec()));
            }
        };
        let sent = self.pair(connection).send(OutgoingMessage { to: None, ..message }, None, flags, wait, &mut told);
        if let Some((start, data)) = last {
            let end = start + data.len() as u64 - 1;
            options.queue_tx_timestamps(stages, options.stream_timestamp_key(end), || {
                self.segment(connection, start, &data).frame()
            });
            self.port.readable.notify_of(Events::ERR);
        }
        sent
    }

    fn take_in(&self, buf: &mut [u8], flags: MsgFlags, wait: WaitPolicy) -> Result<ReceivedMessage> {
        if self.is_deaf(flags) {
            return Ok(ReceivedMessage::default());
        }
        let connection = self.receiving(flags, wait)?;
        let mut got = after_end(self.pair(connection).receive(buf, flags, false, wait), ReceivedMessage::default())?;
        self.tell_rest(&mut got);
        Ok(got)
    }

    /// Says how much there is still to be received, if that is asked for (`TCP_INQ`).
    fn tell_rest(&self, got: &mut ReceivedMessage) {
        if self.common.options.tells.load(Ordering::Relaxed) && self.common.options.is_on(TCP, TCP_INQ) {
            let rest = self.port.queue.lock().bytes.len() as u32;
            got.control.push((TCP, TCP_INQ, rest.to_ne_bytes().to_vec()));
        }
    }

    /// Ends the connection with a reset.
    fn abort(&self, connection: &Connection) {
        self.hear_end(connection, true);
        reset(&connection.peer);
        self.port.shutdown(RCV_SHUTDOWN | SEND_SHUTDOWN | FIN_RECEIVED);
    }

    /// Ends the socket: nobody will use it again.
    fn release(&self) {
        ALL.lock().remove(&self.common.id);
        self.stop_listening();
        let places = {
            let mut state = self.state.lock();
            state.connecting = None;
            (self.forget(&mut state), state.place.take())
        };
        drop(places);
        let unread = {
            let mut queue = self.port.queue.lock();
            let old = core::mem::replace(&mut *queue, ByteStream { closed: true, ..ByteStream::default() });
            !old.bytes.is_empty()
        };
        let Some(connection) = self.connection.get() else { return };
        if unread || self.port.options.linger() == (true, 0) {
            self.abort(connection);
        } else {
            self.hear_end(connection, false);
            self.port.shutdown(RCV_SHUTDOWN | SEND_SHUTDOWN);
            connection.peer.shutdown(RCV_SHUTDOWN | FIN_RECEIVED);
        }
    }
}

/// The peer has reset the connection of `port`.
fn reset(port: &TcpEndpoint) {
    // One whose peer has said already that there is no more can only be told that it cannot send.
    if !port.is_shut_down(SEND_SHUTDOWN | FIN_RECEIVED) {
        port.set_error(if port.is_shut_down(FIN_RECEIVED) { Errno::EPIPE } else { Errno::ECONNRESET });
    }
    port.shutdown(RCV_SHUTDOWN | SEND_SHUTDOWN | FIN_RECEIVED);
}

/// A reset that came after the end of the stream is none for who receives.
fn after_end<R>(result: Result<R>, end: R) -> Result<R> {
    match result {
        Err(Errno::EPIPE) => Ok(end),
        result => result,
    }
}
