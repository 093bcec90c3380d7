//! Networks that come and go: the supervisor's interface to each, and its place behind the
//! supervisor's addresses.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::Ipv4Addr;

use abi::dev::{self, MAX_NETWORKS, NetworkInfo};
use abi::errno::Errno;
use abi::keep::KeptNetwork;
use abi::network::{self, Subnet, mac_of};
use guard::partition;
use ip::route::Prefix;
use net::inet::{BootConfig, Host};
use net::{LinkKind, NewInterface};
use switch::Switch;
use task::{Group, Mutex};

use super::{BRIDGE, HOST, Network, Refused, Uplink, serve};
use crate::label::Label;

/// Packets that may wait, as Linux tells it of every card of Ethernet.
const QUEUE_LEN: u32 = 1000;

/// State of who makes networks and takes them away, one after the other.
struct Maker {
    /// Number of the next network beside the first one, which has 0.
    next: u32,
    has_thread: bool,
}

static MAKER: Mutex<Maker> = Mutex::new(Maker {
    next: 1,
    has_thread: false,
});

/// Why a network is not made.
pub(crate) enum AddRefused {
    /// Another one has the name.
    Label,
    /// There are as many as there may be.
    TooMany,
    /// There is an interface (its name is padded) with addresses in common.
    Overlap(Prefix, [u8; dev::INTERFACE_BYTES]),
    /// There is no memory, or no room for an interface.
    Unable,
}

/// The prefix of a network's addresses.
fn prefix(subnet: Subnet) -> Prefix {
    Prefix {
        address: subnet.network(),
        length: subnet.prefix_len(),
    }
}

/// Name of the network that there always is.
fn bridge() -> Option<Label> {
    dev::field(network::BRIDGE).and_then(|field| Label::new(&field))
}

/// Makes the networks that the supervisor before this one had. One that cannot be made is gone,
/// with the instances that have an address of it.
pub(crate) fn adopt_networks() {
    let mut maker = MAKER.lock();
    for kept in partition::kept_networks() {
        let subnet = Subnet::new(Ipv4Addr::from_bits(kept.gateway), kept.prefix_len as u8);
        let (Some(label), Some(subnet)) = (Label::new(&kept.label), subnet) else {
            continue;
        };
        maker.next = maker.next.max(kept.number.saturating_add(1));
        if let Err(what) = maker.make(kept.number, label, subnet) {
            log::error!("network {label} is not there any more: {what}");
            partition::forget_network(kept.number);
        }
    }
}

/// Makes the network that there always is if that has this number and it is not made yet.
pub(super) fn ensure_number(number: u32) {
    if let Some(label) = bridge().filter(|_| number == 0) {
        let _ = ensure(label);
    }
}

/// Makes the network that there always is if that is the one and it is not made yet.
pub(super) fn ensure(label: Label) -> Result<(), Refused> {
    if Some(label) != bridge() {
        return Ok(());
    }
    let mut maker = MAKER.lock();
    let is_made = {
        let bridge = BRIDGE.lock();
        bridge.networks.iter().any(|one| one.label == label)
    };
    if is_made {
        return Ok(());
    }
    let made = maker.make(0, label, Subnet::BRIDGE);
    made.map_err(|what| {
        log::error!("network {label}: {what}: instances do not have it");
        Refused::Unable
    })
}

/// Makes a network.
///
/// # Errors
/// Nothing was changed: [`AddRefused`].
pub(crate) fn add(label: Label, subnet: Subnet) -> Result<(), AddRefused> {
    let mut maker = MAKER.lock();
    if Some(label) == bridge() {
        return Err(AddRefused::Label);
    }
    let overlap = |subnet: Subnet, interface: &str| {
        let interface = dev::field(interface).unwrap_or_default();
        AddRefused::Overlap(prefix(subnet), interface)
    };
    {
        let bridge = BRIDGE.lock();
        let networks = &bridge.networks;
        if networks.iter().any(|one| one.label == label) {
            return Err(AddRefused::Label);
        }
        // With the one that there always is, made or not.
        if networks.iter().filter(|one| one.number > 0).count() + 1 >= MAX_NETWORKS {
            return Err(AddRefused::TooMany);
        }
        let mut others = networks
            .iter()
            .map(|one| (one.switch.subnet(), &*one.interface));
        if let Some((other, interface)) = others.find(|(other, _)| other.overlaps(subnet)) {
            return Err(overlap(other, interface));
        }
    }
    if subnet.overlaps(Subnet::BRIDGE) {
        return Err(overlap(Subnet::BRIDGE, ""));
    }
    let host = HOST.get().ok_or(AddRefused::Unable)?;
    if let Some((other, interface)) = host.network_that_overlaps(prefix(subnet)) {
        let interface = interface.and_then(|name| dev::field(&name));
        return Err(AddRefused::Overlap(other, interface.unwrap_or_default()));
    }
    let number = maker.next;
    maker.make(number, label, subnet).map_err(|what| {
        log::error!("network {label}: {what}");
        AddRefused::Unable
    })?;
    maker.next += 1;
    let is_kept = partition::note_network(&KeptNetwork {
        number,
        label: label.0,
        gateway: subnet.gateway().to_bits(),
        prefix_len: subnet.prefix_len().into(),
    });
    if !is_kept {
        log::error!("network {label} ends if the supervisor starts again: there is no note of it");
    }
    Ok(())
}

