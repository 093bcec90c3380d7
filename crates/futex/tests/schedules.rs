//! Futexes under all schedules with a few pre-emptions (`docs/locks.md`).

use std::sync::Arc;

use abi::errno::Errno;
use futex::{Target, Waiter, Word, nobody_at, requeue, wake, wake_two};
use task::explore::{Model, spawn};
use task::sync::{AtomicU32, Ordering};
use task::{Deadline, current};
use vm::FutexKey;

/// A word of memory.
struct Memory {
    value: AtomicU32,
    addr: usize,
}

impl Memory {
    fn new(addr: usize) -> Arc<Self> {
        Arc::new(Self {
            value: AtomicU32::new(0),
            addr,
        })
    }

    fn word(&self) -> Word {
        FutexKey::private(1, self.addr).word()
    }

    /// `FUTEX_WAIT`.
    fn wait(&self, expected: u32, deadline: Option<Deadline>) -> Result<(), Errno> {
        let waiter = Waiter::new(current());
        self.enter(&waiter, expected)?;
        waiter.sleep(deadline)
    }

    fn enter(&self, waiter: &Arc<Waiter>, expected: u32) -> Result<(), Errno> {
        waiter.enter(self.word(), self.addr, expected, u32::MAX, || {
            Ok::<_, ()>(self.load())
        })
    }

    /// `FUTEX_WAKE`, as the system call does it.
    fn wake(&self, most: usize) -> usize {
        if nobody_at(self.addr) {
            0
        } else {
            wake(self.word(), most, u32::MAX)
        }
    }

    fn load(&self) -> u32 {
        self.value.load(Ordering::SeqCst)
    }

    fn store(&self, value: u32) {
        self.value.store(value, Ordering::SeqCst);
    }

    /// A mutex as in Drepper, "Futexes are tricky", 2011: 0 is free, 1 is taken, 2 is waited for.
    fn lock(&self) {
        let taken = self
            .value
            .compare_exchange(0, 1, Ordering::SeqCst, Ordering::SeqCst);
        let Err(mut found) = taken else { return };
        if found != 2 {
            found = self.value.swap(2, Ordering::SeqCst);
        }
        while found != 0 {
            let _ = self.wait(2, None);
            found = self.value.swap(2, Ordering::SeqCst);
        }
    }

    fn unlock(&self) {
        if self.value.swap(0, Ordering::SeqCst) == 2 {
            self.wake(1);
        }
    }
}

/// Nobody is left in a bucket, and none is counted who is not there.
fn nobody_is_left(words: &[&Memory]) {
    for word in words {
        assert!(
            nobody_at(word.addr) && wake(word.word(), usize::MAX, u32::MAX) == 0,
            "somebody is left"
        );
    }
}

#[test]
fn a_change_is_seen_by_the_look_or_wakes_the_waiter() {
    Model::new().preemptions(4).check(|| {
        let word = Memory::new(0x1000);
        let theirs = word.clone();
        let waiter = spawn("waiter", move || {
            while theirs.load() == 0 {
                let _ = theirs.wait(0, None);
            }
        });
        word.store(1);
        word.wake(1);
        waiter.join();
        nobody_is_left(&[&word]);
    });
}

#[test]
fn a_mutex_made_of_it_excludes_and_loses_nobody() {
    Model::new().preemptions(2).check(|| {
        let shared = Arc::new((Memory::new(0x1000), AtomicU32::new(0)));
        let threads = [(); 3].map(|()| {
            let shared = shared.clone();
            spawn("locker", move || {
                shared.0.lock();
                let count = shared.1.load(Ordering::SeqCst);
                shared.1.store(count + 1, Ordering::SeqCst);
                shared.0.unlock();
            })
        });
        threads.into_iter().for_each(|thread| thread.join());
        assert_eq!(shared.1.load(Ordering::SeqCst), 3, "two were in at once");
        nobody_is_left(&[&shared.0]);
    });
}

#[test]
fn one_that_times_out_or_is_interrupted_was_woken_or_was_not() {
    // The number of those woken that the waker is told is the number of waits that say so.
    Model::new().preemptions(2).check(|| {
        let word = Memory::new(0x1000);
        let outcomes = Arc::new(AtomicU32::new(0));
        let (theirs, count) = (word.clone(), outcomes.clone());
        let hasty = spawn("hasty", move || {
            if theirs.wait(0, Some(Deadline::at_ns(1000))).is_ok() {
                count.fetch_add(1, Ordering::SeqCst);
            }
        });
        let (theirs, count) = (word.clone(), outcomes.clone());
        let nervous = task::spawn("nervous", None, move || {
            if theirs.wait(0, None).is_ok() {
                count.fetch_add(1, Ordering::SeqCst);
            }
        })
        .unwrap();
        let woken = wake(word.word(), usize::MAX, u32::MAX);
        nervous.set_signal_pending();
        hasty.join();
        nervous.join();
        assert_eq!(outcomes.load(Ordering::SeqCst) as usize, woken);
        nobody_is_left(&[&word]);
    });
}

