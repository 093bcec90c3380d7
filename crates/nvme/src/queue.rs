//! A submission queue and its completion queue: commands in flight, and their results (section
//! 4.1).

use alloc::vec::Vec;
use core::fmt;

use arrayvec::ArrayVec;
use virtqueue::{Address, Memory};

use crate::PAGE;
use crate::command::{Command, Place, range};
use crate::completion::{self, Completion, Failure, Rule, Status};
use crate::runs::{Descriptor, runs};

/// Pages of a command's data, at most.
pub const MAX_PAGES: usize = 32;
/// Bytes of a command's list, of all pages but the first, or of runs: a piece that lies in one
/// page.
const LIST: usize = 8 * MAX_PAGES;
/// Times that a command is offered, at most: again after a reset, but not after two.
const OFFERS: u8 = 2;

/// Data of a command.
#[derive(Clone, Copy, Debug)]
pub enum Data<'a> {
    /// No data.
    None,
    /// Whole pages, [`MAX_PAGES`] at most; of the last one the device may need a part only.
    Pages(&'a [Address]),
    /// Blocks in such pages, which the controller may be told of by runs.
    Blocks {
        /// The pages.
        pages: &'a [Address],
        /// Bytes of the blocks.
        bytes: usize,
    },
    /// A range of blocks to give up.
    Range {
        /// First block.
        first: u64,
        /// Number of blocks.
        count: u32,
    },
}

/// Why a command was not submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is no room for it now.
    Full,
    /// A command has more pages than a list takes.
    TooLarge,
    /// The controller broke a rule: nothing goes on until it was reset.
    Broken(Rule),
    /// The controller did not come back from a reset.
    Gone,
}

/// A command that was not submitted: its value, and why.
#[derive(Debug)]
pub struct Refused<V> {
    /// The value that it came with.
    pub value: V,
    /// Why it was not submitted.
    pub why: Refusal,
}

/// A command that the controller has, and what is needed to offer it again.
struct InFlight<V> {
    command: Command,
    value: V,
    offers: u8,
}

/// A place of a command in flight.
struct Slot<V> {
    /// Upper half of the identifier of the slot's next command: so a completion of the one before
    /// is not taken for one of this.
    use_count: u8,
    /// Contents of the command's list of pages, or its range.
    list: ArrayVec<u8, LIST>,
    in_flight: Option<InFlight<V>>,
}

/// A queue pair. The value of a command is kept until it is over, and is given back once.
pub struct Queue<M, V> {
    number: u16,
    memory: M,
    base: Address,
    entries: u16,
    slots: Vec<Slot<V>>,
    /// Slots without a command, a bit each.
    free: u128,
    used: usize,
    /// Place of the next command, and what the controller was told of it.
    tail: u16,
    told_tail: u16,
    /// Place of the next completion, and what the controller was told of it.
    head: u16,
    told_head: u16,
    /// The phase of a completion that is new.
    phase: bool,
    broken: Option<Rule>,
    is_gone: bool,
    takes_runs: bool,
}

impl<M, V> fmt::Debug for Queue<M, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue")
            .field("number", &self.number)
            .field("used", &self.used)
            .field("broken", &self.broken)
            .finish_non_exhaustive()
    }
}

/// Bytes of a ring, in whole pages.
const fn ring(entries: u16, bytes: u64) -> u64 {
    (entries as u64 * bytes).next_multiple_of(PAGE as u64)
}

/// A number with so many bits set, from the lowest on.
fn all_of(count: usize) -> u128 {
    u128::MAX
        .checked_shr(u128::BITS - count as u32)
        .unwrap_or(0)
}

impl<M: Memory, V> Queue<M, V> {
    /// Entries of a queue, at most: identifiers hold a slot in 8 bits, and none is all ones.
    pub const MAX_ENTRIES: u16 = 128;

    /// Bytes that a queue of so many entries needs, from the beginning of a page on.
    #[must_use]
    pub const fn bytes(entries: u16) -> u64 {
        ring(entries, Command::BYTES as u64)
            + ring(entries, completion::BYTES)
            + ring(entries, LIST as u64)
    }

    /// A queue in zeroed memory; `None` without memory.
    pub(crate) fn new(number: u16, memory: M, base: Address, entries: u16) -> Option<Self> {
        let mut slots = Vec::new();
        // An entry is never used, so that a full queue is not an empty one.
        let len = usize::from(entries.min(Self::MAX_ENTRIES) - 1);
        slots.try_reserve_exact(len).ok()?;
        slots.resize_with(len, || Slot {
            use_count: 0,
            list: ArrayVec::new(),
            in_flight: None,
        });
        let is_whole = base.number().is_multiple_of(PAGE as u64);
        if !is_whole || !memory.reaches(base, Self::bytes(entries)) {
            return None;
        }
        Some(Self {
            number,
            memory,
            base,
            entries,
            free: all_of(slots.len()),
            slots,
            used: 0,
            tail: 0,
            told_tail: 0,
            head: 0,
            told_head: 0,
            phase: true,
            broken: None,
            is_gone: false,
            takes_runs: false,
        })
    }

