//! Telling routers, and switches that listen, which groups a host is in (RFC 3810).

use alloc::vec::Vec;
use core::net::Ipv6Addr;

use super::icmp::{kind, seal};
use super::{address, next};
use crate::{Malformed, Nanos, SECOND};

/// The number of hops that such messages make.
pub const HOPS: u8 = 1;
/// The header in front of such messages: options for each router on the way, of which one asks it
/// to look at the message (RFC 2711).
pub const ROUTER_ALERT: [u8; 8] = [next::ICMP, 0, 5, 2, 0, 0, 1, 0];
/// Bytes of a query of the first version.
const QUERY_V1: usize = 24;
/// Groups of one report, which then fits into the least MTU.
pub const MOST_GROUPS: usize = 60;

/// A record of a report.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Record {
    /// The host is in the group, and wants it from everybody.
    IsIn = 2,
    /// The host has left the group.
    Left = 3,
    /// The host has come into the group.
    Joined = 4,
}

/// A question for groups.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Query {
    /// The time within which to answer.
    pub within: Nanos,
    /// The group that is asked for; none: all.
    pub group: Option<Ipv6Addr>,
}

impl Query {
    /// Reads a question whose checksum was verified.
    ///
    /// # Errors
    /// It is too short, or asks for what is no group.
    pub fn parse(message: &[u8]) -> Result<Self, Malformed> {
        let fixed = message.first_chunk::<QUERY_V1>().ok_or(Malformed)?;
        let code = u16::from_be_bytes([fixed[4], fixed[5]]);
        // Of the second version long times are floating-point numbers (RFC 3810, section 5.1.3).
        let ms = if message.len() > QUERY_V1 && code >= 0x8000 {
            u64::from(code & 0xfff | 0x1000) << (3 + (code >> 12 & 7))
        } else {
            u64::from(code)
        };
        let octets = fixed[8..].first_chunk::<16>().ok_or(Malformed)?;
        let group = Ipv6Addr::from(*octets);
        if !group.is_unspecified() && !group.is_multicast() {
            return Err(Malformed);
        }
        Ok(Self {
            within: ms * (SECOND / 1000),
            group: Some(group).filter(|group| !group.is_unspecified()),
        })
    }
}

/// A report of the second version, with its checksum, from an address; `None` without memory. No
/// more than [`MOST_GROUPS`] are in it.
#[must_use]
pub fn report(source: Ipv6Addr, record: Record, groups: &[Ipv6Addr]) -> Option<Vec<u8>> {
    let groups = &groups[..groups.len().min(MOST_GROUPS)];
    let mut message = Vec::new();
    message.try_reserve_exact(8 + 20 * groups.len()).ok()?;
    message.extend_from_slice(&[kind::GROUP_REPORT, 0, 0, 0, 0, 0]);
    message.extend_from_slice(&(groups.len() as u16).to_be_bytes());
    for group in groups {
        message.extend_from_slice(&[record as u8, 0, 0, 0]);
        message.extend_from_slice(&group.octets());
    }
    seal(source, address::ALL_MLD_ROUTERS, &mut message);
    Some(message)
}
