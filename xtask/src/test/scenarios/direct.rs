//! Transfers past the cache by pages of programs.

use std::fs;

use anyhow::{Context, Result};

use super::{images, modules};
use crate::build;
use crate::cleanup::Directory;
use crate::test::batch::{self, Expect, Step};
use crate::test::{Check, Setting};
use crate::vm::{Addition, Kernel};

const LEN: usize = 16 << 20;

pub fn run(setting: &Setting) -> Result<Vec<Check>> {
    let directory = Directory::create().context("cannot make a temporary directory")?;
    let tree = directory.join("tree");
    fs::create_dir(&tree)?;
    let mut machine = setting.machine("all");
    machine.hardware.cpus = 2;
    let (raw, system) = (directory.join("raw"), directory.join("system"));
    for disk in [&raw, &system] {
        fs::write(disk, vec![0; LEN])?;
        machine.hardware.disks.push(disk.clone());
    }
    images::mke2fs(&system, &["-b", "4096"], &tree)?;
    machine.additions.push(Addition {
        host: build::disk_tests()?.program("direct-transfers"),
        guest: "/direct".into(),
    });
    let mut option = "";
    if let Kernel::Linux(image) = &machine.kernel {
        let modules = modules::of(image, &images::MODULES)?;
        machine.additions.extend(modules);
        option = "--linux";
    }
    let script = format!(
        "for module in /modules/*.ko; do [ ! -e $module ] || insmod $module; done
         mkdir /tmp/a && mount -t ext4 /dev/vdb /tmp/a || exit 3
         /direct {option} /dev/vda /tmp/a/file || exit 4
         umount /tmp/a && rmdir /tmp/a"
    );
    let told = |printed: &str| Ok(printed.trim().to_owned());
    let step = Step::new(
        "pages of programs are as if they were copied, whatever becomes of them",
        script,
        Expect::Accepted(told),
    );
    let mut checks = batch::run(machine, &[step.limit(300)])?;
    checks.push(Check::new(
        "the host finds no fault",
        images::check(&system, 0),
    ));
    Ok(checks)
}
