//! `/proc/net`: sockets and interfaces of the instance.

use alloc::string::String;
use alloc::sync::Arc;

use abi::errno::Errno;
use fs::pseudo::{self, PseudoAttr, StaticDir};
use net::Stack;
use net::inet::{Family, procfs, procfs_groups, procfs_host};

use crate::process::namespaces;
use crate::state::boot_network;

/// Makes a file's text of a network stack.
type Text = fn(&Stack) -> String;
/// Makes a text with lines for sockets of programs.
type List = fn(&Stack) -> Result<String, Errno>;

pub(super) fn add(dir: &Arc<StaticDir>, dev: u64) {
    let lists: [(&str, List); 18] = [
        ("unix", |net| net.unix().proc_net_unix()),
        ("packet", |net| net.packet().proc_net_packet()),
        ("tcp", |net| procfs::tcp(net.inet(), Family::V4)),
        ("tcp6", |net| procfs::tcp(net.inet(), Family::V6)),
        ("udp", |net| procfs::udp(net.inet(), Family::V4)),
        ("udp6", |net| procfs::udp(net.inet(), Family::V6)),
        ("udplite", |net| procfs::udplite(net.inet(), Family::V4)),
        ("udplite6", |net| procfs::udplite(net.inet(), Family::V6)),
        ("raw", |net| procfs::raw(net.inet(), Family::V4)),
        ("raw6", |net| procfs::raw(net.inet(), Family::V6)),
        ("icmp", |net| procfs::icmp(net.inet(), Family::V4)),
        ("icmp6", |net| procfs::icmp(net.inet(), Family::V6)),
        ("route", |net| procfs_host::route(net.inet())),
        ("arp", |net| procfs_host::arp(net.inet())),
        ("ipv6_route", |net| procfs_host::ipv6_route(net.inet())),
        ("igmp", |net| procfs_groups::igmp(net.inet())),
        ("igmp6", |net| procfs_groups::igmp6(net.inet())),
        ("dev_mcast", |net| procfs_groups::dev_mcast(net.inet())),
    ];
    for (name, list) in lists {
        let show = move || list(&namespaces::net()).map(String::into_bytes);
        dir.add(name, pseudo::file(PseudoAttr::new(dev, 0o444), show));
    }
    let texts: [(&str, Text); 8] = [
        ("dev", |net| procfs::dev(net.inet())),
        ("if_inet6", |net| procfs::if_inet6(net.inet())),
        ("snmp", |net| procfs::snmp(net.inet())),
        ("sockstat", |net| procfs::sockstat(net.inet())),
        ("netstat", |net| procfs_host::netstat(net.inet())),
        ("snmp6", |net| procfs_host::snmp6(net.inet())),
        ("sockstat6", |net| procfs_host::sockstat6(net.inet())),
        ("pnp", |_| boot_network::pnp()),
    ];
    for (name, text) in texts {
        dir.add(
            name,
            pseudo::file(PseudoAttr::new(dev, 0o444), move || {
                Ok(text(&namespaces::net()).into_bytes())
            }),
        );
    }
}
