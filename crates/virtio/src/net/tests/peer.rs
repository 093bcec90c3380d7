//! A device of the tests: a network card whose wire is in the test's hands, behind a transport that
//! calls it at once.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::vec::Vec;

use virtqueue::{
    Address, Areas, DeviceQueue, Left, Memory, Setup, Status, Transport, TransportError,
    Unreachable, Words,
};

use super::super::*;

/// Bytes of memory; queues are in it.
const MEMORY: usize = 0x8_0000;
pub const ADDRESS: [u8; MAC] = [2, 0, 0, 0, 0, 7];

/// Memory that both ends have.
#[derive(Clone, Debug)]
pub struct Shared(pub Arc<Words>);

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

pub struct State {
    pub offered: u64,
    pub config: [u8; 12],
    /// Descriptors of each queue.
    pub size: u16,
    pub status: Status,
    /// The device does not stop.
    pub is_stuck: bool,
    /// The device does not do anything.
    pub sleeps: bool,
    /// Frames for the driver.
    pub wire: VecDeque<Vec<u8>>,
    /// Frames of the driver.
    pub sent: Vec<Vec<u8>>,
    /// Chains of the driver that held none.
    pub lost: u32,
    pub notifications: [u32; 2],
    pub interrupts: u32,
    features: u64,
    port: Port,
    queues: [Option<(DeviceQueue<Shared>, Areas)>; 2],
}

/// The device, and the way to it.
pub struct Peer {
    pub memory: Arc<Words>,
    state: Mutex<State>,
}

impl Peer {
    pub fn new(mtu: u16) -> Self {
        let port = Port::new(ADDRESS, mtu);
        Self {
            memory: Arc::new(Words::new(MEMORY).expect("memory")),
            state: Mutex::new(State {
                offered: port.features(),
                config: port.config(true),
                size: 64,
                status: Status::empty(),
                is_stuck: false,
                sleeps: false,
                wire: VecDeque::new(),
                sent: Vec::new(),
                lost: 0,
                notifications: [0; 2],
                interrupts: 0,
                features: 0,
                port,
                queues: [None, None],
            }),
        }
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// A frame arrives.
    pub fn arrive(&self, frame: &[u8]) {
        let mut state = self.state();
        state.wire.push_back(frame.to_vec());
        state.serve();
    }

    /// Uses one receive buffer with these bytes, and says that it has written so many.
    pub fn use_buffer(&self, bytes: &[u8], written: u32) {
        let mut state = self.state();
        let (queue, _) = state.queues[0].as_mut().expect("a queue");
        let chain = queue.take().unwrap().expect("a buffer");
        chain.write(queue.memory(), 0, bytes).unwrap();
        queue.finish(chain, written).unwrap();
    }

    /// Writes an entry into the used ring of a split queue, and moves its index.
    pub fn use_ring(&self, number: usize, steps: u16, id: u32, written: u32) {
        let state = self.state();
        let (_, areas) = state.queues[number].as_ref().expect("a queue");
        let index = self.memory.load16(areas.device.plus(2)).unwrap();
        let entry = u64::from(id) | u64::from(written) << 32;
        let slot = u64::from(index % state.size);
        let at = areas.device.plus(4 + 8 * slot);
        self.memory.write(at, &entry.to_le_bytes()).unwrap();
        let index = index.wrapping_add(steps);
        self.memory.store16(areas.device.plus(2), index).unwrap();
    }
}

impl State {
    /// Does what is to be done, as far as there are buffers.
    pub fn serve(&mut self) {
        if self.sleeps {
            return;
        }
        let [receive, transmit] = &mut self.queues;
        if let Some((queue, _)) = receive {
            while let Some(frame) = self.wire.front() {
                if self.port.deliver(queue, self.features, frame).unwrap() {
                    self.wire.pop_front();
                } else if queue.want_notification().unwrap() == Left::Nothing {
                    break;
                }
            }
            self.interrupts += u32::from(queue.must_interrupt().unwrap());
        }
        if let Some((queue, _)) = transmit {
            loop {
                let mut frame = Vec::new();
                while let Some(collected) = self.port.collect(queue, &mut frame).unwrap() {
                    match collected {
                        Collected::Frame => self.sent.push(std::mem::take(&mut frame)),
                        Collected::Lost => self.lost += 1,
                    }
                }
                if queue.want_notification().unwrap() == Left::Nothing {
                    break;
                }
            }
        }
    }
}

impl Transport for &Peer {
    fn reset(&self) -> Result<(), TransportError> {
        let mut state = self.state();
        if state.is_stuck {
            return Err(TransportError::Stuck);
        }
        state.status = Status::empty();
        state.queues = [None, None];
        state.port.reset();
        Ok(())
    }

    fn status(&self) -> Status {
        self.state().status
    }

    fn set_status(&self, status: Status) {
        self.state().status = status;
    }

    fn device_features(&self) -> u64 {
        self.state().offered
    }

    fn set_driver_features(&self, features: u64) {
        self.state().features = features;
    }

    fn queues(&self) -> u16 {
        2
    }

    fn queue_size(&self, _: u16) -> u16 {
        self.state().size
    }

    fn enable_queue(&self, queue: u16, setup: &Setup) -> Result<(), TransportError> {
        let mut state = self.state();
        assert!(state.status.contains(Status::FEATURES_OK));
        assert_eq!(setup.features.bits() & !state.features, 0, "not negotiated");
        let memory = Shared(self.memory.clone());
        let half = DeviceQueue::new(memory, *setup, setup.size).expect("a queue");
        state.queues[usize::from(queue)] = Some((half, setup.areas));
        Ok(())
    }

    fn reset_queue(&self, _: u16) -> Result<(), TransportError> {
        unreachable!("no driver of a network card does this")
    }

    fn notify(&self, queue: u16) {
        let mut state = self.state();
        assert!(state.status.contains(Status::DRIVER_OK), "it is not in use");
        state.notifications[usize::from(queue)] += 1;
        state.serve();
    }

    fn config_generation(&self) -> u32 {
        0
    }

    fn read_config(&self, at: usize, into: &mut [u8]) -> Result<(), TransportError> {
        let state = self.state();
        let bytes = state.config.get(at..at + into.len());
        into.copy_from_slice(bytes.ok_or(TransportError::NoConfig)?);
        Ok(())
    }
}
