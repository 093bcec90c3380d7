//! Texts of `/proc/net` that tell of the host rather than of its sockets: counters, groups,
//! neighbours, routes.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write;
use core::net::{IpAddr, Ipv4Addr};

use abi::errno::Errno;
use fallible::Text;
use ip::neighbour::State;
use ip::route::Kind;

use super::host::Host;
use super::inet_socket::Family;
use super::loopback::Loopback;
use super::stack::InetStack;
use crate::socket::InterfaceName;

/// Names of the counters of TCP and IP beside those of `snmp`.
const TCP_EXT: &str = "SyncookiesSent SyncookiesRecv SyncookiesFailed EmbryonicRsts PruneCalled RcvPruned OfoPruned OutOfWindowIcmps LockDroppedIcmps ArpFilter TW TWRecycled TWKilled PAWSActive PAWSEstab DelayedACKs DelayedACKLocked DelayedACKLost ListenOverflows ListenDrops TCPHPHits TCPPureAcks TCPHPAcks TCPRenoRecovery TCPSackRecovery TCPSACKReneging TCPSACKReorder TCPRenoReorder TCPTSReorder TCPFullUndo TCPPartialUndo TCPDSACKUndo TCPLossUndo TCPLostRetransmit TCPRenoFailures TCPSackFailures TCPLossFailures TCPFastRetrans TCPSlowStartRetrans TCPTimeouts TCPLossProbes TCPLossProbeRecovery TCPRenoRecoveryFail TCPSackRecoveryFail TCPRcvCollapsed TCPBacklogCoalesce TCPDSACKOldSent TCPDSACKOfoSent TCPDSACKRecv TCPDSACKOfoRecv TCPAbortOnData TCPAbortOnClose TCPAbortOnMemory TCPAbortOnTimeout TCPAbortOnLinger TCPAbortFailed TCPMemoryPressures";
const IP_EXT: &str = "InNoRoutes InTruncatedPkts InMcastPkts OutMcastPkts InBcastPkts OutBcastPkts InOctets OutOctets InMcastOctets OutMcastOctets InBcastOctets OutBcastOctets InCsumErrors InNoECTPkts InECT1Pkts InECT0Pkts InCEPkts ReasmOverlaps";
const SNMP6_NAMES: &str = "Ip6InReceives Ip6InHdrErrors Ip6InTooBigErrors Ip6InNoRoutes Ip6InAddrErrors Ip6InUnknownProtos Ip6InTruncatedPkts Ip6InDiscards Ip6InDelivers Ip6OutForwDatagrams Ip6OutRequests Ip6OutDiscards Ip6OutNoRoutes Ip6ReasmTimeout Ip6ReasmReqds Ip6ReasmOKs Ip6ReasmFails Ip6FragOKs Ip6FragFails Ip6FragCreates Ip6InMcastPkts Ip6OutMcastPkts Ip6InOctets Ip6OutOctets Icmp6InMsgs Icmp6InErrors Icmp6OutMsgs Icmp6OutErrors Icmp6InCsumErrors Icmp6InDestUnreachs Icmp6InPktTooBigs Icmp6InTimeExcds Icmp6InParmProblems Icmp6InEchos Icmp6InEchoReplies Icmp6InGroupMembQueries Icmp6InGroupMembResponses Icmp6InGroupMembReductions Icmp6InRouterSolicits Icmp6InRouterAdvertisements Icmp6InNeighborSolicits Icmp6InNeighborAdvertisements Icmp6InMLDv2Reports Icmp6OutDestUnreachs Icmp6OutPktTooBigs Icmp6OutTimeExcds Icmp6OutParmProblems Icmp6OutEchos Icmp6OutEchoReplies Icmp6OutGroupMembQueries Icmp6OutGroupMembResponses Icmp6OutGroupMembReductions Icmp6OutRouterSolicits Icmp6OutRouterAdvertisements Icmp6OutNeighborSolicits Icmp6OutNeighborAdvertisements Icmp6OutMLDv2Reports Udp6InDatagrams Udp6NoPorts Udp6InErrors Udp6OutDatagrams Udp6RcvbufErrors Udp6SndbufErrors Udp6InCsumErrors UdpLite6InDatagrams UdpLite6NoPorts UdpLite6InErrors UdpLite6OutDatagrams";

