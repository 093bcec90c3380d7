//! A card in shared pages, one end against the other.

use core::sync::atomic::Ordering;
use std::cell::RefCell;
use std::rc::Rc;
use std::vec;
use std::vec::Vec;

use abi::Network;
use abi::network::{INTERRUPT_CONFIG, INTERRUPT_QUEUES};
use proptest::prelude::*;
use virtqueue::{Address, Left, Memory, Rule, TransportError};

use super::super::*;

const ADDRESS: [u8; MAC] = [2, 0x73, 10, 88, 0, 7];
const SHAPE: Shape = Shape {
    size: 128,
    bytes: 250 << 10,
};

type Pages = Rc<Network>;

/// The supervisor, who looks when it is rung, unless it does not.
#[derive(Clone)]
struct Supervisor {
    pages: Pages,
    server: Rc<RefCell<Server<Pages>>>,
    looks: Rc<RefCell<bool>>,
    rung: Rc<RefCell<u32>>,
}

impl Supervisor {
    fn new() -> Self {
        let pages = Pages::default();
        Self {
            server: Rc::new(RefCell::new(Server::new(pages.clone(), ADDRESS))),
            pages,
            looks: Rc::new(RefCell::new(true)),
            rung: Rc::default(),
        }
    }

    /// Takes all that the instance sends, and gives it back to it. Returns the frames.
    fn echo(&self) -> Vec<Vec<u8>> {
        let mut server = self.server.borrow_mut();
        server.follow();
        let (mut frame, mut frames) = (Vec::new(), Vec::new());
        while let Some(collected) = server.collect(&mut frame) {
            if collected == Collected::Frame {
                server.deliver(&frame);
                frames.push(frame.clone());
            }
        }
        frames
    }

    fn start(&self) -> Card {
        let transport = WindowTransport::new(self.pages.clone(), self.clone());
        let mut next = 0;
        let memory = |bytes: u64| {
            let at = Address::new(next);
            next += bytes.next_multiple_of(16);
            Some((window_memory(self.pages.clone()), at))
        };
        let (nic, receive, transmit) = Nic::start(transport, SHAPE, memory).unwrap();
        self.server.borrow_mut().follow();
        Card {
            nic,
            receive,
            transmit,
        }
    }
}

impl Bell for Supervisor {
    fn ring(&self) {
        *self.rung.borrow_mut() += 1;
    }

    fn pause(&self, _: u32) {
        if *self.looks.borrow() {
            self.server.borrow_mut().follow();
        }
    }
}

struct Card {
    nic: Nic<WindowTransport<Pages, Supervisor>>,
    receive: ReceiveQueue<WindowMemory<Pages>>,
    transmit: TransmitQueue<WindowMemory<Pages>>,
}

impl Card {
    fn received(&mut self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        while let Some(received) = self.receive.receive().unwrap() {
            match received {
                Received::Frame(frame) => frames.push(frame.to_vec()),
                Received::Lost => panic!("a frame of no length"),
            }
        }
        frames
    }
}

fn frame(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|n| (n * 7 + seed) as u8).collect()
}

#[test]
fn frames_go_both_ways_and_only_who_sleeps_is_told() {
    let supervisor = Supervisor::new();
    let mut card = supervisor.start();
    assert_eq!(
        (card.nic.properties().mac, card.nic.properties().mtu),
        (ADDRESS, 1500)
    );
    let mut sent = 0;
    for round in 0..2000 {
        let frames: Vec<_> = (0..round % 40)
            .map(|n| frame(14 + (n * 97) % 1500, round + n))
            .collect();
        for frame in &frames {
            card.transmit.send(frame).unwrap();
        }
        sent += frames.len();
        assert_eq!(supervisor.echo(), frames);
        assert_eq!(card.received(), frames);
    }
    assert!(sent > 30_000);
    let wants = |wants| supervisor.server.borrow_mut().want_frames(wants);
    assert_eq!(wants(true), Left::Nothing);
    *supervisor.rung.borrow_mut() = 0;
    card.transmit.send(&frame(60, 0)).unwrap();
    card.nic.notify_transmit(&mut card.transmit).unwrap();
    assert_eq!(
        (*supervisor.rung.borrow(), wants(true)),
        (1, Left::Something)
    );
    assert_eq!(card.receive.want_interrupt().unwrap(), Left::Nothing);
    assert_eq!(supervisor.echo().len(), 1);
    assert!(supervisor.server.borrow_mut().must_interrupt());
    let reasons = supervisor
        .pages
        .device
        .interrupts
        .swap(0, Ordering::Relaxed);
    assert_eq!(reasons, INTERRUPT_QUEUES);
    assert!(!supervisor.server.borrow_mut().must_interrupt());
}

