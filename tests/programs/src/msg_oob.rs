//! Urgent data of streams (`MSG_OOB`), over TCP and `AF_UNIX`.

use std::io::{self, ErrorKind};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::{mem, ptr};

use anyhow::{Context, Result, ensure};

use crate::sockets::{errno, recv, send};
use crate::{Check, checked};

pub const CHECKS: &[(&str, Check)] = &[
    ("msg-oob-byte-apart-from-the-others", apart),
    ("msg-oob-byte-among-the-others", inline),
    ("msg-oob-byte-is-signalled", signalled),
    ("msg-oob-byte-replaced", replaced),
    ("msg-oob-byte-by-messages", by_messages),
    ("msg-oob-byte-where-there-is-none", none),
];

fn tcp() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let client = TcpStream::connect(listener.local_addr()?)?;
    Ok((client, listener.accept()?.0))
}

fn polled(fd: &impl AsRawFd) -> io::Result<i16> {
    let mut entry = libc::pollfd {
        fd: fd.as_raw_fd(),
        events: libc::POLLIN | libc::POLLPRI,
        revents: 0,
    };
    // SAFETY: one entry, alive during the call.
    checked(unsafe { libc::poll(&raw mut entry, 1, 0) })?;
    Ok(entry.revents)
}

fn at_mark(fd: &impl AsRawFd) -> io::Result<bool> {
    const SIOCATMARK: libc::c_ulong = 0x8905;
    let mut mark = -1;
    // SAFETY: the call writes a number that is alive.
    checked(unsafe { libc::ioctl(fd.as_raw_fd(), SIOCATMARK, &raw mut mark) })?;
    Ok(mark != 0)
}

fn unread(fd: &impl AsRawFd) -> io::Result<i32> {
    let mut count = -1;
    // SAFETY: the call writes a number that is alive.
    checked(unsafe { libc::ioctl(fd.as_raw_fd(), libc::FIONREAD, &raw mut count) })?;
    Ok(count)
}

fn set_inline(fd: &impl AsRawFd) -> io::Result<()> {
    let on = 1i32;
    // SAFETY: the value is alive during the call.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_OOBINLINE,
            (&raw const on).cast(),
            4,
        )
    };
    checked(result).map(drop)
}

/// Receives all that one call gives.
fn take(fd: &impl AsRawFd, flags: libc::c_int) -> io::Result<Vec<u8>> {
    let mut buf = [0; 64];
    let n = recv(fd, &mut buf, flags | libc::MSG_DONTWAIT)?;
    Ok(buf[..n].to_vec())
}

/// Urgent data that stays apart, alike on both kinds of stream.
fn apart_of(from: &impl AsRawFd, to: &impl AsRawFd) -> Result<()> {
    ensure!(
        polled(to)? & libc::POLLPRI == 0 && errno(take(to, libc::MSG_OOB)) == libc::EINVAL,
        "something is urgent"
    );
    send(from, b"abc", 0)?;
    ensure!(send(from, b"deX", libc::MSG_OOB)? == 3, "not all was sent");
    send(from, b"fg", 0)?;
    ensure!(
        polled(to)? & (libc::POLLPRI | libc::POLLIN) == libc::POLLPRI | libc::POLLIN,
        "not told by poll"
    );
    ensure!(
        !at_mark(to)?,
        "at the mark before what precedes it was read"
    );
    ensure!(
        take(to, libc::MSG_PEEK)? == b"abcde",
        "looking does not stop at the mark"
    );
    ensure!(
        take(to, libc::MSG_OOB | libc::MSG_PEEK)? == b"X",
        "not seen"
    );
    ensure!(take(to, libc::MSG_OOB)? == b"X", "not received");
    ensure!(
        errno(take(to, libc::MSG_OOB)) == libc::EINVAL,
        "received twice"
    );
    ensure!(
        polled(to)? & (libc::POLLPRI | libc::POLLIN) == libc::POLLIN,
        "still urgent"
    );
    ensure!(
        take(to, 0)? == b"abcde",
        "receiving does not stop at the mark"
    );
    ensure!(take(to, 0)? == b"fg", "what follows is not there");
    // One that nobody receives by itself is passed over.
    send(from, b"hi", libc::MSG_OOB)?;
    send(from, b"j", 0)?;
    ensure!(take(to, 0)? == b"h" && at_mark(to)?, "not at the mark");
    ensure!(
        take(to, 0)? == b"j" && polled(to)? & libc::POLLPRI == 0,
        "not passed over"
    );
    ensure!(
        errno(take(to, libc::MSG_OOB)) == libc::EINVAL,
        "received after it was passed over"
    );
    Ok(())
}

