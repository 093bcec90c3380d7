//! Getting CPUs back, and then memory.
//!
//! The message is the caller's business. Force is the halt word in the instance's window, an order
//! to stay in each CPU's mailbox, and an NMI: the guard's NMI handler in the instance parks, and
//! whoever comes in, by whichever door, claims the order. That claim is the proof. A CPU that does
//! not come is reset by INIT and comes in through the trampoline, where it finds the same order.
//! `recovery` says when. What still does not come goes into quarantine, from where it is taken back
//! when it proves where it is.

use core::fmt;
use core::sync::atomic::Ordering;

use super::recovery::{Recovery, Seen, Step};
use super::{InstanceCpu, Partition, smp};
use crate::arch::apic;
use crate::faults::crash_point;
use crate::mem::Scrubbing;
use crate::{park, timer};

/// Outcome of a halt: the CPUs that came back, and those that did not yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HaltReport {
    /// CPUs back in the park page.
    pub parked: u32,
    /// Number of the parked CPUs that had to be reset.
    pub reset: u32,
    /// CPUs that are to go into quarantine.
    pub missing: u32,
}

/// Numbers of CPUs and functions of an instance that have not proved that they reach its memory no
/// more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unproven {
    /// CPUs that are not in the park page.
    pub cpus: usize,
    /// Functions that were not reset.
    pub functions: usize,
}

impl fmt::Display for Unproven {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cpus, functions } = self;
        match (cpus, functions) {
            (_, 0) => write!(f, "{cpus} CPUs did not come back"),
            (0, _) => write!(f, "{functions} devices do not stop"),
            _ => write!(f, "{cpus} CPUs and {functions} devices did not come back"),
        }
    }
}

impl core::error::Error for Unproven {}

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
    /// or when the NMI wakes it there.
    fn ask(&mut self, now: u64) {
        // Of the last order, which sends it away, a claim says nothing: it counts for the first one
        // after its return. If that one can be taken back, it never left.
        if self.recovery.is_none() {
            if self.mailbox.revoke() {
                self.recovery = Some(Recovery::parked());
            } else if self.mailbox.ask_for_proof() {
                self.recovery = Some(Recovery::asked(now));
                apic::send_nmi(self.apic_id);
            }
        }
    }

    /// Looks whether it has come, and does what is next if it has not. True when it has.
    pub(super) fn look(&mut self, now: u64) -> bool {
        self.ask(now);
        let Some(recovery) = &mut self.recovery else {
            return false;
        };
        let seen = Seen {
            claimed: self.mailbox.is_claimed(),
            resets: park::slot(self.slot).resets.load(Ordering::Acquire),
        };
        match recovery.look(now, seen) {
            Step::Wait => {}
            Step::Reset => apic::send_init(self.apic_id),
            // No NMI: at the door after a reset there is nobody to take it.
            Step::StartUp => smp::start_up(self.apic_id),
        }
        recovery.is_parked()
    }

    /// In the park page, by its own proof (or never sent away).
    pub(super) fn is_parked(&self) -> bool {
        self.recovery.as_ref().is_some_and(Recovery::is_parked)
    }
}

impl Partition {
    /// Orders all CPUs of the instance into the park page. Harmless when they are there already.
    pub fn begin_halt(&mut self) {
        if !self.halting {
            self.halting = true;
            crash_point("halt: begun");
            self.window().orders.force_halt.store(1, Ordering::SeqCst);
            let now = timer::now_ns();
            self.cpus.iter_mut().for_each(|cpu| cpu.ask(now));
        }
    }

    /// Looks who has come, and goes on to stronger means when it is time: at most one step for each
    /// CPU.
    pub fn halt_step(&mut self) -> HaltProgress {
        self.begin_halt();
        let now = timer::now_ns();
        let (mut missing, mut overdue) = (0, 0);
        for cpu in &mut self.cpus {
            if !cpu.look(now) {
                missing += 1;
                overdue += u32::from(cpu.recovery.as_ref().is_some_and(Recovery::is_overdue));
            }
        }
        if overdue < missing {
            return HaltProgress::Pending;
        }
        let was_reset = |cpu: &&InstanceCpu| {
            let recovery = cpu.recovery.as_ref();
            recovery.is_some_and(|recovery| recovery.is_parked() && recovery.was_reset())
        };
        HaltProgress::Done(HaltReport {
            parked: self.cpus.len() as u32 - missing,
            reset: self.cpus.iter().filter(was_reset).count() as u32,
            missing,
        })
    }

    /// Takes the memory of a halted instance back, for the caller to scrub, and frees its CPUs; its
    /// functions are stopped and reset before. Sleeps if it has some.
    ///
    /// # Errors
    /// [`Unproven`]: what has not come back, and the memory, are in quarantine
    /// ([`release`](super::quarantine::release)).
    pub fn reclaim(mut self) -> Result<Scrubbing, Unproven> {
        self.retire_noted();
        let cpus = self.cpus.iter().filter(|cpu| !cpu.is_parked()).count();
        // A CPU that runs could start a function again.
        let had_functions = !self.functions.is_empty();
        let functions = match cpus {
            0 => self.functions.stop(),
            _ => self.functions.len(),
        };
        if had_functions && functions == 0 {
            // They may be another one's from now on.
            self.keep_changing(false);
        }
        let unproven = Unproven { cpus, functions };
        if unproven != Unproven::default() {
            return Err(unproven);
        }
        crash_point("end: proved");
        let mut memory = self.memory.take().ok_or(unproven)?;
        // SAFETY: every CPU of the instance has proved that it is in the park page, on the park
        // tables; every function of it, afterwards, that it reaches no memory.
        unsafe { memory.take_back() };
        crash_point("end: taken back");
        Ok(memory.into_scrubbing())
    }
}
