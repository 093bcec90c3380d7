//! The driver half of a queue.

use alloc::vec::Vec;
use core::fmt;
use core::iter::once;

use crate::layout::{DESCRIPTOR, Descriptor, Features, Flags, Left, Piece, Setup, SetupError};
use crate::memory::{Address, Memory};
use crate::rule::Rule;
use crate::sync::{Ordering, fence};
use crate::{packed, split};

/// Memory for tables of descriptors: one for each chain that can be in flight (section 2.7.5.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tables {
    /// Address of the first table; the others follow.
    pub at: Address,
    /// Descriptors of each: no more than the queue has.
    pub entries: u16,
}

impl Tables {
    /// Bytes of tables for a queue.
    #[must_use]
    pub fn bytes(size: u16, entries: u16) -> u64 {
        DESCRIPTOR * u64::from(size) * u64::from(entries)
    }

    fn table(&self, head: u16) -> Address {
        self.at.plus(Self::bytes(head, self.entries))
    }
}

/// A chain that the device has used.
#[derive(Debug, PartialEq, Eq)]
pub struct Done<T> {
    /// The value that it was added with.
    pub value: T,
    /// Bytes that the device says it has written, from the start of the writable pieces: at most
    /// all of them.
    pub written: u32,
}

/// Why a chain was not added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is no room for it now.
    Full,
    /// There is never room for so many pieces.
    TooManyPieces,
    /// A chain of no pieces.
    Empty,
    /// More bytes than 2^32, or more writable ones than a length can tell.
    TooManyBytes,
    /// The queue is broken.
    Broken(Rule),
}

/// A chain that was not added: its value, and why.
#[derive(Debug)]
pub struct Refused<T> {
    /// The value that it came with.
    pub value: T,
    /// Why it was not added.
    pub why: Refusal,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => f.write_str("the queue is full"),
            Self::TooManyPieces => f.write_str("the queue has no room for so many pieces"),
            Self::Empty => f.write_str("a chain of no pieces"),
            Self::TooManyBytes => f.write_str("a chain of too many bytes"),
            Self::Broken(rule) => write!(f, "the queue is broken: {rule}"),
        }
    }
}

impl core::error::Error for Refusal {}

/// A descriptor as the driver knows it. The device could write into the table itself, so that is
/// never read.
#[derive(Debug)]
struct Slot<T> {
    /// The next free descriptor, or of the chain.
    next: u16,
    /// The chain in flight that begins here.
    chain: Option<InFlight<T>>,
}

#[derive(Debug)]
struct InFlight<T> {
    value: T,
    /// Last descriptor of the chain in the ring's table, and the number that it has there.
    last: u16,
    len: u16,
    writable: u32,
}

#[derive(Debug)]
enum Ring {
    Split(split::DriverRing),
    Packed(packed::DriverRing),
}

impl Ring {
    fn new(setup: &Setup) -> Self {
        if setup.has(Features::PACKED) {
            Self::Packed(packed::DriverRing::default())
        } else {
            Self::Split(split::DriverRing::default())
        }
    }
}

/// The driver half of a queue: offers chains of buffers to a device and gets each back once.
///
/// The value that a chain is added with owns its buffers, and is kept here until the device has
/// used it or [`Self::reset`] gives it back.
#[derive(Debug)]
pub struct DriverQueue<M, T> {
    memory: M,
    setup: Setup,
    tables: Option<Tables>,
    slots: Vec<Slot<T>>,
    /// The first free descriptor, and how many there are.
    free: u16,
    free_len: u16,
    in_flight: u16,
    ring: Ring,
    broken: Option<Rule>,
}

