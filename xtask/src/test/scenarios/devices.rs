//! PCI functions of instances: a disk and a network card, given and taken back.

use std::ffi::OsString;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::images;
use crate::cleanup::Directory;
use crate::qemu::{Hardware, Iommu};
use crate::test::{Check, Setting, batch};

const CASES: &str = include_str!("../../../../tests/cases/devices.cases");

const CHANGES: &str = include_str!("../../../../tests/cases/device-changes.cases");

const CHANGES_AMD: &str = include_str!("../../../../tests/cases/device-changes-amd.cases");

/// Has the supervisor's drivers leave functions alone, and one reset not be believed.
const COMMAND_LINE: &str = "fault=unreset pci.hide=01:00.0,02:00.0,04:00.0,0000:00:18.0";
/// Has a disk take minutes for as many MiB as a program reads at a time.
const SLOW: &str = ",throttling.bps-total=65536";
/// Rounds in which an instance ends while it writes.
const ROUNDS: usize = 8;

fn add(hardware: &mut Hardware, arguments: &[&str]) {
    hardware.extra.extend(arguments.iter().map(OsString::from));
}

/// Adds a device on the root bus.
pub fn on_bus_0(hardware: &mut Hardware, slot: u32, device: &str) {
    add(
        hardware,
        &["-device", &format!("{device},bus=pcie.0,addr={slot:#x}")],
    );
}

/// Adds a port to bus `bus`, and a device on it.
pub fn behind_port(hardware: &mut Hardware, bus: u32, device: &str) {
    let port = format!(
        "pcie-root-port,id=port{bus},chassis={bus},slot={bus},addr={:#x}",
        0xf + bus
    );
    let device = format!("{device},bus=port{bus}");
    add(hardware, &["-device", &port, "-device", &device]);
}

/// Adds a drive of that name, for a device, which is a file of the host's.
pub fn drive(hardware: &mut Hardware, id: &str, image: &Path) {
    let drive = format!("if=none,id={id},format=raw,file={}", image.display());
    add(hardware, &["-drive", &drive]);
}

/// Answers each that connects by a line, until the process ends; returns the port.
fn serve() -> Result<u16> {
    const ANSWER: &[u8] = b"HTTP/1.0 200 OK\r\n\r\nhello from outside\n";
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut stream = stream;
            let _ = stream.read(&mut [0; 1024]);
            let _ = stream.write_all(ANSWER);
        }
    });
    Ok(port)
}

pub fn run(setting: &Setting) -> Result<Vec<Check>> {
    let directory = Directory::create().context("cannot make a temporary directory")?;
    let tree = directory.join("tree");
    fs::create_dir(&tree)?;
    fs::write(tree.join("greeting"), "hello from the host\n")?;
    let given = directory.join("given");
    fs::write(&given, vec![0; 32 << 20])?;
    images::mke2fs(&given, &[], &tree)?;
    let (own, fixed) = (directory.join("own"), directory.join("fixed"));
    for image in [&own, &fixed] {
        fs::write(image, vec![0; 1 << 20])?;
    }
    let mut machine = setting.machine("all");
    machine.timeout = Some(Duration::from_secs(300));
    machine.append = COMMAND_LINE.into();
    let hardware = &mut machine.hardware;
    for (id, image) in [("given", &given), ("own", &own), ("fixed", &fixed)] {
        drive(hardware, id, image);
    }
    behind_port(hardware, 1, "virtio-blk-pci,drive=given");
    add(hardware, &["-netdev", "user,id=net"]);
    behind_port(hardware, 2, "virtio-net-pci,netdev=net,romfile=");
    behind_port(hardware, 3, "virtio-blk-pci,drive=own");
    behind_port(hardware, 4, "virtio-rng-pci,vectors=0");
    add(
        hardware,
        &["-device", "virtio-blk-pci,drive=fixed,addr=0x18"],
    );
    let mut steps = batch::steps(&CASES.replace("@PORT@", &serve()?.to_string()), &[])?;
    for step in &mut steps {
        step.limit = 90;
    }
    let mut checks = batch::run(machine, &steps)?;
    checks.push(Check::new(
        "the host finds a whole file system on the disk, with what was synced",
        check(&given),
    ));
    Ok(checks)
}

/// Functions that come to running instances and leave them, without a unit that confines them and
/// with one.
pub fn changes(setting: &Setting) -> Result<Vec<Check>> {
    let mut checks = Vec::new();
    for is_confined in [false, true] {
        checks.extend(changes_of(setting, is_confined)?);
    }
    checks.extend(changes_with_amd(setting)?);
    Ok(checks)
}

