//! `cargo xtask diff`: the same short programs of system calls on Linux and on Skerry, and what
//! differs (`docs/differential.md`).

mod answers;
mod document;
mod known;
mod machine;
mod trial;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use answers::Answers;
use anyhow::{Context, Result};
use clap::Args;
use differential::directed;
use differential::generate;
use differential::minimise;
use differential::program::Program;
use differential::record::{Difference, difference};
use differential::spec::{Area, Spec};
use known::Known;
use machine::Runner;

use crate::test::scenarios;
use crate::vm::{Kernel, Machine};
use crate::{bench, build, fuzz, paths};

/// Programs that are sent at once.
const BATCH: u64 = 64;
/// Programs that a search for the simplest form may run.
const TRIES: usize = 300;
/// Name of a difference that ended the kernel.
const DIED: &str = "the kernel died";
/// Number of times that a difference must show again to count.
const REPEATS: usize = 2;

/// Run programs of system calls on Linux and on Skerry and show what differs
#[derive(Args)]
pub struct Arguments {
    /// How long, in seconds after both machines are up
    #[arg(long, default_value_t = 60, value_name = "N")]
    seconds: u64,
    /// Stop after so many programs of each area, however long that takes
    #[arg(long, value_name = "N")]
    programs: Option<u64>,
    /// Where the programs come from; a random one if none is given
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// Only calls of this area of `tests/differential/spec`; may be repeated
    #[arg(long, value_name = "AREA")]
    area: Vec<String>,
    /// Processors of both machines
    #[arg(long, default_value_t = 2, value_name = "N")]
    cpus: u32,
    /// Run this program instead, and show both records
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Do not search for the simplest form of a program that differs
    #[arg(long)]
    whole: bool,
    /// Run the directed programs first: one for each flag, bad pointer, name and edge that the
    /// specification has
    #[arg(long)]
    directed: bool,
    /// Run the directed programs, too, and write what has been seen of each call into
    /// docs/coverage.md
    #[arg(long)]
    document: bool,
    /// Ask Linux for its answers to the programs that the tests run each time, as far as they are
    /// not kept yet, and keep them in tests/differential/linux.answers
    #[arg(long)]
    record: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Findings of a run.
#[derive(Default, serde::Serialize)]
pub struct Found {
    /// The seed of the random ones.
    pub seed: u64,
    /// Programs that Skerry ran.
    pub programs: u64,
    /// Programs that Linux did not run, since its answers are kept.
    kept: u64,
    /// Programs by known difference.
    known: BTreeMap<String, u64>,
    /// Programs that did differently when they were run again, by what differed between two runs on
    /// one kernel.
    unsteady: BTreeMap<String, String>,
    /// Differences by name, each with a program that shows it.
    differences: BTreeMap<String, String>,
}

impl Found {
    /// A line that sums the run up.
    pub fn summary(&self) -> String {
        let known: u64 = self.known.values().sum();
        format!(
            "seed {}: {} programs ({} answers of Linux kept), {} differences; {known} programs with {} known ones, {} unsteady",
            self.seed,
            self.programs,
            self.kept,
            self.differences.len(),
            self.known.len(),
            self.unsteady.len()
        )
    }

    /// Whether there is nothing new.
    pub fn is_clean(&self) -> bool {
        self.differences.is_empty()
    }
}

/// A way to learn what Linux does in a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinuxAnswers {
    /// Linux runs the program.
    Asked,
    /// Linux runs the program, and what it has shown of calls is collected.
    AskedForCoverage,
    /// The answer is kept from before; Linux runs only programs of which that is not so, or that
    /// Skerry answers otherwise.
    Kept,
    /// Nobody asks Linux: the only question is whether the kernel dies.
    NotAsked,
}

impl LinuxAnswers {
    /// Whether Linux runs every program.
    fn asks_all(self) -> bool {
        matches!(self, Self::Asked | Self::AskedForCoverage)
    }
}

