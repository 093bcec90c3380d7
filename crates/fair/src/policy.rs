//! Scheduling classes and weights.

/// Scheduling policy of a thread, with Linux's classes and parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// `SCHED_FIFO`: before all fair threads; runs until it sleeps, yields or a higher priority
    /// comes. Programs have 1..=99; what is above is the kernel's own.
    Fifo(u8),
    /// `SCHED_RR`: the same, but takes turns with its equals each [`crate::RR_QUANTUM_NS`].
    Rr(u8),
    /// `SCHED_OTHER`: a fair share by nice level (-20..=19).
    Other(i8),
    /// `SCHED_BATCH`: the same, but waking up never takes the CPU from another.
    Batch(i8),
    /// `SCHED_IDLE`: the least share there is, and gives way at once to any other thread that
    /// wakes.
    Idle,
}

/// Scheduling group of a thread. Management goes before programs, and leaves them a part of the
/// CPU; within a group fair threads share by weight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Group {
    /// Everything, where nothing is managed.
    #[default]
    Programs,
    /// Threads by which a machine is managed.
    Management,
}

/// Policy and group of a thread: all that a run queue must know to place it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Params {
    /// Scheduling policy, with priority or nice level.
    pub policy: Policy,
    /// Scheduling group that the thread is in.
    pub group: Group,
}

impl From<Policy> for Params {
    fn from(policy: Policy) -> Self {
        Self {
            policy,
            group: Group::Programs,
        }
    }
}

/// Weight of `SCHED_IDLE`, Linux's.
const IDLE_WEIGHT: u32 = 3;

/// Weights of nice levels -20..=19: Linux's (`sched_prio_to_weight`), 1024·1.25^-nice but for
/// rounding, so that one level is about a tenth of a CPU between two threads.
static WEIGHTS: [u32; 40] = [
    88761, 71755, 56483, 46273, 36291, 29154, 23254, 18705, 14949, 11916, 9548, 7620, 6100, 4904,
    3906, 3121, 2501, 1991, 1586, 1277, 1024, 820, 655, 526, 423, 335, 272, 215, 172, 137, 110, 87,
    70, 56, 45, 36, 29, 23, 18, 15,
];

impl Policy {
    /// The priority among those that go before all fair threads.
    #[must_use]
    pub fn realtime(self) -> Option<u8> {
        match self {
            Self::Fifo(priority) | Self::Rr(priority) => Some(priority),
            Self::Other(_) | Self::Batch(_) | Self::Idle => None,
        }
    }

    /// The weight of a fair thread; what a nice level of 0 has for the others, for sums of load.
    #[must_use]
    pub fn weight(self) -> u32 {
        match self {
            Self::Other(nice) | Self::Batch(nice) => {
                WEIGHTS[usize::from(nice.clamp(-20, 19).wrapping_add(20).unsigned_abs())]
            }
            Self::Idle => IDLE_WEIGHT,
            Self::Fifo(_) | Self::Rr(_) => WEIGHTS[20],
        }
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self::Other(0)
    }
}
