//! Pipes, event counters, polling and epoll under all schedules with a few pre-emptions
//! (`docs/locks.md`).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use abi::errno::Errno;
use fs::epoll::{Epoll, EpollFile, Interest, ReadyEvent, epoll};
use fs::eventfd::eventfd;
use fs::pipe::{PIPE_BUF, PipeEnd, pipe};
use fs::poll::{Events, PollObserver, PollQueue, poll};
use fs::{File, OpenFlags};
use task::Deadline;
use task::explore::{Model, spawn};

const NONBLOCK: OpenFlags = OpenFlags::NONBLOCK;
const EPOLLIN: u32 = Events::IN.bits();
const EPOLLOUT: u32 = Events::OUT.bits();
const EPOLLEXCLUSIVE: u32 = 1 << 28;
const EPOLLONESHOT: u32 = 1 << 30;
const EPOLLET: u32 = 1 << 31;

/// A blocking pipe that holds 4096 bytes, all but `room` of which are there already.
fn small_pipe(room: usize) -> (Arc<File>, Arc<File>) {
    let (reader, writer) = pipe(OpenFlags::empty());
    writer
        .ops_as::<PipeEnd>()
        .unwrap()
        .set_capacity(PIPE_BUF, false)
        .unwrap();
    if room < PIPE_BUF {
        assert_eq!(writer.write(&vec![0; PIPE_BUF - room]), Ok(PIPE_BUF - room));
    }
    (reader, writer)
}

/// Reads until there are so many bytes, or no more come.
fn read_all(file: &File, most: usize) -> Vec<u8> {
    let mut got = Vec::new();
    let mut buf = [0; 8192];
    while got.len() < most {
        match file.read(&mut buf).unwrap() {
            0 => break,
            n => got.extend_from_slice(&buf[..n]),
        }
    }
    got
}

mod pipes {
    use super::*;

    #[test]
    fn a_reader_hears_of_bytes_and_of_the_end() {
        Model::new().preemptions(3).check(|| {
            let (reader, writer) = pipe(OpenFlags::empty());
            let other = spawn("writer", move || {
                assert_eq!(writer.write(b"ab"), Ok(2));
                assert_eq!(writer.write(b"cd"), Ok(2));
            });
            assert_eq!(read_all(&reader, 5), b"abcd");
            other.join();
        });
    }

    #[test]
    fn a_writer_that_found_no_room_hears_of_it_and_its_bytes_stay_in_order() {
        Model::new().preemptions(2).check(|| {
            let (reader, writer) = small_pipe(10);
            let other = spawn("writer", move || {
                assert_eq!(writer.write(&vec![1; PIPE_BUF + 1]), Ok(PIPE_BUF + 1));
            });
            let got = read_all(&reader, usize::MAX);
            assert_eq!(got.len(), 2 * PIPE_BUF - 10 + 1);
            assert!(
                got[..PIPE_BUF - 10].iter().all(|b| *b == 0)
                    && got[PIPE_BUF - 10..].iter().all(|b| *b == 1)
            );
            other.join();
        });
    }

    #[test]
    fn a_writer_hears_that_the_last_reader_has_gone() {
        Model::new().preemptions(3).check(|| {
            let (reader, writer) = small_pipe(0);
            let other = spawn("writer", move || {
                assert_eq!(writer.write(b"x"), Err(Errno::EPIPE));
            });
            drop(reader);
            other.join();
        });
    }

    #[test]
    fn a_writer_hears_that_the_pipe_has_grown() {
        Model::new().preemptions(3).check(|| {
            let (reader, writer) = small_pipe(0);
            let theirs = writer.clone();
            let other = spawn("writer", move || assert_eq!(theirs.write(b"x"), Ok(1)));
            writer
                .ops_as::<PipeEnd>()
                .unwrap()
                .set_capacity(2 * PIPE_BUF, false)
                .unwrap();
            other.join();
            drop(reader);
        });
    }

