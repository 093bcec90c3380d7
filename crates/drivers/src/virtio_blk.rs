//! Virtio disks as block devices (`docs/virtio.md`, "The disk in the kernel").
//!
//! A thread puts its requests into the queue of the processor that it is on, and waits until each
//! has an outcome. One of those that wait for a queue waits for its interrupt, *leads*: it takes
//! what is over, for all, and wakes the others. So there is no thread of the driver's, and a
//! request that is alone costs one switch away and one back.

use alloc::string::String;
use alloc::vec::Vec;

use abi::errno::Errno;
use abi::layout::PAGE_SIZE;
use arrayvec::ArrayVec;
use block::{BlockDevice, Limits, Operation as Wanted, Request, Transfer};
use task::{Condvar, Deadline, Mutex, MutexGuard};
use virtio::blk::{Completion, Disk, Failure, Operation, Properties, Queue, Refusal, Shape};
use virtio::blk::{StartError, Unmap};
use virtqueue::{Address, BringUpError, Piece, TransportError};
use vm::Page;

use crate::virtio_parts::{Interrupt, Parts};

#[cfg(test)]
mod tests;

/// Parts of the machine that a disk's driver has.
pub trait DiskParts: Parts {
    /// A page that the device was told of.
    type Lent: Lent + Send;

    /// Number of the processor that the thread is on.
    fn cpu() -> usize;
}

/// A page that a device was told of, for one transfer.
pub trait Lent: Sized {
    /// Lends a page.
    fn lend(page: &Page) -> Self;
    /// Address of the page for the device.
    fn address(&self) -> Address;
    /// The device has done with it, or was stopped, or never heard of it.
    fn completed(self);
}

/// Descriptors of a queue, and so requests that the device has at a time, at most.
const QUEUE_SIZE: u16 = 64;
/// Pages of one request of the device's, at most: 128 KiB, as much as the page cache asks for.
const MAX_PIECES: usize = 32;
/// Queues, at most.
const MAX_LANES: usize = 64;
/// Requests of a batch that are under way at a time.
const GROUP: usize = 16;
/// Requests of all threads that are under way in one queue.
const TICKETS: usize = 64;
/// Time after which who waits looks at the device, and says so if there is nothing to be seen. It
/// decides nothing.
const LOOK_NS: u64 = 30_000_000_000;
/// Time between attempts to stop a device that does not stop.
const RETRY_NS: u64 = 1_000_000_000;

/// A request that is under way: in how many parts, and how those ended that did.
#[derive(Clone, Copy)]
struct Ticket {
    is_taken: bool,
    left: u32,
    outcome: Result<(), Errno>,
}

type Tickets = [Ticket; TICKETS];

/// A part of a request that the device has.
struct InFlight<L> {
    lane: u8,
    ticket: u8,
    pages: ArrayVec<L, MAX_PIECES>,
}

type LaneQueue<P> = Queue<<P as Parts>::Memory, InFlight<<P as DiskParts>::Lent>>;
type Ended<P> = Completion<InFlight<<P as DiskParts>::Lent>>;

struct State<P: DiskParts> {
    queue: LaneQueue<P>,
    tickets: Tickets,
    /// Whether somebody waits for the interrupt.
    is_led: bool,
}

/// A queue, and those who wait for it.
struct Lane<P: DiskParts> {
    number: u8,
    state: Mutex<State<P>>,
    /// A request is over, or nobody leads any more.
    changed: Condvar,
    interrupt: P::Interrupt,
}

type Guard<'a, P> = MutexGuard<'a, State<P>>;

/// A virtio disk.
pub struct VirtioDisk<P: DiskParts> {
    name: String,
    disk: Disk<P::Transport>,
    lanes: Vec<Lane<P>>,
    /// Held by who resets the disk.
    resetting: Mutex<()>,
}

/// Why there is no disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoDisk {
    /// The device, or its memory, does not do.
    Start(StartError),
    /// A request of the device's is shorter than a page.
    SmallRequests,
    /// There is no memory.
    NoMemory,
}

