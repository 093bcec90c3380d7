//! Processors as the manual describes them (SDM vol. 3A, 4.10), for the unit tests of what stands
//! on this module: what each has cached, and that none uses what the tables no longer allow.
//!
//! CPU 0 is every thread's that says nothing else, and caches nothing. A thread that
//! [`cpu::run_as`] one of the others has it, and whatever runs there; the interrupts it sends are
//! taken at once.

use super::*;

/// Model of the processor, in the place of its instructions.
pub(in super::super) mod cpu {
    use std::cell::Cell;
    use std::collections::BTreeMap;
    use std::string::String;
    use std::sync::Mutex;
    use std::{format, thread_local};

    use x86_spec::paging::{Entry, Flags};

    use crate::cpu::CpuId;
    use crate::mem::phys::{self, PhysAddr};
    use crate::paging::Translations;
    use crate::paging::table::{ENTRIES, TableView, index, span};

    /// CPUs that cache: 1 and up.
    pub(in super::super::super) const CPUS: u32 = 5;

    /// Cached entries, by identifier and by an address divided by the span of an entry of the
    /// level.
    type Cached = BTreeMap<(u64, usize), Entry>;

    /// Bit of the identifiers under which programs on roots of their own run.
    const PROGRAM: u64 = 1 << 11;

    /// One CPU.
    struct Cpu {
        root: PhysAddr,
        asid: u64,
        /// Root and identifier on which the program runs, and whether what is cached under it is
        /// dropped when it goes on.
        user_root: PhysAddr,
        user_asid: u64,
        drops: bool,
        /// Translations by entries of levels 1 and 2, and the entries of level 2 that lead to page
        /// tables.
        small: Cached,
        large: Cached,
        tables: Cached,
    }

    static CPU: [Mutex<Cpu>; CPUS as usize] = [const {
        Mutex::new(Cpu {
            root: PhysAddr(0),
            asid: 0,
            user_root: PhysAddr(0),
            user_asid: 0,
            drops: false,
            small: BTreeMap::new(),
            large: BTreeMap::new(),
            tables: BTreeMap::new(),
        })
    }; CPUS as usize];

