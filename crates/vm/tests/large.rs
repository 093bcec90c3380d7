//! Who gets large pages, by what is set for all.

use vm::{
    AddressSpace, LargePages, MapRequest, Placement, Prot, VmaFlags, large_page_counts,
    large_pages, set_large_pages,
};

/// Whether memory that is written to in a new space is in large pages.
fn is_large(flags: VmaFlags) -> bool {
    let space = AddressSpace::new(1 << 40).unwrap();
    let place = Placement::Fixed(0x1000_0000);
    let at = space
        .mmap(MapRequest {
            placement: place,
            len: 4 << 20,
            prot: Prot::READ | Prot::WRITE,
            flags,
            object: None,
        })
        .unwrap();
    let before = large_page_counts().fault_alloc;
    space.write(at, b"x").unwrap();
    let [(info, sum)] = &space.residency()[..] else {
        panic!("one area")
    };
    assert_eq!(
        (info.large, large_page_counts().fault_alloc - before),
        (sum.large > 0, u64::from(sum.large > 0))
    );
    sum.large > 0
}

#[test]
fn the_setting_says_who_gets_them() {
    assert_eq!(large_pages(), LargePages::Madvise);
    for (setting, unasked, asked) in [
        (LargePages::Always, true, true),
        (LargePages::Never, false, false),
        (LargePages::Madvise, false, true),
    ] {
        set_large_pages(setting);
        assert_eq!(large_pages(), setting);
        assert_eq!(
            (is_large(VmaFlags::empty()), is_large(VmaFlags::LARGE)),
            (unasked, asked),
            "{setting:?}"
        );
        assert!(!is_large(VmaFlags::NO_LARGE) && !is_large(VmaFlags::LARGE | VmaFlags::GROWSDOWN));
    }
}
