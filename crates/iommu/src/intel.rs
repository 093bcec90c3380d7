//! A unit of Intel's: VT-d.

use alloc::vec::Vec;

use guard::device::{self, DmaBlock, Message, MmioRegion};
use guard::role;
use iotable::Geometry;
use pci::Address;
use vtd::{
    Command, ContextEntry, Descriptor, FAULT_BYTES, Fault, FaultEvent, INTERRUPT_TABLE_ORDER,
    Interrupt, InterruptEntry, RootEntry, Source, offset, status,
};

use crate::unit::{
    Abilities, InterruptTable, PAGE, Queue, Reach, Sender, Target, Unanswered, Unit, load, page,
    page_of_before, store, store_entry, wait,
};
use crate::{PASSING, Refused, StartError};

/// Entries of a table of interrupts.
const INTERRUPTS: usize = 1 << INTERRUPT_TABLE_ORDER;
/// Buses of a segment.
const BUSES: usize = 256;
/// Bits of a position in a queue.
const QUEUE_POSITION: u64 = 0x7_fff0;

/// A unit of VT-d.
pub(crate) struct Vtd {
    at: u64,
    segment: u16,
    registers: MmioRegion,
    abilities: vtd::Abilities,
    root: DmaBlock,
    /// Tables of functions, by bus; none is added once the unit is on.
    buses: Vec<(u8, DmaBlock)>,
    queue: Queue,
    /// The table of interrupts; none is added once the unit is on.
    interrupts: Option<InterruptTable>,
    /// Flag: it goes on by the tables of a kernel before this one.
    goes_on: bool,
}

/// Maps the registers of a unit.
fn map(at: u64) -> Result<(MmioRegion, vtd::Abilities), StartError> {
    let map = |len| {
        // SAFETY: ACPI says that a unit's registers are there. What they have it do is up to
        // this file: it translates by tables that are its own for as long as it is on.
        unsafe { device::map(at, len) }.map_err(|_| StartError::Unreadable)
    };
    let first = map(PAGE)?;
    let abilities = vtd::Abilities::read(
        first.read(offset::CAPABILITY),
        first.read(offset::EXTENDED_CAPABILITY),
    );
    // SAFETY: what was mapped, the only copy.
    unsafe { device::unmap(first) };
    let abilities = abilities.map_err(|unable| StartError::Vtd(at, unable))?;
    Ok((map(abilities.bytes)?, abilities))
}

/// Whether a unit does what was commanded.
fn is_on(registers: MmioRegion, command: Command) -> bool {
    registers.read::<u32>(offset::STATUS) & command.bit() != 0
}

impl Vtd {
    /// The unit whose registers are at this physical address, as ACPI says. It is as it was. One
    /// that a kernel before this one `is_again` left on, goes on to translate by the tables that it
    /// has, and is asked by a queue of this kernel's.
    pub(crate) fn new(at: u64, segment: u16, is_again: bool) -> Result<Self, StartError> {
        let (registers, abilities) = map(at)?;
        if is_again && is_on(registers, Command::Translate) {
            return Self::take_over(at, segment, registers, abilities);
        }
        Ok(Self {
            at,
            segment,
            registers,
            abilities,
            root: page().ok_or(StartError::NoMemory)?,
            buses: Vec::new(),
            queue: Queue::new().ok_or(StartError::NoMemory)?,
            interrupts: None,
            goes_on: false,
        })
    }

