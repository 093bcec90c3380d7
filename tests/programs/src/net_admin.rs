//! Network state that administrators read and set: `/proc/sys/net`, `/proc/net`, `ioctl`s about
//! interfaces and sockets.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};

use crate::inet_sockets::{get, pair, set, socket};
use crate::sockets::errno;
use crate::{Check, checked};

pub const CHECKS: &[(&str, Check)] = &[
    ("net-admin-settings-act", settings),
    ("net-admin-settings-have-bounds", bounds),
    ("net-admin-interfaces-by-ioctl", interfaces),
    ("net-admin-time-of-the-last-message", last_message),
    ("net-admin-files-about-the-network", files),
    ("net-admin-memory-of-sockets", memory_of_sockets),
    ("net-admin-memory-beside-the-buffers", memory_beside),
    ("net-admin-memory-has-limits", memory_has_limits),
];

const SIOCGSTAMP: libc::c_ulong = 0x8906;
const SIOCGSTAMPNS: libc::c_ulong = 0x8907;
const SIOCGIFFLAGS: libc::c_ulong = 0x8913;
const SIOCSIFFLAGS: libc::c_ulong = 0x8914;
const SIOCGIFMTU: libc::c_ulong = 0x8921;
const SIOCSIFMTU: libc::c_ulong = 0x8922;
const SIOCGIFMAP: libc::c_ulong = 0x8970;
const SIOCOUTQNSD: libc::c_ulong = 0x894b;

/// A setting that has another value until this is dropped.
struct Changed(String, String);

impl Changed {
    fn new(name: &str, value: &str) -> Result<Self> {
        let path = format!("/proc/sys/net/{name}");
        let before = fs::read_to_string(&path).context(path.clone())?;
        fs::write(&path, value).context(path.clone())?;
        Ok(Self(path, before))
    }
}

impl Drop for Changed {
    fn drop(&mut self) {
        // Nothing depends on it any more.
        let _ = fs::write(&self.0, &self.1);
    }
}

fn settings() -> Result<()> {
    {
        let _range = Changed::new("ipv4/ip_local_port_range", "41000 41015\n")?;
        ensure!(
            fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")? == "41000\t41015\n",
            "it reads otherwise"
        );
        for _ in 0..8 {
            let port = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?
                .local_addr()?
                .port();
            ensure!((41_000..=41_015).contains(&port), "port {port}");
        }
    }
    {
        let _idle = Changed::new("ipv4/tcp_keepalive_time", "1234")?;
        let fd = socket(libc::AF_INET, libc::SOCK_STREAM)?;
        ensure!(
            get(&fd, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE)? == 1234,
            "another time"
        );
    }
    {
        let _buffer = Changed::new("core/rmem_default", "300000")?;
        let fd = socket(libc::AF_INET, libc::SOCK_DGRAM)?;
        ensure!(
            get(&fd, libc::SOL_SOCKET, libc::SO_RCVBUF)? == 300_000,
            "another buffer"
        );
    }
    {
        let _foreign = Changed::new("ipv4/ip_nonlocal_bind", "1")?;
        UdpSocket::bind((Ipv4Addr::new(192, 0, 2, 1), 0)).context("another host's address")?;
    }
    ensure!(
        UdpSocket::bind((Ipv4Addr::new(192, 0, 2, 1), 0)).is_err(),
        "another host's address is bound"
    );
    Ok(())
}

fn bounds() -> Result<()> {
    for (name, bad) in [
        ("ipv4/ip_local_port_range", "50000 40000"),
        ("ipv4/ip_local_port_range", "0 70000"),
        ("ipv4/ip_default_ttl", "256"),
        ("ipv4/ip_default_ttl", "far"),
        ("core/somaxconn", "-1"),
    ] {
        let path = format!("/proc/sys/net/{name}");
        let before = fs::read_to_string(&path)?;
        ensure!(
            errno(fs::write(&path, bad)) == libc::EINVAL,
            "{name} takes {bad}"
        );
        ensure!(fs::read_to_string(&path)? == before, "{name} changed");
    }
    Ok(())
}

/// `struct ifreq` of the loop, with a word.
fn request(fd: &impl AsRawFd, command: libc::c_ulong, word: u32) -> io::Result<[u8; 40]> {
    let mut bytes = [0u8; 40];
    bytes[..2].copy_from_slice(b"lo");
    bytes[16..20].copy_from_slice(&word.to_ne_bytes());
    // SAFETY: the structure is alive during the call, and as large as any of these requests needs.
    checked(unsafe { libc::ioctl(fd.as_raw_fd(), command, bytes.as_mut_ptr()) })?;
    Ok(bytes)
}

