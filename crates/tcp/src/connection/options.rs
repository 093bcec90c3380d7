//! Options of a socket that change a connection while it runs (tcp(7)).

use super::{AckNeed, Buffers, Connection};
use crate::{Algorithm, Config, KeepAlive, Nanos};

impl Connection {
    /// Sets or takes away probes of an idle connection (`SO_KEEPALIVE`).
    pub fn set_keep_alive(&mut self, keep_alive: Option<KeepAlive>) {
        self.config.keep_alive = keep_alive;
        self.timers.keep_alive_probes = 0;
    }

    /// Sets the time without progress that ends the connection (`TCP_USER_TIMEOUT`).
    pub fn set_user_timeout(&mut self, timeout: Option<Nanos>) {
        self.config.user_timeout = timeout;
    }

    /// Lets small segments go at once, or wait (`TCP_NODELAY`).
    pub fn set_no_delay(&mut self, no_delay: bool) {
        self.config.no_delay = no_delay;
        self.push_small |= no_delay;
    }

    /// Holds small segments back, or lets them go (`TCP_CORK`).
    pub fn set_cork(&mut self, cork: bool) {
        self.config.cork = cork;
        self.push_small |= !cork;
        self.timers.cork = None;
    }

    /// Acknowledges at once for a while, or delays (`TCP_QUICKACK`).
    pub fn set_quick_ack(&mut self, quick: bool) {
        self.rcv.quick = if quick { Config::QUICK_ACKS } else { 0 };
        if quick && self.ack == AckNeed::Delayed {
            self.ack = AckNeed::Now;
        }
    }

    /// Sets how often a SYN is sent again (`TCP_SYNCNT`).
    pub fn set_syn_retries(&mut self, retries: u32) {
        self.config.syn_retries = retries;
    }

    /// Sets how long a closed socket waits for the peer's FIN (`TCP_LINGER2`); `None`: not at all,
    /// the connection is reset.
    pub fn set_fin_timeout(&mut self, timeout: Option<Nanos>) {
        self.config.fin_timeout = timeout;
    }

    /// Limits the window that is advertised from now on (`TCP_WINDOW_CLAMP`).
    pub fn set_window_clamp(&mut self, clamp: Option<u64>) {
        self.config.window_clamp = clamp;
    }

    /// Lets several segments go at once, as [`Config::offload`]: the route has changed.
    pub fn set_offload(&mut self, most: usize) {
        self.config.offload = most;
    }

    /// Whether acknowledgements go at once (`TCP_QUICKACK`, to be read).
    #[must_use]
    pub fn quick_ack(&self) -> bool {
        self.rcv.quick > 0
    }

    /// Bytes that the program has sent and that have not gone out once (`TCP_NOTSENT_LOWAT`,
    /// `SIOCOUTQNSD`).
    #[must_use]
    pub fn not_sent(&self, buffers: &impl Buffers) -> u64 {
        self.data_end(buffers).saturating_sub(self.snd.nxt)
    }

    /// Selects how the congestion window grows (`TCP_CONGESTION`).
    pub fn set_algorithm(&mut self, algorithm: Algorithm) {
        self.congestion.select(algorithm);
    }
}
