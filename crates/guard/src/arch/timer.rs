//! Time: the TSC as the clock, the local APIC's one-shot timer as the alarm. There is no tick.

use core::arch::asm;
use core::sync::atomic::{AtomicU64, Ordering};

use abi::Descriptor;
use abi::descriptor::FLAG_TSC_DEADLINE;
use x86_spec::rate;

use super::features::{self, Features};
use super::{apic, cpu, msr};
use crate::irq::Hook;
use crate::role;

/// Value of `CpuArea::deadline` while the timer is not armed.
const NOT_ARMED: u64 = u64::MAX;

static TSC_HZ: AtomicU64 = AtomicU64::new(0);
static TSC_BASE: AtomicU64 = AtomicU64::new(0);
static WALL_BASE: AtomicU64 = AtomicU64::new(0);
/// Nanoseconds per TSC tick, times 2^32.
static NS_PER_TICK: AtomicU64 = AtomicU64::new(0);
/// Divided timer ticks per nanosecond, times 2^32, rounded up by [`rate::OFF_BY`].
static TIMER_PER_NS: AtomicU64 = AtomicU64::new(0);

/// Takes over the rates of the descriptor; nothing is calibrated here.
pub(super) fn init(descriptor: &Descriptor) {
    TSC_HZ.store(descriptor.tsc_hz, Ordering::Relaxed);
    TSC_BASE.store(descriptor.tsc_base, Ordering::Relaxed);
    WALL_BASE.store(descriptor.wall_base_ns, Ordering::Relaxed);
    TIMER_PER_NS.store(
        rate::timer_per_ns(descriptor.lapic_hz, apic::TIMER_DIVIDER),
        Ordering::Relaxed,
    );
    NS_PER_TICK.store(rate::ns_per_tick(descriptor.tsc_hz), Ordering::Relaxed);
}

fn has_deadline_mode() -> bool {
    features::has(Features::TSC_DEADLINE) && role::descriptor().has(FLAG_TSC_DEADLINE)
}

pub(super) fn init_cpu() {
    if has_deadline_mode() {
        apic::use_deadline_mode();
    }
    disarm();
}

/// The time-stamp counter.
#[inline]
#[must_use]
pub fn tsc() -> u64 {
    if cfg!(miri) {
        // Miri knows no assembly.
        return 0;
    }
    let (low, high): (u32, u32);
    // SAFETY: reading the counter has no effect. The fence keeps it from being read before earlier
    // loads are done.
    unsafe {
        asm!("lfence", "rdtsc", out("eax") low, out("edx") high, options(nostack, preserves_flags));
    };
    u64::from(high) << 32 | u64::from(low)
}

/// The same for accounts, where an instruction sooner or later makes no difference.
#[inline(always)]
#[must_use]
pub fn tsc_unordered() -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: reading the counter has no effect.
    unsafe {
        asm!("rdtsc", out("eax") low, out("edx") high, options(nomem, nostack, preserves_flags));
    };
    u64::from(high) << 32 | u64::from(low)
}

/// Ticks of the TSC per second; 0 before the first CPU is set up.
#[must_use]
pub fn tsc_hz() -> u64 {
    TSC_HZ.load(Ordering::Relaxed)
}

/// Nanoseconds since the instance's time base (its boot). Never goes back on one CPU; 0 before the
/// first CPU is set up.
#[inline]
#[must_use]
pub fn now_ns() -> u64 {
    ticks_to_ns(tsc().saturating_sub(TSC_BASE.load(Ordering::Relaxed)))
}

/// Unix time in nanoseconds.
#[must_use]
pub fn wall_ns() -> u64 {
    wall_base_ns().saturating_add(now_ns())
}

/// Unix time when [`now_ns`] was 0.
#[must_use]
pub fn wall_base_ns() -> u64 {
    WALL_BASE.load(Ordering::SeqCst)
}

/// Sets this instance's wall clock, by what [`wall_base_ns`] tells.
pub fn set_wall_base(ns: u64) {
    WALL_BASE.store(ns, Ordering::SeqCst);
}

/// Has a CPU give its number to programs that ask for it with RDTSCP or RDPID.
pub(super) fn number_cpu(cpu: cpu::CpuId) {
    if features::get().intersects(Features::RDPID | Features::RDTSCP) {
        // SAFETY: the register exists with either feature, and the kernel does not read it.
        unsafe { msr::write(msr::TSC_AUX, u64::from(cpu.0)) };
    }
}

