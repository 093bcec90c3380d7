//! A function that an instance has.

use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};

use abi::live::{Messages, Registers};
use guard::device::FunctionPlace;
use guard::faults;
use guard::irq::FIRST_DEVICE_VECTOR;
use guard::partition::{self, Function};
use iommu::{Attachment, Domain, Interrupts};
use lfmutex::Mutex;
use pci::{Abilities, Bar, BarKind, Layout, Msix, Saved};

use crate::claim::StillReaches;
use crate::config::Before;
use crate::registers::answers_alone;
use crate::{NotConfined, Owner, PciDevice};

/// Bytes of a page: the smallest part of the machine's addresses that an instance can be given.
const PAGE: u64 = 4096;
/// Messages of a confined function, as a power of two.
const MESSAGES_ORDER: u8 = partition::MAX_MESSAGES.ilog2() as u8;

/// Reason why a function is not given to an instance. It is as it was, unless it is stuck now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AssignError {
    /// Somebody has it.
    Taken(Owner),
    /// The function is a bridge, or has no header that is known.
    NoDevice,
    /// The function has no way to be reset, so nothing would prove that it is quiet.
    NoReset,
    /// The function has no interrupt messages.
    NoMessages,
    /// The function has no registers in memory, or shares a page of them with something else.
    NoRegisters,
    /// The function was reset, and does not prove it. Nobody gets it any more.
    NotReset,
    /// Virtual functions of it are on, which go with it when it is reset.
    Physical,
    /// Nothing confines it, which it was to be.
    NotConfined(NotConfined),
}

impl fmt::Display for AssignError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Taken(owner) => write!(f, "{owner}"),
            Self::NoDevice => f.write_str("this is no device"),
            Self::NoReset => f.write_str("it cannot be reset"),
            Self::NoMessages => f.write_str("it has no MSI-X"),
            Self::NoRegisters => f.write_str("it has no registers of its own"),
            Self::NotReset => f.write_str("it does not prove that it was reset"),
            Self::Physical => f.write_str("virtual functions of it are on"),
            Self::NotConfined(reason) => write!(f, "{reason}"),
        }
    }
}

impl core::error::Error for AssignError {}

/// A function that an instance has, or is to have: no driver of this kernel gets it. Dropped, it is
/// reset if an instance has had it, and free; one that is not reset then is never given to anybody
/// again, and reaches nothing if it is confined.
pub struct AssignedFunction {
    device: &'static PciDevice,
    place: FunctionPlace,
    /// Registers that a reset clears.
    saved: Saved,
    /// Flag: no instance has had it since it was reset.
    is_quiet: AtomicBool,
    /// Held by who resets it.
    resetting: Mutex<()>,
    /// Hold of the domain that confines it; there until it is dropped, if one does.
    attachment: Option<Attachment>,
    /// Interrupt messages of one that is confined.
    interrupts: Option<Interrupts>,
}

impl PciDevice {
    /// Takes the function for an instance, whose domain is to confine it, or nothing: it is reset,
    /// and quiet. Sleeps, unless it was reset when its last owner let go of it.
    ///
    /// # Errors
    /// [`AssignError`].
    pub fn assign(
        &'static self,
        instance: u32,
        domain: Option<&Domain>,
    ) -> Result<AssignedFunction, AssignError> {
        let place = self.place()?;
        let before = self.ownership.take(Owner::Instance(instance));
        let before = before.map_err(AssignError::Taken)?;
        // As the firmware, or who had it before, has left it.
        pci::set_abilities(&self.registers, Abilities::all(), Abilities::NO_LINE);
        let saved = Saved::of(&self.registers);
        // One that is known to have been reset was not told anything since.
        let stopped = match before {
            Before::Reset => Ok(()),
            Before::Unknown => self.stop(&saved),
        };
        match stopped {
            Ok(()) => {
                let mut assigned = AssignedFunction {
                    device: self,
                    place,
                    saved,
                    is_quiet: AtomicBool::new(true),
                    resetting: Mutex::new(()),
                    attachment: None,
                    interrupts: None,
                };
                if let Some(domain) = domain {
                    let held = domain.hold(self.function.address);
                    let held =
                        held.map_err(|obstacle| AssignError::NotConfined(obstacle.into()))?;
                    assigned.attachment = Some(held);
                    assigned.take_interrupts()?;
                }
                Ok(assigned)
            }
            Err(StillReaches) => {
                self.ownership.leave_to(Some(Owner::Stuck));
                log::error!(
                    "PCI function {} does not prove that it was reset: nobody gets it any more",
                    self.function.address
                );
                Err(AssignError::NotReset)
            }
        }
    }

