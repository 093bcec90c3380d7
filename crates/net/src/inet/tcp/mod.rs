//! TCP sockets: connections are pairs of endpoints ([`crate::socket::byte_stream`]).

mod connect;
mod cork;
mod defer_accept;
mod engine;
mod file;
mod listen;
mod options;
mod tap;
mod user_timeout;

use alloc::collections::BTreeSet;
use alloc::sync::{Arc, Weak};
use core::net::SocketAddr;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use abi::errno::Errno;
pub use connect::{ConnectRequest, Initiator};
use cork::Cork;
pub(super) use engine::News;
pub use engine::{ConnectionEnd, TcpBuffers, TcpEngine, TcpState};
use fs::Result;
use fs::poll::Events;
use linux_raw_sys::net;
use listen::Backlog;
pub(super) use listen::{ListenTerms, TcpListener};
pub use options::TcpOptions;
use task::{Mutex, RcuArc};

use super::bind_table::{BindAddress, BindTable, Bindable, PortBinding, ReusePolicy};
use super::inet_socket::{Family, InetSocket};
use super::option_table::{TCP, TCP_INQ};
use super::stack::InetStack;
use crate::socket::byte_stream::{ByteStream, ConnectedStream, Senders};
use crate::socket::core_stack::CoreStack;
use crate::socket::endpoint::{self, FIN_RECEIVED, RCV_SHUTDOWN, SEND_SHUTDOWN, WAS_RESET};
use crate::socket::memory::{BufferMemory, Transport};
use crate::socket::socket_list::SocketList;
use crate::{
    Linger, MsgFlags, OutgoingMessage, ReceivedMessage, Socket, SocketOptions, WaitPolicy,
};

/// The bytes a connection may have under way: Linux lets them become more with the traffic,
/// beginning with less.
const INITIAL_SEND_BUFFER: usize = 87_040;

/// The receiving side of one end of a connection.
pub(super) type TcpEndpoint = endpoint::Endpoint<ByteStream>;

/// An empty buffer of a socket that counts as TCP's.
fn new_buffer(options: &SocketOptions) -> ByteStream {
    ByteStream {
        memory: BufferMemory::new(options, Transport::Tcp),
        ..ByteStream::default()
    }
}

/// An endpoint with such a buffer.
fn new_endpoint(options: Arc<SocketOptions>) -> Arc<TcpEndpoint> {
    let queue = new_buffer(&options);
    Arc::new(TcpEndpoint::with_queue(options, queue))
}

/// The TCP sockets of a stack.
pub(super) struct TcpTables {
    pub(super) bind_table: Arc<BindTable<TcpSocket>>,
    /// Own and other address of every connection that was begun here: no two are the same.
    active_connections: Mutex<BTreeSet<(SocketAddr, SocketAddr)>>,
    /// All sockets, for listings.
    pub(super) sockets: SocketList<TcpSocket>,
    /// The options of the engines' ends of all connections: nobody sets any.
    engine_options: Arc<SocketOptions>,
}

impl TcpTables {
    pub(super) fn new(core: &Arc<CoreStack>) -> Self {
        Self {
            bind_table: BindTable::new(core.clone()),
            active_connections: Mutex::new(BTreeSet::new()),
            sockets: SocketList::default(),
            // Nothing that was sent has arrived as long as it is at that end: there is no second
            // buffer. Who pays for it is known with the socket.
            engine_options: Arc::new(SocketOptions::of_owner(core.clone(), 0).with_buffers(0, 0)),
        }
    }

    /// The number of bound sockets.
    pub(super) fn bound_count(&self) -> usize {
        self.bind_table.len()
    }

    /// The number of connections that were begun here.
    pub(super) fn connecting_count(&self) -> u64 {
        self.active_connections.lock().len() as u64
    }
}

