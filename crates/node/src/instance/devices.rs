//! PCI functions of an instance (`docs/devices.md`).

use alloc::boxed::Box;

use abi::dev::{self, AddDevice, Status};
use abi::errno::Errno;
use devices::{AssignError, ClaimError, DmaFault, Domain, NoDomain, NotConfined, Owner, PciDevice};
use guard::partition::{self, MAX_FUNCTIONS, Partition};

use super::{Instance, Refused};
use crate::brief::lock_briefly;
use crate::dma_faults::Shown;

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
            AssignError::NotConfined(reason) => reason.into(),
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
            partition::AssignError::Mixed => Self::new(dev::REASON_DMA_MIXED, Errno::EPERM),
            partition::AssignError::NoMemory => Errno::ENOMEM.into(),
        }
    }
}

impl From<NotConfined> for Refused {
    fn from(reason: NotConfined) -> Self {
        let (reason, errno) = match reason {
            NotConfined::NoUnit => (dev::REASON_IOMMU, Errno::EPERM),
            NotConfined::Reserved => (dev::REASON_DMA_RESERVED, Errno::EPERM),
            NotConfined::Shared => (dev::REASON_DMA_SHARED, Errno::EPERM),
            NotConfined::Interrupts => (dev::REASON_DMA_INTERRUPTS, Errno::EPERM),
            NotConfined::NoEntries => (dev::REASON_DMA_UNANSWERED, Errno::EBUSY),
            NotConfined::Unanswered => (dev::REASON_DMA_UNANSWERED, Errno::EIO),
        };
        Self::new(reason, errno)
    }
}

impl From<NoDomain> for Refused {
    fn from(error: NoDomain) -> Self {
        match error {
            NoDomain::NoUnit => NotConfined::NoUnit.into(),
            NoDomain::Numbers => Self::new(dev::REASON_DMA_UNANSWERED, Errno::EBUSY),
            NoDomain::NoMemory => Errno::ENOMEM.into(),
        }
    }
}

/// Looks whether something confines a function that nobody has.
fn check_confined(device: &'static PciDevice) -> Result<(), Refused> {
    device.check_confined()?;
    let bypasses = crate::BYPASSES_IOMMU.get().ok_or(Errno::ENODEV)?;
    match bypasses(device) {
        Ok(false) => Ok(()),
        Ok(true) => Err(Refused::new(dev::REASON_DMA_BYPASSES, Errno::EPERM)),
        Err(ClaimError::Taken(owner)) => Err(AssignError::Taken(owner).into()),
        Err(ClaimError::NoDevice) => Err(AssignError::NoDevice.into()),
    }
}

/// The function of the machine that has this number.
fn function(number: u32) -> Option<&'static PciDevice> {
    let address = pci::Address::from_number(number);
    let all = devices::pci_devices();
    let index = all.binary_search_by_key(&address, |device| device.function().address);
    Some(&all[index.ok()?])
}

/// Takes over the functions that an instance has of the supervisor before this one, and has its
/// status say so.
///
/// # Panics
/// When one of them is not found, since nobody could say that it reaches no memory; when there is
/// no memory.
pub(crate) fn adopt(partition: &mut Partition, numbers: &[u32], status: &mut Status) {
    let mut domain = None;
    for number in numbers {
        let device = function(*number).expect("a function of an instance is not found");
        // If it is another one's by now, this one has nobody who runs.
        let Some(given) = device.adopt(partition.id(), &mut domain) else {
            continue;
        };
        if !given.is_confined() {
            status.device_flags |= dev::DEVICE_UNSAFE_DMA;
        }
        partition.adopt_function(Box::new(given));
        if let Some(place) = status.devices.get_mut(status.device_count as usize) {
            *place = *number;
            status.device_count += 1;
        }
    }
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
        let (state, before, domain) = {
            let record = lock_briefly(&self.record);
            let status = &record.status;
            (status.state, status.device_count, record.domain.clone())
        };
        if state != dev::STATE_CREATED {
            return Err(Errno::EBUSY.into());
        }
        // The record is not locked meanwhile.
        let domain = self.domain_for(device, call.flags, before > 0, domain)?;
        let given = device.assign(self.id, domain.as_ref())?;
        let mut record = self.record.lock();
        let record = &mut *record;
        if record.status.state != dev::STATE_CREATED {
            return Err(Errno::EBUSY.into());
        }
        let partition = record.partition.as_mut().ok_or(Errno::EBUSY)?;
        partition.assign(Box::new(given))?;
        let confines = domain.is_some();
        record.domain = domain;
        let status = &mut record.status;
        let mut places = status.devices.iter_mut();
        if let Some(place) = places.nth(status.device_count as usize) {
            *place = call.function;
            status.device_count += 1;
        }
        let confined = match confines {
            true => "confined to its memory",
            false => "whose DMA nothing confines",
        };
        if !confines {
            status.device_flags |= dev::DEVICE_UNSAFE_DMA;
        }
        log::info!(
            "instance {} ({}) has PCI function {}, {confined}",
            self.id,
            self.label(),
            device.function().address
        );
        Ok(())
    }

    /// The domain that is to confine a function, which may be the one that the instance has; `None`
    /// if nothing is to, as nothing can, and the caller has said that this is well.
    fn domain_for(
        &self,
        device: &'static PciDevice,
        flags: u32,
        has_others: bool,
        domain: Option<Domain>,
    ) -> Result<Option<Domain>, Refused> {
        // All functions of an instance use addresses of one kind.
        let is_free = has_others && domain.is_none();
        let is_unsafe = flags & dev::DEVICE_UNSAFE_DMA != 0;
        if is_free && is_unsafe {
            return Ok(None);
        }
        match (check_confined(device), domain) {
            (Ok(()), Some(domain)) => Ok(Some(domain)),
            (Ok(()), None) if is_free => Err(Refused::new(dev::REASON_DMA_MIXED, Errno::EPERM)),
            (Ok(()), None) => Ok(Some(Domain::new()?)),
            (Err(refused), _) if refused.errno != Errno::EPERM || !is_unsafe => Err(refused),
            (Err(_), None) => Ok(None),
            (Err(_), Some(_)) => Err(Refused::new(dev::REASON_DMA_MIXED, Errno::EPERM)),
        }
    }

    /// Counts an access that a function of the instance was refused, and says so when there were
    /// twice as many as last time.
    pub(crate) fn note_dma_fault(&self, fault: &DmaFault) {
        let count = {
            let status = &mut lock_briefly(&self.record).status;
            status.dma_faults = status.dma_faults.saturating_add(1);
            status.dma_faults
        };
        if count.is_power_of_two() {
            log::warn!(
                "instance {} ({}): PCI function {} was refused {}; {count} so far",
                self.id,
                self.label(),
                fault.function,
                Shown(fault)
            );
            self.tell(dev::EVENT_DMA_FAULT, count.into());
        }
    }
}
