//! Packets of IPv6 (RFC 8200).

pub mod address;
pub mod discovery;
pub mod icmp;
pub mod mld;
mod source;

use core::net::Ipv6Addr;

pub use source::{Candidate, select_source};

use crate::Malformed;

/// Bytes of a header, without those that extend it.
pub const HEADER: usize = 40;
/// Bytes of the header of a fragment.
pub const FRAGMENT_HEADER: usize = 8;
/// Bytes of the longest payload, headers that extend the first one included.
pub const LONGEST_PAYLOAD: usize = 65_535;
/// Bytes that every link carries in one piece (RFC 8200, section 5).
pub const LEAST_MTU: usize = 1280;

/// Headers that extend the first one, which a packet may have before it is dropped; Linux counts
/// options instead. All that there are, each once, and destination options twice, are five.
const MOST_EXTENSIONS: usize = 8;
/// Options of one header (Linux `max_hbh_opts_number`, `max_dst_opts_number`).
const MOST_OPTIONS: usize = 8;
/// Bytes of padding before an option: more is no padding (RFC 9099, 2.2.4; Linux).
const MOST_PADDING: usize = 7;

/// Numbers of headers and protocols.
pub mod next {
    /// Options for each host on the way.
    pub const HOP_BY_HOP: u8 = 0;
    /// TCP.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
    /// The way to the destination.
    pub const ROUTING: u8 = 43;
    /// A piece of a packet.
    pub const FRAGMENT: u8 = 44;
    /// ICMPv6.
    pub const ICMP: u8 = 58;
    /// Nothing follows.
    pub const NONE: u8 = 59;
    /// Options for the destination.
    pub const DESTINATION: u8 = 60;
}

/// Codes of ICMP's "parameter problem".
pub mod problem {
    /// A field makes no sense.
    pub const FIELD: u8 = 0;
    /// Nobody knows the header.
    pub const HEADER: u8 = 1;
    /// Nobody knows the option.
    pub const OPTION: u8 = 2;
    /// The first fragment does not have all headers (RFC 7112).
    pub const CHAIN: u8 = 3;
}

/// The fields of the first header that are not made up of others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Traffic class.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Hops that are left.
    pub hop_limit: u8,
    /// Sender.
    pub source: Ipv6Addr,
    /// Receiver.
    pub destination: Ipv6Addr,
}

/// The place of a fragment in its packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FragmentField {
    /// Number that fragments of a packet share.
    pub id: u32,
    /// Offset of the payload, bytes: a multiple of 8.
    pub offset: u16,
    /// The fragment is not the last.
    pub more: bool,
}

/// A packet that has arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet<'a> {
    /// First header of the packet.
    pub header: Header,
    /// Number of the header behind the first one.
    pub first: u8,
    /// Protocol of the payload, of a fragment that of what is fragmented.
    pub protocol: u8,
    /// Offset of the field that says so.
    pub protocol_at: usize,
    /// The bytes of all headers.
    pub head: &'a [u8],
    /// The bytes behind them.
    pub payload: &'a [u8],
    /// The place of a fragment; none of what is whole.
    pub fragment: Option<FragmentField>,
    /// Routers on the way were to look at it (RFC 2711).
    pub has_router_alert: bool,
}

/// A reason to drop a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// The packet makes no sense, and nobody is told.
    Malformed,
    /// The sender is told what makes no sense (RFC 4443, section 3.4).
    Problem {
        /// The kind of problem: one of [`problem`].
        code: u8,
        /// Offset in the packet.
        pointer: u32,
        /// Also the sender of a packet to a group is told.
        also_of_groups: bool,
    },
}

impl Refusal {
    fn field(pointer: usize) -> Self {
        Self::Problem {
            code: problem::FIELD,
            pointer: pointer as u32,
            also_of_groups: false,
        }
    }
}

impl Header {
    /// The header of a packet with so many bytes of payload.
    #[must_use]
    pub fn emit(&self, protocol: u8, payload: usize) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        let first = 6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label & 0xf_ffff;
        bytes[..4].copy_from_slice(&first.to_be_bytes());
        bytes[4..6].copy_from_slice(&(payload as u16).to_be_bytes());
        bytes[6..8].copy_from_slice(&[protocol, self.hop_limit]);
        bytes[8..24].copy_from_slice(&self.source.octets());
        bytes[24..].copy_from_slice(&self.destination.octets());
        bytes
    }

    /// Reads the first header. Returns the number of what follows, and the bytes of that, too.
    ///
    /// # Errors
    /// There is no header.
    pub fn parse(bytes: &[u8]) -> Result<(Self, u8, usize), Malformed> {
        let fixed = bytes.first_chunk::<HEADER>().ok_or(Malformed)?;
        let first = u32::from_be_bytes([fixed[0], fixed[1], fixed[2], fixed[3]]);
        if first >> 28 != 6 {
            return Err(Malformed);
        }
        let address = |at: usize| {
            let octets = fixed[at..].first_chunk::<16>();
            octets.map_or(Ipv6Addr::UNSPECIFIED, |octets| (*octets).into())
        };
        let header = Self {
            traffic_class: (first >> 20) as u8,
            flow_label: first & 0xf_ffff,
            hop_limit: fixed[7],
            source: address(8),
            destination: address(24),
        };
        let length = usize::from(u16::from_be_bytes([fixed[4], fixed[5]]));
        Ok((header, fixed[6], length))
    }
}

