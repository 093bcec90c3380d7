//! `cargo xtask diff`: the same short programs of system calls on Linux and on Skerry, and what
//! differs (`docs/differential.md`).

mod document;
mod known;
mod machine;
mod trial;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use differential::directed;
use differential::generate;
use differential::minimise;
use differential::program::Program;
use differential::record::{Difference, difference};
use differential::spec::Spec;
use known::Known;
use machine::Runner;

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
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Findings of a run.
#[derive(Default, serde::Serialize)]
pub struct Found {
    seed: u64,
    programs: u64,
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
            "seed {}: {} programs, {} differences; {known} programs with {} known ones, {} unsteady",
            self.seed,
            self.programs,
            self.differences.len(),
            self.known.len(),
            self.unsteady.len()
        )
    }

    /// Names of the differences that are new.
    pub fn names(&self) -> impl Iterator<Item = String> {
        self.differences.keys().cloned()
    }

    /// Whether a kernel died.
    pub fn has_deaths(&self) -> bool {
        self.names().any(|name| name.starts_with(DIED))
    }

    /// Whether there is nothing new.
    pub fn is_clean(&self) -> bool {
        self.differences.is_empty()
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
}

/// Carries out `cargo xtask diff`.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let options = Options {
        seconds: arguments.seconds,
        programs: arguments.programs,
        seed: arguments.seed.unwrap_or_else(fuzz::random_seed),
        areas: arguments.area.clone(),
        cpus: arguments.cpus,
        minimised: !arguments.whole,
        directed: arguments.directed || arguments.document,
    };
    let logs = paths::target().join("diff");
    fs::create_dir_all(&logs).with_context(|| format!("cannot make {}", logs.display()))?;
    let machine = |name: &str| Machine {
        log: logs.join(format!("{name}-{}.log", std::process::id())),
        ..Machine::default()
    };
    let mut pair = Pair::new(&options, &machine)?;
    if let Some(path) = &arguments.program {
        return pair.show(
            &fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?,
        );
    }
    let found = pair.explore(&options, &mut |line| println!("{line}"))?;
    if arguments.document {
        let both = pair.seen.0.intersection(&pair.seen.1).copied().collect();
        println!("{}", document::write(&pair.spec, &both)?);
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

/// The two machines, and what is known.
pub struct Pair {
    spec: Spec,
    linux: Runner,
    skerry: Runner,
    known: Known,
    /// Items of the coverage that Linux has shown, and that Skerry has shown.
    seen: (BTreeSet<usize>, BTreeSet<usize>),
}

/// Programs of an area that are sent at once.
#[derive(Clone, Copy)]
struct Batch<'a> {
    area: &'a str,
    /// Of this seed; of the directed ones if there is none.
    seed: Option<u64>,
    first: u64,
    /// Number of programs, or as many as there are.
    count: u64,
}

impl Batch<'_> {
    fn command(&self) -> String {
        let Self {
            area, first, count, ..
        } = self;
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
}

impl Pair {
    /// Machines of the same description, not yet booted.
    pub fn new(options: &Options, machine: &impl Fn(&str) -> Machine) -> Result<Self> {
        let executor = build::diff_executor()?;
        let image = bench::newest_linux()?;
        let prepared = |name: &str, kernel: Kernel| {
            let mut machine = machine(name);
            // One with mutants takes Skerry's place.
            if kernel != Kernel::Skerry || machine.kernel.trial().is_none() {
                machine.kernel = kernel;
            }
            machine.hardware.cpus = options.cpus;
            machine.hardware.memory = "1G".into();
            machine
        };
        let mut linux = prepared("linux", Kernel::Linux(image));
        // Skerry is a kernel without protection keys (docs/linux-abi.md): so is this one, then. Nor
        // does it have page tables of five levels, or keep its log from anybody, as Debian's kernel
        // does.
        linux.append = "nopku no5lvl sysctl.kernel.dmesg_restrict=0".into();
        let mut skerry = prepared("skerry", Kernel::Skerry);
        skerry.append = format!("supervisor_cpus={}", options.cpus);
        skerry.prepare()?;
        Ok(Self {
            spec: Spec::builtin(),
            linux: Runner::new("Linux", linux, &executor),
            skerry: Runner::new("Skerry", skerry, &executor),
            known: Known::read()?,
            seen: Default::default(),
        })
    }

