//! Datagrams over the loop: UDP, groups, what is told with a packet, and the interfaces they go
//! through.

use std::io::{self, ErrorKind};
use std::mem;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;

use anyhow::{Context, Result, ensure};

use crate::calls::{Fd, call, fails, is};
use crate::inet_sockets::{LOCAL, receive_control, set, socket, wait_for, with_v4};
use crate::sockets::{errno, recv};
use crate::{Check, checked};

pub const CHECKS: &[(&str, Check)] = &[
    ("inet-datagrams", datagrams),
    ("inet-datagrams-connected", datagrams_connected),
    ("inet-datagrams-to-nobody", datagrams_to_nobody),
    ("inet-datagrams-are-lost-not-waited-for", datagrams_are_lost),
    ("inet-packet-info", packet_info),
    ("inet-multicast", multicast),
    ("inet-multicast-limits", multicast_has_limits),
    ("netlink-overrun", netlink_overrun),
    ("netlink-lists-come-in-parts", netlink_lists),
    ("inet-interfaces", interfaces),
    ("inet-unreachable", unreachable),
];

fn datagrams() -> Result<()> {
    for ip in [
        SocketAddr::from((LOCAL, 0)),
        SocketAddr::from((Ipv6Addr::LOCALHOST, 0)),
    ] {
        let (a, b) = (UdpSocket::bind(ip)?, UdpSocket::bind(ip)?);
        let to = b.local_addr()?;
        for text in [&b"one"[..], b"", b"three"] {
            ensure!(a.send_to(text, to)? == text.len(), "{text:?} was not sent");
        }
        let mut buf = [0; 16];
        for text in [&b"one"[..], b"", b"three"] {
            let (n, from) = b.recv_from(&mut buf)?;
            ensure!(
                &buf[..n] == text && from == a.local_addr()?,
                "{:?} from {from}",
                &buf[..n]
            );
        }
        a.send_to(b"longer than the buffer", to)?;
        ensure!(
            recv(&b, &mut buf[..4], libc::MSG_TRUNC | libc::MSG_PEEK)? == 22,
            "its length is not told"
        );
        ensure!(
            recv(&b, &mut buf[..4], 0)? == 4
                && errno(recv(&b, &mut buf, libc::MSG_DONTWAIT)) == libc::EAGAIN,
            "the rest"
        );
        let large = vec![9; 65_000];
        a.send_to(&large, to)?;
        let mut buf = vec![0; 65_536];
        ensure!(
            b.recv(&mut buf)? == large.len() && buf[..large.len()] == large[..],
            "a large one"
        );
        ensure!(
            errno(a.send_to(&vec![0; 66_000], to)) == libc::EMSGSIZE,
            "too large a one"
        );
    }
    let a = UdpSocket::bind((LOCAL, 0))?;
    ensure!(errno(a.send(b"x")) == libc::EDESTADDRREQ, "to nobody");
    ensure!(
        errno(a.send_to(b"x", (LOCAL, 0))) == libc::EINVAL,
        "to port 0"
    );
    ensure!(
        errno(UdpSocket::bind(a.local_addr()?)) == libc::EADDRINUSE,
        "two at a port"
    );
    Ok(())
}

fn datagrams_connected() -> Result<()> {
    let (b, c) = (UdpSocket::bind((LOCAL, 0))?, UdpSocket::bind((LOCAL, 0))?);
    // At a port it asks for: one that was chosen for it is given back when an association is
    // dissolved.
    let port = UdpSocket::bind((LOCAL, 0))?.local_addr()?.port();
    let a = UdpSocket::bind((LOCAL, port))?;
    a.connect(b.local_addr()?)?;
    ensure!(
        a.peer_addr()? == b.local_addr()?,
        "its peer is {}",
        a.peer_addr()?
    );
    a.send(b"to the peer")?;
    let mut buf = [0; 32];
    ensure!(b.recv(&mut buf)? == 11, "nothing came");
    // Only the peer is heard.
    c.send_to(b"stranger", a.local_addr()?)?;
    b.send_to(b"peer", a.local_addr()?)?;
    ensure!(
        a.recv(&mut buf)? == 4 && &buf[..4] == b"peer",
        "the stranger was heard"
    );
    // Dissolved, everybody is.
    // SAFETY: a structure of numbers may be zero, which is no family.
    let nobody: libc::sockaddr = unsafe { mem::zeroed() };
    // SAFETY: the address is alive during the call.
    checked(unsafe {
        libc::connect(
            a.as_raw_fd(),
            &raw const nobody,
            mem::size_of_val(&nobody) as _,
        )
    })?;
    ensure!(
        errno(a.peer_addr()) == libc::ENOTCONN,
        "there still is a peer"
    );
    c.send_to(b"anybody", a.local_addr()?)?;
    ensure!(a.recv(&mut buf)? == 7, "the association was not dissolved");
    // An address is chosen when one is needed.
    let fd = socket(libc::AF_INET, libc::SOCK_DGRAM)?;
    with_v4(&fd, LOCAL, b.local_addr()?.port(), libc::connect)?;
    let fd = UdpSocket::from(fd);
    ensure!(
        fd.local_addr()?.ip() == LOCAL && fd.local_addr()?.port() != 0,
        "it is at {}",
        fd.local_addr()?
    );
    Ok(())
}

