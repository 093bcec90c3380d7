//! The line discipline's way out: what a program's bytes become on the line (`OPOST`), and the terminal's driver.

use super::pty::PacketStatus;
use super::termios::Termios;
use crate::Result;
use crate::poll::PollTable;
use alloc::vec::Vec;
use linux_raw_sys::general as sys;

/// What carries a terminal's bytes: a serial port, an instance's ring.
///
/// The driver passes what arrives to [`super::Tty::input`], which takes only what it has room for; it then holds the rest back and
/// offers it again after [`Line::resume`].
pub trait Line: Send + Sync {
    /// Sends what the line takes without waiting, and returns how much that was.
    fn write(&self, bytes: &[u8]) -> usize;

    /// Waits until a write would be taken.
    ///
    /// # Errors
    /// `ERESTARTSYS` when a signal ends the wait.
    fn wait_writable(&self) -> Result<()>;

    /// Whether a write would be taken now. With a table, names the source that tells when that changes.
    fn writable(&self, table: Option<&mut PollTable>) -> bool {
        let _ = table;
        true
    }

    /// Waits until everything written has left.
    ///
    /// # Errors
    /// `ERESTARTSYS` when a signal ends the wait.
    fn drain(&self) -> Result<()> {
        Ok(())
    }

    /// There is room again for input that was held back.
    fn resume(&self) {}

    /// Somebody opens the terminal.
    ///
    /// # Errors
    /// `EIO` if that cannot be now.
    fn opened(&self) -> Result<()> {
        Ok(())
    }

    /// An opening is over.
    fn closed(&self) {}

    /// Whether the openings end when the leader of the session ends, as those of pseudo-terminals do.
    fn hangs_up_with_session(&self) -> bool {
        false
    }

    /// Throws away what was written and has not left.
    fn discard(&self) {}

    /// Something happened that packet mode tells.
    fn status(&self, what: PacketStatus) {
        let _ = what;
    }

    /// The settings changed: speed and character size may have.
    fn configure(&self, termios: &Termios) {
        let _ = termios;
    }
}

/// Where the output stands.
#[derive(Default)]
pub(super) struct Output {
    /// The cursor's column, as far as printing characters and the usual controls tell.
    pub(super) column: usize,
    /// What a byte already accepted became, and the line has not taken yet.
    pending: Vec<u8>,
}

impl Output {
    /// Appends what `byte` becomes on the line.
    fn expand(&mut self, byte: u8, termios: &Termios, to: &mut Vec<u8>) {
        match byte {
            b'\n' if termios.output(sys::ONLCR) => {
                self.column = 0;
                to.extend(b"\r\n");
                return;
            }
            b'\n' => {
                if termios.output(sys::ONLRET) {
                    self.column = 0;
                }
            }
            b'\r' if termios.output(sys::ONOCR) && self.column == 0 => return,
            b'\r' if termios.output(sys::OCRNL) => {
                to.push(b'\n');
                return;
            }
            b'\r' => self.column = 0,
            b'\t' => {
                let spaces = 8 - self.column % 8;
                self.column += spaces;
                if termios.oflag & sys::TABDLY == sys::XTABS {
                    to.extend(core::iter::repeat_n(b' ', spaces));
                    return;
                }
            }
            0x08 => self.column = self.column.saturating_sub(1),
            0..0x20 | 0x7f | 0x80..0xc0 => {}
            _ => self.column += 1,
        }
        to.push(if termios.output(sys::OLCUC) { byte.to_ascii_uppercase() } else { byte });
    }

    /// Sends what an earlier write left over. False: the line takes nothing more now.
    pub(super) fn flush(&mut self, line: &dyn Line) -> bool {
        while !self.pending.is_empty() {
            let n = line.write(&self.pending);
            if n == 0 {
                return false;
            }
            self.pending.drain(..n);
        }
        true
    }

    /// Writes bytes through the output settings, without waiting, and returns how many were accepted. The last of them may be left
    /// over for [`Output::flush`].
    pub(super) fn write(&mut self, line: &dyn Line, bytes: &[u8], termios: &Termios) -> usize {
        /// How much is expanded at a time.
        const CHUNK: usize = 512;
        if !self.flush(line) {
            return 0;
        }
        if !termios.output(sys::OPOST) {
            return line.write(bytes);
        }
        let bytes = &bytes[..bytes.len().min(CHUNK)];
        let mut expanded = Vec::with_capacity(bytes.len() + bytes.len() / 8 + 8);
        for &byte in bytes {
            self.expand(byte, termios, &mut expanded);
        }
        self.pending = expanded;
        self.flush(line);
        bytes.len()
    }

    /// Shows echoed bytes; what the line does not take now is lost, as it is on Linux: the reader of the line must not wait for it.
    pub(super) fn echo(&mut self, line: &dyn Line, bytes: &[u8], termios: &Termios) {
        let mut rest = bytes;
        while !rest.is_empty() {
            match self.write(line, rest, termios) {
                0 => break,
                n => rest = &rest[n..],
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(text: &[u8], termios: &Termios) -> Vec<u8> {
        let mut to = Vec::new();
        let mut output = Output::default();
        for &byte in text {
            output.expand(byte, termios, &mut to);
        }
        to
    }

    #[test]
    fn newlines_and_tabs() {
        assert_eq!(expanded(b"a\nb\tc", &Termios::default()), b"a\r\nb\tc");
        let mut termios = Termios::default();
        termios.oflag |= sys::XTABS;
        assert_eq!(expanded(b"ab\tc\n\tx", &termios), b"ab      c\r\n        x");
        termios.oflag = sys::OPOST | sys::OCRNL | sys::OLCUC;
        assert_eq!(expanded(b"a\rb", &termios), b"A\nB");
    }
}
