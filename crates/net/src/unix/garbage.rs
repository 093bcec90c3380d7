//! Sockets in flight (`SCM_RIGHTS`), and the rings they can form.
//!
//! A socket that is sent through itself, or two through each other, is kept open by its own queue
//! when the last descriptor is closed. The answer is Linux' first one: a socket all of whose
//! references are under way is a *candidate*; a candidate is alive if one of its references waits
//! in the queue of something that is not a candidate, or of a live one; the others can be reached
//! by nobody, and their queues are emptied. A collection runs when a socket is closed while others
//! are under way, and when many more are under way than after the last one.
//!
//! A socket that is in flight through several stacks has references that none of them knows all
//! of, and so is a candidate of none.
//!
//! Order of locks: `InflightSockets::sockets` before any socket's. A `ScmRights` is made, opened
//! and dropped with no lock of a socket held.

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use fallible::Pieces;
use fs::File;
use task::Mutex;

use super::UnixSocket;
use crate::socket::{InflightTable, ScmRights};

/// A collection is due at the latest when so many sockets are under way.
const MIN_GC_THRESHOLD: usize = 64;

/// Key of a socket: its file's address, kept from being reused by the references that are counted.
type Key = usize;

struct InflightSocket {
    file: Weak<File>,
    references: usize,
}

/// The sockets in flight, and the collector of those that nobody can reach any more.
pub(crate) struct InflightSockets {
    /// The sockets, with how many references to each are in flight.
    sockets: Mutex<BTreeMap<Key, InflightSocket>>,
    /// At this many a send starts a collection.
    gc_threshold: AtomicUsize,
    gc_running: AtomicBool,
    /// A collection is asked for, maybe while one runs.
    gc_wanted: AtomicBool,
    discarded: Mutex<Discarded>,
}

impl Default for InflightSockets {
    fn default() -> Self {
        Self {
            sockets: Mutex::new(BTreeMap::new()),
            gc_threshold: AtomicUsize::new(MIN_GC_THRESHOLD),
            gc_running: AtomicBool::new(false),
            gc_wanted: AtomicBool::new(false),
            discarded: Mutex::default(),
        }
    }
}

/// Files that are being dropped.
#[derive(Default)]
struct Discarded {
    /// Files to drop: at most those under way, if they are in each other's queues.
    files: Pieces<Arc<File>>,
    under_way: bool,
}

fn file_address(file: &Arc<File>) -> Key {
    Arc::as_ptr(file).addr()
}

fn is_socket(file: &Arc<File>) -> bool {
    UnixSocket::of_file(file).is_some()
}

impl InflightTable for InflightSockets {
    fn insert(&self, files: &[Arc<File>]) {
        let due = files.iter().any(is_socket) && {
            let mut flight = self.sockets.lock();
            for file in files.iter().filter(|file| is_socket(file)) {
                let new = || InflightSocket {
                    file: Arc::downgrade(file),
                    references: 0,
                };
                flight
                    .entry(file_address(file))
                    .or_insert_with(new)
                    .references += 1;
            }
            flight.len() >= self.gc_threshold.load(Ordering::Relaxed)
        };
        if due {
            self.collect_garbage();
        }
    }

    fn remove(&self, files: &[Arc<File>]) {
        if files.iter().any(is_socket) {
            let mut flight = self.sockets.lock();
            for file in files.iter().filter(|file| is_socket(file)) {
                if let Some(flying) = flight.get_mut(&file_address(file)) {
                    flying.references -= 1;
                    if flying.references == 0 {
                        flight.remove(&file_address(file));
                    }
                }
            }
        }
    }

    /// Drops files. One of them may be a socket in whose queue there are others, and so on without
    /// end: that is done in a loop, by whoever comes first, because recursion would need stack for
    /// every level.
    fn discard(&self, files: Vec<Arc<File>>) {
        if files.is_empty() {
            return;
        }
        {
            let mut discarded = self.discarded.lock();
            discarded.files.extend(files);
            if core::mem::replace(&mut discarded.under_way, true) {
                return;
            }
        }
        loop {
            let files = {
                let mut discarded = self.discarded.lock();
                if discarded.files.is_empty() {
                    discarded.under_way = false;
                    return;
                }
                core::mem::take(&mut discarded.files)
            };
            drop(files);
        }
    }
}

