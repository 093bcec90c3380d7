//! Programs that are run beside the first one of an instance (`abi::exec`).
//!
//! Each has a slot in the window, from the request to the instance's word that it uses it no more.
//! Nothing is kept of them but what is in [`Programs`]: what they write stays in their rings until
//! somebody reads it, and nobody waits for an instance but who asked for the program.

use core::sync::atomic::Ordering;

use abi::Window;
use abi::dev::{self, ExecState};
use abi::errno::Errno;
use abi::exec::{EXECS, ExecSlot, REQUEST_BYTES, STREAMS, Verdict};
use abi::msg::{self, Message};
use fs::Result;
use guard::partition::Partition;
use ring::{Consumer, Producer};

use super::{Instance, InstanceState};
use crate::brief::{BriefGuard, lock_briefly};

/// Status of a program that ended with its instance.
const KILLED: u8 = 128 + 9;

/// A slot, as the supervisor has it.
#[derive(Clone, Copy, Default)]
struct Slot {
    /// Number of the program that uses it; 0 if none does.
    number: u32,
    /// Whether somebody has its descriptor.
    attended: bool,
    detached: bool,
    /// The instance's last word, as long as it was none before that excludes it.
    verdict: Option<Verdict>,
    /// Private positions in its rings.
    positions: [u64; STREAMS],
}

impl Slot {
    /// Takes in what the instance says: a program starts once, and ends once.
    fn follow(&mut self, shared: &ExecSlot) {
        let said = shared.answer_to(self.number);
        if self.number != 0 && !self.is_over() && said.is_some() {
            self.verdict = said;
        }
    }

    /// Whether the instance has said its last word of the program.
    fn is_over(&self) -> bool {
        self.verdict.is_some_and(Verdict::is_final)
    }

    /// Whether neither the instance nor anybody here has to do with it.
    fn is_free(&self) -> bool {
        let over = match self.verdict {
            Some(Verdict::Started) => self.detached,
            Some(verdict) => verdict.is_final(),
            None => false,
        };
        self.number == 0 || over && !self.attended
    }
}

/// All slots of an instance.
#[derive(Default)]
pub(super) struct Programs {
    slots: [Slot; EXECS],
    /// Number of the last program.
    last: u32,
}

impl Programs {
    /// The programs of an instance that has outlived its supervisor: who had asked for them is
    /// gone, and so they are told, as if each had closed its descriptor.
    pub(super) fn adopted(window: &Window) -> Self {
        let mut programs = Self::default();
        for (slot, shared) in programs.slots.iter_mut().zip(&window.execs) {
            slot.number = shared.asked.load(Ordering::Acquire);
            slot.detached = shared.detached.load(Ordering::Relaxed) != 0;
            slot.follow(shared);
            if slot.number != 0 && !slot.detached && !slot.is_over() {
                shared.hung_up.store(slot.number, Ordering::Release);
            }
            programs.last = programs.last.max(slot.number);
        }
        programs
    }
}

/// A request for a program.
pub(crate) struct Program<'a> {
    pub(crate) request: &'a [u8],
    pub(crate) user: u32,
    pub(crate) group: u32,
    pub(crate) winsize: u32,
    pub(crate) detached: bool,
}

/// Why a program is not asked for. Nothing was changed.
pub(crate) enum ExecError {
    NotRunning,
    Booting,
    Paused,
    Hung,
    /// All slots are in use.
    Full,
    TooLong,
}

/// A slot in use, with what the two sides share of it.
struct Found<'a> {
    record: BriefGuard<'a, InstanceState>,
    at: usize,
}

impl Found<'_> {
    fn slot(&mut self) -> &mut Slot {
        &mut self.record.programs.slots[self.at]
    }

    /// Does something with a slot and what is shared of it; `None` once the instance has ended.
    fn with<R>(&mut self, act: impl FnOnce(&mut Slot, &ExecSlot, &Partition) -> R) -> Option<R> {
        let record = &mut *self.record;
        let partition = record.partition.as_ref()?;
        let slot = &mut record.programs.slots[self.at];
        let shared = &partition.window().execs[self.at];
        slot.follow(shared);
        Some(act(slot, shared, partition))
    }
}

