//! Virtio network cards (`docs/virtio.md`, "The network card in the kernel").
//!
//! One thread for each card calls [`VirtioNet::serve`] again and again: it gives frames upward,
//! notices the link and resets the card. To send is [`VirtioNet::transmit`], from any thread, which
//! does not wait for the device.

use alloc::string::String;
use core::ops::ControlFlow;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use task::{Deadline, Mutex};
use virtio::net::TransmitQueue;
use virtio::net::{Broken, Nic, NotSent, Properties, ReceiveQueue, Received, Shape, StartError};
use virtqueue::{Address, BringUpError, Left, TransportError};

use crate::virtio_parts::{Interrupt, Parts};

#[cfg(test)]
mod tests;

/// Size of the queues: 256 frames of Ethernet's usual length.
const SHAPE: Shape = Shape {
    size: 256,
    bytes: 512 << 10,
};
/// Frames after which the device is told of the buffers that it has again.
const BATCH: usize = 64;
/// Time between two resets, and between attempts to stop a device that does not stop.
const RESET_NS: u64 = 1_000_000_000;

/// The protocol above a network card.
pub trait Upper: Send + Sync {
    /// Frames have arrived: `frames` gives them to what takes them, one after the other, each from
    /// its Ethernet header on.
    fn receive(&self, frames: &mut Frames<'_>);
    /// The link went up or down. It is as [`Receiver::is_link_up`] says until this is called.
    fn link_changed(&self, is_up: bool);
    /// There is room for frames again after [`Refused::NoRoom`], or the card takes nothing any
    /// more.
    fn has_room(&self);
}

/// Frames that have arrived together, to be taken once.
pub type Frames<'a> = dyn FnMut(&mut dyn FnMut(&[u8])) + 'a;

/// A reason why a frame was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The card has no room: [`Upper::has_room`] is called when it has, or takes nothing any more.
    NoRoom,
    /// The frame is lost, and was counted: none has its length, or the card does not work.
    Lost,
}

/// Interrupts of a card.
pub struct Interrupts<I> {
    /// Interrupt of both queues. Its event is set for whatever the thread is to look at.
    pub queues: I,
    /// Interrupt of the configuration. It sets its own event first, then that of the queues.
    pub config: I,
}

/// Frames of a card that went no further.
#[derive(Debug, Default)]
struct Counters {
    received_lost: AtomicU64,
    sent_lost: AtomicU64,
    resets: AtomicU64,
}

/// Numbers of frames of a card that went no further, and of its resets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Losses {
    /// Received frames of a length that is none.
    pub received: u64,
    /// Frames to send of a length that is none, or for a card that was being reset.
    pub sent: u64,
    /// Resets.
    pub resets: u64,
}

/// A virtio network card.
pub struct VirtioNet<P: Parts> {
    name: String,
    nic: Nic<P::Transport>,
    /// Buffers of the queues, to receive and to send.
    ring: [u32; 2],
    /// Not here while the card is reset, nor when it is gone.
    transmit: Mutex<Option<TransmitQueue<P::Memory>>>,
    interrupts: Interrupts<P::Interrupt>,
    /// True from when a rule was found broken in sending until the thread has seen that.
    has_sending_broken: AtomicBool,
    /// True while somebody was told that there is no room, and not yet that there is.
    is_room_awaited: AtomicBool,
    /// Flag: the thread is to end.
    is_stopping: AtomicBool,
    counters: Counters,
}

/// The part of a card that its thread has.
pub struct Receiver<P: Parts> {
    queue: ReceiveQueue<P::Memory>,
    is_link_up: bool,
    /// The next reset is not before.
    next_reset: Deadline,
}

/// Why a card is reset.
#[derive(Clone, Copy)]
enum Reason {
    /// The device has broken a rule.
    Broken(Broken),
    /// The device has broken a rule of the queue to send, which was said then.
    SendingBroken,
    /// The device has asked for that.
    Asked,
    /// The device's configuration cannot be read.
    Config(TransportError),
}

impl<E: Into<Broken>> From<E> for Reason {
    fn from(broken: E) -> Self {
        Self::Broken(broken.into())
    }
}

impl core::fmt::Display for Reason {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Broken(broken) => broken.fmt(f),
            Self::SendingBroken => f.write_str("it broke a rule of its queue to send"),
            Self::Asked => f.write_str("it asks for that"),
            Self::Config(error) => error.fmt(f),
        }
    }
}

