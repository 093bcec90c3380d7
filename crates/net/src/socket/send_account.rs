//! Bytes that a socket of datagrams has sent and that have not left: they wait before a card.

use alloc::sync::Arc;
use core::fmt;
use core::sync::atomic::{AtomicUsize, Ordering};

use fs::Result;
use fs::poll::{Events, PollQueue};

use super::message::WaitPolicy;
use super::options::SocketOptions;

/// The bytes of the sender's buffer that a frame takes up besides its own.
const FRAME_OVERHEAD: usize = 256;

/// The part of a socket's datagrams that waits to be sent, against its buffer (`SO_SNDBUF`; Linux
/// `sk_wmem_alloc`).
pub struct SendAccount {
    options: Arc<SocketOptions>,
    bytes: AtomicUsize,
    /// There is more room.
    room: PollQueue,
}

impl fmt::Debug for SendAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SendAccount({})", self.bytes())
    }
}

impl SendAccount {
    pub(crate) fn new(options: Arc<SocketOptions>) -> Arc<Self> {
        Arc::new(Self {
            options,
            bytes: AtomicUsize::new(0),
            room: PollQueue::new(),
        })
    }

    /// The bytes of the buffer that are taken up.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Acquire)
    }

    /// Whether a program that asks is told that it can send: when half of the buffer is free, as on
    /// Linux.
    pub(crate) fn is_writable(&self) -> bool {
        2 * self.bytes() < self.options.send_buffer()
    }

    /// The queue of those who wait for room.
    pub(crate) fn room(&self) -> &PollQueue {
        &self.room
    }

    /// Waits until one more datagram may be sent: while the buffer is not full. `ended` says
    /// whether none will be any more, and why.
    ///
    /// # Errors
    /// As [`WaitPolicy::wait_on`], and those of `ended`.
    pub(crate) fn wait(
        &self,
        wait: WaitPolicy,
        ended: impl Fn() -> Option<fs::Result<()>>,
    ) -> Result<()> {
        let has_room = || self.bytes() < self.options.send_buffer();
        if has_room() {
            return Ok(());
        }
        wait.wait_on(&self.room, || {
            ended().or_else(|| has_room().then_some(Ok(())))
        })
    }

    /// Charges a frame of so many bytes, until what is returned is dropped.
    pub(crate) fn charge(self: &Arc<Self>, bytes: usize) -> SendCharge {
        let bytes = bytes + FRAME_OVERHEAD;
        self.bytes.fetch_add(bytes, Ordering::AcqRel);
        SendCharge {
            account: self.clone(),
            bytes,
        }
    }
}

/// The part of a sender's buffer that a frame takes up. Whoever drops it holds no lock that a
/// socket of a program takes: who waits for room is told.
pub(crate) struct SendCharge {
    account: Arc<SendAccount>,
    bytes: usize,
}

impl Drop for SendCharge {
    fn drop(&mut self) {
        let account = &self.account;
        account.bytes.fetch_sub(self.bytes, Ordering::AcqRel);
        if account.is_writable() {
            account
                .room
                .notify_events(Events::WRITABLE | Events::WRBAND);
        }
    }
}
