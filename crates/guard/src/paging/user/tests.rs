//! Page tables, without a processor.

use core::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::mem::host;

const RW: Perm = Perm {
    write: true,
    exec: false,
};
const RX: Perm = Perm {
    write: false,
    exec: true,
};
const VA: usize = 0x7fff_0000_0000;

fn page(mark: u8) -> Page {
    host::set_up();
    let page = Page::zeroed().unwrap();
    page.write(0, &[mark]);
    page
}

fn mark(page: &Page) -> u8 {
    let mut byte = [0];
    page.read(0, &mut byte);
    byte[0]
}

fn single(gone: Unmapped) -> Page {
    match gone {
        Unmapped::Page(page) => page,
        Unmapped::Large(_) => panic!("a large page"),
    }
}

fn empty() -> PageTable {
    host::set_up();
    PageTable::new().unwrap()
}

/// Rounds: frames would run out if one were lost in each.
#[test]
fn without_memory_there_is_no_table_and_nothing_is_lost() {
    host::set_up();
    host::without_heap(|| {
        for _ in 0..2 * host::FRAMES {
            assert!(PageTable::new().is_none());
        }
    });
    drop(empty());
}

#[test]
fn an_entry_holds_one_reference() {
    let table = empty();
    let first = page(1);
    assert!(table.map(VA, first.clone(), RW).unwrap().is_none());
    assert_eq!(first.refs(), 2);
    let (again, perm, flags) = table.get(VA).unwrap();
    assert_eq!(
        (again.frame(), perm, flags),
        (first.frame(), RW, Flags::default())
    );
    assert_eq!(first.refs(), 3);
    drop(again);
    let old = table.map(VA, page(2), RX).unwrap().unwrap();
    assert_eq!((old.frame(), old.refs()), (first.frame(), 2));
    let second = table.unmap(VA).unwrap();
    assert_eq!((mark(&second), second.refs()), (2, 1));
    assert!(table.unmap(VA).is_none() && table.get(VA).is_none());
}

#[test]
fn a_table_that_another_thread_makes_meanwhile_is_taken() {
    let table = empty();
    let upper = table.root_table();
    let slot = index(VA, 4);
    let seen_before = upper.get(slot);
    // The other thread's first page in these 512 GiB.
    assert!(table.map(VA, page(1), RW).unwrap().is_none());
    let taken = new_table(upper, slot, seen_before).unwrap();
    assert!(core::ptr::eq(taken, below(upper, slot).unwrap()));
}

#[test]
fn first_faults_of_two_threads_in_a_region_both_succeed() {
    for round in 0..2000 {
        let (table, ready) = (&empty(), &AtomicUsize::new(0));
        let fault = move |va| {
            let page = page(1);
            ready.fetch_add(1, Ordering::SeqCst);
            while ready.load(Ordering::SeqCst) < 2 {
                std::thread::yield_now();
            }
            table.insert_with(va, || Ok::<_, MapError>((page, RW)))
        };
        let both = std::thread::scope(|scope| {
            let other = scope.spawn(move || fault(VA));
            (fault(VA + span(2)), other.join().unwrap())
        });
        assert_eq!(both, (Ok(Insert::Done), Ok(Insert::Done)), "round {round}");
    }
}

#[test]
fn faults_of_several_threads_agree_on_one_page() {
    let table = empty();
    let fresh = |byte| move || Ok::<_, MapError>((page(byte), RW));
    assert_eq!(table.insert_with(VA, fresh(1)), Ok(Insert::Done));
    assert_eq!(table.insert_with(VA, fresh(2)), Ok(Insert::Occupied(RW)));
    assert!(
        table
            .insert_with(VA + PAGE_SIZE, || Err(MapError::NoMemory))
            .is_err()
    );
    assert!(table.get(VA + PAGE_SIZE).is_none());
    let (mine, ..) = table.get(VA).unwrap();
    // Another thread may write to it by now: a copy made meanwhile is out of date.
    assert!(!table.replace(VA, &mine, page(3), RW) && !table.allow(VA, &mine, RX));
    table.protect(VA..VA + PAGE_SIZE, Perm::default());
    assert!(!table.allow(VA, &page(1), RW));
    assert!(table.allow(VA, &mine, RW) && table.get(VA).unwrap().1 == RW);
    table.protect(VA..VA + PAGE_SIZE, Perm::default());
    assert!(table.replace(VA, &mine, page(3), RW) && !table.replace(VA, &mine, page(4), RW));
    assert_eq!((mark(&table.get(VA).unwrap().0), mine.refs()), (3, 1));
}

#[test]
fn only_empty_entries_of_one_span_are_filled() {
    let table = empty();
    let put = |va: usize| {
        let mut done = false;
        table.fill(VA, |span| done = span.put(va, RX, || page(2)));
        done
    };
    assert!(!put(VA + PAGE_SIZE), "there is no table yet");
    table.map(VA, page(1), RW).unwrap();
    assert!(put(VA + PAGE_SIZE) && !put(VA) && !put(VA + PAGE_SIZE));
    assert!(!put(VA + 1) && !put(VA - PAGE_SIZE) && !put(VA + span(2)) && !put(usize::MAX - 0xfff));
    assert_eq!(table.get(VA + PAGE_SIZE).unwrap().1, RX);
}

