//! The queue of frames that a card has received.

use alloc::vec::Vec;

use virtqueue::{Address, DriverQueue, Left, Memory, Piece, Setup, SetupError};

use super::{Broken, ETHERNET, HEADER, Header, Properties};

/// Bytes of a buffer, at most, where a frame may be in several.
const BUFFER: usize = 2048;

/// Bytes of each buffer of a card.
pub(super) fn buffer_len(properties: &Properties) -> usize {
    let whole = (HEADER + properties.max_frame()).next_multiple_of(64);
    if properties.merges {
        whole.min(BUFFER)
    } else {
        whole
    }
}

/// Something that a card has received.
#[derive(Debug, PartialEq, Eq)]
pub enum Received<'a> {
    /// A frame, from its Ethernet header on.
    Frame(&'a [u8]),
    /// A frame that was too short or too long for one: it is lost.
    Lost,
}

/// The driver's end of the queue of received frames, with its buffers.
#[derive(Debug)]
pub struct ReceiveQueue<M> {
    /// Each chain is one buffer, by its number.
    ring: DriverQueue<M, u16>,
    buffers: Address,
    buffer_len: usize,
    merges: bool,
    /// Room for the longest frame, and the bytes in it of the one of which buffers are being taken.
    frame: Vec<u8>,
    len: usize,
    /// Buffers of the frame that have not come yet.
    left: u16,
    /// True if the frame is longer than the longest.
    is_too_long: bool,
    broken: Option<Broken>,
}

impl<M: Memory> ReceiveQueue<M> {
    /// A queue in memory of which the buffers begin at an address, one for each of its descriptors.
    /// They are offered by [`Self::fill`].
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
        let mut frame = Vec::new();
        frame
            .try_reserve_exact(properties.max_frame())
            .map_err(|_| SetupError::NoMemory)?;
        frame.resize(properties.max_frame(), 0);
        Ok(Self {
            ring: DriverQueue::new(memory, setup, None)?,
            buffers,
            buffer_len,
            merges: properties.merges,
            frame,
            len: 0,
            left: 0,
            is_too_long: false,
            broken: None,
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

    fn buffer(&self, number: u16) -> Piece {
        Piece {
            at: self
                .buffers
                .plus(self.buffer_len as u64 * u64::from(number)),
            // At most 64 KiB and a little.
            len: self.buffer_len as u32,
        }
    }

    /// Offers a buffer.
    fn offer(&mut self, number: u16) -> Result<(), Broken> {
        let piece = self.buffer(number);
        self.ring
            .add(&[], &[piece], number)
            .map_err(|refused| match refused.why {
                virtqueue::Refusal::Broken(rule) => rule.into(),
                why => unreachable!("a buffer that the queue has room for: {why}"),
            })
    }

    /// Offers all buffers, of an empty queue.
    pub(super) fn fill(&mut self) -> Result<(), Broken> {
        (0..self.setup().size).try_for_each(|number| self.offer(number))
    }

    /// Begins anew with an empty queue. The device has stopped.
    pub(super) fn reset(&mut self) -> Result<(), Broken> {
        (self.len, self.left, self.is_too_long, self.broken) = (0, 0, false, None);
        Ok(self.ring.reset(drop)?)
    }

    /// Takes the next frame.
    ///
    /// # Errors
    /// If the device broke a rule; [`Nic::recover`](super::Nic::recover) goes on from there.
    pub fn receive(&mut self) -> Result<Option<Received<'_>>, Broken> {
        if let Some(broken) = self.broken {
            return Err(broken);
        }
        match self.next_frame() {
            Ok(None) => Ok(None),
            Ok(Some(())) if self.is_too_long || self.len < ETHERNET => Ok(Some(Received::Lost)),
            Ok(Some(())) => Ok(Some(Received::Frame(&self.frame[..self.len]))),
            Err(broken) => Err(*self.broken.insert(broken)),
        }
    }

    /// Takes buffers until a frame is whole.
    fn next_frame(&mut self) -> Result<Option<()>, Broken> {
        while let Some(done) = self.ring.take()? {
            // The queue has seen to it that this is within the buffer.
            let written = done.written as usize;
            let mut at = self.buffer(done.value).at;
            let mut len = written;
            if self.left == 0 {
                len = written
                    .checked_sub(HEADER)
                    .ok_or(Broken::NoHeader(written as u64))?;
                self.left = self.begin(at)?;
                at = at.plus(HEADER as u64);
            }
            self.append(at, len)?;
            self.offer(done.value)?;
            self.left -= 1;
            if self.left == 0 {
                return Ok(Some(()));
            }
        }
        Ok(None)
    }

    /// Begins with the frame whose header is at an address; returns the number of its buffers.
    fn begin(&mut self, at: Address) -> Result<u16, Broken> {
        self.len = 0;
        self.is_too_long = false;
        let mut bytes = [0; HEADER];
        self.ring.memory().read(at, &mut bytes)?;
        let header = Header::from_bytes(bytes);
        header.check()?;
        // Without merged buffers there are devices that do not write the number.
        if !self.merges {
            return Ok(1);
        }
        if header.buffers == 0 || header.buffers > self.setup().size {
            return Err(Broken::Buffers(header.buffers));
        }
        Ok(header.buffers)
    }

    /// Copies a part of the frame, unless there is no frame of that length.
    fn append(&mut self, at: Address, len: usize) -> Result<(), Broken> {
        let end = self.len + len;
        let Some(part) = self.frame.get_mut(self.len..end) else {
            self.is_too_long = true;
            return Ok(());
        };
        if !self.is_too_long {
            self.ring.memory().read(at, part)?;
            self.len = end;
        }
        Ok(())
    }

    /// Asks for an interrupt when the device uses the next buffer; tells whether it has already.
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
