//! A wire between two machines, for their emulators' datagram sockets: each datagram is a frame. It
//! can lose, repeat, reorder and damage frames, by a seed, can take its time, and writes what was
//! sent into a capture.

mod road;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, Write};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, ensure};
use clap::Args;
use road::Road;

pub use self::road::Shape;
use crate::cleanup::Directory;

/// Time after which a wire looks whether it is over.
const LOOK: Duration = Duration::from_millis(200);
/// Longest frame that a wire carries.
const LONGEST: usize = 70_000;
/// Chances are out of so many.
const WHOLE: u64 = 1000;

/// Join two machines by a wire, until it is interrupted
#[derive(Args)]
pub struct Arguments {
    /// A directory for the wire's sockets, which is made
    #[arg(value_name = "DIRECTORY")]
    directory: PathBuf,
    #[command(flatten)]
    faults: Faults,
    /// Write what the machines send into this capture, which tcpdump and tshark read
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
}

/// Faults of a wire, each in so many of a thousand frames.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Lose so many frames in a thousand
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub loss: u64,
    /// Carry so many twice
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub duplicate: u64,
    /// Carry so many behind the next one
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub reorder: u64,
    /// Change a bit in so many
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub corrupt: u64,
    /// The seed of all that
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,
    /// How long frames take, and which pass.
    #[command(flatten)]
    pub shape: Shape,
}

/// The two ends of a wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    A,
    B,
}

impl End {
    const BOTH: [Self; 2] = [Self::A, Self::B];

    fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::A => "a",
            Self::B => "b",
        }
    }
}

/// A wire.
pub struct Wire {
    directory: PathBuf,
    sockets: [UnixDatagram; 2],
    faults: Faults,
    capture: Option<Mutex<Capture>>,
    is_over: AtomicBool,
    carried: AtomicU64,
    lost: AtomicU64,
}

/// Frames that a wire has carried, and those it has lost, on purpose or because nobody was there.
#[derive(Clone, Copy, Debug)]
pub struct Traffic {
    pub carried: u64,
    pub lost: u64,
}

impl Wire {
    /// A wire whose sockets are in a directory; `limit` bytes of what is sent go into the capture.
    pub fn new(directory: &Path, faults: Faults, pcap: Option<(&Path, u64)>) -> Result<Self> {
        let bind = |end: End| -> Result<UnixDatagram> {
            let path = wire_path(directory, end);
            let socket = UnixDatagram::bind(&path)
                .with_context(|| format!("cannot make a socket at {}", path.display()))?;
            socket.set_read_timeout(Some(LOOK))?;
            socket.set_write_timeout(Some(LOOK))?;
            Ok(socket)
        };
        let capture = pcap.map(|(path, limit)| Capture::create(path, limit));
        Ok(Self {
            sockets: [bind(End::A)?, bind(End::B)?],
            directory: directory.to_owned(),
            faults,
            capture: capture.transpose()?.map(Mutex::new),
            is_over: AtomicBool::new(false),
            carried: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        })
    }

    /// The network of a machine at one end, as QEMU's `-netdev` has it.
    pub fn network(&self, end: End) -> OsString {
        network(&self.directory, end)
    }

    /// Carries frames both ways until [`Self::end`].
    pub fn carry(&self) -> Result<Traffic> {
        thread::scope(|scope| {
            let ways = End::BOTH.map(|from| scope.spawn(move || self.carry_from(from)));
            ways.into_iter().try_for_each(|way| {
                way.join()
                    .unwrap_or_else(|_| Err(io::Error::other("a direction panicked")))
            })
        })
        .context("the wire broke")?;
        self.with_capture(|capture| capture.file.flush())
            .context("cannot write the capture")?;
        Ok(Traffic {
            carried: self.carried.load(Ordering::Relaxed),
            lost: self.lost.load(Ordering::Relaxed),
        })
    }

