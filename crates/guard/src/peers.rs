//! The peers of this instance: their pages, and who they are by the last epoch that was adopted
//! (`docs/messages.md`).

use core::sync::atomic::{AtomicU64, Ordering};

use abi::layout::{MESSAGES, PAGE_SIZE};
use abi::live::{self, Entry};
use abi::messages::{Counters, MAX_PLACES, MessagePage, PLACE_BYTES, Peer};
use arrayvec::ArrayVec;
use lfmutex::Mutex;
use ring::pair::{Pair, Side};

use crate::{ipi, random, role};

/// The peers by the last epoch.
static PEERS: Mutex<ArrayVec<Peer, MAX_PLACES>> = Mutex::new(ArrayVec::new_const());
/// APIC id and vector of the doorbell of each place's peer, as one word; 0: there is none.
static DOORBELLS: [AtomicU64; MAX_PLACES] = [const { AtomicU64::new(0) }; MAX_PLACES];

/// Takes over the peers of an epoch that was checked.
pub(crate) fn adopt<'a>(entries: impl Iterator<Item = &'a Entry>) {
    let mut peers = PEERS.lock();
    let (mut new, mut doorbells) = (ArrayVec::new(), [0; MAX_PLACES]);
    for entry in entries {
        let (peer, vector) = live::peer_of(entry);
        doorbells[usize::from(peer.place)] = u64::from(vector) << 32 | u64::from(peer.apic_id);
        new.push(peer);
    }
    for (to, from) in DOORBELLS.iter().zip(doorbells) {
        to.store(from, Ordering::Release);
    }
    *peers = new;
}

/// APIC id and vector of a peer's doorbell.
pub(crate) fn doorbell(place: usize) -> Option<(u32, u8)> {
    let word = DOORBELLS.get(place)?.load(Ordering::Acquire);
    (word != 0).then_some((word as u32, (word >> 32) as u8))
}

/// The peers of this instance, by the last epoch that was adopted.
#[must_use]
pub fn all() -> ArrayVec<Peer, MAX_PLACES> {
    PEERS.lock().clone()
}

/// A page of a place: the one that this instance writes, or the peer's.
fn page(place: usize, number: usize) -> Option<&'static MessagePage> {
    if place >= role::descriptor().places() {
        return None;
    }
    let at = MESSAGES + place * PLACE_BYTES + number * PAGE_SIZE;
    // SAFETY: the tables of an instance whose descriptor says so map its places there for as long
    // as it runs; a page of messages consists of atomics. Of those of the peer's page, which is
    // mapped read-only, no reference that could be stored through leaves this module.
    Some(unsafe { &*core::ptr::with_exposed_provenance(at) })
}

const fn side(page: &'static MessagePage) -> Side<'static> {
    Side {
        taken: &page.receipt.taken,
        awaited: &page.receipt.awaited,
        room: &page.wish.room,
        cells: &page.cells,
    }
}

/// The words that this instance and the peer at a place exchange; `None` if it has no such place.
#[must_use]
pub fn pair(place: usize) -> Option<Pair<'static>> {
    Some(Pair::new(side(page(place, 0)?), side(page(place, 1)?)))
}

/// Counts a doorbell for the peer at a place.
pub(crate) fn count_doorbell(place: usize) {
    if let Some(counters) = counters(place) {
        counters.doorbells.fetch_add(1, Ordering::Relaxed);
    }
}

/// Number of doorbells that the peer at a place has rung, by its guard's count: its word.
#[must_use]
pub fn doorbells_of_peer(place: usize) -> u64 {
    page(place, 1).map_or(0, |page| page.counters.doorbells.load(Ordering::Relaxed))
}

/// This instance's own counts at a place.
#[must_use]
pub fn counters(place: usize) -> Option<&'static Counters> {
    Some(&page(place, 0)?.counters)
}

/// Writes random words into all pages that this instance may write, those of messages as they could
/// be among them, and rings all peers, for ever.
pub(crate) fn scribble() -> ! {
    loop {
        for peer in all() {
            let place = usize::from(peer.place);
            let mut random = [0; 64];
            random::fill(&mut random);
            if let Some(page) = page(place, 0) {
                let words = page.cells.as_flattened();
                let bytes = random.as_chunks().0.iter();
                for word in bytes.map(|bytes| u64::from_le_bytes(*bytes)) {
                    let at = (word >> 32) as usize % words.len();
                    // Now and then what could be a stamp but for its number.
                    let value = match word & 1 {
                        0 => word,
                        _ => u64::from(peer.generation) << 32 | word & 0xffff | 1 << 16,
                    };
                    words[at].store(value, Ordering::Relaxed);
                    page.receipt.taken.store(value, Ordering::Relaxed);
                    page.receipt.awaited.store(word, Ordering::Relaxed);
                    page.wish.room.store(value, Ordering::Relaxed);
                }
            }
            ipi::ring_place(place);
        }
    }
}
