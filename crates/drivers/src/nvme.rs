//! NVMe disks as block devices (`docs/nvme.md`).

mod control;

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::errno::Errno;
use abi::layout::PAGE_SIZE;
use arrayvec::ArrayVec;
use block::{BlockDevice, Limits, Operation, Request, Transfer};
pub use control::Control;
use control::Note;
use nvme::{Admin, Command, Completion, Controller, Data, Failure, Function, Identity, Namespace};
use nvme::{Queue, Refusal, Rule, Shape, StartError, Status};
use task::Mutex;
use virtqueue::{Address, Memory};

use crate::gate::{Close, Gate};
use crate::lanes::{
    Broken, Ended, Hardware, InFlight, Lanes, Lent, MAX_LANES, MAX_PIECES, NotOffered, PartPages,
    QUEUE_SIZE, Stuck, Tag, fail, lend,
};
use crate::virtio_parts::Interrupt;

#[cfg(test)]
mod tests;

/// Parts of the machine that a controller's driver has.
pub trait Parts: 'static {
    /// The way to the controller.
    type Function: Function + Send + Sync;
    /// Memory of its queues.
    type Memory: Memory + Send;
    /// An interrupt of the controller.
    type Interrupt: Interrupt + Send + Sync;
    /// A page that the controller was told of.
    type Lent: Lent + Send;

    /// Number of the processor that the thread is on.
    fn cpu() -> usize;
}

/// Bytes that one command gives up, at most.
const MAX_DISCARD: u64 = 1 << 30;
/// Looks at which a command has had no answer when it is aborted.
const ABORT_AT: u8 = 2;

type DiskQueue<P> = Queue<<P as Parts>::Memory, Part<<P as Parts>::Lent>>;
type Queues<P> = Lanes<Device<P>, <P as Parts>::Interrupt>;
type Shared<P> = Arc<Attached<P>>;

/// A controller, until it leaves.
struct Attached<P: Parts> {
    lanes: Gate<Queues<P>>,
    identity: Identity,
    queues: usize,
}

impl<P: Parts> Attached<P> {
    /// The controller.
    ///
    /// # Errors
    /// `ENODEV` when it has left.
    fn get(&self) -> Result<Arc<Queues<P>>, Errno> {
        self.lanes.get().ok_or(Errno::ENODEV)
    }
}

/// Requests of disks fail with `EIO` from then on, those of programs with `ENODEV`.
impl<P: Parts> Close for Attached<P> {
    fn close(&self, at_once: bool) {
        self.lanes.close(at_once);
    }
}

/// A part of a request in a queue.
struct Part<L> {
    in_flight: InFlight<L>,
    /// Of a program's command: who wants to know the answer.
    note: Option<Arc<Note>>,
}

/// A controller with its admin queue.
struct Device<P: Parts> {
    name: String,
    controller: Controller<P::Function>,
    admin: Mutex<Admin<P::Memory>>,
    namespaces: Vec<Namespace>,
    /// Held by who passes a program's command to the admin queue.
    passing: Mutex<()>,
}

/// A namespace of an NVMe controller, whose queues it shares with the others.
pub struct NvmeDisk<P: Parts> {
    lanes: Shared<P>,
    namespace: Namespace,
}

/// Brings a controller up, with a queue pair for each of `interrupts` as far as it has so many; the
/// controller, and its namespaces. `memory` makes room for a queue.
///
/// # Errors
/// [`StartError`]; the controller was stopped then, if it could be.
pub fn start<P: Parts>(
    name: String,
    function: P::Function,
    interrupts: Vec<P::Interrupt>,
    memory: impl FnMut(u64) -> Option<(P::Memory, Address)>,
) -> Result<(Control<P>, Vec<NvmeDisk<P>>), StartError> {
    let shape = Shape {
        queues: interrupts.len().min(MAX_LANES) as u16,
        entries: QUEUE_SIZE,
    };
    let started = Controller::start(function, shape, memory)?;
    for (id, why) in started.unusable {
        match why {
            Some(why) => log::error!("{name}: namespace {id} cannot be used: {why}"),
            None => log::error!("{name}: namespaces from {id} on are not used: there are too many"),
        }
    }
    let namespaces = started.namespaces.clone();
    let device = Device {
        name,
        controller: started.controller,
        admin: Mutex::new(started.admin),
        namespaces: started.namespaces,
        passing: Mutex::new(()),
    };
    let lanes = Lanes::new(device, started.queues, interrupts).ok_or(StartError::NoMemory)?;
    let lanes = Arc::new(Attached {
        identity: *lanes.hardware().controller.identity(),
        queues: lanes.queues(),
        lanes: Gate::new(lanes),
    });
    let disk = |namespace| NvmeDisk {
        lanes: lanes.clone(),
        namespace,
    };
    let disks = namespaces.into_iter().map(disk).collect();
    Ok((Control::new(lanes.clone()), disks))
}

