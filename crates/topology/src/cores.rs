//! Which CPUs are given away where several are threads of one core.
//!
//! Threads of a core share its caches, buffers and predictors, so what one does can be measured,
//! and on some processors read, by the other. A core's threads therefore go to one owner: a thread
//! whose core is somebody else's is *withheld*, until the whole core is free again. Two owners
//! share a core only if both have said that they do.

use crate::Levels;

/// A CPU that can be given away, or was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thread {
    /// Number of its core: the same for all threads of one, and for no others. Small, because lists
    /// of all of a machine's threads are made on kernel stacks.
    pub core: u16,
    /// Use of the thread: free, or held.
    pub state: State,
}

/// Use of a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Nobody has it.
    Free,
    /// Somebody has it, or may have it: it is not known where it is.
    Held {
        /// The owner shares its cores with others that do.
        shares: bool,
    },
}

/// Rule by which threads of one core are given away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    /// One thread of each core is used, and the others never.
    SingleThread,
    /// All threads of a core have one owner.
    #[default]
    WholeCores,
    /// An owner that shares: a core that is not wholly its own may have further owners of that
    /// kind.
    Shared,
}

/// Whether nobody has a thread of the core.
fn is_free(threads: &[Thread], core: u16) -> bool {
    threads
        .iter()
        .all(|thread| thread.core != core || thread.state == State::Free)
}

/// Whether some thread of the core is free, some is not, and all owners share.
fn is_shared(threads: &[Thread], core: u16) -> bool {
    !is_free(threads, core)
        && threads
            .iter()
            .all(|thread| thread.core != core || thread.state != State::Held { shares: false })
}

/// Threads of one core.
fn siblings(threads: &[Thread], core: u16) -> impl Iterator<Item = usize> + '_ {
    (0..threads.len()).filter(move |&at| threads[at].core == core)
}

/// Whether the CPU is the first of its core in the list.
fn is_first(threads: &[Thread], at: usize) -> bool {
    siblings(threads, threads[at].core).next() == Some(at)
}

/// Whether an owner by this rule can have the CPU now.
fn is_available(threads: &[Thread], at: usize, sharing: Sharing) -> bool {
    let core = threads[at].core;
    threads[at].state == State::Free
        && match sharing {
            Sharing::SingleThread => is_free(threads, core) && is_first(threads, at),
            Sharing::WholeCores => is_free(threads, core),
            Sharing::Shared => is_free(threads, core) || is_shared(threads, core),
        }
}

/// Number of CPUs that an owner by this rule can have now.
#[must_use]
pub fn available(threads: &[Thread], sharing: Sharing) -> usize {
    (0..threads.len())
        .filter(|&at| is_available(threads, at, sharing))
        .count()
}

/// Chooses `count` CPUs for a new owner, in the order of the list: whole cores as far as they are
/// used up, then the threads left in shared cores (if the rule is [`Sharing::Shared`]), then a part
/// of the smallest core. Sets their marks in `chosen`, which has one for each CPU.
///
/// False if so many are not [`available`]; the marks mean nothing then.
#[must_use]
pub fn choose(threads: &[Thread], count: usize, sharing: Sharing, chosen: &mut [bool]) -> bool {
    chosen.fill(false);
    let mut left = count;
    let usable =
        |core: u16| siblings(threads, core).filter(|&at| is_available(threads, at, sharing));
    let free_core = |at: usize| is_first(threads, at) && is_free(threads, threads[at].core);
    for at in (0..threads.len()).filter(|&at| free_core(at)) {
        let core = threads[at].core;
        if usable(core).count() <= left {
            for at in usable(core) {
                chosen[at] = true;
                left -= 1;
            }
        }
    }
    let in_shared = (0..threads.len())
        .filter(|&at| is_shared(threads, threads[at].core) && is_available(threads, at, sharing));
    for at in in_shared.take(left) {
        chosen[at] = true;
        left -= 1;
    }
    if left > 0 {
        let smallest = (0..threads.len())
            .filter(|&at| free_core(at) && !chosen[at])
            .min_by_key(|&at| usable(threads[at].core).count());
        for at in smallest
            .into_iter()
            .flat_map(|at| usable(threads[at].core))
            .take(left)
        {
            chosen[at] = true;
            left -= 1;
        }
    }
    left == 0
}

