//! Messages to all members of a group over one file: asked and answered, flooded, and checked for
//! what must never be seen. Each has a header of 16 bytes: generation of the sender, number among
//! those that it has meant for the reader, and number of its instance.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::process::ExitCode;

use anyhow::{Result, bail, ensure};
use libc::{O_NONBLOCK, POLLIN, POLLOUT};

use crate::leaving_cpus::told;
use crate::messages::{FACTOR, Message, errno, is, open, wait, word};

/// A message of an identity to all, with a number of its own.
fn message(identity: u64, number: u64) -> Message {
    let mut message = [0; 64];
    let words = (0..).map(|index| match index {
        0 | 1 => 0,
        2 => identity,
        3 => number,
        index => (identity ^ number).wrapping_mul(FACTOR).wrapping_add(index),
    });
    for (to, word) in message.as_chunks_mut().0.iter_mut().zip(words) {
        *to = u64::to_le_bytes(word);
    }
    message
}

/// A message that is whole.
struct Parsed {
    generation: u32,
    number: u32,
    instance: u64,
    identity: u64,
    /// Number that the sending program has given the message.
    own: u64,
}

fn parse(got: &Message) -> Result<Parsed> {
    let (identity, own) = (word(got, 2), word(got, 3));
    let whole = message(identity, own)[16..] == got[16..];
    ensure!(whole, "a message that nobody sent: {got:x?}");
    Ok(Parsed {
        generation: word(got, 0) as u32,
        number: (word(got, 0) >> 32) as u32,
        instance: word(got, 1),
        identity,
        own,
    })
}

fn identity() -> Result<u64> {
    let mut random = [0; 8];
    File::open("/dev/urandom")?.read_exact(&mut random)?;
    Ok(u64::from_le_bytes(random))
}

/// Sends to whoever is there, and waits while nobody is.
fn send(file: &mut File, message: &Message) -> Result<()> {
    loop {
        match file.write(message) {
            Ok(64) => return Ok(()),
            Err(error) if is(&error, libc::ENOTCONN) => drop(wait(file, POLLOUT)?),
            other => bail!("a write: {other:?}"),
        }
    }
}

/// `machine-tests groups-echo FILE`: answers who asks, for ever.
pub fn echo(path: &str) -> ExitCode {
    told("groups-echo", echo_all(path))
}

fn echo_all(path: &str) -> Result<String> {
    let mut file = open(path, 0)?;
    println!("ready");
    loop {
        let mut message = [0; 64];
        file.read_exact(&mut message)?;
        match file.write(&message) {
            Ok(_) => {}
            Err(error) if is(&error, libc::ECONNRESET) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// `machine-tests groups-ask FILE COUNT MEMBERS`: asks all, so often, and has an answer of each.
pub fn ask(path: &str, count: &str, members: &str) -> ExitCode {
    told("groups-ask", ask_all(path, count, members))
}

fn ask_all(path: &str, count: &str, members: &str) -> Result<String> {
    let (count, members): (u64, usize) = (count.parse()?, members.parse()?);
    let (mut file, identity) = (open(path, 0)?, identity()?);
    for number in 1..=count {
        send(&mut file, &message(identity, number))?;
        let mut answers = BTreeSet::new();
        while answers.len() < members {
            let mut got = [0; 64];
            file.read_exact(&mut got)?;
            let answer = parse(&got)?;
            ensure!(
                answer.identity == identity,
                "an answer to somebody else: {got:x?}"
            );
            ensure!(
                answer.own == number,
                "{} after {number} was asked",
                answer.own
            );
            let told = u64::from(answer.number);
            ensure!(
                told == number,
                "answer {told} of one that was asked {number} times"
            );
            let is_new = answers.insert((answer.generation, answer.instance));
            ensure!(is_new, "two answers of one: {got:x?}");
        }
    }
    Ok("all have answered".into())
}

/// `machine-tests groups-flood FILE`: sends to all for ever, as fast as anybody has room.
pub fn flood(path: &str) -> ExitCode {
    told("groups-flood", flood_all(path))
}

fn flood_all(path: &str) -> Result<String> {
    let (mut file, identity) = (open(path, 0)?, identity()?);
    println!("ready");
    for number in 1.. {
        send(&mut file, &message(identity, number))?;
    }
    Ok("never".into())
}

/// `machine-tests groups-check FILE COUNT SENDERS`: takes messages until so many senders have each
/// sent so many. Those of each are of one identity, and in order; what was missed is known exactly.
pub fn check(path: &str, count: &str, senders: &str) -> ExitCode {
    told("groups-check", check_all(path, count, senders))
}

fn check_all(path: &str, count: &str, senders: &str) -> Result<String> {
    let (count, senders): (u64, usize) = (count.parse()?, senders.parse()?);
    let mut file = open(path, O_NONBLOCK)?;
    println!("ready");
    // The last one of each generation, and how many there were.
    let mut last: BTreeMap<u32, (Parsed, u64)> = BTreeMap::new();
    let mut missed = 0;
    while last.values().filter(|(_, taken)| *taken >= count).count() < senders {
        let mut got = [[0; 64]; 16];
        let bytes = match file.read(got.as_flattened_mut()) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                wait(&file, POLLIN)?;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        ensure!(bytes > 0 && bytes.is_multiple_of(64), "{bytes} bytes");
        for got in &got[..bytes / 64] {
            let now = parse(got)?;
            ensure!(now.number > 0 && now.generation > 0, "{got:x?}");
            let taken = match last.get(&now.generation) {
                // It was there before this one looked.
                None => 0,
                Some((before, taken)) => {
                    ensure!(
                        (now.identity, now.instance) == (before.identity, before.instance),
                        "another sender: {got:x?}"
                    );
                    ensure!(
                        now.number > before.number,
                        "{got:x?} after {}",
                        before.number
                    );
                    let skipped = u64::from(now.number - before.number);
                    ensure!(
                        now.own - before.own == skipped,
                        "{skipped} numbers, and not {}, after {}",
                        now.own,
                        before.own
                    );
                    missed += skipped - 1;
                    *taken
                }
            };
            last.insert(now.generation, (now, taken + 1));
        }
    }
    eprintln!("{missed} missed");
    Ok("checked".into())
}

/// `machine-tests groups-errors FILE`: what a file says without a member, then with one that does
/// not read.
pub fn errors(path: &str) -> ExitCode {
    told("groups-errors", all_errors(path))
}

fn all_errors(path: &str) -> Result<String> {
    let mut file = open(path, O_NONBLOCK)?;
    let whole = message(1, 1);
    errno("a short write", libc::EINVAL, file.write(&whole[..63]))?;
    errno("an empty write", libc::EINVAL, file.write(&[]))?;
    errno("a short read", libc::EINVAL, file.read(&mut [0; 63]))?;
    errno("a read of nothing", libc::EAGAIN, file.read(&mut [0; 64]))?;
    errno("a write to nobody", libc::ENOTCONN, file.write(&whole))?;
    let mut named = whole;
    named[..4].fill(0xff);
    errno("a write to one", libc::ECONNRESET, file.write(&named))?;
    println!("alone");
    wait(&file, POLLOUT)?;
    errno("a write to another", libc::ECONNRESET, file.write(&named))?;
    let written = file.write([whole; 40].as_flattened())?;
    ensure!(written == 32 * 64, "{written} bytes found room");
    errno("a write without room", libc::EAGAIN, file.write(&whole))?;
    println!("full");
    wait(&file, POLLOUT)?;
    let written = file.write(&whole)?;
    ensure!(written == 64, "{written} bytes found room");
    Ok("as they should".into())
}
