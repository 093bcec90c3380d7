//! The network card of an instance, in pages that it shares with its supervisor
//! (`docs/instance-networks.md`).

use alloc::string::{String, ToString};
use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use ::net::inet::Host;
use abi::Network;
use abi::network::{INTERRUPT_CONFIG, INTERRUPT_QUEUES, QUEUE_SIZE};
use guard::instance;
use task::{Deadline, Event};
use virtio::net::{Bell, WindowMemory, WindowTransport, window_memory};
use virtqueue::{Address, Memory};

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

/// Flags by which descriptors of a packed ring are available, in odd rounds and in even ones
/// (virtio 1.3, section 2.8.1).
const AVAILABLE: [u16; 2] = [1 << 7, 1 << 15];
/// Looks at whether the supervisor has noticed.
const NOTICE_LOOKS: u32 = 1000;

/// Offers the supervisor buffers to send that are nowhere, as a hostile driver could, until it has
/// had the card reset: for tests of the supervisor.
pub fn offer_nonsense() {
    let Some(pages) = instance::network() else {
        return;
    };
    let memory = window_memory(pages);
    let ring = pages.driver.queues[1].descriptors.load(Ordering::Relaxed);
    let resets = || pages.driver.resets.load(Ordering::Relaxed);
    let before = resets();
    for flags in AVAILABLE {
        let [low, high] = flags.to_le_bytes();
        for n in 0..u64::from(QUEUE_SIZE) {
            let mut descriptor = [0xff; 16];
            descriptor[8..12].copy_from_slice(&64_u32.to_le_bytes());
            descriptor[12..].copy_from_slice(&[n as u8, 0, low, high]);
            let _ = memory.write(Address::new(ring + 16 * n), &descriptor);
        }
        guard::ipi::ring_peer();
        let noticed = (0..NOTICE_LOOKS).any(|n| {
            Doorbell.pause(n);
            resets() != before
        });
        if noticed {
            return;
        }
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
    // The switch carries no IPv6.
    add(host, (&name, String::new()), card, receiver, false).map(drop)
}
