//! Static programs in Rust and Go that check the Linux interface from inside: threads, futexes, signals, memory, files,
//! processes, clocks. Their sources are in `tests/programs`.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::build;
use crate::test::batch::{self, Expect, Step};
use crate::test::{Check, Setting};
use crate::vm::Addition;

pub fn run(setting: &Setting) -> Result<Vec<Check>> {
    let rust = build::test_programs()?.program("machine-tests");
    let go = build::go_test_program()?;
    let mut machine = setting.machine("all");
    machine.timeout = Some(Duration::from_secs(420));
    let mut steps = Vec::new();
    for (program, guest) in [(&rust, "/bin/machine-tests"), (&go, "/bin/go-tests")] {
        machine.additions.push(Addition { host: program.clone(), guest: guest.into() });
        for name in names(program)? {
            steps.push(Step::new(&name, format!("{guest} {name}"), Expect::Accepted(says_ok)).limit(40));
        }
    }
    batch::run(machine, &steps)
}

/// The names of a program's checks.
fn names(program: &Path) -> Result<Vec<String>> {
    let output = Command::new(program).arg("list").output().with_context(|| format!("cannot run {}", program.display()))?;
    Ok(String::from_utf8(output.stdout)?.lines().map(str::to_owned).collect())
}

fn says_ok(printed: &str) -> Result<String> {
    ensure!(printed.starts_with("ok ") && !printed.contains('\n'), "it does not say ok");
    Ok(String::new())
}
