//! The texts of `/proc/net` (`proc(5)`).

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt::Write;
use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::Ordering;

use abi::errno::Errno;
use fallible::{Pieces, Text};
use ip::v6::address::{Scope, scope};
use linux_raw_sys::net;

use super::datagram_socket::DatagramProtocol;
use super::host::{Host, UnownedConnection};
use super::inet_socket::{Family, InetSocket};
use super::raw::RawSocket;
use super::stack::InetStack;
use super::tcp::{TcpSocket, TcpState};
use super::tcp_info::tcp_info;
use super::udp::UdpSocket;
use crate::SocketOps;
use crate::socket::memory::Transport;

const TCP: i32 = net::IPPROTO_TCP as i32;
const UDP: i32 = net::IPPROTO_UDP as i32;
const UDP_LITE: i32 = net::IPPROTO_UDPLITE as i32;
const RAW: i32 = net::IPPROTO_RAW as i32;
/// States of sockets that have, or have no peer.
const ESTABLISHED: u8 = TcpState::Established as u8;
const UNCONNECTED: u8 = TcpState::Close as u8;

/// An address as the kernel's files have it: words in the machine's order of bytes, a colon, the
/// port.
fn format_address(address: SocketAddr, v6: bool) -> String {
    let mut text = String::new();
    let octets = match address.ip() {
        IpAddr::V4(ip) if v6 => ip.to_ipv6_mapped().octets().to_vec(),
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    for word in octets.as_chunks::<4>().0 {
        // Writing to a string does not fail, here and below.
        let _ = write!(text, "{:08X}", u32::from_ne_bytes(*word));
    }
    let _ = write!(text, ":{:04X}", address.port());
    text
}

struct Row {
    family: Family,
    uid: u32,
    ino: u64,
    id: u64,
    addresses: (SocketAddr, Option<SocketAddr>),
    state: u8,
    queues: (usize, usize),
    /// The columns that a transport adds.
    more: String,
}

/// The number of the state of a datagram socket.
fn datagram_state(peer: Option<SocketAddr>) -> u8 {
    if peer.is_some() {
        ESTABLISHED
    } else {
        UNCONNECTED
    }
}

impl Row {
    /// A row of a socket, with nothing in it yet.
    fn new(common: &InetSocket, addresses: (SocketAddr, Option<SocketAddr>)) -> Self {
        Self {
            family: common.family(),
            uid: common.uid,
            ino: common.ino.load(Ordering::Relaxed),
            id: common.id,
            addresses,
            state: UNCONNECTED,
            queues: (0, 0),
            more: String::new(),
        }
    }

    fn of_datagrams(socket: &impl DatagramProtocol) -> Self {
        let (addresses, receiver) = (socket.addresses(), socket.receiver());
        Self {
            state: datagram_state(addresses.1),
            queues: (0, receiver.charged_bytes()),
            more: format!(" {}", receiver.drops()),
            ..Self::new(socket.common(), addresses)
        }
    }
}

/// Adds the line of a socket to a list.
fn write_row(to: &mut Text, number: usize, row: &Row) -> Result<(), Errno> {
    let v6 = row.family == Family::V6;
    let (local, remote) = row.addresses;
    let remote = remote.unwrap_or(row.family.unspecified_address());
    let (sending, receiving) = row.queues;
    writeln!(
        to,
        "{number:4}: {} {} {:02X} {sending:08X}:{receiving:08X} 00:00000000 00000000 {uid:5}        0 {ino} 1 {:016x}{}",
        format_address(local, v6),
        format_address(remote, v6),
        row.state,
        row.id,
        row.more,
        uid = row.uid,
        ino = row.ino,
    )
    .map_err(|_| Errno::ENOMEM)
}

fn header(v6: bool, more: &str) -> Result<Text, Errno> {
    let address = if v6 {
        "local_address                         remote_address                        "
    } else {
        "local_address rem_address   "
    };
    let mut text = Text::default();
    writeln!(
        text,
        "  sl  {address}st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode{more}"
    )
    .map_err(|_| Errno::ENOMEM)?;
    Ok(text)
}

/// The text of `/proc/net/tcp`, or else of `tcp6`.
///
/// # Errors
/// `ENOMEM`: a user may make thousands of lines.
pub fn tcp(stack: &InetStack, family: Family) -> Result<String, Errno> {
    let v6 = family == Family::V6;
    let mut text = header(v6, "")?;
    let sockets = stack.tcp.sockets.all();
    let of_family = sockets
        .iter()
        .filter(|socket| socket.common.family() == family);
    let mut number = 0;
    // A socket without an address is not listed.
    for socket in of_family.filter(|socket| socket.addresses().0.port() != 0) {
        let queues = match socket.backlog() {
            Some((waiting, _)) => (0, waiting),
            None => (socket.send_queue_bytes(), socket.receive_queue_bytes()),
        };
        let row = Row {
            state: socket.tcp_state() as u8,
            queues,
            more: String::from(" 20 4 30 10 -1"),
            ..Row::new(&socket.common, socket.addresses())
        };
        write_row(&mut text, number, &row)?;
        number += 1;
    }
    let unowned = stack
        .host()
        .map(Host::unowned_connections)
        .unwrap_or_default();
    let is_of_family = |one: &&UnownedConnection| one.ends.local.is_ipv6() == v6;
    for connection in unowned.iter().filter(is_of_family) {
        let row = Row {
            family,
            uid: 0,
            ino: 0,
            id: 0,
            addresses: (connection.ends.local, Some(connection.ends.remote)),
            state: connection.state as u8,
            queues: (connection.queued, 0),
            more: String::new(),
        };
        write_row(&mut text, number, &row)?;
        number += 1;
    }
    Ok(text.into_string())
}

/// The text of `/proc/net/udp`, or of `udp6`.
///
/// # Errors
/// `ENOMEM`, as [`tcp()`].
pub fn udp(stack: &InetStack, family: Family) -> Result<String, Errno> {
    list_udp(stack, family, |socket| !socket.is_lite())
}

/// The text of `/proc/net/udplite`, or of `udplite6`.
///
/// # Errors
/// `ENOMEM`, as [`tcp()`].
pub fn udplite(stack: &InetStack, family: Family) -> Result<String, Errno> {
    list_udp(stack, family, UdpSocket::is_lite)
}

fn list_udp(
    stack: &InetStack,
    family: Family,
    is_listed: fn(&UdpSocket) -> bool,
) -> Result<String, Errno> {
    let v6 = family == Family::V6;
    let mut text = header(v6, " ref pointer drops")?;
    let sockets = stack.udp.sockets.all();
    let of_family = sockets
        .iter()
        .filter(|socket| socket.common.family() == family && is_listed(socket));
    for (number, socket) in of_family
        .filter(|socket| socket.addresses().0.port() != 0)
        .enumerate()
    {
        write_row(&mut text, number, &Row::of_datagrams(&**socket))?;
    }
    Ok(text.into_string())
}

/// The text of `/proc/net/raw`, or of `raw6`.
///
/// # Errors
/// `ENOMEM`, as [`tcp()`].
pub fn raw(stack: &InetStack, family: Family) -> Result<String, Errno> {
    list_raw(stack, family, |socket| !socket.is_ping)
}

/// The text of `/proc/net/icmp`, or of `icmp6`: ping sockets.
///
/// # Errors
/// `ENOMEM`, as [`tcp()`].
pub fn icmp(stack: &InetStack, family: Family) -> Result<String, Errno> {
    list_raw(stack, family, |socket| socket.is_ping)
}

fn list_raw(
    stack: &InetStack,
    family: Family,
    is_listed: fn(&RawSocket) -> bool,
) -> Result<String, Errno> {
    let v6 = family == Family::V6;
    let mut text = header(v6, " ref pointer drops")?;
    let sockets = stack.raw.sockets.all();
    let meant = |socket: &&Arc<RawSocket>| socket.common.family() == family && is_listed(socket);
    for socket in sockets.iter().filter(meant) {
        let number = socket.addresses().0.port().into();
        write_row(&mut text, number, &Row::of_datagrams(&**socket))?;
    }
    Ok(text.into_string())
}

/// A socket as lists of sockets tell of it.
pub(crate) struct InetDiagEntry {
    pub(crate) family: u32,
    pub(crate) state: u8,
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    pub(crate) id: u64,
    /// Bytes that wait to be sent, and to be received; of a listener the connections there may be,
    /// and are.
    pub(crate) queues: (usize, usize),
    pub(crate) uid: u32,
    pub(crate) ino: u64,
    pub(crate) only_v6: bool,
    /// Bit 0: receiving has ended; bit 1: sending.
    pub(crate) shut: u8,
    /// `struct tcp_info`.
    pub(crate) info: Option<Vec<u8>>,
}

impl InetDiagEntry {
    fn new(
        common: &InetSocket,
        addresses: (SocketAddr, Option<SocketAddr>),
        state: u8,
        queues: (usize, usize),
    ) -> Self {
        Self {
            family: common.family().number(),
            state,
            local: addresses.0,
            remote: addresses.1.unwrap_or(common.family().unspecified_address()),
            id: common.id,
            queues,
            uid: common.uid,
            ino: common.ino.load(Ordering::Relaxed),
            only_v6: common.is_v6_only(),
            shut: 0,
            info: None,
        }
    }

    fn of_datagrams(socket: &impl DatagramProtocol) -> Self {
        let addresses = socket.addresses();
        let queues = (0, socket.receiver().charged_bytes());
        Self::new(
            socket.common(),
            addresses,
            datagram_state(addresses.1),
            queues,
        )
    }
}

/// The sockets of a protocol that have an address; `None` for one nobody knows.
pub(crate) fn diag_entries(stack: &InetStack, protocol: u8) -> Option<Pieces<InetDiagEntry>> {
    let has_port = |socket: &InetDiagEntry| socket.local.port() != 0;
    Some(match i32::from(protocol) {
        TCP => {
            let sockets = stack.tcp.sockets.all();
            let show = |socket: &Arc<TcpSocket>| {
                let queues = match socket.backlog() {
                    Some((waiting, most)) => (most, waiting),
                    None => (socket.send_queue_bytes(), socket.receive_queue_bytes()),
                };
                let (info, shut) = (Some(tcp_info(socket)), socket.endpoint.shutdown_mask());
                InetDiagEntry {
                    info,
                    shut,
                    ..InetDiagEntry::new(
                        &socket.common,
                        socket.addresses(),
                        socket.tcp_state() as u8,
                        queues,
                    )
                }
            };
            sockets.iter().map(show).filter(has_port).collect()
        }
        UDP | UDP_LITE => {
            let sockets = stack.udp.sockets.all();
            let of_protocol = sockets
                .iter()
                .filter(|socket| socket.is_lite() == (i32::from(protocol) == UDP_LITE));
            let show = |socket: &Arc<UdpSocket>| InetDiagEntry::of_datagrams(&**socket);
            of_protocol.map(show).filter(has_port).collect()
        }
        RAW => {
            let sockets = stack.raw.sockets.all();
            let show = |socket: &Arc<RawSocket>| InetDiagEntry::of_datagrams(&**socket);
            sockets
                .iter()
                .filter(|socket| !socket.is_ping)
                .map(show)
                .filter(has_port)
                .collect()
        }
        _ => return None,
    })
}

/// The text of `/proc/net/if_inet6`.
#[must_use]
pub fn if_inet6(stack: &InetStack) -> String {
    /// Scopes of addresses: this host, the link, a site.
    const HOST: u8 = 0x10;
    const LINK: u8 = 0x20;
    const SITE: u8 = 0x40;
    let mut text = String::new();
    for interface in stack.core.interfaces() {
        for known in interface.addresses.iter() {
            if let IpAddr::V6(ip) = known.ip {
                let prefix = known.prefix_len;
                let scope = match scope(ip) {
                    _ if ip.is_loopback() => HOST,
                    Scope::Interface | Scope::Link => LINK,
                    Scope::Site => SITE,
                    Scope::Global => 0,
                };
                let flags = known.life.flags as u8;
                let ip = u128::from(ip);
                let _ = writeln!(
                    text,
                    "{ip:032x} {:02x} {prefix:02x} {scope:02x} {flags:02x} {:>8}",
                    interface.index, interface.name
                );
            }
        }
    }
    text
}

/// The text of `/proc/net/dev`. Of the loop nothing is counted: it carries no packets.
#[must_use]
pub fn dev(stack: &InetStack) -> String {
    let mut text = String::from(
        "Inter-|   Receive                                                |  Transmit\n face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n",
    );
    for interface in stack.core.interfaces() {
        let _ = writeln!(
            text,
            "{:>6}: {:7} {:7} {:4} {:4} {:4} {:5} {:10} {:9} {:8} {:7} {:4} {:4} {:4} {:5} {:7} {:10}",
            interface.name,
            interface.received.bytes,
            interface.received.packets,
            interface.received.errors,
            interface.received.dropped,
            0,
            0,
            0,
            interface.received.multicast,
            interface.sent.bytes,
            interface.sent.packets,
            interface.sent.errors,
            interface.sent.dropped,
            0,
            0,
            0,
            0
        );
    }
    text
}

/// The text of `/proc/net/snmp`. IP, ICMP and TCP are counted over interfaces, UDP also over the
/// loop.
#[must_use]
pub fn snmp(stack: &InetStack) -> String {
    const NAMES: [(&str, &str); 5] = [
        (
            "Ip",
            "Forwarding DefaultTTL InReceives InHdrErrors InAddrErrors ForwDatagrams InUnknownProtos InDiscards InDelivers OutRequests OutDiscards OutNoRoutes ReasmTimeout ReasmReqds ReasmOKs ReasmFails FragOKs FragFails FragCreates",
        ),
        (
            "Icmp",
            "InMsgs InErrors InCsumErrors InDestUnreachs InTimeExcds InParmProbs InSrcQuenchs InRedirects InEchos InEchoReps InTimestamps InTimestampReps InAddrMasks InAddrMaskReps OutMsgs OutErrors OutRateLimitGlobal OutRateLimitHost OutDestUnreachs OutTimeExcds OutParmProbs OutSrcQuenchs OutRedirects OutEchos OutEchoReps OutTimestamps OutTimestampReps OutAddrMasks OutAddrMaskReps",
        ),
        (
            "Tcp",
            "RtoAlgorithm RtoMin RtoMax MaxConn ActiveOpens PassiveOpens AttemptFails EstabResets CurrEstab InSegs OutSegs RetransSegs InErrs OutRsts InCsumErrors",
        ),
        (
            "Udp",
            "InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors InCsumErrors IgnoredMulti MemErrors",
        ),
        (
            "UdpLite",
            "InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors InCsumErrors IgnoredMulti MemErrors",
        ),
    ];
    let sockets = stack.tcp.sockets.all();
    let open = sockets
        .iter()
        .filter(|socket| {
            matches!(
                socket.tcp_state(),
                TcpState::Established | TcpState::CloseWait
            )
        })
        .count();
    let tcp = stack.host().map(Host::tcp_counts);
    let packets = stack.host().map(Host::packet_counts);
    let value = |group: &str, name: &str| match (group, name) {
        ("Tcp", "CurrEstab") => open as u64,
        ("Tcp", name) => tcp.map_or(0, |tcp| tcp.value(name)),
        ("Ip", "Forwarding") => 2 - stack.core.sysctls.ip_forward.as_usize() as u64,
        ("Ip", "DefaultTTL") => stack.core.sysctls.ip_default_ttl.as_usize() as u64,
        ("Udp", name) => stack.udp.counts.value(false, false, name),
        ("UdpLite", name) => stack.udp.counts.value(true, false, name),
        ("Ip" | "Icmp", name) => packets.map_or(0, |counts| counts.value(group, name)),
        _ => 0,
    };
    let mut text = String::new();
    for (group, names) in NAMES {
        let _ = write!(text, "{group}: {names}\n{group}:");
        for name in names.split(' ') {
            // There is no limit of connections, which is -1 (RFC 4022).
            let _ = write!(text, " {}", value(group, name).cast_signed());
        }
        text.push('\n');
        if let ("Icmp", Some(packets)) = (group, packets) {
            packets.write_kinds(&mut text);
        }
    }
    text
}

/// The text of `/proc/net/sockstat`. Memory is that of what waits in the sockets' buffers, in whole
/// pages for each.
#[must_use]
pub fn sockstat(stack: &InetStack) -> String {
    let [tcp_pages, udp_pages] =
        [Transport::Tcp, Transport::Udp].map(|protocol| stack.core.memory(protocol).pages());
    let (mut udp, mut udp_lite) = (0, 0);
    for socket in stack.udp.sockets.all() {
        *if socket.is_lite() {
            &mut udp_lite
        } else {
            &mut udp
        } += 1;
    }
    let (orphans, waiting, _) = stack.host().map_or((0, 0, 0), Host::tcp_sizes);
    let tcp = stack.tcp.sockets.len();
    let alloc = tcp + orphans;
    format!(
        "sockets: used {used}\nTCP: inuse {tcp} orphan {orphans} tw {waiting} alloc {alloc} mem {tcp_pages}\n\
         UDP: inuse {udp} mem {udp_pages}\nUDPLITE: inuse {udp_lite}\nRAW: inuse {raw}\n\
         FRAG: inuse 0 memory 0\n",
        used = census::Socket::count(),
        raw = stack.raw.sockets.len(),
    )
}

#[cfg(test)]
mod tests {
    use core::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    #[test]
    fn addresses_look_as_on_linux() {
        let v4 = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 80);
        assert_eq!(format_address(v4, false), "0100007F:0050");
        assert_eq!(
            format_address(v4, true),
            "0000000000000000FFFF00000100007F:0050"
        );
        assert_eq!(
            format_address(SocketAddr::new(Ipv6Addr::LOCALHOST.into(), 443), true),
            "00000000000000000000000001000000:01BB"
        );
    }
}
