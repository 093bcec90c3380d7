//! Virtio devices of the machine: finding them, and what their drivers have of it.

mod disk;
mod net;

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use ::net::inet::Host;
use devices::{Claim, ClaimError, PciDevice};
use pci::{Address, Function};
use task::Mutex;
use virtio::pci::Pci;
use virtqueue::{Features, Transport};

use crate::pci_parts::{pause, text};

/// Finds the machine's virtio devices and starts their drivers; network cards become interfaces of
/// the host. A device that cannot be used costs a line in the log, and one that does not answer a
/// while: the start of the system waits for it no longer than that.
pub fn probe(host: &Arc<Host>) {
    disk::probe();
    net::probe(host);
}

/// Whether a function is a virtio device that reaches memory without an IOMMU, whatever translates
/// for the function: one that does not offer `VIRTIO_F_ACCESS_PLATFORM` (virtio 1.3, section 6), or
/// cannot be asked. It is asked once: no reset changes what a device offers. The function is reset
/// by that.
///
/// # Errors
/// [`ClaimError`]: somebody has it.
pub fn bypasses_iommu(device: &'static PciDevice) -> Result<bool, ClaimError> {
    let Function {
        vendor, address, ..
    } = *device.function();
    if vendor != virtio::pci::VENDOR {
        return Ok(false);
    }
    let known = ANSWERS
        .lock()
        .iter()
        .find(|(of, _)| *of == address)
        .copied();
    if let Some((_, bypasses)) = known {
        return Ok(bypasses);
    }
    let messages = Messages::Shared;
    let claim = device.claim()?;
    let Ok(transport) = Pci::new(Board { claim, messages }) else {
        return Ok(true);
    };
    let bypasses = transport.device_features() & Features::ACCESS_PLATFORM.bits() == 0;
    let mut answers = ANSWERS.lock();
    // Without memory for its answer it is asked again.
    if answers.iter().all(|(of, _)| *of != address) && answers.try_reserve(1).is_ok() {
        answers.push((address, bypasses));
    }
    Ok(bypasses)
}

/// Answers of functions that were asked whether they bypass an IOMMU, one of each at most.
static ANSWERS: Mutex<Vec<(Address, bool)>> = Mutex::new(Vec::new());

/// Whether drivers of virtio devices of a kind (virtio 1.3, section 5) are to have a function.
fn is_kind(kind: u16) -> impl Fn(&Function) -> bool + Copy + Send {
    move |function| virtio::pci::kind(function.vendor, function.device) == Some(kind)
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

impl virtio::pci::Function for Board {
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
        pause(n);
    }
}
