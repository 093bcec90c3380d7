//! What confined functions were refused: units report it by an interrupt.

use abi::live::DEVICE_VECTORS;
use guard::cpu::CpuId;
use guard::device::{self, Message};
pub use iommu::Access;
use pci::Address;

use crate::vector::{NoVector, Slot, take};
use crate::{Owner, pci_device, pci_devices};

/// An access that a function was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DmaFault {
    /// The function, or who used its number.
    pub function: Address,
    /// Owner of the function now; `None` if nobody has it.
    pub owner: Option<Owner>,
    /// Kind of the access.
    pub access: Access,
    /// Page that it asked for, by the address that it used; of an interrupt what its unit tells.
    pub address: u64,
    /// Reason, by the number that the maker of its unit has for it.
    pub reason: u8,
}

/// The interrupt by which units report. There is one holder, for good.
pub struct DmaFaults {
    slot: &'static Slot,
    message: Message,
}

impl DmaFaults {
    /// Takes a vector of the first CPU for it.
    ///
    /// # Errors
    /// [`NoVector`], also if there is no unit.
    pub fn new() -> Result<Self, NoVector> {
        // The units are found with the functions.
        if pci_devices().next().is_none() || iommu::units() == 0 {
            return Err(NoVector);
        }
        let cpu = CpuId(0);
        let (vector, slot) = take(cpu, DEVICE_VECTORS).ok_or(NoVector)?;
        match device::message(cpu, vector) {
            Some(message) => Ok(Self { slot, message }),
            None => {
                slot.free();
                Err(NoVector)
            }
        }
    }

    /// Waits until a unit has refused something. Afterwards they are silent until the next call.
    pub fn wait(&self) {
        // SAFETY: the guard's message, by the vector that was taken for it.
        let has_some = unsafe { iommu::report_faults(self.message) };
        if !has_some {
            self.slot.event().wait();
        }
        iommu::rest_from_faults();
    }

    /// Calls `each` for what was refused and not taken yet, as much as the units had room to note:
    /// a number that the machine sets. True if there was more.
    pub fn take(&self, mut each: impl FnMut(DmaFault)) -> bool {
        iommu::take_faults(|refused| {
            let function = refused.function;
            each(DmaFault {
                function,
                owner: pci_device(function).and_then(|device| device.ownership.now()),
                address: refused.address,
                access: refused.access,
                reason: refused.reason,
            });
        })
    }
}
