//! Options of the levels of IP, TCP and UDP. Most have no meaning without packets: they are
//! checked, remembered and given back. Which there are is in `option_table.rs`, groups are in
//! `multicast.rs`.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::ops::RangeInclusive;
use core::sync::atomic::{AtomicBool, Ordering};

use ::tcp::Algorithm;
use abi::errno::Errno;
use fs::Result;
use linux_raw_sys::net;
use task::Mutex;

use super::inet_socket::{Family, InetSocket};
use super::multicast::{self, Membership};
use super::option_table::{
    BOOLEAN_RANGE, IP, IPV6, KnownOption, LOOPBACK_MSS, TCP, TCP_INQ, UDP, UDP_LITE, find_option,
};
use super::stack::InetStack;
use super::tcp::TcpSocket;
use super::tcp_info::tcp_info;
use crate::OptionAccess;
use crate::socket::{CONGESTION_CONTROLS, InterfaceAddress};

/// Transport of a socket, as far as options tell it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Transport {
    /// `IPPROTO_TCP`.
    Tcp,
    /// One that sends datagrams.
    Datagram,
}

impl Transport {
    fn of(tcp: Option<&TcpSocket>) -> Self {
        if tcp.is_some() {
            Self::Tcp
        } else {
            Self::Datagram
        }
    }
}

#[derive(Default)]
struct InetOptionValues {
    numbers: Vec<(u32, u32, i32)>,
    memberships: Vec<Membership>,
    /// The address whose interface multicasts go out of (`IP_MULTICAST_IF`).
    multicast_source: Option<Ipv4Addr>,
    /// Place in [`CONGESTION_CONTROLS`] (`TCP_CONGESTION`); `None`: the host's.
    congestion: Option<usize>,
}

/// The largest segment that every network takes, bytes.
const DEFAULT_MSS: i32 = 536;
/// The level of options that all sockets have.
pub(super) const SOL_SOCKET: u32 = net::SOL_SOCKET;
/// Bytes of the name of one.
const CONGESTION_NAME: usize = 16;
const TCP_CC_INFO: u32 = 26;
const TCP_SAVED_SYN: u32 = 28;
const TCP_ULP: u32 = 31;
/// Options of routing of multicast (`MRT_*`, `MRT6_*`), which only raw sockets of IGMP and ICMPv6
/// have.
const MULTICAST_ROUTING: RangeInclusive<u32> = 200..=212;

/// The options of one socket: those that were not set are as they are at first.
pub(super) struct InetOptions {
    stack: Arc<InetStack>,
    values: Mutex<InetOptionValues>,
    /// Whether any control message is asked for.
    pub(super) wants_control: AtomicBool,
}

impl Drop for InetOptions {
    fn drop(&mut self) {
        multicast::leave_all(&self.stack, &self.values.get_mut().memberships);
    }
}

impl InetOptions {
    pub(super) fn new(stack: Arc<InetStack>) -> Self {
        Self {
            stack,
            values: Mutex::default(),
            wants_control: AtomicBool::new(false),
        }
    }

    /// The stack of the socket.
    pub(super) fn stack(&self) -> &Arc<InetStack> {
        &self.stack
    }

    pub(super) fn int_option(&self, level: u32, option: u32) -> i32 {
        let [value] = self.int_options([(level, option)]);
        value
    }

    /// The values of options that are known when the kernel is compiled, at one moment.
    pub(super) fn known_options<const N: usize>(&self, wanted: &[KnownOption; N]) -> [i32; N] {
        let chosen = self.values.lock();
        let sysctls = &self.stack.core.sysctls;
        wanted.each_ref().map(|known| {
            let mut set = chosen.numbers.iter();
            match set.find(|(l, o, _)| (*l, *o) == (known.level, known.option)) {
                Some((_, _, value)) => *value,
                None => known.default(sysctls),
            }
        })
    }

    /// The values of several options, by level and number, at one moment.
    pub(super) fn int_options<const N: usize>(&self, wanted: [(u32, u32); N]) -> [i32; N] {
        let chosen = self.values.lock();
        let sysctls = &self.stack.core.sysctls;
        wanted.map(|(level, option)| {
            let mut set = chosen.numbers.iter();
            match set.find(|(l, o, _)| (*l, *o) == (level, option)) {
                Some((_, _, value)) => *value,
                None => find_option(sysctls, level, option).map_or(0, |known| known.2),
            }
        })
    }

