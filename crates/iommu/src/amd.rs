//! A unit of AMD's: AMD-Vi.

use alloc::vec::Vec;

use acpi::IvrsUnit;
use amdvi::{
    COMMANDS, Command, DeviceEntry, EVENTS, Event, INTERRUPTS, InterruptEntry, Unable, control,
    offset, status,
};
use guard::device::{self, DmaBlock, Message, MmioRegion};
use guard::irq::ISA_VECTOR;
use guard::role;
use iotable::Geometry;
use lfmutex::Mutex;
use pci::{Address, ConfigRegisters, Msi};

use crate::unit::{
    Abilities, InterruptTable, PAGE, Queue, Reach, Sender, Target, Unanswered, Unit, block, load,
    page, wait,
};
use crate::{PASSING, Refused, StartError};

const _: () = assert!(COMMANDS * 16 == PAGE && EVENTS * Event::BYTES == PAGE);

/// Senders by their numbers, with their tables of interrupts.
type Senders = Vec<(u16, Option<InterruptTable>)>;

/// A unit of AMD-Vi. It looks into processors' caches when it reads tables.
pub(crate) struct AmdVi {
    at: u64,
    segment: u16,
    flags: u8,
    registers: MmioRegion,
    config: Config,
    abilities: amdvi::Abilities,
    /// An entry for each function that there can be on the buses that there are.
    devices: DmaBlock,
    /// Senders that pass something; none is added once it is on.
    senders: Senders,
    queue: Queue,
    log: Mutex<Log>,
    /// Flag: it goes on by the tables of a kernel before this one.
    goes_on: bool,
}

/// Events that the unit notes.
struct Log {
    ring: DmaBlock,
    /// Place of the next one, in bytes.
    next: usize,
}

/// Configuration space of the function that the unit itself is.
struct Config(MmioRegion);

impl ConfigRegisters for Config {
    fn read(&self, offset: u16) -> u32 {
        self.0.read(usize::from(offset))
    }

    fn write(&self, offset: u16, value: u32) {
        self.0.write(usize::from(offset), value);
    }
}

/// The table of functions of a unit that goes on, and those that have a table of interrupts.
fn take_over(
    at: u64,
    registers: MmioRegion,
    bytes: usize,
) -> Result<(DmaBlock, Senders), StartError> {
    let strange = || StartError::Strange(at);
    let word: u64 = registers.read(offset::DEVICE_TABLE);
    let table = word & !(PAGE as u64 - 1);
    let is_ours = amdvi::device_table(table, bytes) == word;
    let devices = is_ours.then(|| DmaBlock::taken_over(table, bytes));
    let devices = devices.flatten().ok_or_else(strange)?;
    let mut senders = Vec::new();
    for place in (0..bytes).step_by(DeviceEntry::BYTES) {
        let number = (place / DeviceEntry::BYTES) as u16;
        let word = devices.load64(place + DeviceEntry::INTERRUPTS);
        if let Some(table) = word.and_then(amdvi::interrupts_at) {
            let table = InterruptTable::taken_over(table, INTERRUPTS).ok_or_else(strange)?;
            senders.try_reserve(1).map_err(|_| StartError::NoMemory)?;
            senders.push((number, Some(table)));
        }
    }
    Ok((devices, senders))
}

impl AmdVi {
    /// The unit that ACPI names, whose configuration space is at this physical address, on a
    /// machine with so many buses. It is as it was. One that a kernel before this one `is_again`
    /// left on, goes on to translate by the tables that it has.
    pub(crate) fn new(
        unit: &IvrsUnit<'_>,
        config: Option<u64>,
        buses: usize,
        is_again: bool,
    ) -> Result<Self, StartError> {
        let at = unit.registers;
        let unable = |unable| StartError::AmdVi(at, unable);
        let map = |at, len| {
            // SAFETY: ACPI says that a unit's registers are there, or the scan that the page of
            // configuration space is. What they have it do is up to this file: it translates by
            // tables that are its own for as long as it is on.
            unsafe { device::map(at, len) }.map_err(|_| StartError::Unreadable)
        };
        let config = Config(map(config.ok_or(unable(Unable::Absent))?, PAGE)?);
        let registers = map(at, offset::END)?;
        let capability = config.read(unit.capability & 0xffc);
        let abilities = amdvi::Abilities::read(registers.read(offset::FEATURES), capability);
        let abilities = abilities.map_err(unable)?;
        let bytes = buses.max(1) * 256 * DeviceEntry::BYTES;
        let goes_on = is_again && registers.read::<u64>(offset::CONTROL) & control::ENABLE != 0;
        let (devices, senders) = if goes_on {
            take_over(at, registers, bytes)?
        } else {
            let devices = block(bytes).ok_or(StartError::NoMemory)?;
            let DeviceEntry([blocked, _]) = DeviceEntry::BLOCKED;
            for at in (0..bytes).step_by(DeviceEntry::BYTES) {
                devices.store64(at, blocked);
            }
            (devices, Vec::new())
        };
        Ok(Self {
            at,
            segment: unit.segment,
            flags: unit.flags,
            registers,
            config,
            abilities,
            devices,
            senders,
            queue: Queue::new().ok_or(StartError::NoMemory)?,
            log: Mutex::new(Log {
                ring: page().ok_or(StartError::NoMemory)?,
                next: 0,
            }),
            goes_on,
        })
    }

