//! A start without firmware: Linux runs first, fills memory, and starts Skerry in its own place
//! with Debian's `kexec`. Everything in memory is as Linux left it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::cleanup::Directory;
use crate::initramfs::Archive;
use crate::test::{Check, Setting};
use crate::vm::Kernel;
use crate::{bench, build, packages, rootfs};

/// First process of Linux.
const LINUX: &str = r#"#!/bin/busybox sh
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sysfs /sys
machine-tests canary leave 600
kexec --load --type=multiboot2-x86 --command-line=console=ttyS0 --module=/boot/archive /boot/skerry &&
    kexec --exec
/bin/busybox poweroff -f
"#;

/// First process of Skerry. The instance gets more than two thirds of the machine's GiB, so that
/// 300 MiB at least are what Linux filled.
const SKERRY: &str = r#"#!/bin/busybox sh
/bin/busybox mkdir -p /proc /tmp
/bin/busybox mount -t proc proc /proc
echo "supervisor: $(machine-tests canary fresh)"
skerry resources | /bin/busybox grep CPU
echo "instance: $(skerry run --cpus 1 --mem 700M -- machine-tests canary scan)"
/bin/busybox poweroff -f
"#;

/// Starts Linux, which starts Skerry, where the pattern is looked for.
pub fn run(setting: &Setting) -> Result<Vec<Check>> {
    let mut machine = setting.machine("kexec");
    machine.kernel = Kernel::Linux(bench::newest_linux()?);
    machine.hardware.cpus = 2;
    machine.hardware.memory = "1G".into();
    machine.timeout = Some(Duration::from_secs(300));
    let directory = Directory::create()?;
    let skerry = directory.join("archive");
    let init = script(&directory, "skerry-init", SKERRY)?;
    let (tools, programs) = (build::tools()?, build::test_programs()?);
    let common = |archive: &mut Archive| -> Result<()> {
        archive.host(Path::new("/bin/busybox"), "/bin/busybox")?;
        archive.host(&programs.program("machine-tests"), "/bin/machine-tests")
    };
    let mut archive = Archive::new();
    archive.device("/dev/console", 0o600, 5, 1);
    archive.host(&init, "/init")?;
    common(&mut archive)?;
    archive.host(&tools.program("skerry"), "/bin/skerry")?;
    fs::write(&skerry, archive.finish())?;
    let packages = rootfs::cached(&[packages::KEXEC])?;
    let log = machine.run_without_agent(&script(&directory, "init", LINUX)?, |archive| {
        archive.tar(&packages)?;
        common(archive)?;
        archive.host(&build::kernel()?, "/boot/skerry")?;
        archive.host(&skerry, "/boot/archive")
    })?;
    let said = |who: &str| {
        let line = log.lines().find_map(|line| line.strip_prefix(who));
        line.map(str::trim)
            .with_context(|| format!("no {who:?} in the log:\n{log}"))
    };
    let no_trace = |who: &str| {
        let found = said(who)?;
        ensure!(found == "no trace", "{found}");
        Ok(String::new())
    };
    Ok(vec![
        Check::new(
            "Skerry starts in Linux's place, by kexec, on all processors",
            said("CPUs").and_then(|numbers| {
                ensure!(numbers.starts_with('2'), "{numbers}");
                Ok(String::new())
            }),
        ),
        Check::new(
            "what the kernel before left in memory, no program of the supervisor has",
            no_trace("supervisor:"),
        ),
        Check::new(
            "what the kernel before left in memory, no instance has",
            no_trace("instance:"),
        ),
    ])
}

/// An executable script in `directory`; its path.
fn script(directory: &Directory, name: &str, text: &str) -> Result<std::path::PathBuf> {
    let path = directory.join(name);
    fs::write(&path, text)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    Ok(path)
}
