//! Differences that are allowed between two kernels that both are right, in one place, each with
//! its reason.
//!
//! Fields of structures say by themselves how they are compared ([`Compare`], in `spec/`): times,
//! device and inode numbers are chosen by the kernel, blocks by the file system. Process numbers
//! are replaced by who they stand for, because kernels give them out in orders of their own.
//! Addresses that the kernel chose become the word `address`.

use crate::spec::{Compare, Structure, Target};

/// Naming of process and thread numbers: actor `n` is 1 + n, the child that step `k` made is 100 +
/// k.
pub trait PidNames {
    /// The token of this number; `None` for a number that no actor and no step knows.
    fn token(&self, pid: i64) -> Option<i64>;
}

/// Whether memory that a call may have written is compared: after EFAULT it is not, because how
/// much of a structure reaches memory that ends within it depends on the words in which a kernel
/// copies. (What a transfer that ends early has moved is compared: it succeeds.)
pub fn has_contents(result: i64) -> bool {
    result != -14
}

/// Whether memory of this kind holds a time, of which is compared what [`time_left`] leaves of it.
pub fn is_time(target: &Target) -> bool {
    matches!(target, Target::Wait | Target::WaitMicroseconds)
}

/// Seconds of which is compared how many have begun, when a call tells what is left of a time to
/// wait.
const LONG: i64 = 10_000;

/// Makes what a call has left of a time comparable, in place. What it is to the second depends on
/// when the call was made and woken; of a short time even whether any is left. Returns whether it
/// is a long one.
pub fn time_left(bytes: &mut [u8]) -> bool {
    let number = |part: &[u8]| {
        part.iter()
            .rev()
            .fold(0, |number, &byte| number << 8 | i64::from(byte))
    };
    let (seconds, fraction) = (
        number(bytes.get(..8).unwrap_or(&[])),
        number(bytes.get(8..16).unwrap_or(&[])),
    );
    let begun = seconds
        .saturating_add(i64::from(fraction > 0))
        .saturating_add(LONG - 1)
        / LONG
        * LONG;
    let long = seconds >= LONG;
    bytes.fill(0);
    for (byte, whole) in bytes.iter_mut().zip(begun.to_le_bytes()).filter(|_| long) {
        *byte = whole;
    }
    long
}

/// Whether so many bytes taken in one call without a wait tell how large the kernel's buffers are:
/// Linux counts its own memory against their sizes, and stops where that is used up.
pub fn is_room(count: i64) -> bool {
    count > 150_000
}

/// The token of a process that nobody of the program is.
pub const UNKNOWN_PID: i64 = 999;

/// The token of what a call returned that tells of somebody: whom Linux started before all numbers
/// is 0 there, and has one on Skerry. (Of `wait4(2)` 0 is nobody: a number that nobody knows cannot
/// come from it.)
pub fn someone(people: &impl PidNames, number: i64) -> i64 {
    if number == 0 {
        UNKNOWN_PID
    } else {
        pid(people, number)
    }
}

/// The token of `pid`: 0 and negative numbers mean what they mean everywhere.
pub fn pid(people: &impl PidNames, pid: i64) -> i64 {
    if pid <= 0 {
        pid
    } else {
        people.token(pid).unwrap_or(UNKNOWN_PID)
    }
}

/// Makes what the kernel wrote into elements of `structure` comparable, in place.
pub fn structure(bytes: &mut [u8], structure: &Structure, people: &impl PidNames) {
    for element in bytes.chunks_mut(structure.size.max(1)) {
        for field in &structure.fields {
            // Of memory that ends within the structure there may be a part of the field.
            let end = (field.offset + field.width).min(element.len());
            let Some(part) = element
                .get_mut(field.offset..end)
                .filter(|part| !part.is_empty())
            else {
                continue;
            };
            match field.compare {
                Compare::Exact => {}
                Compare::Ignored => part.fill(0),
                Compare::Time => {
                    time_left(part);
                }
                Compare::Zero => {
                    let set = part.iter().any(|&byte| byte != 0);
                    part.fill(0);
                    part[0] = set.into();
                }
                Compare::Address => {
                    if part.iter().skip(1).any(|&byte| byte != 0) {
                        part.fill(0xad);
                    }
                }
                Compare::Pid => {
                    let number = part
                        .iter()
                        .rev()
                        .fold(0u64, |number, &byte| number << 8 | u64::from(byte));
                    let token = pid(
                        people,
                        if part.len() == 4 {
                            i64::from(number as i32)
                        } else {
                            number as i64
                        },
                    );
                    let width = part.len();
                    part.copy_from_slice(&token.to_le_bytes()[..width]);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::time_left;

    fn left(seconds: i64, fraction: i64) -> (bool, i64) {
        let mut bytes = [seconds.to_le_bytes(), fraction.to_le_bytes()].concat();
        let long = time_left(&mut bytes);
        assert!(bytes[8..].iter().all(|&byte| byte == 0));
        (
            long,
            i64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")),
        )
    }

    #[test]
    fn of_long_times_is_left_how_many_ten_thousand_seconds_have_begun() {
        assert_eq!(
            [left(999_999, 5), left(1_000_000, 0), left(1_000_000, 1)],
            [(true, 1_000_000), (true, 1_000_000), (true, 1_010_000)]
        );
        assert_eq!([left(0, 0), left(9_999, 999)], [(false, 0); 2]);
        // What was not written is no time.
        assert_eq!(left(-0x3a3a_3a3a, -1), (false, 0));
    }
}
