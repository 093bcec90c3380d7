//! Threads that change one range of an address space under all schedules with a few pre-emptions
//! (`docs/locks.md`).

use std::sync::Arc;

use task::explore::{Model, spawn};
use vm::{AddressSpace, Advice, DontNeedScope, MapRequest, PAGE_SIZE, Placement, Prot, VmaFlags};

const AT: usize = 0x1000_0000;

fn map(space: &AddressSpace) {
    let place = Placement::Fixed(AT);
    let prot = Prot::READ | Prot::WRITE;
    space
        .mmap(MapRequest {
            placement: place,
            len: 2 * PAGE_SIZE,
            prot,
            flags: VmaFlags::empty(),
            object: None,
        })
        .unwrap();
    space.write(AT, b"x").unwrap();
}

/// Mapped and resident memory of the range.
fn sizes(space: &AddressSpace) -> (usize, usize) {
    (
        space.stats().size / PAGE_SIZE,
        space.stats().resident / PAGE_SIZE,
    )
}

#[test]
fn who_changes_the_same_range_waits_for_its_turn() {
    Model::new().preemptions(2).check(|| {
        let space = AddressSpace::new(1 << 40).unwrap();
        map(&space);
        let theirs: Arc<AddressSpace> = space.clone();
        let other = spawn("other", move || theirs.munmap(AT, PAGE_SIZE).unwrap());
        space
            .mprotect(AT + PAGE_SIZE, PAGE_SIZE, Prot::READ)
            .unwrap();
        let dropped = space.madvise(AT, 2 * PAGE_SIZE, Advice::DontNeed(DontNeedScope::Unlocked));
        other.join();
        assert!(dropped.is_ok() || dropped == Err(abi::errno::Errno::ENOMEM));
        assert_eq!(sizes(&space), (1, 0));
    });
}

#[test]
fn a_mapping_is_replaced_while_its_pages_are_dropped() {
    Model::new().preemptions(2).check(|| {
        let space = AddressSpace::new(1 << 40).unwrap();
        map(&space);
        let theirs: Arc<AddressSpace> = space.clone();
        let other = spawn("other", move || {
            theirs
                .madvise(
                    AT,
                    PAGE_SIZE,
                    Advice::DontNeed(DontNeedScope::IncludingLocked),
                )
                .unwrap();
        });
        map(&space);
        other.join();
        let (size, resident) = sizes(&space);
        assert!(size == 2 && resident <= 1);
    });
}
