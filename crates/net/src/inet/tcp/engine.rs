//! The seam below TCP sockets: what a protocol engine does for a connection, and the buffers
//! through which bytes pass. An engine may be outside the crate.
//!
//! A connection has two endpoints: the socket's, which holds what it has not received yet, and that
//! of whoever is at the other end, which holds what was sent. Over the loop that is the peer's
//! socket, so a byte that is sent is a byte that has arrived. Over a network it belongs to an
//! engine: what is in it waits to be acknowledged.

use alloc::sync::Arc;

use abi::errno::Errno;
use fs::Result;
use fs::poll::{Events, PollObserver};
use task::Once;
use tcp::State;

use super::{TcpEndpoint, TcpOptions, new_endpoint, note_reset};
use crate::inet::stack::InetStack;
use crate::socket::SocketOptions;
use crate::socket::endpoint::{FIN_RECEIVED, RCV_SHUTDOWN, SEND_SHUTDOWN, WAS_RESET};

/// The state of a connection (RFC 9293, section 3.3.2), with its number in Linux' `tcp_states.h`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum TcpState {
    /// Open in both directions.
    Established = 1,
    /// A SYN was sent.
    SynSent = 2,
    /// A SYN was received and answered.
    SynReceived = 3,
    /// A FIN was sent and not acknowledged.
    FinWait1 = 4,
    /// The FIN was acknowledged; the peer may go on sending.
    FinWait2 = 5,
    /// Both ends are closed; late segments may still come.
    TimeWait = 6,
    /// No connection.
    Close = 7,
    /// The peer has sent a FIN; this end may go on sending.
    CloseWait = 8,
    /// A FIN was sent after that of the peer.
    LastAck = 9,
    /// Waiting for connections.
    Listen = 10,
    /// Both ends have sent a FIN at the same time.
    Closing = 11,
}

impl From<State> for TcpState {
    fn from(state: State) -> Self {
        match state {
            State::Closed => Self::Close,
            State::SynSent => Self::SynSent,
            State::SynReceived => Self::SynReceived,
            State::Established => Self::Established,
            State::FinWait1 => Self::FinWait1,
            State::FinWait2 => Self::FinWait2,
            State::CloseWait => Self::CloseWait,
            State::Closing => Self::Closing,
            State::LastAck => Self::LastAck,
            State::TimeWait => Self::TimeWait,
        }
    }
}

/// A protocol engine as one connection's socket sees it. That there is more to send, or more room
/// to receive, an engine is told as an observer of its [`TcpBuffers`].
pub trait TcpEngine: Send + Sync {
    /// The program sends nothing more: a FIN is due after what is queued. May be called again.
    fn shutdown(&self);

    /// The program resets the connection: a RST is due now.
    fn abort(&self);

    /// The program has closed the socket: as [`Self::shutdown`], and nobody receives any more.
    fn close(&self) {
        self.shutdown();
    }

    /// The state of the connection, once it is made.
    fn state(&self) -> TcpState;

    /// The program has set an option.
    fn set_options(&self, options: &TcpOptions) {
        let _ = options;
    }

    /// Facts about the connection (`TCP_INFO`), if there are segments to know any of.
    fn info(&self) -> Option<tcp::Info> {
        None
    }

    /// The time by the engine's clock.
    fn now(&self) -> u64 {
        task::now_ns()
    }

    /// Bytes that were sent and have not gone out once.
    fn not_sent(&self) -> usize {
        0
    }
}

/// The engine of a connection over the loop: both endpoints are sockets', so that what one side
/// does has happened to the other.
struct LoopbackEngine<'a> {
    own: &'a TcpEndpoint,
    peer: &'a TcpEndpoint,
}

impl LoopbackEngine<'_> {
    /// Whether the other end has reset the connection: its socket may have another one since.
    fn is_over(&self) -> bool {
        self.own.is_shut_down(WAS_RESET)
    }
}

impl TcpEngine for LoopbackEngine<'_> {
    fn shutdown(&self) {
        if !self.is_over() {
            self.peer.shutdown(RCV_SHUTDOWN | FIN_RECEIVED);
        }
    }

    fn abort(&self) {
        if !self.is_over() {
            note_reset(self.peer);
            self.peer.notify_all();
        }
    }

    fn state(&self) -> TcpState {
        match (
            self.own.is_shut_down(SEND_SHUTDOWN),
            self.own.is_shut_down(FIN_RECEIVED),
        ) {
            (false, false) => TcpState::Established,
            (true, false) => TcpState::FinWait2,
            (false, true) => TcpState::CloseWait,
            (true, true) => TcpState::Close,
        }
    }
}

