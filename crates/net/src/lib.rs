//! Sockets: what `socket(2)` makes, without the system calls themselves.
//!
//! A [`Socket`] is an open file ([`fs::FileOps`]) with the options every socket has, over a [`Protocol`], which is one family's idea of
//! binding, connecting and transferring: [`unix`] is `AF_UNIX`, [`inet`] `AF_INET` and `AF_INET6`,
//! [`netlink`] the part of `AF_NETLINK` that tells of interfaces, [`packet`] `AF_PACKET`. Guarantees, locks and costs are in `docs/sockets.md`.
//!
//! Nothing here touches user memory or knows of tasks: the crate runs as an ordinary host program in its tests.
#![cfg_attr(target_os = "none", no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod address;
mod timer;
pub mod inet;
pub mod netlink;
mod error_queue;
mod options;
pub mod packet;
mod endpoint;
mod extended_options;
pub mod sysctl;
mod socket;
mod byte_stream;
mod object_counts;
pub mod unix;

pub use address::{Address, LinkAddress, UnixName};
pub use timer::{Alarm, set_alarms};
pub use options::{Linger, Options};
pub use socket::{Caller, Flags, Groups, Incoming, Kind, Memory, Outgoing, Protocol, Socket, Ucred, Wait, set_identity};
pub use object_counts::census;
