//! The queue before a card: frames that it had no room for, and flows that wait for their turn to
//! send (`docs/ip.md`, "The queue before a card").

use alloc::collections::VecDeque;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use abi::errno::Errno;
use fs::Result;
use task::Mutex;

use super::link::LinkDevice;
use crate::socket::FrameRefused;
use crate::socket::send_account::{SendAccount, SendCharge};

/// Frames that leave before a flow has its turn, and segments that a flow may send in one.
pub(super) const TURN: usize = 16;
/// Bytes of frames that may wait, however few they are: what `txqueuelen` is by default, of the
/// longest frames that are usual.
const MOST_BYTES: usize = 2 << 20;
/// Places that a queue without entries keeps.
const KEPT: usize = 64;

/// A flow that makes its frames when there is room for them.
pub(super) trait Flow: Send + Sync {
    /// Sends up to [`TURN`] segments by a card, and waits again if it has more. No lock of the card
    /// is held.
    fn take_turn(&self, card: &LinkDevice);
}

/// The place of a frame before a card that is busy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum QueuePlace {
    /// Behind the frames that wait.
    Behind,
    /// Before them: it is of the flow whose turn it is.
    Turn,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Nothing waits: frames are given to the device at once.
    Open,
    /// The device has had no room for the first frame that waits, and tells when it has.
    Waiting,
    /// A thread gives the device what waits.
    Serving,
}

/// A frame that waits, and what it takes up of its sender's buffer.
struct WaitingFrame {
    frame: Vec<u8>,
    charge: Option<SendCharge>,
}

/// Fate of frames that were given to the device.
enum Given {
    /// The device has taken them.
    All,
    /// The device has taken one, for which its sender has room again. It is to be told without the
    /// lock, and then there may be more.
    One(SendCharge),
    /// There is no room for the rest.
    Some,
}

/// A flow that waits.
struct WaitingFlow {
    flow: Weak<dyn Flow>,
    /// The flow comes behind so many of all frames that have ever waited: one may be its own.
    behind: u64,
}

struct Inner {
    state: State,
    /// Frames of the flow that had its turn last.
    turn: VecDeque<Vec<u8>>,
    frames: VecDeque<WaitingFrame>,
    /// Bytes of `frames`.
    bytes: usize,
    /// Frames that go before a flow has its turn: that is no matter of how often there is room.
    before_flow: usize,
    /// Frames that were ever put into `frames`.
    pushed: u64,
    flows: VecDeque<WaitingFlow>,
}

/// The queue before a card.
pub(super) struct SendQueue {
    inner: Mutex<Inner>,
    /// Whether the state is another than [`State::Open`].
    is_busy: AtomicBool,
    /// Frames that may wait.
    limit: AtomicU32,
    busy_cards: Arc<AtomicUsize>,
}

impl SendQueue {
    /// The queue of a card; `busy_cards` counts those of the host before which something waits.
    pub(super) fn new(limit: u32, busy_cards: Arc<AtomicUsize>) -> Self {
        Self {
            inner: Mutex::new(Inner {
                state: State::Open,
                turn: VecDeque::new(),
                frames: VecDeque::new(),
                bytes: 0,
                before_flow: TURN,
                pushed: 0,
                flows: VecDeque::new(),
            }),
            is_busy: AtomicBool::new(false),
            limit: AtomicU32::new(limit),
            busy_cards,
        }
    }

    /// Sets how many frames may wait.
    pub(super) fn set_limit(&self, limit: u32) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// Whether anything waits. Who has sent a frame that waits sees that, as long as it does.
    pub(super) fn is_busy(&self) -> bool {
        self.is_busy.load(Ordering::Acquire)
    }

    fn set_state(&self, inner: &mut Inner, state: State) {
        let (was_busy, is_busy) = (inner.state != State::Open, state != State::Open);
        inner.state = state;
        if was_busy == is_busy {
            return;
        }
        if is_busy {
            self.busy_cards.fetch_add(1, Ordering::Relaxed);
        } else {
            self.busy_cards.fetch_sub(1, Ordering::Relaxed);
            inner.turn.shrink_to(KEPT);
            inner.frames.shrink_to(KEPT);
            inner.flows.shrink_to(KEPT);
        }
        self.is_busy.store(is_busy, Ordering::Release);
    }
}

