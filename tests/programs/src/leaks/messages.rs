//! Pipes, sockets, descriptors that travel through them, and calls that fail when they have already
//! made something.

use super::*;

const BYTES: [u8; 5000] = [5; 5000];

fn write(fd: &Fd, len: usize) -> Result<()> {
    is(
        call!(SYS_write, fd.0, BYTES.as_ptr(), len),
        len as i64,
        "write",
    )
}

fn socket(family: i32, kind: i32, protocol: i32) -> Result<Fd> {
    Fd::new(call!(SYS_socket, family, kind, protocol), "socket")
}

/// Any port of the loop.
fn any_port() -> libc::sockaddr_in {
    let loopback = libc::in_addr {
        s_addr: u32::from_ne_bytes([127, 0, 0, 1]),
    };
    libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: 0,
        sin_addr: loopback,
        sin_zero: [0; 8],
    }
}

/// Binds to such a port; its address.
fn bind(fd: &Fd) -> Result<libc::sockaddr_in> {
    let mut at = any_port();
    let mut len = 16u32;
    is(call!(SYS_bind, fd.0, &raw const at, len), 0, "bind")?;
    is(
        call!(SYS_getsockname, fd.0, &raw mut at, &raw mut len),
        0,
        "getsockname",
    )?;
    Ok(at)
}

pub const SOCKETS: &[Deed] = &[
    ("pipes with bytes in them", || {
        let [reader, writer] = pipe(0)?;
        write(&writer, 5000)?;
        let [_other, into] = pipe(0)?;
        is(call!(SYS_tee, reader.0, into.0, 4096, 0), 4096, "tee")?;
        is(
            call!(SYS_fcntl, writer.0, libc::F_SETPIPE_SZ, 1 << 20),
            1 << 20,
            "F_SETPIPE_SZ",
        )
    }),
    ("pipes with a name", || {
        is(
            call!(SYS_mknod, c"leaks-pipe".as_ptr(), libc::S_IFIFO | 0o600, 0),
            0,
            "mknod",
        )?;
        let end = Fd::new(
            call!(SYS_open, c"leaks-pipe".as_ptr(), libc::O_RDWR, 0),
            "open",
        )?;
        write(&end, 10)?;
        drop(end);
        let pid = child(|| _ = call!(SYS_open, c"leaks-pipe".as_ptr(), libc::O_RDONLY, 0))?;
        kill_waiting(pid)?;
        is(call!(SYS_unlink, c"leaks-pipe".as_ptr()), 0, "unlink")
    }),
    ("local sockets with bytes in them", || {
        for kind in [libc::SOCK_STREAM, libc::SOCK_SEQPACKET, libc::SOCK_DGRAM] {
            let [near, far] = pair(kind)?;
            write(&near, 5000)?;
            write(&far, 100)?;
            is(call!(SYS_shutdown, near.0, libc::SHUT_WR), 0, "shutdown")?;
        }
        Ok(())
    }),
    ("a sender of datagrams that waits and is killed", || {
        let [near, far] = pair(libc::SOCK_DGRAM)?;
        let pid = child(|| while call!(SYS_write, near.0, BYTES.as_ptr(), 5000) > 0 {})?;
        kill_waiting(pid)?;
        let mut room = [0u8; 100];
        is(call!(SYS_read, far.0, room.as_mut_ptr(), 100), 100, "read")
    }),
    ("local sockets with names", || {
        let listener = socket(libc::AF_UNIX, libc::SOCK_STREAM, 0)?;
        let mut name = libc::sockaddr_un {
            sun_family: libc::AF_UNIX as u16,
            sun_path: [0; 108],
        };
        for (to, from) in name.sun_path.iter_mut().zip(c"leaks-socket".to_bytes()) {
            *to = *from as libc::c_char;
        }
        is(call!(SYS_bind, listener.0, &raw const name, 110), 0, "bind")?;
        is(call!(SYS_listen, listener.0, 4), 0, "listen")?;
        let clients: Vec<_> = (0..3)
            .map(|_| socket(libc::AF_UNIX, libc::SOCK_STREAM, 0))
            .collect::<Result<_>>()?;
        for client in &clients {
            is(
                call!(SYS_connect, client.0, &raw const name, 110),
                0,
                "connect",
            )?;
            write(client, 10)?;
        }
        fails(
            call!(SYS_accept4, listener.0, &raw mut name, NOWHERE, 0),
            libc::EFAULT,
            "accept4",
        )?;
        is(call!(SYS_unlink, c"leaks-socket".as_ptr()), 0, "unlink")?;
        drop(listener);
        let other = socket(libc::AF_UNIX, libc::SOCK_DGRAM, 0)?;
        is(
            call!(SYS_bind, other.0, &raw const name, 2),
            0,
            "bind anywhere",
        )
    }),
    ("connections over the loop", || {
        let listener = socket(libc::AF_INET, libc::SOCK_STREAM, 0)?;
        let at = bind(&listener)?;
        is(call!(SYS_listen, listener.0, 4), 0, "listen")?;
        let clients: Vec<_> = (0..3)
            .map(|_| socket(libc::AF_INET, libc::SOCK_STREAM, 0))
            .collect::<Result<_>>()?;
        for client in &clients {
            is(
                call!(SYS_connect, client.0, &raw const at, 16),
                0,
                "connect",
            )?;
            write(client, 5000)?;
        }
        let accepted = Fd::new(call!(SYS_accept4, listener.0, 0, 0, 0), "accept4")?;
        write(&accepted, 100)?;
        let mut from = any_port();
        fails(
            call!(SYS_accept4, listener.0, &raw mut from, NOWHERE, 0),
            libc::EFAULT,
            "accept4",
        )
    }),
    ("a connection that is refused", || {
        let (bound, client) = (
            socket(libc::AF_INET, libc::SOCK_STREAM, 0)?,
            socket(libc::AF_INET, libc::SOCK_STREAM, 0)?,
        );
        let at = bind(&bound)?;
        fails(
            call!(SYS_connect, client.0, &raw const at, 16),
            libc::ECONNREFUSED,
            "connect",
        )
    }),
    ("datagrams over the loop", || {
        let (receiver, sender) = (
            socket(libc::AF_INET, libc::SOCK_DGRAM, 0)?,
            socket(libc::AF_INET, libc::SOCK_DGRAM, 0)?,
        );
        let at = bind(&receiver)?;
        for _ in 0..3 {
            is(
                call!(
                    SYS_sendto,
                    sender.0,
                    BYTES.as_ptr(),
                    1000,
                    0,
                    &raw const at,
                    16
                ),
                1000,
                "sendto",
            )?;
        }
        let pid = child(|| {
            let mut room = [0u8; 100];
            while call!(SYS_read, receiver.0, room.as_mut_ptr(), 100) >= 0 {}
        })?;
        kill_waiting(pid)
    }),
    ("raw, packet and netlink sockets", || {
        for (family, kind, protocol) in [
            (libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_ICMP),
            (libc::AF_PACKET, libc::SOCK_RAW, 0x0300),
            (libc::AF_NETLINK, libc::SOCK_RAW, 0),
        ] {
            drop(socket(family, kind, protocol)?);
        }
        Ok(())
    }),
];

