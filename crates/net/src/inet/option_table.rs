//! Options of internet sockets that are numbers: which there are, what they are at first, and
//! between what they may be.

use abi::errno::Errno;
use fs::Result;
use linux_raw_sys::net;

use crate::socket::{Sysctl, Sysctls};

pub(super) const IP: u32 = net::IPPROTO_IP as u32;
pub(super) const IPV6: u32 = net::IPPROTO_IPV6 as u32;
pub(super) const TCP: u32 = net::IPPROTO_TCP as u32;
pub(super) const UDP: u32 = net::IPPROTO_UDP as u32;
pub(super) const UDP_LITE: u32 = net::IPPROTO_UDPLITE as u32;
pub(super) const UDP_CORK: u32 = 1;
/// Options of UDP-Lite: the bytes a checksum covers, sent and received.
const UDPLITE_CSCOV: [u32; 2] = [10, 11];
const UDP_NO_CHECK6_TX: u32 = 101;
const IP_RECVFRAGSIZE: u32 = 25;
const IP_RECVERR_RFC4884: u32 = 26;
const TCP_THIN_LINEAR_TIMEOUTS: u32 = 16;
const TCP_THIN_DUPACK: u32 = 17;
const TCP_SAVE_SYN: u32 = 27;
const TCP_FASTOPEN_NO_COOKIE: u32 = 34;
pub(super) const TCP_INQ: u32 = 36;
const TCP_TX_DELAY: u32 = 37;
const IPV6_RECVFRAGSIZE: u32 = 77;
/// The largest segment through the loop, bytes.
pub(super) const LOOPBACK_MSS: i32 = 65_483;

/// Level and number of an option that is a number, what it is at first, its least and its largest
/// value.
pub(super) type OptionEntry = (u32, u32, i32, i32, i32);

pub(super) const BOOLEAN_RANGE: (i32, i32) = (0, 1);

const fn boolean(level: u32, option: u32, first: i32) -> OptionEntry {
    (level, option, first, BOOLEAN_RANGE.0, BOOLEAN_RANGE.1)
}

