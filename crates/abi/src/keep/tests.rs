use std::collections::BTreeMap;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;

const GRANULES: usize = 40;
/// Words of one copy of a record.
const COPY: usize = RECORD / 2;

fn memory() -> Vec<AtomicU64> {
    (0..Keep::words(GRANULES))
        .map(|_| AtomicU64::new(0))
        .collect()
}

fn record(id: u32) -> Record {
    let mut label = [0; LABEL_BYTES];
    label[..4].copy_from_slice(&id.to_le_bytes());
    Record {
        id,
        flags: id % 5,
        label,
        descriptor: u64::from(id) * 7,
        live: u64::from(id) * 11,
        window: u64::from(id) * 13,
        network: id.is_multiple_of(2).then_some(u64::from(id)),
        places: core::array::from_fn(|place| u64::from(id) + place as u64),
        created_ns: u64::from(id) << 40,
        started_ns: u64::MAX - u64::from(id),
        second_pages: !id,
        functions: core::array::from_fn(|number| match number as u32 % 3 {
            0 => NO_FUNCTION,
            _ => id.wrapping_add(number as u32),
        }),
        lease: KeptLease {
            network: id.wrapping_mul(3),
            address: id.wrapping_mul(5),
            ports: core::array::from_fn(|number| match number as u32 % 3 {
                0 => PublishedPort::default(),
                kind => PublishedPort {
                    address: id.wrapping_mul(kind),
                    protocol: [PROTOCOL_TCP, PROTOCOL_UDP][kind as usize - 1],
                    port: 1 + number as u16,
                    inner: id as u16,
                },
            }),
        },
    }
}

fn network(number: u32) -> KeptNetwork {
    let mut label = [0; LABEL_BYTES];
    label[60..].copy_from_slice(&number.to_le_bytes());
    KeptNetwork {
        number,
        label,
        gateway: number.wrapping_mul(7),
        prefix_len: 8 + number % 20,
    }
}

/// A crash comes between any two stores: so many have been made, of those that write one copy and
/// then the other, each with a wrong check first and the right one last.
fn write_partly(keep: &Keep<'_>, memory: &[AtomicU64], place: usize, new: &Record, stores: usize) {
    let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
    let before: Vec<u64> = memory.iter().map(load).collect();
    let first = 2 + MAX_CPUS + RECORD * place;
    let newest = keep
        .copies(place)
        .newest()
        .map_or(1, |(newest, _, _)| newest);
    keep.write(place, Some(new));
    let after: Vec<u64> = memory.iter().map(load).collect();
    for (turn, copy) in [1 - newest, newest].into_iter().enumerate() {
        let at = first + copy * COPY;
        let done = stores.saturating_sub(turn * (COPY + 1)).min(COPY + 1);
        for word in 0..COPY {
            let value = match (word, done) {
                (0, 0) => before[at],
                (0, done) if done <= COPY => !after[at],
                (0, _) => after[at],
                (word, done) if word < done => after[at + word],
                (word, _) => before[at + word],
            };
            memory[at + word].store(value, Ordering::Relaxed);
        }
    }
}

#[test]
fn new_notes_know_nobody() {
    let memory = memory();
    let keep = Keep::new(&memory).unwrap();
    assert_eq!(keep.cpu(0), Owner::Unknown, "zeroes say nothing");
    assert_eq!((keep.last_id(), keep.last_generation()), (None, None));
    keep.init();
    assert_eq!((keep.last_id(), keep.last_generation()), (Some(0), Some(0)));
    assert_eq!(keep.networks().count(), 0);
    assert!((0..MAX_CPUS).all(|slot| keep.cpu(slot) == Owner::Supervisor));
    assert!((0..GRANULES as u64).all(|granule| keep.granule(granule) == Owner::Supervisor));
    assert_eq!(keep.granule(GRANULES as u64), Owner::Unknown);
    assert_eq!(keep.granules(), GRANULES as u64);
    assert_eq!((keep.records().count(), keep.has_bad_record()), (0, false));
    assert!(Keep::new(&memory[..100]).is_none());
}

