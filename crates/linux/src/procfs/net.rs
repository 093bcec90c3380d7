//! `/proc/net`: sockets and interfaces of the instance.

use super::system::Text;
use alloc::sync::Arc;
use fs::pseudo::{self, Attr, StaticDir};
use net::inet::{procfs, procfs_host};

pub(super) fn add(dir: &Arc<StaticDir>, dev: u64) {
    let texts: [(&str, Text); 24] = [
        ("unix", net::unix::proc_net_unix),
        ("packet", net::packet::proc_net_packet),
        ("tcp", || procfs::tcp(false)),
        ("tcp6", || procfs::tcp(true)),
        ("udp", || procfs::udp(false, false)),
        ("udp6", || procfs::udp(true, false)),
        ("raw", || procfs::raw(false, false)),
        ("raw6", || procfs::raw(true, false)),
        ("icmp", || procfs::raw(false, true)),
        ("icmp6", || procfs::raw(true, true)),
        ("dev", procfs::dev),
        ("if_inet6", procfs::if_inet6),
        ("route", procfs::route),
        ("snmp", procfs::snmp),
        ("sockstat", procfs::sockstat),
        ("udplite", || procfs::udp(false, true)),
        ("udplite6", || procfs::udp(true, true)),
        ("netstat", procfs_host::netstat),
        ("snmp6", procfs_host::snmp6),
        ("sockstat6", procfs_host::sockstat6),
        ("arp", procfs_host::arp),
        ("ipv6_route", procfs_host::ipv6_route),
        ("igmp", procfs_host::igmp),
        ("igmp6", procfs_host::igmp6),
    ];
    for (name, text) in texts {
        dir.add(
            name,
            pseudo::file(Attr::new(dev, 0o444), move || Ok(text().into_bytes())),
        );
    }
}
