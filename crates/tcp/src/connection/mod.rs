//! A connection: its state, and what its owner does with it (RFC 9293, section 3.9).

mod arrive;
mod info;
mod options;
mod recovery;
mod send;
mod space;
mod timers;

use info::Counts;
pub use info::{Info, Phase, Repairs};
use recovery::Recovery;
use space::ReceiveMeter;
pub use space::Space;
use timers::Timers;

use crate::congestion::Congestion;
use crate::handshake::Handshake;
use crate::reassembly::Reassembly;
use crate::rtt::RttEstimator;
use crate::scoreboard::Scoreboard;
use crate::segment::{Flags, Header, Segment};
use crate::seq::{Position, Seq};
use crate::time_wait::TimeWait;
use crate::{Config, MILLISECOND, Nanos, SECOND};

/// The state of a connection (RFC 9293, section 3.3.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// No connection, or none any more.
    Closed,
    /// A SYN was sent.
    SynSent,
    /// A SYN was received and answered.
    SynReceived,
    /// Open in both directions.
    Established,
    /// This end sends no more; its FIN is not acknowledged.
    FinWait1,
    /// The FIN was acknowledged; the peer may go on sending.
    FinWait2,
    /// The peer sends no more; this end may.
    CloseWait,
    /// Both ends have sent a FIN at the same time.
    Closing,
    /// A FIN was sent after that of the peer.
    LastAck,
    /// Both ends are closed; late segments may still come.
    TimeWait,
}

impl State {
    /// Whether the handshake is done.
    #[must_use]
    pub fn is_synchronized(self) -> bool {
        !matches!(self, Self::Closed | Self::SynSent | Self::SynReceived)
    }

    /// Whether the peer may still send data.
    fn receives(self) -> bool {
        matches!(self, Self::Established | Self::FinWait1 | Self::FinWait2)
    }

    /// Whether data or a FIN may be outstanding.
    fn sends(self) -> bool {
        matches!(
            self,
            Self::Established | Self::CloseWait | Self::FinWait1 | Self::Closing | Self::LastAck
        )
    }
}

/// The reason for which a connection has ended, or cannot be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Error {
    /// The peer has refused the connection (`ECONNREFUSED`).
    Refused,
    /// The peer has reset the connection (`ECONNRESET`).
    Reset,
    /// The peer does not answer (`ETIMEDOUT`).
    TimedOut,
    /// ICMP says that the network is not reached (`ENETUNREACH`).
    NetUnreachable,
    /// ICMP says that the host is not reached (`EHOSTUNREACH`).
    HostUnreachable,
    /// The program has aborted the connection.
    Aborted,
}

/// The socket has been closed: nobody receives any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gone;

/// The bytes of a connection, which the caller holds and charges.
pub trait Buffers {
    /// Bytes that the program has sent and that were not released.
    fn queued(&self) -> usize;

    /// Copies of those, from `offset` on. Returns how many there were.
    fn peek(&self, offset: usize, bytes: &mut [u8]) -> usize;

    /// Drops the first `count` of those: they are acknowledged.
    fn release(&mut self, count: usize);

    /// Bytes that [`Buffers::deliver`] takes.
    fn window(&self) -> usize;

    /// Takes the next bytes of the stream, as many as there is room for. Returns how many.
    ///
    /// # Errors
    /// The program has closed the socket.
    fn deliver(&mut self, bytes: &[u8]) -> Result<usize, Gone>;

    /// Tells that a byte of the peer's stream is urgent, by its distance from the beginning. It may
    /// not have been delivered yet.
    fn urgent(&mut self, position: u64) {
        let _ = position;
    }

    /// Tells that the peer sends no more.
    fn deliver_end(&mut self);

    /// Bytes that were delivered and that the program has not read.
    fn unread(&self) -> usize;

    /// Asks for memory, for what came out of order and for records of what is outstanding: whether
    /// there is so much. If not, the segment is dropped, or waits to be sent.
    fn charge(&mut self, bytes: usize) -> bool;

    /// Gives back memory that was charged. What a connection still has when it is dropped is its
    /// [`Connection::memory`].
    fn uncharge(&mut self, bytes: usize);
}

