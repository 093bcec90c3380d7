//! Messages of IGMP (RFC 1112, 2236, 3376) in and out of bytes.

use alloc::vec::Vec;
use core::net::Ipv4Addr;

use super::query::decode_time;
use super::{MessageOf, Query, Version};
use crate::ipv4::Header;
use crate::{HardwareAddress, Malformed, Nanos, SECOND, checksum};

/// The number of the protocol.
pub const PROTOCOL: u8 = 2;
/// The group of all hosts on a link, of which nobody is told.
pub const ALL_HOSTS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 1);
/// The group of all routers.
const ALL_ROUTERS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 2);
/// The group of those who hear reports of the third version.
const REPORT_HEARERS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 22);
/// The option that asks each router on the way to look at the packet (RFC 2113).
const ROUTER_ALERT: [u8; 4] = [148, 4, 0, 0];
/// The precedence of what networks tell each other (RFC 3376, section 4).
const INTERNETWORK_CONTROL: u8 = 0xc0;
/// The time within which a question of the first version is answered.
const FIRST_WITHIN: Nanos = 10 * SECOND;
/// Bytes of messages of the first versions, and of the shortest question of the third.
const OLD_MESSAGE: usize = 8;
const QUERY_V3: usize = 12;

const QUERY: u8 = 0x11;
const REPORT_V1: u8 = 0x12;
const REPORT_V2: u8 = 0x16;
const LEAVE: u8 = 0x17;
const REPORT_V3: u8 = 0x22;

/// A message that has come in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message {
    /// A router asks.
    Query(Query<Ipv4Addr>),
    /// Another host has told, in an older version, that it is in a group.
    Report(Ipv4Addr),
}

impl Message {
    /// Reads a message; `None` if it is one that hosts do not look at.
    ///
    /// # Errors
    /// It is too short, its checksum is wrong, or it asks for what is no group.
    pub fn parse(message: &[u8]) -> Result<Option<Self>, Malformed> {
        let fixed = message.first_chunk::<OLD_MESSAGE>().ok_or(Malformed)?;
        if checksum(message) != 0 {
            return Err(Malformed);
        }
        let code = fixed[1];
        let address = Ipv4Addr::new(fixed[4], fixed[5], fixed[6], fixed[7]);
        let is_for_all = fixed[0] == QUERY && address.is_unspecified();
        if !(address.is_multicast() || is_for_all) {
            return match fixed[0] {
                QUERY | REPORT_V1 | REPORT_V2 => Err(Malformed),
                _ => Ok(None),
            };
        }
        let tenths = |tenths: u64| tenths * (SECOND / 10);
        let (version, within, robustness) = match (fixed[0], message.len()) {
            (REPORT_V1 | REPORT_V2, _) => return Ok(Some(Self::Report(address))),
            (QUERY, OLD_MESSAGE) if code == 0 => (Version::First, FIRST_WITHIN, 0),
            (QUERY, OLD_MESSAGE) => (Version::Second, tenths(code.into()), 0),
            (QUERY, QUERY_V3..) => {
                let code = decode_time(code.into(), 4);
                (Version::Newest, tenths(code), message[8] & 7)
            }
            (QUERY, _) => return Err(Malformed),
            _ => return Ok(None),
        };
        Ok(Some(Self::Query(Query {
            version,
            within,
            group: Some(address).filter(|group| !group.is_unspecified()),
            robustness,
        })))
    }
}

/// The packet of a message that tells of groups, from an address; `None` if the version has no such
/// message, or without memory.
#[must_use]
pub fn packet(
    source: Ipv4Addr,
    version: Version,
    message: &MessageOf<Ipv4Addr>,
) -> Option<(Header, Vec<u8>)> {
    let short;
    let (to, kind, body) = match message {
        MessageOf::Report(report) => (REPORT_HEARERS, REPORT_V3, &report[..]),
        MessageOf::Joined(group) => {
            short = old(*group);
            let kind = match version {
                Version::First => REPORT_V1,
                Version::Second | Version::Newest => REPORT_V2,
            };
            (*group, kind, &short[..])
        }
        MessageOf::Left(_) if version == Version::First => return None,
        MessageOf::Left(group) => {
            short = old(*group);
            (ALL_ROUTERS, LEAVE, &short[..])
        }
    };
    let header = Header {
        tos: INTERNETWORK_CONTROL,
        // It is never cut.
        id: 0,
        dont_fragment: true,
        more_fragments: false,
        offset: 0,
        ttl: 1,
        protocol: PROTOCOL,
        source,
        destination: to,
    };
    let mut bytes = Vec::new();
    let head = header.emit_with(&ROUTER_ALERT, body.len());
    bytes.try_reserve_exact(head.len() + body.len()).ok()?;
    bytes.extend_from_slice(&head);
    let start = bytes.len();
    bytes.extend_from_slice(body);
    bytes[start] = kind;
    let sum = checksum(&bytes[start..]);
    bytes[start + 2..start + 4].copy_from_slice(&sum.to_be_bytes());
    Some((header, bytes))
}

fn old(group: Ipv4Addr) -> [u8; OLD_MESSAGE] {
    let [a, b, c, d] = group.octets();
    [0, 0, 0, 0, a, b, c, d]
}

/// The Ethernet address of a group: the low 23 bits are those of the group (RFC 1112, section 6.4).
#[must_use]
pub fn group_hardware(group: Ipv4Addr) -> HardwareAddress {
    let [_, b, c, d] = group.octets();
    [1, 0, 0x5e, b & 0x7f, c, d]
}
