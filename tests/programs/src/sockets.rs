//! `AF_UNIX` sockets: streams, datagrams, packets, what travels beside the bytes, and readiness.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener, UnixStream};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::scm_rights::receive_with;
use crate::{Check, checked};

pub const CHECKS: &[(&str, Check)] = &[
    ("sockets-stream-by-path", stream_by_path),
    ("sockets-stream-abstract", stream_abstract),
    ("sockets-stream-of-8-mib", stream_of_8_mib),
    ("sockets-names-and-errors", names_and_errors),
    ("sockets-datagrams", datagrams),
    ("sockets-datagram-queue-fills", datagram_queue_fills),
    (
        "sockets-packets-keep-their-bounds",
        packets_keep_their_bounds,
    ),
    ("sockets-backlog-fills", backlog_fills),
    ("sockets-end-of-stream", end_of_stream),
    ("sockets-reset", reset),
    ("sockets-peek-and-waitall", peek_and_waitall),
    ("sockets-options", options),
    ("sockets-timeouts", timeouts),
    ("sockets-poll-and-epoll", poll_and_epoll),
    ("sockets-many-messages", many_messages),
    ("sockets-show-in-proc", show_in_proc),
];

/// A name in the file system that nobody has; what is there is removed when dropped.
struct Name(PathBuf);

impl Name {
    fn new(what: &str) -> Self {
        let path = std::env::temp_dir().join(format!("sockets-{}-{what}", std::process::id()));
        let _ = fs::remove_file(&path);
        Self(path)
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

pub fn pair(kind: libc::c_int) -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [0; 2];
    // SAFETY: `socketpair` fills the two numbers, which belong to nobody else.
    unsafe {
        checked(libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()))?;
        Ok((OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])))
    }
}

pub fn socket(kind: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: the new number belongs to nobody else.
    unsafe {
        Ok(OwnedFd::from_raw_fd(checked(libc::socket(
            libc::AF_UNIX,
            kind,
            0,
        ))?))
    }
}

/// The bytes of an abstract name's address.
pub fn abstract_address(name: &str) -> (libc::sockaddr_un, libc::socklen_t) {
    // SAFETY: a structure of numbers may be zero.
    let mut address: libc::sockaddr_un = unsafe { mem::zeroed() };
    address.sun_family = libc::AF_UNIX as _;
    for (to, from) in address.sun_path[1..].iter_mut().zip(name.bytes()) {
        *to = from as _;
    }
    (
        address,
        (mem::size_of::<libc::sa_family_t>() + 1 + name.len()) as _,
    )
}

pub fn with_address(
    fd: &impl AsRawFd,
    name: &str,
    call: unsafe extern "C" fn(libc::c_int, *const libc::sockaddr, libc::socklen_t) -> libc::c_int,
) -> io::Result<()> {
    let (address, len) = abstract_address(name);
    // SAFETY: the address is alive during the call.
    checked(unsafe { call(fd.as_raw_fd(), (&raw const address).cast(), len) }).map(drop)
}

pub fn send(fd: &impl AsRawFd, data: &[u8], flags: libc::c_int) -> io::Result<usize> {
    // SAFETY: the slice is alive during the call.
    let n = unsafe { libc::send(fd.as_raw_fd(), data.as_ptr().cast(), data.len(), flags) };
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

pub fn recv(fd: &impl AsRawFd, buf: &mut [u8], flags: libc::c_int) -> io::Result<usize> {
    // SAFETY: the slice is alive during the call.
    let n = unsafe { libc::recv(fd.as_raw_fd(), buf.as_mut_ptr().cast(), buf.len(), flags) };
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

pub fn errno<T>(result: io::Result<T>) -> i32 {
    result.err().and_then(|e| e.raw_os_error()).unwrap_or(0)
}

pub fn option(fd: &impl AsRawFd, option: libc::c_int) -> io::Result<i32> {
    let mut value = 0i32;
    let mut len = 4;
    // SAFETY: both are alive during the call.
    checked(unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            (&raw mut value).cast(),
            &raw mut len,
        )
    })?;
    Ok(value)
}

pub fn set_option(fd: &impl AsRawFd, option: libc::c_int, value: i32) -> io::Result<()> {
    // SAFETY: the value is alive during the call.
    checked(unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            (&raw const value).cast(),
            4,
        )
    })
    .map(drop)
}

