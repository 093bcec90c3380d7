//! Debian's own programs, dynamically linked and unmodified, in an instance whose file system is
//! made of their packages.

use std::time::Duration;

use anyhow::Result;

use crate::test::batch;
use crate::test::{Check, Setting};
use crate::vm::Addition;
use crate::{packages, rootfs};

const PROGRAMS: &str = include_str!("../../../../tests/cases/debian/programs.cases");
const DEVELOPMENT: &str = include_str!("../../../../tests/cases/development.cases");

pub fn programs(setting: &Setting) -> Result<Vec<Check>> {
    instances(
        setting,
        "programs",
        &[packages::BASE],
        PROGRAMS,
        "--cpus 1 --mem 512M",
        "2G",
    )
}

pub fn development(setting: &Setting) -> Result<Vec<Check>> {
    instances(
        setting,
        "development",
        &[packages::BASE, packages::DEVELOPMENT],
        DEVELOPMENT,
        "--cpus 2 --mem 1G",
        "4G",
    )
}

/// Runs each script of `text`, a `.cases` file, for 150 seconds at most, by bash in an instance of
/// its own, on a file system of these packages.
pub(super) fn instances(
    setting: &Setting,
    name: &str,
    packages: &[&[&str]],
    text: &str,
    size: &str,
    memory: &str,
) -> Result<Vec<Check>> {
    let mut machine = setting.machine(name);
    machine.hardware.memory = memory.into();
    machine.timeout = Some(Duration::from_secs(420));
    machine.additions.push(Addition {
        host: rootfs::cached(packages)?,
        guest: "/debian.tar".into(),
    });
    let mut steps = batch::steps(text, &[])?;
    for step in &mut steps {
        let script = step.script.trim().replace('\'', r"'\''");
        step.script = format!("skerry run --rm {size} --rootfs /debian.tar -- bash -c '{script}'");
        step.limit = 150;
    }
    batch::run(machine, &steps)
}
