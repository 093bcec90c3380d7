//! Threads that change one address space at once, each checked against a model of its own part.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;

use crate::{
    AccessKind, AddressSpace, Advice, FaultError, MapRequest, PAGE_SIZE, Placement, Prot,
    RemapOptions, VmaFlags,
};

const RW: Prot = Prot::READ.union(Prot::WRITE);
/// Pages of a thread's part.
const PAGES: usize = 48;

#[derive(Clone, Debug)]
enum Op {
    Map {
        at: usize,
        pages: usize,
        fixed: bool,
    },
    Unmap {
        at: usize,
        pages: usize,
    },
    Protect {
        at: usize,
        pages: usize,
        prot: Prot,
    },
    Drop {
        at: usize,
        pages: usize,
    },
    Move {
        at: usize,
        pages: usize,
        to: usize,
    },
    Write {
        at: usize,
        value: u8,
    },
    Read {
        at: usize,
    },
    Collapse {
        at: usize,
        pages: usize,
    },
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let span = || (0..PAGES, 1..=16usize).prop_map(|(at, pages)| (at, pages.min(PAGES - at)));
    let prot = prop_oneof![Just(Prot::empty()), Just(Prot::READ), Just(RW)];
    let op = prop_oneof![
        2 => (span(), any::<bool>()).prop_map(|((at, pages), fixed)| Op::Map { at, pages, fixed }),
        1 => span().prop_map(|(at, pages)| Op::Unmap { at, pages }),
        2 => (span(), prot).prop_map(|((at, pages), prot)| Op::Protect { at, pages, prot }),
        1 => span().prop_map(|(at, pages)| Op::Drop { at, pages }),
        1 => (span(), 0..PAGES).prop_map(|((at, pages), to)| Op::Move { at, pages, to }),
        4 => (0..PAGES, any::<u8>()).prop_map(|(at, value)| Op::Write { at, value }),
        4 => (0..PAGES).prop_map(|at| Op::Read { at }),
        1 => span().prop_map(|(at, pages)| Op::Collapse { at, pages }),
    ];
    prop::collection::vec(op, 1..60)
}

/// Pages of the model: nothing, or a protection and the first byte.
type Model = [Option<(Prot, u8)>; PAGES];

/// Does one operation in the part that begins at `base`, and compares.
fn step(space: &AddressSpace, base: usize, flags: VmaFlags, model: &mut Model, op: &Op) {
    let va = |page: usize| base + page * PAGE_SIZE;
    match *op {
        Op::Map { at, pages, fixed } => {
            let place = if fixed {
                Placement::Fixed(va(at))
            } else {
                Placement::FixedIfFree(va(at))
            };
            let request = MapRequest {
                placement: place,
                len: pages * PAGE_SIZE,
                prot: RW,
                flags,
                object: None,
            };
            let free = model[at..at + pages].iter().all(Option::is_none);
            assert_eq!(space.mmap(request).is_ok(), fixed || free);
            if fixed || free {
                model[at..at + pages].fill(Some((RW, 0)));
            }
        }
        Op::Unmap { at, pages } => {
            space.munmap(va(at), pages * PAGE_SIZE).unwrap();
            model[at..at + pages].fill(None);
        }
        Op::Protect { at, pages, prot } => {
            let done = space.mprotect(va(at), pages * PAGE_SIZE, prot).is_ok();
            let before_hole = model[at..at + pages]
                .iter()
                .take_while(|page| page.is_some())
                .count();
            assert_eq!(done, before_hole == pages);
            model[at..at + before_hole]
                .iter_mut()
                .flatten()
                .for_each(|page| page.0 = prot);
        }
        Op::Drop { at, pages } => {
            let done = space
                .madvise(
                    va(at),
                    pages * PAGE_SIZE,
                    Advice::DontNeed(crate::DontNeedScope::Unlocked),
                )
                .is_ok();
            assert_eq!(done, model[at..at + pages].iter().all(Option::is_some));
            model[at..at + pages]
                .iter_mut()
                .flatten()
                .for_each(|page| page.1 = 0);
        }
        Op::Move { at, pages, to } => {
            let apart = to + pages <= at || at + pages <= to;
            let alike = model[at..at + pages]
                .windows(2)
                .all(|w| w[0].map(|p| p.0) == w[1].map(|p| p.0))
                && model[at].is_some();
            if !apart || !alike || to + pages > PAGES {
                return;
            }
            let how = RemapOptions {
                may_move: true,
                fixed_address: Some(va(to)),
                ..RemapOptions::default()
            };
            assert_eq!(
                space.mremap(va(at), pages * PAGE_SIZE, pages * PAGE_SIZE, how),
                Ok(va(to))
            );
            let moved: Vec<_> = model[at..at + pages].to_vec();
            model[at..at + pages].fill(None);
            model[to..to + pages].copy_from_slice(&moved);
        }
        Op::Write { at, value } => {
            let allowed = model[at].is_some_and(|(prot, _)| prot.contains(Prot::WRITE));
            assert_eq!(space.write(va(at), &[value]).is_ok(), allowed);
            if let (true, Some(page)) = (allowed, &mut model[at]) {
                page.1 = value;
            }
        }
        Op::Read { at } => {
            let mut byte = [0];
            let got = space.read(va(at), &mut byte).map(|()| byte[0]).ok();
            assert_eq!(
                got,
                model[at].and_then(|(prot, byte)| (!prot.is_empty()).then_some(byte))
            );
            let error = space.handle_fault(va(at), AccessKind::Write).err();
            let expected = match model[at] {
                None => Some(FaultError::NotMapped),
                Some((prot, _)) if !prot.contains(Prot::WRITE) => Some(FaultError::AccessDenied),
                Some(_) => None,
            };
            assert_eq!(error, expected);
        }
        // Whether it can or not, nothing is seen of it.
        Op::Collapse { at, pages } => drop(space.collapse(va(at), pages * PAGE_SIZE)),
    }
}

