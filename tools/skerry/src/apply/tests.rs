//! Whole sets of instances on a supervisor in memory, with every change going wrong in turn.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::SystemTime;

use abi::dev;

use super::*;
use crate::instances::{self, label};
use crate::managed;
use crate::mock::{Accident, Mock, TestDirectory, rootfs};
use crate::restart::Policy;

struct Here {
    directory: TestDirectory,
    mock: Mock,
    store: Store,
}

impl Here {
    fn new() -> Self {
        let directory = TestDirectory::new();
        let mock = Mock::new(9, 1 << 30);
        let mut store = Store::at(&directory.0, "boot").unwrap();
        store.fuse = mock.fuse.clone();
        Self {
            directory,
            mock,
            store,
        }
    }

    /// A file of instances: name, program, more lines.
    fn file(&self, instances: &[(&str, &str, &str)]) -> PathBuf {
        let path = self.directory.0.join("shop.toml");
        let text: String = instances
            .iter()
            .map(|(name, program, more)| {
                let rootfs = rootfs();
                format!(
                    "[instances.{name}]\ncommand = [\"{program}\"]\nrootfs = \"{rootfs}\"\n{more}\n"
                )
            })
            .collect();
        fs::write(&path, text).unwrap();
        path
    }

    fn try_apply(&self, instances: &[(&str, &str, &str)], prune: bool) -> Result<String> {
        let options = Options {
            prune,
            dry_run: false,
            json: true,
            limit: Duration::from_millis(1),
            grace: Duration::from_millis(1),
        };
        let mut out = Vec::new();
        let path = self.file(instances);
        apply(
            &self.mock,
            &self.store,
            &path,
            options,
            &|| Ok(()),
            &mut out,
        )?;
        Ok(String::from_utf8(out).unwrap())
    }

    fn differs(&self, instances: &[(&str, &str, &str)], prune: bool) -> bool {
        let path = self.file(instances);
        diff(&self.mock, &self.store, &path, prune, true, &mut io::sink()).unwrap()
    }

    /// Name, number, state, program's policy and CPUs of all instances that are needed.
    fn live(&self) -> Vec<(String, u32, u32, Option<Policy>, u32)> {
        let all = instances::all(&self.mock).unwrap();
        let mut live: Vec<_> = all
            .iter()
            .filter(|status| !managed::is_aside(status))
            .map(|status| {
                let record = self.store.read(status.id).unwrap();
                assert!(!record.as_ref().is_some_and(|record| record.staged));
                let restart = record.map(|record| record.restart);
                (
                    label(status).to_owned(),
                    status.id,
                    status.state,
                    restart,
                    status.cpus,
                )
            })
            .collect();
        live.sort_by(|one, other| one.0.cmp(&other.0));
        live
    }

    /// CPUs of an instance, and what it has lent.
    fn has(&self, name: &str) -> (u32, Vec<(String, u32)>) {
        let status = instances::find(&self.mock, name).unwrap();
        let record = self.store.read(status.id).unwrap().unwrap();
        (status.cpus, record.lent.into_iter().collect())
    }

    fn names(&self) -> Vec<String> {
        self.live().into_iter().map(|(name, ..)| name).collect()
    }

    fn id(&self, name: &str) -> u32 {
        instances::find(&self.mock, name).unwrap().id
    }
}

#[test]
fn what_is_declared_is_made_and_applying_it_again_changes_nothing() {
    let here = Here::new();
    let set = [
        ("a", "sleep", "restart = \"always\""),
        ("b", "sleep", "cpus = 2"),
    ];
    assert!(here.differs(&set, false));
    here.try_apply(&set, false).unwrap();
    let made = here.live();
    assert_eq!(here.names(), ["a", "b"]);
    assert!(
        made.iter()
            .all(|(_, _, state, ..)| *state == dev::STATE_RUNNING)
    );
    assert!(!here.differs(&set, true));
    here.try_apply(&set, true).unwrap();
    assert_eq!(here.live(), made);
}

#[test]
fn of_changes_only_those_that_must_be_make_a_new_instance() {
    let here = Here::new();
    let set = [("a", "sleep", ""), ("b", "sleep", ""), ("c", "sleep", "")];
    here.try_apply(&set, false).unwrap();
    let before = ["a", "b", "c"].map(|name| here.id(name));
    let changed = [
        ("a", "sleep", "cpus = 2\nmem = \"128M\""),
        ("b", "sleep", "restart = \"always\""),
        ("c", "sleep", "env = { A = \"b\" }"),
    ];
    let said = here.try_apply(&changed, false).unwrap();
    for action in ["resize", "update", "replace"] {
        assert!(said.contains(action), "{said}");
    }
    let after = ["a", "b", "c"].map(|name| here.id(name));
    assert_eq!(before[..2], after[..2]);
    assert_ne!(before[2], after[2]);
    let a = here.mock.status(after[0]).unwrap();
    assert_eq!((a.cpus, a.mem), (2, 128 << 20));
    let old = here.mock.status(before[2]).unwrap();
    assert!(
        managed::is_aside(&old) && old.state == dev::STATE_HALTED,
        "its logs are kept"
    );
    assert!(!here.differs(&changed, true));
    // What a running instance cannot give back makes a new one.
    here.try_apply(&set, false).unwrap();
    assert_ne!(here.id("a"), after[0]);
    assert_eq!(here.mock.status(here.id("a")).unwrap().cpus, 1);
    assert!(
        here.mock.status(before[2]).is_err(),
        "only the last one is kept"
    );
}

