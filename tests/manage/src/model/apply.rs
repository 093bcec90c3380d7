//! Judgement of `apply`: what it does to each instance, all of it or nothing.

use serde::Deserialize;

use super::changes::{either, refused_somehow};
use super::verbs::refused;
use super::{Instance, Model, Observed, Pause, Phase, Project, Verdict};
use crate::spec::{Op, Program, Spec};

/// `apply --json`.
#[derive(Debug, Deserialize)]
struct Report {
    changes: Vec<Change>,
    applied: bool,
}

#[derive(Debug, PartialEq, Eq, Deserialize)]
struct Change {
    name: String,
    action: Action,
}

/// A thing that `apply` does to an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Action {
    Nothing,
    Create,
    Start,
    Resize,
    Replace,
    Remove,
    Keep,
}

impl Instance {
    /// The action after which it is as declared; `None` if that is not known.
    fn action(&self, wanted: &Spec) -> Option<Action> {
        let spec = self.spec.as_ref()?;
        let same =
            (&spec.root, &spec.program, spec.seed) == (&wanted.root, &wanted.program, wanted.seed);
        let (has, wants) = ((spec.cpus, spec.memory.1), (wanted.cpus, wanted.memory.1));
        let grows = same && wants.0 >= has.0 && wants.1 >= has.1;
        Some(match &self.phase {
            // Whether it runs still.
            Phase::Running { .. } if has != wants && grows && !self.surely_runs() => return None,
            Phase::Running { .. } if has != wants && grows => Action::Resize,
            _ if !same || has != wants => Action::Replace,
            Phase::Created => Action::Start,
            _ => Action::Nothing,
        })
    }
}

impl Model {
    /// The declared set's instances.
    pub(crate) fn set(&self) -> impl Iterator<Item = (&String, &Instance)> {
        self.instances
            .iter()
            .filter(|(_, instance)| instance.project == Project::Ours)
    }

    /// All actions, in the order of names; `None` if they are not known.
    fn plan(&self, specs: &[Spec], prune: bool) -> Option<Vec<Change>> {
        let mut changes = Vec::new();
        for spec in specs {
            let action = match self.instances.get(&spec.name) {
                None => Action::Create,
                Some(instance) => instance.action(spec)?,
            };
            changes.push(Change {
                name: spec.name.clone(),
                action,
            });
        }
        let declared = |name: &String| specs.iter().any(|spec| spec.name == *name);
        for (name, _) in self.set().filter(|(name, _)| !declared(name)) {
            let action = if prune { Action::Remove } else { Action::Keep };
            changes.push(Change {
                name: name.clone(),
                action,
            });
        }
        changes.sort_by(|one, other| one.name.cmp(&other.name));
        Some(changes)
    }

    /// Possible refusals of what is planned, and whether it may be done.
    fn obstacles(&self, specs: &[Spec], plan: &[Change]) -> (Vec<&'static str>, bool) {
        let is = |name: &str, actions: &[Action]| {
            plan.iter()
                .any(|change| change.name == name && actions.contains(&change.action))
        };
        let mut cpus = 0;
        let mut ways = vec![
            // The host was late.
            "has not begun after",
        ];
        let mut may_be = true;
        for spec in specs {
            if is(&spec.name, &[Action::Create, Action::Replace]) {
                cpus += spec.cpus;
                if let Program::File { .. } = spec.program {
                    (ways, may_be) = (vec!["cannot run", "free (asked for"], false);
                }
            }
            let present = self.instances.get(&spec.name);
            if let Some(instance) = present.filter(|_| is(&spec.name, &[Action::Resize])) {
                cpus += spec.cpus.saturating_sub(instance.cpus);
                ways.extend(["has refused the change", "could have"]);
                if instance.pause != Pause::No {
                    ways.push("is paused");
                    may_be = false;
                }
            }
        }
        let (least, most) = self.free_cpus();
        if cpus > least {
            ways.push("free (asked for");
        }
        (ways, may_be && cpus <= most)
    }

