//! The dynamic part of a descriptor: what an instance has that changes while it runs
//! (`docs/descriptor.md`).
//!
//! The supervisor replaces the table as a whole (an *epoch*; `ring::epoch` has the protocol), the
//! instance adopts it as a whole or not at all, and answers by one word.

use core::fmt;
use core::mem::{offset_of, size_of};
use core::ops::Range;
use core::sync::atomic::AtomicU64;

use crate::descriptor::{CpuEntry, MAX_CPUS, MemRange};
use crate::layout::{GRANULE_FRAMES, GRANULE_SIZE, PAGE_SIZE};
use crate::messages::{MAX_GROUPS, MAX_NAMES, Peer, VECTORS, is_group, places_for};

/// Bytes of the dynamic part: four pages.
pub const SIZE: usize = 16 << 10;
/// Most entries of the table.
pub const MAX_ENTRIES: usize = SIZE / size_of::<Entry>() - 1;

/// `kind`: memory beyond the first; `content` is a [`MemRange`].
pub const KIND_MEMORY: u32 = 1;
/// `kind`: a CPU; `content` is its number, its APIC id and its park slot.
pub const KIND_CPU: u32 = 2;
/// `kind`: a peer; `content` is [`Peer`] ([`peer`]).
pub const KIND_PEER: u32 = 3;
/// `kind`: a PCI function; `content` is its number ([`function`]), and in the upper half what it is
/// if it does not say that itself ([`virtual_function`]); the physical address of its page of
/// configuration space; and [`Messages`], or 0 if it has no such.
pub const KIND_FUNCTION: u32 = 6;
/// `kind`: registers of the function whose entry is the last one before; `content` is
/// [`Registers`].
pub const KIND_REGISTERS: u32 = 7;

/// `kind`: nothing that the instance has, but how memory is to leave it: its caches are written
/// back and give up what they can, if it cannot leave without; `content` is zero ([`RECLAIM`]).
pub const KIND_RECLAIM: u32 = 8;
/// The entry of [`KIND_RECLAIM`].
pub const RECLAIM: Entry = [KIND_RECLAIM as u64, 0, 0, 0];

/// `kind`: nothing that the instance has, but how functions are to leave it: whoever uses them is
/// not asked; `content` is zero ([`FORCE`]).
pub const KIND_FORCE: u32 = 9;
/// The entry of [`KIND_FORCE`].
pub const FORCE: Entry = [KIND_FORCE as u64, 0, 0, 0];

/// One entry as words: the kind in the lower half of the first one and flags in the upper, then the
/// content.
pub type Entry = [u64; 4];

/// The table in memory that supervisor and instance share. The instance sees it read-only.
#[derive(Debug)]
#[repr(C, align(4096))]
pub struct Live {
    /// Twice the number of the epoch; one less while it is being written.
    pub counter: AtomicU64,
    /// Number of entries in use.
    pub count: AtomicU64,
    /// Zero.
    pub reserved: [AtomicU64; 2],
    /// The entries.
    pub entries: [[AtomicU64; 4]; MAX_ENTRIES],
}

const _: () = {
    assert!(size_of::<Live>() == SIZE && size_of::<Entry>() == 32);
    assert!(offset_of!(Live, entries) == 32);
};

/// The entry for a range of memory.
#[must_use]
pub const fn memory(range: MemRange) -> Entry {
    [
        KIND_MEMORY as u64,
        range.first_frame,
        range.phys,
        range.count,
    ]
}

/// The entry for the CPU of a number.
#[must_use]
pub const fn cpu(number: u64, cpu: CpuEntry) -> Entry {
    [KIND_CPU as u64, number, cpu.apic_id as u64, cpu.slot as u64]
}

/// The entry for a peer whose doorbell has a vector.
#[must_use]
pub const fn peer(peer: &Peer, vector: u8) -> Entry {
    let place = peer.place as u64 | (peer.name as u64) << 8 | (peer.instance as u64) << 32;
    let doorbell = peer.apic_id as u64 | (vector as u64) << 32;
    [KIND_PEER as u64, place, doorbell, peer.generation as u64]
}

/// The peer of an entry that was [checked](check), and its doorbell's vector.
#[must_use]
pub const fn peer_of(entry: &Entry) -> (Peer, u8) {
    let peer = Peer {
        place: entry[1] as u8,
        name: (entry[1] >> 8) as u8,
        instance: (entry[1] >> 32) as u32,
        apic_id: entry[2] as u32,
        generation: entry[3] as u32,
    };
    (peer, (entry[2] >> 32) as u8)
}

