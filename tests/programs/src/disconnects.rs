//! Sockets that are connected by other means than once and for all: dissolved (`connect(2)` to
//! `AF_UNSPEC`) and used again, connected by a message, connected to themselves.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;

use anyhow::{Result, ensure};

use crate::Check;
use crate::calls::{Fd, call, fails, is, pair};
use crate::inet_sockets::{LOCAL, port_of, raw_v4, set, socket, with_v4};

pub const CHECKS: &[(&str, Check)] = &[
    ("inet-disconnected-and-used-again", used_again),
    ("inet-datagrams-dissolved", dissolved),
    ("inet-disconnected-and-bound-to-any", bound_to_any),
    ("inet-connected-by-a-message", connected_by_a_message),
    ("inet-connected-to-itself", connected_to_itself),
];

/// A connection that is dissolved (`connect(2)` to `AF_UNSPEC`) ends with a reset, and its socket,
/// whether it began the connection, accepted it or listened, serves for another one.
fn used_again() -> Result<()> {
    let dissolve = |socket: i32| call!(SYS_connect, socket, [0u16; 8].as_ptr(), 16);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let to = listener.local_addr()?;
    let first = TcpStream::connect(to)?;
    let (mut accepted, _) = listener.accept()?;
    accepted.write_all(b"never read")?;
    is(dissolve(first.as_raw_fd()), 0, "dissolving the connection")?;
    let error = |stream: &TcpStream| -> Result<Option<i32>> {
        Ok(stream.take_error()?.and_then(|error| error.raw_os_error()))
    };
    ensure!(error(&first)? == Some(libc::ECONNRESET), "its error");
    ensure!(
        first
            .peer_addr()
            .is_err_and(|e| e.raw_os_error() == Some(libc::ENOTCONN)),
        "it has a peer"
    );
    let mut buf = [0; 16];
    ensure!(
        accepted
            .read(&mut buf)
            .is_err_and(|e| e.raw_os_error() == Some(libc::ECONNRESET)),
        "the other end knows nothing of the reset"
    );
    // What was under way belongs to the old connection.
    let SocketAddr::V4(v4) = to else {
        anyhow::bail!("{to}");
    };
    with_v4(&first, *v4.ip(), v4.port(), libc::connect)?;
    let (mut again, _) = listener.accept()?;
    again.write_all(b"two")?;
    let mut first = first;
    let n = first.read(&mut buf)?;
    ensure!(
        &buf[..n] == b"two",
        "the new connection brings {:?}",
        &buf[..n]
    );
    // The old peer's end concerns nobody any more.
    drop(accepted);
    first.write_all(b"back")?;
    let n = again.read(&mut buf)?;
    ensure!(&buf[..n] == b"back", "and takes {:?}", &buf[..n]);
    // The socket that was accepted becomes a listener.
    is(
        dissolve(again.as_raw_fd()),
        0,
        "dissolving the accepted one",
    )?;
    ensure!(error(&again)? == Some(libc::ECONNRESET), "its error");
    ensure!(
        first
            .read(&mut buf)
            .is_err_and(|e| e.raw_os_error() == Some(libc::ECONNRESET)),
        "the one that connected knows nothing of it"
    );
    with_v4(&again, Ipv4Addr::LOCALHOST, 0, libc::bind)?;
    is(call!(SYS_listen, again.as_raw_fd(), 3), 0, "listen")?;
    let port = again.local_addr()?.port();
    let mut third = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    let taken = call!(SYS_accept4, again.as_raw_fd(), 0, 0, libc::SOCK_CLOEXEC);
    let taken = Fd::new(taken, "accept4")?;
    third.write_all(b"yes")?;
    is(
        call!(SYS_read, taken.0, buf.as_mut_ptr(), 16),
        3,
        "what came",
    )?;
    // And a listener is none any more; what it accepted goes on.
    is(dissolve(again.as_raw_fd()), 0, "dissolving a listener")?;
    fails(
        call!(SYS_accept4, again.as_raw_fd(), 0, 0, libc::SOCK_NONBLOCK),
        libc::EINVAL,
        "accepting",
    )?;
    ensure!(
        TcpStream::connect((Ipv4Addr::LOCALHOST, port))
            .is_err_and(|e| e.raw_os_error() == Some(libc::ECONNREFUSED)),
        "it still listens"
    );
    third.write_all(b"more")?;
    is(
        call!(SYS_read, taken.0, buf.as_mut_ptr(), 16),
        4,
        "what came later",
    )?;
    // One that has no connection has none afterwards.
    is(dissolve(again.as_raw_fd()), 0, "dissolving nothing")?;
    ensure!(error(&again)?.is_none(), "an error of nothing");
    Ok(())
}