    /// The entry for a function, but for its word of interrupts.
    fn entry(&self, function: u16) -> DeviceEntry {
        let at = DeviceEntry::place(function);
        if at >= self.devices.bytes() {
            return DeviceEntry::BLOCKED;
        }
        DeviceEntry(load(&self.devices, at))
    }

    /// Has the unit take commands from the queue, and note events in the log, from their starts.
    fn set_rings(&self) {
        let registers = self.registers;
        let commands = amdvi::buffer(self.queue.bus_address());
        let events = amdvi::buffer(self.log.lock().ring.bus_address());
        registers.write(offset::COMMANDS, commands);
        registers.write(offset::EVENTS, events);
        for position in [
            offset::COMMAND_HEAD,
            offset::COMMAND_TAIL,
            offset::EVENT_HEAD,
            offset::EVENT_TAIL,
        ] {
            registers.write(position, 0_u64);
        }
    }

    /// Sets what a function reaches. It reaches nothing while that is half written.
    fn set(&self, function: u16, DeviceEntry([first, second]): DeviceEntry) {
        let at = DeviceEntry::place(function);
        let DeviceEntry([blocked, _]) = DeviceEntry::BLOCKED;
        self.devices.store64(at, blocked);
        self.devices.store64(at + 8, second);
        self.devices.store64(at, first);
    }

    fn ask(&self, requests: &[Command]) -> Result<(), Unanswered> {
        let mut words = [[0; 2]; 2];
        for (words, request) in words.iter_mut().zip(requests) {
            *words = request.words();
        }
        let wait_for = |at, value| {
            let value = u64::from(value);
            Command::Wait { at, value }.words()
        };
        let tell = |tail| self.registers.write(offset::COMMAND_TAIL, tail);
        let asked = (self.queue).ask(&words[..requests.len()], wait_for, true, tell);
        asked.inspect_err(|Unanswered| {
            log::error!(
                "the IOMMU at {:#x} does not answer (status {:#x})",
                self.at,
                self.registers.read::<u64>(offset::STATUS)
            );
        })
    }

    /// Sets some bits of the control, and clears others.
    fn control(&self, set: u64, clear: u64) {
        let now: u64 = self.registers.read(offset::CONTROL);
        (self.registers).write(offset::CONTROL, now & !clear | set);
    }

    fn sender(&self, number: u16) -> Option<&InterruptTable> {
        let mut senders = self.senders.iter();
        let (_, table) = senders.find(|(sender, _)| *sender == number)?;
        table.as_ref()
    }

    /// Adds a sender, whose reach is as it was. `Err` without memory, or beyond all buses.
    fn add_sender(&mut self, number: u16) -> Result<(), ()> {
        if self.senders.iter().any(|(sender, _)| *sender == number) {
            return Ok(());
        }
        if DeviceEntry::place(number) >= self.devices.bytes() {
            return Err(());
        }
        self.senders.try_reserve(1).map_err(drop)?;
        self.senders.push((number, None));
        Ok(())
    }

    /// Sets what all entries say of interrupts, and has the unit know.
    fn set_interrupts(&self, word: impl Fn(Option<u64>) -> u64) -> Result<(), Unanswered> {
        for at in (0..self.devices.bytes()).step_by(DeviceEntry::BYTES) {
            let number = (at / DeviceEntry::BYTES) as u16;
            let table = self.sender(number);
            let word = word(table.map(|table| table.table.bus_address()));
            self.devices.store64(at + DeviceEntry::INTERRUPTS, word);
        }
        self.ask(&[Command::All])
    }
}

