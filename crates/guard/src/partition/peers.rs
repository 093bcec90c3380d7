//! Peers of an instance, and the pages that it shares with them (`docs/messages.md`).
//!
//! Members of a group are peers by that group, in places of their own.
//!
//! A place's pages are mapped from the instance's start to its end. They get another peer only when
//! the one before is gone, the instance has answered an epoch without it, and nobody else holds
//! them.

use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::keep::NO_FRAME;
use abi::layout::PAGE_SIZE;
use abi::live::{self, Entry};
use abi::messages::{Counters, MAX_PLACES, MessagePage, PLACE_BYTES, Peer, places_for};

use super::Partition;
use crate::irq;
use crate::mem::alloc::Block;
use crate::mem::frame::Frame;

pub(super) const ORDER: u8 = (PLACE_BYTES / PAGE_SIZE).ilog2() as u8;

/// Two pages that two peers share, of which each writes one.
#[derive(Clone)]
pub(super) struct Pages(Arc<Block>);

impl Pages {
    /// Pages that instances have of a supervisor before this one.
    ///
    /// # Safety
    /// They are memory of the supervisor's that nobody else has but who gets them from this value.
    pub(super) unsafe fn adopted(first: Frame) -> Self {
        // SAFETY: by the caller's promise; an allocator that did not give them takes them, too.
        Self(Arc::new(unsafe { Block::from_raw(first, ORDER) }))
    }

    /// Page 0 or 1.
    fn page(&self, number: usize) -> &MessagePage {
        assert!(number < 2, "a place has two pages");
        // SAFETY: a block of two pages, ours as long as `self`, zeroed when it was made; a page of
        // messages is a page of atomics, so instances may write while we read.
        unsafe { &*self.0.ptr().cast::<MessagePage>().add(number) }
    }
}

/// Pages of places that instances of the supervisor before this one have, each as often as there
/// are instances that have it, and once more until all were adopted.
#[derive(Default)]
pub(super) struct AdoptedPages(Vec<Pages>);

impl AdoptedPages {
    /// The pages that begin with a frame; the first time they are `made`.
    pub(super) fn get(&mut self, first: Frame, made: impl FnOnce() -> Pages) -> Pages {
        if let Some(known) = self.0.iter().find(|pages| pages.0.first() == first) {
            return known.clone();
        }
        let pages = made();
        self.0
            .try_reserve(1)
            .expect("no memory to adopt the pages of peers");
        self.0.push(pages.clone());
        pages
    }
}

/// Use of a place.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    /// By nobody, as far as this instance knows.
    None,
    /// Offered to an instance that is being started.
    Offered,
    /// By a peer.
    Peer(Peer),
    /// By a peer that is gone; whether an epoch without it was written, which the instance has not
    /// answered yet.
    Left { is_told: bool },
}

struct Place {
    pages: Pages,
    /// Number of the page that this instance writes.
    own: usize,
    used: Use,
    /// Pages that the place had before it joined a peer's, until the instance has started.
    spare: Option<Pages>,
}

/// All places of an instance: none if it was created without names of peers.
#[derive(Default)]
pub(super) struct Places {
    /// [`MAX_PLACES`] at most.
    places: Vec<Place>,
    /// Peers have changed since the last epoch was written.
    is_stale: bool,
}

/// A place of an instance, for another one that is about to start and to be its peer.
pub struct Offer {
    place: u8,
    pages: Pages,
    /// Number of the page that the other one writes.
    page: usize,
}

impl Offer {
    /// Number of the place in the instance that offers it.
    #[must_use]
    pub fn place(&self) -> u8 {
        self.place
    }
}

/// Pages of a place, as something to look for in another instance.
#[derive(Clone, Copy, Debug)]
pub struct PeerPages(Frame);

/// A place's pages as they are mapped: first the one that the instance writes, then the peer's.
pub(super) type Mapped = [Frame; 2];

impl Places {
    /// Makes `count` places for peers and members of groups, [`MAX_PLACES`] at most, each with two
    /// zeroed pages; `None` without memory.
    pub(super) fn take(count: usize) -> Option<Self> {
        let mut places = Vec::new();
        places.try_reserve_exact(count.min(MAX_PLACES)).ok()?;
        for _ in 0..count.min(MAX_PLACES) {
            places.push(Place {
                pages: Pages(Arc::new(Block::zeroed(ORDER)?)),
                own: 0,
                used: Use::None,
                spare: None,
            });
        }
        Some(Self {
            places,
            is_stale: false,
        })
    }

