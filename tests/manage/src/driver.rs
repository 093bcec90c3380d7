//! Carries the steps out, and looks after each whether everything is as the model says.

use std::collections::BTreeMap;
use std::fs;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use serde_json::Value;

use crate::events::{Event, Events};
use crate::model::{Entry, Model, Observed, Pause, Phase, Resources, SLACK, Verdict};
use crate::random::Random;
use crate::spec::{self, Op, Program, Reader, Root, RunMode, Spec, Step};
use crate::tool::{self, Options, Tool};
use crate::{generator, numbered_lines, rootfs};

/// Steps from one empty machine to the next.
const SETTLE: u64 = 15;
/// Bytes that each of two readers has before what they follow is halted.
const FOLLOWED: usize = 20_000;
/// Lines of a kernel's log that are shown, and bytes of what a tool wrote.
const LOG_LINES: usize = 20;
const EXCERPT: usize = 400;
/// The supervisor's own account of its memory.
const MEMORY: &str = "/proc/skerry/memory";

/// Events that are looked at after each step; if there are more, all.
const EVENTS: usize = 48;
/// Time limit for CPUs that are to stand still, as for a tool.
const PATIENCE: Duration = Duration::from_secs(150);

/// Operations to be carried out.
#[derive(Clone, Copy)]
pub(crate) struct Work {
    pub(crate) seed: u64,
    /// The first step: all instances have been removed before it.
    pub(crate) first: u64,
    /// Number of steps; as many as there is time for, without.
    pub(crate) steps: Option<u64>,
    /// Time to drive.
    pub(crate) time: Duration,
}

/// `inspect --json` of one that is paused.
#[derive(Deserialize)]
struct Inspected {
    id: u32,
    usage: Usage,
}

/// Counts of an instance that stay while it is paused.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
struct Usage {
    user_us: f64,
    system_us: f64,
    idle_us: f64,
    switches: u64,
    interrupts: u64,
}

/// State before the first instance, beyond what the tool tells.
struct Base {
    resources: Resources,
    free_kib: u64,
}

struct Drive {
    seed: u64,
    model: Model,
    events: Events,
    /// Usage of paused instances when they were seen so first, by number.
    paused: BTreeMap<u32, Usage>,
    base: Base,
    /// Number of the step, and of the first one since everything was removed.
    steps: u64,
    since: u64,
    tools: u64,
    /// Number of uses of each verb.
    verbs: BTreeMap<String, u64>,
}

/// Carries it out.
pub(crate) fn run(work: Work) -> Result<ExitCode> {
    let start = Instant::now();
    let mut drive = Drive::new(work)?;
    let goes_on = |done: u64| match work.steps {
        Some(steps) => done < work.first + steps,
        None => start.elapsed() < work.time,
    };
    let outcome = drive.go(goes_on);
    let Drive {
        seed,
        steps,
        tools,
        since,
        ..
    } = drive;
    if let Err(error) = outcome {
        println!("manage: seed {seed}, step {steps}: {error:#}");
        drive.explain();
        // Whatever was before the last moment at which there was nothing does not matter.
        let failure = serde_json::json!({ "first": since, "steps": steps + 1 - since });
        println!("manage-failure {failure}");
        return Ok(ExitCode::FAILURE);
    }
    let result = serde_json::json!({
        "seed": seed, "steps": steps - work.first, "tools": tools, "verbs": drive.verbs,
    });
    println!("manage-result {result}");
    Ok(ExitCode::SUCCESS)
}

impl Drive {
    fn new(work: Work) -> Result<Self> {
        rootfs::make()?;
        // What is made once and kept has been made when the resources are counted.
        for number in 0..3 {
            let program = Program::Write {
                out: 20_000,
                err: 20_000,
                code: 7,
            };
            let (name, memory) = (format!("first{number}"), ("64M".to_owned(), 64 << 20));
            let spec = Spec {
                name,
                cpus: 1,
                memory,
                root: Root::Folder,
                program,
                seed: 0,
            };
            let op = Op::Run {
                spec,
                reader: Reader::Fast,
                input: 0,
                remove: number > 0,
            };
            ensure!(
                tool::run(&op.arguments())?.status == 7,
                "the first instance did not run: {op}"
            );
        }
        tool::run(&Op::Prune.arguments())?;
        let base = Base {
            resources: resources()?,
            free_kib: free_kib()?,
        };
        println!("manage: {:?}", base.resources);
        Ok(Self {
            seed: work.seed,
            model: Model::new(base.resources),
            events: Events::after(&events(None)?),
            paused: BTreeMap::new(),
            base,
            steps: work.first,
            since: work.first,
            tools: 0,
            verbs: BTreeMap::new(),
        })
    }

