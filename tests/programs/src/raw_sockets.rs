//! Sockets that speak IP itself: echo requests, raw sockets, packets made by programs.

use std::io;
use std::mem;
use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::inet_sockets::{port_of, raw_v4, with_v4, with_v6};
use crate::sockets::{errno, recv, send};
use crate::{Check, checked};

pub const CHECKS: &[(&str, Check)] = &[
    ("raw-sockets-echo-by-an-asking-socket", asking),
    ("raw-sockets-echo-by-a-raw-socket", raw_echo),
    ("raw-sockets-echo-over-ipv6", echo_v6),
    ("raw-sockets-kinds-are-filtered", kinds_are_filtered),
    ("raw-sockets-of-udp-are-overheard-and-made", udp_packets),
    ("raw-sockets-put-packets-together", put_packets_together),
    ("raw-sockets-need-a-right", need_a_right),
];

const LOCAL: Ipv4Addr = Ipv4Addr::LOCALHOST;
/// Kinds of messages: requests and replies, over IPv4 and IPv6.
const ECHO: (u8, u8) = (8, 0);
const ECHO6: (u8, u8) = (128, 129);

fn socket(family: libc::c_int, kind: libc::c_int, protocol: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: the new number belongs to nobody else.
    let fd = unsafe { OwnedFd::from_raw_fd(checked(libc::socket(family, kind, protocol))?) };
    let limit = libc::timeval {
        tv_sec: 20,
        tv_usec: 0,
    };
    set(&fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, &limit)?;
    Ok(fd)
}

fn set<T>(fd: &impl AsRawFd, level: libc::c_int, option: libc::c_int, value: &T) -> io::Result<()> {
    let len = mem::size_of::<T>() as libc::socklen_t;
    // SAFETY: the value is alive during the call.
    checked(unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            option,
            (&raw const *value).cast(),
            len,
        )
    })
    .map(drop)
}

/// An asking socket; on Linux nobody may have one unless that is allowed first.
fn asker(family: libc::c_int, protocol: libc::c_int) -> io::Result<OwnedFd> {
    let _ = std::fs::write("/proc/sys/net/ipv4/ping_group_range", "0 2147483647");
    socket(family, libc::SOCK_DGRAM, protocol)
}

