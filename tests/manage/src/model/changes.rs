//! Judgement of the verbs that change what there is already: pausing, resizing, other names,
//! restarts.

use serde::Deserialize;

use super::verbs::{is_late, is_name, refused, succeeded};
use super::{
    GRANULE, Instance, KILLED, Model, Observed, Pause, Phase, Project, SURELY_ENOUGH, Verdict,
};
use crate::numbered_lines;
use crate::spec::{Exec, Program, Resize, Spec};

/// Below this the memory of an instance may not do for what its kernel makes of a change, which it
/// refuses then.
const MAY_REFUSE: u64 = 64 << 20;
/// An instance has at most so many times the memory that it was created with.
const MOST_MEMORY: u64 = 16;

/// `resize --json`.
#[derive(Debug, Deserialize)]
struct Change {
    epoch: Option<u64>,
    cpus_before: u32,
    cpus: u32,
    memory_before: u64,
    memory: u64,
}

/// Checks that the tool refused, in one of these ways.
pub(super) fn refused_somehow(seen: &Observed, ways: &[&str]) -> Verdict {
    if ways.iter().any(|says| refused(seen, 1, says).is_ok()) {
        return Ok(());
    }
    match ways {
        [says] => refused(seen, 1, says),
        _ => Err(format!("it must be refused in one of these ways: {ways:?}")),
    }
}

/// Checks that the tool did what it was asked for, or says why not: more is not known.
pub(super) fn either(seen: &Observed) -> Verdict {
    match seen.status {
        0 => Ok(()),
        _ => refused(seen, 1, ""),
    }
}

impl Model {
    /// Judges a program beside the first one; `input` is what the tool was given for it.
    pub(crate) fn judge_exec(&mut self, exec: &Exec, input: &[u8], seen: &Observed) -> Verdict {
        const NOT_RUNNING: &str = "in a running instance only";
        let Some(instance) = self.instances.get(&exec.name) else {
            return refused(seen, 1, "no instance is called");
        };
        if !matches!(instance.phase, Phase::Running { .. }) {
            return refused(seen, 1, NOT_RUNNING);
        }
        let mut ways = Vec::new();
        match instance.pause {
            Pause::Yes => return refused(seen, 1, "is paused"),
            Pause::Asked => ways.push("is paused"),
            Pause::No => {}
        }
        if self.execs_left.contains(&exec.name) {
            ways.push("as many programs");
        }
        if !instance.surely_runs() {
            // It ended before, or meanwhile.
            ways.push(NOT_RUNNING);
            if seen.status == KILLED {
                return Ok(());
            }
        }
        if ways.iter().any(|says| refused(seen, 1, says).is_ok()) {
            return Ok(());
        }
        if instance.memory < MAY_REFUSE && refused(seen, 126, "Cannot allocate memory").is_ok() {
            return Ok(());
        }
        let status = match exec.program {
            Program::File { code, .. } => return refused(seen, code, "cannot run"),
            Program::Exit(code)
            | Program::Write { code, .. }
            | Program::Cat(code)
            | Program::Count(code) => code,
            _ => return Err("a program that does not end".into()),
        };
        let output = exec.program.output(exec.seed, input);
        let [out, err] = output.ok_or("its output is not known")?;
        if seen.status != status {
            return Err(format!("its status is {}, not {status}", seen.status));
        }
        numbered_lines::same(&out, &seen.out)?;
        numbered_lines::same(&err, &seen.err)
    }

    pub(super) fn judge_pause(&mut self, name: &str, seen: &Observed) -> Verdict {
        let Some(instance) = self.instances.get_mut(name) else {
            return refused(seen, 1, "no instance is called");
        };
        let mut ways = Vec::new();
        match (&instance.phase, instance.pause) {
            (Phase::Created | Phase::Ended(_), _) => return refused(seen, 1, "does not run"),
            (_, Pause::Yes) => return refused(seen, 1, "is paused already"),
            (_, Pause::Asked) => {
                ways.push("is paused already");
                if instance.spec.is_some() {
                    return refused_somehow(seen, &ways);
                }
            }
            (_, Pause::No) => {}
        }
        if !instance.surely_runs() {
            ways.extend(["does not run", "has ended meanwhile"]);
        }
        if instance.pending.is_some() {
            ways.push("has not answered the last change");
        }
        if ways.iter().any(|says| refused(seen, 1, says).is_ok()) {
            return Ok(());
        }
        // Lateness is no proof of anything, and who hangs does not obey.
        if refused(seen, 1, "stand still after").is_ok() {
            instance.pause = Pause::Asked;
            return Ok(());
        }
        if refused(seen, 1, "cannot wait for the program").is_ok() {
            return Ok(());
        }
        instance.pause = Pause::Yes;
        succeeded(seen, format!("{name}\n").as_bytes())
    }