    #[test]
    fn a_small_write_goes_in_beside_a_large_one_that_waits() {
        Model::new().preemptions(1).check(|| {
            let (reader, writer) = small_pipe(0);
            let [large, small] = [PIPE_BUF, 10].map(|size| {
                let writer = writer.clone();
                spawn("writer", move || {
                    assert_eq!(writer.write(&vec![1; size]), Ok(size));
                })
            });
            assert_eq!(reader.read(&mut [0; 10]), Ok(10));
            small.join();
            assert_eq!(reader.read(&mut [0; PIPE_BUF]), Ok(PIPE_BUF));
            assert_eq!(reader.read(&mut [0; PIPE_BUF]), Ok(PIPE_BUF));
            large.join();
        });
    }

    #[test]
    fn small_writes_are_not_mixed() {
        Model::new().preemptions(2).check(|| {
            let (reader, writer) = small_pipe(4);
            let writers = [1, 2].map(|byte| {
                let writer = writer.clone();
                spawn("writer", move || {
                    assert_eq!(writer.write(&[byte; 3]), Ok(3));
                })
            });
            drop(writer);
            let got = read_all(&reader, usize::MAX);
            let got = &got[PIPE_BUF - 4..];
            assert!(
                got == [1, 1, 1, 2, 2, 2] || got == [2, 2, 2, 1, 1, 1],
                "{got:?}"
            );
            writers.into_iter().for_each(|writer| writer.join());
        });
    }

    #[test]
    fn each_of_two_readers_is_served_or_hears_of_the_end() {
        Model::new().preemptions(2).check(|| {
            let (reader, writer) = pipe(OpenFlags::empty());
            let readers = [(); 2].map(|()| {
                let reader = reader.clone();
                spawn("reader", move || {
                    assert!(reader.read(&mut [0; 1]).unwrap() <= 1);
                })
            });
            writer.write(b"x").unwrap();
            drop(writer);
            readers.into_iter().for_each(|reader| reader.join());
            drop(reader);
        });
    }

    #[test]
    fn an_interrupted_reader_takes_nothing_with_it() {
        Model::new().preemptions(2).check(|| {
            let (reader, writer) = pipe(OpenFlags::empty());
            let theirs = reader.clone();
            let nervous = task::spawn("nervous", None, move || {
                let got = theirs.read(&mut [0; 1]);
                assert!(got == Ok(1) || got == Err(Errno::ERESTARTSYS), "{got:?}");
                // Otherwise it is still there for the other one, or will be.
                if got == Ok(1) {
                    assert_eq!(writer.write(b"x"), Ok(1));
                }
            })
            .unwrap();
            nervous.set_signal_pending();
            nervous.join();
            drop(reader);
        });
    }
}

mod counters {
    use super::*;

    #[test]
    fn each_count_is_taken_once() {
        Model::new().preemptions(2).check(|| {
            let counter = eventfd(0, true, OpenFlags::empty());
            let readers = [(); 2].map(|()| {
                let counter = counter.clone();
                spawn("reader", move || {
                    assert_eq!(counter.read(&mut [0; 8]), Ok(8));
                })
            });
            counter.write(&2u64.to_ne_bytes()).unwrap();
            readers.into_iter().for_each(|reader| reader.join());
            assert!(!counter.poll(None).contains(Events::IN));
        });
    }

    #[test]
    fn a_writer_that_found_it_full_hears_of_room() {
        Model::new().preemptions(3).check(|| {
            let counter = eventfd(0, false, OpenFlags::empty());
            counter.write(&(u64::MAX - 1).to_ne_bytes()).unwrap();
            let theirs = counter.clone();
            let writer = spawn("writer", move || {
                assert_eq!(theirs.write(&5u64.to_ne_bytes()), Ok(8));
            });
            let mut value = [0; 8];
            counter.read(&mut value).unwrap();
            assert_eq!(u64::from_ne_bytes(value), u64::MAX - 1);
            counter.read(&mut value).unwrap();
            assert_eq!(u64::from_ne_bytes(value), 5);
            writer.join();
        });
    }
}

mod polling {
    use super::*;

