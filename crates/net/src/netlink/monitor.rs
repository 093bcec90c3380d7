//! Groups of `NETLINK_ROUTE`, which hear of changes (`ip monitor`).

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::IpAddr;
use core::sync::atomic::Ordering;

use fs::Result;

use super::message::{NlmsgHeader, Reply};
use super::route::{
    RTM_DELADDR, RTM_DELLINK, RTM_DELNEIGH, RTM_DELROUTE, RTM_NEWADDR, RTM_NEWLINK, RTM_NEWNEIGH,
    RTM_NEWROUTE,
};
use super::{NETLINK_ROUTE, NetlinkSocket, NetlinkStack};
use crate::inet::{Change, ChangeListener, Host};
use crate::socket::{DeviceDetails, Interface, Interfaces};

/// Groups (`RTNLGRP_*`).
const LINK: u32 = 1;
const NEIGHBOUR: u32 = 3;
const IPV4_ADDRESS: u32 = 5;
const IPV4_ROUTE: u32 = 7;
const IPV6_ADDRESS: u32 = 9;
const IPV6_ROUTE: u32 = 11;

impl NetlinkSocket {
    /// Sets the groups of `mask` that it is in.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub(super) fn set_groups(&self, mask: u32, groups: u32) -> Result<()> {
        if groups & mask != 0 {
            let mut members = self.stack.members.lock();
            if !members.iter().any(|known| known.ptr_eq(&self.this)) {
                fallible::push(&mut members, self.this.clone())?;
            }
        }
        let change = |old| Some(old & !mask | groups & mask);
        let _ = self
            .groups
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, change);
        Ok(())
    }
}

impl NetlinkStack {
    /// Gives the members of a group the messages that `add` makes.
    fn publish(&self, group: u32, add: impl FnOnce(&mut Reply)) {
        let members: Vec<Arc<NetlinkSocket>> = {
            let members = self.members.lock();
            let mut found = Vec::new();
            for member in members.iter().filter_map(alloc::sync::Weak::upgrade) {
                let groups = member.groups.load(Ordering::Relaxed);
                let is_in = groups >> (group - 1) & 1 != 0 && member.protocol == NETLINK_ROUTE;
                // One for whom there is no memory misses it, as one whose queue is full.
                if is_in && fallible::push(&mut found, member).is_err() {
                    break;
                }
            }
            found
        };
        if members.is_empty() {
            return;
        }
        let unasked = NlmsgHeader {
            kind: 0,
            flags: 0,
            sequence: 0,
        };
        let mut reply = Reply::new(unasked, 0);
        add(&mut reply);
        for member in members {
            for datagram in &reply.datagrams {
                if let Ok(copy) = fallible::copy_of(datagram) {
                    member.enqueue([copy].into_iter());
                }
            }
        }
    }
}

impl ChangeListener for NetlinkStack {
    fn changed(&self, host: &Host, change: &Change) {
        match change {
            Change::Link { index } => {
                if let Some(interface) = host.interface(*index) {
                    let device = host.device(*index);
                    self.publish(LINK, |reply| {
                        reply.push_link(RTM_NEWLINK, 0, &interface, &device);
                    });
                }
            }
            Change::Address {
                index,
                address,
                removed,
            } => {
                let kind = if *removed { RTM_DELADDR } else { RTM_NEWADDR };
                if let Some(interface) = host.interface(*index) {
                    let group = match address.ip {
                        IpAddr::V4(_) => IPV4_ADDRESS,
                        IpAddr::V6(_) => IPV6_ADDRESS,
                    };
                    let now = host.now();
                    self.publish(group, |reply| {
                        reply.push_address(kind, 0, &interface, address, now);
                    });
                }
            }
            Change::Route { route, removed } => {
                let kind = if *removed { RTM_DELROUTE } else { RTM_NEWROUTE };
                self.publish(IPV4_ROUTE, |reply| reply.push_route(kind, 0, route, None));
            }
            Change::RouteV6 { route, removed } => {
                let kind = if *removed { RTM_DELROUTE } else { RTM_NEWROUTE };
                self.publish(IPV6_ROUTE, |reply| reply.push_route(kind, 0, route, None));
            }
            Change::Neighbour { neighbour, removed } => {
                let kind = if *removed { RTM_DELNEIGH } else { RTM_NEWNEIGH };
                self.publish(NEIGHBOUR, |reply| reply.push_neighbour(kind, 0, neighbour));
            }
        }
    }

    fn link_removed(&self, interface: &Interface) {
        let device = DeviceDetails::default();
        self.publish(LINK, |reply| {
            reply.push_link(RTM_DELLINK, 0, interface, &device);
        });
    }
}