fn apart() -> Result<()> {
    let (from, to) = tcp()?;
    apart_of(&from, &to)?;
    // With nothing behind it there is nothing to receive but itself.
    send(&from, b"xY", libc::MSG_OOB)?;
    ensure!(unread(&to)? == 1, "{} bytes before the mark", unread(&to)?);
    ensure!(take(&to, 0)? == b"x" && at_mark(&to)?, "not at the mark");
    ensure!(
        polled(&to)? & (libc::POLLPRI | libc::POLLIN) == libc::POLLPRI,
        "the urgent byte counts as another"
    );
    ensure!(
        take(&to, libc::MSG_OOB)? == b"Y",
        "not received at the mark"
    );
    ensure!(at_mark(&to)?, "the mark is gone with its byte");
    let (from, to) = UnixStream::pair()?;
    apart_of(&from, &to)
}

fn inline_of(from: &impl AsRawFd, to: &impl AsRawFd) -> Result<()> {
    set_inline(to)?;
    send(from, b"ab", libc::MSG_OOB)?;
    send(from, b"cd", 0)?;
    ensure!(polled(to)? & libc::POLLPRI != 0, "not told by poll");
    ensure!(
        errno(take(to, libc::MSG_OOB)) == libc::EINVAL,
        "received by itself"
    );
    ensure!(take(to, 0)? == b"a", "receiving does not stop at the mark");
    ensure!(at_mark(to)?, "not at the mark");
    ensure!(take(to, 0)? == b"bcd", "not among the others");
    ensure!(
        !at_mark(to)? && polled(to)? & libc::POLLPRI == 0,
        "still urgent"
    );
    Ok(())
}

fn inline() -> Result<()> {
    let (from, to) = tcp()?;
    inline_of(&from, &to)?;
    let (from, to) = UnixStream::pair()?;
    inline_of(&from, &to)
}

/// Whether `SIGURG` has come, which is blocked; it is taken.
fn signal_came() -> io::Result<bool> {
    let zero = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the set is initialised before it is used; both are alive during the call.
    let result = unsafe {
        let mut set = mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGURG);
        checked(libc::sigtimedwait(
            &raw const set,
            ptr::null_mut(),
            &raw const zero,
        ))
    };
    match result {
        Ok(_) => Ok(true),
        Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(false),
        Err(e) => Err(e),
    }
}

fn signalled() -> Result<()> {
    // SAFETY: the set is initialised before it is used.
    unsafe {
        let mut set = mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGURG);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, ptr::null_mut());
    }
    let pid = std::process::id().cast_signed();
    let (from, to) = tcp()?;
    send(&from, b"x", libc::MSG_OOB)?;
    ensure!(!signal_came()?, "signalled, and nobody owns the socket");
    // SAFETY: plain system calls.
    unsafe { checked(libc::fcntl(to.as_raw_fd(), libc::F_SETOWN, pid))? };
    send(&from, b"y", 0)?;
    ensure!(!signal_came()?, "signalled for what is not urgent");
    send(&from, b"z", libc::MSG_OOB)?;
    ensure!(signal_came()?, "not signalled (TCP)");
    let (from, to) = UnixStream::pair()?;
    const FIOSETOWN: libc::c_ulong = 0x8901;
    const SIOCGPGRP: libc::c_ulong = 0x8904;
    let mut owner = 0;
    // SAFETY: the calls read and write numbers that are alive.
    unsafe {
        checked(libc::ioctl(to.as_raw_fd(), FIOSETOWN, &raw const pid))?;
        checked(libc::ioctl(to.as_raw_fd(), SIOCGPGRP, &raw mut owner))?;
    }
    ensure!(owner == pid, "owned by {owner}");
    send(&from, b"z", libc::MSG_OOB)?;
    ensure!(signal_came()?, "not signalled (AF_UNIX)");
    Ok(())
}