fn check(space: &AddressSpace, base: usize, model: &Model) {
    for (page, expected) in model.iter().enumerate() {
        let mut byte = [0];
        let got = space
            .read(base + page * PAGE_SIZE, &mut byte)
            .map(|()| byte[0])
            .ok();
        assert_eq!(
            got,
            expected.and_then(|(prot, byte)| (!prot.is_empty()).then_some(byte)),
            "page {page}"
        );
    }
    let mapped = model.iter().flatten().count() * PAGE_SIZE;
    // Areas of neighbours may have become one.
    let end = base + PAGES * PAGE_SIZE;
    let own = |r: core::ops::Range<usize>| r.end.clamp(base, end) - r.start.clamp(base, end);
    assert_eq!(
        space
            .vma_infos()
            .into_iter()
            .map(|area| own(area.range))
            .sum::<usize>(),
        mapped
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    /// Parts of one space that touch, one per thread, while another thread forks and looks at the
    /// children.
    #[test]
    fn threads_do_not_disturb_each_other(lists in prop::collection::vec(ops(), 4), large in any::<bool>()) {
        let flags = if large { VmaFlags::LARGE } else { VmaFlags::empty() };
        let space = AddressSpace::new(1 << 40).unwrap();
        let over = AtomicBool::new(false);
        let base = |thread: usize| 0x2000_0000 + thread * PAGES * PAGE_SIZE;
        std::thread::scope(|scope| {
            let forks = scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let child = space.fork().unwrap();
                    for area in child.vma_infos() {
                        // Whatever a child has, it can use, and its parent does not see.
                        if area.prot.contains(Prot::WRITE) {
                            child.write(area.range.start, b"child").unwrap();
                        }
                    }
                }
            });
            let threads: Vec<_> = lists.iter().enumerate().map(|(thread, ops)| {
                let space = &space;
                scope.spawn(move || {
                    let mut model = [None; PAGES];
                    for op in ops.iter().cycle().take(ops.len() * 4) {
                        step(space, base(thread), flags, &mut model, op);
                    }
                    model
                })
            }).collect();
            let models: Vec<_> = threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
            // Before a thread's failure is passed on: the scope waits for whoever forks.
            over.store(true, Ordering::Relaxed);
            forks.join().unwrap();
            for (thread, model) in models.into_iter().enumerate() {
                check(&space, base(thread), &model.unwrap());
            }
        });
        space.munmap(base(0), 4 * PAGES * PAGE_SIZE).unwrap();
        prop_assert_eq!(crate::SpaceStats { peak: 0, ..space.stats() }, crate::SpaceStats::default());
    }
}

/// Threads fault in the same pages, in each other's way: every write is there afterwards.
#[test]
fn faults_on_the_same_pages() {
    for round in 0..30 {
        let space = AddressSpace::new(1 << 40).unwrap();
        let place = Placement::Fixed(0x2000_0000);
        let flags = if round % 2 == 0 {
            VmaFlags::LARGE
        } else {
            VmaFlags::empty()
        };
        let request = MapRequest {
            placement: place,
            len: PAGES * PAGE_SIZE,
            prot: RW,
            flags,
            object: None,
        };
        let at = space.mmap(request).unwrap();
        let family: Vec<Arc<AddressSpace>> =
            (0..round % 3).map(|_| space.fork().unwrap()).collect();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let space = &space;
                scope.spawn(move || {
                    for page in 0..PAGES {
                        if (page + thread) % 2 == 0 {
                            space
                                .handle_fault(at + page * PAGE_SIZE, AccessKind::Read)
                                .unwrap();
                        }
                        space
                            .write(at + page * PAGE_SIZE + thread, &[thread as u8 + 1])
                            .unwrap();
                    }
                });
            }
            for child in &family {
                scope.spawn(move || child.write(at, &[9; PAGES * PAGE_SIZE]).unwrap());
            }
        });
        for page in 0..PAGES {
            let mut bytes = [0; 5];
            space.read(at + page * PAGE_SIZE, &mut bytes).unwrap();
            assert_eq!(bytes, [1, 2, 3, 4, 0]);
        }
        assert_eq!(space.stats().resident, PAGES * PAGE_SIZE);
    }
}

/// A mapping that is replaced again and again is never missing for those who read it.
#[test]
fn a_replaced_mapping_is_always_there() {
    let space = AddressSpace::new(1 << 40).unwrap();
    let replace = || {
        let place = Placement::Fixed(0x2000_0000);
        space
            .mmap(MapRequest {
                placement: place,
                len: 4 * PAGE_SIZE,
                prot: RW,
                flags: VmaFlags::empty(),
                object: None,
            })
            .unwrap()
    };
    let at = replace();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            for n in 0..4000 {
                space
                    .handle_fault(
                        at + n % 4 * PAGE_SIZE,
                        if n % 3 == 0 {
                            AccessKind::Write
                        } else {
                            AccessKind::Read
                        },
                    )
                    .unwrap();
            }
        });
        while !reader.is_finished() {
            replace();
            space.mprotect(at + PAGE_SIZE, PAGE_SIZE, RW).unwrap();
            space
                .madvise(
                    at,
                    2 * PAGE_SIZE,
                    Advice::DontNeed(crate::DontNeedScope::Unlocked),
                )
                .unwrap();
        }
    });
}
