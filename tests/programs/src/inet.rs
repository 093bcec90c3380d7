//! TCP and UDP over the loop: what a program on one host can see of `AF_INET` and `AF_INET6`.

use std::fs;
use std::io::{self, Read, Write};
use std::mem;
use std::net::{
    Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs, UdpSocket,
};
use std::os::fd::AsRawFd;
use std::thread;

use anyhow::{Context, Result, ensure};

use crate::inet_sockets::{
    LOCAL, UNUSED_PORT, get, listen, nonblocking, pair, port_of, set, socket, wait_for, with_v4,
    with_v6,
};
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
    ("inet-becomes-ipv4", becomes_ipv4),
    ("inet-ephemeral-ports-differ", ephemeral_ports_differ),
    ("inet-options", options),
    ("inet-tcp-info", tcp_info),
    ("inet-sendfile", sendfile),
    ("inet-peek-waitall-and-discard", peek_waitall_and_discard),
    ("inet-shutdown-of-a-listener", shutdown_of_a_listener),
    ("inet-shows-in-proc", shows_in_proc),
    ("inet-many-connections", many_connections),
];

fn stream_and_addresses() -> Result<()> {
    for (ip, any) in [
        ("127.0.0.1", "0.0.0.0"),
        ("127.9.8.7", "0.0.0.0"),
        ("::1", "::"),
    ] {
        let ip: std::net::IpAddr = ip.parse()?;
        for bound in [ip, any.parse()?] {
            let listener = TcpListener::bind(SocketAddr::new(bound, 0))?;
            let port = listener.local_addr()?.port();
            ensure!(
                port != 0 && listener.local_addr()?.ip() == bound,
                "bound to {:?}",
                listener.local_addr()?
            );
            let mut client = TcpStream::connect(SocketAddr::new(ip, port))?;
            let (mut server, from) = listener.accept()?;
            ensure!(
                client.peer_addr()? == SocketAddr::new(ip, port),
                "the client's peer is {:?}",
                client.peer_addr()?
            );
            ensure!(
                server.local_addr()? == client.peer_addr()?,
                "the server is at {:?}",
                server.local_addr()?
            );
            ensure!(
                client.local_addr()? == from && server.peer_addr()? == from,
                "the client is at {from:?}"
            );
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
    let local: Vec<SocketAddr> = ("localhost", 1)
        .to_socket_addrs()
        .context("localhost has no address")?
        .collect();
    ensure!(
        local.iter().all(|a| a.ip().is_loopback()),
        "localhost is {local:?}"
    );
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
        ensure!(
            got.iter().enumerate().all(|(i, &b)| b == pattern(i)),
            "the bytes are not those that were sent"
        );
        Ok(())
    };
    let (client, server) = pair()?;
    let other = thread::spawn(move || both(server));
    both(client)?;
    other.join().expect("the server panicked")
}

fn nobody_listens() -> Result<()> {
    let port = UNUSED_PORT;
    ensure!(
        errno(TcpStream::connect((LOCAL, port))) == libc::ECONNREFUSED,
        "IPv4"
    );
    ensure!(
        errno(TcpStream::connect((Ipv6Addr::LOCALHOST, port))) == libc::ECONNREFUSED,
        "IPv6"
    );
    // Bound is not listening; and a socket can be used again after a failure.
    let bound = socket(libc::AF_INET, libc::SOCK_STREAM)?;
    with_v4(&bound, LOCAL, 0, libc::bind)?;
    let fd = socket(libc::AF_INET, libc::SOCK_STREAM)?;
    ensure!(
        errno(with_v4(&fd, LOCAL, port_of(&bound)?, libc::connect)) == libc::ECONNREFUSED,
        "bound only"
    );
    let listener = TcpListener::bind((LOCAL, 0))?;
    with_v4(&fd, LOCAL, listener.local_addr()?.port(), libc::connect)?;
    ensure!(
        errno(with_v4(
            &fd,
            LOCAL,
            listener.local_addr()?.port(),
            libc::connect
        )) == libc::EISCONN,
        "twice"
    );
    let lonely = socket(libc::AF_INET, libc::SOCK_STREAM)?;
    ensure!(
        errno(recv(&lonely, &mut [0], 0)) == libc::ENOTCONN,
        "receiving without a connection"
    );
    ensure!(
        errno(send(&lonely, b"x", libc::MSG_NOSIGNAL)) == libc::EPIPE,
        "sending without a connection"
    );
    ensure!(
        // SAFETY: a plain system call.
        errno(checked(unsafe {
            libc::shutdown(lonely.as_raw_fd(), libc::SHUT_RDWR)
        })) == libc::ENOTCONN,
        "shutting"
    );
    Ok(())
}

fn connect_without_waiting() -> Result<()> {
    let listener = TcpListener::bind((LOCAL, 0))?;
    let port = listener.local_addr()?.port();
    let fd = socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_NONBLOCK)?;
    ensure!(
        errno(with_v4(&fd, LOCAL, port, libc::connect)) == libc::EINPROGRESS,
        "it does not say it is under way"
    );
    ensure!(
        wait_for(&fd, libc::POLLOUT)? == libc::POLLOUT,
        "connected, but {:x}",
        polled(&fd)?
    );
    ensure!(
        get(&fd, libc::SOL_SOCKET, libc::SO_ERROR)? == 0,
        "there is an error"
    );
    with_v4(&fd, LOCAL, port, libc::connect)
        .context("asked again, it does not say that it is done")?;
    ensure!(
        errno(with_v4(&fd, LOCAL, port, libc::connect)) == libc::EISCONN,
        "and again"
    );
    let fd = socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_NONBLOCK)?;
    let nobody = UNUSED_PORT;
    ensure!(
        errno(with_v4(&fd, LOCAL, nobody, libc::connect)) == libc::EINPROGRESS,
        "refused at once"
    );
    let events = wait_for(&fd, libc::POLLOUT)?;
    ensure!(
        events == libc::POLLOUT | libc::POLLERR | libc::POLLHUP,
        "refused: {events:x}"
    );
    ensure!(
        get(&fd, libc::SOL_SOCKET, libc::SO_ERROR)? == libc::ECONNREFUSED,
        "not told of it"
    );
    ensure!(
        get(&fd, libc::SOL_SOCKET, libc::SO_ERROR)? == 0,
        "told twice"
    );
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
        ensure!(
            client.join().expect("a client panicked")? == i + 100,
            "client {i} got another's answer"
        );
    }
    Ok(())
}