    /// The places that an instance of the supervisor before this one has, by the first frames of
    /// their pages, which `pages` has, none of them in use; `second_pages` has a bit for each of
    /// which it writes the second page.
    ///
    /// # Panics
    /// Without memory for the list.
    pub(super) fn adopted(
        firsts: &[u64; MAX_PLACES],
        second_pages: u32,
        mut pages: impl FnMut(Frame) -> Pages,
    ) -> Self {
        let firsts = firsts.iter().take_while(|first| **first != NO_FRAME);
        let mut places = Vec::new();
        places
            .try_reserve_exact(firsts.clone().count())
            .expect("no memory to adopt places for peers");
        for (number, first) in firsts.enumerate() {
            places.push(Place {
                pages: pages(Frame(*first)),
                own: (second_pages >> number & 1) as usize,
                // Nobody gets it before more is known.
                used: Use::Left { is_told: false },
                spare: None,
            });
        }
        Self {
            places,
            is_stale: false,
        }
    }

    /// Whether the instance has a place for a peer, where it says.
    pub(super) fn can_have(&self, peer: &Peer) -> bool {
        let place = usize::from(peer.place);
        place < self.places.len() && places_for(peer.name).contains(&place) && peer.generation != 0
    }

    /// Takes in the peers that an instance of the supervisor before this one was told of last, by
    /// an epoch which it has taken or not: [can have](Self::can_have) all of them.
    pub(super) fn adopt(&mut self, peers: &[Peer], is_taken: bool) {
        for (number, place) in self.places.iter_mut().enumerate() {
            let mut those = peers
                .iter()
                .filter(|peer| usize::from(peer.place) == number);
            place.used = match (those.next(), is_taken) {
                (Some(peer), _) => Use::Peer(*peer),
                (None, true) => Use::None,
                // One may have left by that epoch.
                (None, false) => Use::Left { is_told: true },
            };
        }
    }

    /// The pages of all places, in order.
    pub(super) fn mapped(&self) -> impl Iterator<Item = Mapped> {
        self.places.iter().map(|place| {
            let first = place.pages.0.first();
            [place.own, 1 - place.own].map(|number| first.add(number as u64))
        })
    }

    fn peers(&self) -> impl Iterator<Item = (&Place, Peer)> {
        self.places.iter().filter_map(|place| match place.used {
            Use::Peer(peer) => Some((place, peer)),
            _ => None,
        })
    }

    /// Entries for the peers in a descriptor's dynamic part.
    pub(super) fn entries(&self) -> impl Iterator<Item = Entry> {
        self.peers()
            .map(|(_, peer)| live::peer(&peer, irq::PEER_VECTOR))
    }

    pub(super) fn has_peer(&self) -> bool {
        self.peers().next().is_some()
    }

    pub(super) fn is_stale(&self) -> bool {
        self.is_stale
    }

    /// Takes in that an epoch with these peers was written.
    pub(super) fn told(&mut self) {
        self.is_stale = false;
        for place in &mut self.places {
            if let Use::Left { is_told } = &mut place.used {
                *is_told = true;
            }
        }
    }

    /// Has the instance be told once more, by an epoch for which it is rung.
    pub(super) fn tell_again(&mut self) {
        self.is_stale = true;
    }

    /// Takes in that the instance has adopted the last epoch that was written.
    pub(super) fn answered(&mut self) {
        for place in &mut self.places {
            if place.used == (Use::Left { is_told: true }) {
                place.used = Use::None;
            }
        }
    }

    /// Takes in that the instance has started, with the places that it has joined.
    pub(super) fn started(&mut self) {
        self.places.iter_mut().for_each(|place| place.spare = None);
    }

    /// Leaves all peers that it has joined, because the instance has not started.
    pub(super) fn leave(&mut self) {
        for place in &mut self.places {
            if let Some(spare) = place.spare.take() {
                (place.pages, place.own, place.used) = (spare, 0, Use::None);
            }
        }
    }

    /// Places for a name, by number.
    fn for_name(&mut self, name: u8) -> impl Iterator<Item = (usize, &mut Place)> {
        let all = self.places.iter_mut().enumerate();
        all.filter(move |(number, _)| places_for(name).contains(number))
    }

    fn offer(&mut self, name: u8) -> Option<Offer> {
        let is_free = |place: &mut Place| {
            place.used == Use::None && Arc::get_mut(&mut place.pages.0).is_some()
        };
        let mut places = self.for_name(name);
        let (number, place) = places.find_map(|(n, place)| is_free(place).then_some((n, place)))?;
        for page in 0..2 {
            place.pages.page(page).reset();
        }
        place.used = Use::Offered;
        Some(Offer {
            place: number as u8,
            pages: place.pages.clone(),
            page: 1 - place.own,
        })
    }
}

