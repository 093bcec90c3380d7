//! Error queues of sockets (`MSG_ERRQUEUE`), and options that act on sent, peeked and accepted
//! data.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::inet_sockets::{
    Received, UNUSED_PORT, get, nonblocking, pair, receive_all, set, socket, wait_for,
};
use crate::sockets::{errno, recv, send};
use crate::{Check, checked};

pub const CHECKS: &[(&str, Check)] = &[
    ("error-queue-of-what-was-copied", copied),
    ("error-queue-of-when-it-was-sent", sent),
    ("error-queue-of-who-refused-it", refused),
    ("options-peek-offset-of-streams", peek_streams),
    ("options-peek-offset-of-messages", peek_messages),
    ("options-memory-and-times-to-send", memory_and_launch),
    ("options-rest-of-the-stream", rest_of_the_stream),
    ("options-accept-when-data-came", deferred),
    ("options-patience-with-the-peer", patience),
    ("options-sources-of-groups", sources),
    ("options-who-of-those-that-share", chooser),
    ("options-who-of-those-by-processor", chooser_by_processor),
];

const LOCAL: Ipv4Addr = Ipv4Addr::LOCALHOST;
const SO_PEEK_OFF: i32 = 42;
const SO_ATTACH_BPF: i32 = 50;
const SO_ATTACH_REUSEPORT_CBPF: i32 = 51;
const SO_MEMINFO: i32 = 55;
const SO_ZEROCOPY: i32 = 60;
const SO_TXTIME: i32 = 61;
const TCP_INQ: i32 = 36;
/// Origins of notices.
const BY_ICMP: u8 = 2;
const BY_ICMP6: u8 = 3;
const BY_CLOCK: u8 = 4;
const BY_COPYING: u8 = 5;

/// `struct sock_extended_err`: error, origin, kind, code, and two words; and how many bytes follow
/// it.
type Cause = (u32, u8, u8, u8, u32, u32, usize);

fn cause(told: &Received) -> Result<Cause> {
    let kinds = [
        (libc::IPPROTO_IP, libc::IP_RECVERR),
        (libc::IPPROTO_IPV6, libc::IPV6_RECVERR),
    ];
    let found = told
        .control
        .iter()
        .find(|(level, kind, _)| kinds.contains(&(*level, *kind)));
    let bytes = &found.context("no cause")?.2;
    let word =
        |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    Ok((
        word(0),
        bytes[4],
        bytes[5],
        bytes[6],
        word(8),
        word(12),
        bytes.len() - 16,
    ))
}

/// The next notice, waiting for it.
fn next(fd: &impl AsRawFd) -> Result<Received> {
    let mut all = wait_for(fd, libc::POLLERR)?;
    while all & libc::POLLERR == 0 {
        all = wait_for(fd, libc::POLLERR)?;
    }
    let told = receive_all(fd, libc::MSG_ERRQUEUE)?;
    ensure!(
        told.flags & libc::MSG_ERRQUEUE != 0,
        "flags {:#x}",
        told.flags
    );
    Ok(told)
}

fn nothing_more(fd: &impl AsRawFd) -> Result<()> {
    ensure!(
        errno(receive_all(fd, libc::MSG_ERRQUEUE).map(drop)) == libc::EAGAIN,
        "there is more to be told"
    );
    Ok(())
}

fn udp_pair(ip: impl Into<std::net::IpAddr>) -> Result<(UdpSocket, UdpSocket)> {
    let ip = ip.into();
    let (a, b) = (UdpSocket::bind((ip, 0))?, UdpSocket::bind((ip, 0))?);
    a.connect(b.local_addr()?)?;
    Ok((a, b))
}

