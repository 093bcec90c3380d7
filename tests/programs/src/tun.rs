//! `/dev/net/tun`: what a program writes an interface has received, and what goes out by it the
//! program reads.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::inet_sockets::wait_for;
use crate::raw_sockets::checksum;
use crate::sockets::errno;
use crate::{Check, checked};

pub const CHECKS: &[(&str, Check)] = &[
    ("tun-has-no-interface-at-first", without),
    ("tun-refusals", refusals),
    ("tun-packets-both-ways", packets),
    ("tun-headers-before-packets", headers),
    ("tun-tap-answers-for-its-address", tap),
    ("tun-interfaces-that-stay", persistent),
    ("tun-who-may-attach", owners),
    ("tun-queues-keep-flows-apart", queues),
    ("tun-packets-wait-for-a-slow-reader", slow_reader),
];

const TUNSETIFF: u32 = 0x4004_54ca;
const TUNSETPERSIST: u32 = 0x4004_54cb;
const TUNSETOWNER: u32 = 0x4004_54cc;
const TUNGETFEATURES: u32 = 0x8004_54cf;
const TUNSETOFFLOAD: u32 = 0x4004_54d0;
const TUNGETIFF: u32 = 0x8004_54d2;
const TUNGETSNDBUF: u32 = 0x8004_54d3;
const TUNSETSNDBUF: u32 = 0x4004_54d4;
const TUNGETVNETHDRSZ: u32 = 0x8004_54d7;
const TUNSETVNETHDRSZ: u32 = 0x4004_54d8;
const TUNSETQUEUE: u32 = 0x4004_54d9;
const SIOCGIFHWADDR: u32 = 0x8927;
const TUN: u16 = 1;
const TAP: u16 = 2;
const MULTI_QUEUE: u16 = 0x100;
const ATTACH_QUEUE: u16 = 0x200;
const DETACH_QUEUE: u16 = 0x400;
const PERSIST: u16 = 0x800;
const NO_PI: u16 = 0x1000;
const VNET_HDR: u16 = 0x4000;
const EXCLUSIVE: u16 = 0x8000;
const IFF_UP: u16 = 1;
const IFF_RUNNING: u16 = 0x40;

/// `struct ifreq`.
#[repr(C)]
#[derive(Clone, Copy)]
struct IfReq {
    name: [u8; 16],
    value: [u8; 24],
}

impl IfReq {
    fn new(name: &str, value: &[u8]) -> Self {
        let mut request = Self {
            name: [0; 16],
            value: [0; 24],
        };
        request.name[..name.len()].copy_from_slice(name.as_bytes());
        request.value[..value.len()].copy_from_slice(value);
        request
    }

    fn name(&self) -> String {
        let len = self.name.iter().position(|b| *b == 0).unwrap_or(16);
        String::from_utf8_lossy(&self.name[..len]).into_owned()
    }

    fn flags(&self) -> u16 {
        u16::from_ne_bytes([self.value[0], self.value[1]])
    }
}

fn open() -> Result<File> {
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true);
    let options = options.custom_flags(libc::O_NONBLOCK);
    options.open("/dev/net/tun").context("/dev/net/tun")
}

fn ioctl<T>(fd: &impl AsRawFd, request: u32, argument: &mut T) -> io::Result<i32> {
    // SAFETY: the structure outlives the call, and is what the request takes.
    checked(unsafe { libc::ioctl(fd.as_raw_fd(), request.into(), &raw mut *argument) })
}

fn ioctl_number(fd: &impl AsRawFd, request: u32, argument: usize) -> io::Result<i32> {
    // SAFETY: the request takes a number.
    checked(unsafe { libc::ioctl(fd.as_raw_fd(), request.into(), argument) })
}

fn attach(file: &File, name: &str, flags: u16) -> io::Result<String> {
    let mut request = IfReq::new(name, &flags.to_ne_bytes());
    ioctl(file, TUNSETIFF, &mut request)?;
    Ok(request.name())
}

/// An opening with an interface of its own, which is up and has an address.
fn interface(name: &str, flags: u16, address: [u8; 4]) -> Result<(File, String)> {
    let file = open()?;
    let name = attach(&file, name, flags).context("TUNSETIFF")?;
    set_up(&name, address)?;
    Ok((file, name))
}

fn any_socket() -> Result<UdpSocket> {
    UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).context("a socket")
}