    /// Whether an instance does stand still in the end, because nothing keeps its CPUs from it.
    pub(crate) fn will_be_paused(&self, name: &str) -> bool {
        self.instances
            .get(name)
            .is_some_and(|one| one.pause == Pause::Asked && !one.may_hang())
    }

    pub(super) fn judge_unpause(&mut self, name: &str, seen: &Observed) -> Verdict {
        let Some(instance) = self.instances.get_mut(name) else {
            return refused(seen, 1, "no instance is called");
        };
        let unknown = instance.pause == Pause::Asked && instance.spec.is_none();
        if instance.pause == Pause::No || unknown && seen.status != 0 {
            return refused(seen, 1, "is not paused");
        }
        instance.pause = Pause::No;
        succeeded(seen, format!("{name}\n").as_bytes())
    }

    /// Possible refusals of a change, and whether it may be granted.
    fn change(&self, instance: &Instance, resize: &Resize) -> (Vec<&'static str>, bool) {
        let mut ways = Vec::new();
        if !instance.surely_runs() {
            ways.extend(["does not run", "has ended meanwhile"]);
        }
        if instance.pending.is_some() {
            ways.push("has not answered the last change");
            return (ways, !instance.may_hang());
        }
        if instance.pause != Pause::No {
            ways.push("is paused");
            return (ways, false);
        }
        let cpus = resize.cpus.unwrap_or(instance.cpus);
        let bytes = resize
            .memory
            .as_ref()
            .map_or(instance.memory, |memory| memory.1);
        let memory = bytes.next_multiple_of(GRANULE);
        if memory < instance.first_memory {
            ways.push("was created with");
            return (ways, false);
        }
        if cpus > self.base.cpus.total - self.base.cpus.supervisor
            || memory > instance.first_memory * MOST_MEMORY
        {
            ways.push("at most");
            return (ways, false);
        }
        let (least, most) = self.free_cpus();
        let more = cpus.saturating_sub(instance.cpus);
        if more > least {
            ways.push("could have");
        }
        let (surely_free, maybe_free) = self.free_memory();
        let added = memory.saturating_sub(instance.memory);
        if added > surely_free {
            ways.push("of memory are free");
        }
        let grows = more > 0 || memory > instance.memory;
        let sleeps = matches!(instance.program(), Some(Program::Sleep));
        let shrinks = memory < instance.memory;
        if !resize.dry_run && (shrinks || grows && (instance.memory < MAY_REFUSE || !sleeps)) {
            ways.push("has refused the change");
        }
        (ways, more <= most && added <= maybe_free)
    }

    pub(super) fn judge_resize(&mut self, resize: &Resize, seen: &Observed) -> Verdict {
        let Some(instance) = self.instances.get(&resize.name) else {
            return refused(seen, 1, "no instance is called");
        };
        if !matches!(instance.phase, Phase::Running { .. }) {
            return refused(seen, 1, "does not run");
        }
        let (cpus, bytes) = (resize.cpus, resize.memory.as_ref().map(|memory| memory.1));
        let after = (
            cpus.unwrap_or(instance.cpus),
            bytes.map_or(instance.memory, |bytes| bytes.next_multiple_of(GRANULE)),
        );
        if instance.spec.is_none() {
            either(seen)?;
            self.loosen(&crate::spec::Op::Resize(resize.clone()));
            return Ok(());
        }
        let (ways, may_be) = self.change(instance, resize);
        if ways.iter().any(|says| refused(seen, 1, says).is_ok()) {
            return Ok(());
        }
        if !may_be {
            return refused_somehow(seen, &ways);
        }
        let Some(instance) = self.instances.get_mut(&resize.name) else {
            return Ok(());
        };
        let (has, differs) = (
            (instance.cpus, instance.memory),
            after != (instance.cpus, instance.memory),
        );
        if resize.limit.is_some() && refused(seen, 1, "has not answered yet").is_ok() {
            instance.pending = Some(after);
            return Ok(());
        }
        if seen.status != 0 || !seen.err.is_empty() {
            return Err(format!(
                "it must succeed, or be refused like this: {ways:?}"
            ));
        }
        let change: Change =
            serde_json::from_slice(&seen.out).map_err(|error| error.to_string())?;
        let done = differs && !resize.dry_run;
        let shown = if done { after } else { has };
        if (change.cpus_before, change.memory_before) != has
            || (change.cpus, change.memory) != shown
            || change.epoch.is_some() != done
        {
            return Err(format!("from {has:?} to {shown:?} is not {change:?}"));
        }
        if !resize.dry_run {
            (instance.cpus, instance.memory) = after;
            if let Some(spec) = &mut instance.spec {
                spec.cpus = cpus.unwrap_or(spec.cpus);
                spec.memory = resize.memory.clone().unwrap_or(spec.memory.clone());
            }
        }
        Ok(())
    }

