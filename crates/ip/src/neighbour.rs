//! Neighbours: the hardware addresses of hosts on a link, and how sure that is (`arp(7)`; the
//! states are those of RFC 4861, section 7.3.2, the times and counts Linux 6.1's).

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::IpAddr;

use crate::{HardwareAddress, Nanos, SECOND};

/// Time between requests (`retrans_time_ms`).
const RETRANSMIT: Nanos = SECOND;
/// Requests to everybody, and to the neighbour itself (`mcast_solicit`, `ucast_solicit`).
const SOLICITATIONS: u8 = 3;
/// Time for which a confirmed neighbour is believed; Linux takes half to one and a half of it.
const REACHABLE: Nanos = 30 * SECOND;
/// Time in which something from above may confirm a neighbour that was stale
/// (`delay_first_probe_time`).
const DELAY: Nanos = 5 * SECOND;
/// Time after which a neighbour that nobody uses is forgotten if there are many (`gc_stale_time`).
const STALE: Nanos = 60 * SECOND;
/// Time for which an address is not replaced by another (`locktime`).
const LOCK: Nanos = SECOND;
/// Neighbours that there may be (`gc_thresh3`).
pub const MOST: usize = 1024;
/// Bytes of packets that wait for one neighbour, and for all.
const MOST_WAITING: usize = 64 << 10;
const MOST_WAITING_ALL: usize = 1 << 20;
/// Bytes that a waiting packet counts for besides its own.
const PACKET_OVERHEAD: usize = 64;

/// The knowledge of a neighbour, with its number in Linux' `neighbour.h`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub enum State {
    /// Asked for, and not known yet.
    Incomplete = 0x01,
    /// Confirmed not long ago.
    Reachable = 0x02,
    /// Known, and not confirmed.
    Stale = 0x04,
    /// Used though it is not confirmed: soon asked.
    Delay = 0x08,
    /// Being asked.
    Probe = 0x10,
    /// The neighbour does not answer.
    Failed = 0x20,
    /// Set by an administrator: never asked.
    Permanent = 0x80,
}

/// The name of a neighbour: where, and which address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Key {
    /// Number of the interface.
    pub interface: u32,
    /// Address of the neighbour.
    pub address: IpAddr,
}

/// A neighbour, as lists show it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Neighbour {
    /// Interface and address, by which a neighbour is known.
    pub key: Key,
    /// The knowledge of it.
    pub state: State,
    /// Hardware address of the neighbour, if that is known.
    pub hardware: Option<HardwareAddress>,
    /// The neighbour has said that it passes packets on (RFC 4861).
    pub is_router: bool,
    /// When it was last used, confirmed, changed.
    pub times: [Nanos; 3],
}

/// An advertisement of a neighbour.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Advertisement {
    /// Hardware address of the neighbour, if it tells that.
    pub hardware: Option<HardwareAddress>,
    /// The neighbour was asked.
    pub is_solicited: bool,
    /// The hardware address goes for one that was known.
    pub overrides: bool,
    /// The neighbour passes packets on.
    pub is_router: bool,
}

/// A task of the owner of the table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// Ask for a neighbour: everybody, or the one with the address.
    Solicit(Key, Option<HardwareAddress>),
    /// Send a packet that has waited.
    Transmit(Key, HardwareAddress, Vec<u8>),
    /// Tell the sender of a packet that its neighbour does not answer.
    Unreachable(Key, Vec<u8>),
    /// Tell whoever listens that a neighbour has changed.
    Changed(Neighbour),
    /// Tell whoever listens that a neighbour is gone.
    Removed(Neighbour),
}

/// The fate of a packet for a neighbour.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resolution {
    /// Send it to this hardware address.
    Known(HardwareAddress),
    /// The packet waits in the table, or was lost there.
    Waits,
    /// There is no room for the neighbour (`ENOBUFS`).
    NoRoom,
}

struct Entry {
    shown: Neighbour,
    /// When the state has to be looked at again.
    deadline: Option<Nanos>,
    asked: u8,
    waiting: VecDeque<Vec<u8>>,
    waiting_bytes: usize,
}

impl Entry {
    fn key(&self) -> Key {
        self.shown.key
    }

    fn is_believed(&self) -> bool {
        matches!(
            self.shown.state,
            State::Reachable | State::Delay | State::Probe | State::Permanent
        )
    }

    fn set_state(&mut self, now: Nanos, state: State, deadline: Option<Nanos>) {
        self.shown.state = state;
        self.shown.times[2] = now;
        self.deadline = deadline;
    }
}