fn set_up(name: &str, address: [u8; 4]) -> Result<()> {
    let control = any_socket()?;
    let sockaddr = |ip: [u8; 4]| [&[2, 0, 0, 0][..], &ip, &[0; 8]].concat();
    for (request, value) in [
        (0x8916, sockaddr(address)),
        (0x891c, sockaddr([255, 255, 255, 0])),
    ] {
        ioctl(&control, request, &mut IfReq::new(name, &value)).context("an address")?;
    }
    let flags = IfReq::new(name, &IFF_UP.to_ne_bytes());
    ioctl(&control, 0x8914, &mut { flags }).context("up")?;
    Ok(())
}

/// Flags of an interface; none if there is no such.
fn shown_flags(name: &str) -> Result<Option<u16>> {
    let mut request = IfReq::new(name, &[]);
    Ok(match ioctl(&any_socket()?, 0x8913, &mut request) {
        Ok(_) => Some(request.flags()),
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => None,
        Err(error) => return Err(error.into()),
    })
}

/// The next packet of UDP over IPv4 that is read, behind `before` bytes. What the host says by
/// itself is passed over.
fn udp_packet(mut file: &File, before: usize) -> Result<Vec<u8>> {
    loop {
        wait_for(file, libc::POLLIN)?;
        let mut buffer = [0; 4096];
        let len = file.read(&mut buffer)?;
        let packet = &buffer[before..len];
        if packet[0] >> 4 == 4 && packet[9] == 17 {
            return Ok(buffer[..len].to_vec());
        }
    }
}

/// The answer to a packet of UDP: its addresses and ports exchanged, without a checksum of UDP.
fn answer(packet: &[u8], text: &[u8]) -> Vec<u8> {
    let mut answer = packet[..28].to_vec();
    answer[12..16].copy_from_slice(&packet[16..20]);
    answer[16..20].copy_from_slice(&packet[12..16]);
    answer[20..22].copy_from_slice(&packet[22..24]);
    answer[22..24].copy_from_slice(&packet[20..22]);
    let len = (8 + text.len()) as u16;
    answer[2..4].copy_from_slice(&(20 + len).to_be_bytes());
    answer[24..26].copy_from_slice(&len.to_be_bytes());
    answer[26..28].fill(0);
    answer[10..12].fill(0);
    let sum = checksum(&answer[..20]);
    answer[10..12].copy_from_slice(&sum.to_be_bytes());
    answer.extend_from_slice(text);
    answer
}

fn without() -> Result<()> {
    let mut file = open()?;
    let mut features = 0u32;
    ioctl(&file, TUNGETFEATURES, &mut features)?;
    let wanted = u32::from(TUN | TAP | NO_PI | VNET_HDR | MULTI_QUEUE);
    ensure!(features & wanted == wanted, "features {features:#x}");
    ensure!(errno(file.read(&mut [0; 100])) == libc::EBADFD, "read");
    ensure!(errno(file.write(&[0; 100])) == libc::EBADFD, "write");
    let mut request = IfReq::new("", &[]);
    ensure!(
        errno(ioctl(&file, TUNGETIFF, &mut request)) == libc::EBADFD,
        "TUNGETIFF"
    );
    let mut poll = libc::pollfd {
        fd: file.as_raw_fd(),
        events: libc::POLLIN | libc::POLLOUT,
        revents: 0,
    };
    // SAFETY: the structure outlives the call.
    checked(unsafe { libc::poll(&raw mut poll, 1, 0) })?;
    ensure!(poll.revents == libc::POLLERR, "poll: {:#x}", poll.revents);
    Ok(())
}

