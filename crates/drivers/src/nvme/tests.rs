//! The driver against a controller of ours in a thread of its own, which does what it should, or
//! what nobody should.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::vec::Vec;

use fs::ioctl::{IoctlCaller, IoctlRequest};
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
    control: Arc<Control<Host>>,
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
        let (control, disks) =
            start::<Host>("nvme0".into(), Way(bus.clone()), lines, room).unwrap();
        Self {
            bus,
            disks: disks.into_iter().map(Arc::new).collect(),
            control: Arc::new(control),
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
    // What is written through is there, and says nothing of what was written before.
    let through = |offset, byte| {
        let pages = filled(1, byte);
        disk.execute(Operation::WriteThrough(Transfer {
            offset,
            len: 4096,
            pages: &pages,
        }))
    };
    assert_eq!(write(3), Ok(()));
    assert_eq!(through(4096, 4), Ok(()));
    machine.bus.model().namespaces[1].cut();
    assert_eq!(
        (first(), machine.bus.model().namespaces[1].data[4096]),
        (1, 4)
    );
    assert_eq!(write(5), Ok(()));
    assert_eq!(through(0, 6), Ok(()));
    machine.bus.model().namespaces[1].cut();
    assert_eq!(first(), 6);
}

/// A program with memory at its addresses from 0 on.
struct Program {
    memory: Mutex<Vec<u8>>,
    is_privileged: bool,
}

impl Program {
    fn new() -> Self {
        Self {
            memory: Mutex::new(vec![0x55; 1 << 16]),
            is_privileged: true,
        }
    }

    fn put(&self, at: usize, bytes: &[u8]) {
        self.memory.lock().unwrap()[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn bytes(&self, at: usize, len: usize) -> Vec<u8> {
        self.memory.lock().unwrap()[at..at + len].to_vec()
    }

    fn word(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.bytes(at, 4).try_into().unwrap())
    }

    /// Puts a `struct nvme_passthru_cmd` at address 0, whose data is at 4,096.
    fn command(&self, code: u8, namespace: u32, len: u32, words: &[(usize, u32)]) {
        let mut command = [0u8; 80];
        command[0] = code;
        command[4..8].copy_from_slice(&namespace.to_le_bytes());
        command[24..32].copy_from_slice(&4096u64.to_le_bytes());
        command[36..40].copy_from_slice(&len.to_le_bytes());
        for (number, word) in words {
            command[4 * number..4 * number + 4].copy_from_slice(&word.to_le_bytes());
        }
        self.put(0, &command);
    }
}

impl IoctlCaller for Program {
    fn read_bytes(&self, addr: usize, to: &mut [u8]) -> fs::Result<()> {
        let memory = self.memory.lock().unwrap();
        let from = memory.get(addr..addr + to.len()).ok_or(Errno::EFAULT)?;
        to.copy_from_slice(from);
        Ok(())
    }

    fn write_bytes(&self, addr: usize, from: &[u8]) -> fs::Result<()> {
        let mut memory = self.memory.lock().unwrap();
        let to = memory.get_mut(addr..addr + from.len());
        to.ok_or(Errno::EFAULT)?.copy_from_slice(from);
        Ok(())
    }

    fn install(&self, _: Arc<fs::File>, _: fs::OpenFlags) -> fs::Result<usize> {
        Err(Errno::EMFILE)
    }

