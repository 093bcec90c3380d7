//! TCP and UDP over the loop: what a program on one host can see of `AF_INET` and `AF_INET6`.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::mem;
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, SocketAddrV4, TcpListener, TcpStream, ToSocketAddrs, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::thread;

use anyhow::{Context, Result, ensure};

use crate::sockets::{errno, polled, recv, send};
use crate::{Check, checked};

pub const CHECKS: &[(&str, Check)] = &[
    ("inet-stream-and-addresses", stream_and_addresses),
    ("inet-stream-of-8-mib-both-ways", stream_of_8_mib_both_ways),
    ("inet-nobody-listens", nobody_listens),
    ("inet-connect-without-waiting", connect_without_waiting),
    ("inet-backlog-fills-and-drains", backlog_fills_and_drains),
    ("inet-half-close", half_close),
    ("inet-reset", reset),
    ("inet-write-after-close", write_after_close),
    ("inet-poll-states", poll_states),
    ("inet-binding-rules", binding_rules),
    ("inet-reuseport-shares", reuseport_shares),
    ("inet-both-families", both_families),
    ("inet-ephemeral-ports-differ", ephemeral_ports_differ),
    ("inet-options", options),
    ("inet-tcp-info", tcp_info),
    ("inet-sendfile", sendfile),
    ("inet-peek-waitall-and-discard", peek_waitall_and_discard),
    ("inet-shutdown-of-a-listener", shutdown_of_a_listener),
    ("inet-datagrams", datagrams),
    ("inet-datagrams-connected", datagrams_connected),
    ("inet-datagrams-to-nobody", datagrams_to_nobody),
    ("inet-datagrams-are-lost-not-waited-for", datagrams_are_lost),
    ("inet-packet-info", packet_info),
    ("inet-multicast", multicast),
    ("inet-interfaces", interfaces),
    ("inet-shows-in-proc", shows_in_proc),
    ("inet-many-connections", many_connections),
    ("inet-unreachable", unreachable),
];

const LOCAL: Ipv4Addr = Ipv4Addr::LOCALHOST;

/// Two connected sockets: client and server.
pub fn pair_at(ip: impl Into<std::net::IpAddr>) -> Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind(SocketAddr::new(ip.into(), 0))?;
    let client = TcpStream::connect(listener.local_addr()?)?;
    Ok((client, listener.accept()?.0))
}

pub fn pair() -> Result<(TcpStream, TcpStream)> {
    pair_at(LOCAL)
}

pub fn socket(family: libc::c_int, kind: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: the new number belongs to nobody else.
    unsafe { Ok(OwnedFd::from_raw_fd(checked(libc::socket(family, kind, 0))?)) }
}

pub fn raw_v4(ip: Ipv4Addr, port: u16) -> libc::sockaddr_in {
    // SAFETY: a structure of numbers may be zero.
    let mut address: libc::sockaddr_in = unsafe { mem::zeroed() };
    address.sin_family = libc::AF_INET as _;
    address.sin_port = port.to_be();
    address.sin_addr.s_addr = u32::from_ne_bytes(ip.octets());
    address
}

pub type AddressCall = unsafe extern "C" fn(libc::c_int, *const libc::sockaddr, libc::socklen_t) -> libc::c_int;

pub fn with_v4(fd: &impl AsRawFd, ip: Ipv4Addr, port: u16, call: AddressCall) -> io::Result<()> {
    let address = raw_v4(ip, port);
    // SAFETY: the address is alive during the call.
    checked(unsafe { call(fd.as_raw_fd(), (&raw const address).cast(), mem::size_of_val(&address) as _) }).map(drop)
}

pub fn with_v6(fd: &impl AsRawFd, ip: Ipv6Addr, port: u16, call: AddressCall) -> io::Result<()> {
    // SAFETY: a structure of numbers may be zero.
    let mut address: libc::sockaddr_in6 = unsafe { mem::zeroed() };
    address.sin6_family = libc::AF_INET6 as _;
    address.sin6_port = port.to_be();
    address.sin6_addr.s6_addr = ip.octets();
    // SAFETY: the address is alive during the call.
    checked(unsafe { call(fd.as_raw_fd(), (&raw const address).cast(), mem::size_of_val(&address) as _) }).map(drop)
}

/// The port a socket is bound to.
pub fn port_of(fd: &impl AsRawFd) -> io::Result<u16> {
    // SAFETY: a structure of numbers may be zero; it is large enough for either family, which have the port at the same place.
    let mut address: libc::sockaddr_in6 = unsafe { mem::zeroed() };
    let mut len = mem::size_of_val(&address) as libc::socklen_t;
    // SAFETY: both are alive during the call.
    checked(unsafe { libc::getsockname(fd.as_raw_fd(), (&raw mut address).cast(), &raw mut len) })?;
    Ok(u16::from_be(address.sin6_port))
}

pub fn listen(fd: &impl AsRawFd, backlog: libc::c_int) -> io::Result<()> {
    // SAFETY: a plain system call.
    checked(unsafe { libc::listen(fd.as_raw_fd(), backlog) }).map(drop)
}

pub fn get(fd: &impl AsRawFd, level: libc::c_int, option: libc::c_int) -> io::Result<i32> {
    let mut value = 0i32;
    let mut len = 4;
    // SAFETY: both are alive during the call.
    checked(unsafe { libc::getsockopt(fd.as_raw_fd(), level, option, (&raw mut value).cast(), &raw mut len) })?;
    Ok(value)
}

pub fn set<T>(fd: &impl AsRawFd, level: libc::c_int, option: libc::c_int, value: &T) -> io::Result<()> {
    let len = mem::size_of::<T>() as libc::socklen_t;
    // SAFETY: the value is alive during the call.
    checked(unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, (&raw const *value).cast(), len) }).map(drop)
}

pub fn nonblocking(fd: &impl AsRawFd) -> io::Result<()> {
    // SAFETY: plain system calls.
    unsafe {
        let flags = checked(libc::fcntl(fd.as_raw_fd(), libc::F_GETFL))?;
        checked(libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK)).map(drop)
    }
}

