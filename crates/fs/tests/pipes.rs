//! Pipes, event counters, polling and epoll, with real threads.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use abi::errno::Errno;
use fs::epoll::{EpollFile, Interest, ReadyEvent, epoll};
use fs::eventfd::eventfd;
use fs::mount::{self};
use fs::pipe::{CAPACITY, PIPE_BUF, PipeEnd, pipe};
use fs::poll::{Events, poll};
use fs::ramfs::RamFs;
use fs::{Blocking, Cred, File, FsStruct, NewInodeKind, OpenFlags, ops};
use task::Deadline;

const NONBLOCK: OpenFlags = OpenFlags::NONBLOCK;

#[test]
fn bytes_arrive_in_order_through_a_full_pipe() {
    let (reader, writer) = pipe(OpenFlags::empty());
    let data: Vec<u8> = (0..1_000_000u32).map(|i| (i * 7 % 256) as u8).collect();
    let sent = data.clone();
    let sender = thread::spawn(move || assert_eq!(writer.write(&sent), Ok(sent.len())));
    let mut got = Vec::new();
    let mut buf = [0; 30_001];
    loop {
        match reader.read(&mut buf) {
            Ok(0) => break,
            Ok(n) => got.extend_from_slice(&buf[..n]),
            Err(e) => panic!("{e}"),
        }
    }
    sender.join().unwrap();
    assert!(got == data);
}

#[test]
fn a_small_write_is_whole_or_nothing() {
    let (reader, writer) = pipe(NONBLOCK);
    assert_eq!(writer.write(&vec![1; CAPACITY - 10]), Ok(CAPACITY - 10));
    assert_eq!(writer.write(&[2; 11]), Err(Errno::EAGAIN));
    assert_eq!(writer.write(&[2; 10]), Ok(10));
    assert_eq!(reader.read(&mut [0; 100]), Ok(100));
    // A large write may be cut.
    assert_eq!(writer.write(&vec![3; PIPE_BUF + 1]), Ok(100));
    assert_eq!(writer.write(&[1]), Err(Errno::EAGAIN));
}

#[test]
fn small_writes_of_many_writers_do_not_mix() {
    let (reader, writer) = pipe(OpenFlags::empty());
    let writers: Vec<_> = (1..=4u8)
        .map(|id| {
            let writer = writer.clone();
            thread::spawn(move || {
                (0..500).for_each(|_| assert_eq!(writer.write(&[id; 1000]), Ok(1000)));
            })
        })
        .collect();
    drop(writer);
    let mut got = Vec::new();
    let mut buf = vec![0; 65_536];
    while let n @ 1.. = reader.read(&mut buf).unwrap() {
        got.extend_from_slice(&buf[..n]);
    }
    writers.into_iter().for_each(|t| t.join().unwrap());
    assert_eq!(got.len(), 4 * 500 * 1000);
    assert!(got.chunks(1000).all(|c| c.iter().all(|&b| b == c[0])));
}

#[test]
fn the_end_of_one_side_is_seen_by_the_other() {
    let (reader, writer) = pipe(OpenFlags::empty());
    writer.write(b"last").unwrap();
    drop(writer);
    let mut buf = [0; 8];
    assert_eq!(reader.read(&mut buf), Ok(4));
    assert_eq!(reader.read(&mut buf), Ok(0));
    assert!(reader.poll(None).contains(Events::HUP));
    let (reader, writer) = pipe(OpenFlags::empty());
    let again = writer.clone();
    let blocked = thread::spawn(move || writer.write(&vec![0; CAPACITY * 2]));
    // As much as there is room for goes in at once.
    while !reader.poll(None).contains(Events::READABLE) {
        thread::yield_now();
    }
    drop(reader);
    assert_eq!(blocked.join().unwrap(), Ok(CAPACITY));
    assert_eq!(again.write(b"x"), Err(Errno::EPIPE));
}

