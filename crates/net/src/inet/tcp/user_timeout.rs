//! The longest that bytes wait for a peer that does not receive (`TCP_USER_TIMEOUT`, `tcp(7)`; RFC
//! 5482).
//!
//! An engine that carries the connection sees to that itself. Over the loop it is done here: bytes
//! that have not found room in the receiver's buffer are as bytes that were not acknowledged.
//! While there are such, and the socket was told how long they may wait, a timer looks whether they
//! have moved; at any other time there is none.

use alloc::sync::{Arc, Weak};
use core::sync::atomic::Ordering;

use abi::errno::Errno;

use super::{Connection, TcpSocket};
use crate::socket::timer::{self, TimerCallback};

/// Looks at a socket when its patience may be at an end.
struct UserTimeoutTimer {
    socket: Weak<TcpSocket>,
    /// The count of bytes the peer had received at the last look.
    last_read_offset: u64,
}

impl TimerCallback for UserTimeoutTimer {
    fn on_expiry(&self) {
        let Some(socket) = self.socket.upgrade() else {
            return;
        };
        socket.user_timer_armed.store(false, Ordering::Release);
        let Some(connection) = socket.connection.load() else {
            return;
        };
        match socket.stalled_read_offset(&connection) {
            Some(taken) if taken == self.last_read_offset && socket.user_timeout_ms() != 0 => {
                socket.abort(&connection);
                socket.endpoint.set_error(Errno::ETIMEDOUT);
                socket.endpoint.readable.notify();
                socket.endpoint.writable.notify();
            }
            _ => socket.check_user_timeout(&connection),
        }
    }
}

impl TcpSocket {
    /// Milliseconds that what is sent may wait for the peer; 0: for ever.
    pub(in crate::inet) fn user_timeout_ms(&self) -> u32 {
        self.user_timeout_ms.load(Ordering::Relaxed)
    }

    /// Sets the milliseconds that what is sent may wait for the peer; 0: for ever.
    pub(in crate::inet) fn set_user_timeout_ms(&self, milliseconds: u32) {
        self.user_timeout_ms.store(milliseconds, Ordering::Relaxed);
        if let Some(connection) = self.connection.load() {
            self.check_user_timeout(&connection);
        }
    }

    /// The count of bytes the peer has received, if there are others that it has no room for.
    fn stalled_read_offset(&self, connection: &Connection) -> Option<u64> {
        let queue = connection.peer.endpoint.queue.lock();
        let full = !queue.closed
            && queue.charged_bytes > connection.peer.endpoint.options.receive_buffer();
        full.then_some(queue.read_offset)
    }

    /// Has what was sent looked after, if it may not wait for ever and does wait.
    #[inline]
    pub(super) fn check_user_timeout(&self, connection: &Connection) {
        if self.user_timeout_ms() != 0 && connection.peer.is_loopback() {
            self.arm_user_timer(connection);
        }
    }

    #[inline(never)]
    fn arm_user_timer(&self, connection: &Connection) {
        let Some(last_read_offset) = self.stalled_read_offset(connection) else {
            return;
        };
        if !self.user_timer_armed.swap(true, Ordering::AcqRel) {
            let timer = UserTimeoutTimer {
                socket: self.this.clone(),
                last_read_offset,
            };
            timer::schedule_timer(
                u64::from(self.user_timeout_ms()) * 1_000_000,
                Arc::new(timer),
            );
        }
    }
}