fn refusals() -> Result<()> {
    let file = open()?;
    let refused = |name, flags| errno(attach(&file, name, flags));
    ensure!(refused("tunref", 0) == libc::EINVAL, "no kind");
    ensure!(refused("a/b", TUN) == libc::EINVAL, "a bad name");
    ensure!(refused("lo", TUN) == libc::EINVAL, "the loop");
    let name = attach(&file, "tunref%d", TUN | NO_PI)?;
    ensure!(name == "tunref0", "{name}");
    ensure!(refused("tunref1", TUN) == libc::EEXIST, "two interfaces");
    let mut request = IfReq::new("", &[]);
    ioctl(&file, TUNGETIFF, &mut request)?;
    ensure!(
        request.name() == name && request.flags() & (TUN | TAP | NO_PI | PERSIST) == TUN | NO_PI,
        "TUNGETIFF: {} {:#x}",
        request.name(),
        request.flags()
    );
    let other = open()?;
    let refused = |flags| errno(attach(&other, "tunref0", flags));
    ensure!(refused(TUN | NO_PI) == libc::EBUSY, "in use");
    ensure!(refused(TUN | EXCLUSIVE) == libc::EBUSY, "not new");
    ensure!(refused(TAP) == libc::EINVAL, "another kind");
    ensure!(refused(TUN | MULTI_QUEUE) == libc::EINVAL, "another number");
    // What cannot be is refused, and the interface is as it was.
    let number = |request, mut value: i32| errno(ioctl(&file, request, &mut value));
    ensure!(number(TUNSETVNETHDRSZ, 9) == libc::EINVAL, "a short header");
    ensure!(number(TUNSETSNDBUF, 0) == libc::EINVAL, "no buffer");
    let offload = errno(ioctl_number(&file, TUNSETOFFLOAD, 1 << 20));
    ensure!(offload == libc::EINVAL, "off-loading");
    let mut size = 0i32;
    ioctl(&file, TUNGETSNDBUF, &mut size)?;
    ensure!(size == i32::MAX, "a buffer of {size}");
    ioctl(&file, TUNGETVNETHDRSZ, &mut size)?;
    ensure!(size == 10, "a header of {size}");
    ensure!(
        errno((&file).write(&answer(&[0x45; 28], b""))) == libc::EIO,
        "written while it is down"
    );
    drop((file, other));
    ensure!(shown_flags("tunref0")?.is_none(), "it stays");
    Ok(())
}

fn packets() -> Result<()> {
    let (mut file, _) = interface("tunpkt%d", TUN | NO_PI, [10, 91, 1, 1])?;
    let socket = any_socket()?;
    socket.send_to(b"question", (Ipv4Addr::new(10, 91, 1, 2), 7))?;
    let asked = udp_packet(&file, 0)?;
    ensure!(
        asked[12..20] == [10, 91, 1, 1, 10, 91, 1, 2] && &asked[28..] == b"question",
        "{asked:?}"
    );
    let written = file.write(&answer(&asked, b"answer"))?;
    ensure!(written == 34, "wrote {written}");
    let mut text = [0; 100];
    let (len, from) = socket.recv_from(&mut text)?;
    ensure!(
        &text[..len] == b"answer" && from.to_string() == "10.91.1.2:7",
        "{from}"
    );
    for (bad, what) in [
        (&[][..], "nothing"),
        (&[0x10; 40], "version 1"),
        (&[0; 40], "version 0"),
    ] {
        ensure!(errno(file.write(bad)) == libc::EINVAL, "{what}");
    }
    // What is too short or wrongly summed is the protocol's.
    file.write_all(&[0x45; 4])?;
    // Of a packet that does not fit the rest is lost.
    socket.send_to(b"long question", (Ipv4Addr::new(10, 91, 1, 2), 7))?;
    wait_for(&file, libc::POLLIN)?;
    let mut start = [0; 24];
    while !(file.read(&mut start)? == 24 && start[0] == 0x45 && start[9] == 17) {
        wait_for(&file, libc::POLLIN)?;
    }
    let empty = loop {
        if let Err(error) = file.read(&mut text) {
            break error;
        }
    };
    ensure!(empty.kind() == ErrorKind::WouldBlock, "{empty}");
    // One that waits is woken.
    // SAFETY: a new descriptor of the same opening.
    let waiting = unsafe { File::from_raw_fd(checked(libc::dup(file.as_raw_fd()))?) };
    let reader = thread::spawn(move || udp_packet(&waiting, 0));
    socket.send_to(b"third", (Ipv4Addr::new(10, 91, 1, 3), 7))?;
    let third = reader.join().ok().context("the reader panicked")??;
    ensure!(&third[28..] == b"third", "{third:?}");
    Ok(())
}