impl Partition {
    fn places(&self) -> &Places {
        &self.shared().places
    }

    pub(super) fn places_mut(&mut self) -> &mut Places {
        &mut self.shared.as_mut().expect("there until the end").places
    }

    /// APIC id of the CPU that takes doorbells of peers: the first one, which never leaves.
    #[must_use]
    pub fn doorbell_apic_id(&self) -> Option<u32> {
        self.cpus.first().map(|cpu| cpu.apic_id)
    }

    /// Offers a place for a name of this instance's to one that is about to start; `None` if none
    /// is free, or this one does not run. [`Self::set_peer`] or [`Self::take_back_offer`] has to
    /// follow.
    pub fn offer(&mut self, name: u8) -> Option<Offer> {
        if !self.started || self.halting {
            return None;
        }
        self.places_mut().offer(name)
    }

    /// Takes back an offer that was not accepted.
    pub fn take_back_offer(&mut self, place: u8) {
        let places = &mut self.places_mut().places;
        if let Some(place) = places.get_mut(usize::from(place))
            && place.used == Use::Offered
        {
            place.used = Use::None;
        }
    }

    /// Has a peer, which has accepted the place that was offered to it. The instance is told by the
    /// next epoch.
    pub fn set_peer(&mut self, peer: Peer) {
        let places = self.places_mut();
        if let Some(place) = places.places.get_mut(usize::from(peer.place))
            && place.used == Use::Offered
        {
            place.used = Use::Peer(peer);
            places.is_stale = true;
        }
    }

    /// Accepts the place that a peer offers, before this instance starts; the peer's own place in
    /// `peer` does not count. False if there is no place for it.
    pub fn join(&mut self, offer: Offer, peer: Peer) -> bool {
        if self.started {
            return false;
        }
        let mut places = self.places_mut().for_name(peer.name);
        let Some((number, place)) = places.find(|(_, place)| place.used == Use::None) else {
            return false;
        };
        let place_number = number as u8;
        place.spare = Some(core::mem::replace(&mut place.pages, offer.pages));
        place.own = offer.page;
        place.used = Use::Peer(Peer {
            place: place_number,
            ..peer
        });
        true
    }

    /// Takes in that an instance is gone, which may have been a peer by several names.
    pub fn part_from(&mut self, instance: u32) {
        let places = self.places_mut();
        let is_it =
            |place: &&mut Place| matches!(place.used, Use::Peer(peer) if peer.instance == instance);
        for place in places.places.iter_mut().filter(is_it) {
            place.used = Use::Left { is_told: false };
            places.is_stale = true;
        }
    }

    /// The place that has the same pages as that of a peer, by which both are peers, with the peer
    /// that is there.
    #[must_use]
    pub fn place_of(&self, pages: &PeerPages) -> Option<(u8, Option<Peer>)> {
        let mut places = (0..).zip(&self.places().places);
        let (number, place) = places.find(|(_, place)| place.pages.0.first() == pages.0)?;
        let peer = match place.used {
            Use::Peer(peer) => Some(peer),
            _ => None,
        };
        Some((number, peer))
    }

    /// Peers of the instance by their number from `from` on, each with the pages of its place.
    #[must_use]
    pub fn next_peer(&self, from: u8) -> Option<(Peer, PeerPages)> {
        let mut peers = self.places().peers();
        let (place, peer) = peers.find(|(_, peer)| peer.place >= from)?;
        Some((peer, PeerPages(place.pages.0.first())))
    }

    /// Has a peer which has started with a place of this instance's when their supervisor ended,
    /// before this instance was told. Unless somebody is there.
    pub fn complete_peer(&mut self, peer: Peer) {
        let places = self.places_mut();
        if !places.can_have(&peer) {
            return;
        }
        let place = &mut places.places[usize::from(peer.place)];
        if !matches!(place.used, Use::Peer(_)) {
            place.used = Use::Peer(peer);
            places.is_stale = true;
        }
    }

    /// Takes in that the peer of a place is gone, or never was one.
    pub fn leave_peer(&mut self, place: u8) {
        let places = self.places_mut();
        if let Some(place) = places.places.get_mut(usize::from(place)) {
            place.used = Use::Left { is_told: false };
            places.is_stale = true;
        }
    }

    /// Peers of the instance, each with the counts of this one's kernel, which are its word.
    pub fn peers(&self) -> impl Iterator<Item = (Peer, &Counters)> {
        let peers = self.places().peers();
        peers.map(|(place, peer)| (peer, &place.pages.page(place.own).counters))
    }
}