impl<M: Memory, T> DriverQueue<M, T> {
    /// A queue in this memory, which is cleared for it. The device learns of it afterwards.
    ///
    /// # Errors
    /// If it is not a queue, or there is no memory for what is known of it here.
    pub fn new(memory: M, setup: Setup, tables: Option<Tables>) -> Result<Self, SetupError> {
        setup.check(&memory)?;
        let tables = tables.filter(|_| setup.has(Features::INDIRECT));
        if let Some(tables) = &tables {
            if tables.entries > setup.size {
                return Err(SetupError::Size);
            }
            if !memory.reaches(tables.at, Tables::bytes(setup.size, tables.entries)) {
                return Err(SetupError::Unreachable);
            }
        }
        let mut slots = Vec::new();
        slots
            .try_reserve_exact(usize::from(setup.size))
            .map_err(|_| SetupError::NoMemory)?;
        slots.extend((1..=setup.size).map(|next| Slot { next, chain: None }));
        let queue = Self {
            memory,
            setup,
            tables,
            slots,
            free: 0,
            free_len: setup.size,
            in_flight: 0,
            ring: Ring::new(&setup),
            broken: None,
        };
        queue.clear().map_err(|_| SetupError::Unreachable)?;
        Ok(queue)
    }

    /// Places of the queue's parts, for the device.
    #[must_use]
    pub fn setup(&self) -> &Setup {
        &self.setup
    }

    /// The memory that it is in.
    #[must_use]
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// Chains that the device has.
    #[must_use]
    pub fn in_flight(&self) -> u16 {
        self.in_flight
    }