fn interfaces() -> Result<()> {
    let fd = socket(libc::AF_INET, libc::SOCK_DGRAM)?;
    let flags = request(&fd, SIOCGIFFLAGS, 0)?;
    let flags = u32::from(u16::from_ne_bytes([flags[16], flags[17]]));
    ensure!(
        flags & (libc::IFF_UP | libc::IFF_LOOPBACK) as u32
            == (libc::IFF_UP | libc::IFF_LOOPBACK) as u32,
        "flags {flags:#x}"
    );
    // What is so already can be set.
    request(&fd, SIOCSIFFLAGS, flags)?;
    let mtu = request(&fd, SIOCGIFMTU, 0)?;
    request(
        &fd,
        SIOCSIFMTU,
        u32::from_ne_bytes([mtu[16], mtu[17], mtu[18], mtu[19]]),
    )?;
    ensure!(
        request(&fd, SIOCGIFMAP, 0)?[16..] == [0; 24],
        "it has memory of its own"
    );
    let (stream, _other) = pair()?;
    let mut waits = -1i32;
    // SAFETY: the number is alive during the call.
    checked(unsafe { libc::ioctl(stream.as_raw_fd(), SIOCOUTQNSD, &raw mut waits) })?;
    ensure!(waits == 0, "{waits} bytes were not sent");
    Ok(())
}

fn time(fd: &impl AsRawFd, command: libc::c_ulong) -> io::Result<[i64; 2]> {
    let mut time = [0i64; 2];
    // SAFETY: the structure is alive during the call.
    checked(unsafe { libc::ioctl(fd.as_raw_fd(), command, time.as_mut_ptr()) })?;
    Ok(time)
}

fn last_message() -> Result<()> {
    let (a, b) = (
        UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?,
        UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?,
    );
    ensure!(
        errno(time(&b, SIOCGSTAMP)) == libc::ENOENT,
        "a time of nothing"
    );
    let now = || -> Result<i64> {
        Ok(SystemTime::now()
            .duration_since(UNIX_EPOCH)?
            .as_nanos()
            .try_into()?)
    };
    let before = now()?;
    a.send_to(b"x", b.local_addr()?)?;
    let sent = now()?;
    b.recv(&mut [0; 4])?;
    let [seconds, nanoseconds] = time(&b, SIOCGSTAMPNS)?;
    let at = seconds * 1_000_000_000 + nanoseconds;
    ensure!(
        before <= at && at <= sent,
        "it came at {at}, sent from {before} to {sent}"
    );
    let [again, micros] = time(&b, SIOCGSTAMP)?;
    ensure!(
        (again, micros) == (seconds, nanoseconds / 1000),
        "not the same in microseconds"
    );
    Ok(())
}

fn files() -> Result<()> {
    let connection =
        TcpStream::connect(std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?);
    for (name, start, lines) in [
        ("arp", "IP address ", 1),
        ("netstat", "TcpExt: SyncookiesSent ", 4),
        ("snmp", "Ip: Forwarding ", 10),
        ("snmp6", "Ip6InReceives ", 20),
        ("sockstat", "sockets: used ", 6),
        ("sockstat6", "TCP6: inuse ", 5),
        ("udplite", "   sl  local_address ", 1),
        ("igmp", "Idx\tDevice    : Count Querier", 3),
        ("route", "Iface\tDestination\tGateway ", 1),
        ("packet", "sk ", 1),
        ("dev", "Inter-|   Receive ", 3),
    ] {
        let text = fs::read_to_string(format!("/proc/net/{name}")).context(name)?;
        ensure!(
            text.trim_start().starts_with(start.trim_start()),
            "{name} begins with {:?}",
            text.lines().next()
        );
        ensure!(
            text.lines().count() >= lines,
            "{name} has {} lines",
            text.lines().count()
        );
    }
    let routes = fs::read_to_string("/proc/net/ipv6_route")?;
    ensure!(
        routes.lines().any(
            |line| line.starts_with("00000000000000000000000000000001 80 ")
                && line.ends_with("      lo")
        ),
        "{routes}"
    );
    drop(connection);
    Ok(())
}

/// A number of `/proc/net/sockstat`: the one behind `name` in the line of `of`.
fn sockstat(of: &str, name: &str) -> Result<usize> {
    let text = fs::read_to_string("/proc/net/sockstat")?;
    let mut words = text
        .lines()
        .find_map(|line| line.strip_prefix(of)?.strip_prefix(": "))
        .with_context(|| format!("no {of} in {text}"))?
        .split(' ');
    words.find(|word| *word == name);
    let number = words.next().with_context(|| format!("no {name} of {of}"))?;
    Ok(number.parse()?)
}

