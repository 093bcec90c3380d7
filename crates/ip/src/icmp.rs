//! Messages of ICMP (RFC 792): errors, which are made of the packet that caused them and say to
//! whom they are.

use alloc::vec::Vec;
use core::net::Ipv4Addr;

use crate::ipv4::{self, Header, Packet};
use crate::{Malformed, checksum};

/// The number of the protocol.
pub const PROTOCOL: u8 = 1;
/// Bytes of a message's header.
pub const HEADER: usize = 8;
/// Bytes of the longest error, with IP's header (RFC 1812, 4.3.2.3).
const LONGEST_ERROR: usize = 576;

/// Kinds of messages.
pub mod kind {
    /// An answer to a request.
    pub const ECHO_REPLY: u8 = 0;
    /// The destination is not reached.
    pub const UNREACHABLE: u8 = 3;
    /// A request for an answer.
    pub const ECHO: u8 = 8;
    /// The packet has used up its time.
    pub const TIME_EXCEEDED: u8 = 11;
    /// The packet's header makes no sense.
    pub const PARAMETER_PROBLEM: u8 = 12;
}

/// Codes of [`kind::UNREACHABLE`].
pub mod unreachable {
    /// There is no route.
    pub const NET: u8 = 0;
    /// The host does not answer.
    pub const HOST: u8 = 1;
    /// Nobody there speaks the protocol.
    pub const PROTOCOL: u8 = 2;
    /// Nobody has the port.
    pub const PORT: u8 = 3;
    /// The packet is too long and may not be cut (RFC 1191).
    pub const FRAGMENTATION_NEEDED: u8 = 4;
    /// A route forbids it (RFC 1812, 5.2.7.1).
    pub const PROHIBITED: u8 = 13;
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
    /// The word behind the checksum; the next hop's MTU in its low half.
    pub info: u32,
    /// Header of the packet that it is about.
    pub header: Header,
    /// Bytes of that packet behind its header.
    pub payload: &'a [u8],
    /// All bytes of that packet that are quoted.
    pub quote: &'a [u8],
}

/// Whether messages of a kind are errors, about which no error is sent.
#[must_use]
pub fn is_error(message_kind: u8) -> bool {
    // Source quench and redirect are advice, about which there are no errors, either.
    matches!(
        message_kind,
        kind::UNREACHABLE | 4 | 5 | kind::TIME_EXCEEDED | kind::PARAMETER_PROBLEM
    )
}

/// Reads an error out of a message whose checksum was verified; `None` if it is another message.
///
/// # Errors
/// It quotes no packet, or less than eight bytes behind that one's header.
pub fn parse_error(message: &[u8]) -> Result<Option<Error<'_>>, Malformed> {
    let (head, quote) = message.split_first_chunk::<HEADER>().ok_or(Malformed)?;
    if !is_error(head[0]) {
        return Ok(None);
    }
    let (header, payload) = Header::parse_quoted(quote)?;
    if payload.len() < 8 {
        return Err(Malformed);
    }
    Ok(Some(Error {
        kind: head[0],
        code: head[1],
        info: u32::from_be_bytes([head[4], head[5], head[6], head[7]]),
        header,
        payload,
        quote,
    }))
}

/// Whether an error about a packet may be sent at all (RFC 1122, 3.2.2). Whether its destination is
/// a broadcast of a network the caller knows.
#[must_use]
pub fn may_complain(packet: &Packet<'_>) -> bool {
    let header = &packet.header;
    let about_error =
        header.protocol == PROTOCOL && packet.payload.first().is_none_or(|first| is_error(*first));
    header.offset == 0
        && !about_error
        && !header.destination.is_multicast()
        && !header.destination.is_broadcast()
        && ipv4::is_possible_source(header.source)
}

/// The message of an error about a packet, of which `quote` has the header and more.
///
/// # Errors
/// There is no memory for it.
pub fn error_message(
    message_kind: u8,
    code: u8,
    info: u32,
    quote: &[&[u8]],
) -> Result<Vec<u8>, Malformed> {
    let mut message = Vec::new();
    let most = LONGEST_ERROR - ipv4::HEADER;
    let quoted: usize = quote.iter().map(|part| part.len()).sum();
    message
        .try_reserve_exact(most.min(HEADER + quoted))
        .map_err(|_| Malformed)?;
    message.extend_from_slice(&[message_kind, code, 0, 0]);
    message.extend_from_slice(&info.to_be_bytes());
    for part in quote {
        let room = most - message.len();
        message.extend_from_slice(&part[..part.len().min(room)]);
    }
    let sum = checksum(&message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    Ok(message)
}

/// The source of an answer to a packet: the address that it was sent to, if that is a host's.
#[must_use]
pub fn answer_source(destination: Ipv4Addr, own: Ipv4Addr) -> Ipv4Addr {
    if destination.is_multicast() || destination.is_broadcast() {
        own
    } else {
        destination
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    fn packet(protocol: u8, offset: u16, destination: [u8; 4], payload: &[u8]) -> Vec<u8> {
        let header = Header {
            tos: 0,
            id: 1,
            dont_fragment: false,
            more_fragments: false,
            offset,
            ttl: 64,
            protocol,
            source: Ipv4Addr::new(10, 0, 0, 9),
            destination: destination.into(),
        };
        [&header.emit(payload.len())[..], payload].concat()
    }

    fn may(protocol: u8, offset: u16, destination: [u8; 4], payload: &[u8]) -> bool {
        may_complain(&Packet::parse(&packet(protocol, offset, destination, payload)).unwrap())
    }

    #[test]
    fn errors_are_about_first_pieces_of_what_is_sent_to_a_host() {
        let host = [10, 0, 0, 1];
        assert!(may(17, 0, host, b"data") && may(PROTOCOL, 0, host, &[8, 0, 0, 0]));
        assert!(!may(17, 8, host, b"data"), "a later fragment");
        assert!(!may(17, 0, [224, 0, 0, 1], b"data"), "a group");
        assert!(!may(17, 0, [255; 4], b"data"), "everybody");
        for error in [3, 4, 5, 11, 12] {
            assert!(!may(PROTOCOL, 0, host, &[error, 0, 0, 0]), "{error}");
        }
        assert!(!may(PROTOCOL, 0, host, b""), "what may be an error");
    }

    #[test]
    fn errors_come_back_and_are_not_too_long() {
        let bytes = packet(17, 0, [10, 0, 0, 1], &[7; 1400]);
        let message = error_message(3, 4, 1300, &[&bytes]).unwrap();
        assert_eq!((message.len(), checksum(&message)), (LONGEST_ERROR - 20, 0));
        let error = parse_error(&message).unwrap().unwrap();
        assert_eq!((error.kind, error.code, error.info), (3, 4, 1300));
        assert_eq!(error.header.destination, Ipv4Addr::new(10, 0, 0, 1));
        assert_eq!(error.payload[0], 7);
        assert_eq!(parse_error(&message[..8 + 27]), Err(Malformed));
        assert_eq!(parse_error(&[8, 0, 0, 0, 0, 0, 0, 0]), Ok(None));
    }

    proptest::proptest! {
        #[test]
        fn no_message_panics(bytes: Vec<u8>) {
            let _ = parse_error(&bytes);
        }
    }
}