#[test]
fn a_crash_in_the_middle_leaves_the_record_of_before() {
    for stores in 0..=2 * (COPY + 1) {
        for rounds in 1..4 {
            let memory = memory();
            let keep = Keep::new(&memory).unwrap();
            keep.init();
            (1..=rounds).for_each(|id| keep.write(3, Some(&record(id))));
            write_partly(&keep, &memory, 3, &record(99), stores);
            let wanted = if stores <= COPY { rounds } else { 99 };
            assert_eq!(keep.place(3), Place::Record(record(wanted)), "{stores}");
            keep.write(3, Some(&record(5)));
            assert_eq!(keep.place(3), Place::Record(record(5)));
        }
    }
}

#[test]
fn a_first_record_half_written_is_not_taken_for_none() {
    let memory = memory();
    let keep = Keep::new(&memory).unwrap();
    keep.init();
    write_partly(&keep, &memory, 0, &record(1), 5);
    // Its instance was not started: but that is not for this place to say.
    assert_eq!(keep.place(0), Place::Bad);
    assert_eq!(keep.free_place(), Some(1));
}

#[test]
fn two_damaged_copies_are_no_record() {
    let memory = memory();
    let keep = Keep::new(&memory).unwrap();
    keep.init();
    keep.write(0, Some(&record(1)));
    keep.damage(0, 0);
    assert_eq!(keep.place(0), Place::Record(record(1)));
    keep.damage(0, 1);
    assert_eq!((keep.place(0), keep.has_bad_record()), (Place::Bad, true));
}

#[test]
fn networks_are_noted_until_they_are_forgotten() {
    let memory = memory();
    let keep = Keep::new(&memory).unwrap();
    keep.init();
    let most = MAX_NETWORKS as u32;
    assert!((1..=most).all(|number| keep.note_network(&network(number))));
    assert!(!keep.note_network(&network(99)), "there is no room");
    keep.forget_network(7);
    keep.forget_network(70);
    assert!(keep.note_network(&network(99)));
    let mut numbers: Vec<u32> = keep.networks().map(|known| known.number).collect();
    numbers.sort_unstable();
    let wanted: Vec<u32> = (1..=most).filter(|n| *n != 7).chain([99]).collect();
    assert_eq!(numbers, wanted);
    assert!(keep.networks().all(|known| known == network(known.number)));
}

#[test]
fn a_network_is_known_by_one_copy_and_its_place_is_free_without_any() {
    let memory = memory();
    let keep = Keep::new(&memory).unwrap();
    keep.init();
    assert!(keep.note_network(&network(1)) && keep.note_network(&network(2)));
    keep.network_copies(0).damage(0);
    assert_eq!(keep.networks().next(), Some(network(1)));
    keep.network_copies(0).damage(1);
    assert_eq!(keep.networks().collect::<Vec<_>>(), [network(2)]);
    assert!(keep.note_network(&network(3)));
    assert_eq!(keep.networks().next(), Some(network(3)));
}

#[test]
fn what_stands_at_another_place_is_no_record() {
    let memory = memory();
    let keep = Keep::new(&memory).unwrap();
    keep.init();
    keep.write(0, Some(&record(1)));
    for word in 0..RECORD {
        let value = memory[2 + MAX_CPUS + word].load(Ordering::Relaxed);
        memory[2 + MAX_CPUS + RECORD + word].store(value, Ordering::Relaxed);
    }
    assert_eq!(
        (keep.place(0), keep.place(1)),
        (Place::Record(record(1)), Place::Bad)
    );
}

#[test]
fn functions_are_found_in_any_record() {
    let memory = memory();
    let keep = Keep::new(&memory).unwrap();
    keep.init();
    keep.write(0, Some(&record(1)));
    keep.write(RECORDS - 1, Some(&record(50)));
    // Of each record those at 1, 2, 4, 5 and 7.
    for (number, is_there) in [
        (2, true),
        (8, true),
        (51, true),
        (57, true),
        (4, false),
        (50, false),
    ] {
        assert_eq!(keep.has_function(number), is_there, "{number}");
    }
    keep.write(0, None);
    assert!(!keep.has_function(2) && keep.has_function(51));
}

