//! Messages of `NETLINK_ROUTE` that tell of an interface.

use alloc::vec::Vec;

use linux_raw_sys::if_tun::{
    IFF_MULTI_QUEUE, IFF_NO_PI, IFF_PERSIST, IFF_TAP, IFF_TUN, IFF_VNET_HDR,
};
use linux_raw_sys::net::net_device_flags::IFF_LOWER_UP;

use super::message::{Reply, push_attribute};
use crate::socket::{DeviceDetails, Interface, TunDetails};

/// Attributes of links.
pub(super) const IFLA_ADDRESS: u16 = 1;
const IFLA_BROADCAST: u16 = 2;
pub(super) const IFLA_IFNAME: u16 = 3;
pub(super) const IFLA_MTU: u16 = 4;
const IFLA_QDISC: u16 = 6;
const IFLA_STATS: u16 = 7;
pub(super) const IFLA_TXQLEN: u16 = 13;
const IFLA_OPERSTATE: u16 = 16;
const IFLA_LINKMODE: u16 = 17;
pub(super) const IFLA_LINKINFO: u16 = 18;
pub(super) const IFLA_IFALIAS: u16 = 20;
const IFLA_STATS64: u16 = 23;
const IFLA_GROUP: u16 = 27;
const IFLA_CARRIER: u16 = 33;

impl Reply {
    /// Adds an interface with the kind that its driver tells of.
    pub(super) fn push_link(
        &mut self,
        kind: u16,
        flags: u16,
        interface: &Interface,
        device: &DeviceDetails,
    ) {
        let info = device.tun.map_or_else(Vec::new, |tun| link_info(&tun));
        let fixed = [
            &[0, 0][..],
            &interface.hardware_type.to_ne_bytes(),
            &interface.index.to_ne_bytes(),
            &interface.flags.to_ne_bytes(),
            &[0; 4],
        ]
        .concat();
        let name = [interface.name.as_bytes(), &[0]].concat();
        let hardware_len = usize::from(interface.hardware_len());
        let (address, broadcast) = (
            interface.hardware_address.unwrap_or_default(),
            interface.hardware_broadcast(),
        );
        let (short, long) = link_statistics(interface);
        let attributes: [(u16, &[u8]); 13] = [
            (IFLA_IFNAME, &name),
            (IFLA_TXQLEN, &interface.queue_len.to_ne_bytes()),
            (IFLA_OPERSTATE, &[interface.operational_state() as u8]),
            (IFLA_LINKMODE, &[0]),
            (IFLA_MTU, &interface.mtu.to_ne_bytes()),
            (IFLA_GROUP, &[0; 4]),
            (IFLA_CARRIER, &[u8::from(interface.has_flag(IFF_LOWER_UP))]),
            (IFLA_QDISC, b"noqueue\0"),
            (IFLA_ADDRESS, &address[..hardware_len]),
            (IFLA_BROADCAST, &broadcast[..hardware_len]),
            (IFLA_STATS, &short),
            (IFLA_STATS64, &long),
            (IFLA_LINKINFO, &info),
        ];
        // Who has no kind has no information of it.
        let count = attributes.len() - usize::from(info.is_empty());
        self.push_message(kind, flags, &fixed, &attributes[..count]);
    }
}

/// The attributes in `IFLA_LINKINFO` of an interface of `/dev/net/tun`.
fn link_info(tun: &TunDetails) -> Vec<u8> {
    const IFLA_INFO_KIND: u16 = 1;
    const IFLA_INFO_DATA: u16 = 2;
    let has = |flag: u32| u8::from(tun.flags & flag != 0);
    let mut data = Vec::new();
    // `IFLA_TUN_OWNER` and those that follow it.
    for (kind, id) in [(1, tun.owner), (2, tun.group)] {
        if let Some(id) = id {
            push_attribute(&mut data, kind, &id.to_ne_bytes());
        }
    }
    push_attribute(&mut data, 3, &[(tun.flags & (IFF_TUN | IFF_TAP)) as u8]);
    push_attribute(&mut data, 4, &[1 - has(IFF_NO_PI)]);
    push_attribute(&mut data, 5, &[has(IFF_VNET_HDR)]);
    push_attribute(&mut data, 6, &[has(IFF_PERSIST)]);
    push_attribute(&mut data, 7, &[has(IFF_MULTI_QUEUE)]);
    if has(IFF_MULTI_QUEUE) != 0 {
        push_attribute(&mut data, 8, &tun.queues.to_ne_bytes());
        push_attribute(&mut data, 9, &0_u32.to_ne_bytes());
    }
    let mut info = Vec::new();
    push_attribute(&mut info, IFLA_INFO_KIND, b"tun\0");
    push_attribute(&mut info, IFLA_INFO_DATA, &data);
    info
}

/// `struct rtnl_link_stats` and `struct rtnl_link_stats64`.
fn link_statistics(interface: &Interface) -> ([u8; 96], [u8; 192]) {
    let (received, sent) = (&interface.received, &interface.sent);
    let numbers = [
        received.packets,
        sent.packets,
        received.bytes,
        sent.bytes,
        received.errors,
        sent.errors,
        received.dropped,
        sent.dropped,
        received.multicast,
    ];
    let (mut short, mut long) = ([0; 96], [0; 192]);
    for (at, number) in numbers.into_iter().enumerate() {
        short[at * 4..][..4].copy_from_slice(&(number as u32).to_ne_bytes());
        long[at * 8..][..8].copy_from_slice(&number.to_ne_bytes());
    }
    (short, long)
}
