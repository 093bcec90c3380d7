//! CPUs without work: they ask for some, poll for a moment if work has come often lately, and then
//! sleep until an interrupt, or until somebody writes to the line they watch (MWAIT).

use core::sync::atomic::Ordering;

use guard::cpu::{self, CpuId};

use super::cpu::{CPUS, Cpu, LOADED, Shared, init_idle, is_active, shared};
use super::switch::{SwitchReason, reschedule};
use super::{slot, wake};

/// Time that an idle CPU polls before it sleeps, in nanoseconds: about as much as it takes to send
/// an interrupt and to be woken by it. In a guest both are the hypervisor's work, and the halted
/// CPU's thread has to be scheduled (Linux' `haltpoll` takes as long).
const POLL_NS: u64 = 20_000;
const POLL_IN_GUEST_NS: u64 = 200_000;

/// Time for which an idle CPU polls, in nanoseconds ([`POLL_NS`]).
pub(super) fn poll_ns() -> u64 {
    if cpu::is_guest() {
        POLL_IN_GUEST_NS
    } else {
        POLL_NS
    }
}

/// Runs threads on this CPU from now on. The first CPU comes here when the system is set up, each
/// further one when it is started.
pub fn run_cpu() -> ! {
    let me = cpu::current();
    if me == CpuId(0) {
        // It was adopted when threads were set up. Until now there was one flow of control, with
        // interrupts off: whatever it wanted was free.
        lfmutex::set_scheduler(&super::SCHEDULER);
    } else {
        init_idle();
    }
    let shared = shared(me);
    cpu::without_irqs(|| CPUS.with(Cpu::open));
    shared.started.store(true, Ordering::Release);
    let watches = sleeps_by_mwait();
    loop {
        cpu::without_irqs(|| reschedule(SwitchReason::Preempt));
        if shared.closed.load(Ordering::SeqCst) {
            leave_if_empty();
        }
        request_work(me);
        // Pages are zeroed ahead until somebody is woken.
        while has_no_work(shared) && guard::mem::zero_page_ahead() {}
        if super::cpu_count() > 1 && CPUS.with(|c| c.polling.get().is_on()) {
            poll(shared);
        }
        shared.counters.sleeps.add(1);
        if watches {
            // A store is enough here. What was put into a queue before the wake state says so is
            // seen now.
            cpu::idle_mwait(&shared.wake_state.0, wake::POLLING, || {
                shared.wake_state.0.swap(wake::POLLING, Ordering::SeqCst);
                has_no_work(shared)
            });
        } else {
            // No wake-up is lost: whoever puts a thread into a wake queue after this look
            // interrupts, and that ends the halt.
            cpu::idle_halt(|| {
                shared.wake_state.0.swap(wake::SEND_IPI, Ordering::SeqCst);
                has_no_work(shared)
            });
        }
    }
}

/// Whether this machine's CPUs sleep by MWAIT: if they have it, but not under a hypervisor or
/// emulator, where that is an exit or nothing at all and a halt is what lets others run.
/// `idle=mwait` and `idle=halt` on the command line decide otherwise.
fn sleeps_by_mwait() -> bool {
    let option = guard::role::cmdline()
        .split_whitespace()
        .find_map(|word| word.strip_prefix("idle="));
    cpu::has_mwait()
        && match option {
            Some("mwait") => true,
            Some("halt") => false,
            _ => !cpu::is_guest(),
        }
}

/// Whether there is nothing to look at; with interrupts off.
fn has_no_work(shared: &Shared) -> bool {
    shared.wake_queues.is_empty()
        && !shared.recheck.load(Ordering::SeqCst)
        && !shared.closed.load(Ordering::SeqCst)
        && CPUS.with(|c| !c.reschedule.get())
}

/// Leaves the instance if there is no thread here any more. None will come: the CPU is closed.
fn leave_if_empty() {
    cpu::without_irqs(|| {
        if !CPUS.with(Cpu::is_empty) {
            return;
        }
        // Who sleeps with a deadline looks again, and goes on to sleep elsewhere.
        while let Some((_, number)) = CPUS.with(|c| c.sleepers.borrow_mut().pop()) {
            wake::unpark(slot::by_number(number));
        }
        CPUS.with(Cpu::close);
        cpu::leave()
    });
}

/// Asks a CPU that has threads waiting for one of them.
fn request_work(me: CpuId) {
    if !is_active(me) {
        return;
    }
    if let Some(victim) = LOADED.find(me.0 as usize + 1, |_| u64::MAX) {
        let victim = CpuId(victim as u32);
        if shared(victim)
            .work_requester
            .compare_exchange(ring::NIL, me.0, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
        {
            cpu::without_irqs(|| wake::send_reschedule(victim));
        }
    }
}

/// Watches for work. Whoever has some sees that and sends no interrupt.
fn poll(shared: &Shared) {
    shared.counters.polls.add(1);
    shared.wake_state.0.swap(wake::POLLING, Ordering::SeqCst);
    if shared.wake_queues.is_empty() && !shared.recheck.load(Ordering::SeqCst) {
        // Interrupts are on; a thread that one of them wakes is switched to at its end, and leaves
        // another wake state behind.
        cpu::idle_poll(poll_ns(), || {
            shared.wake_state.0.load(Ordering::Acquire) != wake::POLLING
        });
    }
}