/// The entry for a PCI function: segment, bus, and device and function in one byte, as one number;
/// its page of configuration space; its interrupt messages, if a unit remaps them.
#[must_use]
pub const fn function(number: u32, config: u64, messages: Option<Messages>) -> Entry {
    let messages = match messages {
        Some(messages) => messages.word(),
        None => 0,
    };
    [KIND_FUNCTION as u64, number as u64, config, messages]
}

/// The same for a virtual function, which does not say itself what it is: manufacturer in the lower
/// half of `identity`, and product.
#[must_use]
pub const fn virtual_function(
    number: u32,
    identity: u32,
    config: u64,
    messages: Option<Messages>,
) -> Entry {
    let mut entry = function(number, config, messages);
    entry[1] |= (identity as u64) << 32;
    entry
}

/// Manufacturer and product of a function whose entry tells them; 0 of one that says so itself.
#[must_use]
pub const fn identity_of(entry: &Entry) -> u32 {
    (entry[1] >> 32) as u32
}

/// Whether a virtual function can be that.
const fn is_identity(identity: u32) -> bool {
    // What a function answers that has no manufacturer, or that is not there.
    !matches!(identity as u16, 0 | 0xffff)
}

/// Number, page of configuration space and messages of an entry for a function that was
/// [checked](check).
#[must_use]
pub const fn function_of(entry: &Entry) -> (u32, u64, Option<Messages>) {
    (entry[1] as u32, entry[2], Messages::of_word(entry[3]))
}

/// Interrupt messages of a function that a unit remaps: those with numbers from 0 on, each written
/// to one address, are vectors in a row of the instance's first CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Messages {
    /// Address that they are written to.
    pub address: u32,
    /// Vector of the first.
    pub vector: u8,
    /// How many there are.
    pub count: u8,
}

/// Addresses at which processors take interrupt messages.
pub const MESSAGE_ADDRESSES: Range<u64> = 0xfee0_0000..0xfef0_0000;
/// Vectors that devices may have.
pub const DEVICE_VECTORS: Range<u64> = 0x40..0xe0;

impl Messages {
    const fn word(self) -> u64 {
        self.address as u64 | (self.vector as u64) << 32 | (self.count as u64) << 40
    }

    const fn of_word(word: u64) -> Option<Self> {
        if word == 0 {
            return None;
        }
        Some(Self {
            address: word as u32,
            vector: (word >> 32) as u8,
            count: (word >> 40) as u8,
        })
    }

    /// Vectors of all of them.
    #[must_use]
    pub const fn vectors(self) -> Range<u64> {
        self.vector as u64..self.vector as u64 + self.count as u64
    }

    /// Whether there can be messages of this word, if it is none of no messages.
    fn is_sound(word: u64) -> bool {
        Self::of_word(word).is_none_or(|messages| {
            let vectors = messages.vectors();
            messages.word() == word
                && !vectors.is_empty()
                && vectors.start >= DEVICE_VECTORS.start
                && vectors.end <= DEVICE_VECTORS.end
                && MESSAGE_ADDRESSES.contains(&messages.address.into())
        })
    }
}

/// Registers of a function: what one of its base address registers covers, which is memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Registers {
    /// Number of the base address register.
    pub bar: u8,
    /// Low four bits of the base address register: [`Self::WIDE`] and [`Self::PREFETCHABLE`].
    pub flags: u8,
    /// First physical address.
    pub phys: u64,
    /// Bytes, a power of two.
    pub bytes: u64,
}

impl Registers {
    /// `flags`: the address has 64 bits, in two base address registers.
    pub const WIDE: u8 = 1 << 2;
    /// `flags`: reads have no effects.
    pub const PREFETCHABLE: u8 = 1 << 3;

    /// The entry for them.
    #[must_use]
    pub const fn entry(&self) -> Entry {
        let which = self.bar as u64 | (self.flags as u64) << 8;
        [KIND_REGISTERS as u64, which, self.phys, self.bytes]
    }

    /// The registers of an entry that was [checked](check).
    #[must_use]
    pub const fn of(entry: &Entry) -> Self {
        Self {
            bar: entry[1] as u8,
            flags: (entry[1] >> 8) as u8,
            phys: entry[2],
            bytes: entry[3],
        }
    }
}