/// Waits until one of `events` is so, and returns all that is.
pub fn wait_for(fd: &impl AsRawFd, events: i16) -> Result<i16> {
    let mut entry = libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 };
    // SAFETY: one entry, alive during the call.
    let n = checked(unsafe { libc::poll(&raw mut entry, 1, 20_000) })?;
    ensure!(n == 1, "none of {events:x} in 20 s");
    Ok(entry.revents)
}

fn stream_and_addresses() -> Result<()> {
    for (ip, any) in [("127.0.0.1", "0.0.0.0"), ("127.9.8.7", "0.0.0.0"), ("::1", "::")] {
        let ip: std::net::IpAddr = ip.parse()?;
        for bound in [ip, any.parse()?] {
            let listener = TcpListener::bind(SocketAddr::new(bound, 0))?;
            let port = listener.local_addr()?.port();
            ensure!(port != 0 && listener.local_addr()?.ip() == bound, "bound to {:?}", listener.local_addr()?);
            let mut client = TcpStream::connect(SocketAddr::new(ip, port))?;
            let (mut server, from) = listener.accept()?;
            ensure!(client.peer_addr()? == SocketAddr::new(ip, port), "the client's peer is {:?}", client.peer_addr()?);
            ensure!(server.local_addr()? == client.peer_addr()?, "the server is at {:?}", server.local_addr()?);
            ensure!(client.local_addr()? == from && server.peer_addr()? == from, "the client is at {from:?}");
            client.write_all(b"question")?;
            client.shutdown(Shutdown::Write)?;
            let mut text = String::new();
            server.read_to_string(&mut text)?;
            server.write_all(b"answer")?;
            drop(server);
            client.read_to_string(&mut text)?;
            ensure!(text == "questionanswer", "{text:?}");
        }
    }
    let local: Vec<SocketAddr> = ("localhost", 1).to_socket_addrs().context("localhost has no address")?.collect();
    ensure!(local.iter().all(|a| a.ip().is_loopback()), "localhost is {local:?}");
    Ok(())
}

fn stream_of_8_mib_both_ways() -> Result<()> {
    const SIZE: usize = 8 << 20;
    let pattern = |i: usize| (i * 31 + (i >> 12)) as u8;
    let both = move |stream: TcpStream| -> Result<()> {
        let mut writer = stream.try_clone()?;
        let writing = thread::spawn(move || -> io::Result<()> {
            let data: Vec<u8> = (0..SIZE).map(pattern).collect();
            for piece in data.chunks(77_777) {
                writer.write_all(piece)?;
            }
            writer.shutdown(Shutdown::Write)
        });
        let mut reader = stream;
        let mut got = Vec::new();
        reader.read_to_end(&mut got)?;
        writing.join().expect("the writer panicked")?;
        ensure!(got.len() == SIZE, "{} bytes", got.len());
        ensure!(got.iter().enumerate().all(|(i, &b)| b == pattern(i)), "the bytes are not those that were sent");
        Ok(())
    };
    let (client, server) = pair()?;
    let other = thread::spawn(move || both(server));
    both(client)?;
    other.join().expect("the server panicked")
}

/// A port at which nobody listens: below those that are given to who asks for any, because other checks ask, too.
pub const UNUSED_PORT: u16 = 1;

fn nobody_listens() -> Result<()> {
    let port = UNUSED_PORT;
    ensure!(errno(TcpStream::connect((LOCAL, port))) == libc::ECONNREFUSED, "IPv4");
    ensure!(errno(TcpStream::connect((Ipv6Addr::LOCALHOST, port))) == libc::ECONNREFUSED, "IPv6");
    // Bound is not listening; and a socket can be used again after a failure.
    let bound = socket(libc::AF_INET, libc::SOCK_STREAM)?;
    with_v4(&bound, LOCAL, 0, libc::bind)?;
    let fd = socket(libc::AF_INET, libc::SOCK_STREAM)?;
    ensure!(errno(with_v4(&fd, LOCAL, port_of(&bound)?, libc::connect)) == libc::ECONNREFUSED, "bound only");
    let listener = TcpListener::bind((LOCAL, 0))?;
    with_v4(&fd, LOCAL, listener.local_addr()?.port(), libc::connect)?;
    ensure!(errno(with_v4(&fd, LOCAL, listener.local_addr()?.port(), libc::connect)) == libc::EISCONN, "twice");
    let lonely = socket(libc::AF_INET, libc::SOCK_STREAM)?;
    ensure!(errno(recv(&lonely, &mut [0], 0)) == libc::ENOTCONN, "receiving without a connection");
    ensure!(errno(send(&lonely, b"x", libc::MSG_NOSIGNAL)) == libc::EPIPE, "sending without a connection");
    // SAFETY: a plain system call.
    ensure!(errno(checked(unsafe { libc::shutdown(lonely.as_raw_fd(), libc::SHUT_RDWR) })) == libc::ENOTCONN, "shutting");
    Ok(())
}

fn connect_without_waiting() -> Result<()> {
    let listener = TcpListener::bind((LOCAL, 0))?;
    let port = listener.local_addr()?.port();
    let fd = socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_NONBLOCK)?;
    ensure!(errno(with_v4(&fd, LOCAL, port, libc::connect)) == libc::EINPROGRESS, "it does not say it is under way");
    ensure!(wait_for(&fd, libc::POLLOUT)? == libc::POLLOUT, "connected, but {:x}", polled(&fd)?);
    ensure!(get(&fd, libc::SOL_SOCKET, libc::SO_ERROR)? == 0, "there is an error");
    with_v4(&fd, LOCAL, port, libc::connect).context("asked again, it does not say that it is done")?;
    ensure!(errno(with_v4(&fd, LOCAL, port, libc::connect)) == libc::EISCONN, "and again");
    let fd = socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_NONBLOCK)?;
    let nobody = UNUSED_PORT;
    ensure!(errno(with_v4(&fd, LOCAL, nobody, libc::connect)) == libc::EINPROGRESS, "refused at once");
    let events = wait_for(&fd, libc::POLLOUT)?;
    ensure!(events == libc::POLLOUT | libc::POLLERR | libc::POLLHUP, "refused: {events:x}");
    ensure!(get(&fd, libc::SOL_SOCKET, libc::SO_ERROR)? == libc::ECONNREFUSED, "not told of it");
    ensure!(get(&fd, libc::SOL_SOCKET, libc::SO_ERROR)? == 0, "told twice");
    Ok(())
}

