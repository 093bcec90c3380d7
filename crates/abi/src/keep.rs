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

mod copies;
mod flow;

use core::sync::atomic::{AtomicU64, Ordering};

use copies::Copies;
pub use flow::{FLOWS, KeptFlow};

use crate::descriptor::{LABEL_BYTES, MAX_CPUS};
use crate::dev::{MAX_DEVICES, MAX_NETWORKS, MAX_PORTS, PROTOCOL_TCP, PROTOCOL_UDP, PublishedPort};
use crate::messages::MAX_PLACES;

/// Records that there is room for: each instance has a CPU at least.
pub const RECORDS: usize = MAX_CPUS;
const LABEL: usize = LABEL_BYTES / 8;
/// Words at the head of a record's content.
const HEAD: usize = 9;
/// Words for the numbers of functions, two in each.
const FUNCTIONS: usize = MAX_DEVICES / 2;
/// Words of a record's content.
const CONTENT: usize = HEAD + FUNCTIONS + LABEL + MAX_PLACES + MAX_PORTS;
/// Words of a network's record.
const NETWORK_CONTENT: usize = 2 + LABEL;
/// Words of both copies of a record, of an instance and of a network.
const RECORD: usize = copies::words(CONTENT);
const NETWORK: usize = copies::words(NETWORK_CONTENT);
/// Networks have places of other numbers than instances, so that the one cannot stand for the
/// other.
const FIRST_NETWORK: usize = RECORDS;

/// An owner, as a word says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The supervisor, or nobody: a CPU waits in the park page, memory is free or the supervisor's.
    Supervisor,
    /// The instance of that number may use it.
    Instance(u32),
    /// The supervisor's, and units that confine devices (IOMMU) read it.
    Units,
    /// The word is none that was ever written.
    Unknown,
}

/// In the place of an instance's number, of what units read. No instance has it.
const UNITS: u32 = u32::MAX;

impl Owner {
    const fn word(id: u32) -> u64 {
        id as u64 | (!id as u64) << 32
    }

    const fn of(word: u64) -> Self {
        let id = word as u32;
        match (word == Self::word(id), id) {
            (false, _) => Self::Unknown,
            (true, 0) => Self::Supervisor,
            (true, UNITS) => Self::Units,
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
    /// A bit for each place in which it writes the second page, not the first.
    pub second_pages: u32,
    /// Numbers of PCI functions that it may have reach memory; [`NO_FUNCTION`] for none.
    pub functions: [u32; MAX_DEVICES],
    /// The address that it has in a network, and what leads there; without a network all zeroes.
    pub lease: KeptLease,
    /// Unix time at which it was created, in nanoseconds.
    pub created_ns: u64,
    /// Unix time at which it was started, in nanoseconds.
    pub started_ns: u64,
}

/// Address of an instance in a network of instances, and ports of the machine that lead to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeptLease {
    /// Number of the network; 0: the default one.
    pub network: u32,
    /// The address, as a number; 0: the instance has no network.
    pub address: u32,
    /// Published ports of the instance; protocol 0: none.
    pub ports: [PublishedPort; MAX_PORTS],
}

/// A network of instances that somebody has made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptNetwork {
    /// Number of the network; never 0, which is that of the one that there always is.
    pub number: u32,
    /// Name of the network, padded with zeroes.
    pub label: [u8; LABEL_BYTES],
    /// Address of the supervisor in it, as a number.
    pub gateway: u32,
    /// Bits that all its addresses have.
    pub prefix_len: u32,
}

fn label_words(label: &[u8; LABEL_BYTES]) -> [u64; LABEL] {
    let mut words = [0; LABEL];
    for (word, bytes) in words.iter_mut().zip(label.as_chunks().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    words
}

fn label_of(words: &[u64; LABEL]) -> [u8; LABEL_BYTES] {
    let mut label = [0; LABEL_BYTES];
    for (bytes, word) in label.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *bytes = word.to_le_bytes();
    }
    label
}

impl KeptLease {
    /// A word for each port; which of them are of UDP says a bit of `is_udp`.
    fn port_words(&self) -> ([u64; MAX_PORTS], u32) {
        let (mut words, mut is_udp) = ([0; MAX_PORTS], 0);
        for (number, (word, port)) in words.iter_mut().zip(&self.ports).enumerate() {
            if port.protocol != 0 {
                let inner = u64::from(port.inner);
                *word = u64::from(port.address) | u64::from(port.port) << 32 | inner << 48;
                is_udp |= u32::from(port.protocol == PROTOCOL_UDP) << number;
            }
        }
        (words, is_udp)
    }

