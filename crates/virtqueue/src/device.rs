//! The device half of a queue.

use alloc::vec::Vec;

use crate::layout::{
    DESCRIPTOR, Descriptor, Features, Flags, Left, Piece, Progress, Setup, SetupError, Wish,
};
use crate::memory::{Address, Memory, Unreachable};
use crate::rule::{Error, Rule};
use crate::sync::{Ordering, fence};

/// A chain that a driver has offered, as it was when it was taken: what the driver writes into its
/// descriptors later changes nothing.
#[derive(Debug)]
pub struct Chain {
    head: u16,
    /// The life of the queue that it is of.
    life: u64,
    /// Readable pieces, then writable ones.
    pieces: Vec<Piece>,
    readable: usize,
}

impl Chain {
    /// The pieces that the device may read.
    #[must_use]
    pub fn readable(&self) -> &[Piece] {
        &self.pieces[..self.readable]
    }

    /// The pieces that the device may write.
    #[must_use]
    pub fn writable(&self) -> &[Piece] {
        &self.pieces[self.readable..]
    }

    /// Bytes that the device may read.
    #[must_use]
    pub fn readable_len(&self) -> u64 {
        bytes(self.readable())
    }

    /// Bytes that the device may write.
    #[must_use]
    pub fn writable_len(&self) -> u64 {
        bytes(self.writable())
    }

    /// Copies bytes out of the readable pieces, `from` bytes after their start. They may change at
    /// any time: what is checked has to be the copy.
    ///
    /// # Errors
    /// If there are not so many, or the memory went away. What was copied is unspecified.
    pub fn read(
        &self,
        memory: &impl Memory,
        from: u64,
        into: &mut [u8],
    ) -> Result<(), Unreachable> {
        let mut rest = into;
        for piece in parts(self.readable(), from, rest.len())? {
            let (now, later) = rest.split_at_mut(piece.len as usize);
            memory.read(piece.at, now)?;
            rest = later;
        }
        Ok(())
    }

    /// Copies bytes into the writable pieces, `from` bytes after their start.
    ///
    /// # Errors
    /// If there is no room for so many, or the memory went away. What was copied is unspecified.
    pub fn write(&self, memory: &impl Memory, from: u64, bytes: &[u8]) -> Result<(), Unreachable> {
        let mut rest = bytes;
        for piece in parts(self.writable(), from, rest.len())? {
            let (now, later) = rest.split_at(piece.len as usize);
            memory.write(piece.at, now)?;
            rest = later;
        }
        Ok(())
    }
}

fn bytes(pieces: &[Piece]) -> u64 {
    pieces.iter().map(|piece| u64::from(piece.len)).sum()
}

/// The parts of pieces that hold `len` bytes, `from` bytes after their start.
fn parts(
    pieces: &[Piece],
    from: u64,
    len: usize,
) -> Result<impl Iterator<Item = Piece>, Unreachable> {
    let len = len as u64;
    if from.checked_add(len).is_none_or(|end| end > bytes(pieces)) {
        let start = pieces.first().map_or(Address::new(0), |piece| piece.at);
        return Err(Unreachable(start.plus(from)));
    }
    let (mut skip, mut left) = (from, len);
    Ok(pieces.iter().filter_map(move |piece| {
        let skipped = skip.min(u64::from(piece.len));
        skip -= skipped;
        let taken = left.min(u64::from(piece.len) - skipped);
        left -= taken;
        (taken > 0).then(|| Piece {
            at: piece.at.plus(skipped),
            // A part of a piece, whose length is of this type.
            len: taken as u32,
        })
    }))
}

/// The device half of a queue: takes the chains that a driver offers, and says when they are used.
#[derive(Debug)]
pub struct DeviceQueue<M> {
    memory: M,
    setup: Setup,
    /// Descriptors of a chain, at most.
    longest: u16,
    /// A bit for each descriptor that a chain in flight begins with.
    busy: Vec<u64>,
    in_flight: u16,
    /// Chains taken, and those that the driver has offered, by its index at the last look.
    taken: u16,
    seen: u16,
    /// Chains used.
    used: Progress,
    /// Resets so far.
    life: u64,
    broken: Option<Rule>,
}

impl<M: Memory> DeviceQueue<M> {
    /// A queue that a driver has set up, with chains of at most `longest` descriptors, which bounds
    /// the memory that a driver can make its device use.
    ///
    /// # Errors
    /// If it is not a queue, or there is no memory for what is known of it here.
    pub fn new(memory: M, setup: Setup, longest: u16) -> Result<Self, SetupError> {
        let mut queue = Self {
            memory,
            setup,
            longest,
            busy: Vec::new(),
            in_flight: 0,
            taken: 0,
            seen: 0,
            used: Progress::default(),
            life: 0,
            broken: None,
        };
        queue.reset(setup)?;
        Ok(queue)
    }

