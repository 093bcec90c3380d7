//! One unit: its registers, its tables of functions, and its queue of requests.
//!
//! A unit does what it is told within microseconds. One that does not is never taken for one that
//! did: what depended on it is not proven, and is asked for again.

use alloc::vec::Vec;

use guard::device::{self, DmaBlock, MmioRegion};
use lfmutex::Mutex;
use pci::Address;
use task::Deadline;
use vtd::{
    Abilities, Command, ContextEntry, Descriptor, INTERRUPT_TABLE_ORDER, InterruptEntry,
    QUEUE_ENTRIES, RootEntry, offset, status,
};

use crate::{PASSING, StartError, number_of};

/// Bytes of a table, and of a queue.
const PAGE: usize = 4096;
/// Looks at a register before the thread sleeps in between, and looks after that, a millisecond
/// apart.
const LOOKS: usize = 1000;

/// A unit did not say that it has done what it was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unanswered;

pub(crate) struct Unit {
    at: u64,
    segment: u16,
    registers: MmioRegion,
    abilities: Abilities,
    root: DmaBlock,
    /// Tables of functions, by bus; none is added once the unit is on.
    buses: Vec<(u8, DmaBlock)>,
    queue: Mutex<Queue>,
    /// The table of interrupts; none is added once the unit is on.
    interrupts: Option<InterruptTable>,
}

struct InterruptTable {
    table: DmaBlock,
    /// Entries that somebody has, by bits.
    used: Mutex<[u64; INTERRUPTS / 64]>,
}

/// Entries of a table of interrupts.
const INTERRUPTS: usize = 1 << INTERRUPT_TABLE_ORDER;

struct Queue {
    ring: DmaBlock,
    /// A word that the unit writes when it has done what it was asked for.
    done: DmaBlock,
    /// Place of the next descriptor.
    next: usize,
    /// The last number that the unit was to write.
    value: u32,
}

impl Queue {
    fn is_idle(&self) -> bool {
        let mut word = [0; 4];
        self.done.read(0, &mut word).is_some() && u32::from_le_bytes(word) == self.value
    }
}

/// Looks until something is so; false if it is not after a second or so.
fn wait(is_so: impl Fn() -> bool) -> bool {
    (0..LOOKS).any(|_| is_so())
        || (0..LOOKS).any(|_| {
            task::sleep_until(Deadline::after_ns(1_000_000));
            is_so()
        })
}

/// A page of zeroes that a unit reads or writes.
pub(crate) fn page() -> Option<DmaBlock> {
    let page = DmaBlock::zeroed(PAGE)?;
    page.write_back(0, PAGE);
    Some(page)
}

impl Unit {
    /// The unit whose registers are at this physical address, as ACPI says. It is as it was.
    pub(crate) fn new(at: u64, segment: u16) -> Result<Self, StartError> {
        let map = |len| {
            // SAFETY: ACPI says that a unit's registers are there. What they have it do is up to
            // this file: it translates by tables that are its own for as long as it is on.
            unsafe { device::map(at, len) }.map_err(|_| StartError::Unreadable)
        };
        let first = map(PAGE)?;
        let abilities = Abilities::read(
            first.read(offset::CAPABILITY),
            first.read(offset::EXTENDED_CAPABILITY),
        );
        // SAFETY: what was mapped, the only copy.
        unsafe { device::unmap(first) };
        let abilities = abilities.map_err(|unable| StartError::Unable(at, unable))?;
        let page = || page().ok_or(StartError::NoMemory);
        Ok(Self {
            at,
            segment,
            registers: map(abilities.bytes)?,
            abilities,
            root: page()?,
            buses: Vec::new(),
            queue: Mutex::new(Queue {
                ring: page()?,
                done: page()?,
                next: 0,
                value: 0,
            }),
            interrupts: None,
        })
    }

    /// Adds a table of interrupts, in which there is none. `Err` without memory.
    pub(crate) fn add_interrupts(&mut self) -> Result<(), ()> {
        let bytes = INTERRUPTS * size_of::<InterruptEntry>();
        let table = DmaBlock::zeroed(bytes).ok_or(())?;
        table.write_back(0, bytes);
        self.interrupts = Some(InterruptTable {
            table,
            used: Mutex::new([0; INTERRUPTS / 64]),
        });
        Ok(())
    }

