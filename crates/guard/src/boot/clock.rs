//! The machine's clocks, once: how fast TSC and local APIC timer run, and what time it is.
//!
//! Where CPUID says the TSC's rate it is believed. Otherwise both are counted against channel 0 of the interval timer (8254),
//! whose rate is the same on every PC and which even the smallest virtual machines have. An instance is told the result in
//! its descriptor and never measures.

use raw_cpuid::CpuId;

use crate::arch::{apic, port, timer};

/// The interval timer's rate, in Hz.
const PIT_HZ: u64 = 1_193_182;
/// What it counts down from: all it can, 55 ms.
const PIT_START: u16 = u16::MAX;
/// How much of that one measurement takes: 2 ms.
const PIT_COUNTS: u16 = (PIT_HZ / 500) as u16;
const PIT_CHANNEL_0: u16 = 0x40;
const PIT_COMMAND: u16 = 0x43;
/// Channel 0, both bytes, one countdown (mode 0).
const COUNT_DOWN: u8 = 0b0011_0000;
/// Read back status and count of channel 0.
const READ_BACK: u8 = 0b1100_0010;
/// In the status: the countdown is over, so the count says nothing any more.
const OVER: u8 = 1 << 7;

/// Rates, in Hz.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rates {
    pub tsc: u64,
    pub lapic: u64,
}

/// One look at the three counters.
#[derive(Clone, Copy)]
struct Look {
    pit: u16,
    tsc: u64,
    lapic: u32,
}

/// Measures. The local APIC is on.
pub(super) fn measure() -> Rates {
    // A machine that is stopped in between (by its host, or by firmware) gives measurements that differ.
    const ATTEMPTS: u32 = 5;
    apic::prepare_calibration();
    let cpuid = CpuId::new();
    let known_lapic = lapic_by_cpuid(&cpuid);
    let mut rates = Rates { tsc: 0, lapic: 0 };
    for _ in 0..ATTEMPTS {
        let Some((first, second)) = two_measurements(known_lapic.is_none()) else { continue };
        rates = second;
        if first.tsc.abs_diff(second.tsc) <= second.tsc / 256 && first.lapic.abs_diff(second.lapic) <= second.lapic / 256 {
            break;
        }
    }
    apic::start_timer(0);
    let known_tsc = cpuid.get_tsc_info().and_then(|info| info.tsc_frequency());
    // Nothing but a broken timer gives 0; the kernel must not divide by it.
    Rates { tsc: known_tsc.unwrap_or(rates.tsc).max(1_000_000), lapic: known_lapic.unwrap_or(rates.lapic).max(1_000_000) }
}

/// The local APIC timer's rate, where it need not be measured: it runs on the crystal clock where CPUID names that (SDM
/// vol. 3A, 11.5.4), and counts nanoseconds under QEMU's emulation, where with `-icount` its count cannot even be read.
fn lapic_by_cpuid(cpuid: &CpuId<raw_cpuid::CpuIdReaderNative>) -> Option<u64> {
    let crystal = cpuid.get_tsc_info().map(|info| u64::from(info.nominal_frequency())).filter(|hz| *hz != 0);
    let emulated = cpuid.get_hypervisor_info().is_some_and(|h| h.identify() == raw_cpuid::Hypervisor::QEMU);
    crystal.or_else(|| emulated.then_some(1_000_000_000))
}

/// Two measurements in a row; the second one spans both. `None` if the countdown ended meanwhile, or never moved.
fn two_measurements(with_lapic: bool) -> Option<(Rates, Rates)> {
    // SAFETY: the supervisor owns the interval timer; nobody else uses it, and its interrupt is never let through.
    unsafe {
        port::outb(PIT_COMMAND, COUNT_DOWN);
        port::outb(PIT_CHANNEL_0, PIT_START as u8);
        port::outb(PIT_CHANNEL_0, (PIT_START >> 8) as u8);
    }
    apic::start_timer(u32::MAX);
    let start = look(with_lapic)?;
    let middle = look_after(start, PIT_COUNTS, with_lapic)?;
    let end = look_after(middle, PIT_COUNTS, with_lapic)?;
    Some((rates(start, middle), rates(start, end)))
}

