//! A disk in memory, for our own ext4 on the host.

use std::sync::{Arc, Mutex};

use abi::errno::Errno;
use ext4::Device;

/// A disk in memory.
pub struct Memory(Mutex<Vec<u8>>);

impl Memory {
    /// One with these bytes.
    pub fn new(bytes: Vec<u8>) -> Arc<Self> {
        Arc::new(Self(Mutex::new(bytes)))
    }

    /// A copy of all bytes.
    pub fn bytes(&self) -> Vec<u8> {
        self.with(|bytes| bytes.clone())
    }

    fn with<R>(&self, work: impl FnOnce(&mut Vec<u8>) -> R) -> R {
        work(&mut self.0.lock().expect("nobody panics with it"))
    }

    fn part<R>(
        &self,
        offset: u64,
        len: usize,
        work: impl FnOnce(&mut [u8]) -> R,
    ) -> ext4::Result<R> {
        self.with(|bytes| {
            let part = bytes.get_mut(offset as usize..offset as usize + len);
            Ok(work(part.ok_or(Errno::EIO)?))
        })
    }
}

impl Device for Memory {
    fn size(&self) -> u64 {
        self.with(|bytes| bytes.len() as u64)
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> ext4::Result<()> {
        self.part(offset, buf.len(), |bytes| buf.copy_from_slice(bytes))
    }

    fn write(&self, offset: u64, new: &[u8]) -> ext4::Result<()> {
        self.part(offset, new.len(), |bytes| bytes.copy_from_slice(new))
    }

    fn flush(&self) -> ext4::Result<()> {
        Ok(())
    }
}