fn datagrams_to_nobody() -> Result<()> {
    let gone = UdpSocket::bind((LOCAL, 0))?.local_addr()?;
    let a = UdpSocket::bind((LOCAL, 0))?;
    ensure!(
        a.send_to(b"x", gone)? == 1 && a.send_to(b"x", gone)? == 1,
        "one without a peer is told"
    );
    a.connect(gone)?;
    a.send(b"x")?;
    wait_for(&a, libc::POLLERR)?;
    ensure!(
        errno(a.send(b"y")) == libc::ECONNREFUSED,
        "sending does not tell"
    );
    a.send(b"z")?;
    wait_for(&a, libc::POLLERR)?;
    ensure!(
        errno(a.recv(&mut [0])) == libc::ECONNREFUSED,
        "receiving does not tell"
    );
    a.set_nonblocking(true)?;
    ensure!(errno(a.recv(&mut [0])) == libc::EAGAIN, "told twice");
    Ok(())
}

fn datagrams_are_lost() -> Result<()> {
    let (a, b) = (UdpSocket::bind((LOCAL, 0))?, UdpSocket::bind((LOCAL, 0))?);
    set(&b, libc::SOL_SOCKET, libc::SO_RCVBUF, &10_000)?;
    for _ in 0..200 {
        a.send_to(&[0; 1000], b.local_addr()?)?;
    }
    b.set_nonblocking(true)?;
    let mut count = 0;
    while b.recv(&mut [0; 1000]).is_ok() {
        count += 1;
    }
    ensure!(
        (1..100).contains(&count),
        "{count} of 200 found room in 20,000 bytes"
    );
    Ok(())
}

fn packet_info() -> Result<()> {
    let b = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    set(&b, libc::IPPROTO_IP, libc::IP_PKTINFO, &1)?;
    set(&b, libc::IPPROTO_IP, libc::IP_RECVTTL, &1)?;
    let a = UdpSocket::bind((LOCAL, 0))?;
    a.set_ttl(33)?;
    let to = Ipv4Addr::new(127, 0, 0, 5);
    a.send_to(b"x", SocketAddrV4::new(to, b.local_addr()?.port()))?;
    let told = receive_control(&b)?;
    let of = |kind| {
        told.iter()
            .find(|(level, k, _)| (*level, *k) == (libc::IPPROTO_IP, kind))
            .map(|(_, _, bytes)| &bytes[..])
    };
    let info = of(libc::IP_PKTINFO).context("no packet information")?;
    ensure!(
        info[..4] == 1u32.to_ne_bytes() && info[8..12] == to.octets(),
        "it is {info:?}"
    );
    ensure!(
        of(libc::IP_TTL) == Some(&33i32.to_ne_bytes()),
        "the time to live is {:?}",
        of(libc::IP_TTL)
    );
    let b = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))?;
    set(&b, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, &1)?;
    let a = UdpSocket::bind((Ipv6Addr::LOCALHOST, 0))?;
    a.send_to(b"x", (Ipv6Addr::LOCALHOST, b.local_addr()?.port()))?;
    let told = receive_control(&b)?;
    let info = told
        .iter()
        .find(|(level, kind, _)| (*level, *kind) == (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO));
    let (.., info) = info.context("no packet information of IPv6")?;
    ensure!(
        info[..16] == Ipv6Addr::LOCALHOST.octets() && info[16..20] == 1u32.to_ne_bytes(),
        "it is {info:?}"
    );
    Ok(())
}

/// A socket is in so many groups (`igmp_max_memberships`), and in more of IPv6 (`optmem_max`).
fn multicast_has_limits() -> Result<()> {
    let member = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    let group = |number: u8| Ipv4Addr::new(239, 1, 3, number);
    for number in 0..20 {
        member.join_multicast_v4(&group(number), &LOCAL)?;
    }
    for _ in 0..2 {
        let error = errno(member.join_multicast_v4(&group(20), &LOCAL));
        ensure!(error == libc::ENOBUFS, "one more group: {error}");
        member.leave_multicast_v4(&group(19), &LOCAL)?;
        member.join_multicast_v4(&group(19), &LOCAL)?;
    }
    let member = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))?;
    let mut joined = 0;
    let error = loop {
        let group = Ipv6Addr::new(0xff05, 0, 0, 0, 0, 0, 7, joined);
        if let Err(error) = member.join_multicast_v6(&group, 1) {
            break error.raw_os_error();
        }
        joined += 1;
        ensure!(joined < 1000, "{joined} groups");
    };
    ensure!(error == Some(libc::ENOMEM), "one more group: {error:?}");
    ensure!((300..=400).contains(&joined), "{joined} groups of IPv6");
    Ok(())
}

