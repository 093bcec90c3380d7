//! Bytes that wait for more: `MSG_MORE`, `UDP_CORK`, `TCP_CORK`.

use std::io::Write;
use std::net::{Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;

use anyhow::{Context, Result, ensure};

use crate::Check;
use crate::calls::{call, fails, is};
use crate::inet_sockets::LOCAL;

pub const CHECKS: &[(&str, Check)] = &[
    ("corks-of-datagrams", of_datagrams),
    ("corks-of-streams", of_streams),
    ("corks-of-streams-end", of_streams_end),
];

const UDP_CORK: i32 = 1;
const TIOCOUTQ: usize = 0x5411;
const SIOCOUTQNSD: usize = 0x894b;

fn send(socket: &impl AsRawFd, bytes: &[u8], flags: i32) -> i64 {
    call!(
        SYS_sendto,
        socket.as_raw_fd(),
        bytes.as_ptr(),
        bytes.len(),
        flags,
        0,
        0
    )
}

fn send_to(socket: &UdpSocket, bytes: &[u8], flags: i32, port: u16) -> i64 {
    let mut address = [0u8; 16];
    address[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
    address[2..4].copy_from_slice(&port.to_be_bytes());
    address[4..8].copy_from_slice(&LOCAL.octets());
    call!(
        SYS_sendto,
        socket.as_raw_fd(),
        bytes.as_ptr(),
        bytes.len(),
        flags,
        address.as_ptr(),
        address.len()
    )
}

/// Receives what there is now: bytes, or the negated error.
fn receive(socket: &impl AsRawFd) -> Result<Vec<u8>, i64> {
    let mut bytes = vec![0u8; 70_000];
    let n = call!(
        SYS_recvfrom,
        socket.as_raw_fd(),
        bytes.as_mut_ptr(),
        bytes.len(),
        libc::MSG_DONTWAIT,
        0,
        0
    );
    if n < 0 {
        return Err(n);
    }
    bytes.truncate(n as usize);
    Ok(bytes)
}

fn nothing(socket: &impl AsRawFd, what: &str) -> Result<()> {
    let got = receive(socket);
    ensure!(
        got == Err(-i64::from(libc::EAGAIN)),
        "{what}: there is {got:?}"
    );
    Ok(())
}

fn gets(socket: &impl AsRawFd, bytes: &[u8], what: &str) -> Result<()> {
    let got = receive(socket);
    ensure!(got.as_deref() == Ok(bytes), "{what}: {got:?}");
    Ok(())
}

fn set(socket: &impl AsRawFd, level: i32, option: i32, value: i32) -> Result<()> {
    is(
        call!(
            SYS_setsockopt,
            socket.as_raw_fd(),
            level,
            option,
            &raw const value,
            4
        ),
        0,
        "setsockopt",
    )
}

fn queued(socket: &impl AsRawFd, request: usize) -> Result<i32> {
    let mut bytes = -1i32;
    is(
        call!(SYS_ioctl, socket.as_raw_fd(), request, &raw mut bytes),
        0,
        "ioctl",
    )?;
    Ok(bytes)
}

fn of_datagrams() -> Result<()> {
    for ip in [
        SocketAddr::from((LOCAL, 0)),
        SocketAddr::from((Ipv6Addr::LOCALHOST, 0)),
    ] {
        let (a, b) = (UdpSocket::bind(ip)?, UdpSocket::bind(ip)?);
        a.connect(b.local_addr()?)?;
        is(send(&a, b"one ", libc::MSG_MORE), 4, "MSG_MORE")?;
        is(send(&a, b"two ", libc::MSG_MORE), 4, "MSG_MORE again")?;
        nothing(&b, "more is to come")?;
        ensure!(queued(&a, TIOCOUTQ)? > 0, "what waits is not counted");
        is(send(&a, b"three", 0), 5, "the last")?;
        gets(&b, b"one two three", "one datagram")?;
        nothing(&b, "of three parts")?;

        set(&a, libc::IPPROTO_UDP, UDP_CORK, 1)?;
        is(a.send(b"x")? as i64, 1, "corked")?;
        is(send(&a, b"y", 0), 1, "corked")?;
        nothing(&b, "UDP_CORK")?;
        set(&a, libc::IPPROTO_UDP, UDP_CORK, 0)?;
        gets(&b, b"xy", "the end of UDP_CORK")?;

        // What goes before is not sent apart; an end without bytes is one, too.
        is(send(&a, b"z", libc::MSG_MORE), 1, "MSG_MORE")?;
        is(send(&a, b"", 0), 0, "the end")?;
        gets(&b, b"z", "ended by nothing")?;

        // Too long a one is lost as a whole.
        let long = vec![7; 60_000];
        is(send(&a, &long, libc::MSG_MORE), 60_000, "a long part")?;
        fails(send(&a, &long, 0), libc::EMSGSIZE, "too long")?;
        nothing(&b, "too long")?;
        is(send(&a, b"short", 0), 5, "after that")?;
        gets(&b, b"short", "after that")?;

        // One that is not finished is not sent.
        is(send(&a, b"never", libc::MSG_MORE), 5, "MSG_MORE")?;
        drop(a);
        nothing(&b, "the socket is closed")?;
    }
    // It goes where its first part was to go.
    let (a, b, c) = (
        UdpSocket::bind((LOCAL, 0))?,
        UdpSocket::bind((LOCAL, 0))?,
        UdpSocket::bind((LOCAL, 0))?,
    );
    let (to_b, to_c) = (b.local_addr()?.port(), c.local_addr()?.port());
    is(send_to(&a, b"to ", libc::MSG_MORE, to_b), 3, "to one")?;
    is(send_to(&a, b"b", 0, to_c), 1, "to another")?;
    gets(&b, b"to b", "the first destination")?;
    nothing(&c, "the second")
}

fn connection() -> Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((LOCAL, 0))?;
    let client = TcpStream::connect(listener.local_addr()?)?;
    let (server, _) = listener.accept()?;
    Ok((client, server))
}

fn of_streams() -> Result<()> {
    let (mut client, server) = connection()?;
    let tcp = libc::IPPROTO_TCP;
    is(send(&client, b"ab", libc::MSG_MORE), 2, "MSG_MORE")?;
    is(queued(&client, SIOCOUTQNSD)?.into(), 2, "SIOCOUTQNSD")?;
    is(queued(&client, TIOCOUTQ)?.into(), 2, "SIOCOUTQ")?;
    is(send(&client, b"c", 0), 1, "the last")?;
    gets(&server, b"abc", "after the last")?;

    set(&client, tcp, libc::TCP_CORK, 1)?;
    client.write_all(b"one ")?;
    client.write_all(b"two")?;
    set(&client, tcp, libc::TCP_CORK, 0)?;
    gets(&server, b"one two", "the end of TCP_CORK")?;

    set(&client, tcp, libc::TCP_CORK, 1)?;
    client.write_all(b"pushed")?;
    set(&client, tcp, libc::TCP_NODELAY, 1)?;
    gets(&server, b"pushed", "TCP_NODELAY")?;
    set(&client, tcp, libc::TCP_NODELAY, 0)?;

    // What is enough for a segment goes out at once.
    let large = vec![3; 100_000];
    is(send(&client, &large, libc::MSG_DONTWAIT), 100_000, "much")?;
    let first = receive(&server).map_err(|e| anyhow::anyhow!("{e}"))?;
    ensure!(
        !first.is_empty() && first.len() <= large.len(),
        "{} bytes of {}",
        first.len(),
        large.len()
    );
    client.shutdown(Shutdown::Write)?;
    let mut all = first;
    while let Ok(more) = receive(&server)
        && !more.is_empty()
    {
        all.extend(more);
    }
    ensure!(all == large, "{} bytes of {}", all.len(), large.len());
    Ok(())
}

fn of_streams_end() -> Result<()> {
    // The end of the stream comes behind what was held back.
    for close in [false, true] {
        let (client, server) = connection()?;
        set(&client, libc::IPPROTO_TCP, libc::TCP_CORK, 1)?;
        is(send(&client, b"last words", 0), 10, "corked")?;
        if close {
            drop(client);
        } else {
            client.shutdown(Shutdown::Write)?;
        }
        gets(&server, b"last words", "before the end")?;
        gets(&server, b"", "the end")?;
    }
    // Nobody waits for ever: a while later it is sent, whatever is to come.
    let (client, server) = connection()?;
    is(send(&client, b"in time", libc::MSG_MORE), 7, "MSG_MORE")?;
    let mut buf = [0u8; 16];
    let n = std::io::Read::read(&mut &server, &mut buf).context("waiting")?;
    ensure!(&buf[..n] == b"in time", "{:?}", &buf[..n]);
    Ok(())
}
