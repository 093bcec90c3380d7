//! Restartable sequences: what a program's description of one means (`rseq(2)`). Nothing here
//! touches memory.

use abi::errno::Errno;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// `struct rseq_cs`: instructions that are to be executed without another thread of the program on
/// the same processor in between.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct RseqCs {
    /// Version of the structure: 0.
    pub version: u32,
    /// 0: when it is not to be restarted, which is not to be chosen any more.
    pub flags: u32,
    /// Address of the sequence's first instruction.
    pub start: u64,
    /// Length of the sequence, in bytes.
    pub len: u64,
    /// Address at which the thread goes on if it was interrupted.
    pub abort: u64,
}

impl RseqCs {
    /// Whether the description can be followed.
    ///
    /// # Errors
    /// `EINVAL`.
    pub fn check(&self, user_end: u64) -> Result<(), Errno> {
        let end = self.start.checked_add(self.len);
        let inside =
            self.start < user_end && end.is_some_and(|end| end < user_end) && self.abort < user_end;
        // Who is sent back into the sequence would be sent there for ever.
        let loops = self.abort.wrapping_sub(self.start) < self.len;
        if self.version == 0 && self.flags == 0 && inside && !loops && self.abort >= 4 {
            Ok(())
        } else {
            Err(Errno::EINVAL)
        }
    }

    /// Whether the next instruction is one of the sequence.
    #[must_use]
    pub fn contains(&self, rip: u64) -> bool {
        rip.wrapping_sub(self.start) < self.len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const END: u64 = 1 << 47;

    #[test]
    fn a_sequence_ends_where_it_commits() {
        let section = RseqCs {
            start: 0x1000,
            len: 16,
            abort: 0x2000,
            ..RseqCs::default()
        };
        assert!(section.check(END).is_ok());
        let inside: Vec<bool> = [0xfff, 0x1000, 0x100f, 0x1010, 0x2000]
            .map(|rip| section.contains(rip))
            .into();
        assert_eq!(inside, [false, true, true, false, false]);
    }

    #[test]
    fn nonsense_is_refused() {
        let good = RseqCs {
            start: 0x1000,
            len: 16,
            abort: 0x2000,
            ..RseqCs::default()
        };
        let bad = [
            RseqCs { version: 1, ..good },
            RseqCs { flags: 1, ..good },
            RseqCs {
                abort: 0x1008,
                ..good
            },
            RseqCs { abort: END, ..good },
            RseqCs { start: END, ..good },
            RseqCs {
                len: u64::MAX,
                ..good
            },
            RseqCs { abort: 3, ..good },
        ];
        for section in bad {
            assert_eq!(section.check(END), Err(Errno::EINVAL), "{section:?}");
        }
    }
}
