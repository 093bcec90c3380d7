//! A stream from an instance to its readers under all schedules with a few pre-emptions
//! (`docs/locks.md`). The ring, the log and what moves bytes from one to the other are the real
//! ones; the instance's end and the doorbells stand in for `link` and interrupts.

use std::sync::Arc;
use std::sync::atomic::AtomicU8;
use std::vec;
use std::vec::Vec;

use abi::window::RingHeader;
use fs::poll::PollQueue;
use ring::{Consumer, Producer};
use task::explore::{Model, spawn};
use task::sync::{AtomicBool, Ordering};
use task::{Event, Mutex};

use crate::stream_log::{self, CAPACITY, DrainExtent, StreamLog};

/// Capacity of the ring in bytes.
const RING: usize = 8;

struct Stream {
    header: RingHeader,
    area: Vec<AtomicU8>,
    log: Mutex<StreamLog>,
    /// The supervisor's: what the instance's doorbell and the readers signal.
    work: Event,
    grown: PollQueue,
    /// The instance's: what the supervisor's doorbell notifies.
    room: PollQueue,
    done: AtomicBool,
}

impl Stream {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            header: RingHeader::new(),
            area: (0..RING).map(|_| AtomicU8::new(0)).collect(),
            log: Mutex::new(StreamLog::new().unwrap()),
            work: Event::new(),
            grown: PollQueue::new(),
            room: PollQueue::new(),
            done: AtomicBool::new(false),
        })
    }

    /// Writes like the instance's side, `link`.
    fn write(&self, data: &[u8]) {
        let mut ring = Producer::new(&self.header, &self.area);
        let mut done = 0;
        while done < data.len() {
            let sent = ring.push(&data[done..]);
            done += sent;
            if sent > 0 && ring.take_wanted() {
                self.work.set();
            }
            if sent == 0 {
                self.room.wait(|| (ring.free() > 0).then_some(())).unwrap();
            }
        }
    }

    /// Serves the stream like the supervisor's thread, until all has been read.
    fn service(&self) {
        let mut position = 0;
        while !self.done.load(Ordering::SeqCst) {
            let mut consumer = Consumer::resume(&self.header, &self.area, position);
            let drained = stream_log::drain(RING, &self.log, DrainExtent::LogRoom, |buf| {
                stream_log::pop(&mut consumer, buf)
            });
            position = consumer.position();
            if drained.made_room {
                self.room.notify();
            }
            if drained.grown {
                self.grown.notify();
            }
            if drained.more {
                self.work.set();
            }
            self.work.wait();
        }
    }

    /// Reads so many bytes from a position on, in pieces of at most so many.
    fn read(&self, mut position: u64, key: Option<u64>, piece: usize, bytes: usize) -> Vec<u8> {
        let mut got = Vec::new();
        let mut buf = vec![0; piece];
        while got.len() < bytes {
            let count = self.grown.wait(|| {
                let (count, made_room) =
                    self.log
                        .lock()
                        .read_with_backpressure(&mut position, key, &mut buf);
                if made_room {
                    self.work.set();
                }
                (count > 0).then_some(count)
            });
            got.extend_from_slice(&buf[..count.unwrap()]);
        }
        got
    }

    fn attach(&self) -> (u64, Option<u64>) {
        let mut log = self.log.lock();
        let position = log.start();
        let key = log.attach(position);
        (position, Some(key))
    }

    fn detach(&self, key: Option<u64>) {
        self.log.lock().detach(key.unwrap());
        self.work.set();
    }

    fn end(&self) {
        self.done.store(true, Ordering::SeqCst);
        self.work.set();
    }
}

const DATA: &[u8] = b"more than twice what a ring of eight holds";

#[test]
fn every_byte_reaches_the_reader_whoever_waits_for_whom() {
    Model::new().preemptions(1).check(|| {
        let stream = Stream::new();
        let (theirs, nodes) = (stream.clone(), stream.clone());
        let threads = [
            spawn("instance", move || theirs.write(&DATA[..18])),
            spawn("node", move || nodes.service()),
        ];
        assert_eq!(stream.read(0, None, 20, 18), &DATA[..18]);
        stream.end();
        threads.into_iter().for_each(|thread| thread.join());
    });
}

#[test]
fn a_slow_reader_with_pressure_loses_nothing_and_its_reading_lets_the_instance_go_on() {
    Model::new().preemptions(2).check(|| {
        let stream = Stream::new();
        stream.log.lock().push(&vec![0; CAPACITY - 3]);
        let (position, key) = stream.attach();
        let (theirs, nodes) = (stream.clone(), stream.clone());
        let writer = spawn("instance", move || theirs.write(&DATA[..14]));
        let node = spawn("node", move || nodes.service());
        // There is room for as much as has been read.
        assert_eq!(stream.read(position, key, 4, 12), [0; 12]);
        writer.join();
        assert!(
            stream.log.lock().start() <= position + 12,
            "what was not read was dropped"
        );
        assert_eq!(stream.read(CAPACITY as u64 - 3, None, 20, 14), &DATA[..14]);
        stream.end();
        node.join();
    });
}

#[test]
fn a_reader_with_pressure_that_dies_lets_the_instance_go_on() {
    Model::new().preemptions(2).check(|| {
        let stream = Stream::new();
        stream.log.lock().push(&vec![0; CAPACITY]);
        let (_, key) = stream.attach();
        let (theirs, nodes) = (stream.clone(), stream.clone());
        let writer = spawn("instance", move || theirs.write(&DATA[..10]));
        let node = spawn("node", move || nodes.service());
        stream.detach(key);
        writer.join();
        assert_eq!(stream.read(CAPACITY as u64, None, 16, 10), &DATA[..10]);
        stream.end();
        node.join();
    });
}

#[test]
fn of_two_readers_with_pressure_the_slower_one_decides() {
    Model::new().preemptions(1).check(|| {
        let stream = Stream::new();
        stream.log.lock().push(&vec![0; CAPACITY]);
        let readers = [(); 2].map(|()| {
            let (position, key) = stream.attach();
            let theirs = stream.clone();
            spawn("reader", move || {
                assert_eq!(theirs.read(position, key, 5, 10), [0; 10]);
            })
        });
        let nodes = stream.clone();
        let node = spawn("node", move || nodes.service());
        stream.write(&DATA[..10]);
        readers.into_iter().for_each(|reader| reader.join());
        assert_eq!(stream.read(CAPACITY as u64, None, 16, 10), &DATA[..10]);
        stream.end();
        node.join();
    });
}
