//! The terminal the tool runs on: raw while a program's terminal is connected to it, and its size.

use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::process::getpgrp;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcgetwinsize, tcsetattr};

/// Raw mode of a terminal, which ends when this is dropped.
pub struct RawMode<'a> {
    terminal: BorrowedFd<'a>,
    before: Termios,
}

impl<'a> RawMode<'a> {
    /// Makes `terminal` raw, if it is one.
    pub fn enter(terminal: BorrowedFd<'a>) -> io::Result<Option<Self>> {
        if !terminal.is_terminal() {
            return Ok(None);
        }
        let before = tcgetattr(terminal)?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(terminal, OptionalActions::Drain, &raw)?;
        Ok(Some(Self { terminal, before }))
    }
}

impl Drop for RawMode<'_> {
    fn drop(&mut self) {
        // Nobody is left to tell.
        let _ = tcsetattr(self.terminal, OptionalActions::Drain, &self.before);
    }
}

/// Rows and columns of a terminal, as `dev::WINSIZE` takes them.
pub fn size(terminal: impl AsFd) -> Option<u32> {
    let size = tcgetwinsize(terminal).ok()?;
    (size.ws_row != 0 && size.ws_col != 0)
        .then_some(u32::from(size.ws_row) << 16 | u32::from(size.ws_col))
}

/// Whether reading would stop the tool: it is a terminal, and another group has the foreground.
pub fn is_background(input: BorrowedFd<'_>) -> bool {
    input.is_terminal() && tcgetpgrp(input).is_ok_and(|group| group != getpgrp())
}