    fn take_over(
        at: u64,
        segment: u16,
        registers: MmioRegion,
        abilities: vtd::Abilities,
    ) -> Result<Self, StartError> {
        let strange = || StartError::Strange(at);
        let root = page_of_before(registers.read(offset::ROOT_TABLE)).ok_or_else(strange)?;
        let mut buses = Vec::new();
        (buses.try_reserve_exact(BUSES)).map_err(|_| StartError::NoMemory)?;
        for bus in 0..BUSES {
            let RootEntry(words) = RootEntry(load(&root, bus * 16));
            if words != [0; 2] {
                let table = RootEntry(words).table().and_then(page_of_before);
                buses.push((bus as u8, table.ok_or_else(strange)?));
            }
        }
        let interrupts = if is_on(registers, Command::RemapInterrupts) {
            let word: u64 = registers.read(offset::INTERRUPT_TABLE);
            let table = word & !(PAGE as u64 - 1);
            let is_ours = vtd::interrupt_table(table, role::has_x2apic()) == word;
            let table = is_ours.then(|| InterruptTable::taken_over(table, INTERRUPTS));
            Some(table.flatten().ok_or_else(strange)?)
        } else {
            None
        };
        Ok(Self {
            at,
            segment,
            registers,
            abilities,
            root,
            buses,
            queue: Queue::new().ok_or(StartError::NoMemory)?,
            interrupts,
            goes_on: true,
        })
    }

    /// The entry for a function.
    fn entry(&self, function: u16) -> ContextEntry {
        let at = ContextEntry::place(function as u8);
        let table = self.table((function >> 8) as u8);
        table.map_or(ContextEntry::BLOCKED, |table| ContextEntry(load(table, at)))
    }

    /// Asks by a queue of its own from now on. What was asked for by the one before is done first.
    fn set_queue(&self) -> Result<(), Unanswered> {
        let registers = self.registers;
        let position = |of| registers.read::<u64>(of) & QUEUE_POSITION;
        let is_done = || position(offset::QUEUE_HEAD) == position(offset::QUEUE_TAIL);
        if is_on(registers, Command::Queue) && !wait(is_done) {
            return Err(Unanswered);
        }
        self.command(Command::Queue, false)?;
        registers.write(offset::QUEUE_TAIL, 0_u64);
        registers.write(offset::QUEUE_ADDRESS, self.queue.bus_address());
        self.command(Command::Queue, true)
    }

    fn table(&self, bus: u8) -> Option<&DmaBlock> {
        let mut buses = self.buses.iter();
        buses
            .find(|(number, _)| *number == bus)
            .map(|(_, table)| table)
    }

    /// Sets the entry for a function that was added; at no moment the unit finds half of one.
    fn set(&self, function: u16, ContextEntry(entry): ContextEntry) {
        if let Some(table) = self.table((function >> 8) as u8) {
            let at = ContextEntry::place(function as u8);
            store_entry(table, at, entry, self.abilities.is_coherent);
        }
    }

    /// The entry for a function that passes.
    fn passed(&self) -> ContextEntry {
        ContextEntry::passed(PASSING, self.abilities.four_levels)
    }

    /// Has the unit do what is asked for, and waits until it has.
    fn ask(&self, requests: &[Descriptor]) -> Result<(), Unanswered> {
        let mut words = [[0; 2]; 2];
        for (words, request) in words.iter_mut().zip(requests) {
            *words = request.words();
        }
        let wait_for = |at, value| Descriptor::Wait { at, value }.words();
        let tell = |tail| self.registers.write(offset::QUEUE_TAIL, tail);
        let is_coherent = self.abilities.is_coherent;
        let asked = (self.queue).ask(&words[..requests.len()], wait_for, is_coherent, tell);
        asked.inspect_err(|Unanswered| {
            log::error!(
                "the IOMMU at {:#x} does not answer (status {:#x})",
                self.at,
                self.registers.read::<u32>(offset::FAULT_STATUS)
            );
        })
    }

    fn command(&self, command: Command, on: bool) -> Result<(), Unanswered> {
        let now = self.registers.read(offset::STATUS);
        (self.registers).write(offset::COMMAND, command.word(now, on));
        let is_so = || is_on(self.registers, command) == on;
        wait(is_so).then_some(()).ok_or(Unanswered)
    }

    fn switch_off_one(&self, command: Command) {
        if is_on(self.registers, command) && self.command(command, false).is_err() {
            log::error!("the IOMMU at {:#x} does not stop: {command:?}", self.at);
        }
    }
}

impl Unit for Vtd {
    fn at(&self) -> u64 {
        self.at
    }

