//! Making a plan true, all of it or nothing.
//!
//! 1. A journal is written: whatever has this transaction's stamp as the time of its request is its
//!    work.
//! 2. New instances are created and loaded, those that take another one's place under a `~` name
//!    ([`managed::side_name`]); they are started, and their programs have begun.
//! 3. What only grows is resized.
//! 4. The journal is replaced by one that says what is left to do: this is the moment in which it
//!    is decided.
//! 5. Names are exchanged, old instances stopped, what is not declared any more removed, and the
//!    journal with it.
//!
//! A failure before step 4 takes everything back. If the tool is killed, whoever comes next takes
//! back what was not decided, and finishes what was ([`recover`]).

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::time::{Duration, SystemTime};

use abi::dev::{self, Status};
use serde::{Deserialize, Serialize};

use super::file::Project;
use super::plan::{Action, Change, Plan};
use super::{Options, plan};
use crate::device::Device;
use crate::failure::{Context, Failure, Result};
use crate::instances::{self, label, nanoseconds};
use crate::loans::{self, Class, CpuRange, Loans};
use crate::restart::Policy;
use crate::state::Store;
use crate::{managed, resize, run};

/// The lock that who applies something has.
pub const ROLE: &str = "apply";
/// The journal's name.
const JOURNAL: &str = "apply.json";

/// State of a transaction.
#[derive(Debug, Serialize, Deserialize)]
struct Journal {
    /// Run of the machine.
    boot: String,
    /// Time of the request of all instances that it makes, in nanoseconds since 1970.
    stamp: u64,
    /// Instances that are resized, with what they had.
    resized: Vec<Size>,
    /// Steps that are left, once the transaction is decided.
    rest: Option<Rest>,
}

/// CPUs and memory of an instance.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Size {
    id: u32,
    cpus: u32,
    memory: u64,
}

/// Steps that are left of a transaction that is decided.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Rest {
    grace: Duration,
    made: Vec<Made>,
    /// New policies and sizes of instances that stay.
    updates: Vec<Update>,
    /// Instances that are not declared any more.
    removed: Vec<u32>,
}

/// An instance that was made.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Made {
    name: String,
    id: u32,
    /// The one whose place it takes.
    old: Option<u32>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Update {
    id: u32,
    restart: Policy,
    cpus: u32,
    cpu_range: Option<CpuRange>,
    class: Option<Class>,
    memory: u64,
}

/// Carries out the differences between a project and what there is; returns them. Its caller has
/// the lock of [`ROLE`].
///
/// # Errors
/// Why nothing was changed; or that the rest is left to the next `apply`.
pub fn apply(
    device: &dyn Device,
    store: &Store,
    project: &Project,
    options: Options,
    ensure_monitor: &dyn Fn() -> Result<()>,
) -> Result<Plan> {
    recover(device, store)?;
    // What is done depends on what there is, which nobody changes from now on. Of those that are
    // removed the names are known only afterwards.
    let mut loans = match has_classes(project) {
        true => Some(Loans::lock(store)?),
        false => None,
    };
    let first = plan(device, store, project, options.prune)?;
    let names = || first.changes.iter().map(|change| change.name.as_str());
    let _lock = store.lock(names())?;
    if let Some(loans) = &mut loans {
        loans.hold(names());
    }
    let plan = plan(device, store, project, options.prune)?;
    if plan.changes.len() != first.changes.len() {
        return Err(Failure::new(
            "instances were made or removed meanwhile: apply it again",
        ));
    }
    if plan.is_empty() {
        return Ok(plan);
    }
    let mut transaction = Transaction {
        device,
        store,
        project,
        options,
        loans,
        asked: SystemTime::now(),
        journal: Journal {
            boot: store.boot().to_owned(),
            stamp: 0,
            resized: Vec::new(),
            rest: None,
        },
    };
    transaction.journal.stamp = nanoseconds(transaction.asked);
    transaction.write_journal()?;
    let decided = transaction.stage(&plan, ensure_monitor);
    let loans = transaction.loans.as_ref();
    if let Err(failure) = decided {
        let kept = roll_back(device, store, &transaction.journal, loans)
            .and_then(|kept| store.remove_document(JOURNAL).map(|()| kept));
        return Err(match kept {
            Ok(kept) if kept.is_empty() => failure,
            Ok(kept) => Failure::new(format!("{failure}; {}", kept.join("; "))),
            Err(left) => Failure::new(format!(
                "{failure}; what was begun is there still ({left}): the next `skerry apply` takes \
                 it back"
            )),
        });
    }
    finish(device, store, &transaction.journal, loans)
        .and_then(|()| store.remove_document(JOURNAL))
        .map_err(|failure| {
            Failure::new(format!(
                "{failure}; the next `skerry apply` finishes the rest"
            ))
        })?;
    Ok(plan)
}

