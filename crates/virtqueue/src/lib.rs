//! Both ends of virtqueues, over any memory that the two ends share (`docs/virtio.md`).
//!
//! [`DriverQueue`] offers chains of buffers and gets each back exactly once; [`DeviceQueue`] uses
//! them. Neither believes anything that the other end writes: a broken [`Rule`] is an error, after
//! which the queue refuses everything until it is reset. Queues are split or packed (virtio 1.3,
//! sections 2.7 and 2.8).
//!
//! ```
//! use virtqueue::{Address, Areas, Features, Memory, Piece, Setup, Words};
//! use virtqueue::{DeviceQueue, DriverQueue};
//!
//! // What both ends reach: the queue at 0, buffers at 4,096.
//! let memory = Words::new(8192).unwrap();
//! let features = Features::EVENT_IDX | Features::INDIRECT;
//! let setup = Setup { size: 8, areas: Areas::at(Address::new(0), 8), features };
//! let mut driver = DriverQueue::new(&memory, setup, None).unwrap();
//! let mut device = DeviceQueue::new(&memory, setup, 8).unwrap();
//!
//! let buffer = Piece { at: Address::new(4096), len: 5 };
//! driver.add(&[], &[buffer], "the owner of the buffer").unwrap();
//! assert!(driver.must_notify().unwrap());
//!
//! let chain = device.take().unwrap().unwrap();
//! chain.write(&memory, 0, b"hello").unwrap();
//! device.finish(chain, 5).unwrap();
//! assert!(device.must_interrupt().unwrap());
//!
//! let done = driver.take().unwrap().unwrap();
//! assert_eq!((done.value, done.written), ("the owner of the buffer", 5));
//! let mut bytes = [0; 5];
//! memory.read(buffer.at, &mut bytes).unwrap();
//! assert_eq!(&bytes, b"hello");
//! ```
#![cfg_attr(not(any(test, loom)), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod device;
mod driver;
mod layout;
mod memory;
mod packed;
mod rule;
mod split;
mod sync;
mod transport;
mod words;

#[cfg(all(test, loom))]
mod model;
#[cfg(all(test, not(loom)))]
mod tests;

pub use device::{Chain, DeviceQueue};
pub use driver::{Done, DriverQueue, Refusal, Refused, Tables};
pub use layout::{Areas, Features, Left, Piece, Setup, SetupError};
pub use memory::{Address, Memory, Unreachable};
pub use rule::{Error, Rule};
pub use transport::{BringUpError, Status, Transport, TransportError, bring_up, config};
pub use words::Words;
