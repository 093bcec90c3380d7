//! Root file systems on disks: the supervisor's, which Linux boots from, too, and those of
//! instances.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::devices::{behind_port, drive};
use super::{images, modules};
use crate::cleanup::Directory;
use crate::test::{Check, Setting, batch};
use crate::vm::{Kernel, Machine};
use crate::{bench, packages, rootfs};

const CASES: &str = include_str!("../../../../tests/cases/root-disk.cases");

/// First program on the disk: says what it finds, writes, and leaves the disk at rest.
const INIT: &str = r#"#!/bin/bash
export PATH=/usr/sbin:/usr/bin
[ -e /proc/mounts ] || mount -t proc proc /proc
echo "said: $(grep ' / ' /proc/mounts | tail -n 1)"
[ ! -e /written ] || [ "$(md5sum < /written)" != "$(seq 100000 | md5sum)" ] || echo "said: as it was"
(echo > /probe) 2> /dev/null || echo "said: read-only"
mount -o remount,rw / || echo "said: it stays so"
seq 100000 > /written
sqlite3 /data.db "create table if not exists boots (n); insert into boots values ($$)"
echo "said: $(sqlite3 /data.db 'pragma integrity_check; select count(*) from boots' | tr '\n' ' ')"
mount -o remount,ro / && echo "said: at rest"
busybox poweroff -f
"#;

/// First program of the archive, where the disk cannot be had.
const ARCHIVE: &str = r#"#!/bin/busybox sh
echo "said: from the archive"
/bin/busybox poweroff -f
"#;

