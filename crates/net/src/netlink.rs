//! `AF_NETLINK`: of its protocols the one that tells of interfaces, addresses and routes (`rtnetlink(7)`), which is what C libraries and
//! language runtimes ask when they list interfaces. Nothing can be changed by it, and nobody is told of changes: there are none.

use crate::inet::network::{self, Interface};
use crate::port::{Port, RECEIVING, SENDING};
use crate::socket::identity;
use crate::{Address, Caller, Flags, Incoming, Kind, Options, Outgoing, Protocol, Socket, Wait};
use abi::errno::Errno;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::IpAddr;
use core::sync::atomic::{AtomicU32, Ordering};
use fs::poll::{Events, PollTable};
use fs::{File, FileOps, Result};
use linux_raw_sys::net;

/// The protocol of routes (`NETLINK_ROUTE`).
const ROUTE: i32 = 0;
/// The level of the options of netlink sockets.
const SOL_NETLINK: u32 = 270;

const HEADER: usize = 16;
/// Messages about links, addresses and routes come in fours: new, delete, get, set.
const NEW_LINK: u16 = 16;
const GET_LINK: u16 = 18;
const NEW_ADDRESS: u16 = 20;
const GET_ADDRESS: u16 = 22;
const NEW_ROUTE: u16 = 24;
const GET_ROUTE: u16 = 26;
const FIRST: u16 = NEW_LINK;
const KINDS: u16 = 4;
const GET: u16 = 2;
const ERROR: u16 = 2;
const DONE: u16 = 3;

const REQUEST: u16 = 1;
const MULTI: u16 = 2;
const ACK: u16 = 4;
const DUMP: u16 = 0x300;

const SCOPE_HOST: u8 = 254;
const PERMANENT: u8 = 0x80;

/// The header of a request.
#[derive(Clone, Copy)]
struct Request {
    kind: u16,
    flags: u16,
    sequence: u32,
}

/// Messages on their way to a program.
struct Reply {
    bytes: Vec<u8>,
    request: Request,
    port: u32,
}

impl Reply {
    const fn new(request: Request, port: u32) -> Self {
        Self { bytes: Vec::new(), request, port }
    }

