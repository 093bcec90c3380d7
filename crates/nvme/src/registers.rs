//! Registers of a controller (section 3.1).

use core::fmt;

/// Offsets of registers, in bytes.
pub(crate) mod at {
    pub const CAP: usize = 0x00;
    pub const CC: usize = 0x14;
    pub const CSTS: usize = 0x1c;
    pub const AQA: usize = 0x24;
    pub const ASQ: usize = 0x28;
    pub const ACQ: usize = 0x30;
    pub const DOORBELLS: usize = 0x1000;
}

/// Bits of the controller's configuration, `CC` (section 3.1.5).
pub(crate) mod cc {
    pub const ENABLE: u32 = 1;
    /// Entries of 2^6 bytes in submission queues and of 2^4 in completion queues, pages of 4 KiB,
    /// the NVM command set, round robin.
    pub const LAYOUT: u32 = 6 << 16 | 4 << 20;
}

/// Bits of the controller's status, `CSTS` (section 3.1.6).
pub(crate) mod csts {
    pub const READY: u32 = 1;
    pub const FATAL: u32 = 1 << 1;
}

/// Why the capabilities of a controller do not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// All registers read as ones: nobody answers.
    Absent,
    /// The controller does not have the NVM command set.
    CommandSet,
    /// The controller wants memory pages that are larger than 4 KiB.
    PageSize,
    /// A queue of the controller's has room for one entry only, which is full when it is empty.
    QueueSize,
    /// Registers end before the doorbells.
    Short,
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Absent => "nobody answers",
            Self::CommandSet => "it does not have the NVM command set",
            Self::PageSize => "it wants memory pages of more than 4 KiB",
            Self::QueueSize => "its queues are too short",
            Self::Short => "its registers end before the doorbells",
        })
    }
}

/// Capabilities of a controller, `CAP` (section 3.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Entries of a queue, at most.
    pub entries: u32,
    /// Milliseconds within which the controller is ready, or not any more.
    pub ready_ms: u32,
    /// Bytes from one doorbell to the next.
    pub stride: usize,
}

impl Capabilities {
    /// Bytes of registers before the doorbells, in which the capabilities are the first.
    pub const BYTES: usize = at::DOORBELLS;

    /// Reads the register's two halves.
    ///
    /// # Errors
    /// [`Unusable`].
    pub const fn parse(low: u32, high: u32) -> Result<Self, Unusable> {
        if low == u32::MAX && high == u32::MAX {
            return Err(Unusable::Absent);
        }
        // CSS: bits 44:37, of which the first says that there is the NVM command set.
        if high & 1 << 5 == 0 {
            return Err(Unusable::CommandSet);
        }
        // MPSMIN: bits 51:48.
        if high >> 16 & 0xf != 0 {
            return Err(Unusable::PageSize);
        }
        // MQES: bits 15:0, one less.
        let entries = (low & 0xffff) + 1;
        if entries < 2 {
            return Err(Unusable::QueueSize);
        }
        // TO: bits 31:24, in units of 500 ms. DSTRD: bits 35:32.
        let units = low >> 24;
        Ok(Self {
            entries,
            ready_ms: 500 * if units == 0 { 1 } else { units },
            stride: 4 << (high & 0xf),
        })
    }

    /// Bytes of registers up to the end of the doorbells of so many queue pairs beside the
    /// admin queue's.
    #[must_use]
    pub const fn bytes(&self, queues: u16) -> usize {
        at::DOORBELLS + 2 * (queues as usize + 1) * self.stride
    }

    /// Number of queue pairs, beside the admin queue's, whose doorbells are in so many bytes.
    #[must_use]
    pub const fn queues_within(&self, bytes: usize) -> usize {
        let pairs = bytes.saturating_sub(at::DOORBELLS) / (2 * self.stride);
        pairs.saturating_sub(1)
    }

    /// The doorbell of a submission queue (sections 3.1.24 and 3.1.25).
    pub(crate) const fn tail(&self, queue: u16) -> usize {
        at::DOORBELLS + 2 * queue as usize * self.stride
    }

    /// The doorbell of a completion queue.
    pub(crate) const fn head(&self, queue: u16) -> usize {
        self.tail(queue) + self.stride
    }
}
