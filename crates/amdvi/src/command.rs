//! Requests to forget what was read of tables (2.4): a ring of 16-byte commands.

/// Commands in a queue of one page.
pub const COMMANDS: usize = 256;

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Write a number when all requests before are done.
    Wait {
        /// Address of the machine, a multiple of 8.
        at: u64,
        /// The number.
        value: u64,
    },
    /// Forget the entry for a function.
    Device(u16),
    /// Forget the translations of a domain.
    Translations(u16),
    /// Forget the entries of a function for interrupts.
    Interrupts(u16),
    /// Forget all.
    All,
}

impl Command {
    /// The command as it stands in the queue.
    #[must_use]
    pub const fn words(self) -> [u64; 2] {
        const STORE: u64 = 1 << 0;
        /// All addresses, as a size by the first 0 in them, and entries of tables, too.
        const EVERYWHERE: u64 = 0x7fff_ffff_ffff_f000 | 1 << 0 | 1 << 1;
        match self {
            Self::Wait { at, value } => [at | STORE | 1 << 60, value],
            Self::Device(function) => [function as u64 | 2 << 60, 0],
            Self::Translations(domain) => [(domain as u64) << 32 | 3 << 60, EVERYWHERE],
            Self::Interrupts(function) => [function as u64 | 5 << 60, 0],
            Self::All => [8 << 60, 0],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_those_of_the_standard() {
        for (command, words) in [
            (
                Command::Wait {
                    at: 0x7000,
                    value: 9,
                },
                [0x1000_0000_0000_7001, 9],
            ),
            (Command::Device(0x0310), [0x2000_0000_0000_0310, 0]),
            (
                Command::Translations(0x12),
                [0x3000_0012_0000_0000, 0x7fff_ffff_ffff_f003],
            ),
            (Command::Interrupts(0x0310), [0x5000_0000_0000_0310, 0]),
            (Command::All, [0x8000_0000_0000_0000, 0]),
        ] {
            assert_eq!(command.words(), words, "{command:?}");
        }
    }
}