#[test]
fn a_second_wait_knows_nothing_of_the_first_ones_wake_up() {
    // A thread has one waiter for all its waits. The first wait may give up while it is being
    // woken; the second one ends when it is woken.
    Model::new().preemptions(2).check(|| {
        let words = [Memory::new(0x1000), Memory::new(0x2004)];
        let theirs = words.clone();
        let thread = spawn("waiter", move || {
            let waiter = Waiter::new(current());
            if theirs[0].enter(&waiter, 0).is_ok() {
                let _ = waiter.sleep(Some(Deadline::at_ns(1000)));
            }
            if theirs[1].enter(&waiter, 0).is_ok() {
                assert_eq!(waiter.sleep(None), Ok(()));
                assert_eq!(
                    theirs[1].load(),
                    1,
                    "it was woken by what came too late for the first wait"
                );
            }
        });
        words[0].wake(1);
        words[1].store(1);
        words[1].wake(1);
        thread.join();
        nobody_is_left(&[&words[0], &words[1]]);
    });
}

/// Two wait for a word, one of whom may give up; one is woken and the other one moved, and then
/// woken where it is.
fn moved(from: usize, to: usize, deadline: Option<Deadline>, preemptions: u32) {
    Model::new().preemptions(preemptions).check(move || {
        let (source, target) = (Memory::new(from), Memory::new(to));
        let outcomes = Arc::new(AtomicU32::new(0));
        let waiters = [None, deadline].map(|deadline| {
            let (source, outcomes) = (source.clone(), outcomes.clone());
            spawn("waiter", move || match source.wait(0, deadline) {
                Ok(()) | Err(Errno::EAGAIN) => drop(outcomes.fetch_add(1, Ordering::SeqCst)),
                Err(error) => assert_eq!(error, Errno::ETIMEDOUT),
            })
        });
        source.store(1);
        let check = || {
            if source.load() == 1 {
                Ok(())
            } else {
                Err(Errno::EAGAIN)
            }
        };
        let place = Target {
            word: target.word(),
            addr: target.addr,
            key: None,
        };
        let went = requeue(source.word(), &place, (1, 1), check).unwrap();
        assert!(went <= 2);
        target.wake(1);
        waiters.into_iter().for_each(|waiter| waiter.join());
        assert!(deadline.is_some() || outcomes.load(Ordering::SeqCst) == 2);
        nobody_is_left(&[&source, &target]);
    });
}

#[test]
fn one_that_was_moved_is_woken_where_it_is() {
    // Words at other places of their pages, and words of one place, whose counts are one.
    moved(0x1000, 0x1004, None, 2);
    moved(0x1000, 0x3000, None, 2);
}

#[test]
fn one_that_gives_up_while_it_is_moved_is_in_no_bucket() {
    moved(0x1000, 0x1004, Some(Deadline::at_ns(1000)), 2);
}

#[test]
fn words_moved_to_and_fro_do_not_lock_each_other_out() {
    Model::new().preemptions(2).check(|| {
        let words = [Memory::new(0x1000), Memory::new(0x2004)];
        let swap = |from: &Memory, to: &Memory| {
            let place = Target {
                word: to.word(),
                addr: to.addr,
                key: None,
            };
            requeue(from.word(), &place, (0, usize::MAX), || Ok(())).unwrap();
        };
        let theirs = words.clone();
        let waiter = spawn("waiter", move || {
            assert_eq!(
                theirs[0].wait(0, Some(Deadline::at_ns(1000))),
                Err(Errno::ETIMEDOUT)
            );
        });
        let theirs = words.clone();
        let other = spawn("other", move || swap(&theirs[1], &theirs[0]));
        swap(&words[0], &words[1]);
        other.join();
        waiter.join();
        nobody_is_left(&[&words[0], &words[1]]);
    });
}

#[test]
fn of_several_words_the_one_that_was_woken_is_named() {
    // As `futex_waitv` does it.
    Model::new().preemptions(3).check(|| {
        let words = [Memory::new(0x1000), Memory::new(0x2004)];
        let theirs = words.clone();
        let waiter = spawn("waiter", move || {
            let waiters = [(); 2].map(|()| Waiter::new(current()));
            for (waiter, word) in waiters.iter().zip(&theirs) {
                if word.enter(waiter, 0).is_err() {
                    // The other one has not been woken: nobody did.
                    let _ = waiters[0].withdraw();
                    return;
                }
            }
            while !waiters.iter().any(|waiter| waiter.is_woken()) {
                futex::park(None);
            }
            let left = waiters.each_ref().map(Waiter::withdraw);
            assert_eq!(left, [true, false]);
        });
        words[1].store(1);
        words[1].wake(1);
        waiter.join();
        nobody_is_left(&[&words[0], &words[1]]);
    });
}

