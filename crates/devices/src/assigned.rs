//! A function that an instance has.

use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};

use abi::live::{Messages, Registers};
use guard::device::FunctionPlace;
use guard::faults;
use guard::irq::FIRST_DEVICE_VECTOR;
use guard::partition::{self, Function};
use iommu::{Attachment, Domain, Interrupts};
use pci::{Abilities, Bar, BarKind, Layout, Msix, Saved};

use crate::claim::StillReaches;
use crate::config::Ownership;
use crate::custody::{self, Custody, Effects, NotTaken};
use crate::registers::answers_alone;
use crate::{NotConfined, Owner, PciDevice};

/// Bytes of a page: the smallest part of the machine's addresses that an instance can be given.
const PAGE: u64 = 4096;
/// Messages of a confined function, as a power of two.
const MESSAGES_ORDER: u8 = partition::MAX_MESSAGES.ilog2() as u8;

/// Reason why a function is not given to an instance. It is as it was, unless it is in quarantine
/// now.
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
    /// The function was reset, and does not prove it: it is in quarantine.
    NotReset,
    /// The function did not prove its reset when this instance let go of it, which still is its
    /// owner; or with 0 nobody is, and it is in quarantine.
    Quarantine(u32),
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
            Self::Quarantine(_) => f.write_str("it did not prove that it was reset"),
            Self::Physical => f.write_str("virtual functions of it are on"),
            Self::NotConfined(reason) => write!(f, "{reason}"),
        }
    }
}

impl core::error::Error for AssignError {}

/// A function that an instance has, or is to have: no driver of this kernel gets it. Dropped, it is
/// reset if an instance has had it, and free; one that is not reset then is in quarantine.
pub struct AssignedFunction {
    place: FunctionPlace,
    custody: Custody<Hands<'static>>,
}

/// Way by which the steps of a change get at a function.
pub(crate) struct Hands<'a> {
    device: &'a PciDevice,
    /// Registers that a reset clears, from when somebody has it.
    saved: Option<Saved>,
    /// The domain that is to confine it, if one is.
    domain: Option<Domain>,
    /// Flag: an instance has used it.
    is_used: AtomicBool,
}

/// Hold of a unit on a function.
pub(crate) struct Hold {
    /// Hold of the domain that confines it, if one does.
    attachment: Option<Attachment>,
    /// Interrupt messages of one that is confined.
    interrupts: Option<Interrupts>,
}

