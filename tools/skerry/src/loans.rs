//! CPUs that instances lend by class (`docs/classes.md`).
//!
//! The record of a lender says how many CPUs are its own and how many of these are lent, by the
//! borrowers' names. What it has is to be the difference, and [`settle`] brings it there.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::Write;
use std::str::FromStr;
use std::time::Duration;

use abi::dev::{self, Status};
use clap::ValueEnum;
use schemars::JsonSchema;
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
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    ValueEnum,
    Serialize,
    Deserialize,
    JsonSchema,
)]
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

/// Right to make loans and to take them back, which one tool has at a time, and the names whose
/// locks its owner has. It is taken before those.
#[derive(Debug)]
pub struct Loans {
    _lock: Lock,
    held: BTreeSet<String>,
}

impl Loans {
    /// Waits for it.
    ///
    /// # Errors
    /// If there can be no lock.
    pub fn lock(store: &Store) -> Result<Self> {
        Ok(Self::of(store.lock_role(ROLE)?))
    }

    fn of(lock: Lock) -> Self {
        Self {
            _lock: lock,
            held: BTreeSet::new(),
        }
    }

    /// Notes names whose locks its owner has from now on until the end.
    pub fn hold<'a>(&mut self, names: impl IntoIterator<Item = &'a str>) {
        self.held.extend(names.into_iter().map(str::to_owned));
    }

    /// The lock of a name, if nobody else has it.
    fn try_lock(&self, store: &Store, name: &str) -> Result<Option<NameLock>> {
        if self.held.contains(name) {
            return Ok(Some(NameLock::Held));
        }
        Ok(store.try_lock(name)?.map(NameLock::Taken))
    }

    /// Takes CPUs from lenders until `wanted` are free, or nobody has more to lend to this class;
    /// adds to `count` how many. Returns how many are free.
    fn gather(
        &self,
        device: &dyn Device,
        store: &Store,
        (class, wanted): (Class, u32),
        to: &str,
        count: &mut u32,
    ) -> Result<u32> {
        loop {
            let free = free_cpus(device)?;
            if free >= wanted || !self.lend_one(device, store, class, to)? {
                return Ok(free);
            }
            *count += 1;
        }
    }

    /// Borrows what an instance lacks that is about to be created by the name `to`, if its class
    /// borrows. Returns its options with the number of CPUs that it gets, which may be too many
    /// still. What was borrowed is given back by [`Loans::settle`] if there is no such instance
    /// then.
    ///
    /// # Errors
    /// If nothing can be seen or written.
    pub fn for_staged(
        &self,
        device: &dyn Device,
        store: &Store,
        options: &CreateOptions,
        to: &str,
    ) -> Result<CreateOptions> {
        let wanted = match options.class {
            Some(class @ Class::Latency) => Some((class, options.cpus)),
            _ => None,
        };
        if let Some(wanted) = wanted {
            self.gather(device, store, wanted, to, &mut 0)?;
        }
        with_what_is_free(device, options)
    }

    /// Borrows what an instance lacks that is to have so many more CPUs, if its class borrows.
    ///
    /// # Errors
    /// If nothing can be seen or written.
    pub fn for_more(
        &self,
        device: &dyn Device,
        store: &Store,
        class: Option<Class>,
        more: u32,
        to: &str,
    ) -> Result<()> {
        if let Some(class @ Class::Latency) = class {
            self.gather(device, store, (class, more), to, &mut 0)?;
        }
        Ok(())
    }

    /// Takes one CPU from who has the most to spare; false if nobody gives one.
    fn lend_one(&self, device: &dyn Device, store: &Store, class: Class, to: &str) -> Result<bool> {
        let mut lenders = Vec::new();
        for status in instances::all(device)? {
            if let Some(record) = store.read(status.id)? {
                lenders.push((record.spare_cpus(&status, class), status));
            }
        }
        lenders.retain(|(spare, status)| *spare > 0 && can_change(status));
        lenders.sort_by_key(|(spare, _)| std::cmp::Reverse(*spare));
        for (_, seen) in lenders {
            let Some((_lock, status)) = self.try_locked(device, store, &seen)? else {
                continue;
            };
            let record = store.read(status.id)?;
            if record.is_none_or(|record| record.spare_cpus(&status, class) == 0)
                || !can_change(&status)
            {
                continue;
            }
            // Written down first: whoever is killed here leaves a loan to somebody who is not
            // there.
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

    /// An instance as it is now, with the lock of its name; none if somebody else has that, or the
    /// name is another one's by now.
    fn try_locked(
        &self,
        device: &dyn Device,
        store: &Store,
        seen: &Status,
    ) -> Result<Option<(NameLock, Status)>> {
        let Some(lock) = self.try_lock(store, label(seen))? else {
            return Ok(None);
        };
        let now = device.status(seen.id).ok();
        let same = now.filter(|now| label(now) == label(seen));
        Ok(same.map(|now| (lock, now)))
    }

    /// Takes back the loans of borrowers that are not there any more, ends those for which nobody
    /// has to go without, and brings every lender to what it is to have. What cannot be done is
    /// told.
    ///
    /// # Errors
    /// If nothing can be seen or written.
    pub fn settle(&self, device: &dyn Device, store: &Store, out: &mut dyn Write) -> Result<Open> {
        let mut open = Open::Nothing;
        for (seen, record) in self.to_settle(device, store, &mut open)? {
            let Some((_lock, status)) = self.try_locked(device, store, &seen)? else {
                open = Open::Busy;
                continue;
            };
            let mut wanted = status.cpus;
            store.update(status.id, |now| {
                now.lent = record.lent;
                wanted = now.cpus_to_have();
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

    /// Lenders that have not what they are to have, or lend what has ended, with the records that
    /// they are to have. Tells in `open` what is left of loans.
    fn to_settle(
        &self,
        device: &dyn Device,
        store: &Store,
        open: &mut Open,
    ) -> Result<Vec<(Status, Record)>> {
        let all = instances::all(device)?;
        let mut free = free_cpus(device)?;
        let mut borrowers = BTreeMap::new();
        let mut lenders = Vec::new();
        for seen in &all {
            let Some(before) = store.read(seen.id)? else {
                continue;
            };
            // What has ended for a moment only is to find its CPUs free.
            if seen.state > dev::STATE_RUNNING && self.coming_back(store, seen)? != Open::Nothing {
                free = free.saturating_sub(before.options.cpus);
            }
            if before.options.class != Some(Class::Batch) || before.options.cpu_range.is_none() {
                continue;
            }
            let mut record = before.clone();
            for (name, lent) in &mut record.lent {
                let (_, most) = match borrowers.entry(name.clone()) {
                    Entry::Occupied(seen) => seen.into_mut(),
                    Entry::Vacant(new) => new.insert(self.borrower(store, &all, name)?),
                };
                // More than it has it cannot have of others: another one had its name before.
                *lent = (*lent).min(*most);
                *most -= *lent;
            }
            if can_change(seen) {
                let due = record.cpus_to_have().saturating_sub(seen.cpus);
                free = free.saturating_sub(due);
            }
            lenders.push((seen, before, record));
        }
        let mut unsettled = Vec::new();
        for (seen, before, mut record) in lenders {
            for lent in record.lent.values_mut().filter(|_| can_change(seen)) {
                // It is no loan if nobody has to go without.
                let as_good = free.min(*lent);
                (free, *lent) = (free - as_good, *lent - as_good);
            }
            record.lent.retain(|_, lent| *lent > 0);
            let found = record.lent.keys().map(|name| borrowers[name].0);
            *open = found.fold(*open, Open::max);
            let has = seen.cpus == record.cpus_to_have() || !can_change(seen);
            if record.lent != before.lent || !has {
                unsettled.push((*seen, record));
            }
        }
        Ok(unsettled)
    }

    /// Whether a borrower of this name has its CPUs, or will; and how many it can have borrowed.
    fn borrower(&self, store: &Store, all: &[Status], name: &str) -> Result<(Open, u32)> {
        let Some(status) = all.iter().find(|status| label(status) == name) else {
            return Ok((Open::Nothing, 0));
        };
        if status.state <= dev::STATE_RUNNING {
            return Ok((Open::Loans, status.cpus));
        }
        Ok(match self.coming_back(store, status)? {
            Open::Nothing => (Open::Nothing, 0),
            open => (open, u32::MAX),
        })
    }

    /// Whether an instance that has ended will run again: `Busy` if somebody is at work on it.
    fn coming_back(&self, store: &Store, status: &Status) -> Result<Open> {
        // Whoever restarts it has its lock.
        if self.try_lock(store, label(status))?.is_none() {
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
}

/// The lock of a name.
#[derive(Debug)]
enum NameLock {
    /// The owner of [`Loans`] has had it.
    Held,
    /// Taken for the moment.
    Taken(#[expect(dead_code, reason = "held, not read")] Lock),
}

/// CPUs that were borrowed for an instance.
#[derive(Debug)]
pub struct Borrowed {
    count: u32,
    name: String,
    loans: Loans,
}

fn free_cpus(device: &dyn Device) -> Result<u32> {
    let info = device.info().context(|| "cannot look at the machine")?;
    Ok(info.cpus_free)
}

/// The options, with as many CPUs of their range as are free.
///
/// # Errors
/// If the machine cannot be looked at.
pub fn with_what_is_free(device: &dyn Device, options: &CreateOptions) -> Result<CreateOptions> {
    let mut options = options.clone();
    if let Some(range) = options.cpu_range {
        options.cpus = free_cpus(device)?.clamp(range.least, range.most);
    }
    Ok(options)
}

/// Gives a running instance what is free by now of the range of CPUs with which it is content. It
/// is no failure if it does not get that.
///
/// # Errors
/// If nothing can be seen or written.
pub fn fill_range(device: &dyn Device, store: &Store, id: u32) -> Result<()> {
    let (Some(record), Ok(status)) = (store.read(id)?, device.status(id)) else {
        return Ok(());
    };
    let own = record.options.cpus;
    let most = record.options.cpu_range.map_or(own, |range| range.most);
    let more = most.saturating_sub(own).min(free_cpus(device)?);
    if more > 0 && can_change(&status) && set(device, &status, status.cpus + more).is_ok() {
        store.update(id, |record| record.options.cpus = own + more)?;
    }
    Ok(())
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
    let mut borrowed = None;
    if let Some(class @ Class::Latency) = options.class {
        let loans = Loans::lock(store)?;
        let name = options.name.clone().unwrap_or_else(|| UNNAMED.into());
        let mut count = 0;
        loans.gather(device, store, (class, options.cpus), &name, &mut count)?;
        borrowed = Some(Borrowed { count, name, loans });
    }
    Ok((with_what_is_free(device, options)?, borrowed))
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
    let (loans, name, mut count) = (Loans::lock(store)?, label(&status).to_owned(), 0);
    let missing = wanted.saturating_sub(status.cpus);
    loans.gather(device, store, (class, missing), &name, &mut count)?;
    Ok(Some(Borrowed { count, name, loans }))
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
        let _ = self.loans.settle(device, store, &mut std::io::sink());
    }
}

/// Notes another name of a borrower; its caller has [`Loans`].
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

/// Notes that an instance with the name `aside` has taken the place and the name of another one:
/// what that one had borrowed ends with it. Its caller has [`Loans`].
///
/// # Errors
/// If it cannot be read or written.
pub fn succeed(device: &dyn Device, store: &Store, aside: &str, name: &str) -> Result<()> {
    for status in instances::all(device)? {
        store.update(status.id, |record| {
            if let Some(lent) = record.lent.remove(aside) {
                record.lent.insert(name.to_owned(), lent);
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

/// Carries out [`Loans::settle`], unless somebody else has the right to loans.
///
/// # Errors
/// If nothing can be seen or written.
pub fn settle(device: &dyn Device, store: &Store, out: &mut dyn Write) -> Result<Open> {
    match store.try_lock_role(ROLE)? {
        Some(lock) => Loans::of(lock).settle(device, store, out),
        None => Ok(Open::Busy),
    }
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
    fn a_borrower_between_two_runs_finds_its_cpus() {
        let here = with_cpus(4);
        here.batch("job", "1..4");
        here.latency("web", "2").unwrap();
        let web = instances::find(&here.mock, "web").unwrap();
        let always = |record: &mut Record| record.restart = Policy::Always;
        here.store.update(web.id, always).unwrap();
        instances::halt(&here.mock, &web).unwrap();
        assert_eq!(here.settle(), Open::Loans);
        assert_eq!(here.has("job"), (2, to("web", 2)));
        // Whoever starts it again has its lock.
        let _lock = here.store.lock(["web"]).unwrap();
        let never = |record: &mut Record| record.restart = Policy::No;
        here.store.update(web.id, never).unwrap();
        assert_eq!(here.settle(), Open::Busy);
        assert_eq!(here.has("job"), (2, to("web", 2)));
    }

    #[test]
    fn a_loan_for_which_nobody_goes_without_is_over() {
        let here = with_cpus(5);
        here.batch("job", "1..4");
        here.start("other", "1", None).unwrap();
        here.latency("web", "2").unwrap();
        assert_eq!(here.has("job"), (2, to("web", 2)));
        here.end("other");
        assert_eq!(here.settle(), Open::Loans);
        assert_eq!(here.has("job"), (3, to("web", 1)));
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