/// The end of a chain of headers.
struct Chain {
    protocol: u8,
    protocol_at: usize,
    /// Offset of what is behind the headers.
    end: usize,
    fragment: Option<FragmentField>,
    has_router_alert: bool,
}

/// Follows the headers of `bytes` from the one at `at`, whose number is the first of a pair with
/// where that stands, until what is none, or a fragment; `is_first` if nothing but the first header
/// is before it.
fn follow(
    bytes: &[u8],
    (protocol, protocol_at): (u8, usize),
    mut at: usize,
    mut is_first: bool,
) -> Result<Chain, Refusal> {
    let mut chain = Chain {
        protocol,
        protocol_at,
        end: at,
        fragment: None,
        has_router_alert: false,
    };
    for _ in 0..MOST_EXTENSIONS {
        let length = match chain.protocol {
            next::HOP_BY_HOP if !is_first => {
                return Err(Refusal::Problem {
                    code: problem::HEADER,
                    pointer: chain.protocol_at as u32,
                    also_of_groups: false,
                });
            }
            next::HOP_BY_HOP | next::DESTINATION | next::ROUTING => {
                let units = bytes.get(at + 1).ok_or(Refusal::Malformed)?;
                (usize::from(*units) + 1) * 8
            }
            next::FRAGMENT => FRAGMENT_HEADER,
            _ => {
                chain.end = at;
                return Ok(chain);
            }
        };
        let header = bytes.get(at..at + length).ok_or(Refusal::Malformed)?;
        match chain.protocol {
            next::ROUTING => {
                // Who is the destination has no segments left. Others are not passed on: type 0 is
                // forbidden (RFC 5095), and no other is known (RFC 8200, 4.4).
                if header[3] != 0 {
                    return Err(Refusal::field(at + 2));
                }
            }
            next::FRAGMENT => {
                let word = u16::from_be_bytes([header[2], header[3]]);
                let field = FragmentField {
                    id: u32::from_be_bytes([header[4], header[5], header[6], header[7]]),
                    offset: word & 0xfff8,
                    more: word & 1 != 0,
                };
                (chain.protocol, chain.protocol_at) = (header[0], at);
                // One that is all of its packet is none (RFC 6946).
                if field.offset != 0 || field.more {
                    chain.fragment = Some(field);
                    chain.end = at + length;
                    return Ok(chain);
                }
                at += length;
                is_first = false;
                continue;
            }
            _ => chain.has_router_alert |= check_options(header, at)?,
        }
        (chain.protocol, chain.protocol_at) = (header[0], at);
        at += length;
        is_first = false;
    }
    Err(Refusal::Malformed)
}

/// Checks options. Returns whether routers are to look at the packet.
fn check_options(header: &[u8], at: usize) -> Result<bool, Refusal> {
    const PAD_ONE: u8 = 0;
    const PAD: u8 = 1;
    const ROUTER_ALERT: u8 = 5;
    let mut has_alert = false;
    let (mut place, mut padding, mut count) = (2, 0, 0);
    while let Some(kind) = header.get(place) {
        let length = match *kind {
            PAD_ONE => 1,
            _ => 2 + usize::from(*header.get(place + 1).ok_or(Refusal::Malformed)?),
        };
        let option = header
            .get(place..place + length)
            .ok_or(Refusal::Malformed)?;
        if matches!(*kind, PAD_ONE | PAD) {
            padding += length;
            // Padding that says something is a channel, not padding.
            if padding > MOST_PADDING || option.iter().skip(2).any(|byte| *byte != 0) {
                return Err(Refusal::Malformed);
            }
        } else {
            padding = 0;
            count += 1;
            if count > MOST_OPTIONS {
                return Err(Refusal::Malformed);
            }
            match (*kind, *kind >> 6) {
                (ROUTER_ALERT, _) if length == 4 => has_alert = true,
                (ROUTER_ALERT, _) => return Err(Refusal::field(at + place + 1)),
                // What to do with one that nobody knows its first bits say (RFC 8200, 4.2).
                (_, 0) => {}
                (_, 1) => return Err(Refusal::Malformed),
                (_, first) => {
                    return Err(Refusal::Problem {
                        code: problem::OPTION,
                        pointer: (at + place) as u32,
                        also_of_groups: first == 2,
                    });
                }
            }
        }
        place += length;
    }
    Ok(has_alert)
}