/// An end of a connection, as the other end is told of it: where it receives, and the engine that
/// carries the connection; over the loop there is none.
#[derive(Clone)]
pub struct ConnectionEnd {
    pub(super) endpoint: Arc<TcpEndpoint>,
    engine: Option<Arc<dyn TcpEngine>>,
}

impl ConnectionEnd {
    /// The end of a socket over the loop.
    pub(super) fn loopback(endpoint: Arc<TcpEndpoint>) -> Self {
        Self {
            endpoint,
            engine: None,
        }
    }

    /// Bytes that the end's receive buffer has room for.
    pub(in crate::inet) fn receive_buffer(&self) -> usize {
        self.endpoint.options.receive_buffer()
    }

    /// Whether the end is a socket's, to which no packets go.
    pub(super) fn is_loopback(&self) -> bool {
        self.engine.is_none()
    }

    /// Runs `f` with the engine that carries what the socket of `own` sends to this end.
    pub(super) fn with_engine<R>(
        &self,
        own: &TcpEndpoint,
        f: impl FnOnce(&dyn TcpEngine) -> R,
    ) -> R {
        match &self.engine {
            Some(engine) => f(&**engine),
            None => f(&LoopbackEngine {
                own,
                peer: &self.endpoint,
            }),
        }
    }
}

/// The buffers of a connected TCP socket as the engine below it sees them (BSD `so_snd`, `so_rcv`).
pub struct TcpBuffers {
    /// Holds what the socket has sent and nobody has acknowledged.
    unacknowledged: Arc<TcpEndpoint>,
    /// Holds what the socket has not received yet.
    socket: Once<Arc<TcpEndpoint>>,
}

impl TcpBuffers {
    /// Buffers that have no socket yet.
    #[must_use]
    pub fn new(stack: &InetStack) -> Self {
        Self {
            unacknowledged: new_endpoint(stack.tcp.engine_options.clone()),
            socket: Once::new(),
        }
    }

    /// The engine's end of the connection, for the socket.
    #[must_use]
    pub fn end(&self, engine: Arc<dyn TcpEngine>) -> ConnectionEnd {
        ConnectionEnd {
            endpoint: self.unacknowledged.clone(),
            engine: Some(engine),
        }
    }

    /// Sets the socket by its end of the connection. The first call counts.
    pub fn attach(&self, socket: &ConnectionEnd) {
        self.socket.call_once(|| {
            let options = &socket.endpoint.options;
            let mut unacknowledged = self.unacknowledged.queue.lock();
            unacknowledged.memory.set_owner(options);
            socket.endpoint.clone()
        });
    }

