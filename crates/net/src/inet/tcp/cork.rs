//! Bytes that a socket holds back, since more will follow that can go out with them (`MSG_MORE` of
//! `send(2)`, `TCP_CORK` of `tcp(7)`).
//!
//! What makes a full segment goes out; the rest when something is sent that nothing is to follow,
//! when `TCP_CORK` ends or `TCP_NODELAY` begins, with the end of the stream, or after 200 ms.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use abi::errno::Errno;
use fallible::TryExtend;
use fs::Result;
use linux_raw_sys::net;
use task::Mutex;

use super::{Connection, TcpSocket};
use crate::inet::option_table::{LOOPBACK_MSS, TCP};
use crate::socket::endpoint::SEND_SHUTDOWN;
use crate::socket::timer::{self, TimerCallback};
use crate::{MsgFlags, OutgoingMessage, WaitPolicy};

/// Bytes of a full segment.
const SEGMENT: usize = LOOPBACK_MSS as usize;
/// The longest that bytes are held back, nanoseconds.
const LONGEST_NS: u64 = 200_000_000;

/// The bytes that a socket holds back.
#[derive(Default)]
pub(super) struct Cork {
    bytes: Mutex<Vec<u8>>,
    /// Whether there are bytes, or the option is set: sending takes the long way.
    active: AtomicBool,
    /// `TCP_CORK`.
    set: AtomicBool,
    /// Whether a timer will end the holding back.
    timer_armed: AtomicBool,
}

/// Ends the holding back of a socket's bytes.
struct CorkTimer(Weak<TcpSocket>);

impl TimerCallback for CorkTimer {
    fn on_expiry(&self) {
        if let Some(socket) = self.0.upgrade() {
            socket.cork.timer_armed.store(false, Ordering::Release);
            socket.push_held();
        }
    }
}

impl Cork {
    /// Whether what is sent may have to wait, or to go behind what does.
    #[inline]
    pub(super) fn is_active(&self) -> bool {
        self.active.load(Ordering::Acquire)
    }

    /// Number of bytes that are held back.
    pub(super) fn held(&self) -> usize {
        if self.is_active() {
            self.bytes.lock().len()
        } else {
            0
        }
    }

    /// Drops the bytes that are held back.
    pub(super) fn clear(&self) {
        if self.is_active() {
            let mut bytes = self.bytes.lock();
            bytes.clear();
            self.update(&bytes);
        }
    }

    /// Notes, with the bytes locked, whether sending takes the long way from now on. Not before
    /// what was held back is sent: nothing may overtake it.
    fn update(&self, bytes: &[u8]) {
        let active = !bytes.is_empty() || self.set.load(Ordering::Acquire);
        self.active.store(active, Ordering::Release);
    }
}

impl TcpSocket {
    /// Sends as `SocketOps::send` does, while bytes are held back or these are to be.
    pub(super) fn send_corked(
        &self,
        connection: &Connection,
        message: OutgoingMessage<'_>,
        flags: MsgFlags,
        wait: WaitPolicy,
    ) -> Result<usize> {
        let holds = flags.contains(MsgFlags::MORE) || self.cork.set.load(Ordering::Acquire);
        let refused = self.endpoint.has_error() || self.endpoint.is_shut_down(SEND_SHUTDOWN);
        // Nothing waits behind the urgent byte.
        if refused || flags.contains(MsgFlags::OOB) || message.data.is_empty() {
            self.push_held();
            return self.send_message(connection, message, flags, wait);
        }
        let data = message.data;
        let (accepted, error) = {
            let mut bytes = self.cork.bytes.lock();
            let held = bytes.len();
            bytes.try_extend(data)?;
            let all = bytes.len();
            let now = if holds { all - all % SEGMENT } else { all };
            let sent = if now == 0 {
                Ok(0)
            } else {
                self.push(connection, &bytes[..now], held)
            };
            if sent == Ok(now) {
                bytes.drain(..now);
                self.cork.update(&bytes);
                let waits = !bytes.is_empty();
                drop(bytes);
                if waits {
                    self.arm_cork_timer();
                }
                return Ok(data.len());
            }
            // What was held back has been accepted, and goes out at any rate.
            let sent_bytes = sent.unwrap_or(0);
            if sent_bytes < held {
                let _ = self.push(connection, &bytes[sent_bytes..held], usize::MAX);
            }
            bytes.clear();
            self.cork.update(&bytes);
            (sent_bytes.saturating_sub(held), sent.err())
        };
        let rest = match error {
            Some(error) if error != Errno::EAGAIN => Err(error),
            _ => self.send_message(
                connection,
                OutgoingMessage {
                    data: &data[accepted..],
                    ..message
                },
                flags,
                wait,
            ),
        };
        match rest {
            Ok(more) => Ok(accepted + more),
            Err(_) if accepted > 0 => Ok(accepted),
            Err(error) => Err(error),
        }
    }

    fn arm_cork_timer(&self) {
        if !self.cork.timer_armed.swap(true, Ordering::AcqRel) {
            timer::schedule_timer(LONGEST_NS, Arc::new(CorkTimer(self.this.clone())));
        }
    }

    /// Sends all that is held back.
    pub(super) fn push_held(&self) {
        if self.cork.is_active()
            && let Some(connection) = self.connection.load()
        {
            let mut bytes = self.cork.bytes.lock();
            if !bytes.is_empty() {
                // There is room for it: it was accepted, and is not more than a segment. To a peer
                // that is gone it is lost.
                let _ = self.push(&connection, &bytes, usize::MAX);
            }
            bytes.clear();
            self.cork.update(&bytes);
        }
    }

    /// Sends bytes without waiting, as far as there is room for them and `beyond` more.
    ///
    /// # Errors
    /// `EAGAIN` if there is none; those of `SocketOps::send`.
    fn push(&self, connection: &Connection, bytes: &[u8], beyond: usize) -> Result<usize> {
        let mut stream = self.stream(connection);
        stream.send_limit = stream.send_limit.saturating_add(beyond);
        let mut told = |start: u64, data: &[u8]| {
            if self.has_taps() && connection.peer.is_loopback() {
                self.tap_data(connection, start, data);
            }
        };
        stream.send(
            OutgoingMessage::plain(bytes),
            None,
            MsgFlags::empty(),
            WaitPolicy::NONBLOCKING,
            &mut told,
        )
    }

    /// Does what a change of an option means for bytes that are held back.
    pub(super) fn on_cork_option(&self, option: u32) {
        if option != net::TCP_CORK && option != net::TCP_NODELAY {
            return;
        }
        let is_enabled = |option| self.common.options.is_enabled(TCP, option);
        let corked = is_enabled(net::TCP_CORK);
        self.cork.set.store(corked, Ordering::Release);
        if corked {
            self.cork.active.store(true, Ordering::Release);
        }
        if !corked || (option == net::TCP_NODELAY && is_enabled(net::TCP_NODELAY)) {
            self.push_held();
        }
    }
}
