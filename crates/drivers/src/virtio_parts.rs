//! Parts of the machine that drivers of virtio devices have, as types: their tests on the host have
//! others.

use task::Event;
use virtqueue::{Memory, Transport};

/// Parts of the machine that each driver of a virtio device has.
pub trait Parts: 'static {
    /// The way to the device.
    type Transport: Transport + Send + Sync;
    /// Memory of its queues.
    type Memory: Memory + Send;
    /// An interrupt of the device.
    type Interrupt: Interrupt + Send + Sync;
}

/// An interrupt of a device.
pub trait Interrupt {
    /// The event that it sets.
    fn event(&self) -> &Event;
}
