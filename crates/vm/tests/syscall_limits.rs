//! What the calls on an address space promise: their errors at each limit, and what they leave as
//! it was.

use std::sync::Arc;

use abi::errno::Errno;
use vm::{
    AccessKind, AddressSpace, Advice, Backing, DontNeedScope, MapRequest, Object, PAGE_SIZE,
    Placement, PrivateCopies, Prot, RemapOptions, SharedWrites, ShmemObject, USER_END, VmaFlags,
};

const RW: Prot = Prot::READ.union(Prot::WRITE);
const AT: usize = 0x1000_0000;
const STAY: RemapOptions = RemapOptions {
    may_move: false,
    fixed_address: None,
    dont_unmap: false,
    max_growth: usize::MAX,
    lock_limit: usize::MAX,
};

fn space() -> Arc<AddressSpace> {
    AddressSpace::new(1 << 40).unwrap()
}

fn request(
    place: Placement,
    pages: usize,
    flags: VmaFlags,
    object: Option<(&Arc<Object>, u64)>,
) -> MapRequest {
    let object = object.map(|(object, first)| (object.clone(), first));
    MapRequest {
        placement: place,
        len: pages * PAGE_SIZE,
        prot: RW,
        flags,
        object,
    }
}

fn map(
    space: &AddressSpace,
    at: usize,
    pages: usize,
    flags: VmaFlags,
    object: Option<(&Arc<Object>, u64)>,
) -> usize {
    space
        .mmap(request(Placement::Fixed(at), pages, flags, object))
        .unwrap()
}

fn peek(space: &AddressSpace, addr: usize) -> u8 {
    let mut byte = [0];
    space.read(addr, &mut byte).unwrap();
    byte[0]
}

/// Shared memory, and an object of it.
fn object() -> (Arc<ShmemObject>, Arc<Object>) {
    let memory = Arc::new(ShmemObject::default());
    (
        memory.clone(),
        Object::file(memory, SharedWrites::Allowed, b"/file".to_vec(), 5, 7),
    )
}

#[test]
fn areas_are_limited_and_none_is_split_beyond_that() {
    let space = space();
    // With holes between them, so that they do not become one. Linux makes one more than the limit.
    for n in 0..=vm::max_map_count() {
        map(&space, AT + n * 4 * PAGE_SIZE, 3, VmaFlags::empty(), None);
    }
    let more = request(
        Placement::Fixed(AT - 2 * PAGE_SIZE),
        1,
        VmaFlags::empty(),
        None,
    );
    assert_eq!(space.mmap(more), Err(Errno::ENOMEM));
    let middle = AT + PAGE_SIZE;
    assert_eq!(space.munmap(middle, PAGE_SIZE), Err(Errno::ENOMEM));
    assert_eq!(
        space.mprotect(middle, PAGE_SIZE, Prot::READ),
        Err(Errno::ENOMEM)
    );
    // What splits nothing goes on, and makes room again.
    space.mprotect(AT, 3 * PAGE_SIZE, Prot::READ).unwrap();
    for n in 1..4 {
        space.munmap(AT + n * 4 * PAGE_SIZE, 3 * PAGE_SIZE).unwrap();
    }
    space.munmap(middle, PAGE_SIZE).unwrap();
    assert_eq!(peek(&space, AT), 0);
}

#[test]
fn places_are_whole_pages_of_programs() {
    let space = space();
    let at = |place| space.mmap(request(place, 2, VmaFlags::empty(), None));
    assert_eq!(at(Placement::Fixed(AT + 1)), Err(Errno::EINVAL));
    assert_eq!(
        at(Placement::Fixed(USER_END - PAGE_SIZE)),
        Err(Errno::ENOMEM)
    );
    assert_eq!(at(Placement::Fixed(0)), Err(Errno::EPERM));
    assert_eq!(
        at(Placement::Fixed(USER_END - 2 * PAGE_SIZE)),
        Ok(USER_END - 2 * PAGE_SIZE)
    );
    assert_eq!(
        at(Placement::FixedIfFree(USER_END - 2 * PAGE_SIZE)),
        Err(Errno::EEXIST)
    );
    for len in [usize::MAX, USER_END] {
        let none = MapRequest {
            len,
            ..request(Placement::Anywhere(0), 1, VmaFlags::empty(), None)
        };
        assert_eq!(space.mmap(none), Err(Errno::ENOMEM));
    }
    assert_eq!(
        space.mmap(request(Placement::Anywhere(0), 0, VmaFlags::empty(), None)),
        Err(Errno::EINVAL)
    );
    assert_eq!(
        space.mprotect(USER_END - 2 * PAGE_SIZE + 1, PAGE_SIZE, RW),
        Err(Errno::EINVAL)
    );
    assert_eq!(space.mprotect(AT, usize::MAX, RW), Err(Errno::EINVAL));
    assert_eq!(
        space.madvise(
            1,
            PAGE_SIZE,
            Advice::DontNeed(DontNeedScope::IncludingLocked)
        ),
        Err(Errno::EINVAL)
    );
}

