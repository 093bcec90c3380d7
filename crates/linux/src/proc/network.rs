//! `/proc/net`: sockets and interfaces of the instance.

use super::machine::Text;
use alloc::sync::Arc;
use fs::pseudo::{self, Attr, StaticDir};
use net::inet::listing;

pub(super) fn add(dir: &Arc<StaticDir>, dev: u64) {
    let texts: [(&str, Text); 15] = [
        ("unix", net::unix::listing),
        ("packet", net::packet::listing),
        ("tcp", || listing::tcp(false)),
        ("tcp6", || listing::tcp(true)),
        ("udp", || listing::udp(false)),
        ("udp6", || listing::udp(true)),
        ("raw", || listing::packets(false, false)),
        ("raw6", || listing::packets(true, false)),
        ("icmp", || listing::packets(false, true)),
        ("icmp6", || listing::packets(true, true)),
        ("dev", listing::devices),
        ("if_inet6", listing::addresses_v6),
        ("route", listing::routes),
        ("snmp", listing::counters),
        ("sockstat", listing::statistics),
    ];
    for (name, text) in texts {
        dir.add(name, pseudo::file(Attr::new(dev, 0o444), move || Ok(text().into_bytes())));
    }
}
