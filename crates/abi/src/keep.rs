//! Notes that outlive a supervisor: who has which CPUs and which memory, and where the pages are
//! that an instance shares with it (`docs/supervisor-restart.md`).
//!
//! The supervisor writes them while it is well, into memory that its next kernel leaves alone, and
//! that kernel reads them. Between the two lies a crash, so nothing is believed that does not prove
//! itself: an owner is a word that holds its own complement, and a record of an instance is written
//! twice, one copy at a time, each with a sequence number and a check. A copy that was half
//! written, or written over, is none, and the other one counts.
//!
//! One word of an owner, and one whole record, are the units that change at once.

use core::sync::atomic::{AtomicU64, Ordering, fence};

use crate::descriptor::{LABEL_BYTES, MAX_CPUS};
use crate::messages::MAX_PLACES;

/// Records that there is room for: each instance has a CPU at least.
pub const RECORDS: usize = MAX_CPUS;
/// Words of one copy of a record: the check, the sequence number, and the content.
const COPY: usize = 56;
const LABEL: usize = LABEL_BYTES / 8;
/// Words of a record's content.
const CONTENT: usize = 7 + LABEL + MAX_PLACES;

const _: () = assert!(CONTENT + 2 <= COPY);

/// An owner, as a word says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The supervisor, or nobody: a CPU waits in the park page, memory is free or the supervisor's.
    Supervisor,
    /// The instance of that number may use it.
    Instance(u32),
    /// The word is none that was ever written.
    Unknown,
}

impl Owner {
    const fn word(id: u32) -> u64 {
        id as u64 | (!id as u64) << 32
    }

    const fn of(word: u64) -> Self {
        let id = word as u32;
        match (word == Self::word(id), id) {
            (false, _) => Self::Unknown,
            (true, 0) => Self::Supervisor,
            (true, id) => Self::Instance(id),
        }
    }
}

/// Facts about an instance that its descriptor does not have. Frames are the supervisor's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The instance's number; never 0.
    pub id: u32,
    /// `KEPT_*`.
    pub flags: u32,
    /// Name of the instance, padded with zeroes.
    pub label: [u8; LABEL_BYTES],
    /// First frame of its descriptor.
    pub descriptor: u64,
    /// First frame of its descriptor's dynamic part.
    pub live: u64,
    /// First frame of its window.
    pub window: u64,
    /// First frame of the pages of its network, if it has one.
    pub network: Option<u64>,
    /// First frames of its places for peers; [`NO_FRAME`] where it has none.
    pub places: [u64; MAX_PLACES],
    /// Unix time at which it was created, in nanoseconds.
    pub created_ns: u64,
    /// Unix time at which it was started, in nanoseconds.
    pub started_ns: u64,
}

/// No frame.
pub const NO_FRAME: u64 = u64::MAX;
/// Flag of a record: a change of what the instance has is under way.
pub const KEPT_CHANGING: u32 = 1 << 0;
/// Flag of a record: the instance shares its cores.
pub const KEPT_SHARES: u32 = 1 << 1;
/// Flag of a record: nobody looks whether it hangs.
pub const KEPT_UNWATCHED: u32 = 1 << 2;
/// Flag of a record: it is halted if it hangs.
pub const KEPT_STOP_WHEN_HUNG: u32 = 1 << 3;
/// Flag of a record: each thread of the machine's cores but one is left unused.
pub const KEPT_SINGLE_THREAD: u32 = 1 << 4;

impl Record {
    fn to_words(self) -> [u64; CONTENT] {
        let mut words = [0; CONTENT];
        words[..7].copy_from_slice(&[
            u64::from(self.id) | u64::from(self.flags) << 32,
            self.descriptor,
            self.live,
            self.window,
            self.network.unwrap_or(NO_FRAME),
            self.created_ns,
            self.started_ns,
        ]);
        for (word, bytes) in words[7..].iter_mut().zip(self.label.as_chunks().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        words[7 + LABEL..].copy_from_slice(&self.places);
        words
    }

    fn from_words(words: &[u64; CONTENT]) -> Option<Self> {
        let (head, rest) = words.split_first_chunk::<7>()?;
        let (label, places) = rest.split_first_chunk::<LABEL>()?;
        let mut record = Self {
            id: head[0] as u32,
            flags: (head[0] >> 32) as u32,
            descriptor: head[1],
            live: head[2],
            window: head[3],
            network: Some(head[4]).filter(|frame| *frame != NO_FRAME),
            created_ns: head[5],
            started_ns: head[6],
            label: [0; LABEL_BYTES],
            places: places.try_into().ok()?,
        };
        for (bytes, word) in record.label.as_chunks_mut::<8>().0.iter_mut().zip(label) {
            *bytes = word.to_le_bytes();
        }
        (record.id != 0).then_some(record)
    }
}

/// State of a place for a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "looked at and dropped, one at a time"
)]
pub enum Place {
    /// No instance's.
    Free,
    /// An instance's.
    Record(Record),
    /// Written over: neither copy proves itself.
    Bad,
}

