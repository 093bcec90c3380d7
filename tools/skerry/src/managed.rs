//! Instances with what is remembered of them: created, started, stopped, restarted, renamed,
//! forgotten.
//!
//! What is done to an instance of a name is done under the lock of that name ([`Store::lock`]). An
//! instance that takes another one's place is created under a name with a `~`, which no user can
//! give; the two exchange their names when it is complete. So the name always stands for an
//! instance that is whole, wherever a tool is killed, and a `~` name for one that is not needed:
//! not yet, or not any more.

use std::io::ErrorKind;
use std::time::{Duration, SystemTime};

use abi::dev::{self, Status};

use crate::device::Device;
use crate::failure::{Context, Failure, Result};
use crate::instances::{self, CreateOptions, has_ended, label};
use crate::loans::{self, Borrowed, Loans};
use crate::restart::{Backoff, Policy};
use crate::state::{Lock, Record, Store};
use crate::{names, resize};

/// Reason for a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The instance's policy: it is counted, and the next one waits longer.
    Policy,
    /// Somebody asked for it: counts and delays begin anew.
    Hand,
}

/// Name under which the instance is created that is to take the place of instance `id`, and which
/// that one has afterwards.
#[must_use]
pub fn side_name(id: u32) -> String {
    format!("~{id}")
}

/// Whether an instance is none that its user works with: it was to take another one's place, or its
/// place was taken.
#[must_use]
pub fn is_aside(status: &Status) -> bool {
    label(status).starts_with('~')
}

/// Creates and loads an instance, and remembers what it was asked for; on failure nothing is left
/// of it.
///
/// # Errors
/// What is short or wrong, and what would help.
pub fn create(
    device: &dyn Device,
    store: &Store,
    options: &CreateOptions,
    restart: Policy,
    asked: SystemTime,
) -> Result<Status> {
    // Files of instances that are gone are few, and gone for good with the next one that is made.
    store.sweep(|| device.list().context(|| "cannot list the instances"))?;
    let (options, mut borrowed) = loans::for_creation(device, store, options)?;
    let made = make(device, store, &options, restart, borrowed.as_mut(), asked);
    if let (Err(_), Some(borrowed)) = (&made, &borrowed) {
        borrowed.give_back(device, store);
    }
    made
}

fn make(
    device: &dyn Device,
    store: &Store,
    options: &CreateOptions,
    restart: Policy,
    borrowed: Option<&mut Borrowed>,
    asked: SystemTime,
) -> Result<Status> {
    let created = instances::create(device, options, asked)?;
    let name = label(&created);
    let mut record = store.record(options, restart);
    record.options.name = Some(name.to_owned());
    let written = store
        .write(created.id, &record)
        .and_then(|()| borrowed.map_or(Ok(()), |loans| loans.name(device, store, name)));
    if let Err(failure) = written {
        // What was begun must not stay.
        let _ = device.control(dev::DESTROY, created.id, 0);
        store.remove(created.id);
        return Err(failure);
    }
    Ok(created)
}

/// The instance of a name or number, and the lock of its name.
///
/// # Errors
/// If there is none.
pub fn find_locked(device: &dyn Device, store: &Store, name: &str) -> Result<(Lock, Status)> {
    let mut found = instances::find(device, name)?;
    loop {
        let own = label(&found).to_owned();
        let lock = store.lock([own.as_str()])?;
        // Another one may have taken its place while the lock was waited for, or it has another
        // name.
        found = instances::find(device, name)?;
        if label(&found) == own {
            return Ok((lock, found));
        }
    }
}

/// Changes what a running instance has, and remembers that.
///
/// # Errors
/// Those of the change.
pub fn resize(
    device: &dyn Device,
    store: &Store,
    name: &str,
    options: resize::Options,
) -> Result<resize::Change> {
    let borrowed = loans::for_resize(device, store, name, options)?;
    let (_lock, status) = find_locked(device, store, name)?;
    let changed = resize::resize(device, &status, options);
    if let Some(borrowed) = borrowed {
        match (&changed, options.cpus) {
            (Err(_), _) => borrowed.give_back(device, store),
            (Ok(_), Some(cpus)) if cpus < status.cpus => {
                borrowed.give_back_some(device, store, status.cpus - cpus);
            }
            _ => {}
        }
    }
    let change = changed?;
    if !options.dry_run {
        store.update(status.id, |record| {
            if let Some(cpus) = options.cpus {
                record.options.cpus = cpus + record.lent_cpus();
            }
            record.options.memory = options.memory.unwrap_or(record.options.memory);
        })?;
    }
    Ok(change)
}

