//! The driver against a device of ours in threads of its own, which does what it should, or what
//! nobody should.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::vec::Vec;

use block::{Operation as Wanted, Transfer};
use task::Event;
use virtio::blk::{Backend, BackendError, ID, SECTOR, Server};
use virtqueue::Words;
use virtqueue::{Areas, DeviceQueue, Features, Left, Memory, Setup, Status, Transport};

use super::*;
use crate::gate::Ends;
use crate::test_memory::{self, CPU, LentPage, Liar, Shared, filled, first_byte};
use crate::virtio_parts::Interrupt;

const QUEUES: u16 = 2;
const DISK: u64 = 1 << 20;
const RINGS: u64 = 1 << 17;

/// A disk in memory, of which a sector may be bad.
#[derive(Clone)]
struct Ram(Arc<Mutex<Vec<u8>>>, Arc<AtomicU64>);

impl Ram {
    fn range(&self, offset: u64, len: usize) -> Result<core::ops::Range<usize>, BackendError> {
        let bad = self.1.load(Ordering::Relaxed);
        if (offset..offset + len as u64).contains(&bad) {
            return Err(BackendError);
        }
        Ok(offset as usize..offset as usize + len)
    }
}

impl Backend for Ram {
    fn capacity(&self) -> u64 {
        DISK
    }

    fn id(&self) -> [u8; ID] {
        [0; ID]
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), BackendError> {
        into.copy_from_slice(&self.0.lock().unwrap()[self.range(offset, into.len())?]);
        Ok(())
    }

    fn write(&mut self, offset: u64, from: &[u8]) -> Result<(), BackendError> {
        let range = self.range(offset, from.len())?;
        self.0.lock().unwrap()[range].copy_from_slice(from);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), BackendError> {
        Ok(())
    }

    fn discard(&mut self, _: u64, _: u64) -> Result<(), BackendError> {
        Ok(())
    }

    fn write_zeroes(&mut self, offset: u64, len: u64, _: Unmap) -> Result<(), BackendError> {
        let range = self.range(offset, len as usize)?;
        self.0.lock().unwrap()[range].fill(0);
        Ok(())
    }
}

#[derive(Default)]
struct Ways {
    /// A lie is nonsense in the used ring.
    liar: Liar,
    resets: AtomicUsize,
    /// Number of resets that the device does not do.
    deaf: AtomicUsize,
    /// The device does not accept features any more.
    is_other: AtomicBool,
    /// The device does nothing that it is asked.
    is_mute: AtomicBool,
    /// Notifications after which it did nothing.
    unheard: AtomicUsize,
}

struct Inner {
    status: Status,
    features: u64,
    queues: Vec<Option<(DeviceQueue<Shared>, Setup)>>,
    server: Server<Ram>,
}

struct Device {
    memory: Shared,
    inner: Mutex<Inner>,
    ways: Ways,
    events: Vec<Event>,
}

impl Device {
    /// Does what is in a queue, and interrupts if the driver wants that.
    fn serve(&self, number: u16) {
        if self.ways.is_mute.load(Ordering::Relaxed) {
            self.ways.unheard.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let mut inner = self.inner.lock().unwrap();
        let Inner { queues, server, .. } = &mut *inner;
        let Some(Some((queue, setup))) = queues.get_mut(usize::from(number)) else {
            return;
        };
        let mut interrupt = false;
        if self
            .ways
            .liar
            .is_time(self.ways.resets.load(Ordering::Relaxed))
        {
            // Uses what was never offered.
            let used = setup.areas.device;
            let index = self.memory.load16(used.plus(2)).unwrap();
            let entry = used.plus(4 + 8 * u64::from(index % setup.size));
            self.memory.write(entry, &[0xff; 8]).unwrap();
            self.memory
                .store16(used.plus(2), index.wrapping_add(1))
                .unwrap();
            interrupt = true;
        } else {
            // A few at a time, so that others come in between.
            while let Ok(served) = server.serve(queue, 3) {
                interrupt |= served.interrupt;
                if served.requests == 0 && queue.want_notification() == Ok(Left::Nothing) {
                    break;
                }
            }
        }
        drop(inner);
        if interrupt {
            self.events[usize::from(number)].set();
        }
    }
}

struct Way {
    device: Arc<Device>,
    notify: Mutex<Sender<u16>>,
}

impl Transport for Way {
    fn reset(&self) -> Result<(), TransportError> {
        let ways = &self.device.ways;
        let deaf = ways.deaf.load(Ordering::Relaxed);
        if deaf > 0 {
            ways.deaf.store(deaf - 1, Ordering::Relaxed);
            return Err(TransportError::Stuck);
        }
        let mut inner = self.device.inner.lock().unwrap();
        inner.status = Status::empty();
        inner.queues.clear();
        ways.resets.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn status(&self) -> Status {
        let is_other = self.device.ways.is_other.load(Ordering::Relaxed);
        let status = self.device.inner.lock().unwrap().status;
        if is_other {
            status - Status::FEATURES_OK
        } else {
            status
        }
    }

    fn set_status(&self, status: Status) {
        self.device.inner.lock().unwrap().status = status;
    }

    fn device_features(&self) -> u64 {
        // Lies are told in split rings.
        self.device.inner.lock().unwrap().server.features() & !Features::PACKED.bits()
    }

    fn set_driver_features(&self, features: u64) {
        self.device.inner.lock().unwrap().features = features;
    }

    fn queues(&self) -> u16 {
        QUEUES
    }

    fn queue_size(&self, _: u16) -> u16 {
        // So small that it is full most of the time.
        4
    }

    fn enable_queue(&self, queue: u16, setup: &Setup) -> Result<(), TransportError> {
        let half = DeviceQueue::new(self.device.memory.clone(), *setup, setup.size).unwrap();
        let mut inner = self.device.inner.lock().unwrap();
        let len = inner.queues.len().max(usize::from(queue) + 1);
        inner.queues.resize_with(len, || None);
        inner.queues[usize::from(queue)] = Some((half, *setup));
        Ok(())
    }

    fn reset_queue(&self, _: u16) -> Result<(), TransportError> {
        Err(TransportError::Stuck)
    }

    fn notify(&self, queue: u16) {
        let _ = self.notify.lock().unwrap().send(queue);
    }

    fn config_generation(&self) -> u32 {
        0
    }

    fn read_config(&self, at: usize, into: &mut [u8]) -> Result<(), TransportError> {
        let config = self.device.inner.lock().unwrap().server.config(QUEUES, 6);
        let bytes = config.get(at..at + into.len());
        into.copy_from_slice(bytes.ok_or(TransportError::NoConfig)?);
        Ok(())
    }
}

struct Line(Arc<Device>, usize);

impl Interrupt for Line {
    fn event(&self) -> &Event {
        &self.0.events[self.1]
    }
}

struct Host;

impl Parts for Host {
    type Transport = Way;
    type Memory = Shared;
    type Interrupt = Line;
}

impl DiskParts for Host {
    type Lent = LentPage;

