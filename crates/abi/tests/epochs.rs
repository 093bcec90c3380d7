//! Random epochs of a descriptor's dynamic part beside a model that knows single granules and CPUs
//! only: what is nonsense is refused, and what is refused changes nothing.

use std::collections::{BTreeMap, BTreeSet};

use abi::descriptor::{CpuEntry, MAX_CPUS, MemRange};
use abi::layout::{GRANULE_FRAMES, GRANULE_SIZE};
use abi::live::{
    Answer, Entry, Holdings, MAX_ENTRIES, Refusal, Totals, Verdict, check, cpu, memory, range,
};
use proptest::prelude::*;

/// An instance with two ranges of first memory.
struct Instance {
    /// APIC ids of its CPUs.
    cpus: Vec<u32>,
    cpu_limit: usize,
    first: [MemRange; 2],
    limit: u64,
    /// Places of all its granules, by their numbers.
    granules: BTreeMap<u64, u64>,
}

const FIRST: [u64; 5] = [100, 101, 102, 40, 41];

impl Instance {
    fn new(limit: u64, cpu_limit: usize) -> Self {
        let of = |number: u64, place: u64, count: u64| MemRange {
            first_frame: number * GRANULE_FRAMES,
            phys: place * GRANULE_SIZE as u64,
            count: count * GRANULE_FRAMES,
        };
        Self {
            cpus: vec![10],
            cpu_limit,
            first: [of(0, 100, 3), of(3, 40, 2)],
            limit: limit * GRANULE_FRAMES,
            granules: (0..).zip(FIRST).collect(),
        }
    }

    /// All CPUs and granules by an epoch, if that is one: CPUs and whole granules with numbers in a
    /// row, each place once, within the limits, all granules that there were, and the CPUs that
    /// there were, but for some of the last ones if no other comes.
    fn model(&self, entries: &[Entry]) -> Option<(Vec<u32>, BTreeMap<u64, u64>)> {
        let mut granules: BTreeMap<u64, u64> = (0..).zip(FIRST).collect();
        let (mut cpus, mut slots) = (Vec::new(), BTreeSet::new());
        for entry in entries {
            if let [2, number, apic_id, slot] = *entry {
                cpus.push(u32::try_from(apic_id).ok()?);
                let is_new = slot < MAX_CPUS as u64 && slots.insert(slot);
                if number != cpus.len() as u64 - 1 || !is_new {
                    return None;
                }
                continue;
            }
            if entry[0] != 1 {
                return None;
            }
            let MemRange {
                first_frame,
                phys,
                count,
            } = range(entry);
            let units = [
                (first_frame, GRANULE_FRAMES),
                (phys, GRANULE_SIZE as u64),
                (count, GRANULE_FRAMES),
            ];
            if units.iter().any(|(value, unit)| value % unit != 0) || count == 0 {
                return None;
            }
            let [number, place, count] = units.map(|(value, unit)| value / unit);
            // No loop over what cannot be.
            if number != granules.len() as u64 || count > 1 << 16 {
                return None;
            }
            granules.extend((0..count).map(|n| (number + n, place + n)));
        }
        let places: BTreeSet<_> = granules.values().collect();
        let kept = self
            .granules
            .iter()
            .all(|(number, place)| granules.get(number) == Some(place));
        let apic_ids: BTreeSet<_> = cpus.iter().collect();
        (apic_ids.len() == cpus.len()
            && cpus.len() <= self.cpu_limit
            && !cpus.is_empty()
            && (cpus.starts_with(&self.cpus) || self.cpus.starts_with(&cpus))
            && places.len() == granules.len()
            && places.iter().all(|place| **place < 1 << 31)
            && granules.len() as u64 * GRANULE_FRAMES <= self.limit
            && kept)
            .then_some((cpus, granules))
    }
}

