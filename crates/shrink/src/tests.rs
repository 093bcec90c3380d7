use std::sync::Mutex as StdMutex;

use proptest::prelude::*;

use super::*;

proptest! {
    #[test]
    fn shares_are_in_proportion(target in 0u64..1 << 50, held in prop::array::uniform4(0u64..1 << 40)) {
        let shares = split(target, &held);
        let (sum, total) = (shares.iter().sum::<u64>(), held.iter().sum::<u64>());
        prop_assert!(sum >= target.min(total) && sum <= target.saturating_add(4));
        for (share, held) in shares.iter().zip(held) {
            prop_assert!(*share <= held);
            if total > 0 && target <= total {
                prop_assert!((u128::from(*share) * u128::from(total)).abs_diff(u128::from(target) * u128::from(held)) <= u128::from(total));
            }
        }
    }
}

struct Cache {
    held: AtomicU64,
    /// Objects that the cache claims to hold and does not give.
    stuck: u64,
    /// Where it leaves what it does later.
    later: Option<StdMutex<Vec<(u64, Ticket)>>>,
}

impl Cache {
    fn new(held: u64) -> Self {
        Self {
            held: AtomicU64::new(held),
            stuck: 0,
            later: None,
        }
    }
}

impl Shrinker for Cache {
    fn name(&self) -> &'static str {
        "cache"
    }
    fn reclaimable(&self, _: Urgency) -> u64 {
        self.held.load(Ordering::Relaxed)
    }
    fn shrink(&self, bytes: u64, _: Urgency, ticket: Ticket) {
        let held = self.held.load(Ordering::Relaxed);
        let give = bytes.min(held.saturating_sub(self.stuck));
        self.held.store(held - give, Ordering::Relaxed);
        match &self.later {
            None => ticket.freed(give),
            Some(later) => later.lock().unwrap().push((give, ticket)),
        }
    }
}

fn registry(caches: &[Arc<Cache>]) -> Shrinkers {
    let shrinkers = Shrinkers::new();
    for cache in caches {
        shrinkers.register(cache.clone());
    }
    shrinkers
}

#[test]
fn all_give_their_part() {
    let caches = [
        Arc::new(Cache::new(1000)),
        Arc::new(Cache::new(3000)),
        Arc::new(Cache::new(0)),
    ];
    let shrinkers = registry(&caches);
    let round = Arc::new(Round::default());
    shrinkers.reclaim(&round, 400, Urgency::High);
    assert_eq!((round.wait(), round.is_finished()), (400, true));
    assert_eq!(
        caches
            .each_ref()
            .map(|cache| cache.held.load(Ordering::Relaxed)),
        [900, 2700, 0]
    );
    // A second call counts anew.
    shrinkers.reclaim(&round, 5000, Urgency::Critical);
    assert_eq!(round.wait(), 3600);
    assert_eq!(
        shrinkers.stats()[1],
        Stats {
            name: "cache",
            reclaimable: 0,
            asked: 3000
        }
    );
}

#[test]
fn others_stand_in_for_who_does_not_give() {
    let caches = [
        Arc::new(Cache {
            stuck: 1000,
            ..Cache::new(1000)
        }),
        Arc::new(Cache::new(1000)),
    ];
    let round = Arc::new(Round::default());
    registry(&caches).reclaim(&round, 400, Urgency::High);
    assert_eq!(
        (round.wait(), caches[1].held.load(Ordering::Relaxed)),
        (400, 600)
    );
}

#[test]
fn the_round_lasts_until_the_slow_are_done() {
    let slow = Arc::new(Cache {
        later: Some(StdMutex::default()),
        ..Cache::new(1000)
    });
    let shrinkers = registry(&[slow.clone(), Arc::new(Cache::new(1000))]);
    let round = Arc::new(Round::default());
    shrinkers.reclaim(&round, 400, Urgency::Low);
    assert_eq!((round.freed(), round.is_finished()), (200, false));
    let worker = {
        let slow = slow.clone();
        std::thread::spawn(move || {
            for (bytes, ticket) in slow.later.as_ref().unwrap().lock().unwrap().drain(..) {
                ticket.freed(bytes);
            }
        })
    };
    assert_eq!(round.wait(), 400);
    worker.join().unwrap();
    let cache: Arc<dyn Shrinker> = slow;
    shrinkers.unregister(&cache);
    assert_eq!(shrinkers.stats().len(), 1);
}

