//! `cargo xtask profile METRIC`: where the kernel's instructions go in one operation.
//!
//! The machine runs under a plugin (`bench/profile`) that counts how often each instruction is
//! executed in the metric's last batch. The counts are added up by the kernel's symbols, and by the
//! functions that were inlined into them.

use std::collections::BTreeMap;
use std::fs;
use std::process::ExitCode;

use addr2line::Loader;
use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use object::{Object, ObjectSymbol, SymbolKind};

use super::document;
use super::metrics::{How, Metric};
use super::micro::{self, Outcome, Setup};
use crate::vm::Kernel;
use crate::vm::cli::parse_kernel;
use crate::{build, paths};

/// The kernel's half of the addresses begins here.
const KERNEL_HALF: u64 = 1 << 63;

/// Show where the kernel's instructions go in one operation of a benchmark.
#[derive(Args)]
pub struct Arguments {
    /// The metrics, as `cargo xtask bench` names them
    #[arg(required = true, value_name = "METRIC")]
    metrics: Vec<String>,
    /// The kernel: of Linux only the sums are shown
    #[arg(long, default_value = "skerry", value_parser = parse_kernel, value_name = "KERNEL")]
    kernel: Kernel,
    /// Functions that take less than this part of the whole, in percent, are left out
    #[arg(long, default_value_t = 0.5, value_name = "PERCENT")]
    least: f64,
    /// Show lines of the source, too
    #[arg(long)]
    lines: bool,
    /// Write the largest functions of each metric into docs/performance.md instead
    #[arg(long)]
    document: bool,
}

/// Functions that the document shows of each metric.
const DOCUMENTED: usize = 6;

/// Instructions of one function, and how often it was entered.
#[derive(Default)]
struct Share {
    instructions: u64,
    entered: u64,
}

/// Carries out `cargo xtask profile`.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let mut page =
        String::from("| metric | instructions in the kernel | where they go |\n|---|---:|---|\n");
    for metric @ Metric { name, how, .. } in super::chosen(&arguments.metrics)? {
        if !matches!(
            how,
            How::Program(_) | How::Workload | How::Network | How::Server | How::Disk
        ) {
            bail!("{name} is no operation that the program repeats");
        }
        let (counts, operations, clock) = count(&arguments.kernel, metric)?;
        if arguments.document {
            page += &documented(name, &counts, operations)?;
        } else {
            println!("{name}: {clock:.1} by the program's clock");
            report(arguments, name, &counts, operations)?;
        }
    }
    if arguments.document {
        document::replace("profiles", &page)?;
    }
    super::discard_scratch();
    Ok(ExitCode::SUCCESS)
}

/// The turns of `rep movs` and `rep stos` that the kernel makes in one operation of the metric.
pub fn repeated(kernel: &Kernel, metric: &Metric) -> Result<f64> {
    let (counts, operations, _) = count(kernel, metric)?;
    Ok(counts.repeated as f64 / operations as f64)
}

/// All instructions of one operation of the metric, in the kernel and in programs, without the
/// turns of `rep movs` and `rep stos` that the kernel makes.
pub fn served(kernel: &Kernel, metric: &Metric) -> Result<Outcome> {
    let (counts, operations, _) = count(kernel, metric)?;
    let executed: u64 = counts.executed.values().sum();
    Ok(Outcome::Value {
        median: (executed - counts.repeated) as f64 / operations as f64,
        operations,
    })
}

