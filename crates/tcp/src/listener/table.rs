//! The half-open connections of a listener: found by their ends, ordered by when their answer is
//! due again.
//!
//! How long an answer waits is a matter of how often it was sent, so those that were sent equally
//! often are due in the order in which they were sent. There is a queue for each count.

use alloc::vec::Vec;

use crate::Nanos;
use crate::handshake::{Ends, Handshake};
use crate::rtt::{INITIAL_RTO, LARGEST_RTO};

/// No slot.
const NONE: u32 = u32::MAX;
/// Queues: beyond the last, the time does not grow any more.
const LEVELS: usize = 8;
/// Slots that are made at first.
const FIRST: usize = 16;
/// Slots that are kept when nothing is half-open.
const KEPT: usize = 64;

/// A half-open connection.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub handshake: Handshake,
    /// How often the answer's time was out.
    pub timeouts: u8,
    /// The peer has acknowledged the answer; it is not accepted yet.
    pub acknowledged: bool,
    /// When something other than the first answer was sent last, if ever.
    pub answered: Option<Nanos>,
}

impl Request {
    /// Time from an answer to the next.
    fn wait(&self) -> Nanos {
        (INITIAL_RTO << self.timeouts.min(16)).min(LARGEST_RTO)
    }

    fn level(&self) -> usize {
        usize::from(self.timeouts).min(LEVELS - 1)
    }
}

/// A place for a request.
#[derive(Clone, Debug)]
struct Slot {
    request: Request,
    hash: u32,
    expires: Nanos,
    is_free: bool,
    /// The next in the same bucket, or the next free one.
    chain: u32,
    /// Neighbours in the queue.
    before: u32,
    after: u32,
}

/// A queue through the slots.
#[derive(Clone, Copy, Debug)]
struct Queue {
    first: u32,
    last: u32,
    len: usize,
}

const EMPTY: Queue = Queue {
    first: NONE,
    last: NONE,
    len: 0,
};

/// The requests of a listener.
#[derive(Debug)]
pub(super) struct RequestTable {
    slots: Vec<Slot>,
    /// First slot of each bucket; their number is a power of two.
    buckets: Vec<u32>,
    free: u32,
    queues: [Queue; LEVELS],
    len: usize,
}

impl RequestTable {
    pub fn new() -> Self {
        Self {
            slots: Vec::new(),
            buckets: Vec::new(),
            free: NONE,
            queues: [EMPTY; LEVELS],
            len: 0,
        }
    }

    /// Number of requests.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Number of those whose answer was sent once.
    pub fn young(&self) -> usize {
        self.queues[0].len
    }

    /// Memory that the table takes.
    pub fn memory(&self) -> usize {
        self.slots.capacity() * size_of::<Slot>() + self.buckets.capacity() * size_of::<u32>()
    }

    fn bucket(&self, hash: u32) -> usize {
        hash as usize & (self.buckets.len() - 1)
    }

    /// The request with these ends, whose hash this is.
    pub fn find(&self, ends: &Ends, hash: u32) -> Option<u32> {
        if self.len == 0 {
            return None;
        }
        let mut place = self.buckets[self.bucket(hash)];
        while place != NONE {
            let slot = &self.slots[place as usize];
            if slot.hash == hash && slot.request.handshake.ends == *ends {
                return Some(place);
            }
            place = slot.chain;
        }
        None
    }

    pub fn get(&mut self, place: u32) -> &mut Request {
        &mut self.slots[place as usize].request
    }

    /// Adds a request. Whether there was memory for it.
    pub fn insert(&mut self, now: Nanos, hash: u32, request: Request) -> bool {
        if self.free == NONE && !self.make_room() {
            return false;
        }
        let expires = now + request.wait();
        let slot = Slot {
            request,
            hash,
            expires,
            is_free: false,
            chain: NONE,
            before: NONE,
            after: NONE,
        };
        let place = if self.free == NONE {
            self.slots.push(slot);
            (self.slots.len() - 1) as u32
        } else {
            let place = self.free;
            let old = core::mem::replace(&mut self.slots[place as usize], slot);
            self.free = old.chain;
            place
        };
        self.link_bucket(place);
        self.enqueue(place);
        self.len += 1;
        true
    }

