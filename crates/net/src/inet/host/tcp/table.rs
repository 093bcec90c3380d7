//! What segments can be for: connections by their two ends, and listeners by their sockets, each
//! with its deadline.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use ::tcp::{Ends, Secret, TimeWait};
use abi::errno::Errno;
use fs::Result;
use hashbrown::HashTable;
use ip::Nanos;

use super::connection::WireConnection;
use super::deadlines::Deadlines;
use super::listener::WireListener;

/// The number of an entry, which is another's once the entry has gone.
pub(super) type Number = u32;

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
    /// A connection's, or the rest of one.
    Ends(Ends, Entry),
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
    /// Secret that places in `by_ends` are made of.
    secret: Secret,
    slots: Vec<Slot>,
    /// Slots that are free.
    free: Vec<Number>,
    by_ends: HashTable<Number>,
    listeners: BTreeMap<u64, Number>,
    deadlines: Deadlines,
    waiting: usize,
}

impl Table {
    pub(super) fn new(secret: Secret) -> Self {
        Self {
            secret,
            slots: Vec::new(),
            free: Vec::new(),
            by_ends: HashTable::new(),
            listeners: BTreeMap::new(),
            deadlines: Deadlines::default(),
            waiting: 0,
        }
    }

    /// The number of connections that wait for late segments.
    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    /// The number of connections, of those that wait, too.
    pub(super) fn connections(&self) -> usize {
        self.by_ends.len()
    }

    /// The earliest deadline.
    pub(super) fn deadline(&self) -> Option<Nanos> {
        self.deadlines.first().map(|(due, _)| due)
    }

    /// The entry of a connection by its ends.
    pub(super) fn find(&mut self, ends: &Ends) -> Option<(Number, &mut Entry)> {
        let number = self.number_of(ends)?;
        match &mut self.slots[number as usize] {
            Slot::Ends(_, entry) => Some((number, entry)),
            _ => None,
        }
    }

    fn number_of(&self, ends: &Ends) -> Option<Number> {
        let slots = &self.slots;
        let found = self.by_ends.find(
            self.secret.place(ends),
            |number| matches!(&slots[*number as usize], Slot::Ends(known, _) if known == ends),
        );
        found.copied()
    }

    /// Adds a connection.
    ///
    /// # Errors
    /// `EADDRNOTAVAIL` if there is one with the same ends; `ENOMEM`.
    pub(super) fn insert(&mut self, ends: Ends, connection: Arc<WireConnection>) -> Result<Number> {
        if self.number_of(&ends).is_some() {
            return Err(Errno::EADDRNOTAVAIL);
        }
        let (slots, secret) = (&self.slots, &self.secret);
        let hash_of = |number: &Number| match &slots[*number as usize] {
            Slot::Ends(ends, _) => secret.place(ends),
            _ => 0,
        };
        let room = self.by_ends.try_reserve(1, hash_of);
        room.map_err(|_| Errno::ENOMEM)?;
        let number = self.take_slot()?;
        self.slots[number as usize] = Slot::Ends(ends, Entry::Open(connection));
        let (slots, secret) = (&self.slots, &self.secret);
        self.by_ends
            .insert_unique(secret.place(&ends), number, |number| {
                match &slots[*number as usize] {
                    Slot::Ends(ends, _) => secret.place(ends),
                    _ => 0,
                }
            });
        Ok(number)
    }

    fn take_slot(&mut self) -> Result<Number> {
        if let Some(number) = self.free.pop() {
            return Ok(number);
        }
        let count = self.slots.len() + 1;
        let number = Number::try_from(self.slots.len()).map_err(|_| Errno::ENOMEM)?;
        self.slots.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        // Every slot may become free, and must find room then.
        let capacity = self.slots.capacity();
        let missing = capacity.saturating_sub(self.free.len());
        self.free.try_reserve(missing).map_err(|_| Errno::ENOMEM)?;
        self.deadlines.make_room(count)?;
        self.slots.push(Slot::Free);
        Ok(number)
    }

