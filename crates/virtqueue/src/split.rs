//! The layout of split queues (virtio 1.3, section 2.7): a table of descriptors, and a ring of each
//! end.

use crate::device::{Head, Pieces};
use crate::layout::{DESCRIPTOR, Descriptor, Features, Flags, Piece, Progress, Setup};
use crate::memory::{Address, Memory};
use crate::rule::{Error, Rule};

/// Without `EVENT_IDX`: the bit of either ring's flags by which an end wants to hear nothing
/// (`VIRTQ_AVAIL_F_NO_INTERRUPT`, `VIRTQ_USED_F_NO_NOTIFY`).
const QUIET: u16 = 1;

/// Places in which one end wishes to be told of what the other does.
struct Wish {
    /// Address at which it writes flags.
    flags: Address,
    /// Address at which it writes an index.
    event: Address,
}

impl Wish {
    /// The driver's wish, for the device.
    fn of_driver(setup: &Setup) -> Self {
        Self {
            flags: setup.areas.available_flags(),
            event: setup.areas.used_event(setup.size),
        }
    }

    /// The device's wish, for the driver.
    fn of_device(setup: &Setup) -> Self {
        Self {
            flags: setup.areas.used_flags(),
            event: setup.areas.available_event(setup.size),
        }
    }

    /// True if what went from one index to another has to be told, by the wish of the other end.
    fn is_for(
        &self,
        memory: &impl Memory,
        setup: &Setup,
        (from, to): (u16, u16),
    ) -> Result<bool, Rule> {
        if setup.has(Features::EVENT_IDX) {
            // Section 2.7.10: the index that is wished for is one of those that were passed.
            let event = memory.load16(self.event)?;
            Ok(to.wrapping_sub(event).wrapping_sub(1) < to.wrapping_sub(from))
        } else {
            Ok(from != to && memory.load16(self.flags)? & QUIET == 0)
        }
    }

    /// Wishes to be told when an index is passed.
    fn want(&self, memory: &impl Memory, setup: &Setup, index: u16) -> Result<(), Rule> {
        Ok(if setup.has(Features::EVENT_IDX) {
            memory.store16(self.event, index)
        } else {
            memory.store16(self.flags, 0)
        }?)
    }

    /// Wishes to be told nothing. A wish by index has come true once and does so no more for
    /// 65,536 chains, so there is nothing to take back.
    fn decline(&self, memory: &impl Memory, setup: &Setup) -> Result<(), Rule> {
        if !setup.has(Features::EVENT_IDX) {
            memory.store16(self.flags, QUIET)?;
        }
        Ok(())
    }
}

/// The driver's place in both rings.
#[derive(Debug, Default)]
pub(crate) struct DriverRing {
    /// Chains offered.
    offered: Progress,
    /// Chains used, as seen here and, at the last look, in the device's index.
    used: u16,
    seen: u16,
}

impl DriverRing {
    /// Sets flags, indices and wishes of both rings to zero. Entries are written before they are
    /// read.
    pub fn clear(memory: &impl Memory, setup: &Setup) -> Result<(), Rule> {
        let (areas, size) = (&setup.areas, setup.size);
        for at in [
            areas.available_flags(),
            areas.available_index(),
            areas.used_event(size),
            areas.used_flags(),
            areas.used_index(),
            areas.available_event(size),
        ] {
            memory.store16(at, 0)?;
        }
        Ok(())
    }

    /// Offers a chain in descriptors of the table, each of which is followed by the next of them.
    pub fn offer(
        &mut self,
        memory: &impl Memory,
        setup: &Setup,
        head: u16,
        places: impl Iterator<Item = (u16, u16)>,
        chain: impl Iterator<Item = (Piece, Flags)>,
    ) -> Result<(), Rule> {
        for ((at, next), (piece, flags)) in places.zip(chain) {
            let descriptor = Descriptor { piece, flags, next };
            memory.write(setup.areas.descriptor(at), &descriptor.to_bytes())?;
        }
        // The ring entry, and then the index that says that it is there.
        let slot = setup.slot(self.offered.index());
        memory.store16(setup.areas.available(slot), head)?;
        self.offered.advance();
        memory.store16(setup.areas.available_index(), self.offered.index())?;
        Ok(())
    }

    pub fn must_notify(&mut self, memory: &impl Memory, setup: &Setup) -> Result<bool, Rule> {
        let steps = self.offered.tell();
        Wish::of_device(setup).is_for(memory, setup, steps)
    }

    /// The identifier and length of the next used chain.
    pub fn used(
        &mut self,
        memory: &impl Memory,
        setup: &Setup,
        in_flight: u16,
    ) -> Result<Option<(u32, u32)>, Rule> {
        if self.seen == self.used {
            let seen = memory.load16(setup.areas.used_index())?;
            if seen.wrapping_sub(self.used) > in_flight {
                return Err(Rule::UsedIndex(seen));
            }
            self.seen = seen;
            if seen == self.used {
                return Ok(None);
            }
        }
        let mut entry = [0; 8];
        memory.read(setup.areas.used(setup.slot(self.used)), &mut entry)?;
        let entry = u64::from_le_bytes(entry);
        Ok(Some((entry as u32, (entry >> 32) as u32)))
    }

