//! PCI functions of an instance (`docs/devices.md`).

use alloc::boxed::Box;
use alloc::sync::Arc;

use abi::dev::{self, AddDevice, Status};
use abi::errno::Errno;
use abi::live::Refusal;
use devices::{
    AssignError, ClaimError, DmaFault, Domain, NoDomain, NotConfined, Owner, PciDevice,
    StillReaches,
};
use guard::partition::{self, GrowError, InsertError, Leaving, MAX_FUNCTIONS, Partition, Settled};

use super::{Instance, InstanceState, Refused};
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
            AssignError::Taken(Owner::Quarantine | Owner::Elsewhere) | AssignError::NotReset => {
                Self::new(dev::REASON_NOT_RESET, Errno::EIO)
            }
            AssignError::Quarantine(owner) => Self {
                owner,
                ..Self::new(dev::REASON_QUARANTINE, Errno::EBUSY)
            },
            AssignError::NoDevice => Self::new(dev::REASON_BRIDGE, Errno::EOPNOTSUPP),
            AssignError::NoReset => Self::new(dev::REASON_NO_RESET, Errno::EOPNOTSUPP),
            AssignError::NoMessages => Self::new(dev::REASON_NO_MESSAGES, Errno::EOPNOTSUPP),
            AssignError::NoRegisters => Self::new(dev::REASON_NO_REGISTERS, Errno::EOPNOTSUPP),
            AssignError::Physical => Self::new(dev::REASON_PHYSICAL, Errno::EOPNOTSUPP),
            AssignError::NotConfined(reason) => reason.into(),
        }
    }
}

