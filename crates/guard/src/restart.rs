//! The supervisor's end, and its start in place (`docs/supervisor-restart.md`).
//!
//! Whoever panics stops the supervisor's other CPUs by NMI; the first CPU, which doorbells ring on,
//! starts the kernel again. Before it touches anything it has the others come into the park page
//! through a reset, which is the proof that no kernel of before runs any more. Then the data is
//! what it was when the boot loader left, all other variables are zero, and the boot code begins.

use core::sync::atomic::{AtomicBool, Ordering};

use abi::park::STATE_PARKED;
use ring::mailbox::Publisher;

use crate::arch::{apic, msr};
use crate::log::early;
use crate::{cpu, cpu_table, keep, park, role, smp, timer};

/// Flag: the first CPU is to start the kernel again.
static WANTED: AtomicBool = AtomicBool::new(false);

/// Interval between start-up messages to a CPU that was reset, in microseconds.
const START_UP_US: u64 = 10_000;

unsafe extern "C" {
    /// The start in place (`boot::entry`): does not return, and needs nothing of the state that it
    /// finds but that the image is mapped where it is linked, and interrupts are off.
    fn restart_entry() -> !;
}

fn is_first() -> bool {
    cpu::current() == cpu::CpuId(0)
}

/// After a panic, with interrupts off: starts the supervisor again. Returns if it cannot be
/// started.
pub(crate) fn begin() {
    if !role::is_supervisor() || keep::notes().is_none() || !keep::begin_attempt() {
        return;
    }
    early!("the supervisor starts again in place; its instances go on");
    WANTED.store(true, Ordering::SeqCst);
    if cpu::is_online(cpu::CpuId(0)) && !is_first() {
        msr::halt_forever()
    }
    start()
}

/// A CPU of the supervisor that another one has stopped: the first waits whether it is to start the
/// kernel again.
pub(crate) fn stand_by() -> ! {
    if is_first() && keep::notes().is_some() {
        timer::poll_ticks(u64::MAX, || WANTED.load(Ordering::SeqCst));
        if WANTED.load(Ordering::SeqCst) {
            start()
        }
    }
    msr::halt_forever()
}

fn start() -> ! {
    if apic::is_ready() {
        collect_own();
    }
    // SAFETY: interrupts are off, all other CPUs of the supervisor are in the park page, and this
    // one comes back to nothing of what is gone.
    #[cfg(target_os = "none")]
    unsafe {
        restart_entry()
    }
    #[cfg(not(target_os = "none"))]
    unreachable!("there is no supervisor on a host")
}

/// Has the supervisor's other CPUs come into the park page. However late one is, it is waited for:
/// a kernel that is started beside one that runs is worse than none.
fn collect_own() {
    for (number, apic_id) in cpu_table::apic_ids().enumerate().skip(1) {
        let slot = park::slot(number);
        let never_left = slot.epoch.load(Ordering::Relaxed) == 0
            || Publisher::new(slot).revoke()
            || slot.state.load(Ordering::Acquire) == STATE_PARKED;
        if never_left {
            continue;
        }
        let before = slot.resets.load(Ordering::Acquire);
        apic::send_init(apic_id);
        let has_come = || slot.resets.load(Ordering::Acquire) != before;
        while !timer::poll_us(START_UP_US, has_come) {
            smp::start_up(apic_id);
        }
    }
}
