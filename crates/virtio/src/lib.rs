//! Protocols of virtio devices, both ends, over the queues of `virtqueue` (`docs/virtio.md`).
//!
//! Pure logic: memory, and the way to a device, are the caller's ([`virtqueue::Memory`],
//! [`virtqueue::Transport`]); waiting is, too. `pci` is such a way, over registers that are the
//! caller's.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod blk;
pub mod net;
pub mod pci;
