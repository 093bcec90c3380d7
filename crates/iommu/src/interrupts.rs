//! Interrupts that functions and lines send: where units remap them, each names an entry of a
//! table, which says what it interrupts and who may name it.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;

use abi::live::DEVICE_VECTORS;
use guard::device::Message;
use guard::irq::{self, ISA_VECTOR, Line};
use guard::role;
use pci::Address;

use crate::topology::Topology;
use crate::unit::{Sender, Target, Unanswered, Unit};
use crate::{Found, Machine, machine, place, remaps_interrupts};

/// Entries for the lines of a controller, as a power of two: each ISA line has a vector.
const LINES_ORDER: u8 = 4;

/// How interrupts of the machine are remapped.
pub(crate) struct Remapping(Vec<Lines>);

/// A controller of lines: its id, its unit, the name that it has there, and its first entry.
struct Lines {
    controller: u8,
    unit: usize,
    sender: Sender,
    first: u16,
}

/// Reason why interrupts are not remapped.
pub(crate) enum Unable {
    Firmware,
    Unit(u64),
    Ids(u64),
    Before(u64),
    Controller(u8),
    NoMemory,
}

impl fmt::Display for Unable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Firmware => f.write_str("the firmware has not made this machine remap them"),
            Self::Unit(at) => write!(f, "the unit at {at:#x} cannot remap them"),
            Self::Ids(at) => write!(f, "the unit at {at:#x} does not know numbers of x2APICs"),
            Self::Before(at) => write!(f, "the unit at {at:#x} did not remap them before"),
            Self::Controller(id) => write!(f, "no unit has I/O APIC {id}"),
            Self::NoMemory => f.write_str("no memory for tables"),
        }
    }
}

impl Remapping {
    /// Gives all units tables of interrupts, in which there are entries for lines. Nothing is
    /// switched on. `has_kept` says that functions go on which instances have of a kernel before
    /// this one.
    pub(crate) fn plan<'a>(
        topology: &Topology<'_>,
        units: &mut [Box<dyn Unit>],
        functions: &(impl Iterator<Item = Found<'a>> + Clone),
        has_kept: bool,
    ) -> Result<Self, Unable> {
        if !topology.remaps_interrupts() {
            return Err(Unable::Firmware);
        }
        for unit in &mut *units {
            let abilities = unit.abilities();
            if !abilities.remaps_interrupts {
                return Err(Unable::Unit(unit.at()));
            }
            if role::has_x2apic() && !abilities.wide_ids {
                return Err(Unable::Ids(unit.at()));
            }
            // What functions were told that go on does not change.
            if has_kept && !unit.is_remapping() {
                return Err(Unable::Before(unit.at()));
            }
            unit.add_interrupts().map_err(|()| Unable::NoMemory)?;
        }
        let mut lines = Vec::new();
        for controller in irq::controllers() {
            let found = topology.ioapic(controller, functions);
            let (unit, sender) = found.ok_or(Unable::Controller(controller))?;
            let first = units[unit].take_lines(sender.number, LINES_ORDER);
            let room = lines.try_reserve(1);
            lines.push(Lines {
                controller,
                unit,
                sender,
                first: first.filter(|_| room.is_ok()).ok_or(Unable::NoMemory)?,
            });
        }
        Ok(Self(lines))
    }
}

