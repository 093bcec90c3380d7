//! The driver against a controller of ours in a thread of its own, which does what it should, or
//! what nobody should.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::vec::Vec;

use nvme::model::{Blocks, Lie, Model};
use task::Event;
use virtqueue::Words;
use vm::Page;

use super::*;
use crate::test_memory::{self, CPU, LentPage, Liar, Shared as Memory, filled, first_byte};

const DISK: u64 = 1 << 20;
const RINGS: usize = 1 << 17;

#[derive(Default)]
struct Ways {
    liar: Liar,
    is_over: AtomicBool,
}

struct Bus {
    model: Mutex<Model<Memory>>,
    rung: Condvar,
    ways: Ways,
    events: Vec<Event>,
}

impl Bus {
    fn model(&self) -> MutexGuard<'_, Model<Memory>> {
        self.model.lock().unwrap()
    }

    /// Does what the controller is told of, until the test is over.
    fn serve(&self) {
        let mut model = self.model();
        let mut told = 0;
        while !self.ways.is_over.load(Ordering::Relaxed) {
            if self.ways.liar.is_time(model.starts as usize) {
                let all = [Lie::Twice, Lie::Id(0x3f), Lie::Queue(0), Lie::Id(0xffff)];
                model.lie = Some(all[told % all.len()]);
                told += 1;
            }
            // A few at a time, so that others come in between.
            let messages = model.serve(3).expect("it reaches what it was told of");
            for (n, event) in self.events.iter().enumerate() {
                if messages & 1 << n != 0 {
                    event.set();
                }
            }
            if messages == 0 {
                model = self.rung.wait(model).unwrap();
            }
        }
    }
}

#[derive(Clone)]
struct Way(Arc<Bus>);

impl Function for Way {
    fn bytes(&self) -> usize {
        Model::<Memory>::bytes()
    }

    fn read(&self, at: usize) -> u32 {
        self.0.model().read(at)
    }

    fn write(&self, at: usize, value: u32) {
        self.0.model().write(at, value);
        self.0.rung.notify_all();
    }

    fn let_reach(&self) {}

    fn force_reset(&self) -> bool {
        self.0.model().force_reset()
    }

    fn pause(&self, _: u32) {
        std::thread::yield_now();
    }
}

struct Line(Arc<Bus>, usize);

impl Interrupt for Line {
    fn event(&self) -> &Event {
        &self.0.events[self.1]
    }
}

struct Host;

impl Parts for Host {
    type Function = Way;
    type Memory = Memory;
    type Interrupt = Line;
    type Lent = LentPage;

    fn cpu() -> usize {
        CPU.get()
    }
}

/// A controller that works, and its driver.
struct Machine {
    bus: Arc<Bus>,
    disks: Vec<Arc<NvmeDisk<Host>>>,
    thread: Option<JoinHandle<()>>,
}