fn half_close() -> Result<()> {
    let (mut client, mut server) = pair()?;
    client.write_all(b"last")?;
    client.shutdown(Shutdown::Write)?;
    ensure!(
        errno(send(&client, b"x", libc::MSG_NOSIGNAL)) == libc::EPIPE,
        "it can still send"
    );
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
    ensure!(
        errno(recv(&client, &mut [0], 0)) == libc::ECONNRESET,
        "no word of the reset"
    );
    ensure!(recv(&client, &mut [0], 0)? == 0, "then no end");
    ensure!(
        errno(send(&client, b"x", libc::MSG_NOSIGNAL)) == libc::EPIPE,
        "it can still send"
    );
    ensure!(
        errno(client.peer_addr()) == libc::ENOTCONN,
        "there is a peer"
    );
    // Closed abruptly. What had arrived before is still there.
    let (client, server) = pair()?;
    send(&server, b"before", 0)?;
    set(
        &server,
        libc::SOL_SOCKET,
        libc::SO_LINGER,
        &libc::linger {
            l_onoff: 1,
            l_linger: 0,
        },
    )?;
    drop(server);
    wait_for(&client, libc::POLLHUP)?;
    let events = polled(&client)?;
    ensure!(
        events & (libc::POLLERR | libc::POLLHUP) == libc::POLLERR | libc::POLLHUP,
        "polled {events:x}"
    );
    ensure!(
        recv(&client, &mut [0; 16], 0)? == 6,
        "what was sent before is gone"
    );
    ensure!(
        get(&client, libc::SOL_SOCKET, libc::SO_ERROR)? == libc::ECONNRESET,
        "no error"
    );
    // A listener that goes resets who was not accepted.
    let listener = TcpListener::bind((LOCAL, 0))?;
    let client = TcpStream::connect(listener.local_addr()?)?;
    drop(listener);
    wait_for(&client, libc::POLLRDHUP)?;
    ensure!(
        errno(recv(&client, &mut [0], 0)) == libc::ECONNRESET,
        "not accepted, and not told"
    );
    Ok(())
}