fn headers() -> Result<()> {
    let (mut file, _) = interface("tunhdr%d", TUN | VNET_HDR, [10, 91, 2, 1])?;
    ioctl(&file, TUNSETVNETHDRSZ, &mut 12i32)?;
    let socket = any_socket()?;
    socket.send_to(b"question", (Ipv4Addr::new(10, 91, 2, 2), 7))?;
    let asked = udp_packet(&file, 16)?;
    ensure!(asked[..4] == [0, 0, 8, 0], "{:?}", &asked[..16]);
    // Without its sum, which is asked for: the place has that of the pseudo-header.
    let mut packet = answer(&asked[16..], b"answer");
    let pseudo = [&packet[12..20], &[0, 17, 0, 14]].concat();
    packet[26..28].copy_from_slice(&(!checksum(&pseudo)).to_be_bytes());
    let header = |flags: u8, gso: u8, start: u16, offset: u16| {
        let words = [0, 0, start, offset, 0].map(u16::to_le_bytes);
        [&[flags, gso][..], words.as_flattened()].concat()
    };
    let whole = |header: &[u8]| [&[0, 0, 8, 0], header, &packet].concat();
    file.write_all(&whole(&header(1, 0, 20, 6)))?;
    let mut text = [0; 100];
    let (len, _) = socket.recv_from(&mut text)?;
    ensure!(&text[..len] == b"answer", "{:?}", &text[..len]);
    for (bad, what) in [
        (whole(&header(1, 0, 30, 40)), "a sum outside"),
        (vec![0; 3], "half of the first header"),
        (vec![0; 10], "half of the second header"),
    ] {
        ensure!(errno(file.write(&bad)) == libc::EINVAL, "{what}");
    }
    Ok(())
}

fn tap() -> Result<()> {
    let (mut file, _) = interface("tap%d", TAP | NO_PI, [10, 91, 3, 1])?;
    let mut hardware = IfReq::new("x", &[]);
    ioctl(&file, SIOCGIFHWADDR, &mut hardware)?;
    let address: [u8; 6] = hardware.value[2..8].try_into()?;
    ensure!(
        hardware.name() == "x" && hardware.flags() == 1 && address[0] & 3 == 2,
        "{:?}",
        hardware.value
    );
    let mine = [2, 0, 0, 0, 0, 7];
    let request = [
        &[0xff; 6][..],
        &mine,
        &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1],
        &mine,
        &[10, 91, 3, 2],
        &[0; 6],
        &[10, 91, 3, 1],
    ]
    .concat();
    ensure!(errno(file.write(&request[..13])) == libc::EINVAL, "short");
    file.write_all(&request)?;
    let mut frame = [0; 2048];
    loop {
        wait_for(&file, libc::POLLIN)?;
        let len = file.read(&mut frame)?;
        if len >= 42 && frame[12..14] == [8, 6] && frame[20..22] == [0, 2] {
            break;
        }
    }
    ensure!(
        frame[..6] == mine && frame[22..28] == address && frame[28..32] == [10, 91, 3, 1],
        "{:?}",
        &frame[..42]
    );
    Ok(())
}

fn persistent() -> Result<()> {
    let (file, name) = interface("tunper%d", TUN | NO_PI, [10, 91, 4, 1])?;
    let running = |name: &str| -> Result<Option<bool>> {
        Ok(shown_flags(name)?.map(|flags| flags & IFF_RUNNING != 0))
    };
    ensure!(running(&name)? == Some(true), "it does not run");
    ioctl_number(&file, TUNSETPERSIST, 1)?;
    drop(file);
    // Linux tells it a little later.
    let wait_for_running = |wanted| {
        let mut looks = 0;
        while running(&name)? != Some(wanted) {
            ensure!(looks < 2000, "running is not {wanted}");
            looks += 1;
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    };
    wait_for_running(false)?;
    let socket = any_socket()?;
    socket
        .send_to(b"to nobody", (Ipv4Addr::new(10, 91, 4, 2), 7))
        .ok();
    let file = open()?;
    let exclusive = errno(attach(&file, &name, TUN | EXCLUSIVE));
    ensure!(exclusive == libc::EBUSY, "not new");
    attach(&file, &name, TUN | NO_PI)?;
    let mut request = IfReq::new("", &[]);
    wait_for_running(true)?;
    ioctl(&file, TUNGETIFF, &mut request)?;
    ensure!(request.flags() & PERSIST != 0, "{:#x}", request.flags());
    socket.send_to(b"again", (Ipv4Addr::new(10, 91, 4, 2), 7))?;
    ensure!(&udp_packet(&file, 0)?[28..] == b"again", "another packet");
    ioctl_number(&file, TUNSETPERSIST, 0)?;
    drop(file);
    ensure!(shown_flags(&name)?.is_none(), "it stays");
    Ok(())
}

fn owners() -> Result<()> {
    let file = open()?;
    let name = attach(&file, "tunown%d", TUN | NO_PI)?;
    ioctl_number(&file, TUNSETOWNER, 1000)?;
    ioctl_number(&file, TUNSETPERSIST, 1)?;
    drop(file);
    let try_as = |uid: u32, name: String| {
        let attempt = move || -> Result<(i32, i32)> {
            // SAFETY: no memory is involved; the number is this thread's alone.
            checked(unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) } as i32)?;
            let file = open()?;
            let new = errno(attach(&file, "tunown-new", TUN));
            let known = attach(&file, &name, TUN | NO_PI);
            Ok((
                new,
                known.map_or_else(|error| errno::<()>(Err(error)), |_| 0),
            ))
        };
        thread::spawn(attempt).join().ok().context("it panicked")?
    };
    let owner = try_as(1000, name.clone())?;
    ensure!(owner == (libc::EPERM, 0), "the owner: {owner:?}");
    let other = try_as(1001, name.clone())?;
    ensure!(other == (libc::EPERM, libc::EPERM), "another: {other:?}");
    let file = open()?;
    attach(&file, &name, TUN | NO_PI)?;
    ioctl_number(&file, TUNSETPERSIST, 0)?;
    Ok(())
}

