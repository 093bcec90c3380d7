//! The instance window: memory of the supervisor's that it shares with one instance.
//!
//! It holds status words, the halt word, six rings, the frames that hardware has lost, a heartbeat
//! and counters for each CPU, what the instance tells of itself when it is asked, and slots for
//! programs that are run beside its first one ([`crate::exec`]). All of it is
//! atomics: a dying or hostile instance may write anything at any time, and reading it stays
//! defined. Neither side believes an index or a length in it; `ring` masks and validates. Positions
//! and sizes are constants of this file, never values read from the window.

use core::mem::{offset_of, size_of};
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use crate::descriptor::MAX_CPUS;
use crate::exec::{EXECS, ExecSlot};
pub use crate::usage::{CpuTimes, CpuUsage};

/// `"SKERRYWN"` as a little-endian number.
pub const MAGIC: u64 = u64::from_le_bytes(*b"SKERRYWN");
/// Version of the layout below.
pub const VERSION: u32 = 5;

/// Bytes of a standard stream's ring.
pub const STREAM_BYTES: usize = 64 << 10;
/// Bytes of the kernel log's ring.
pub const KLOG_BYTES: usize = 64 << 10;
/// Messages of a control ring (4 KiB).
pub const CONTROL_MESSAGES: usize = 64;

/// Life of an instance as it tells it itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum State {
    /// Not in user space yet.
    Booting = 0,
    /// The first program runs.
    Running = 1,
    /// The first program ended; `exit_code` is valid.
    Exited = 2,
    /// The instance's kernel panicked.
    Panicked = 3,
    /// The instance was told to stop and did.
    Halted = 4,
}

impl State {
    /// The state of a status word; `None` if the instance wrote nonsense.
    #[must_use]
    pub const fn from_u32(value: u32) -> Option<Self> {
        Some(match value {
            0 => Self::Booting,
            1 => Self::Running,
            2 => Self::Exited,
            3 => Self::Panicked,
            4 => Self::Halted,
            _ => return None,
        })
    }

    /// Whether the instance's CPUs are on their way to the park page.
    #[must_use]
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Exited | Self::Panicked | Self::Halted)
    }
}

/// Status words, written by the instance.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Status {
    /// A [`State`].
    pub state: AtomicU32,
    /// Exit code of the first program as `wait4` codes it (exit status << 8, or signal).
    pub exit_code: AtomicU32,
    /// TSC at the kernel's first instruction in Rust.
    pub entry_tsc: AtomicU64,
    /// TSC right before the first instruction in user space.
    pub first_user_tsc: AtomicU64,
    /// Not 0 once the instance's kernel is ready for its further CPUs; written by the instance.
    pub wants_cpus: AtomicU64,
}

/// Words the supervisor writes and the instance reads.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Orders {
    /// Non-zero: a CPU that takes an NMI goes to the park page at once.
    pub force_halt: AtomicU32,
    /// Counts up when the supervisor rings the doorbell; lets the instance tell a real ring from a
    /// stray interrupt.
    pub doorbells: AtomicU32,
    /// Counts up with each order to stand still and each to go on: while it is odd
    /// ([`Self::asks_to_pause`]) all CPUs stand still.
    pub pause: AtomicU32,
    /// Counts up when the supervisor wants to know what is in [`Report`], before it rings.
    pub report: AtomicU32,
}

impl Orders {
    /// Whether a value of [`Self::pause`] is an order to stand still.
    #[must_use]
    pub const fn asks_to_pause(order: u32) -> bool {
        !order.is_multiple_of(2)
    }
}

/// Figures that the instance puts together when it is asked ([`Orders::report`]).
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Report {
    /// The last question that is answered.
    pub answered: AtomicU32,
    /// Number of its programs' threads.
    pub threads: AtomicU32,
    /// Memory in use, in bytes, without what would be given back at once to who asks for it.
    pub used: AtomicU64,
}

