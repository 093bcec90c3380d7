//! Times at which a connection acts by itself.

use super::{AckNeed, Connection, Error, State};
use crate::config::Config;
use crate::{MILLISECOND, Nanos};

/// Longest time for which a peer is thought to delay an acknowledgement (RFC 8985, section 7.2).
const PEER_DELAY: Nanos = 200 * MILLISECOND;

/// The timers; each is off while it is `None`.
#[derive(Clone, Debug, Default)]
pub(super) struct Timers {
    /// Retransmission time-out (RFC 6298).
    pub retransmission: Option<Nanos>,
    /// Tail loss probe (RFC 8985, section 7).
    pub tail_probe: Option<Nanos>,
    /// End of the window for reordering (RFC 8985, section 6).
    pub reorder: Option<Nanos>,
    /// The peer's window keeps data back (RFC 9293, section 3.8.6.1).
    pub persist: Option<Nanos>,
    /// Probes of a closed window since it closed.
    pub probes: u32,
    /// Delayed acknowledgement.
    pub delayed_ack: Option<Nanos>,
    /// Corked data waits no longer.
    pub cork: Option<Nanos>,
    /// End of FIN-WAIT-2 or TIME-WAIT.
    pub linger: Option<Nanos>,
    /// Unanswered probes of an idle connection.
    pub keep_alive_probes: u32,
    /// When the last of those was sent.
    pub keep_alive_sent: Nanos,
    /// Since when nothing was acknowledged, once a timer has run out.
    pub stalled_since: Option<Nanos>,
}

impl Timers {
    pub(super) fn stop_sending(&mut self) {
        self.retransmission = None;
        self.tail_probe = None;
        self.reorder = None;
        self.persist = None;
        self.cork = None;
    }
}

impl Connection {
    /// The time at which [`Connection::next`] is to be asked, if nothing arrives and the program
    /// does nothing before.
    #[must_use]
    pub fn deadline(&self) -> Option<Nanos> {
        let timers = &self.timers;
        let mut first = None;
        for timer in [
            timers.retransmission,
            timers.tail_probe,
            timers.reorder,
            timers.persist,
            timers.delayed_ack.filter(|_| self.ack == AckNeed::Delayed),
            timers.cork,
            timers.linger,
            self.keep_alive_at(),
        ] {
            // This is asked after each segment, and costs less than `min` over an iterator.
            if let Some(at) = timer
                && first.is_none_or(|first| at < first)
            {
                first = timer;
            }
        }
        first
    }

    /// When an idle peer is asked next (RFC 9293, section 3.8.4): not while something of this end
    /// waits for its answer.
    fn keep_alive_at(&self) -> Option<Nanos> {
        let keep_alive = self.config.keep_alive?;
        let asked = matches!(
            self.state,
            State::Established | State::CloseWait | State::FinWait1 | State::FinWait2
        );
        if !asked || !self.board.is_empty() || self.timers.persist.is_some() {
            return None;
        }
        Some(if self.timers.keep_alive_probes == 0 {
            self.rcv.last_arrival.max(self.snd.last_sent) + keep_alive.idle
        } else {
            self.timers.keep_alive_sent + keep_alive.interval
        })
    }

    /// Does what is due by time.
    pub(super) fn run_timers(&mut self, now: Nanos) {
        let due = |timer: &mut Option<Nanos>| timer.take_if(|at| *at <= now).is_some();
        if due(&mut self.timers.linger) {
            self.close(None);
            return;
        }
        if due(&mut self.timers.delayed_ack) && self.ack == AckNeed::Delayed {
            self.ack = AckNeed::Now;
            // Linux: who had to wait is acknowledged more quickly for a while.
            self.rcv.quick = self.rcv.quick.max(1);
        }
        if due(&mut self.timers.cork) {
            self.push_small = true;
        }
        if due(&mut self.timers.reorder) {
            self.reordering_is_over(now);
        }
        if due(&mut self.timers.tail_probe) {
            self.tail_probe = true;
            self.counts.repairs.probes += 1;
        }
        if due(&mut self.timers.persist) {
            self.persist_is_over(now);
        }
        if due(&mut self.timers.retransmission) {
            self.retransmission_is_due(now);
        }
        if self.keep_alive_at().is_some_and(|at| at <= now) {
            self.ask_idle_peer(now);
        }
    }

    /// Time without progress after which the connection ends.
    fn patience(&self) -> Nanos {
        if self.orphan {
            self.config.give_up_orphan_after()
        } else {
            self.config.give_up_after()
        }
    }

    fn give_up(&mut self, error: Error) {
        let error = self.soft_error.unwrap_or(error);
        self.close(Some(error));
    }