#[test]
fn why_a_wait_ended_is_told() {
    Model::new().preemptions(1).check(|| {
        let word = Memory::new(0x3000);
        assert_eq!(word.wait(1, None), Err(Errno::EAGAIN), "it is another one");
        let waiter = Waiter::new(current());
        let unread = waiter.enter(word.word(), word.addr, 0, u32::MAX, || Err::<u32, _>(()));
        assert_eq!(unread, Err(Errno::EFAULT));
        nobody_is_left(&[&word]);
        assert_eq!(
            word.wait(0, Some(Deadline::at_ns(1000))),
            Err(Errno::ETIMEDOUT)
        );
        // A deadline may always have come first.
        let restarts: [(Option<Deadline>, &[Errno]); 2] = [
            (None, &[Errno::ERESTARTSYS]),
            (
                Some(Deadline::at_ns(1000)),
                &[Errno::ERESTART_RESTARTBLOCK, Errno::ETIMEDOUT],
            ),
        ];
        for (deadline, told) in restarts {
            let theirs = word.clone();
            let wait = move || assert!(told.contains(&theirs.wait(0, deadline).unwrap_err()));
            let nervous = task::spawn("nervous", None, wait).unwrap();
            nervous.set_signal_pending();
            nervous.join();
        }
        nobody_is_left(&[&word]);
    });
}

#[test]
fn waits_are_woken_by_their_bits_in_their_order() {
    Model::new().preemptions(1).check(|| {
        let words = [Memory::new(0x1000), Memory::new(0x2004)];
        let waiters: Vec<_> = (0..4).map(|_| Waiter::new(current())).collect();
        let enter = |n: usize, word: usize, bits: u32| {
            let word = &words[word];
            waiters[n]
                .enter(word.word(), word.addr, 0, bits, || Ok::<_, ()>(0))
                .unwrap();
        };
        let woken = || {
            waiters
                .iter()
                .map(|waiter| waiter.is_woken())
                .collect::<Vec<_>>()
        };
        enter(0, 0, 1);
        enter(1, 0, 2);
        enter(2, 0, 3);
        enter(3, 1, 3);
        let counts = |waits, waiters| futex::WaitCounts { waits, waiters };
        assert_eq!(futex::counts(), counts(4, 4));
        assert_eq!(wake(words[0].word(), 0, 3), 0, "none at all");
        assert_eq!(
            (wake(words[0].word(), 1, 4), wake(words[0].word(), 5, 4)),
            (0, 0),
            "none with that bit"
        );
        assert_eq!(
            (wake(words[0].word(), 1, 2), woken()),
            (1, vec![false, true, false, false])
        );
        assert_eq!(
            (wake(words[0].word(), 5, 2), woken()),
            (1, vec![false, true, true, false])
        );
        assert_eq!(
            (wake(words[0].word(), 1, 3), woken()),
            (1, vec![true, true, true, false])
        );
        assert_eq!((wake(words[1].word(), 2, 1), woken()), (1, vec![true; 4]));
        assert_eq!(futex::counts(), counts(0, 0));
        nobody_is_left(&[&words[0], &words[1]]);
    });
}

#[test]
fn an_operation_that_fails_wakes_nobody_and_loses_nobody() {
    Model::new().preemptions(3).check(|| {
        let words = [Memory::new(0x1000), Memory::new(0x2004)];
        let theirs = words.clone();
        let waiter = spawn("waiter", move || {
            while theirs[0].load() == 0 {
                let _ = theirs[0].wait(0, None);
            }
        });
        let failed = wake_two((words[0].word(), 1), (words[1].word(), 1), || {
            Err(Errno::ENOSYS)
        });
        assert_eq!(failed, Err(Errno::ENOSYS));
        let place = Target {
            word: words[1].word(),
            addr: words[1].addr,
            key: None,
        };
        assert_eq!(
            requeue(words[0].word(), &place, (1, usize::MAX), || Err(
                Errno::EAGAIN
            )),
            Err(Errno::EAGAIN)
        );
        words[0].store(1);
        assert!(wake_two((words[0].word(), 1), (words[1].word(), 1), || Ok(true)).unwrap() <= 1);
        waiter.join();
        nobody_is_left(&[&words[0], &words[1]]);
    });
}

#[test]
fn an_operation_that_says_no_wakes_nobody_of_the_second_word() {
    Model::new().preemptions(2).check(|| {
        let words = [Memory::new(0x1000), Memory::new(0x2004)];
        let theirs = words.clone();
        let waiter = spawn("waiter", move || {
            assert_eq!(
                theirs[1].wait(0, Some(Deadline::at_ns(1000))),
                Err(Errno::ETIMEDOUT)
            );
        });
        assert_eq!(
            wake_two((words[0].word(), 1), (words[1].word(), 1), || Ok(false)),
            Ok(0)
        );
        waiter.join();
        nobody_is_left(&[&words[0], &words[1]]);
    });
}
