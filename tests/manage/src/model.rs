//! Model of the tool (`docs/partitions.md`, `docs/cli.md`): states of instances, what each
//! operation may answer, and what there is afterwards. Pure: it is told what was seen, and says
//! what is wrong with that.
//!
//! Some things are not known until they are seen: whether a program that ends by itself has done
//! so, or which of two signals was first. An instance therefore has the *set* of its possible ends,
//! and what is seen narrows it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Deserialize;

use crate::numbered_lines::{self, KEPT, place};
use crate::spec::{Op, Program, READY, Root, Signal, Spec};

/// Memory comes in these.
const GRANULE: u64 = 2 << 20;
/// Below this nothing can be created; from the second on everything that is small has room.
const SURELY_TOO_LITTLE: u64 = 4 << 20;
const SURELY_ENOUGH: u64 = 20 << 20;
/// Memory that [`Root::Large`] needs at least, and that is enough for it.
pub(crate) const LARGE_NEEDS: u64 = 24 << 20;
/// Memory of the supervisor for an instance that is remembered: three histories, window and
/// descriptor, the record.
const PER_INSTANCE: u64 = 3 << 20;
/// Tolerance for changes in the supervisor's own use of memory.
pub(crate) const SLACK: u64 = 8 << 20;
/// Status of a program that `SIGKILL` ended, or whose instance was halted.
const KILLED: u8 = 128 + 9;
/// Status of `run` when Skerry failed.
const OURS: u8 = 125;

/// End of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Exited(u8),
    Panicked,
    Halted,
    /// The program is unknown, and so is its end.
    Any,
}

/// Where an instance is in its life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Created,
    /// The instance runs. It may end in one of these ways by itself, and if `surely`, will.
    Running {
        ends: Vec<End>,
        surely: bool,
    },
    /// In one of these ways.
    Ended(Vec<End>),
}

/// An instance that the tool knows.
#[derive(Clone, Debug)]
pub(crate) struct Instance {
    /// `None`: a tool was killed, or raced with another, while it was made.
    pub(crate) spec: Option<Spec>,
    cpus: u32,
    memory: u64,
    pub(crate) phase: Phase,
    /// Whether the program has said that it is ready.
    pub(crate) ready: bool,
    /// Number of the instance, once seen.
    id: Option<u32>,
    input: Vec<u8>,
}

/// Observed result of a tool's run.
#[derive(Clone, Default)]
pub(crate) struct Observed {
    /// Exit status of the tool; 128 and the signal's number if one ended it.
    pub(crate) status: u8,
    pub(crate) out: Vec<u8>,
    pub(crate) err: Vec<u8>,
}

/// Shows what was written as text.
impl fmt::Debug for Observed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { status, out, err } = self;
        f.debug_struct("Observed")
            .field("status", status)
            .field("out", &String::from_utf8_lossy(out))
            .field("err", &String::from_utf8_lossy(err))
            .finish()
    }
}

/// An entry of `ls --json` or `inspect --json`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(crate) struct Entry {
    pub(crate) name: String,
    id: u32,
    pub(crate) state: String,
    exit_code: Option<u8>,
    cpus: u32,
    memory: u64,
    #[serde(default)]
    reclaim: Option<Reclaim>,
}

/// Reclaim of an instance's CPUs and memory.
#[derive(Clone, Debug, PartialEq, Deserialize)]
struct Reclaim {
    scrubbed_bytes: u64,
    lost_cpus: u32,
    leaked_bytes: u64,
}

/// `resources --json`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct Resources {
    pub(crate) cpus: Cpus,
    pub(crate) memory: Memory,
    pub(crate) instances: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct Cpus {
    pub(crate) total: u32,
    pub(crate) supervisor: u32,
    pub(crate) in_use: u32,
    pub(crate) free: u32,
    pub(crate) lost: u32,
    pub(crate) quarantined: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct Memory {
    pub(crate) total: u64,
    pub(crate) supervisor: u64,
    pub(crate) in_use: u64,
    pub(crate) free: u64,
    pub(crate) leaked: u64,
    pub(crate) quarantined: u64,
}

/// Verdict on an observation; the error says what is wrong.
pub(crate) type Verdict = Result<(), String>;

/// All instances, and what they are made of.
#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) instances: BTreeMap<String, Instance>,
    /// Names of which nothing is known until they are looked for.
    loose: BTreeSet<String>,
    /// Resources before the first instance.
    base: Resources,
    /// The highest number seen.
    last_id: u32,
}