fn rates(from: Look, to: Look) -> Rates {
    let counts = u64::from(from.pit - to.pit);
    Rates {
        tsc: (to.tsc - from.tsc) * PIT_HZ / counts,
        lapic: u64::from(from.lapic - to.lapic) * apic::TIMER_DIVIDER * PIT_HZ / counts,
    }
}

/// The first look at which the interval timer has counted so far.
fn look_after(from: Look, counts: u16, with_lapic: bool) -> Option<Look> {
    // A quarter of a second and more: a machine without an interval timer must not hang here.
    const LIMIT_TICKS: u64 = 1_000_000_000;
    let mut last = None;
    timer::poll_ticks(LIMIT_TICKS, || {
        last = look(with_lapic);
        last.is_none_or(|look| from.pit.saturating_sub(look.pit) >= counts)
    });
    last.filter(|look| from.pit.saturating_sub(look.pit) >= counts)
}

/// The counters, the TSC close to the moment the interval timer's count is latched. Of several looks, the one that took the
/// least time.
fn look(with_lapic: bool) -> Option<Look> {
    const LOOKS: u32 = 4;
    let mut best: Option<(u64, Look)> = None;
    for _ in 0..LOOKS {
        let before = timer::tsc();
        // SAFETY: as in `two_measurements`; reading has no effect but to end the latch.
        unsafe { port::outb(PIT_COMMAND, READ_BACK) };
        let after = timer::tsc();
        let lapic = if with_lapic { apic::timer_count() } else { 0 };
        // SAFETY: as above.
        let [status, low, high] = unsafe { [port::inb(PIT_CHANNEL_0), port::inb(PIT_CHANNEL_0), port::inb(PIT_CHANNEL_0)] };
        if status & OVER != 0 {
            return None;
        }
        let look = Look { pit: u16::from_le_bytes([low, high]), tsc: before + (after - before) / 2, lapic };
        if best.is_none_or(|(took, _)| after - before < took) {
            best = Some((after - before, look));
        }
    }
    best.map(|(_, look)| look)
}

const CMOS_INDEX: u16 = 0x70;
const CMOS_DATA: u16 = 0x71;
const UPDATING: u8 = 1 << 7;
const BINARY: u8 = 1 << 2;
const HOURS_24: u8 = 1 << 1;

fn cmos(index: u8) -> u8 {
    // SAFETY: the supervisor owns the clock chip. The index's top bit, which would mask NMIs, stays clear.
    unsafe {
        port::outb(CMOS_INDEX, index);
        port::inb(CMOS_DATA)
    }
}

/// Unix time in seconds by the clock chip, which runs in UTC; 0 if it says nonsense.
pub(super) fn unix_time() -> u64 {
    // The chip updates once a second, for about 2 ms: far less than this.
    const LIMIT_TICKS: u64 = 100_000_000;
    timer::poll_ticks(LIMIT_TICKS, || cmos(0x0a) & UPDATING == 0);
    let format = cmos(0x0b);
    let number = |raw: u8| if format & BINARY != 0 { raw } else { (raw >> 4) * 10 + (raw & 0xf) };
    let hour = cmos(4);
    let mut hours = u64::from(number(hour & 0x7f));
    if format & HOURS_24 == 0 {
        hours = hours % 12 + if hour & 0x80 != 0 { 12 } else { 0 };
    }
    let time = [hours, u64::from(number(cmos(2))), u64::from(number(cmos(0)))];
    let date = [2000 + u64::from(number(cmos(9))), u64::from(number(cmos(8))), u64::from(number(cmos(7)))];
    seconds(date, time).unwrap_or(0)
}

/// Days from civil date (Howard Hinnant's algorithm), then seconds.
fn seconds([year, month, day]: [u64; 3], [hour, minute, second]: [u64; 3]) -> Option<u64> {
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year / 400, year % 400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year;
    Some((days - 719_468) * 86_400 + hour * 3600 + minute * 60 + second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        assert_eq!(seconds([2000, 1, 1], [0, 0, 0]), Some(946_684_800));
        assert_eq!(seconds([2026, 11, 21], [4, 30, 1]), Some(1_795_235_401));
        assert_eq!(seconds([2024, 2, 29], [23, 59, 59]), Some(1_709_251_199));
        assert_eq!(seconds([2024, 13, 1], [0, 0, 0]), None);
    }
}