/// Takes a network away.
///
/// # Errors
/// Nothing was changed. `ENOENT`: there is none of that name; `EPERM`: it is the one that there
/// always is; `EBUSY`: an instance has an address of it.
pub(crate) fn remove(label: Label) -> fs::Result<()> {
    let _maker = MAKER.lock();
    if Some(label) == bridge() {
        return Err(Errno::EPERM);
    }
    let network = {
        let mut bridge = BRIDGE.lock();
        bridge.remove_gone();
        let networks = &mut bridge.networks;
        let at = networks.iter().position(|one| one.label == label);
        let at = at.ok_or(Errno::ENOENT)?;
        if networks[at].switch.ports().next().is_some() {
            return Err(Errno::EBUSY);
        }
        networks.remove(at)
    };
    partition::forget_network(network.number);
    if let Some(host) = HOST.get() {
        host.stop_masquerade(prefix(network.switch.subnet()));
        // Somebody may have taken it away before.
        let _ = host.remove_interface(network.uplink);
    }
    Ok(())
}

/// Description of a network: with 0 of the one that there always is, then of the others in the
/// order in which they were made; `None` behind the last.
pub(crate) fn info(at: usize) -> Option<NetworkInfo> {
    let bridge_label = bridge()?;
    let mut bridge = BRIDGE.lock();
    bridge.remove_gone();
    let shown = |network: &Network| NetworkInfo {
        members: network.switch.ports().count() as u32,
        interface: dev::field(&network.interface).unwrap_or_default(),
        ..described(network.label, network.switch.subnet())
    };
    let mut all = bridge.networks.iter();
    match at.checked_sub(1) {
        None => {
            let made = all.find(|one| one.label == bridge_label).map(shown);
            Some(made.unwrap_or_else(|| described(bridge_label, Subnet::BRIDGE)))
        }
        Some(at) => all
            .filter(|one| one.label != bridge_label)
            .nth(at)
            .map(shown),
    }
}

fn described(label: Label, subnet: Subnet) -> NetworkInfo {
    NetworkInfo {
        label: label.0,
        gateway: subnet.gateway().to_bits(),
        prefix_len: subnet.prefix_len().into(),
        ..dev::zeroed()
    }
}

impl Maker {
    /// Makes the supervisor's interface and the switch of a network, and the thread, if there is
    /// none.
    fn make(&mut self, number: u32, label: Label, subnet: Subnet) -> Result<(), String> {
        let host = HOST.get().ok_or_else(|| String::from("there is no host"))?;
        let interface = format!("skerry{number}");
        let new = NewInterface {
            name: &interface,
            link: LinkKind::Ethernet(mac_of(subnet.gateway())),
            mtu: network::MTU.into(),
            max_mtu: network::MTU.into(),
            queue_len: QUEUE_LEN,
            has_carrier: true,
            // The switch carries none.
            has_ipv6: false,
        };
        let uplink = host
            .add_interface(&new, Arc::new(Uplink(number)))
            .map_err(|error| format!("{error}"))?;
        let made = set_up(host, subnet, &interface)
            .and_then(|()| lead_outside(host, subnet))
            .and_then(|()| self.ensure_thread())
            .and_then(|()| {
                let network = Network {
                    number,
                    label,
                    interface,
                    uplink,
                    switch: Switch::new(subnet),
                };
                let networks: &mut Vec<_> = &mut BRIDGE.lock().networks;
                let pushed = fallible::push(networks, network);
                pushed.map_err(|_| String::from("no memory"))
            });
        if made.is_err() {
            host.stop_masquerade(prefix(subnet));
            let _ = host.remove_interface(uplink);
        }
        made
    }

    fn ensure_thread(&mut self) -> Result<(), String> {
        if !self.has_thread {
            let thread = task::spawn("network", None, serve);
            let thread = thread.map_err(|_| String::from("no memory for its thread"))?;
            thread.set_group(Group::Programs);
            self.has_thread = true;
        }
        Ok(())
    }
}

/// Gives the supervisor's interface its address.
fn set_up(host: &Host, subnet: Subnet, interface: &str) -> Result<(), String> {
    let config = BootConfig {
        address: subnet.gateway(),
        prefix_len: subnet.prefix_len(),
        server: None,
        gateway: None,
        hostname: None,
        device: Some(interface),
        name_servers: [None; 2],
    };
    config.apply(host).map(drop)
}

/// Has instances reach what the supervisor reaches, by its addresses.
fn lead_outside(host: &Host, subnet: Subnet) -> Result<(), String> {
    host.masquerade(prefix(subnet))
        .map_err(|error| format!("cannot hide its network: {error}"))
}