/// Runs the metric under the plugin; returns the counts of its last batch, how many operations that
/// was, and the figure by the program's clock.
fn count(kernel: &Kernel, &Metric { name, how, .. }: &Metric) -> Result<(Counts, u64, f64)> {
    let counts_file = super::scratch("counts");
    // Nothing old may be taken for this run's.
    drop(fs::remove_file(&counts_file));
    let setup = Setup {
        cpus: 1,
        icount: true,
        packages: matches!(how, How::Workload | How::Server),
        devices: how.devices(),
        append: "",
    };
    let mut machine = micro::machine(kernel, setup)?;
    let plugin = format!(
        "{},out={}",
        build::profile_plugin()?.display(),
        counts_file.display()
    );
    machine
        .hardware
        .extra
        .extend(["-plugin".into(), plugin.into()]);
    let log = micro::boot(&machine, setup, &[name])?;
    let (operations, clock) = match micro::outcome(&log, name) {
        Some(Outcome::Value { operations, median }) => (operations, median),
        Some(Outcome::NotAvailable(why)) => bail!("{name}: n/a: {why}"),
        None => bail!(
            "{name} was not reported; the log is {}",
            machine.log.display()
        ),
    };
    let counts = fs::read_to_string(&counts_file)
        .with_context(|| format!("no {}", counts_file.display()))?;
    Ok((read_counts(&counts)?, operations, clock))
}

/// Executions of each instruction, by its address.
struct Counts {
    executed: BTreeMap<u64, u64>,
    /// The part that was turns of `rep movs` and `rep stos` in the kernel.
    repeated: u64,
}

/// Lines of `ADDRESS COUNT` or `ADDRESS COUNT rep`, the address in hexadecimal.
fn read_counts(text: &str) -> Result<Counts> {
    let mut counts = Counts {
        executed: BTreeMap::new(),
        repeated: 0,
    };
    for line in text.lines().filter(|line| !line.starts_with("resumed ")) {
        let words: Vec<_> = line.split(' ').collect();
        let [address, count, rest @ ..] = words.as_slice() else {
            bail!("the plugin wrote {line:?}")
        };
        let (address, count) = (u64::from_str_radix(address, 16)?, count.parse()?);
        counts.executed.insert(address, count);
        counts.repeated += if address >= KERNEL_HALF && rest == ["rep"] {
            count
        } else {
            0
        };
    }
    Ok(counts)
}

fn report(arguments: &Arguments, metric: &str, counts: &Counts, operations: u64) -> Result<()> {
    let Counts {
        executed: counts,
        repeated,
    } = counts;
    let user: u64 = counts.range(..KERNEL_HALF).map(|(_, count)| count).sum();
    let kernel: u64 = counts.range(KERNEL_HALF..).map(|(_, count)| count).sum();
    let each = |count: u64| count as f64 / operations as f64;
    println!(
        "{}: {:.1} instructions in the kernel, of which {:.1} turns of `rep movs` and `rep stos`; {:.1} in the program",
        metric,
        each(kernel),
        each(*repeated),
        each(user)
    );
    if arguments.kernel != Kernel::Skerry {
        return Ok(());
    }

    let image = build::kernel()?;
    let symbols = Symbols::read(&fs::read(&image)?)?;
    let by_symbol = by_symbol(&symbols, counts);
    let least = kernel as f64 * arguments.least / 100.0;
    println!(
        "\nBy function as compiled (with what was inlined into it):\n{:>12} {:>7} {:>9}  function",
        "instructions", "share", "entered"
    );
    for (name, share) in sorted(by_symbol, |share| share.instructions, least) {
        let part = share.instructions as f64 / kernel as f64 * 100.0;
        println!(
            "{:>12.1} {part:>6.1}% {:>9.2}  {name}",
            each(share.instructions),
            each(share.entered)
        );
    }

    let loader = Loader::new(&image).map_err(|error| anyhow!("{}: {error}", image.display()))?;
    let (mut by_function, mut by_line): (BTreeMap<String, u64>, BTreeMap<String, u64>) =
        Default::default();
    for (&address, &count) in counts.range(KERNEL_HALF..) {
        let (function, line) = source(&loader, address)
            .unwrap_or_else(|| (symbols.of(address).0.to_owned(), String::new()));
        *by_function.entry(function).or_default() += count;
        *by_line.entry(line).or_default() += count;
    }
    let root = format!("{}/", paths::root().display());
    let print = |title: &str, shares: BTreeMap<String, u64>| {
        println!("\n{title}:\n{:>12} {:>7}", "instructions", "share");
        for (name, count) in sorted(shares, |&count| count, least) {
            println!(
                "{:>12.1} {:>6.1}%  {}",
                each(count),
                count as f64 / kernel as f64 * 100.0,
                name.replace(&root, "")
            );
        }
    };
    print(
        "By function as written (inlined ones by themselves, the libraries' counted for who calls them)",
        by_function,
    );
    if arguments.lines {
        print("By line", by_line);
    }
    Ok(())
}

