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

pub mod inet;
pub mod netlink;
pub mod packet;
pub mod socket;
mod stack;
pub mod tun;
pub mod unix;

pub use socket::{
    Address, Caller, DeviceDetails, Frame, FrameRefused, KernelMailbox, Linger, LinkAddress,
    LinkKind, MsgFlags, NetDevice, NewInterface, OptionAccess, OutgoingMessage, ReceivedMessage,
    ScmRights, Socket, SocketMemory, SocketOps, SocketOptions, SocketType, SupplementaryGroups,
    TimerCallback, TxTime, Ucred, UnixName, WaitPolicy, set_credentials_provider,
    set_timer_scheduler,
};
pub use stack::Stack;
