//! The records: what happened, when, on which CPU, to which thread.

/// Words of a record in a ring.
pub(crate) const WORDS: usize = 4;

/// Bytes of a record as `/proc/skerry/trace` gives it: four little-endian words.
pub const RECORD_BYTES: usize = WORDS * 8;

/// Class of events that can be asked for by name; each stands for some kinds of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Class {
    /// Context switches.
    Switch = 0,
    /// Wake-ups.
    Wake = 1,
    /// Threads given to idle CPUs.
    Steal = 2,
    /// Interrupts.
    Irq = 3,
    /// System calls.
    Call = 4,
    /// Page faults of programs.
    Fault = 5,
    /// TLB shoot-downs.
    Shootdown = 6,
    /// Waits for locks.
    Lock = 7,
}

impl Class {
    /// All of them, with their names.
    pub const ALL: [(Self, &'static str); 8] = [
        (Self::Switch, "switch"),
        (Self::Wake, "wake"),
        (Self::Steal, "steal"),
        (Self::Irq, "irq"),
        (Self::Call, "call"),
        (Self::Fault, "fault"),
        (Self::Shootdown, "shootdown"),
        (Self::Lock, "lock"),
    ];

    /// Bit of this class in a set of classes.
    #[must_use]
    pub const fn bit(self) -> u32 {
        1 << self as u32
    }

    /// The set that a list such as `switch,wake` or `all` names; `None` for a name that is none,
    /// and for nothing.
    #[must_use]
    pub fn parse(list: &str) -> Option<u32> {
        if list == "all" {
            return Some(
                Self::ALL
                    .iter()
                    .fold(0, |all, (class, _)| all | class.bit()),
            );
        }
        list.split(',').try_fold(0, |set, name| {
            let (class, _) = Self::ALL.iter().find(|(_, known)| *known == name)?;
            Some(set | class.bit())
        })
    }
}

/// Kind of a record, with the meaning of its two words, `a` and `b`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// The CPU goes from the record's thread to thread `a`.
    Switch = 1,
    /// The record's thread, or an interrupt on top of it, wakes thread `a` for CPU `b`; the detail
    /// is in [`WAKE_DETAILS`].
    Wake = 2,
    /// Thread `a` is given to the idle CPU `b`.
    Steal = 3,
    /// An interrupt begins; the detail is its vector.
    IrqBegin = 4,
    /// The handler of the interrupt has ended.
    IrqEnd = 5,
    /// System call number `a` begins.
    CallBegin = 6,
    /// The system call has ended with result `a`, a negative error number if it failed.
    CallEnd = 7,
    /// A page fault of a program at address `a` begins; the detail is 0 for a read, 1 for a write,
    /// 2 for execution.
    FaultBegin = 8,
    /// The page fault has been handled.
    FaultEnd = 9,
    /// A TLB shoot-down that interrupts other CPUs begins; `a` is the first address, `b` the end.
    ShootdownBegin = 10,
    /// All CPUs have answered the TLB shoot-down.
    ShootdownEnd = 11,
    /// The record's thread waits for a lock at site `a` (a number in `/proc/skerry/locks`).
    LockBegin = 12,
    /// The waiting thread has the lock.
    LockEnd = 13,
    /// About thread slot `thread`: the detail is one of the `THREAD_*`.
    Thread = 14,
    /// `a` records of this CPU did not fit.
    Lost = 15,
}

impl Kind {
    const ALL: [Self; 15] = [
        Self::Switch,
        Self::Wake,
        Self::Steal,
        Self::IrqBegin,
        Self::IrqEnd,
        Self::CallBegin,
        Self::CallEnd,
        Self::FaultBegin,
        Self::FaultEnd,
        Self::ShootdownBegin,
        Self::ShootdownEnd,
        Self::LockBegin,
        Self::LockEnd,
        Self::Thread,
        Self::Lost,
    ];

    /// The classes with which it is recorded: one, or any.
    #[must_use]
    pub const fn classes(self) -> u32 {
        match self {
            Self::Switch => Class::Switch.bit(),
            Self::Wake => Class::Wake.bit(),
            Self::Steal => Class::Steal.bit(),
            Self::IrqBegin | Self::IrqEnd => Class::Irq.bit(),
            Self::CallBegin | Self::CallEnd => Class::Call.bit(),
            Self::FaultBegin | Self::FaultEnd => Class::Fault.bit(),
            Self::ShootdownBegin | Self::ShootdownEnd => Class::Shootdown.bit(),
            Self::LockBegin | Self::LockEnd => Class::Lock.bit(),
            Self::Thread | Self::Lost => u32::MAX,
        }
    }
}

/// Detail of a [`Kind::Thread`]: the slot runs thread `a` of process `b` from here on; both 0 for a
/// thread of the kernel.
pub const THREAD_IS: u8 = 0;
/// Detail of a [`Kind::Thread`]: its name is the 16 bytes of `a` and `b`, padded with zeroes.
pub const THREAD_NAME: u8 = 1;
/// Detail of a [`Kind::Thread`]: it has ended.
pub const THREAD_ENDS: u8 = 2;

/// Outcome of a wake-up, by the detail of its record: where no interrupt was sent, the reason.
pub const WAKE_DETAILS: [&str; 5] = [
    "on this CPU",
    "interrupt sent",
    "no interrupt: the CPU polls",
    "no interrupt: told already",
    "no interrupt: it looks in time by itself",
];

