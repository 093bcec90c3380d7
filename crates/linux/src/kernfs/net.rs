//! `/sys/class/net`, and the directories of interfaces that it leads to.
//!
//! Interfaces come and go, so all of it is made when it is looked at. An interface whose card is a
//! function of PCI is in `/sys/devices/virtual/net` like the others, with a link to the function.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;

use abi::errno::Errno;
use fs::Result;
use fs::pseudo::StaticDir;
use linux_raw_sys::general::CAP_NET_ADMIN;
use linux_raw_sys::net::net_device_flags;
use net::DeviceDetails;
use net::inet::Host;
use net::socket::{Interface, InterfaceChange, Interfaces, OperState, TunDetails};

use super::made::{Content, Make, TreeNumbers, directory, link, text};
use crate::state::namespaces;

/// TreeNumbers of the files here.
const NUMBERS: TreeNumbers = TreeNumbers::from(1 << 58);
/// Flags that programs may set, of which the file of flags tells (Linux `dev->flags`).
const SET_FLAGS: u32 = 0xffff & !(IFF_RUNNING | IFF_LOWER_UP);
const IFF_RUNNING: u32 = net_device_flags::IFF_RUNNING as u32;
const IFF_LOWER_UP: u32 = net_device_flags::IFF_LOWER_UP as u32;

/// Adds the directories.
pub(super) fn add(root: &Arc<StaticDir>, dev: u64) {
    let add = |n: u64, path: &str, make: Make| {
        crate::procfs::add_at_path(root, path, directory(dev, NUMBERS.of(n), make));
    };
    let each = |entry: fn(Interface) -> (String, Content)| -> Make {
        Box::new(move || host().interfaces().into_iter().map(entry).collect())
    };
    let link_to = |interface: Interface| {
        let target = format!("../../devices/virtual/net/{}", interface.name);
        link(&interface.name, target)
    };
    let directory_of = |interface: Interface| {
        let name = interface.name.to_string();
        let index = interface.index;
        (name, Content::Directory(Box::new(move || entries(index))))
    };
    add(1, "class/net", each(link_to));
    add(2, "devices/virtual/net", each(directory_of));
}

fn host() -> &'static Arc<Host> {
    namespaces::host()
}

/// The interface with a number.
///
/// # Errors
/// `ENODEV`.
fn interface(index: u32) -> Result<Interface> {
    let all = host().interfaces();
    let found = all.into_iter().find(|interface| interface.index == index);
    found.ok_or(Errno::ENODEV)
}

/// The files of an interface.
fn entries(index: u32) -> super::made::Entries {
    let Ok(shown) = interface(index) else {
        return super::made::Entries::new();
    };
    let device = host().device(index);
    let file = |name: &str, show: fn(&Interface) -> Result<String>| {
        let show = Box::new(move || show(&interface(index)?));
        (name.to_string(), Content::File(show))
    };
    let number = |name: &str, show: fn(&Interface) -> u32, change: fn(u32) -> Change| {
        let show = Box::new(move || Ok(show(&interface(index)?).to_string()));
        let store = Box::new(move |text: &[u8]| set(index, &change(parse(text)?)));
        (name.to_string(), Content::Setting(show, store))
    };
    let mut entries = alloc::vec![
        text("addr_assign_type", assignment(&device)),
        file("addr_len", |it| Ok(address_len(it).to_string())),
        file("address", |it| Ok(hardware(it.hardware_address))),
        file("broadcast", |it| {
            let broadcast = it.hardware_broadcast();
            Ok(hardware(it.hardware_address.map(|_| broadcast)))
        }),
        file("carrier", |it| running(it, carrier(it).to_string())),
        text("dev_id", "0x0"),
        text("dev_port", "0"),
        file("dormant", |it| running(it, "0".into())),
        text("ifalias", ""),
        text("ifindex", index.to_string()),
        text("iflink", index.to_string()),
        text("link_mode", "0"),
        text("netdev_group", "0"),
        file("operstate", |it| Ok(state(it).into())),
        text("proto_down", "0"),
        file("speed", |it| of_card(it, "-1")),
        file("duplex", |it| of_card(it, "unknown")),
        file("type", |it| Ok(it.hardware_type.to_string())),
        text(
            "uevent",
            format!("INTERFACE={}\nIFINDEX={index}", shown.name)
        ),
        link("subsystem", "../../../../class/net".into()),
        number("mtu", |it| it.mtu, Change::Mtu),
        number("tx_queue_len", |it| it.queue_len, Change::QueueLen),
        flags(index),
        (
            "statistics".into(),
            Content::Directory(Box::new(move || statistics(index)))
        ),
        ("queues".into(), Content::Directory(Box::new(queues))),
    ];
    if device.driver.is_some() {
        entries.push(text("name_assign_type", assignment_of_name(&device)));
    }
    if !device.bus.is_empty() && device.tun.is_none() {
        let function = format!("../../../../bus/pci/devices/{}", device.bus);
        entries.push(link("device", function));
    }
    if let Some(tun) = device.tun {
        entries.extend(tun_files(&tun));
    }
    entries
}