#[derive(Default)]
struct State {
    binding: Option<PortBinding<TcpSocket>>,
    /// Address it was bound to, if that is no single one: connecting replaces it for a time.
    any_address: Option<BindAddress>,
    /// The port was asked for, not chosen when connecting.
    port_locked: bool,
    backlog: Option<Backlog>,
    /// The address a connection is being made to.
    connecting: Option<SocketAddr>,
    /// The engine that makes it, if one does.
    connecting_engine: Option<Arc<dyn TcpEngine>>,
    /// A call that began a connection returned before there was one, and nobody has been told of it
    /// since.
    result_pending: bool,
    active_connection: Option<(SocketAddr, SocketAddr)>,
}

/// The connection of a socket.
struct Connection {
    /// The other end, where what is sent goes.
    peer: ConnectionEnd,
    local: SocketAddr,
    remote: SocketAddr,
}

/// A TCP socket.
pub struct TcpSocket {
    _counted: census::Tcp,
    pub(super) common: InetSocket,
    pub(super) endpoint: Arc<TcpEndpoint>,
    connection: RcuArc<Connection>,
    state: Mutex<State>,
    /// Equal to `state.backlog.is_some()`, for those who must not lock.
    listening: AtomicBool,
    /// The longest that bytes may wait for the peer (`TCP_USER_TIMEOUT`), milliseconds; 0: for
    /// ever.
    user_timeout_ms: AtomicU32,
    /// Whether the timer of `user_timeout_ms` is set.
    user_timer_armed: AtomicBool,
    /// A listener's connections are not accepted before data has come, or so many seconds have
    /// passed (`TCP_DEFER_ACCEPT`); 0: at once.
    defer_accept_s: AtomicU32,
    cork: Cork,
    this: Weak<TcpSocket>,
}

impl Bindable for TcpSocket {
    fn reuse_policy(&self) -> ReusePolicy {
        let options = &self.endpoint.options;
        ReusePolicy {
            reuse_address: options.is_enabled(net::SO_REUSEADDR),
            is_listening: self.in_listen_state(),
            reuse_port: options
                .is_enabled(net::SO_REUSEPORT)
                .then_some(self.common.uid),
        }
    }
}

impl TcpSocket {
    fn with_endpoint(common: InetSocket, endpoint: Arc<TcpEndpoint>) -> Arc<Self> {
        let id = common.id;
        let socket = Arc::new_cyclic(|this| Self {
            _counted: census::Tcp::default(),
            common,
            endpoint,
            connection: RcuArc::empty(),
            state: Mutex::default(),
            listening: AtomicBool::new(false),
            user_timeout_ms: AtomicU32::new(0),
            user_timer_armed: AtomicBool::new(false),
            defer_accept_s: AtomicU32::new(0),
            cork: Cork::default(),
            this: this.clone(),
        });
        socket.tables().sockets.insert(id, &socket);
        socket
    }

    pub(super) fn new(stack: &Arc<InetStack>, family: Family) -> Arc<Self> {
        let sysctls = &stack.core.sysctls;
        let options = SocketOptions::new(stack.core.clone()).with_buffers(
            sysctls.tcp_wmem.default_size(),
            sysctls.tcp_rmem.default_size(),
        );
        let common = InetSocket::new(stack, family);
        Self::with_endpoint(common, new_endpoint(Arc::new(options)))
    }

    pub(super) fn into_socket(self: Arc<Self>) -> Socket {
        let options = self.endpoint.options.clone();
        Socket::new(self, options)
    }

    /// Binds a socket that is not used otherwise, so that nobody else has the port.
    ///
    /// # Errors
    /// `EADDRINUSE`, `ENOMEM`.
    pub(super) fn keep_port(&self, at: SocketAddr) -> Result<()> {
        let binding = self.bind_port(BindAddress::new(at.ip(), false), at.port())?;
        self.state.lock().binding = Some(binding);
        Ok(())
    }

