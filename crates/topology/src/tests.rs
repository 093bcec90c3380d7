extern crate std;

use std::collections::HashSet;
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::{Levels, Siblings, Topology};

const INTEL: u32 = 0x756e_6547;
const AMD: u32 = 0x6874_7541;
/// Leaf 1's EDX: more than one CPU in the package.
const HTT: u32 = 1 << 28;

/// A processor that answers with these leaves, and with zeros else.
fn levels(leaves: &[(u32, u32, [u32; 4])]) -> Levels {
    Levels::read(|leaf, part| {
        leaves
            .iter()
            .find(|l| (l.0, l.1) == (leaf, part))
            .map_or([0; 4], |l| l.2)
    })
}

/// A level in leaf 0x1F or 0xB.
fn level(leaf: u32, part: u32, shift: u32, kind: u32) -> (u32, u32, [u32; 4]) {
    (leaf, part, [shift, 1 << shift.min(15), kind << 8 | part, 0])
}

/// Package, die, core, thread.
fn place(levels: Levels, apic_id: u32) -> (u32, Option<u32>, u32, u32) {
    let place = levels.place(apic_id);
    (place.package, place.die, place.core, place.thread)
}

#[test]
fn leaf_b_tells_threads_cores_and_packages() {
    let levels = levels(&[
        (0, 0, [0xb, INTEL, 0, 0]),
        level(0xb, 0, 1, 1),
        level(0xb, 1, 4, 2),
    ]);
    assert_eq!(place(levels, 0b1_0111), (1, None, 3, 1));
}

#[test]
fn leaf_1f_comes_first_and_knows_dies() {
    let b = [level(0xb, 0, 1, 1), level(0xb, 1, 6, 2)];
    let f = [
        level(0x1f, 0, 1, 1),
        level(0x1f, 1, 4, 2),
        level(0x1f, 2, 6, 5),
    ];
    let levels = levels(&[&[(0, 0, [0x1f, INTEL, 0, 0])], &b[..], &f[..]].concat());
    // Cores count through the dies of a package.
    assert_eq!(place(levels, 0b1110_0111), (3, Some(2), 0b10_011, 1));
}

#[test]
fn leaves_1_and_4_stand_in() {
    // Room for 16 CPUs and 8 cores in a package.
    let counts = [
        (1, 0, [0, 16 << 16, 0, HTT]),
        (4, 0, [7 << 26 | 1, 0, 0, 0]),
    ];
    let with = levels(&[&[(0, 0, [4, INTEL, 0, 0])], &counts[..]].concat());
    assert_eq!(place(with, 0b1_0111), (1, None, 3, 1));
    // A leaf 0xB that is there and empty is not there.
    let empty = levels(&[&[(0, 0, [0xb, INTEL, 0, 0])], &counts[..]].concat());
    assert_eq!(empty, with);
    // Nine cores need a bit more than eight do.
    let nine = [
        (1, 0, [0, 32 << 16, 0, HTT]),
        (4, 0, [8 << 26 | 1, 0, 0, 0]),
    ];
    assert_eq!(
        place(
            levels(&[&[(0, 0, [4, INTEL, 0, 0])], &nine[..]].concat()),
            0b10_1111
        ),
        (1, None, 7, 1)
    );
    let old = levels(&[(0, 0, [1, INTEL, 0, 0]), (1, 0, [0, 2 << 16, 0, HTT])]);
    assert_eq!(place(old, 3), (1, None, 0, 1));
}

#[test]
fn amd_has_leaves_of_its_own() {
    let sizes = [
        (0x8000_0000, 0, [0x8000_001e, 0, 0, 0]),
        (0x8000_0008, 0, [0, 0, 4 << 12 | 15, 0]),
    ];
    let threads = [
        (0x8000_0001, 0, [0, 0, 1 << 22, 0]),
        (0x8000_001e, 0, [0, 1 << 8, 0, 0]),
    ];
    let with = levels(&[&[(0, 0, [1, AMD, 0, 0])], &sizes[..], &threads[..]].concat());
    assert_eq!(place(with, 0b1_0111), (1, None, 3, 1));
    let without = levels(&[&[(0, 0, [1, AMD, 0, 0])], &sizes[..]].concat());
    assert_eq!(place(without, 0b1_0111), (1, None, 7, 0));
}

