//! Messages: what one call sends or receives, and the terms on which it waits.

use alloc::vec::Vec;

use abi::errno::Errno;
use fs::Result;
use fs::path::LookupContext;
use fs::poll::PollQueue;
use linux_raw_sys::net;

use super::address::Address;
use super::credentials::Ucred;
use super::scm::ScmRights;

/// A control message: level, kind, bytes.
pub(crate) type ControlMessage = (u32, u32, Vec<u8>);

/// The caller that binds, connects or sends to an address, and what names mean to it.
pub struct Caller<'a> {
    /// The start of path lookups, with the permissions of the caller.
    pub walk: LookupContext<'a>,
    /// The file creation mask.
    pub umask: u32,
}

bitflags::bitflags! {
    /// The flags of `send(2)` and `recv(2)` that matter here.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct MsgFlags: u32 {
        /// Urgent data.
        const OOB = net::MSG_OOB;
        /// Leave in the queue what is received.
        const PEEK = net::MSG_PEEK;
        /// More will follow: what is sent may wait for that.
        const MORE = net::MSG_MORE;
        /// Wait until the buffer is full.
        const WAITALL = net::MSG_WAITALL;
    }
}

/// The terms on which a call waits.
#[derive(Clone, Copy, Debug)]
pub struct WaitPolicy {
    /// Whether the call does not wait at all.
    pub nonblocking: bool,
    /// At most so many nanoseconds; 0 is for ever.
    pub timeout_ns: u64,
}

impl WaitPolicy {
    /// The terms of a call that does not wait.
    pub(crate) const NONBLOCKING: Self = Self {
        nonblocking: true,
        timeout_ns: 0,
    };

    /// Waits at `source` until `attempt` gives a result.
    ///
    /// # Errors
    /// That of the attempt; `EAGAIN` if it would have to wait, or has waited long enough;
    /// `ERESTARTSYS` (`EINTR` if there is a limit) for a signal.
    pub(crate) fn wait_on<R>(
        self,
        source: &PollQueue,
        mut attempt: impl FnMut() -> Option<Result<R>>,
    ) -> Result<R> {
        if let Some(result) = attempt() {
            return result;
        }
        if self.nonblocking {
            return Err(Errno::EAGAIN);
        }
        if self.timeout_ns == 0 {
            return source.wait(attempt).flatten();
        }
        let deadline = task::Deadline::after_ns(self.timeout_ns);
        match source.wait_until(Some(deadline), attempt) {
            Ok(Some(result)) => result,
            Ok(None) => Err(Errno::EAGAIN),
            Err(_) => Err(Errno::EINTR),
        }
    }
}

/// A copy of a message's bytes, which wait to be received.
///
/// # Errors
/// `ENOBUFS` beyond the kernel's high mark, `ENOMEM`.
pub(crate) fn copy_of(data: &[u8]) -> Result<Vec<u8>> {
    fs::charge::check_memory().map_err(|_| Errno::ENOBUFS)?;
    fallible::copy_of(data)
}

/// A message that is sent in one call.
pub struct OutgoingMessage<'a> {
    /// The bytes.
    pub data: &'a [u8],
    /// The destination, if it is not the connected peer.
    pub to: Option<(&'a Caller<'a>, &'a Address)>,
    /// Open files to go with it (`SCM_RIGHTS`).
    pub rights: Option<ScmRights>,
    /// The identity that the sender claims (`SCM_CREDENTIALS`), checked.
    pub credentials: Option<Ucred>,
    /// Control messages of levels below that of all sockets: level, kind and bytes.
    pub control: Vec<(u32, u32, Vec<u8>)>,
}

impl<'a> OutgoingMessage<'a> {
    /// Bytes for the connected peer and nothing else.
    #[must_use]
    pub const fn plain(data: &'a [u8]) -> Self {
        Self {
            data,
            to: None,
            rights: None,
            credentials: None,
            control: Vec::new(),
        }
    }
}

/// The result of one call that receives.
#[derive(Default)]
pub struct ReceivedMessage {
    /// The number of bytes in the buffer.
    pub copied: usize,
    /// The number of bytes the message had.
    pub message_len: usize,
    /// The sender's address, of sockets that are not connected.
    pub from: Option<Address>,
    /// The open files that came with it.
    pub rights: Option<ScmRights>,
    /// The sender's identity, if the receiver asked for that.
    pub credentials: Option<Ucred>,
    /// Whether the message is urgent data (`MSG_OOB`).
    pub urgent: bool,
    /// Control messages that were asked for: level, kind and bytes.
    pub control: Vec<(u32, u32, Vec<u8>)>,
}