    /// An instruction that is missing, to see that the model notices.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(in super::super::super) enum Missing {
        Nothing,
        FlushPage,
        FlushUser,
        LoadThatDrops,
        DropAtReturn,
        GiveUp,
    }

    thread_local! {
        static ME: Cell<u32> = const { Cell::new(0) };
        static ISOLATES: Cell<bool> = const { Cell::new(false) };
        static MISSING: Cell<Missing> = const { Cell::new(Missing::Nothing) };
    }

    fn missing(what: Missing) -> bool {
        MISSING.get() == what
    }

    /// Runs `work` as a CPU; with `lack` not all of its instructions do what they should.
    pub(in super::super::super) fn run_as<R>(
        cpu: u32,
        lack: Missing,
        work: impl FnOnce() -> R,
    ) -> R {
        let before = (ME.replace(cpu), MISSING.replace(lack));
        let result = work();
        ME.set(before.0);
        MISSING.set(before.1);
        result
    }

    /// Runs `work` on processors on which programs run on roots of their own, or not.
    pub(in super::super::super) fn isolating<R>(on: bool, work: impl FnOnce() -> R) -> R {
        let before = ISOLATES.replace(on);
        let result = work();
        ISOLATES.set(before);
        result
    }

    /// Runs `work` on the CPU this is, unless that is CPU 0.
    fn with(work: impl FnOnce(&mut Cpu)) {
        if ME.get() != 0 {
            work(&mut CPU[ME.get() as usize].lock().expect("no check failed"));
        }
    }

    pub(in super::super) fn current() -> CpuId {
        CpuId(ME.get())
    }
    pub(in super::super) fn without_irqs<R>(f: impl FnOnce() -> R) -> R {
        f()
    }
    pub(in super::super) fn has_asids() -> bool {
        true
    }
    pub(in super::super::super) fn isolates() -> bool {
        ISOLATES.get()
    }
    pub(in super::super::super) fn no_execute() -> Flags {
        Flags::empty()
    }
    pub(in super::super) fn set_roots(
        _kernel: PhysAddr,
        user: PhysAddr,
        asid: u64,
        cached: Translations,
    ) {
        let drops = cached == Translations::Dropped;
        with(|cpu| (cpu.user_root, cpu.user_asid, cpu.drops) = (user, asid | PROGRAM, drops));
    }
    pub(in super::super) fn drop_at_return() {
        if !missing(Missing::DropAtReturn) {
            with(|cpu| cpu.drops = true);
        }
    }
    pub(in super::super) fn drops_at_return() -> bool {
        let mut drops = false;
        with(|cpu| drops = cpu.drops && !missing(Missing::GiveUp));
        drops
    }
    pub(in super::super) fn interrupt(cpu: CpuId) {
        // The interrupt comes late, as on a busy machine: the CPU runs on with what it remembers.
        let target = CPU[cpu.0 as usize].lock().expect("no check failed");
        target.check_alone();
        drop(target);
        run_as(cpu.0, MISSING.get(), super::super::interrupt);
    }
    pub(in super::super) unsafe fn load(root: PhysAddr, asid: u64, cached: Translations) {
        with(|cpu| {
            (cpu.root, cpu.asid) = (root, asid);
            if cached == Translations::Dropped && !missing(Missing::LoadThatDrops) {
                cpu.drop_all(asid);
            }
        });
    }
    pub(in super::super) fn flush_user() {
        if !missing(Missing::FlushUser) {
            with(|cpu| cpu.drop_all(cpu.asid));
        }
    }
    pub(in super::super) fn flush_page(va: usize) {
        if missing(Missing::FlushPage) {
            return;
        }
        with(|cpu| {
            let asid = cpu.asid;
            cpu.small.remove(&(asid, va / span(1)));
            cpu.large.remove(&(asid, va / span(2)));
            // Of what leads to translations, all under the identifier.
            cpu.tables.retain(|(of, _), _| *of != asid);
        });
    }
    pub(in super::super) fn flush_everything() {
        with(|cpu| {
            [&mut cpu.small, &mut cpu.large, &mut cpu.tables]
                .into_iter()
                .for_each(BTreeMap::clear);
        });
    }

    /// A program on this CPU uses an address, or the kernel for it: what the processor may keep of
    /// that is kept.
    pub(in super::super::super) fn touch(va: usize, write: bool) {
        with(|cpu| {
            let (root, asid) = (cpu.root, cpu.asid);
            cpu.touch(root, asid, va, write);
            if isolates() && asid != 0 {
                let (root, asid) = (cpu.user_root, cpu.user_asid);
                if core::mem::take(&mut cpu.drops) {
                    cpu.drop_all(asid);
                }
                cpu.touch(root, asid, va, write);
            }
        });
    }

    /// Checks that no CPU would use a translation that the tables it runs on do not allow, and that
    /// none runs on a root of `lost` that is a root no more.
    pub(in super::super::super) fn check(lost: &[PhysAddr]) -> Result<(), String> {
        for (number, cpu) in CPU.iter().enumerate().skip(1) {
            let cpu = cpu.lock().expect("no check failed");
            if lost.contains(&cpu.root) || isolates() && lost.contains(&cpu.user_root) {
                return Err(format!("CPU {number} runs on tables that are gone"));
            }
            cpu.check().map_err(|what| format!("CPU {number} {what}"))?;
        }
        Ok(())
    }

    /// An entry of a table that is in memory.
    fn read(table: PhysAddr, va: usize, level: usize) -> Entry {
        let frame = phys::frame_at(table).expect("a table in the instance's memory");
        // SAFETY: the tests' tables are not freed while they are looked at: the thread that frees
        // them is the one that looks.
        unsafe { TableView::Direct.table(frame) }.get(index(va, level))
    }

    impl Cpu {
        fn drop_all(&mut self, asid: u64) {
            [&mut self.small, &mut self.large, &mut self.tables]
                .into_iter()
                .for_each(|c| c.retain(|(of, _), _| *of != asid));
        }

        /// Roots and identifiers under which something may be used.
        fn sides(&self) -> impl Iterator<Item = (PhysAddr, u64)> {
            let program = isolates() && !self.drops;
            [(self.root, self.asid)]
                .into_iter()
                .chain(program.then_some((self.user_root, self.user_asid)))
                .filter(|_| self.asid != 0)
        }

        /// The entry of level 2, from memory.
        fn directory_entry(root: PhysAddr, va: usize) -> Entry {
            let upper = read(root, va, 4).table().map(|table| read(table, va, 3));
            upper
                .and_then(Entry::table)
                .map_or(Entry::NONE, |table| read(table, va, 2))
        }

        fn touch(&mut self, root: PhysAddr, asid: u64, va: usize, write: bool) {
            // On the kernel's own tables no program runs.
            if asid == 0 {
                return;
            }
            let allows =
                |entry: &Entry| entry.present() && (!write || entry.flags().contains(Flags::WRITE));
            let [small, large] = [1, 2].map(|level| (asid, va / span(level)));
            if self.small.get(&small).is_some_and(allows)
                || self.large.get(&large).is_some_and(allows)
            {
                return;
            }
            // Rights that do not suffice are looked up again.
            self.small.remove(&small);
            self.large.remove(&large);
            let upper = self
                .tables
                .get(&large)
                .copied()
                .unwrap_or_else(|| Self::directory_entry(root, va));
            if let Some(table) = upper.table() {
                self.tables.insert(large, upper);
                let entry = read(table, va, 1);
                if allows(&entry) {
                    self.small.insert(small, entry);
                }
            } else if allows(&upper) {
                self.large.insert(large, upper);
            }
        }

        /// Checks that no other page is mapped already where a page is cached: another CPU could
        /// write to it what this one does not see.
        fn check_alone(&self) {
            self.sides()
                .for_each(|(root, asid)| self.check_alone_on(root, asid));
        }

        fn check_alone_on(&self, root: PhysAddr, asid: u64) {
            for ((_, at), cached) in self.small.iter().filter(|((of, _), _)| *of == asid) {
                let va = at * span(1);
                let now = Self::directory_entry(root, va).table();
                let now = now.map_or(Entry::NONE, |table| read(table, va, 1));
                assert!(
                    !now.present() || now.address() == cached.address(),
                    "two CPUs use two pages at {va:#x}: {cached:x?} and {now:x?}"
                );
            }
        }

        /// Checks that the tables in memory allow all that is cached for the program that runs.
        fn check(&self) -> Result<(), String> {
            self.sides()
                .try_for_each(|(root, asid)| self.check_on(root, asid))
        }

        fn check_on(&self, root: PhysAddr, asid: u64) -> Result<(), String> {
            let mine = |(key, _): &(&(u64, usize), &Entry)| key.0 == asid;
            for ((_, at), cached) in self.tables.iter().filter(mine) {
                let now = Self::directory_entry(root, at * span(2));
                if now.table() != cached.table() {
                    return Err(format!(
                        "remembers a page table for {:#x}: {cached:x?}, now {now:x?}",
                        at * span(2)
                    ));
                }
            }
            for ((_, at), cached) in self.large.iter().filter(mine) {
                let now = Self::directory_entry(root, at * span(2));
                if !now.flags().contains(Flags::LARGE) || !covers(now, *cached, 0) {
                    return Err(format!(
                        "remembers a large page at {:#x}: {cached:x?}, now {now:x?}",
                        at * span(2)
                    ));
                }
            }
            for ((_, at), cached) in self.small.iter().filter(mine) {
                let va = at * span(1);
                let upper = Self::directory_entry(root, va);
                let (now, offset) = match upper.table() {
                    Some(table) => (read(table, va, 1), 0),
                    None => (upper, (at % ENTRIES * span(1)) as u64),
                };
                if !covers(now, *cached, offset) {
                    return Err(format!(
                        "remembers a page at {va:#x}: {cached:x?}, now {now:x?}"
                    ));
                }
            }
            Ok(())
        }
    }

    /// Whether an entry leads, so many bytes behind its target's beginning, to where a cached one
    /// leads, and allows as much.
    fn covers(now: Entry, cached: Entry, offset: u64) -> bool {
        let same = now.present() && now.address().0 + offset == cached.address().0;
        let (may, did) = (now.flags(), cached.flags());
        same && (may.contains(Flags::WRITE) || !did.contains(Flags::WRITE))
            && (did.contains(Flags::NO_EXECUTE) || !may.contains(Flags::NO_EXECUTE))
    }
}

