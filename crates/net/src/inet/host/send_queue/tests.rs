//! The queue before a card against a device of little room.

use std::collections::BTreeMap;
use std::sync::Mutex as StdMutex;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::socket::{Frame, NetDevice};

/// A device with a ring of so many frames.
#[derive(Default)]
struct Ring {
    inside: StdMutex<Inside>,
}

#[derive(Default)]
struct Inside {
    room: usize,
    /// Frames in the ring, and those that were sent.
    ring: Vec<Vec<u8>>,
    sent: Vec<Vec<u8>>,
    /// Somebody was told that there is no room.
    is_awaited: bool,
    is_gone: bool,
}

impl NetDevice for Ring {
    fn transmit(&self, frame: Frame) -> core::result::Result<(), FrameRefused> {
        let mut inside = self.inside.lock().unwrap();
        if inside.is_gone {
            return Err(FrameRefused::Lost);
        }
        if inside.ring.len() >= inside.room {
            inside.is_awaited = true;
            return Err(FrameRefused::NoRoom(frame));
        }
        inside.ring.push(frame.data);
        Ok(())
    }
}

impl Ring {
    /// Sends the first frames of the ring; whether somebody waits for the room.
    fn send(&self, count: usize) -> bool {
        let mut inside = self.inside.lock().unwrap();
        let count = count.min(inside.ring.len());
        let sent: Vec<_> = inside.ring.drain(..count).collect();
        inside.sent.extend(sent);
        count > 0 && core::mem::take(&mut inside.is_awaited)
    }

    fn all(&self) -> Vec<Vec<u8>> {
        let inside = self.inside.lock().unwrap();
        inside.sent.iter().chain(&inside.ring).cloned().collect()
    }
}

fn card(room: usize, limit: u32) -> (Arc<Ring>, Arc<LinkDevice>, Arc<AtomicUsize>) {
    let device = Arc::new(Ring::default());
    device.inside.lock().unwrap().room = room;
    let busy = Arc::new(AtomicUsize::new(0));
    let card = LinkDevice::new(2, device.clone(), SendQueue::new(limit, busy.clone()));
    (device, card, busy)
}

/// A flow that sends numbered frames as a connection does.
struct Numbered {
    name: u8,
    this: Weak<Numbered>,
    /// The number of the next frame, and of those that there are; whether it waits.
    state: StdMutex<(u8, u8, bool)>,
}

impl Numbered {
    fn new(name: u8) -> Arc<Self> {
        Arc::new_cyclic(|this: &Weak<Self>| Self {
            name,
            this: this.clone(),
            state: StdMutex::new((0, 0, false)),
        })
    }

    /// Has so many more frames, and sends them as far as it may.
    fn add(&self, card: &LinkDevice, count: u8) {
        self.state.lock().unwrap().1 += count;
        self.go_on(card, None);
    }

    fn go_on(&self, card: &LinkDevice, turn: Option<usize>) {
        let mut state = self.state.lock().unwrap();
        if turn.is_some() {
            state.2 = false;
        }
        let mut left = turn.unwrap_or(0);
        while state.0 < state.1 {
            if card.queue.is_busy()
                && left == 0
                && (state.2 || card.wait(self.this.clone(), turn.is_some()))
            {
                state.2 = true;
                return;
            }
            left = left.saturating_sub(1);
            let place = match turn {
                Some(_) if card.queue.is_busy() => QueuePlace::Turn,
                _ => QueuePlace::Behind,
            };
            card.transmit(std::vec![self.name, state.0], place).unwrap();
            state.0 += 1;
        }
    }
}

impl Flow for Numbered {
    fn take_turn(&self, card: &LinkDevice) {
        self.go_on(card, Some(TURN));
    }
}

/// Sends all that waits.
fn drain(device: &Ring, card: &LinkDevice) {
    while device.send(usize::MAX) {
        card.serve();
    }
}

