//! How many ICMP errors are sent: in all, and to one host (RFC 1812, 4.3.2.8), as Linux 6.1.

use crate::{Address, Nanos, SECOND};

/// Errors a second, and in a burst (`icmp_msgs_per_sec`, `icmp_msgs_burst`).
const PER_SECOND: u64 = 1000;
const BURST: u64 = 50;
/// Time between errors to one host (`icmp_ratelimit`), and how many of those may be saved up.
const HOST_INTERVAL: Nanos = SECOND;
const HOST_BURST: u64 = 6;
/// Hosts that are remembered. Two that share a place are limited together.
const HOSTS: usize = 64;

#[derive(Clone, Copy, Default)]
struct Bucket {
    /// Time that is saved up, at most the burst's worth.
    credit: Nanos,
    last: Nanos,
}

impl Bucket {
    fn is_allowed(&mut self, now: Nanos, interval: Nanos, burst: u64) -> bool {
        let earned = now.saturating_sub(self.last);
        self.credit = self.credit.saturating_add(earned).min(interval * burst);
        self.last = now;
        if self.credit < interval {
            return false;
        }
        self.credit -= interval;
        true
    }
}

/// The limits on ICMP errors.
pub struct RateLimit {
    all: Bucket,
    hosts: [Bucket; HOSTS],
    /// Number that places are found with, which nobody outside knows.
    secret: u32,
}

impl RateLimit {
    /// Full buckets; `secret` is a random number.
    #[must_use]
    pub fn new(secret: u32) -> Self {
        let full = |interval: Nanos, burst: u64| Bucket {
            credit: interval * burst,
            last: 0,
        };
        Self {
            all: full(SECOND / PER_SECOND, BURST),
            hosts: [full(HOST_INTERVAL, HOST_BURST); HOSTS],
            secret,
        }
    }

    /// Whether an error may be sent to a host now; if so, it counts.
    pub fn is_allowed(&mut self, now: Nanos, to: impl Address) -> bool {
        let mixed = (to.folded() ^ self.secret).wrapping_mul(0x9e37_79b9);
        let host = &mut self.hosts[(mixed >> 24) as usize % HOSTS];
        self.all.is_allowed(now, SECOND / PER_SECOND, BURST)
            && host.is_allowed(now, HOST_INTERVAL, HOST_BURST)
    }
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;

    use super::*;

    #[test]
    fn one_host_hears_six_and_then_one_a_second() {
        let mut limit = RateLimit::new(7);
        let host = Ipv4Addr::new(10, 0, 0, 1);
        let count = |limit: &mut RateLimit, now: Nanos| {
            (0..20).filter(|_| limit.is_allowed(now, host)).count()
        };
        assert_eq!(count(&mut limit, 0), 6);
        assert_eq!(count(&mut limit, SECOND), 1);
        assert_eq!(count(&mut limit, 3 * SECOND), 2);
        assert_eq!(count(&mut limit, 100 * SECOND), 6);
    }

    #[test]
    fn all_hosts_together_hear_a_burst() {
        let mut limit = RateLimit::new(7);
        let sent = |limit: &mut RateLimit, now: Nanos| {
            let hosts = (0..10_000u32).map(|n| Ipv4Addr::from(0x0a00_0000 + n));
            hosts.filter(|host| limit.is_allowed(now, *host)).count()
        };
        assert_eq!(sent(&mut limit, 0), BURST as usize);
        assert_eq!(sent(&mut limit, SECOND / 100), 10);
    }
}
