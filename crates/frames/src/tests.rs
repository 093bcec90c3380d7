use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;

use super::*;

const FRAMES: u64 = 5000;

fn frames(count: u64, cpus: usize) -> Frames<'static> {
    grown(count, count, cpus)
}

/// An allocator whose first memory is `0..first`.
fn grown(count: u64, first: u64, cpus: usize) -> Frames<'static> {
    Frames::new(
        count,
        first,
        cpus,
        Vec::leak(
            (0..words_needed(count, cpus))
                .map(|_| AtomicU64::new(0))
                .collect(),
        ),
    )
}

#[derive(Clone, Debug)]
enum Step {
    Alloc(usize, u8),
    Free(usize, prop::sample::Index),
    Remove(u64, u64),
    Isolate(u64, bool),
    Movable(usize),
    Area(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0usize..3, 0u8..12).prop_map(|(cpu, order)| Step::Alloc(cpu, order)),
        4 => (0usize..3, 0u8..4).prop_map(|(cpu, order)| Step::Alloc(cpu, order)),
        8 => (0usize..3, any::<prop::sample::Index>()).prop_map(|(cpu, index)| Step::Free(cpu, index)),
        1 => (0..FRAMES, 1u64..1500).prop_map(|(f, n)| Step::Remove(f, n)),
        1 => (0..FRAMES / AREA_FRAMES, any::<bool>()).prop_map(|(area, on)| Step::Isolate(area, on)),
        4 => (0usize..3).prop_map(Step::Movable),
        1 => (0usize..3).prop_map(Step::Area),
    ]
}

/// Model of free frames, one by one, and of isolated areas.
struct Model(Vec<bool>, [bool; (FRAMES / AREA_FRAMES) as usize + 1]);

impl Model {
    fn all_free(&self, first: u64, count: u64) -> bool {
        (first..first + count).all(|f| self.0.get(f as usize) == Some(&true))
    }
    fn is_isolated(&self, frame: u64) -> bool {
        self.1[(frame / AREA_FRAMES) as usize]
    }
    /// Whether a run may be handed out.
    fn offers(&self, first: u64, count: u64) -> bool {
        let mut areas = (first..first + count).step_by(AREA_FRAMES as usize);
        self.all_free(first, count) && !areas.any(|frame| self.is_isolated(frame))
    }
    /// Whether a frame of some range of areas may be handed out.
    fn has_any(&self, areas: Range<u64>) -> bool {
        (areas.start * AREA_FRAMES..FRAMES.min(areas.end * AREA_FRAMES)).any(|f| self.offers(f, 1))
    }
    fn set(&mut self, first: u64, count: u64, free: bool) {
        for f in first..first + count {
            assert_ne!(
                self.0[f as usize], free,
                "frame {f} handed out or freed twice"
            );
            self.0[f as usize] = free;
        }
    }
    fn free_areas(&self) -> u64 {
        (0..FRAMES / AREA_FRAMES)
            .filter(|area| self.offers(area * AREA_FRAMES, AREA_FRAMES))
            .count() as u64
    }
}

