//! Flows in memory: found by the ends of their packets, and in the order in which their time ends.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::hash::BuildHasher;
use core::net::Ipv4Addr;

use hashbrown::{HashMap, HashTable};

use super::NoRoom;
use super::live::{LiveFlow, Readers};
use super::state::{Direction, Progress, State};
use super::tuple::Tuple;
use crate::Nanos;

/// The number of a flow, which is another's once that has gone.
pub(super) type Number = u32;

/// No flow.
const NONE: Number = Number::MAX;

/// Flows of a state that are looked at for one whose time is over.
const MOST_LOOKED_AT: usize = 16;

/// A flow that begins.
pub(super) struct Begun {
    pub(super) arriving: [Tuple; 2],
    pub(super) progress: Progress,
    pub(super) owner: Option<u64>,
    pub(super) inner: Ipv4Addr,
}

impl Begun {
    /// Whether packets of its beginner get another source.
    pub(super) fn hides_source(&self) -> bool {
        self.arriving[0].from != self.arriving[1].to
    }
}

/// A flow.
pub(super) struct Flow {
    pub(super) live: Arc<LiveFlow>,
    /// The place that it has in the list of a state, and since when.
    pub(super) queued: (State, Nanos),
    /// The owner of the published port that it is through.
    pub(super) owner: Option<u64>,
    /// The host that it counts for.
    pub(super) inner: Ipv4Addr,
}

impl Flow {
    /// The ends of its packets as they arrive, by direction.
    pub(super) fn arriving(&self) -> &[Tuple; 2] {
        self.live.arriving()
    }

    /// The ends of its packets in a direction as they leave.
    pub(super) fn leaving(&self, direction: Direction) -> Tuple {
        self.live.leaving(direction)
    }

    /// Whether packets of its beginner get another source.
    pub(super) fn hides_source(&self) -> bool {
        let [original, reply] = self.arriving();
        original.from != reply.to
    }
}

struct Slot {
    flow: Option<Flow>,
    /// Neighbours in the list of the flow's state; `next` in that of free slots, too.
    previous: Number,
    next: Number,
}

/// The flows of a state, first the one that was put there first: at each time at which the table
/// has heard of it, and when its time should have been over and was not.
#[derive(Clone, Copy)]
struct Queue {
    first: Number,
    last: Number,
}

/// Flows.
pub(super) struct Flows<S, R> {
    hash: S,
    slots: Vec<Slot>,
    free: Number,
    /// Both arriving tuples of every flow.
    places: HashTable<(Number, Direction)>,
    queues: [Queue; State::COUNT],
    /// How many there are of each host.
    held: HashMap<Ipv4Addr, usize, S>,
    count: usize,
    /// The list for those without the lock.
    readers: R,
}

