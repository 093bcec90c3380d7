//! Sizes of memory, as docker reads and writes them.

use crate::failure::{Failure, Result};

const UNITS: [(&str, u64); 4] = [("b", 1), ("k", 1 << 10), ("m", 1 << 20), ("g", 1 << 30)];

/// Reads a size: a number, maybe with a fraction, and `b`, `k`, `m` or `g` in any case, maybe
/// followed by `b` or `ib`; without a unit it is bytes.
///
/// # Errors
/// Says what a size looks like.
pub fn parse(text: &str) -> Result<u64> {
    let wrong = || {
        Failure::new(format!(
            "{text:?} is not a size: give a number and a unit, such as 64M or 1.5G"
        ))
    };
    let lower = text.trim().to_ascii_lowercase();
    let digits = lower
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(lower.len());
    let (number, unit) = lower.split_at(digits);
    let unit = match unit {
        "" => "b",
        "kb" | "mb" | "gb" | "kib" | "mib" | "gib" => &unit[..1],
        unit => unit,
    };
    let factor = UNITS
        .iter()
        .find(|(name, _)| *name == unit)
        .ok_or_else(wrong)?
        .1;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || number.ends_with('.') || fraction.len() > 9 || fraction.contains('.') {
        return Err(wrong());
    }
    let whole: u64 = whole.parse().map_err(|_| wrong())?;
    let part: u64 = if fraction.is_empty() {
        0
    } else {
        fraction.parse().map_err(|_| wrong())?
    };
    let part = u128::from(part) * u128::from(factor) / 10u128.pow(fraction.len() as u32);
    let bytes = whole
        .checked_mul(factor)
        .and_then(|bytes| bytes.checked_add(u64::try_from(part).ok()?))
        .ok_or_else(wrong)?;
    if bytes == 0 { Err(wrong()) } else { Ok(bytes) }
}

/// Writes a size in the largest unit that gives at least 1, with a decimal if it is not whole.
#[must_use]
pub fn format(bytes: u64) -> String {
    let (name, factor) = match bytes {
        0..0x400 => return format!("{bytes} B"),
        0x400..0x10_0000 => ("KiB", 1u64 << 10),
        0x10_0000..0x4000_0000 => ("MiB", 1 << 20),
        0x4000_0000..0x100_0000_0000 => ("GiB", 1 << 30),
        _ => ("TiB", 1 << 40),
    };
    let tenths = u128::from(bytes) * 10 / u128::from(factor);
    if tenths.is_multiple_of(10) {
        format!("{} {name}", tenths / 10)
    } else {
        format!("{}.{} {name}", tenths / 10, tenths % 10)
    }
}

/// A size as an option takes it, in whole MiB: what `bytes` need, so that it is enough.
pub fn option(bytes: u64) -> String {
    format!("{}M", bytes.div_ceil(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_docker_does() {
        for (text, bytes) in [
            ("1", 1),
            ("100b", 100),
            ("64k", 64 << 10),
            ("64M", 64 << 20),
            ("2g", 2 << 30),
            ("2GB", 2 << 30),
            ("2GiB", 2 << 30),
            ("1.5G", 3 << 29),
            (" 8m ", 8 << 20),
        ] {
            assert_eq!(parse(text).unwrap(), bytes, "{text}");
        }
    }

    #[test]
    fn an_option_is_read_as_enough() {
        for bytes in [1, 1 << 20, (1 << 20) + 1, (5 << 30) + 1] {
            let read = parse(&option(bytes)).unwrap();
            assert!((bytes..bytes + (1 << 20)).contains(&read), "{bytes}");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for text in [
            "",
            "M",
            "-1M",
            "1x",
            "1..5G",
            "1.",
            ".5G",
            "0",
            "99999999999G",
            "1 M",
            "1bb",
            "1.5.5G",
        ] {
            let failure = parse(text).unwrap_err();
            assert!(failure.message.contains("64M"), "{text}: {failure}");
        }
    }

    #[test]
    fn sizes_are_written_shortly() {
        for (bytes, text) in [
            (5, "5 B"),
            (64 << 20, "64 MiB"),
            (3 << 29, "1.5 GiB"),
            ((2 << 30) - 1, "1.9 GiB"),
            (2 << 40, "2 TiB"),
        ] {
            assert_eq!(format(bytes), text);
        }
    }
}
