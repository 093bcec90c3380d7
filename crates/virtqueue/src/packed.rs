//! The layout of packed queues (virtio 1.3, section 2.8): one ring of descriptors, which both ends
//! write.

use crate::device::{Head, Pieces};
use crate::layout::{DESCRIPTOR, Features, Flags, Piece, Setup};
use crate::memory::{Address, Memory};
use crate::rule::{Error, Rule};

/// Flags by which a descriptor is available or used, in a round of the ring (section 2.8.1).
const AVAILABLE: u16 = 1 << 7;
const USED: u16 = 1 << 15;

/// Values of the flags of a wish (section 2.8.10).
const ENABLE: u16 = 0;
const QUIET: u16 = 1;
const BY_PLACE: u16 = 2;
const WISH_FLAGS: u16 = 3;

/// A place in the ring, and whether the round has an odd number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    at: u16,
    is_odd: bool,
}

impl Place {
    const START: Self = Self {
        at: 0,
        is_odd: true,
    };

    /// The place so many descriptors further on; no more than the ring has.
    fn plus(self, len: u16, size: u16) -> Self {
        let at = u32::from(self.at) + u32::from(len);
        if at >= u32::from(size) {
            Self {
                at: (at - u32::from(size)) as u16,
                is_odd: !self.is_odd,
            }
        } else {
            Self {
                at: at as u16,
                ..self
            }
        }
    }

    fn is_available(self, flags: u16) -> bool {
        (flags & AVAILABLE != 0) == self.is_odd && (flags & USED != 0) != self.is_odd
    }

    fn is_used(self, flags: u16) -> bool {
        (flags & AVAILABLE != 0) == self.is_odd && (flags & USED != 0) == self.is_odd
    }

    fn available(self) -> u16 {
        if self.is_odd { AVAILABLE } else { USED }
    }

    fn used(self) -> u16 {
        if self.is_odd { AVAILABLE | USED } else { 0 }
    }

    /// The place as a wish holds it.
    fn as_event(self) -> u16 {
        self.at | u16::from(self.is_odd) << 15
    }
}

/// A place that goes on, and how many descriptors it passed since it was asked whether to tell.
#[derive(Clone, Copy, Debug)]
struct Progress {
    place: Place,
    since: u16,
}

impl Progress {
    const START: Self = Self {
        place: Place::START,
        since: 0,
    };

    fn advance(&mut self, len: u16, setup: &Setup) {
        self.place = self.place.plus(len, setup.size);
        // A whole round passes each place.
        self.since = self.since.saturating_add(len).min(setup.size);
    }

    /// True if what was passed since the last such call has to be told, by the wish that the other
    /// end has in its area.
    fn must_tell(
        &mut self,
        memory: &impl Memory,
        setup: &Setup,
        wish: Address,
    ) -> Result<bool, Rule> {
        let since = core::mem::take(&mut self.since);
        // Flags and place may be of two wishes: then the later one was not made when what it is
        // for was looked for, and the other end will look.
        match memory.load16(wish.plus(2))? & WISH_FLAGS {
            QUIET => Ok(false),
            BY_PLACE if setup.has(Features::EVENT_IDX) => {
                let event = memory.load16(wish)?;
                let mut at = event & !(1 << 15);
                if (event >> 15 != 0) != self.place.is_odd {
                    at = at.wrapping_sub(setup.size);
                }
                Ok(self.place.at.wrapping_sub(at).wrapping_sub(1) < since)
            }
            _ => Ok(since > 0),
        }
    }
}

/// Wishes, in the area of an end, to be told when a place is passed.
fn want(memory: &impl Memory, setup: &Setup, wish: Address, place: Place) -> Result<(), Rule> {
    if setup.has(Features::EVENT_IDX) {
        memory.store16(wish, place.as_event())?;
        memory.store16(wish.plus(2), BY_PLACE)?;
    } else {
        memory.store16(wish.plus(2), ENABLE)?;
    }
    Ok(())
}

/// Address of the flags of a descriptor.
fn flags_at(setup: &Setup, place: Place) -> Address {
    setup.areas.descriptor(place.at).plus(14)
}

