//! What a CPU has done, by its own counters, which others read at any time without asking it.
//!
//! Times are nanoseconds of the clock that all kernels of a machine have in common. A time that is
//! under way stands there by its beginning, so it counts although nobody writes; at its end the
//! beginning is taken away before the sum grows. Who reads the sum first never sees a time twice,
//! and may miss one that ended or began at that moment.

use core::sync::atomic::{AtomicU64, Ordering};

/// Counters of a CPU, written by that CPU alone, with interrupts off, but for the time of the
/// kernel.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct CpuUsage {
    up: Span,
    idle: Span,
    paused: Span,
    /// Time of the kernel, in nanoseconds; added to in one step, for a thread may be moved.
    pub system_ns: AtomicU64,
    /// Number of context switches.
    pub switches: AtomicU64,
    /// Number of interrupts taken; NMIs are none of them.
    pub interrupts: AtomicU64,
}

/// Sum of times, the last of which may be under way.
#[derive(Debug, Default)]
#[repr(C)]
struct Span {
    /// Sum of those that are over, in nanoseconds.
    over_ns: AtomicU64,
    /// Beginning of the one that is under way, which is not 0; 0 if none is.
    since_ns: AtomicU64,
}

impl Span {
    const fn new() -> Self {
        Self {
            over_ns: AtomicU64::new(0),
            since_ns: AtomicU64::new(0),
        }
    }

    #[inline]
    fn begin(&self, now_ns: u64) {
        self.since_ns.store(now_ns.max(1), Ordering::Release);
    }

    #[inline]
    fn end(&self, now_ns: u64) {
        let since_ns = self.since_ns.load(Ordering::Relaxed);
        if since_ns == 0 {
            return;
        }
        self.since_ns.store(0, Ordering::Relaxed);
        let over_ns = self.over_ns.load(Ordering::Relaxed);
        let took = now_ns.saturating_sub(since_ns);
        // After the beginning is gone.
        self.over_ns
            .store(over_ns.wrapping_add(took), Ordering::Release);
    }

    fn read(&self, now_ns: u64) -> u64 {
        let over_ns = self.over_ns.load(Ordering::Acquire);
        match self.since_ns.load(Ordering::Acquire) {
            0 => over_ns,
            since_ns => over_ns.saturating_add(now_ns.saturating_sub(since_ns)),
        }
    }
}

/// Times of one or more CPUs, in nanoseconds, and counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTimes {
    /// Time that they were there.
    pub up_ns: u64,
    /// Part of it without a thread.
    pub idle_ns: u64,
    /// Part of it in which they stood still.
    pub paused_ns: u64,
    /// Part of it in which the kernel worked, for programs or for itself.
    pub system_ns: u64,
    /// Number of context switches.
    pub switches: u64,
    /// Number of interrupts.
    pub interrupts: u64,
}

impl CpuTimes {
    /// Time with a thread, in nanoseconds.
    #[must_use]
    pub fn busy_ns(&self) -> u64 {
        let none = self.idle_ns.saturating_add(self.paused_ns);
        self.up_ns.saturating_sub(none)
    }

    /// Adds those of another CPU, which may say anything.
    pub fn add(&mut self, other: &Self) {
        let pairs = self.words().into_iter().zip(other.to_words());
        pairs.for_each(|(sum, more)| *sum = sum.saturating_add(more));
    }

    /// Takes in what is told later. Nothing becomes less, the parts are no more than the whole, and
    /// the whole no more than `most_ns`, whatever is told.
    #[must_use]
    pub fn next(self, mut told: Self, most_ns: u64) -> Self {
        let pairs = told.words().into_iter().zip(self.to_words());
        pairs.for_each(|(now, before)| *now = before.max(*now));
        told.up_ns = told.up_ns.min(most_ns.max(self.up_ns));
        let mut left = told.up_ns - self.up_ns;
        let parts = [
            (&mut told.idle_ns, self.idle_ns),
            (&mut told.paused_ns, self.paused_ns),
            (&mut told.system_ns, self.system_ns),
        ];
        for (now, before) in parts {
            let grown = (*now - before).min(left);
            *now = before + grown;
            left -= grown;
        }
        told
    }

    fn words(&mut self) -> [&mut u64; 6] {
        let Self {
            up_ns,
            idle_ns,
            paused_ns,
            system_ns,
            switches,
            interrupts,
        } = self;
        [up_ns, idle_ns, paused_ns, system_ns, switches, interrupts]
    }

    fn to_words(mut self) -> [u64; 6] {
        self.words().map(|word| *word)
    }
}