#[test]
fn a_pipe_can_be_opened_again() {
    // As `/dev/stdin` does.
    let (reader, writer) = pipe(OpenFlags::empty());
    let again = ops::dentry_open(reader.path().clone(), OpenFlags::RDONLY, &Cred::root()).unwrap();
    writer.write(b"shared").unwrap();
    assert_eq!(again.read(&mut [0; 8]), Ok(6));
    writer.write(b"left").unwrap();
    drop(writer);
    // Also when nobody writes any more.
    let late = ops::dentry_open(reader.path().clone(), OpenFlags::RDONLY, &Cred::root()).unwrap();
    assert_eq!(late.read(&mut [0; 8]), Ok(4));
    assert_eq!(again.read(&mut [0; 8]), Ok(0));
}

#[test]
fn capacity_can_be_changed() {
    let (_reader, writer) = pipe(NONBLOCK);
    let end = writer.ops_as::<PipeEnd>().unwrap();
    assert_eq!(end.set_capacity(5000, false), Ok(8192));
    assert_eq!(writer.write(&vec![0; 100_000]), Ok(8192));
    assert_eq!(end.set_capacity(4096, false), Err(Errno::EBUSY));
    assert_eq!(end.set_capacity(1 << 21, false), Err(Errno::EPERM));
    assert_eq!(end.set_capacity(1 << 21, true), Ok(1 << 21));
    // What is there may shrink, however large it stays.
    assert_eq!(end.set_capacity((1 << 20) + 1, false), Ok(1 << 21));
    assert_eq!(end.set_capacity(usize::MAX, true), Err(Errno::EINVAL));
    assert_eq!(end.set_capacity(1 << 28, true), Ok(1 << 28));
    assert_eq!(end.set_capacity((1 << 28) + 1, true), Err(Errno::ENOMEM));
}

#[test]
fn a_named_pipe_joins_two_openers() {
    let fs = FsStruct::new(mount::Namespace::new(
        RamFs::new("tmpfs", None, 0o755),
        "none",
    ));
    let cred = Cred::root();
    ops::create_node(
        &fs.lookup_context(&cred),
        b"/fifo",
        NewInodeKind::Fifo,
        0o600,
    )
    .unwrap();
    let open = |flags| ops::open(&fs.lookup_context(&cred), b"/fifo", flags, 0);
    assert_eq!(open(OpenFlags::WRONLY | NONBLOCK).err(), Some(Errno::ENXIO));
    // Often, as who comes first is up to the scheduler.
    (0..200).for_each(|_| {
        thread::scope(|s| {
            let reader = s.spawn(|| {
                let file = open(OpenFlags::RDONLY).unwrap();
                let mut buf = [0; 16];
                let n = file.read(&mut buf).unwrap();
                assert_eq!(file.read(&mut buf[n..]), Ok(0));
                buf[..n].to_vec()
            });
            let writer = open(OpenFlags::WRONLY).unwrap();
            writer.write(b"met").unwrap();
            drop(writer);
            assert_eq!(reader.join().unwrap(), b"met");
        });
    });
    // Without a writer ever: empty, not hung up.
    let lone = open(OpenFlags::RDONLY | NONBLOCK).unwrap();
    assert!(!lone.poll(None).contains(Events::READABLE));
    assert_eq!(lone.read(&mut [0; 4]), Ok(0));
}

/// Polls files for the same events; returns what was found of each.
fn poll_all<const N: usize>(
    files: [&File; N],
    wanted: Events,
    deadline: Option<Deadline>,
) -> [Events; N] {
    let mut found = [Events::empty(); N];
    let ready = poll(deadline, |pass| {
        found = files.map(|file| pass.poll(file, wanted | Events::ALWAYS));
    });
    assert_eq!(ready, Ok(found.iter().filter(|e| !e.is_empty()).count()));
    found
}