impl Machine {
    fn new() -> Self {
        let memory = Memory(Arc::new(Words::new(RINGS).unwrap()));
        let blocks = |bits: u8| Blocks::zeroed(bits, DISK as usize >> bits);
        let mut model = Model::new(memory.clone(), vec![blocks(9), blocks(12)], 2, 6);
        // Parts of two pages.
        model.transfer_bits = 1;
        let bus = Arc::new(Bus {
            model: Mutex::new(model),
            rung: Condvar::new(),
            ways: Ways::default(),
            events: (0..2).map(|_| Event::new()).collect(),
        });
        let theirs = bus.clone();
        let thread = std::thread::spawn(move || theirs.serve());
        let lines = (0..2).map(|n| Line(bus.clone(), n)).collect();
        let mut next = 0;
        let room = |bytes: u64| {
            let place = Address::new(next);
            next += bytes.next_multiple_of(4096);
            (next <= RINGS as u64).then(|| (memory.clone(), place))
        };
        let disks = start::<Host>("nvme0".into(), Way(bus.clone()), lines, room).unwrap();
        Self {
            bus,
            disks: disks.into_iter().map(Arc::new).collect(),
            thread: Some(thread),
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.disks.clear();
        let model = self.bus.model();
        self.bus.ways.is_over.store(true, Ordering::Relaxed);
        drop(model);
        self.bus.rung.notify_all();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

/// Two threads for each namespace, on both queues.
fn hammer(machine: &Machine, rounds: usize) {
    let part = |n: usize| {
        let (disk, half) = (machine.disks[n % 2].clone(), n / 2);
        (disk, half, half as u64 * (DISK / 2))
    };
    test_memory::hammer((0..4).map(part), rounds, &machine.bus.ways.liar);
}

#[test]
fn several_threads_have_what_they_wrote() {
    hammer(&Machine::new(), 60);
}

#[test]
fn a_controller_that_lies_is_reset_and_nothing_is_lost() {
    let machine = Machine::new();
    machine.bus.ways.liar.set(true);
    hammer(&machine, 60);
    let starts = machine.bus.model().starts;
    assert!(starts > 2, "it was started {starts} times");
}

fn read(disk: &NvmeDisk<Host>, pages: &[Page]) -> Result<(), Errno> {
    disk.execute(Operation::Read(Transfer {
        offset: 0,
        len: 4096 * pages.len(),
        pages,
    }))
}

#[test]
fn a_controller_that_does_not_stop_keeps_its_requests() {
    let machine = Machine::new();
    machine.bus.model().lie = Some(Lie::Queue(7));
    machine.bus.model().deaf = 2;
    let disk = machine.disks[0].clone();
    let reader = std::thread::spawn(move || {
        let pages = filled(1, 1);
        (read(&disk, &pages), first_byte(&pages[0]))
    });
    assert_eq!(reader.join().unwrap(), (Ok(()), 0));
    assert_eq!(machine.bus.model().deaf, 0);
}

#[test]
fn a_controller_that_does_not_come_back_ends_everything() {
    let machine = Machine::new();
    machine.bus.model().lie = Some(Lie::Queue(9));
    machine.bus.model().is_lame = true;
    let pages = filled(3, 1);
    for disk in &machine.disks {
        assert_eq!(read(disk, &pages), Err(Errno::EIO));
        assert_eq!(disk.execute(Operation::Flush), Err(Errno::EIO));
    }
    assert_eq!(pages[0].refs(), 1, "the page was given back");
}

#[test]
fn each_request_has_its_own_outcome() {
    let machine = Machine::new();
    machine.bus.model().namespaces[0].bad = Some(5);
    let pages = filled(2, 1);
    let read = |offset| {
        Request::new(Operation::Read(Transfer {
            offset,
            len: 8192,
            pages: &pages,
        }))
    };
    let range = (0, 8192);
    let (offset, len) = range;
    let mut batch = [
        read(0),
        read(4096),
        read(DISK - 4096),
        read(100),
        Request::new(Operation::WriteZeroes { offset, len }),
        Request::new(Operation::Discard { offset: 4096, len }),
        Request::new(Operation::Flush),
    ];
    machine.disks[0].submit(&mut batch);
    let outcomes: Vec<_> = batch.iter().map(|request| request.outcome).collect();
    let (io, invalid) = (Err(Errno::EIO), Err(Errno::EINVAL));
    assert_eq!(outcomes, [io, Ok(()), io, invalid, io, Ok(()), Ok(())]);
}

#[test]
fn a_long_range_is_zeroed_in_parts_and_only_it() {
    let machine = Machine::new();
    for disk in [0, 1] {
        machine.bus.model().namespaces[disk].data.fill(7);
        let zeroes = Operation::WriteZeroes {
            offset: 4096,
            len: DISK - 8192,
        };
        assert_eq!(machine.disks[disk].execute(zeroes), Ok(()));
        let data = machine.bus.model().namespaces[disk].data.clone();
        let (zeroed, kept) = data.split_at(DISK as usize - 4096);
        assert!(zeroed[4096..].iter().all(|byte| *byte == 0));
        assert!(zeroed[..4096].iter().chain(kept).all(|byte| *byte == 7));
    }
}

#[test]
fn what_was_flushed_is_there_after_a_power_cut() {
    let machine = Machine::new();
    let disk = &machine.disks[1];
    let write = |byte| {
        let pages = filled(1, byte);
        disk.execute(Operation::Write(Transfer {
            offset: 0,
            len: 4096,
            pages: &pages,
        }))
    };
    let first = || machine.bus.model().namespaces[1].data[0];
    assert_eq!(write(1), Ok(()));
    assert_eq!(disk.execute(Operation::Flush), Ok(()));
    machine.bus.model().namespaces[1].cut();
    assert_eq!(first(), 1);
    assert_eq!(write(2), Ok(()));
    machine.bus.model().namespaces[1].cut();
    assert_eq!(first(), 1);
}