struct Transaction<'a> {
    device: &'a dyn Device,
    store: &'a Store,
    project: &'a Project,
    options: Options,
    /// There if an instance of the project has a class.
    loans: Option<Loans>,
    asked: SystemTime,
    journal: Journal,
}

impl Transaction<'_> {
    fn write_journal(&self) -> Result<()> {
        self.store.write_document(JOURNAL, &self.journal)
    }

    /// Does everything that can be taken back, and decides.
    fn stage(&mut self, plan: &Plan, ensure_monitor: &dyn Fn() -> Result<()>) -> Result<()> {
        let mut rest = Rest {
            grace: self.options.grace,
            ..Rest::default()
        };
        let mut made: Vec<_> = (plan.of(Action::Create))
            .chain(plan.of(Action::Replace))
            .collect();
        // What is content with what is left comes last.
        made.sort_by_key(|change| {
            let options = &self.project.instances[&change.name].options;
            (
                options.class != Some(Class::Latency),
                options.cpu_range.is_some(),
            )
        });
        for change in made {
            let made = self
                .create(change)
                .map_err(|failure| named(&change.name, &failure))?;
            rest.made.push(made);
        }
        let mut all = self.project.instances.values();
        if has_classes(self.project) || all.any(|wanted| wanted.restart != Policy::No) {
            ensure_monitor()?;
        }
        for made in &rest.made {
            let status = self.device.status(made.id);
            let status = status.context(|| format!("cannot look at {}", made.name))?;
            instances::start(self.device, &status)?;
        }
        for made in &rest.made {
            self.wait_up(made)?;
        }
        let resized: Vec<_> = plan.of(Action::Resize).collect();
        for change in resized {
            self.resize(change)?;
        }
        for action in [Action::Update, Action::Resize, Action::Start] {
            for change in plan.of(action) {
                rest.updates.extend(self.update(change)?);
            }
        }
        rest.removed = plan
            .of(Action::Remove)
            .filter_map(|change| change.id)
            .collect();
        self.journal.rest = Some(rest);
        let written = self.write_journal();
        if written.is_err() {
            self.journal.rest = None;
        }
        written
    }

    /// The record's new contents for an instance that stays.
    fn update(&self, change: &Change) -> Result<Option<Update>> {
        let wanted = &self.project.instances[&change.name];
        let Some(id) = change.id else {
            return Ok(None);
        };
        let record = self.store.read(id)?;
        let cpus = record.map(|record| super::plan::own_cpus(wanted, &record));
        Ok(Some(Update {
            id,
            restart: wanted.restart,
            cpus: cpus.unwrap_or(wanted.options.cpus),
            cpu_range: wanted.options.cpu_range,
            class: wanted.options.class,
            memory: wanted.options.memory,
        }))
    }

    /// Creates and loads an instance.
    fn create(&self, change: &Change) -> Result<Made> {
        let wanted = &self.project.instances[&change.name];
        let aside = change.id.map(managed::side_name);
        let name = aside.as_deref().unwrap_or(&change.name);
        let options = match &self.loans {
            Some(loans) => loans.for_staged(self.device, self.store, &wanted.options, name)?,
            None => loans::with_what_is_free(self.device, &wanted.options)?,
        };
        let created = instances::create_as(self.device, &options, Some(name), self.asked)?;
        let mut record = self.store.record(&options, wanted.restart);
        record.staged = true;
        record.project = Some(self.project.name.clone());
        record.previous = change.id;
        // If that fails, it goes with the rest.
        self.store.write(created.id, &record)?;
        Ok(Made {
            name: change.name.clone(),
            id: created.id,
            old: change.id,
        })
    }

    /// Waits until an instance's program has begun.
    fn wait_up(&self, made: &Made) -> Result<()> {
        let name = &made.name;
        self.device
            .wait_up(made.id, Some(self.options.limit))
            .map_err(|error| match error.kind() {
                ErrorKind::TimedOut => Failure::new(format!(
                    "the program of {name} has not begun after {} s: `--time` waits longer",
                    self.options.limit.as_secs()
                )),
                _ => Failure::new(format!("cannot wait for {name}: {error}")),
            })?;
        let status = self.device.status(made.id);
        let status = status.context(|| format!("cannot look at {name}"))?;
        if status.start_to_user_ns != 0 {
            return Ok(());
        }
        let said = run::exit_status(self.device, &status, &mut io::stderr());
        Err(match said {
            Err(failure) => named(
                name,
                &Failure {
                    status: 1,
                    ..failure
                },
            ),
            Ok(_) => Failure::new(format!("{name} has ended before its program began")),
        })
    }

    /// Gives an instance more of what it has.
    fn resize(&mut self, change: &Change) -> Result<()> {
        let wanted = &self.project.instances[&change.name];
        let id = change.id.unwrap_or_default();
        let record = self.store.read(id)?;
        let own = record.map_or(wanted.options.cpus, |record| {
            super::plan::own_cpus(wanted, &record).saturating_sub(record.lent_cpus())
        });
        let status = self.device.status(id);
        let status = status.context(|| format!("cannot look at {}", change.name))?;
        self.journal.resized.push(Size {
            id,
            cpus: status.cpus,
            memory: status.mem,
        });
        self.write_journal()?;
        if let Some(loans) = &self.loans {
            let (class, more) = (wanted.options.class, own.saturating_sub(status.cpus));
            loans.for_more(self.device, self.store, class, more, &change.name)?;
        }
        let options = resize::Options {
            // Somebody may have given it more than was declared already.
            cpus: Some(own.max(status.cpus)),
            memory: Some(wanted.options.memory.max(status.mem)),
            limit: Some(self.options.limit),
            ..resize::Options::default()
        };
        resize::resize(self.device, &status, options).map(drop)
    }
}

