//! Descriptors and credentials that travel over `AF_UNIX` sockets (`unix(7)`), and what becomes of
//! those that nobody takes.

use std::fs::File;
use std::io::{self, Read, Write};
use std::mem;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use anyhow::{Result, ensure};

use crate::sockets::{errno, pair, recv, send, set_option, socket, with_address};
use crate::{Check, checked, inet_sockets};

pub const CHECKS: &[(&str, Check)] = &[
    ("sockets-pass-descriptors", pass_descriptors),
    (
        "sockets-descriptors-bound-messages",
        descriptors_bound_messages,
    ),
    ("sockets-descriptors-take-room", descriptors_take_room),
    ("sockets-pass-credentials", pass_credentials),
    ("sockets-rings-are-freed", rings_are_freed),
    ("sockets-deep-nesting-is-freed", deep_nesting_is_freed),
    ("sockets-inet-passes-nothing", inet_passes_nothing),
];

/// Sends bytes with control messages.
pub fn send_with(fd: &impl AsRawFd, data: &[u8], control: &[u8]) -> io::Result<usize> {
    let mut iov = libc::iovec {
        iov_base: data.as_ptr().cast_mut().cast(),
        iov_len: data.len(),
    };
    // SAFETY: a structure of numbers and pointers may be zero.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = &raw mut iov;
    message.msg_iovlen = 1;
    message.msg_control = control.as_ptr().cast_mut().cast();
    message.msg_controllen = control.len();
    // SAFETY: all it points to is alive during the call.
    let n = unsafe { libc::sendmsg(fd.as_raw_fd(), &raw const message, 0) };
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

/// One control message.
fn control(kind: libc::c_int, data: &[u8]) -> Vec<u8> {
    let mut bytes = (16 + data.len()).to_ne_bytes().to_vec();
    bytes.extend(libc::SOL_SOCKET.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(data);
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    bytes
}

pub fn rights(fds: &[i32]) -> Vec<u8> {
    control(
        libc::SCM_RIGHTS,
        &fds.iter()
            .flat_map(|fd| fd.to_ne_bytes())
            .collect::<Vec<u8>>(),
    )
}

/// Result of `recvmsg`: bytes, descriptors, credentials, flags.
pub struct Got {
    pub bytes: Vec<u8>,
    pub fds: Vec<OwnedFd>,
    pub credentials: Option<[u32; 3]>,
    pub flags: libc::c_int,
}

pub fn receive_with(
    fd: &impl AsRawFd,
    size: usize,
    control_size: usize,
    flags: libc::c_int,
) -> io::Result<Got> {
    let mut bytes = vec![0; size];
    let mut control = vec![0u64; control_size.div_ceil(8)];
    let mut iov = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: size,
    };
    // SAFETY: a structure of numbers and pointers may be zero.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = &raw mut iov;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = control_size;
    // SAFETY: all it points to is alive during the call.
    let n = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut message, flags) };
    let n = usize::try_from(n).map_err(|_| io::Error::last_os_error())?;
    bytes.truncate(n.min(size));
    let mut got = Got {
        bytes,
        fds: Vec::new(),
        credentials: None,
        flags: message.msg_flags,
    };
    let control: Vec<u8> = control.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let mut rest = &control[..message.msg_controllen];
    while rest.len() >= 16 {
        let len = usize::from_ne_bytes(rest[..8].try_into().unwrap_or_default());
        let kind = i32::from_ne_bytes(rest[12..16].try_into().unwrap_or_default());
        let words = rest[16..len]
            .chunks_exact(4)
            .map(|w| u32::from_ne_bytes(w.try_into().unwrap_or_default()));
        if kind == libc::SCM_RIGHTS {
            // SAFETY: the kernel has just made these descriptors for us.
            got.fds = words
                .map(|fd| unsafe { OwnedFd::from_raw_fd(fd.cast_signed()) })
                .collect();
        } else {
            let words: Vec<u32> = words.collect();
            got.credentials = words.try_into().ok();
        }
        rest = rest.get(len.next_multiple_of(8)..).unwrap_or_default();
    }
    Ok(got)
}

