//! The engine against smoltcp, over a simulated wire that loses, repeats, delays and damages.

mod common;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::net::Ipv4Addr;

use common::{Program, Random, byte_at, ipv4};
use proptest::prelude::*;
use smoltcp::iface::{Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp as other;
use smoltcp::time::Instant;
use smoltcp::wire::{HardwareAddress, IpAddress, IpCidr};
use tcp::{
    Arrival, Config, Connection, Ends, Flags, Incoming, ListenConfig, Listener, MILLISECOND, Nanos,
    Reaction, SECOND, Secret, State, SynCookies,
};

const ENGINE: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
const OTHER: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
const PORTS: (u16, u16) = (2000, 4242);
const MTU: usize = 1500;

/// The device of smoltcp: packets to it, and from it.
#[derive(Default)]
struct Queues {
    to: VecDeque<Vec<u8>>,
    from: Vec<Vec<u8>>,
}

struct Received(Vec<u8>);

impl RxToken for Received {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

struct Sent<'a>(&'a mut Vec<Vec<u8>>);

impl TxToken for Sent<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, f: F) -> R {
        let mut packet = vec![0; length];
        let result = f(&mut packet);
        self.0.push(packet);
        result
    }
}

impl Device for Queues {
    type RxToken<'a> = Received;
    type TxToken<'a> = Sent<'a>;

    fn receive(&mut self, _: Instant) -> Option<(Received, Sent<'_>)> {
        let packet = self.to.pop_front()?;
        Some((Received(packet), Sent(&mut self.from)))
    }

    fn transmit(&mut self, _: Instant) -> Option<Sent<'_>> {
        Some(Sent(&mut self.from))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = MTU;
        capabilities
    }
}

/// The other end: smoltcp with its program.
struct Peer {
    device: Queues,
    interface: Interface,
    sockets: SocketSet<'static>,
    handle: SocketHandle,
    bytes: u64,
    sent: u64,
    received: u64,
}

fn instant(now: Nanos) -> Instant {
    Instant::from_micros((now / 1000) as i64)
}

impl Peer {
    fn new(plan: &Plan) -> Self {
        let mut device = Queues::default();
        let mut config = smoltcp::iface::Config::new(HardwareAddress::Ip);
        config.random_seed = plan.seed;
        let mut interface = Interface::new(config, &mut device, instant(0));
        let address = IpCidr::new(IpAddress::from(OTHER), 24);
        interface.update_ip_addrs(|addresses| addresses.push(address).unwrap());
        let buffer = || other::SocketBuffer::new(vec![0; plan.room]);
        let mut socket = other::Socket::new(buffer(), buffer());
        if plan.clocks {
            socket.set_tsval_generator(Some(|| 1));
        }
        if plan.engine_connects {
            socket.listen(PORTS.1).unwrap();
        } else {
            let remote = (IpAddress::from(ENGINE), PORTS.0);
            socket
                .connect(interface.context(), remote, PORTS.1)
                .unwrap();
        }
        let mut sockets = SocketSet::new(Vec::new());
        let handle = sockets.add(socket);
        Self {
            device,
            interface,
            sockets,
            handle,
            bytes: plan.bytes.1,
            sent: 0,
            received: 0,
        }
    }

    fn socket(&mut self) -> &mut other::Socket<'static> {
        self.sockets.get_mut(self.handle)
    }

    /// Runs the program and the stack until they have nothing to do.
    fn run(&mut self, now: Nanos) -> Vec<Vec<u8>> {
        self.interface
            .poll(instant(now), &mut self.device, &mut self.sockets);
        let (bytes, mut sent, mut received) = (self.bytes, self.sent, self.received);
        let socket = self.socket();
        while socket.can_recv() {
            let part = socket.recv(|part| (part.len(), part.to_vec())).unwrap();
            for byte in part {
                assert_eq!(byte, byte_at(0, received), "byte {received} is another");
                received += 1;
            }
        }
        while socket.can_send() && sent < bytes {
            let end = bytes.min(sent + 1000);
            let part: Vec<u8> = (sent..end).map(|place| byte_at(1, place)).collect();
            sent += socket.send_slice(&part).unwrap() as u64;
        }
        if sent == bytes && socket.may_send() {
            socket.close();
        }
        (self.sent, self.received) = (sent, received);
        self.interface
            .poll(instant(now), &mut self.device, &mut self.sockets);
        std::mem::take(&mut self.device.from)
    }

    fn deadline(&mut self, now: Nanos) -> Option<Nanos> {
        let at = self.interface.poll_at(instant(now), &self.sockets)?;
        Some((at.total_micros() as Nanos * 1000).max(now + MILLISECOND))
    }
}