/// Limits of what a processor says, and what is left out because it says too little.
#[test]
fn answers_that_are_short_or_make_no_sense() {
    let intel = |most| (0, 0, [most, INTEL, 0, 0]);
    // Leaf 0xB is read from 0xB on; a level without CPUs ends the list, one with a single CPU does
    // not.
    let b = [(0xb, 0, [0, 1, 1 << 8, 0]), level(0xb, 1, 4, 2)];
    assert_eq!(
        place(levels(&[&[intel(0xb)], &b[..]].concat()), 0b1_0111),
        (1, None, 7, 0)
    );
    assert_eq!(levels(&[&[intel(0xa)], &b[..]].concat()), Levels::NONE);
    let ends = [
        level(0xb, 0, 1, 1),
        (0xb, 1, [4, 0, 2 << 8, 0]),
        level(0xb, 2, 6, 2),
    ];
    assert_eq!(
        place(levels(&[&[intel(0xb)], &ends[..]].concat()), 0b1_0111),
        (0b1011, None, 0, 1)
    );
    // More threads than the package has room for.
    let wrong = [level(0xb, 0, 5, 1), level(0xb, 1, 4, 2)];
    assert_eq!(levels(&[&[intel(0xb)], &wrong[..]].concat()), Levels::NONE);
    let same = [level(0xb, 0, 4, 1), level(0xb, 1, 4, 2)];
    assert_eq!(
        place(levels(&[&[intel(0xb)], &same[..]].concat()), 0b1_0111),
        (1, None, 0, 7)
    );
    // Leaf 4 is not asked of a processor that has three; without the flag there is one CPU.
    let counts = [
        (1, 0, [0, 16 << 16, 0, HTT]),
        (4, 0, [7 << 26 | 1, 0, 0, 0]),
    ];
    assert_eq!(
        place(levels(&[&[intel(3)], &counts[..]].concat()), 0b1_0111),
        (1, None, 0, 7)
    );
    assert_eq!(
        levels(&[
            intel(4),
            (1, 0, [0, 16 << 16, 0, 0]),
            (4, 0, [7 << 26 | 1, 0, 0, 0])
        ]),
        Levels::NONE
    );
    // A list ends after eight levels.
    let endless: Vec<_> = (0..12)
        .map(|part| level(0xb, part, part, if part == 0 { 1 } else { 2 }))
        .collect();
    assert_eq!(
        levels(&[&[intel(0xb)], &endless[..]].concat())
            .place(1 << 7)
            .package,
        1
    );
}

#[test]
fn amd_without_some_of_its_leaves() {
    let amd = (0, 0, [1, AMD, 0, 0]);
    let extended = |most: u32, sizes: u32, flags: u32| {
        levels(&[
            amd,
            (0x8000_0000, 0, [most, 0, 0, 0]),
            (0x8000_0001, 0, [0, 0, flags, 0]),
            (0x8000_0008, 0, [0, 0, sizes, 0]),
            (0x8000_001e, 0, [0, 1 << 8, 0, 0]),
        ])
    };
    const EXTENDED: u32 = 1 << 22;
    assert_eq!(extended(0x8000_0007, 4 << 12, EXTENDED), Levels::NONE);
    // The number of CPUs, less one, where the bits are not stated.
    assert_eq!(
        place(extended(0x8000_0008, 15, EXTENDED), 0b1_0111),
        (1, None, 7, 0)
    );
    assert_eq!(
        place(extended(0x8000_0008, 16, EXTENDED), 0b1_0111),
        (0, None, 0b1_0111, 0)
    );
    assert_eq!(
        place(extended(0x8000_001d, 4 << 12, EXTENDED), 0b1_0111),
        (1, None, 7, 0)
    );
    assert_eq!(
        place(extended(0x8000_001e, 4 << 12, EXTENDED), 0b1_0111),
        (1, None, 3, 1)
    );
    assert_eq!(
        place(extended(0x8000_001e, 4 << 12, !EXTENDED), 0b1_0111),
        (1, None, 7, 0)
    );
}

#[test]
fn who_says_nothing_has_a_core_for_each_cpu() {
    assert_eq!(levels(&[(0, 0, [1, INTEL, 0, 0])]), Levels::NONE);
    assert_eq!(levels(&[(0, 0, [1, AMD, 0, 0])]), Levels::NONE);
    assert_eq!(place(Levels::NONE, 77), (0, None, 77, 0));
}

/// Two packages of two cores of two threads.
fn eight() -> Topology {
    let levels = levels(&[
        (0, 0, [0xb, INTEL, 0, 0]),
        level(0xb, 0, 1, 1),
        level(0xb, 1, 2, 2),
    ]);
    Topology::new(levels, 0..8)
}

#[test]
fn sets_of_cpus() {
    let machine = eight();
    assert!(machine.has_siblings());
    assert_eq!(machine.core(5).collect::<Vec<_>>(), [4, 5]);
    assert_eq!(machine.package(5).collect::<Vec<_>>(), [4, 5, 6, 7]);
    assert_eq!(machine.die(5).collect::<Vec<_>>(), [4, 5, 6, 7]);
    assert_eq!(machine.sharing(5, 2).collect::<Vec<_>>(), [4, 5]);
    assert_eq!(machine.sharing(5, 3).collect::<Vec<_>>(), [4, 5, 6, 7]);
    assert_eq!(machine.sharing(5, 1).collect::<Vec<_>>(), [5]);
    assert_eq!(machine.cores_in_package(0), 2);
}