    fn ports_of(words: &[u64; MAX_PORTS], is_udp: u32) -> [PublishedPort; MAX_PORTS] {
        core::array::from_fn(|number| match words[number] {
            // No port is published at port 0.
            0 => PublishedPort::default(),
            word => PublishedPort {
                address: word as u32,
                protocol: match is_udp >> number & 1 {
                    0 => PROTOCOL_TCP,
                    _ => PROTOCOL_UDP,
                },
                port: (word >> 32) as u16,
                inner: (word >> 48) as u16,
            },
        })
    }
}

impl KeptNetwork {
    fn to_words(self) -> [u64; NETWORK_CONTENT] {
        let mut words = [0; NETWORK_CONTENT];
        words[0] = self.number.into();
        words[1] = u64::from(self.gateway) | u64::from(self.prefix_len) << 32;
        words[2..].copy_from_slice(&label_words(&self.label));
        words
    }

    fn from_words(words: &[u64; NETWORK_CONTENT]) -> Option<Self> {
        let (head, label) = words.split_first_chunk::<2>()?;
        let network = Self {
            number: head[0] as u32,
            label: label_of(label.first_chunk()?),
            gateway: head[1] as u32,
            prefix_len: (head[1] >> 32) as u32,
        };
        (network.number != 0).then_some(network)
    }
}

/// No frame.
pub const NO_FRAME: u64 = u64::MAX;
/// No function.
pub const NO_FUNCTION: u32 = u32::MAX;
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
        let (ports, is_udp) = self.lease.port_words();
        let (head, rest) = words.split_at_mut(HEAD);
        head.copy_from_slice(&[
            u64::from(self.id) | u64::from(self.flags) << 32,
            self.descriptor,
            self.live,
            self.window,
            self.network.unwrap_or(NO_FRAME),
            self.created_ns,
            self.started_ns,
            u64::from(self.lease.address) | u64::from(self.lease.network) << 32,
            u64::from(self.second_pages) | u64::from(is_udp) << 32,
        ]);
        let (functions, rest) = rest.split_at_mut(FUNCTIONS);
        for (word, [low, high]) in functions.iter_mut().zip(self.functions.as_chunks().0) {
            *word = u64::from(*low) | u64::from(*high) << 32;
        }
        let (label, rest) = rest.split_at_mut(LABEL);
        label.copy_from_slice(&label_words(&self.label));
        let (places, rest) = rest.split_at_mut(MAX_PLACES);
        places.copy_from_slice(&self.places);
        rest.copy_from_slice(&ports);
        words
    }

    fn from_words(words: &[u64; CONTENT]) -> Option<Self> {
        let (head, rest) = words.split_first_chunk::<HEAD>()?;
        let (functions, rest) = rest.split_first_chunk::<FUNCTIONS>()?;
        let (label, rest) = rest.split_first_chunk::<LABEL>()?;
        let (places, ports) = rest.split_first_chunk::<MAX_PLACES>()?;
        let record = Self {
            id: head[0] as u32,
            flags: (head[0] >> 32) as u32,
            descriptor: head[1],
            live: head[2],
            window: head[3],
            network: Some(head[4]).filter(|frame| *frame != NO_FRAME),
            created_ns: head[5],
            started_ns: head[6],
            label: label_of(label),
            places: *places,
            second_pages: head[8] as u32,
            functions: core::array::from_fn(|number| {
                (functions[number / 2] >> (32 * (number % 2))) as u32
            }),
            lease: KeptLease {
                network: (head[7] >> 32) as u32,
                address: head[7] as u32,
                ports: KeptLease::ports_of(ports.first_chunk()?, (head[8] >> 32) as u32),
            },
        };
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
    generation: &'a AtomicU64,
    cpus: &'a [AtomicU64],
    granules: &'a [AtomicU64],
    records: &'a [AtomicU64],
    networks: &'a [AtomicU64],
    flows: &'a [AtomicU64],
}

impl<'a> Keep<'a> {
    /// Words that the notes take where so many granules of memory have a number.
    #[must_use]
    pub const fn words(granules: usize) -> usize {
        2 + MAX_CPUS + RECORD * RECORDS + NETWORK * MAX_NETWORKS + flow::WORDS * FLOWS + granules
    }

    /// The notes in words; `None` if there are fewer than notes take at least.
    #[must_use]
    pub fn new(words: &'a [AtomicU64]) -> Option<Self> {
        let (next_id, words) = words.split_first()?;
        let (generation, words) = words.split_first()?;
        let (cpus, words) = words.split_at_checked(MAX_CPUS)?;
        let (records, words) = words.split_at_checked(RECORD * RECORDS)?;
        let (networks, words) = words.split_at_checked(NETWORK * MAX_NETWORKS)?;
        let (flows, granules) = words.split_at_checked(flow::WORDS * FLOWS)?;
        Some(Self {
            next_id,
            generation,
            cpus,
            granules,
            records,
            networks,
            flows,
        })
    }