fn memory_of_sockets() -> Result<()> {
    /// Bytes that wait in the end. Linux tells of a megabyte more or less for each processor.
    const BYTES: usize = 12 << 20;
    /// Pages that are told of it at least, and of nothing at most.
    const MANY: usize = 1 << 10;
    const PATIENCE: Duration = Duration::from_secs(20);
    let now = || -> Result<[usize; 5]> {
        Ok([
            sockstat("sockets", "used")?,
            sockstat("TCP", "inuse")?,
            sockstat("TCP", "mem")?,
            sockstat("UDP", "inuse")?,
            sockstat("UDP", "mem")?,
        ])
    };
    let room = |fd: i32| {
        for option in [libc::SO_SNDBUFFORCE, libc::SO_RCVBUFFORCE] {
            set(&fd, libc::SOL_SOCKET, option, &(BYTES as i32).to_ne_bytes())?;
        }
        Ok::<_, anyhow::Error>(())
    };
    let before = now()?;
    let (local, _) = std::os::unix::net::UnixStream::pair()?;
    let udp = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    room(udp.as_raw_fd())?;
    let (near, far) = pair()?;
    near.set_nonblocking(true)?;
    room(near.as_raw_fd())?;
    room(far.as_raw_fd())?;
    let bytes = vec![7; 32_768];
    let mut sent = 0;
    while sent < BYTES / 2 {
        sent += udp.send_to(&bytes, udp.local_addr()?)?;
    }
    let mut written = 0;
    while written < BYTES / 2 {
        match io::Write::write(&mut &near, &bytes) {
            Ok(more) => written += more,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error.into()),
        }
    }
    let full = now()?;
    // Sockets of the check before may have gone meanwhile.
    ensure!(full[0] >= 4, "sockets: {before:?}, {full:?}");
    ensure!(full[1] >= 2, "of TCP: {before:?}, {full:?}");
    ensure!(full[3] >= 1, "of UDP: {before:?}, {full:?}");
    for kind in [2, 4] {
        ensure!(
            full[kind] >= before[kind] + MANY,
            "{written} bytes are nothing: {before:?}, {full:?}"
        );
    }
    drop((local, udp, near, far));
    // Linux gives the memory back a little later.
    let begin = Instant::now();
    loop {
        let after = now()?;
        if [2, 4].iter().all(|&kind| after[kind] < before[kind] + MANY) {
            return Ok(());
        }
        let waited = begin.elapsed();
        ensure!(waited < PATIENCE, "it stays: {before:?}, {after:?}");
        std::thread::yield_now();
    }
}

/// All sockets of a protocol together have no more memory than its limits say.
fn memory_has_limits() -> Result<()> {
    let plenty = [wait_in_datagrams()?, wait_in_streams()?];
    let limits = [
        Changed::new("ipv4/udp_mem", "1 1 1")?,
        Changed::new("ipv4/tcp_mem", "1 1 1")?,
    ];
    let few = [wait_in_datagrams()?, wait_in_streams()?];
    drop(limits);
    // Linux counts a megabyte less for each processor.
    for protocol in 0..2 {
        ensure!(
            few[protocol] * 2 < plenty[protocol],
            "{few:?} of {plenty:?}"
        );
    }
    let again = wait_in_datagrams()?;
    ensure!(again == plenty[0], "{again} of {plenty:?}");
    Ok(())
}

/// Sends datagrams to many sockets that do not receive; how many bytes they have then.
fn wait_in_datagrams() -> Result<usize> {
    const SOCKETS: usize = 128;
    const EACH: usize = 12;
    let mut bytes = [7; 8192];
    let sockets: Vec<UdpSocket> = (0..SOCKETS)
        .map(|_| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)))
        .collect::<io::Result<_>>()?;
    for socket in &sockets {
        socket.set_nonblocking(true)?;
        for _ in 0..EACH {
            ensure!(
                socket.send_to(&bytes, socket.local_addr()?)? == bytes.len(),
                "a sender hears of what is lost"
            );
        }
    }
    let mut all = 0;
    for socket in &sockets {
        while let Ok(more) = socket.recv(&mut bytes) {
            all += more;
        }
    }
    Ok(all)
}

/// Writes to many connections whose peers do not read; how many bytes they take.
fn wait_in_streams() -> Result<usize> {
    const PAIRS: usize = 64;
    const BUFFER: i32 = 65_536;
    let bytes = [7; 8192];
    let (mut all, mut pairs) = (0, Vec::new());
    for _ in 0..PAIRS {
        let (near, far) = pair()?;
        near.set_nonblocking(true)?;
        set(
            &near.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_SNDBUF,
            &BUFFER.to_ne_bytes(),
        )?;
        all += loop_until_full(&near, &bytes)?;
        pairs.push((near, far));
    }
    Ok(all)
}

/// Writes until there is no room; how many bytes there was room for.
fn loop_until_full(mut to: &TcpStream, bytes: &[u8]) -> Result<usize> {
    let mut all = 0;
    loop {
        match io::Write::write(&mut to, bytes) {
            Ok(more) => all += more,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(all),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Groups of IPv4 are counted as memory of the socket, too, and not only by their number.
fn memory_beside() -> Result<()> {
    let most = Changed::new("ipv4/igmp_max_memberships", "1000")?;
    let member = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    let mut joined = 0;
    let error = loop {
        let group = Ipv4Addr::new(239, 1, 4 + (joined / 256) as u8, (joined % 256) as u8);
        if let Err(error) = member.join_multicast_v4(&group, &Ipv4Addr::LOCALHOST) {
            break error.raw_os_error();
        }
        joined += 1;
        ensure!(joined < 1000, "{joined} groups");
    };
    drop(most);
    ensure!(error == Some(libc::ENOBUFS), "one more group: {error:?}");
    ensure!((300..=500).contains(&joined), "{joined} groups");
    Ok(())
}
