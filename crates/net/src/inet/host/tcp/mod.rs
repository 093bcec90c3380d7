//! TCP over interfaces: the table of what segments can be for, and the ways into it and out of it
//! (`docs/ip.md`, "TCP").

mod burst;
mod connection;
mod deadlines;
mod listener;
mod table;
mod v6;

use alloc::sync::{Arc, Weak};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use ::tcp::{
    Arrival, Connection, CookiePolicy, Ends, Error, Flags, Handshake, Header, Incoming,
    ListenConfig, Listener, Malformed, Reaction, Repairs, Secret, Segment, Seq,
    State as EngineState, SynCookies, TimeWait, Verdict,
};
use abi::errno::Errno;
pub(super) use burst::Held;
use connection::WireConnection;
use fs::Result;
use ip::{Address, Checksum, Nanos, ipv4};
use listener::{ListenerState, WireListener};
pub(super) use table::EndsHash;
use table::{Due, Entry, Number, Table};
use task::Mutex;

use super::Host;
use super::input::Arrived;
use super::output::OutgoingPacket;
use super::send_queue::QueuePlace;
use super::state::{Class, Work};
use crate::inet::bind_table::ephemeral_ports;
use crate::inet::datagram::PathMtuDiscovery;
use crate::inet::icmp_errors::QuotedError;
use crate::inet::ip::TCP;
use crate::inet::network::Route;
use crate::inet::stack::InetStack;
use crate::inet::tcp::{ConnectRequest, ListenTerms, TcpListener, TcpOptions, TcpState};
use crate::inet::{link_of, with_link};
use crate::socket::memory::Transport;

/// Bytes of the headers of IP and TCP without options, on the way to an address.
fn headers_to(address: SocketAddr) -> u16 {
    let below = match address {
        SocketAddr::V4(_) => ipv4::HEADER,
        SocketAddr::V6(_) => ip::v6::HEADER,
    };
    (below + ::tcp::HEADER) as u16
}

/// The mark that routers may change instead of dropping a packet, and what they change it to (RFC
/// 3168, section 5).
const ECT0: u8 = 2;
const CONGESTED: u8 = 3;
/// The hop limit of segments of nobody.
const HOPS: u8 = 64;

/// Terms on which segments are sent.
#[derive(Clone, Copy, Debug)]
struct Path {
    ttl: u8,
    tos: u8,
    /// The same over IPv6.
    hop_limit: u8,
    traffic_class: u8,
    /// The interface that they go out by; 0: that of the route.
    via: u32,
    /// The place before a card that is busy.
    place: QueuePlace,
}

impl Path {
    /// The terms of segments of nobody.
    const PLAIN: Self = Self {
        ttl: HOPS,
        tos: 0,
        hop_limit: HOPS,
        traffic_class: 0,
        via: 0,
        place: QueuePlace::Behind,
    };

    fn of(options: &TcpOptions) -> Self {
        Self {
            ttl: options.ttl,
            tos: options.tos & !CONGESTED,
            hop_limit: options.hop_limit,
            traffic_class: options.traffic_class & !CONGESTED,
            via: options.interface,
            place: QueuePlace::Behind,
        }
    }
}

/// A reason why a segment was not sent, and cannot be as it is.
enum Unsent {
    /// The segment is longer than its path takes, which is packets of so many bytes.
    TooLong(u16),
    /// The segment is for a port of this host's that nobody has any more.
    Refused,
}

/// Events that are counted (names of Linux' `/proc/net/snmp`).
#[derive(Default)]
pub(in crate::inet) struct TcpCounts {
    active_opens: AtomicU64,
    passive_opens: AtomicU64,
    attempt_fails: AtomicU64,
    established_resets: AtomicU64,
    in_segments: AtomicU64,
    out_segments: AtomicU64,
    in_errors: AtomicU64,
    in_checksum_errors: AtomicU64,
    out_resets: AtomicU64,
    /// Counts of repairs, by the names of [`Repairs`].
    repeated: AtomicU64,
    fast: AtomicU64,
    timeouts: AtomicU64,
    probes: AtomicU64,
}

