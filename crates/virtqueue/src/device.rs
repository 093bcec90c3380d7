//! The device half of a queue.

use alloc::vec::Vec;

use crate::layout::{Features, Flags, Left, Piece, Setup, SetupError};
use crate::memory::{Address, Memory, Unreachable};
use crate::rule::{Error, Rule};
use crate::sync::{Ordering, fence};
use crate::{packed, split};

/// A chain that a driver has offered, as it was when it was taken: what the driver writes into its
/// descriptors later changes nothing.
#[derive(Debug)]
pub struct Chain {
    head: Head,
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

/// The name of a chain, and its descriptors in a packed ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    pub id: u16,
    pub len: u16,
}

/// A chain while it is copied, and what is known of it by then.
pub(crate) struct Pieces {
    list: Vec<Piece>,
    readable: usize,
    total: u64,
    longest: u16,
}

impl Pieces {
    /// Takes the next piece of the chain, if it may be.
    pub fn push(&mut self, memory: &impl Memory, piece: Piece, flags: Flags) -> Result<(), Error> {
        if flags.contains(Flags::INDIRECT) {
            return Err(Rule::Table.into());
        }
        if self.list.len() == usize::from(self.longest) {
            return Err(Rule::ChainLength.into());
        }
        if !flags.contains(Flags::WRITE) {
            if self.readable < self.list.len() {
                return Err(Rule::Order.into());
            }
            self.readable += 1;
        }
        self.total += u64::from(piece.len);
        if self.total > 1 << 32 {
            return Err(Rule::TooManyBytes.into());
        }
        if !memory.reaches(piece.at, u64::from(piece.len)) {
            return Err(Rule::Buffer(piece.at).into());
        }
        self.list.try_reserve(1).map_err(|_| Error::NoMemory)?;
        self.list.push(piece);
        Ok(())
    }
}

#[derive(Debug)]
enum Ring {
    Split(split::DeviceRing),
    Packed(packed::DeviceRing),
}

impl Ring {
    fn new(setup: &Setup) -> Self {
        if setup.has(Features::PACKED) {
            Self::Packed(packed::DeviceRing::default())
        } else {
            Self::Split(split::DeviceRing::default())
        }
    }
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
    ring: Ring,
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
            ring: Ring::new(&setup),
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
        self.ring = Ring::new(&setup);
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
        let mut pieces = Pieces {
            list: Vec::new(),
            readable: 0,
            total: 0,
            longest: self.longest.min(self.setup.size),
        };
        let (memory, setup) = (&self.memory, &self.setup);
        let next = match &mut self.ring {
            Ring::Split(ring) => ring.next(memory, setup, self.in_flight, &mut pieces),
            Ring::Packed(ring) => ring.next(memory, setup, &mut pieces),
        };
        let Some(head) = next? else {
            return Ok(None);
        };
        let (word, bit) = (usize::from(head.id) / 64, 1 << (head.id % 64));
        if self.busy[word] & bit != 0 {
            return Err(Rule::HeadTwice(head.id).into());
        }
        self.busy[word] |= bit;
        self.in_flight += 1;
        match &mut self.ring {
            Ring::Split(ring) => ring.pass(),
            Ring::Packed(ring) => ring.pass(setup, head),
        }
        Ok(Some(Chain {
            head,
            life: self.life,
            pieces: pieces.list,
            readable: pieces.readable,
        }))
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
        let (memory, setup, head) = (&self.memory, &self.setup, chain.head);
        let told = match &mut self.ring {
            Ring::Split(ring) => ring.finish(memory, setup, head, written),
            Ring::Packed(ring) => ring.finish(memory, setup, head, written),
        };
        told.map_err(|rule| self.breaks(rule))?;
        self.in_flight -= 1;
        self.busy[usize::from(head.id) / 64] &= !(1 << (head.id % 64));
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
        let (memory, setup) = (&self.memory, &self.setup);
        let asked = match &mut self.ring {
            Ring::Split(ring) => ring.must_interrupt(memory, setup),
            Ring::Packed(ring) => ring.must_interrupt(memory, setup),
        };
        asked.map_err(|rule| self.breaks(rule))
    }

    /// Asks to be notified when the driver offers the next chain. What it has offered already is
    /// told here: whoever sleeps while something is left may sleep for ever.
    ///
    /// # Errors
    /// If the queue is broken.
    pub fn want_notification(&mut self) -> Result<Left, Rule> {
        self.works()?;
        let (memory, setup) = (&self.memory, &self.setup);
        let wished = match &self.ring {
            Ring::Split(ring) => ring.want(memory, setup),
            Ring::Packed(ring) => ring.want(memory, setup),
        };
        // As in `must_interrupt`.
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

    /// Asks for no notifications, as far as the driver can be told.
    ///
    /// # Errors
    /// If the queue is broken.
    pub fn decline_notifications(&mut self) -> Result<(), Rule> {
        self.works()?;
        let (memory, setup) = (&self.memory, &self.setup);
        let declined = match &self.ring {
            Ring::Split(_) => split::DeviceRing::decline(memory, setup),
            Ring::Packed(_) => packed::DeviceRing::decline(memory, setup),
        };
        declined.map_err(|rule| self.breaks(rule))
    }

    fn works(&self) -> Result<(), Rule> {
        self.broken.map_or(Ok(()), Err)
    }

    fn breaks(&mut self, rule: Rule) -> Rule {
        *self.broken.get_or_insert(rule)
    }
}
