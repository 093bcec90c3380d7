//! Whether the CPUs of an instance hang, by their heartbeats; `watch` has the rules.

use core::fmt;
use core::sync::atomic::Ordering;

use abi::window::Heartbeat;

use super::watch::{Finding, Pace, Seen};
use super::{InstanceCpu, Partition};
use crate::arch::apic;
use crate::{symbols, timer};

/// State of an instance's CPUs, as far as their heartbeats tell: of the worst of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// Nothing is known against them.
    Good,
    /// A CPU does not answer. That is no proof of anything: its host may have stopped it.
    Unresponsive {
        /// Number of the CPU in its instance.
        cpu: u32,
    },
    /// A CPU answers, and takes no interrupts any more.
    Hung(Hang),
}

/// Place and thread in which a CPU hangs, by its own word. As text it is a sentence without a full
/// stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hang {
    cpu: u32,
    place: u64,
    thread: u32,
}

impl fmt::Display for Hang {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CPU {} hangs with interrupts off at ", self.cpu)?;
        // All instances run the same image.
        symbols::lookup(self.place, |name, distance| {
            write!(f, "{name}+{distance:#x}")
        })
        .unwrap_or_else(|| write!(f, "{:#x}", self.place))?;
        match self.thread {
            Heartbeat::NO_THREAD => Ok(()),
            thread => write!(f, " (thread {thread})"),
        }
    }
}

impl Partition {
    /// Looks at the heartbeats of those CPUs that have been sent to the instance, and asks who
    /// shows no life, by an NMI: more often if a hang is `urgent`. To be called now and then while
    /// it runs; returns also in how many nanoseconds.
    pub fn check_health(&mut self, urgent: bool) -> (Health, u64) {
        let pace = if urgent { Pace::STOP } else { Pace::REPORT };
        let now = timer::now_ns();
        let (mut worst, mut health, mut next) = (Finding::Good, Health::Good, u64::MAX);
        for number in 0..self.cpus.len() {
            if self.halting || self.cpus[number].recovery.is_some() {
                continue;
            }
            let heart = &self.window().heartbeats[number];
            let seen = Seen {
                beats: heart.beats.load(Ordering::Acquire),
                rests: heart.idle_since.load(Ordering::Acquire) != 0
                    || self.asks_to_pause()
                        && heart.stands_still.load(Ordering::Acquire) == self.pause,
                answered: heart.answered.load(Ordering::Acquire),
            };
            let hang = Hang {
                cpu: number as u32,
                place: heart.place.load(Ordering::Relaxed),
                thread: heart.thread.load(Ordering::Relaxed),
            };
            let InstanceCpu { watch, apic_id, .. } = &mut self.cpus[number];
            let question = watch.look(now, seen, pace);
            next = next.min(watch.next_look().saturating_sub(now));
            if watch.finding() > worst {
                worst = watch.finding();
                health = match worst {
                    Finding::Good => Health::Good,
                    Finding::Unresponsive => Health::Unresponsive { cpu: hang.cpu },
                    Finding::Hung => Health::Hung(hang),
                };
            }
            let apic_id = *apic_id;
            if let Some(question) = question {
                let heart = &self.window().heartbeats[number];
                heart.asked.store(question, Ordering::Release);
                apic::send_nmi(apic_id);
            }
        }
        (health, next)
    }
}