fn echo(listener: UnixListener) -> thread::JoinHandle<io::Result<()>> {
    thread::spawn(move || {
        let (mut stream, _) = listener.accept()?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        stream.write_all(text.to_uppercase().as_bytes())
    })
}

fn talk(mut stream: UnixStream) -> Result<()> {
    stream.write_all(b"hello")?;
    stream.shutdown(std::net::Shutdown::Write)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    ensure!(answer == "HELLO", "the answer is {answer:?}");
    Ok(())
}

fn stream_by_path() -> Result<()> {
    let name = Name::new("stream");
    let listener = UnixListener::bind(&name.0)?;
    ensure!(
        fs::metadata(&name.0)?.file_type().is_socket(),
        "the name is not a socket's"
    );
    ensure!(
        listener.local_addr()?.as_pathname() == Some(name.0.as_path()),
        "{:?}",
        listener.local_addr()?
    );
    ensure!(
        errno(File::open(&name.0)) == libc::ENXIO,
        "a socket can be opened"
    );
    ensure!(
        errno(UnixListener::bind(&name.0)) == libc::EADDRINUSE,
        "a name was bound twice"
    );
    let server = echo(listener);
    let stream = UnixStream::connect(&name.0)?;
    ensure!(
        stream.peer_addr()?.as_pathname() == Some(name.0.as_path()),
        "{:?}",
        stream.peer_addr()?
    );
    ensure!(
        stream.local_addr()?.is_unnamed(),
        "{:?}",
        stream.local_addr()?
    );
    talk(stream)?;
    server.join().expect("the server panicked")?;
    // The name outlives the socket, but nobody answers.
    ensure!(
        errno(UnixStream::connect(&name.0)) == libc::ECONNREFUSED,
        "a dead name answers"
    );
    fs::remove_file(&name.0)?;
    ensure!(
        errno(UnixStream::connect(&name.0)) == libc::ENOENT,
        "a removed name is there"
    );
    Ok(())
}

fn stream_abstract() -> Result<()> {
    let address = SocketAddr::from_abstract_name(format!("machine-tests-{}", std::process::id()))?;
    let listener = UnixListener::bind_addr(&address)?;
    ensure!(
        errno(UnixListener::bind_addr(&address)) == libc::EADDRINUSE,
        "a name was bound twice"
    );
    let server = echo(listener);
    talk(UnixStream::connect_addr(&address)?)?;
    server.join().expect("the server panicked")?;
    ensure!(
        errno(UnixStream::connect_addr(&address)) == libc::ECONNREFUSED,
        "the name is still there"
    );
    Ok(())
}

fn stream_of_8_mib() -> Result<()> {
    const SIZE: usize = 8 << 20;
    let (mut a, mut b) = UnixStream::pair()?;
    let data: Vec<u8> = (0..SIZE).map(|i| (i * 7 + (i >> 8)) as u8).collect();
    let sent = data.clone();
    let sender = thread::spawn(move || {
        // Pieces of many sizes.
        let mut rest = &sent[..];
        let mut size = 1;
        while !rest.is_empty() {
            let n = rest.len().min(size);
            a.write_all(&rest[..n])?;
            rest = &rest[n..];
            size = size * 3 % 300_007 + 1;
        }
        Ok::<(), io::Error>(())
    });
    let mut received = Vec::new();
    b.read_to_end(&mut received)?;
    sender.join().expect("the sender panicked")?;
    ensure!(
        received == data,
        "{} bytes arrived, or others",
        received.len()
    );
    Ok(())
}