/// Starts an instance that was created.
///
/// # Errors
/// If it was started before, or its memory is too small.
pub fn start(device: &dyn Device, store: &Store, name: &str) -> Result<()> {
    let (_lock, status) = find_locked(device, store, name)?;
    if status.state == dev::STATE_CREATED {
        store.update(status.id, |record| record.stopped = false)?;
    }
    instances::start(device, &status)
}

/// Has all CPUs of a running instance stand still, and waits until they do: without the lock, so
/// that one whose CPUs never do can be ended meanwhile.
///
/// # Errors
/// Why it is not paused.
pub fn pause(device: &dyn Device, store: &Store, name: &str) -> Result<()> {
    instances::wait_pausable(device, &instances::find(device, name)?)?;
    let (lock, status) = find_locked(device, store, name)?;
    instances::pause(device, &status)?;
    drop(lock);
    instances::wait_paused(device, &status)
}

/// Notes that somebody has stopped an instance, so that no policy starts it again, and returns it.
///
/// # Errors
/// If there is none.
pub fn mark_stopped(device: &dyn Device, store: &Store, name: &str) -> Result<Status> {
    let (_lock, status) = find_locked(device, store, name)?;
    store.update(status.id, |record| record.stopped = true)?;
    Ok(status)
}

/// Stops an instance and starts it again, with the options it was created with. Returns the
/// instance that runs then: a new one, with the old one's name.
///
/// # Errors
/// If it has not ended, or there is no room for it; it has ended then.
pub fn restart(
    device: &dyn Device,
    store: &Store,
    name: &str,
    grace: Duration,
    asked: SystemTime,
) -> Result<Status> {
    let (_lock, status) = find_locked(device, store, name)?;
    let own = label(&status).to_owned();
    if is_aside(&status) {
        return Err(Failure::new(format!(
            "another instance has taken the place of {own}: `skerry ls` shows its name"
        )));
    }
    let record = store.read(status.id)?.ok_or_else(|| {
        Failure::new(format!(
            "nothing is known of how {own} was created: create it anew"
        ))
    })?;
    if status.state == dev::STATE_CREATED {
        store.update(status.id, |record| record.stopped = false)?;
        instances::start(device, &status)?;
        return device
            .status(status.id)
            .context(|| format!("cannot look at {own}"));
    }
    instances::stop(device, &status, grace)?;
    let ended = device
        .status(status.id)
        .context(|| format!("cannot look at {own}"))?;
    replace(device, store, &ended, &record, Cause::Hand, asked)
}

/// Has a new instance take the place and the name of one that has ended. Its caller has the lock of
/// the name.
///
/// # Errors
/// What is short, and what would help; the old one has its place then.
pub fn replace(
    device: &dyn Device,
    store: &Store,
    old: &Status,
    record: &Record,
    cause: Cause,
    asked: SystemTime,
) -> Result<Status> {
    let name = label(old).to_owned();
    let aside = side_name(old.id);
    remove_aside(device, store, &aside)?;
    let mut options = record.options.clone();
    options.name = Some(name.clone());
    let to_have = CreateOptions {
        cpus: record.cpus_to_have(),
        ..options.clone()
    };
    let new = instances::create_as(device, &to_have, Some(&aside), asked)?;
    let undo = |failure: Failure| {
        let _ = device.control(dev::DESTROY, new.id, 0);
        store.remove(new.id);
        failure
    };
    let successor = Record {
        restarts: match cause {
            Cause::Policy => record.restarts + 1,
            Cause::Hand => 0,
        },
        backoff: match cause {
            Cause::Policy => record.backoff.after_restart(old),
            Cause::Hand => Backoff::default(),
        },
        stopped: false,
        starting: true,
        staged: false,
        previous: Some(old.id),
        error: None,
        rootfs: store.record(&options, record.restart).rootfs,
        options,
        ..record.clone()
    };
    store.write(new.id, &successor).map_err(undo)?;
    device
        .rename(new.id, &name, dev::RENAME_EXCHANGE)
        .context(|| format!("cannot name the instance {name}"))
        .map_err(undo)?;
    if let Err(failure) = instances::start(device, &new) {
        let _ = device.rename(old.id, &name, dev::RENAME_EXCHANGE);
        return Err(undo(failure));
    }
    // One is kept, for its logs.
    if let Some(older) = record.previous {
        forget(device, store, older);
    }
    device
        .status(new.id)
        .context(|| format!("cannot look at {name}"))
}