/// Options of a run.
pub struct Options {
    /// Seconds; without meaning where `programs` is given.
    pub seconds: u64,
    /// Programs of each area.
    pub programs: Option<u64>,
    /// The seed.
    pub seed: u64,
    /// The areas; all if there are none.
    pub areas: Vec<String>,
    /// Processors.
    pub cpus: u32,
    /// Whether programs are simplified.
    pub minimised: bool,
    /// Whether directed programs are run first.
    pub directed: bool,
    /// Source of Linux's answers.
    pub linux: LinuxAnswers,
}

/// Carries out `cargo xtask diff`.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    if arguments.record {
        return record().map(|()| ExitCode::SUCCESS);
    }
    let options = Options {
        seconds: arguments.seconds,
        programs: arguments.programs,
        seed: arguments.seed.unwrap_or_else(fuzz::random_seed),
        areas: arguments.area.clone(),
        cpus: arguments.cpus,
        minimised: !arguments.whole,
        directed: arguments.directed || arguments.document,
        linux: if arguments.document {
            LinuxAnswers::AskedForCoverage
        } else {
            LinuxAnswers::Asked
        },
    };
    let logs = logs()?;
    let mut pair = Pair::new(&options, &|name| machine(&logs, name))?;
    if let Some(path) = &arguments.program {
        return pair.show(
            &fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?,
        );
    }
    let found = pair.explore(&options, &mut |line| println!("{line}"))?;
    if arguments.document {
        let both = pair.seen.0.intersection(&pair.seen.1).copied().collect();
        println!("{}", document::write(spec(), &both)?);
    }
    if arguments.json {
        println!("{}", serde_json::to_string(&found)?);
    } else {
        found
            .unsteady
            .iter()
            .for_each(|(what, program)| println!("unsteady: {what}: {program}"));
        println!("{}", found.summary());
    }
    Ok(ExitCode::from(u8::from(!found.is_clean())))
}

/// The folder of the machines' logs.
fn logs() -> Result<PathBuf> {
    let logs = paths::target().join("diff");
    fs::create_dir_all(&logs).with_context(|| format!("cannot make {}", logs.display()))?;
    Ok(logs)
}

fn machine(logs: &Path, name: &str) -> Machine {
    Machine {
        log: logs.join(format!("{name}-{}.log", std::process::id())),
        ..Machine::default()
    }
}

/// The specification.
fn spec() -> &'static Spec {
    static SPEC: LazyLock<Spec> = LazyLock::new(Spec::builtin);
    &SPEC
}

/// Carries out `cargo xtask diff --record`.
fn record() -> Result<()> {
    let (logs, image) = (logs()?, bench::newest_linux()?);
    let kept = Answers::kept()?;
    let mut answers = Answers::none(&image)?;
    let mut asked = 0;
    for options in scenarios::fixed_programs() {
        let linux = linux_machine(machine(&logs, "linux"), &options, image.clone());
        let mut linux = Runner::new("Linux", linux, &build::diff_executor()?);
        for batch in batches(&options)? {
            let programs = batch.programs();
            let known = kept.to(&programs).filter(|_| kept.is_like(&answers));
            let theirs = match known {
                Some(theirs) => theirs,
                None => {
                    asked += programs.len();
                    println!("{}", batch.command());
                    linux.send(&batch.command())?;
                    let (theirs, answered) = linux.answers(batch.count);
                    answered?;
                    theirs
                }
            };
            for (program, answer) in programs.iter().zip(theirs) {
                answers.keep(program, answer);
            }
        }
    }
    answers.write()?;
    println!("{} answers, of which {asked} are new", answers.len());
    Ok(())
}

/// Each of the programs that are the same in each run of the tests has its answer of Linux kept.
///
/// # Errors
/// When some have not: `make test` would ask Linux, and take minutes longer.
pub fn check_answers() -> Result<String> {
    let mut programs = Vec::new();
    for options in scenarios::fixed_programs() {
        for batch in batches(&options)? {
            programs.extend(batch.programs());
        }
    }
    answers::check(&programs)
}

/// Batches of the programs that have a number: directed ones, if they are wanted, of all areas,
/// and then random ones.
fn batches(options: &Options) -> Result<Vec<Batch<'static>>> {
    let areas = areas(options)?;
    let directed = areas.iter().filter(|_| options.directed).flat_map(|area| {
        let count = directed::programs(spec(), area).count() as u64;
        Batch::split(area, None, count, BATCH)
    });
    let random = areas.iter().flat_map(|area| {
        let count = options.programs.unwrap_or(0);
        Batch::split(area, Some(options.seed), count, BATCH)
    });
    Ok(directed.chain(random).collect())
}

