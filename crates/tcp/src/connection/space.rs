//! Buffers that tune themselves: dynamic right-sizing of the receive buffer (Fisk and Feng,
//! "Dynamic adjustment of TCP window sizes", 2000) in the manner of Linux' `tcp_rcv_space_adjust`,
//! and a send buffer of twice the congestion window.

use super::{Buffers, Connection};
use crate::seq::Position;
use crate::{MILLISECOND, Nanos};

/// Segments that a receive buffer holds beyond what came in two round trips.
const CUSHION: u64 = 16;
/// Segments that the peer is thought to send in the first round trip (RFC 6928).
const FIRST: u64 = 10;

/// Sizes that the buffers of a connection should have, in bytes of data. They only grow; the
/// caller has the last word (`tcp_rmem`, `tcp_wmem`, `SO_RCVBUF`, memory that is short).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Space {
    /// For what is not acknowledged yet.
    pub send: u64,
    /// For what is not read yet: the window.
    pub receive: u64,
}

/// Measures how much the program reads in a round trip.
#[derive(Clone, Debug, Default)]
pub(super) struct ReceiveMeter {
    /// Smoothed round trip as a receiver sees it, in eighths, as Linux keeps it.
    rtt: Nanos,
    /// Since when, and up to where, a window's worth is awaited.
    window: Option<(Nanos, Position)>,
    /// Clock that was echoed last.
    echo: u32,
    /// Position that the program had read up to when the round trip began.
    since: Option<(Nanos, Position)>,
    /// Most bytes that the program has read in a round trip.
    space: u64,
    wanted: u64,
}

impl ReceiveMeter {
    fn round_trip(&mut self, sample: Nanos, from_window: bool) {
        self.rtt = match (self.rtt, from_window) {
            (0, _) => sample * 8,
            // A window may take longer than a round trip, not less.
            (rtt, true) => rtt.min(sample * 8),
            (rtt, false) => rtt - rtt / 8 + sample,
        };
    }

    /// Round trip, as far as it is known.
    pub(super) fn rtt(&self) -> Nanos {
        self.rtt / 8
    }

    /// Most bytes that the program has read in a round trip.
    pub(super) fn space(&self) -> u64 {
        self.space
    }

    /// Measures the round trip by data that came: by the clock that the peer returns, or by the
    /// time that a window takes.
    pub(super) fn arrived(
        &mut self,
        now: Nanos,
        echo: Option<(u32, Nanos)>,
        nxt: Position,
        edge: Position,
    ) {
        if let Some((echo, sent)) = echo {
            if echo != self.echo {
                self.echo = echo;
                self.round_trip(now.saturating_sub(sent).max(MILLISECOND), false);
            }
            return;
        }
        if let Some((since, end)) = self.window {
            if nxt < end {
                return;
            }
            self.round_trip(now.saturating_sub(since).max(1), true);
        }
        self.window = Some((now, edge));
    }

    /// Judges what the program has read, once in a round trip.
    pub(super) fn adjust(&mut self, now: Nanos, read: Position, mss: u64) {
        let Some((since, from)) = self.since else {
            self.since = Some((now, read));
            self.space = FIRST * mss;
            return;
        };
        if self.rtt == 0 || now.saturating_sub(since) < self.rtt() {
            return;
        }
        self.since = Some((now, read));
        let copied = read.saturating_sub(from);
        if copied <= self.space {
            return;
        }
        // Twice what came, for losses; and as much more as the sender has become faster.
        let base = 2 * copied + CUSHION * mss;
        let faster = u128::from(base) * u128::from(copied - self.space) / u128::from(self.space);
        let wanted = u128::from(base) + 2 * faster;
        self.wanted = self.wanted.max(u64::try_from(wanted).unwrap_or(u64::MAX));
        self.space = copied;
    }
}

impl Connection {
    /// Sizes that the buffers should have now. To be asked after [`Self::next`].
    #[must_use]
    pub fn space(&self) -> Space {
        let initial = u64::from(self.mss()) * u64::from(self.config.initial_window);
        Space {
            send: 2 * self.congestion.cwnd.max(initial),
            receive: self.meter.wanted,
        }
    }

    /// Looks how far the program has read.
    pub(super) fn measure_reading(&mut self, now: Nanos, buffers: &impl Buffers) {
        if self.state.receives() {
            let read = self.rcv.nxt.saturating_sub(buffers.unread() as u64);
            self.meter.adjust(now, read, self.rcv.mss);
        }
    }
}
