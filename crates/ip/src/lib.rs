//! The Internet Protocol as pure logic: packets in and out of bytes, fragments, neighbours, routes,
//! ICMP, address translation (`docs/ip.md`, `docs/nat.md`).
//!
//! Nothing here knows a device, a clock, a lock or a random number: times and numbers are handed
//! in, and what is to be sent is handed out. Memory is taken fallibly, and each table has a bound.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod address;
pub mod arp;
mod checksum;
pub mod groups;
pub mod icmp;
pub mod ipv4;
pub mod nat;
pub mod neighbour;
mod path_mtu;
mod rate_limit;
mod reassembly;
pub mod route;
pub mod v6;

pub use address::Address;
pub use checksum::{Checksum, ChecksumUpdate, checksum};
pub use path_mtu::PathMtus;
pub use rate_limit::RateLimit;
pub use reassembly::{Expired, Fragment, Reassembled, Reassembly};

/// Nanoseconds: a time since some beginning, or a span.
pub type Nanos = u64;

/// A second.
pub const SECOND: Nanos = 1_000_000_000;

/// An address of Ethernet.
pub type HardwareAddress = [u8; 6];

/// The Ethernet address of everybody on the link.
pub const EVERYBODY: HardwareAddress = [0xff; 6];

/// The packet is malformed, or not one that may be believed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Malformed;