impl From<partition::AssignError> for Refused {
    fn from(error: partition::AssignError) -> Self {
        match error {
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
    devices::pci_device(pci::Address::from_number(number))
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

impl From<GrowError> for Refused {
    fn from(error: GrowError) -> Self {
        match error {
            GrowError::Stopped => Errno::ESRCH.into(),
            GrowError::Pending => Self::new(dev::REASON_PENDING, Errno::EBUSY),
            _ => Errno::ENOMEM.into(),
        }
    }
}

impl From<InsertError> for Refused {
    fn from(error: InsertError) -> Self {
        match error {
            InsertError::Change(error) => error.into(),
            InsertError::Assign(error) => error.into(),
        }
    }
}

/// Says whether any instance could have a function, and whether something confines it.
///
/// # Errors
/// Why not.
pub(crate) fn check(call: &AddDevice) -> Result<(), Refused> {
    let device = found(call.function)?;
    device.check_assignable()?;
    match device.check_confined() {
        Err(_) if call.flags & dev::DEVICE_UNSAFE_DMA != 0 => Ok(()),
        checked => Ok(checked?),
    }
}

/// Whole microseconds of a time.
fn microseconds(ns: u64) -> u32 {
    u32::try_from(ns / 1000).unwrap_or(u32::MAX)
}

fn found(number: u32) -> Result<&'static PciDevice, Refused> {
    function(number).ok_or(Refused::new(dev::REASON_NO_FUNCTION, Errno::ENODEV))
}

impl InstanceState {
    /// Looks whether a function may come to the instance or leave it; true if it runs.
    ///
    /// # Errors
    /// Why not.
    fn check_devices_change(&self) -> Result<bool, Refused> {
        match self.status.state {
            dev::STATE_CREATED => return Ok(false),
            dev::STATE_RUNNING if !self.reclaiming => {}
            _ => return Err(Errno::ESRCH.into()),
        }
        if self.resizing.staging || self.resizing.pending.is_some() {
            return Err(GrowError::Pending.into());
        }
        if self.status.paused != dev::PAUSED_NO {
            return Err(Refused::new(dev::REASON_PAUSED, Errno::EBUSY));
        }
        Ok(true)
    }

    /// Takes a function out of the list of those that the instance has.
    fn forget_device(&mut self, number: u32) {
        let status = &mut self.status;
        let count = MAX_FUNCTIONS.min(status.device_count as usize);
        if let Some(at) = status.devices[..count]
            .iter()
            .position(|one| *one == number)
        {
            status.devices[at..count].rotate_left(1);
            status.devices[count - 1] = 0;
            status.device_count -= 1;
        }
    }

    /// A change of its devices was told to the instance.
    fn begin_device_change(&mut self, epoch: u64) {
        (self.resizing.last, self.resizing.pending) = (epoch, Some(epoch));
    }
}

impl Instance {
    /// Gives the instance a function: one that was created has it from its start on, one that runs
    /// when it has answered the change whose number this returns; else that is 0. Sleeps while the
    /// function is reset.
    ///
    /// # Errors
    /// Why not; nothing was changed.
    pub(crate) fn add_device(&self, call: &mut AddDevice) -> Result<u64, Refused> {
        if call.flags & !(dev::DEVICE_UNSAFE_DMA | dev::DEVICE_DRY_RUN) != 0 {
            return Err(Errno::EINVAL.into());
        }
        let is_dry_run = call.flags & dev::DEVICE_DRY_RUN != 0;
        let device = found(call.function)?;
        let (runs, before, domain) = {
            let mut record = lock_briefly(&self.record);
            let runs = record.check_devices_change()?;
            record.resizing.staging |= runs && !is_dry_run;
            (runs, record.status.device_count, record.domain.clone())
        };
        // The record is not locked meanwhile.
        let flags = call.flags & dev::DEVICE_UNSAFE_DMA;
        let confined = |()| self.domain_for(device, flags, before > 0, domain);
        let reset_ns = device.resetting_ns();
        let recovered = match is_dry_run {
            true => Ok(()),
            false => device.recover(Owner::Instance(self.id)),
        };
        let recovered = recovered.map_err(|StillReaches| AssignError::NotReset);
        let free = recovered.and_then(|()| device.check_assignable());
        let free = free.map_err(Refused::from);
        let free = match before as usize {
            MAX_FUNCTIONS.. => Err(partition::AssignError::Full.into()),
            _ => free,
        };
        if is_dry_run {
            return free.and_then(confined).map(|_| 0);
        }
        let given = free.and_then(confined).and_then(|domain| {
            let given = device.assign(self.id, domain.as_ref())?;
            Ok((given, domain))
        });
        call.reset_us = microseconds(device.resetting_ns().saturating_sub(reset_ns));
        let mut record = self.record.lock();
        let record = &mut *record;
        if runs {
            record.resizing.staging = false;
        }
        let (given, domain) = given?;
        if (record.status.state == dev::STATE_RUNNING) != runs {
            return Err(Errno::EBUSY.into());
        }
        let partition = record.partition.as_mut().ok_or(Errno::EBUSY)?;
        let epoch = match record.status.state {
            dev::STATE_CREATED => partition.assign(Box::new(given)).map(|()| 0)?,
            dev::STATE_RUNNING => partition.insert(Box::new(given))?,
            _ => return Err(Errno::ESRCH.into()),
        };
        if runs {
            record.begin_device_change(epoch);
        }
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
        Ok(epoch)
    }

    /// Asks the instance, which runs, to let go of a function; returns the number of the change.
    ///
    /// # Errors
    /// Why not; nothing was changed.
    pub(crate) fn remove_device(&self, call: &AddDevice) -> Result<u64, Refused> {
        if call.flags & !(dev::DEVICE_FORCE | dev::DEVICE_DRY_RUN) != 0 {
            return Err(Errno::EINVAL.into());
        }
        let mut record = self.record.lock();
        if !record.check_devices_change()? {
            return Err(Errno::ESRCH.into());
        }
        if !record.status.devices().contains(&call.function) {
            return Err(Refused::new(dev::REASON_NOT_ITS, Errno::ENODEV));
        }
        if call.flags & dev::DEVICE_DRY_RUN != 0 {
            return Ok(0);
        }
        let partition = record.partition.as_mut().ok_or(Errno::ESRCH)?;
        let asked = partition.ask_back(call.function, call.flags & dev::DEVICE_FORCE != 0)?;
        let epoch = asked.ok_or(Refused::new(dev::REASON_NOT_ITS, Errno::ENODEV))?;
        record.begin_device_change(epoch);
        Ok(epoch)
    }

    /// Resets a function that the instance does not use any more, which takes a while, and ends the
    /// change then: in a thread, as the node thread must not wait for it.
    ///
    /// Without memory for a thread the function stays with the instance as one that did not prove
    /// its reset does, and can be asked for again.
    pub(super) fn take_back(
        self: &Arc<Self>,
        record: &mut InstanceState,
        settled: Settled,
        leaving: Leaving,
    ) {
        let (epoch, number) = (settled.epoch, leaving.number);
        let refusal = settled.refused.map(|(refusal, _)| refusal);
        let this = self.clone();
        let reset = move || this.end_function(epoch, refusal, leaving);
        if task::spawn("device-reset", None, reset).is_err() {
            if let Some(partition) = &mut record.partition {
                partition.end_of_function(number, false);
            }
            self.note_refusal(record, epoch, refusal.unwrap_or(Refusal::NoMemory));
        }
    }

    fn end_function(self: &Arc<Self>, epoch: u64, refusal: Option<Refusal>, leaving: Leaving) {
        let Leaving {
            number,
            function,
            stays,
        } = leaving;
        let address = pci::Address::from_number(number);
        let resetting_ns = || devices::pci_device(address).map_or(0, PciDevice::resetting_ns);
        let before = resetting_ns();
        let is_stopped = match stays {
            // Its driver there may still have its registers.
            true => {
                function.hold_back();
                false
            }
            false => function.stop(),
        };
        let reset_ns = resetting_ns().saturating_sub(before);
        {
            let mut record = self.record.lock();
            let record = &mut *record;
            record.resizing.scrubbed = (epoch, reset_ns);
            if let Some(partition) = &mut record.partition {
                let left = partition.end_of_function(number, is_stopped);
                if is_stopped {
                    record.forget_device(number);
                }
                if left == 0 {
                    record.domain = None;
                    record.status.device_flags &= !dev::DEVICE_UNSAFE_DMA;
                }
            }
        }
        // With the last reference somebody else can have it.
        drop(function);
        let (id, label) = (self.id, self.label());
        if is_stopped {
            log::info!("instance {id} ({label}) has PCI function {address} no more");
        } else {
            log::error!(
                "PCI function {address} does not prove that it was reset: it stays with instance \
                 {id} ({label})"
            );
        }
        let mut record = self.record.lock();
        match refusal {
            // Its end has been told already.
            _ if record.status.state != dev::STATE_RUNNING => record.resizing.pending = None,
            Some(refusal) => self.note_refusal(&mut record, epoch, refusal),
            None if is_stopped => {
                self.end_device_change(&mut record, dev::EVENT_DEVICE_REMOVE, number.into());
            }
            None => {
                self.end_device_change(&mut record, dev::EVENT_REFUSE, epoch);
            }
        }
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