    fn cpu() -> usize {
        CPU.get()
    }
}

/// A device that runs, and its driver.
struct Machine {
    device: Arc<Device>,
    disk: Option<Arc<VirtioDisk<Host>>>,
    ram: Ram,
    thread: Option<JoinHandle<()>>,
}

impl Machine {
    fn new() -> Self {
        let ram = Ram(
            Arc::new(Mutex::new(std::vec![0; DISK as usize])),
            Arc::new(AtomicU64::new(u64::MAX)),
        );
        let device = Arc::new(Device {
            memory: Shared(Arc::new(Words::new(2 * RINGS as usize).unwrap())),
            inner: Mutex::new(Inner {
                status: Status::empty(),
                features: 0,
                queues: Vec::new(),
                server: Server::new(ram.clone()).unwrap(),
            }),
            ways: Ways::default(),
            events: (0..QUEUES).map(|_| Event::new()).collect(),
        });
        let (notify, notified): (_, Receiver<u16>) = channel();
        let theirs = device.clone();
        let thread = std::thread::spawn(move || notified.iter().for_each(|n| theirs.serve(n)));
        let way = Way {
            device: device.clone(),
            notify: Mutex::new(notify),
        };
        let lines = (0..usize::from(QUEUES)).map(|n| Line(device.clone(), n));
        let mut at = 0;
        let memory = |bytes: u64| {
            let place = Address::new(at);
            at += bytes.next_multiple_of(16);
            assert!(at <= 2 * RINGS && Areas::bytes(4) <= bytes);
            Some((device.memory.clone(), place))
        };
        let disk = VirtioDisk::start("vda".into(), way, lines.collect(), memory).unwrap();
        Self {
            device,
            disk: Some(Arc::new(disk)),
            ram,
            thread: Some(thread),
        }
    }

