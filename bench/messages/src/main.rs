//! Times messages between two instances (`docs/messages.md`), for `cargo xtask bench elastic`.
//!
//! `messages echo FILE` answers, for ever. `messages measure FILE TURNS timed|counted` exchanges
//! messages with it, and prints a line for each turn and metric: `METRIC MICROSECONDS`. Both read
//! the time-stamp counter, which instances of a machine share.
//!
//! `counted` is for an emulator whose clock counts the instructions of all CPUs: there a turn by
//! turn is for a side alone, while the other one sleeps, so that nobody's looks for what is not
//! there yet are counted.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Result, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::time::{Duration, Instant};
use std::{env, thread};

/// Words of a message: a header, which the kernel writes, and what the two say.
type Message = [u64; 8];

/// `message[1]`: how the other side awaits the messages behind this one: by looks without a pause,
const POLL: u64 = 1;
/// or asleep,
const SLEEP: u64 = 2;
/// or by looks for [`BATCH`] at once, with pauses between.
const PAUSE: u64 = 3;

/// Messages of a turn that is counted: half of what a ring holds.
const BATCH: usize = 16;
/// Pause between two looks, in which the other side has ended its turn.
const LOOK: Duration = Duration::from_millis(5);
/// Time in which a side that has nothing to do falls asleep.
const REST: Duration = Duration::from_millis(2);
/// Linux' `O_NONBLOCK`.
const O_NONBLOCK: i32 = 0o4000;

/// A peer's file, twice.
struct Peer {
    waiting: File,
    polling: File,
}

fn counter() -> u64 {
    // SAFETY: every x86-64 processor has the instruction, and no kernel measured here forbids it to
    // programs.
    unsafe { core::arch::x86_64::_rdtsc() }
}

impl Peer {
    fn open(path: &str) -> Result<Self> {
        let open = |flags| {
            let mut options = OpenOptions::new();
            options
                .read(true)
                .write(true)
                .custom_flags(flags)
                .open(path)
        };
        Ok(Self {
            waiting: open(0)?,
            polling: open(O_NONBLOCK)?,
        })
    }

    fn send(&mut self, message: &Message) -> Result<()> {
        let mut bytes = [0; 64];
        for (to, word) in bytes.as_chunks_mut().0.iter_mut().zip(message) {
            *to = word.to_le_bytes();
        }
        let written = self.waiting.write(&bytes)?;
        assert_eq!(written, bytes.len(), "a message is sent whole");
        Ok(())
    }

    /// The next message, in the way that [`POLL`] and [`SLEEP`] say.
    fn receive(&mut self, way: u64) -> Result<Message> {
        let mut bytes = [0; 64];
        if way == SLEEP {
            self.waiting.read_exact(&mut bytes)?;
            return Ok(words(&bytes));
        }
        loop {
            match self.polling.read(&mut bytes) {
                Ok(_) => return Ok(words(&bytes)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Sends a batch. Returns the ticks that one takes.
    fn send_batch(&mut self) -> Result<u64> {
        let begun = counter();
        for _ in 0..BATCH {
            self.send(&[0, PAUSE, 0, 0, 0, 0, 0, 0])?;
        }
        Ok((counter() - begun) / BATCH as u64)
    }

    /// Takes a batch. Returns the ticks that one takes, 0 if not all of them were there at once.
    fn receive_batch(&mut self) -> Result<(u64, Message)> {
        let (mut taken, mut bytes, mut ticks) = (0, [0; 64], 0);
        while taken < BATCH {
            thread::sleep(LOOK);
            let (before, begun) = (taken, counter());
            while taken < BATCH {
                match self.polling.read(&mut bytes) {
                    Ok(_) => taken += 1,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error),
                }
            }
            if taken - before == BATCH {
                ticks = (counter() - begun) / BATCH as u64;
            }
        }
        Ok((ticks, words(&bytes)))
    }
}

fn words(bytes: &[u8; 64]) -> Message {
    let (words, _) = bytes.as_chunks();
    std::array::from_fn(|index| u64::from_le_bytes(words[index]))
}

fn echo(path: &str) -> Result<()> {
    let mut peer = Peer::open(path)?;
    let mut way = SLEEP;
    loop {
        if way != PAUSE {
            let mut message = peer.receive(way)?;
            message[2] = counter();
            (message[0], way) = (0, message[1]);
            peer.send(&message)?;
            continue;
        }
        let (taking, last) = peer.receive_batch()?;
        way = last[1];
        let sending = peer.send_batch()?;
        peer.send(&[0, way, taking, sending, 0, 0, 0, 0])?;
    }
}

/// Has the other side await messages in a way.
fn agree(peer: &mut Peer, way: u64) -> Result<()> {
    peer.send(&[0, way, 0, 0, 0, 0, 0, 0])?;
    peer.receive(SLEEP).map(drop)
}

fn measure(path: &str, turns: u32, way: &str) -> Result<()> {
    let mut peer = Peer::open(path)?;
    // Ticks of each turn, by metric.
    let mut figures: Vec<(&str, u64)> = Vec::new();
    // The peer is another one than at the opening, once.
    while let Err(error) = agree(&mut peer, SLEEP) {
        assert_eq!(error.kind(), ErrorKind::NotConnected, "{error}");
        thread::sleep(LOOK);
    }
    let (begun, first) = (Instant::now(), counter());
    for _ in 0..turns {
        thread::sleep(REST);
        let sent = counter();
        peer.send(&[0, SLEEP, 0, 0, 0, 0, 0, 0])?;
        peer.receive(SLEEP)?;
        figures.push(("ficm_round_trip_idle", counter() - sent));
    }
    if way == "counted" {
        agree(&mut peer, PAUSE)?;
        for _ in 0..turns {
            let here = peer.send_batch()?;
            let (back, _) = peer.receive_batch()?;
            thread::sleep(LOOK);
            let [_, _, there, sending, ..] = peer.receive(POLL)?;
            if there != 0 && back != 0 {
                figures.push(("ficm_one_way", here + there));
                figures.push(("ficm_round_trip_polling", here + there + sending + back));
            }
        }
    } else {
        agree(&mut peer, POLL)?;
        // The first ones have what they touch brought near.
        for turn in 0..2 * turns {
            let sent = counter();
            peer.send(&[0, POLL, 0, 0, 0, 0, 0, 0])?;
            let came = peer.receive(POLL)?[2];
            let back = counter();
            if turn >= turns {
                figures.push(("ficm_one_way", came.saturating_sub(sent)));
                figures.push(("ficm_round_trip_polling", back - sent));
            }
        }
    }
    let ticks_per_us = (counter() - first) as f64 / begun.elapsed().as_secs_f64() / 1e6;
    for (metric, ticks) in figures {
        println!("{metric} {:.4}", ticks as f64 / ticks_per_us);
    }
    Ok(())
}

fn main() -> Result<()> {
    let words: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["echo", path] => echo(path),
        ["measure", path, turns, way @ ("timed" | "counted")] => {
            measure(path, turns.parse().expect("TURNS is a number"), way)
        }
        _ => panic!("usage: messages echo FILE, or messages measure FILE TURNS timed|counted"),
    }
}