    /// Takes 2^`order` entries for interrupts, at a multiple of their number; `None` if there are
    /// not so many, or there is no table. Of `order` there may be 4 at most.
    pub(crate) fn take_entries(&self, order: u8) -> Option<u16> {
        let count = 1 << order;
        let bits = (1 << count) - 1;
        let mut used = self.interrupts.as_ref()?.used.lock();
        let mut places = (0..INTERRUPTS).step_by(count);
        let first = places.find(|first| used[first / 64] & bits << (first % 64) == 0)?;
        used[first / 64] |= bits << (first % 64);
        Some(first as u16)
    }

    /// Gives entries back that [`Self::take_entries`] has given.
    pub(crate) fn free_entries(&self, first: u16, order: u8) {
        let bits: u64 = (1 << (1 << order)) - 1;
        let first = usize::from(first);
        if let Some(interrupts) = &self.interrupts {
            interrupts.used.lock()[first / 64] &= !(bits << (first % 64));
        }
    }

    /// Sets entries for interrupts that somebody has taken; when it returns, the unit acts by them,
    /// and what it let through before has arrived.
    pub(crate) fn change_interrupts(
        &self,
        first: u16,
        order: u8,
        entry: impl Fn(u16) -> InterruptEntry,
    ) -> Result<(), Unanswered> {
        let Some(InterruptTable { table, .. }) = &self.interrupts else {
            return Ok(());
        };
        for number in 0..1 << order {
            let at = InterruptEntry::place(first + number);
            let InterruptEntry([word, source]) = entry(number);
            self.store(table, at, 0);
            self.store(table, at + 8, source);
            self.store(table, at, word);
        }
        self.ask(&[Descriptor::Interrupts { first, order }])
    }

    /// Switches on that interrupts are remapped, by the table that was added, and others refused.
    /// `wide_ids` says how that tells CPUs.
    pub(crate) fn remap_interrupts(&self, wide_ids: bool) -> Result<(), Unanswered> {
        let Some(interrupts) = &self.interrupts else {
            return Err(Unanswered);
        };
        let at = interrupts.table.bus_address();
        let word = vtd::interrupt_table(at, wide_ids);
        self.registers.write(offset::INTERRUPT_TABLE, word);
        self.command(Command::SetInterruptTable, true)?;
        self.ask(&[Descriptor::AllInterrupts])?;
        self.command(Command::RemapInterrupts, true)
    }

    /// Switches that off again.
    pub(crate) fn pass_interrupts(&self) {
        self.switch_off_one(Command::RemapInterrupts);
    }

    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    pub(crate) fn segment(&self) -> u16 {
        self.segment
    }

    pub(crate) fn registers(&self) -> MmioRegion {
        self.registers
    }

    pub(crate) fn abilities(&self) -> &Abilities {
        &self.abilities
    }

    /// Whether it has tables of four levels, and all addresses that these translate.
    pub(crate) fn has_four_levels(&self) -> bool {
        self.abilities.four_levels && self.abilities.address_bits >= 48
    }

    /// Has a function pass once the unit is on. `Err` without memory.
    pub(crate) fn add(&mut self, function: Address) -> Result<(), ()> {
        if self.table(function.bus).is_none() {
            self.buses.try_reserve(1).map_err(drop)?;
            let table = page().ok_or(())?;
            let RootEntry([entry, _]) = RootEntry::of(table.bus_address());
            self.store(&self.root, usize::from(function.bus) * 16, entry);
            self.buses.push((function.bus, table));
        }
        self.set(function, self.passed());
        Ok(())
    }

    /// The entry for a function that passes.
    pub(crate) fn passed(&self) -> ContextEntry {
        ContextEntry::passed(PASSING, self.abilities.four_levels)
    }

    fn table(&self, bus: u8) -> Option<&DmaBlock> {
        let mut buses = self.buses.iter();
        buses
            .find(|(number, _)| *number == bus)
            .map(|(_, table)| table)
    }

    /// Stores a word of a table so that the unit sees it.
    fn store(&self, table: &DmaBlock, offset: usize, word: u64) {
        table.store64(offset, word);
        if !self.abilities.is_coherent {
            table.write_back(offset, 8);
        }
    }