fn backlog_fills_and_drains() -> Result<()> {
    let fd = socket(libc::AF_INET, libc::SOCK_STREAM)?;
    with_v4(&fd, LOCAL, 0, libc::bind)?;
    listen(&fd, 1)?;
    let port = port_of(&fd)?;
    // Two are taken, whether anybody accepts or not; the others get through as room is made.
    let clients: Vec<_> = (0..6u8)
        .map(|i| {
            thread::spawn(move || -> Result<u8> {
                let mut stream = TcpStream::connect((LOCAL, port))?;
                stream.write_all(&[i])?;
                let mut answer = [0];
                stream.read_exact(&mut answer)?;
                Ok(answer[0])
            })
        })
        .collect();
    let listener = TcpListener::from(fd);
    for _ in 0..clients.len() {
        let (mut server, _) = listener.accept()?;
        let mut byte = [0];
        server.read_exact(&mut byte)?;
        server.write_all(&[byte[0] + 100])?;
    }
    for (i, client) in (0..).zip(clients) {
        ensure!(client.join().expect("a client panicked")? == i + 100, "client {i} got another's answer");
    }
    Ok(())
}

fn half_close() -> Result<()> {
    let (mut client, mut server) = pair()?;
    client.write_all(b"last")?;
    client.shutdown(Shutdown::Write)?;
    ensure!(errno(send(&client, b"x", libc::MSG_NOSIGNAL)) == libc::EPIPE, "it can still send");
    let mut text = String::new();
    server.read_to_string(&mut text)?;
    server.write_all(b"still open")?;
    let mut buf = [0; 10];
    client.read_exact(&mut buf)?;
    ensure!(text == "last" && &buf == b"still open", "{text:?} {buf:?}");
    // Who reads no more is no bar to who writes.
    server.shutdown(Shutdown::Read)?;
    ensure!(server.read(&mut buf)? == 0, "something came");
    drop(server);
    ensure!(client.read(&mut buf)? == 0, "no end");
    Ok(())
}

fn reset() -> Result<()> {
    // Closed with something unread.
    let (client, server) = pair()?;
    send(&client, b"unread", 0)?;
    wait_for(&server, libc::POLLIN)?;
    drop(server);
    wait_for(&client, libc::POLLRDHUP)?;
    ensure!(errno(recv(&client, &mut [0], 0)) == libc::ECONNRESET, "no word of the reset");
    ensure!(recv(&client, &mut [0], 0)? == 0, "then no end");
    ensure!(errno(send(&client, b"x", libc::MSG_NOSIGNAL)) == libc::EPIPE, "it can still send");
    ensure!(errno(client.peer_addr()) == libc::ENOTCONN, "there is a peer");
    // Closed abruptly. What had arrived before is still there.
    let (client, server) = pair()?;
    send(&server, b"before", 0)?;
    set(&server, libc::SOL_SOCKET, libc::SO_LINGER, &libc::linger { l_onoff: 1, l_linger: 0 })?;
    drop(server);
    wait_for(&client, libc::POLLHUP)?;
    let events = polled(&client)?;
    ensure!(events & (libc::POLLERR | libc::POLLHUP) == libc::POLLERR | libc::POLLHUP, "polled {events:x}");
    ensure!(recv(&client, &mut [0; 16], 0)? == 6, "what was sent before is gone");
    ensure!(get(&client, libc::SOL_SOCKET, libc::SO_ERROR)? == libc::ECONNRESET, "no error");
    // A listener that goes resets who was not accepted.
    let listener = TcpListener::bind((LOCAL, 0))?;
    let client = TcpStream::connect(listener.local_addr()?)?;
    drop(listener);
    wait_for(&client, libc::POLLRDHUP)?;
    ensure!(errno(recv(&client, &mut [0], 0)) == libc::ECONNRESET, "not accepted, and not told");
    Ok(())
}

fn write_after_close() -> Result<()> {
    let (client, server) = pair()?;
    drop(server);
    ensure!(wait_for(&client, libc::POLLRDHUP)? & libc::POLLHUP == 0, "hung up at once");
    // The first is answered by a reset.
    ensure!(send(&client, b"x", libc::MSG_NOSIGNAL)? == 1, "the first write fails");
    wait_for(&client, libc::POLLHUP)?;
    ensure!(errno(send(&client, b"x", libc::MSG_NOSIGNAL)) == libc::EPIPE, "the second does not");
    ensure!(recv(&client, &mut [0], 0)? == 0, "no end");
    Ok(())
}

