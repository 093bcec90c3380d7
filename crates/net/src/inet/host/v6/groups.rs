//! Groups of IPv6 on links: which the host and its programs are in, and what routers and switches
//! are told of them (RFC 3810).

use alloc::vec::Vec;
use core::net::Ipv6Addr;

use fs::Result;
use ip::Nanos;
use ip::groups::{Filter, OutOfMemory, Query};
use ip::v6::address::{Scope, group_hardware, scope, solicited_node};
use ip::v6::icmp::kind;
use ip::v6::{Header, mld, next};

use super::Ipv6Link;
use super::addresses::random_below;
use crate::inet::host::Host;
use crate::inet::host::groups::GroupEntry;
use crate::inet::host::registry::Registered;
use crate::inet::host::state::{HostState, Work};

impl Ipv6Link {
    /// Implements [`Host::change_membership`].
    pub(in crate::inet::host) fn change_membership(
        &mut self,
        now: Nanos,
        group: Ipv6Addr,
        before: Option<Filter<'_>>,
        after: Option<Filter<'_>>,
    ) -> core::result::Result<(), OutOfMemory> {
        self.groups.change(now, group, before, after)
    }
}

impl HostState {
    /// The address of the link that messages come from; nobody's if there is none yet.
    pub(super) fn link_source(&self, index: u32) -> Ipv6Addr {
        let interface = self.interfaces.get(index);
        let mut own = interface
            .into_iter()
            .flat_map(Registered::usable_v6_addresses);
        let found = own.find(|(address, _)| scope(*address) == Scope::Link);
        found.map_or(Ipv6Addr::UNSPECIFIED, |(address, _)| address)
    }

    /// The host is in the group of an address from now on.
    pub(super) fn join_group_of(
        &mut self,
        now: Nanos,
        index: u32,
        address: Ipv6Addr,
        work: &mut Work,
    ) {
        if let Some(interface) = self.interfaces.get_unseen(index) {
            // Without memory nobody is told, and the address is reached where nobody listens.
            let _ = interface.v6.groups.hold(now, solicited_node(address), true);
        }
        self.step_report(now, index, work);
    }

    /// The host has lost an address: it has left that one's group, unless another is in it, too.
    pub(super) fn leave_group_of(
        &mut self,
        now: Nanos,
        index: u32,
        address: Ipv6Addr,
        work: &mut Work,
    ) {
        let group = solicited_node(address);
        if let Some(interface) = self.interfaces.get_unseen(index) {
            let is_of_group = |(address, _)| solicited_node(address) == group;
            let is_needed = interface.v6_addresses().any(is_of_group);
            if !is_needed {
                // To be in no group takes no memory.
                let _ = interface.v6.groups.hold(now, group, false);
            }
        }
        self.step_report(now, index, work);
    }

    /// Tells of all groups.
    pub(super) fn report_groups(&mut self, now: Nanos, index: u32, work: &mut Work) {
        if let Some(interface) = self.interfaces.get_unseen(index) {
            interface.v6.groups.tell_all(now);
        }
        self.step_report(now, index, work);
    }

    /// A router asks for groups, or another host has told of one.
    pub(super) fn take_group_message(&mut self, now: Nanos, index: u32, message: &[u8]) {
        let Some(interface) = self.interfaces.get_unseen(index) else {
            return;
        };
        let groups = &mut interface.v6.groups;
        if message.first() == Some(&kind::GROUP_QUERY) {
            if let Ok(query) = Query::parse(message) {
                groups.take_query(now, &query, random_below);
            }
        } else if let Ok(group) = mld::group_of(message) {
            groups.heard_report(now, group);
        }
    }

    /// Sends what is due of an interface's groups.
    pub(in crate::inet::host) fn step_report(&mut self, now: Nanos, index: u32, work: &mut Work) {
        let Some(interface) = self.interfaces.get_unseen(index) else {
            return;
        };
        if !interface.v6.is_running {
            return;
        }
        let messages = interface.v6.groups.messages(now, random_below);
        let source = self.link_source(index);
        for message in &messages {
            let Some((destination, message)) = mld::message(source, message) else {
                continue;
            };
            let header = Header {
                traffic_class: 0,
                flow_label: 0,
                hop_limit: mld::HOPS,
                source,
                destination,
            };
            let parts = [&mld::ROUTER_ALERT[..], &message];
            let to = group_hardware(destination);
            self.push_v6(index, to, &header, next::HOP_BY_HOP, &parts, work);
        }
    }
}

impl Host {
    /// The groups that the host and its programs are in, by interface; not those of all nodes.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub(in crate::inet) fn joined_v6(&self) -> Result<Vec<GroupEntry<Ipv6Addr>>> {
        self.joined(|interface| &interface.v6.groups)
    }
}