fn copied() -> Result<()> {
    let (a, b) = udp_pair(LOCAL)?;
    send(&a, b"x", libc::MSG_ZEROCOPY)?;
    nothing_more(&a)?;
    ensure!(
        errno(set(&a, libc::SOL_SOCKET, SO_ZEROCOPY, &2)) == libc::EINVAL,
        "two of it"
    );
    set(&a, libc::SOL_SOCKET, SO_ZEROCOPY, &1)?;
    ensure!(get(&a, libc::SOL_SOCKET, SO_ZEROCOPY)? == 1, "not on");
    for _ in 0..3 {
        send(&a, b"x", libc::MSG_ZEROCOPY)?;
        recv(&b, &mut [0; 4], 0)?;
    }
    // Neither without the flag nor without bytes.
    send(&a, b"x", 0)?;
    let mut all = 0;
    while all < 3 {
        let told = next(&a)?;
        let (error, origin, kind, code, first, last, rest) = cause(&told)?;
        ensure!(
            (error, origin, kind, code, rest) == (0, BY_COPYING, 0, 1, 16),
            "UDP: {:?}",
            cause(&told)?
        );
        ensure!(
            first == all && last >= first && told.data.is_empty() && told.name.is_empty(),
            "UDP: {first} to {last}"
        );
        all = last + 1;
    }
    nothing_more(&a)?;
    let (a, mut b) = pair()?;
    set(&a, libc::SOL_SOCKET, SO_ZEROCOPY, &1)?;
    send(&a, b"hello", libc::MSG_ZEROCOPY)?;
    b.read_exact(&mut [0; 5])?;
    let (error, origin, _, code, first, last, _) = cause(&next(&a)?)?;
    ensure!(
        (error, origin, code, first, last) == (0, BY_COPYING, 1, 0, 0),
        "TCP: {code}, {first} to {last}"
    );
    let (unix, _other) = UnixStream::pair()?;
    ensure!(
        errno(set(&unix, libc::SOL_SOCKET, SO_ZEROCOPY, &1)) == libc::EOPNOTSUPP,
        "AF_UNIX takes it"
    );
    Ok(())
}

/// Flags of `SO_TIMESTAMPING`.
const TX_SOFTWARE: i32 = 1 << 1;
const SOFTWARE: i32 = 1 << 4;
const OPT_ID: i32 = 1 << 7;
const TX_SCHED: i32 = 1 << 8;
const TX_ACK: i32 = 1 << 9;
const OPT_TSONLY: i32 = 1 << 11;
const OPT_STATS: i32 = 1 << 12;

/// The stage and number of the next notice of time.
fn stage(fd: &impl AsRawFd) -> Result<(u32, u32, Vec<u8>)> {
    let told = next(fd)?;
    let stamps: Vec<_> = told
        .control
        .iter()
        .filter(|(level, ..)| *level == libc::SOL_SOCKET)
        .collect();
    ensure!(
        stamps.len() == 1 && stamps[0].1 == libc::SO_TIMESTAMPING && stamps[0].2.len() == 48,
        "{} stamps",
        stamps.len()
    );
    ensure!(stamps[0].2[..8] != [0; 8], "no time");
    let (error, origin, _, _, stage, number, _) = cause(&told)?;
    ensure!(
        (error, origin) == (libc::ENOMSG as u32, BY_CLOCK),
        "{error} of {origin}"
    );
    Ok((stage, number, told.data))
}

fn sent() -> Result<()> {
    for (ip, header) in [
        (std::net::IpAddr::V4(LOCAL), 14 + 20 + 8),
        (Ipv6Addr::LOCALHOST.into(), 14 + 40 + 8),
    ] {
        let (a, b) = udp_pair(ip)?;
        set(
            &a,
            libc::SOL_SOCKET,
            libc::SO_TIMESTAMPING,
            &(TX_SOFTWARE | TX_SCHED | SOFTWARE | OPT_ID),
        )?;
        for number in 0..2 {
            a.send(b"hello")?;
            let mut stages = [stage(&a)?, stage(&a)?];
            stages.sort_unstable();
            for (at, found) in stages.iter().enumerate() {
                ensure!(
                    (found.0, found.1) == (at as u32, number),
                    "stage {}, number {}",
                    found.0,
                    found.1
                );
                ensure!(
                    found.2.len() == header + 5 && found.2.ends_with(b"hello"),
                    "with {} bytes",
                    found.2.len()
                );
            }
            b.recv(&mut [0; 8])?;
        }
        nothing_more(&a)?;
    }
    let (a, mut b) = pair()?;
    (&a).write_all(b"before")?;
    b.read_exact(&mut [0; 6])?;
    ensure!(
        errno(set(
            &a,
            libc::SOL_SOCKET,
            libc::SO_TIMESTAMPING,
            &(TX_SOFTWARE | OPT_STATS)
        )) == libc::EINVAL,
        "figures with bytes"
    );
    set(
        &a,
        libc::SOL_SOCKET,
        libc::SO_TIMESTAMPING,
        &(TX_SOFTWARE | TX_ACK | SOFTWARE | OPT_ID | OPT_TSONLY),
    )?;
    let mut end = 0;
    for text in ["hello", "and more"] {
        (&a).write_all(text.as_bytes())?;
        b.read_exact(&mut vec![0; text.len()])?;
        end += text.len() as u32;
        let mut stages = [stage(&a)?, stage(&a)?];
        stages.sort_unstable();
        ensure!(
            stages == [(0, end - 1, vec![]), (2, end - 1, vec![])],
            "TCP: {stages:?}"
        );
    }
    let fresh = socket(libc::AF_INET, libc::SOCK_STREAM)?;
    ensure!(
        errno(set(
            &fresh,
            libc::SOL_SOCKET,
            libc::SO_TIMESTAMPING,
            &OPT_ID
        )) == libc::EINVAL,
        "bytes of nothing are counted"
    );
    Ok(())
}

