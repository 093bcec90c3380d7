//! Disks with queues: how threads put requests into them and wait for their ends (`docs/virtio.md`,
//! "The disk in the kernel").
//!
//! A thread puts its requests into the queue of the processor that it is on, and waits until each
//! has an outcome. One of those that wait for a queue waits for its interrupt, *leads*: it takes
//! what is over, for all, and wakes those whose requests that were. Who ends and leaves nobody that
//! leads has another one lead. So there is no thread of the driver's, a request that is alone costs
//! one switch away and one back, and nobody is woken for another one's.

use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};

use abi::errno::Errno;
use arrayvec::ArrayVec;
use block::{BlockDevice, Operation, Request};
use task::{Condvar, Deadline, Mutex, MutexGuard};
use virtqueue::Address;
use vm::Page;

use crate::gate::Ends;
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
    pub pages: PartPages<L>,
}

/// Pages of a part of a request, up to [`MAX_PIECES`].
///
/// Most parts are one page, which is kept here; further ones are elsewhere, as a part is passed on
/// by value several times on its way into a queue and out of it.
pub struct PartPages<L> {
    first: Option<L>,
    more: Vec<L>,
}

impl<L> Default for PartPages<L> {
    fn default() -> Self {
        Self {
            first: None,
            more: Vec::new(),
        }
    }
}

impl<L> PartPages<L> {
    /// Whether there is room for one more. There always is for the first, however short memory is:
    /// who writes back because of that goes on page by page.
    pub fn has_room(&mut self) -> bool {
        match self.first {
            None => true,
            Some(_) if self.more.is_empty() => self.more.try_reserve_exact(MAX_PIECES - 1).is_ok(),
            Some(_) => self.more.len() < MAX_PIECES - 1,
        }
    }

    /// Adds a page, for which there is room.
    pub fn push(&mut self, page: L) {
        match self.first {
            None => self.first = Some(page),
            Some(_) => self.more.push(page),
        }
    }
}

impl<L> IntoIterator for PartPages<L> {
    type Item = L;
    type IntoIter = core::iter::Chain<core::option::IntoIter<L>, alloc::vec::IntoIter<L>>;

    fn into_iter(self) -> Self::IntoIter {
        self.first.into_iter().chain(self.more)
    }
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

    /// Resets the device for good: everything that was in flight has `ended`, and nothing can be
    /// offered any more.
    ///
    /// # Errors
    /// [`Stuck`].
    fn end(
        &self,
        queues: &mut [&mut Self::Queue],
        ended: &mut dyn FnMut(Ended),
    ) -> Result<(), Stuck>;
}

/// A request that is under way: in how many parts, and how those ended that did.
#[derive(Clone, Copy)]
struct Ticket {
    left: u32,
    /// Looks at which it was under way, since a part of it ended.
    looks: u8,
    outcome: Result<(), Errno>,
}

const NEW: Ticket = Ticket {
    left: 0,
    looks: 0,
    outcome: Ok(()),
};

type Tickets = [Ticket; TICKETS];

/// Some of the tickets, as bits.
type Set = u64;
const _: () = assert!(TICKETS == Set::BITS as usize);

struct State<Q> {
    queue: Q,
    tickets: Tickets,
    /// Tickets that nobody has.
    free: Set,
    /// Tickets whose threads wait until they are over.
    waiting: Set,
    /// Tickets whose threads wait until there is room in the device's queue.
    wanting_room: Set,
    /// Tickets that are over, and of which their threads were not told.
    over: Set,
    /// Whether somebody waits for the interrupt.
    is_led: bool,
    /// When the requests are looked at next.
    next_look: Deadline,
}

/// A queue, and those who wait for it.
struct Lane<Q, I> {
    number: u8,
    state: Mutex<State<Q>>,
    /// There are free tickets.
    given_back: Condvar,
    /// The thread with that ticket, which waits, is to look again.
    changed: [Condvar; TICKETS],
    interrupt: I,
}

type Guard<'a, H> = MutexGuard<'a, State<<H as Hardware>::Queue>>;

/// A device with its queues.
pub struct Lanes<H: Hardware, I> {
    hardware: H,
    lanes: Vec<Lane<H::Queue, I>>,
    /// Held by who resets the device.
    resetting: Mutex<()>,
    /// Flag: the device leaves, and nobody waits for what it does.
    leaves: AtomicBool,
}

/// Requests that are under way fail, once the device was reset; it does not come back.
impl<H: Hardware, I: Interrupt> Ends for Lanes<H, I> {
    fn end(&self) {
        self.leaves.store(true, Ordering::Release);
        self.reset(Reason::Leaves);
    }
}