fn names_and_errors() -> Result<()> {
    let name = format!("names-{}", std::process::id());
    let stream = socket(libc::SOCK_STREAM)?;
    ensure!(
        errno(with_address(&stream, &name, libc::connect)) == libc::ECONNREFUSED,
        "connect to nobody"
    );
    ensure!(
        errno(send(&stream, b"x", libc::MSG_NOSIGNAL)) == libc::ENOTCONN,
        "send while not connected"
    );
    ensure!(
        errno(recv(&stream, &mut [0], 0)) == libc::EINVAL,
        "receive while not connected"
    );
    // SAFETY: a plain system call.
    let listened = checked(unsafe { libc::listen(stream.as_raw_fd(), 1) });
    ensure!(errno(listened) == libc::EINVAL, "listen without a name");
    with_address(&stream, &name, libc::bind)?;
    ensure!(
        errno(with_address(&stream, &name, libc::bind)) == libc::EINVAL,
        "bind twice"
    );
    let other = socket(libc::SOCK_DGRAM)?;
    ensure!(
        errno(with_address(&other, &name, libc::connect)) == libc::ECONNREFUSED,
        "abstract names are not each type's own"
    );
    let path = Name::new("types");
    let _listener = UnixListener::bind(&path.0)?;
    let datagram = UnixDatagram::unbound()?;
    ensure!(
        errno(datagram.connect(&path.0)) == libc::EPROTOTYPE,
        "a datagram socket connects to a stream"
    );
    // SAFETY: plain system calls; the null address is not looked at.
    let accepted = checked(unsafe {
        libc::accept4(
            stream.as_raw_fd(),
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            0,
        )
    });
    ensure!(errno(accepted) == libc::EINVAL, "accept without listening");
    ensure!(
        errno(with_address(&stream, &name, libc::connect)) == libc::ECONNREFUSED,
        "connect to one that does not listen"
    );
    // An address of a family alone: the kernel chooses five digits.
    let auto = socket(libc::SOCK_DGRAM)?;
    let (address, _) = abstract_address("");
    // SAFETY: the address is alive during the call.
    checked(unsafe { libc::bind(auto.as_raw_fd(), (&raw const address).cast(), 2) })?;
    let bound = UnixDatagram::from(auto).local_addr()?;
    ensure!(
        bound.as_abstract_name().is_some_and(|name| name.len() == 5),
        "autobind gave {bound:?}"
    );
    ensure!(
        errno(send(&File::open("/dev/null")?, b"x", 0)) == libc::ENOTSOCK,
        "a file was sent through"
    );
    // SAFETY: a plain system call.
    let family = checked(unsafe { libc::socket(9999, libc::SOCK_STREAM, 0) });
    ensure!(errno(family) == libc::EAFNOSUPPORT, "an unknown family");
    Ok(())
}

fn datagrams() -> Result<()> {
    let (server_name, client_name) = (Name::new("server"), Name::new("client"));
    let server = UnixDatagram::bind(&server_name.0)?;
    let client = UnixDatagram::bind(&client_name.0)?;
    client.send_to(b"one", &server_name.0)?;
    client.connect(&server_name.0)?;
    client.send(b"")?;
    client.send(b"three")?;
    let mut buf = [0; 4];
    let (n, from) = server.recv_from(&mut buf)?;
    ensure!(
        &buf[..n] == b"one" && from.as_pathname() == Some(client_name.0.as_path()),
        "{n} bytes from {from:?}"
    );
    ensure!(
        server.recv_from(&mut buf)?.0 == 0,
        "an empty datagram has bytes"
    );
    ensure!(
        server.recv(&mut buf)? == 4 && &buf == b"thre",
        "a long datagram is not cut: {buf:?}"
    );
    server.send_to(b"back", &client_name.0)?;
    ensure!(
        client.recv(&mut buf)? == 4 && &buf == b"back",
        "the answer is {buf:?}"
    );
    // Somebody else may not write to a socket that talks to another.
    let stranger = UnixDatagram::unbound()?;
    ensure!(
        errno(stranger.send_to(b"x", &client_name.0)) == libc::EPERM,
        "a stranger was heard"
    );
    stranger.send_to(b"anonymous", &server_name.0)?;
    let (_, from) = server.recv_from(&mut buf)?;
    ensure!(from.is_unnamed(), "a nameless sender is called {from:?}");
    stranger.send_to(b"12345", &server_name.0)?;
    ensure!(
        recv(&server, &mut buf, libc::MSG_TRUNC)? == 5,
        "MSG_TRUNC does not tell the length"
    );
    drop(server);
    ensure!(
        errno(client.send(b"x")) == libc::ECONNREFUSED,
        "the dead were written to"
    );
    ensure!(
        errno(client.send(b"x")) == libc::ENOTCONN,
        "the dead are still the peer"
    );
    Ok(())
}