/// Whether an instance of the project may lend CPUs or borrow some.
fn has_classes(project: &Project) -> bool {
    let mut all = project.instances.values();
    all.any(|wanted| wanted.options.class.is_some())
}

/// A failure that begins with an instance's name.
fn named(name: &str, failure: &Failure) -> Failure {
    Failure::new(format!("{name}: {failure}"))
}

/// Takes back, or finishes, what somebody left who was killed. Its caller has the lock of [`ROLE`].
///
/// # Errors
/// Why something is left still.
pub fn recover(device: &dyn Device, store: &Store) -> Result<()> {
    let Some(journal) = store.read_document::<Journal>(JOURNAL)? else {
        return Ok(());
    };
    if journal.boot == store.boot() {
        let mut loans = Loans::lock(store)?;
        let made = instances::all(device)?;
        let made = made
            .iter()
            .filter(|status| status.requested_ns == journal.stamp);
        let decided = journal.rest.iter().flat_map(|rest| &rest.made);
        let names = (made.map(label)).chain(decided.map(|made| made.name.as_str()));
        let _lock = store.lock(names.clone())?;
        loans.hold(names);
        match journal.rest {
            Some(_) => finish(device, store, &journal, Some(&loans))?,
            None => drop(roll_back(device, store, &journal, Some(&loans))?),
        }
    }
    store.remove_document(JOURNAL)
}

/// Whether somebody was killed at work, and nobody has put that right.
///
/// # Errors
/// If that cannot be told.
pub fn is_unfinished(store: &Store) -> Result<bool> {
    Ok(store.try_lock_role(ROLE)?.is_some() && store.read_document::<Journal>(JOURNAL)?.is_some())
}

