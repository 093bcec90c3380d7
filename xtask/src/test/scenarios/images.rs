//! Disks for scenarios: images that the host's tools make, and how QEMU attaches them.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::cleanup::Directory;
use crate::qemu::Hardware;
pub use crate::rootfs::mke2fs;

/// Modules of a Debian kernel that disks, ext4 and loop devices need beside those of all virtio
/// devices.
pub const MODULES: [&str; 7] = [
    "drivers/block/virtio_blk",
    "drivers/block/loop",
    "crypto/crc32c_generic",
    "lib/crc16",
    "fs/mbcache",
    "fs/jbd2/jbd2",
    "fs/ext4/ext4",
];

/// Places of the two partitions of [`partitioned`], in bytes.
pub const FIRST: u64 = 1 << 20;
pub const SECOND: u64 = 2 << 20;

/// Makes an image of zeros.
pub fn empty(directory: &Directory, name: &str, bytes: u64) -> Result<PathBuf> {
    let path = directory.join(name);
    let file = File::create(&path).with_context(|| format!("cannot make {}", path.display()))?;
    file.set_len(bytes)?;
    Ok(path)
}

/// The answer of debugfs about an image.
pub fn debugfs(disk: &Path, request: &str) -> Result<Vec<u8>> {
    let output = Command::new("/usr/sbin/debugfs")
        .args(["-R", request])
        .arg(disk)
        .output()
        .context("cannot run debugfs")?;
    Ok(output.stdout)
}

/// Requires that e2fsck finds no fault of an image, or of what is in it from this byte on.
pub fn check(disk: &Path, offset: u64) -> Result<String> {
    let output = Command::new("/usr/sbin/e2fsck")
        .arg("-fn")
        .arg(format!("{}?offset={offset}", disk.display()))
        .output()
        .context("cannot run e2fsck")?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "{}: {text}", output.status);
    Ok(text.lines().last().unwrap_or_default().into())
}

/// A disk with two partitions: one of 1 MiB, and one with this image.
pub fn partitioned(image: &Path) -> Result<Vec<u8>> {
    let image = fs::read(image)?;
    let mut disk = vec![0; SECOND as usize];
    for (entry, start, len) in [
        (446, FIRST, SECOND - FIRST),
        (462, SECOND, image.len() as u64),
    ] {
        // Places in cylinders, heads and sectors that say that there are none.
        disk[entry + 1..entry + 8].copy_from_slice(&[0xfe, 0xff, 0xff, 0x83, 0xfe, 0xff, 0xff]);
        disk[entry + 8..entry + 12].copy_from_slice(&((start / 512) as u32).to_le_bytes());
        disk[entry + 12..entry + 16].copy_from_slice(&((len / 512) as u32).to_le_bytes());
    }
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    disk.extend(image);
    Ok(disk)
}

/// Attaches a virtio disk of what QEMU's `-drive` is given, without `if` and `id`.
pub fn attach(hardware: &mut Hardware, drive: &str) {
    let id = format!("drive{}", hardware.extra.len());
    let drive = format!("if=none,id={id},{drive}");
    let device = format!("virtio-blk-pci,drive={id}");
    for argument in ["-drive", &drive, "-device", &device] {
        hardware.extra.push(OsString::from(argument));
    }
}

/// Attaches a virtio disk whose writes and flushes are logged.
pub fn attach_logged(hardware: &mut Hardware, disk: &Path, log: &Path) {
    // The host does not lose power: it need not flush.
    let drive = format!(
        "driver=blklogwrites,file.driver=file,file.filename={},file.cache.no-flush=on,\
         log.driver=file,log.filename={},log.cache.no-flush=on",
        disk.display(),
        log.display()
    );
    attach(hardware, &drive);
}