    /// Runs random programs until the time is over.
    pub fn explore(&mut self, options: &Options, tell: &mut dyn FnMut(String)) -> Result<Found> {
        let areas: Vec<String> = match options.areas.as_slice() {
            [] => self
                .spec
                .areas
                .iter()
                .map(|area| area.name.clone())
                .collect(),
            some => some.to_vec(),
        };
        for area in &areas {
            ensure!(
                self.spec.area(area).is_some(),
                "there is no area {area}; tests/differential/spec has a file for each"
            );
        }
        let mut found = Found {
            seed: options.seed,
            ..Found::default()
        };
        // Both boot, side by side, before the time counts.
        self.skerry.send("coverage")?;
        self.linux.ask("coverage")?;
        while self.skerry.line()?.is_some() {}
        let start = Instant::now();
        for area in areas.iter().filter(|_| options.directed) {
            let count = self.directed(area)?.count() as u64;
            for first in (0..count).step_by(BATCH as usize) {
                self.batch(
                    &Batch {
                        area,
                        seed: None,
                        first,
                        count: BATCH,
                    },
                    options,
                    &mut found,
                    tell,
                )?;
            }
        }
        for round in 0.. {
            let area = &areas[round as usize % areas.len()];
            let first = round / areas.len() as u64 * BATCH;
            let over = match options.programs {
                Some(programs) => first >= programs,
                None => start.elapsed() >= Duration::from_secs(options.seconds),
            };
            if over {
                break;
            }
            let count = options
                .programs
                .map_or(BATCH, |programs| BATCH.min(programs - first));
            self.batch(
                &Batch {
                    area,
                    seed: Some(options.seed),
                    first,
                    count,
                },
                options,
                &mut found,
                tell,
            )?;
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
        self.linux.send(&command)?;
        let ours = self.skerry.send(&command).map(|()| Vec::new());
        let mut theirs = Vec::new();
        while let Some(line) = self.linux.line()? {
            theirs.push(line);
        }
        let mut ours = ours.unwrap_or_default();
        loop {
            match self.skerry.line() {
                Ok(Some(line)) => ours.push(line),
                Ok(None) => break,
                Err(error) => {
                    let program = self.program(batch, ours.len() as u64)?;
                    tell(format!("DIED: {error:#}\nin this program:\n{program}"));
                    found
                        .differences
                        .insert(format!("{DIED} in {}", batch.area), program.to_string());
                    break;
                }
            }
        }
        found.programs += ours.len() as u64;
        self.collect_coverage()?;
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

    /// Program number `index` of a batch.
    fn program(&self, batch: &Batch<'_>, index: u64) -> Result<Program> {
        let number = batch.first + index;
        let Some(seed) = batch.seed else {
            return self
                .directed(batch.area)?
                .nth(number as usize)
                .context("no such program");
        };
        let area = self.spec.area(batch.area).context("no such area")?;
        Ok(generate::program(&self.spec, area, seed, number))
    }

    fn directed(&self, area: &str) -> Result<impl Iterator<Item = Program>> {
        Ok(directed::programs(
            &self.spec,
            self.spec.area(area).context("no such area")?,
        ))
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
        let program = self.program(batch, index)?;
        let origin = format!(
            "area {}, {}, program {}",
            batch.area,
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
        let ours = self.skerry.ask(&command);
        let mut theirs = String::new();
        while let Some(line) = self.linux.line()? {
            theirs.push_str(&line);
            theirs.push('\n');
        }
        Ok((
            theirs,
            ours.unwrap_or_else(|error| format!("left kernel: died\n{error:#}\n")),
        ))
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
