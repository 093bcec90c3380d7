//! Writes of blocks that lie together, made one.

use alloc::vec::Vec;

use abi::errno::Errno;

use crate::Result;
use crate::device::Device;

/// Most bytes of a write.
const MAX: usize = 128 << 10;

/// A write that is being collected.
pub struct Gather<'a> {
    device: &'a dyn Device,
    offset: u64,
    bytes: Vec<u8>,
}

impl<'a> Gather<'a> {
    /// Nothing yet.
    pub fn new(device: &'a dyn Device) -> Self {
        Self {
            device,
            offset: 0,
            bytes: Vec::new(),
        }
    }

    /// Adds bytes; what does not lie beside them is written.
    pub fn push(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        let follows = self.offset + self.bytes.len() as u64 == offset;
        // Only whole blocks are written: a part of one is followed by its rest.
        let is_full = self.bytes.len() >= MAX && self.bytes.len().is_multiple_of(1024);
        if !self.bytes.is_empty() && (!follows || is_full) {
            self.finish()?;
        }
        if self.bytes.is_empty() {
            self.offset = offset;
        }
        let reserved = self.bytes.try_reserve(bytes.len());
        reserved.map_err(|_| Errno::ENOMEM)?;
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    /// Writes what was collected.
    pub fn finish(&mut self) -> Result<()> {
        if self.bytes.is_empty() {
            return Ok(());
        }
        let done = self.device.write(self.offset, &self.bytes);
        self.bytes.clear();
        done
    }
}