/// A descriptor but for its flags: address, length, identifier.
fn to_bytes(piece: Piece, id: u16) -> [u8; 14] {
    let mut bytes = [0; 14];
    bytes[..8].copy_from_slice(&piece.at.number().to_le_bytes());
    bytes[8..12].copy_from_slice(&piece.len.to_le_bytes());
    bytes[12..].copy_from_slice(&id.to_le_bytes());
    bytes
}

/// A descriptor of a chain's own table: its place says what follows (section 2.8.7).
pub(crate) fn table_entry(piece: Piece, flags: Flags) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..14].copy_from_slice(&to_bytes(piece, 0));
    bytes[14..].copy_from_slice(&(flags & Flags::WRITE).bits().to_le_bytes());
    bytes
}

/// The driver's places in the ring.
#[derive(Debug)]
pub(crate) struct DriverRing {
    offered: Progress,
    used: Place,
}

impl Default for DriverRing {
    fn default() -> Self {
        Self {
            offered: Progress::START,
            used: Place::START,
        }
    }
}

impl DriverRing {
    /// Makes all descriptors neither available nor used, and takes both wishes back.
    pub fn clear(memory: &impl Memory, setup: &Setup) -> Result<(), Rule> {
        for index in 0..setup.size {
            memory.store16(setup.areas.descriptor(index).plus(14), 0)?;
        }
        for area in [setup.areas.driver, setup.areas.device] {
            memory.store16(area, 0)?;
            memory.store16(area.plus(2), ENABLE)?;
        }
        Ok(())
    }

    pub fn offer(
        &mut self,
        memory: &impl Memory,
        setup: &Setup,
        id: u16,
        chain: impl Iterator<Item = (Piece, Flags)>,
    ) -> Result<(), Rule> {
        let (first, mut place) = (self.offered.place, self.offered.place);
        let (mut len, mut first_flags) = (0, 0);
        for (piece, flags) in chain {
            memory.write(setup.areas.descriptor(place.at), &to_bytes(piece, id))?;
            let flags = flags.bits() | place.available();
            if len == 0 {
                first_flags = flags;
            } else {
                memory.store16(flags_at(setup, place), flags)?;
            }
            place = place.plus(1, setup.size);
            len += 1;
        }
        self.offered.advance(len, setup);
        // With these the whole chain is there.
        memory.store16(flags_at(setup, first), first_flags)?;
        Ok(())
    }

    pub fn must_notify(&mut self, memory: &impl Memory, setup: &Setup) -> Result<bool, Rule> {
        self.offered.must_tell(memory, setup, setup.areas.device)
    }

    /// The identifier and length of the next used chain.
    pub fn used(&self, memory: &impl Memory, setup: &Setup) -> Result<Option<(u32, u32)>, Rule> {
        let flags = memory.load16(flags_at(setup, self.used))?;
        if !self.used.is_used(flags) {
            return Ok(None);
        }
        let mut bytes = [0; 8];
        let at = setup.areas.descriptor(self.used.at).plus(8);
        memory.read(at, &mut bytes[..6])?;
        let number = u64::from_le_bytes(bytes);
        // Section 2.8.4: without this flag there is no length.
        let is_written = Flags::from_bits_truncate(flags).contains(Flags::WRITE);
        let written = if is_written { number as u32 } else { 0 };
        Ok(Some(((number >> 32) as u32, written)))
    }

    /// Goes on to the used chain after this one, which has so many descriptors.
    pub fn pass(&mut self, setup: &Setup, len: u16) {
        self.used = self.used.plus(len, setup.size);
    }

    pub fn want(&self, memory: &impl Memory, setup: &Setup) -> Result<(), Rule> {
        want(memory, setup, setup.areas.driver, self.used)
    }

    pub fn decline(memory: &impl Memory, setup: &Setup) -> Result<(), Rule> {
        Ok(memory.store16(setup.areas.driver.plus(2), QUIET)?)
    }

    /// True if there is a used chain.
    pub fn is_there(&self, memory: &impl Memory, setup: &Setup) -> Result<bool, Rule> {
        Ok(self
            .used
            .is_used(memory.load16(flags_at(setup, self.used))?))
    }
}

/// The device's places in the ring.
#[derive(Debug)]
pub(crate) struct DeviceRing {
    taken: Place,
    used: Progress,
    /// Descriptors of chains in flight.
    len: u16,
}

