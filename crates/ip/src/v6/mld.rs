//! Messages of MLD (RFC 2710, 3810), by which hosts tell of groups of IPv6.

use alloc::vec::Vec;
use core::net::Ipv6Addr;

use super::address::{ALL_MLD_ROUTERS, ALL_ROUTERS};
use super::icmp::{kind, seal};
use super::next;
use crate::groups::{MessageOf, Query, Version, decode_time};
use crate::{Malformed, SECOND};

/// The number of hops that such messages make.
pub const HOPS: u8 = 1;
/// The header in front of such messages: options for each router on the way, of which one asks it
/// to look at the message (RFC 2711).
pub const ROUTER_ALERT: [u8; 8] = [next::ICMP, 0, 5, 2, 0, 0, 1, 0];
/// Bytes of messages of the first version, and of the shortest question of the second.
const OLD_MESSAGE: usize = 24;
const QUERY_V2: usize = 28;

impl Query<Ipv6Addr> {
    /// Reads a question whose checksum was verified.
    ///
    /// # Errors
    /// The message is as long as no question is, or asks for an address that is no group.
    pub fn parse(message: &[u8]) -> Result<Self, Malformed> {
        let group = group_of(message)?;
        if !group.is_unspecified() && !group.is_multicast() {
            return Err(Malformed);
        }
        let code = u16::from_be_bytes([message[4], message[5]]);
        let (version, ms, robustness) = match message.len() {
            OLD_MESSAGE => (Version::First, code.into(), 0),
            QUERY_V2.. => (Version::Newest, decode_time(code, 12), message[24] & 7),
            _ => return Err(Malformed),
        };
        Ok(Self {
            version,
            within: ms * (SECOND / 1000),
            group: Some(group).filter(|group| !group.is_unspecified()),
            robustness,
        })
    }
}

/// The group of a question, or of a report of the first version.
///
/// # Errors
/// The message is too short.
pub fn group_of(message: &[u8]) -> Result<Ipv6Addr, Malformed> {
    let octets = message.get(8..OLD_MESSAGE).and_then(<[u8]>::first_chunk);
    octets
        .map(|octets: &[u8; 16]| (*octets).into())
        .ok_or(Malformed)
}

/// A message that tells of groups from an address, with its checksum, and whom to; `None` without
/// memory.
#[must_use]
pub fn message(source: Ipv6Addr, message: &MessageOf<Ipv6Addr>) -> Option<(Ipv6Addr, Vec<u8>)> {
    let short;
    let (to, kind, body) = match message {
        MessageOf::Report(report) => (ALL_MLD_ROUTERS, kind::GROUP_REPORT, &report[..]),
        MessageOf::Joined(group) => {
            short = old(*group);
            (*group, kind::GROUP_REPORT_V1, &short[..])
        }
        MessageOf::Left(group) => {
            short = old(*group);
            (ALL_ROUTERS, kind::GROUP_DONE, &short[..])
        }
    };
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(body.len()).ok()?;
    bytes.extend_from_slice(body);
    bytes[0] = kind;
    seal(source, to, &mut bytes);
    Some((to, bytes))
}

fn old(group: Ipv6Addr) -> [u8; OLD_MESSAGE] {
    let mut bytes = [0; OLD_MESSAGE];
    bytes[8..].copy_from_slice(&group.octets());
    bytes
}