/// Answers of netlink that their receiver has no room for are lost, and it hears of it once.
fn netlink_overrun() -> Result<()> {
    let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK;
    let socket = Fd::new(call!(SYS_socket, libc::AF_NETLINK, kind, 0), "socket")?;
    // A message of no meaning, to be acknowledged.
    let mut request = [0u8; 16];
    request[0] = 16;
    request[4] = libc::NLMSG_NOOP as u8;
    request[6] = (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u8;
    let sent = 5000;
    for _ in 0..sent {
        let asked = call!(SYS_sendto, socket.0, request.as_ptr(), 16, 0, 0, 0);
        is(asked, 16, "sendto")?;
    }
    let mut buffer = [0u8; 4096];
    let mut receive = || call!(SYS_recvfrom, socket.0, buffer.as_mut_ptr(), 4096, 0, 0, 0);
    fails(receive(), libc::ENOBUFS, "what was lost")?;
    let mut received = 0;
    let end = loop {
        let got = receive();
        if got < 0 {
            break got;
        }
        received += 1;
    };
    fails(end, libc::EAGAIN, "one more answer")?;
    ensure!((100..1000).contains(&received), "{received} of {sent}");
    let asked = call!(SYS_sendto, socket.0, request.as_ptr(), 16, 0, 0, 0);
    is(asked, 16, "sendto")?;
    ensure!(receive() > 0, "an answer that there is room for again");
    Ok(())
}

/// A list of more sockets than a buffer has room for comes in parts that one of a page takes. Where
/// the kernel lists no UDP sockets (a module of Linux's), there is nothing to be seen.
fn netlink_lists() -> Result<()> {
    const NETLINK_SOCK_DIAG: i32 = 4;
    const SOCK_DIAG_BY_FAMILY: u16 = 20;
    const REQUEST: usize = 72;
    const PORT: usize = 16 + 4;
    let open: Vec<UdpSocket> = (0..200)
        .map(|_| UdpSocket::bind((LOCAL, 0)))
        .collect::<io::Result<_>>()?;
    let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK;
    let socket = call!(SYS_socket, libc::AF_NETLINK, kind, NETLINK_SOCK_DIAG);
    let socket = Fd::new(socket, "socket")?;
    let mut request = [0u8; REQUEST];
    request[0] = REQUEST as u8;
    request[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    let flags = (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16;
    request[6..8].copy_from_slice(&flags.to_ne_bytes());
    request[16] = libc::AF_INET as u8;
    request[17] = libc::IPPROTO_UDP as u8;
    // Sockets in any state.
    request[20..24].fill(0xff);
    let asked = call!(SYS_sendto, socket.0, request.as_ptr(), REQUEST, 0, 0, 0);
    is(asked, REQUEST as i64, "sendto")?;
    let mut buffer = [0u8; 4096];
    let (mut ports, mut parts) = (Vec::new(), 0);
    'list: loop {
        let flags = libc::MSG_TRUNC;
        let got = call!(
            SYS_recvfrom,
            socket.0,
            buffer.as_mut_ptr(),
            4096,
            flags,
            0,
            0
        );
        ensure!((16..=4096).contains(&got), "a part of {got} bytes");
        parts += 1;
        let mut rest = &buffer[..got as usize];
        while !rest.is_empty() {
            let len = u32::from_ne_bytes(rest[..4].try_into()?) as usize;
            match i32::from(u16::from_ne_bytes(rest[4..6].try_into()?)) {
                libc::NLMSG_DONE => break 'list,
                libc::NLMSG_ERROR => {
                    let error = -i32::from_ne_bytes(rest[16..20].try_into()?);
                    ensure!(error == libc::ENOENT, "error {error}");
                    return Ok(());
                }
                _ => ports.push(u16::from_be_bytes(rest[PORT..PORT + 2].try_into()?)),
            }
            rest = &rest[len..];
        }
    }
    for socket in &open {
        let port = socket.local_addr()?.port();
        let times = ports.iter().filter(|listed| **listed == port).count();
        ensure!(times == 1, "port {port} is listed {times} times");
    }
    ensure!(parts > 2, "{} sockets in {parts} parts", ports.len());
    Ok(())
}

fn multicast() -> Result<()> {
    let group = Ipv4Addr::new(239, 1, 2, 3);
    let member = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    member.join_multicast_v4(&group, &LOCAL)?;
    ensure!(
        errno(member.join_multicast_v4(&group, &LOCAL)) == libc::EADDRINUSE,
        "joined twice"
    );
    let sender = UdpSocket::bind((LOCAL, 0))?;
    set(
        &sender,
        libc::IPPROTO_IP,
        libc::IP_MULTICAST_IF,
        &LOCAL.octets(),
    )?;
    sender.send_to(b"to all", (group, member.local_addr()?.port()))?;
    let (n, from) = member.recv_from(&mut [0; 16])?;
    ensure!(
        n == 6 && from == sender.local_addr()?,
        "{n} bytes from {from}"
    );
    member.leave_multicast_v4(&group, &LOCAL)?;
    ensure!(
        errno(member.leave_multicast_v4(&group, &LOCAL)) == libc::EADDRNOTAVAIL,
        "left twice"
    );
    Ok(())
}

fn interfaces() -> Result<()> {
    let fd = socket(libc::AF_INET, libc::SOCK_DGRAM)?;
    let mut request = [0u8; 40];
    let mut ask = |command: libc::Ioctl| -> io::Result<[u8; 24]> {
        request.fill(0);
        request[..2].copy_from_slice(b"lo");
        // SAFETY: the request is alive during the call, and as large as the kernel takes it to be.
        checked(unsafe { libc::ioctl(fd.as_raw_fd(), command, request.as_mut_ptr()) })?;
        Ok(request[16..].try_into().unwrap_or_default())
    };
    let flags = ask(libc::SIOCGIFFLAGS)?;
    let flags = i32::from(u16::from_ne_bytes([flags[0], flags[1]]));
    ensure!(
        flags & (libc::IFF_UP | libc::IFF_LOOPBACK) == libc::IFF_UP | libc::IFF_LOOPBACK,
        "flags {flags:x}"
    );
    ensure!(
        ask(libc::SIOCGIFINDEX)?[..4] == 1i32.to_ne_bytes(),
        "its number"
    );
    ensure!(
        ask(libc::SIOCGIFADDR)?[4..8] == [127, 0, 0, 1],
        "its address"
    );
    ensure!(
        ask(libc::SIOCGIFNETMASK)?[4..8] == [255, 0, 0, 0],
        "its mask"
    );
    // What the C library makes of it, by way of netlink.
    let mut list: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: the list is the library's until it is freed; each entry's strings and addresses are
    // as the interface says.
    let found = unsafe {
        checked(libc::getifaddrs(&raw mut list))?;
        let mut found = Vec::new();
        let mut at = list;
        while let Some(entry) = at.as_ref() {
            let name = std::ffi::CStr::from_ptr(entry.ifa_name)
                .to_string_lossy()
                .into_owned();
            found.push((
                name,
                entry
                    .ifa_addr
                    .as_ref()
                    .map_or(0, |address| i32::from(address.sa_family)),
            ));
            at = entry.ifa_next;
        }
        libc::freeifaddrs(list);
        found
    };
    for family in [libc::AF_PACKET, libc::AF_INET, libc::AF_INET6] {
        ensure!(
            found.contains(&("lo".into(), family)),
            "no lo of family {family} in {found:?}"
        );
    }
    ensure!(
        // SAFETY: the name ends with a NUL.
        unsafe { libc::if_nametoindex(c"lo".as_ptr()) } == 1,
        "lo has no number"
    );
    Ok(())
}

fn unreachable() -> Result<()> {
    // An address for documentation is nobody's, with or without a network. Where there is one,
    // connecting may take long.
    let fd = socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_NONBLOCK)?;
    let error = errno(with_v4(
        &fd,
        Ipv4Addr::new(198, 51, 100, 7),
        9,
        libc::connect,
    ));
    ensure!(
        [libc::ENETUNREACH, libc::EINPROGRESS].contains(&error),
        "error {error}"
    );
    let udp = UdpSocket::bind((LOCAL, 0))?;
    ensure!(
        errno(udp.send_to(b"x", (Ipv4Addr::BROADCAST, 9))) != 0,
        "a broadcast that was not asked for"
    );
    let error = TcpStream::connect((Ipv4Addr::LOCALHOST, 0)).map_err(|e| e.kind());
    ensure!(error.err() == Some(ErrorKind::ConnectionRefused), "port 0");
    let raw = socket(libc::AF_INET, libc::SOCK_SEQPACKET);
    ensure!(errno(raw) == libc::ESOCKTNOSUPPORT, "packets in order");
    Ok(())
}