fn pass_descriptors() -> Result<()> {
    for kind in [libc::SOCK_STREAM, libc::SOCK_DGRAM, libc::SOCK_SEQPACKET] {
        let (a, b) = pair(kind)?;
        let (mut reader, writer) = io::pipe()?;
        send_with(&a, b"here", &rights(&[writer.as_raw_fd(), a.as_raw_fd()]))?;
        drop(writer);
        let got = receive_with(&b, 16, 64, libc::MSG_CMSG_CLOEXEC)?;
        ensure!(
            got.bytes == b"here" && got.fds.len() == 2,
            "{} descriptors with {:?}",
            got.fds.len(),
            got.bytes
        );
        // SAFETY: a plain system call.
        let flags = checked(unsafe { libc::fcntl(got.fds[0].as_raw_fd(), libc::F_GETFD) })?;
        ensure!(
            flags & libc::FD_CLOEXEC != 0,
            "MSG_CMSG_CLOEXEC was not heard"
        );
        let mut fds = got.fds.into_iter();
        let mut writer = File::from(fds.next().expect("two arrived"));
        writer.write_all(b"through")?;
        drop(writer);
        let mut text = String::new();
        reader.read_to_string(&mut text)?;
        ensure!(text == "through", "{text:?}");
        // Only room for one: the other is closed, and that is said.
        send_with(&a, b"x", &rights(&[reader.as_raw_fd(), reader.as_raw_fd()]))?;
        let got = receive_with(&b, 16, 20, 0)?;
        ensure!(
            got.fds.len() == 1 && got.flags & libc::MSG_CTRUNC != 0,
            "{} arrived, flags {:x}",
            got.fds.len(),
            got.flags
        );
        // Who just reads closes them.
        send_with(&a, b"y", &rights(&[reader.as_raw_fd()]))?;
        drop(got);
        drop(reader);
        ensure!(recv(&b, &mut [0; 4], 0)? == 1, "the byte");
        ensure!(
            errno(send_with(&a, b"z", &rights(&[9999]))) == libc::EBADF,
            "a bad descriptor was sent"
        );
    }
    Ok(())
}

fn descriptors_bound_messages() -> Result<()> {
    let (a, b) = pair(libc::SOCK_STREAM)?;
    let null = File::open("/dev/null")?;
    send(&a, b"plain", 0)?;
    send_with(&a, b"with", &rights(&[null.as_raw_fd()]))?;
    send(&a, b"after", 0)?;
    let peeked = receive_with(&b, 64, 64, libc::MSG_PEEK)?;
    ensure!(
        peeked.bytes == b"plainwith" && peeked.fds.len() == 1,
        "peeked {:?}, {}",
        peeked.bytes,
        peeked.fds.len()
    );
    let got = receive_with(&b, 64, 64, 0)?;
    ensure!(
        got.bytes == b"plainwith" && got.fds.len() == 1,
        "{:?}, {} descriptors",
        got.bytes,
        got.fds.len()
    );
    let got = receive_with(&b, 64, 64, 0)?;
    ensure!(
        got.bytes == b"after" && got.fds.is_empty(),
        "{:?}, {} descriptors",
        got.bytes,
        got.fds.len()
    );
    Ok(())
}

/// A byte that is sent with a descriptor takes more than a byte of the sender's buffer.
fn descriptors_take_room() -> Result<()> {
    let (near, far) = pair(libc::SOCK_STREAM | libc::SOCK_NONBLOCK)?;
    let null = File::open("/dev/null")?;
    let control = rights(&[null.as_raw_fd()]);
    let mut sent = 0;
    let error = loop {
        match send_with(&near, b"x", &control) {
            Ok(_) => sent += 1,
            Err(error) => break error,
        }
        ensure!(sent < 2000, "{sent} descriptors fit");
    };
    ensure!(error.raw_os_error() == Some(libc::EAGAIN), "{error}");
    ensure!(sent > 10, "{sent} descriptors fit");
    // What was received makes room again.
    let mut bytes = [0; 1];
    for _ in 0..sent {
        ensure!(recv(&far, &mut bytes, 0)? == 1, "a byte of {sent}");
    }
    send_with(&near, &[7; 65_536], &[])?;
    Ok(())
}

fn pass_credentials() -> Result<()> {
    // SAFETY: plain system calls.
    let me = unsafe {
        [
            libc::getpid().cast_unsigned(),
            libc::geteuid(),
            libc::getegid(),
        ]
    };
    for kind in [libc::SOCK_STREAM, libc::SOCK_DGRAM, libc::SOCK_SEQPACKET] {
        let (a, b) = pair(kind)?;
        send(&a, b"before", 0)?;
        set_option(&b, libc::SO_PASSCRED, 1)?;
        send(&a, b"after", 0)?;
        let got = receive_with(&b, 64, 64, 0)?;
        ensure!(
            got.bytes == b"before",
            "senders were mixed: {:?}",
            got.bytes
        );
        ensure!(
            got.credentials == Some([0, 65534, 65534]),
            "nobody is called {:?}",
            got.credentials
        );
        let got = receive_with(&b, 64, 64, 0)?;
        ensure!(
            got.bytes == b"after" && got.credentials == Some(me),
            "{:?} from {:?}",
            got.bytes,
            got.credentials
        );
        // Said by the sender, and checked.
        let said = control(libc::SCM_CREDENTIALS, &me.map(u32::to_ne_bytes).concat());
        send_with(&a, b"said", &said)?;
        let got = receive_with(&b, 64, 64, 0)?;
        ensure!(
            got.bytes == b"said" && got.credentials == Some(me),
            "{:?} from {:?}",
            got.bytes,
            got.credentials
        );
    }
    let (a, _b) = pair(libc::SOCK_STREAM)?;
    let mut cred = [0u32; 3];
    let mut len = 12;
    // SAFETY: both are alive during the call.
    checked(unsafe {
        libc::getsockopt(
            a.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            cred.as_mut_ptr().cast(),
            &raw mut len,
        )
    })?;
    ensure!(cred == me && len == 12, "SO_PEERCRED is {cred:?}");
    Ok(())
}