    pub(super) fn is_enabled(&self, level: u32, option: u32) -> bool {
        self.int_option(level, option) != 0
    }

    /// The algorithm by which congestion windows grow: the socket's, or the host's.
    pub(super) fn congestion_algorithm(&self) -> Algorithm {
        match self.congestion_control() {
            0 => Algorithm::Cubic,
            _ => Algorithm::Reno,
        }
    }

    /// Place of that algorithm in [`CONGESTION_CONTROLS`].
    fn congestion_control(&self) -> usize {
        let chosen = self.values.lock().congestion;
        chosen.unwrap_or_else(|| self.stack.core.sysctls.tcp_congestion_control.as_usize())
    }

    pub(super) fn is_freebind(&self) -> bool {
        self.is_enabled(IP, net::IP_FREEBIND) || self.is_enabled(IPV6, net::IPV6_FREEBIND)
    }

    /// Whether the memberships let in what `from` sends to a group.
    pub(super) fn accepts_multicast(&self, group: IpAddr, from: IpAddr) -> bool {
        self.values
            .lock()
            .memberships
            .iter()
            .any(|membership| membership.allows_source(group, from))
    }

    /// Changes which groups it is in.
    pub(super) fn update_memberships<R>(
        &self,
        change: impl FnOnce(&mut Vec<Membership>) -> R,
    ) -> R {
        change(&mut self.values.lock().memberships)
    }

    pub(super) fn set_multicast_source(&self, source: Option<Ipv4Addr>) {
        self.values.lock().multicast_source = source;
    }

    /// The IPv4 address that multicasts go out from, if it was chosen (`IP_MULTICAST_IF`).
    pub(super) fn multicast_source_v4(&self) -> Option<Ipv4Addr> {
        self.values.lock().multicast_source
    }

    /// The address that multicasts to a group of IPv4 go out from, and the interface, if they were
    /// chosen.
    pub(super) fn multicast_interface(&self, group: IpAddr) -> Option<(IpAddr, u32)> {
        if !group.is_multicast() || group.is_ipv6() {
            return None;
        }
        let source = IpAddr::V4(self.multicast_source_v4()?);
        let has_it = |known: &InterfaceAddress| known.ip == source;
        let core = &self.stack.core;
        let interface = core.find_interface(|one| one.addresses.iter().any(has_it))?;
        Some((source, interface.index))
    }

    /// A destination with the interface by which it is reached: that of a group of IPv6, if it does
    /// not say so itself, may have been chosen (`IPV6_MULTICAST_IF`).
    pub(super) fn with_multicast_interface(&self, to: SocketAddr) -> SocketAddr {
        match to {
            SocketAddr::V6(mut v6) if v6.ip().is_multicast() && v6.scope_id() == 0 => {
                let index = self.int_option(IPV6, net::IPV6_MULTICAST_IF);
                v6.set_scope_id(index.cast_unsigned());
                v6.into()
            }
            _ => to,
        }
    }

    pub(super) fn inherit_from(&self, from: &Self) {
        let (numbers, congestion) = {
            let from = from.values.lock();
            (from.numbers.clone(), from.congestion)
        };
        let mut chosen = self.values.lock();
        (chosen.numbers, chosen.congestion) = (numbers, congestion);
        drop(chosen);
        self.wants_control.store(
            from.wants_control.load(Ordering::Relaxed),
            Ordering::Relaxed,
        );
    }

    fn set(&self, level: u32, option: u32, value: i32) {
        let mut chosen = self.values.lock();
        chosen
            .numbers
            .retain(|(l, o, _)| (*l, *o) != (level, option));
        chosen.numbers.push((level, option, value));
    }
}

/// Whether sockets of a family and transport have options of a level.
fn has_level(common: &InetSocket, transport: Transport, level: u32) -> bool {
    match level {
        IP => true,
        IPV6 => common.family() == Family::V6,
        TCP => transport == Transport::Tcp,
        UDP | UDP_LITE => transport == Transport::Datagram,
        _ => false,
    }
}

