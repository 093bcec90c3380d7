//! Changes of the CPUs and the memory of an instance that runs (`docs/descriptor.md`): staged,
//! committed by an epoch of its descriptor's dynamic part, and settled by its answer.
//!
//! From the commit on what is new is the instance's, adopted or not: it comes back by a refusal, or
//! with all the rest at the instance's end. A CPU stays in the park page until the instance has
//! adopted it. One that the instance is to give back is the instance's until it has answered and
//! the CPU has proved that it is in the park page; whoever does not prove that stays the
//! instance's, and the change pending. Memory that it is to give back is its own until it has
//! answered that it has taken it out of its page tables.

use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::Ordering;

use abi::descriptor::{self, MemRange};
use abi::layout::{GRANULE_SIZE, PAGE_SIZE};
use abi::live::{self, Answer, Answers, Entry, Live, Refusal, Verdict};
use abi::messages::MAX_NAMES;
use ring::epoch::Table;

use super::hotplug::{FunctionChange, Leaving};
use super::{InstanceCpu, Partition, Sharing, available_more, choose_more, cpus_now};
use crate::faults::crash_point;
use crate::mem::grant::{Granules, NoGranules};
use crate::mem::{Scrubbing, direct, phys};
use crate::paging::build::Run;
use crate::timer;

/// CPUs and memory taken for an instance that runs, the memory clean, and not given to it yet.
/// Dropped, all of it is free again.
pub struct Staged {
    /// Number of the instance.
    id: u32,
    memory: Option<Granules>,
    cpus: Vec<InstanceCpu>,
}

/// Amounts of what an instance is to have more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct More {
    /// Memory in bytes; whole granules.
    pub memory: u64,
    /// Number of CPUs.
    pub cpus: u32,
}

/// Amounts of what an instance is to give back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Less {
    /// Memory in bytes; whole granules.
    pub memory: u64,
    /// Number of CPUs.
    pub cpus: u32,
    /// Whether its caches give up memory, if else none can leave.
    pub reclaims: bool,
}

/// Reason why what an instance has is not changed. Nothing was changed.
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
    /// Fewer CPUs are free that such an instance could have.
    Cpus {
        /// Their number.
        free: u32,
    },
    /// The instance was created for less.
    Limit,
    /// The instance would have no CPU.
    LastCpu,
    /// The instance would have less memory than it was created with.
    FirstMemory,
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
            Self::Cpus { free } => write!(f, "only {free} CPUs are free"),
            Self::Limit => f.write_str("it was created for less"),
            Self::LastCpu => f.write_str("it would have no CPU"),
            Self::FirstMemory => f.write_str("it keeps what it was created with"),
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
    /// Undoes what it did to memory, if it did ([`Granules::split_off`]).
    mark: Option<usize>,
    /// Only peers change by it, and nobody waits for it: the next change may take its place.
    pub(super) is_of_peers: bool,
    /// The function that comes or goes by it.
    pub(super) function: Option<FunctionChange>,
    /// Number of CPUs before it.
    cpus: usize,
    /// Number of these that the instance keeps.
    keeps: usize,
    /// Bytes of memory that it keeps, what is new included.
    keeps_bytes: u64,
    /// The instance has adopted it, and CPUs are on their way into the park page.
    adopted: bool,
    /// Time of the last ring.
    rung_ns: u64,
}

impl Pending {
    /// An epoch by which only peers change, of an instance with so many CPUs and bytes.
    pub(super) fn of_peers(epoch: u64, cpus: usize, bytes: u64) -> Self {
        Self {
            is_of_peers: true,
            ..Self::of_others(epoch, cpus, bytes)
        }
    }

    /// An epoch by which a function comes or goes, likewise.
    pub(super) fn of_function(epoch: u64, cpus: usize, bytes: u64, change: FunctionChange) -> Self {
        Self {
            function: Some(change),
            ..Self::of_others(epoch, cpus, bytes)
        }
    }