/// A segment that has arrived, with what IP says of it.
#[derive(Clone, Copy, Debug)]
pub struct Arrival<'a> {
    /// The segment; its checksum was verified.
    pub segment: Segment<'a>,
    /// The packet was marked by a router (RFC 3168, section 5: CE).
    pub congested: bool,
    /// Payload of one of the segments that were joined to this one, if they were
    /// ([`crate::Merged`]).
    pub segment_size: Option<u16>,
}

impl<'a> From<Segment<'a>> for Arrival<'a> {
    fn from(segment: Segment<'a>) -> Self {
        Self {
            segment,
            congested: false,
            segment_size: None,
        }
    }
}

/// A segment to be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outgoing {
    /// Header of the segment.
    pub header: Header,
    /// Bytes of the payload that was handed in.
    pub payload: usize,
    /// Payload of each segment but the last, if this stands for several ([`Config::offload`]).
    pub segment_size: Option<u16>,
    /// Routers may mark the packet instead of dropping it (RFC 3168, section 5: ECT(0)).
    pub ecn_capable: bool,
}

/// The send sequence space (RFC 9293, section 3.3.1).
#[derive(Clone, Debug)]
struct SendSpace {
    /// Initial number.
    iss: Position,
    /// Oldest that is not acknowledged.
    una: Position,
    /// Next to be sent.
    nxt: Position,
    /// Window of the peer.
    wnd: u64,
    /// Sequence and acknowledgement of the last update of the window.
    wl1: Position,
    wl2: Position,
    /// Largest window the peer ever had.
    max_wnd: u64,
    /// Shift of the peer's windows.
    shift: u8,
    /// Largest segment the peer takes, and the path.
    peer_mss: u16,
    path_mss: u16,
    /// When the path's size was learnt.
    path_since: Option<Nanos>,
    /// Position of the FIN, once it was sent.
    fin: Option<Position>,
    /// End of the last small segment (Minshall's SND.SML).
    small_end: Position,
    /// Position behind the urgent byte.
    urgent: Option<Position>,
    /// When data was last sent.
    last_sent: Nanos,
    /// Time-outs in a row.
    timeouts: u32,
}

/// The receive sequence space.
#[derive(Clone, Debug)]
struct ReceiveSpace {
    irs: Position,
    /// Next that is expected.
    nxt: Position,
    /// Behind the last that may be sent: what was advertised.
    edge: Position,
    /// `nxt` when the last acknowledgement was sent.
    acknowledged: Position,
    shift: u8,
    /// Position of the peer's FIN.
    fin: Option<Position>,
    /// Largest segment that came: what the peer's segments are thought to be.
    mss: u64,
    /// Largest room that there was.
    largest_window: u64,
    /// Timestamp to echo, and when it came (RFC 7323, section 4.3).
    recent: Option<(u32, Nanos)>,
    /// Position behind the urgent byte.
    urgent: Option<Position>,
    /// Acknowledgements that are not delayed.
    quick: u32,
    /// When something came last, and when data did.
    last_arrival: Nanos,
    last_data: Nanos,
}

/// Explicit congestion notification (RFC 3168, section 6.1).
#[derive(Clone, Copy, Debug, Default)]
struct Ecn {
    agreed: bool,
    /// A mark was seen: echo it until the peer says it has reduced its window.
    echo: bool,
    /// The window was reduced: to be said with the next data.
    reduced: bool,
    /// Up to here echoes speak of the window that was reduced.
    until: Position,
}

/// The acknowledgement that is due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum AckNeed {
    None,
    /// By the timer.
    Delayed,
    Now,
}

/// One connection.
#[derive(Debug)]
pub struct Connection {
    config: Config,
    state: State,
    error: Option<Error>,
    soft_error: Option<Error>,
    /// Whether this end has begun the connection.
    active: bool,
    local: u16,
    remote: u16,
    snd: SendSpace,
    rcv: ReceiveSpace,
    meter: ReceiveMeter,
    counts: Counts,
    /// Memory that was asked for and not given back.
    charged: usize,
    reassembly: Reassembly,
    board: Scoreboard,
    rtt: RttEstimator,
    congestion: Congestion,
    recovery: Recovery,
    ecn: Ecn,
    timers: Timers,
    timestamps: bool,
    sack: bool,
    clock_offset: u32,
    /// The program sends no more.
    shut: bool,
    /// The program has closed the socket.
    orphan: bool,
    ack: AckNeed,
    /// A SYN, or an answer to one, is to be sent.
    syn_due: bool,
    /// A probe of the peer is to be sent.
    probe_due: bool,
    /// A segment is sent though it is small: the time for waiting is over.
    push_small: bool,
    /// A segment may be sent though the congestion window is full (tail loss probe).
    tail_probe: bool,
    /// A reset is to be sent.
    reset: Option<Header>,
    /// Challenges sent in this second.
    challenges: (Nanos, u32),
}