impl core::fmt::Display for NoDisk {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Start(error) => error.fmt(f),
            Self::SmallRequests => f.write_str("its requests are shorter than a page"),
            Self::NoMemory => f.write_str("no memory"),
        }
    }
}

impl<P: DiskParts> VirtioDisk<P> {
    /// Brings a disk up, with a queue for each of `interrupts` as far as the device has so many.
    /// `memory` makes room for a queue.
    ///
    /// # Errors
    /// [`NoDisk`]; the device was reset then, if it could be.
    pub fn start(
        name: String,
        transport: P::Transport,
        interrupts: Vec<P::Interrupt>,
        memory: impl FnMut(u64) -> Option<(P::Memory, Address)>,
    ) -> Result<Self, NoDisk> {
        let shape = Shape {
            queues: interrupts.len().min(MAX_LANES) as u16,
            size: QUEUE_SIZE,
            pieces: MAX_PIECES as u16,
        };
        let (disk, queues) = Disk::start(transport, shape, memory).map_err(NoDisk::Start)?;
        let pieces = queues.first().map_or(0, Queue::max_pieces);
        if u64::from(pieces) * u64::from(piece_limit(disk.properties())) < PAGE_SIZE as u64 {
            return Err(NoDisk::SmallRequests);
        }
        let mut lanes = Vec::new();
        lanes
            .try_reserve_exact(queues.len())
            .map_err(|_| NoDisk::NoMemory)?;
        let free = Ticket {
            is_taken: false,
            left: 0,
            outcome: Ok(()),
        };
        lanes.extend((0..).zip(queues.into_iter().zip(interrupts)).map(
            |(number, (queue, interrupt))| Lane {
                number,
                state: Mutex::new(State {
                    queue,
                    tickets: [free; TICKETS],
                    is_led: false,
                }),
                changed: Condvar::new(),
                interrupt,
            },
        ));
        Ok(Self {
            name,
            disk,
            lanes,
            resetting: Mutex::new(()),
        })
    }

    /// Number of queues.
    #[must_use]
    pub fn queues(&self) -> usize {
        self.lanes.len()
    }

    /// The device's properties.
    #[must_use]
    pub fn properties(&self) -> &Properties {
        self.disk.properties()
    }

    fn lane(&self) -> &Lane<P> {
        &self.lanes[P::cpu() % self.lanes.len()]
    }