    /// The values of the chains that the device has, in no order.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        let chains = self.slots.iter_mut().filter_map(|slot| slot.chain.as_mut());
        chains.map(|chain| &mut chain.value)
    }

    /// The rule that the device has broken.
    #[must_use]
    pub fn broken(&self) -> Option<Rule> {
        self.broken
    }

    /// Offers a chain to the device: pieces that it may read, then pieces that it may write. What
    /// they are is for the `Memory` of the device to judge; `value` owns them.
    ///
    /// # Errors
    /// The value, with the reason.
    pub fn add(
        &mut self,
        readable: &[Piece],
        writable: &[Piece],
        value: T,
    ) -> Result<(), Refused<T>> {
        match self.offer(readable, writable) {
            Ok((head, last, len, writable)) => {
                self.slots[usize::from(head)].chain = Some(InFlight {
                    value,
                    last,
                    len,
                    writable,
                });
                Ok(())
            }
            Err(why) => Err(Refused { value, why }),
        }
    }

    /// Puts a chain into the rings: its first and last descriptor, how many descriptors of the
    /// queue's own table it takes, and its writable bytes.
    fn offer(
        &mut self,
        readable: &[Piece],
        writable: &[Piece],
    ) -> Result<(u16, u16, u16, u32), Refusal> {
        if let Some(rule) = self.broken {
            return Err(Refusal::Broken(rule));
        }
        let bytes = |pieces: &[Piece]| pieces.iter().map(|piece| u64::from(piece.len)).sum::<u64>();
        let (read_bytes, write_bytes) = (bytes(readable), bytes(writable));
        let writable_bytes = u32::try_from(write_bytes).map_err(|_| Refusal::TooManyBytes)?;
        if read_bytes + write_bytes > 1 << 32 {
            return Err(Refusal::TooManyBytes);
        }
        let pieces = u16::try_from(readable.len() + writable.len())
            .ok()
            .filter(|pieces| *pieces <= self.setup.size)
            .ok_or(Refusal::TooManyPieces)?;
        let table = match pieces {
            0 => return Err(Refusal::Empty),
            1 => None,
            _ => self.tables.filter(|tables| tables.entries >= pieces),
        };
        let len = if table.is_some() { 1 } else { pieces };
        if len > self.free_len {
            return Err(Refusal::Full);
        }
        let head = self.free;
        // A chain of one, which nearly all are, is not worth what goes through several costs.
        let offered = match (table, readable, writable) {
            (Some(tables), ..) => self
                .write_table(tables.table(head), readable, writable)
                .and_then(|table| self.publish(once((table, Flags::INDIRECT)))),
            (None, [piece], []) => self.publish(once((*piece, Flags::empty()))),
            (None, [], [piece]) => self.publish(once((*piece, Flags::WRITE))),
            (None, ..) => self.publish(flagged(readable, writable)),
        };
        offered.map_err(|rule| Refusal::Broken(self.breaks(rule)))?;
        let mut last = head;
        for _ in 1..len {
            last = self.slots[usize::from(last)].next;
        }
        self.free = self.slots[usize::from(last)].next;
        self.free_len -= len;
        self.in_flight += 1;
        Ok((head, last, len, writable_bytes))
    }

    /// Offers a chain under the name of the first free descriptor.
    fn publish(&mut self, chain: impl Iterator<Item = (Piece, Flags)>) -> Result<(), Rule> {
        let (memory, setup, head) = (&self.memory, &self.setup, self.free);
        match &mut self.ring {
            Ring::Split(ring) => {
                let slots = &self.slots;
                let next = |at: u16| slots.get(usize::from(at)).map(|slot| (at, slot.next));
                let places = core::iter::successors(next(head), |(_, at)| next(*at));
                ring.offer(memory, setup, head, places, chain)
            }
            Ring::Packed(ring) => ring.offer(memory, setup, head, chain),
        }
    }

    /// Writes a chain into a table of its own, and says where that is.
    fn write_table(
        &self,
        table: Address,
        readable: &[Piece],
        writable: &[Piece],
    ) -> Result<Piece, Rule> {
        let mut len = 0;
        for (piece, flags) in flagged(readable, writable) {
            let at = table.plus(DESCRIPTOR * u64::from(len));
            len += 1;
            let next = len;
            let bytes = match self.ring {
                Ring::Split(_) => Descriptor { piece, flags, next }.to_bytes(),
                Ring::Packed(_) => packed::table_entry(piece, flags),
            };
            self.memory.write(at, &bytes)?;
        }
        Ok(Piece {
            at: table,
            len: DESCRIPTOR as u32 * u32::from(len),
        })
    }

    /// True if the device has to be notified of what was added since the last such question.
    ///
    /// # Errors
    /// If the queue is broken.
    pub fn must_notify(&mut self) -> Result<bool, Rule> {
        self.works()?;
        // Between what was offered and the device's wish, which does it the other way round: one
        // of the two sees the other.
        fence(Ordering::SeqCst);
        let (memory, setup) = (&self.memory, &self.setup);
        let asked = match &mut self.ring {
            Ring::Split(ring) => ring.must_notify(memory, setup),
            Ring::Packed(ring) => ring.must_notify(memory, setup),
        };
        asked.map_err(|rule| self.breaks(rule))
    }

    /// Takes a chain that the device has used.
    ///
    /// # Errors
    /// If the queue is broken, or turns out to be now.
    pub fn take(&mut self) -> Result<Option<Done<T>>, Rule> {
        self.works()?;
        self.next_used().map_err(|rule| self.breaks(rule))
    }

    fn next_used(&mut self) -> Result<Option<Done<T>>, Rule> {
        let (memory, setup) = (&self.memory, &self.setup);
        let used = match &mut self.ring {
            Ring::Split(ring) => ring.used(memory, setup, self.in_flight),
            Ring::Packed(ring) => ring.used(memory, setup),
        };
        let Some((id, written)) = used? else {
            return Ok(None);
        };
        let slot = usize::try_from(id)
            .ok()
            .and_then(|id| self.slots.get_mut(id))
            .ok_or(Rule::UsedId(id))?;
        let chain = slot.chain.as_ref().ok_or(Rule::UsedId(id))?;
        if written > chain.writable {
            return Err(Rule::UsedLength {
                written,
                given: chain.writable,
            });
        }
        let chain = slot.chain.take().ok_or(Rule::UsedId(id))?;
        self.slots[usize::from(chain.last)].next = self.free;
        self.free = id as u16;
        self.free_len += chain.len;
        self.in_flight -= 1;
        match &mut self.ring {
            Ring::Split(ring) => ring.pass(),
            Ring::Packed(ring) => ring.pass(setup, chain.len),
        }
        Ok(Some(Done {
            value: chain.value,
            written,
        }))
    }

    /// Asks for an interrupt when the device uses the next chain. What it has used already is told
    /// here: whoever sleeps while something is left may sleep for ever.
    ///
    /// # Errors
    /// If the queue is broken.
    pub fn want_interrupt(&mut self) -> Result<Left, Rule> {
        self.works()?;
        let (memory, setup) = (&self.memory, &self.setup);
        let wished = match &self.ring {
            Ring::Split(ring) => ring.want(memory, setup),
            Ring::Packed(ring) => ring.want(memory, setup),
        };
        // As in `must_notify`.
        fence(Ordering::SeqCst);
        let is_there = wished.and_then(|()| match &self.ring {
            Ring::Split(ring) => ring.is_there(memory, setup),
            Ring::Packed(ring) => ring.is_there(memory, setup),
        });
        match is_there {
            Ok(true) => Ok(Left::Something),
            Ok(false) => Ok(Left::Nothing),
            Err(rule) => Err(self.breaks(rule)),
        }
    }

    /// Asks for no interrupts, as far as the device can be told.
    ///
    /// # Errors
    /// If the queue is broken.
    pub fn decline_interrupts(&mut self) -> Result<(), Rule> {
        self.works()?;
        let (memory, setup) = (&self.memory, &self.setup);
        let declined = match &self.ring {
            Ring::Split(_) => split::DriverRing::decline(memory, setup),
            Ring::Packed(_) => packed::DriverRing::decline(memory, setup),
        };
        declined.map_err(|rule| self.breaks(rule))
    }

    /// Gives back the values of all chains in flight, and begins anew with an empty queue.
    ///
    /// The device must have stopped before: [`Transport::reset`](crate::Transport::reset) or
    /// [`Transport::reset_queue`](crate::Transport::reset_queue) has returned without an error.
    /// Afterwards the queue is enabled again.
    ///
    /// # Errors
    /// If the memory of the queue cannot be reached any more. The values were given back.
    pub fn reset(&mut self, mut back: impl FnMut(T)) -> Result<(), Rule> {
        for (slot, next) in self.slots.iter_mut().zip(1..) {
            slot.next = next;
            if let Some(chain) = slot.chain.take() {
                back(chain.value);
            }
        }
        (self.free, self.free_len, self.in_flight) = (0, self.setup.size, 0);
        self.ring = Ring::new(&self.setup);
        self.broken = None;
        self.clear().map_err(|rule| self.breaks(rule))
    }

    fn clear(&self) -> Result<(), Rule> {
        match &self.ring {
            Ring::Split(_) => split::DriverRing::clear(&self.memory, &self.setup),
            Ring::Packed(_) => packed::DriverRing::clear(&self.memory, &self.setup),
        }
    }

    fn works(&self) -> Result<(), Rule> {
        self.broken.map_or(Ok(()), Err)
    }

    fn breaks(&mut self, rule: Rule) -> Rule {
        *self.broken.get_or_insert(rule)
    }
}

/// The pieces of a chain with the flags of their descriptors, beside those that all have.
fn flagged<'a>(
    readable: &'a [Piece],
    writable: &'a [Piece],
) -> impl Iterator<Item = (Piece, Flags)> + 'a {
    let pieces = readable.len() + writable.len();
    let readable = readable.iter().map(|piece| (*piece, Flags::empty()));
    let writable = writable.iter().map(|piece| (*piece, Flags::WRITE));
    readable
        .chain(writable)
        .enumerate()
        .map(move |(index, (piece, flags))| {
            let more = index + 1 < pieces;
            (piece, if more { flags | Flags::NEXT } else { flags })
        })
}
