//! Queries in frames of Ethernet, UDP over IPv4.

use core::net::Ipv4Addr;

use ip::Checksum;
use ip::ipv4::{self, Header, Packet};

use crate::Zone;
use crate::message::{REPLY_ROOM, answer};

/// Port of name servers.
const PORT: u16 = 53;
/// Number of UDP.
const UDP: u8 = 17;
/// Bytes of headers: Ethernet, UDP.
const ETHERNET: usize = 14;
const UDP_HEADER: usize = 8;
const IPV4: [u8; 2] = [0x08, 0x00];
/// Hops that a reply may take.
const HOPS: u8 = 64;

const HEADERS: usize = ETHERNET + ipv4::HEADER + UDP_HEADER;
/// Bytes of a frame with a reply, at most.
pub const FRAME_ROOM: usize = HEADERS + REPLY_ROOM;

/// A frame that answers another.
#[derive(Clone, Debug)]
pub struct FrameReply {
    bytes: [u8; FRAME_ROOM],
    len: usize,
}

impl FrameReply {
    /// The bytes of the frame.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Whether a frame is for the name server at an address, and what it answers: `None` is a frame for
/// somebody else, `Some(None)` one that is not answered.
///
/// It is for the name server if it is a whole datagram of UDP to port 53 of that address, whatever
/// is in it.
#[must_use]
pub fn answer_frame(
    frame: &[u8],
    server: Ipv4Addr,
    zone: &impl Zone,
) -> Option<Option<FrameReply>> {
    let (ethernet, rest) = frame.split_at_checked(ETHERNET)?;
    if ethernet[12..] != IPV4 {
        return None;
    }
    let packet = Packet::parse(rest).ok()?;
    let header = packet.header;
    if header.destination != server || header.protocol != UDP || header.is_fragment() {
        return None;
    }
    let udp = packet.payload.first_chunk::<UDP_HEADER>()?;
    let word = |at: usize| u16::from_be_bytes([udp[at], udp[at + 1]]);
    let (from, to, length, sum) = (word(0), word(2), usize::from(word(4)), word(6));
    if to != PORT {
        return None;
    }
    let datagram = packet.payload.get(..length);
    let is_whole = |datagram: &&[u8]| {
        let mut all = Checksum::pseudo_header(header.source, server, UDP, length);
        all.add(datagram);
        datagram.len() >= UDP_HEADER && (sum == 0 || all.finish() == 0)
    };
    let Some(datagram) = datagram.filter(is_whole).filter(|_| from != 0) else {
        return Some(None);
    };
    let reply = answer(&datagram[UDP_HEADER..], zone);
    Some(reply.map(|reply| {
        let mut message = [0; UDP_HEADER + REPLY_ROOM];
        let length = UDP_HEADER + reply.bytes().len();
        let message = &mut message[..length];
        message[..2].copy_from_slice(&PORT.to_be_bytes());
        message[2..4].copy_from_slice(&from.to_be_bytes());
        message[4..6].copy_from_slice(&(length as u16).to_be_bytes());
        message[UDP_HEADER..].copy_from_slice(reply.bytes());
        let mut sum = Checksum::pseudo_header(server, header.source, UDP, length);
        sum.add(message);
        // A sum of 0 is sent as its other form: 0 is none (RFC 768).
        let sum = match sum.finish() {
            0 => u16::MAX,
            sum => sum,
        };
        message[6..8].copy_from_slice(&sum.to_be_bytes());
        let back = Header {
            tos: header.tos,
            // One that is never cut needs no number (RFC 6864).
            id: 0,
            dont_fragment: true,
            more_fragments: false,
            offset: 0,
            ttl: HOPS,
            protocol: UDP,
            source: server,
            destination: header.source,
        };
        let mut bytes = [0; FRAME_ROOM];
        bytes[..6].copy_from_slice(&ethernet[6..12]);
        bytes[6..12].copy_from_slice(&ethernet[..6]);
        bytes[12..ETHERNET].copy_from_slice(&IPV4);
        bytes[ETHERNET..ETHERNET + ipv4::HEADER].copy_from_slice(&back.emit(length));
        let udp = ETHERNET + ipv4::HEADER;
        bytes[udp..udp + length].copy_from_slice(message);
        FrameReply {
            bytes,
            len: udp + length,
        }
    }))
}
