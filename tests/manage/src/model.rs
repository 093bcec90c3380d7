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

use crate::numbered_lines;
use crate::spec::{Op, Program, READY, Resize, Root, Spec};

mod apply;
mod changes;
mod output;
mod verbs;

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

/// Whether the CPUs of an instance stand still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pause {
    No,
    /// The CPUs will stand still, or do, unless one hangs. Of an instance of which nothing is
    /// known, maybe not even that.
    Asked,
    Yes,
}

/// The declared set that an instance belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Project {
    None,
    Ours,
    Unknown,
}

/// An instance that the tool knows.
#[derive(Clone, Debug)]
pub(crate) struct Instance {
    /// The options that the tool remembers. `None`: a tool was killed, or raced with another, while
    /// it did something to it.
    pub(crate) spec: Option<Spec>,
    /// CPUs and memory that it has.
    pub(crate) cpus: u32,
    pub(crate) memory: u64,
    /// Memory that it was created with.
    pub(crate) first_memory: u64,
    /// Amounts that it has besides, or has not any more, if it answers.
    pending: Option<(u32, u64)>,
    pub(crate) pause: Pause,
    pub(crate) phase: Phase,
    /// Whether the program has said that it is ready.
    pub(crate) ready: bool,
    /// Number of the instance, once seen.
    id: Option<u32>,
    input: Vec<u8>,
    project: Project,
    /// Name of the one whose place it took.
    pub(crate) previous: Option<String>,
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
    pub(crate) id: u32,
    pub(crate) state: String,
    exit_code: Option<u8>,
    pub(crate) cpus: u32,
    pub(crate) memory: u64,
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
    /// Names of those in which a program may still be at work whose tool was killed, or had rivals.
    execs_left: BTreeSet<String>,
    /// The same holds of all names that no user can give.
    loose_asides: bool,
    /// The most CPUs and memory that those of which nothing is known may come to have.
    loose_sizes: (u32, u64),
    /// An `apply` may have been killed in the middle.
    unfinished_apply: bool,
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

/// Whether no user can give this name: it is of an instance that is not needed, yet or any more.
pub(crate) fn is_aside(name: &str) -> bool {
    name.starts_with('~')
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
            first_memory: memory,
            pending: None,
            pause: Pause::No,
            phase,
            ready: false,
            id: None,
            input,
            project: Project::None,
            previous: None,
        }
    }

    /// Takes over what is seen of one of which nothing is known; it may come to have these amounts.
    fn unknown(entry: &Entry, sizes: (u32, u64)) -> Self {
        let running = Phase::Running {
            ends: vec![End::Any],
            surely: false,
        };
        let (phase, pause) = match entry.state.as_str() {
            "created" => (Phase::Created, Pause::No),
            "running" => (running, Pause::Asked),
            "paused" => (running, Pause::Yes),
            _ => (Phase::Ended(vec![End::Any]), Pause::No),
        };
        let runs = matches!(phase, Phase::Running { .. });
        Self {
            spec: None,
            cpus: entry.cpus,
            memory: entry.memory,
            first_memory: entry.memory,
            pending: Some(sizes).filter(|sizes| runs && *sizes != (0, 0)),
            pause,
            phase,
            ready: false,
            id: None,
            input: Vec::new(),
            project: Project::Unknown,
            previous: None,
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
    pub(crate) fn surely_runs(&self) -> bool {
        match &self.phase {
            Phase::Running { ends, .. } => ends.is_empty() || self.pause == Pause::Yes,
            Phase::Created | Phase::Ended(_) => false,
        }
    }

    /// Whether it has not answered a change.
    pub(crate) fn pending(&self) -> bool {
        self.pending.is_some()
    }

    fn program(&self) -> Option<&Program> {
        self.spec.as_ref().map(|spec| &spec.program)
    }

    /// Whether it may not do what it is told because its kernel does not get on.
    pub(crate) fn may_hang(&self) -> bool {
        matches!(self.program(), None | Some(Program::Fault("hang" | "deaf")))
    }

    /// Adds the ways in which it may end if it is asked to, and then halted.
    fn told_to_end(&mut self) {
        self.pause = Pause::No;
        let handled = match self.program() {
            Some(Program::Trap(code)) => Some(End::Exited(*code)),
            _ => None,
        };
        if let Phase::Running { ends, .. } = &mut self.phase {
            ends.extend(
                [End::Halted, End::Exited(128 + 15)]
                    .into_iter()
                    .chain(handled),
            );
        }
    }

    /// Takes in that it has ended, in one of the ways that it may.
    fn has_ended(&mut self) {
        self.pause = Pause::No;
        if let Phase::Running { ends, .. } = &mut self.phase {
            self.phase = Phase::Ended(std::mem::take(ends));
        }
    }
}

impl Model {
    /// No instances, and these resources.
    pub(crate) fn new(base: Resources) -> Self {
        Self {
            instances: BTreeMap::new(),
            loose: BTreeSet::new(),
            execs_left: BTreeSet::new(),
            loose_asides: false,
            loose_sizes: (0, 0),
            unfinished_apply: false,
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

    /// Memory that is free at least, and at most.
    pub(crate) fn free_memory(&self) -> (u64, u64) {
        let held = self.held();
        let free = (self.base.memory.free).saturating_sub(held.staged + held.granted);
        (free.saturating_sub(held.granted_maybe), free)
    }

    fn held(&self) -> Held {
        let mut held = Held::default();
        for instance in self.instances.values() {
            let (cpus, memory) = (u64::from(instance.cpus), instance.memory);
            let (least, most) = match instance.pending {
                None => ((cpus, memory), (cpus, memory)),
                Some((other, bytes)) => (
                    (cpus.min(other.into()), memory.min(bytes)),
                    (cpus.max(other.into()), memory.max(bytes)),
                ),
            };
            match &instance.phase {
                Phase::Created => {
                    (held.cpus, held.staged) = (held.cpus + cpus, held.staged + memory);
                }
                Phase::Running { .. } if instance.surely_runs() => {
                    (held.cpus, held.granted) = (held.cpus + least.0, held.granted + least.1);
                    held.cpus_maybe += most.0 - least.0;
                    held.granted_maybe += most.1 - least.1;
                }
                Phase::Running { .. } => {
                    held.cpus_maybe += most.0;
                    held.granted_maybe += most.1;
                }
                Phase::Ended(_) => {}
            }
        }
        held
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

    /// The tool was killed in the middle of it, or did it beside others: what became of it will be
    /// seen.
    pub(crate) fn loosen(&mut self, op: &Op) {
        if let Op::Exec(exec) = op {
            self.execs_left.insert(exec.name.clone());
            return;
        }
        let names: Vec<String> = op.names().into_iter().map(str::to_owned).collect();
        self.loose.extend(names);
        match op {
            Op::Prune => {
                let may_be_gone = |instance: &Instance| {
                    instance.phase != Phase::Created && !instance.surely_runs()
                };
                let gone = self.instances.iter().filter(|(_, one)| may_be_gone(one));
                self.loose.extend(gone.map(|(name, _)| name.clone()));
            }
            Op::Resize(Resize { cpus, memory, .. }) => {
                let bytes = memory.as_ref().map_or(0, |memory| memory.1);
                // More than there is was refused, as a whole.
                if bytes <= self.base.memory.free {
                    self.may_come_to_have(cpus.unwrap_or(0), bytes);
                }
            }
            Op::Apply { specs, prune } => {
                let of_set = |instance: &Instance| instance.project != Project::None;
                let declared = self
                    .instances
                    .iter()
                    .filter(|(_, one)| *prune && of_set(one));
                self.loose.extend(declared.map(|(name, _)| name.clone()));
                for spec in specs {
                    self.may_come_to_have(spec.cpus, spec.memory.1);
                }
                self.unfinished_apply = true;
            }
            _ => {}
        }
        self.loose_asides |= matches!(
            op,
            Op::Prune | Op::Apply { .. } | Op::Restart(_) | Op::Remove(_) | Op::RemoveForce(_)
        );
    }

    fn may_come_to_have(&mut self, cpus: u32, bytes: u64) {
        let (most, memory) = self.loose_sizes;
        let bytes = bytes.next_multiple_of(GRANULE);
        self.loose_sizes = (most.max(cpus), memory.max(bytes));
    }

    /// Whether it is known what an instance has, and whether it is paused.
    pub(crate) fn is_settled(&self, name: &str) -> bool {
        let pause = |instance: &Instance| instance.pause != Pause::Asked;
        self.instances
            .get(name)
            .is_some_and(|one| one.pending.is_none() && pause(one))
    }

    /// Whether what there is has to be seen before anything can be said of names that no user can
    /// give.
    pub(crate) fn must_look(&self) -> bool {
        self.loose_asides
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
        let mut loose = std::mem::take(&mut self.loose);
        if std::mem::take(&mut self.loose_asides) {
            let asides = (self.instances.keys().map(String::as_str)).chain(names.iter().copied());
            loose.extend(asides.filter(|name| is_aside(name)).map(str::to_owned));
        }
        let sizes = std::mem::take(&mut self.loose_sizes);
        for name in loose {
            match entries.iter().find(|entry| entry.name == name) {
                None => drop(self.instances.remove(&name)),
                Some(entry) => {
                    let unknown = Instance::unknown(entry, sizes);
                    self.instances.insert(name, unknown);
                }
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

    fn observe_one(&mut self, entry: &Entry) -> Verdict {
        let Some(instance) = self.instances.get_mut(&entry.name) else {
            return Err(format!("there is {entry:?}"));
        };
        let (has, shown) = ((instance.cpus, instance.memory), (entry.cpus, entry.memory));
        if has != shown {
            // One of which nothing is known may have answered one of several changes.
            let answered = match instance.pending {
                Some(_) if instance.spec.is_none() => true,
                pending => pending == Some(shown),
            };
            if !answered {
                return Err(format!(
                    "{entry:?} has not {} CPUs and {} bytes",
                    has.0, has.1
                ));
            }
            (instance.cpus, instance.memory) = shown;
            instance.pending.take_if(|_| instance.spec.is_some());
        }
        match instance.id {
            Some(id) if id != entry.id => return Err(format!("{entry:?} had number {id}")),
            None if entry.id <= self.last_id && instance.spec.is_some() => {
                return Err(format!("{entry:?} has an old number"));
            }
            _ => instance.id = Some(entry.id),
        }
        self.last_id = self.last_id.max(entry.id);
        if let Some(reclaim) = &entry.reclaim {
            // What it was given and has not answered comes back, too.
            let (least, most) = match (instance.pending, &instance.spec) {
                (None, _) => (instance.memory, instance.memory),
                (Some((_, bytes)), Some(_)) if bytes >= instance.memory => (bytes, bytes),
                // What it was to give back may have come back before.
                (Some((_, bytes)), Some(_)) => (bytes, instance.memory),
                (Some((_, bytes)), None) => (instance.memory, bytes.max(instance.memory)),
            };
            let all = (least..=most).contains(&reclaim.scrubbed_bytes);
            if !all || (reclaim.lost_cpus, reclaim.leaked_bytes) != (0, 0) {
                return Err(format!("not everything came back: {entry:?}"));
            }
        }
        let wrong = || Err(format!("{entry:?} is not {instance:?}"));
        let possible = match (&instance.phase, entry.state.as_str(), instance.pause) {
            (Phase::Created, "created", _) | (Phase::Running { .. }, "paused", Pause::Yes) => {
                return Ok(());
            }
            (Phase::Created, ..) | (Phase::Running { .. }, _, Pause::Yes) => return wrong(),
            (Phase::Running { .. }, "running", _) => return Ok(()),
            (Phase::Running { .. }, "paused", Pause::Asked) => {
                instance.pause = Pause::Yes;
                return Ok(());
            }
            (Phase::Running { ends, .. } | Phase::Ended(ends), ..) => ends,
        };
        match End::shown(entry).filter(|end| is_among(possible, *end)) {
            Some(_) if possible.contains(&End::Any) => {
                instance.phase = Phase::Ended(vec![End::Any]);
            }
            Some(end) => instance.phase = Phase::Ended(vec![end]),
            None => return wrong(),
        }
        instance.pause = Pause::No;
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
