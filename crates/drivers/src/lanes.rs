//! Disks with queues: how threads put requests into them and wait for their ends (`docs/virtio.md`,
//! "The disk in the kernel").
//!
//! A thread puts its requests into the queue of the processor that it is on, and waits until each
//! has an outcome. One of those that wait for a queue waits for its interrupt, *leads*: it takes
//! what is over, for all, and wakes the others. So there is no thread of the driver's, and a
//! request that is alone costs one switch away and one back.

use alloc::vec::Vec;
use core::fmt;

use abi::errno::Errno;
use arrayvec::ArrayVec;
use block::{BlockDevice, Operation, Request};
use task::{Condvar, Deadline, Mutex, MutexGuard};
use virtqueue::Address;
use vm::Page;

use crate::virtio_parts::Interrupt;

/// A page that a device was told of, for one transfer.
pub trait Lent: Sized {
    /// Lends a page.
    fn lend(page: &Page) -> Self;
    /// Address of the page for the device.
    fn address(&self) -> Address;
    /// The device has done with it, or was stopped, or never heard of it.
    fn completed(self);
}

/// Entries of a queue, and so requests that the device has at a time, at most.
pub const QUEUE_SIZE: u16 = 64;
/// Pages of one request of the device's, at most: 128 KiB, as much as the page cache asks for.
pub const MAX_PIECES: usize = 32;
/// Queues, at most.
pub const MAX_LANES: usize = 64;
/// Requests of a batch that are under way at a time.
const GROUP: usize = 16;
/// Requests of all threads that are under way in one queue.
const TICKETS: usize = 64;
/// Time after which who waits looks at the device.
const LOOK_NS: u64 = 30_000_000_000;
/// Time between attempts to stop a device that does not stop.
const RETRY_NS: u64 = 1_000_000_000;

/// Place of a request that is under way: in which queue, and which one there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    lane: u8,
    ticket: u8,
}

/// A part of a request that the device has, with the pages that it was told of.
pub struct InFlight<L> {
    /// The request.
    pub tag: Tag,
    /// Pages of the part.
    pub pages: ArrayVec<L, MAX_PIECES>,
}

impl<L: Lent> InFlight<L> {
    /// Gives the pages back: the device has done with them, or never heard of them.
    pub fn give_back(self) -> Tag {
        self.pages.into_iter().for_each(Lent::completed);
        self.tag
    }
}

/// A part of a request that is over.
pub struct Ended {
    /// The request.
    pub tag: Tag,
    /// Outcome of the part.
    pub outcome: Result<(), Errno>,
}

/// Why a part of a request was not offered to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotOffered {
    /// There is no room for it now.
    Full,
    /// The device broke a rule.
    Broken,
    /// Nothing is to be done, with this outcome of the request.
    Over(Result<(), Errno>),
}

/// The device broke a rule, and has to be reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

/// A device did not even stop: nothing has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stuck;

/// A device with queues, as its driver knows it.
pub trait Hardware: Send + Sync {
    /// A queue.
    type Queue: Send;
    /// The part of the device that a request is for.
    type Target;
    /// Why a queue was stopped.
    type Rule: fmt::Display;

    /// Name for the log.
    fn name(&self) -> &str;

    /// Number of the processor that the thread is on.
    fn cpu() -> usize;

    /// Offers as much of a request as the device takes at a time, from byte `done` of it on; how
    /// much that is.
    ///
    /// # Errors
    /// [`NotOffered`]; nothing was changed.
    fn offer(
        &self,
        queue: &mut Self::Queue,
        target: &Self::Target,
        operation: &Operation<'_>,
        done: u64,
        tag: Tag,
    ) -> Result<u64, NotOffered>;

    /// Tells the device of what was offered.
    ///
    /// # Errors
    /// [`Broken`].
    fn notify(&self, queue: &mut Self::Queue) -> Result<(), Broken>;

    /// Takes a part that is over.
    ///
    /// # Errors
    /// [`Broken`].
    fn take(&self, queue: &mut Self::Queue) -> Result<Option<Ended>, Broken>;

    /// Has the device send an interrupt for what ends from here on; true if something is over
    /// already.
    ///
    /// # Errors
    /// [`Broken`].
    fn arm(&self, queue: &mut Self::Queue) -> Result<bool, Broken>;

    /// A request has had no answer, not even a part of it, at so many looks in a row (2 or more).
    ///
    /// # Errors
    /// [`Broken`] if the device is to be reset.
    fn late(&self, queue: &mut Self::Queue, tag: Tag, looks: u8) -> Result<(), Broken>;

    /// The rule that was broken.
    fn broken(queue: &Self::Queue) -> Option<Self::Rule>;

