//! TCP sockets of two hosts on one wire that loses, repeats and reorders frames, in virtual time.

use std::cell::{Cell, RefCell};
use std::collections::BinaryHeap;
use std::net::Ipv4Addr;
use std::rc::Rc;
use std::sync::Arc;

use abi::errno::Errno;
use fs::poll::Events;
use fs::{File, OpenFlags};
use linux_raw_sys::net as sys;
use net::SocketType;
use net::inet::{Family, Host, procfs};

use super::wire::{Machine, inet};
use super::{NOW, call, protocol};

pub const MILLISECOND: u64 = 1_000_000;
pub const SECOND: u64 = 1000 * MILLISECOND;
pub const TCP: u32 = sys::IPPROTO_TCP as u32;

thread_local! {
    /// The time of the test in this thread.
    static TIME: Cell<u64> = const { Cell::new(SECOND) };
}

pub fn time() -> u64 {
    TIME.get()
}

impl Machine {
    pub fn tcp(&self) -> Arc<File> {
        let socket = self.stack.socket(sys::AF_INET, SocketType::Stream, 0);
        socket.unwrap().into_file(OpenFlags::NONBLOCK)
    }

    pub fn listen(&self, port: u16, backlog: usize) -> Arc<File> {
        let file = self.tcp();
        let any = inet(Ipv4Addr::UNSPECIFIED, port);
        call(|caller| protocol(&file).bind(caller, &any)).unwrap();
        protocol(&file).listen(backlog).unwrap();
        file
    }

    pub fn set(&self, path: &str, value: &str) {
        let sysctls = self.stack.sysctls();
        let setting = sysctls.all().find(|one| one.path() == path).unwrap();
        setting.set(value.as_bytes()).unwrap();
    }

    /// The states of connections that `/proc/net/tcp` lists, in order.
    pub fn states(&self) -> Vec<u8> {
        let text = procfs::tcp(self.stack.inet(), Family::V4).unwrap();
        let of_line = |line: &str| u8::from_str_radix(line.split_whitespace().nth(3).unwrap(), 16);
        let mut states: Vec<u8> = text
            .lines()
            .skip(1)
            .map(|line| of_line(line).unwrap())
            .collect();
        states.sort_unstable();
        states
    }

    /// Pages that TCP's buffers take.
    pub fn pages(&self) -> u64 {
        let text = procfs::sockstat(self.stack.inet());
        let line = text.lines().find(|line| line.starts_with("TCP:")).unwrap();
        line.split(' ').next_back().unwrap().parse().unwrap()
    }
}

/// SplitMix64 (Steele, Lea and Flood, 2014).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn percent(&mut self, chance: u64) -> bool {
        self.next() % 100 < chance
    }
}

/// The wire's troubles, chances in percent.
#[derive(Clone, Copy, Default)]
pub struct Trouble {
    pub loss: u64,
    pub duplication: u64,
    pub reordering: u64,
    pub corruption: u64,
}

/// A frame under way: the sooner it arrives the greater it is.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub struct UnderWay {
    pub before: std::cmp::Reverse<(u64, u64)>,
    pub to: usize,
    pub frame: Vec<u8>,
}

/// Judges frames by who sends them: whether one is lost.
pub type Filter = Rc<dyn Fn(usize, &[u8]) -> bool>;

/// Two machines on a wire.
pub struct Wire {
    pub machines: [Machine; 2],
    pub trouble: Trouble,
    pub random: Random,
    pub under_way: BinaryHeap<UnderWay>,
    pub number: u64,
    pub filter: Option<Filter>,
    pub frames: u64,
}

pub const DELAY: u64 = 5 * MILLISECOND;

impl Wire {
    pub fn new(seed: u64, trouble: Trouble) -> Self {
        TIME.set(SECOND);
        Self {
            machines: [1, 2].map(|number| Machine::new(Host::with_clock(time), number)),
            trouble,
            random: Random(seed),
            under_way: BinaryHeap::new(),
            number: 0,
            filter: None,
            frames: 0,
        }
    }

    pub fn clean() -> Self {
        Self::new(1, Trouble::default())
    }