impl InflightSockets {
    /// Number of sockets in flight.
    pub(super) fn socket_count(&self) -> u64 {
        self.sockets.lock().len() as u64
    }

    /// Number of references to sockets in flight.
    pub(super) fn reference_count(&self) -> u64 {
        let flight = self.sockets.lock();
        flight.values().map(|flying| flying.references as u64).sum()
    }

    /// A socket was closed: it may have been the last way to others.
    pub(super) fn collect_after_close(&self) {
        let any = !self.sockets.lock().is_empty();
        if any {
            self.collect_garbage();
        }
    }

    /// Finds the sockets in flight that nobody can reach any more, and empties their queues.
    fn collect_garbage(&self) {
        self.gc_wanted.store(true, Ordering::SeqCst);
        // Whoever finds another at it leaves the work to that one, which looks again.
        while self.gc_wanted.load(Ordering::SeqCst) && !self.gc_running.swap(true, Ordering::SeqCst)
        {
            while self.gc_wanted.swap(false, Ordering::SeqCst) {
                self.purge_unreachable();
            }
            self.gc_running.store(false, Ordering::SeqCst);
        }
    }

    fn purge_unreachable(&self) {
        // Declared before the lock, so that what they hold is dropped after it.
        let mut unreachable: Vec<ScmRights> = Vec::new();
        let mut candidates: BTreeMap<Key, Candidate> = BTreeMap::new();
        let flight = self.sockets.lock();
        for (&key, flying) in &*flight {
            let Some(file) = flying.file.upgrade() else {
                continue;
            };
            // This reference here is one more.
            let alive = Arc::strong_count(&file) - 1 != flying.references;
            candidates.insert(
                key,
                Candidate {
                    file,
                    external_references: flying.references,
                    alive,
                },
            );
        }
        let mut live: Vec<Key> = candidates
            .iter()
            .filter(|(_, c)| c.alive)
            .map(|(&key, _)| key)
            .collect();
        let inside: Vec<Key> = candidates
            .values()
            .filter(|c| !c.alive)
            .flat_map(|c| queued_sockets(&c.file))
            .collect();
        for key in inside {
            if let Some(candidate) = candidates.get_mut(&key) {
                candidate.external_references -= 1;
            }
        }
        for (&key, candidate) in &mut candidates {
            if !candidate.alive && candidate.external_references != 0 {
                candidate.alive = true;
                live.push(key);
            }
        }
        while let Some(key) = live.pop() {
            for reached in queued_sockets(&candidates[&key].file) {
                if let Some(candidate) = candidates.get_mut(&reached)
                    && !core::mem::replace(&mut candidate.alive, true)
                {
                    live.push(reached);
                }
            }
        }
        let dead = candidates.values().filter(|c| !c.alive);
        for socket in dead.filter_map(|c| UnixSocket::of_file(&c.file)) {
            socket.for_each_endpoint(|endpoint| unreachable.append(&mut endpoint.take_rights()));
        }
        let threshold = (flight.len() * 2).max(MIN_GC_THRESHOLD);
        self.gc_threshold.store(threshold, Ordering::Relaxed);
        drop(flight);
    }
}

/// A socket all of whose references may be in flight.
struct Candidate {
    file: Arc<File>,
    /// References that were not found in the queue of a candidate.
    external_references: usize,
    alive: bool,
}

/// The sockets that wait in the queue of one.
fn queued_sockets(file: &File) -> Vec<Key> {
    let mut keys = Vec::new();
    if let Some(socket) = UnixSocket::of_file(file) {
        let mut note = |rights: &ScmRights| {
            keys.extend(
                rights
                    .files()
                    .iter()
                    .filter(|file| is_socket(file))
                    .map(file_address),
            );
        };
        socket.for_each_endpoint(|endpoint| endpoint.for_each_right(&mut note));
    }
    keys
}
