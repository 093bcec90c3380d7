//! Second programs of an instance (`skerry exec`): the slots in the window through which the
//! supervisor asks for one, and through which its streams go.
//!
//! A slot is used by one program at a time. The supervisor empties it, writes the request and
//! [`ExecSlot::asked`], and rings. From then on the instance may use the rings, until it has
//! answered that it does not any more ([`Verdict::is_final`]); only then the supervisor may use
//! the slot again.

use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use crate::window::RingHeader;

/// Programs that can be at work at the same time.
pub const EXECS: usize = 4;
/// Most bytes of a request, which is as a boot blob ([`crate::boot`]).
pub const REQUEST_BYTES: usize = 16 << 10;
/// Bytes of each stream's ring.
pub const STREAM_BYTES: usize = 8 << 10;

/// Streams of a program, by number: standard input, standard output, standard error.
pub const STREAMS: usize = 3;

/// A slot: request, answer and streams of one program.
#[derive(Debug)]
#[repr(C, align(4096))]
pub struct ExecSlot {
    /// Number of the program that is asked for; 0 before the first one. Written by the supervisor.
    pub asked: AtomicU32,
    /// Number of the program whose user has gone away. Written by the supervisor.
    pub hung_up: AtomicU32,
    /// Bytes of the request. Written by the supervisor.
    pub request_len: AtomicU32,
    /// User of the program. Written by the supervisor.
    pub user: AtomicU32,
    /// Group of the program. Written by the supervisor.
    pub group: AtomicU32,
    /// Not 0: the program has no streams, and nobody waits for its end. Written by the supervisor.
    pub detached: AtomicU32,
    /// Size that its terminal begins with: rows in the upper and columns in the lower half. Written
    /// by the supervisor.
    pub winsize: AtomicU32,
    _supervisor: [AtomicU32; 9],
    /// The last [`Answer`]. Written by the instance.
    pub answer: AtomicU64,
    _instance: [AtomicU64; 7],
    /// The rings of the streams.
    pub rings: [RingHeader; STREAMS],
    _pad: [AtomicU8; 0x1000 - 0x200],
    /// The request.
    pub request: [AtomicU8; REQUEST_BYTES],
    /// Areas of the rings.
    pub areas: [[AtomicU8; STREAM_BYTES]; STREAMS],
}

const _: () = assert!(size_of::<ExecSlot>() == 0xb000);

/// Verdict of an instance on a program that it was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The program runs.
    Started,
    /// The program cannot be run: an error of `execve(2)`.
    Refused(u16),
    /// The program has ended, with a status as shells show it, or nobody uses its streams any
    /// more.
    Ended(u8),
}

impl Verdict {
    /// Whether the instance does not use the slot any more.
    #[must_use]
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Refused(_) | Self::Ended(_))
    }
}

/// An answer: one word, which cannot be torn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Number of the program.
    pub number: u32,
    /// Verdict on it.
    pub verdict: Verdict,
}

impl Answer {
    /// The answer in a word.
    #[must_use]
    pub const fn to_word(self) -> u64 {
        let (kind, code) = match self.verdict {
            Verdict::Started => (1, 0),
            Verdict::Refused(error) => (2, error),
            Verdict::Ended(status) => (3, status as u16),
        };
        (self.number as u64) << 32 | kind << 16 | code as u64
    }

    /// The answer that a word is; `None` if it is none.
    #[must_use]
    pub const fn from_word(word: u64) -> Option<Self> {
        let code = word as u16;
        let verdict = match (word >> 16) as u16 {
            1 if code == 0 => Verdict::Started,
            2 if code != 0 => Verdict::Refused(code),
            3 if code <= u8::MAX as u16 => Verdict::Ended(code as u8),
            _ => return None,
        };
        Some(Self {
            number: (word >> 32) as u32,
            verdict,
        })
    }
}

impl ExecSlot {
    /// A slot that was never used.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            asked: AtomicU32::new(0),
            hung_up: AtomicU32::new(0),
            request_len: AtomicU32::new(0),
            user: AtomicU32::new(0),
            group: AtomicU32::new(0),
            detached: AtomicU32::new(0),
            winsize: AtomicU32::new(0),
            _supervisor: [const { AtomicU32::new(0) }; 9],
            answer: AtomicU64::new(0),
            _instance: [const { AtomicU64::new(0) }; 7],
            rings: [const { RingHeader::new() }; STREAMS],
            _pad: [const { AtomicU8::new(0) }; 0x1000 - 0x200],
            request: [const { AtomicU8::new(0) }; REQUEST_BYTES],
            areas: [const { [const { AtomicU8::new(0) }; STREAM_BYTES] }; STREAMS],
        }
    }

    /// The last answer to the program of this number; `None` if there is none yet. In a window it
    /// is the instance's word.
    #[must_use]
    pub fn answer_to(&self, number: u32) -> Option<Verdict> {
        Answer::from_word(self.answer.load(Ordering::Acquire))
            .filter(|answer| answer.number == number)
            .map(|answer| answer.verdict)
    }
}

impl Default for ExecSlot {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_words_and_nonsense_is_none() {
        for verdict in [
            Verdict::Started,
            Verdict::Refused(2),
            Verdict::Ended(0),
            Verdict::Ended(255),
        ] {
            let answer = Answer { number: 7, verdict };
            assert_eq!(Answer::from_word(answer.to_word()), Some(answer));
        }
        for word in [0, 1, 0x1_0001, 0x2_0000, 0x3_0100, 0x4_0000, u64::MAX] {
            assert_eq!(Answer::from_word(word), None, "{word:#x}");
        }
    }

    #[test]
    fn an_answer_is_one_to_its_question_only() {
        let slot = ExecSlot::new();
        assert_eq!(slot.answer_to(0), None);
        let verdict = Verdict::Ended(3);
        let word = Answer { number: 2, verdict }.to_word();
        slot.answer.store(word, Ordering::Relaxed);
        assert_eq!(slot.answer_to(1), None);
        assert_eq!(slot.answer_to(2), Some(verdict));
    }
}