proptest! {
    #[test]
    fn behaves_as_a_set_of_frames(
        core in 1u64..12,
        holes in prop::collection::vec((0..FRAMES, 1u64..40), 0..6),
        steps in prop::collection::vec(step(), 1..300),
    ) {
        let areas = FRAMES.div_ceil(AREA_FRAMES);
        let core = core.min(areas);
        let frames = grown(FRAMES, core * AREA_FRAMES, 3);
        let mut model = Model(vec![false; FRAMES as usize], Default::default());
        frames.add(0, FRAMES, 0);
        model.set(0, FRAMES, true);
        for (first, count) in holes {
            let count = count.min(FRAMES - first);
            if model.all_free(first, count) {
                prop_assert!(frames.remove(0, first, count));
                model.set(first, count, false);
            }
        }
        let mut held: BTreeMap<u64, u8> = BTreeMap::new();
        for s in steps {
            match s {
                Step::Alloc(cpu, order) => {
                    let size = 1u64 << order;
                    let reserved = frames.cpu(cpu)[RESERVED].load(Ordering::Relaxed);
                    match if order == 0 { frames.alloc_one(cpu) } else { frames.alloc(cpu, order) } {
                        Some(first) => {
                            prop_assert_eq!(first % size, 0);
                            prop_assert!(frames.is_touched(first) && model.offers(first, size));
                            let of_first = (0..core * AREA_FRAMES).step_by(size as usize);
                            // Of what was added only what the CPU has begun with once.
                            prop_assert!(
                                first < core * AREA_FRAMES
                                    || reserved > core
                                    || order >= AREA_ORDER
                                    || !of_first.into_iter().any(|at| model.offers(at, size)),
                                "{first:#x} is of what was added, and could be of the first memory"
                            );
                            model.set(first, size, false);
                            held.insert(first, order);
                        }
                        // It finds what there is, wherever it is.
                        None => prop_assert!((0..FRAMES / size).all(|i| !model.offers(i * size, size))),
                    }
                }
                Step::Movable(cpu) => match frames.alloc_movable(cpu) {
                    Some(first) => {
                        prop_assert!(model.offers(first, 1));
                        prop_assert!(first >= core * AREA_FRAMES || !model.has_any(core..areas));
                        model.set(first, 1, false);
                        held.insert(first, 0);
                    }
                    None => prop_assert!(!model.has_any(0..areas)),
                },
                Step::Area(cpu) => {
                    // The hints do not know of what a CPU has reserved.
                    let reserved: Vec<u64> = (0..3)
                        .flat_map(|cpu| [RESERVED, MOVABLE].map(|whose| &frames.cpu(cpu)[whose]))
                        .map(|word| word.load(Ordering::Relaxed))
                        .collect();
                    let whole = |mut areas: Range<u64>| {
                        areas.any(|area| {
                            !reserved.contains(&(area + 1))
                                && model.offers(area * AREA_FRAMES, AREA_FRAMES)
                        })
                    };
                    match frames.alloc_area(cpu) {
                        Some(first) => {
                            prop_assert!(model.offers(first, AREA_FRAMES));
                            prop_assert!(first >= core * AREA_FRAMES || !whole(core..areas));
                            model.set(first, AREA_FRAMES, false);
                            held.insert(first, AREA_ORDER);
                        }
                        None => prop_assert!(!whole(0..areas)),
                    }
                }
                Step::Isolate(area, on) => {
                    frames.isolate(area * AREA_FRAMES, on);
                    model.1[area as usize] = on;
                }
                Step::Free(cpu, index) => if !held.is_empty() {
                    let first = *held.keys().nth(index.index(held.len())).unwrap();
                    let order = held.remove(&first).unwrap();
                    frames.free(cpu, first, order);
                    model.set(first, 1 << order, true);
                },
                Step::Remove(first, count) => {
                    let could = first + count <= FRAMES && model.all_free(first, count);
                    prop_assert_eq!(frames.remove(1, first, count), could);
                    if could {
                        frames.add(first, count, 0);
                        // What is added is not isolated.
                        for frame in first..first + count {
                            model.1[(frame / AREA_FRAMES) as usize] = false;
                        }
                    }
                }
            }
            prop_assert_eq!(frames.free_frames(), model.0.iter().filter(|free| **free).count() as u64);
            prop_assert_eq!(frames.free_areas(), model.free_areas());
            prop_assert_eq!(frames.free_frames_of(0), frames.free_frames());
            for area in 0..FRAMES / AREA_FRAMES {
                let of_area = area * AREA_FRAMES..(area + 1) * AREA_FRAMES;
                let free = of_area.clone().filter(|f| model.0[*f as usize]).count() as u64;
                prop_assert_eq!(frames.free_frames_in(of_area.start), free);
                prop_assert!(of_area.into_iter().all(|f| frames.is_free(f) == model.0[f as usize]));
            }
        }
    }
}