pub fn checksum(bytes: &[u8]) -> u16 {
    let mut sum: u32 = bytes
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// An echo request or reply, sealed for IPv4.
fn echo(kind: u8, id: u16, sequence: u16, text: &[u8]) -> Vec<u8> {
    let mut message = [
        &[kind, 0, 0, 0][..],
        &id.to_be_bytes(),
        &sequence.to_be_bytes(),
        text,
    ]
    .concat();
    let sum = checksum(&message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    message
}

fn take(fd: &impl AsRawFd, flags: libc::c_int) -> io::Result<Vec<u8>> {
    let mut buf = [0; 256];
    let n = recv(fd, &mut buf, flags)?;
    Ok(buf[..n].to_vec())
}

/// All that has come, and nothing more will.
fn rest(fd: &impl AsRawFd) -> Vec<Vec<u8>> {
    std::iter::from_fn(|| take(fd, libc::MSG_DONTWAIT).ok()).collect()
}

fn asking() -> Result<()> {
    let fd = asker(libc::AF_INET, libc::IPPROTO_ICMP)?;
    with_v4(&fd, LOCAL, 0, libc::connect)?;
    let id = port_of(&fd)?;
    ensure!(id != 0, "no number");
    // The kernel puts the number and the checksum into the message.
    let mut request = echo(ECHO.0, 0, 7, b"are you there");
    request[2..4].copy_from_slice(&[0xff, 0xff]);
    ensure!(send(&fd, &request, 0)? == request.len(), "not all was sent");
    let reply = take(&fd, 0)?;
    ensure!(
        reply == echo(ECHO.1, id, 7, b"are you there"),
        "the reply is {reply:?}"
    );
    ensure!(
        errno(send(&fd, &echo(ECHO.1, 0, 7, b""), 0)) == libc::EINVAL,
        "something else than a request is sent"
    );
    ensure!(
        errno(send(&fd, &request[..7], 0)) == libc::EINVAL,
        "half a request is sent"
    );
    // Somebody else's replies are not received.
    let other = asker(libc::AF_INET, libc::IPPROTO_ICMP)?;
    with_v4(&other, LOCAL, 0, libc::connect)?;
    ensure!(port_of(&other)? != id, "two sockets ask with one number");
    send(&other, &echo(ECHO.0, 0, 8, b"x"), 0)?;
    ensure!(
        take(&other, 0)?[6..] == [0, 8, b'x'] && rest(&fd).is_empty(),
        "a reply to somebody else"
    );
    let chosen = asker(libc::AF_INET, libc::IPPROTO_ICMP)?;
    with_v4(&chosen, LOCAL, 4321, libc::bind)?;
    ensure!(port_of(&chosen)? == 4321, "the number cannot be chosen");
    Ok(())
}

fn raw_echo() -> Result<()> {
    let fd = socket(libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_ICMP)?;
    set(&fd, libc::IPPROTO_IP, libc::IP_TTL, &33)?;
    with_v4(&fd, LOCAL, 0, libc::connect)?;
    let request = echo(ECHO.0, 999, 1, b"raw");
    send(&fd, &request, 0)?;
    // It hears its own request, too.
    let mut heard = [take(&fd, 0)?, take(&fd, 0)?];
    heard.sort_by_key(|packet| packet[20]);
    let header = |packet: &[u8], ttl: u8| {
        let v4 = packet[0] == 0x45
            && packet[8..10] == [ttl, 1]
            && packet[12..20] == [127, 0, 0, 1, 127, 0, 0, 1];
        v4 && usize::from(u16::from_be_bytes([packet[2], packet[3]])) == packet.len()
            && checksum(&packet[..20]) == 0
    };
    ensure!(
        header(&heard[0], 64) && heard[0][20..] == echo(ECHO.1, 999, 1, b"raw"),
        "the reply is {:?}",
        heard[0]
    );
    ensure!(
        header(&heard[1], 33) && heard[1][20..] == request,
        "the request is {:?}",
        heard[1]
    );
    // One that is damaged is not answered.
    let mut damaged = request.clone();
    damaged[9] ^= 1;
    send(&fd, &damaged, 0)?;
    ensure!(
        take(&fd, 0)?[20..] == damaged && rest(&fd).is_empty(),
        "a damaged request is answered"
    );
    ensure!(
        errno(recv(&fd, &mut [0; 8], libc::MSG_OOB)) == libc::EOPNOTSUPP,
        "something urgent"
    );
    ensure!(
        errno(socket(libc::AF_INET, libc::SOCK_RAW, 0)) == libc::EPROTONOSUPPORT,
        "a raw socket of no protocol"
    );
    Ok(())
}

/// The sum over a message of ICMPv6 from this machine to itself, with the header that is not sent:
/// 0 if it is sealed.
fn sum_v6(message: &[u8]) -> u16 {
    let ends = [Ipv6Addr::LOCALHOST.octets(); 2].concat();
    checksum(
        &[
            &ends[..],
            &(message.len() as u32).to_be_bytes(),
            &[0, 0, 0, libc::IPPROTO_ICMPV6 as u8],
            message,
        ]
        .concat(),
    )
}

fn echo_v6() -> Result<()> {
    let ear = socket(libc::AF_INET6, libc::SOCK_RAW, libc::IPPROTO_ICMPV6)?;
    let fd = asker(libc::AF_INET6, libc::IPPROTO_ICMPV6)?;
    with_v6(&fd, Ipv6Addr::LOCALHOST, 0, libc::connect)?;
    send(&fd, &echo(ECHO6.0, 0, 5, b"six"), 0)?;
    let reply = take(&fd, 0)?;
    ensure!(
        reply[0] == ECHO6.1
            && reply[4..6] == port_of(&fd)?.to_be_bytes()
            && reply[6..] == *b"\0\x05six",
        "asking: {reply:?}"
    );
    // Other checks may be asking.
    for kind in [ECHO6.0, ECHO6.1] {
        let heard = loop {
            let heard = take(&ear, 0)?;
            if heard[0] == kind && heard[4..] == reply[4..] {
                break heard;
            }
        };
        ensure!(
            sum_v6(&heard) == 0,
            "a message of kind {kind} is not sealed: {heard:?}"
        );
    }
    let raw = socket(libc::AF_INET6, libc::SOCK_RAW, libc::IPPROTO_ICMPV6)?;
    // Only replies.
    let mut blocked = [u32::MAX; 8];
    blocked[usize::from(ECHO6.1 >> 5)] &= !(1 << (ECHO6.1 & 31));
    set(&raw, libc::IPPROTO_ICMPV6, 1, &blocked)?;
    let mut told = [0u32; 8];
    let mut len = mem::size_of_val(&told) as libc::socklen_t;
    // SAFETY: both are alive during the call.
    checked(unsafe {
        libc::getsockopt(
            raw.as_raw_fd(),
            libc::IPPROTO_ICMPV6,
            1,
            (&raw mut told).cast(),
            &raw mut len,
        )
    })?;
    ensure!(told == blocked && len == 32, "the filter is {told:x?}");
    with_v6(&raw, Ipv6Addr::LOCALHOST, 0, libc::connect)?;
    let mut request = echo(ECHO6.0, 77, 6, b"raw six");
    request[2..4].fill(0);
    send(&raw, &request, 0)?;
    let reply = take(&raw, 0)?;
    ensure!(
        reply[0] == ECHO6.1 && reply[4..6] == 77u16.to_be_bytes() && reply[8..] == *b"raw six",
        "raw: {reply:?}"
    );
    ensure!(
        reply[2..4] != [0, 0] && rest(&raw).is_empty(),
        "no checksum, or more than the reply"
    );
    Ok(())
}

fn kinds_are_filtered() -> Result<()> {
    const SOL_RAW: libc::c_int = 255;
    const ICMP_FILTER: libc::c_int = 1;
    let fd = socket(libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_ICMP)?;
    set(&fd, SOL_RAW, ICMP_FILTER, &(1u32 << ECHO.0))?;
    with_v4(&fd, LOCAL, 0, libc::connect)?;
    send(&fd, &echo(ECHO.0, 1, 1, b"a"), 0)?;
    ensure!(
        take(&fd, 0)?[20] == ECHO.1 && rest(&fd).is_empty(),
        "requests are heard, too"
    );
    // And by a filter that looks for the number in the message behind the header.
    let filter = [
        (0xb1, 0, 0, 0),
        (0x48, 0, 0, 4),
        (0x15, 0, 1, 7),
        (0x06, 0, 0, 0xffff),
        (0x06, 0, 0, 0),
    ];
    let mut code = filter.map(|(code, jt, jf, k)| libc::sock_filter { code, jt, jf, k });
    let program = libc::sock_fprog {
        len: code.len() as u16,
        filter: code.as_mut_ptr(),
    };
    set(&fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)?;
    send(&fd, &echo(ECHO.0, 6, 1, b"a"), 0)?;
    send(&fd, &echo(ECHO.0, 7, 1, b"a"), 0)?;
    ensure!(
        take(&fd, 0)?[24..26] == [0, 7] && rest(&fd).is_empty(),
        "another's reply passes the filter"
    );
    Ok(())
}

fn udp_packets() -> Result<()> {
    let ear = socket(libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_UDP)?;
    let (from, to) = (UdpSocket::bind((LOCAL, 0))?, UdpSocket::bind((LOCAL, 0))?);
    to.set_read_timeout(Some(Duration::from_secs(20)))?;
    let (from_port, to_port) = (from.local_addr()?.port(), to.local_addr()?.port());
    let ports = [from_port.to_be_bytes(), to_port.to_be_bytes()].concat();
    from.send_to(b"secret", to.local_addr()?)?;
    let heard = loop {
        // Other checks may be talking.
        let heard = take(&ear, 0)?;
        if heard[20..24] == ports {
            break heard;
        }
    };
    ensure!(
        heard[9] == 17 && heard[24..26] == [0, 14] && heard[28..] == *b"secret",
        "heard {heard:?}"
    );
    let mut buf = [0; 16];
    ensure!(to.recv(&mut buf)? == 6, "the receiver got nothing");
    // A packet that is made whole, header and all.
    let maker = socket(libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_RAW)?;
    let mut packet = vec![
        0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0, 127, 0, 0, 1, 127, 0, 0, 1,
    ];
    packet.extend([&ports[..], &[0, 12, 0, 0], b"made"].concat());
    let address = raw_v4(LOCAL, 0);
    // SAFETY: packet and address are alive during the call.
    let sent = unsafe {
        libc::sendto(
            maker.as_raw_fd(),
            packet.as_ptr().cast(),
            packet.len(),
            0,
            (&raw const address).cast(),
            mem::size_of_val(&address) as _,
        )
    };
    ensure!(
        sent == packet.len() as isize,
        "not sent: {}",
        io::Error::last_os_error()
    );
    let (n, who) = to.recv_from(&mut buf)?;
    ensure!(
        &buf[..n] == b"made" && who == from.local_addr()?,
        "received {:?} of {who}",
        &buf[..n]
    );
    Ok(())
}

/// Parts that are sent with `MSG_MORE` wait, also for other addresses, and go as one packet.
fn put_packets_together() -> Result<()> {
    // A protocol that nobody else has; the others hear nothing of each other's.
    const PROTOCOL: libc::c_int = 253;
    let (near, far) = (
        socket(libc::AF_INET, libc::SOCK_RAW, PROTOCOL)?,
        socket(libc::AF_INET, libc::SOCK_RAW, PROTOCOL)?,
    );
    let send = |bytes: &[u8], flags: libc::c_int, last: u8| {
        let address = raw_v4(Ipv4Addr::new(127, 0, 0, last), 0);
        // SAFETY: bytes and address are alive during the call.
        let sent = unsafe {
            libc::sendto(
                near.as_raw_fd(),
                bytes.as_ptr().cast(),
                bytes.len(),
                flags,
                (&raw const address).cast(),
                mem::size_of_val(&address) as _,
            )
        };
        checked(sent as i32)
    };
    let heard = |what: &str, wanted: &[&[u8]]| -> Result<()> {
        let packets: Vec<Vec<u8>> = rest(&far)
            .into_iter()
            .map(|packet| packet[20..].to_vec())
            .collect();
        ensure!(packets == wanted, "{what}: heard {packets:?}");
        Ok(())
    };
    ensure!(send(b"one", 0, 1)? == 3, "sent");
    heard("a whole packet", &[b"one"])?;
    ensure!(send(b"first ", libc::MSG_MORE, 1)? == 6, "sent");
    heard("half a packet", &[])?;
    ensure!(send(b"second ", libc::MSG_MORE, 2)? == 7, "sent");
    heard("two thirds", &[])?;
    ensure!(send(b"third", 0, 3)? == 5, "sent");
    heard("all of it", &[b"first second third"])?;
    // Too long: nothing of it goes.
    let long = vec![b'x'; 40_000];
    ensure!(send(&long, libc::MSG_MORE, 1)? == 40_000, "sent");
    ensure!(errno(send(&long, 0, 1)) == libc::EMSGSIZE, "too long");
    ensure!(send(b"two", 0, 1)? == 3, "sent");
    heard("after one that was too long", &[b"two"])
}

fn need_a_right() -> Result<()> {
    const NOBODY: u32 = 65_534;
    // SAFETY: the child only makes system calls and ends.
    let child = unsafe { checked(libc::fork())? };
    if child == 0 {
        // SAFETY: plain system calls.
        unsafe {
            libc::setuid(NOBODY);
            for (family, protocol) in [
                (libc::AF_INET, libc::IPPROTO_ICMP),
                (libc::AF_INET6, libc::IPPROTO_ICMPV6),
            ] {
                if libc::socket(family, libc::SOCK_RAW, protocol) != -1
                    || *libc::__errno_location() != libc::EPERM
                {
                    libc::_exit(1);
                }
            }
            libc::_exit(0);
        }
    }
    let mut status = 0;
    // SAFETY: the status is alive during the call.
    checked(unsafe { libc::waitpid(child, &raw mut status, 0) })?;
    ensure!(status == 0, "anybody has raw sockets ({status:x})");
    Ok(())
}
