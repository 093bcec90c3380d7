//! A listener's half-open connections: the engine's listener beside the socket.

use ::tcp::Listener;
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
}

impl WireListener {
    /// Sends answers that are due again.
    pub(super) fn on_deadline(&self, host: &Host) {
        let now = host.now();
        let mut work = Work::default();
        let due = {
            let mut inner = self.inner.lock();
            let path = inner.path;
            while let Some((ends, header)) = inner.engine.next(now) {
                // One that cannot be sent is lost.
                let _ = host.send_segment(&ends, path, &header, &[], &mut work);
                host.tcp.counts.count_answers(1);
            }
            inner.engine.deadline()
        };
        host.finish(work);
        if let Some(due) = due {
            host.tcp.set_listener_deadline(self, due);
            host.wake_by(Some(due));
        }
    }
}
