//! Debian's programs that measure, divide and erase disks, on two virtio disks.

use std::time::Duration;

use anyhow::{Context, Result};

use super::{images, modules};
use crate::cleanup::Directory;
use crate::test::{Check, Setting, batch};
use crate::vm::{Addition, Kernel};
use crate::{packages, rootfs};

const CASES: &str = include_str!("../../../../tests/cases/disk-tools.cases");

/// Bytes of each disk.
const SIZE: u64 = 128 << 20;

pub fn run(setting: &Setting) -> Result<Vec<Check>> {
    let directory = Directory::create().context("cannot make a temporary directory")?;
    let mut machine = setting.machine("all");
    machine.timeout = Some(Duration::from_secs(400));
    // Jobs of fio run beside each other.
    machine.hardware.cpus = 2;
    machine.hardware.memory = "2G".into();
    machine.append = "supervisor_cpus=2".into();
    for name in ["a", "b"] {
        let disk = images::empty(&directory, name, SIZE)?;
        let drive = format!("format=raw,discard=unmap,file={}", disk.display());
        images::attach(&mut machine.hardware, &drive);
    }
    machine.additions.push(Addition {
        host: rootfs::cached(&[packages::DISKS, packages::DISK_USERS])?,
        guest: "/disk-tools.tar".into(),
    });
    if let Kernel::Linux(image) = &machine.kernel {
        machine
            .additions
            .extend(modules::of(image, &images::MODULES)?);
    }
    let mut steps = batch::steps(CASES, &[])?;
    for step in &mut steps {
        step.limit = 150;
    }
    batch::run(machine, &steps)
}