/// The areas that are wanted; all if none is named.
fn areas(options: &Options) -> Result<Vec<&'static Area>> {
    if options.areas.is_empty() {
        return Ok(spec().areas.iter().collect());
    }
    let named = options.areas.iter().map(|name| {
        spec().area(name).with_context(|| {
            format!("there is no area {name}; tests/differential/spec has a file for each")
        })
    });
    named.collect()
}

/// The machine with Linux.
fn linux_machine(mut machine: Machine, options: &Options, image: PathBuf) -> Machine {
    machine.kernel = Kernel::Linux(image);
    // Skerry is a kernel without protection keys (docs/linux-abi.md): so is this one, then. Nor
    // does it have page tables of five levels.
    machine.append = "nopku no5lvl ".into();
    sized(machine, options)
}

/// A machine of the description that both kernels have.
fn sized(mut machine: Machine, options: &Options) -> Machine {
    machine.hardware.cpus = options.cpus;
    machine.hardware.memory = "1G".into();
    // More of a log that anybody reads can be compared.
    machine.append += "sysctl.kernel.dmesg_restrict=0";
    machine
}

/// The two machines, and what is known.
pub struct Pair {
    linux: Runner,
    skerry: Runner,
    known: Known,
    /// Answers of Linux that are kept.
    answers: Answers,
    /// Items of the coverage that Linux has shown, and that Skerry has shown.
    seen: (BTreeSet<usize>, BTreeSet<usize>),
}

/// Programs of an area that are sent at once.
#[derive(Clone, Copy)]
struct Batch<'a> {
    area: &'a Area,
    /// Of this seed; of the directed ones if there is none.
    seed: Option<u64>,
    first: u64,
    /// Number of programs.
    count: u64,
}

impl<'a> Batch<'a> {
    /// The first `count` programs of a seed, or of the directed ones, in batches of a size.
    fn split(
        area: &'a Area,
        seed: Option<u64>,
        count: u64,
        size: u64,
    ) -> impl Iterator<Item = Self> {
        (0..count).step_by(size as usize).map(move |first| Self {
            area,
            seed,
            first,
            count: size.min(count - first),
        })
    }

    fn command(&self) -> String {
        let Self { first, count, .. } = self;
        let area = &self.area.name;
        self.seed.map_or_else(
            || format!("directed {area} {first} {count}"),
            |seed| format!("range {area} {seed} {first} {count}"),
        )
    }

    /// Origin of the batch's programs, for people.
    fn origin(&self) -> String {
        self.seed
            .map_or_else(|| "directed".to_owned(), |seed| format!("seed {seed}"))
    }

    /// The batch's programs.
    fn programs(&self) -> Vec<Program> {
        let numbers = self.first..self.first + self.count;
        match self.seed {
            None => directed::programs(spec(), self.area)
                .skip(self.first as usize)
                .take(self.count as usize)
                .collect(),
            Some(seed) => numbers
                .map(|number| generate::program(spec(), self.area, seed, number))
                .collect(),
        }
    }

    /// Program number `index` of the batch.
    fn program(&self, index: u64) -> Result<Program> {
        let alone = Self {
            first: self.first + index,
            count: 1,
            ..*self
        };
        alone.programs().pop().context("no such program")
    }
}

impl Pair {
    /// Machines of the same description, not yet booted.
    pub fn new(options: &Options, machine: &impl Fn(&str) -> Machine) -> Result<Self> {
        let executor = build::diff_executor()?;
        let linux = linux_machine(machine("linux"), options, bench::newest_linux()?);
        let mut skerry = sized(machine("skerry"), options);
        // One with mutants takes Skerry's place.
        if skerry.kernel.trial().is_none() {
            skerry.kernel = Kernel::Skerry;
        }
        skerry.append += &format!(" supervisor_cpus={}", options.cpus);
        skerry.prepare()?;
        Ok(Self {
            linux: Runner::new("Linux", linux, &executor),
            skerry: Runner::new("Skerry", skerry, &executor),
            known: Known::read()?,
            answers: match options.linux {
                LinuxAnswers::Kept => Answers::kept()?,
                _ => Answers::default(),
            },
            seen: Default::default(),
        })
    }