/// Whether an entry is of a kind, and has no flags.
#[must_use]
pub fn is_of(entry: &Entry, kind: u32) -> bool {
    entry[0] == u64::from(kind)
}

/// The CPU of an entry that was [checked](check).
#[must_use]
pub const fn place(entry: &Entry) -> CpuEntry {
    CpuEntry {
        apic_id: entry[2] as u32,
        slot: entry[3] as u32,
    }
}

/// The range of an entry that was [checked](check).
#[must_use]
pub const fn range(entry: &Entry) -> MemRange {
    MemRange {
        first_frame: entry[1],
        phys: entry[2],
        count: entry[3],
    }
}

/// Why an epoch is refused, with the index of the entry where there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// More entries than there is room for.
    Count,
    /// An entry of a kind, or with a flag, that this kernel does not know.
    Kind(usize),
    /// A range that is empty, no whole granules, or beyond the address space.
    Range(usize),
    /// A range or a CPU whose number is not the one at which those before end.
    Number(usize),
    /// A range or a CPU beyond the most that the instance was created for.
    Limit(usize),
    /// A range that is the same physical memory as another one, or a CPU that is the same.
    Overlap(usize),
    /// Something that the instance has is missing, or lies elsewhere.
    Missing,
    /// No memory for a page table, or for what a CPU needs.
    NoMemory,
    /// A CPU with an APIC id or a park slot that there cannot be.
    Cpu(usize),
    /// A function or registers of one that there cannot be.
    Function(usize),
    /// A peer that there cannot be.
    Peer(usize),
    /// Memory that is to leave has so many pages of the instance's kernel.
    KernelPages(usize),
    /// Memory that is to leave has so many pages of programs, files and devices that stay where
    /// they are.
    UserPages(usize),
    /// Without the memory that is to leave so many pages would be missing.
    Short(usize),
    /// Disks of a function that is to leave are mounted; the number of file systems.
    Mounted(usize),
    /// Disks of a function that is to leave are open in programs; the number of openings.
    Open(usize),
    /// The network interface of this number, of a function that is to leave, is up.
    Up(usize),
    /// A function that is to leave does not prove to the instance that it was reset.
    NotReset,
}

/// Largest number that an answer can name.
const MOST_TOLD: u64 = (1 << 24) - 1;

/// The number that an answer can name for this one.
fn told(number: u64) -> usize {
    number.min(MOST_TOLD) as usize
}

impl Refusal {
    /// Refusal because so many pages of the kernel keep memory from leaving.
    #[must_use]
    pub fn pages_of_kernel(pages: u64) -> Self {
        Self::KernelPages(told(pages))
    }

    /// Refusal because so many pages of programs, files and devices keep memory from leaving.
    #[must_use]
    pub fn pages_of_programs(pages: u64) -> Self {
        Self::UserPages(told(pages))
    }

    /// Refusal because so many pages would be missing without the memory that is to leave.
    #[must_use]
    pub fn short_of(pages: u64) -> Self {
        Self::Short(told(pages))
    }

    /// Refusal because so many file systems are mounted from what is to leave.
    #[must_use]
    pub fn mounted(count: usize) -> Self {
        Self::Mounted(told(count as u64))
    }

    /// Refusal because programs have open what is to leave, so many times.
    #[must_use]
    pub fn open(count: usize) -> Self {
        Self::Open(told(count as u64))
    }

    /// Refusal because the network interface of this number is up.
    #[must_use]
    pub fn up(index: u32) -> Self {
        Self::Up(told(index.into()))
    }

    /// Code of the refusal in an answer.
    const fn code(self) -> u64 {
        match self {
            Self::Count => 2,
            Self::Kind(_) => 3,
            Self::Range(_) => 4,
            Self::Number(_) => 5,
            Self::Limit(_) => 6,
            Self::Overlap(_) => 7,
            Self::Missing => 8,
            Self::NoMemory => 9,
            Self::Cpu(_) => 10,
            Self::Function(_) => 11,
            Self::KernelPages(_) => 12,
            Self::UserPages(_) => 13,
            Self::Short(_) => 14,
            Self::Peer(_) => 15,
            Self::Mounted(_) => 16,
            Self::Open(_) => 17,
            Self::Up(_) => 18,
            Self::NotReset => 19,
        }
    }

