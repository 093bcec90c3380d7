//! bash with a program of 300 lines, every one of coreutils' programs, and those that a script
//! calls beside them; sqlite3 with a million rows.

use anyhow::{Result, ensure};

use crate::packages;
use crate::test::cases::{self, Case, Instance};
use crate::test::{Check, Setting};

/// A program of 300 lines.
const LEDGER: &str = include_str!("../../../../tests/cases/debian/ledger.sh");
/// A case for each program of coreutils.
const COREUTILS: &str = include_str!("../../../../tests/cases/debian/coreutils.cases");
/// Programs in Debian 12's coreutils.
const COUNT: usize = 106;
const PROGRAMS: &str = include_str!("../../../../tests/cases/debian/programs.cases");
const TOOLS: &str = include_str!("../../../../tests/cases/debian/tools.cases");
const SQLITE: &str = include_str!("../../../../tests/cases/debian/sqlite.cases");

pub fn run(setting: &Setting) -> Result<Vec<Check>> {
    let coreutils = cases::parse(COREUTILS);
    ensure!(
        coreutils.len() == COUNT,
        "there are {} cases for {COUNT} programs",
        coreutils.len()
    );
    let mut all = vec![Case {
        name: "bash: a program of 300 lines".into(),
        script: LEDGER.into(),
        prints: None,
    }];
    all.extend(coreutils);
    all.extend(cases::parse(PROGRAMS));
    all.extend(cases::parse(TOOLS));
    cases::check(setting.machine("all"), &instance(60, 360), &all)
}

pub fn sqlite(setting: &Setting) -> Result<Vec<Check>> {
    cases::check(
        setting.machine("all"),
        &instance(600, 700),
        &cases::parse(SQLITE),
    )
}

fn instance(limit: u32, patience: u64) -> Instance<'static> {
    Instance {
        packages: &[packages::BASE],
        cpus: 2,
        memory: 768,
        files: &[],
        limit,
        patience,
        beside: None,
    }
}