/// The neighbours of all interfaces.
#[derive(Default)]
pub struct Table {
    /// Sorted by their keys.
    entries: Vec<Entry>,
    waiting_bytes: usize,
    events: Vec<Event>,
    /// Number that spreads the times of [`REACHABLE`].
    salt: u64,
    version: u64,
}

impl Table {
    /// An empty table; `salt` is a random number.
    #[must_use]
    pub fn new(salt: u64) -> Self {
        Self {
            salt,
            ..Self::default()
        }
    }

    /// The neighbours, in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = Neighbour> {
        self.entries.iter().map(|entry| entry.shown)
    }

    /// Bytes that are counted for waiting packets.
    #[must_use]
    pub fn waiting_bytes(&self) -> usize {
        self.waiting_bytes
    }

    /// A number that grows when what [`Self::believed`] says of any neighbour changes before the
    /// time that it tells.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The hardware address that packets to a neighbour go to now, and until when it may be used
    /// without another [`Self::resolve`], if there is an end.
    #[must_use]
    pub fn believed(&self, key: Key) -> Option<(HardwareAddress, Option<Nanos>)> {
        let entry = &self.entries[self.find(key).ok()?];
        let hardware = entry.shown.hardware.filter(|_| entry.is_believed())?;
        Some((hardware, entry.deadline))
    }

    /// Takes the tasks that have come up since the last call.
    pub fn take_events(&mut self) -> Vec<Event> {
        core::mem::take(&mut self.events)
    }

    /// When [`Self::tick`] is due.
    #[must_use]
    pub fn deadline(&self) -> Option<Nanos> {
        self.entries.iter().filter_map(|entry| entry.deadline).min()
    }

    fn find(&self, key: Key) -> Result<usize, usize> {
        self.entries.binary_search_by(|entry| entry.key().cmp(&key))
    }

    /// Adds what there is to do; without memory it is lost, as a packet on the wire may be.
    fn push(&mut self, event: Event) {
        if self.events.try_reserve(1).is_ok() {
            self.events.push(event);
        }
    }

    fn changed(&mut self, at: usize) {
        let shown = self.entries[at].shown;
        self.push(Event::Changed(shown));
    }

    /// The place of a neighbour, made if need be; `None` if there is no room.
    fn entry(&mut self, now: Nanos, key: Key) -> Option<usize> {
        let mut at = match self.find(key) {
            Ok(at) => return Some(at),
            Err(at) => at,
        };
        if self.entries.len() >= MOST {
            let victim = self.least_useful(now)?;
            self.remove_at(victim);
            at -= usize::from(victim < at);
        }
        self.entries.try_reserve(1).ok()?;
        let shown = Neighbour {
            key,
            state: State::Failed,
            hardware: None,
            is_router: false,
            times: [now; 3],
        };
        self.entries.insert(
            at,
            Entry {
                shown,
                deadline: None,
                asked: 0,
                waiting: VecDeque::new(),
                waiting_bytes: 0,
            },
        );
        Some(at)
    }

    /// The neighbour that is given up when there are too many: one that does not answer, else the
    /// stale one unused longest.
    fn least_useful(&self, now: Nanos) -> Option<usize> {
        let candidates = self.entries.iter().enumerate().filter(|(_, entry)| {
            let unused = now.saturating_sub(entry.shown.times[0]);
            match entry.shown.state {
                State::Failed | State::Stale => true,
                State::Reachable => unused >= STALE,
                _ => false,
            }
        });
        let rank = |entry: &Entry| (entry.shown.state != State::Failed, entry.shown.times[0]);
        candidates
            .min_by_key(|(_, entry)| rank(entry))
            .map(|(at, _)| at)
    }

    fn remove_at(&mut self, at: usize) {
        let gone = self.entries.remove(at);
        self.version += u64::from(gone.is_believed());
        self.waiting_bytes -= gone.waiting_bytes;
        self.push(Event::Removed(gone.shown));
    }

    /// The time for which a neighbour that is confirmed now is believed: 15 to 45 seconds.
    fn reachable_time(&mut self) -> Nanos {
        self.salt = self
            .salt
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        REACHABLE / 2 + (self.salt >> 33) % REACHABLE
    }

    /// Finds the hardware address for a packet, which waits in the table until it is known.
    /// `packet` makes it if it has to wait; `None` if memory is short.
    pub fn resolve(
        &mut self,
        now: Nanos,
        key: Key,
        packet: impl FnOnce() -> Option<Vec<u8>>,
    ) -> Resolution {
        let Some(at) = self.entry(now, key) else {
            return Resolution::NoRoom;
        };
        let entry = &mut self.entries[at];
        entry.shown.times[0] = now;
        match (entry.shown.state, entry.shown.hardware) {
            (State::Stale, Some(hardware)) => {
                entry.asked = 0;
                entry.set_state(now, State::Delay, Some(now + DELAY));
                Resolution::Known(hardware)
            }
            (State::Reachable | State::Delay | State::Probe | State::Permanent, Some(hardware)) => {
                Resolution::Known(hardware)
            }
            (state, _) => {
                if let Some(packet) = packet() {
                    self.wait(at, packet);
                }
                if state != State::Incomplete {
                    self.entries[at].asked = 1;
                    self.entries[at].set_state(now, State::Incomplete, Some(now + RETRANSMIT));
                    self.push(Event::Solicit(key, None));
                }
                Resolution::Waits
            }
        }
    }

    /// Lets a packet wait; older ones are lost if there are too many.
    fn wait(&mut self, at: usize, packet: Vec<u8>) {
        let entry = &mut self.entries[at];
        let cost = packet.len() + PACKET_OVERHEAD;
        while !entry.waiting.is_empty()
            && (entry.waiting_bytes + cost > MOST_WAITING
                || self.waiting_bytes + cost > MOST_WAITING_ALL)
        {
            if let Some(lost) = entry.waiting.pop_front() {
                entry.waiting_bytes -= lost.len() + PACKET_OVERHEAD;
                self.waiting_bytes -= lost.len() + PACKET_OVERHEAD;
            }
        }
        if self.waiting_bytes + cost <= MOST_WAITING_ALL && entry.waiting.try_reserve(1).is_ok() {
            entry.waiting.push_back(packet);
            entry.waiting_bytes += cost;
            self.waiting_bytes += cost;
        }
    }

    fn take_waiting(&mut self, at: usize) -> VecDeque<Vec<u8>> {
        let entry = &mut self.entries[at];
        self.waiting_bytes -= core::mem::take(&mut entry.waiting_bytes);
        core::mem::take(&mut entry.waiting)
    }

    fn send_waiting(&mut self, at: usize) {
        let (key, hardware) = (self.entries[at].key(), self.entries[at].shown.hardware);
        let Some(hardware) = hardware else { return };
        for packet in self.take_waiting(at) {
            self.push(Event::Transmit(key, hardware, packet));
        }
    }

    /// A neighbour has told its hardware address: `solicited` in an answer to us, else in a request
    /// to us. One that is not known is learnt of requests only (`ask_us`): what nobody asked for
    /// makes no entry.
    pub fn heard(
        &mut self,
        now: Nanos,
        key: Key,
        hardware: HardwareAddress,
        solicited: bool,
        ask_us: bool,
    ) {
        let at = match self.find(key) {
            Ok(at) => at,
            Err(_) if !ask_us => return,
            Err(_) => match self.entry(now, key) {
                Some(at) => at,
                None => return,
            },
        };
        let reachable_time = self.reachable_time();
        let entry = &mut self.entries[at];
        let before = (entry.shown.state, entry.shown.hardware);
        let was_believed = entry.is_believed();
        if entry.shown.state == State::Permanent {
            return;
        }
        let known = matches!(
            entry.shown.state,
            State::Reachable | State::Stale | State::Delay | State::Probe
        );
        if known
            && entry.shown.hardware != Some(hardware)
            && now.saturating_sub(entry.shown.times[2]) < LOCK
        {
            return;
        }
        if solicited {
            entry.shown.hardware = Some(hardware);
            entry.shown.times[1] = now;
            entry.asked = 0;
            entry.set_state(now, State::Reachable, Some(now + reachable_time));
        } else if !known || entry.shown.hardware != Some(hardware) {
            entry.shown.hardware = Some(hardware);
            entry.set_state(now, State::Stale, None);
        }
        let after = (entry.shown.state, entry.shown.hardware);
        if before != after {
            self.version += u64::from(was_believed);
            self.changed(at);
        }
        self.send_waiting(at);
    }

    /// A neighbour of IPv6 advertises itself (RFC 4861, section 7.2.5). One that is not known is
    /// not learnt: nobody asked for it. Returns whether it was taken for a router until now.
    pub fn advertised(&mut self, now: Nanos, key: Key, said: &Advertisement) -> bool {
        let Ok(at) = self.find(key) else {
            return false;
        };
        let reachable_time = self.reachable_time();
        let entry = &mut self.entries[at];
        let before = entry.shown;
        let advertised = said.hardware;
        let known = matches!(
            before.state,
            State::Reachable | State::Stale | State::Delay | State::Probe
        );
        if before.state == State::Permanent {
            return before.is_router;
        }
        let differs = advertised.is_some() && advertised != before.hardware;
        if !known {
            // One who says nothing of where it is, is still to be found.
            let Some(hardware) = advertised else {
                return before.is_router;
            };
            entry.shown.hardware = Some(hardware);
        } else if differs && !said.overrides {
            // Another may have the address, too; what is known is looked at again soon.
            if before.state == State::Reachable {
                self.version += 1;
                entry.set_state(now, State::Stale, None);
                self.changed(at);
            }
            return before.is_router;
        } else if differs {
            entry.shown.hardware = advertised;
        }
        entry.shown.is_router = said.is_router;
        if said.is_solicited {
            entry.shown.times[1] = now;
            entry.asked = 0;
            entry.set_state(now, State::Reachable, Some(now + reachable_time));
        } else if !known || differs {
            entry.set_state(now, State::Stale, None);
        }
        let after = entry.shown;
        if (before.state, before.hardware, before.is_router)
            != (after.state, after.hardware, after.is_router)
        {
            self.version += 1;
            self.changed(at);
        }
        self.send_waiting(at);
        before.is_router
    }

    /// A neighbour has said that it is a router.
    pub fn mark_router(&mut self, key: Key) {
        if let Ok(at) = self.find(key)
            && !self.entries[at].shown.is_router
        {
            self.entries[at].shown.is_router = true;
            self.changed(at);
        }
    }

    /// Something from above shows that the neighbour gets what is sent to it (`MSG_CONFIRM`, new
    /// data acknowledged).
    pub fn confirm(&mut self, now: Nanos, key: Key) {
        let reachable_time = self.reachable_time();
        if let Ok(at) = self.find(key) {
            let entry = &mut self.entries[at];
            entry.shown.times[1] = now;
            if matches!(
                entry.shown.state,
                State::Delay | State::Stale | State::Probe
            ) {
                entry.set_state(now, State::Reachable, Some(now + reachable_time));
            }
        }
    }

    /// Does what the time asks for.
    pub fn tick(&mut self, now: Nanos) {
        for at in 0..self.entries.len() {
            if self.entries[at].deadline.is_some_and(|due| due <= now) {
                self.expire(now, at);
            }
        }
    }

    fn expire(&mut self, now: Nanos, at: usize) {
        let entry = &mut self.entries[at];
        let (key, hardware) = (entry.key(), entry.shown.hardware);
        match entry.shown.state {
            // One in use is asked soon, another if it is used again.
            State::Reachable if now.saturating_sub(entry.shown.times[0]) < DELAY => {
                entry.asked = 0;
                entry.set_state(now, State::Delay, Some(now + DELAY));
            }
            State::Reachable => {
                entry.set_state(now, State::Stale, None);
                self.changed(at);
            }
            State::Delay => {
                entry.asked = 1;
                entry.set_state(now, State::Probe, Some(now + RETRANSMIT));
                self.push(Event::Solicit(key, hardware));
            }
            State::Incomplete | State::Probe if entry.asked < SOLICITATIONS => {
                entry.asked += 1;
                entry.deadline = Some(now + RETRANSMIT);
                let to = hardware.filter(|_| entry.shown.state == State::Probe);
                self.push(Event::Solicit(key, to));
            }
            State::Incomplete | State::Probe => {
                entry.shown.hardware = None;
                entry.set_state(now, State::Failed, None);
                self.changed(at);
                for packet in self.take_waiting(at) {
                    self.push(Event::Unreachable(key, packet));
                }
            }
            _ => entry.deadline = None,
        }
    }

    /// Sets a neighbour as an administrator says.
    ///
    /// # Errors
    /// There is no room.
    pub fn set(
        &mut self,
        now: Nanos,
        key: Key,
        hardware: HardwareAddress,
        state: State,
    ) -> Result<(), NoRoom> {
        let at = self.entry(now, key).ok_or(NoRoom)?;
        let deadline = match state {
            State::Reachable => Some(now + self.reachable_time()),
            State::Delay | State::Probe => Some(now),
            _ => None,
        };
        let entry = &mut self.entries[at];
        entry.shown.hardware = Some(hardware);
        entry.shown.times[1] = now;
        entry.set_state(now, state, deadline);
        self.version += 1;
        self.changed(at);
        self.send_waiting(at);
        Ok(())
    }

    /// Removes a neighbour. Returns whether it was there.
    pub fn remove(&mut self, key: Key) -> bool {
        let found = self.find(key);
        if let Ok(at) = found {
            self.remove_at(at);
        }
        found.is_ok()
    }

    /// Removes the neighbours of an interface; those that an administrator set only if `all`.
    pub fn forget_interface(&mut self, interface: u32, all: bool) {
        for at in (0..self.entries.len()).rev() {
            let entry = &self.entries[at];
            if entry.key().interface == interface && (all || entry.shown.state != State::Permanent)
            {
                self.remove_at(at);
            }
        }
    }
}

/// The table is full of neighbours in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoRoom;