fn refused() -> Result<()> {
    for (ip, level, option, origin, kind, code) in [
        (
            std::net::IpAddr::V4(LOCAL),
            libc::IPPROTO_IP,
            libc::IP_RECVERR,
            BY_ICMP,
            3,
            3,
        ),
        (
            Ipv6Addr::LOCALHOST.into(),
            libc::IPPROTO_IPV6,
            libc::IPV6_RECVERR,
            BY_ICMP6,
            1,
            4,
        ),
    ] {
        let port = UNUSED_PORT;
        let a = UdpSocket::bind((ip, 0))?;
        // Without the option one who talks to nobody in particular is not told.
        a.send_to(b"x", (ip, port))?;
        nothing_more(&a)?;
        set(&a, level, option, &1)?;
        a.send_to(b"hello", (ip, port))?;
        let told = next(&a)?;
        let (error, by, what, which, ..) = cause(&told)?;
        ensure!(
            (error, by, what, which) == (libc::ECONNREFUSED as u32, origin, kind, code),
            "{:?}",
            cause(&told)?
        );
        ensure!(told.data == b"hello", "with {:?}", told.data);
        ensure!(
            told.name.get(2..4) == Some(&port.to_be_bytes()[..]),
            "to {:?}",
            told.name
        );
        nothing_more(&a)?;
    }
    Ok(())
}

fn looked_at(fd: &impl AsRawFd, room: usize) -> io::Result<Vec<u8>> {
    let mut buf = vec![0; room];
    let n = recv(fd, &mut buf, libc::MSG_PEEK | libc::MSG_DONTWAIT)?;
    buf.truncate(n);
    Ok(buf)
}

fn peek_streams() -> Result<()> {
    let (mut a, mut b) = UnixStream::pair()?;
    ensure!(
        get(&b, libc::SOL_SOCKET, SO_PEEK_OFF)? == -1,
        "it is on at first"
    );
    a.write_all(b"0123456789")?;
    set(&b, libc::SOL_SOCKET, SO_PEEK_OFF, &4)?;
    ensure!(looked_at(&b, 3)? == b"456", "not from the fourth");
    ensure!(looked_at(&b, 10)? == b"789", "not on from there");
    ensure!(
        get(&b, libc::SOL_SOCKET, SO_PEEK_OFF)? == 10,
        "it did not go on"
    );
    ensure!(errno(looked_at(&b, 10)) == libc::EAGAIN, "there is more");
    b.read_exact(&mut [0; 4])?;
    ensure!(
        get(&b, libc::SOL_SOCKET, SO_PEEK_OFF)? == 6,
        "it did not go back"
    );
    a.write_all(b"ab")?;
    ensure!(looked_at(&b, 10)? == b"ab", "not behind what was looked at");
    set(&b, libc::SOL_SOCKET, SO_PEEK_OFF, &-1)?;
    ensure!(looked_at(&b, 10)? == b"456789ab", "not from the front");
    let (tcp, _other) = pair()?;
    ensure!(
        errno(set(&tcp, libc::SOL_SOCKET, SO_PEEK_OFF, &0)) == libc::EOPNOTSUPP,
        "TCP has it"
    );
    ensure!(
        errno(get(&tcp, libc::SOL_SOCKET, SO_PEEK_OFF)) == libc::EOPNOTSUPP,
        "TCP says it"
    );
    Ok(())
}

