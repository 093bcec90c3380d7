//! The states of flows: as much of them as tells how long one that is silent is kept. The states
//! and times are those of Linux' `nf_conntrack_proto_tcp.c`, `_udp.c` and `_icmp.c` (6.1).

use super::tuple::{Protocol, Tuple};
use crate::icmp::kind::ECHO;
use crate::{Nanos, SECOND};

/// The state of a flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum State {
    /// A SYN has gone.
    SynSent,
    /// The SYN was answered.
    SynReceived,
    /// There is a connection.
    Established,
    /// One side sends no more.
    FinWait,
    /// The other one has acknowledged that.
    CloseWait,
    /// Both send no more.
    LastAck,
    /// Both have acknowledged that.
    TimeWait,
    /// The connection was reset.
    Close,
    /// Segments were seen, but not its beginning, or a reset that may be forged.
    Unacknowledged,
    /// Datagrams have gone one way.
    Udp,
    /// Datagrams have gone both ways.
    UdpStream,
    /// Echoes.
    Icmp,
}

impl State {
    /// How many states there are.
    pub const COUNT: usize = Self::Icmp as usize + 1;

    /// All of them, in the order of their numbers.
    pub(super) const ALL: [Self; Self::COUNT] = [
        Self::SynSent,
        Self::SynReceived,
        Self::Established,
        Self::FinWait,
        Self::CloseWait,
        Self::LastAck,
        Self::TimeWait,
        Self::Close,
        Self::Unacknowledged,
        Self::Udp,
        Self::UdpStream,
        Self::Icmp,
    ];

    /// The state of that number, if flows of the protocol have it.
    #[must_use]
    pub fn of(number: u8, protocol: Protocol) -> Option<Self> {
        let state = Self::ALL.get(usize::from(number)).copied()?;
        let is_of = match state {
            Self::Udp | Self::UdpStream => protocol == Protocol::Udp,
            Self::Icmp => protocol == Protocol::Icmp,
            _ => protocol == Protocol::Tcp,
        };
        is_of.then_some(state)
    }

    /// How long a flow is kept without packets.
    #[must_use]
    pub fn patience(self) -> Nanos {
        let seconds = match self {
            Self::SynSent | Self::FinWait | Self::TimeWait | Self::UdpStream => 120,
            Self::SynReceived | Self::CloseWait => 60,
            Self::Established => 5 * 24 * 3600,
            Self::LastAck | Self::Udp | Self::Icmp => 30,
            Self::Close => 10,
            Self::Unacknowledged => 300,
        };
        seconds * SECOND
    }
}

/// The direction of a packet in a flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Direction {
    /// From who began the flow.
    Original,
    /// To who began the flow.
    Reply,
}

impl Direction {
    /// The other one.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::Original => Self::Reply,
            Self::Reply => Self::Original,
        }
    }
}

/// The fields of a segment that its state depends on.
#[derive(Clone, Copy)]
struct Segment {
    seq: u32,
    ack: u32,
    flags: u8,
}

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

impl Segment {
    fn parse(payload: &[u8]) -> Option<Self> {
        let head = payload.first_chunk::<20>()?;
        let length = usize::from(head[12] >> 4) * 4;
        let flags = head[13] & (FIN | SYN | RST | ACK);
        // Both a beginning and an end is none.
        let is_odd = flags & SYN != 0 && flags & (FIN | RST) != 0;
        if !(20..=payload.len()).contains(&length) || is_odd {
            return None;
        }
        Some(Self {
            seq: u32::from_be_bytes([head[4], head[5], head[6], head[7]]),
            ack: u32::from_be_bytes([head[8], head[9], head[10], head[11]]),
            flags,
        })
    }

    fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// The progress of a flow.
#[derive(Clone, Copy, Debug)]
pub(super) struct Progress {
    pub(super) state: State,
    /// The side that has sent a FIN first.
    pub(super) closing: Option<Direction>,
    /// The last number that each side has acknowledged.
    pub(super) acknowledged: [Option<u32>; 2],
}

impl Progress {
    /// The progress of a flow of which no more is known than this.
    pub(super) fn known(state: State, closing: Option<Direction>) -> Self {
        Self {
            state,
            closing,
            acknowledged: [None; 2],
        }
    }

    /// The progress of a flow that a packet begins; `None` if it begins none.
    pub(super) fn begin(arriving: Tuple, payload: &[u8]) -> Option<Self> {
        let (state, ack) = match arriving.protocol {
            Protocol::Icmp if payload.first() == Some(&ECHO) => (State::Icmp, None),
            Protocol::Icmp => return None,
            Protocol::Udp => (State::Udp, None),
            Protocol::Tcp => {
                let segment = Segment::parse(payload)?;
                match segment.flags {
                    SYN => (State::SynSent, None),
                    // One whose beginning was before the table's, or whose time was over
                    // (nf_conntrack_tcp_loose).
                    ACK => (State::Unacknowledged, Some(segment.ack)),
                    _ => return None,
                }
            }
        };
        Some(Self {
            state,
            closing: None,
            acknowledged: [ack, None],
        })
    }

    /// A packet has come. Returns whether it may be part of the flow.
    pub(super) fn packet(
        &mut self,
        protocol: Protocol,
        direction: Direction,
        payload: &[u8],
    ) -> bool {
        match protocol {
            Protocol::Icmp => true,
            Protocol::Udp => {
                if direction == Direction::Reply {
                    self.state = State::UdpStream;
                }
                true
            }
            Protocol::Tcp => Segment::parse(payload).is_some_and(|segment| {
                self.segment(direction, segment);
                true
            }),
        }
    }

    fn segment(&mut self, direction: Direction, segment: Segment) {
        use State::{
            Close, CloseWait, Established, FinWait, LastAck, SynReceived, SynSent, TimeWait,
            Unacknowledged,
        };
        let is_reply = direction == Direction::Reply;
        if segment.has(RST) {
            let expected = self.acknowledged[direction.other() as usize];
            // Only the number that is expected resets (RFC 5961, 3.2). What else may be a reset is
            // shown to be none by an answer.
            self.state = match self.state {
                Close | TimeWait => Close,
                _ if expected.is_none_or(|expected| expected == segment.seq) => Close,
                _ => Unacknowledged,
            };
            return;
        }
        if segment.has(SYN) {
            self.state = match (self.state, segment.has(ACK), is_reply) {
                (SynSent, _, true) => SynReceived,
                // The next connection between the same ends.
                (Close | TimeWait | LastAck, false, false) => {
                    self.closing = None;
                    self.acknowledged = [None; 2];
                    SynSent
                }
                (state, ..) => state,
            };
        }
        if segment.has(ACK) {
            self.acknowledged[direction as usize] = Some(segment.ack);
        }
        let by_other = self.closing.is_some_and(|closing| closing != direction);
        if segment.has(FIN) {
            self.state = match self.state {
                SynReceived | Established | Unacknowledged => {
                    self.closing = Some(direction);
                    FinWait
                }
                FinWait | CloseWait if by_other => LastAck,
                state => state,
            };
        } else if segment.has(ACK) && !segment.has(SYN) {
            self.state = match self.state {
                SynReceived if !is_reply => Established,
                Unacknowledged if is_reply => Established,
                FinWait if by_other => CloseWait,
                LastAck if !by_other => TimeWait,
                state => state,
            };
        }
    }
}
