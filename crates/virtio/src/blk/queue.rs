//! One queue of a disk: requests in flight, and their results.

use alloc::vec::Vec;
use core::fmt;

use virtqueue::{
    Address, Areas, DriverQueue, Left, Memory, Piece, Rule, Setup, SetupError, Tables,
};

use super::{HEADER, ID, Properties, RANGE, Ranges, SECTOR, UNMAP, kind, status};

/// Whether blocks that are to be zeros may be given up by the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmap {
    /// Blocks may be given up: they read as zeros all the same.
    Allowed,
    /// Blocks stay allocated.
    Forbidden,
}

/// Operation of a request; offsets and lengths are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Fills the pieces from the disk.
    Read {
        /// First byte on the disk.
        offset: u64,
    },
    /// Writes the pieces to the disk.
    Write {
        /// First byte on the disk.
        offset: u64,
    },
    /// Brings all writes that are completed to the medium.
    Flush,
    /// Gives up the contents of a range.
    Discard {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        len: u64,
    },
    /// Makes a range zeros.
    WriteZeroes {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        len: u64,
        /// Whether the blocks may be given up.
        unmap: Unmap,
    },
    /// Asks for the name of the disk.
    GetId,
}

/// Why a request was not submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is no room for it now.
    Full,
    /// The device does not know the operation.
    Unsupported,
    /// The disk refuses changes.
    ReadOnly,
    /// A request is not made of whole blocks, or of none, or has data where there is none.
    Unaligned,
    /// A request goes beyond the end of the disk.
    BeyondEnd,
    /// A request has more pieces, larger ones, or a longer range than the device takes.
    TooLarge,
    /// The device broke a rule: nothing goes on until [`Disk::recover`](super::Disk::recover).
    Broken(Rule),
    /// The device did not come back from a reset.
    Gone,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "the queue is full",
            Self::Unsupported => "the disk does not know this operation",
            Self::ReadOnly => "the disk is read-only",
            Self::Unaligned => "a request is made of whole blocks",
            Self::BeyondEnd => "a request goes beyond the end of the disk",
            Self::TooLarge => "a request is larger than the disk takes",
            Self::Broken(rule) => return write!(f, "the disk needs a reset: {rule}"),
            Self::Gone => "the disk is gone",
        })
    }
}

impl core::error::Error for Refusal {}

/// A request that was not submitted: its value, and why.
#[derive(Debug)]
pub struct Refused<V> {
    /// The value that it came with.
    pub value: V,
    /// Why it was not submitted.
    pub why: Refusal,
}

/// Failure of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The device says that it could not do it.
    Io,
    /// The device says that it does not know the operation.
    Unsupported,
    /// The device gave a result that there is not, or none.
    Status(u8),
    /// The device says that it is done, and has written so few bytes only.
    Short(u32),
    /// The device was reset twice meanwhile, or did not come back.
    Gone,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io => f.write_str("an error of the disk"),
            Self::Unsupported => f.write_str("the disk does not know this operation"),
            Self::Status(status) => write!(f, "the disk gave a result that there is not: {status}"),
            Self::Short(bytes) => write!(f, "the disk wrote {bytes} bytes only"),
            Self::Gone => f.write_str("the disk is gone"),
        }
    }
}

impl core::error::Error for Failure {}

/// A request that is over.
#[derive(Debug, PartialEq, Eq)]
pub struct Completion<V> {
    /// The value that it was submitted with.
    pub value: V,
    /// Operation of the request.
    pub operation: Operation,
    /// Outcome of the request. The name of the disk is there for [`Operation::GetId`].
    pub outcome: Result<Option<[u8; ID]>, Failure>,
}

/// A request that the device has.
#[derive(Debug)]
struct Pending<V> {
    value: V,
    operation: Operation,
    /// Place of the request's header, range, name and result, and the number of its pieces.
    slot: u16,
    pieces: u16,
    /// True if it was offered before a reset already.
    is_again: bool,
}

/// Memory of a request beside its data: header, range, name, result.
const SLOT: u64 = 64;
const RANGE_AT: u64 = HEADER;
const ID_AT: u64 = RANGE_AT + RANGE;
const STATUS_AT: u64 = ID_AT + ID as u64;

