//! Fragments that wait for others, beside the host's tables: they have locks of their own, so that
//! cut datagrams keep nobody from looking up a way, nor the other version of the protocol.

use ip::{Fragment, Nanos, Reassembled, Reassembly};
use task::Mutex;

use super::Host;
use super::counts::{Counter, Counter6, PacketCounts};
use super::state::Work;

/// The fragments of both versions of the protocol. The locks may be taken while the host's tables
/// are locked, never the other way round.
#[derive(Default)]
pub(super) struct Fragments {
    pub(super) v4: Mutex<Reassembly>,
    pub(super) v6: Mutex<Reassembly>,
}

impl Fragments {
    /// When a datagram expires next, if nothing happens before.
    pub(super) fn deadline(&self) -> Option<Nanos> {
        let due = [&self.v4, &self.v6].map(|of| of.lock().deadline());
        due.into_iter().flatten().min()
    }

    /// Takes out what has expired: who has sent it is told.
    pub(super) fn expire(&self, now: Nanos, counts: &PacketCounts, work: &mut Work) {
        let mut waiting = self.v4.lock();
        while let Some(expired) = waiting.expire(now) {
            counts.count(Counter::ReasmTimeout);
            counts.count(Counter::ReasmFails);
            let _ = fallible::push(&mut work.expired, expired.quote);
        }
        drop(waiting);
        let mut waiting = self.v6.lock();
        while let Some(expired) = waiting.expire(now) {
            counts.v6.count(Counter6::ReasmTimeout);
            counts.v6.count(Counter6::ReasmFails);
            let _ = fallible::push(&mut work.expired_v6, (expired.interface, expired.quote));
        }
    }
}

impl Host {
    /// Takes a fragment to those before it, and sees to it that what does not become whole in time
    /// is forgotten.
    pub(super) fn reassemble(
        &self,
        of: &Mutex<Reassembly>,
        fragment: &Fragment<'_>,
    ) -> Reassembled {
        let now = self.now();
        let (result, due) = {
            let mut waiting = of.lock();
            (waiting.arrive(now, fragment), waiting.deadline())
        };
        self.wake_by(due);
        result
    }
}
