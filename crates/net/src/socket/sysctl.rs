//! The sysctls of sockets (`/proc/sys/net`): numbers within bounds. Those that nothing here depends
//! on are remembered.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write;
use core::sync::atomic::{AtomicI64, Ordering};

use abi::errno::Errno;
use fs::Result;
use task::Mutex;

use super::memory::Transport;

/// The most numbers of one setting.
const MAX_VALUES: usize = 3;
const INT_MAX: i64 = i32::MAX as i64;

/// Names of the algorithms by which congestion windows grow (`tcp_congestion_control`,
/// `TCP_CONGESTION`).
pub(crate) const CONGESTION_CONTROLS: [&str; 2] = ["cubic", "reno"];

/// Order of the numbers of one sysctl.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    /// Any.
    Any,
    /// Each number is at least the one before.
    Ascending,
}

/// The definition of a sysctl: its place, its numbers at first and their bounds.
struct Definition {
    path: &'static str,
    defaults: [i64; MAX_VALUES],
    count: usize,
    min: i64,
    max: i64,
    order: Order,
    /// Names of the numbers from 0 on, by which they are read and written; none for plain numbers.
    names: &'static [&'static str],
}

impl Definition {
    const fn vector(
        path: &'static str,
        defaults: [i64; MAX_VALUES],
        count: usize,
        min: i64,
        max: i64,
        order: Order,
    ) -> Self {
        Self {
            path,
            defaults,
            count,
            min,
            max,
            order,
            names: &[],
        }
    }

    /// One of these names, at first the first one.
    const fn choice(path: &'static str, names: &'static [&'static str]) -> Self {
        Self {
            names,
            ..Self::integer(path, 0, 0, names.len() as i64 - 1)
        }
    }

    const fn integer(path: &'static str, value: i64, least: i64, most: i64) -> Self {
        Self::vector(path, [value, 0, 0], 1, least, most, Order::Any)
    }

    const fn boolean(path: &'static str, value: i64) -> Self {
        Self::integer(path, value, 0, 1)
    }
}

/// A sysctl of a network stack: as many numbers as it has, each within the same bounds.
pub struct Sysctl {
    definition: &'static Definition,
    values: [AtomicI64; MAX_VALUES],
    /// Held while several numbers change.
    changing: Mutex<()>,
}

impl Sysctl {
    fn new(definition: &'static Definition) -> Self {
        Self {
            definition,
            values: definition.defaults.map(AtomicI64::new),
            changing: Mutex::new(()),
        }
    }

    /// The place below `/proc/sys/net`.
    #[must_use]
    pub fn path(&self) -> &'static str {
        self.definition.path
    }

    /// Another place below `/proc/sys/net` with the same number, if there is one.
    #[must_use]
    pub fn alias(&self) -> Option<&'static str> {
        (self.definition.path == "ipv4/ip_forward").then_some("ipv4/conf/all/forwarding")
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

    /// Three limits.
    pub(crate) fn limits(&self) -> [usize; 3] {
        [0, 1, 2].map(|place| usize::try_from(self.value(place)).unwrap_or(0))
    }

    /// Sets three limits, of which the middle one is this, as Linux derives the others.
    fn scale(&self, middle: u64) {
        let middle = i64::try_from(middle)
            .unwrap_or(INT_MAX)
            .clamp(128, INT_MAX / 2);
        let low = middle / 4 * 3;
        for (to, value) in self.values.iter().zip([low, middle, low * 2]) {
            to.store(value, Ordering::Relaxed);
        }
    }

    /// The one in the middle of three.
    pub(crate) fn default_size(&self) -> usize {
        usize::try_from(self.value(1)).unwrap_or(0)
    }

    /// Whether a number is between the two values.
    pub(crate) fn range_contains(&self, number: i64) -> bool {
        (self.value(0)..=self.value(1)).contains(&number)
    }