/// A system call from the last page of the lower half would return to an address that is none, and
/// SYSRET would fault in the kernel.
#[test]
fn a_span_ends_where_user_memory_does() {
    let table = empty();
    let last = USER_END - PAGE_SIZE;
    table.map(last - PAGE_SIZE, page(1), RW).unwrap();
    let mut put = [false; 2];
    table.fill(last, |span| {
        put = [last, USER_END].map(|va| span.put(va, RX, || page(2)));
    });
    assert_eq!(put, [true, false]);
    let lower = table.find(last).unwrap();
    assert!(!lower.get(index(USER_END, 1)).present());
}

#[test]
fn spans_are_changed_by_several_threads() {
    let table = empty();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let table = &table;
            scope.spawn(move || {
                for round in 0..200 {
                    let va = VA + (thread * 5 + round % 5) * span(2) + round * PAGE_SIZE;
                    assert_eq!(
                        table.insert_with(va, || Ok::<_, MapError>((page(thread as u8), RW))),
                        Ok(Insert::Done)
                    );
                    let mut marks = Vec::new();
                    let start = va & !(span(2) - 1);
                    table.unmap_range(start..start + span(2), &mut |_, gone| {
                        marks.push(mark(&single(gone)));
                    });
                    assert_eq!(marks, [thread as u8]);
                }
            });
        }
    });
}

#[test]
fn only_whole_user_pages_are_mapped() {
    let table = empty();
    for va in [
        0,
        USER_START - PAGE_SIZE,
        VA + 1,
        USER_END,
        usize::MAX & !0xfff,
        abi::layout::DIRECT,
    ] {
        assert_eq!(
            table.map(va, page(1), RW).unwrap_err(),
            MapError::Address,
            "{va:#x}"
        );
        assert!(table.get(va).is_none() && table.unmap(va).is_none());
    }
    assert!(table.map(USER_START, page(1), RW).is_ok());
    assert!(table.map(USER_END - PAGE_SIZE, page(1), RW).is_ok());
}

#[test]
fn a_range_is_taken_apart_page_by_page() {
    let table = empty();
    let pages = 700;
    let start = VA - 100 * PAGE_SIZE;
    for n in 0..pages {
        table.map(start + n * PAGE_SIZE, page(n as u8), RW).unwrap();
    }
    let mut seen = 0;
    table.unmap_range(
        start + PAGE_SIZE..start + (pages - 1) * PAGE_SIZE,
        &mut |va, gone| {
            let page = single(gone);
            seen += 1;
            assert_eq!(
                (va, mark(&page), page.refs()),
                (start + seen * PAGE_SIZE, seen as u8, 1)
            );
        },
    );
    assert_eq!(seen, pages - 2);
    assert!(table.get(start).is_some() && table.get(start + (pages - 1) * PAGE_SIZE).is_some());
    // The table in the middle was asked for as a whole and is gone; the next map makes a new one.
    assert!(table.walk(VA + 4096).is_err());
    table.map(VA, page(9), RW).unwrap();
    table.unmap_range(0..usize::MAX, &mut |_, _| seen += 1);
    assert_eq!(seen, pages + 1);
}

#[test]
fn rights_change_and_pages_stay() {
    let table = empty();
    table.map(VA, page(1), RW).unwrap();
    table.map(VA + 2 * PAGE_SIZE, page(3), RW).unwrap();
    table.protect(VA..VA + 2 * PAGE_SIZE, RX);
    assert_eq!(table.get(VA).unwrap().1, RX);
    assert_eq!(table.get(VA + 2 * PAGE_SIZE).unwrap().1, RW);
    assert_eq!(mark(&table.get(VA).unwrap().0), 1);
}

#[test]
fn fork_shares_read_only() {
    let (parent, child) = (empty(), empty());
    parent.map(VA, page(1), RW).unwrap();
    parent.map(VA + PAGE_SIZE, page(2), RX).unwrap();
    child.map(VA + PAGE_SIZE, page(7), RW).unwrap();
    let mut given = 0;
    parent
        .share_cow(&child, VA - (4 << 20)..VA + (4 << 20), |_| given += 1)
        .unwrap();
    assert_eq!(given, 1);
    let (shared, perm, _) = child.get(VA).unwrap();
    assert_eq!(
        (mark(&shared), shared.refs(), perm),
        (1, 3, Perm::default())
    );
    assert_eq!(parent.get(VA).unwrap().1, Perm::default());
    assert_eq!(mark(&child.get(VA + PAGE_SIZE).unwrap().0), 7);
    drop(child);
    assert_eq!(shared.refs(), 2);
    drop(parent);
    assert_eq!(shared.refs(), 1);
}

#[test]
fn active_until_dropped() {
    let (first, second) = (empty(), empty());
    first.activate();
    first.activate();
    second.activate();
    first.deactivate();
    drop(second);
    first.activate();
    drop(first);
}

