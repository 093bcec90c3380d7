//! The way to a device over PCI (virtio 1.3, section 4.1), without the legacy interface.
//!
//! What the machine gives is behind two traits: [`Registers`] of a base address register, and the
//! [`Function`] that has them. Each queue has an interrupt message of its own, as far as there are
//! so many; there is no interrupt line.

use core::fmt;
use core::sync::atomic::{AtomicU32, Ordering};

use pci::capabilities;
use virtqueue::{Features, Setup, Status, Transport, TransportError};

#[cfg(test)]
mod tests;

/// Registers of a function, a part of what one base address register covers. Offsets are multiples
/// of the access's size, and within.
pub trait Registers {
    /// Reads 8 bits.
    fn read8(&self, at: usize) -> u8;
    /// Reads 16 bits.
    fn read16(&self, at: usize) -> u16;
    /// Reads 32 bits.
    fn read32(&self, at: usize) -> u32;
    /// Writes 8 bits.
    fn write8(&self, at: usize, value: u8);
    /// Writes 16 bits.
    fn write16(&self, at: usize, value: u16);
    /// Writes 32 bits.
    fn write32(&self, at: usize, value: u32);
}

/// A function that a driver has for itself.
pub trait Function {
    /// Type of the function's registers.
    type Registers: Registers;

    /// Reads 32 bits of the function's configuration space, at a multiple of 4.
    fn config(&self, at: u16) -> u32;

    /// Registers in what base address register `bar` covers; `None` if they are not there, or not
    /// for a driver.
    fn registers(&self, bar: u8, offset: u32, len: u32) -> Option<Self::Registers>;

    /// The number of the message that tells of a queue, in the function's table.
    fn message_of(&self, queue: u16) -> u16;

    /// The number of the message that tells of changes of the configuration; `None` if nobody wants
    /// to be told.
    fn message_of_config(&self) -> Option<u16>;

    /// Resets the function by other means than its own, so that it reaches no memory any more, and
    /// lets it reach memory afterwards as before. `false` if it may not have stopped.
    fn force_reset(&self) -> bool;

    /// Waits before the device is looked at for the `n`th time.
    fn pause(&self, n: u32);
}

/// Vendor of all virtio devices, and the first of their numbers: the device's kind follows.
pub const VENDOR: u16 = 0x1af4;
const FIRST_DEVICE: u16 = 0x1040;
/// Numbers of devices that have the legacy interface, too (section 4.1.2.1), and their kinds.
const TRANSITIONAL: [(u16, u16); 5] = [
    (0x1000, 1),
    (0x1001, 2),
    (0x1003, 3),
    (0x1004, 8),
    (0x1005, 4),
];

/// Kind of a virtio device (section 5), by the vendor and the number of a function; `None` if it is
/// none.
#[must_use]
pub fn kind(vendor: u16, device: u16) -> Option<u16> {
    if vendor != VENDOR {
        return None;
    }
    let old = TRANSITIONAL.iter().find(|(number, _)| *number == device);
    match old {
        Some((_, kind)) => Some(*kind),
        None => device
            .checked_sub(FIRST_DEVICE)
            .filter(|kind| (1..0x40).contains(kind)),
    }
}

/// Capability of a vendor's own.
const CAPABILITY_VENDOR: u8 = 0x09;
/// Kinds of structures (section 4.1.4).
const COMMON: u8 = 1;
const NOTIFY: u8 = 2;
const DEVICE: u8 = 4;

/// Offsets of the common configuration (section 4.1.4.3).
mod field {
    pub const DEVICE_FEATURES_SELECT: usize = 0x00;
    pub const DEVICE_FEATURES: usize = 0x04;
    pub const DRIVER_FEATURES_SELECT: usize = 0x08;
    pub const DRIVER_FEATURES: usize = 0x0c;
    pub const CONFIG_MESSAGE: usize = 0x10;
    pub const QUEUES: usize = 0x12;
    pub const STATUS: usize = 0x14;
    pub const GENERATION: usize = 0x15;
    pub const QUEUE_SELECT: usize = 0x16;
    pub const QUEUE_SIZE: usize = 0x18;
    pub const QUEUE_MESSAGE: usize = 0x1a;
    pub const QUEUE_ENABLE: usize = 0x1c;
    pub const QUEUE_NOTIFY: usize = 0x1e;
    pub const QUEUE_DESCRIPTORS: usize = 0x20;
    pub const QUEUE_DRIVER: usize = 0x28;
    pub const QUEUE_DEVICE: usize = 0x30;
    /// End of what every device has.
    pub const END: u32 = 0x38;
    pub const QUEUE_RESET: usize = 0x3a;
    /// End with the reset of single queues.
    pub const END_WITH_RESET: u32 = 0x3c;
}

