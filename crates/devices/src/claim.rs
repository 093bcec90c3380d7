//! A function that a driver has for itself.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::Ordering;

use guard::device::{DmaBlock, MmioRegion};
use guard::{faults, timer};
use lfmutex::Mutex;
use pci::{Abilities, Layout, Msix, NotReset, Saved};
use task::Deadline;

use crate::config::LEFT;
use crate::{Owner, PciDevice};

/// Why a function cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimError {
    /// Somebody has it, or it could not be reset when somebody let go of it.
    Taken(Owner),
    /// The function is a bridge, or has no header that is known.
    NoDevice,
}

/// The function could not be stopped: it may still reach memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StillReaches;

impl fmt::Display for ClaimError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Taken(owner) => write!(f, "{owner}"),
            Self::NoDevice => f.write_str("this is no device"),
        }
    }
}

/// A function that a driver has for itself. Registers, memory and vectors of it keep the claim, so
/// it ends with the last of them: then the function is stopped and reset, and what memory it could
/// reach is free again. A function that cannot be stopped is in quarantine, and that memory is
/// never given to anybody again.
#[derive(Debug)]
pub struct Claim {
    pub(crate) device: &'static PciDevice,
    /// Registers that a reset clears.
    saved: Saved,
    pub(crate) msix: Option<Msix>,
    pub(crate) messages: Mutex<Messages>,
    /// Memory that the function was told of and that nobody holds any more. There is room for all
    /// that is out.
    pub(crate) held: Mutex<Held>,
}

/// Table of the function's interrupt messages: mapped when the first is used.
#[derive(Debug, Default)]
pub(crate) struct Messages {
    pub(crate) table: Option<MmioRegion>,
    /// Entries that somebody has.
    pub(crate) used: Vec<UsedMessage>,
}

/// Message that somebody has.
#[derive(Debug)]
pub(crate) struct UsedMessage {
    /// Number in the table.
    pub(crate) entry: u16,
    /// The address and the number that it sends.
    pub(crate) sends: pci::MsixEntry,
    /// Entry for it in the table of the unit that remaps it, where this kernel has one.
    pub(crate) _remapped: Option<iommu::Interrupts>,
}

#[derive(Debug, Default)]
pub(crate) struct Held {
    pub(crate) blocks: Vec<DmaBlock>,
    /// Blocks that are out.
    pub(crate) out: usize,
}

impl PciDevice {
    /// Has the function for the caller. It answers at its memory addresses then, and reaches no
    /// memory until [`Claim::start`].
    ///
    /// # Errors
    /// [`ClaimError`]; nothing is changed.
    pub fn claim(&'static self) -> Result<Arc<Claim>, ClaimError> {
        if self.function.layout != Layout::Device {
            return Err(ClaimError::NoDevice);
        }
        (self.ownership.take(Owner::Driver)).map_err(ClaimError::Taken)?;
        let registers = &self.registers;
        let claim = Arc::new(Claim {
            device: self,
            saved: Saved::of(registers),
            msix: Msix::find(registers),
            messages: Mutex::default(),
            held: Mutex::default(),
        });
        // Whatever the firmware did with it ends here.
        pci::set_abilities(registers, Abilities::all(), IDLE);
        Ok(claim)
    }
}

/// Abilities of a function that was claimed, before it is started.
const IDLE: Abilities = Abilities::MEMORY.union(Abilities::NO_LINE);

impl Claim {
    /// The function.
    #[must_use]
    pub fn device(&self) -> &'static PciDevice {
        self.device
    }

    /// Lets the function reach memory, and send interrupt messages.
    pub fn start(&self) {
        let master = Abilities::BUS_MASTER;
        pci::set_abilities(&self.device.registers, master, master);
    }

    /// Stops the function and resets it, whatever it does. It answers at its registers afterwards,
    /// which are as they were when it was switched on, reaches no memory before [`Self::start`],
    /// and sends the same interrupt messages.
    ///
    /// # Errors
    /// [`StillReaches`].
    pub fn reset(&self) -> Result<(), StillReaches> {
        let messages = self.messages.lock();
        self.stop()?;
        let registers = &self.device.registers;
        pci::set_abilities(registers, Abilities::all(), IDLE);
        if let (Some(msix), Some(table)) = (&self.msix, messages.table) {
            for used in &messages.used {
                crate::vector::write_entry(table, used.entry, Some(used.sends));
            }
            msix.enable(registers);
        }
        Ok(())
    }

    /// Stops and resets the function. Sleeps.
    fn stop(&self) -> Result<(), StillReaches> {
        self.device.stop(&self.saved)
    }
}

impl PciDevice {
    /// Stops and resets the function, and puts back what was saved. Sleeps.
    pub(crate) fn stop(&self, saved: &Saved) -> Result<(), StillReaches> {
        let stopped = self.try_stop(saved);
        self.is_unproven.store(stopped.is_err(), Ordering::Release);
        if stopped.is_err() {
            // Who waits for it to be let go of is not to wait for what may never be.
            LEFT.wake_all();
        }
        stopped
    }

    fn try_stop(&self, saved: &Saved) -> Result<(), StillReaches> {
        // They go with it.
        let held = self.hold_virtual()?;
        let wait = |ms: u32| task::sleep_until(Deadline::after_ns(u64::from(ms) * 1_000_000));
        let begun = timer::now_ns();
        let reset = pci::reset(&self.registers, self.function.layout, saved, wait);
        let took = timer::now_ns().saturating_sub(begun);
        self.resetting_ns.fetch_add(took, Ordering::Relaxed);
        reset.map_err(|NotReset| StillReaches)?;
        held.come_back();
        if faults::doubts_own_reset() {
            return Err(StillReaches);
        }
        Ok(())
    }
}

impl Drop for Claim {
    /// Nobody has registers, memory or vectors of the function any more.
    fn drop(&mut self) {
        let held = core::mem::take(&mut *self.held.lock());
        let table = self.messages.lock().table.take();
        if let Some(table) = table {
            // SAFETY: it is what was mapped, and this was the only copy: only vectors use it, and
            // they keep the claim.
            unsafe { guard::device::unmap(table) };
        }
        match self.stop() {
            Ok(()) => {
                drop(held);
                self.device.ownership.leave_reset();
            }
            Err(StillReaches) => {
                log::error!(
                    "PCI function {}: {} blocks of memory that it was told of are lost",
                    self.device.function.address,
                    held.blocks.len()
                );
                held.blocks.into_iter().for_each(core::mem::forget);
                self.device.quarantine();
            }
        }
    }
}