impl<P: Parts> VirtioNet<P> {
    /// Brings a card up. `memory` makes room for a queue.
    ///
    /// # Errors
    /// [`StartError`]; the device was reset then, if it could be.
    pub fn start(
        name: String,
        transport: P::Transport,
        interrupts: Interrupts<P::Interrupt>,
        memory: impl FnMut(u64) -> Option<(P::Memory, Address)>,
    ) -> Result<(Self, Receiver<P>), StartError> {
        let (nic, receive, transmit) = Nic::start(transport, SHAPE, memory)?;
        // A link that cannot be told now is looked at again, with what that means.
        let is_link_up = nic.is_link_up().unwrap_or(false);
        interrupts.config.event().set();
        let card = Self {
            name,
            nic,
            ring: [receive.size().into(), transmit.size().into()],
            transmit: Mutex::new(Some(transmit)),
            interrupts,
            has_sending_broken: AtomicBool::new(false),
            is_room_awaited: AtomicBool::new(false),
            is_stopping: AtomicBool::new(false),
            counters: Counters::default(),
        };
        let receiver = Receiver {
            queue: receive,
            is_link_up,
            next_reset: Deadline::at_ns(0),
        };
        Ok((card, receiver))
    }

    /// Has the thread end: the card leaves.
    pub fn stop(&self) {
        self.is_stopping.store(true, Ordering::Release);
        self.interrupts.queues.event().set();
    }

    fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Acquire)
    }

    /// The card's properties.
    #[must_use]
    pub fn properties(&self) -> &Properties {
        self.nic.properties()
    }

    /// Frames that the queues hold, to receive and to send.
    #[must_use]
    pub fn ring(&self) -> [u32; 2] {
        self.ring
    }

    /// Frames that went no further.
    #[must_use]
    pub fn losses(&self) -> Losses {
        Losses {
            received: self.counters.received_lost.load(Ordering::Relaxed),
            sent: self.counters.sent_lost.load(Ordering::Relaxed),
            resets: self.counters.resets.load(Ordering::Relaxed),
        }
    }

    /// Sends a frame, from its Ethernet header on. Does not wait for the device.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn transmit(&self, frame: &[u8]) -> Result<(), Refused> {
        let mut queue = self.transmit.lock();
        let sent = match queue.as_mut() {
            Some(queue) => self.send(queue, frame),
            None => {
                self.counters.sent_lost.fetch_add(1, Ordering::Relaxed);
                return Err(Refused::Lost);
            }
        };
        sent.map_err(|why| {
            if why == NotSent::Full {
                return Refused::NoRoom;
            }
            self.counters.sent_lost.fetch_add(1, Ordering::Relaxed);
            // Told with the queue held: what is told is of a card that was not reset since.
            if let NotSent::Broken(_) = why
                && !self.has_sending_broken.swap(true, Ordering::Relaxed)
            {
                self.interrupts.queues.event().set();
            }
            Refused::Lost
        })
    }

    /// Puts a frame into the queue and tells the device. If there is no room, the device interrupts
    /// when there is.
    fn send(&self, queue: &mut TransmitQueue<P::Memory>, frame: &[u8]) -> Result<(), NotSent> {
        while let Err(why) = queue.send(frame) {
            if why != NotSent::Full {
                return Err(why);
            }
            // Before the wish: the interrupt may come at once.
            self.is_room_awaited.store(true, Ordering::Release);
            if queue.want_interrupt()? == Left::Nothing {
                return Err(NotSent::Full);
            }
        }
        Ok(self.nic.notify_transmit(queue)?)
    }

    /// Does what there is to do for the card, then waits for it. One thread does this, until it is
    /// told to stop: the card is gone then.
    pub fn serve(&self, receiver: &mut Receiver<P>, upper: &dyn Upper) -> ControlFlow<()> {
        if self.is_stopping() {
            return ControlFlow::Break(());
        }
        match self.work(receiver, upper) {
            Ok(()) => {
                self.interrupts.queues.event().wait();
                ControlFlow::Continue(())
            }
            Err(reason) => self.reset(receiver, upper, reason),
        }
    }

    /// Does what there is to do. When this returns without an error, whatever comes next sets the
    /// event.
    fn work(&self, receiver: &mut Receiver<P>, upper: &dyn Upper) -> Result<(), Reason> {
        loop {
            receiver.queue.decline_interrupts()?;
            if self.interrupts.config.event().try_wait() {
                self.look_at_config(receiver, upper)?;
            }
            if self.has_sending_broken.swap(false, Ordering::Relaxed) {
                return Err(Reason::SendingBroken);
            }
            if self.is_room_awaited.load(Ordering::Acquire) {
                self.look_for_room(upper)?;
            }
            let mut result = Ok(());
            upper.receive(&mut |take| result = self.receive(&mut receiver.queue, take));
            result?;
            self.nic.notify_receive(&mut receiver.queue)?;
            if receiver.queue.want_interrupt()? == Left::Nothing {
                return Ok(());
            }
        }
    }

    /// Takes what has arrived, up to a batch.
    fn receive(
        &self,
        queue: &mut ReceiveQueue<P::Memory>,
        take: &mut dyn FnMut(&[u8]),
    ) -> Result<(), Broken> {
        for _ in 0..BATCH {
            match queue.receive()? {
                Some(Received::Frame(frame)) => take(frame),
                Some(Received::Lost) => {
                    self.counters.received_lost.fetch_add(1, Ordering::Relaxed);
                }
                None => break,
            }
        }
        Ok(())
    }

    /// Tells that there is room to send, if there is; if not, the device interrupts again.
    fn look_for_room(&self, upper: &dyn Upper) -> Result<(), Broken> {
        {
            let mut queue = self.transmit.lock();
            let Some(queue) = queue.as_mut() else {
                return Ok(());
            };
            while !queue.has_room()? {
                if queue.want_interrupt()? == Left::Nothing {
                    return Ok(());
                }
            }
            self.is_room_awaited.store(false, Ordering::Relaxed);
            queue.decline_interrupts()?;
        }
        upper.has_room();
        Ok(())
    }

    /// Looks at what the interrupt of the configuration is for.
    fn look_at_config(&self, receiver: &mut Receiver<P>, upper: &dyn Upper) -> Result<(), Reason> {
        if self.nic.needs_reset() {
            return Err(Reason::Asked);
        }
        let is_up = self.nic.is_link_up().map_err(Reason::Config)?;
        receiver.set_link(is_up, upper);
        Ok(())
    }

    /// Resets the card, however long that takes; what is sent meanwhile is lost.
    fn reset(
        &self,
        receiver: &mut Receiver<P>,
        upper: &dyn Upper,
        reason: Reason,
    ) -> ControlFlow<()> {
        let transmit = self.transmit.lock().take();
        // There is one as long as this thread goes on.
        let Some(mut transmit) = transmit else {
            return ControlFlow::Break(());
        };
        receiver.set_link(false, upper);
        // What waits for room is lost as what is sent now: nobody would tell of any.
        self.is_room_awaited.store(false, Ordering::Relaxed);
        upper.has_room();
        let resets = self.counters.resets.fetch_add(1, Ordering::Relaxed) + 1;
        if resets.is_power_of_two() {
            log::error!("{}: {reason}: reset {resets}", self.name);
        }
        loop {
            task::sleep_until(receiver.next_reset);
            if self.is_stopping() {
                return ControlFlow::Break(());
            }
            let result = self.nic.recover(&mut receiver.queue, &mut transmit);
            receiver.next_reset = Deadline::after_ns(RESET_NS);
            match result {
                Ok(()) => break,
                Err(StartError::BringUp(BringUpError::Transport(TransportError::Stuck))) => {}
                Err(error) => {
                    log::error!("{}: {error}: the card is gone", self.name);
                    return ControlFlow::Break(());
                }
            }
        }
        self.has_sending_broken.store(false, Ordering::Relaxed);
        *self.transmit.lock() = Some(transmit);
        self.interrupts.config.event().set();
        ControlFlow::Continue(())
    }
}

impl<P: Parts> Receiver<P> {
    /// Whether the link is up, as far as the thread has seen.
    #[must_use]
    pub fn is_link_up(&self) -> bool {
        self.is_link_up
    }

    fn set_link(&mut self, is_up: bool, upper: &dyn Upper) {
        if self.is_link_up != is_up {
            self.is_link_up = is_up;
            upper.link_changed(is_up);
        }
    }
}
