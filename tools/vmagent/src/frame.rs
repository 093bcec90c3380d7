//! Frames: encoding, and decoding from a stream cut at arbitrary places.

use std::fmt;

use crate::MAX_PAYLOAD;

/// Kind of a frame. Kinds below 0x80 go to the machine, the others to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Bytes for the command's standard input.
    Stdin = 0x01,
    /// The command's standard input ends here.
    StdinEof = 0x02,
    /// Send this signal (`u32`) to the command's process group.
    Signal = 0x03,
    /// The host has the exit status; the machine may power off.
    Bye = 0x04,
    /// The agent runs and starts the command now.
    Ready = 0x81,
    /// Bytes from the command's standard output.
    Stdout = 0x82,
    /// Bytes from the command's standard error, and the agent's own complaints.
    Stderr = 0x83,
    /// The command ended with this status (`i32`): its exit status, or 128 + the signal that killed
    /// it.
    Exit = 0x84,
    /// The command's standard input has taken this many bytes more (`u32`).
    Credit = 0x85,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            0x01 => Self::Stdin,
            0x02 => Self::StdinEof,
            0x03 => Self::Signal,
            0x04 => Self::Bye,
            0x81 => Self::Ready,
            0x82 => Self::Stdout,
            0x83 => Self::Stderr,
            0x84 => Self::Exit,
            0x85 => Self::Credit,
            _ => return None,
        })
    }
}

/// One frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Kind of the frame.
    pub kind: Kind,
    /// At most [`MAX_PAYLOAD`] bytes.
    pub payload: Vec<u8>,
}

impl Frame {
    /// A frame of `kind` that carries `payload`.
    ///
    /// # Panics
    /// If the payload is longer than [`MAX_PAYLOAD`].
    pub fn new(kind: Kind, payload: impl Into<Vec<u8>>) -> Self {
        let payload = payload.into();
        assert!(
            payload.len() <= MAX_PAYLOAD,
            "a payload of {} bytes",
            payload.len()
        );
        Self { kind, payload }
    }

    /// The payload as a little-endian number, if it has that length.
    pub fn number(&self) -> Option<u32> {
        Some(u32::from_le_bytes(self.payload.as_slice().try_into().ok()?))
    }

    /// The bytes for the line.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(5 + self.payload.len());
        bytes.push(self.kind as u8);
        bytes.extend_from_slice(&(self.payload.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&self.payload);
        bytes
    }
}

/// The stream is not one of frames: the other side is something else, or bytes were lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAFrame {
    kind: u8,
    length: u32,
}

impl fmt::Display for NotAFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "no frame on the agent's line: kind {:#04x}, length {}",
            self.kind, self.length
        )
    }
}

impl std::error::Error for NotAFrame {}

/// Puts frames together from a stream.
#[derive(Debug, Default)]
pub struct Decoder {
    bytes: Vec<u8>,
    mark: Vec<u8>,
}

impl Decoder {
    /// For a stream of frames.
    pub fn new() -> Self {
        Self::default()
    }

    /// For a stream in which frames begin after `mark`; what comes before it is left out.
    pub fn after(mark: &str) -> Self {
        Self {
            bytes: Vec::new(),
            mark: mark.into(),
        }
    }

    /// Adds what was read.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Takes the next whole frame, if there is one.
    ///
    /// # Errors
    /// When what comes next cannot be a frame. The stream is of no use after that.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, NotAFrame> {
        if !self.mark.is_empty() {
            let Some(at) = self
                .bytes
                .windows(self.mark.len())
                .position(|window| window == self.mark)
            else {
                return Ok(None);
            };
            self.bytes.drain(..at + self.mark.len());
            self.mark.clear();
        }
        let Some((header, rest)) = self.bytes.split_first_chunk::<5>() else {
            return Ok(None);
        };
        let [kind, length @ ..] = *header;
        let length = u32::from_le_bytes(length);
        let bad = NotAFrame { kind, length };
        let kind = Kind::from_byte(kind).ok_or(bad)?;
        if length as usize > MAX_PAYLOAD {
            return Err(bad);
        }
        let Some(payload) = rest.get(..length as usize) else {
            return Ok(None);
        };
        let frame = Frame::new(kind, payload);
        self.bytes.drain(..5 + length as usize);
        Ok(Some(frame))
    }

    /// Bytes that were pushed and not yet taken as a frame.
    pub fn into_rest(self) -> Vec<u8> {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_survive_any_cut() {
        let frames = [
            Frame::new(Kind::Ready, []),
            Frame::new(Kind::Stdout, *b"hello"),
            Frame::new(Kind::Stderr, vec![7; MAX_PAYLOAD]),
            Frame::new(Kind::Exit, 137i32.to_le_bytes()),
        ];
        let stream: Vec<u8> = frames.iter().flat_map(Frame::encode).collect();
        for step in [1, 2, 3, 5, 7, 4096, stream.len()] {
            let mut decoder = Decoder::new();
            let mut got = Vec::new();
            for piece in stream.chunks(step) {
                decoder.push(piece);
                while let Some(frame) = decoder.next_frame().unwrap() {
                    got.push(frame);
                }
            }
            assert_eq!(got, frames, "cut every {step} bytes");
            assert!(decoder.into_rest().is_empty());
        }
    }

    #[test]
    fn what_comes_before_the_mark_is_left_out() {
        let mut decoder = Decoder::after("mark");
        for piece in [
            &b"GRUB\x1b[2J mar"[..],
            b"ma",
            b"rk",
            &Frame::new(Kind::Ready, []).encode(),
        ] {
            assert_eq!(decoder.next_frame(), Ok(None));
            decoder.push(piece);
        }
        assert_eq!(decoder.next_frame(), Ok(Some(Frame::new(Kind::Ready, []))));
    }

    #[test]
    fn nonsense_is_refused() {
        let mut decoder = Decoder::new();
        decoder.push(b"Linux version");
        assert!(decoder.next_frame().is_err());
        let mut decoder = Decoder::new();
        decoder.push(&[Kind::Stdout as u8, 0xff, 0xff, 0xff, 0xff]);
        assert!(decoder.next_frame().is_err());
    }
}
