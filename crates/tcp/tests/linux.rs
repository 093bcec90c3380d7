//! The engine against the host's Linux, over a TUN device in a network namespace of its own, with
//! losses, repetitions, reordering, damage, delay and a smaller MTU between the two.
//!
//! The program is its own harness: where namespaces or the device are not allowed no test passes,
//! but is said to be ignored, and why.

mod common;

use std::collections::VecDeque;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::process::{Command, ExitCode};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use common::{Program, Random, byte_at, ipv4};
use tcp::{
    Arrival, Config, Connection, Ends, Error, Flags, Header, Incoming, ListenConfig, Listener,
    MILLISECOND, Nanos, Reaction, Secret, Segment, Seq, State, SynCookies,
};

const LINUX: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
const ENGINE: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
const PORT: u16 = 4242;
/// The line that the program prints when it has the device.
const BEGUN: &str = "the device is there";
/// Name of the device.
const DEVICE: &str = "tcp0";
/// Makes the device its standard input, which is a way to get it without a system call that Rust
/// takes for unsafe, and becomes the program of its arguments.
const OPENER: &str = "
import fcntl, os, struct, subprocess, sys
try:
    tun = os.open('/dev/net/tun', os.O_RDWR)
    fcntl.ioctl(tun, 0x400454ca, struct.pack('16sH22x', b'tcp0', 0x1001))
    for words in ('addr add 10.9.0.1/24 dev tcp0', 'link set tcp0 up'):
        subprocess.check_call(['ip'] + words.split())
except Exception as error:
    print(error)
    sys.exit(77)
os.dup2(tun, 0)
os.execv(sys.argv[1], sys.argv[1:])
";

/// Argument of the program that runs in the namespace; the test's name is behind it.
const INSIDE: &str = "inside";

/// A test: what is between the two, and how much passes.
struct Test {
    name: &'static str,
    /// Runs only by `--ignored`, for this reason.
    ignored: Option<&'static str>,
    troubles: &'static [Trouble],
    bytes: u64,
    /// Seconds that one transfer may take.
    limit: u64,
}

