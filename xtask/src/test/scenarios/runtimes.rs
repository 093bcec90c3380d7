//! A language runtime and a database that ask much of the system: OpenJDK, PostgreSQL.

use anyhow::Result;

use crate::packages;
use crate::test::cases::{self, Instance};
use crate::test::{Check, Setting};

const JAVA: &str = include_str!("../../../../tests/debian/java.cases");
const POSTGRESQL: &str = include_str!("../../../../tests/debian/postgresql.cases");

/// OpenJDK.
pub fn java(setting: &Setting) -> Result<Vec<Check>> {
    cases::check(setting.machine("all"), &instance(&[packages::BASE, packages::JAVA], 2048, 600), &cases::parse(JAVA))
}

/// PostgreSQL.
pub fn postgresql(setting: &Setting) -> Result<Vec<Check>> {
    let instance = instance(&[packages::BASE, packages::POSTGRESQL], 2048, 600);
    cases::check(setting.machine("all"), &instance, &cases::parse(POSTGRESQL))
}

fn instance<'a>(packages: &'a [&'a [&'a str]], memory: u32, limit: u32) -> Instance<'a> {
    Instance { packages, cpus: 2, memory, files: &[], limit, patience: 4 * u64::from(limit) }
}
