//! A disk: bringing it up, and again when it broke a rule.

use alloc::vec::Vec;
use core::borrow::BorrowMut;
use core::fmt;

use virtqueue::{
    Address, Areas, BringUpError, Features, Memory, Rule, Setup, SetupError, Status, Transport,
    TransportError, bring_up,
};

use super::{BadConfig, Completion, Properties, Queue, feature};

/// Size of the queues of a disk, as the driver wants it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Queues, at most: one for each CPU.
    pub queues: u16,
    /// Descriptors of each, at most.
    pub size: u16,
    /// Pieces of data of one request, at most.
    pub pieces: u16,
}

/// Why a disk cannot be used.
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

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BringUp(error) => error.fmt(f),
            Self::Config(error) => error.fmt(f),
            Self::NoMemory => f.write_str("no memory for a queue"),
            Self::Setup(error) => error.fmt(f),
            Self::Changed => f.write_str("the disk came back as another one"),
        }
    }
}

impl core::error::Error for StartError {}

/// A disk that was brought up.
#[derive(Debug)]
pub struct Disk<T> {
    transport: T,
    features: u64,
    properties: Properties,
}

/// A disk with its queues, which a driver gives to its CPUs.
pub type Started<T, M, V> = (Disk<T>, Vec<Queue<M, V>>);

impl<T: Transport> Disk<T> {
    /// Brings a disk up with as many queues as are wanted and there. `memory` makes room for a
    /// queue: so many bytes, from a multiple of 16 on.
    ///
    /// # Errors
    /// If the device, or memory, does not do. The device is reset then, if that is possible.
    pub fn start<M: Memory, V>(
        transport: T,
        shape: Shape,
        memory: impl FnMut(u64) -> Option<(M, Address)>,
    ) -> Result<Started<T, M, V>, StartError> {
        Self::try_start(&transport, shape, memory)
            .inspect_err(|_| {
                // Nothing can be done about one that does not even do this.
                let _ = transport.reset();
            })
            .map(|(features, properties, queues)| {
                let disk = Self {
                    transport,
                    features,
                    properties,
                };
                (disk, queues)
            })
    }

    #[expect(clippy::type_complexity, reason = "parts of what is returned")]
    fn try_start<M: Memory, V>(
        transport: &T,
        shape: Shape,
        mut memory: impl FnMut(u64) -> Option<(M, Address)>,
    ) -> Result<(u64, Properties, Vec<Queue<M, V>>), StartError> {
        let (features, properties) = Self::agree(transport)?;
        let count = properties
            .queues
            .min(transport.queues())
            .min(shape.queues)
            .max(1);
        let mut queues = Vec::new();
        queues
            .try_reserve_exact(usize::from(count))
            .map_err(|_| StartError::NoMemory)?;
        for number in 0..count {
            let most = transport.queue_size(number).min(shape.size);
            // The largest power of two within.
            let size = most.checked_ilog2().map_or(0, |bits| 1 << bits);
            let pieces = u16::try_from(properties.pieces)
                .unwrap_or(u16::MAX)
                .min(shape.pieces);
            let (memory, base) =
                memory(Queue::<M, V>::bytes(size, pieces)).ok_or(StartError::NoMemory)?;
            let setup = Setup {
                size,
                areas: Areas::at(base, size),
                features: Features::from_bits_truncate(features),
            };
            let queue = Queue::new(number, memory, base, setup, pieces, properties)?;
            transport.enable_queue(number, &setup)?;
            queues.push(queue);
        }
        transport.set_status(transport.status() | Status::DRIVER_OK);
        Ok((features, properties, queues))
    }

    /// Resets a disk and agrees with it on features.
    fn agree(transport: &T) -> Result<(u64, Properties), StartError> {
        let wanted = Features::INDIRECT
            | Features::EVENT_IDX
            | Features::ACCESS_PLATFORM
            | Features::PACKED
            | Features::RING_RESET;
        let features = bring_up(transport, wanted.bits() | feature::ALL, 0)?;
        Ok((features, Properties::read(transport, features)??))
    }

    /// Properties of the disk.
    #[must_use]
    pub fn properties(&self) -> &Properties {
        &self.properties
    }

    /// Whether the device says that it cannot go on without a reset: [`Self::recover`].
    #[must_use]
    pub fn needs_reset(&self) -> bool {
        self.transport.status().contains(Status::NEEDS_RESET)
    }