fn write_after_close() -> Result<()> {
    let (client, server) = pair()?;
    drop(server);
    ensure!(
        wait_for(&client, libc::POLLRDHUP)? & libc::POLLHUP == 0,
        "hung up at once"
    );
    // The first is answered by a reset.
    ensure!(
        send(&client, b"x", libc::MSG_NOSIGNAL)? == 1,
        "the first write fails"
    );
    wait_for(&client, libc::POLLHUP)?;
    ensure!(
        errno(send(&client, b"x", libc::MSG_NOSIGNAL)) == libc::EPIPE,
        "the second does not"
    );
    ensure!(recv(&client, &mut [0], 0)? == 0, "no end");
    Ok(())
}

fn poll_states() -> Result<()> {
    let (in_, out, hup, rdhup) = (libc::POLLIN, libc::POLLOUT, libc::POLLHUP, libc::POLLRDHUP);
    let lonely = socket(libc::AF_INET, libc::SOCK_STREAM)?;
    ensure!(
        polled(&lonely)? == out | hup,
        "not connected: {:x}",
        polled(&lonely)?
    );
    let listener = TcpListener::bind((LOCAL, 0))?;
    ensure!(
        polled(&listener)? == 0,
        "listening: {:x}",
        polled(&listener)?
    );
    let client = TcpStream::connect(listener.local_addr()?)?;
    wait_for(&listener, in_)?;
    ensure!(
        polled(&listener)? == in_,
        "with a connection: {:x}",
        polled(&listener)?
    );
    let (server, _) = listener.accept()?;
    ensure!(
        polled(&listener)? == 0 && polled(&client)? == out,
        "idle: {:x}",
        polled(&client)?
    );
    send(&server, b"x", 0)?;
    wait_for(&client, in_)?;
    ensure!(
        polled(&client)? == in_ | out,
        "with data: {:x}",
        polled(&client)?
    );
    server.shutdown(Shutdown::Write)?;
    wait_for(&client, rdhup)?;
    ensure!(
        polled(&client)? == in_ | out | rdhup,
        "half closed: {:x}",
        polled(&client)?
    );
    client.shutdown(Shutdown::Write)?;
    wait_for(&client, hup)?;
    ensure!(
        polled(&client)? == in_ | out | rdhup | hup,
        "closed: {:x}",
        polled(&client)?
    );
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
    ensure!(
        sent > 100_000 && buf.iter().all(|&b| b == 7),
        "{sent} bytes fitted"
    );
    Ok(())
}

fn binding_rules() -> Result<()> {
    let (v4, v6) = (libc::AF_INET, libc::AF_INET6);
    let stream = libc::SOCK_STREAM;
    let first = TcpListener::bind((LOCAL, 0))?;
    let port = first.local_addr()?.port();
    let fd = socket(v4, stream)?;
    ensure!(
        errno(with_v4(&fd, LOCAL, port, libc::bind)) == libc::EADDRINUSE,
        "the same address"
    );
    ensure!(
        errno(with_v4(&fd, Ipv4Addr::UNSPECIFIED, port, libc::bind)) == libc::EADDRINUSE,
        "any address"
    );
    set(&fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, &1)?;
    ensure!(
        errno(with_v4(&fd, LOCAL, port, libc::bind)) == libc::EADDRINUSE,
        "SO_REUSEADDR beside a listener"
    );
    with_v4(&fd, Ipv4Addr::new(127, 0, 0, 2), port, libc::bind).context("another address")?;
    ensure!(
        errno(with_v4(&fd, Ipv4Addr::new(127, 0, 0, 3), port, libc::bind)) == libc::EINVAL,
        "twice"
    );
    let other = socket(v4, stream)?;
    ensure!(
        errno(with_v4(
            &other,
            Ipv4Addr::new(198, 51, 100, 1),
            0,
            libc::bind
        )) == libc::EADDRNOTAVAIL,
        "not ours"
    );
    ensure!(
        errno(with_v6(&other, Ipv6Addr::LOCALHOST, 0, libc::bind)) == libc::EAFNOSUPPORT,
        "another family"
    );
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
    ensure!(
        errno(with_v4(&fd, LOCAL, port, libc::bind)) == libc::EADDRINUSE,
        "beside ::"
    );
    let only = socket(v6, stream)?;
    set(&only, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, &1)?;
    with_v6(&only, Ipv6Addr::UNSPECIFIED, 0, libc::bind)?;
    with_v4(&fd, Ipv4Addr::UNSPECIFIED, port_of(&only)?, libc::bind)
        .context("beside :: of IPv6 only")?;
    ensure!(
        errno(set(&only, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, &0)) == libc::EINVAL,
        "changed its mind"
    );
    // A port is free again when its last socket is closed; with SO_REUSEADDR, whatever became of
    // its connections.
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
    ensure!(
        errno(with_v4(&alone, LOCAL, port, libc::bind)) == libc::EADDRINUSE,
        "one that does not share"
    );
    let clients: Vec<TcpStream> = (0..CLIENTS)
        .map(|_| TcpStream::connect((LOCAL, port)))
        .collect::<io::Result<_>>()?;
    let mut counts = [0; LISTENERS];
    for (count, listener) in counts.iter_mut().zip(&listeners) {
        while listener.accept().is_ok() {
            *count += 1;
        }
    }
    ensure!(
        counts.iter().sum::<usize>() == clients.len() && counts.iter().all(|&n| n > 0),
        "they got {counts:?}"
    );
    Ok(())
}