/// A message with descriptors, and room for one.
struct Message {
    header: libc::msghdr,
    vector: Box<libc::iovec>,
    _byte: Box<u8>,
    control: Box<[u64; 8]>,
}

impl Message {
    /// One that carries `fds`, or has room for so many if none are given.
    fn new(fds: &[i32]) -> Self {
        let mut byte = Box::new(7u8);
        let mut vector = Box::new(libc::iovec {
            iov_base: (&raw mut *byte).cast(),
            iov_len: 1,
        });
        let mut control = Box::new([0u64; 8]);
        control[0] = 16 + 4 * fds.len() as u64;
        control[1] = u64::from(libc::SOL_SOCKET as u32) | (libc::SCM_RIGHTS as u64) << 32;
        for (n, fd) in fds.iter().enumerate() {
            control[2 + n / 2] |= u64::from(*fd as u32) << (32 * (n % 2));
        }
        // SAFETY: all zeroes are a header.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_iov = &raw mut *vector;
        header.msg_iovlen = 1;
        header.msg_control = control.as_mut_ptr().cast();
        header.msg_controllen = if fds.is_empty() {
            64
        } else {
            control[0] as usize
        };
        Self {
            header,
            vector,
            _byte: byte,
            control,
        }
    }

    fn send(&self, over: &Fd) -> Result<()> {
        is(
            call!(SYS_sendmsg, over.0, &raw const self.header, 0),
            1,
            "sendmsg",
        )
    }
}

