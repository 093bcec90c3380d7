//! CPU time of a thread: one word, so that whoever reads it sees it whole, wherever the thread is
//! and goes meanwhile.

use core::sync::atomic::{AtomicU64, Ordering};

/// Flag: the thread has a CPU, and the rest of the word is when it would have begun had it had one
/// ever since. Otherwise the word is how long it has run.
const RUNNING_FLAG: u64 = 1 << 63;

/// CPU time of a thread, in nanoseconds of a clock that does not go back. Changed by the CPU that
/// the thread is on.
#[derive(Default)]
pub(crate) struct CpuTime {
    word: AtomicU64,
    /// The most that was reported to anybody. The CPU reads the clock before it writes down that
    /// the thread gives it up; who reads in between is told a little more than what is written
    /// then.
    last_reported: AtomicU64,
}

impl CpuTime {
    /// The thread gets a CPU; it had none.
    #[inline]
    pub(crate) fn begin(&self, now_ns: u64) {
        self.word.store(
            RUNNING_FLAG | now_ns.saturating_sub(self.word.load(Ordering::Relaxed)),
            Ordering::Release,
        );
    }

    /// The thread gives its CPU up.
    #[inline]
    pub(crate) fn end(&self, now_ns: u64) {
        self.word.store(
            at(self.word.load(Ordering::Relaxed), now_ns),
            Ordering::Release,
        );
    }

    /// CPU time of the thread until now. Never less than before.
    pub(crate) fn read(&self, now_ns: impl Fn() -> u64) -> u64 {
        let time = loop {
            let word = self.word.load(Ordering::Acquire);
            let now = now_ns();
            // Otherwise it was switched from or to in between, and `now` is not a time of this
            // word.
            if self.word.load(Ordering::Acquire) == word {
                break at(word, now);
            }
        };
        self.last_reported
            .fetch_max(time, Ordering::AcqRel)
            .max(time)
    }
}

fn at(word: u64, now_ns: u64) -> u64 {
    if word & RUNNING_FLAG == 0 {
        word
    } else {
        now_ns.saturating_sub(word & !RUNNING_FLAG)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn only_time_on_a_cpu_counts() {
        let time = CpuTime::default();
        assert_eq!(time.read(|| 500), 0);
        time.begin(1000);
        assert_eq!(time.read(|| 1300), 300);
        time.end(1400);
        assert_eq!(time.read(|| 9000), 400);
        time.begin(9000);
        assert_eq!(time.read(|| 9001), 401);
    }

    #[test]
    fn it_never_goes_back() {
        let (time, clock, over) = (
            CpuTime::default(),
            AtomicU64::new(1),
            AtomicBool::new(false),
        );
        let tick = || clock.fetch_add(1, Ordering::SeqCst);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..100_000 {
                    time.begin(tick());
                    time.end(tick());
                }
                over.store(true, Ordering::SeqCst);
            });
            let mut last = 0;
            while !over.load(Ordering::SeqCst) {
                let now = time.read(tick);
                assert!(now >= last, "{now} after {last}");
                last = now;
            }
        });
    }

    #[test]
    fn what_was_told_stays_true() {
        let time = CpuTime::default();
        time.begin(1000);
        assert_eq!(time.read(|| 1300), 300);
        // The CPU had looked at the clock before.
        time.end(1200);
        assert_eq!((time.read(|| 2000), time.read(|| 2000)), (300, 300));
        time.begin(5000);
        assert_eq!((time.read(|| 5050), time.read(|| 5150)), (300, 350));
    }
}