fn poll_states() -> Result<()> {
    let (in_, out, hup, rdhup) = (libc::POLLIN, libc::POLLOUT, libc::POLLHUP, libc::POLLRDHUP);
    let lonely = socket(libc::AF_INET, libc::SOCK_STREAM)?;
    ensure!(polled(&lonely)? == out | hup, "not connected: {:x}", polled(&lonely)?);
    let listener = TcpListener::bind((LOCAL, 0))?;
    ensure!(polled(&listener)? == 0, "listening: {:x}", polled(&listener)?);
    let client = TcpStream::connect(listener.local_addr()?)?;
    wait_for(&listener, in_)?;
    ensure!(polled(&listener)? == in_, "with a connection: {:x}", polled(&listener)?);
    let (server, _) = listener.accept()?;
    ensure!(polled(&listener)? == 0 && polled(&client)? == out, "idle: {:x}", polled(&client)?);
    send(&server, b"x", 0)?;
    wait_for(&client, in_)?;
    ensure!(polled(&client)? == in_ | out, "with data: {:x}", polled(&client)?);
    server.shutdown(Shutdown::Write)?;
    wait_for(&client, rdhup)?;
    ensure!(polled(&client)? == in_ | out | rdhup, "half closed: {:x}", polled(&client)?);
    client.shutdown(Shutdown::Write)?;
    wait_for(&client, hup)?;
    ensure!(polled(&client)? == in_ | out | rdhup | hup, "closed: {:x}", polled(&client)?);
    // Full, and with room again.
    let (client, mut server) = pair()?;
    nonblocking(&client)?;
    let mut sent = 0;
    while let Ok(n) = send(&client, &[7; 65_536], 0) {
        sent += n;
    }
    ensure!(polled(&client)? == 0, "full: {:x}", polled(&client)?);
    let mut buf = vec![0; sent];
    server.read_exact(&mut buf)?;
    wait_for(&client, out)?;
    ensure!(sent > 100_000 && buf.iter().all(|&b| b == 7), "{sent} bytes fitted");
    Ok(())
}

fn binding_rules() -> Result<()> {
    let (v4, v6) = (libc::AF_INET, libc::AF_INET6);
    let stream = libc::SOCK_STREAM;
    let first = TcpListener::bind((LOCAL, 0))?;
    let port = first.local_addr()?.port();
    let fd = socket(v4, stream)?;
    ensure!(errno(with_v4(&fd, LOCAL, port, libc::bind)) == libc::EADDRINUSE, "the same address");
    ensure!(errno(with_v4(&fd, Ipv4Addr::UNSPECIFIED, port, libc::bind)) == libc::EADDRINUSE, "any address");
    set(&fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, &1)?;
    ensure!(errno(with_v4(&fd, LOCAL, port, libc::bind)) == libc::EADDRINUSE, "SO_REUSEADDR beside a listener");
    with_v4(&fd, Ipv4Addr::new(127, 0, 0, 2), port, libc::bind).context("another address")?;
    ensure!(errno(with_v4(&fd, Ipv4Addr::new(127, 0, 0, 3), port, libc::bind)) == libc::EINVAL, "twice");
    let other = socket(v4, stream)?;
    ensure!(errno(with_v4(&other, Ipv4Addr::new(198, 51, 100, 1), 0, libc::bind)) == libc::EADDRNOTAVAIL, "not ours");
    ensure!(errno(with_v6(&other, Ipv6Addr::LOCALHOST, 0, libc::bind)) == libc::EAFNOSUPPORT, "another family");
    // Two that are not listening may share, until one does.
    let (a, b) = (socket(v4, stream)?, socket(v4, stream)?);
    for fd in [&a, &b] {
        set(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, &1)?;
    }
    with_v4(&a, LOCAL, 0, libc::bind)?;
    with_v4(&b, LOCAL, port_of(&a)?, libc::bind).context("SO_REUSEADDR of both")?;
    listen(&a, 1)?;
    ensure!(errno(listen(&b, 1)) == libc::EADDRINUSE, "both listen");
    // `::` is both families' unless it says otherwise.
    let both = socket(v6, stream)?;
    with_v6(&both, Ipv6Addr::UNSPECIFIED, 0, libc::bind)?;
    let port = port_of(&both)?;
    let fd = socket(v4, stream)?;
    ensure!(errno(with_v4(&fd, LOCAL, port, libc::bind)) == libc::EADDRINUSE, "beside ::");
    let only = socket(v6, stream)?;
    set(&only, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, &1)?;
    with_v6(&only, Ipv6Addr::UNSPECIFIED, 0, libc::bind)?;
    with_v4(&fd, Ipv4Addr::UNSPECIFIED, port_of(&only)?, libc::bind).context("beside :: of IPv6 only")?;
    ensure!(errno(set(&only, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, &0)) == libc::EINVAL, "changed its mind");
    // A port is free again when its last socket is closed; with SO_REUSEADDR, whatever became of its connections.
    let port = {
        let listener = TcpListener::bind((LOCAL, 0))?;
        let client = TcpStream::connect(listener.local_addr()?)?;
        let server = listener.accept()?.0;
        drop((server, client));
        listener.local_addr()?.port()
    };
    TcpListener::bind((LOCAL, port)).context("after its connections")?;
    Ok(())
}

fn reuseport_shares() -> Result<()> {
    const LISTENERS: usize = 3;
    const CLIENTS: usize = 60;
    let mut listeners = Vec::new();
    let mut port = 0;
    for _ in 0..LISTENERS {
        let fd = socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_NONBLOCK)?;
        set(&fd, libc::SOL_SOCKET, libc::SO_REUSEPORT, &1)?;
        with_v4(&fd, LOCAL, port, libc::bind)?;
        listen(&fd, 64)?;
        port = port_of(&fd)?;
        listeners.push(TcpListener::from(fd));
    }
    let alone = socket(libc::AF_INET, libc::SOCK_STREAM)?;
    ensure!(errno(with_v4(&alone, LOCAL, port, libc::bind)) == libc::EADDRINUSE, "one that does not share");
    let clients: Vec<TcpStream> = (0..CLIENTS).map(|_| TcpStream::connect((LOCAL, port))).collect::<io::Result<_>>()?;
    let mut counts = [0; LISTENERS];
    for (count, listener) in counts.iter_mut().zip(&listeners) {
        while listener.accept().is_ok() {
            *count += 1;
        }
    }
    ensure!(counts.iter().sum::<usize>() == clients.len() && counts.iter().all(|&n| n > 0), "they got {counts:?}");
    Ok(())
}

