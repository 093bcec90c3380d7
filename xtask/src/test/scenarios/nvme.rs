//! Namespaces of an NVMe controller of QEMU's under Debian's tools; what is in the images
//! afterwards is looked at by the host.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::devices::behind_port;
use super::{images, modules};
use crate::cleanup::Directory;
use crate::qemu::Hardware;
use crate::test::{Check, Setting, batch};
use crate::vm::{Addition, Kernel};
use crate::{packages, rootfs};

const CASES: &str = include_str!("../../../../tests/cases/nvme.cases");
const INSTANCE_CASES: &str = include_str!("../../../../tests/cases/nvme-instance.cases");

/// Bytes of the namespaces.
const SIZES: [u64; 3] = [64 << 20, 32 << 20, 8 << 20];
/// Place of the first partition that the scripts make, in bytes.
const FIRST: u64 = 2048 * 512;
/// The page of the third namespace that cannot be read, and the one that cannot be written.
const UNREADABLE: u64 = 1000;
const UNWRITABLE: u64 = 1800;

/// Modules of a Debian kernel that NVMe disks need.
pub const MODULES: [&str; 9] = [
    "lib/crc64",
    "crypto/crc64_rocksoft_generic",
    "crypto/crct10dif_common",
    "crypto/crct10dif_generic",
    "lib/crc64-rocksoft",
    "lib/crc-t10dif",
    "block/t10-pi",
    "drivers/nvme/host/nvme-core",
    "drivers/nvme/host/nvme",
];

/// Adds a controller with a namespace of each drive; the second has blocks of 4,096 bytes.
fn attach(hardware: &mut Hardware, drives: &[String]) {
    let mut add = |arguments: [&str; 2]| hardware.extra.extend(arguments.map(Into::into));
    add(["-device", "nvme,id=nvme,serial=rock"]);
    for (n, drive) in (1..).zip(drives) {
        let block = if n == 2 { 4096 } else { 512 };
        add(["-drive", &format!("if=none,id=ns{n},{drive}")]);
        let sizes = format!("logical_block_size={block},physical_block_size={block}");
        let namespace = format!("nvme-ns,bus=nvme,nsid={n},drive=ns{n},{sizes}");
        add(["-device", &namespace]);
    }
}

/// Files of the host's on the second namespace.
fn make_tree(directory: &Directory, image: &Path) -> Result<()> {
    let tree = directory.join("tree");
    fs::create_dir(&tree)?;
    for n in 0..20 {
        fs::write(
            tree.join(format!("file-{n}")),
            format!("{n}\n").repeat(5000),
        )?;
    }
    let status = Command::new("sh")
        .args(["-c", "md5sum file-* > sums"])
        .current_dir(&tree)
        .status()?;
    ensure!(status.success(), "md5sum: {status}");
    images::mke2fs(image, &["-b", "4096"], &tree)
}

pub fn run(setting: &Setting) -> Result<Vec<Check>> {
    let directory = Directory::create().context("cannot make a temporary directory")?;
    let mut paths: Vec<PathBuf> = Vec::new();
    for (n, bytes) in SIZES.into_iter().enumerate() {
        let path = directory.join(&format!("namespace-{}", n + 1));
        File::create(&path)?.set_len(bytes)?;
        paths.push(path);
    }
    make_tree(&directory, &paths[1])?;
    let beside = directory.join("beside");
    File::create(&beside)?.set_len(1 << 20)?;
    let raw = |path: &Path| format!("format=raw,discard=unmap,file={}", path.display());
    let (unreadable, unwritable) = (UNREADABLE * 8, UNWRITABLE * 8);
    let failing = format!(
        "driver=blkdebug,image.driver=file,image.filename={},\
         inject-error.0.event=none,inject-error.0.iotype=read,inject-error.0.sector={unreadable},\
         inject-error.1.event=none,inject-error.1.iotype=write,inject-error.1.sector={unwritable}",
        paths[2].display()
    );
    let mut machine = setting.machine("all");
    machine.timeout = Some(Duration::from_secs(300));
    // A queue for each.
    machine.hardware.cpus = 2;
    machine.append = "supervisor_cpus=2".into();
    // Of two kinds of disks the firmware keeps more memory than QEMU's loader expects, so that the
    // machine starts with an archive that is not in memory.
    machine.hardware.disks.push(beside);
    attach(
        &mut machine.hardware,
        &[raw(&paths[0]), raw(&paths[1]), failing],
    );
    machine.additions.push(Addition {
        host: rootfs::cached(&[packages::DISKS])?,
        guest: "/disk-tools.tar".into(),
    });
    machine.additions.push(Addition {
        host: rootfs::cached(&[packages::NVME])?,
        guest: "/nvme-cli.tar".into(),
    });
    if let Kernel::Linux(image) = &machine.kernel {
        let all = [&images::MODULES[..], &MODULES[..]].concat();
        machine.additions.extend(modules::of(image, &all)?);
    }
    let mut steps = batch::steps(CASES, &[])?;
    for step in &mut steps {
        step.limit = 100;
    }
    let mut checks = batch::run(machine, &steps)?;
    checks.push(Check::new(
        "the host finds the file system of a partition without a fault",
        images::check(&paths[0], FIRST),
    ));
    checks.push(Check::new(
        "the host finds what was changed in its file system",
        check_tree(&paths[1]),
    ));
    Ok(checks)
}

/// A controller of an instance.
pub fn instance(setting: &Setting) -> Result<Vec<Check>> {
    let directory = Directory::create().context("cannot make a temporary directory")?;
    let image = directory.join("namespace");
    File::create(&image)?.set_len(4 << 20)?;
    let mut machine = setting.machine("all");
    machine.timeout = Some(Duration::from_secs(200));
    machine.append = "pci.hide=01:00.0".into();
    let drive = format!("if=none,id=namespace,format=raw,file={}", image.display());
    let hardware = &mut machine.hardware;
    hardware.extra.extend(["-drive", &drive].map(Into::into));
    behind_port(hardware, 1, "nvme,serial=rock,drive=namespace");
    let mut steps = batch::steps(INSTANCE_CASES, &[])?;
    for step in &mut steps {
        step.limit = 90;
    }
    batch::run(machine, &steps)
}

/// Looks at the second namespace.
fn check_tree(image: &Path) -> Result<String> {
    let wanted: Vec<u8> = (1..=100_000)
        .flat_map(|n: u32| format!("{n}\n").into_bytes())
        .collect();
    let found = images::debugfs(image, "cat synced")?;
    ensure!(found == wanted, "synced has {} bytes", found.len());
    let names = String::from_utf8_lossy(&images::debugfs(image, "ls -p /")?).into_owned();
    ensure!(!names.contains("/file-7/"), "{names}");
    images::check(image, 0)
}