fn datagram_queue_fills() -> Result<()> {
    let name = Name::new("queue");
    let server = UnixDatagram::bind(&name.0)?;
    let client = UnixDatagram::unbound()?;
    client.connect(&name.0)?;
    client.set_nonblocking(true)?;
    let mut sent = 0;
    let error = loop {
        match client.send(&[sent]) {
            Ok(_) => sent += 1,
            Err(e) => break e,
        }
        ensure!(sent < 200, "the queue has no end");
    };
    ensure!(error.kind() == ErrorKind::WouldBlock, "{error}");
    let mut entry = libc::pollfd {
        fd: client.as_raw_fd(),
        events: libc::POLLOUT,
        revents: 0,
    };
    ensure!(
        // SAFETY: one entry, alive during the call.
        unsafe { libc::poll(&raw mut entry, 1, 0) } == 0,
        "a full queue is writable"
    );
    // A blocked sender goes on when there is room.
    client.set_nonblocking(false)?;
    let sender = thread::spawn(move || client.send(&[sent]));
    for expected in 0..=sent {
        let mut buf = [0; 2];
        ensure!(
            server.recv(&mut buf)? == 1 && buf[0] == expected,
            "datagram {} in place of {expected}",
            buf[0]
        );
    }
    sender.join().expect("the sender panicked")?;
    Ok(())
}

fn packets_keep_their_bounds() -> Result<()> {
    let (a, b) = pair(libc::SOCK_SEQPACKET)?;
    send(&a, b"first", 0)?;
    send(&a, b"second", 0)?;
    let mut buf = [0; 16];
    ensure!(
        recv(&b, &mut buf, libc::MSG_PEEK)? == 5 && recv(&b, &mut buf, 0)? == 5,
        "the first packet"
    );
    let got = receive_with(&b, 3, 0, 0)?;
    ensure!(
        got.bytes == b"sec" && got.flags & libc::MSG_TRUNC != 0,
        "{:?}, flags {:x}",
        got.bytes,
        got.flags
    );
    ensure!(
        errno(send(&a, &vec![0; 10 << 20], 0)) == libc::EMSGSIZE,
        "a packet of 10 MiB"
    );
    send(&a, b"last", 0)?;
    drop(a);
    ensure!(
        recv(&b, &mut buf, 0)? == 4 && recv(&b, &mut buf, 0)? == 0,
        "the end"
    );
    ensure!(
        errno(send(&b, b"x", libc::MSG_NOSIGNAL)) == libc::EPIPE,
        "a packet to nobody"
    );
    // Bound, listened to, connected: as a stream.
    let name = format!("raw-sockets-{}", std::process::id());
    let listener = socket(libc::SOCK_SEQPACKET)?;
    with_address(&listener, &name, libc::bind)?;
    // SAFETY: plain system calls; the null address is not looked at.
    let accepted = unsafe {
        checked(libc::listen(listener.as_raw_fd(), 4))?;
        let client = socket(libc::SOCK_SEQPACKET)?;
        with_address(&client, &name, libc::connect)?;
        send(&client, b"hi", 0)?;
        let fd = checked(libc::accept4(
            listener.as_raw_fd(),
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            0,
        ))?;
        OwnedFd::from_raw_fd(fd)
    };
    ensure!(
        recv(&accepted, &mut buf, 0)? == 2 && recv(&accepted, &mut buf, 0)? == 0,
        "through a listener"
    );
    Ok(())
}

