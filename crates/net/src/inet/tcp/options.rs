//! Options of TCP sockets that a protocol engine acts on (`tcp(7)`).

use ::tcp::{Algorithm, Config, Connection, KeepAlive, MILLISECOND, SECOND};
use linux_raw_sys::net;

use super::TcpSocket;
use crate::inet::option_table::{IP, IPV6, KnownOption, TCP};
use crate::inet::options::SOL_SOCKET;
use crate::socket::{Sysctl, Sysctls};

/// Options of whole numbers, in the order in which [`TcpSocket::engine_options`] takes them.
static ENGINE_OPTIONS: [KnownOption; 9] = [
    KnownOption::new(TCP, net::TCP_NODELAY),
    KnownOption::new(TCP, net::TCP_MAXSEG),
    KnownOption::new(TCP, net::TCP_WINDOW_CLAMP),
    KnownOption::new(TCP, net::TCP_LINGER2),
    KnownOption::new(TCP, net::TCP_SYNCNT),
    KnownOption::new(IP, net::IP_TTL),
    KnownOption::new(IP, net::IP_TOS),
    KnownOption::new(IPV6, net::IPV6_UNICAST_HOPS),
    KnownOption::new(IPV6, net::IPV6_TCLASS),
];

/// Options of a socket that an engine acts on.
#[derive(Clone, Debug, Default)]
pub struct TcpOptions {
    /// `TCP_NODELAY`.
    pub no_delay: bool,
    /// `SO_KEEPALIVE`, with `TCP_KEEPIDLE`, `TCP_KEEPINTVL` and `TCP_KEEPCNT`.
    pub keep_alive: Option<KeepAlive>,
    /// `TCP_USER_TIMEOUT`, milliseconds; 0: none.
    pub user_timeout_ms: u32,
    /// `TCP_MAXSEG`.
    pub max_segment: Option<u16>,
    /// `TCP_WINDOW_CLAMP`, bytes; 0: none.
    pub window_clamp: u32,
    /// `TCP_LINGER2`, seconds; negative: not at all.
    pub linger2_s: i32,
    /// `TCP_SYNCNT`.
    pub syn_retries: u32,
    /// `TCP_CONGESTION`.
    pub algorithm: Algorithm,
    /// `TCP_QUICKACK`, if that is what was set just now.
    pub quick_ack: Option<bool>,
    /// `IP_TTL`.
    pub ttl: u8,
    /// `IP_TOS`.
    pub tos: u8,
    /// `IPV6_UNICAST_HOPS`.
    pub hop_limit: u8,
    /// `IPV6_TCLASS`.
    pub traffic_class: u8,
    /// The interface of `SO_BINDTODEVICE`; 0: any.
    pub interface: u32,
}

impl TcpOptions {
    fn fin_timeout(&self) -> Option<u64> {
        let seconds = u64::try_from(self.linger2_s).ok()?;
        Some(seconds * SECOND)
    }

    fn user_timeout(&self) -> Option<u64> {
        (self.user_timeout_ms != 0).then(|| u64::from(self.user_timeout_ms) * MILLISECOND)
    }

    fn clamp(&self) -> Option<u64> {
        (self.window_clamp != 0).then(|| self.window_clamp.into())
    }

    /// The settings of a connection, over an interface that takes segments of `mss` bytes, whose
    /// receive buffer has room for `room`.
    pub(in crate::inet) fn config(&self, sysctls: &Sysctls, mss: u16, room: usize) -> Config {
        let is_set = |sysctl: &Sysctl| sysctl.as_usize() != 0;
        let largest = sysctls.tcp_rmem.limits()[2].max(room) as u64;
        let scaling = is_set(&sysctls.tcp_window_scaling);
        Config {
            mss,
            max_segment: self.max_segment,
            window_scale: scaling.then(|| Config::window_scale_for(largest)),
            timestamps: is_set(&sysctls.tcp_timestamps),
            sack: is_set(&sysctls.tcp_sack),
            ecn: sysctls.tcp_ecn.as_usize() == 1,
            grants_ecn: is_set(&sysctls.tcp_ecn),
            duplicate_sack: is_set(&sysctls.tcp_dsack),
            restarts_after_idle: is_set(&sysctls.tcp_slow_start_after_idle),
            mtu_probing: is_set(&sysctls.tcp_mtu_probing),
            base_mss: sysctls.tcp_base_mss.as_usize() as u16,
            least_mss: sysctls.tcp_min_snd_mss.as_usize() as u16,
            orphan_retries: match sysctls.tcp_orphan_retries.as_usize() as u32 {
                0 => Config::default().orphan_retries,
                given => given,
            },
            algorithm: self.algorithm,
            syn_retries: self.syn_retries,
            syn_ack_retries: sysctls.tcp_synack_retries.as_usize() as u32,
            retries1: sysctls.tcp_retries1.as_usize() as u32,
            retries2: sysctls.tcp_retries2.as_usize() as u32,
            fin_timeout: self.fin_timeout(),
            user_timeout: self.user_timeout(),
            keep_alive: self.keep_alive,
            no_delay: self.no_delay,
            window_clamp: self.clamp(),
            ..Config::default()
        }
    }

