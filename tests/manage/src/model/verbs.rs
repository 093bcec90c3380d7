//! Judgement of what each verb of the tool has answered, and what that means for the instances.

use std::collections::BTreeSet;

use super::{
    End, Entry, Instance, KILLED, LARGE_NEEDS, Model, OURS, Observed, Pause, Phase, SURELY_ENOUGH,
    SURELY_TOO_LITTLE, Verdict,
};
use crate::numbered_lines::{self, KEPT, place};
use crate::spec::{Op, Program, Root, Signal, Spec};

/// Checks that the tool refused: with this status, this in its message, and nothing else printed.
pub(super) fn refused(seen: &Observed, status: u8, says: &str) -> Verdict {
    let message = String::from_utf8_lossy(&seen.err);
    if seen.status != status || !message.contains(says) {
        return Err(format!(
            "it must be refused with status {status} and {says:?}"
        ));
    }
    if message.lines().count() != 1 || !message.starts_with("skerry: ") {
        return Err(format!(
            "an error is one line that begins with \"skerry: \", not {message:?}"
        ));
    }
    numbered_lines::same(b"", &seen.out)
}

pub(super) fn succeeded(seen: &Observed, out: &[u8]) -> Verdict {
    if seen.status != 0 {
        return Err("it must succeed".into());
    }
    numbered_lines::same(out, &seen.out)?;
    numbered_lines::same(b"", &seen.err)
}

/// Halting takes no longer than the tool waits, unless whoever runs the machine stops it: then
/// nothing is known yet.
pub(super) fn is_late(seen: &Observed) -> bool {
    seen.status == 1 && String::from_utf8_lossy(&seen.err).contains(" has not ended after ")
}

pub(super) fn is_name(name: &str) -> bool {
    let inner = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    name.len() <= 63
        && name.chars().all(inner)
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
}