fn backlog_fills() -> Result<()> {
    let name = format!("backlog-{}", std::process::id());
    let listener = socket(libc::SOCK_STREAM)?;
    with_address(&listener, &name, libc::bind)?;
    // SAFETY: a plain system call.
    checked(unsafe { libc::listen(listener.as_raw_fd(), 1) })?;
    let mut clients = Vec::new();
    let error = loop {
        let client = socket(libc::SOCK_STREAM | libc::SOCK_NONBLOCK)?;
        match with_address(&client, &name, libc::connect) {
            Ok(()) => clients.push(client),
            Err(e) => break e,
        }
        ensure!(clients.len() < 50, "the backlog has no end");
    };
    ensure!(
        clients.len() == 2 && error.kind() == ErrorKind::WouldBlock,
        "{} connections, then {error}",
        clients.len()
    );
    let waiter = {
        let name = name.clone();
        thread::spawn(move || {
            let client = socket(libc::SOCK_STREAM)?;
            with_address(&client, &name, libc::connect)?;
            let mut buf = [0; 8];
            recv(&client, &mut buf, 0)
        })
    };
    let mut accepted = Vec::new();
    for _ in 0..3 {
        // SAFETY: the new descriptor belongs to nobody else.
        let stream = unsafe {
            let fd = checked(libc::accept(
                listener.as_raw_fd(),
                std::ptr::null_mut(),
                std::ptr::null_mut(),
            ))?;
            OwnedFd::from_raw_fd(fd)
        };
        send(&stream, b"welcome", libc::MSG_NOSIGNAL)?;
        accepted.push(stream);
    }
    ensure!(
        waiter.join().expect("the client panicked")? == 7,
        "the waiting client heard nothing"
    );
    // Closing the listener ends the connections nobody accepted.
    let late = socket(libc::SOCK_STREAM)?;
    with_address(&late, &name, libc::connect)?;
    drop(listener);
    ensure!(
        errno(recv(&late, &mut [0], 0)) == libc::ECONNRESET,
        "the late one was not reset"
    );
    Ok(())
}

fn end_of_stream() -> Result<()> {
    let (mut a, mut b) = UnixStream::pair()?;
    a.write_all(b"rest")?;
    a.shutdown(std::net::Shutdown::Write)?;
    ensure!(
        errno(send(&a, b"x", libc::MSG_NOSIGNAL)) == libc::EPIPE,
        "sent after shutdown"
    );
    let mut text = String::new();
    b.read_to_string(&mut text)?;
    ensure!(text == "rest", "{text:?}");
    b.write_all(b"other way")?;
    let mut buf = [0; 16];
    ensure!(a.read(&mut buf)? == 9, "the other way is shut too");
    drop(b);
    ensure!(a.read(&mut buf)? == 0, "no end");
    ensure!(
        errno(send(&a, b"x", libc::MSG_NOSIGNAL)) == libc::EPIPE,
        "sent to nobody"
    );
    // Without MSG_NOSIGNAL it is a signal.
    let (a, b) = pair(libc::SOCK_STREAM)?;
    drop(b);
    // SAFETY: the child does nothing but system calls.
    let child = checked(unsafe { libc::fork() })?;
    if child == 0 {
        // SAFETY: as above.
        unsafe {
            libc::signal(libc::SIGPIPE, libc::SIG_DFL);
            libc::send(a.as_raw_fd(), [0u8].as_ptr().cast(), 1, 0);
            libc::_exit(0);
        }
    }
    let mut status = 0;
    // SAFETY: the status is alive during the call.
    checked(unsafe { libc::waitpid(child, &raw mut status, 0) })?;
    ensure!(
        libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGPIPE,
        "status {status:x}"
    );
    Ok(())
}

fn reset() -> Result<()> {
    let (a, b) = pair(libc::SOCK_STREAM)?;
    send(&a, b"unread", 0)?;
    drop(b);
    ensure!(
        option(&a, libc::SO_ERROR)? == libc::ECONNRESET,
        "unread data was lost without a word"
    );
    ensure!(option(&a, libc::SO_ERROR)? == 0, "the error comes twice");
    ensure!(recv(&a, &mut [0], 0)? == 0, "then no end");
    let (a, b) = pair(libc::SOCK_STREAM)?;
    send(&a, b"unread", 0)?;
    drop(b);
    ensure!(
        errno(recv(&a, &mut [0], 0)) == libc::ECONNRESET,
        "receiving does not tell of the reset"
    );
    Ok(())
}

fn peek_and_waitall() -> Result<()> {
    let (a, b) = pair(libc::SOCK_STREAM)?;
    send(&a, b"abc", 0)?;
    let mut buf = [0; 6];
    ensure!(
        recv(&b, &mut buf, libc::MSG_PEEK)? == 3 && recv(&b, &mut buf, libc::MSG_PEEK)? == 3,
        "peeking takes"
    );
    ensure!(
        errno(recv(&a, &mut buf, libc::MSG_DONTWAIT)) == libc::EAGAIN,
        "something came the wrong way"
    );
    let later = thread::spawn(move || {
        send(&a, b"de", 0)?;
        send(&a, b"fgh", 0)?;
        Ok::<OwnedFd, io::Error>(a)
    });
    ensure!(
        recv(&b, &mut buf, libc::MSG_WAITALL)? == 6 && &buf == b"abcdef",
        "{buf:?}"
    );
    let a = later.join().expect("the sender panicked")?;
    ensure!(recv(&b, &mut buf, 0)? == 2 && &buf[..2] == b"gh", "{buf:?}");
    drop(a);
    ensure!(recv(&b, &mut buf, libc::MSG_WAITALL)? == 0, "no end");
    Ok(())
}

