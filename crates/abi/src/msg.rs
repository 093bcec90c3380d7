//! Control messages between the supervisor and an instance: 64 bytes each.
//!
//! They only hurry things along: what is true stands in the window's status words, so that a lost
//! or ignored message costs time and nothing else.

use core::mem::size_of;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// To the instance: deliver signal `args[0]` to its first program.
pub const SIGNAL: u32 = 1;
/// To the instance: end all programs (SIGTERM, later SIGKILL) and halt.
pub const SHUTDOWN: u32 = 2;
/// To the instance: the terminal has `args[0]` rows and `args[1]` columns.
pub const WINSIZE: u32 = 3;
/// To the instance: no more standard input will come.
pub const STDIN_EOF: u32 = 4;
/// To the instance: deliver signal `args[1]` to the program of number `args[0]` that it was asked
/// for ([`crate::exec`]); signal 0: its terminal has `args[2]` rows and columns, in halves.
pub const EXEC_SIGNAL: u32 = 5;

/// From the instance: its first program ended (see the status words).
pub const EXITED: u32 = 0x101;
/// From the instance: its first program runs.
pub const RUNNING: u32 = 0x102;

/// One message.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C, align(8))]
pub struct Message {
    /// Kind of the message: a number of those above; unknown kinds are ignored and counted.
    pub kind: u32,
    /// Number of the message within its ring.
    pub seq: u32,
    /// Depends on the kind; unused ones are zero.
    pub args: [u64; 7],
}

const _: () = assert!(size_of::<Message>() == 64);

impl Message {
    /// A message with up to seven arguments.
    #[must_use]
    pub fn new(kind: u32, args: &[u64]) -> Self {
        let mut m = Self {
            kind,
            ..Self::default()
        };
        for (to, from) in m.args.iter_mut().zip(args) {
            *to = *from;
        }
        m
    }

    /// The message as the words of a [`crate::window::MessageCell`].
    #[must_use]
    pub fn to_words(self) -> [u64; 8] {
        zerocopy::transmute!(self)
    }

    /// The message made of the words of a [`crate::window::MessageCell`]; any words are a message.
    #[must_use]
    pub fn from_words(words: [u64; 8]) -> Self {
        zerocopy::transmute!(words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_round_trip() {
        let m = Message {
            seq: 9,
            ..Message::new(WINSIZE, &[24, 80])
        };
        assert_eq!(Message::from_words(m.to_words()), m);
        assert_eq!(m.args, [24, 80, 0, 0, 0, 0, 0]);
    }
}
