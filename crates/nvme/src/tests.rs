//! The driver's half against a controller of ours.

mod hostile;
mod passed;
mod recovery;
mod secondaries;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::AtomicU16;
use std::vec::Vec;

use proptest::prelude::*;
use virtqueue::{Address, Memory, Words};

use crate::command::{Place, admin, nvm};
use crate::model::{Blocks, Lie, Model};
use crate::registers::at;
use crate::*;

const MEMORY: u64 = 512 << 10;
/// Address from which on pages of data are handed out.
const DATA: u64 = 128 << 10;
const BLOCKS: u64 = 2048;

type List = Rc<[AtomicU16]>;
type M = Words<List>;
type Q = Queue<M, u32>;

/// The way to a controller that works while somebody looks.
#[derive(Clone)]
struct Bus {
    memory: Rc<M>,
    list: List,
    model: Rc<RefCell<Model<M>>>,
    /// Number of virtual functions, of a model that knows nothing of them.
    virtual_functions: Rc<Cell<u16>>,
    told: Rc<RefCell<Vec<Result<Secondaries, NoSecondaries>>>>,
}

impl Bus {
    fn new() -> Self {
        let list: List = (0..MEMORY / 2).map(|_| AtomicU16::new(0)).collect();
        let namespaces = vec![
            Blocks::zeroed(9, BLOCKS as usize),
            Blocks::zeroed(12, BLOCKS as usize / 8),
        ];
        let model = Model::new(Words::over(list.clone()), namespaces, 3, 8);
        Self {
            memory: Rc::new(Words::over(list.clone())),
            list,
            model: Rc::new(RefCell::new(model)),
            virtual_functions: Rc::default(),
            told: Rc::default(),
        }
    }

    fn serve(&self) -> u64 {
        let served = self.model.borrow_mut().serve(100);
        served.expect("it was told of memory that there is")
    }

    fn try_start(&self, queues: u16) -> Result<Started<Self, M, u32>, StartError> {
        let mut next = 0;
        let shape = Shape { queues, entries: 8 };
        Controller::start(self.clone(), shape, |bytes| {
            let at = Address::new(next);
            next += bytes.next_multiple_of(4096);
            (next <= DATA).then(|| (Words::over(self.list.clone()), at))
        })
    }

    fn start(&self) -> Started<Self, M, u32> {
        self.try_start(2).unwrap()
    }

    fn page(n: u64) -> Address {
        Address::new(DATA + n * 4096)
    }

    fn fill(&self, page: u64, byte: u8) {
        self.memory.write(Self::page(page), &[byte; 4096]).unwrap();
    }

    fn bytes(&self, page: u64) -> Vec<u8> {
        let mut bytes = vec![0; 4096];
        self.memory.read(Self::page(page), &mut bytes).unwrap();
        bytes
    }
}

impl Function for Bus {
    fn bytes(&self) -> usize {
        Model::<M>::bytes()
    }

    fn read(&self, at: usize) -> u32 {
        self.model.borrow().read(at)
    }

    fn write(&self, at: usize, value: u32) {
        self.model.borrow_mut().write(at, value);
    }

    fn let_reach(&self) {
        assert_eq!(self.read(at::CSTS), 0, "it has stopped");
    }

    fn force_reset(&self) -> bool {
        self.model.borrow_mut().force_reset()
    }

    fn virtual_functions(&self) -> u16 {
        let model = self.model.borrow();
        let of_model = model.secondary.as_ref();
        of_model.map_or(self.virtual_functions.get(), |all| all.shares.len() as u16)
    }

    fn put_online(&self, outcome: Result<Secondaries, NoSecondaries>) {
        self.told.borrow_mut().push(outcome);
    }

    fn pause(&self, _: u32) {
        self.serve();
    }
}

/// Everything that is over, by value.
fn outcomes(queue: &mut Q) -> Vec<(u32, Result<u32, Failure>)> {
    let mut list = Vec::new();
    while let Some(completion) = queue.take().expect("nobody broke a rule") {
        list.push((completion.value, completion.outcome));
    }
    list.sort_by_key(|(value, _)| *value);
    list
}

/// Does a command.
fn run(
    bus: &Bus,
    controller: &Controller<Bus>,
    queue: &mut Q,
    command: Command,
    data: Data<'_>,
) -> Result<u32, Failure> {
    queue.submit(command, data, 7).unwrap();
    controller.ring(queue);
    assert_eq!(bus.serve(), 1 << (queue.number() - 1));
    let list = outcomes(queue);
    assert_eq!(list.len(), 1);
    list[0].1
}