    /// Runs the directed programs, if they are wanted, and random ones until the time is over.
    pub fn explore(&mut self, options: &Options, tell: &mut dyn FnMut(String)) -> Result<Found> {
        let areas = areas(options)?;
        let mut found = Found {
            seed: options.seed,
            ..Found::default()
        };
        // Both boot, side by side, before the time counts.
        self.skerry.send("coverage")?;
        if options.linux.asks_all() {
            self.linux.ask("coverage")?;
        }
        while self.skerry.line()?.is_some() {}
        for batch in batches(options)? {
            self.batch(&batch, options, &mut found, tell)?;
        }
        if options.programs.is_some() {
            return Ok(found);
        }
        let (start, time) = (Instant::now(), Duration::from_secs(options.seconds));
        for round in 0.. {
            for area in &areas {
                if start.elapsed() >= time {
                    return Ok(found);
                }
                let batch = Batch {
                    area,
                    seed: Some(options.seed),
                    first: round * BATCH,
                    count: BATCH,
                };
                self.batch(&batch, options, &mut found, tell)?;
            }
        }
        Ok(found)
    }

    /// Runs a batch, and looks closer at the programs that differ.
    fn batch(
        &mut self,
        batch: &Batch<'_>,
        options: &Options,
        found: &mut Found,
        tell: &mut dyn FnMut(String),
    ) -> Result<()> {
        let command = batch.command();
        let kept = match options.linux {
            LinuxAnswers::Kept => self.answers.to(&batch.programs()),
            _ => None,
        };
        let asked = kept.is_none() && options.linux != LinuxAnswers::NotAsked;
        if asked {
            self.linux.send(&command)?;
        }
        let sent = self.skerry.send(&command);
        found.kept += kept.as_ref().map_or(0, |_| batch.count);
        let (theirs, they_answered) = if asked {
            self.linux.answers(batch.count)
        } else {
            (kept.unwrap_or_default(), Ok(()))
        };
        // A program that ends Linux, by filling its memory say, cannot be compared; nor can those
        // after it in the batch.
        if let Err(error) = they_answered {
            let program = batch.program(theirs.len() as u64)?;
            tell(format!(
                "Linux died: {error:#}\nin this program:\n{program}"
            ));
            found.unsteady.insert(
                format!("Linux: died in {}", batch.area.name),
                program.to_string(),
            );
        }
        let (ours, we_answered) = match sent {
            Ok(()) => self.skerry.answers(batch.count),
            Err(error) => (Vec::new(), Err(error)),
        };
        if let Err(error) = we_answered {
            let program = batch.program(ours.len() as u64)?;
            tell(format!("DIED: {error:#}\nin this program:\n{program}"));
            found.differences.insert(
                format!("{DIED} in {}", batch.area.name),
                program.to_string(),
            );
        }
        found.programs += ours.len() as u64;
        if options.linux == LinuxAnswers::AskedForCoverage {
            self.collect_coverage()?;
        }
        for (index, _) in ours
            .iter()
            .zip(&theirs)
            .enumerate()
            .filter(|(_, (ours, theirs))| ours != theirs)
        {
            self.examine(batch, index as u64, options, found, tell)?;
        }
        Ok(())
    }

    /// Looks closer at a program that did not do the same on both kernels.
    fn examine(
        &mut self,
        batch: &Batch<'_>,
        index: u64,
        options: &Options,
        found: &mut Found,
        tell: &mut dyn FnMut(String),
    ) -> Result<()> {
        let program = batch.program(index)?;
        let origin = format!(
            "area {}, {}, program {}",
            batch.area.name,
            batch.origin(),
            batch.first + index
        );
        let difference = match self.steady_difference(&program)? {
            Ok(difference) => difference,
            Err(unsteady) => {
                let text = format!("{origin}\n{program}{}", unsteady.1);
                found.unsteady.entry(unsteady.0).or_insert(text);
                return Ok(());
            }
        };
        let name = difference.to_string();
        if self.known.has(&difference) {
            *found.known.entry(name).or_default() += 1;
            return Ok(());
        }
        if found.differences.contains_key(&name) {
            return Ok(());
        }
        let least = if options.minimised {
            self.minimise(program, &difference)?
        } else {
            program
        };
        let records = self.records(&least.to_string())?;
        let text = format!("{least}{}", side_by_side(&records.0, &records.1));
        tell(format!("== {name}   ({origin})\n{text}"));
        found.differences.insert(name, text);
        Ok(())
    }