    /// Begins anew with a queue that the driver has set up after it has reset the old one. Chains
    /// of the old one are no chains any more: to finish one does nothing.
    ///
    /// # Errors
    /// If it is not a queue, or there is no memory for what is known of it here. The old queue is
    /// left as it was.
    pub fn reset(&mut self, setup: Setup) -> Result<(), SetupError> {
        setup.check(&self.memory)?;
        if self.longest == 0 {
            return Err(SetupError::Size);
        }
        let mut busy = Vec::new();
        let words = usize::from(setup.size).div_ceil(64);
        busy.try_reserve_exact(words)
            .map_err(|_| SetupError::NoMemory)?;
        busy.resize(words, 0);
        (self.setup, self.busy) = (setup, busy);
        (self.taken, self.seen, self.used) = (0, 0, Progress::default());
        (self.in_flight, self.broken) = (0, None);
        self.life += 1;
        Ok(())
    }

    /// The memory that the queue and its chains are in.
    #[must_use]
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// Chains that were taken and are not finished.
    #[must_use]
    pub fn in_flight(&self) -> u16 {
        self.in_flight
    }

    /// The rule that the driver has broken.
    #[must_use]
    pub fn broken(&self) -> Option<Rule> {
        self.broken
    }

    /// Takes the next chain, a copy of what the driver has written.
    ///
    /// # Errors
    /// If the queue is broken, or turns out to be now, or there is no memory for the copy.
    pub fn take(&mut self) -> Result<Option<Chain>, Error> {
        self.works()?;
        self.next_chain().map_err(|error| match error {
            Error::Broken(rule) => self.breaks(rule).into(),
            Error::NoMemory => error,
        })
    }

    fn next_chain(&mut self) -> Result<Option<Chain>, Error> {
        let areas = &self.setup.areas;
        if self.seen == self.taken {
            let seen = self
                .memory
                .load16(areas.available_index())
                .map_err(Rule::from)?;
            if seen.wrapping_sub(self.taken) > self.setup.size - self.in_flight {
                return Err(Rule::AvailableIndex(seen).into());
            }
            self.seen = seen;
            if seen == self.taken {
                return Ok(None);
            }
        }
        let entry = areas.available(self.setup.slot(self.taken));
        let head = self.memory.load16(entry).map_err(Rule::from)?;
        if head >= self.setup.size {
            return Err(Rule::Head(head).into());
        }
        let (word, bit) = (usize::from(head) / 64, 1 << (head % 64));
        if self.busy[word] & bit != 0 {
            return Err(Rule::HeadTwice(head).into());
        }
        let (pieces, readable) = self.copy(head)?;
        self.busy[word] |= bit;
        self.in_flight += 1;
        self.taken = self.taken.wrapping_add(1);
        Ok(Some(Chain {
            head,
            life: self.life,
            pieces,
            readable,
        }))
    }

    /// Copies the chain that begins with a descriptor: its pieces, and how many are readable.
    fn copy(&self, head: u16) -> Result<(Vec<Piece>, usize), Error> {
        let (mut table, mut entries) = (self.setup.areas.descriptors, self.setup.size);
        let mut descriptor = self.descriptor(table, head)?;
        if descriptor.flags.contains(Flags::INDIRECT) {
            let Piece { at, len } = descriptor.piece;
            let whole = u64::from(len).is_multiple_of(DESCRIPTOR) && len > 0;
            if !self.setup.has(Features::INDIRECT)
                || descriptor.flags.contains(Flags::NEXT)
                || !whole
            {
                return Err(Rule::Table.into());
            }
            // Only so many can be named by a next field.
            entries = u16::try_from(u64::from(len) / DESCRIPTOR).unwrap_or(u16::MAX);
            table = at;
            descriptor = self.descriptor(table, 0)?;
        }
        let longest = usize::from(self.longest.min(self.setup.size));
        let (mut pieces, mut readable, mut total): (Vec<Piece>, usize, u64) = (Vec::new(), 0, 0);
        loop {
            if descriptor.flags.contains(Flags::INDIRECT) {
                return Err(Rule::Table.into());
            }
            if pieces.len() == longest {
                return Err(Rule::ChainLength.into());
            }
            let piece = descriptor.piece;
            if !descriptor.flags.contains(Flags::WRITE) {
                if readable < pieces.len() {
                    return Err(Rule::Order.into());
                }
                readable += 1;
            }
            total += u64::from(piece.len);
            if total > 1 << 32 {
                return Err(Rule::TooManyBytes.into());
            }
            if !self.memory.reaches(piece.at, u64::from(piece.len)) {
                return Err(Rule::Buffer(piece.at).into());
            }
            pieces.try_reserve(1).map_err(|_| Error::NoMemory)?;
            pieces.push(piece);
            if !descriptor.flags.contains(Flags::NEXT) {
                return Ok((pieces, readable));
            }
            let next = descriptor.next;
            if next >= entries {
                return Err(Rule::Next(next).into());
            }
            descriptor = self.descriptor(table, next)?;
        }
    }