fn both_families() -> Result<()> {
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0))?;
    let port = listener.local_addr()?.port();
    let client = TcpStream::connect((LOCAL, port))?;
    let (server, from) = listener.accept()?;
    let mapped = SocketAddr::new(LOCAL.to_ipv6_mapped().into(), client.local_addr()?.port());
    ensure!(
        from == mapped && server.peer_addr()? == mapped,
        "the client is {from}"
    );
    ensure!(
        server.local_addr()?.ip() == LOCAL.to_ipv6_mapped(),
        "the server is at {}",
        server.local_addr()?
    );
    // From a socket of IPv6 to a listener of IPv4.
    let listener = TcpListener::bind((LOCAL, 0))?;
    let port = listener.local_addr()?.port();
    let client = TcpStream::connect((LOCAL.to_ipv6_mapped(), port))?;
    let (_, from) = listener.accept()?;
    ensure!(
        from.ip() == LOCAL && client.local_addr()?.ip() == LOCAL.to_ipv6_mapped(),
        "{from}"
    );
    let only = socket(libc::AF_INET6, libc::SOCK_STREAM)?;
    set(&only, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, &1)?;
    ensure!(
        errno(with_v6(&only, LOCAL.to_ipv6_mapped(), port, libc::connect)) == libc::ENETUNREACH,
        "IPv6 only"
    );
    // To no address is to this host.
    TcpStream::connect((Ipv4Addr::UNSPECIFIED, port)).context("to 0.0.0.0")?;
    let datagrams = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))?;
    let sender = UdpSocket::bind((LOCAL, 0))?;
    sender.send_to(b"x", (LOCAL, datagrams.local_addr()?.port()))?;
    let (_, from) = datagrams.recv_from(&mut [0; 4])?;
    ensure!(
        from.ip() == LOCAL.to_ipv6_mapped(),
        "a datagram from {from}"
    );
    datagrams.send_to(b"y", from)?;
    sender.recv_from(&mut [0; 4])?;
    Ok(())
}

/// A socket of IPv6 that talks to an IPv4 address can be made one of IPv4.
fn becomes_ipv4() -> Result<()> {
    const IPV6_ADDRFORM: libc::c_int = 1;
    let (v4, v6) = (libc::AF_INET, libc::AF_INET6);
    let form = |fd: &_, family: libc::c_int| set(fd, libc::IPPROTO_IPV6, IPV6_ADDRFORM, &family);
    let domain = |fd: &_| get(fd, libc::SOL_SOCKET, libc::SO_DOMAIN);
    let listener = TcpListener::bind((LOCAL, 0))?;
    let there = TcpListener::bind((Ipv6Addr::LOCALHOST, 0))?;
    let (port, there) = (listener.local_addr()?.port(), there.local_addr()?.port());
    for kind in [libc::SOCK_STREAM, libc::SOCK_DGRAM] {
        let fd = socket(v6, kind)?;
        ensure!(errno(form(&fd, v6)) == libc::EINVAL, "another family");
        ensure!(errno(form(&fd, v4)) == libc::ENOTCONN, "not connected");
        ensure!(
            errno(get(&fd, libc::IPPROTO_IPV6, IPV6_ADDRFORM)) == libc::ENOTCONN,
            "read while not connected"
        );
        with_v6(&fd, Ipv6Addr::LOCALHOST, there, libc::connect)?;
        ensure!(errno(form(&fd, v4)) == libc::EADDRNOTAVAIL, "of IPv6");
        let fd = socket(v6, kind)?;
        with_v6(&fd, LOCAL.to_ipv6_mapped(), port, libc::connect)?;
        ensure!(
            get(&fd, libc::IPPROTO_IPV6, IPV6_ADDRFORM)? == v6,
            "the family before"
        );
        form(&fd, v4)?;
        ensure!(domain(&fd)? == v4, "domain {}", domain(&fd)?);
        let (mut address, mut len) = ([0u8; 28], 28);
        // SAFETY: room for any address, and its length.
        checked(unsafe {
            libc::getpeername(fd.as_raw_fd(), address.as_mut_ptr().cast(), &raw mut len)
        })?;
        ensure!(
            len == 16
                && address[..2] == (v4 as u16).to_ne_bytes()
                && address[4..8] == [127, 0, 0, 1],
            "the peer is {address:?}"
        );
        ensure!(
            errno(form(&fd, v4)) == libc::ENOPROTOOPT,
            "it has options of IPv6 still"
        );
        if kind == libc::SOCK_STREAM {
            let (mut server, _) = listener.accept()?;
            send(&fd, b"text", 0)?;
            let mut text = [0; 4];
            server.read_exact(&mut text)?;
            ensure!(&text == b"text", "{text:?}");
        }
    }
    Ok(())
}

