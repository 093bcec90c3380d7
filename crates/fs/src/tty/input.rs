//! The line discipline's way in: what typed bytes become before a program reads them.
//!
//! Pure: [`InputBuffer::receive`] takes bytes and settings, and returns what is to be echoed and
//! which signals are due. In canonical mode a line is edited at the end of the buffer until it is
//! complete; everything before it is ready to be read, line by line.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use linux_raw_sys::general as sys;

use super::termios::{DISABLED, InputMode, Termios};

/// Bytes that the buffer holds at most. A longer canonical line is cut, as on Linux.
pub const LINE_MAX: usize = 4096;
/// Bytes that the buffer holds at most when lines do not matter.
pub const RAW_MAX: usize = 65_536;

/// Results of received bytes beside what can be read.
#[derive(Default, Debug, PartialEq, Eq)]
pub struct ReceiveEffects {
    /// Bytes taken; fewer than offered when the buffer is full.
    pub taken: usize,
    /// To be shown, not yet processed for output.
    pub echo: Vec<u8>,
    /// Signals for the foreground group.
    pub signals: Vec<u32>,
    /// `Some(true)`: output stops; `Some(false)`: output goes on.
    pub stopped: Option<bool>,
    /// There is more to read than before.
    pub readable: bool,
}

/// The input buffer of a terminal.
#[derive(Default)]
pub struct InputBuffer {
    data: VecDeque<u8>,
    /// How many bytes were taken out so far: positions below count from the beginning of time.
    base: u64,
    /// Where complete lines end. An end without bytes before it is an end of file.
    ends: VecDeque<u64>,
    /// Where the line being edited begins.
    line: u64,
    /// The next byte is taken literally.
    literal: bool,
    /// Output was stopped by the stop character.
    stopped: bool,
    /// The column in which the line being edited begins on the screen, for erasing tabs.
    line_column: usize,
}

impl InputBuffer {
    fn end(&self) -> u64 {
        self.base + self.data.len() as u64
    }

    /// Bytes that a read may take now.
    pub fn available(&self, mode: InputMode) -> usize {
        if mode.is_canonical() {
            usize::try_from(self.ends.back().map_or(0, |e| e - self.base)).unwrap_or(0)
        } else {
            self.data.len()
        }
    }

    /// Whether a canonical read would return now (with a line, or with end of file).
    pub fn has_line(&self) -> bool {
        !self.ends.is_empty()
    }

    /// Bytes that [`InputBuffer::receive`] would take now.
    pub fn room(&self, mode: InputMode) -> usize {
        if !mode.is_canonical() {
            RAW_MAX.saturating_sub(self.data.len())
        } else if self.ends.is_empty() || self.data.len() < LINE_MAX {
            // Without a complete line nobody can make room by reading, so everything is taken and
            // the line is cut.
            LINE_MAX
        } else {
            0
        }
    }

    /// Takes at most one line (canonical), or what there is.
    pub fn read(&mut self, buf: &mut [u8], mode: InputMode) -> usize {
        let limit = match self.ends.front() {
            Some(&end) if mode.is_canonical() => {
                usize::try_from(end - self.base).unwrap_or(usize::MAX)
            }
            None if mode.is_canonical() => return 0,
            _ => self.data.len(),
        };
        let len = limit.min(buf.len());
        let n = crate::pipe::drain_into(&mut self.data, &mut buf[..len]);
        self.base += n as u64;
        while self.ends.front().is_some_and(|&end| end <= self.base) {
            self.ends.pop_front();
            if mode.is_canonical() {
                break;
            }
        }
        self.line = self.line.max(self.base);
        n
    }

    /// Throws everything away.
    pub fn flush(&mut self) {
        self.base = self.end();
        self.data.clear();
        self.ends.clear();
        self.line = self.base;
        self.literal = false;
    }

    /// Adapts what is in the buffer to a change between canonical and raw mode.
    pub fn change_mode(&mut self, mode: InputMode) {
        self.ends.clear();
        self.literal = false;
        if mode.is_canonical() && !self.data.is_empty() {
            // What came before counts as a line.
            self.ends.push_back(self.end());
        }
        self.line = self.end();
    }