/// Bytes that a first fragment has to have of the header of its protocol (RFC 7112).
fn least_of(protocol: u8) -> usize {
    match protocol {
        next::TCP => 20,
        next::UDP | next::ICMP => 8,
        next::NONE => 0,
        _ => 1,
    }
}

impl<'a> Packet<'a> {
    /// Reads a packet; bytes behind its end are the link's. What is jumbo is not read (RFC 2675).
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Refusal> {
        let (header, first, length) = Header::parse(bytes).map_err(|_| Refusal::Malformed)?;
        let bytes = bytes.get(..HEADER + length).ok_or(Refusal::Malformed)?;
        let chain = follow(bytes, (first, 6), HEADER, true)?;
        let (head, payload) = bytes.split_at(chain.end);
        if let Some(field) = chain.fragment {
            // All fragments but the last are of whole units of eight bytes, and none reaches
            // beyond the longest packet (RFC 8200, 4.5).
            if field.more && !payload.len().is_multiple_of(8) {
                return Err(Refusal::field(4));
            }
            if usize::from(field.offset) + payload.len() > LONGEST_PAYLOAD {
                return Err(Refusal::field(chain.end - FRAGMENT_HEADER + 2));
            }
            if field.offset == 0 {
                let number = (chain.protocol, chain.protocol_at);
                let inner = follow(bytes, number, chain.end, false)?;
                let is_whole =
                    inner.fragment.is_none() && bytes.len() - inner.end >= least_of(inner.protocol);
                if !is_whole {
                    return Err(Refusal::Problem {
                        code: problem::CHAIN,
                        pointer: 0,
                        also_of_groups: false,
                    });
                }
            }
        }
        Ok(Self {
            header,
            first,
            protocol: chain.protocol,
            protocol_at: chain.protocol_at,
            head,
            payload,
            fragment: chain.fragment,
            has_router_alert: chain.has_router_alert,
        })
    }

    /// Reads the headers of a payload that was put together out of fragments, the first of which
    /// had this protocol. Returns the protocol of what is behind them, and its offset.
    ///
    /// # Errors
    /// The headers make no sense, or it is a fragment of its own.
    pub fn parse_joined(protocol: u8, payload: &[u8]) -> Result<(u8, usize), Malformed> {
        match follow(payload, (protocol, 0), 0, false) {
            Ok(chain) if chain.fragment.is_none() => Ok((chain.protocol, chain.end)),
            // Offsets in what was put together mean nothing to its sender.
            _ => Err(Malformed),
        }
    }
}

/// Reads the headers of a packet that an ICMP error quotes, as far as it goes. Returns the first
/// one, the protocol, and what is quoted of the payload.
///
/// # Errors
/// There is no such packet, or it is a fragment that is not the first.
pub fn parse_quoted(bytes: &[u8]) -> Result<(Header, u8, &[u8]), Malformed> {
    let (header, first, _) = Header::parse(bytes)?;
    let chain = follow(bytes, (first, 6), HEADER, true).map_err(|_| Malformed)?;
    let (protocol, end) = match chain.fragment {
        None => (chain.protocol, chain.end),
        Some(field) if field.offset == 0 => {
            let number = (chain.protocol, chain.protocol_at);
            let inner = follow(bytes, number, chain.end, false).map_err(|_| Malformed)?;
            (inner.protocol, inner.end)
        }
        Some(_) => return Err(Malformed),
    };
    Ok((header, protocol, bytes.get(end..).ok_or(Malformed)?))
}

/// The header of a fragment of a packet of a protocol.
#[must_use]
pub fn fragment_header(protocol: u8, field: FragmentField) -> [u8; FRAGMENT_HEADER] {
    let [o0, o1] = (field.offset | u16::from(field.more)).to_be_bytes();
    let [a, b, c, d] = field.id.to_be_bytes();
    [protocol, 0, o0, o1, a, b, c, d]
}

/// The pieces of a payload that does not fit into one packet of `mtu` bytes: offset, whether more
/// follow, bytes.
pub fn fragments(mtu: usize, payload: &[u8]) -> impl Iterator<Item = (u16, bool, &[u8])> {
    let step = (mtu.max(LEAST_MTU) - HEADER - FRAGMENT_HEADER) & !7;
    let count = payload.len().div_ceil(step).max(1);
    (0..count).map(move |number| {
        let start = number * step;
        let end = payload.len().min(start + step);
        (start as u16, end < payload.len(), &payload[start..end])
    })
}

/// Whether an address may be a packet's sender, beside the unspecified one.
#[must_use]
pub fn is_possible_source(address: Ipv6Addr) -> bool {
    !address.is_multicast()
        && !address.is_unspecified()
        && !address.is_loopback()
        && address.to_ipv4_mapped().is_none()
}
