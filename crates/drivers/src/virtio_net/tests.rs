//! The driver with its thread against a card of ours in a thread of its own, which does what it
//! should, or what nobody should.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver as Notified, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::vec::Vec;

use task::Event;
use virtio::net::{Collected, Port};
use virtqueue::{DeviceQueue, Features, Memory, Setup, Status, Transport, Unreachable, Words};

use super::*;

const ADDRESS: [u8; 6] = [2, 0, 0, 0, 0, 9];
const MEMORY: usize = 1 << 18;

#[derive(Clone)]
struct Shared(Arc<Words>);

impl Memory for Shared {
    fn reaches(&self, at: Address, len: u64) -> bool {
        self.0.reaches(at, len)
    }

    fn load16(&self, at: Address) -> Result<u16, Unreachable> {
        self.0.load16(at)
    }

    fn store16(&self, at: Address, value: u16) -> Result<(), Unreachable> {
        self.0.store16(at, value)
    }

    fn read(&self, at: Address, into: &mut [u8]) -> Result<(), Unreachable> {
        self.0.read(at, into)
    }

    fn write(&self, at: Address, from: &[u8]) -> Result<(), Unreachable> {
        self.0.write(at, from)
    }
}

struct State {
    status: Status,
    features: u64,
    port: Port,
    queues: [Option<(DeviceQueue<Shared>, Setup)>; 2],
    /// Frames for the driver, and those that came from it.
    wire: VecDeque<Vec<u8>>,
    sent: Vec<Vec<u8>>,
    is_link_up: bool,
    mac: [u8; 6],
    /// Of so many rounds one ends with nonsense in a used ring.
    lies: usize,
    rounds: usize,
    resets: usize,
    /// Resets that the device does not do.
    deaf: usize,
}

struct Device {
    memory: Shared,
    state: Mutex<State>,
    queues: Event,
    config: Event,
    /// Interrupts for what was received or sent.
    interrupts: AtomicU64,
}

impl Device {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Does what there is to do, as a card does that was told of it.
    fn serve(&self) {
        let mut state = self.state();
        state.rounds += 1;
        let State {
            port,
            queues: [receive, transmit],
            wire,
            sent,
            features,
            ..
        } = &mut *state;
        let mut interrupt = false;
        if let Some((queue, _)) = receive {
            while let Some(frame) = wire.front() {
                match port.deliver(queue, *features, frame) {
                    Ok(true) => drop(wire.pop_front()),
                    Ok(false) if queue.want_notification() == Ok(Left::Something) => {}
                    Ok(false) | Err(_) => break,
                }
            }
            interrupt |= queue.must_interrupt() == Ok(true);
        }
        if let Some((queue, _)) = transmit {
            loop {
                let mut frame = Vec::new();
                while let Ok(Some(collected)) = port.collect(queue, &mut frame) {
                    if collected == Collected::Frame {
                        sent.push(std::mem::take(&mut frame));
                    }
                }
                if queue.want_notification() != Ok(Left::Something) {
                    break;
                }
            }
            interrupt |= queue.must_interrupt() == Ok(true);
        }
        if state.lies > 0 && state.rounds % state.lies == 0 {
            self.lie(&state, state.rounds / state.lies % 2);
            interrupt = true;
        }
        drop(state);
        if interrupt {
            self.interrupts.fetch_add(1, Ordering::Relaxed);
            self.queues.set();
        }
    }

    /// Uses what was never offered, in a queue.
    fn lie(&self, state: &State, queue: usize) {
        if let Some((_, setup)) = &state.queues[queue] {
            let used = setup.areas.device;
            let index = self.memory.load16(used.plus(2)).unwrap();
            let entry = used.plus(4 + 8 * u64::from(index % setup.size));
            self.memory.write(entry, &[0xff; 8]).unwrap();
            let next = index.wrapping_add(1);
            self.memory.store16(used.plus(2), next).unwrap();
        }
    }

    /// The configuration has changed.
    fn changes(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.config.set();
        self.queues.set();
    }
}

struct Way {
    device: Arc<Device>,
    notify: Mutex<Sender<()>>,
    /// The device has done what it was told of before the driver goes on.
    is_quick: bool,
}

impl Transport for Way {
    fn reset(&self) -> Result<(), TransportError> {
        let mut state = self.device.state();
        if state.deaf > 0 {
            state.deaf -= 1;
            return Err(TransportError::Stuck);
        }
        state.status = Status::empty();
        state.queues = [None, None];
        state.port.reset();
        state.resets += 1;
        Ok(())
    }

