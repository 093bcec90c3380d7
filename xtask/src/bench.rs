//! `cargo xtask bench`: figures, each beside Linux's in the same run. `docs/measuring.md` says what they mean.

mod boot;
mod instance;

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use serde::Serialize;

use crate::paths;

/// Measure, and print a table; the same as JSON goes to target/bench-NAME.json.
#[derive(Args)]
pub struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Boot, start and end of instances, image and memory sizes
    Boot(boot::Arguments),
}

/// Carries out `cargo xtask bench`.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    match &arguments.what {
        What::Boot(arguments) => {
            let mut table = Table::new("boot");
            boot::measure(arguments, &mut table)?;
            instance::measure(arguments, &mut table)?;
            table.finish()?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// One figure.
#[derive(Serialize)]
struct Figure {
    /// What was measured.
    what: String,
    /// The system it was measured on.
    system: &'static str,
    /// The median.
    value: f64,
    /// The unit of all three values.
    unit: &'static str,
    /// The smallest.
    least: f64,
    /// The largest.
    most: f64,
    /// How often it was measured.
    runs: usize,
    /// What it is to be at most, if the design says so.
    goal: Option<f64>,
}

/// The figures of a benchmark.
struct Table {
    name: &'static str,
    figures: Vec<Figure>,
}

impl Table {
    fn new(name: &'static str) -> Self {
        Self { name, figures: Vec::new() }
    }

    /// Adds what was measured some times; nothing if it was not.
    fn add(
        &mut self,
        what: impl Into<String>,
        system: &'static str,
        unit: &'static str,
        goal: Option<f64>,
        mut values: Vec<f64>,
    ) {
        values.sort_by(f64::total_cmp);
        if let (Some(&least), Some(&most)) = (values.first(), values.last()) {
            let value = values[values.len() / 2];
            self.figures.push(Figure { what: what.into(), system, value, unit, least, most, runs: values.len(), goal });
        }
    }

    /// Prints the table and writes it as JSON.
    fn finish(&self) -> Result<()> {
        println!(
            "{:<62} {:<7} {:>12} {:<13} {:>12} {:>12} {:>5} {:>8}",
            "figure", "system", "median", "unit", "least", "most", "runs", "goal"
        );
        for Figure { what, system, value, unit, least, most, runs, goal } in &self.figures {
            let goal = goal.map(|goal| format!("{goal}")).unwrap_or_default();
            println!("{what:<62} {system:<7} {value:>12.2} {unit:<13} {least:>12.2} {most:>12.2} {runs:>5} {goal:>8}");
        }
        let path = paths::target().join(format!("bench-{}.json", self.name));
        std::fs::write(&path, serde_json::to_string_pretty(&self.figures)?)
            .with_context(|| format!("cannot write {}", path.display()))?;
        println!("\nAs JSON: {}", path.display());
        Ok(())
    }
}