    /// Takes in what arrived on the line. `column` is where the cursor is.
    pub fn receive(&mut self, bytes: &[u8], termios: &Termios, column: usize) -> ReceiveEffects {
        let mut effects = ReceiveEffects::default();
        let mode = termios.input_mode();
        let plain_input =
            sys::ISTRIP | sys::IGNCR | sys::ICRNL | sys::INLCR | sys::IUCLC | sys::IXON;
        if termios.iflag & plain_input == 0
            && termios.lflag & (sys::ICANON | sys::ISIG | sys::ECHO | sys::ECHONL) == 0
            && !self.literal
        {
            // A raw line: nothing to look at.
            let n = bytes.len().min(self.room(InputMode::Raw));
            self.data.extend(&bytes[..n]);
            effects.taken = n;
            effects.readable = n > 0;
            return effects;
        }
        if self.line == self.end() {
            self.line_column = column;
        }
        for &byte in bytes {
            if self.room(mode) == 0 {
                break;
            }
            effects.taken += 1;
            self.receive_byte(byte, termios, mode, &mut effects);
        }
        effects
    }

    fn receive_byte(
        &mut self,
        byte: u8,
        termios: &Termios,
        mode: InputMode,
        effects: &mut ReceiveEffects,
    ) {
        let mut byte = byte;
        if termios.input(sys::ISTRIP) {
            byte &= 0x7f;
        }
        if termios.input(sys::IUCLC) && termios.local(sys::IEXTEN) {
            byte = byte.to_ascii_lowercase();
        }
        if core::mem::take(&mut self.literal) {
            self.store(byte, termios, mode, effects);
            return;
        }
        if termios.input(sys::IXON) {
            // The start character may be the stop character: then it toggles.
            let start =
                termios.is(sys::VSTART, byte) && (self.stopped || !termios.is(sys::VSTOP, byte));
            if start || (self.stopped && termios.input(sys::IXANY)) {
                self.stopped = false;
                effects.stopped = Some(false);
                if start {
                    return;
                }
            } else if termios.is(sys::VSTOP, byte) {
                self.stopped = true;
                effects.stopped = Some(true);
                return;
            }
        }
        if termios.local(sys::ISIG) {
            let signals = [
                (sys::VINTR, sys::SIGINT),
                (sys::VQUIT, sys::SIGQUIT),
                (sys::VSUSP, sys::SIGTSTP),
            ];
            if let Some((_, signal)) = signals
                .into_iter()
                .find(|&(which, _)| termios.is(which, byte))
            {
                if !termios.local(sys::NOFLSH) {
                    self.flush();
                }
                if self.stopped {
                    self.stopped = false;
                    effects.stopped = Some(false);
                }
                if termios.local(sys::ECHO) {
                    echo(byte, termios, effects);
                }
                effects.signals.push(signal);
                return;
            }
        }
        match byte {
            b'\r' if termios.input(sys::IGNCR) => return,
            b'\r' if termios.input(sys::ICRNL) => byte = b'\n',
            b'\n' if termios.input(sys::INLCR) => byte = b'\r',
            _ => {}
        }
        if mode.is_canonical() && self.edit(byte, termios, effects) {
            return;
        }
        self.store(byte, termios, mode, effects);
    }

    /// Handles the bytes that edit a canonical line or end it. True if the byte was one.
    fn edit(&mut self, byte: u8, termios: &Termios, effects: &mut ReceiveEffects) -> bool {
        let extended = termios.local(sys::IEXTEN);
        if termios.is(sys::VERASE, byte) {
            self.erase_char(termios, effects);
        } else if termios.is(sys::VKILL, byte) {
            self.kill(byte, termios, effects);
        } else if extended && termios.is(sys::VWERASE, byte) {
            self.erase_word(termios, effects);
        } else if extended && termios.is(sys::VLNEXT, byte) {
            self.literal = true;
            if termios.local(sys::ECHO) && termios.local(sys::ECHOCTL) {
                effects.echo.extend(b"^\x08");
            }
        } else if extended && termios.is(sys::VREPRINT, byte) && termios.local(sys::ECHO) {
            echo(byte, termios, effects);
            effects.echo.push(b'\n');
            for i in self.line_bytes() {
                echo(self.data[i], termios, effects);
            }
        } else if termios.is(sys::VEOF, byte) {
            self.finish_line(effects);
        } else if byte == b'\n'
            || termios.is(sys::VEOL, byte)
            || (extended && termios.is(sys::VEOL2, byte))
        {
            self.data.push_back(byte);
            if termios.local(sys::ECHO) || (byte == b'\n' && termios.local(sys::ECHONL)) {
                echo(byte, termios, effects);
            }
            self.finish_line(effects);
        } else {
            return false;
        }
        true
    }

