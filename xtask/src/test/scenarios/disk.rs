//! Virtio disks under Debian's tools; what is in the images afterwards is looked at by the host.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use disk_tests::log::{self, Entry};

use super::images::{self, MODULES, attach, attach_logged, debugfs, mke2fs};
use super::modules;
use crate::cleanup::Directory;
use crate::test::batch;
use crate::test::{Check, Setting};
use crate::vm::{Addition, Ending, Kernel, Streams};
use crate::{packages, rootfs};

const CASES: &str = include_str!("../../../../tests/cases/disk.cases");

/// Bytes of the first disk, and of the second, whose writes and flushes are logged.
const DISK: u64 = 64 << 20;
const LOGGED_DISK: u64 = 8 << 20;
/// Place of the first two partitions that the scripts make, in bytes.
const FIRST: u64 = 2048 * 512;
const SECOND: u64 = 34816 * 512;
const SECOND_LEN: usize = 8 << 20;

/// Size of the disk with files of the host's, and what a machine does with it until its power is
/// cut: it ends while a file is being written.
const TREE_DISK: u64 = 16 << 20;
const UNTIL_THE_CUT: &str = r#"
for module in /modules/*.ko; do [ ! -e $module ] || insmod $module; done
mkdir /mnt
mount -t ext4 /dev/vda /mnt || exit 3
cd /mnt
md5sum -c sums > /dev/null && echo host
seq 100000 | dd of=synced bs=64k conv=fsync 2> /dev/null
mkdir new
for n in $(seq 200); do echo $n > new/$n; done
(while :; do
    dd if=/dev/zero of=busy bs=64k count=20 2> /dev/null
    rm -f new/1*
    echo more > new/1
done) &
dd if=/dev/zero of=big bs=64k count=40 conv=fsync 2> /dev/null
seq 100000 | dd of=late bs=4k conv=fsync 2> /dev/null
echo cut
"#;

/// Makes a file system with files in it, by the host's tools.
fn make_tree(directory: &Directory) -> Result<PathBuf> {
    let disk = images::empty(directory, "tree", TREE_DISK)?;
    let tree = directory.join("files");
    fs::create_dir_all(tree.join("many"))?;
    for n in 0..300 {
        fs::write(tree.join(format!("many/file-{n}")), format!("{n}\n"))?;
    }
    let numbers: Vec<u8> = (1..=200_000)
        .flat_map(|n: u32| format!("{n}\n").into_bytes())
        .collect();
    fs::write(tree.join("numbers"), numbers)?;
    std::os::unix::fs::symlink("numbers", tree.join("link"))?;
    let sums = "md5sum link many/file-* > sums";
    let status = Command::new("sh")
        .args(["-c", sums])
        .current_dir(&tree)
        .status()?;
    ensure!(status.success(), "md5sum: {status}");
    mke2fs(&disk, &[], &tree)?;
    Ok(disk)
}

/// Has a machine write to a disk, and end in the middle of that.
fn cut_power(setting: &Setting, disk: &Path) -> Result<String> {
    let mut machine = setting.machine("cut");
    machine.timeout = Some(Duration::from_secs(100));
    machine.hardware.disks.push(disk.to_owned());
    if let Kernel::Linux(image) = &machine.kernel {
        machine.additions.extend(modules::of(image, &MODULES)?);
    }
    machine.command = ["sh", "-c", UNTIL_THE_CUT].map(OsString::from).into();
    let mut output = Vec::new();
    let mut complaints = Vec::new();
    let outcome = machine.run(Streams {
        input: Box::new(std::io::empty()),
        output: &mut output,
        error: &mut complaints,
    })?;
    let output = String::from_utf8_lossy(&output);
    ensure!(output.trim() == "host\ncut", "it printed {output:?}");
    ensure!(
        matches!(outcome.ending, Ending::Exited(0)),
        "{:?}",
        outcome.ending
    );
    Ok(String::new())
}

/// Replays a journal by e2fsck, in a copy, and looks at what was synced.
fn check_cut(directory: &Directory, disk: &Path) -> Result<String> {
    let copy = directory.join("copy");
    fs::copy(disk, &copy)?;
    let e2fsck = |how: &str| {
        Command::new("/usr/sbin/e2fsck")
            .arg(how)
            .arg(&copy)
            .output()
    };
    let replayed = e2fsck("-p")?;
    let text = String::from_utf8_lossy(&replayed.stdout).into_owned();
    ensure!(text.contains("recovering journal"), "{text}");
    let checked = e2fsck("-fn")?;
    let text = String::from_utf8_lossy(&checked.stdout).into_owned();
    ensure!(checked.status.success(), "{text}");
    let wanted: Vec<u8> = (1..=100_000)
        .flat_map(|n: u32| format!("{n}\n").into_bytes())
        .collect();
    for name in ["synced", "late"] {
        let found = debugfs(&copy, &format!("cat {name}"))?;
        ensure!(found == wanted, "{name} has {} bytes", found.len());
    }
    Ok(text.lines().last().unwrap_or_default().into())
}

pub fn run(setting: &Setting) -> Result<Vec<Check>> {
    let directory = Directory::create().context("cannot make a temporary directory")?;
    let tree = make_tree(&directory)?;
    let cut = cut_power(setting, &tree);
    let after_cut = check_cut(&directory, &tree);
    let disk = images::empty(&directory, "disk", DISK)?;
    let logged = images::empty(&directory, "logged", LOGGED_DISK)?;
    let log = images::empty(&directory, "log", 0)?;
    let mut machine = setting.machine("all");
    machine.timeout = Some(Duration::from_secs(300));
    machine.hardware.disks.push(disk.clone());
    attach_logged(&mut machine.hardware, &logged, &log);
    let drive = format!("format=raw,file={}", tree.display());
    attach(&mut machine.hardware, &drive);
    machine.additions.push(Addition {
        host: rootfs::cached(&[packages::DISKS])?,
        guest: "/disk-tools.tar".into(),
    });
    if let Kernel::Linux(image) = &machine.kernel {
        machine.additions.extend(modules::of(image, &MODULES)?);
    }
    let mut steps = batch::steps(CASES, &[])?;
    for step in &mut steps {
        step.limit = 100;
    }
    let mut checks = batch::run(machine, &steps)?;
    checks.push(Check::new("a machine writes until its power is cut", cut));
    checks.push(Check::new(
        "the host replays the journal after the cut, and finds what was synced",
        after_cut,
    ));
    checks.push(Check::new(
        "the host finds the files of a file system that was mounted",
        check_mounted(&disk, &tree),
    ));
    checks.push(Check::new(
        "the host finds the file system that was made, without a fault",
        images::check(&disk, FIRST),
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

/// Looks at the machine's first partition, and at the disk whose power was cut.
fn check_mounted(disk: &Path, tree: &Path) -> Result<String> {
    let partition = format!("{}?offset={FIRST}", disk.display());
    let stone = debugfs(Path::new(&partition), "cat rock")?;
    ensure!(stone.len() == 108_894, "rock has {} bytes", stone.len());
    let names = String::from_utf8_lossy(&debugfs(Path::new(&partition), "ls -p /")?).into_owned();
    ensure!(names.contains("/mke2fs/"), "{names}");
    images::check(tree, 0)
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

/// Looks at the log of a disk's writes.
fn check_log(log: &Path) -> Result<String> {
    let bytes = fs::read(log)?;
    let entries = log::parse(&bytes)?;
    let last = |is_it: fn(&Entry<'_>) -> bool| entries.iter().rposition(is_it);
    let written = last(|entry| matches!(entry, Entry::Write { .. })).context("no write")?;
    let Entry::Write { at, .. } = entries[written] else {
        unreachable!("it was found as one");
    };
    ensure!(at == 4096 * 512, "the last write was to byte {at}");
    let flushed = last(|entry| *entry == Entry::Flush);
    ensure!(
        flushed > Some(written),
        "no flush came after the last write"
    );
    Ok(format!("{} entries", entries.len()))
}