    pub(super) fn judge_apply(&mut self, specs: &[Spec], prune: bool, seen: &Observed) -> Verdict {
        let known = |instance: &Instance| {
            instance.spec.is_some()
                && instance.project != Project::Unknown
                && instance.pending.is_none()
        };
        let plan = Some(())
            .filter(|()| !self.unfinished_apply && self.instances.values().all(known))
            .and_then(|()| self.plan(specs, prune));
        let Some(plan) = plan else {
            either(seen)?;
            self.loosen(&Op::Apply {
                specs: specs.to_vec(),
                prune,
            });
            let unknown = self.instances.iter().filter(|(_, one)| one.spec.is_none());
            let unknown: Vec<String> = unknown.map(|(name, _)| name.clone()).collect();
            self.loose.extend(unknown);
            self.unfinished_apply = seen.status != 0;
            return Ok(());
        };
        let others = |spec: &Spec| {
            let present = self.instances.get(&spec.name);
            present.is_some_and(|instance| instance.project == Project::None)
        };
        if specs.iter().any(others) {
            return refused(seen, 1, "that no file has declared");
        }
        let idle = |change: &Change| matches!(change.action, Action::Nothing | Action::Keep);
        if !plan.iter().all(idle) {
            let (ways, may_be) = self.obstacles(specs, &plan);
            if seen.status != 0 {
                refused_somehow(seen, &ways)?;
                self.taken_back(&plan, specs);
                return Ok(());
            }
            if !may_be {
                return refused_somehow(seen, &ways);
            }
        }
        let report: Report =
            serde_json::from_slice(&seen.out).map_err(|error| error.to_string())?;
        if !report.applied || report.changes != plan || !seen.err.is_empty() {
            return Err(format!("{report:?} is not {plan:?}"));
        }
        for change in plan {
            let wanted = specs.iter().find(|spec| spec.name == change.name);
            self.apply_one(&change, wanted);
        }
        Ok(())
    }

    /// Takes in that nothing was done but what cannot be taken back: memory that was given.
    fn taken_back(&mut self, plan: &[Change], specs: &[Spec]) {
        let resized = plan.iter().filter(|change| change.action == Action::Resize);
        let names: Vec<String> = resized.map(|change| change.name.clone()).collect();
        for spec in specs.iter().filter(|spec| names.contains(&spec.name)) {
            self.may_come_to_have(spec.cpus, spec.memory.1);
        }
        self.loose.extend(names);
    }

    fn apply_one(&mut self, change: &Change, wanted: Option<&Spec>) {
        let name = &change.name;
        match (change.action, wanted) {
            (Action::Create, Some(spec)) => {
                let mut new = Instance::new(spec.clone(), Phase::Created, Vec::new());
                new.project = Project::Ours;
                new.phase = new.started();
                self.instances.insert(name.clone(), new);
            }
            (Action::Start, _) => {
                if let Some(instance) = self.instances.get_mut(name) {
                    instance.phase = instance.started();
                }
            }
            (Action::Resize, Some(spec)) => {
                if let Some(instance) = self.instances.get_mut(name) {
                    instance.cpus = instance.cpus.max(spec.cpus);
                    instance.memory = instance.memory.max(spec.memory_taken());
                    instance.spec = Some(spec.clone());
                }
            }
            (Action::Replace, Some(spec)) => {
                let created = |instance: &Instance| instance.phase == Phase::Created;
                let never_ran = self.instances.get(name).is_some_and(created);
                if let Some(instance) = self.instances.get_mut(name) {
                    instance.told_to_end();
                    instance.has_ended();
                }
                self.replace(name, spec.clone());
                // Of one that has not run there is nothing to keep.
                if never_ran
                    && let Some(new) = self.instances.get_mut(name)
                    && let Some(aside) = new.previous.take()
                {
                    self.instances.remove(&aside);
                }
            }
            (Action::Remove, _) => self.forget(name),
            _ => {}
        }
    }
}