impl Effects for Hands<'_> {
    type Hold = Hold;
    type Error = NotConfined;

    fn ownership(&self) -> &Ownership {
        &self.device.ownership
    }

    fn taken(&mut self) {
        self.saved = Some(self.device.saved());
        // Who had it before does not count any more.
        self.device.is_unproven.store(false, Ordering::Release);
    }

    fn reset(&self) -> bool {
        let saved = self.saved.unwrap_or_else(|| self.device.saved());
        let is_reset = self.device.stop(&saved).is_ok();
        let is_doubted = self.is_used.load(Ordering::Relaxed) && faults::doubts_reset();
        if is_doubted {
            self.device.is_unproven.store(true, Ordering::Release);
        }
        is_reset && !is_doubted
    }

    fn hold(&self) -> Result<Option<Hold>, NotConfined> {
        let address = self.device.function.address;
        let held = self.domain.as_ref().map(|domain| domain.hold(address));
        Ok(held.transpose()?.map(|attachment| Hold {
            attachment: Some(attachment),
            interrupts: None,
        }))
    }

    /// Takes interrupt messages for it; they interrupt nobody yet.
    fn equip(&self, hold: &mut Hold) -> Result<(), NotConfined> {
        let interrupts = Interrupts::new(self.device.function.address, MESSAGES_ORDER);
        // An instance numbers its messages from 0.
        let interrupts = interrupts.filter(|interrupts| interrupts.message().data == 0);
        hold.interrupts = Some(interrupts.ok_or(NotConfined::NoEntries)?);
        Ok(())
    }

    fn hold_back(&self, hold: &Hold) -> bool {
        let attachment = hold.attachment.as_ref();
        let is_blocked = attachment.is_some_and(|attachment| attachment.block().is_ok());
        // Messages that are not known to be cleared are never anybody else's, which is said when
        // they are dropped: they are no way to memory.
        let _ = hold.interrupts.as_ref().map(Interrupts::clear);
        is_blocked
    }

    fn release(&self, hold: Hold, may_pass: bool) -> bool {
        drop(hold.interrupts);
        match hold.attachment {
            // SAFETY: what may pass was reset, and nobody has had it since.
            Some(attachment) => unsafe { attachment.release(may_pass) },
            None => may_pass,
        }
    }

    fn isolate(&self) {
        let address = self.device.function.address;
        self.device.is_unproven.store(true, Ordering::Release);
        pci::set_abilities(&self.device.registers, Abilities::all(), Abilities::NO_LINE);
        let is_held = match iommu::hold_back(address) {
            Ok(true) => ", and its unit lets nothing of it through",
            Ok(false) => "",
            Err(_) => ", and its unit does not answer",
        };
        log::error!(
            "PCI function {address} does not prove that it was reset: it is in quarantine{is_held}"
        );
    }

    fn pass(&self) -> bool {
        let address = self.device.function.address;
        // What its entry said is forgotten, whatever it was.
        iommu::hold_back(address).is_ok()
            // SAFETY: it was reset, and nobody has it.
            && unsafe { iommu::pass(address) }.is_ok()
    }
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
        let hands = Hands {
            domain: domain.cloned(),
            ..self.hands()
        };
        let custody = Custody::take(hands, instance).map_err(|error| match error {
            NotTaken::Taken(owner) => self.taken(owner),
            NotTaken::NotReset => AssignError::NotReset,
            NotTaken::NotHeld(reason) => AssignError::NotConfined(reason),
        })?;
        let held = custody.hold().and_then(|hold| hold.interrupts.as_ref());
        let messages = held.map(|interrupts| Messages {
            address: interrupts.message().address as u32,
            vector: FIRST_DEVICE_VECTOR,
            count: 1 << MESSAGES_ORDER,
        });
        let place = FunctionPlace { messages, ..place };
        Ok(AssignedFunction { place, custody })
    }

    /// Contents of the registers that a reset clears, with the addresses that were found first: of
    /// a function that was not reset nobody knows what is in them.
    fn saved(&self) -> Saved {
        let mut saved = Saved::of(&self.registers);
        for (number, bar) in (0..).zip(&self.function.bars) {
            let Some(bar) = bar.filter(|bar| bar.address != 0) else {
                continue;
            };
            saved = saved.with_bar(number, bar.address as u32 | bar.flags);
            if bar.kind == BarKind::Memory64 {
                saved = saved.with_bar(number + 1, (bar.address >> 32) as u32);
            }
        }
        saved
    }

    /// Way to a function that no instance has used.
    fn hands(&self) -> Hands<'_> {
        Hands {
            device: self,
            saved: None,
            domain: None,
            is_used: AtomicBool::new(false),
        }
    }

    /// Puts the function into quarantine, which the caller has and lets go of.
    pub(crate) fn quarantine(&self) {
        custody::quarantine(&self.hands());
    }

    /// Tries again to reset the function, if it is in quarantine: then it is nobody's, and that
    /// owner's meanwhile. Sleeps.
    ///
    /// # Errors
    /// [`StillReaches`]: it still does not prove that it was reset.
    pub fn recover(&self, owner: Owner) -> Result<(), StillReaches> {
        if self.ownership.now() != Some(Owner::Quarantine) {
            return Ok(());
        }
        custody::recover(self.hands(), owner)
            .then_some(())
            .ok_or(StillReaches)
    }

    /// Reason why somebody's function is not given.
    fn taken(&self, owner: Owner) -> AssignError {
        match owner {
            Owner::Quarantine => AssignError::Quarantine(0),
            Owner::Instance(id) if self.is_unproven() => AssignError::Quarantine(id),
            owner => AssignError::Taken(owner),
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
            .map_or(Ok(()), |owner| Err(self.taken(owner)))
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
        let hold = Hold {
            interrupts: Interrupts::take_over(self.function.address, MESSAGES_ORDER),
            attachment: Attachment::take_over(self.function.address, domain),
        };
        let hands = Hands {
            saved: Some(saved),
            is_used: AtomicBool::new(true),
            ..self.hands()
        };
        Some(AssignedFunction {
            place: FunctionPlace {
                messages: told.messages,
                ..place
            },
            custody: Custody::of_before(hands, Some(hold)),
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
        self.custody.stop()
    }

    fn hold_back(&self) {
        self.isolate();
    }

    fn domain(&self) -> Option<&dyn partition::Domain> {
        Some(self.attachment()?.domain())
    }

    fn is_led(&self, apic_id: u32) -> bool {
        self.interrupts_only(apic_id)
    }
}

impl AssignedFunction {
    /// Whether a unit confines what it reaches.
    #[must_use]
    pub fn is_confined(&self) -> bool {
        self.attachment().is_some()
    }

    fn attachment(&self) -> Option<&Attachment> {
        self.custody.hold()?.attachment.as_ref()
    }

    fn interrupts(&self) -> Option<&Interrupts> {
        self.custody.hold()?.interrupts.as_ref()
    }

    fn set_first_vector(&mut self, first: u8) {
        if let Some(messages) = &mut self.place.messages {
            messages.vector = first;
        }
    }

    /// Has it reach nothing, and interrupt nobody, as far as that can be had.
    fn isolate(&self) {
        let hands = self.custody.effects();
        if let Some(hold) = self.custody.hold() {
            hands.hold_back(hold);
        }
        hands.isolate();
    }

    /// Whether the messages that its place tells, if it tells such, go to that CPU.
    fn interrupts_only(&self, apic_id: u32) -> bool {
        match (self.interrupts(), self.place.messages) {
            (Some(interrupts), Some(Messages { vector, .. })) => {
                interrupts.are_led(vector, apic_id)
            }
            (interrupts, told) => interrupts.is_none() && told.is_none(),
        }
    }

    /// Has it reach its instance's memory, and its messages that CPU.
    fn begin(&self, apic_id: u32) {
        self.custody.begin();
        let hands = self.custody.effects();
        hands.is_used.store(true, Ordering::Relaxed);
        let address = hands.device.function.address;
        if let (Some(interrupts), Some(messages)) = (self.interrupts(), self.place.messages)
            && let Err(error) = interrupts.lead(messages.vector, apic_id)
        {
            log::error!("PCI function {address} interrupts nobody: {error:?}");
        }
        let Some(attachment) = self.attachment() else {
            return;
        };
        // SAFETY: the instance that has it maps its memory in this domain, as the guard asks for
        // (`domain`).
        if unsafe { attachment.attach() }.is_err() {
            log::error!("PCI function {address} reaches nothing: the IOMMU does not answer");
        }
    }
}