    fn of_others(epoch: u64, cpus: usize, bytes: u64) -> Self {
        Self {
            epoch,
            mark: None,
            is_of_peers: false,
            function: None,
            cpus,
            keeps: cpus,
            keeps_bytes: bytes,
            adopted: false,
            rung_ns: timer::now_ns(),
        }
    }
}

/// The end of a change.
#[derive(Debug)]
pub struct Settled {
    /// Number of the epoch.
    pub epoch: u64,
    /// Of a change that the instance has refused, so that it has what it had before: the reason
    /// that it gave, and the memory, if it was memory, for the caller to scrub; what is not is
    /// before it is given to anybody.
    pub refused: Option<(Refusal, Option<Scrubbing>)>,
    /// Memory that the instance has given back, for the caller to scrub.
    pub freed: Option<Scrubbing>,
    /// A function that the instance has let go of, or has refused: the caller is to stop it, and
    /// then to say so ([`Partition::end_of_function`]).
    pub leaves: Option<Leaving>,
    /// Number of a function that the instance uses from here on.
    pub came: Option<u32>,
}

/// Rule by which an instance gets more CPUs, and its number.
#[derive(Clone, Copy, Debug)]
pub struct Taker {
    id: u32,
    sharing: Sharing,
}

impl Taker {
    /// Number of CPUs that the instance could have more at this moment.
    #[must_use]
    pub fn free_cpus(&self) -> u32 {
        available_more(&cpus_now(), self.id, self.sharing) as u32
    }

    /// Takes more for the instance, as [`Partition::create`] does.
    ///
    /// # Errors
    /// [`GrowError::Cpus`], [`GrowError::Memory`], [`GrowError::Supervisor`].
    pub fn take(&self, more: More) -> Result<Staged, GrowError> {
        let mut staged = Staged {
            id: self.id,
            memory: None,
            cpus: self.take_cpus(more.cpus as usize)?,
        };
        if more.memory > 0 {
            let granules = Granules::take(more.memory.div_ceil(GRANULE_SIZE as u64));
            staged.memory = Some(granules.map_err(|error| match error {
                NoGranules::Short { free } => GrowError::Memory {
                    free: free * GRANULE_SIZE as u64,
                },
                NoGranules::Scattered | NoGranules::NoMemory => GrowError::Supervisor,
            })?);
        }
        Ok(staged)
    }

    fn take_cpus(&self, count: usize) -> Result<Vec<InstanceCpu>, GrowError> {
        let mut taken = Vec::new();
        taken
            .try_reserve_exact(count)
            .map_err(|_| GrowError::Supervisor)?;
        let mut all = cpus_now();
        let mut marks = [false; descriptor::MAX_CPUS];
        let marks = &mut marks[..all.len()];
        if count > 0 && !choose_more(&all, self.id, count, self.sharing, marks) {
            let free = available_more(&all, self.id, self.sharing) as u32;
            return Err(GrowError::Cpus { free });
        }
        for slot in (0..marks.len()).filter(|&slot| marks[slot]) {
            taken.push(InstanceCpu::take(&mut all, slot, self.id, self.sharing));
        }
        Ok(taken)
    }
}

/// Gives CPUs back that are in the park page.
fn give_back(given: impl IntoIterator<Item = InstanceCpu>) {
    let mut all = cpus_now();
    for cpu in given {
        cpu.give_back(&mut all);
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        give_back(self.cpus.drain(..));
    }
}

impl Partition {
    /// By whom and how more is taken for this instance.
    #[must_use]
    pub fn taker(&self) -> Taker {
        Taker {
            id: self.id,
            sharing: self.sharing,
        }
    }

    /// The most CPUs that the instance may have.
    #[must_use]
    pub fn cpu_limit(&self) -> u32 {
        self.staged.cpu_limit() as u32
    }

    /// The most memory that the instance may have, in bytes.
    #[must_use]
    pub fn memory_limit(&self) -> u64 {
        self.staged.frame_limit() * PAGE_SIZE as u64
    }