/// Signs of life of one CPU. All but [`asked`](Self::asked) is written by that CPU.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Heartbeat {
    /// Counts up at each interrupt that the CPU takes, and whenever it has slept.
    pub beats: AtomicU64,
    /// TSC since when the CPU sleeps; 0 while it does not.
    pub idle_since: AtomicU64,
    /// Instruction pointer at which the last question found the CPU with interrupts off.
    pub place: AtomicU64,
    /// Number of the thread that ran there; [`Self::NO_THREAD`] if there was none.
    pub thread: AtomicU32,
    /// The last question that the CPU has answered.
    pub answered: AtomicU32,
    /// The supervisor's last question, which comes with an NMI.
    pub asked: AtomicU32,
    /// The order to stand still ([`Orders::pause`]) that the CPU obeys; 0 while it does not.
    pub stands_still: AtomicU32,
}

impl Heartbeat {
    /// No thread, yet.
    pub const NO_THREAD: u32 = u32::MAX;

    /// Heartbeat of a CPU which has not come up.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            beats: AtomicU64::new(0),
            idle_since: AtomicU64::new(0),
            place: AtomicU64::new(0),
            thread: AtomicU32::new(0),
            answered: AtomicU32::new(0),
            asked: AtomicU32::new(0),
            stands_still: AtomicU32::new(0),
        }
    }

    /// Makes it that of a CPU which has not come up. By the supervisor, when no CPU has it.
    pub fn reset(&self) {
        let Self {
            beats,
            idle_since,
            place,
            thread,
            answered,
            asked,
            stands_still,
        } = self;
        for word in [beats, idle_since, place] {
            word.store(0, Ordering::Relaxed);
        }
        for word in [thread, answered, asked, stands_still] {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// Says that the CPU takes interrupts, and does not sleep. By that CPU only, with interrupts
    /// off.
    #[inline]
    pub fn beat(&self) {
        self.idle_since.store(0, Ordering::Relaxed);
        let beats = self.beats.load(Ordering::Relaxed);
        self.beats.store(beats.wrapping_add(1), Ordering::Release);
    }
}

/// Frames in which hardware has lost something, noted where no lock may be taken.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct BadFrames([AtomicU64; Self::CAPACITY]);

impl BadFrames {
    /// Frames that there is room for.
    pub const CAPACITY: usize = 16;

    /// None yet.
    #[must_use]
    pub const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; Self::CAPACITY])
    }

    /// Notes a frame. Returns whether there was room for it.
    pub fn note(&self, frame: u64) -> bool {
        let noted = frame.wrapping_add(1);
        self.0.iter().any(|slot| {
            let taken = slot.compare_exchange(0, noted, Ordering::AcqRel, Ordering::Acquire);
            taken.is_ok() || taken == Err(noted)
        })
    }

    /// The frames that are noted. In a window they are the instance's word.
    pub fn noted(&self) -> impl Iterator<Item = u64> {
        let slots = self.0.iter();
        slots.filter_map(|slot| slot.load(Ordering::Acquire).checked_sub(1))
    }

    /// Takes a frame off.
    #[must_use]
    pub fn take(&self) -> Option<u64> {
        let mut slots = self.0.iter();
        slots.find_map(|slot| slot.swap(0, Ordering::AcqRel).checked_sub(1))
    }
}

/// Indices of a single-producer single-consumer ring. Counts grow for ever; the position is the
/// count modulo the size.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct RingHeader {
    /// Bytes (or messages) ever written. Written by the producer only.
    pub written: AtomicU64,
    /// Non-zero once the producer will write no more. Written by the producer only.
    pub closed: AtomicU32,
    _producer: [AtomicU32; 13],
    /// Bytes (or messages) ever read. Written by the consumer only.
    pub read: AtomicU64,
    /// Non-zero while the consumer waits for a doorbell. Written by the consumer only.
    pub waiting: AtomicU32,
    _consumer: [AtomicU32; 13],
}

