//! Changes of what an instance has while it runs (`docs/descriptor.md`).

use alloc::sync::Arc;

use abi::dev;
use abi::errno::Errno;
use abi::layout::GRANULE_SIZE;
use abi::live;
use fs::Result;
use guard::partition::{self, GrowError, Less, More, Partition};

use super::{Instance, InstanceState, scrub};
use crate::brief::lock_briefly;

impl InstanceState {
    /// Amounts that the instance lacks of what is wanted, memory in whole granules, and that it has
    /// too much.
    ///
    /// # Errors
    /// Why it does not get that, however much is free.
    fn difference(
        &self,
        has: &Possessions,
        want: &Wanted,
    ) -> core::result::Result<Difference, ResizeError> {
        let runs = self.status.state == dev::STATE_RUNNING && !self.reclaiming;
        if self.partition.is_none() || !runs {
            return Err(GrowError::Stopped.into());
        }
        if self.resizing.staging || self.resizing.pending.is_some() {
            return Err(GrowError::Pending.into());
        }
        if self.status.paused != dev::PAUSED_NO {
            return Err(ResizeError::Paused);
        }
        let whole = |bytes: u64| bytes.checked_next_multiple_of(GRANULE_SIZE as u64);
        let wanted = want
            .memory
            .map_or(has.memory, |bytes| whole(bytes).unwrap_or(u64::MAX));
        if wanted < has.first_memory {
            return Err(GrowError::FirstMemory.into());
        }
        let wanted_cpus = want.cpus.unwrap_or(has.cpus);
        if wanted > has.most_memory || wanted_cpus > has.most_cpus {
            return Err(GrowError::Limit.into());
        }
        Ok(Difference {
            missing: More {
                memory: wanted.saturating_sub(has.memory),
                cpus: wanted_cpus.saturating_sub(has.cpus),
            },
            surplus: Less {
                memory: has.memory.saturating_sub(wanted),
                cpus: has.cpus.saturating_sub(wanted_cpus),
                reclaims: want.reclaims,
            },
        })
    }
}

/// Difference between what an instance has and what it is to have.
struct Difference {
    missing: More,
    /// Amounts that it is to give back.
    surplus: Less,
}

/// Changes of what an instance has.
pub(super) struct Resizing {
    /// CPUs and memory are being taken for one, without the lock.
    pub(super) staging: bool,
    /// The change that was not answered yet, or by which memory comes back.
    pub(super) pending: Option<u64>,
    /// The last one that was committed.
    pub(super) last: u64,
    /// The last one by which memory or a function came back, and the time of its scrubbing or its
    /// reset (ns).
    pub(super) scrubbed: (u64, u64),
    /// The last ones that were refused, the latest first.
    pub(super) refused: [Option<(u64, live::Refusal)>; 4],
}

/// Outcome of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The instance has adopted the change. What it gave back was scrubbed in so much time (ns), as
    /// far as that is remembered.
    Taken { scrub_ns: u64 },
    /// The instance has refused it.
    Refused(live::Refusal),
    /// The instance has ended before it answered.
    Ended,
}

/// CPUs and memory of an instance, at the moment and at most. Memory in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Possessions {
    pub cpus: u32,
    pub most_cpus: u32,
    /// CPUs that it could have more.
    pub free_cpus: u32,
    pub memory: u64,
    /// Memory that it was created with, and keeps.
    pub first_memory: u64,
    pub most_memory: u64,
}

impl Possessions {
    fn of(partition: &Partition) -> Self {
        Self {
            cpus: partition.cpu_count(),
            most_cpus: partition.cpu_limit(),
            free_cpus: partition.taker().free_cpus(),
            memory: partition.memory_bytes(),
            first_memory: partition.first_memory_bytes(),
            most_memory: partition.memory_limit(),
        }
    }
}

/// Amounts that an instance is to have in all; `None`: as many as it has.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wanted {
    /// Number of CPUs.
    pub cpus: Option<u32>,
    /// Memory in bytes.
    pub memory: Option<u64>,
    /// Whether its caches give up memory if else it does not get there.
    pub reclaims: bool,
}

/// Extent to which a change is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// Only said whether that could be done at this moment.
    DryRun,
    /// Done.
    Full,
}

/// Why an instance is not resized. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResizeError {
    /// The instance is paused: it would not answer.
    Paused,
    /// Error of the partition: nothing is changed.
    Grow(GrowError),
}

impl From<GrowError> for ResizeError {
    fn from(error: GrowError) -> Self {
        Self::Grow(error)
    }
}

impl Instance {
    /// Gives the instance more CPUs and memory, or has it give some back, until it has what is
    /// wanted. Returns the number of the change, which it answers later, and what it had; 0 if it
    /// has all that.
    ///
    /// # Errors
    /// Why not; nothing was changed.
    pub(crate) fn resize(
        &self,
        want: &Wanted,
        extent: Extent,
    ) -> (core::result::Result<u64, ResizeError>, Possessions) {
        let mut record = self.record.lock();
        let partition = record.partition.as_ref();
        let has = partition.map_or_else(Possessions::default, Possessions::of);
        let Difference { missing, surplus } = match record.difference(&has, want) {
            Ok(Difference {
                missing: More { memory: 0, cpus: 0 },
                surplus: Less {
                    memory: 0, cpus: 0, ..
                },
            }) => return (Ok(0), has),
            Ok(difference) => difference,
            Err(error) => return (Err(error), has),
        };
        if extent == Extent::DryRun {
            return (would_fit(missing, &has).map_err(ResizeError::from), has);
        }
        let Some(taker) = record.partition.as_ref().map(Partition::taker) else {
            return (Err(GrowError::Stopped.into()), has);
        };
        record.resizing.staging = true;
        drop(record);
        // Cleaning takes a while, and the node thread must not wait for it.
        let staged = taker.take(missing);
        let mut record = self.record.lock();
        record.resizing.staging = false;
        record.account_cpus();
        let changed = staged.and_then(|staged| {
            let partition = record.partition.as_mut().ok_or(GrowError::Stopped)?;
            partition.change(staged, surplus)
        });
        if let Ok(epoch) = changed {
            (record.resizing.last, record.resizing.pending) = (epoch, Some(epoch));
        }
        (changed.map_err(ResizeError::from), has)
    }

