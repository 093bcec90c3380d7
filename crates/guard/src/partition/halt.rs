//! Getting CPUs back, and then memory.
//!
//! The message is the caller's business. Force is the halt word in the instance's window and an NMI to each CPU: the guard's
//! NMI handler in the instance parks. A CPU that does not come is reset by INIT and comes in through the trampoline. One
//! that still does not come is lost. In every case the proof is an order to stay, claimed in the park page.

use core::sync::atomic::Ordering;

use super::{Member, Partition, smp};
use crate::arch::apic;
use crate::mem::Scrubbing;
use crate::timer;

/// How long a CPU has to follow an NMI before it is reset, and the reset before it is given up.
const NMI_NS: u64 = 100_000_000;
const RESET_NS: u64 = 1_000_000_000;

/// Where an attempt stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// NMIs are sent.
    Forced,
    /// Those that did not come were reset.
    Reset,
}

pub(super) struct Halting {
    phase: Phase,
    deadline: u64,
    resets: u32,
}

/// What became of the CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HaltReport {
    /// CPUs back in the park page.
    pub parked: u32,
    /// Of these, how many had to be reset.
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

impl Member {
    /// Asks for the proof, once the CPU says that it is parked; true when it has given it.
    fn confirm(&mut self) -> bool {
        if !self.confirmed && smp::is_parked(self.slot) {
            if self.mailbox.is_claimed() {
                // The last order, which sent it away, is claimed: this is the first one after its return.
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
}

impl Partition {
    /// Orders all CPUs of the instance into the park page. Harmless when they are there already.
    pub fn begin_halt(&mut self) {
        if self.halting.is_some() {
            return;
        }
        self.window().orders.force_halt.store(1, Ordering::SeqCst);
        for cpu in &mut self.cpus {
            cpu.asked = false;
            // An instance that has ended is in the park page or on its way: it needs no NMI, and one must not meet it at the
            // door.
            if !cpu.confirmed && !smp::is_parked(cpu.slot) {
                apic::send_nmi(cpu.apic_id);
            }
        }
        self.halting = Some(Halting { phase: Phase::Forced, deadline: timer::now_ns() + NMI_NS, resets: 0 });
    }

    /// Looks who has come, and goes on to stronger means when it is time.
    pub fn halt_step(&mut self) -> HaltProgress {
        let Some(halting) = &mut self.halting else {
            self.begin_halt();
            return HaltProgress::Pending;
        };
        let mut missing = 0;
        for cpu in &mut self.cpus {
            missing += u32::from(!cpu.confirm());
        }
        let late = timer::now_ns() >= halting.deadline;
        if missing > 0 && !late {
            return HaltProgress::Pending;
        }
        if missing > 0 && halting.phase == Phase::Forced {
            halting.phase = Phase::Reset;
            halting.deadline = timer::now_ns() + RESET_NS;
            for cpu in self.cpus.iter_mut().filter(|cpu| !cpu.confirmed) {
                halting.resets += 1;
                smp::reset(cpu.apic_id);
            }
            return HaltProgress::Pending;
        }
        HaltProgress::Done(HaltReport {
            parked: self.cpus.len() as u32 - missing,
            reset: halting.resets.saturating_sub(missing),
            lost: missing,
        })
    }

    /// Takes the memory of a halted instance back, for the caller to scrub; frees the CPUs that came back. `None` if a CPU is
    /// lost: then the memory is too.
    pub fn reclaim(&mut self) -> Option<Scrubbing> {
        if self.cpus.iter().any(|cpu| !cpu.confirmed) {
            return None;
        }
        let mut memory = self.memory.take()?;
        // SAFETY: every CPU of the instance has proved that it is in the park page, on the park tables; an instance has no
        // devices yet.
        unsafe { memory.take_back() };
        Some(memory.into_scrubbing())
    }
}
