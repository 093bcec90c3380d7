//! The way to a device that is not its queues: status, features, notifications, configuration.

use core::fmt;

use bitflags::bitflags;

use crate::layout::{Features, Setup};

bitflags! {
    /// Progress of a device's initialization (section 2.1).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Status: u8 {
        /// The device was found.
        const ACKNOWLEDGE = 1;
        /// There is a driver for it.
        const DRIVER = 2;
        /// The device is in use.
        const DRIVER_OK = 4;
        /// The two have agreed on features.
        const FEATURES_OK = 8;
        /// The device cannot go on without a reset.
        const NEEDS_RESET = 64;
        /// The driver has given up.
        const FAILED = 128;
    }
}

/// A failure on the way to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransportError {
    /// The device has not done what it was told within a bounded time.
    Stuck,
    /// The device has no such queue, or not of this size.
    NoQueue,
    /// The device's configuration has no such bytes.
    NoConfig,
    /// The device has no room for an interrupt message.
    NoMessage,
}

impl fmt::Display for TransportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stuck => "the device does not do what it is told",
            Self::NoQueue => "the device has no such queue",
            Self::NoConfig => "the device's configuration is shorter than it must be",
            Self::NoMessage => "the device has no room for an interrupt message",
        })
    }
}

impl core::error::Error for TransportError {}

/// A way to a device: PCI, or memory shared with another instance.
///
/// Everything but [`Self::notify`] is for one caller at a time. What these calls return was said by
/// the device, and is not to be believed.
pub trait Transport {
    /// Resets the device and waits, for a bounded time, until it says that it is done (section
    /// 2.4). When this returns without an error, it reaches no memory any more.
    ///
    /// # Errors
    /// [`TransportError::Stuck`]. Then the device may still reach memory. With
    /// [`TransportError::NoMessage`] it has stopped, and would tell nothing.
    fn reset(&self) -> Result<(), TransportError>;

    /// The device's status.
    fn status(&self) -> Status;

    /// Tells the device how far its driver is. Bits are added only; [`Self::reset`] clears them.
    fn set_status(&self, status: Status);

    /// Features that the device offers, by bit (section 2.2).
    fn device_features(&self) -> u64;

    /// Tells the device which features will be used.
    fn set_driver_features(&self, features: u64);

    /// Queues that the device has.
    fn queues(&self) -> u16;

    /// Descriptors that a queue may have at most; none if there is no such queue.
    fn queue_size(&self, queue: u16) -> u16;

    /// Tells the device where a queue is, and enables it (section 4.1.5.1.3 for PCI).
    ///
    /// # Errors
    /// If the device has no such queue, or does not take it.
    fn enable_queue(&self, queue: u16, setup: &Setup) -> Result<(), TransportError>;

    /// Resets one queue and waits, for a bounded time, until the device says that it is done
    /// (section 2.6.1). For devices with [`Features::RING_RESET`].
    ///
    /// # Errors
    /// [`TransportError::Stuck`]. Then the device may still use the queue.
    fn reset_queue(&self, queue: u16) -> Result<(), TransportError>;

    /// Tells the device to look at a queue.
    fn notify(&self, queue: u16);

    /// A number that changes when the configuration does (section 2.5).
    fn config_generation(&self) -> u32;

    /// Copies bytes of the device's configuration out.
    ///
    /// # Errors
    /// [`TransportError::NoConfig`] if it is not that long.
    fn read_config(&self, at: usize, into: &mut [u8]) -> Result<(), TransportError>;
}

/// Tries to read a configuration that does not change meanwhile.
const CONFIG_TRIES: u32 = 16;

/// Reads bytes of a configuration as they were at one moment: between two equal generations
/// (section 2.5.1).
///
/// # Errors
/// If the configuration is shorter, or changes each time.
pub fn config(
    transport: &impl Transport,
    at: usize,
    into: &mut [u8],
) -> Result<(), TransportError> {
    for _ in 0..CONFIG_TRIES {
        let before = transport.config_generation();
        transport.read_config(at, into)?;
        if transport.config_generation() == before {
            return Ok(());
        }
    }
    Err(TransportError::Stuck)
}

/// Why a device cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BringUpError {
    /// The way to the device does not work.
    Transport(TransportError),
    /// The device does not offer these features, by bit.
    Missing(u64),
    /// The device does not accept the features, all of which it has offered.
    Refused,
}

impl From<TransportError> for BringUpError {
    fn from(error: TransportError) -> Self {
        Self::Transport(error)
    }
}

impl fmt::Display for BringUpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Transport(error) => error.fmt(f),
            Self::Missing(bits) => write!(f, "the device lacks features {bits:#x}"),
            Self::Refused => f.write_str("the device does not accept the features it offered"),
        }
    }
}

impl core::error::Error for BringUpError {}

/// Resets a device and agrees with it on features: steps 1 to 6 of section 3.1.1. What follows is
/// to enable queues, and to set [`Status::DRIVER_OK`].
///
/// The features are those of `wanted` and `required` that the device offers.
///
/// # Errors
/// If one of `required`, or version 1, is not offered, or the device does not do its part. Then it
/// was told that its driver has given up.
pub fn bring_up(
    transport: &impl Transport,
    wanted: u64,
    required: u64,
) -> Result<u64, BringUpError> {
    transport.reset()?;
    let greeting = Status::ACKNOWLEDGE | Status::DRIVER;
    transport.set_status(Status::ACKNOWLEDGE);
    transport.set_status(greeting);
    let agree = || {
        let offered = transport.device_features();
        let required = required | Features::VERSION_1.bits();
        if required & !offered != 0 {
            return Err(BringUpError::Missing(required & !offered));
        }
        let features = offered & (wanted | required);
        transport.set_driver_features(features);
        transport.set_status(greeting | Status::FEATURES_OK);
        if transport.status().contains(Status::FEATURES_OK) {
            Ok(features)
        } else {
            Err(BringUpError::Refused)
        }
    };
    agree().inspect_err(|_| transport.set_status(greeting | Status::FAILED))
}