/// A tool that is killed between the two steps of a restart leaves one that was not started.
#[test]
fn one_that_was_never_started_is_not_kept_when_another_one_takes_its_place() {
    let here = Here::new();
    here.try_apply(&[("web", "sleep", "")], false).unwrap();
    let first = here.id("web");
    let record = here.store.read(first).unwrap().unwrap();
    managed::remove(&here.mock, &here.store, "web", true).unwrap();
    let asked = SystemTime::now();
    let created =
        managed::create(&here.mock, &here.store, &record.options, Policy::No, asked).unwrap();
    let ours = |record: &mut crate::state::Record| record.project = Some("shop".into());
    here.store.update(created.id, ours).unwrap();
    here.try_apply(&[("web", "sleep", "mem = \"96M\"")], false)
        .unwrap();
    assert_eq!(here.mock.list().unwrap(), [here.id("web")]);
    assert!(here.store.read(created.id).unwrap().is_none());
    assert_eq!(here.mock.info().unwrap().cpus_free, 7);
}

#[test]
fn what_is_not_declared_any_more_goes_if_that_is_asked_for() {
    let here = Here::new();
    let both = [("a", "sleep", ""), ("b", "sleep", "")];
    here.try_apply(&both, false).unwrap();
    here.try_apply(&both[..1], false).unwrap();
    assert_eq!(here.names(), ["a", "b"]);
    here.try_apply(&both[..1], true).unwrap();
    assert_eq!(here.names(), ["a"]);
}

#[test]
fn instances_of_others_are_left_alone() {
    let here = Here::new();
    let options = crate::mock::request("a", &["sleep"]);
    let now = std::time::SystemTime::now();
    managed::create(&here.mock, &here.store, &options, Policy::No, now).unwrap();
    let failure = here
        .try_apply(&[("a", "sleep", ""), ("b", "sleep", "")], true)
        .unwrap_err();
    assert!(
        failure.message.contains("no file has declared"),
        "{failure}"
    );
    assert_eq!(here.names(), ["a"]);
}

#[test]
fn one_that_cannot_be_takes_the_others_back() {
    for (bad, words) in [
        (("z", "sleep", "cpus = 100"), "z: only"),
        (("z", "missing", ""), "z: cannot run"),
        (("z", "silent", ""), "has not begun"),
    ] {
        let here = Here::new();
        here.try_apply(&[("a", "sleep", "")], false).unwrap();
        let before = here.live();
        let set = [
            ("a", "sleep", "workdir = \"/tmp\""),
            ("b", "sleep", ""),
            bad,
        ];
        let failure = here.try_apply(&set, false).unwrap_err();
        assert!(failure.message.contains(words), "{failure}");
        assert_eq!((here.live(), here.mock.list().unwrap().len()), (before, 1));
    }
}

const OLD: [(&str, &str, &str); 4] = [
    ("changed", "sleep", ""),
    ("gone", "polite", ""),
    ("grown", "sleep", ""),
    ("same", "sleep", ""),
];
const NEW: [(&str, &str, &str); 5] = [
    ("changed", "sleep", "env = { A = \"b\" }"),
    ("first", "sleep", "restart = \"always\""),
    ("grown", "sleep", "mem = \"128M\""),
    ("same", "sleep", "restart = \"on-failure\""),
    ("second", "true", ""),
];

/// Applies a set with each change going wrong in turn, and then again: it is there as if nothing
/// had happened.
fn interrupted(accident: Accident) {
    let mut seen_undone = 0;
    for step in 0.. {
        let here = Here::new();
        here.try_apply(&OLD, false).unwrap();
        let before = here.live();
        here.mock.fuse.set(step, accident);
        let result = catch_unwind(AssertUnwindSafe(|| here.try_apply(&NEW, true).map(drop)));
        let hit = here.mock.fuse.clear();
        let decided = here.directory.0.join("apply.json").exists();
        if hit && accident == Accident::Failure && !decided && result.unwrap().is_err() {
            // All was taken back, but for memory, which nobody can.
            assert_eq!(here.live(), before, "step {step}");
            assert_eq!(here.mock.list().unwrap().len(), 4, "step {step}");
            seen_undone += 1;
        }
        here.try_apply(&NEW, true).unwrap();
        assert!(!here.differs(&NEW, true), "step {step}");
        assert_eq!(here.names(), NEW.map(|(name, ..)| name), "step {step}");
        // Nothing is left of what was begun: one is kept of the instance that was replaced.
        let aside = here.mock.list().unwrap().len() - NEW.len();
        assert_eq!(aside, 1, "step {step}");
        let free = here.mock.info().unwrap().cpus_free;
        assert_eq!(free, 8 - 4, "step {step}: one of five has ended");
        if !hit {
            assert!(step > 20, "there are more steps than that");
            break;
        }
    }
    assert!(accident == Accident::Death || seen_undone > 10);
}