/// Resources that are held: surely, and maybe besides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Held {
    cpus: u64,
    cpus_maybe: u64,
    /// Of created instances.
    staged: u64,
    granted: u64,
    granted_maybe: u64,
}

impl End {
    /// Status that `wait` prints, and that `run` ends with.
    fn status(self) -> Option<(u8, u8)> {
        match self {
            Self::Exited(code) => Some((code, code)),
            Self::Halted => Some((KILLED, KILLED)),
            Self::Panicked => Some((KILLED, OURS)),
            Self::Any => None,
        }
    }

    /// The end that an entry shows.
    fn shown(entry: &Entry) -> Option<Self> {
        Some(match (entry.state.as_str(), entry.exit_code) {
            ("exited", Some(code)) => Self::Exited(code),
            ("panicked", None) => Self::Panicked,
            ("halted", None) => Self::Halted,
            _ => return None,
        })
    }
}

/// Whether `end` is one of these.
fn is_among(ends: &[End], end: End) -> bool {
    ends.iter().any(|known| *known == end || *known == End::Any)
}

impl Spec {
    fn memory_taken(&self) -> u64 {
        self.memory.1.next_multiple_of(GRANULE)
    }

    /// Ways in which the program may end by itself, and whether it surely does.
    fn ends(&self) -> (Vec<End>, bool) {
        let (end, surely) = match self.program {
            Program::Exit(code)
            | Program::Write { code, .. }
            | Program::Cat(code)
            | Program::Count(code) => (Some(End::Exited(code)), true),
            Program::File { code, .. } => (Some(End::Exited(code)), true),
            Program::Fault("hang" | "deaf")
            | Program::Sleep
            | Program::Trap(_)
            | Program::Endless => (None, false),
            Program::Fault(_) => (Some(End::Panicked), true),
        };
        let doubtful = self.memory.1 < SURELY_ENOUGH || matches!(self.root, Root::Broken { .. });
        (
            if doubtful {
                vec![End::Any]
            } else {
                end.into_iter().collect()
            },
            surely,
        )
    }
}

impl Instance {
    fn new(spec: Spec, phase: Phase, input: Vec<u8>) -> Self {
        let (cpus, memory) = (spec.cpus, spec.memory_taken());
        Self {
            spec: Some(spec),
            cpus,
            memory,
            phase,
            ready: false,
            id: None,
            input,
        }
    }

    /// Runs what was created.
    fn started(&self) -> Phase {
        let (ends, surely) = self
            .spec
            .as_ref()
            .map_or((vec![End::Any], false), Spec::ends);
        Phase::Running { ends, surely }
    }

    /// Whether it runs, without a doubt.
    fn surely_runs(&self) -> bool {
        matches!(&self.phase, Phase::Running { ends, .. } if ends.is_empty())
    }

