//! A disk that fails as it is told (QEMU's driver `blkdebug`), and what programs see of it.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use disk_tests::contents::filled;

use super::{images, modules};
use crate::build;
use crate::cleanup::Directory;
use crate::test::{Check, Setting, batch};
use crate::vm::{Addition, Kernel};

const CASES: &str = include_str!("../../../../tests/cases/disk-errors.cases");

const LEN: usize = 24 << 20;
const PAGE: u64 = 4096;
/// Pages of each file, and the one that fails.
const PAGES: u64 = 64;
const BAD: u64 = 10;

/// A failure of a state: kind of request, and the file whose page [`BAD`] it is, or all. A kind
/// that ends with [`ONCE`] fails the first time only.
type Failure = (&'static str, Option<&'static str>);

/// Suffix of a kind of request that is not to fail again.
const ONCE: &str = " once";

/// Failures in the states of the disk behind the first, in the order in which the program goes
/// through them; with an error once the disk holds again by itself.
const STATES: [&[Failure]; 12] = [
    &[("write", Some("data"))],
    &[],
    &[("read", Some("read"))],
    &[],
    &[("write once", Some("data"))],
    &[("flush", None)],
    &[],
    &[("write", None)],
    &[],
    &[("read", None), ("write", None), ("flush", None)],
    &[],
    &[],
];

/// The place of page [`BAD`] of a file on the disk, in sectors.
fn sector(image: &Path, file: &str) -> Result<u64> {
    let block = images::debugfs(image, &format!("bmap {file} {BAD}"))?;
    let block: u64 = String::from_utf8_lossy(&block).trim().parse()?;
    ensure!(block > 0, "{file} has no block {BAD}");
    Ok((images::SECOND + block * PAGE) / 512)
}

/// The disk for QEMU: each request to write zeros takes it to its next state.
fn drive(disk: &Path, image: &Path) -> Result<String> {
    let mut drive = format!(
        "driver=blkdebug,image.driver=file,image.filename={},image.cache.no-flush=on",
        disk.display()
    );
    let mut rules = 0;
    for (index, failures) in STATES.iter().enumerate() {
        let (old, new) = (index + 1, index + 2);
        write!(
            drive,
            ",set-state.{index}.event=pwritev_zero,set-state.{index}.state={old},\
             set-state.{index}.new_state={new}"
        )?;
        let mut inject = |settings: &[&str], sector: Option<u64>| -> Result<()> {
            let rule = format!("inject-error.{rules}");
            rules += 1;
            write!(drive, ",{rule}.event=pwritev_zero,{rule}.state={old}")?;
            for setting in settings {
                write!(drive, ",{rule}.{setting}")?;
            }
            if let Some(sector) = sector {
                write!(drive, ",{rule}.sector={sector}")?;
            }
            Ok(())
        };
        // A rule takes the place of those before.
        if failures.is_empty() {
            inject(&["errno=0"], None)?;
        }
        for (kind, file) in *failures {
            let sector = file.map(|file| sector(image, file)).transpose()?;
            let (kind, once) = match kind.strip_suffix(ONCE) {
                Some(kind) => (kind, "once=on"),
                None => (*kind, "once=off"),
            };
            inject(&[&format!("iotype={kind}"), once], sector)?;
        }
    }
    Ok(drive)
}

pub fn run(setting: &Setting) -> Result<Vec<Check>> {
    let directory = Directory::create().context("cannot make a temporary directory")?;
    let tree = directory.join("tree");
    fs::create_dir(&tree)?;
    for (key, name) in [(1, "data"), (2, "read")] {
        fs::write(tree.join(name), filled(key, 0, PAGES * PAGE))?;
    }
    let image = directory.join("file-system");
    fs::write(&image, vec![0; LEN])?;
    images::mke2fs(&image, &["-b", "4096"], &tree)?;
    let disk = directory.join("disk");
    fs::write(&disk, images::partitioned(&image)?)?;
    let mut machine = setting.machine("all");
    images::attach(&mut machine.hardware, &drive(&disk, &image)?);
    machine.additions.push(Addition {
        host: build::disk_tests()?.program("disk-errors"),
        guest: "/disk-errors".into(),
    });
    if let Kernel::Linux(image) = &machine.kernel {
        let modules = modules::of(image, &images::MODULES)?;
        machine.additions.extend(modules);
    }
    let mut checks = batch::run(machine, &batch::steps(CASES, &[])?)?;
    checks.push(Check::new(
        "the host finds the file system without a fault",
        images::check(&disk, images::SECOND),
    ));
    Ok(checks)
}