/// One queue of a disk. Requests keep their values, which own the memory of their data, until they
/// are completed.
#[derive(Debug)]
pub struct Queue<M, V> {
    number: u16,
    ring: DriverQueue<M, Pending<V>>,
    properties: Properties,
    /// Beginning of the memory of requests, and which of it is free.
    slots: Address,
    free: Vec<u16>,
    /// The data's pieces of each slot, for offering them again.
    kept: Vec<Piece>,
    pieces: u16,
    /// A chain, while it is put together.
    chain: Vec<Piece>,
    /// Requests between a reset and being offered again.
    again: Vec<Pending<V>>,
    is_gone: bool,
}

/// An empty list with room for so many.
fn room<T>(len: usize) -> Result<Vec<T>, SetupError> {
    let mut list = Vec::new();
    list.try_reserve_exact(len)
        .map_err(|_| SetupError::NoMemory)?;
    Ok(list)
}

impl<M: Memory, V> Queue<M, V> {
    /// Bytes of memory for a queue of so many descriptors, and requests of so many pieces.
    pub(super) fn bytes(size: u16, pieces: u16) -> u64 {
        Self::slots_at(size, pieces) + SLOT * u64::from(size)
    }

    /// Descriptors of a request: its pieces, header or range, and result.
    fn entries(size: u16, pieces: u16) -> u16 {
        pieces.saturating_add(2).min(size)
    }

    fn slots_at(size: u16, pieces: u16) -> u64 {
        Areas::bytes(size) + Tables::bytes(size, Self::entries(size, pieces))
    }

    pub(super) fn new(
        number: u16,
        memory: M,
        base: Address,
        setup: Setup,
        pieces: u16,
        properties: Properties,
    ) -> Result<Self, SetupError> {
        let size = setup.size;
        let tables = Tables {
            at: base.plus(Areas::bytes(size)),
            entries: Self::entries(size, pieces),
        };
        let pieces = tables.entries.checked_sub(2).ok_or(SetupError::Size)?;
        let slots = base.plus(Self::slots_at(size, pieces));
        if !memory.reaches(slots, SLOT * u64::from(size)) {
            return Err(SetupError::Unreachable);
        }
        let mut free = room(usize::from(size))?;
        free.extend((0..size).rev());
        let mut kept = room(usize::from(size) * usize::from(pieces))?;
        let none = Piece {
            at: Address::new(0),
            len: 0,
        };
        kept.resize(usize::from(size) * usize::from(pieces), none);
        Ok(Self {
            number,
            ring: DriverQueue::new(memory, setup, Some(tables))?,
            properties,
            slots,
            free,
            kept,
            pieces,
            chain: room(usize::from(pieces) + 2)?,
            again: room(usize::from(size))?,
            is_gone: false,
        })
    }

    pub(super) fn number(&self) -> u16 {
        self.number
    }

    pub(super) fn setup(&self) -> &Setup {
        self.ring.setup()
    }

    /// Requests that the device has.
    #[must_use]
    pub fn in_flight(&self) -> u16 {
        self.ring.in_flight()
    }

    /// The rule that the device has broken.
    #[must_use]
    pub fn broken(&self) -> Option<Rule> {
        self.ring.broken()
    }

    /// Pieces of data that a request may have here.
    #[must_use]
    pub fn max_pieces(&self) -> u16 {
        self.pieces
            .min(u16::try_from(self.properties.pieces).unwrap_or(u16::MAX))
    }

    /// Submits a request. `data` is what a read fills or a write writes, and is owned by `value`.
    /// The device is told by [`Disk::notify`](super::Disk::notify).
    ///
    /// # Errors
    /// The value, with the reason.
    pub fn submit(
        &mut self,
        operation: Operation,
        data: &[Piece],
        value: V,
    ) -> Result<(), Refused<V>> {
        if let Err(why) = self.check(operation, data) {
            return Err(Refused { value, why });
        }
        let Some(slot) = self.free.pop() else {
            let why = Refusal::Full;
            return Err(Refused { value, why });
        };
        let first = usize::from(slot) * usize::from(self.pieces);
        self.kept[first..first + data.len()].copy_from_slice(data);
        let request = Pending {
            value,
            operation,
            slot,
            pieces: data.len() as u16,
            is_again: false,
        };
        self.offer(request).map_err(|(request, why)| {
            self.free.push(request.slot);
            Refused {
                value: request.value,
                why,
            }
        })
    }

