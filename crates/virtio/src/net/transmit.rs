//! The queue of frames that a card is to send.

use alloc::vec::Vec;
use core::fmt;

use virtqueue::{Address, DriverQueue, Left, Memory, Piece, Setup, SetupError};

use super::{Broken, ETHERNET, HEADER, Header, Properties};

/// Bytes of each buffer of a card.
pub(super) fn buffer_len(properties: &Properties) -> usize {
    (HEADER + properties.max_frame()).next_multiple_of(64)
}

/// Why a frame was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotSent {
    /// The device has all buffers.
    Full,
    /// A frame is shorter than its header, or longer than the card takes.
    Length,
    /// The device broke a rule: nothing goes on until [`Nic::recover`](super::Nic::recover).
    Broken(Broken),
}

impl<E: Into<Broken>> From<E> for NotSent {
    fn from(broken: E) -> Self {
        Self::Broken(broken.into())
    }
}

impl fmt::Display for NotSent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => f.write_str("the queue is full"),
            Self::Length => f.write_str("no frame has this length"),
            Self::Broken(broken) => write!(f, "the card needs a reset: {broken}"),
        }
    }
}

impl core::error::Error for NotSent {}

/// The driver's end of the queue of frames to send, with its buffers.
#[derive(Debug)]
pub struct TransmitQueue<M> {
    /// Each chain is one buffer, by its number.
    ring: DriverQueue<M, u16>,
    buffers: Address,
    buffer_len: usize,
    max_frame: usize,
    /// Buffers that the device does not have.
    free: Vec<u16>,
}

impl<M: Memory> TransmitQueue<M> {
    /// A queue in memory of which the buffers begin at an address, one for each of its descriptors.
    pub(super) fn new(
        memory: M,
        setup: Setup,
        buffers: Address,
        properties: &Properties,
    ) -> Result<Self, SetupError> {
        let buffer_len = buffer_len(properties);
        let bytes = buffer_len as u64 * u64::from(setup.size);
        if !memory.reaches(buffers, bytes) {
            return Err(SetupError::Unreachable);
        }
        let mut free = Vec::new();
        free.try_reserve_exact(usize::from(setup.size))
            .map_err(|_| SetupError::NoMemory)?;
        free.extend(0..setup.size);
        Ok(Self {
            ring: DriverQueue::new(memory, setup, None)?,
            buffers,
            buffer_len,
            max_frame: properties.max_frame(),
            free,
        })
    }

    /// Buffers that the queue has.
    #[must_use]
    pub fn size(&self) -> u16 {
        self.setup().size
    }

    pub(super) fn setup(&self) -> &Setup {
        self.ring.setup()
    }

    /// Begins anew with an empty queue. The device has stopped; frames that it has not sent are
    /// lost.
    pub(super) fn reset(&mut self) -> Result<(), Broken> {
        let free = &mut self.free;
        Ok(self.ring.reset(|number| free.push(number))?)
    }

    /// Puts a frame into the queue, from its Ethernet header on. The device is told by
    /// [`Nic::notify_transmit`](super::Nic::notify_transmit). Never waits.
    ///
    /// # Errors
    /// [`NotSent`]; the frame is lost.
    pub fn send(&mut self, frame: &[u8]) -> Result<(), NotSent> {
        if frame.len() < ETHERNET || frame.len() > self.max_frame {
            return Err(NotSent::Length);
        }
        if !self.has_room()? {
            return Err(NotSent::Full);
        }
        let number = *self.free.last().ok_or(NotSent::Full)?;
        let at = self
            .buffers
            .plus(self.buffer_len as u64 * u64::from(number));
        let memory = self.ring.memory();
        memory.write(at, &Header::default().to_bytes())?;
        memory.write(at.plus(HEADER as u64), frame)?;
        let piece = Piece {
            at,
            // At most 64 KiB and a little.
            len: (HEADER + frame.len()) as u32,
        };
        let added = self.ring.add(&[piece], &[], number);
        added.map_err(|refused| match refused.why {
            virtqueue::Refusal::Broken(rule) => NotSent::from(rule),
            why => unreachable!("a buffer that the queue has room for: {why}"),
        })?;
        self.free.pop();
        Ok(())
    }

    /// Whether a frame can be put into the queue. Buffers that the device has used are taken back
    /// when there is no other one.
    ///
    /// # Errors
    /// If the device broke a rule.
    pub fn has_room(&mut self) -> Result<bool, Broken> {
        if self.free.is_empty() {
            while let Some(done) = self.ring.take()? {
                self.free.push(done.value);
            }
        }
        Ok(!self.free.is_empty())
    }

    /// Asks for an interrupt when the device uses the next buffer, and tells whether it has used
    /// one already: then there need not be an interrupt.
    ///
    /// # Errors
    /// If the device broke a rule.
    pub fn want_interrupt(&mut self) -> Result<Left, Broken> {
        Ok(self.ring.want_interrupt()?)
    }

    /// Asks for no interrupts, as far as the device can be told.
    ///
    /// # Errors
    /// If the device broke a rule.
    pub fn decline_interrupts(&mut self) -> Result<(), Broken> {
        Ok(self.ring.decline_interrupts()?)
    }

    pub(super) fn must_notify(&mut self) -> Result<bool, Broken> {
        Ok(self.ring.must_notify()?)
    }
}
