//! PCI functions of an instance (`docs/devices.md`).

use alloc::boxed::Box;

use abi::dev::{self, AddDevice};
use abi::errno::Errno;
use devices::{AssignError, Owner, PciDevice};
use guard::partition::{self, MAX_FUNCTIONS};

use super::{Instance, Refused};
use crate::brief::lock_briefly;

const _: () = assert!(MAX_FUNCTIONS == dev::MAX_DEVICES);

impl From<AssignError> for Refused {
    fn from(error: AssignError) -> Self {
        match error {
            AssignError::Taken(Owner::Driver) => Self::new(dev::REASON_DRIVER, Errno::EBUSY),
            AssignError::Taken(Owner::Instance(owner)) => Self {
                owner,
                ..Self::new(dev::REASON_OWNER, Errno::EBUSY)
            },
            AssignError::Taken(Owner::Stuck) | AssignError::NotReset => {
                Self::new(dev::REASON_NOT_RESET, Errno::EIO)
            }
            AssignError::NoDevice => Self::new(dev::REASON_BRIDGE, Errno::EOPNOTSUPP),
            AssignError::NoReset => Self::new(dev::REASON_NO_RESET, Errno::EOPNOTSUPP),
            AssignError::NoMessages => Self::new(dev::REASON_NO_MESSAGES, Errno::EOPNOTSUPP),
            AssignError::NoRegisters => Self::new(dev::REASON_NO_REGISTERS, Errno::EOPNOTSUPP),
        }
    }
}

impl From<partition::AssignError> for Refused {
    fn from(error: partition::AssignError) -> Self {
        match error {
            partition::AssignError::Started => Errno::EBUSY.into(),
            partition::AssignError::Full => Self::new(dev::REASON_DEVICES, Errno::ENOSPC),
            partition::AssignError::Place(_) => {
                Self::new(dev::REASON_NO_REGISTERS, Errno::EOPNOTSUPP)
            }
            partition::AssignError::NoMemory => Errno::ENOMEM.into(),
        }
    }
}

/// The function of the machine that has this number.
fn function(number: u32) -> Option<&'static PciDevice> {
    let address = pci::Address::from_number(number);
    let all = devices::pci_devices();
    let index = all.binary_search_by_key(&address, |device| device.function().address);
    Some(&all[index.ok()?])
}

impl Instance {
    /// Gives the instance a function, which it has from its start on. Sleeps while that is reset.
    ///
    /// # Errors
    /// Why not; nothing was changed.
    pub(crate) fn add_device(&self, call: &AddDevice) -> Result<(), Refused> {
        if call.flags & !dev::DEVICE_UNSAFE_DMA != 0 {
            return Err(Errno::EINVAL.into());
        }
        let device =
            function(call.function).ok_or(Refused::new(dev::REASON_NO_FUNCTION, Errno::ENODEV))?;
        // There is no support for IOMMUs yet: what is given may reach everything.
        if call.flags & dev::DEVICE_UNSAFE_DMA == 0 {
            return Err(Refused::new(dev::REASON_IOMMU, Errno::EPERM));
        }
        if lock_briefly(&self.record).status.state != dev::STATE_CREATED {
            return Err(Errno::EBUSY.into());
        }
        // The record is not locked meanwhile.
        let given = device.assign(self.id)?;
        let mut record = self.record.lock();
        let record = &mut *record;
        if record.status.state != dev::STATE_CREATED {
            return Err(Errno::EBUSY.into());
        }
        let partition = record.partition.as_mut().ok_or(Errno::EBUSY)?;
        partition.assign(Box::new(given))?;
        let status = &mut record.status;
        let mut places = status.devices.iter_mut();
        if let Some(place) = places.nth(status.device_count as usize) {
            *place = call.function;
            status.device_count += 1;
        }
        status.device_flags |= call.flags;
        log::info!(
            "instance {} ({}) has PCI function {}, whose DMA nothing confines",
            self.id,
            self.label(),
            device.function().address
        );
        Ok(())
    }
}