    /// Outcome of a change; `None` if it was not answered yet.
    ///
    /// # Errors
    /// `EINVAL`: there was no such change.
    pub(crate) fn outcome(&self, epoch: u64) -> Result<Option<Outcome>> {
        let record = lock_briefly(&self.record);
        let resizing = &record.resizing;
        if epoch == 0 || epoch > resizing.last {
            return Err(Errno::EINVAL);
        }
        let mut refused = resizing.refused.iter().flatten();
        Ok(match refused.find(|(number, _)| *number == epoch) {
            Some((_, refusal)) => Some(Outcome::Refused(*refusal)),
            None if resizing.pending != Some(epoch) => {
                let (last, ns) = resizing.scrubbed;
                let scrub_ns = if last == epoch { ns } else { 0 };
                Some(Outcome::Taken { scrub_ns })
            }
            None if record.status.state != dev::STATE_RUNNING => Some(Outcome::Ended),
            None => None,
        })
    }

    /// Ends the change that the instance has answered, if it has.
    pub(super) fn settle(self: &Arc<Self>, record: &mut InstanceState) {
        let Some(settled) = record.partition.as_mut().and_then(Partition::settle) else {
            return;
        };
        if let Some(leaving) = settled.leaves.clone() {
            return self.take_back(record, settled, leaving);
        }
        match settled.refused {
            None => {
                if let Some(partition) = &record.partition {
                    record.status.mem = partition.memory_bytes();
                    record.status.cpus = partition.cpu_count();
                }
                if let Some(function) = settled.came {
                    return self.end_device_change(record, dev::EVENT_DEVICE_ADD, function.into());
                }
                let Some(memory) = settled.freed else {
                    return self.end_change(record, settled.epoch);
                };
                // Scrubbing takes a while, and the node thread must not wait for it; who asked for
                // the change does.
                let (this, epoch) = (self.clone(), settled.epoch);
                let scrubbed = task::spawn("reclaim", None, move || {
                    let scrub = scrub(memory, &this.charged_ns, || true);
                    log::info!(
                        "scrubbed {} MiB in {} us",
                        scrub.bytes >> 20,
                        scrub.ns / 1000
                    );
                    let mut record = this.record.lock();
                    record.resizing.scrubbed = (epoch, scrub.ns);
                    this.end_change(&mut record, epoch);
                });
                // If there is no thread for it, the memory is free all the same, and zeroed when it
                // is given out.
                if scrubbed.is_err() {
                    self.end_change(record, epoch);
                }
            }
            Some((refusal, memory)) => {
                if let Some(memory) = memory {
                    // If there is no thread for it, the memory is free all the same, and zeroed
                    // when it is given out.
                    let charged = self.charged_ns.clone();
                    let _ = task::spawn("reclaim", None, move || {
                        scrub(memory, &charged, || false);
                    });
                }
                self.note_refusal(record, settled.epoch, refusal);
            }
        }
    }

    /// A change that the instance has refused is over.
    pub(super) fn note_refusal(
        &self,
        record: &mut InstanceState,
        epoch: u64,
        refusal: live::Refusal,
    ) {
        record.resizing.pending = None;
        record.resizing.refused.rotate_right(1);
        record.resizing.refused[0] = Some((epoch, refusal));
        self.tell(dev::EVENT_REFUSE, epoch);
        log::error!(
            "instance {} ({}) has refused epoch {epoch}: {refusal}",
            self.id,
            self.label(),
        );
        self.state_changed.notify();
    }

    /// A change that the instance has adopted is over: what it gave back is free.
    pub(super) fn end_change(&self, record: &mut InstanceState, epoch: u64) {
        record.resizing.pending = None;
        self.tell_resources(dev::EVENT_RESIZE, &record.status);
        let mib = record.status.mem >> 20;
        log::info!(
            "instance {} ({}) has {} CPUs, {mib} MiB of memory, epoch {epoch}",
            self.id,
            self.label(),
            record.status.cpus
        );
        self.state_changed.notify();
    }

    /// A change by which a function came or left is over, as the event says.
    pub(super) fn end_device_change(&self, record: &mut InstanceState, kind: u32, value: u64) {
        record.resizing.pending = None;
        self.tell(kind, value);
        self.state_changed.notify();
    }
}

/// Whether so much more could be given at this moment to an instance that has `has`.
fn would_fit(missing: More, has: &Possessions) -> core::result::Result<u64, GrowError> {
    let free = partition::resources().mem_free / GRANULE_SIZE as u64 * GRANULE_SIZE as u64;
    if missing.memory > free {
        return Err(GrowError::Memory { free });
    }
    if missing.cpus > has.free_cpus {
        let free = has.free_cpus;
        return Err(GrowError::Cpus { free });
    }
    Ok(0)
}