    /// Offers requests to the device and waits until all have an outcome.
    fn submit_group(&self, group: &mut [Request<'_>]) {
        let lane = self.lane();
        let mut state = lane.state.lock();
        // Who has some gives them back without waiting for others.
        while state.tickets.iter().filter(|it| !it.is_taken).count() < group.len() {
            state = lane.changed.wait(state);
        }
        let taken: ArrayVec<u8, GROUP> = group.iter().map(|_| state.take_ticket()).collect();
        for (request, ticket) in group.iter().zip(&taken) {
            let checked = request.operation.check(self);
            state.tickets[usize::from(*ticket)].outcome = checked;
            if checked.is_ok() {
                state = self.offer(lane, state, *ticket, &request.operation);
            }
        }
        state = self.notify(lane, state);
        let is_over = |state: &State<P>| {
            let left = |ticket: &u8| state.tickets[usize::from(*ticket)].left;
            taken.iter().all(|ticket| left(ticket) == 0)
        };
        while !is_over(&state) {
            state = self.progress(lane, state);
        }
        for (request, ticket) in group.iter_mut().zip(taken) {
            let ticket = &mut state.tickets[usize::from(ticket)];
            request.outcome = ticket.outcome;
            ticket.is_taken = false;
        }
        lane.changed.notify_all(&state);
    }

    /// Offers a request in as many parts as the device wants.
    fn offer<'a>(
        &'a self,
        lane: &'a Lane<P>,
        state: Guard<'a, P>,
        ticket: u8,
        wanted: &Wanted<'_>,
    ) -> Guard<'a, P> {
        let properties = *self.disk.properties();
        let block = u64::from(properties.block);
        let (operation, offset, len, most): (fn(u64, u64) -> Operation, _, _, _) = match *wanted {
            Wanted::Read(transfer) => {
                let read = |offset| Operation::Read { offset };
                return self.offer_transfer(lane, state, ticket, transfer, read);
            }
            Wanted::Write(transfer) => {
                let write = |offset| Operation::Write { offset };
                return self.offer_transfer(lane, state, ticket, transfer, write);
            }
            // There is nothing that could be lost.
            Wanted::Flush if !properties.has_cache => return state,
            Wanted::Flush => {
                return self.offer_part(
                    lane,
                    state,
                    ticket,
                    Operation::Flush,
                    &[],
                    ArrayVec::new(),
                );
            }
            Wanted::Discard { offset, len } => {
                let discard = |offset, len| Operation::Discard { offset, len };
                (discard, offset, len, properties.discard)
            }
            Wanted::WriteZeroes { offset, len } => {
                let zero = |offset, len| Operation::WriteZeroes {
                    offset,
                    len,
                    unmap: Unmap::Forbidden,
                };
                (zero, offset, len, properties.write_zeroes)
            }
        };
        let most = most.map_or(0, |ranges| ranges.max - ranges.max % block);
        let mut state = state;
        if most == 0 {
            state.tickets[usize::from(ticket)].outcome = Err(Errno::EOPNOTSUPP);
            return state;
        }
        let mut done = 0;
        while done < len && state.tickets[usize::from(ticket)].outcome.is_ok() {
            let part = (len - done).min(most);
            let operation = operation(offset + done, part);
            state = self.offer_part(lane, state, ticket, operation, &[], ArrayVec::new());
            done += part;
        }
        state
    }

    /// Offers a transfer: as many pages at a time as fit into a request of the device's, and those
    /// that are one behind the other in memory in one piece.
    fn offer_transfer<'a>(
        &'a self,
        lane: &'a Lane<P>,
        state: Guard<'a, P>,
        ticket: u8,
        transfer: Transfer<'_>,
        operation: impl Fn(u64) -> Operation,
    ) -> Guard<'a, P> {
        let limit = piece_limit(self.disk.properties());
        let mut state = state;
        let most = usize::from(state.queue.max_pieces()).min(MAX_PIECES);
        let mut pages = transfer.pages;
        let mut done = 0;
        while done < transfer.len && state.tickets[usize::from(ticket)].outcome.is_ok() {
            let mut pieces = ArrayVec::<Piece, MAX_PIECES>::new();
            let mut lent = ArrayVec::<P::Lent, MAX_PIECES>::new();
            let mut part = 0;
            while let Some((page, rest)) = pages.split_first()
                && !lent.is_full()
                && done + part < transfer.len
            {
                let len = (transfer.len - done - part).min(PAGE_SIZE);
                let page = P::Lent::lend(page);
                if !add(&mut pieces, page.address(), len, limit, most) {
                    page.completed();
                    break;
                }
                lent.push(page);
                part += len;
                pages = rest;
            }
            let operation = operation(transfer.offset + done as u64);
            state = self.offer_part(lane, state, ticket, operation, &pieces, lent);
            done += part;
        }
        state
    }

    /// Offers a part of a request, when there is room for it.
    fn offer_part<'a>(
        &'a self,
        lane: &'a Lane<P>,
        state: Guard<'a, P>,
        ticket: u8,
        operation: Operation,
        pieces: &[Piece],
        pages: ArrayVec<P::Lent, MAX_PIECES>,
    ) -> Guard<'a, P> {
        let mut state = state;
        let mut value = InFlight {
            lane: lane.number,
            ticket,
            pages,
        };
        loop {
            let refused = match state.queue.submit(operation, pieces, value) {
                Ok(()) => {
                    state.tickets[usize::from(ticket)].left += 1;
                    return state;
                }
                Err(refused) => refused,
            };
            value = refused.value;
            let error = match refused.why {
                Refusal::Full => {
                    state = self.notify(lane, state);
                    state = self.progress(lane, state);
                    continue;
                }
                Refusal::Broken(_) => {
                    drop(state);
                    self.reset(Reason::Broken);
                    state = lane.state.lock();
                    continue;
                }
                Refusal::Unsupported => Errno::EOPNOTSUPP,
                Refusal::ReadOnly => Errno::EROFS,
                // The request was checked: these are a device that is gone, or smaller now.
                Refusal::Unaligned | Refusal::BeyondEnd | Refusal::TooLarge | Refusal::Gone => {
                    Errno::EIO
                }
            };
            value.pages.into_iter().for_each(Lent::completed);
            state.tickets[usize::from(ticket)].outcome = Err(error);
            return state;
        }
    }

    /// Tells the device of what was offered.
    fn notify<'a>(&'a self, lane: &'a Lane<P>, mut state: Guard<'a, P>) -> Guard<'a, P> {
        if self.disk.notify(&mut state.queue).is_err() {
            drop(state);
            self.reset(Reason::Broken);
            state = lane.state.lock();
        }
        state
    }

    /// Takes what is over, or waits until something is. Who calls this looks again afterwards: it
    /// may return without anything having happened.
    fn progress<'a>(&'a self, lane: &'a Lane<P>, mut state: Guard<'a, P>) -> Guard<'a, P> {
        let reason = match state.take_ended() {
            Ok(0) if state.is_led => return lane.changed.wait(state),
            Ok(0) => match state.queue.want_interrupt() {
                Ok(virtqueue::Left::Something) => return state,
                Ok(virtqueue::Left::Nothing) => {
                    state.is_led = true;
                    drop(state);
                    let deadline = Deadline::after_ns(LOOK_NS);
                    let was_heard = lane.interrupt.event().wait_until(deadline);
                    state = lane.state.lock();
                    state.is_led = false;
                    lane.changed.notify_all(&state);
                    if was_heard {
                        return state;
                    }
                    match self.look(&mut state) {
                        None => return state,
                        Some(reason) => reason,
                    }
                }
                Err(_) => Reason::Broken,
            },
            Ok(_) => {
                lane.changed.notify_all(&state);
                return state;
            }
            Err(_) => Reason::Broken,
        };
        drop(state);
        self.reset(reason);
        lane.state.lock()
    }

    /// Looks at a device that was not heard of for long. That it is slow is no reason to give up
    /// what it may still do.
    fn look(&self, state: &mut State<P>) -> Option<Reason> {
        if self.disk.needs_reset() {
            return Some(Reason::Asked);
        }
        match state.take_ended() {
            Ok(0) => log::warn!(
                "{}: {} requests have had no answer for {} s",
                self.name,
                state.queue.in_flight(),
                LOOK_NS / 1_000_000_000
            ),
            Ok(ended) => log::warn!("{}: no interrupt came for {ended} requests", self.name),
            Err(_) => return Some(Reason::Broken),
        }
        None
    }

    /// Resets the disk, which has it do everything again that was in flight. Returns when it is
    /// back, or gone, or still does not stop: then nothing has ended.
    fn reset(&self, reason: Reason) {
        let is_stuck = {
            let _one = self.resetting.lock();
            let mut states: ArrayVec<Guard<'_, P>, MAX_LANES> =
                self.lanes.iter().map(|lane| lane.state.lock()).collect();
            let broken = states.iter().find_map(|state| state.queue.broken());
            match (reason, broken) {
                // Somebody was faster.
                (Reason::Broken, None) => return,
                (Reason::Broken, Some(rule)) => log::error!("{}: {rule}: reset", self.name),
                (Reason::Asked, _) if !self.disk.needs_reset() => return,
                (Reason::Asked, _) => log::error!("{}: it asks for a reset", self.name),
            }
            let mut queues = ArrayVec::<&mut LaneQueue<P>, MAX_LANES>::new();
            let mut tickets = ArrayVec::<&mut Tickets, MAX_LANES>::new();
            for state in &mut states {
                let state = &mut **state;
                queues.push(&mut state.queue);
                tickets.push(&mut state.tickets);
            }
            let ended = |completion: Ended<P>| {
                let lane = usize::from(completion.value.lane);
                end(tickets[lane], completion);
            };
            let result = self.disk.recover(&mut queues, ended);
            drop((queues, tickets));
            if let Err(error) = result {
                log::error!("{}: {error}", self.name);
            }
            for (lane, state) in self.lanes.iter().zip(&states) {
                lane.changed.notify_all(state);
                lane.interrupt.event().set();
            }
            let stuck = StartError::BringUp(BringUpError::Transport(TransportError::Stuck));
            result == Err(stuck) && states.iter().any(|state| state.queue.in_flight() > 0)
        };
        if is_stuck {
            task::sleep_until(Deadline::after_ns(RETRY_NS));
        }
    }
}