    pub(super) fn judge_rename(&mut self, name: &str, to: &str, seen: &Observed) -> Verdict {
        if !is_name(to) {
            return refused(seen, 1, "cannot be a name");
        }
        if !self.instances.contains_key(name) {
            return refused(seen, 1, "no instance is called");
        }
        if name != to && self.instances.contains_key(to) {
            return refused(seen, 1, "already");
        }
        succeeded(seen, b"")?;
        if let Some(mut instance) = self.instances.remove(name) {
            if let Some(spec) = &mut instance.spec {
                spec.name = to.to_owned();
            }
            self.instances.insert(to.to_owned(), instance);
        }
        Ok(())
    }

    pub(super) fn judge_restart(&mut self, name: &str, seen: &Observed) -> Verdict {
        let Some(instance) = self.instances.get_mut(name) else {
            return refused(seen, 1, "no instance is called");
        };
        let Some(spec) = instance.spec.clone() else {
            either(seen)?;
            self.loosen(&crate::spec::Op::Restart(name.to_owned()));
            return Ok(());
        };
        let too_little =
            spec.memory.1 < SURELY_ENOUGH && refused(seen, 1, "too little for it").is_ok();
        if instance.phase == Phase::Created {
            if !too_little {
                instance.phase = instance.started();
                succeeded(seen, format!("{name}\n").as_bytes())?;
            }
            return Ok(());
        }
        instance.told_to_end();
        if is_late(seen) {
            return Ok(());
        }
        instance.has_ended();
        if too_little {
            return Ok(());
        }
        let possible = self.room(&spec);
        if possible
            .iter()
            .flatten()
            .any(|says| refused(seen, 1, says).is_ok())
        {
            return Ok(());
        }
        if !possible.contains(&None) {
            return Err(format!(
                "it must be refused in one of these ways: {possible:?}"
            ));
        }
        succeeded(seen, format!("{name}\n").as_bytes())?;
        self.replace(name, spec);
        Ok(())
    }

    /// Takes in that an instance of these options has taken the place of one, and runs.
    pub(super) fn replace(&mut self, name: &str, spec: Spec) {
        let Some(old) = self.instances.remove(name) else {
            return;
        };
        let mut new = Instance::new(spec, Phase::Created, Vec::new());
        new.project = old.project;
        new.phase = new.started();
        // Nobody may ever end its input.
        if let (Phase::Running { surely, .. }, Some(Program::Cat(_) | Program::Count(_))) =
            (&mut new.phase, new.spec.as_ref().map(|spec| &spec.program))
        {
            *surely = false;
        }
        if let Some(older) = &old.previous {
            self.instances.remove(older);
        }
        // Each was seen, and has its number.
        if let Some(id) = old.id {
            let aside = format!("~{id}");
            new.previous = Some(aside.clone());
            self.instances.insert(
                aside,
                Instance {
                    previous: None,
                    project: Project::None,
                    ..old
                },
            );
        }
        self.instances.insert(name.to_owned(), new);
    }

    /// Whether `logs --previous` has something to show.
    pub(super) fn judge_previous(&self, name: &str, seen: &Observed) -> Verdict {
        let Some(instance) = self.instances.get(name) else {
            return refused(seen, 1, "no instance is called");
        };
        let previous = instance
            .previous
            .as_ref()
            .and_then(|name| self.instances.get(name));
        match previous {
            Some(previous) if seen.status == 0 => previous.check(&seen.out, &seen.err, false),
            Some(_) => Err("it must succeed".into()),
            None if instance.spec.is_none() => either(seen),
            None => refused(seen, 1, "nothing is kept"),
        }
    }
}
