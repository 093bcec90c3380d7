//! Interrupts that functions and lines send: where units remap them, each names an entry of a
//! table, which says what it interrupts and who may name it.

use alloc::vec::Vec;
use core::fmt;

use abi::live::DEVICE_VECTORS;
use acpi::Dmar;
use guard::device::Message;
use guard::irq::{self, ISA_VECTOR, Line};
use guard::role;
use pci::Address;
use vtd::{Interrupt, InterruptEntry, Source};

use crate::unit::{Unanswered, Unit};
use crate::{Machine, machine, place, remaps_interrupts};

/// Entries for the lines of a controller, as a power of two: each ISA line has a vector.
const LINES_ORDER: u8 = 4;

/// How interrupts of the machine are remapped.
pub(crate) struct Remapping {
    /// Flag: units tell CPUs by numbers of 32 bits.
    wide_ids: bool,
    lines: Vec<Lines>,
}

/// A controller of lines: its id, its unit, the name that it has there, and its first entry.
struct Lines {
    controller: u8,
    unit: usize,
    source: Source,
    first: u16,
}

/// Reason why interrupts are not remapped.
pub(crate) enum Unable {
    Firmware,
    Unit(u64),
    Ids(u64),
    Controller(u8),
    NoMemory,
}

impl fmt::Display for Unable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Firmware => f.write_str("the firmware has not made this machine remap them"),
            Self::Unit(at) => write!(f, "the unit at {at:#x} cannot remap them"),
            Self::Ids(at) => write!(f, "the unit at {at:#x} does not know numbers of x2APICs"),
            Self::Controller(id) => write!(f, "no unit has I/O APIC {id}"),
            Self::NoMemory => f.write_str("no memory for tables"),
        }
    }
}

impl Remapping {
    /// Gives all units tables of interrupts, in which there are entries for lines. Nothing is
    /// switched on. `buses` says what is behind a bridge.
    pub(crate) fn plan(
        dmar: &Dmar<'_>,
        units: &mut [Unit],
        buses: impl Fn(u8, u8) -> Option<(u8, u8)>,
    ) -> Result<Self, Unable> {
        if !dmar.remaps_interrupts() {
            return Err(Unable::Firmware);
        }
        let wide_ids = role::has_x2apic();
        for unit in &mut *units {
            let abilities = unit.abilities();
            if !abilities.remaps_interrupts {
                return Err(Unable::Unit(unit.at()));
            }
            if wide_ids && !abilities.wide_ids {
                return Err(Unable::Ids(unit.at()));
            }
            unit.add_interrupts().map_err(|()| Unable::NoMemory)?;
        }
        let mut lines = Vec::new();
        for controller in irq::controllers() {
            let found = dmar.ioapic(controller, &buses);
            let (unit, (bus, devfn)) = found.ok_or(Unable::Controller(controller))?;
            let first = units[unit].take_entries(LINES_ORDER);
            let room = lines.try_reserve(1);
            lines.push(Lines {
                controller,
                unit,
                source: Source::Function(u16::from(bus) << 8 | u16::from(devfn)),
                first: first.filter(|_| room.is_ok()).ok_or(Unable::NoMemory)?,
            });
        }
        Ok(Self { wide_ids, lines })
    }
}

/// Switches remapping on, if it was planned: from then on, interrupts that name no entry are
/// refused.
pub(crate) fn switch_on(machine: &Machine) -> bool {
    let Some(remapping) = &machine.remapping else {
        return false;
    };
    for unit in &machine.units {
        if unit.remap_interrupts(remapping.wide_ids).is_err() {
            log::error!(
                "interrupts of devices are not confined: the unit at {:#x} does not do as it is told",
                unit.at()
            );
            machine.units.iter().for_each(Unit::pass_interrupts);
            return false;
        }
    }
    irq::remap_lines(line);
    log::info!("IOMMU: interrupts are remapped");
    true
}