impl TcpCounts {
    /// The value of a counter by its name; 0 of one that does not count.
    pub(in crate::inet) fn value(&self, name: &str) -> u64 {
        let counter = match name {
            // Van Jacobson's, as on Linux; times in milliseconds; as many as there is memory for.
            "RtoAlgorithm" => return 1,
            "RtoMin" => return 200,
            "RtoMax" => return 120_000,
            "MaxConn" => return u64::MAX,
            "ActiveOpens" => &self.active_opens,
            "PassiveOpens" => &self.passive_opens,
            "AttemptFails" => &self.attempt_fails,
            "EstabResets" => &self.established_resets,
            "InSegs" => &self.in_segments,
            "OutSegs" => &self.out_segments,
            "InErrs" => &self.in_errors,
            "OutRsts" => &self.out_resets,
            "RetransSegs" => &self.repeated,
            // Of `/proc/net/netstat`.
            "TCPFastRetrans" => &self.fast,
            "TCPTimeouts" => &self.timeouts,
            "TCPLossProbes" => &self.probes,
            "InCsumErrors" => &self.in_checksum_errors,
            _ => return 0,
        };
        counter.load(Ordering::Relaxed)
    }

    /// Counts what a connection has sent again meanwhile.
    fn count_repairs(&self, before: Repairs, now: Repairs) {
        if before == now {
            return;
        }
        for (counter, before, now) in [
            (&self.repeated, before.segments, now.segments),
            (&self.fast, before.fast, now.fast),
            (&self.timeouts, before.timeouts, now.timeouts),
            (&self.probes, before.probes, now.probes),
        ] {
            counter.fetch_add(now - before, Ordering::Relaxed);
        }
    }

    /// Counts that a connection has ended otherwise than by its FINs (RFC 4022).
    fn count_end(&self, before: EngineState, now: EngineState) {
        if now != EngineState::Closed {
            return;
        }
        match before {
            EngineState::SynSent | EngineState::SynReceived => count(&self.attempt_fails),
            EngineState::Established | EngineState::CloseWait => count(&self.established_resets),
            _ => {}
        }
    }

    /// Counts answers to SYNs that were sent again.
    fn count_answers(&self, again: u64) {
        self.repeated.fetch_add(again, Ordering::Relaxed);
    }
}

/// Adds one to a counter.
fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// A connection that no socket has.
pub(in crate::inet) struct UnownedConnection {
    pub(in crate::inet) ends: Ends,
    pub(in crate::inet) state: TcpState,
    /// Bytes that were sent and not acknowledged.
    pub(in crate::inet) queued: usize,
}

/// The connections and listeners of a host.
pub(super) struct TcpLayer {
    secret: Secret,
    cookies: SynCookies,
    table: Table,
    /// Connections that no program has open.
    orphans: AtomicUsize,
    /// Segments of open connections that were looked up in the host's tables.
    looked_up: AtomicU64,
    counts: TcpCounts,
}

impl TcpLayer {
    pub(super) fn new() -> Self {
        let mut random = [[0; 8]; 6];
        fs::devfs::fill_random(random.as_flattened_mut());
        let [a, b, c, d, e, f] = random.map(u64::from_ne_bytes);
        Self {
            secret: Secret([a, b]),
            cookies: SynCookies::new(Secret([c, d])),
            table: Table::new(Secret([e, f])),
            orphans: AtomicUsize::new(0),
            looked_up: AtomicU64::new(0),
            counts: TcpCounts::default(),
        }
    }

    pub(super) fn deadline(&self) -> Option<Nanos> {
        self.table.deadline()
    }

    pub(super) fn shards_locked(&self) -> u64 {
        self.table.locked()
    }