#[cfg(test)]
mod masks {
    use super::*;

    #[test]
    fn hold_every_cpu() {
        let mask = CpuMask::new();
        for cpu in [0, 63, 64, 255] {
            mask.insert(CpuId(cpu));
        }
        assert!(mask.remove(CpuId(64)));
        assert!(!mask.remove(CpuId(64)));
        let mut seen = Vec::new();
        mask.for_each(|cpu| seen.push(cpu.0));
        assert_eq!(seen, [0, 63, 255]);
    }
}

/// Programs on several CPUs at random, with the real page tables.
#[cfg(test)]
mod model {
    use std::string::String;
    use std::vec::Vec;

    use proptest::prelude::*;
    use proptest::test_runner::{Config, TestError, TestRunner};

    use super::cpu::{self, CPUS, Missing};
    use crate::mem::phys::{self, PhysAddr};
    use crate::mem::{LargePage, Page, host};
    use crate::paging::table::span;
    use crate::paging::{PageTable, Perm};

    const START: usize = 0x5555_4000_0000;
    const PAGE: usize = abi::layout::PAGE_SIZE;
    const TABLES: usize = 3;
    /// Pages and ends of ranges, in pages from `START`: near the borders of the two spans, and of
    /// what is dropped singly.
    const PLACES: [usize; 12] = [0, 1, 2, 31, 33, 511, 512, 513, 600, 1022, 1023, 1024];

