//! A network card: bringing it up, and again when it broke a rule.

use core::fmt;

use virtqueue::{
    Address, Areas, BringUpError, Features, Memory, Setup, SetupError, Status, Transport,
    TransportError, bring_up,
};

use super::{BadConfig, Broken, HEADER, Properties, ReceiveQueue, TransmitQueue};
use super::{feature, number, receive, transmit};

/// Size of the queues of a card, as the driver wants it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Buffers of each, at most.
    pub size: u16,
    /// Bytes of the buffers of each, at most; one buffer there is in any case.
    pub bytes: usize,
}

impl Shape {
    /// Buffers of a length that a queue has: a power of two.
    fn size(self, most: u16, len: usize) -> u16 {
        let fit = u16::try_from(self.bytes / len).unwrap_or(u16::MAX).max(1);
        let size = fit.min(self.size).min(most);
        size.checked_ilog2().map_or(0, |bits| 1 << bits)
    }
}

/// Why a card cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartError {
    /// The device cannot be brought up.
    BringUp(BringUpError),
    /// The device says of itself what cannot be.
    Config(BadConfig),
    /// There is no memory for a queue.
    NoMemory,
    /// A queue cannot be made.
    Setup(SetupError),
    /// The device's queue has no room for a frame of the greatest length.
    SmallQueue,
    /// The device broke a rule before it did anything else.
    Broken(Broken),
    /// The device came back from a reset as another one.
    Changed,
}

impl From<BringUpError> for StartError {
    fn from(error: BringUpError) -> Self {
        Self::BringUp(error)
    }
}

impl From<TransportError> for StartError {
    fn from(error: TransportError) -> Self {
        Self::BringUp(error.into())
    }
}

impl From<BadConfig> for StartError {
    fn from(error: BadConfig) -> Self {
        Self::Config(error)
    }
}

impl From<SetupError> for StartError {
    fn from(error: SetupError) -> Self {
        Self::Setup(error)
    }
}

impl From<Broken> for StartError {
    fn from(broken: Broken) -> Self {
        Self::Broken(broken)
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BringUp(error) => error.fmt(f),
            Self::Config(error) => error.fmt(f),
            Self::NoMemory => f.write_str("no memory for a queue"),
            Self::Setup(error) => error.fmt(f),
            Self::SmallQueue => f.write_str("the card's queue is too small for a frame"),
            Self::Broken(broken) => broken.fmt(f),
            Self::Changed => f.write_str("the card came back as another one"),
        }
    }
}

impl core::error::Error for StartError {}

/// A card that was brought up.
#[derive(Debug)]
pub struct Nic<T> {
    transport: T,
    features: u64,
    properties: Properties,
}

/// A card with its queues.
pub type Started<T, M> = (Nic<T>, ReceiveQueue<M>, TransmitQueue<M>);

impl<T: Transport> Nic<T> {
    /// Brings a card up. `memory` makes room for a queue: so many bytes, from a multiple of 16 on.
    ///
    /// # Errors
    /// If the device, or memory, does not do. The device is reset then, if that is possible.
    pub fn start<M: Memory>(
        transport: T,
        shape: Shape,
        memory: impl FnMut(u64) -> Option<(M, Address)>,
    ) -> Result<Started<T, M>, StartError> {
        let (features, properties, receive, transmit) = Self::try_start(&transport, shape, memory)
            .inspect_err(|_| {
                // Nothing can be done about one that does not even do this.
                let _ = transport.reset();
            })?;
        let nic = Self {
            transport,
            features,
            properties,
        };
        Ok((nic, receive, transmit))
    }