    fn finish_line(&mut self, effects: &mut ReceiveEffects) {
        self.ends.push_back(self.end());
        self.line = self.end();
        self.line_column = 0;
        effects.readable = true;
    }

    fn store(
        &mut self,
        byte: u8,
        termios: &Termios,
        mode: InputMode,
        effects: &mut ReceiveEffects,
    ) {
        if mode.is_canonical() && self.end() - self.line >= LINE_MAX as u64 - 1 {
            // The line is full; one byte is left for its end.
            if termios.input(sys::IMAXBEL) {
                effects.echo.push(0x07);
            }
            return;
        }
        self.data.push_back(byte);
        if termios.local(sys::ECHO) {
            echo(byte, termios, effects);
        }
        effects.readable |= !mode.is_canonical();
    }

    /// Indices of the line being edited.
    fn line_bytes(&self) -> core::ops::Range<usize> {
        usize::try_from(self.line - self.base).unwrap_or(0)..self.data.len()
    }

    /// Takes the last character (of several bytes, with `IUTF8`) off the line and returns its last
    /// byte.
    fn pop(&mut self, termios: &Termios) -> Option<u8> {
        let mut taken = None;
        while self.end() > self.line {
            let byte = self.data.pop_back()?;
            taken = Some(byte);
            if !(termios.input(sys::IUTF8) && byte & 0xc0 == 0x80) {
                break;
            }
        }
        taken
    }

    fn erase_char(&mut self, termios: &Termios, effects: &mut ReceiveEffects) {
        if let Some(byte) = self.pop(termios) {
            self.echo_erased(byte, termios, effects);
        }
    }

    fn erase_word(&mut self, termios: &Termios, effects: &mut ReceiveEffects) {
        let mut in_word = false;
        while let Some(&last) = self.data.back()
            && self.end() > self.line
        {
            let part = last == b'_' || last.is_ascii_alphanumeric() || last >= 0x80;
            if in_word && !part {
                break;
            }
            in_word |= part;
            self.erase_char(termios, effects);
        }
    }

    fn kill(&mut self, byte: u8, termios: &Termios, effects: &mut ReceiveEffects) {
        if termios.local(sys::ECHO)
            && termios.local(sys::ECHOK)
            && !(termios.local(sys::ECHOKE) && termios.local(sys::ECHOE))
        {
            while self.pop(termios).is_some() {}
            echo(byte, termios, effects);
            effects.echo.push(b'\n');
            self.line_column = 0;
            return;
        }
        while self.end() > self.line {
            self.erase_char(termios, effects);
        }
    }

    fn echo_erased(&self, byte: u8, termios: &Termios, effects: &mut ReceiveEffects) {
        if !termios.local(sys::ECHO) {
            return;
        }
        if !termios.local(sys::ECHOE) {
            let erase = termios.cc[sys::VERASE as usize];
            if erase != DISABLED {
                echo(erase, termios, effects);
            }
            return;
        }
        let columns = match byte {
            b'\t' => {
                let column = self.line_bytes().fold(self.line_column, |column, i| {
                    column + width(self.data[i], column, termios)
                });
                let back = 8 - column % 8;
                effects.echo.extend(core::iter::repeat_n(0x08, back));
                return;
            }
            _ => width(byte, 0, termios),
        };
        for _ in 0..columns {
            effects.echo.extend(b"\x08 \x08");
        }
    }
}

/// How many columns a byte's echo takes.
fn width(byte: u8, column: usize, termios: &Termios) -> usize {
    match byte {
        b'\t' => 8 - column % 8,
        0..0x20 | 0x7f => {
            if termios.local(sys::ECHOCTL) {
                2
            } else {
                0
            }
        }
        // The continuation of a character that was counted with its first byte.
        0x80..0xc0 if termios.input(sys::IUTF8) => 0,
        _ => 1,
    }
}