impl Connection {
    fn new(config: Config, now: Nanos, ports: (u16, u16), iss: Seq, clock_offset: u32) -> Self {
        let iss = iss.first();
        let mss = config.advertised_mss();
        let rtt = RttEstimator::new(config.least_rto);
        let congestion = Congestion::new(
            config.algorithm,
            u64::from(mss),
            u64::from(config.initial_window),
        );
        Self {
            state: State::Closed,
            error: None,
            soft_error: None,
            active: false,
            local: ports.0,
            remote: ports.1,
            snd: SendSpace {
                iss,
                una: iss,
                nxt: iss,
                wnd: 0,
                wl1: 0,
                wl2: 0,
                max_wnd: 0,
                shift: 0,
                peer_mss: 536,
                path_mss: mss,
                path_since: None,
                fin: None,
                small_end: iss,
                urgent: None,
                last_sent: now,
                timeouts: 0,
            },
            rcv: ReceiveSpace {
                irs: 0,
                nxt: 0,
                edge: 0,
                acknowledged: 0,
                shift: 0,
                fin: None,
                mss: 536,
                largest_window: 0,
                recent: None,
                urgent: None,
                quick: config.quick_acks,
                last_arrival: now,
                last_data: now,
            },
            meter: ReceiveMeter::default(),
            counts: Counts::default(),
            charged: 0,
            reassembly: Reassembly::default(),
            board: Scoreboard::new(),
            rtt,
            congestion,
            recovery: Recovery::new(iss),
            ecn: Ecn::default(),
            timers: Timers::default(),
            timestamps: config.timestamps,
            sack: config.sack,
            clock_offset,
            shut: false,
            orphan: false,
            ack: AckNeed::None,
            syn_due: false,
            probe_due: false,
            push_small: false,
            tail_probe: false,
            reset: None,
            challenges: (0, 0),
            config,
        }
    }

    /// Begins a connection (active OPEN, RFC 9293, section 3.10.1). `ports` are the own one and the
    /// peer's; `iss` and `clock_offset` come from a [`crate::Secret`].
    #[must_use]
    pub fn connect(
        config: Config,
        now: Nanos,
        ports: (u16, u16),
        iss: Seq,
        clock_offset: u32,
    ) -> Self {
        let mut connection = Self::new(config, now, ports, iss, clock_offset);
        connection.state = State::SynSent;
        connection.active = true;
        connection.syn_due = true;
        connection
    }

    /// Opens a connection of a handshake that a listener has made, with the listener's settings.
    /// The segment that completed the handshake is to be given to it next.
    #[must_use]
    pub fn open(config: Config, now: Nanos, handshake: &Handshake) -> Self {
        let config = Config {
            mss: handshake.mss,
            window_scale: handshake.shifts.map(|(own, _)| own),
            timestamps: handshake.recent.is_some(),
            sack: handshake.sack,
            ..config
        };
        let (iss, offset) = (handshake.iss, handshake.clock_offset);
        let ports = handshake.ends.ports();
        let mut connection = Self::new(config, now, ports, iss, offset);
        connection.take_syn(
            now,
            &Segment {
                header: handshake.syn(),
                payload: &[],
            },
        );
        connection.ecn.agreed = handshake.ecn;
        connection.state = State::SynReceived;
        let (start, end) = (connection.snd.iss, connection.snd.iss + 1);
        connection.snd.nxt = end;
        if connection.board.has_room(1) {
            connection
                .board
                .push(start, end, handshake.sent.unwrap_or(now));
            if handshake.sent.is_none() {
                // No round trip can be measured by it.
                connection.board.retransmit(0, 1, now);
            }
        }
        let window = u64::from(handshake.window);
        connection.rcv.largest_window = window;
        connection.rcv.edge = connection.rcv.nxt + window;
        connection.rcv.acknowledged = connection.rcv.nxt;
        connection.timers.retransmission = Some(now + connection.rtt.rto());
        connection
    }

