//! How long what was sent waits for a peer that does not receive (`TCP_USER_TIMEOUT`, `tcp(7)`; RFC 5482).
//!
//! Bytes that have not found room in the receiver's buffer are as bytes that were not acknowledged. While there are such, and the socket was
//! told how long they may wait, an alarm looks whether they have moved; at any other time there is none.

use super::{Connection, TcpSocket};
use crate::timer::{self, TimerCallback};
use abi::errno::Errno;
use alloc::sync::{Arc, Weak};
use core::sync::atomic::Ordering;

/// Looks at a socket when its patience may be at an end.
struct UserTimeoutTimer {
    socket: Weak<TcpSocket>,
    /// How many bytes the peer had received when it looked last.
    before: u64,
}

impl TimerCallback for UserTimeoutTimer {
    fn on_expiry(&self) {
        let Some(socket) = self.socket.upgrade() else { return };
        socket.watched.store(false, Ordering::Release);
        let Some(connection) = socket.connection.get() else { return };
        match socket.stuck(connection) {
            Some(taken) if taken == self.before && socket.patience() != 0 => {
                socket.abort(connection);
                socket.port.set_error(Errno::ETIMEDOUT);
                socket.port.readable.notify();
                socket.port.writable.notify();
            }
            _ => socket.look_after(connection),
        }
    }
}

impl TcpSocket {
    /// Milliseconds that what is sent may wait for the peer; 0: for ever.
    pub(in crate::inet) fn patience(&self) -> u32 {
        self.patience.load(Ordering::Relaxed)
    }

    /// Sets it.
    pub(in crate::inet) fn set_patience(&self, milliseconds: u32) {
        self.patience.store(milliseconds, Ordering::Relaxed);
        if let Some(connection) = self.connection.get() {
            self.look_after(connection);
        }
    }

    /// How many bytes the peer has received, if there are others that it has no room for.
    fn stuck(&self, connection: &Connection) -> Option<u64> {
        let queue = connection.peer.queue.lock();
        let full = !queue.closed && queue.charged_bytes > connection.peer.options.receive_buffer();
        full.then_some(queue.read_offset)
    }

    /// Has what was sent looked after, if it may not wait for ever and does wait.
    #[inline]
    pub(super) fn look_after(&self, connection: &Connection) {
        if self.patience() != 0 {
            self.watch_progress(connection);
        }
    }

    #[inline(never)]
    fn watch_progress(&self, connection: &Connection) {
        let Some(before) = self.stuck(connection) else { return };
        if !self.watched.swap(true, Ordering::AcqRel) {
            let look = UserTimeoutTimer { socket: self.this.clone(), before };
            timer::schedule_timer(u64::from(self.patience()) * 1_000_000, Arc::new(look));
        }
    }
}
