//! Commands of programs: which are passed to a controller, and how much data each has.
//!
//! A controller takes the length of a command's data from the command, and not from anybody's
//! buffer. So a command is passed only if that length can be told here: then the controller never
//! reads or writes memory that it was not lent.

use core::fmt;

use crate::PAGE;
use crate::command::{Command, admin, nvm};
use crate::queue::MAX_PAGES;

/// A command as a program has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Code of the command.
    pub code: u8,
    /// Number of the namespace that it is for.
    pub namespace: u32,
    /// Words 2 and 3, and 10 to 15.
    pub words: [u32; 8],
}

/// Commands that a queue takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandSet {
    /// Commands of the admin queue.
    Admin,
    /// Commands of the NVM command set, for a namespace whose blocks have so many bytes, as a
    /// power of two.
    Nvm(u8),
}

/// Why a command is not passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forbidden {
    /// Queues, memory or doorbells of the kernel's are concerned.
    Kernels,
    /// Namespaces would change that are disks here.
    Disks,
    /// The length of its data is not known, or it cannot be repeated after a reset.
    Unknown,
    /// There is more data than a command may have.
    TooLong,
}

impl fmt::Display for Forbidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kernels => "it concerns what is the kernel's",
            Self::Disks => "it changes namespaces that are disks",
            Self::Unknown => "how much data it has is not known",
            Self::TooLong => "it has too much data",
        })
    }
}

impl core::error::Error for Forbidden {}

/// A command that may be passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    pub(crate) command: Command,
    /// Bytes of data that the controller reads or writes, at most.
    pub bytes: usize,
    /// Whether the controller reads them.
    pub is_read: bool,
    /// Whether the controller writes them.
    pub is_written: bool,
}

impl Plan {
    /// The command.
    #[must_use]
    pub const fn command(&self) -> Command {
        self.command
    }
}

/// Features that are set by the kernel only: how many queues there are, memory that the controller
/// may keep (sections 5.21.1.7 and 5.21.1.9).
const KERNELS_FEATURES: [u8; 2] = [0x07, 0x0d];

impl Wanted {
    /// Looks whether a program may have the controller do this, whose transfers have `most` bytes
    /// at most.
    ///
    /// # Errors
    /// [`Forbidden`].
    pub fn plan(&self, set: CommandSet, most: usize) -> Result<Plan, Forbidden> {
        let bytes = match set {
            CommandSet::Admin => self.admin_bytes()?,
            CommandSet::Nvm(bits) => self.nvm_bytes(bits)?,
        };
        let most = most.min(MAX_PAGES * PAGE);
        let bytes = usize::try_from(bytes).map_err(|_| Forbidden::TooLong)?;
        if bytes > most {
            return Err(Forbidden::TooLong);
        }
        // The lower bits of a code tell the direction (figure 126).
        Ok(Plan {
            command: Command::passed(self.code, self.namespace, &self.words),
            bytes,
            is_read: self.code & 1 != 0,
            is_written: self.code & 2 != 0,
        })
    }

    /// Word 10 to 15.
    const fn word(&self, number: usize) -> u32 {
        self.words[number - 8]
    }

    /// Bytes of an admin command's data (section 5).
    fn admin_bytes(&self) -> Result<u64, Forbidden> {
        let page = PAGE as u64;
        let words = |less: u32| 4 * (u64::from(less) + 1);
        Ok(match self.code {
            // Get Log Page: the length is in two halves.
            0x02 => words(self.word(11) << 16 | self.word(10) >> 16),
            admin::IDENTIFY => page,
            admin::SET_FEATURES if KERNELS_FEATURES.contains(&(self.word(10) as u8)) => {
                return Err(Forbidden::Kernels);
            }
            // Features have a page of data at most; most have none, and the page is not touched.
            admin::SET_FEATURES | 0x0a => page,
            // Firmware Image Download; Directive Send and Receive.
            0x11 | 0x19 | 0x1a => words(self.word(10)),
            // Security Send and Receive; Get LBA Status.
            0x81 | 0x82 => u64::from(self.word(11)),
            0x86 => words(self.word(12)),
            // Firmware Commit, Device Self-test, Keep Alive, Sanitize.
            0x10 | 0x14 | 0x18 | 0x84 => 0,
            // Queues, aborting, asynchronous events, shadow doorbells.
            0x00 | 0x01 | 0x04 | 0x05 | 0x08 | 0x0c | 0x7c => return Err(Forbidden::Kernels),
            // Namespace Management and Attachment, Format NVM.
            0x0d | 0x15 | 0x80 => return Err(Forbidden::Disks),
            _ => return Err(Forbidden::Unknown),
        })
    }

    /// Bytes of an NVM command's data (section 6).
    fn nvm_bytes(&self, block_bits: u8) -> Result<u64, Forbidden> {
        let blocks = (u64::from(self.word(12) as u16) + 1) << block_bits;
        Ok(match self.code {
            nvm::READ | nvm::WRITE | nvm::COMPARE => blocks,
            nvm::DATASET_MANAGEMENT => 16 * (u64::from(self.word(10) as u8) + 1),
            nvm::FLUSH | nvm::WRITE_UNCORRECTABLE | nvm::WRITE_ZEROES | nvm::VERIFY => 0,
            // Reservation Report.
            0x0e => 4 * (u64::from(self.word(10)) + 1),
            _ => return Err(Forbidden::Unknown),
        })
    }
}