    /// Checks everything that says where data goes, before the device hears of it.
    fn check(&self, operation: Operation, data: &[Piece]) -> Result<(), Refusal> {
        if self.is_gone {
            return Err(Refusal::Gone);
        }
        if let Some(rule) = self.ring.broken() {
            return Err(Refusal::Broken(rule));
        }
        let properties = &self.properties;
        let bytes = data.iter().map(|piece| u64::from(piece.len)).sum();
        let range = |ranges: Option<Ranges>, offset, len| match ranges {
            None => Err(Refusal::Unsupported),
            Some(ranges) if len > ranges.max => Err(Refusal::TooLarge),
            Some(_) => Ok((offset, len)),
        };
        let (offset, len) = match operation {
            Operation::Read { offset } | Operation::Write { offset } => (offset, bytes),
            Operation::Discard { offset, len } => range(properties.discard, offset, len)?,
            Operation::WriteZeroes { offset, len, .. } => {
                range(properties.write_zeroes, offset, len)?
            }
            Operation::Flush if !properties.has_cache => return Err(Refusal::Unsupported),
            Operation::Flush | Operation::GetId if data.is_empty() => return Ok(()),
            Operation::Flush | Operation::GetId => return Err(Refusal::Unaligned),
        };
        let is_read = matches!(operation, Operation::Read { .. });
        if !is_read && properties.read_only {
            return Err(Refusal::ReadOnly);
        }
        let has_data = is_read || matches!(operation, Operation::Write { .. });
        let block = u64::from(properties.block);
        if !offset.is_multiple_of(block)
            || !len.is_multiple_of(block)
            || len == 0
            || has_data == data.is_empty()
        {
            return Err(Refusal::Unaligned);
        }
        if offset
            .checked_add(len)
            .is_none_or(|end| end > properties.capacity)
        {
            return Err(Refusal::BeyondEnd);
        }
        if data.len() > usize::from(self.max_pieces())
            || data.iter().any(|piece| piece.len > properties.piece)
            // A length of what was written counts the result, too.
            || bytes >= u64::from(u32::MAX)
        {
            return Err(Refusal::TooLarge);
        }
        Ok(())
    }

    /// Writes a request's header and range, and offers it to the device.
    fn offer(&mut self, request: Pending<V>) -> Result<(), (Pending<V>, Refusal)> {
        let at = self.slots.plus(SLOT * u64::from(request.slot));
        let (number, offset, range) = match request.operation {
            Operation::Read { offset } => (kind::READ, offset, None),
            Operation::Write { offset } => (kind::WRITE, offset, None),
            Operation::Flush => (kind::FLUSH, 0, None),
            Operation::GetId => (kind::GET_ID, 0, None),
            Operation::Discard { offset, len } => (kind::DISCARD, 0, Some((offset, len, 0))),
            Operation::WriteZeroes { offset, len, unmap } => {
                let flags = match unmap {
                    Unmap::Allowed => UNMAP,
                    Unmap::Forbidden => 0,
                };
                (kind::WRITE_ZEROES, 0, Some((offset, len, flags)))
            }
        };
        let mut bytes = [0; (HEADER + RANGE) as usize];
        bytes[..4].copy_from_slice(&number.to_le_bytes());
        bytes[8..16].copy_from_slice(&(offset / SECTOR).to_le_bytes());
        if let Some((offset, len, flags)) = range {
            // A range is shorter than 2^32 sectors: that is what its limit can say.
            let sectors = (len / SECTOR) as u32;
            bytes[16..24].copy_from_slice(&(offset / SECTOR).to_le_bytes());
            bytes[24..28].copy_from_slice(&sectors.to_le_bytes());
            bytes[28..].copy_from_slice(&flags.to_le_bytes());
        }
        let memory = self.ring.memory();
        let written = memory
            .write(at, &bytes)
            .and_then(|()| memory.write(at.plus(STATUS_AT), &[status::NONE]));
        if let Err(gone) = written {
            return Err((request, Refusal::Broken(gone.into())));
        }
        let piece = |from, len: u64| Piece {
            at: at.plus(from),
            len: len as u32,
        };
        let header = if range.is_some() {
            HEADER + RANGE
        } else {
            HEADER
        };
        let first = usize::from(request.slot) * usize::from(self.pieces);
        let data = &self.kept[first..first + usize::from(request.pieces)];
        self.chain.clear();
        self.chain.push(piece(0, header));
        let reads = match request.operation {
            Operation::Write { .. } => 1 + data.len(),
            _ => 1,
        };
        self.chain.extend_from_slice(data);
        self.chain.push(match request.operation {
            // The name and the result are one behind the other.
            Operation::GetId => piece(ID_AT, ID as u64 + 1),
            _ => piece(STATUS_AT, 1),
        });
        let (readable, writable) = self.chain.split_at(reads);
        self.ring
            .add(readable, writable, request)
            .map_err(|refused| {
                let why = match refused.why {
                    virtqueue::Refusal::Broken(rule) => Refusal::Broken(rule),
                    virtqueue::Refusal::Full => Refusal::Full,
                    virtqueue::Refusal::Empty
                    | virtqueue::Refusal::TooManyPieces
                    | virtqueue::Refusal::TooManyBytes => Refusal::TooLarge,
                };
                (refused.value, why)
            })
    }