#[test]
fn poll_waits_for_any() {
    let (r1, w1) = pipe(OpenFlags::empty());
    let (r2, _w2) = pipe(OpenFlags::empty());
    let nothing = [Events::empty(); 2];
    let look = |deadline| poll_all([&r1, &r2], Events::IN, deadline);
    assert_eq!(look(Some(Deadline::PASSED)), nothing);
    let soon = Deadline::after_ns(20_000_000);
    assert_eq!(look(Some(soon)), nothing);
    assert!(soon.has_passed());
    let sender = thread::spawn(move || {
        thread::sleep(Duration::from_millis(30));
        w1.write(b"x").unwrap();
        w1
    });
    assert_eq!(look(None), [Events::IN, Events::empty()]);
    drop(sender.join().unwrap());
    r1.read(&mut [0; 4]).unwrap();
    // Hang-up is told though nobody asked.
    assert_eq!(poll_all([&r1], Events::empty(), None), [Events::HUP]);
}

#[test]
fn event_counters() {
    let counter = eventfd(3, false, NONBLOCK);
    let mut buf = [0; 8];
    assert_eq!(counter.read(&mut buf), Ok(8));
    assert_eq!(u64::from_ne_bytes(buf), 3);
    assert_eq!(counter.read(&mut buf), Err(Errno::EAGAIN));
    assert_eq!(counter.read(&mut buf[..4]), Err(Errno::EINVAL));
    counter.write(&(u64::MAX - 1).to_ne_bytes()).unwrap();
    assert_eq!(counter.write(&1u64.to_ne_bytes()), Err(Errno::EAGAIN));
    assert_eq!(counter.write(&u64::MAX.to_ne_bytes()), Err(Errno::EINVAL));
    let semaphore = eventfd(2, true, NONBLOCK);
    for _ in 0..2 {
        semaphore.read(&mut buf).unwrap();
        assert_eq!(u64::from_ne_bytes(buf), 1);
    }
    assert_eq!(semaphore.read(&mut buf), Err(Errno::EAGAIN));
}

const IN: u32 = 1;
const OUT: u32 = 4;
const ET: u32 = 1 << 31;
const ONESHOT: u32 = 1 << 30;

fn wait(set: &EpollFile, max: usize, deadline: Option<Deadline>) -> Vec<ReadyEvent> {
    let mut found = Vec::new();
    let n = set.instance().wait(max, deadline, |at, ready| {
        assert_eq!(at, found.len());
        found.push(ready);
        Ok(())
    });
    assert_eq!(n, Ok(found.len()));
    found
}

fn now(set: &EpollFile) -> Vec<ReadyEvent> {
    wait(set, 10, Some(Deadline::PASSED))
}

#[test]
fn epoll_level_edge_and_one_shot() {
    let file = epoll(OpenFlags::empty());
    let set = file.ops_as::<EpollFile>().unwrap();
    let (r, w) = pipe(OpenFlags::empty());
    let interest = |events| Interest { events, data: 42 };
    set.instance().add(5, &r, interest(IN)).unwrap();
    assert_eq!(set.instance().add(5, &r, interest(IN)), Err(Errno::EEXIST));
    set.instance().add(6, &r, interest(IN)).unwrap();
    set.instance().remove(6, &r).unwrap();
    assert!(now(set).is_empty());
    w.write(b"ab").unwrap();
    let ready = [ReadyEvent {
        events: IN,
        data: 42,
    }];
    // Level: as long as it is so.
    assert_eq!(now(set), ready);
    assert_eq!(now(set), ready);
    assert!(file.poll(None).contains(Events::READABLE));
    r.read(&mut [0; 8]).unwrap();
    assert!(now(set).is_empty() && file.poll(None).is_empty());
    // Edge: once per change.
    set.instance().modify(5, &r, interest(IN | ET)).unwrap();
    w.write(b"a").unwrap();
    assert_eq!(now(set), ready);
    assert!(now(set).is_empty());
    w.write(b"b").unwrap();
    assert_eq!(now(set), ready);
    // One shot: until armed again.
    set.instance()
        .modify(5, &r, interest(IN | ONESHOT))
        .unwrap();
    assert_eq!(now(set), ready);
    w.write(b"c").unwrap();
    assert!(now(set).is_empty());
    set.instance()
        .modify(5, &r, interest(IN | ONESHOT))
        .unwrap();
    assert_eq!(now(set), ready);
    // A closed file leaves by itself.
    set.instance().modify(5, &r, interest(IN)).unwrap();
    drop(r);
    assert!(now(set).is_empty());
}