impl RingHeader {
    /// Makes it the header of an empty ring. By the supervisor, when the instance does not use it.
    pub fn reset(&self) {
        self.written.store(0, Ordering::Relaxed);
        self.read.store(0, Ordering::Relaxed);
        self.closed.store(0, Ordering::Relaxed);
        self.waiting.store(0, Ordering::Relaxed);
    }

    /// An empty ring.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            written: AtomicU64::new(0),
            closed: AtomicU32::new(0),
            _producer: [const { AtomicU32::new(0) }; 13],
            read: AtomicU64::new(0),
            waiting: AtomicU32::new(0),
            _consumer: [const { AtomicU32::new(0) }; 13],
        }
    }
}

/// Space for one [`crate::Message`], as atomic words.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct MessageCell {
    /// The message's 64 bytes.
    pub words: [AtomicU64; 8],
}

impl MessageCell {
    /// An all-zero cell.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            words: [const { AtomicU64::new(0) }; 8],
        }
    }
}

/// The whole window.
#[repr(C, align(4096))]
pub struct Window {
    /// Magic number: [`MAGIC`].
    pub magic: AtomicU64,
    /// Version of the layout: [`VERSION`].
    pub version: AtomicU32,
    /// Bytes of the window.
    pub size: AtomicU32,
    /// State of the instance, written by the instance.
    pub status: Status,
    /// Orders of the supervisor, written by the supervisor.
    pub orders: Orders,
    /// Control messages to the instance.
    pub control_in: RingHeader,
    /// Control messages from the instance.
    pub control_out: RingHeader,
    /// Standard input.
    pub stdin: RingHeader,
    /// Standard output.
    pub stdout: RingHeader,
    /// Standard error.
    pub stderr: RingHeader,
    /// Kernel log; the writer overwrites.
    pub klog: RingHeader,
    /// Frames with an error that was not corrected, as the instance numbers them; written by the
    /// instance.
    pub bad_frames: BadFrames,
    /// Answers of the instance, written by it.
    pub report: Report,
    _pad: [AtomicU8; 0x1000 - 0x4c0],
    /// Area of `control_in`.
    pub control_in_area: [MessageCell; CONTROL_MESSAGES],
    /// Area of `control_out`.
    pub control_out_area: [MessageCell; CONTROL_MESSAGES],
    /// Area of `stdin`.
    pub stdin_area: [AtomicU8; STREAM_BYTES],
    /// Area of `stdout`.
    pub stdout_area: [AtomicU8; STREAM_BYTES],
    /// Area of `stderr`.
    pub stderr_area: [AtomicU8; STREAM_BYTES],
    /// Area of `klog`.
    pub klog_area: [AtomicU8; KLOG_BYTES],
    /// Heartbeats of the instance's CPUs, by their numbers in its descriptor.
    pub heartbeats: [Heartbeat; MAX_CPUS],
    /// Counters of the instance's CPUs, likewise.
    pub usage: [CpuUsage; MAX_CPUS],
    /// Slots for programs that are run beside the first one.
    pub execs: [ExecSlot; EXECS],
}

const _: () = {
    assert!(size_of::<RingHeader>() == 128 && offset_of!(RingHeader, read) == 64);
    assert!(
        size_of::<Status>() == 64 && size_of::<Orders>() == 64 && size_of::<MessageCell>() == 64
    );
    assert!(offset_of!(Window, status) == 0x40);
    assert!(offset_of!(Window, orders) == 0x80);
    assert!(offset_of!(Window, control_in) == 0x100);
    assert!(offset_of!(Window, klog) == 0x380);
    assert!(offset_of!(Window, bad_frames) == 0x400);
    assert!(offset_of!(Window, report) == 0x480 && size_of::<Report>() == 64);
    assert!(offset_of!(Window, control_in_area) == 0x1000);
    assert!(offset_of!(Window, stdin_area) == 0x3000);
    assert!(offset_of!(Window, klog_area) == 0x3_3000);
    assert!(size_of::<Heartbeat>() == 64);
    assert!(offset_of!(Window, heartbeats) == 0x4_3000);
    assert!(offset_of!(Window, usage) == 0x4_7000 && size_of::<CpuUsage>() == 128);
    assert!(offset_of!(Window, execs) == 0x4_f000);
    assert!(size_of::<Window>() == 0x7_b000);
};