impl Holdings for Instance {
    fn first_memory(&self) -> &[MemRange] {
        &self.first
    }
    fn frames(&self) -> u64 {
        self.granules.len() as u64 * GRANULE_FRAMES
    }
    fn limit(&self) -> u64 {
        self.limit
    }
    fn granule(&self, first_frame: u64) -> Option<u64> {
        let place = self.granules.get(&(first_frame / GRANULE_FRAMES))?;
        Some(place * GRANULE_SIZE as u64)
    }
    fn cpus(&self) -> usize {
        self.cpus.len()
    }
    fn cpu_limit(&self) -> usize {
        self.cpu_limit
    }
    fn apic_id(&self, number: usize) -> Option<u32> {
        self.cpus.get(number).copied()
    }
}

/// The entries for CPUs: each one's park slot is what its APIC id is.
fn cpu_entries(cpus: &[u32]) -> Vec<Entry> {
    let entry = |(number, &apic_id)| {
        let slot = apic_id;
        cpu(number, CpuEntry { apic_id, slot })
    };
    (0..).zip(cpus).map(entry).collect()
}

/// The entries for granules behind the first five, with runs merged or not.
fn entries(granules: &BTreeMap<u64, u64>, merge: bool) -> Vec<Entry> {
    let mut ranges: Vec<MemRange> = Vec::new();
    for (number, place) in granules.range(FIRST.len() as u64..) {
        let phys = place * GRANULE_SIZE as u64;
        match ranges.last_mut() {
            Some(last) if merge && last.phys + last.count * 4096 == phys => {
                last.count += GRANULE_FRAMES;
            }
            _ => ranges.push(MemRange {
                first_frame: number * GRANULE_FRAMES,
                phys,
                count: GRANULE_FRAMES,
            }),
        }
    }
    ranges.into_iter().map(memory).collect()
}

/// A change of an epoch: what a supervisor does, or what a broken one might.
#[derive(Clone, Debug)]
enum Change {
    /// Adds `count` granules that lie at `place` and behind it.
    Grow { place: u64, count: u64, merge: bool },
    /// Adds a CPU.
    Cpu { apic_id: u32 },
    /// Takes CPUs away, the last ones.
    FewerCpus { count: usize },
    /// A word of an entry is another one.
    Word {
        entry: usize,
        word: usize,
        value: u64,
    },
    /// A bit of a word is another one.
    Bit { entry: usize, word: usize, bit: u32 },
    /// An entry is gone.
    Gone { entry: usize },
    /// An entry is there twice.
    Twice { entry: usize },
    /// Two entries have changed places.
    Swapped { entry: usize },
    /// Random entries.
    Noise(Vec<Entry>),
}

fn change() -> impl Strategy<Value = Change> {
    let value = prop_oneof![
        Just(0),
        Just(u64::MAX),
        any::<u64>(),
        (0u64..64).prop_map(|n| n * GRANULE_FRAMES),
        (0u64..64).prop_map(|n| n * GRANULE_SIZE as u64),
        (0u32..64).prop_map(|n| 1 << n),
    ];
    let entry = (0u64..4, value.clone(), value.clone(), value.clone())
        .prop_map(|(kind, a, b, c)| [kind, a, b, c]);
    prop_oneof![
        6 => (0u64..200, 1u64..5, any::<bool>())
            .prop_map(|(place, count, merge)| Change::Grow { place, count, merge }),
        4 => (0u32..20).prop_map(|apic_id| Change::Cpu { apic_id }),
        2 => (1usize..4).prop_map(|count| Change::FewerCpus { count }),
        1 => (0usize..8, 0usize..4, value)
            .prop_map(|(entry, word, value)| Change::Word { entry, word, value }),
        1 => (0usize..8, 0usize..4, 0u32..64)
            .prop_map(|(entry, word, bit)| Change::Bit { entry, word, bit }),
        1 => (0usize..8).prop_map(|entry| Change::Gone { entry }),
        1 => (0usize..8).prop_map(|entry| Change::Twice { entry }),
        1 => (0usize..8).prop_map(|entry| Change::Swapped { entry }),
        1 => proptest::collection::vec(entry, 0..4).prop_map(Change::Noise),
    ]
}

