//! `apply`, `diff` and `validate`: instances as a file declares them (`docs/cli.md#declared-sets`).

mod file;
mod plan;
#[cfg(test)]
mod tests;
mod transaction;

use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

pub use file::{Project, schema};
pub use plan::{Action, Plan};
use serde::Serialize;
pub use transaction::{ROLE, is_unfinished, recover};

use crate::device::Device;
use crate::failure::{Context, Result};
use crate::instances;
use crate::show;
use crate::state::Store;

/// Options of `skerry apply`.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Remove instances that are not declared any more.
    pub prune: bool,
    /// Only say what would be done.
    pub dry_run: bool,
    /// Print JSON.
    pub json: bool,
    /// Time limit for each instance's program to begin.
    pub limit: Duration,
    /// Time for a program to end when another one takes its place.
    pub grace: Duration,
}

/// `apply --json`, `diff --json`.
#[derive(Debug, Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    plan: &'a Plan,
    /// Whether it was done.
    applied: bool,
}

/// `validate --json`.
#[derive(Debug, Serialize)]
struct Validated<'a> {
    project: &'a str,
    instances: Vec<&'a str>,
}

/// Compares a file's project with the instances that there are.
///
/// # Errors
/// Those of the file, the device and the store.
fn plan(device: &dyn Device, store: &Store, project: &Project, prune: bool) -> Result<Plan> {
    let mut present = Vec::new();
    for status in instances::all(device)? {
        present.push((status, store.read(status.id)?));
    }
    Plan::new(project, &present, prune)
}

fn print(plan: &Plan, applied: bool, json: bool, out: &mut dyn Write) -> Result<()> {
    match json {
        true => show::json(&Report { plan, applied }, out),
        false => plan.print(out),
    }
    .context(|| "standard output")
}

/// Makes the instances that a file declares, all of them or none, and prints what was done.
/// `ensure_monitor` is called before one with a restart policy is started.
///
/// # Errors
/// Why nothing was changed; or that the rest is left to the next `apply`.
pub fn apply(
    device: &dyn Device,
    store: &Store,
    path: &Path,
    options: Options,
    ensure_monitor: &dyn Fn() -> Result<()>,
    out: &mut dyn Write,
) -> Result<()> {
    let project = file::read(path)?;
    if options.dry_run {
        let plan = plan(device, store, &project, options.prune)?;
        return print(&plan, false, options.json, out);
    }
    // One after the other: who waits finds what the one before has made.
    let _role = store.lock_role(ROLE)?;
    let plan = transaction::apply(device, store, &project, options, ensure_monitor)?;
    print(&plan, true, options.json, out)
}

/// Prints what `apply` would do. Returns whether that is anything.
///
/// # Errors
/// Those of the file, the device and the store.
pub fn diff(
    device: &dyn Device,
    store: &Store,
    path: &Path,
    prune: bool,
    json: bool,
    out: &mut dyn Write,
) -> Result<bool> {
    let project = file::read(path)?;
    let plan = plan(device, store, &project, prune)?;
    print(&plan, false, json, out)?;
    Ok(!plan.is_empty())
}

/// Checks a file, and prints the names that it declares.
///
/// # Errors
/// The place and what is wrong.
pub fn validate(path: &Path, json: bool, out: &mut dyn Write) -> Result<()> {
    let project = file::read(path)?;
    let names: Vec<_> = project.instances.keys().map(String::as_str).collect();
    let printed = match json {
        true => show::json(
            &Validated {
                project: &project.name,
                instances: names,
            },
            out,
        ),
        false => writeln!(
            out,
            "{}: project {} of {} instance{}",
            path.display(),
            project.name,
            names.len(),
            if names.len() == 1 { "" } else { "s" }
        ),
    };
    printed.context(|| "standard output")
}

/// Prints the schema of the file.
///
/// # Errors
/// Those of `out`.
pub fn print_schema(out: &mut dyn Write) -> io::Result<()> {
    show::json(&schema(), out)
}
