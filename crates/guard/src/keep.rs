//! The supervisor's notes for the kernel that comes after its own end: where they are, and what
//! makes them believed (`docs/supervisor-restart.md`; `abi::keep` has their layout).
//!
//! Two things survive. A few words of the image say how the machine was booted, and what time it
//! is; they lie where a start in place zeroes nothing. The notes about CPUs, memory and instances
//! lie in frames behind the image, which both kernels find by the same search.

use core::fmt;
use core::ops::Range;
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU64, AtomicUsize, Ordering};

use abi::Descriptor;
use abi::descriptor::{RESERVED_SUPERVISOR, Reserved};
pub(crate) use abi::keep::Owner;
use abi::keep::{self, Keep};
use abi::layout::{GRANULE_FRAMES, PAGE_SIZE};
use zerocopy::IntoBytes;

use crate::mem::direct;
use crate::mem::frame::Frame;
use crate::role;

/// Starts in place without one that came so far as to look after instances again, after which the
/// machine is reset.
const MOST_ATTEMPTS: u64 = 3;

/// How the machine was booted, with a check of it.
#[derive(Clone, Copy)]
pub(crate) struct Boot {
    /// The loader's kind of information, and where it is.
    pub kind: u32,
    pub info: u32,
    /// Clocks, as in a descriptor.
    pub tsc_hz: u64,
    pub lapic_hz: u64,
    pub tsc_base: u64,
    pub wall_base_ns: u64,
    /// Check of the descriptor as it was before the clocks were known.
    pub descriptor: u64,
}

const WORDS: usize = 6;

impl Boot {
    fn to_words(self) -> [u64; WORDS] {
        [
            u64::from(self.kind) | u64::from(self.info) << 32,
            self.tsc_hz,
            self.lapic_hz,
            self.tsc_base,
            self.wall_base_ns,
            self.descriptor,
        ]
    }

    fn from_words(
        [first, tsc_hz, lapic_hz, tsc_base, wall_base_ns, descriptor]: [u64; WORDS],
    ) -> Self {
        Self {
            kind: first as u32,
            info: (first >> 32) as u32,
            tsc_hz,
            lapic_hz,
            tsc_base,
            wall_base_ns,
            descriptor,
        }
    }
}

/// Words that a start in place leaves alone: [`Boot`], its check, and two counts, each beside its
/// complement.
struct Kept {
    boot: [AtomicU64; WORDS],
    check: AtomicU64,
    restarts: [AtomicU64; 2],
    attempts: [AtomicU64; 2],
}

#[cfg_attr(target_os = "none", unsafe(link_section = ".bss.keep"))]
static KEPT: Kept = Kept {
    boot: [const { AtomicU64::new(0) }; WORDS],
    check: AtomicU64::new(0),
    restarts: [const { AtomicU64::new(0) }; 2],
    attempts: [const { AtomicU64::new(0) }; 2],
};

fn set_count(count: &[AtomicU64; 2], value: u64) {
    count[0].store(value, Ordering::Relaxed);
    count[1].store(!value, Ordering::Relaxed);
}

fn count(count: &[AtomicU64; 2]) -> Option<u64> {
    let value = count[0].load(Ordering::Relaxed);
    (count[1].load(Ordering::Relaxed) == !value).then_some(value)
}

/// Has the machine be one whose supervisor can start again in place.
pub(crate) fn note_boot(boot: Boot) {
    set_count(&KEPT.restarts, 0);
    set_count(&KEPT.attempts, 0);
    let words = boot.to_words();
    for (to, from) in KEPT.boot.iter().zip(words) {
        to.store(from, Ordering::Relaxed);
    }
    KEPT.check
        .store(keep::check(words.into_iter()), Ordering::Release);
}

/// How the machine was booted; `None` if that was not noted, or is not what was noted.
pub(crate) fn boot() -> Option<Boot> {
    let words = core::array::from_fn(|word| KEPT.boot[word].load(Ordering::Relaxed));
    let is_whole = keep::check(words.into_iter()) == KEPT.check.load(Ordering::Acquire);
    is_whole.then(|| Boot::from_words(words))
}