/// The epoch that a change makes of what an instance has.
fn changed(instance: &Instance, change: &Change) -> Vec<Entry> {
    let mut epoch = cpu_entries(&instance.cpus);
    epoch.extend(entries(&instance.granules, true));
    let at = |entry: usize, epoch: &[Entry]| entry % epoch.len().max(1);
    match change {
        Change::Grow {
            place,
            count,
            merge,
        } => {
            let mut granules = instance.granules.clone();
            let next = granules.len() as u64;
            granules.extend((0..*count).map(|n| (next + n, place + n)));
            epoch = cpu_entries(&instance.cpus);
            epoch.extend(entries(&granules, *merge));
        }
        Change::Cpu { apic_id } => {
            let cpus = [&instance.cpus[..], &[*apic_id]].concat();
            epoch = cpu_entries(&cpus);
            epoch.extend(entries(&instance.granules, true));
        }
        Change::FewerCpus { count } => {
            let left = instance.cpus.len().saturating_sub(*count);
            epoch = cpu_entries(&instance.cpus[..left]);
            epoch.extend(entries(&instance.granules, true));
        }
        Change::Noise(noise) => epoch.clone_from(noise),
        _ if epoch.is_empty() => {}
        Change::Word { entry, word, value } => {
            let entry = at(*entry, &epoch);
            epoch[entry][*word] = *value;
        }
        Change::Bit { entry, word, bit } => {
            let entry = at(*entry, &epoch);
            epoch[entry][*word] ^= 1 << bit;
        }
        Change::Gone { entry } => {
            let entry = at(*entry, &epoch);
            epoch.remove(entry);
        }
        Change::Twice { entry } => {
            let entry = at(*entry, &epoch);
            epoch.insert(entry, epoch[entry]);
        }
        Change::Swapped { entry } => {
            let entry = at(*entry, &epoch);
            let other = (entry + 1) % epoch.len();
            epoch.swap(entry, other);
        }
    }
    epoch
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5_000))]

    /// Twenty epochs in a row, 100,000 in all: each is adopted or refused as the model says, and
    /// what the instance has is always what the last adopted one said.
    #[test]
    fn nonsense_is_refused_and_the_old_one_stays(
        (limit, cpu_limit) in (5u64..40, 1usize..6),
        changes in proptest::collection::vec(change(), 20),
    ) {
        let mut instance = Instance::new(limit, cpu_limit);
        for change in &changes {
            let epoch = changed(&instance, change);
            let wanted = instance.model(&epoch);
            let totals = wanted.as_ref().map(|(cpus, granules)| Totals {
                frames: granules.len() as u64 * GRANULE_FRAMES,
                cpus: cpus.len(),
            });
            prop_assert_eq!(check(&epoch, &instance).ok(), totals, "{:?}", epoch);
            if let Some((cpus, granules)) = wanted {
                (instance.cpus, instance.granules) = (cpus, granules);
            }
        }
    }

    /// Any word is an answer that becomes the same word again, but for bits that mean nothing, or
    /// none.
    #[test]
    fn words_are_answers_or_not(word: u64, code in 0u64..13) {
        for word in [word, word & !0xff | code] {
            if let Some(answer) = Answer::from_word(word) {
                prop_assert_eq!(Answer::from_word(answer.to_word()), Some(answer));
                prop_assert_eq!(answer.to_word() >> 32, word >> 32);
            }
        }
    }
}

/// An epoch, and the granules and CPUs that there are by it.
type Case<'a> = (&'a [Entry], Result<(u64, usize), Refusal>);