/// Has all requests of a batch fail, as those of a device that has left.
pub fn fail(batch: &mut [Request<'_>]) {
    for request in batch {
        request.outcome = Err(Errno::EIO);
    }
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
    /// The device leaves.
    Leaves,
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
                    tickets: [NEW; TICKETS],
                    free: Set::MAX,
                    waiting: 0,
                    wanting_room: 0,
                    over: 0,
                    is_led: false,
                    next_look: Deadline::PASSED,
                }),
                given_back: Condvar::new(),
                changed: [const { Condvar::new() }; TICKETS],
                interrupt,
            },
        ));
        Some(Self {
            hardware,
            lanes,
            resetting: Mutex::new(()),
            leaves: AtomicBool::new(false),
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
        for &ticket in &taken {
            state = self.wait(lane, state, ticket);
        }
        for (request, ticket) in group.iter_mut().zip(taken) {
            request.outcome = state.give_back(ticket);
        }
        lane.leave(&mut state);
    }

    /// Waits until a request is over.
    fn wait<'a>(
        &'a self,
        lane: &'a Lane<H::Queue, I>,
        mut state: Guard<'a, H>,
        ticket: u8,
    ) -> Guard<'a, H> {
        while state.tickets[usize::from(ticket)].left > 0 {
            state = self.progress(lane, state, ticket, Until::Over);
        }
        state
    }

    /// The queue of this processor, with room for so many requests.
    fn enter(&self, requests: usize) -> (&Lane<H::Queue, I>, Guard<'_, H>) {
        let lane = &self.lanes[H::cpu() % self.lanes.len()];
        let mut state = lane.state.lock();
        // Who has some gives them back without waiting for others.
        while (state.free.count_ones() as usize) < requests {
            state = lane.given_back.wait(state);
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
        state = self.wait(lane, state, ticket);
        let outcome = state.give_back(ticket);
        lane.leave(&mut state);
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
                    state = self.progress(lane, state, ticket, Until::Room);
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

    /// Takes everything that is over, and wakes those who wait for that; how many parts it were.
    fn take_ended(
        &self,
        lane: &Lane<H::Queue, I>,
        state: &mut Guard<'_, H>,
    ) -> Result<usize, Broken> {
        let mut count = 0;
        let broken = loop {
            match self.hardware.take(&mut state.queue) {
                Ok(Some(ended)) => {
                    let state = &mut **state;
                    end(&mut state.tickets, &mut state.over, &ended);
                    count += 1;
                }
                Ok(None) => break None,
                Err(broken) => break Some(broken),
            }
        };
        if count > 0 {
            lane.tell(state);
        }
        broken.map_or(Ok(count), Err)
    }

    /// Takes what is over, or waits until something is, or as the thread with this ticket until
    /// that may have what it waits for. Who calls this looks again afterwards: it may return
    /// without anything having happened.
    fn progress<'a>(
        &'a self,
        lane: &'a Lane<H::Queue, I>,
        mut state: Guard<'a, H>,
        ticket: u8,
        until: Until,
    ) -> Guard<'a, H> {
        let reason = match self.take_ended(lane, &mut state) {
            Ok(0) if state.is_led => return lane.wait(state, ticket, until),
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
                        if was_heard {
                            return state;
                        }
                        match self.take_ended(lane, &mut state) {
                            Ok(0) => return state,
                            Ok(ended) => {
                                let name = self.hardware.name();
                                log::warn!("{name}: no interrupt came for {ended} requests");
                                return state;
                            }
                            Err(Broken) => Reason::Broken,
                        }
                    }
                }
                Err(Broken) => Reason::Broken,
            },
            Ok(_) => return state,
            Err(Broken) => Reason::Broken,
        };
        drop(state);
        self.reset(reason);
        lane.state.lock()
    }

    /// Looks at the requests that are under way, and notes those that were at the last look, too.
    fn look(&self, lane: &Lane<H::Queue, I>, state: &mut State<H::Queue>) -> Result<(), Reason> {
        state.next_look = Deadline::after_ns(LOOK_NS);
        if self.leaves.load(Ordering::Acquire) {
            // It did not stop when it was to.
            return Err(Reason::Leaves);
        }
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
                (Reason::Leaves, _) => log::info!("{name}: reset, as it leaves"),
                (Reason::Wanted, _) => log::info!("{name}: reset, as was asked for"),
            }
            let mut queues = ArrayVec::<&mut H::Queue, MAX_LANES>::new();
            let mut tickets = ArrayVec::<(&mut Tickets, &mut Set), MAX_LANES>::new();
            for state in &mut states {
                let state = &mut **state;
                if matches!(reason, Reason::Wanted) {
                    H::forgive(&mut state.queue);
                }
                queues.push(&mut state.queue);
                tickets.push((&mut state.tickets, &mut state.over));
            }
            let mut ended = |ended: Ended| {
                let (tickets, over) = &mut tickets[usize::from(ended.tag.lane)];
                end(tickets, over, &ended);
            };
            let result = match self.leaves.load(Ordering::Acquire) {
                true => self.hardware.end(&mut queues, &mut ended),
                false => self.hardware.recover(&mut queues, &mut ended),
            };
            for ticket in tickets.into_iter().flat_map(|(tickets, _)| tickets) {
                ticket.looks = 0;
            }
            drop(queues);
            for (lane, state) in self.lanes.iter().zip(&mut states) {
                state.over = 0;
                lane.wake(state, Set::MAX);
                lane.interrupt.event().set();
            }
            result == Err(Stuck) && states.iter().any(|state| H::in_flight(&state.queue) > 0)
        };
        if is_stuck {
            task::sleep_until(Deadline::after_ns(RETRY_NS));
        }
    }
}

