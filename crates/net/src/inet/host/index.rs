//! Objects found by a hash without a lock: open addressing over places that are read under RCU.
//!
//! Readers take no lock and write nothing but the count of what they find. Who changes an index
//! holds the lock of its owner, which is what a [`Writer`] stands for.

use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::errno::Errno;
use fs::Result;
use task::RcuArc;
use task::sync::{AtomicU32, Ordering};

/// Marks of places: one that was never used, which ends a search; one whose object has gone, which
/// does not. The mark of any other is its object's.
const UNUSED: u32 = 0;
const GONE: u32 = 1;
/// Bits of a mark that tell the object's place.
const SHIFT: u32 = 2;
/// The least number of places there are.
const LEAST: usize = 8;

/// Objects by their hashes, for those who look.
pub(super) struct Index<T> {
    places: RcuArc<Places<T>>,
}

/// The places of an [`Index`], whose number is a power of two. An object stays where it is for as
/// long as these are in use.
struct Places<T> {
    marks: Vec<AtomicU32>,
    objects: Vec<RcuArc<T>>,
}

/// The counts of who changes an [`Index`].
#[derive(Default)]
pub(super) struct Writer {
    /// Objects that there are.
    live: usize,
    /// Places that are not [`UNUSED`].
    used: usize,
}

/// The mark of an object with a hash.
fn mark_of(hash: u64) -> u32 {
    (hash as u32) << SHIFT | GONE << 1
}

impl<T: Send + Sync> Places<T> {
    fn new(count: usize) -> Result<Self> {
        let mut places = Self {
            marks: fallible::with_capacity(count).map_err(|_| Errno::ENOMEM)?,
            objects: fallible::with_capacity(count).map_err(|_| Errno::ENOMEM)?,
        };
        places.marks.resize_with(count, || AtomicU32::new(UNUSED));
        places.objects.resize_with(count, RcuArc::empty);
        Ok(places)
    }

    /// The places where an object with a mark may be, in the order in which they are tried.
    fn probe(&self, mark: u32) -> impl Iterator<Item = usize> {
        let count = self.marks.len();
        let first = (mark >> SHIFT) as usize;
        (0..count).map(move |step| (first + step) % count)
    }

    /// Puts an object into a place that is free. Returns whether that was unused.
    fn put(&self, mark: u32, object: Arc<T>) -> bool {
        for at in self.probe(mark) {
            let known = self.marks[at].load(Ordering::Relaxed);
            if known <= GONE {
                // A reader that sees the mark sees the object.
                self.objects[at].swap(Some(object));
                self.marks[at].store(mark, Ordering::Release);
                return known == UNUSED;
            }
        }
        // Unreachable: an eighth of all places is unused.
        false
    }
}

impl<T: Send + Sync> Index<T> {
    /// An empty index.
    pub(super) const fn new() -> Self {
        Self {
            places: RcuArc::empty(),
        }
    }

    /// The object with a hash that `is_it` knows. One that is added or taken out meanwhile may be
    /// found or not.
    pub(super) fn find(&self, hash: u64, is_it: impl Fn(&T) -> bool) -> Option<Arc<T>> {
        let mark = mark_of(hash);
        let places = self.places.load()?;
        for at in places.probe(mark) {
            match places.marks[at].load(Ordering::Acquire) {
                UNUSED => break,
                known if known == mark => {
                    // Nothing: it has gone since; another: the place was taken again.
                    if let Some(object) = places.objects[at].load()
                        && is_it(&object)
                    {
                        return Some(object);
                    }
                }
                _ => {}
            }
        }
        None
    }

    /// Adds an object, which is not there.
    ///
    /// # Errors
    /// `ENOMEM`; nothing has changed then.
    pub(super) fn insert(&self, writer: &mut Writer, hash: u64, object: Arc<T>) -> Result<()> {
        let mut places = self.places.load();
        let room = places.as_ref().map_or(0, |places| places.marks.len());
        if (writer.used + 1) * 8 > room * 7 {
            places = Some(self.rebuild(writer, writer.live + 1)?);
        }
        if let Some(places) = places {
            writer.used += usize::from(places.put(mark_of(hash), object));
            writer.live += 1;
        }
        Ok(())
    }

    /// Takes an object out.
    pub(super) fn remove(&self, writer: &mut Writer, hash: u64, object: &T) {
        let mark = mark_of(hash);
        let Some(places) = self.places.load() else {
            return;
        };
        let is_it = |at: &usize| {
            places.marks[*at].load(Ordering::Relaxed) == mark
                && places.objects[*at]
                    .load()
                    .is_some_and(|known| core::ptr::eq(&*known, object))
        };
        let Some(at) = places.probe(mark).find(is_it) else {
            return;
        };
        places.marks[at].store(GONE, Ordering::Release);
        places.objects[at].swap(None);
        writer.live -= 1;
        if writer.live == 0 {
            writer.used = 0;
            if places.marks.len() > LEAST {
                // What a flood has taken is given back.
                self.places.swap(None);
                return;
            }
            // There is nothing that a search could miss.
            for mark in &places.marks {
                mark.store(UNUSED, Ordering::Release);
            }
        } else if places.marks.len() > LEAST && writer.live * 8 < places.marks.len() {
            // Without memory it stays as large as it is.
            let _ = self.rebuild(writer, writer.live);
        }
    }

