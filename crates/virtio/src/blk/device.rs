//! The device's end of a disk.

use alloc::vec::Vec;

use virtqueue::{Chain, DeviceQueue, Error, Features, Memory, Unreachable};

use super::properties::field;
use super::queue::Unmap;
use super::{HEADER, ID, RANGE, SECTOR, UNMAP, feature, kind, status};

/// An operation that a backend could not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackendError;

/// The data of a disk. Offsets and lengths are whole sectors within the capacity.
pub trait Backend {
    /// Bytes of it, whole sectors.
    fn capacity(&self) -> u64;

    /// Name of the disk: text, filled up with zeros.
    fn id(&self) -> [u8; ID];

    /// Fills a buffer.
    ///
    /// # Errors
    /// If that is not possible.
    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), BackendError>;

    /// Writes a buffer.
    ///
    /// # Errors
    /// If that is not possible.
    fn write(&mut self, offset: u64, from: &[u8]) -> Result<(), BackendError>;

    /// Brings what was written to the medium.
    ///
    /// # Errors
    /// If that is not possible.
    fn flush(&mut self) -> Result<(), BackendError>;

    /// Gives up the contents of a range.
    ///
    /// # Errors
    /// If that is not possible.
    fn discard(&mut self, offset: u64, len: u64) -> Result<(), BackendError>;

    /// Makes a range zeros.
    ///
    /// # Errors
    /// If that is not possible.
    fn write_zeroes(&mut self, offset: u64, len: u64, unmap: Unmap) -> Result<(), BackendError>;
}

/// Outcome of a round of serving a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    /// Requests that were done.
    pub requests: u16,
    /// True if the driver wants to be interrupted.
    pub interrupt: bool,
}

/// The device's end of a disk, over a backend.
#[derive(Debug)]
pub struct Server<B> {
    backend: B,
    /// Data on its way: what is checked or written is a copy.
    buffer: Vec<u8>,
}

/// Bytes that are copied at a time.
const COPY: usize = 8 * SECTOR as usize;
/// Sectors of one range, at most.
const RANGE_SECTORS: u32 = 1 << 22;

/// Why a request is not done: its result.
type Refused = u8;

impl<B: Backend> Server<B> {
    /// A disk over a backend; nothing if there is no memory for its buffer.
    #[must_use]
    pub fn new(backend: B) -> Option<Self> {
        let mut buffer = Vec::new();
        buffer.try_reserve_exact(COPY).ok()?;
        buffer.resize(COPY, 0);
        Some(Self { backend, buffer })
    }

    /// Features that the device offers.
    #[must_use]
    pub fn features(&self) -> u64 {
        let queues = Features::INDIRECT | Features::EVENT_IDX | Features::PACKED;
        (Features::VERSION_1 | queues).bits()
            | feature::SEG_MAX
            | feature::FLUSH
            | feature::QUEUES
            | feature::DISCARD
            | feature::WRITE_ZEROES
    }