    /// Copies a descriptor, once.
    fn descriptor(&self, table: Address, index: u16) -> Result<Descriptor, Rule> {
        let mut bytes = [0; DESCRIPTOR as usize];
        let at = table.plus(DESCRIPTOR * u64::from(index));
        self.memory.read(at, &mut bytes)?;
        Ok(Descriptor::from_bytes(bytes))
    }

    /// Gives a chain back to the driver, with so many bytes written from the start of its writable
    /// pieces. A chain of before a reset is forgotten.
    ///
    /// # Errors
    /// If the queue is broken.
    ///
    /// # Panics
    /// If more bytes are said to be written than the chain has: the caller's mistake.
    pub fn finish(&mut self, chain: Chain, written: u32) -> Result<(), Rule> {
        assert!(
            u64::from(written) <= chain.writable_len(),
            "more than a chain has"
        );
        if chain.life != self.life {
            return Ok(());
        }
        self.works()?;
        let entry = u64::from(chain.head) | u64::from(written) << 32;
        let at = self.setup.areas.used(self.setup.slot(self.used.index()));
        self.used.advance();
        let index = self.setup.areas.used_index();
        // The entry, and then the index that says that it is there.
        let told = self
            .memory
            .write(at, &entry.to_le_bytes())
            .and_then(|()| self.memory.store16(index, self.used.index()));
        told.map_err(|gone| self.breaks(gone.into()))?;
        self.in_flight -= 1;
        self.busy[usize::from(chain.head) / 64] &= !(1 << (chain.head % 64));
        Ok(())
    }

    /// True if the driver wants to be interrupted for what was finished since the last such
    /// question.
    ///
    /// # Errors
    /// If the queue is broken.
    pub fn must_interrupt(&mut self) -> Result<bool, Rule> {
        self.works()?;
        // Between what was finished and the driver's wish, which does it the other way round: one
        // of the two sees the other.
        fence(Ordering::SeqCst);
        let steps = self.used.tell();
        let areas = &self.setup.areas;
        let theirs = Wish {
            flags: areas.available_flags(),
            event: areas.used_event(self.setup.size),
        };
        let asked = theirs.is_for(&self.memory, self.setup.features, steps);
        asked.map_err(|rule| self.breaks(rule))
    }

    /// Asks to be notified when the driver offers the next chain. What it has offered already is
    /// told here: whoever sleeps while something is left may sleep for ever.
    ///
    /// # Errors
    /// If the queue is broken.
    pub fn want_notification(&mut self) -> Result<Left, Rule> {
        self.works()?;
        let wished = self
            .wish()
            .want(&self.memory, self.setup.features, self.taken);
        // As in `must_interrupt`.
        fence(Ordering::SeqCst);
        let index =
            wished.and_then(|()| Ok(self.memory.load16(self.setup.areas.available_index())?));
        match index {
            Ok(index) if index == self.taken => Ok(Left::Nothing),
            Ok(_) => Ok(Left::Something),
            Err(rule) => Err(self.breaks(rule)),
        }
    }

    /// Asks for no notifications, as far as the driver can be told.
    ///
    /// # Errors
    /// If the queue is broken.
    pub fn decline_notifications(&mut self) -> Result<(), Rule> {
        self.works()?;
        let declined = self.wish().decline(&self.memory, self.setup.features);
        declined.map_err(|rule| self.breaks(rule))
    }

    fn wish(&self) -> Wish {
        Wish {
            flags: self.setup.areas.used_flags(),
            event: self.setup.areas.available_event(self.setup.size),
        }
    }

    fn works(&self) -> Result<(), Rule> {
        self.broken.map_or(Ok(()), Err)
    }

    fn breaks(&mut self, rule: Rule) -> Rule {
        *self.broken.get_or_insert(rule)
    }
}
