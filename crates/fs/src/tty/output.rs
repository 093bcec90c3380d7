//! The line discipline's way out: what a program's bytes become on the line (`OPOST`), and the
//! terminal's driver.

use alloc::vec::Vec;

use linux_raw_sys::general as sys;

use super::pty::PacketStatus;
use super::termios::Termios;
use crate::Result;
use crate::poll::PollTable;

/// Carrier of a terminal's bytes: a serial port, an instance's ring.
///
/// The driver passes what arrives to [`super::Tty::receive`], which takes only what it has room
/// for; it then holds the rest back and offers it again after [`TtyDriver::resume`].
pub trait TtyDriver: Send + Sync {
    /// Sends what the line takes without waiting, and returns how much that was.
    fn write(&self, bytes: &[u8]) -> usize;

    /// Waits until a write would be taken.
    ///
    /// # Errors
    /// `ERESTARTSYS` when a signal ends the wait.
    fn wait_writable(&self) -> Result<()>;

    /// Whether a write would be taken now. With a table, names the source that tells when that
    /// changes.
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

    /// Called when an open file of the terminal is closed.
    fn closed(&self) {}

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
pub(super) struct OutputState {
    /// The cursor's column, as far as printing characters and the usual controls tell.
    pub(super) column: usize,
    /// Bytes of an accepted character that the driver has not taken yet.
    pending: Vec<u8>,
}

impl OutputState {
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
        to.push(if termios.output(sys::OLCUC) {
            byte.to_ascii_uppercase()
        } else {
            byte
        });
    }

    /// Sends what an earlier write left over. False: the line takes nothing more now.
    pub(super) fn flush(&mut self, line: &dyn TtyDriver) -> bool {
        while !self.pending.is_empty() {
            let n = line.write(&self.pending);
            if n == 0 {
                return false;
            }
            self.pending.drain(..n);
        }
        true
    }

    /// Writes bytes through the output settings, without waiting, and returns how many were
    /// accepted. The last of them may be left over for [`OutputState::flush`].
    pub(super) fn write(&mut self, line: &dyn TtyDriver, bytes: &[u8], termios: &Termios) -> usize {
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

    /// Shows echoed bytes; what the line does not take now is lost, as it is on Linux: the reader
    /// of the line must not wait for it.
    pub(super) fn echo(&mut self, line: &dyn TtyDriver, bytes: &[u8], termios: &Termios) {
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
    use core::sync::atomic::{AtomicUsize, Ordering};

    use task::Mutex;

    use super::*;

    fn expanded(text: &[u8], termios: &Termios) -> Vec<u8> {
        let mut to = Vec::new();
        let mut output = OutputState::default();
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

    /// Output with each `oflag` moves the column as a terminal would: the length of a tab that
    /// follows shows it.
    #[test]
    fn the_column_is_that_of_what_is_seen() {
        let with = |oflag: u32| Termios {
            oflag: sys::OPOST | sys::XTABS | oflag,
            ..Termios::default()
        };
        let spaces = |text: &[u8], oflag: u32| {
            let text = [text, b"\t"].concat();
            let shown = expanded(&text, &with(oflag));
            shown.iter().rev().take_while(|byte| **byte == b' ').count()
        };
        assert_eq!(
            [
                spaces(b"", 0),
                spaces(b"a", 0),
                spaces(b"1234567", 0),
                spaces(b"12345678", 0)
            ],
            [8, 7, 1, 8]
        );
        assert_eq!(
            [
                spaces(b"ab\n", 0),
                spaces(b"ab\n", sys::ONLRET),
                spaces(b"ab\n", sys::ONLCR)
            ],
            [6, 8, 8]
        );
        assert_eq!(
            [spaces(b"ab\r", 0), spaces(b"ab\x08", 0), spaces(b"\x08", 0)],
            [8, 7, 8]
        );
        // Controls take no place, nor do the later bytes of a character of UTF-8.
        assert_eq!(
            [
                spaces(b"\x01\x1f\x7f", 0),
                spaces("\u{e9}".as_bytes(), 0),
                spaces(b"\x80\xbf", 0),
                spaces(b"\xc0", 0)
            ],
            [8, 7, 8, 7]
        );
        assert_eq!([spaces(b"!", 0), spaces(b"~", 0)], [7, 7]);
    }

    #[test]
    fn returns_are_left_out_or_changed_as_the_settings_say() {
        let termios = |oflag| Termios {
            oflag: sys::OPOST | oflag,
            ..Termios::default()
        };
        assert_eq!(expanded(b"\rab\r\rc", &termios(sys::ONOCR)), b"ab\rc");
        assert_eq!(expanded(b"\ra\r", &termios(0)), b"\ra\r");
        assert_eq!(expanded(b"a\r", &termios(sys::OCRNL)), b"a\n");
        assert_eq!(expanded(b"a\n", &termios(0)), b"a\n");
        assert_eq!(expanded(b"\t", &termios(0)), b"\t");
    }

    /// A line that takes so many bytes at a time, and none when it is full.
    struct Slow {
        sent: Mutex<Vec<u8>>,
        most: AtomicUsize,
    }

    impl TtyDriver for Slow {
        fn write(&self, bytes: &[u8]) -> usize {
            let n = bytes.len().min(self.most.load(Ordering::Relaxed)).min(100);
            self.most.fetch_sub(n, Ordering::Relaxed);
            self.sent.lock().extend(&bytes[..n]);
            n
        }

        fn wait_writable(&self) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_a_slow_line_leaves_is_sent_first() {
        let slow = |most| Slow {
            sent: Mutex::default(),
            most: AtomicUsize::new(most),
        };
        let (line, mut output, termios) = (slow(5), OutputState::default(), Termios::default());
        // All is accepted, and what it became is kept.
        assert_eq!(output.write(&line, b"ab\ncd\n", &termios), 6);
        assert_eq!(*line.sent.lock(), b"ab\r\nc");
        assert_eq!(
            (output.write(&line, b"more", &termios), output.flush(&line)),
            (0, false)
        );
        line.most.store(1000, Ordering::Relaxed);
        assert_eq!(output.write(&line, b"e", &termios), 1);
        assert_eq!(*line.sent.lock(), b"ab\r\ncd\r\ne");
        // So much is expanded at once; without processing the line says how much it takes.
        let (line, mut output) = (slow(10_000), OutputState::default());
        assert_eq!(output.write(&line, &[b'x'; 600], &termios), 512);
        assert_eq!(output.write(&line, &[b'x'; 512], &termios), 512);
        assert_eq!(line.sent.lock().len(), 1024);
        assert_eq!(output.write(&line, &[b'\n'; 600], &Termios::raw()), 100);
        assert_eq!((line.sent.lock().len(), output.flush(&line)), (1124, true));
        // An echo goes on as long as the line takes something, and then is lost.
        let (line, mut output) = (slow(700), OutputState::default());
        output.echo(&line, &[b'e'; 2000], &termios);
        assert_eq!(line.sent.lock().len(), 700);
    }
}
