//! Random epochs of a descriptor's dynamic part beside a model that knows single granules, CPUs and
//! functions only: what is nonsense is refused, and what is refused changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use abi::descriptor::{CpuEntry, MAX_CPUS, MemRange};
use abi::layout::{GRANULE_FRAMES, GRANULE_SIZE};
use abi::live::{
    Answer, Entry, Holdings, MAX_ENTRIES, Messages, Refusal, Registers, Totals, Verdict, check,
    cpu, function, function_of, identity_of, memory, peer, peer_of, range, virtual_function,
};
use abi::messages::{MAX_GROUPS, MAX_NAMES, MAX_PLACES, PEER_PLACES, Peer};
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
    /// Entries for its functions, once it has looked.
    functions: Option<Vec<Entry>>,
    places: usize,
}

/// Possessions by an epoch: APIC ids, places of granules, entries for functions.
type Possessions = (Vec<u32>, BTreeMap<u64, u64>, Vec<Entry>);

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
            functions: None,
            places: 0,
        }
    }

    /// All CPUs, granules and functions by an epoch, if that is one: CPUs and whole granules with
    /// numbers in a row, each place once, within the limits, functions that there were with the
    /// same entries or not at all, and the CPUs and granules that there were, but for some of the
    /// last ones if no other comes. Granules and functions do not leave together.
    fn model(&self, entries: &[Entry]) -> Option<Possessions> {
        let mut granules: BTreeMap<u64, u64> = (0..).zip(FIRST).collect();
        let (mut cpus, mut slots) = (Vec::new(), BTreeSet::new());
        let functions = functions_of(entries)?;
        let listed: Vec<Entry> = entries.iter().copied().filter(is_of_function).collect();
        let had = by_function(self.functions.as_deref().unwrap_or_default());
        let has = by_function(&listed);
        let is_same = |(number, entries): (&u64, &Vec<Entry>)| {
            has.get(number).is_none_or(|listed| listed == entries)
        };
        if !had.iter().all(is_same) {
            return None;
        }
        let one_leaves = had.keys().any(|number| !has.contains_key(number));
        for entry in entries.iter().filter(|entry| !is_of_function(entry)) {
            if matches!(entry, [8 | 9, 0, 0, 0]) {
                continue;
            }
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
        let mut both = self.granules.iter().zip(&granules);
        let kept = both.all(|(had, has)| had == has);
        let apic_ids: BTreeSet<_> = cpus.iter().collect();
        let granule = |place: &u64| {
            let start = place.checked_mul(GRANULE_SIZE as u64)?;
            Some(start..start.checked_add(GRANULE_SIZE as u64)?)
        };
        let memory: Option<Vec<Range<u64>>> = granules.values().map(granule).collect();
        let is_apart = is_each_once([functions, memory?].concat());
        (apic_ids.len() == cpus.len()
            && cpus.len() <= self.cpu_limit
            && !cpus.is_empty()
            && (cpus.starts_with(&self.cpus) || self.cpus.starts_with(&cpus))
            && places.len() == granules.len()
            && places.iter().all(|place| **place < 1 << 31)
            && granules.len() as u64 * GRANULE_FRAMES <= self.limit
            && (granules.len() >= self.granules.len() || !one_leaves)
            && kept
            && is_apart)
            .then_some((cpus, granules, listed))
    }
}

fn is_of_function(entry: &Entry) -> bool {
    matches!(entry[0], 6 | 7)
}

/// Entries of functions by number, each with those of its registers.
fn by_function(entries: &[Entry]) -> BTreeMap<u64, Vec<Entry>> {
    let mut all: BTreeMap<u64, Vec<Entry>> = BTreeMap::new();
    let mut last = 0;
    for entry in entries {
        if entry[0] == 6 {
            last = entry[1] & u64::from(u32::MAX);
        }
        all.entry(last).or_default().push(*entry);
    }
    all
}

