//! Options of the levels of IP, TCP and UDP. Most have no meaning without packets: they are checked, remembered and given back.

use super::network::{self, Interface};
use super::tcp::Tcp;
use super::{Common, Family};
use abi::errno::Errno;
use alloc::vec;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::sync::atomic::{AtomicBool, Ordering};
use fs::Result;
use linux_raw_sys::net;
use task::Mutex;

pub(super) const IP: u32 = net::IPPROTO_IP as u32;
pub(super) const IPV6: u32 = net::IPPROTO_IPV6 as u32;
pub(super) const TCP: u32 = net::IPPROTO_TCP as u32;
pub(super) const UDP: u32 = net::IPPROTO_UDP as u32;

const UDP_LITE: u32 = net::IPPROTO_UDPLITE as u32;
const UDP_CORK: u32 = 1;
/// How much of a datagram a checksum covers, sent and received.
const LITE_COVERAGE: [u32; 2] = [10, 11];
const UDP_NO_CHECK6_TX: u32 = 101;
const IP_RECVFRAGSIZE: u32 = 25;
const IPV6_RECVFRAGSIZE: u32 = 77;
/// The largest segment through the loop, bytes.
const LOOP_SEGMENT: i32 = 65_483;

/// Level and number of an option that is a number, what it is at first, its least and its largest value.
type Known = (u32, u32, i32, i32, i32);

const SWITCH: (i32, i32) = (0, 1);

const fn switch(level: u32, option: u32, first: i32) -> Known {
    (level, option, first, SWITCH.0, SWITCH.1)
}

const KNOWN: [Known; 58] = [
    (IP, net::IP_TOS, 0, 0, 255),
    (IP, net::IP_TTL, 64, 1, 255),
    switch(IP, net::IP_HDRINCL, 0),
    switch(IP, net::IP_RECVOPTS, 0),
    switch(IP, net::IP_RETOPTS, 0),
    switch(IP, net::IP_PKTINFO, 0),
    (IP, net::IP_MTU_DISCOVER, 1, 0, 5),
    switch(IP, net::IP_RECVERR, 0),
    switch(IP, net::IP_RECVTTL, 0),
    switch(IP, net::IP_RECVTOS, 0),
    switch(IP, net::IP_FREEBIND, 0),
    switch(IP, net::IP_RECVORIGDSTADDR, 0),
    (IP, net::IP_MINTTL, 0, 0, 255),
    switch(IP, net::IP_NODEFRAG, 0),
    switch(IP, net::IP_BIND_ADDRESS_NO_PORT, 0),
    switch(IP, IP_RECVFRAGSIZE, 0),
    (IP, net::IP_MULTICAST_TTL, 1, 0, 255),
    switch(IP, net::IP_MULTICAST_LOOP, 1),
    switch(IP, net::IP_MULTICAST_ALL, 1),
    (IP, net::IP_UNICAST_IF, 0, 0, i32::MAX),
    (IPV6, net::IPV6_UNICAST_HOPS, 64, 0, 255),
    (IPV6, net::IPV6_MULTICAST_HOPS, 1, 0, 255),
    switch(IPV6, net::IPV6_MULTICAST_LOOP, 1),
    (IPV6, net::IPV6_MULTICAST_IF, 0, 0, i32::MAX),
    (IPV6, net::IPV6_MTU_DISCOVER, 1, 0, 5),
    switch(IPV6, net::IPV6_RECVERR, 0),
    switch(IPV6, net::IPV6_V6ONLY, 0),
    switch(IPV6, net::IPV6_RECVPKTINFO, 0),
    switch(IPV6, net::IPV6_RECVHOPLIMIT, 0),
    switch(IPV6, net::IPV6_RECVTCLASS, 0),
    (IPV6, net::IPV6_TCLASS, 0, 0, 255),
    switch(IPV6, net::IPV6_DONTFRAG, 0),
    switch(IPV6, net::IPV6_AUTOFLOWLABEL, 1),
    switch(IPV6, net::IPV6_FREEBIND, 0),
    switch(IPV6, net::IPV6_RECVERR_RFC4884, 0),
    switch(IPV6, IPV6_RECVFRAGSIZE, 0),
    (IPV6, net::IPV6_MINHOPCOUNT, 0, 0, 255),
    (IPV6, net::IPV6_UNICAST_IF, 0, 0, i32::MAX),
    switch(IPV6, net::IPV6_MULTICAST_ALL, 1),
    switch(TCP, net::TCP_NODELAY, 0),
    (TCP, net::TCP_MAXSEG, LOOP_SEGMENT, 88, 32_767),
    switch(TCP, net::TCP_CORK, 0),
    (TCP, net::TCP_KEEPIDLE, 7200, 1, 32_767),
    (TCP, net::TCP_KEEPINTVL, 75, 1, 32_767),
    (TCP, net::TCP_KEEPCNT, 9, 1, 127),
    (TCP, net::TCP_SYNCNT, 6, 1, 127),
    (TCP, net::TCP_LINGER2, 60, -1, 120),
    (TCP, net::TCP_DEFER_ACCEPT, 0, 0, i32::MAX),
    (TCP, net::TCP_WINDOW_CLAMP, 0, 0, i32::MAX),
    switch(TCP, net::TCP_QUICKACK, 1),
    (TCP, net::TCP_USER_TIMEOUT, 0, 0, i32::MAX),
    (TCP, net::TCP_FASTOPEN, 0, 0, i32::MAX),
    switch(TCP, net::TCP_FASTOPEN_CONNECT, 0),
    (TCP, net::TCP_NOTSENT_LOWAT, 0, i32::MIN, i32::MAX),
    (UDP_LITE, LITE_COVERAGE[0], 0, 0, 65_535),
    (UDP_LITE, LITE_COVERAGE[1], 0, 0, 65_535),
    switch(UDP, UDP_CORK, 0),
    switch(UDP, UDP_NO_CHECK6_TX, 0),
];

