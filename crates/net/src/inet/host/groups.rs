//! Groups on links (`docs/ip.md`, "Groups"): which programs are in, and what routers and switches
//! are told of those of IPv4.

use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr};

use abi::errno::Errno;
use fs::Result;
use ip::Nanos;
use ip::groups::igmp::{self, Message};
use ip::groups::{Filter, GroupAddress, Groups, Version};

use super::Host;
use super::registry::Registered;
use super::state::{HostState, Work, push_ethernet_header};
use super::v6::random_below;
use crate::inet::frame::ETH_P_IP;
use crate::socket::interface::ETHERNET_HEADER_LEN;

/// A group of a link, for lists.
pub(in crate::inet) struct GroupEntry<A> {
    pub(in crate::inet) interface: u32,
    pub(in crate::inet) group: A,
    pub(in crate::inet) members: u32,
}

impl Registered {
    /// Whether anybody can be told of groups of IPv4.
    fn tells_of_groups(&self) -> bool {
        self.is_up() && self.has_carrier()
    }
}

impl HostState {
    /// An interface has come up, or its link: all groups of IPv4 are told.
    pub(super) fn run_groups(&mut self, now: Nanos, index: u32, work: &mut Work) {
        if let Some(interface) = self.interfaces.get_unseen(index)
            && interface.tells_of_groups()
        {
            interface.groups.tell_all(now);
        }
        self.tell_of_groups(now, work);
    }

    /// Sends what is due of groups of IPv4.
    pub(super) fn tell_of_groups(&mut self, now: Nanos, work: &mut Work) {
        for at in 0.. {
            let Some(interface) = self.interfaces.nth_unseen(at) else {
                break;
            };
            let is_due = interface.groups.deadline().is_some_and(|due| due <= now);
            if is_due && interface.tells_of_groups() {
                let version = interface.groups.version(now);
                let messages = interface.groups.messages(now, random_below);
                let index = interface.shown.index;
                for message in &messages {
                    self.send_group_message(index, version, message, work);
                }
            }
        }
        let all = self.interfaces.iter().filter(|one| one.tells_of_groups());
        self.groups_due = all.filter_map(|one| one.groups.deadline()).min();
    }

    fn send_group_message(
        &mut self,
        index: u32,
        version: Version,
        message: &ip::groups::MessageOf<Ipv4Addr>,
        work: &mut Work,
    ) {
        let Some(interface) = self.interfaces.get(index) else {
            return;
        };
        let source = interface.shown.first_ipv4().map(|(ip, _)| ip);
        let source = source.unwrap_or(Ipv4Addr::UNSPECIFIED);
        let Some((header, packet)) = igmp::packet(source, version, message) else {
            return;
        };
        let Ok(mut frame) = fallible::with_capacity(ETHERNET_HEADER_LEN + packet.len()) else {
            return;
        };
        if let Some(own) = interface.shown.hardware_address {
            let to = igmp::group_hardware(header.destination);
            push_ethernet_header(&mut frame, to, own, ETH_P_IP);
        }
        frame.extend_from_slice(&packet);
        self.counts
            .send(super::state::Class::Multicast, packet.len());
        self.push_frame(index, frame, work);
    }
}

impl Host {
    /// Changes what a socket wants of a group on an interface: see
    /// [`ip::groups::Groups::change`]. Routers are told of it by [`Self::tell_of_groups`], which is
    /// to be called without locks. Of the loop, and of an interface that has gone, nothing is kept.
    ///
    /// # Errors
    /// `ENOMEM`, where `after` is a filter only.
    pub(in crate::inet) fn change_membership(
        &self,
        interface: u32,
        group: IpAddr,
        before: Option<Filter<'_>>,
        after: Option<Filter<'_>>,
    ) -> Result<()> {
        let now = self.now();
        let mut state = self.lock_state();
        let Some(interface) = state.interfaces.get_unseen(interface) else {
            return Ok(());
        };
        let result = match group {
            IpAddr::V4(group) => interface.groups.change(now, group, before, after),
            IpAddr::V6(group) => interface.v6.change_membership(now, group, before, after),
        };
        result.map_err(|_| Errno::ENOMEM)
    }

    /// Tells routers, and switches that listen, what has changed on an interface.
    pub(in crate::inet) fn tell_of_groups(&self, interface: u32) {
        self.with_v6(|now, state, work| {
            state.tell_of_groups(now, work);
            state.step_report(now, interface, work);
        });
    }

    /// Takes a message of IGMP that has come in by an interface.
    pub(super) fn receive_igmp(&self, index: u32, bytes: &[u8]) {
        let Ok(Some(message)) = Message::parse(bytes) else {
            return;
        };
        let now = self.now();
        self.with_state(|state, work| {
            if let Some(interface) = state.interfaces.get_unseen(index) {
                match message {
                    Message::Query(query) => {
                        interface.groups.take_query(now, &query, random_below);
                    }
                    Message::Report(group) => interface.groups.heard_report(now, group),
                }
            }
            state.tell_of_groups(now, work);
        });
    }

    /// The groups that programs are in, by interface.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub(in crate::inet) fn joined_v4(&self) -> Result<Vec<GroupEntry<Ipv4Addr>>> {
        self.joined(|interface| &interface.groups)
    }

    /// The groups in a table of each interface.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub(super) fn joined<A: GroupAddress>(
        &self,
        table: impl Fn(&Registered) -> &Groups<A>,
    ) -> Result<Vec<GroupEntry<A>>> {
        let state = self.lock_state();
        let mut list = Vec::new();
        for one in state.interfaces.iter() {
            for (group, members) in table(one).iter() {
                let entry = GroupEntry {
                    interface: one.shown.index,
                    group,
                    members,
                };
                fallible::push(&mut list, entry)?;
            }
        }
        Ok(list)
    }
}