impl Unit for AmdVi {
    fn at(&self) -> u64 {
        self.at
    }

    fn abilities(&self) -> Abilities {
        Abilities {
            domains: 1 << 16,
            three_levels: true,
            four_levels: true,
            large_pages: true,
            is_coherent: true,
            caches_absence: self.abilities.caches_absence,
            remaps_interrupts: self.abilities.long_interrupts,
            wide_ids: self.abilities.wide_ids,
        }
    }

    fn goes_on(&self) -> bool {
        self.goes_on
    }

    fn add(&mut self, function: u16) -> Result<(), ()> {
        self.add_sender(function)?;
        if self.goes_on && self.entry(function) != DeviceEntry::passed(PASSING) {
            self.set(function, DeviceEntry::BLOCKED);
            return Ok(());
        }
        self.set(function, DeviceEntry::passed(PASSING));
        Ok(())
    }

    fn change(&self, function: u16, before: u16, reach: Reach) -> Result<(), Unanswered> {
        let entry = match reach {
            Reach::Nothing => DeviceEntry::BLOCKED,
            Reach::Everything => DeviceEntry::passed(PASSING),
            Reach::Domain(number, root, geometry) => {
                DeviceEntry::translated(number, root, geometry)
            }
        };
        self.set(function, entry);
        self.ask(&[Command::Device(function), Command::Translations(before)])
    }

    fn block(&self, function: u16) -> Result<(), Unanswered> {
        self.set(function, DeviceEntry::BLOCKED);
        self.ask(&[Command::All])
    }

    fn reach(&self, function: u16, geometry: Geometry) -> Option<Reach> {
        match self.entry(function) {
            DeviceEntry::BLOCKED => Some(Reach::Nothing),
            entry if entry == DeviceEntry::passed(PASSING) => Some(Reach::Everything),
            entry => {
                let (number, root) = entry.domain(geometry)?;
                Some(Reach::Domain(number, root, geometry))
            }
        }
    }

    fn hold_others(&self, is_known: &dyn Fn(u16) -> bool) {
        for at in (0..self.devices.bytes()).step_by(DeviceEntry::BYTES) {
            let function = (at / DeviceEntry::BYTES) as u16;
            if self.entry(function) != DeviceEntry::BLOCKED && !is_known(function) {
                self.set(function, DeviceEntry::BLOCKED);
            }
        }
    }

    fn go_on(&self) -> Result<(), Unanswered> {
        // What the queue before this one asks for it need not do: all is forgotten below.
        self.control(
            0,
            control::EVENT_INTERRUPT | control::LOG_EVENTS | control::COMMANDS,
        );
        let works = status::LOGS_EVENTS | status::DOES_COMMANDS;
        if !wait(|| self.registers.read::<u64>(offset::STATUS) & works == 0) {
            return Err(Unanswered);
        }
        self.set_rings();
        self.control(control::COMMANDS | control::LOG_EVENTS, 0);
        self.ask(&[Command::All])
    }

    fn forget(&self, domain: u16) -> Result<(), Unanswered> {
        self.ask(&[Command::Translations(domain)])
    }

    fn switch_on(&self) -> Result<(), Unanswered> {
        self.switch_off();
        let registers = self.registers;
        let devices = amdvi::device_table(self.devices.bus_address(), self.devices.bytes());
        registers.write(offset::DEVICE_TABLE, devices);
        self.set_rings();
        let mut set = control::wanted(self.flags) | control::COHERENT;
        if self.abilities.long_interrupts {
            set |= control::LONG_INTERRUPTS;
        }
        if self.abilities.wide_ids && role::has_x2apic() {
            set |= control::WIDE_IDS;
        }
        self.control(set, 0);
        self.control(control::ENABLE | control::COMMANDS | control::LOG_EVENTS, 0);
        self.ask(&[Command::All])
    }

    fn switch_off(&self) {
        self.control(0, control::EVENT_INTERRUPT | control::LOG_EVENTS);
        self.control(0, control::COMMANDS);
        self.control(
            0,
            control::ENABLE | control::LONG_INTERRUPTS | control::WIDE_IDS,
        );
    }