#[test]
fn threads_share_nothing_and_lose_nothing() {
    const THREADS: usize = 8;
    let frames = frames(8 * AREA_FRAMES, 4);
    frames.add(0, 8 * AREA_FRAMES, 0);
    let taken: Vec<AtomicBool> = (0..8 * AREA_FRAMES)
        .map(|_| AtomicBool::new(false))
        .collect();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (frames, taken) = (&frames, &taken);
            scope.spawn(move || {
                // Xorshift: the threads differ, each run is the same.
                let mut random = thread as u64 * 0x9e37_79b9 + 1;
                let mut held: Vec<(u64, u8)> = Vec::new();
                let mut next = || {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    random
                };
                let release = |cpu: usize, (first, order): (u64, u8)| {
                    for frame in first..first + (1 << order) {
                        assert!(taken[frame as usize].swap(false, Ordering::Relaxed));
                    }
                    frames.free(cpu, first, order);
                };
                for _ in 0..20_000 {
                    // CPUs are hints: two threads and sometimes more use each.
                    let cpu = (next() % 4) as usize;
                    let order = [0, 0, 0, 0, 0, 1, 3, 5, 6, 7, 8, 9, 10][(next() % 13) as usize];
                    if next() % 16 < 9 {
                        if let Some(first) = if order == 0 {
                            frames.alloc_one(cpu)
                        } else {
                            frames.alloc(cpu, order)
                        } {
                            for frame in first..first + (1 << order) {
                                assert!(
                                    !taken[frame as usize].swap(true, Ordering::Relaxed),
                                    "frame {frame} twice"
                                );
                            }
                            held.push((first, order));
                        }
                    } else if !held.is_empty() {
                        let index = (next() % held.len() as u64) as usize;
                        release(cpu, held.swap_remove(index));
                    }
                }
                for block in held {
                    release(thread % 4, block);
                }
            });
        }
    });
    assert_eq!(
        (frames.free_frames(), frames.free_areas()),
        (8 * AREA_FRAMES, 8)
    );
    // The hints are right: an area is found without the last pass, which only small blocks have.
    let areas: Vec<u64> = (0..8)
        .map(|_| frames.alloc(0, AREA_ORDER).unwrap())
        .collect();
    assert_eq!(areas.len(), 8);
}

#[test]
fn the_own_node_comes_first() {
    let frames = frames(8 * AREA_FRAMES, 2);
    frames.add(0, 4 * AREA_FRAMES, 0);
    frames.add(4 * AREA_FRAMES, 4 * AREA_FRAMES, 1);
    frames.set_node(1, 1);
    let node = |first: u64| first / (4 * AREA_FRAMES);
    for order in [0, 3, AREA_ORDER] {
        assert_eq!(node(frames.alloc(0, order).unwrap()), 0);
        assert_eq!(node(frames.alloc(1, order).unwrap()), 1);
    }
    assert_eq!(frames.free_frames_of(0), frames.free_frames_of(1));
    // And the other's memory is used when the own is gone.
    while frames.alloc(1, 0).is_some() {}
    assert_eq!(frames.free_frames(), 0);
}

#[test]
fn cpus_stay_in_areas_of_their_own() {
    let frames = frames(8 * AREA_FRAMES, 2);
    frames.add(0, 8 * AREA_FRAMES, 0);
    let areas: Vec<(u64, u64)> = (0..400)
        .map(|_| {
            (
                frames.alloc(0, 0).unwrap() / AREA_FRAMES,
                frames.alloc(1, 0).unwrap() / AREA_FRAMES,
            )
        })
        .collect();
    assert!(areas.iter().all(|pair| *pair == areas[0]) && areas[0].0 != areas[0].1);
    assert_eq!(frames.free_areas(), 6);
}

#[test]
fn untouched_memory_is_known() {
    let frames = frames(4 * AREA_FRAMES, 1);
    frames.add(0, 4 * AREA_FRAMES, 0);
    let block = frames.alloc_untouched(0, AREA_ORDER + 1).unwrap();
    // Nobody knows what it held before.
    assert!(frames.is_touched(block) && frames.is_touched(block + AREA_FRAMES));
    frames.set_touched(block, AREA_ORDER + 1, false);
    assert!(!frames.is_touched(block) && !frames.is_touched(block + AREA_FRAMES));
    frames.set_touched(block, AREA_ORDER + 1, true);
    assert!(frames.is_touched(block + AREA_FRAMES));
    frames.set_touched(block, AREA_ORDER + 1, false);
    // A block may come back in pieces.
    frames.free(0, block, AREA_ORDER);
    for first in (block + AREA_FRAMES..block + 2 * AREA_FRAMES).step_by(2) {
        frames.free(0, first, 1);
    }
    assert_eq!(frames.free_areas(), 4);
    let small = frames.alloc(0, 0).unwrap();
    assert!(frames.is_touched(small));
}

#[test]
fn an_area_is_taken_where_it_is_if_it_is_free_as_a_whole() {
    let frames = frames(3 * AREA_FRAMES, 1);
    frames.add(0, 3 * AREA_FRAMES, 0);
    frames.set_touched(AREA_FRAMES, AREA_ORDER, false);
    assert!(frames.alloc_untouched_at(0, AREA_FRAMES));
    assert!(!frames.is_touched(AREA_FRAMES));
    assert!(!frames.alloc_untouched_at(0, AREA_FRAMES));
    assert_eq!(frames.free_frames(), 2 * AREA_FRAMES);
    let others = [(); 2].map(|()| frames.alloc(0, AREA_ORDER).unwrap());
    assert!(!others.contains(&AREA_FRAMES));
    frames.free(0, AREA_FRAMES, AREA_ORDER);
    let small = frames.alloc(0, 0).unwrap();
    assert!(
        !frames.alloc_untouched_at(0, AREA_FRAMES),
        "{small} is not free"
    );
}