    fn status(&self) -> Status {
        self.device.state().status
    }

    fn set_status(&self, status: Status) {
        self.device.state().status = status;
    }

    fn device_features(&self) -> u64 {
        // Lies are told in split rings.
        self.device.state().port.features() & !Features::PACKED.bits()
    }

    fn set_driver_features(&self, features: u64) {
        self.device.state().features = features;
    }

    fn queues(&self) -> u16 {
        2
    }

    fn queue_size(&self, _: u16) -> u16 {
        // So small that it is full most of the time.
        8
    }

    fn enable_queue(&self, queue: u16, setup: &Setup) -> Result<(), TransportError> {
        let half = DeviceQueue::new(self.device.memory.clone(), *setup, setup.size).unwrap();
        self.device.state().queues[usize::from(queue)] = Some((half, *setup));
        Ok(())
    }

    fn reset_queue(&self, _: u16) -> Result<(), TransportError> {
        Err(TransportError::NoQueue)
    }

    fn notify(&self, _: u16) {
        if self.is_quick {
            self.device.serve();
        } else {
            let _ = self.notify.lock().unwrap().send(());
        }
    }

    fn config_generation(&self) -> u32 {
        0
    }

    fn read_config(&self, at: usize, into: &mut [u8]) -> Result<(), TransportError> {
        let state = self.device.state();
        let mut config = state.port.config(state.is_link_up);
        config[..6].copy_from_slice(&state.mac);
        let bytes = config.get(at..at + into.len());
        into.copy_from_slice(bytes.ok_or(TransportError::NoConfig)?);
        Ok(())
    }
}

struct Line(Arc<Device>, bool);

impl Interrupt for Line {
    fn event(&self) -> &Event {
        if self.1 {
            &self.0.config
        } else {
            &self.0.queues
        }
    }
}

struct Host;

impl Parts for Host {
    type Transport = Way;
    type Memory = Shared;
    type Interrupt = Line;
}

/// The frames and links of which the test heard above the card.
#[derive(Default)]
struct Heard {
    frames: Vec<Vec<u8>>,
    links: Vec<bool>,
    /// Times that there was room again.
    rooms: usize,
}

#[derive(Default)]
struct Test {
    heard: Mutex<Heard>,
    changed: Condvar,
}

impl Test {
    /// Waits until what was heard is as it should be.
    fn wait(&self, holds: impl Fn(&Heard) -> bool) -> MutexGuard<'_, Heard> {
        let heard = self.heard.lock().unwrap();
        self.changed
            .wait_while(heard, |heard| !holds(heard))
            .unwrap()
    }
}

impl Upper for Test {
    fn receive(&self, frames: &mut Frames<'_>) {
        frames(&mut |frame| self.heard.lock().unwrap().frames.push(frame.to_vec()));
        self.changed.notify_all();
    }

    fn link_changed(&self, is_up: bool) {
        self.heard.lock().unwrap().links.push(is_up);
        self.changed.notify_all();
    }

    fn has_room(&self) {
        self.heard.lock().unwrap().rooms += 1;
        self.changed.notify_all();
    }
}