#[test]
fn each_refusal_is_told_by_its_name() {
    let instance = Instance::new(20, 3);
    let new = |first: u64, place: u64, count: u64| {
        memory(MemRange {
            first_frame: first * GRANULE_FRAMES,
            phys: place * GRANULE_SIZE as u64,
            count: count * GRANULE_FRAMES,
        })
    };
    let good = new(5, 7, 2);
    let end = 1 << 31;
    // The CPU that there is, and others.
    let is = [2, 0, 10, 10];
    let table: [Case<'_>; 24] = [
        (&[is], Ok((5, 1))),
        (&[is, good], Ok((7, 1))),
        (&[good, is], Ok((7, 1))),
        (&[is, good, new(7, 9, 13)], Ok((20, 1))),
        (&[is, new(5, end - 1, 1)], Ok((6, 1))),
        (&[is, [2, 1, 4, 0], good, [2, 2, 5, 255]], Ok((7, 3))),
        (&[good, new(7, 9, 14)], Err(Refusal::Limit(1))),
        (&[new(5, end - 1, 2)], Err(Refusal::Range(0))),
        (&[new(5, 7, 0)], Err(Refusal::Range(0))),
        (&[new(6, 7, 1)], Err(Refusal::Number(0))),
        (&[new(4, 7, 1)], Err(Refusal::Number(0))),
        (&[good, new(7, 8, 1)], Err(Refusal::Overlap(1))),
        (&[new(5, 41, 1)], Err(Refusal::Overlap(0))),
        (&[[3, 0, 0, 0]], Err(Refusal::Kind(0))),
        (&[[1 << 32 | 2, 0, 10, 10]], Err(Refusal::Kind(0))),
        (&[good; MAX_ENTRIES + 1], Err(Refusal::Count)),
        (&[good], Err(Refusal::Missing)),
        (&[[2, 0, 11, 10]], Err(Refusal::Missing)),
        (&[is, [2, 2, 4, 4]], Err(Refusal::Number(1))),
        (&[is, [2, 1, 10, 4]], Err(Refusal::Overlap(1))),
        (&[is, [2, 1, 4, 10]], Err(Refusal::Overlap(1))),
        (&[is, [2, 1, 1 << 32, 4]], Err(Refusal::Cpu(1))),
        (&[is, [2, 1, 4, MAX_CPUS as u64]], Err(Refusal::Cpu(1))),
        (
            &[is, [2, 1, 1, 1], [2, 2, 2, 2], [2, 3, 3, 3]],
            Err(Refusal::Limit(3)),
        ),
    ];
    for (entries, wanted) in table {
        let wanted = wanted.map(|(granules, cpus)| Totals {
            frames: granules * GRANULE_FRAMES,
            cpus,
        });
        assert_eq!(check(entries, &instance), wanted);
    }
    let mut grown = Instance::new(20, 3);
    grown.granules.extend([(5, 7), (6, 8)]);
    for entries in [
        &[is][..],
        &[is, new(5, 7, 1)],
        &[is, new(5, 9, 2)],
        &[is, new(5, 8, 1), new(6, 7, 1)],
    ] {
        assert_eq!(check(entries, &grown), Err(Refusal::Missing));
    }
    // Of three CPUs the last ones may leave, but not the first, and none changes.
    let mut larger = Instance::new(20, 3);
    larger.cpus = vec![10, 4, 5];
    let cpus = [is, [2, 1, 4, 4], [2, 2, 5, 5]];
    for left in 1..=3 {
        let cpus_left = check(&cpus[..left], &larger).map(|totals| totals.cpus);
        assert_eq!(cpus_left, Ok(left));
    }
    for entries in [&[][..], &[is, [2, 1, 5, 5]], &[[2, 0, 4, 4], [2, 1, 5, 5]]] {
        assert_eq!(check(entries, &larger), Err(Refusal::Missing));
    }
    for refusal in [
        Refusal::Count,
        Refusal::Kind(3),
        Refusal::Range(4),
        Refusal::Number(5),
        Refusal::Limit(6),
        Refusal::Overlap(MAX_ENTRIES - 1),
        Refusal::Missing,
        Refusal::NoMemory,
        Refusal::Cpu(6),
    ] {
        let answer = Answer {
            epoch: 77,
            verdict: Verdict::Refused(refusal),
        };
        assert_eq!(Answer::from_word(answer.to_word()), Some(answer));
        assert!(!refusal.to_string().is_empty());
    }
    assert_eq!(Answer::from_word(0), None);
    assert_eq!(Answer::from_word((MAX_ENTRIES as u64) << 8 | 3), None);
}