/// Implements `SocketOps::check_option`.
pub(super) fn check(
    common: &InetSocket,
    transport: Transport,
    level: u32,
    option: u32,
    access: OptionAccess,
) -> Result<()> {
    if !has_level(common, transport, level) {
        return Err(match access {
            OptionAccess::Get if level != IPV6 => Errno::EOPNOTSUPP,
            _ => Errno::ENOPROTOOPT,
        });
    }
    // An option of IPv6 that is set has its value read first.
    let is_refused_unread = level == IP || level == IPV6 && access == OptionAccess::Get;
    if is_refused_unread && MULTICAST_ROUTING.contains(&option) {
        return Err(Errno::EOPNOTSUPP);
    }
    let is_text = level == TCP && [net::TCP_CONGESTION, TCP_ULP].contains(&option);
    match access {
        OptionAccess::Set { len }
            if matches!(level, TCP | UDP | UDP_LITE) && !is_text && len < size_of::<i32>() =>
        {
            Err(Errno::EINVAL)
        }
        _ => Ok(()),
    }
}

/// The longest packet that goes to a socket's peer whole, as far as that is known.
///
/// # Errors
/// `ENOTCONN`; why there is no way to the peer.
fn path_mtu(common: &InetSocket, level: u32, peer: Option<SocketAddr>) -> Result<i32> {
    let mtu = common.stack().route_to(peer.ok_or(Errno::ENOTCONN)?)?.mtu;
    // No length in a header is greater; that of IPv6 leaves its header out.
    let most = if level == IP { 65_535 } else { 65_535 + 40 };
    Ok(mtu.min(most).cast_signed())
}

/// An option's value. `tcp` is the socket if it is one of that transport, `peer` the end that it is
/// connected to.
///
/// # Errors
/// `ENOPROTOOPT`, `EOPNOTSUPP`, `ENOTCONN`.
pub(super) fn get(
    common: &InetSocket,
    tcp: Option<&TcpSocket>,
    peer: Option<SocketAddr>,
    level: u32,
    option: u32,
) -> Result<Vec<u8>> {
    check(common, Transport::of(tcp), level, option, OptionAccess::Get)?;
    let sysctls = &common.stack().core.sysctls;
    let value = match (level, option) {
        (TCP, net::TCP_INFO) => return Ok(tcp.map_or_else(Vec::new, tcp_info)),
        (TCP, net::TCP_CONGESTION) => {
            let mut name = CONGESTION_CONTROLS[common.options.congestion_control()]
                .as_bytes()
                .to_vec();
            name.resize(CONGESTION_NAME, 0);
            return Ok(name);
        }
        // None of these has anything to say: no upper protocol, no packets that were kept, an
        // algorithm without figures.
        (TCP, TCP_ULP | TCP_SAVED_SYN | TCP_CC_INFO) | (IP, net::IP_OPTIONS) => {
            return Ok(Vec::new());
        }
        (TCP, net::TCP_MAXSEG) => {
            let chosen = common.options.int_option(TCP, net::TCP_MAXSEG);
            match (tcp.and_then(TcpSocket::engine_info), chosen) {
                (Some((info, ..)), _) => info.mss.cast_signed(),
                // Nothing was chosen: what any network takes, until it is known which one it is.
                (None, 0) if tcp.is_some_and(|tcp| tcp.addresses().1.is_some()) => LOOPBACK_MSS,
                (None, 0) => DEFAULT_MSS,
                (None, chosen) => chosen,
            }
        }
        (TCP, net::TCP_DEFER_ACCEPT) => tcp.map_or(0, |tcp| tcp.defer_accept_s().cast_signed()),
        (TCP, net::TCP_USER_TIMEOUT) => tcp.map_or(0, |tcp| tcp.user_timeout_ms().cast_signed()),
        (IP, net::IP_MTU) | (IPV6, net::IPV6_MTU) => path_mtu(common, level, peer)?,
        (IP, net::IP_MULTICAST_IF) => {
            let source = common.options.multicast_source_v4();
            return Ok(source.unwrap_or(Ipv4Addr::UNSPECIFIED).octets().to_vec());
        }
        (IPV6, net::IPV6_V6ONLY) => i32::from(common.is_v6_only()),
        _ => {
            find_option(sysctls, level, option)?;
            common.options.int_option(level, option)
        }
    };
    Ok(value.to_ne_bytes().to_vec())
}

