//! The engine against the host's Linux, over a TUN device in a network namespace of its own, with
//! losses, repetitions and reordering between the two.
//!
//! Where namespaces or the device are not allowed the test says so and passes.

mod common;

use std::collections::VecDeque;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use common::{Program, Random, byte_at, ipv4};
use tcp::{
    Arrival, Config, Connection, Ends, Error, Flags, Header, Incoming, ListenConfig, Listener,
    Nanos, Reaction, Secret, Segment, Seq, State, SynCookies,
};

const LINUX: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
const ENGINE: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
const PORT: u16 = 4242;
/// Status of the opener when the device cannot be had.
const NOT_ALLOWED: i32 = 77;
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

#[test]
fn linux_is_a_peer() {
    let program = std::env::current_exe().unwrap();
    let mut command = Command::new("unshare");
    command.args(["-rn", "python3", "-c", OPENER]).arg(program);
    command.args(["--exact", "inside", "--ignored", "--nocapture"]);
    let output = match command.output() {
        Ok(output) if output.status.code() != Some(NOT_ALLOWED) => output,
        other => return println!("not possible here: {other:?}"),
    };
    let text = String::from_utf8_lossy(&output.stdout);
    if text.is_empty() {
        return println!("not possible here: {output:?}");
    }
    println!("{text}");
    assert!(output.status.success(), "{output:?}");
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
}

#[test]
#[ignore = "runs in a network namespace, from linux_is_a_peer"]
fn inside() {
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
    let bytes = std::env::var("BYTES").map_or(400_000, |text| text.parse().unwrap());
    let losses = std::env::var("LOSS").map_or(vec![0, 3], |text| vec![text.parse().unwrap()]);
    let mut port = 2000;
    for loss in losses {
        let trouble = Trouble {
            loss,
            duplication: loss,
            reordering: (2 * loss).min(20),
        };
        for opener in [Opener::Engine, Opener::Linux] {
            for (timestamps, sack) in [(true, true), (false, false)] {
                let config = Config {
                    timestamps,
                    sack,
                    ..Config::default()
                };
                let random = Random(loss * 100 + u64::from(port));
                let wire = Wire::new(&device, &packets, trouble, random, port);
                wire.transfer(opener, config, bytes);
                port += 1;
            }
        }
    }
    let random = Random(1);
    let trouble = Trouble {
        loss: 0,
        duplication: 0,
        reordering: 0,
    };
    Wire::new(&device, &packets, trouble, random, 1999).refusal();
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
    held: [VecDeque<Vec<u8>>; 2],
}

impl<'a> Wire<'a> {
    fn new(
        device: &'a File,
        packets: &'a Receiver<Vec<u8>>,
        trouble: Trouble,
        random: Random,
        port: u16,
    ) -> Self {
        Self {
            device,
            packets,
            trouble,
            random,
            port,
            began: Instant::now(),
            held: Default::default(),
        }
    }

    fn now(&self) -> Nanos {
        self.began.elapsed().as_nanos() as Nanos
    }

    /// Packets that come of one in a direction: none, itself, itself twice, one that was held.
    fn disturb(&mut self, direction: usize, packet: Vec<u8>) -> Vec<Vec<u8>> {
        if self.random.percent(self.trouble.loss) {
            return Vec::new();
        }
        if self.random.percent(self.trouble.reordering) {
            self.held[direction].push_back(packet);
            return Vec::new();
        }
        let mut packets = vec![packet];
        if self.random.percent(self.trouble.duplication) {
            packets.push(packets[0].clone());
        }
        packets.extend(self.held[direction].drain(..));
        packets
    }

    fn send(&mut self, header: &Header, payload: &[u8]) {
        let packet = ipv4::packet(ENGINE, LINUX, header, payload);
        for packet in self.disturb(0, packet) {
            self.device.write_all(&packet).unwrap();
        }
    }

    /// The next packets of Linux for the engine, if any come in time.
    fn receive(&mut self, wait: Duration) -> Vec<Vec<u8>> {
        match self.packets.recv_timeout(wait) {
            Ok(packet) => self.disturb(1, packet),
            Err(RecvTimeoutError::Timeout) => Vec::new(),
            Err(RecvTimeoutError::Disconnected) => panic!("the device is gone"),
        }
    }

    /// The segment of a packet, if it is for the port of this run.
    fn segment<'p>(&self, packet: &'p [u8]) -> Option<Segment<'p>> {
        let segment = ipv4::segment(LINUX, ENGINE, packet)?;
        let segment = segment.expect("Linux sends right segments");
        (segment.header.destination == self.port).then_some(segment)
    }

    fn transfer(mut self, opener: Opener, config: Config, bytes: u64) {
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
                while let Some(out) = engine.next(now, &mut program, &mut payload) {
                    self.send(&out.header, &payload[..out.payload]);
                }
                if matches!(engine.state(), State::Closed | State::TimeWait) {
                    break;
                }
                if let Some(at) = engine.deadline() {
                    wait = wait.min(Duration::from_nanos(at.saturating_sub(now)));
                }
            }
            assert!(
                self.began.elapsed() < Duration::from_secs(300),
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
                        Reaction::Answer(header) => self.send(&header, &[]),
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
        println!(
            "{name}, timestamps {}, sack {}: {:?}, {} sent again",
            info.timestamps,
            info.sack,
            self.began.elapsed(),
            info.retransmissions
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
