//! Waiting for connections.

use super::connect::ConnectRequest;
use super::defer_accept::DeferredConnection;
use super::{Connection, InetSocket, PORTS, TcpEndpoint, TcpSocket, tap};
use crate::endpoint::{RCV_SHUTDOWN, SEND_SHUTDOWN};
use crate::inet::bind_table::{BindAddress, reuseport_hash};
use crate::{Socket, WaitPolicy, sysctl};
use abi::errno::Errno;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use fs::Result;
use fs::poll::Events;

/// A connection has arrived at this host: it is put into the backlog of a listener, or fails.
pub fn arrive(opening: ConnectRequest) {
    let listeners = PORTS.lookup(opening.to, |socket, fit| socket.listens().then_some(fit));
    let chosen = match listeners.len() {
        0 => None,
        1 => listeners.first(),
        n => {
            let chosen = listeners.iter().find_map(|listener| listener.port.options.select_reuseport(&[], n));
            listeners.get(chosen.unwrap_or_else(|| reuseport_hash(opening.from, opening.to, n)))
        }
    };
    let refused = match chosen {
        Some(listener) => listener.admit(opening),
        None => Some(opening),
    };
    if let Some(opening) = refused
        && let Some(initiator) = opening.initiator.upgrade()
    {
        tap::opening(opening.from, opening.to, false);
        initiator.failed(Errno::ECONNREFUSED);
    }
}

pub(super) struct Backlog {
    pub(super) waiting: VecDeque<Arc<TcpSocket>>,
    /// Those that are not accepted before data has come.
    pub(super) deferred: Vec<Arc<DeferredConnection>>,
    /// Those for whom there was no room yet.
    outside: VecDeque<ConnectRequest>,
    pub(super) most: usize,
}

impl TcpSocket {
    /// Takes a connection into the backlog, or lets it wait outside. Returns it if nobody listens.
    pub(super) fn admit(&self, opening: ConnectRequest) -> Option<ConnectRequest> {
        let initiator = opening.initiator.upgrade()?;
        let server = {
            let mut state = self.state.lock();
            let Some(backlog) = &mut state.backlog else { return Some(opening) };
            if backlog.waiting.len() > backlog.most {
                backlog.outside.push_back(opening);
                return None;
            }
            let server = self.serve(&opening);
            match self.deferral() {
                0 => backlog.waiting.push_back(server.clone()),
                seconds => {
                    let deferred = self.defer(&server, seconds);
                    backlog.deferred.push(deferred);
                }
            }
            server
        };
        self.port.readable.notify_of(Events::READABLE);
        tap::opening(opening.from, opening.to, true);
        // Last: whoever began it may send from here on, and close.
        initiator.established(server.port.clone());
        None
    }

    /// The server's side of a connection.
    pub(super) fn serve(&self, opening: &ConnectRequest) -> Arc<Self> {
        let common = InetSocket::new(self.common.family);
        common.options.inherit(&self.common.options);
        let port = Arc::new(TcpEndpoint::new(Arc::new(self.port.options.inherit())));
        let server = Self::with(common, port);
        server.set_patience(self.patience());
        server.connect_with(|| Connection { peer: opening.port.clone(), local: opening.to, remote: opening.from });
        server
    }

    /// Ends waiting for connections.
    pub(super) fn stop_listening(&self) {
        let backlog = {
            let mut state = self.state.lock();
            self.listens.store(false, Ordering::Release);
            state.backlog.take()
        };
        let Some(Backlog { waiting, deferred, outside, .. }) = backlog else { return };
        for socket in waiting.into_iter().chain(deferred.iter().map(|deferred| deferred.server.clone())) {
            if let Some(connection) = socket.connection.get() {
                socket.abort(connection);
            }
            socket.release();
        }
        for initiator in outside.iter().filter_map(|opening| opening.initiator.upgrade()) {
            initiator.failed(Errno::ECONNREFUSED);
        }
        self.port.shutdown(RCV_SHUTDOWN | SEND_SHUTDOWN);
    }

    /// What `listen(2)` does.
    pub(super) fn start_listening(&self, backlog: usize) -> Result<()> {
        let most = backlog.min(sysctl::SOMAXCONN.as_usize());
        let mut state = self.state.lock();
        if state.connecting.is_some() || self.connection.get().is_some() {
            return Err(Errno::EINVAL);
        }
        if let Some(backlog) = &mut state.backlog {
            backlog.most = most;
            return Ok(());
        }
        if state.place.is_none() {
            let scope = BindAddress::new(self.common.family.nowhere().ip(), self.common.only_v6());
            state.place = Some(self.place(scope, 0)?);
            state.bound = true;
        }
        self.listens.store(true, Ordering::Release);
        if !state.place.as_ref().is_some_and(|place| PORTS.can_listen(place, self.common.only_v6())) {
            self.listens.store(false, Ordering::Release);
            return Err(Errno::EADDRINUSE);
        }
        state.backlog = Some(Backlog { waiting: VecDeque::new(), deferred: Vec::new(), outside: VecDeque::new(), most });
        Ok(())
    }

    /// What `accept(2)` does.
    pub(super) fn take_connection(&self, wait: WaitPolicy) -> Result<Socket> {
        let attempt = || {
            let mut state = self.state.lock();
            let Some(backlog) = &mut state.backlog else { return Some(Err(Errno::EINVAL)) };
            let accepted = backlog.waiting.pop_front()?;
            Some(Ok((accepted, backlog.outside.pop_front())))
        };
        let (accepted, outside) = wait.wait_on(&self.port.readable, attempt)?;
        if let Some(initiator) = outside.and_then(|opening| self.admit(opening)).and_then(|o| o.initiator.upgrade()) {
            initiator.failed(Errno::ECONNREFUSED);
        }
        Ok(accepted.into_socket())
    }
}