/// The counts by the kernel's functions as compiled.
fn by_symbol<'a>(symbols: &'a Symbols, counts: &BTreeMap<u64, u64>) -> BTreeMap<&'a str, Share> {
    let mut by_symbol: BTreeMap<&str, Share> = BTreeMap::new();
    for (&address, &count) in counts.range(KERNEL_HALF..) {
        let (name, start) = symbols.of(address);
        let share = by_symbol.entry(name).or_default();
        share.instructions += count;
        share.entered += if start { count } else { 0 };
    }
    by_symbol
}

/// A line of the document: the metric, its instructions in the kernel, its largest functions.
fn documented(metric: &str, counts: &Counts, operations: u64) -> Result<String> {
    let symbols = Symbols::read(&fs::read(build::kernel()?)?)?;
    let kernel: u64 = counts
        .executed
        .range(KERNEL_HALF..)
        .map(|(_, count)| count)
        .sum();
    let each = |count: u64| count as f64 / operations as f64;
    let functions: Vec<_> = sorted(
        by_symbol(&symbols, &counts.executed),
        |share| share.instructions,
        0.0,
    )
    .into_iter()
    .take(DOCUMENTED)
    .map(|(name, share)| format!("`{name}` {:.0}", each(share.instructions)))
    .collect();
    Ok(format!(
        "| {metric} | {:.0} | {} |\n",
        each(kernel),
        functions.join(", ").replace('|', "\\|")
    ))
}

/// The function at the address, and its line. What a library's inlined functions do there is
/// counted for the one that calls them: the innermost that is the repository's own, if there is
/// one.
fn source(loader: &Loader, address: u64) -> Option<(String, String)> {
    let mut frames = loader.find_frames(address).ok()?;
    let mut innermost = None;
    while let Ok(Some(frame)) = frames.next() {
        let Some(function) = frame.function else {
            continue;
        };
        let place = frame
            .location
            .and_then(|location| Some((location.file?, location.line?)));
        let own = place.is_some_and(|(file, _)| {
            !file.starts_with("/rustc/")
                && !file.contains("/registry/")
                && !file.contains("/rustlib/")
        });
        if own || innermost.is_none() {
            let line = place
                .map(|(file, line)| format!("{file}:{line}"))
                .unwrap_or_default();
            innermost = Some((function.demangle().ok()?.into_owned(), line));
        }
        if own {
            break;
        }
    }
    innermost
}

/// By falling size, without those below `least`.
fn sorted<K, V>(shares: BTreeMap<K, V>, size: impl Fn(&V) -> u64, least: f64) -> Vec<(K, V)> {
    let mut shares: Vec<_> = shares
        .into_iter()
        .filter(|(_, share)| size(share) as f64 >= least)
        .collect();
    shares.sort_by_key(|(_, share)| std::cmp::Reverse(size(share)));
    shares
}

/// The kernel's functions by address.
struct Symbols(BTreeMap<u64, String>);

impl Symbols {
    fn read(image: &[u8]) -> Result<Self> {
        let file = object::File::parse(image)?;
        // What is written in assembly has names without a type.
        let kinds = [SymbolKind::Text, SymbolKind::Label, SymbolKind::Unknown];
        let functions = file
            .symbols()
            .filter(|symbol| kinds.contains(&symbol.kind()) && symbol.is_definition());
        Ok(Self(
            functions
                .filter_map(|symbol| {
                    Some((
                        symbol.address(),
                        format!("{:#}", rustc_demangle::demangle(symbol.name().ok()?)),
                    ))
                })
                .collect(),
        ))
    }

    /// The function at the address, and whether it begins there.
    fn of(&self, address: u64) -> (&str, bool) {
        self.0
            .range(..=address)
            .next_back()
            .map_or(("?", false), |(start, name)| (name, *start == address))
    }
}
