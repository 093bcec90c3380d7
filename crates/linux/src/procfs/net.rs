//! `/proc/net`: sockets and interfaces of the instance.

use super::system::Text;
use alloc::sync::Arc;
use fs::pseudo::{self, Attr, StaticDir};
use net::inet::{listing, texts};

pub(super) fn add(dir: &Arc<StaticDir>, dev: u64) {
    let texts: [(&str, Text); 24] = [
        ("unix", net::unix::listing),
        ("packet", net::packet::listing),
        ("tcp", || listing::tcp(false)),
        ("tcp6", || listing::tcp(true)),
        ("udp", || listing::udp(false, false)),
        ("udp6", || listing::udp(true, false)),
        ("raw", || listing::packets(false, false)),
        ("raw6", || listing::packets(true, false)),
        ("icmp", || listing::packets(false, true)),
        ("icmp6", || listing::packets(true, true)),
        ("dev", listing::devices),
        ("if_inet6", listing::addresses_v6),
        ("route", listing::routes),
        ("snmp", listing::counters),
        ("sockstat", listing::statistics),
        ("udplite", || listing::udp(false, true)),
        ("udplite6", || listing::udp(true, true)),
        ("netstat", texts::more_counters),
        ("snmp6", texts::counters_v6),
        ("sockstat6", texts::statistics_v6),
        ("arp", texts::neighbours),
        ("ipv6_route", texts::routes_v6),
        ("igmp", texts::groups),
        ("igmp6", texts::groups_v6),
    ];
    for (name, text) in texts {
        dir.add(name, pseudo::file(Attr::new(dev, 0o444), move || Ok(text().into_bytes())));
    }
}
