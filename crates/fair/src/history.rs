//! The state of a thread while no run queue has it.

use crate::decay::Usage;

/// Recent CPU use of a thread, which decays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recent {
    pub(crate) usage: Usage,
    /// Time at which `usage` was right.
    pub(crate) stamp_ns: u64,
}

impl Recent {
    /// The first words of a [`History`].
    #[inline]
    #[must_use]
    pub fn to_words(&self) -> [u64; 2] {
        [self.usage.to_bits(), self.stamp_ns]
    }

    /// Restores the value of [`Self::to_words`].
    #[inline]
    #[must_use]
    pub fn from_words([usage, stamp_ns]: [u64; 2]) -> Self {
        Self {
            usage: Usage::from_bits(usage),
            stamp_ns,
        }
    }
}

/// State of a thread while no run queue has it: kept by the caller, worth the same on every CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct History {
    pub(crate) recent: Recent,
    /// Lag when the thread left a run queue, in nanoseconds; the queue, and its virtual time then.
    pub(crate) lag_ns: i64,
    pub(crate) queue: u32,
    pub(crate) virtual_time: u64,
    /// Unused part of the `SCHED_RR` quantum; 0 stands for all of it.
    pub(crate) quantum_ns: u32,
}

impl History {
    /// Lag when the thread left: the time it was owed, in nanoseconds; negative if it was ahead of
    /// its share.
    #[must_use]
    pub fn lag_ns(&self) -> i64 {
        self.lag_ns
    }

    /// Number of words of [`Self::to_words`].
    pub const WORDS: usize = 5;

    /// History of a thread that is owed nothing, as one is that hands its CPU over
    /// ([`crate::RunQueue::hand_over`]).
    #[must_use]
    pub fn even(recent: Recent) -> Self {
        Self {
            recent,
            ..Self::default()
        }
    }

    /// Recent CPU use of the thread.
    #[must_use]
    pub fn recent(&self) -> Recent {
        self.recent
    }

    /// Encodes the history where only words can be kept: those of [`Recent`], the lag, and the
    /// rest, which does not matter as long as the lag is 0.
    #[must_use]
    pub fn to_words(&self) -> [u64; Self::WORDS] {
        let small = u64::from(self.quantum_ns) << 32 | u64::from(self.queue);
        let [usage, stamp_ns] = self.recent.to_words();
        [
            usage,
            stamp_ns,
            self.lag_ns.cast_unsigned(),
            self.virtual_time,
            small,
        ]
    }

    /// Restores the value of [`Self::to_words`].
    #[must_use]
    pub fn from_words([usage, stamp_ns, lag_ns, virtual_time, small]: [u64; Self::WORDS]) -> Self {
        Self {
            recent: Recent::from_words([usage, stamp_ns]),
            lag_ns: lag_ns.cast_signed(),
            queue: small as u32,
            virtual_time,
            quantum_ns: (small >> 32) as u32,
        }
    }
}

impl Default for History {
    /// A new thread's. It counts as one that ran all the time: what is not known to sleep is not
    /// served first.
    fn default() -> Self {
        let recent = Recent {
            usage: Usage::FULL,
            stamp_ns: u64::MAX,
        };
        Self {
            recent,
            lag_ns: 0,
            queue: u32::MAX,
            virtual_time: 0,
            quantum_ns: 0,
        }
    }
}