    /// Memory that the instance was created with, in bytes.
    #[must_use]
    pub fn first_memory_bytes(&self) -> u64 {
        self.staged.total_frames() * PAGE_SIZE as u64
    }

    /// Whether what the instance has can be changed now.
    ///
    /// # Errors
    /// [`GrowError::Stopped`], [`GrowError::Pending`].
    pub(super) fn check_changeable(&self) -> Result<(), GrowError> {
        if !self.started || self.halting {
            return Err(GrowError::Stopped);
        }
        let is_change = |pending: Pending| !pending.is_of_peers;
        if self.pending.is_some_and(is_change) || self.awaits_first() {
            return Err(GrowError::Pending);
        }
        Ok(())
    }

    /// Gives CPUs and memory to the instance, which are its own from now on, has it give back its
    /// last CPUs and the last of its memory, and rings. Returns the number of the epoch that says
    /// so.
    ///
    /// # Errors
    /// Why not; all that was taken is free again.
    ///
    /// # Panics
    /// If it was taken for another instance, or CPUs or memory are to come and to go.
    pub fn change(&mut self, mut more: Staged, less: Less) -> Result<u64, GrowError> {
        assert_eq!(more.id, self.id, "taken for another instance");
        self.check_changeable()?;
        let bytes = more.memory.as_ref().map_or(0, Granules::bytes);
        let cpus = self.cpus.len();
        assert!(
            (less.cpus == 0 || more.cpus.is_empty()) && (less.memory == 0 || bytes == 0),
            "CPUs or memory come and go"
        );
        let keeps_bytes = (self.memory_bytes() + bytes)
            .checked_sub(less.memory)
            .filter(|left| *left >= self.first_memory_bytes())
            .ok_or(GrowError::FirstMemory)?;
        let keeps = match cpus.checked_sub(less.cpus as usize) {
            None | Some(0) => return Err(GrowError::LastCpu),
            Some(keeps) => keeps,
        };
        if bytes > self.memory_limit() - self.memory_bytes()
            || cpus + more.cpus.len() > self.staged.cpu_limit()
        {
            return Err(GrowError::Limit);
        }
        let first = self.staged.total_frames();
        // Each run of the new memory is an entry at most.
        let runs = more
            .memory
            .as_ref()
            .map_or(0, |new| new.runs_of(0..u64::MAX).count());
        let runs = self.granules().runs_of(first..u64::MAX).count() + runs;
        let functions = self.functions.entries().count();
        let others = functions + MAX_NAMES + usize::from(less.reclaims);
        if runs + cpus + more.cpus.len() + others > live::MAX_ENTRIES {
            return Err(GrowError::Supervisor);
        }
        self.cpus
            .try_reserve(more.cpus.len())
            .map_err(|_| GrowError::Supervisor)?;
        // Until it is settled, the next supervisor would not know what the instance has of it.
        self.keep_changing(true);
        crash_point("change: staged");
        let mark = match &mut more.memory {
            None => None,
            Some(memory) => {
                memory.grant(self.id);
                // Devices reach it before the instance is told of it.
                let frames = self.memory_bytes() / PAGE_SIZE as u64;
                let runs = memory.runs_of(0..u64::MAX).map(|run| Run {
                    first: frames + run.first,
                    ..run
                });
                let reach = self.functions.reach(runs);
                let mark = reach.then(|| self.granules_mut().append(memory)).flatten();
                let Some(mark) = mark else {
                    let end = frames + bytes / PAGE_SIZE as u64;
                    if self.functions.leave(frames..end) {
                        // SAFETY: nobody was told of this memory, and no device reaches it.
                        unsafe { memory.take_back() };
                    }
                    self.keep_changing(false);
                    return Err(GrowError::Supervisor);
                };
                Some(mark)
            }
        };
        self.cpus.append(&mut more.cpus);
        let cpus_left = self.cpus.len() - less.cpus as usize;
        let how = less.reclaims.then_some(live::RECLAIM);
        let epoch = self.publish_table(cpus_left, keeps_bytes, how);
        self.pending = Some(Pending {
            mark,
            keeps,
            ..Pending::of_others(epoch, cpus, keeps_bytes)
        });
        self.ring();
        crash_point("change: told");
        Ok(epoch)
    }

