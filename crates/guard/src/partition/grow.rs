//! Memory for an instance that runs (`docs/descriptor.md`): staged, committed by an epoch of its
//! descriptor's dynamic part, and settled by its answer.
//!
//! From the commit on the memory is the instance's, adopted or not: it comes back by a refusal, or
//! with all the rest at the instance's end.

use core::fmt;
use core::sync::atomic::Ordering;

use abi::descriptor::MemRange;
use abi::layout::{GRANULE_SIZE, PAGE_SIZE};
use abi::live::{self, Answer, Answers, Live, Refusal, Verdict};
use ring::epoch::Table;

use super::Partition;
use crate::mem::grant::{Granules, NoGranules};
use crate::mem::{Scrubbing, direct, phys};
use crate::timer;

/// Memory taken for an instance that runs, clean, and not given to it yet. Dropped, it is free
/// again.
#[derive(Debug)]
pub struct Staged(Granules);

/// Reason why an instance gets no more memory. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrowError {
    /// The instance does not run.
    Stopped,
    /// The instance has not answered the last change yet.
    Pending,
    /// Less memory is free in whole granules.
    Memory {
        /// Free memory in bytes.
        free: u64,
    },
    /// The instance was created for less.
    Limit,
    /// The memory would be in more pieces than can be described, or the supervisor itself is short
    /// of memory.
    Supervisor,
}

impl fmt::Display for GrowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stopped => f.write_str("it does not run"),
            Self::Pending => f.write_str("it has not answered the last change yet"),
            Self::Memory { free } => write!(f, "only {} MiB are free", free >> 20),
            Self::Limit => f.write_str("it was created for less memory"),
            Self::Supervisor => f.write_str("the supervisor is short of memory"),
        }
    }
}

impl core::error::Error for GrowError {}

/// Interval between rings for a change that is not answered.
const RING_AGAIN_NS: u64 = 500_000_000;

/// A change that was committed and not answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    epoch: u64,
    /// Undoes it ([`Granules::split_off`]).
    mark: usize,
    /// Time of the last ring.
    rung_ns: u64,
}

/// The end of a change.
#[derive(Debug)]
pub struct Settled {
    /// Number of the epoch.
    pub epoch: u64,
    /// Of a change that the instance has refused, so that it has what it had before: the reason
    /// that it gave, and the memory, for the caller to scrub; what is not is before it is given to
    /// anybody.
    pub refused: Option<(Refusal, Scrubbing)>,
}

impl Staged {
    /// Takes so many bytes, in whole granules, as [`Partition::create`] does.
    ///
    /// # Errors
    /// [`GrowError::Memory`], [`GrowError::Supervisor`].
    pub fn take(bytes: u64) -> Result<Self, GrowError> {
        let granules = Granules::take(bytes.div_ceil(GRANULE_SIZE as u64));
        granules.map(Self).map_err(|error| match error {
            NoGranules::Short { free } => GrowError::Memory {
                free: free * GRANULE_SIZE as u64,
            },
            NoGranules::Scattered | NoGranules::NoMemory => GrowError::Supervisor,
        })
    }
}

impl Partition {
    /// The most memory that the instance may have, in bytes.
    #[must_use]
    pub fn memory_limit(&self) -> u64 {
        self.staged.frame_limit() * PAGE_SIZE as u64
    }

    /// Gives memory to the instance, and rings: it is the instance's from now on. Returns the
    /// number of the epoch that says so.
    ///
    /// # Errors
    /// Why not; the memory is free again.
    pub fn grow(&mut self, more: Staged) -> Result<u64, GrowError> {
        let Staged(mut more) = more;
        if !self.started || self.halting {
            return Err(GrowError::Stopped);
        }
        if self.pending.is_some() {
            return Err(GrowError::Pending);
        }
        if more.bytes() > self.memory_limit() - self.memory_bytes() {
            return Err(GrowError::Limit);
        }
        let first = self.staged.total_frames();
        // Each run of the new memory is an entry at most.
        let entries = self.granules().runs_from(first).count() + more.runs_from(0).count();
        if entries > live::MAX_ENTRIES {
            return Err(GrowError::Supervisor);
        }
        more.grant();
        let Some(mark) = self.granules_mut().append(&mut more) else {
            // SAFETY: nobody was told of this memory.
            unsafe { more.take_back() };
            return Err(GrowError::Supervisor);
        };
        let epoch = self.publish_memory();
        self.pending = Some(Pending {
            epoch,
            mark,
            rung_ns: timer::now_ns(),
        });
        self.ring();
        Ok(epoch)
    }

    /// Writes an epoch: all memory but the first.
    fn publish_memory(&self) -> u64 {
        let first = self.staged.total_frames();
        let live = self.live();
        let granules = self.granules();
        let runs = granules.runs_from(first).map(|run| MemRange {
            first_frame: run.first,
            phys: phys::of(run.at).0,
            count: run.count,
        });
        let count = granules.runs_from(first).count();
        let table = Table::new(&live.counter, &live.count, &live.entries);
        table.publish(count, runs.map(live::memory))
    }

    fn live(&self) -> &Live {
        // SAFETY: a block of that size, ours as long as `self`, zeroed when it was made; it
        // consists of atomics, and the instance reads while we write.
        unsafe { &*self.shared().live.ptr().cast::<Live>() }
    }

    fn answers(&self) -> &Answers {
        let at = direct::ptr(self.shared().answers());
        // SAFETY: a page of the window's block, ours as long as `self`, zeroed when it was made; it
        // consists of atomics, so the instance may write while we read.
        unsafe { &*at.cast::<Answers>() }
    }

    /// Looks whether the instance has answered the pending change, and ends it if so. Rings again
    /// if not: a doorbell may have been lost. To be called when its doorbell rings, and from time
    /// to time.
    pub fn settle(&mut self) -> Option<Settled> {
        let pending = self.pending.as_mut()?;
        let (now, Pending { epoch, mark, .. }) = (timer::now_ns(), *pending);
        let overdue = now.saturating_sub(pending.rung_ns) > RING_AGAIN_NS;
        if overdue {
            pending.rung_ns = now;
        }
        let word = self.answers().last.load(Ordering::Acquire);
        let answer = Answer::from_word(word).filter(|answer| answer.epoch == epoch as u32);
        let Some(Answer { verdict, .. }) = answer else {
            if overdue {
                self.ring();
            }
            return None;
        };
        match verdict {
            Verdict::Taken => {
                self.pending = None;
                Some(Settled {
                    epoch,
                    refused: None,
                })
            }
            Verdict::Refused(refusal) => {
                // Without memory for the list it stays pending, and is tried again.
                let mut memory = self.granules_mut().split_off(mark)?;
                self.pending = None;
                // Nobody is to find it in the table that it comes back from.
                self.publish_memory();
                // SAFETY: the instance's guard, which alone makes its page tables and alone can
                // answer, says that it has not mapped the memory; it does not look at that epoch
                // again, and an instance has no devices yet.
                unsafe { memory.take_back() };
                Some(Settled {
                    epoch,
                    refused: Some((refusal, memory.into_scrubbing())),
                })
            }
        }
    }
}