fn ephemeral_ports_differ() -> Result<()> {
    let sockets: Vec<TcpListener> = (0..200)
        .map(|_| TcpListener::bind((LOCAL, 0)))
        .collect::<io::Result<_>>()?;
    let mut ports: Vec<u16> = sockets
        .iter()
        .map(|s| s.local_addr().map(|a| a.port()))
        .collect::<io::Result<_>>()?;
    let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")?;
    let range: Vec<u16> = range
        .split_whitespace()
        .map(str::parse)
        .collect::<Result<_, _>>()?;
    ensure!(
        ports.iter().all(|p| (range[0]..=range[1]).contains(p)),
        "{ports:?} are not in {range:?}"
    );
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
        ensure!(
            get(&client, level, option)? == value,
            "option {level}/{option} is {}",
            get(&client, level, option)?
        );
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
        ensure!(
            get(&client, level, option)? == value,
            "option {level}/{option} is {}",
            get(&client, level, option)?
        );
    }
    ensure!(
        errno(set(&client, tcp, libc::TCP_KEEPIDLE, &0)) == libc::EINVAL,
        "a bad value"
    );
    ensure!(
        errno(get(&client, tcp, 9999)) == libc::ENOPROTOOPT,
        "an unknown option"
    );
    ensure!(
        errno(get(&client, ipv6, libc::IPV6_V6ONLY)) != 0,
        "IPv6's of an IPv4 socket"
    );
    ensure!(
        errno(get(&client, libc::IPPROTO_UDP, 1)) == libc::EOPNOTSUPP,
        "UDP's of a TCP socket"
    );
    // Accepted sockets are as the listener is.
    let listener = TcpListener::bind((Ipv6Addr::LOCALHOST, 0))?;
    set(&listener, tcp, libc::TCP_NODELAY, &1)?;
    set(&listener, libc::SOL_SOCKET, libc::SO_RCVBUF, &30_000)?;
    let _client = TcpStream::connect(listener.local_addr()?)?;
    let (server, _) = listener.accept()?;
    ensure!(
        server.nodelay()? && get(&server, libc::SOL_SOCKET, libc::SO_RCVBUF)? == 60_000,
        "options are not inherited"
    );
    ensure!(get(&server, ipv6, libc::IPV6_UNICAST_HOPS)? == 64, "hops");
    ensure!(
        get(&listener, libc::SOL_SOCKET, libc::SO_ACCEPTCONN)? == 1,
        "it does not say that it listens"
    );
    Ok(())
}

