//! Output of programs: numbered lines, so that of any piece it can be said where it is from, and
//! what is missing.

/// Bytes of a line.
pub(crate) const LINE: usize = 16;
/// Bytes of each stream that the supervisor keeps (`docs/partitions.md`).
pub(crate) const KEPT: usize = 256 << 10;

/// Line number `index` of the stream `seed`.
pub(crate) fn line(seed: u32, index: u64) -> [u8; LINE] {
    let mut line = [b'\n'; LINE];
    let digits = format!("{seed:08x}{:07x}", index & 0xfff_ffff);
    line[..LINE - 1].copy_from_slice(digits.as_bytes());
    line
}

/// The first `count` lines.
pub(crate) fn lines(seed: u32, count: u64) -> Vec<u8> {
    (0..count).flat_map(|index| line(seed, index)).collect()
}

/// Checks that `seen` is the end of `whole`: all of it, or the newest bytes, but no fewer than are
/// kept.
pub(crate) fn is_end_of(whole: &[u8], seen: &[u8]) -> Result<(), String> {
    if seen.len() < whole.len().min(KEPT) {
        return Err(format!(
            "{} bytes are there of {}: at least {} must be",
            seen.len(),
            whole.len(),
            whole.len().min(KEPT)
        ));
    }
    let Some(start) = whole.len().checked_sub(seen.len()) else {
        return Err(format!(
            "{} bytes are there, and {} were written",
            seen.len(),
            whole.len()
        ));
    };
    same(&whole[start..], seen)
}

/// Checks that `seen` is all of `whole`.
pub(crate) fn same(whole: &[u8], seen: &[u8]) -> Result<(), String> {
    let difference = whole.iter().zip(seen).position(|(a, b)| a != b);
    match difference {
        Some(at) => Err(format!(
            "byte {at} differs: {} instead of {}",
            around(seen, at),
            around(whole, at)
        )),
        None if whole.len() != seen.len() => {
            Err(format!("{} bytes instead of {}", seen.len(), whole.len()))
        }
        None => Ok(()),
    }
}

fn around(bytes: &[u8], at: usize) -> String {
    let piece = &bytes[at.saturating_sub(LINE)..bytes.len().min(at + 2 * LINE)];
    format!("{:?}", String::from_utf8_lossy(piece))
}

/// A piece of an endless stream: where it begins and ends, in bytes; or what is wrong with it.
/// Lines may be missing in it only where `gaps` allows that.
pub(crate) fn place(seed: u32, piece: &[u8], gaps: bool) -> Result<(u64, u64), String> {
    let Some(first_end) = piece.iter().position(|byte| *byte == b'\n') else {
        return if piece.len() < LINE {
            Ok((0, 0))
        } else {
            Err(format!("{} bytes without a line's end", piece.len()))
        };
    };
    let mut expected = None;
    let mut start = 0;
    let mut at = first_end + 1;
    while at + LINE <= piece.len() {
        let this = &piece[at..at + LINE];
        let index = std::str::from_utf8(&this[8..LINE - 1])
            .ok()
            .and_then(|digits| u64::from_str_radix(digits, 16).ok());
        let Some(index) = index.filter(|index| line(seed, *index) == *this) else {
            // Where bytes were dropped the cut may be within a line.
            let next = piece[at..].iter().position(|byte| *byte == b'\n');
            match next {
                Some(next) if gaps => at += next + 1,
                _ => {
                    return Err(format!(
                        "byte {at} is no line of the stream: {}",
                        around(piece, at)
                    ));
                }
            }
            continue;
        };
        match expected {
            None => {
                start = (index * LINE as u64)
                    .checked_sub((first_end + 1) as u64)
                    .ok_or("bytes before the first")?;
            }
            Some(expected) if index == expected || gaps && index > expected => {}
            Some(expected) => return Err(format!("line {index} follows line {}", expected - 1)),
        }
        expected = Some(index + 1);
        at += LINE;
    }
    let rest = &piece[at..];
    let Some(next) = expected else {
        return Ok((0, 0));
    };
    if !gaps && !line(seed, next).starts_with(rest) {
        return Err(format!(
            "after line {} comes {:?}",
            next - 1,
            String::from_utf8_lossy(rest)
        ));
    }
    Ok((start, next * LINE as u64 + rest.len() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kept_end_is_exact() {
        let whole = lines(7, 20_000);
        assert!(whole.len() > KEPT);
        is_end_of(&whole, &whole).unwrap();
        is_end_of(&whole, &whole[whole.len() - KEPT..]).unwrap();
        is_end_of(&whole, &whole[whole.len() - KEPT + 1..]).unwrap_err();
        is_end_of(&whole, &whole[..KEPT]).unwrap_err();
        is_end_of(&whole[..100], &whole[1..100]).unwrap_err();
        is_end_of(&whole[..100], &whole[..101]).unwrap_err();
        assert!(same(b"abc", b"abd").unwrap_err().contains("byte 2"));
        assert!(same(b"abc", b"ab").is_err());
    }

    #[test]
    fn a_piece_tells_where_it_is_from() {
        let whole = lines(7, 1000);
        assert_eq!(place(7, &whole, false).unwrap(), (0, 16_000));
        assert_eq!(place(7, &whole[5..777], false).unwrap(), (5, 777));
        assert_eq!(place(7, &whole[16..64], false).unwrap(), (16, 64));
        place(8, &whole, false).unwrap_err();
        let holed = [&whole[..320], &whole[640..]].concat();
        assert!(
            place(7, &holed, false)
                .unwrap_err()
                .contains("line 40 follows line 19")
        );
        assert_eq!(place(7, &holed, true).unwrap(), (0, 16_000));
        let cut = [&whole[..325], &whole[648..]].concat();
        place(7, &cut, false).unwrap_err();
        assert_eq!(place(7, &cut, true).unwrap(), (0, 16_000));
        assert!(
            place(7, &[&whole[640..], &whole[..320]].concat(), true).is_err(),
            "backwards"
        );
        let mut changed = whole[..640].to_vec();
        changed[100] ^= 1;
        place(7, &changed, false).unwrap_err();
    }
}
