//! `AF_PACKET`: who listens to the loop hears what goes over it, packet by packet or in memory that
//! is mapped.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};

use crate::inet_sockets::{Received, receive_all, set, wait_for};
use crate::raw_sockets::checksum;
use crate::sockets::{errno, send};
use crate::{Check, checked};

pub const CHECKS: &[(&str, Check)] = &[
    ("af-packet-to-datagrams", datagrams),
    ("af-packet-to-a-connection", connection),
    ("af-packet-through-a-filter", filtered),
    ("af-packet-without-the-links-header", without_header),
    ("af-packet-frames-from-programs", frames),
    ("af-packet-in-a-ring-of-frames", ring_of_frames),
    ("af-packet-in-a-ring-of-blocks", ring_of_blocks),
    ("af-packet-refusals", refusals),
];

const SOL_PACKET: i32 = 263;
const RX_RING: i32 = 5;
const STATISTICS: i32 = 6;
const AUXDATA: i32 = 8;
const VERSION: i32 = 10;
const HEADER_LENGTH: i32 = 11;
const IGNORE_OUTGOING: i32 = 23;
const ETH_P_ALL: u16 = 3;
const ETH_P_IP: u16 = 0x800;
/// Direction of packets (`sll_pkttype`).
const TO_HOST: u8 = 0;
const OUTGOING: u8 = 4;
/// Bytes of headers: the link's, IPv4's, UDP's.
const LINK: usize = 14;
const IP: usize = 20;
const UDP: usize = 8;

/// The loop's number.
fn index() -> Result<i32> {
    // SAFETY: the name is alive during the call.
    let index = unsafe { libc::if_nametoindex(c"lo".as_ptr()) };
    Ok(i32::try_from(index)?)
}

fn address(protocol: u16) -> Result<libc::sockaddr_ll> {
    // SAFETY: a structure of numbers may be zero.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol.to_be();
    address.sll_ifindex = index()?;
    Ok(address)
}

/// A socket that is bound to the loop, whether it hears anything yet or not.
fn listener(kind: i32, protocol: u16) -> Result<OwnedFd> {
    // SAFETY: the new number belongs to nobody else.
    let fd = unsafe { OwnedFd::from_raw_fd(checked(libc::socket(libc::AF_PACKET, kind, 0))?) };
    let limit = libc::timeval {
        tv_sec: 20,
        tv_usec: 0,
    };
    set(&fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, &limit)?;
    bind(&fd, protocol)?;
    Ok(fd)
}

fn bind(fd: &OwnedFd, protocol: u16) -> Result<()> {
    let address = address(protocol)?;
    let len = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the address is alive during the call.
    checked(unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), len) })?;
    Ok(())
}

fn udp_pair() -> Result<(UdpSocket, UdpSocket)> {
    let (a, b) = (
        UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?,
        UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?,
    );
    a.connect(b.local_addr()?)?;
    Ok((a, b))
}

/// Direction and protocol of a packet.
fn way(got: &Received) -> Result<(u8, u16)> {
    ensure!(
        got.name.len() == 20 && got.name[..2] == (libc::AF_PACKET as u16).to_ne_bytes(),
        "from {:?}",
        got.name
    );
    ensure!(
        got.name[4..8] == index()?.to_ne_bytes() && got.name[8..10] == 772u16.to_ne_bytes(),
        "from {:?}",
        got.name
    );
    Ok((got.name[10], u16::from_be_bytes([got.name[2], got.name[3]])))
}

fn statistics(fd: &OwnedFd) -> io::Result<Vec<u32>> {
    let mut words = [0u32; 3];
    let mut len = size_of_val(&words) as libc::socklen_t;
    // SAFETY: both are alive during the call, and the length is that of the buffer.
    checked(unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            SOL_PACKET,
            STATISTICS,
            words.as_mut_ptr().cast(),
            &raw mut len,
        )
    })?;
    Ok(words[..len as usize / 4].to_vec())
}

