//! Virtio network cards of the machine, as interfaces of the network.

use alloc::string::String;
use alloc::sync::Arc;

use ::net::inet::Host;
use ::net::{Frame, FrameLost, LinkKind, NetDevice, NewInterface};
use devices::{PciDevice, Vector};
use guard::cpu::CpuId;
use task::Event;
use virtio::pci::Pci;

use super::{Board, Messages, QueueMemory, open, queue_memory, start_devices, text};
use crate::virtio_net::{Interrupts, Lost, Upper, VirtioNet};
use crate::virtio_parts::Parts;

/// Kind of network cards among virtio devices.
const KIND: u16 = 1;
/// Frames that may wait, as Linux tells it of every card of Ethernet.
const QUEUE_LEN: u32 = 1000;

/// This machine's parts for a network card.
struct Machine;

impl Parts for Machine {
    type Transport = Pci<Board>;
    type Memory = QueueMemory;
    type Interrupt = Vector;
}

/// A card as the host below the sockets knows it.
struct Card(VirtioNet<Machine>);

impl NetDevice for Card {
    fn transmit(&self, frame: Frame) -> Result<(), FrameLost> {
        self.0.transmit(&frame.data).map_err(|Lost| FrameLost)
    }
}

/// The interface that a card is of a host.
struct Interface {
    host: Arc<Host>,
    index: u32,
}

impl Upper for Interface {
    fn receive(&self, frame: &[u8]) {
        // Without memory it is lost, as on a wire.
        if let Ok(data) = fallible::copy_of(frame) {
            self.host.receive(self.index, Frame { data });
        }
    }

    fn link_changed(&self, is_up: bool) {
        self.host.set_carrier(self.index, is_up);
    }
}

/// Finds network cards and makes them interfaces of a host, which are down.
pub fn probe(host: &Arc<Host>) {
    static DONE: Event = Event::new();
    let host = host.clone();
    start_devices(KIND, "network cards", &DONE, move |device, index| {
        start_card(device, index, &host)
    });
}

/// Brings a card up, and its thread.
fn start_card(device: &'static PciDevice, index: u32, host: &Arc<Host>) -> Result<(), String> {
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
    let name = alloc::format!("eth{index}");
    let started = VirtioNet::<Machine>::start(name.clone(), transport, interrupts, memory);
    let (card, mut receiver) = started.map_err(|error| text(&error))?;
    let properties = *card.properties();
    let card = Arc::new(Card(card));
    let new = NewInterface {
        name: &name,
        link: LinkKind::Ethernet(properties.mac),
        mtu: properties.mtu.into(),
        max_mtu: properties.mtu.into(),
        queue_len: QUEUE_LEN,
        has_carrier: receiver.is_link_up(),
    };
    let added = host.add_interface(&new, card.clone());
    let index = added.map_err(|error| alloc::format!("{error:?}"))?;
    let upper = Interface {
        host: host.clone(),
        index,
    };
    let run = move || while card.0.serve(&mut receiver, &upper).is_continue() {};
    if task::spawn(&name, None, run).is_err() {
        let _ = host.remove_interface(index);
        return Err("no memory for its thread".into());
    }
    let [a, b, c, d, e, f] = properties.mac;
    log::info!(
        "{name}: virtio network card {}, {a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}, MTU {}",
        device.function().address,
        properties.mtu
    );
    Ok(())
}
