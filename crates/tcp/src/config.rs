//! What a connection is made with: Linux' settings (tcp(7)) and options of sockets.

use crate::congestion::Algorithm;
use crate::{MILLISECOND, Nanos, SECOND};

/// When an idle connection's peer is asked whether it is there (RFC 9293, section 3.8.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeepAlive {
    /// Idle time before the first probe (`TCP_KEEPIDLE`).
    pub idle: Nanos,
    /// Time between probes (`TCP_KEEPINTVL`).
    pub interval: Nanos,
    /// Unanswered probes that end the connection (`TCP_KEEPCNT`).
    pub count: u32,
}

impl Default for KeepAlive {
    fn default() -> Self {
        Self {
            idle: 7200 * SECOND,
            interval: 75 * SECOND,
            count: 9,
        }
    }
}

/// Settings of a connection. The defaults are those of Linux 6.1.
#[derive(Clone, Debug)]
pub struct Config {
    /// Largest segment that the interface takes: its MTU without the headers of IP and TCP.
    pub mss: u16,
    /// Largest segment that the program allows (`TCP_MAXSEG`), if it has said one.
    pub max_segment: Option<u16>,
    /// Shift of the windows that are advertised (RFC 7323, section 2.2), if there is to be one:
    /// room for less than 2^shift bytes is told as none.
    pub window_scale: Option<u8>,
    /// Timestamps are wanted (`tcp_timestamps`).
    pub timestamps: bool,
    /// Selective acknowledgements are wanted (`tcp_sack`).
    pub sack: bool,
    /// Explicit congestion notification is asked for (`tcp_ecn` = 1).
    pub ecn: bool,
    /// Explicit congestion notification is granted to a peer that asks (`tcp_ecn` = 1 or 2).
    pub grants_ecn: bool,
    /// The peer is told of data that came twice (`tcp_dsack`, RFC 2883).
    pub duplicate_sack: bool,
    /// The congestion window begins anew after a pause (`tcp_slow_start_after_idle`, RFC 5681,
    /// section 4.1).
    pub restarts_after_idle: bool,
    /// Algorithm by which the congestion window grows.
    pub algorithm: Algorithm,
    /// Initial window in segments (RFC 6928).
    pub initial_window: u16,
    /// Least retransmission time-out (`TCP_RTO_MIN`).
    pub least_rto: Nanos,
    /// Longest time for which an acknowledgement waits (RFC 9293, section 3.8.6.3).
    pub delayed_ack: Nanos,
    /// Segments at the beginning that are acknowledged at once.
    pub quick_acks: u32,
    /// A SYN is sent so often again (`tcp_syn_retries`, `TCP_SYNCNT`).
    pub syn_retries: u32,
    /// An answer to a SYN is sent so often again (`tcp_synack_retries`).
    pub syn_ack_retries: u32,
    /// Time-outs after which the path is suspected to swallow long segments (`tcp_retries1`).
    pub retries1: u32,
    /// Time-outs after which the connection ends (`tcp_retries2`), as a time: see
    /// [`Config::give_up_after`].
    pub retries2: u32,
    /// Number of retransmissions as `retries2`, once the program has closed the socket
    /// (`tcp_orphan_retries`, whose 0 is 8).
    pub orphan_retries: u32,
    /// A path that swallows long segments without a word is looked for (`tcp_mtu_probing` = 1).
    pub mtu_probing: bool,
    /// The segment size to try when the path swallows long ones (`tcp_base_mss`), and the least.
    pub base_mss: u16,
    /// See `base_mss` (`tcp_min_snd_mss`).
    pub least_mss: u16,
    /// Time after which a path's MTU is forgotten (RFC 8201, section 5.3; `mtu_expires`).
    pub path_expires: Nanos,
    /// Time for which a closed socket waits for the peer's FIN (`tcp_fin_timeout`, `TCP_LINGER2`);
    /// `None`: the connection is reset instead.
    pub fin_timeout: Option<Nanos>,
    /// Time for which late segments are waited for (2 MSL, RFC 9293, section 3.4.2).
    pub time_wait: Nanos,
    /// Time without progress that ends the connection (`TCP_USER_TIMEOUT`), if there is one.
    pub user_timeout: Option<Nanos>,
    /// Probes of an idle connection, if wanted (`SO_KEEPALIVE`).
    pub keep_alive: Option<KeepAlive>,
    /// Small segments are sent at once (`TCP_NODELAY`).
    pub no_delay: bool,
    /// Small segments wait for more to send (`TCP_CORK`), at most [`Config::CORK`].
    pub cork: bool,
    /// Largest window that is advertised (`TCP_WINDOW_CLAMP`), if the program has said one.
    pub window_clamp: Option<u64>,
    /// Largest payload of several segments at once that the interface cuts, or the caller by
    /// [`crate::Outgoing::cut`]; 0 if there are to be none.
    pub offload: usize,
    /// Memory for what came out of order.
    pub out_of_order: usize,
    /// Challenges, and answers to segments outside of the window, that are sent in a second
    /// (RFC 5961, section 7).
    pub challenges: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            mss: 1460,
            max_segment: None,
            window_scale: Some(7),
            timestamps: true,
            sack: true,
            ecn: false,
            grants_ecn: true,
            duplicate_sack: true,
            restarts_after_idle: true,
            algorithm: Algorithm::default(),
            initial_window: 10,
            least_rto: 200 * MILLISECOND,
            delayed_ack: 40 * MILLISECOND,
            quick_acks: Self::QUICK_ACKS,
            syn_retries: 6,
            syn_ack_retries: 5,
            retries1: 3,
            retries2: 15,
            orphan_retries: 8,
            mtu_probing: false,
            base_mss: 1024,
            least_mss: 48,
            path_expires: 600 * SECOND,
            fin_timeout: Some(60 * SECOND),
            time_wait: 60 * SECOND,
            user_timeout: None,
            keep_alive: None,
            no_delay: false,
            cork: false,
            window_clamp: None,
            offload: 0,
            out_of_order: 1 << 20,
            challenges: 10,
        }
    }
}

