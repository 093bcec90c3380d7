//! A connection that a SYN has asked for and that is not open yet, as a small record (RFC 9293,
//! section 3.10.7.2: the SYN-RECEIVED state of a listener).

use core::net::SocketAddr;

use crate::segment::{Flags, Header, Options, Timestamps};
use crate::seq::Seq;
use crate::{MILLISECOND, Nanos};

/// Addresses and ports of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Ends {
    /// This end.
    pub local: SocketAddr,
    /// The peer's.
    pub remote: SocketAddr,
}

impl Ends {
    /// Own port and the peer's.
    #[must_use]
    pub fn ports(&self) -> (u16, u16) {
        (self.local.port(), self.remote.port())
    }
}

/// The terms on which a connection begins: what a SYN said and what answered it.
/// [`crate::Connection::open`] makes a connection of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Handshake {
    pub(crate) ends: Ends,
    /// Own initial number, and the peer's.
    pub(crate) iss: Seq,
    pub(crate) irs: Seq,
    /// Largest segment that this end takes, and that the peer takes.
    pub(crate) mss: u16,
    pub(crate) peer_mss: u16,
    /// Window that the answer advertises, and that of the SYN.
    pub(crate) window: u16,
    pub(crate) peer_window: u16,
    /// Shifts of this end's windows and of the peer's, if both scale.
    pub(crate) shifts: Option<(u8, u8)>,
    /// Both understand selective acknowledgements.
    pub(crate) sack: bool,
    /// Both understand explicit congestion notification.
    pub(crate) ecn: bool,
    /// Clock of the peer that is echoed, if both use timestamps.
    pub(crate) recent: Option<u32>,
    pub(crate) clock_offset: u32,
    /// When the answer was sent, if that was once and is known.
    pub(crate) sent: Option<Nanos>,
    /// Nothing was kept of it: it comes from a SYN cookie.
    pub(crate) cookie: bool,
    /// The place of the ends in the listener's table; of a cookie nothing is there.
    pub(crate) place: u32,
}

impl Handshake {
    /// Addresses and ports.
    #[must_use]
    pub fn ends(&self) -> &Ends {
        &self.ends
    }

    /// Own initial sequence number: with the ends it names the handshake.
    #[must_use]
    pub fn iss(&self) -> Seq {
        self.iss
    }

    /// Shift of the windows that this end advertises.
    #[must_use]
    pub fn window_shift(&self) -> u8 {
        self.shifts.map_or(0, |(own, _)| own)
    }

    /// The clock of this end (RFC 7323, section 5.4).
    pub(crate) fn clock(&self, now: Nanos) -> u32 {
        ((now / MILLISECOND) as u32).wrapping_add(self.clock_offset)
    }

    /// The peer's SYN, as far as it matters.
    pub(crate) fn syn(&self) -> Header {
        Header {
            source: self.ends.remote.port(),
            destination: self.ends.local.port(),
            seq: self.irs,
            flags: Flags::SYN,
            window: self.peer_window,
            options: Options {
                mss: Some(self.peer_mss),
                window_scale: self.shifts.map(|(_, theirs)| theirs),
                sack_permitted: self.sack,
                timestamps: self.recent.map(|value| Timestamps { value, echo: 0 }),
                ..Options::default()
            },
            ..Header::default()
        }
    }

    /// The answer to the SYN, with this value of the clock.
    pub(crate) fn answer(&self, clock: u32) -> Header {
        let mut header = self.acknowledgement(clock);
        header.seq = self.iss;
        header.flags |= Flags::SYN;
        header.flags.set(Flags::ECE, self.ecn);
        header.window = self.window;
        header.options.mss = Some(self.mss);
        header.options.window_scale = self.shifts.map(|(own, _)| own);
        header.options.sack_permitted = self.sack;
        header
    }

    /// An acknowledgement of the SYN alone: the answer to what is not acceptable.
    pub(crate) fn acknowledgement(&self, clock: u32) -> Header {
        Header {
            source: self.ends.local.port(),
            destination: self.ends.remote.port(),
            seq: self.iss.plus(1),
            ack: self.irs.plus(1),
            flags: Flags::ACK,
            window: self.window >> self.window_shift(),
            urgent: 0,
            options: Options {
                timestamps: self.recent.map(|echo| Timestamps { value: clock, echo }),
                ..Options::default()
            },
        }
    }
}
