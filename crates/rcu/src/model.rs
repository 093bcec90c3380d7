//! Model checks (`RUSTFLAGS="--cfg loom"`).

use std::vec::Vec;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use loom::thread;

use crate::{BATCH, Cpus, Domain};

/// One CPU that reads, and one that only retires.
struct Two {
    reader: Arc<AtomicU64>,
}

// SAFETY: the reader's counter is increased between its sections, with a full fence.
unsafe impl Cpus for Two {
    fn count(&self) -> usize {
        1
    }
    fn quiescent_states(&self, _: usize) -> u64 {
        self.reader.load(Ordering::Acquire)
    }
    fn is_idle(&self, _: usize) -> bool {
        false
    }
    fn quiescent_state(&self) {}
    fn kick(&self, _: usize) {}
    fn sleep_until(&self, over: &dyn Fn() -> bool) {
        while !over() {
            thread::yield_now();
        }
    }
    fn read_section<R>(&self, section: impl FnOnce() -> R) -> R {
        section()
    }
}

/// Says that the memory of one value was given back.
struct Freed(Arc<AtomicBool>);
impl Drop for Freed {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn nothing_is_freed_while_a_reader_looks_at_it() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(|| {
        let passed = Arc::new(AtomicU64::new(0));
        let freed: Vec<_> = (0..2).map(|_| Arc::new(AtomicBool::new(false))).collect();
        // Which of the two values is linked.
        let linked = Arc::new(AtomicUsize::new(0));
        let reader = thread::spawn({
            let (passed, freed, linked) = (passed.clone(), freed.clone(), linked.clone());
            move || {
                for _ in 0..2 {
                    let value = linked.load(Ordering::Acquire);
                    assert!(
                        !freed[value].load(Ordering::SeqCst),
                        "a reader looks at what was freed"
                    );
                    passed.fetch_add(1, Ordering::Release);
                    fence(Ordering::SeqCst);
                }
            }
        });
        let domain = Domain::new(Two {
            reader: passed.clone(),
        });
        linked.store(1, Ordering::Release);
        domain.retire(Freed(freed[0].clone()));
        // Others, so that a grace period begins, and one more to see its end.
        for _ in 0..BATCH {
            domain.retire(Freed(Arc::new(AtomicBool::new(false))));
        }
        reader.join().unwrap();
        passed.fetch_add(1, Ordering::Release);
        domain.retire(Freed(Arc::new(AtomicBool::new(false))));
        assert!(freed[0].load(Ordering::SeqCst) && domain.periods() == 1);
    });
}
