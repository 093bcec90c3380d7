//! A protocol engine below TCP sockets, as one outside the crate is written: it moves bytes in
//! segments over a wire that loses some of them.

mod common;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use abi::errno::Errno;
use common::{PATIENT, call, protocol};
use fs::poll::{Events, PollObserver};
use fs::{File, OpenFlags};
use linux_raw_sys::net as sys;
use net::inet::{
    ConnectRequest, ConnectionEnd, Datagram, Family, InetStack, Initiator, Network, Route,
    TcpBuffers, TcpEngine, TcpState, procfs,
};
use net::socket::{AddressLife, Interface, InterfaceAddress, InterfaceName, Interfaces, Traffic};
use net::{Address, Socket, SocketType, Stack};

/// The bytes of a segment, and how many segments are sent before the first is acknowledged.
const SEGMENT: usize = 1000;
const IN_FLIGHT: usize = 4;

/// The wire: a network of one host whose address is 10.0.0.1.
#[derive(Default)]
struct Wire {
    segments: AtomicUsize,
    engines: Mutex<Vec<Arc<Engine>>>,
}

impl Wire {
    const HOST: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

    /// Whether the next segment is lost: about a third are. Not each third: a sender with three
    /// segments would lose the first of them for ever.
    fn loses(&self) -> bool {
        let number = self.segments.fetch_add(1, Ordering::Relaxed) as u32;
        // Multiples of the golden ratio have no period (Knuth, TAOCP vol. 3, 6.4).
        number.wrapping_mul(0x9e37_79b9) < u32::MAX / 3
    }
}

impl Interfaces for Wire {
    fn interfaces(&self) -> Vec<Interface> {
        vec![Interface {
            index: 1,
            name: InterfaceName::new("eth0").unwrap(),
            flags: 0,
            hardware_type: 1,
            mtu: 1500,
            queue_len: 1000,
            hardware_address: Some([2, 0, 0, 0, 0, 1]),
            addresses: Arc::new(vec![InterfaceAddress {
                ip: Self::HOST.into(),
                prefix_len: 24,
                peer: None,
                broadcast: None,
                scope: 0,
                life: AddressLife::default(),
                label: None,
            }]),
            received: Traffic::default(),
            sent: Traffic::default(),
        }]
    }
}

/// The network as the stack holds it.
struct Net(Arc<Wire>);

impl Interfaces for Net {
    fn interfaces(&self) -> Vec<Interface> {
        self.0.interfaces()
    }
}

impl Network for Net {
    fn route(&self, to: IpAddr, _: u32) -> fs::Result<Route> {
        Ok(Route {
            interface_index: 1,
            source: Wire::HOST.into(),
            local: to == Wire::HOST,
            broadcast: false,
            mtu: 1500,
        })
    }

    fn connect(&self, stack: &InetStack, request: ConnectRequest) {
        let [client, server] = [(); 2].map(|()| Engine::new(&self.0, stack));
        let _ = client.peer.set(Arc::downgrade(&server));
        let _ = server.peer.set(Arc::downgrade(&client));
        client.buffers.attach(request.end());
        let end = server.buffers.end(server.clone());
        let initiator: Arc<dyn Initiator> = server.clone();
        let arrival =
            ConnectRequest::new(request.from, request.to, end, Arc::downgrade(&initiator));
        *server.request.lock().unwrap() = Some(request);
        self.0.engines.lock().unwrap().extend([client, server]);
        stack.handle_connect_request(arrival);
    }

    fn transmit(&self, _: &InetStack, _: Datagram) -> fs::Result<()> {
        Ok(())
    }

    fn transmit_frame(&self, _: &InetStack, _: u32, _: Vec<u8>) -> fs::Result<()> {
        Ok(())
    }
}

/// A side of a connection.
struct Engine {
    wire: Arc<Wire>,
    buffers: TcpBuffers,
    peer: OnceLock<Weak<Engine>>,
    /// The request that the listening side answers, to be told when the connection is made.
    request: Mutex<Option<ConnectRequest>>,
    /// The program sends no more.
    ended: AtomicBool,
    end_delivered: AtomicBool,
    /// Held while segments are sent.
    sending: Mutex<()>,
}