    /// Has an observer told when the socket has sent or received. It is told in the thread that
    /// did, and stays until its last strong reference is dropped.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn watch(&self, observer: &Arc<dyn PollObserver>) -> Result<()> {
        self.unacknowledged.readable.add_observer(observer)?;
        self.unacknowledged.writable.add_observer(observer)
    }

    /// The number of bytes that were sent and not acknowledged.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.unacknowledged.queue.lock().bytes.len()
    }

    /// [`Self::queued`], and the number of bytes up to the last that was sent as urgent, since the
    /// connection was made, unless it is acknowledged.
    pub(in crate::inet) fn outgoing(&self) -> (usize, Option<u64>) {
        let queue = self.unacknowledged.queue.lock();
        (queue.bytes.len(), queue.urgent_end())
    }

    /// The byte of the peer's stream at a position is urgent. Returns whether that is news, of
    /// which the program is told by [`Self::notify`].
    pub(in crate::inet) fn mark_urgent(&self, position: u64) -> bool {
        self.socket.get().is_some_and(|socket| {
            let inline = socket.is_oob_inline();
            socket.queue.lock().mark_urgent(position, inline)
        })
    }

    /// Copies bytes that were sent, from `offset` behind the last acknowledged one on. Returns how
    /// many there were.
    pub fn peek(&self, offset: usize, buf: &mut [u8]) -> usize {
        self.unacknowledged.queue.lock().peek(offset, buf)
    }

    /// Drops bytes that were acknowledged, at most those there are, and makes room for the socket
    /// to send.
    pub fn release(&self, bytes: usize) {
        self.release_quietly(bytes);
        self.notify(News {
            space: true,
            ..News::default()
        });
    }

    /// Drops acknowledged bytes without telling the program that there is room again: the caller
    /// does, by [`Self::notify`].
    pub(in crate::inet) fn release_quietly(&self, bytes: usize) {
        self.unacknowledged.queue.lock().release_acknowledged(bytes);
    }

    /// The number of bytes that were delivered and that the program has not received.
    pub(in crate::inet) fn unread(&self) -> usize {
        let socket = self.socket.get();
        socket.map_or(0, |socket| socket.queue.lock().bytes.len())
    }

    /// Tells the program what has happened without its being told.
    pub(in crate::inet) fn notify(&self, news: News) {
        let Some(socket) = self.socket.get() else {
            return;
        };
        if news.urgent {
            socket.send_sigurg();
        }
        if news.end {
            socket.notify_all();
            return;
        }
        if news.data {
            // Who waits for an urgent byte looks whether this is it, as on Linux.
            socket
                .readable
                .notify_events(Events::READABLE | Events::PRI);
        }
        if news.space {
            socket.notify_write_space();
        }
    }

    /// The socket's options; `None` as long as there is no socket.
    pub(in crate::inet) fn socket_options(&self) -> Option<&SocketOptions> {
        self.socket.get().map(|socket| &*socket.options)
    }

    /// The number of bytes that can be delivered: the window to advertise.
    #[must_use]
    pub fn window(&self) -> usize {
        self.socket.get().map_or(0, |socket| {
            let waiting = socket.queue.lock().charged_bytes;
            socket.options.receive_buffer().saturating_sub(waiting)
        })
    }

    /// Delivers the next bytes of the stream, as many as the window is large. Returns how many.
    ///
    /// # Errors
    /// `EPIPE` if the program has closed the socket: a reset is due. `ENOMEM` if memory is short:
    /// the bytes were lost on their way.
    pub fn deliver(&self, data: &[u8]) -> Result<usize> {
        let delivered = self.deliver_quietly(data)?;
        self.notify(News {
            data: delivered > 0,
            ..News::default()
        });
        Ok(delivered)
    }

    /// Delivers bytes without telling the program: the caller does, by [`Self::notify`].
    ///
    /// # Errors
    /// Those of [`Self::deliver`].
    pub(in crate::inet) fn deliver_quietly(&self, data: &[u8]) -> Result<usize> {
        let socket = self.socket.get().ok_or(Errno::EPIPE)?;
        let mut queue = socket.queue.lock();
        if queue.closed {
            return Err(Errno::EPIPE);
        }
        let window = socket.options.receive_buffer();
        let delivered = data.len().min(window.saturating_sub(queue.charged_bytes));
        let delivered = queue.cover(delivered);
        queue.append(&data[..delivered])?;
        Ok(delivered)
    }

    /// Delivers the end of the stream: the peer's FIN is next.
    pub fn deliver_end(&self) {
        self.deliver_end_quietly();
        self.notify(News {
            end: true,
            ..News::default()
        });
    }

    /// Delivers the end of the stream without telling the program: the caller does, by
    /// [`Self::notify`].
    pub(in crate::inet) fn deliver_end_quietly(&self) {
        if let Some(socket) = self.socket.get() {
            socket.note_shutdown(RCV_SHUTDOWN | FIN_RECEIVED);
        }
    }

    /// Ends the connection with an error, which the program's next call returns: `ECONNRESET` for
    /// a reset, `ETIMEDOUT`, or what ICMP says.
    pub fn fail(&self, error: Errno) {
        if let Some(socket) = self.socket.get() {
            if error == Errno::ECONNRESET {
                note_reset(socket);
            } else {
                socket.set_error(error);
                socket.note_shutdown(RCV_SHUTDOWN | SEND_SHUTDOWN | FIN_RECEIVED);
            }
            socket.notify_all();
        }
    }
}

/// Events of a connection of which its socket's observers have not been told.
#[derive(Clone, Copy, Default, Debug)]
pub(in crate::inet) struct News {
    /// Bytes have come.
    pub(in crate::inet) data: bool,
    /// There is room to send.
    pub(in crate::inet) space: bool,
    /// The peer says that a byte is urgent.
    pub(in crate::inet) urgent: bool,
    /// Nothing more comes, or goes.
    pub(in crate::inet) end: bool,
}