    fn abilities(&self) -> Abilities {
        let all = &self.abilities;
        Abilities {
            domains: all.domains,
            three_levels: all.three_levels,
            four_levels: all.four_levels && all.address_bits >= 48,
            large_pages: all.large_pages,
            is_coherent: all.is_coherent,
            caches_absence: all.caches_absence,
            remaps_interrupts: all.remaps_interrupts,
            wide_ids: all.wide_ids,
        }
    }

    fn goes_on(&self) -> bool {
        self.goes_on
    }

    fn add(&mut self, function: u16) -> Result<(), ()> {
        let bus = (function >> 8) as u8;
        if self.goes_on && self.table(bus).is_some() {
            if self.entry(function) != self.passed() {
                self.set(function, ContextEntry::BLOCKED);
            }
            return Ok(());
        }
        if self.table(bus).is_none() {
            self.buses.try_reserve(1).map_err(drop)?;
            let table = page().ok_or(())?;
            let RootEntry([entry, _]) = RootEntry::of(table.bus_address());
            let at = usize::from(bus) * 16;
            store(&self.root, at, entry, self.abilities.is_coherent);
            self.buses.push((bus, table));
        }
        self.set(function, self.passed());
        Ok(())
    }

    fn change(&self, function: u16, before: u16, reach: Reach) -> Result<(), Unanswered> {
        let entry = match reach {
            Reach::Nothing => ContextEntry::BLOCKED,
            Reach::Everything => self.passed(),
            Reach::Domain(number, root, geometry) => {
                ContextEntry::translated(number, root, geometry)
            }
        };
        self.set(function, entry);
        let contexts = if self.abilities.caches_absence {
            Descriptor::AllContexts
        } else {
            Descriptor::Context {
                domain: before,
                function,
            }
        };
        self.ask(&[contexts, Descriptor::Translations { domain: before }])
    }

    fn block(&self, function: u16) -> Result<(), Unanswered> {
        self.set(function, ContextEntry::BLOCKED);
        self.ask(&[Descriptor::AllContexts, Descriptor::AllTranslations])
    }

    fn reach(&self, function: u16, geometry: Geometry) -> Option<Reach> {
        match self.entry(function) {
            ContextEntry::BLOCKED => Some(Reach::Nothing),
            entry if entry == self.passed() => Some(Reach::Everything),
            entry => {
                let (number, root) = entry.domain(geometry)?;
                Some(Reach::Domain(number, root, geometry))
            }
        }
    }

    fn hold_others(&self, is_known: &dyn Fn(u16) -> bool) {
        for (bus, _) in &self.buses {
            for devfn in 0..=u8::MAX {
                let function = u16::from_be_bytes([*bus, devfn]);
                let is_held = self.entry(function) == ContextEntry::BLOCKED;
                if !is_held && !is_known(function) {
                    self.set(function, ContextEntry::BLOCKED);
                }
            }
        }
    }

    fn go_on(&self) -> Result<(), Unanswered> {
        (self.registers).write(offset::FAULT_CONTROL, status::FAULT_MASKED);
        self.set_queue()?;
        self.ask(&[Descriptor::AllContexts, Descriptor::AllTranslations])
    }

    fn forget(&self, domain: u16) -> Result<(), Unanswered> {
        self.ask(&[Descriptor::Translations { domain }])
    }

    fn switch_on(&self) -> Result<(), Unanswered> {
        self.switch_off();
        let registers = self.registers;
        registers.write(offset::FAULT_CONTROL, status::FAULT_MASKED);
        registers.write(offset::ROOT_TABLE, self.root.bus_address());
        self.command(Command::SetRoot, true)?;
        self.set_queue()?;
        self.ask(&[Descriptor::AllContexts, Descriptor::AllTranslations])?;
        self.command(Command::Translate, true)?;
        // What firmware protected until now the tables do, and better.
        if registers.read::<u32>(offset::PROTECTED_MEMORY) & status::PROTECTS != 0 {
            registers.write(offset::PROTECTED_MEMORY, 0_u32);
        }
        Ok(())
    }

