//! TCP sockets: connections are pairs of ports ([`crate::stream`]).

mod connect;
mod listen;

pub use connect::{Initiator, Opening};
pub use listen::arrive;

use super::table::{Bound, Place, Scope, Sharing, Table};
use super::{Common, Family};
use crate::port::{self, ENDED, RECEIVING, SENDING};
use crate::stream::{Pair, Stream};
use crate::{Address, Caller, Flags, Incoming, Kind, Options, Outgoing, Protocol, Socket, Wait};
use abi::errno::Errno;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::net::SocketAddr;
use core::sync::atomic::{AtomicBool, Ordering};
use fs::poll::{Events, PollTable};
use fs::{File, FileOps, Result};
use linux_raw_sys::net;
use listen::Backlog;
use task::{Mutex, Once};

/// What buffers hold unless somebody says otherwise, bytes (the middle values of `net.ipv4.tcp_wmem` and `tcp_rmem`).
const SEND_BUFFER: usize = 87_040;
const RECEIVE_BUFFER: usize = 131_072;

/// One side of a connection: where it receives.
pub(super) type Port = port::Port<Stream>;

pub(super) static PORTS: Table<Tcp> = Table::new();

/// Own and other address of every connection that was begun here: no two are the same.
static BEGUN: Mutex<BTreeSet<(SocketAddr, SocketAddr)>> = Mutex::new(BTreeSet::new());

/// Every socket, for listings.
pub(super) static ALL: Mutex<BTreeMap<u64, Weak<Tcp>>> = Mutex::new(BTreeMap::new());

#[derive(Default)]
struct State {
    place: Option<Place<Tcp>>,
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
    peer: Arc<Port>,
    local: SocketAddr,
    remote: SocketAddr,
}

/// A socket.
pub struct Tcp {
    pub(super) common: Common,
    pub(super) port: Arc<Port>,
    connection: Once<Connection>,
    state: Mutex<State>,
    /// As `state.backlog.is_some()`, for those who must not lock.
    listens: AtomicBool,
    this: Weak<Tcp>,
}

impl Bound for Tcp {
    fn sharing(&self) -> Sharing {
        let options = &self.port.options;
        Sharing {
            address: options.switch(net::SO_REUSEADDR),
            listens: self.listens(),
            port: options.switch(net::SO_REUSEPORT).then_some(self.common.uid),
        }
    }
}

impl Tcp {
    fn with(common: Common, port: Arc<Port>) -> Arc<Self> {
        let id = common.id;
        let socket = Arc::new_cyclic(|this| Self {
            common,
            port,
            connection: Once::new(),
            state: Mutex::default(),
            listens: AtomicBool::new(false),
            this: this.clone(),
        });
        ALL.lock().insert(id, Arc::downgrade(&socket));
        socket
    }

    pub(super) fn new(family: Family) -> Arc<Self> {
        let options = Arc::new(Options::with_buffers(SEND_BUFFER, RECEIVE_BUFFER));
        Self::with(Common::new(family), Arc::new(Port::new(options)))
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
        match (self.port.is_shut(SENDING), self.port.is_shut(ENDED)) {
            (false, false) => ESTABLISHED,
            (true, false) => FIN_WAIT2,
            (false, true) => CLOSE_WAIT,
            (true, true) => CLOSE,
        }
    }

    fn place(&self, scope: Scope, port: u16) -> Result<Place<Self>> {
        PORTS.bind(&self.this.upgrade().ok_or(Errno::EINVAL)?, scope, port)
    }

    /// The connection; if one is being made, it is waited for.
    ///
    /// # Errors
    /// As [`Wait::at`]; `ENOTCONN`, or why there is none.
    fn connected(&self, wait: Wait) -> Result<&Connection> {
        if self.connection.get().is_none() {
            wait.at(&self.port.writable, || self.state.lock().connecting.is_none().then_some(Ok(())))?;
        }
        self.connection.get().ok_or_else(|| self.port.take_error().unwrap_or(Errno::ENOTCONN))
    }

    /// The connection of a call that receives. Where there is none there is no urgent byte, either.
    fn receiving(&self, flags: Flags, wait: Wait) -> Result<&Connection> {
        let urgent = flags.contains(Flags::OOB) && !self.listens();
        let wait = Wait { nonblocking: wait.nonblocking || urgent, ..wait };
        self.connected(wait).map_err(|error| if urgent { Errno::EINVAL } else { error })
    }