    /// Requests that the device has of a queue.
    fn in_flight(queue: &Self::Queue) -> usize;

    /// Whether the device asks for a reset.
    fn needs_reset(&self) -> bool;

    /// The reset that follows is not to count for what is in flight in a queue.
    fn forgive(queue: &mut Self::Queue);

    /// Resets the device and offers everything again that was in flight. What does not begin again
    /// has `ended`: everything if the device did not come back.
    ///
    /// # Errors
    /// [`Stuck`].
    fn recover(
        &self,
        queues: &mut [&mut Self::Queue],
        ended: &mut dyn FnMut(Ended),
    ) -> Result<(), Stuck>;
}

/// A request that is under way: in how many parts, and how those ended that did.
#[derive(Clone, Copy)]
struct Ticket {
    is_taken: bool,
    left: u32,
    /// Looks at which it was under way, since a part of it ended.
    looks: u8,
    outcome: Result<(), Errno>,
}

const FREE: Ticket = Ticket {
    is_taken: false,
    left: 0,
    looks: 0,
    outcome: Ok(()),
};

type Tickets = [Ticket; TICKETS];

struct State<Q> {
    queue: Q,
    tickets: Tickets,
    /// Whether somebody waits for the interrupt.
    is_led: bool,
    /// When the requests are looked at next.
    next_look: Deadline,
}

/// A queue, and those who wait for it.
struct Lane<Q, I> {
    number: u8,
    state: Mutex<State<Q>>,
    /// A request is over, or nobody leads any more.
    changed: Condvar,
    interrupt: I,
}

type Guard<'a, H> = MutexGuard<'a, State<<H as Hardware>::Queue>>;

/// A device with its queues.
pub struct Lanes<H: Hardware, I> {
    hardware: H,
    lanes: Vec<Lane<H::Queue, I>>,
    /// Held by who resets the device.
    resetting: Mutex<()>,
}

/// Why a device is reset.
#[derive(Clone, Copy)]
enum Reason {
    /// The device has broken a rule.
    Broken,
    /// The device has asked for that.
    Asked,
    /// Somebody else wants it.
    Wanted,
}

impl From<Broken> for Reason {
    fn from(_: Broken) -> Self {
        Self::Broken
    }
}

impl<H: Hardware, I: Interrupt> Lanes<H, I> {
    /// A device with queues, each with its interrupt; `None` without memory.
    pub fn new(hardware: H, queues: Vec<H::Queue>, interrupts: Vec<I>) -> Option<Self> {
        let mut lanes = Vec::new();
        lanes.try_reserve_exact(queues.len()).ok()?;
        lanes.extend((0..).zip(queues.into_iter().zip(interrupts)).map(
            |(number, (queue, interrupt))| Lane {
                number,
                state: Mutex::new(State {
                    queue,
                    tickets: [FREE; TICKETS],
                    is_led: false,
                    next_look: Deadline::PASSED,
                }),
                changed: Condvar::new(),
                interrupt,
            },
        ));
        Some(Self {
            hardware,
            lanes,
            resetting: Mutex::new(()),
        })
    }

    /// The device.
    pub fn hardware(&self) -> &H {
        &self.hardware
    }

    /// Number of queues.
    pub fn queues(&self) -> usize {
        self.lanes.len()
    }

