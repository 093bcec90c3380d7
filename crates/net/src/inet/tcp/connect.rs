//! Beginning a connection, and what becomes of it.

use alloc::sync::{Arc, Weak};
use core::net::{IpAddr, SocketAddr};

use abi::errno::Errno;
use fs::Result;

use super::{Connection, ConnectionEnd, State, TcpEngine, TcpOptions, TcpSocket};
use crate::inet::bind_table::{BindAddress, PortBinding};
use crate::{Address, WaitPolicy};

/// The one who began a connection, and hears what becomes of it.
pub trait Initiator: Send + Sync {
    /// Tells of the engine that makes the connection, which can be told that it is not wanted any
    /// more.
    fn connect_began(&self, engine: Arc<dyn TcpEngine>) {
        let _ = engine;
    }

    /// Tells that the connection is established; what it sends goes to `peer`.
    fn connect_established(&self, peer: ConnectionEnd);

    /// Tells that the connection failed.
    fn connect_failed(&self, error: Errno);
}

/// A connection that is being made.
pub struct ConnectRequest {
    /// The address of the one who began it.
    pub from: SocketAddr,
    /// The address it is to.
    pub to: SocketAddr,
    end: ConnectionEnd,
    initiator: Weak<dyn Initiator>,
    options: TcpOptions,
}

impl ConnectRequest {
    /// A connection that `initiator` begins, whose end of it is `end`.
    #[must_use]
    pub fn new(
        from: SocketAddr,
        to: SocketAddr,
        end: ConnectionEnd,
        initiator: Weak<dyn Initiator>,
    ) -> Self {
        Self {
            from,
            to,
            end,
            initiator,
            options: TcpOptions::default(),
        }
    }

    /// Options of the socket of the one who began it.
    #[must_use]
    pub fn options(&self) -> &TcpOptions {
        &self.options
    }

    /// The end of the one who began it.
    #[must_use]
    pub fn end(&self) -> &ConnectionEnd {
        &self.end
    }

    /// The one who began it; `None` if it is gone.
    #[must_use]
    pub fn initiator(&self) -> Option<Arc<dyn Initiator>> {
        self.initiator.upgrade()
    }
}

impl Initiator for TcpSocket {
    fn connect_began(&self, engine: Arc<dyn TcpEngine>) {
        let mut state = self.state.lock();
        if state.connecting.is_some() {
            state.connecting_engine = Some(engine);
            return;
        }
        // It was closed in the meantime.
        drop(state);
        engine.abort();
    }

    fn connect_established(&self, peer: ConnectionEnd) {
        {
            let mut state = self.state.lock();
            state.connecting_engine = None;
            let local = state.binding.as_ref().map(|binding| binding.address);
            match (state.connecting.take(), local) {
                (Some(remote), Some(local)) => {
                    self.set_connection(Connection {
                        peer,
                        local,
                        remote,
                    });
                }
                // It was closed in the meantime.
                _ => {
                    drop(state);
                    return peer.with_engine(&self.endpoint, |engine| engine.abort());
                }
            }
        }
        self.endpoint.notify_all();
    }

    fn connect_failed(&self, error: Errno) {
        self.endpoint.set_error(error);
        let old = {
            let mut state = self.state.lock();
            state.connecting = None;
            let engine = state.connecting_engine.take();
            (self.release_connect_state(&mut state), engine)
        };
        drop(old);
        self.endpoint.notify_all();
    }
}

impl TcpSocket {
    /// Gives back what connecting has taken: also the address of a route, if the socket was bound
    /// to any. What is returned is dropped without the lock.
    pub(super) fn release_connect_state(&self, state: &mut State) -> Option<PortBinding<Self>> {
        if let Some(begun) = state.active_connection.take() {
            self.tables().active_connections.lock().remove(&begun);
        }
        if !state.port_locked {
            return state.binding.take();
        }
        if let (Some(any), Some(binding)) = (state.any_address, &mut state.binding) {
            self.tables().bind_table.set_address(binding, any);
        }
        None
    }

    /// The socket's end of a connection over the loop.
    pub(super) fn end(&self) -> ConnectionEnd {
        ConnectionEnd::loopback(self.endpoint.clone())
    }

