//! Messages of neighbour discovery (RFC 4861), and what may be believed of them.

use alloc::vec::Vec;
use core::net::Ipv6Addr;

use super::address::{Scope, scope, solicited_node};
use super::icmp::{kind, seal};
use super::{Header, LEAST_MTU};
use crate::{HardwareAddress, Malformed};

/// The number of hops that such messages have left: one that has made a hop is forged.
pub const HOPS: u8 = 255;
/// Kinds of options.
const SOURCE: u8 = 1;
const TARGET: u8 = 2;
const PREFIX: u8 = 3;
const MTU: u8 = 5;
const NONCE: u8 = 14;
/// Bytes of messages without options.
const SOLICITATION: usize = 24;
const ROUTER_SOLICITATION: usize = 8;
const ROUTER_ADVERTISEMENT: usize = 16;
/// Prefixes of one advertisement that are looked at; more do not fit into the least MTU.
pub const MOST_PREFIXES: usize = 40;

/// A number that tells an own solicitation from another's (RFC 3971, RFC 7527).
pub type Nonce = [u8; 6];

/// A message that was received.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message<'a> {
    /// Somebody asks for routers.
    RouterSolicitation,
    /// A router tells of itself.
    RouterAdvertisement(RouterAdvertisement<'a>),
    /// Somebody asks for a neighbour.
    Solicitation(Solicitation),
    /// A neighbour tells of itself.
    Advertisement(Advertisement),
}

/// A question for a neighbour.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Solicitation {
    /// The address that is asked for.
    pub target: Ipv6Addr,
    /// The hardware address of who asks.
    pub hardware: Option<HardwareAddress>,
    /// A number that whoever asks has chosen.
    pub nonce: Option<Nonce>,
}

/// An advertisement of a neighbour.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Advertisement {
    /// The address that it has.
    pub target: Ipv6Addr,
    /// Hardware address of the neighbour.
    pub hardware: Option<HardwareAddress>,
    /// The neighbour passes packets on.
    pub is_router: bool,
    /// The neighbour was asked.
    pub is_solicited: bool,
    /// The hardware address goes for one that was known.
    pub overrides: bool,
}

/// An advertisement of a router.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RouterAdvertisement<'a> {
    /// Seconds for which it is a default router; 0: it is none.
    pub lifetime_s: u16,
    /// Hardware address of the router.
    pub hardware: Option<HardwareAddress>,
    /// Bytes of the longest packet on the link.
    pub mtu: Option<u32>,
    options: &'a [u8],
}

/// A prefix of which a router tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PrefixInformation {
    /// The prefix, whose bits behind its length may be any.
    pub prefix: Ipv6Addr,
    /// Bits of the prefix.
    pub length: u8,
    /// Addresses of the prefix are on the link.
    pub is_on_link: bool,
    /// Hosts make addresses of it.
    pub is_autonomous: bool,
    /// Seconds for which it is valid; `u32::MAX`: for ever.
    pub valid_s: u32,
    /// Seconds for which addresses of it are preferred.
    pub preferred_s: u32,
}

/// The options of a message: kinds and bytes, with their headers.
struct Options<'a>(&'a [u8]);

impl<'a> Options<'a> {
    /// # Errors
    /// An option has no length, or is not all there (RFC 4861, section 4.6).
    fn check(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let units = rest.get(1).filter(|units| **units != 0).ok_or(Malformed)?;
            rest = rest.get(usize::from(*units) * 8..).ok_or(Malformed)?;
        }
        Ok(Self(bytes))
    }

    fn hardware(&self, wanted: u8) -> Option<HardwareAddress> {
        let found = self.clone_iter().find(|(kind, _)| *kind == wanted)?;
        // On Ethernet one has eight bytes; a longer one is another link's.
        let bytes = found.1.first_chunk::<8>().filter(|_| found.1.len() == 8)?;
        let [_, _, hardware @ ..] = *bytes;
        Some(hardware)
    }

    fn clone_iter(&self) -> Options<'a> {
        Options(self.0)
    }
}

