//! A network card in pages that an instance shares with its supervisor (`abi::network`): the
//! instance's way to it. [`Server`](super::Server) is at the other end.

use core::ops::Deref;
use core::sync::atomic::{AtomicU16, AtomicU32, Ordering};

use abi::Network;
use abi::network::{QUEUE_SIZE, QUEUES};
use virtqueue::{Setup, Status, Transport, TransportError, Words};

/// The area of the pages, for queues.
#[derive(Clone, Copy, Debug)]
pub struct Area<P>(P);

impl<P: Deref<Target = Network>> AsRef<[AtomicU16]> for Area<P> {
    fn as_ref(&self) -> &[AtomicU16] {
        &self.0.area
    }
}

/// Memory that queues in the pages have.
pub type WindowMemory<P> = Words<Area<P>>;

/// The area of pages as memory of queues: its addresses are offsets.
#[must_use]
pub fn window_memory<P: Deref<Target = Network>>(pages: P) -> WindowMemory<P> {
    Words::over(Area(pages))
}

/// The instance's part of the machine that the way to the card needs.
pub trait Bell {
    /// Has the supervisor look at the pages.
    fn ring(&self);

    /// Waits a little before the pages are looked at for the `n`th time.
    fn pause(&self, n: u32);
}

/// Looks at whether a reset was done.
const RESET_LOOKS: u32 = 2000;

/// The instance's way to its card.
#[derive(Debug)]
pub struct WindowTransport<P, B> {
    pages: P,
    bell: B,
}

impl<P: Deref<Target = Network>, B: Bell> WindowTransport<P, B> {
    /// The way to the card in these pages.
    #[must_use]
    pub const fn new(pages: P, bell: B) -> Self {
        Self { pages, bell }
    }

    /// The last request for a reset, if it was not done.
    fn pending_reset(&self) -> Option<u32> {
        let asked = self.pages.driver.resets.load(Ordering::Relaxed);
        // What follows is with a device that touches nothing any more.
        let done = self.pages.device.resets_done.load(Ordering::Acquire);
        (done != asked).then_some(asked)
    }
}

/// Status bits of a register.
fn status_of(register: &AtomicU32) -> Status {
    Status::from_bits_truncate(register.load(Ordering::Acquire) as u8)
}

impl<P: Deref<Target = Network>, B: Bell> Transport for WindowTransport<P, B> {
    fn reset(&self) -> Result<(), TransportError> {
        let driver = &self.pages.driver;
        if self.pending_reset().is_none() {
            let was = status_of(&driver.status);
            driver.status.store(0, Ordering::Relaxed);
            if !was.contains(Status::DRIVER_OK) {
                // It was never told to begin.
                return Ok(());
            }
            driver.resets.fetch_add(1, Ordering::Release);
        }
        self.bell.ring();
        for n in 0..RESET_LOOKS {
            if self.pending_reset().is_none() {
                return Ok(());
            }
            self.bell.pause(n);
        }
        Err(TransportError::Stuck)
    }

    fn status(&self) -> Status {
        status_of(&self.pages.driver.status)
            | status_of(&self.pages.device.status) & Status::NEEDS_RESET
    }

    fn set_status(&self, status: Status) {
        let bits = (status - Status::NEEDS_RESET).bits();
        let before = self.pages.driver.status.swap(bits.into(), Ordering::AcqRel);
        let begins = status.contains(Status::DRIVER_OK);
        if begins && !Status::from_bits_truncate(before as u8).contains(Status::DRIVER_OK) {
            self.bell.ring();
        }
    }

    fn device_features(&self) -> u64 {
        self.pages.device.features.load(Ordering::Acquire)
    }

    fn set_driver_features(&self, features: u64) {
        let register = &self.pages.driver.features;
        register.store(features, Ordering::Relaxed);
    }

    fn queues(&self) -> u16 {
        QUEUES as u16
    }

    fn queue_size(&self, queue: u16) -> u16 {
        match usize::from(queue) {
            0..QUEUES => QUEUE_SIZE,
            _ => 0,
        }
    }

    fn enable_queue(&self, queue: u16, setup: &Setup) -> Result<(), TransportError> {
        let registers = self.pages.driver.queues.get(usize::from(queue));
        let registers = registers.ok_or(TransportError::NoQueue)?;
        for (register, at) in [
            (&registers.descriptors, setup.areas.descriptors),
            (&registers.driver, setup.areas.driver),
            (&registers.device, setup.areas.device),
        ] {
            register.store(at.number(), Ordering::Relaxed);
        }
        registers.size.store(setup.size.into(), Ordering::Relaxed);
        Ok(())
    }

    fn reset_queue(&self, _: u16) -> Result<(), TransportError> {
        // It was not offered.
        Err(TransportError::Stuck)
    }

    fn notify(&self, _: u16) {
        self.bell.ring();
    }

    fn config_generation(&self) -> u32 {
        self.pages.device.generation.load(Ordering::Acquire)
    }

    fn read_config(&self, at: usize, into: &mut [u8]) -> Result<(), TransportError> {
        let config = &self.pages.device.config;
        let end = at.checked_add(into.len());
        let bytes = end.and_then(|end| config.get(at..end));
        let bytes = bytes.ok_or(TransportError::NoConfig)?;
        for (to, byte) in into.iter_mut().zip(bytes) {
            *to = byte.load(Ordering::Acquire);
        }
        Ok(())
    }
}
