//! What the file system needs of a disk.

use crate::Result;

/// A disk: bytes that are read and written, and a cache of its own that a flush empties.
///
/// A write that returned may be lost with the power until a flush that began later has returned;
/// what is lost may be any part of the writes since, each in pieces of a sector. Offsets and
/// lengths are multiples of 1,024 bytes.
pub trait Device: Send + Sync {
    /// Size in bytes.
    fn size(&self) -> u64;

    /// Whether it refuses to be changed.
    fn is_read_only(&self) -> bool;

    /// Reads bytes.
    ///
    /// # Errors
    /// `EIO`, or what the device says; the buffer's contents are then undefined.
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()>;

    /// Writes bytes.
    ///
    /// # Errors
    /// `EIO`, or what the device says; any part may have been written.
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()>;

    /// Writes bytes that lie one after the other on the disk and not in memory. Only all of them
    /// together are as long as a write is.
    ///
    /// # Errors
    /// As [`Device::write`]; `ENOMEM`, nothing was written then.
    fn write_parts(&self, offset: u64, parts: &[&[u8]]) -> Result<()> {
        let mut bytes = fallible::with_capacity(parts.iter().map(|part| part.len()).sum())?;
        parts.iter().for_each(|part| bytes.extend_from_slice(part));
        self.write(offset, &bytes)
    }

    /// Writes bytes that are on the medium when this returns; of others it says nothing.
    ///
    /// # Errors
    /// `EIO`, or what the device says; any part may have been written.
    fn write_through(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.write(offset, bytes)?;
        self.flush()
    }

    /// Brings all writes that have returned to the medium.
    ///
    /// # Errors
    /// `EIO`: it is not known what is on the medium.
    fn flush(&self) -> Result<()>;
}