impl Model {
    /// Possible outcomes of a request: `None` if it is granted, otherwise the text of the refusal.
    fn creation(&self, spec: &Spec) -> Vec<Option<&'static str>> {
        let early = [
            (spec.memory.1 == 0, "is not a size"),
            (spec.cpus == 0, "needs a CPU"),
            (!is_name(&spec.name), "cannot be a name"),
        ];
        if let Some((_, says)) = early.iter().find(|(wrong, _)| *wrong) {
            return vec![Some(says)];
        }
        if let Root::Refused { says, .. } = spec.root {
            return vec![Some(says)];
        }
        if self.instances.contains_key(&spec.name) {
            return vec![Some("already")];
        }
        self.room(spec)
    }

    /// Possible outcomes of a request that makes sense: whether there is room for it.
    pub(super) fn room(&self, spec: &Spec) -> Vec<Option<&'static str>> {
        let memory = spec.memory.1;
        if memory < SURELY_TOO_LITTLE {
            return vec![Some("too little")];
        }
        let (least, most) = self.free_cpus();
        let mut possible = Vec::new();
        if memory < SURELY_ENOUGH {
            possible.extend([Some("too little"), Some("does not fit")]);
        }
        if spec.cpus > least {
            possible.push(Some("free (asked for"));
        }
        let (surely_free, maybe_free) = self.free_memory();
        if spec.cpus <= most && spec.memory_taken() > surely_free {
            possible.push(Some("free (asked for"));
        }
        if spec.cpus <= most && spec.memory_taken() <= maybe_free {
            possible.push(match spec.root {
                Root::Large if memory <= LARGE_NEEDS => Some("does not fit"),
                _ => None,
            });
        }
        possible
    }

    /// Judges what a tool answered to a request for an instance; true if there is one now.
    fn was_created(&self, spec: &Spec, seen: &Observed, failure: u8) -> Result<bool, String> {
        let possible = self.creation(spec);
        if possible
            .iter()
            .flatten()
            .any(|says| refused(seen, failure, says).is_ok())
        {
            return Ok(false);
        }
        match possible.as_slice() {
            [Some(says)] => refused(seen, failure, says).map(|()| false),
            _ if possible.contains(&None) => Ok(true),
            _ => Err(format!(
                "it must be refused in one of these ways: {possible:?}"
            )),
        }
    }

    /// Checks that a user without the right is refused.
    pub(crate) fn judge_nobody(op: &Op, seen: &Observed) -> Verdict {
        refused(
            seen,
            if matches!(op, Op::Run { .. } | Op::RunDetached(_)) {
                OURS
            } else {
                1
            },
            "/dev/skerry",
        )
    }

    /// Judges what one tool did, alone, and notes what that means.
    pub(crate) fn judge(&mut self, op: &Op, seen: &Observed) -> Verdict {
        match op {
            Op::Create(spec) | Op::RunDetached(spec) => {
                let runs = matches!(op, Op::RunDetached(_));
                if self.was_created(spec, seen, if runs { OURS } else { 1 })? {
                    let mut instance = Instance::new(spec.clone(), Phase::Created, Vec::new());
                    if runs && spec.ends().0.contains(&End::Any) && seen.status == OURS {
                        // Too little to be started: then it is removed, too.
                        return Ok(());
                    }
                    succeeded(seen, format!("{}\n", spec.name).as_bytes())?;
                    if runs {
                        instance.phase = instance.started();
                    }
                    self.instances.insert(spec.name.clone(), instance);
                }
                Ok(())
            }
            Op::Run { .. } | Op::Exec(_) => Err("judged with its input".into()),
            Op::Start(name) => self.judge_start(name, seen),
            Op::Stop(name) => self.judge_end(name, seen, false),
            Op::StopForce(name) => self.judge_end(name, seen, true),
            Op::Kill(name, signal) => self.judge_kill(name, *signal, seen),
            Op::Wait(name, _) => self.judge_wait(name, seen),
            Op::LogsPrevious(name) => self.judge_previous(name, seen),
            Op::Logs(name) | Op::Ready(name) => {
                let Some(instance) = self.instances.get(name) else {
                    return refused(seen, 1, "no instance is called");
                };
                if seen.status != 0 {
                    return Err("it must succeed".into());
                }
                instance.check(&seen.out, &seen.err, false)
            }
            Op::Attach(name) => match self.instances.get(name).map(|one| (&one.phase, one.pause)) {
                None => refused(seen, 1, "no instance is called"),
                Some((Phase::Created, _)) => refused(seen, 1, "was not started"),
                Some((Phase::Ended(_), _)) => refused(seen, 1, "has "),
                Some((Phase::Running { .. }, Pause::Yes)) => refused(seen, 1, "is paused"),
                // It was there until the end, or came too late.
                Some((Phase::Running { .. }, _)) => Ok(()),
            },
            Op::Follow { .. } => Err("judged as a whole".into()),
            Op::Inspect(name) => match self.instances.contains_key(name) {
                false => refused(seen, 1, "no instance is called"),
                true => {
                    let entry: Entry =
                        serde_json::from_slice(&seen.out).map_err(|error| error.to_string())?;
                    self.observe_one(&entry)
                }
            },
            Op::Remove(name) => self.judge_remove(name, seen),
            Op::RemoveForce(name) => self.judge_remove_force(name, seen),
            Op::Prune => self.judge_prune(seen),
            Op::Pause(name) => self.judge_pause(name, seen),
            Op::Unpause(name) => self.judge_unpause(name, seen),
            Op::Resize(resize) => self.judge_resize(resize, seen),
            Op::Rename { name, to } => self.judge_rename(name, to, seen),
            Op::Restart(name) => self.judge_restart(name, seen),
            Op::Apply { specs, prune } => self.judge_apply(specs, *prune, seen),
        }
    }

    /// Judges `run`, which has stayed until the end. `whole`: its reader has read all.
    pub(crate) fn judge_run(
        &mut self,
        spec: &Spec,
        input: Vec<u8>,
        whole: bool,
        remove: bool,
        seen: &Observed,
    ) -> Verdict {
        if !self.was_created(spec, seen, OURS)? {
            return Ok(());
        }
        let mut instance = Instance::new(spec.clone(), Phase::Created, input);
        let (ends, _) = spec.ends();
        let end = match ends.as_slice() {
            [End::Any] => End::Any,
            [end] => *end,
            _ => return Err("a program that does not end".into()),
        };
        let expected = end.status().map(|(_, status)| status);
        if expected.is_some_and(|expected| expected != seen.status) {
            return Err(format!(
                "its status is {}, not {}",
                seen.status,
                expected.unwrap_or(0)
            ));
        }
        instance.phase = Phase::Ended(vec![end]);
        match (end, &spec.program) {
            (_, Program::File { .. }) if end != End::Any => {
                refused(seen, seen.status, "cannot run")?;
            }
            // Its kernel's last words are in the error output.
            (End::Panicked, _) if whole => instance.check(&seen.out, b"", true)?,
            _ if whole => instance.check(&seen.out, &seen.err, true)?,
            _ => {
                let all = spec.program.output(spec.seed, &instance.input);
                if all.is_some_and(|[out, _]| !out.starts_with(&seen.out)) {
                    return Err("what its reader has read is not the beginning".into());
                }
            }
        }
        if end == End::Any {
            // Too little to be started, or started and ended somehow: that is seen in a moment.
            self.loose.insert(spec.name.clone());
        } else if !remove {
            self.instances.insert(spec.name.clone(), instance);
        }
        Ok(())
    }

    /// Judges one who followed what a program writes without end, until its instance was halted;
    /// `logs` is what is kept of it.
    pub(crate) fn judge_follower(
        &self,
        name: &str,
        attach: bool,
        seen: &Observed,
        logs: &Observed,
    ) -> Verdict {
        let Some(Instance {
            spec: Some(spec),
            phase: Phase::Ended(ends),
            ..
        }) = self.instances.get(name)
        else {
            return Ok(());
        };
        if seen.status != if attach { KILLED } else { 0 } {
            return Err(format!(
                "its status is {}, and its instance has ended: {ends:?}",
                seen.status
            ));
        }
        let (start, end) = place(spec.seed, &seen.out, !attach)?;
        let (_, last) = place(spec.seed, &logs.out, false)?;
        if logs.out.len() < KEPT.min(last as usize) {
            return Err(format!("only {} bytes are kept", logs.out.len()));
        }
        if end != last && !seen.out.is_empty() {
            return Err(format!(
                "it read from byte {start} to {end}, and {last} were written"
            ));
        }
        Ok(())
    }

    fn judge_start(&mut self, name: &str, seen: &Observed) -> Verdict {
        let Some(instance) = self.instances.get_mut(name) else {
            return refused(seen, 1, "no instance is called");
        };
        if instance.phase != Phase::Created {
            return refused(seen, 1, "cannot be started");
        }
        let phase = instance.started();
        if matches!(&phase, Phase::Running { ends, .. } if ends.contains(&End::Any))
            && refused(seen, 1, "too little for it").is_ok()
        {
            return Ok(());
        }
        instance.phase = phase;
        succeeded(seen, format!("{name}\n").as_bytes())
    }

    fn judge_end(&mut self, name: &str, seen: &Observed, force: bool) -> Verdict {
        let Some(instance) = self.instances.get_mut(name) else {
            return refused(seen, 1, "no instance is called");
        };
        let Phase::Running { ends, .. } = &mut instance.phase else {
            return succeeded(seen, format!("{name}\n").as_bytes());
        };
        if force {
            ends.push(End::Halted);
            instance.pause = Pause::No;
        } else {
            instance.told_to_end();
        }
        if is_late(seen) {
            return Ok(());
        }
        instance.has_ended();
        succeeded(seen, format!("{name}\n").as_bytes())
    }

    fn judge_kill(&mut self, name: &str, signal: Signal, seen: &Observed) -> Verdict {
        let Some(instance) = self.instances.get_mut(name) else {
            return refused(seen, 1, "no instance is called");
        };
        let sure = instance.surely_runs();
        let program = instance.spec.as_ref().map(|spec| spec.program.clone());
        let Phase::Running { ends, surely } = &mut instance.phase else {
            return refused(seen, 1, "does not run");
        };
        if !sure && refused(seen, 1, "does not run").is_ok() {
            return Ok(());
        }
        if matches!(program, None | Some(Program::Fault(_)))
            && refused(seen, 1, "cannot send a signal").is_ok()
        {
            // It does not read its messages.
            return Ok(());
        }
        succeeded(seen, format!("{name}\n").as_bytes())?;
        if matches!(signal.number, 9 | 15) {
            instance.pause = Pause::No;
        }
        match program {
            None => {}
            // It may come before the fault does.
            Some(Program::Fault(_)) if signal.fatal => ends.push(End::Exited(128 + signal.number)),
            Some(Program::Trap(code)) if signal.handled => {
                ends.extend([End::Exited(code), End::Exited(128 + signal.number)]);
                *surely |= instance.ready;
            }
            Some(_) if signal.fatal => {
                ends.push(End::Exited(128 + signal.number));
                *surely |= instance.ready;
            }
            Some(_) => {}
        }
        if instance.ready {
            // Its handler is in place, so the default does nothing.
            if let Some(Program::Trap(code)) = program
                && signal.handled
            {
                ends.retain(|end| {
                    *end != End::Exited(128 + signal.number) || *end == End::Exited(code)
                });
            }
        }
        Ok(())
    }

    fn judge_wait(&mut self, name: &str, seen: &Observed) -> Verdict {
        let Some(instance) = self.instances.get_mut(name) else {
            return refused(seen, 1, "no instance is called");
        };
        let ends = match &instance.phase {
            Phase::Created => return Err("it waits for what was not started".into()),
            Phase::Running { ends, .. } | Phase::Ended(ends) => ends.clone(),
        };
        let fits = |end: &End| match end.status() {
            Some((status, _)) => seen.out == format!("{status}\n").into_bytes(),
            None => true,
        };
        let ends: Vec<End> = ends.into_iter().filter(fits).collect();
        if ends.is_empty() {
            return Err("that is not how it can have ended".into());
        }
        instance.phase = Phase::Ended(ends);
        instance.pause = Pause::No;
        succeeded(seen, &seen.out)
    }

    fn judge_remove(&mut self, name: &str, seen: &Observed) -> Verdict {
        let Some(instance) = self.instances.get(name) else {
            return refused(seen, 1, "no instance is called");
        };
        let running = matches!(instance.phase, Phase::Running { .. });
        if instance.surely_runs() || running && refused(seen, 1, "is running").is_ok() {
            return refused(seen, 1, "is running");
        }
        self.forget(name);
        succeeded(seen, format!("{name}\n").as_bytes())
    }

    /// Takes in that an instance is removed, and with it the one whose place it took.
    pub(super) fn forget(&mut self, name: &str) {
        let Some(gone) = self.instances.remove(name) else {
            return;
        };
        // Which one's place it took is not known.
        self.loose_asides |= gone.spec.is_none();
        if let Some(previous) = gone.previous {
            self.instances.remove(&previous);
        }
    }

    fn judge_remove_force(&mut self, name: &str, seen: &Observed) -> Verdict {
        let Some(instance) = self.instances.get_mut(name) else {
            return refused(seen, 1, "no instance is called");
        };
        if let (Phase::Running { ends, .. }, true) = (&mut instance.phase, is_late(seen)) {
            ends.push(End::Halted);
            instance.pause = Pause::No;
            return Ok(());
        }
        self.forget(name);
        succeeded(seen, format!("{name}\n").as_bytes())
    }

    fn judge_prune(&mut self, seen: &Observed) -> Verdict {
        let text = String::from_utf8_lossy(&seen.out).into_owned();
        let gone: BTreeSet<&str> = text.lines().collect();
        for (name, instance) in &self.instances {
            let ended = matches!(instance.phase, Phase::Ended(_));
            if ended && !gone.contains(name.as_str()) {
                return Err(format!("{name} has ended and was not pruned"));
            }
            if gone.contains(name.as_str())
                && (instance.phase == Phase::Created || instance.surely_runs())
            {
                return Err(format!("{name} has not ended and was pruned"));
            }
        }
        if let Some(unknown) = gone
            .iter()
            .find(|name| !self.instances.contains_key(**name))
        {
            return Err(format!("{unknown} is none of the instances"));
        }
        self.instances
            .retain(|name, _| !gone.contains(name.as_str()));
        if seen.status == 0 {
            Ok(())
        } else {
            Err("it must succeed".into())
        }
    }
}
