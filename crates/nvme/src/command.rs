//! Commands: entries of submission queues (section 4.2).

use virtqueue::Address;

use crate::runs::Descriptor;

/// Codes of admin commands (section 5).
pub(crate) mod admin {
    pub const CREATE_SUBMISSION_QUEUE: u8 = 0x01;
    pub const CREATE_COMPLETION_QUEUE: u8 = 0x05;
    pub const IDENTIFY: u8 = 0x06;
    pub const ABORT: u8 = 0x08;
    pub const SET_FEATURES: u8 = 0x09;
    pub const VIRTUALIZATION_MANAGEMENT: u8 = 0x1c;
}

/// Codes of commands of the NVM command set (section 6).
pub(crate) mod nvm {
    pub const FLUSH: u8 = 0x00;
    pub const WRITE: u8 = 0x01;
    pub const READ: u8 = 0x02;
    pub const WRITE_UNCORRECTABLE: u8 = 0x04;
    pub const COMPARE: u8 = 0x05;
    pub const WRITE_ZEROES: u8 = 0x08;
    pub const DATASET_MANAGEMENT: u8 = 0x09;
    pub const VERIFY: u8 = 0x0c;
}

/// Structures that an Identify command asks for (section 5.15.1).
pub(crate) mod cns {
    pub const NAMESPACE: u8 = 0x00;
    pub const CONTROLLER: u8 = 0x01;
    pub const NAMESPACES: u8 = 0x02;
    pub const PRIMARY: u8 = 0x14;
    pub const SECONDARIES: u8 = 0x15;
}

/// Number of the feature that says how many queues there are (section 5.21.1.7).
pub(crate) const NUMBER_OF_QUEUES: u32 = 0x07;
/// Bit of a Dataset Management command: ranges are given up (section 6.7).
pub(crate) const DEALLOCATE: u32 = 1 << 2;

/// The place of a command's data.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    /// A page, and another one, or a list of all that follow (section 4.3).
    Pages([Address; 2]),
    /// A run, or a list of runs (section 4.4).
    Runs(Descriptor),
}

/// A command, without its identifier and the place of its data, which the queue fills in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command([u8; Command::BYTES]);

impl Command {
    /// Bytes of a command.
    pub const BYTES: usize = 64;

    /// Flag: the data's place is a descriptor (figure 104, PSDT).
    const BY_RUNS: u8 = 1 << 6;
    const ID: usize = 2;
    const NAMESPACE: usize = 4;
    const WORD_2: usize = 8;
    const DATA: usize = 24;
    const WORD_10: usize = 40;

    fn new(code: u8, namespace: u32, words: &[u32]) -> Self {
        let mut bytes = [0; Self::BYTES];
        bytes[0] = code;
        bytes[Self::NAMESPACE..Self::NAMESPACE + 4].copy_from_slice(&namespace.to_le_bytes());
        for (place, word) in bytes[Self::WORD_10..].chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        Self(bytes)
    }

    fn of_blocks(code: u8, namespace: u32, first: u64, count: u16) -> Self {
        // Their number is one less than what is meant.
        let count = u32::from(count.saturating_sub(1));
        let words = [first as u32, (first >> 32) as u32, count];
        Self::new(code, namespace, &words)
    }

    /// Reads blocks (section 6.9); `count` is at least 1, as with the two that follow.
    #[must_use]
    pub fn read(namespace: u32, first: u64, count: u16) -> Self {
        Self::of_blocks(nvm::READ, namespace, first, count)
    }

    /// Writes blocks (section 6.15).
    #[must_use]
    pub fn write(namespace: u32, first: u64, count: u16) -> Self {
        Self::of_blocks(nvm::WRITE, namespace, first, count)
    }

    /// Writes blocks to the medium: they are there when the command is over (`FUA`).
    #[must_use]
    pub fn write_through(namespace: u32, first: u64, count: u16) -> Self {
        let mut command = Self::write(namespace, first, count);
        command.0[Self::WORD_10 + 8 + 3] |= 1 << 6;
        command
    }

    /// Makes blocks zeros, which stay allocated (section 6.17).
    #[must_use]
    pub fn write_zeroes(namespace: u32, first: u64, count: u16) -> Self {
        Self::of_blocks(nvm::WRITE_ZEROES, namespace, first, count)
    }

    /// Brings what was written to the medium (section 6.8).
    #[must_use]
    pub fn flush(namespace: u32) -> Self {
        Self::new(nvm::FLUSH, namespace, &[])
    }

    /// Gives up blocks: a Dataset Management command of one range, which is its data (section 6.7).
    #[must_use]
    pub fn discard(namespace: u32) -> Self {
        Self::new(nvm::DATASET_MANAGEMENT, namespace, &[0, DEALLOCATE])
    }