    pub(super) fn looked_up(&self) -> u64 {
        self.looked_up.load(Ordering::Relaxed)
    }

    fn set_deadline(&self, number: Option<Number>, due: Nanos) {
        if let Some(number) = number {
            self.table
                .lock_entry(number)
                .set_deadline(number, Some(due));
        }
    }

    fn set_listener_deadline(&self, listener: &WireListener, due: Nanos) {
        self.table.set_listener_deadline(listener, due);
    }

    fn remove(&self, number: Option<Number>) {
        if let Some(number) = number {
            let removed = self.table.lock_entry(number).remove(number);
            drop(removed);
        }
    }

    /// Lets the rest of a connection wait for late segments, if not too many do.
    fn wait(&self, stack: &Weak<InetStack>, number: Option<Number>, rest: TimeWait) {
        let Some(number) = number else { return };
        let stack = stack.upgrade();
        let most = stack.map_or(0, |stack| stack.core.sysctls.tcp_max_tw_buckets.as_usize());
        drop(self.table.wait(number, rest, most));
    }

    /// One more connection has lost its program. Returns whether it may stay: not if there are too
    /// many of them, or too much memory is in use.
    fn add_orphan(&self, stack: &Weak<InetStack>) -> bool {
        let orphans = self.orphans.fetch_add(1, Ordering::Relaxed) + 1;
        stack.upgrade().is_some_and(|stack| {
            let sysctls = &stack.core.sysctls;
            let [_, _, high] = sysctls.tcp_mem.limits();
            orphans <= sysctls.tcp_max_orphans.as_usize()
                && stack.core.memory(Transport::Tcp).pages() <= high
        })
    }

