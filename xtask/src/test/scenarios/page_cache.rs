//! What the page cache of ext4 costs, and what it does by itself.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};
use disk_tests::contents::filled;

use super::{images, modules};
use crate::build;
use crate::cleanup::Directory;
use crate::test::batch::{self, Expect, Step};
use crate::test::{Check, Setting};
use crate::vm::{Addition, Kernel};

const LEN: u64 = 64 << 20;
/// Length of the file that is read and mapped.
const BIG: u64 = 32 << 20;

const SAYS: &str = "\
read and mapped: once
read ahead: fewer requests
old and dirty: written
full, a page with a block: None
full, a hole: Some(7)
room, the same hole: None";

pub fn run(setting: &Setting) -> Result<Vec<Check>> {
    let directory = Directory::create().context("cannot make a temporary directory")?;
    let tree = directory.join("tree");
    fs::create_dir(&tree)?;
    fs::write(tree.join("big"), filled(1, 0, BIG))?;
    let disk = images::empty(&directory, "disk", LEN)?;
    images::mke2fs(&disk, &["-b", "4096", "-m", "0"], &tree)?;
    let mut machine = setting.machine("all");
    machine.timeout = Some(Duration::from_secs(200));
    machine.hardware.disks.push(disk.clone());
    machine.additions.push(Addition {
        host: build::disk_tests()?.program("page-cache"),
        guest: "/page-cache".into(),
    });
    if let Kernel::Linux(image) = &machine.kernel {
        let modules = modules::of(image, &images::MODULES)?;
        machine.additions.extend(modules);
    }
    let step = Step::new(
        "a page is cached once, read ahead, written when old, and refused when there is no room",
        "for module in /modules/*.ko; do [ ! -e $module ] || insmod $module; done
         exec /page-cache /dev/vda vda",
        Expect::Text(SAYS.into()),
    );
    let mut checks = batch::run(machine, &[step.limit(120)])?;
    checks.push(Check::new(
        "the host finds no fault",
        images::check(&disk, 0),
    ));
    Ok(checks)
}