    /// Adds a message: a fixed part, and attributes, each at a multiple of four.
    fn add(&mut self, kind: u16, flags: u16, fixed: &[u8], attributes: &[(u16, &[u8])]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; HEADER]);
        self.bytes.extend_from_slice(fixed);
        for (kind, value) in attributes {
            self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
            self.bytes.extend_from_slice(&(4 + value.len() as u16).to_ne_bytes());
            self.bytes.extend_from_slice(&kind.to_ne_bytes());
            self.bytes.extend_from_slice(value);
        }
        // The last one's padding belongs to the message: Go's parser relies on it.
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
        let len = (self.bytes.len() - start) as u32;
        let header = &mut self.bytes[start..start + HEADER];
        header[..4].copy_from_slice(&len.to_ne_bytes());
        header[4..6].copy_from_slice(&kind.to_ne_bytes());
        header[6..8].copy_from_slice(&flags.to_ne_bytes());
        header[8..12].copy_from_slice(&self.request.sequence.to_ne_bytes());
        header[12..].copy_from_slice(&self.port.to_ne_bytes());
    }

    fn link(&mut self, flags: u16, interface: &Interface) {
        let fixed =
            [&[0, 0][..], &interface.kind.to_ne_bytes(), &interface.index.to_ne_bytes(), &interface.flags.to_ne_bytes(), &[0; 4]]
                .concat();
        let name = [interface.name.as_bytes(), &[0]].concat();
        let attributes: [(u16, &[u8]); 6] = [
            (3, &name),
            (13, &1000u32.to_ne_bytes()),
            (16, &[0]),
            (4, &interface.mtu.to_ne_bytes()),
            (1, &interface.hardware),
            (2, &[0; 6]),
        ];
        self.add(NEW_LINK, flags, &fixed, &attributes);
    }

    fn address(&mut self, flags: u16, interface: &Interface, ip: IpAddr, prefix: u8) {
        let (family, octets) = split(ip);
        let scope = if ip.is_loopback() { SCOPE_HOST } else { 0 };
        let fixed = [&[family, prefix, PERMANENT, scope][..], &interface.index.to_ne_bytes()].concat();
        let name = [interface.name.as_bytes(), &[0]].concat();
        let mark = u32::from(PERMANENT).to_ne_bytes();
        // Only IPv4 addresses have labels.
        if ip.is_ipv4() {
            self.add(NEW_ADDRESS, flags, &fixed, &[(1, &octets), (2, &octets), (3, &name), (8, &mark)]);
        } else {
            self.add(NEW_ADDRESS, flags, &fixed, &[(1, &octets), (8, &mark)]);
        }
    }

    /// That an address' network is this host's.
    fn route(&mut self, flags: u16, interface: &Interface, ip: IpAddr, prefix: u8) {
        const LOCAL_TABLE: u8 = 255;
        const BY_KERNEL: u8 = 2;
        const LOCAL: u8 = 2;
        let (family, octets) = split(ip);
        let fixed = [family, prefix, 0, 0, LOCAL_TABLE, BY_KERNEL, SCOPE_HOST, LOCAL, 0, 0, 0, 0];
        let table = u32::from(LOCAL_TABLE).to_ne_bytes();
        let index = interface.index.to_ne_bytes();
        self.add(NEW_ROUTE, flags, &fixed, &[(15, &table), (1, &octets), (7, &octets), (4, &index)]);
    }

    fn done(&mut self) {
        self.add(DONE, MULTI, &0u32.to_ne_bytes(), &[]);
    }

    /// An acknowledgement, or that there is an error, with the request's header.
    fn error(&mut self, error: i32, header: &[u8]) {
        let fixed = [&(-error).to_ne_bytes()[..], header].concat();
        self.add(ERROR, 0, &fixed, &[]);
    }
}

/// An address' family, and its bytes.
fn split(ip: IpAddr) -> (u8, Vec<u8>) {
    match ip {
        IpAddr::V4(ip) => (net::AF_INET as u8, ip.octets().to_vec()),
        IpAddr::V6(ip) => (net::AF_INET6 as u8, ip.octets().to_vec()),
    }
}

/// Which interface a request about one of them means: by number, or by name in an attribute.
fn interface_meant(body: &[u8]) -> Result<Interface> {
    const FIXED: usize = 16;
    const NAMES: [u16; 2] = [3, 53];
    let index = body.get(4..8).and_then(|b| b.first_chunk()).map_or(0, |b| u32::from_ne_bytes(*b));
    let mut name: Option<&[u8]> = None;
    let mut rest = body.get(FIXED..).unwrap_or_default();
    while let [l0, l1, k0, k1, value @ ..] = rest {
        let len = usize::from(u16::from_ne_bytes([*l0, *l1]));
        if NAMES.contains(&u16::from_ne_bytes([*k0, *k1])) {
            let value = value.get(..len.saturating_sub(4)).ok_or(Errno::EINVAL)?;
            name = value.split(|&b| b == 0).next();
        }
        rest = rest.get(len.max(4).next_multiple_of(4)..).unwrap_or_default();
    }
    let is_it = |i: &Interface| if index != 0 { i.index == index } else { name == Some(i.name.as_bytes()) };
    network::current().interfaces().into_iter().find(is_it).ok_or(Errno::ENODEV)
}

/// Answers one request; what is returned are datagrams.
fn answer(request: Request, header: &[u8], body: &[u8], port: u32) -> Vec<Vec<u8>> {
    let mut reply = Reply::new(request, port);
    match list(&mut reply, body) {
        Ok(true) => {
            let mut done = Reply::new(request, port);
            done.done();
            return [reply.bytes, done.bytes].into_iter().filter(|bytes| !bytes.is_empty()).collect();
        }
        Ok(false) if request.flags & ACK == 0 => {}
        Ok(false) => reply.error(0, header),
        Err(error) => reply.error(error.raw(), header),
    }
    if reply.bytes.is_empty() { Vec::new() } else { alloc::vec![reply.bytes] }
}

