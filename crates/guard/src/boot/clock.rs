//! The machine's clocks, once: how fast TSC and local APIC timer run, and what time it is.
//!
//! Where CPUID says the TSC's rate it is believed. Otherwise it is counted against channel 0 of the
//! interval timer (8254), whose rate is the same on every PC and which even the smallest virtual
//! machines have. The countdown is started first thing and looked at when the rate is needed: what
//! the boot does in between is the measurement's time and not lost. An instance is told the result
//! in its descriptor and never measures.

use raw_cpuid::CpuId;
use x86_spec::{pit, rtc};

use crate::arch::{apic, port, timer};

/// Least part of the interval timer's countdown that a measurement takes: 4 ms, for which one count
/// of error is 0.02%.
const PIT_COUNTS: u16 = (pit::HZ / 250) as u16;

/// Rates, in Hz.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rates {
    pub tsc: u64,
    pub lapic: u64,
}

/// Readings of two counters at one time.
#[derive(Clone, Copy)]
struct ClockReading {
    pit: u16,
    tsc: u64,
}

/// A measurement under way.
pub(super) struct Calibration {
    start: Option<ClockReading>,
}

impl Calibration {
    /// Starts the countdown.
    pub(super) fn start() -> Self {
        Self {
            start: start_countdown(),
        }
    }

    /// The rates. The local APIC is reachable.
    pub(super) fn finish(self) -> Rates {
        // A machine that is stopped in between (by its host, or by firmware) gives measurements
        // that differ, and one that took longer to come here than the countdown lasts has none.
        const ATTEMPTS: u32 = 5;
        let cpuid = CpuId::new();
        let known = cpuid.get_tsc_info().and_then(|info| info.tsc_frequency());
        let tsc = known.or_else(|| {
            let mut last = None;
            let mut start = self.start;
            for _ in 0..ATTEMPTS {
                if let Some((half, whole)) = start.and_then(measure_since) {
                    last = Some(whole);
                    if half.abs_diff(whole) <= whole / 256 {
                        break;
                    }
                }
                start = start_countdown();
            }
            last
        });
        // Nothing but a broken timer gives 0; the kernel must not divide by it.
        let tsc = tsc.unwrap_or(0).max(1_000_000);
        Rates {
            tsc,
            lapic: lapic_by_cpuid(&cpuid)
                .unwrap_or_else(|| measure_lapic(tsc))
                .max(1_000_000),
        }
    }
}

/// The local APIC timer's rate, where it need not be measured: it runs on the crystal clock where
/// CPUID names that (SDM vol. 3A, 11.5.4), and counts nanoseconds under QEMU's emulation, where
/// with `-icount` its count cannot even be read.
fn lapic_by_cpuid(cpuid: &CpuId<raw_cpuid::CpuIdReaderNative>) -> Option<u64> {
    let crystal = cpuid
        .get_tsc_info()
        .map(|info| u64::from(info.nominal_frequency()))
        .filter(|hz| *hz != 0);
    let emulated = cpuid
        .get_hypervisor_info()
        .is_some_and(|h| h.identify() == raw_cpuid::Hypervisor::QEMU);
    crystal.or_else(|| emulated.then_some(1_000_000_000))
}

/// The local APIC timer's rate against the TSC's, over 2 ms.
fn measure_lapic(tsc_hz: u64) -> u64 {
    let read_clocks = || {
        let before = timer::tsc();
        let count = apic::timer_count();
        (before + (timer::tsc() - before) / 2, count)
    };
    apic::prepare_calibration();
    apic::start_timer(u32::MAX);
    let from = read_clocks();
    timer::poll_ticks(tsc_hz / 500, || false);
    let to = read_clocks();
    apic::start_timer(0);
    u64::from(from.1 - to.1) * apic::TIMER_DIVIDER * tsc_hz / (to.0 - from.0)
}

/// Starts the interval timer's countdown. `None` if there is no such timer.
fn start_countdown() -> Option<ClockReading> {
    // SAFETY: the supervisor owns the interval timer; nobody else uses it, and its interrupt is
    // never let through.
    unsafe {
        port::outb(pit::COMMAND, pit::COUNT_DOWN);
        port::outb(pit::CHANNEL_0, pit::MAX_COUNT as u8);
        port::outb(pit::CHANNEL_0, (pit::MAX_COUNT >> 8) as u8);
    }
    look()
}

/// The TSC's rate by two measurements that began together; the second one takes longer. `None` if
/// the countdown ended meanwhile, or never moved.
fn measure_since(start: ClockReading) -> Option<(u64, u64)> {
    let rate = |end: ClockReading| (end.tsc - start.tsc) * pit::HZ / u64::from(start.pit - end.pit);
    let middle = read_clocks_after(start, PIT_COUNTS / 2)?;
    let end = read_clocks_after(
        start,
        PIT_COUNTS.max((start.pit - middle.pit).saturating_add(PIT_COUNTS / 8)),
    )?;
    Some((rate(middle), rate(end)))
}

/// The first look at which the interval timer has counted so far.
fn read_clocks_after(from: ClockReading, counts: u16) -> Option<ClockReading> {
    // A quarter of a second and more: a machine without an interval timer must not hang here.
    const LIMIT_TICKS: u64 = 1_000_000_000;
    let mut last = None;
    timer::poll_ticks(LIMIT_TICKS, || {
        last = look();
        last.is_none_or(|look| from.pit.saturating_sub(look.pit) >= counts)
    });
    last.filter(|look| from.pit.saturating_sub(look.pit) >= counts)
}

/// The counters, the TSC close to the moment the interval timer's count is latched. Of several
/// looks, the one that took the least time.
fn look() -> Option<ClockReading> {
    const READINGS: u32 = 4;
    let mut best: Option<(u64, ClockReading)> = None;
    for _ in 0..READINGS {
        let before = timer::tsc();
        // SAFETY: as in `start_countdown`; reading has no effect but to end the latch.
        unsafe { port::outb(pit::COMMAND, pit::READ_BACK) };
        let after = timer::tsc();
        // SAFETY: as above.
        let [status, low, high] = unsafe {
            [
                port::inb(pit::CHANNEL_0),
                port::inb(pit::CHANNEL_0),
                port::inb(pit::CHANNEL_0),
            ]
        };
        if status & pit::OVER != 0 {
            return None;
        }
        let look = ClockReading {
            pit: u16::from_le_bytes([low, high]),
            tsc: before + (after - before) / 2,
        };
        if best.is_none_or(|(took, _)| after - before < took) {
            best = Some((after - before, look));
        }
    }
    best.map(|(_, look)| look)
}

fn cmos(index: u8) -> u8 {
    // SAFETY: the supervisor owns the clock chip. The index's top bit, which would mask NMIs, stays
    // clear.
    unsafe {
        port::outb(rtc::INDEX, index);
        port::inb(rtc::DATA)
    }
}

/// Unix time in seconds by the clock chip, which runs in UTC; 0 if it says nonsense.
pub(super) fn unix_time() -> u64 {
    // The chip updates once a second, for about 2 ms: far less than this.
    const LIMIT_TICKS: u64 = 100_000_000;
    timer::poll_ticks(LIMIT_TICKS, || cmos(rtc::STATUS_A) & rtc::UPDATING == 0);
    rtc::unix_time(cmos).unwrap_or(0)
}