fn both_families() -> Result<()> {
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0))?;
    let port = listener.local_addr()?.port();
    let client = TcpStream::connect((LOCAL, port))?;
    let (server, from) = listener.accept()?;
    let mapped = SocketAddr::new(LOCAL.to_ipv6_mapped().into(), client.local_addr()?.port());
    ensure!(from == mapped && server.peer_addr()? == mapped, "the client is {from}");
    ensure!(server.local_addr()?.ip() == LOCAL.to_ipv6_mapped(), "the server is at {}", server.local_addr()?);
    // From a socket of IPv6 to a listener of IPv4.
    let listener = TcpListener::bind((LOCAL, 0))?;
    let port = listener.local_addr()?.port();
    let client = TcpStream::connect((LOCAL.to_ipv6_mapped(), port))?;
    let (_, from) = listener.accept()?;
    ensure!(from.ip() == LOCAL && client.local_addr()?.ip() == LOCAL.to_ipv6_mapped(), "{from}");
    let only = socket(libc::AF_INET6, libc::SOCK_STREAM)?;
    set(&only, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, &1)?;
    ensure!(errno(with_v6(&only, LOCAL.to_ipv6_mapped(), port, libc::connect)) == libc::ENETUNREACH, "IPv6 only");
    // To no address is to this host.
    TcpStream::connect((Ipv4Addr::UNSPECIFIED, port)).context("to 0.0.0.0")?;
    let datagrams = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))?;
    let sender = UdpSocket::bind((LOCAL, 0))?;
    sender.send_to(b"x", (LOCAL, datagrams.local_addr()?.port()))?;
    let (_, from) = datagrams.recv_from(&mut [0; 4])?;
    ensure!(from.ip() == LOCAL.to_ipv6_mapped(), "a datagram from {from}");
    datagrams.send_to(b"y", from)?;
    sender.recv_from(&mut [0; 4])?;
    Ok(())
}

fn ephemeral_ports_differ() -> Result<()> {
    let sockets: Vec<TcpListener> = (0..200).map(|_| TcpListener::bind((LOCAL, 0))).collect::<io::Result<_>>()?;
    let mut ports: Vec<u16> = sockets.iter().map(|s| s.local_addr().map(|a| a.port())).collect::<io::Result<_>>()?;
    let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")?;
    let range: Vec<u16> = range.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
    ensure!(ports.iter().all(|p| (range[0]..=range[1]).contains(p)), "{ports:?} are not in {range:?}");
    ports.sort_unstable();
    ports.dedup();
    ensure!(ports.len() == sockets.len(), "one was given twice");
    Ok(())
}

fn options() -> Result<()> {
    let (tcp, ip, ipv6) = (libc::IPPROTO_TCP, libc::IPPROTO_IP, libc::IPPROTO_IPV6);
    let (client, _server) = pair()?;
    let expected = [
        (libc::SOL_SOCKET, libc::SO_TYPE, libc::SOCK_STREAM),
        (libc::SOL_SOCKET, libc::SO_DOMAIN, libc::AF_INET),
        (libc::SOL_SOCKET, libc::SO_PROTOCOL, libc::IPPROTO_TCP),
        (tcp, libc::TCP_NODELAY, 0),
        (tcp, libc::TCP_CORK, 0),
        (tcp, libc::TCP_KEEPINTVL, 75),
        (tcp, libc::TCP_KEEPCNT, 9),
        (tcp, libc::TCP_USER_TIMEOUT, 0),
        (ip, libc::IP_TTL, 64),
        (ip, libc::IP_TOS, 0),
    ];
    for (level, option, value) in expected {
        ensure!(get(&client, level, option)? == value, "option {level}/{option} is {}", get(&client, level, option)?);
    }
    for (level, option, value) in [
        (tcp, libc::TCP_NODELAY, 1),
        (tcp, libc::TCP_CORK, 1),
        (tcp, libc::TCP_KEEPIDLE, 42),
        (tcp, libc::TCP_KEEPINTVL, 7),
        (tcp, libc::TCP_KEEPCNT, 3),
        (tcp, libc::TCP_QUICKACK, 1),
        (ip, libc::IP_TTL, 9),
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1),
    ] {
        set(&client, level, option, &value)?;
        ensure!(get(&client, level, option)? == value, "option {level}/{option} is {}", get(&client, level, option)?);
    }
    ensure!(errno(set(&client, tcp, libc::TCP_KEEPIDLE, &0)) == libc::EINVAL, "a bad value");
    ensure!(errno(get(&client, tcp, 9999)) == libc::ENOPROTOOPT, "an unknown option");
    ensure!(errno(get(&client, ipv6, libc::IPV6_V6ONLY)) != 0, "IPv6's of an IPv4 socket");
    ensure!(errno(get(&client, libc::IPPROTO_UDP, 1)) == libc::EOPNOTSUPP, "UDP's of a TCP socket");
    // Accepted sockets are as the listener is.
    let listener = TcpListener::bind((Ipv6Addr::LOCALHOST, 0))?;
    set(&listener, tcp, libc::TCP_NODELAY, &1)?;
    set(&listener, libc::SOL_SOCKET, libc::SO_RCVBUF, &30_000)?;
    let _client = TcpStream::connect(listener.local_addr()?)?;
    let (server, _) = listener.accept()?;
    ensure!(server.nodelay()? && get(&server, libc::SOL_SOCKET, libc::SO_RCVBUF)? == 60_000, "options are not inherited");
    ensure!(get(&server, ipv6, libc::IPV6_UNICAST_HOPS)? == 64, "hops");
    ensure!(get(&listener, libc::SOL_SOCKET, libc::SO_ACCEPTCONN)? == 1, "it does not say that it listens");
    Ok(())
}