    /// Sets the entry for a function that was added; at no moment the unit finds half of one.
    fn set(&self, function: Address, ContextEntry([first, second]): ContextEntry) {
        let Some(table) = self.table(function.bus) else {
            return;
        };
        let at = ContextEntry::place(function.devfn());
        self.store(table, at, 0);
        self.store(table, at + 8, second);
        self.store(table, at, first);
    }

    /// Sets the entry for a function, which was of domain `before`; when it returns, the unit acts
    /// by it, and what it let through before has arrived.
    pub(crate) fn change(
        &self,
        function: Address,
        before: u16,
        entry: ContextEntry,
    ) -> Result<(), Unanswered> {
        self.set(function, entry);
        let contexts = if self.abilities.caches_absence {
            Descriptor::AllContexts
        } else {
            Descriptor::Context {
                domain: before,
                function: number_of(function),
            }
        };
        self.ask(&[contexts, Descriptor::Translations { domain: before }])
    }

    /// Has the unit do what is asked for, and waits until it has.
    pub(crate) fn ask(&self, requests: &[Descriptor]) -> Result<(), Unanswered> {
        let mut queue = self.queue.lock();
        // Of a queue that has not answered nobody knows where the unit is in it.
        if !wait(|| queue.is_idle()) {
            return Err(Unanswered);
        }
        queue.value = queue.value.wrapping_add(1);
        let last = Descriptor::Wait {
            at: queue.done.bus_address(),
            value: queue.value,
        };
        for descriptor in requests.iter().chain([&last]) {
            let at = queue.next * 16;
            for (offset, word) in (at..).step_by(8).zip(descriptor.words()) {
                self.store(&queue.ring, offset, word);
            }
            queue.next = (queue.next + 1) % QUEUE_ENTRIES;
        }
        (self.registers).write(offset::QUEUE_TAIL, queue.next as u64 * 16);
        if wait(|| queue.is_idle()) {
            return Ok(());
        }
        log::error!(
            "the IOMMU at {:#x} does not answer (status {:#x})",
            self.at,
            self.registers.read::<u32>(offset::FAULT_STATUS)
        );
        Err(Unanswered)
    }

    fn command(&self, command: Command, on: bool) -> Result<(), Unanswered> {
        let now = self.registers.read(offset::STATUS);
        (self.registers).write(offset::COMMAND, command.word(now, on));
        let is_on = || self.registers.read::<u32>(offset::STATUS) & command.bit() != 0;
        wait(|| is_on() == on).then_some(()).ok_or(Unanswered)
    }

    /// Switches translation on, by the entries that were [added](Self::add), whatever firmware has
    /// had it do before.
    pub(crate) fn switch_on(&self) -> Result<(), Unanswered> {
        self.switch_off();
        let registers = self.registers;
        registers.write(offset::FAULT_CONTROL, status::FAULT_MASKED);
        registers.write(offset::ROOT_TABLE, self.root.bus_address());
        self.command(Command::SetRoot, true)?;
        {
            let queue = self.queue.lock();
            registers.write(offset::QUEUE_TAIL, 0_u64);
            registers.write(offset::QUEUE_ADDRESS, queue.ring.bus_address());
        }
        self.command(Command::Queue, true)?;
        self.ask(&[Descriptor::AllContexts, Descriptor::AllTranslations])?;
        self.command(Command::Translate, true)?;
        // What firmware protected until now the tables do, and better.
        if registers.read::<u32>(offset::PROTECTED_MEMORY) & status::PROTECTS != 0 {
            registers.write(offset::PROTECTED_MEMORY, 0_u32);
        }
        Ok(())
    }

    /// Switches all off that a unit does.
    pub(crate) fn switch_off(&self) {
        for command in [
            Command::Translate,
            Command::RemapInterrupts,
            Command::PassUnmapped,
            Command::Queue,
        ] {
            self.switch_off_one(command);
        }
    }

    fn switch_off_one(&self, command: Command) {
        let now = self.registers.read::<u32>(offset::STATUS);
        if now & command.bit() != 0 && self.command(command, false).is_err() {
            log::error!("the IOMMU at {:#x} does not stop: {command:?}", self.at);
        }
    }
}