fn known(level: u32, option: u32) -> Result<Known> {
    KNOWN.into_iter().find(|known| (known.0, known.1) == (level, option)).ok_or(Errno::ENOPROTOOPT)
}

/// A group a socket has joined, and on which interface.
type Membership = (IpAddr, u32);

#[derive(Default)]
struct Chosen {
    numbers: Vec<(u32, u32, i32)>,
    groups: Vec<Membership>,
    /// Where multicasts go out (`IP_MULTICAST_IF`).
    multicast: Option<Ipv4Addr>,
}

/// What one socket has chosen: what is not there is as it is at first.
#[derive(Default)]
pub(super) struct InetOptions {
    chosen: Mutex<Chosen>,
    /// Whether receiving has to look for anything.
    pub(super) tells: AtomicBool,
}

impl InetOptions {
    pub(super) fn number(&self, level: u32, option: u32) -> i32 {
        let chosen = self.chosen.lock();
        let set = chosen.numbers.iter().find(|(l, o, _)| (*l, *o) == (level, option)).map(|(_, _, value)| *value);
        set.unwrap_or_else(|| known(level, option).map_or(0, |known| known.2))
    }

    pub(super) fn is_on(&self, level: u32, option: u32) -> bool {
        self.number(level, option) != 0
    }

    pub(super) fn free_bind(&self) -> bool {
        self.is_on(IP, net::IP_FREEBIND) || self.is_on(IPV6, net::IPV6_FREEBIND)
    }

    pub(super) fn in_group(&self, group: IpAddr) -> bool {
        self.chosen.lock().groups.iter().any(|(ip, _)| *ip == group)
    }

    /// The address multicasts go out from, if it was chosen.
    pub(super) fn multicast_source(&self, v4: bool) -> Option<IpAddr> {
        if v4 {
            return self.chosen.lock().multicast.map(IpAddr::V4);
        }
        let index = self.number(IPV6, net::IPV6_MULTICAST_IF);
        let interface = network::current().interfaces().into_iter().find(|i| i.index.cast_signed() == index)?;
        interface.addresses.into_iter().map(|(ip, _)| ip).find(IpAddr::is_ipv6)
    }

    pub(super) fn inherit(&self, from: &Self) {
        self.chosen.lock().numbers.clone_from(&from.chosen.lock().numbers);
    }

    fn set(&self, level: u32, option: u32, value: i32) {
        let mut chosen = self.chosen.lock();
        chosen.numbers.retain(|(l, o, _)| (*l, *o) != (level, option));
        chosen.numbers.push((level, option, value));
    }

    fn join(&self, group: IpAddr, interface: u32, joins: bool) -> Result<()> {
        let mut chosen = self.chosen.lock();
        let member = chosen.groups.iter().position(|one| *one == (group, interface));
        match (member, joins) {
            (None, true) => chosen.groups.push((group, interface)),
            (Some(at), false) => drop(chosen.groups.swap_remove(at)),
            (Some(_), true) => return Err(Errno::EADDRINUSE),
            (None, false) => return Err(Errno::EADDRNOTAVAIL),
        }
        Ok(())
    }
}

/// Whether sockets of a family and transport have options of a level.
fn has_level(common: &Common, level: u32, tcp: bool) -> bool {
    match level {
        IP => true,
        IPV6 => common.family == Family::V6,
        TCP => tcp,
        UDP | UDP_LITE => !tcp,
        _ => false,
    }
}