    /// The values as text: numbers with tabs between them, or a name, and a newline.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        if let Some(name) = self.definition.names.get(self.as_usize()) {
            let _ = writeln!(text, "{name}");
            return text;
        }
        for place in 0..self.definition.count {
            // Writing to a string does not fail.
            let _ = write!(
                text,
                "{}{}",
                self.value(place),
                if place + 1 == self.definition.count {
                    '\n'
                } else {
                    '\t'
                }
            );
        }
        text
    }

    /// Sets the values: numbers with spaces between them, or a name. Those that are left out stay.
    ///
    /// # Errors
    /// `EINVAL`, or `ENOENT` for a name that does not exist; it then stays as it is.
    pub fn set(&self, text: &[u8]) -> Result<()> {
        let text = core::str::from_utf8(text).map_err(|_| Errno::EINVAL)?;
        let Definition {
            count,
            min,
            max,
            order,
            ..
        } = *self.definition;
        if !self.definition.names.is_empty() {
            let name = text.trim_ascii_end();
            let known = self
                .definition
                .names
                .iter()
                .position(|known| *known == name);
            self.values[0].store(known.ok_or(Errno::ENOENT)? as i64, Ordering::Relaxed);
            return Ok(());
        }
        let _changing = self.changing.lock();
        let mut values = [0, 1, 2].map(|place| self.value(place));
        let mut given = 0;
        for word in text.split_ascii_whitespace() {
            let value: i64 = word.parse().map_err(|_| Errno::EINVAL)?;
            let fits = given < count && (min..=max).contains(&value);
            *values
                .get_mut(given)
                .filter(|_| fits)
                .ok_or(Errno::EINVAL)? = value;
            given += 1;
        }
        if given == 0
            || (order == Order::Ascending
                && values[..count].windows(2).any(|pair| pair[0] > pair[1]))
        {
            return Err(Errno::EINVAL);
        }
        for (to, value) in self.values.iter().zip(values) {
            to.store(value, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Sysctls that nothing here depends on.
static STORED: [Definition; 9] = [
    Definition::integer("core/netdev_max_backlog", 1000, 0, INT_MAX),
    Definition::integer("core/netdev_budget", 300, 0, INT_MAX),
    Definition::integer("core/busy_poll", 0, 0, INT_MAX),
    Definition::integer("core/busy_read", 0, 0, INT_MAX),
    Definition::boolean("core/tstamp_allow_data", 1),
    Definition::integer("ipv4/ip_no_pmtu_disc", 0, 0, 3),
    Definition::boolean("ipv4/icmp_echo_ignore_broadcasts", 1),
    Definition::boolean("ipv4/tcp_no_metrics_save", 0),
    Definition::integer("ipv4/tcp_notsent_lowat", -1, -1, INT_MAX),
];

/// Declares the sysctls that something depends on: a field each, with its definition.
macro_rules! sysctls {
    ($($(#[$doc:meta])* $name:ident = $definition:expr;)*) => {
        /// The sysctls of a network stack.
        pub struct Sysctls {
            $($(#[$doc])* pub(crate) $name: Sysctl,)*
            stored: Vec<Sysctl>,
        }

        impl Sysctls {
            /// The sysctls with the values they have at first.
            pub(crate) fn new() -> Self {
                Self {
                    $($name: {
                        static DEFINITION: Definition = $definition;
                        Sysctl::new(&DEFINITION)
                    },)*
                    stored: STORED.iter().map(Sysctl::new).collect(),
                }
            }

            /// All sysctls, always in the same order.
            pub fn all(&self) -> impl Iterator<Item = &Sysctl> {
                [$(&self.$name),*].into_iter().chain(&self.stored)
            }
        }
    };
}

sysctls! {
    /// The most connections that may wait to be accepted.
    somaxconn = Definition::integer("core/somaxconn", 4096, 0, INT_MAX);
    /// Bytes that may wait to be received through a new socket.
    rmem_default = Definition::integer("core/rmem_default", 212_992, 2304, INT_MAX);
    /// The largest receive buffer an ordinary user may ask for, bytes.
    rmem_max = Definition::integer("core/rmem_max", 212_992, 2304, INT_MAX);
    /// Bytes that a new socket may have sent and not yet had received.
    wmem_default = Definition::integer("core/wmem_default", 212_992, 4608, INT_MAX);
    /// The largest send buffer an ordinary user may ask for, bytes.
    wmem_max = Definition::integer("core/wmem_max", 212_992, 4608, INT_MAX);
    /// Sizes of TCP's receive buffers, bytes: least, at first, most.
    tcp_rmem = Definition::vector("ipv4/tcp_rmem", [4096, 131_072, 6_291_456], 3, 1, INT_MAX, Order::Any);
    /// Sizes of TCP's send buffers, bytes: least, at first, most.
    tcp_wmem = Definition::vector("ipv4/tcp_wmem", [4096, 16_384, 4_194_304], 3, 1, INT_MAX, Order::Any);
    /// Ends of connections that may send data with the first packet: a bit each.
    tcp_fastopen = Definition::integer("ipv4/tcp_fastopen", 1, 0, INT_MAX);
    /// Pages that all sockets of TCP may have: freely, before there is pressure, at most.
    tcp_mem = Definition::vector("ipv4/tcp_mem", [22_000, 29_000, 44_000], 3, 0, INT_MAX, Order::Any);
    /// Pages that all sockets of UDP may have: freely, (not used), at most.
    udp_mem = Definition::vector("ipv4/udp_mem", [44_000, 58_000, 88_000], 3, 0, INT_MAX, Order::Any);
    /// The first and the last of the ports that are given to who asks for none.
    ip_local_port_range = Definition::vector("ipv4/ip_local_port_range", [32_768, 60_999, 0], 2, 1, 65_535, Order::Ascending);
    /// The first port that anybody may bind.
    ip_unprivileged_port_start = Definition::integer("ipv4/ip_unprivileged_port_start", 1024, 0, 65_535);
    /// The first and the last of the groups whose members may have ping sockets.
    ping_group_range = Definition::vector("ipv4/ping_group_range", [0, INT_MAX, 0], 2, 0, INT_MAX, Order::Any);
    /// Whether addresses that are not this host's can be bound.
    ip_nonlocal_bind = Definition::boolean("ipv4/ip_nonlocal_bind", 0);
    /// The hop limit of packets.
    ip_default_ttl = Definition::integer("ipv4/ip_default_ttl", 64, 1, 255);
    /// Whether packets of other hosts for other hosts are passed on.
    ip_forward = Definition::boolean("ipv4/ip_forward", 0);
    /// Whether `::` does not take IPv4.
    bindv6only = Definition::boolean("ipv6/bindv6only", 0);
    /// Seconds of silence before the first keep-alive probe.
    tcp_keepalive_time = Definition::integer("ipv4/tcp_keepalive_time", 7200, 1, 32_767);
    /// Seconds between keep-alive probes.
    tcp_keepalive_intvl = Definition::integer("ipv4/tcp_keepalive_intvl", 75, 1, 32_767);
    /// Keep-alive probes without an answer that end a connection.
    tcp_keepalive_probes = Definition::integer("ipv4/tcp_keepalive_probes", 9, 1, 127);
    /// Repetitions of a SYN before a connection fails.
    tcp_syn_retries = Definition::integer("ipv4/tcp_syn_retries", 6, 1, 127);
    /// The most half-open connections of a listener without SYN cookies.
    tcp_max_syn_backlog = Definition::integer("ipv4/tcp_max_syn_backlog", 4096, 0, INT_MAX);
    /// The most connections that wait for late segments.
    tcp_max_tw_buckets = Definition::integer("ipv4/tcp_max_tw_buckets", 8192, 0, INT_MAX);
    /// The most connections that no program has open, and that are not ended yet.
    tcp_max_orphans = Definition::integer("ipv4/tcp_max_orphans", 8192, 0, INT_MAX);
    /// Repetitions of the answer to a SYN.
    tcp_synack_retries = Definition::integer("ipv4/tcp_synack_retries", 5, 0, 255);
    /// Time-outs after which a path is suspected to swallow long segments.
    tcp_retries1 = Definition::integer("ipv4/tcp_retries1", 3, 0, 255);
    /// Time-outs after which a connection ends.
    tcp_retries2 = Definition::integer("ipv4/tcp_retries2", 15, 0, 255);
    /// Whether a connection may follow one that waits for late segments: never, always, over the
    /// loop.
    tcp_tw_reuse = Definition::integer("ipv4/tcp_tw_reuse", 2, 0, 2);
    /// The use of SYN cookies: never, when the queue is full, always.
    tcp_syncookies = Definition::integer("ipv4/tcp_syncookies", 1, 0, 2);
    /// Whether selective acknowledgements are wanted.
    tcp_sack = Definition::boolean("ipv4/tcp_sack", 1);
    /// Whether timestamps are wanted.
    tcp_timestamps = Definition::integer("ipv4/tcp_timestamps", 1, 0, 2);
    /// Whether windows are scaled.
    tcp_window_scaling = Definition::boolean("ipv4/tcp_window_scaling", 1);
    /// Explicit congestion notification: not at all, asked for and granted, granted.
    tcp_ecn = Definition::integer("ipv4/tcp_ecn", 2, 0, 2);
    /// Whether what came twice is told.
    tcp_dsack = Definition::boolean("ipv4/tcp_dsack", 1);
    /// Whether a connection that has paused begins as a new one.
    tcp_slow_start_after_idle = Definition::boolean("ipv4/tcp_slow_start_after_idle", 1);
    /// Whether a path is tried with shorter segments that swallows long ones. (2, which Linux takes
    /// for all connections from the start, is as 1.)
    tcp_mtu_probing = Definition::integer("ipv4/tcp_mtu_probing", 0, 0, 2);
    /// The segment that such a path is tried with first, bytes.
    tcp_base_mss = Definition::integer("ipv4/tcp_base_mss", 1024, 48, 65_535);
    /// The shortest, bytes.
    tcp_min_snd_mss = Definition::integer("ipv4/tcp_min_snd_mss", 48, 48, 65_535);
    /// Time-outs after which a connection ends that its program has closed; 0 is 8.
    tcp_orphan_retries = Definition::integer("ipv4/tcp_orphan_retries", 0, 0, 255);
    /// Whether a connection is refused that finds too many waiting to be accepted.
    tcp_abort_on_overflow = Definition::boolean("ipv4/tcp_abort_on_overflow", 0);
    /// Whether receive buffers grow with what comes.
    tcp_moderate_rcvbuf = Definition::boolean("ipv4/tcp_moderate_rcvbuf", 1);
    /// The algorithm by which congestion windows grow unless a program chooses.
    tcp_congestion_control = Definition::choice("ipv4/tcp_congestion_control", &CONGESTION_CONTROLS);
    /// Seconds that a closed connection waits for the end of its peer.
    tcp_fin_timeout = Definition::integer("ipv4/tcp_fin_timeout", 60, 0, INT_MAX);
    /// Bytes that what belongs to a socket beside its buffers may take, as Linux counts them.
    optmem_max = Definition::integer("core/optmem_max", 20_480, 0, INT_MAX);
    /// The most groups that a socket is in by its IPv4 options.
    igmp_max_memberships = Definition::integer("ipv4/igmp_max_memberships", 20, 0, INT_MAX);
    /// The most sources that one membership names.
    igmp_max_msf = Definition::integer("ipv4/igmp_max_msf", 10, 0, INT_MAX);
    /// The most datagrams that wait for a receiver of `AF_UNIX` that has not named their sender its
    /// peer.
    unix_max_dgram_qlen = Definition::integer("unix/max_dgram_qlen", 10, 0, INT_MAX);
    /// Pages that the buffers of all sockets of one user may fill, who is not the superuser; 0: no
    /// limit. (Linux has none but that of control groups.)
    socket_user_pages = Definition::integer("core/socket_user_pages", 16_384, 0, INT_MAX);
}

impl Sysctls {
    /// The limits of the memory of all sockets of a protocol, in pages.
    pub(crate) fn memory(&self, protocol: Transport) -> &Sysctl {
        match protocol {
            Transport::Tcp => &self.tcp_mem,
            Transport::Udp => &self.udp_mem,
        }
    }

    /// Sets the limits that depend on the size of the machine: as Linux does, and for the sockets
    /// of a user a quarter of what the kernel may have.
    pub fn scale(&self, pages: u64) {
        self.tcp_mem.scale(pages / 16);
        self.udp_mem.scale(pages / 8);
        let of_user = i64::try_from(pages / 8).unwrap_or(INT_MAX);
        self.socket_user_pages.values[0].store(of_user.clamp(128, INT_MAX), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_within_bounds_or_nothing_changes() {
        static RANGE: Definition =
            Definition::vector("x", [10, 20, 0], 2, 1, 100, Order::Ascending);
        let range = Sysctl::new(&RANGE);
        assert_eq!(range.text(), "10\t20\n");
        for bad in ["", "x", "0 5", "5 101", "30", "1 2 3", "50 40", "\u{ff}"] {
            assert_eq!(range.set(bad.as_bytes()), Err(Errno::EINVAL), "{bad:?}");
        }
        assert_eq!(range.text(), "10\t20\n");
        range.set(b"15").unwrap();
        assert_eq!(range.text(), "15\t20\n");
        range.set(b" 30\t40 \n").unwrap();
        assert!(
            range.text() == "30\t40\n" && range.range_contains(40) && !range.range_contains(41)
        );
    }

    #[test]
    fn every_setting_has_a_place_of_its_own() {
        let sysctls = Sysctls::new();
        let all: Vec<&Sysctl> = sysctls.all().collect();
        for (at, setting) in all.iter().enumerate() {
            assert!(
                all[at + 1..]
                    .iter()
                    .all(|other| other.path() != setting.path()),
                "{}",
                setting.path()
            );
            let Definition {
                count, min, max, ..
            } = *setting.definition;
            assert!(
                setting.values[..count]
                    .iter()
                    .all(|value| { (min..=max).contains(&value.load(Ordering::Relaxed)) })
            );
        }
    }

    #[test]
    fn limits_can_be_reached_and_several_numbers_be_given() {
        static THREE: Definition = Definition::vector("x", [1, 2, 3], 3, -1, 10, Order::Any);
        let three = Sysctl::new(&THREE);
        three.set(b"-1 10").unwrap();
        assert_eq!(
            (
                three.text(),
                three.range(),
                three.default_size(),
                three.as_usize()
            ),
            ("-1\t10\t3\n".into(), [-1, 10], 10, 0)
        );
        assert_eq!(
            (three.set(b"-2"), three.set(b"11"), three.set(b"1 2 3 4")),
            (Err(Errno::EINVAL), Err(Errno::EINVAL), Err(Errno::EINVAL))
        );
        three.set(b"9 8 7").unwrap();
        assert_eq!(three.text(), "9\t8\t7\n", "these need not rise");
        static RANGE: Definition =
            Definition::vector("y", [10, 20, 0], 2, 1, 100, Order::Ascending);
        let range = Sysctl::new(&RANGE);
        range.set(b"20 20").unwrap();
        assert!(range.range_contains(20) && !range.range_contains(19) && !range.range_contains(21));
        static ONE: Definition = Definition::boolean("z", 1);
        let one = Sysctl::new(&ONE);
        assert_eq!(
            (one.text(), one.as_usize(), one.set(b"1 1"), one.set(b"2")),
            ("1\n".into(), 1, Err(Errno::EINVAL), Err(Errno::EINVAL))
        );
    }
}