const TESTS: [Test; 2] = [
    Test {
        name: "linux_is_a_peer",
        ignored: None,
        troubles: &[
            NONE,
            Trouble {
                loss: 3,
                duplication: 3,
                reordering: 6,
                ..NONE
            },
            Trouble {
                corruption: 3,
                ..NONE
            },
            Trouble {
                loss: 1,
                delay: 20,
                ..NONE
            },
            Trouble {
                mtu: Some(900),
                ..NONE
            },
        ],
        bytes: 400_000,
        limit: 300,
    },
    Test {
        name: "linux_is_a_peer_through_a_bad_wire",
        ignored: Some("takes minutes"),
        troubles: &[Trouble {
            loss: 30,
            duplication: 10,
            reordering: 20,
            corruption: 5,
            delay: 5,
            mtu: Some(900),
        }],
        bytes: 60_000,
        limit: 1800,
    },
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [first, name] = &arguments[..]
        && first == INSIDE
    {
        let test = TESTS.iter().find(|test| test.name == name);
        inside(test.expect("a test of that name"));
        return ExitCode::SUCCESS;
    }
    let has = |flag: &str| arguments.iter().any(|one| one == flag);
    let filters: Vec<_> = arguments
        .iter()
        .filter(|one| !one.starts_with('-'))
        .collect();
    let is_wanted = |test: &&Test| {
        filters.is_empty()
            || filters
                .iter()
                .any(|filter| test.name.contains(filter.as_str()))
    };
    let (mut counts, mut failed) = ([0; 3], Vec::new());
    for test in TESTS.iter().filter(is_wanted) {
        if has("--list") {
            println!("{}: test", test.name);
            continue;
        }
        let result = match test.ignored {
            Some(why) if !has("--ignored") && !has("--include-ignored") => {
                Outcome::Ignored(why.into())
            }
            None if has("--ignored") => continue,
            _ => outside(test),
        };
        let (place, said) = match &result {
            Outcome::Passed => (0, "ok".to_owned()),
            Outcome::Failed(_) => (1, "FAILED".to_owned()),
            Outcome::Ignored(why) => (2, format!("ignored, {why}")),
        };
        counts[place] += 1;
        println!("test {} ... {said}", test.name);
        if let Outcome::Failed(text) = result {
            failed.push(format!("---- {} stdout ----\n{text}", test.name));
        }
    }
    if has("--list") {
        return ExitCode::SUCCESS;
    }
    failed.iter().for_each(|text| println!("\n{text}"));
    let [passed, wrong, ignored] = counts;
    let word = if wrong == 0 { "ok" } else { "FAILED" };
    println!("\ntest result: {word}. {passed} passed; {wrong} failed; {ignored} ignored");
    if wrong == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// The end of a test.
enum Outcome {
    Passed,
    /// With what was printed.
    Failed(String),
    /// With the reason.
    Ignored(String),
}

/// Runs a test in a namespace of its own.
fn outside(test: &Test) -> Outcome {
    let program = std::env::current_exe().unwrap();
    let mut command = Command::new("unshare");
    command.args(["-rn", "python3", "-c", OPENER]).arg(program);
    command.args([INSIDE, test.name]);
    let output = match command.output() {
        Ok(output) => output,
        Err(error) => return Outcome::Ignored(format!("not possible here: {error}")),
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (said, complaint) = (text(&output.stdout), text(&output.stderr));
    print!("{said}");
    if output.status.success() {
        Outcome::Passed
    } else if said.contains(BEGUN) {
        Outcome::Failed(said + &complaint)
    } else {
        let why = format!("{said}{complaint}").replace('\n', " ");
        Outcome::Ignored(format!("not possible here: {why}"))
    }
}

/// The side that begins the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Opener {
    Engine,
    Linux,
}

/// Troubles between the two, in percent.
#[derive(Clone, Copy, Debug)]
struct Trouble {
    loss: u64,
    duplication: u64,
    reordering: u64,
    corruption: u64,
    /// Milliseconds that packets take.
    delay: u64,
    /// The longest packet, once a third of the bytes has passed.
    mtu: Option<u16>,
}

const NONE: Trouble = Trouble {
    loss: 0,
    duplication: 0,
    reordering: 0,
    corruption: 0,
    delay: 0,
    mtu: None,
};

/// Runs `ip`, about the device.
fn configure(words: &str) {
    let mut command = Command::new("ip");
    command.args(words.split(' ')).args(["dev", DEVICE]);
    assert!(command.status().unwrap().success(), "ip {words}");
}

/// Has the device take packets of the whole length again, and Linux forget that it did not.
fn widen() {
    configure("link set mtu 1500");
    let address = format!("{LINUX}/24");
    configure(&format!("addr del {address}"));
    configure(&format!("addr add {address}"));
}

/// Runs in the namespace, with the device as the standard input.
fn inside(test: &Test) {
    println!("{BEGUN}");
    let device = File::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
    let (sender, packets) = channel();
    let mut reader = device.try_clone().unwrap();
    thread::spawn(move || {
        let mut packet = [0; 2000];
        while let Ok(length) = reader.read(&mut packet) {
            if sender.send(packet[..length].to_vec()).is_err() {
                break;
            }
        }
    });
    let mut port = 2000;
    for trouble in test.troubles {
        for opener in [Opener::Engine, Opener::Linux] {
            for (timestamps, sack) in [(true, true), (false, false)] {
                let config = Config {
                    timestamps,
                    sack,
                    ..Config::default()
                };
                let wire = Wire::new(&device, &packets, *trouble, port);
                wire.transfer(opener, config, test);
                port += 1;
            }
        }
    }
    Wire::new(&device, &packets, NONE, 1999).refusal();
}

/// Linux' side: sends its stream and checks what comes, both at once.
fn linux_side(stream: TcpStream, bytes: u64) {
    let mut sending = stream.try_clone().unwrap();
    let sender = thread::spawn(move || {
        let mut place = 0;
        while place < bytes {
            let end = bytes.min(place + 10_000);
            let part: Vec<u8> = (place..end).map(|place| byte_at(1, place)).collect();
            sending.write_all(&part).unwrap();
            place = end;
        }
        sending.shutdown(Shutdown::Write).unwrap();
    });
    let mut received = Vec::new();
    (&stream).read_to_end(&mut received).unwrap();
    assert_eq!(received.len() as u64, bytes);
    for (place, byte) in received.iter().enumerate() {
        assert_eq!(*byte, byte_at(0, place as u64), "byte {place}");
    }
    sender.join().unwrap();
}

struct Wire<'a> {
    device: &'a File,
    packets: &'a Receiver<Vec<u8>>,
    trouble: Trouble,
    random: Random,
    port: u16,
    began: Instant,
    /// Packets that are overtaken, for each direction.
    held: [VecDeque<Packet>; 2],
    /// Packets on their way in each direction, with the times at which they arrive.
    late: [VecDeque<(Nanos, Packet)>; 2],
    /// The longest packet that passes.
    mtu: u16,
    /// Packets that were damaged, and those that were too long.
    damaged: u64,
    too_long: u64,
}

/// A packet between the two.
#[derive(Clone)]
struct Packet {
    bytes: Vec<u8>,
    is_damaged: bool,
}

