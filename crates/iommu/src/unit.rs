//! Units, of whichever maker: what each can be told, and what they have in common.
//!
//! A unit does what it is told within microseconds. One that does not is never taken for one that
//! did: what depended on it is not proven, and is asked for again.

use alloc::vec::Vec;

use guard::device::{DmaBlock, Message};
use iotable::Geometry;
use lfmutex::Mutex;
use task::Deadline;

use crate::Refused;

/// Bytes of a table, and of a queue.
pub(crate) const PAGE: usize = 4096;
/// Looks at a register before the thread sleeps in between, and looks after that, a millisecond
/// apart.
const LOOKS: usize = 1000;

/// A unit did not say that it has done what it was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unanswered;

/// Abilities of a unit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Abilities {
    /// Number of domains that it tells apart.
    pub(crate) domains: u32,
    /// Flags: it has tables of three levels, and of four.
    pub(crate) three_levels: bool,
    pub(crate) four_levels: bool,
    /// Flag: an entry may stand for 2 MiB.
    pub(crate) large_pages: bool,
    /// Flag: it sees what processors have in their caches when it reads its tables.
    pub(crate) is_coherent: bool,
    /// Flag: it remembers that there was no translation.
    pub(crate) caches_absence: bool,
    /// Flags: it remaps interrupts, and tells CPUs by numbers of 32 bits then.
    pub(crate) remaps_interrupts: bool,
    pub(crate) wide_ids: bool,
}

/// Reach of a function.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reach {
    Nothing,
    Everything,
    /// Memory of a domain, by its tables: its number and their root.
    Domain(u16, u64, Geometry),
}

/// Name in which what a function sends comes to its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sender {
    /// Bus in the upper byte, device and function in the lower.
    pub(crate) number: u16,
    /// The first and the last bus, if it may have the name of anything on these: it is behind a
    /// bridge to conventional PCI.
    pub(crate) buses: Option<(u8, u8)>,
}

/// An interrupt, at a vector of a CPU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) vector: u8,
    pub(crate) apic_id: u32,
    /// Flag: it comes from a line, and as long as that is raised.
    pub(crate) is_level: bool,
}

/// A unit. Functions are told by their numbers: bus in the upper byte, device and function in the
/// lower.
pub(crate) trait Unit: Send + Sync {
    /// Physical address of its registers.
    fn at(&self) -> u64;

    fn abilities(&self) -> Abilities;

    /// Whether it goes on by the tables of a kernel before this one.
    fn goes_on(&self) -> bool;

    /// Has a function pass once the unit is on; of others nothing passes. If the unit goes on, one
    /// that does not pass is held back. `Err` without memory.
    fn add(&mut self, function: u16) -> Result<(), ()>;

    /// Sets the reach of a function that was added, which was of domain `before`; when it returns,
    /// the unit acts by it, and what it let through before has arrived.
    fn change(&self, function: u16, before: u16, reach: Reach) -> Result<(), Unanswered>;

    /// Has a function reach nothing, whatever its entry has said; when it returns, the unit acts by
    /// that, and what it let through before has arrived.
    fn block(&self, function: u16) -> Result<(), Unanswered>;

    /// Reach of a function, as its entry says; `None` if that makes no sense, or speaks of tables
    /// of another shape.
    fn reach(&self, function: u16, geometry: Geometry) -> Option<Reach>;

    /// Holds back all functions of a unit that goes on but those that are known.
    fn hold_others(&self, is_known: &dyn Fn(u16) -> bool);

    /// Has a unit that goes on act by its tables as they are now, be asked by this kernel, and be
    /// silent about faults. It translates all the while.
    fn go_on(&self) -> Result<(), Unanswered>;

    /// Has the unit forget what it knows of the addresses of a domain.
    fn forget(&self, domain: u16) -> Result<(), Unanswered>;

    /// Switches translation on, by what was [added](Self::add), whatever firmware has had it do
    /// before.
    fn switch_on(&self) -> Result<(), Unanswered>;

    /// Switches all off that a unit does.
    fn switch_off(&self);

    /// Whether it remaps interrupts now.
    fn is_remapping(&self) -> bool;

    /// Adds tables of interrupts for what was added, in which there are none, where none go on.
    /// `Err` without memory.
    fn add_interrupts(&mut self) -> Result<(), ()>;

    /// Takes an entry for each line of a controller, and returns the first. `None` without memory.
    fn take_lines(&mut self, controller: u16, order: u8) -> Option<u16>;

    /// The table in which interrupts of a function have their entries.
    fn interrupts(&self, function: u16) -> Option<&InterruptTable>;

    /// Empties all entries for interrupts that nobody has. The unit may remember them until it is
    /// asked to forget.
    fn clear_free_entries(&self);