fn queues() -> Result<()> {
    const FLOWS: u16 = 64;
    let flags = TUN | NO_PI | MULTI_QUEUE;
    let (first, name) = interface("tunque%d", flags, [10, 91, 5, 1])?;
    let second = open()?;
    attach(&second, &name, flags)?;
    let one = open()?;
    ensure!(
        errno(attach(&one, &name, TUN | NO_PI)) == libc::EINVAL,
        "one"
    );
    let sockets: Vec<UdpSocket> = (0..FLOWS).map(|_| any_socket()).collect::<Result<_>>()?;
    let send_all = || {
        sockets.iter().try_for_each(|socket| {
            socket
                .send_to(b"x", (Ipv4Addr::new(10, 91, 5, 2), 7))
                .map(drop)
        })
    };
    let ports = |mut file: &File| -> Result<Vec<u16>> {
        let mut ports = Vec::new();
        let mut packet = [0; 2048];
        loop {
            match file.read(&mut packet) {
                Ok(29) if packet[9] == 17 => {
                    ports.push(u16::from_be_bytes([packet[20], packet[21]]));
                }
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
        }
        ports.sort_unstable();
        Ok(ports)
    };
    send_all()?;
    let (of_first, of_second) = (ports(&first)?, ports(&second)?);
    ensure!(
        of_first.len() + of_second.len() == usize::from(FLOWS)
            && of_first.len().min(of_second.len()) > 0,
        "{} and {} flows",
        of_first.len(),
        of_second.len()
    );
    send_all()?;
    ensure!(
        ports(&first)? == of_first && ports(&second)? == of_second,
        "flows have moved"
    );
    let queue = |flags: u16| {
        ioctl(
            &first,
            TUNSETQUEUE,
            &mut IfReq::new("", &flags.to_ne_bytes()),
        )
    };
    ensure!(errno(queue(ATTACH_QUEUE)) == libc::EINVAL, "attached twice");
    queue(DETACH_QUEUE)?;
    ensure!(errno(queue(DETACH_QUEUE)) == libc::EINVAL, "detached twice");
    send_all()?;
    ensure!(
        ports(&second)?.len() == usize::from(FLOWS),
        "some were lost"
    );
    queue(ATTACH_QUEUE)?;
    send_all()?;
    let both = ports(&first)?.len() + ports(&second)?.len();
    ensure!(both == usize::from(FLOWS), "{both} flows");
    // One that is full keeps nobody from reading when it is closed.
    for _ in 0..5 {
        send_all()?;
    }
    drop(first);
    ports(&second)?;
    send_all()?;
    ensure!(
        ports(&second)?.len() == usize::from(FLOWS),
        "others are kept waiting"
    );
    Ok(())
}

/// Packets wait for a slow reader, in their order.
fn slow_reader() -> Result<()> {
    let (mut file, _) = interface("tunslo%d", TUN | NO_PI, [10, 91, 6, 1])?;
    let socket = any_socket()?;
    for number in 0..200u32 {
        socket.send_to(&number.to_ne_bytes(), (Ipv4Addr::new(10, 91, 6, 2), 7))?;
    }
    for number in 0..200u32 {
        let packet = udp_packet(&file, 0)?;
        ensure!(packet[28..] == number.to_ne_bytes(), "not {number}");
    }
    let mut packet = [0; 2048];
    loop {
        match file.read(&mut packet) {
            Ok(_) => ensure!(packet[0] >> 4 != 4 || packet[9] != 17, "more than was sent"),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}