    fn go(&mut self, goes_on: impl Fn(u64) -> bool) -> Result<()> {
        while goes_on(self.steps) {
            let mut random = Random::new(self.seed, self.steps);
            let step = generator::step(&mut random, &self.model);
            println!("step {}: {step}", self.steps);
            self.carry_out(&step)?;
            self.look()?;
            self.reread(&mut random)?;
            let unclear = !matches!(step, Step::One(_, RunMode::Alone | RunMode::AsNobody));
            if unclear && random.once_in(2) {
                self.clear(&step)?;
            }
            self.steps += 1;
            if self.steps.is_multiple_of(SETTLE) {
                self.settle()?;
                self.since = self.steps;
            }
        }
        self.settle()
    }

    fn carry_out(&mut self, step: &Step) -> Result<()> {
        match step {
            Step::One(op, RunMode::Alone) => self.alone(op),
            Step::One(op, RunMode::Killed(after)) => {
                let tool = self.start(op, false)?;
                tool.kill_after(Duration::from_micros(*after));
                let seen = tool.finish()?;
                println!("  status {}", seen.status);
                self.model.loosen(op);
                Ok(())
            }
            Step::One(op, RunMode::AsNobody) => {
                let seen = self.start(op, true)?.finish()?;
                judged(op, &seen, Model::judge_nobody(op, &seen))
            }
            Step::Race(ops) => {
                let tools: Vec<Tool> = ops
                    .iter()
                    .map(|op| self.start(op, false))
                    .collect::<Result<_>>()?;
                for (tool, op) in tools.into_iter().zip(ops) {
                    println!("  status {}", tool.finish()?.status);
                    self.model.loosen(op);
                }
                Ok(())
            }
        }
    }

    /// Starts the tool for an operation.
    fn start(&mut self, op: &Op, nobody: bool) -> Result<Tool> {
        self.start_telling(op, nobody, 0)
    }

    fn start_telling(&mut self, op: &Op, nobody: bool, tell_after: usize) -> Result<Tool> {
        self.tools += 1;
        let arguments = op.arguments();
        *self.verbs.entry(arguments[0].clone()).or_default() += 1;
        if let Op::Apply { specs, .. } = op {
            fs::write(spec::SET, spec::declaration(specs))?;
        }
        let reader = match op {
            Op::Run { reader, .. } | Op::Follow { reader, .. } => reader.clone(),
            _ => Reader::Fast,
        };
        Tool::start(
            &arguments,
            Options {
                input: &input(op),
                reader,
                nobody,
                tell_after,
            },
        )
    }

    fn alone(&mut self, op: &Op) -> Result<()> {
        match op {
            Op::Run {
                spec,
                reader,
                remove,
                ..
            } => {
                let tool = self.start(op, false)?;
                if *reader == Reader::Late {
                    self.await_standstill(&tool, &spec.name)?;
                }
                let seen = tool.finish()?;
                let whole = !matches!(reader, Reader::Dies(_));
                let judgement = self.model.judge_run(spec, input(op), whole, *remove, &seen);
                judged(op, &seen, judgement)
            }
            Op::Wait(_, count) => {
                let tools: Vec<Tool> = (0..*count)
                    .map(|_| self.start(op, false))
                    .collect::<Result<_>>()?;
                tools
                    .into_iter()
                    .try_for_each(|tool| self.judge(op, &tool.finish()?))
            }
            Op::Follow { name, attach, .. } => self.follow(op, name, *attach),
            Op::Ready(name) => self.await_ready(op, name),
            Op::Exec(exec) => {
                let seen = self.start(op, false)?.finish()?;
                let judgement = self.model.judge_exec(exec, &input(op), &seen);
                judged(op, &seen, judgement)
            }
            Op::Pause(name) => {
                let seen = self.start(op, false)?.finish()?;
                self.judge(op, &seen)?;
                self.await_pause(name)
            }
            _ => {
                let seen = self.start(op, false)?.finish()?;
                self.judge(op, &seen)
            }
        }
    }

    fn judge(&mut self, op: &Op, seen: &Observed) -> Result<()> {
        let judgement = self.model.judge(op, seen);
        judged(op, seen, judgement)
    }

    /// Two tools follow what is written without end, until its instance is halted.
    fn follow(&mut self, op: &Op, name: &str, attach: bool) -> Result<()> {
        let tools = [
            self.start_telling(op, false, FOLLOWED)?,
            self.start_telling(op, false, FOLLOWED)?,
        ];
        for tool in &tools {
            tool.await_progress()?;
            tool.stop_and_go();
        }
        let stop = Op::StopForce(name.to_owned());
        let stopped = self.start(&stop, false)?.finish()?;
        self.judge(&stop, &stopped)?;
        let seen = tools
            .into_iter()
            .map(Tool::finish)
            .collect::<Result<Vec<_>>>()?;
        let logs = self.start(&Op::Logs(name.to_owned()), false)?.finish()?;
        for one in &seen {
            judged(op, one, self.model.judge_follower(name, attach, one, &logs))?;
        }
        Ok(())
    }