    /// Checks the program's output; `all`: nothing is left out at the beginning.
    fn check(&self, out: &[u8], err: &[u8], all: bool) -> Verdict {
        let Some(spec) = &self.spec else {
            return Ok(());
        };
        let ends = match &self.phase {
            Phase::Created => {
                numbered_lines::same(b"", out)?;
                return numbered_lines::same(b"", err);
            }
            Phase::Running { .. } => &[][..],
            Phase::Ended(ends) => ends,
        };
        if matches!(ends, [End::Any]) {
            return Ok(());
        }
        let by_itself = matches!(ends, [end] if is_among(&spec.ends().0, *end));
        match &spec.program {
            // While it is written, more may be dropped than is read.
            Program::Endless => place(spec.seed, out, ends.is_empty()).map(drop),
            Program::Sleep | Program::Trap(_) | Program::Fault(_) => {
                let text = String::from_utf8_lossy(out);
                let rest = match text.strip_prefix("ready\n") {
                    Some(rest) => rest,
                    None if self.ready || by_itself => {
                        return Err(format!("it was ready, and its output is {text:?}"));
                    }
                    None if text.is_empty() => "",
                    None => return Err(format!("its output is {text:?}")),
                };
                let told = matches!(spec.program, Program::Trap(code) if matches!(ends, [End::Exited(end)] if *end == code));
                let as_told = if told {
                    rest.starts_with("signal ") && rest.lines().count() == 1
                } else {
                    rest.is_empty()
                };
                if as_told || matches!(spec.program, Program::Trap(_)) && !told && ends.len() != 1 {
                    Ok(())
                } else {
                    Err(format!("its output is {text:?}"))
                }
            }
            program => {
                let whole = program
                    .output(spec.seed, &self.input)
                    .ok_or("a program without a known output")?;
                for (whole, seen) in whole.iter().zip([out, err]) {
                    if all && by_itself {
                        numbered_lines::same(whole, seen)?;
                    } else if by_itself {
                        numbered_lines::is_end_of(whole, seen)?;
                    } else if !whole.windows(seen.len().max(1)).any(|piece| piece == seen)
                        && !seen.is_empty()
                    {
                        return Err(format!(
                            "{} bytes that are no piece of what is written",
                            seen.len()
                        ));
                    }
                }
                Ok(())
            }
        }
    }
}