/// Addresses of all functions of an epoch, if these are functions with ascending numbers, each with
/// its registers, in ascending order, behind it.
fn functions_of(entries: &[Entry]) -> Option<Vec<Range<u64>>> {
    let mut places = Vec::new();
    let mut numbers = Vec::new();
    let mut vectors = Vec::new();
    let mut bars: Option<BTreeSet<u64>> = None;
    for entry in entries {
        let [kind, which, at, last] = *entry;
        let bytes = match (kind, &mut bars) {
            (6, _) => {
                numbers.push(which as u32);
                // A virtual function has a manufacturer; others tell theirs themselves.
                let is_virtual = which >> 32 != 0;
                let is_nobody = matches!((which >> 32) as u16, 0 | u16::MAX);
                (!is_virtual || !is_nobody).then_some(())?;
                bars = Some(BTreeSet::new());
                if last != 0 {
                    let [_, _, _, _, vector, count, rest @ ..] = last.to_le_bytes();
                    let is_message = (0xfee0_0000..0xfef0_0000).contains(&(last as u32));
                    let own = u64::from(vector)..u64::from(vector) + u64::from(count);
                    let are_vectors = count > 0 && own.start >= 0x40 && own.end <= 0xe0;
                    (is_message && are_vectors && rest == [0; 2]).then_some(())?;
                    vectors.push(own);
                }
                4096
            }
            (7, None) => return None,
            (7, Some(bars)) => {
                let [bar, flags, rest @ ..] = which.to_le_bytes();
                let taken = match flags {
                    0 | 8 => vec![bar],
                    4 | 12 => vec![bar, bar.checked_add(1)?],
                    _ => return None,
                };
                for bar in &taken {
                    let is_next = bars.last().is_none_or(|last| u64::from(*bar) > *last);
                    if !is_next || *bar > 5 {
                        return None;
                    }
                    bars.insert(u64::from(*bar));
                }
                let below_4g = at.checked_add(last)? <= 1 << 32;
                (rest == [0; 6] && (below_4g || taken.len() == 2)).then_some(last)?
            }
            _ => {
                bars = None;
                continue;
            }
        };
        if bytes.count_ones() != 1 || bytes < 4096 || at % bytes != 0 {
            return None;
        }
        places.push(at..at.checked_add(bytes).filter(|end| *end <= 1 << 52)?);
    }
    let nowhere = [0..1 << 20, 0xfee0_0000..0xfef0_0000];
    (numbers.is_sorted_by(|a, b| a < b)
        && (vectors.is_empty() || vectors.len() == numbers.len())
        && is_each_once(vectors)
        && is_each_once([&places[..], &nowhere].concat()))
    .then_some(places)
}

