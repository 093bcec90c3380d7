//! The heartbeat of an instance's CPUs, by which the supervisor tells one that hangs from one that
//! works (`docs/partitions.md`; the supervisor's part is `partition::watch`).
//!
//! A CPU's heart beats at each interrupt and whenever it has slept; while it sleeps its word says
//! so. One that computes takes no interrupts, so the supervisor asks it by NMI. If the NMI meets
//! the CPU with interrupts on, that is a beat. If they are off, the CPU says where it is and sends
//! an interrupt to itself: it will be a beat as soon as the CPU takes interrupts again.
//!
//! The supervisor has no window and no heartbeat.

use core::sync::atomic::Ordering;

use abi::window::Heartbeat;
use x86_spec::control::rflags;

use crate::arch::{apic, cpu, timer};
use crate::entry::trap::KernelFrame;
use crate::{irq, role, trace};

/// The heartbeat of the CPU this runs on. Interrupts are off.
#[inline]
fn own() -> Option<&'static Heartbeat> {
    role::window()?.heartbeats.get(cpu::current().0 as usize)
}

/// This CPU takes an interrupt.
#[inline]
pub(crate) fn beat() {
    if let Some(own) = own() {
        own.beat();
    }
}

/// This CPU goes to sleep, with interrupts off until it does.
#[inline]
pub(crate) fn rest() {
    if let Some(own) = own() {
        own.idle_since.store(timer::tsc(), Ordering::Release);
    }
}

/// This CPU has slept, or is up and begins its first program. Interrupts may be on.
#[inline]
pub(crate) fn wake() {
    if role::window().is_some() {
        cpu::without_irqs(beat);
    }
}

/// The NMI handler's part: answers the supervisor's question, if there is one.
pub(crate) fn answer(frame: &KernelFrame) {
    let Some(own) = own() else { return };
    let asked = own.asked.load(Ordering::Acquire);
    if asked == own.answered.load(Ordering::Relaxed) {
        return;
    }
    if frame.rflags & rflags::IF != 0 {
        own.beat();
    } else {
        // On its way up a CPU has no thread.
        let thread = cpu::has_context()
            .then(trace::running_thread)
            .flatten()
            .unwrap_or(Heartbeat::NO_THREAD);
        own.place.store(frame.rip, Ordering::Relaxed);
        own.thread.store(thread, Ordering::Relaxed);
        apic::send_self(irq::HEARTBEAT_VECTOR);
    }
    own.answered.store(asked, Ordering::Release);
}
