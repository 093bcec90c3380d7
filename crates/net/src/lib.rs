//! Sockets: what `socket(2)` makes, without the system calls themselves.
//!
//! A [`Socket`] is an open file ([`fs::FileOps`]) with the options every socket has, over a
//! [`SocketOps`], which is one family's idea of binding, connecting and transferring: [`unix`] is
//! `AF_UNIX`, [`inet`] `AF_INET` and `AF_INET6`, [`netlink`] the part of `AF_NETLINK` that tells of
//! interfaces, [`packet`] `AF_PACKET`. Guarantees, locks and costs are in `docs/sockets.md`.
//!
//! Nothing here touches user memory or knows of tasks: the crate runs as an ordinary host program
//! in its tests.
#![cfg_attr(target_os = "none", no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod address;
mod byte_stream;
mod endpoint;
mod error_queue;
mod extended_options;
pub mod inet;
pub mod netlink;
mod object_counts;
mod options;
pub mod packet;
mod socket;
pub mod sysctl;
mod timer;
pub mod unix;

pub use address::{Address, LinkAddress, UnixName};
pub use object_counts::object_counts;
pub use options::{Linger, SocketOptions};
pub use socket::{
    Caller, MsgFlags, OutgoingMessage, ReceivedMessage, Socket, SocketMemory, SocketOps,
    SocketType, SupplementaryGroups, Ucred, WaitPolicy, set_credentials_provider,
};
pub use timer::{TimerCallback, set_timer_scheduler};