/// No message.
const NO_MESSAGE: u16 = 0xffff;
/// Times that a device is looked at before it counts as stuck.
const LOOKS: u32 = 2000;
/// Queues that a device may have.
const MAX_QUEUES: usize = 64;

/// Why a function is no virtio device that can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotVirtio {
    /// The function has no such structure: a legacy device, or none.
    Missing(&'static str),
}

impl fmt::Display for NotVirtio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Missing(what) = self;
        write!(f, "the function has no {what}")
    }
}

impl core::error::Error for NotVirtio {}

/// A structure's place.
#[derive(Clone, Copy)]
struct Place {
    at: u16,
    bar: u8,
    offset: u32,
    len: u32,
}

/// A device over PCI.
#[derive(Debug)]
pub struct Pci<F: Function> {
    function: F,
    common: F::Registers,
    common_len: u32,
    notify: F::Registers,
    notify_len: u32,
    notify_multiplier: u32,
    /// Configuration of the device's kind, with its length; some have none.
    device: Option<(F::Registers, u32)>,
    /// Offset at which each enabled queue is notified.
    notify_at: [AtomicU32; MAX_QUEUES],
}

impl<F: Function> Pci<F> {
    /// Looks for the device's structures.
    ///
    /// # Errors
    /// [`NotVirtio`].
    pub fn new(function: F) -> Result<Self, NotVirtio> {
        let read = |at: u16| function.config(at);
        let find = |kind: u8| {
            let places = capabilities(read).filter(|(id, _)| *id == CAPABILITY_VENDOR);
            // The first one that can be reached is the one (section 4.1.4.1).
            places
                .map(|(_, at)| (at, read(at)))
                .filter(|(at, head)| (head >> 24) as u8 == kind && *at <= 0xf0)
                .find_map(|(at, _)| {
                    let place = Place {
                        at,
                        bar: read(at + 4) as u8,
                        offset: read(at + 8),
                        len: read(at + 12),
                    };
                    Some((
                        place,
                        function.registers(place.bar, place.offset, place.len)?,
                    ))
                })
        };
        let (common_place, common) = find(COMMON)
            .filter(|(place, _)| place.len >= field::END)
            .ok_or(NotVirtio::Missing("common configuration"))?;
        let (notify_place, notify) = find(NOTIFY)
            .filter(|(place, _)| place.len >= 2 && place.at <= 0xec)
            .ok_or(NotVirtio::Missing("notifications"))?;
        let notify_multiplier = read(notify_place.at + 16);
        let device = find(DEVICE).map(|(place, registers)| (registers, place.len));
        Ok(Self {
            function,
            common,
            common_len: common_place.len,
            notify,
            notify_len: notify_place.len,
            notify_multiplier,
            device,
            notify_at: [const { AtomicU32::new(u32::MAX) }; MAX_QUEUES],
        })
    }

    /// The function that it is.
    pub fn function(&self) -> &F {
        &self.function
    }

    /// Looks at the device until something holds, for a bounded number of times.
    fn wait_until(&self, holds: impl Fn() -> bool) -> Result<(), TransportError> {
        for n in 0..LOOKS {
            if holds() {
                return Ok(());
            }
            self.function.pause(n);
        }
        Err(TransportError::Stuck)
    }

    fn write64(&self, at: usize, value: u64) {
        self.common.write32(at, value as u32);
        self.common.write32(at + 4, (value >> 32) as u32);
    }

    /// Has the device tell of something by a message.
    fn set_message(&self, register: usize, message: u16) -> Result<(), TransportError> {
        self.common.write16(register, message);
        // A device without room for it says so here (section 4.1.5.1.2).
        if self.common.read16(register) == message {
            Ok(())
        } else {
            Err(TransportError::NoMessage)
        }
    }

    /// Offset at which a queue is notified, if that is among the notifications.
    fn notify_offset(&self) -> Option<u32> {
        let number = u32::from(self.common.read16(field::QUEUE_NOTIFY));
        let at = number.checked_mul(self.notify_multiplier)?;
        (at.is_multiple_of(2) && at <= self.notify_len - 2).then_some(at)
    }
}