fn datagrams() -> Result<()> {
    let ears = listener(libc::SOCK_RAW, ETH_P_ALL)?;
    set(&ears, SOL_PACKET, AUXDATA, &1)?;
    let (a, b) = udp_pair()?;
    a.send(b"hello")?;
    for expected in [OUTGOING, TO_HOST] {
        let got = receive_all(&ears, 0)?;
        ensure!(way(&got)? == (expected, ETH_P_IP), "went {:?}", way(&got)?);
        let packet = &got.data;
        ensure!(
            packet.len() == LINK + IP + UDP + 5 && packet.ends_with(b"hello"),
            "{packet:?}"
        );
        ensure!(
            packet[..LINK] == [[0; 12].as_slice(), &ETH_P_IP.to_be_bytes()].concat(),
            "the link's header is {packet:?}"
        );
        ensure!(
            packet[LINK] == 0x45 && packet[LINK + 9] == 17,
            "IP's header is {packet:?}"
        );
        let ports = [
            a.local_addr()?.port().to_be_bytes(),
            b.local_addr()?.port().to_be_bytes(),
        ]
        .concat();
        ensure!(
            packet[LINK + IP..LINK + IP + 4] == ports,
            "the ports are not those"
        );
        let [(level, kind, bytes)] = &got.control[..] else {
            anyhow::bail!("{} control messages", got.control.len())
        };
        ensure!(
            (*level, *kind, bytes.len()) == (SOL_PACKET, AUXDATA, 20),
            "{level}, {kind}"
        );
        let word = |at: usize| {
            u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]) as usize
        };
        ensure!(
            (word(4), word(8), word(0) & 1) == (packet.len(), packet.len(), 1),
            "said of it: {bytes:?}"
        );
    }
    ensure!(
        statistics(&ears)? == [2, 0] && statistics(&ears)? == [0, 0],
        "not counted"
    );
    set(&ears, SOL_PACKET, IGNORE_OUTGOING, &1)?;
    a.send(b"again")?;
    ensure!(
        way(&receive_all(&ears, 0)?)?.0 == TO_HOST,
        "outgoing ones are not ignored"
    );
    ensure!(
        errno(receive_all(&ears, libc::MSG_DONTWAIT).map(drop)) == libc::EAGAIN,
        "heard more"
    );
    let mut text = String::new();
    std::fs::File::open("/proc/net/packet")?.read_to_string(&mut text)?;
    ensure!(
        text.lines().count() == 2 && text.contains(" 0003 "),
        "/proc/net/packet: {text}"
    );
    Ok(())
}

/// Of a segment that goes to the host: the ports, the flags, how many bytes.
fn segment(got: &Received) -> Option<(u16, u16, u8, usize)> {
    let (packet, tcp) = (&got.data, got.data.get(LINK + IP..)?);
    (packet[LINK + 9] == 6 && got.name[10] == TO_HOST).then(|| {
        let length = tcp.len() - usize::from(tcp[12] >> 4) * 4;
        (
            u16::from_be_bytes([tcp[0], tcp[1]]),
            u16::from_be_bytes([tcp[2], tcp[3]]),
            tcp[13],
            length,
        )
    })
}

fn connection() -> Result<()> {
    const FIN: u8 = 1;
    const SYN: u8 = 2;
    const RST: u8 = 4;
    const ACK: u8 = 16;
    let ears = listener(libc::SOCK_RAW, ETH_P_ALL)?;
    let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let port = server.local_addr()?.port();
    let mut client = TcpStream::connect(("127.0.0.1", port))?;
    let (mut accepted, _) = server.accept()?;
    client.write_all(b"question")?;
    accepted.read_exact(&mut [0; 8])?;
    accepted.write_all(b"an answer")?;
    client.read_exact(&mut [0; 9])?;
    // One ends by shutdown, the other by being closed.
    client.shutdown(std::net::Shutdown::Write)?;
    ensure!(accepted.read(&mut [0])? == 0, "not the end");
    drop((accepted, client, server));
    ensure!(
        TcpStream::connect(("127.0.0.1", port)).is_err(),
        "somebody listens"
    );
    let (mut bytes, mut ends, mut opened, mut flags_seen) = ([0, 0], 0, Vec::new(), 0);
    while flags_seen & RST == 0 {
        let Some((from, to, flags, length)) = segment(&receive_all(&ears, 0)?) else {
            continue;
        };
        ensure!(
            from == port || to == port,
            "another connection, from {from} to {to}"
        );
        bytes[usize::from(from == port)] += length;
        ends += u32::from(flags & FIN != 0);
        if flags & SYN != 0 {
            opened.push((from == port, flags & ACK != 0));
        }
        flags_seen |= flags;
    }
    ensure!(bytes == [8, 9], "{bytes:?} bytes");
    ensure!(ends == 2, "{ends} ends");
    ensure!(
        opened == [(false, false), (true, true), (false, false)],
        "opened by {opened:?}"
    );
    Ok(())
}