#[derive(Clone, Debug)]
struct Plan {
    seed: u64,
    engine_connects: bool,
    /// Handshakes are by cookies, which bear nothing: their end is not repeated, and what overtakes
    /// it is refused.
    cookies: bool,
    /// Bytes of the engine's program and of the peer's.
    bytes: (u64, u64),
    room: usize,
    clocks: bool,
    sack: bool,
    loss: u64,
    duplication: u64,
    reordering: u64,
    corruption: u64,
    delay: Nanos,
}

/// A packet under way: when it comes, in which order it was sent, and whether to the engine.
type UnderWay = Reverse<(Nanos, u64, bool, Vec<u8>)>;

struct Run {
    plan: Plan,
    random: Random,
    now: Nanos,
    under_way: BinaryHeap<UnderWay>,
    count: u64,
    peer: Peer,
    listener: Listener,
    cookies: SynCookies,
    connection: Option<Connection>,
    program: Program,
    shut: bool,
}

impl Run {
    fn new(plan: Plan) -> Self {
        let config = Config {
            sack: plan.sack,
            timestamps: plan.clocks,
            syn_retries: 60,
            syn_ack_retries: 60,
            retries2: 60,
            ..Config::default()
        };
        let secret = Secret([plan.seed, 1]);
        let (local, remote) = ends();
        let iss = secret.initial(0, &Ends { local, remote }).0;
        let connection = plan
            .engine_connects
            .then(|| Connection::connect(config.clone(), 0, PORTS, iss, 5));
        let listener = Listener::new(
            ListenConfig {
                connection: config,
                backlog: usize::from(!plan.cookies),
                ..ListenConfig::default()
            },
            secret,
        );
        Self {
            random: Random(plan.seed),
            now: 0,
            under_way: BinaryHeap::new(),
            count: 0,
            peer: Peer::new(&plan),
            listener,
            cookies: SynCookies::new(secret),
            connection,
            program: Program::new(0, plan.room as u64),
            shut: false,
            plan,
        }
    }

    fn put(&mut self, mut packet: Vec<u8>, to_engine: bool) {
        if self.random.percent(self.plan.loss) {
            return;
        }
        if self.random.percent(self.plan.corruption) {
            // The header of IP is another protocol's.
            let bit = self.random.below((packet.len() as u64 - 20) * 8);
            packet[20 + bit as usize / 8] ^= 1 << (bit % 8);
        }
        for _ in 0..=u64::from(self.random.percent(self.plan.duplication)) {
            let mut at = self.now + self.plan.delay;
            if self.random.percent(self.plan.reordering) {
                at += self.random.below(2 * self.plan.delay);
            }
            self.count += 1;
            let entry = (at, self.count, to_engine, packet.clone());
            self.under_way.push(Reverse(entry));
        }
    }

    fn send(&mut self, header: &tcp::Header, payload: &[u8]) {
        let packet = ipv4::packet(ENGINE, OTHER, header, payload);
        self.put(packet, false);
    }

    fn arrive(&mut self, packet: &[u8]) {
        let segment = match ipv4::segment(OTHER, ENGINE, packet) {
            Some(Ok(segment)) => segment,
            damaged => {
                assert!(self.plan.corruption > 0, "{damaged:?} of {packet:?}");
                return;
            }
        };
        let arrival = Arrival::from(segment);
        if self.connection.is_none() {
            let (local, remote) = ends();
            let incoming = Incoming {
                ends: Ends { local, remote },
                arrival,
                mss: (MTU - 40) as u16,
                iss: None,
            };
            match self.listener.arrive(self.now, &self.cookies, &incoming) {
                Reaction::Drop => return,
                Reaction::Answer(header) => return self.send(&header, &[]),
                Reaction::Open(handshake) => {
                    assert!(self.listener.opened(&handshake));
                    let config = self.listener.config().connection.clone();
                    self.connection = Some(Connection::open(config, self.now, &handshake));
                }
            }
        }
        let connection = self.connection.as_mut().unwrap();
        connection.arrive(self.now, &arrival, &mut self.program);
    }