/// Why a disk is reset.
#[derive(Clone, Copy)]
enum Reason {
    /// The device has broken a rule.
    Broken,
    /// The device has asked for that.
    Asked,
}

impl<P: DiskParts> State<P> {
    /// Takes a ticket, of which there is one.
    fn take_ticket(&mut self) -> u8 {
        let free = self.tickets.iter().position(|ticket| !ticket.is_taken);
        let index = free.expect("there are enough, under the lock that says so");
        self.tickets[index] = Ticket {
            is_taken: true,
            left: 0,
            outcome: Ok(()),
        };
        index as u8
    }

    /// Takes everything that is over; how many it were.
    fn take_ended(&mut self) -> Result<usize, virtqueue::Rule> {
        let mut count = 0;
        while let Some(completion) = self.queue.complete()? {
            end(&mut self.tickets, completion);
            count += 1;
        }
        Ok(count)
    }
}

/// Notes the end of a part of a request.
fn end<L: Lent>(tickets: &mut Tickets, completion: Completion<InFlight<L>>) {
    let InFlight { ticket, pages, .. } = completion.value;
    pages.into_iter().for_each(Lent::completed);
    let ticket = &mut tickets[usize::from(ticket)];
    ticket.left -= 1;
    if let Err(failure) = completion.outcome
        && ticket.outcome.is_ok()
    {
        ticket.outcome = Err(match failure {
            Failure::Unsupported => Errno::EOPNOTSUPP,
            Failure::Io | Failure::Status(_) | Failure::Short(_) | Failure::Gone => Errno::EIO,
        });
    }
}

