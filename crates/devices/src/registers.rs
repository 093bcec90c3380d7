//! Registers of a function: a range of what one base address register covers.

use alloc::sync::Arc;

use guard::device::{self, MmioRegion, Register};
use pci::{Bar, BarKind, Function};

use crate::claim::Claim;
use crate::pci_devices;

/// There are no such registers, or not for a driver, or they cannot be mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRegisters;

/// Registers of a claimed function. Dropping them ends the mapping on all CPUs.
#[derive(Debug)]
pub struct Registers {
    region: MmioRegion,
    claim: Arc<Claim>,
}

impl Claim {
    /// Maps `len` bytes of registers, from `offset` on in what base address register `bar` covers.
    ///
    /// # Errors
    /// [`NoRegisters`], also where interrupt messages are told, which are writes to memory, and
    /// where another function answers, too.
    pub fn registers(
        self: &Arc<Self>,
        bar: u8,
        offset: u64,
        len: usize,
    ) -> Result<Registers, NoRegisters> {
        let is_table = self.msix.as_ref().is_some_and(|msix| {
            let meets = |table: &pci::MsixTable| table.meets(bar, offset, len as u64);
            meets(&msix.table) || meets(&msix.pending)
        });
        if is_table {
            return Err(NoRegisters);
        }
        Ok(Registers {
            region: self.map(bar, offset, len)?,
            claim: self.clone(),
        })
    }

    /// Maps registers of the function, whatever they are for.
    pub(crate) fn map(&self, bar: u8, offset: u64, len: usize) -> Result<MmioRegion, NoRegisters> {
        let function = &self.device.function;
        let bar = function.bars.get(usize::from(bar)).copied().flatten();
        let bar = bar.filter(is_memory).ok_or(NoRegisters)?;
        let end = offset.checked_add(len as u64).ok_or(NoRegisters)?;
        let at = bar.address.checked_add(offset).ok_or(NoRegisters)?;
        if len == 0 || end > bar.size {
            return Err(NoRegisters);
        }
        let (first, last) = (at, bar.address + (end - 1));
        if !answers_alone(function, first, last) {
            log::warn!(
                "{} answers where another PCI function does",
                function.address
            );
            return Err(NoRegisters);
        }
        // SAFETY: the function answers there, and no other: its base address register says so,
        // which nobody writes to. What its registers have it do to memory it can do only while it
        // may reach memory, which a driver lets it: the memory that it tells it of is in `dma`.
        let region = unsafe { device::map(at, len) };
        region.map_err(|error| {
            log::warn!("cannot map registers of {}: {error:?}", function.address);
            NoRegisters
        })
    }
}

fn is_memory(bar: &Bar) -> bool {
    matches!(bar.kind, BarKind::Memory32 | BarKind::Memory64) && bar.address != 0
}

/// Whether no other function answers at these addresses.
pub(crate) fn answers_alone(function: &Function, first: u64, last: u64) -> bool {
    let others = pci_devices().filter(|other| other.function.address != function.address);
    let mut bars = others
        .flat_map(|other| other.function.bars.iter().flatten())
        .filter(|bar| is_memory(bar));
    !bars.any(|bar| first <= bar.address.saturating_add(bar.size - 1) && bar.address <= last)
}

impl Registers {
    /// Number of bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.region.bytes()
    }

    /// Reads a register.
    ///
    /// # Panics
    /// This and the following, if it is not one of these registers, or not aligned.
    #[must_use]
    pub fn read<T: Register>(&self, offset: usize) -> T {
        self.region.read(offset)
    }

    /// Writes a register.
    pub fn write<T: Register>(&self, offset: usize, value: T) {
        self.region.write(offset, value);
    }

    /// The claim that they belong to.
    #[must_use]
    pub fn claim(&self) -> &Arc<Claim> {
        &self.claim
    }
}

impl Drop for Registers {
    fn drop(&mut self) {
        // SAFETY: it is what `device::map` returned, and no copy of it was given away.
        unsafe { device::unmap(self.region) };
    }
}