    fn pair<'a>(&'a self, connection: &'a Connection) -> Pair<'a, Stream> {
        // The bytes wait in two buffers, the sender's and the receiver's.
        let limit = self.port.options.send_buffer() + connection.peer.options.receive_buffer();
        Pair { own: &self.port, peer: &connection.peer, limit }
    }

    fn pause(&self, file: &File, sends: bool) -> Wait {
        let options = &self.port.options;
        let timeout = if sends { options.send_timeout() } else { options.receive_timeout() };
        Wait { nonblocking: file.nonblocking(), timeout }
    }

    fn take_in(&self, buf: &mut [u8], flags: Flags, wait: Wait) -> Result<Incoming> {
        let connection = self.receiving(flags, wait)?;
        after_end(self.pair(connection).receive(buf, flags, false, wait), Incoming::default())
    }

    /// Ends the connection with a reset.
    fn abort(&self, connection: &Connection) {
        reset(&connection.peer);
        self.port.shut(RECEIVING | SENDING | ENDED);
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
            let old = core::mem::replace(&mut *queue, Stream { closed: true, ..Stream::default() });
            !old.bytes.is_empty()
        };
        let Some(connection) = self.connection.get() else { return };
        if unread || self.port.options.linger() == (true, 0) {
            self.abort(connection);
        } else {
            self.port.shut(RECEIVING | SENDING);
            connection.peer.shut(RECEIVING | ENDED);
        }
    }
}

/// The peer has reset the connection of `port`.
fn reset(port: &Port) {
    // One whose peer has said already that there is no more can only be told that it cannot send.
    if !port.is_shut(SENDING | ENDED) {
        port.set_error(if port.is_shut(ENDED) { Errno::EPIPE } else { Errno::ECONNRESET });
    }
    port.shut(RECEIVING | SENDING | ENDED);
}

/// A reset that came after the end of the stream is none for who receives.
fn after_end<R>(result: Result<R>, end: R) -> Result<R> {
    match result {
        Err(Errno::EPIPE) => Ok(end),
        result => result,
    }
}

impl FileOps for Tcp {
    fn read(&self, file: &File, buf: &mut [u8]) -> Result<usize> {
        let wait = self.pause(file, false);
        if self.port.options.receive_least() <= 1
            && let Some(n) = self.pair(self.connected(wait)?).receive_plain(buf, wait)?
        {
            return Ok(n);
        }
        self.take_in(buf, Flags::empty(), wait).map(|incoming| incoming.copied)
    }

    fn write(&self, file: &File, buf: &[u8]) -> Result<usize> {
        if let Some(connection) = self.connection.get()
            && let Some(n) = self.pair(connection).send_plain(buf)
        {
            return Ok(n);
        }
        self.send(Outgoing::plain(buf), Flags::empty(), self.pause(file, true))
    }

    fn poll(&self, _: &File, table: Option<&mut PollTable>) -> Events {
        if let Some(table) = table {
            table.watch(&self.port.readable);
            table.watch(&self.port.writable);
        }
        if self.listens() {
            let any = self.backlog().is_some_and(|(waiting, _)| waiting > 0);
            return if any { Events::READABLE } else { Events::empty() };
        }
        let writable = Events::WRITABLE | Events::WRBAND;
        let failed = self.port.failed();
        let mut events = if failed { Events::ERR } else { Events::empty() };
        let Some(connection) = self.connection.get() else {
            if self.state.lock().connecting.is_some() {
                return events;
            }
            events.set(Events::READABLE | Events::RDHUP, failed || self.port.is_shut(RECEIVING));
            return events | Events::HUP | writable;
        };
        let shut = |what| self.port.is_shut(what);
        events.set(Events::HUP, shut(RECEIVING | SENDING));
        let least = self.port.options.receive_least();
        let (news, urgent) = {
            let queue = self.port.queue.lock();
            let hole = if queue.urgent.is_some() { queue.hole(self.port.inline()) } else { 0 };
            (queue.bytes.len() >= least + hole, queue.has_urgent())
        };
        events.set(Events::PRI, urgent);
        events.set(Events::READABLE | Events::RDHUP, shut(RECEIVING));
        events.set(Events::READABLE, shut(RECEIVING) || news);
        // As Linux does, so that whoever is told can write more than a little.
        let room = connection.peer.queue.lock().charge * 3 <= self.pair(connection).limit * 2;
        events.set(writable, room || shut(SENDING));
        events
    }