#[test]
fn a_failure_at_any_step_is_taken_back_or_finished() {
    interrupted(Accident::Failure);
}

#[test]
fn a_death_at_any_step_is_taken_back_or_finished() {
    interrupted(Accident::Death);
}

const JOB: (&str, &str, &str) = ("job", "sleep", "cpus = \"1..6\"\nclass = \"batch\"");

fn web(cpus: &str, more: &str) -> (&'static str, &'static str, String) {
    let lines = format!("class = \"latency\"\ncpus = {cpus}\n{more}");
    ("web", "sleep", lines)
}

#[test]
fn of_one_set_some_lend_to_others() {
    let here = Here::new();
    let lent = |count| vec![("web".to_owned(), count)];
    here.try_apply(&[JOB], false).unwrap();
    assert_eq!(here.has("job"), (6, vec![]));
    let job = here.id("job");
    let (name, program, lines) = &web("4", "");
    let both = [JOB, (name, program, lines)];
    here.try_apply(&both, false).unwrap();
    assert_eq!((here.has("job"), here.has("web").0), ((4, lent(2)), 4));
    assert!(!here.differs(&both, true));
    // More, and fewer by a new one, which is there while the old one is, too.
    let (name, program, lines) = &web("5", "");
    here.try_apply(&[JOB, (name, program, lines)], false)
        .unwrap();
    assert_eq!((here.has("job"), here.has("web").0), ((3, lent(3)), 5));
    let (name, program, lines) = &web("1", "");
    here.try_apply(&[JOB, (name, program, lines)], false)
        .unwrap();
    assert_eq!((here.has("job"), here.has("web").0), ((6, vec![]), 1));
    assert_eq!(here.id("job"), job);
    here.try_apply(&[JOB], true).unwrap();
    assert_eq!(here.has("job"), (6, vec![]));
}

#[test]
fn what_is_made_with_a_range_has_what_is_left_of_it() {
    let here = Here::new();
    let (name, program, lines) = &web("\"1..5\"", "");
    let both = [JOB, (name, program, lines)];
    here.try_apply(&both, false).unwrap();
    assert_eq!((here.has("job").0, here.has("web").0), (3, 5));
    assert!(!here.differs(&both, true));
    // While the old one runs, there is no CPU for a new one; a class alone needs none.
    let changed = ("job", "sleep", "cpus = \"1..6\"\nenv = { A = \"b\" }");
    assert!(here.try_apply(&[changed, both[1]], false).is_err());
    let plain = ("job", "sleep", "cpus = \"1..3\"");
    let said = here.try_apply(&[plain, both[1]], false).unwrap();
    assert!(said.contains("\"update\""), "{said}");
    assert!(!here.differs(&[plain, both[1]], true));
    let wide = ("job", "sleep", "cpus = \"4..8\"");
    assert!(here.try_apply(&[wide, both[1]], false).is_err());
    here.try_apply(&[plain], true).unwrap();
    here.try_apply(&[wide], true).unwrap();
    assert_eq!(here.has("job").0, 4);
    // Its successor begins with what is free, and has the rest when that is.
    let changed = ("job", "sleep", "cpus = \"4..8\"\nenv = { A = \"b\" }");
    here.try_apply(&[changed], true).unwrap();
    assert_eq!(here.has("job").0, 8);
}

/// Applies a set in which one lends with each change going wrong in turn, and then again: it has
/// lent what the others have of it, and nothing else.
fn lending_interrupted(accident: Accident) {
    for step in 0.. {
        let here = Here::new();
        let (name, program, lines) = &web("3", "");
        here.try_apply(&[JOB, (name, program, lines)], false)
            .unwrap();
        assert_eq!(here.has("job"), (5, vec![]));
        let (name, program, lines) = &web("3", "env = { A = \"b\" }");
        let shop = ("shop", "sleep", "class = \"latency\"");
        let new = [JOB, (name, program, lines), shop];
        here.mock.fuse.set(step, accident);
        let _ = catch_unwind(AssertUnwindSafe(|| here.try_apply(&new, true).map(drop)));
        let hit = here.mock.fuse.clear();
        here.try_apply(&new, true).unwrap();
        assert!(!here.differs(&new, true), "step {step}");
        // What a failure has left is the monitor's.
        crate::loans::settle(&here.mock, &here.store, &mut io::sink()).unwrap();
        let cpus = ["job", "web", "shop"].map(|name| here.has(name).0);
        assert_eq!(cpus, [4, 3, 1], "step {step}");
        let lent: u32 = here.has("job").1.iter().map(|(_, count)| count).sum();
        assert_eq!(lent, 1, "step {step}");
        if !hit {
            assert!(step > 15, "there are more steps than that");
            break;
        }
    }
}

#[test]
fn what_fails_at_any_step_has_lent_nothing_for_good() {
    lending_interrupted(Accident::Failure);
}

#[test]
fn a_tool_killed_at_any_step_has_lent_nothing_for_good() {
    lending_interrupted(Accident::Death);
}