#[test]
fn the_limit_is_of_all_that_is_mapped() {
    let space = space();
    space.set_limits(4 * PAGE_SIZE, usize::MAX);
    map(&space, AT, 2, VmaFlags::empty(), None);
    map(&space, 2 * AT, 2, VmaFlags::empty(), None);
    let more = |place, pages| space.mmap(request(place, pages, VmaFlags::empty(), None));
    // As on Linux, what is replaced counts until it is gone.
    for place in [Placement::Anywhere(0), Placement::Fixed(AT)] {
        assert_eq!(more(place, 1), Err(Errno::ENOMEM));
    }
    assert_eq!(
        space.mremap(AT, 2 * PAGE_SIZE, 3 * PAGE_SIZE, STAY),
        Err(Errno::ENOMEM)
    );
    assert_eq!(
        (space.stats().size, space.stats().peak),
        (4 * PAGE_SIZE, 4 * PAGE_SIZE)
    );
    space.munmap(AT + PAGE_SIZE, PAGE_SIZE).unwrap();
    assert_eq!(
        (space.stats().size, space.stats().peak),
        (3 * PAGE_SIZE, 4 * PAGE_SIZE)
    );
    assert_eq!(
        space.mremap(AT, PAGE_SIZE, 3 * PAGE_SIZE, STAY),
        Err(Errno::ENOMEM)
    );
    assert_eq!(space.mremap(AT, PAGE_SIZE, 2 * PAGE_SIZE, STAY), Ok(AT));
    assert_eq!(space.stats().size, 4 * PAGE_SIZE);
}

#[test]
fn the_heap_may_reach_the_end() {
    let space = space();
    let start = USER_END - 3 * PAGE_SIZE;
    space.set_brk_start(start);
    assert_eq!(space.brk(USER_END + 1), start);
    assert_eq!(space.brk(USER_END), USER_END);
    assert_eq!(space.brk(start - 1), USER_END);
    space.write(USER_END - 1, b"h").unwrap();
    assert_eq!(space.brk(start), start);
    assert_eq!(space.stats().size, 0);
}

#[test]
fn sizes_are_told_by_what_they_are_of() {
    let space = space();
    map(&space, AT, 1, VmaFlags::empty(), None);
    map(&space, 2 * AT, 2, VmaFlags::GROWSDOWN, None);
    map(&space, 3 * AT, 4, VmaFlags::LOCKED, None);
    map(
        &space,
        4 * AT,
        8,
        VmaFlags::SHARED,
        Some((&Object::anonymous(), 0)),
    );
    map(&space, 5 * AT, 16, VmaFlags::empty(), None);
    space
        .mprotect(5 * AT, 16 * PAGE_SIZE, Prot::READ | Prot::EXEC)
        .unwrap();
    let stats = space.stats();
    let pages = [
        stats.size,
        stats.data,
        stats.stack,
        stats.text,
        stats.locked,
        stats.resident,
    ]
    .map(|bytes| bytes / PAGE_SIZE);
    assert_eq!(pages, [31, 5, 2, 16, 4, 0]);
}

#[test]
fn the_beginning_of_what_is_mapped_is_found() {
    let (memory, object) = object();
    let space = space();
    map(&space, AT, 2, VmaFlags::SHARED, Some((&object, 0)));
    map(&space, 2 * AT, 2, VmaFlags::SHARED, Some((&object, 1)));
    map(&space, 3 * AT, 2, VmaFlags::empty(), None);
    let found = space.backing_at(AT).unwrap();
    assert!(std::ptr::eq(
        Arc::as_ptr(&found).cast::<u8>(),
        Arc::as_ptr(&memory).cast::<u8>()
    ));
    assert!(
        [AT + PAGE_SIZE, 2 * AT, 3 * AT, 4 * AT]
            .iter()
            .all(|addr| space.backing_at(*addr).is_none())
    );
}