/// A card that runs, and its driver with its thread.
struct Machine {
    device: Arc<Device>,
    card: Option<Arc<VirtioNet<Host>>>,
    upper: Arc<Test>,
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Machine {
    fn new() -> Self {
        Self::with_device(false)
    }

    fn with_device(is_quick: bool) -> Self {
        let device = Arc::new(Device {
            memory: Shared(Arc::new(Words::new(MEMORY).unwrap())),
            state: Mutex::new(State {
                status: Status::empty(),
                features: 0,
                port: Port::new(ADDRESS, 1500),
                queues: [None, None],
                wire: VecDeque::new(),
                sent: Vec::new(),
                is_link_up: true,
                mac: ADDRESS,
                lies: 0,
                rounds: 0,
                resets: 0,
                deaf: 0,
            }),
            queues: Event::new(),
            config: Event::new(),
            interrupts: AtomicU64::new(0),
        });
        let (notify, notified): (_, Notified<()>) = channel();
        let theirs = device.clone();
        let serving = std::thread::spawn(move || notified.iter().for_each(|()| theirs.serve()));
        let way = Way {
            device: device.clone(),
            notify: Mutex::new(notify),
            is_quick,
        };
        let interrupts = Interrupts {
            queues: Line(device.clone(), false),
            config: Line(device.clone(), true),
        };
        let mut at = 0;
        let memory = |bytes: u64| {
            let place = Address::new(at);
            at += bytes.next_multiple_of(16);
            assert!(at <= MEMORY as u64);
            Some((device.memory.clone(), place))
        };
        let started = VirtioNet::<Host>::start("eth0".into(), way, interrupts, memory);
        let (card, mut receiver) = started.unwrap();
        let card = Arc::new(card);
        let upper = Arc::new(Test::default());
        let is_over = Arc::new(AtomicBool::new(false));
        let (theirs, above, over) = (card.clone(), upper.clone(), is_over.clone());
        let thread = std::thread::spawn(move || {
            while theirs.serve(&mut receiver, &*above).is_continue()
                && !over.load(Ordering::Relaxed)
            {}
        });
        Self {
            device,
            card: Some(card),
            upper,
            is_over,
            threads: std::vec![thread, serving],
        }
    }

    fn card(&self) -> &VirtioNet<Host> {
        self.card.as_ref().unwrap()
    }

    /// A frame arrives; a wire that is full loses it.
    fn arrive(&self, frame: Vec<u8>) {
        let mut state = self.device.state();
        if state.wire.len() < 100 {
            state.wire.push_back(frame);
        }
        drop(state);
        self.device.serve();
    }

    /// Waits until the link has gone up so many times.
    fn wait_for_link(&self, count: usize) {
        drop(
            self.upper
                .wait(|heard| heard.links.iter().filter(|is_up| **is_up).count() >= count),
        );
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.device.queues.set();
        self.card = None;
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
    }
}

fn frame(n: usize) -> Vec<u8> {
    let len = 60 + n * 37 % 1400;
    let mut bytes = std::vec![n as u8; len];
    bytes[..8].copy_from_slice(&n.to_le_bytes());
    bytes
}

#[test]
fn what_arrives_goes_upward_in_order_and_nothing_is_left_lying() {
    for is_quick in [false, true] {
        let machine = Machine::with_device(is_quick);
        let mut count = 0;
        for round in 0..200 {
            // More than there are buffers, of which the device is told once: everything comes
            // without anything else happening.
            let burst = 1 + round % 30;
            let frames = (count..count + burst).map(frame);
            machine.device.state().wire.extend(frames);
            machine.device.serve();
            count += burst;
            drop(machine.upper.wait(|heard| heard.frames.len() == count));
        }
        let heard = machine.upper.wait(|_| true);
        assert!((0..count).all(|n| heard.frames[n] == frame(n)));
        assert_eq!(heard.links, [false; 0]);
        assert_eq!(machine.card().losses().received, 0);
    }
}

/// A sender that finds no room waits until it is told of some: that is never lost.
#[test]
fn what_several_threads_send_is_sent_when_there_is_room() {
    for is_quick in [false, true] {
        let machine = Machine::with_device(is_quick);
        let send = |n: usize| {
            loop {
                let rooms = machine.upper.wait(|_| true).rooms;
                match machine.card().transmit(&frame(n)) {
                    Ok(()) => break,
                    Err(Refused::NoRoom) => drop(machine.upper.wait(|heard| heard.rooms > rooms)),
                    Err(Refused::Lost) => panic!("a frame was lost"),
                }
            }
        };
        std::thread::scope(|scope| {
            for thread in 0..4 {
                scope.spawn(move || (0..500).for_each(|n| send(thread * 500 + n)));
            }
        });
        assert_eq!(machine.card().losses().sent, 0);
        // What the device was not told of yet it sees when it is told of the next one.
        machine.device.serve();
        let state = machine.device.state();
        assert_eq!(state.sent.len(), 2000);
        for frames in state.sent.iter() {
            let mut number = [0; 8];
            number.copy_from_slice(&frames[..8]);
            assert_eq!(*frames, frame(usize::from_le_bytes(number)));
        }
    }
}

/// The driver asks for interrupts of frames that were sent only while somebody waits for room.
#[test]
fn what_was_sent_has_no_interrupt_while_there_is_room() {
    let machine = Machine::with_device(true);
    for n in 0..1000 {
        assert_eq!(machine.card().transmit(&frame(n)), Ok(()));
    }
    // One is asked for by the ring itself, when it is new.
    assert!(machine.device.interrupts.load(Ordering::Relaxed) <= 1);
}

/// A sender that waits for room is told when a card is reset, however long that takes: what it
/// sends then is lost.
#[test]
fn who_waits_for_room_is_told_when_there_will_be_none() {
    let machine = Machine::new();
    let state = machine.device.state();
    while machine.card().transmit(&frame(1)).is_ok() {}
    assert_eq!(machine.card().transmit(&frame(1)), Err(Refused::NoRoom));
    let rooms = machine.upper.wait(|_| true).rooms;
    drop(state);
    machine.device.changes(|state| {
        // Whatever it was told of it does nothing more.
        state.queues = [None, None];
        state.deaf = usize::MAX;
        state.status |= Status::NEEDS_RESET;
    });
    drop(machine.upper.wait(|heard| heard.rooms > rooms));
    assert_eq!(machine.card().transmit(&frame(1)), Err(Refused::Lost));
    machine.device.state().deaf = 0;
}

#[test]
fn the_link_is_what_the_card_says() {
    let machine = Machine::new();
    for up in [false, true, false] {
        machine.device.changes(|state| state.is_link_up = up);
        drop(machine.upper.wait(|heard| heard.links.last() == Some(&up)));
    }
    assert_eq!(
        machine.upper.heard.lock().unwrap().links,
        [false, true, false]
    );
}

#[test]
fn a_card_that_lies_is_reset_and_goes_on() {
    let machine = Machine::new();
    let card = machine.card();
    for resets in 1..3 {
        machine.device.state().lies = 20;
        while card.losses().resets < resets {
            machine.arrive(frame(0));
            let _ = card.transmit(&frame(1));
            std::thread::yield_now();
        }
        machine.device.state().lies = 0;
        // What it has said before may cost another reset, and with it frames.
        let heard = || machine.upper.heard.lock().unwrap();
        heard().frames.clear();
        while !heard().frames.contains(&frame(7)) {
            machine.arrive(frame(7));
            std::thread::yield_now();
        }
        machine.device.state().sent.clear();
        while !machine.device.state().sent.contains(&frame(8)) {
            let _ = card.transmit(&frame(8));
            machine.device.serve();
        }
    }
}

/// A rule that is found broken in sending is the thread's business at once, without any interrupt.
#[test]
fn a_card_that_lies_about_what_it_has_sent_is_reset() {
    let machine = Machine::new();
    // The device does nothing else meanwhile.
    let state = machine.device.state();
    machine.device.lie(&state, 1);
    while machine.card().transmit(&frame(1)).is_ok() {}
    drop(state);
    machine.wait_for_link(1);
    assert_eq!(machine.card().losses().resets, 1);
    assert_eq!(machine.card().transmit(&frame(2)), Ok(()));
}

#[test]
fn a_card_that_asks_for_a_reset_gets_one() {
    let machine = Machine::new();
    machine
        .device
        .changes(|state| state.status |= Status::NEEDS_RESET);
    machine.wait_for_link(1);
    assert_eq!(machine.upper.heard.lock().unwrap().links, [false, true]);
    assert_eq!(machine.card().losses().resets, 1);
}

/// A frame for a card that does not stop is lost at once.
#[test]
fn a_card_that_does_not_stop_is_tried_again() {
    let machine = Machine::new();
    machine.device.changes(|state| {
        state.deaf = usize::MAX;
        state.status |= Status::NEEDS_RESET;
    });
    drop(machine.upper.wait(|heard| heard.links == [false]));
    assert_eq!(machine.card().transmit(&frame(1)), Err(Refused::Lost));
    machine.device.state().deaf = 0;
    machine.wait_for_link(1);
    assert_eq!(machine.card().transmit(&frame(1)), Ok(()));
}

#[test]
fn a_card_that_comes_back_as_another_one_is_gone() {
    let machine = Machine::new();
    machine.device.changes(|state| {
        state.mac[5] = 10;
        state.status |= Status::NEEDS_RESET;
    });
    drop(machine.upper.wait(|heard| heard.links == [false]));
    while !machine.threads[0].is_finished() {
        std::thread::yield_now();
    }
    assert_eq!(machine.card().transmit(&frame(1)), Err(Refused::Lost));
    assert_eq!(machine.device.state().status, Status::empty());
}