    fn release_orphan(&self) {
        self.orphans.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The segment of an answer with a reset, or of any other.
fn is_reset(header: &Header) -> bool {
    header.flags.contains(Flags::RST)
}

impl Host {
    /// Does what is due of connections and listeners.
    pub(super) fn run_tcp_timers(&self) {
        let now = self.now();
        loop {
            let due = self.tcp.table.take_due(now);
            match due {
                Some(Due::Connection(connection)) => connection.on_deadline(),
                Some(Due::Listener(listener)) => listener.on_deadline(self),
                Some(Due::Nothing) => {}
                None => return self.wake_by(self.tcp.deadline()),
            }
        }
    }

    /// Sends a segment. One that finds no way, or no room, is lost, as on a wire.
    ///
    /// # Errors
    /// [`Unsent`].
    fn send_segment(
        &self,
        ends: &Ends,
        path: Path,
        header: &Header,
        data: &[u8],
        work: &mut Work,
    ) -> core::result::Result<(), Unsent> {
        let mut bytes = [0; ::tcp::LONGEST_HEADER];
        let Some(length) = header.emit(&mut bytes) else {
            return Ok(());
        };
        let above = &mut bytes[..length];
        let whole = length + data.len();
        let (source, destination) = match (ends.local.ip(), ends.remote.ip()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => (source, destination),
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let mut sum = Checksum::pseudo_header_v6(source, destination, TCP, whole);
                sum.add(above);
                sum.add(data);
                above[16..18].copy_from_slice(&sum.finish().to_be_bytes());
                let path = Path {
                    via: link_of(ends.remote, path.via),
                    ..path
                };
                let sent = self.send_segment_v6((source, destination), path, [above, data], work);
                self.count_sent(header);
                return sent;
            }
            _ => return Ok(()),
        };
        let mut sum = Checksum::pseudo_header(source, destination, TCP, whole);
        sum.add(above);
        sum.add(data);
        above[16..18].copy_from_slice(&sum.finish().to_be_bytes());
        let now = self.now();
        let stack = self.stack.get().and_then(Weak::upgrade);
        let header_of_packet = ipv4::Header {
            tos: path.tos,
            id: 0,
            dont_fragment: true,
            more_fragments: false,
            offset: 0,
            ttl: path.ttl,
            protocol: TCP,
            source,
            destination,
        };
        let mut packet = OutgoingPacket {
            interface: 0,
            header: header_of_packet,
            payload: [above, data],
            discovery: PathMtuDiscovery::Always,
        };
        if let Some(stack) = &stack
            && let Some(way) = self.way(now, destination.into(), path.via)
        {
            packet.interface = way.route.interface_index;
            if self
                .send_by(stack, &way, &packet, None, path.place)
                .is_some()
            {
                self.count_sent(header);
                return Ok(());
            }
        }
        let mut state = self.lock_state();
        // Without a route the peer is not there for now; it may be again before the end.
        let Ok(route) = state.route(now, destination, path.via) else {
            return Ok(());
        };
        // An address that was taken away sends nothing, until it is back.
        if !state.is_here(source) {
            return Ok(());
        }
        packet.interface = route.interface_index;
        let mut mtu = route.mtu;
        let result = if route.local {
            let Some(stack) = &stack else {
                return Ok(());
            };
            mtu = state.published_mtu(now, ends.remote);
            state.send_to_published(now, &packet, ephemeral_ports(&stack.core), work)
        } else {
            state.send(now, &packet, work)
        };
        state.collect_events(work);
        let due = state.deadline();
        let way = match (route.local, &result) {
            (false, Ok(())) => state.way_to(now, destination, path.via),
            _ => None,
        };
        drop(state);
        self.remember(now, way);
        self.wake_by(due);
        self.send_frames(work);
        self.count_sent(header);
        match result {
            Err(Errno::EMSGSIZE) => Err(Unsent::TooLong(u16::try_from(mtu).unwrap_or(u16::MAX))),
            Err(Errno::ECONNREFUSED) => Err(Unsent::Refused),
            _ => Ok(()),
        }
    }

    /// Counts a segment that was sent.
    fn count_sent(&self, header: &Header) {
        count(&self.tcp.counts.out_segments);
        if is_reset(header) {
            count(&self.tcp.counts.out_resets);
        }
    }

    /// Sends a segment by itself.
    fn send_alone(&self, ends: &Ends, path: Path, header: &Header) {
        let mut work = Work::default();
        // It has no data: it fits.
        let _ = self.send_segment(ends, path, header, &[], &mut work);
        self.finish(work);
    }

    /// A segment that is whole; any other is counted.
    fn verify_segment<'a>(
        &self,
        source: IpAddr,
        destination: IpAddr,
        bytes: &'a [u8],
    ) -> Option<Segment<'a>> {
        let counts = &self.tcp.counts;
        count(&counts.in_segments);
        let segment = Segment::verify(source, destination, bytes);
        if let Err(error) = &segment {
            count(&counts.in_errors);
            if *error == Malformed::Checksum {
                count(&counts.in_checksum_errors);
            }
        }
        segment.ok()
    }

    /// Takes a segment that has come in, in a packet for this host: `seen` says how that has come,
    /// if it has the ends that it came with. One that has others opens no connection.
    pub(super) fn receive_tcp(
        &self,
        stack: &InetStack,
        seen: Option<&Arrived<'_>>,
        (source, destination): (IpAddr, IpAddr),
        tos: u8,
        bytes: &[u8],
    ) {
        let Some(segment) = self.verify_segment(source, destination, bytes) else {
            return;
        };
        let arrival = arrival_of(segment, tos);
        let ends = Ends {
            local: SocketAddr::new(destination, segment.header.destination),
            remote: with_link(
                SocketAddr::new(source, segment.header.source),
                seen.map_or(0, |seen| seen.interface.index),
            ),
        };
        let table = &self.tcp.table;
        let known = seen.and_then(|seen| seen.place.get());
        let place = known.unwrap_or_else(|| table.place(&ends));
        let open = match known {
            // That was just looked for; one that has come since is found with the lock.
            Some(_) => None,
            None => table.open(place, &ends),
        };
        let found = match open {
            Some(connection) => Found::Connection(connection),
            None => self.find(place, &ends, &segment),
        };
        let iss = match found {
            Found::Connection(connection) => {
                count(&self.tcp.looked_up);
                if let Some(seen) = seen {
                    connection.admit(seen.view.version(), seen.interface.index);
                }
                return connection.arrive(&arrival);
            }
            Found::Answer(header) => return self.send_alone(&ends, Path::PLAIN, &header),
            Found::Done => return,
            Found::Nothing => None,
            Found::Follows(iss) => Some(iss),
        };
        let opens = seen.and_then(|seen| {
            let listener = stack.tcp_listener(ends.remote, ends.local)?;
            Some((listener, seen))
        });
        let Some((listener, seen)) = opens else {
            if let Some(refusal) = segment.refusal() {
                self.send_alone(&ends, Path::PLAIN, &refusal);
            }
            return;
        };
        let interface = seen.interface;
        let mtu = seen.view.get(interface.index);
        let mtu = mtu.map_or(interface.mtu, |known| known.mtu(ends.remote));
        let mtu = u16::try_from(mtu).unwrap_or(u16::MAX);
        let incoming = Incoming {
            ends,
            arrival,
            mss: mtu.saturating_sub(headers_to(ends.remote)),
            iss,
        };
        let opened = self.arrive_at_listener(stack, &listener, place, &incoming);
        if let Some(connection) = opened {
            // What comes next needs not be looked up, of however many connections.
            connection.admit(seen.view.version(), interface.index);
            connection.arrive(&arrival);
        }
    }

    /// Finds what a segment is for, with the lock of its shard.
    fn find(&self, place: EndsHash, ends: &Ends, segment: &Segment<'_>) -> Found {
        let now = self.now();
        let mut table = self.tcp.table.lock(place);
        let Some((number, entry)) = table.find(place, ends) else {
            return Found::Nothing;
        };
        match entry {
            Entry::Open(connection) => Found::Connection(connection.clone()),
            Entry::Listener(..) => Found::Nothing,
            Entry::Waiting(rest) => {
                let verdict = rest.arrive(now, segment);
                let due = rest.deadline();
                match verdict {
                    Verdict::Reopen(iss) => {
                        table.remove(number);
                        Found::Follows(iss)
                    }
                    Verdict::Drop => Found::Done,
                    Verdict::Answer(header) => {
                        table.set_deadline(number, Some(due));
                        Found::Answer(header)
                    }
                }
            }
        }
    }

    /// The half-open connections of a socket that listens.
    fn wire_listener(
        &self,
        socket: &TcpListener,
        terms: &ListenTerms,
    ) -> Option<Arc<WireListener>> {
        let (secret, places) = (self.tcp.secret, self.tcp.table.secret());
        let listener = self.tcp.table.listener(socket.id(), |number| {
            let config = ListenConfig::default();
            Arc::new(WireListener {
                number,
                inner: Mutex::new(ListenerState {
                    engine: Listener::with_places(config, secret, places),
                    path: Path::of(&terms.options),
                    armed: None,
                }),
            })
        });
        // One that has ended meanwhile has told so before, or sees this one.
        if !socket.is_open() {
            self.stop_tcp_listener(socket.id());
            return None;
        }
        listener.ok()
    }

    /// Takes a segment for a listener. Returns the connection that it is for, if it opens one or
    /// another thread has opened it: that has not taken the segment yet.
    fn arrive_at_listener(
        &self,
        stack: &InetStack,
        socket: &TcpListener,
        place: EndsHash,
        incoming: &Incoming<'_>,
    ) -> Option<Arc<WireConnection>> {
        let terms = socket.terms()?;
        let listener = self.wire_listener(socket, &terms)?;
        let sysctls = &stack.core.sysctls;
        let now = self.now();
        let mut inner = listener.inner.lock();
        // The connection may have been opened since it was looked for.
        if let Some(connection) = self.tcp.table.open(place, &incoming.ends) {
            return Some(connection);
        }
        let room = terms.receive_buffer;
        let config = ListenConfig {
            connection: terms.options.config(sysctls, incoming.mss, room),
            backlog: terms.limit,
            syn_backlog: sysctls.tcp_max_syn_backlog.as_usize(),
            cookies: match sysctls.tcp_syncookies.as_usize() {
                0 => CookiePolicy::Never,
                1 => CookiePolicy::WhenFull,
                _ => CookiePolicy::Always,
            },
            window: room.min(0xffff) as u16,
            abort_on_overflow: sysctls.tcp_abort_on_overflow.as_usize() != 0,
            defer_accept: ::tcp::defer_accept_retries(terms.defer_accept_s),
        };
        inner.path = Path::of(&terms.options);
        *inner.engine.config_mut() = config;
        inner.engine.set_waiting(terms.waiting);
        let before = inner.engine.counts();
        let cookies = &self.tcp.cookies;
        let reaction = inner.engine.arrive_at(now, cookies, incoming, place);
        let counts = inner.engine.counts();
        let again = counts.retransmissions - before.retransmissions;
        let failed = counts.attempt_fails - before.attempt_fails;
        if failed > 0 {
            self.tcp
                .counts
                .attempt_fails
                .fetch_add(failed, Ordering::Relaxed);
        }
        if again > 0 {
            self.tcp.counts.count_answers(again);
        }
        let due = inner.arm(self, &listener);
        let child = match &reaction {
            Reaction::Open(handshake) => {
                self.open(stack, socket, &terms, (place, handshake), &mut inner.engine)
            }
            _ => None,
        };
        let path = inner.path;
        drop(inner);
        self.wake_by(due);
        if let Reaction::Answer(header) = reaction {
            self.send_alone(&incoming.ends, path, &header);
        }
        child
    }

    /// Makes the connection of a handshake, with its socket, which waits to be accepted. Without
    /// memory for it the peer repeats itself.
    fn open(
        &self,
        stack: &InetStack,
        socket: &TcpListener,
        terms: &ListenTerms,
        (place, handshake): (EndsHash, &Handshake),
        engine: &mut Listener,
    ) -> Option<Arc<WireConnection>> {
        let ends = *handshake.ends();
        let config = engine.config().connection.clone();
        let now = self.now();
        let opened = |config| Connection::open(config, now, handshake);
        let path = Path::of(&terms.options);
        let connection = WireConnection::new(self, stack, ends, opened, config, None, path).ok()?;
        let child = socket.create_child(connection.clone().end(), ends.local, ends.remote);
        connection.attach(&child.end());
        let inserted = self.tcp.table.lock(place).insert(place, connection.clone());
        if let Ok(number) = inserted {
            connection.set_number(Some(number));
        }
        if inserted.is_err() || !engine.opened(handshake) {
            // Another thread has opened it.
            if let Ok(number) = inserted {
                connection.set_number(None);
                self.tcp.remove(Some(number));
            }
            child.discard();
            return None;
        }
        count(&self.tcp.counts.passive_opens);
        socket.enqueue(child);
        Some(connection)
    }

    /// Begins a connection to another host.
    pub(super) fn begin_connection(
        &self,
        stack: &InetStack,
        request: ConnectRequest,
        route: &Route,
    ) {
        let initiator = request.initiator();
        if let Err(error) = self.try_begin(stack, request, route)
            && let Some(initiator) = initiator
        {
            initiator.connect_failed(error);
        }
    }

    fn try_begin(&self, stack: &InetStack, request: ConnectRequest, route: &Route) -> Result<()> {
        let ends = Ends {
            local: request.from,
            remote: request.to,
        };
        let source = ends.local.ip();
        if source.is_ipv4() != ends.remote.is_ipv4() {
            return Err(Errno::ENETUNREACH);
        }
        if route.broadcast || ends.remote.ip().is_multicast() {
            return Err(Errno::ENETUNREACH);
        }
        if source.is_loopback() && !route.local {
            return Err(Errno::EINVAL);
        }
        if source.is_unspecified() {
            return Err(Errno::EADDRNOTAVAIL);
        }
        let now = self.now();
        let initiator = request.initiator().ok_or(Errno::ECONNABORTED)?;
        let mtu = self.link_mtu(route.interface_index, ends.remote);
        let mss = u16::try_from(mtu.unwrap_or(route.mtu))
            .unwrap_or(u16::MAX)
            .saturating_sub(headers_to(ends.remote));
        let options = request.options();
        let room = request.end().receive_buffer();
        let config = options.config(&stack.core.sysctls, mss, room);
        let secret = &self.tcp.secret;
        let follows = self.follow(stack, &ends, now)?;
        let (first, offset) = secret.initial(now, &ends);
        let iss = follows.unwrap_or(first);
        let engine = |config| Connection::connect(config, now, ends.ports(), iss, offset);
        let path = Path::of(options);
        let connection =
            WireConnection::new(self, stack, ends, engine, config, Some(request), path)?;
        let place = self.tcp.table.place(&ends);
        let inserted = self.tcp.table.lock(place).insert(place, connection.clone());
        let number = inserted?;
        connection.set_number(Some(number));
        count(&self.tcp.counts.active_opens);
        initiator.connect_began(connection.clone());
        connection.send_due();
        Ok(())
    }

    /// The least first number of a connection that follows one that waits for late segments, which
    /// ends then; `None` if there is none.
    ///
    /// # Errors
    /// `EADDRNOTAVAIL` if there is one that must not be followed.
    fn follow(&self, stack: &InetStack, ends: &Ends, now: Nanos) -> Result<Option<Seq>> {
        let place = self.tcp.table.place(ends);
        let mut table = self.tcp.table.lock(place);
        let Some((number, entry)) = table.find(place, ends) else {
            return Ok(None);
        };
        let iss = match entry {
            Entry::Waiting(rest) if stack.core.sysctls.tcp_tw_reuse.as_usize() == 1 => {
                rest.follow(now)
            }
            _ => None,
        };
        let iss = iss.ok_or(Errno::EADDRNOTAVAIL)?;
        table.remove(number);
        Ok(Some(iss))
    }

    /// Whether a connection between two ends can be begun.
    pub(super) fn can_begin(&self, local: SocketAddr, remote: SocketAddr) -> bool {
        let Some(stack) = self.stack.get().and_then(Weak::upgrade) else {
            return true;
        };
        let now = self.now();
        let ends = Ends { local, remote };
        let place = self.tcp.table.place(&ends);
        match self.tcp.table.lock(place).find(place, &ends) {
            None => true,
            Some((_, Entry::Waiting(rest))) => {
                stack.core.sysctls.tcp_tw_reuse.as_usize() == 1 && rest.follow(now).is_some()
            }
            Some(_) => false,
        }
    }

    /// A socket does not listen any more: its half-open connections are forgotten.
    pub(super) fn stop_tcp_listener(&self, id: u64) {
        let removed = self.tcp.table.remove_listener(id);
        drop(removed);
    }

    /// Resets this host's own connections to ports that were published, and are not any more.
    pub(super) fn lose_connections(&self, ended: &[SocketAddrV4]) {
        if ended.is_empty() {
            return;
        }
        let mut candidates = fallible::Pieces::default();
        self.tcp.table.each(|ends, entry| {
            let is_one = |at: &SocketAddrV4| {
                let is_all = at.ip().is_unspecified();
                at.port() == ends.remote.port()
                    && (is_all || IpAddr::V4(*at.ip()) == ends.remote.ip())
            };
            if let Entry::Open(connection) = entry
                && ended.iter().any(is_one)
            {
                candidates.push((*ends, connection.clone()));
            }
        });
        for (ends, connection) in candidates.iter() {
            // Another host may have a port with the same number.
            if let IpAddr::V4(to) = ends.remote.ip()
                && self.lock_state().is_here(to)
            {
                connection.lose();
            }
        }
    }

    /// Takes an error of ICMP about a segment. Returns whether such a segment is under way.
    pub(super) fn take_tcp_error(&self, error: &QuotedError<'_>, errno: Errno) -> bool {
        let Some(quoted) = error.payload.first_chunk::<8>() else {
            return false;
        };
        let port = |at: usize| u16::from_be_bytes([quoted[at], quoted[at + 1]]);
        let ends = Ends {
            local: SocketAddr::new(error.source, port(0)),
            remote: with_link(SocketAddr::new(error.destination, port(2)), error.interface),
        };
        let seq = Seq(u32::from_be_bytes([
            quoted[4], quoted[5], quoted[6], quoted[7],
        ]));
        let table = &self.tcp.table;
        let Some(connection) = table.open(table.place(&ends), &ends) else {
            return false;
        };
        match errno {
            Errno::EMSGSIZE => {
                let least = match error.destination {
                    IpAddr::V4(_) => Ipv4Addr::LEAST_PATH,
                    IpAddr::V6(_) => Ipv6Addr::LEAST_PATH,
                };
                connection.path_limit(seq, error.mtu().unwrap_or(least).max(least))
            }
            Errno::ECONNREFUSED | Errno::ENOPROTOOPT => connection.icmp_error(seq, Error::Refused),
            Errno::ENETUNREACH => connection.icmp_error(seq, Error::NetUnreachable),
            _ => connection.icmp_error(seq, Error::HostUnreachable),
        }
    }

    /// Counts of TCP over interfaces.
    pub(in crate::inet) fn tcp_counts(&self) -> &TcpCounts {
        &self.tcp.counts
    }

    /// Connections that no program has open, and those that wait for late segments.
    pub(in crate::inet) fn unowned_connections(&self) -> fallible::Pieces<UnownedConnection> {
        let mut all = fallible::Pieces::default();
        let mut open = fallible::Pieces::default();
        self.tcp.table.each(|ends, entry| match entry {
            Entry::Open(connection) => open.push((*ends, connection.clone())),
            Entry::Waiting(_) => all.push(UnownedConnection {
                ends: *ends,
                state: TcpState::TimeWait,
                queued: 0,
            }),
            Entry::Listener(..) => {}
        });
        for (ends, connection) in open.iter() {
            if let Some((state, queued)) = connection.orphan() {
                all.push(UnownedConnection {
                    ends: *ends,
                    state,
                    queued,
                });
            }
        }
        all
    }

    /// The numbers of connections that no program has open, of those that wait for late segments,
    /// and of all in the table.
    pub(in crate::inet) fn tcp_sizes(&self) -> (usize, usize, usize) {
        let table = &self.tcp.table;
        let orphans = self.tcp.orphans.load(Ordering::Relaxed);
        (orphans, table.waiting(), table.connections())
    }

    /// Whether a packet is a segment for this host alone.
    pub(super) fn is_tcp(header: &ipv4::Header, class: Class) -> bool {
        header.protocol == TCP && class == Class::Own
    }
}

/// A segment in a packet with a type of service, for an engine.
fn arrival_of(segment: Segment<'_>, tos: u8) -> Arrival<'_> {
    Arrival {
        congested: tos & CONGESTED == CONGESTED,
        ..Arrival::from(segment)
    }
}

/// The receiver of a segment.
enum Found {
    Connection(Arc<WireConnection>),
    /// The rest of a connection, which answers.
    Answer(Header),
    /// The rest of a connection, which does not.
    Done,
    Nothing,
    /// A new connection, which follows one, and begins at this number or behind it.
    Follows(Seq),
}
