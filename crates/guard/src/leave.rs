//! A CPU that leaves its instance while that goes on (`docs/descriptor.md`).
//!
//! The thread that adopts the epoch and the leaving CPU take turns; each step is announced by a
//! word, which only its owner of the moment changes:
//!
//! 1. `ASKED`, by the thread. The layer above takes all threads off the CPU, and has its idle
//!    thread call [`leave`].
//! 2. `READY`, by the CPU. It runs on the kernel's own tables, runs no thread any more, and sleeps.
//!    Of interrupts it serves shootdowns, because one that is under way may have asked it.
//! 3. `RELEASED`, by the thread: shootdowns ask it no more.
//! 4. The CPU says that it is offline, so that no grace period waits for it; wakes whoever waits
//!    for that one; and enters the park page (`OVER`). Nothing of the instance hears of it again.
//! 5. The thread waits for a grace period, which is not over before the CPU is offline; takes it
//!    out of the table; and waits for another one, after which no interrupt is on its way to it.
//!
//! Nothing here is decided by a clock: a CPU that its host lets stand still leaves when it can.

use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use lfmutex::{Token, scheduler};

use crate::arch::{apic, cpu, msr, timer};
use crate::cpu::{CpuId, MAX_CPUS};
use crate::{cpu_table, heartbeat, ipi, irq, mem, paging, rcu};

/// Nobody wants the CPU to leave.
const STAYS: u32 = 0;
const ASKED: u32 = 1;
const READY: u32 = 2;
const RELEASED: u32 = 3;
/// On its way into the park page, with the next NMI.
const OVER: u32 = 4;

static STATES: [AtomicU32; MAX_CPUS] = [const { AtomicU32::new(STAYS) }; MAX_CPUS];

/// The thread that waits for a CPU to be ready; there is one at a time.
static WAITER: AtomicUsize = AtomicUsize::new(0);

/// A CPU is about to come: forgets that its number has left, if it has.
pub(crate) fn expect(cpu: CpuId) {
    STATES[cpu.0 as usize].store(STAYS, Ordering::Release);
}

/// Whether the CPU this runs on has nothing to do but to enter the park page.
pub(crate) fn is_over() -> bool {
    STATES[cpu::current().0 as usize].load(Ordering::Relaxed) == OVER
}

/// Sends the CPU with the highest number out of this instance, and returns when it is gone. `drain`
/// takes all threads off it. Sleeps; one caller at a time.
pub(crate) fn send_away(cpu: CpuId, drain: fn(CpuId)) {
    let state = &STATES[cpu.0 as usize];
    let scheduler = scheduler();
    WAITER.store(scheduler.current().into_raw(), Ordering::Relaxed);
    state.store(ASKED, Ordering::SeqCst);
    drain(cpu);
    while state.load(Ordering::Acquire) != READY {
        scheduler.park();
    }
    paging::tlb::retire(cpu);
    state.store(RELEASED, Ordering::Release);
    // Ends its sleep.
    ipi::reschedule(cpu);
    // It passes no quiescent state until it is offline.
    while cpu::is_online(cpu) {
        rcu::drain();
    }
    cpu_table::pop();
    rcu::drain();
    mem::empty_share(cpu);
}

/// Takes this CPU out of its instance, and into the park page. Called by the thread on the stack
/// that the CPU came up on, when there is no other thread on this CPU and none will come.
///
/// # Panics
/// If the instance does not want that, or the thread is another one.
pub fn leave() -> ! {
    cpu::irqs_off();
    let me = cpu::current();
    let state = &STATES[me.0 as usize];
    assert!(
        state.load(Ordering::Acquire) == ASKED,
        "CPU {me} was not asked to leave"
    );
    assert!(
        cpu::is_on_boot_stack(),
        "CPU {me} is to leave in the middle of something"
    );
    paging::tlb::leave_user_table();
    let waiter = Token::from_raw(WAITER.load(Ordering::Relaxed));
    state.store(READY, Ordering::Release);
    scheduler().unpark(waiter);
    irq::serve_shootdowns_only();
    while state.load(Ordering::Acquire) != RELEASED {
        cpu::wait_for_interrupt();
    }
    timer::disarm();
    heartbeat::rest();
    cpu::mark_offline(me);
    // Any interrupt wakes the thread that waits for the end of a grace period.
    ipi::reschedule(CpuId(0));
    state.store(OVER, Ordering::Release);
    apic::send_nmi(apic::id());
    msr::halt_forever()
}
