//! Debian's `mount`, `findmnt`, `umount`, `unshare`, `nsenter` and `lsns`, unmodified, in an
//! instance.

use anyhow::Result;

use super::debian::instances;
use crate::packages;
use crate::test::{Check, Setting};

const CASES: &str = include_str!("../../../../tests/cases/mounts.cases");

pub fn run(setting: &Setting) -> Result<Vec<Check>> {
    instances(
        setting,
        "mounts",
        &[packages::BASE, packages::MOUNTS],
        CASES,
        "--cpus 1 --mem 512M",
        "2G",
    )
}