    const fn index(self) -> u64 {
        match self {
            Self::Kind(index)
            | Self::Range(index)
            | Self::Number(index)
            | Self::Limit(index)
            | Self::Overlap(index)
            | Self::Cpu(index)
            | Self::Function(index)
            | Self::Peer(index)
            | Self::KernelPages(index)
            | Self::UserPages(index)
            | Self::Short(index)
            | Self::Mounted(index)
            | Self::Open(index)
            | Self::Up(index) => index as u64,
            Self::Count | Self::Missing | Self::NoMemory | Self::NotReset => 0,
        }
    }

    const fn from_code(code: u64, index: usize) -> Option<Self> {
        Some(match code {
            2 => Self::Count,
            3 => Self::Kind(index),
            4 => Self::Range(index),
            5 => Self::Number(index),
            6 => Self::Limit(index),
            7 => Self::Overlap(index),
            8 => Self::Missing,
            9 => Self::NoMemory,
            10 => Self::Cpu(index),
            11 => Self::Function(index),
            12 => Self::KernelPages(index),
            13 => Self::UserPages(index),
            14 => Self::Short(index),
            15 => Self::Peer(index),
            16 => Self::Mounted(index),
            17 => Self::Open(index),
            18 => Self::Up(index),
            19 => Self::NotReset,
            _ => return None,
        })
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count => f.write_str("more entries than there is room for"),
            Self::Kind(i) => write!(f, "entry {i} is of no known kind"),
            Self::Range(i) => write!(f, "entry {i} is no range of whole granules"),
            Self::Number(i) => write!(f, "entry {i} leaves a hole in the numbers"),
            Self::Limit(i) => write!(f, "entry {i} is beyond the most it may have"),
            Self::Overlap(i) => write!(f, "entry {i} is something that it has already"),
            Self::Missing => f.write_str("something that it has is missing"),
            Self::NoMemory => f.write_str("it has no memory for tables of its own"),
            Self::Cpu(i) => write!(f, "entry {i} is no CPU that there can be"),
            Self::Function(i) => write!(f, "entry {i} is no device that it can have"),
            Self::Peer(i) => write!(f, "entry {i} is no peer that it can have"),
            Self::KernelPages(n) => write!(f, "{n} pages of its kernel are in what is to leave"),
            Self::UserPages(n) => write!(
                f,
                "{n} pages of programs, files and devices in what is to leave stay where they are"
            ),
            Self::Short(n) => write!(f, "it would have {} KiB too little", n * (PAGE_SIZE >> 10)),
            Self::Mounted(1) => f.write_str("a file system on it is mounted"),
            Self::Mounted(n) => write!(f, "{n} file systems on it are mounted"),
            Self::Open(1) => f.write_str("a program has its disk open"),
            Self::Open(n) => write!(f, "programs have its disks open, {n} times"),
            Self::Up(n) => write!(f, "its network interface {n} is up"),
            Self::NotReset => f.write_str("it does not prove that it was reset"),
        }
    }
}

/// Verdict of an instance on an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All of it was adopted.
    Taken,
    /// Nothing of it was.
    Refused(Refusal),
}

/// Answer of an instance to an epoch, as one word: the epoch's number in the upper
/// half, the index of an entry or a number of pages, and the verdict in the lowest byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Number of the epoch; its lower half.
    pub epoch: u32,
    /// Verdict on it.
    pub verdict: Verdict,
}

impl Answer {
    /// The answer as a word.
    #[must_use]
    pub const fn to_word(self) -> u64 {
        let (code, index) = match self.verdict {
            Verdict::Taken => (1, 0),
            Verdict::Refused(refusal) => (refusal.code(), refusal.index()),
        };
        (self.epoch as u64) << 32 | index << 8 | code
    }

    /// The answer of a word; `None` if it is none.
    #[must_use]
    pub fn from_word(word: u64) -> Option<Self> {
        let index = (word as u32 >> 8) as usize;
        let verdict = match word & 0xff {
            1 => Verdict::Taken,
            code => {
                let refusal = Refusal::from_code(code, index)?;
                let is_index = !matches!(
                    refusal,
                    Refusal::KernelPages(_)
                        | Refusal::UserPages(_)
                        | Refusal::Short(_)
                        | Refusal::Mounted(_)
                        | Refusal::Open(_)
                        | Refusal::Up(_)
                );
                if is_index && index >= MAX_ENTRIES {
                    return None;
                }
                Verdict::Refused(refusal)
            }
        };
        Some(Self {
            epoch: (word >> 32) as u32,
            verdict,
        })
    }
}