#[test]
fn epoll_hears_of_what_was_asked_for_later() {
    let file = epoll(OpenFlags::empty());
    let set = file.ops_as::<EpollFile>().unwrap();
    let counter = eventfd(0, false, NONBLOCK);
    let full = (u64::MAX - 1).to_ne_bytes();
    set.instance()
        .add(
            3,
            &counter,
            Interest {
                events: IN | ET,
                data: 1,
            },
        )
        .unwrap();
    counter.write(&full).unwrap();
    assert_eq!(
        now(set),
        [ReadyEvent {
            events: IN,
            data: 1
        }]
    );
    set.instance()
        .modify(
            3,
            &counter,
            Interest {
                events: OUT | ET,
                data: 2,
            },
        )
        .unwrap();
    assert!(now(set).is_empty(), "it is full");
    counter.read(&mut [0; 8]).unwrap();
    assert_eq!(
        now(set),
        [ReadyEvent {
            events: OUT,
            data: 2
        }]
    );
    // Both were asked for by now; one is wanted again, and told once.
    set.instance()
        .modify(
            3,
            &counter,
            Interest {
                events: IN | ET,
                data: 3,
            },
        )
        .unwrap();
    counter.write(&full).unwrap();
    assert_eq!(
        now(set),
        [ReadyEvent {
            events: IN,
            data: 3
        }]
    );
    assert!(now(set).is_empty());
}

#[test]
fn epoll_wakes_and_nests() {
    let inner_file = epoll(OpenFlags::empty());
    let outer_file = epoll(OpenFlags::empty());
    let (inner, outer) = (
        inner_file.ops_as::<EpollFile>().unwrap(),
        outer_file.ops_as::<EpollFile>().unwrap(),
    );
    let counter = eventfd(0, false, OpenFlags::empty());
    inner
        .instance()
        .add(
            3,
            &counter,
            Interest {
                events: IN,
                data: 1,
            },
        )
        .unwrap();
    outer
        .instance()
        .add(
            4,
            &inner_file,
            Interest {
                events: IN,
                data: 2,
            },
        )
        .unwrap();
    assert_eq!(
        inner.instance().add(
            5,
            &outer_file,
            Interest {
                events: IN,
                data: 3
            }
        ),
        Err(Errno::ELOOP)
    );
    assert_eq!(
        inner.instance().add(
            5,
            &inner_file,
            Interest {
                events: IN,
                data: 3
            }
        ),
        Err(Errno::ELOOP)
    );
    let writer = counter.clone();
    let sender = thread::spawn(move || {
        thread::sleep(Duration::from_millis(20));
        writer.write(&1u64.to_ne_bytes()).unwrap();
    });
    assert_eq!(
        wait(outer, 4, None),
        [ReadyEvent {
            events: IN,
            data: 2
        }]
    );
    assert_eq!(
        wait(inner, 4, None),
        [ReadyEvent {
            events: IN,
            data: 1
        }]
    );
    sender.join().unwrap();
}