/// The value of `IPV6_ADDRFORM` of a socket that talks to `peer`.
///
/// # Errors
/// `ENOPROTOOPT` if it is no `AF_INET6` socket, `ENOTCONN`.
pub(super) fn address_form(common: &InetSocket, peer: Option<SocketAddr>) -> Result<Vec<u8>> {
    if common.family() == Family::V4 {
        return Err(Errno::ENOPROTOOPT);
    }
    peer.ok_or(Errno::ENOTCONN)?;
    Ok(common.family().number().to_ne_bytes().to_vec())
}

/// Sets an option. `bound` tells whether the socket has an address.
///
/// # Errors
/// Those of `setsockopt(2)`.
pub(super) fn set(
    common: &InetSocket,
    tcp: Option<&TcpSocket>,
    bound: bool,
    level: u32,
    option: u32,
    value: &[u8],
) -> Result<()> {
    let access = OptionAccess::Set { len: value.len() };
    check(common, Transport::of(tcp), level, option, access)?;
    match (level, option) {
        (IPV6, option) if MULTICAST_ROUTING.contains(&option) => return Err(Errno::EOPNOTSUPP),
        (TCP, net::TCP_CONGESTION) => {
            let name = value.split(|&b| b == 0).next().unwrap_or_default();
            let known = CONGESTION_CONTROLS
                .iter()
                .position(|known| known.as_bytes() == name)
                .ok_or(Errno::ENOENT)?;
            common.options.values.lock().congestion = Some(known);
            return Ok(());
        }
        // There is none.
        (TCP, TCP_ULP) => return Err(Errno::ENOENT),
        (IP, net::IP_OPTIONS) => {
            return if value.is_empty() {
                Ok(())
            } else {
                Err(Errno::EINVAL)
            };
        }
        (IP | IPV6, option) if multicast::is_multicast_option(level, option) => {
            return multicast::set_multicast_option(common, level, option, value);
        }
        _ => {}
    }
    let sysctls = &common.stack().core.sysctls;
    let (_, _, first, least, most) = find_option(sysctls, level, option)?;
    let number = match (value.first_chunk::<4>(), value.first(), level) {
        (Some(word), ..) => i32::from_ne_bytes(*word),
        // IP takes single bytes, too.
        (None, Some(byte), IP) => i32::from(*byte),
        _ => return Err(Errno::EINVAL),
    };
    let number = match number {
        _ if (least, most) == BOOLEAN_RANGE => i32::from(number != 0),
        // "As it is at first."
        -1 if matches!(
            (level, option),
            (IP, net::IP_TTL | net::IP_MULTICAST_TTL)
                | (
                    IPV6,
                    net::IPV6_UNICAST_HOPS | net::IPV6_MULTICAST_HOPS | net::IPV6_TCLASS
                )
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
        common.v6_only.store(number != 0, Ordering::Relaxed);
    }
    match (level, option, tcp) {
        (TCP, net::TCP_DEFER_ACCEPT, Some(tcp)) => tcp.set_defer_accept_s(number.cast_unsigned()),
        (TCP, net::TCP_USER_TIMEOUT, Some(tcp)) => tcp.set_user_timeout_ms(number.cast_unsigned()),
        _ => common.options.set(level, option, number),
    }
    if matches!(
        (level, option),
        (
            IP,
            net::IP_PKTINFO | net::IP_RECVTTL | net::IP_RECVTOS | net::IP_RECVORIGDSTADDR
        ) | (
            IPV6,
            net::IPV6_RECVPKTINFO
                | net::IPV6_RECVHOPLIMIT
                | net::IPV6_RECVTCLASS
                | net::IPV6_RECVORIGDSTADDR
                | net::IPV6_2292PKTINFO
                | net::IPV6_2292HOPLIMIT
        ) | (TCP, TCP_INQ)
    ) {
        common.options.wants_control.store(true, Ordering::Relaxed);
    }
    Ok(())
}
