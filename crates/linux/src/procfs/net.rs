//! `/proc/net`: sockets and interfaces of the instance.

use super::system::Text;
use alloc::sync::Arc;
use fs::pseudo::{self, Attr, StaticDir};
use net::inet::{procfs, procfs_host};

pub(super) fn add(dir: &Arc<StaticDir>, dev: u64) {
    let texts: [(&str, Text); 24] = [
        ("unix", net::unix::listing),
        ("packet", net::packet::listing),
        ("tcp", || procfs::tcp(false)),
        ("tcp6", || procfs::tcp(true)),
        ("udp", || procfs::udp(false, false)),
        ("udp6", || procfs::udp(true, false)),
        ("raw", || procfs::packets(false, false)),
        ("raw6", || procfs::packets(true, false)),
        ("icmp", || procfs::packets(false, true)),
        ("icmp6", || procfs::packets(true, true)),
        ("dev", procfs::devices),
        ("if_inet6", procfs::addresses_v6),
        ("route", procfs::routes),
        ("snmp", procfs::counters),
        ("sockstat", procfs::statistics),
        ("udplite", || procfs::udp(false, true)),
        ("udplite6", || procfs::udp(true, true)),
        ("netstat", procfs_host::more_counters),
        ("snmp6", procfs_host::counters_v6),
        ("sockstat6", procfs_host::statistics_v6),
        ("arp", procfs_host::neighbours),
        ("ipv6_route", procfs_host::routes_v6),
        ("igmp", procfs_host::groups),
        ("igmp6", procfs_host::groups_v6),
    ];
    for (name, text) in texts {
        dir.add(name, pseudo::file(Attr::new(dev, 0o444), move || Ok(text().into_bytes())));
    }
}