/// Lets only UDP to a port in, and of that so many bytes.
fn only_udp(fd: &OwnedFd, port: u16, length: u32) -> io::Result<()> {
    let op = |code: u16, jt: u8, jf: u8, k: u32| libc::sock_filter { code, jt, jf, k };
    let code = [
        op(0x28, 0, 0, 12),
        op(0x15, 0, 5, ETH_P_IP.into()),
        op(0x30, 0, 0, 23),
        op(0x15, 0, 3, 17),
        op(0x28, 0, 0, (LINK + IP + 2) as u32),
        op(0x15, 0, 1, port.into()),
        op(0x06, 0, 0, length),
        op(0x06, 0, 0, 0),
    ];
    let program = libc::sock_fprog {
        len: code.len() as u16,
        filter: code.as_ptr().cast_mut(),
    };
    set(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
}

fn filtered() -> Result<()> {
    let ears = listener(libc::SOCK_RAW, ETH_P_IP)?;
    let (a, b) = udp_pair()?;
    let (other, _to) = udp_pair()?;
    only_udp(&ears, b.local_addr()?.port(), (LINK + IP + UDP + 2) as u32)?;
    other.send(b"other")?;
    a.send(b"hello")?;
    let got = receive_all(&ears, 0)?;
    ensure!(
        way(&got)? == (TO_HOST, ETH_P_IP),
        "one of one protocol goes {:?}",
        way(&got)?
    );
    ensure!(
        got.data.ends_with(b"he") && got.data.len() == LINK + IP + UDP + 2,
        "heard {:?}",
        got.data
    );
    ensure!(
        errno(receive_all(&ears, libc::MSG_DONTWAIT).map(drop)) == libc::EAGAIN,
        "heard more"
    );
    Ok(())
}

fn without_header() -> Result<()> {
    let ears = listener(libc::SOCK_DGRAM, ETH_P_ALL)?;
    let (a, _b) = udp_pair()?;
    a.send(b"hello")?;
    let got = receive_all(&ears, 0)?;
    ensure!(
        got.data.len() == IP + UDP + 5 && got.data[0] == 0x45,
        "heard {:?}",
        got.data
    );
    Ok(())
}

fn frames() -> Result<()> {
    const OWN: u16 = 0x88b5;
    let (from, to) = (
        listener(libc::SOCK_RAW, ETH_P_ALL)?,
        listener(libc::SOCK_RAW, OWN)?,
    );
    let frame = [
        &[0xff; 6][..],
        &[0; 6],
        &OWN.to_be_bytes(),
        b"frame of a program",
    ]
    .concat();
    ensure!(send(&from, &frame, 0)? == frame.len(), "not all was sent");
    ensure!(receive_all(&to, 0)?.data == frame, "not as it was sent");
    // The sender hears it coming in.
    ensure!(
        receive_all(&from, 0)?.data == frame,
        "the sender does not hear it"
    );
    ensure!(
        errno(receive_all(&from, libc::MSG_DONTWAIT).map(drop)) == libc::EAGAIN,
        "it hears it twice"
    );
    // A datagram of a program reaches the socket it is for: over IPv6, as of IPv4 the loop's own
    // addresses do not come in from outside.
    let (a, b) = (
        UdpSocket::bind((Ipv6Addr::LOCALHOST, 0))?,
        UdpSocket::bind((Ipv6Addr::LOCALHOST, 0))?,
    );
    b.set_read_timeout(Some(Duration::from_secs(20)))?;
    a.send_to(b"hello", b.local_addr()?)?;
    let mut packet = loop {
        let got = receive_all(&from, 0)?;
        if got.data.ends_with(b"hello") && got.name[10] == TO_HOST {
            break got.data;
        }
    };
    b.recv(&mut [0; 8])?;
    // On the loop nobody has summed it up (RFC 8200, section 8.1).
    let ip = &packet[LINK..];
    let pseudo = [&ip[8..40], &ip[4..6], &[0, 17]].concat();
    let zeroed = [&ip[40..46], &[0, 0], &ip[48..]].concat();
    let sum = checksum(&[pseudo, zeroed].concat()).to_be_bytes();
    packet[LINK + 46..LINK + 48].copy_from_slice(&sum);
    send(&from, &packet, 0)?;
    let mut text = [0; 8];
    let n = b.recv(&mut text)?;
    ensure!(&text[..n] == b"hello", "received {:?}", &text[..n]);
    // The largest frame, one that is larger, and less than a header.
    const MOST: usize = LINK + 65_536;
    let large = [&frame[..LINK], &[0; MOST + 1 - LINK]].concat();
    ensure!(
        send(&from, &large[..MOST], 0)? == MOST,
        "not all of the largest frame was sent"
    );
    ensure!(
        errno(send(&from, &large, 0)) == libc::EMSGSIZE,
        "a larger frame is sent"
    );
    ensure!(
        errno(send(&from, &large[..LINK - 1], 0)) == libc::EINVAL,
        "half a header is sent"
    );
    Ok(())
}

/// A mapped ring.
struct Mapped(*mut u8, usize);

impl Mapped {
    fn new(fd: &OwnedFd, size: usize) -> Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: new memory.
        let at = unsafe {
            libc::mmap(
                ptr::null_mut(),
                size,
                protection,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                0,
            )
        };
        ensure!(
            at != libc::MAP_FAILED,
            "mmap: {}",
            io::Error::last_os_error()
        );
        Ok(Self(at.cast(), size))
    }

    fn word(&self, at: usize) -> &AtomicU32 {
        assert!(at.is_multiple_of(4) && at + 4 <= self.1);
        // SAFETY: within the mapping, which lives as long as this; the kernel writes there, too,
        // whole words.
        unsafe { AtomicU32::from_ptr(self.0.add(at).cast()) }
    }

    fn get(&self, at: usize) -> usize {
        self.word(at).load(Ordering::Acquire) as usize
    }

    fn half(&self, at: usize) -> usize {
        self.get(at & !3) >> ((at & 3) * 8) & 0xffff
    }

    fn bytes(&self, at: usize, length: usize) -> Vec<u8> {
        assert!(at + length <= self.1);
        // SAFETY: within the mapping, in a part that is the program's now.
        (at..at + length)
            .map(|at| unsafe { self.0.add(at).read_volatile() })
            .collect()
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: nobody has references into it any more.
        unsafe { libc::munmap(self.0.cast(), self.1) };
    }
}