impl<'a> Iterator for Options<'a> {
    type Item = (u8, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let length = usize::from(*self.0.get(1)?) * 8;
        let (option, rest) = self.0.split_at_checked(length.max(8))?;
        self.0 = rest;
        Some((option[0], option))
    }
}

impl RouterAdvertisement<'_> {
    /// The prefixes of which it tells.
    pub fn prefixes(&self) -> impl Iterator<Item = PrefixInformation> {
        let word = |option: &[u8], at: usize| {
            let bytes = option.get(at..).and_then(|rest| rest.first_chunk());
            bytes.map_or(0, |bytes| u32::from_be_bytes(*bytes))
        };
        let read = move |(kind, option): (u8, &[u8])| {
            if kind != PREFIX || option.len() != 32 || option[2] > 128 {
                return None;
            }
            let octets = option[16..].first_chunk::<16>()?;
            Some(PrefixInformation {
                prefix: (*octets).into(),
                length: option[2],
                is_on_link: option[3] & 0x80 != 0,
                is_autonomous: option[3] & 0x40 != 0,
                valid_s: word(option, 4),
                preferred_s: word(option, 8),
            })
        };
        Options(self.options).filter_map(read).take(MOST_PREFIXES)
    }
}

impl<'a> Message<'a> {
    /// Reads a message whose checksum was verified, from a packet with this header. `None` if it is
    /// no message of neighbour discovery that is known.
    ///
    /// # Errors
    /// It may not be believed (RFC 4861, sections 6.1 and 7.1).
    pub fn parse(header: &Header, bytes: &'a [u8]) -> Result<Option<Self>, Malformed> {
        let (Some(kind), Some(code)) = (bytes.first(), bytes.get(1)) else {
            return Err(Malformed);
        };
        if !(kind::ROUTER_SOLICITATION..=kind::NEIGHBOUR_ADVERTISEMENT).contains(kind) {
            return Ok(None);
        }
        if header.hop_limit != HOPS || *code != 0 {
            return Err(Malformed);
        }
        let source = header.source;
        Ok(Some(match *kind {
            kind::ROUTER_SOLICITATION => {
                let rest = bytes.get(ROUTER_SOLICITATION..).ok_or(Malformed)?;
                let options = Options::check(rest)?;
                if source.is_unspecified() && options.hardware(SOURCE).is_some() {
                    return Err(Malformed);
                }
                Self::RouterSolicitation
            }
            kind::ROUTER_ADVERTISEMENT => Self::RouterAdvertisement(router(source, bytes)?),
            kind::NEIGHBOUR_SOLICITATION => Self::Solicitation(solicitation(header, bytes)?),
            _ => Self::Advertisement(advertisement(header, bytes)?),
        }))
    }
}

/// Whether an address is a single host's of the link.
fn is_link_local(address: Ipv6Addr) -> bool {
    !address.is_multicast() && !address.is_loopback() && scope(address) == Scope::Link
}

fn router(source: Ipv6Addr, bytes: &[u8]) -> Result<RouterAdvertisement<'_>, Malformed> {
    let (fixed, rest) = bytes
        .split_at_checked(ROUTER_ADVERTISEMENT)
        .ok_or(Malformed)?;
    if !is_link_local(source) {
        return Err(Malformed);
    }
    let options = Options::check(rest)?;
    let mtu = options
        .clone_iter()
        .find(|(kind, option)| *kind == MTU && option.len() == 8);
    let mtu = mtu.and_then(|(_, option)| option[4..].first_chunk());
    Ok(RouterAdvertisement {
        lifetime_s: u16::from_be_bytes([fixed[6], fixed[7]]),
        hardware: options.hardware(SOURCE),
        mtu: mtu
            .map(|bytes| u32::from_be_bytes(*bytes))
            .filter(|mtu| *mtu >= LEAST_MTU as u32),
        options: rest,
    })
}

/// The address that a message is about, which is no group's, and its options.
fn target(bytes: &[u8]) -> Result<(Ipv6Addr, Options<'_>), Malformed> {
    let (fixed, rest) = bytes.split_at_checked(SOLICITATION).ok_or(Malformed)?;
    let octets = fixed[8..].first_chunk::<16>().ok_or(Malformed)?;
    let target = Ipv6Addr::from(*octets);
    if target.is_multicast() || target.is_unspecified() {
        return Err(Malformed);
    }
    Ok((target, Options::check(rest)?))
}