    fn switch_off(&self) {
        for command in [
            Command::Translate,
            Command::RemapInterrupts,
            Command::PassUnmapped,
            Command::Queue,
        ] {
            self.switch_off_one(command);
        }
    }

    fn is_remapping(&self) -> bool {
        is_on(self.registers, Command::RemapInterrupts)
    }

    fn add_interrupts(&mut self) -> Result<(), ()> {
        if self.interrupts.is_none() {
            self.interrupts = Some(InterruptTable::new(INTERRUPTS).ok_or(())?);
        }
        Ok(())
    }

    fn take_lines(&mut self, _: u16, order: u8) -> Option<u16> {
        self.interrupts.as_ref()?.take(order)
    }

    fn interrupts(&self, _: u16) -> Option<&InterruptTable> {
        self.interrupts.as_ref()
    }

    fn clear_free_entries(&self) {
        if let Some(table) = &self.interrupts {
            table.clear_free(self.abilities.is_coherent);
        }
    }

    fn interrupt_entry(&self, sender: Sender, target: Target) -> Option<[u64; 2]> {
        let source = match sender.buses {
            None => Source::Function(sender.number),
            Some((first, last)) => Source::Buses { first, last },
        };
        let interrupt = Interrupt {
            vector: target.vector,
            apic_id: target.apic_id,
            is_level: target.is_level,
        };
        let entry = InterruptEntry::new(interrupt, source, role::has_x2apic());
        entry.map(|InterruptEntry(words)| words)
    }

    fn forget_interrupts(&self, _: Sender, first: u16, order: u8) -> Result<(), Unanswered> {
        self.ask(&[Descriptor::Interrupts { first, order }])
    }

    fn message(&self, first: u16) -> Message {
        Message {
            address: vtd::interrupt_message(first),
            data: 0,
        }
    }

    fn message_entry(&self, address: u64) -> Option<u16> {
        vtd::message_entry(address)
    }

    fn line(&self, index: u16, vector: u8) -> u64 {
        vtd::interrupt_line(index, vector)
    }

    fn remap_interrupts(&self) -> Result<(), Unanswered> {
        let table = self.interrupts.as_ref().ok_or(Unanswered)?;
        let at = table.table.bus_address();
        let word = vtd::interrupt_table(at, role::has_x2apic());
        self.registers.write(offset::INTERRUPT_TABLE, word);
        self.command(Command::SetInterruptTable, true)?;
        self.ask(&[Descriptor::AllInterrupts])?;
        self.command(Command::RemapInterrupts, true)
    }

    fn pass_interrupts(&self) {
        self.switch_off_one(Command::RemapInterrupts);
    }

    fn report_faults(&self, message: Option<Message>) -> bool {
        let Some(message) = message else {
            (self.registers).write(offset::FAULT_CONTROL, status::FAULT_MASKED);
            return false;
        };
        let event = FaultEvent {
            address: message.address,
            data: message.data,
        };
        for (offset, word) in event.words() {
            self.registers.write(offset, word);
        }
        // What it has noted meanwhile it sends the message for now.
        self.registers.write(offset::FAULT_CONTROL, 0_u32);
        false
    }

    fn take_faults(&self, each: &mut dyn FnMut(Refused)) -> bool {
        let registers = self.registers;
        let (first, count) = self.abilities.faults;
        for at in (first..).step_by(FAULT_BYTES).take(count) {
            let Some(fault) = Fault::read(registers.read(at), registers.read(at + 8)) else {
                continue;
            };
            let (offset, word) = Fault::CLEAR;
            registers.write(at + offset, word);
            each(Refused {
                function: Address::from_number(
                    u32::from(self.segment) << 16 | u32::from(fault.function),
                ),
                access: fault.access,
                address: fault.address,
                reason: fault.reason,
            });
        }
        let now: u32 = registers.read(offset::FAULT_STATUS);
        let is_lost = now & status::FAULT_OVERFLOW != 0;
        if is_lost {
            registers.write(offset::FAULT_STATUS, status::FAULT_OVERFLOW);
        }
        is_lost
    }
}
