//! Connections that are accepted only when data has come (`TCP_DEFER_ACCEPT`, `tcp(7)`).

use alloc::sync::{Arc, Weak};
use core::sync::atomic::Ordering;

use fs::poll::{Events, PollObserver};

use super::TcpSocket;
use crate::socket::endpoint::{FIN_RECEIVED, SEND_SHUTDOWN};
use crate::socket::timer::{self, TimerCallback};

/// A connection that waits for its first byte.
pub(super) struct DeferredConnection {
    pub(super) server: Arc<TcpSocket>,
    listener: Weak<TcpSocket>,
}

impl PollObserver for DeferredConnection {
    fn on_event(self: Arc<Self>, _: Events) {
        let reset = self.server.endpoint.has_error()
            && self
                .server
                .endpoint
                .is_shut_down(SEND_SHUTDOWN | FIN_RECEIVED);
        let data = !self.server.endpoint.queue.lock().bytes.is_empty();
        if reset || data || self.server.endpoint.is_shut_down(FIN_RECEIVED) {
            self.finish_deferral(if reset {
                Deferral::Dropped
            } else {
                Deferral::Acceptable
            });
        }
    }
}

/// The timer of a deferred connection, which ends the deferral.
struct DeferTimer(Weak<DeferredConnection>);

impl TimerCallback for DeferTimer {
    fn on_expiry(&self) {
        if let Some(deferred) = self.0.upgrade() {
            deferred.finish_deferral(Deferral::Acceptable);
        }
    }
}

/// How a deferral ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Deferral {
    /// The connection can be accepted.
    Acceptable,
    /// Nobody will hear of it.
    Dropped,
}

impl DeferredConnection {
    /// Ends the deferral.
    fn finish_deferral(&self, outcome: Deferral) {
        let Some(listener) = self.listener.upgrade() else {
            return;
        };
        let ended = {
            let mut state = listener.state.lock();
            let Some(backlog) = &mut state.backlog else {
                return;
            };
            let Some(at) = backlog
                .deferred
                .iter()
                .position(|other| core::ptr::eq(&**other, self))
            else {
                return;
            };
            let ended = backlog.deferred.swap_remove(at);
            if outcome == Deferral::Acceptable {
                backlog.accept_queue.push_back(ended.server.clone());
            }
            ended
        };
        if outcome == Deferral::Acceptable {
            listener.endpoint.readable.notify_events(Events::READABLE);
        } else {
            ended.server.close();
        }
    }
}

impl TcpSocket {
    /// The seconds that a listener's connections wait for data; 0: none.
    pub(in crate::inet) fn defer_accept_s(&self) -> u32 {
        self.defer_accept_s.load(Ordering::Relaxed)
    }

    /// Sets the seconds, which become the time after which so many answers have been sent in vain:
    /// 1, 3, 7, … seconds, then two minutes more each.
    pub(in crate::inet) fn set_defer_accept_s(&self, seconds: u32) {
        self.defer_accept_s
            .store(round_to_retransmits(seconds), Ordering::Relaxed);
    }

    /// A connection that is not to be accepted yet.
    pub(super) fn defer(&self, server: &Arc<Self>, seconds: u32) -> Arc<DeferredConnection> {
        let deferred = Arc::new(DeferredConnection {
            server: server.clone(),
            listener: self.this.clone(),
        });
        let watcher: Arc<dyn PollObserver> = deferred.clone();
        // The first observer there, which always finds room.
        let added = server.endpoint.readable.add_observer(&watcher);
        debug_assert!(added.is_ok(), "a new connection has no observers");
        timer::schedule_timer(
            u64::from(seconds) * 1_000_000_000,
            Arc::new(DeferTimer(Arc::downgrade(&deferred))),
        );
        deferred
    }
}

/// The least sum of periods that reaches `seconds`: the first one is of a second, each is twice the
/// one before, none more than two minutes.
fn round_to_retransmits(seconds: u32) -> u32 {
    const MAX_SECONDS: u32 = 120;
    const MAX_RETRANSMITS: usize = 255;
    let (mut sum, mut period) = (0, 1);
    for _ in 0..MAX_RETRANSMITS {
        if sum >= seconds {
            break;
        }
        sum += period;
        period = (period * 2).min(MAX_SECONDS);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::round_to_retransmits;

    #[test]
    fn times_are_those_of_linux() {
        for (asked, got) in [
            (0, 0),
            (1, 1),
            (2, 3),
            (3, 3),
            (5, 7),
            (30, 31),
            (100, 127),
            (130, 247),
        ] {
            assert_eq!(round_to_retransmits(asked), got, "{asked}");
        }
    }
}