/// Three descriptors: of a pipe, a socket and a file.
fn cargo() -> Result<[Fd; 3]> {
    let [reader, _writer] = pipe(0)?;
    let [near, _far] = pair(libc::SOCK_STREAM)?;
    Ok([
        reader,
        near,
        Fd::new(
            call!(SYS_memfd_create, c"cargo".as_ptr(), 0),
            "memfd_create",
        )?,
    ])
}

fn send_cargo(over: &Fd) -> Result<()> {
    let cargo = cargo()?;
    Message::new(&[cargo[0].0, cargo[1].0, cargo[2].0]).send(over)
}

/// Number of open descriptors of this process.
fn descriptors() -> Result<usize> {
    Ok(std::fs::read_dir("/proc/self/fd")?.count())
}

/// Both kinds of socket that descriptors travel through.
fn over_each(way: fn(&Fd, &Fd) -> Result<()>) -> Result<()> {
    for kind in [libc::SOCK_STREAM, libc::SOCK_SEQPACKET, libc::SOCK_DGRAM] {
        let [near, far] = pair(kind)?;
        let before = descriptors()?;
        send_cargo(&near)?;
        way(&near, &far).with_context(|| format!("kind {kind}"))?;
        let after = descriptors()?;
        ensure!(
            after == before,
            "kind {kind}: {before} descriptors before, {after} after"
        );
    }
    Ok(())
}

/// Closes those that a received message brought.
fn close_received(message: &Message) -> usize {
    if message.header.msg_controllen < 20 {
        return 0;
    }
    let count = (message.control[0] as usize - 16) / 4;
    for n in 0..count {
        drop(Fd((message.control[2 + n / 2] >> (32 * (n % 2))) as i32));
    }
    count
}

pub const RIGHTS: &[Deed] = &[
    ("descriptors that arrive", || {
        over_each(|_, far| {
            let mut message = Message::new(&[]);
            is(
                call!(SYS_recvmsg, far.0, &raw mut message.header, libc::MSG_PEEK),
                1,
                "recvmsg",
            )?;
            ensure!(
                close_received(&message) == 3,
                "a look does not show three descriptors"
            );
            let mut message = Message::new(&[]);
            is(
                call!(SYS_recvmsg, far.0, &raw mut message.header, 0),
                1,
                "recvmsg",
            )?;
            ensure!(close_received(&message) == 3, "not three descriptors");
            Ok(())
        })
    }),
    ("descriptors for which there is no room", || {
        over_each(|_, far| {
            let mut message = Message::new(&[]);
            message.header.msg_controllen = 20;
            is(
                call!(SYS_recvmsg, far.0, &raw mut message.header, 0),
                1,
                "recvmsg",
            )?;
            ensure!(
                message.header.msg_flags & libc::MSG_CTRUNC != 0,
                "nothing was cut"
            );
            ensure!(close_received(&message) == 1, "not one descriptor");
            Ok(())
        })
    }),
    ("descriptors that are not asked for", || {
        over_each(|_, far| {
            let mut byte = 0u8;
            is(call!(SYS_read, far.0, &raw mut byte, 1), 1, "read")
        })
    }),
    ("descriptors that nobody receives", || {
        over_each(|_, _| Ok(()))
    }),
    ("descriptors that are sent nowhere", || {
        over_each(|near, _| {
            let cargo = cargo()?;
            let mut message = Message::new(&[cargo[0].0, cargo[1].0, 12_345]);
            fails(
                call!(SYS_sendmsg, near.0, &raw const message.header, 0),
                libc::EBADF,
                "a bad descriptor",
            )?;
            message = Message::new(&[cargo[0].0, cargo[1].0]);
            message.header.msg_iov = ptr::without_provenance_mut(NOWHERE);
            fails(
                call!(SYS_sendmsg, near.0, &raw const message.header, 0),
                libc::EFAULT,
                "a bad vector",
            )?;
            message = Message::new(&[cargo[0].0, cargo[1].0]);
            message.vector.iov_base = ptr::without_provenance_mut(NOWHERE);
            fails(
                call!(SYS_sendmsg, near.0, &raw const message.header, 0),
                libc::EFAULT,
                "bad bytes",
            )
        })
    }),
    ("descriptors that cannot be told of", || {
        for kind in [libc::SOCK_STREAM, libc::SOCK_DGRAM] {
            let [near, far] = pair(kind)?;
            send_cargo(&near)?;
            let before = descriptors()?;
            let mut message = Message::new(&[]);
            message.header.msg_control = ptr::without_provenance_mut(NOWHERE);
            let result = call!(SYS_recvmsg, far.0, &raw mut message.header, 0);
            let after = descriptors()?;
            ensure!(
                after == before,
                "{before} descriptors before, {after} after a call that returned {result}"
            );
        }
        Ok(())
    }),
    ("sockets that are sent through themselves", || {
        for _ in 0..3 {
            let [near, far] = pair(libc::SOCK_STREAM)?;
            Message::new(&[near.0, far.0]).send(&near)?;
            Message::new(&[far.0]).send(&far)?;
        }
        // The end of any other socket has the kernel look for such rings.
        drop(pair(libc::SOCK_STREAM)?);
        Ok(())
    }),
    ("who sends and who receives are killed", || {
        let [near, far] = pair(libc::SOCK_STREAM)?;
        let pid = child(|| {
            let _ = (0..10).try_for_each(|_| send_cargo(&near));
            call!(SYS_pause);
        })?;
        kill_waiting(pid)?;
        let mut message = Message::new(&[]);
        is(
            call!(SYS_recvmsg, far.0, &raw mut message.header, 0),
            1,
            "recvmsg",
        )?;
        close_received(&message);
        Ok(())
    }),
];