    /// Begins a connection.
    pub(super) fn start_connect(&self, to: SocketAddr) -> Result<()> {
        let stack = self.common.stack();
        let route = stack.route_for(&self.endpoint.options, to)?;
        let from = {
            let mut state = self.state.lock();
            if state.backlog.is_some()
                || state.connecting.is_some()
                || self.connection.load().is_some()
            {
                return Err(Errno::EISCONN);
            }
            let address = match &mut state.binding {
                Some(binding) => {
                    let ip = binding.address.ip();
                    if !ip.is_unspecified() && ip.is_ipv4() != to.is_ipv4() {
                        return Err(Errno::ENETUNREACH);
                    }
                    if ip.is_unspecified() {
                        self.tables()
                            .bind_table
                            .set_address(binding, BindAddress::connected(route.source));
                    }
                    binding.address
                }
                none => none.insert(self.bind_free_port(route.source, to)?).address,
            };
            if !stack.network.can_connect(address, to) {
                return Err(Errno::EADDRNOTAVAIL);
            }
            let active = &self.tables().active_connections;
            if !active.lock().insert((address, to)) {
                return Err(Errno::EADDRNOTAVAIL);
            }
            state.active_connection = Some((address, to));
            state.connecting = Some(to);
            state.result_pending = true;
            address
        };
        let mut request = ConnectRequest::new(from, to, self.end(), self.this.clone());
        if stack.network.leaves(to, &route) {
            request.options = self.engine_options();
        }
        stack.network.connect(stack, request);
        Ok(())
    }

    /// Binds a port that nobody has, and from which a connection can be made.
    ///
    /// # Errors
    /// Those of binding; `EADDRNOTAVAIL` if from none of the ports it can.
    fn bind_free_port(&self, source: IpAddr, to: SocketAddr) -> Result<PortBinding<Self>> {
        let stack = self.common.stack();
        let [first, last] = stack.core.sysctls.ip_local_port_range.range();
        for _ in first..=last {
            let binding = self.bind_port(BindAddress::connected(source), 0)?;
            if stack.network.can_connect(binding.address, to) {
                return Ok(binding);
            }
        }
        Err(Errno::EADDRNOTAVAIL)
    }

    /// The result of the connection that was begun; `None`: not known yet.
    pub(super) fn connect_result(&self) -> Option<Result<()>> {
        let mut state = self.state.lock();
        if state.connecting.is_some() {
            return None;
        }
        if !core::mem::take(&mut state.result_pending) {
            return Some(Err(if self.connection.load().is_some() {
                Errno::EISCONN
            } else {
                Errno::ECONNABORTED
            }));
        }
        Some(match self.connection.load() {
            Some(_) => Ok(()),
            None => Err(self.endpoint.take_error().unwrap_or(Errno::ECONNABORTED)),
        })
    }

    /// Connects as `sendto(2)` does with `MSG_FASTOPEN`. No peer ever gave a cookie, without which
    /// Linux, too, sends nothing before the connection is there.
    pub(super) fn connect_by_message(
        &self,
        address: Option<&Address>,
        wait: WaitPolicy,
    ) -> Result<()> {
        /// Bit of `tcp_fastopen` that lets programs begin connections so.
        const CLIENT: usize = 1;
        let enabled = self.common.stack().core.sysctls.tcp_fastopen.as_usize() & CLIENT != 0;
        if !enabled || address == Some(&Address::Unspec) {
            return Err(Errno::EOPNOTSUPP);
        }
        match address {
            Some(address) => self.connect_to(address, wait),
            None if self.connection.load().is_some() => Err(Errno::EISCONN),
            None => Err(Errno::EINVAL),
        }
    }

    /// Connects as `connect(2)` does.
    pub(super) fn connect_to(&self, address: &Address, wait: WaitPolicy) -> Result<()> {
        if *address == Address::Unspec {
            self.disconnect();
            return Ok(());
        }
        let (began, unreported, listens) = {
            let state = self.state.lock();
            (
                state.connecting.is_some(),
                state.result_pending,
                state.backlog.is_some(),
            )
        };
        if !unreported {
            // Where it is to go is looked at only if it can go anywhere.
            if listens || self.connection.load().is_some() {
                return Err(Errno::EISCONN);
            }
            let to = self.common.destination(address)?;
            if to.ip().is_multicast() {
                return Err(Errno::ENETUNREACH);
            }
            let to = self.common.peer_on_link(&self.endpoint.options, to)?;
            self.start_connect(to)?;
            // As on Linux, the answer is never there at once.
            if wait.nonblocking {
                return Err(Errno::EINPROGRESS);
            }
        } else if began && wait.nonblocking {
            return Err(Errno::EALREADY);
        }
        match wait.wait_on(&self.endpoint.writable, || self.connect_result()) {
            Err(Errno::EAGAIN) => Err(Errno::EINPROGRESS),
            result => result,
        }
    }
}
