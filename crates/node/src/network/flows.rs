//! Flows of address translation, for a supervisor that starts again.

use alloc::vec::Vec;
use core::net::{Ipv4Addr, SocketAddrV4};
use core::sync::atomic::Ordering;

use abi::keep::{FLOWS, KeptFlow};
use guard::partition;
use ip::nat::{Direction, MOST_FLOWS, NotedFlow, Protocol, State, Tuple};

use super::{HOST, IS_HELD, WAKE};
use crate::instances;

const _: () = assert!(MOST_FLOWS <= FLOWS);

const PUBLISHED: u8 = 1 << 0;
const CLOSED_BY_BEGINNER: u8 = 1 << 1;
const CLOSED_BY_OTHER: u8 = 1 << 2;

/// Notes a flow at a place, or that there is none.
pub(super) fn note(place: u32, flow: Option<&NotedFlow>) {
    partition::note_flow(place, flow.map(kept).as_ref());
}

fn kept(flow: &NotedFlow) -> KeptFlow {
    let [original, reply] = flow.arriving;
    let end = |end: SocketAddrV4| (end.ip().to_bits(), end.port());
    let closing = match flow.closing {
        None => 0,
        Some(Direction::Original) => CLOSED_BY_BEGINNER,
        Some(Direction::Reply) => CLOSED_BY_OTHER,
    };
    let published = if flow.is_published { PUBLISHED } else { 0 };
    KeptFlow {
        ends: [original.from, original.to, reply.from, reply.to].map(end),
        protocol: original.protocol as u8,
        state: flow.state as u8,
        flags: closing | published,
    }
}

fn noted(flow: &KeptFlow) -> Option<NotedFlow> {
    let protocol = Protocol::of(flow.protocol)?;
    let [original, reply] = [0, 2].map(|first| {
        let end = |(address, port)| SocketAddrV4::new(Ipv4Addr::from_bits(address), port);
        Tuple {
            protocol,
            from: end(flow.ends[first]),
            to: end(flow.ends[first + 1]),
        }
    });
    Some(NotedFlow {
        arriving: [original, reply],
        state: State::of(flow.state, protocol)?,
        closing: match flow.flags & (CLOSED_BY_BEGINNER | CLOSED_BY_OTHER) {
            0 => None,
            CLOSED_BY_BEGINNER => Some(Direction::Original),
            CLOSED_BY_OTHER => Some(Direction::Reply),
            _ => return None,
        },
        is_published: flow.flags & PUBLISHED != 0,
    })
}

/// Goes on with the flows of instances that the supervisor before this one had; then frames are
/// moved. Those that there is no instance for, or no memory, are forgotten.
pub(crate) fn adopt_flows() {
    let mut addresses = Vec::new();
    for instance in instances() {
        let status = instance.status();
        if status.address != 0 && addresses.try_reserve(1).is_ok() {
            addresses.push(status.address);
        }
    }
    let is_there = |address: Ipv4Addr| addresses.contains(&address.to_bits());
    let mut count = 0;
    let places = if partition::restarts() > 0 {
        0..FLOWS as u32
    } else {
        0..0
    };
    for place in places {
        let Some(flow) = partition::kept_flow(place) else {
            continue;
        };
        // A flow is noted anew where this translation has it: at this place, or one before it,
        // which was looked at.
        let resumed = HOST.get().zip(noted(&flow));
        let resumed = resumed.and_then(|(host, flow)| host.resume_flow(&flow, is_there));
        if resumed != Some(place) {
            partition::note_flow(place, None);
        }
        count += u32::from(resumed.is_some());
    }
    if count > 0 {
        log::info!("{count} flows of address translation go on");
    }
    IS_HELD.store(false, Ordering::Release);
    WAKE.set();
}