    /// Waits until the program writes no more, because it has ended or because nobody reads: what
    /// is kept of it stays the same.
    fn await_standstill(&mut self, tool: &Tool, name: &str) -> Result<()> {
        let mut before = Vec::new();
        while !tool.has_ended() {
            let kept = self.start(&Op::Logs(name.to_owned()), false)?.finish()?.out;
            if !kept.is_empty() && kept == before {
                break;
            }
            before = kept;
        }
        Ok(())
    }

    /// Looks again and again until the program has said that it is ready, or does not run any more.
    fn await_ready(&mut self, op: &Op, name: &str) -> Result<()> {
        loop {
            let seen = self.start(op, false)?.finish()?;
            self.judge(op, &seen)?;
            if self.model.tells_ready(name, &seen.out) {
                self.model.is_ready(name);
                return Ok(());
            }
            self.look()?;
            let runs = |phase: &Phase| matches!(phase, Phase::Running { .. });
            if !self
                .model
                .instances
                .get(name)
                .is_some_and(|instance| runs(&instance.phase))
            {
                return Ok(());
            }
        }
    }

    /// Looks until an instance stands still whose CPUs were late, if it runs.
    fn await_pause(&mut self, name: &str) -> Result<()> {
        let start = Instant::now();
        while self.model.will_be_paused(name) {
            ensure!(start.elapsed() < PATIENCE, "{name} does not stand still");
            self.look()?;
        }
        Ok(())
    }

    /// Looks at everything: each instance is in a state in which it can be, and all resources
    /// belong to somebody.
    fn look(&mut self) -> Result<()> {
        let seen = tool::run(&["ls".into(), "-a".into(), "--json".into()])?;
        let entries: Vec<Entry> =
            serde_json::from_slice(&seen.out).with_context(|| format!("`skerry ls`: {seen:?}"))?;
        let wrong = |what| anyhow::Error::msg(format!("afterwards: {what}"));
        self.model.observe(&entries).map_err(wrong)?;
        self.model.account(&resources()?).map_err(wrong)?;
        let mut told = events(Some(EVENTS))?;
        if !self.events.reaches_back(&told) {
            told = events(None)?;
        }
        self.events.add(&told).map_err(wrong)?;
        let model = &self.model;
        self.events
            .tell(&entries, |name| model.is_settled(name))
            .map_err(wrong)?;
        self.look_at_paused()
    }

    /// Whoever is paused has done nothing since it is.
    fn look_at_paused(&mut self) -> Result<()> {
        let is_paused = |name: &&String| self.model.instances[*name].pause == Pause::Yes;
        let names: Vec<String> = self
            .model
            .instances
            .keys()
            .filter(is_paused)
            .cloned()
            .collect();
        let before = std::mem::take(&mut self.paused);
        for name in names {
            let seen = tool::run(&["inspect".into(), "--json".into(), name.clone()])?;
            let now: Inspected = serde_json::from_slice(&seen.out)
                .with_context(|| format!("`skerry inspect`: {seen:?}"))?;
            if let Some(before) = before.get(&now.id) {
                ensure!(
                    *before == now.usage,
                    "{name} is paused, and goes on: {:?} was {before:?}",
                    now.usage
                );
            }
            self.paused.insert(now.id, now.usage);
        }
        Ok(())
    }

    /// Reads again what one of those has written that have ended: it is kept.
    fn reread(&mut self, random: &mut Random) -> Result<()> {
        let has_ended =
            |name: &&String| matches!(self.model.instances[*name].phase, Phase::Ended(_));
        let names: Vec<String> = self
            .model
            .instances
            .keys()
            .filter(has_ended)
            .cloned()
            .collect();
        if names.is_empty() {
            return Ok(());
        }
        let op = Op::Logs(random.pick(&names));
        let seen = self.start(&op, false)?.finish()?;
        self.judge(&op, &seen)
    }

    /// Removes what nothing is known of.
    fn clear(&mut self, step: &Step) -> Result<()> {
        let ops = match step {
            Step::One(op, _) => std::slice::from_ref(op),
            Step::Race(ops) => ops,
        };
        for name in ops.iter().flat_map(Op::names) {
            if self.model.instances.contains_key(name) {
                self.remove(name)?;
            }
        }
        self.look()
    }