/// Puts what is asked for into the reply. Returns whether that is a list, which ends with a message of its own.
fn list(reply: &mut Reply, body: &[u8]) -> Result<bool> {
    let Request { kind, flags, .. } = reply.request;
    if kind < FIRST {
        return Ok(false);
    }
    if kind % KINDS != GET {
        return Err(if identity().uid == 0 { Errno::EOPNOTSUPP } else { Errno::EPERM });
    }
    let all = flags & DUMP != 0;
    let family = body.first().copied().unwrap_or(0);
    let wanted = |ip: IpAddr| family == 0 || split(ip).0 == family;
    match kind {
        GET_LINK if !all => reply.link(0, &interface_meant(body)?),
        GET_LINK => network::current().interfaces().iter().for_each(|interface| reply.link(MULTI, interface)),
        GET_ADDRESS | GET_ROUTE if all => {
            for interface in network::current().interfaces() {
                for &(ip, prefix) in interface.addresses.iter().filter(|(ip, _)| wanted(*ip)) {
                    if kind == GET_ADDRESS {
                        reply.address(MULTI, &interface, ip, prefix);
                    } else {
                        reply.route(MULTI, &interface, ip, prefix);
                    }
                }
            }
        }
        // Lists of what there is none of: neighbours, rules, queueing disciplines.
        _ if all => {}
        _ => return Err(Errno::EOPNOTSUPP),
    }
    Ok(all)
}

#[derive(Default)]
struct Queue {
    replies: VecDeque<Vec<u8>>,
}

/// A socket.
struct Netlink {
    port: Port<Queue>,
    /// The number it is addressed by; 0: none yet.
    id: AtomicU32,
}

/// A new socket.
///
/// # Errors
/// `EPROTONOSUPPORT`, `ESOCKTNOSUPPORT`.
pub fn socket(kind: Kind, protocol: i32) -> Result<Socket> {
    if kind != Kind::Datagram {
        return Err(Errno::ESOCKTNOSUPPORT);
    }
    if protocol != ROUTE {
        return Err(Errno::EPROTONOSUPPORT);
    }
    let options: Arc<Options> = Arc::default();
    let socket = Netlink { port: Port::new(options.clone()), id: AtomicU32::new(0) };
    Ok(Socket::new(Arc::new(socket), options))
}

impl Netlink {
    /// Its number, after giving it one if it has none: the process' if `asked` is 0. As nothing is sent but answers, two may be the same.
    fn identify(&self, asked: u32) -> u32 {
        static OTHERS: AtomicU32 = AtomicU32::new(u32::MAX);
        let id = match (asked, identity().pid) {
            (0, pid) if pid > 0 => pid.cast_unsigned(),
            (0, _) => OTHERS.fetch_sub(1, Ordering::Relaxed),
            (asked, _) => asked,
        };
        self.id.compare_exchange(0, id, Ordering::Relaxed, Ordering::Relaxed).map_or_else(|known| known, |_| id)
    }

    fn take(&self, flags: Flags, wait: Wait) -> Result<Vec<u8>> {
        let attempt = || {
            let mut queue = self.port.queue.lock();
            let found = if flags.contains(Flags::PEEK) { queue.replies.front().cloned() } else { queue.replies.pop_front() };
            found.map(Ok)
        };
        wait.at(&self.port.readable, attempt)
    }
}

impl FileOps for Netlink {
    fn read(&self, file: &File, buf: &mut [u8]) -> Result<usize> {
        let wait = Wait { nonblocking: file.nonblocking(), timeout: self.port.options.receive_timeout() };
        self.receive(buf, Flags::empty(), wait).map(|got| got.copied)
    }