fn missing(level: u32) -> Errno {
    if level == IPV6 { Errno::ENOPROTOOPT } else { Errno::EOPNOTSUPP }
}

/// An option's value. `tcp` is the socket if it is one of that transport.
///
/// # Errors
/// `ENOPROTOOPT`, `EOPNOTSUPP`.
pub(super) fn get(common: &Common, tcp: Option<&Tcp>, level: u32, option: u32) -> Result<Vec<u8>> {
    if !has_level(common, level, tcp.is_some()) {
        return Err(missing(level));
    }
    let value = match (level, option) {
        (TCP, net::TCP_INFO) => return Ok(tcp.map_or_else(Vec::new, info)),
        // One algorithm, which is never asked for anything.
        (TCP, net::TCP_CONGESTION) => return Ok(b"cubic\0\0\0\0\0\0\0\0\0\0\0".to_vec()),
        (IP, net::IP_OPTIONS) => return Ok(Vec::new()),
        (IP, net::IP_MTU) | (IPV6, net::IPV6_MTU) => 65_535,
        (IP, net::IP_MULTICAST_IF) => {
            return Ok(common.options.multicast_source(true).map_or(vec![0; 4], |ip| match ip {
                IpAddr::V4(ip) => ip.octets().to_vec(),
                IpAddr::V6(_) => vec![0; 4],
            }));
        }
        (IPV6, net::IPV6_V6ONLY) => i32::from(common.only_v6()),
        _ => {
            known(level, option)?;
            common.options.number(level, option)
        }
    };
    Ok(value.to_ne_bytes().to_vec())
}

/// Sets an option. `bound` tells whether the socket has an address.
///
/// # Errors
/// Those of `setsockopt(2)`.
pub(super) fn set(common: &Common, tcp: bool, bound: bool, level: u32, option: u32, value: &[u8]) -> Result<()> {
    if !has_level(common, level, tcp) {
        return Err(missing(level));
    }
    match (level, option) {
        (TCP, net::TCP_CONGESTION) => {
            let name = value.split(|&b| b == 0).next().unwrap_or_default();
            return if matches!(name, b"cubic" | b"reno") { Ok(()) } else { Err(Errno::ENOENT) };
        }
        (IP, net::IP_OPTIONS) => return if value.is_empty() { Ok(()) } else { Err(Errno::EINVAL) },
        (IP, net::IP_MULTICAST_IF) => return set_multicast_interface(common, value),
        (IP, net::IP_ADD_MEMBERSHIP | net::IP_DROP_MEMBERSHIP) => {
            return join_v4(common, value, option == net::IP_ADD_MEMBERSHIP);
        }
        (IPV6, net::IPV6_ADD_MEMBERSHIP | net::IPV6_DROP_MEMBERSHIP) => {
            return join_v6(common, value, option == net::IPV6_ADD_MEMBERSHIP);
        }
        _ => {}
    }
    let (_, _, first, least, most) = known(level, option)?;
    let number = match (value.first_chunk::<4>(), value.first(), level) {
        (Some(word), ..) => i32::from_ne_bytes(*word),
        // IP takes single bytes, too.
        (None, Some(byte), IP) => i32::from(*byte),
        _ => return Err(Errno::EINVAL),
    };
    let number = match number {
        _ if (least, most) == SWITCH => i32::from(number != 0),
        // "As it is at first."
        -1 if matches!(
            (level, option),
            (IP, net::IP_TTL | net::IP_MULTICAST_TTL)
                | (IPV6, net::IPV6_UNICAST_HOPS | net::IPV6_MULTICAST_HOPS | net::IPV6_TCLASS)
        ) =>
        {
            first
        }
        _ if level == IP && option == net::IP_TOS => number & 0xff,
        _ => number,
    };
    let unset = (level, option, number) == (TCP, net::TCP_MAXSEG, 0);
    if !unset && !(least..=most).contains(&number) {
        return Err(Errno::EINVAL);
    }
    if (level, option) == (IPV6, net::IPV6_V6ONLY) {
        if bound {
            return Err(Errno::EINVAL);
        }
        common.only_v6.store(number != 0, Ordering::Relaxed);
    }
    common.options.set(level, option, number);
    if matches!(
        (level, option),
        (IP, net::IP_PKTINFO | net::IP_RECVTTL | net::IP_RECVTOS | net::IP_RECVORIGDSTADDR)
            | (IPV6, net::IPV6_RECVPKTINFO | net::IPV6_RECVHOPLIMIT | net::IPV6_RECVTCLASS)
    ) {
        common.options.tells.store(true, Ordering::Relaxed);
    }
    Ok(())
}