/// The text of `/proc/net/netstat`: packets of IP over interfaces are counted, and of TCP what is
/// sent again.
#[must_use]
pub fn netstat(stack: &InetStack) -> String {
    let counts = stack.host().map(Host::tcp_counts);
    let packets = stack.host().map(Host::packet_counts);
    let mut text = String::new();
    for (group, names) in [("TcpExt", TCP_EXT), ("IpExt", IP_EXT)] {
        // Writing to a string does not fail, here and below.
        let _ = write!(text, "{group}: {names}\n{group}:");
        for name in names.split(' ') {
            let value = match group {
                "TcpExt" => counts.map_or(0, |counts| counts.value(name)),
                _ => packets.map_or(0, |packets| packets.value(group, name)),
            };
            let _ = write!(text, " {value}");
        }
        text.push('\n');
    }
    text
}

/// The text of `/proc/net/snmp6`.
#[must_use]
pub fn snmp6(stack: &InetStack) -> String {
    let counts = stack.host().map(Host::packet_counts);
    let mut text = String::new();
    for name in SNMP6_NAMES.split(' ') {
        let udp = [("Udp6", false), ("UdpLite6", true)];
        let of_udp = udp.into_iter().find_map(|(group, is_lite)| {
            let name = name.strip_prefix(group)?;
            Some(stack.udp.counts.value(is_lite, true, name))
        });
        let value = of_udp.or_else(|| counts.map(|counts| counts.value_v6(name)));
        let value = value.unwrap_or(0);
        let _ = writeln!(text, "{name:<32}\t{value}");
    }
    text
}

/// The text of `/proc/net/sockstat6`.
#[must_use]
pub fn sockstat6(stack: &InetStack) -> String {
    let is_v6 = |family: Family| family == Family::V6;
    let tcp = stack.tcp.sockets.all();
    let tcp = tcp
        .iter()
        .filter(|socket| is_v6(socket.common.family()))
        .count();
    let udp = stack.udp.sockets.all();
    let udp = udp
        .iter()
        .filter(|socket| is_v6(socket.common.family()))
        .count();
    let raw = stack.raw.sockets.all();
    let raw = raw
        .iter()
        .filter(|socket| is_v6(socket.common.family()))
        .count();
    let mut text = String::new();
    let _ = writeln!(
        text,
        "TCP6: inuse {tcp}\nUDP6: inuse {udp}\nUDPLITE6: inuse 0\nRAW6: inuse {raw}\nFRAG6: inuse 0 memory 0"
    );
    text
}

/// The name of an interface by its number; `None` of one that has gone meanwhile.
fn name_of(host: &Host, index: u32) -> Option<InterfaceName> {
    host.interface(index).map(|interface| interface.name)
}

/// An address as routes have it: a word in the machine's order of bytes.
fn word(address: Ipv4Addr) -> u32 {
    u32::from_ne_bytes(address.octets())
}

/// The text of `/proc/net/route`: the host's own addresses are not in it. Lines are as long as on
/// Linux, which pads them.
///
/// # Errors
/// `ENOMEM`.
pub fn route(stack: &InetStack) -> Result<String, Errno> {
    const LENGTH: usize = 127;
    const UP: u32 = 1;
    const GATEWAY: u32 = 2;
    const HOST: u32 = 4;
    const REJECT: u32 = 0x200;
    let mut text = Text::default();
    let mut put = |line: String| writeln!(text, "{line:<LENGTH$}").map_err(|_| Errno::ENOMEM);
    let header =
        "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT";
    put(header.into())?;
    let host = stack.host();
    let routes = host.map_or(Ok(Vec::new()), Host::routes)?;
    for route in &routes {
        let prefix = route.destination;
        let mut flags = UP;
        if route.gateway.is_some() {
            flags |= GATEWAY;
        }
        if prefix.length == 32 {
            flags |= HOST;
        }
        if matches!(route.kind, Kind::Unreachable | Kind::Prohibit) {
            flags |= REJECT;
        }
        let name = host.and_then(|host| name_of(host, route.interface));
        let name = name.as_deref().unwrap_or("*");
        let mask = u32::MAX.checked_shl(32 - u32::from(prefix.length));
        put(format!(
            "{name}\t{:08X}\t{:08X}\t{flags:04X}\t0\t0\t{}\t{:08X}\t0\t0\t0",
            word(prefix.address),
            word(route.gateway.unwrap_or(Ipv4Addr::UNSPECIFIED)),
            route.metric,
            mask.unwrap_or(0).to_be(),
        ))?;
    }
    Ok(text.into_string())
}