    /// Moves all to new places, of which no more than half are taken by so many.
    fn rebuild(&self, writer: &mut Writer, count: usize) -> Result<Arc<Places<T>>> {
        let new = Places::new((count * 2).next_power_of_two().max(LEAST))?;
        let mut used = 0;
        if let Some(old) = self.places.load() {
            for (mark, object) in old.marks.iter().zip(&old.objects) {
                let mark = mark.load(Ordering::Relaxed);
                if mark > GONE
                    && let Some(object) = object.load()
                {
                    used += usize::from(new.put(mark, object));
                }
            }
        }
        let new = Arc::new(new);
        writer.used = used;
        // Who still looks at the old places keeps them, and finds what was there.
        self.places.swap(Some(new.clone()));
        Ok(new)
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeMap;

    use proptest::prelude::*;
    use task::explore::{Model, spawn};

    use super::*;

    type Named = (u64, u32);

    fn find(index: &Index<Named>, name: Named) -> Option<Arc<Named>> {
        index.find(name.0, |known| *known == name)
    }

    proptest! {
            #[test]
            fn finds_what_was_put_in(
                // Few hashes, so that many objects have the same one, and neighbours.
                steps in proptest::collection::vec((0..20u64, 0..6u32, any::<bool>()), 1..600),
            ) {
                let (index, mut writer) = (Index::new(), Writer::default());
                let mut model = BTreeMap::new();
                for (hash, number, comes) in steps {
                    let name = (hash, number);
                    match (comes, model.remove(&name)) {
                        (true, None) => {
                            let object = Arc::new(name);
                            index.insert(&mut writer, hash, object.clone()).unwrap();
                            model.insert(name, object);
                        }
                        (true, Some(object)) => drop(model.insert(name, object)),
                        (false, Some(object)) => index.remove(&mut writer, hash, &object),
                        (false, None) => index.remove(&mut writer, hash, &name),
                    }
                    prop_assert_eq!(writer.live, model.len());
                }
                for hash in 0..20 {
                    for number in 0..6 {
                        let name = (hash, number);
    let found = find(&index, name);
                        prop_assert_eq!(found.is_some(), model.contains_key(&name));
                    }
                }
                let places = index.places.load();
                let room = places.as_ref().map_or(0, |places| places.marks.len());
                prop_assert!(room <= LEAST.max(model.len() * 8), "{} places", room);
                for object in model.values() {
                    index.remove(&mut writer, object.0, object);
                }
                let left = index.places.load().map_or(0, |places| places.marks.len());
            prop_assert!(left <= LEAST, "it gives back all but {} places", left);
            prop_assert_eq!((writer.live, writer.used), (0, 0));
                drop(places);
                prop_assert!(model.values().all(|object| Arc::strong_count(object) == 1));
            }
        }

    #[test]
    fn a_search_costs_the_same_among_many() {
        let (index, mut writer) = (Index::new(), Writer::default());
        let hash = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        let all: Vec<_> = (0..100_000).map(|n| Arc::new((hash(n), 0))).collect();
        for object in &all {
            index.insert(&mut writer, object.0, object.clone()).unwrap();
        }
        let places = index.places.load().unwrap();
        let steps_to = |object: &Arc<Named>| {
            let is_it = |at: usize| {
                let known: Option<Arc<Named>> = places.objects[at].load();
                known.is_some_and(|known| Arc::ptr_eq(&known, object))
            };
            1 + places.probe(mark_of(object.0)).position(is_it).unwrap()
        };
        let steps: usize = all.iter().map(steps_to).sum();
        assert!(steps < 3 * all.len(), "{steps} steps");
    }

    /// A reader meets each step of a writer that adds objects, moves all to new places, and takes
    /// some out.
    #[test]
    fn what_stays_is_found_meanwhile() {
        Model::new().preemptions(2).check(|| {
            let index = Arc::new(Index::new());
            let mut writer = Writer::default();
            // All in a row, the first behind one that goes.
            let (goes, stays) = ((5, 0), (5, 1));
            let object = Arc::new(goes);
            index.insert(&mut writer, 5, object.clone()).unwrap();
            index.insert(&mut writer, 5, Arc::new(stays)).unwrap();
            for number in 2..6 {
                index.insert(&mut writer, 5, Arc::new((5, number))).unwrap();
            }
            let readers = index.clone();
            let reader = spawn("reader", move || {
                assert_eq!(find(&readers, stays).as_deref(), Some(&stays));
                let comes = find(&readers, (5, 9));
                assert!(comes.is_none_or(|comes| *comes == (5, 9)));
                assert_eq!(find(&readers, (5, 77)), None);
            });
            index.remove(&mut writer, 5, &object);
            // The place of the one that has gone, then the last one, then new places.
            for number in [9, 10, 11] {
                index.insert(&mut writer, 5, Arc::new((5, number))).unwrap();
            }
            assert_eq!(find(&index, goes), None);
            assert_eq!(find(&index, (5, 11)).as_deref(), Some(&(5, 11)));
            reader.join();
        });
    }
}