    /// Polls files for events of interest; returns what was found of each.
    fn poll_all<'a>(
        files: impl IntoIterator<Item = &'a Arc<File>> + Clone,
        wanted: Events,
        deadline: Option<Deadline>,
    ) -> Vec<Events> {
        let mut found = Vec::new();
        let ready = poll(deadline, |pass| {
            found.clear();
            let files = files.clone().into_iter();
            found.extend(files.map(|file| pass.poll(file, wanted | Events::ALWAYS)));
        });
        let count = found.iter().filter(|events| !events.is_empty()).count();
        assert_eq!(ready, Ok(count));
        found
    }

    #[test]
    fn a_change_of_any_file_ends_the_wait() {
        Model::new().preemptions(2).check(|| {
            let counters = [(); 2].map(|()| eventfd(0, false, OpenFlags::empty()));
            let writers: Vec<_> = counters
                .iter()
                .cloned()
                .map(|counter| {
                    spawn("writer", move || {
                        assert_eq!(counter.write(&1u64.to_ne_bytes()), Ok(8));
                    })
                })
                .collect();
            let mut left = counters.to_vec();
            while !left.is_empty() {
                let found = poll_all(&left, Events::IN, None);
                let count = left.len();
                let mut found = found.iter();
                left.retain(|_| found.next().is_some_and(Events::is_empty));
                assert!(left.len() < count);
            }
            writers.into_iter().for_each(|writer| writer.join());
        });
    }

    #[test]
    fn a_change_that_comes_with_the_deadline_is_reported() {
        Model::new().preemptions(3).check(|| {
            let counter = eventfd(0, false, OpenFlags::empty());
            let theirs = counter.clone();
            let writer = spawn("writer", move || {
                assert_eq!(theirs.write(&1u64.to_ne_bytes()), Ok(8));
            });
            let found = poll_all([&counter], Events::IN, Some(Deadline::at_ns(1000)));
            if found[0].is_empty() {
                assert!(task::now_ns() >= 1000);
            }
            writer.join();
            let found = poll_all([&counter], Events::IN, Some(Deadline::PASSED));
            assert_eq!(found, [Events::IN]);
        });
    }

    #[test]
    fn a_hang_up_ends_the_wait() {
        Model::new().preemptions(3).check(|| {
            let (reader, writer) = pipe(OpenFlags::empty());
            let other = spawn("writer", move || drop(writer));
            assert_eq!(poll_all([&reader], Events::IN, None), [Events::HUP]);
            other.join();
        });
    }

    #[test]
    fn of_several_threads_that_poll_one_file_all_hear_of_its_change() {
        Model::new().preemptions(2).check(|| {
            let counter = eventfd(0, false, OpenFlags::empty());
            let threads = [(); 3].map(|()| {
                let counter = counter.clone();
                spawn("poller", move || {
                    assert_eq!(poll_all([&counter], Events::IN, None), [Events::IN]);
                })
            });
            assert_eq!(counter.write(&1u64.to_ne_bytes()), Ok(8));
            threads.into_iter().for_each(|thread| thread.join());
        });
    }

    #[test]
    fn observers_that_come_and_go_keep_nobody_from_hearing_of_a_change() {
        struct Heard(AtomicUsize);
        impl PollObserver for Heard {
            fn on_event(self: Arc<Self>, _: Events) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let heard = || Arc::new(Heard(AtomicUsize::new(0)));
        Model::new().preemptions(2).check(move || {
            let queue = Arc::new(PollQueue::new());
            let add = |queue: &PollQueue, observer: &Arc<Heard>| {
                let observer: Arc<dyn PollObserver> = observer.clone();
                queue.add_observer(&observer).unwrap();
            };
            let observers: Vec<_> = (0..7).map(|_| heard()).collect();
            observers.iter().for_each(|observer| add(&queue, observer));
            let theirs = queue.clone();
            let others: Vec<_> = observers.iter().step_by(2).cloned().collect();
            let staying: Vec<_> = observers.iter().skip(1).step_by(2).cloned().collect();
            drop(observers);
            let other = spawn("other", move || {
                drop(others);
                let late = heard();
                (0..3).for_each(|_| add(&theirs, &late));
            });
            queue.notify();
            for observer in &staying {
                assert_eq!(observer.0.load(Ordering::Relaxed), 1);
            }
            other.join();
            queue.notify();
            for observer in &staying {
                assert_eq!(observer.0.load(Ordering::Relaxed), 2);
            }
        });
    }
}

mod sets {
    use super::*;

    fn set_of(file: &File) -> &Arc<Epoll> {
        file.ops_as::<EpollFile>().unwrap().instance()
    }

    fn add(set: &File, file: &Arc<File>, events: u32, data: u64) {
        set_of(set)
            .add(data as i32, file, Interest { events, data })
            .unwrap();
    }