/// Number of times that the supervisor has started again in place since the machine was started.
#[must_use]
pub fn restarts() -> u64 {
    count(&KEPT.restarts).unwrap_or(0)
}

/// Whether the supervisor may start again in place, and counts the attempt if so.
pub(crate) fn begin_attempt() -> bool {
    let (Some(attempts), Some(restarts), Some(_)) =
        (count(&KEPT.attempts), count(&KEPT.restarts), boot())
    else {
        return false;
    };
    set_count(&KEPT.attempts, attempts + 1);
    set_count(&KEPT.restarts, restarts + 1);
    attempts < MOST_ATTEMPTS
}

/// The kernel looks after instances (again): another panic is another matter.
pub(crate) fn end_attempt() {
    set_count(&KEPT.attempts, 0);
}

/// Whether the command line of a supervisor asks for a reset of the machine after a panic.
pub(crate) fn is_refused(cmdline: &str) -> bool {
    role::value_in(cmdline, "supervisor_panic") == Some("reset")
}

/// Reason why a panic of the supervisor resets the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Reset {
    /// This is no supervisor.
    Role = 1,
    /// The command line asks for it.
    Asked,
    /// PCI has more than one segment.
    Segments,
    /// There is no memory for the notes.
    NoMemory,
}

impl fmt::Display for Reset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Role => "this is no supervisor",
            Self::Asked => "the command line asks for it",
            Self::Segments => "PCI has more than one segment",
            Self::NoMemory => "there is no memory for what is to be kept",
        })
    }
}

/// The reason, as a number; 0: there are notes.
static RESET: AtomicU8 = AtomicU8::new(Reset::Role as u8);

/// Says whether there are notes, or why not.
pub(crate) fn set_plan(plan: Result<(), Reset>) {
    RESET.store(plan.err().map_or(0, |reset| reset as u8), Ordering::Relaxed);
}

/// Whether a panic of the supervisor starts its kernel again in place.
///
/// # Errors
/// Why it resets the machine.
pub(crate) fn plan() -> Result<(), Reset> {
    let reasons = [Reset::Role, Reset::Asked, Reset::Segments, Reset::NoMemory];
    let now = RESET.load(Ordering::Relaxed);
    let reset = reasons.into_iter().find(|reset| *reset as u8 == now);
    reset.map_or(Ok(()), Err)
}

/// Check of all that a descriptor says.
pub(crate) fn check_of(descriptor: &Descriptor) -> u64 {
    let words = descriptor.as_bytes().as_chunks::<8>().0;
    keep::check(words.iter().map(|bytes| u64::from_le_bytes(*bytes)))
}

/// The notes as they are mapped; null without any.
static NOTES: AtomicPtr<AtomicU64> = AtomicPtr::new(core::ptr::null_mut());
static LENGTH: AtomicUsize = AtomicUsize::new(0);
static FIRST_FRAME: AtomicU64 = AtomicU64::new(0);

/// Chooses frames for the notes, `find` being where so many are in a row, and reserves them: the
/// same ones whenever the machine is described in the same way. False if there are none.
pub(crate) fn reserve(
    descriptor: &mut Descriptor,
    find: impl FnOnce(&Descriptor, u64) -> Option<Frame>,
) -> bool {
    let end = descriptor
        .ranges()
        .last()
        .map_or(0, |range| range.first_frame + range.count);
    let words = Keep::words(end.div_ceil(GRANULE_FRAMES) as usize);
    let count = (words * size_of::<u64>()).div_ceil(PAGE_SIZE) as u64;
    let Some(first) = find(descriptor, count) else {
        return false;
    };
    LENGTH.store(words, Ordering::Relaxed);
    FIRST_FRAME.store(first.0, Ordering::Relaxed);
    descriptor.push_reserved(Reserved {
        first_frame: first.0,
        count: count as u32,
        kind: RESERVED_SUPERVISOR,
    })
}

