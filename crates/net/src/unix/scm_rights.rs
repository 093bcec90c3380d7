//! Open files under way (`SCM_RIGHTS`), and the rings they can form.
//!
//! A socket that is sent through itself, or two through each other, is kept open by its own queue
//! when the last descriptor is closed. The answer is Linux' first one: a socket all of whose
//! references are under way is a *candidate*; a candidate is alive if one of its references waits
//! in the queue of something that is not a candidate, or of a live one; the others can be reached
//! by nobody, and their queues are emptied. A collection runs when a socket is closed while others
//! are under way, and when many more are under way than after the last one.
//!
//! Order of locks: `INFLIGHT` before any socket's. A `ScmRights` is made, opened and dropped with
//! no lock of a socket held.

use super::UnixSocket;
use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use fs::File;
use task::Mutex;

/// A collection is due at the latest when so many sockets are under way.
const MIN_GC_THRESHOLD: usize = 64;

/// Which socket: its file's address, kept from being reused by the references that are counted.
type Key = usize;

struct InflightSocket {
    file: Weak<File>,
    references: usize,
}

/// The sockets under way, with how many references to each are.
static INFLIGHT: Mutex<BTreeMap<Key, InflightSocket>> = Mutex::new(BTreeMap::new());
/// At this many a send starts a collection.
static GC_THRESHOLD: AtomicUsize = AtomicUsize::new(MIN_GC_THRESHOLD);

/// The number of sockets in flight, and of references to them.
pub(crate) fn inflight_counts() -> [u64; 2] {
    let flight = INFLIGHT.lock();
    [
        flight.len() as u64,
        flight.values().map(|flying| flying.references as u64).sum(),
    ]
}

fn file_address(file: &Arc<File>) -> Key {
    Arc::as_ptr(file).addr()
}

fn is_socket(file: &Arc<File>) -> bool {
    UnixSocket::of_file(file).is_some()
}

/// Open files under way from one socket to another.
pub struct ScmRights(Vec<Arc<File>>);

impl ScmRights {
    /// Sends files on their way.
    #[must_use]
    pub fn new(files: Vec<Arc<File>>) -> Self {
        let due = files.iter().any(is_socket) && {
            let mut flight = INFLIGHT.lock();
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
            flight.len() >= GC_THRESHOLD.load(Ordering::Relaxed)
        };
        let rights = Self(files);
        if due {
            collect_garbage();
        }
        rights
    }

    /// The files, still under way.
    #[must_use]
    pub fn files(&self) -> &[Arc<File>] {
        &self.0
    }

    /// The files have arrived.
    #[must_use]
    pub fn into_files(mut self) -> Vec<Arc<File>> {
        self.leave_inflight()
    }

    fn leave_inflight(&mut self) -> Vec<Arc<File>> {
        let files = core::mem::take(&mut self.0);
        if files.iter().any(is_socket) {
            let mut flight = INFLIGHT.lock();
            for file in files.iter().filter(|file| is_socket(file)) {
                if let Some(flying) = flight.get_mut(&file_address(file)) {
                    flying.references -= 1;
                    if flying.references == 0 {
                        flight.remove(&file_address(file));
                    }
                }
            }
        }
        files
    }
}

impl Drop for ScmRights {
    fn drop(&mut self) {
        let files = self.leave_inflight();
        drop_iteratively(files);
    }
}

#[derive(Default)]
struct Discarded {
    files: Vec<Arc<File>>,
    under_way: bool,
}

/// Drops files. One of them may be a socket in whose queue there are others, and so on without end:
/// that is done in a loop, by whoever comes first, because recursion would need stack for every
/// level.
fn drop_iteratively(mut files: Vec<Arc<File>>) {
    static DISCARDED: Mutex<Discarded> = Mutex::new(Discarded {
        files: Vec::new(),
        under_way: false,
    });
    if files.is_empty() {
        return;
    }
    {
        let mut discarded = DISCARDED.lock();
        discarded.files.append(&mut files);
        if core::mem::replace(&mut discarded.under_way, true) {
            return;
        }
    }
    loop {
        let files = {
            let mut discarded = DISCARDED.lock();
            if discarded.files.is_empty() {
                discarded.under_way = false;
                return;
            }
            core::mem::take(&mut discarded.files)
        };
        drop(files);
    }
}

/// A socket was closed: it may have been the last way to others.
pub(super) fn collect_after_close() {
    let any = !INFLIGHT.lock().is_empty();
    if any {
        collect_garbage();
    }
}

/// Finds the sockets under way that nobody can reach any more, and empties their queues.
fn collect_garbage() {
    static RUNNING: AtomicBool = AtomicBool::new(false);
    static AGAIN: AtomicBool = AtomicBool::new(false);
    AGAIN.store(true, Ordering::SeqCst);
    // Whoever finds another at it leaves the work to that one, which looks again.
    while AGAIN.load(Ordering::SeqCst) && !RUNNING.swap(true, Ordering::SeqCst) {
        while AGAIN.swap(false, Ordering::SeqCst) {
            purge_unreachable();
        }
        RUNNING.store(false, Ordering::SeqCst);
    }
}

struct Candidate {
    file: Arc<File>,
    /// References that were not found in the queue of a candidate.
    external_references: usize,
    alive: bool,
}

fn purge_unreachable() {
    // Declared before the lock, so that what they hold is dropped after it.
    let mut unreachable: Vec<ScmRights> = Vec::new();
    let mut candidates: BTreeMap<Key, Candidate> = BTreeMap::new();
    let flight = INFLIGHT.lock();
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
    GC_THRESHOLD.store((flight.len() * 2).max(MIN_GC_THRESHOLD), Ordering::Relaxed);
    drop(flight);
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
            )
        };
        socket.for_each_endpoint(|endpoint| endpoint.for_each_right(&mut note));
    }
    keys
}
