//! Completions: entries of completion queues (section 4.6).

use core::fmt;

/// Bytes of a completion.
pub(crate) const BYTES: u64 = 16;
/// Place of the word with the status and the phase.
pub(crate) const STATUS: u64 = 14;

/// Result of a command, as the controller says it (section 4.6.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// Type of the code.
    pub kind: u8,
    /// The code.
    pub code: u8,
}

impl Status {
    /// The command succeeded.
    pub const SUCCESS: Self = Self { kind: 0, code: 0 };
    /// The controller does not know the command.
    pub const INVALID_OPCODE: Self = Self { kind: 0, code: 1 };

    /// The status of the last word of a completion.
    #[must_use]
    pub const fn of_word(word: u16) -> Self {
        Self {
            kind: (word >> 9 & 0b111) as u8,
            code: (word >> 1) as u8,
        }
    }

    pub(crate) const fn word(self) -> u16 {
        (self.kind as u16) << 9 | (self.code as u16) << 1
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "status {:#x} of type {}", self.code, self.kind)
    }
}

/// Failure of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The controller says that it could not do it.
    Status(Status),
    /// The controller was reset twice meanwhile, or did not come back.
    Gone,
}

/// A command that is over.
#[derive(Debug, PartialEq, Eq)]
pub struct Completion<V> {
    /// The value that it was submitted with.
    pub value: V,
    /// The first word of the completion, or why the command failed.
    pub outcome: Result<u32, Failure>,
    /// The status field as the controller wrote it, without the phase (section 4.6.1): with
    /// whether it helps to repeat the command. 0 if the controller did not write one.
    pub field: u16,
}

/// Rule that a controller has broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// A completion for a command that is not in flight: it never was, or is over.
    Id(u16),
    /// A completion for a command of another queue.
    Queue(u16),
    /// A command had no answer, not even after it was to be aborted.
    Late,
    /// The memory of the queue is not there.
    Memory,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => write!(f, "it completed command {id:#x}, which it does not have"),
            Self::Queue(queue) => write!(f, "it completed a command of queue {queue} in another"),
            Self::Late => f.write_str("a command has no answer"),
            Self::Memory => f.write_str("a queue has no memory"),
        }
    }
}

impl core::error::Error for Rule {}