impl Engine {
    fn new(wire: &Arc<Wire>, stack: &InetStack) -> Arc<Self> {
        let engine = Arc::new(Self {
            wire: wire.clone(),
            buffers: TcpBuffers::new(stack),
            peer: OnceLock::new(),
            request: Mutex::new(None),
            ended: AtomicBool::new(false),
            end_delivered: AtomicBool::new(false),
            sending: Mutex::new(()),
        });
        let observer: Arc<dyn PollObserver> = engine.clone();
        engine.buffers.watch(&observer).unwrap();
        engine
    }

    fn peer(&self) -> Option<Arc<Self>> {
        self.peer.get()?.upgrade()
    }

    /// Sends what the peer's window has room for, again where it was lost, then the end.
    fn send(&self) {
        let Some(peer) = self.peer() else { return };
        let _sending = self.sending.lock().unwrap();
        loop {
            let (mut acknowledged, mut lost) = (0, false);
            for number in 0..IN_FLIGHT {
                let mut segment = [0; SEGMENT];
                let length = self.buffers.peek(number * SEGMENT, &mut segment);
                if length == 0 || peer.buffers.window() == 0 {
                    break;
                }
                lost |= self.wire.loses();
                // What comes behind a gap is not kept.
                if !lost {
                    match peer.buffers.deliver(&segment[..length]) {
                        Ok(delivered) => acknowledged += delivered,
                        Err(_) => return self.buffers.fail(Errno::ECONNRESET),
                    }
                    if acknowledged < (number + 1) * SEGMENT {
                        break;
                    }
                }
            }
            self.buffers.release(acknowledged);
            if acknowledged == 0 && !lost {
                break;
            }
        }
        if self.buffers.queued() == 0
            && self.ended.load(Ordering::SeqCst)
            && !self.end_delivered.swap(true, Ordering::SeqCst)
        {
            peer.buffers.deliver_end();
        }
    }
}

impl PollObserver for Engine {
    fn on_event(self: Arc<Self>, _: Events) {
        self.send();
        // The window may be open again.
        if let Some(peer) = self.peer() {
            peer.send();
        }
    }
}

impl TcpEngine for Engine {
    fn shutdown(&self) {
        self.ended.store(true, Ordering::SeqCst);
        self.send();
    }

    fn abort(&self) {
        if let Some(peer) = self.peer() {
            peer.buffers.fail(Errno::ECONNRESET);
        }
    }

    fn state(&self) -> TcpState {
        let theirs = self.peer().is_none_or(|peer| {
            let ended: &AtomicBool = &peer.end_delivered;
            ended.load(Ordering::SeqCst)
        });
        let own = (
            self.ended.load(Ordering::SeqCst),
            self.end_delivered.load(Ordering::SeqCst),
        );
        match (own, theirs) {
            ((false, _), false) => TcpState::Established,
            ((false, _), true) => TcpState::CloseWait,
            ((true, false), false) => TcpState::FinWait1,
            ((true, true), false) => TcpState::FinWait2,
            ((true, false), true) => TcpState::LastAck,
            ((true, true), true) => TcpState::TimeWait,
        }
    }
}

impl Initiator for Engine {
    fn connect_established(&self, end: ConnectionEnd) {
        self.buffers.attach(&end);
        let request = self.request.lock().unwrap().take();
        if let (Some(request), Some(client)) = (request, self.peer())
            && let Some(initiator) = request.initiator()
        {
            initiator.connect_established(client.buffers.end(client.clone()));
        }
    }

    fn connect_failed(&self, error: Errno) {
        let request = self.request.lock().unwrap().take();
        if let Some(initiator) = request.and_then(|request| request.initiator()) {
            initiator.connect_failed(error);
        }
    }
}

fn at(port: u16) -> Address {
    Address::Inet((Wire::HOST, port).into())
}

fn tcp(stack: &Stack) -> Arc<File> {
    let socket = stack.socket(sys::AF_INET, SocketType::Stream, 0);
    socket.unwrap().into_file(OpenFlags::empty())
}

fn connect(file: &File, port: u16) -> fs::Result<()> {
    call(|caller| protocol(file).connect(caller, &at(port), PATIENT))
}

/// A connection over the wire: the client, the server, and the client's engine.
fn connection() -> (Arc<Stack>, [Arc<File>; 2], Arc<Engine>) {
    let wire = Arc::new(Wire::default());
    let stack = Stack::new(Arc::new(Net(wire.clone())));
    let (listener, client) = (tcp(&stack), tcp(&stack));
    call(|caller| protocol(&listener).bind(caller, &at(80))).unwrap();
    protocol(&listener).listen(1).unwrap();
    connect(&client, 80).unwrap();
    let server = protocol(&listener).accept(PATIENT).unwrap();
    let engine = wire.engines.lock().unwrap()[0].clone();
    (
        stack,
        [client, server.into_file(OpenFlags::empty())],
        engine,
    )
}