type Change = InterfaceChange<'static>;

/// Changes an interface.
///
/// # Errors
/// `EPERM` for who does not administer networks, and those of the change.
fn set(index: u32, change: &Change) -> Result<()> {
    if !crate::socket::is_capable(CAP_NET_ADMIN) {
        return Err(Errno::EPERM);
    }
    host().change_interface(index, change)
}

/// A number that is written, in any of C's ways.
///
/// # Errors
/// `EINVAL`.
fn parse(text: &[u8]) -> Result<u32> {
    let text = core::str::from_utf8(text.trim_ascii()).map_err(|_| Errno::EINVAL)?;
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| Errno::EINVAL)
}

/// `flags`, which can be written as `SIOCSIFFLAGS` sets them.
fn flags(index: u32) -> (String, Content) {
    let show = move || Ok(format!("{:#x}", interface(index)?.flags & SET_FLAGS));
    let store = move |text: &[u8]| set(index, &InterfaceChange::Flags(parse(text)?));
    let content = Content::Setting(Box::new(show), Box::new(store));
    ("flags".into(), content)
}

/// A text of an interface that is up.
///
/// # Errors
/// `EINVAL` of one that is down.
fn running(interface: &Interface, text: String) -> Result<String> {
    if interface.is_up() {
        Ok(text)
    } else {
        Err(Errno::EINVAL)
    }
}

/// A text of a card that is up.
///
/// # Errors
/// `EINVAL` of another interface.
fn of_card(interface: &Interface, text: &str) -> Result<String> {
    match host().device(interface.index).ring {
        Some(_) => running(interface, text.into()),
        None => Err(Errno::EINVAL),
    }
}

fn carrier(interface: &Interface) -> u32 {
    u32::from(interface.flags & IFF_LOWER_UP != 0)
}

fn state(interface: &Interface) -> &'static str {
    match interface.operational_state() {
        OperState::Unknown => "unknown",
        OperState::Down => "down",
        OperState::Up => "up",
    }
}

fn address_len(interface: &Interface) -> usize {
    interface
        .hardware_address
        .map_or(0, |address| address.len())
}

/// Bytes of an address, as Linux writes them.
fn hardware(address: Option<[u8; 6]>) -> String {
    let bytes = address.iter().flatten().map(|byte| format!("{byte:02x}"));
    bytes.collect::<alloc::vec::Vec<_>>().join(":")
}

/// `NET_ADDR_PERM` of what came with its address, `NET_ADDR_RANDOM` of what was given one.
fn assignment(device: &DeviceDetails) -> &'static str {
    if device.tun.is_some() { "1" } else { "0" }
}

/// `NET_NAME_USER` of a name that a program has chosen, `NET_NAME_ENUM` of the next number.
fn assignment_of_name(device: &DeviceDetails) -> &'static str {
    if device.tun.is_some() { "3" } else { "1" }
}

/// `statistics`.
fn statistics(index: u32) -> super::made::Entries {
    /// TreeNumbers that nothing here counts, as no card tells them.
    const NONE: [&str; 15] = [
        "collisions",
        "rx_compressed",
        "rx_crc_errors",
        "rx_fifo_errors",
        "rx_frame_errors",
        "rx_length_errors",
        "rx_missed_errors",
        "rx_nohandler",
        "rx_over_errors",
        "tx_aborted_errors",
        "tx_carrier_errors",
        "tx_compressed",
        "tx_fifo_errors",
        "tx_heartbeat_errors",
        "tx_window_errors",
    ];
    type Count = fn(&Interface) -> u64;
    let counts: [(&str, Count); 9] = [
        ("rx_packets", |it| it.received.packets),
        ("rx_bytes", |it| it.received.bytes),
        ("rx_errors", |it| it.received.errors),
        ("rx_dropped", |it| it.received.dropped),
        ("multicast", |it| it.received.multicast),
        ("tx_packets", |it| it.sent.packets),
        ("tx_bytes", |it| it.sent.bytes),
        ("tx_errors", |it| it.sent.errors),
        ("tx_dropped", |it| it.sent.dropped),
    ];
    let counted = counts.into_iter().map(|(name, count)| {
        let show = move || Ok(count(&interface(index)?).to_string());
        (name.to_string(), Content::File(Box::new(show)))
    });
    let all = NONE.into_iter().map(|name| text(name, "0"));
    counted.chain(all).collect()
}

/// `queues`: one to receive and one to send, without settings.
fn queues() -> super::made::Entries {
    let one = |name: &str| {
        let nothing: Make = Box::new(super::made::Entries::new);
        (name.to_string(), Content::Directory(nothing))
    };
    alloc::vec![one("rx-0"), one("tx-0")]
}

/// Files of an interface of `/dev/net/tun`.
fn tun_files(tun: &TunDetails) -> [(String, Content); 3] {
    let id = |id: Option<u32>| id.map_or("-1".into(), |id| id.to_string());
    [
        text("tun_flags", format!("{:#x}", tun.flags)),
        text("owner", id(tun.owner)),
        text("group", id(tun.group)),
    ]
}