    /// A retransmission time-out (RFC 6298, section 5, rules 5.4 to 5.6).
    fn retransmission_is_due(&mut self, now: Nanos) {
        let since = *self
            .timers
            .stalled_since
            .get_or_insert(self.board.first().map_or(now, |first| first.sent));
        self.snd.timeouts += 1;
        self.counts.repairs.timeouts += 1;
        let retries = match self.state {
            State::SynSent => Some(self.config.syn_retries),
            State::SynReceived => Some(self.config.syn_ack_retries),
            _ => None,
        };
        let over = match retries {
            Some(retries) => {
                self.snd.timeouts > retries
                    || self
                        .config
                        .user_timeout
                        .is_some_and(|limit| now - since >= limit)
            }
            None => now.saturating_sub(since) >= self.patience(),
        };
        if over {
            self.give_up(Error::TimedOut);
            return;
        }
        self.rtt.back_off();
        if retries.is_some() {
            self.syn_due = true;
            return;
        }
        self.suspect_path(now);
        self.time_out();
        self.timers.retransmission = Some(self.limited(now + self.rtt.rto()));
    }

    /// Takes the path for smaller than it says if long segments are lost again and again
    /// (RFC 4821, section 7.7): first the base size, then halves.
    fn suspect_path(&mut self, now: Nanos) {
        let longest = self.snd.path_mss.min(self.snd.peer_mss);
        if self.config.mtu_probing
            && self.snd.timeouts >= self.config.retries1
            && longest > self.config.least_mss
        {
            let next = if longest > self.config.base_mss {
                self.config.base_mss
            } else {
                (longest / 2).max(self.config.least_mss)
            };
            self.limit_path(now, next);
        }
    }

    /// A time, or that at which the user's patience ends if it is before.
    fn limited(&self, at: Nanos) -> Nanos {
        match (self.config.user_timeout, self.timers.stalled_since) {
            (Some(limit), Some(since)) => at.min(since + limit),
            _ => at,
        }
    }

    /// The peer's window has kept data back for a while.
    fn persist_is_over(&mut self, now: Nanos) {
        let since = *self.timers.stalled_since.get_or_insert(now);
        let waited = now.saturating_sub(since);
        // A peer that answers may keep the window closed for ever; a program that is gone waits
        // only so long (RFC 9293, section 3.8.6.1; RFC 6429).
        let unanswered = now.saturating_sub(self.rcv.last_arrival);
        let over = self
            .config
            .user_timeout
            .is_some_and(|limit| waited >= limit)
            || unanswered.min(waited) >= self.patience()
            || self.orphan && waited >= self.patience();
        if over {
            self.give_up(Error::TimedOut);
            return;
        }
        self.timers.probes += 1;
        self.push_small = true;
        self.probe_due = true;
    }

    fn ask_idle_peer(&mut self, now: Nanos) {
        let Some(keep_alive) = self.config.keep_alive else {
            return;
        };
        let silent = now.saturating_sub(self.rcv.last_arrival);
        let probes = self.timers.keep_alive_probes;
        let over = match self.config.user_timeout {
            Some(limit) => probes > 0 && silent >= limit,
            None => probes >= keep_alive.count,
        };
        if over {
            self.reset = Some(self.reset_header());
            self.give_up(Error::TimedOut);
            return;
        }
        self.timers.keep_alive_probes += 1;
        self.timers.keep_alive_sent = now;
        self.probe_due = true;
    }

    /// Starts or stops the timers of what is outstanding, after an acknowledgement (RFC 6298,
    /// section 5, rules 5.2 and 5.3).
    pub(super) fn arm_retransmission(&mut self, now: Nanos, advanced: bool) {
        if self.board.is_empty() {
            self.timers.retransmission = None;
            self.timers.tail_probe = None;
            self.timers.reorder = None;
        } else if advanced {
            self.timers.retransmission = Some(self.limited(now + self.rtt.rto()));
            self.arm_tail_probe(now);
        }
    }

    /// Starts the timers after a segment was sent (rule 5.1).
    pub(super) fn arm_after_sending(&mut self, now: Nanos) {
        if self.timers.retransmission.is_none() {
            self.timers.retransmission = Some(self.limited(now + self.rtt.rto()));
        }
        self.arm_tail_probe(now);
    }

    /// Schedules a tail loss probe (RFC 8985, section 7.2).
    fn arm_tail_probe(&mut self, now: Nanos) {
        let wanted = self.sack
            && self.state.sends()
            && self.recovery.is_open()
            && !self.recovery.has_probe()
            && self.board.counts().1 == 0;
        self.timers.tail_probe = self.rtt.smoothed().filter(|_| wanted).and_then(|srtt| {
            let delay = if self.board.counts().0 == 1 {
                PEER_DELAY
            } else {
                2 * MILLISECOND
            };
            let at = now + 2 * srtt + delay;
            self.timers
                .retransmission
                .filter(|timeout| at < *timeout)
                .map(|_| at)
        });
    }

    /// Starts the timer of a window that keeps data back, or of data that is held back by a cork;
    /// stops it if nothing is.
    pub(super) fn arm_waiting(&mut self, now: Nanos, closed_window: bool, corked: bool) {
        if !closed_window {
            self.timers.persist = None;
            self.timers.probes = 0;
        } else if self.timers.persist.is_none() {
            let delay =
                (self.rtt.base_rto() << self.timers.probes.min(16)).min(crate::rtt::LARGEST_RTO);
            self.timers.persist = Some(now + delay);
        }
        if !corked {
            self.timers.cork = None;
        } else if self.timers.cork.is_none() {
            self.timers.cork = Some(now + Config::CORK);
        }
    }
}
