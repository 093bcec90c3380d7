//! A connection over interfaces: an engine of TCP between a socket's buffers and the host.
//!
//! Whoever has something for the connection works on it, in its own thread, with the connection's
//! lock: segments that are due go out before the lock is given back, so that they go in order. The
//! socket's observers are told without it.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use ::tcp::{Arrival, Buffers, Config, Connection, Ends, Error, Gone, Info, Seq, State};
use abi::errno::Errno;
use fs::Result;
use fs::poll::{Events, PollObserver};
use ip::Nanos;
use task::Mutex;

use super::super::Host;
use super::super::link::{LinkDevice, admission};
use super::super::send_queue::{Flow, QueuePlace, TURN};
use super::super::state::Work;
use super::table::Number;
use super::{Path, Unsent, headers_to};
use crate::inet::link_of;
use crate::inet::stack::InetStack;
use crate::inet::tcp::{
    ConnectRequest, ConnectionEnd, News, TcpBuffers, TcpEngine, TcpOptions, TcpState,
};
use crate::socket::memory::{BufferMemory, Transport};

/// Time after which sending is tried again when there was no memory for it.
const SHORTAGE: Nanos = 50 * ::tcp::MILLISECOND;

/// A connection over interfaces.
pub(in crate::inet::host) struct WireConnection {
    host: Weak<Host>,
    stack: Weak<InetStack>,
    ends: Ends,
    buffers: TcpBuffers,
    inner: Mutex<Inner>,
    /// The version of the host's interfaces by which segments are for this host, and the interface
    /// that they come by.
    admitted: AtomicU64,
    this: Weak<Self>,
}

struct Inner {
    engine: Connection,
    memory: EngineMemory,
    /// Number of the entry in the host's table; none before there is one, and when it is over.
    number: Option<Number>,
    /// Deadline that the table has: not later than the engine's.
    armed: Option<Nanos>,
    /// The one who has begun the connection, until it is told what has become of it.
    request: Option<ConnectRequest>,
    path: Path,
    /// Bytes of the longest segment.
    longest: usize,
    /// No program has the connection open.
    is_orphan: bool,
    /// The interface before which the connection waits for its turn; 0: none.
    waits_for: u32,
}

/// Memory that an engine has asked for.
struct EngineMemory {
    pages: BufferMemory,
    bytes: usize,
}

/// The buffers of a socket as the engine sees them.
struct SocketBuffers<'a> {
    buffers: &'a TcpBuffers,
    memory: &'a mut EngineMemory,
    news: &'a mut News,
    /// Whether bytes that the program has sent are not seen now.
    hides: bool,
}

impl Buffers for SocketBuffers<'_> {
    fn queued(&self) -> usize {
        if self.hides { 0 } else { self.buffers.queued() }
    }

    fn peek(&self, offset: usize, bytes: &mut [u8]) -> usize {
        self.buffers.peek(offset, bytes)
    }

    fn release(&mut self, count: usize) {
        self.buffers.release_quietly(count);
        self.news.space |= count > 0;
    }

    fn window(&self) -> usize {
        self.buffers.window()
    }

    fn deliver(&mut self, bytes: &[u8]) -> core::result::Result<usize, Gone> {
        match self.buffers.deliver_quietly(bytes) {
            Ok(count) => {
                self.news.data |= count > 0;
                Ok(count)
            }
            Err(Errno::EPIPE) => Err(Gone),
            // Memory is short: it is as if it had been lost on its way.
            Err(_) => Ok(0),
        }
    }

    fn urgent(&mut self, position: u64) {
        self.news.urgent |= self.buffers.mark_urgent(position);
    }

    fn deliver_end(&mut self) {
        self.buffers.deliver_end_quietly();
        self.news.end = true;
    }

    fn unread(&self) -> usize {
        self.buffers.unread()
    }

    fn charge(&mut self, bytes: usize) -> bool {
        let memory = &mut *self.memory;
        let granted = vm::has_kernel_room() && memory.pages.cover(memory.bytes, bytes) == bytes;
        if granted {
            memory.bytes += bytes;
        }
        granted
    }

    fn uncharge(&mut self, bytes: usize) {
        self.memory.bytes -= bytes;
        self.memory.pages.trim(self.memory.bytes);
    }
}

/// The state of a connection after something was done with it.
pub(super) struct After {
    /// News that are to be told yet, if what is due was left.
    pub(super) put_off: Option<News>,
    /// The connection is in the table.
    pub(super) is_open: bool,
}