    /// Ends the wire.
    pub fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    fn with_capture(&self, f: impl FnOnce(&mut Capture) -> io::Result<()>) -> io::Result<()> {
        let Some(capture) = &self.capture else {
            return Ok(());
        };
        f(&mut capture.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    fn carry_from(&self, from: End) -> io::Result<()> {
        let socket = &self.sockets[from as usize];
        let mut chances = Chances::new(self.faults, from);
        let mut road = Road::new(self.faults.shape);
        let mut held: Option<Vec<u8>> = None;
        let mut bytes = vec![0; LONGEST];
        let (start, mut last) = (Instant::now(), Duration::ZERO);
        while !self.is_over() {
            while let Some(frame) = road.take(start.elapsed()) {
                self.send(from, &frame)?;
            }
            let wait = road.wait(start.elapsed()).min(LOOK);
            if road.is_full() {
                // Who sends waits.
                thread::sleep(wait);
                continue;
            }
            if socket.read_timeout()? != Some(wait) {
                socket.set_read_timeout(Some(wait))?;
            }
            let length = match socket.recv(&mut bytes) {
                Ok(length) => length,
                Err(error) if is_timeout(&error) => {
                    let now = start.elapsed();
                    // Nothing is behind which it could come.
                    if let Some(frame) = held.take_if(|_| now >= last + LOOK) {
                        road.put(now, frame);
                    }
                    self.with_capture(|capture| capture.file.flush())?;
                    continue;
                }
                Err(error) => return Err(error),
            };
            last = start.elapsed();
            let frame = &mut bytes[..length];
            self.with_capture(|capture| capture.write(frame))?;
            let fate = chances.next(frame);
            if fate == Fate::Held && held.is_none() {
                held = Some(frame.to_vec());
                continue;
            }
            let copies = match fate {
                Fate::Lost => 0,
                Fate::Carried | Fate::Held => 1,
                Fate::Twice => 2,
            };
            if copies == 0 || !road.carries(frame) {
                self.lost.fetch_add(1, Ordering::Relaxed);
            } else {
                (0..copies).for_each(|_| road.put(last, frame.to_vec()));
            }
            if let Some(frame) = held.take() {
                road.put(last, frame);
            }
        }
        Ok(())
    }

    /// Sends a frame to the machine at the other end, which it waits for; one that is not there, or
    /// has ended, loses it.
    fn send(&self, from: End, frame: &[u8]) -> io::Result<()> {
        let to = machine_path(&self.directory, from.other());
        loop {
            match self.sockets[from.other() as usize].send_to(frame, &to) {
                Ok(_) => {
                    self.carried.fetch_add(1, Ordering::Relaxed);
                    return Ok(());
                }
                Err(error) if is_timeout(&error) && !self.is_over() => {}
                Err(error) if is_timeout(&error) || is_absence(&error) => {
                    self.lost.fetch_add(1, Ordering::Relaxed);
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
    }
}

fn wire_path(directory: &Path, end: End) -> PathBuf {
    directory.join(format!("{}.wire", end.name()))
}

fn machine_path(directory: &Path, end: End) -> PathBuf {
    directory.join(format!("{}.machine", end.name()))
}

fn network(directory: &Path, end: End) -> OsString {
    let (own, wire) = (machine_path(directory, end), wire_path(directory, end));
    let mut network = OsString::from("dgram,local.type=unix,local.path=");
    network.push(own);
    network.push(",remote.type=unix,remote.path=");
    network.push(wire);
    network
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

fn is_absence(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::NotFound | ErrorKind::ConnectionRefused
    )
}

/// The fate of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    Carried,
    Lost,
    Twice,
    /// Held back, and carried behind the next one.
    Held,
}

/// The chances of one direction's frames.
struct Chances {
    faults: Faults,
    random: u64,
}

impl Chances {
    fn new(faults: Faults, from: End) -> Self {
        // Neither of the two is 0.
        let random = (faults.seed << 1 | from as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Self {
            faults,
            random: random.max(1),
        }
    }

    fn random(&mut self) -> u64 {
        // Marsaglia's xorshift64.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    fn has(&mut self, chance: u64) -> bool {
        // What is left to chance takes a number, so that the rest does not depend on it.
        let random = self.random() >> 20;
        random % WHOLE < chance
    }

    /// Decides on a frame, and may damage it.
    fn next(&mut self, frame: &mut [u8]) -> Fate {
        let Faults {
            loss,
            duplicate,
            reorder,
            corrupt,
            ..
        } = self.faults;
        let (is_lost, is_held) = (self.has(loss), self.has(reorder));
        let (is_twice, is_damaged) = (self.has(duplicate), self.has(corrupt));
        let bit = self.random() >> 20;
        if is_damaged && !frame.is_empty() {
            let at = (bit / 8) as usize % frame.len();
            frame[at] ^= 1 << (bit % 8);
        }
        match (is_lost, is_twice, is_held) {
            (true, ..) => Fate::Lost,
            (_, true, _) => Fate::Twice,
            (.., true) => Fate::Held,
            _ => Fate::Carried,
        }
    }
}

/// A capture of frames, in the form that tcpdump has defined (`pcap-savefile(5)`).
struct Capture {
    file: BufWriter<File>,
    /// Bytes for which there is room.
    left: u64,
}

impl Capture {
    fn create(path: &Path, limit: u64) -> Result<Self> {
        let create = || -> io::Result<BufWriter<File>> {
            let mut file = BufWriter::new(File::create(path)?);
            // Nanoseconds; version 2.4; no shift of time, of no accuracy; whole frames of Ethernet.
            for word in [0xa1b2_3c4d, 2 | 4 << 16, 0, 0, LONGEST as u32, 1_u32] {
                file.write_all(&word.to_le_bytes())?;
            }
            Ok(file)
        };
        let file = create().with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self { file, left: limit })
    }

    /// Writes a frame, if there is room for all of it.
    fn write(&mut self, frame: &[u8]) -> io::Result<()> {
        let Some(left) = self.left.checked_sub(frame.len() as u64) else {
            self.left = 0;
            return Ok(());
        };
        self.left = left;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let now = now.unwrap_or_default();
        let length = frame.len() as u32;
        for word in [now.as_secs() as u32, now.subsec_nanos(), length, length] {
            self.file.write_all(&word.to_le_bytes())?;
        }
        self.file.write_all(frame)
    }
}

/// Carries out `cargo xtask wire`.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let Arguments {
        directory,
        faults,
        pcap,
    } = arguments;
    let chances = [
        faults.loss,
        faults.duplicate,
        faults.reorder,
        faults.corrupt,
    ];
    ensure!(
        chances.iter().all(|chance| *chance <= WHOLE),
        "a thousand in a thousand is all: --loss, --duplicate, --reorder and --corrupt take 0 to 1000"
    );
    ensure!(
        faults.shape.rate != Some(0),
        "nothing passes a wire of --rate 0: leave it out for one that is as fast as can be"
    );
    let shown = directory.display();
    ensure!(
        !shown.to_string().contains(','),
        "{shown}: QEMU takes no comma in a socket's path"
    );
    let _sockets =
        Directory::create_at(directory.clone()).with_context(|| format!("cannot make {shown}"))?;
    let pcap = pcap.as_deref().map(|path| (path, u64::MAX));
    let wire = Wire::new(directory, *faults, pcap)?;
    for end in End::BOTH {
        println!("--net {}", wire.network(end).display());
    }
    wire.carry()?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A machine's end.
    fn machine(directory: &Path, end: End) -> UnixDatagram {
        let socket = UnixDatagram::bind(machine_path(directory, end)).unwrap();
        socket.connect(wire_path(directory, end)).unwrap();
        socket
    }

    #[test]
    fn a_clean_wire_carries_all_in_order_and_captures_it() {
        let directory = Directory::create().unwrap();
        let pcap = directory.join("pcap");
        let wire = Wire::new(&directory.join(""), Faults::default(), Some((&pcap, 300))).unwrap();
        let (a, b) = (
            machine(&directory.join(""), End::A),
            machine(&directory.join(""), End::B),
        );
        let traffic = thread::scope(|scope| {
            let carried = scope.spawn(|| wire.carry());
            let mut bytes = [0; 200];
            for n in 0..100 {
                let (from, to) = if n % 2 == 0 { (&a, &b) } else { (&b, &a) };
                from.send(&[n; 60]).unwrap();
                assert_eq!(to.recv(&mut bytes).unwrap(), 60);
                assert_eq!(bytes[..60], [n; 60]);
            }
            wire.end();
            carried.join().unwrap().unwrap()
        });
        assert_eq!((traffic.carried, traffic.lost), (100, 0));
        // Room for five frames of 60 bytes, with their heads.
        assert_eq!(fs::read(&pcap).unwrap().len(), 24 + 5 * (16 + 60));
    }

    #[test]
    fn a_wire_that_takes_its_time_carries_all_in_order_but_what_is_too_long() {
        let directory = Directory::create().unwrap();
        let at = directory.join("");
        let shape = Shape {
            delay: 20,
            rate: Some(1000),
            mtu: Some(100),
        };
        let faults = Faults {
            shape,
            ..Faults::default()
        };
        let wire = Wire::new(&at, faults, None).unwrap();
        let (a, b) = (machine(&at, End::A), machine(&at, End::B));
        let start = Instant::now();
        let traffic = thread::scope(|scope| {
            let carried = scope.spawn(|| wire.carry());
            for n in 0..20 {
                a.send(&[n; 114]).unwrap();
                a.send(&[n; 115]).unwrap();
            }
            let mut bytes = [0; 200];
            for n in 0..20 {
                assert_eq!(b.recv(&mut bytes).unwrap(), 114);
                assert_eq!(bytes[..114], [n; 114]);
            }
            wire.end();
            carried.join().unwrap().unwrap()
        });
        assert_eq!((traffic.carried, traffic.lost), (20, 20));
        // Never sooner: 20 frames of 912 bits at a bit a microsecond, and the delay.
        assert!(start.elapsed() >= Duration::from_micros(20 * 912 + 20_000));
    }

    #[test]
    fn chances_are_as_said_and_the_same_again() {
        let faults = Faults {
            loss: 100,
            duplicate: 50,
            reorder: 200,
            corrupt: 10,
            seed: 7,
            shape: Shape::default(),
        };
        let fates = |from| {
            let mut chances = Chances::new(faults, from);
            let mut damaged = 0;
            let all: Vec<_> = (0..10_000)
                .map(|_| {
                    let mut frame = [0; 100];
                    let fate = chances.next(&mut frame);
                    let bits: u32 = frame.iter().map(|byte| byte.count_ones()).sum();
                    assert!(bits <= 1);
                    damaged += bits;
                    fate
                })
                .collect();
            (all, damaged)
        };
        let (all, damaged) = fates(End::A);
        let count = |fate| all.iter().filter(|one| **one == fate).count();
        assert!((900..1100).contains(&count(Fate::Lost)));
        assert!((380..520).contains(&count(Fate::Twice)));
        assert!((1600..1850).contains(&count(Fate::Held)));
        assert!((60..140).contains(&damaged));
        assert_eq!(fates(End::A), (all.clone(), damaged));
        assert_ne!(fates(End::B).0, all);
        let mut clean = Chances::new(Faults::default(), End::A);
        assert!((0..1000).all(|_| clean.next(&mut [1]) == Fate::Carried));
    }
}
