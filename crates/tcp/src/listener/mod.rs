//! A listener: half-open connections as small records, SYN cookies where there are too many of
//! them, and the count of what waits to be accepted (RFC 9293, section 3.10.7.2; RFC 4987).

mod table;

use table::{Request, RequestTable};

use crate::handshake::{Ends, Handshake};
use crate::isn::Secret;
use crate::segment::{Flags, Header, LARGEST_SHIFT, Options};
use crate::seq::Seq;
use crate::syn_cookies::{self, ClockOptions, SynCookies};
use crate::time_wait::ANSWER_INTERVAL;
use crate::{Arrival, Config, Nanos};

/// Segment size of a peer that says none (RFC 9293, section 3.7.1).
const DEFAULT_MSS: u16 = 536;

/// The use of SYN cookies (`tcp_syncookies`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CookiePolicy {
    /// None: what finds the queue full is dropped, and the last quarter of `syn_backlog` stays
    /// free.
    Never,
    /// For what finds the queue full.
    #[default]
    WhenFull,
    /// For all.
    Always,
}

/// Settings of a listener. The defaults are those of Linux 6.1.
#[derive(Clone, Debug)]
pub struct ListenConfig {
    /// Settings of the connections.
    pub connection: Config,
    /// Connections that wait to be accepted, less one, and half-open ones (`listen(2)`, cut by
    /// `somaxconn`).
    pub backlog: usize,
    /// Half-open ones without cookies (`tcp_max_syn_backlog`).
    pub syn_backlog: usize,
    /// Use of SYN cookies.
    pub cookies: CookiePolicy,
    /// Window that a connection begins with, which is not scaled.
    pub window: u16,
    /// Refuse what finds too many connections waiting, instead of waiting for the peer to repeat
    /// itself (`tcp_abort_on_overflow`).
    pub abort_on_overflow: bool,
    /// Time-outs for which a connection waits for its first data before it is accepted
    /// (`TCP_DEFER_ACCEPT`, as [`defer_accept_retries`] counts them).
    pub defer_accept: u8,
}

impl Default for ListenConfig {
    fn default() -> Self {
        Self {
            connection: Config::default(),
            backlog: 4096,
            syn_backlog: 4096,
            cookies: CookiePolicy::default(),
            window: 0xffff,
            abort_on_overflow: false,
            defer_accept: 0,
        }
    }
}

/// Time-outs of the answer to a SYN in so many seconds: what `TCP_DEFER_ACCEPT` sets.
#[must_use]
pub fn defer_accept_retries(seconds: u32) -> u8 {
    let mut retries = 0;
    while defer_accept_seconds(retries) < seconds && retries < u8::MAX {
        retries += 1;
    }
    retries
}

/// Seconds of so many time-outs: what `TCP_DEFER_ACCEPT` gets.
#[must_use]
pub fn defer_accept_seconds(retries: u8) -> u32 {
    (0..u32::from(retries))
        .map(|turn| (1 << turn.min(7)).min(120))
        .sum()
}

/// A segment that came to a listener.
#[derive(Clone, Copy, Debug)]
pub struct Incoming<'a> {
    /// Addresses of both ends: this one's, and the sender's.
    pub ends: Ends,
    /// The segment.
    pub arrival: Arrival<'a>,
    /// Largest segment that the interface takes, as [`Config::mss`].
    pub mss: u16,
    /// Least initial number, if the connection follows one that waited for late segments
    /// ([`crate::Verdict::Reopen`]).
    pub iss: Option<Seq>,
}

/// Verdict of a listener on a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reaction {
    /// Nothing happens.
    Drop,
    /// A segment answers it.
    Answer(Header),
    /// A connection is open. The caller makes it by [`crate::Connection::open`], tells
    /// [`Listener::opened`], and gives the segment to it. If there is no memory, the caller does
    /// nothing: the peer repeats itself.
    Open(Handshake),
}

/// Events that a listener has counted (names of Linux' `/proc/net/netstat`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ListenCounts {
    /// `ListenOverflows`: too many connections waited to be accepted.
    pub overflows: u64,
    /// `ListenDrops`: SYNs and final acknowledgements that were dropped, for whatever reason.
    pub drops: u64,
    /// `TCPReqQFullDoCookies`: a cookie was sent because the queue was full.
    pub full_cookies: u64,
    /// `TCPReqQFullDrop`: a SYN was dropped because the queue was full.
    pub full_drops: u64,
    /// `SyncookiesSent`.
    pub cookies_sent: u64,
    /// `SyncookiesRecv`.
    pub cookies_received: u64,
    /// `SyncookiesFailed`: acknowledgements that are no valid cookie.
    pub cookies_failed: u64,
    /// `AttemptFails`: half-open connections that were reset.
    pub attempt_fails: u64,
    /// Answers that were sent again (`TCPSynRetrans`).
    pub retransmissions: u64,
    /// Half-open connections whose peer did not answer (`TCPTimeouts`).
    pub timeouts: u64,
}