/// An area leaves when all of it is free, and comes back as if it were new.
#[test]
fn an_isolated_area_leaves_when_all_of_it_is_free() {
    let frames = grown(3 * AREA_FRAMES, AREA_FRAMES, 2);
    frames.add(0, 2 * AREA_FRAMES, 0);
    let taken = [(); 2].map(|()| frames.alloc_movable(0).unwrap());
    assert!(taken.iter().all(|first| *first >= AREA_FRAMES));
    frames.isolate(AREA_FRAMES, true);
    // The CPU has that area reserved, and gets nothing more of it.
    assert!(frames.alloc_movable(0).unwrap() < AREA_FRAMES);
    frames.free(0, taken[0], 0);
    assert!(!frames.remove(0, AREA_FRAMES, AREA_FRAMES));
    assert!(!frames.alloc_untouched_at(0, AREA_FRAMES));
    frames.free(1, taken[1], 0);
    assert!(!frames.alloc_untouched_at(0, AREA_FRAMES));
    assert!(frames.alloc_area(0).is_none() && frames.free_areas() == 0);
    assert!(frames.remove(0, AREA_FRAMES, AREA_FRAMES));
    assert_eq!(frames.free_frames(), AREA_FRAMES - 1);
    // Ending the isolation of what has left gives nobody anything.
    frames.isolate(AREA_FRAMES, false);
    assert!(frames.alloc_movable(0).unwrap() < AREA_FRAMES);
    // At first with some frames only, as when others hold tables.
    frames.add(AREA_FRAMES + 3, AREA_FRAMES - 3, 0);
    assert!(frames.alloc_movable(0).unwrap() >= AREA_FRAMES + 3);
    frames.end_reservation(0);
    assert_eq!(frames.free_frames_in(AREA_FRAMES), AREA_FRAMES - 4);
}

#[test]
fn areas_that_the_hints_know_are_counted_and_touched() {
    let frames = frames(3 * AREA_FRAMES, 2);
    frames.add(0, 3 * AREA_FRAMES, 0);
    for left in (0..3).rev() {
        let first = frames.alloc_area(left as usize % 2).unwrap();
        assert!(first.is_multiple_of(AREA_FRAMES) && frames.is_touched(first));
        assert_eq!(
            (frames.free_frames(), frames.free_areas()),
            (left * AREA_FRAMES, left)
        );
    }
    assert_eq!(frames.alloc_area(0), None);
}

#[test]
fn no_block_is_larger_than_the_largest() {
    let count = 2 << MAX_ORDER;
    let frames = frames(count, 1);
    frames.add(0, count, 0);
    assert_eq!(frames.alloc(0, MAX_ORDER + 1), None);
    assert_eq!(
        (frames.alloc(0, MAX_ORDER), frames.alloc(0, MAX_ORDER)),
        (Some(0), Some(1 << MAX_ORDER))
    );
    assert_eq!((frames.alloc(0, 0), frames.free_frames()), (None, 0));
}

#[test]
fn only_runs_within_the_frames_can_be_removed() {
    let frames = frames(100, 1);
    frames.add(0, 100, 0);
    for (first, count) in [
        (0, 101),
        (99, 2),
        (100, 1),
        (u64::MAX, 1),
        (1, u64::MAX),
        (5000, 1),
    ] {
        assert!(!frames.remove(0, first, count), "{first}, {count}");
        assert_eq!(frames.free_frames(), 100);
    }
    assert!(frames.remove(0, 0, 100));
    assert_eq!(
        (
            frames.free_frames(),
            frames.free_frames_of(0),
            frames.alloc(0, 0)
        ),
        (0, 0, None)
    );
}

#[test]
#[should_panic(expected = "freed twice")]
fn a_double_free_is_noticed() {
    let frames = frames(64, 1);
    frames.add(0, 64, 0);
    frames.free(0, 3, 0);
}

#[test]
#[should_panic(expected = "freed what is not there")]
fn a_frame_from_nowhere_is_noticed() {
    frames(64, 1).free(0, 64, 0);
}

#[test]
fn storage_is_small() {
    // 2 GiB in 4 KiB frames, 8 CPUs.
    assert!(words_needed(512 << 10, 8) * 8 < 74 << 10);
}