/// Whether no two of these ranges meet.
fn is_each_once(mut ranges: Vec<Range<u64>>) -> bool {
    ranges.sort_by_key(|range| range.start);
    ranges.is_sorted_by(|a, b| a.end <= b.start)
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
    fn functions(&self) -> Option<&[Entry]> {
        self.functions.as_deref()
    }
    fn places(&self) -> usize {
        self.places
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
    /// Takes granules away, the last ones.
    Shrink { count: u64, merge: bool },
    /// Adds a function with registers of this size at this place, each in units of its size.
    Function {
        number: u32,
        config: u64,
        place: u64,
        size: u32,
        flags: u8,
    },
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
    /// Caches are to give up memory, or functions, whoever uses them.
    How { kind: u64 },
    /// A function that there is leaves, and granules perhaps with it.
    FunctionLeaves { which: usize, granules: u64 },
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
    let entry = (0u64..11, value.clone(), value.clone(), value.clone())
        .prop_map(|(kind, a, b, c)| [kind, a, b, c]);
    prop_oneof![
        6 => (0u64..200, 1u64..5, any::<bool>())
            .prop_map(|(place, count, merge)| Change::Grow { place, count, merge }),
        4 => (0u32..20).prop_map(|apic_id| Change::Cpu { apic_id }),
        2 => (1usize..4).prop_map(|count| Change::FewerCpus { count }),
        3 => (1u64..6, any::<bool>()).prop_map(|(count, merge)| Change::Shrink { count, merge }),
        3 => (0u32..5, 30_000u64..60_000, 0u64..250, 12u32..23, 0u8..4).prop_map(
            |(number, config, place, size, flags)| {
                let flags = flags << 2;
                Change::Function { number, config, place, size, flags }
            },
        ),
        1 => (0usize..8, 0usize..4, value)
            .prop_map(|(entry, word, value)| Change::Word { entry, word, value }),
        1 => (0usize..8, 0usize..4, 0u32..64)
            .prop_map(|(entry, word, bit)| Change::Bit { entry, word, bit }),
        1 => (0usize..8).prop_map(|entry| Change::Gone { entry }),
        1 => (0usize..8).prop_map(|entry| Change::Twice { entry }),
        1 => (0usize..8).prop_map(|entry| Change::Swapped { entry }),
        1 => (8u64..10).prop_map(|kind| Change::How { kind }),
        2 => (0usize..4, 0u64..8)
            .prop_map(|(which, granules)| Change::FunctionLeaves { which, granules: granules / 7 }),
        1 => proptest::collection::vec(entry, 0..4).prop_map(Change::Noise),
    ]
}

/// The epoch that a change makes of what an instance has.
fn changed(instance: &Instance, change: &Change) -> Vec<Entry> {
    let known = instance.functions.clone().unwrap_or_default();
    let mut epoch = cpu_entries(&instance.cpus);
    epoch.extend(&known);
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
            epoch.extend(&known);
            epoch.extend(entries(&granules, *merge));
        }
        Change::Cpu { apic_id } => {
            let cpus = [&instance.cpus[..], &[*apic_id]].concat();
            epoch = cpu_entries(&cpus);
            epoch.extend(&known);
            epoch.extend(entries(&instance.granules, true));
        }
        Change::Shrink { count, merge } => {
            let left = (instance.granules.len() as u64).saturating_sub(*count);
            let mut granules = instance.granules.clone();
            granules.retain(|number, _| *number < left);
            epoch = cpu_entries(&instance.cpus);
            epoch.extend(&known);
            epoch.extend(entries(&granules, *merge));
        }
        Change::FewerCpus { count } => {
            let left = instance.cpus.len().saturating_sub(*count);
            epoch = cpu_entries(&instance.cpus[..left]);
            epoch.extend(entries(&instance.granules, true));
            epoch.extend(&known);
        }
        Change::Function {
            number,
            config,
            place,
            size,
            flags,
        } => {
            epoch.push(function(*number, config * 4096, None));
            let registers = Registers {
                bar: (number % 5) as u8,
                flags: *flags,
                phys: place << size,
                bytes: 1 << size,
            };
            epoch.push(registers.entry());
        }
        Change::How { kind } => epoch.push([*kind, 0, 0, 0]),
        Change::FunctionLeaves { which, granules } => {
            let mut functions = by_function(&known);
            if let Some(number) = functions.keys().nth(*which).copied() {
                functions.remove(&number);
            }
            let left = (instance.granules.len() as u64).saturating_sub(*granules);
            let mut granules = instance.granules.clone();
            granules.retain(|number, _| *number < left);
            epoch = cpu_entries(&instance.cpus);
            epoch.extend(functions.values().flatten());
            epoch.extend(entries(&granules, true));
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
        (limit, cpu_limit, looked) in (5u64..40, 1usize..6, any::<bool>()),
        changes in proptest::collection::vec(change(), 20),
    ) {
        let mut instance = Instance::new(limit, cpu_limit);
        for change in &changes {
            let epoch = changed(&instance, change);
            let wanted = instance.model(&epoch);
            let totals = wanted.as_ref().map(|(cpus, granules, _)| Totals {
                frames: granules.len() as u64 * GRANULE_FRAMES,
                cpus: cpus.len(),
            });
            prop_assert_eq!(check(&epoch, &instance).ok(), totals, "{:?}", epoch);
            if let Some((cpus, granules, functions)) = wanted {
                (instance.cpus, instance.granules) = (cpus, granules);
                instance.functions = looked.then_some(functions);
            }
        }
    }

    /// Any word is an answer that becomes the same word again, but for bits that mean nothing, or
    /// none.
    #[test]
    fn words_are_answers_or_not(word: u64, code in 0u64..21) {
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
    let table: [Case<'_>; 27] = [
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
        (&[[4, 0, 0, 0]], Err(Refusal::Kind(0))),
        (&[[10, 0, 0, 0]], Err(Refusal::Kind(0))),
        (&[is, [8, 1, 0, 0]], Err(Refusal::Kind(1))),
        (&[[8, 0, 0, 0], is], Ok((5, 1))),
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
    // The last granules may leave, but no other comes in their place.
    for (entries, left) in [(&[is][..], 5), (&[is, new(5, 7, 1)], 6)] {
        let totals = check(entries, &grown).map(|totals| totals.frames / GRANULE_FRAMES);
        assert_eq!(totals, Ok(left));
    }
    for entries in [
        &[is, new(5, 8, 1)][..],
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
        Refusal::Function(7),
        Refusal::pages_of_kernel(37),
        Refusal::pages_of_programs(0xff_ffff),
        Refusal::short_of(MAX_ENTRIES as u64),
        Refusal::mounted(1),
        Refusal::open(2000),
        Refusal::up(0xff_ffff),
        Refusal::NotReset,
    ] {
        let answer = Answer {
            epoch: 77,
            verdict: Verdict::Refused(refusal),
        };
        assert_eq!(Answer::from_word(answer.to_word()), Some(answer));
        assert!(!refusal.to_string().is_empty());
    }
    assert_eq!(Refusal::short_of(1 << 40), Refusal::Short(0xff_ffff));
    assert_eq!(Answer::from_word(0), None);
    assert_eq!(Answer::from_word((MAX_ENTRIES as u64) << 8 | 3), None);
}

#[test]
fn functions_have_places_of_their_own() {
    let instance = Instance::new(20, 3);
    let is = [2, 0, 10, 10];
    // At the first granule of the first memory and behind its last one.
    let (memory_at, free) = (100 << 21, 103 << 21);
    let config = 0xb000_3000;
    let disk = function(0x18, config, None);
    let bar = |bar: u8, flags: u8, phys: u64, bytes: u64| {
        let registers = Registers {
            bar,
            flags,
            phys,
            bytes,
        };
        assert_eq!(Registers::of(&registers.entry()), registers);
        registers.entry()
    };
    let good = [
        is,
        disk,
        bar(1, 0, free, 4096),
        bar(4, 12, 1 << 40, 1 << 14),
    ];
    let totals = Totals {
        frames: 5 * GRANULE_FRAMES,
        cpus: 1,
    };
    assert_eq!(check(&good, &instance), Ok(totals));
    let second = [&good[..], &[function(0x19, config + 4096, None)]].concat();
    assert_eq!(check(&second, &instance), Ok(totals));
    let grown = memory(MemRange {
        first_frame: 5 * GRANULE_FRAMES,
        phys: free,
        count: GRANULE_FRAMES,
    });
    let (no, twice) = (Refusal::Function, Refusal::Overlap);
    let table: [(&[Entry], Refusal); 26] = [
        // What is memory, in whatever order, or another function's.
        (&[is, disk, bar(1, 0, memory_at, 4096)], twice(2)),
        (&[is, disk, bar(1, 0, free - 4096, 4096)], twice(2)),
        (&[is, function(0x18, memory_at, None)], twice(1)),
        (&[is, disk, bar(1, 0, free, 4096), grown], twice(3)),
        (&[is, grown, disk, bar(1, 0, free, 4096)], twice(3)),
        (&[is, disk, bar(1, 4, config & !0xffff, 1 << 16)], twice(2)),
        (&[is, disk, function(0x19, config, None)], twice(2)),
        (&[is, disk, good[2], bar(2, 0, free, 8192)], twice(3)),
        // Two alike, or no order.
        (&[is, disk, disk], no(2)),
        (&[is, disk, function(0x17, config + 4096, None)], no(2)),
        (&[is, disk, good[2], bar(1, 0, free + 4096, 4096)], no(3)),
        (&[is, disk, good[3], bar(5, 0, free, 4096)], no(3)),
        // Registers of no function.
        (&[is, good[2]], no(1)),
        (&[good[2], is], no(0)),
        (&[disk, is, good[2]], no(2)),
        // Places that there are not.
        (&[is, function(0x18, config + 1, None)], no(1)),
        (&[is, function(0x18, 0, None)], no(1)),
        (&[is, function(0x18, 1 << 52, None)], no(1)),
        (&[is, disk, bar(1, 0, free, 2048)], no(2)),
        (&[is, disk, bar(1, 0, free, 12288)], no(2)),
        (&[is, disk, bar(1, 0, free + 4096, 8192)], no(2)),
        (&[is, disk, bar(1, 0, 0xfee0_1000, 4096)], no(2)),
        (&[is, disk, bar(1, 0, 1 << 32, 4096)], no(2)),
        // Base address registers that there are not.
        (&[is, disk, bar(6, 0, free, 4096)], no(2)),
        (&[is, disk, bar(5, 4, free, 4096)], no(2)),
        (&[is, disk, bar(1, 1, free, 4096)], no(2)),
    ];
    for (entries, wanted) in table {
        assert_eq!(check(entries, &instance), Err(wanted), "{entries:x?}");
    }
    // A virtual function says what it is, by what there can be.
    let of = |identity| virtual_function(0x18, identity, config, None);
    assert_eq!(function_of(&of(0x0010_1b36)), (0x18, config, None));
    assert_eq!(
        (identity_of(&of(0x0010_1b36)), identity_of(&disk)),
        (0x0010_1b36, 0)
    );
    assert_eq!(
        check(&[is, of(0x0010_1b36), good[2]], &instance),
        Ok(totals)
    );
    for nobody in [0x0010_0000, 0x0010_ffff, u32::MAX] {
        assert_eq!(
            check(&[is, of(nobody)], &instance),
            Err(no(1)),
            "{nobody:x}"
        );
    }
    let again = virtual_function(0x18, 0x0011_1b36, config + 4096, None);
    assert_eq!(check(&[is, of(0x0010_1b36), again], &instance), Err(no(2)));
    // Messages: no vector of nobody's or of another function's, no address of anything else.
    let told = |number, page: u64, address, vector, count| {
        let messages = Messages {
            address,
            vector,
            count,
        };
        function(number, config + page * 4096, Some(messages))
    };
    let first = told(0x18, 0, 0xfee0_0038, 0x40, 16);
    let (_, _, messages) = function_of(&first);
    assert_eq!(messages.unwrap().vectors(), 0x40..0x50);
    assert_eq!(function_of(&disk), (0x18, config, None));
    for good in [
        [is, first, told(0x19, 1, 0xfee0_0238, 0x50, 16)],
        [
            is,
            told(0x18, 0, 0xfee0_0000, 0xdf, 1),
            told(0x19, 1, 0xfeef_ffff, 0x40, 0x9f),
        ],
    ] {
        assert_eq!(check(&good, &instance), Ok(totals), "{good:x?}");
    }
    let mut wider = first;
    wider[3] |= 1 << 48;
    for (entries, wanted) in [
        (&[is, first, told(0x19, 1, 0xfee0_0238, 0x4f, 1)], no(2)),
        (&[is, first, told(0x19, 1, 0xfee0_0238, 0x40, 64)], no(2)),
        (&[is, told(0x18, 0, 0xfee0_0038, 0x3f, 2), disk], no(1)),
        (&[is, told(0x18, 0, 0xfee0_0038, 0xdf, 2), disk], no(1)),
        (&[is, told(0x18, 0, 0xfee0_0038, 0x40, 0), disk], no(1)),
        (&[is, told(0x18, 0, 0xfed0_0038, 0x40, 1), disk], no(1)),
        (&[is, told(0x18, 0, 0xfef0_0000, 0x40, 1), disk], no(1)),
        (&[is, wider, disk], no(1)),
    ] {
        assert_eq!(check(entries, &instance), Err(wanted), "{entries:x?}");
    }
    // Once it has looked they come and go, and stay as they are meanwhile.
    let mut looked = Instance::new(20, 3);
    looked.functions = Some(good[1..].to_vec());
    assert_eq!(check(&good, &looked), Ok(totals));
    assert_eq!(check(&good[..1], &looked), Ok(totals));
    assert_eq!(check(&good[..3], &looked), Err(Refusal::Missing));
    assert_eq!(check(&second, &looked), Ok(totals));
    let elsewhere = [is, function(0x18, config + 4096, None), good[2], good[3]];
    assert_eq!(check(&elsewhere, &looked), Err(Refusal::Missing));
    looked.granules.insert(5, 200);
    let forced = [is, [9, 0, 0, 0]];
    assert_eq!(check(&forced, &looked), Err(Refusal::Missing));
    looked.granules.remove(&5);
    assert_eq!(check(&forced, &looked), Ok(totals));
    let alike = [is, first, function(0x19, config + 4096, None)];
    assert_eq!(check(&alike, &instance), Err(no(2)));
}

/// Members of groups are peers once for each group, with the doorbell of the instance.
#[test]
fn members_of_groups_have_places_of_theirs() {
    let mut instance = Instance::new(16, 4);
    instance.places = MAX_PLACES;
    let named = Peer {
        place: 3,
        name: 1,
        instance: 7,
        apic_id: 20,
        generation: 5,
    };
    let member = |place: usize, group: usize, instance, apic_id, generation| Peer {
        place: place as u8,
        name: (MAX_NAMES + group) as u8,
        instance,
        apic_id,
        generation,
    };
    let verdict = |instance: &Instance, peers: &[Peer]| {
        let entries = peers.iter().map(|one| peer(one, 0x29));
        let listed: Vec<_> = cpu_entries(&[10]).into_iter().chain(entries).collect();
        check(&listed, instance).map(|_| ())
    };
    let good = [
        named,
        member(PEER_PLACES, 0, 7, 20, 6),
        member(PEER_PLACES + 1, 0, 8, 21, 7),
        member(PEER_PLACES + 2, 1, 7, 20, 8),
        member(MAX_PLACES - 1, MAX_GROUPS - 1, 9, 22, 9),
    ];
    assert_eq!(verdict(&instance, &good), Ok(()));
    let wrong = [
        member(PEER_PLACES - 1, 0, 8, 21, 7),
        member(PEER_PLACES, 0, 8, 21, 7),
        member(MAX_PLACES, 0, 8, 21, 7),
        member(PEER_PLACES + 1, MAX_GROUPS, 8, 21, 7),
        member(PEER_PLACES + 1, 0, 7, 20, 7),
        member(PEER_PLACES + 1, 1, 7, 21, 7),
        member(PEER_PLACES + 1, 0, 8, 20, 7),
        member(PEER_PLACES + 1, 0, 8, 21, 6),
    ];
    for two in wrong {
        let refused = verdict(&instance, &[named, good[1], two]);
        assert_eq!(refused, Err(Refusal::Peer(3)), "{two:?}");
    }
    let in_place_of_a_member = Peer {
        place: PEER_PLACES as u8,
        ..named
    };
    let refused = verdict(&instance, &[in_place_of_a_member]);
    assert_eq!(refused, Err(Refusal::Peer(1)));
    instance.places = PEER_PLACES;
    assert_eq!(verdict(&instance, &good[..1]), Ok(()));
    assert_eq!(verdict(&instance, &good[..2]), Err(Refusal::Peer(2)));
}

/// A peer is one that there can be, in a place of its own, or the whole epoch is refused.
#[test]
fn peers_have_places_and_doorbells_of_their_own() {
    let mut instance = Instance::new(16, 4);
    instance.places = PEER_PLACES;
    let one = Peer {
        place: 3,
        name: 1,
        instance: 7,
        apic_id: 20,
        generation: 5,
    };
    let two = Peer {
        place: 4,
        name: 0,
        instance: 8,
        apic_id: 21,
        generation: 6,
    };
    let verdict = |instance: &Instance, peers: &[Entry]| {
        let listed = [&cpu_entries(&[10]), peers].concat();
        check(&listed, instance).map(|_| ())
    };
    let both = |two: Peer| [peer(&one, 0x29), peer(&two, 0x29)];
    assert_eq!(verdict(&instance, &both(two)), Ok(()));
    assert_eq!(peer_of(&both(two)[1]), (two, 0x29));
    let wrong = [
        Peer { place: 3, ..two },
        Peer { place: 2, ..two },
        Peer {
            place: PEER_PLACES as u8,
            ..two
        },
        Peer { name: 1, ..two },
        Peer {
            name: MAX_NAMES as u8,
            ..two
        },
        Peer { instance: 7, ..two },
        Peer { instance: 0, ..two },
        Peer { apic_id: 20, ..two },
        Peer { apic_id: 10, ..two },
        Peer {
            generation: 5,
            ..two
        },
        Peer {
            generation: 0,
            ..two
        },
    ];
    for two in wrong {
        let refused = verdict(&instance, &both(two));
        assert_eq!(refused, Err(Refusal::Peer(2)), "{two:?}");
    }
    for vector in [0x1f, 0xff] {
        let refused = verdict(&instance, &[peer(&one, vector)]);
        assert_eq!(refused, Err(Refusal::Peer(1)), "{vector:x}");
    }
    // Bits that no field has.
    for (word, bit) in [(0, 32), (1, 16), (2, 40), (3, 32)] {
        let mut entry = peer(&one, 0x29);
        entry[word] |= 1 << bit;
        assert!(verdict(&instance, &[entry]).is_err(), "{word}, {bit}");
    }
    // A CPU behind it that is its doorbell's.
    let taken = [peer(&one, 0x29), cpu_entries(&[10, 20])[1]];
    assert_eq!(verdict(&instance, &taken), Err(Refusal::Peer(1)));
    instance.places = 0;
    assert_eq!(
        verdict(&instance, &[peer(&one, 0x29)]),
        Err(Refusal::Peer(1))
    );
    for refusal in [Refusal::Peer(0), Refusal::Peer(100)] {
        let verdict = Verdict::Refused(refusal);
        let answer = Answer { epoch: 9, verdict };
        assert_eq!(Answer::from_word(answer.to_word()), Some(answer));
    }
}
