//! Threads that wait for a disk's queue under all schedules with a few pre-emptions
//! (`docs/locks.md`): each request ends, whoever leads, and in however few parts at a time.

use std::sync::Arc;

use abi::errno::Errno;
use block::{BlockDevice, Limits, Operation, Request};
use drivers::lanes::{Broken, Ended, Hardware, Lanes, NotOffered, Stuck, Tag};
use drivers::virtio_parts::Interrupt;
use task::explore::{Handle, Model, spawn};
use task::{Event, Mutex};

/// Bytes of a part.
const PART: u64 = 512;

/// A device that sends one interrupt each time that it is asked for one.
#[derive(Default)]
struct Device {
    offered: Mutex<Vec<Tag>>,
    over: Mutex<Vec<Tag>>,
    is_armed: Mutex<bool>,
    bell: Event,
    interrupt: Event,
    /// A thread has the ends of its requests.
    returned: Event,
}

impl Device {
    /// Does so many parts, the last one that was offered first.
    fn serve(&self, parts: usize) {
        for _ in 0..parts {
            self.end(self.next());
        }
    }

    /// Does so many parts, the one that it has first when whose the others are have returned.
    fn keep_first(&self, parts: usize) {
        let first = self.next();
        for _ in 1..parts {
            self.end(self.next());
            self.returned.wait();
        }
        self.end(first);
    }

    fn next(&self) -> Tag {
        loop {
            let offered = self.offered.lock().pop();
            match offered {
                Some(tag) => break tag,
                None => self.bell.wait(),
            }
        }
    }

    fn end(&self, tag: Tag) {
        self.over.lock().push(tag);
        if core::mem::take(&mut *self.is_armed.lock()) {
            self.interrupt.set();
        }
    }
}

struct Line(Arc<Device>);

impl Interrupt for Line {
    fn event(&self) -> &Event {
        &self.0.interrupt
    }
}

/// The device as its driver has it, with room for so many parts.
struct Driver {
    device: Arc<Device>,
    room: usize,
}

impl Hardware for Driver {
    /// Parts that the device has.
    type Queue = usize;
    type Target = ();
    type Rule = &'static str;

    fn name(&self) -> &str {
        "disk"
    }

    fn cpu() -> usize {
        0
    }

    fn offer(
        &self,
        queue: &mut usize,
        (): &(),
        _: &Operation<'_>,
        _: u64,
        tag: Tag,
    ) -> Result<u64, NotOffered> {
        if *queue == self.room {
            return Err(NotOffered::Full);
        }
        *queue += 1;
        self.device.offered.lock().push(tag);
        Ok(PART)
    }

    fn notify(&self, _: &mut usize) -> Result<(), Broken> {
        self.device.bell.set();
        Ok(())
    }

    fn take(&self, queue: &mut usize) -> Result<Option<Ended>, Broken> {
        let tag = self.device.over.lock().pop();
        *queue -= usize::from(tag.is_some());
        Ok(tag.map(|tag| Ended {
            tag,
            outcome: Ok(()),
        }))
    }

    fn arm(&self, _: &mut usize) -> Result<bool, Broken> {
        *self.device.is_armed.lock() = true;
        Ok(!self.device.over.lock().is_empty())
    }

    fn late(&self, _: &mut usize, _: Tag, _: u8) -> Result<(), Broken> {
        Ok(())
    }

    fn broken(_: &usize) -> Option<&'static str> {
        None
    }

    fn in_flight(queue: &usize) -> usize {
        *queue
    }

    fn needs_reset(&self) -> bool {
        false
    }

    fn forgive(_: &mut usize) {}

    fn recover(&self, _: &mut [&mut usize], _: &mut dyn FnMut(Ended)) -> Result<(), Stuck> {
        Ok(())
    }

    fn end(&self, _: &mut [&mut usize], _: &mut dyn FnMut(Ended)) -> Result<(), Stuck> {
        Ok(())
    }
}

struct Disk(Lanes<Driver, Line>);

impl BlockDevice for Disk {
    fn capacity(&self) -> u64 {
        1 << 20
    }

    fn limits(&self) -> Limits {
        Limits::of_blocks(512)
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn submit(&self, batch: &mut [Request<'_>]) {
        self.0.submit(self, &(), batch);
    }
}

/// Has threads submit requests of so many parts each, to a device with room for so many that does
/// them in some way.
fn submit_beside(threads: &[&'static [u64]], room: usize, serve: fn(&Device, usize)) {
    let device = Arc::<Device>::default();
    let driver = Driver {
        device: device.clone(),
        room,
    };
    let lines = vec![Line(device.clone())];
    let disk = Arc::new(Disk(Lanes::new(driver, vec![0], lines).unwrap()));
    let all: u64 = threads.iter().flat_map(|parts| parts.iter()).sum();
    let server = spawn("device", move || serve(&device, all as usize));
    let submit = |disk: &Disk, parts: &[u64]| {
        let request = |&parts: &u64| {
            let (offset, len) = (0, parts * PART);
            Request::new(Operation::Discard { offset, len })
        };
        let mut batch: Vec<_> = parts.iter().map(request).collect();
        disk.submit(&mut batch);
        disk.0.hardware().device.returned.set();
        let outcomes = batch.iter().map(|request| request.outcome);
        assert!(outcomes.eq(parts.iter().map(|_| Ok::<(), Errno>(()))));
    };
    let (own, others) = threads.split_first().unwrap();
    let others: Vec<Handle> = others
        .iter()
        .map(|&parts| {
            let disk = disk.clone();
            spawn("other", move || submit(&disk, parts))
        })
        .collect();
    submit(&disk, own);
    others.into_iter().for_each(Handle::join);
    server.join();
}

#[test]
fn each_of_two_that_wait_has_its_end() {
    Model::new()
        .preemptions(2)
        .check(|| submit_beside(&[&[1], &[1]], 8, Device::serve));
}

#[test]
fn who_leads_and_goes_leaves_it_to_another_one() {
    Model::new()
        .preemptions(0)
        .random(1000)
        .check(|| submit_beside(&[&[1], &[1], &[1]], 8, Device::serve));
}

#[test]
fn a_batch_and_a_request_wait_beside_each_other() {
    Model::new()
        .preemptions(1)
        .check(|| submit_beside(&[&[1, 1], &[1]], 8, Device::serve));
}

#[test]
fn who_finds_no_room_is_woken_when_there_is_some() {
    Model::new()
        .preemptions(0)
        .random(1000)
        .check(|| submit_beside(&[&[2], &[1]], 1, Device::serve));
}

#[test]
fn who_has_an_end_returns_while_the_leader_waits() {
    Model::new()
        .preemptions(1)
        .check(|| submit_beside(&[&[1], &[1]], 8, Device::keep_first));
}

#[test]
fn who_wants_room_has_it_while_the_leader_waits() {
    Model::new()
        .preemptions(0)
        .random(1000)
        .check(|| submit_beside(&[&[1], &[1], &[1]], 2, Device::keep_first));
}