impl<P: Parts> NvmeDisk<P> {
    /// The namespace.
    #[must_use]
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Number of queue pairs.
    #[must_use]
    pub fn queues(&self) -> usize {
        self.lanes.queues
    }
}

/// Bytes as the controller counts them: first block, number of blocks.
fn blocks(namespace: &Namespace, offset: u64, len: u64) -> (u64, u64) {
    let bits = namespace.block_bits;
    (offset >> bits, len >> bits)
}

impl<P: Parts> Device<P> {
    /// Bytes of a transfer, at most: whole pages, and a number of blocks that a command can tell.
    fn max_transfer(&self) -> usize {
        let identity = self.controller.identity();
        identity.transfer.min(MAX_PIECES * PAGE_SIZE)
    }

    fn offer_transfer(
        &self,
        queue: &mut DiskQueue<P>,
        namespace: &Namespace,
        transfer: &Transfer<'_>,
        done: u64,
        tag: Tag,
        command: fn(u32, u64, u16) -> Command,
    ) -> Result<u64, NotOffered> {
        let mut left = self.max_transfer();
        let mut places = ArrayVec::<Address, MAX_PIECES>::new();
        let fits = |page: &P::Lent, len: usize| {
            let is_room = len <= left;
            if is_room {
                left -= len;
                places.push(page.address());
            }
            is_room
        };
        let (pages, len) = lend::<P::Lent>(transfer, done, fits);
        let (first, count) = blocks(namespace, transfer.offset + done, len as u64);
        let command = command(namespace.id, first, count as u16);
        let data = Data::Blocks {
            pages: &places,
            bytes: len,
        };
        submit(queue, command, data, Part::new(tag, pages)).map(|()| len as u64)
    }
}

impl<L> Part<L> {
    fn new(tag: Tag, pages: PartPages<L>) -> Self {
        Self {
            in_flight: InFlight { tag, pages },
            note: None,
        }
    }
}

/// Submits a part of a request, whose pages are given back if that fails.
fn submit<M: Memory, L: Lent>(
    queue: &mut Queue<M, Part<L>>,
    command: Command,
    data: Data<'_>,
    value: Part<L>,
) -> Result<(), NotOffered> {
    let Err(refused) = queue.submit(command, data, value) else {
        return Ok(());
    };
    refused.value.in_flight.give_back();
    Err(match refused.why {
        Refusal::Full => NotOffered::Full,
        Refusal::Broken(_) => NotOffered::Broken,
        Refusal::TooLarge | Refusal::Gone => NotOffered::Over(Err(Errno::EIO)),
    })
}

/// The end of a part of a request, whose pages are given back.
fn ended<L: Lent>(completion: Completion<Part<L>>) -> Ended {
    if let Some(note) = &completion.value.note {
        note.set(nvme::Answer::of(&completion));
    }
    let tag = completion.value.in_flight.give_back();
    let outcome = completion
        .outcome
        .map(drop)
        .map_err(|failure| match failure {
            Failure::Status(Status::INVALID_OPCODE) => Errno::EOPNOTSUPP,
            Failure::Status(_) | Failure::Gone => Errno::EIO,
        });
    Ended { tag, outcome }
}

impl<P: Parts> Hardware for Device<P> {
    type Queue = DiskQueue<P>;
    type Target = Namespace;
    type Rule = Rule;

    fn name(&self) -> &str {
        &self.name
    }

    fn cpu() -> usize {
        P::cpu()
    }