impl Config {
    /// Segments that are acknowledged at once when it is asked for (`TCP_QUICKACK`).
    pub const QUICK_ACKS: u32 = 16;
    /// The longest time for which a corked segment waits.
    pub const CORK: Nanos = 200 * MILLISECOND;

    /// Largest segment that the peer is told.
    pub(crate) fn advertised_mss(&self) -> u16 {
        self.mss.min(self.max_segment.unwrap_or(u16::MAX))
    }

    /// Time without progress after which the connection ends: that of `TCP_USER_TIMEOUT`, else the
    /// time that `retries2` time-outs take from the least one on, as on Linux (924.6 s).
    #[must_use]
    pub fn give_up_after(&self) -> Nanos {
        self.user_timeout
            .unwrap_or_else(|| self.time_of(self.retries2))
    }

    /// The same once the program has closed the socket.
    #[must_use]
    pub fn give_up_orphan_after(&self) -> Nanos {
        self.give_up_after().min(self.time_of(self.orphan_retries))
    }

    fn time_of(&self, retries: u32) -> Nanos {
        (0..=retries.min(255))
            .map(|turn| (self.least_rto << turn.min(20)).min(crate::rtt::LARGEST_RTO))
            .sum()
    }

    /// The shift by which a window of `largest` bytes can be told, as Linux selects it: for the
    /// largest receive buffer that there may ever be (`tcp_rmem`).
    #[must_use]
    pub fn window_scale_for(largest: u64) -> u8 {
        let bits = largest.checked_ilog2().unwrap_or(0).saturating_sub(15);
        bits.min(u32::from(crate::segment::LARGEST_SHIFT)) as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fifteen_time_outs_are_linux_924_seconds() {
        let config = Config::default();
        assert_eq!(config.give_up_after(), 924_600 * MILLISECOND);
        let patient = Config {
            user_timeout: Some(5),
            ..config
        };
        assert_eq!(patient.give_up_after(), 5);
    }

    #[test]
    fn an_orphan_is_less_patient() {
        // 200 ms doubled eight times.
        let config = Config::default();
        assert_eq!(config.give_up_orphan_after(), 102_200 * MILLISECOND);
        let patient = Config {
            orphan_retries: 100,
            ..config
        };
        assert_eq!(patient.give_up_orphan_after(), patient.give_up_after());
    }

    #[test]
    fn windows_up_to_a_gigabyte_can_be_told() {
        for largest in [0, 1, 0xffff, 0x10000, 6 << 20, 1 << 30, u64::MAX] {
            let shift = Config::window_scale_for(largest);
            assert!(shift <= 14);
            assert!(shift == 14 || 0xffff << shift >= largest / 2, "{largest}");
        }
        assert_eq!(Config::window_scale_for(6 << 20), 7);
    }
}
