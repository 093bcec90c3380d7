//! Telling routers, and switches that listen, of the groups of addresses (RFC 3810).

use alloc::vec::Vec;
use core::net::Ipv6Addr;

use ip::Nanos;
use ip::v6::address::{ALL_MLD_ROUTERS, Scope, group_hardware, scope, solicited_node};
use ip::v6::mld::{self, Query, Record};
use ip::v6::{Header, next};

use crate::inet::host::registry::Registered;
use crate::inet::host::state::{HostState, Work};

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

    fn send_report(&mut self, index: u32, record: Record, groups: &[Ipv6Addr], work: &mut Work) {
        let source = self.link_source(index);
        let Some(report) = mld::report(source, record, groups) else {
            return;
        };
        let header = Header {
            traffic_class: 0,
            flow_label: 0,
            hop_limit: mld::HOPS,
            source,
            destination: ALL_MLD_ROUTERS,
        };
        let parts = [&mld::ROUTER_ALERT[..], &report];
        let to = group_hardware(ALL_MLD_ROUTERS);
        self.push_v6(index, to, &header, next::HOP_BY_HOP, &parts, work);
    }

    /// The host is in the group of an address from now on.
    pub(super) fn join_group_of(&mut self, index: u32, address: Ipv6Addr, work: &mut Work) {
        self.send_report(index, Record::Joined, &[solicited_node(address)], work);
    }

    /// The host has lost an address: it has left that one's group, unless others are in it, too.
    pub(super) fn leave_group_of(&mut self, index: u32, address: Ipv6Addr, work: &mut Work) {
        let group = solicited_node(address);
        let interface = self.interfaces.get(index);
        let leaves = interface.is_some_and(|one| one.v6.is_running && !one.is_in_group(group));
        if leaves {
            self.send_report(index, Record::Left, &[group], work);
        }
    }

    /// Tells of the groups of all addresses; of those there is no memory for, not.
    pub(super) fn report_groups(&mut self, index: u32, record: Record, work: &mut Work) {
        let Some(interface) = self.interfaces.get(index) else {
            return;
        };
        let mut groups: Vec<Ipv6Addr> = Vec::new();
        for (address, _) in interface.v6_addresses() {
            let group = solicited_node(address);
            if !groups.contains(&group) && fallible::push(&mut groups, group).is_err() {
                break;
            }
        }
        for some in groups.chunks(mld::MOST_GROUPS) {
            self.send_report(index, record, some, work);
        }
    }

    /// A router asks for groups: they are told within the time that it says, all of them, whichever
    /// it asks for.
    pub(super) fn take_query(&mut self, now: Nanos, index: u32, query: &Query) {
        let Ok(interface) = self.interfaces.get_mut(index) else {
            return;
        };
        let is_meant = query.group.is_none_or(|group| interface.is_in_group(group));
        if is_meant && interface.v6.is_running {
            let due = now + super::addresses::random_below(query.within);
            let known = &mut interface.v6.report_due;
            *known = Some(known.map_or(due, |before| before.min(due)));
        }
    }

    pub(super) fn step_report(&mut self, now: Nanos, index: u32, work: &mut Work) {
        let Ok(interface) = self.interfaces.get_mut(index) else {
            return;
        };
        if interface.v6.report_due.is_some_and(|due| due <= now) {
            interface.v6.report_due = None;
            self.report_groups(index, Record::IsIn, work);
        }
    }
}