/// Ends and forgets all that a transaction has made. Returns what cannot be taken back, in words.
fn roll_back(
    device: &dyn Device,
    store: &Store,
    journal: &Journal,
    loans: Option<&Loans>,
) -> Result<Vec<String>> {
    for status in instances::all(device)? {
        if status.requested_ns == journal.stamp {
            instances::halt(device, &status)?;
            instances::remove(device, &status)?;
            store.remove(status.id);
        }
    }
    let mut kept = Vec::new();
    for before in &journal.resized {
        let Ok(now) = device.status(before.id) else {
            continue;
        };
        if now.state != dev::STATE_RUNNING || (now.cpus, now.mem) == (before.cpus, before.memory) {
            continue;
        }
        let options = resize::Options {
            cpus: Some(before.cpus),
            memory: Some(before.memory),
            limit: Some(Duration::from_secs(10)),
            ..resize::Options::default()
        };
        if let Err(failure) = resize::resize(device, &now, options) {
            kept.push(format!(
                "{} keeps what it was given: {failure}",
                label(&now)
            ));
        }
    }
    settle(device, store, loans);
    Ok(kept)
}

/// Gives CPUs back that were borrowed for what is not there any more. What fails is left to the
/// monitor.
fn settle(device: &dyn Device, store: &Store, loans: Option<&Loans>) {
    if let Some(loans) = loans {
        let _ = loans.settle(device, store, &mut io::sink());
    }
}

/// Does what is left of a transaction that is decided, as far as it was not done.
fn finish(
    device: &dyn Device,
    store: &Store,
    journal: &Journal,
    loans: Option<&Loans>,
) -> Result<()> {
    let Some(rest) = &journal.rest else {
        return Ok(());
    };
    let all = instances::all(device)?;
    let there: BTreeMap<u32, Status> = all.into_iter().map(|status| (status.id, status)).collect();
    for made in &rest.made {
        let Some(new) = there.get(&made.id) else {
            continue;
        };
        let name = &made.name;
        if let Some(old) = made.old.and_then(|old| there.get(&old)) {
            if managed::is_aside(new) && label(old) == name {
                device
                    .rename(new.id, name, dev::RENAME_EXCHANGE)
                    .context(|| format!("cannot name the instance {name}"))?;
            }
            instances::stop(device, old, rest.grace)?;
            if loans.is_some() {
                loans::succeed(device, store, &managed::side_name(old.id), name)?;
            }
            if old.state == dev::STATE_CREATED {
                // It has no logs, and would keep what it has.
                instances::remove(device, old)?;
            }
            // Of the two before it the last one is kept, for its logs.
            let older = store.read(old.id)?.and_then(|record| record.previous);
            if let Some(older) = older.and_then(|older| there.get(&older)) {
                instances::remove(device, older)?;
                store.remove(older.id);
            }
            if old.state == dev::STATE_CREATED {
                store.remove(old.id);
            }
        }
        store.update(new.id, |record| record.staged = false)?;
        // It was made while the one before it had its CPUs.
        loans::fill_range(device, store, new.id)?;
    }
    for update in &rest.updates {
        store.update(update.id, |record| {
            record.restart = update.restart;
            record.options.cpus = update.cpus;
            record.options.cpu_range = update.cpu_range;
            record.options.class = update.class;
            record.options.memory = update.memory;
        })?;
        let created = there
            .get(&update.id)
            .filter(|one| one.state == dev::STATE_CREATED);
        if let Some(status) = created {
            instances::start(device, status)?;
        }
    }
    for id in &rest.removed {
        let Some(status) = there.get(id) else {
            continue;
        };
        store.update(*id, |record| record.stopped = true)?;
        instances::stop(device, status, rest.grace)?;
        let previous = store.read(*id)?.and_then(|record| record.previous);
        for gone in [Some(*id), previous].into_iter().flatten() {
            if let Some(gone) = there.get(&gone) {
                instances::remove(device, gone)?;
                store.remove(gone.id);
            }
        }
    }
    settle(device, store, loans);
    Ok(())
}