impl Drop for SendQueue {
    fn drop(&mut self) {
        if self.is_busy() {
            self.busy_cards.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl LinkDevice {
    /// Sends a frame, or has it wait for room.
    ///
    /// # Errors
    /// `ENOBUFS`: it is lost, and counted.
    pub(super) fn transmit(&self, frame: Vec<u8>, place: QueuePlace) -> Result<()> {
        self.transmit_for(None, frame, place)
    }

    /// Sends a frame of a socket's, as [`Self::transmit`]: while it waits it takes up room of that
    /// one's buffer.
    ///
    /// # Errors
    /// `ENOBUFS`: it is lost, and counted.
    pub(super) fn transmit_for(
        &self,
        sender: Option<&Arc<SendAccount>>,
        frame: Vec<u8>,
        place: QueuePlace,
    ) -> Result<()> {
        let frame = if self.queue.is_busy() {
            frame
        } else {
            match self.give(frame) {
                Ok(()) => return Ok(()),
                Err(FrameRefused::Lost) => return Err(Errno::ENOBUFS),
                Err(FrameRefused::NoRoom(frame)) => frame.data,
            }
        };
        let sender = sender.filter(|_| self.device.drains());
        let charge = sender.map(|sender| sender.charge(frame.len()));
        self.put(WaitingFrame { frame, charge }, place)
            .inspect_err(|_| self.sent.count_dropped())
    }

    /// Puts a frame into the queue.
    fn put(&self, waiting: WaitingFrame, place: QueuePlace) -> Result<()> {
        let queue = &self.queue;
        // Its sender is told when the lock has been given back.
        let mut given = Given::All;
        let mut inner = queue.inner.lock();
        match place {
            QueuePlace::Turn => {
                inner.turn.try_reserve(1).map_err(|_| Errno::ENOBUFS)?;
                inner.turn.push_back(waiting.frame);
            }
            QueuePlace::Behind => {
                let limit = queue.limit.load(Ordering::Relaxed) as usize;
                let bytes = inner.bytes + waiting.frame.len();
                let has_room = inner.frames.len() < limit && bytes <= MOST_BYTES;
                if !has_room || !vm::has_kernel_room() || inner.frames.try_reserve(1).is_err() {
                    return Err(Errno::ENOBUFS);
                }
                inner.bytes = bytes;
                inner.pushed += 1;
                inner.frames.push_back(waiting);
            }
        }
        // The device may have told that it has room before the frame was here. From now on it finds
        // the frame.
        if inner.state == State::Open {
            // No other one waits.
            if self.give_turn(&mut inner) {
                given = self.give_frames(&mut inner);
            }
            let is_empty = inner.turn.is_empty() && inner.frames.is_empty();
            let state = if is_empty {
                State::Open
            } else {
                State::Waiting
            };
            inner.before_flow = TURN;
            queue.set_state(&mut inner, state);
        }
        drop(inner);
        drop(given);
        Ok(())
    }

    /// Gives the device the frames of the flow that had its turn last. Returns whether it has taken
    /// them.
    fn give_turn(&self, inner: &mut Inner) -> bool {
        while let Some(frame) = inner.turn.pop_front() {
            if let Err(FrameRefused::NoRoom(frame)) = self.give(frame) {
                inner.turn.push_front(frame.data);
                return false;
            }
        }
        true
    }

    /// Gives the device the other frames that go before a flow has its turn.
    fn give_frames(&self, inner: &mut Inner) -> Given {
        while inner.before_flow > 0
            && let Some(WaitingFrame { frame, charge }) = inner.frames.pop_front()
        {
            let length = frame.len();
            if let Err(FrameRefused::NoRoom(frame)) = self.give(frame) {
                let frame = frame.data;
                inner.frames.push_front(WaitingFrame { frame, charge });
                return Given::Some;
            }
            inner.bytes -= length;
            inner.before_flow -= 1;
            if let Some(charge) = charge {
                return Given::One(charge);
            }
        }
        Given::All
    }

    /// Has a flow wait for its turn, if the card is busy, and returns whether it does. `had_turn`:
    /// it waits again in its turn, and no frame of it is among those that wait.
    pub(super) fn wait(&self, flow: Weak<dyn Flow>, had_turn: bool) -> bool {
        let mut inner = self.queue.inner.lock();
        if inner.state == State::Open {
            return false;
        }
        let Inner { flows, pushed, .. } = &mut *inner;
        if flows.len() == flows.capacity() {
            // Flows that have ended take no room from others, nor memory for ever.
            flows.retain(|waiting| waiting.flow.strong_count() > 0);
            let more = if 2 * flows.len() < flows.capacity() {
                1
            } else {
                flows.len() + 1
            };
            if flows.try_reserve(more).is_err() {
                return false;
            }
        }
        flows.push_back(WaitingFlow {
            flow,
            behind: if had_turn { 0 } else { *pushed },
        });
        true
    }

    /// The device has room again, or takes nothing any more: gives it what waits, and flows their
    /// turns, until it has none.
    pub(super) fn serve(&self) {
        {
            let mut inner = self.queue.inner.lock();
            if inner.state != State::Waiting {
                // Whoever is at it is told of the room by the device itself.
                return;
            }
            self.queue.set_state(&mut inner, State::Serving);
        }
        self.serve_turns();
    }

    /// Loses what waits, for a link that has gone, and gives flows their turns.
    pub(super) fn flush(&self) {
        // Their senders are told when the lock has been given back.
        let lost;
        {
            let mut inner = self.queue.inner.lock();
            let turn = core::mem::take(&mut inner.turn);
            lost = core::mem::take(&mut inner.frames);
            (0..turn.len() + lost.len()).for_each(|_| self.sent.count_dropped());
            inner.bytes = 0;
            if inner.state != State::Waiting {
                return;
            }
            self.queue.set_state(&mut inner, State::Serving);
        }
        drop(lost);
        self.serve_turns();
    }

    fn serve_turns(&self) {
        while let Some(flow) = self.next_turn() {
            if let Some(flow) = flow.upgrade() {
                flow.take_turn(self);
            }
        }
    }

    /// Gives the device frames until it is a flow's turn. `None` if there is no room, or nothing
    /// that waits.
    fn next_turn(&self) -> Option<Weak<dyn Flow>> {
        let queue = &self.queue;
        let mut inner = queue.inner.lock();
        loop {
            let given = match self.give_turn(&mut inner) {
                true => self.give_frames(&mut inner),
                false => Given::Some,
            };
            match given {
                Given::All => {}
                Given::One(charge) => {
                    drop(inner);
                    drop(charge);
                    inner = queue.inner.lock();
                    continue;
                }
                Given::Some => {
                    queue.set_state(&mut inner, State::Waiting);
                    return None;
                }
            }
            inner.before_flow = TURN;
            let sent = inner.pushed - inner.frames.len() as u64;
            match inner.flows.pop_front() {
                Some(first) if first.behind <= sent => return Some(first.flow),
                // A frame of its own may still wait, which it must not overtake.
                Some(first) => inner.flows.push_back(first),
                None if inner.frames.is_empty() => {
                    queue.set_state(&mut inner, State::Open);
                    return None;
                }
                None => {}
            }
        }
    }

    /// Gives the device a frame, and counts it unless it has no room.
    fn give(&self, frame: Vec<u8>) -> core::result::Result<(), FrameRefused> {
        let length = frame.len();
        let given = self.device.transmit(crate::socket::Frame { data: frame });
        match &given {
            Ok(()) => self.sent.count(length, false),
            Err(FrameRefused::Lost) => self.sent.count_dropped(),
            Err(FrameRefused::NoRoom(_)) => {}
        }
        given
    }
}

#[cfg(test)]
mod tests;
