//! The serial line to the host.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

use rustix::fs::OFlags;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use vmagent::{Decoder, Frame, Kind, MAX_PAYLOAD};

use crate::named;

/// COM2.
pub const PATH: &str = "/dev/ttyS1";

/// The open line, in raw mode.
pub struct Line {
    port: File,
    cooked: Termios,
    decoder: Decoder,
}

impl Line {
    /// Opens the line and takes it out of the terminal's line discipline, so that bytes pass
    /// unchanged.
    pub fn open() -> io::Result<Self> {
        let port = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(OFlags::NOCTTY.bits() as i32)
            .open(PATH)
            .map_err(|error| named(PATH, error))?;
        let cooked = tcgetattr(&port)?;
        let mut raw = cooked.clone();
        raw.make_raw();
        tcsetattr(&port, OptionalActions::Now, &raw)?;
        Ok(Self {
            port,
            cooked,
            decoder: Decoder::new(),
        })
    }

    /// Gives the line its line discipline back, for a command that uses it as its terminal.
    pub fn make_terminal(&self) -> io::Result<()> {
        Ok(tcsetattr(&self.port, OptionalActions::Drain, &self.cooked)?)
    }

    /// Sends a frame; returns when the kernel has all of it.
    ///
    /// This may wait for the line. The host always reads, whatever it is doing, so the wait ends.
    pub fn send(&mut self, kind: Kind, payload: &[u8]) -> io::Result<()> {
        self.port.write_all(&Frame::new(kind, payload).encode())
    }

    /// Sends plain bytes, outside any frame.
    pub fn send_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.port.write_all(bytes)
    }

    /// Reads what has arrived (waits if that is nothing) and returns the frames that are complete.
    pub fn receive(&mut self) -> io::Result<Vec<Frame>> {
        let mut buffer = [0; MAX_PAYLOAD];
        let read = self.port.read(&mut buffer)?;
        self.decoder.push(&buffer[..read]);
        let mut frames = Vec::new();
        while let Some(frame) = self.decoder.next_frame().map_err(io::Error::other)? {
            frames.push(frame);
        }
        Ok(frames)
    }

    /// Reports the command's end and waits until the host has heard it.
    pub fn finish(&mut self, status: i32) -> io::Result<()> {
        self.send(Kind::Exit, &status.to_le_bytes())?;
        while !self.receive()?.iter().any(|frame| frame.kind == Kind::Bye) {}
        Ok(())
    }
}

impl AsFd for Line {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.port.as_fd()
    }
}