    /// The state.
    #[must_use]
    pub fn state(&self) -> State {
        self.state
    }

    /// Whether a segment that comes brings the next bytes and nothing else,
    /// while nothing before them is missing. The answer to such a segment may wait for others that
    /// have come behind it already, as if all had come as one (Linux `tcp_gro_receive`).
    #[must_use]
    pub fn continues(&self, segment: &Segment<'_>) -> bool {
        let header = &segment.header;
        self.state == State::Established
            && header.flags == Flags::ACK
            && !segment.payload.is_empty()
            && header.ack == Seq::of(self.snd.una)
            && self.expects(header.seq)
    }

    /// Whether all that came before a number was delivered, and nothing from behind it waits.
    #[must_use]
    pub fn expects(&self, seq: Seq) -> bool {
        Seq::of(self.rcv.nxt) == seq && self.reassembly.is_empty()
    }

    /// Why the connection ended, once it did otherwise than by both ends' FINs.
    #[must_use]
    pub fn error(&self) -> Option<Error> {
        self.error
    }

    /// The program sends nothing more: a FIN is due behind what is queued (CLOSE, RFC 9293,
    /// section 3.10.4).
    pub fn shutdown(&mut self) {
        self.shut = true;
        match self.state {
            State::SynSent => self.close(None),
            State::Established => self.state = State::FinWait1,
            State::CloseWait => self.state = State::LastAck,
            _ => {}
        }
    }

    /// The program has closed the socket: as [`Self::shutdown`], and nothing is received any more.
    pub fn release(&mut self, now: Nanos) {
        self.orphan = true;
        self.shutdown();
        if self.state == State::FinWait2 {
            self.wait_for_fin(now);
        }
    }

    /// Waits for the peer's FIN, now that nobody reads what else it sends.
    fn wait_for_fin(&mut self, now: Nanos) {
        match self.config.fin_timeout {
            Some(timeout) => self.timers.linger = Some(now + timeout),
            None => {
                self.reset = Some(self.reset_header());
                self.close(None);
            }
        }
    }

    /// Resets the connection (ABORT, RFC 9293, section 3.10.5).
    pub fn abort(&mut self) {
        if !matches!(self.state, State::Closed | State::SynSent | State::TimeWait) {
            self.reset = Some(self.reset_header());
        }
        self.close(Some(Error::Aborted));
    }

    /// Ends the connection as a reset of the peer's does: whoever was on the way to it is gone for
    /// good, and nothing is sent to it.
    pub fn lose(&mut self) {
        match self.state {
            State::SynSent | State::SynReceived => self.close(Some(Error::Refused)),
            State::TimeWait => {}
            State::Closing | State::LastAck => self.close(None),
            _ => self.close(Some(Error::Reset)),
        }
    }

    /// Marks the last of the first `count` bytes that the program has sent as urgent, unless one
    /// behind it is (RFC 9293, section 3.8.5).
    pub fn mark_urgent(&mut self, count: u64) {
        let behind = self.snd.iss + 1 + count;
        self.snd.urgent = self.snd.urgent.max(Some(behind));
    }

    /// Takes an error that ICMP reports of the segment that began with `quoted` (RFC 5927, section
    /// 4; RFC 1122, section 4.2.3.9). While connecting it is the end, later it is remembered for
    /// the time-out. Returns whether that segment is outstanding: else the error is not believed.
    pub fn icmp_error(&mut self, quoted: Seq, error: Error) -> bool {
        let is_believed = self.is_outstanding(quoted);
        if is_believed && self.state == State::SynSent {
            self.close(Some(error));
        } else if is_believed {
            self.soft_error = Some(error);
        }
        is_believed
    }

    /// Takes a path's limit, as payload of a segment without options, that ICMP reports of the
    /// segment that began with `quoted` (RFC 1191, section 6; RFC 8201, section 5; RFC 5927).
    /// Returns as [`Self::icmp_error`].
    pub fn path_limit(&mut self, now: Nanos, quoted: Seq, mss: u16) -> bool {
        let is_believed = self.is_outstanding(quoted);
        if is_believed && mss < self.snd.path_mss {
            self.limit_path(now, mss.max(self.config.least_mss));
            self.board.lose_longer(u64::from(self.mss()));
        }
        is_believed
    }