    /// Goes on to the used chain after this one.
    pub fn pass(&mut self) {
        self.used = self.used.wrapping_add(1);
    }

    pub fn want(&self, memory: &impl Memory, setup: &Setup) -> Result<(), Rule> {
        Wish::of_driver(setup).want(memory, setup, self.used)
    }

    pub fn decline(memory: &impl Memory, setup: &Setup) -> Result<(), Rule> {
        Wish::of_driver(setup).decline(memory, setup)
    }

    /// True if there is a used chain.
    pub fn is_there(&self, memory: &impl Memory, setup: &Setup) -> Result<bool, Rule> {
        Ok(memory.load16(setup.areas.used_index())? != self.used)
    }
}

/// The device's place in both rings.
#[derive(Debug, Default)]
pub(crate) struct DeviceRing {
    /// Chains taken, and those that the driver has offered, by its index at the last look.
    taken: u16,
    seen: u16,
    /// Chains used.
    used: Progress,
}

impl DeviceRing {
    /// Copies the next chain. It is taken when the caller says so, by [`Self::pass`].
    pub fn next(
        &mut self,
        memory: &impl Memory,
        setup: &Setup,
        in_flight: u16,
        pieces: &mut Pieces,
    ) -> Result<Option<Head>, Error> {
        let areas = &setup.areas;
        if self.seen == self.taken {
            let seen = memory.load16(areas.available_index()).map_err(Rule::from)?;
            if seen.wrapping_sub(self.taken) > setup.size - in_flight {
                return Err(Rule::AvailableIndex(seen).into());
            }
            self.seen = seen;
            if seen == self.taken {
                return Ok(None);
            }
        }
        let entry = areas.available(setup.slot(self.taken));
        let id = memory.load16(entry).map_err(Rule::from)?;
        if id >= setup.size {
            return Err(Rule::Head(id).into());
        }
        copy(memory, setup, id, pieces)?;
        Ok(Some(Head { id, len: 1 }))
    }

    pub fn pass(&mut self) {
        self.taken = self.taken.wrapping_add(1);
    }

    pub fn finish(
        &mut self,
        memory: &impl Memory,
        setup: &Setup,
        head: Head,
        written: u32,
    ) -> Result<(), Rule> {
        let entry = u64::from(head.id) | u64::from(written) << 32;
        let at = setup.areas.used(setup.slot(self.used.index()));
        memory.write(at, &entry.to_le_bytes())?;
        self.used.advance();
        // The entry, and then the index that says that it is there.
        memory.store16(setup.areas.used_index(), self.used.index())?;
        Ok(())
    }

    pub fn must_interrupt(&mut self, memory: &impl Memory, setup: &Setup) -> Result<bool, Rule> {
        let steps = self.used.tell();
        Wish::of_driver(setup).is_for(memory, setup, steps)
    }

    pub fn want(&self, memory: &impl Memory, setup: &Setup) -> Result<(), Rule> {
        Wish::of_device(setup).want(memory, setup, self.taken)
    }

    pub fn decline(memory: &impl Memory, setup: &Setup) -> Result<(), Rule> {
        Wish::of_device(setup).decline(memory, setup)
    }

    /// True if there is a chain that was not taken.
    pub fn is_there(&self, memory: &impl Memory, setup: &Setup) -> Result<bool, Rule> {
        Ok(memory.load16(setup.areas.available_index())? != self.taken)
    }
}

/// Copies the chain that begins with a descriptor.
fn copy(memory: &impl Memory, setup: &Setup, head: u16, pieces: &mut Pieces) -> Result<(), Error> {
    let (mut table, mut entries) = (setup.areas.descriptors, setup.size);
    let mut descriptor = read(memory, table, head)?;
    if descriptor.flags.contains(Flags::INDIRECT) {
        let len = setup.table_len(descriptor.piece, descriptor.flags)?;
        // Only so many can be named by a next field.
        entries = u16::try_from(len).unwrap_or(u16::MAX);
        table = descriptor.piece.at;
        descriptor = read(memory, table, 0)?;
    }
    loop {
        pieces.push(memory, descriptor.piece, descriptor.flags)?;
        if !descriptor.flags.contains(Flags::NEXT) {
            return Ok(());
        }
        let next = descriptor.next;
        if next >= entries {
            return Err(Rule::Next(next).into());
        }
        descriptor = read(memory, table, next)?;
    }
}

/// Copies a descriptor, once.
fn read(memory: &impl Memory, table: Address, index: u16) -> Result<Descriptor, Rule> {
    let mut bytes = [0; DESCRIPTOR as usize];
    memory.read(table.plus(DESCRIPTOR * u64::from(index)), &mut bytes)?;
    Ok(Descriptor::from_bytes(bytes))
}