    /// Takes an entry out. It is to be dropped without the table's lock.
    pub(super) fn remove(&mut self, number: Number) -> Option<Entry> {
        let slot = core::mem::replace(&mut self.slots[number as usize], Slot::Free);
        self.deadlines.set(number, None);
        let entry = match slot {
            Slot::Free => return None,
            Slot::Ends(ends, entry) => {
                let place = self.secret.place(&ends);
                if let Ok(found) = self.by_ends.find_entry(place, |one| *one == number) {
                    found.remove();
                }
                self.waiting -= usize::from(matches!(entry, Entry::Waiting(_)));
                entry
            }
            Slot::Listener(entry) => {
                if let Entry::Listener(_, id) = &entry {
                    self.listeners.remove(id);
                }
                entry
            }
        };
        self.free.push(number);
        if self.by_ends.is_empty() && self.listeners.is_empty() {
            // What a flood has taken is given back.
            *self = Self::new(self.secret);
        }
        Some(entry)
    }

    /// Lets the rest of a connection stand for it, which is returned as by [`Self::remove`].
    pub(super) fn wait(&mut self, number: Number, rest: TimeWait) -> Option<Entry> {
        let Slot::Ends(_, entry) = &mut self.slots[number as usize] else {
            return None;
        };
        let due = rest.deadline();
        let connection = core::mem::replace(entry, Entry::Waiting(rest));
        self.waiting += 1;
        self.deadlines.set(number, Some(due));
        Some(connection)
    }

    /// Sets an entry's deadline, or takes it away.
    pub(super) fn set_deadline(&mut self, number: Number, due: Option<Nanos>) {
        self.deadlines.set(number, due);
    }

    /// Sets a listener's deadline, unless it has been taken out.
    pub(super) fn set_listener_deadline(&mut self, listener: &WireListener, due: Nanos) {
        let is_there = matches!(
            self.slots.get(listener.number as usize),
            Some(Slot::Listener(Entry::Listener(known, _))) if core::ptr::eq(&**known, listener)
        );
        if is_there {
            self.deadlines.set(listener.number, Some(due));
        }
    }

    /// Takes what is due, until there is nothing. It has no deadline then.
    pub(super) fn take_due(&mut self, now: Nanos) -> Option<Due> {
        let (due, number) = self.deadlines.first()?;
        if due > now {
            return None;
        }
        self.deadlines.set(number, None);
        Some(match &self.slots[number as usize] {
            Slot::Ends(_, Entry::Open(connection)) => Due::Connection(connection.clone()),
            Slot::Listener(Entry::Listener(listener, _)) => Due::Listener(listener.clone()),
            _ => {
                self.remove(number);
                Due::Nothing
            }
        })
    }

    /// The listener of a socket; one is made if there is none.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub(super) fn listener(
        &mut self,
        id: u64,
        new: impl FnOnce(Number) -> Arc<WireListener>,
    ) -> Result<Arc<WireListener>> {
        if let Some(number) = self.listeners.get(&id)
            && let Slot::Listener(Entry::Listener(listener, _)) = &self.slots[*number as usize]
        {
            return Ok(listener.clone());
        }
        let number = self.take_slot()?;
        let listener = new(number);
        self.slots[number as usize] = Slot::Listener(Entry::Listener(listener.clone(), id));
        self.listeners.insert(id, number);
        Ok(listener)
    }

    /// Takes a socket's listener out, as [`Self::remove`].
    pub(super) fn remove_listener(&mut self, id: u64) -> Option<Entry> {
        let number = self.listeners.get(&id).copied()?;
        self.remove(number)
    }

    /// Calls `each` with every connection's entry.
    pub(super) fn each(&self, mut each: impl FnMut(&Ends, &Entry)) {
        for slot in &self.slots {
            if let Slot::Ends(ends, entry) = slot {
                each(ends, entry);
            }
        }
    }
}
