//! Virtio devices of the machine: finding them, and what their drivers have of it.

mod disk;
mod net;

use alloc::string::String;
use alloc::sync::Arc;

use ::net::inet::Host;
use devices::{Claim, DmaMemory, PciDevice, Vector};
use task::{Deadline, Event};
use virtio::pci::{Function, Pci};
use virtqueue::{Address, Memory, Transport, Unreachable};

use crate::virtio_parts::Interrupt;

/// Times that a device is looked at without sleeping in between.
const QUICK_LOOKS: u32 = 64;
const LOOK_NS: u64 = 1_000_000;

/// Time that the start of the system waits for devices of a kind.
const START_NS: u64 = 20_000_000_000;

/// Finds the machine's virtio devices and starts their drivers; network cards become interfaces of
/// the host. A device that cannot be used costs a line in the log, and one that does not answer a
/// while: the start of the system waits for it no longer than that.
pub fn probe(host: &Arc<Host>) {
    disk::probe();
    net::probe(host);
}

/// Starts the devices of a kind, in the order of their addresses, in a thread, and waits for that a
/// bounded time. `start` is given the number of those that were started before.
fn start_devices(
    kind: u16,
    what: &'static str,
    done: &'static Event,
    start: impl Fn(&'static PciDevice, u32) -> Result<(), String> + Send + 'static,
) {
    if devices_of(kind).next().is_none() {
        return;
    }
    let start_all = move || {
        let mut started = 0;
        for device in devices_of(kind) {
            match start(device, started) {
                Ok(()) => started += 1,
                Err(error) => {
                    log::error!("{what}: {}: {error}", device.function().address);
                }
            }
        }
        done.set();
    };
    if task::spawn(what, None, start_all).is_err() {
        log::error!("{what}: no memory to look at them");
    } else if !done.wait_until(Deadline::after_ns(START_NS)) {
        log::error!("{what}: one does not answer: the system starts without it");
    }
}

/// The machine's devices of a kind (virtio 1.3, section 5) that drivers are to have, in the order
/// of their addresses.
fn devices_of(kind: u16) -> impl Iterator<Item = &'static PciDevice> {
    devices::pci_devices().iter().filter(move |device| {
        let function = device.function();
        virtio::pci::kind(function.vendor, function.device) == Some(kind) && !device.is_hidden()
    })
}

/// A claimed device that was reset, and may reach memory and send messages from here on.
fn open(claim: &Arc<Claim>, messages: Messages) -> Result<Pci<Board>, String> {
    let claim = claim.clone();
    let transport = Pci::new(Board { claim, messages }).map_err(|error| text(&error))?;
    // What firmware has told it of ends before it may reach memory.
    transport.reset().map_err(|error| text(&error))?;
    transport.function().claim.start();
    Ok(transport)
}

/// Memory for a queue, so many bytes, and its address for the device.
fn queue_memory(claim: &Arc<Claim>, bytes: u64) -> Option<(QueueMemory, Address)> {
    let memory = claim.memory(usize::try_from(bytes).ok()?)?;
    let at = Address::new(memory.address().number());
    Some((QueueMemory(memory), at))
}

fn text(error: &dyn core::fmt::Display) -> String {
    alloc::format!("{error}")
}

/// Assignment of a function's interrupt messages.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Messages {
    /// A message for each queue, by its number, and none for the configuration.
    Queues,
    /// Message 0 for all queues, and message 1 for the configuration.
    Shared,
}

/// A function of the machine, as the transport wants it.
struct Board {
    claim: Arc<Claim>,
    messages: Messages,
}

struct Registers(devices::Registers);

impl virtio::pci::Registers for Registers {
    fn read8(&self, at: usize) -> u8 {
        self.0.read(at)
    }

    fn read16(&self, at: usize) -> u16 {
        self.0.read(at)
    }

    fn read32(&self, at: usize) -> u32 {
        self.0.read(at)
    }

    fn write8(&self, at: usize, value: u8) {
        self.0.write(at, value);
    }

    fn write16(&self, at: usize, value: u16) {
        self.0.write(at, value);
    }

    fn write32(&self, at: usize, value: u32) {
        self.0.write(at, value);
    }
}

impl Function for Board {
    type Registers = Registers;

    fn config(&self, at: u16) -> u32 {
        let mut bytes = [0xff; 4];
        self.claim.device().read_config(at, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    fn registers(&self, bar: u8, offset: u32, len: u32) -> Option<Registers> {
        let registers = self.claim.registers(bar, offset.into(), len as usize);
        registers.ok().map(Registers)
    }

    fn message_of(&self, queue: u16) -> u16 {
        match self.messages {
            Messages::Queues => queue,
            Messages::Shared => 0,
        }
    }

    fn message_of_config(&self) -> Option<u16> {
        (self.messages == Messages::Shared).then_some(1)
    }

    fn force_reset(&self) -> bool {
        let is_stopped = self.claim.reset().is_ok();
        self.claim.start();
        is_stopped
    }

    fn pause(&self, n: u32) {
        if n >= QUICK_LOOKS {
            task::sleep_until(Deadline::after_ns(LOOK_NS));
        }
    }
}

/// Memory of a queue, by the addresses that the device knows.
struct QueueMemory(DmaMemory);

impl QueueMemory {
    fn offset(&self, at: Address) -> Option<usize> {
        let offset = at.number().checked_sub(self.0.address().number())?;
        usize::try_from(offset).ok()
    }
}

impl Memory for QueueMemory {
    fn reaches(&self, at: Address, len: u64) -> bool {
        let bytes = self.0.bytes() as u64;
        self.offset(at)
            .and_then(|offset| (offset as u64).checked_add(len))
            .is_some_and(|end| end <= bytes)
    }

    fn load16(&self, at: Address) -> Result<u16, Unreachable> {
        let offset = self.offset(at).ok_or(Unreachable(at))?;
        self.0.load16(offset).ok_or(Unreachable(at))
    }

    fn store16(&self, at: Address, value: u16) -> Result<(), Unreachable> {
        let offset = self.offset(at).ok_or(Unreachable(at))?;
        self.0.store16(offset, value).ok_or(Unreachable(at))
    }

    fn read(&self, at: Address, into: &mut [u8]) -> Result<(), Unreachable> {
        let offset = self.offset(at).ok_or(Unreachable(at))?;
        self.0.read(offset, into).ok_or(Unreachable(at))
    }

    fn write(&self, at: Address, from: &[u8]) -> Result<(), Unreachable> {
        let offset = self.offset(at).ok_or(Unreachable(at))?;
        self.0.write(offset, from).ok_or(Unreachable(at))
    }
}

impl Interrupt for Vector {
    fn event(&self) -> &Event {
        self.event()
    }
}
