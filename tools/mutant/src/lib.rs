//! The switch in a tree of mutants (`cargo xtask mutants`): every change built into a program asks
//! [`is`] whether it is in force.
//!
//! Nothing of the system depends on this crate: `xtask` makes a copy of the tree, writes the
//! changes and the dependency there, and builds that. In a kernel the choice is a number in the
//! image, which `xtask` overwrites, so instances have it too; on the host it is an environment
//! variable. Besides, the program tells which changes were come by: a kernel on QEMU's debug port,
//! a program of the host in a file.
#![cfg_attr(target_os = "none", no_std)]

#[cfg(not(target_os = "none"))]
mod host;
#[cfg(target_os = "none")]
mod kernel;

use core::sync::atomic::{AtomicU32, Ordering};

#[cfg(not(target_os = "none"))]
use host as platform;
#[cfg(target_os = "none")]
use kernel as platform;

/// The choice that puts no change in force, and tells each one that is come by.
pub const RECORD: u32 = u32::MAX;
/// Changes in one program; their numbers begin at 1.
pub const MAX_CHANGES: u32 = 8192;
/// Set in what is told at a [`mark`]; the rest is its number.
pub const MARK: u32 = 1 << 27;
/// Set in the time that is told before each mark; the rest counts turns of 2²⁰ of the time-stamp
/// counter, and wraps.
pub const TIME: u32 = 1 << 26;
/// Prefix of a host name that is a mark.
pub const PREFIX: &str = "mutant-";

/// A bit for each change that was told.
static TOLD: [AtomicU32; MAX_CHANGES as usize / 32] =
    [const { AtomicU32::new(0) }; MAX_CHANGES as usize / 32];

/// Whether the change of this number is in force.
#[inline]
pub fn is(number: u32) -> bool {
    let chosen = platform::chosen();
    chosen != 0 && asked(number, chosen)
}

#[cold]
#[inline(never)]
fn asked(number: u32, chosen: u32) -> bool {
    if chosen == number || chosen == RECORD {
        let (word, bit) = (
            &TOLD[(number % MAX_CHANGES / 32) as usize],
            1 << (number % 32),
        );
        if word.load(Ordering::Relaxed) & bit == 0
            && word.fetch_or(bit, Ordering::Relaxed) & bit == 0
        {
            platform::tell(number);
        }
    }
    chosen == number
}

/// Where everything is told: takes `mutant-N` for the beginning of part N of a test, and tells from
/// there on once more what is come by. Whether it was a mark.
pub fn mark(name: &[u8]) -> bool {
    if platform::chosen() != RECORD {
        return false;
    }
    let digits = name
        .strip_prefix(PREFIX.as_bytes())
        .and_then(|digits| core::str::from_utf8(digits).ok());
    let Some(number) = digits.and_then(|digits| digits.parse::<u32>().ok()) else {
        return false;
    };
    platform::tell(TIME | (platform::time() % TIME));
    platform::tell(MARK | (number % TIME));
    for word in &TOLD {
        word.store(0, Ordering::Relaxed);
    }
    true
}

/// Bytes of one thing that is told.
pub const FRAME: usize = 5;

/// Five bytes of which only the first has its highest bit set, with a sum of the others: two
/// kernels may write to the port at once.
pub fn frame(value: u32) -> [u8; FRAME] {
    let parts = [21, 14, 7, 0].map(|shift| (value >> shift) as u8 & 0x7f);
    [0x80 | sum(parts), parts[0], parts[1], parts[2], parts[3]]
}

/// Numbers of the mutants that a log tells of, without damaged entries.
pub fn told(bytes: &[u8]) -> impl Iterator<Item = u32> {
    bytes.windows(FRAME).filter_map(|window| {
        let parts = [window[1], window[2], window[3], window[4]];
        let whole = parts.iter().all(|part| part & 0x80 == 0) && window[0] == 0x80 | sum(parts);
        whole.then(|| {
            parts
                .iter()
                .fold(0, |value, part| value << 7 | u32::from(*part))
        })
    })
}

fn sum(parts: [u8; 4]) -> u8 {
    parts
        .iter()
        .fold(0x35, |sum: u8, part| sum.rotate_left(1) ^ part)
        & 0x7f
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_read_and_what_is_damaged_is_not() {
        let values = [1, 127, 128, MARK | 5, TIME | 0x3ff_ffff];
        let mut bytes: Vec<u8> = values.iter().flat_map(|value| frame(*value)).collect();
        assert_eq!(told(&bytes).collect::<Vec<_>>(), values);
        bytes[7] ^= 1;
        assert_eq!(
            told(&bytes).collect::<Vec<_>>(),
            [1, 128, MARK | 5, TIME | 0x3ff_ffff]
        );
    }
}