fn header_length(fd: &OwnedFd, version: i32) -> io::Result<i32> {
    let (mut value, mut len) = (version, 4);
    // SAFETY: both are alive during the call, and the length is that of the value.
    checked(unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            SOL_PACKET,
            HEADER_LENGTH,
            (&raw mut value).cast(),
            &raw mut len,
        )
    })?;
    Ok(value)
}

fn ring_of_frames() -> Result<()> {
    const FRAME: usize = 2048;
    const FRAMES: usize = 8;
    // Bound to no protocol before all is in place.
    let ears = listener(libc::SOCK_RAW, 0)?;
    ensure!(
        header_length(&ears, 1)? == 32,
        "the header has {} bytes",
        header_length(&ears, 1)?
    );
    set(&ears, SOL_PACKET, VERSION, &1)?;
    set(
        &ears,
        SOL_PACKET,
        RX_RING,
        &[16_384u32, 1, FRAME as u32, FRAMES as u32],
    )?;
    ensure!(
        errno(set(&ears, SOL_PACKET, VERSION, &2)) == libc::EBUSY,
        "another version"
    );
    let ring = Mapped::new(&ears, FRAME * FRAMES)?;
    let (a, b) = udp_pair()?;
    only_udp(&ears, b.local_addr()?.port(), 0xffff)?;
    bind(&ears, ETH_P_IP)?;
    let seconds = || {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map(|time| time.as_secs())
    };
    for round in 0..2 {
        let before = seconds()?;
        for i in 0..FRAMES + 2 {
            a.send(&[i as u8; 100])?;
        }
        let during = before..=seconds()?;
        ensure!(
            wait_for(&ears, libc::POLLIN)? & libc::POLLIN != 0,
            "nothing to look at"
        );
        for i in 0..FRAMES {
            let at = i * FRAME;
            ensure!(
                ring.get(at) & 1 != 0,
                "round {round}: frame {i} is not ours"
            );
            let (full, kept, mac) = (ring.get(at + 4), ring.get(at + 8), ring.half(at + 12));
            ensure!(
                (full, kept) == (LINK + IP + UDP + 100, full),
                "{kept} of {full} bytes"
            );
            ensure!(
                ring.half(at + 14) == mac + LINK,
                "what is behind the link's header is elsewhere"
            );
            ensure!(
                ring.bytes(at + mac + LINK + IP + UDP, 100) == [i as u8; 100],
                "frame {i} holds something else"
            );
            let came = ring.get(at + 16) as u64;
            ensure!(
                during.contains(&came),
                "frame {i} came at {came} s, not in {during:?}"
            );
            ring.word(at).store(0, Ordering::Release);
        }
        ensure!(statistics(&ears)? == [FRAMES as u32 + 2, 2], "not counted");
    }
    Ok(())
}

