//! Building a copy with mutants; those that are no Rust are left out.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::tree::{Mutant, Tree, Written};
use crate::build;

/// Number of times that a build may be repeated: in each, the compiler gets further.
const ROUNDS: usize = 12;
/// Number of the compiler's lines that are shown where no mutant is at fault.
const SHOWN: usize = 5;

/// A line of what Cargo says, as far as it is read here.
#[derive(Deserialize)]
struct Line {
    message: Option<Message>,
    executable: Option<PathBuf>,
    manifest_path: Option<PathBuf>,
    target: Option<Target>,
}

#[derive(Deserialize)]
struct Message {
    level: String,
    spans: Vec<Span>,
    rendered: Option<String>,
}

#[derive(Deserialize)]
struct Span {
    file_name: String,
    line_start: usize,
    line_end: usize,
}

#[derive(Deserialize)]
struct Target {
    name: String,
}

/// A program that was built.
#[derive(Clone, Debug)]
pub struct Program {
    /// Name of the program: the crate's, or that of a file of tests.
    pub name: String,
    /// Where it is.
    pub path: PathBuf,
    /// The directory of its package.
    pub directory: PathBuf,
}

/// Programs that were built, and the mutants in them.
pub struct Built {
    /// The programs.
    pub programs: Vec<Program>,
    /// Mutants that are Rust, and so in the programs.
    pub mutants: Vec<Mutant>,
}

/// Builds the copy with as many of the mutants as are Rust. `command` is Cargo's, without where it
/// is.
///
/// # Errors
/// When it does not build without them either.
pub fn compile(
    tree: &Tree,
    mut mutants: Vec<Mutant>,
    kernel: bool,
    command: impl Fn(&mut Command),
) -> Result<Built> {
    for _ in 0..ROUNDS {
        let written = tree.write(&mutants, kernel)?;
        let mut cargo = build::cargo();
        command(&mut cargo);
        cargo
            .current_dir(&tree.root)
            .arg("--message-format=json")
            .arg("--target-dir")
            .arg(&tree.target);
        cargo
            .env_remove("CARGO_MANIFEST_DIR")
            .stderr(Stdio::piped());
        let output = cargo.output().context("cannot run cargo")?;
        let text = String::from_utf8_lossy(&output.stdout);
        let lines: Vec<Line> = text
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect();
        if output.status.success() {
            return Ok(Built {
                programs: lines.into_iter().filter_map(program).collect(),
                mutants,
            });
        }
        let errors: Vec<Message> = lines
            .into_iter()
            .filter_map(|line| line.message)
            .filter(|message| message.level.starts_with("error"))
            .collect();
        let wrong = at_fault(&errors, &written);
        if wrong.is_empty() {
            let said: Vec<_> = errors
                .into_iter()
                .filter_map(|error| error.rendered)
                .take(SHOWN)
                .collect();
            bail!(
                "the copy in {} does not build:\n{}\n{}",
                tree.root.display(),
                said.join("\n"),
                String::from_utf8_lossy(&output.stderr)
            );
        }
        eprintln!(
            "xtask: {} of {} mutants are no Rust; built again without them",
            wrong.len(),
            mutants.len()
        );
        mutants.retain(|mutant| !wrong.contains(&mutant.number));
    }
    bail!("after {ROUNDS} builds there are still mutants that are no Rust")
}

fn program(line: Line) -> Option<Program> {
    let directory = line.manifest_path?.parent()?.to_owned();
    Some(Program {
        name: line.target?.name,
        path: line.executable?,
        directory,
    })
}

/// The mutants on the lines of which the compiler complains.
fn at_fault(errors: &[Message], written: &Written) -> BTreeSet<u32> {
    let spans = errors.iter().flat_map(|error| &error.spans);
    let hit = |span: &Span| {
        written
            .iter()
            .filter(|(file, lines, _)| {
                span.file_name.ends_with(file)
                    && span.line_start < lines.end
                    && span.line_end >= lines.start
            })
            .map(|(.., number)| *number)
            .collect::<Vec<_>>()
    };
    spans.flat_map(hit).collect()
}