fn tcp_info() -> Result<()> {
    let state = |fd: &TcpStream| -> io::Result<u8> {
        let mut info = [0u8; 104];
        let mut len = info.len() as libc::socklen_t;
        // SAFETY: both are alive during the call.
        checked(unsafe {
            libc::getsockopt(fd.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, info.as_mut_ptr().cast(), &raw mut len)
        })?;
        Ok(info[0])
    };
    const ESTABLISHED: u8 = 1;
    // Until the end of the stream has been acknowledged, and after.
    const ENDED: [u8; 2] = [4, 5];
    const CLOSE_WAIT: u8 = 8;
    let (client, server) = pair()?;
    ensure!(state(&client)? == ESTABLISHED && state(&server)? == ESTABLISHED, "open: {}", state(&client)?);
    client.shutdown(Shutdown::Write)?;
    wait_for(&server, libc::POLLRDHUP)?;
    ensure!(state(&server)? == CLOSE_WAIT, "the peer has ended: {}", state(&server)?);
    ensure!(ENDED.contains(&state(&client)?), "ended: {}", state(&client)?);
    Ok(())
}

fn sendfile() -> Result<()> {
    let name = std::env::temp_dir().join(format!("inet-sendfile-{}", std::process::id()));
    let data: Vec<u8> = (0..300_000u32).map(|i| (i % 251) as u8).collect();
    fs::write(&name, &data)?;
    let file = fs::File::open(&name);
    fs::remove_file(&name)?;
    let file = file?;
    let (client, mut server) = pair()?;
    let len = data.len();
    let sending = thread::spawn(move || -> io::Result<()> {
        let mut offset = 10;
        while (offset as usize) < len {
            let left = len - offset as usize;
            // SAFETY: the offset is alive during the call.
            let n = unsafe { libc::sendfile(client.as_raw_fd(), file.as_raw_fd(), &raw mut offset, left) };
            if n <= 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    });
    let mut got = Vec::new();
    server.read_to_end(&mut got)?;
    sending.join().expect("the sender panicked")?;
    ensure!(got == data[10..], "{} bytes, not those of the file", got.len());
    Ok(())
}

fn peek_waitall_and_discard() -> Result<()> {
    let (client, server) = pair()?;
    send(&client, b"abcdef", 0)?;
    let mut buf = [0; 10];
    wait_for(&server, libc::POLLIN)?;
    ensure!(recv(&server, &mut buf, libc::MSG_PEEK)? == 6 && recv(&server, &mut buf, libc::MSG_PEEK)? == 6, "peeking takes");
    // SAFETY: no memory is given.
    let n = unsafe { libc::recv(server.as_raw_fd(), std::ptr::null_mut(), 2, libc::MSG_TRUNC) };
    ensure!(n == 2, "MSG_TRUNC discards {n}: {}", io::Error::last_os_error());
    let later = thread::spawn(move || send(&client, b"ghijkl", 0).map(|_| client));
    ensure!(recv(&server, &mut buf, libc::MSG_WAITALL)? == 10 && &buf == b"cdefghijkl", "{buf:?}");
    let _client = later.join().expect("the sender panicked")?;
    ensure!(errno(recv(&server, &mut buf, libc::MSG_DONTWAIT)) == libc::EAGAIN, "there is more");
    ensure!(errno(recv(&server, &mut buf, libc::MSG_OOB)) == libc::EINVAL, "urgent data that nobody sent");
    Ok(())
}

fn shutdown_of_a_listener() -> Result<()> {
    let listener = TcpListener::bind((LOCAL, 0))?;
    let fd = listener.as_raw_fd();
    let accepting = thread::spawn(move || errno(listener.accept()));
    // Whichever comes first.
    // SAFETY: a plain system call.
    checked(unsafe { libc::shutdown(fd, libc::SHUT_RD) })?;
    let error = accepting.join().expect("the thread panicked");
    ensure!(error == libc::EINVAL, "accepting ends with {error}");
    Ok(())
}

fn datagrams() -> Result<()> {
    for ip in [SocketAddr::from((LOCAL, 0)), SocketAddr::from((Ipv6Addr::LOCALHOST, 0))] {
        let (a, b) = (UdpSocket::bind(ip)?, UdpSocket::bind(ip)?);
        let to = b.local_addr()?;
        for text in [&b"one"[..], b"", b"three"] {
            ensure!(a.send_to(text, to)? == text.len(), "{text:?} was not sent");
        }
        let mut buf = [0; 16];
        for text in [&b"one"[..], b"", b"three"] {
            let (n, from) = b.recv_from(&mut buf)?;
            ensure!(&buf[..n] == text && from == a.local_addr()?, "{:?} from {from}", &buf[..n]);
        }
        a.send_to(b"longer than the buffer", to)?;
        ensure!(recv(&b, &mut buf[..4], libc::MSG_TRUNC | libc::MSG_PEEK)? == 22, "its length is not told");
        ensure!(recv(&b, &mut buf[..4], 0)? == 4 && errno(recv(&b, &mut buf, libc::MSG_DONTWAIT)) == libc::EAGAIN, "the rest");
        let large = vec![9; 65_000];
        a.send_to(&large, to)?;
        let mut buf = vec![0; 65_536];
        ensure!(b.recv(&mut buf)? == large.len() && buf[..large.len()] == large[..], "a large one");
        ensure!(errno(a.send_to(&vec![0; 66_000], to)) == libc::EMSGSIZE, "too large a one");
    }
    let a = UdpSocket::bind((LOCAL, 0))?;
    ensure!(errno(a.send(b"x")) == libc::EDESTADDRREQ, "to nobody");
    ensure!(errno(a.send_to(b"x", (LOCAL, 0))) == libc::EINVAL, "to port 0");
    ensure!(errno(UdpSocket::bind(a.local_addr()?)) == libc::EADDRINUSE, "two at a port");
    Ok(())
}

fn datagrams_connected() -> Result<()> {
    let (b, c) = (UdpSocket::bind((LOCAL, 0))?, UdpSocket::bind((LOCAL, 0))?);
    // At a port it asks for: one that was chosen for it is given back when an association is dissolved.
    let port = UdpSocket::bind((LOCAL, 0))?.local_addr()?.port();
    let a = UdpSocket::bind((LOCAL, port))?;
    a.connect(b.local_addr()?)?;
    ensure!(a.peer_addr()? == b.local_addr()?, "its peer is {}", a.peer_addr()?);
    a.send(b"to the peer")?;
    let mut buf = [0; 32];
    ensure!(b.recv(&mut buf)? == 11, "nothing came");
    // Only the peer is heard.
    c.send_to(b"stranger", a.local_addr()?)?;
    b.send_to(b"peer", a.local_addr()?)?;
    ensure!(a.recv(&mut buf)? == 4 && &buf[..4] == b"peer", "the stranger was heard");
    // Dissolved, everybody is.
    // SAFETY: a structure of numbers may be zero, which is no family.
    let nobody: libc::sockaddr = unsafe { mem::zeroed() };
    // SAFETY: the address is alive during the call.
    checked(unsafe { libc::connect(a.as_raw_fd(), &raw const nobody, mem::size_of_val(&nobody) as _) })?;
    ensure!(errno(a.peer_addr()) == libc::ENOTCONN, "there still is a peer");
    c.send_to(b"anybody", a.local_addr()?)?;
    ensure!(a.recv(&mut buf)? == 7, "the association was not dissolved");
    // An address is chosen when one is needed.
    let fd = socket(libc::AF_INET, libc::SOCK_DGRAM)?;
    with_v4(&fd, LOCAL, b.local_addr()?.port(), libc::connect)?;
    let fd = UdpSocket::from(fd);
    ensure!(fd.local_addr()?.ip() == LOCAL && fd.local_addr()?.port() != 0, "it is at {}", fd.local_addr()?);
    Ok(())
}

fn datagrams_to_nobody() -> Result<()> {
    let gone = UdpSocket::bind((LOCAL, 0))?.local_addr()?;
    let a = UdpSocket::bind((LOCAL, 0))?;
    ensure!(a.send_to(b"x", gone)? == 1 && a.send_to(b"x", gone)? == 1, "one without a peer is told");
    a.connect(gone)?;
    a.send(b"x")?;
    wait_for(&a, libc::POLLERR)?;
    ensure!(errno(a.send(b"y")) == libc::ECONNREFUSED, "sending does not tell");
    a.send(b"z")?;
    wait_for(&a, libc::POLLERR)?;
    ensure!(errno(a.recv(&mut [0])) == libc::ECONNREFUSED, "receiving does not tell");
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
    ensure!((1..100).contains(&count), "{count} of 200 found room in 20,000 bytes");
    Ok(())
}

/// What `recvmsg` gives of control messages: level, kind, bytes.
pub fn receive_control(fd: &impl AsRawFd) -> io::Result<Vec<(i32, i32, Vec<u8>)>> {
    receive_all(fd, 0).map(|all| all.control)
}

/// What `recvmsg` gives.
pub struct Received {
    pub data: Vec<u8>,
    pub flags: i32,
    /// Of the address.
    pub name: Vec<u8>,
    /// Level, kind, bytes.
    pub control: Vec<(i32, i32, Vec<u8>)>,
}

/// One message with all that comes with it.
pub fn receive_all(fd: &impl AsRawFd, flags: i32) -> io::Result<Received> {
    let mut bytes = [0u8; 256];
    let mut name = [0u8; 128];
    let mut control = [0u64; 32];
    let mut iov = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: a structure of numbers and pointers may be zero.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = &raw mut iov;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = mem::size_of_val(&control);
    message.msg_name = name.as_mut_ptr().cast();
    message.msg_namelen = name.len() as libc::socklen_t;
    // SAFETY: all it points to is alive during the call.
    let n = checked(unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut message, flags) } as libc::c_int)?;
    let control: Vec<u8> = control.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let mut rest = &control[..message.msg_controllen];
    let mut told = Vec::new();
    while rest.len() >= 16 {
        let len = usize::from_ne_bytes(rest[..8].try_into().unwrap_or_default());
        let word = |at: usize| i32::from_ne_bytes(rest[at..at + 4].try_into().unwrap_or_default());
        told.push((word(8), word(12), rest[16..len].to_vec()));
        rest = rest.get(len.next_multiple_of(8)..).unwrap_or_default();
    }
    let (data, name) = (bytes[..n as usize].to_vec(), name[..message.msg_namelen as usize].to_vec());
    Ok(Received { data, flags: message.msg_flags, name, control: told })
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
    let of = |kind| told.iter().find(|(level, k, _)| (*level, *k) == (libc::IPPROTO_IP, kind)).map(|(_, _, bytes)| &bytes[..]);
    let info = of(libc::IP_PKTINFO).context("no packet information")?;
    ensure!(info[..4] == 1u32.to_ne_bytes() && info[8..12] == to.octets(), "it is {info:?}");
    ensure!(of(libc::IP_TTL) == Some(&33i32.to_ne_bytes()), "the time to live is {:?}", of(libc::IP_TTL));
    let b = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))?;
    set(&b, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, &1)?;
    let a = UdpSocket::bind((Ipv6Addr::LOCALHOST, 0))?;
    a.send_to(b"x", (Ipv6Addr::LOCALHOST, b.local_addr()?.port()))?;
    let told = receive_control(&b)?;
    let info = told.iter().find(|(level, kind, _)| (*level, *kind) == (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO));
    let (.., info) = info.context("no packet information of IPv6")?;
    ensure!(info[..16] == Ipv6Addr::LOCALHOST.octets() && info[16..20] == 1u32.to_ne_bytes(), "it is {info:?}");
    Ok(())
}

