//! Random operations on files of ext4 beside a model, in a machine.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};

use super::{images, modules};
use crate::build;
use crate::cleanup::Directory;
use crate::test::batch::{self, Expect, Step};
use crate::test::{Check, Setting};
use crate::vm::{Addition, Kernel};

const LEN: usize = 16 << 20;

/// File systems, by the options that make them.
const KINDS: [&[&str]; 2] = [&["-b", "4096"], &["-b", "1024"]];

/// Some operations, for every day.
pub fn short(setting: &Setting) -> Result<Vec<Check>> {
    run(setting, 5000, 600)
}

/// A million.
pub fn long(setting: &Setting) -> Result<Vec<Check>> {
    run(setting, 250_000, 9000)
}

fn run(setting: &Setting, count: u64, limit: u32) -> Result<Vec<Check>> {
    let seed: u64 = match std::env::var("FSX_SEED") {
        Ok(text) => text.parse().context("FSX_SEED is no number")?,
        Err(_) => 1,
    };
    let directory = Directory::create().context("cannot make a temporary directory")?;
    let mut machine = setting.machine("all");
    machine.timeout = Some(Duration::from_secs(u64::from(limit) + 60));
    let tree = directory.join("tree");
    fs::create_dir(&tree)?;
    let mut disks = Vec::new();
    for (n, options) in KINDS.iter().enumerate() {
        let disk = directory.join(&format!("disk{n}"));
        fs::write(&disk, vec![0; LEN])?;
        images::mke2fs(&disk, options, &tree)?;
        machine.hardware.disks.push(disk.clone());
        disks.push(disk);
    }
    machine.additions.push(Addition {
        host: build::disk_tests()?.program("fsx"),
        guest: "/fsx".into(),
    });
    if let Kernel::Linux(image) = &machine.kernel {
        let modules = modules::of(image, &images::MODULES)?;
        machine.additions.extend(modules);
    }
    let script = format!(
        "for module in /modules/*.ko; do [ ! -e $module ] || insmod $module; done
         mkdir /tmp/a /tmp/b
         mount -t ext4 /dev/vda /tmp/a && mount -t ext4 /dev/vdb /tmp/b || exit 3
         /fsx {seed} {count} /tmp/a/one /tmp/a/two /tmp/b/one /tmp/b/two || exit 4
         umount /tmp/a /tmp/b && rmdir /tmp/a /tmp/b"
    );
    let told = |printed: &str| Ok(printed.trim().to_owned());
    let step = Step::new(
        "files are as random operations by calls and mappings leave them",
        script,
        Expect::Accepted(told),
    );
    let mut checks = batch::run(machine, &[step.limit(limit)])?;
    for disk in &disks {
        checks.push(Check::new(
            "the host finds no fault",
            images::check(disk, 0),
        ));
    }
    Ok(checks)
}