impl<'a> Wire<'a> {
    fn new(device: &'a File, packets: &'a Receiver<Vec<u8>>, trouble: Trouble, port: u16) -> Self {
        Self {
            device,
            packets,
            trouble,
            random: Random(port.into()),
            port,
            began: Instant::now(),
            held: Default::default(),
            late: Default::default(),
            mtu: 1500,
            damaged: 0,
            too_long: 0,
        }
    }

    fn now(&self) -> Nanos {
        self.began.elapsed().as_nanos() as Nanos
    }

    /// A packet sets out in a direction: it is lost, or arrives, maybe twice, or is held, and
    /// arrives with a later one.
    fn disturb(&mut self, direction: usize, bytes: Vec<u8>) {
        if self.random.percent(self.trouble.loss) {
            return;
        }
        let mut packet = Packet {
            bytes,
            is_damaged: self.random.percent(self.trouble.corruption),
        };
        if packet.is_damaged {
            let bit = self.random.below(8 * packet.bytes.len() as u64);
            packet.bytes[bit as usize / 8] ^= 1 << (bit % 8);
            self.damaged += 1;
        }
        if self.random.percent(self.trouble.reordering) {
            self.held[direction].push_back(packet);
            return;
        }
        let at = self.now() + self.trouble.delay * MILLISECOND;
        let copies = 1 + usize::from(self.random.percent(self.trouble.duplication));
        let all = std::iter::repeat_n(packet, copies).chain(self.held[direction].drain(..));
        self.late[direction].extend(all.map(|packet| (at, packet)));
    }

    /// A segment of the engine's sets out, unless it is too long. Returns whether it is not.
    fn send(&mut self, header: &Header, payload: &[u8]) -> bool {
        let packet = ipv4::packet(ENGINE, LINUX, header, payload);
        let passes = packet.len() <= self.mtu.into();
        if passes {
            self.disturb(0, packet);
        } else {
            self.too_long += 1;
        }
        self.arrive();
        passes
    }

    /// The next packet that has arrived in a direction.
    fn next(&mut self, direction: usize) -> Option<Packet> {
        let now = self.now();
        let first = self.late[direction].pop_front_if(|(at, _)| *at <= now);
        first.map(|(_, packet)| packet)
    }

    /// Packets arrive at Linux.
    fn arrive(&mut self) {
        while let Some(packet) = self.next(0) {
            let written = self.device.write_all(&packet.bytes);
            // One of no version of IP is not even taken.
            assert!(packet.is_damaged || written.is_ok(), "{written:?}");
        }
    }

    /// The next packets of Linux for the engine, if any come in time.
    fn receive(&mut self, wait: Duration) -> Vec<Packet> {
        let now = self.now();
        let due = self.late.iter().filter_map(|late| late.front());
        let due = due.map(|(at, _)| at.saturating_sub(now)).min();
        let wait = due.map_or(wait, |due| wait.min(Duration::from_nanos(due)));
        match self.packets.recv_timeout(wait) {
            Ok(packet) => self.disturb(1, packet),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => panic!("the device is gone"),
        }
        self.arrive();
        std::iter::from_fn(|| self.next(1)).collect()
    }

