//! A device of the tests: a disk in memory, behind a transport that calls it at once.

use std::sync::{Arc, Mutex, MutexGuard};
use std::vec::Vec;

use virtqueue::{
    Address, Areas, DeviceQueue, Features, Left, Memory, Setup, Status, Transport, TransportError,
    Unreachable, Words,
};

use super::super::properties::field;
use super::super::*;

/// Sectors of the disk.
pub const SECTORS: u64 = 64;
/// Beginning of the memory for queues.
pub const BASE: u64 = 0x1000;
/// Bit of packed rings, which tests ask for that do not look into rings themselves.
pub const PACKED: u64 = Features::PACKED.bits();
/// Bytes of memory.
const MEMORY: usize = 0x2_0000;

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

/// A disk in memory.
#[derive(Debug)]
pub struct Ram {
    pub bytes: Vec<u8>,
    pub flushes: u32,
    pub discarded: Option<(u64, u64)>,
    pub zeroed: Option<(u64, u64, Unmap)>,
    /// A sector that can be neither read nor written.
    pub bad: Option<u64>,
}

impl Ram {
    fn new() -> Self {
        Self {
            bytes: std::vec![0; (SECTORS * SECTOR) as usize],
            flushes: 0,
            discarded: None,
            zeroed: None,
            bad: None,
        }
    }

    fn range(&self, offset: u64, len: usize) -> Result<core::ops::Range<usize>, BackendError> {
        let end = offset + len as u64;
        let bad = |bad: u64| (offset..end).contains(&(bad * SECTOR));
        if self.bad.is_some_and(bad) {
            return Err(BackendError);
        }
        Ok(offset as usize..end as usize)
    }
}

/// The disk as a backend; the test looks at it, too.
#[derive(Clone, Debug)]
pub struct RamDisk(Arc<Mutex<Ram>>);

impl RamDisk {
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new(Ram::new())))
    }

    fn ram(&self) -> MutexGuard<'_, Ram> {
        self.0.lock().unwrap()
    }
}

impl Backend for RamDisk {
    fn capacity(&self) -> u64 {
        self.ram().bytes.len() as u64
    }

    fn id(&self) -> [u8; ID] {
        *b"a disk of a test\0\0\0\0"
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), BackendError> {
        let ram = self.ram();
        into.copy_from_slice(&ram.bytes[ram.range(offset, into.len())?]);
        Ok(())
    }

    fn write(&mut self, offset: u64, from: &[u8]) -> Result<(), BackendError> {
        let mut ram = self.ram();
        let range = ram.range(offset, from.len())?;
        ram.bytes[range].copy_from_slice(from);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), BackendError> {
        self.ram().flushes += 1;
        Ok(())
    }

    fn discard(&mut self, offset: u64, len: u64) -> Result<(), BackendError> {
        self.ram().discarded = Some((offset, len));
        Ok(())
    }

    fn write_zeroes(&mut self, offset: u64, len: u64, unmap: Unmap) -> Result<(), BackendError> {
        let mut ram = self.ram();
        let range = ram.range(offset, len as usize)?;
        ram.bytes[range].fill(0);
        ram.zeroed = Some((offset, len, unmap));
        Ok(())
    }
}

/// A way of this device not to do what it has to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// Does not end a reset.
    NoReset,
    /// Takes no queues.
    NoQueues,
    /// Does not accept features.
    NoFeatures,
    /// Changes its configuration each time that it is read.
    NewGenerations,
    /// Does not answer.
    Never,
    /// Writes this into the used ring: index, identifier, length.
    Used(u16, u32, u32),
    /// Says that it has written so many bytes less.
    Less(u32),
    /// Leaves the result as it was.
    NoResult,
    /// Gives this result.
    Result(u8),
}

struct State {
    status: Status,
    features: u64,
    offered: u64,
    config: [u8; field::END],
    generation: u32,
    queues: Vec<Option<(DeviceQueue<Shared>, Areas)>>,
    server: Server<RamDisk>,
    lie: Option<Lie>,
    notifications: u32,
    resets: u32,
}

/// The device, and the way to it.
pub struct Peer {
    pub memory: Arc<Words>,
    disk: RamDisk,
    state: Mutex<State>,
}

