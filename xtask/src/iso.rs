//! A bootable image: GRUB for BIOS and UEFI, which loads the kernel by the multiboot2 protocol.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::cleanup::Directory;
use crate::initramfs::{self, Archive};
use crate::{build, paths};

/// Boot protocol by which GRUB loads a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Multiboot2, for Skerry.
    Multiboot2,
    /// The Linux boot protocol.
    Linux,
}

/// Makes an image that boots `kernel` with this initial RAM file system.
pub fn make(
    image: &Path,
    (kernel, protocol): (&Path, Protocol),
    initramfs: &[u8],
    command_line: &str,
) -> Result<()> {
    let directory = Directory::create().context("cannot make a temporary directory")?;
    let root = directory.join("root");
    let write = |name: &str, contents: &[u8]| {
        let path = root.join(name);
        fs::create_dir_all(path.parent().expect("it lies in the root"))
            .and_then(|()| fs::write(&path, contents))
            .with_context(|| format!("cannot write {}", path.display()))
    };
    write(
        "boot/kernel",
        &fs::read(kernel).with_context(|| format!("cannot read {}", kernel.display()))?,
    )?;
    write("boot/initramfs.cpio", initramfs)?;
    write(
        "boot/grub/grub.cfg",
        menu(protocol, command_line).as_bytes(),
    )?;
    let mut grub = Command::new("grub-mkrescue");
    grub.arg("-o")
        .arg(image)
        .arg(&root)
        .args(["--", "-volid", "SKERRY"]);
    let output = grub
        .output()
        .context("cannot run grub-mkrescue (package grub-common; `make setup` installs it)")?;
    ensure!(
        output.status.success(),
        "grub-mkrescue failed (packages grub-pc-bin, grub-efi-amd64-bin, xorriso, mtools; `make setup` installs them):\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

/// GRUB's configuration: no menu, no waiting, and its own messages on the serial line too.
fn menu(protocol: Protocol, command_line: &str) -> String {
    let (kernel, initramfs) = match protocol {
        Protocol::Multiboot2 => ("multiboot2", "module2"),
        Protocol::Linux => ("linux", "initrd"),
    };
    format!(
        "serial --unit=0 --speed=115200\nterminal_input serial console\nterminal_output serial console\nset timeout=0\n\
         menuentry Skerry {{\n  {kernel} /boot/kernel {command_line}\n  {initramfs} /boot/initramfs.cpio\n}}\n"
    )
}

/// First program of the image.
const INIT: &[u8] = include_bytes!("iso.init");

/// `cargo xtask iso`: makes the image people start from; returns its path.
pub fn default_image() -> Result<PathBuf> {
    let tools = build::tools()?;
    let mut archive = Archive::new();
    initramfs::add_base(&mut archive)?;
    archive.file("/init", 0o755, INIT);
    archive.host(&tools.program("skerry"), "/bin/skerry")?;
    let image = paths::target().join("skerry.iso");
    make(
        &image,
        (&build::kernel()?, Protocol::Multiboot2),
        &archive.finish(),
        "console=ttyS0",
    )?;
    Ok(image)
}