/// A remaining shortage is asked of the other caches again, up to twice: of those only that gave
/// all they were asked for.
#[test]
fn what_is_missing_is_split_again_twice() {
    let stuck = |stuck| {
        Arc::new(Cache {
            stuck,
            ..Cache::new(1000)
        })
    };
    let held = |caches: &[Arc<Cache>]| {
        caches
            .iter()
            .map(|cache| cache.held.load(Ordering::Relaxed))
            .collect::<Vec<_>>()
    };
    let round = Arc::new(Round::default());
    let caches = [stuck(1000), stuck(750), stuck(0)];
    let shrinkers = registry(&caches);
    shrinkers.reclaim(&round, 600, Urgency::High);
    // 200 each; then the 200 of the first, 100 each; then the 50 that the second had not.
    assert_eq!((round.wait(), held(&caches)), (600, vec![1000, 750, 650]));
    assert_eq!(
        shrinkers
            .stats()
            .iter()
            .map(|stats| stats.asked)
            .collect::<Vec<_>>(),
        [200, 300, 350]
    );
}

/// A cache that tells what it is asked.
#[derive(Default)]
struct Listener {
    asked: StdMutex<Vec<(u64, Urgency)>>,
}

impl Shrinker for Listener {
    fn name(&self) -> &'static str {
        "listener"
    }
    fn reclaimable(&self, urgency: Urgency) -> u64 {
        if urgency >= Urgency::High { 100 } else { 0 }
    }
    fn shrink(&self, bytes: u64, urgency: Urgency, ticket: Ticket) {
        self.asked.lock().unwrap().push((bytes, urgency));
        ticket.freed(bytes);
    }
}

#[test]
fn who_has_nothing_at_this_urgency_is_not_asked() {
    let listener = Arc::new(Listener::default());
    let (shrinkers, round) = (Shrinkers::new(), Arc::new(Round::default()));
    shrinkers.register(listener.clone());
    for (bytes, urgency) in [
        (50, Urgency::Idle),
        (50, Urgency::Low),
        (0, Urgency::Critical),
        (50, Urgency::High),
        (1, Urgency::Critical),
    ] {
        shrinkers.reclaim(&round, bytes, urgency);
        assert!(round.is_finished());
    }
    assert_eq!(
        *listener.asked.lock().unwrap(),
        [(50, Urgency::High), (1, Urgency::Critical)]
    );
    assert_eq!(
        shrinkers.stats(),
        [Stats {
            name: "listener",
            reclaimable: 100,
            asked: 51
        }]
    );
}

#[test]
fn the_waiter_sleeps_until_the_last_ticket_is_gone() {
    let round = Arc::new(Round::default());
    let tickets: Vec<Ticket> = (0..3).map(|_| Ticket::new(&round)).collect();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| round.wait());
        while round.waiter.lock().is_none() {
            std::thread::yield_now();
        }
        for (n, ticket) in (1..).zip(tickets) {
            assert!(!round.is_finished());
            ticket.freed(n);
        }
        assert_eq!(waiting.join().unwrap(), 6);
    });
    assert!(round.is_finished());
    // Nobody waits any more; the next round is told apart.
    drop(Ticket::new(&round));
    assert!(round.waiter.lock().is_none());
}

#[test]
fn there_is_room_for_so_many_caches() {
    let caches: Vec<Arc<Cache>> = (0..MAX_SHRINKERS)
        .map(|_| Arc::new(Cache::new(10)))
        .collect();
    let (shrinkers, round) = (registry(&caches), Arc::new(Round::default()));
    shrinkers.reclaim(&round, u64::MAX, Urgency::Critical);
    assert_eq!(
        (round.wait(), shrinkers.stats().len()),
        (10 * MAX_SHRINKERS as u64, MAX_SHRINKERS)
    );
    let one_more = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        shrinkers.register(caches[0].clone());
    }));
    assert!(one_more.is_err());
}