#[test]
fn what_the_device_has_no_room_for_waits_and_goes_in_order() {
    let (device, card, busy) = card(4, 1000);
    for n in 0..100 {
        card.transmit(std::vec![n], QueuePlace::Behind).unwrap();
    }
    assert_eq!(device.all().len(), 4);
    assert!(card.queue.is_busy());
    assert_eq!(busy.load(Ordering::Relaxed), 1);
    assert_eq!(card.sent.read().packets, 4, "what waits was not sent");
    drain(&device, &card);
    let expected: Vec<_> = (0..100).map(|n| std::vec![n]).collect();
    assert_eq!(device.all(), expected);
    assert!(!card.queue.is_busy());
    assert_eq!(busy.load(Ordering::Relaxed), 0);
    let sent = card.sent.read();
    assert_eq!((sent.packets, sent.bytes, sent.dropped), (100, 100, 0));
}

#[test]
fn beyond_the_limit_frames_are_lost_and_counted() {
    let (device, card, _) = card(2, 3);
    let results: Vec<_> = (0..7)
        .map(|n| card.transmit(std::vec![n], QueuePlace::Behind))
        .collect();
    assert!(results[..5].iter().all(Result::is_ok));
    assert_eq!(results[5..], [Err(Errno::ENOBUFS); 2]);
    assert_eq!(card.sent.read().dropped, 2);
    card.queue.set_limit(5);
    assert_eq!(card.transmit(std::vec![7], QueuePlace::Behind), Ok(()));
    // However many there may be, they have no more than so many bytes.
    card.queue.set_limit(u32::MAX);
    let long = || card.transmit(std::vec![8; MOST_BYTES / 4], QueuePlace::Behind);
    assert_eq!(
        [long(), long(), long(), long()].map(|one| one.is_ok()),
        [true, true, true, false]
    );
    drain(&device, &card);
    assert_eq!(device.all().len(), 9);
    assert_eq!(long(), Ok(()), "the bytes were given back");
}

#[test]
fn a_flow_that_waits_is_not_overtaken_and_has_its_turn_among_frames() {
    let (device, card, _) = card(2, 1000);
    let flow = Numbered::new(200);
    // Two are in the ring and the third waits, behind which comes the flow.
    flow.add(&card, 50);
    assert_eq!(flow.state.lock().unwrap().0, 3);
    for n in 0..100 {
        card.transmit(std::vec![n], QueuePlace::Behind).unwrap();
    }
    drain(&device, &card);
    let all = device.all();
    let of_flow: Vec<_> = all.iter().filter(|one| one.len() == 2).collect();
    assert!(of_flow.iter().enumerate().all(|(n, one)| one[1] == n as u8));
    assert_eq!((all.len(), of_flow.len()), (150, 50));
    let last = all.iter().rposition(|one| one.len() == 2).unwrap();
    assert!(last < 3 + 3 * TURN + 50, "it ends at {last} beside a flood");
}

#[test]
fn a_flow_does_not_overtake_a_frame_of_its_own_behind_many() {
    let (device, card, _) = card(2, 1000);
    for n in 0..100 {
        card.transmit(std::vec![n], QueuePlace::Behind).unwrap();
    }
    let flow = Numbered::new(200);
    // It has found room, and the card was full then.
    card.transmit(std::vec![200, 0], QueuePlace::Behind)
        .unwrap();
    flow.state.lock().unwrap().0 = 1;
    flow.add(&card, 9);
    drain(&device, &card);
    let all = device.all();
    let of_flow: Vec<_> = all.iter().filter(|one| one.len() == 2).collect();
    assert!((0..9).eq(of_flow.iter().map(|one| usize::from(one[1]))));
}

#[test]
fn flows_take_turns() {
    let (device, card, _) = card(8, 1000);
    let flows = [1, 2, 3].map(Numbered::new);
    for flow in &flows {
        flow.add(&card, 100);
    }
    drain(&device, &card);
    let all = device.all();
    assert_eq!(all.len(), 300);
    for (at, window) in all.windows(3 * TURN + 16).enumerate().take(200) {
        let seen = [1, 2, 3].map(|name| window.iter().any(|one| one[0] == name));
        assert_eq!(seen, [true; 3], "at {at}");
    }
}