/// Reads until the end.
fn read_all(file: &File) -> fs::Result<Vec<u8>> {
    let (mut all, mut buf) = (Vec::new(), [0; 3000]);
    loop {
        match file.read(&mut buf)? {
            0 => return Ok(all),
            n => all.extend_from_slice(&buf[..n]),
        }
    }
}

fn states(stack: &Stack) -> Vec<u8> {
    let text = procfs::tcp(stack.inet(), Family::V4).unwrap();
    let of_line = |line: &str| u8::from_str_radix(line.split_whitespace().nth(3).unwrap(), 16);
    text.lines()
        .skip(1)
        .map(|line| of_line(line).unwrap())
        .collect()
}

#[test]
fn bytes_that_are_lost_are_sent_again_in_order() {
    let (stack, [client, server], _) = connection();
    let data: Vec<u8> = (0..700_000u32).map(|n| (n ^ n >> 7) as u8).collect();
    assert_eq!(states(&stack), [1, 1], "established");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut rest = &data[..];
            while !rest.is_empty() {
                rest = &rest[client.write(rest).unwrap()..];
            }
            protocol(&client).shutdown(false, true).unwrap();
        });
        assert!(read_all(&server).unwrap() == data);
    });
    // One half is closed, the other carries bytes.
    assert_eq!(states(&stack), [5, 8], "FIN_WAIT2 and CLOSE_WAIT");
    assert_eq!(server.write(b"answer"), Ok(6));
    drop(server);
    assert_eq!(read_all(&client), Ok(b"answer".to_vec()));
    assert_eq!(states(&stack), [6], "TIME_WAIT");
}

#[test]
fn what_finds_no_window_stays_with_the_sender() {
    let (_stack, [client, server], engine) = connection();
    let options = client.ops_as::<Socket>().unwrap().options();
    options
        .set_int_option(sys::SO_SNDBUF, 20_000, false)
        .unwrap();
    let receive_buffer = server
        .ops_as::<Socket>()
        .unwrap()
        .options()
        .receive_buffer();
    client.set_flags(OpenFlags::NONBLOCK);
    let mut sent = 0;
    let refused = loop {
        match client.write(&[7; 5000]) {
            Ok(n) => sent += n,
            Err(error) => break error,
        }
    };
    assert_eq!(refused, Errno::EAGAIN);
    let queued = protocol(&client).send_queue_bytes();
    assert_eq!((queued, engine.buffers.queued()), (40_000, 40_000));
    assert_eq!(sent, queued + receive_buffer);
    // Once some of it is received as much follows.
    assert_eq!(server.read(&mut [0; 3000]), Ok(3000));
    assert_eq!(engine.buffers.queued(), 37_000);
}

#[test]
fn a_connection_that_nobody_takes_fails() {
    let stack = Stack::new(Arc::new(Net(Arc::default())));
    let client = tcp(&stack);
    assert_eq!(connect(&client, 80), Err(Errno::ECONNREFUSED));
}

#[test]
fn the_error_that_ends_a_connection_is_the_programs() {
    let (_stack, [client, _server], engine) = connection();
    engine.buffers.fail(Errno::ETIMEDOUT);
    assert_eq!(client.read(&mut [0; 1]), Err(Errno::ETIMEDOUT));
    assert_eq!(client.read(&mut [0; 1]), Ok(0));
    assert_eq!(client.write(b"x"), Err(Errno::EPIPE));
}

#[test]
fn what_comes_for_a_closed_socket_is_reset() {
    let (_stack, [client, server], engine) = connection();
    drop(server);
    assert_eq!(client.read(&mut [0; 1]), Ok(0));
    assert_eq!(client.write(b"x"), Ok(1));
    assert_eq!(client.write(b"x"), Err(Errno::EPIPE));
    drop(client);
    assert_eq!(engine.buffers.deliver(b"late"), Err(Errno::EPIPE));
}

#[test]
fn unread_bytes_reset_the_peer() {
    let (_stack, [client, server], _) = connection();
    assert_eq!(client.write(b"unread"), Ok(6));
    drop(server);
    assert_eq!(client.read(&mut [0; 1]), Err(Errno::ECONNRESET));
}