/// First program of Linux, whose drivers are modules: goes on from the disk.
const LINUX: &str = r#"#!/bin/busybox sh
/bin/busybox mount -t devtmpfs dev /dev
for module in /modules/*.ko; do /bin/busybox insmod $module; done
/bin/busybox mkdir /mnt
/bin/busybox mount -t ext4 -o ro /dev/vda /mnt
/bin/busybox mount -t devtmpfs dev /mnt/dev
exec /bin/busybox switch_root /mnt /sbin/init
"#;

pub fn run(setting: &Setting) -> Result<Vec<Check>> {
    let directory = Directory::create().context("cannot make a temporary directory")?;
    let image = directory.join("system");
    let archive = rootfs::cached(&[packages::ROOT])?;
    rootfs::write_image(&archive, &image, None, |tree| {
        fs::copy("/bin/busybox", tree.join("usr/bin/busybox"))?;
        script(&tree.join("usr/sbin/init"), INIT)
    })?;
    let given = directory.join("given");
    fs::write(&given, images::partitioned(&image)?)?;
    let mut checks = supervisor(setting, &directory, &image, &given)?;
    checks.extend(instances(setting, &given)?);
    Ok(checks)
}

/// Boots from the disk one after another, of this kernel and of Linux.
fn supervisor(
    setting: &Setting,
    directory: &Directory,
    image: &Path,
    partitioned: &Path,
) -> Result<Vec<Check>> {
    let init = directory.join("init");
    script(&init, ARCHIVE)?;
    let boot = |name: &str, words: &str| -> Result<Vec<String>> {
        let mut machine = machine(setting, name, &[image, partitioned]);
        machine.append = words.into();
        let log = machine.run_without_agent(&init, |archive| {
            archive.host(Path::new("/bin/busybox"), "/bin/busybox")
        })?;
        Ok(said(&log))
    };
    let says = |what: &str, said: Result<Vec<String>>, wanted: &[&str]| {
        let judged = said.and_then(|said| {
            ensure!(said == wanted, "it said {said:#?}");
            Ok(String::new())
        });
        Check::new(what, judged)
    };
    let mut checks = vec![
        says(
            "the supervisor's root is a disk with Debian on it, read-only until that says otherwise",
            boot("first", "root=/dev/vda"),
            &[
                "/dev/vda / ext4 ro,relatime 0 0",
                "read-only",
                "ok 1 ",
                "at rest",
            ],
        ),
        Check::new("the host finds no fault on it", images::check(image, 0)),
        says(
            "Linux boots from the same disk, and finds what was written",
            on_linux(setting, directory, image),
            &[
                "/dev/vda / ext4 ro,relatime 0 0",
                "as it was",
                "read-only",
                "ok 2 ",
                "at rest",
            ],
        ),
        says(
            "the supervisor boots again from what Linux has left",
            boot("again", "root=254:0 rw rootfstype=ext4 rootwait"),
            &[
                "/dev/vda / ext4 rw,relatime 0 0",
                "as it was",
                "ok 3 ",
                "at rest",
            ],
        ),
        Check::new("the host finds no fault then", images::check(image, 0)),
        says(
            "a partition is found by its identity, wherever its disk is",
            boot("partition", "root=PARTUUID=00000000-02 init=/usr/sbin/init"),
            &[
                "/dev/vdb2 / ext4 ro,relatime 0 0",
                "read-only",
                "ok 1 ",
                "at rest",
            ],
        ),
    ];
    for (what, name, words, line) in [
        (
            "a disk that is not there leaves the archive, and the disks there are are named",
            "without",
            "root=/dev/vdz rw",
            "there is no disk /dev/vdz: there are vda (",
        ),
        (
            "so does one without the first program",
            "programless",
            "root=/dev/vda init=/none",
            "there is no /none on it: give init=",
        ),
    ] {
        let left = boot(name, words).and_then(|said| {
            ensure!(said == ["from the archive"], "it said {said:#?}");
            let log = fs::read_to_string(&setting.machine(name).log)?;
            let line = format!("cannot use the root file system: {line}");
            ensure!(log.contains(&line), "no {line:?} in {log}");
            Ok(String::new())
        });
        checks.push(Check::new(what, left));
    }
    Ok(checks)
}

fn on_linux(setting: &Setting, directory: &Directory, image: &Path) -> Result<Vec<String>> {
    let mut machine = machine(setting, "linux", &[image]);
    let linux = bench::newest_linux()?;
    let modules = modules::of(&linux, &images::MODULES)?;
    machine.kernel = Kernel::Linux(linux);
    let init = directory.join("linux-init");
    script(&init, LINUX)?;
    let log = machine.run_without_agent(&init, |archive| {
        archive.host(Path::new("/bin/busybox"), "/bin/busybox")?;
        let mut modules = modules.iter();
        modules.try_for_each(|module| archive.host(&module.host, &module.guest))
    })?;
    Ok(said(&log))
}

/// Instances whose disks are behind root ports.
fn instances(setting: &Setting, image: &Path) -> Result<Vec<Check>> {
    let mut machine = machine(setting, "instances", &[]);
    machine.append = "pci.hide=01:00.0".into();
    drive(&mut machine.hardware, "given", image);
    behind_port(&mut machine.hardware, 1, "nvme,serial=root,drive=given");
    let mut steps = batch::steps(CASES, &[])?;
    for step in &mut steps {
        step.limit = 90;
    }
    let mut checks = batch::run(machine, &steps)?;
    checks.push(Check::new(
        "the host finds no fault on the disk of instances",
        images::check(image, images::SECOND),
    ));
    Ok(checks)
}

fn machine(setting: &Setting, name: &str, disks: &[&Path]) -> Machine {
    let mut machine = setting.machine(name);
    machine.timeout = Some(Duration::from_secs(300));
    machine.hardware.disks = disks.iter().map(PathBuf::from).collect();
    machine
}

/// Lines of a log by which a first program told something.
fn said(log: &str) -> Vec<String> {
    log.lines()
        .filter_map(|line| line.trim_end_matches('\r').strip_prefix("said: "))
        .map(String::from)
        .collect()
}

fn script(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text)?;
    Ok(fs::set_permissions(
        path,
        fs::Permissions::from_mode(0o755),
    )?)
}
