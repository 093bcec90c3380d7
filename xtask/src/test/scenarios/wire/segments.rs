//! Segments of TCP by hand: a client that fetches a file, and segments that mean nothing.

use std::net::Ipv4Addr;

use anyhow::{Result, ensure};

use super::peer::{MACHINE, PEER, sum};

pub const TCP: u8 = 6;
/// The port of the machine's server.
pub const PORT: u16 = 8080;

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const PSH: u8 = 8;
const ACK: u8 = 16;
const REQUEST: &[u8] = b"GET /small HTTP/1.0\r\n\r\n";

/// A segment from the peer to the machine, with a right checksum.
pub fn segment(ports: (u16, u16), numbers: (u32, u32), flags: u8, data: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend_from_slice(&ports.0.to_be_bytes());
    bytes.extend_from_slice(&ports.1.to_be_bytes());
    bytes.extend_from_slice(&numbers.0.to_be_bytes());
    bytes.extend_from_slice(&numbers.1.to_be_bytes());
    bytes.extend_from_slice(&[5 << 4, flags, 0x20, 0, 0, 0, 0, 0]);
    bytes.extend_from_slice(data);
    seal(&mut bytes, PEER, MACHINE);
    bytes
}

/// A SYN from a port, with no option.
pub fn syn(port: u16, number: u32) -> Vec<u8> {
    segment((port, PORT), (number, 0), SYN, &[])
}

/// Makes the checksum of a segment right.
pub fn seal(bytes: &mut [u8], from: Ipv4Addr, to: Ipv4Addr) {
    bytes[16..18].fill(0);
    let check = checksum(bytes, from, to);
    bytes[16..18].copy_from_slice(&check.to_be_bytes());
}

fn checksum(bytes: &[u8], from: Ipv4Addr, to: Ipv4Addr) -> u16 {
    let length = (bytes.len() as u16).to_be_bytes();
    let pseudo = [&from.octets()[..], &to.octets(), &[0, TCP], &length].concat();
    sum(&[&pseudo[..], bytes].concat())
}

/// Whether a segment of the machine's is as it must be.
pub fn check(bytes: &[u8], from: Ipv4Addr, to: Ipv4Addr) -> Result<()> {
    ensure!(bytes.len() >= 20, "a segment of {} bytes", bytes.len());
    let head = usize::from(bytes[12] >> 4) * 4;
    ensure!(
        (20..=bytes.len()).contains(&head),
        "a header of {head} bytes in a segment of {}",
        bytes.len()
    );
    ensure!(
        checksum(bytes, from, to) == 0,
        "a wrong checksum of a segment"
    );
    ensure!(
        bytes[13] & (SYN | FIN | RST) != SYN | FIN,
        "SYN and FIN in one"
    );
    Ok(())
}

/// A client of the machine's server.
pub struct Client {
    port: u16,
    /// Number of what is sent next, and expected next.
    next: u32,
    expected: u32,
    pub is_open: bool,
    pub is_refused: bool,
    pub has_ended: bool,
    /// The answer, with its head.
    pub answer: Vec<u8>,
}

impl Client {
    pub fn new(port: u16, number: u32) -> Self {
        Self {
            port,
            next: number,
            expected: 0,
            is_open: false,
            is_refused: false,
            has_ended: false,
            answer: Vec::new(),
        }
    }

    fn segment(&self, flags: u8, data: &[u8]) -> Vec<u8> {
        let number = self.next.wrapping_sub(data.len() as u32);
        segment((self.port, PORT), (number, self.expected), flags, data)
    }

    /// The segment that is sent, again and again, until there is an answer.
    pub fn knock(&self) -> Vec<u8> {
        match (self.is_open, self.answer.is_empty()) {
            (false, _) => syn(self.port, self.next),
            (true, true) => self.segment(ACK | PSH, REQUEST),
            (true, false) => self.segment(ACK, &[]),
        }
    }

    /// Takes a segment that has been checked, and returns the answer to it.
    pub fn hear(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        let half = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let word = |at: usize| u32::from(half(at)) << 16 | u32::from(half(at + 2));
        if half(2) != self.port || half(0) != PORT {
            return None;
        }
        let (number, flags) = (word(4), bytes[13]);
        let data = &bytes[usize::from(bytes[12] >> 4) * 4..];
        if flags & RST != 0 {
            self.is_refused = true;
            return None;
        }
        if flags & SYN != 0 {
            if !self.is_open && word(8) == self.next.wrapping_add(1) {
                self.is_open = true;
                self.expected = number.wrapping_add(1);
                self.next = self.next.wrapping_add(1 + REQUEST.len() as u32);
            }
            return Some(self.knock());
        }
        if !self.is_open || data.is_empty() && flags & FIN == 0 {
            return None;
        }
        if number == self.expected && !self.has_ended {
            self.answer.extend_from_slice(data);
            self.expected = self.expected.wrapping_add(data.len() as u32);
            if flags & FIN != 0 {
                self.expected = self.expected.wrapping_add(1);
                self.has_ended = true;
                return Some(self.segment(ACK | FIN, &[]));
            }
        }
        Some(self.segment(ACK, &[]))
    }
}
