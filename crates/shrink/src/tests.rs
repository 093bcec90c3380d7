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
    /// What it says it has, but does not give.
    stuck: u64,
    /// Where it leaves what it does later.
    later: Option<StdMutex<Vec<(u64, Ticket)>>>,
}

impl Cache {
    fn new(held: u64) -> Self {
        Self { held: AtomicU64::new(held), stuck: 0, later: None }
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
    let caches = [Arc::new(Cache::new(1000)), Arc::new(Cache::new(3000)), Arc::new(Cache::new(0))];
    let shrinkers = registry(&caches);
    let round = Arc::new(Round::default());
    shrinkers.reclaim(&round, 400, Urgency::High);
    assert_eq!((round.wait(), round.is_finished()), (400, true));
    assert_eq!(caches.each_ref().map(|cache| cache.held.load(Ordering::Relaxed)), [900, 2700, 0]);
    // A second call counts anew.
    shrinkers.reclaim(&round, 5000, Urgency::Critical);
    assert_eq!(round.wait(), 3600);
    assert_eq!(shrinkers.stats()[1], Stats { name: "cache", reclaimable: 0, asked: 3000 });
}

#[test]
fn others_stand_in_for_who_does_not_give() {
    let caches = [Arc::new(Cache { stuck: 1000, ..Cache::new(1000) }), Arc::new(Cache::new(1000))];
    let round = Arc::new(Round::default());
    registry(&caches).reclaim(&round, 400, Urgency::High);
    assert_eq!((round.wait(), caches[1].held.load(Ordering::Relaxed)), (400, 600));
}

#[test]
fn the_round_lasts_until_the_slow_are_done() {
    let slow = Arc::new(Cache { later: Some(StdMutex::default()), ..Cache::new(1000) });
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
