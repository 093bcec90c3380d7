//! CPUs that instances lend by class (`docs/classes.md`).
//!
//! The record of a lender says how many CPUs are its own and how many of these are lent, by the
//! borrowers' names. What it has is to be the difference, and [`settle`] brings it there.

use std::fmt;
use std::io::Write;
use std::str::FromStr;
use std::time::Duration;

use abi::dev::{self, Status};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::device::Device;
use crate::failure::{Context, Result};
use crate::instances::{self, CreateOptions, label};
use crate::resize;
use crate::state::{Lock, Record, Store};

/// Lock under which loans are made and taken back. Who needs the lock of a name too takes this one
/// first.
const ROLE: &str = "loans";
/// Time limit for a CPU that is to leave or to come.
const PATIENCE: Duration = Duration::from_secs(10);
/// Borrower that has no name yet: none that a user can give.
const UNNAMED: &str = "~new";

/// Rank of an instance when CPUs are short.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// Lends CPUs above the least of its range
    Batch,
    /// Borrows CPUs of instances of class batch when too few are free
    Latency,
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Batch => "batch",
            Self::Latency => "latency",
        })
    }
}

/// Numbers of CPUs that an instance is content with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CpuRange {
    /// Least number of CPUs.
    pub least: u32,
    /// Most CPUs, which are asked for.
    pub most: u32,
}

impl FromStr for CpuRange {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let (least, most) = text.split_once("..").unwrap_or((text, text));
        match (least.parse(), most.parse()) {
            // None at all is refused as in any other place.
            (Ok(0), Ok(most)) if most > 0 => Err("an instance needs a CPU".into()),
            (Ok(least), Ok(most)) if least <= most => Ok(Self { least, most }),
            _ => Err(format!(
                "{text:?} is no number of CPUs, nor a range of numbers such as 1..4"
            )),
        }
    }
}

impl TryFrom<String> for CpuRange {
    type Error = String;

    fn try_from(text: String) -> std::result::Result<Self, String> {
        text.parse()
    }
}

impl From<CpuRange> for String {
    fn from(range: CpuRange) -> Self {
        range.to_string()
    }
}

impl fmt::Display for CpuRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.least == self.most {
            write!(f, "{}", self.least)
        } else {
            write!(f, "{}..{}", self.least, self.most)
        }
    }
}

impl Record {
    /// CPUs of its own that others have.
    #[must_use]
    pub fn lent_cpus(&self) -> u32 {
        self.lent.values().sum()
    }

    /// CPUs that it is to have: its own, without those that are lent.
    #[must_use]
    pub fn cpus_to_have(&self) -> u32 {
        self.options.cpus.saturating_sub(self.lent_cpus()).max(1)
    }

    /// CPUs that it could lend now, to somebody of this class.
    fn spare_cpus(&self, status: &Status, class: Class) -> u32 {
        let consents = self.options.class.is_some_and(|own| own < class);
        match self.options.cpu_range {
            Some(range) if consents => {
                let has = status.cpus.min(self.cpus_to_have());
                has.saturating_sub(range.least)
            }
            _ => 0,
        }
    }
}

/// CPUs that were borrowed for an instance, and the lock under which that was done.
#[derive(Debug)]
pub struct Borrowed {
    count: u32,
    name: String,
    _lock: Lock,
}

/// Takes CPUs from lenders until `wanted` are free, or nobody has more to lend to this class.
/// Returns how many are free.
fn gather(
    device: &dyn Device,
    store: &Store,
    class: Class,
    wanted: u32,
    borrowed: &mut Borrowed,
) -> Result<u32> {
    loop {
        let info = device.info().context(|| "cannot look at the machine")?;
        if info.cpus_free >= wanted || !lend_one(device, store, class, &borrowed.name)? {
            return Ok(info.cpus_free);
        }
        borrowed.count += 1;
    }
}