/// The page of answers, behind the window. The guards of both sides reach it, and nobody else.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Answers {
    /// The last [`Answer`], as a word; 0 before the first.
    pub last: AtomicU64,
}

/// Possessions of an instance so far, for [`check`].
pub trait Holdings {
    /// The first memory, from frame 0 on, ascending; whole granules.
    fn first_memory(&self) -> &[MemRange];
    /// Number of its frames, those of added ranges included.
    fn frames(&self) -> u64;
    /// The most frames that it may have.
    fn limit(&self) -> u64;
    /// Physical address of the granule that begins at a frame of an added range.
    fn granule(&self, first_frame: u64) -> Option<u64>;
    /// Number of its CPUs.
    fn cpus(&self) -> usize;
    /// The most CPUs that it may have.
    fn cpu_limit(&self) -> usize;
    /// APIC id of one of its CPUs.
    fn apic_id(&self, number: usize) -> Option<u32>;
    /// Number of its places for peers.
    fn places(&self) -> usize;
    /// Entries for its functions and their registers; `None` before it has any epoch.
    fn functions(&self) -> Option<&[Entry]>;
}

/// Possessions of an instance by an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Totals {
    /// Number of frames.
    pub frames: u64,
    /// Number of CPUs.
    pub cpus: usize,
}

/// End of the physical address space.
const PHYS_END: u64 = 1 << 52;
/// Addresses where nobody's registers are: what firmware left, and where processors take interrupt
/// messages.
const NO_REGISTERS: [Range<u64>; 2] = [0..1 << 20, MESSAGE_ADDRESSES];
/// Base address registers of a function.
const BARS: u8 = 6;

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

/// Physical addresses of a range of memory.
fn addresses(range: &MemRange) -> Range<u64> {
    range.phys..range.phys + range.count * PAGE_SIZE as u64
}

/// Physical addresses that an entry names which passed the checks of its kind.
fn named(entry: &Entry) -> Option<Range<u64>> {
    if is_of(entry, KIND_MEMORY) {
        Some(addresses(&range(entry)))
    } else if is_of(entry, KIND_FUNCTION) {
        Some(entry[2]..entry[2] + PAGE_SIZE as u64)
    } else if is_of(entry, KIND_REGISTERS) {
        Some(entry[2]..entry[2] + entry[3])
    } else {
        None
    }
}

/// Whether an entry is for a function or its registers.
#[must_use]
pub fn is_of_function(entry: &Entry) -> bool {
    is_of(entry, KIND_FUNCTION) || is_of(entry, KIND_REGISTERS)
}

/// Checks a whole epoch against what the instance has. Returns what it has by the epoch.
///
/// # Errors
/// The first thing that is wrong.
pub fn check(entries: &[Entry], has: &impl Holdings) -> Result<Totals, Refusal> {
    if entries.len() > MAX_ENTRIES {
        return Err(Refusal::Count);
    }
    let mut frames = has.first_memory().iter().map(|range| range.count).sum();
    let mut cpus = 0;
    let mut functions = Functions::default();
    for (index, entry) in entries.iter().enumerate() {
        if is_of(entry, KIND_MEMORY) {
            frames = check_range(entries, index, frames, has)?;
        } else if is_of(entry, KIND_CPU) {
            check_cpu(entries, index, cpus, has)?;
            cpus += 1;
        } else if is_of_function(entry) {
            let goes_on = functions.goes_on(entry, is_after_function(entries, index));
            let shares = shares_vectors(entries, index);
            (goes_on && !shares)
                .then_some(())
                .ok_or(Refusal::Function(index))?;
            check_overlap(entries, index, has)?;
        } else if is_of(entry, KIND_PEER) {
            check_peer(entries, index, has)?;
        } else if *entry != RECLAIM && *entry != FORCE {
            return Err(Refusal::Kind(index));
        }
    }
    // Of two that may be refused, one would be left half done.
    if check_known_functions(entries, has)? == Known::Leave && frames < has.frames() {
        return Err(Refusal::Missing);
    }
    // The last CPU cannot go, nor can the first memory, from which `frames` counts.
    if cpus == 0 {
        return Err(Refusal::Missing);
    }
    Ok(Totals { frames, cpus })
}

