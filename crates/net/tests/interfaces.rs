//! A host with interfaces, as its drivers and programs see it.

mod common;

use std::sync::{Arc, Mutex};

use abi::errno::Errno;
use common::{NOW, call, protocol};
use fs::{File, OpenFlags};
use linux_raw_sys::net as sys;
use net::inet::{Host, procfs};
use net::{
    Address, Frame, FrameRefused, LinkAddress, LinkKind, MsgFlags, NetDevice, NewInterface,
    OutgoingMessage, SocketType, Stack,
};

const OWN: [u8; 6] = [2, 0, 0, 0, 0, 1];
const OTHER: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// A device that keeps what it is to send, as much as it has room for.
struct Kept {
    frames: Mutex<Vec<Vec<u8>>>,
    room: usize,
}

impl Kept {
    fn new(room: usize) -> Arc<Self> {
        Arc::new(Self {
            frames: Mutex::default(),
            room,
        })
    }

    fn take(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.frames.lock().unwrap())
    }
}

impl NetDevice for Kept {
    fn transmit(&self, frame: Frame) -> Result<(), FrameRefused> {
        let mut frames = self.frames.lock().unwrap();
        if frames.len() >= self.room {
            return Err(FrameRefused::Lost);
        }
        frames.push(frame.data);
        Ok(())
    }
}

fn new(name: &str, link: LinkKind) -> NewInterface<'_> {
    NewInterface {
        name,
        link,
        mtu: 1500,
        max_mtu: 9000,
        queue_len: 1000,
        has_carrier: true,
        has_ipv6: false,
    }
}

/// A host with an interface of Ethernet that is up.
fn host(room: usize) -> (Arc<Host>, Arc<Stack>, Arc<Kept>, u32) {
    let (host, device) = (Host::new(), Kept::new(room));
    let stack = Stack::new(host.clone());
    let index = host
        .add_interface(&new("eth%d", LinkKind::Ethernet(OWN)), device.clone())
        .unwrap();
    host.set_up(index, true).unwrap();
    (host, stack, device, index)
}

fn frame(to: [u8; 6], kind: [u8; 2], payload: &[u8]) -> Frame {
    Frame {
        data: [&to[..], &OTHER, &kind, payload].concat(),
    }
}

fn packet_socket(stack: &Stack, kind: SocketType, index: u32) -> Arc<File> {
    let every = i32::from(3u16.to_be());
    let socket = stack.socket(sys::AF_PACKET, kind, every).unwrap();
    let file = socket.into_file(OpenFlags::NONBLOCK);
    let address = Address::Packet(LinkAddress {
        protocol: 3,
        interface_index: index.cast_signed(),
        hardware_type: 0,
        packet_type: 0,
        hardware_len: 0,
        hardware_address: [0; 8],
    });
    call(|caller| protocol(&file).bind(caller, &address)).unwrap();
    file
}

/// Sender, kind and direction of the next packet, and its bytes.
fn next(file: &File) -> Option<([u8; 6], u16, u8, Vec<u8>)> {
    let got = protocol(file).receive_to_vec(2000, MsgFlags::empty(), NOW);
    let (data, message) = got.ok()?;
    let Some(Address::Packet(from)) = message.from else {
        panic!("no address of a link")
    };
    let sender = from.hardware_address[..6].try_into().unwrap();
    Some((sender, from.protocol, from.packet_type, data))
}

#[test]
fn packet_sockets_hear_what_comes_in_and_for_whom_it_is() {
    let (host, stack, _, index) = host(8);
    let whole = packet_socket(&stack, SocketType::Raw, index);
    let cooked = packet_socket(&stack, SocketType::Datagram, index);
    let elsewhere = packet_socket(&stack, SocketType::Raw, 1);
    let destinations = [OWN, [0xff; 6], [1, 0, 0x5e, 0, 0, 1], OTHER];
    for (direction, to) in destinations.into_iter().enumerate() {
        let frame = frame(to, [0x88, 0xb5], b"payload");
        host.receive(index, &frame.data);
        let expected = |data: Vec<u8>| Some((OTHER, 0x88b5, direction as u8, data));
        assert_eq!(next(&whole), expected(frame.data));
        assert_eq!(next(&cooked), expected(b"payload".to_vec()));
    }
    assert_eq!(next(&elsewhere), None);
    let counts = host.interface(index).unwrap().received;
    assert_eq!((counts.packets, counts.bytes, counts.multicast), (4, 84, 1));
}