/// Removes the instance of a `~` name that somebody left who was killed.
fn remove_aside(device: &dyn Device, store: &Store, aside: &str) -> Result<()> {
    let all = instances::all(device)?;
    let Some(left) = all.iter().find(|status| label(status) == aside) else {
        return Ok(());
    };
    instances::halt(device, left)?;
    instances::remove(device, left)?;
    store.remove(left.id);
    Ok(())
}

/// Forgets an instance that does not run, if it is there still.
fn forget(device: &dyn Device, store: &Store, id: u32) {
    match device.control(dev::DESTROY, id, 0) {
        Err(error) if error.kind() != ErrorKind::NotFound => {}
        _ => store.remove(id),
    }
}

/// Forgets an instance, and the one whose place it took.
///
/// # Errors
/// If it runs and `force` is not given.
pub fn remove(device: &dyn Device, store: &Store, name: &str, force: bool) -> Result<()> {
    let (_lock, status) = find_locked(device, store, name)?;
    if force {
        store.update(status.id, |record| record.stopped = true)?;
        instances::halt(device, &status)?;
    }
    let previous = store.read(status.id)?.and_then(|record| record.previous);
    instances::remove(device, &status)?;
    store.remove(status.id);
    if let Some(previous) = previous {
        forget(device, store, previous);
    }
    Ok(())
}

/// Forgets an instance that has ended, unless its policy will start it again.
///
/// # Errors
/// If it cannot be.
pub fn remove_ended(device: &dyn Device, store: &Store, name: &str) -> Result<()> {
    let (_lock, status) = find_locked(device, store, name)?;
    let record = store.read(status.id)?;
    let awaited = record.is_some_and(|record| {
        !record.stopped && !is_aside(&status) && record.restart.wants(&status, record.restarts)
    });
    if awaited {
        return Ok(());
    }
    instances::remove(device, &status)?;
    store.remove(status.id);
    Ok(())
}

/// Whether an instance is kept only for its logs: another one has taken its place.
#[must_use]
pub fn is_previous(status: &Status) -> bool {
    is_aside(status) && has_ended(status)
}

/// The instance whose place another one has taken.
///
/// # Errors
/// If none is kept.
pub fn previous(device: &dyn Device, store: &Store, status: &Status) -> Result<Status> {
    let previous = store.read(status.id)?.and_then(|record| record.previous);
    previous
        .and_then(|previous| device.status(previous).ok())
        .ok_or_else(|| {
            Failure::new(format!(
                "nothing is kept of the time before {} was started last",
                label(status)
            ))
        })
}