    #[derive(Clone, Debug)]
    enum Step {
        Run {
            table: usize,
        },
        Rest,
        Touch {
            page: usize,
            write: bool,
        },
        Map {
            table: usize,
            page: usize,
            write: bool,
        },
        MapLarge {
            table: usize,
            second: bool,
        },
        Unmap {
            table: usize,
            page: usize,
        },
        UnmapRange {
            table: usize,
            from: usize,
            to: usize,
        },
        Protect {
            table: usize,
            from: usize,
            to: usize,
            write: bool,
            exec: bool,
        },
        Replace {
            table: usize,
            page: usize,
        },
        Allow {
            table: usize,
            page: usize,
        },
        Fork {
            from: usize,
            to: usize,
        },
        New {
            table: usize,
        },
    }

    fn step() -> impl Strategy<Value = (u32, Step)> {
        let (table, page, write) = (
            0..TABLES,
            prop::sample::select(&PLACES[..11]),
            any::<bool>(),
        );
        let range = (0..PLACES.len(), 0..PLACES.len())
            .prop_map(|(a, b)| (PLACES[a.min(b)], PLACES[a.max(b)]));
        let step = prop_oneof![
            6 => table.clone().prop_map(|table| Step::Run { table }),
            1 => Just(Step::Rest),
            12 => (page.clone(), write).prop_map(|(page, write)| Step::Touch { page, write }),
            6 => (table.clone(), page.clone(), write).prop_map(|(table, page, write)| Step::Map { table, page, write }),
            3 => (table.clone(), any::<bool>()).prop_map(|(table, second)| Step::MapLarge { table, second }),
            2 => (table.clone(), page.clone()).prop_map(|(table, page)| Step::Unmap { table, page }),
            3 => (table.clone(), range.clone()).prop_map(|(table, (from, to))| Step::UnmapRange { table, from, to }),
            3 => (table.clone(), range, write, any::<bool>())
                .prop_map(|(table, (from, to), write, exec)| Step::Protect { table, from, to, write, exec }),
            2 => (table.clone(), page.clone()).prop_map(|(table, page)| Step::Replace { table, page }),
            2 => (table.clone(), page).prop_map(|(table, page)| Step::Allow { table, page }),
            1 => (table.clone(), table.clone()).prop_map(|(from, to)| Step::Fork { from, to }),
            1 => table.prop_map(|table| Step::New { table }),
        ];
        (1..CPUS, step)
    }