impl Window {
    /// Bytes of the window; a multiple of the page size.
    pub const SIZE: usize = size_of::<Window>();

    /// Turns a zeroed window into an empty one. The supervisor does this before the instance
    /// starts.
    pub fn init(&self) {
        self.version.store(VERSION, Ordering::Relaxed);
        self.size.store(Self::SIZE as u32, Ordering::Relaxed);
        self.magic.store(MAGIC, Ordering::Release);
    }

    /// Whether the other side speaks this layout.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.magic.load(Ordering::Acquire) == MAGIC
            && self.version.load(Ordering::Relaxed) == VERSION
            && self.size.load(Ordering::Relaxed) as usize == Self::SIZE
    }

    /// The state that the instance reports; `None` if the word is none of [`State`].
    #[must_use]
    pub fn state(&self) -> Option<State> {
        State::from_u32(self.status.state.load(Ordering::Acquire))
    }

    /// Sets the instance's state, unless it has ended before: the first end is the one that counts,
    /// but a panic is told in any case. Whatever was written before is visible to whoever sees it.
    pub fn set_state(&self, state: State) {
        let _ = self
            .status
            .state
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, |now| {
                let ended = State::from_u32(now).is_some_and(State::is_final);
                (!ended || state == State::Panicked).then_some(state as u32)
            });
    }

    /// Says that the first program runs, unless the instance has ended: a CPU that is still on its
    /// way up may have said so while another went on.
    pub fn set_running(&self) {
        let _ = self.status.state.compare_exchange(
            State::Booting as u32,
            State::Running as u32,
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
    }

    /// Whether the supervisor ordered the instance's CPUs into the park page.
    #[must_use]
    pub fn halt_ordered(&self) -> bool {
        self.orders.force_halt.load(Ordering::Acquire) != 0
    }
}

#[cfg(test)]
mod tests {
    use std::boxed::Box;
    use std::vec::Vec;

    use super::*;

    #[test]
    fn states_round_trip_and_nonsense_is_refused() {
        for s in [
            State::Booting,
            State::Running,
            State::Exited,
            State::Panicked,
            State::Halted,
        ] {
            assert_eq!(State::from_u32(s as u32), Some(s));
        }
        assert_eq!(State::from_u32(5), None);
        assert!(State::Panicked.is_final() && !State::Running.is_final());
    }

    #[test]
    fn a_new_ring_is_empty() {
        let h = RingHeader::new();
        assert_eq!(
            h.written.load(Ordering::Relaxed),
            h.read.load(Ordering::Relaxed)
        );
    }

    /// A window as it is in zeroed memory.
    fn zeroed() -> Box<Window> {
        let area = |len| (0..len).map(|_| AtomicU8::new(0)).collect::<Vec<_>>();
        let streams =
            || -> [AtomicU8; STREAM_BYTES] { area(STREAM_BYTES).try_into().expect("as many") };
        let ring = RingHeader::new;
        let cells = || [const { MessageCell::new() }; CONTROL_MESSAGES];
        Box::new(Window {
            magic: AtomicU64::new(0),
            version: AtomicU32::new(0),
            size: AtomicU32::new(0),
            status: Status::default(),
            orders: Orders::default(),
            control_in: ring(),
            control_out: ring(),
            stdin: ring(),
            stdout: ring(),
            stderr: ring(),
            klog: ring(),
            bad_frames: BadFrames::new(),
            report: Report::default(),
            _pad: [const { AtomicU8::new(0) }; 0x1000 - 0x4c0],
            control_in_area: cells(),
            control_out_area: cells(),
            stdin_area: streams(),
            stdout_area: streams(),
            stderr_area: streams(),
            klog_area: area(KLOG_BYTES).try_into().expect("as many"),
            heartbeats: [const { Heartbeat::new() }; MAX_CPUS],
            usage: [const { CpuUsage::new() }; MAX_CPUS],
            execs: [const { ExecSlot::new() }; EXECS],
        })
    }