    /// The device's configuration, with so many queues, and requests of so many pieces.
    #[must_use]
    pub fn config(&self, queues: u16, pieces: u16) -> [u8; field::END] {
        let mut bytes = [0; field::END];
        let sectors = self.backend.capacity() / SECTOR;
        bytes[..8].copy_from_slice(&sectors.to_le_bytes());
        bytes[field::QUEUES..field::QUEUES + 2].copy_from_slice(&queues.to_le_bytes());
        for (at, value) in [
            (field::SEG_MAX, u32::from(pieces)),
            (field::DISCARD_SECTORS, RANGE_SECTORS),
            (field::DISCARD_SEGMENTS, 1),
            (field::DISCARD_ALIGNMENT, 1),
            (field::ZEROES_SECTORS, RANGE_SECTORS),
            (field::ZEROES_SEGMENTS, 1),
        ] {
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        bytes
    }

    /// Does the requests that are in a queue: no more than `most`, so that a driver that goes on
    /// and on keeps nobody here.
    ///
    /// # Errors
    /// If the driver broke a rule, or there is no memory for its chains.
    pub fn serve<M: Memory>(
        &mut self,
        queue: &mut DeviceQueue<M>,
        most: u16,
    ) -> Result<Served, Error> {
        let mut requests = 0;
        while requests < most
            && let Some(chain) = queue.take()?
        {
            let written = self.request(queue.memory(), &chain);
            queue.finish(chain, written)?;
            requests += 1;
        }
        Ok(Served {
            requests,
            interrupt: queue.must_interrupt()?,
        })
    }

    /// Does a request; says how many bytes were written to the driver. One without room for a
    /// result cannot be answered.
    fn request(&mut self, memory: &impl Memory, chain: &Chain) -> u32 {
        let Some(data) = chain.writable_len().checked_sub(1) else {
            return 0;
        };
        let result = match self.operate(memory, chain, data) {
            Ok(()) => status::OK,
            Err(result) => {
                // Bytes that count as written are.
                self.buffer.fill(0);
                let _ = parts(&mut self.buffer, data, |zeros, at| {
                    chain.write(memory, at, zeros).map_err(gone)
                });
                result
            }
        };
        match chain.write(memory, data, &[result]) {
            Ok(()) => u32::try_from(data + 1).unwrap_or(u32::MAX),
            Err(_) => 0,
        }
    }

    /// Does a request that has room for `data` bytes and a result.
    fn operate(&mut self, memory: &impl Memory, chain: &Chain, data: u64) -> Result<(), Refused> {
        // Copied once: what is checked is what counts.
        let mut header = [0; HEADER as usize];
        chain.read(memory, 0, &mut header).map_err(gone)?;
        let number = u128::from_le_bytes(header);
        let (kind, sector) = (number as u32, (number >> 64) as u64);
        let payload = chain.readable_len() - HEADER;
        match kind {
            kind::READ => {
                let start = self.within(sector, data)?;
                let Self { backend, buffer } = self;
                parts(buffer, data, |buffer, at| {
                    backend.read(start + at, buffer).map_err(failed)?;
                    chain.write(memory, at, buffer).map_err(gone)
                })
            }
            kind::WRITE => {
                let start = self.within(sector, payload)?;
                let Self { backend, buffer } = self;
                parts(buffer, payload, |buffer, at| {
                    chain.read(memory, HEADER + at, buffer).map_err(gone)?;
                    backend.write(start + at, buffer).map_err(failed)
                })
            }
            kind::FLUSH => self.backend.flush().map_err(failed),
            kind::GET_ID if data >= ID as u64 => {
                let id = self.backend.id();
                chain.write(memory, 0, &id).map_err(gone)
            }
            kind::DISCARD | kind::WRITE_ZEROES if payload == RANGE => {
                let mut range = [0; RANGE as usize];
                chain.read(memory, HEADER, &mut range).map_err(gone)?;
                let number = u128::from_le_bytes(range);
                let sectors = (number >> 64) as u32;
                let flags = (number >> 96) as u32;
                let len = u64::from(sectors) * SECTOR;
                if sectors > RANGE_SECTORS {
                    return Err(status::IO_ERROR);
                }
                let start = self.within(number as u64, len)?;
                match (kind, flags) {
                    (kind::DISCARD, 0) => self.backend.discard(start, len),
                    (kind::WRITE_ZEROES, 0) => {
                        self.backend.write_zeroes(start, len, Unmap::Forbidden)
                    }
                    (kind::WRITE_ZEROES, UNMAP) => {
                        self.backend.write_zeroes(start, len, Unmap::Allowed)
                    }
                    // Section 5.2.6.2: flags that are not known are not supported.
                    _ => return Err(status::UNSUPPORTED),
                }
                .map_err(failed)
            }
            kind::GET_ID | kind::DISCARD | kind::WRITE_ZEROES => Err(status::IO_ERROR),
            _ => Err(status::UNSUPPORTED),
        }
    }

    /// The offset of a sector, if so many bytes from there on are whole sectors of the disk.
    fn within(&self, sector: u64, len: u64) -> Result<u64, Refused> {
        let start = sector.checked_mul(SECTOR);
        start
            .filter(|start| {
                let end = start.checked_add(len);
                len.is_multiple_of(SECTOR) && end.is_some_and(|end| end <= self.backend.capacity())
            })
            .ok_or(status::IO_ERROR)
    }
}

/// Calls `each` with the buffer and an offset, for every part of so many bytes.
fn parts(
    buffer: &mut [u8],
    len: u64,
    mut each: impl FnMut(&mut [u8], u64) -> Result<(), Refused>,
) -> Result<(), Refused> {
    let mut at = 0;
    while at < len {
        let now = (len - at).min(buffer.len() as u64);
        each(&mut buffer[..now as usize], at)?;
        at += now;
    }
    Ok(())
}

fn failed(_: BackendError) -> Refused {
    status::IO_ERROR
}

fn gone(_: Unreachable) -> Refused {
    status::IO_ERROR
}