    /// Does all requests of a batch, as [`BlockDevice::submit`].
    pub fn submit(&self, device: &dyn BlockDevice, target: &H::Target, batch: &mut [Request<'_>]) {
        for group in batch.chunks_mut(GROUP) {
            self.submit_group(device, target, group);
        }
    }

    /// Offers requests to the device and waits until all have an outcome.
    fn submit_group(
        &self,
        device: &dyn BlockDevice,
        target: &H::Target,
        group: &mut [Request<'_>],
    ) {
        let (lane, mut state) = self.enter(group.len());
        let taken: ArrayVec<u8, GROUP> = group.iter().map(|_| state.take_ticket()).collect();
        for (request, ticket) in group.iter().zip(&taken) {
            let checked = request.operation.check(device);
            state.tickets[usize::from(*ticket)].outcome = checked;
            if checked.is_ok() {
                let operation = &request.operation;
                let offer = |queue: &mut H::Queue, done, tag| {
                    self.hardware.offer(queue, target, operation, done, tag)
                };
                state = match operation.range() {
                    Some((_, 0)) => state,
                    range => {
                        let len = range.map_or(0, |(_, len)| len);
                        self.offer(lane, state, *ticket, len, offer)
                    }
                };
            }
        }
        state = self.notify(lane, state);
        let is_over = |state: &State<H::Queue>| {
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

    /// The queue of this processor, with room for so many requests.
    fn enter(&self, requests: usize) -> (&Lane<H::Queue, I>, Guard<'_, H>) {
        let lane = &self.lanes[H::cpu() % self.lanes.len()];
        let mut state = lane.state.lock();
        // Who has some gives them back without waiting for others.
        while state.tickets.iter().filter(|it| !it.is_taken).count() < requests {
            state = lane.changed.wait(state);
        }
        (lane, state)
    }

    /// Does one thing that is no request of the block layer's, and that `offer` offers.
    ///
    /// # Errors
    /// The outcome of what was done.
    pub fn run(
        &self,
        mut offer: impl FnMut(&mut H::Queue, Tag) -> Result<(), NotOffered>,
    ) -> Result<(), Errno> {
        let (lane, mut state) = self.enter(1);
        let ticket = state.take_ticket();
        let once = |queue: &mut H::Queue, _, tag| offer(queue, tag).map(|()| 0);
        state = self.offer(lane, state, ticket, 0, once);
        state = self.notify(lane, state);
        while state.tickets[usize::from(ticket)].left > 0 {
            state = self.progress(lane, state);
        }
        let own = &mut state.tickets[usize::from(ticket)];
        own.is_taken = false;
        let outcome = own.outcome;
        lane.changed.notify_all(&state);
        outcome
    }

    /// Resets the device, which then does everything again that was in flight. Returns when it is
    /// back, or gone, or still does not stop: then nothing has ended.
    pub fn renew(&self) {
        self.reset(Reason::Wanted);
    }

    /// Offers a request of `len` bytes in as many parts as the device wants, when there is room for
    /// them.
    fn offer<'a>(
        &'a self,
        lane: &'a Lane<H::Queue, I>,
        mut state: Guard<'a, H>,
        ticket: u8,
        len: u64,
        mut part: impl FnMut(&mut H::Queue, u64, Tag) -> Result<u64, NotOffered>,
    ) -> Guard<'a, H> {
        let tag = Tag {
            lane: lane.number,
            ticket,
        };
        let mut done = 0;
        while state.tickets[usize::from(ticket)].outcome.is_ok() {
            match part(&mut state.queue, done, tag) {
                Ok(part) => {
                    state.tickets[usize::from(ticket)].left += 1;
                    done += part;
                    if done >= len {
                        break;
                    }
                }
                Err(NotOffered::Full) => {
                    state = self.notify(lane, state);
                    state = self.progress(lane, state);
                }
                Err(NotOffered::Broken) => {
                    drop(state);
                    self.reset(Reason::Broken);
                    state = lane.state.lock();
                }
                Err(NotOffered::Over(outcome)) => {
                    state.tickets[usize::from(ticket)].outcome = outcome;
                    break;
                }
            }
        }
        state
    }

    /// Tells the device of what was offered.
    fn notify<'a>(&'a self, lane: &'a Lane<H::Queue, I>, mut state: Guard<'a, H>) -> Guard<'a, H> {
        if self.hardware.notify(&mut state.queue).is_err() {
            drop(state);
            self.reset(Reason::Broken);
            state = lane.state.lock();
        }
        state
    }

    /// Takes everything that is over; how many parts it were.
    fn take_ended(&self, state: &mut State<H::Queue>) -> Result<usize, Broken> {
        let mut count = 0;
        while let Some(ended) = self.hardware.take(&mut state.queue)? {
            end(&mut state.tickets, &ended);
            count += 1;
        }
        Ok(count)
    }

