//! Notes of flows, for a translation that goes on with them (`docs/supervisor-restart.md`).

use core::hash::BuildHasher;
use core::net::{Ipv4Addr, SocketAddrV4};

use super::flows::{Begun, Flow, Number};
use super::live::Readers;
use super::state::Progress;
use super::{Direction, Hidden, Mapping, Nat, State, Tuple};
use crate::Nanos;

/// A flow as it is noted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotedFlow {
    /// The ends of its packets as they arrive, by direction.
    pub arriving: [Tuple; 2],
    /// State of the flow.
    pub state: State,
    /// The side that has sent a FIN first.
    pub closing: Option<Direction>,
    /// Flag: it is through a published port.
    pub is_published: bool,
}

/// Writer of notes: the place of a flow, below the most flows that there may be, and the flow as it
/// is now, or that there is none any more.
pub type Journal = fn(u32, Option<&NotedFlow>);

impl Flow {
    fn noted(&self) -> NotedFlow {
        let progress = self.live.progress();
        NotedFlow {
            arriving: *self.arriving(),
            state: progress.state,
            closing: progress.closing,
            is_published: self.owner.is_some(),
        }
    }
}

impl<S: BuildHasher + Clone, R: Readers> Nat<S, R> {
    /// Has a journal know of each flow, from its beginning to its end, and of its states.
    pub fn keep_journal(&mut self, journal: Journal) {
        self.journal = Some(journal);
    }

    /// Notes a flow as it is now.
    pub(super) fn note(&self, number: Number) {
        if let Some(journal) = self.journal {
            let noted = self.flows.get(number).map(Flow::noted);
            journal(number, noted.as_ref());
        }
    }

    /// Goes on with a flow that another translation has noted, of a host that `is_there`; its time
    /// begins anew. Returns its place, which is no greater than the number of those before. `None`
    /// if it makes no sense beside what is translated now: its network is not hidden, its port not
    /// published to that end, another flow has one of its ends, or there is no room.
    pub fn resume(
        &mut self,
        now: Nanos,
        noted: &NotedFlow,
        is_there: impl Fn(Ipv4Addr) -> bool,
    ) -> Option<u32> {
        let [original, reply] = noted.arriving;
        let protocol = original.protocol;
        let leaving = reply.reversed();
        let state = State::of(noted.state as u8, protocol)?;
        if reply.protocol != protocol || self.flows.len() >= self.most_flows {
            return None;
        }
        let (inner, owner) = if noted.is_published {
            let port = self.published_at(protocol, original.to);
            let port = port.filter(|port| port.to == leaving.to)?;
            (*leaving.to.ip(), Some(port.owner))
        } else {
            self.network_of(*original.from.ip())?;
            if original.to != leaving.to || original.from == leaving.from {
                return None;
            }
            (*original.from.ip(), None)
        };
        if !is_there(inner) {
            return None;
        }
        let progress = Progress::known(state, noted.closing);
        let flow = Begun {
            arriving: noted.arriving,
            progress,
            owner,
            inner,
        };
        let hidden = (protocol, original.from, *leaving.from.ip());
        let hides = flow.hides_source();
        if hides {
            self.map_to(hidden, leaving.from.port())?;
        }
        let inserted = self.flows.insert(flow, now).ok();
        match inserted {
            Some(number) => self.note(number),
            None if hides => self.unmap(hidden),
            None => {}
        }
        inserted
    }

    /// Has a port stand for a hidden end, if it does or is nobody's.
    fn map_to(&mut self, hidden: Hidden, port: u16) -> Option<()> {
        let (protocol, end, outer) = hidden;
        let at = SocketAddrV4::new(outer, port);
        if let Some(mapping) = self.mappings.get_mut(&hidden) {
            mapping.flows += 1;
            return (mapping.port == port).then_some(()).or_else(|| {
                self.unmap(hidden);
                None
            });
        }
        let is_taken =
            self.outer.contains_key(&(protocol, at)) || self.published_at(protocol, at).is_some();
        if is_taken {
            return None;
        }
        self.mappings.try_reserve(1).ok()?;
        self.outer.try_reserve(1).ok()?;
        self.mappings.insert(hidden, Mapping { port, flows: 1 });
        self.outer.insert((protocol, at), end);
        Some(())
    }
}
