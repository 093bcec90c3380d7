//! Marks: how a writer says that a step is done, and that all it did is promised to it.
//!
//! A mark is written to the disk on which the file system is, in a partition of its own, without a
//! flush. So it is in the log of the disk's writes, after all that was written for the step and
//! before all that the next one writes; whether it is in the image after a cut does not matter.

/// Bytes of a mark, at a place of its own for each writer: a page, so that no two writers change
/// one.
pub const LEN: u64 = 4096;

const MAGIC: [u8; 8] = *b"POWERCUT";

/// A writer's statement that so many of its steps are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Number of the writer.
    pub writer: u64,
    /// Number of its steps that are done.
    pub steps: u64,
}

impl Mark {
    /// Place in the partition of marks, in bytes.
    pub const fn place(self) -> u64 {
        self.writer * LEN
    }

    /// The bytes that are written there.
    pub fn encode(self) -> Vec<u8> {
        let mut bytes = vec![0; LEN as usize];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..16].copy_from_slice(&self.writer.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.steps.to_le_bytes());
        bytes
    }

    /// The mark in bytes that were written to the partition of marks, if there is one.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let number = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        (bytes.get(..8)? == MAGIC).then_some(())?;
        Some(Self {
            writer: number(8)?,
            steps: number(16)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_read_as_they_were_written() {
        let mark = Mark {
            writer: 3,
            steps: 77,
        };
        assert_eq!(Mark::decode(&mark.encode()), Some(mark));
        assert_eq!(Mark::decode(&[0; 4096]), None);
        assert_eq!(Mark::decode(&mark.encode()[..20]), None);
    }
}