/// A small number whose meaning depends on the kind.
pub type Detail = u8;

/// Contents of a record beside kind, time and place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Note {
    /// See [`Kind`].
    pub detail: Detail,
    /// See [`Kind`].
    pub a: u64,
    /// See [`Kind`].
    pub b: u64,
}

impl Note {
    /// Only a detail.
    #[must_use]
    pub const fn detail(detail: Detail) -> Self {
        Self { detail, a: 0, b: 0 }
    }

    /// Two words.
    #[must_use]
    pub const fn two(a: u64, b: u64) -> Self {
        Self { detail: 0, a, b }
    }
}

/// One record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// When, in nanoseconds of the monotonic clock.
    pub time: u64,
    /// Kind of the event.
    pub kind: Kind,
    /// See [`Kind`].
    pub detail: Detail,
    /// On which CPU.
    pub cpu: u16,
    /// The slot of the thread that was running.
    pub thread: u32,
    /// See [`Kind`].
    pub a: u64,
    /// See [`Kind`].
    pub b: u64,
}

impl Record {
    /// A record.
    #[must_use]
    pub const fn new(time: u64, cpu: u16, thread: u32, kind: Kind, note: Note) -> Self {
        Self {
            time,
            kind,
            detail: note.detail,
            cpu,
            thread,
            a: note.a,
            b: note.b,
        }
    }

    pub(crate) fn to_words(self) -> [u64; WORDS] {
        let head = u64::from(self.kind as u8)
            | u64::from(self.detail) << 8
            | u64::from(self.cpu) << 16
            | u64::from(self.thread) << 32;
        [self.time, head, self.a, self.b]
    }

    pub(crate) fn from_words([time, head, a, b]: [u64; WORDS]) -> Option<Self> {
        let kind = *Kind::ALL.get((head as u8).checked_sub(1)? as usize)?;
        Some(Self {
            time,
            kind,
            detail: (head >> 8) as u8,
            cpu: (head >> 16) as u16,
            thread: (head >> 32) as u32,
            a,
            b,
        })
    }

    /// The record in the layout of `/proc/skerry/trace`.
    #[must_use]
    pub fn to_bytes(self) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        for (to, word) in bytes.chunks_exact_mut(8).zip(self.to_words()) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// From bytes; `None` if they are no record.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; RECORD_BYTES]) -> Option<Self> {
        let mut words = [0; WORDS];
        for (word, from) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_le_bytes(from.try_into().ok()?);
        }
        Self::from_words(words)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_kind_survives_the_way_through_bytes() {
        for (number, kind) in (1..).zip(Kind::ALL) {
            assert_eq!(kind as u8, number);
            let record = Record::new(
                u64::MAX - 1,
                0xabcd,
                0x1234_5678,
                kind,
                Note {
                    detail: 0x9a,
                    a: 1,
                    b: u64::MAX,
                },
            );
            assert_eq!(Record::from_bytes(&record.to_bytes()), Some(record));
        }
        assert_eq!(Record::from_bytes(&[0; RECORD_BYTES]), None);
        assert_eq!(Record::from_bytes(&[0xff; RECORD_BYTES]), None);
    }

    #[test]
    fn classes_by_name() {
        assert_eq!(Class::parse("switch,wake"), Some(0b11));
        assert_eq!(Class::parse("all"), Some(0xff));
        assert_eq!(Class::parse("switch,nonsense"), None);
        assert_eq!(Class::parse(""), None);
    }

    /// Each class has a bit and a name of its own, and is recorded by the kinds that are of it;
    /// what says who is who, by all.
    #[test]
    fn each_kind_is_of_its_class() {
        for (n, (class, name)) in Class::ALL.into_iter().enumerate() {
            assert_eq!((class.bit(), Class::parse(name)), (1 << n, Some(1 << n)));
        }
        assert_eq!(
            (
                Class::parse("all,irq"),
                Class::parse("irq,"),
                Class::parse("irq,irq")
            ),
            (None, None, Some(8))
        );
        let kinds = |class: Class| {
            Kind::ALL
                .into_iter()
                .filter(|kind| kind.classes() == class.bit())
                .collect::<std::vec::Vec<_>>()
        };
        assert_eq!(kinds(Class::Switch), [Kind::Switch]);
        assert_eq!(kinds(Class::Irq), [Kind::IrqBegin, Kind::IrqEnd]);
        assert_eq!(kinds(Class::Lock), [Kind::LockBegin, Kind::LockEnd]);
        assert_eq!(
            Kind::ALL
                .into_iter()
                .filter(|kind| kind.classes() == u32::MAX)
                .count(),
            2
        );
    }

    #[test]
    fn a_number_that_is_no_kind_is_no_record() {
        for (kind, there) in [(0, false), (1, true), (15, true), (16, false), (255, false)] {
            let mut bytes = [0; RECORD_BYTES];
            bytes[8] = kind;
            assert_eq!(Record::from_bytes(&bytes).is_some(), there, "{kind}");
        }
        assert_eq!(
            (Note::detail(5).detail, Note::two(1, 2)),
            (
                5,
                Note {
                    detail: 0,
                    a: 1,
                    b: 2
                }
            )
        );
    }
}
