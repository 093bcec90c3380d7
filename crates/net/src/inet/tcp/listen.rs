//! Waiting for connections.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use abi::errno::Errno;
use fs::Result;
use fs::poll::Events;

use super::connect::ConnectRequest;
use super::defer_accept::DeferredConnection;
use super::{Connection, TcpSocket, new_endpoint, tap};
use crate::inet::bind_table::{BindAddress, reuseport_hash};
use crate::inet::inet_socket::InetSocket;
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
        let listeners = self.tcp.bind_table.lookup(request.to, |socket, fit| {
            socket.in_listen_state().then_some(fit)
        });
        let chosen = match listeners.len() {
            0 => None,
            1 => listeners.first(),
            n => {
                let chosen = listeners
                    .iter()
                    .find_map(|listener| listener.endpoint.options.select_reuseport(&[], n));
                listeners.get(chosen.unwrap_or_else(|| reuseport_hash(request.from, request.to, n)))
            }
        };
        let refused = match chosen {
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
            let server = self.create_child(&request);
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
    pub(super) fn create_child(&self, request: &ConnectRequest) -> Arc<Self> {
        let common = InetSocket::new(self.common.stack(), self.common.family());
        common.options.inherit_from(&self.common.options);
        let options = self.endpoint.options.inherit();
        let endpoint = new_endpoint(&self.common.stack().core, options);
        let server = Self::with_endpoint(common, endpoint);
        server.set_user_timeout_ms(self.user_timeout_ms());
        server.set_connection(Connection {
            peer: request.end().clone(),
            local: request.to,
            remote: request.from,
        });
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