/// Shows a byte; control characters as `^X` if `ECHOCTL`.
fn echo(byte: u8, termios: &Termios, effects: &mut ReceiveEffects) {
    let control = byte.is_ascii_control() && !matches!(byte, b'\n' | b'\t');
    let start_stop = termios.is(sys::VSTART, byte) || termios.is(sys::VSTOP, byte);
    if control && termios.local(sys::ECHOCTL) && !start_stop {
        effects.echo.extend([b'^', byte ^ 0x40]);
    } else {
        effects.echo.push(byte);
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use proptest::prelude::*;

    use super::InputMode::{Canonical, Raw};
    use super::*;

    fn typed(text: &[u8], termios: &Termios) -> (InputBuffer, ReceiveEffects) {
        let mut input = InputBuffer::default();
        let effects = input.receive(text, termios, 0);
        (input, effects)
    }

    fn lines(input: &mut InputBuffer) -> Vec<Vec<u8>> {
        let mut lines = Vec::new();
        while input.has_line() {
            let mut buf = [0; 5000];
            let n = input.read(&mut buf, Canonical);
            lines.push(buf[..n].to_vec());
        }
        lines
    }

    #[test]
    fn a_line_is_readable_when_complete() {
        let (mut input, effects) = typed(b"hel", &Termios::default());
        assert!(!effects.readable && !input.has_line());
        let effects = input.receive(b"lo\rnext", &Termios::default(), 3);
        assert!(effects.readable);
        assert_eq!(lines(&mut input), [b"hello\n"]);
    }

    #[test]
    fn erase_kill_and_word_erase_edit_the_line() {
        let (mut input, effects) = typed(b"abx\x7fc\n", &Termios::default());
        assert_eq!(effects.echo, b"abx\x08 \x08c\n");
        assert_eq!(lines(&mut input), [b"abc\n"]);
        let (mut input, _) = typed(b"garbage\x15ok\n", &Termios::default());
        assert_eq!(lines(&mut input), [b"ok\n"]);
        let (mut input, _) = typed(b"one two  \x17three\n", &Termios::default());
        assert_eq!(lines(&mut input), [b"one three\n"]);
        // Nothing behind the line's beginning can be erased.
        let (mut input, effects) = typed(b"a\n\x7f\x7fb\n", &Termios::default());
        assert_eq!(effects.echo, b"a\nb\n");
        assert_eq!(lines(&mut input), [b"a\n", b"b\n"]);
    }

    #[test]
    fn erasing_a_tab_goes_back_to_where_it_began() {
        let (_, effects) = typed(b"ab\t\x7f", &Termios::default());
        assert_eq!(effects.echo, b"ab\t\x08\x08\x08\x08\x08\x08");
    }

    #[test]
    fn end_of_file_ends_a_read_once() {
        let (mut input, _) = typed(b"abc\x04\x04\n", &Termios::default());
        assert_eq!(lines(&mut input), [&b"abc"[..], b"", b"\n"]);
    }

    #[test]
    fn a_short_read_leaves_the_rest_of_the_line() {
        let (mut input, _) = typed(b"hello\n", &Termios::default());
        let mut buf = [0; 4];
        assert_eq!(input.read(&mut buf, Canonical), 4);
        assert_eq!(input.read(&mut buf, Canonical), 2);
        assert!(!input.has_line());
    }

    #[test]
    fn control_characters_become_signals() {
        let (mut input, effects) = typed(b"half\x03\x1a\x1c", &Termios::default());
        assert_eq!(effects.signals, [sys::SIGINT, sys::SIGTSTP, sys::SIGQUIT]);
        assert_eq!(effects.echo, b"half^C^Z^\\");
        let effects = input.receive(b"x\n", &Termios::default(), 0);
        assert!(effects.readable);
        assert_eq!(lines(&mut input), [b"x\n"]);
    }

    #[test]
    fn a_quoted_control_character_is_data() {
        let (mut input, effects) = typed(b"\x16\x03\n", &Termios::default());
        assert!(effects.signals.is_empty());
        assert_eq!(effects.echo, b"^\x08^C\n");
        assert_eq!(lines(&mut input), [b"\x03\n"]);
    }

    #[test]
    fn stop_and_start() {
        let (mut input, effects) = typed(b"a\x13", &Termios::default());
        assert_eq!(effects.stopped, Some(true));
        assert_eq!(
            input.receive(b"\x11", &Termios::default(), 0).stopped,
            Some(false)
        );
    }

    #[test]
    fn a_long_line_is_cut_and_can_still_be_ended() {
        let (mut input, _) = typed(&[b'x'; 10_000], &Termios::default());
        input.receive(b"\n", &Termios::default(), 0);
        let lines = lines(&mut input);
        assert_eq!(lines.len(), 1);
        assert_eq!(lines[0].len(), LINE_MAX);
        assert_eq!(lines[0].last(), Some(&b'\n'));
    }

    #[test]
    fn complete_lines_make_it_refuse_instead_of_losing() {
        let mut input = InputBuffer::default();
        let text = b"0123456789abcde\n".repeat(1000);
        let mut sent = 0;
        let mut got = Vec::new();
        while sent < text.len() {
            sent += input.receive(&text[sent..], &Termios::default(), 0).taken;
            got.extend(lines(&mut input).concat());
        }
        got.extend(lines(&mut input).concat());
        assert_eq!(got, text);
    }

    #[test]
    fn raw_is_transparent_and_bounded() {
        let all: Vec<u8> = (0..=255).collect();
        let (mut input, effects) = typed(&all, &Termios::raw());
        assert_eq!(
            (effects.taken, effects.echo.len(), effects.signals.len()),
            (256, 0, 0)
        );
        let mut buf = [0; 300];
        assert_eq!(input.read(&mut buf, Raw), 256);
        assert_eq!(buf[..256], all[..]);
        assert_eq!(
            input
                .receive(&vec![1; RAW_MAX + 7], &Termios::raw(), 0)
                .taken,
            RAW_MAX
        );
        assert_eq!(input.receive(b"x", &Termios::raw(), 0).taken, 0);
    }

    #[test]
    fn changing_modes_keeps_what_was_typed() {
        let (mut input, _) = typed(b"abc", &Termios::default());
        input.change_mode(Raw);
        let mut buf = [0; 8];
        assert_eq!(input.available(Raw), 3);
        input.change_mode(Canonical);
        assert_eq!(input.read(&mut buf, Canonical), 3);
    }

    proptest! {
        #[test]
        fn no_input_breaks_the_buffer(
            chunks in proptest::collection::vec((proptest::collection::vec(any::<u8>(), 0..300), any::<bool>(), 0usize..200), 0..60)
        ) {
            let mut input = InputBuffer::default();
            let mut mode = Canonical;
            for (bytes, switch, read) in chunks {
                if switch {
                    mode = if mode.is_canonical() { Raw } else { Canonical };
                    input.change_mode(mode);
                }
                let termios = if mode.is_canonical() { Termios::default() } else { Termios::raw() };
                let effects = input.receive(&bytes, &termios, 0);
                prop_assert!(effects.taken <= bytes.len());
                let before = input.available(mode);
                let mut buf = vec![0; read];
                let n = input.read(&mut buf, mode);
                prop_assert!(n <= before && n <= read);
                prop_assert!(input.line >= input.base && input.line <= input.end());
                prop_assert!(input.data.len() <= RAW_MAX + LINE_MAX);
            }
        }
    }

    /// The usual settings with some flags more or less.
    fn with(change: impl Fn(&mut Termios)) -> Termios {
        let mut termios = Termios::default();
        change(&mut termios);
        termios
    }

    fn echoed(text: &[u8], termios: &Termios) -> Vec<u8> {
        typed(text, termios).1.echo
    }

    #[test]
    fn bytes_are_translated_as_the_settings_say() {
        let line = |text: &[u8], iflag: u32| {
            let (mut input, _) = typed(text, &with(|t| t.iflag = iflag));
            lines(&mut input).concat()
        };
        assert_eq!(line(b"a\rb\n", sys::IGNCR | sys::ICRNL), b"ab\n");
        assert_eq!(line(b"a\rb\n", sys::ICRNL), b"a\nb\n");
        assert_eq!(line(b"a\rb\n", 0), b"a\rb\n");
        assert_eq!(line(b"a\nb\x04", sys::INLCR), b"a\rb");
        assert_eq!(line(b"\xc1B\n", sys::ISTRIP | sys::IUCLC), b"ab\n");
        let (mut input, _) = typed(
            b"AB\n",
            &with(|t| (t.iflag, t.lflag) = (sys::IUCLC, t.lflag & !sys::IEXTEN)),
        );
        assert_eq!(lines(&mut input), [b"AB\n"], "only with IEXTEN");
    }

    #[test]
    fn characters_that_edit_are_data_without_their_flags() {
        let plain = with(|t| t.lflag &= !sys::IEXTEN);
        for (byte, extended) in [
            (0x17, true),
            (0x16, true),
            (0x12, true),
            (0x7f, false),
            (0x15, false),
            (0x04, false),
        ] {
            let (mut input, _) = typed(&[b'a', byte, b'b', b'\n'], &plain);
            let as_data = lines(&mut input).concat() == [b'a', byte, b'b', b'\n'];
            assert_eq!(as_data, extended, "{byte:#x}");
        }
        // Ends of lines besides the usual one; the second only with IEXTEN.
        let ends = |lflag: u32| {
            let termios = with(|t| {
                (t.cc[sys::VEOL as usize], t.cc[sys::VEOL2 as usize]) = (b';', b'!');
                t.lflag = lflag;
            });
            let (mut input, _) = typed(b"a;b!c\n", &termios);
            lines(&mut input)
        };
        assert_eq!(ends(sys::ICANON | sys::IEXTEN), [&b"a;"[..], b"b!", b"c\n"]);
        assert_eq!(ends(sys::ICANON), [&b"a;"[..], b"b!c\n"]);
        // A control character that is switched off is none, even if it is typed.
        let off = with(|t| t.cc[sys::VERASE as usize] = DISABLED);
        let (mut input, _) = typed(b"a\0b\n", &off);
        assert_eq!(lines(&mut input), [b"a\0b\n"]);
    }

    #[test]
    fn echoes_follow_the_settings() {
        // Of nothing; of newlines alone; of all.
        assert_eq!(echoed(b"a\n", &with(|t| t.lflag &= !sys::ECHO)), b"");
        assert_eq!(
            echoed(
                b"a\n",
                &with(|t| t.lflag = t.lflag & !sys::ECHO | sys::ECHONL)
            ),
            b"\n"
        );
        assert_eq!(echoed(b"a\x7f", &with(|t| t.lflag &= !sys::ECHO)), b"");
        assert_eq!(echoed(b"\x01\t", &Termios::default()), b"^A\t");
        assert_eq!(
            echoed(b"\x01", &with(|t| t.lflag &= !sys::ECHOCTL)),
            b"\x01"
        );
        assert_eq!(
            echoed(b"\x16\x11", &Termios::default()),
            b"^\x08\x11",
            "start and stop show as they are"
        );
        assert_eq!(echoed(b"\x16a", &with(|t| t.lflag &= !sys::ECHOCTL)), b"a");
        assert_eq!(echoed(b"\x03", &with(|t| t.lflag &= !sys::ECHO)), b"");
        // What was typed is shown again.
        assert_eq!(echoed(b"ab\ncd\x12", &Termios::default()), b"ab\ncd^R\ncd");
        assert_eq!(echoed(b"ab\x12", &with(|t| t.lflag &= !sys::ECHO)), b"");
        // A control character took two places, or none; what was erased without ECHOE is shown by
        // its character.
        assert_eq!(
            echoed(b"\x01\x7f", &Termios::default()),
            b"^A\x08 \x08\x08 \x08"
        );
        assert_eq!(
            echoed(b"\x01\x7f", &with(|t| t.lflag &= !sys::ECHOCTL)),
            b"\x01"
        );
        assert_eq!(echoed(b"a\x7f", &with(|t| t.lflag &= !sys::ECHOE)), b"a^?");
        // A line that is killed is rubbed out, or left behind.
        assert_eq!(
            echoed(b"ab\x15", &Termios::default()),
            b"ab\x08 \x08\x08 \x08"
        );
        for missing in [sys::ECHOKE, sys::ECHOE] {
            assert_eq!(echoed(b"ab\x15", &with(|t| t.lflag &= !missing)), b"ab^U\n");
        }
        let neither = with(|t| t.lflag &= !(sys::ECHOK | sys::ECHOKE));
        assert_eq!(echoed(b"ab\x15", &neither), b"ab\x08 \x08\x08 \x08");
        for termios in [
            &neither,
            &with(|t| t.lflag &= !sys::ECHOKE),
            &with(|t| t.lflag &= !sys::ECHO),
        ] {
            let (mut input, _) = typed(b"x\nab\x15c\n", termios);
            assert_eq!(lines(&mut input), [&b"x\n"[..], b"c\n"]);
        }
    }

    #[test]
    fn erasing_counts_columns_as_they_were() {
        // From the column where the line began; a control character before the tab took two.
        let mut input = InputBuffer::default();
        input.receive(b"a", &Termios::default(), 3);
        assert_eq!(
            input.receive(b"\t\x7f", &Termios::default(), 4).echo,
            b"\t\x08\x08\x08\x08"
        );
        assert_eq!(
            echoed(b"\x01\t\x7f", &Termios::default()),
            [&b"^A\t"[..], &[8; 6]].concat()
        );
        // After a newline it is the first one.
        assert_eq!(
            echoed(b"abc\n\t\x7f", &Termios::default()),
            [&b"abc\n\t"[..], &[8; 8]].concat()
        );
        assert_eq!(
            echoed(b"12345678\t\x7f", &Termios::default()),
            [&b"12345678\t"[..], &[8; 8]].concat()
        );
        // Two tabs: the second begins where the first ends.
        assert_eq!(
            echoed(b"a\tb\t\x7f", &Termios::default()),
            [&b"a\tb\t"[..], &[8; 7]].concat()
        );
        // A character of UTF-8 goes as a whole with IUTF8, and is one column.
        let utf8 = with(|t| t.iflag |= sys::IUTF8);
        let (mut input, effects) = typed("\u{e9}\u{e9}\x7f\n".as_bytes(), &utf8);
        assert_eq!(lines(&mut input), ["\u{e9}\n".as_bytes()]);
        assert!(effects.echo.ends_with(b"\xa9\x08 \x08\n"));
        assert_eq!(
            echoed("\u{e9}\t\x7f".as_bytes(), &utf8),
            ["\u{e9}\t".as_bytes(), &[8; 7]].concat()
        );
        let (mut input, _) = typed("\u{e9}\x7f\n".as_bytes(), &Termios::default());
        assert_eq!(lines(&mut input), [b"\xc3\n"]);
    }

    #[test]
    fn words_are_letters_digits_and_what_is_not_ascii() {
        let left = |text: &[u8]| {
            let (mut input, _) = typed(&[text, b"\x17\n"].concat(), &Termios::default());
            lines(&mut input).concat()
        };
        assert_eq!(left(b"one two"), b"one \n");
        assert_eq!(left(b"one a_1\xe9 ./"), b"one \n");
        assert_eq!(left(b"a/b"), b"a/\n");
        assert_eq!(left(b"..."), b"\n");
        let (mut input, _) = typed(b"one\n\x17two\n", &Termios::default());
        assert_eq!(lines(&mut input), [b"one\n", b"two\n"]);
    }

    #[test]
    fn stopping_and_starting_by_any_character_or_the_same() {
        let stopped = |text: &[u8], termios: &Termios| {
            let (mut input, mut seen) = (InputBuffer::default(), Vec::new());
            for byte in text {
                seen.push(input.receive(&[*byte], termios, 0).stopped);
            }
            (seen, input.available(Raw))
        };
        // A start without a stop says so; the characters are no data.
        assert_eq!(
            stopped(b"\x11\x13a\x11", &Termios::default()),
            (vec![Some(false), Some(true), None, Some(false)], 1)
        );
        let any = with(|t| t.iflag |= sys::IXANY);
        assert_eq!(
            stopped(b"\x13ab", &any),
            (vec![Some(true), Some(false), None], 2)
        );
        let toggle = with(|t| t.cc[sys::VSTART as usize] = 0x13);
        assert_eq!(
            stopped(b"\x13\x13\x13", &toggle),
            (vec![Some(true), Some(false), Some(true)], 0)
        );
        let off = with(|t| t.iflag &= !sys::IXON);
        assert_eq!(stopped(b"\x13\x11", &off), (vec![None, None], 2));
        // A signal starts it again, and throws away what was typed unless told not to.
        assert_eq!(
            stopped(b"\x13\x03", &Termios::default()),
            (vec![Some(true), Some(false)], 0)
        );
        assert_eq!(
            stopped(b"a\x03", &Termios::default()),
            (vec![None, None], 0)
        );
        assert_eq!(
            stopped(b"a\x03", &with(|t| t.lflag |= sys::NOFLSH)),
            (vec![None, None], 1)
        );
        assert_eq!(
            stopped(b"a\x03", &with(|t| t.lflag &= !sys::ISIG)),
            (vec![None, None], 2)
        );
    }

    #[test]
    fn room_is_what_would_be_taken() {
        let mut input = InputBuffer::default();
        assert_eq!(
            (input.room(Canonical), input.room(Raw)),
            (LINE_MAX, RAW_MAX)
        );
        input.receive(&[b'x'; LINE_MAX - 2], &Termios::default(), 0);
        assert_eq!(
            (input.room(Canonical), input.room(Raw)),
            (LINE_MAX, RAW_MAX - LINE_MAX + 2)
        );
        assert_eq!(input.receive(b"\n", &Termios::default(), 0).taken, 1);
        assert_eq!(
            (input.available(Canonical), input.room(Canonical)),
            (LINE_MAX - 1, LINE_MAX)
        );
        assert_eq!(
            input.receive(b"ab", &Termios::default(), 0).taken,
            1,
            "with a line there, it is full"
        );
        assert_eq!(
            (
                input.available(Canonical),
                input.available(Raw),
                input.room(Canonical)
            ),
            (LINE_MAX - 1, LINE_MAX, 0)
        );
        let mut buf = [0; LINE_MAX];
        assert_eq!(input.read(&mut buf, Canonical), LINE_MAX - 1);
        assert_eq!(
            (input.read(&mut buf, Canonical), input.room(Canonical)),
            (0, LINE_MAX)
        );
        // A line's last place is for its end; what does not fit rings the bell, if wanted.
        for (iflag, bell) in [(0, vec![]), (sys::IMAXBEL, vec![7])] {
            let termios = with(|t| (t.iflag, t.lflag) = (iflag, sys::ICANON));
            let mut input = InputBuffer::default();
            assert_eq!(input.receive(&[b'x'; LINE_MAX - 1], &termios, 0).echo, []);
            assert_eq!(input.receive(b"y", &termios, 0).echo, bell);
            input.receive(b"\n", &termios, 0);
            assert_eq!(input.available(Canonical), LINE_MAX);
        }
    }

    #[test]
    fn raw_reads_take_lines_as_bytes() {
        let (mut input, _) = typed(b"ab\ncd\n\x04ef", &Termios::default());
        let mut buf = [0; 4];
        assert_eq!((input.read(&mut buf, Raw), &buf[..]), (4, &b"ab\nc"[..]));
        assert!(input.has_line());
        assert_eq!(input.read(&mut buf[..2], Raw), 2);
        assert!(!input.has_line(), "all lines were read, the empty one too");
        assert_eq!(
            (input.read(&mut buf, Canonical), input.available(Raw)),
            (0, 2)
        );
        input.flush();
        assert_eq!(
            (
                input.available(Raw),
                input.available(Canonical),
                input.has_line()
            ),
            (0, 0, false)
        );
        // What is readable is told: in raw mode each byte, else each line.
        assert!(
            !typed(b"ab", &Termios::default()).1.readable
                && typed(b"ab\n", &Termios::default()).1.readable
        );
        assert!(
            typed(b"a", &with(|t| t.lflag &= !sys::ICANON)).1.readable
                && typed(b"a", &Termios::raw()).1.readable
        );
        assert!(!typed(b"", &Termios::raw()).1.readable);
        // A quote does not outlive the mode.
        let mut input = InputBuffer::default();
        input.receive(b"a\x16", &Termios::default(), 0);
        input.change_mode(Raw);
        input.change_mode(Canonical);
        assert_eq!(
            input.receive(b"\x03", &Termios::default(), 0).signals,
            [sys::SIGINT]
        );
    }
}