/// Bytes of a piece, at most.
fn piece_limit(properties: &Properties) -> u32 {
    properties.piece.min(1 << 30)
}

/// Adds the bytes at an address to a request's pieces, in pieces of up to `limit` bytes; nothing,
/// and `false`, if there would be more pieces than `most`.
fn add(
    pieces: &mut ArrayVec<Piece, MAX_PIECES>,
    at: Address,
    len: usize,
    limit: u32,
    most: usize,
) -> bool {
    let mut left = len as u32;
    let mut at = at;
    let before = pieces.len();
    let last_len = pieces.last().map(|last| last.len);
    if let Some(last) = pieces.last_mut()
        && last.at.plus(u64::from(last.len)) == at
    {
        let more = left.min(limit - last.len);
        last.len += more;
        left -= more;
        at = at.plus(u64::from(more));
    }
    while left > 0 {
        let len = left.min(limit);
        if pieces.len() == most {
            pieces.truncate(before);
            if let (Some(last), Some(len)) = (pieces.last_mut(), last_len) {
                last.len = len;
            }
            return false;
        }
        pieces.push(Piece { at, len });
        left -= len;
        at = at.plus(u64::from(len));
    }
    true
}

impl<P: DiskParts> BlockDevice for VirtioDisk<P> {
    fn capacity(&self) -> u64 {
        self.disk.properties().capacity
    }

    fn limits(&self) -> Limits {
        let properties = self.disk.properties();
        Limits {
            logical_block: properties.block,
            physical_block: properties.physical_block,
            min_io: properties.physical_block,
            optimal_io: properties.optimal_io,
        }
    }

    fn is_read_only(&self) -> bool {
        self.disk.properties().read_only
    }

    fn submit(&self, batch: &mut [Request<'_>]) {
        for group in batch.chunks_mut(GROUP) {
            self.submit_group(group);
        }
    }
}