    fn offer(
        &self,
        queue: &mut DiskQueue<P>,
        namespace: &Namespace,
        operation: &Operation<'_>,
        done: u64,
        tag: Tag,
    ) -> Result<u64, NotOffered> {
        let identity = self.controller.identity();
        let id = namespace.id;
        let value = Part::new(tag, PartPages::default());
        match *operation {
            Operation::Read(transfer) => {
                self.offer_transfer(queue, namespace, &transfer, done, tag, Command::read)
            }
            Operation::Write(transfer) => {
                self.offer_transfer(queue, namespace, &transfer, done, tag, Command::write)
            }
            Operation::WriteThrough(transfer) => {
                let write = Command::write_through;
                self.offer_transfer(queue, namespace, &transfer, done, tag, write)
            }
            // There is nothing that could be lost.
            Operation::Flush if !identity.has_cache => Err(NotOffered::Over(Ok(()))),
            Operation::Flush => submit(queue, Command::flush(id), Data::None, value).map(|()| 0),
            Operation::Discard { offset, len } if identity.has_discard => {
                let part = (len - done).min(MAX_DISCARD);
                let (first, count) = blocks(namespace, offset + done, part);
                let count = count as u32;
                let data = Data::Range { first, count };
                submit(queue, Command::discard(id), data, value).map(|()| part)
            }
            Operation::WriteZeroes { offset, len } if identity.has_write_zeroes => {
                // The limit of transfers need not hold for what transfers nothing, but may.
                let most = (identity.transfer as u64).min(1 << (16 + namespace.block_bits - 1));
                let part = (len - done).min(most);
                let (first, count) = blocks(namespace, offset + done, part);
                let command = Command::write_zeroes(id, first, count as u16);
                submit(queue, command, Data::None, value).map(|()| part)
            }
            Operation::Discard { .. } | Operation::WriteZeroes { .. } => {
                Err(NotOffered::Over(Err(Errno::EOPNOTSUPP)))
            }
        }
    }

    fn notify(&self, queue: &mut DiskQueue<P>) -> Result<(), Broken> {
        self.controller.ring(queue);
        Ok(())
    }

    fn take(&self, queue: &mut DiskQueue<P>) -> Result<Option<Ended>, Broken> {
        let completion = queue.take().map_err(|_| Broken)?;
        Ok(completion.map(ended))
    }

    /// Each completion sends a message: one that comes after the last look sets the event.
    fn arm(&self, queue: &mut DiskQueue<P>) -> Result<bool, Broken> {
        self.controller.ring(queue);
        Ok(false)
    }

    fn late(&self, queue: &mut DiskQueue<P>, tag: Tag, looks: u8) -> Result<(), Broken> {
        if looks > ABORT_AT {
            queue.fail(Rule::Late);
            return Err(Broken);
        }
        log::warn!("{}: a request has no answer: it is aborted", self.name);
        let mut admin = self.admin.lock();
        self.controller
            .abort(&mut admin, queue, |value| value.in_flight.tag == tag);
        Ok(())
    }

    fn broken(queue: &DiskQueue<P>) -> Option<Rule> {
        queue.broken()
    }

    fn in_flight(queue: &DiskQueue<P>) -> usize {
        queue.in_flight()
    }

    fn forgive(queue: &mut DiskQueue<P>) {
        queue.forgive();
    }

    fn needs_reset(&self) -> bool {
        self.controller.needs_reset()
    }

    fn recover(
        &self,
        queues: &mut [&mut DiskQueue<P>],
        note: &mut dyn FnMut(Ended),
    ) -> Result<(), Stuck> {
        let mut admin = self.admin.lock();
        let over = |completion| note(ended(completion));
        let result = (self.controller).recover(&mut admin, &self.namespaces, queues, over);
        self.stopped(result)
    }

    fn end(
        &self,
        queues: &mut [&mut DiskQueue<P>],
        note: &mut dyn FnMut(Ended),
    ) -> Result<(), Stuck> {
        let mut admin = self.admin.lock();
        let over = |completion| note(ended(completion));
        self.stopped(self.controller.end(&mut admin, queues, over))
    }
}

impl<P: Parts> Device<P> {
    /// Says what went wrong with a reset, and whether the controller has stopped.
    fn stopped(&self, result: Result<(), StartError>) -> Result<(), Stuck> {
        let Err(error) = result else {
            return Ok(());
        };
        log::error!("{}: {error}", self.name);
        match error {
            StartError::Stuck => Err(Stuck),
            _ => Ok(()),
        }
    }
}

impl<P: Parts> BlockDevice for NvmeDisk<P> {
    fn capacity(&self) -> u64 {
        self.namespace.capacity()
    }

    fn limits(&self) -> Limits {
        Limits::of_blocks(self.namespace.block())
    }

    fn is_read_only(&self) -> bool {
        self.namespace.is_read_only
    }

    fn writes_through(&self) -> bool {
        true
    }

    fn submit(&self, batch: &mut [Request<'_>]) {
        match self.lanes.get() {
            Ok(lanes) => lanes.submit(self, &self.namespace, batch),
            Err(_) => fail(batch),
        }
    }
}
