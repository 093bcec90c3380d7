//! Model checks (`RUSTFLAGS="--cfg loom"`).

use loom::sync::Arc;
use loom::thread;

use crate::{AREA_FRAMES, AREA_ORDER, AtomicU64, Frames, Stash, words_needed};

fn check(what: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.max_branches = 20_000;
    builder.check(what);
}

fn frames(count: u64) -> Frames<'static> {
    // Leaked in each run of the model: loom's atomics may not outlive it otherwise either.
    Frames::new(
        count,
        count,
        2,
        Vec::leak(
            (0..words_needed(count, 2))
                .map(|_| AtomicU64::new(0))
                .collect(),
        ),
    )
}

#[test]
fn the_last_frame_goes_to_one() {
    check(|| {
        let frames = Arc::new(frames(AREA_FRAMES));
        frames.add(70, 1, 0);
        let other = thread::spawn({
            let frames = frames.clone();
            move || frames.alloc_one(1)
        });
        let mine = frames.alloc_one(0);
        let theirs = other.join().unwrap();
        assert!(mine.is_some() != theirs.is_some(), "{mine:?} {theirs:?}");
        assert_eq!(frames.free_frames(), 0);
    });
}

#[test]
fn what_is_freed_is_found() {
    check(|| {
        let frames = Arc::new(frames(AREA_FRAMES));
        frames.add(0, 2, 0);
        let first = frames.alloc_one(0).unwrap();
        let other = thread::spawn({
            let frames = frames.clone();
            move || frames.free(1, first, 0)
        });
        // There is a frame at every moment.
        let mine = frames.alloc_one(0).unwrap();
        other.join().unwrap();
        let second = frames.alloc_one(1).unwrap();
        assert_ne!(mine, second);
        assert_eq!((frames.alloc_one(0), frames.free_frames()), (None, 0));
    });
}

#[test]
fn an_area_is_taken_whole_or_not() {
    check(|| {
        let frames = Arc::new(frames(AREA_FRAMES));
        frames.add(0, AREA_FRAMES, 0);
        let other = thread::spawn({
            let frames = frames.clone();
            move || frames.alloc(1, AREA_ORDER)
        });
        let mine = frames.alloc(0, 3);
        let theirs = other.join().unwrap();
        assert!(mine.is_some() != theirs.is_some(), "{mine:?} {theirs:?}");
        match (mine, theirs) {
            (Some(first), _) => frames.free(0, first, 3),
            (_, Some(first)) => frames.free(1, first, AREA_ORDER),
            _ => {}
        }
        assert_eq!(
            (frames.free_areas(), frames.free_frames()),
            (1, AREA_FRAMES)
        );
    });
}

#[test]
fn what_is_isolated_is_taken_out_or_was_handed_out_before() {
    check(|| {
        let frames = Arc::new(frames(2 * AREA_FRAMES));
        frames.add(AREA_FRAMES, 2, 0);
        // CPU 1 has the area reserved.
        let first = frames.alloc_one(1).unwrap();
        frames.free(1, first, 0);
        let other = thread::spawn({
            let frames = frames.clone();
            move || frames.alloc_one(1)
        });
        frames.isolate(AREA_FRAMES, true);
        let left = frames.remove(0, AREA_FRAMES, 2);
        assert_eq!(frames.alloc_one(0), None);
        let theirs = other.join().unwrap();
        match theirs {
            Some(theirs) => {
                assert!(!left, "{theirs} has left");
                frames.free(1, theirs, 0);
                assert!(frames.alloc_one(1).is_none() && frames.remove(0, AREA_FRAMES, 2));
            }
            // Both may have seen the other at it.
            None => assert!(left || frames.remove(0, AREA_FRAMES, 2)),
        }
        assert_eq!(frames.free_frames(), 0);
    });
}

#[test]
fn a_stash_loses_nothing() {
    check(|| {
        let stash = Arc::new(Stash::<2>::new());
        assert!(stash.push(1));
        let other = thread::spawn({
            let stash = stash.clone();
            move || (stash.push(2), stash.pop())
        });
        let (put, mine) = (stash.push(3), stash.pop());
        let (other_put, theirs) = other.join().unwrap();
        let mut out: Vec<usize> = mine.into_iter().chain(theirs).collect();
        out.extend(stash.drain());
        out.sort_unstable();
        let mut all: Vec<usize> = [(1, true), (2, other_put), (3, put)]
            .iter()
            .filter(|n| n.1)
            .map(|n| n.0)
            .collect();
        all.sort_unstable();
        assert_eq!(out, all);
    });
}