    /// Number of the queue; 0 is the admin queue.
    #[must_use]
    pub const fn number(&self) -> u16 {
        self.number
    }

    pub(crate) const fn entries(&self) -> u16 {
        self.entries
    }

    pub(crate) const fn submissions(&self) -> Address {
        self.base
    }

    pub(crate) const fn completions(&self) -> Address {
        self.base.plus(ring(self.entries, Command::BYTES as u64))
    }

    fn list(&self, slot: usize) -> Address {
        let rings = ring(self.entries, completion::BYTES);
        self.completions().plus(rings + (slot * LIST) as u64)
    }

    pub(crate) const fn memory(&self) -> &M {
        &self.memory
    }

    /// Commands that the controller has.
    #[must_use]
    pub const fn in_flight(&self) -> usize {
        self.used
    }

    /// The rule that was broken, until a reset.
    #[must_use]
    pub const fn broken(&self) -> Option<Rule> {
        self.broken
    }

    /// Notes that the controller broke a rule.
    pub const fn fail(&mut self, rule: Rule) {
        self.broken = Some(rule);
    }

    /// Puts a command into the queue. The controller hears of it by `Controller::ring`.
    ///
    /// # Errors
    /// [`Refused`], with the value; nothing is changed.
    pub fn submit(&mut self, command: Command, data: Data<'_>, value: V) -> Result<(), Refused<V>> {
        let refuse = |value, why| Err(Refused { value, why });
        if self.is_gone {
            return refuse(value, Refusal::Gone);
        }
        if let Some(rule) = self.broken {
            return refuse(value, Refusal::Broken(rule));
        }
        if let Data::Pages(pages) | Data::Blocks { pages, .. } = data
            && pages.len() > MAX_PAGES
        {
            return refuse(value, Refusal::TooLarge);
        }
        if self.free == 0 {
            return refuse(value, Refusal::Full);
        }
        let slot = self.free.trailing_zeros() as usize;
        self.free &= self.free - 1;
        let place = self.place(slot, data);
        let entry = &mut self.slots[slot];
        let id = u16::from(entry.use_count) << 8 | slot as u16;
        entry.use_count = entry.use_count.wrapping_add(1);
        entry.in_flight = Some(InFlight {
            command: command.complete(id, place),
            value,
            offers: 0,
        });
        self.used += 1;
        self.offer(slot);
        Ok(())
    }

    /// The place of a command's data; fills the slot's list.
    fn place(&mut self, slot: usize, data: Data<'_>) -> Place {
        let (at, none) = (self.list(slot), Address::new(0));
        let list = &mut self.slots[slot].list;
        list.clear();
        let pages = match data {
            Data::None => &[],
            Data::Pages(pages) => pages,
            Data::Blocks { pages, bytes } => {
                if self.takes_runs
                    && let Some(descriptor) = place_by_runs(at, pages, bytes, list)
                {
                    return Place::Runs(descriptor);
                }
                pages
            }
            Data::Range { first, count } => {
                list.extend(range(first, count));
                return Place::Pages([at, none]);
            }
        };
        Place::Pages(match pages {
            [] => [none; 2],
            [page] => [*page, none],
            [first, second] => [*first, *second],
            [first, rest @ ..] => {
                for page in rest {
                    list.extend(page.number().to_le_bytes());
                }
                [*first, at]
            }
        })
    }

    /// Has blocks told by runs: the controller says that it takes them.
    pub(crate) const fn take_runs(&mut self, takes_runs: bool) {
        self.takes_runs = takes_runs;
    }

    /// Writes a slot's command into the ring. There is room: it has more entries than slots.
    fn offer(&mut self, slot: usize) {
        let place = self.list(slot);
        let at = self.base.plus(u64::from(self.tail) * Command::BYTES as u64);
        let Slot {
            list, in_flight, ..
        } = &mut self.slots[slot];
        let Some(command) = in_flight else {
            return;
        };
        command.offers += 1;
        let listed = match list.is_empty() {
            true => Ok(()),
            false => self.memory.write(place, list),
        };
        let written = listed.and_then(|()| self.memory.write(at, command.command.bytes()));
        if written.is_err() {
            self.broken = Some(Rule::Memory);
            return;
        }
        self.tail = (self.tail + 1) % self.entries;
    }

    /// Takes a command that is over, if there is one.
    ///
    /// # Errors
    /// The rule that the controller broke, from then on until a reset.
    pub fn take(&mut self) -> Result<Option<Completion<V>>, Rule> {
        if let Some(rule) = self.broken {
            return Err(rule);
        }
        self.try_take()
            .inspect_err(|rule| self.broken = Some(*rule))
    }