    /// The command of a program, word for word but for its identifier and the place of its data.
    pub(crate) fn passed(code: u8, namespace: u32, words: &[u32; 8]) -> Self {
        let [second, third, rest @ ..] = words;
        let mut command = Self::new(code, namespace, rest);
        for (place, word) in command.0[Self::WORD_2..]
            .chunks_exact_mut(4)
            .zip([second, third])
        {
            place.copy_from_slice(&word.to_le_bytes());
        }
        command
    }

    pub(crate) fn identify(structure: u8, namespace: u32) -> Self {
        Self::new(admin::IDENTIFY, namespace, &[structure.into()])
    }

    /// Asks for a list of controllers from a number on.
    pub(crate) fn identify_from(structure: u8, controller: u16) -> Self {
        let word = u32::from(controller) << 16 | u32::from(structure);
        Self::new(admin::IDENTIFY, 0, &[word])
    }

    /// Asks for so many queue pairs, at least 1.
    pub(crate) fn set_queues(count: u16) -> Self {
        let less = u32::from(count.saturating_sub(1));
        Self::new(
            admin::SET_FEATURES,
            0,
            &[NUMBER_OF_QUEUES, less << 16 | less],
        )
    }

    /// Creates a completion queue in one piece that sends a message (section 5.3).
    pub(crate) fn create_completion_queue(queue: u16, entries: u16, message: u16) -> Self {
        let size = u32::from(entries - 1) << 16 | u32::from(queue);
        let words = [size, u32::from(message) << 16 | 0b11];
        Self::new(admin::CREATE_COMPLETION_QUEUE, 0, &words)
    }

    /// Creates a submission queue in one piece for the completion queue of the same number (section
    /// 5.4).
    pub(crate) fn create_submission_queue(queue: u16, entries: u16) -> Self {
        let size = u32::from(entries - 1) << 16 | u32::from(queue);
        let words = [size, u32::from(queue) << 16 | 1];
        Self::new(admin::CREATE_SUBMISSION_QUEUE, 0, &words)
    }

    /// Gives resources to a controller, or puts it online (section 5.28).
    pub(crate) fn manage(controller: u16, action: u8, resource: u8, count: u16) -> Self {
        let word = u32::from(controller) << 16 | u32::from(resource) << 8 | u32::from(action);
        Self::new(admin::VIRTUALIZATION_MANAGEMENT, 0, &[word, count.into()])
    }

    /// Aborts a command of a queue (section 5.1).
    pub(crate) fn abort(queue: u16, id: u16) -> Self {
        let word = u32::from(id) << 16 | u32::from(queue);
        Self::new(admin::ABORT, 0, &[word])
    }

    /// The command as it is in a queue.
    pub(crate) fn complete(mut self, id: u16, data: Place) -> Self {
        self.0[Self::ID..Self::ID + 2].copy_from_slice(&id.to_le_bytes());
        let (first, rest) = self.0[Self::DATA..].split_at_mut(8);
        match data {
            Place::Pages([page, next]) => {
                first.copy_from_slice(&page.number().to_le_bytes());
                rest[..8].copy_from_slice(&next.number().to_le_bytes());
            }
            Place::Runs(Descriptor(bytes)) => {
                first.copy_from_slice(&bytes[..8]);
                rest[..8].copy_from_slice(&bytes[8..]);
                self.0[1] |= Self::BY_RUNS;
            }
        }
        self
    }

    /// Whether the place of the data is a descriptor of a run.
    pub(crate) const fn is_by_runs(&self) -> bool {
        self.0[1] >> 6 != 0
    }

    pub(crate) const fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        Self(bytes)
    }

    pub(crate) const fn bytes(&self) -> &[u8; Self::BYTES] {
        &self.0
    }

    pub(crate) const fn code(&self) -> u8 {
        self.0[0]
    }

    pub(crate) fn id(&self) -> u16 {
        u16::from_le_bytes([self.0[Self::ID], self.0[Self::ID + 1]])
    }

    pub(crate) fn namespace(&self) -> u32 {
        self.u32(Self::NAMESPACE)
    }

    /// Word 10 to 15.
    pub(crate) fn word(&self, number: usize) -> u32 {
        self.u32(4 * number)
    }

    /// The places of data.
    pub(crate) fn data(&self) -> [u64; 2] {
        let u64_at = |at| u64::from(self.u32(at + 4)) << 32 | u64::from(self.u32(at));
        [u64_at(Self::DATA), u64_at(Self::DATA + 8)]
    }

    fn u32(&self, at: usize) -> u32 {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(&self.0[at..at + 4]);
        u32::from_le_bytes(bytes)
    }
}

/// The data of [`Command::discard`]: a range of blocks.
#[must_use]
pub(crate) fn range(first: u64, count: u32) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[4..8].copy_from_slice(&count.to_le_bytes());
    bytes[8..].copy_from_slice(&first.to_le_bytes());
    bytes
}