    /// The TCP sockets of its stack.
    fn tables(&self) -> &TcpTables {
        &self.common.stack().tcp
    }

    /// Whether any packet socket sees what is sent: segments are made for it.
    #[inline]
    fn has_taps(&self) -> bool {
        self.endpoint.options.stack().taps.any()
    }

    pub(super) fn in_listen_state(&self) -> bool {
        self.listening.load(Ordering::Acquire)
    }

    /// The number of connections that wait to be accepted and how many may, of a listener.
    pub(super) fn backlog(&self) -> Option<(usize, usize)> {
        self.state
            .lock()
            .backlog
            .as_ref()
            .map(|backlog| (backlog.accept_queue.len(), backlog.limit))
    }

    /// Sets the connection of a socket that has none.
    fn set_connection(&self, connection: Connection) {
        self.endpoint.options.grow_send_buffer(INITIAL_SEND_BUFFER);
        self.connection.swap(Some(Arc::new(connection)));
    }

    /// The socket's own address and the peer's.
    pub(super) fn addresses(&self) -> (SocketAddr, Option<SocketAddr>) {
        if let Some(connection) = self.connection.load() {
            return (connection.local, Some(connection.remote));
        }
        let state = self.state.lock();
        (
            state
                .binding
                .as_ref()
                .map_or(self.common.family().unspecified_address(), |binding| {
                    binding.address
                }),
            state.connecting,
        )
    }

    /// The state of the connection.
    pub(super) fn tcp_state(&self) -> TcpState {
        if self.in_listen_state() {
            return TcpState::Listen;
        }
        match self.connection.load() {
            Some(connection) => connection
                .peer
                .with_engine(&self.endpoint, |engine| engine.state()),
            None if self.state.lock().connecting.is_some() => TcpState::SynSent,
            None => TcpState::Close,
        }
    }

    /// Facts about a connection that has segments, bytes that have not gone out once, and the time
    /// that the facts are of.
    pub(super) fn engine_info(&self) -> Option<(::tcp::Info, usize, u64)> {
        let connection = self.connection.load()?;
        let peer = &connection.peer;
        peer.with_engine(&self.endpoint, |engine| {
            let info = engine.info()?;
            Some((info, engine.not_sent(), engine.now()))
        })
    }

    fn bind_port(&self, address: BindAddress, port: u16) -> Result<PortBinding<Self>> {
        let socket = self.this.upgrade().ok_or(Errno::EINVAL)?;
        self.tables().bind_table.bind(&socket, address, port)
    }

    /// The connection; if one is being made, it is waited for.
    ///
    /// # Errors
    /// As [`WaitPolicy::wait_on`]; `ENOTCONN`, or why there is none.
    fn wait_connected(&self, wait: WaitPolicy) -> Result<Arc<Connection>> {
        if let Some(connection) = self.connection.load() {
            return Ok(connection);
        }
        wait.wait_on(&self.endpoint.writable, || {
            self.state.lock().connecting.is_none().then_some(Ok(()))
        })?;
        self.connection
            .load()
            .ok_or_else(|| self.endpoint.take_error().unwrap_or(Errno::ENOTCONN))
    }

    /// Whether nothing will ever be received, since that was ended before there was a connection.
    fn is_shut_unconnected(&self, flags: MsgFlags) -> bool {
        self.connection.load().is_none()
            && self.endpoint.is_shut_down(RCV_SHUTDOWN)
            && !self.in_listen_state()
            && !flags.contains(MsgFlags::OOB)
    }

    /// The connection of a call that receives. Where there is none there is no urgent byte, either.
    fn connection_for_receive(&self, flags: MsgFlags, wait: WaitPolicy) -> Result<Arc<Connection>> {
        let urgent = flags.contains(MsgFlags::OOB) && !self.in_listen_state();
        let wait = WaitPolicy {
            nonblocking: wait.nonblocking || urgent,
            ..wait
        };
        self.wait_connected(wait)
            .map_err(|error| if urgent { Errno::EINVAL } else { error })
    }