/// Takes one CPU from who has the most to spare; false if nobody gives one.
fn lend_one(device: &dyn Device, store: &Store, class: Class, to: &str) -> Result<bool> {
    let mut lenders = Vec::new();
    for status in instances::all(device)? {
        if let Some(record) = store.read(status.id)? {
            lenders.push((record.spare_cpus(&status, class), status));
        }
    }
    lenders.retain(|(spare, status)| *spare > 0 && can_change(status));
    lenders.sort_by_key(|(spare, _)| std::cmp::Reverse(*spare));
    for (_, seen) in lenders {
        let Some((_lock, status)) = try_locked(device, store, &seen)? else {
            continue;
        };
        let record = store.read(status.id)?;
        if record.is_none_or(|record| record.spare_cpus(&status, class) == 0)
            || !can_change(&status)
        {
            continue;
        }
        // Written down first: whoever is killed here leaves a loan to somebody who is not there.
        store.update(status.id, |record| {
            *record.lent.entry(to.to_owned()).or_default() += 1;
        })?;
        if set(device, &status, status.cpus - 1).is_ok() {
            return Ok(true);
        }
        store.update(status.id, |record| {
            take_back(record, to, 1);
        })?;
    }
    Ok(false)
}

/// Takes back up to `count` CPUs of a loan. Returns how many, if any.
fn take_back(record: &mut Record, from: &str, count: u32) -> Option<u32> {
    let lent = record.lent.get_mut(from)?;
    let taken = count.min(*lent);
    *lent -= taken;
    record.lent.retain(|_, lent| *lent > 0);
    Some(taken)
}

fn can_change(status: &Status) -> bool {
    status.state == dev::STATE_RUNNING && status.paused == dev::PAUSED_NO
}

/// An instance as it is now, with the lock of its name; none if somebody else has that, or the name
/// is another one's by now.
fn try_locked(device: &dyn Device, store: &Store, seen: &Status) -> Result<Option<(Lock, Status)>> {
    let Some(lock) = store.try_lock(label(seen))? else {
        return Ok(None);
    };
    let now = device.status(seen.id).ok();
    let same = now.filter(|now| label(now) == label(seen));
    Ok(same.map(|now| (lock, now)))
}

/// Has an instance have so many CPUs.
fn set(device: &dyn Device, status: &Status, cpus: u32) -> Result<()> {
    let options = resize::Options {
        cpus: Some(cpus),
        limit: Some(PATIENCE),
        ..resize::Options::default()
    };
    resize::resize(device, status, options).map(drop)
}

/// Borrows what an instance of class latency that is about to be created lacks. Returns its options
/// with the number of CPUs that it gets, which may be too many still.
///
/// # Errors
/// If nothing can be seen or written.
pub fn for_creation(
    device: &dyn Device,
    store: &Store,
    options: &CreateOptions,
) -> Result<(CreateOptions, Option<Borrowed>)> {
    let mut options = options.clone();
    let mut borrowed = None;
    if options.class != Some(Class::Latency) && options.cpu_range.is_none() {
        return Ok((options, borrowed));
    }
    let mut free = device
        .info()
        .context(|| "cannot look at the machine")?
        .cpus_free;
    if let Some(class @ Class::Latency) = options.class {
        let loans = borrowed.insert(Borrowed {
            count: 0,
            name: options.name.clone().unwrap_or_else(|| UNNAMED.into()),
            _lock: store.lock_role(ROLE)?,
        });
        free = gather(device, store, class, options.cpus, loans)?;
    }
    if let Some(range) = options.cpu_range {
        options.cpus = free.clamp(range.least, range.most);
    }
    Ok((options, borrowed))
}

/// Borrows what an instance lacks that is to have so many CPUs, if its class borrows.
///
/// # Errors
/// If nothing can be seen or written.
pub fn for_resize(
    device: &dyn Device,
    store: &Store,
    name: &str,
    options: resize::Options,
) -> Result<Option<Borrowed>> {
    let status = instances::find(device, name)?;
    let class = store
        .read(status.id)?
        .and_then(|record| record.options.class);
    let (Some(class @ Class::Latency), Some(wanted)) = (class, options.cpus) else {
        return Ok(None);
    };
    if options.dry_run || status.state != dev::STATE_RUNNING {
        return Ok(None);
    }
    let mut borrowed = Borrowed {
        count: 0,
        name: label(&status).to_owned(),
        _lock: store.lock_role(ROLE)?,
    };
    let missing = wanted.saturating_sub(status.cpus);
    gather(device, store, class, missing, &mut borrowed)?;
    Ok(Some(borrowed))
}

