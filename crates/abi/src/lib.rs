//! Structures shared between instances, and between the kernel and its tools.
//!
//! Everything here is `#[repr(C)]` with sizes and offsets asserted at compile time, carries a magic
//! number and a version where it starts a mapping of its own, and is *data only*: the protocols
//! over it live in `ring`, `guard`, `node` and `link`. What the other side can write is either an
//! atomic (so that reading it is defined behaviour whatever the peer does) or is validated by an
//! accessor before it is used.
//!
//! Three kinds of fields are never mixed in one cache line: *anchors* (written once before the
//! instance starts), *boot data* (read once by the instance) and *mailboxes* (written by one side
//! while the other reads).
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod boot;
pub mod descriptor;
pub mod dev;
pub mod errno;
pub mod exec;
pub mod keep;
pub mod layout;
pub mod live;
pub mod messages;
pub mod msg;
pub mod network;
pub mod park;
pub mod usage;
pub mod window;

pub use descriptor::Descriptor;
pub use msg::Message;
pub use network::Network;
pub use park::Slot;
pub use window::Window;