/// A listener. It knows neither sockets nor connections that are open.
#[derive(Debug)]
pub struct Listener {
    config: ListenConfig,
    secret: Secret,
    places: Secret,
    table: RequestTable,
    /// Open connections that the program has not accepted.
    waiting: usize,
    /// When a cookie was sent last.
    cookie_sent: Option<Nanos>,
    counts: ListenCounts,
}

impl Listener {
    /// A listener whose initial numbers, clocks and table are protected by `secret`.
    #[must_use]
    pub fn new(config: ListenConfig, secret: Secret) -> Self {
        Self::with_places(config, secret, secret)
    }

    /// The same where places in the table are by another secret, which [`Secret::place`] of who
    /// calls [`Self::arrive_at`] is made with, too.
    #[must_use]
    pub fn with_places(config: ListenConfig, secret: Secret, places: Secret) -> Self {
        Self {
            config,
            secret,
            places,
            table: RequestTable::new(),
            waiting: 0,
            cookie_sent: None,
            counts: ListenCounts::default(),
        }
    }

    /// Settings, to be read.
    #[must_use]
    pub fn config(&self) -> &ListenConfig {
        &self.config
    }

    /// Settings, to be changed for what comes.
    pub fn config_mut(&mut self) -> &mut ListenConfig {
        &mut self.config
    }

    /// Half-open connections.
    #[must_use]
    pub fn half_open(&self) -> usize {
        self.table.len()
    }

    /// Connections that wait to be accepted.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Events that were counted.
    #[must_use]
    pub fn counts(&self) -> ListenCounts {
        self.counts
    }