/// Gives an instance another name. Its host name stays.
///
/// # Errors
/// If the name is taken, or is none.
pub fn rename(device: &dyn Device, store: &Store, name: &str, to: &str) -> Result<()> {
    names::check(to)?;
    let _loans = Loans::lock(store)?;
    let _lock = store.lock([name, to])?;
    let status = instances::find(device, name)?;
    if is_aside(&status) {
        return Err(Failure::new(format!(
            "{name} is not needed any more: it keeps its name"
        )));
    }
    device
        .rename(status.id, to, 0)
        .map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => Failure::new(format!(
                "there is an instance called {to} already: choose another name, or remove it with \
                 `skerry rm {to}`"
            )),
            _ => Failure::new(format!(
                "cannot rename {name}: {}",
                crate::failure::plain(&error)
            )),
        })?;
    store.update(status.id, |record| {
        record.options.name = Some(to.to_owned());
    })?;
    loans::rename(device, store, name, to)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mock::{Accident, Here, request};

    impl Here {
        fn create(&self, name: &str, command: &[&str], restart: Policy) -> Status {
            let options = request(name, command);
            create(
                &self.mock,
                &self.store,
                &options,
                restart,
                SystemTime::now(),
            )
            .unwrap()
        }

        fn find(&self, name: &str) -> Status {
            instances::find(&self.mock, name).unwrap()
        }

        fn restart(&self, name: &str) -> Result<Status> {
            restart(
                &self.mock,
                &self.store,
                name,
                Duration::ZERO,
                SystemTime::now(),
            )
        }

        /// Names and states, without those that are not needed.
        fn live(&self) -> Vec<(String, u32)> {
            let all = instances::all(&self.mock).unwrap();
            let live = all.iter().filter(|status| !is_aside(status));
            live.map(|status| (label(status).to_owned(), status.state))
                .collect()
        }
    }

    #[test]
    fn a_restarted_instance_has_the_name_and_the_one_before_is_kept() {
        let here = Here::new(3);
        here.create("box", &["sleep", "9"], Policy::No);
        start(&here.mock, &here.store, "box").unwrap();
        let first = here.find("box");
        let second = here.restart("box").unwrap();
        assert_eq!((label(&second), second.state), ("box", dev::STATE_RUNNING));
        assert_eq!(here.find(&first.id.to_string()).state, dev::STATE_HALTED);
        assert_eq!(
            here.store.read(second.id).unwrap().unwrap().previous,
            Some(first.id)
        );
        let third = here.restart("box").unwrap();
        assert!(
            here.mock.status(first.id).is_err() && here.store.read(first.id).unwrap().is_none()
        );
        remove(&here.mock, &here.store, "box", true).unwrap();
        assert!(here.mock.list().unwrap().is_empty());
        assert!(here.store.read(third.id).unwrap().is_none());
    }

    #[test]
    fn one_that_has_ended_is_restarted_and_not_started() {
        let here = Here::new(3);
        here.create("box", &["true"], Policy::No);
        start(&here.mock, &here.store, "box").unwrap();
        let first = here.find("box").id;
        let failure = start(&here.mock, &here.store, "box").unwrap_err();
        assert!(failure.message.contains("skerry restart box"), "{failure}");
        assert_ne!(here.restart("box").unwrap().id, first);
    }

    #[test]
    fn without_room_the_old_one_stays_and_says_so() {
        let here = Here::new(2);
        here.create("box", &["true"], Policy::No);
        start(&here.mock, &here.store, "box").unwrap();
        let first = here.find("box").id;
        here.create("other", &["sleep", "9"], Policy::No);
        let failure = here.restart("box").unwrap_err();
        assert!(failure.message.contains("no CPU is free"), "{failure}");
        assert_eq!(here.find("box").id, first);
        assert_eq!(here.mock.list().unwrap().len(), 2);
    }

    /// Restarts with each change going wrong in turn; afterwards another restart does what the
    /// first one would have.
    fn interrupted(accident: Accident) {
        for step in 0.. {
            let here = Here::new(3);
            here.create("box", &["sleep", "9"], Policy::Always);
            start(&here.mock, &here.store, "box").unwrap();
            here.mock.fuse.set(step, accident);
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                here.restart("box").map(drop)
            }));
            let hit = here.mock.fuse.clear();
            // Whatever has happened, the name stands for one whole instance.
            assert_eq!(here.live().len(), 1, "step {step}");
            assert_eq!(here.live()[0].0, "box", "step {step}");
            if accident == Accident::Failure && hit && result.unwrap().is_err() {
                // What was begun is gone.
                assert_eq!(here.mock.list().unwrap().len(), 1, "step {step}");
            }
            here.restart("box").unwrap();
            let running = here.find("box");
            assert_eq!(running.state, dev::STATE_RUNNING, "step {step}");
            remove(&here.mock, &here.store, "box", true).unwrap();
            let all = instances::all(&here.mock).unwrap();
            assert!(
                all.is_empty(),
                "step {step}: {:?}",
                all.iter().map(label).collect::<Vec<_>>()
            );
            if !hit {
                assert!(step > 5, "there are more steps than that");
                break;
            }
        }
    }

    #[test]
    fn a_restart_that_fails_at_any_step_leaves_a_whole_instance() {
        interrupted(Accident::Failure);
    }

    #[test]
    fn a_tool_killed_at_any_step_leaves_a_whole_instance() {
        interrupted(Accident::Death);
    }

    #[test]
    fn names_are_changed_to_free_ones_only() {
        let here = Here::new(4);
        here.create("a", &["true"], Policy::No);
        here.create("b", &["true"], Policy::No);
        let to = |from: &str, to: &str| rename(&here.mock, &here.store, from, to);
        assert!(to("a", "b").unwrap_err().message.contains("already"));
        assert!(to("a", "~b").unwrap_err().message.contains("letters"));
        to("a", "c").unwrap();
        let renamed = here.find("c").id;
        let record = here.store.read(renamed).unwrap().unwrap();
        assert_eq!(record.options.name.as_deref(), Some("c"));
    }
}
