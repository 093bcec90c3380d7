//! What segments can be for: connections by their two ends, and listeners by their sockets, each
//! with its deadline.
//!
//! All is spread over shards by a keyed hash. A shard has a lock for those who open, close, wait or
//! set a deadline, and an [`Index`] in which open connections are found without it.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use ::tcp::{Ends, Secret, TimeWait};
use abi::errno::Errno;
use fs::Result;
use hashbrown::HashTable;
use ip::Nanos;
use task::{Mutex, MutexGuard};

use super::super::index::{Index, Writer};
use super::connection::WireConnection;
use super::deadlines::Deadlines;
use super::listener::WireListener;

/// Number of shards.
const SHARDS: usize = 64;
/// Slots that a shard keeps when it is empty: connections that come and go make none.
const KEPT: usize = 8;
/// The deadline of a shard that has none.
const NEVER: Nanos = Nanos::MAX;

/// The number of an entry, which is another's once the entry has gone: its slot in its shard, and
/// the shard.
pub(super) type Number = u32;

/// A hash of two ends, with a secret: the shard, and the place in it.
pub(in crate::inet::host) type EndsHash = u64;

/// An entry of the table: a receiver of segments.
pub(super) enum Entry {
    /// A connection.
    Open(Arc<WireConnection>),
    /// The rest of one, which waits for late segments.
    Waiting(TimeWait),
    /// A listener, by its socket's number.
    Listener(Arc<WireListener>, u64),
}

/// A place of an entry.
enum Slot {
    Free,
    /// A connection's, or the rest of one, with the place of its ends.
    Ends(EndsHash, Ends, Entry),
    Listener(Entry),
}

/// The one whose deadline has come.
pub(super) enum Due {
    Connection(Arc<WireConnection>),
    Listener(Arc<WireListener>),
    /// A connection waits no longer; nothing is left to be done.
    Nothing,
}

/// Connections and listeners.
pub(super) struct Table {
    /// Secret that places are made of.
    secret: Secret,
    shards: Vec<Shard>,
    /// Connections that wait for late segments, and all connections.
    waiting: AtomicUsize,
    connections: AtomicUsize,
}

/// A part of the table.
struct Shard {
    /// Connections that are open, of those in `entries`.
    open: Index<WireConnection>,
    entries: Mutex<Entries>,
    /// The earliest deadline in `entries`, or [`NEVER`].
    due: AtomicU64,
    /// How often `entries` were locked; written with the lock held.
    locked: AtomicU64,
}

/// The entries of a shard.
#[derive(Default)]
struct Entries {
    slots: Vec<Slot>,
    /// Slots that are free.
    free: Vec<u32>,
    by_ends: HashTable<u32>,
    writer: Writer,
    listeners: BTreeMap<u64, u32>,
    deadlines: Deadlines,
}

/// A shard whose lock is held.
pub(super) struct Locked<'a> {
    table: &'a Table,
    /// Number of the shard.
    shard: usize,
    entries: MutexGuard<'a, Entries>,
}

impl Table {
    pub(super) fn new(secret: Secret) -> Self {
        let shard = || Shard {
            open: Index::new(),
            entries: Mutex::default(),
            due: AtomicU64::new(NEVER),
            locked: AtomicU64::new(0),
        };
        Self {
            secret,
            shards: core::iter::repeat_with(shard).take(SHARDS).collect(),
            waiting: AtomicUsize::new(0),
            connections: AtomicUsize::new(0),
        }
    }

    /// The secret that places are made of.
    pub(super) fn secret(&self) -> Secret {
        self.secret
    }

    /// The number of connections that wait for late segments.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// The number of connections, of those that wait, too.
    pub(super) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// How often a shard was locked.
    pub(super) fn locked(&self) -> u64 {
        let locked = |shard: &Shard| shard.locked.load(Ordering::Relaxed);
        self.shards.iter().map(locked).sum()
    }

    /// The earliest deadline.
    pub(super) fn deadline(&self) -> Option<Nanos> {
        let due = self
            .shards
            .iter()
            .map(|shard| shard.due.load(Ordering::SeqCst));
        due.min().filter(|due| *due != NEVER)
    }

    /// The place of two ends, which the other functions want: whoever calls several makes it once.
    pub(super) fn place(&self, ends: &Ends) -> EndsHash {
        self.secret.place(ends)
    }

    /// The connection between two ends, if one is open. One that comes or ends meanwhile may be
    /// found or not. No lock is taken.
    pub(super) fn open(&self, place: EndsHash, ends: &Ends) -> Option<Arc<WireConnection>> {
        let shard = &self.shards[shard_of(place)];
        shard
            .open
            .find(place, |connection| connection.ends() == ends)
    }