/// A socket that has no peer any more (`connect(2)` to `AF_UNSPEC`) hears everybody again, at the
/// address and port that it was bound to.
fn dissolved() -> Result<()> {
    let dissolve = |fd: i32| {
        is(
            call!(SYS_connect, fd, [0_u16; 8].as_ptr(), 16),
            0,
            "connect",
        )
    };
    let peer = UdpSocket::bind((LOCAL, 0))?;
    // A port that is asked for stays; another check may take the one that was found.
    let (all, free) = loop {
        let free = UdpSocket::bind((LOCAL, 0))?.local_addr()?.port();
        match UdpSocket::bind((Ipv4Addr::UNSPECIFIED, free)) {
            Ok(bound) => break (bound, free),
            Err(error) if error.kind() == ErrorKind::AddrInUse => {}
            Err(error) => return Err(error.into()),
        }
    };
    for _ in 0..2 {
        all.connect(peer.local_addr()?)?;
        ensure!(
            all.local_addr()? == SocketAddr::from((LOCAL, free)),
            "connected"
        );
        dissolve(all.as_raw_fd())?;
        ensure!(
            all.local_addr()? == SocketAddr::from((Ipv4Addr::UNSPECIFIED, free)),
            "dissolved: {}",
            all.local_addr()?
        );
        let gone = all.send(b"to whom").err().and_then(|e| e.raw_os_error());
        ensure!(gone == Some(libc::EDESTADDRREQ), "{gone:?}");
        let other = UdpSocket::bind((LOCAL, 0))?;
        other.send_to(b"hear me", (LOCAL, free))?;
        let mut buf = [0; 16];
        ensure!(all.recv_from(&mut buf)? == (7, other.local_addr()?));
    }
    // One that got its port by connecting gives it back.
    let fd = socket(libc::AF_INET, libc::SOCK_DGRAM)?;
    with_v4(&fd, LOCAL, peer.local_addr()?.port(), libc::connect)?;
    dissolve(fd.as_raw_fd())?;
    ensure!(UdpSocket::from(fd).local_addr()? == SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)));
    // Names of files do it as well.
    let [a, b] = pair(libc::SOCK_DGRAM)?;
    dissolve(a.0)?;
    fails(
        call!(SYS_write, a.0, c"x".as_ptr(), 1),
        libc::ENOTCONN,
        "without a peer",
    )?;
    drop(b);
    Ok(())
}

/// A stream socket that was bound to any address has the one of its route while it is connected,
/// and any afterwards: after it was dissolved, and after nobody answered.
fn bound_to_any() -> Result<()> {
    let listener = TcpListener::bind((LOCAL, 0))?;
    let port = listener.local_addr()?.port();
    let local = |fd: &std::os::fd::OwnedFd| -> Result<SocketAddr> {
        Ok(TcpStream::from(fd.try_clone()?).local_addr()?)
    };
    // A port that is asked for stays; another check may take the one that was found.
    let fd = loop {
        let free = TcpListener::bind((LOCAL, 0))?.local_addr()?.port();
        let fd = socket(libc::AF_INET, libc::SOCK_STREAM)?;
        match with_v4(&fd, Ipv4Addr::UNSPECIFIED, free, libc::bind) {
            Ok(()) => break fd,
            Err(error) if error.kind() == ErrorKind::AddrInUse => {}
            Err(error) => return Err(error.into()),
        }
    };
    let bound = local(&fd)?;
    ensure!(bound.ip().is_unspecified() && bound.port() != 0, "{bound}");
    for _ in 0..2 {
        with_v4(&fd, LOCAL, port, libc::connect)?;
        let connected = SocketAddr::from((LOCAL, bound.port()));
        ensure!(local(&fd)? == connected, "connected: {}", local(&fd)?);
        is(
            call!(SYS_connect, fd.as_raw_fd(), [0u16; 8].as_ptr(), 16),
            0,
            "dissolving",
        )?;
        ensure!(local(&fd)? == bound, "dissolved: {}", local(&fd)?);
    }
    // A port at which nobody listens, since it is this socket's.
    let silent = socket(libc::AF_INET, libc::SOCK_STREAM)?;
    with_v4(&silent, LOCAL, 0, libc::bind)?;
    let nobody = local(&silent)?.port();
    let refused = with_v4(&fd, LOCAL, nobody, libc::connect);
    ensure!(
        refused
            .as_ref()
            .is_err_and(|e| e.kind() == ErrorKind::ConnectionRefused),
        "{refused:?}"
    );
    ensure!(local(&fd)? == bound, "refused: {}", local(&fd)?);
    // It listens at any address, too.
    is(call!(SYS_listen, fd.as_raw_fd(), 1), 0, "listen")?;
    TcpStream::connect((Ipv4Addr::new(127, 0, 0, 2), bound.port()))?;
    Ok(())
}