    /// Does a step on the CPU that this thread is. Where memory is short, because other tests run,
    /// it is left out.
    fn take(tables: &mut [PageTable], lost: &mut Vec<PhysAddr>, step: &Step) -> Result<(), String> {
        let at = |page: usize| START + page * PAGE;
        match *step {
            Step::Run { table } => tables[table].activate(),
            Step::Rest => super::deactivate(None),
            Step::Touch { page, write } => cpu::touch(at(page), write),
            Step::Map { table, page, write } => {
                if let Some(new) = Page::zeroed() {
                    let _ = tables[table].map(at(page), new, Perm { write, exec: false });
                }
            }
            Step::MapLarge { table, second } => {
                let va = START + if second { span(2) } else { 0 };
                // Other tests want some, too.
                let any = tables.iter().any(|table| {
                    [START, START + span(2)]
                        .iter()
                        .any(|va| is_large(table, *va))
                });
                if !any
                    && tables[table].is_vacant(va)
                    && let Some(new) = LargePage::zeroed()
                {
                    let _ = tables[table].map_large(
                        va,
                        new,
                        Perm {
                            write: true,
                            exec: false,
                        },
                    );
                }
            }
            Step::Unmap { table, page } => drop(tables[table].unmap(at(page))),
            Step::UnmapRange { table, from, to } => {
                // When somebody gets a page, all have forgotten it.
                let mut seen = Ok(());
                tables[table].unmap_range(at(from)..at(to), &mut |_, _| {
                    if seen.is_ok() {
                        seen = cpu::check(&[]);
                    }
                });
                seen?;
            }
            Step::Protect {
                table,
                from,
                to,
                write,
                exec,
            } => tables[table].protect(at(from)..at(to), Perm { write, exec }),
            Step::Replace { table, page } => {
                if let (Some((old, ..)), Some(new)) = (tables[table].get(at(page)), Page::zeroed())
                {
                    tables[table].replace(
                        at(page),
                        &old,
                        new,
                        Perm {
                            write: true,
                            exec: false,
                        },
                    );
                }
            }
            Step::Allow { table, page } => {
                if let Some((old, ..)) = tables[table].get(at(page)) {
                    let all = Perm {
                        write: true,
                        exec: true,
                    };
                    let _ = tables[table].allow_large(at(page), &old, all)
                        || tables[table].allow(at(page), &old, all);
                }
            }
            Step::Fork { from, to } if from != to => {
                let _ = tables[from].share_cow(&tables[to], at(0)..at(1024), |_| {});
            }
            Step::Fork { .. } => {}
            Step::New { table } => {
                if let Some(new) = PageTable::new() {
                    lost.extend(roots(&tables[table]));
                    lost.retain(|lost| !roots(&new).any(|root| root == *lost));
                    drop(core::mem::replace(&mut tables[table], new));
                }
            }
        }
        Ok(())
    }

    fn is_large(table: &PageTable, va: usize) -> bool {
        table.get(va).is_some_and(|(.., flags)| flags.large)
    }

    fn roots(table: &PageTable) -> impl Iterator<Item = PhysAddr> {
        let active = &table.active;
        [active.root].into_iter().chain(active.user_root)
    }

    /// Runs steps; the first after which something stale could be used is an error.
    fn run(steps: &[(u32, Step)], lack: Missing) -> Result<(), String> {
        host::set_up();
        let made: Option<Vec<_>> = (0..TABLES).map(|_| PageTable::new()).collect();
        let Some(mut tables) = made else {
            return Ok(());
        };
        let mut lost = Vec::new();
        let mut result = Ok(());
        for (cpu, step) in steps {
            result = cpu::run_as(*cpu, lack, || take(&mut tables, &mut lost, step))
                .and_then(|()| cpu::check(&lost));
            if result.is_err() {
                break;
            }
        }
        // As the next run finds them: on the kernel's tables, and nothing cached.
        for cpu in 1..CPUS {
            cpu::run_as(cpu, Missing::Nothing, || {
                super::deactivate(None);
                super::cpu::flush_everything();
            });
        }
        result
    }

    /// The CPUs of the model are one test's at a time.
    static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());

    fn many(cases: u32, isolating: bool, lack: Missing) -> Result<(), String> {
        let _turn = TURN
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let config = Config {
            cases,
            failure_persistence: None,
            ..Config::default()
        };
        let mut runner = TestRunner::new(config);
        let result = runner.run(&prop::collection::vec(step(), 1..120), |steps| {
            cpu::isolating(isolating, || run(&steps, lack)).map_err(TestCaseError::fail)
        });
        result.map_err(|error| match error {
            TestError::Fail(why, steps) => std::format!("{why}\nafter {steps:#?}"),
            TestError::Abort(why) => std::format!("{why}"),
        })
    }

    #[test]
    fn nobody_uses_what_the_tables_no_longer_allow() {
        for isolating in [false, true] {
            many(400, isolating, Missing::Nothing).unwrap_or_else(|why| panic!("{why}"));
        }
    }

    #[test]
    fn what_is_missing_is_noticed() {
        for (isolating, lack) in [
            (false, Missing::FlushPage),
            (false, Missing::FlushUser),
            (false, Missing::LoadThatDrops),
            (true, Missing::FlushPage),
            (true, Missing::DropAtReturn),
            (true, Missing::GiveUp),
        ] {
            assert!(
                many(2000, isolating, lack).is_err(),
                "nobody noticed: {lack:?}"
            );
        }
    }
}