    /// Writes an epoch: so many of the CPUs, the functions, the peers, so many bytes of memory but
    /// the first, and how it is to be followed.
    pub(super) fn publish_table(&mut self, cpus: usize, bytes: u64, how: Option<Entry>) -> u64 {
        let frames = self.staged.total_frames()..bytes / PAGE_SIZE as u64;
        let live = self.live();
        let granules = self.granules();
        let listed = (0..)
            .zip(&self.cpus[..cpus])
            .map(|(number, cpu)| live::cpu(number, cpu.entry()));
        let runs = granules.runs_of(frames.clone()).map(|run| MemRange {
            first_frame: run.first,
            phys: phys::of(run.at).0,
            count: run.count,
        });
        let others = || {
            self.functions
                .entries()
                .chain(self.shared().places.entries())
                .chain(how)
        };
        let count = cpus + others().count() + granules.runs_of(frames).count();
        let table = Table::new(&live.counter, &live.count, &live.entries);
        let listed = listed.chain(others());
        let epoch = table.publish(count, listed.chain(runs.map(live::memory)));
        self.places_mut().told();
        epoch
    }

    /// Tells the instance of peers that have come or gone, by an epoch, unless it has not answered
    /// the last one: then once it has. To be called when its doorbell rings, and from time to time.
    pub fn publish_peers(&mut self) {
        let is_due = self.shared().places.is_stale() && self.started && !self.halting;
        if !is_due || self.pending.is_some() || self.awaits_first() {
            return;
        }
        let (cpus, bytes) = (self.cpus.len(), self.memory_bytes());
        let epoch = self.publish_table(cpus, bytes, None);
        self.pending = Some(Pending::of_peers(epoch, cpus, bytes));
        self.ring();
    }

    /// An instance looks for its functions in the first epoch, which is there until it answers.
    fn awaits_first(&self) -> bool {
        !self.functions.is_empty() && self.answers().last.load(Ordering::Acquire) == 0
    }

    pub(super) fn live(&self) -> &Live {
        // SAFETY: a block of that size, ours as long as `self`, zeroed when it was made; it
        // consists of atomics, and the instance reads while we write.
        unsafe { &*self.shared().live.ptr().cast::<Live>() }
    }

    pub(super) fn answers(&self) -> &Answers {
        let at = direct::ptr(self.shared().answers());
        // SAFETY: a page of the window's block, ours as long as `self`, zeroed when it was made; it
        // consists of atomics, so the instance may write while we read.
        unsafe { &*at.cast::<Answers>() }
    }

    /// Whether something is on its way back: [`Self::settle`] is to be called again in a moment.
    #[must_use]
    pub fn awaits_cpus(&self) -> bool {
        self.pending.is_some_and(|pending| pending.adopted) && !self.halting
    }