/// Descriptors and credentials are for `AF_UNIX`: over TCP and UDP nobody looks at them, and
/// nothing arrives; netlink refuses descriptors.
fn inet_passes_nothing() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let sender = TcpStream::connect(listener.local_addr()?)?;
    let (receiver, _) = listener.accept()?;
    let from = UdpSocket::bind("127.0.0.1:0")?;
    let to = UdpSocket::bind("127.0.0.1:0")?;
    from.connect(to.local_addr()?)?;
    let ends: [(OwnedFd, OwnedFd); 2] =
        [(sender.into(), receiver.into()), (from.into(), to.into())];
    for (sender, receiver) in ends {
        // Neither has to be right.
        for fd in [sender.as_raw_fd(), -1] {
            send_with(&sender, b"a", &rights(&[fd]))?;
            let got = receive_with(&receiver, 64, 64, 0)?;
            ensure!(
                got.bytes == b"a" && got.fds.is_empty(),
                "{:?} came",
                got.fds
            );
        }
        send_with(&sender, b"b", &control(libc::SCM_CREDENTIALS, &[0xff; 12]))?;
        let got = receive_with(&receiver, 64, 64, 0)?;
        ensure!(
            got.bytes == b"b" && got.credentials.is_none(),
            "{:?} came",
            got.credentials
        );
    }
    let netlink = inet_sockets::socket(libc::AF_NETLINK, libc::SOCK_RAW)?;
    let error = errno(send_with(&netlink, &[0; 16], &rights(&[0])));
    ensure!(error == libc::EINVAL, "netlink: error {error}");
    Ok(())
}

/// Rings of descriptors in flight are freed: the reading end of a pipe ends when no writing end is
/// open.
fn rings_are_freed() -> Result<()> {
    // A socket in its own queue, two in each other's, and one in that of a connection nobody
    // accepted; each with the end of a pipe.
    let (mut reader, writer) = io::pipe()?;
    let pipe = writer.as_raw_fd();
    {
        let (a, b) = pair(libc::SOCK_DGRAM)?;
        send_with(&a, b"x", &rights(&[a.as_raw_fd(), b.as_raw_fd(), pipe]))?;
        let (c, d) = pair(libc::SOCK_STREAM)?;
        send_with(&c, b"x", &rights(&[d.as_raw_fd(), pipe]))?;
        send_with(&d, b"x", &rights(&[c.as_raw_fd()]))?;
        let name = format!("ring-{}", std::process::id());
        let listener = socket(libc::SOCK_STREAM)?;
        with_address(&listener, &name, libc::bind)?;
        // SAFETY: a plain system call.
        checked(unsafe { libc::listen(listener.as_raw_fd(), 4) })?;
        let client = socket(libc::SOCK_STREAM)?;
        with_address(&client, &name, libc::connect)?;
        send_with(&client, b"x", &rights(&[listener.as_raw_fd(), pipe]))?;
    }
    // Not a ring: reachable through one that is open.
    let (keep, other) = pair(libc::SOCK_STREAM)?;
    {
        let (c, d) = pair(libc::SOCK_STREAM)?;
        send_with(&c, b"kept", &rights(&[c.as_raw_fd()]))?;
        send_with(&keep, b"x", &rights(&[d.as_raw_fd()]))?;
    }
    drop(writer);
    // Closing a socket is when a collector may look.
    drop(pair(libc::SOCK_STREAM)?);
    let mut byte = [0];
    ensure!(reader.read(&mut byte)? == 0, "there are writers");
    let inner = receive_with(&other, 8, 64, 0)?;
    let kept = receive_with(&inner.fds[0], 8, 64, 0)?;
    ensure!(
        kept.bytes == b"kept" && kept.fds.len() == 1,
        "what could be reached was emptied"
    );
    Ok(())
}

fn deep_nesting_is_freed() -> Result<()> {
    let (mut reader, writer) = io::pipe()?;
    // The socket that carries the last one travels in the next, two hundred times.
    let (mut outer, first) = pair(libc::SOCK_DGRAM)?;
    send_with(&first, b"x", &rights(&[writer.as_raw_fd()]))?;
    drop(writer);
    for _ in 0..200 {
        let (next, sender) = pair(libc::SOCK_DGRAM)?;
        send_with(&sender, b"x", &rights(&[outer.as_raw_fd()]))?;
        outer = next;
    }
    drop(outer);
    ensure!(reader.read(&mut [0])? == 0, "the innermost is open");
    Ok(())
}