#[test]
fn what_is_sealed_and_cannot_be_written_is_not_dropped() {
    let space = space();
    map(&space, AT, 2, VmaFlags::empty(), None);
    space.write(AT, b"s").unwrap();
    space.mprotect(AT, PAGE_SIZE, Prot::READ).unwrap();
    space.mseal(AT, 2 * PAGE_SIZE).unwrap();
    assert_eq!(
        space.madvise(AT, PAGE_SIZE, Advice::DontNeed(DontNeedScope::Unlocked)),
        Err(Errno::EPERM)
    );
    for set in [VmaFlags::DONTFORK, VmaFlags::WIPEONFORK] {
        let advice = Advice::Flags(set, VmaFlags::empty());
        assert_eq!(space.madvise(AT, PAGE_SIZE, advice), Err(Errno::EPERM));
        assert_eq!(space.madvise(AT + PAGE_SIZE, PAGE_SIZE, advice), Ok(()));
    }
    assert_eq!(
        space.madvise(
            AT,
            PAGE_SIZE,
            Advice::Flags(VmaFlags::LARGE, VmaFlags::empty())
        ),
        Ok(())
    );
    let child = space.fork().unwrap();
    assert_eq!((peek(&space, AT), peek(&child, AT)), (b's', b's'));
}

#[test]
fn only_memory_of_its_own_is_wiped_for_a_child() {
    let space = space();
    map(&space, AT, 1, VmaFlags::empty(), None);
    map(
        &space,
        AT + PAGE_SIZE,
        1,
        VmaFlags::SHARED,
        Some((&Object::anonymous(), 0)),
    );
    map(&space, 2 * AT, 1, VmaFlags::empty(), Some((&object().1, 0)));
    space.write(AT, &[1; 2 * PAGE_SIZE]).unwrap();
    let wipe = Advice::Flags(VmaFlags::WIPEONFORK, VmaFlags::empty());
    assert_eq!(space.madvise(AT, 2 * PAGE_SIZE, wipe), Err(Errno::EINVAL));
    assert_eq!(space.madvise(2 * AT, PAGE_SIZE, wipe), Err(Errno::EINVAL));
    // What comes before other memory is done.
    let child = space.fork().unwrap();
    assert_eq!(
        [
            peek(&space, AT),
            peek(&child, AT),
            peek(&child, AT + PAGE_SIZE)
        ],
        [1, 0, 1]
    );
    assert_eq!(
        space.madvise(
            AT,
            PAGE_SIZE,
            Advice::Flags(VmaFlags::empty(), VmaFlags::WIPEONFORK)
        ),
        Ok(())
    );
    assert_eq!(peek(&space.fork().unwrap(), AT), 1);
}

#[test]
fn locked_memory_is_kept_and_counted_once() {
    let space = space();
    map(&space, AT, 4, VmaFlags::empty(), None);
    assert_eq!(space.mlock(AT, PAGE_SIZE, PAGE_SIZE, true), Ok(()));
    assert_eq!(
        (
            space.mlock(AT, 2 * PAGE_SIZE, PAGE_SIZE, true),
            space.stats().locked
        ),
        (Err(Errno::ENOMEM), PAGE_SIZE)
    );
    assert_eq!(
        space.mlock(AT, PAGE_SIZE, PAGE_SIZE, true),
        Ok(()),
        "it is locked already"
    );
    assert_eq!(space.mlock(AT, 2 * PAGE_SIZE, 2 * PAGE_SIZE, false), Ok(()));
    // What is beyond the end is an error, but all up to there is locked.
    assert_eq!(
        space.mlock(AT + 2 * PAGE_SIZE, 3 * PAGE_SIZE, usize::MAX, false),
        Err(Errno::ENOMEM)
    );
    assert_eq!(
        (space.stats().locked, space.residency()[0].1.resident),
        (4 * PAGE_SIZE, 2 * PAGE_SIZE)
    );
    assert_eq!(space.residency()[0].1.locked, 2 * PAGE_SIZE);
    assert!(
        space.can_mlock(PAGE_SIZE, 5 * PAGE_SIZE) && !space.can_mlock(PAGE_SIZE + 1, 5 * PAGE_SIZE)
    );
    // Advice goes up to what is locked.
    map(&space, AT - PAGE_SIZE, 1, VmaFlags::empty(), None);
    for addr in [AT - PAGE_SIZE, AT] {
        space.write(addr, b"k").unwrap();
    }
    assert_eq!(
        space.madvise(
            AT - PAGE_SIZE,
            2 * PAGE_SIZE,
            Advice::DontNeed(DontNeedScope::Unlocked)
        ),
        Err(Errno::EINVAL)
    );
    assert_eq!((peek(&space, AT - PAGE_SIZE), peek(&space, AT)), (0, b'k'));
    assert_eq!(
        space.madvise(
            AT,
            PAGE_SIZE,
            Advice::DontNeed(DontNeedScope::IncludingLocked)
        ),
        Ok(())
    );
    assert_eq!(peek(&space, AT), 0);
    assert!(space.has_locked(AT, PAGE_SIZE) && !space.has_locked(AT - PAGE_SIZE, PAGE_SIZE));
    space.munlockall();
    assert_eq!(
        (space.stats().locked, space.residency()[0].1.locked),
        (0, 0)
    );
}

