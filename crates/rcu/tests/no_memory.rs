//! Without memory whoever retires something waits instead of noting it: in a program of its own,
//! for the sake of its allocator.

#![cfg(not(loom))]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use rcu::{BATCH, Cpus, Domain};

struct Short;

std::thread_local! {
    /// Whether the calling thread gets no memory.
    static NONE_LEFT: Cell<bool> = const { Cell::new(false) };
}

#[global_allocator]
static SHORT: Short = Short;

// SAFETY: the system's allocator, or nothing.
unsafe impl GlobalAlloc for Short {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if NONE_LEFT.get() {
            null_mut()
        } else {
            // SAFETY: passed on.
            unsafe { System.alloc(layout) }
        }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: passed on.
        unsafe { System.dealloc(ptr, layout) };
    }
}

/// Two CPUs, one of which idles, that pass a quiescent state when somebody sleeps for it.
#[derive(Default)]
struct Two {
    passed: [AtomicU64; 2],
    slept: AtomicUsize,
    over_at_once: AtomicBool,
}

// SAFETY: there are no sections.
unsafe impl Cpus for &Two {
    fn count(&self) -> usize {
        2
    }
    fn quiescent_states(&self, cpu: usize) -> u64 {
        self.passed[cpu].load(Ordering::SeqCst)
    }
    fn is_idle(&self, cpu: usize) -> bool {
        cpu == 1
    }
    fn quiescent_state(&self) {}
    fn kick(&self, _: usize) {}
    fn sleep_until(&self, over: &dyn Fn() -> bool) {
        self.over_at_once.fetch_or(over(), Ordering::SeqCst);
        self.slept.fetch_add(1, Ordering::SeqCst);
        self.passed[0].fetch_add(1, Ordering::SeqCst);
        assert!(over());
    }
    fn read_section<R>(&self, section: impl FnOnce() -> R) -> R {
        section()
    }
}

struct Garbage<'a>(&'a AtomicUsize);
impl Drop for Garbage<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn what_cannot_be_noted_is_waited_for() {
    let (cpus, freed) = (Two::default(), AtomicUsize::new(0));
    let domain = Domain::new(&cpus);
    let retire_without_memory = || {
        NONE_LEFT.set(true);
        domain.retire(Garbage(&freed));
        NONE_LEFT.set(false);
    };
    let seen = || {
        (
            freed.load(Ordering::SeqCst),
            cpus.slept.load(Ordering::SeqCst),
        )
    };
    retire_without_memory();
    assert_eq!(seen(), (1, 1));
    // What was noted before waits for its own grace period.
    (0..BATCH).for_each(|_| domain.retire(Garbage(&freed)));
    assert_eq!(seen(), (1, 1));
    // Of the room that is left nothing is told: in the end there is none.
    let mut tries = 0;
    while cpus.slept.load(Ordering::SeqCst) == 1 {
        retire_without_memory();
        tries += 1;
        assert!(tries < 2 * BATCH, "there always was room");
    }
    assert_eq!(freed.load(Ordering::SeqCst), 2);
    assert!(!cpus.over_at_once.load(Ordering::SeqCst));
    drop(domain);
    assert_eq!(freed.load(Ordering::SeqCst), 1 + BATCH + tries);
}