#[test]
fn flows_that_have_ended_take_no_memory_for_ever() {
    let (_device, card, _) = card(1, 10);
    let stays = Numbered::new(0);
    stays.add(&card, 5);
    for n in 0..10_000 {
        Numbered::new(n as u8).add(&card, 1);
    }
    let inner = card.queue.inner.lock();
    assert!(inner.flows.len() < 100, "{} flows", inner.flows.len());
}

#[test]
fn a_link_that_goes_loses_what_waits_and_a_device_that_is_gone_all() {
    let (device, card, busy) = card(2, 1000);
    let flow = Numbered::new(1);
    flow.add(&card, 10);
    for n in 0..5 {
        card.transmit(std::vec![n], QueuePlace::Behind).unwrap();
    }
    card.flush();
    assert_eq!(card.sent.read().dropped, 6);
    // The flow has had its turn, and what it has sent then waits again.
    assert_eq!(flow.state.lock().unwrap().0, 10);
    device.inside.lock().unwrap().is_gone = true;
    card.serve();
    assert_eq!(card.sent.read().dropped, 6 + 7);
    assert!(!card.queue.is_busy());
    assert_eq!(busy.load(Ordering::Relaxed), 0);
    assert_eq!(
        card.transmit(std::vec![9], QueuePlace::Behind),
        Err(Errno::ENOBUFS)
    );
}

#[test]
fn room_that_comes_before_the_frame_waits_is_found() {
    struct Late(Ring, StdMutex<bool>);
    impl NetDevice for Late {
        fn transmit(&self, frame: Frame) -> core::result::Result<(), FrameRefused> {
            let given = self.0.transmit(frame);
            // Once, the ring is empty again before the one who sends knows that it was full.
            if given.is_err() && !core::mem::take(&mut *self.1.lock().unwrap()) {
                self.0.send(usize::MAX);
            }
            given
        }
    }
    let device = Arc::new(Late(Ring::default(), StdMutex::new(false)));
    device.0.inside.lock().unwrap().room = 1;
    let queue = SendQueue::new(10, Arc::default());
    let card = LinkDevice::new(2, device.clone(), queue);
    card.transmit(std::vec![1], QueuePlace::Behind).unwrap();
    card.transmit(std::vec![2], QueuePlace::Behind).unwrap();
    assert_eq!(device.0.all().len(), 2);
    assert!(!card.queue.is_busy());
}

proptest! {
    #[test]
    fn nothing_is_lost_reordered_or_left(
        room in 1..20usize,
        steps in proptest::collection::vec((0..4u8, 0..6u8, 1..20u8), 1..120),
    ) {
        let (device, card, busy) = card(room, 10_000);
        let flows = [0, 1, 2].map(Numbered::new);
        let mut plain: u8 = 0;
        let mut wanted = BTreeMap::new();
        for (what, who, count) in steps {
            match what {
                0 | 1 if usize::from(who) < flows.len() => {
                    let flow = &flows[usize::from(who)];
                    let many = flow.state.lock().unwrap().1;
                    let count = count.min(250 - many);
                    flow.add(&card, count);
                    *wanted.entry(who).or_insert(0) += usize::from(count);
                }
                0 | 1 => {
                    let frame = std::vec![100, plain, 0];
                    card.transmit(frame, QueuePlace::Behind).unwrap();
                    plain = plain.wrapping_add(1);
                    *wanted.entry(100).or_insert(0) += 1;
                }
                _ => {
                    if device.send(usize::from(count)) {
                        card.serve();
                    }
                }
            }
        }
        drain(&device, &card);
        prop_assert!(!card.queue.is_busy());
        prop_assert_eq!(busy.load(Ordering::Relaxed), 0);
        let mut seen = BTreeMap::new();
        for frame in device.all() {
            let next = seen.entry(frame[0]).or_insert(0);
            prop_assert_eq!(usize::from(frame[1]), *next % 256);
            *next += 1;
        }
        wanted.retain(|_, count| *count > 0);
        prop_assert_eq!(seen, wanted);
        prop_assert_eq!(card.sent.read().dropped, 0);
    }
}