static OPTION_TABLE: [OptionEntry; 84] = [
    (IP, net::IP_TOS, 0, 0, 255),
    (IP, net::IP_TTL, 64, 1, 255),
    boolean(IP, net::IP_HDRINCL, 0),
    boolean(IP, net::IP_RECVOPTS, 0),
    boolean(IP, net::IP_RETOPTS, 0),
    boolean(IP, net::IP_PKTINFO, 0),
    (IP, net::IP_MTU_DISCOVER, 1, 0, 5),
    boolean(IP, net::IP_RECVERR, 0),
    boolean(IP, net::IP_RECVTTL, 0),
    boolean(IP, net::IP_RECVTOS, 0),
    boolean(IP, net::IP_FREEBIND, 0),
    boolean(IP, net::IP_RECVORIGDSTADDR, 0),
    (IP, net::IP_MINTTL, 0, 0, 255),
    boolean(IP, net::IP_NODEFRAG, 0),
    boolean(IP, net::IP_BIND_ADDRESS_NO_PORT, 0),
    boolean(IP, IP_RECVFRAGSIZE, 0),
    (IP, net::IP_MULTICAST_TTL, 1, 0, 255),
    boolean(IP, net::IP_MULTICAST_LOOP, 1),
    boolean(IP, net::IP_MULTICAST_ALL, 1),
    (IP, net::IP_UNICAST_IF, 0, 0, i32::MAX),
    (IPV6, net::IPV6_UNICAST_HOPS, 64, 0, 255),
    (IPV6, net::IPV6_MULTICAST_HOPS, 1, 0, 255),
    boolean(IPV6, net::IPV6_MULTICAST_LOOP, 1),
    (IPV6, net::IPV6_MULTICAST_IF, 0, 0, i32::MAX),
    (IPV6, net::IPV6_MTU_DISCOVER, 1, 0, 5),
    boolean(IPV6, net::IPV6_RECVERR, 0),
    boolean(IPV6, net::IPV6_V6ONLY, 0),
    boolean(IPV6, net::IPV6_RECVPKTINFO, 0),
    boolean(IPV6, net::IPV6_RECVHOPLIMIT, 0),
    boolean(IPV6, net::IPV6_RECVTCLASS, 0),
    (IPV6, net::IPV6_TCLASS, 0, 0, 255),
    boolean(IPV6, net::IPV6_DONTFRAG, 0),
    boolean(IPV6, net::IPV6_AUTOFLOWLABEL, 1),
    boolean(IPV6, net::IPV6_FREEBIND, 0),
    boolean(IPV6, net::IPV6_RECVERR_RFC4884, 0),
    boolean(IPV6, IPV6_RECVFRAGSIZE, 0),
    (IPV6, net::IPV6_MINHOPCOUNT, 0, 0, 255),
    (IPV6, net::IPV6_UNICAST_IF, 0, 0, i32::MAX),
    boolean(IPV6, net::IPV6_MULTICAST_ALL, 1),
    boolean(TCP, net::TCP_NODELAY, 0),
    (TCP, net::TCP_MAXSEG, 0, 88, 32_767),
    boolean(TCP, net::TCP_CORK, 0),
    (TCP, net::TCP_KEEPIDLE, 7200, 1, 32_767),
    (TCP, net::TCP_KEEPINTVL, 75, 1, 32_767),
    (TCP, net::TCP_KEEPCNT, 9, 1, 127),
    (TCP, net::TCP_SYNCNT, 6, 1, 127),
    (TCP, net::TCP_LINGER2, 60, -1, 120),
    (TCP, net::TCP_DEFER_ACCEPT, 0, 0, i32::MAX),
    (TCP, net::TCP_WINDOW_CLAMP, 0, 0, i32::MAX),
    boolean(TCP, net::TCP_QUICKACK, 1),
    (TCP, net::TCP_USER_TIMEOUT, 0, 0, i32::MAX),
    (TCP, net::TCP_FASTOPEN, 0, 0, i32::MAX),
    boolean(TCP, net::TCP_FASTOPEN_CONNECT, 0),
    (TCP, net::TCP_NOTSENT_LOWAT, 0, i32::MIN, i32::MAX),
    (UDP_LITE, UDPLITE_CSCOV[0], 0, 0, 65_535),
    (UDP_LITE, UDPLITE_CSCOV[1], 0, 0, 65_535),
    boolean(IP, net::IP_TRANSPARENT, 0),
    boolean(IP, net::IP_ROUTER_ALERT, 0),
    boolean(IP, net::IP_PASSSEC, 0),
    boolean(IP, net::IP_CHECKSUM, 0),
    boolean(IP, IP_RECVERR_RFC4884, 0),
    boolean(IPV6, net::IPV6_TRANSPARENT, 0),
    boolean(IPV6, net::IPV6_RECVORIGDSTADDR, 0),
    boolean(IPV6, net::IPV6_FLOWINFO, 0),
    boolean(IPV6, net::IPV6_FLOWINFO_SEND, 0),
    boolean(IPV6, net::IPV6_RECVPATHMTU, 0),
    boolean(IPV6, net::IPV6_RECVHOPOPTS, 0),
    boolean(IPV6, net::IPV6_RECVDSTOPTS, 0),
    boolean(IPV6, net::IPV6_RECVRTHDR, 0),
    boolean(IPV6, net::IPV6_2292PKTINFO, 0),
    boolean(IPV6, net::IPV6_2292HOPLIMIT, 0),
    boolean(IPV6, net::IPV6_2292HOPOPTS, 0),
    boolean(IPV6, net::IPV6_2292DSTOPTS, 0),
    boolean(IPV6, net::IPV6_2292RTHDR, 0),
    boolean(IPV6, net::IPV6_ROUTER_ALERT_ISOLATE, 0),
    // "Temporary or public as it comes, home or care of as it comes."
    (IPV6, net::IPV6_ADDR_PREFERENCES, 0, 0, 0x3f),
    boolean(TCP, TCP_THIN_LINEAR_TIMEOUTS, 0),
    boolean(TCP, TCP_THIN_DUPACK, 0),
    boolean(TCP, TCP_SAVE_SYN, 0),
    boolean(TCP, TCP_FASTOPEN_NO_COOKIE, 0),
    boolean(TCP, TCP_INQ, 0),
    (TCP, TCP_TX_DELAY, 0, 0, i32::MAX),
    boolean(UDP, UDP_CORK, 0),
    boolean(UDP, UDP_NO_CHECK6_TX, 0),
];