    /// Makes room for one more slot, and as many buckets as slots fit.
    fn make_room(&mut self) -> bool {
        if self.slots.len() < self.slots.capacity() {
            return true;
        }
        let more = self.slots.len().max(FIRST);
        let wanted = (self.slots.len() + more).next_power_of_two();
        let mut buckets = Vec::new();
        if self.slots.try_reserve_exact(more).is_err() || buckets.try_reserve_exact(wanted).is_err()
        {
            return false;
        }
        buckets.resize(wanted, NONE);
        self.buckets = buckets;
        // No slot is free: each is in a bucket.
        for place in 0..self.slots.len() {
            self.link_bucket(place as u32);
        }
        true
    }

    fn link_bucket(&mut self, place: u32) {
        let bucket = self.bucket(self.slots[place as usize].hash);
        self.slots[place as usize].chain = self.buckets[bucket];
        self.buckets[bucket] = place;
    }

    fn unlink_bucket(&mut self, place: u32) {
        let bucket = self.bucket(self.slots[place as usize].hash);
        let next = self.slots[place as usize].chain;
        let mut at = self.buckets[bucket];
        if at == place {
            self.buckets[bucket] = next;
            return;
        }
        while at != NONE {
            let slot = &mut self.slots[at as usize];
            if slot.chain == place {
                slot.chain = next;
                return;
            }
            at = slot.chain;
        }
    }

    fn enqueue(&mut self, place: u32) {
        let queue = &mut self.queues[self.slots[place as usize].request.level()];
        let last = core::mem::replace(&mut queue.last, place);
        queue.len += 1;
        if last == NONE {
            queue.first = place;
        } else {
            self.slots[last as usize].after = place;
        }
        let slot = &mut self.slots[place as usize];
        (slot.before, slot.after) = (last, NONE);
    }

    fn dequeue(&mut self, place: u32) {
        let slot = &self.slots[place as usize];
        let (before, after) = (slot.before, slot.after);
        let queue = &mut self.queues[slot.request.level()];
        queue.len -= 1;
        if before == NONE {
            queue.first = after;
        } else {
            self.slots[before as usize].after = after;
        }
        if after == NONE {
            queue.last = before;
        } else {
            self.slots[after as usize].before = before;
        }
    }

    /// Takes a request out.
    pub fn remove(&mut self, place: u32) {
        self.unlink_bucket(place);
        self.dequeue(place);
        let slot = &mut self.slots[place as usize];
        (slot.is_free, slot.chain) = (true, self.free);
        self.free = place;
        self.len -= 1;
        if self.len == 0 && self.slots.len() > KEPT {
            // What a flood has made grow is given back.
            *self = Self::new();
        }
    }

    /// Lets a request wait anew, by one more time-out if `timed_out`.
    pub fn wait_again(&mut self, now: Nanos, place: u32, timed_out: bool) {
        self.dequeue(place);
        let slot = &mut self.slots[place as usize];
        if timed_out {
            slot.request.timeouts = slot.request.timeouts.saturating_add(1);
        }
        slot.expires = now + slot.request.wait();
        self.enqueue(place);
    }

    /// The first of each queue with its time.
    fn heads(&self) -> impl Iterator<Item = (Nanos, u32)> {
        let places = self.queues.iter().map(|queue| queue.first);
        places
            .filter(|place| *place != NONE)
            .map(|place| (self.slots[place as usize].expires, place))
    }

    /// The next time at which a request is due.
    pub fn deadline(&self) -> Option<Nanos> {
        self.heads().map(|(at, _)| at).min()
    }

    /// A request that is due.
    pub fn due(&self, now: Nanos) -> Option<u32> {
        self.heads()
            .find(|(at, _)| *at <= now)
            .map(|(_, place)| place)
    }

    /// Compares queues, buckets and counts.
    pub fn is_consistent(&self) -> bool {
        let in_use = self.slots.iter().filter(|slot| !slot.is_free).count();
        let queued: usize = self.queues.iter().map(|queue| queue.len).sum();
        in_use == self.len
            && queued == self.len
            && self.queues.iter().enumerate().all(|(level, queue)| {
                let (mut place, mut before, mut count) = (queue.first, NONE, 0);
                let mut earliest = 0;
                while place != NONE {
                    let slot = &self.slots[place as usize];
                    let found = self.find(&slot.request.handshake.ends, slot.hash);
                    if slot.is_free
                        || slot.before != before
                        || slot.request.level() != level
                        || slot.expires < earliest
                        || found != Some(place)
                    {
                        return false;
                    }
                    (before, earliest) = (place, slot.expires);
                    place = slot.after;
                    count += 1;
                }
                queue.last == before && queue.len == count
            })
    }
}
