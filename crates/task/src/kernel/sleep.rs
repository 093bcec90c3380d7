//! Sleeping threads with a deadline, and the timer.

use alloc::vec::Vec;

use guard::timer::{self, now_ns};

use super::cpu::{CPUS, current_slot};
use super::{slot, wake};
use crate::NoMemory;

/// Runs `sleep` with the calling thread registered to be woken at `deadline_ns`.
pub(super) fn with_deadline(deadline_ns: u64, sleep: impl FnOnce()) {
    let me = current_slot().number();
    if add_sleeper(deadline_ns, me).is_err() {
        // Whoever sleeps looks again for what it waits for, whenever it wakes.
        super::yield_now();
        return;
    }
    sleep();
    // Gone if it came from the timer; left behind if the thread has moved, where it ends as a
    // spurious wake-up.
    CPUS.with(|c| c.sleepers.borrow_mut().retain(|s| *s != (deadline_ns, me)));
}

fn add_sleeper(deadline_ns: u64, me: u32) -> Result<(), NoMemory> {
    loop {
        // Nothing may be allocated with interrupts off: room is made before.
        let full = CPUS.with(|c| {
            let mut sleepers = c.sleepers.borrow_mut();
            if sleepers.len() == sleepers.capacity() {
                return Some(sleepers.capacity());
            }
            let at = sleepers.partition_point(|s| s.0 >= deadline_ns);
            sleepers.insert(at, (deadline_ns, me));
            if deadline_ns < c.timer_deadline.get() {
                c.timer_deadline.set(deadline_ns);
                timer::arm(deadline_ns);
            }
            None
        });
        let Some(capacity) = full else {
            return Ok(());
        };
        let mut larger = Vec::new();
        larger.try_reserve(capacity * 2).map_err(|_| NoMemory)?;
        let smaller = CPUS.with(|c| {
            let mut sleepers = c.sleepers.borrow_mut();
            // Perhaps another CPU's by now: then it was not full, or is as small.
            if sleepers.capacity() < larger.capacity() {
                larger.extend_from_slice(&sleepers);
                core::mem::replace(&mut *sleepers, larger)
            } else {
                larger
            }
        });
        drop(smaller);
    }
}

/// The timer: wakes sleepers whose time has come; the end of a slice is dealt with at the handler's
/// end.
pub(super) fn on_timer() {
    CPUS.with(|c| {
        c.timer_deadline.set(u64::MAX);
        c.reschedule.set(true);
    });
    let now = now_ns();
    loop {
        let due = CPUS.with(|c| {
            let mut sleepers = c.sleepers.borrow_mut();
            match sleepers.last() {
                Some(s) if s.0 <= now => sleepers.pop(),
                _ => None,
            }
        });
        let Some((_, number)) = due else { return };
        wake::unpark(slot::by_number(number));
    }
}