    fn stream<'a>(&'a self, connection: &'a Connection) -> ConnectedStream<'a, ByteStream> {
        // The bytes wait in two buffers, the sender's and the receiver's.
        let send_limit =
            self.endpoint.options.send_buffer() + connection.peer.endpoint.options.receive_buffer();
        ConnectedStream {
            own: &self.endpoint,
            peer: &connection.peer.endpoint,
            send_limit,
        }
    }

    /// The number of bytes sent.
    fn bytes_sent(&self, connection: &Connection) -> u64 {
        let held = self.cork.held();
        let queue = connection.peer.endpoint.queue.lock();
        queue.read_offset + (queue.bytes.len() + held) as u64
    }

    /// Sends, and does what is to be done of what was sent.
    fn send_message(
        &self,
        connection: &Connection,
        message: OutgoingMessage<'_>,
        flags: MsgFlags,
        wait: WaitPolicy,
    ) -> Result<usize> {
        let options = &self.endpoint.options;
        let stages = options.tx_timestamp_flags(&message.control);
        let mut last = None;
        let mut told = |start: u64, data: &[u8]| {
            if self.has_taps() && connection.peer.is_loopback() {
                self.tap_data(connection, start, data);
            }
            if stages != 0 {
                last = Some((start, data.to_vec()));
            }
        };
        let sent = self.stream(connection).send(
            OutgoingMessage {
                to: None,
                ..message
            },
            None,
            flags,
            wait,
            &mut told,
        );
        if let Some((start, data)) = last {
            let end = start + data.len() as u64 - 1;
            options.queue_tx_timestamps(stages, options.stream_timestamp_key(end), || {
                self.data_segment(connection, start, &data).frame()
            });
            self.endpoint.readable.notify_events(Events::ERR);
        }
        sent
    }

    fn receive_message(
        &self,
        buf: &mut [u8],
        flags: MsgFlags,
        wait: WaitPolicy,
    ) -> Result<ReceivedMessage> {
        if self.is_shut_unconnected(flags) {
            return Ok(ReceivedMessage::default());
        }
        let connection = self.connection_for_receive(flags, wait)?;
        let mut got = reset_as_eof(
            self.stream(&connection)
                .receive(buf, flags, Senders::Any, wait),
            ReceivedMessage::default(),
        )?;
        self.add_inq_message(&mut got);
        Ok(got)
    }

    /// Says how much there is still to be received, if that is asked for (`TCP_INQ`).
    fn add_inq_message(&self, got: &mut ReceivedMessage) {
        if self.common.options.wants_control.load(Ordering::Relaxed)
            && self.common.options.is_enabled(TCP, TCP_INQ)
        {
            let rest = self.endpoint.queue.lock().bytes.len() as u32;
            got.control
                .push((TCP, TCP_INQ, rest.to_ne_bytes().to_vec()));
        }
    }

    /// Ends the connection with a reset.
    fn abort(&self, connection: &Connection) {
        self.tap_reset(connection);
        connection
            .peer
            .with_engine(&self.endpoint, |engine| engine.abort());
        self.endpoint
            .shutdown(RCV_SHUTDOWN | SEND_SHUTDOWN | FIN_RECEIVED);
    }