/// Checks a range, which has to begin at the frame `next`. Returns where it ends.
fn check_range(
    entries: &[Entry],
    index: usize,
    next: u64,
    has: &impl Holdings,
) -> Result<u64, Refusal> {
    let range = range(&entries[index]);
    let whole = range.count != 0
        && range.count.is_multiple_of(GRANULE_FRAMES)
        && range.phys.is_multiple_of(GRANULE_SIZE as u64)
        && range.phys < PHYS_END
        && range.count <= (PHYS_END - range.phys) / PAGE_SIZE as u64;
    if !whole {
        return Err(Refusal::Range(index));
    }
    if range.first_frame != next {
        return Err(Refusal::Number(index));
    }
    if range.count > has.limit().saturating_sub(next) {
        return Err(Refusal::Limit(index));
    }
    check_overlap(entries, index, has)?;
    let known = has.frames().clamp(next, next + range.count) - next;
    for frame in (0..known).step_by(GRANULE_FRAMES as usize) {
        let phys = range.phys + frame * PAGE_SIZE as u64;
        if has.granule(next + frame) != Some(phys) {
            return Err(Refusal::Missing);
        }
    }
    Ok(next + range.count)
}

/// Checks that an entry names no address which the first memory or an entry before it names.
fn check_overlap(entries: &[Entry], index: usize, has: &impl Holdings) -> Result<(), Refusal> {
    let Some(own) = named(&entries[index]) else {
        return Ok(());
    };
    let first = has.first_memory().iter().map(addresses);
    let mut others = first.chain(entries[..index].iter().filter_map(named));
    match others.any(|other| overlap(&own, &other)) {
        true => Err(Refusal::Overlap(index)),
        false => Ok(()),
    }
}

/// Whether an entry is for a function with a vector that a function before it has.
fn shares_vectors(entries: &[Entry], index: usize) -> bool {
    let vectors = |entry: &Entry| {
        let messages = is_of(entry, KIND_FUNCTION).then(|| Messages::of_word(entry[3]));
        messages.flatten().map(Messages::vectors)
    };
    let own = vectors(&entries[index]);
    own.is_some_and(|own| {
        let mut others = entries[..index].iter().filter_map(vectors);
        others.any(|other| overlap(&own, &other))
    })
}

/// Whether an entry follows one for a function, or for registers of it.
fn is_after_function(entries: &[Entry], index: usize) -> bool {
    let before = index.checked_sub(1).map(|before| &entries[before]);
    before.is_some_and(is_of_function)
}

/// Functions of an epoch so far: their numbers and those of their base address registers ascend.
#[derive(Default)]
struct Functions {
    /// The number of the next function is at least this.
    next: u64,
    /// The next base address register of the last function is at least this one.
    next_bar: u8,
    /// Whether a unit remaps their messages, which is so of all of them or of none.
    are_remapped: Option<bool>,
}

impl Functions {
    /// Takes in an entry for a function or its registers; false if there can be no such one.
    fn goes_on(&mut self, entry: &Entry, after_function: bool) -> bool {
        let [_, which, phys, last] = *entry;
        let bytes = if is_of(entry, KIND_FUNCTION) {
            let (number, identity) = (u64::from(which as u32), identity_of(entry));
            let is_known = identity == 0 || is_identity(identity);
            if number < self.next || !is_known || !Messages::is_sound(last) {
                return false;
            }
            if *self.are_remapped.get_or_insert(last != 0) != (last != 0) {
                return false;
            }
            (self.next, self.next_bar) = (number + 1, 0);
            PAGE_SIZE as u64
        } else {
            let Registers { bar, flags, .. } = Registers::of(entry);
            let width = if flags & Registers::WIDE == 0 { 1 } else { 2 };
            let known = Registers::WIDE | Registers::PREFETCHABLE;
            if !after_function
                || which >> 16 != 0
                || flags & !known != 0
                || bar < self.next_bar
                || bar > BARS - width
                || width == 1 && phys.saturating_add(last) > 1 << 32
            {
                return false;
            }
            self.next_bar = bar + width;
            last
        };
        // Registers lie at a multiple of their size, as the hardware has it.
        let is_place = bytes >= PAGE_SIZE as u64
            && bytes.is_power_of_two()
            && phys.is_multiple_of(bytes)
            && phys < PHYS_END
            && bytes <= PHYS_END - phys;
        is_place
            && NO_REGISTERS
                .iter()
                .all(|taken| !overlap(taken, &(phys..phys + bytes)))
    }
}