    /// Looks whether an instance could have the function at this moment, whatever confines it.
    ///
    /// # Errors
    /// [`AssignError`].
    pub fn check_assignable(&self) -> Result<(), AssignError> {
        self.place()?;
        self.ownership
            .now()
            .map_or(Ok(()), |owner| Err(AssignError::Taken(owner)))
    }

    /// Takes over what an instance has of a supervisor before this one, once; `None` if it does not
    /// have this function. It goes on with whatever it does. `domain` is the one that confines the
    /// instance's others, if there are such; the first one that is confined sets it.
    ///
    /// # Panics
    /// Without memory for that, and if it is not known what confines it.
    #[must_use]
    pub fn adopt(
        &'static self,
        instance: u32,
        domain: &mut Option<Domain>,
    ) -> Option<AssignedFunction> {
        let is_its = self.ownership.now() == Some(Owner::Instance(instance));
        let told = self.kept.lock().take_if(|_| is_its)?;
        // One of whose registers nothing is known is to be reset, and no more.
        let place = self.place().unwrap_or_else(|_| FunctionPlace {
            number: self.function.address.number(),
            config: self.config,
            ..FunctionPlace::default()
        });
        // What it was given with, whatever the instance has made of it.
        let mut saved = Saved::of(&self.registers);
        for of in &place.registers {
            saved = saved.with_bar(of.bar, of.phys as u32 | u32::from(of.flags));
            if of.flags & Registers::WIDE != 0 {
                saved = saved.with_bar(of.bar + 1, (of.phys >> 32) as u32);
            }
        }
        let interrupts = Interrupts::take_over(self.function.address, MESSAGES_ORDER);
        Some(AssignedFunction {
            device: self,
            place: FunctionPlace {
                messages: told.messages,
                ..place
            },
            saved,
            is_quiet: AtomicBool::new(false),
            resetting: Mutex::new(()),
            attachment: Attachment::take_over(self.function.address, domain),
            interrupts,
        })
    }

    /// The function's place, as an instance is told of it, if it can have it.
    fn place(&self) -> Result<FunctionPlace, AssignError> {
        if self.function.layout != Layout::Device {
            return Err(AssignError::NoDevice);
        }
        if self.offer.is_some() {
            return Err(AssignError::Physical);
        }
        if !pci::can_reset(&self.registers, self.function.layout) {
            return Err(AssignError::NoReset);
        }
        let msix = Msix::find(&self.registers).ok_or(AssignError::NoMessages)?;
        let mut place = FunctionPlace {
            number: self.function.address.number(),
            identity: self.registers.identity(),
            config: self.config,
            ..FunctionPlace::default()
        };
        for (bar, of) in (0..).zip(&self.function.bars) {
            let Some(registers) = of.as_ref().and_then(|of| registers(bar, of)) else {
                continue;
            };
            let is_whole = registers.bytes >= PAGE && registers.phys.is_multiple_of(PAGE);
            let end = registers.phys.saturating_add(registers.bytes - 1);
            if !is_whole || !answers_alone(&self.function, registers.phys, end) {
                return Err(AssignError::NoRegisters);
            }
            place.registers.push(registers);
        }
        let mut bars = place.registers.iter().map(|registers| registers.bar);
        if !bars.any(|bar| bar == msix.table.bar) {
            return Err(AssignError::NoRegisters);
        }
        Ok(place)
    }
}

/// A base address register as an instance is told of it, if it is one of memory and has an address.
fn registers(bar: u8, of: &Bar) -> Option<Registers> {
    let width = match of.kind {
        BarKind::Memory32 => 0,
        BarKind::Memory64 => Registers::WIDE,
        BarKind::Ports | BarKind::Rom => return None,
    };
    let prefetchable = if of.prefetchable {
        Registers::PREFETCHABLE
    } else {
        0
    };
    (of.address != 0).then_some(Registers {
        bar,
        flags: width | prefetchable,
        phys: of.address,
        bytes: of.size,
    })
}

// SAFETY: configuration space is where ACPI says, and the function answers at its registers, no
// other one does, and nobody but this crate writes them: an instance has them put back with its
// reset, if its kernel ever wrote them. Bus mastering is off after a reset, without which it
// reaches no memory; no driver of this kernel has it meanwhile, so only who it is handed over to
// can switch that on. `stop` is true after a reset that was seen, or when its unit has said that it
// lets nothing of the function through.
unsafe impl Function for AssignedFunction {
    fn place(&self) -> &FunctionPlace {
        &self.place
    }

