//! Failures on purpose: the `n`-th request for memory of one thread that can fail is refused, so
//! that a test sees what each refusal leads to (Linux: `CONFIG_FAULT_INJECTION`,
//! `/proc/PID/fail-nth`).
//!
//! Who can refuse memory asks [`fails`] first: the functions of this crate, and the guard for
//! pages, page tables, kernel stacks, large objects of the heap, and at the kernel's high mark.
//! Small objects are never refused by themselves, so they are not counted: many of them are what a
//! call makes after it has asked at the mark.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use abi::errno::Errno;
use lfmutex::scheduler;

/// Threads that may have a countdown at the same time.
const THREADS: usize = 64;

/// Threads with a countdown: the number of the thread plus one in the upper half, the countdown
/// in the lower one. 0: nobody's.
static COUNTDOWNS: [AtomicU64; THREADS] = [const { AtomicU64::new(0) }; THREADS];
/// Number of places that are somebody's.
static USED: AtomicU32 = AtomicU32::new(0);

/// The calling thread, as [`COUNTDOWNS`] have it.
fn me() -> u64 {
    (scheduler().current().into_raw() as u64 + 1) << 32
}

/// The calling thread's place, and what is there.
fn mine() -> Option<(&'static AtomicU64, u64)> {
    let me = me();
    COUNTDOWNS.iter().find_map(|place| {
        let word = place.load(Ordering::Relaxed);
        (word >> 32 << 32 == me).then_some((place, word))
    })
}

/// Whether this request of the calling thread is to be refused.
#[inline]
#[must_use]
pub fn fails() -> bool {
    USED.load(Ordering::Relaxed) != 0 && count_down()
}

#[cold]
#[inline(never)]
fn count_down() -> bool {
    let Some((place, word)) = mine() else {
        return false;
    };
    let left = word as u32;
    if left > 0 {
        // Only the thread itself changes its place.
        place.store(word - 1, Ordering::Relaxed);
    }
    left == 1
}

/// Requests of the calling thread until one is refused; 0 if none is going to be, or one was.
#[must_use]
pub fn left() -> u32 {
    mine().map_or(0, |(_, word)| word as u32)
}

/// Has the `n`-th request of the calling thread from now on be refused; with 0, none.
///
/// # Errors
/// `EBUSY` if as many other threads as there are places for have a countdown.
pub fn set(n: u32) -> Result<(), Errno> {
    if let Some((place, _)) = mine() {
        if n > 0 {
            place.store(me() | u64::from(n), Ordering::Relaxed);
        } else {
            place.store(0, Ordering::Relaxed);
            USED.fetch_sub(1, Ordering::Relaxed);
        }
        return Ok(());
    }
    if n == 0 {
        return Ok(());
    }
    let new = me() | u64::from(n);
    let is_free = |place: &&AtomicU64| {
        place
            .compare_exchange(0, new, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
    };
    COUNTDOWNS.iter().find(is_free).ok_or(Errno::EBUSY)?;
    USED.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

/// Ends the countdown of the calling thread, which ends: its number becomes another one's.
#[inline]
pub fn clear() {
    if USED.load(Ordering::Relaxed) != 0 {
        // Taking a countdown away cannot fail.
        let _ = set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nth_request_of_the_thread_fails_and_no_other() {
        assert!(!fails());
        set(3).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert!(
                    (0..9).all(|_| !fails()),
                    "the countdown is another thread's"
                );
                assert_eq!(left(), 0);
            });
        });
        assert_eq!(left(), 3);
        assert_eq!(
            [fails(), fails(), fails(), fails()],
            [false, false, true, false]
        );
        assert_eq!(left(), 0);
        set(1).unwrap();
        set(2).unwrap();
        assert_eq!([fails(), fails(), fails()], [false, true, false]);
        set(1).unwrap();
        clear();
        assert!(!fails());
        assert_eq!(crate::zeroed(3).unwrap(), [0; 3]);
        set(1).unwrap();
        assert_eq!(crate::zeroed(3), Err(Errno::ENOMEM));
        clear();
    }
}