    fn privileged(&self) -> bool {
        self.is_privileged
    }
}

const ID: u32 = 0x4e40;
const ADMIN: u32 = 0xc048_4e41;
const NVM: u32 = 0xc048_4e43;
const RESET: u32 = 0x4e44;
const ADMIN_64: u32 = 0xc050_4e47;

impl Machine {
    /// A request to the controller, or to a namespace.
    fn ioctl(&self, disk: Option<usize>, program: &Program, command: u32) -> fs::Result<usize> {
        let request = IoctlRequest {
            command,
            arg: 0,
            caller: program,
        };
        match disk {
            Some(n) => self.disks[n].ioctl(&request),
            None => self.control.request(&request),
        }
    }
}

#[test]
fn a_program_has_its_commands_answered() {
    let machine = Machine::new();
    let program = Program::new();
    assert_eq!(machine.ioctl(Some(1), &program, ID), Ok(2));
    assert_eq!(machine.ioctl(None, &program, ID), Err(Errno::ENOTTY));
    // Identify: what the controller says of itself, and no byte more than was asked for.
    program.command(0x06, 0, 100, &[(10, 1)]);
    assert_eq!(machine.ioctl(None, &program, ADMIN), Ok(0));
    assert_eq!(program.bytes(4096 + 4, 4), b"OURS");
    assert_eq!(program.bytes(4096 + 100, 2), [0x55; 2]);
    program.command(0x06, 0, 4096, &[(10, 1)]);
    assert_eq!(machine.ioctl(None, &program, ADMIN_64), Ok(0));
    assert_eq!(program.bytes(4096 + 512, 2), [0x66, 0x44]);
    // The status is the answer, and the others go on: a namespace that there is not.
    program.command(0x06, 9, 4096, &[(10, 0)]);
    assert_eq!(machine.ioctl(None, &program, ADMIN), Ok(0xb));
    // The result of a feature that the controller has.
    program.command(0x09, 0, 0, &[(10, 0x04), (17, 0x55)]);
    assert_eq!(machine.ioctl(None, &program, ADMIN), Ok(0x101));
    assert_eq!(program.word(68), 0);
}

#[test]
fn a_program_reads_and_writes_its_namespace_only() {
    let machine = Machine::new();
    let program = Program::new();
    program.put(4096, &[7; 8192]);
    // Two blocks of 4,096 bytes from the third on.
    program.command(0x01, 2, 8192, &[(10, 3), (12, 1)]);
    assert_eq!(machine.ioctl(Some(1), &program, NVM), Ok(0));
    let data = machine.bus.model().namespaces[1].data.clone();
    assert!(data[3 * 4096..5 * 4096].iter().all(|byte| *byte == 7));
    assert_eq!(data.iter().filter(|byte| **byte == 7).count(), 8192);
    // A buffer that is shorter than the command has the first bytes of it only.
    program.put(4096, &[0x55; 8192]);
    program.command(0x02, 2, 1000, &[(10, 3), (12, 1)]);
    assert_eq!(machine.ioctl(Some(1), &program, NVM), Ok(0));
    let read = program.bytes(4096, 8192);
    assert!(read[..1000].iter().all(|byte| *byte == 7));
    assert!(read[1000..].iter().all(|byte| *byte == 0x55));
    // Behind the end: the controller says so.
    program.command(0x02, 2, 4096, &[(10, 1 << 20), (12, 0)]);
    assert_eq!(machine.ioctl(Some(1), &program, NVM), Ok(0x80));
    // Another namespace, and none in particular.
    program.command(0x02, 1, 512, &[]);
    assert_eq!(machine.ioctl(Some(1), &program, NVM), Err(Errno::EINVAL));
    assert_eq!(machine.ioctl(None, &program, NVM), Err(Errno::EINVAL));
}

#[test]
fn a_program_without_rights_and_a_command_of_the_kernels_are_refused() {
    let machine = Machine::new();
    let mut program = Program::new();
    let before = machine.bus.model().starts;
    for (code, word, error) in [
        (0x00, 0, Errno::EPERM),
        (0x05, 0, Errno::EPERM),
        (0x0c, 0, Errno::EPERM),
        (0x7c, 0, Errno::EPERM),
        (0x09, 0x0d, Errno::EPERM),
        (0x80, 0, Errno::EOPNOTSUPP),
        (0xc0, 0, Errno::EOPNOTSUPP),
        (0x02, 0xffff_0002, Errno::EINVAL),
    ] {
        program.command(code, 0, 4096, &[(10, word)]);
        assert_eq!(
            machine.ioctl(None, &program, ADMIN),
            Err(error),
            "{code:#x}"
        );
    }
    program.command(0x06, 0, 4096, &[(10, 1)]);
    // Fused, metadata, memory that the program does not have.
    for (at, byte) in [(1, 1), (32, 8), (30, 1)] {
        let was = program.bytes(at, 1);
        program.put(at, &[byte]);
        assert!(machine.ioctl(None, &program, ADMIN).is_err());
        program.put(at, &was);
    }
    program.is_privileged = false;
    for command in [ADMIN, ADMIN_64, NVM, RESET] {
        let refused = machine.ioctl(None, &program, command);
        assert_eq!(refused, Err(Errno::EACCES));
    }
    assert_eq!(machine.bus.model().starts, before);
    program.is_privileged = true;
    assert_eq!(machine.ioctl(None, &program, ADMIN), Ok(0));
}

#[test]
fn commands_of_programs_go_on_beside_resets_and_what_others_do() {
    let machine = Machine::new();
    std::thread::scope(|scope| {
        for n in 0..2 {
            let machine = &machine;
            scope.spawn(move || {
                let program = Program::new();
                for round in 0..40 {
                    program.command(0x06, 0, 4096, &[(10, 1)]);
                    match machine.ioctl(None, &program, ADMIN) {
                        Ok(0) => assert_eq!(program.bytes(4096 + 4, 4), b"OURS"),
                        other => assert_eq!(other, Err(Errno::EINTR)),
                    }
                    program.command(0x02, n + 1, 512, &[(10, 0)]);
                    assert_eq!(machine.ioctl(Some(n as usize), &program, NVM), Ok(0));
                    if round % 8 == n {
                        assert_eq!(machine.ioctl(None, &program, RESET), Ok(0));
                    }
                }
            });
        }
        hammer(&machine, 20);
    });
    assert!(machine.bus.model().starts > 4);
}

#[test]
fn a_command_without_an_answer_ends_by_a_reset() {
    let machine = Machine::new();
    machine.bus.model().is_admin_silent = true;
    let program = Program::new();
    // Fifty looks.
    program.command(0x06, 0, 4096, &[(10, 1), (16, 50)]);
    assert_eq!(machine.ioctl(None, &program, ADMIN), Err(Errno::EINTR));
    assert_eq!(machine.bus.model().starts, 2);
    program.command(0x06, 0, 4096, &[(10, 1)]);
    assert_eq!(machine.ioctl(None, &program, ADMIN), Ok(0));
}