    /// The segment of a packet, if it is whole, and for the port of this run.
    fn segment<'p>(&self, packet: &'p Packet) -> Option<Segment<'p>> {
        if packet.is_damaged && ip::checksum(&packet.bytes[..20]) != 0 {
            return None;
        }
        let segment = ipv4::segment(LINUX, ENGINE, &packet.bytes)?;
        if packet.is_damaged {
            assert!(segment.is_err(), "a bit more or less is noticed");
            return None;
        }
        let segment = segment.expect("Linux sends right segments");
        (segment.header.destination == self.port).then_some(segment)
    }

    fn transfer(mut self, opener: Opener, config: Config, test: &Test) {
        let bytes = test.bytes;
        let secret = Secret([self.port.into(), 2]);
        let (local, remote) = ((ENGINE, self.port).into(), (LINUX, PORT).into());
        let iss = secret.initial(self.now(), &Ends { local, remote }).0;
        let mut connection = None;
        let (name, port) = (format!("{opener:?} {:?}", self.trouble), self.port);
        let linux = match opener {
            Opener::Engine => {
                let listener = TcpListener::bind((LINUX, PORT)).unwrap();
                let ports = (self.port, PORT);
                connection = Some(Connection::connect(config.clone(), 0, ports, iss, 99));
                thread::spawn(move || linux_side(listener.accept().unwrap().0, bytes))
            }
            Opener::Linux => thread::spawn(move || {
                linux_side(TcpStream::connect((ENGINE, port)).unwrap(), bytes);
            }),
        };
        let listen = ListenConfig {
            connection: config.clone(),
            ..ListenConfig::default()
        };
        let mut listener = Listener::new(listen, secret);
        let cookies = SynCookies::new(secret);
        let mut program = Program::new(0, 200_000);
        let mut payload = [0; 1500];
        let mut shut = false;
        loop {
            let now = self.now();
            let mut wait = Duration::from_millis(100);
            while let Some((_, header)) = listener.next(now) {
                self.send(&header, &[]);
            }
            if let Some(engine) = &mut connection {
                program.read = program.received;
                program.written = bytes.min(program.released + 100_000);
                if program.written == bytes && !shut && engine.state().is_synchronized() {
                    shut = true;
                    engine.shutdown();
                }
                if let Some(mtu) = self.trouble.mtu
                    && self.mtu > mtu
                    // What is left to be sent then does not fit into what was written before.
                    && program.released > bytes / 3
                {
                    self.mtu = mtu;
                    configure(&format!("link set mtu {mtu}"));
                }
                while let Some(out) = engine.next(now, &mut program, &mut payload) {
                    if !self.send(&out.header, &payload[..out.payload]) {
                        // As a router says that has a narrower link behind it.
                        engine.path_limit(now, out.header.seq, self.mtu - 40);
                    }
                }
                if matches!(engine.state(), State::Closed | State::TimeWait) {
                    break;
                }
                if let Some(at) = engine.deadline() {
                    wait = wait.min(Duration::from_nanos(at.saturating_sub(now)));
                }
            }
            assert!(
                self.began.elapsed() < Duration::from_secs(test.limit),
                "{name}: no end: {:?}",
                connection.as_ref().map(Connection::info)
            );
            for packet in self.receive(wait) {
                let now = self.now();
                let Some(segment) = self.segment(&packet) else {
                    continue;
                };
                let arrival = Arrival::from(segment);
                if connection.is_none() {
                    let incoming = Incoming {
                        ends: Ends {
                            local,
                            remote: (LINUX, segment.header.source).into(),
                        },
                        arrival,
                        mss: config.mss,
                        iss: None,
                    };
                    match listener.arrive(now, &cookies, &incoming) {
                        Reaction::Drop => {}
                        Reaction::Answer(header) => {
                            self.send(&header, &[]);
                        }
                        Reaction::Open(handshake) => {
                            let open = Connection::open(config.clone(), now, &handshake);
                            connection = listener.opened(&handshake).then_some(open);
                        }
                    }
                }
                if let Some(engine) = &mut connection {
                    engine.arrive(now, &arrival, &mut program);
                }
            }
        }
        let connection = connection.unwrap();
        let info = connection.info();
        assert_eq!((connection.error(), program.received), (None, bytes));
        assert!(program.ended && program.released == bytes);
        // Linux may not have its last acknowledgement yet.
        let mut connection = connection;
        while !linux.is_finished() {
            for packet in self.receive(Duration::from_millis(20)) {
                if let Some(segment) = self.segment(&packet) {
                    let arrival = Arrival::from(segment);
                    connection.arrive(self.now(), &arrival, &mut program);
                }
            }
            while let Some(out) = connection.next(self.now(), &mut program, &mut payload) {
                self.send(&out.header, &payload[..out.payload]);
            }
        }
        linux.join().unwrap();
        if self.trouble.mtu.is_some() {
            assert!(
                self.too_long > 0,
                "the path has taken less, and nobody noticed"
            );
            widen();
        }
        assert!(self.trouble.corruption == 0 || self.damaged > 0);
        println!(
            "{name}, timestamps {}, sack {}: {:?}, {} sent again, {} damaged, {} too long",
            info.timestamps,
            info.sack,
            self.began.elapsed(),
            info.retransmissions,
            self.damaged,
            self.too_long
        );
    }

    /// Nobody listens: Linux refuses, and the engine refuses Linux.
    fn refusal(mut self) {
        let ports = (self.port, 1);
        let mut connection = Connection::connect(Config::default(), 0, ports, Seq(7), 0);
        let mut program = Program::new(0, 1000);
        while connection.state() != State::Closed {
            let now = self.now();
            while let Some(out) = connection.next(now, &mut program, &mut [0; 1500]) {
                self.send(&out.header, &[]);
            }
            for packet in self.receive(Duration::from_millis(20)) {
                if let Some(segment) = self.segment(&packet) {
                    connection.arrive(now, &Arrival::from(segment), &mut program);
                }
            }
        }
        assert_eq!(connection.error(), Some(Error::Refused));
        let port = self.port;
        let linux = thread::spawn(move || TcpStream::connect((ENGINE, port)).map(drop));
        while !linux.is_finished() {
            for packet in self.receive(Duration::from_millis(20)) {
                if let Some(segment) = self.segment(&packet)
                    && segment.header.flags.contains(Flags::SYN)
                {
                    let refusal = segment.refusal().unwrap();
                    self.send(&refusal, &[]);
                }
            }
        }
        let error = linux.join().unwrap().unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
    }
}
