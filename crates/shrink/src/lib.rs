//! Giving memory back: every cache of the kernel that can do with less registers a [`Shrinker`];
//! whoever is short of memory asks all of them at once, each for a part in proportion to what it
//! could give (as OSv's shrinkers do; Kivity et al., "OSv – Optimizing the Operating System for
//! Virtual Machines", USENIX ATC 2014, section 2).
//!
//! A cache may give some at once and the rest later, from a thread of its own: the [`Ticket`] that
//! comes with the request stands for what is still under way, and the [`Round`] is finished when
//! the last one is gone.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use lfmutex::{Mutex, Token, scheduler};

/// Urgency of a request for memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// Nobody waits: only what costs nothing to make again.
    Idle,
    /// Memory gets scarce.
    Low,
    /// Somebody waits for it.
    High,
    /// A request fails otherwise: all that can go goes.
    Critical,
}

/// A cache that can do with less memory.
pub trait Shrinker: Send + Sync {
    /// Name of the cache, for statistics.
    fn name(&self) -> &'static str;

    /// Bytes it could give back at this urgency, about. Called often, and must not sleep.
    fn reclaimable(&self, urgency: Urgency) -> u64;

    /// Gives back about `bytes`. Whoever asks may hold any lock under which memory is allocated, so
    /// this must not wait for such a lock (`try_lock`), nor allocate. What was given back is told
    /// to the ticket; who is not done keeps it.
    fn shrink(&self, bytes: u64, urgency: Urgency, ticket: Ticket);
}

/// One call for memory.
#[derive(Debug, Default)]
pub struct Round {
    freed: AtomicU64,
    open: AtomicUsize,
    waiter: Mutex<Option<Token>>,
}

impl Round {
    /// Bytes given back so far.
    #[must_use]
    pub fn freed(&self) -> u64 {
        self.freed.load(Ordering::Acquire)
    }

    /// Whether every cache is done.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.open.load(Ordering::Acquire) == 0
    }

    /// Sleeps until every cache is done; bytes given back. One thread at a time.
    pub fn wait(&self) -> u64 {
        *self.waiter.lock() = Some(scheduler().current());
        while !self.is_finished() {
            scheduler().park();
        }
        *self.waiter.lock() = None;
        self.freed()
    }
}

/// Stands for what a cache has still to do in a [`Round`]; dropping it says that it is done.
#[derive(Debug)]
pub struct Ticket {
    round: Arc<Round>,
}

impl Ticket {
    fn new(round: &Arc<Round>) -> Self {
        round.open.fetch_add(1, Ordering::Relaxed);
        Self {
            round: round.clone(),
        }
    }

    /// Tells that `bytes` were given back.
    pub fn freed(&self, bytes: u64) {
        self.round.freed.fetch_add(bytes, Ordering::Release);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.round.open.fetch_sub(1, Ordering::AcqRel) == 1
            && let Some(thread) = *self.round.waiter.lock()
        {
            scheduler().unpark(thread);
        }
    }
}

/// Counts of a registered cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stats {
    /// Name of the cache.
    pub name: &'static str,
    /// Bytes it could give back, at [`Urgency::Critical`].
    pub reclaimable: u64,
    /// Bytes it was asked for since it registered.
    pub asked: u64,
}

struct Entry {
    cache: Arc<dyn Shrinker>,
    asked: AtomicU64,
}

/// The registered caches.
#[derive(Default)]
pub struct Shrinkers {
    list: Mutex<Vec<Arc<Entry>>>,
}

/// Most caches that one call asks; a call must not allocate.
const MAX_SHRINKERS: usize = 32;
/// Number of times that a shortage is split again among the caches that have more.
const PASSES: usize = 3;

impl Shrinkers {
    /// None.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            list: Mutex::new(Vec::new()),
        }
    }

    /// Adds a cache.
    ///
    /// # Panics
    /// If there are 32 already.
    pub fn register(&self, cache: Arc<dyn Shrinker>) {
        let mut list = self.list.lock();
        assert!(list.len() < MAX_SHRINKERS, "too many caches");
        list.push(Arc::new(Entry {
            cache,
            asked: AtomicU64::new(0),
        }));
    }

    /// Removes a cache.
    pub fn unregister(&self, cache: &Arc<dyn Shrinker>) {
        self.list
            .lock()
            .retain(|entry| !Arc::ptr_eq(&entry.cache, cache));
    }

    /// Asks for `bytes`, each cache for its share. Returns when all were asked; [`Round::wait`]
    /// waits for those that are not done at once. `round` is the caller's, made while there was
    /// memory, and finished.
    pub fn reclaim(&self, round: &Arc<Round>, bytes: u64, urgency: Urgency) {
        round.freed.store(0, Ordering::Relaxed);
        let whole = Ticket::new(round);
        let mut caches: [Option<Arc<Entry>>; MAX_SHRINKERS] = [const { None }; MAX_SHRINKERS];
        for (slot, entry) in caches.iter_mut().zip(self.list.lock().iter()) {
            *slot = Some(entry.clone());
        }
        let mut pending = 0u64;
        // Who gave less than it said has no more to give in this round.
        let mut spent = [false; MAX_SHRINKERS];
        for _ in 0..PASSES {
            let missing = bytes.saturating_sub(round.freed() + pending);
            let mut held = [0u64; MAX_SHRINKERS];
            for ((held, entry), _) in held
                .iter_mut()
                .zip(caches.iter().flatten())
                .zip(spent)
                .filter(|(_, spent)| !spent)
            {
                *held = entry.cache.reclaimable(urgency);
            }
            if missing == 0 || held.iter().all(|held| *held == 0) {
                break;
            }
            let shares = split(missing, &held);
            for (n, entry) in caches
                .iter()
                .flatten()
                .enumerate()
                .filter(|(n, _)| shares[*n] > 0)
            {
                let share = shares[n];
                entry.asked.fetch_add(share, Ordering::Relaxed);
                let (open, freed) = (round.open.load(Ordering::Acquire), round.freed());
                entry.cache.shrink(share, urgency, Ticket::new(round));
                let missing = share.saturating_sub(round.freed() - freed);
                if round.open.load(Ordering::Acquire) > open {
                    // It goes on by itself, and is trusted to give what it was asked for.
                    pending += missing;
                } else {
                    spent[n] = missing > 0;
                }
            }
        }
        drop(whole);
    }

    /// Size and counts of each registered cache.
    #[must_use]
    pub fn stats(&self) -> Vec<Stats> {
        let of = |entry: &Arc<Entry>| Stats {
            name: entry.cache.name(),
            reclaimable: entry.cache.reclaimable(Urgency::Critical),
            asked: entry.asked.load(Ordering::Relaxed),
        };
        self.list.lock().iter().map(of).collect()
    }
}

/// Splits a target in proportion to what each has: nobody is asked for more than it has, and
/// rounding is upwards, so that together they are asked for the target, if they have it, and at
/// most one byte each more.
fn split<const N: usize>(target: u64, held: &[u64; N]) -> [u64; N] {
    let total: u128 = held.iter().map(|held| u128::from(*held)).sum();
    held.map(|held| {
        if total == 0 {
            0
        } else {
            (u128::from(target) * u128::from(held))
                .div_ceil(total)
                .min(u128::from(held)) as u64
        }
    })
}

#[cfg(test)]
mod tests;