impl Borrowed {
    /// Notes the name of the instance for which that was done.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn name(&mut self, device: &dyn Device, store: &Store, name: &str) -> Result<()> {
        rename(device, store, &self.name, name)?;
        name.clone_into(&mut self.name);
        Ok(())
    }

    /// Gives all of it back: it was for nothing.
    pub fn give_back(&self, device: &dyn Device, store: &Store) {
        self.give_back_some(device, store, self.count);
    }

    /// Gives back what an instance that has so many CPUs fewer than before has borrowed of them.
    pub fn give_back_some(&self, device: &dyn Device, store: &Store, mut count: u32) {
        // What fails here is done by the monitor.
        for status in instances::all(device).unwrap_or_default() {
            if count == 0 {
                break;
            }
            let mut taken = 0;
            let _ = store.update(status.id, |record| {
                taken = take_back(record, &self.name, count).unwrap_or(0);
            });
            count -= taken;
        }
        let _ = settle_all(device, store, &mut std::io::sink());
    }
}

/// The lock for [`rename`], to be taken before those of names.
///
/// # Errors
/// If there can be none.
pub fn lock(store: &Store) -> Result<Lock> {
    store.lock_role(ROLE)
}

/// Notes another name of a borrower, under [`lock`].
///
/// # Errors
/// If it cannot be read or written.
pub fn rename(device: &dyn Device, store: &Store, from: &str, to: &str) -> Result<()> {
    if from == to {
        return Ok(());
    }
    for status in instances::all(device)? {
        store.update(status.id, |record| {
            if let Some(lent) = record.lent.remove(from) {
                *record.lent.entry(to.to_owned()).or_default() += lent;
            }
        })?;
    }
    Ok(())
}

/// Whether something of loans is left to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Open {
    /// There is no loan.
    Nothing,
    /// There are loans, until something happens.
    Loans,
    /// Somebody else is at work on them.
    Busy,
}

/// Takes back the loans of borrowers that are not there any more, and brings every lender to what
/// it is to have. What cannot be done is told.
///
/// # Errors
/// If nothing can be seen or written.
pub fn settle(device: &dyn Device, store: &Store, out: &mut dyn Write) -> Result<Open> {
    match store.try_lock_role(ROLE)? {
        Some(_lock) => settle_all(device, store, out),
        None => Ok(Open::Busy),
    }
}

fn settle_all(device: &dyn Device, store: &Store, out: &mut dyn Write) -> Result<Open> {
    let mut open = Open::Nothing;
    let all = instances::all(device)?;
    for seen in &all {
        let Some(record) = store.read(seen.id)? else {
            continue;
        };
        if record.options.class != Some(Class::Batch) || record.options.cpu_range.is_none() {
            continue;
        }
        let mut ended = Vec::new();
        for name in record.lent.keys() {
            match borrower(store, &all, name)? {
                Open::Nothing => ended.push(name.clone()),
                found => open = open.max(found),
            }
        }
        let is_as_it_should = seen.cpus == record.cpus_to_have() || !can_change(seen);
        if ended.is_empty() && is_as_it_should {
            continue;
        }
        let Some((_lock, status)) = try_locked(device, store, seen)? else {
            open = Open::Busy;
            continue;
        };
        let mut wanted = status.cpus;
        store.update(status.id, |record| {
            record.lent.retain(|name, _| !ended.contains(name));
            wanted = record.cpus_to_have();
        })?;
        if can_change(&status)
            && let Err(failure) = set(device, &status, wanted)
        {
            // Tried again when something has happened.
            open = open.max(Open::Loans);
            let _ = writeln!(
                out,
                "{}: cannot have its CPUs back: {failure}",
                label(&status)
            );
        }
    }
    Ok(open)
}

