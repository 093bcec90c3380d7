//! The machine's clocks, once: how fast TSC and local APIC timer run, and what time it is.
//!
//! Where CPUID says the TSC's rate it is believed. Otherwise channel 2 of the interval timer (8254), whose rate is the same
//! on every PC, is let run for 10 ms. An instance is told the result in its descriptor and never measures.

use raw_cpuid::CpuId;

use crate::arch::{apic, port, timer};

/// The interval timer's rate, in Hz.
const PIT_HZ: u64 = 1_193_182;
const PIT_COUNTS: u64 = PIT_HZ / 100;
const PIT_CHANNEL_2: u16 = 0x42;
const PIT_MODE: u16 = 0x43;
const SPEAKER: u16 = 0x61;
const OUTPUT: u8 = 1 << 5;

/// Rates, in Hz.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rates {
    pub tsc: u64,
    pub lapic: u64,
}

/// Measures. The local APIC is on, its timer masked.
pub(super) fn measure() -> Rates {
    apic::prepare_calibration();
    let (ticks, counts) = during_pit(PIT_COUNTS);
    let lapic = counts * apic::TIMER_DIVIDER * PIT_HZ / PIT_COUNTS;
    let measured = ticks * PIT_HZ / PIT_COUNTS;
    let said = CpuId::new().get_tsc_info().and_then(|info| info.tsc_frequency());
    // Nothing but a broken timer gives 0; the kernel must not divide by it.
    Rates { tsc: said.unwrap_or(measured).max(1_000_000), lapic: lapic.max(1_000_000) }
}

/// TSC ticks and local APIC timer counts while the interval timer counts `counts` down.
fn during_pit(counts: u64) -> (u64, u64) {
    // About a second at 4 GHz: a machine without an interval timer must not hang here.
    const LIMIT_TICKS: u64 = 4_000_000_000;
    // SAFETY: the supervisor owns the interval timer and the speaker port; nobody else uses them during boot.
    unsafe {
        // Gate on, speaker off; channel 2, both bytes, one-shot.
        port::outb(SPEAKER, port::inb(SPEAKER) & !2 | 1);
        port::outb(PIT_MODE, 0b1011_0000);
        port::outb(PIT_CHANNEL_2, counts as u8);
        port::outb(PIT_CHANNEL_2, (counts >> 8) as u8);
    }
    apic::start_timer(u32::MAX);
    let start = timer::tsc();
    // SAFETY: as above; reading has no effect.
    timer::poll_ticks(LIMIT_TICKS, || unsafe { port::inb(SPEAKER) } & OUTPUT != 0);
    let ticks = timer::tsc() - start;
    let left = apic::timer_count();
    apic::start_timer(0);
    (ticks, u64::from(u32::MAX - left))
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