#[test]
fn commands_lie_as_the_standard_says() {
    let bytes = |command: Command| *command.bytes();
    let places = [Address::new(0x1122_3344_5566_7000), Address::new(0x8000)];
    let read = bytes(Command::read(3, 0x1_2345_6789, 8).complete(0xabcd, Place::Pages(places)));
    assert_eq!(read.len(), 64);
    assert_eq!(read[0..4], [0x02, 0, 0xcd, 0xab]);
    assert_eq!(read[4..8], [3, 0, 0, 0]);
    assert_eq!(read[24..32], 0x1122_3344_5566_7000_u64.to_le_bytes());
    assert_eq!(read[32..40], 0x8000_u64.to_le_bytes());
    assert_eq!(read[40..48], 0x1_2345_6789_u64.to_le_bytes());
    assert_eq!(
        read[48..64],
        [7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
    );
    assert_eq!(bytes(Command::write(1, 0, 1))[0], nvm::WRITE);
    assert_eq!(bytes(Command::flush(1))[0], 0);
    assert_eq!(bytes(Command::write_zeroes(1, 0, 1))[0], 8);
    let discard = bytes(Command::discard(1));
    assert_eq!(
        (discard[0], &discard[40..48]),
        (9, &[0, 0, 0, 0, 4, 0, 0, 0][..])
    );
    let queue = bytes(Command::create_completion_queue(2, 64, 5));
    assert_eq!(queue[0], admin::CREATE_COMPLETION_QUEUE);
    assert_eq!(queue[40..48], [2, 0, 63, 0, 3, 0, 5, 0]);
    let queue = bytes(Command::create_submission_queue(2, 64));
    assert_eq!(
        (queue[0], &queue[40..48]),
        (1, &[2, 0, 63, 0, 1, 0, 2, 0][..])
    );
    let abort = bytes(Command::abort(2, 0x1234));
    assert_eq!((abort[0], &abort[40..44]), (8, &[2, 0, 0x34, 0x12][..]));
    let queues = bytes(Command::set_queues(4));
    assert_eq!(
        (queues[0], &queues[40..48]),
        (9, &[7, 0, 0, 0, 3, 0, 3, 0][..])
    );
    let range = crate::command::range(0x1_0000_0001, 7);
    assert_eq!(range, [0, 0, 0, 0, 7, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0]);
}

#[test]
fn a_status_has_a_type_and_a_code() {
    let status = Status::of_word(0x2 << 9 | 0x81 << 1 | 1);
    assert_eq!((status.kind, status.code), (2, 0x81));
    // Do Not Retry, More, and a delay say nothing of what happened.
    assert_eq!(Status::of_word(0xf001), Status::SUCCESS);
    assert_eq!(Status::of_word(status.word()), status);
}

#[test]
fn capabilities_are_read() {
    let parsed = Capabilities::parse(0x0f01_07ff, 0x0040_0022).unwrap();
    assert_eq!((parsed.entries, parsed.ready_ms), (2048, 7500));
    assert_eq!(parsed.stride, 16);
    assert_eq!(parsed.bytes(0), 0x1020);
    assert_eq!(parsed.queues_within(0x1020), 0);
    assert_eq!(parsed.queues_within(0x105f), 1);
    assert_eq!(parsed.queues_within(10), 0);
    assert_eq!((parsed.tail(2), parsed.head(2)), (0x1040, 0x1050));
    let refused = |low, high| Capabilities::parse(low, high).unwrap_err();
    assert_eq!(refused(u32::MAX, u32::MAX), Unusable::Absent);
    assert_eq!(refused(0x07ff, 0x0000_0000), Unusable::CommandSet);
    assert_eq!(refused(0x07ff, 0x0001_0020), Unusable::PageSize);
    assert_eq!(refused(0, 0x20), Unusable::QueueSize);
}

#[test]
fn a_controller_tells_what_it_has() {
    let bus = Bus::new();
    let started = bus.start();
    let identity = started.controller.identity();
    assert_eq!(identity.transfer, 128 << 10);
    assert!(identity.has_cache && identity.has_discard && identity.has_write_zeroes);
    let namespaces: Vec<_> = started
        .namespaces
        .iter()
        .map(|it| (it.id, it.block(), it.capacity(), it.is_read_only))
        .collect();
    let capacity = BLOCKS * 512;
    assert_eq!(
        namespaces,
        [(1, 512, capacity, false), (2, 4096, capacity, false)]
    );
    assert_eq!(started.unusable, []);
    assert_eq!(started.queues.len(), 2);
    // No more than it has, nor than its doorbells have room for.
    assert_eq!(bus.try_start(6).unwrap().queues.len(), 3);
    bus.model.borrow_mut().queues = 7;
    assert_eq!(bus.try_start(100).unwrap().queues.len(), 7);
}

#[test]
fn each_number_of_pages_is_found_where_it_is() {
    let bus = Bus::new();
    let Started {
        controller,
        mut queues,
        ..
    } = bus.start();
    let queue = &mut queues[0];
    for count in 1..=MAX_PAGES as u64 {
        // Pages that do not lie one behind the other.
        let pages: Vec<Address> = (0..count).map(|n| Bus::page(2 * (count - n))).collect();
        for n in 1..=count {
            bus.fill(2 * n, (count + n) as u8);
        }
        let blocks = 8 * count as u16;
        let write = Command::write(1, 16, blocks);
        assert_eq!(
            run(&bus, &controller, queue, write, Data::Pages(&pages)),
            Ok(0)
        );
        let written: Vec<u8> = bus.model.borrow().namespaces[0].data[16 * 512..].to_vec();
        for n in 0..count as usize {
            let byte = (2 * count - n as u64) as u8;
            assert_eq!(written[4096 * n..4096 * (n + 1)], [byte; 4096]);
        }
        for n in 1..=count {
            bus.fill(2 * n, 0xff);
        }
        let read = Command::read(1, 16, blocks);
        assert_eq!(
            run(&bus, &controller, queue, read, Data::Pages(&pages)),
            Ok(0)
        );
        for n in 1..=count {
            assert_eq!(bus.bytes(2 * n), [(count + n) as u8; 4096]);
        }
    }
    let pages = [Bus::page(0); MAX_PAGES + 1];
    let refused = queue.submit(Command::read(1, 0, 1), Data::Pages(&pages), 9);
    assert_eq!(refused.unwrap_err().why, Refusal::TooLarge);
}

/// Pages that lie one behind the other are told by runs where that is shorter than by pages.
#[test]
fn runs_of_pages_are_found_where_they_are() {
    let bus = Bus::new();
    bus.model.borrow_mut().takes_runs = true;
    let Started {
        controller,
        mut queues,
        ..
    } = bus.start();
    let queue = &mut queues[0];
    let mut check = |order: &[u64], bytes: usize, by_runs: bool| {
        for n in 0..48 {
            bus.fill(n, n as u8 + 1);
        }
        let before = bus.model.borrow().by_runs;
        let pages: Vec<Address> = order.iter().map(|n| Bus::page(*n)).collect();
        let data = Data::Blocks {
            pages: &pages,
            bytes,
        };
        let blocks = (bytes / 512) as u16;
        let write = Command::write(1, 16, blocks);
        assert_eq!(run(&bus, &controller, queue, write, data), Ok(0));
        let written = bus.model.borrow().namespaces[0].data[16 * 512..].to_vec();
        for (place, byte) in written[..bytes].iter().enumerate() {
            assert_eq!(
                u64::from(*byte),
                order[place / 4096] + 1,
                "{order:?} at {place}"
            );
        }
        for n in 0..48 {
            bus.fill(n, 0);
        }
        assert_eq!(
            run(&bus, &controller, queue, Command::read(1, 16, blocks), data),
            Ok(0)
        );
        for (place, n) in order.iter().enumerate() {
            let len = (bytes - place * 4096).min(4096);
            assert_eq!(bus.bytes(*n)[..len], written[place * 4096..][..len]);
            assert!(
                bus.bytes(*n)[len..].iter().all(|byte| *byte == 0),
                "behind the blocks"
            );
        }
        let after = bus.model.borrow().by_runs;
        assert_eq!(after - before, if by_runs { 2 } else { 0 }, "{order:?}");
    };
    check(&[3], 4096, false);
    check(&[3, 4], 8192, false);
    check(&[3, 4, 5], 12_288 - 512, true);
    check(&(7..39).collect::<Vec<_>>(), 131_072, true);
    // Two runs are as long as four places of pages.
    check(&[3, 4, 5, 9, 10], 20_480, true);
    check(&[3, 4, 9, 10], 16_384, false);
    check(&[9, 8, 7, 6, 5], 20_480, false);
    let mixed: Vec<u64> = (0..15).flat_map(|n| [3 * n, 3 * n + 1]).collect();
    check(&mixed, 30 * 4096, false);
    let fifteen: Vec<u64> = mixed.iter().copied().chain([44, 45]).collect();
    check(&fifteen, 31 * 4096 + 512, true);
    assert_eq!(fifteen.len(), MAX_PAGES);
}

#[test]
fn a_full_queue_says_so_and_its_value_is_given_back() {
    let bus = Bus::new();
    let Started {
        controller,
        mut queues,
        ..
    } = bus.start();
    for round in 0..40 {
        for value in 0..7 {
            queues[1]
                .submit(Command::flush(1), Data::None, value)
                .unwrap();
        }
        let refused = queues[1].submit(Command::flush(1), Data::None, 99);
        let refused = refused.unwrap_err();
        assert_eq!((refused.value, refused.why), (99, Refusal::Full));
        controller.ring(&mut queues[1]);
        bus.serve();
        assert_eq!(outcomes(&mut queues[1]).len(), 7, "in round {round}");
        controller.ring(&mut queues[1]);
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Read(u64, u16),
    Write(u64, u16, u8),
    Zero(u64, u16),
    Discard(u64, u32),
    Flush,
    Cut,
}

fn steps() -> impl Strategy<Value = Vec<(usize, usize, Step)>> {
    let place = || (0..=248_u64, 1..=8_u16);
    let step = prop_oneof![
        place().prop_map(|(at, len)| Step::Read(at, len)),
        (place(), any::<u8>()).prop_map(|((at, len), byte)| Step::Write(at, len, byte)),
        place().prop_map(|(at, len)| Step::Zero(at, len)),
        place().prop_map(|(at, len)| Step::Discard(at, len.into())),
        Just(Step::Flush),
        Just(Step::Cut),
    ];
    proptest::collection::vec((0..2_usize, 0..2_usize, step), 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// Reads find what was written, zeroed or given up; what was flushed is there after a cut.
    #[test]
    fn what_was_written_is_read(steps in steps(), takes_runs: bool) {
        let bus = Bus::new();
        bus.model.borrow_mut().takes_runs = takes_runs;
        let Started { controller, mut queues, .. } = bus.start();
        let len = BLOCKS as usize * 512;
        let mut contents = [vec![0; len], vec![0; len]];
        let mut flushed = contents.clone();
        for (namespace, queue, step) in steps {
            let queue = &mut queues[queue];
            let id = namespace as u32 + 1;
            let block = [512, 4096][namespace];
            let known = &mut contents[namespace];
            let range = |at: u64, len: usize| at as usize * block..(at as usize + len) * block;
            let pages: Vec<Address> = (0..8).map(Bus::page).collect();
            match step {
                Step::Read(at, len) => {
                    let bytes = usize::from(len) * block;
                    let pages = &pages[..bytes.div_ceil(4096)];
                    let data = Data::Blocks { pages, bytes };
                    let read = Command::read(id, at, len);
                    prop_assert_eq!(run(&bus, &controller, queue, read, data), Ok(0));
                    let bytes: Vec<u8> = (0..pages.len() as u64).flat_map(|n| bus.bytes(n)).collect();
                    let wanted = &known[range(at, len.into())];
                    prop_assert_eq!(&bytes[..wanted.len()], wanted);
                }
                Step::Write(at, len, byte) => {
                    (0..8).for_each(|n| bus.fill(n, byte.wrapping_add(n as u8)));
                    let bytes = usize::from(len) * block;
                    let pages = &pages[..bytes.div_ceil(4096)];
                    let write = Command::write(id, at, len);
                    let data = Data::Blocks { pages, bytes };
                    prop_assert_eq!(run(&bus, &controller, queue, write, data), Ok(0));
                    for (n, place) in known[range(at, len.into())].iter_mut().enumerate() {
                        *place = byte.wrapping_add((n / 4096) as u8);
                    }
                }
                Step::Zero(at, len) => {
                    let zero = Command::write_zeroes(id, at, len);
                    prop_assert_eq!(run(&bus, &controller, queue, zero, Data::None), Ok(0));
                    known[range(at, len.into())].fill(0);
                }
                Step::Discard(first, count) => {
                    let data = Data::Range { first, count };
                    prop_assert_eq!(run(&bus, &controller, queue, Command::discard(id), data), Ok(0));
                    known[range(first, count as usize)].fill(0xdd);
                }
                Step::Flush => {
                    prop_assert_eq!(run(&bus, &controller, queue, Command::flush(id), Data::None), Ok(0));
                    flushed[namespace].clone_from(known);
                }
                Step::Cut => {
                    bus.model.borrow_mut().namespaces[namespace].cut();
                    known.clone_from(&flushed[namespace]);
                }
            }
        }
    }
}
