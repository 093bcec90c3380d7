//! The network card of an instance, in pages that it shares with its supervisor
//! (`docs/instance-networks.md`).

use alloc::string::{String, ToString};
use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use ::net::inet::Host;
use abi::Network;
use abi::network::{INTERRUPT_CONFIG, INTERRUPT_QUEUES};
use guard::instance;
use task::{Deadline, Event};
use virtio::net::{Bell, WindowMemory, WindowTransport, window_memory};
use virtqueue::Address;

use crate::net_interface::{add, free_name};
use crate::virtio_net::{Interrupts, VirtioNet};
use crate::virtio_parts::{Interrupt, Parts};

/// Looks at the pages without sleeping in between, while the supervisor resets the card.
const QUICK_LOOKS: u32 = 64;
const LOOK_NS: u64 = 1_000_000;
/// Bytes of the area that each queue may have.
const QUEUE_BYTES: u64 = Network::AREA_BYTES as u64 / 2;

static QUEUES: Event = Event::new();
static CONFIG: Event = Event::new();

/// This instance's parts for its card.
struct Window;

impl Parts for Window {
    type Transport = WindowTransport<&'static Network, Doorbell>;
    type Memory = WindowMemory<&'static Network>;
    type Interrupt = &'static Event;
}

/// The doorbell of the supervisor.
struct Doorbell;

impl Bell for Doorbell {
    fn ring(&self) {
        guard::ipi::ring_peer();
    }

    fn pause(&self, n: u32) {
        if n >= QUICK_LOOKS {
            task::sleep_until(Deadline::after_ns(LOOK_NS));
        }
    }
}

impl Interrupt for &'static Event {
    fn event(&self) -> &Event {
        self
    }
}

/// Takes in that the supervisor has rung, whatever for. Called by the handler of the doorbell.
pub fn on_doorbell() {
    let Some(pages) = instance::network() else {
        return;
    };
    let reasons = pages.device.interrupts.swap(0, Ordering::Acquire);
    if reasons & INTERRUPT_CONFIG != 0 {
        CONFIG.set();
    }
    if reasons & (INTERRUPT_CONFIG | INTERRUPT_QUEUES) != 0 {
        QUEUES.set();
    }
}

/// Makes the card of this instance, if it has a network, an interface of a host, which is down. A
/// card that cannot be used costs a line in the log.
pub fn probe(host: &Arc<Host>) {
    if let Some(pages) = instance::network()
        && let Err(error) = start(pages, host)
    {
        log::error!("the instance's network card: {error}");
    }
}

fn start(pages: &'static Network, host: &Arc<Host>) -> Result<(), String> {
    let name = free_name(host);
    let transport = WindowTransport::new(pages, Doorbell);
    let interrupts = Interrupts {
        queues: &QUEUES,
        config: &CONFIG,
    };
    let mut used = 0;
    let memory = |bytes: u64| {
        let at = Address::new(used);
        used += QUEUE_BYTES;
        (bytes <= QUEUE_BYTES).then(|| (window_memory(pages), at))
    };
    let started = VirtioNet::<Window>::start(name.clone(), transport, interrupts, memory);
    let (card, receiver) = started.map_err(|error| error.to_string())?;
    add(host, &name, card, receiver)
}