    /// Ends listening, or the connection with a reset, and makes the socket one that can be bound
    /// and connected anew (`connect(2)` to `AF_UNSPEC`). An attempt to connect goes on.
    fn disconnect(&self) {
        self.stop_listening();
        let (old, place) = {
            let mut state = self.state.lock();
            if state.connecting.is_some() {
                return;
            }
            state.result_pending = false;
            (
                self.connection.swap(None),
                self.release_connect_state(&mut state),
            )
        };
        drop(place);
        let mut is_reset = false;
        if let Some(connection) = &old {
            is_reset = connection.peer.with_engine(&self.endpoint, |engine| {
                let open = engine.state() != TcpState::Close;
                if open {
                    engine.abort();
                }
                open
            });
            if is_reset {
                self.tap_reset(connection);
            }
            // Who is about to send to it finds that out.
            connection.peer.endpoint.queue.lock().closed = true;
        }
        self.cork.clear();
        // The peer sends no more: what it had under way is in the queue.
        let empty = new_buffer(&self.endpoint.options);
        let unread = core::mem::replace(&mut *self.endpoint.queue.lock(), empty);
        drop(unread);
        self.endpoint.reopen();
        if is_reset {
            self.endpoint.set_error(Errno::ECONNRESET);
        }
        self.endpoint.readable.notify();
        self.endpoint.writable.notify();
    }

    /// Ends the socket: nobody will use it again.
    fn close(&self) {
        self.tables().sockets.remove(self.common.id);
        self.stop_listening();
        let (places, engine) = {
            let mut state = self.state.lock();
            state.connecting = None;
            let engine = state.connecting_engine.take();
            let places = (self.release_connect_state(&mut state), state.binding.take());
            (places, engine)
        };
        drop(places);
        if let Some(engine) = engine {
            engine.abort();
        }
        let unread = {
            let mut queue = self.endpoint.queue.lock();
            let old = core::mem::replace(
                &mut *queue,
                ByteStream {
                    closed: true,
                    ..ByteStream::default()
                },
            );
            !old.bytes.is_empty()
        };
        let Some(connection) = self.connection.load() else {
            return;
        };
        let aborts = Linger {
            on: true,
            seconds: 0,
        };
        if unread || self.endpoint.options.linger() == aborts {
            self.abort(&connection);
        } else {
            self.push_held();
            self.tap_fin(&connection);
            self.endpoint.shutdown(RCV_SHUTDOWN | SEND_SHUTDOWN);
            connection
                .peer
                .with_engine(&self.endpoint, |engine| engine.close());
            self.linger(&connection);
        }
    }

    /// Waits until the peer has acknowledged everything, as long as the program has said
    /// (`SO_LINGER`). Over the loop it has.
    fn linger(&self, connection: &Connection) {
        let linger = self.endpoint.options.linger();
        let seconds = u64::try_from(linger.seconds).unwrap_or(0);
        if !linger.on || seconds == 0 || connection.peer.is_loopback() {
            return;
        }
        let wait = WaitPolicy {
            nonblocking: false,
            timeout_ns: seconds.saturating_mul(1_000_000_000),
        };
        let is_acknowledged = || {
            let state = connection
                .peer
                .with_engine(&self.endpoint, |engine| engine.state());
            let waits = matches!(
                state,
                TcpState::FinWait1 | TcpState::Closing | TcpState::LastAck
            );
            (!waits).then_some(Ok(()))
        };
        // A signal ends the wait, and what is left goes out all the same.
        let _ = wait.wait_on(&self.endpoint.writable, is_acknowledged);
    }
}

/// The peer has reset the connection of `endpoint`, of whose observers none has been told.
fn note_reset(endpoint: &TcpEndpoint) {
    // One whose peer has said already that there is no more can only be told that it cannot send.
    if !endpoint.is_shut_down(SEND_SHUTDOWN | FIN_RECEIVED) {
        endpoint.set_error(if endpoint.is_shut_down(FIN_RECEIVED) {
            Errno::EPIPE
        } else {
            Errno::ECONNRESET
        });
    }
    endpoint.note_shutdown(RCV_SHUTDOWN | SEND_SHUTDOWN | FIN_RECEIVED | WAS_RESET);
}

/// A reset that came after the end of the stream is none for who receives.
fn reset_as_eof<R>(result: Result<R>, end: R) -> Result<R> {
    match result {
        Err(Errno::EPIPE) => Ok(end),
        result => result,
    }
}