    fn closed(&self, _: &File) {
        self.release();
    }
}

impl Protocol for Tcp {
    fn family(&self) -> u32 {
        self.common.family.number()
    }

    fn kind(&self) -> Kind {
        Kind::Stream
    }

    fn number(&self) -> i32 {
        net::IPPROTO_TCP as i32
    }

    fn listening(&self) -> bool {
        self.listens()
    }

    fn bind(&self, caller: &Caller<'_>, address: &Address) -> Result<()> {
        let meant = self.common.bindable(caller, address)?;
        let mut state = self.state.lock();
        if state.place.is_some() || self.connection.get().is_some() {
            return Err(Errno::EINVAL);
        }
        state.place = Some(self.place(Scope::new(meant.ip(), self.common.only_v6()), meant.port())?);
        state.bound = true;
        Ok(())
    }

    fn connect(&self, _: &Caller<'_>, address: &Address, wait: Wait) -> Result<()> {
        self.connect_to(address, wait)
    }

    fn listen(&self, backlog: usize) -> Result<()> {
        self.start_listening(backlog)
    }

    fn accept(&self, wait: Wait) -> Result<Socket> {
        self.take_connection(wait)
    }

    fn local(&self) -> Address {
        self.common.shown(self.addresses().0)
    }

    fn peer(&self) -> Result<Address> {
        let connection = self.connection.get().ok_or(Errno::ENOTCONN)?;
        if self.port.is_shut(SENDING | ENDED) {
            return Err(Errno::ENOTCONN);
        }
        Ok(self.common.shown(connection.remote))
    }

    fn shutdown(&self, receiving: bool, sending: bool) -> Result<()> {
        if self.listens() {
            if receiving {
                self.stop_listening();
            }
            return Ok(());
        }
        let connection = self.connection.get().ok_or(Errno::ENOTCONN)?;
        if self.port.is_shut(SENDING | ENDED) {
            return Err(Errno::ENOTCONN);
        }
        self.port.shut((u8::from(receiving) * RECEIVING) | (u8::from(sending) * SENDING));
        if sending {
            connection.peer.shut(RECEIVING | ENDED);
        }
        Ok(())
    }

    fn send(&self, message: Outgoing<'_>, flags: Flags, wait: Wait) -> Result<usize> {
        // Linux does not tell one that never was connected from one that is no more.
        let connection = self.connected(wait).map_err(|e| if e == Errno::ENOTCONN { Errno::EPIPE } else { e })?;
        let len = message.data.len();
        match self.pair(connection).send(Outgoing { to: None, ..message }, None, flags, wait) {
            Err(Errno::EPIPE) if !self.port.is_shut(SENDING) => {
                // The peer is gone. That is learnt from its answer to what is sent now.
                reset(&self.port);
                Ok(len)
            }
            result => result,
        }
    }

    fn receive(&self, buf: &mut [u8], flags: Flags, wait: Wait) -> Result<Incoming> {
        self.take_in(buf, flags, wait)
    }

    fn receive_owned(&self, limit: usize, flags: Flags, wait: Wait) -> Result<(Vec<u8>, Incoming)> {
        let pair = self.pair(self.receiving(flags, wait)?);
        after_end(pair.receive_owned(limit, flags, false, wait), (Vec::new(), Incoming::default()))
    }

    fn take_error(&self) -> Option<Errno> {
        self.port.take_error()
    }

    fn queued(&self, incoming: bool) -> usize {
        match self.connection.get() {
            _ if incoming => self.port.queue.lock().ready(self.port.inline()),
            // What fits into the receiver's buffer has been acknowledged.
            Some(Connection { peer, .. }) => peer.queue.lock().charge.saturating_sub(peer.options.receive_buffer()),
            None => 0,
        }
    }

    fn at_mark(&self) -> Result<bool> {
        Ok(self.port.queue.lock().at_mark())
    }

    fn opened(&self, file: &Arc<File>) {
        self.common.opened(file);
        self.port.opened(file);
    }

    fn option(&self, level: u32, option: u32) -> Result<Vec<u8>> {
        super::options::get(&self.common, Some(self), level, option)
    }

    fn set_option(&self, level: u32, option: u32, value: &[u8]) -> Result<()> {
        let bound = self.state.lock().place.is_some();
        super::options::set(&self.common, true, bound, level, option, value)
    }
}