/// The notes: a view of the words that hold them.
#[derive(Clone, Copy, Debug)]
pub struct Keep<'a> {
    next_id: &'a AtomicU64,
    cpus: &'a [AtomicU64],
    granules: &'a [AtomicU64],
    records: &'a [AtomicU64],
}

impl<'a> Keep<'a> {
    /// Words that the notes take where so many granules of memory have a number.
    #[must_use]
    pub const fn words(granules: usize) -> usize {
        1 + MAX_CPUS + 2 * COPY * RECORDS + granules
    }

    /// The notes in words; `None` if there are fewer than notes take at least.
    #[must_use]
    pub fn new(words: &'a [AtomicU64]) -> Option<Self> {
        let (next_id, words) = words.split_first()?;
        let (cpus, words) = words.split_at_checked(MAX_CPUS)?;
        let (records, granules) = words.split_at_checked(2 * COPY * RECORDS)?;
        Some(Self {
            next_id,
            cpus,
            granules,
            records,
        })
    }

    /// Makes them the notes of a machine without instances.
    pub fn init(&self) {
        let owners = self.cpus.iter().chain(self.granules);
        owners.for_each(|word| word.store(Owner::word(0), Ordering::Relaxed));
        self.records
            .iter()
            .for_each(|word| word.store(0, Ordering::Relaxed));
        self.note_id(0);
    }

    /// Notes that the instance of a number is made, and so no other one is to have that.
    pub fn note_id(&self, id: u32) {
        self.next_id.store(Owner::word(id), Ordering::Release);
    }

    /// The highest number that an instance was made with; `None` if the word does not prove itself.
    #[must_use]
    pub fn last_id(&self) -> Option<u32> {
        let word = self.next_id.load(Ordering::Acquire);
        (Owner::of(word) != Owner::Unknown).then_some(word as u32)
    }

    /// The CPU of a park slot may be in the hands of that instance from now on, or is in the park
    /// page (0).
    pub fn set_cpu(&self, slot: usize, id: u32) {
        if let Some(word) = self.cpus.get(slot) {
            word.store(Owner::word(id), Ordering::SeqCst);
        }
    }

    /// Owner of the CPU of a park slot.
    #[must_use]
    pub fn cpu(&self, slot: usize) -> Owner {
        let word = self.cpus.get(slot).map(|word| word.load(Ordering::Acquire));
        word.map_or(Owner::Unknown, Owner::of)
    }

    /// A granule, by its number, may be in the hands of that instance from now on, or is the
    /// supervisor's (0).
    pub fn set_granule(&self, granule: u64, id: u32) {
        if let Some(word) = self.granules.get(granule as usize) {
            word.store(Owner::word(id), Ordering::SeqCst);
        }
    }

    /// Owner of a granule.
    #[must_use]
    pub fn granule(&self, granule: u64) -> Owner {
        let word = self.granules.get(granule as usize);
        let word = word.map(|word| word.load(Ordering::Acquire));
        word.map_or(Owner::Unknown, Owner::of)
    }

    /// Number of granules that there are words for.
    #[must_use]
    pub fn granules(&self) -> u64 {
        self.granules.len() as u64
    }

    fn copies(&self, place: usize) -> [&'a [AtomicU64]; 2] {
        let first = 2 * COPY * place;
        [0, 1].map(|copy| &self.records[first + copy * COPY..][..COPY])
    }

    /// The sequence number and the content of a copy, if it proves itself.
    fn read(copy: &[AtomicU64], seed: usize) -> Option<(u64, [u64; CONTENT])> {
        let check = copy[0].load(Ordering::Acquire);
        let sequence = copy[1].load(Ordering::Relaxed);
        let mut content = [0; CONTENT];
        for (to, from) in content.iter_mut().zip(&copy[2..]) {
            *to = from.load(Ordering::Relaxed);
        }
        (check == check_of(seed, sequence, &content)).then_some((sequence, content))
    }

