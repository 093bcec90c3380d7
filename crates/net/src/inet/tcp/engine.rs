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

use super::{TcpEndpoint, new_endpoint, reset_by_peer};
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

/// A protocol engine as one connection's socket sees it. That there is more to send, or more room
/// to receive, an engine is told as an observer of its [`TcpBuffers`].
pub trait TcpEngine: Send + Sync {
    /// The program sends nothing more: a FIN is due after what is queued. May be called again.
    fn shutdown(&self);

    /// The program resets the connection: a RST is due now.
    fn abort(&self);

    /// The state of the connection, once it is made.
    fn state(&self) -> TcpState;
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
            reset_by_peer(self.peer);
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
        // Nothing that was sent has arrived as long as it is here: there is no second buffer.
        let options = SocketOptions::with_buffers(stack.core.clone(), 0, 0);
        Self {
            unacknowledged: new_endpoint(&stack.core, options),
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
        self.socket.call_once(|| socket.endpoint.clone());
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

    /// Copies bytes that were sent, from `offset` behind the last acknowledged one on. Returns how
    /// many there were.
    pub fn peek(&self, offset: usize, buf: &mut [u8]) -> usize {
        self.unacknowledged.queue.lock().peek(offset, buf)
    }

    /// Drops bytes that were acknowledged, at most those there are, and makes room for the socket
    /// to send.
    pub fn release(&self, bytes: usize) {
        self.unacknowledged.queue.lock().release_acknowledged(bytes);
        if let Some(socket) = self.socket.get() {
            socket.notify_write_space();
        }
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
        let socket = self.socket.get().ok_or(Errno::EPIPE)?;
        let delivered = {
            let mut queue = socket.queue.lock();
            if queue.closed {
                return Err(Errno::EPIPE);
            }
            let window = socket.options.receive_buffer();
            let delivered = data.len().min(window.saturating_sub(queue.charged_bytes));
            let delivered = queue.cover(delivered);
            queue.append(&data[..delivered])?;
            delivered
        };
        if delivered > 0 {
            socket.readable.notify_events(Events::READABLE);
        }
        Ok(delivered)
    }

    /// Delivers the end of the stream: the peer's FIN is next.
    pub fn deliver_end(&self) {
        if let Some(socket) = self.socket.get() {
            socket.shutdown(RCV_SHUTDOWN | FIN_RECEIVED);
        }
    }

    /// Ends the connection with an error, which the program's next call returns: `ECONNRESET` for
    /// a reset, `ETIMEDOUT`, or what ICMP says.
    pub fn fail(&self, error: Errno) {
        if let Some(socket) = self.socket.get() {
            if error == Errno::ECONNRESET {
                reset_by_peer(socket);
            } else {
                socket.set_error(error);
                socket.shutdown(RCV_SHUTDOWN | SEND_SHUTDOWN | FIN_RECEIVED);
            }
        }
    }
}