fn replaced() -> Result<()> {
    let (from, to) = tcp()?;
    send(&from, b"a1", libc::MSG_OOB)?;
    send(&from, b"b2", libc::MSG_OOB)?;
    ensure!(
        take(&to, libc::MSG_OOB)? == b"2",
        "the last one is not the urgent one"
    );
    ensure!(
        take(&to, 0)? == b"a1b",
        "the first one is not among the others"
    );
    send(&from, b"c", 0)?;
    ensure!(take(&to, 0)? == b"c", "what follows is not there");
    // One after the other, each received before the next is sent.
    for byte in b"345" {
        send(&from, &[*byte], libc::MSG_OOB)?;
        ensure!(take(&to, libc::MSG_OOB)? == [*byte], "not received");
    }
    send(&from, b"d", 0)?;
    ensure!(take(&to, 0)? == b"d", "bytes that were received come again");
    Ok(())
}

fn by_messages() -> Result<()> {
    let (from, to) = tcp()?;
    by_messages_of(&from, &to).context("TCP")?;
    let (from, to) = UnixStream::pair()?;
    by_messages_of(&from, &to).context("AF_UNIX")
}

fn by_messages_of(from: &impl AsRawFd, to: &impl AsRawFd) -> Result<()> {
    let mut data = vec![0; 1 << 16];
    let at = data.as_mut_ptr();
    // In one piece and in two, and with room for more than any kernel keeps on its stack.
    for lengths in [&[3][..], &[1, 2], &[1, (1 << 16) - 1]] {
        let mut pieces = Vec::new();
        for &length in lengths {
            let start = pieces.iter().map(|piece: &libc::iovec| piece.iov_len).sum();
            pieces.push(libc::iovec {
                iov_base: at.wrapping_add(start).cast(),
                iov_len: length,
            });
        }
        let mut sent = libc::iovec {
            iov_base: c"xyz".as_ptr().cast_mut().cast(),
            iov_len: 3,
        };
        // SAFETY: a structure of numbers and pointers may be zero; what it points to is alive
        // during the calls.
        unsafe {
            let mut messages: [libc::mmsghdr; 1] = mem::zeroed();
            messages[0].msg_hdr.msg_iov = &raw mut sent;
            messages[0].msg_hdr.msg_iovlen = 1;
            ensure!(
                checked(libc::sendmmsg(
                    from.as_raw_fd(),
                    messages.as_mut_ptr(),
                    1,
                    libc::MSG_OOB as _
                ))? == 1,
                "not sent"
            );
            ensure!(
                messages[0].msg_len == 3,
                "{} bytes sent",
                messages[0].msg_len
            );
            messages[0].msg_hdr.msg_iov = pieces.as_mut_ptr();
            messages[0].msg_hdr.msg_iovlen = pieces.len();
            let got = checked(libc::recvmsg(
                to.as_raw_fd(),
                &raw mut messages[0].msg_hdr,
                libc::MSG_OOB,
            ) as libc::c_int)?;
            ensure!(
                got == 1 && at.read() == b'z' && messages[0].msg_hdr.msg_flags & libc::MSG_OOB != 0,
                "not received"
            );
            let got = checked(
                libc::recvmsg(to.as_raw_fd(), &raw mut messages[0].msg_hdr, 0) as libc::c_int,
            )?;
            let others = [at.read(), at.add(1).read()];
            ensure!(
                got == 2 && &others == b"xy" && messages[0].msg_hdr.msg_flags & libc::MSG_OOB == 0,
                "not the others"
            );
        }
    }
    Ok(())
}

fn none() -> Result<()> {
    let (a, _b) = std::os::unix::net::UnixDatagram::pair()?;
    ensure!(
        errno(send(&a, b"x", libc::MSG_OOB)) == libc::EOPNOTSUPP,
        "urgent datagrams (AF_UNIX)"
    );
    ensure!(
        errno(take(&a, libc::MSG_OOB)) == libc::EOPNOTSUPP,
        "an urgent datagram received (AF_UNIX)"
    );
    let (a, _b) = UnixStream::pair()?;
    ensure!(
        errno(send(&a, b"", libc::MSG_OOB)) == libc::EOPNOTSUPP,
        "urgent nothing"
    );
    let udp = std::net::UdpSocket::bind(("127.0.0.1", 0))?;
    udp.connect(udp.local_addr()?)?;
    ensure!(
        errno(send(&udp, b"x", libc::MSG_OOB)) == libc::EOPNOTSUPP,
        "urgent datagrams (UDP)"
    );
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    ensure!(
        errno(take(&listener, libc::MSG_OOB)) == libc::ENOTCONN,
        "a listener receives"
    );
    Ok(())
}