    /// Looks whether the instance has answered the pending change, and all CPUs that it gives back
    /// have come, and ends it if so. Rings again if there is no answer: a doorbell may have been
    /// lost. To be called when its doorbell rings, and from time to time.
    pub fn settle(&mut self) -> Option<Settled> {
        let pending = self.pending.as_mut()?;
        if pending.adopted {
            return self.settle_adopted();
        }
        let now = timer::now_ns();
        let Pending {
            epoch,
            mark,
            is_of_peers,
            function,
            cpus,
            ..
        } = *pending;
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
                // Whoever answers is ready for its further CPUs, whether it says so or not: nobody
                // is to ask for one later that has left.
                self.start_further_cpus();
                self.places_mut().answered();
                if is_of_peers {
                    self.pending = None;
                    return None;
                }
                if let Some(pending) = &mut self.pending {
                    pending.adopted = true;
                }
                let cr3 = self.root();
                // Not at an end that has begun: then all CPUs are on their way into the park page.
                if !self.halting {
                    for number in cpus..self.cpus.len() {
                        // What was left there by another CPU that had this number.
                        self.window().heartbeats[number].reset();
                        self.publish(number, cr3);
                    }
                }
                self.settle_adopted()
            }
            // Its peers are what they were for it, until the next epoch.
            Verdict::Refused(refusal) if is_of_peers => {
                log::error!("instance {} refuses its peers: {refusal}", self.id);
                self.pending = None;
                None
            }
            Verdict::Refused(refusal) => {
                // Without memory for the list, or while a device may still reach what was refused,
                // it stays pending, and is tried again.
                let memory = match mark {
                    Some(mark) => {
                        let frames = |bytes| bytes / PAGE_SIZE as u64;
                        let first = self.granules().bytes_before(mark);
                        let reached = frames(first)..frames(self.memory_bytes());
                        self.functions.leave(reached).then_some(())?;
                        Some(self.granules_mut().split_off(mark)?)
                    }
                    None => None,
                };
                self.pending = None;
                let leaves = function.and_then(|change| self.functions.undo(change, refusal));
                // Nobody is to find what comes back in the table that it comes back from.
                let is_stale = self.shared().places.is_stale();
                self.publish_table(cpus, self.memory_bytes(), None);
                if is_stale {
                    // It is not rung for this epoch.
                    self.places_mut().tell_again();
                }
                // The CPUs never left the park page.
                give_back(self.cpus.drain(cpus..));
                let memory = memory.map(|mut memory| {
                    // SAFETY: the instance's guard, which alone makes its page tables and alone can
                    // answer, says that it has not mapped the memory; it does not look at that
                    // epoch again. Nor were its devices told of what it never had, or if something
                    // confines them, they do not reach it any more.
                    unsafe { memory.take_back() };
                    memory.into_scrubbing()
                });
                self.keep_changing(false);
                Some(Settled {
                    epoch,
                    refused: Some((refusal, memory)),
                    freed: None,
                    leaves,
                    came: None,
                })
            }
        }
    }

    /// Ends a change that was adopted, if the CPUs that leave by it have come into the park page.
    fn settle_adopted(&mut self) -> Option<Settled> {
        let Pending {
            epoch,
            cpus,
            function,
            keeps,
            keeps_bytes,
            ..
        } = self.pending?;
        // At an end all comes back in another way.
        let gives_back = keeps < cpus || keeps_bytes < self.memory_bytes() || function.is_some();
        if gives_back && self.halting {
            return None;
        }
        if keeps < cpus {
            let now = timer::now_ns();
            let missing = self.cpus[keeps..].iter_mut().filter_map(|cpu| {
                let back = cpu.look(now);
                (!back).then_some(())
            });
            if missing.count() > 0 {
                return None;
            }
        }
        // Without memory for the list, or while a device may still reach what leaves, it stays
        // pending, and is tried again.
        let frames = |bytes| bytes / PAGE_SIZE as u64;
        let leaves = frames(keeps_bytes)..frames(self.memory_bytes());
        let freed = match keeps_bytes < self.memory_bytes() {
            true => {
                self.functions.leave(leaves).then_some(())?;
                Some(self.granules_mut().split_behind(keeps_bytes)?)
            }
            false => None,
        };
        if keeps < cpus {
            give_back(self.cpus.drain(keeps..));
        }
        self.pending = None;
        let leaves = function.and_then(|change| self.functions.leaving(change));
        crash_point("change: adopted");
        let freed = freed.map(|mut memory| {
            // SAFETY: the instance's guard, which alone makes its page tables and alone can answer,
            // says that no CPU of it has the memory mapped any more, and that all of it was free:
            // so no driver has a device write to it, and confined devices cannot.
            unsafe { memory.take_back() };
            memory.into_scrubbing()
        });
        self.keep_changing(false);
        Some(Settled {
            epoch,
            refused: None,
            freed,
            leaves,
            came: function.and_then(FunctionChange::came),
        })
    }
}