/// Levels of options, and numbers within a level, that there are places for.
const LEVELS: usize = 5;
const NUMBERS: usize = 128;

/// One more than an option's place in [`OPTION_TABLE`], by level and number; 0: there is none.
static PLACES: [[u8; NUMBERS]; LEVELS] = places();

const fn level_place(level: u32) -> Option<usize> {
    match level {
        IP => Some(0),
        IPV6 => Some(1),
        TCP => Some(2),
        UDP => Some(3),
        UDP_LITE => Some(4),
        _ => None,
    }
}

/// Makes [`PLACES`], when the kernel is compiled.
const fn places() -> [[u8; NUMBERS]; LEVELS] {
    let mut places = [[0; NUMBERS]; LEVELS];
    let mut at = 0;
    while at < OPTION_TABLE.len() {
        let (level, option, ..) = OPTION_TABLE[at];
        at += 1;
        if let Some(level) = level_place(level) {
            assert!(
                places[level][option as usize] == 0,
                "an option stands twice"
            );
            places[level][option as usize] = at as u8;
        }
    }
    places
}

/// The place of a sysctl.
type SysctlOf = fn(&Sysctls) -> &Sysctl;

/// The sysctl that is an option's default.
const fn default_setting(level: u32, option: u32) -> Option<SysctlOf> {
    Some(match (level, option) {
        (IP, net::IP_TTL) => |all| &all.ip_default_ttl,
        (TCP, net::TCP_KEEPIDLE) => |all| &all.tcp_keepalive_time,
        (TCP, net::TCP_KEEPINTVL) => |all| &all.tcp_keepalive_intvl,
        (TCP, net::TCP_KEEPCNT) => |all| &all.tcp_keepalive_probes,
        (TCP, net::TCP_SYNCNT) => |all| &all.tcp_syn_retries,
        (TCP, net::TCP_LINGER2) => |all| &all.tcp_fin_timeout,
        _ => return None,
    })
}

/// An option that is looked up when the kernel is compiled.
pub(super) struct KnownOption {
    pub(super) level: u32,
    pub(super) option: u32,
    /// The option's value in a new socket, where no sysctl says another.
    first: i32,
    setting: Option<SysctlOf>,
}

impl KnownOption {
    /// The option of a level and number, which there is.
    pub(super) const fn new(level: u32, option: u32) -> Self {
        let mut at = 0;
        loop {
            let (known, number, first, ..) = OPTION_TABLE[at];
            if known == level && number == option {
                return Self {
                    level,
                    option,
                    first,
                    setting: default_setting(level, option),
                };
            }
            at += 1;
        }
    }

    /// The option's value in a socket for which none was set.
    pub(super) fn default(&self, sysctls: &Sysctls) -> i32 {
        match self.setting {
            Some(setting) => setting(sysctls).as_usize() as i32,
            None => self.first,
        }
    }
}

/// Looks an option up.
///
/// # Errors
/// `ENOPROTOOPT`.
pub(super) fn find_option(sysctls: &Sysctls, level: u32, option: u32) -> Result<OptionEntry> {
    let known = level_place(level).and_then(|level| PLACES[level].get(option as usize));
    let place = known.and_then(|place| usize::from(*place).checked_sub(1));
    let mut found = *place
        .and_then(|place| OPTION_TABLE.get(place))
        .ok_or(Errno::ENOPROTOOPT)?;
    if let Some(setting) = default_setting(level, option) {
        found.2 = setting(sysctls).as_usize() as i32;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_option_is_found_by_its_level_and_number() {
        let sysctls = Sysctls::new();
        for known in &OPTION_TABLE {
            let found = find_option(&sysctls, known.0, known.1).unwrap();
            assert_eq!((found.0, found.1), (known.0, known.1));
        }
        for (level, option) in [(IP, 0), (IP, 127), (IP, 128), (TCP, u32::MAX), (7, 1)] {
            let found = find_option(&sysctls, level, option);
            assert_eq!(found, Err(Errno::ENOPROTOOPT), "{level} {option}");
        }
    }
}
