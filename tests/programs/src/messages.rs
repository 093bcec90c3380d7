//! Messages of 64 bytes over a file that is read, written and polled: exchanged, flooded, and
//! checked for what must never be seen. Each begins with two numbers of 32 bits, the generation of
//! who sent it and its number there.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use libc::{O_NONBLOCK, POLLIN, POLLOUT, c_short};

use crate::checked;
use crate::leaving_cpus::told;

pub(crate) type Message = [u8; 64];
/// Factor by which a message's identity and number become its further words.
pub(crate) const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

pub(crate) fn open(path: &str, flags: i32) -> Result<File> {
    let mut options = OpenOptions::new();
    let file = options
        .read(true)
        .write(true)
        .custom_flags(flags)
        .open(path);
    file.with_context(|| path.to_owned())
}

/// Waits until the file has one of the events.
pub(crate) fn wait(file: &File, events: c_short) -> Result<c_short> {
    let fd = file.as_raw_fd();
    let revents = 0;
    let mut asked = libc::pollfd {
        fd,
        events,
        revents,
    };
    // SAFETY: one entry, ours.
    checked(unsafe { libc::poll(&raw mut asked, 1, -1) })?;
    Ok(asked.revents)
}

pub(crate) fn is(error: &io::Error, errno: i32) -> bool {
    error.raw_os_error() == Some(errno)
}

/// A message of an identity, with a number of its own: the words behind the header follow from
/// them.
fn message(identity: u64, number: u64) -> Message {
    let mut message = [0; 64];
    let words = (0..).map(|index| match index {
        0 => 0,
        1 => identity,
        2 => number,
        index => (identity ^ number).wrapping_mul(FACTOR).wrapping_add(index),
    });
    for (to, word) in message.as_chunks_mut().0.iter_mut().zip(words) {
        *to = u64::to_le_bytes(word);
    }
    message
}

pub(crate) fn word(message: &Message, index: usize) -> u64 {
    u64::from_le_bytes(message.as_chunks().0[index])
}

/// Generation, number, identity and number by the identity, of a message that is whole.
fn parse(got: &Message) -> Result<[u64; 4]> {
    let (header, identity, number) = (word(got, 0), word(got, 1), word(got, 2));
    let whole = message(identity, number)[8..] == got[8..];
    ensure!(whole, "a message that nobody sent: {got:x?}");
    Ok([header & 0xffff_ffff, header >> 32, identity, number])
}

