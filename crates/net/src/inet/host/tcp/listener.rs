//! A listener's half-open connections: the engine's listener beside the socket.

use ::tcp::Listener;
use ip::Nanos;
use task::Mutex;

use super::super::Host;
use super::super::state::Work;
use super::Path;
use super::table::Number;

/// Half-open connections of a socket that listens.
pub(in crate::inet::host) struct WireListener {
    pub(super) number: Number,
    pub(super) inner: Mutex<ListenerState>,
}

pub(super) struct ListenerState {
    pub(super) engine: Listener,
    /// The way of answers that are sent again.
    pub(super) path: Path,
    /// Deadline that the table has: not later than the engine's.
    pub(super) armed: Option<Nanos>,
}

impl ListenerState {
    /// Sees to it that the table has a deadline no later than the engine's. Returns it if it is
    /// new.
    pub(super) fn arm(&mut self, host: &Host, listener: &WireListener) -> Option<Nanos> {
        let due = self.engine.deadline()?;
        if self.armed.is_some_and(|armed| armed <= due) {
            return None;
        }
        self.armed = Some(due);
        host.tcp.set_listener_deadline(listener, due);
        Some(due)
    }
}

impl WireListener {
    /// Sends answers that are due again.
    pub(super) fn on_deadline(&self, host: &Host) {
        let now = host.now();
        let mut work = Work::default();
        let due = {
            let mut inner = self.inner.lock();
            inner.armed = None;
            let path = inner.path;
            while let Some((ends, header)) = inner.engine.next(now) {
                // One that cannot be sent is lost.
                let _ = host.send_segment(&ends, path, &header, &[], &mut work);
                host.tcp.counts.count_answers(1);
            }
            inner.arm(host, self)
        };
        host.finish(work);
        host.wake_by(due);
    }
}