#[test]
fn pages_of_objects_are_removed_where_that_is_allowed() {
    let (memory, object) = object();
    let space = space();
    map(&space, AT, 2, VmaFlags::SHARED, Some((&object, 1)));
    space.write(AT, &[7; 2 * PAGE_SIZE]).unwrap();
    map(&space, 2 * AT, 3, VmaFlags::empty(), Some((&object, 0)));
    space.write(2 * AT + PAGE_SIZE, b"own").unwrap();
    assert_eq!(
        (
            peek(&space, 2 * AT + PAGE_SIZE),
            peek(&space, 2 * AT + 2 * PAGE_SIZE)
        ),
        (b'o', 7)
    );
    assert_eq!(space.mlock(AT, PAGE_SIZE, usize::MAX, true), Ok(()));
    assert_eq!(
        space.punch_shared(AT, PAGE_SIZE),
        Err(Errno::EINVAL),
        "locked"
    );
    assert_eq!(
        space.punch_shared(2 * AT, PAGE_SIZE),
        Err(Errno::EACCES),
        "private"
    );
    space.munlockall();
    assert_eq!(
        space.punch_shared(AT, 3 * PAGE_SIZE),
        Err(Errno::ENOMEM),
        "not all is mapped, but the rest is done"
    );
    assert!(memory.cached(1).is_none() && memory.cached(2).is_none());
    assert_eq!((peek(&space, AT), peek(&space, AT + PAGE_SIZE)), (0, 0));
    // A copy that a program has made is its own.
    assert_eq!(peek(&space, 2 * AT + PAGE_SIZE), b'o');
}

#[test]
fn pages_that_a_file_has_lost_are_shown_no_more() {
    let (memory, object) = object();
    let space = space();
    map(&space, AT, 3, VmaFlags::SHARED, Some((&object, 0)));
    map(&space, 2 * AT, 3, VmaFlags::empty(), Some((&object, 0)));
    space.write(AT, &[7; 3 * PAGE_SIZE]).unwrap();
    space.write(2 * AT, &[8; 3 * PAGE_SIZE]).unwrap();
    let mappings = memory.reverse_map().unwrap();
    assert_eq!(
        [
            mappings.count_vmas(|_, _| true),
            mappings.count_vmas(|shared, _| shared)
        ],
        [2, 1]
    );
    let resident = |space: &AddressSpace| {
        let bytes = space.resident_by_sharing();
        [bytes.private, bytes.shared].map(|bytes| bytes / PAGE_SIZE)
    };
    assert_eq!(resident(&space), [3, 3]);
    mappings.unmap_mapping_range(1..2, PrivateCopies::Keep);
    assert_eq!(
        (resident(&space), peek(&space, 2 * AT + PAGE_SIZE)),
        ([3, 2], 8)
    );
    mappings.unmap_mapping_range(1..3, PrivateCopies::Unmap);
    assert_eq!(resident(&space), [1, 1]);
    assert_eq!(
        (peek(&space, 2 * AT), peek(&space, 2 * AT + PAGE_SIZE)),
        (8, 7)
    );
}