    fn write(&self, _: &File, buf: &[u8]) -> Result<usize> {
        self.send(Outgoing::plain(buf), Flags::empty(), Wait { nonblocking: true, timeout: 0 })
    }

    fn poll(&self, _: &File, table: Option<&mut PollTable>) -> Events {
        if let Some(table) = table {
            table.watch(&self.port.readable);
        }
        let mut events = Events::WRITABLE;
        events.set(Events::READABLE, !self.port.queue.lock().replies.is_empty());
        events
    }

    fn closed(&self, _: &File) {
        self.port.shut(RECEIVING | SENDING);
    }
}

impl Protocol for Netlink {
    fn family(&self) -> u32 {
        net::AF_NETLINK
    }

    fn kind(&self) -> Kind {
        Kind::Datagram
    }

    fn listening(&self) -> bool {
        false
    }

    fn bind(&self, _: &Caller<'_>, address: &Address) -> Result<()> {
        let Address::Netlink(port, _) = address else { return Err(Errno::EINVAL) };
        let id = self.identify(*port);
        if *port == 0 || *port == id { Ok(()) } else { Err(Errno::EINVAL) }
    }

    fn connect(&self, _: &Caller<'_>, address: &Address, _: Wait) -> Result<()> {
        match address {
            Address::Netlink(0, _) | Address::Unspecified => Ok(()),
            Address::Netlink(..) => Err(Errno::ECONNREFUSED),
            _ => Err(Errno::EINVAL),
        }
    }

