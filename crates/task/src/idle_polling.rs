//! Idle polling: whether an idle CPU polls before it sleeps. It does while that ends its idle
//! times, and no longer.

/// Most short idle times after which polling is tried again that did not help.
const MAX_RETRY_INTERVAL: u32 = 1024;

/// State of a CPU's idle polling: whether it helped lately.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IdlePolling {
    on: bool,
    /// Idle times in a row that were short although it did not poll.
    short: u32,
    /// Number of such idle times after which polling is tried.
    enough: u32,
}

impl IdlePolling {
    pub(crate) const fn new() -> Self {
        Self {
            on: false,
            short: 0,
            enough: 1,
        }
    }

    /// Whether to poll the next time.
    pub(crate) fn is_on(self) -> bool {
        self.on
    }

    /// The CPU was idle; `short` if no longer than it polls. Polling that does not end short idle
    /// times may itself be what makes them long: in a guest, the CPU that has work may wait for the
    /// processor this one polls on. So it is tried more and more seldom.
    #[must_use]
    pub(crate) fn update(self, short: bool) -> Self {
        match (self.on, short) {
            (true, true) => Self { enough: 1, ..self },
            (true, false) => Self {
                on: false,
                short: 0,
                enough: (self.enough * 2).min(MAX_RETRY_INTERVAL),
            },
            (false, true) => Self {
                on: self.short + 1 >= self.enough,
                short: self.short + 1,
                ..self
            },
            (false, false) => Self { short: 0, ..self },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn polls(times: u32, mut short: impl FnMut(bool) -> bool) -> u32 {
        let mut polling = IdlePolling::new();
        (0..times)
            .map(|_| {
                let on = polling.is_on();
                polling = polling.update(short(on));
                u32::from(on)
            })
            .sum()
    }

    #[test]
    fn it_polls_while_that_helps() {
        assert_eq!(polls(1000, |_| true), 999);
    }

    #[test]
    fn it_does_not_poll_when_work_comes_seldom() {
        assert_eq!(polls(1000, |_| false), 0);
    }

    #[test]
    fn it_gives_up_what_does_not_help() {
        assert!(polls(100_000, |on| !on) < 120);
    }

    #[test]
    fn it_tries_more_and_more_seldom_until_it_helps() {
        let mut polling = IdlePolling::new();
        let mut tries = Vec::new();
        let mut fail = |polling: &mut IdlePolling| {
            let mut short = 0;
            while !polling.is_on() {
                *polling = polling.update(true);
                short += 1;
            }
            *polling = polling.update(false);
            tries.push(short);
        };
        (0..13).for_each(|_| fail(&mut polling));
        // What helps makes it as willing as it was at first; a long idle time lets it count anew.
        while !polling.is_on() {
            polling = polling.update(true);
        }
        polling = polling.update(true).update(false);
        polling = polling.update(true).update(false);
        assert!(!polling.is_on());
        fail(&mut polling);
        assert_eq!(
            tries,
            [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 1024, 1024, 2]
        );
    }
}