#[test]
fn who_takes_nothing_loses_frames_and_nothing_else() {
    let supervisor = Supervisor::new();
    let mut card = supervisor.start();
    let given = (0..1000).filter(|n| supervisor.server.borrow_mut().deliver(&frame(1514, *n)));
    assert_eq!(given.count(), 128);
    assert_eq!(card.received().len(), 128);
    assert!(supervisor.server.borrow_mut().deliver(&frame(1514, 0)));
    // The other way round: a supervisor that does not look.
    let sent = (0..1000).filter(|n| card.transmit.send(&frame(1514, *n)).is_ok());
    assert_eq!(sent.count(), 128);
}

#[test]
fn a_rule_that_is_broken_stops_the_card_until_it_is_reset() {
    let supervisor = Supervisor::new();
    let mut card = supervisor.start();
    card.transmit.send(&frame(60, 1)).unwrap();
    // The first descriptor of the queue to send leads out of the area.
    let transmit = supervisor.pages.driver.queues[1]
        .descriptors
        .load(Ordering::Relaxed);
    let memory = window_memory(supervisor.pages.clone());
    memory
        .write(Address::new(transmit), &u64::MAX.to_le_bytes())
        .unwrap();
    assert!(supervisor.echo().is_empty());
    let stopped = supervisor.server.borrow().stopped();
    assert!(
        matches!(stopped, Some(Stopped::Rule(Rule::Buffer(_)))),
        "{stopped:?}"
    );
    assert!(supervisor.server.borrow_mut().must_interrupt());
    let reasons = supervisor.pages.device.interrupts.load(Ordering::Relaxed);
    assert_eq!(reasons & INTERRUPT_CONFIG, INTERRUPT_CONFIG);
    assert!(card.nic.needs_reset() && !supervisor.server.borrow_mut().deliver(&frame(60, 2)));
    // A supervisor that does not look has not stopped, and is asked again.
    *supervisor.looks.borrow_mut() = false;
    for _ in 0..2 {
        let stuck = card
            .nic
            .recover(&mut card.receive, &mut card.transmit)
            .unwrap_err();
        assert_eq!(stuck, StartError::from(TransportError::Stuck));
    }
    *supervisor.looks.borrow_mut() = true;
    card.nic
        .recover(&mut card.receive, &mut card.transmit)
        .unwrap();
    assert!(!card.nic.needs_reset());
    card.transmit.send(&frame(60, 3)).unwrap();
    assert_eq!(supervisor.echo(), [frame(60, 3)]);
    assert_eq!(card.received(), [frame(60, 3)]);
}

/// In place of the supervisor there is another one, with nothing but the pages.
fn succeed(supervisor: &Supervisor) {
    let server = Server::adopted(supervisor.pages.clone(), ADDRESS);
    supervisor.server.replace(server);
}

#[test]
fn a_card_is_adopted_by_a_reset_and_frames_go_on() {
    let supervisor = Supervisor::new();
    let mut card = supervisor.start();
    // With something under way in both queues: each is lost, or arrives, and none twice.
    for round in 0..50 {
        for n in 0..round % 7 {
            card.transmit.send(&frame(60 + n, round)).unwrap();
            assert!(
                supervisor
                    .server
                    .borrow_mut()
                    .deliver(&frame(80 + n, round))
            );
        }
        succeed(&supervisor);
        let mut server = supervisor.server.borrow_mut();
        server.follow();
        assert_eq!(server.stopped(), Some(Stopped::Restarted));
        assert!(!server.deliver(&frame(60, 1)) && server.must_interrupt());
        drop(server);
        assert!(card.nic.needs_reset());
        card.nic
            .recover(&mut card.receive, &mut card.transmit)
            .unwrap();
        assert!(!card.nic.needs_reset() && supervisor.server.borrow().stopped().is_none());
        assert!(card.received().is_empty());
        card.transmit.send(&frame(60, 3)).unwrap();
        assert_eq!(supervisor.echo(), [frame(60, 3)]);
        assert_eq!(card.received(), [frame(60, 3)]);
    }
}