    fn listen(&self, _: usize) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }

    fn accept(&self, _: Wait) -> Result<Socket> {
        Err(Errno::EOPNOTSUPP)
    }

    fn local(&self) -> Address {
        Address::Netlink(self.id.load(Ordering::Relaxed), 0)
    }

    fn peer(&self) -> Result<Address> {
        Ok(Address::Netlink(0, 0))
    }

    fn shutdown(&self, _: bool, _: bool) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }

    fn send(&self, message: Outgoing<'_>, flags: Flags, _: Wait) -> Result<usize> {
        if flags.contains(Flags::OOB) {
            return Err(Errno::EOPNOTSUPP);
        }
        match message.to {
            None | Some((_, Address::Netlink(0, 0))) => {}
            Some((_, Address::Netlink(..))) => return Err(Errno::ECONNREFUSED),
            Some(_) => return Err(Errno::EINVAL),
        }
        let port = self.identify(0);
        let mut rest = message.data;
        while let Some((header, _)) = rest.split_first_chunk::<HEADER>() {
            let [l0, l1, l2, l3, k0, k1, f0, f1, s0, s1, s2, s3, ..] = *header;
            let len = u32::from_ne_bytes([l0, l1, l2, l3]) as usize;
            let Some(body) = rest.get(HEADER..len) else { break };
            let request = Request {
                kind: u16::from_ne_bytes([k0, k1]),
                flags: u16::from_ne_bytes([f0, f1]),
                sequence: u32::from_ne_bytes([s0, s1, s2, s3]),
            };
            if request.flags & REQUEST != 0 {
                let answers = answer(request, header, body, port);
                self.port.queue.lock().replies.extend(answers);
            }
            rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
        }
        self.port.readable.notify_of(Events::READABLE);
        Ok(message.data.len())
    }

    fn receive(&self, buf: &mut [u8], flags: Flags, wait: Wait) -> Result<Incoming> {
        let (data, got) = self.receive_owned(buf.len(), flags, wait)?;
        buf[..data.len()].copy_from_slice(&data);
        Ok(got)
    }

    fn receive_owned(&self, limit: usize, flags: Flags, wait: Wait) -> Result<(Vec<u8>, Incoming)> {
        let mut data = self.take(flags, wait)?;
        let full = data.len();
        data.truncate(limit);
        Ok((data, Incoming { copied: full.min(limit), full, from: Some(Address::Netlink(0, 0)), ..Incoming::default() }))
    }

    fn take_error(&self) -> Option<Errno> {
        None
    }

    fn queued(&self, incoming: bool) -> usize {
        if incoming { self.port.queue.lock().replies.front().map_or(0, Vec::len) } else { 0 }
    }

    fn opened(&self, _: &Arc<File>) {}

    fn set_option(&self, level: u32, _: u32, _: &[u8]) -> Result<()> {
        // Groups, more checks, more words in errors: all without effect where nothing is told unasked.
        if level == SOL_NETLINK { Ok(()) } else { Err(Errno::ENOPROTOOPT) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The messages of an answer: kind and body.
    fn messages(answers: &[Vec<u8>]) -> Vec<(u16, Vec<u8>)> {
        let mut found = Vec::new();
        for mut rest in answers.iter().map(Vec::as_slice) {
            while rest.len() >= HEADER {
                let len = u32::from_ne_bytes(rest[..4].try_into().unwrap()) as usize;
                found.push((u16::from_ne_bytes([rest[4], rest[5]]), rest[HEADER..len].to_vec()));
                rest = &rest[len..];
            }
            assert!(rest.is_empty());
        }
        found
    }

    /// The attributes behind a fixed part, as Go's parser goes over them: every one is padded within the message.
    fn attributes(body: &[u8], fixed: usize) -> Vec<(u16, Vec<u8>)> {
        let mut found = Vec::new();
        let mut rest = &body[fixed..];
        while !rest.is_empty() {
            let len = usize::from(u16::from_ne_bytes([rest[0], rest[1]]));
            found.push((u16::from_ne_bytes([rest[2], rest[3]]), rest[4..len].to_vec()));
            rest = &rest[len.next_multiple_of(4)..];
        }
        found
    }

    fn ask(kind: u16, flags: u16, body: &[u8]) -> Vec<(u16, Vec<u8>)> {
        messages(&answer(Request { kind, flags, sequence: 7 }, &[0; HEADER], body, 1))
    }

    #[test]
    fn lists_are_whole_and_end() {
        let links = ask(GET_LINK, REQUEST | DUMP, &[0]);
        assert_eq!(links.iter().map(|(kind, _)| *kind).collect::<Vec<_>>(), [NEW_LINK, DONE]);
        assert!(attributes(&links[0].1, 16).contains(&(3, b"lo\0".to_vec())));
        let addresses = ask(GET_ADDRESS, REQUEST | DUMP, &[0]);
        assert_eq!(addresses.iter().map(|(kind, _)| *kind).collect::<Vec<_>>(), [NEW_ADDRESS, NEW_ADDRESS, DONE]);
        assert!(attributes(&addresses[0].1, 8).contains(&(2, vec![127, 0, 0, 1])));
        assert_eq!(ask(GET_ADDRESS, REQUEST | DUMP, &[net::AF_INET6 as u8]).len(), 2);
        assert_eq!(ask(GET_ROUTE, REQUEST | DUMP, &[0]).len(), 3);
    }

    #[test]
    fn one_interface_is_found_by_number_and_by_name() {
        let mut body = [0; 16];
        body[4] = 1;
        assert_eq!(ask(GET_LINK, REQUEST, &body)[0].0, NEW_LINK);
        let named = [&[0; 16][..], &[7, 0, 3, 0], b"lo\0\0"].concat();
        assert_eq!(ask(GET_LINK, REQUEST, &named)[0].0, NEW_LINK);
        body[4] = 2;
        let refused = ask(GET_LINK, REQUEST, &body);
        assert_eq!((refused[0].0, refused[0].1[..4].to_vec()), (ERROR, (-Errno::ENODEV.raw()).to_ne_bytes().to_vec()));
    }

    proptest::proptest! {
        #[test]
        fn any_request_is_answered(kind in 0..100u16, flags: u16, body in proptest::collection::vec(0u8.., 0..64)) {
            ask(kind, flags, &body);
        }
    }
}