    fn run_engine(&mut self) {
        while let Some((_, header)) = self.listener.next(self.now) {
            self.send(&header, &[]);
        }
        let mut payload = [0; MTU];
        loop {
            let Some(connection) = &mut self.connection else {
                return;
            };
            self.program.read = self.program.received;
            let bytes = self.plan.bytes.0;
            if connection.state() != State::Closed {
                self.program.written = bytes.min(self.program.released + 50_000);
            }
            if self.program.written == bytes && !self.shut && connection.state().is_synchronized() {
                self.shut = true;
                connection.shutdown();
            }
            let Some(out) = connection.next(self.now, &mut self.program, &mut payload) else {
                return;
            };
            assert!(connection.is_consistent());
            // What comes late meets nobody.
            let resets = out.header.flags.contains(Flags::RST);
            assert!(!resets || connection.state() == State::Closed, "{out:?}");
            self.send(&out.header, &payload[..out.payload]);
        }
    }

    /// Runs until both ends have everything and are closed.
    fn run(mut self) {
        loop {
            for packet in self.peer.run(self.now) {
                self.put(packet, true);
            }
            self.run_engine();
            let closed = matches!(
                self.connection.as_ref().map(Connection::state),
                Some(State::Closed | State::TimeWait)
            );
            let peer_closed = matches!(
                self.peer.socket().state(),
                other::State::Closed | other::State::TimeWait
            );
            if closed && peer_closed {
                break;
            }
            let connection = self.connection.as_ref();
            let times = [
                self.under_way.peek().map(|Reverse((at, ..))| *at),
                connection.and_then(Connection::deadline),
                self.listener.deadline(),
                self.peer.deadline(self.now),
            ];
            let next = times.into_iter().flatten().min();
            self.now = next.unwrap_or_else(|| panic!("nothing will happen: {:?}", self.plan));
            assert!(self.now < 100_000 * SECOND, "no end: {:?}", self.plan);
            while let Some(Reverse((at, ..))) = self.under_way.peek()
                && *at <= self.now
            {
                let Reverse((_, _, to_engine, packet)) = self.under_way.pop().unwrap();
                if to_engine {
                    self.arrive(&packet);
                } else {
                    self.peer.device.to.push_back(packet);
                }
            }
        }
        let connection = self.connection.unwrap();
        assert_eq!(connection.error(), None);
        assert_eq!(self.program.received, self.plan.bytes.1);
        assert_eq!(self.peer.received, self.plan.bytes.0);
        assert!(self.program.ended);
    }
}

fn ends() -> (std::net::SocketAddr, std::net::SocketAddr) {
    ((ENGINE, PORTS.0).into(), (OTHER, PORTS.1).into())
}

fn plans() -> impl Strategy<Value = Plan> {
    (
        any::<u64>(),
        any::<[bool; 4]>(),
        (0_u64..60_000, 0_u64..60_000, 2000_usize..70_000),
        (0_u64..=30, 0_u64..=10, 0_u64..=30, 0_u64..=5, 1_u64..60),
    )
        .prop_map(|(seed, flags, (own, theirs, room), chances)| {
            let [engine_connects, clocks, sack, cookies] = flags;
            let (loss, duplication, reordering, corruption, delay) = chances;
            let harm = u64::from(!cookies);
            Plan {
                seed,
                engine_connects,
                cookies,
                bytes: (own, theirs),
                room,
                clocks,
                sack,
                loss: loss * harm,
                duplication,
                reordering: reordering * harm,
                corruption: corruption * harm,
                delay: delay * MILLISECOND,
            }
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Every byte comes once and in order, both ways, and both ends close.
    #[test]
    fn smoltcp_is_a_peer(plan in plans()) {
        Run::new(plan).run();
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(5_000)
    })]

    /// Five thousand wires (`cargo test -p tcp --test smoltcp -- --ignored`).
    #[test]
    #[ignore = "takes minutes"]
    fn smoltcp_is_a_peer_five_thousand_times(plan in plans()) {
        Run::new(plan).run();
    }
}