#[test]
fn epoll_loses_no_wake_up() {
    let file = epoll(OpenFlags::empty());
    let set = file.ops_as::<EpollFile>().unwrap();
    let counter = eventfd(0, false, NONBLOCK);
    set.instance()
        .add(
            3,
            &counter,
            Interest {
                events: IN | ET,
                data: 0,
            },
        )
        .unwrap();
    let writer = counter.clone();
    let sender = thread::spawn(move || {
        for _ in 0..20_000 {
            writer.write(&1u64.to_ne_bytes()).unwrap();
        }
    });
    let mut sum = 0;
    while sum < 20_000 {
        let deadline = Deadline::after_ns(10_000_000_000);
        assert!(
            !wait(set, 1, Some(deadline)).is_empty(),
            "a wake-up was lost at {sum}"
        );
        let mut buf = [0; 8];
        while counter.read(&mut buf).is_ok() {
            sum += u64::from_ne_bytes(buf);
        }
    }
    sender.join().unwrap();
}

fn end(file: &Arc<File>) -> &PipeEnd {
    file.ops_as::<PipeEnd>().unwrap()
}

#[test]
fn what_the_target_does_not_take_stays_in_the_pipe() {
    let (reader, writer) = pipe(OpenFlags::empty());
    writer.write(b"abcdef").unwrap();
    assert_eq!(
        end(&reader).drain(100, Blocking::Fail, |bytes| Ok(bytes.len() - 2)),
        Ok(4)
    );
    assert_eq!(
        end(&reader).drain(100, Blocking::Fail, |_| Err(Errno::EIO)),
        Err(Errno::EIO)
    );
    let mut buf = [0; 10];
    assert_eq!(reader.read(&mut buf), Ok(2));
    assert_eq!(&buf[..2], b"ef");
    assert_eq!(
        end(&reader).drain(100, Blocking::Fail, |_| unreachable!()),
        Err(Errno::EAGAIN)
    );
}

#[test]
fn room_that_is_kept_is_nobody_elses() {
    let (reader, writer) = pipe(NONBLOCK);
    writer.write(&vec![1; CAPACITY - 100]).unwrap();
    let filled = end(&writer).fill(80, Blocking::Fail, |buf| {
        assert_eq!(buf.len(), 80);
        assert_eq!(writer.write(&[2; 50]), Err(Errno::EAGAIN));
        assert_eq!(writer.write(&[2; 20]), Ok(20));
        buf.fill(3);
        Ok(30)
    });
    assert_eq!(filled, Ok(30));
    assert_eq!(writer.write(&[4; 50]), Ok(50));
    assert_eq!(
        end(&writer).fill(1, Blocking::Fail, |_| unreachable!()),
        Err(Errno::EAGAIN)
    );
    drop(reader);
    assert_eq!(
        end(&writer).fill(1, Blocking::Fail, |_| unreachable!()),
        Err(Errno::EPIPE)
    );
}

#[test]
fn pipes_move_and_copy_into_each_other() {
    let (reader, writer) = pipe(NONBLOCK);
    let (reader2, writer2) = pipe(NONBLOCK);
    writer.write(b"abcdef").unwrap();
    assert_eq!(
        end(&reader).copy_to(end(&writer2), 4, Blocking::Fail),
        Ok(4)
    );
    assert_eq!(
        end(&reader).move_to(end(&writer2), 100, Blocking::Fail),
        Ok(6)
    );
    let mut buf = [0; 20];
    assert_eq!(reader2.read(&mut buf), Ok(10));
    assert_eq!(&buf[..10], b"abcdabcdef");
    assert_eq!(
        end(&reader).move_to(end(&writer2), 1, Blocking::Fail),
        Err(Errno::EAGAIN)
    );
    drop(writer);
    assert_eq!(
        end(&reader).copy_to(end(&writer2), 1, Blocking::Fail),
        Ok(0)
    );
    assert!(
        end(&reader).is_of_same_pipe(end(&reader)) && !end(&reader).is_of_same_pipe(end(&reader2))
    );
}