fn peek_messages() -> Result<()> {
    let (unix, unix_to) = UnixDatagram::pair()?;
    let (udp, udp_to) = udp_pair(LOCAL)?;
    let check = |what: &str, from: &dyn AsRawFd, to: &dyn AsRawFd| -> Result<()> {
        let (from, to) = (&from.as_raw_fd(), &to.as_raw_fd());
        for text in ["hello", "world", "!"] {
            send(from, text.as_bytes(), 0)?;
        }
        set(to, libc::SOL_SOCKET, SO_PEEK_OFF, &0)?;
        ensure!(
            looked_at(to, 3)? == b"hel" && looked_at(to, 9)? == b"lo",
            "{what}: the first one"
        );
        ensure!(
            looked_at(to, 9)? == b"world" && looked_at(to, 9)? == b"!",
            "{what}: the others"
        );
        ensure!(
            errno(looked_at(to, 9)) == libc::EAGAIN,
            "{what}: more than there are"
        );
        recv(to, &mut [0; 9], 0)?;
        ensure!(
            get(to, libc::SOL_SOCKET, SO_PEEK_OFF)? == 6,
            "{what}: it did not go back"
        );
        set(to, libc::SOL_SOCKET, SO_PEEK_OFF, &2)?;
        ensure!(
            looked_at(to, 9)? == b"rld",
            "{what}: not from the second letter"
        );
        Ok(())
    };
    check("AF_UNIX", &unix, &unix_to)?;
    check("UDP", &udp, &udp_to)
}

fn memory_and_launch() -> Result<()> {
    let (a, b) = udp_pair(LOCAL)?;
    a.send(&[0; 1000])?;
    let mut words = [0u32; 12];
    let mut len = size_of_val(&words) as libc::socklen_t;
    // SAFETY: both are alive during the call, and the length is that of the buffer.
    checked(unsafe {
        libc::getsockopt(
            b.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_MEMINFO,
            words.as_mut_ptr().cast(),
            &raw mut len,
        )
    })?;
    ensure!(len == 36, "{len} bytes");
    ensure!(
        words[0] >= 1000
            && words[1] == get(&b, libc::SOL_SOCKET, libc::SO_RCVBUF)? as u32
            && words[8] == 0,
        "{words:?}"
    );
    ensure!(
        errno(set(&a, libc::SOL_SOCKET, SO_TXTIME, &[1, 8])) == libc::EINVAL,
        "unknown flags"
    );
    set(&a, libc::SOL_SOCKET, SO_TXTIME, &[libc::CLOCK_MONOTONIC, 2])?;
    a.send(b"x")?;
    // Of no such program, or no such kind of program.
    ensure!(
        set(&a, libc::SOL_SOCKET, SO_ATTACH_BPF, &-1).is_err(),
        "a program that is not there"
    );
    ensure!(
        errno(set(&a, libc::SOL_SOCKET, SO_ATTACH_BPF, &[0u8; 8])) == libc::EINVAL,
        "eight bytes"
    );
    Ok(())
}

fn rest_of_the_stream() -> Result<()> {
    let (mut a, b) = pair()?;
    set(&b, libc::IPPROTO_TCP, TCP_INQ, &1)?;
    a.write_all(&[7; 300])?;
    let mut seen = 0;
    while seen < 300 {
        let got = receive_all(&b, 0)?;
        seen += got.data.len();
        let [(level, kind, bytes)] = &got.control[..] else {
            anyhow::bail!("{} control messages", got.control.len())
        };
        ensure!(
            (*level, *kind) == (libc::IPPROTO_TCP, TCP_INQ),
            "{level}, {kind}"
        );
        let rest = i32::from_ne_bytes(bytes[..4].try_into()?) as usize;
        ensure!(
            seen + rest <= 300 && (rest > 0 || seen == 300),
            "{seen} received, {rest} to come"
        );
    }
    let name = |fd: &TcpStream| -> io::Result<Vec<u8>> {
        let mut name = [0u8; 16];
        let mut len = 16;
        let (fd, at) = (fd.as_raw_fd(), name.as_mut_ptr().cast());
        // SAFETY: both are alive during the call, and the length is that of the buffer.
        checked(unsafe {
            libc::getsockopt(
                fd,
                libc::IPPROTO_TCP,
                libc::TCP_CONGESTION,
                at,
                &raw mut len,
            )
        })?;
        Ok(name.split(|&b| b == 0).next().unwrap_or_default().to_vec())
    };
    set(&a, libc::IPPROTO_TCP, libc::TCP_CONGESTION, b"reno")?;
    ensure!(
        name(&a)? == b"reno" && name(&b)? == b"cubic",
        "congestion by {:?}",
        name(&a)?
    );
    Ok(())
}

