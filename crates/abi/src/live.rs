//! The dynamic part of a descriptor: what an instance has that changes while it runs
//! (`docs/descriptor.md`).
//!
//! The supervisor replaces the table as a whole (an *epoch*; `ring::epoch` has the protocol), the
//! instance adopts it as a whole or not at all, and answers by one word.

use core::fmt;
use core::mem::{offset_of, size_of};
use core::sync::atomic::AtomicU64;

use crate::descriptor::{CpuEntry, MAX_CPUS, MemRange};
use crate::layout::{GRANULE_FRAMES, GRANULE_SIZE, PAGE_SIZE};

/// Bytes of the dynamic part: four pages.
pub const SIZE: usize = 16 << 10;
/// Most entries of the table.
pub const MAX_ENTRIES: usize = SIZE / size_of::<Entry>() - 1;

/// `kind`: memory beyond the first; `content` is a [`MemRange`].
pub const KIND_MEMORY: u32 = 1;
/// `kind`: a CPU; `content` is its number, its APIC id and its park slot.
pub const KIND_CPU: u32 = 2;

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
}

impl Refusal {
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
        }
    }

    const fn index(self) -> u64 {
        match self {
            Self::Kind(index)
            | Self::Range(index)
            | Self::Number(index)
            | Self::Limit(index)
            | Self::Overlap(index)
            | Self::Cpu(index) => index as u64,
            Self::Count | Self::Missing | Self::NoMemory => 0,
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
/// half, the index of an entry, and the verdict in the lowest byte.
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
            code if index < MAX_ENTRIES => Verdict::Refused(Refusal::from_code(code, index)?),
            _ => return None,
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

fn bytes(range: &MemRange) -> u64 {
    range.count * PAGE_SIZE as u64
}

fn overlap(a: &MemRange, b: &MemRange) -> bool {
    a.phys < b.phys + bytes(b) && b.phys < a.phys + bytes(a)
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
    for (index, entry) in entries.iter().enumerate() {
        if is_of(entry, KIND_MEMORY) {
            frames = check_range(entries, index, frames, has)?;
        } else if is_of(entry, KIND_CPU) {
            check_cpu(entries, index, cpus, has)?;
            cpus += 1;
        } else {
            return Err(Refusal::Kind(index));
        }
    }
    // The last CPU cannot go.
    if frames < has.frames() || cpus == 0 {
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
    let others = entries[..index].iter();
    let others = others.filter(|entry| is_of(entry, KIND_MEMORY));
    let others = others.map(self::range);
    if (has.first_memory().iter().copied().chain(others)).any(|other| overlap(&range, &other)) {
        return Err(Refusal::Overlap(index));
    }
    let known = has.frames().clamp(next, next + range.count) - next;
    for frame in (0..known).step_by(GRANULE_FRAMES as usize) {
        let phys = range.phys + frame * PAGE_SIZE as u64;
        if has.granule(next + frame) != Some(phys) {
            return Err(Refusal::Missing);
        }
    }
    Ok(next + range.count)
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