    /// The newest copy of a record that proves itself, and which one it is.
    fn newest(&self, place: usize) -> Option<(usize, u64, [u64; CONTENT])> {
        let copies = self.copies(place).into_iter().enumerate();
        copies
            .filter_map(|(number, copy)| {
                let (sequence, content) = Self::read(copy, 2 * place + number)?;
                Some((number, sequence, content))
            })
            .max_by_key(|(_, sequence, _)| *sequence)
    }

    /// Looks at the place of that number.
    ///
    /// # Panics
    /// If it is not below [`RECORDS`].
    #[must_use]
    pub fn place(&self, place: usize) -> Place {
        match self.newest(place) {
            Some((_, _, content)) if content[0] as u32 == 0 => Place::Free,
            Some((_, _, content)) => Record::from_words(&content).map_or(Place::Bad, Place::Record),
            // Never written.
            None => {
                let mut words = self.copies(place).into_iter().flatten();
                let is_new = words.all(|word| word.load(Ordering::Relaxed) == 0);
                if is_new { Place::Free } else { Place::Bad }
            }
        }
    }

    /// Writes a record, or that there is none, over the older copy, and then over the other one:
    /// whoever looks at whatever moment finds the record of before, or this one, and afterwards one
    /// copy is enough. One writer at a time for each place.
    ///
    /// # Panics
    /// If the place's number is not below [`RECORDS`].
    pub fn write(&self, place: usize, record: Option<&Record>) {
        let content = record.map_or([0; CONTENT], |record| record.to_words());
        let (number, sequence) = match self.newest(place) {
            Some((newest, sequence, _)) => (1 - newest, sequence.wrapping_add(1)),
            None => (0, 1),
        };
        self.write_copy(place, number, sequence, &content);
        self.write_copy(place, 1 - number, sequence.wrapping_add(1), &content);
    }

    fn write_copy(&self, place: usize, number: usize, sequence: u64, content: &[u64; CONTENT]) {
        let copy = self.copies(place)[number];
        let seed = 2 * place + number;
        // Half written it is none.
        copy[0].store(!check_of(seed, sequence, content), Ordering::Relaxed);
        fence(Ordering::Release);
        copy[1].store(sequence, Ordering::Relaxed);
        for (to, from) in copy[2..].iter().zip(content) {
            to.store(*from, Ordering::Relaxed);
        }
        copy[0].store(check_of(seed, sequence, content), Ordering::Release);
    }

    /// Damages a copy of the record of a place, for tests of what comes then.
    ///
    /// # Panics
    /// If the place's number is not below [`RECORDS`], or there are not so many copies.
    pub fn damage(&self, place: usize, copy: usize) {
        self.copies(place)[copy][4].fetch_xor(0x10, Ordering::Relaxed);
    }

    /// All places with records.
    pub fn records(&self) -> impl Iterator<Item = (usize, Record)> {
        let this = *self;
        (0..RECORDS).filter_map(move |place| match this.place(place) {
            Place::Record(record) => Some((place, record)),
            Place::Free | Place::Bad => None,
        })
    }

    /// A place that is free.
    #[must_use]
    pub fn free_place(&self) -> Option<usize> {
        (0..RECORDS).find(|place| self.place(*place) == Place::Free)
    }

    /// Whether a record was written over: then nobody knows where its instance writes.
    #[must_use]
    pub fn has_bad_record(&self) -> bool {
        (0..RECORDS).any(|place| self.place(place) == Place::Bad)
    }
}

/// Check of a copy at its place: one word that was changed changes it, and so does one that was
/// moved.
fn check_of(seed: usize, sequence: u64, content: &[u64; CONTENT]) -> u64 {
    check(content.iter().copied().chain([sequence, seed as u64]))
}

/// Check of words in a row: FNV-1a by whole words, with the upper bits folded in each time. It
/// finds what goes wrong, not what is forged.
#[must_use]
pub fn check(words: impl Iterator<Item = u64>) -> u64 {
    words.fold(0xcbf2_9ce4_8422_2325, |sum, word| {
        let mixed = (sum ^ word).wrapping_mul(0x0000_0100_0000_01b3);
        mixed ^ mixed >> 29
    })
}

#[cfg(test)]
mod tests;