    /// Changes what can be changed of a connection that runs.
    pub(in crate::inet) fn apply(&self, connection: &mut Connection) {
        connection.set_no_delay(self.no_delay);
        connection.set_keep_alive(self.keep_alive);
        connection.set_user_timeout(self.user_timeout());
        connection.set_window_clamp(self.clamp());
        connection.set_fin_timeout(self.fin_timeout());
        connection.set_syn_retries(self.syn_retries);
        connection.set_algorithm(self.algorithm);
        if let Some(quick) = self.quick_ack {
            connection.set_quick_ack(quick);
        }
    }
}

impl TcpSocket {
    /// The options that an engine acts on, as they are now.
    pub(super) fn engine_options(&self) -> TcpOptions {
        let options = &self.common.options;
        let keeps_alive = self.endpoint.options.is_enabled(net::SO_KEEPALIVE);
        let keep_alive = keeps_alive.then(|| {
            let [idle, interval, count] = options.int_options([
                (TCP, net::TCP_KEEPIDLE),
                (TCP, net::TCP_KEEPINTVL),
                (TCP, net::TCP_KEEPCNT),
            ]);
            let seconds = |number: i32| SECOND * u64::from(number.unsigned_abs());
            KeepAlive {
                idle: seconds(idle),
                interval: seconds(interval),
                count: count.unsigned_abs(),
            }
        });
        let [
            no_delay,
            max_segment,
            window_clamp,
            linger2_s,
            syn_retries,
            ttl,
            tos,
            hop_limit,
            traffic_class,
        ] = options.known_options(&ENGINE_OPTIONS);
        TcpOptions {
            no_delay: no_delay != 0,
            keep_alive,
            user_timeout_ms: self.user_timeout_ms(),
            max_segment: u16::try_from(max_segment).ok().filter(|mss| *mss != 0),
            window_clamp: window_clamp.unsigned_abs(),
            linger2_s,
            syn_retries: syn_retries.unsigned_abs(),
            algorithm: options.congestion_algorithm(),
            quick_ack: None,
            ttl: ttl as u8,
            tos: tos as u8,
            hop_limit: hop_limit as u8,
            traffic_class: traffic_class as u8,
            interface: self.endpoint.options.bound_interface(),
        }
    }

    /// Tells the engine below, if there is one, that an option was set.
    pub(super) fn tell_engine(&self, (level, option): (u32, u32)) {
        let is_for_engines = match level {
            TCP => true,
            IP => matches!(option, net::IP_TTL | net::IP_TOS),
            IPV6 => matches!(option, net::IPV6_UNICAST_HOPS | net::IPV6_TCLASS),
            SOL_SOCKET => option == net::SO_KEEPALIVE,
            _ => false,
        };
        let connection = self.connection.load();
        let is_loopback = connection.as_ref().map(|one| one.peer.is_loopback());
        if !is_for_engines || is_loopback == Some(true) {
            return;
        }
        let mut options = self.engine_options();
        if (level, option) == (TCP, net::TCP_QUICKACK) {
            options.quick_ack = Some(self.common.options.is_enabled(TCP, option));
        }
        if let Some(connection) = connection {
            let peer = &connection.peer;
            peer.with_engine(&self.endpoint, |engine| engine.set_options(&options));
            return;
        }
        let engine = self.state.lock().connecting_engine.clone();
        if let Some(engine) = engine {
            engine.set_options(&options);
        }
    }
}