/// A step that changes the notes.
#[derive(Clone, Debug)]
enum Step {
    Write(usize, Option<u32>),
    Cpu(usize, u32),
    Granule(u64, u32),
    Id(u32),
    Generation(u32),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..4_usize, proptest::option::of(1_u32..)).prop_map(|(place, id)| Step::Write(place, id)),
        (0..MAX_CPUS, any::<u32>()).prop_map(|(slot, id)| Step::Cpu(slot, id)),
        (0..GRANULES as u64, any::<u32>()).prop_map(|(granule, id)| Step::Granule(granule, id)),
        any::<u32>().prop_map(Step::Id),
        any::<u32>().prop_map(Step::Generation),
    ]
}

fn owner(id: u32) -> Owner {
    match id {
        0 => Owner::Supervisor,
        id => Owner::Instance(id),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..Default::default() })]

    #[test]
    fn notes_are_what_was_written_last(steps in prop::collection::vec(step(), 0..60)) {
        let memory = memory();
        let keep = Keep::new(&memory).unwrap();
        keep.init();
        let (mut places, mut cpus, mut granules) =
            (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let (mut last, mut generation) = (0, 0);
        for step in steps {
            match step {
                Step::Write(place, id) => {
                    keep.write(place, id.map(record).as_ref());
                    places.insert(place, id);
                }
                Step::Cpu(slot, id) => {
                    keep.set_cpu(slot, id);
                    cpus.insert(slot, id);
                }
                Step::Granule(granule, id) => {
                    keep.set_granule(granule, id);
                    granules.insert(granule, id);
                }
                Step::Id(id) => {
                    keep.note_id(id);
                    last = id;
                }
                Step::Generation(number) => {
                    keep.note_generation(number);
                    generation = number;
                }
            }
        }
        prop_assert_eq!(keep.last_id(), Some(last));
        prop_assert_eq!(keep.last_generation(), Some(generation));
        for place in 0..4 {
            let wanted = match places.get(&place).copied().flatten() {
                Some(id) => Place::Record(record(id)),
                None => Place::Free,
            };
            prop_assert_eq!(keep.place(place), wanted);
        }
        for slot in 0..MAX_CPUS {
            prop_assert_eq!(keep.cpu(slot), owner(cpus.get(&slot).copied().unwrap_or(0)));
        }
        for granule in 0..GRANULES as u64 {
            let id = granules.get(&granule).copied().unwrap_or(0);
            prop_assert_eq!(keep.granule(granule), owner(id));
        }
    }

    /// A word that is written over changes what one owner, or one copy, says, and nothing into
    /// something else: an owner is unknown then, and of a record the other copy counts.
    #[test]
    fn what_is_written_over_is_seen(at in 0..Keep::words(GRANULES), to: u64) {
        let memory = memory();
        let keep = Keep::new(&memory).unwrap();
        keep.init();
        for place in 0..RECORDS {
            keep.write(place, Some(&record(place as u32 + 1)));
        }
        (0..MAX_CPUS).for_each(|slot| keep.set_cpu(slot, slot as u32 + 1));
        (0..GRANULES as u64).for_each(|granule| keep.set_granule(granule, granule as u32 + 1));
        keep.note_id(9);
        keep.note_generation(10);
        (1..=MAX_NETWORKS as u32).for_each(|number| assert!(keep.note_network(&network(number))));
        let was = memory[at].swap(to, Ordering::Relaxed);
        prop_assume!(was != to && to as u32 != !((to >> 32) as u32));
        prop_assert!(keep.last_id().is_none_or(|id| id == 9));
        prop_assert!(keep.last_generation().is_none_or(|generation| generation == 10));
        prop_assert!((1..).map(network).take(MAX_NETWORKS).eq(keep.networks()));
        for slot in 0..MAX_CPUS {
            let found = keep.cpu(slot);
            prop_assert!(found == Owner::Unknown || found == Owner::Instance(slot as u32 + 1));
        }
        for granule in 0..GRANULES as u64 {
            let found = keep.granule(granule);
            prop_assert!(found == Owner::Unknown || found == Owner::Instance(granule as u32 + 1));
        }
        for place in 0..RECORDS {
            prop_assert_eq!(keep.place(place), Place::Record(record(place as u32 + 1)));
        }
    }
}