/// The same with the other maker's unit. In QEMU that confines only what is on the root bus, where
/// a virtio device cannot be reset.
fn changes_with_amd(setting: &Setting) -> Result<Vec<Check>> {
    let directory = Directory::create().context("cannot make a temporary directory")?;
    let mut machine = setting.machine("amd");
    machine.timeout = Some(Duration::from_secs(300));
    machine.append = "pci.hide=00:04.0,00:05.0".into();
    let hardware = &mut machine.hardware;
    hardware.iommu = Some(Iommu::Amd);
    for (slot, id, more) in [(4, "fast", ""), (5, "slow", SLOW)] {
        let image = directory.join(id);
        fs::write(&image, vec![0; 32 << 20])?;
        let drive = format!("if=none,id={id},format=raw,file={}{more}", image.display());
        add(hardware, &["-drive", &drive]);
        on_bus_0(hardware, slot, &format!("nvme,serial={id},drive={id}"));
    }
    let mut steps = batch::steps(CHANGES_AMD, &[])?;
    for step in &mut steps {
        step.limit = 60;
    }
    let mut checks = batch::run(machine, &steps)?;
    for check in &mut checks {
        check.what = format!("behind AMD-Vi: {}", check.what);
    }
    Ok(checks)
}

fn changes_of(setting: &Setting, is_confined: bool) -> Result<Vec<Check>> {
    let (kind, platform) = match is_confined {
        true => ("behind an IOMMU", ",iommu_platform=on"),
        false => ("without an IOMMU", ""),
    };
    let directory = Directory::create().context("cannot make a temporary directory")?;
    let tree = directory.join("tree");
    fs::create_dir(&tree)?;
    fs::write(tree.join("greeting"), "hello from the host\n")?;
    let [given, other, slow] = ["given", "other", "slow"].map(|name| directory.join(name));
    for image in [&given, &other, &slow] {
        fs::write(image, vec![0; 32 << 20])?;
    }
    images::mke2fs(&given, &[], &tree)?;
    let mut machine = setting.machine(if is_confined { "confined" } else { "free" });
    machine.timeout = Some(Duration::from_secs(300));
    machine.append = "fault=unreset=2 pci.hide=01:00.0,02:00.0,03:00.0,04:00.0".into();
    let hardware = &mut machine.hardware;
    hardware.iommu = is_confined.then_some(Iommu::Intel);
    drive(hardware, "given", &given);
    drive(hardware, "other", &other);
    behind_port(
        hardware,
        1,
        &format!("virtio-blk-pci,drive=given{platform}"),
    );
    add(hardware, &["-netdev", "user,id=net"]);
    let card = format!("virtio-net-pci,netdev=net,romfile={platform}");
    behind_port(hardware, 2, &card);
    behind_port(hardware, 3, "nvme,serial=other,drive=other");
    let throttled = format!("if=none,id=slow,format=raw,file={}{SLOW}", slow.display());
    add(hardware, &["-drive", &throttled]);
    behind_port(hardware, 4, &format!("virtio-blk-pci,drive=slow{platform}"));
    let (unsafe_dma, available, dry) = match is_confined {
        true => ("", "yes", "a"),
        false => (
            "--unsafe-dma",
            "with --unsafe-dma: ...",
            "skerry: cannot give 0000:01:00.0 to an instance: no IOMMU confi",
        ),
    };
    let (removed, listed, why) = match is_confined {
        true => (
            "a",
            "-- no: it is in quarantine, as it d",
            "skerry: cannot give 0000:01:00.0 to an instance: it is in",
        ),
        false => (
            "skerry: a does not use 0000:01:00.0 any more, a",
            "a no: a has let go of it, and it di",
            "skerry: cannot give 0000:01:00.0 to an instance: a has le",
        ),
    };
    let cases = [
        ("@REMOVED@", removed),
        ("@LISTED@", listed),
        ("@WHY@", why),
        ("@KIND@", kind),
        ("@UNSAFE@", unsafe_dma),
        ("@AVAILABLE@", available),
        ("@DRY@", dry),
    ];
    let cases = (cases.iter()).fold(CHANGES.to_owned(), |text, (from, to)| {
        text.replace(from, to)
    });
    let mut steps = batch::steps(&cases, &[])?;
    for step in &mut steps {
        step.limit = 60;
    }
    let mut checks = batch::run(machine, &steps)?;
    for check in &mut checks {
        check.what = format!("{kind}: {}", check.what);
    }
    let whole = Command::new("/usr/sbin/e2fsck")
        .arg("-p")
        .arg(&given)
        .output()
        .context("cannot run e2fsck")?;
    let text = String::from_utf8_lossy(&whole.stdout).into_owned();
    ensure!(whole.status.code() < Some(4), "{text}");
    checks.push(Check::new(
        format!("{kind}: the host finds a whole file system on the disk"),
        images::check(&given, 0),
    ));
    Ok(checks)
}

/// Looks at the disk that was given to instances which ended while they wrote.
fn check(disk: &Path) -> Result<String> {
    let replayed = Command::new("/usr/sbin/e2fsck")
        .arg("-p")
        .arg(disk)
        .output()
        .context("cannot run e2fsck")?;
    // What was left is removed, and nothing more.
    let text = String::from_utf8_lossy(&replayed.stdout);
    ensure!(replayed.status.code() < Some(4), "{text}");
    for round in 1..=ROUNDS {
        let found = images::debugfs(disk, &format!("cat round-{round}"))?;
        ensure!(
            found == format!("{round}\n").as_bytes(),
            "round-{round}: {:?}",
            String::from_utf8_lossy(&found)
        );
    }
    images::check(disk, 0)
}
