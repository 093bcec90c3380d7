//! Waiting for connections.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::SocketAddr;
use core::sync::atomic::Ordering;

use abi::errno::Errno;
use fs::Result;
use fs::poll::Events;

use super::connect::ConnectRequest;
use super::defer_accept::DeferredConnection;
use super::{Connection, ConnectionEnd, TcpOptions, TcpSocket, new_endpoint, tap};
use crate::inet::bind_table::{BindAddress, reuseport_hash};
use crate::inet::stack::InetStack;
use crate::socket::endpoint::{RCV_SHUTDOWN, SEND_SHUTDOWN};
use crate::{Socket, WaitPolicy};

impl InetStack {
    /// A connection has arrived at this host: it is put into the backlog of a listener, or fails.
    pub fn handle_connect_request(&self, request: ConnectRequest) {
        // A socket that connects to its own address is both ends of the connection (RFC 9293,
        // section 3.5, simultaneous initiation), whoever listens.
        if request.from == request.to
            && let Some(initiator) = request.initiator()
        {
            return initiator.connect_established(request.end().clone());
        }
        let refused = match self.select_listener(request.from, request.to) {
            Some(listener) => listener.enqueue_connection(request),
            None => Some(request),
        };
        if let Some(request) = refused
            && let Some(initiator) = request.initiator()
        {
            tap::tap_refusal(self, &request);
            initiator.connect_failed(Errno::ECONNREFUSED);
        }
    }

    /// The socket that listens for connections from one address to another.
    fn select_listener(&self, from: SocketAddr, to: SocketAddr) -> Option<Arc<TcpSocket>> {
        let listeners = self
            .tcp
            .bind_table
            .lookup(to, |socket, fit| socket.in_listen_state().then_some(fit));
        let chosen = match listeners.len() {
            0 | 1 => 0,
            n => {
                let chosen = listeners
                    .iter()
                    .find_map(|listener| listener.endpoint.options.select_reuseport(&[], n));
                chosen.unwrap_or_else(|| reuseport_hash(from, to, n))
            }
        };
        listeners.into_nth(chosen)
    }

    /// The listener of segments from one address to another.
    pub(in crate::inet) fn tcp_listener(
        &self,
        from: SocketAddr,
        to: SocketAddr,
    ) -> Option<TcpListener> {
        self.select_listener(from, to).map(TcpListener)
    }
}

/// A socket that listens, as a protocol engine sees it.
pub(in crate::inet) struct TcpListener(Arc<TcpSocket>);

/// The terms on which a listener takes connections at the moment.
pub(in crate::inet) struct ListenTerms {
    /// Connections that wait to be accepted, and may, less one.
    pub(in crate::inet) waiting: usize,
    pub(in crate::inet) limit: usize,
    /// `TCP_DEFER_ACCEPT`, seconds.
    pub(in crate::inet) defer_accept_s: u32,
    /// Bytes that a connection's receive buffer has room for.
    pub(in crate::inet) receive_buffer: usize,
    pub(in crate::inet) options: TcpOptions,
}

/// A socket for a connection that nobody has accepted yet.
pub(in crate::inet) struct TcpChild(Arc<TcpSocket>);

impl TcpListener {
    /// Number of the socket, which no other has had.
    pub(in crate::inet) fn id(&self) -> u64 {
        self.0.common.id
    }

    /// Whether it still listens.
    pub(in crate::inet) fn is_open(&self) -> bool {
        self.0.in_listen_state()
    }

    /// The terms on which it takes connections; `None` if it does not listen any more.
    pub(in crate::inet) fn terms(&self) -> Option<ListenTerms> {
        let (waiting, limit) = self.0.backlog()?;
        Some(ListenTerms {
            waiting,
            limit,
            defer_accept_s: self.0.defer_accept_s(),
            receive_buffer: self.0.endpoint.options.receive_buffer(),
            options: self.0.engine_options(),
        })
    }

    /// Makes the socket of a connection whose other end is `peer`.
    pub(in crate::inet) fn create_child(
        &self,
        peer: ConnectionEnd,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> TcpChild {
        TcpChild(self.0.create_child(Connection {
            peer,
            local,
            remote,
        }))
    }

    /// Lets a connection wait to be accepted. It is reset if nobody listens any more.
    pub(in crate::inet) fn enqueue(&self, child: TcpChild) {
        let is_queued = {
            let mut state = self.0.state.lock();
            state.backlog.as_mut().is_some_and(|backlog| {
                let queue = &mut backlog.accept_queue;
                fallible::push_back(queue, child.0.clone()).is_ok()
            })
        };
        if is_queued {
            self.0.endpoint.readable.notify_events(Events::READABLE);
        } else {
            child.discard();
        }
    }
}

impl TcpChild {
    /// The socket's end of the connection.
    pub(in crate::inet) fn end(&self) -> ConnectionEnd {
        self.0.end()
    }