impl Instance {
    fn program(&self, number: u32) -> Result<Found<'_>> {
        let record = lock_briefly(&self.record);
        let slots = &record.programs.slots;
        let at = slots.iter().position(|slot| slot.number == number);
        let at = at.filter(|_| number != 0).ok_or(Errno::ENOENT)?;
        Ok(Found { record, at })
    }

    /// Asks for a program; returns its number.
    pub(crate) fn exec(&self, program: &Program<'_>) -> core::result::Result<u32, ExecError> {
        if program.request.len() > REQUEST_BYTES {
            return Err(ExecError::TooLong);
        }
        let mut record = lock_briefly(&self.record);
        let record = &mut *record;
        let status = &record.status;
        let runs = status.state == dev::STATE_RUNNING && !record.reclaiming;
        let Some(partition) = record.partition.as_ref().filter(|_| runs) else {
            return Err(ExecError::NotRunning);
        };
        if status.start_to_user_ns == 0 {
            return Err(ExecError::Booting);
        }
        if status.paused != dev::PAUSED_NO {
            return Err(ExecError::Paused);
        }
        if status.health == dev::HEALTH_HUNG {
            return Err(ExecError::Hung);
        }
        let window = partition.window();
        let Programs { slots, last } = &mut record.programs;
        for (slot, shared) in slots.iter_mut().zip(&window.execs) {
            slot.follow(shared);
        }
        let free = slots
            .iter_mut()
            .zip(&window.execs)
            .find(|(slot, _)| slot.is_free());
        let Some((slot, shared)) = free else {
            return Err(ExecError::Full);
        };
        *last = last.wrapping_add(1).max(1);
        *slot = Slot {
            number: *last,
            attended: true,
            detached: program.detached,
            ..Slot::default()
        };
        shared.rings.iter().for_each(abi::window::RingHeader::reset);
        for (to, from) in shared.request.iter().zip(program.request) {
            to.store(*from, Ordering::Relaxed);
        }
        shared
            .request_len
            .store(program.request.len() as u32, Ordering::Relaxed);
        shared.user.store(program.user, Ordering::Relaxed);
        shared.group.store(program.group, Ordering::Relaxed);
        shared.winsize.store(program.winsize, Ordering::Relaxed);
        shared
            .detached
            .store(program.detached.into(), Ordering::Relaxed);
        shared.asked.store(*last, Ordering::Release);
        partition.ring();
        Ok(*last)
    }

    /// State of a program, as programs read it; `None` if the instance has not answered yet.
    pub(crate) fn exec_state(&self, number: u32) -> Option<ExecState> {
        let ended = |value| ExecState {
            state: dev::EXEC_ENDED,
            value,
        };
        let found = self.program(number).ok();
        let verdict = found.and_then(|mut found| {
            let verdict = found.with(|slot, _, _| slot.verdict);
            // Of one that has ended with its instance nothing more is to be heard.
            let last = found.slot().verdict.filter(|verdict| verdict.is_final());
            verdict.unwrap_or(Some(last.unwrap_or(Verdict::Ended(KILLED))))
        })?;
        Some(match verdict {
            Verdict::Started => ExecState {
                state: dev::EXEC_STARTED,
                value: 0,
            },
            Verdict::Refused(error) => ExecState {
                state: dev::EXEC_REFUSED,
                value: error.into(),
            },
            Verdict::Ended(status) => ended(status.into()),
        })
    }

    /// Delivers a signal to a program, or with signal 0 tells its terminal its size.
    pub(crate) fn exec_signal(&self, number: u32, signal: u32, winsize: u32) -> Result<()> {
        drop(self.program(number)?);
        let arguments = [number, signal, winsize].map(u64::from);
        self.send(Message::new(msg::EXEC_SIGNAL, &arguments))
    }

    /// Nobody has the descriptor of a program any more.
    pub(crate) fn exec_left(&self, number: u32) {
        let Ok(mut found) = self.program(number) else {
            return;
        };
        found.slot().attended = false;
        found.with(|slot, shared, partition| {
            if !slot.detached && !slot.is_over() {
                shared.hung_up.store(slot.number, Ordering::Release);
                partition.ring();
            }
        });
    }

    /// Reads from a stream of a program. `None`: nothing yet.
    pub(crate) fn exec_read(&self, number: u32, stream: usize, buf: &mut [u8]) -> Option<usize> {
        let Ok(mut found) = self.program(number) else {
            return Some(0);
        };
        let read = found.with(|slot, shared, partition| {
            let position = slot.positions[stream];
            let mut ring = Consumer::resume(&shared.rings[stream], &shared.areas[stream], position);
            let mut count = ring.pop(buf);
            if count == 0 {
                // Asked for before the last look.
                ring.want_doorbell();
                count = ring.pop(buf);
            }
            slot.positions[stream] = ring.position();
            if ring.made_room(count) {
                partition.ring();
            }
            slot.follow(shared);
            let over = ring.is_at_end() || slot.is_over();
            (count > 0 || over && ring.is_empty()).then_some(count)
        });
        read.unwrap_or(Some(0))
    }

    /// Whether [`Self::exec_read`] would give something, and whether the stream is at its end.
    pub(crate) fn exec_readable(&self, number: u32, stream: usize) -> (bool, bool) {
        let Ok(mut found) = self.program(number) else {
            return (true, true);
        };
        let look = found.with(|slot, shared, _| {
            let position = slot.positions[stream];
            let ring = Consumer::resume(&shared.rings[stream], &shared.areas[stream], position);
            ring.want_doorbell();
            let over = ring.is_at_end() || slot.is_over();
            let is_empty = ring.is_empty();
            (!is_empty || over, over && is_empty)
        });
        look.unwrap_or((true, true))
    }

    /// Writes to the standard input of a program what fits; `EPIPE` when it has ended.
    pub(crate) fn exec_write(&self, number: u32, bytes: &[u8]) -> Result<usize> {
        let mut found = self.program(number).map_err(|_| Errno::EPIPE)?;
        let written = found.with(|slot, shared, partition| {
            if slot.is_over() {
                return Err(Errno::EPIPE);
            }
            let mut ring = Producer::resume(&shared.rings[0], &shared.areas[0], slot.positions[0]);
            let count = ring.push(bytes);
            slot.positions[0] = ring.position();
            if count > 0 && ring.take_wanted() {
                partition.ring();
            }
            Ok(count)
        });
        written.unwrap_or(Err(Errno::EPIPE))
    }

    /// Whether [`Self::exec_write`] would take a byte, or fail.
    pub(crate) fn exec_writable(&self, number: u32) -> bool {
        let Ok(mut found) = self.program(number) else {
            return true;
        };
        let look = found.with(|slot, shared, _| {
            let ring = Producer::resume(&shared.rings[0], &shared.areas[0], slot.positions[0]);
            ring.free() > 0 || slot.is_over()
        });
        look.unwrap_or(true)
    }

    /// No more standard input will come for a program.
    pub(crate) fn exec_close_input(&self, number: u32) {
        if let Ok(mut found) = self.program(number) {
            found.with(|slot, shared, partition| {
                Producer::resume(&shared.rings[0], &shared.areas[0], slot.positions[0]).close();
                partition.ring();
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::boxed::Box;

    use abi::exec::Answer;

    use super::*;

    /// A slot in use by program 7, after an instance has said these words one after the other.
    fn after(words: &[u64], detached: bool) -> Slot {
        let shared = Box::new(ExecSlot::new());
        let mut slot = Slot {
            number: 7,
            attended: true,
            detached,
            ..Slot::default()
        };
        for word in words {
            shared.answer.store(*word, Ordering::Relaxed);
            slot.follow(&shared);
        }
        slot
    }

    fn say(number: u32, verdict: Verdict) -> u64 {
        Answer { number, verdict }.to_word()
    }

    #[test]
    fn nonsense_is_no_answer_and_the_first_last_word_counts() {
        let (started, ended) = (say(7, Verdict::Started), say(7, Verdict::Ended(3)));
        let others = [
            0,
            u64::MAX,
            say(6, Verdict::Ended(1)),
            say(8, Verdict::Started),
        ];
        assert_eq!(after(&others, false).verdict, None);
        let again = [
            started,
            0,
            ended,
            started,
            say(7, Verdict::Ended(4)),
            say(7, Verdict::Refused(2)),
        ];
        assert_eq!(after(&again, false).verdict, Some(Verdict::Ended(3)));
    }

    #[test]
    fn a_place_is_free_when_both_sides_have_left_it() {
        let (started, ended) = (say(7, Verdict::Started), say(7, Verdict::Ended(3)));
        let free = |words: &[u64], detached, attended| {
            let slot = after(words, detached);
            Slot { attended, ..slot }.is_free()
        };
        assert!(Slot::default().is_free());
        for detached in [false, true] {
            assert!(!free(&[], detached, false), "it has not answered");
            assert!(free(&[ended], detached, false) && !free(&[ended], detached, true));
            assert!(free(&[say(7, Verdict::Refused(2))], detached, false));
        }
        assert!(!free(&[started], false, false), "it may write to the rings");
        assert!(free(&[started], true, false) && !free(&[started], true, true));
    }
}
