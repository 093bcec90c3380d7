//! Who talks to whom in a packet, and packets of others made of it.

use core::net::SocketAddrV4;

use crate::icmp::{self, kind};
use crate::ipv4::Header;
use crate::{ChecksumUpdate, Malformed, checksum};

/// A protocol whose packets can be translated.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Protocol {
    /// Requests for an echo, and their answers.
    Icmp = 1,
    /// TCP.
    Tcp = 6,
    /// UDP.
    Udp = 17,
}

impl Protocol {
    /// The protocol with a number.
    #[must_use]
    pub fn of(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Icmp),
            6 => Some(Self::Tcp),
            17 => Some(Self::Udp),
            _ => None,
        }
    }

    /// Place of the checksum behind IP's header.
    pub(super) fn checksum_at(self) -> usize {
        match self {
            Self::Icmp => 2,
            Self::Tcp => 16,
            Self::Udp => 6,
        }
    }
}

/// Two ends of a conversation, as a packet has them. The number of an echo stands for the port of
/// the one who asks; the other one's is 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Tuple {
    /// Protocol.
    pub protocol: Protocol,
    /// The sender.
    pub from: SocketAddrV4,
    /// The receiver.
    pub to: SocketAddrV4,
}

impl Tuple {
    /// The ends of a packet, of which at least eight bytes behind the header are there.
    ///
    /// # Errors
    /// It is of another protocol or a later fragment, or has no ports; it is a message of ICMP that
    /// is not about echoes.
    pub fn of(header: &Header, payload: &[u8]) -> Result<Self, Malformed> {
        let protocol = Protocol::of(header.protocol).ok_or(Malformed)?;
        let first = payload.first_chunk::<8>().ok_or(Malformed)?;
        if header.offset != 0 {
            return Err(Malformed);
        }
        let word = |at: usize| u16::from_be_bytes([first[at], first[at + 1]]);
        let (from, to) = match (protocol, first[0]) {
            (Protocol::Icmp, kind::ECHO) => (word(4), 0),
            (Protocol::Icmp, kind::ECHO_REPLY) => (0, word(4)),
            (Protocol::Icmp, _) => return Err(Malformed),
            _ if word(0) == 0 || word(2) == 0 => return Err(Malformed),
            _ => (word(0), word(2)),
        };
        Ok(Self {
            protocol,
            from: SocketAddrV4::new(header.source, from),
            to: SocketAddrV4::new(header.destination, to),
        })
    }

    /// The ends of an answer.
    #[must_use]
    pub fn reversed(self) -> Self {
        Self {
            from: self.to,
            to: self.from,
            ..self
        }
    }

    /// Makes a packet of one that has other ends, with the rest as it is. Its checksum is updated,
    /// if it is there: a wrong one stays wrong.
    pub fn write(self, header: &mut Header, payload: &mut [u8]) {
        let mut update = ChecksumUpdate::default();
        // ICMP's checksum covers no addresses.
        if self.protocol != Protocol::Icmp {
            update.replace(header.source.octets(), self.from.ip().octets());
            update.replace(header.destination.octets(), self.to.ip().octets());
        }
        (header.source, header.destination) = (*self.from.ip(), *self.to.ip());
        let mut put = |at: usize, number: u16| {
            if let Some(place) = payload
                .get_mut(at..)
                .and_then(|rest| rest.first_chunk_mut())
            {
                update.replace(*place, number.to_be_bytes());
                *place = number.to_be_bytes();
            }
        };
        if self.protocol == Protocol::Icmp {
            // One of them is 0.
            put(4, self.from.port() | self.to.port());
        } else {
            put(0, self.from.port());
            put(2, self.to.port());
        }
        let at = self.protocol.checksum_at();
        let Some(place) = payload
            .get_mut(at..)
            .and_then(|rest| rest.first_chunk_mut())
        else {
            return;
        };
        let old = u16::from_be_bytes(*place);
        let is_udp = self.protocol == Protocol::Udp;
        if is_udp && old == 0 {
            return; // There is none.
        }
        let new = match update.apply(old) {
            0 if is_udp => u16::MAX,
            new => new,
        };
        *place = new.to_be_bytes();
    }

    /// Gives the packet that an ICMP error quotes these ends, and the message a checksum that is
    /// right.
    ///
    /// # Errors
    /// It quotes none.
    pub fn write_quoted(self, message: &mut [u8]) -> Result<(), Malformed> {
        let (_, quote) = message
            .split_first_chunk_mut::<{ icmp::HEADER }>()
            .ok_or(Malformed)?;
        self.write_packet(quote)?;
        message[2..4].fill(0);
        let sum = checksum(message);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        Ok(())
    }

    /// Gives a packet with its header, or the beginning of one, these ends.
    ///
    /// # Errors
    /// There is no header.
    pub fn write_packet(self, packet: &mut [u8]) -> Result<(), Malformed> {
        let (mut header, rest) = Header::parse_quoted(packet)?;
        let at = packet.len() - rest.len();
        let (head, payload) = packet.split_at_mut(at);
        self.write(&mut header, payload);
        let mut update = ChecksumUpdate::default();
        for (at, address) in [(12, header.source), (16, header.destination)] {
            if let Some(place) = head.get_mut(at..).and_then(|rest| rest.first_chunk_mut()) {
                update.replace(*place, address.octets());
                *place = address.octets();
            }
        }
        let sum = update.apply(u16::from_be_bytes([head[10], head[11]]));
        head[10..12].copy_from_slice(&sum.to_be_bytes());
        Ok(())
    }
}