    /// Ends a connection that nobody will accept, with a reset.
    pub(in crate::inet) fn discard(self) {
        if let Some(connection) = self.0.connection.load() {
            self.0.abort(&connection);
        }
        self.0.close();
    }
}

pub(super) struct Backlog {
    pub(super) accept_queue: VecDeque<Arc<TcpSocket>>,
    /// Connections that are not accepted before data has come.
    pub(super) deferred: Vec<Arc<DeferredConnection>>,
    /// Requests for which there was no room yet.
    pending_requests: VecDeque<ConnectRequest>,
    pub(super) limit: usize,
}

impl TcpSocket {
    /// Takes a connection into the backlog, or lets it wait outside. Returns it if nobody listens,
    /// or there is no memory for it.
    pub(super) fn enqueue_connection(&self, request: ConnectRequest) -> Option<ConnectRequest> {
        let initiator = request.initiator()?;
        let server = {
            let mut state = self.state.lock();
            let Some(backlog) = &mut state.backlog else {
                return Some(request);
            };
            // However many connect, and wait outside.
            if !vm::has_kernel_room()
                || backlog.pending_requests.try_reserve(1).is_err()
                || backlog.deferred.try_reserve(1).is_err()
            {
                return Some(request);
            }
            if backlog.accept_queue.len() > backlog.limit {
                backlog.pending_requests.push_back(request);
                return None;
            }
            let server = self.create_child(Connection {
                peer: request.end().clone(),
                local: request.to,
                remote: request.from,
            });
            match self.defer_accept_s() {
                0 => backlog.accept_queue.push_back(server.clone()),
                seconds => {
                    let deferred = self.defer(&server, seconds);
                    backlog.deferred.push(deferred);
                }
            }
            server
        };
        self.endpoint.readable.notify_events(Events::READABLE);
        tap::tap_handshake(self.common.stack(), &request);
        // Last: whoever began it may send from here on, and close.
        initiator.connect_established(server.end());
        None
    }

    /// The server's side of a connection.
    pub(super) fn create_child(&self, connection: Connection) -> Arc<Self> {
        let common = self.common.child();
        let options = self.endpoint.options.inherit();
        let endpoint = new_endpoint(Arc::new(options));
        let server = Self::with_endpoint(common, endpoint);
        server.set_user_timeout_ms(self.user_timeout_ms());
        server.set_connection(connection);
        server
    }

    /// Ends waiting for connections.
    pub(super) fn stop_listening(&self) {
        let backlog = {
            let mut state = self.state.lock();
            self.listening.store(false, Ordering::Release);
            state.backlog.take()
        };
        let Some(Backlog {
            accept_queue,
            deferred,
            pending_requests,
            ..
        }) = backlog
        else {
            return;
        };
        self.common.stack().network.stop_listening(self.common.id);
        for socket in accept_queue
            .into_iter()
            .chain(deferred.iter().map(|deferred| deferred.server.clone()))
        {
            if let Some(connection) = socket.connection.load() {
                socket.abort(&connection);
            }
            socket.close();
        }
        for initiator in pending_requests
            .iter()
            .filter_map(super::connect::ConnectRequest::initiator)
        {
            initiator.connect_failed(Errno::ECONNREFUSED);
        }
        self.endpoint.shutdown(RCV_SHUTDOWN | SEND_SHUTDOWN);
    }

    /// Listens as `listen(2)` does.
    pub(super) fn start_listening(&self, backlog: usize) -> Result<()> {
        let limit = backlog.min(self.common.stack().core.sysctls.somaxconn.as_usize());
        let mut state = self.state.lock();
        if state.connecting.is_some() || self.connection.load().is_some() {
            return Err(Errno::EINVAL);
        }
        if let Some(backlog) = &mut state.backlog {
            backlog.limit = limit;
            return Ok(());
        }
        if state.binding.is_none() {
            let address = BindAddress::new(
                self.common.family().unspecified_address().ip(),
                self.common.is_v6_only(),
            );
            state.binding = Some(self.bind_port(address, 0)?);
            state.port_locked = true;
        }
        self.listening.store(true, Ordering::Release);
        if !state.binding.as_ref().is_some_and(|binding| {
            let table = &self.tables().bind_table;
            table.can_listen(binding, self.common.is_v6_only())
        }) {
            self.listening.store(false, Ordering::Release);
            return Err(Errno::EADDRINUSE);
        }
        state.backlog = Some(Backlog {
            accept_queue: VecDeque::new(),
            deferred: Vec::new(),
            pending_requests: VecDeque::new(),
            limit,
        });
        Ok(())
    }

    /// Takes a connection as `accept(2)` does.
    pub(super) fn accept_connection(&self, wait: WaitPolicy) -> Result<Socket> {
        let attempt = || {
            let mut state = self.state.lock();
            let Some(backlog) = &mut state.backlog else {
                return Some(Err(Errno::EINVAL));
            };
            let accepted = backlog.accept_queue.pop_front()?;
            Some(Ok((accepted, backlog.pending_requests.pop_front())))
        };
        let (accepted, outside) = wait.wait_on(&self.endpoint.readable, attempt)?;
        if let Some(initiator) = outside
            .and_then(|request| self.enqueue_connection(request))
            .and_then(|o| o.initiator())
        {
            initiator.connect_failed(Errno::ECONNREFUSED);
        }
        Ok(accepted.into_socket())
    }
}
