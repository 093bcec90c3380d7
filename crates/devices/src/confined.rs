//! Whether something confines what a function reaches: a unit translates for it, and all that it
//! sends gets there as its own.

use core::fmt;

use iommu::Obstacle;

use crate::{PciDevice, pci_device, pci_devices};

/// Reason why nothing confines a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotConfined {
    /// The machine has no unit, or none that translates for it.
    NoUnit,
    /// The firmware has it use memory of its own (RMRR), so it cannot be kept from that.
    Reserved,
    /// Nothing confines what it interrupts.
    Interrupts,
    /// A function or a bridge beside its way to the unit may take what it sends, or sends in its
    /// name.
    Shared,
    /// The unit has no entries left for its interrupts.
    NoEntries,
    /// The unit of the function does not answer.
    Unanswered,
}

impl fmt::Display for NotConfined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoUnit => "no IOMMU translates for it",
            Self::Reserved => "it has memory reserved by the firmware",
            Self::Interrupts => "nothing confines what it interrupts",
            Self::Shared => "nothing keeps it apart from its neighbours",
            Self::NoEntries => "the IOMMU has no room for its interrupts",
            Self::Unanswered => "the IOMMU does not answer",
        })
    }
}

impl From<Obstacle> for NotConfined {
    fn from(obstacle: Obstacle) -> Self {
        match obstacle {
            Obstacle::NoUnit => Self::NoUnit,
            Obstacle::Reserved => Self::Reserved,
            Obstacle::Interrupts => Self::Interrupts,
            Obstacle::Shared => Self::Shared,
            Obstacle::Unanswered => Self::Unanswered,
        }
    }
}

impl PciDevice {
    /// Looks whether something confines the function, and has the bridges before it lead all that
    /// it sends to the unit.
    ///
    /// # Errors
    /// [`NotConfined`].
    pub fn check_confined(&self) -> Result<(), NotConfined> {
        iommu::check(self.function.address)?;
        if self.is_apart() {
            Ok(())
        } else {
            Err(NotConfined::Shared)
        }
    }

    /// Whether what it sends gets to the unit, as its own: all functions of the device, and all
    /// bridges on the way, lead it up.
    fn is_apart(&self) -> bool {
        let address = self.function.address;
        // A virtual function that could send to its siblings has access control (PCI Express Base
        // 5.0, 6.12.1.2), which not each physical function of several says of itself.
        if self.function.physical.is_some() && !pci::has_access_control(&self.registers) {
            return self.leads_up();
        }
        let has_siblings = pci_devices().any(|other| {
            let at = other.function.address;
            let is_same_device = (at.segment, at.bus, at.device())
                == (address.segment, address.bus, address.device());
            is_same_device && at != address
        });
        if has_siblings && !pci::redirect(&self.registers) {
            return false;
        }
        self.leads_up()
    }

    /// Whether all bridges on its way lead up what it sends.
    fn leads_up(&self) -> bool {
        let mut upstream = self.function.upstream;
        while let Some(bridge) = upstream {
            let Some(bridge) = pci_device(bridge) else {
                return false;
            };
            if !pci::leads_up(&bridge.registers) {
                return false;
            }
            upstream = bridge.function.upstream;
        }
        true
    }
}