/// First frame of the notes.
pub(crate) fn first_frame() -> Frame {
    Frame(FIRST_FRAME.load(Ordering::Relaxed))
}

/// Says where the notes are mapped from now on.
///
/// # Safety
/// All frames that [`reserve`] has reserved are mapped there, for writing, until the next call.
pub(crate) unsafe fn map_at(at: *mut u8) {
    NOTES.store(at.cast(), Ordering::Release);
}

/// Says that the direct map is in force, where the notes are, too, if there are any.
pub(crate) fn use_direct_map() {
    if notes().is_some() {
        // SAFETY: frames of the supervisor that are nobody else's, in the direct map for ever.
        unsafe { map_at(direct::ptr(first_frame())) };
    }
}

/// The notes; `None` in an instance, and in a supervisor that is not to start again in place.
pub(crate) fn notes() -> Option<Keep<'static>> {
    let at = NOTES.load(Ordering::Acquire);
    if at.is_null() {
        return None;
    }
    // SAFETY: by `map_at`: so many words are mapped there, they are atomics, and nothing else is
    // made of them.
    let words = unsafe { core::slice::from_raw_parts(at, LENGTH.load(Ordering::Relaxed)) };
    Keep::new(words)
}

/// Notes who may have the CPU of a park slot: an instance from now on, or (0) nobody.
pub(crate) fn set_cpu(slot: usize, id: u32) {
    if let Some(notes) = notes() {
        notes.set_cpu(slot, id);
    }
}

/// Notes who may use the granule that begins at a frame: an instance from now on, or (0) nobody.
pub(crate) fn set_granule(first: Frame, id: u32) {
    if let Some(notes) = notes() {
        notes.set_granule(first.0 / GRANULE_FRAMES, id);
    }
}

/// Notes that units may read the granule that begins at a frame from now on.
pub(crate) fn set_units_granule(first: Frame) {
    if let Some(notes) = notes() {
        notes.set_units_granule(first.0 / GRANULE_FRAMES);
    }
}

/// First frames of the granules that units may read by the notes.
pub(crate) fn units_granules() -> impl Iterator<Item = Frame> {
    let notes = notes().into_iter();
    notes.flat_map(|notes| {
        let granules = 0..notes.granules();
        let read = granules.filter(move |granule| notes.granule(*granule) == Owner::Units);
        read.map(|granule| Frame(granule * GRANULE_FRAMES))
    })
}

/// Calls `each` with the runs of frames in `range` that no instance of the kernel before may use,
/// and no unit, ascending.
pub(crate) fn between(range: Range<u64>, mut each: impl FnMut(Range<u64>)) {
    let mut next = range.start;
    if let Some(notes) = notes() {
        while let Some(hole) = next_hole(&notes, next..range.end) {
            if next < hole.start {
                each(next..hole.start);
            }
            next = hole.end.min(range.end);
        }
    }
    if next < range.end {
        each(next..range.end);
    }
}

/// The first run of frames in `range` that an instance or a unit may use.
fn next_hole(notes: &Keep<'_>, range: Range<u64>) -> Option<Range<u64>> {
    let is_held = |granule: &u64| notes.granule(*granule) != Owner::Supervisor;
    let mut granules = range.start / GRANULE_FRAMES..range.end.div_ceil(GRANULE_FRAMES);
    let granule = granules.find(is_held).map(|first| {
        let more = granules.take_while(is_held).count() as u64;
        first * GRANULE_FRAMES..(first + 1 + more) * GRANULE_FRAMES
    });
    let pages = notes
        .records()
        .flat_map(|(_, record)| crate::partition::shared_frames(&record));
    pages
        .chain(granule)
        .filter(|hole| hole.start < range.end && range.start < hole.end)
        .min_by_key(|hole| hole.start)
}