    fn wait(set: &File, max: usize, deadline: Option<Deadline>) -> Vec<ReadyEvent> {
        let mut found = Vec::new();
        let count = set_of(set).wait(max, deadline, |_, ready| {
            found.push(ready);
            Ok(())
        });
        assert_eq!(count, Ok(found.len()));
        found
    }

    fn give(counter: &File) {
        assert_eq!(counter.write(&1u64.to_ne_bytes()), Ok(8));
    }

    #[test]
    fn a_change_is_reported_whether_it_comes_before_during_or_after_the_wait() {
        Model::new().preemptions(3).check(|| {
            let (set, counter) = (epoll(OpenFlags::empty()), eventfd(0, false, NONBLOCK));
            let theirs = counter.clone();
            let writer = spawn("writer", move || give(&theirs));
            add(&set, &counter, EPOLLIN, 7);
            assert_eq!(
                wait(&set, 4, None),
                [ReadyEvent {
                    events: EPOLLIN,
                    data: 7
                }]
            );
            writer.join();
        });
    }

    #[test]
    fn each_change_of_an_edge_triggered_file_is_reported_after_what_was_read() {
        // The reader empties the counter each time it is told: when it has been told of the last
        // write, it has read all.
        Model::new().preemptions(2).check(|| {
            let (set, counter) = (epoll(OpenFlags::empty()), eventfd(0, false, NONBLOCK));
            add(&set, &counter, EPOLLIN | EPOLLET, 7);
            let theirs = counter.clone();
            let writer = spawn("writer", move || (0..2).for_each(|_| give(&theirs)));
            let mut sum = 0;
            while sum < 2 {
                assert_eq!(wait(&set, 4, None).len(), 1);
                let mut value = [0; 8];
                if counter.read(&mut value).is_ok() {
                    sum += u64::from_ne_bytes(value);
                }
            }
            writer.join();
        });
    }

    #[test]
    fn of_two_waiters_both_hear_of_a_level_that_stays() {
        Model::new().preemptions(2).check(|| {
            let (set, counter) = (epoll(OpenFlags::empty()), eventfd(0, false, NONBLOCK));
            add(&set, &counter, EPOLLIN, 7);
            let waiters = [(); 2].map(|()| {
                let set = set.clone();
                spawn("waiter", move || assert_eq!(wait(&set, 1, None).len(), 1))
            });
            give(&counter);
            waiters.into_iter().for_each(|waiter| waiter.join());
        });
    }

    #[test]
    fn a_one_shot_is_told_once_until_it_is_armed_again() {
        Model::new().preemptions(2).check(|| {
            let (set, counter) = (epoll(OpenFlags::empty()), eventfd(0, false, NONBLOCK));
            add(&set, &counter, EPOLLIN | EPOLLONESHOT, 7);
            let theirs = counter.clone();
            let writer = spawn("writer", move || give(&theirs));
            assert_eq!(wait(&set, 4, None).len(), 1);
            assert_eq!(wait(&set, 4, Some(Deadline::PASSED)), []);
            let interest = Interest {
                events: EPOLLIN | EPOLLONESHOT,
                data: 8,
            };
            set_of(&set).modify(7, &counter, interest).unwrap();
            assert_eq!(
                wait(&set, 4, None),
                [ReadyEvent {
                    events: EPOLLIN,
                    data: 8
                }]
            );
            writer.join();
        });
    }

    #[test]
    fn what_is_armed_while_it_changes_is_reported() {
        Model::new().preemptions(3).check(|| {
            let (reader, writer) = pipe(NONBLOCK);
            let set = epoll(OpenFlags::empty());
            add(&set, &reader, EPOLLOUT, 7);
            let other = spawn("writer", move || {
                assert_eq!(writer.write(b"x"), Ok(1));
                drop(writer);
            });
            set_of(&set)
                .modify(
                    7,
                    &reader,
                    Interest {
                        events: EPOLLIN,
                        data: 8,
                    },
                )
                .unwrap();
            let mut found = wait(&set, 4, None);
            if found
                == [ReadyEvent {
                    events: Events::HUP.bits(),
                    data: 8,
                }]
            {
                found = wait(&set, 4, None);
            }
            assert!(
                found.len() == 1 && found[0].data == 8 && found[0].events & EPOLLIN != 0,
                "{found:?}"
            );
            other.join();
        });
    }