    fn try_start<M: Memory>(
        transport: &T,
        shape: Shape,
        mut memory: impl FnMut(u64) -> Option<(M, Address)>,
    ) -> Result<(u64, Properties, ReceiveQueue<M>, TransmitQueue<M>), StartError> {
        let (features, properties) = Self::agree(transport)?;
        // Memory for a queue with buffers of this length, and where they begin.
        let mut place = |number, len: usize| {
            let size = shape.size(transport.queue_size(number), len);
            if usize::from(size) * len < HEADER + properties.max_frame() {
                return Err(StartError::SmallQueue);
            }
            let areas = Areas::bytes(size);
            let bytes = areas + u64::from(size) * len as u64;
            let (memory, base) = memory(bytes).ok_or(StartError::NoMemory)?;
            let setup = Setup {
                size,
                areas: Areas::at(base, size),
                features: Features::from_bits_truncate(features),
            };
            Ok((memory, setup, base.plus(areas)))
        };
        let (memory, setup, buffers) = place(number::RECEIVE, receive::buffer_len(&properties))?;
        let mut receive = ReceiveQueue::new(memory, setup, buffers, &properties)?;
        let (memory, setup, buffers) = place(number::TRANSMIT, transmit::buffer_len(&properties))?;
        let mut transmit = TransmitQueue::new(memory, setup, buffers, &properties)?;
        Self::begin(transport, &mut receive, &mut transmit)?;
        Ok((features, properties, receive, transmit))
    }

    /// Resets a card and agrees with it on features.
    fn agree(transport: &T) -> Result<(u64, Properties), StartError> {
        let wanted = Features::EVENT_IDX | Features::ACCESS_PLATFORM | Features::PACKED;
        let features = bring_up(transport, wanted.bits() | feature::ALL, feature::MAC)?;
        Ok((features, Properties::read(transport, features)??))
    }

    /// Begins with empty queues: offers all buffers and lets the device go.
    fn begin<M: Memory>(
        transport: &T,
        receive: &mut ReceiveQueue<M>,
        transmit: &mut TransmitQueue<M>,
    ) -> Result<(), StartError> {
        receive.fill()?;
        transmit.decline_interrupts()?;
        transport.enable_queue(number::RECEIVE, receive.setup())?;
        transport.enable_queue(number::TRANSMIT, transmit.setup())?;
        transport.set_status(transport.status() | Status::DRIVER_OK);
        if receive.must_notify()? {
            transport.notify(number::RECEIVE);
        }
        Ok(())
    }

    /// Properties of the card.
    #[must_use]
    pub fn properties(&self) -> &Properties {
        &self.properties
    }

    /// Whether the device says that it cannot go on without a reset: [`Self::recover`].
    #[must_use]
    pub fn needs_reset(&self) -> bool {
        self.transport.status().contains(Status::NEEDS_RESET)
    }

    /// Whether the link is up. That of a card which does not tell is.
    ///
    /// # Errors
    /// If the card's configuration cannot be read.
    pub fn is_link_up(&self) -> Result<bool, TransportError> {
        self.properties.is_link_up(&self.transport)
    }

    /// Tells the device of the buffers that were offered since the last such call, if it wants to
    /// be told.
    ///
    /// # Errors
    /// If the device broke a rule.
    pub fn notify_receive<M: Memory>(&self, queue: &mut ReceiveQueue<M>) -> Result<(), Broken> {
        if queue.must_notify()? {
            self.transport.notify(number::RECEIVE);
        }
        Ok(())
    }

    /// Tells the device of the frames that were put into the queue since the last such call, if it
    /// wants to be told.
    ///
    /// # Errors
    /// If the device broke a rule.
    pub fn notify_transmit<M: Memory>(&self, queue: &mut TransmitQueue<M>) -> Result<(), Broken> {
        if queue.must_notify()? {
            self.transport.notify(number::TRANSMIT);
        }
        Ok(())
    }

    /// Resets a card that broke a rule, or asks for it, and begins again with these queues, which
    /// are those that it was started with. Frames in them are lost.
    ///
    /// # Errors
    /// If the card did not come back, or as another one. With [`TransportError::Stuck`] it has not
    /// even stopped, and may still reach the queues' memory. This may be tried again.
    pub fn recover<M: Memory>(
        &self,
        receive: &mut ReceiveQueue<M>,
        transmit: &mut TransmitQueue<M>,
    ) -> Result<(), StartError> {
        // Nothing of the queues is touched before it has stopped.
        self.transport.reset()?;
        let mut come_back = || {
            receive.reset()?;
            transmit.reset()?;
            if Self::agree(&self.transport)? != (self.features, self.properties) {
                return Err(StartError::Changed);
            }
            Self::begin(&self.transport, receive, transmit)
        };
        come_back().inspect_err(|_| {
            // It has stopped, and shall not begin halfway.
            let _ = self.transport.reset();
        })
    }
}