/// News of a connection that is told when its lock has been given back.
enum Outcome {
    /// Nothing.
    Same,
    /// The connection is established.
    Established(ConnectRequest),
    /// The connection could not be made.
    Failed(ConnectRequest, Errno),
    /// The connection has ended with an error.
    Ended(Errno),
}

/// The error of a program that an engine's error means; none for what the program has done itself.
fn errno(error: Error) -> Option<Errno> {
    Some(match error {
        Error::Refused => Errno::ECONNREFUSED,
        Error::Reset => Errno::ECONNRESET,
        Error::TimedOut => Errno::ETIMEDOUT,
        Error::NetUnreachable => Errno::ENETUNREACH,
        Error::HostUnreachable => Errno::EHOSTUNREACH,
        Error::Aborted => return None,
    })
}

impl WireConnection {
    /// A connection of an engine that is made with `config`, which is in no table yet. `request`
    /// is of the socket that begins it, if one does.
    ///
    /// # Errors
    /// `ENOBUFS` if the kernel's memory is short, `ENOMEM`.
    pub(super) fn new(
        host: &Host,
        stack: &InetStack,
        ends: Ends,
        engine: impl FnOnce(Config) -> Connection,
        config: Config,
        request: Option<ConnectRequest>,
        path: Path,
    ) -> Result<Arc<Self>> {
        if !vm::has_kernel_room() {
            return Err(Errno::ENOBUFS);
        }
        let buffers = TcpBuffers::new(stack);
        if let Some(request) = &request {
            buffers.attach(request.end());
        }
        let memory = EngineMemory {
            pages: BufferMemory::of_protocol(stack.core.clone(), Transport::Tcp),
            bytes: 0,
        };
        let longest = config.mss.into();
        // The engine is made in its place: it is large.
        let connection = Arc::new_cyclic(|this| Self {
            host: host.this.clone(),
            stack: host.stack.get().cloned().unwrap_or_default(),
            ends,
            buffers,
            inner: Mutex::new(Inner {
                engine: engine(config),
                memory,
                number: None,
                armed: None,
                request,
                path,
                longest,
                is_orphan: false,
                waits_for: 0,
            }),
            admitted: AtomicU64::new(0),
            this: this.clone(),
        });
        let observer: Arc<dyn PollObserver> = connection.clone();
        connection.buffers.watch(&observer)?;
        Ok(connection)
    }

    /// The two ends.
    pub(super) fn ends(&self) -> &Ends {
        &self.ends
    }

    /// This end of the connection, for its socket.
    pub(super) fn end(self: Arc<Self>) -> ConnectionEnd {
        let engine: Arc<dyn TcpEngine> = self.clone();
        self.buffers.end(engine)
    }

    /// A segment that has come by an interface is for this host, by interfaces of a version; 0: by
    /// none.
    pub(super) fn admit(&self, version: u64, interface: u32) {
        let admitted = admission(version, interface);
        if self.admitted.load(Ordering::Relaxed) != admitted {
            self.admitted.store(admitted, Ordering::Relaxed);
        }
    }

    /// Whether segments that come by an interface are for this host by interfaces of a version, as
    /// far as [`Self::admit`] has told.
    pub(super) fn is_admitted(&self, version: u64, interface: u32) -> bool {
        version != 0 && self.admitted.load(Ordering::Relaxed) == admission(version, interface)
    }

    /// The connection's socket is known.
    pub(super) fn attach(&self, socket: &ConnectionEnd) {
        self.buffers.attach(socket);
    }

    /// The connection is in the host's table under a number, or not any more.
    pub(super) fn set_number(&self, number: Option<Number>) {
        self.inner.lock().number = number;
    }

    /// The connection as lists tell of it, if no program has it open: the state, and the bytes that
    /// wait to be sent and were sent.
    pub(super) fn orphan(&self) -> Option<(TcpState, usize)> {
        let inner = self.inner.lock();
        let state = inner.engine.state().into();
        inner.is_orphan.then(|| (state, self.buffers.queued()))
    }

    /// Takes a segment of the peer.
    pub(super) fn arrive(&self, arrival: &Arrival<'_>) {
        self.work(|engine, buffers, now| engine.arrive(now, arrival, buffers));
    }

    /// Sends what is due, if anything is.
    pub(super) fn send_due(&self) {
        self.work(|_, _, _| ());
    }

    /// A deadline has come.
    pub(super) fn on_deadline(&self) {
        self.inner.lock().armed = None;
        self.send_due();
    }

    /// Takes an error of ICMP about the segment that began with `quoted`. Returns whether such a
    /// segment is under way.
    pub(super) fn icmp_error(&self, quoted: Seq, error: Error) -> bool {
        self.work(|engine, _, _| engine.icmp_error(quoted, error)) == Some(true)
    }

