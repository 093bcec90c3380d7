//! Address space identifiers (PCIDs): the page tables whose translations a CPU caches.
//!
//! With process-context identifiers (SDM vol. 3A, 4.10.1) a change of CR3 need not drop what is
//! cached of other address spaces. Each CPU has a few identifiers of its own and lends them to the
//! tables it ran last. A table counts the changes that take something away; a CPU notes up to which
//! change it has followed. Translations are kept at a switch only if the CPU still has the table's
//! identifier *and* has followed every change. So a CPU that does not run an address space is not
//! told of its changes: it finds out when it comes back. (The scheme is that of Linux since 4.14.)

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Fate of the translations cached under an identifier when a root is loaded with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Translations {
    /// All changes of the table were followed: they are good.
    Kept,
    /// Some may be stale.
    Dropped,
}

/// Identifiers per CPU, from 1 up; 0 is that of the kernel's own tables.
const COUNT: usize = 8;

/// The identifiers of one CPU. Touched by that CPU only, with interrupts off; the atomics just make
/// it shareable.
pub(super) struct Asids {
    slots: [Slot; COUNT],
    /// The one that is lent next.
    next: AtomicUsize,
}

struct Slot {
    /// The table that has it; 0 for none.
    table: AtomicU64,
    /// The change up to which the CPU has followed.
    seen: AtomicU64,
}

impl Asids {
    /// All free.
    pub(super) const fn new() -> Self {
        Self {
            slots: [const {
                Slot {
                    table: AtomicU64::new(0),
                    seen: AtomicU64::new(0),
                }
            }; COUNT],
            next: AtomicUsize::new(0),
        }
    }

    fn slot(&self, table: u64) -> Option<usize> {
        self.slots
            .iter()
            .position(|slot| slot.table.load(Ordering::Relaxed) == table)
    }

    /// The identifier for `table`, whose last change is `change`, and what becomes of what is
    /// cached under it.
    pub(super) fn acquire(&self, table: u64, change: u64) -> (u64, Translations) {
        let (at, cached) = match self.slot(table) {
            Some(at) if self.slots[at].seen.load(Ordering::Relaxed) == change => {
                (at, Translations::Kept)
            }
            Some(at) => (at, Translations::Dropped),
            None => {
                let at = self.next.load(Ordering::Relaxed);
                self.next.store((at + 1) % COUNT, Ordering::Relaxed);
                self.slots[at].table.store(table, Ordering::Relaxed);
                (at, Translations::Dropped)
            }
        };
        self.slots[at].seen.store(change, Ordering::Relaxed);
        (at as u64 + 1, cached)
    }

    /// The CPU, on which `table` is active, has dropped what `change` took away. Changes may be
    /// heard of out of order: one that does not follow the last one seen is not noted, and all is
    /// dropped at the next switch to the table.
    pub(super) fn note_flushed(&self, table: u64, change: u64) {
        if let Some(at) = self.slot(table) {
            let seen = &self.slots[at].seen;
            if seen.load(Ordering::Relaxed) + 1 == change {
                seen.store(change, Ordering::Relaxed);
            }
        }
    }

    /// Forgets what is cached of `table`, on which the CPU has not followed every change.
    pub(super) fn give_up(&self, table: u64) {
        if let Some(at) = self.slot(table) {
            self.slots[at].table.store(0, Ordering::Relaxed);
        }
    }

    /// Marks as stale everything cached under all identifiers but that of `table`.
    pub(super) fn invalidate_others(&self, table: u64) {
        for slot in &self.slots {
            if slot.table.load(Ordering::Relaxed) != table {
                slot.table.store(0, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Translations::{Dropped, Kept};
    use super::*;

    /// A CPU as the manual describes it: per identifier, the change as of which each table's entry
    /// was cached.
    #[derive(Default)]
    struct Cpu {
        cached: [Option<(u64, u64)>; COUNT + 1],
        active: Option<(u64, usize)>,
    }

    #[derive(Clone, Debug)]
    enum Step {
        /// A thread of the table runs on the CPU and uses its page.
        Run { cpu: usize, table: u64 },
        /// The page is taken away; the CPUs in the mask hear of it late.
        Change { table: u64 },
        /// A CPU takes a shootdown interrupt.
        Interrupt { cpu: usize },
        /// The kernel half changes.
        Kernel { cpu: usize },
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0..2usize, 1..12u64).prop_map(|(cpu, table)| Step::Run { cpu, table }),
            3 => (1..12u64).prop_map(|table| Step::Change { table }),
            3 => (0..2usize).prop_map(|cpu| Step::Interrupt { cpu }),
            1 => (0..2usize).prop_map(|cpu| Step::Kernel { cpu }),
        ]
    }

    proptest! {
        /// No CPU uses a translation from before a change that it was not running at, or has been
        /// told of.
        #[test]
        fn nothing_stale_is_used(steps in proptest::collection::vec(step(), 1..200)) {
            let asids = [Asids::new(), Asids::new()];
            let mut cpus = [Cpu::default(), Cpu::default()];
            let mut changes = [0u64; 13];
            // Shootdowns under way, newest first so that they come out of order.
            let mut told: [Vec<(u64, u64)>; 2] = Default::default();
            for step in steps {
                match step {
                    Step::Run { cpu, table } => {
                        let me = &mut cpus[cpu];
                        if me.active.is_none_or(|(active, _)| active != table) {
                            let (asid, cached) = asids[cpu].acquire(table, changes[table as usize]);
                            let asid = asid as usize;
                            if cached == Dropped {
                                me.cached[asid] = None;
                            }
                            me.active = Some((table, asid));
                            if let Some((owner, at)) = me.cached[asid] {
                                prop_assert_eq!((owner, at), (table, changes[table as usize]));
                            }
                        }
                        let (_, asid) = me.active.expect("set above");
                        me.cached[asid].get_or_insert((table, changes[table as usize]));
                    }
                    Step::Change { table } => {
                        changes[table as usize] += 1;
                        for (cpu, told) in cpus.iter().zip(&mut told) {
                            if cpu.active.is_some_and(|(active, _)| active == table) {
                                told.insert(0, (table, changes[table as usize]));
                            }
                        }
                    }
                    Step::Interrupt { cpu } => {
                        if told[cpu].is_empty() {
                            continue;
                        }
                        let (table, change) = told[cpu].remove(0);
                        let me = &mut cpus[cpu];
                        if let Some((active, asid)) = me.active
                            && active == table
                        {
                            me.cached[asid] = None;
                            asids[cpu].note_flushed(table, change);
                        }
                    }
                    Step::Kernel { cpu } => {
                        asids[cpu].invalidate_others(cpus[cpu].active.map_or(0, |(table, _)| table));
                    }
                }
            }
        }
    }

    #[test]
    fn translations_survive_a_visit_elsewhere() {
        let asids = Asids::new();
        let (first, cached) = asids.acquire(7, 3);
        assert!(cached == Dropped && first >= 1);
        let (second, _) = asids.acquire(8, 0);
        assert_ne!(first, second);
        assert_eq!(asids.acquire(7, 3), (first, Kept));
        assert_eq!(asids.acquire(7, 4), (first, Dropped));
        asids.note_flushed(7, 5);
        asids.note_flushed(8, 2);
        assert_eq!(asids.acquire(7, 5), (first, Kept));
        assert_eq!(asids.acquire(8, 2), (second, Dropped));
        asids.invalidate_others(8);
        assert_eq!(asids.acquire(7, 5).1, Dropped);
    }
}