    /// Takes what is over, or waits until something is. Who calls this looks again afterwards: it
    /// may return without anything having happened.
    fn progress<'a>(
        &'a self,
        lane: &'a Lane<H::Queue, I>,
        mut state: Guard<'a, H>,
    ) -> Guard<'a, H> {
        let reason = match self.take_ended(&mut state) {
            Ok(0) if state.is_led => return lane.changed.wait(state),
            Ok(0) => match self.hardware.arm(&mut state.queue) {
                Ok(true) => return state,
                Ok(false) => {
                    if state.next_look.has_passed()
                        && let Err(reason) = self.look(lane, &mut state)
                    {
                        reason
                    } else {
                        let deadline = state.next_look;
                        state.is_led = true;
                        drop(state);
                        let was_heard = lane.interrupt.event().wait_until(deadline);
                        state = lane.state.lock();
                        state.is_led = false;
                        lane.changed.notify_all(&state);
                        if was_heard {
                            return state;
                        }
                        match self.take_ended(&mut state) {
                            Ok(0) => return state,
                            Ok(ended) => {
                                let name = self.hardware.name();
                                log::warn!("{name}: no interrupt came for {ended} requests");
                                lane.changed.notify_all(&state);
                                return state;
                            }
                            Err(Broken) => Reason::Broken,
                        }
                    }
                }
                Err(Broken) => Reason::Broken,
            },
            Ok(_) => {
                lane.changed.notify_all(&state);
                return state;
            }
            Err(Broken) => Reason::Broken,
        };
        drop(state);
        self.reset(reason);
        lane.state.lock()
    }

    /// Looks at the requests that are under way, and notes those that were at the last look, too.
    fn look(&self, lane: &Lane<H::Queue, I>, state: &mut State<H::Queue>) -> Result<(), Reason> {
        state.next_look = Deadline::after_ns(LOOK_NS);
        if self.hardware.needs_reset() {
            return Err(Reason::Asked);
        }
        for (number, ticket) in (0..).zip(&mut state.tickets) {
            if ticket.left > 0 {
                ticket.looks = ticket.looks.saturating_add(1);
                let tag = Tag {
                    lane: lane.number,
                    ticket: number,
                };
                if ticket.looks > 1 {
                    self.hardware.late(&mut state.queue, tag, ticket.looks)?;
                }
            }
        }
        Ok(())
    }

    /// Resets the device, which has it do everything again that was in flight. Returns when it is
    /// back, or gone, or still does not stop: then nothing has ended.
    fn reset(&self, reason: Reason) {
        let name = self.hardware.name();
        let is_stuck = {
            let _one = self.resetting.lock();
            let mut states: ArrayVec<Guard<'_, H>, MAX_LANES> =
                self.lanes.iter().map(|lane| lane.state.lock()).collect();
            let broken = states.iter().find_map(|state| H::broken(&state.queue));
            match (reason, broken) {
                // Somebody was faster.
                (Reason::Broken, None) => return,
                (Reason::Broken, Some(rule)) => log::error!("{name}: {rule}: reset"),
                (Reason::Asked, _) if !self.hardware.needs_reset() => return,
                (Reason::Asked, _) => log::error!("{name}: it asks for a reset"),
                (Reason::Wanted, _) => log::info!("{name}: reset, as was asked for"),
            }
            let mut queues = ArrayVec::<&mut H::Queue, MAX_LANES>::new();
            let mut tickets = ArrayVec::<&mut Tickets, MAX_LANES>::new();
            for state in &mut states {
                let state = &mut **state;
                if matches!(reason, Reason::Wanted) {
                    H::forgive(&mut state.queue);
                }
                queues.push(&mut state.queue);
                tickets.push(&mut state.tickets);
            }
            let mut ended = |ended: Ended| end(tickets[usize::from(ended.tag.lane)], &ended);
            let result = self.hardware.recover(&mut queues, &mut ended);
            for ticket in tickets.into_iter().flatten() {
                ticket.looks = 0;
            }
            drop(queues);
            for (lane, state) in self.lanes.iter().zip(&states) {
                lane.changed.notify_all(state);
                lane.interrupt.event().set();
            }
            result == Err(Stuck) && states.iter().any(|state| H::in_flight(&state.queue) > 0)
        };
        if is_stuck {
            task::sleep_until(Deadline::after_ns(RETRY_NS));
        }
    }
}

impl<Q> State<Q> {
    /// Takes a ticket, of which there is one.
    fn take_ticket(&mut self) -> u8 {
        let free = self.tickets.iter().position(|ticket| !ticket.is_taken);
        let index = free.expect("there are enough, under the lock that says so");
        self.tickets[index] = Ticket {
            is_taken: true,
            ..FREE
        };
        index as u8
    }
}

/// Notes the end of a part of a request.
fn end(tickets: &mut Tickets, ended: &Ended) {
    let ticket = &mut tickets[usize::from(ended.tag.ticket)];
    ticket.left -= 1;
    ticket.looks = 0;
    ticket.outcome = ticket.outcome.and(ended.outcome);
}

/// Lends the pages of a transfer from byte `done` of it on, as many as a part has room for and
/// `fits` accepts. Nothing if a part may have more bytes than it has.
pub fn lend<L: Lent>(
    transfer: &block::Transfer<'_>,
    done: u64,
    mut fits: impl FnMut(&L, usize) -> bool,
) -> (ArrayVec<L, MAX_PIECES>, usize) {
    const PAGE: usize = abi::layout::PAGE_SIZE;
    let mut lent = ArrayVec::new();
    let done = done as usize;
    let mut part = 0;
    for page in transfer.pages.iter().skip(done / PAGE) {
        let len = (transfer.len - done - part).min(PAGE);
        if len == 0 || lent.is_full() {
            break;
        }
        let page = L::lend(page);
        if !fits(&page, len) {
            page.completed();
            break;
        }
        lent.push(page);
        part += len;
    }
    (lent, part)
}
