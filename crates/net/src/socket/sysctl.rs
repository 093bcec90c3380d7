//! The sysctls of sockets (`/proc/sys/net`): numbers within bounds. Those that nothing here depends
//! on are remembered.

use abi::errno::Errno;
use alloc::string::String;
use core::fmt::Write;
use core::sync::atomic::{AtomicI64, Ordering};
use fs::Result;
use task::Mutex;

/// The most numbers of one setting.
const MAX_VALUES: usize = 3;
const INT_MAX: i64 = i32::MAX as i64;

/// One sysctl: as many numbers as it has, each within the same bounds.
pub struct Sysctl {
    /// Where it is below `/proc/sys/net`.
    pub path: &'static str,
    values: [AtomicI64; MAX_VALUES],
    count: usize,
    min: i64,
    max: i64,
    /// Each number is at least the one before.
    ascending: bool,
    /// Held while several numbers change.
    changing: Mutex<()>,
}

impl Sysctl {
    const fn vector(
        path: &'static str,
        values: [i64; MAX_VALUES],
        count: usize,
        min: i64,
        max: i64,
        ascending: bool,
    ) -> Self {
        let [a, b, c] = values;
        let values = [AtomicI64::new(a), AtomicI64::new(b), AtomicI64::new(c)];
        Self {
            path,
            values,
            count,
            min,
            max,
            ascending,
            changing: Mutex::new(()),
        }
    }

    const fn integer(path: &'static str, value: i64, least: i64, most: i64) -> Self {
        Self::vector(path, [value, 0, 0], 1, least, most, false)
    }

    const fn boolean(path: &'static str, value: i64) -> Self {
        Self::integer(path, value, 0, 1)
    }

    /// The value with an index.
    fn value(&self, place: usize) -> i64 {
        self.values[place].load(Ordering::Relaxed)
    }

    /// The first value, of a sysctl that is never negative.
    pub(crate) fn as_usize(&self) -> usize {
        usize::try_from(self.value(0)).unwrap_or(0)
    }

    /// The first two values, as bounds.
    pub(crate) fn range(&self) -> [i64; 2] {
        [self.value(0), self.value(1)]
    }

    /// The one in the middle of three.
    pub(crate) fn default_size(&self) -> usize {
        usize::try_from(self.value(1)).unwrap_or(0)
    }

    /// Whether a number is between the two values.
    pub(crate) fn range_contains(&self, number: i64) -> bool {
        (self.value(0)..=self.value(1)).contains(&number)
    }