    /// Memory that the half-open connections take, of which there are at most twice `backlog`.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.table.memory()
    }

    /// When [`Self::next`] is to be asked.
    #[must_use]
    pub fn deadline(&self) -> Option<Nanos> {
        self.table.deadline()
    }

    /// Whether queues and counts agree, for tests.
    #[must_use]
    pub fn is_consistent(&self) -> bool {
        self.table.is_consistent()
    }

    /// A connection was made of this handshake and waits to be accepted. False if that has
    /// happened before, or the handshake is over: the connection must not be.
    #[must_use]
    pub fn opened(&mut self, handshake: &Handshake) -> bool {
        if !handshake.cookie {
            let Some(place) = self.table.find(&handshake.ends, handshake.place) else {
                return false;
            };
            if self.table.get(place).handshake.iss != handshake.iss {
                return false;
            }
            self.table.remove(place);
        }
        self.waiting += 1;
        true
    }

    /// Sets how many connections wait to be accepted, where the caller counts them.
    pub fn set_waiting(&mut self, waiting: usize) {
        self.waiting = waiting;
    }

    /// The program has accepted a connection.
    pub fn accepted(&mut self) {
        self.waiting = self.waiting.saturating_sub(1);
    }

    /// An error that ICMP reports of the answer that began with `quoted`: the peer is not there.
    pub fn icmp_error(&mut self, ends: &Ends, quoted: Seq) {
        if let Some(place) = self.find(ends)
            && self.table.get(place).handshake.iss == quoted
        {
            self.table.remove(place);
            self.counts.drops += 1;
        }
    }

    fn hash(&self, ends: &Ends) -> u32 {
        self.places.place(ends) as u32
    }

    fn find(&self, ends: &Ends) -> Option<u32> {
        self.table.find(ends, self.hash(ends))
    }

    fn accepts_no_more(&self) -> bool {
        self.waiting > self.config.backlog
    }

    /// Takes a segment for this listener that belongs to no connection that is open.
    pub fn arrive(
        &mut self,
        now: Nanos,
        cookies: &SynCookies,
        incoming: &Incoming<'_>,
    ) -> Reaction {
        let place = self.places.place(&incoming.ends);
        self.arrive_at(now, cookies, incoming, place)
    }

    /// Takes a segment as [`Self::arrive`], where the place of its ends is known already.
    pub fn arrive_at(
        &mut self,
        now: Nanos,
        cookies: &SynCookies,
        incoming: &Incoming<'_>,
        place: u64,
    ) -> Reaction {
        let hash = place as u32;
        if let Some(place) = self.table.find(&incoming.ends, hash) {
            return self.arrive_half_open(now, place, incoming);
        }
        let header = &incoming.arrival.segment.header;
        if header.flags.contains(Flags::RST) {
            return Reaction::Drop;
        }
        if header.flags.contains(Flags::ACK) {
            if !header.flags.contains(Flags::SYN)
                && let Some(handshake) = self.check_cookie(now, cookies, incoming)
            {
                return self.open(handshake, incoming);
            }
            return refuse(incoming);
        }
        if header.flags & (Flags::SYN | Flags::FIN) != Flags::SYN {
            return Reaction::Drop;
        }
        self.arrive_syn(now, cookies, incoming, hash)
    }

    /// A SYN that begins something (RFC 9293, section 3.10.7.2); `hash` is of its ends.
    fn arrive_syn(
        &mut self,
        now: Nanos,
        cookies: &SynCookies,
        incoming: &Incoming<'_>,
        hash: u32,
    ) -> Reaction {
        let policy = self.config.cookies;
        let half_open = self.table.len();
        let follows = incoming.iss.is_some();
        // What follows an earlier connection has proven that it is there.
        let full = half_open >= self.config.backlog << u8::from(follows);
        if self.accepts_no_more() {
            self.counts.overflows += 1;
            return self.drop_syn();
        }
        if full {
            if policy == CookiePolicy::Never {
                self.counts.full_drops += 1;
                return self.drop_syn();
            }
            self.counts.full_cookies += 1;
        }
        if full || policy == CookiePolicy::Always && !follows {
            return self.send_cookie(now, cookies, incoming);
        }
        let backlog = self.config.syn_backlog;
        let free = backlog.saturating_sub(half_open);
        if policy == CookiePolicy::Never && !follows && free < backlog / 4 {
            return self.drop_syn();
        }
        let ends = &incoming.ends;
        let (first, clock_offset) = self.secret.initial(now, ends);
        let iss = incoming.iss.unwrap_or(first);
        let header = &incoming.arrival.segment.header;
        let mut handshake = self.terms(incoming, &header.options, iss, header.seq);
        handshake.clock_offset = clock_offset;
        handshake.place = hash;
        handshake.ecn = self.grants_ecn(header);
        handshake.sent = Some(now);
        let request = Request {
            handshake,
            timeouts: 0,
            acknowledged: false,
            answered: None,
        };
        if !self.table.insert(now, hash, request) {
            return match policy {
                CookiePolicy::Never => self.drop_syn(),
                _ => self.send_cookie(now, cookies, incoming),
            };
        }
        Reaction::Answer(handshake.answer(handshake.clock(now)))
    }

    fn drop_syn(&mut self) -> Reaction {
        self.counts.drops += 1;
        Reaction::Drop
    }

    /// The terms that a SYN's options and the settings agree on, but for the offset of the clock.
    fn terms(&self, incoming: &Incoming<'_>, options: &Options, iss: Seq, irs: Seq) -> Handshake {
        let config = &self.config.connection;
        let ends = incoming.ends;
        let shifts = match (config.window_scale, options.window_scale) {
            (Some(own), Some(theirs)) => Some((own.min(LARGEST_SHIFT), theirs)),
            _ => None,
        };
        Handshake {
            ends,
            iss,
            irs,
            mss: incoming.mss.min(config.max_segment.unwrap_or(u16::MAX)),
            peer_mss: options.mss.unwrap_or(DEFAULT_MSS),
            window: self.config.window,
            peer_window: incoming.arrival.segment.header.window,
            shifts,
            sack: config.sack && options.sack_permitted,
            ecn: false,
            recent: options
                .timestamps
                .filter(|_| config.timestamps)
                .map(|clock| clock.value),
            clock_offset: 0,
            sent: None,
            cookie: false,
            place: 0,
        }
    }

    /// Answers a SYN and keeps nothing.
    fn send_cookie(
        &mut self,
        now: Nanos,
        cookies: &SynCookies,
        incoming: &Incoming<'_>,
    ) -> Reaction {
        let header = &incoming.arrival.segment.header;
        let mut options = header.options;
        if options.timestamps.is_none() || !self.config.connection.timestamps {
            // There is no clock to hold them.
            (options.window_scale, options.sack_permitted) = (None, false);
        }
        let peer_mss = options.mss.unwrap_or(DEFAULT_MSS);
        let iss = cookies.make(now, &incoming.ends, header.seq, peer_mss);
        let mut handshake = self.terms(incoming, &options, iss, header.seq);
        handshake.clock_offset = self.secret.clock_offset(&incoming.ends);
        handshake.ecn = handshake.recent.is_some() && self.grants_ecn(header);
        let clock = syn_cookies::clock_with(
            now,
            handshake.clock_offset,
            ClockOptions {
                shift: handshake.shifts.map(|(_, theirs)| theirs),
                sack: handshake.sack,
                ecn: handshake.ecn,
            },
        );
        self.cookie_sent = Some(now);
        self.counts.cookies_sent += 1;
        Reaction::Answer(handshake.answer(clock))
    }

    /// Whether a SYN asks for explicit congestion notification and is to get it (RFC 3168, section
    /// 6.1.1).
    fn grants_ecn(&self, header: &Header) -> bool {
        self.config.connection.grants_ecn && header.flags.contains(Flags::ECE | Flags::CWR)
    }

    /// The handshake that an acknowledgement returns as a cookie.
    fn check_cookie(
        &mut self,
        now: Nanos,
        cookies: &SynCookies,
        incoming: &Incoming<'_>,
    ) -> Option<Handshake> {
        let recent = self
            .cookie_sent
            .is_some_and(|sent| now.saturating_sub(sent) < syn_cookies::VALID);
        if self.config.cookies == CookiePolicy::Never || !recent {
            return None;
        }
        let header = &incoming.arrival.segment.header;
        let (iss, irs) = (header.ack.plus(u32::MAX), header.seq.plus(u32::MAX));
        let Some(peer_mss) = cookies.check(now, &incoming.ends, irs, iss) else {
            self.counts.cookies_failed += 1;
            return None;
        };
        let mut options = Options {
            mss: Some(peer_mss),
            timestamps: header.options.timestamps,
            ..Options::default()
        };
        let mut ecn = false;
        if let Some(clock) = options
            .timestamps
            .filter(|_| self.config.connection.timestamps)
        {
            let ends = &incoming.ends;
            let offset = self.secret.clock_offset(ends);
            let Some(held) = syn_cookies::options_of(clock.echo, offset) else {
                self.counts.cookies_failed += 1;
                return None;
            };
            options.window_scale = held.shift;
            options.sack_permitted = held.sack;
            ecn = held.ecn;
        }
        self.counts.cookies_received += 1;
        let mut handshake = self.terms(incoming, &options, iss, irs);
        handshake.clock_offset = self.secret.clock_offset(&incoming.ends);
        handshake.ecn = ecn;
        handshake.cookie = true;
        Some(handshake)
    }

    /// A handshake is complete: there is a connection, if one more may wait.
    fn open(&mut self, handshake: Handshake, incoming: &Incoming<'_>) -> Reaction {
        if !self.accepts_no_more() {
            return Reaction::Open(handshake);
        }
        self.counts.overflows += 1;
        self.counts.drops += 1;
        if !self.config.abort_on_overflow {
            return Reaction::Drop;
        }
        if let Some(place) = self.find(&handshake.ends) {
            self.table.remove(place);
        }
        self.counts.attempt_fails += 1;
        refuse(incoming)
    }

    /// A segment for a half-open connection (RFC 9293, section 3.10.7.4: SYN-RECEIVED).
    fn arrive_half_open(&mut self, now: Nanos, place: u32, incoming: &Incoming<'_>) -> Reaction {
        let segment = &incoming.arrival.segment;
        let header = &segment.header;
        let request = self.table.get(place);
        let handshake = request.handshake;
        let expected = handshake.irs.plus(1);
        let past = match (handshake.recent, header.options.timestamps) {
            (Some(recent), Some(clock)) => Seq(clock.value).before(Seq(recent)),
            _ => false,
        };
        let controls = header.flags & (Flags::SYN | Flags::ACK | Flags::RST);
        if controls == Flags::SYN && header.seq == handshake.irs && !past {
            // The peer has not heard the answer.
            return self.answer_again(now, place);
        }
        if header.flags.contains(Flags::RST) {
            // RFC 5961, section 3.2.
            if header.seq == expected {
                self.table.remove(place);
                self.counts.attempt_fails += 1;
                return Reaction::Drop;
            }
            let inside = !header.seq.before(expected)
                && header
                    .seq
                    .before(expected.plus(u32::from(handshake.window)));
            return if inside {
                self.challenge(now, place)
            } else {
                Reaction::Drop
            };
        }
        if header.flags.contains(Flags::ACK) && header.ack != handshake.iss.plus(1) {
            return refuse(incoming);
        }
        let mut start = header.seq;
        if header.flags.contains(Flags::SYN) {
            // RFC 5961, section 4.2; one at the number of the first is a part of it.
            if header.seq != handshake.irs {
                return self.challenge(now, place);
            }
            start = expected;
        }
        if past || !is_inside(start, segment.len(), expected, handshake.window) {
            return self.challenge(now, place);
        }
        if !header.flags.contains(Flags::ACK) {
            return Reaction::Drop;
        }
        if let Some(clock) = header.options.timestamps
            && handshake.recent.is_some()
            && !expected.before(start)
        {
            request.handshake.recent = Some(clock.value);
        }
        request.acknowledged = true;
        let handshake = request.handshake;
        let defers = request.timeouts < self.config.defer_accept;
        if defers && segment.is_empty() && header.seq == expected {
            return Reaction::Drop;
        }
        self.open(handshake, incoming)
    }

    /// Sends the answer to a SYN again, because the SYN has come again.
    fn answer_again(&mut self, now: Nanos, place: u32) -> Reaction {
        if !self.may_answer(now, place) {
            return Reaction::Drop;
        }
        self.table.wait_again(now, place, false);
        Reaction::Answer(self.repeat(now, place))
    }

    fn repeat(&mut self, now: Nanos, place: u32) -> Header {
        self.counts.retransmissions += 1;
        let handshake = &mut self.table.get(place).handshake;
        handshake.sent = None;
        handshake.answer(handshake.clock(now))
    }

    fn challenge(&mut self, now: Nanos, place: u32) -> Reaction {
        if !self.may_answer(now, place) {
            return Reaction::Drop;
        }
        let handshake = &self.table.get(place).handshake;
        Reaction::Answer(handshake.acknowledgement(handshake.clock(now)))
    }

    fn may_answer(&mut self, now: Nanos, place: u32) -> bool {
        let answered = &mut self.table.get(place).answered;
        if answered.is_some_and(|last| now.saturating_sub(last) < ANSWER_INTERVAL) {
            return false;
        }
        *answered = Some(now);
        true
    }

    /// Time-outs after which a peer is given up: fewer while old handshakes fill more than half of
    /// the queue, so that one half is there for young ones (Linux `reqsk_timer_handler`).
    fn patience(&self) -> u32 {
        let mut retries = self.config.connection.syn_ack_retries;
        let len = self.table.len();
        if 2 * len > self.config.backlog.max(8) {
            let mut young = 2 * self.table.young();
            while retries > 2 && len >= young {
                retries -= 1;
                young *= 2;
            }
        }
        retries
    }

    /// The next answer that is due again, until there is none. Gives up handshakes whose time is
    /// over.
    pub fn next(&mut self, now: Nanos) -> Option<(Ends, Header)> {
        while let Some(place) = self.table.due(now) {
            let patience = self.patience();
            let defer = u32::from(self.config.defer_accept);
            let request = self.table.get(place);
            let timeouts = u32::from(request.timeouts);
            let acknowledged = request.acknowledged;
            let ends = request.handshake.ends;
            let over = timeouts >= patience && (!acknowledged || timeouts >= defer);
            if over {
                self.table.remove(place);
                self.counts.timeouts += 1;
                continue;
            }
            self.table.wait_again(now, place, true);
            // Who waits for data asks for it at the end of the time only.
            if !acknowledged || timeouts + 1 >= defer {
                return Some((ends, self.repeat(now, place)));
            }
        }
        None
    }
}

/// Whether a segment has anything in the window that begins at `expected` (RFC 9293, section
/// 3.10.7.4, table 6).
fn is_inside(start: Seq, length: u32, expected: Seq, window: u16) -> bool {
    let end = start.plus(length);
    let edge = expected.plus(u32::from(window));
    if length == 0 || window == 0 {
        start == expected || !start.before(expected) && start.before(edge)
    } else {
        start.before(edge) && expected.before(end)
    }
}

/// A reset that answers a segment.
fn refuse(incoming: &Incoming<'_>) -> Reaction {
    let refusal = incoming.arrival.segment.refusal();
    refusal.map_or(Reaction::Drop, Reaction::Answer)
}
