//! Writes of blocks that lie together, made one.

use alloc::vec::Vec;

use crate::Result;
use crate::device::Device;

/// Most bytes of a write.
const MAX: usize = 128 << 10;

/// A write that is being collected.
pub struct Gather<'a> {
    device: &'a dyn Device,
    offset: u64,
    len: usize,
    parts: Vec<&'a [u8]>,
}

impl<'a> Gather<'a> {
    /// Nothing yet.
    pub fn new(device: &'a dyn Device) -> Self {
        Self {
            device,
            offset: 0,
            len: 0,
            parts: Vec::new(),
        }
    }

    /// Adds bytes; what does not lie beside them is written.
    pub fn push(&mut self, offset: u64, bytes: &'a [u8]) -> Result<()> {
        let follows = self.offset + self.len as u64 == offset;
        // Only whole blocks are written: a part of one is followed by its rest.
        let is_full = self.len >= MAX && self.len.is_multiple_of(1024);
        if !follows || is_full {
            self.finish()?;
        }
        if self.parts.is_empty() {
            self.offset = offset;
        }
        fallible::push(&mut self.parts, bytes)?;
        self.len += bytes.len();
        Ok(())
    }

    /// Writes what was collected.
    pub fn finish(&mut self) -> Result<()> {
        if self.parts.is_empty() {
            return Ok(());
        }
        let done = self.device.write_parts(self.offset, &self.parts);
        self.parts.clear();
        self.len = 0;
        done
    }
}
