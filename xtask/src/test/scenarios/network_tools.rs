//! Debian's tools for networks in a machine with a card on QEMU's own network: what they show and
//! change is what it is on Linux.

use std::time::Duration;

use anyhow::Result;

use super::modules;
use crate::test::batch;
use crate::test::{Check, Setting};
use crate::vm::{Addition, Kernel};
use crate::{packages, rootfs};

const CASES: &str = include_str!("../../../../tests/cases/network-tools.cases");

pub fn run(setting: &Setting) -> Result<Vec<Check>> {
    let mut machine = setting.machine("all");
    machine.hardware.cpus = 2;
    machine.hardware.memory = "2G".into();
    machine.hardware.networks = vec!["user".into()];
    machine.timeout = Some(Duration::from_secs(600));
    machine.additions.push(Addition {
        host: rootfs::cached(&[packages::NETWORK_TOOLS])?,
        guest: "/programs.tar".into(),
    });
    if let Kernel::Linux(image) = &machine.kernel {
        let modules = [&modules::NETWORK[..], &["drivers/net/tun"]].concat();
        machine.additions.extend(modules::of(image, &modules)?);
    }
    let mut steps = batch::steps(CASES, &[])?;
    for step in &mut steps {
        step.limit = 120;
    }
    batch::run(machine, &steps)
}