    /// Takes what ICMP says of the path, as [`Self::icmp_error`].
    pub(super) fn path_limit(&self, quoted: Seq, mtu: u16) -> bool {
        let mss = mtu.saturating_sub(headers_to(self.ends.remote));
        self.work(|engine, _, now| engine.path_limit(now, quoted, mss)) == Some(true)
    }

    /// Ends the connection as a reset of the peer's does.
    pub(super) fn lose(&self) {
        self.work(|engine, _, _| engine.lose());
    }

    /// Does something with the engine, then whatever is due. `None` if the connection is over.
    fn work<R>(
        &self,
        f: impl FnOnce(&mut Connection, &mut SocketBuffers<'_>, Nanos) -> R,
    ) -> Option<R> {
        self.work_in_turn(None, f)
    }

    /// Does something with the engine, as [`Self::work`], in a turn that the card `turn` has given
    /// the connection, if one has.
    fn work_in_turn<R>(
        &self,
        turn: Option<&LinkDevice>,
        f: impl FnOnce(&mut Connection, &mut SocketBuffers<'_>, Nanos) -> R,
    ) -> Option<R> {
        let mut result = None;
        self.work_behind(News::default(), turn, |engine, buffers, now| {
            result = Some(f(engine, buffers, now));
            false
        })?;
        result
    }

    /// Takes a segment behind others of the same burst, of which `earlier` has not been told. If it
    /// brings the next bytes only, the rest may wait for the next one where `may_wait`. `None` if
    /// the connection is over.
    pub(super) fn arrive_behind(
        &self,
        earlier: News,
        arrival: &Arrival<'_>,
        may_wait: bool,
    ) -> Option<After> {
        let segment = &arrival.segment;
        self.work_behind(earlier, None, |engine, buffers, now| {
            let continues = may_wait && !arrival.congested && engine.continues(segment);
            engine.arrive(now, arrival, buffers);
            continues && engine.expects(segment.header.seq.plus(segment.payload.len() as u32))
        })
    }

    /// Sends what is due, and tells what has happened, after segments with which that waited.
    pub(super) fn send_behind(&self, earlier: News) {
        self.work_behind(earlier, None, |_, _, _| false);
    }

    /// Does something with the engine, as [`Self::work_in_turn`]. Where `f` says so, what is due is
    /// left for the next time, with the news.
    fn work_behind(
        &self,
        earlier: News,
        turn: Option<&LinkDevice>,
        f: impl FnOnce(&mut Connection, &mut SocketBuffers<'_>, Nanos) -> bool,
    ) -> Option<After> {
        let host = self.host.upgrade()?;
        let (mut news, mut work) = (earlier, Work::default());
        let (is_open, outcome) = {
            let mut inner = self.inner.lock();
            // Not before: of two threads that wait for the lock the first one may have the later
            // time, and what the other sends would look as if it had been under way for longer.
            let now = host.now();
            if turn.is_some_and(|card| card.index == inner.waits_for) {
                inner.waits_for = 0;
            }
            inner.number?;
            let before = inner.engine.state();
            let repairs = inner.engine.repairs();
            let Inner { engine, memory, .. } = &mut *inner;
            let mut buffers = SocketBuffers {
                buffers: &self.buffers,
                memory,
                news: &mut news,
                hides: false,
            };
            let may_wait = f(engine, &mut buffers, now);
            if may_wait && engine.state() == before && engine.repairs() == repairs {
                return Some(After {
                    put_off: Some(news),
                    is_open: true,
                });
            }
            let is_short = self.send(&host, &mut inner, now, turn, (&mut news, &mut work));
            let counts = &host.tcp.counts;
            counts.count_repairs(repairs, inner.engine.repairs());
            counts.count_end(before, inner.engine.state());
            // Who lingers waits for a state.
            news.end |= before != inner.engine.state();
            let outcome = self.settle(&host, &mut inner, now, is_short);
            (inner.number.is_some(), outcome)
        };
        host.finish(work);
        match outcome {
            Outcome::Same => {}
            Outcome::Established(request) => match (request.initiator(), self.this.upgrade()) {
                (Some(initiator), Some(this)) => initiator.connect_established(this.end()),
                _ => self.abort(),
            },
            Outcome::Failed(request, error) => {
                if let Some(initiator) = request.initiator() {
                    initiator.connect_failed(error);
                }
            }
            Outcome::Ended(error) => self.buffers.fail(error),
        }
        self.buffers.notify(news);
        Some(After {
            put_off: None,
            is_open,
        })
    }

    /// Sends the segments that are due, as far as the card has room for them: for the rest the
    /// connection waits for its turn. Returns whether some could not be sent for want of memory.
    fn send(
        &self,
        host: &Host,
        inner: &mut Inner,
        now: Nanos,
        turn: Option<&LinkDevice>,
        (news, work): (&mut News, &mut Work),
    ) -> bool {
        let (queued, urgent_end) = self.buffers.outgoing();
        let has_data = queued > 0;
        if let Some(end) = urgent_end {
            inner.engine.mark_urgent(end);
        }
        let mut room = Vec::new();
        // Segments that are sent though the card is busy: those of a turn; or one, if the time for
        // something has come: timers run when a segment is asked for, and the next deadline is
        // later then.
        let mut allowed = None;
        // In its turn a segment goes before what waits. One that the tables have to send goes
        // behind it, and so do the rest of the turn then, which must not overtake it.
        let mut is_direct = turn.is_some();
        loop {
            let (busy, is_known) = self.busy_card(host, inner.path, now);
            is_direct &= is_known;
            if let Some(card) = &busy {
                let left = *allowed.get_or_insert_with(|| match turn {
                    Some(_) => TURN,
                    None => usize::from(inner.engine.deadline().is_some_and(|due| due <= now)),
                });
                // One that has ended has no other time to say so.
                let has_ended = matches!(inner.engine.state(), State::Closed | State::TimeWait);
                if left == 0 && !has_ended && self.wait_for(card, inner, is_direct) {
                    return false;
                }
                allowed = Some(left.saturating_sub(1));
            }
            if has_data && room.is_empty() {
                match fallible::zeroed(inner.longest) {
                    Ok(zeros) => room = zeros,
                    Err(_) => return true,
                }
            }
            // A FIN takes no room, and a segment without any is none.
            let mut least = [0];
            let payload = if has_data { &mut room[..] } else { &mut least };
            let mut path = inner.path;
            if let (Some(card), Some(own)) = (&busy, turn)
                && card.index == own.index
                && is_direct
            {
                path.place = QueuePlace::Turn;
            }
            let Inner { engine, memory, .. } = &mut *inner;
            let mut buffers = SocketBuffers {
                buffers: &self.buffers,
                memory,
                news,
                // What is sent just now: who sends it comes here, too.
                hides: !has_data,
            };
            let Some(outgoing) = engine.next(now, &mut buffers, payload) else {
                return false;
            };
            let data = &payload[..outgoing.payload];
            let mark = u8::from(outgoing.ecn_capable) * super::ECT0;
            path.tos |= mark;
            path.traffic_class |= mark;
            let sent = host.send_segment(&self.ends, path, &outgoing.header, data, work);
            match sent {
                Ok(()) => {}
                Err(Unsent::TooLong(mtu)) => {
                    engine.path_limit(
                        now,
                        outgoing.header.seq,
                        mtu.saturating_sub(headers_to(self.ends.remote)),
                    );
                }
                Err(Unsent::Refused) => engine.lose(),
            }
        }
    }

    /// The card by which segments go, if something waits before it, and whether the way is known:
    /// if not, it is taken for that by which the peer's segments come.
    fn busy_card(&self, host: &Host, path: Path, now: Nanos) -> (Option<Arc<LinkDevice>>, bool) {
        if !host.has_busy_card() {
            return (None, true);
        }
        let to = self.ends.remote;
        let way = host.way(now, to.ip(), link_of(to, path.via));
        let is_known = way.is_some();
        let card = match way {
            Some(way) => Some(way.card.clone()),
            None => host.view().and_then(|view| {
                let index = self.admitted.load(Ordering::Relaxed) as u32 & 0xff_ffff;
                view.get(index).map(|seen| seen.card.clone())
            }),
        };
        (card.filter(|card| card.queue.is_busy()), is_known)
    }

    /// Has the connection wait for its turn before a card. `false`: the card is not busy any more,
    /// or there is no memory to remember who waits.
    fn wait_for(&self, card: &LinkDevice, inner: &mut Inner, had_turn: bool) -> bool {
        if inner.waits_for == card.index {
            return true;
        }
        let waits = card.wait(self.this.clone(), had_turn);
        if waits {
            inner.waits_for = card.index;
        }
        waits
    }

    /// Sees to what follows from the engine's state: the table's entry, its deadline, the buffers'
    /// sizes.
    fn settle(&self, host: &Host, inner: &mut Inner, now: Nanos, is_short: bool) -> Outcome {
        let state = inner.engine.state();
        if let Some(rest) = inner.engine.time_wait() {
            self.leave(host, inner);
            host.tcp.wait(&self.stack, inner.number.take(), rest);
            return Outcome::Same;
        }
        if state == State::Closed {
            self.leave(host, inner);
            host.tcp.remove(inner.number.take());
            let error = inner.engine.error().and_then(errno);
            return match (inner.request.take(), error) {
                (Some(request), error) => {
                    Outcome::Failed(request, error.unwrap_or(Errno::ECONNABORTED))
                }
                (None, Some(error)) => Outcome::Ended(error),
                (None, None) => Outcome::Same,
            };
        }
        let due = inner.engine.deadline();
        let due = match is_short {
            true => Some(due.map_or(now + SHORTAGE, |due| due.min(now + SHORTAGE))),
            false => due,
        };
        if let Some(due) = due
            && inner.armed.is_none_or(|armed| due < armed)
        {
            inner.armed = Some(due);
            host.tcp.set_deadline(inner.number, due);
            host.wake_by(Some(due));
        }
        if state.is_synchronized() {
            self.adjust_buffers(inner);
            if let Some(request) = inner.request.take() {
                return Outcome::Established(request);
            }
        }
        Outcome::Same
    }

    /// The connection is about to be over.
    fn leave(&self, host: &Host, inner: &mut Inner) {
        if core::mem::take(&mut inner.is_orphan) {
            host.tcp.release_orphan();
        }
    }

    /// Makes the socket's buffers as large as the engine wants them, within limits.
    fn adjust_buffers(&self, inner: &Inner) {
        let (Some(options), Some(stack)) = (self.buffers.socket_options(), self.stack.upgrade())
        else {
            return;
        };
        if stack.core.memory(Transport::Tcp).is_under_pressure() {
            return;
        }
        let space = inner.engine.space();
        let sysctls = &stack.core.sysctls;
        let limited = |wanted: u64, most: usize| {
            usize::try_from(wanted).map_or(most, |wanted| wanted.min(most))
        };
        options.grow_send_buffer(limited(space.send, sysctls.tcp_wmem.limits()[2]));
        if sysctls.tcp_moderate_rcvbuf.as_usize() != 0 {
            options.grow_receive_buffer(limited(space.receive, sysctls.tcp_rmem.limits()[2]));
        }
    }

    /// Runs `f` with the engine, of a connection that may be over.
    fn look<R>(&self, f: impl FnOnce(&mut Connection, &SocketBuffers<'_>) -> R) -> R {
        let mut inner = self.inner.lock();
        let Inner { engine, memory, .. } = &mut *inner;
        let buffers = SocketBuffers {
            buffers: &self.buffers,
            memory,
            news: &mut News::default(),
            hides: false,
        };
        f(engine, &buffers)
    }
}

impl PollObserver for WireConnection {
    fn on_event(self: Arc<Self>, _: Events) {
        self.send_due();
    }
}

impl Flow for WireConnection {
    fn take_turn(&self, card: &LinkDevice) {
        self.work_in_turn(Some(card), |_, _, _| ());
    }
}

impl TcpEngine for WireConnection {
    fn shutdown(&self) {
        self.work(|engine, _, _| engine.shutdown());
    }

    fn abort(&self) {
        self.work(|engine, _, _| engine.abort());
    }

    fn close(&self) {
        let Some(host) = self.host.upgrade() else {
            return;
        };
        let may_stay = {
            let mut inner = self.inner.lock();
            if inner.number.is_none() {
                return;
            }
            inner.is_orphan = true;
            host.tcp.add_orphan(&self.stack)
        };
        self.work(|engine, _, now| {
            if may_stay {
                engine.release(now);
            } else {
                engine.abort();
            }
        });
    }

    fn state(&self) -> TcpState {
        let inner = self.inner.lock();
        match inner.number {
            Some(_) => inner.engine.state().into(),
            None => TcpState::Close,
        }
    }

    fn set_options(&self, options: &TcpOptions) {
        self.inner.lock().path = Path::of(options);
        self.work(|engine, _, _| options.apply(engine));
    }

    fn info(&self) -> Option<Info> {
        let state = self.state();
        Some(self.look(|engine, _| Info {
            state: if state == TcpState::Close {
                State::Closed
            } else {
                engine.state()
            },
            ..engine.info()
        }))
    }

    fn now(&self) -> Nanos {
        self.host.upgrade().map_or(0, |host| host.now())
    }

    fn not_sent(&self) -> usize {
        self.look(|engine, buffers| engine.not_sent(buffers)) as usize
    }
}
