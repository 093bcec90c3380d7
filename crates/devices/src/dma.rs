//! Memory that a function reads and writes.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};

use guard::device::{self, DmaBlock};
use guard::mem::Page;

use crate::claim::Claim;

/// Address of a byte of memory for a device, for its registers and rings. Nothing is made from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeviceAddress(u64);

impl DeviceAddress {
    /// The number that the device is told.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0
    }
}

/// Memory in one piece for a driver and its device, such as rings.
///
/// When it is dropped it is not free yet: the claim holds it until the function has been stopped.
#[derive(Debug)]
pub struct DmaMemory {
    /// There until it is dropped.
    block: Option<DmaBlock>,
    claim: Arc<Claim>,
}

impl Claim {
    /// Allocates zeroes, so many bytes or more; `None` without so much memory in one piece.
    #[must_use]
    pub fn memory(self: &Arc<Self>, bytes: usize) -> Option<DmaMemory> {
        let block = DmaBlock::zeroed(bytes)?;
        {
            let mut held = self.held.lock();
            // Room for all that is out, so that none is lost when it comes back.
            let out = held.out + 1;
            held.blocks.try_reserve(out).ok()?;
            held.out = out;
        }
        Some(DmaMemory {
            block: Some(block),
            claim: self.clone(),
        })
    }
}

impl DmaMemory {
    fn block(&self) -> &DmaBlock {
        self.block.as_ref().expect("there until it is dropped")
    }

    /// Number of bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.block().bytes()
    }

    /// Address of the first byte for the device; the others follow.
    #[must_use]
    pub fn address(&self) -> DeviceAddress {
        DeviceAddress(self.block().bus_address())
    }

    /// Loads a number in one access, with acquire order; `None` outside of the memory, or at an odd
    /// offset.
    #[must_use]
    pub fn load16(&self, offset: usize) -> Option<u16> {
        self.block().load16(offset)
    }

    /// Stores a number in one access, with release order; `None` as with [`Self::load16`].
    pub fn store16(&self, offset: usize, value: u16) -> Option<()> {
        self.block().store16(offset, value)
    }

    /// Copies bytes out; `None`, with nothing copied, if they are not all in the memory.
    pub fn read(&self, offset: usize, buf: &mut [u8]) -> Option<()> {
        self.block().read(offset, buf)
    }

    /// Copies bytes in; `None`, with nothing copied, if they do not all fit.
    pub fn write(&self, offset: usize, buf: &[u8]) -> Option<()> {
        self.block().write(offset, buf)
    }
}

impl Drop for DmaMemory {
    fn drop(&mut self) {
        let mut held = self.claim.held.lock();
        held.out -= 1;
        held.blocks.extend(self.block.take());
    }
}

/// A page that a device was told of, for one transfer. It has a reference, so that the page is not
/// free whoever else drops theirs.
///
/// The driver says when the device has done with it ([`Self::completed`]). One that is dropped
/// without that is *leaked and said so*: the device may still write to it.
#[derive(Debug)]
pub struct DmaPage(Option<Page>);

impl DmaPage {
    /// Lends a page to a device.
    #[must_use]
    pub fn lend(page: Page) -> Self {
        Self(Some(page))
    }

    /// Address of the page for the device.
    #[must_use]
    pub fn address(&self) -> DeviceAddress {
        let page = self.0.as_ref().expect("there until it is completed");
        DeviceAddress(device::bus_address(page))
    }

    /// Takes the page back: the device has said that it has done with it, or was stopped.
    pub fn completed(mut self) {
        self.0 = None;
    }
}

impl Drop for DmaPage {
    fn drop(&mut self) {
        static LEAKED: AtomicU64 = AtomicU64::new(0);
        if let Some(page) = self.0.take() {
            core::mem::forget(page);
            let count = LEAKED.fetch_add(1, Ordering::Relaxed) + 1;
            log::error!("{count} pages are lost to devices that were not heard of again");
        }
    }
}
