//! Debian's own servers with their own clients, over the loop of an instance: every client checks
//! what it gets.

use std::time::Duration;

use anyhow::Result;

use crate::test::batch;
use crate::test::{Check, Setting};
use crate::vm::Addition;
use crate::{packages, rootfs};

const CASES: &str = include_str!("../../../../tests/cases/servers.cases");

pub fn run(setting: &Setting) -> Result<Vec<Check>> {
    let mut machine = setting.machine("all");
    machine.hardware.memory = "3G".into();
    machine.timeout = Some(Duration::from_secs(420));
    let host = rootfs::cached(&[packages::BASE, packages::SERVERS])?;
    machine.additions.push(Addition {
        host,
        guest: "/debian.tar".into(),
    });
    let mut steps = batch::steps(CASES, &[])?;
    for step in &mut steps {
        let script = step.script.replace('\'', r"'\''");
        step.script =
            format!("skerry run --rm --cpus 2 --mem 1G --rootfs /debian.tar -- bash -c '{script}'");
        step.limit = 150;
    }
    batch::run(machine, &steps)
}