/// `sendto(2)` with `MSG_FASTOPEN`.
fn send_first(socket: &OwnedFd, data: &[u8], flags: i32, to: Option<&libc::sockaddr_in>) -> i64 {
    let to = to.map_or(ptr::null(), ptr::from_ref);
    let len = if to.is_null() {
        0
    } else {
        size_of::<libc::sockaddr_in>()
    };
    call!(
        SYS_sendto,
        socket.as_raw_fd(),
        data.as_ptr(),
        data.len(),
        flags | libc::MSG_FASTOPEN,
        to,
        len
    )
}

/// A message that says so connects its socket first.
fn connected_by_a_message() -> Result<()> {
    let listener = TcpListener::bind((LOCAL, 0))?;
    let to = raw_v4(LOCAL, listener.local_addr()?.port());
    let stream = || socket(libc::AF_INET, libc::SOCK_STREAM);
    let client = stream()?;
    fails(
        send_first(&client, b"", 0, None),
        libc::EINVAL,
        "a first message to nobody",
    )?;
    let dissolved = libc::sockaddr_in {
        sin_family: libc::AF_UNSPEC as _,
        ..to
    };
    fails(
        send_first(&client, b"", 0, Some(&dissolved)),
        libc::EOPNOTSUPP,
        "a first message that dissolves",
    )?;
    is(
        send_first(&client, b"first", 0, Some(&to)),
        5,
        "a first message",
    )?;
    fails(
        send_first(&client, b"second", 0, Some(&to)),
        libc::EISCONN,
        "a second first message",
    )?;
    let (mut server, _) = listener.accept()?;
    drop(client);
    let mut text = String::new();
    server.read_to_string(&mut text)?;
    ensure!(text == "first", "the server got {text:?}");
    // Without waiting, nothing is sent before there is a connection.
    let client = stream()?;
    fails(
        send_first(&client, b"third", libc::MSG_DONTWAIT, Some(&to)),
        libc::EINPROGRESS,
        "a first message without waiting",
    )?;
    let (mut server, _) = listener.accept()?;
    drop(client);
    text.clear();
    server.read_to_string(&mut text)?;
    ensure!(text.is_empty(), "the server got {text:?}");
    // Messages without connections take no notice.
    let datagrams = UdpSocket::bind((LOCAL, 0))?;
    let to = raw_v4(LOCAL, datagrams.local_addr()?.port());
    let client = socket(libc::AF_INET, libc::SOCK_DGRAM)?;
    is(
        send_first(&client, b"datagram", 0, Some(&to)),
        8,
        "a datagram",
    )
}

/// A socket that is connected to its own address hears what it says; another one with that address
/// cannot do the same.
fn connected_to_itself() -> Result<()> {
    let bound = |port: u16| -> Result<OwnedFd> {
        let fd = socket(libc::AF_INET, libc::SOCK_STREAM)?;
        set(&fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, &1)?;
        with_v4(&fd, LOCAL, port, libc::bind)?;
        Ok(fd)
    };
    let first = bound(0)?;
    let port = port_of(&first)?;
    with_v4(&first, LOCAL, port, libc::connect)?;
    let mut stream = TcpStream::from(first);
    stream.write_all(b"echo")?;
    let mut buf = [0; 4];
    stream.read_exact(&mut buf)?;
    ensure!(&buf == b"echo", "it heard {buf:?}");
    let second = bound(port)?;
    let error = with_v4(&second, LOCAL, port, libc::connect);
    let error = error.err().and_then(|error| error.raw_os_error());
    ensure!(
        error == Some(libc::EADDRNOTAVAIL),
        "a second connection of the same: {error:?}"
    );
    is(
        call!(SYS_listen, second.as_raw_fd(), 0),
        0,
        "listening there",
    )
}