impl Default for DeviceRing {
    fn default() -> Self {
        Self {
            taken: Place::START,
            used: Progress::START,
            len: 0,
        }
    }
}

impl DeviceRing {
    /// Copies the next chain. It is taken when the caller says so, by [`Self::pass`].
    pub fn next(
        &self,
        memory: &impl Memory,
        setup: &Setup,
        pieces: &mut Pieces,
    ) -> Result<Option<Head>, Error> {
        let mut place = self.taken;
        let mut flags = memory.load16(flags_at(setup, place)).map_err(Rule::from)?;
        if !place.is_available(flags) {
            return Ok(None);
        }
        let mut len = 0;
        let id = loop {
            if len == setup.size - self.len {
                return Err(Rule::ChainLength.into());
            }
            let mut bytes = [0; 16];
            let at = setup.areas.descriptor(place.at);
            memory.read(at, &mut bytes[..14]).map_err(Rule::from)?;
            let (piece, id) = from_bytes(bytes);
            let known = Flags::from_bits_truncate(flags);
            if len == 0 && known.contains(Flags::INDIRECT) {
                let entries = setup.table_len(piece, known)?;
                copy_table(memory, piece.at, entries, pieces)?;
            } else {
                pieces.push(memory, piece, known)?;
            }
            len += 1;
            if !known.contains(Flags::NEXT) {
                break id;
            }
            place = place.plus(1, setup.size);
            flags = memory.load16(flags_at(setup, place)).map_err(Rule::from)?;
        };
        if id >= setup.size {
            return Err(Rule::Head(id).into());
        }
        Ok(Some(Head { id, len }))
    }

    pub fn pass(&mut self, setup: &Setup, head: Head) {
        self.taken = self.taken.plus(head.len, setup.size);
        self.len += head.len;
    }

    pub fn finish(
        &mut self,
        memory: &impl Memory,
        setup: &Setup,
        head: Head,
        written: u32,
    ) -> Result<(), Rule> {
        let place = self.used.place;
        let number = u64::from(written) | u64::from(head.id) << 32;
        let at = setup.areas.descriptor(place.at).plus(8);
        memory.write(at, &number.to_le_bytes()[..6])?;
        self.used.advance(head.len, setup);
        self.len -= head.len;
        let length = if written > 0 { Flags::WRITE.bits() } else { 0 };
        // With these it is there.
        memory.store16(flags_at(setup, place), place.used() | length)?;
        Ok(())
    }

    pub fn must_interrupt(&mut self, memory: &impl Memory, setup: &Setup) -> Result<bool, Rule> {
        self.used.must_tell(memory, setup, setup.areas.driver)
    }

    pub fn want(&self, memory: &impl Memory, setup: &Setup) -> Result<(), Rule> {
        want(memory, setup, setup.areas.device, self.taken)
    }

    pub fn decline(memory: &impl Memory, setup: &Setup) -> Result<(), Rule> {
        Ok(memory.store16(setup.areas.device.plus(2), QUIET)?)
    }

    /// True if there is a chain that was not taken.
    pub fn is_there(&self, memory: &impl Memory, setup: &Setup) -> Result<bool, Rule> {
        let flags = memory.load16(flags_at(setup, self.taken))?;
        Ok(self.taken.is_available(flags))
    }
}

/// The address and length, and the identifier, of a descriptor.
fn from_bytes(bytes: [u8; 16]) -> (Piece, u16) {
    let number = u128::from_le_bytes(bytes);
    let piece = Piece {
        at: Address::new(number as u64),
        len: (number >> 64) as u32,
    };
    (piece, (number >> 96) as u16)
}

/// Copies a chain out of a table of its own.
fn copy_table(
    memory: &impl Memory,
    table: Address,
    entries: u32,
    pieces: &mut Pieces,
) -> Result<(), Error> {
    for index in 0..u64::from(entries) {
        let mut bytes = [0; 16];
        memory
            .read(table.plus(DESCRIPTOR * index), &mut bytes)
            .map_err(Rule::from)?;
        let flags = u16::from_le_bytes([bytes[14], bytes[15]]);
        // Another is reserved here, but a table in a table is a mistake.
        let flags = Flags::from_bits_truncate(flags) - Flags::NEXT;
        pieces.push(memory, from_bytes(bytes).0, flags)?;
    }
    Ok(())
}