    pub fn put(&mut self, to: usize, frame: &[u8]) {
        let mut at = time() + DELAY;
        if self.random.percent(self.trouble.reordering) {
            at += self.random.next() % (2 * DELAY);
        }
        let mut frame = frame.to_vec();
        // Ethernet's own checksum, and that of IP's header, show what is damaged before that.
        if frame.len() > 34
            && frame[12..14] == [8, 0]
            && self.random.percent(self.trouble.corruption)
        {
            let bit = self.random.next() as usize % ((frame.len() - 34) * 8);
            frame[34 + bit / 8] ^= 1 << (bit % 8);
        }
        self.number += 1;
        self.under_way.push(UnderWay {
            before: std::cmp::Reverse((at, self.number)),
            to,
            frame,
        });
    }

    /// Has a router mark what is under way (RFC 3168, section 5).
    pub fn mark_congestion(&mut self) {
        let marked = self.under_way.drain().map(|mut one| {
            // Adding to one word takes as much from its sum, of ones' complement.
            let old = one.frame[15];
            one.frame[15] |= 3;
            let sum = u16::from_be_bytes([one.frame[24], one.frame[25]]);
            let (less, borrow) = sum.overflowing_sub(u16::from(one.frame[15] - old));
            let sum = less - u16::from(borrow);
            one.frame[24..26].copy_from_slice(&sum.to_be_bytes());
            one
        });
        self.under_way = marked.collect::<Vec<_>>().into();
    }

    /// Takes what the machines have sent.
    pub fn collect(&mut self) {
        for from in 0..2 {
            let sent = self.machines[from].end.take();
            for frame in sent {
                assert!(frame.len() <= 1514, "a frame of {} bytes", frame.len());
                self.frames += 1;
                let lost = self.filter.as_ref().is_some_and(|lost| lost(from, &frame));
                if lost || self.random.percent(self.trouble.loss) {
                    continue;
                }
                let copies = 1 + u32::from(self.random.percent(self.trouble.duplication));
                for _ in 0..copies {
                    self.put(1 - from, &frame);
                }
            }
        }
    }

    /// Goes to when something happens next, and lets it; false if nothing ever will.
    pub fn step(&mut self) -> bool {
        self.collect();
        let frame = self.under_way.peek().map(|one| one.before.0.0);
        let timers = self.machines.iter().filter_map(|one| one.host.deadline());
        let Some(next) = timers.chain(frame).min() else {
            return false;
        };
        TIME.set(time().max(next));
        let burst = |to: usize| self.machines[to].host.burst(self.machines[to].index);
        let mut bursts = [0, 1].map(burst);
        while let Some(first) = self.under_way.peek()
            && first.before.0.0 <= time()
        {
            let UnderWay { to, frame, .. } = self.under_way.pop().unwrap();
            if self.random.percent(20) {
                bursts[to] = burst(to);
            }
            bursts[to].receive(&frame);
        }
        drop(bursts);
        for machine in &self.machines {
            if machine.host.deadline().is_some_and(|due| due <= time()) {
                machine.host.run_timers();
                let due = machine.host.deadline();
                assert!(
                    due.is_none_or(|due| due > time()),
                    "a timer that is due and does nothing"
                );
            }
        }
        true
    }

    /// Lets things happen for so long.
    pub fn run(&mut self, span: u64) {
        let end = time() + span;
        loop {
            self.collect();
            let frame = self.under_way.peek().map(|one| one.before.0.0);
            let timers = self.machines.iter().filter_map(|one| one.host.deadline());
            match timers.chain(frame).min() {
                Some(next) if next <= end => drop(self.step()),
                _ => break,
            }
        }
        TIME.set(end);
    }

    /// Lets things happen until something is so, in less than an hour.
    pub fn until<R>(&mut self, mut is_so: impl FnMut(&Self) -> Option<R>) -> R {
        let end = time() + 3600 * SECOND;
        loop {
            if let Some(result) = is_so(self) {
                return result;
            }
            assert!(self.step(), "nothing will ever happen");
            assert!(time() < end, "not in an hour");
        }
    }