impl<S: BuildHasher + Clone, R: Readers> Flows<S, R> {
    pub(super) fn new(hash: S, readers: R) -> Self {
        Self {
            held: HashMap::with_hasher(hash.clone()),
            hash,
            slots: Vec::new(),
            free: NONE,
            places: HashTable::new(),
            queues: [Queue {
                first: NONE,
                last: NONE,
            }; State::COUNT],
            count: 0,
            readers,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// How many flows count for a host.
    pub(super) fn held_by(&self, inner: Ipv4Addr) -> usize {
        self.held.get(&inner).copied().unwrap_or(0)
    }

    pub(super) fn get(&self, number: Number) -> Option<&Flow> {
        self.slots.get(number as usize)?.flow.as_ref()
    }

    /// The flow that a packet with these ends is of, and its direction.
    pub(super) fn find(&self, tuple: &Tuple) -> Option<(Number, Direction)> {
        let is_it = |place: &(Number, Direction)| {
            let flow = self.get(place.0);
            flow.is_some_and(|flow| flow.arriving()[place.1 as usize] == *tuple)
        };
        self.places.find(self.hash.hash_one(tuple), is_it).copied()
    }

    /// Adds a flow.
    ///
    /// # Errors
    /// There is one with one of its tuples, or no memory.
    pub(super) fn insert(&mut self, new: Begun, now: Nanos) -> Result<Number, NoRoom> {
        let [original, reply] = new.arriving;
        if original == reply || self.find(&original).is_some() || self.find(&reply).is_some() {
            return Err(NoRoom);
        }
        let (hash, slots) = (&self.hash, &self.slots);
        let hash_of = |(number, direction): &(Number, Direction)| {
            let flow = slots[*number as usize].flow.as_ref();
            flow.map_or(0, |flow| {
                hash.hash_one(flow.arriving()[*direction as usize])
            })
        };
        let places = self.places.try_reserve(2, hash_of);
        places.map_err(|_| NoRoom)?;
        self.held.try_reserve(1).map_err(|_| NoRoom)?;
        if self.free == NONE {
            self.slots.try_reserve(1).map_err(|_| NoRoom)?;
        }
        let state = new.progress.state;
        let live = LiveFlow::new(new.arriving, new.progress, now);
        let flow = Flow {
            live: self.readers.add(live)?,
            queued: (state, now),
            owner: new.owner,
            inner: new.inner,
        };
        let number = if self.free == NONE {
            self.slots.push(Slot {
                flow: None,
                previous: NONE,
                next: NONE,
            });
            (self.slots.len() - 1) as Number
        } else {
            let number = self.free;
            self.free = self.slots[number as usize].next;
            number
        };
        *self.held.entry(flow.inner).or_insert(0) += 1;
        self.count += 1;
        self.slots[number as usize].flow = Some(flow);
        for (tuple, direction) in [(original, Direction::Original), (reply, Direction::Reply)] {
            // There is room: nothing is hashed anew.
            self.places
                .insert_unique(self.hash.hash_one(tuple), (number, direction), |_| 0);
        }
        self.push(state, number);
        Ok(number)
    }

    /// Takes a flow out.
    pub(super) fn remove(&mut self, number: Number) -> Option<Flow> {
        let flow = self.slots.get_mut(number as usize)?.flow.take()?;
        flow.live.end();
        self.readers.remove(&flow.live);
        self.unlink(flow.queued.0, number);
        for (tuple, direction) in flow
            .arriving()
            .iter()
            .zip([Direction::Original, Direction::Reply])
        {
            let place = self.places.find_entry(self.hash.hash_one(tuple), |place| {
                *place == (number, direction)
            });
            if let Ok(place) = place {
                place.remove();
            }
        }
        if let Some(held) = self.held.get_mut(&flow.inner) {
            *held -= 1;
            if *held == 0 {
                self.held.remove(&flow.inner);
            }
        }
        self.count -= 1;
        self.slots[number as usize].next = self.free;
        self.free = number;
        Some(flow)
    }

    /// Puts a flow behind the others of its state.
    pub(super) fn requeue(&mut self, number: Number, now: Nanos) {
        let Some(flow) = self
            .slots
            .get_mut(number as usize)
            .and_then(|slot| slot.flow.as_mut())
        else {
            return;
        };
        let (before, state) = (flow.queued.0, flow.live.state());
        flow.queued = (state, now);
        self.unlink(before, number);
        self.push(state, number);
    }

    /// A flow whose time is over. One that was heard of without the table's knowing goes behind the
    /// others of its state; so one that was not is found when twice its time is over at the latest.
    pub(super) fn first_expired(&mut self, now: Nanos) -> Option<Number> {
        for state in State::ALL {
            for _ in 0..MOST_LOOKED_AT {
                let number = self.queues[state as usize].first;
                let Some(flow) = self.get(number) else { break };
                if flow.live.expires() <= now {
                    return Some(number);
                }
                if flow.queued.1.saturating_add(state.patience()) > now {
                    break;
                }
                self.requeue(number, now);
            }
        }
        None
    }

    /// The flows of a state, in order of their [`Queue`].
    pub(super) fn in_state(&self, state: State) -> impl Iterator<Item = (Number, &Flow)> {
        let mut at = self.queues[state as usize].first;
        core::iter::from_fn(move || {
            let number = at;
            let slot = self.slots.get(number as usize)?;
            at = slot.next;
            Some((number, slot.flow.as_ref()?))
        })
    }

    /// All numbers that flows may have.
    pub(super) fn numbers(&self) -> core::ops::Range<Number> {
        0..self.slots.len() as Number
    }

    /// Adds a flow to the end of the list of a state.
    fn push(&mut self, state: State, number: Number) {
        let queue = &mut self.queues[state as usize];
        let last = queue.last;
        queue.last = number;
        if last == NONE {
            queue.first = number;
        } else {
            self.slots[last as usize].next = number;
        }
        let slot = &mut self.slots[number as usize];
        (slot.previous, slot.next) = (last, NONE);
    }

    fn unlink(&mut self, state: State, number: Number) {
        let Slot { previous, next, .. } = self.slots[number as usize];
        let queue = &mut self.queues[state as usize];
        if previous == NONE {
            queue.first = next;
        }
        if next == NONE {
            queue.last = previous;
        }
        if let Some(slot) = self.slots.get_mut(previous as usize) {
            slot.next = next;
        }
        if let Some(slot) = self.slots.get_mut(next as usize) {
            slot.previous = previous;
        }
    }
}