    fn is_remapping(&self) -> bool {
        self.senders.iter().any(|(number, _)| {
            let at = DeviceEntry::place(*number) + DeviceEntry::INTERRUPTS;
            (self.devices.load64(at)).is_some_and(|word| amdvi::interrupts_at(word).is_some())
        })
    }

    fn add_interrupts(&mut self) -> Result<(), ()> {
        for (_, table) in &mut self.senders {
            if table.is_none() {
                *table = Some(InterruptTable::new(INTERRUPTS).ok_or(())?);
            }
        }
        Ok(())
    }

    fn take_lines(&mut self, controller: u16, order: u8) -> Option<u16> {
        self.add_sender(controller).ok()?;
        let mut senders = self.senders.iter_mut();
        let (_, table) = senders.find(|(sender, _)| *sender == controller)?;
        if table.is_none() {
            *table = Some(InterruptTable::new(INTERRUPTS)?);
        }
        // The controller is told of the end of an interrupt by its vector, and takes the number of
        // the entry for that.
        let first = u16::from(ISA_VECTOR);
        table.as_ref()?.take_at(first, order).then_some(first)
    }

    fn interrupts(&self, function: u16) -> Option<&InterruptTable> {
        self.sender(function)
    }

    fn clear_free_entries(&self) {
        let tables = self.senders.iter().filter_map(|(_, table)| table.as_ref());
        tables.for_each(|table| table.clear_free(true));
    }

    fn interrupt_entry(&self, _: Sender, target: Target) -> Option<[u64; 2]> {
        let entry = InterruptEntry::new(target.vector, target.apic_id, role::has_x2apic());
        entry.map(|InterruptEntry(words)| words)
    }

    fn forget_interrupts(&self, sender: Sender, _: u16, _: u8) -> Result<(), Unanswered> {
        self.ask(&[Command::Interrupts(sender.number)])
    }

    fn message(&self, first: u16) -> Message {
        Message {
            address: amdvi::interrupt_message(),
            data: first.into(),
        }
    }

    fn message_entry(&self, address: u64) -> Option<u16> {
        (address == amdvi::interrupt_message()).then_some(0)
    }

    fn line(&self, index: u16, _: u8) -> u64 {
        amdvi::interrupt_line(index)
    }

    fn remap_interrupts(&self) -> Result<(), Unanswered> {
        self.set_interrupts(amdvi::interrupt_control)
    }

    fn pass_interrupts(&self) {
        if self.set_interrupts(|_| 0).is_err() {
            log::error!(
                "the IOMMU at {:#x} does not stop remapping interrupts",
                self.at
            );
        }
    }

    fn report_faults(&self, message: Option<Message>) -> bool {
        let Some(message) = message else {
            self.control(0, control::EVENT_INTERRUPT);
            return false;
        };
        if let Some(msi) = Msi::find(&self.config) {
            msi.enable(&self.config, message.address, message.data);
        }
        (self.registers).write(offset::STATUS, status::EVENT_INTERRUPT);
        self.control(control::EVENT_INTERRUPT, 0);
        // It sends the message for what comes from now on.
        let tail: u64 = self.registers.read(offset::EVENT_TAIL);
        tail != self.log.lock().next as u64
    }

    fn take_faults(&self, each: &mut dyn FnMut(Refused)) -> bool {
        let registers = self.registers;
        let mut log = self.log.lock();
        for _ in 0..EVENTS {
            let word = |offset| log.ring.load64(log.next + offset).unwrap_or(0);
            let words = [word(0), word(8)];
            let tail: u64 = registers.read(offset::EVENT_TAIL);
            // One that it has only begun to write is found the next time.
            if tail == log.next as u64 || words[0] == 0 {
                break;
            }
            log.ring.store64(log.next, 0);
            log.next = (log.next + Event::BYTES) % PAGE;
            registers.write(offset::EVENT_HEAD, log.next as u64);
            if let Some(event) = Event::read(words) {
                let number = u32::from(self.segment) << 16 | u32::from(event.function);
                each(Refused {
                    function: Address::from_number(number),
                    access: event.access,
                    address: event.address,
                    reason: event.code,
                });
            }
        }
        let now: u64 = registers.read(offset::STATUS);
        let is_lost = now & status::EVENT_OVERFLOW != 0;
        if is_lost {
            // It logs again when it is told to.
            self.control(0, control::LOG_EVENTS);
            registers.write(offset::STATUS, status::EVENT_OVERFLOW);
            self.control(control::LOG_EVENTS, 0);
        }
        is_lost
    }
}