    /// A connection from the first machine to a listener of the second.
    pub fn connect(&mut self, listener: &Arc<File>, port: u16) -> [Arc<File>; 2] {
        let client = self.machines[0].tcp();
        begin(&client, self.machines[1].address, port);
        let server = self.until(|_| accept(listener));
        self.until(|_| connect_result(&client)).unwrap();
        [client, server]
    }
}

pub fn begin(client: &File, to: Ipv4Addr, port: u16) {
    let to = inet(to, port);
    let result = call(|caller| protocol(client).connect(caller, &to, NOW));
    assert_eq!(result, Err(Errno::EINPROGRESS));
}

pub fn accept(listener: &File) -> Option<Arc<File>> {
    match protocol(listener).accept(NOW) {
        Ok(socket) => Some(socket.into_file(OpenFlags::NONBLOCK)),
        Err(error) => {
            assert_eq!(error, Errno::EAGAIN);
            None
        }
    }
}

/// The result of a connection that was begun, as programs ask for it: by poll and `SO_ERROR`.
pub fn connect_result(client: &File) -> Option<Result<(), Errno>> {
    let events = client.poll(None);
    events
        .intersects(Events::OUT | Events::ERR)
        .then(|| protocol(client).take_error().map_or(Ok(()), Err))
}

pub fn read(file: &File) -> Result<Vec<u8>, Errno> {
    let mut buf = vec![0; 1 << 16];
    let count = file.read(&mut buf)?;
    buf.truncate(count);
    Ok(buf)
}

/// The bytes of a stream from a place on.
pub fn bytes(stream: u8, from: usize, to: usize) -> Vec<u8> {
    let byte = |place: usize| ((place * 31) ^ (place >> 8) ^ (place >> 16)) as u8 ^ stream;
    (from..to).map(byte).collect()
}

/// One end's program: sends its stream in pieces, and receives the other's.
pub struct Program {
    pub file: Arc<File>,
    pub stream: u8,
    pub length: usize,
    pub sent: usize,
    pub received: usize,
    pub shut: bool,
    pub is_done: bool,
}

impl Program {
    pub fn new(file: &Arc<File>, stream: u8, length: usize) -> RefCell<Self> {
        RefCell::new(Self {
            file: file.clone(),
            stream,
            length,
            sent: 0,
            received: 0,
            shut: false,
            is_done: false,
        })
    }

    /// Goes on as far as it can without waiting. Returns whether everything is done.
    pub fn go_on(&mut self, random: &mut Random) -> bool {
        while self.sent < self.length {
            let end = self
                .length
                .min(self.sent + 1 + random.next() as usize % 20_000);
            match self.file.write(&bytes(self.stream, self.sent, end)) {
                Ok(count) => self.sent += count,
                Err(error) => {
                    assert_eq!(error, Errno::EAGAIN);
                    break;
                }
            }
        }
        if self.sent == self.length && !self.shut {
            self.shut = true;
            protocol(&self.file).shutdown(false, true).unwrap();
        }
        while !self.is_done {
            match read(&self.file) {
                Ok(data) if data.is_empty() => self.is_done = true,
                Ok(data) => {
                    let end = self.received + data.len();
                    assert!(data == bytes(1 - self.stream, self.received, end));
                    self.received = end;
                }
                Err(error) => {
                    assert_eq!(error, Errno::EAGAIN);
                    break;
                }
            }
        }
        self.shut && self.is_done
    }
}

/// Sends two streams through a connection, at once, and waits until all has come.
pub fn exchange(wire: &mut Wire, files: &[Arc<File>; 2], lengths: [usize; 2], seed: u64) {
    let programs = [0, 1].map(|n| Program::new(&files[n], n as u8, lengths[n]));
    let random = RefCell::new(Random(seed));
    wire.until(|_| {
        let done = |one: &RefCell<Program>| one.borrow_mut().go_on(&mut random.borrow_mut());
        let all = [done(&programs[0]), done(&programs[1])];
        (all == [true, true]).then_some(())
    });
    for (one, other) in [(0, 1), (1, 0)] {
        assert_eq!(programs[one].borrow().received, lengths[other]);
    }
}