#[test]
fn an_instance_sees_its_own_threads_only() {
    let levels = levels(&[
        (0, 0, [0xb, INTEL, 0, 0]),
        level(0xb, 0, 1, 1),
        level(0xb, 1, 2, 2),
    ]);
    let instance = Topology::new(levels, [3, 4, 5]);
    assert_eq!(instance.core(0).collect::<Vec<_>>(), [0]);
    assert_eq!(instance.core(1).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(instance.package(0).collect::<Vec<_>>(), [0]);
    assert_eq!(
        [instance.cores_in_package(0), instance.cores_in_package(2)],
        [1, 1]
    );
}

#[test]
fn siblings_are_used_last_or_first() {
    assert_eq!(eight().order(Siblings::Last), [0, 2, 4, 6, 1, 3, 5, 7]);
    assert_eq!(eight().order(Siblings::First), [0, 1, 2, 3, 4, 5, 6, 7]);
    // Firmware often lists the first thread of each core before the second ones.
    let levels = levels(&[
        (0, 0, [0xb, INTEL, 0, 0]),
        level(0xb, 0, 1, 1),
        level(0xb, 1, 4, 2),
    ]);
    let spread = Topology::new(levels, [0, 2, 4, 1, 3, 5]);
    assert_eq!(spread.order(Siblings::Last), [0, 1, 2, 3, 4, 5]);
    assert_eq!(spread.order(Siblings::First), [0, 3, 1, 4, 2, 5]);
    let single = Topology::new(Levels::NONE, 0..3);
    assert!(!single.has_siblings());
    assert_eq!(
        [single.order(Siblings::Last), single.order(Siblings::First)],
        [[0, 1, 2], [0, 1, 2]]
    );
}

proptest! {
    /// For any answers of CPUID: reading ends, ids come apart into what names them alone, and each
    /// CPU is in its own sets.
    #[test]
    fn any_answer_gives_a_topology(
        vendor in prop_oneof![Just(AMD), Just(INTEL), any::<u32>()],
        most in 0u32..0x20,
        answers in prop::collection::vec(any::<[u32; 4]>(), 64),
        ids in prop::collection::hash_set(any::<u32>(), 1..40),
    ) {
        let levels = Levels::read(|leaf, part| match (leaf, part) {
            (0, _) => [most, vendor, 0, 0],
            (0x8000_0000, _) => [0x8000_001e, 0, 0, 0],
            _ => answers[(leaf.wrapping_mul(7).wrapping_add(part) % 64) as usize],
        });
        let ids: Vec<u32> = ids.into_iter().collect();
        let machine = Topology::new(levels, ids.iter().copied());
        let names: HashSet<_> = machine.places().iter().map(|p| (p.package, p.core, p.thread)).collect();
        prop_assert_eq!(names.len(), ids.len(), "{:?}", levels);
        for cpu in 0..ids.len() {
            for set in [machine.core(cpu).collect::<Vec<_>>(), machine.die(cpu).collect(), machine.package(cpu).collect()] {
                prop_assert!(set.contains(&cpu) && set.is_sorted());
            }
            let package: Vec<usize> = machine.package(cpu).collect();
            prop_assert!(machine.core(cpu).all(|other| package.contains(&other)));
            prop_assert!((1..=package.len()).contains(&machine.cores_in_package(cpu)));
        }
        for siblings in [Siblings::Last, Siblings::First] {
            let mut order = machine.order(siblings);
            order.sort_unstable();
            prop_assert_eq!(order, (0..ids.len()).collect::<Vec<_>>());
        }
    }

    /// Siblings last: no core is used twice before each was used once. Siblings first: a core's
    /// CPUs come one after the other.
    #[test]
    fn the_order_keeps_its_word(thread in 0u32..3, core in 0u32..4, ids in prop::collection::hash_set(0u32..256, 1..40)) {
        let levels = levels(&[(0, 0, [0xb, INTEL, 0, 0]), level(0xb, 0, thread, 1), level(0xb, 1, thread + core, 2)]);
        let machine = Topology::new(levels, ids);
        let mut used = vec![0; machine.places().len()];
        let mut before = 0;
        for cpu in machine.order(Siblings::Last) {
            let first = machine.core(cpu).next().expect("itself");
            used[first] += 1;
            prop_assert!(used[first] >= before);
            before = used[first];
        }
        let cores: Vec<_> = machine.order(Siblings::First).into_iter().map(|cpu| machine.core(cpu).next()).collect();
        let changes = cores.windows(2).filter(|pair| pair[0] != pair[1]).count() + 1;
        prop_assert_eq!(changes, cores.into_iter().collect::<HashSet<_>>().len());
    }
}
