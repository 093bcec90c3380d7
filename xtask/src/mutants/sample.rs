//! Sample of all possible changes: chosen by a seed, evenly over the kinds of changes of each
//! crate.

use std::collections::BTreeMap;

use super::operators::Operator;
use super::places::Place;

/// SplitMix64: good enough to choose by, and the same everywhere.
pub struct Random(u64);

impl Random {
    /// Numbers that follow from the seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next one, below `limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ z >> 31) % limit.max(1) as u64) as usize
    }
}

/// Takes `count` of `places` that can be built into one program, in the order in which they count.
/// Each crate has a share as large as the square root of what could be changed in it, so that small
/// ones are seen, too; in a crate, the operators take turns.
pub fn choose(places: Vec<Place>, count: usize, seed: u64) -> Vec<Place> {
    let mut random = Random::new(seed);
    let mut crates: BTreeMap<String, BTreeMap<Operator, Vec<Place>>> = BTreeMap::new();
    for place in places {
        crates
            .entry(place.package.clone())
            .or_default()
            .entry(place.operator)
            .or_default()
            .push(place);
    }
    let mut queues: Vec<(f64, Vec<Place>)> = crates
        .into_values()
        .map(|operators| {
            let share = (operators.values().map(Vec::len).sum::<usize>() as f64).sqrt();
            (
                share,
                in_turn(operators.into_values().collect(), &mut random),
            )
        })
        .collect();
    let mut chosen: Vec<Place> = Vec::new();
    // Whose queue has had least of its share comes next.
    let mut taken = vec![0.0; queues.len()];
    while chosen.len() < count {
        let waiting = (0..queues.len()).filter(|index| !queues[*index].1.is_empty());
        let Some(next) = waiting
            .min_by(|a, b| (taken[*a] / queues[*a].0).total_cmp(&(taken[*b] / queues[*b].0)))
        else {
            break;
        };
        let Some(place) = queues[next].1.pop() else {
            break;
        };
        if chosen.iter().all(|other| place.goes_with(other)) {
            taken[next] += 1.0;
            chosen.push(place);
        }
    }
    chosen
}

/// The places of several kinds, each kind shuffled, the kinds taking turns; to be taken from the
/// end.
fn in_turn(mut kinds: Vec<Vec<Place>>, random: &mut Random) -> Vec<Place> {
    for kind in &mut kinds {
        for last in (1..kind.len()).rev() {
            kind.swap(last, random.below(last + 1));
        }
    }
    let mut order = Vec::new();
    while !kinds.is_empty() {
        for last in (1..kinds.len()).rev() {
            kinds.swap(last, random.below(last + 1));
        }
        order.extend(kinds.iter_mut().filter_map(Vec::pop));
        kinds.retain(|kind| !kind.is_empty());
    }
    order.reverse();
    order
}
