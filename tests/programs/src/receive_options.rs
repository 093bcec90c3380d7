//! Receiving on sockets: filters (classic BPF), the time of arrival as control messages, groups of
//! the peer.

use std::io;
use std::mem;
use std::net::UdpSocket;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};

use crate::inet_sockets::receive_control;
use crate::sockets::{errno, recv};
use crate::{Check, checked};

pub const CHECKS: &[(&str, Check)] = &[
    ("receive-options-are-stamped", stamped),
    ("receive-options-are-filtered", filtered),
    ("receive-options-filter-is-kept", filter_is_kept),
    ("receive-options-lost-are-counted", lost_are_counted),
    ("receive-options-groups-of-the-peer", groups_of_the_peer),
    ("receive-options-options-remembered", options_remembered),
];

const SO_COOKIE: libc::c_int = 57;
const SO_RXQ_OVFL: libc::c_int = 40;
const SO_LOCK_FILTER: libc::c_int = 44;
const SO_BUSY_POLL: libc::c_int = 46;
const SO_PEERGROUPS: libc::c_int = 59;
const SO_TIMESTAMPNS_NEW: libc::c_int = 64;

fn set<T>(fd: &impl AsRawFd, option: libc::c_int, value: &T) -> io::Result<()> {
    let len = mem::size_of::<T>() as libc::socklen_t;
    // SAFETY: the value is alive during the call.
    checked(unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            (&raw const *value).cast(),
            len,
        )
    })
    .map(drop)
}

/// An option's bytes, of at most `room`, and the length the kernel says.
fn get(fd: &impl AsRawFd, option: libc::c_int, room: usize) -> io::Result<(Vec<u8>, usize)> {
    let mut value = vec![0u8; room];
    let mut len = room as libc::socklen_t;
    // SAFETY: both are alive during the call, and the length is that of the buffer.
    checked(unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            value.as_mut_ptr().cast(),
            &raw mut len,
        )
    })?;
    Ok((value, len as usize))
}

fn udp_pair() -> Result<(UdpSocket, UdpSocket)> {
    let (a, b) = (
        UdpSocket::bind(("127.0.0.1", 0))?,
        UdpSocket::bind(("127.0.0.1", 0))?,
    );
    a.connect(b.local_addr()?)?;
    Ok((a, b))
}

/// The nanoseconds since 1970 in a control message, whose fraction counts `unit` of them.
fn time_in(bytes: &[u8], unit: i64) -> Result<i64> {
    let (seconds, fraction) = (
        bytes.get(..8).context("short")?,
        bytes.get(8..16).context("short")?,
    );
    Ok(i64::from_ne_bytes(seconds.try_into()?) * 1_000_000_000
        + i64::from_ne_bytes(fraction.try_into()?) * unit)
}

fn stamped() -> Result<()> {
    let now = || -> Result<i64> {
        Ok(SystemTime::now()
            .duration_since(UNIX_EPOCH)?
            .as_nanos()
            .try_into()?)
    };
    for (option, value, unit, len) in [
        (libc::SO_TIMESTAMP, 1, 1000, 16),
        (libc::SO_TIMESTAMPNS, 1, 1, 16),
        (SO_TIMESTAMPNS_NEW, 1, 1, 16),
        (libc::SO_TIMESTAMPING, 0x18, 1, 48),
    ] {
        let (from, to) = udp_pair()?;
        let (unix_from, unix_to) = UnixDatagram::pair()?;
        set(&to, option, &value)?;
        set(&unix_to, option, &value)?;
        ensure!(
            i32::from_ne_bytes(get(&to, option, 4)?.0.try_into().unwrap()) == value,
            "option {option} is not what it was set to"
        );
        let before = now()?;
        from.send(b"x")?;
        unix_from.send(b"x")?;
        let sent = now()?;
        for (what, told) in [
            ("UDP", receive_control(&to)?),
            ("AF_UNIX", receive_control(&unix_to)?),
        ] {
            if what == "AF_UNIX" && option == libc::SO_TIMESTAMPING {
                ensure!(told.is_empty(), "AF_UNIX: {} control messages", told.len());
                continue;
            }
            let [(level, kind, bytes)] = &told[..] else {
                anyhow::bail!("{what}: {} control messages", told.len())
            };
            ensure!(
                (*level, *kind, bytes.len()) == (libc::SOL_SOCKET, option, len),
                "{what}: {level}, {kind}, {} bytes",
                bytes.len()
            );
            let time = time_in(bytes, unit)?;
            // Microseconds are cut off; the first one who asks may get the time of receiving.
            ensure!(
                before / 1000 * 1000 <= time && time <= now()?,
                "{what}: stamped {time}, sent from {before} to {sent}"
            );
        }
        set(&to, option, &0)?;
        from.send(b"x")?;
        ensure!(
            receive_control(&to)?.is_empty(),
            "still stamped after option {option} was taken back"
        );
    }
    let (_, to) = udp_pair()?;
    ensure!(
        errno(set(&to, libc::SO_TIMESTAMPING, &0x4000_0000)) == libc::EINVAL,
        "unknown ways of stamping are taken"
    );
    set(&to, libc::SO_TIMESTAMP, &1)?;
    set(&to, libc::SO_TIMESTAMPNS, &1)?;
    ensure!(
        get(&to, libc::SO_TIMESTAMP, 4)?.0 == [0; 4],
        "stamped twice"
    );
    Ok(())
}