fn solicitation(header: &Header, bytes: &[u8]) -> Result<Solicitation, Malformed> {
    let (target, options) = target(bytes)?;
    let hardware = options.hardware(SOURCE);
    // Who has no address yet asks all who may have this one, and has none to be answered at.
    let is_probe = header.source.is_unspecified();
    if is_probe && (header.destination != solicited_node(target) || hardware.is_some()) {
        return Err(Malformed);
    }
    let nonce = options
        .clone_iter()
        .find(|(kind, option)| *kind == NONCE && option.len() == 8);
    let nonce = nonce.and_then(|(_, option)| option[2..].first_chunk().copied());
    Ok(Solicitation {
        target,
        hardware,
        nonce,
    })
}

fn advertisement(header: &Header, bytes: &[u8]) -> Result<Advertisement, Malformed> {
    const ROUTER: u8 = 0x80;
    const SOLICITED: u8 = 0x40;
    const OVERRIDE: u8 = 0x20;
    let (target, options) = target(bytes)?;
    let flags = bytes[4];
    if header.destination.is_multicast() && flags & SOLICITED != 0 {
        return Err(Malformed);
    }
    Ok(Advertisement {
        target,
        hardware: options.hardware(TARGET),
        is_router: flags & ROUTER != 0,
        is_solicited: flags & SOLICITED != 0,
        overrides: flags & OVERRIDE != 0,
    })
}

/// Bytes of the longest message that is made here.
const LONGEST: usize = SOLICITATION + 16;

/// A message under way.
struct Draft(Vec<u8>);

impl Draft {
    /// `None` without memory.
    fn new(kind: u8, word: [u8; 4], target: Option<Ipv6Addr>) -> Option<Self> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(LONGEST).ok()?;
        bytes.extend_from_slice(&[kind, 0, 0, 0]);
        bytes.extend_from_slice(&word);
        if let Some(target) = target {
            bytes.extend_from_slice(&target.octets());
        }
        Some(Self(bytes))
    }

    fn option(mut self, kind: u8, value: Option<[u8; 6]>) -> Self {
        if let Some(value) = value {
            self.0.extend_from_slice(&[kind, 1]);
            self.0.extend_from_slice(&value);
        }
        self
    }

    fn seal(mut self, source: Ipv6Addr, destination: Ipv6Addr) -> Vec<u8> {
        seal(source, destination, &mut self.0);
        self.0
    }
}

impl Solicitation {
    /// The message between two addresses; `None` without memory.
    #[must_use]
    pub fn emit(&self, source: Ipv6Addr, destination: Ipv6Addr) -> Option<Vec<u8>> {
        let draft = Draft::new(kind::NEIGHBOUR_SOLICITATION, [0; 4], Some(self.target))?;
        let draft = draft.option(SOURCE, self.hardware);
        Some(draft.option(NONCE, self.nonce).seal(source, destination))
    }
}

impl Advertisement {
    /// The message between two addresses; `None` without memory.
    #[must_use]
    pub fn emit(&self, source: Ipv6Addr, destination: Ipv6Addr) -> Option<Vec<u8>> {
        let flags = u8::from(self.is_router) << 7
            | u8::from(self.is_solicited) << 6
            | u8::from(self.overrides) << 5;
        let word = [flags, 0, 0, 0];
        let draft = Draft::new(kind::NEIGHBOUR_ADVERTISEMENT, word, Some(self.target))?;
        Some(
            draft
                .option(TARGET, self.hardware)
                .seal(source, destination),
        )
    }
}

/// A question for routers; `None` without memory.
#[must_use]
pub fn router_solicitation(
    source: Ipv6Addr,
    destination: Ipv6Addr,
    hardware: Option<HardwareAddress>,
) -> Option<Vec<u8>> {
    let hardware = hardware.filter(|_| !source.is_unspecified());
    let draft = Draft::new(kind::ROUTER_SOLICITATION, [0; 4], None)?;
    Some(draft.option(SOURCE, hardware).seal(source, destination))
}
