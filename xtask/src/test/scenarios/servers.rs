//! Debian's own servers with their own clients, over the loop of an instance: every client checks
//! what it gets.

use anyhow::Result;

use super::debian::instances;
use crate::packages;
use crate::test::{Check, Setting};

const CASES: &str = include_str!("../../../../tests/cases/servers.cases");

pub fn run(setting: &Setting) -> Result<Vec<Check>> {
    instances(
        setting,
        "all",
        &[packages::BASE, packages::SERVERS],
        CASES,
        "--cpus 2 --mem 1G",
        "3G",
    )
}