fn deferred() -> Result<()> {
    let listener = TcpListener::bind((LOCAL, 0))?;
    set(&listener, libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, &25)?;
    ensure!(
        get(&listener, libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT)? == 31,
        "not in whole periods"
    );
    let silent = TcpStream::connect(listener.local_addr()?)?;
    let mut speaks = TcpStream::connect(listener.local_addr()?)?;
    speaks.write_all(b"hello")?;
    // Who speaks is accepted before who came first.
    let (mut accepted, from) = listener.accept()?;
    ensure!(from == speaks.local_addr()?, "accepted {from}");
    let mut text = [0; 5];
    accepted.read_exact(&mut text)?;
    ensure!(&text == b"hello", "it says {text:?}");
    listener.set_nonblocking(true)?;
    ensure!(
        errno(listener.accept()) == libc::EAGAIN,
        "one who is silent is accepted"
    );
    (&silent).write_all(b"x")?;
    listener.set_nonblocking(false)?;
    ensure!(
        listener.accept()?.1 == silent.local_addr()?,
        "not the other one"
    );
    set(&listener, libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, &1)?;
    let late = TcpStream::connect(listener.local_addr()?)?;
    ensure!(
        listener.accept()?.1 == late.local_addr()?,
        "not after a second"
    );
    Ok(())
}

fn patience() -> Result<()> {
    let (a, b) = pair()?;
    set(&a, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, &500)?;
    ensure!(
        get(&a, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT)? == 500,
        "not remembered"
    );
    nonblocking(&a)?;
    let chunk = [0; 65_536];
    loop {
        match send(&a, &chunk, libc::MSG_NOSIGNAL) {
            Ok(_) => {}
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => break,
            Err(error) => return Err(error.into()),
        }
    }
    // The peer never receives.
    while wait_for(&a, 0)? & libc::POLLERR == 0 {}
    ensure!(
        errno(send(&a, b"x", libc::MSG_NOSIGNAL)) == libc::ETIMEDOUT,
        "another error"
    );
    ensure!(
        errno(send(&a, b"x", libc::MSG_NOSIGNAL)) == libc::EPIPE,
        "still open"
    );
    drop(b);
    Ok(())
}

/// `struct ip_mreq_source`.
fn membership(group: Ipv4Addr, source: Ipv4Addr) -> [u8; 12] {
    [group.octets(), LOCAL.octets(), source.octets()]
        .concat()
        .try_into()
        .unwrap_or_default()
}

fn sources() -> Result<()> {
    let group = Ipv4Addr::new(239, 1, 2, 4);
    let receiver = UdpSocket::bind((group, 0))?;
    receiver.set_read_timeout(Some(Duration::from_secs(20)))?;
    let to = (group, receiver.local_addr()?.port());
    let sender = |ip: Ipv4Addr| -> Result<UdpSocket> {
        let socket = UdpSocket::bind((ip, 0))?;
        set(
            &socket,
            libc::IPPROTO_IP,
            libc::IP_MULTICAST_IF,
            &LOCAL.octets(),
        )?;
        Ok(socket)
    };
    let other = Ipv4Addr::new(127, 0, 0, 2);
    let (wanted, unwanted) = (sender(LOCAL)?, sender(other)?);
    let add = |option: i32, source: Ipv4Addr| {
        set(
            &receiver,
            libc::IPPROTO_IP,
            option,
            &membership(group, source),
        )
    };
    add(libc::IP_ADD_SOURCE_MEMBERSHIP, LOCAL)?;
    ensure!(
        errno(add(libc::IP_ADD_SOURCE_MEMBERSHIP, LOCAL)) == libc::EADDRNOTAVAIL,
        "a source twice"
    );
    ensure!(
        errno(add(libc::IP_BLOCK_SOURCE, other)) == libc::EINVAL,
        "two sorts of sources"
    );
    let heard = |text: &[u8]| -> Result<()> {
        let mut buf = [0; 16];
        let n = receiver.recv(&mut buf)?;
        ensure!(&buf[..n] == text, "heard {:?}", &buf[..n]);
        Ok(())
    };
    unwanted.send_to(b"unwanted", to)?;
    wanted.send_to(b"wanted", to)?;
    heard(b"wanted")?;
    add(libc::IP_DROP_SOURCE_MEMBERSHIP, LOCAL)?;
    receiver.join_multicast_v4(&group, &LOCAL)?;
    add(libc::IP_BLOCK_SOURCE, LOCAL)?;
    wanted.send_to(b"blocked", to)?;
    unwanted.send_to(b"other", to)?;
    heard(b"other")?;
    add(libc::IP_UNBLOCK_SOURCE, LOCAL)?;
    wanted.send_to(b"again", to)?;
    heard(b"again")?;
    receiver.leave_multicast_v4(&group, &LOCAL)?;
    Ok(())
}

