//! Messages of ICMPv6 (RFC 4443): checksums, and errors, which are made of the packet that caused
//! them and say to whom they are.

use alloc::vec::Vec;
use core::net::Ipv6Addr;

use super::{Header, LEAST_MTU, Packet, next, parse_quoted};
use crate::{Checksum, Malformed};

/// Bytes of a message's header.
pub const HEADER: usize = 8;

/// Kinds of messages.
pub mod kind {
    /// The destination is not reached.
    pub const UNREACHABLE: u8 = 1;
    /// The packet is too long for the next link.
    pub const TOO_BIG: u8 = 2;
    /// The packet has used up its time.
    pub const TIME_EXCEEDED: u8 = 3;
    /// The packet's headers make no sense.
    pub const PARAMETER_PROBLEM: u8 = 4;
    /// A request for an answer.
    pub const ECHO: u8 = 128;
    /// An answer to a request.
    pub const ECHO_REPLY: u8 = 129;
    /// A router asks who is in groups.
    pub const GROUP_QUERY: u8 = 130;
    /// A host tells that it is in a group: the first version.
    pub const GROUP_REPORT_V1: u8 = 131;
    /// A host has left a group: the first version.
    pub const GROUP_DONE: u8 = 132;
    /// A host asks for routers.
    pub const ROUTER_SOLICITATION: u8 = 133;
    /// A router tells of itself.
    pub const ROUTER_ADVERTISEMENT: u8 = 134;
    /// A host asks for a neighbour.
    pub const NEIGHBOUR_SOLICITATION: u8 = 135;
    /// A neighbour tells of itself.
    pub const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
    /// A router names a better one.
    pub const REDIRECT: u8 = 137;
    /// A host tells which groups it is in.
    pub const GROUP_REPORT: u8 = 143;
}

/// Codes of [`kind::UNREACHABLE`].
pub mod unreachable {
    /// There is no route.
    pub const NO_ROUTE: u8 = 0;
    /// A route forbids it.
    pub const PROHIBITED: u8 = 1;
    /// The source means nothing beyond its link.
    pub const BEYOND_SCOPE: u8 = 2;
    /// The host does not answer.
    pub const ADDRESS: u8 = 3;
    /// Nobody has the port.
    pub const PORT: u8 = 4;
}

/// The packet has made too many hops: a code of [`kind::TIME_EXCEEDED`].
pub const HOP_LIMIT: u8 = 0;
/// Not all fragments came in time: a code of [`kind::TIME_EXCEEDED`].
pub const REASSEMBLY_TIME: u8 = 1;

/// An error that was received.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Error<'a> {
    /// Kind of the message.
    pub kind: u8,
    /// Code of the message.
    pub code: u8,
    /// The word behind the checksum: an MTU, or an offset.
    pub info: u32,
    /// First header of the packet that it is about.
    pub header: Header,
    /// Protocol of that packet.
    pub protocol: u8,
    /// Bytes of that packet behind its headers.
    pub payload: &'a [u8],
}

/// Whether messages of a kind are errors.
#[must_use]
pub fn is_error(kind: u8) -> bool {
    kind < kind::ECHO
}

/// Whether the checksum of a message is right.
#[must_use]
pub fn is_whole(source: Ipv6Addr, destination: Ipv6Addr, message: &[u8]) -> bool {
    message.len() >= 4 && sum(source, destination, message) == 0
}

fn sum(source: Ipv6Addr, destination: Ipv6Addr, message: &[u8]) -> u16 {
    let length = message.len();
    let mut sum = Checksum::pseudo_header_v6(source, destination, next::ICMP, length);
    sum.add(message);
    sum.finish()
}

/// Puts the checksum into a message.
pub fn seal(source: Ipv6Addr, destination: Ipv6Addr, message: &mut [u8]) {
    if message.len() >= 4 {
        message[2..4].fill(0);
        let sum = sum(source, destination, message);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
    }
}

/// Reads an error out of a message whose checksum was verified; `None` if it is another message.
///
/// # Errors
/// It quotes no packet, or less than eight bytes behind that one's headers.
pub fn parse_error(message: &[u8]) -> Result<Option<Error<'_>>, Malformed> {
    let (head, quote) = message.split_first_chunk::<HEADER>().ok_or(Malformed)?;
    if !is_error(head[0]) {
        return Ok(None);
    }
    let (header, protocol, payload) = parse_quoted(quote)?;
    if payload.len() < 8 {
        return Err(Malformed);
    }
    Ok(Some(Error {
        kind: head[0],
        code: head[1],
        info: u32::from_be_bytes([head[4], head[5], head[6], head[7]]),
        header,
        protocol,
        payload,
    }))
}

/// Whether an error about a packet may be sent at all (RFC 4443, section 2.4 (e)); `also_of_groups`
/// if it is one of the two that are sent about packets to groups.
#[must_use]
pub fn may_complain(header: &Header, protocol: u8, payload: &[u8], also_of_groups: bool) -> bool {
    let about_error = protocol == next::ICMP
        && payload
            .first()
            .is_none_or(|first| is_error(*first) || *first == kind::REDIRECT);
    !about_error
        && (also_of_groups || !header.destination.is_multicast())
        && super::is_possible_source(header.source)
}

/// Whether an error about a packet may be sent, as [`may_complain`].
#[must_use]
pub fn may_complain_of(packet: &Packet<'_>, also_of_groups: bool) -> bool {
    let is_first = packet.fragment.is_none_or(|field| field.offset == 0);
    is_first
        && may_complain(
            &packet.header,
            packet.protocol,
            packet.payload,
            also_of_groups,
        )
}

/// The message of an error about a packet, of which `quote` has the headers and more, without its
/// checksum. No packet with it is longer than what every link carries.
///
/// # Errors
/// There is no memory for it.
pub fn error_message(kind: u8, code: u8, info: u32, quote: &[&[u8]]) -> Result<Vec<u8>, Malformed> {
    let most = LEAST_MTU - super::HEADER;
    let quoted: usize = quote.iter().map(|part| part.len()).sum();
    let mut message = Vec::new();
    message
        .try_reserve_exact(most.min(HEADER + quoted))
        .map_err(|_| Malformed)?;
    message.extend_from_slice(&[kind, code, 0, 0]);
    message.extend_from_slice(&info.to_be_bytes());
    for part in quote {
        let room = most - message.len();
        message.extend_from_slice(&part[..part.len().min(room)]);
    }
    Ok(message)
}
