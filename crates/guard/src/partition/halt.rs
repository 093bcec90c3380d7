//! Getting CPUs back, and then memory.
//!
//! The message is the caller's business. Force is the halt word in the instance's window, an order
//! to stay in each CPU's mailbox, and an NMI: the guard's NMI handler in the instance parks, and
//! whoever comes in, by whichever door, claims the order. That claim is the proof. A CPU that does
//! not come is reset by INIT and comes in through the trampoline, where it finds the same order.
//! One that still does not come is lost.

use core::sync::atomic::Ordering;

use super::{InstanceCpu, Partition, smp};
use crate::arch::apic;
use crate::mem::Scrubbing;
use crate::timer;

/// Time is counted in looks, of which there is at most one in so long: whoever runs the machine may
/// stop it, or this CPU, for seconds, and then it is late without anybody having had a chance to
/// come.
const TICK_NS: u64 = 10_000_000;
/// Ticks a CPU has to follow an NMI before it is reset, and then from one start-up message to the
/// next.
const RESET_TICKS: u32 = 10;
/// Ticks until it is given up.
const LOST_TICKS: u32 = 500;

/// Progress of a halt.
pub(super) struct Halting {
    ticks: u32,
    next_tick: u64,
}

/// Outcome of a halt: the CPUs that came back, and those that were lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HaltReport {
    /// CPUs back in the park page.
    pub parked: u32,
    /// Number of the parked CPUs that had to be reset.
    pub reset: u32,
    /// CPUs that did not come back.
    pub lost: u32,
}

/// Whether [`Partition::halt_step`] has to be called again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HaltProgress {
    /// Yes, in a moment.
    Pending,
    /// No.
    Done(HaltReport),
}

impl InstanceCpu {
    /// Asks for the proof, wherever the CPU is: it claims the order on its way into the park page,
    /// or when the NMI wakes it there. True when it has done so.
    fn confirm(&mut self) -> bool {
        if !self.confirmed {
            if self.mailbox.is_claimed() {
                // Of the last order, which sent it away, that says nothing: it counts for the first
                // one after its return.
                if self.asked {
                    self.confirmed = true;
                } else if self.mailbox.ask_for_proof() {
                    self.asked = true;
                    apic::send_nmi(self.apic_id);
                }
            } else if !self.asked && self.mailbox.revoke() {
                // It never left: the order that would have sent it away is taken back.
                self.confirmed = true;
            }
        }
        self.confirmed
    }

    /// Resets the CPU, once; from then on it is sent start-up messages, which are ignored if one
    /// was heard. No NMI: at the door after a reset there is nobody to take it.
    fn reset(&mut self) {
        if self.reset {
            smp::start_up(self.apic_id);
        } else {
            self.reset = true;
            smp::reset(self.apic_id);
        }
    }
}

impl Partition {
    /// Orders all CPUs of the instance into the park page. Harmless when they are there already.
    pub fn begin_halt(&mut self) {
        if self.halting.is_none() {
            self.window().orders.force_halt.store(1, Ordering::SeqCst);
            self.halting = Some(Halting {
                ticks: 0,
                next_tick: 0,
            });
        }
    }

    /// Looks who has come, and goes on to stronger means when it is time.
    pub fn halt_step(&mut self) -> HaltProgress {
        self.begin_halt();
        let missing: u32 = self
            .cpus
            .iter_mut()
            .map(|cpu| u32::from(!cpu.confirm()))
            .sum();
        let now = timer::now_ns();
        if let Some(halting) = self
            .halting
            .as_mut()
            .filter(|halting| missing > 0 && halting.ticks < LOST_TICKS)
        {
            if now >= halting.next_tick {
                halting.ticks += 1;
                halting.next_tick = now + TICK_NS;
                if halting.ticks % RESET_TICKS == 0 {
                    self.cpus
                        .iter_mut()
                        .filter(|cpu| cpu.asked && !cpu.confirmed)
                        .for_each(InstanceCpu::reset);
                }
            }
            return HaltProgress::Pending;
        }
        HaltProgress::Done(HaltReport {
            parked: self.cpus.len() as u32 - missing,
            reset: self
                .cpus
                .iter()
                .filter(|cpu| cpu.reset && cpu.confirmed)
                .count() as u32,
            lost: missing,
        })
    }

    /// Takes the memory of a halted instance back, for the caller to scrub; frees the CPUs that
    /// came back. `None` if a CPU is lost: then the memory is too.
    pub fn reclaim(&mut self) -> Option<Scrubbing> {
        if self.cpus.iter().any(|cpu| !cpu.confirmed) {
            return None;
        }
        let mut memory = self.memory.take()?;
        // SAFETY: every CPU of the instance has proved that it is in the park page, on the park
        // tables; an instance has no devices yet.
        unsafe { memory.take_back() };
        Some(memory.into_scrubbing())
    }
}
