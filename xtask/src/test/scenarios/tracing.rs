//! Debian's strace and gdb, unmodified, in an instance: what they say of other programs, and do to
//! them.

use anyhow::Result;

use super::debian;
use crate::packages;
use crate::test::{Check, Setting};

const PACKAGES: &[&[&str]] = &[packages::BASE, packages::TRACING];

const CASES: &str = include_str!("../../../../tests/cases/tracing.cases");

pub fn run(setting: &Setting) -> Result<Vec<Check>> {
    debian::instances(
        setting,
        "tracing",
        PACKAGES,
        CASES,
        "--cpus 1 --mem 1500M",
        "4G",
    )
}