/// Whether a borrower of this name has its CPUs, or will.
fn borrower(store: &Store, all: &[Status], name: &str) -> Result<Open> {
    let Some(status) = all.iter().find(|status| label(status) == name) else {
        return Ok(Open::Nothing);
    };
    if status.state <= dev::STATE_RUNNING {
        return Ok(Open::Loans);
    }
    // Whoever restarts it has its lock.
    if store.try_lock(name)?.is_none() {
        return Ok(Open::Busy);
    }
    let record = store.read(status.id)?;
    let comes_back = record
        .is_some_and(|record| !record.stopped && record.restart.wants(status, record.restarts));
    Ok(if comes_back {
        Open::Loans
    } else {
        Open::Nothing
    })
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::time::SystemTime;

    use super::*;
    use crate::managed;
    use crate::mock::{Accident, Here, request};
    use crate::restart::Policy;

    /// A machine with so many CPUs for instances.
    fn with_cpus(cpus: u32) -> Here {
        Here::new(cpus + 1)
    }

    impl Here {
        fn start(&self, name: &str, cpus: &str, class: Option<Class>) -> Result<()> {
            let range: CpuRange = cpus.parse().unwrap();
            let options = CreateOptions {
                cpus: range.most,
                cpu_range: (range.least < range.most).then_some(range),
                class,
                ..request(name, &["sleep", "9"])
            };
            let now = SystemTime::now();
            managed::create(&self.mock, &self.store, &options, Policy::No, now)?;
            managed::start(&self.mock, &self.store, name)
        }

        fn batch(&self, name: &str, cpus: &str) {
            self.start(name, cpus, Some(Class::Batch)).unwrap();
        }

        fn latency(&self, name: &str, cpus: &str) -> Result<()> {
            self.start(name, cpus, Some(Class::Latency))
        }

        fn resize(&self, name: &str, cpus: u32) -> Result<()> {
            let options = resize::Options {
                cpus: Some(cpus),
                ..resize::Options::default()
            };
            managed::resize(&self.mock, &self.store, name, options).map(drop)
        }

        fn end(&self, name: &str) {
            managed::remove(&self.mock, &self.store, name, true).unwrap();
        }

        fn settle(&self) -> Open {
            settle(&self.mock, &self.store, &mut std::io::sink()).unwrap()
        }

        /// CPUs of an instance, and what it has lent.
        fn has(&self, name: &str) -> (u32, Vec<(String, u32)>) {
            let status = instances::find(&self.mock, name).unwrap();
            let record = self.store.read(status.id).unwrap().unwrap();
            (status.cpus, record.lent.into_iter().collect())
        }

        fn lent(&self, name: &str) -> Vec<(String, u32)> {
            self.has(name).1
        }
    }

    fn to(name: &str, count: u32) -> Vec<(String, u32)> {
        vec![(name.to_owned(), count)]
    }

    #[test]
    fn ranges_are_numbers_in_order() {
        let read = |text: &str| text.parse::<CpuRange>().map(|range| range.to_string());
        assert_eq!(read("3").as_deref(), Ok("3"));
        assert_eq!(read("1..4").as_deref(), Ok("1..4"));
        assert_eq!(read("0").as_deref(), Ok("0"));
        for wrong in ["0..2", "3..1", "", "..", "1..", "-1", "1...2", "1..4..5"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_range_is_what_is_free() {
        let here = with_cpus(3);
        here.start("a", "1..2", None).unwrap();
        here.start("b", "1..4", None).unwrap();
        assert_eq!((here.has("a").0, here.has("b").0), (2, 1));
        let failure = here.start("c", "1..4", None).unwrap_err();
        assert!(failure.message.contains("no CPU is free"), "{failure}");
    }

    #[test]
    fn who_has_most_to_spare_lends_first_and_has_it_back_at_the_end() {
        let here = with_cpus(7);
        here.batch("big", "1..4");
        here.batch("small", "1..2");
        here.start("other", "1", None).unwrap();
        here.latency("web", "2").unwrap();
        assert_eq!(here.has("big"), (2, to("web", 2)));
        here.latency("shop", "2").unwrap();
        assert_eq!(here.lent("small"), to("shop", 1));
        assert_eq!(here.has("big").0, 1);
        assert_eq!(here.settle(), Open::Loans);
        assert_eq!((here.has("web").0, here.has("shop").0), (2, 2));
        here.end("shop");
        here.end("web");
        assert_eq!(here.settle(), Open::Nothing);
        assert_eq!(
            (here.has("big"), here.has("small")),
            ((4, vec![]), (2, vec![]))
        );
    }

    #[test]
    fn nobody_lends_who_did_not_consent_and_nothing_is_taken_in_vain() {
        let here = with_cpus(6);
        here.batch("fixed", "2");
        here.start("none", "1..2", None).unwrap();
        here.batch("job", "1..2");
        for (class, cpus) in [(Class::Latency, "2"), (Class::Batch, "1")] {
            let failure = here.start("late", cpus, Some(class)).unwrap_err();
            assert!(failure.message.contains("stop an instance"), "{failure}");
            assert_eq!(here.has("job"), (2, vec![]));
        }
        // It is content with what there is.
        here.latency("late", "1..3").unwrap();
        assert_eq!(
            (here.has("late").0, here.has("job")),
            (1, (1, to("late", 1)))
        );
        assert_eq!((here.has("fixed").0, here.has("none").0), (2, 2));
    }

    #[test]
    fn loans_follow_what_is_resized_by_hand() {
        let here = with_cpus(6);
        here.batch("job", "1..5");
        here.latency("web", "1").unwrap();
        here.resize("web", 3).unwrap();
        assert_eq!(here.has("job"), (3, to("web", 2)));
        here.resize("web", 2).unwrap();
        assert_eq!(here.has("job"), (4, to("web", 1)));
        assert!(here.resize("web", 9).is_err());
        assert_eq!(here.has("job"), (4, to("web", 1)));
        // What the lender is given by hand is its own, too.
        here.resize("job", 2).unwrap();
        here.end("web");
        assert_eq!(here.settle(), Open::Nothing);
        assert_eq!(here.has("job"), (3, vec![]));
    }

    #[test]
    fn another_name_keeps_the_loan_and_a_restarted_lender_too() {
        let here = with_cpus(4);
        here.batch("job", "1..4");
        here.latency("web", "2").unwrap();
        managed::rename(&here.mock, &here.store, "web", "shop").unwrap();
        assert_eq!(here.lent("job"), to("shop", 2));
        let restart = |name| {
            managed::restart(
                &here.mock,
                &here.store,
                name,
                Duration::ZERO,
                SystemTime::now(),
            )
        };
        restart("job").unwrap();
        assert_eq!(here.has("job"), (2, to("shop", 2)));
        restart("shop").unwrap();
        assert_eq!(here.settle(), Open::Loans);
        assert_eq!((here.has("job").0, here.has("shop").0), (2, 2));
        instances::halt(&here.mock, &instances::find(&here.mock, "shop").unwrap()).unwrap();
        assert_eq!(here.settle(), Open::Nothing);
        assert_eq!(here.has("job"), (4, vec![]));
    }

    #[test]
    fn a_cpu_that_somebody_else_got_comes_back_when_it_is_free() {
        let here = with_cpus(3);
        here.batch("job", "1..3");
        here.latency("web", "1").unwrap();
        here.end("web");
        here.start("other", "1", None).unwrap();
        assert_eq!(here.settle(), Open::Loans);
        assert_eq!(here.has("job"), (2, vec![]));
        here.end("other");
        assert_eq!(here.settle(), Open::Nothing);
        assert_eq!(here.has("job"), (3, vec![]));
    }

    #[test]
    fn a_lender_that_has_ended_has_nothing_lent_when_it_comes_back() {
        let here = with_cpus(4);
        here.batch("job", "1..4");
        here.latency("web", "2").unwrap();
        let job = instances::find(&here.mock, "job").unwrap();
        instances::halt(&here.mock, &job).unwrap();
        here.end("web");
        assert_eq!(here.settle(), Open::Nothing);
        assert_eq!(here.lent("job"), vec![]);
        let now = SystemTime::now();
        managed::restart(&here.mock, &here.store, "job", Duration::ZERO, now).unwrap();
        assert_eq!(here.has("job").0, 4);
    }

    /// Creates and removes a borrower with each change going wrong in turn: afterwards the lender
    /// has what is its own.
    fn interrupted(accident: Accident) {
        for step in 0.. {
            let here = with_cpus(4);
            here.batch("job", "1..4");
            here.mock.fuse.set(step, accident);
            let run = || {
                let _ = here.latency("web", "2");
                let _ = managed::remove(&here.mock, &here.store, "web", true);
            };
            let _ = catch_unwind(AssertUnwindSafe(run));
            let hit = here.mock.fuse.clear();
            let _ = managed::remove(&here.mock, &here.store, "web", true);
            // One that has no name in the files yet is left to its user.
            assert_eq!(here.settle(), Open::Nothing, "step {step}");
            assert_eq!(here.has("job"), (4, vec![]), "step {step}");
            if !hit {
                assert!(step > 6, "there are more steps than that");
                break;
            }
        }
    }

    #[test]
    fn what_fails_at_any_step_gives_back() {
        interrupted(Accident::Failure);
    }

    #[test]
    fn a_tool_killed_at_any_step_gives_back() {
        interrupted(Accident::Death);
    }
}