    /// Its text.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        for place in 0..self.count {
            // Writing to a string does not fail.
            let _ = write!(
                text,
                "{}{}",
                self.value(place),
                if place + 1 == self.count { '\n' } else { '\t' }
            );
        }
        text
    }

    /// Sets it: numbers with spaces between them. Those that are left out stay.
    ///
    /// # Errors
    /// `EINVAL`; it then stays as it is.
    pub fn set(&self, text: &[u8]) -> Result<()> {
        let text = core::str::from_utf8(text).map_err(|_| Errno::EINVAL)?;
        let _changing = self.changing.lock();
        let mut values = [0, 1, 2].map(|place| self.value(place));
        let mut given = 0;
        for word in text.split_ascii_whitespace() {
            let value: i64 = word.parse().map_err(|_| Errno::EINVAL)?;
            let fits = given < self.count && (self.min..=self.max).contains(&value);
            *values
                .get_mut(given)
                .filter(|_| fits)
                .ok_or(Errno::EINVAL)? = value;
            given += 1;
        }
        if given == 0
            || (self.ascending
                && values[..self.count]
                    .windows(2)
                    .any(|pair| pair[0] > pair[1]))
        {
            return Err(Errno::EINVAL);
        }
        for (to, value) in self.values.iter().zip(values) {
            to.store(value, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// The most connections that may wait to be accepted.
pub(crate) static SOMAXCONN: Sysctl = Sysctl::integer("core/somaxconn", 4096, 0, INT_MAX);
/// Sizes of buffers: at first, and the most an ordinary user may ask for.
pub(crate) static RMEM_DEFAULT: Sysctl =
    Sysctl::integer("core/rmem_default", 212_992, 2304, INT_MAX);
pub(crate) static RMEM_MAX: Sysctl = Sysctl::integer("core/rmem_max", 212_992, 2304, INT_MAX);
pub(crate) static WMEM_DEFAULT: Sysctl =
    Sysctl::integer("core/wmem_default", 212_992, 4608, INT_MAX);
pub(crate) static WMEM_MAX: Sysctl = Sysctl::integer("core/wmem_max", 212_992, 4608, INT_MAX);
/// Sizes of TCP's buffers: least, at first, most.
pub(crate) static TCP_RMEM: Sysctl = Sysctl::vector(
    "ipv4/tcp_rmem",
    [4096, 131_072, 6_291_456],
    3,
    1,
    INT_MAX,
    false,
);
pub(crate) static TCP_WMEM: Sysctl = Sysctl::vector(
    "ipv4/tcp_wmem",
    [4096, 16_384, 4_194_304],
    3,
    1,
    INT_MAX,
    false,
);
/// The ports that are given to who asks for none.
pub(crate) static IP_LOCAL_PORT_RANGE: Sysctl = Sysctl::vector(
    "ipv4/ip_local_port_range",
    [32_768, 60_999, 0],
    2,
    1,
    65_535,
    true,
);
/// Ports below are an administrator's.
pub(crate) static IP_UNPRIVILEGED_PORT_START: Sysctl =
    Sysctl::integer("ipv4/ip_unprivileged_port_start", 1024, 0, 65_535);
/// The groups whose members may have sockets that ask.
pub(crate) static PING_GROUP_RANGE: Sysctl = Sysctl::vector(
    "ipv4/ping_group_range",
    [0, INT_MAX, 0],
    2,
    0,
    INT_MAX,
    false,
);
/// Addresses that are not this host's can be bound.
pub(crate) static IP_NONLOCAL_BIND: Sysctl = Sysctl::boolean("ipv4/ip_nonlocal_bind", 0);
/// The hop limit of packets.
pub(crate) static IP_DEFAULT_TTL: Sysctl = Sysctl::integer("ipv4/ip_default_ttl", 64, 1, 255);
/// `::` does not take IPv4.
pub(crate) static BINDV6ONLY: Sysctl = Sysctl::boolean("ipv6/bindv6only", 0);
pub(crate) static TCP_KEEPALIVE_TIME: Sysctl =
    Sysctl::integer("ipv4/tcp_keepalive_time", 7200, 1, 32_767);
pub(crate) static TCP_KEEPALIVE_INTVL: Sysctl =
    Sysctl::integer("ipv4/tcp_keepalive_intvl", 75, 1, 32_767);
pub(crate) static TCP_KEEPALIVE_PROBES: Sysctl =
    Sysctl::integer("ipv4/tcp_keepalive_probes", 9, 1, 127);
pub(crate) static TCP_SYN_RETRIES: Sysctl = Sysctl::integer("ipv4/tcp_syn_retries", 6, 1, 127);
pub(crate) static TCP_FIN_TIMEOUT: Sysctl = Sysctl::integer("ipv4/tcp_fin_timeout", 60, 0, INT_MAX);
/// How many datagrams wait at most for a receiver of `AF_UNIX` that has not named their sender its
/// peer.
pub(crate) static UNIX_MAX_DGRAM_QLEN: Sysctl =
    Sysctl::integer("unix/max_dgram_qlen", 10, 0, INT_MAX);

/// Sysctls that something depends on.
static EFFECTIVE_SYSCTLS: [&Sysctl; 19] = [
    &SOMAXCONN,
    &RMEM_DEFAULT,
    &RMEM_MAX,
    &WMEM_DEFAULT,
    &WMEM_MAX,
    &TCP_RMEM,
    &TCP_WMEM,
    &IP_LOCAL_PORT_RANGE,
    &IP_UNPRIVILEGED_PORT_START,
    &PING_GROUP_RANGE,
    &IP_NONLOCAL_BIND,
    &IP_DEFAULT_TTL,
    &BINDV6ONLY,
    &TCP_KEEPALIVE_TIME,
    &TCP_KEEPALIVE_INTVL,
    &TCP_KEEPALIVE_PROBES,
    &TCP_SYN_RETRIES,
    &TCP_FIN_TIMEOUT,
    &UNIX_MAX_DGRAM_QLEN,
];

/// The others.
static STORED_SYSCTLS: [Sysctl; 27] = [
    Sysctl::integer("core/optmem_max", 20_480, 0, INT_MAX),
    Sysctl::integer("core/netdev_max_backlog", 1000, 0, INT_MAX),
    Sysctl::integer("core/netdev_budget", 300, 0, INT_MAX),
    Sysctl::integer("core/busy_poll", 0, 0, INT_MAX),
    Sysctl::integer("core/busy_read", 0, 0, INT_MAX),
    Sysctl::boolean("core/tstamp_allow_data", 1),
    Sysctl::boolean("ipv4/ip_forward", 0),
    Sysctl::integer("ipv4/ip_no_pmtu_disc", 0, 0, 3),
    Sysctl::integer("ipv4/igmp_max_memberships", 20, 0, INT_MAX),
    Sysctl::integer("ipv4/igmp_max_msf", 10, 0, INT_MAX),
    Sysctl::boolean("ipv4/icmp_echo_ignore_broadcasts", 1),
    Sysctl::integer("ipv4/tcp_max_syn_backlog", 4096, 0, INT_MAX),
    Sysctl::integer("ipv4/tcp_max_tw_buckets", 8192, 0, INT_MAX),
    Sysctl::integer("ipv4/tcp_max_orphans", 8192, 0, INT_MAX),
    Sysctl::integer("ipv4/tcp_synack_retries", 5, 0, 255),
    Sysctl::integer("ipv4/tcp_retries1", 3, 0, 255),
    Sysctl::integer("ipv4/tcp_retries2", 15, 0, 255),
    Sysctl::integer("ipv4/tcp_tw_reuse", 2, 0, 2),
    Sysctl::integer("ipv4/tcp_syncookies", 1, 0, 2),
    Sysctl::integer("ipv4/tcp_fastopen", 1, 0, INT_MAX),
    Sysctl::boolean("ipv4/tcp_sack", 1),
    Sysctl::integer("ipv4/tcp_timestamps", 1, 0, 2),
    Sysctl::boolean("ipv4/tcp_window_scaling", 1),
    Sysctl::boolean("ipv4/tcp_slow_start_after_idle", 1),
    Sysctl::boolean("ipv4/tcp_no_metrics_save", 0),
    Sysctl::integer("ipv4/tcp_notsent_lowat", -1, -1, INT_MAX),
    Sysctl::vector(
        "ipv4/udp_mem",
        [22_000, 29_000, 44_000],
        3,
        0,
        INT_MAX,
        false,
    ),
];

/// All settings.
pub fn all() -> impl Iterator<Item = &'static Sysctl> {
    EFFECTIVE_SYSCTLS.into_iter().chain(&STORED_SYSCTLS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_within_bounds_or_nothing_changes() {
        static RANGE: Sysctl = Sysctl::vector("x", [10, 20, 0], 2, 1, 100, true);
        assert_eq!(RANGE.text(), "10\t20\n");
        for bad in ["", "x", "0 5", "5 101", "30", "1 2 3", "50 40", "\u{ff}"] {
            assert_eq!(RANGE.set(bad.as_bytes()), Err(Errno::EINVAL), "{bad:?}");
        }
        assert_eq!(RANGE.text(), "10\t20\n");
        RANGE.set(b"15").unwrap();
        assert_eq!(RANGE.text(), "15\t20\n");
        RANGE.set(b" 30\t40 \n").unwrap();
        assert!(
            RANGE.text() == "30\t40\n" && RANGE.range_contains(40) && !RANGE.range_contains(41)
        );
    }

    #[test]
    fn every_setting_has_a_place_of_its_own() {
        let all: Vec<&Sysctl> = all().collect();
        for (at, setting) in all.iter().enumerate() {
            assert!(
                all[at + 1..].iter().all(|other| other.path != setting.path),
                "{}",
                setting.path
            );
            assert!(setting.values[..setting.count].iter().all(|value| {
                (setting.min..=setting.max).contains(&value.load(Ordering::Relaxed))
            }));
        }
    }

    #[test]
    fn limits_can_be_reached_and_several_numbers_be_given() {
        static THREE: Sysctl = Sysctl::vector("x", [1, 2, 3], 3, -1, 10, false);
        THREE.set(b"-1 10").unwrap();
        assert_eq!(
            (
                THREE.text(),
                THREE.range(),
                THREE.default_size(),
                THREE.as_usize()
            ),
            ("-1\t10\t3\n".into(), [-1, 10], 10, 0)
        );
        assert_eq!(
            (THREE.set(b"-2"), THREE.set(b"11"), THREE.set(b"1 2 3 4")),
            (Err(Errno::EINVAL), Err(Errno::EINVAL), Err(Errno::EINVAL))
        );
        THREE.set(b"9 8 7").unwrap();
        assert_eq!(THREE.text(), "9\t8\t7\n", "these need not rise");
        static RANGE: Sysctl = Sysctl::vector("y", [10, 20, 0], 2, 1, 100, true);
        RANGE.set(b"20 20").unwrap();
        assert!(RANGE.range_contains(20) && !RANGE.range_contains(19) && !RANGE.range_contains(21));
        static ONE: Sysctl = Sysctl::boolean("z", 1);
        assert_eq!(
            (ONE.text(), ONE.as_usize(), ONE.set(b"1 1"), ONE.set(b"2")),
            ("1\n".into(), 1, Err(Errno::EINVAL), Err(Errno::EINVAL))
        );
    }
}
