//! A name server that knows one address, and a client that sends nonsense to another: for tests of
//! who asks whom.

use std::net::{Ipv4Addr, UdpSocket};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

/// Address of every name that the server is asked for (RFC 5737: of nobody).
const EVERYBODY: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 7);
/// A question for the address of `web`.
const QUESTION: &[u8] = b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x03web\0\0\x01\0\x01";
/// Wait for an answer, after which the question is asked again.
const PATIENCE: Duration = Duration::from_secs(1);

fn report(result: Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Answers questions for addresses at an address until it is ended.
pub fn serve(address: &str) -> ExitCode {
    report(try_serve(address))
}

fn try_serve(address: &str) -> Result<()> {
    let socket = UdpSocket::bind((address, 53)).context("cannot have the port")?;
    let mut query = [0; 512];
    loop {
        let (length, from) = socket.recv_from(&mut query)?;
        let Some((header, rest)) = query[..length].split_first_chunk::<12>() else {
            continue;
        };
        let name = rest.iter().position(|byte| *byte == 0).unwrap_or(0);
        let Some(question) = rest.get(..name + 5) else {
            continue;
        };
        let is_for_address = question[name + 1..name + 3] == [0, 1];
        let mut answer = header[..2].to_vec();
        answer.extend([0x81, 0x80, 0, 1, 0, u8::from(is_for_address), 0, 0, 0, 0]);
        answer.extend(question);
        if is_for_address {
            answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
            answer.extend(EVERYBODY.octets());
        }
        socket.send_to(&answer, from)?;
    }
}

/// Sends so many datagrams of nonsense to a name server, or, with 0, until it is ended; then a
/// question, and waits for the answer to that.
pub fn pester(server: &str, count: &str) -> ExitCode {
    report(try_pester(server, count))
}

fn try_pester(server: &str, count: &str) -> Result<()> {
    let count: u64 = count.parse().context("no count")?;
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.connect((server, 53))?;
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut sent = 0;
    while count == 0 || sent < count {
        let nonsense = nonsense(&mut random);
        // A full queue is no reason to stop, nor is a refusal.
        let _ = socket.send(&nonsense);
        sent += 1;
    }
    socket.set_read_timeout(Some(PATIENCE))?;
    let mut answer = [0; 512];
    loop {
        // What was sent without an answer may fill queues, in which this one is lost.
        socket.send(QUESTION)?;
        while let Ok(length) = socket.recv(&mut answer) {
            // Answers to nonsense come before.
            if answer[..length].starts_with(&QUESTION[..2]) && answer[3] & 0xf == 0 {
                ensure!(answer[7] == 1, "an answer without an address");
                println!("answered after {count} datagrams of nonsense");
                return Ok(());
            }
        }
    }
}

/// Bytes of any kind, or a question some bytes of which are wrong, or that is cut or goes on.
fn nonsense(random: &mut impl FnMut() -> u64) -> Vec<u8> {
    let mut bytes = match random() % 4 {
        0 => Vec::new(),
        _ => QUESTION.to_vec(),
    };
    let extra = random() % 600;
    match random() % 3 {
        0 => bytes.extend((0..extra).map(|_| random() as u8)),
        1 => bytes.truncate(extra as usize % (bytes.len() + 1)),
        _ => {}
    }
    for _ in 0..random() % 5 {
        let at = random() as usize % bytes.len().max(1);
        if let Some(byte) = bytes.get_mut(at) {
            *byte = random() as u8;
        }
    }
    // Its number is not that of the question at the end.
    if let Some(first) = bytes.first_mut() {
        *first |= 0x80;
    }
    bytes
}