impl<F: Function> Transport for Pci<F> {
    fn reset(&self) -> Result<(), TransportError> {
        self.common.write8(field::STATUS, 0);
        let done = self.wait_until(|| self.common.read8(field::STATUS) == 0);
        // That it is late proves nothing: it is made to stop, and then it has.
        let done = done.or_else(|stuck| {
            let is_stopped = self.function.force_reset();
            is_stopped.then_some(()).ok_or(stuck)
        });
        done?;
        match self.function.message_of_config() {
            Some(message) => self.set_message(field::CONFIG_MESSAGE, message),
            None => {
                self.common.write16(field::CONFIG_MESSAGE, NO_MESSAGE);
                Ok(())
            }
        }
    }

    fn status(&self) -> Status {
        Status::from_bits_truncate(self.common.read8(field::STATUS))
    }

    fn set_status(&self, status: Status) {
        self.common.write8(field::STATUS, status.bits());
    }

    fn device_features(&self) -> u64 {
        let half = |n| {
            self.common.write32(field::DEVICE_FEATURES_SELECT, n);
            u64::from(self.common.read32(field::DEVICE_FEATURES))
        };
        let offered = half(0) | half(1) << 32;
        // What it cannot tell by these registers it has not.
        if self.common_len < field::END_WITH_RESET {
            offered & !Features::RING_RESET.bits()
        } else {
            offered
        }
    }

    fn set_driver_features(&self, features: u64) {
        for n in 0..2 {
            self.common.write32(field::DRIVER_FEATURES_SELECT, n);
            let half = (features >> (32 * n)) as u32;
            self.common.write32(field::DRIVER_FEATURES, half);
        }
    }

    fn queues(&self) -> u16 {
        self.common.read16(field::QUEUES).min(MAX_QUEUES as u16)
    }

    fn queue_size(&self, queue: u16) -> u16 {
        if queue >= self.queues() {
            return 0;
        }
        self.common.write16(field::QUEUE_SELECT, queue);
        self.common.read16(field::QUEUE_SIZE)
    }

    fn enable_queue(&self, queue: u16, setup: &Setup) -> Result<(), TransportError> {
        if self.queue_size(queue) < setup.size {
            return Err(TransportError::NoQueue);
        }
        let at = self.notify_offset().ok_or(TransportError::NoQueue)?;
        self.common.write16(field::QUEUE_SIZE, setup.size);
        let message = self.function.message_of(queue);
        self.set_message(field::QUEUE_MESSAGE, message)?;
        let areas = &setup.areas;
        for (register, area) in [
            (field::QUEUE_DESCRIPTORS, areas.descriptors),
            (field::QUEUE_DRIVER, areas.driver),
            (field::QUEUE_DEVICE, areas.device),
        ] {
            self.write64(register, area.number());
        }
        self.common.write16(field::QUEUE_ENABLE, 1);
        if let Some(place) = self.notify_at.get(usize::from(queue)) {
            place.store(at, Ordering::Release);
        }
        Ok(())
    }

    fn reset_queue(&self, queue: u16) -> Result<(), TransportError> {
        if self.common_len < field::END_WITH_RESET || queue >= self.queues() {
            return Err(TransportError::NoQueue);
        }
        self.common.write16(field::QUEUE_SELECT, queue);
        self.common.write16(field::QUEUE_RESET, 1);
        self.wait_until(|| {
            self.common.read16(field::QUEUE_RESET) == 0
                && self.common.read16(field::QUEUE_ENABLE) == 0
        })
    }

    fn notify(&self, queue: u16) {
        let place = self.notify_at.get(usize::from(queue));
        let at = place.map_or(u32::MAX, |at| at.load(Ordering::Acquire));
        if at != u32::MAX {
            self.notify.write16(at as usize, queue);
        }
    }

    fn config_generation(&self) -> u32 {
        u32::from(self.common.read8(field::GENERATION))
    }

    fn read_config(&self, at: usize, into: &mut [u8]) -> Result<(), TransportError> {
        let (registers, len) = self.device.as_ref().ok_or(TransportError::NoConfig)?;
        let end = at.checked_add(into.len()).ok_or(TransportError::NoConfig)?;
        if end > *len as usize {
            return Err(TransportError::NoConfig);
        }
        // Fields have up to 32 bits for an access (section 4.1.3.1); that all are of one moment is
        // for the generation to say.
        let mut at = at;
        let mut rest = into;
        while !rest.is_empty() {
            let n = if at.is_multiple_of(4) && rest.len() >= 4 {
                4
            } else {
                1
            };
            let (part, after) = rest.split_at_mut(n);
            match n {
                4 => part.copy_from_slice(&registers.read32(at).to_le_bytes()),
                _ => part[0] = registers.read8(at),
            }
            (at, rest) = (at + n, after);
        }
        Ok(())
    }
}