/// Checks that the tool refused: with this status, this in its message, and nothing else printed.
fn refused(seen: &Observed, status: u8, says: &str) -> Verdict {
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

fn succeeded(seen: &Observed, out: &[u8]) -> Verdict {
    if seen.status != 0 {
        return Err("it must succeed".into());
    }
    numbered_lines::same(out, &seen.out)?;
    numbered_lines::same(b"", &seen.err)
}

/// Halting takes no longer than the tool waits, unless whoever runs the machine stops it: then
/// nothing is known yet.
fn is_late(seen: &Observed) -> bool {
    seen.status == 1 && String::from_utf8_lossy(&seen.err).contains(" has not ended after ")
}

fn is_name(name: &str) -> bool {
    let inner = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    name.len() <= 63
        && name.chars().all(inner)
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
}

impl Model {
    /// No instances, and these resources.
    pub(crate) fn new(base: Resources) -> Self {
        Self {
            instances: BTreeMap::new(),
            loose: BTreeSet::new(),
            base,
            last_id: 0,
        }
    }

    /// CPUs that are free at least, and at most.
    pub(crate) fn free_cpus(&self) -> (u32, u32) {
        let held = self.held();
        let free = u64::from(self.base.cpus.free) - held.cpus.min(self.base.cpus.free.into());
        (free.saturating_sub(held.cpus_maybe) as u32, free as u32)
    }

    fn held(&self) -> Held {
        let mut held = Held::default();
        for instance in self.instances.values() {
            let (cpus, memory) = (u64::from(instance.cpus), instance.memory);
            match &instance.phase {
                Phase::Created => {
                    (held.cpus, held.staged) = (held.cpus + cpus, held.staged + memory);
                }
                Phase::Running { .. } if instance.surely_runs() => {
                    (held.cpus, held.granted) = (held.cpus + cpus, held.granted + memory);
                }
                Phase::Running { .. } => {
                    (held.cpus_maybe, held.granted_maybe) =
                        (held.cpus_maybe + cpus, held.granted_maybe + memory);
                }
                Phase::Ended(_) => {}
            }
        }
        held
    }

    /// Possible outcomes of a request: `None` if it is granted, otherwise the text of the refusal.
    fn creation(&self, spec: &Spec) -> Vec<Option<&'static str>> {
        let memory = spec.memory.1;
        let early = [
            (memory == 0, "is not a size"),
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
        if spec.cpus <= most {
            let held = self.held();
            let taken = held.staged + held.granted + held.granted_maybe;
            possible.push(match spec.root {
                _ if spec.memory_taken() > self.base.memory.free.saturating_sub(taken) => {
                    Some("free (asked for")
                }
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

    /// The tool was killed in the middle of it, or did it beside others: what became of it will be
    /// seen.
    pub(crate) fn loosen(&mut self, op: &Op) {
        match op.name() {
            Some(name) => drop(self.loose.insert(name.to_owned())),
            None => {
                let may_be_gone = |instance: &Instance| {
                    instance.phase != Phase::Created && !instance.surely_runs()
                };
                let names = self
                    .instances
                    .iter()
                    .filter(|(_, instance)| may_be_gone(instance))
                    .map(|(name, _)| name.clone());
                self.loose.extend(names);
            }
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
            Op::Run { .. } => Err("judged with its input".into()),
            Op::Start(name) => self.judge_start(name, seen),
            Op::Stop(name) => self.judge_end(name, seen, false),
            Op::StopForce(name) => self.judge_end(name, seen, true),
            Op::Kill(name, signal) => self.judge_kill(name, *signal, seen),
            Op::Wait(name, _) => self.judge_wait(name, seen),
            Op::Logs(name) | Op::Ready(name) => {
                let Some(instance) = self.instances.get(name) else {
                    return refused(seen, 1, "no instance is called");
                };
                if seen.status != 0 {
                    return Err("it must succeed".into());
                }
                instance.check(&seen.out, &seen.err, false)
            }
            Op::Attach(name) => match self.instances.get(name).map(|instance| &instance.phase) {
                None => refused(seen, 1, "no instance is called"),
                Some(Phase::Created) => refused(seen, 1, "was not started"),
                Some(Phase::Ended(_)) => refused(seen, 1, "has "),
                // It was there until the end, or came too late.
                Some(Phase::Running { .. }) => Ok(()),
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
        ends.push(End::Halted);
        if !force {
            ends.push(End::Exited(128 + 15));
            ends.extend(match instance.spec.as_ref().map(|spec| &spec.program) {
                Some(Program::Trap(code)) => Some(End::Exited(*code)),
                _ => None,
            });
        }
        if is_late(seen) {
            return Ok(());
        }
        instance.phase = Phase::Ended(std::mem::take(ends));
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
        self.instances.remove(name);
        succeeded(seen, format!("{name}\n").as_bytes())
    }

    fn judge_remove_force(&mut self, name: &str, seen: &Observed) -> Verdict {
        let Some(instance) = self.instances.get_mut(name) else {
            return refused(seen, 1, "no instance is called");
        };
        if let (Phase::Running { ends, .. }, true) = (&mut instance.phase, is_late(seen)) {
            ends.push(End::Halted);
            return Ok(());
        }
        self.instances.remove(name);
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

    /// The program has said that it is ready.
    pub(crate) fn is_ready(&mut self, name: &str) {
        if let Some(instance) = self.instances.get_mut(name) {
            instance.ready = true;
        }
    }

    /// Whether so much output means that the program is ready.
    pub(crate) fn tells_ready(&self, name: &str, out: &[u8]) -> bool {
        let spec = self
            .instances
            .get(name)
            .and_then(|instance| instance.spec.as_ref());
        spec.is_some_and(|spec| {
            spec.program == Program::Endless && out.len() >= numbered_lines::LINE
        }) || out.starts_with(READY)
    }

    /// Checks that `ls` shows a possible state, and settles what was in doubt.
    pub(crate) fn observe(&mut self, entries: &[Entry]) -> Verdict {
        let names: BTreeSet<&str> = entries.iter().map(|entry| entry.name.as_str()).collect();
        if names.len() != entries.len() {
            return Err("two instances have one name".into());
        }
        let ids: Vec<u32> = entries.iter().map(|entry| entry.id).collect();
        if !ids.is_sorted() {
            return Err(format!(
                "the numbers are not in the order of creation: {ids:?}"
            ));
        }
        for name in std::mem::take(&mut self.loose) {
            match entries.iter().find(|entry| entry.name == name) {
                None => drop(self.instances.remove(&name)),
                Some(entry) => self.adopt(entry),
            }
        }
        if let Some(missing) = self
            .instances
            .keys()
            .find(|name| !names.contains(name.as_str()))
        {
            return Err(format!("{missing} is gone"));
        }
        entries.iter().try_for_each(|entry| self.observe_one(entry))
    }

    /// Takes over what is seen of an instance of which nothing is known.
    fn adopt(&mut self, entry: &Entry) {
        let phase = match entry.state.as_str() {
            "created" => Phase::Created,
            "running" => Phase::Running {
                ends: vec![End::Any],
                surely: false,
            },
            _ => Phase::Ended(vec![End::Any]),
        };
        let (cpus, memory) = (entry.cpus, entry.memory);
        let instance = Instance {
            spec: None,
            cpus,
            memory,
            phase,
            ready: false,
            id: None,
            input: Vec::new(),
        };
        self.instances.insert(entry.name.clone(), instance);
    }

    fn observe_one(&mut self, entry: &Entry) -> Verdict {
        let Some(instance) = self.instances.get_mut(&entry.name) else {
            return Err(format!("there is {entry:?}"));
        };
        if (entry.cpus, entry.memory) != (instance.cpus, instance.memory) {
            return Err(format!(
                "{entry:?} has not {} CPUs and {} bytes",
                instance.cpus, instance.memory
            ));
        }
        match instance.id {
            Some(id) if id != entry.id => return Err(format!("{entry:?} had number {id}")),
            None if entry.id <= self.last_id && instance.spec.is_some() => {
                return Err(format!("{entry:?} has an old number"));
            }
            _ => instance.id = Some(entry.id),
        }
        self.last_id = self.last_id.max(entry.id);
        if let Some(reclaim) = &entry.reclaim
            && (
                reclaim.lost_cpus,
                reclaim.leaked_bytes,
                reclaim.scrubbed_bytes,
            ) != (0, 0, instance.memory)
        {
            return Err(format!("not everything came back: {entry:?}"));
        }
        let wrong = || Err(format!("{entry:?} is not {:?}", instance.phase));
        let possible = match &instance.phase {
            Phase::Created if entry.state == "created" => return Ok(()),
            Phase::Created => return wrong(),
            Phase::Running { .. } if entry.state == "running" => return Ok(()),
            Phase::Running { ends, .. } | Phase::Ended(ends) => ends,
        };
        match End::shown(entry).filter(|end| is_among(possible, *end)) {
            Some(_) if possible.contains(&End::Any) => {
                instance.phase = Phase::Ended(vec![End::Any]);
            }
            Some(end) => instance.phase = Phase::Ended(vec![end]),
            None => return wrong(),
        }
        Ok(())
    }

    /// Everything belongs to somebody: free, used and the supervisor's are the whole, and nothing
    /// is lost.
    pub(crate) fn account(&self, now: &Resources) -> Verdict {
        let (base, held) = (&self.base, self.held());
        let check = |what: &str, holds: bool| {
            if holds {
                Ok(())
            } else {
                Err(format!("{what}: {now:?}, with {held:?} of {base:?}"))
            }
        };
        let between = |value: u64, least: u64, more: u64| least <= value && value <= least + more;
        check("CPUs are lost", now.cpus.lost == 0)?;
        check("memory is leaked", now.memory.leaked == 0)?;
        check(
            "something is in quarantine",
            (now.cpus.quarantined, now.memory.quarantined) == (0, 0),
        )?;
        check("instances", now.instances == self.instances.len())?;
        check(
            "all CPUs",
            (now.cpus.total, now.cpus.supervisor) == (base.cpus.total, base.cpus.supervisor),
        )?;
        check(
            "CPUs of instances",
            between(now.cpus.in_use.into(), held.cpus, held.cpus_maybe),
        )?;
        check(
            "free CPUs",
            now.cpus.free + now.cpus.in_use + now.cpus.supervisor == now.cpus.total,
        )?;
        check("all memory", now.memory.total == base.memory.total)?;
        check(
            "memory of instances",
            between(now.memory.in_use, held.granted, held.granted_maybe),
        )?;
        let sum = now.memory.free + now.memory.in_use + now.memory.supervisor;
        check("the sum of the memory", sum == now.memory.total)?;
        let records = self.instances.len() as u64 * PER_INSTANCE;
        let own = (base.memory.supervisor + held.staged).saturating_sub(SLACK);
        check(
            "memory of the supervisor",
            between(
                now.memory.supervisor,
                own,
                2 * SLACK + records + held.granted_maybe,
            ),
        )
    }
}

#[cfg(test)]
mod tests;