    fn disk(&self) -> &Arc<VirtioDisk<Host>> {
        self.disk.as_ref().unwrap()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.disk = None;
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

/// Each thread has a queue, or shares one.
fn hammer(machine: &Machine, rounds: usize) {
    let parts = (0..4).map(|n| (machine.disk().clone(), n, n as u64 * (DISK / 4)));
    test_memory::hammer(parts, rounds, &machine.device.ways.liar);
}

#[test]
fn several_threads_have_what_they_wrote() {
    hammer(&Machine::new(), 60);
}

#[test]
fn a_device_that_lies_is_reset_and_nothing_is_lost() {
    let machine = Machine::new();
    machine.device.ways.liar.set(true);
    hammer(&machine, 60);
    let resets = machine.device.ways.resets.load(Ordering::Relaxed);
    assert!(resets > 1, "it was reset {resets} times");
}

#[test]
fn a_device_that_does_not_stop_keeps_its_requests() {
    let machine = Machine::new();
    machine.device.ways.liar.set(true);
    machine.device.ways.deaf.store(2, Ordering::Relaxed);
    let disk = machine.disk().clone();
    let reader = std::thread::spawn(move || {
        let pages = filled(1, 1);
        let transfer = Transfer {
            offset: 0,
            len: 4096,
            pages: &pages,
        };
        (disk.execute(Wanted::Read(transfer)), first_byte(&pages[0]))
    });
    while machine.device.ways.deaf.load(Ordering::Relaxed) > 0 {
        std::thread::yield_now();
    }
    machine.device.ways.liar.set(false);
    assert_eq!(reader.join().unwrap(), (Ok(()), 0));
}

#[test]
fn a_device_that_does_not_come_back_ends_everything() {
    let machine = Machine::new();
    machine.device.ways.liar.set(true);
    machine.device.ways.is_other.store(true, Ordering::Relaxed);
    let pages = filled(1, 1);
    let transfer = Transfer {
        offset: 0,
        len: 4096,
        pages: &pages,
    };
    for _ in 0..2 {
        let outcome = machine.disk().execute(Wanted::Read(transfer));
        assert_eq!(outcome, Err(Errno::EIO));
    }
    assert_eq!(pages[0].refs(), 1, "the page was given back");
}

#[test]
fn a_device_that_never_answers_can_leave() {
    for deaf in [0, 1] {
        let machine = Machine::new();
        let Ways { is_mute, .. } = &machine.device.ways;
        is_mute.store(true, Ordering::Relaxed);
        // More than fit into the device's queue, so that some wait for room.
        let readers: Vec<_> = (0..3)
            .map(|n| {
                let disk = machine.disk().clone();
                std::thread::spawn(move || {
                    CPU.set(n);
                    let pages = filled(8, 1);
                    let read = |offset| {
                        let len = 4096;
                        let pages = &pages[..1];
                        Request::new(Wanted::Read(Transfer { offset, len, pages }))
                    };
                    let mut batch: [_; 8] = std::array::from_fn(|n| read(n as u64 * 4096));
                    disk.submit(&mut batch);
                    let failed = batch.iter().all(|one| one.outcome == Err(Errno::EIO));
                    drop(batch);
                    (failed, pages[0].refs())
                })
            })
            .collect();
        let lanes = machine.disk().lanes.get().unwrap();
        while machine.device.ways.unheard.load(Ordering::Relaxed) < 2 {
            std::thread::yield_now();
        }
        machine.device.ways.deaf.store(deaf, Ordering::Relaxed);
        machine.disk().gate().close(true);
        // One that did not stop is asked again when somebody looks: here at once.
        for _ in 0..deaf {
            lanes.end();
        }
        is_mute.store(false, Ordering::Relaxed);
        for reader in readers {
            assert_eq!(reader.join().unwrap(), (true, 1));
        }
        let outcome = machine.disk().execute(Wanted::Flush);
        assert_eq!(outcome, Err(Errno::EIO));
        // A reset that somebody asked for before does not bring it back.
        lanes.renew();
        assert!(machine.device.inner.lock().unwrap().queues.is_empty());
    }
}

#[test]
fn each_request_has_its_own_outcome() {
    let machine = Machine::new();
    machine.ram.1.store(5 * SECTOR, Ordering::Relaxed);
    let pages = filled(2, 1);
    let read = |offset| {
        Request::new(Wanted::Read(Transfer {
            offset,
            len: 8192,
            pages: &pages,
        }))
    };
    let (offset, len) = (0, 4096);
    let mut batch = [
        read(0),
        read(4096),
        read(DISK - 4096),
        read(100),
        Request::new(Wanted::WriteZeroes { offset, len }),
        Request::new(Wanted::Discard { offset, len }),
        Request::new(Wanted::Flush),
    ];
    machine.disk().submit(&mut batch);
    let outcomes: Vec<_> = batch.iter().map(|request| request.outcome).collect();
    assert_eq!(
        outcomes,
        [
            Err(Errno::EIO),
            Ok(()),
            Err(Errno::EIO),
            Err(Errno::EINVAL),
            Err(Errno::EIO),
            Ok(()),
            Ok(())
        ]
    );
}

#[test]
fn pages_in_a_row_are_one_piece_as_far_as_the_device_takes_it() {
    let pieces = |addresses: &[u64], limit, most| {
        let mut pieces = ArrayVec::new();
        let fits = addresses
            .iter()
            .filter(|at| add(&mut pieces, Address::new(**at), 4096, limit, most))
            .count();
        let lens: Vec<_> = pieces.iter().map(|it| (it.at.number(), it.len)).collect();
        (fits, lens)
    };
    let row = [0x1000, 0x2000, 0x4000];
    assert_eq!(
        pieces(&row, 1 << 20, 2),
        (3, std::vec![(0x1000, 8192), (0x4000, 4096)])
    );
    assert_eq!(pieces(&row, 1 << 20, 1), (2, std::vec![(0x1000, 8192)]));
    assert_eq!(
        pieces(&row[..2], 5000, 2),
        (2, std::vec![(0x1000, 5000), (0x1000 + 5000, 3192)])
    );
    assert_eq!(
        pieces(&row[..2], 3000, 2),
        (1, std::vec![(0x1000, 3000), (4096 + 3000, 1096)])
    );
}