impl CpuUsage {
    /// Counters of a CPU that was never there.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            up: Span::new(),
            idle: Span::new(),
            paused: Span::new(),
            system_ns: AtomicU64::new(0),
            switches: AtomicU64::new(0),
            interrupts: AtomicU64::new(0),
        }
    }

    /// The CPU is there from now on, without a thread.
    pub fn come(&self, now_ns: u64) {
        self.up.begin(now_ns);
        self.idle.begin(now_ns);
    }

    /// The CPU, which has no thread, is not there any more; another one may come with its number.
    pub fn go(&self, now_ns: u64) {
        self.idle.end(now_ns);
        self.up.end(now_ns);
    }

    /// The CPU has no thread from now on.
    #[inline]
    pub fn begin_idle(&self, now_ns: u64) {
        self.idle.begin(now_ns);
    }

    /// The CPU has a thread from now on, or idles no more because it stands still.
    #[inline]
    pub fn end_idle(&self, now_ns: u64) {
        self.idle.end(now_ns);
    }

    /// The CPU stands still from now on. If it idles, that is over first.
    pub fn begin_pause(&self, now_ns: u64) {
        self.paused.begin(now_ns);
    }

    /// The CPU goes on. If it idles, that begins afterwards.
    pub fn end_pause(&self, now_ns: u64) {
        self.paused.end(now_ns);
    }

    /// Adds one switch.
    #[inline]
    pub fn count_switch(&self) {
        let count = self.switches.load(Ordering::Relaxed);
        self.switches
            .store(count.wrapping_add(1), Ordering::Relaxed);
    }

    /// Adds one interrupt.
    #[inline]
    pub fn count_interrupt(&self) {
        let count = self.interrupts.load(Ordering::Relaxed);
        self.interrupts
            .store(count.wrapping_add(1), Ordering::Relaxed);
    }

    /// The figures at this moment. What is in it may be anything if another kernel writes it.
    #[must_use]
    pub fn read(&self, now_ns: u64) -> CpuTimes {
        // The parts before the whole: together they are no more.
        let (idle_ns, paused_ns) = (self.idle.read(now_ns), self.paused.read(now_ns));
        CpuTimes {
            idle_ns,
            paused_ns,
            system_ns: self.system_ns.load(Ordering::Relaxed),
            up_ns: self.up.read(now_ns),
            switches: self.switches.load(Ordering::Relaxed),
            interrupts: self.interrupts.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn times_under_way_count_by_their_beginning() {
        let usage = CpuUsage::new();
        assert_eq!(usage.read(500), CpuTimes::default());
        usage.come(1000);
        usage.end_idle(1400);
        let at = |now| {
            let times = usage.read(now);
            (times.up_ns, times.idle_ns, times.paused_ns, times.busy_ns())
        };
        assert_eq!(at(1500), (500, 400, 0, 100));
        usage.begin_pause(1500);
        assert_eq!(at(2500), (1500, 400, 1000, 100));
        usage.end_pause(3500);
        usage.begin_idle(3600);
        assert_eq!(at(4600), (3600, 1400, 2000, 200));
        usage.go(5600);
        assert_eq!(at(9999), (4600, 2400, 2000, 200));
        usage.come(10_000);
        assert_eq!(at(10_001), (4601, 2401, 2000, 200));
    }

    fn times() -> impl Strategy<Value = CpuTimes> {
        let word = || prop_oneof![any::<u64>(), 0..100_000u64, Just(u64::MAX)];
        prop::array::uniform6(word()).prop_map(
            |[up, idle, paused, system, switches, interrupts]| CpuTimes {
                up_ns: up,
                idle_ns: idle,
                paused_ns: paused,
                system_ns: system,
                switches,
                interrupts,
            },
        )
    }

    proptest! {
        /// Whatever an instance writes, what is told of it never becomes less, adds up, and is no
        /// more than can be.
        #[test]
        fn what_is_told_is_bounded_whatever_is_written(
            told in prop::collection::vec((times(), times(), 0..1_000_000u64), 1..20)
        ) {
            let (mut last, mut most) = (CpuTimes::default(), 0);
            for (mut one, other, passed) in told {
                one.add(&other);
                most += passed;
                let next = last.next(one, most);
                prop_assert!(next.up_ns <= most);
                prop_assert!(next.idle_ns + next.paused_ns + next.system_ns <= next.up_ns);
                for (now, before) in next.to_words().into_iter().zip(last.to_words()) {
                    prop_assert!(now >= before);
                }
                prop_assert!(next.busy_ns() >= last.busy_ns());
                last = next;
            }
        }
    }

    #[test]
    fn what_is_true_is_told_as_it_is() {
        let first = CpuTimes {
            up_ns: 100,
            idle_ns: 40,
            paused_ns: 20,
            system_ns: 10,
            switches: 5,
            interrupts: 6,
        };
        let second = CpuTimes {
            up_ns: 200,
            idle_ns: 90,
            ..first
        };
        let told = CpuTimes::default().next(first, 100);
        assert_eq!(told, first);
        assert_eq!(told.next(second, 250), second);
        assert_eq!(second.busy_ns(), 90);
    }
}