/// The text of `/proc/net/arp`: the loop has no neighbours.
///
/// # Errors
/// `ENOMEM`.
pub fn arp(stack: &InetStack) -> Result<String, Errno> {
    /// Ethernet, and what is known of a neighbour: its address, for ever.
    const ETHERNET: u32 = 1;
    const COMPLETE: u32 = 2;
    const PERMANENT: u32 = 4;
    let mut text = Text::default();
    let header = "IP address       HW type     Flags       HW address            Mask     Device";
    writeln!(text, "{header}").map_err(|_| Errno::ENOMEM)?;
    let host = stack.host();
    for neighbour in host.map_or(Ok(Vec::new()), Host::neighbours)? {
        let name = host.and_then(|host| name_of(host, neighbour.key.interface));
        let (IpAddr::V4(address), Some(name)) = (neighbour.key.address, name) else {
            continue;
        };
        let flags = match neighbour.state {
            State::Incomplete | State::Failed => 0,
            State::Permanent => COMPLETE | PERMANENT,
            _ => COMPLETE,
        };
        let [a, b, c, d, e, f] = neighbour.hardware.unwrap_or_default();
        writeln!(
            text,
            "{address:<16} 0x{ETHERNET:<10x}0x{flags:<10x}{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}     *        {name}"
        )
        .map_err(|_| Errno::ENOMEM)?;
    }
    Ok(text.into_string())
}

/// The text of `/proc/net/ipv6_route`.
///
/// # Errors
/// `ENOMEM`.
pub fn ipv6_route(stack: &InetStack) -> Result<String, Errno> {
    /// A route to this host, that is up, without a next hop.
    const LOCAL: u32 = 0x8020_0001;
    const UP: u32 = 0x1;
    const GATEWAY: u32 = 0x2;
    const REJECT: u32 = 0x200;
    const EXPIRES: u32 = 0x40_0000;
    let mut text = Text::default();
    let host = stack.host();
    for (route, left) in host.map_or(Ok(Vec::new()), Host::ipv6_routes)? {
        let (to, length) = (
            u128::from(route.destination.address),
            route.destination.length,
        );
        let mut flags = UP;
        if route.gateway.is_some() {
            flags |= GATEWAY;
        }
        if left.is_some() {
            flags |= EXPIRES;
        }
        if route.kind != Kind::Unicast {
            flags |= REJECT;
        }
        let name = host.and_then(|host| name_of(host, route.interface));
        let name = name.unwrap_or(Loopback::name());
        let gateway = route.gateway.map_or(0, u128::from);
        writeln!(
            text,
            "{to:032x} {length:02x} {:032x} 00 {gateway:032x} {:08x} {:08x} {:08x} {flags:08x} {name:>8}",
            0, route.metric, 1, 0
        )
        .map_err(|_| Errno::ENOMEM)?;
    }
    for interface in stack.core.interfaces() {
        for known in interface.addresses.iter() {
            if let IpAddr::V6(ip) = known.ip {
                let (ip, name) = (u128::from(ip), interface.name);
                writeln!(
                    text,
                    "{ip:032x} 80 {:032x} 00 {:032x} {:08x} {:08x} {:08x} {LOCAL:08x} {name:>8}",
                    0, 0, 0, 2, 0
                )
                .map_err(|_| Errno::ENOMEM)?;
            }
        }
    }
    Ok(text.into_string())
}