/// Switches remapping on, if it was planned: from then on, interrupts that name no entry are
/// refused.
pub(crate) fn switch_on(machine: &Machine) -> bool {
    if machine.remapping.is_none() {
        return false;
    }
    for unit in &machine.units {
        if unit.remap_interrupts().is_err() {
            assert!(!unit.goes_on(), "an IOMMU does not answer");
            log::error!(
                "interrupts of devices are not confined: the unit at {:#x} does not do as it is told",
                unit.at()
            );
            machine.units.iter().for_each(|unit| unit.pass_interrupts());
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
    let Remapping(all) = machine.remapping.as_ref()?;
    let lines = all
        .iter()
        .find(|lines| lines.controller == line.controller)?;
    let number = line.vector.checked_sub(ISA_VECTOR)?;
    if number >= 1 << LINES_ORDER {
        return None;
    }
    let index = lines.first + u16::from(number);
    let target = Target {
        vector: line.vector,
        apic_id: line.apic_id,
        is_level: line.is_level,
    };
    let unit = &machine.units[lines.unit];
    let changed = unit.change_interrupts(lines.sender, index, 0, &|_| Some(target));
    changed.ok().map(|()| unit.line(index, line.vector))
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
    unit: &'static dyn Unit,
    sender: Sender,
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
            sender: place.sender,
            first: unit.interrupts(place.sender.number)?.take(order)?,
            order,
        })
    }

    /// Takes over the messages of a function that an instance has of a kernel before this one, as
    /// they are, once; `None` if none were told, or they are others'.
    #[must_use]
    pub fn take_over(function: Address, order: u8) -> Option<Self> {
        let (machine, place, unit) = place(function).filter(|_| remaps_interrupts())?;
        let mut kept = machine.kept.lock();
        let kept = kept.iter_mut().find(|kept| kept.function == function)?;
        Some(Self {
            function,
            unit,
            sender: place.sender,
            first: kept.entries.take()?,
            order,
        })
    }

    /// The first message: those behind have the same address, and numbers in a row.
    #[must_use]
    pub fn message(&self) -> Message {
        self.unit.message(self.first)
    }

    /// Target of a message, by its number, if they are vectors of a CPU from `vector` on. `None` if
    /// no device has such a vector, or messages cannot reach the CPU.
    fn target(&self, number: u16, vector: u8, apic_id: u32) -> Option<Target> {
        let vector = u64::from(vector) + u64::from(number);
        let target = Target {
            vector: vector as u8,
            apic_id,
            is_level: false,
        };
        let is_devices = DEVICE_VECTORS.contains(&vector);
        let is_told = || self.unit.interrupt_entry(self.sender, target).is_some();
        (is_devices && is_told()).then_some(target)
    }

    fn numbers(&self) -> Range<u16> {
        0..1 << self.order
    }

    /// Has the messages be vectors of a CPU, from `vector` on.
    ///
    /// # Errors
    /// [`NotLed`].
    pub fn lead(&self, vector: u8, apic_id: u32) -> Result<(), NotLed> {
        let target = |number| self.target(number, vector, apic_id);
        if self.numbers().any(|number| target(number).is_none()) {
            return Err(NotLed::NoTarget);
        }
        (self.change(&target)).map_err(|Unanswered| NotLed::Unanswered)
    }

    /// Whether the messages are [led](Self::lead) there.
    #[must_use]
    pub fn are_led(&self, vector: u8, apic_id: u32) -> bool {
        let table = self.unit.interrupts(self.sender.number);
        table.is_some_and(|table| {
            self.numbers().all(|number| {
                let target = self.target(number, vector, apic_id);
                let entry = target.and_then(|to| self.unit.interrupt_entry(self.sender, to));
                entry == Some(table.entry(self.first + number))
            })
        })
    }

    fn change(&self, target: &dyn Fn(u16) -> Option<Target>) -> Result<(), Unanswered> {
        (self.unit).change_interrupts(self.sender, self.first, self.order, target)
    }

    /// Has the messages interrupt nobody: when this returns, those that were sent have arrived.
    ///
    /// # Errors
    /// [`Unanswered`]: they may still interrupt who they did.
    pub fn clear(&self) -> Result<(), Unanswered> {
        self.change(&|_| None)
    }
}

impl Drop for Interrupts {
    fn drop(&mut self) {
        if self.clear().is_ok() {
            if let Some(table) = self.unit.interrupts(self.sender.number) {
                table.free(self.first, self.order);
            }
        } else {
            log::error!("PCI function {} keeps its interrupts", self.function);
        }
    }
}