    /// The entry by which a sender interrupts; `None` if the unit cannot tell the CPU.
    fn interrupt_entry(&self, sender: Sender, target: Target) -> Option<[u64; 2]>;

    /// Has the unit forget what it knows of 2^`order` entries for interrupts of a sender; when it
    /// returns, what it let through before has arrived.
    ///
    /// # Errors
    /// [`Unanswered`].
    fn forget_interrupts(&self, sender: Sender, first: u16, order: u8) -> Result<(), Unanswered>;

    /// Sets 2^`order` entries for interrupts of a sender; when it returns, the unit acts by them,
    /// and what it let through before has arrived. `target` says of each number what it is.
    ///
    /// # Errors
    /// [`Unanswered`].
    fn change_interrupts(
        &self,
        sender: Sender,
        first: u16,
        order: u8,
        target: &dyn Fn(u16) -> Option<Target>,
    ) -> Result<(), Unanswered> {
        if let Some(table) = self.interrupts(sender.number) {
            let is_coherent = self.abilities().is_coherent;
            for number in 0..1 << order {
                let entry = target(number).and_then(|to| self.interrupt_entry(sender, to));
                table.set(first + number, entry.unwrap_or(ABSENT), is_coherent);
            }
        }
        self.forget_interrupts(sender, first, order)
    }

    /// The message that names an entry; those behind have the same address, and numbers in a row.
    fn message(&self, first: u16) -> Message;

    /// The entry that messages to an address name first; `None` if that is no address of a
    /// [message](Self::message).
    fn message_entry(&self, address: u64) -> Option<u16>;

    /// The word by which a controller of lines names the entry of a vector.
    fn line(&self, index: u16, vector: u8) -> u64;

    /// Switches on that interrupts are remapped, by the tables that were added, and others refused.
    fn remap_interrupts(&self) -> Result<(), Unanswered>;

    /// Switches that off again.
    fn pass_interrupts(&self);

    /// Has the unit send this message when it has refused something, or none. True if it has
    /// something to tell already for which it sends none.
    fn report_faults(&self, message: Option<Message>) -> bool;

    /// Calls `each` for every report there is; true if more was refused than there was room to
    /// report.
    fn take_faults(&self, each: &mut dyn FnMut(Refused)) -> bool;
}

/// Looks until something is so; false if it is not after a second or so.
pub(crate) fn wait(is_so: impl Fn() -> bool) -> bool {
    (0..LOOKS).any(|_| is_so())
        || (0..LOOKS).any(|_| {
            task::sleep_until(Deadline::after_ns(1_000_000));
            is_so()
        })
}

/// A block of zeroes that a unit reads or writes.
pub(crate) fn block(bytes: usize) -> Option<DmaBlock> {
    let block = DmaBlock::for_unit(bytes)?;
    block.write_back(0, bytes);
    Some(block)
}

/// A page of zeroes that a unit reads or writes.
pub(crate) fn page() -> Option<DmaBlock> {
    block(PAGE)
}

/// A page that a unit read or wrote of a kernel before this one, as it is.
pub(crate) fn page_of_before(at: u64) -> Option<DmaBlock> {
    DmaBlock::taken_over(at, PAGE)
}

/// Loads an entry of two words.
pub(crate) fn load(table: &DmaBlock, offset: usize) -> [u64; 2] {
    [offset, offset + 8].map(|at| table.load64(at).expect("an entry is in its table"))
}

/// Stores a word so that a unit sees it.
pub(crate) fn store(table: &DmaBlock, offset: usize, word: u64, is_coherent: bool) {
    table.store64(offset, word);
    if !is_coherent {
        table.write_back(offset, 8);
    }
}

/// Stores an entry of two words, whose first one has the bit by which it counts.
pub(crate) fn store_entry(table: &DmaBlock, offset: usize, entry: [u64; 2], is_coherent: bool) {
    store(table, offset, 0, is_coherent);
    store(table, offset + 8, entry[1], is_coherent);
    store(table, offset, entry[0], is_coherent);
}

/// Requests of a unit: a ring of one page, of 16 bytes each.
pub(crate) struct Queue(Mutex<Requests>);

struct Requests {
    ring: DmaBlock,
    /// A word that the unit writes when it has done what it was asked for.
    done: DmaBlock,
    /// Place of the next request, in bytes.
    next: usize,
    /// The last number that the unit was to write.
    value: u32,
}

impl Requests {
    fn is_idle(&self) -> bool {
        let mut word = [0; 4];
        self.done.read(0, &mut word).is_some() && u32::from_le_bytes(word) == self.value
    }
}

impl Queue {
    /// An empty one; `None` without memory.
    pub(crate) fn new() -> Option<Self> {
        Some(Self(Mutex::new(Requests {
            ring: page()?,
            done: page()?,
            next: 0,
            value: 0,
        })))
    }