    /// Takes a request that is over.
    ///
    /// # Errors
    /// If the device broke a rule. [`Disk::recover`](super::Disk::recover) goes on from there.
    pub fn complete(&mut self) -> Result<Option<Completion<V>>, Rule> {
        let Some(done) = self.ring.take()? else {
            return Ok(None);
        };
        let request = done.value;
        let outcome = self.outcome(&request, done.written);
        Ok(Some(self.end(request, outcome)))
    }

    /// The result of a request of which the device has written so many bytes.
    fn outcome(&self, request: &Pending<V>, written: u32) -> Result<Option<[u8; ID]>, Failure> {
        let memory = self.ring.memory();
        let at = self.slots.plus(SLOT * u64::from(request.slot));
        let mut result = [status::NONE];
        // Memory that went away is no result.
        let _ = memory.read(at.plus(STATUS_AT), &mut result);
        match result[0] {
            status::OK => {}
            status::IO_ERROR => return Err(Failure::Io),
            status::UNSUPPORTED => return Err(Failure::Unsupported),
            other => return Err(Failure::Status(other)),
        }
        let first = usize::from(request.slot) * usize::from(self.pieces);
        let data = &self.kept[first..first + usize::from(request.pieces)];
        let mut expected = 1;
        if let Operation::Read { .. } = request.operation {
            expected += data.iter().map(|piece| u64::from(piece.len)).sum::<u64>();
        }
        if request.operation == Operation::GetId {
            expected += ID as u64;
        }
        if u64::from(written) < expected {
            return Err(Failure::Short(written));
        }
        if request.operation == Operation::GetId {
            let mut id = [0; ID];
            return match memory.read(at.plus(ID_AT), &mut id) {
                Ok(()) => Ok(Some(id)),
                Err(_) => Err(Failure::Io),
            };
        }
        Ok(None)
    }

    fn end(
        &mut self,
        request: Pending<V>,
        outcome: Result<Option<[u8; ID]>, Failure>,
    ) -> Completion<V> {
        self.free.push(request.slot);
        Completion {
            value: request.value,
            operation: request.operation,
            outcome,
        }
    }

    /// Asks for an interrupt when the next request is over; tells whether one is already.
    ///
    /// # Errors
    /// If the device broke a rule.
    pub fn want_interrupt(&mut self) -> Result<Left, Rule> {
        self.ring.want_interrupt()
    }

    /// Asks for no interrupts, as far as the device can be told.
    ///
    /// # Errors
    /// If the device broke a rule.
    pub fn decline_interrupts(&mut self) -> Result<(), Rule> {
        self.ring.decline_interrupts()
    }

    pub(super) fn must_notify(&mut self) -> Result<bool, Rule> {
        self.ring.must_notify()
    }

    /// Takes everything back from a device that has stopped, to be offered again.
    pub(super) fn take_back(&mut self) -> Result<(), Rule> {
        let again = &mut self.again;
        self.ring.reset(|request| again.push(request))
    }

    /// Offers again what was taken back, except what was before; that ends.
    pub(super) fn offer_again(&mut self, mut ended: impl FnMut(Completion<V>)) {
        while let Some(request) = self.again.pop() {
            let failed = if request.is_again {
                Some(request)
            } else {
                let again = Pending {
                    is_again: true,
                    ..request
                };
                self.offer(again).err().map(|(request, _)| request)
            };
            if let Some(request) = failed {
                ended(self.end(request, Err(Failure::Gone)));
            }
        }
    }

    /// Ends what was taken back, and everything that may come: the device did not come back.
    pub(super) fn give_up(&mut self, mut ended: impl FnMut(Completion<V>)) {
        self.is_gone = true;
        while let Some(request) = self.again.pop() {
            ended(self.end(request, Err(Failure::Gone)));
        }
    }

    pub(super) fn come_back(&mut self) {
        self.is_gone = false;
    }
}
