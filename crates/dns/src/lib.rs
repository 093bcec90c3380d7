//! A name server that has nothing but the names of a network of instances, as pure logic
//! (`docs/instance-networks.md`): a query in, an answer out, and nothing kept between.
//!
//! It knows a [`Zone`], and refuses every other name, so that who asks goes on to the next server.
//! Any bytes are a query: nothing here allocates, recurses, or follows what a message points to.
//!
//! ```
//! use core::net::Ipv4Addr;
//! use dns::{Name, Zone, answer};
//!
//! struct Web;
//! impl Zone for Web {
//!     fn address_of(&self, name: &Name) -> Option<Ipv4Addr> {
//!         name.is("web").then_some(Ipv4Addr::new(10, 88, 0, 2))
//!     }
//!     fn contains(&self, _: Ipv4Addr) -> bool {
//!         false
//!     }
//!     fn name_of(&self, _: Ipv4Addr) -> Option<Name> {
//!         None
//!     }
//! }
//!
//! let query = b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x03WEB\0\0\x01\0\x01";
//! let reply = answer(query, &Web).unwrap();
//! assert_eq!(reply.bytes()[..2], query[..2]);
//! assert!(reply.bytes().ends_with(&[0, 4, 10, 88, 0, 2]));
//! ```
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

mod frame;
mod message;
mod name;
#[cfg(test)]
mod tests;

use core::net::Ipv4Addr;

pub use frame::{FRAME_ROOM, FrameReply, answer_frame};
pub use message::{REPLY_ROOM, Reply, answer};
pub use name::Name;

/// Names and addresses that a server knows.
pub trait Zone {
    /// The address of a name; `None` if it is none of the zone's.
    fn address_of(&self, name: &Name) -> Option<Ipv4Addr>;

    /// Whether an address is one of the zone's.
    fn contains(&self, address: Ipv4Addr) -> bool;

    /// The name of who has an address of the zone; `None` if nobody has, or who has no name.
    fn name_of(&self, address: Ipv4Addr) -> Option<Name>;
}
