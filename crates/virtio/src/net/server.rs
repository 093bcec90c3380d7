//! The supervisor's end of a network card in shared pages (`abi::network`).

use alloc::vec::Vec;
use core::fmt;
use core::ops::Deref;
use core::sync::atomic::{AtomicU64, Ordering};

use abi::Network;
use abi::network::{self, INTERRUPT_CONFIG, INTERRUPT_QUEUES, QUEUE_SIZE, QueueRegisters};
use virtqueue::{
    Address, Areas, DeviceQueue, Error, Features, Left, Rule, Setup, SetupError, Status,
};

use super::device::{Collected, Port};
use super::window::{WindowMemory, window_memory};
use super::{MAC, feature, number};

/// Descriptors of a chain, at most: drivers of frames need one or two.
const LONGEST_CHAIN: u16 = 8;

/// Why a card goes on no more before its driver resets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// The driver uses features that were not offered, by bit.
    Features(u64),
    /// A queue of this number has more descriptors than it may.
    Size(usize),
    /// A queue of this number cannot be.
    Setup(usize, SetupError),
    /// The driver broke a rule of the queues.
    Rule(Rule),
    /// The driver may have begun with a supervisor before this one.
    Restarted,
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Features(bits) => write!(f, "features {bits:#x} were not offered"),
            Self::Size(queue) => write!(f, "queue {queue} is larger than {QUEUE_SIZE}"),
            Self::Setup(queue, error) => write!(f, "queue {queue}: {error}"),
            Self::Rule(rule) => rule.fmt(f),
            Self::Restarted => f.write_str("its supervisor has started again"),
        }
    }
}

impl core::error::Error for Stopped {}

type Queue<P> = DeviceQueue<WindowMemory<P>>;

/// Queues in use, with the features that were negotiated.
#[derive(Debug)]
struct Queues<P> {
    receive: Queue<P>,
    transmit: Queue<P>,
    features: u64,
}

/// The supervisor's end of a card.
///
/// Whatever the instance writes, a call does a bounded number of steps, and at worst the card is
/// [`Stopped`] until its driver resets it.
#[derive(Debug)]
pub struct Server<P> {
    pages: P,
    port: Port,
    queues: Option<Queues<P>>,
    stopped: Option<Stopped>,
    /// The last reset that was done.
    resets: u32,
    /// The instance is to be told to look at status and configuration.
    has_news: bool,
}

impl<P: Deref<Target = Network> + Clone> Server<P> {
    /// Makes a card of pages of zeroes, with its link up, and tells the instance of it there.
    #[must_use]
    pub fn new(pages: P, mac: [u8; MAC]) -> Self {
        let port = Port::new(mac, network::MTU);
        for (byte, value) in pages.device.config.iter().zip(port.config(true)) {
            byte.store(value, Ordering::Relaxed);
        }
        let features = offered(&port);
        pages.device.features.store(features, Ordering::Release);
        Self {
            pages,
            port,
            queues: None,
            stopped: None,
            resets: 0,
            has_news: false,
        }
    }

    /// A card that an instance has of a supervisor before this one, which has left nothing but the
    /// pages. How far it had come in the queues is not told there, so a driver that may have begun
    /// is asked to reset the card: what was under way is lost, as on a wire.
    #[must_use]
    pub fn adopted(pages: P, mac: [u8; MAC]) -> Self {
        let mut server = Self::new(pages, mac);
        let Network { device, driver, .. } = &*server.pages;
        // A reset that was asked for and not done is done when the card is looked at.
        server.resets = device.resets_done.load(Ordering::Relaxed);
        let status = driver.status.load(Ordering::Acquire);
        if Status::from_bits_truncate(status as u8).contains(Status::DRIVER_OK) {
            server.stop(Stopped::Restarted);
        }
        server
    }

    /// Bytes of a frame, at most.
    #[must_use]
    pub fn max_frame(&self) -> usize {
        self.port.max_frame()
    }

    /// Why the card is stopped.
    #[must_use]
    pub fn stopped(&self) -> Option<Stopped> {
        self.stopped
    }

    /// Does what the driver asks for in the registers: a reset, or to begin.
    pub fn follow(&mut self) {
        let driver = &self.pages.driver;
        let resets = driver.resets.load(Ordering::Acquire);
        if resets != self.resets {
            self.queues = None;
            self.port.reset();
            self.stopped = None;
            self.resets = resets;
            let device = &self.pages.device;
            device.status.store(0, Ordering::Relaxed);
            // After the last access to queues and buffers.
            device.resets_done.store(resets, Ordering::Release);
        }
        if self.queues.is_some() || self.stopped.is_some() {
            return;
        }
        let status = driver.status.load(Ordering::Acquire);
        if Status::from_bits_truncate(status as u8).contains(Status::DRIVER_OK) {
            match self.begin() {
                Ok(queues) => self.queues = Some(queues),
                // Tried again when it is looked at next.
                Err(Stopped::Setup(_, SetupError::NoMemory)) => {}
                Err(why) => self.stop(why),
            }
        }
    }