    /// Difference that shows each time a program is run; otherwise one between two runs on one
    /// kernel, and both of them.
    fn steady_difference(
        &mut self,
        program: &Program,
    ) -> Result<Result<Difference, (String, String)>> {
        let text = program.to_string();
        let (linux, skerry) = self.records(&text)?;
        let first = difference(&linux, &skerry);
        for _ in 1..REPEATS {
            let again = self.records(&text)?;
            for (name, before, after) in
                [("Linux", &linux, &again.0), ("Skerry", &skerry, &again.1)]
            {
                if let Some(change) = difference(before, after) {
                    return Ok(Err((
                        format!("{name}: {change}"),
                        side_by_side(before, after),
                    )));
                }
            }
        }
        Ok(first.ok_or_else(|| ("only among other programs".to_owned(), String::new())))
    }

    fn records(&mut self, program: &str) -> Result<(String, String)> {
        let command = format!("run\n{program}.");
        self.linux.send(&command)?;
        let death = |error| format!("left kernel: died\n{error:#}\n");
        let ours = self.skerry.ask(&command).unwrap_or_else(death);
        let theirs = self.linux.answer().unwrap_or_else(death);
        Ok((theirs, ours))
    }

    /// The simplest program found that shows the same difference.
    fn minimise(&mut self, program: Program, wanted: &Difference) -> Result<Program> {
        let mut least = program;
        let mut tries = 0;
        'simpler: loop {
            for form in minimise::simpler(&least) {
                tries += 1;
                if tries > TRIES {
                    return Ok(least);
                }
                let records = self.records(&form.to_string())?;
                if difference(&records.0, &records.1).as_ref() == Some(wanted) {
                    least = form;
                    continue 'simpler;
                }
            }
            return Ok(least);
        }
    }

    /// Runs one program and shows what both kernels did.
    fn show(&mut self, text: &str) -> Result<ExitCode> {
        let program: Program = text.parse().map_err(anyhow::Error::msg)?;
        let (linux, skerry) = self.records(&program.to_string())?;
        print!("{}", side_by_side(&linux, &skerry));
        let difference = difference(&linux, &skerry);
        if let Some(difference) = &difference {
            println!("{difference}");
        }
        Ok(ExitCode::from(u8::from(difference.is_some())))
    }

    fn collect_coverage(&mut self) -> Result<()> {
        let numbers = |text: String| -> BTreeSet<usize> {
            text.lines().filter_map(|line| line.parse().ok()).collect()
        };
        self.seen.0.extend(numbers(self.linux.ask("coverage")?));
        self.seen.1.extend(numbers(self.skerry.ask("coverage")?));
        Ok(())
    }
}

/// Two records, line by line: `  ` for what is the same, `L ` and `S ` for what the first (Linux)
/// and the second (Skerry) alone did.
fn side_by_side(linux: &str, skerry: &str) -> String {
    let theirs: Vec<_> = linux.lines().collect();
    let ours: Vec<_> = skerry.lines().collect();
    let mut lines = Vec::new();
    let (mut i, mut j) = (0, 0);
    while i < theirs.len() || j < ours.len() {
        match (theirs.get(i), ours.get(j)) {
            (Some(a), Some(b)) if a == b => {
                lines.push(format!("  {a}"));
                (i, j) = (i + 1, j + 1);
            }
            (Some(a), b) if b.is_none() || !ours[j..].contains(a) => {
                lines.push(format!("L {a}"));
                i += 1;
            }
            (_, Some(b)) => {
                lines.push(format!("S {b}"));
                j += 1;
            }
            (Some(_) | None, None) => break,
        }
    }
    lines.iter().map(|line| format!("{line}\n")).collect()
}