/// End of a thread's wait.
#[derive(Clone, Copy)]
enum Until {
    /// The thread's request is over.
    Over,
    /// There is room in the device's queue.
    Room,
}

impl<Q, I> Lane<Q, I> {
    /// Waits, while another one leads, as the thread with this ticket.
    fn wait<'a>(
        &self,
        mut state: MutexGuard<'a, State<Q>>,
        ticket: u8,
        until: Until,
    ) -> MutexGuard<'a, State<Q>> {
        let bit = 1 << ticket;
        state.waiting |= bit;
        if matches!(until, Until::Room) {
            state.wanting_room |= bit;
        }
        self.changed[usize::from(ticket)].wait(state)
    }

    /// Wakes those of some tickets that wait.
    fn wake(&self, state: &mut MutexGuard<'_, State<Q>>, tickets: Set) {
        let mut left = state.waiting & tickets;
        state.waiting &= !left;
        state.wanting_room &= !left;
        while left != 0 {
            self.changed[left.trailing_zeros() as usize].notify_all(state);
            left &= left - 1;
        }
    }

    /// Wakes those whose requests are over, and as there is room now, those who want that.
    fn tell(&self, state: &mut MutexGuard<'_, State<Q>>) {
        let tickets = core::mem::take(&mut state.over) | state.wanting_room;
        self.wake(state, tickets);
    }

    /// The thread has given its tickets back. If nobody leads those that wait, one of them does.
    fn leave(&self, state: &mut MutexGuard<'_, State<Q>>) {
        self.given_back.notify_all(state);
        if !state.is_led {
            let first = state.waiting & state.waiting.wrapping_neg();
            self.wake(state, first);
        }
    }
}

impl<Q> State<Q> {
    /// Takes a ticket, of which there is one.
    fn take_ticket(&mut self) -> u8 {
        assert!(
            self.free != 0,
            "there are enough, under the lock that says so"
        );
        let ticket = self.free.trailing_zeros();
        self.free &= self.free - 1;
        self.tickets[ticket as usize] = NEW;
        ticket as u8
    }

    /// Gives a ticket back; the outcome of its request.
    fn give_back(&mut self, ticket: u8) -> Result<(), Errno> {
        self.free |= 1 << ticket;
        self.tickets[usize::from(ticket)].outcome
    }
}

/// Notes the end of a part of a request, and whether it is `over` with that.
fn end(tickets: &mut Tickets, over: &mut Set, ended: &Ended) {
    let ticket = &mut tickets[usize::from(ended.tag.ticket)];
    ticket.left -= 1;
    if ticket.left == 0 {
        *over |= 1 << ended.tag.ticket;
    }
    ticket.looks = 0;
    ticket.outcome = ticket.outcome.and(ended.outcome);
}

/// Lends the pages of a transfer from byte `done` of it on, as many as a part has room for and
/// `fits` accepts. Nothing if a part may have more bytes than it has.
pub fn lend<L: Lent>(
    transfer: &block::Transfer<'_>,
    done: u64,
    mut fits: impl FnMut(&L, usize) -> bool,
) -> (PartPages<L>, usize) {
    const PAGE: usize = abi::layout::PAGE_SIZE;
    let mut lent = PartPages::default();
    let done = done as usize;
    let mut part = 0;
    for page in transfer.pages.iter().skip(done / PAGE) {
        let len = (transfer.len - done - part).min(PAGE);
        if len == 0 || !lent.has_room() {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_has_so_many_pages_in_their_order() {
        let mut pages = PartPages::default();
        for page in 0..MAX_PIECES {
            assert!(pages.has_room());
            pages.push(page);
        }
        assert!(!pages.has_room());
        assert!(pages.into_iter().eq(0..MAX_PIECES));
    }
}