/// One instruction: operation, jumps, operand.
const fn op(code: u16, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

fn attach(fd: &impl AsRawFd, code: &[libc::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog {
        len: code.len() as u16,
        filter: code.as_ptr().cast_mut(),
    };
    set(fd, libc::SO_ATTACH_FILTER, &program)
}

/// Lets whole packets in whose byte at `at` is an `a`, and of those with a `b` so many bytes.
fn letters(at: u32, of_b: u32) -> [libc::sock_filter; 6] {
    [
        op(0x30, 0, 0, at),
        op(0x15, 0, 1, 97),
        op(0x06, 0, 0, 0xffff),
        op(0x15, 0, 1, 98),
        op(0x06, 0, 0, of_b),
        op(0x06, 0, 0, 0),
    ]
}

fn filtered() -> Result<()> {
    let (from, to) = udp_pair()?;
    // In front of a datagram's bytes are the eight of its header.
    attach(&to, &letters(8, 10))?;
    let (unix_from, unix_to) = UnixDatagram::pair()?;
    attach(&unix_to, &letters(0, 2))?;
    let take = |fd: &dyn AsRawFd| -> io::Result<Vec<u8>> {
        let mut buf = [0; 16];
        let n = recv(&fd.as_raw_fd(), &mut buf, libc::MSG_DONTWAIT)?;
        Ok(buf[..n].to_vec())
    };
    for text in ["x123", "a123", "b123", "", "a"] {
        ensure!(
            from.send(text.as_bytes())? == text.len(),
            "the sender hears of the filter (UDP)"
        );
        ensure!(
            unix_from.send(text.as_bytes())? == text.len(),
            "the sender hears of the filter (AF_UNIX)"
        );
    }
    for (what, fd) in [("UDP", &to as &dyn AsRawFd), ("AF_UNIX", &unix_to)] {
        let got = [take(fd)?, take(fd)?, take(fd)?];
        ensure!(got == [&b"a123"[..], b"b1", b"a"], "{what}: {got:?}");
        ensure!(errno(take(fd)) == libc::EAGAIN, "{what}: more was let in");
    }
    // The port a datagram comes from is in its header.
    let port = from.local_addr()?.port();
    attach(
        &to,
        &[
            op(0x28, 0, 0, 0),
            op(0x15, 0, 1, port.into()),
            op(0x06, 0, 0, 0xffff),
            op(0x06, 0, 0, 0),
        ],
    )?;
    UdpSocket::bind(("127.0.0.1", 0))?.send_to(b"stranger", to.local_addr()?)?;
    from.send(b"friend")?;
    ensure!(take(&to)? == b"friend", "not filtered by port");
    set(&to, libc::SO_DETACH_FILTER, &0)?;
    from.send(b"x")?;
    ensure!(take(&to)? == b"x", "still filtered");
    Ok(())
}

fn filter_is_kept() -> Result<()> {
    let (_, to) = udp_pair()?;
    ensure!(
        errno(set(&to, libc::SO_DETACH_FILTER, &0)) == libc::ENOENT,
        "there was a filter"
    );
    ensure!(
        errno(attach(&to, &[op(0x28, 0, 0, 0)])) == libc::EINVAL,
        "a filter without an end is taken"
    );
    ensure!(
        errno(attach(
            &to,
            &[op(0x20, 0, 0, 0xffff_f001), op(0x06, 0, 0, 1)]
        )) == libc::EINVAL,
        "an unknown load is taken"
    );
    ensure!(
        get(&to, libc::SO_ATTACH_FILTER, 0)?.1 == 0,
        "there is a filter"
    );
    let program = letters(8, 9);
    attach(&to, &program)?;
    ensure!(
        get(&to, libc::SO_ATTACH_FILTER, 0)?.1 == program.len(),
        "the filter is not as long as it is"
    );
    let (bytes, count) = get(&to, libc::SO_ATTACH_FILTER, program.len() * 8)?;
    ensure!(
        count == program.len() && bytes[..8] == [0x30, 0, 0, 0, 8, 0, 0, 0],
        "the filter is {bytes:?}"
    );
    set(&to, SO_LOCK_FILTER, &1)?;
    ensure!(get(&to, SO_LOCK_FILTER, 4)?.0 == [1, 0, 0, 0], "not locked");
    for result in [
        attach(&to, &program),
        set(&to, libc::SO_DETACH_FILTER, &0),
        set(&to, SO_LOCK_FILTER, &0),
    ] {
        ensure!(errno(result) == libc::EPERM, "a locked filter is changed");
    }
    Ok(())
}

fn lost_are_counted() -> Result<()> {
    let (from, to) = udp_pair()?;
    set(&to, SO_RXQ_OVFL, &1)?;
    attach(&to, &letters(8, 9))?;
    for text in ["x", "x", "a"] {
        from.send(text.as_bytes())?;
    }
    let told = receive_control(&to)?;
    ensure!(
        told == [(libc::SOL_SOCKET, SO_RXQ_OVFL, 2u32.to_ne_bytes().to_vec())],
        "told {told:?}"
    );
    Ok(())
}

fn groups_of_the_peer() -> Result<()> {
    // SAFETY: the first call asks for a count, the second has room for as many.
    let mut own = unsafe {
        let mut own = vec![0u32; checked(libc::getgroups(0, std::ptr::null_mut()))? as usize];
        let count = checked(libc::getgroups(own.len() as libc::c_int, own.as_mut_ptr()))?;
        own.truncate(count as usize);
        own
    };
    own.sort_unstable();
    let (a, _b) = UnixStream::pair()?;
    let (bytes, len) = get(&a, SO_PEERGROUPS, 4096)?;
    let mut groups: Vec<u32> = bytes[..len]
        .as_chunks::<4>()
        .0
        .iter()
        .map(|id| u32::from_ne_bytes(*id))
        .collect();
    groups.sort_unstable();
    ensure!(groups == own, "the peer has {groups:?}, not {own:?}");
    if !own.is_empty() {
        ensure!(
            errno(get(&a, SO_PEERGROUPS, 1)) == libc::ERANGE,
            "groups where there is no room"
        );
    }
    let (udp, _) = udp_pair()?;
    ensure!(
        errno(get(&udp, SO_PEERGROUPS, 64)) == libc::ENODATA,
        "a peer nobody knows has groups"
    );
    Ok(())
}

fn options_remembered() -> Result<()> {
    // SAFETY: the new number belongs to nobody else.
    let fd =
        unsafe { OwnedFd::from_raw_fd(checked(libc::socket(libc::AF_INET, libc::SOCK_DGRAM, 0))?) };
    set(&fd, libc::SO_BINDTODEVICE, b"lo\0")?;
    let (name, len) = get(&fd, libc::SO_BINDTODEVICE, 16)?;
    ensure!(&name[..len] == b"lo\0", "bound to {name:?}");
    ensure!(
        errno(set(&fd, libc::SO_BINDTODEVICE, b"none0\0")) == libc::ENODEV,
        "bound to what is not there"
    );
    set(&fd, libc::SO_BINDTODEVICE, b"")?;
    ensure!(get(&fd, libc::SO_BINDTODEVICE, 16)?.1 == 0, "still bound");
    set(&fd, SO_BUSY_POLL, &0)?;
    ensure!(get(&fd, SO_BUSY_POLL, 4)?.0 == [0; 4], "busy");
    let cookies = [
        get(&fd, SO_COOKIE, 8)?.0,
        get(&fd, SO_COOKIE, 8)?.0,
        get(&udp_pair()?.0, SO_COOKIE, 8)?.0,
    ];
    ensure!(
        cookies[0] == cookies[1] && cookies[0] != cookies[2],
        "cookies {cookies:?}"
    );
    ensure!(
        errno(get(&fd, SO_COOKIE, 4)) == libc::EINVAL,
        "half a cookie"
    );
    ensure!(
        errno(get(&fd, libc::SO_PEERSEC, 64)) == libc::ENOPROTOOPT,
        "a security module answers"
    );
    Ok(())
}