fn options() -> Result<()> {
    let (a, _b) = pair(libc::SOCK_SEQPACKET)?;
    let expected = [
        (libc::SO_TYPE, libc::SOCK_SEQPACKET),
        (libc::SO_DOMAIN, libc::AF_UNIX),
        (libc::SO_PROTOCOL, 0),
        (libc::SO_ERROR, 0),
        (libc::SO_ACCEPTCONN, 0),
        (libc::SO_PASSCRED, 0),
        (libc::SO_REUSEADDR, 0),
        (libc::SO_RCVLOWAT, 1),
    ];
    for (number, value) in expected {
        ensure!(
            option(&a, number)? == value,
            "option {number} is {}",
            option(&a, number)?
        );
    }
    set_option(&a, libc::SO_SNDBUF, 20_000)?;
    ensure!(
        option(&a, libc::SO_SNDBUF)? == 40_000,
        "SO_SNDBUF is {}",
        option(&a, libc::SO_SNDBUF)?
    );
    set_option(&a, libc::SO_RCVBUF, 1)?;
    ensure!(
        option(&a, libc::SO_RCVBUF)? == 2304,
        "SO_RCVBUF is {}",
        option(&a, libc::SO_RCVBUF)?
    );
    set_option(&a, libc::SO_KEEPALIVE, 1)?;
    ensure!(
        option(&a, libc::SO_KEEPALIVE)? == 1,
        "SO_KEEPALIVE was forgotten"
    );
    ensure!(
        errno(option(&a, 9999)) == libc::ENOPROTOOPT,
        "an unknown option"
    );
    ensure!(
        errno(set_option(&a, libc::SO_TYPE, 1)) == libc::ENOPROTOOPT,
        "the type can be set"
    );
    let listener = UnixListener::bind(&Name::new("options").0)?;
    ensure!(
        option(&listener, libc::SO_ACCEPTCONN)? == 1,
        "a listener does not say so"
    );
    Ok(())
}

fn timeouts() -> Result<()> {
    let (a, _b) = UnixStream::pair()?;
    a.set_read_timeout(Some(Duration::from_millis(20)))?;
    ensure!(
        a.read_timeout()? == Some(Duration::from_millis(20)),
        "{:?}",
        a.read_timeout()?
    );
    ensure!(
        errno(recv(&a, &mut [0], 0)) == libc::EAGAIN,
        "no time-out of receiving"
    );
    a.set_write_timeout(Some(Duration::from_millis(20)))?;
    let error = loop {
        if let Err(e) = send(&a, &[0; 65_536], 0) {
            break e;
        }
    };
    ensure!(
        error.kind() == ErrorKind::WouldBlock,
        "no time-out of sending: {error}"
    );
    let listener = UnixListener::bind(&Name::new("timeouts").0)?;
    let value = libc::timeval {
        tv_sec: 0,
        tv_usec: 20_000,
    };
    // SAFETY: the value is alive during the call.
    checked(unsafe {
        let size = mem::size_of::<libc::timeval>() as _;
        libc::setsockopt(
            listener.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVTIMEO,
            (&raw const value).cast(),
            size,
        )
    })?;
    ensure!(
        errno(listener.accept()) == libc::EAGAIN,
        "no time-out of accepting"
    );
    Ok(())
}

pub fn polled(fd: &impl AsRawFd) -> io::Result<i16> {
    let events = libc::POLLIN | libc::POLLOUT | libc::POLLRDHUP;
    let mut entry = libc::pollfd {
        fd: fd.as_raw_fd(),
        events,
        revents: 0,
    };
    // SAFETY: one entry, alive during the call.
    checked(unsafe { libc::poll(&raw mut entry, 1, 0) })?;
    Ok(entry.revents)
}