    /// Makes them the notes of a machine without instances.
    pub fn init(&self) {
        let owners = self.cpus.iter().chain(self.granules);
        owners.for_each(|word| word.store(Owner::word(0), Ordering::Relaxed));
        let records = self.records.iter().chain(self.networks);
        records.for_each(|word| word.store(0, Ordering::Relaxed));
        let flows = self.flows.as_chunks().0;
        flows.iter().for_each(flow::clear);
        self.note_id(0);
        self.note_generation(0);
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

    /// Notes that two peers have a generation, and so no others are to have that or one below.
    pub fn note_generation(&self, generation: u32) {
        let word = Owner::word(generation);
        self.generation.store(word, Ordering::Release);
    }

    /// The highest generation that two peers had; `None` if the word does not prove itself.
    #[must_use]
    pub fn last_generation(&self) -> Option<u32> {
        let word = self.generation.load(Ordering::Acquire);
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

    /// Units may read a granule from now on, by its number, and do so when the supervisor ends.
    pub fn set_units_granule(&self, granule: u64) {
        self.set_granule(granule, UNITS);
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

    fn copies(&self, place: usize) -> Copies<'a, CONTENT> {
        Copies::new(&self.records[RECORD * place..][..RECORD], place)
    }

    fn network_copies(&self, place: usize) -> Copies<'a, NETWORK_CONTENT> {
        let words = &self.networks[NETWORK * place..][..NETWORK];
        Copies::new(words, FIRST_NETWORK + place)
    }

    /// Looks at the place of that number.
    ///
    /// # Panics
    /// If it is not below [`RECORDS`].
    #[must_use]
    pub fn place(&self, place: usize) -> Place {
        let copies = self.copies(place);
        match copies.content() {
            Some(content) if content[0] as u32 == 0 => Place::Free,
            Some(content) => Record::from_words(&content).map_or(Place::Bad, Place::Record),
            None if copies.are_new() => Place::Free,
            None => Place::Bad,
        }
    }

    /// Writes a record, or that there is none: whoever looks at whatever moment finds the record of
    /// before, or this one. One writer at a time for each place.
    ///
    /// # Panics
    /// If the place's number is not below [`RECORDS`].
    pub fn write(&self, place: usize, record: Option<&Record>) {
        let content = record.map_or([0; CONTENT], |record| record.to_words());
        self.copies(place).write(&content);
    }

    /// Damages a copy of the record of a place, for tests of what comes then.
    ///
    /// # Panics
    /// If the place's number is not below [`RECORDS`], or there are not so many copies.
    pub fn damage(&self, place: usize, copy: usize) {
        self.copies(place).damage(copy);
    }

    /// All networks that are noted. One whose record was written over is none.
    pub fn networks(&self) -> impl Iterator<Item = KeptNetwork> + use<'a> {
        let this = *self;
        (0..MAX_NETWORKS).filter_map(move |place| {
            let content = this.network_copies(place).content()?;
            KeptNetwork::from_words(&content)
        })
    }

    /// Notes a network. False if there are [`MAX_NETWORKS`]. One writer at a time.
    #[must_use]
    pub fn note_network(&self, network: &KeptNetwork) -> bool {
        let is_free = |place: &usize| {
            let content = self.network_copies(*place).content();
            content.is_none_or(|content| KeptNetwork::from_words(&content).is_none())
        };
        let place = (0..MAX_NETWORKS).find(is_free);
        place.is_some_and(|place| {
            self.network_copies(place).write(&network.to_words());
            true
        })
    }

    /// Notes that there is no network of that number any more. One writer at a time.
    pub fn forget_network(&self, number: u32) {
        for place in 0..MAX_NETWORKS {
            let copies = self.network_copies(place);
            let kept = copies.content().and_then(|w| KeptNetwork::from_words(&w));
            if kept.is_some_and(|kept| kept.number == number) {
                copies.write(&[0; NETWORK_CONTENT]);
            }
        }
    }

    /// Notes a flow of address translation at a place, or that there is none: whoever looks while
    /// it is written finds none. One writer at a time for each place; one that is not below
    /// [`FLOWS`] is not noted.
    pub fn note_flow(&self, place: u32, flow: Option<&KeptFlow>) {
        if let Some(words) = self.flow_words(place) {
            flow::write(words, place, flow);
        }
    }

    /// The flow that is noted at a place. One that was half written, or written over, is none.
    #[must_use]
    pub fn flow(&self, place: u32) -> Option<KeptFlow> {
        flow::read(self.flow_words(place)?, place)
    }

    fn flow_words(&self, place: u32) -> Option<&'a [AtomicU64; flow::WORDS]> {
        self.flows.as_chunks().0.get(place as usize)
    }

    /// Whether an instance may have a PCI function reach memory.
    #[must_use]
    pub fn has_function(&self, number: u32) -> bool {
        let mut records = self.records();
        records.any(|(_, record)| record.functions.contains(&number))
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