    /// Begins with what the driver says now.
    fn begin(&self) -> Result<Queues<P>, Stopped> {
        let features = self.pages.driver.features.load(Ordering::Relaxed);
        let unknown = features & !offered(&self.port);
        if unknown != 0 {
            return Err(Stopped::Features(unknown));
        }
        let queue = |number: u16| {
            let number = usize::from(number);
            let registers = &self.pages.driver.queues[number];
            let size = u16::try_from(registers.size.load(Ordering::Relaxed)).ok();
            let size = size.filter(|size| *size <= QUEUE_SIZE);
            let setup = Setup {
                size: size.ok_or(Stopped::Size(number))?,
                areas: areas_of(registers),
                features: Features::from_bits_truncate(features),
            };
            DeviceQueue::new(window_memory(self.pages.clone()), setup, LONGEST_CHAIN)
                .map_err(|error| Stopped::Setup(number, error))
        };
        Ok(Queues {
            receive: queue(number::RECEIVE)?,
            transmit: queue(number::TRANSMIT)?,
            features,
        })
    }

    fn stop(&mut self, why: Stopped) {
        self.queues = None;
        self.port.reset();
        self.stopped = Some(why);
        self.has_news = true;
        let status = u32::from(Status::NEEDS_RESET.bits());
        self.pages.device.status.store(status, Ordering::Release);
    }

    /// Does something with the queues, if the card is in use; a rule that is broken stops it.
    /// Without memory it is as if there were none.
    fn with<R>(
        &mut self,
        act: impl FnOnce(&mut Port, &mut Queues<P>) -> Result<R, Error>,
    ) -> Option<R> {
        let queues = self.queues.as_mut()?;
        match act(&mut self.port, queues) {
            Ok(done) => Some(done),
            Err(Error::NoMemory) => None,
            Err(Error::Broken(rule)) => {
                self.stop(Stopped::Rule(rule));
                None
            }
        }
    }

    /// Takes one chain that the instance sends, as [`Port::collect`]; `None` if there is none.
    pub fn collect(&mut self, frame: &mut Vec<u8>) -> Option<Collected> {
        self.with(|port, queues| port.collect(&mut queues.transmit, frame))
            .flatten()
    }

    /// Gives a frame to the instance. `false` if it has no buffer for it: the frame is lost.
    pub fn deliver(&mut self, frame: &[u8]) -> bool {
        self.with(|port, queues| port.deliver(&mut queues.receive, queues.features, frame))
            .unwrap_or(false)
    }

    /// Has the instance ring for frames, or not while they are looked for anyway. Tells whether
    /// there is one already.
    pub fn want_frames(&mut self, wants: bool) -> Left {
        let left = self.with(|_, queues| match wants {
            true => Ok(queues.transmit.want_notification()?),
            false => Ok(queues
                .transmit
                .decline_notifications()
                .map(|()| Left::Nothing)?),
        });
        left.unwrap_or(Left::Nothing)
    }

    /// Tells the instance in the pages why it is to be interrupted, if it is: the caller does that.
    pub fn must_interrupt(&mut self) -> bool {
        let used = self.with(|_, queues| {
            let sent = queues.transmit.must_interrupt()?;
            Ok(queues.receive.must_interrupt()? || sent)
        });
        let mut reasons = if used == Some(true) {
            INTERRUPT_QUEUES
        } else {
            0
        };
        if core::mem::take(&mut self.has_news) {
            reasons |= INTERRUPT_CONFIG;
        }
        if reasons != 0 {
            let interrupts = &self.pages.device.interrupts;
            interrupts.fetch_or(reasons, Ordering::Release);
        }
        reasons != 0
    }
}

/// Features of a card in shared pages. Without merged buffers a frame is in one, so that the work
/// for a frame does not depend on the buffers' lengths.
fn offered(port: &Port) -> u64 {
    port.features() & !feature::MERGE
}

/// Areas of the queue that registers tell of.
fn areas_of(registers: &QueueRegisters) -> Areas {
    let at = |register: &AtomicU64| Address::new(register.load(Ordering::Relaxed));
    Areas {
        descriptors: at(&registers.descriptors),
        driver: at(&registers.driver),
        device: at(&registers.device),
    }
}