impl Peer {
    pub fn new() -> Self {
        let disk = RamDisk::new();
        let server = Server::new(disk.clone()).expect("memory");
        Self {
            memory: Arc::new(Words::new(MEMORY).expect("memory")),
            disk,
            state: Mutex::new(State {
                status: Status::empty(),
                features: 0,
                offered: server.features() & !PACKED | Features::RING_RESET.bits(),
                config: server.config(4, 6),
                generation: 0,
                queues: Vec::new(),
                server,
                lie: None,
                notifications: 0,
                resets: 0,
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub fn ram(&self) -> MutexGuard<'_, Ram> {
        self.disk.ram()
    }

    /// Features that it offers from now on.
    pub fn offer(&self, features: u64) {
        self.state().offered = features;
    }

    /// Puts bytes into the configuration, and says which eight were there.
    pub fn configure(&self, at: usize, bytes: &[u8]) -> [u8; 8] {
        let mut state = self.state();
        let mut before = [0; 8];
        before[..bytes.len()].copy_from_slice(&state.config[at..at + bytes.len()]);
        state.config[at..at + bytes.len()].copy_from_slice(bytes);
        before
    }

    /// Lies from now on, or no more.
    pub fn lie(&self, lie: Option<Lie>) {
        self.state().lie = lie;
    }

    pub fn notifications(&self) -> u32 {
        self.state().notifications
    }

    pub fn resets(&self) -> u32 {
        self.state().resets
    }
}

impl State {
    /// Does what is in a queue, as the lie of the day has it.
    fn serve(&mut self, memory: &Words, number: u16) {
        let Some(Some((queue, areas))) = self.queues.get_mut(usize::from(number)) else {
            return;
        };
        let size = USED_SIZE;
        let before = memory.load16(areas.device.plus(2)).unwrap();
        match self.lie {
            Some(Lie::Never) => return,
            Some(Lie::Used(index, id, len)) => {
                let entry = u64::from(id) | u64::from(len) << 32;
                let at = areas.device.plus(4 + 8 * u64::from(before % size));
                memory.write(at, &entry.to_le_bytes()).unwrap();
                memory
                    .store16(areas.device.plus(2), before.wrapping_add(index))
                    .unwrap();
                return;
            }
            Some(Lie::NoResult | Lie::Result(_)) => {
                let result = match self.lie {
                    Some(Lie::Result(result)) => result,
                    _ => status::NONE,
                };
                while let Some(chain) = queue.take().unwrap() {
                    let len = chain.writable_len();
                    chain.write(memory, len - 1, &[result]).unwrap();
                    queue.finish(chain, len as u32).unwrap();
                }
                let _ = queue.want_notification().unwrap();
                return;
            }
            _ => {}
        }
        // A queue that is broken waits for its reset.
        while self.server.serve(queue, u16::MAX).is_ok()
            && queue.want_notification() == Ok(Left::Something)
        {}
        if let Some(Lie::Less(less)) = self.lie {
            let after = memory.load16(areas.device.plus(2)).unwrap();
            for index in 0..after.wrapping_sub(before) {
                let slot = before.wrapping_add(index) % size;
                let at = areas.device.plus(8 + 8 * u64::from(slot));
                let mut len = [0; 4];
                memory.read(at, &mut len).unwrap();
                let len = u32::from_le_bytes(len) - less;
                memory.write(at, &len.to_le_bytes()).unwrap();
            }
        }
    }
}

/// Four queues, of 64 descriptors each.
fn queue_size(number: u16) -> u16 {
    if number < 4 { 64 } else { 0 }
}

/// Descriptors that a driver of these tests makes its queues of.
const USED_SIZE: u16 = 16;

impl Transport for &Peer {
    fn reset(&self) -> Result<(), TransportError> {
        let mut state = self.state();
        if state.lie == Some(Lie::NoReset) {
            return Err(TransportError::Stuck);
        }
        state.status = Status::empty();
        state.queues.clear();
        state.resets += 1;
        Ok(())
    }

    fn status(&self) -> Status {
        self.state().status
    }

    fn set_status(&self, status: Status) {
        let mut state = self.state();
        let no_features = state.lie == Some(Lie::NoFeatures);
        state.status = if no_features {
            status - Status::FEATURES_OK
        } else {
            status
        };
    }

    fn device_features(&self) -> u64 {
        self.state().offered
    }

    fn set_driver_features(&self, features: u64) {
        self.state().features = features;
    }

    fn queues(&self) -> u16 {
        4
    }

    fn queue_size(&self, queue: u16) -> u16 {
        queue_size(queue)
    }

    fn enable_queue(&self, queue: u16, setup: &Setup) -> Result<(), TransportError> {
        let mut state = self.state();
        if state.lie == Some(Lie::NoQueues) {
            return Err(TransportError::NoQueue);
        }
        assert!(
            state.status.contains(Status::FEATURES_OK),
            "features come first"
        );
        assert_eq!(setup.features.bits() & !state.features, 0, "not negotiated");
        assert_eq!(setup.size, USED_SIZE);
        let memory = Shared(self.memory.clone());
        let half = DeviceQueue::new(memory, *setup, setup.size).expect("a queue");
        let index = usize::from(queue);
        if state.queues.len() <= index {
            state.queues.resize_with(index + 1, || None);
        }
        state.queues[index] = Some((half, setup.areas));
        Ok(())
    }

    fn reset_queue(&self, queue: u16) -> Result<(), TransportError> {
        let mut state = self.state();
        if state.lie == Some(Lie::NoReset) {
            return Err(TransportError::Stuck);
        }
        state.queues[usize::from(queue)] = None;
        Ok(())
    }

    fn notify(&self, queue: u16) {
        let mut state = self.state();
        assert!(state.status.contains(Status::DRIVER_OK), "it is not in use");
        state.notifications += 1;
        state.serve(&self.memory, queue);
    }

    fn config_generation(&self) -> u32 {
        let mut state = self.state();
        if state.lie == Some(Lie::NewGenerations) {
            state.generation += 1;
        }
        state.generation
    }

    fn read_config(&self, at: usize, into: &mut [u8]) -> Result<(), TransportError> {
        let state = self.state();
        let bytes = state.config.get(at..at + into.len());
        into.copy_from_slice(bytes.ok_or(TransportError::NoConfig)?);
        Ok(())
    }
}