    fn set_vectors(&mut self, first: u8) {
        self.set_first_vector(first);
    }

    fn hand_over(&self, apic_id: u32) {
        self.begin(apic_id);
    }

    fn stop(&self) -> bool {
        let is_blocked = self.hold_back();
        self.reset() || is_blocked
    }

    fn domain(&self) -> Option<&dyn partition::Domain> {
        let attachment = self.attachment.as_ref()?;
        Some(attachment.domain())
    }

    fn is_led(&self, apic_id: u32) -> bool {
        match (&self.interrupts, self.place.messages) {
            (Some(interrupts), Some(Messages { vector, .. })) => {
                interrupts.are_led(vector, apic_id)
            }
            (interrupts, told) => interrupts.is_none() && told.is_none(),
        }
    }
}

impl AssignedFunction {
    /// Whether a unit confines what it reaches.
    #[must_use]
    pub fn is_confined(&self) -> bool {
        self.attachment.is_some()
    }

    /// Takes interrupt messages for it, which is confined; they interrupt nobody yet.
    fn take_interrupts(&mut self) -> Result<(), AssignError> {
        let interrupts = Interrupts::new(self.device.function.address, MESSAGES_ORDER);
        // An instance numbers its messages from 0.
        let interrupts = interrupts.filter(|interrupts| interrupts.message().data == 0);
        let interrupts = interrupts.ok_or(AssignError::NotConfined(NotConfined::NoEntries))?;
        self.place.messages = Some(Messages {
            address: interrupts.message().address as u32,
            vector: FIRST_DEVICE_VECTOR,
            count: 1 << MESSAGES_ORDER,
        });
        self.interrupts = Some(interrupts);
        Ok(())
    }

    fn set_first_vector(&mut self, first: u8) {
        if let Some(messages) = &mut self.place.messages {
            messages.vector = first;
        }
    }

    /// Has it reach its instance's memory, and its messages that CPU.
    fn begin(&self, apic_id: u32) {
        self.is_quiet.store(false, Ordering::Release);
        if let (Some(interrupts), Some(messages)) = (&self.interrupts, self.place.messages)
            && let Err(error) = interrupts.lead(messages.vector, apic_id)
        {
            log::error!(
                "PCI function {} interrupts nobody: {error:?}",
                self.device.function.address
            );
        }
        let Some(attachment) = &self.attachment else {
            return;
        };
        // SAFETY: the instance that has it maps its memory in this domain, as the guard asks for
        // (`domain`).
        let attached = unsafe { attachment.attach() };
        if attached.is_err() {
            log::error!(
                "PCI function {} reaches nothing: the IOMMU does not answer",
                self.device.function.address
            );
        }
    }

    /// Has it reach nothing, and interrupt nobody; true if it is seen that it reaches nothing.
    fn hold_back(&self) -> bool {
        let attachment = self.attachment.as_ref();
        let is_blocked = attachment.is_some_and(|attachment| attachment.block().is_ok());
        // Messages that are not known to be cleared are never anybody else's, which is said when
        // they are dropped: they are no way to memory.
        let _ = self.interrupts.as_ref().map(Interrupts::clear);
        is_blocked
    }

    /// Resets it, if an instance has had it; false if that is not seen.
    fn reset(&self) -> bool {
        let _one = self.resetting.lock();
        let is_quiet = self.is_quiet.load(Ordering::Acquire)
            || self.device.stop(&self.saved).is_ok() && !faults::doubts_reset();
        self.is_quiet.store(is_quiet, Ordering::Release);
        is_quiet
    }
}

impl Drop for AssignedFunction {
    fn drop(&mut self) {
        // It is blocked before it is reset: what it does meanwhile meets nobody's memory.
        self.stop();
        self.interrupts = None;
        let attachment = self.attachment.take();
        let is_quiet = *self.is_quiet.get_mut();
        let is_free = match attachment {
            // SAFETY: quiet is what was reset, and what nobody has had since.
            Some(attachment) => unsafe { attachment.release(is_quiet) },
            None => is_quiet,
        };
        if is_free && is_quiet {
            self.device.ownership.leave_reset();
        } else {
            self.device.ownership.leave_to(Some(Owner::Stuck));
            log::error!(
                "PCI function {} does not prove that it was reset: nobody gets it any more",
                self.device.function.address
            );
        }
    }
}