fn multicast() -> Result<()> {
    let group = Ipv4Addr::new(239, 1, 2, 3);
    let member = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    member.join_multicast_v4(&group, &LOCAL)?;
    ensure!(errno(member.join_multicast_v4(&group, &LOCAL)) == libc::EADDRINUSE, "joined twice");
    let sender = UdpSocket::bind((LOCAL, 0))?;
    set(&sender, libc::IPPROTO_IP, libc::IP_MULTICAST_IF, &LOCAL.octets())?;
    sender.send_to(b"to all", (group, member.local_addr()?.port()))?;
    let (n, from) = member.recv_from(&mut [0; 16])?;
    ensure!(n == 6 && from == sender.local_addr()?, "{n} bytes from {from}");
    member.leave_multicast_v4(&group, &LOCAL)?;
    ensure!(errno(member.leave_multicast_v4(&group, &LOCAL)) == libc::EADDRNOTAVAIL, "left twice");
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
    ensure!(flags & (libc::IFF_UP | libc::IFF_LOOPBACK) == libc::IFF_UP | libc::IFF_LOOPBACK, "flags {flags:x}");
    ensure!(ask(libc::SIOCGIFINDEX)?[..4] == 1i32.to_ne_bytes(), "its number");
    ensure!(ask(libc::SIOCGIFADDR)?[4..8] == [127, 0, 0, 1], "its address");
    ensure!(ask(libc::SIOCGIFNETMASK)?[4..8] == [255, 0, 0, 0], "its mask");
    // What the C library makes of it, by way of netlink.
    let mut list: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: the list is the library's until it is freed; each entry's strings and addresses are as the interface says.
    let found = unsafe {
        checked(libc::getifaddrs(&raw mut list))?;
        let mut found = Vec::new();
        let mut at = list;
        while let Some(entry) = at.as_ref() {
            let name = std::ffi::CStr::from_ptr(entry.ifa_name).to_string_lossy().into_owned();
            found.push((name, entry.ifa_addr.as_ref().map_or(0, |address| i32::from(address.sa_family))));
            at = entry.ifa_next;
        }
        libc::freeifaddrs(list);
        found
    };
    for family in [libc::AF_PACKET, libc::AF_INET, libc::AF_INET6] {
        ensure!(found.contains(&("lo".into(), family)), "no lo of family {family} in {found:?}");
    }
    // SAFETY: the name ends with a NUL.
    ensure!(unsafe { libc::if_nametoindex(c"lo".as_ptr()) } == 1, "lo has no number");
    Ok(())
}

