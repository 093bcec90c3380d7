//! Deadlines of many things with small numbers, of which the earliest is found at once: a binary
//! heap that knows where each number stands. Setting one takes a time of the heap's depth.

use alloc::vec::Vec;

use abi::errno::Errno;
use fs::Result;
use ip::Nanos;

/// The place of a number that has no deadline.
const NOWHERE: u32 = u32::MAX;

/// Deadlines by number.
#[derive(Default)]
pub(super) struct Deadlines {
    /// Deadlines with their numbers: none is earlier than that at half its place.
    heap: Vec<(Nanos, u32)>,
    /// Places in the heap, by number.
    places: Vec<u32>,
}

impl Deadlines {
    /// Makes room for deadlines of so many numbers, from 0 on.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub(super) fn make_room(&mut self, count: usize) -> Result<()> {
        let more = count.saturating_sub(self.places.len());
        self.places.try_reserve(more).map_err(|_| Errno::ENOMEM)?;
        let free = count.saturating_sub(self.heap.len());
        self.heap.try_reserve(free).map_err(|_| Errno::ENOMEM)?;
        self.places.resize(count.max(self.places.len()), NOWHERE);
        Ok(())
    }

    /// The earliest deadline, with its number.
    pub(super) fn first(&self) -> Option<(Nanos, u32)> {
        self.heap.first().copied()
    }

    /// Sets the deadline of a number for which there is room, or takes it away.
    pub(super) fn set(&mut self, number: u32, due: Option<Nanos>) {
        let Some(&place) = self.places.get(number as usize) else {
            return;
        };
        match (due, place) {
            (Some(due), NOWHERE) => {
                self.heap.push((due, number));
                self.rise(self.heap.len() - 1);
            }
            (Some(due), place) => {
                self.heap[place as usize].0 = due;
                self.settle(place as usize);
            }
            (None, NOWHERE) => {}
            (None, place) => {
                self.heap.swap_remove(place as usize);
                self.places[number as usize] = NOWHERE;
                if (place as usize) < self.heap.len() {
                    self.settle(place as usize);
                }
            }
        }
    }

    /// Moves what stands at a place to where it belongs.
    fn settle(&mut self, place: usize) {
        if self.rise(place) == place {
            self.sink(place);
        }
    }

    fn rise(&mut self, mut place: usize) -> usize {
        while place > 0 && self.heap[place].0 < self.heap[(place - 1) / 2].0 {
            self.heap.swap(place, (place - 1) / 2);
            self.note(place);
            place = (place - 1) / 2;
        }
        self.note(place);
        place
    }

    fn sink(&mut self, mut place: usize) {
        loop {
            let below = 2 * place + 1;
            let children = below..(below + 2).min(self.heap.len());
            let Some(least) = children.min_by_key(|child| self.heap[*child].0) else {
                break;
            };
            if self.heap[place].0 <= self.heap[least].0 {
                break;
            }
            self.heap.swap(place, least);
            self.note(place);
            place = least;
        }
        self.note(place);
    }

    /// Notes where the number at a place stands.
    fn note(&mut self, place: usize) {
        let (_, number) = self.heap[place];
        self.places[number as usize] = place as u32;
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_earliest_is_first(
            steps in proptest::collection::vec((0..12u32, proptest::option::of(0..50u64)), 1..200),
        ) {
            let mut deadlines = Deadlines::default();
            let mut model = BTreeMap::new();
            deadlines.make_room(6).unwrap();
            for (at, (number, due)) in steps.into_iter().enumerate() {
                if at == 20 {
                    deadlines.make_room(12).unwrap();
                }
                let has_room = number < 6 || at >= 20;
                deadlines.set(number, due);
                match due {
                    Some(due) if has_room => drop(model.insert(number, due)),
                    _ => drop(model.remove(&number)),
                }
                let first = deadlines.first();
                prop_assert_eq!(first.map(|first| first.0), model.values().min().copied());
                if let Some((due, number)) = first {
                    prop_assert_eq!(model.get(&number), Some(&due));
                }
                prop_assert_eq!(deadlines.heap.len(), model.len());
            }
        }
    }

    #[test]
    fn refused_memory_leaves_it_as_it_was() {
        let mut deadlines = Deadlines::default();
        deadlines.make_room(2).unwrap();
        deadlines.set(1, Some(5));
        assert_eq!(deadlines.first(), Some((5, 1)));
        deadlines.set(7, Some(1));
        assert_eq!(deadlines.first(), Some((5, 1)), "there is no room for 7");
    }
}
