//! The real-time clock of PCs (Motorola MC146818A data sheet; ACPI 6.5, 4.8.2.4).

/// Port of a register's number. Its top bit masks NMIs.
pub const INDEX: u16 = 0x70;
/// Port of that register's value.
pub const DATA: u16 = 0x71;

/// Register: whether an update is in progress.
pub const STATUS_A: u8 = 0x0a;
/// In [`STATUS_A`]: the time is being updated, and what is read now may be half of it.
pub const UPDATING: u8 = 1 << 7;
/// Register: format of the time.
const STATUS_B: u8 = 0x0b;
/// In [`STATUS_B`]: numbers are binary, not decimal digits.
const BINARY: u8 = 1 << 2;
/// In [`STATUS_B`]: hours are 0 to 23, not 1 to 12.
const HOURS_24: u8 = 1 << 1;
/// In the hours, if they are 1 to 12: afternoon.
const AFTERNOON: u8 = 1 << 7;

/// Unix time in seconds by the clock whose registers `read` reads, which runs in UTC; `None` if it
/// says nonsense.
#[must_use]
pub fn unix_time(read: impl Fn(u8) -> u8) -> Option<u64> {
    let format = read(STATUS_B);
    let number = |raw: u8| {
        if format & BINARY != 0 {
            raw
        } else {
            (raw >> 4) * 10 + (raw & 0xf)
        }
    };
    let hour = read(4);
    let mut hours = u64::from(number(hour & !AFTERNOON));
    if format & HOURS_24 == 0 {
        hours = hours % 12 + if hour & AFTERNOON != 0 { 12 } else { 0 };
    }
    let time = [
        hours,
        u64::from(number(read(2))),
        u64::from(number(read(0))),
    ];
    let date = [
        2000 + u64::from(number(read(9))),
        u64::from(number(read(8))),
        u64::from(number(read(7))),
    ];
    seconds(date, time)
}

/// Number of days of a month in the Gregorian calendar; 0 if there is no such month.
fn days_of_month(year: u64, month: u64) -> u64 {
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 => 28 + u64::from(leap),
        _ => 0,
    }
}

/// Days from civil date (Howard Hinnant's algorithm), then seconds. `None` if there is no such date
/// or time.
fn seconds([year, month, day]: [u64; 3], [hour, minute, second]: [u64; 3]) -> Option<u64> {
    if !(1..=days_of_month(year, month)).contains(&day) || hour > 23 || minute > 59 || second > 60 {
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

    #[test]
    fn no_such_dates() {
        let exists = |date| seconds(date, [0, 0, 0]).is_some();
        for date in [
            [2023, 2, 29],
            [2024, 2, 30],
            [2024, 2, 31],
            [2100, 2, 29],
            [2024, 4, 31],
            [2024, 12, 32],
            [2024, 1, 0],
            [2024, 0, 1],
        ] {
            assert!(!exists(date), "{date:?}");
        }
        for date in [[2000, 2, 29], [2024, 2, 29], [2023, 2, 28], [2023, 4, 30]] {
            assert!(exists(date), "{date:?}");
        }
        // Every day of a year exists and follows the one before.
        let days = (1..=12)
            .flat_map(|month| (1..=days_of_month(2024, month)).map(move |day| [2024, month, day]));
        let first = seconds([2024, 1, 1], [0, 0, 0]).expect("a date");
        for (number, date) in (0..).zip(days) {
            assert_eq!(seconds(date, [0, 0, 0]), Some(first + number * 86_400));
        }
    }

    /// A clock that shows 21 November 2026 with these hours, 30 minutes and 1 second.
    fn clock(format: u8, hours: u8) -> Option<u64> {
        let decimal = |number: u8| {
            if format & BINARY != 0 {
                number
            } else {
                (number / 10 * 16) + number % 10
            }
        };
        unix_time(|register| match register {
            0 => decimal(1),
            2 => decimal(30),
            4 => decimal(hours & !AFTERNOON) | hours & AFTERNOON,
            7 => decimal(21),
            8 => decimal(11),
            9 => decimal(26),
            STATUS_B => format,
            _ => 0,
        })
    }

    #[test]
    fn formats() {
        let (morning, midnight, evening) = (
            Some(1_795_235_401),
            Some(1_795_221_001),
            Some(1_795_296_601),
        );
        assert_eq!(
            [HOURS_24, HOURS_24 | BINARY, 0, BINARY].map(|format| clock(format, 4)),
            [morning; 4]
        );
        assert_eq!(
            [clock(HOURS_24, 0), clock(0, 12), clock(BINARY, 12)],
            [midnight; 3]
        );
        assert_eq!(
            [
                clock(HOURS_24, 21),
                clock(0, 9 | AFTERNOON),
                clock(BINARY, 9 | AFTERNOON)
            ],
            [evening; 3]
        );
    }
}