    /// Locks the shard of two ends.
    pub(super) fn lock(&self, place: EndsHash) -> Locked<'_> {
        self.lock_shard(shard_of(place))
    }

    /// Locks the shard of an entry.
    pub(super) fn lock_entry(&self, number: Number) -> Locked<'_> {
        self.lock_shard(number as usize % SHARDS)
    }

    /// Locks the shard of a socket's listener.
    fn lock_listener(&self, id: u64) -> Locked<'_> {
        self.lock_shard(id as usize % SHARDS)
    }

    fn lock_shard(&self, shard: usize) -> Locked<'_> {
        let Shard {
            entries, locked, ..
        } = &self.shards[shard];
        let entries = entries.lock();
        locked.store(locked.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        Locked {
            table: self,
            shard,
            entries,
        }
    }

    /// Lets the rest of a connection stand for it unless `most` do, and takes the connection out
    /// otherwise. The connection is to be dropped without locks.
    pub(super) fn wait(&self, number: Number, rest: TimeWait, most: usize) -> Option<Entry> {
        let mut shard = self.lock_entry(number);
        let is_room = self.waiting.fetch_add(1, Ordering::Relaxed) < most;
        if is_room && let Some(connection) = shard.wait(number, rest) {
            return Some(connection);
        }
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        shard.remove(number)
    }

    /// Sets a listener's deadline, unless it has been taken out.
    pub(super) fn set_listener_deadline(&self, listener: &WireListener, due: Nanos) {
        let mut shard = self.lock_entry(listener.number);
        let slot = slot_of(listener.number);
        let is_there = matches!(
            shard.entries.slots.get(slot as usize),
            Some(Slot::Listener(Entry::Listener(known, _))) if core::ptr::eq(&**known, listener)
        );
        if is_there {
            shard.entries.deadlines.set(slot, Some(due));
        }
    }

    /// Takes what is due, until there is nothing. It has no deadline then.
    pub(super) fn take_due(&self, now: Nanos) -> Option<Due> {
        let is_due = |shard: &Shard| shard.due.load(Ordering::SeqCst) <= now;
        loop {
            let shard = self.shards.iter().position(is_due)?;
            let due = self.lock_shard(shard).take_due(now);
            if due.is_some() {
                return due;
            }
        }
    }

    /// The listener of a socket; one is made if there is none.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub(super) fn listener(
        &self,
        id: u64,
        new: impl FnOnce(Number) -> Arc<WireListener>,
    ) -> Result<Arc<WireListener>> {
        let mut shard = self.lock_listener(id);
        if let Some(slot) = shard.entries.listeners.get(&id)
            && let Slot::Listener(Entry::Listener(listener, _)) =
                &shard.entries.slots[*slot as usize]
        {
            return Ok(listener.clone());
        }
        let slot = shard.entries.take_slot()?;
        let listener = new(shard.number(slot));
        let entry = Entry::Listener(listener.clone(), id);
        shard.entries.slots[slot as usize] = Slot::Listener(entry);
        shard.entries.listeners.insert(id, slot);
        Ok(listener)
    }

    /// Takes a socket's listener out, as [`Locked::remove`].
    pub(super) fn remove_listener(&self, id: u64) -> Option<Entry> {
        let mut shard = self.lock_listener(id);
        let slot = shard.entries.listeners.get(&id).copied()?;
        let number = shard.number(slot);
        shard.remove(number)
    }

    /// Calls `each` with every connection's entry.
    pub(super) fn each(&self, mut each: impl FnMut(&Ends, &Entry)) {
        for shard in 0..SHARDS {
            for slot in &self.lock_shard(shard).entries.slots {
                if let Slot::Ends(_, ends, entry) = slot {
                    each(ends, entry);
                }
            }
        }
    }
}

/// The shard of a place. Within a shard other bits of it count.
fn shard_of(place: EndsHash) -> usize {
    (place >> 32) as usize % SHARDS
}

fn slot_of(number: Number) -> u32 {
    number / SHARDS as u32
}