#[test]
fn a_named_pipe_that_all_have_left_is_empty_again() {
    let fs = FsStruct::new(mount::Namespace::new(
        RamFs::new("tmpfs", None, 0o755),
        "none",
    ));
    let cred = Cred::root();
    ops::create_node(
        &fs.lookup_context(&cred),
        b"/fifo",
        NewInodeKind::Fifo,
        0o600,
    )
    .unwrap();
    let open = |flags| ops::open(&fs.lookup_context(&cred), b"/fifo", flags | NONBLOCK, 0).unwrap();
    // Whichever side goes last.
    for writer_last in [true, false] {
        let (reader, writer) = (open(OpenFlags::RDONLY), open(OpenFlags::WRONLY));
        assert!(
            !reader.poll(None).contains(Events::HUP),
            "there is a writer"
        );
        assert_eq!(writer.write(b"left"), Ok(4));
        if writer_last {
            drop(reader);
            drop(writer);
        } else {
            drop(writer);
            drop(reader);
        }
        let (reader, _writer) = (open(OpenFlags::RDONLY), open(OpenFlags::WRONLY));
        assert_eq!(reader.read(&mut [0; 8]), Err(Errno::EAGAIN));
    }
    // One that is left with a reader keeps what is in it, and says that nobody writes.
    let (reader, writer) = (open(OpenFlags::RDONLY), open(OpenFlags::WRONLY));
    writer.write(b"kept").unwrap();
    drop(writer);
    assert!(reader.poll(None).contains(Events::HUP | Events::READABLE));
    assert_eq!(
        (reader.read(&mut [0; 8]), reader.read(&mut [0; 8])),
        (Ok(4), Ok(0))
    );
}

#[test]
fn a_single_byte_goes_through_like_many() {
    let (reader, writer) = pipe(NONBLOCK);
    writer.write(b"a").unwrap();
    let mut got = Vec::new();
    let drained = end(&reader).drain(10, Blocking::Fail, |bytes| {
        got.extend_from_slice(bytes);
        Ok(bytes.len())
    });
    assert_eq!((drained, got.as_slice()), (Ok(1), &b"a"[..]));
    drop(writer);
    assert_eq!(
        end(&reader).drain(10, Blocking::Fail, |_| unreachable!()),
        Ok(0)
    );
}

#[test]
fn a_full_counter_takes_more_when_it_was_read() {
    let counter = eventfd(0, false, OpenFlags::empty());
    counter.write(&(u64::MAX - 1).to_ne_bytes()).unwrap();
    assert!(!counter.poll(None).contains(Events::OUT));
    let theirs = counter.clone();
    let writer = thread::spawn(move || theirs.write(&5u64.to_ne_bytes()));
    thread::sleep(Duration::from_millis(10));
    let mut buf = [0; 8];
    assert_eq!(
        (counter.read(&mut buf), u64::from_ne_bytes(buf)),
        (Ok(8), u64::MAX - 1)
    );
    assert_eq!(writer.join().unwrap(), Ok(8));
    assert_eq!(
        (counter.read(&mut buf), u64::from_ne_bytes(buf)),
        (Ok(8), 5)
    );
}

#[test]
fn what_has_no_end_is_appended_to_as_it_is_written() {
    let (reader, writer) = pipe(NONBLOCK);
    assert_eq!(writer.append(b"abc", true), Ok(3));
    let mut buf = [0; 8];
    assert_eq!((reader.read(&mut buf), &buf[..3]), (Ok(3), &b"abc"[..]));
    let file = File::from_inode(RamFs::memfd("end", 0o600, 0), OpenFlags::RDWR, None);
    file.write(b"0123").unwrap();
    assert_eq!(
        (
            file.seek(fs::Whence::Set, 1),
            file.append(b"45", false),
            file.seek(fs::Whence::Current, 0)
        ),
        (Ok(1), Ok(2), Ok(1))
    );
    assert_eq!(
        (
            file.append(b"6", true),
            file.seek(fs::Whence::Current, 0),
            file.append(b"", true)
        ),
        (Ok(1), Ok(7), Ok(0))
    );
    assert_eq!(reader.append(b"x", false), Err(Errno::EBADF));
}