    fn try_take(&mut self) -> Result<Option<Completion<V>>, Rule> {
        if self.is_gone {
            return Ok(None);
        }
        let at = self
            .completions()
            .plus(u64::from(self.head) * completion::BYTES);
        // The phase first: what it stands for was written before. It is the copy that counts.
        let status = self
            .memory
            .load16(at.plus(completion::STATUS))
            .map_err(|_| Rule::Memory)?;
        if (status & 1 != 0) != self.phase {
            return Ok(None);
        }
        let mut entry = [0; completion::STATUS as usize];
        self.memory.read(at, &mut entry).map_err(|_| Rule::Memory)?;
        let [a, b, c, d, .., queue_low, queue_high, id_low, id_high] = entry;
        let queue = u16::from_le_bytes([queue_low, queue_high]);
        let id = u16::from_le_bytes([id_low, id_high]);
        if queue != self.number {
            return Err(Rule::Queue(queue));
        }
        let slot = self.slots.get_mut(usize::from(id & 0xff));
        let done = slot
            .and_then(|slot| slot.in_flight.take_if(|it| it.command.id() == id))
            .ok_or(Rule::Id(id))?;
        self.free |= 1 << (id & 0xff);
        self.used -= 1;
        self.head += 1;
        if self.head == self.entries {
            self.head = 0;
            self.phase = !self.phase;
        }
        let outcome = match Status::of_word(status) {
            Status::SUCCESS => Ok(u32::from_le_bytes([a, b, c, d])),
            status => Err(Failure::Status(status)),
        };
        Ok(Some(Completion {
            value: done.value,
            outcome,
            field: status >> 1,
        }))
    }

    /// The doorbells that the controller is to hear of: the submission queue's, the completion
    /// queue's.
    pub(crate) fn untold(&mut self) -> [Option<u16>; 2] {
        let tail = (self.tail != self.told_tail).then_some(self.tail);
        let head = (self.head != self.told_head).then_some(self.head);
        (self.told_tail, self.told_head) = (self.tail, self.head);
        [tail, head]
    }

    /// The identifier of a command in flight whose value is the one.
    pub(crate) fn find(&self, mut is_it: impl FnMut(&V) -> bool) -> Option<u16> {
        let mut in_flight = self.slots.iter().flat_map(|slot| &slot.in_flight);
        in_flight
            .find(|command| is_it(&command.value))
            .map(|command| command.command.id())
    }

    /// Empties the rings: the controller has stopped.
    pub(crate) fn take_back(&mut self) {
        (self.tail, self.told_tail, self.head, self.told_head) = (0, 0, 0, 0);
        self.phase = true;
        self.broken = None;
        let zeros = [0; completion::BYTES as usize];
        for entry in 0..u64::from(self.entries) {
            let at = self.completions().plus(entry * completion::BYTES);
            if self.memory.write(at, &zeros).is_err() {
                self.broken = Some(Rule::Memory);
            }
        }
    }

    /// Has the queue take commands again.
    pub(crate) const fn come_back(&mut self) {
        self.is_gone = false;
    }

    /// Says that the next reset is nobody's fault here: it does not count for what is in flight.
    pub fn forgive(&mut self) {
        for command in self.slots.iter_mut().flat_map(|slot| &mut slot.in_flight) {
            command.offers = command.offers.saturating_sub(1);
        }
    }

    /// Offers everything again that was in flight; what was offered again before ends.
    pub(crate) fn offer_again(&mut self, mut ended: impl FnMut(Completion<V>)) {
        for slot in 0..self.slots.len() {
            let in_flight = &mut self.slots[slot].in_flight;
            if let Some(over) = in_flight.take_if(|command| command.offers >= OFFERS) {
                self.free |= 1 << slot;
                self.used -= 1;
                ended(Completion {
                    value: over.value,
                    outcome: Err(Failure::Gone),
                    field: 0,
                });
            }
            self.offer(slot);
        }
    }

    /// Ends everything: the controller has stopped, and does not come back.
    pub(crate) fn give_up(&mut self, mut ended: impl FnMut(Completion<V>)) {
        self.is_gone = true;
        self.broken = None;
        self.free = all_of(self.slots.len());
        self.used = 0;
        for command in self.slots.iter_mut().filter_map(|it| it.in_flight.take()) {
            ended(Completion {
                value: command.value,
                outcome: Err(Failure::Gone),
                field: 0,
            });
        }
    }
}

/// The place of data by its runs, if that is shorter than by pages; `list` is at `at`, and empty.
fn place_by_runs(
    at: Address,
    pages: &[Address],
    bytes: usize,
    list: &mut ArrayVec<u8, LIST>,
) -> Option<Descriptor> {
    if pages.len() <= 2 {
        return None;
    }
    let count = runs(pages, bytes).count();
    let mut runs = runs(pages, bytes).map(Descriptor::data);
    if count == 1 {
        return runs.next();
    }
    let len = count * Descriptor::BYTES;
    if len > (pages.len() - 1) * 8 {
        return None;
    }
    runs.for_each(|run| list.extend(run.0));
    Some(Descriptor::last_segment(at, len))
}