/// UDP sockets that share a port, and that.
fn sharing(count: usize) -> Result<(Vec<OwnedFd>, u16)> {
    let mut all = Vec::new();
    let mut port = 0;
    for _ in 0..count {
        let next = socket(libc::AF_INET, libc::SOCK_DGRAM)?;
        set(&next, libc::SOL_SOCKET, libc::SO_REUSEPORT, &1)?;
        crate::inet_sockets::with_v4(&next, LOCAL, port, libc::bind)?;
        port = crate::inet_sockets::port_of(&next)?;
        all.push(next);
    }
    Ok((all, port))
}

/// Has a socket's group chosen by what an instruction loads.
fn choose_by(fd: &OwnedFd, load: u16, k: u32) -> Result<()> {
    const RETURN_A: u16 = 0x16;
    let [jt, jf] = [0, 0];
    let code = [(load, k), (RETURN_A, 0)].map(|(code, k)| libc::sock_filter { code, jt, jf, k });
    let program = libc::sock_fprog {
        len: 2,
        filter: code.as_ptr().cast_mut(),
    };
    set(fd, libc::SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, &program)?;
    Ok(())
}

/// By the first byte of the datagram.
fn chooser() -> Result<()> {
    let (all, port) = sharing(3)?;
    choose_by(&all[1], 0x30, 0)?;
    let from = UdpSocket::bind((LOCAL, 0))?;
    for round in 0..6u8 {
        from.send_to(&[round % 3, round], (LOCAL, port))?;
        let mut buf = [0; 4];
        let n = recv(&all[usize::from(round % 3)], &mut buf, libc::MSG_DONTWAIT)?;
        ensure!(
            buf[..n] == [round % 3, round],
            "{:?} at {}",
            &buf[..n],
            round % 3
        );
    }
    Ok(())
}

/// By the processor that delivers the datagram, which over the loop is the sender's.
fn chooser_by_processor() -> Result<()> {
    const CPU: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_CPU) as u32;
    // SAFETY: the set is valid, and as long as the calls are told.
    unsafe {
        let mut before: libc::cpu_set_t = std::mem::zeroed();
        let length = size_of_val(&before);
        checked(libc::sched_getaffinity(0, length, &raw mut before))?;
        let last = (0..64).rfind(|&cpu| libc::CPU_ISSET(cpu, &before));
        let (all, port) = sharing(1 + last.context("there is no processor")?)?;
        choose_by(&all[0], 0x20, CPU)?;
        let from = UdpSocket::bind((LOCAL, 0))?;
        for cpu in (0..all.len()).filter(|&cpu| libc::CPU_ISSET(cpu, &before)) {
            let mut one: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(cpu, &mut one);
            checked(libc::sched_setaffinity(0, length, &raw const one))?;
            from.send_to(&[cpu as u8], (LOCAL, port))?;
            let mut buf = [0; 4];
            let n = recv(&all[cpu], &mut buf, libc::MSG_DONTWAIT)?;
            ensure!(buf[..n] == [cpu as u8], "{:?} at {cpu}", &buf[..n]);
        }
        checked(libc::sched_setaffinity(0, length, &raw const before))?;
    }
    Ok(())
}