fn ring_of_blocks() -> Result<()> {
    const BLOCK: usize = 16_384;
    const BLOCKS: usize = 4;
    let ears = listener(libc::SOCK_RAW, 0)?;
    ensure!(
        header_length(&ears, 2)? == 48,
        "the header has {} bytes",
        header_length(&ears, 2)?
    );
    set(&ears, SOL_PACKET, VERSION, &2)?;
    set(
        &ears,
        SOL_PACKET,
        RX_RING,
        &[
            BLOCK as u32,
            BLOCKS as u32,
            2048,
            (BLOCK / 2048 * BLOCKS) as u32,
            50,
            0,
            0,
        ],
    )?;
    let ring = Mapped::new(&ears, BLOCK * BLOCKS)?;
    let (a, b) = udp_pair()?;
    only_udp(&ears, b.local_addr()?.port(), 0xffff)?;
    bind(&ears, ETH_P_IP)?;
    let (mut sent, mut seen, mut block) = (0u32, 0u32, 0);
    while seen < 100 {
        // Full blocks, and blocks whose time has come.
        for _ in 0..20 {
            if sent < 100 {
                a.send(&[&sent.to_ne_bytes()[..], &[0; 200]].concat())?;
                b.recv(&mut [0; 512])?;
                sent += 1;
            }
        }
        while seen < sent {
            let start = block * BLOCK;
            while ring.get(start + 8) & 1 == 0 {
                wait_for(&ears, libc::POLLIN)?;
            }
            let (packets, mut at) = (ring.get(start + 12), start + ring.get(start + 16));
            ensure!(packets > 0, "an empty block");
            for number in 0..packets {
                let mac = ring.half(at + 24);
                let text = ring.bytes(at + mac + LINK + IP + UDP, 4);
                ensure!(text == seen.to_ne_bytes(), "packet {seen} is {text:?}");
                let next = ring.get(at);
                ensure!(
                    (next == 0) == (number + 1 == packets),
                    "the chain of {packets} ends at {number}"
                );
                at += next;
                seen += 1;
            }
            ring.word(start + 8).store(0, Ordering::Release);
            block = (block + 1) % BLOCKS;
        }
    }
    let counted = statistics(&ears)?;
    ensure!(counted == [100, 0, 0], "counted {counted:?}");
    Ok(())
}

fn refusals() -> Result<()> {
    let ears = listener(libc::SOCK_RAW, 0)?;
    ensure!(
        errno(set(&ears, SOL_PACKET, RX_RING, &[100u32, 1, 100, 1])) == libc::EINVAL,
        "half a page"
    );
    ensure!(errno(header_length(&ears, 7)) == libc::EINVAL, "version 7");
    let mut none = address(ETH_P_ALL)?;
    none.sll_ifindex = 4711;
    let len = size_of_val(&none) as libc::socklen_t;
    // SAFETY: the address is alive during the call.
    let bound = checked(unsafe { libc::bind(ears.as_raw_fd(), (&raw const none).cast(), len) });
    ensure!(errno(bound) == libc::ENODEV, "bound to what is not there");
    // SAFETY: no memory is involved.
    let stream = checked(unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_STREAM, 0) });
    ensure!(
        errno(stream) == libc::ESOCKTNOSUPPORT,
        "a stream of packets"
    );
    let refused = std::thread::spawn(|| -> Result<i32> {
        // SAFETY: no memory is involved; the number is this thread's alone.
        checked(unsafe { libc::syscall(libc::SYS_setresuid, 1000, 1000, 1000) } as i32)?;
        // SAFETY: no memory is involved.
        Ok(errno(checked(unsafe {
            libc::socket(libc::AF_PACKET, libc::SOCK_RAW, 0)
        })))
    });
    ensure!(
        refused.join().ok().context("the thread ended")?? == libc::EPERM,
        "anybody listens"
    );
    Ok(())
}