    fn remove(&mut self, name: &str) -> Result<()> {
        while self.model.instances.contains_key(name) {
            self.alone(&Op::RemoveForce(name.to_owned()))?;
            if self.model.must_look() {
                self.look()?;
            }
        }
        Ok(())
    }

    /// Removes everything: then everything is as it was.
    fn settle(&mut self) -> Result<()> {
        let names: Vec<String> = self.model.instances.keys().cloned().collect();
        names.iter().try_for_each(|name| self.remove(name))?;
        self.look()?;
        let (now, base) = (resources()?, &self.base.resources);
        ensure!(
            now.cpus == base.cpus && now.instances == 0,
            "with everything removed: {now:?} was {base:?}"
        );
        ensure!(
            now.memory.in_use == 0 && now.memory.free.abs_diff(base.memory.free) <= SLACK,
            "with everything removed memory is missing: {now:?} was {base:?}"
        );
        let free = free_kib()?;
        ensure!(
            free.abs_diff(self.base.free_kib) << 10 <= SLACK,
            "with everything removed {free} KiB are free; {} were",
            self.base.free_kib
        );
        let account = fs::read_to_string(MEMORY)?;
        ensure!(
            account.contains(" granted 0 leaked 0"),
            "with everything removed: {account}"
        );
        Ok(())
    }

    /// Shows what there is.
    fn explain(&self) {
        let show = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            let Ok(seen) = tool::run(&words) else { return };
            let text = String::from_utf8_lossy(&seen.out).into_owned()
                + &String::from_utf8_lossy(&seen.err);
            let all: Vec<&str> = text.lines().collect();
            println!(
                "skerry {}:\n{}",
                words.join(" "),
                all[all.len().saturating_sub(LOG_LINES)..].join("\n")
            );
        };
        show(&["resources"]);
        show(&["ls"]);
        for name in self.model.instances.keys() {
            println!("the model of {name}: {:?}", self.model.instances[name]);
            show(&["logs", "--kernel", name]);
        }
        println!("{}", fs::read_to_string(MEMORY).unwrap_or_default());
    }
}

/// The last so many events, or all that are kept.
fn events(tail: Option<usize>) -> Result<Vec<Event>> {
    let mut words = vec!["events".to_owned(), "--json".into()];
    words.extend(tail.iter().flat_map(|tail| ["-n".into(), tail.to_string()]));
    let seen = tool::run(&words)?;
    let lines = serde_json::Deserializer::from_slice(&seen.out).into_iter::<Value>();
    let event = |line: serde_json::Result<Value>| Ok(serde_json::from_value(line?)?);
    lines
        .map(event)
        .collect::<Result<_>>()
        .context("`skerry events`")
}

/// Standard input of an operation's tool.
fn input(op: &Op) -> Vec<u8> {
    let (seed, input) = match op {
        Op::Run { spec, input, .. } => (spec.seed, *input),
        Op::Exec(exec) => (exec.seed, exec.input),
        _ => return Vec::new(),
    };
    let mut bytes = numbered_lines::lines(seed ^ 1, (input / numbered_lines::LINE + 1) as u64);
    bytes.truncate(input);
    bytes
}

fn judged(op: &Op, seen: &Observed, judgement: Verdict) -> Result<()> {
    let Err(why) = judgement else { return Ok(()) };
    let shorten =
        |bytes: &[u8]| String::from_utf8_lossy(&bytes[..bytes.len().min(EXCERPT)]).into_owned();
    bail!(
        "{op}: {why}\n  its status is {}, its output ({} bytes) {:?}, its error output {:?}",
        seen.status,
        seen.out.len(),
        shorten(&seen.out),
        shorten(&seen.err)
    )
}

/// The machine's resources, as if this program used no memory: what it keeps of its own grows with
/// the steps that it makes.
pub(crate) fn resources() -> Result<Resources> {
    let seen = tool::run(&["resources".into(), "--json".into()])?;
    let mut resources: Resources = serde_json::from_slice(&seen.out)
        .with_context(|| format!("`skerry resources`: {seen:?}"))?;
    let own = own_kib()? << 10;
    resources.memory.supervisor = resources.memory.supervisor.saturating_sub(own);
    resources.memory.free += own;
    Ok(resources)
}

/// Free memory as Linux programs see it, and what this program uses.
fn free_kib() -> Result<u64> {
    Ok(kib("/proc/meminfo", "MemFree:")? + own_kib()?)
}

/// Memory that this program alone uses.
fn own_kib() -> Result<u64> {
    kib("/proc/self/status", "RssAnon:")
}

/// The number in a line of a file as `/proc/meminfo` is one.
fn kib(path: &str, name: &str) -> Result<u64> {
    let text = fs::read_to_string(path)?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .with_context(|| format!("{path} has no {name}"))?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}
