//! A perturbed scheduler, for tests: `sched=perturb,seed=N` on the command line.
//!
//! What is rare otherwise happens often. A thread loses its CPU, or is held up for a moment, where
//! it waits for a lock, wakes another or is about to sleep; it loses its CPU anywhere after a
//! random time if others wait for that; and who is woken begins on any CPU. Real-time threads keep
//! what they are promised. All is decided by pseudo-random numbers, a sequence of its own for each
//! CPU, so that a machine of one CPU that counts instructions does the same each time.

use core::sync::atomic::{AtomicBool, Ordering};

use guard::cpu::{self, CpuId};
use guard::timer::now_ns;

use super::cpu::{CPUS, current_slot, is_started};
use super::slot::Slot;
use super::switch;

static ON: AtomicBool = AtomicBool::new(false);

/// Most that a thread is held up at one point.
const LONGEST_DELAY_NS: u64 = 20_000;
/// Most that a thread runs while others wait.
const LONGEST_RUN_NS: u64 = 300_000;

/// Begins if the command line says so, before there is a thread.
pub(super) fn init() {
    if option() == Some("perturb") {
        ON.store(true, Ordering::Relaxed);
        log::info!("the scheduler is perturbed, from seed {}", seed());
    }
}

fn option() -> Option<&'static str> {
    guard::role::cmdline_value("sched")?.split(',').next()
}

fn seed() -> u64 {
    let words = guard::role::cmdline_value("sched")
        .unwrap_or_default()
        .split(',');
    words
        .filter_map(|word| word.strip_prefix("seed=")?.parse().ok())
        .next_back()
        .unwrap_or(1)
}

/// First state of a CPU's generator of pseudo-random numbers.
pub(super) fn initial_state(cpu: CpuId) -> u64 {
    mix(seed() ^ u64::from(cpu.0) << 32)
}

/// The finalizer of SplitMix64 (Steele, Lea and Flood, 2014): neighbours become far apart.
fn mix(number: u64) -> u64 {
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}

/// The next number of this CPU's sequence.
fn random() -> u64 {
    CPUS.with(|c| {
        let next = c.random.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        c.random.set(next);
        mix(next)
    })
}

/// A place where it may matter who goes first. Nothing happens unless the scheduler is perturbed
/// and the thread may lose its CPU here.
#[inline(always)]
pub(crate) fn preemption_point() {
    if ON.load(Ordering::Relaxed) {
        disturb();
    }
}

#[cold]
#[inline(never)]
fn disturb() {
    if !cpu::irqs_enabled()
        || !switch::is_preemptible()
        || current_slot().policy().realtime().is_some()
    {
        return;
    }
    let number = random();
    match number % 8 {
        0 => {
            let until = now_ns() + (number >> 8) % LONGEST_DELAY_NS;
            while now_ns() < until {
                core::hint::black_box(());
            }
        }
        1 | 2 => switch::yield_now(),
        _ => {}
    }
}

/// Whether the current thread, which could go on, is to let others go first.
#[inline]
pub(super) fn should_yield() -> bool {
    ON.load(Ordering::Relaxed) && current_slot().policy().realtime().is_none() && random() & 1 == 0
}

/// Time to look for another thread, if it would be enough to look at `deadline_ns`.
#[inline]
pub(super) fn shorten_deadline(deadline_ns: u64) -> u64 {
    if !ON.load(Ordering::Relaxed) {
        return deadline_ns;
    }
    deadline_ns.min(now_ns() + random() % LONGEST_RUN_NS)
}

/// A random CPU for a woken thread; `None`: the one where it would be best.
#[inline]
pub(super) fn random_cpu(slot: &Slot) -> Option<CpuId> {
    if !ON.load(Ordering::Relaxed) {
        return None;
    }
    let number = random();
    let target = CpuId((number >> 8) as u32 % super::cpu_count() as u32);
    (number.is_multiple_of(2) && is_started(target) && slot.may_run_on(target)).then_some(target)
}