fn epoll_next(set: &OwnedFd, timeout: libc::c_int) -> io::Result<Option<(u32, u64)>> {
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    // SAFETY: one event, alive during the call.
    let n = checked(unsafe { libc::epoll_wait(set.as_raw_fd(), &raw mut event, 1, timeout) })?;
    Ok((n == 1).then_some((event.events, event.u64)))
}

fn epoll_add(set: &OwnedFd, fd: &impl AsRawFd, events: libc::c_int, word: u64) -> io::Result<()> {
    let mut event = libc::epoll_event {
        events: events.cast_unsigned(),
        u64: word,
    };
    // SAFETY: the event is alive during the call.
    checked(unsafe {
        libc::epoll_ctl(
            set.as_raw_fd(),
            libc::EPOLL_CTL_ADD,
            fd.as_raw_fd(),
            &raw mut event,
        )
    })
    .map(drop)
}

fn poll_and_epoll() -> Result<()> {
    let (in_, out, hup, rdhup) = (libc::POLLIN, libc::POLLOUT, libc::POLLHUP, libc::POLLRDHUP);
    let lonely = socket(libc::SOCK_STREAM)?;
    ensure!(
        polled(&lonely)? == out | hup,
        "not connected: {:x}",
        polled(&lonely)?
    );
    let (a, b) = pair(libc::SOCK_STREAM)?;
    ensure!(polled(&a)? == out, "empty: {:x}", polled(&a)?);
    send(&b, b"x", 0)?;
    ensure!(polled(&a)? == in_ | out, "with data: {:x}", polled(&a)?);
    // SAFETY: a plain system call.
    checked(unsafe { libc::shutdown(b.as_raw_fd(), libc::SHUT_WR) })?;
    ensure!(
        polled(&a)? == in_ | out | rdhup,
        "half shut: {:x}",
        polled(&a)?
    );
    drop(b);
    ensure!(
        polled(&a)? == in_ | out | rdhup | hup,
        "closed: {:x}",
        polled(&a)?
    );
    let (a, b) = pair(libc::SOCK_STREAM)?;
    while send(&a, &[0; 4096], libc::MSG_DONTWAIT).is_ok() {}
    ensure!(polled(&a)? == 0, "full: {:x}", polled(&a)?);
    // Level-triggered, edge-triggered, and a set that was told of a socket before it was connected.
    // SAFETY: the new descriptor belongs to nobody else.
    let set = unsafe { OwnedFd::from_raw_fd(checked(libc::epoll_create1(libc::EPOLL_CLOEXEC))?) };
    epoll_add(&set, &a, libc::EPOLLOUT | libc::EPOLLET, 1)?;
    ensure!(epoll_next(&set, 0)?.is_none(), "full, and yet reported");
    let drain = thread::spawn(move || {
        let mut buf = [0; 65_536];
        while recv(&b, &mut buf, libc::MSG_DONTWAIT).is_ok() {}
        b
    });
    ensure!(
        epoll_next(&set, 10_000)? == Some((libc::EPOLLOUT as u32, 1)),
        "room was not reported"
    );
    let b = drain.join().expect("the reader panicked");
    let name = format!("epoll-{}", std::process::id());
    let listener = socket(libc::SOCK_STREAM)?;
    with_address(&listener, &name, libc::bind)?;
    // SAFETY: a plain system call.
    checked(unsafe { libc::listen(listener.as_raw_fd(), 4) })?;
    let client = socket(libc::SOCK_STREAM)?;
    // SAFETY: the new descriptor belongs to nobody else.
    let set = unsafe { OwnedFd::from_raw_fd(checked(libc::epoll_create1(libc::EPOLL_CLOEXEC))?) };
    epoll_add(
        &set,
        &client,
        libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLET,
        2,
    )?;
    let hung_up = epoll_next(&set, 0)?;
    ensure!(
        hung_up == Some((libc::EPOLLHUP as u32, 2)),
        "not connected: {hung_up:x?}"
    );
    epoll_add(&set, &listener, libc::EPOLLIN, 3)?;
    ensure!(epoll_next(&set, 0)?.is_none(), "nobody has connected");
    with_address(&client, &name, libc::connect)?;
    let mut words = Vec::new();
    while let Some((events, word)) = epoll_next(&set, 0)? {
        words.push((events, word));
        if word == 3 {
            break;
        }
    }
    ensure!(
        words.contains(&(libc::EPOLLIN as u32, 3)),
        "the listener was not reported: {words:x?}"
    );
    // SAFETY: the new descriptor belongs to nobody else.
    let server = unsafe {
        let fd = checked(libc::accept(
            listener.as_raw_fd(),
            std::ptr::null_mut(),
            std::ptr::null_mut(),
        ))?;
        OwnedFd::from_raw_fd(fd)
    };
    drop(listener);
    while epoll_next(&set, 0)?.is_some() {}
    send(&server, b"x", 0)?;
    ensure!(
        epoll_next(&set, 10_000)? == Some((libc::EPOLLIN as u32, 2)),
        "data was not reported"
    );
    ensure!(epoll_next(&set, 0)?.is_none(), "an edge came twice");
    drop(server);
    let end = epoll_next(&set, 10_000)?;
    let all = libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLHUP;
    ensure!(end == Some((all as u32, 2)), "the end: {end:x?}");
    drop(b);
    Ok(())
}