    /// Address of the ring.
    pub(crate) fn bus_address(&self) -> u64 {
        self.0.lock().ring.bus_address()
    }

    /// Has a unit do what is asked for, and waits until it has. `wait_for` is the request to write
    /// a number to an address then; `tell` tells the unit where the last request ends.
    pub(crate) fn ask(
        &self,
        requests: &[[u64; 2]],
        wait_for: impl FnOnce(u64, u32) -> [u64; 2],
        is_coherent: bool,
        tell: impl FnOnce(u64),
    ) -> Result<(), Unanswered> {
        let mut queue = self.0.lock();
        // Of a queue that has not answered nobody knows where the unit is in it.
        if !wait(|| queue.is_idle()) {
            return Err(Unanswered);
        }
        queue.value = queue.value.wrapping_add(1);
        let last = wait_for(queue.done.bus_address(), queue.value);
        for [low, high] in requests.iter().chain([&last]) {
            store(&queue.ring, queue.next, *low, is_coherent);
            store(&queue.ring, queue.next + 8, *high, is_coherent);
            queue.next = (queue.next + 16) % PAGE;
        }
        tell(queue.next as u64);
        wait(|| queue.is_idle()).then_some(()).ok_or(Unanswered)
    }
}

/// An entry that interrupts nobody.
const ABSENT: [u64; 2] = [0; 2];

/// A table of interrupts, of 16 bytes each.
pub(crate) struct InterruptTable {
    pub(crate) table: DmaBlock,
    /// Entries that somebody has, by bits.
    used: Mutex<Vec<u64>>,
}

impl InterruptTable {
    const ENTRY: usize = 16;

    /// A table with so many entries, a multiple of 64; `None` without memory.
    pub(crate) fn new(entries: usize) -> Option<Self> {
        Self::of(block(entries * Self::ENTRY)?, entries)
    }

    /// The table at an address of a kernel before this one, as it is; nobody has its entries.
    /// `None` if it is none, or without memory.
    pub(crate) fn taken_over(at: u64, entries: usize) -> Option<Self> {
        Self::of(DmaBlock::taken_over(at, entries * Self::ENTRY)?, entries)
    }

    fn of(table: DmaBlock, entries: usize) -> Option<Self> {
        let mut used = Vec::new();
        used.try_reserve_exact(entries / 64).ok()?;
        used.resize(entries / 64, 0);
        Some(Self {
            table,
            used: Mutex::new(used),
        })
    }

    fn bits(first: u16, order: u8) -> (usize, u64) {
        let bits = (1 << (1 << order)) - 1;
        (usize::from(first) / 64, bits << (first % 64))
    }

    /// Takes 2^`order` entries, 16 at most, at a multiple of their number; `None` if there are not
    /// so many.
    pub(crate) fn take(&self, order: u8) -> Option<u16> {
        let mut used = self.used.lock();
        let mut places = (0..used.len() as u16 * 64).step_by(1 << order);
        let first = places.find(|first| {
            let (word, bits) = Self::bits(*first, order);
            used[word] & bits == 0
        })?;
        let (word, bits) = Self::bits(first, order);
        used[word] |= bits;
        Some(first)
    }

    /// Takes these entries, 2^`order` of them; false if there are not such, or somebody has one.
    pub(crate) fn take_at(&self, first: u16, order: u8) -> bool {
        let (word, bits) = Self::bits(first, order);
        let mut used = self.used.lock();
        let used = used.get_mut(word).filter(|used| **used & bits == 0);
        let is_place = first.is_multiple_of(1 << order);
        used.filter(|_| is_place)
            .map(|used| *used |= bits)
            .is_some()
    }

    /// Empties all entries that nobody has.
    pub(crate) fn clear_free(&self, is_coherent: bool) {
        let used = self.used.lock();
        for index in (0..used.len() * 64).filter(|index| used[index / 64] >> (index % 64) & 1 == 0)
        {
            if self.entry(index as u16) != ABSENT {
                self.set(index as u16, ABSENT, is_coherent);
            }
        }
    }

    /// An entry.
    pub(crate) fn entry(&self, index: u16) -> [u64; 2] {
        load(&self.table, usize::from(index) * Self::ENTRY)
    }

    /// Gives entries back that were taken.
    pub(crate) fn free(&self, first: u16, order: u8) {
        let (word, bits) = Self::bits(first, order);
        self.used.lock()[word] &= !bits;
    }

    /// Sets an entry.
    pub(crate) fn set(&self, index: u16, entry: [u64; 2], is_coherent: bool) {
        store_entry(
            &self.table,
            usize::from(index) * Self::ENTRY,
            entry,
            is_coherent,
        );
    }
}