    #[test]
    fn two_files_that_change_are_both_reported_by_waits_for_one() {
        Model::new().preemptions(2).check(|| {
            let set = epoll(OpenFlags::empty());
            let counters = [1, 2].map(|data| {
                let counter = eventfd(0, false, NONBLOCK);
                add(&set, &counter, EPOLLIN | EPOLLET, data);
                counter
            });
            let writers = counters
                .clone()
                .map(|counter| spawn("writer", move || give(&counter)));
            let mut seen: Vec<u64> = (0..2)
                .flat_map(|_| wait(&set, 1, None))
                .map(|ready| ready.data)
                .collect();
            seen.sort_unstable();
            assert_eq!(seen, [1, 2]);
            writers.into_iter().for_each(|writer| writer.join());
        });
    }

    #[test]
    fn a_set_within_a_set_passes_a_change_on() {
        Model::new().preemptions(2).check(|| {
            let (outer, inner) = (epoll(OpenFlags::empty()), epoll(OpenFlags::empty()));
            let counter = eventfd(0, false, NONBLOCK);
            add(&outer, &inner, EPOLLIN, 1);
            add(&inner, &counter, EPOLLIN, 2);
            let theirs = counter.clone();
            let writer = spawn("writer", move || give(&theirs));
            assert_eq!(
                wait(&outer, 4, None),
                [ReadyEvent {
                    events: EPOLLIN,
                    data: 1
                }]
            );
            assert_eq!(
                wait(&inner, 4, Some(Deadline::PASSED)),
                [ReadyEvent {
                    events: EPOLLIN,
                    data: 2
                }]
            );
            writer.join();
        });
    }

    #[test]
    fn of_two_sets_one_that_waits_takes_an_exclusive_change() {
        // Each waiter takes one count and ends: one of the two may be told of both, but then the
        // first has ended.
        Model::new().preemptions(2).check(|| {
            let counter = eventfd(0, true, NONBLOCK);
            let waiters = [1, 2].map(|data| {
                let counter = counter.clone();
                let set = epoll(OpenFlags::empty());
                add(&set, &counter, EPOLLIN | EPOLLEXCLUSIVE, data);
                spawn("waiter", move || {
                    while counter.read(&mut [0; 8]).is_err() {
                        assert_eq!(wait(&set, 1, None).len(), 1);
                    }
                })
            });
            assert_eq!(counter.write(&1u64.to_ne_bytes()), Ok(8));
            assert_eq!(counter.write(&1u64.to_ne_bytes()), Ok(8));
            waiters.into_iter().for_each(|waiter| waiter.join());
        });
    }

    #[test]
    fn what_is_removed_or_closed_while_it_changes_harms_nobody() {
        Model::new().preemptions(2).check(|| {
            let set = epoll(OpenFlags::empty());
            let counters = [1, 2].map(|data| {
                let counter = eventfd(0, false, NONBLOCK);
                add(&set, &counter, EPOLLIN, data);
                counter
            });
            let [first, second] = counters.clone();
            let writer = spawn("writer", move || {
                give(&first);
                give(&second);
            });
            set_of(&set).remove(1, &counters[0]).unwrap();
            let found = wait(&set, 4, None);
            assert_eq!(
                found,
                [ReadyEvent {
                    events: EPOLLIN,
                    data: 2
                }]
            );
            writer.join();
        });
    }

    #[test]
    fn a_caller_whose_memory_is_bad_leaves_the_report_to_the_next() {
        Model::new().preemptions(2).check(|| {
            let (set, counter) = (epoll(OpenFlags::empty()), eventfd(0, false, NONBLOCK));
            add(&set, &counter, EPOLLIN | EPOLLET, 7);
            let theirs = set.clone();
            let bad = spawn("bad", move || {
                let found =
                    set_of(&theirs).wait(4, Some(Deadline::at_ns(1000)), |_, _| Err(Errno::EFAULT));
                assert!(matches!(found, Err(Errno::EFAULT) | Ok(0)), "{found:?}");
            });
            let theirs = set.clone();
            let good = spawn("good", move || assert_eq!(wait(&theirs, 4, None).len(), 1));
            give(&counter);
            bad.join();
            good.join();
        });
    }
}