/// Memory may be short while other tests run.
fn with_large(test: impl Fn(&PageTable, Frame)) {
    let table = empty();
    if let Some(large) = LargePage::zeroed() {
        (0..ENTRIES).for_each(|n| large.fill(n, &page(n as u8)));
        assert!(
            table.is_vacant(VA) && table.map_large(VA, large, RW).is_ok() && !table.is_vacant(VA)
        );
        let first = table.get(VA).unwrap().0.frame();
        test(&table, first);
    }
}

const LARGE: usize = span(2);

#[test]
fn a_large_page_is_its_pages() {
    with_large(|table, first| {
        let (third, perm, flags) = table.get(VA + 3 * PAGE_SIZE).unwrap();
        assert_eq!(
            (third.frame(), mark(&third), third.refs(), perm),
            (first.add(3), 3, 2, RW)
        );
        assert!(flags.large);
        assert_eq!(
            table.insert_with(VA + PAGE_SIZE, || Err(MapError::NoMemory)),
            Ok(Insert::Occupied(RW))
        );
        if let Some(other) = LargePage::zeroed() {
            let other = table.map_large(VA + PAGE_SIZE, other, RW).unwrap_err();
            assert!(table.map_large(VA, other, RW).is_err());
        }
        let mut seen = 0;
        table.visit(VA..VA + LARGE, |va, page, flags| {
            assert_eq!(
                (va, mark(page), flags.large),
                (VA + seen * PAGE_SIZE, seen as u8, true)
            );
            seen += 1;
        });
        assert_eq!(seen, ENTRIES);
        table.protect(VA..VA + LARGE, RX);
        assert!(
            table
                .get(VA)
                .is_some_and(|(_, perm, flags)| perm == RX && flags.large)
        );
        // Another reference than the caller's: not his alone.
        let (page, ..) = table.get(VA).unwrap();
        assert!(!table.allow_large(VA, &page, RW));
        drop(third);
        assert!(
            table.allow_large(VA, &page, RW)
                && table
                    .get(VA + PAGE_SIZE)
                    .is_some_and(|(_, perm, _)| perm == RW)
        );
        drop(page);
        table.unmap_range(VA..VA + LARGE, &mut |va, gone| {
            let Unmapped::Large(large) = gone else {
                panic!("split")
            };
            assert!(va == VA && large.is_exclusive());
        });
        assert!(table.is_vacant(VA));
    });
}

/// The direct map has an entry of the same kind for the same frames.
#[test]
fn the_kernel_half_is_out_of_reach() {
    with_large(|table, first| {
        let (page, ..) = table.get(VA).unwrap();
        let there = abi::layout::DIRECT + first.0 as usize * PAGE_SIZE;
        let (upper, before) = table.large(there).expect("a large entry of the direct map");
        assert!(!table.allow_large(there, &page, RX));
        assert_eq!(upper.get(index(there, 2)), before);
        assert!(!table.is_vacant(there) && !table.is_vacant(abi::layout::MMIO));
    });
}

#[test]
fn a_part_splits_it_and_the_rest_stays() {
    with_large(|table, first| {
        table.protect(VA..VA + PAGE_SIZE, RX);
        assert!(
            table
                .get(VA)
                .is_some_and(|(_, perm, flags)| perm == RX && !flags.large)
        );
        assert!(
            table
                .get(VA + PAGE_SIZE)
                .is_some_and(|(_, perm, flags)| perm == RW && !flags.large)
        );
        let mut seen = 0;
        table.unmap_range(VA + 2 * PAGE_SIZE..VA + LARGE, &mut |_, gone| {
            let page = single(gone);
            assert_eq!((page.frame(), page.refs()), (first.add(seen + 2), 1));
            seen += 1;
        });
        assert_eq!(seen, 510);
        assert_eq!(
            [VA, VA + PAGE_SIZE].map(|va| mark(&table.unmap(va).unwrap())),
            [0, 1]
        );
    });
}

#[test]
fn children_share_it_until_someone_writes() {
    with_large(|table, first| {
        let child = empty();
        let mut given = 0;
        table
            .share_cow(&child, VA..VA + LARGE, |_| given += 1)
            .unwrap();
        assert_eq!(given, ENTRIES);
        let (page_here, perm, _) = child.get(VA + PAGE_SIZE).unwrap();
        assert_eq!(
            (page_here.frame(), page_here.refs(), perm),
            (first.add(1), 3, Perm::default())
        );
        assert!(!child.allow_large(VA + PAGE_SIZE, &page_here, RW));
        assert!(child.replace(VA + PAGE_SIZE, &page_here, page(77), RW));
        assert_eq!(
            [table, &child].map(|t| mark(&t.get(VA + PAGE_SIZE).unwrap().0)),
            [1, 77]
        );
        assert_eq!(
            [table, &child].map(|t| t.get(VA).unwrap().2.large),
            [true, false]
        );
        drop(child);
        assert!(table.allow_large(VA + PAGE_SIZE, &page_here, RW));
    });
}