impl Locked<'_> {
    fn number(&self, slot: u32) -> Number {
        slot * SHARDS as u32 + self.shard as u32
    }

    /// The entry of a connection by its ends, of this shard.
    pub(super) fn find(&mut self, place: EndsHash, ends: &Ends) -> Option<(Number, &mut Entry)> {
        let slot = self.entries.slot_by_ends(place, ends)?;
        let number = self.number(slot);
        match &mut self.entries.slots[slot as usize] {
            Slot::Ends(_, _, entry) => Some((number, entry)),
            _ => None,
        }
    }

    /// Adds a connection, of this shard.
    ///
    /// # Errors
    /// `EADDRNOTAVAIL` if there is one with the same ends; `ENOMEM`.
    pub(super) fn insert(
        &mut self,
        place: EndsHash,
        connection: Arc<WireConnection>,
    ) -> Result<Number> {
        let table = self.table;
        let ends = *connection.ends();
        let entries = &mut *self.entries;
        if entries.slot_by_ends(place, &ends).is_some() {
            return Err(Errno::EADDRNOTAVAIL);
        }
        let slots = &entries.slots;
        let hash_of = |slot: &u32| match &slots[*slot as usize] {
            Slot::Ends(place, ..) => *place,
            _ => 0,
        };
        let room = entries.by_ends.try_reserve(1, hash_of);
        room.map_err(|_| Errno::ENOMEM)?;
        let slot = entries.take_slot()?;
        let open = &table.shards[self.shard].open;
        if let Err(error) = open.insert(&mut entries.writer, place, connection.clone()) {
            entries.free.push(slot);
            return Err(error);
        }
        // There is room.
        entries.by_ends.insert_unique(place, slot, |_| 0);
        entries.slots[slot as usize] = Slot::Ends(place, ends, Entry::Open(connection));
        table.connections.fetch_add(1, Ordering::Relaxed);
        Ok(self.number(slot))
    }

    /// Takes an entry out. It is to be dropped without the lock.
    pub(super) fn remove(&mut self, number: Number) -> Option<Entry> {
        let slot = slot_of(number);
        self.entries.deadlines.set(slot, None);
        let entry = match self.entries.slots.get_mut(slot as usize) {
            Some(known) => core::mem::replace(known, Slot::Free),
            None => return None,
        };
        let entry = match entry {
            Slot::Free => return None,
            Slot::Ends(place, _, entry) => {
                self.take_out(place, &entry, slot);
                entry
            }
            Slot::Listener(entry) => {
                if let Entry::Listener(_, id) = &entry {
                    self.entries.listeners.remove(id);
                }
                entry
            }
        };
        self.entries.free.push(slot);
        let is_empty = self.entries.by_ends.is_empty() && self.entries.listeners.is_empty();
        if is_empty && self.entries.slots.len() > KEPT {
            // What a flood has taken is given back.
            *self.entries = Entries::default();
        }
        Some(entry)
    }

    /// Takes a connection out of what it is found by.
    fn take_out(&mut self, place: EndsHash, entry: &Entry, slot: u32) {
        if let Ok(found) = self.entries.by_ends.find_entry(place, |one| *one == slot) {
            found.remove();
        }
        self.table.connections.fetch_sub(1, Ordering::Relaxed);
        match entry {
            Entry::Open(connection) => self.close(place, connection),
            Entry::Waiting(_) => drop(self.table.waiting.fetch_sub(1, Ordering::Relaxed)),
            Entry::Listener(..) => {}
        }
    }

    /// Takes a connection out of those that are open.
    fn close(&mut self, place: EndsHash, connection: &WireConnection) {
        let table = self.table;
        let open = &table.shards[self.shard].open;
        open.remove(&mut self.entries.writer, place, connection);
    }

    /// Lets the rest of a connection stand for it, which is returned as by [`Self::remove`].
    fn wait(&mut self, number: Number, rest: TimeWait) -> Option<Entry> {
        let slot = slot_of(number);
        let due = rest.deadline();
        let Some(Slot::Ends(place, _, entry)) = self.entries.slots.get_mut(slot as usize) else {
            return None;
        };
        let place = *place;
        let connection = core::mem::replace(entry, Entry::Waiting(rest));
        if let Entry::Open(connection) = &connection {
            self.close(place, connection);
        }
        self.entries.deadlines.set(slot, Some(due));
        Some(connection)
    }

    /// Sets an entry's deadline, or takes it away.
    pub(super) fn set_deadline(&mut self, number: Number, due: Option<Nanos>) {
        self.entries.deadlines.set(slot_of(number), due);
    }

    fn take_due(&mut self, now: Nanos) -> Option<Due> {
        let (due, slot) = self.entries.deadlines.first()?;
        if due > now {
            return None;
        }
        self.entries.deadlines.set(slot, None);
        Some(match &self.entries.slots[slot as usize] {
            Slot::Ends(_, _, Entry::Open(connection)) => Due::Connection(connection.clone()),
            Slot::Listener(Entry::Listener(listener, _)) => Due::Listener(listener.clone()),
            _ => {
                self.remove(self.number(slot));
                Due::Nothing
            }
        })
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        let due = self.entries.deadlines.first();
        let due = due.map_or(NEVER, |(due, _)| due);
        self.table.shards[self.shard]
            .due
            .store(due, Ordering::SeqCst);
    }
}

impl Entries {
    fn slot_by_ends(&self, place: EndsHash, ends: &Ends) -> Option<u32> {
        let is_it = |slot: &u32| matches!(&self.slots[*slot as usize], Slot::Ends(_, known, _) if known == ends);
        self.by_ends.find(place, is_it).copied()
    }

    fn take_slot(&mut self) -> Result<u32> {
        if let Some(slot) = self.free.pop() {
            return Ok(slot);
        }
        let count = self.slots.len() + 1;
        if count > u32::MAX as usize / SHARDS {
            return Err(Errno::ENOMEM);
        }
        self.slots.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        // Every slot may become free, and must find room then.
        let capacity = self.slots.capacity();
        let missing = capacity.saturating_sub(self.free.len());
        self.free.try_reserve(missing).map_err(|_| Errno::ENOMEM)?;
        self.deadlines.make_room(count)?;
        self.slots.push(Slot::Free);
        Ok((count - 1) as u32)
    }
}