/// Data of the vDSO: rates and offsets for [`now_ns`] and [`wall_ns`], and the way to ask for the
/// CPU's number.
#[must_use]
pub fn vdso_data() -> vdso::Data {
    let processor = if features::has(Features::RDPID) {
        vdso::RDPID
    } else if features::has(Features::RDTSCP) {
        vdso::RDTSCP
    } else {
        vdso::LSL
    };
    vdso::Data {
        processor,
        ..clock()
    }
}

/// Rates and offsets by which the monotonic clock is made of the TSC.
fn clock() -> vdso::Data {
    let [base, factor, wall] =
        [&TSC_BASE, &NS_PER_TICK, &WALL_BASE].map(|value| value.load(Ordering::Relaxed));
    vdso::Data {
        sequence: 0,
        processor: vdso::ASK,
        base,
        factor,
        wall,
        tai: 0,
        generation: 1,
    }
}

/// The duration of so many TSC ticks.
#[inline]
#[must_use]
pub fn ticks_to_ns(ticks: u64) -> u64 {
    rate::scale(ticks, NS_PER_TICK.load(Ordering::Relaxed))
}

/// Makes the timer handler run on this CPU at `deadline_ns` or as soon after as may be; an earlier
/// setting is replaced.
pub fn arm(deadline_ns: u64) {
    cpu::without_irqs(|| {
        cpu::area().deadline.store(deadline_ns, Ordering::Relaxed);
        program(deadline_ns);
    });
}

/// Takes the setting back. An interrupt already under way is ignored.
pub fn disarm() {
    cpu::without_irqs(|| {
        cpu::area().deadline.store(NOT_ARMED, Ordering::Relaxed);
        if has_deadline_mode() {
            // SAFETY: the register exists with the feature; 0 disarms.
            unsafe { msr::write(msr::TSC_DEADLINE, 0) };
        } else {
            apic::start_timer(0);
        }
    });
}

/// Programs the hardware, not to fire before the clock shows the deadline. It does where the
/// counter's 32 bits are too few, and if a rate was measured worse than [`rate::OFF_BY`]:
/// `on_interrupt` looks at the clock.
fn program(deadline_ns: u64) {
    if deadline_ns == NOT_ARMED {
        return disarm();
    }
    if has_deadline_mode() {
        let value = clock().counter_at(deadline_ns).max(1);
        // SAFETY: the register exists with the feature; any value but 0 arms.
        unsafe { msr::write(msr::TSC_DEADLINE, value) };
    } else {
        let delta = deadline_ns.saturating_sub(now_ns());
        apic::start_timer(rate::countdown(delta, TIMER_PER_NS.load(Ordering::Relaxed)));
    }
}

static HANDLER: Hook<fn()> = Hook::new();

/// See `irq::set_timer_handler`.
pub(crate) fn set_handler(handler: fn()) {
    HANDLER.set(handler);
}

/// The timer interrupt: the handler runs if the deadline passed, or the timer is set again if it
/// fired early.
pub(crate) fn on_interrupt() {
    let deadline = cpu::area().deadline.load(Ordering::Relaxed);
    if deadline == NOT_ARMED {
        return;
    }
    if now_ns() < deadline {
        return program(deadline);
    }
    cpu::area().deadline.store(NOT_ARMED, Ordering::Relaxed);
    if let Some(handler) = HANDLER.get() {
        handler();
    }
}

/// Waits for hardware: asks `done` until it says so, for at most so many TSC ticks. Returns whether
/// it did. For bits that change within microseconds, where there is no interrupt to sleep for.
pub(crate) fn poll_ticks(limit: u64, mut done: impl FnMut() -> bool) -> bool {
    let start = tsc();
    loop {
        if done() {
            return true;
        }
        if tsc().wrapping_sub(start) > limit {
            return false;
        }
        // SAFETY: `pause` has no architectural effect.
        unsafe { asm!("pause", options(nostack, nomem, preserves_flags)) };
    }
}

/// Polls like `poll_ticks`, for `limit` microseconds; the TSC's rate must be known.
pub(crate) fn poll_us(limit: u64, done: impl FnMut() -> bool) -> bool {
    poll_ticks(limit.saturating_mul(tsc_hz()) / 1_000_000, done)
}