#[test]
fn a_card_that_was_not_begun_or_is_being_reset_is_adopted_as_it_is() {
    let supervisor = Supervisor::new();
    succeed(&supervisor);
    assert_eq!(supervisor.server.borrow().stopped(), None);
    let mut card = supervisor.start();
    card.transmit.send(&frame(60, 3)).unwrap();
    assert_eq!(supervisor.echo(), [frame(60, 3)]);
    // A reset that nobody has done, and in the middle of which the supervisor ends.
    supervisor.pages.device.status.store(64, Ordering::Relaxed);
    *supervisor.looks.borrow_mut() = false;
    let stuck = card.nic.recover(&mut card.receive, &mut card.transmit);
    assert_eq!(stuck, Err(StartError::from(TransportError::Stuck)));
    succeed(&supervisor);
    *supervisor.looks.borrow_mut() = true;
    card.nic
        .recover(&mut card.receive, &mut card.transmit)
        .unwrap();
    card.transmit.send(&frame(61, 3)).unwrap();
    assert_eq!(supervisor.echo(), [frame(61, 3)]);
}

#[test]
fn queues_that_cannot_be_are_said_so() {
    for (features, size, at, why) in [
        (1 << 15, 128, 0, Stopped::Features(1 << 15)),
        (1 << 32, 129, 0, Stopped::Size(0)),
        (1 << 32, 1 << 31, 0, Stopped::Size(0)),
        (
            1 << 32,
            96,
            0,
            Stopped::Setup(0, virtqueue::SetupError::Size),
        ),
        (
            1 << 32,
            0,
            0,
            Stopped::Setup(0, virtqueue::SetupError::Size),
        ),
        (
            1 << 32,
            64,
            8,
            Stopped::Setup(0, virtqueue::SetupError::Alignment),
        ),
        (
            1 << 32,
            64,
            Network::AREA_BYTES as u64,
            Stopped::Setup(0, virtqueue::SetupError::Unreachable),
        ),
        (
            1 << 32,
            64,
            u64::MAX - 15,
            Stopped::Setup(0, virtqueue::SetupError::Unreachable),
        ),
    ] {
        let supervisor = Supervisor::new();
        let driver = &supervisor.pages.driver;
        driver.features.store(features, Ordering::Relaxed);
        driver.queues[0].size.store(size, Ordering::Relaxed);
        driver.queues[0].descriptors.store(at, Ordering::Relaxed);
        driver.status.store(0xff, Ordering::Relaxed);
        let mut server = supervisor.server.borrow_mut();
        server.follow();
        assert_eq!(server.stopped(), Some(why));
        assert!(!server.deliver(&frame(60, 0)) && server.collect(&mut Vec::new()).is_none());
    }
}

proptest! {
    /// An instance that writes anything anywhere: each call returns, frames are of a length that
    /// one has, and after a reset by an honest driver the card works.
    #[test]
    fn nothing_that_an_instance_writes_does_more_than_stop_its_card(
        writes in prop::collection::vec((0_u64..0x2000, any::<[u8; 8]>(), 0_u8..8), 1..200),
    ) {
        let supervisor = Supervisor::new();
        let mut card = supervisor.start();
        let memory = window_memory(supervisor.pages.clone());
        let mut buffer = Vec::new();
        for (at, bytes, what) in writes {
            let driver = &supervisor.pages.driver;
            let queue = &driver.queues[usize::from(bytes[0] & 1)];
            let mut server = supervisor.server.borrow_mut();
            match what {
                0 => driver.status.store(bytes[0].into(), Ordering::Relaxed),
                1 => driver.resets.store(bytes[0].into(), Ordering::Relaxed),
                2 => queue.size.store(bytes[1].into(), Ordering::Relaxed),
                3 => queue.device.store(at, Ordering::Relaxed),
                4 => drop(card.transmit.send(&frame(60, 0))),
                _ => {
                    let ring = Address::new(queue.descriptors.load(Ordering::Relaxed));
                    memory.write(ring.plus(at), &bytes).unwrap();
                }
            }
            server.follow();
            for _ in 0..4 {
                if server.collect(&mut buffer) == Some(Collected::Frame) {
                    prop_assert!((ETHERNET..=1518).contains(&buffer.len()));
                }
                server.deliver(&frame(60, 1));
            }
            let _ = server.want_frames(bytes[1] & 1 == 0);
            server.must_interrupt();
        }
        // An instance that has done it all wrong begins again.
        supervisor.pages.driver.status.store(0xf, Ordering::Relaxed);
        let mut card = supervisor.start();
        card.transmit.send(&frame(60, 3)).unwrap();
        prop_assert_eq!(supervisor.echo(), vec![frame(60, 3)]);
        prop_assert_eq!(card.received(), vec![frame(60, 3)]);
    }
}
