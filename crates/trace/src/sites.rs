//! Waits by the place in the source that waited: a table that only grows, filled without locks by
//! whoever had to wait.

use core::panic::Location;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// Places there is room for.
const PLACES: usize = 256;

struct Place {
    location: AtomicPtr<Location<'static>>,
    waits: AtomicU64,
    ns: AtomicU64,
}

/// The table.
pub struct Sites {
    places: [Place; PLACES],
}

/// A place in the source, and the waits there.
#[derive(Clone, Copy, Debug)]
pub struct Site {
    /// Number of the site, which stays the same.
    pub number: usize,
    /// Where it is; `None` for all those for which there was no room.
    pub location: Option<&'static Location<'static>>,
    /// Number of waits for locks taken there.
    pub waits: u64,
    /// Duration of these waits together, in nanoseconds.
    pub ns: u64,
}

impl Sites {
    /// An empty table.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            places: [const {
                Place {
                    location: AtomicPtr::new(ptr::null_mut()),
                    waits: AtomicU64::new(0),
                    ns: AtomicU64::new(0),
                }
            }; PLACES],
        }
    }

    /// The number of a place, which is given one if it has none. The last one stands for all that
    /// find the table full.
    pub fn number(&self, location: &'static Location<'static>) -> usize {
        let wanted = ptr::from_ref(location).cast_mut();
        let start = wanted.addr() / align_of::<Location<'_>>() % (PLACES - 1);
        (0..PLACES - 1)
            .map(|step| (start + step) % (PLACES - 1))
            .find(|number| {
                let place = &self.places[*number].location;
                let found = place.load(Ordering::Acquire);
                found == wanted
                    || found.is_null()
                        && match place.compare_exchange(
                            found,
                            wanted,
                            Ordering::AcqRel,
                            Ordering::Acquire,
                        ) {
                            Ok(_) => true,
                            Err(other) => other == wanted,
                        }
            })
            .unwrap_or(PLACES - 1)
    }

    /// Somebody waited at the place with that number, for so long.
    pub fn add(&self, number: usize, ns: u64) {
        let place = &self.places[number];
        place.waits.fetch_add(1, Ordering::Relaxed);
        place.ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// The places where somebody waited.
    pub fn all(&self) -> impl Iterator<Item = Site> {
        self.places
            .iter()
            .enumerate()
            .filter_map(|(number, place)| {
                let location = place.location.load(Ordering::Acquire);
                let (waits, ns) = (
                    place.waits.load(Ordering::Relaxed),
                    place.ns.load(Ordering::Relaxed),
                );
                // SAFETY: only `number` stores non-null pointers, and they come from references
                // that live for ever.
                let location = unsafe { location.as_ref() };
                (waits != 0).then_some(Site {
                    number,
                    location,
                    waits,
                    ns,
                })
            })
    }
}

impl Default for Sites {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::boxed::Box;
    use std::vec::Vec;

    use super::*;

    #[test]
    fn a_place_keeps_its_number_and_adds_up() {
        let sites = Sites::new();
        let (here, there) = (Location::caller(), Box::leak(Box::new(*Location::caller())));
        let number = sites.number(here);
        assert_ne!(number, sites.number(there));
        assert_eq!(number, sites.number(here));
        sites.add(number, 5);
        sites.add(number, 7);
        let all: Vec<_> = sites.all().collect();
        assert_eq!((all.len(), all[0].waits, all[0].ns), (1, 2, 12));
        assert_eq!(
            all[0].location.map(std::panic::Location::line),
            Some(here.line())
        );
    }

    #[test]
    fn a_full_table_counts_the_rest_together() {
        let sites = Sites::new();
        for _ in 0..PLACES + 10 {
            let place: &'static Location<'static> = Box::leak(Box::new(*Location::caller()));
            sites.add(sites.number(place), 1);
        }
        let all: Vec<_> = sites.all().collect();
        assert_eq!(all.len(), PLACES);
        assert_eq!(all.iter().map(|s| s.waits).sum::<u64>(), PLACES as u64 + 10);
        assert!(
            all.last()
                .is_some_and(|rest| rest.location.is_none() && rest.waits == 11)
        );
    }

    #[test]
    fn a_place_where_nobody_waited_is_not_listed() {
        let sites = Sites::default();
        let place = || -> &'static Location<'static> { Box::leak(Box::new(*Location::caller())) };
        let (first, second) = (sites.number(place()), sites.number(place()));
        assert!(sites.all().next().is_none());
        sites.add(second, 0);
        assert!(
            sites
                .all()
                .map(|site| (site.number, site.waits, site.ns))
                .eq([(second, 1, 0)])
        );
        assert!(
            first < PLACES - 1 && second < PLACES - 1,
            "the last one is for those that have no room"
        );
    }
}