/// Place of a CPU in an order of the machine's CPUs, given by their APIC ids as firmware lists
/// them: sorted by this, the threads of each core stand side by side ([`Siblings::First`]) or the
/// first threads of all cores stand before the second ones ([`Siblings::Last`]). The first of the
/// list stays the first.
///
/// [`Siblings::First`]: crate::Siblings::First
/// [`Siblings::Last`]: crate::Siblings::Last
#[must_use]
pub fn rank(
    levels: Levels,
    listed: &[u32],
    apic_id: u32,
    siblings: crate::Siblings,
) -> (usize, usize) {
    let core = |id: u32| {
        let place = levels.place(id);
        (place.package, place.core)
    };
    let of_core = || {
        listed
            .iter()
            .enumerate()
            .filter(|(_, id)| core(**id) == core(apic_id))
    };
    let first = of_core().next().map_or(listed.len(), |(at, _)| at);
    let within = of_core().take_while(|(_, id)| **id != apic_id).count();
    match siblings {
        crate::Siblings::First => (first, within),
        crate::Siblings::Last => (within, first),
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec;
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;
    use crate::Siblings;

    const FREE: State = State::Free;
    const ALONE: State = State::Held { shares: false };
    const SHARES: State = State::Held { shares: true };

    fn threads(list: &[(u16, State)]) -> Vec<Thread> {
        let thread = |&(core, state)| Thread { core, state };
        list.iter().map(thread).collect()
    }

    /// The CPUs chosen, if there are enough.
    fn chosen(threads: &[Thread], count: usize, sharing: Sharing) -> Option<Vec<usize>> {
        let mut marks = vec![true; threads.len()];
        choose(threads, count, sharing, &mut marks)
            .then(|| (0..marks.len()).filter(|&at| marks[at]).collect())
    }

    /// The supervisor has a thread of core 0; cores 1 and 2 are free.
    fn machine() -> Vec<Thread> {
        threads(&[
            (0, ALONE),
            (0, FREE),
            (1, FREE),
            (1, FREE),
            (2, FREE),
            (2, FREE),
        ])
    }

    #[test]
    fn a_core_has_one_owner() {
        let machine = machine();
        let whole = |count| chosen(&machine, count, Sharing::WholeCores);
        assert_eq!(available(&machine, Sharing::WholeCores), 4);
        assert_eq!(whole(1), Some(vec![2]));
        assert_eq!(whole(2), Some(vec![2, 3]));
        assert_eq!(whole(3), Some(vec![2, 3, 4]));
        assert_eq!(whole(4), Some(vec![2, 3, 4, 5]));
        assert_eq!(whole(5), None);
        // Nor does one who shares get the sibling of one who does not.
        assert_eq!(available(&machine, Sharing::Shared), 4);
        assert_eq!(chosen(&machine, 5, Sharing::Shared), None);
    }

    #[test]
    fn what_is_left_of_a_core_is_for_those_who_share() {
        let machine = threads(&[(0, SHARES), (0, FREE), (1, FREE), (1, FREE)]);
        assert_eq!(chosen(&machine, 1, Sharing::WholeCores), Some(vec![2]));
        assert_eq!(chosen(&machine, 3, Sharing::WholeCores), None);
        assert_eq!(chosen(&machine, 1, Sharing::Shared), Some(vec![1]));
        assert_eq!(chosen(&machine, 2, Sharing::Shared), Some(vec![2, 3]));
        assert_eq!(chosen(&machine, 3, Sharing::Shared), Some(vec![1, 2, 3]));
    }

    #[test]
    fn one_thread_of_each_core() {
        let machine = machine();
        let single = |count| chosen(&machine, count, Sharing::SingleThread);
        assert_eq!(available(&machine, Sharing::SingleThread), 2);
        assert_eq!(single(1), Some(vec![2]));
        assert_eq!(single(2), Some(vec![2, 4]));
        assert_eq!(single(3), None);
    }

    #[test]
    fn the_last_cpu_is_of_the_smallest_core() {
        let hybrid = threads(&[(0, FREE), (0, FREE), (1, FREE), (2, FREE), (2, FREE)]);
        assert_eq!(chosen(&hybrid, 1, Sharing::WholeCores), Some(vec![2]));
        assert_eq!(chosen(&hybrid, 3, Sharing::WholeCores), Some(vec![0, 1, 2]));
    }

    #[test]
    fn cores_of_one_thread_are_as_before() {
        let machine = threads(&[(0, ALONE), (1, FREE), (2, ALONE), (3, FREE), (4, FREE)]);
        for sharing in [Sharing::SingleThread, Sharing::WholeCores, Sharing::Shared] {
            assert_eq!(available(&machine, sharing), 3);
            assert_eq!(chosen(&machine, 2, sharing), Some(vec![1, 3]));
        }
    }

    #[test]
    fn cores_stand_together_or_first_threads_first() {
        let levels = Levels::read(|leaf, part| match (leaf, part) {
            (0, _) => [0xb, 0x756e_6547, 0, 0],
            (0xb, 0) => [1, 2, 1 << 8, 0],
            (0xb, 1) => [4, 16, 2 << 8, 0],
            _ => [0; 4],
        });
        let sorted = |siblings| {
            let listed = [4, 0, 2, 1, 5, 3];
            let mut ids = listed;
            ids.sort_by_key(|id| rank(levels, &listed, *id, siblings));
            ids
        };
        assert_eq!(sorted(Siblings::First), [4, 5, 0, 1, 2, 3]);
        assert_eq!(sorted(Siblings::Last), [4, 0, 2, 5, 1, 3]);
    }

    #[derive(Clone, Debug)]
    enum Step {
        /// Somebody wants so many CPUs.
        Create(usize, bool),
        /// One of those who have some ends.
        End(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            2 => (1usize..5, any::<bool>()).prop_map(|(count, shares)| Step::Create(count, shares)),
            1 => (0usize..8).prop_map(Step::End),
        ]
    }

    proptest! {
        /// Whatever is created and ended, on cores of any size: no core has two owners unless both
        /// share, each owner gets what it asked for whenever so many are available, and with
        /// `SingleThread` no core has two CPUs in use.
        #[test]
        fn no_core_is_shared_unless_allowed(
            sizes in prop::collection::vec(1usize..4, 1..8),
            single in any::<bool>(),
            steps in prop::collection::vec(step(), 1..40),
        ) {
            let cores: Vec<u16> =
                (0..).zip(&sizes).flat_map(|(core, &size)| vec![core; size]).collect();
            let mut owners: Vec<Option<(usize, bool)>> = vec![None; cores.len()];
            owners[0] = Some((0, false));
            for (number, step) in (1..).zip(steps) {
                match step {
                    Step::Create(count, shares) => {
                        let sharing = match (single, shares) {
                            (true, _) => Sharing::SingleThread,
                            (_, true) => Sharing::Shared,
                            _ => Sharing::WholeCores,
                        };
                        let shares = sharing == Sharing::Shared;
                        let list: Vec<Thread> = cores.iter().zip(&owners).map(|(&core, owner)| Thread {
                            core,
                            state: owner.map_or(FREE, |(_, shares)| State::Held { shares }),
                        }).collect();
                        let got = chosen(&list, count, sharing);
                        prop_assert_eq!(got.is_some(), available(&list, sharing) >= count);
                        for at in got.iter().flatten() {
                            prop_assert_eq!(owners[*at], None);
                            owners[*at] = Some((number, shares));
                        }
                        prop_assert!(got.is_none_or(|got| got.len() == count));
                    }
                    Step::End(at) => {
                        if let Some(Some((owner, _))) = owners.get(at).copied() && owner != 0 {
                            owners.iter_mut().filter(|o| o.is_some_and(|o| o.0 == owner)).for_each(|o| *o = None);
                        }
                    }
                }
                for core in 0..sizes.len() as u16 {
                    let here: Vec<(usize, bool)> = (0..cores.len())
                        .filter(|&at| cores[at] == core)
                        .filter_map(|at| owners[at])
                        .collect();
                    let one = here.iter().all(|o| o.0 == here[0].0);
                    prop_assert!(one || here.iter().all(|o| o.1), "core {core}: {here:?}");
                    prop_assert!(!single || here.len() <= 1, "core {core}: {here:?}");
                }
            }
        }
    }
}