/// Has a line interrupt a CPU; the word by which its controller names that.
fn line(line: Line) -> Option<u64> {
    let machine = machine()?;
    let remapping = machine.remapping.as_ref()?;
    let mut all = remapping.lines.iter();
    let lines = all.find(|lines| lines.controller == line.controller)?;
    let number = line.vector.checked_sub(ISA_VECTOR)?;
    if number >= 1 << LINES_ORDER {
        return None;
    }
    let index = lines.first + u16::from(number);
    let interrupt = Interrupt {
        vector: line.vector,
        apic_id: line.apic_id,
        is_level: line.is_level,
    };
    let entry = InterruptEntry::new(interrupt, lines.source, remapping.wide_ids)?;
    let unit = &machine.units[lines.unit];
    unit.change_interrupts(index, 0, |_| entry).ok()?;
    Some(vtd::interrupt_line(index, line.vector))
}

/// A function's messages are not led to a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotLed {
    /// No device has such vectors, or messages cannot reach the CPU.
    NoTarget,
    /// The unit does not answer: what they do is not known.
    Unanswered,
}

/// Messages of a function that its unit remaps, a power of two of them: they interrupt nobody until
/// they are [led](Self::lead) to a CPU, and nobody but the function can send them. Dropped, they
/// interrupt nobody any more; if that is not proven, nobody else gets their entries.
pub struct Interrupts {
    function: Address,
    unit: &'static Unit,
    source: Source,
    first: u16,
    order: u8,
}

impl fmt::Debug for Interrupts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Interrupts({} from {})", 1 << self.order, self.first)
    }
}

impl Interrupts {
    /// 2^`order` messages of a function, 16 at most; `None` if interrupts are not remapped, no unit
    /// has the function, or as many functions have messages as the unit has room for.
    #[must_use]
    pub fn new(function: Address, order: u8) -> Option<Self> {
        let (_, place, unit) = place(function).filter(|_| remaps_interrupts())?;
        Some(Self {
            function,
            unit,
            source: place.source,
            first: unit.take_entries(order)?,
            order,
        })
    }

    /// The first message: those behind have the same address, and numbers in a row.
    #[must_use]
    pub fn message(&self) -> Message {
        Message {
            address: vtd::interrupt_message(self.first),
            data: 0,
        }
    }

    /// Has the messages be vectors of a CPU, from `vector` on.
    ///
    /// # Errors
    /// [`NotLed`].
    pub fn lead(&self, vector: u8, apic_id: u32) -> Result<(), NotLed> {
        let wide_ids = machine()
            .and_then(|machine| machine.remapping.as_ref())
            .is_some_and(|remapping| remapping.wide_ids);
        let entry = |number: u16| {
            let vector = u64::from(vector) + u64::from(number);
            let interrupt = Interrupt {
                vector: vector as u8,
                apic_id,
                is_level: false,
            };
            let is_devices = DEVICE_VECTORS.contains(&vector);
            let entry = is_devices.then(|| InterruptEntry::new(interrupt, self.source, wide_ids));
            entry.flatten()
        };
        if (0..1 << self.order).any(|number| entry(number).is_none()) {
            return Err(NotLed::NoTarget);
        }
        let entry = |number| entry(number).unwrap_or(InterruptEntry::ABSENT);
        let changed = self.unit.change_interrupts(self.first, self.order, entry);
        changed.map_err(|Unanswered| NotLed::Unanswered)
    }

    /// Has the messages interrupt nobody: when this returns, those that were sent have arrived.
    ///
    /// # Errors
    /// [`Unanswered`]: they may still interrupt who they did.
    pub fn clear(&self) -> Result<(), Unanswered> {
        let absent = |_| InterruptEntry::ABSENT;
        (self.unit).change_interrupts(self.first, self.order, absent)
    }
}

impl Drop for Interrupts {
    fn drop(&mut self) {
        if self.clear().is_ok() {
            self.unit.free_entries(self.first, self.order);
        } else {
            log::error!("PCI function {} keeps its interrupts", self.function);
        }
    }
}