fn tcp_info() -> Result<()> {
    let state = |fd: &TcpStream| -> io::Result<u8> {
        let mut info = [0u8; 104];
        let mut len = info.len() as libc::socklen_t;
        // SAFETY: both are alive during the call.
        checked(unsafe {
            libc::getsockopt(
                fd.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                info.as_mut_ptr().cast(),
                &raw mut len,
            )
        })?;
        Ok(info[0])
    };
    const ESTABLISHED: u8 = 1;
    // Until the end of the stream has been acknowledged, and after.
    const ENDED: [u8; 2] = [4, 5];
    const CLOSE_WAIT: u8 = 8;
    let (client, server) = pair()?;
    ensure!(
        state(&client)? == ESTABLISHED && state(&server)? == ESTABLISHED,
        "open: {}",
        state(&client)?
    );
    client.shutdown(Shutdown::Write)?;
    wait_for(&server, libc::POLLRDHUP)?;
    ensure!(
        state(&server)? == CLOSE_WAIT,
        "the peer has ended: {}",
        state(&server)?
    );
    ensure!(
        ENDED.contains(&state(&client)?),
        "ended: {}",
        state(&client)?
    );
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
            let n = unsafe {
                libc::sendfile(client.as_raw_fd(), file.as_raw_fd(), &raw mut offset, left)
            };
            if n <= 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    });
    let mut got = Vec::new();
    server.read_to_end(&mut got)?;
    sending.join().expect("the sender panicked")?;
    ensure!(
        got == data[10..],
        "{} bytes, not those of the file",
        got.len()
    );
    Ok(())
}

fn peek_waitall_and_discard() -> Result<()> {
    let (client, server) = pair()?;
    send(&client, b"abcdef", 0)?;
    let mut buf = [0; 10];
    wait_for(&server, libc::POLLIN)?;
    ensure!(
        recv(&server, &mut buf, libc::MSG_PEEK)? == 6
            && recv(&server, &mut buf, libc::MSG_PEEK)? == 6,
        "peeking takes"
    );
    // SAFETY: no memory is given.
    let n = unsafe { libc::recv(server.as_raw_fd(), std::ptr::null_mut(), 2, libc::MSG_TRUNC) };
    ensure!(
        n == 2,
        "MSG_TRUNC discards {n}: {}",
        io::Error::last_os_error()
    );
    let later = thread::spawn(move || send(&client, b"ghijkl", 0).map(|_| client));
    ensure!(
        recv(&server, &mut buf, libc::MSG_WAITALL)? == 10 && &buf == b"cdefghijkl",
        "{buf:?}"
    );
    let _client = later.join().expect("the sender panicked")?;
    ensure!(
        errno(recv(&server, &mut buf, libc::MSG_DONTWAIT)) == libc::EAGAIN,
        "there is more"
    );
    ensure!(
        errno(recv(&server, &mut buf, libc::MSG_OOB)) == libc::EINVAL,
        "urgent data that nobody sent"
    );
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

fn shows_in_proc() -> Result<()> {
    let listener = TcpListener::bind((LOCAL, 0))?;
    let port = listener.local_addr()?.port();
    let client = TcpStream::connect((LOCAL, port))?;
    let udp = UdpSocket::bind((Ipv6Addr::LOCALHOST, 0))?;
    let rows = |file: &str| {
        fs::read_to_string(format!("/proc/net/{file}")).with_context(|| file.to_owned())
    };
    let tcp = rows("tcp")?;
    let listening = format!("0100007F:{port:04X} 00000000:0000 0A");
    ensure!(tcp.contains(&listening), "no {listening} in\n{tcp}");
    let connected = format!(
        "0100007F:{:04X} 0100007F:{port:04X} 01",
        client.local_addr()?.port()
    );
    ensure!(tcp.contains(&connected), "no {connected} in\n{tcp}");
    // SAFETY: a structure of numbers may be zero.
    let mut stat: libc::stat = unsafe { mem::zeroed() };
    // SAFETY: it is alive during the call.
    checked(unsafe { libc::fstat(listener.as_raw_fd(), &raw mut stat) })?;
    let row = tcp
        .lines()
        .find(|row| row.contains(&listening))
        .context("the row")?;
    ensure!(
        row.split_whitespace().nth(9) == Some(&stat.st_ino.to_string()),
        "its number is not {} in {row}",
        stat.st_ino
    );
    let bound = format!(
        "00000000000000000000000001000000:{:04X}",
        udp.local_addr()?.port()
    );
    ensure!(rows("udp6")?.contains(&bound), "no {bound} in udp6");
    ensure!(rows("dev")?.contains("lo:"), "no lo in dev");
    ensure!(
        rows("if_inet6")?.contains("00000000000000000000000000000001 01 80 10 80       lo"),
        "no ::1 in if_inet6"
    );
    ensure!(rows("route")?.starts_with("Iface\tDestination"), "route");
    ensure!(
        fs::read_to_string("/proc/sys/net/core/somaxconn")?
            .trim()
            .parse::<u32>()?
            >= 128,
        "somaxconn"
    );
    Ok(())
}

fn many_connections() -> Result<()> {
    const ROUNDS: usize = 120;
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