/// Sends and waits while there is no peer, or no room.
fn send(file: &mut File, message: &Message) -> Result<()> {
    loop {
        match file.write(message) {
            Ok(64) => return Ok(()),
            Ok(count) => bail!("{count} bytes were written"),
            Err(error) if is(&error, libc::ENOTCONN) || error.kind() == ErrorKind::WouldBlock => {
                wait(file, POLLOUT)?;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// `machine-tests messages-echo FILE`: sends back what comes, for ever; a peer that is gone is
/// told of, and the next one served.
pub fn echo(path: &str) -> ExitCode {
    told("messages-echo", echo_all(path))
}

fn echo_all(path: &str) -> Result<String> {
    let mut file = open(path, 0)?;
    println!("ready");
    loop {
        let mut message = [0; 64];
        let outcome = match file.read(&mut message) {
            Ok(_) => {
                message[..8].fill(0);
                file.write(&message)
            }
            Err(error) => Err(error),
        };
        match outcome {
            Ok(_) => {}
            Err(error) if is(&error, libc::ECONNRESET) => println!("reset"),
            Err(error) if is(&error, libc::ENOTCONN) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// `machine-tests messages-ping FILE COUNT poll|sleep`: so many round trips, each checked.
pub fn ping(path: &str, count: &str, way: &str) -> ExitCode {
    told("messages-ping", ping_all(path, count, way))
}

fn ping_all(path: &str, count: &str, way: &str) -> Result<String> {
    let count: u64 = count.parse()?;
    let polls = way == "poll";
    let mut file = open(path, if polls { O_NONBLOCK } else { 0 })?;
    wait(&file, POLLOUT)?;
    let identity = u64::from(std::process::id());
    let mut first = None;
    let begun = Instant::now();
    for number in 1..=count {
        send(&mut file, &message(identity, number))?;
        let mut got = [0; 64];
        loop {
            match file.read(&mut got) {
                Ok(64) => break,
                Err(error) if polls && error.kind() == ErrorKind::WouldBlock => {}
                other => bail!("a read: {other:?}"),
            }
        }
        let [_, told, by, own] = parse(&got)?;
        // Others may have exchanged some before.
        let first = *first.get_or_insert(told);
        ensure!(
            (told, by, own) == (first + number - 1, identity, number),
            "{got:x?}"
        );
    }
    let each = begun.elapsed().as_nanos() / u128::from(count.max(1));
    eprintln!("{each} ns a round trip");
    Ok("exchanged".into())
}

/// `machine-tests messages-flood FILE`: sends for ever, as fast as there is room; begins anew with
/// each peer.
pub fn flood(path: &str) -> ExitCode {
    told("messages-flood", flood_all(path))
}

fn flood_all(path: &str) -> Result<String> {
    let mut file = open(path, 0)?;
    println!("ready");
    let mut random = [0; 8];
    File::open("/dev/urandom")?.read_exact(&mut random)?;
    let identity = u64::from_le_bytes(random);
    for number in 1.. {
        let message = message(identity, number);
        while let Err(error) = send(&mut file, &message) {
            let reset = error
                .downcast_ref()
                .is_some_and(|error| is(error, libc::ECONNRESET));
            ensure!(reset, "{error:#}");
        }
    }
    Ok("never".into())
}

/// `machine-tests messages-check FILE COUNT ENDS`: takes messages until as many have come and as
/// many peers have gone: of each generation the numbers are in a row from 1 on, and all is of one
/// sender.
pub fn check(path: &str, count: &str, ends: &str) -> ExitCode {
    told("messages-check", check_all(path, count, ends))
}

fn check_all(path: &str, count: &str, ends: &str) -> Result<String> {
    let (count, ends): (u64, u64) = (count.parse()?, ends.parse()?);
    let mut file = open(path, O_NONBLOCK)?;
    println!("ready");
    let (mut taken, mut ended) = (0, 0);
    // Generation, number, identity and its number of the last one.
    let mut last: Option<[u64; 4]> = None;
    while taken < count || ended < ends {
        let mut got = [[0; 64]; 16];
        match file.read(got.as_flattened_mut()) {
            Ok(bytes) => {
                ensure!(bytes > 0 && bytes.is_multiple_of(64), "{bytes} bytes");
                for message in &got[..bytes / 64] {
                    let now = parse(message)?;
                    match last {
                        Some([generation, number, identity, own]) => ensure!(
                            now == [generation, number + 1, identity, own + 1],
                            "{now:x?} came after {last:x?}"
                        ),
                        None => ensure!(now[1] == 1, "the first of a generation is {now:x?}"),
                    }
                    last = Some(now);
                    taken += 1;
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                wait(&file, POLLIN)?;
            }
            Err(error) if is(&error, libc::ECONNRESET) => {
                ended += 1;
                last = None;
                println!("reset");
            }
            Err(error) => return Err(error.into()),
        }
    }
    println!("{ended} ends");
    Ok("checked".into())
}

/// Checks that a call has failed in this way.
pub(crate) fn errno(what: &str, wanted: i32, result: io::Result<usize>) -> Result<()> {
    let got = result.as_ref().err().and_then(io::Error::raw_os_error);
    ensure!(got == Some(wanted), "{what}: {result:?}");
    Ok(())
}

/// `machine-tests messages-errors FILE`: what a file without a peer says, and then one with a peer
/// that does not read.
pub fn errors(path: &str) -> ExitCode {
    told("messages-errors", all_errors(path))
}

fn all_errors(path: &str) -> Result<String> {
    let mut file = open(path, O_NONBLOCK)?;
    let whole = message(1, 1);
    errno("a short write", libc::EINVAL, file.write(&whole[..63]))?;
    errno("a long write", libc::EINVAL, file.write(&[0; 65]))?;
    errno("an empty write", libc::EINVAL, file.write(&[]))?;
    errno("a short read", libc::EINVAL, file.read(&mut [0; 63]))?;
    errno("a read of nothing", libc::EAGAIN, file.read(&mut [0; 64]))?;
    errno("a write to nobody", libc::ENOTCONN, file.write(&whole))?;
    println!("alone");
    wait(&file, POLLOUT)?;
    let mut wrong = whole;
    wrong[..4].fill(0xff);
    errno("another generation", libc::ECONNRESET, file.write(&wrong))?;
    let written = file.write([whole; 40].as_flattened())?;
    ensure!(written == 32 * 64, "{written} bytes found room");
    errno("a write without room", libc::EAGAIN, file.write(&whole))?;
    println!("full");
    wait(&file, POLLOUT)?;
    let written = file.write(&whole)?;
    ensure!(written == 64, "{written} bytes found room");
    Ok("as they should".into())
}