    /// Tells the device of what was submitted since the last such call, if it wants to be told.
    ///
    /// # Errors
    /// If the device broke a rule.
    pub fn notify<M: Memory, V>(&self, queue: &mut Queue<M, V>) -> Result<(), Rule> {
        if queue.must_notify()? {
            self.transport.notify(queue.number());
        }
        Ok(())
    }

    /// Resets a disk that broke a rule, or that does not answer, and offers everything again that
    /// was in flight. What was offered again before ends with
    /// [`Failure::Gone`](super::Failure::Gone), and so does everything if the disk does not come
    /// back as the same. `queues` are all that the disk has.
    ///
    /// # Errors
    /// If the disk did not come back. If it did not even stop, it may still reach memory: then
    /// nothing has ended, and all is in flight. In each case this may be tried again.
    pub fn recover<M: Memory, V>(
        &self,
        queues: &mut [impl BorrowMut<Queue<M, V>>],
        mut ended: impl FnMut(Completion<V>),
    ) -> Result<(), StartError> {
        let back = self
            .stop(queues)?
            .and_then(|()| self.bring_back(queues))
            .inspect_err(|_| {
                // It has stopped, and shall not begin halfway.
                let _ = self.transport.reset();
            });
        for queue in &mut *queues {
            let queue = queue.borrow_mut();
            match back {
                Ok(()) => {
                    queue.come_back();
                    queue.offer_again(&mut ended);
                    // What it breaks now is found by who uses the queue.
                    let _ = self.notify(queue);
                }
                Err(_) => queue.give_up(&mut ended),
            }
        }
        back
    }

    /// Resets a disk that nobody is to use any more: everything that is in flight ends with
    /// [`Failure::Gone`](super::Failure::Gone), and so does what comes. `queues` are all that the
    /// disk has.
    ///
    /// # Errors
    /// If it did not stop: then nothing has ended. This may be tried again.
    pub fn end<M: Memory, V>(
        &self,
        queues: &mut [impl BorrowMut<Queue<M, V>>],
        mut ended: impl FnMut(Completion<V>),
    ) -> Result<(), StartError> {
        // Queues that cannot be used again need not be.
        let _ = self.stop(queues)?;
        for queue in queues {
            queue.borrow_mut().give_up(&mut ended);
        }
        Ok(())
    }

    /// Resets the disk, and takes back what is in flight; says whether the queues can be used
    /// again.
    fn stop<M: Memory, V>(
        &self,
        queues: &mut [impl BorrowMut<Queue<M, V>>],
    ) -> Result<Result<(), StartError>, StartError> {
        self.transport.reset()?;
        let mut back = Ok(());
        for queue in queues {
            let taken = queue
                .borrow_mut()
                .take_back()
                .map_err(|_| SetupError::Unreachable);
            back = back.and(taken.map_err(StartError::from));
        }
        Ok(back)
    }

    fn bring_back<M: Memory, V>(
        &self,
        queues: &[impl BorrowMut<Queue<M, V>>],
    ) -> Result<(), StartError> {
        if Self::agree(&self.transport)? != (self.features, self.properties) {
            return Err(StartError::Changed);
        }
        for queue in queues {
            let queue = queue.borrow();
            self.transport.enable_queue(queue.number(), queue.setup())?;
        }
        let status = self.transport.status();
        self.transport.set_status(status | Status::DRIVER_OK);
        Ok(())
    }

    /// Resets one queue and offers everything again that was in flight in it, as
    /// [`Self::recover`] does for all; the other queues go on. Devices without
    /// [`Features::RING_RESET`] cannot do that.
    ///
    /// # Errors
    /// If the device cannot, or does not. Nothing has ended then: [`Self::recover`] is left.
    pub fn recover_queue<M: Memory, V>(
        &self,
        queue: &mut Queue<M, V>,
        ended: impl FnMut(Completion<V>),
    ) -> Result<(), StartError> {
        if self.features & Features::RING_RESET.bits() == 0 {
            return Err(TransportError::NoQueue.into());
        }
        self.transport.reset_queue(queue.number())?;
        queue.take_back().map_err(|_| SetupError::Unreachable)?;
        self.transport.enable_queue(queue.number(), queue.setup())?;
        queue.offer_again(ended);
        // What it breaks now is found by who uses the queue.
        let _ = self.notify(queue);
        Ok(())
    }
}
