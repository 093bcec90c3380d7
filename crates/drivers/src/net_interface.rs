//! Virtio network cards as interfaces of the network, wherever the card is.

use alloc::string::String;
use alloc::sync::{Arc, Weak};

use ::net::inet::Host;
use ::net::{DeviceDetails, Frame, FrameRefused, LinkKind, NetDevice, NewInterface};
use abi::live::Refusal;

use crate::hotplug::Started;
use crate::virtio_net::{Frames, Receiver, Refused, Upper, VirtioNet};
use crate::virtio_parts::Parts;

/// Frames that may wait, as Linux tells it of every card of Ethernet.
const QUEUE_LEN: u32 = 1000;

/// A card as the host below the sockets knows it, and its place on its bus.
struct Card<P: Parts>(VirtioNet<P>, String);

impl<P: Parts> NetDevice for Card<P> {
    fn transmit(&self, frame: Frame) -> Result<(), FrameRefused> {
        self.0.transmit(&frame.data).map_err(|why| match why {
            Refused::NoRoom => FrameRefused::NoRoom(frame),
            Refused::Lost => FrameRefused::Lost,
        })
    }

    fn details(&self) -> DeviceDetails {
        let losses = self.0.losses();
        DeviceDetails {
            driver: Some("virtio_net"),
            bus: self.1.clone(),
            ring: Some(self.0.ring()),
            permanent_address: Some(self.0.properties().mac),
            statistics: alloc::vec![
                ("rx_queue_0_malformed", losses.received),
                ("tx_queue_0_refused", losses.sent),
                ("resets", losses.resets),
            ],
            tun: None,
        }
    }
}

/// The interface that a card is of a host.
struct Interface {
    host: Arc<Host>,
    index: u32,
}

impl Upper for Interface {
    fn receive(&self, frames: &mut Frames<'_>) {
        let mut burst = self.host.burst(self.index);
        frames(&mut |frame| burst.receive(frame));
    }

    fn link_changed(&self, is_up: bool) {
        self.host.set_carrier(self.index, is_up);
    }

    fn has_room(&self) {
        self.host.has_room(self.index);
    }
}

/// A card that is an interface of a host.
pub(crate) struct StartedCard<P: Parts> {
    host: Arc<Host>,
    index: u32,
    /// The host has it, and its thread.
    card: Weak<Card<P>>,
}

impl<P: Parts> Started for StartedCard<P>
where
    VirtioNet<P>: Send + Sync,
{
    /// Removes the interface with its addresses and routes, as Linux does, and ends its thread.
    fn end(&mut self, force: bool) -> Result<(), Refusal> {
        let interface = self.host.interface(self.index);
        if !force && interface.is_some_and(|one| one.is_up()) {
            return Err(Refusal::up(self.index));
        }
        // If somebody has removed it, all the better.
        let _ = self.host.remove_interface(self.index);
        if let Some(card) = self.card.upgrade() {
            card.0.stop();
        }
        Ok(())
    }
}

/// The first name of a network card that no interface of a host has.
pub(crate) fn free_name(host: &Host) -> String {
    let mut names = (0_u32..).map(|index| alloc::format!("eth{index}"));
    let free = names.find(|name| host.interface_named(name).is_none());
    free.expect("there are fewer interfaces than numbers")
}

/// Makes a card, which is at some place of its bus, an interface of a host, which is down, and
/// starts its thread. IPv6 is off on it
/// unless its link carries that.
pub(crate) fn add<P: Parts>(
    host: &Arc<Host>,
    (name, bus): (&str, String),
    card: VirtioNet<P>,
    mut receiver: Receiver<P>,
    has_ipv6: bool,
) -> Result<StartedCard<P>, String>
where
    VirtioNet<P>: Send + Sync,
    Receiver<P>: Send,
{
    let properties = *card.properties();
    let card = Arc::new(Card(card, bus));
    let new = NewInterface {
        name,
        link: LinkKind::Ethernet(properties.mac),
        mtu: properties.mtu.into(),
        max_mtu: properties.mtu.into(),
        queue_len: QUEUE_LEN,
        has_carrier: receiver.is_link_up(),
        has_ipv6,
    };
    let added = host.add_interface(&new, card.clone());
    let index = added.map_err(|error| alloc::format!("{error:?}"))?;
    let upper = Interface {
        host: host.clone(),
        index,
    };
    let started = StartedCard {
        host: host.clone(),
        index,
        card: Arc::downgrade(&card),
    };
    let run = move || while card.0.serve(&mut receiver, &upper).is_continue() {};
    if task::spawn(name, None, run).is_err() {
        let _ = host.remove_interface(index);
        return Err("no memory for its thread".into());
    }
    Ok(started)
}