    #[test]
    fn a_window_is_valid_once_it_is_made_and_as_long_as_nobody_spoils_it() {
        let window = zeroed();
        assert!(!window.is_valid());
        window.init();
        assert!(window.is_valid());
        for word in [&window.version, &window.size] {
            let right = word.fetch_add(1, Ordering::Relaxed);
            assert!(!window.is_valid());
            word.store(right, Ordering::Relaxed);
        }
        window.magic.fetch_xor(1, Ordering::Relaxed);
        assert!(!window.is_valid());
        assert_eq!(window.size.load(Ordering::Relaxed), 0x7_b000);
    }

    #[test]
    fn frames_are_noted_once_and_taken_once() {
        let frames = BadFrames::new();
        assert_eq!(frames.take(), None);
        assert!(frames.note(0) && frames.note(7) && frames.note(0));
        assert_eq!(frames.noted().collect::<Vec<_>>(), [0, 7]);
        assert_eq!(frames.take(), Some(0));
        assert!((100..).take_while(|&frame| frames.note(frame)).count() == BadFrames::CAPACITY - 1);
        assert!(frames.note(7) && !frames.note(8));
        assert_eq!(frames.noted().count(), BadFrames::CAPACITY);
        // What an instance may write, all of it nonsense.
        frames.0[0].store(u64::MAX, Ordering::Relaxed);
        assert_eq!(frames.take(), Some(u64::MAX - 1));
    }

    /// A second CPU that failed on its way up was taken back by itself, and the first one then said
    /// that all was well.
    #[test]
    fn an_end_is_not_taken_back() {
        let window = zeroed();
        window.set_running();
        assert_eq!(window.state(), Some(State::Running));
        for end in [State::Exited, State::Panicked, State::Halted] {
            let window = zeroed();
            window.set_state(end);
            window.set_running();
            assert_eq!(window.state(), Some(end));
        }
    }

    /// One CPU panicked while another, which had not been stopped yet, ended the instance in order.
    #[test]
    fn a_panic_is_not_hidden_by_another_end() {
        for other in [State::Exited, State::Halted] {
            let window = zeroed();
            window.set_state(State::Panicked);
            window.set_state(other);
            assert_eq!(window.state(), Some(State::Panicked));
            let window = zeroed();
            window.set_state(other);
            window.set_state(State::Panicked);
            assert_eq!(window.state(), Some(State::Panicked));
        }
        let window = zeroed();
        window.set_state(State::Exited);
        window.set_state(State::Halted);
        assert_eq!(window.state(), Some(State::Exited));
    }

    #[test]
    fn a_beat_counts_and_ends_the_sleep() {
        let heart = Heartbeat::new();
        heart.idle_since.store(77, Ordering::Relaxed);
        heart.beat();
        heart.beat();
        assert_eq!(
            (heart.beats.into_inner(), heart.idle_since.into_inner()),
            (2, 0)
        );
    }

    #[test]
    fn what_one_side_says_the_other_reads() {
        let window = zeroed();
        assert_eq!(window.state(), Some(State::Booting));
        window.set_state(State::Exited);
        assert_eq!(window.state(), Some(State::Exited));
        window.status.state.store(77, Ordering::Relaxed);
        assert_eq!(window.state(), None);
        assert!(!window.halt_ordered());
        window.orders.force_halt.store(2, Ordering::Relaxed);
        assert!(window.halt_ordered());
        let finals = [
            State::Booting,
            State::Running,
            State::Exited,
            State::Panicked,
            State::Halted,
        ]
        .map(State::is_final);
        assert_eq!(finals, [false, false, true, true, true]);
    }
}