fn shows_in_proc() -> Result<()> {
    let listener = TcpListener::bind((LOCAL, 0))?;
    let port = listener.local_addr()?.port();
    let client = TcpStream::connect((LOCAL, port))?;
    let udp = UdpSocket::bind((Ipv6Addr::LOCALHOST, 0))?;
    let rows = |file: &str| fs::read_to_string(format!("/proc/net/{file}")).with_context(|| file.to_owned());
    let tcp = rows("tcp")?;
    let listening = format!("0100007F:{port:04X} 00000000:0000 0A");
    ensure!(tcp.contains(&listening), "no {listening} in\n{tcp}");
    let connected = format!("0100007F:{:04X} 0100007F:{port:04X} 01", client.local_addr()?.port());
    ensure!(tcp.contains(&connected), "no {connected} in\n{tcp}");
    // SAFETY: a structure of numbers may be zero.
    let mut stat: libc::stat = unsafe { mem::zeroed() };
    // SAFETY: it is alive during the call.
    checked(unsafe { libc::fstat(listener.as_raw_fd(), &raw mut stat) })?;
    let row = tcp.lines().find(|row| row.contains(&listening)).context("the row")?;
    ensure!(row.split_whitespace().nth(9) == Some(&stat.st_ino.to_string()), "its number is not {} in {row}", stat.st_ino);
    let bound = format!("00000000000000000000000001000000:{:04X}", udp.local_addr()?.port());
    ensure!(rows("udp6")?.contains(&bound), "no {bound} in udp6");
    ensure!(rows("dev")?.contains("lo:"), "no lo in dev");
    ensure!(rows("if_inet6")?.contains("00000000000000000000000000000001 01 80 10 80       lo"), "no ::1 in if_inet6");
    ensure!(rows("route")?.starts_with("Iface\tDestination"), "route");
    ensure!(fs::read_to_string("/proc/sys/net/core/somaxconn")?.trim().parse::<u32>()? >= 128, "somaxconn");
    Ok(())
}

fn many_connections() -> Result<()> {
    const ROUNDS: usize = 300;
    let listener = TcpListener::bind((LOCAL, 0))?;
    let address = listener.local_addr()?;
    let serving = thread::spawn(move || -> io::Result<()> {
        for _ in 0..4 * ROUNDS {
            let (mut server, _) = listener.accept()?;
            let mut buf = [0; 8];
            server.read_exact(&mut buf)?;
            server.write_all(&buf)?;
        }
        Ok(())
    });
    let clients: Vec<_> = (0..4u32)
        .map(|who| {
            thread::spawn(move || -> Result<()> {
                for round in 0..ROUNDS as u32 {
                    let mut client = TcpStream::connect(address)?;
                    let text = [who.to_ne_bytes(), round.to_ne_bytes()].concat();
                    client.write_all(&text)?;
                    let mut answer = Vec::new();
                    client.read_to_end(&mut answer)?;
                    ensure!(answer == text, "{answer:?} for {text:?}");
                }
                Ok(())
            })
        })
        .collect();
    for client in clients {
        client.join().expect("a client panicked")?;
    }
    serving.join().expect("the server panicked")?;
    Ok(())
}

fn unreachable() -> Result<()> {
    // An address for documentation is nobody's, with or without a network. Where there is one, connecting may take long.
    let fd = socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_NONBLOCK)?;
    let error = errno(with_v4(&fd, Ipv4Addr::new(198, 51, 100, 7), 9, libc::connect));
    ensure!([libc::ENETUNREACH, libc::EINPROGRESS].contains(&error), "error {error}");
    let udp = UdpSocket::bind((LOCAL, 0))?;
    ensure!(errno(udp.send_to(b"x", (Ipv4Addr::BROADCAST, 9))) != 0, "a broadcast that was not asked for");
    let error = TcpStream::connect((Ipv4Addr::LOCALHOST, 0)).map_err(|e| e.kind());
    ensure!(error.err() == Some(ErrorKind::ConnectionRefused), "port 0");
    let raw = socket(libc::AF_INET, libc::SOCK_SEQPACKET);
    ensure!(errno(raw) == libc::ESOCKTNOSUPPORT, "packets in order");
    Ok(())
}
