//! Virtio network cards of the machine, as interfaces of the network.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;

use ::net::inet::Host;
use devices::{PciDevice, Vector};
use guard::cpu::CpuId;
use task::Event;
use virtio::pci::Pci;

use super::{Board, Messages, is_kind, open};
use crate::hotplug::Started;
use crate::net_interface::{add, free_name};
use crate::pci_parts::{QueueMemory, queue_memory, start_devices, text};
use crate::virtio_net::{Interrupts, VirtioNet};
use crate::virtio_parts::Parts;

/// Kind of network cards among virtio devices.
const KIND: u16 = 1;

/// This machine's parts for a network card.
struct Machine;

impl Parts for Machine {
    type Transport = Pci<Board>;
    type Memory = QueueMemory;
    type Interrupt = Vector;
}

/// Finds network cards and makes them interfaces of a host, which are down.
pub fn probe(host: &Arc<Host>) {
    static DONE: Event = Event::new();
    let host = host.clone();
    let start = move |device, index| start_card(device, index, &host);
    start_devices(is_kind(KIND), "network cards", &DONE, start);
}

/// Brings a card up, and its thread.
fn start_card(
    device: &'static PciDevice,
    index: u32,
    host: &Arc<Host>,
) -> Result<Box<dyn Started>, String> {
    let claim = device.claim().map_err(|error| text(&error))?;
    let cpu = CpuId(index % devices::vector_cpus() as u32);
    let vector = |entry| {
        let vector = claim.vector(entry, cpu);
        vector.map_err(|_| String::from("it has too few interrupt messages"))
    };
    let interrupts = Interrupts {
        queues: vector(0)?,
        config: vector(1)?,
    };
    let woken = interrupts.config.also_wake(&interrupts.queues);
    woken.map_err(|_| String::from("its interrupts are of two CPUs"))?;
    let transport = open(&claim, Messages::Shared)?;
    let memory = |bytes: u64| queue_memory(&claim, bytes);
    let name = free_name(host);
    let started = VirtioNet::<Machine>::start(name.clone(), transport, interrupts, memory);
    let (card, receiver) = started.map_err(|error| text(&error))?;
    let properties = *card.properties();
    let bus = text(&device.function().address);
    let interface = add(host, (&name, bus), card, receiver, true)?;
    let [a, b, c, d, e, f] = properties.mac;
    log::info!(
        "{name}: virtio network card {}, {a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}, MTU {}",
        device.function().address,
        properties.mtu
    );
    Ok(Box::new(interface))
}