fn many_messages() -> Result<()> {
    let (a, b) = pair(libc::SOCK_DGRAM)?;
    let texts = [b"one".to_vec(), b"three".to_vec(), b"five!".to_vec()];
    let header = |iov: &mut libc::iovec| {
        // SAFETY: a structure of numbers and pointers may be zero.
        let mut message: libc::mmsghdr = unsafe { mem::zeroed() };
        message.msg_hdr.msg_iov = iov;
        message.msg_hdr.msg_iovlen = 1;
        message
    };
    let mut iovs: Vec<libc::iovec> = texts
        .iter()
        .map(|t| libc::iovec {
            iov_base: t.as_ptr().cast_mut().cast(),
            iov_len: t.len(),
        })
        .collect();
    let mut messages: Vec<libc::mmsghdr> = iovs.iter_mut().map(header).collect();
    // SAFETY: all it points to is alive during the call.
    let sent = checked(unsafe { libc::sendmmsg(a.as_raw_fd(), messages.as_mut_ptr(), 3, 0) })?;
    ensure!(
        sent == 3 && messages.iter().map(|m| m.msg_len).eq([3, 5, 5]),
        "{sent} sent"
    );
    let mut buffers = [[0u8; 4]; 5];
    let mut iovs: Vec<libc::iovec> = buffers
        .iter_mut()
        .map(|b| libc::iovec {
            iov_base: b.as_mut_ptr().cast(),
            iov_len: 4,
        })
        .collect();
    let mut messages: Vec<libc::mmsghdr> = iovs.iter_mut().map(header).collect();
    // SAFETY: all it points to is alive during the call.
    let got = checked(unsafe {
        libc::recvmmsg(
            b.as_raw_fd(),
            messages.as_mut_ptr(),
            5,
            libc::MSG_WAITFORONE as _,
            std::ptr::null_mut(),
        )
    })?;
    ensure!(
        got == 3 && &buffers[1] == b"thre",
        "{got} received: {buffers:?}"
    );
    let cut: Vec<bool> = messages[..3]
        .iter()
        .map(|m| m.msg_hdr.msg_flags & libc::MSG_TRUNC != 0)
        .collect();
    ensure!(cut == [false, true, true], "{cut:?}");
    Ok(())
}

fn show_in_proc() -> Result<()> {
    let name = Name::new("proc");
    let listener = UnixListener::bind(&name.0)?;
    let link = fs::read_link(format!("/proc/self/fd/{}", listener.as_raw_fd()))?;
    let link = link.to_string_lossy().into_owned();
    ensure!(
        link.starts_with("socket:["),
        "the descriptor is shown as {link}"
    );
    let inode = link
        .trim_start_matches("socket:[")
        .trim_end_matches(']')
        .to_owned();
    let table = fs::read_to_string("/proc/net/unix")?;
    let line = table
        .lines()
        .find(|line| line.ends_with(&*name.0.to_string_lossy()));
    let words: Vec<&str> = line.unwrap_or_default().split_whitespace().collect();
    ensure!(
        words.len() == 8 && words[3] == "00010000" && words[4] == "0001" && words[5] == "01",
        "{line:?}"
    );
    ensure!(
        words[6] == inode,
        "inode {} is shown as {}",
        inode,
        words[6]
    );
    Ok(())
}