    fn limit_path(&mut self, now: Nanos, mss: u16) {
        self.snd.path_mss = mss;
        self.snd.path_since = Some(now);
        self.congestion.resize(u64::from(self.mss()));
    }

    fn is_outstanding(&self, quoted: Seq) -> bool {
        let quoted = quoted.near(self.snd.una);
        self.snd.una <= quoted && quoted < self.snd.nxt
    }

    /// Memory that was charged to the buffers and not given back.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.charged
    }

    /// Throws away what came out of order, because memory is short. The peer sends it again.
    pub fn prune(&mut self, buffers: &mut impl Buffers) {
        self.reassembly.clear();
        self.settle(buffers);
    }

    /// Gives back memory that is not needed any more.
    fn settle(&mut self, buffers: &mut impl Buffers) {
        self.board.shrink();
        let used = self.reassembly.memory() + self.board.memory();
        if used < self.charged {
            buffers.uncharge(self.charged - used);
            self.charged = used;
        }
    }

    /// Asks the buffers for memory.
    fn charge(&mut self, bytes: usize, buffers: &mut impl Buffers) -> bool {
        let granted = bytes == 0 || buffers.charge(bytes);
        if granted {
            self.charged += bytes;
        }
        granted
    }

    /// Whether so many more segments can be noted as outstanding.
    fn has_records(&mut self, count: usize, buffers: &mut impl Buffers) -> bool {
        self.charge(self.board.growth(count), buffers) && self.board.has_room(count)
    }

    /// The rest of a connection whose ends are both closed: a small record that can stand for it.
    #[must_use]
    pub fn time_wait(&self) -> Option<TimeWait> {
        if self.state != State::TimeWait {
            return None;
        }
        Some(TimeWait {
            ports: (self.local, self.remote),
            snd_nxt: Seq::of(self.snd.nxt),
            rcv_nxt: Seq::of(self.rcv.nxt),
            recent: self.rcv.recent,
            clock_offset: self.clock_offset,
            span: self.config.time_wait,
            until: self.timers.linger?,
            answered: None,
        })
    }

    /// Whether the counts agree with what they count, for tests.
    #[must_use]
    pub fn is_consistent(&self) -> bool {
        self.board.is_consistent()
            && self.snd.una <= self.snd.nxt
            && self
                .board
                .first()
                .is_none_or(|first| first.start == self.snd.una)
    }

    /// Ends the connection.
    fn close(&mut self, error: Option<Error>) {
        self.state = State::Closed;
        self.error = self.error.or(error);
        self.timers = Timers::default();
        self.reassembly.clear();
        self.board = Scoreboard::new();
        self.ack = AckNeed::None;
        self.syn_due = false;
        self.probe_due = false;
    }

    /// Largest payload of a segment that is sent: beside the options that each has.
    fn mss(&self) -> u16 {
        let options = if self.timestamps {
            crate::segment::TIMESTAMPS as u16
        } else {
            0
        };
        self.snd
            .peer_mss
            .min(self.snd.path_mss)
            .min(self.config.max_segment.unwrap_or(u16::MAX))
            .saturating_sub(options)
            .max(1)
    }

    /// Position of the first byte that the buffers hold.
    fn data_start(&self) -> Position {
        self.snd.una.max(self.snd.iss + 1)
    }

    /// Position behind the last byte that the buffers hold.
    fn data_end(&self, buffers: &impl Buffers) -> Position {
        match self.snd.fin {
            Some(fin) => fin,
            None => self.data_start() + buffers.queued() as u64,
        }
    }

    /// The sender's clock (RFC 7323, section 5.4): a millisecond a step.
    fn clock(&self, now: Nanos) -> u32 {
        ((now / MILLISECOND) as u32).wrapping_add(self.clock_offset)
    }

    /// Whether one more challenge may be sent in this second (RFC 5961, section 7).
    fn may_challenge(&mut self, now: Nanos) -> bool {
        if now.saturating_sub(self.challenges.0) >= SECOND {
            self.challenges = (now, 0);
        }
        self.challenges.1 += 1;
        self.challenges.1 <= self.config.challenges
    }
}