#[test]
fn a_link_without_headers_tells_the_protocol_by_the_packet() {
    let (host, stack, device, _) = host(8);
    let tun = host
        .add_interface(&new("tun%d", LinkKind::PointToPoint), device.clone())
        .unwrap();
    host.set_up(tun, true).unwrap();
    let whole = packet_socket(&stack, SocketType::Raw, tun);
    for (first, kind) in [(0x45, 0x0800), (0x60, 0x86dd), (0x10, 0)] {
        let data = vec![first, 2, 3];
        host.receive(tun, &data);
        assert_eq!(next(&whole), Some(([0; 6], kind, 0, data)));
    }
    protocol(&whole)
        .send(OutgoingMessage::plain(b"E"), MsgFlags::empty(), NOW)
        .unwrap();
    assert_eq!(device.take(), [b"E"]);
}

#[test]
fn packet_sockets_send_and_hear_each_other_but_not_themselves() {
    let (host, stack, device, index) = host(1);
    let [sender, listener] = [(); 2].map(|()| packet_socket(&stack, SocketType::Raw, index));
    let bytes = frame(OTHER, [0x88, 0xb5], b"out").data;
    let send =
        |data: &[u8]| protocol(&sender).send(OutgoingMessage::plain(data), MsgFlags::empty(), NOW);
    assert_eq!(send(&bytes), Ok(bytes.len()));
    assert_eq!(next(&listener), Some((OTHER, 0x88b5, 4, bytes.clone())));
    assert_eq!(next(&sender), None);
    assert_eq!(send(&bytes), Err(Errno::ENOBUFS), "the device is full");
    assert_eq!(device.take(), std::slice::from_ref(&bytes));
    assert_eq!(send(&bytes[..13]), Err(Errno::EINVAL), "no header");
    assert_eq!(send(&[0; 1515]), Err(Errno::EMSGSIZE));
    let counts = host.interface(index).unwrap().sent;
    assert_eq!((counts.packets, counts.bytes, counts.dropped), (1, 17, 1));
    host.set_up(index, false).unwrap();
    assert_eq!(send(&bytes), Err(Errno::ENETDOWN));
    host.receive(index, &frame(OWN, [0x88, 0xb5], b"in").data);
    host.remove_interface(index).unwrap();
    assert_eq!(send(&bytes), Err(Errno::ENODEV));
    host.receive(index, &frame(OWN, [0x88, 0xb5], b"in").data);
    assert_eq!(device.take(), Vec::<Vec<u8>>::new());
}

#[test]
fn what_is_counted_is_shown() {
    let (host, stack, _, index) = host(8);
    host.receive(index, &frame(OWN, [0x88, 0xb5], b"hello").data);
    host.receive(index, &[1, 2]);
    let text = procfs::dev(stack.inet());
    let line = text.lines().find(|line| line.contains("eth0:")).unwrap();
    let words: Vec<_> = line.split_whitespace().collect();
    assert_eq!(words[..5], ["eth0:", "19", "1", "1", "0"]);
    assert_eq!(text.lines().count(), 4);
}

/// A program's memory that is one `struct ifreq`.
struct Request(Mutex<Vec<u8>>);

impl fs::ioctl::IoctlCaller for Request {
    fn read_bytes(&self, _: usize, to: &mut [u8]) -> fs::Result<()> {
        to.copy_from_slice(
            self.0
                .lock()
                .unwrap()
                .get(..to.len())
                .ok_or(Errno::EFAULT)?,
        );
        Ok(())
    }

    fn write_bytes(&self, _: usize, from: &[u8]) -> fs::Result<()> {
        *self.0.lock().unwrap() = from.to_vec();
        Ok(())
    }