/// Whether functions that an instance has are missing in an epoch.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Known {
    Stay,
    Leave,
}

/// The entry for a function of a number, and those for its registers.
#[must_use]
pub fn function_entries(entries: &[Entry], number: u32) -> &[Entry] {
    let is_it = |entry: &Entry| is_of(entry, KIND_FUNCTION) && entry[1] as u32 == number;
    let Some(first) = entries.iter().position(is_it) else {
        return &[];
    };
    let behind = entries[first + 1..].iter();
    let registers = behind.take_while(|entry| is_of(entry, KIND_REGISTERS));
    &entries[first..=first + registers.count()]
}

/// Numbers of all functions that have entries.
pub fn function_numbers(entries: &[Entry]) -> impl Iterator<Item = u32> {
    let functions = entries.iter().filter(|entry| is_of(entry, KIND_FUNCTION));
    functions.map(|entry| entry[1] as u32)
}

/// Checks that functions which the instance has are the same, as far as they do not leave.
fn check_known_functions(entries: &[Entry], has: &impl Holdings) -> Result<Known, Refusal> {
    let known = has.functions().unwrap_or_default();
    let mut all = Known::Stay;
    for number in function_numbers(known) {
        match function_entries(entries, number) {
            [] => all = Known::Leave,
            same if same == function_entries(known, number) => {}
            _ => return Err(Refusal::Missing),
        }
    }
    Ok(all)
}

/// Checks a CPU, which has to have the number `next`.
fn check_cpu(
    entries: &[Entry],
    index: usize,
    next: usize,
    has: &impl Holdings,
) -> Result<(), Refusal> {
    let [_, number, apic_id, slot] = entries[index];
    let Ok(id) = u32::try_from(apic_id) else {
        return Err(Refusal::Cpu(index));
    };
    if slot >= MAX_CPUS as u64 {
        return Err(Refusal::Cpu(index));
    }
    if number != next as u64 {
        return Err(Refusal::Number(index));
    }
    if next >= has.cpu_limit() {
        return Err(Refusal::Limit(index));
    }
    let mut others = entries[..index].iter();
    if others.any(|other| is_of(other, KIND_CPU) && (other[2] == apic_id || other[3] == slot)) {
        return Err(Refusal::Overlap(index));
    }
    if next < has.cpus() && has.apic_id(next) != Some(id) {
        return Err(Refusal::Missing);
    }
    Ok(())
}

/// Checks a peer. Peers ascend by place, which is one of those for their kind of name, and no two
/// have the same generation. No two names are those of one instance, nor is a group's member one
/// twice, and doorbells are the same where instances are.
fn check_peer(entries: &[Entry], index: usize, has: &impl Holdings) -> Result<(), Refusal> {
    let entry = &entries[index];
    let [_, _, doorbell, generation] = *entry;
    let (own, _) = peer_of(entry);
    let is_whole = *entry == peer(&own, (doorbell >> 32) as u8)
        && VECTORS.contains(&(doorbell >> 32))
        && generation != 0
        && own.instance != 0
        && usize::from(own.place) < has.places()
        && usize::from(own.name) < MAX_NAMES + MAX_GROUPS
        && places_for(own.name).contains(&usize::from(own.place));
    let is_apart = |other: &Entry| {
        let (other, _) = peer_of(other);
        let is_same = other.instance == own.instance;
        let fits = match (is_group(other.name), is_group(own.name)) {
            (false, false) => other.name != own.name && !is_same,
            (true, true) => other.name != own.name || !is_same,
            _ => true,
        };
        fits && other.place < own.place
            && (other.apic_id == own.apic_id) == is_same
            && other.generation != own.generation
    };
    let is_own_cpu = |other: &Entry| other[2] == u64::from(own.apic_id);
    let mut others = entries.iter().enumerate();
    let is_possible = others.all(|(at, other)| match other[0] {
        kind if kind == u64::from(KIND_PEER) => at >= index || is_apart(other),
        kind if kind == u64::from(KIND_CPU) => !is_own_cpu(other),
        _ => true,
    });
    match is_whole && is_possible {
        true => Ok(()),
        false => Err(Refusal::Peer(index)),
    }
}