#[test]
fn a_mapping_shrinks_where_it_is_or_goes() {
    let space = space();
    map(&space, AT, 4, VmaFlags::empty(), None);
    space.write(AT, &[5; 4 * PAGE_SIZE]).unwrap();
    assert_eq!(space.mremap(AT, 4 * PAGE_SIZE, 3 * PAGE_SIZE, STAY), Ok(AT));
    assert_eq!(
        (space.stats().size, space.stats().resident),
        (3 * PAGE_SIZE, 3 * PAGE_SIZE)
    );
    assert!(
        space
            .handle_fault(AT + 3 * PAGE_SIZE, AccessKind::Read)
            .is_err()
    );
    let to = RemapOptions {
        may_move: true,
        fixed_address: Some(2 * AT),
        ..STAY
    };
    assert_eq!(space.mremap(AT, 3 * PAGE_SIZE, PAGE_SIZE, to), Ok(2 * AT));
    assert_eq!(
        (
            space.stats().size,
            space.stats().resident,
            peek(&space, 2 * AT)
        ),
        (PAGE_SIZE, PAGE_SIZE, 5)
    );
    let keep = RemapOptions {
        dont_unmap: true,
        fixed_address: None,
        ..to
    };
    let second = space.mremap(2 * AT, PAGE_SIZE, PAGE_SIZE, keep).unwrap();
    assert_eq!(
        (
            peek(&space, 2 * AT),
            peek(&space, second),
            space.stats().size
        ),
        (0, 5, 2 * PAGE_SIZE)
    );
    for (old, new) in [(1, PAGE_SIZE), (0, 0)] {
        assert_eq!(
            space.mremap(2 * AT + old, PAGE_SIZE, new, STAY),
            Err(Errno::EINVAL)
        );
    }
    assert_eq!(
        space.mremap(AT, PAGE_SIZE, PAGE_SIZE, STAY),
        Err(Errno::EFAULT)
    );
}

#[test]
fn shared_memory_is_mapped_again_and_shown_elsewhere() {
    let (_, object) = object();
    let space = space();
    map(&space, AT, 2, VmaFlags::SHARED, Some((&object, 0)));
    map(&space, 2 * AT, 2, VmaFlags::empty(), None);
    for (page, byte) in [(0, b"a"), (1, b"b")] {
        space.write(AT + page * PAGE_SIZE, byte).unwrap();
    }
    let may_move = RemapOptions {
        may_move: true,
        ..STAY
    };
    let again = space
        .mremap(AT + PAGE_SIZE, 0, PAGE_SIZE, may_move)
        .unwrap();
    assert_eq!(peek(&space, again), b'b');
    assert_eq!(space.mremap(AT, 0, PAGE_SIZE, STAY), Err(Errno::ENOMEM));
    assert_eq!(
        space.mremap(2 * AT, 0, PAGE_SIZE, may_move),
        Err(Errno::EINVAL),
        "it is private"
    );
    assert_eq!(
        space.mremap(3 * AT, 0, PAGE_SIZE, may_move),
        Err(Errno::EFAULT)
    );
    // The second page is shown first.
    assert_eq!(space.remap_file_pages(AT, PAGE_SIZE, 1), Ok(()));
    assert_eq!(
        (peek(&space, AT), peek(&space, AT + PAGE_SIZE)),
        (b'b', b'b')
    );
    assert_eq!(
        space.remap_file_pages(AT, 2 * PAGE_SIZE, 0),
        Ok(()),
        "parts of one object are one mapping"
    );
    assert_eq!(
        (peek(&space, AT), peek(&space, AT + PAGE_SIZE)),
        (b'a', b'b')
    );
    for (start, pages) in [(AT, 3), (2 * AT, 1), (3 * AT, 1)] {
        assert_eq!(
            space.remap_file_pages(start, pages * PAGE_SIZE, 0),
            Err(Errno::EINVAL)
        );
    }
    map(
        &space,
        AT + 2 * PAGE_SIZE,
        1,
        VmaFlags::SHARED,
        Some((&Object::anonymous(), 0)),
    );
    assert_eq!(
        space.remap_file_pages(AT, 3 * PAGE_SIZE, 0),
        Err(Errno::EINVAL),
        "of two objects"
    );
}

#[test]
fn pages_are_visited_with_whose_they_are() {
    let (_, object) = object();
    let space = space();
    map(&space, AT, 1, VmaFlags::SHARED, Some((&object, 0)));
    map(&space, 2 * AT, 2, VmaFlags::empty(), Some((&object, 0)));
    map(&space, 3 * AT, 1, VmaFlags::empty(), None);
    space.write(AT, b"f").unwrap();
    space.write(3 * AT, b"o").unwrap();
    space.write(2 * AT + PAGE_SIZE, b"c").unwrap();
    let visited = |space: &AddressSpace| {
        let mut pages = Vec::new();
        space.for_each_present_page(0..USER_END, |va, own, sole| pages.push((va, own, sole)));
        pages
    };
    // The file keeps a page of its own, and nobody else shows it.
    assert_eq!(
        visited(&space),
        [
            (AT, false, true),
            (2 * AT + PAGE_SIZE, true, true),
            (3 * AT, true, true)
        ]
    );
    assert_eq!(peek(&space, 2 * AT), b'f');
    let child = space.fork().unwrap();
    assert!(visited(&space).iter().all(|(.., sole)| !sole));
    drop(child);
    assert_eq!(visited(&space)[3], (3 * AT, true, true));
}