    fn install(&self, _: Arc<File>, _: OpenFlags) -> fs::Result<usize> {
        Err(Errno::EMFILE)
    }

    fn privileged(&self) -> bool {
        false
    }
}

/// Asks for something of an interface; what is answered is behind its name.
fn ifreq(stack: &Stack, name: &str, command: u32, value: &[u8]) -> fs::Result<Vec<u8>> {
    let socket = stack.socket(sys::AF_INET, SocketType::Datagram, 0).unwrap();
    let file = socket.into_file(OpenFlags::empty());
    let mut bytes = vec![0; 40];
    bytes[..name.len()].copy_from_slice(name.as_bytes());
    bytes[16..16 + value.len()].copy_from_slice(value);
    let memory = Request(Mutex::new(bytes));
    file.ioctl(&fs::ioctl::IoctlRequest {
        command,
        arg: 0,
        caller: &memory,
    })?;
    Ok(memory.0.into_inner().unwrap()[16..].to_vec())
}

/// `struct sockaddr_in`.
fn sockaddr(ip: [u8; 4]) -> Vec<u8> {
    [&(sys::AF_INET as u16).to_ne_bytes()[..], &[0, 0], &ip].concat()
}

#[test]
fn interfaces_are_configured_as_ifconfig_does_it() {
    use linux_raw_sys::ioctl as nr;
    net::set_credentials_provider(|| net::Ucred::OVERFLOW, || Arc::from([]), |_| true);
    let (host, stack, _, index) = host(8);
    let set = |command, value: &[u8]| ifreq(&stack, "eth0", command, value).map(drop);
    let get = |command| ifreq(&stack, "eth0", command, &[]);
    let ip = |command| get(command).map(|value| value[4..8].to_vec());
    assert_eq!(
        set(nr::SIOCSIFNETMASK, &sockaddr([255, 255, 255, 0])),
        Err(Errno::EADDRNOTAVAIL)
    );
    set(nr::SIOCSIFADDR, &sockaddr([10, 0, 0, 1])).unwrap();
    assert_eq!(ip(nr::SIOCGIFNETMASK), Ok(vec![255, 0, 0, 0]), "by class");
    set(nr::SIOCSIFNETMASK, &sockaddr([255, 255, 255, 0])).unwrap();
    assert_eq!(ip(nr::SIOCGIFADDR), Ok(vec![10, 0, 0, 1]));
    assert_eq!(ip(nr::SIOCGIFBRDADDR), Ok(vec![10, 0, 0, 255]));
    let holes = set(nr::SIOCSIFNETMASK, &sockaddr([255, 0, 255, 0]));
    assert_eq!(holes, Err(Errno::EINVAL));
    set(nr::SIOCSIFMTU, &1400u32.to_ne_bytes()).unwrap();
    assert_eq!(get(nr::SIOCGIFMTU).unwrap()[..4], 1400u32.to_ne_bytes());
    set(nr::SIOCSIFTXQLEN, &77u32.to_ne_bytes()).unwrap();
    assert_eq!(get(nr::SIOCGIFTXQLEN).unwrap()[..4], 77u32.to_ne_bytes());
    let hardware = [&1u16.to_ne_bytes()[..], &OTHER].concat();
    assert_eq!(set(nr::SIOCSIFHWADDR, &hardware), Err(Errno::EOPNOTSUPP));
    assert_eq!(set(nr::SIOCSIFNAME, b"lan0"), Err(Errno::EBUSY));
    set(nr::SIOCSIFFLAGS, &[0, 0]).unwrap();
    set(nr::SIOCSIFNAME, b"lan0").unwrap();
    assert_eq!(&*host.interface(index).unwrap().name, "lan0");
    ifreq(&stack, "lan0", nr::SIOCSIFADDR, &sockaddr([0; 4])).unwrap();
    assert!(host.interface(index).unwrap().addresses.is_empty());
    let loops = ifreq(&stack, "lo", nr::SIOCSIFMTU, &1400u32.to_ne_bytes());
    assert_eq!(loops, Err(Errno::EOPNOTSUPP));
}