pub const FAILURES: &[Deed] = &[
    ("descriptors whose numbers cannot be told", || {
        let before = descriptors()?;
        fails(call!(SYS_pipe2, NOWHERE, 0), libc::EFAULT, "pipe2")?;
        for (family, kind) in [
            (libc::AF_UNIX, libc::SOCK_STREAM),
            (libc::AF_UNIX, libc::SOCK_DGRAM),
        ] {
            fails(
                call!(SYS_socketpair, family, kind, 0, NOWHERE),
                libc::EFAULT,
                "socketpair",
            )?;
        }
        let after = descriptors()?;
        ensure!(
            before == after,
            "{before} descriptors before, {after} after"
        );
        Ok(())
    }),
    ("names from nowhere", || {
        for number in [
            libc::SYS_memfd_create,
            libc::SYS_chdir,
            libc::SYS_chroot,
            libc::SYS_mq_unlink,
            libc::SYS_rmdir,
        ] {
            fails(
                make(number, &[NOWHERE, 0]),
                libc::EFAULT,
                "a call with a name",
            )?;
        }
        Ok(())
    }),
    ("no more descriptors", || {
        let pid = child(|| {
            let none = [3u64, 3];
            call!(SYS_prlimit64, 0, libc::RLIMIT_NOFILE, none.as_ptr(), 0);
            let mut two = [0i32; 2];
            call!(SYS_pipe2, two.as_mut_ptr(), 0);
            call!(
                SYS_socketpair,
                libc::AF_UNIX,
                libc::SOCK_STREAM,
                0,
                two.as_mut_ptr()
            );
            for number in [
                libc::SYS_epoll_create1,
                libc::SYS_inotify_init1,
                libc::SYS_eventfd2,
                libc::SYS_timerfd_create,
            ] {
                make(number, &[0, 0]);
            }
            call!(SYS_socket, libc::AF_INET, libc::SOCK_STREAM, 0);
            call!(SYS_open, c"/dev/ptmx".as_ptr(), libc::O_RDWR, 0);
            call!(SYS_memfd_create, c"none".as_ptr(), 0);
            call!(
                SYS_mq_open,
                c"leaks-none".as_ptr(),
                libc::O_CREAT | libc::O_RDWR,
                0o600,
                0
            );
            call!(SYS_mq_unlink, c"leaks-none".as_ptr());
        })?;
        wait(pid).map(drop)
    }),
    ("one descriptor, where two are wanted", || {
        let pid = child(|| {
            let one = [4u64, 4];
            call!(SYS_close, 3);
            call!(SYS_prlimit64, 0, libc::RLIMIT_NOFILE, one.as_ptr(), 0);
            let mut two = [0i32; 2];
            call!(SYS_pipe2, two.as_mut_ptr(), 0);
            call!(
                SYS_socketpair,
                libc::AF_UNIX,
                libc::SOCK_STREAM,
                0,
                two.as_mut_ptr()
            );
        })?;
        wait(pid).map(drop)
    }),
];