/// The interface with an address, or a number; 0 or no address is the one that routes to `group`.
fn interface_of(address: Ipv4Addr, index: i32, group: IpAddr) -> Result<Interface> {
    let interfaces = network::current().interfaces();
    let is_it = |interface: &Interface| match index {
        0 => interface.addresses.iter().any(|(ip, prefix)| match ip {
            IpAddr::V4(ip) => (u32::from(*ip) ^ u32::from(address)).leading_zeros() >= u32::from(*prefix),
            IpAddr::V6(_) => false,
        }),
        index => interface.index.cast_signed() == index,
    };
    if index == 0 && address.is_unspecified() {
        let route = network::current().route(group).map_err(|_| Errno::ENODEV)?;
        return interfaces.into_iter().find(|i| i.index == route.interface).ok_or(Errno::ENODEV);
    }
    interfaces.into_iter().find(is_it).ok_or(Errno::ENODEV)
}

/// The interface's address and number in `struct ip_mreq`, `ip_mreqn` or alone.
fn set_multicast_interface(common: &Common, value: &[u8]) -> Result<()> {
    let (address, index) = match value.len() {
        0..4 => return Err(Errno::EINVAL),
        4..8 => (v4(value, 0)?, 0),
        8..12 => (v4(value, 4)?, 0),
        _ => (v4(value, 4)?, word(value, 8)?),
    };
    let chosen = if address.is_unspecified() && index == 0 {
        None
    } else {
        let interface = interface_of(address, index, address.into()).map_err(|_| Errno::EADDRNOTAVAIL)?;
        interface.addresses.into_iter().find_map(|(ip, _)| match ip {
            IpAddr::V4(ip) => Some(ip),
            IpAddr::V6(_) => None,
        })
    };
    common.options.chosen.lock().multicast = chosen;
    Ok(())
}

fn v4(value: &[u8], at: usize) -> Result<Ipv4Addr> {
    value.get(at..).and_then(|rest| rest.first_chunk::<4>()).map(|octets| Ipv4Addr::from(*octets)).ok_or(Errno::EINVAL)
}

fn word(value: &[u8], at: usize) -> Result<i32> {
    let bytes = value.get(at..).and_then(|rest| rest.first_chunk());
    bytes.map(|bytes| i32::from_ne_bytes(*bytes)).ok_or(Errno::EINVAL)
}

fn join_v4(common: &Common, value: &[u8], joins: bool) -> Result<()> {
    let (group, address) = (v4(value, 0)?, v4(value, 4)?);
    let index = if value.len() < 12 { 0 } else { word(value, 8)? };
    if !group.is_multicast() {
        return Err(Errno::EINVAL);
    }
    let interface = interface_of(address, index, group.into())?;
    common.options.join(group.into(), interface.index, joins)
}

fn join_v6(common: &Common, value: &[u8], joins: bool) -> Result<()> {
    let group = Ipv6Addr::from(*value.first_chunk::<16>().ok_or(Errno::EINVAL)?);
    let index = word(value, 16)?;
    if !group.is_multicast() {
        return Err(Errno::EINVAL);
    }
    let interface = interface_of(Ipv4Addr::UNSPECIFIED, index, group.into())?;
    common.options.join(group.into(), interface.index, joins)
}

/// `struct tcp_info` as far as it has a meaning without packets.
pub(super) fn info(socket: &Tcp) -> Vec<u8> {
    const SIZE: usize = 232;
    const WORDS: usize = 8;
    let mut bytes = vec![0; SIZE];
    bytes[0] = socket.tcp_state();
    // Time stamps, selective acknowledgements and window scaling, by 7 both ways.
    bytes[5] = 0x7;
    bytes[6] = 0x77;
    let (waiting, most) = socket.backlog().unwrap_or_default();
    let listens = socket.backlog().is_some();
    let segment = LOOP_SEGMENT.cast_unsigned();
    // rto, ato, snd_mss, rcv_mss, unacked, sacked, lost, retrans, fackets, four times "ago", pmtu, rcv_ssthresh, rtt, rttvar,
    // snd_ssthresh, snd_cwnd, advmss, reordering.
    let unacked = if listens { waiting as u32 } else { 0 };
    let sacked = if listens { most as u32 } else { 0 };
    let words = [
        204_000,
        40_000,
        segment,
        segment,
        unacked,
        sacked,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        65_535,
        segment,
        20,
        10,
        i32::MAX as u32,
        10,
        segment,
        3,
    ];
    for (to, word) in bytes[WORDS..].chunks_exact_mut(4).zip(words) {
        to.copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}
